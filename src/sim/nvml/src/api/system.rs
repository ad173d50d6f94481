//! Initialisation, versions and names.

use std::ffi::c_char;

use crate::abi::{Out, Text, export};
use crate::code::Code;
use crate::session;

/// NVML version of a driver: `13.` before the driver's own.
fn nvml_version(driver: &str, cuda: u32) -> String {
    format!("{}.{driver}", cuda / 1000)
}

export! {
    fn nvmlInit() { session::init() }
    fn nvmlInit_v2() { session::init() }
    fn nvmlInitWithFlags(_flags: u32) { session::init() }
    fn nvmlShutdown() { session::shutdown() }
    fn nvmlSystemGetDriverVersion(version: Text, length: u32) {
        version.set(length, &session::snapshot()?.driver_version)
    }
    fn nvmlSystemGetNVMLVersion(version: Text, length: u32) {
        let snapshot = session::snapshot()?;
        version.set(length, &nvml_version(&snapshot.driver_version, snapshot.cuda_version))
    }
    fn nvmlSystemGetCudaDriverVersion(version: Out<u32>) {
        version.set(session::snapshot()?.cuda_version)
    }
    fn nvmlSystemGetCudaDriverVersion_v2(version: Out<u32>) {
        version.set(session::snapshot()?.cuda_version)
    }
    fn nvmlSystemGetProcessName(pid: u32, name: Text, length: u32) {
        session::board()?;
        let line = std::fs::read(format!("/proc/{pid}/cmdline")).map_err(|_| Code::NOT_FOUND)?;
        let first = line.split(|byte| *byte == 0).next().unwrap_or(&[]);
        if !first.is_empty() {
            return name.set(length, &String::from_utf8_lossy(first));
        }
        let comm = std::fs::read_to_string(format!("/proc/{pid}/comm")).map_err(|_| Code::NOT_FOUND)?;
        name.set(length, comm.trim_end())
    }
    fn nvmlUnitGetCount(count: Out<u32>) {
        session::board()?;
        count.set(0)
    }
    fn nvmlGetExcludedDeviceCount(count: Out<u32>) { count.set(0) }
}

/// `nvmlErrorString` of nvml.h.
// SAFETY: nvml.h has this name, and the types have its layout.
#[unsafe(no_mangle)]
#[allow(non_snake_case, reason = "the C interface is given")]
extern "C" fn nvmlErrorString(code: Code) -> *const c_char {
    code.text().as_ptr()
}
