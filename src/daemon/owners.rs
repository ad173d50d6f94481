//! The owners of processes on the GPUs.

use std::collections::{BTreeMap, HashMap, HashSet};

use gshare_core::ClaimId;
use gshare_enforcer::proc::ProcessKey;

/// The owner of a process on a GPU.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Whose {
    /// A member.
    Claim(ClaimId),
    /// A process outside claims.
    Outside,
    /// It ended after the driver was asked: its memory is on its way back and counts for nobody.
    Gone,
}

/// The owners of the last sample's processes.
#[derive(Debug, Default)]
pub(crate) struct Owners {
    pub(super) of: HashMap<i32, Whose>,
    /// Those of each claim.
    pub(super) by_claim: BTreeMap<ClaimId, Vec<i32>>,
    /// The living ones for good.
    pub(super) keys: HashMap<i32, ProcessKey>,
    /// Watched processes that ended since.
    pub(super) ended: HashSet<i32>,
    /// Looks until everybody is looked up again; 0 also when somebody may have been moved.
    pub(super) trusted: u32,
}

impl Owners {
    /// Whose a process of the newest look is, by which claims live.
    pub(super) fn whose(&self, pid: i32, lives: impl Fn(&ClaimId) -> bool) -> Whose {
        match self.of.get(&pid) {
            _ if self.ended.contains(&pid) => Whose::Gone,
            // What a claim that has ended held is back.
            Some(Whose::Claim(id)) if !lives(id) => Whose::Gone,
            whose => whose.copied().unwrap_or(Whose::Outside),
        }
    }

    /// A process of the newest sample for good, if it lived.
    pub(crate) fn key(&self, pid: i32) -> Option<ProcessKey> {
        self.keys.get(&pid).copied()
    }
}
