//! NVML's answers.

use std::ffi::CStr;

use super::process::Holder;
use super::support::{SOON, context, info, version};
use crate::trial::skip;
use crate::{ml, need};

const NVML_NO_PERMISSION: u32 = 4;
const NVML_INVALID_ARGUMENT: u32 = 2;
const NVML_NOT_SUPPORTED: u32 = 3;
const NVML_NOT_FOUND: u32 = 6;
const NVML_INSUFFICIENT_SIZE: u32 = 7;
const NVML_TIMEOUT: u32 = 10;
/// `nvmlEventTypeXidCriticalError`
const XID: u64 = 8;

fn begin() {
    let code = ml!(nvmlInit_v2());
    if code != 0 {
        skip(format!("nvmlInit gave {code}"));
    }
}

/// The NVML device of CUDA's first device.
pub(super) fn device() -> u64 {
    begin();
    need!(cuInit(0u32));
    let mut id = [0u8; 32];
    need!(cuDeviceGetPCIBusId(id.as_mut_ptr(), 32i32, 0i32));
    let mut d = 0u64;
    let code = ml!(nvmlDeviceGetHandleByPciBusId_v2(id.as_ptr(), &raw mut d));
    if code != 0 {
        skip(format!("nvmlDeviceGetHandleByPciBusId gave {code}"));
    }
    d
}

/// `nvmlProcessInfo_t` of the functions with `_v3`.
#[repr(C)]
#[derive(Default, Clone, Copy)]
struct Process {
    pid: u32,
    used: u64,
    instances: [u32; 2],
}

fn processes(d: u64) -> Vec<Process> {
    let mut list = vec![Process::default(); 256];
    let mut n = 256u32;
    let code = ml!(nvmlDeviceGetComputeRunningProcesses_v3(
        d,
        &raw mut n,
        list.as_mut_ptr()
    ));
    if code != 0 {
        skip(format!("the list of processes gave {code}"));
    }
    list.truncate(n as usize);
    list
}

/// Whether NVML lists a process on a device.
pub(super) fn lists(d: u64, pid: u32) -> bool {
    processes(d).iter().any(|p| p.pid == pid)
}

fn text(bytes: &[u8]) -> String {
    let found = CStr::from_bytes_until_nul(bytes);
    found.map_or_else(|_| String::new(), |t| t.to_string_lossy().into_owned())
}

super::list! {
    "nvml.count", "NVML, Device Queries, nvmlDeviceGetCount and GetHandleByIndex", |t| {
        begin();
        let (mut n, mut d) = (0u32, 0u64);
        t.ok("count", ml!(nvmlDeviceGetCount_v2(&raw mut n)));
        // A cgroup's filter may keep this device closed.
        let code = ml!(nvmlDeviceGetHandleByIndex_v2(n - 1, &raw mut d));
        t.code("the last", &[0, NVML_NO_PERMISSION], code);
        let code = ml!(nvmlDeviceGetHandleByIndex_v2(n, &raw mut d));
        t.same("one more: INVALID_ARGUMENT", NVML_INVALID_ARGUMENT, code);
    }
    "nvml.identity", "NVML, Device Queries: name and UUID are those that CUDA has", |t| {
        let d = device();
        let (mut name, mut of_cuda, mut uuid, mut raw) = ([0u8; 96], [0u8; 96], [0u8; 96], [0u8; 16]);
        t.ok("name", ml!(nvmlDeviceGetName(d, name.as_mut_ptr(), 96u32)));
        need!(cuDeviceGetName(of_cuda.as_mut_ptr(), 96i32, 0i32));
        t.same("name", text(&of_cuda), text(&name));
        t.ok("UUID", ml!(nvmlDeviceGetUUID(d, uuid.as_mut_ptr(), 96u32)));
        need!(cuDeviceGetUuid(raw.as_mut_ptr(), 0i32));
        let digits: String = raw.iter().map(|b| format!("{b:02x}")).collect();
        t.same("UUID", format!("GPU-{digits}"), text(&uuid).replacen('-', "@", 1).replace('-', "").replace('@', "-"));
    }
    "nvml.versions", "NVML, System Queries: the CUDA version is that of the driver", |t| {
        begin();
        let (mut v, mut driver) = (0i32, [0u8; 96]);
        t.ok("CUDA version", ml!(nvmlSystemGetCudaDriverVersion_v2(&raw mut v)));
        t.same("equal", version(), v);
        t.ok("driver version", ml!(nvmlSystemGetDriverVersion(driver.as_mut_ptr(), 96u32)));
        t.holds("numbers and points", text(&driver).split('.').count() >= 2, text(&driver));
    }
    "nvml.memory", "NVML, Device Queries, nvmlDeviceGetMemoryInfo: total, free and used", |t| {
        let d = device();
        context();
        let mut m = [0u64; 3];
        t.ok("call", ml!(nvmlDeviceGetMemoryInfo(d, m.as_mut_ptr())));
        t.same("free and used make the total", m[0], m[1] + m[2]);
        t.holds("CUDA's total is not more", info().1 as u64 <= m[0], m[0]);
        t.holds("CUDA's free memory is not more", info().0 as u64 <= m[1] + (64 << 20), m[1]);
    }
    "nvml.process", "NVML, Device Queries, nvmlDeviceGetComputeRunningProcesses: a process with a context, and its memory", |t| {
        let d = device();
        let mut holder = Holder::new(256 << 20);
        let pid = holder.pid();
        let seen = processes(d).into_iter().find(|p| p.pid == pid);
        let Some(seen) = seen else {
            // In a container NVML reports pids of another namespace.
            if processes(d).is_empty() {
                skip("NVML shows no processes here");
            }
            t.holds("it is listed", false, "its pid is not");
            return;
        };
        t.holds("with its memory", seen.used >= 256 << 20, seen.used);
        holder.kill();
        t.comes("and goes with it", SOON, || !processes(d).iter().any(|p| p.pid == pid));
    }
    "nvml.process-room", "NVML, Device Queries: INSUFFICIENT_SIZE and the number that is needed", |t| {
        let d = device();
        let _holder = Holder::new(1 << 20);
        let mut n = 0u32;
        let none = std::ptr::null_mut::<Process>();
        let code = ml!(nvmlDeviceGetComputeRunningProcesses_v3(d, &raw mut n, none));
        if code == 0 && n == 0 {
            skip("NVML shows no processes here");
        }
        t.same("no room", NVML_INSUFFICIENT_SIZE, code);
        t.holds("number", n >= 1, n);
    }
    "nvml.events", "NVML, Event Handling Methods: nothing waits, TIMEOUT; types that are not supported are refused", |t| {
        let d = device();
        let (mut set, mut types) = (0u64, 0u64);
        t.ok("a set", ml!(nvmlEventSetCreate(&raw mut set)));
        t.ok("what is supported", ml!(nvmlDeviceGetSupportedEventTypes(d, &raw mut types)));
        t.holds("Xid errors are", types & XID != 0, types);
        t.ok("registered", ml!(nvmlDeviceRegisterEvents(d, types & XID, set)));
        let mut event = [0u64; 4];
        let code = ml!(nvmlEventSetWait_v2(set, event.as_mut_ptr(), 0u32));
        t.same("no event", NVML_TIMEOUT, code);
        t.ok("freed", ml!(nvmlEventSetFree(set)));
    }
    "nvml.memory-errors", "NVML, Device Queries, nvmlDeviceGetTotalEccErrors, nvmlDeviceGetRemappedRows: figures, or NOT_SUPPORTED", |t| {
        let d = device();
        for kind in [0u32, 1] {
            let mut n = u64::MAX;
            let code = ml!(nvmlDeviceGetTotalEccErrors(d, kind, 0u32, &raw mut n));
            t.holds("errors", (code == 0 && n != u64::MAX) || code == NVML_NOT_SUPPORTED, code);
        }
        let mut rows = [u32::MAX; 4];
        let at = rows.as_mut_ptr();
        let code = ml!(nvmlDeviceGetRemappedRows(d, at, at.wrapping_add(1), at.wrapping_add(2), at.wrapping_add(3)));
        let known = rows.iter().all(|n| *n != u32::MAX) && rows[2] <= 1 && rows[3] <= 1;
        t.holds("rows", (code == 0 && known) || code == NVML_NOT_SUPPORTED, format!("{code} {rows:?}"));
        let mut reasons = u64::MAX;
        t.ok("clock reasons", ml!(nvmlDeviceGetCurrentClocksThrottleReasons(d, &raw mut reasons)));
        t.holds("are bits that the header has", reasons >> 10 == 0, reasons);
    }
    "nvml.utilization", "NVML, Device Queries, nvmlDeviceGetUtilizationRates: percent", |t| {
        let d = device();
        let mut u = [999u32; 2];
        t.ok("call", ml!(nvmlDeviceGetUtilizationRates(d, u.as_mut_ptr())));
        t.holds("GPU and memory", u[0] <= 100 && u[1] <= 100, format!("{u:?}"));
    }
    "nvml.capability", "NVML, Device Queries, nvmlDeviceGetCudaComputeCapability: that of CUDA", |t| {
        let d = device();
        let (mut major, mut minor) = (0i32, 0i32);
        t.ok("call", ml!(nvmlDeviceGetCudaComputeCapability(d, &raw mut major, &raw mut minor)));
        let seen = (super::support::attribute(75), super::support::attribute(76));
        t.same("attributes 75 and 76", seen, (major, minor));
    }
    "nvml.unknown", "NVML, Device Queries, nvmlDeviceGetHandleByUUID: NOT_FOUND", |t| {
        begin();
        let mut d = 0u64;
        let id = c"GPU-00000000-0000-0000-0000-000000000000";
        let code = ml!(nvmlDeviceGetHandleByUUID(id.as_ptr(), &raw mut d));
        t.holds("NOT_FOUND or INVALID_ARGUMENT", [NVML_NOT_FOUND, NVML_INVALID_ARGUMENT].contains(&code), code);
    }
}
