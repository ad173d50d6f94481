//! A year of thirty users, written with the service's own journal code.

use std::path::Path;

use gshare_core::ClaimId;
use gshare_enforcer::proc::ProcessKey;

use crate::clock::unix_ms;
use crate::daemon::journal::{ClaimRecord, Journal};

pub(super) const USERS: u32 = 30;
/// Claims per user and day.
const CLAIMS: u64 = 20;
/// Log lines per claim.
const EVENTS: u64 = 5;
const DAY_MS: u64 = 86_400_000;

/// Fills the journal of a stopped service; returns the number of claims.
pub(super) fn fill(path: &Path, days: u64) -> anyhow::Result<u64> {
    let mut journal = Journal::open(path)?;
    let first = journal.next_id().0;
    let begin = unix_ms().saturating_sub(days * DAY_MS);
    let total = days * u64::from(USERS) * CLAIMS;
    for n in 0..total {
        let user = u32::try_from(n % u64::from(USERS)).unwrap_or(0);
        let at = begin + n * days * DAY_MS / total;
        let id = first + n;
        let record = ClaimRecord {
            id,
            uid: 5000 + user,
            name: Some(format!("run-{n}")),
            project: "lab".to_owned(),
            class: "batch".to_owned(),
            command: ["python", "train.py", "--config", "configs/resnet50.yaml"]
                .map(str::to_owned)
                .to_vec()
                .into(),
            granted_ms: at,
            process: Some(ProcessKey {
                pid: i32::try_from(1000 + n % 30_000).unwrap_or(1),
                start_ticks: n,
            }),
            ..ClaimRecord::default()
        };
        journal.put(&record)?;
        for event in 0..EVENTS {
            journal.add_event(
                at + event,
                ClaimId(id),
                record.uid,
                "granted: 0.50 of GPU 1 (11.8 GiB)",
            )?;
        }
        journal.end(
            &record,
            at + DAY_MS / 24,
            "command exited",
            Some(1 << 30),
            Some(n),
        )?;
    }
    Ok(total)
}
