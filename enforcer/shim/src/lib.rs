//! The proxy of libcuda: takes the driver's name inside every member of a claim, and keeps the claim's memory ledger.
//!
//! It hooks the functions in [`table`] and passes every other entry point through a trampoline; the real driver, on
//! which the proxy depends, answers names younger than its table. A process outside claims, or without an answer from
//! the service, passes through unchanged, unless the library was staged as strict: then it has no GPU.
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

// Layers, the lowest first: a file imports only from its own layer and those above it here, without cycles
// (`tests/tidy.rs` of the workspace).

// Modules that need none of the others.
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
// Charges, and the pages that hold them.
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
// Turns.
mod gate;
// The hooks, by function of the driver.
mod detach;
mod hooks;
pub mod table;
