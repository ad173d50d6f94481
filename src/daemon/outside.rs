//! What is known of use outside claims and beyond them: accounts of programs without a claim, the filter that keeps such
//! programs from GPUs, limits that the driver enforces, and claims in over-use. What is done is decided in `policy/`.

mod auto;
mod denial;
mod limits;
mod overuse;

use std::collections::BTreeSet;

pub(crate) use auto::{AutoClaim, Autos, Change, Seen};
pub(crate) use denial::{Denial, NoEffect, Places, Wanted};
pub(crate) use limits::{Limit, MemoryLimits, PATIENCE};
pub(crate) use overuse::{Counted, Overuse};

/// What is remembered from one look to the next.
#[derive(Debug, Default)]
pub(crate) struct Policy {
    /// Looks at the driver so far.
    pub(crate) looks: u64,
    /// Claims that use more than they are counted.
    pub(crate) over: Overuse,
    /// Processes outside claims that are accounted as claims of their own.
    pub(crate) auto: Autos,
    /// The filter that keeps programs outside claims from GPUs.
    pub(crate) denial: Denial,
    /// Limits on memory that the driver itself enforces.
    pub(crate) limits: MemoryLimits,
    /// gshare's own processes besides the service, which are nobody's use: they and their descendants.
    pub(crate) own: BTreeSet<i32>,
}
