//! Sizes that follow the need, in both directions: growth is reserved before it is needed, as earlier runs showed;
//! the rest is given back.

use std::time::{Duration, Instant};

use gshare_config::{AutoShrink, Sizes as Keys, Stage};
use gshare_core::machine::Event;
use gshare_core::{Bytes, Change, ClaimId, Held, Share};

use crate::daemon::claims::Claims;
use crate::daemon::history::say::{STEP, rounded};
use crate::daemon::journal::{HoldingRecord, SliceRecord};
use crate::daemon::tracks::{RunTrack, Sizes};

/// Margin above present use without a forecast.
const ABOVE: f64 = 1.11;
/// Minimum fraction of the size that is worth giving back.
const WORTH: f64 = 0.1;
/// Minimum change in thousandths of the SMs.
const WORTH_SM: u32 = 100;

/// The need of a run at present; `None` if it is unknown.
fn need(track: &RunTrack, first_look: Duration, horizon: Duration) -> Option<f64> {
    let lately = track.lately()? * ABOVE;
    let ran = track.ran();
    match track
        .experience
        .as_ref()
        .filter(|e| e.near && !e.phases.is_empty())
    {
        Some(experience) => {
            // The same margin as between their bound and their median.
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

/// Changes of a size: first what is given back, then growth; `true` for memory that it waits for. Memory and SMs are
/// separate.
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
    // One at a time; SMs, which can burst, only once it has its memory.
    let more_mem = mem > slice.mem;
    let more_sm = !more_mem && sm >= slice.sm_milli + WORTH_SM;
    let soon = (track.changed).is_some_and(|at| at.elapsed() < sizes.follow / 4);
    let shrinks = !soon && (less.mem.is_some() || less.sm.is_some());
    let waits = more_mem && track.wish.is_some_and(|(_, open)| open == mem);
    let mut all = Vec::new();
    if shrinks {
        all.push((less, false));
    }
    // A change replaces a waiting request, which is then made again.
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
    /// Lets sizes follow the need, as the policy allows; returns the changes for the core. Once per look at the GPUs.
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
            // A claim with a whole GPU or instance frees nothing by a smaller size.
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
                // Only once: the use of earlier runs of the same program is limit enough.
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
                // Growth of memory waits for room, ahead of its need; giving back needs none.
                patience: (!grows).then_some(Duration::ZERO),
            }
        };
        wanted.into_iter().map(event).collect()
    }
}
