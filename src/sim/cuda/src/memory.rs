//! Allocations. Device memory is real, private memory at the device pointer's own address, mapped without reservation,
//! so that only touched pages cost host memory.

mod kernel;

use std::collections::{BTreeMap, HashMap};
use std::ffi::CStr;
use std::ptr;
use std::sync::{Arc, Mutex, PoisonError};

use gshare_sim_board::{GRANULARITY, MemoryKind};

use crate::code::{INVALID_VALUE, NOT_FOUND, OUT_OF_MEMORY, R};
use crate::driver::{Driver, Tables, code_of};
use crate::ffi::{Out, export};
use crate::heap::{Heap, Source};
pub(crate) use kernel::KernelMemory;

/// Page size of the host.
pub(crate) const PAGE: u64 = 4096;

/// Origin of an allocation.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Kind {
    /// `cuMemAlloc`.
    Device,
    /// From the pool with this handle.
    Pool(u64),
    /// `cuMemAllocManaged`.
    Managed,
    /// `cuMemHostAlloc`, with its flags.
    Host(u32),
    /// `cuMemHostRegister`: the program's own memory.
    Registered(u32),
    /// A mapping of the physical memory with this handle.
    Mapped(u64),
    /// The memory of an array.
    Array,
    /// A variable of a module.
    Variable,
    /// Made by a graph's allocation node.
    Graph,
    /// Another process's memory.
    Imported,
}

#[derive(Debug, Clone, Copy)]
pub(crate) struct Alloc {
    pub size: u64,
    /// Ordinal of the device.
    pub device: usize,
    pub context: u64,
    pub kind: Kind,
    /// Value of `CU_POINTER_ATTRIBUTE_BUFFER_ID`.
    pub id: u64,
}

#[derive(Debug, Default)]
pub(crate) struct Memory {
    pub allocs: BTreeMap<u64, Alloc>,
    /// Memory that kernels may access: address to length.
    maps: BTreeMap<u64, u64>,
    pub heaps: HashMap<u64, Heap>,
    last_id: u64,
    ranges: Option<Arc<Vec<(u64, u64)>>>,
}

impl Memory {
    /// The allocation that contains `addr`, with its first address.
    pub(crate) fn find(&self, addr: u64) -> Option<(u64, Alloc)> {
        let (&base, &a) = self.allocs.range(..=addr).next_back()?;
        (addr - base < a.size).then_some((base, a))
    }

    pub(crate) fn add(&mut self, base: u64, size: u64, device: usize, context: u64, kind: Kind) {
        self.last_id += 1;
        let alloc = Alloc {
            size,
            device,
            context,
            kind,
            id: self.last_id,
        };
        self.allocs.insert(base, alloc);
    }

    /// Lets kernels and copies access a range.
    pub(crate) fn map(&mut self, base: u64, len: u64) {
        self.maps.insert(base, len);
        self.ranges = None;
    }

    pub(crate) fn unmap(&mut self, base: u64) {
        self.maps.remove(&base);
        self.ranges = None;
    }

    /// Whether the device can access the whole range.
    pub(crate) fn covers(&self, mut addr: u64, mut len: u64) -> bool {
        loop {
            let Some((&base, &size)) = self.maps.range(..=addr).next_back() else {
                return false;
            };
            let inside = addr - base;
            if inside >= size {
                return false;
            }
            if len <= size - inside {
                return true;
            }
            len -= size - inside;
            addr = base + size;
        }
    }

    /// All memory that kernels may access, as sorted ranges of first and one past last address.
    pub(crate) fn ranges(&mut self) -> Arc<Vec<(u64, u64)>> {
        let maps = &self.maps;
        let made = self.ranges.get_or_insert_with(|| {
            let mut ranges: Vec<(u64, u64)> = Vec::new();
            for (&base, &len) in maps {
                match ranges.last_mut() {
                    Some(last) if last.1 == base => last.1 = base + len,
                    _ => ranges.push((base, base + len)),
                }
            }
            Arc::new(ranges)
        });
        Arc::clone(made)
    }
}

/// Maps private memory without reservation; the address is a multiple of the granularity.
pub(crate) fn map_anonymous(len: u64, protection: i32) -> R<u64> {
    let whole = len.checked_add(GRANULARITY).ok_or(OUT_OF_MEMORY)?;
    // SAFETY: a new anonymous mapping at an address of the kernel's choice.
    let p = unsafe {
        libc::mmap(
            ptr::null_mut(),
            whole as usize,
            protection,
            libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_NORESERVE,
            -1,
            0,
        )
    };
    if p == libc::MAP_FAILED {
        return Err(OUT_OF_MEMORY);
    }
    let start = p as u64;
    let base = start.next_multiple_of(GRANULARITY);
    unmap(start, base - start);
    unmap(base + len, start + whole - (base + len));
    // SAFETY: advice on the new mapping; huge pages would cost host memory needlessly.
    unsafe { libc::madvise(base as *mut _, len as usize, libc::MADV_NOHUGEPAGE) };
    Ok(base)
}

/// The memory file of the process with all blocks of contexts. Other processes can map them from there.
struct SharedFile {
    file: i32,
    end: u64,
    /// Address to length and offset in the file.
    blocks: BTreeMap<u64, (u64, u64)>,
}

static SHARED: Mutex<Option<SharedFile>> = Mutex::new(None);

/// Maps part of a file; the address is a multiple of the granularity.
pub(crate) fn map_file(file: i32, offset: u64, len: u64) -> R<u64> {
    let base = map_anonymous(len, libc::PROT_NONE)?;
    // SAFETY: replaces the new mapping, which nothing else knows.
    let p = unsafe {
        libc::mmap(
            base as *mut _,
            len as usize,
            libc::PROT_READ | libc::PROT_WRITE,
            libc::MAP_SHARED | libc::MAP_FIXED | libc::MAP_NORESERVE,
            file,
            offset.cast_signed(),
        )
    };
    if p == libc::MAP_FAILED {
        unmap(base, len);
        return Err(OUT_OF_MEMORY);
    }
    Ok(base)
}

pub(crate) fn memory_file(name: &CStr) -> R<i32> {
    // By number: glibc 2.17 has no function for this system call.
    // SAFETY: the name is a C string.
    let file = unsafe { libc::syscall(libc::SYS_memfd_create, name.as_ptr(), libc::MFD_CLOEXEC) };
    match i32::try_from(file) {
        Ok(file @ 0..) => Ok(file),
        _ => Err(OUT_OF_MEMORY),
    }
}

/// Frees the pages of a range of a memory file.
pub(crate) fn punch(file: i32, offset: u64, len: u64) {
    // SAFETY: punches a hole into a memory file of this driver where nothing is used any more.
    unsafe {
        libc::fallocate(
            file,
            libc::FALLOC_FL_PUNCH_HOLE | libc::FALLOC_FL_KEEP_SIZE,
            offset.cast_signed(),
            len.cast_signed(),
        );
    }
}

/// Fills memory of a context with zeros. Whole pages are freed, so that they cost the host nothing until touched.
pub(crate) fn zero(addr: u64, len: u64) {
    let end = addr + len;
    let mut pages = (addr.next_multiple_of(PAGE), end / PAGE * PAGE);
    match place_in_file(addr) {
        Some((base, _, offset, file)) if pages.0 < pages.1 => {
            punch(file, offset + pages.0 - base, pages.1 - pages.0);
        }
        _ => pages = (end, end),
    }
    for (from, to) in [(addr, pages.0), (pages.1, end)] {
        // SAFETY: the caller has allocated the range and nothing uses it yet.
        unsafe { ptr::write_bytes(from as *mut u8, 0, (to - from) as usize) };
    }
}

/// Maps a new block in the memory file of the process.
fn map_block(len: u64) -> R<u64> {
    let mut shared = SHARED.lock().unwrap_or_else(PoisonError::into_inner);
    if shared.is_none() {
        *shared = Some(SharedFile {
            file: memory_file(c"simulated-memory")?,
            end: 0,
            blocks: BTreeMap::new(),
        });
    }
    let Some(s) = shared.as_mut() else {
        return Err(OUT_OF_MEMORY);
    };
    let end = s.end.checked_add(len).filter(|e| *e <= i64::MAX as u64);
    let end = end.ok_or(OUT_OF_MEMORY)?;
    // SAFETY: the descriptor is the own memory file.
    if unsafe { libc::ftruncate(s.file, end.cast_signed()) } != 0 {
        return Err(OUT_OF_MEMORY);
    }
    let base = map_file(s.file, s.end, len)?;
    s.blocks.insert(base, (len, s.end));
    s.end = end;
    Ok(base)
}

fn unmap_block(base: u64) {
    let mut shared = SHARED.lock().unwrap_or_else(PoisonError::into_inner);
    if let Some(s) = shared.as_mut()
        && let Some((len, offset)) = s.blocks.remove(&base)
    {
        unmap(base, len);
        punch(s.file, offset, len);
    }
}

/// The block that contains an address: its address, its length, its offset in the file, and the file.
pub(crate) fn place_in_file(addr: u64) -> Option<(u64, u64, u64, i32)> {
    let shared = SHARED.lock().unwrap_or_else(PoisonError::into_inner);
    let s = shared.as_ref()?;
    let (&base, &(len, offset)) = s.blocks.range(..=addr).next_back()?;
    (addr - base < len).then_some((base, len, offset, s.file))
}

/// The memory file of the process, if there is one.
pub(crate) fn shared_file() -> Option<i32> {
    let shared = SHARED.lock().unwrap_or_else(PoisonError::into_inner);
    shared.as_ref().map(|s| s.file)
}

/// Unmaps part of a mapping from [`map_anonymous`].
pub(crate) fn unmap(base: u64, len: u64) {
    if len > 0 {
        // SAFETY: the range is part of a mapping of this driver that nothing refers to any more:
        // callers hold the memory gate if kernels could have seen it.
        unsafe { libc::munmap(base as *mut _, len as usize) };
    }
}

/// Blocks for a heap: board accounting, mapping, and the list of memory that kernels may access.
pub(crate) struct Blocks<'a> {
    pub driver: &'a Driver,
    pub gpu: usize,
    pub kind: MemoryKind,
    /// New ranges, and addresses of freed ones, which the caller puts into the tables.
    pub made: Vec<(u64, u64)>,
    pub gone: Vec<u64>,
}

impl Source for Blocks<'_> {
    fn get(&mut self, size: u64) -> R<u64> {
        let d = self.driver;
        d.board
            .alloc(d.slot, self.gpu, self.kind, size)
            .map_err(|e| code_of(&e))?;
        let base = map_block(size).inspect_err(|_| {
            let _ = d.board.free(d.slot, self.gpu, self.kind, size);
        })?;
        self.made.push((base, size));
        Ok(base)
    }

    fn put(&mut self, base: u64, size: u64) {
        let d = self.driver;
        {
            let _gate = d
                .memory_gate
                .write()
                .unwrap_or_else(PoisonError::into_inner);
            unmap_block(base);
        }
        let _ = d.board.free(d.slot, self.gpu, self.kind, size);
        self.gone.push(base);
    }
}

impl Tables {
    pub(crate) fn has_managed(&self) -> bool {
        let allocs = self.memory.allocs.values();
        allocs.into_iter().any(|a| a.kind == Kind::Managed)
    }
}

impl Driver {
    /// Runs `f` on a heap and records new and freed blocks.
    pub(crate) fn on_heap<T>(
        &self,
        memory: &mut Memory,
        heap: &mut Heap,
        gpu: usize,
        kind: MemoryKind,
        f: impl FnOnce(&mut Heap, &mut dyn Source) -> T,
    ) -> T {
        let mut blocks = Blocks {
            driver: self,
            gpu,
            kind,
            made: Vec::new(),
            gone: Vec::new(),
        };
        let result = f(heap, &mut blocks);
        for (base, len) in blocks.made {
            memory.map(base, len);
        }
        for base in blocks.gone {
            memory.unmap(base);
        }
        result
    }

    /// Allocates device memory for a context.
    pub(crate) fn device_alloc(&self, t: &mut Tables, context: u64, size: u64) -> R<u64> {
        let c = t.context(context)?;
        let (device, gpu) = (c.device, c.gpu);
        let mut heap = t.memory.heaps.remove(&context).unwrap_or_default();
        let result = self.on_heap(&mut t.memory, &mut heap, gpu, MemoryKind::Device, |h, s| {
            h.alloc(size, s)
        });
        t.memory.heaps.insert(context, heap);
        let addr = result?;
        t.memory.add(addr, size, device, context, Kind::Device);
        Ok(addr)
    }

    /// Allocates device memory that the program does not own and cannot free.
    pub(crate) fn owned_alloc(
        &self,
        t: &mut Tables,
        context: u64,
        size: u64,
        kind: Kind,
    ) -> R<u64> {
        let addr = self.device_alloc(t, context, size)?;
        if let Some(a) = t.memory.allocs.get_mut(&addr) {
            a.kind = kind;
        }
        Ok(addr)
    }

    /// Allocates memory that the host can access, too.
    pub(crate) fn managed_alloc(&self, t: &mut Tables, context: u64, size: u64) -> R<u64> {
        let (device, gpu) = (t.context(context)?.device, t.context(context)?.gpu);
        let len = size
            .checked_next_multiple_of(GRANULARITY)
            .ok_or(OUT_OF_MEMORY)?;
        let addr = map_anonymous(len, libc::PROT_READ | libc::PROT_WRITE)?;
        if let Err(e) = self.board.alloc(self.slot, gpu, MemoryKind::Managed, len) {
            unmap(addr, len);
            return Err(code_of(&e));
        }
        t.memory.map(addr, len);
        t.memory.add(addr, size, device, context, Kind::Managed);
        Ok(addr)
    }

    /// Frees the memory of [`Driver::owned_alloc`].
    pub(crate) fn owned_free(&self, t: &mut Tables, addr: u64) -> R {
        if let Some(a) = t.memory.allocs.get_mut(&addr)
            && a.kind != Kind::Managed
        {
            a.kind = Kind::Device;
        }
        self.device_free(t, addr)
    }

    /// Frees device memory of any kind that `cuMemFree` accepts.
    pub(crate) fn device_free(&self, t: &mut Tables, addr: u64) -> R {
        let a = *t.memory.allocs.get(&addr).ok_or(INVALID_VALUE)?;
        match a.kind {
            Kind::Device => {
                t.memory.allocs.remove(&addr);
                let gpu = self.devices[a.device].gpu;
                if let Some(mut heap) = t.memory.heaps.remove(&a.context) {
                    self.on_heap(&mut t.memory, &mut heap, gpu, MemoryKind::Device, |h, s| {
                        h.free(addr, a.size, s);
                    });
                    t.memory.heaps.insert(a.context, heap);
                }
            }
            Kind::Pool(pool) => self.pool_free(t, addr, a, pool),
            Kind::Managed => {
                t.memory.allocs.remove(&addr);
                t.memory.unmap(addr);
                let len = a.size.next_multiple_of(GRANULARITY);
                self.unmap_gated(addr, len);
                let gpu = self.devices[a.device].gpu;
                let _ = self.board.free(self.slot, gpu, MemoryKind::Managed, len);
            }
            Kind::Graph => self.graph_free(t, addr, a.device),
            Kind::Host(_)
            | Kind::Registered(_)
            | Kind::Mapped(_)
            | Kind::Array
            | Kind::Variable
            | Kind::Imported => return Err(INVALID_VALUE),
        }
        Ok(())
    }

    pub(crate) fn unmap_gated(&self, base: u64, len: u64) {
        let _gate = self
            .memory_gate
            .write()
            .unwrap_or_else(PoisonError::into_inner);
        unmap(base, len);
    }

    /// Frees all memory of a context.
    pub(crate) fn free_context_memory(&self, t: &mut Tables, context: u64, gpu: usize) {
        let owned: Vec<(u64, Alloc)> = t
            .memory
            .allocs
            .iter()
            .filter(|(_, a)| a.context == context)
            .map(|(base, a)| (*base, *a))
            .collect();
        for (base, a) in owned {
            match a.kind {
                Kind::Device | Kind::Array | Kind::Variable => {
                    t.memory.allocs.remove(&base);
                }
                Kind::Managed => {
                    let _ = self.device_free(t, base);
                }
                Kind::Host(_) => {
                    let _ = self.host_free(t, base);
                }
                Kind::Registered(_) => {
                    t.memory.allocs.remove(&base);
                    t.memory.unmap(base);
                }
                // Pools and physical memory belong to the device, not to a context.
                Kind::Pool(_) | Kind::Mapped(_) | Kind::Graph | Kind::Imported => {}
            }
        }
        self.close_imports(t, context);
        t.forget_arrays(context);
        if let Some(mut heap) = t.memory.heaps.remove(&context) {
            self.on_heap(&mut t.memory, &mut heap, gpu, MemoryKind::Device, |h, s| {
                h.clear(s);
            });
        }
    }
}

/// Alignment of the rows of a pitched allocation, in bytes.
const PITCH: u64 = 512;

export! {
    cuMemAlloc_v2(out: Out<u64>, size: usize) |d| {
        out.check()?;
        d.unsafe_call()?;
        let mut t = d.tables();
        let context = d.current(&t)?;
        if size == 0 {
            return Err(INVALID_VALUE);
        }
        out.set(d.device_alloc(&mut t, context, size as u64)?)
    };
    cuMemAllocPitch_v2(
        out: Out<u64>, pitch: Out<usize>, width: usize, height: usize, element: u32,
    ) |d| {
        out.check()?;
        pitch.check()?;
        d.unsafe_call()?;
        let mut t = d.tables();
        let context = d.current(&t)?;
        if width == 0 || height == 0 || !matches!(element, 4 | 8 | 16) {
            return Err(INVALID_VALUE);
        }
        let row = (width as u64).checked_next_multiple_of(PITCH).ok_or(OUT_OF_MEMORY)?;
        let size = row.checked_mul(height as u64).ok_or(OUT_OF_MEMORY)?;
        let addr = d.device_alloc(&mut t, context, size)?;
        pitch.set(row as usize)?;
        out.set(addr)
    };
    cuMemAllocManaged(out: Out<u64>, size: usize, flags: u32) |d| {
        out.check()?;
        d.unsafe_call()?;
        let mut t = d.tables();
        let context = d.current(&t)?;
        // Attach globally, to the host, or to a single stream.
        if size == 0 || !matches!(flags, 1 | 2 | 4) {
            return Err(INVALID_VALUE);
        }
        out.set(d.managed_alloc(&mut t, context, size as u64)?)
    };
    cuMemFree_v2(addr: u64) |d| {
        if addr == 0 {
            return Ok(());
        }
        d.unsafe_call()?;
        let tickets = {
            let t = d.tables();
            d.current(&t)?;
            let a = t.memory.allocs.get(&addr).ok_or(INVALID_VALUE)?;
            t.live_of(a.context)
        };
        // Freeing waits for work that may still use the memory.
        d.wait_all(&tickets);
        d.device_free(&mut d.tables(), addr)
    };
    cuMemGetInfo_v2(free: Out<usize>, total: Out<usize>) |d| {
        free.check()?;
        total.check()?;
        let gpu = {
            let t = d.tables();
            let context = d.current(&t)?;
            t.context(context)?.gpu
        };
        let (f, all) = d.board.memory_for(d.slot, gpu).map_err(|e| code_of(&e))?;
        free.set(f as usize)?;
        total.set(all as usize)
    };
    cuMemGetAddressRange_v2(base: Out<u64>, size: Out<usize>, addr: u64) |d| {
        let t = d.tables();
        d.current(&t)?;
        let (start, a) = t.memory.find(addr).ok_or(NOT_FOUND)?;
        base.set_if(start);
        size.set_if(a.size as usize);
        Ok(())
    };
}
