//! The `gshare` program: command line and service; with the feature `lab` also demo, benchmarks and the simulated
//! workstation that they run on. What decides is in `gshare-core`,
//! what enforces in `gshare-enforcer`, the screen in `gshare-ui`.
#![forbid(unsafe_code)]

#[cfg(feature = "lab")]
pub mod bench;
pub mod cli;
mod clock;
pub mod command;
pub mod daemon;
#[cfg(feature = "lab")]
pub mod demo;
mod figures;
mod hash;
pub mod hidden;
mod identity;
pub mod kernel;
pub mod launcher;
pub mod monitor;
mod off;
mod plugin;
mod records;
pub mod release;
mod setup;
mod stage;
#[cfg(feature = "lab")]
pub mod station;
