//! Links the proxy of libcuda and lists the entry points that it passes to the driver.

use std::{env, fs, path::PathBuf};

mod link;

/// Every name of the driver; the last column tells how it is passed on, or that it has a hook.
const ENTRIES: &str = "table/entries.tsv";

fn main() {
    link::as_proxy("libcuda.so.1");
    println!("cargo::rerun-if-changed={ENTRIES}");
    let entries = fs::read_to_string(ENTRIES).expect("the list of names");
    let rows = entries.lines().filter(|line| !line.starts_with('#'));
    let passed: String = rows
        .filter_map(|row| Some((row.split_once('\t')?.0, row.rsplit_once('\t')?.1)))
        .filter(|(_, way)| *way != "hook")
        .map(|(name, way)| format!("    {way} {name}\n"))
        .collect();
    let out = PathBuf::from(env::var_os("OUT_DIR").expect("cargo sets OUT_DIR"));
    fs::write(out.join("passed.rs"), format!("passed! {{\n{passed}}}\n"))
        .expect("OUT_DIR is writable");
}
