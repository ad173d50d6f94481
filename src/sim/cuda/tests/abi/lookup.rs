//! Symbols and their look-up.

use std::collections::BTreeSet;
use std::ffi::CString;

use object::{Object, ObjectSymbol};

use crate::support::{built, symbol, workstation};
use crate::{cu, ok};

fn exported() -> BTreeSet<String> {
    let bytes = std::fs::read(built()).expect("read");
    let file = object::File::parse(&bytes[..]).expect("parse");
    let names = file.dynamic_symbols().filter(ObjectSymbol::is_definition);
    names
        .filter_map(|s| s.name().ok().map(str::to_owned))
        .collect()
}

/// Result of `cuGetProcAddress`: code, address, status.
fn ask(name: &str, version: i32, flags: u64) -> (u32, u64, u32) {
    let name = CString::new(name).expect("name");
    let (mut p, mut status) = (1u64, 99u32);
    let code = cu!(cuGetProcAddress_v2(
        name.as_ptr(),
        &raw mut p,
        version,
        flags,
        &raw mut status
    ));
    (code, p, status)
}

fn address(name: &str) -> u64 {
    symbol(name) as u64
}

/// Base name, generation, and whether it is a per-thread twin.
fn parts(symbol: &str) -> (&str, u32, bool) {
    let twin = symbol
        .strip_suffix("_ptsz")
        .or(symbol.strip_suffix("_ptds"));
    let rest = twin.unwrap_or(symbol);
    let (base, generation) = match rest.rsplit_once("_v") {
        Some((base, n)) => (base, n.parse().expect("generation")),
        None => (rest, 1),
    };
    (base, generation, twin.is_some())
}

#[test]
fn every_exported_function_is_found_by_its_base_name() {
    workstation();
    let names = exported();
    assert!(names.len() > 250, "only {} symbols", names.len());
    for name in &names {
        assert!(name.starts_with("cu"), "{name} is exported");
        let (base, generation, twin) = parts(name);
        let newest = names
            .iter()
            .map(|n| parts(n))
            .filter(|p| p.0 == base && p.2 == twin)
            .map(|p| p.1)
            .max();
        // In CUDA 12 this name means the function with flags.
        if newest != Some(generation) || base == "cuGraphInstantiate" {
            continue;
        }
        let flags = if twin { 2 } else { 1 };
        let found = ask(base, 13_050, flags);
        assert_eq!(found, (0, address(name), 0), "{name} by {base}");
        // Without a twin, the plain function serves the per-thread stream, too.
        let has_twin = names.iter().any(|n| parts(n).0 == base && parts(n).2);
        if !has_twin {
            assert_eq!(ask(base, 13_050, 2), (0, address(name), 0), "{name}");
        }
    }
}

#[test]
fn versions_choose_among_generations() {
    workstation();
    for (name, version, symbol) in [
        ("cuCtxCreate", 13_000, "cuCtxCreate_v4"),
        ("cuCtxCreate", 12_040, "cuCtxCreate_v3"),
        ("cuCtxCreate", 11_030, "cuCtxCreate_v2"),
        ("cuMemAlloc", 12_080, "cuMemAlloc_v2"),
        ("cuDeviceGetUuid", 11_030, "cuDeviceGetUuid"),
        ("cuDeviceGetUuid", 11_040, "cuDeviceGetUuid_v2"),
        ("cuGetProcAddress", 11_080, "cuGetProcAddress"),
        ("cuGetProcAddress", 12_000, "cuGetProcAddress_v2"),
        ("cuMemPrefetchAsync", 8_000, "cuMemPrefetchAsync"),
    ] {
        let found = ask(name, version, 1);
        assert_eq!(found, (0, address(symbol), 0), "{name} {version}");
    }
    assert_eq!(ask("cuMemAlloc", 3_000, 0), (0, 0, 2), "too low");
    assert_eq!(ask("cuTexObjectCreate", 13_000, 0), (0, 0, 1), "absent");
    assert_eq!(
        ask("cuMemAlloc_v2", 13_000, 0),
        (0, 0, 1),
        "not a base name"
    );
    let newest = address("cuMemAlloc_v2");
    assert_eq!(
        ask("cuMemAlloc", 99_000, 0),
        (0, newest, 0),
        "newer than the driver"
    );
    assert_eq!(ask("cuMemAlloc", 13_000, 4).0, 1, "unknown flag");
    let twin = address("cuMemcpyHtoD_v2_ptds");
    assert_eq!(ask("cuMemcpyHtoD", 13_000, 2), (0, twin, 0));
    let plain = address("cuMemcpyHtoD_v2");
    assert_eq!(ask("cuMemcpyHtoD", 13_000, 1), (0, plain, 0));
    // A twin is newer than the function itself, and a program that asks for twins gets no plain function.
    assert_eq!(ask("cuMemcpyHtoD", 6_000, 2), (0, 0, 2));
    let name = c"cuTexObjectCreate";
    let mut p = 1u64;
    let code = cu!(cuGetProcAddress(name.as_ptr(), &raw mut p, 13_000i32, 0u64));
    assert_eq!((code, p), (500, 0));
}

#[test]
fn the_object_is_named_and_bound_like_the_real_one() {
    let bytes = std::fs::read(built()).expect("read");
    let text: &[u8] = b"libcuda.so.1\0";
    assert!(bytes.windows(text.len()).any(|w| w == text));
    // DT_SYMBOLIC or DF_SYMBOLIC in the dynamic section.
    let file = object::read::elf::ElfFile64::<object::Endianness>::parse(&bytes[..]).expect("elf");
    let endian = file.endian();
    let table = object::read::elf::FileHeader::sections(file.elf_header(), endian, &bytes[..]);
    let dynamic = table
        .expect("sections")
        .dynamic(endian, &bytes[..])
        .expect("dynamic");
    let (entries, _) = dynamic.expect("dynamic section");
    let symbolic = entries.iter().any(|e| {
        let (tag, value) = (e.d_tag.get(endian), e.d_val.get(endian));
        tag == 16 || (tag == 30 && value & 2 != 0)
    });
    assert!(symbolic, "not linked with -Bsymbolic");
}

#[test]
fn private_tables_are_not_there() {
    workstation();
    let id = [7u8; 16];
    let mut table = 5u64;
    assert_eq!(cu!(cuGetExportTable(&raw mut table, id.as_ptr())), 500);
    assert_eq!(table, 0);
    ok!(cuInit(0u32));
    assert_eq!(cu!(cuInit(1u32)), 1);
}
