//! A `libcuda.so.1` that does nothing, and calls into it. The cost of a proxy is measured best in front of a driver
//! that costs nothing.
//!
//! [`Calls`] loads the library or a proxy in front of it, and makes single calls for a benchmark to time.
#![allow(
    unsafe_code,
    reason = "implements a C interface and calls it; every block states why it is sound"
)]

mod calls;
mod driver;

pub use calls::{Calls, LoadError};
pub use driver::{DEVICES, TOTAL_BYTES, uuid};
