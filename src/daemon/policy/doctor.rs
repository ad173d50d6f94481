//! Rows of `gshare doctor` about use without a claim and above claims.

use std::path::Path;
use std::time::Duration;

use gshare_config::{Overuse, Unclaimed};
use gshare_core::units::show_duration;
use gshare_proto::{Check, messages};

use super::super::doctor::row::check;
use super::super::journal::ClaimRecord;
use super::AutoClaim;
use crate::clock::{millis, unix_ms};
use crate::daemon::journal::Journal;
use crate::daemon::policy::deny;
use crate::daemon::policy::limits;
use crate::daemon::stage;
use crate::daemon::viewer::Viewer;
use crate::daemon::world::World;

/// Period that is searched for programs without a claim.
const PAST: Duration = Duration::from_secs(7 * 24 * 3600);
/// Maximum number that are named.
const NAMED: usize = 5;

fn reconcile_row(world: &World<'_>) -> Check {
    let name = "over-use";
    let policy = &world.config.policy;
    let then = match policy.overuse {
        Overuse::Warn => "owners are warned, no process is ended".to_owned(),
        Overuse::Stop => format!(
            "the offending process is ended after {}",
            show_duration(policy.overuse_grace)
        ),
    };
    let reading = |g: usize| world.gpus.reading(g).and_then(|r| r.processes.as_ref());
    let figures: Vec<bool> = (0..world.gpus.len())
        .filter_map(|g| Some(reading(g)?.iter().all(|p| p.bytes.is_some())))
        .collect();
    let over = world.policy.over.all().count();
    let now = match over {
        0 => "over-use now: none".to_owned(),
        n => format!("over-use now: {n}"),
    };
    let detail =
        format!("NVML's figures are compared with gshare's own at every poll; {then}; {now}");
    match figures.as_slice() {
        [] => check(name, "missing", "NVML gives no list of processes"),
        known if known.contains(&false) => check(
            name,
            "limited",
            format!("{detail}; the driver does not report the memory of some processes"),
        ),
        _ => check(name, "ok", detail),
    }
}

pub(crate) fn policy_rows(world: &World<'_>, journal: &Journal, viewer: Viewer) -> Vec<Check> {
    vec![
        limits::limits_row(world),
        reconcile_row(world),
        unclaimed_row(world, journal, viewer),
    ]
}

/// The measure against use without a claim, and what `deny` stops or would have stopped.
fn unclaimed_row(world: &World<'_>, journal: &Journal, viewer: Viewer) -> Check {
    let name = "unclaimed use";
    let policy = stage::unclaimed_policy(world);
    let would_deny = deny::would_deny(world);
    let stopped = |record: &ClaimRecord| {
        let place = record.origin.place.as_ref();
        place.is_some_and(|place| would_deny(Path::new(place)))
    };
    let who = |record: &ClaimRecord| viewer.program_of(record, &world.host.names.user(record.uid));
    let running = world.policy.auto.values().map(AutoClaim::record);
    let now: Vec<String> = running
        .filter(|r| stopped(r))
        .map(|r| format!("{} (pid {})", who(r), r.process.map_or(0, |p| p.pid)))
        .collect();
    let from = unix_ms().saturating_sub(millis(PAST));
    let past = journal.uncapped_since(from).unwrap_or_default();
    let mut past: Vec<String> = past
        .iter()
        .map(|(_, record)| record)
        .filter(|r| stopped(r))
        .map(who)
        .collect();
    let runs = past.len();
    past.sort();
    past.dedup();
    let list = |names: &[String]| {
        let mut text = names[..names.len().min(NAMED)].join(", ");
        if names.len() > NAMED {
            text.push_str(&format!(" and {} more", names.len() - NAMED));
        }
        text
    };
    let mut detail = match policy {
        Unclaimed::Observe => {
            "programs without a claim are shown, but neither counted nor recorded".to_owned()
        }
        Unclaimed::Adopt => "programs without a claim count as claims without a limit".to_owned(),
        Unclaimed::Deny => world.policy.denial.text(),
    };
    let verb = if policy == Unclaimed::Deny {
        "started before GPUs were blocked, and may run until they exit"
    } else {
        "stage 4 would block now"
    };
    if !now.is_empty() {
        detail.push_str(&format!("; {verb}: {}", list(&now)));
    }
    if !past.is_empty() && policy != Unclaimed::Deny {
        let times = if runs == 1 { "run" } else { "runs" };
        detail.push_str(&format!(
            "; stage 4 would have blocked in the last 7 days: {} ({runs} {times})",
            list(&past)
        ));
    }
    if policy != Unclaimed::Deny && now.is_empty() && past.is_empty() {
        detail.push_str("; stage 4 would block no known program");
    }
    match (policy, world.policy.denial.no_effect()) {
        (Unclaimed::Deny, Some(open)) => Check {
            fix: Some(open.fix.clone()),
            ..check(name, "limited", detail)
        },
        (Unclaimed::Deny, None) => Check {
            status: messages::stand_in_nodes(),
            ..check(name, "ok", detail)
        },
        _ => check(name, "ok", detail),
    }
}
