//! The claims: those that are granted, those that wait, what connections have asked and is answered later, and what is
//! remembered of those who wait.

use std::collections::{BTreeMap, BTreeSet};
use std::ops::{Deref, DerefMut};

use gshare_core::machine::{Kept, Memory, Now};
use gshare_core::{ClaimId, Request};
use gshare_enforcer::cgroup::ClaimCgroup;

use super::connection::{ConnId, Sender};
use super::journal::ClaimRecord;
use super::live::Live;
use super::peer::Peer;

/// All of them: as a map, those that are granted.
#[derive(Debug, Default)]
pub(crate) struct Claims {
    granted: BTreeMap<ClaimId, Live>,
    pub(crate) waiting: BTreeMap<ClaimId, Asked>,
    pub(crate) wishes: Wishes,
    pub(crate) remembered: Remembered,
    /// Cgroups of ended claims whose processes live on without a GPU.
    pub(crate) lingering: Vec<ClaimCgroup>,
}

impl Deref for Claims {
    type Target = BTreeMap<ClaimId, Live>;

    fn deref(&self) -> &Self::Target {
        &self.granted
    }
}

impl DerefMut for Claims {
    fn deref_mut(&mut self) -> &mut Self::Target {
        &mut self.granted
    }
}

/// One waiting claim: what the connection that waits for it needs.
#[derive(Clone, Debug)]
pub(crate) struct Asked {
    pub(crate) peer: Peer,
    pub(crate) out: Sender,
    pub(crate) record: ClaimRecord,
    pub(crate) since_ms: u64,
    pub(crate) request: Request,
    /// The client knows its number.
    pub(crate) told: bool,
}

/// Resizes that are asked for and not answered yet.
#[derive(Debug, Default)]
pub(crate) struct Wishes {
    pub(super) next: u64,
    pub(super) open: BTreeMap<u64, Wish>,
}

impl Wishes {
    /// A number for a resize.
    pub(crate) fn ticket(&mut self) -> u64 {
        self.next += 1;
        self.next
    }
}

/// A resize that is asked for.
#[derive(Debug)]
pub(crate) struct Wish {
    pub(super) id: ClaimId,
    pub(super) conn: ConnId,
    pub(super) uid: u32,
    pub(super) out: Sender,
}

/// What was written down, and who of those in it is not back yet.
#[derive(Debug, Default)]
pub(crate) struct Remembered {
    /// What was written down last, without what grows by itself, and the places of those who wait by number.
    pub(super) written: Memory,
    pub(super) places: BTreeMap<ClaimId, Kept>,
    /// The claims that wait, by the journal.
    pub(super) waiting: BTreeSet<ClaimId>,
    pub(super) at: Now,
    /// Those who waited when the service before this one ended, with the time since when.
    pub(super) absent: BTreeMap<ClaimId, (ClaimRecord, u64)>,
    /// The journal had something.
    pub(super) found: bool,
    /// It has been read: only then is it written anew.
    pub(super) read: bool,
}
