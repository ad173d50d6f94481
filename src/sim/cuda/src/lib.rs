//! The simulated CUDA driver: a `libcuda.so.1` over a [`gshare_sim_board::Board`].
//!
//! It carries what programs of the driver API need for allocation, copies and kernel launches, with
//! the C ABI of `cuda.h`. Device memory is real memory of the process, so copies round-trip;
//! kernels given as PTX are interpreted, so their results are right; how long they take, what they
//! occupy and how much memory is left is decided by the board, which all processes share.
//!
//! Bytes move and kernels compute at the call that queues them. That is one of the orders that the
//! rules of streams allow, since whoever queues work has queued what it depends on before; *when*
//! work counts as finished, and so how long a wait takes, is the board's time. Only work that comes
//! after a host function of the program is put off until the function has returned (see `op`).
#![allow(unsafe_code, reason = "implements a C interface")]
#![allow(
    non_snake_case,
    reason = "the functions carry the names of the C interface"
)]

mod array;
mod attributes;
mod callback;
mod capture;
mod checkpoint;
mod code;
mod context;
mod copy;
mod device;
mod down;
mod driver;
mod elf;
mod event;
mod external;
mod fatbin;
mod ffi;
mod function;
mod graph;
mod heap;
mod host;
mod image;
mod ipc;
mod launch;
mod legacy;
mod library;
mod link;
mod memory;
mod misc;
mod module;
mod mps;
mod multicast;
mod names;
mod occupancy;
mod op;
mod pointer;
mod pool;
mod proc_address;
mod stream;
mod table;
mod visible;
mod vmm;
