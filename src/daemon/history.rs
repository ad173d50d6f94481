//! The history: what was claimed and used, and why claims idled. Each look at the GPUs is added to a step of ten
//! seconds here; a thread of its own keeps the steps (see [`store`]) and answers questions about them.

pub(crate) mod answer;
mod ask;
#[cfg(test)]
#[path = "history/tests.rs"]
mod file_tests;
pub(crate) mod runs;
pub(crate) mod say;
mod sharing;
pub(crate) mod store;
mod stored;
pub(crate) mod sum;
pub(crate) mod vitals;
pub(crate) mod worker;

use gshare_proto::ClaimGpu;
use gshare_proto::ErrorCode;
use gshare_proto::WireError;
use std::collections::BTreeMap;
use std::time::Instant;

use gshare_core::ClaimId;
use gshare_proto::StoredPlace;
use gshare_proto::history::{HistorySpec, ReportSpec};

use store::{ClaimFace, Store};
use sum::{Cause, Collector, Sum};
use vitals::Vitals;
use worker::Worker;

/// What the service remembers for the history.
#[derive(Debug, Default)]
pub(crate) struct History {
    pub(super) collector: Collector,
    /// Open until the thread has it.
    pub(super) store: Option<Store>,
    pub(super) worker: Option<Worker>,
    pub(super) claims: BTreeMap<ClaimId, Kept>,
    pub(super) day: Option<BTreeMap<u32, Sum>>,
    pub(super) seen: Option<Instant>,
}

/// What is remembered of a claim.
#[derive(Debug, Default)]
pub(super) struct Kept {
    pub(super) sum: Sum,
    pub(super) vitals: Option<Vitals>,
    pub(super) cause: Cause,
    pub(super) face: ClaimFace,
    pub(super) held_back_ms: Option<u64>,
}

/// A question.
#[derive(Debug)]
pub(crate) enum Ask {
    /// Lines over time.
    History(HistorySpec),
    /// A report.
    Report(ReportSpec),
    /// What is stored about the one who asks, from a place on.
    Stored(Option<StoredPlace>),
}

/// A claim's parts of GPUs, as they are recorded.
pub(super) struct Seen {
    pub(super) id: ClaimId,
    pub(super) uid: u32,
    pub(super) parts: Vec<ClaimGpu>,
    pub(super) idle_s: Option<u64>,
    pub(super) held_back_ms: Option<u64>,
}

/// What is answered where the thread could not be started.
pub(crate) fn no_history() -> WireError {
    WireError::new(ErrorCode::NotAvailable, "this service keeps no history")
}
