//! Checks the table of entry points against the library, the headers and itself.

#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

use std::{
    collections::BTreeSet,
    path::{Path, PathBuf},
    process::Command,
};

use gshare_shim::table;
use object::{Object, ObjectSymbol};

/// Name, family, parameters of every entry point in the headers.
fn entries() -> Vec<(&'static str, &'static str, &'static str)> {
    include_str!("../table/entries.tsv")
        .lines()
        .filter(|line| !line.starts_with('#'))
        .map(|line| {
            let fields: Vec<&str> = line.split('\t').collect();
            (fields[0], fields[1], fields[3])
        })
        .collect()
}

fn set(names: impl IntoIterator<Item = &'static str>) -> BTreeSet<&'static str> {
    names.into_iter().collect()
}

#[test]
fn every_entry_point_of_the_headers_has_a_hook_or_a_trampoline_and_not_both() {
    let hooked = set(table::NAMES.iter().copied());
    let passed = set(table::passed::NAMES.iter().copied());
    assert_eq!(hooked.len(), table::NAMES.len(), "no hook twice");
    assert_eq!(
        passed.len(),
        table::passed::NAMES.len(),
        "no trampoline twice"
    );
    assert_eq!(hooked.intersection(&passed).count(), 0);
    let known = set(entries().iter().map(|entry| entry.0));
    assert!(known.len() > 700, "{}", known.len());
    assert_eq!(&hooked | &passed, known);
}

#[test]
fn the_library_exports_the_table_and_nothing_else_of_the_drivers() {
    let file = object::File::parse(gshare_artifacts::SHIM).unwrap();
    let defined: BTreeSet<String> = file
        .dynamic_symbols()
        .filter(|symbol| symbol.is_definition() && symbol.is_global())
        .filter_map(|symbol| Some(symbol.name().ok()?.to_owned()))
        .collect();
    let exported: BTreeSet<&str> = defined
        .iter()
        .map(String::as_str)
        .filter(|name| name.starts_with("cu"))
        .collect();
    let table = set(table::NAMES.iter().chain(table::passed::NAMES).copied());
    assert_eq!(exported, table);
    // Nor names of the C library: they would replace the program's own.
    let others: Vec<&String> = defined
        .iter()
        .filter(|name| !name.starts_with("cu"))
        .collect();
    assert_eq!(others, Vec::<&String>::new());
}

/// Entries that allocate or launch by their name and have no hook all the same.
const KNOWN_WITHOUT_HOOK: [&str; 3] = [
    // Takes no memory before the graph is launched.
    "cuGraphAddMemAllocNode",
    // Host memory.
    "cuMemFreeHost",
    // Long gone from drivers; makes a context that `cuCtxGetDevice` locates.
    "cuGLCtxCreate",
];

#[test]
fn nothing_that_allocates_or_launches_lacks_a_hook() {
    let hooked = set(table::NAMES.iter().copied());
    let lacking: Vec<&str> = entries()
        .into_iter()
        .filter(|(_, family, _)| ["memory", "launch", "context", "view"].contains(family))
        .map(|entry| entry.0)
        .filter(|name| !hooked.contains(name))
        .collect();
    let expected: Vec<&str> = lacking
        .iter()
        .copied()
        .filter(|name| {
            KNOWN_WITHOUT_HOOK
                .iter()
                .any(|known| name.trim_end_matches("_v2") == *known)
        })
        .collect();
    assert_eq!(lacking, expected, "these need a hook in src/table.rs");
}

#[test]
fn every_version_and_twin_of_a_hooked_name_is_hooked() {
    let stem = |name: &'static str| {
        let name = name.trim_end_matches("_ptsz").trim_end_matches("_ptds");
        match name.rsplit_once("_v") {
            Some((stem, version)) if version.parse::<u32>().is_ok() => stem,
            _ => name,
        }
    };
    let stems = set(table::NAMES.iter().map(|name| stem(name)));
    let open: Vec<&str> = table::passed::NAMES
        .iter()
        .copied()
        .filter(|name| stems.contains(stem(name)))
        .collect();
    assert_eq!(open, Vec::<&str>::new());
}

#[test]
fn hooks_take_as_many_arguments_as_the_headers_say() {
    for (name, arguments) in table::arguments() {
        let entries = entries();
        let (.., parameters) = entries.iter().find(|entry| entry.0 == name).unwrap();
        let declared = match *parameters {
            "void" | "" => 0,
            list => list.split(',').count(),
        };
        assert_eq!(arguments, declared, "{name}({parameters})");
    }
}

fn generate(arguments: &[&str]) -> Option<(bool, String)> {
    let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("table/generate.py");
    let output = Command::new("python3").arg(script).args(arguments).output();
    let Ok(output) = output else {
        println!("skipped: no python3 to run generate.py");
        return None;
    };
    let said = String::from_utf8_lossy(&output.stdout).into_owned()
        + &String::from_utf8_lossy(&output.stderr);
    Some((output.status.success(), said))
}

#[test]
fn the_generated_files_are_what_the_script_makes_of_the_table() {
    if let Some((same, said)) = generate(&["--check"]) {
        assert!(same, "{said}run enforcer/shim/table/generate.py");
    }
}

/// The newest headers that the table was made for, where CI put them.
fn fetched_headers() -> Option<PathBuf> {
    let target = Path::new(env!("CARGO_TARGET_TMPDIR")).parent().unwrap();
    let found = target.join("nvidia-python/cuda-13/nvidia/cu13/include");
    found.is_dir().then_some(found)
}

#[test]
fn the_newest_headers_have_nothing_that_the_table_lacks() {
    let Some(headers) = fetched_headers() else {
        println!("skipped: the CUDA headers are not there (.ci/drivers fetches them)");
        return;
    };
    if let Some((ran, said)) = generate(&["--missing", headers.to_str().unwrap()]) {
        assert!(ran && said.is_empty(), "the table lacks:\n{said}");
    }
}

#[test]
fn a_newer_header_brings_nothing_that_allocates_unseen() {
    let Ok(headers) = std::env::var("GSHARE_CUDA_HEADERS") else {
        println!("skipped: GSHARE_CUDA_HEADERS names no directory with a newer cuda.h");
        return;
    };
    let Some((ran, said)) = generate(&["--missing", &headers]) else {
        return;
    };
    assert!(ran, "{said}");
    println!("entry points younger than the table:\n{said}");
    let unseen: Vec<&str> = said
        .lines()
        .filter(|line| {
            let family = line.split('\t').nth(1);
            family.is_some_and(|family| ["memory", "launch", "context"].contains(&family))
        })
        .collect();
    assert!(unseen.is_empty(), "these need a hook: {unseen:#?}");
}
