//! Linear memory, host memory, managed memory, and queries of pointers.

use super::support::{
    INVALID_VALUE, OUT_OF_MEMORY, alloc, attribute, context, download, info, stream, upload,
};
use crate::trial::skip;
use crate::{cu, need};

/// An attribute of a pointer: result code and value.
fn of_pointer<T: Default>(which: u32, p: u64) -> (u32, T) {
    let mut v = T::default();
    (cu!(cuPointerGetAttribute(&raw mut v, which, p)), v)
}

fn pool_alloc(bytes: usize, s: u64) -> u64 {
    if attribute(115) == 0 {
        skip("the device has no memory pools");
    }
    let mut p = 0u64;
    need!(cuMemAllocAsync(&raw mut p, bytes, s));
    p
}

/// `CUDA_MEMCPY2D`.
#[repr(C)]
#[derive(Default)]
struct Copy2D {
    src: [usize; 2],
    src_type: u32,
    src_host: u64,
    src_device: u64,
    src_array: u64,
    src_pitch: usize,
    dst: [usize; 2],
    dst_type: u32,
    dst_host: u64,
    dst_device: u64,
    dst_array: u64,
    dst_pitch: usize,
    size: [usize; 2],
}

super::list! {
    "alloc.refused", "Memory Management, cuMemAlloc: bytesize 0 and NULL are INVALID_VALUE", |t| {
        context();
        let mut p = 0u64;
        t.code("0 bytes", &[INVALID_VALUE], cu!(cuMemAlloc_v2(&raw mut p, 0usize)));
        let null = std::ptr::null_mut::<u64>();
        t.code("NULL", &[INVALID_VALUE], cu!(cuMemAlloc_v2(null, 64usize)));
    }
    "alloc.aligned", "CUDA C++ guide, device memory accesses: aligned to at least 256 bytes", |t| {
        context();
        for bytes in [1usize, 3, 100, 4096, 3 << 20] {
            let p = alloc(bytes);
            t.same("address modulo 256", 0, p % 256);
        }
    }
    "alloc.too-large", "Memory Management, cuMemAlloc: OUT_OF_MEMORY, and nothing is taken", |t| {
        context();
        let (free, total) = info();
        let mut p = 0u64;
        t.code("twice all", &[OUT_OF_MEMORY], cu!(cuMemAlloc_v2(&raw mut p, total * 2)));
        t.code("1 EiB", &[OUT_OF_MEMORY], cu!(cuMemAlloc_v2(&raw mut p, 1usize << 60)));
        t.same("free memory", free, info().0);
        t.ok("the context still works", cu!(cuMemAlloc_v2(&raw mut p, 64usize)));
    }
    "alloc.counted", "Memory Management, cuMemGetInfo: free memory falls and rises with allocations", |t| {
        context();
        let before = info().0;
        let p = alloc(256 << 20);
        t.holds("256 MiB less", before - info().0 >= 256 << 20, before - info().0);
        need!(cuMemFree_v2(p));
        t.holds("and back", info().0 + (2 << 20) >= before, info().0);
    }
    "alloc.small", "observed: small allocations share blocks of 2 MiB", |t| {
        context();
        alloc(512);
        let before = info().0;
        for _ in 0..64 {
            alloc(512);
        }
        t.holds("64 of 512 bytes take at most one block", before - info().0 <= 2 << 20, before - info().0);
    }
    "free.null", "observed: cuMemFree(0) succeeds", |t| {
        context();
        t.ok("call", cu!(cuMemFree_v2(0u64)));
    }
    "free.refused", "Memory Management, cuMemFree: INVALID_VALUE for what no allocation returned", |t| {
        context();
        let p = alloc(4096);
        t.code("inside", &[INVALID_VALUE], cu!(cuMemFree_v2(p + 256)));
        t.ok("the allocation", cu!(cuMemFree_v2(p)));
        t.code("again", &[INVALID_VALUE], cu!(cuMemFree_v2(p)));
        t.code("a bogus address", &[INVALID_VALUE], cu!(cuMemFree_v2(0x1234_5600u64)));
        let on_host = vec![0u8; 4096];
        t.code("host memory", &[INVALID_VALUE], cu!(cuMemFree_v2(on_host.as_ptr() as u64)));
    }
    "free.across", "Memory Management, cuMemFree: also of cuMemAllocAsync; cuMemFreeAsync: also of cuMemAlloc", |t| {
        context();
        let s = stream(0);
        let p = pool_alloc(4 << 20, s);
        need!(cuStreamSynchronize(s));
        t.ok("cuMemFree of a pool's memory", cu!(cuMemFree_v2(p)));
        let p = alloc(4 << 20);
        t.ok("cuMemFreeAsync of linear memory", cu!(cuMemFreeAsync(p, s)));
        t.ok("wait", cu!(cuStreamSynchronize(s)));
        let before = info().0;
        let mut managed = 0u64;
        need!(cuMemAllocManaged(&raw mut managed, 4usize << 20, 1u32));
        t.ok("cuMemFree of managed memory", cu!(cuMemFree_v2(managed)));
        t.holds("nothing is lost", info().0 + (4 << 20) >= before, info().0);
    }
    "free.threads", "Memory Management, cuMemFree: any thread of the context may free", |t| {
        let c = context();
        let p = alloc(4096);
        let other = std::thread::spawn(move || {
            need!(cuCtxSetCurrent(c));
            cu!(cuMemFree_v2(p))
        });
        t.ok("from another thread", other.join().unwrap_or(999));
    }
    "pointer.range", "Memory Management, cuMemGetAddressRange: base and size for any address inside", |t| {
        context();
        let p = alloc(10_000);
        let (mut base, mut size) = (0u64, 0usize);
        t.ok("inside", cu!(cuMemGetAddressRange_v2(&raw mut base, &raw mut size, p + 5000)));
        t.same("base and size", (p, 10_000), (base, size));
        let null = std::ptr::null_mut::<u64>();
        t.ok("both results are optional", cu!(cuMemGetAddressRange_v2(null, &raw mut size, p)));
        t.code("no allocation", &[INVALID_VALUE, 500], cu!(cuMemGetAddressRange_v2(&raw mut base, &raw mut size, 0x1000u64)));
    }
    "pointer.attributes", "Unified Addressing, cuPointerGetAttribute", |t| {
        let c = context();
        let p = alloc(10_000);
        t.same("memory type: device", (0, 2u32), of_pointer(2, p + 8));
        t.same("context", (0, c), of_pointer(1, p));
        t.same("device", (0, 0i32), of_pointer(9, p));
        t.same("start of the range", (0, p), of_pointer(11, p + 100));
        t.same("size of the range", (0, 10_000u64), of_pointer(12, p + 100));
        t.same("device pointer", (0, p + 8), of_pointer(3, p + 8));
        t.same("managed", (0, 0u8), of_pointer(8, p));
        let (rc, a): (u32, u64) = of_pointer(7, p);
        t.ok("buffer id", rc);
        let q = alloc(10_000);
        t.differ("buffer ids", a, of_pointer(7, q).1);
    }
    "pointer.unknown", "Unified Addressing: INVALID_VALUE for one attribute, zeros for a list", |t| {
        context();
        let here = Box::new(5u64);
        let p = std::ptr::from_ref(&*here) as u64;
        t.code("one", &[INVALID_VALUE], of_pointer::<u32>(2, p).0);
        let which = [2u32, 1];
        let (mut kind, mut ctx) = (7u32, 7u64);
        let outs = [(&raw mut kind).addr() as u64, (&raw mut ctx).addr() as u64];
        t.ok("list", cu!(cuPointerGetAttributes(2u32, which.as_ptr(), outs.as_ptr(), p)));
        // SAFETY: both are live locals that the driver wrote to through their addresses.
        let seen = unsafe { ((&raw const kind).read_volatile(), (&raw const ctx).read_volatile()) };
        t.same("values", (0, 0), seen);
    }
    "copy.round-trip", "Memory Management, cuMemcpyHtoD, DtoD, DtoH", |t| {
        context();
        let values: Vec<u32> = (0..100_000u32).map(|i| i.wrapping_mul(2_654_435_761)).collect();
        let (a, b) = (alloc(400_000), alloc(400_000));
        upload(a, &values);
        t.ok("DtoD", cu!(cuMemcpyDtoD_v2(b, a, 400_000usize)));
        t.holds("bytes", download::<u32>(b, 100_000) == values, "other bytes");
        t.ok("unified", cu!(cuMemcpy(b, a + 4, 399_996usize)));
        t.holds("shifted", download::<u32>(b, 99_999) == values[1..], "other bytes");
        t.ok("no bytes", cu!(cuMemcpyDtoD_v2(b, a, 0usize)));
    }
    "copy.refused", "Memory Management, cuMemcpyHtoD: INVALID_VALUE outside of allocations", |t| {
        context();
        let host = [0u8; 16];
        t.code("to 0", &[INVALID_VALUE], cu!(cuMemcpyHtoD_v2(0u64, host.as_ptr(), 16usize)));
        t.code("to a bogus address", &[INVALID_VALUE], cu!(cuMemcpyHtoD_v2(0x1000u64, host.as_ptr(), 16usize)));
    }
    "copy.rectangles", "Memory Management, cuMemAllocPitch and cuMemcpy2D", |t| {
        context();
        let (mut p, mut pitch) = (0u64, 0usize);
        t.ok("pitched", cu!(cuMemAllocPitch_v2(&raw mut p, &raw mut pitch, 1000usize, 10usize, 4u32)));
        t.holds("pitch", pitch >= 1000 && pitch.is_multiple_of(4), pitch);
        let host: Vec<u8> = (0..200).collect();
        let mut back = vec![0u8; 200];
        let mut c = Copy2D {
            src_type: 1,
            src_host: host.as_ptr() as u64,
            src_pitch: 20,
            dst: [4, 1],
            dst_type: 2,
            dst_device: p,
            dst_pitch: pitch,
            size: [20, 5],
            ..Copy2D::default()
        };
        t.ok("in", cu!(cuMemcpy2D_v2(&raw const c)));
        c.dst_pitch = 10;
        t.code("a pitch below the width", &[INVALID_VALUE], cu!(cuMemcpy2D_v2(&raw const c)));
        let out = Copy2D {
            src: [4, 1],
            src_type: 2,
            src_device: p,
            src_pitch: pitch,
            dst_type: 1,
            dst_host: back.as_mut_ptr() as u64,
            dst_pitch: 20,
            size: [20, 5],
            ..Copy2D::default()
        };
        t.ok("out", cu!(cuMemcpy2D_v2(&raw const out)));
        t.same("bytes", host[..100].to_vec(), back[..100].to_vec());
        let refused = cu!(cuMemAllocPitch_v2(&raw mut p, &raw mut pitch, 10usize, 10usize, 3u32));
        t.code("elements of 3 bytes", &[INVALID_VALUE], refused);
    }
    "fill.patterns", "Memory Management, cuMemsetD8, D16, D32, D2D8: destination aligned to the element", |t| {
        context();
        let p = alloc(4096);
        t.ok("D32", cu!(cuMemsetD32_v2(p, 0xdead_beefu32, 256usize)));
        t.ok("D16", cu!(cuMemsetD16_v2(p + 1024, 0x1234u16, 256usize)));
        t.ok("D8", cu!(cuMemsetD8_v2(p + 2048, 7u8, 256usize)));
        t.ok("rows", cu!(cuMemsetD2D8_v2(p + 3072, 100usize, 5u8, 2usize, 3usize)));
        let out = download::<u8>(p, 4096);
        t.same("D32", [0xef, 0xbe, 0xad, 0xde], [out[1020], out[1021], out[1022], out[1023]]);
        t.same("D16", [0x34, 0x12], [out[1024], out[1025]]);
        t.same("D8", [7; 2], [out[2048], out[2303]]);
        t.same("rows", [5; 4], [out[3072], out[3073], out[3172], out[3273]]);
        t.code("D32 to an odd address", &[INVALID_VALUE], cu!(cuMemsetD32_v2(p + 1, 0u32, 4usize)));
    }
    "host.allocated", "Memory Management, cuMemHostAlloc: portable and mapped; cuMemHostGetDevicePointer", |t| {
        context();
        let (mut p, mut d, mut flags) = (0u64, 0u64, 0u32);
        t.ok("alloc", cu!(cuMemHostAlloc(&raw mut p, 4096usize, 3u32)));
        t.ok("device pointer", cu!(cuMemHostGetDevicePointer_v2(&raw mut d, p, 0u32)));
        t.same("is the same with unified addressing", p, d);
        t.ok("flags", cu!(cuMemHostGetFlags(&raw mut flags, p)));
        t.same("what was asked for", 3, flags & 3);
        t.same("memory type: host", (0, 1u32), of_pointer(2, p));
        t.code("cuMemFree", &[INVALID_VALUE], cu!(cuMemFree_v2(p)));
        t.ok("free", cu!(cuMemFreeHost(p)));
        let device = alloc(4096);
        t.code("cuMemFreeHost of device memory", &[INVALID_VALUE], cu!(cuMemFreeHost(device)));
    }
    "host.registered", "Memory Management, cuMemHostRegister: HOST_MEMORY_ALREADY_REGISTERED, NOT_REGISTERED", |t| {
        context();
        let memory = vec![0u8; 1 << 20];
        let p = (memory.as_ptr() as u64).next_multiple_of(4096);
        let size = 64usize << 10;
        t.ok("register", cu!(cuMemHostRegister_v2(p, size, 0u32)));
        t.code("again", &[712], cu!(cuMemHostRegister_v2(p, size, 0u32)));
        t.ok("unregister", cu!(cuMemHostUnregister(p)));
        t.code("again", &[713], cu!(cuMemHostUnregister(p)));
        t.code("no bytes", &[INVALID_VALUE], cu!(cuMemHostRegister_v2(p, 0usize, 0u32)));
    }
    "managed.shared", "Memory Management, cuMemAllocManaged: one pointer for host and device", |t| {
        context();
        let mut p = 0u64;
        t.ok("alloc", cu!(cuMemAllocManaged(&raw mut p, 1usize << 20, 1u32)));
        // SAFETY: managed memory is accessible from the host while no kernel runs.
        unsafe { (p as *mut u32).write_volatile(0x0102_0304) };
        t.same("host to device", vec![0x0102_0304u32], download::<u32>(p, 1));
        t.ok("fill", cu!(cuMemsetD32_v2(p, 77u32, 4usize)));
        t.ok("wait", cu!(cuCtxSynchronize()));
        // SAFETY: see above.
        t.same("device to host", 77, unsafe { (p as *const u32).read_volatile() });
        t.same("managed", (0, 1u8), of_pointer(8, p));
        t.code("flags 0", &[INVALID_VALUE], cu!(cuMemAllocManaged(&raw mut p, 64usize, 0u32)));
    }
}
