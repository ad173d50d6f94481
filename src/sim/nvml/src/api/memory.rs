//! Device memory.

use crate::abi::{Handle, Out, export};
use crate::code::Code;
use crate::layout::{Bar1Memory, Memory, MemoryV2, version};
use crate::session::{self, device};

/// The device. Only administrators may read the use of a divided GPU.
fn seen(handle: Handle) -> Result<session::Device, Code> {
    let device = device(handle)?;
    // SAFETY: geteuid has no preconditions.
    match device.gpu().is_divided() && unsafe { libc::geteuid() } != 0 {
        true => Err(Code::NO_PERMISSION),
        false => Ok(device),
    }
}

export! {
    /// As on a real driver, `used` includes the driver's reserved memory.
    fn nvmlDeviceGetMemoryInfo(handle: Handle, out: Out<Memory>) {
        let device = seen(handle)?;
        let gpu = device.gpu();
        let used = gpu.used + gpu.reserved;
        out.set(Memory { total: gpu.model.total, free: gpu.model.total.saturating_sub(used), used })
    }
    fn nvmlDeviceGetMemoryInfo_v2(handle: Handle, out: Out<MemoryV2>) {
        let expected = version::<MemoryV2>(2);
        if out.get()?.version != expected {
            return Err(Code::ARGUMENT_VERSION_MISMATCH);
        }
        let device = seen(handle)?;
        let gpu = device.gpu();
        out.set(MemoryV2 {
            version: expected,
            total: gpu.model.total,
            reserved: gpu.reserved,
            free: gpu.model.total.saturating_sub(gpu.used + gpu.reserved),
            used: gpu.used,
        })
    }
    /// A window of 256 MiB; the driver uses 2 MiB.
    fn nvmlDeviceGetBAR1MemoryInfo(handle: Handle, out: Out<Bar1Memory>) {
        device(handle)?;
        out.set(Bar1Memory { total: 256 << 20, free: 254 << 20, used: 2 << 20 })
    }
}
