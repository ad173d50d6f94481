//! Green contexts: a part of a device's SMs, with streams of its own in the device's primary context. Here the part is
//! always the whole device.

use crate::code::{INVALID_CONTEXT, INVALID_HANDLE, INVALID_VALUE, NOT_SUPPORTED};
use crate::context;
use crate::driver::Tables;
use crate::ffi::{In, Out, export, export_stream};
use crate::stream::{NON_BLOCKING, PER_THREAD, Stream};

/// `CUdevResource`.
#[derive(Clone, Copy)]
#[repr(C)]
struct Resource {
    kind: u32,
    internal: [u8; 92],
    sms: u32,
    oversize: [u8; 44],
}

/// `CU_DEV_RESOURCE_TYPE_SM`.
const SM: u32 = 1;
/// The handle of a green context as a context is its own with this bit.
const AS_CONTEXT: u64 = 1;

impl Tables {
    /// The context that a handle stands for: for a green context's the device's primary one.
    pub(crate) fn owner(&self, handle: u64) -> u64 {
        let device = self.greens.get(&(handle ^ AS_CONTEXT));
        let primary = device.and_then(|device| self.primaries[*device as usize].context);
        primary.unwrap_or(handle)
    }

    /// The calling thread's green context; 0 if it has none.
    pub(crate) fn current_green(&self) -> u64 {
        let green = context::top() ^ AS_CONTEXT;
        if self.greens.contains_key(&green) {
            green
        } else {
            0
        }
    }

    /// The green context of a program's stream; 0 if it has none.
    fn green(&self, stream: u64) -> u64 {
        match stream {
            ..=PER_THREAD => self.current_green(),
            _ => self.streams.get(&stream).map_or(0, |stream| stream.green),
        }
    }
}

export! {
    cuDeviceGetDevResource(device: i32, out: Out<Resource>, kind: u32) |d| {
        let sms = d.device(device)?.model.sms;
        if kind != SM {
            return Err(INVALID_VALUE);
        }
        out.set(Resource { kind, internal: [0; 92], sms, oversize: [0; 44] })
    };
    cuDevResourceGenerateDesc(out: Out<u64>, resources: In<Resource>, many: u32) |d| {
        if many != 1 || resources.get()?.kind != SM {
            return Err(INVALID_VALUE);
        }
        out.set(d.tables().handle())
    };
    cuGreenCtxCreate(out: Out<u64>, desc: u64, device: i32, flags: u32) |d| {
        out.check()?;
        if desc == 0 || flags & !1 != 0 {
            return Err(INVALID_VALUE);
        }
        d.retain_primary(device)?;
        let mut t = d.tables();
        let green = t.handle();
        t.greens.insert(green, device);
        out.set(green)
    };
    cuCtxFromGreenCtx(out: Out<u64>, green: u64) |d| {
        out.check()?;
        d.tables().greens.get(&green).ok_or(INVALID_CONTEXT)?;
        out.set(green | AS_CONTEXT)
    };
    cuGreenCtxDestroy(green: u64) |d| {
        let device = d.tables().greens.remove(&green).ok_or(INVALID_CONTEXT)?;
        d.release_primary(device)
    };
    cuGreenCtxStreamCreate(out: Out<u64>, green: u64, flags: u32, priority: i32) |d| {
        out.check()?;
        let mut t = d.tables();
        let device = *t.greens.get(&green).ok_or(INVALID_CONTEXT)?;
        if flags != NON_BLOCKING {
            return Err(INVALID_VALUE);
        }
        let context = t.primaries[device as usize].context.ok_or(INVALID_CONTEXT)?;
        let handle = t.handle();
        let stream = Stream { green, ..Stream::new(context, flags, priority.clamp(-5, 0), false) };
        t.streams.insert(handle, stream);
        out.set(handle)
    };
    cuStreamGetGreenCtx(stream: u64, out: Out<u64>) |d| {
        d.stream(stream)?;
        out.set(d.tables().green(stream))
    };
}

export_stream! {
    cuStreamGetCtx, cuStreamGetCtx_ptsz(; stream, out: Out<u64>) |d| {
        let s = d.stream(stream)?;
        let t = d.tables();
        if stream <= PER_THREAD {
            return out.set(context::top());
        }
        // Until CUDA 13.
        if t.green(stream) != 0 {
            return Err(NOT_SUPPORTED);
        }
        out.set(t.stream(s)?.context)
    };
    cuStreamGetCtx_v2, cuStreamGetCtx_v2_ptsz(; stream, out: Out<u64>, green: Out<u64>) |d| {
        if d.preset.has(gshare_sim_board::Fault::NoStreamContexts) {
            return Err(NOT_SUPPORTED);
        }
        let s = d.stream(stream)?;
        let t = d.tables();
        if stream == PER_THREAD && t.current_green() != 0 {
            return Err(INVALID_HANDLE);
        }
        green.set_if(t.green(stream));
        out.set(t.stream(s)?.context)
    };
}
