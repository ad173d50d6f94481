//! Tells the program whether it is built without optimization: its costs are then not those of an installed one. Orders
//! the code of the one that is installed.

use std::path::Path;

fn main() {
    println!("cargo::rerun-if-changed=build.rs");
    println!("cargo::rerun-if-changed=packaging/order.ld");
    println!("cargo::rustc-check-cfg=cfg(unoptimized)");
    let level = std::env::var("OPT_LEVEL");
    if level.as_deref() == Ok("0") {
        println!("cargo::rustc-cfg=unoptimized");
    }
    // Profile `dist`.
    if level.as_deref() == Ok("z") {
        let order = Path::new(env!("CARGO_MANIFEST_DIR")).join("packaging/order.ld");
        println!("cargo::rustc-link-arg-bins=-Wl,-T,{}", order.display());
    }
}
