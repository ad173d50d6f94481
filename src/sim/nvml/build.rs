//! Gives the shared object the name that NVML clients look for.

fn main() {
    println!("cargo::rerun-if-changed=build.rs");
    println!("cargo::rustc-cdylib-link-arg=-Wl,-soname,libnvidia-ml.so.1");
    // Calls between the library's own functions must not reach another library's functions of the same names.
    println!("cargo::rustc-cdylib-link-arg=-Wl,-Bsymbolic");
}
