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

// Layers, the lowest first: a file imports from its own and from those above it here, none in a circle
// (`tests/tidy.rs` of the workspace).

// What needs nothing of the proxy's own.
mod cuda;
mod exit;
mod forked;
mod held;
mod map;
mod mark;
mod paths;
mod say;
mod waiting;
// The driver.
mod capture;
mod driver;
mod events;
// What is charged, and the pages that say so.
mod blocks;
mod contexts;
mod gpu;
mod graphs;
mod grid;
mod ledger;
mod live;
mod pools;
mod reservation;
mod vmm;
// The process as a member.
mod enter;
mod environment;
mod join;
mod mps;
mod process;
mod work;
// Whose turn it is.
mod gate;
// What each function of the driver does here, and the functions themselves.
mod detach;
mod hooks;
pub mod table;
