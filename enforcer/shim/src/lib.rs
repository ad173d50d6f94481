//! The proxy of libcuda: stands under the driver's name in front of it inside every member of a
//! claim, and keeps the claim's memory ledger.
//!
//! It hooks what it must see (the rows of [`table`]) and passes every other entry point of the
//! driver through a trampoline; names younger than its table are answered by the real driver through
//! the proxy's dependency on it. A process that is in no claim, or whose service
//! does not answer, runs through it untouched, unless the library was staged as strict: then it has no GPU.
//!
//! Invariants:
//! * memory is charged before the driver is asked for it and given back after the driver has it
//!   back, so the charges never lie below the driver's use of what is hooked;
//! * no lock of the proxy is held across a call of the driver;
//! * a launch takes no lock, makes no system call and allocates nothing;
//! * nothing panics into the program, no umask or other state of the whole process is touched. Exceptions: the handler
//!   of SIGINT while a call waits for its GPU, and the variables by which the driver knows a client of MPS or an
//!   instance (see `environment`).

#![allow(
    unsafe_code,
    reason = "speaks the driver's C interface; every block states why it is sound"
)]

mod blocks;
mod capture;
mod contexts;
mod cuda;
mod detach;
mod driver;
mod enter;
mod environment;
mod events;
mod exit;
mod forked;
mod gate;
mod gpu;
mod graphs;
mod held;
mod hooks;
mod join;
mod ledger;
mod live;
mod map;
mod mark;
mod mps;
mod paths;
mod pools;
mod process;
mod say;
#[macro_use]
mod trampoline;
pub mod table;
mod vmm;
mod waiting;
mod work;
