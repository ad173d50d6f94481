//! Initialisation, versions, and queries of devices.

use std::ffi::c_char;

use gshare_sim_board::Board;

use crate::attributes;
use crate::code::{CUresult, INVALID_DEVICE, INVALID_VALUE, R};
use crate::down;
use crate::driver::{self, Device, Driver};
use crate::ffi::{In, Out, export, plain};

#[unsafe(no_mangle)]
extern "C" fn cuInit(flags: u32) -> CUresult {
    plain(|| {
        if flags != 0 {
            return Err(INVALID_VALUE);
        }
        driver::init()?;
        down::arm();
        Ok(())
    })
}

/// The CUDA version of the board's driver, available before `cuInit`.
pub(crate) fn version() -> i32 {
    let board = match driver::get() {
        Ok(d) => return d.board.snapshot().cuda_version.cast_signed(),
        Err(_) => driver::board_path().and_then(|p| Board::open(&p).ok()),
    };
    board.map_or(13_000, |b| b.snapshot().cuda_version.cast_signed())
}

#[unsafe(no_mangle)]
extern "C" fn cuDriverGetVersion(out: Out<i32>) -> CUresult {
    plain(|| {
        out.check()?;
        out.set(version())
    })
}

fn bus_id(d: &Device) -> String {
    format!("00000000:{:02X}:00.0", d.pci_bus)
}

/// Writes a text and its NUL into a buffer, truncated to its size.
fn set_text(out: Out<u8>, len: i32, text: &str) -> R {
    let room = usize::try_from(len).map_err(|_| INVALID_VALUE)?;
    if room == 0 {
        return Err(INVALID_VALUE);
    }
    let cut = &text.as_bytes()[..text.len().min(room - 1)];
    out.set_all(cut.iter().copied().chain([0]), room)
}

fn uuid(d: &Driver, out: Out<[u8; 16]>, device: i32) -> R {
    // The GPU that the device is on now.
    let at = d.board.gpu_at(d.device(device)?.gpu);
    let uuid = d.uuids.get(at).copied();
    out.set(uuid.ok_or(INVALID_DEVICE)?)
}

export! {
    cuDeviceGetCount(out: Out<i32>) |d| out.set(d.devices.len() as i32);
    cuDeviceGet(out: Out<i32>, ordinal: i32) |d| {
        out.check()?;
        d.device(ordinal)?;
        out.set(ordinal)
    };
    cuDeviceGetName(out: Out<u8>, len: i32, device: i32) |d| {
        set_text(out, len, d.device(device)?.model.name)
    };
    cuDeviceGetUuid(out: Out<[u8; 16]>, device: i32) |d| {
        // Distinguishes this function from its successor: equal bodies would be folded into one address, but a program
        // that compares addresses can tell the versions apart with the real driver.
        std::hint::black_box(1_u8);
        uuid(d, out, device)
    };
    cuDeviceGetUuid_v2(out: Out<[u8; 16]>, device: i32) |d| uuid(d, out, device);
    cuDeviceTotalMem_v2(out: Out<usize>, device: i32) |d| {
        out.set(d.device(device)?.model.cuda_total() as usize)
    };
    cuDeviceGetAttribute(out: Out<i32>, attribute: u32, device: i32) |d| {
        out.check()?;
        let dev = d.device(device)?;
        // CU_DEVICE_ATTRIBUTE_MPS_ENABLED
        if attribute == 133 {
            return out.set(i32::from(d.mps.is_some()));
        }
        out.set(attributes::value(dev.model, dev.pci_bus, attribute).ok_or(INVALID_VALUE)?)
    };
    cuDeviceComputeCapability(major: Out<i32>, minor: Out<i32>, device: i32) |d| {
        let (a, b) = d.device(device)?.model.compute_capability;
        major.check()?;
        minor.check()?;
        major.set(a.cast_signed())?;
        minor.set(b.cast_signed())
    };
    cuDeviceGetPCIBusId(out: Out<u8>, len: i32, device: i32) |d| {
        // CUDA's own form has a shorter domain than NVML's.
        set_text(out, len, &bus_id(d.device(device)?)[4..])
    };
    cuDeviceGetByPCIBusId(out: Out<i32>, id: In<c_char>) |d| {
        out.check()?;
        let wanted = id.string()?.to_ascii_uppercase();
        let found = d.devices.iter().position(|dev| {
            let full = bus_id(dev);
            wanted == full || wanted == full[4..] || wanted == full[9..]
        });
        match found {
            Some(i) => out.set(i as i32),
            None => Err(INVALID_VALUE),
        }
    };
}
