//! The live machine in virtual time: lists of claims are played into [`crate::Machine`] with the events that the service
//! sends, its actions are answered as the service answers them, and what comes of it is counted. No files, no clock.
//!
//! What stands beside it for comparison (strict order, a fixed part for everybody, backfill) is in [`simple`].

pub mod cases;
pub mod cluster;
pub mod desk;
pub mod figures;
pub mod gaming;
pub mod ideal;
pub mod list;
pub mod nodes;
pub mod player;
pub mod policy;
pub mod recording;
pub mod simple;
pub mod sizes;

pub use figures::{Figures, Outcome, Played};
pub use list::Entry;
pub use player::{Setup, play};
pub use policy::{POLICIES, Policy};

use crate::units::Bytes;

/// Seconds that it takes to bring a claim's memory to the host, or back.
#[must_use]
pub fn carry_s(mem: Bytes) -> f64 {
    crate::machine::carry(mem).as_secs_f64()
}

#[cfg(test)]
mod tests;
