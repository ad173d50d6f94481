//! The claims: those that are granted, those that wait, what connections have asked and is answered later, and what is
//! remembered of those who wait.

use std::collections::{BTreeMap, BTreeSet};
use std::ops::{Deref, DerefMut};
use std::time::Duration;

use gshare_core::machine::{Event, Kept, Memory, Now};
use gshare_core::{Bytes, Change, ClaimId, Request};
use gshare_enforcer::cgroup::ClaimCgroup;
use gshare_enforcer::proc::ProcessKey;

use super::connection::{ConnId, Sender};
use super::journal::ClaimRecord;
use super::live::Live;
use super::peer::Peer;
use gshare_abi::wire::Answer;
use gshare_proto::ErrorCode;
use gshare_proto::WireError;

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

/// A process that is about to become a claim.
#[derive(Debug)]
pub(crate) struct Adoption {
    pub(super) asked: Asked,
    pub(super) process: ProcessKey,
    pub(super) held: Vec<(usize, Bytes)>,
    /// The name of the caller, if that is not its owner.
    pub(super) by: Option<String>,
}

impl Adoption {
    /// The claim with its number, and what the core hears.
    pub(crate) fn numbered(&mut self, id: ClaimId) -> (Asked, Event) {
        self.asked.record.id = id.0;
        let request = self.asked.request.clone();
        let held = std::mem::take(&mut self.held);
        (self.asked.clone(), Event::Adopt { id, request, held })
    }
}

/// A claim that is to be guaranteed no more than it uses.
#[derive(Debug)]
pub(crate) struct Shrink {
    pub(super) id: ClaimId,
    /// Bytes before.
    pub(super) asked: u64,
    pub(super) change: Change,
    /// What undoes it.
    pub(super) back: Change,
    pub(super) before: String,
}

impl Shrink {
    /// For the core.
    pub(crate) fn event(&self, ticket: u64) -> Event {
        Event::Resize {
            ticket,
            id: self.id,
            change: self.change,
            patience: Some(Duration::ZERO),
        }
    }
}

/// Those who wait for the GPU of a claim get nothing now, and may ask again.
pub(crate) fn refuse_wanting(claims: &mut Claims, id: ClaimId, error: &WireError) {
    let Some(live) = claims.get_mut(&id) else {
        return;
    };
    live.told_wait = None;
    let mut message = error.message.clone();
    if let Some(hint) = &error.hint {
        message = format!("{message}; {hint}");
    }
    if error.code == ErrorCode::NotAvailable {
        message = format!(
            "{id} gets no GPU now: {message}; this call fails with CUDA_ERROR_NO_DEVICE, the next one asks again"
        );
    }
    if error.code == ErrorCode::Usage {
        message = format!(
            "{id} cannot get a GPU here: {message}; CUDA calls fail with CUDA_ERROR_NO_DEVICE"
        );
    }
    let answer = Answer::Refused {
        code: "not_available".to_owned(),
        message,
    };
    for wanting in std::mem::take(&mut live.wanting) {
        wanting.out.member(&answer);
    }
}
