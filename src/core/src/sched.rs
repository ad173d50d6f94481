//! What the machine decides with: who is guaranteed how much ([`fair`]), and where claims go ([`solve`]).

pub mod fair;
pub mod solve;
