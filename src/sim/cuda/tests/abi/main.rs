//! The shared object as a C program uses it: loaded with dlopen, called through its symbols.
#![allow(unsafe_code, reason = "calls a C interface")]

mod children;
mod graphs;
mod kernels;
mod lookup;
mod memory;
mod support;
mod time;
