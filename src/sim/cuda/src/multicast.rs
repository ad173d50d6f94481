//! Multicast objects, as NCCL makes them on GPUs with NVLink switches. Programs can make them but not bind memory to
//! them. They are here for their effect on checkpoints.

use crate::checkpoint;
use crate::code::{INVALID_VALUE, NOT_SUPPORTED};
use crate::ffi::{In, Out, export};

/// `CUmulticastObjectProp`.
#[derive(Debug, Clone, Copy)]
#[repr(C)]
struct Prop {
    devices: u32,
    size: usize,
    handle_types: u64,
    flags: u64,
}

const _: () = assert!(size_of::<Prop>() == 32);

/// Granularity of sizes in bytes.
const STEP: usize = 2 << 20;

export! {
    cuMulticastCreate(out: Out<u64>, prop: In<Prop>) |d| {
        out.check()?;
        let p = prop.get()?;
        let mut t = d.tables();
        d.current(&t)?;
        if !d.devices.iter().all(|d| d.model.compute_capability.0 >= 9) {
            return Err(NOT_SUPPORTED);
        }
        let fits = p.devices >= 1 && p.devices as usize <= d.devices.len();
        if !fits || p.size == 0 || p.size % STEP != 0 || p.flags != 0 {
            return Err(INVALID_VALUE);
        }
        checkpoint::hangs();
        let handle = t.handle();
        out.set(handle)
    };
    cuMulticastGetGranularity(out: Out<usize>, prop: In<Prop>, option: u32) |d| {
        out.check()?;
        d.current(&d.tables())?;
        prop.get()?;
        match option {
            0 | 1 => out.set(STEP),
            _ => Err(INVALID_VALUE),
        }
    };
}
