//! The `gshare` program: command line, service, demo and benchmarks. What decides is in `gshare-core`,
//! what enforces in `gshare-enforcer`, the screen in `gshare-ui`.
#![forbid(unsafe_code)]

pub mod bench;
pub mod cli;
pub mod daemon;
pub mod demo;
mod figures;
pub mod hidden;
mod identity;
pub mod kernel;
pub mod launcher;
pub mod monitor;
mod setup;
pub mod station;
