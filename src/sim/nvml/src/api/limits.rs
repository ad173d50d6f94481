//! Memory limits of control groups: drivers of release 615 and later.

use std::path::PathBuf;

use gshare_sim_board::BoardError;

use crate::abi::{CText, Handle, Out, export};
use crate::code::Code;
use crate::session::{self, device};

/// `nvmlSetMemoryLimits_v1_t`
#[repr(C)]
#[derive(Debug, Clone, Copy)]
struct SetLimits {
    name_space: CText,
    soft: u64,
    hard: u64,
}

/// `nvmlGetMemoryLimits_v1_t`
#[repr(C)]
#[derive(Debug, Clone, Copy)]
struct GetLimits {
    name_space: CText,
    soft: u64,
    hard: u64,
    used: u64,
}

const _: () = assert!(size_of::<SetLimits>() == 24 && size_of::<GetLimits>() == 32);

/// `NVML_DEVICE_MEMORY_LIMIT_MAX`
const MAX: u64 = u64::MAX;
/// The first release that supports them.
const RELEASE: u32 = 615;

fn supported() -> Result<(), Code> {
    let version = session::snapshot()?.driver_version.clone();
    let release = version
        .split('.')
        .next()
        .and_then(|v| v.parse::<u32>().ok());
    if release.is_some_and(|r| r >= RELEASE) {
        Ok(())
    } else {
        Err(Code::NOT_SUPPORTED)
    }
}

fn group(name: CText) -> Result<PathBuf, Code> {
    let dir = PathBuf::from(name.get()?);
    let found = dir.join("cgroup.procs").exists();
    found.then_some(dir).ok_or(Code::OPERATING_SYSTEM)
}

export! {
    fn nvmlDeviceSetMemoryLimits_v1(handle: Handle, limits: Out<SetLimits>) {
        supported()?;
        let device = device(handle)?;
        let asked = limits.get()?;
        let total = device.gpu().model.total;
        let too_much = |limit: u64| limit != MAX && limit > total;
        if asked.soft > asked.hard || too_much(asked.soft) || too_much(asked.hard) {
            return Err(Code::INVALID_ARGUMENT);
        }
        // SAFETY: geteuid has no preconditions.
        if unsafe { libc::geteuid() } != 0 {
            return Err(Code::NO_PERMISSION);
        }
        let dir = group(asked.name_space)?;
        let gpu = device.gpu().minor as usize;
        session::board()?.set_memory_limit(gpu, &dir, asked.soft, asked.hard).map_err(|e| match e {
            BoardError::Io { .. } => Code::OPERATING_SYSTEM,
            _ => Code::UNKNOWN,
        })
    }
    fn nvmlDeviceGetMemoryLimits_v1(handle: Handle, limits: Out<GetLimits>) {
        supported()?;
        let device = device(handle)?;
        let asked = limits.get()?;
        let dir = group(asked.name_space)?;
        let found = session::board()?.memory_limit(device.gpu().minor as usize, &dir);
        let (limit, used) = found.ok_or(Code::NOT_FOUND)?;
        limits.set(GetLimits { soft: limit.soft, hard: limit.hard, used, ..asked })
    }
}
