//! The stream-ordered allocator and its pools.
//!
//! A pool takes memory in blocks like a context does. While the pool is above its release threshold (0 unless the
//! program raises it), empty blocks go back to the GPU at once.

use std::sync::Arc;

use gshare_sim_board::MemoryKind;

use crate::code::{INVALID_DEVICE, INVALID_HANDLE, INVALID_VALUE, NOT_SUPPORTED, R};
use crate::driver::{Driver, Tables};
use crate::ffi::{In, Out, export, export_stream};
use crate::graph::GraphVa;
use crate::heap::Heap;
use crate::memory::{Alloc, Kind};
use crate::op::{Op, Place};

#[derive(Debug)]
pub(crate) struct Pool {
    /// Ordinal of the device.
    pub device: usize,
    pub gpu: usize,
    pub heap: Heap,
    /// Attributes 1, 2 and 3: reuse rules. They are stored, but reuse is always as if they were on.
    reuse: [i32; 3],
    is_default: bool,
}

impl Pool {
    pub(crate) fn new(device: usize, gpu: usize) -> Pool {
        Pool {
            device,
            gpu,
            heap: Heap::default(),
            reuse: [1; 3],
            is_default: true,
        }
    }
}

/// `CUmemLocation`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(C)]
pub(crate) struct Location {
    pub kind: u32,
    pub id: i32,
}

/// `CUmemLocationType` for a device.
pub(crate) const ON_DEVICE: u32 = 1;

/// `CUmemAccessDesc`.
#[derive(Debug, Clone, Copy)]
#[repr(C)]
pub(crate) struct Access {
    pub location: Location,
    pub flags: u32,
}

/// The beginning of `CUmemPoolProps`.
#[derive(Clone, Copy)]
#[repr(C)]
struct PoolProps {
    alloc_type: u32,
    handle_types: u32,
    location: Location,
}

impl Driver {
    fn pool_alloc(&self, t: &mut Tables, pool: u64, context: u64, size: u64) -> R<u64> {
        let mut p = t.pools.remove(&pool).ok_or(INVALID_HANDLE)?;
        let (device, gpu) = (p.device, p.gpu);
        let kind = MemoryKind::Pool;
        let result = self.on_heap(&mut t.memory, &mut p.heap, gpu, kind, |h, s| {
            h.alloc(size, s).or_else(|_| {
                h.trim(0, s);
                h.alloc(size, s)
            })
        });
        t.pools.insert(pool, p);
        let addr = result?;
        t.memory.add(addr, size, device, context, Kind::Pool(pool));
        Ok(addr)
    }

    pub(crate) fn pool_free(&self, t: &mut Tables, addr: u64, a: Alloc, pool: u64) {
        t.memory.allocs.remove(&addr);
        if let Some(mut p) = t.pools.remove(&pool) {
            let gpu = p.gpu;
            let kind = MemoryKind::Pool;
            self.on_heap(&mut t.memory, &mut p.heap, gpu, kind, |h, s| {
                h.free(addr, a.size, s);
            });
            t.pools.insert(pool, p);
        }
    }

    fn trim_pool(&self, t: &mut Tables, pool: u64, keep: u64) -> R {
        let mut p = t.pools.remove(&pool).ok_or(INVALID_HANDLE)?;
        let gpu = p.gpu;
        let kind = MemoryKind::Pool;
        self.on_heap(&mut t.memory, &mut p.heap, gpu, kind, |h, s| {
            h.trim(keep, s);
        });
        t.pools.insert(pool, p);
        Ok(())
    }

    fn alloc_async(&self, out: Out<u64>, size: usize, pool: Option<u64>, stream: u64) -> R {
        out.check()?;
        let s = self.op_stream(stream)?;
        let is_capturing = self.tables().stream(s)?.capture.is_some();
        let mut t = self.tables();
        let context = t.stream(s)?.context;
        let device = t.context(context)?.device;
        let pool = pool.unwrap_or(t.current_pools[device]);
        let device = t.pools.get(&pool).ok_or(INVALID_HANDLE)?.device;
        if is_capturing {
            drop(t);
            if size == 0 {
                return Err(INVALID_VALUE);
            }
            let va = Arc::new(GraphVa::new(device, size as u64)?);
            let addr = va.addr;
            self.captured(s, &Op::Alloc(va))?;
            return out.set(addr);
        }
        if size == 0 {
            return out.set(0);
        }
        out.set(self.pool_alloc(&mut t, pool, context, size as u64)?)
    }

    fn pool_of(&self, location: In<Location>, table: impl FnOnce(&Tables) -> &[u64]) -> R<u64> {
        let l = location.get()?;
        if l.kind != ON_DEVICE {
            return Err(NOT_SUPPORTED);
        }
        self.device(l.id)?;
        Ok(table(&self.tables())[l.id as usize])
    }
}

export! {
    cuDeviceGetDefaultMemPool(out: Out<u64>, device: i32) |d| {
        d.device(device)?;
        out.set(d.tables().default_pools[device as usize])
    };
    cuDeviceGetMemPool(out: Out<u64>, device: i32) |d| {
        d.device(device)?;
        out.set(d.tables().current_pools[device as usize])
    };
    cuDeviceSetMemPool(device: i32, pool: u64) |d| {
        d.device(device)?;
        let mut t = d.tables();
        if t.pools.get(&pool).ok_or(INVALID_HANDLE)?.device != device as usize {
            return Err(INVALID_VALUE);
        }
        t.current_pools[device as usize] = pool;
        Ok(())
    };
    cuMemGetDefaultMemPool(out: Out<u64>, location: In<Location>, kind: u32) |d| {
        if kind != 1 {
            return Err(NOT_SUPPORTED);
        }
        out.set(d.pool_of(location, |t| &t.default_pools)?)
    };
    cuMemGetMemPool(out: Out<u64>, location: In<Location>, kind: u32) |d| {
        if kind != 1 {
            return Err(NOT_SUPPORTED);
        }
        out.set(d.pool_of(location, |t| &t.current_pools)?)
    };
    cuMemPoolCreate(out: Out<u64>, props: In<PoolProps>) |d| {
        out.check()?;
        let p = props.get()?;
        if p.alloc_type != 1 {
            return Err(INVALID_VALUE);
        }
        if p.location.kind != ON_DEVICE || p.handle_types != 0 {
            // Host pools and pools shared with other processes are not supported yet.
            return Err(NOT_SUPPORTED);
        }
        let gpu = d.device(p.location.id)?.gpu;
        let mut t = d.tables();
        let handle = t.handle();
        let mut pool = Pool::new(p.location.id as usize, gpu);
        pool.is_default = false;
        t.pools.insert(handle, pool);
        out.set(handle)
    };
    cuMemPoolDestroy(pool: u64) |d| {
        let mut t = d.tables();
        let p = t.pools.get(&pool).ok_or(INVALID_HANDLE)?;
        if p.is_default {
            return Err(INVALID_VALUE);
        }
        let device = p.device;
        if t.current_pools[device] == pool {
            t.current_pools[device] = t.default_pools[device];
        }
        // Allocations live until they are freed; then their memory goes back at once.
        d.trim_pool(&mut t, pool, 0)?;
        match t.pools.get_mut(&pool) {
            Some(p) if p.heap.used > 0 => p.heap.keep = 0,
            _ => {
                t.pools.remove(&pool);
            }
        }
        Ok(())
    };
    cuMemPoolTrimTo(pool: u64, keep: usize) |d| d.trim_pool(&mut d.tables(), pool, keep as u64);
    cuMemPoolSetAttribute(pool: u64, attribute: u32, value: In<u64>) |d| {
        let mut t = d.tables();
        let p = t.pools.get_mut(&pool).ok_or(INVALID_HANDLE)?;
        match attribute {
            1..=3 => p.reuse[attribute as usize - 1] = In::<i32>::from_addr(value.addr()).get()?,
            4 => p.heap.keep = value.get()?,
            // A program can reset the high-water marks to the current use.
            6 if value.get()? == 0 => p.heap.reserved_high = p.heap.reserved,
            8 if value.get()? == 0 => p.heap.used_high = p.heap.used,
            _ => return Err(INVALID_VALUE),
        }
        Ok(())
    };
    cuMemPoolGetAttribute(pool: u64, attribute: u32, out: Out<u64>) |d| {
        let t = d.tables();
        let p = t.pools.get(&pool).ok_or(INVALID_HANDLE)?;
        match attribute {
            1..=3 => out.cast::<i32>().set(p.reuse[attribute as usize - 1]),
            4 => out.set(p.heap.keep),
            5 => out.set(p.heap.reserved),
            6 => out.set(p.heap.reserved_high),
            7 => out.set(p.heap.used),
            8 => out.set(p.heap.used_high),
            _ => Err(INVALID_VALUE),
        }
    };
    cuMemPoolSetAccess(pool: u64, list: In<Access>, count: usize) |d| {
        let own = d.tables().pools.get(&pool).ok_or(INVALID_HANDLE)?.device;
        for a in list.list(count)? {
            if a.location.kind != ON_DEVICE {
                return Err(NOT_SUPPORTED);
            }
            d.device(a.location.id).map_err(|_| INVALID_DEVICE)?;
            // A device's access to its own pool cannot be revoked.
            if a.location.id as usize == own && a.flags != 3 {
                return Err(INVALID_DEVICE);
            }
        }
        Ok(())
    };
}

export_stream! {
    cuMemAllocAsync, cuMemAllocAsync_ptsz(out: Out<u64>, size: usize; stream) |d| {
        d.alloc_async(out, size, None, stream)
    };
    cuMemAllocFromPoolAsync, cuMemAllocFromPoolAsync_ptsz(
        out: Out<u64>, size: usize, pool: u64; stream
    ) |d| d.alloc_async(out, size, Some(pool), stream);
    cuMemFreeAsync, cuMemFreeAsync_ptsz(addr: u64; stream) |d| {
        let s = d.op_stream(stream)?;
        if addr == 0 {
            return Ok(());
        }
        let is_capturing = d.tables().stream(s)?.capture.is_some();
        if is_capturing {
            if !d.tables().is_graph_memory(addr) {
                return Err(INVALID_VALUE);
            }
            return d.captured(s, &Op::Free(addr)).map(drop);
        }
        {
            let t = d.tables();
            match t.memory.allocs.get(&addr).map(|a| a.kind) {
                Some(Kind::Device | Kind::Managed | Kind::Pool(_) | Kind::Graph) => {}
                _ => return Err(INVALID_VALUE),
            }
        }
        d.push(&Place::Stream(s), Op::Free(addr)).map(drop)
    };
}
