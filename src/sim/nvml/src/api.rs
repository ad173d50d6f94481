//! The exported functions, by subject.

mod absent;
mod device;
mod events;
mod gpm;
mod identity;
mod limits;
mod memory;
mod processes;
mod system;
