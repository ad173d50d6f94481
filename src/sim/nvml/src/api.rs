//! The exported functions, by subject.

mod absent;
mod device;
mod events;
mod gpm;
mod identity;
mod limits;
mod memory;
mod mig;
mod processes;
mod system;
