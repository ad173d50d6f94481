//! Reservations: when the first of those who wait could start by the ends that are known, and who is let past until
//! then.
//!
//! A claim ends at its time limit. One from which nothing can be taken also ends by when nine in ten of such runs had
//! ended (told with [`super::Event::RunTime`]); of others no such end is waited for, since room can be made. The first
//! claim that can neither start nor have room made for it is promised the earliest place that these ends allow. Whoever
//! is gone by then (nine in ten of such runs are), or fits beside it, starts before.
//! Where nobody knows when others end nothing is promised and nothing is kept, until a claim has waited for twelve hours.
//!
//! A moment that rests on a time limit is kept to: nobody else starts before. One that rests on earlier runs is a guess,
//! so whoever is as likely gone by then as not starts before as well: where run times differ by much, nine in ten are over
//! so late that GPUs would be idle.

use std::time::Duration;

use super::order::AWAY;
use super::plan::Future;
use super::{Ask, Machine, Now, Waiting};
use crate::claim::{ClaimId, Request};
use crate::ledger::{Ledger, Slice};
use crate::place;

/// Of a claim that has run for longer, and of which nothing is known, no end is guessed: nothing is kept for so long.
const GUESSED: Duration = Duration::from_secs(3600);

/// A predicted end is one by which this part of earlier runs had ended, of those that had not ended before ...
const LONG: f64 = 0.9;
/// ... and for who is let past a moment that is predicted itself, this part.
const HALF: f64 = 0.5;

/// Where a claim has its place in a machine.
type Place<'a> = dyn Fn(&Ledger) -> Option<Vec<Slice>> + 'a;

/// Room that is kept for a claim from a moment on.
#[derive(Clone, Debug)]
pub(super) struct Reserved {
    pub(super) at: Now,
    /// A time limit says when, and no guess.
    pub(super) firm: bool,
    pub(super) gpus: Vec<usize>,
    /// The machine then, with the claim in it.
    pub(super) ledger: Ledger,
}

/// When a claim that starts or comes back now ends, as far as that is known.
#[derive(Clone, Copy, Debug)]
pub(super) struct Gone {
    /// By then nine in ten such runs have.
    pub(super) surely: Option<Now>,
    /// By then half of them have.
    likely: Option<Now>,
}

impl Reserved {
    /// Whether a claim is gone before this room is needed.
    pub(super) fn lets_past(&self, gone: Gone) -> bool {
        is_gone(if self.firm { gone.surely } else { gone.likely }, self.at)
    }
}

/// Whether what ends at `gone` is in nobody's way who starts at `at`.
pub(super) fn is_gone(gone: Option<Now>, at: Now) -> bool {
    gone.is_some_and(|gone| gone <= at)
}

impl Machine {
    /// When a claim that starts or comes back now ends, as far as that is known.
    pub(super) fn gone(&self, now: Now, id: ClaimId, request: &Request) -> Gone {
        let limit = match self.lease_end(id) {
            Some(end) => Some(end),
            None => request.lease.map(|l| now.saturating_add(l)),
        };
        let by = |part| {
            let predicted = self.predicted_end(now, id, part);
            [limit, predicted].into_iter().flatten().min()
        };
        Gone {
            surely: by(LONG),
            likely: by(HALF),
        }
    }

    /// By when this part of such runs have ended, of those that ran for as long as this one has; `None` where nothing is
    /// known, or none did.
    fn predicted_end(&self, now: Now, id: ClaimId, part: f64) -> Option<Now> {
        let span = self.run_times.get(&id)?;
        Some(now.saturating_add(span.left(self.ran(id), part)?))
    }

    /// When each of those that hold ends; the first one first.
    pub(super) fn ends(&self, now: Now) -> Vec<(Now, ClaimId)> {
        let held = self.ledger.held();
        let end = held.filter_map(|(id, _)| {
            let at = match self.claims.get(id).is_some_and(|c| c.ending) {
                true => Some(now),
                false => {
                    let predicted = self.is_fixed(id).then(|| self.predicted_end(now, id, LONG));
                    let predicted = predicted.flatten();
                    let ends = [self.lease_end(id), predicted];
                    ends.into_iter().flatten().min()
                }
            };
            Some((at?.max(now), id))
        });
        let mut ends: Vec<(Now, ClaimId)> = end.collect();
        ends.sort_unstable();
        ends
    }

    /// When the last of those that hold ends; `None` where that is not known of all.
    #[must_use]
    pub fn last_end(&self, now: Now) -> Option<Now> {
        let ends = self.ends(now);
        let all = ends.len() == self.ledger.held().count();
        ends.last().filter(|_| all).map(|(at, _)| *at)
    }

    /// For somebody who has waited for very long: of whom nobody knows when they end, those that have not run for long
    /// will run about as long again.
    fn guessed(&self, now: Now, future: &Future) -> Vec<(Now, ClaimId)> {
        let held = future.ledger.held().map(|(id, _)| id);
        let unknown = held.filter(|id| future.ends.iter().all(|(_, known)| known != id));
        unknown
            .map(|id| (self.ran(id), id))
            .filter(|(ran, _)| *ran <= GUESSED)
            .map(|(ran, id)| (now.saturating_add(ran), id))
            .collect()
    }

    /// The earliest place that known ends allow whoever waits; `None` where they allow none.
    pub(super) fn reserve(&self, now: Now, waiting: &Waiting, future: &Future) -> Option<Reserved> {
        let (who, place): (ClaimId, &Place<'_>) = match &waiting.ask {
            Ask::Claim { id, request, .. } => {
                (*id, &|later: &Ledger| place::best_fit(later, request, &[]))
            }
            Ask::Resize { id, change, .. } => (*id, &|later: &Ledger| {
                let to = crate::resize::target(later, *id, change).ok()?;
                let fits = crate::resize::check(later, *id, &to, change, |_| None);
                fits.is_ok().then_some(to)
            }),
        };
        let after = |ends: &[(Now, ClaimId)]| {
            let mut later = future.ledger.clone();
            for (_, id) in ends.iter().filter(|(_, id)| *id != who) {
                later.remove(*id);
            }
            later
        };
        let mut guessed;
        let mut ends = &future.ends;
        if now >= waiting.since.saturating_add(AWAY) && place(&after(ends)).is_none() {
            guessed = self.guessed(now, future);
            guessed.extend(ends);
            guessed.sort_unstable();
            ends = &guessed;
        }
        // The more have ended the more fits.
        let (mut least, mut most) = (0, ends.len());
        place(&after(ends))?;
        while least < most {
            let half = usize::midpoint(least, most);
            match place(&after(&ends[..half])) {
                Some(_) => most = half,
                None => least = half + 1,
            }
        }
        let mut ledger = after(&ends[..most]);
        let slices = place(&ledger)?;
        let gpus = slices.iter().map(|s| s.gpu).collect();
        ledger.insert(who, slices);
        let (at, firm) = match most {
            0 => (future.from.unwrap_or(now), true),
            n => {
                let (at, last) = ends[n - 1];
                (at, self.lease_end(last) == Some(at))
            }
        };
        Some(Reserved {
            at,
            firm,
            gpus,
            ledger,
        })
    }
}
