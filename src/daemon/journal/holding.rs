//! Journaled place of a claim.

use std::path::PathBuf;

use gshare_core::machine::lever::ParkedBy;
use serde::{Deserialize, Serialize};

use super::records::SliceRecord;

/// Place of a claim; its slices are where its bytes are, or were.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum HoldingRecord {
    /// On its GPUs.
    #[default]
    Here,
    /// It is being offloaded.
    Parking {
        /// Its processes are to be frozen.
        freeze: bool,
        /// The cause.
        by: ParkedBy,
        /// Cgroups that Slurm has frozen and gshare thaws meanwhile.
        #[serde(default, skip_serializing_if = "Vec::is_empty")]
        thawed: Vec<PathBuf>,
    },
    /// In host memory.
    Parked(ParkedRecord),
    /// It is being restored.
    Unparking {
        /// Its new place.
        to: Vec<SliceRecord>,
        /// Its state until then.
        parked: ParkedRecord,
    },
    /// It is moving to other GPUs.
    Moving {
        /// Its new place.
        to: Vec<SliceRecord>,
    },
    /// Admitted without a booking, and only counted.
    Counted,
}

impl HoldingRecord {
    /// On the way between GPUs and host memory.
    pub(crate) fn is_on_its_way(&self) -> bool {
        !matches!(self, Self::Here | Self::Parked(_) | Self::Counted)
    }

    /// In host memory by this cause, or on the way there.
    pub(crate) fn is_by(&self, cause: ParkedBy) -> bool {
        matches!(self, Self::Parking { by, .. } | Self::Parked(ParkedRecord { by, .. }) if *by == cause)
    }
}

/// An offloaded claim, as journaled.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct ParkedRecord {
    /// Bytes in host memory.
    pub(crate) host: u64,
    /// Bytes by slice.
    pub(crate) charges: Vec<u64>,
    /// Its processes are frozen.
    pub(crate) frozen: bool,
    /// The cause.
    pub(crate) by: ParkedBy,
    /// Since when, Unix milliseconds.
    pub(crate) since_ms: u64,
    /// It waits to be restored.
    pub(crate) back: bool,
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Otherwise `gshare restore` brings back the memory of a job that Slurm suspends just then.
    #[test]
    fn the_cause_holds_from_the_start_of_the_way_to_host_memory() {
        let leaves = HoldingRecord::Parking {
            freeze: false,
            by: ParkedBy::Scheduler,
            thawed: Vec::new(),
        };
        assert!(leaves.is_by(ParkedBy::Scheduler) && !leaves.is_by(ParkedBy::Idle));
        assert!(!HoldingRecord::Here.is_by(ParkedBy::Scheduler));
    }
}
