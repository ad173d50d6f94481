//! Jupyter kernels in claims: kernelspecs that start a kernel through `gshare kernel exec`.
//!
//! A kernelspec is a directory with a `kernel.json` (<https://jupyter-client.readthedocs.io/en/stable/kernels.html>).
//! gshare makes a copy of one, with the same files, whose command is gshare's with the kernel's own behind it.
//! Everything else that the file says (language, interrupts, debugger, environment) stays as it was.

pub mod helper;
pub mod install;
pub mod places;
pub mod seen;
pub mod servers;
pub mod spec;
mod web;
