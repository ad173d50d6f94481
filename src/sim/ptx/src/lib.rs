//! Runs PTX on the CPU: a parser and an interpreter for what Numba and NVRTC emit.
//!
//! The simulated driver gives a kernel's text to [`Module::parse`], binds the module's variables
//! to device addresses and calls [`Module::launch`]; memory is reached through [`DeviceMemory`].
//! Results are exact where IEEE 754 and the PTX manual define them; the `approx` instructions give
//! the correctly rounded value, which is inside their documented error.

#![forbid(unsafe_code)]

mod alu;
mod error;
mod exec;
mod float;
mod ir;
mod lexer;
mod memory;
mod module;
mod parse;
mod types;

pub use error::{MemFault, PtxError, Trap};
pub use memory::DeviceMemory;
pub use module::{GlobalInfo, KernelInfo, LaunchConfig, LaunchStats, Module, Param, Space};
