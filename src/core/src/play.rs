//! Simulates the live machine in virtual time: plays lists of claims into [`crate::Machine`] with the events that the
//! service sends, answers actions as the service does, and collects figures. No files, no clock.
//!
//! Policies for comparison (strict order, fixed parts, backfill) are in [`simple`].

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

/// Seconds to copy a claim's memory to the host, or back.
#[must_use]
pub fn carry_s(mem: Bytes) -> f64 {
    crate::machine::carry(mem).as_secs_f64()
}

#[cfg(test)]
mod tests;
