//! Contexts: each device's primary context, others, and each thread's stack of contexts.

use std::cell::RefCell;
use std::collections::{HashMap, HashSet};

use gshare_sim_board::{Hidden, MemoryKind};

use crate::code::{
    CONTEXT_IS_DESTROYED, CUresult, INVALID_CONTEXT, INVALID_VALUE, PEER_ACCESS_ALREADY_ENABLED,
    PEER_ACCESS_NOT_ENABLED, PEER_ACCESS_UNSUPPORTED, R, UNSUPPORTED_EXEC_AFFINITY,
    UNSUPPORTED_LIMIT,
};
use crate::driver::{Driver, Tables, code_of};
use crate::ffi::{In, Out, export};
use crate::stream::Stream;

#[derive(Debug)]
pub(crate) struct Context {
    /// Ordinal of the device in this process.
    pub device: usize,
    /// Index of the GPU on the board.
    pub gpu: usize,
    /// The context on the board; also its unique id.
    pub board: u64,
    pub flags: u32,
    pub api: u32,
    pub primary: bool,
    /// The error that ended the context; every later call returns it.
    pub sticky: Option<CUresult>,
    /// The legacy default stream.
    pub legacy: u64,
    /// Per-thread default streams by thread.
    pub per_thread: HashMap<u64, u64>,
    pub limits: [u64; LIMITS],
    pub cache_config: u32,
    pub peers: HashSet<u64>,
    pub hidden: Hidden,
}

const LIMITS: usize = 11;
/// Stack 1 KiB, printf 1 MiB, heap 8 MiB, depth 2, launches 2048, L2 fetch 128 bytes.
const LIMIT_DEFAULTS: [u64; LIMITS] = [1024, 1 << 20, 8 << 20, 2, 2048, 128, 0, 0, 0, 0, 0];

thread_local! {
    static STACK: RefCell<Vec<u64>> = const { RefCell::new(Vec::new()) };
}

/// Runs `f` on the calling thread's stack of contexts.
fn stack<T>(f: impl FnOnce(&mut Vec<u64>) -> T) -> R<T> {
    STACK
        .try_with(|s| f(&mut s.borrow_mut()))
        .map_err(|_| INVALID_CONTEXT)
}

/// The calling thread's context as the program named it; 0 if there is none.
pub(crate) fn top() -> u64 {
    stack(|s| s.last().copied()).ok().flatten().unwrap_or(0)
}

impl Tables {
    /// Tickets of the unfinished work of a context.
    pub(crate) fn live_of(&self, context: u64) -> Vec<u64> {
        let live = self.live.iter().filter(|(_, l)| l.context == context);
        let put_off = self.put_off.iter().filter(|(_, p)| p.context == context);
        let live = live.map(|(t, _)| *t);
        live.chain(put_off.map(|(id, _)| *id)).collect()
    }
}

impl Driver {
    /// The calling thread's context, if there is one and no error has ended it.
    pub(crate) fn current(&self, t: &Tables) -> R<u64> {
        let handle = self.current_any(t)?;
        match t.context(handle)?.sticky {
            Some(code) => Err(code),
            None => Ok(handle),
        }
    }

    /// The calling thread's context, even if an error has ended it.
    fn current_any(&self, t: &Tables) -> R<u64> {
        let top = stack(|s| s.last().copied())?;
        let handle = t.owner(top.filter(|h| *h != 0).ok_or(INVALID_CONTEXT)?);
        if !t.contexts.contains_key(&handle) {
            return Err(CONTEXT_IS_DESTROYED);
        }
        Ok(handle)
    }

    /// A context given by handle, 0 meaning the current one.
    pub(crate) fn context_or_current(&self, t: &Tables, handle: u64) -> R<u64> {
        match handle {
            0 => self.current(t),
            h => t.context(h).map(|_| t.owner(h)),
        }
    }

    fn make_context(&self, t: &mut Tables, device: i32, flags: u32, handle: Option<u64>) -> R<u64> {
        let gpu = self.device(device)?.gpu;
        let board = self
            .board
            .add_context(self.slot, gpu)
            .map_err(|e| code_of(&e))?;
        let primary = handle.is_some();
        let handle = handle.unwrap_or_else(|| t.handle());
        let legacy = t.handle();
        t.streams.insert(legacy, Stream::new(handle, 0, 0, true));
        let context = Context {
            device: device as usize,
            gpu,
            board,
            flags,
            api: 3020,
            primary,
            sticky: None,
            legacy,
            per_thread: HashMap::new(),
            limits: LIMIT_DEFAULTS,
            cache_config: 0,
            peers: HashSet::new(),
            hidden: Hidden::LEAST,
        };
        t.contexts.insert(handle, context);
        Ok(handle)
    }

    /// Changes the hidden memory of a context (see [`Hidden`]) if the GPU has room for that.
    pub(crate) fn hide(&self, t: &mut Tables, context: u64, change: impl FnOnce(&mut Hidden)) -> R {
        let c = t.contexts.get_mut(&context).ok_or(INVALID_CONTEXT)?;
        let mut hidden = c.hidden;
        change(&mut hidden);
        let model = self.devices[c.device].model;
        let (had, has) = (c.hidden.bytes(model), hidden.bytes(model));
        let (gpu, kind) = (c.gpu, MemoryKind::Driver);
        if has > had {
            let taken = self.board.alloc(self.slot, gpu, kind, has - had);
            taken.map_err(|e| code_of(&e))?;
        } else if has < had {
            let _ = self.board.free(self.slot, gpu, kind, had - has);
        }
        c.hidden = hidden;
        Ok(())
    }

    fn destroy_context(&self, handle: u64) -> R {
        let tickets = {
            let t = self.tables();
            let c = t.context(handle)?;
            match c.sticky {
                Some(_) => Vec::new(),
                None => t.live_of(handle),
            }
        };
        self.wait_all(&tickets);
        let mut t = self.tables();
        let _ = self.hide(&mut t, handle, |hidden| *hidden = Hidden::LEAST);
        let Some(c) = t.contexts.remove(&handle) else {
            return Err(INVALID_CONTEXT);
        };
        self.free_context_memory(&mut t, handle, c.gpu);
        t.streams.retain(|_, s| s.context != handle);
        t.events.retain(|_, e| e.context != handle);
        t.functions.retain(|_, f| f.context != handle);
        t.modules.retain(|_, m| m.context != handle);
        for l in t.libraries.values_mut() {
            l.modules.remove(&handle);
        }
        t.live.retain(|_, l| l.context != handle);
        let _ = self.board.remove_context(self.slot, c.gpu, c.board);
        Ok(())
    }

    /// The primary context of a device; made if absent.
    pub(crate) fn retain_primary(&self, device: i32) -> R<u64> {
        self.device(device)?;
        let mut t = self.tables();
        let i = device as usize;
        let handle = match t.primaries[i].context {
            Some(h) => h,
            // The handle of a primary context never changes, as in the real driver.
            None => {
                let h = t.handle();
                t.primaries[i].context = Some(h);
                h
            }
        };
        if !t.contexts.contains_key(&handle) {
            let flags = t.primaries[i].flags;
            self.make_context(&mut t, device, flags, Some(handle))?;
        }
        t.primaries[i].references += 1;
        Ok(handle)
    }

    pub(crate) fn release_primary(&self, device: i32) -> R {
        self.device(device)?;
        let last = {
            let mut t = self.tables();
            let p = &mut t.primaries[device as usize];
            if p.references == 0 {
                return Err(INVALID_CONTEXT);
            }
            p.references -= 1;
            if p.references == 0 { p.context } else { None }
        };
        last.map_or(Ok(()), |h| self.destroy_context(h))
    }

    fn create_context(&self, out: Out<u64>, flags: u32, device: i32) -> R {
        out.check()?;
        self.device(device)?;
        if flags & !0xff != 0 {
            return Err(INVALID_VALUE);
        }
        let handle = self.make_context(&mut self.tables(), device, flags, None)?;
        stack(|s| s.push(handle))?;
        out.set(handle)
    }

    fn sync_context(&self, handle: u64) -> R {
        let tickets = {
            let mut t = self.tables();
            self.learn_faults(&mut t);
            if let Some(code) = t.context(handle)?.sticky {
                return Err(code);
            }
            t.live_of(handle)
        };
        self.wait_all(&tickets);
        match self.tables().context(handle)?.sticky {
            Some(code) => Err(code),
            None => Ok(()),
        }
    }
}

/// Parameters of `cuCtxCreate_v4` for MPS and for graphics.
#[derive(Clone, Copy)]
#[repr(C)]
struct CreateParams {
    affinity: u64,
    affinity_count: i32,
    graphics: u64,
}

fn own_current(d: &Driver) -> R<u64> {
    d.current(&d.tables())
}

export! {
    cuDevicePrimaryCtxRetain(out: Out<u64>, device: i32) |d| {
        out.check()?;
        out.set(d.retain_primary(device)?)
    };
    cuDevicePrimaryCtxRelease_v2(device: i32) |d| d.release_primary(device);
    cuDevicePrimaryCtxReset_v2(device: i32) |d| {
        d.device(device)?;
        let handle = {
            let t = d.tables();
            t.primaries[device as usize].context.filter(|h| t.contexts.contains_key(h))
        };
        handle.map_or(Ok(()), |h| d.destroy_context(h))
    };
    cuDevicePrimaryCtxSetFlags_v2(device: i32, flags: u32) |d| {
        d.device(device)?;
        let mut t = d.tables();
        if flags & !0xff != 0 {
            return Err(INVALID_VALUE);
        }
        let p = &mut t.primaries[device as usize];
        p.flags = flags;
        if let Some(h) = p.context
            && let Some(c) = t.contexts.get_mut(&h)
        {
            c.flags = flags;
        }
        Ok(())
    };
    cuDevicePrimaryCtxGetState(device: i32, flags: Out<u32>, active: Out<i32>) |d| {
        d.device(device)?;
        flags.check()?;
        active.check()?;
        let t = d.tables();
        let p = &t.primaries[device as usize];
        flags.set(p.flags)?;
        active.set(i32::from(p.context.is_some_and(|h| t.contexts.contains_key(&h))))
    };
    cuCtxCreate_v2(out: Out<u64>, flags: u32, device: i32) |d| {
        d.create_context(out, flags, device)
    };
    cuCtxCreate_v3(out: Out<u64>, params: In<u64>, count: i32, flags: u32, device: i32) |d| {
        if !params.is_null() && count > 0 {
            return Err(UNSUPPORTED_EXEC_AFFINITY);
        }
        d.create_context(out, flags, device)
    };
    cuCtxCreate_v4(out: Out<u64>, params: In<CreateParams>, flags: u32, device: i32) |d| {
        if !params.is_null() {
            let p = params.get()?;
            if p.affinity != 0 && p.affinity_count > 0 {
                return Err(UNSUPPORTED_EXEC_AFFINITY);
            }
            if p.graphics != 0 {
                return Err(crate::code::NOT_SUPPORTED);
            }
        }
        d.create_context(out, flags, device)
    };
    cuCtxDestroy_v2(handle: u64) |d| {
        if d.tables().context(handle)?.primary {
            return Err(INVALID_CONTEXT);
        }
        d.destroy_context(handle)?;
        stack(|s| {
            if s.last() == Some(&handle) {
                s.pop();
            }
        })
    };
    cuCtxPushCurrent_v2(handle: u64) |d| {
        d.tables().context(handle)?;
        stack(|s| s.push(handle))
    };
    cuCtxPopCurrent_v2(out: Out<u64>) |_d| {
        let top = stack(|s| s.pop().filter(|h| *h != 0))?;
        out.set_if(top.ok_or(INVALID_CONTEXT)?);
        Ok(())
    };
    cuCtxSetCurrent(handle: u64) |d| {
        if handle != 0 {
            d.tables().context(handle)?;
        }
        stack(|s| {
            s.pop();
            if handle != 0 {
                s.push(handle);
            }
        })
    };
    cuCtxGetCurrent(out: Out<u64>) |_d| {
        out.set(stack(|s| s.last().copied())?.unwrap_or(0))
    };
    cuCtxGetDevice(out: Out<i32>) |d| {
        out.check()?;
        let t = d.tables();
        let context = d.current_any(&t)?;
        out.set(t.context(context)?.device as i32)
    };
    cuCtxGetDevice_v2(out: Out<i32>, handle: u64) |d| {
        out.check()?;
        let t = d.tables();
        let context = d.context_or_current(&t, handle)?;
        out.set(t.context(context)?.device as i32)
    };
    cuCtxGetFlags(out: Out<u32>) |d| {
        out.check()?;
        let t = d.tables();
        let context = d.current(&t)?;
        out.set(t.context(context)?.flags)
    };
    cuCtxSetFlags(flags: u32) |d| {
        let mut t = d.tables();
        let context = d.current(&t)?;
        if flags & !0xff != 0 {
            return Err(INVALID_VALUE);
        }
        if let Some(c) = t.contexts.get_mut(&context) {
            c.flags = flags;
        }
        Ok(())
    };
    cuCtxGetId(handle: u64, out: Out<u64>) |d| {
        out.check()?;
        let t = d.tables();
        let context = d.context_or_current(&t, handle)?;
        out.set(t.context(context)?.board)
    };
    cuCtxGetApiVersion(handle: u64, out: Out<u32>) |d| {
        out.check()?;
        let t = d.tables();
        let context = d.context_or_current(&t, handle)?;
        out.set(t.context(context)?.api)
    };
    cuCtxSynchronize() |d| {
        let own = own_current(d)?;
        d.unsafe_call()?;
        d.sync_context(own)
    };
    cuCtxSynchronize_v2(handle: u64) |d| {
        let handle = d.context_or_current(&d.tables(), handle)?;
        d.unsafe_call()?;
        d.sync_context(handle)
    };
    cuCtxSetLimit(limit: u32, value: usize) |d| {
        let mut t = d.tables();
        let context = d.current(&t)?;
        if limit > 6 {
            return Err(UNSUPPORTED_LIMIT);
        }
        d.hide(&mut t, context, |hidden| match limit {
            0 => hidden.stack = value as u64,
            2 => hidden.heap = value as u64,
            _ => {}
        })?;
        let c = t.contexts.get_mut(&context).ok_or(INVALID_CONTEXT)?;
        c.limits[limit as usize] = value as u64;
        Ok(())
    };
    cuCtxGetLimit(out: Out<usize>, limit: u32) |d| {
        out.check()?;
        let t = d.tables();
        let context = d.current(&t)?;
        let limits = &t.context(context)?.limits;
        let value = *limits.get(limit as usize).ok_or(UNSUPPORTED_LIMIT)?;
        out.set(value as usize)
    };
    cuCtxGetCacheConfig(out: Out<u32>) |d| {
        out.check()?;
        let t = d.tables();
        let context = d.current(&t)?;
        out.set(t.context(context)?.cache_config)
    };
    cuCtxSetCacheConfig(config: u32) |d| {
        let mut t = d.tables();
        let context = d.current(&t)?;
        if config > 3 {
            return Err(INVALID_VALUE);
        }
        if let Some(c) = t.contexts.get_mut(&context) {
            c.cache_config = config;
        }
        Ok(())
    };
    cuCtxGetStreamPriorityRange(least: Out<i32>, greatest: Out<i32>) |d| {
        own_current(d)?;
        least.set_if(0);
        greatest.set_if(-5);
        Ok(())
    };
    cuDeviceCanAccessPeer(out: Out<i32>, a: i32, b: i32) |d| {
        out.check()?;
        out.set(i32::from(can_access(d, a, b)?))
    };
    cuCtxEnablePeerAccess(peer: u64, flags: u32) |d| {
        let mut t = d.tables();
        let context = d.current(&t)?;
        let (a, b) = (t.context(context)?.device, t.context(peer)?.device);
        if flags != 0 {
            return Err(INVALID_VALUE);
        }
        if !can_access(d, a as i32, b as i32)? {
            return Err(PEER_ACCESS_UNSUPPORTED);
        }
        let c = t.contexts.get_mut(&context).ok_or(INVALID_CONTEXT)?;
        if c.peers.insert(peer) { Ok(()) } else { Err(PEER_ACCESS_ALREADY_ENABLED) }
    };
    cuCtxDisablePeerAccess(peer: u64) |d| {
        let mut t = d.tables();
        let context = d.current(&t)?;
        let c = t.contexts.get_mut(&context).ok_or(INVALID_CONTEXT)?;
        if c.peers.remove(&peer) { Ok(()) } else { Err(PEER_ACCESS_NOT_ENABLED) }
    };
}

/// Data-centre GPUs of one model have peer access; GeForce and workstation cards do not.
fn can_access(d: &Driver, a: i32, b: i32) -> R<bool> {
    let (x, y) = (d.device(a)?, d.device(b)?);
    Ok(a != b && x.model.slug == y.model.slug && x.model.ecc)
}
