//! Gives the shared object the name that CUDA programs look for.

fn main() {
    println!("cargo::rerun-if-changed=build.rs");
    println!("cargo::rustc-cdylib-link-arg=-Wl,-soname,libcuda.so.1");
    // Calls between the driver's own functions must not reach a proxy's functions of the same names.
    println!("cargo::rustc-cdylib-link-arg=-Wl,-Bsymbolic");
    // Handlers and threads of this object outlive a dlclose.
    println!("cargo::rustc-cdylib-link-arg=-Wl,-z,nodelete");
}
