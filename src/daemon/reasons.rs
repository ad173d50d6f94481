//! Why a claim waits, and what holds the room that it needs.

use std::time::Duration;

use gshare_core::{Bytes, ClaimId, Reason};

use super::admin::drain;
use super::features::Features;
use super::journal::{ClaimRecord, SliceRecord};
use super::world::World;
use crate::clock::unix_ms;

/// A reason, with the names of the holders of the room.
pub(crate) fn held_text(world: &World<'_>, reason: String, holders: &[ClaimId]) -> String {
    let mut who: Vec<String> = holders
        .iter()
        .filter_map(|id| {
            if let Some(auto) = world.policy.auto.get(id) {
                return Some(format!(
                    "{id} ({}, no claim)",
                    world.host.names.user(auto.uid())
                ));
            }
            let live = world.claims.get(id)?;
            let ends = live
                .record
                .terms
                .ends_ms
                .map(|ms| format!(", ends in {}", show_until(ms)));
            Some(format!(
                "{id} ({}{})",
                world.host.names.user(live.record.uid),
                ends.unwrap_or_default()
            ))
        })
        .collect();
    who.truncate(4);
    if who.is_empty() {
        reason
    } else {
        format!("{reason}; held by {}", who.join(", "))
    }
}

/// Why a claim waits, with the names of the holders of the room that it needs.
pub(crate) fn reason_text(world: &World<'_>, reason: &Reason) -> String {
    held_text(world, reason.to_string(), reason.holders())
}

/// Why a claim waits: the rule, the holders of the room, and what an administrator has closed.
pub(crate) fn waits_text(
    world: &World<'_>,
    features: &Features,
    id: ClaimId,
    reason: &Reason,
) -> String {
    let waiting = world.claims.waiting.get(&id);
    let only = waiting.map_or(&[][..], |a| &a.request.only_gpus);
    let text = would_wait_text(world, features, only, reason);
    match world.config.is_off() {
        true => format!(
            "gshare is off, so this claim starts as soon as a GPU has enough free memory; {text}"
        ),
        false => text,
    }
}

/// The same for a claim that may use these GPUs (all, if none is named).
pub(crate) fn would_wait_text(
    world: &World<'_>,
    features: &Features,
    only: &[u32],
    reason: &Reason,
) -> String {
    let text = reason_text(world, reason);
    match drain::closed_text(world, features, only, reason) {
        Some(closed) => format!("{text}; {closed}"),
        None => text,
    }
}

/// The size of a claim, in GPUs.
pub(crate) fn gpus_of(world: &World<'_>, record: &ClaimRecord) -> f64 {
    record.slices.iter().map(|s| share_of(world, s)).sum()
}

/// A slice as a fraction of its GPU: the larger of memory and SMs.
pub(crate) fn share_of(world: &World<'_>, slice: &SliceRecord) -> f64 {
    let sm = f64::from(slice.sm_milli) / 1000.0;
    let whole = world
        .gpus
        .gpu_index(&slice.uuid)
        .and_then(|g| world.machine.ledger().gpus().get(g)?.capacity());
    match whole {
        Some(Bytes(whole)) if whole > 0 => {
            let mem = slice.mem as f64 / whole as f64;
            // A request for 0.5 of the allocatable memory is slightly less of the total: show the request.
            if mem > sm { mem } else { sm }
        }
        _ => sm,
    }
}

/// The time until a moment in Unix milliseconds, to the nearest second.
pub(super) fn show_until(unix: u64) -> String {
    let left = Duration::from_millis(unix.saturating_sub(unix_ms()).saturating_add(500));
    gshare_core::units::show_duration(left)
}
