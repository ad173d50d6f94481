//! The owners of processes on the GPUs.

use std::collections::{BTreeMap, HashMap, HashSet};

use gshare_core::ClaimId;
use gshare_enforcer::proc::ProcessKey;

/// Owner of a process on a GPU.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Whose {
    /// A member.
    Claim(ClaimId),
    /// A process without a claim.
    Outside,
    /// It ended after the driver was asked: its memory is being freed and counts for no user.
    Gone,
}

/// Owners of the processes in the last sample.
#[derive(Debug, Default)]
pub(crate) struct Owners {
    pub(super) of: HashMap<i32, Whose>,
    /// Processes of each claim.
    pub(super) by_claim: BTreeMap<ClaimId, Vec<i32>>,
    /// Identities of the living ones.
    pub(super) keys: HashMap<i32, ProcessKey>,
    /// Watched processes that ended since then.
    pub(super) ended: HashSet<i32>,
    /// Looks until all owners are looked up again; 0 if a process may have been moved.
    pub(super) trusted: u32,
}

impl Owners {
    /// Owner of a process in the newest look, given which claims live.
    pub(super) fn whose(&self, pid: i32, lives: impl Fn(&ClaimId) -> bool) -> Whose {
        match self.of.get(&pid) {
            _ if self.ended.contains(&pid) => Whose::Gone,
            // The memory of an ended claim is free again.
            Some(Whose::Claim(id)) if !lives(id) => Whose::Gone,
            whose => whose.copied().unwrap_or(Whose::Outside),
        }
    }

    /// Identity of a process in the newest sample, if it lived.
    pub(crate) fn key(&self, pid: i32) -> Option<ProcessKey> {
        self.keys.get(&pid).copied()
    }
}
