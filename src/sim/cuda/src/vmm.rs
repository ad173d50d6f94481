//! Virtual memory management: addresses and physical memory apart.
//!
//! Physical memory is a piece of one memory file of the process, so that it can be mapped at several
//! addresses; nothing of it takes host memory before it is touched.

use std::collections::{BTreeMap, HashMap};
use std::sync::PoisonError;

use gshare_sim_board::{GRANULARITY, MemoryKind};

use crate::code::{INVALID_DEVICE, INVALID_VALUE, NOT_SUPPORTED, OUT_OF_MEMORY, R};
use crate::driver::{Driver, code_of};
use crate::ffi::{In, Out, export};
use crate::memory::{Kind, map_anonymous};
use crate::pool::{Access, Location, ON_DEVICE};

/// `CUmemAllocationProp`.
#[derive(Debug, Clone, Copy)]
#[repr(C)]
struct Prop {
    kind: u32,
    handle_types: u32,
    location: Location,
    win32: u64,
    compression: u8,
    rdma: u8,
    usage: u16,
    reserved: [u8; 4],
}

const _: () = assert!(size_of::<Prop>() == 32);

#[derive(Debug)]
struct Physical {
    size: u64,
    prop: Prop,
    /// Where it lies in the memory file.
    offset: u64,
    /// The program's references and the mappings.
    references: u32,
    mappings: u32,
}

#[derive(Debug, Clone, Copy)]
struct Mapping {
    size: u64,
    handle: u64,
    /// 0 none, 1 read, 3 read and write.
    access: u32,
}

#[derive(Debug, Default)]
pub(crate) struct Vmm {
    file: Option<i32>,
    end: u64,
    physical: HashMap<u64, Physical>,
    reserved: BTreeMap<u64, u64>,
    mapped: BTreeMap<u64, Mapping>,
}

impl Vmm {
    fn file(&mut self) -> R<i32> {
        if let Some(fd) = self.file {
            return Ok(fd);
        }
        // SAFETY: the name is a C string.
        let fd = unsafe { libc::memfd_create(c"simulated-vidmem".as_ptr(), libc::MFD_CLOEXEC) };
        if fd < 0 {
            return Err(OUT_OF_MEMORY);
        }
        self.file = Some(fd);
        Ok(fd)
    }

    fn mapping_at(&self, addr: u64) -> Option<(u64, Mapping)> {
        let (&base, &m) = self.mapped.range(..=addr).next_back()?;
        (addr - base < m.size).then_some((base, m))
    }

    /// The whole mappings that make up exactly this range.
    fn mappings_in(&self, addr: u64, size: u64) -> R<Vec<(u64, Mapping)>> {
        let end = addr.checked_add(size).ok_or(INVALID_VALUE)?;
        let list: Vec<_> = self
            .mapped
            .range(addr..end)
            .map(|(b, m)| (*b, *m))
            .collect();
        let mut at = addr;
        for (base, m) in &list {
            if *base != at {
                return Err(INVALID_VALUE);
            }
            at += m.size;
        }
        if size == 0 || at != end {
            return Err(INVALID_VALUE);
        }
        Ok(list)
    }
}

impl Driver {
    /// Drops physical memory that neither the program nor a mapping refers to.
    fn drop_unused(&self, vmm: &mut Vmm, handle: u64) {
        let unused = |p: &Physical| p.references == 0 && p.mappings == 0;
        if !vmm.physical.get(&handle).is_some_and(unused) {
            return;
        }
        if let (Some(p), Some(fd)) = (vmm.physical.remove(&handle), vmm.file) {
            // SAFETY: punches a hole into the own memory file where nothing is mapped.
            unsafe {
                libc::fallocate(
                    fd,
                    libc::FALLOC_FL_PUNCH_HOLE | libc::FALLOC_FL_KEEP_SIZE,
                    p.offset.cast_signed(),
                    p.size.cast_signed(),
                );
            }
            if let Ok(d) = self.device(p.prop.location.id) {
                let _ = self
                    .board
                    .free(self.slot, d.gpu, MemoryKind::Virtual, p.size);
            }
        }
    }
}

fn check_prop(d: &Driver, p: &Prop) -> R<usize> {
    if p.kind != 1 {
        return Err(INVALID_VALUE);
    }
    if p.location.kind != ON_DEVICE || p.handle_types != 0 {
        // Host memory, and handles to share with other processes, come later.
        return Err(NOT_SUPPORTED);
    }
    Ok(d.device(p.location.id)?.gpu)
}

fn multiple(n: u64) -> bool {
    n > 0 && n.is_multiple_of(GRANULARITY)
}

/// Maps over a reserved range; what was there is replaced.
fn map_over(addr: u64, size: u64, protection: i32, file: Option<(i32, u64)>) -> R {
    let (flags, fd, offset) = match file {
        Some((fd, offset)) => (libc::MAP_SHARED, fd, offset),
        None => (libc::MAP_PRIVATE | libc::MAP_ANONYMOUS, -1, 0),
    };
    // SAFETY: the range lies in a reservation of this driver; callers hold the memory gate.
    let p = unsafe {
        libc::mmap(
            addr as *mut _,
            size as usize,
            protection,
            flags | libc::MAP_FIXED | libc::MAP_NORESERVE,
            fd,
            offset.cast_signed(),
        )
    };
    if p == libc::MAP_FAILED {
        Err(OUT_OF_MEMORY)
    } else {
        Ok(())
    }
}

export! {
    cuMemGetAllocationGranularity(out: Out<usize>, prop: In<Prop>, option: u32) |d| {
        out.check()?;
        check_prop(d, &prop.get()?)?;
        if option > 1 {
            return Err(INVALID_VALUE);
        }
        out.set(GRANULARITY as usize)
    };
    cuMemAddressReserve(out: Out<u64>, size: usize, align: usize, _hint: u64, flags: u64) |d| {
        out.check()?;
        let size = size as u64;
        if !multiple(size) || flags != 0 || (align != 0 && !align.is_power_of_two()) {
            return Err(INVALID_VALUE);
        }
        if align as u64 > GRANULARITY {
            return Err(NOT_SUPPORTED);
        }
        let addr = map_anonymous(size, libc::PROT_NONE)?;
        d.tables().vmm.reserved.insert(addr, size);
        out.set(addr)
    };
    cuMemAddressFree(addr: u64, size: usize) |d| {
        let mut t = d.tables();
        let whole = t.vmm.reserved.get(&addr) == Some(&(size as u64));
        if !whole || t.vmm.mapped.range(addr..addr + size as u64).next().is_some() {
            return Err(INVALID_VALUE);
        }
        t.vmm.reserved.remove(&addr);
        d.unmap_gated(addr, size as u64);
        Ok(())
    };
    cuMemCreate(out: Out<u64>, size: usize, prop: In<Prop>, flags: u64) |d| {
        out.check()?;
        let prop = prop.get()?;
        let gpu = check_prop(d, &prop)?;
        let size = size as u64;
        if !multiple(size) || flags != 0 {
            return Err(INVALID_VALUE);
        }
        let mut t = d.tables();
        let fd = t.vmm.file()?;
        let offset = t.vmm.end;
        let end = offset.checked_add(size).filter(|e| *e <= i64::MAX as u64).ok_or(OUT_OF_MEMORY)?;
        d.board.alloc(d.slot, gpu, MemoryKind::Virtual, size).map_err(|e| code_of(&e))?;
        // SAFETY: the descriptor is the own memory file.
        if unsafe { libc::ftruncate(fd, end.cast_signed()) } != 0 {
            let _ = d.board.free(d.slot, gpu, MemoryKind::Virtual, size);
            return Err(OUT_OF_MEMORY);
        }
        t.vmm.end = end;
        let handle = t.handle();
        let physical = Physical { size, prop, offset, references: 1, mappings: 0 };
        t.vmm.physical.insert(handle, physical);
        out.set(handle)
    };
    cuMemRelease(handle: u64) |d| {
        let mut t = d.tables();
        let p = t.vmm.physical.get_mut(&handle).ok_or(INVALID_VALUE)?;
        if p.references == 0 {
            return Err(INVALID_VALUE);
        }
        p.references -= 1;
        d.drop_unused(&mut t.vmm, handle);
        Ok(())
    };
    cuMemMap(addr: u64, size: usize, offset: usize, handle: u64, flags: u64) |d| {
        let mut t = d.tables();
        let size = size as u64;
        if !multiple(size) || !addr.is_multiple_of(GRANULARITY) || offset != 0 || flags != 0 {
            return Err(INVALID_VALUE);
        }
        let (&start, &len) = t.vmm.reserved.range(..=addr).next_back().ok_or(INVALID_VALUE)?;
        if addr - start >= len || size > len - (addr - start) {
            return Err(INVALID_VALUE);
        }
        let free = t.vmm.mapped.range(addr..addr + size).next().is_none()
            && t.vmm.mapping_at(addr).is_none();
        let fd = t.vmm.file()?;
        let p = t.vmm.physical.get_mut(&handle).ok_or(INVALID_VALUE)?;
        if !free || p.size != size {
            return Err(INVALID_VALUE);
        }
        map_over(addr, size, libc::PROT_NONE, Some((fd, p.offset)))?;
        p.mappings += 1;
        let device = p.prop.location.id as usize;
        t.vmm.mapped.insert(addr, Mapping { size, handle, access: 0 });
        t.memory.add(addr, size, device, 0, Kind::Mapped(handle));
        Ok(())
    };
    cuMemUnmap(addr: u64, size: usize) |d| {
        let tickets: Vec<u64> = d.tables().live.keys().copied().collect();
        d.wait_all(&tickets);
        let mut t = d.tables();
        let list = t.vmm.mappings_in(addr, size as u64)?;
        let _gate = d.memory_gate.write().unwrap_or_else(PoisonError::into_inner);
        for (base, m) in list {
            map_over(base, m.size, libc::PROT_NONE, None)?;
            t.vmm.mapped.remove(&base);
            t.memory.allocs.remove(&base);
            t.memory.unmap(base);
            if let Some(p) = t.vmm.physical.get_mut(&m.handle) {
                p.mappings -= 1;
            }
            d.drop_unused(&mut t.vmm, m.handle);
        }
        Ok(())
    };
    cuMemSetAccess(addr: u64, size: usize, list: In<Access>, count: usize) |d| {
        let mut t = d.tables();
        let mappings = t.vmm.mappings_in(addr, size as u64)?;
        let _gate = d.memory_gate.write().unwrap_or_else(PoisonError::into_inner);
        for a in list.list(count)? {
            if a.location.kind != ON_DEVICE {
                return Err(NOT_SUPPORTED);
            }
            d.device(a.location.id).map_err(|_| INVALID_DEVICE)?;
            let protection = match a.flags {
                0 => libc::PROT_NONE,
                1 => libc::PROT_READ,
                3 => libc::PROT_READ | libc::PROT_WRITE,
                _ => return Err(INVALID_VALUE),
            };
            for (base, m) in &mappings {
                // SAFETY: the range is a mapping of this driver, and the memory gate is held.
                let rc = unsafe {
                    libc::mprotect(*base as *mut _, m.size as usize, protection)
                };
                if rc != 0 {
                    return Err(OUT_OF_MEMORY);
                }
                // Kernels are only let at memory that they may also write.
                if a.flags == 3 {
                    t.memory.map(*base, m.size);
                } else {
                    t.memory.unmap(*base);
                }
                if let Some(m) = t.vmm.mapped.get_mut(base) {
                    m.access = a.flags;
                }
            }
        }
        Ok(())
    };
    cuMemGetAccess(out: Out<u64>, location: In<Location>, addr: u64) |d| {
        let l = location.get()?;
        let t = d.tables();
        let (_, m) = t.vmm.mapping_at(addr).ok_or(INVALID_VALUE)?;
        let device = t.vmm.physical.get(&m.handle).map(|p| p.prop.location);
        out.set(if device == Some(l) { u64::from(m.access) } else { 0 })
    };
    cuMemRetainAllocationHandle(out: Out<u64>, addr: u64) |d| {
        out.check()?;
        let mut t = d.tables();
        let (_, m) = t.vmm.mapping_at(addr).ok_or(INVALID_VALUE)?;
        if let Some(p) = t.vmm.physical.get_mut(&m.handle) {
            p.references += 1;
        }
        out.set(m.handle)
    };
    cuMemGetAllocationPropertiesFromHandle(out: Out<Prop>, handle: u64) |d| {
        let t = d.tables();
        out.set(t.vmm.physical.get(&handle).ok_or(INVALID_VALUE)?.prop)
    };
    cuMemExportToShareableHandle(_out: Out<u64>, handle: u64, _kind: u32, _flags: u64) |d| {
        d.tables().vmm.physical.get(&handle).ok_or(INVALID_VALUE)?;
        Err(NOT_SUPPORTED)
    };
}
