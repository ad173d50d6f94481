//! Runs PTX on the CPU: a parser and an interpreter for the part of PTX that Numba and NVRTC emit for plain kernels.
//!
//! The simulated driver passes a kernel's text to [`Module::link`], binds the module's variables to device addresses
//! and calls [`Module::launch`]; [`DeviceMemory`] gives access to memory. Results are exact where IEEE 754 and the PTX
//! manual define them; the `approx` instructions give the correctly rounded value, which is inside their documented
//! error. Subnormal numbers are never flushed to zero.
//!
//! Half precision, carries, textures, matrices, calls through pointers and recursion are not supported: a thread that
//! reaches such an instruction traps.

#![forbid(unsafe_code)]

mod alu;
mod code;
mod error;
mod lexer;
mod lower;
mod module;
mod run;
mod text;

pub use error::{MemFault, PtxError, Trap};
pub use module::{DeviceMemory, GlobalInfo, KernelInfo, LaunchConfig, Module};
