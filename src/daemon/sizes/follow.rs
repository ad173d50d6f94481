//! Requests that follow need, in both directions: growth is reserved before it is needed, as earlier runs showed it; what
//! is past is given back.

use std::time::{Duration, Instant};

use gshare_config::{AutoShrink, Sizes as Keys, Stage};
use gshare_core::machine::Event;
use gshare_core::{Bytes, Change, ClaimId, Held, Share};

use crate::daemon::claims::Claims;
use crate::daemon::history::say::{STEP, rounded};
use crate::daemon::journal::{HoldingRecord, SliceRecord};
use crate::daemon::tracks::{RunTrack, Sizes};

/// Above what is used now, without knowing what comes.
const ABOVE: f64 = 1.11;
/// What is given back is worth it from this part of the request on.
const WORTH: f64 = 0.1;
/// A change of so many thousandths of the SMs is worth it.
const WORTH_SM: u32 = 100;

/// What a run needs to be guaranteed now; `None` while nothing says it.
fn need(track: &RunTrack, first_look: Duration, horizon: Duration) -> Option<f64> {
    let lately = track.lately()? * ABOVE;
    let ran = track.ran();
    match track
        .experience
        .as_ref()
        .filter(|e| e.near && !e.phases.is_empty())
    {
        Some(experience) => {
            // As much above what they needed as their bound is above their middle.
            let above = experience.bound as f64 / experience.middle.max(1) as f64;
            let ahead = experience
                .phases
                .iter()
                .map(|p| track.memory.place.ahead(p, ran, horizon));
            let ahead = ahead.fold(0.0, f64::max) * above.clamp(1.05, 1.5);
            Some(ahead.max(lately))
        }
        None => (ran >= first_look.as_secs_f64()).then_some(lately),
    }
}

/// What a request is to become: first what is given back, then what it grows by; `true` with memory that it waits for.
/// Memory and SMs each for itself.
fn changes(track: &mut RunTrack, slice: &SliceRecord, sizes: &Keys) -> Vec<(Change, bool)> {
    let most = slice.mem_limit.max(slice.mem);
    let mem = need(track, sizes.first_look, sizes.horizon);
    let mem = mem.map_or(slice.mem, |bytes| rounded(bytes).min(most));
    let settled = track.ran() >= sizes.first_look.as_secs_f64();
    let share = track.share().filter(|share| settled && *share > 0.0);
    let sm = share.map_or(slice.sm_milli, |share| (share * 1000.0).round() as u32);
    let parts = |mem: Option<u64>, sm: Option<u32>| Change {
        mem: mem.map(Bytes),
        mem_limit: Some(Bytes(slice.mem_limit)),
        sm: sm.map(Share::from_milli),
        ..Change::default()
    };
    let worth = ((slice.mem as f64 * WORTH) as u64).max(STEP);
    let less = parts(
        (mem.saturating_add(worth) <= slice.mem).then_some(mem),
        (sm + WORTH_SM <= slice.sm_milli).then_some(sm),
    );
    // One thing at a time; SMs, which can be borrowed too, only once it has its memory.
    let more_mem = mem > slice.mem;
    let more_sm = !more_mem && sm >= slice.sm_milli + WORTH_SM;
    let soon = (track.changed).is_some_and(|at| at.elapsed() < sizes.follow / 4);
    let shrinks = !soon && (less.mem.is_some() || less.sm.is_some());
    let waits = more_mem && track.wish.is_some_and(|(_, open)| open == mem);
    let mut all = Vec::new();
    if shrinks {
        all.push((less, false));
    }
    // A change takes the place of a wish that waits: then that is made again.
    if more_mem && (shrinks || !waits) {
        all.push((parts(Some(mem), None), true));
    }
    if more_sm && !soon {
        all.push((parts(None, Some(sm)), false));
    }
    if !all.is_empty() {
        track.changed = Some(Instant::now());
    }
    all
}

impl Sizes {
    /// Lets sizes follow need, as the policy says: the changes, for the core. Once for each look at the GPUs.
    pub(crate) fn follow(&mut self, sizes: &Keys, claims: &mut Claims) -> Vec<Event> {
        let mut wanted: Vec<(ClaimId, Change, bool)> = Vec::new();
        for (id, live) in claims.iter() {
            let Some(track) = self.runs.get_mut(id) else {
                continue;
            };
            let record = &live.record;
            let Some(slice) = record.slices.first() else {
                continue;
            };
            // What has its GPU or its instance for itself gives nothing to anybody by being smaller.
            let alone = slice.held == Held::Whole;
            if alone
                || record.origin.behalf.is_some()
                || record.runs.stage < Stage::Reclaim
                || live.ending.is_some()
                || record.holding != HoldingRecord::Here
                || !track.known
            {
                continue;
            }
            if sizes.auto_shrink == AutoShrink::Burst
                || (sizes.auto_shrink == AutoShrink::Request && !record.terms.auto)
            {
                // Once: what earlier runs of the same needed is enough of a limit.
                let enough = track.experience.as_ref().filter(|e| e.near && e.runs >= 3);
                let limit = enough.map(|e| rounded(e.bound as f64).max(slice.mem));
                if let Some(limit) =
                    limit.filter(|l| *l < slice.mem_limit && track.changed.is_none())
                {
                    track.changed = Some(Instant::now());
                    let change = Change {
                        mem_limit: Some(Bytes(limit)),
                        ..Change::default()
                    };
                    wanted.push((*id, change, false));
                }
                continue;
            }
            if sizes.auto_shrink != AutoShrink::Request {
                continue;
            }
            for (change, grows) in changes(track, slice, sizes) {
                wanted.push((*id, change, grows));
            }
        }
        let event = |(id, change, grows): (ClaimId, Change, bool)| {
            let ticket = claims.wishes.ticket();
            if let Some(track) = self.runs.get_mut(&id) {
                track.wish = grows.then_some((ticket, change.mem.map_or(0, |Bytes(b)| b)));
            }
            Event::Resize {
                ticket,
                id,
                change,
                // Growth of memory waits for room, ahead of its need; what is given back needs none.
                patience: (!grows).then_some(Duration::ZERO),
            }
        };
        wanted.into_iter().map(event).collect()
    }
}
