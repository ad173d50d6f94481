//! Initialisation, versions, names of errors, and devices.

use std::ffi::{CStr, c_char};

use super::support::{INVALID_VALUE, NOT_INITIALIZED, attribute, context, info, version};
use crate::{cu, need};

const INVALID_DEVICE: u32 = 101;

fn device_name(room: usize) -> Vec<u8> {
    let mut name = vec![0xffu8; room];
    need!(cuDeviceGetName(name.as_mut_ptr(), room as i32, 0i32));
    name
}

fn text(code: u32, f: impl Fn(u32, *mut *const c_char) -> u32) -> (u32, Option<String>) {
    let mut p: *const c_char = std::ptr::null();
    let rc = f(code, &raw mut p);
    if p.is_null() {
        return (rc, None);
    }
    // SAFETY: the driver returned a C string.
    (
        rc,
        Some(unsafe { CStr::from_ptr(p) }.to_string_lossy().into_owned()),
    )
}

super::list! {
    "init.before", "Initialization, cuInit: before it any other call gives NOT_INITIALIZED", |t| {
        let (mut n, mut p) = (0i32, 0u64);
        t.code("cuDeviceGetCount", &[NOT_INITIALIZED], cu!(cuDeviceGetCount(&raw mut n)));
        t.code("cuMemAlloc", &[NOT_INITIALIZED], cu!(cuMemAlloc_v2(&raw mut p, 64usize)));
        t.code("cuCtxGetCurrent", &[NOT_INITIALIZED], cu!(cuCtxGetCurrent(&raw mut p)));
    }
    "init.flags", "Initialization, cuInit: flags must be 0", |t| {
        t.code("cuInit(1)", &[INVALID_VALUE], cu!(cuInit(1u32)));
        t.ok("cuInit(0) after it", cu!(cuInit(0u32)));
    }
    "init.twice", "Initialization, cuInit", |t| {
        t.ok("first", cu!(cuInit(0u32)));
        t.ok("second", cu!(cuInit(0u32)));
    }
    "init.version", "Version Management, cuDriverGetVersion: works without cuInit; NULL is INVALID_VALUE", |t| {
        let mut v = 0i32;
        t.ok("before cuInit", cu!(cuDriverGetVersion(&raw mut v)));
        t.holds("1000 * major + 10 * minor", v >= 11_000 && v % 10 == 0, v);
        let null = std::ptr::null_mut::<i32>();
        t.code("NULL", &[INVALID_VALUE], cu!(cuDriverGetVersion(null)));
    }
    "error.names", "Error Handling, cuGetErrorName", |t| {
        let name = |c| text(c, |c, p| cu!(cuGetErrorName(c, p)));
        t.same("0", (0, Some("CUDA_SUCCESS".to_owned())), name(0));
        t.same("2", (0, Some("CUDA_ERROR_OUT_OF_MEMORY".to_owned())), name(2));
        t.same("700", (0, Some("CUDA_ERROR_ILLEGAL_ADDRESS".to_owned())), name(700));
        t.same("901", (0, Some("CUDA_ERROR_STREAM_CAPTURE_INVALIDATED".to_owned())), name(901));
        t.same("unknown: INVALID_VALUE and NULL", (INVALID_VALUE, None), name(123_456));
    }
    "error.strings", "Error Handling, cuGetErrorString", |t| {
        let words = |c| text(c, |c, p| cu!(cuGetErrorString(c, p)));
        t.same("2", (0, Some("out of memory".to_owned())), words(2));
        t.same("1", (0, Some("invalid argument".to_owned())), words(1));
        t.same("unknown: INVALID_VALUE and NULL", (INVALID_VALUE, None), words(123_456));
    }
    "device.count", "Device Management, cuDeviceGetCount and cuDeviceGet", |t| {
        need!(cuInit(0u32));
        let (mut n, mut d) = (0i32, -1i32);
        t.ok("count", cu!(cuDeviceGetCount(&raw mut n)));
        t.holds("at least one", n >= 1, n);
        t.ok("the last", cu!(cuDeviceGet(&raw mut d, n - 1)));
        t.same("its ordinal", n - 1, d);
        t.code("one more", &[INVALID_DEVICE], cu!(cuDeviceGet(&raw mut d, n)));
        t.code("-1", &[INVALID_DEVICE], cu!(cuDeviceGet(&raw mut d, -1i32)));
        let null = std::ptr::null_mut::<i32>();
        t.code("NULL", &[INVALID_VALUE], cu!(cuDeviceGetCount(null)));
    }
    "device.name", "Device Management, cuDeviceGetName: a C string cut to the buffer", |t| {
        need!(cuInit(0u32));
        let whole = device_name(256);
        let end = whole.iter().position(|b| *b == 0).unwrap_or(256);
        t.holds("ends with NUL", end < 256 && end > 0, end);
        let cut = device_name(5);
        t.same("cut", whole[..4].to_vec(), cut[..4].to_vec());
        t.same("and ended", 0, cut[4]);
    }
    "device.uuid", "Device Management, cuDeviceGetUuid and cuDeviceGetUuid_v2: equal without MIG", |t| {
        need!(cuInit(0u32));
        let (mut a, mut b) = ([0u8; 16], [1u8; 16]);
        t.ok("v1", cu!(cuDeviceGetUuid(a.as_mut_ptr(), 0i32)));
        t.ok("v2", cu!(cuDeviceGetUuid_v2(b.as_mut_ptr(), 0i32)));
        t.same("equal", a, b);
        t.differ("not zero", a, [0; 16]);
    }
    "device.limits", "Device Management, cuDeviceGetAttribute; compute capabilities table of the CUDA C++ guide", |t| {
        need!(cuInit(0u32));
        t.same("threads per block", 1024, attribute(1));
        t.same("block x, y, z", [1024, 1024, 64], [2, 3, 4].map(attribute));
        t.same("grid x, y, z", [i32::MAX, 65_535, 65_535], [5, 6, 7].map(attribute));
        t.same("constant memory", 65_536, attribute(9));
        t.same("warp size", 32, attribute(10));
        t.same("unified addressing", 1, attribute(41));
        t.same("managed memory", 1, attribute(83));
        t.same("stream priorities", 1, attribute(78));
        t.holds("SMs", attribute(16) > 0, attribute(16));
        t.holds("resident threads", attribute(39) % 32 == 0 && attribute(39) >= 1024, attribute(39));
    }
    "device.attribute-unknown", "Device Management, cuDeviceGetAttribute: unknown attributes are INVALID_VALUE", |t| {
        need!(cuInit(0u32));
        let mut v = 0i32;
        t.code("0", &[INVALID_VALUE], cu!(cuDeviceGetAttribute(&raw mut v, 0u32, 0i32)));
        t.code("1000000", &[INVALID_VALUE], cu!(cuDeviceGetAttribute(&raw mut v, 1_000_000u32, 0i32)));
        t.code("device 99", &[INVALID_DEVICE], cu!(cuDeviceGetAttribute(&raw mut v, 1u32, 99i32)));
    }
    "device.capability", "Device Management (deprecated), cuDeviceComputeCapability: the same as the attributes", |t| {
        need!(cuInit(0u32));
        let (mut major, mut minor) = (0i32, 0i32);
        t.ok("call", cu!(cuDeviceComputeCapability(&raw mut major, &raw mut minor, 0i32)));
        t.same("attributes 75 and 76", (attribute(75), attribute(76)), (major, minor));
        t.holds("supported by CUDA 11 and later", major >= 3, major);
    }
    "device.memory", "Device Management, cuDeviceTotalMem: the total that cuMemGetInfo has", |t| {
        context();
        let mut total = 0usize;
        t.ok("call", cu!(cuDeviceTotalMem_v2(&raw mut total, 0i32)));
        t.same("equal", info().1, total);
    }
    "device.pci", "Device Management, cuDeviceGetPCIBusId and cuDeviceGetByPCIBusId", |t| {
        need!(cuInit(0u32));
        let mut id = [0u8; 32];
        t.ok("id", cu!(cuDeviceGetPCIBusId(id.as_mut_ptr(), 32i32, 0i32)));
        let mut d = -1i32;
        t.ok("back", cu!(cuDeviceGetByPCIBusId(&raw mut d, id.as_ptr())));
        t.same("device", 0, d);
        let text = String::from_utf8_lossy(&id[..]).trim_end_matches('\0').to_owned();
        let form = format!("{:04X}:{:02X}:{:02X}.0", attribute(50), attribute(33), attribute(34));
        t.same("domain:bus:device.function of the attributes", form, text.to_uppercase());
        t.code("no id", &[INVALID_VALUE], cu!(cuDeviceGetByPCIBusId(&raw mut d, c"zz".as_ptr())));
    }
    "device.peers", "Peer Context Memory Access, cuDeviceCanAccessPeer: not with itself", |t| {
        need!(cuInit(0u32));
        let mut can = 7i32;
        t.ok("call", cu!(cuDeviceCanAccessPeer(&raw mut can, 0i32, 0i32)));
        t.same("itself", 0, can);
        t.code("device 99", &[INVALID_DEVICE], cu!(cuDeviceCanAccessPeer(&raw mut can, 0i32, 99i32)));
    }
    "device.version-of-context", "Context Management, cuCtxGetApiVersion: a version of the driver", |t| {
        let c = context();
        let mut v = 0u32;
        t.ok("call", cu!(cuCtxGetApiVersion(c, &raw mut v)));
        t.holds("not newer than the driver", v >= 3010 && v as i32 <= version(), v);
    }
}
