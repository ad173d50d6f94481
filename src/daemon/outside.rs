//! State about use without a claim and above claims: accounts of programs without a claim, the filter that keeps them
//! from GPUs, limits enforced by the driver, and claims in over-use. `policy/` decides what to do.

mod auto;
mod denial;
mod limits;
mod overuse;

use std::collections::BTreeSet;

pub(crate) use auto::{AutoClaim, Autos, Change, Seen};
pub(crate) use denial::{Denial, NoEffect, Places, Wanted};
pub(crate) use limits::{Limit, MemoryLimits, PATIENCE};
pub(crate) use overuse::{Counted, Overuse};

/// State between two looks.
#[derive(Debug, Default)]
pub(crate) struct Policy {
    /// Number of looks at the driver.
    pub(crate) looks: u64,
    /// Claims with more use than their library counts.
    pub(crate) over: Overuse,
    /// Processes without a claim that are accounted as claims of their own.
    pub(crate) auto: Autos,
    /// The filter that keeps programs without a claim from GPUs.
    pub(crate) denial: Denial,
    /// Memory limits that the driver itself enforces.
    pub(crate) limits: MemoryLimits,
    /// gshare's own processes besides the service, which with their descendants count for no user.
    pub(crate) own: BTreeSet<i32>,
}
