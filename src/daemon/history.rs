//! The history: claimed and used amounts, and causes of idleness. Each look at the GPUs is added to a ten-second step
//! here; a thread keeps the steps (see [`store`]) and answers queries.

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

/// State of the history in the service.
#[derive(Debug, Default)]
pub(crate) struct History {
    pub(super) collector: Collector,
    /// Open until the thread takes it.
    pub(super) store: Option<Store>,
    pub(super) worker: Option<Worker>,
    pub(super) claims: BTreeMap<ClaimId, Kept>,
    pub(super) day: Option<BTreeMap<u32, Sum>>,
    pub(super) seen: Option<Instant>,
}

/// State of a claim.
#[derive(Debug, Default)]
pub(super) struct Kept {
    pub(super) sum: Sum,
    pub(super) vitals: Option<Vitals>,
    pub(super) cause: Cause,
    pub(super) face: ClaimFace,
    pub(super) held_back_ms: Option<u64>,
}

/// A query.
#[derive(Debug)]
pub(crate) enum Ask {
    /// Lines over time.
    History(HistorySpec),
    Report(ReportSpec),
    /// Data stored about the caller, from a position on.
    Stored(Option<StoredPlace>),
}

/// A claim's recorded parts of GPUs.
pub(super) struct Seen {
    pub(super) id: ClaimId,
    pub(super) uid: u32,
    pub(super) parts: Vec<ClaimGpu>,
    pub(super) idle_s: Option<u64>,
    pub(super) held_back_ms: Option<u64>,
}

/// The answer if the thread could not be started.
pub(crate) fn no_history() -> WireError {
    WireError::new(ErrorCode::NotAvailable, "this service keeps no history")
}
