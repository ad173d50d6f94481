//! Runs of the last days, for the dry run of a stage.

use std::collections::BTreeMap;
use std::path::Path;

use gshare_enforcer::proc;
use gshare_proto::{AdminCall, ErrorCode, WireError};

use crate::clock::unix_ms;
use crate::daemon::journal::{self, ClaimRecord};
use crate::daemon::names::Account;
use crate::daemon::played::{self, Came};
use gshare_config::Stage;

/// How far back a dry run looks.
pub(super) const WEEK_MS: u64 = 7 * 86_400_000;

/// An ended run of a claim, or of a program without one.
#[derive(Debug)]
pub(super) struct Run {
    pub(super) record: ClaimRecord,
    /// Its duration within the last 7 days.
    pub(super) ms: u64,
    /// Its peak bytes.
    pub(super) peak: u64,
    /// Its result in a replay in the requested stage; none without a replay.
    pub(super) came: Option<Came>,
}

/// Runs that ended in the last 7 days, and the groups of their users if these count.
#[derive(Debug, Default)]
pub(crate) struct Past {
    pub(super) runs: Vec<Run>,
    pub(super) groups: BTreeMap<u32, Vec<String>>,
}

impl Past {
    pub(super) fn read(
        path: &Path,
        call: &AdminCall,
        grouped: bool,
        machine: Option<played::Machine>,
    ) -> Result<Self, WireError> {
        let (group, takes) = match call {
            AdminCall::Stage {
                group,
                stage,
                dry_run,
                plan,
                ..
            } => {
                let asked = *dry_run || plan.is_some();
                let stage = Stage::parse(stage).ok().filter(|_| asked);
                (group.as_deref(), stage.map(|s| s >= Stage::Reclaim))
            }
            _ => (None, None),
        };
        if let Some(group) = group.filter(|group| !proc::group_exists(group)) {
            let text = format!("there is no group `{group}`");
            return Err(WireError::new(ErrorCode::Usage, text));
        }
        let from_ms = unix_ms().saturating_sub(WEEK_MS);
        let ended = journal::reader(path).and_then(|db| journal::ended_since(&db, from_ms));
        let mut ended = ended.map_err(|error| {
            let text = format!("the journal cannot be read: {error}");
            WireError::new(ErrorCode::Internal, text)
        })?;
        let run = |(record, ended_ms, peak): (ClaimRecord, u64, u64)| Run {
            ms: ended_ms.saturating_sub(record.granted_ms.max(from_ms)),
            record,
            peak,
            came: None,
        };
        ended.sort_by_key(|(record, ..)| std::cmp::Reverse(record.granted_ms));
        let came = machine.zip(takes).map(|(machine, takes)| {
            let newest = ended.iter().take(played::MOST);
            let run = |(record, ended_ms, peak): &(ClaimRecord, u64, u64)| {
                played::Run::new(record, (from_ms, *ended_ms), *peak, machine)
            };
            played::as_asked(&newest.map(run).collect::<Vec<_>>(), machine, takes)
        });
        let mut runs: Vec<Run> = ended.into_iter().map(run).collect();
        for (run, came) in runs.iter_mut().zip(came.into_iter().flatten()) {
            run.came = Some(came);
        }
        let mut groups = BTreeMap::new();
        if grouped || group.is_some() {
            for run in &runs {
                let uid = run.record.uid;
                let read = || Account::read(uid).group_names();
                groups.entry(uid).or_insert_with(read);
            }
        }
        Ok(Self { runs, groups })
    }
}
