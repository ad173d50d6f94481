//! Gives the shared object the name that CUDA programs look for.

fn main() {
    println!("cargo::rerun-if-changed=build.rs");
    println!("cargo::rustc-cdylib-link-arg=-Wl,-soname,libcuda.so.1");
    // As in the simulated driver: calls between its own functions never reach a proxy.
    println!("cargo::rustc-cdylib-link-arg=-Wl,-Bsymbolic");
}
