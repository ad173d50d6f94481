//! A `libcuda.so.1` that does nothing, and the calls into it: what a proxy in front of a driver costs
//! is measured best where the driver itself costs nothing.
//!
//! [`Calls`] loads the library, or a proxy before it, and makes single calls that a benchmark times.
#![allow(
    unsafe_code,
    reason = "implements a C interface and calls it; every block states why it is sound"
)]

mod calls;
mod driver;

pub use calls::{Calls, LoadError};
pub use driver::{DEVICES, TOTAL_BYTES, uuid};
