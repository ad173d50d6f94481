//! What connections have asked and is answered later.

use std::collections::BTreeMap;

use gshare_core::{ClaimId, Request};

use super::connection::{ConnId, Sender};
use super::journal::ClaimRecord;
use super::peer::Peer;

/// One waiting claim: what the connection that waits for it needs.
#[derive(Debug)]
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

#[derive(Debug)]
pub(super) struct Wish {
    pub(super) id: ClaimId,
    pub(super) conn: ConnId,
    pub(super) uid: u32,
    pub(super) out: Sender,
}
