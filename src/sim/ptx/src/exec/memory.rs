//! Loads, stores and atomics of a warp, in all state spaces.

use crate::error::{MemFault, Trap};
use crate::exec::Launch;
use crate::exec::warp::{Warp, lanes};
use crate::ir::{
    Addr, AtomOp, Base, CODE_BASE, Function, LOCAL_BASE, Lanes, MemOp, MemSpace, PARAM_BASE,
    SHARED_BASE, WARP,
};
use crate::types::Ty;

/// The registers and the local memory of the frame: first register, first byte.
type FrameAt = (u32, u32);

/// A generic address belongs to one of the windows.
fn resolve(space: MemSpace, addr: u64) -> (MemSpace, u64) {
    match space {
        MemSpace::Generic if addr < SHARED_BASE => (MemSpace::Global, addr),
        MemSpace::Generic if addr < LOCAL_BASE => (MemSpace::Shared, addr - SHARED_BASE),
        MemSpace::Generic if addr < PARAM_BASE => (MemSpace::Local, addr - LOCAL_BASE),
        MemSpace::Generic if addr < CODE_BASE => (MemSpace::Param, addr),
        MemSpace::Generic => (MemSpace::Global, addr),
        // Parameters of calls are in the frame, those of the kernel have a window.
        MemSpace::Param if addr < PARAM_BASE => (MemSpace::Local, addr),
        other => (other, addr),
    }
}

fn range(bytes: &[u8], addr: u64, size: u32) -> Option<std::ops::Range<usize>> {
    let start = usize::try_from(addr).ok()?;
    let end = start.checked_add(size as usize)?;
    (end <= bytes.len()).then_some(start..end)
}

fn read(bytes: &[u8]) -> u64 {
    let mut buf = [0; 8];
    buf[..bytes.len()].copy_from_slice(bytes);
    u64::from_le_bytes(buf)
}

fn extend(ty: Ty, bits: u64) -> u64 {
    match ty {
        Ty::S8 => bits as i8 as u64,
        Ty::S16 => bits as i16 as u64,
        Ty::S32 => bits as i32 as u64,
        _ => bits,
    }
}

impl Warp {
    /// The address of each lane and the space it is in.
    fn addresses(
        &self,
        launch: &Launch<'_>,
        function: &Function,
        (regs, local): FrameAt,
        addr: Addr,
    ) -> Result<Lanes, Trap> {
        let offset = addr.offset as u64;
        let base = match addr.base {
            Base::Reg(reg) => {
                let mut out = *self.source(function, regs, reg);
                if offset != 0 {
                    out.iter_mut()
                        .for_each(|addr| *addr = addr.wrapping_add(offset));
                }
                return Ok(out);
            }
            Base::Zero | Base::Shared => 0,
            Base::Frame => u64::from(local),
            Base::KernelParam => PARAM_BASE,
            Base::DynamicShared => u64::from(launch.static_shared.next_multiple_of(16)),
            Base::Global(index) => launch.globals[index as usize]
                .ok_or_else(|| Trap::UnboundGlobal((launch.global_names)(index)))?,
            Base::Code(index) => CODE_BASE + u64::from(index),
        };
        Ok([base.wrapping_add(offset); WARP])
    }

    pub(crate) fn load(
        &mut self,
        launch: &mut Launch<'_>,
        function: &Function,
        frame: FrameAt,
        mask: u32,
        op: &MemOp,
        line: u32,
    ) -> Result<(), Trap> {
        let addrs = self.addresses(launch, function, frame, op.addr)?;
        let size = op.ty.size();
        let total = size * op.regs.len() as u32;
        check_aligned(&addrs, mask, total, line)?;
        if self.load_row(launch, frame.0, mask, op, &addrs) {
            return Ok(());
        }
        for lane in lanes(mask) {
            let mut buf = [0; 64];
            let buf = &mut buf[..total as usize];
            let addr = addrs[lane];
            self.read_bytes(launch, op.space, lane, addr, buf)
                .map_err(|_| Trap::IllegalAddress {
                    addr,
                    size: total,
                    line,
                })?;
            for (reg, bytes) in op.regs.iter().zip(buf.chunks_exact(size as usize)) {
                if *reg != u32::MAX {
                    self.regs[(frame.0 + reg) as usize][lane] = extend(op.ty, read(bytes));
                }
            }
        }
        Ok(())
    }

    /// A full warp that reads neighbouring elements (or all the same one) of device memory at once.
    fn load_row(
        &mut self,
        launch: &mut Launch<'_>,
        regs: u32,
        mask: u32,
        op: &MemOp,
        addrs: &Lanes,
    ) -> bool {
        let [reg] = op.regs[..] else { return false };
        let device = match op.space {
            MemSpace::Global => true,
            MemSpace::Generic => addrs.iter().all(|a| *a < SHARED_BASE),
            _ => false,
        };
        if mask != u32::MAX || reg == u32::MAX || !device {
            return false;
        }
        let size = u64::from(op.ty.size());
        let first = addrs[0];
        let mut buf = [0; 8 * WARP];
        if addrs.iter().all(|addr| *addr == first) {
            let buf = &mut buf[..size as usize];
            if launch.memory.load(first, buf).is_err() {
                return false;
            }
            self.regs[(regs + reg) as usize] = [extend(op.ty, read(buf)); WARP];
            return true;
        }
        if !in_a_row(addrs, size) {
            return false;
        }
        let buf = &mut buf[..size as usize * WARP];
        if launch.memory.load(first, buf).is_err() {
            return false;
        }
        let out = &mut self.regs[(regs + reg) as usize];
        match size {
            4 => {
                for (out, bytes) in out.iter_mut().zip(buf.as_chunks::<4>().0) {
                    *out = u64::from(u32::from_le_bytes(*bytes));
                }
                if op.ty == Ty::S32 {
                    out.iter_mut()
                        .for_each(|value| *value = *value as i32 as u64);
                }
            }
            8 => {
                for (out, bytes) in out.iter_mut().zip(buf.as_chunks::<8>().0) {
                    *out = u64::from_le_bytes(*bytes);
                }
            }
            _ => {
                for (out, bytes) in out.iter_mut().zip(buf.chunks_exact(size as usize)) {
                    *out = extend(op.ty, read(bytes));
                }
            }
        }
        true
    }

    pub(crate) fn store(
        &mut self,
        launch: &mut Launch<'_>,
        function: &Function,
        frame: FrameAt,
        mask: u32,
        op: &MemOp,
        line: u32,
    ) -> Result<(), Trap> {
        let addrs = self.addresses(launch, function, frame, op.addr)?;
        let size = op.ty.size() as usize;
        let total = (size * op.regs.len()) as u32;
        check_aligned(&addrs, mask, total, line)?;
        if mask == u32::MAX
            && let [reg] = op.regs[..]
            && op.space == MemSpace::Global
            && in_a_row(&addrs, size as u64)
        {
            let values = self.source(function, frame.0, reg);
            let mut buf = [0; 8 * WARP];
            for (bytes, value) in buf.chunks_exact_mut(size).zip(values) {
                bytes.copy_from_slice(&value.to_le_bytes()[..size]);
            }
            if launch.memory.store(addrs[0], &buf[..size * WARP]).is_ok() {
                return Ok(());
            }
        }
        for lane in lanes(mask) {
            let mut buf = [0; 64];
            for (reg, bytes) in op.regs.iter().zip(buf.chunks_exact_mut(size)) {
                let value = self.source(function, frame.0, *reg)[lane];
                bytes.copy_from_slice(&value.to_le_bytes()[..size]);
            }
            let addr = addrs[lane];
            self.write_bytes(launch, op.space, lane, addr, &buf[..total as usize])
                .map_err(|_| Trap::IllegalAddress {
                    addr,
                    size: total,
                    line,
                })?;
        }
        Ok(())
    }

    pub(crate) fn atomic(
        &mut self,
        launch: &mut Launch<'_>,
        function: &Function,
        frame: FrameAt,
        mask: u32,
        op: &AtomOp,
        line: u32,
    ) -> Result<(), Trap> {
        let addrs = self.addresses(launch, function, frame, op.addr)?;
        let size = op.ty.size();
        check_aligned(&addrs, mask, size, line)?;
        for lane in lanes(mask) {
            let b = self.source(function, frame.0, op.b)[lane];
            let c = self.source(function, frame.0, op.c)[lane];
            let addr = addrs[lane];
            let fault = |_| Trap::IllegalAddress { addr, size, line };
            let mut update = |old: u64| (op.apply)(old, b, c);
            let (space, at) = resolve(op.space, addr);
            let old = match space {
                MemSpace::Global => launch.memory.update(at, size, &mut update).map_err(fault)?,
                _ => {
                    let mut buf = [0; 8];
                    let bytes = &mut buf[..size as usize];
                    self.read_bytes(launch, op.space, lane, addr, bytes)
                        .map_err(fault)?;
                    let old = read(bytes);
                    bytes.copy_from_slice(&update(old).to_le_bytes()[..size as usize]);
                    self.write_bytes(launch, op.space, lane, addr, bytes)
                        .map_err(fault)?;
                    old
                }
            };
            if let Some(d) = op.dst {
                self.regs[(frame.0 + d) as usize][lane] = extend(op.ty, old);
            }
        }
        Ok(())
    }

    fn read_bytes(
        &self,
        launch: &mut Launch<'_>,
        space: MemSpace,
        lane: usize,
        addr: u64,
        buf: &mut [u8],
    ) -> Result<(), MemFault> {
        let size = buf.len() as u32;
        let (space, at) = resolve(space, addr);
        let bytes = match space {
            MemSpace::Global | MemSpace::Generic => {
                match buf.len() {
                    4 => buf.copy_from_slice(&launch.memory.load32(at)?.to_le_bytes()),
                    8 => buf.copy_from_slice(&launch.memory.load64(at)?.to_le_bytes()),
                    _ => launch.memory.load(at, buf)?,
                }
                return Ok(());
            }
            MemSpace::Shared => range(&launch.shared, at, size).map(|r| &launch.shared[r]),
            MemSpace::Local => range(&self.local[lane], at, size).map(|r| &self.local[lane][r]),
            MemSpace::Param => {
                range(launch.config.params, at - PARAM_BASE, size).map(|r| &launch.config.params[r])
            }
        };
        buf.copy_from_slice(bytes.ok_or(MemFault { addr })?);
        Ok(())
    }

    fn write_bytes(
        &mut self,
        launch: &mut Launch<'_>,
        space: MemSpace,
        lane: usize,
        addr: u64,
        data: &[u8],
    ) -> Result<(), MemFault> {
        let (space, at) = resolve(space, addr);
        let target = match space {
            MemSpace::Global | MemSpace::Generic => {
                return match *data {
                    [a, b, c, d] => launch.memory.store32(at, u32::from_le_bytes([a, b, c, d])),
                    [a, b, c, d, e, f, g, h] => launch
                        .memory
                        .store64(at, u64::from_le_bytes([a, b, c, d, e, f, g, h])),
                    _ => launch.memory.store(at, data),
                };
            }
            MemSpace::Shared => &mut launch.shared,
            MemSpace::Local => &mut self.local[lane],
            // The parameters of a kernel are read-only.
            MemSpace::Param => return Err(MemFault { addr }),
        };
        let range = range(target, at, data.len() as u32).ok_or(MemFault { addr })?;
        target[range].copy_from_slice(data);
        Ok(())
    }
}

fn in_a_row(addrs: &Lanes, size: u64) -> bool {
    let mut expect = addrs[0];
    addrs.iter().all(|addr| {
        let same = *addr == expect;
        expect = expect.wrapping_add(size);
        same
    })
}

fn check_aligned(addrs: &Lanes, mask: u32, size: u32, line: u32) -> Result<(), Trap> {
    let low = u64::from(size - 1);
    if mask == u32::MAX && addrs.iter().fold(0, |all, addr| all | addr) & low == 0 {
        return Ok(());
    }
    match lanes(mask).find(|lane| addrs[*lane] & low != 0) {
        None => Ok(()),
        Some(lane) => Err(Trap::MisalignedAddress {
            addr: addrs[lane],
            size,
            line,
        }),
    }
}
