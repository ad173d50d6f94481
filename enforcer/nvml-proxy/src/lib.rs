//! The proxy of libnvidia-ml: inside a claim it takes the library's name, so that `nvidia-smi`, `nvitop`, `gpustat` and
//! other users of NVML see the claim's GPUs in the claim's order, its memory cap as the size of each, its charge as
//! used memory, and only its own processes.
//!
//! It hooks only the functions whose answers differ: the driver's own library, on which the proxy depends, answers the
//! rest. Processes outside claims, or without an answer from the service, pass through unchanged. It writes nothing
//! into the claim's pages.

#![allow(
    unsafe_code,
    reason = "speaks NVML's C interface; every block states why it is sound"
)]

mod device;
mod driver;
mod hooks;
mod layout;
mod paths;
mod share;

pub use hooks::NAMES;
