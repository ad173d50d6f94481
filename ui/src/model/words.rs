//! The state of a claim in a few words.

use gshare_proto::counts::many;
use gshare_proto::totals::{bursts, slowed_by, slowed_within, throttled};
use gshare_proto::{Caps, ClaimState, ClaimView, Snapshot, messages};

use super::Viewer;
use crate::text::{Clock, percent};

#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Words {
    pub(crate) sign: bool,
    /// In a few words; empty for a claim that simply runs.
    pub(crate) text: String,
}

pub(crate) fn words(claim: &ClaimView, snapshot: &Snapshot, clock: Clock, arrow: &str) -> Words {
    let look = |text: String| Words { sign: true, text };
    let plain = |text: String| Words { sign: false, text };
    let state = claim.state_text.as_str();
    if let Some(text) = &claim.announced {
        let moved = text.strip_prefix("moves from GPU ");
        let to = moved.and_then(|t| t.split_once(" to ")).map(|(_, to)| to);
        return plain(to.map_or_else(|| text.clone(), |to| format!("{arrow} {to}")));
    }
    if claim.overuse.is_some() {
        return look(messages::uses_more());
    }
    if claim.adopted {
        return look("no claim".to_owned());
    }
    if claim.place.word.is_some() || claim.state != ClaimState::Running {
        let state = if state.is_empty() { "held" } else { state };
        return plain(state.to_owned());
    }
    if state.starts_with("idle") {
        return look(state.to_owned());
    }
    if let Some(stuck) = claim.turns.and_then(|t| t.stuck) {
        let by = format!("c{}", stuck.claim);
        return look(match by == claim.id {
            true => "runs one long kernel".to_owned(),
            false => format!("waits for a kernel of {by}"),
        });
    }
    // A claim that is slowed only above its size has its size.
    if let Some(most) = throttled(claim).filter(|_| !bursts(claim, snapshot)) {
        let by = slowed_by(claim, snapshot).map(|by| &*by.id);
        let by = by.unwrap_or_else(|| slowed_within(claim, snapshot));
        return look(format!("throttled {} % by {by}", percent(most)));
    }
    if claim.refusals > 0 {
        let refused = many(claim.refusals as usize, "allocation");
        return look(format!("{refused} refused"));
    }
    let mut parts = Vec::new();
    if bursts(claim, snapshot) {
        parts.push("bursts".to_owned());
    }
    if let Some(at) = claim.ends_ms {
        parts.push(format!("ends {}", clock.short_time(at)));
    }
    if claim.caps == Caps::None {
        parts.push("no limits".to_owned());
    }
    let known = ["run", "burst", "ends", "at limit"];
    if parts.is_empty() && !known.iter().any(|k| state.starts_with(k)) {
        parts.push(state.to_owned());
    }
    plain(parts.join(", "))
}

/// Order of importance: the viewer's own, then warnings, then bursting claims.
pub(crate) fn rank(claim: &ClaimView, viewer: &Viewer, snapshot: &Snapshot) -> u8 {
    match claim {
        c if c.uid == viewer.uid => 0,
        c if c.announced.is_some() || words(c, snapshot, Clock::default(), "").sign => 1,
        c if bursts(c, snapshot) => 2,
        _ => 3,
    }
}
