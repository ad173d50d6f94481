//! The simulated CUDA driver: a `libcuda.so.1` over a [`gshare_sim_board::Board`].
//!
//! It supports what programs of the driver API need for allocation, copies and kernel launches, with the C ABI of
//! `cuda.h`. Device memory is real memory of the process, so copies round-trip. Kernels given as PTX are interpreted,
//! so their results are right. The board, which all processes share, decides how long they take, what they occupy and
//! how much memory is left.
//!
//! Bytes move and kernels compute at the call that queues them. The rules of streams allow this order, as a program
//! queues dependencies first. The board's time decides *when* work counts as finished, and so how long a wait takes.
//! Only work after a host function of the program is postponed until the function has returned (see `op`).
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
mod green;
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
mod value;
mod visible;
mod vmm;
