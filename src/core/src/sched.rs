//! Scheduling: who gets what ([`fair`]), in which order and at whose cost ([`plan`]), and where ([`solve`]).

pub mod cluster;
pub mod fair;
pub mod plan;
pub mod replay;
pub mod sizes;
pub mod solve;
