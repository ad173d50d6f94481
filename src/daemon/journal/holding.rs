//! Where claims are and how they hold it, as journaled.

use gshare_core::machine::lever::ParkedBy;
use serde::{Deserialize, Serialize};

use super::records::SliceRecord;

/// Where a claim is, as journaled; its slices are where its bytes are, or were.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum HoldingRecord {
    /// On its GPUs.
    #[default]
    Here,
    /// On its way to the host.
    Parking {
        /// Its processes are to be frozen.
        freeze: bool,
        /// The cause.
        by: ParkedBy,
    },
    /// In the host.
    Parked(ParkedRecord),
    /// On its way back.
    Unparking {
        /// Where it goes.
        to: Vec<SliceRecord>,
        /// What it is until then.
        parked: ParkedRecord,
    },
    /// On its way to other GPUs.
    Moving {
        /// Where it goes.
        to: Vec<SliceRecord>,
    },
    /// Let in where everybody is, and only counted.
    Counted,
}

impl HoldingRecord {
    /// Neither on its GPUs nor in the host.
    pub(crate) fn is_on_its_way(&self) -> bool {
        !matches!(self, Self::Here | Self::Parked(_) | Self::Counted)
    }
}

/// A parked claim, as journaled.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct ParkedRecord {
    /// Bytes in the host.
    pub(crate) host: u64,
    /// Bytes by slice.
    pub(crate) charges: Vec<u64>,
    /// Its processes are frozen.
    pub(crate) frozen: bool,
    /// The cause.
    pub(crate) by: ParkedBy,
    /// Since when, Unix milliseconds.
    pub(crate) since_ms: u64,
    /// It waits to come back.
    pub(crate) back: bool,
}
