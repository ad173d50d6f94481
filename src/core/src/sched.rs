//! Decisions of the machine: what each party is guaranteed ([`fair`]), and where claims go ([`solve`]).

pub mod fair;
pub mod solve;
