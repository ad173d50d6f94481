//! Virtual memory management.

use super::support::{INVALID_VALUE, attribute, context, download, info, upload};
use crate::trial::skip;
use crate::{cu, need};

/// `CUmemAllocationProp`.
#[repr(C)]
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) struct Prop {
    kind: u32,
    handles: u32,
    location: [u32; 2],
    win32: u64,
    flags: u64,
}

pub(super) fn prop(handles: u32) -> Prop {
    Prop {
        kind: 1,
        handles,
        location: [1, 0],
        win32: 0,
        flags: 0,
    }
}

/// The minimum granularity of physical memory.
pub(super) fn granularity(p: &Prop) -> usize {
    let mut g = 0usize;
    need!(cuMemGetAllocationGranularity(
        &raw mut g,
        std::ptr::from_ref(p),
        0u32
    ));
    g
}

pub(super) fn begin() -> usize {
    context();
    if attribute(102) == 0 {
        skip("the device has no virtual memory management");
    }
    granularity(&prop(0))
}

pub(super) fn create(size: usize, p: &Prop) -> u64 {
    let mut h = 0u64;
    need!(cuMemCreate(&raw mut h, size, std::ptr::from_ref(p), 0u64));
    h
}

fn reserve(size: usize) -> u64 {
    let mut p = 0u64;
    need!(cuMemAddressReserve(&raw mut p, size, 0usize, 0u64, 0u64));
    p
}

fn allow(p: u64, size: usize) {
    let access = [1u32, 0, 3];
    need!(cuMemSetAccess(p, size, access.as_ptr(), 1usize));
}

/// Maps physical memory at a new address, with access.
pub(super) fn map(handle: u64, size: usize) -> u64 {
    let p = reserve(size);
    need!(cuMemMap(p, size, 0usize, handle, 0u64));
    allow(p, size);
    p
}

super::list! {
    "vmm.granularity", "Virtual Memory Management, cuMemGetAllocationGranularity", |t| {
        let least = begin();
        let mut good = 0usize;
        let p = prop(0);
        t.ok("recommended", cu!(cuMemGetAllocationGranularity(&raw mut good, &raw const p, 1u32)));
        t.holds("a power of two", least.is_power_of_two(), least);
        t.holds("a multiple of the least", good.is_multiple_of(least), good);
    }
    "vmm.sizes", "Virtual Memory Management, cuMemCreate: size a multiple of the granularity", |t| {
        let g = begin();
        let (mut h, p) = (0u64, prop(0));
        let create = |h: *mut u64, size: usize, flags: u64| cu!(cuMemCreate(h, size, &raw const p, flags));
        t.code("one byte more", &[INVALID_VALUE], create(&raw mut h, g + 1, 0));
        t.code("0 bytes", &[INVALID_VALUE], create(&raw mut h, 0, 0));
        t.code("flags", &[INVALID_VALUE], create(&raw mut h, g, 1));
    }
    "vmm.map", "Virtual Memory Management, cuMemAddressReserve, cuMemMap, cuMemSetAccess", |t| {
        let g = begin();
        let h = create(g, &prop(0));
        let p = map(h, g);
        upload(p, &[1u32, 2, 3]);
        t.same("bytes", vec![1u32, 2, 3], download::<u32>(p, 3));
        let (mut access, place) = (9u64, [1u32, 0]);
        t.ok("access", cu!(cuMemGetAccess(&raw mut access, place.as_ptr(), p)));
        t.same("read and write", 3, access);
        t.ok("unmap", cu!(cuMemUnmap(p, g)));
        t.ok("release", cu!(cuMemRelease(h)));
        t.ok("free the address", cu!(cuMemAddressFree(p, g)));
    }
    "vmm.map-refused", "Virtual Memory Management, cuMemMap: offset 0, size of the handle, a reserved address", |t| {
        let g = begin();
        let h = create(g, &prop(0));
        let p = reserve(2 * g);
        t.code("an offset", &[INVALID_VALUE], cu!(cuMemMap(p, g, g, h, 0u64)));
        t.code("more than it has", &[INVALID_VALUE], cu!(cuMemMap(p, 2 * g, 0usize, h, 0u64)));
        t.code("flags", &[INVALID_VALUE], cu!(cuMemMap(p, g, 0usize, h, 1u64)));
        t.ok("right", cu!(cuMemMap(p, g, 0usize, h, 0u64)));
        t.code("twice at one place", &[INVALID_VALUE], cu!(cuMemMap(p, g, 0usize, h, 0u64)));
    }
    "vmm.no-access", "Virtual Memory Management, cuMemSetAccess: before it, no access", |t| {
        let g = begin();
        let h = create(g, &prop(0));
        let p = reserve(g);
        need!(cuMemMap(p, g, 0usize, h, 0u64));
        let host = [0u8; 16];
        t.code("copy", &[INVALID_VALUE], cu!(cuMemcpyHtoD_v2(p, host.as_ptr(), 16usize)));
        allow(p, g);
        t.ok("copy with access", cu!(cuMemcpyHtoD_v2(p, host.as_ptr(), 16usize)));
    }
    "vmm.alias", "Virtual Memory Management, cuMemMap: one handle at two addresses", |t| {
        let g = begin();
        let h = create(g, &prop(0));
        let (a, b) = (map(h, g), map(h, g));
        upload(a, &[42u64]);
        t.same("seen at the other", vec![42u64], download::<u64>(b, 1));
    }
    "vmm.release-first", "Virtual Memory Management, cuMemRelease: memory stays until the last mapping goes", |t| {
        let g = begin();
        let size = g * (64 << 20 >> g.trailing_zeros()).max(1);
        let before = info().0;
        let h = create(size, &prop(0));
        let p = map(h, size);
        t.ok("release", cu!(cuMemRelease(h)));
        upload(p, &[7u32]);
        t.same("still there", vec![7u32], download::<u32>(p, 1));
        t.holds("still taken", before - info().0 >= size, before - info().0);
        t.ok("unmap", cu!(cuMemUnmap(p, size)));
        t.holds("given back", info().0 + (4 << 20) >= before, info().0);
    }
    "vmm.unmap-part", "Virtual Memory Management, cuMemUnmap: only whole mappings", |t| {
        let g = begin();
        let h = create(2 * g, &prop(0));
        let p = map(h, 2 * g);
        t.code("half", &[INVALID_VALUE], cu!(cuMemUnmap(p, g)));
        t.ok("whole", cu!(cuMemUnmap(p, 2 * g)));
    }
    "vmm.retain", "Virtual Memory Management, cuMemRetainAllocationHandle: needs a release of its own", |t| {
        let g = begin();
        let h = create(g, &prop(0));
        let p = map(h, g);
        let mut again = 0u64;
        t.ok("retain", cu!(cuMemRetainAllocationHandle(&raw mut again, p)));
        t.ok("release", cu!(cuMemRelease(again)));
        t.ok("and the first", cu!(cuMemRelease(h)));
        t.same("mapped as before", 0, cu!(cuMemsetD8_v2(p, 1u8, 16usize)));
    }
    "vmm.properties", "Virtual Memory Management, cuMemGetAllocationPropertiesFromHandle", |t| {
        let g = begin();
        let h = create(g, &prop(0));
        let mut seen = prop(9);
        t.ok("call", cu!(cuMemGetAllocationPropertiesFromHandle(&raw mut seen, h)));
        t.same("kind, handles, place", (1, 0, [1, 0]), (seen.kind, seen.handles, seen.location));
    }
    "vmm.export-refused", "Virtual Memory Management, cuMemExportToShareableHandle: only the types asked for at creation", |t| {
        let g = begin();
        let h = create(g, &prop(0));
        let mut fd = -1i32;
        let code = cu!(cuMemExportToShareableHandle(&raw mut fd, h, 1u32, 0u64));
        t.code("not asked for", &[INVALID_VALUE], code);
    }
    "vmm.export", "Virtual Memory Management, cuMemExportToShareableHandle and ImportFromShareableHandle", |t| {
        begin();
        if attribute(103) == 0 {
            skip("no file descriptors as handles");
        }
        let p = prop(1);
        let g = granularity(&p);
        let before = info().0;
        let h = create(g, &p);
        let taken = before - info().0;
        let (mut fd, mut again) = (-1i32, 0u64);
        t.ok("export", cu!(cuMemExportToShareableHandle(&raw mut fd, h, 1u32, 0u64)));
        t.holds("a descriptor", fd >= 0, fd);
        let handle = fd as usize as u64;
        t.ok("import", cu!(cuMemImportFromShareableHandle(&raw mut again, handle, 1u32)));
        t.same("nothing more is taken", taken, before - info().0);
        let (a, b) = (map(h, g), map(again, g));
        upload(a, &[99u32]);
        t.same("the same memory", vec![99u32], download::<u32>(b, 1));
        need!(cuMemUnmap(a, g));
        need!(cuMemRelease(h));
        t.same("alive by the import", vec![99u32], download::<u32>(b, 1));
    }
}
