//! Links a library as a proxy: it has the name of the library behind it, and depends on a library with a name of 255
//! bytes that staging overwrites with the path of the real one.

use std::{env, fs, path::PathBuf, process::Command};

/// Maximum path length of the real driver, in bytes. The staging code searches for the same text.
const PLACEHOLDER_BYTES: usize = 255;
const PLACEHOLDER_START: &str = "/gshare-real-libcuda-placeholder";

/// For the build script of a proxy named `soname`.
pub(crate) fn as_proxy(soname: &str) {
    println!("cargo::rerun-if-changed=build.rs");
    println!("cargo::rerun-if-changed=../shim/link.rs");
    let out = PathBuf::from(env::var_os("OUT_DIR").expect("cargo sets OUT_DIR"));
    let placeholder = format!("{PLACEHOLDER_START:/<PLACEHOLDER_BYTES$}");
    let source = out.join("placeholder.c");
    let stub = out.join("libgshare_placeholder.so");
    fs::write(&source, "").expect("OUT_DIR is writable");
    let linker = env::var_os("RUSTC_LINKER").unwrap_or_else(|| "cc".into());
    let status = Command::new(&linker)
        .args(["-shared", "-nostdlib", "-fPIC"])
        .arg(format!("-Wl,-soname,{placeholder}"))
        .arg("-o")
        .arg(&stub)
        .arg(&source)
        .status()
        .unwrap_or_else(|error| panic!("cannot run {}: {error}", linker.display()));
    assert!(status.success(), "the placeholder library did not link");
    for argument in [
        format!("-Wl,-soname,{soname}").as_str(),
        // Otherwise calls of the driver to its exported functions could reach the proxy, and vice versa.
        "-Wl,-Bsymbolic",
        "-Wl,--no-as-needed",
        // The proxy must not be unloaded while the driver stays.
        "-Wl,-z,nodelete",
    ] {
        println!("cargo::rustc-cdylib-link-arg={argument}");
    }
    println!("cargo::rustc-cdylib-link-arg={}", stub.display());
}
