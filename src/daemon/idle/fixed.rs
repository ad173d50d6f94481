//! Idle claims that cannot be detached: what is done in its place, by `[idle] no-detach`.

use std::time::{Duration, Instant};

use gshare_config::NoDetach;
use gshare_core::machine::Event;
use gshare_core::units::show_duration;
use gshare_core::{Bytes, Change, ClaimId, Share};

use super::super::journal::{HeldRecord, SliceRecord};
use super::super::resize::arguments;
use super::super::service::{Live, Service};

/// SMs are guaranteed in whole percent.
const PERCENT: u64 = 10;

/// What is done, as its owner is told at the start.
pub(super) const fn words(how: NoDetach) -> &'static str {
    match how {
        NoDetach::Warn => "you are only warned",
        NoDetach::Shrink => "only what it uses stays guaranteed to it",
        NoDetach::Release => {
            "its programs on the GPU are ended as soon as somebody can start in their place"
        }
    }
}

/// What can be done of it: an instance has one size.
pub(super) fn possible(how: NoDetach, live: &Live) -> NoDetach {
    let instance = live
        .record
        .slices
        .iter()
        .any(|s| s.uuid.starts_with("MIG-"));
    match how {
        NoDetach::Shrink if instance => NoDetach::Warn,
        how => how,
    }
}

/// The part of what was asked that is used, in thousandths of the SMs, rounded up to a percent.
fn scaled(sm_milli: u32, used: u64, asked: u64) -> Share {
    let part = u128::from(sm_milli) * u128::from(used) / u128::from(asked.max(1));
    let part = u64::try_from(part).unwrap_or(u64::MAX);
    let whole = part.next_multiple_of(PERCENT).max(PERCENT);
    Share::from_milli(u32::try_from(whole).map_or(sm_milli, |w| w.min(sm_milli)))
}

impl Service {
    /// A claim is guaranteed no more than it uses.
    pub(super) fn shrink_idle(&mut self, id: ClaimId) {
        let Some(live) = self.claims.get(&id) else {
            return;
        };
        let used = live.seats.iter().map(|seat| {
            let gpu = &self.gpus[seat.gpu];
            seat.usage.charged_bytes(gpu.total).max(gpu.overhead)
        });
        let used = used.max().unwrap_or(0).next_multiple_of(Bytes::MIB);
        let slices = live.record.slices.clone();
        let asked = slices.iter().map(|s| s.mem).max().unwrap_or(0);
        if used == 0 || used >= asked {
            return;
        }
        // The part of a client of MPS is fixed while it runs, and that of who has the GPU for himself.
        let fixed = slices.iter().any(|s| s.held != HeldRecord::Timeslice);
        let sm = slices.iter().map(|s| s.sm_milli).max().unwrap_or(0);
        let before = self.size_text(&live.record).unwrap_or_default();
        let most = slices.iter().map(|s| s.mem_limit).max().unwrap_or(asked);
        let back = Change {
            mem: Some(Bytes(asked)),
            sm: (!fixed).then(|| Share::from_milli(sm)),
            ..Change::default()
        };
        let ticket = self.next_ticket();
        self.drive(Event::Resize {
            ticket,
            id,
            change: Change {
                mem: Some(Bytes(used)),
                // More is its own while it is free.
                mem_limit: Some(Bytes(most)),
                sm: (!fixed).then(|| scaled(sm, used, asked)),
                ..Change::default()
            },
            patience: Some(Duration::ZERO),
        });
        let record = self.claims.get(&id).map(|l| &l.record);
        let smaller = |s: &SliceRecord| s.mem < asked;
        let Some(record) = record.filter(|r| r.slices.iter().all(smaller)) else {
            tracing::info!(%id, "an idle claim keeps its size");
            return;
        };
        let now = self.size_text(record).unwrap_or_default();
        let text = format!(
            "{id} is idle and others wait, so it is guaranteed what it uses: {now}; was {before}. To have it back: gshare resize {id} {}",
            arguments(&back)
        );
        self.tell_owner(id, &text);
    }

    /// Ends the claims whose rule says so: as few as let somebody start, each announced before.
    pub(super) fn release_idle(&mut self) {
        let fixed = |id: &ClaimId| self.fixed(*id).is_some();
        let mut due: Vec<(Duration, ClaimId)> = Vec::new();
        for (id, rest) in &self.rests.claims {
            let over = rest.rule.no_detach == NoDetach::Release
                && rest.over(rest.rule.detach)
                && rest.warned.is_some()
                && !rest.is_kept();
            let here = |live: &Live| live.ending.is_none() && !live.record.slices.is_empty();
            if over && self.claims.get(id).is_some_and(here) && fixed(id) {
                due.push((rest.idle(), *id));
            }
        }
        // Who idles for longest first.
        due.sort_unstable_by(|a, b| b.cmp(a));
        let due: Vec<ClaimId> = due.into_iter().map(|(_, id)| id).collect();
        let chosen = match due.is_empty() || self.machine.queue().next().is_none() {
            true => Vec::new(),
            false => self
                .machine
                .fewest_to_end(self.now(), &due, &self.measure()),
        };
        let patience = self.config.reclaim.countdown;
        for (id, rest) in &mut self.rests.claims {
            if !chosen.contains(id) {
                rest.announced = None;
            }
        }
        for id in chosen {
            let Some(rest) = self.rests.claims.get_mut(&id) else {
                continue;
            };
            match rest.announced {
                None => {
                    rest.announced = Some(Instant::now());
                    let text = format!(
                        "{id} is released in {}: it is idle, cannot be detached, and somebody else can start then. Its programs on the GPU are ended, and what they have in memory is lost. To keep it: gshare keep {id}",
                        show_duration(patience)
                    );
                    self.tell_owner(id, &text);
                }
                Some(at) if at.elapsed() >= patience => {
                    let text = format!(
                        "{id} is released: it is idle, cannot be detached, and others wait"
                    );
                    self.tell_owner(id, &text);
                    self.terminate(id, "idle while others waited");
                }
                Some(_) => {}
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_smaller_part_is_of_whole_percents_and_never_nothing() {
        let milli = |sm, used, asked| scaled(sm, used, asked).milli();
        assert_eq!(milli(500, 1 << 30, 12 << 30), 50);
        assert_eq!(milli(500, 1, 12 << 30), 10);
        assert_eq!(milli(500, 12 << 30, 12 << 30), 500);
        assert_eq!(milli(5, 1, 2), 5, "never more than it had");
    }
}
