//! Virtual memory management: addresses and physical memory are separate.
//!
//! Physical memory is a piece of the process's memory file, so that it can be mapped at several addresses; it takes
//! host memory only when touched. Shareable memory has a file of its own, whose descriptor is the shareable handle.

use std::collections::{BTreeMap, HashMap};
use std::ffi::CString;
use std::sync::{Arc, PoisonError};

use gshare_sim_board::{GRANULARITY, MemoryKind};

use crate::checkpoint;
use crate::code::{INVALID_DEVICE, INVALID_VALUE, NOT_SUPPORTED, OUT_OF_MEMORY, R};
use crate::driver::{self, Driver, code_of};
use crate::ffi::{In, Out, export};
use crate::memory::{Kind, map_anonymous, memory_file, punch};
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

/// `CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR`.
const POSIX_FD: u32 = 1;
/// Name prefix of the files of shareable memory; the GPU's index on the board follows.
const SHAREABLE: &str = "simulated-vidmem-";

/// The bytes of physical memory. Handles of one process for the same memory share them.
#[derive(Debug)]
struct Backing {
    file: i32,
    /// Offset in the file.
    offset: u64,
    size: u64,
    /// Inode of the file, if only this memory uses it.
    inode: Option<u64>,
    /// The GPU that accounts for it; `None` if another process made it.
    charged: Option<usize>,
}

impl Drop for Backing {
    fn drop(&mut self) {
        match self.inode {
            // SAFETY: the descriptor is this memory's own, and nothing uses it any more.
            Some(_) => unsafe {
                libc::close(self.file);
            },
            None => punch(self.file, self.offset, self.size),
        }
        if let (Some(gpu), Ok(d)) = (self.charged, driver::get()) {
            let _ = d.board.free(d.slot, gpu, MemoryKind::Virtual, self.size);
        }
    }
}

/// The inode and size of a memory file.
fn identity(file: i32) -> R<(u64, u64)> {
    // SAFETY: stat is plain data, for which zero is a value.
    let mut stat: libc::stat = unsafe { std::mem::zeroed() };
    // SAFETY: `stat` is valid to write to; a bad descriptor is an error.
    if unsafe { libc::fstat(file, &raw mut stat) } != 0 {
        return Err(INVALID_VALUE);
    }
    Ok((stat.st_ino, stat.st_size.cast_unsigned()))
}

#[derive(Debug)]
struct Physical {
    prop: Prop,
    backing: Arc<Backing>,
    /// References of the program, and mappings.
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
        let fd = memory_file(c"simulated-vidmem")?;
        self.file = Some(fd);
        Ok(fd)
    }

    /// The files that hold physical memory of this process.
    pub(crate) fn files(&self) -> Vec<i32> {
        let own = self.physical.values().filter(|p| p.backing.inode.is_some());
        let mut files: Vec<i32> = own.map(|p| p.backing.file).chain(self.file).collect();
        files.sort_unstable();
        files.dedup();
        files
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
    /// Frees physical memory without references and mappings.
    fn drop_unused(&self, vmm: &mut Vmm, handle: u64) {
        let unused = |p: &Physical| p.references == 0 && p.mappings == 0;
        if vmm.physical.get(&handle).is_some_and(unused) {
            vmm.physical.remove(&handle);
        }
    }

    fn create_physical(&self, vmm: &mut Vmm, size: u64, prop: &Prop, gpu: usize) -> R<Backing> {
        let (file, offset, inode) = if prop.handle_types == POSIX_FD {
            let name = CString::new(format!("{SHAREABLE}{gpu}")).map_err(|_| OUT_OF_MEMORY)?;
            let file = memory_file(&name)?;
            (file, 0, Some(identity(file)?.0))
        } else {
            (vmm.file()?, vmm.end, None)
        };
        let end = offset
            .checked_add(size)
            .filter(|e| *e <= i64::MAX as u64)
            .ok_or(OUT_OF_MEMORY)?;
        let mut backing = Backing {
            file,
            offset,
            size,
            inode,
            charged: None,
        };
        self.board
            .alloc(self.slot, gpu, MemoryKind::Virtual, size)
            .map_err(|e| code_of(&e))?;
        backing.charged = Some(gpu);
        // SAFETY: the descriptor is a memory file of this driver.
        if unsafe { libc::ftruncate(file, end.cast_signed()) } != 0 {
            return Err(OUT_OF_MEMORY);
        }
        if inode.is_none() {
            vmm.end = end;
        }
        Ok(backing)
    }

    /// The memory of a descriptor that a process exported.
    fn import(&self, vmm: &mut Vmm, file: i32) -> R<(Arc<Backing>, Prop)> {
        let name = std::fs::read_link(format!("/proc/self/fd/{file}"));
        let name = name.map_err(|_| INVALID_VALUE)?;
        let gpu = name
            .to_str()
            .and_then(|n| n.strip_prefix("/memfd:")?.strip_prefix(SHAREABLE))
            .and_then(|n| n.split_whitespace().next()?.parse::<usize>().ok())
            .ok_or(INVALID_VALUE)?;
        let visible = self.devices.iter().position(|d| d.gpu == gpu);
        let device = visible.ok_or(INVALID_DEVICE)?;
        let (inode, size) = identity(file)?;
        let prop = Prop {
            kind: 1,
            handle_types: POSIX_FD,
            location: Location {
                kind: ON_DEVICE,
                id: device as i32,
            },
            win32: 0,
            compression: 0,
            rdma: 0,
            usage: 0,
            reserved: [0; 4],
        };
        let same = |p: &&Physical| p.backing.inode == Some(inode);
        if let Some(known) = vmm.physical.values().find(same) {
            return Ok((Arc::clone(&known.backing), prop));
        }
        // SAFETY: duplicates the program's descriptor, which the program keeps.
        let own = unsafe { libc::fcntl(file, libc::F_DUPFD_CLOEXEC, 0) };
        if own < 0 {
            return Err(OUT_OF_MEMORY);
        }
        let backing = Backing {
            file: own,
            offset: 0,
            size,
            inode: Some(inode),
            charged: None,
        };
        Ok((Arc::new(backing), prop))
    }
}

fn check_prop(d: &Driver, p: &Prop) -> R<usize> {
    if p.kind != 1 {
        return Err(INVALID_VALUE);
    }
    // Not supported: host memory, and shareable handles other than file descriptors.
    if p.location.kind != ON_DEVICE || p.handle_types & !POSIX_FD != 0 {
        return Err(NOT_SUPPORTED);
    }
    Ok(d.device(p.location.id)?.gpu)
}

fn multiple(n: u64) -> bool {
    n > 0 && n.is_multiple_of(GRANULARITY)
}

/// Maps over a reserved range, replacing what was there.
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
        let backing = Arc::new(d.create_physical(&mut t.vmm, size, &prop, gpu)?);
        let handle = t.handle();
        let physical = Physical { prop, backing, references: 1, mappings: 0 };
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
        let p = t.vmm.physical.get_mut(&handle).ok_or(INVALID_VALUE)?;
        if !free || p.backing.size != size {
            return Err(INVALID_VALUE);
        }
        map_over(addr, size, libc::PROT_NONE, Some((p.backing.file, p.backing.offset)))?;
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
                // Kernels may only access memory that they may also write.
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
    cuMemExportToShareableHandle(out: Out<i32>, handle: u64, kind: u32, flags: u64) |d| {
        out.check()?;
        let t = d.tables();
        let p = t.vmm.physical.get(&handle).ok_or(INVALID_VALUE)?;
        if flags != 0 || kind == 0 || p.prop.handle_types & kind != kind {
            return Err(INVALID_VALUE);
        }
        // SAFETY: duplicates a descriptor of this driver; the program owns the copy.
        let fd = unsafe { libc::fcntl(p.backing.file, libc::F_DUPFD_CLOEXEC, 0) };
        if fd < 0 {
            return Err(OUT_OF_MEMORY);
        }
        checkpoint::shares();
        out.set(fd)
    };
    cuMemImportFromShareableHandle(out: Out<u64>, handle: u64, kind: u32) |d| {
        out.check()?;
        if kind != POSIX_FD {
            return Err(NOT_SUPPORTED);
        }
        let file = i32::try_from(handle).map_err(|_| INVALID_VALUE)?;
        let mut t = d.tables();
        let (backing, prop) = d.import(&mut t.vmm, file)?;
        checkpoint::shares();
        let handle = t.handle();
        let physical = Physical { prop, backing, references: 1, mappings: 0 };
        t.vmm.physical.insert(handle, physical);
        out.set(handle)
    };
}
