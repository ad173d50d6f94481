//! The claims: granted and waiting ones, requests that are answered later, and what is remembered of waiting claims.

use std::collections::{BTreeMap, BTreeSet};
use std::ops::{Deref, DerefMut};
use std::time::{Duration, Instant};

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

/// All claims; as a map, the granted ones.
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

/// A waiting claim, with what its connection needs.
#[derive(Clone, Debug)]
pub(crate) struct Asked {
    pub(crate) peer: Peer,
    pub(crate) out: Sender,
    pub(crate) record: ClaimRecord,
    pub(crate) since_ms: u64,
    pub(crate) request: Request,
    /// The client knows the claim's number.
    pub(crate) told: bool,
    /// Since when its callers know their place without an expected start.
    pub(crate) told_no_start: Option<Instant>,
}

/// Resize requests without an answer yet.
#[derive(Debug, Default)]
pub(crate) struct Wishes {
    pub(super) next: u64,
    pub(super) open: BTreeMap<u64, Wish>,
}

impl Wishes {
    /// A new number for a resize request.
    pub(crate) fn ticket(&mut self) -> u64 {
        self.next += 1;
        self.next
    }
}

/// A resize request.
#[derive(Debug)]
pub(crate) struct Wish {
    pub(super) id: ClaimId,
    pub(super) conn: ConnId,
    pub(super) uid: u32,
    pub(super) out: Sender,
}

/// The saved queue, and the waiting claims whose clients have not come back.
#[derive(Debug, Default)]
pub(crate) struct Remembered {
    /// The last saved state without values that grow by themselves, and the places of waiting claims by number.
    pub(super) written: Memory,
    pub(super) places: BTreeMap<ClaimId, Kept>,
    /// Waiting claims in the journal.
    pub(super) waiting: BTreeSet<ClaimId>,
    pub(super) at: Now,
    /// Claims that waited when the previous service ended, with the time since when.
    pub(super) absent: BTreeMap<ClaimId, (ClaimRecord, u64)>,
    /// The journal had a saved state.
    pub(super) found: bool,
    /// The saved state has been read; it is written only after that.
    pub(super) read: bool,
}

/// A process that is being adopted as a claim.
#[derive(Debug)]
pub(crate) struct Adoption {
    pub(super) asked: Asked,
    pub(super) process: ProcessKey,
    pub(super) held: Vec<(usize, Bytes)>,
    /// Name of the caller, if another user than the owner.
    pub(super) by: Option<String>,
}

impl Adoption {
    /// Gives the claim its number, and the event for the core.
    pub(crate) fn numbered(&mut self, id: ClaimId) -> (Asked, Event) {
        self.asked.record.id = id.0;
        let request = self.asked.request.clone();
        let held = std::mem::take(&mut self.held);
        (self.asked.clone(), Event::Adopt { id, request, held })
    }
}

/// A claim whose size is reduced to its use.
#[derive(Debug)]
pub(crate) struct Shrink {
    pub(super) id: ClaimId,
    /// Bytes before.
    pub(super) asked: u64,
    pub(super) change: Change,
    /// The change that undoes it.
    pub(super) back: Change,
    pub(super) before: String,
}

impl Shrink {
    /// The event for the core.
    pub(crate) fn event(&self, ticket: u64) -> Event {
        Event::Resize {
            ticket,
            id: self.id,
            change: self.change,
            patience: Some(Duration::ZERO),
        }
    }
}

/// Refuses the processes that wait for the GPU of a claim; they may ask again.
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
