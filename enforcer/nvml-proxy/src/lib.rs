//! The proxy of libnvidia-ml: stands under its name in front of it inside a claim, so that
//! `nvidia-smi`, `nvitop`, `gpustat` and programs that ask NVML see the claim's GPUs in the claim's
//! order, its memory cap as the size of each, its charge as what is used, and its own processes.
//!
//! It hooks what differs and nothing else: every other name is answered by the driver's own library,
//! on which the proxy depends. A process in no claim, or whose service does not answer, runs through
//! it untouched. It writes nothing into the claim's pages.

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
