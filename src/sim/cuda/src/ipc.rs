//! Memory and events that processes share by handle.
//!
//! A handle names a process, one of its open files and a place in the file. Another process opens that file through
//! `/proc`. Shared memory stays accounted to the process that made it.

use std::collections::{BTreeSet, HashMap};
use std::os::fd::AsRawFd;
use std::ptr;
use std::sync::atomic::{AtomicU64, Ordering};

use gshare_sim_board::{GRANULARITY, ProcessInfo};

use crate::checkpoint;
use crate::code::{INVALID_CONTEXT, INVALID_HANDLE, INVALID_VALUE, MAP_FAILED, OUT_OF_MEMORY, R};
use crate::driver::Driver;
use crate::event::Event;
use crate::ffi::{Out, export};
use crate::memory::memory_file;
use crate::memory::{self, Kind};

/// Memory and work that other processes share with this one.
#[derive(Debug, Default)]
pub(crate) struct Imports {
    /// Unfinished work of other processes that work here waits for.
    pub foreign: BTreeSet<u64>,
    /// By address of the mapping.
    opened: HashMap<u64, Opened>,
}

#[derive(Debug)]
struct Opened {
    handle: Handle,
    context: u64,
    len: u64,
    count: u32,
}

const MEMORY: u32 = 0x6d70_6367;
const EVENT: u32 = 0x6570_6367;

/// `CUipcMemHandle` and `CUipcEventHandle`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(C)]
struct Handle {
    magic: u32,
    pid: u32,
    /// Start time of the process, so that a later process with its pid is not mistaken for it.
    start: u64,
    file: i32,
    /// Index on the board.
    gpu: u32,
    /// The block in the file.
    offset: u64,
    len: u64,
    /// The allocation in the block.
    at: u64,
    size: u64,
    reserved: u64,
}

const _: () = assert!(size_of::<Handle>() == 64);

impl Handle {
    fn own(magic: u32, file: i32) -> Handle {
        let own = ProcessInfo::current();
        Handle {
            magic,
            pid: own.pid,
            start: own.start,
            file,
            gpu: 0,
            offset: 0,
            len: 0,
            at: 0,
            size: 0,
            reserved: 0,
        }
    }

    fn check(&self, magic: u32) -> R {
        if self.magic != magic {
            return Err(INVALID_VALUE);
        }
        if self.pid == std::process::id() {
            return Err(INVALID_CONTEXT);
        }
        Ok(())
    }

    /// The file that the handle names.
    fn open(&self) -> R<std::fs::File> {
        let stat = std::fs::read_to_string(format!("/proc/{}/stat", self.pid));
        let stat = stat.map_err(|_| INVALID_VALUE)?;
        let after = stat.rsplit_once(')').map_or("", |s| s.1);
        let start = after
            .split_whitespace()
            .nth(19)
            .and_then(|s| s.parse().ok());
        if start != Some(self.start) {
            return Err(INVALID_VALUE);
        }
        let path = format!("/proc/{}/fd/{}", self.pid, self.file);
        let mut options = std::fs::OpenOptions::new();
        options
            .read(true)
            .write(true)
            .open(path)
            .map_err(|_| MAP_FAILED)
    }
}

/// A word shared between processes: the ticket of the work that an event waits for, 0 for none.
#[derive(Debug)]
pub(crate) struct Cell {
    word: *const AtomicU64,
    file: i32,
}

// SAFETY: the word is in a shared mapping that lives as long as the cell, and is atomic.
unsafe impl Send for Cell {}
// SAFETY: see above.
unsafe impl Sync for Cell {}

const PAGE: usize = 4096;

impl Cell {
    /// The event waits for work that is not on the board yet.
    pub(crate) const SOON: u64 = u64::MAX;

    pub(crate) fn new() -> R<Cell> {
        let file = memory_file(c"simulated-event")?;
        // SAFETY: the descriptor is the new file's.
        if unsafe { libc::ftruncate(file, PAGE as i64) } != 0 {
            return Err(OUT_OF_MEMORY);
        }
        let mut cell = Cell::map(file)?;
        cell.file = file;
        Ok(cell)
    }

    /// Maps the word in a file; the caller keeps the descriptor.
    fn map(file: i32) -> R<Cell> {
        let protection = libc::PROT_READ | libc::PROT_WRITE;
        // SAFETY: a new shared mapping at an address of the kernel's choice.
        let p = unsafe { libc::mmap(ptr::null_mut(), PAGE, protection, libc::MAP_SHARED, file, 0) };
        if p == libc::MAP_FAILED {
            return Err(MAP_FAILED);
        }
        Ok(Cell {
            word: p.cast(),
            file: -1,
        })
    }

    fn word(&self) -> &AtomicU64 {
        // SAFETY: the mapping lives as long as the cell.
        unsafe { &*self.word }
    }

    pub(crate) fn get(&self) -> u64 {
        self.word().load(Ordering::Acquire)
    }

    pub(crate) fn set(&self, ticket: u64) {
        self.word().store(ticket, Ordering::Release);
    }

    pub(crate) fn begin(&self) {
        self.set(Cell::SOON);
    }

    pub(crate) fn finish(&self) {
        self.set(0);
    }
}

impl Drop for Cell {
    fn drop(&mut self) {
        // SAFETY: the mapping and the descriptor are the cell's own; nothing uses them any more.
        unsafe {
            libc::munmap(self.word.cast_mut().cast(), PAGE);
            if self.file >= 0 {
                libc::close(self.file);
            }
        }
    }
}

impl Driver {
    fn open_memory(&self, out: Out<u64>, handle: Handle, flags: u32) -> R {
        out.check()?;
        self.unsafe_call()?;
        let context = self.current(&self.tables())?;
        // The only flag must be set: peer access is enabled when needed.
        if flags != 1 {
            return Err(INVALID_VALUE);
        }
        handle.check(MEMORY)?;
        let mut t = self.tables();
        let opened = &mut t.imports.opened;
        let same = |o: &Opened| o.context == context && o.handle == handle;
        if let Some((base, o)) = opened.iter_mut().find(|(_, o)| same(o)) {
            o.count += 1;
            return out.set(base + handle.at);
        }
        let visible = self
            .devices
            .iter()
            .position(|d| d.gpu == handle.gpu as usize);
        let device = visible.ok_or(INVALID_VALUE)?;
        let len = handle.len;
        let inside = handle
            .at
            .checked_add(handle.size)
            .is_some_and(|end| end <= len);
        if !len.is_multiple_of(GRANULARITY) || len == 0 || !inside {
            return Err(INVALID_VALUE);
        }
        let file = handle.open()?;
        let base = memory::map_file(file.as_raw_fd(), handle.offset, len)?;
        t.memory.map(base, len);
        let addr = base + handle.at;
        t.memory
            .add(addr, handle.size, device, context, Kind::Imported);
        let opened = Opened {
            handle,
            context,
            len,
            count: 1,
        };
        t.imports.opened.insert(base, opened);
        out.set(addr)
    }

    fn close_memory(&self, addr: u64) -> R {
        let mut t = self.tables();
        let mut list = t.imports.opened.iter_mut();
        let found = list.find(|(base, o)| **base + o.handle.at == addr);
        let (base, o) = found.ok_or(INVALID_VALUE)?;
        let (base, len) = (*base, o.len);
        o.count -= 1;
        if o.count > 0 {
            return Ok(());
        }
        t.imports.opened.remove(&base);
        t.memory.allocs.remove(&addr);
        t.memory.unmap(base);
        self.unmap_gated(base, len);
        Ok(())
    }

    /// Unmaps the imports of a context.
    pub(crate) fn close_imports(&self, t: &mut crate::driver::Tables, context: u64) {
        let opened = t
            .imports
            .opened
            .iter()
            .filter(|(_, o)| o.context == context);
        let list: Vec<(u64, u64, u64)> = opened.map(|(b, o)| (*b, o.handle.at, o.len)).collect();
        for (base, at, len) in list {
            t.imports.opened.remove(&base);
            t.memory.allocs.remove(&(base + at));
            t.memory.unmap(base);
            self.unmap_gated(base, len);
        }
    }
}

export! {
    cuIpcGetMemHandle(out: Out<Handle>, addr: u64) |d| {
        checkpoint::shares();
        out.check()?;
        let t = d.tables();
        d.current(&t)?;
        let (base, a) = t.memory.find(addr).ok_or(INVALID_VALUE)?;
        if a.kind != Kind::Device {
            return Err(INVALID_VALUE);
        }
        let (block, len, offset, file) = memory::place_in_file(base).ok_or(INVALID_VALUE)?;
        out.set(Handle {
            gpu: d.devices[a.device].gpu as u32,
            offset,
            len,
            at: base - block,
            size: a.size,
            ..Handle::own(MEMORY, file)
        })
    };
    cuIpcOpenMemHandle(out: Out<u64>, handle: Handle, flags: u32) |d| {
        checkpoint::shares();
        d.open_memory(out, handle, flags)
    };
    cuIpcOpenMemHandle_v2(out: Out<u64>, handle: Handle, flags: u32) |d| {
        checkpoint::shares();
        d.open_memory(out, handle, flags)
    };
    cuIpcCloseMemHandle(addr: u64) |d| {
        d.unsafe_call()?;
        let tickets = {
            let t = d.tables();
            let context = d.current(&t)?;
            t.live_of(context)
        };
        d.wait_all(&tickets);
        d.close_memory(addr)
    };
    cuIpcGetEventHandle(out: Out<Handle>, event: u64) |d| {
        checkpoint::shares();
        out.check()?;
        let t = d.tables();
        let e = t.events.get(&event).ok_or(INVALID_HANDLE)?;
        match &e.shared {
            Some(cell) if e.is_interprocess() && cell.file >= 0 => {
                out.set(Handle::own(EVENT, cell.file))
            }
            _ => Err(INVALID_HANDLE),
        }
    };
    cuIpcOpenEventHandle(out: Out<u64>, handle: Handle) |d| {
        checkpoint::shares();
        out.check()?;
        let mut t = d.tables();
        let context = d.current(&t)?;
        handle.check(EVENT)?;
        let file = handle.open()?;
        let cell = Cell::map(file.as_raw_fd())?;
        let event = t.handle();
        t.events.insert(event, Event::imported(context, cell));
        out.set(event)
    };
}
