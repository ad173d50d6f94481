//! Reservations: the earliest start of the first waiting claim by known ends, and which claims may start before it.
//!
//! A claim ends at its time limit. If nothing can be taken from it, it is also expected to end when nine in ten of its
//! past runs had ended (see [`super::Event::RunTime`]). Other claims are not expected to end, because levers can make
//! room. The first claim that can neither start nor get room by a plan is promised the earliest place that these ends
//! allow. Claims that will end before (by nine in ten past runs), or fit beside it, may start first. Without known ends
//! nothing is reserved until a claim has waited for twelve hours.
//!
//! A reservation that rests on a time limit is firm. One that rests on past runs is a guess, so claims that end before
//! it in half of their past runs may start first as well. If run times vary widely, nine in ten end so late that GPUs
//! would be idle.

use std::time::Duration;

use super::order::AWAY;
use super::plan::Future;
use super::{Ask, Machine, Now, Waiting};
use crate::claim::{ClaimId, Request};
use crate::ledger::{Ledger, Slice};
use crate::place;

/// No end is guessed for a claim without past runs that has run for longer than this: nothing would be kept that long.
const GUESSED: Duration = Duration::from_secs(3600);

/// Part of past runs that defines a predicted end, among runs that lasted at least as long as this one so far ...
const LONG: f64 = 0.9;
/// ... and the part for claims that start ahead of a reservation which is a prediction itself.
const HALF: f64 = 0.5;

/// Finds a claim's place in a ledger.
type Place<'a> = dyn Fn(&Ledger) -> Option<Vec<Slice>> + 'a;

/// Room kept for a claim from a time on.
#[derive(Clone, Debug)]
pub(super) struct Reserved {
    pub(super) at: Now,
    /// It rests on time limits only.
    pub(super) firm: bool,
    pub(super) gpus: Vec<usize>,
    /// The ledger at that time, including the claim.
    pub(super) ledger: Ledger,
}

/// When a claim that starts or comes back now will end, if known.
#[derive(Clone, Copy, Debug)]
pub(super) struct Gone {
    /// Its time limit, or when nine in ten past runs had ended.
    pub(super) surely: Option<Now>,
    /// Its time limit, or when half of the past runs had ended.
    likely: Option<Now>,
}

impl Reserved {
    /// Whether a claim ends before this room is needed.
    pub(super) fn lets_past(&self, gone: Gone) -> bool {
        is_gone(if self.firm { gone.surely } else { gone.likely }, self.at)
    }
}

/// Whether a claim that ends at `gone` leaves room for a start at `at`.
pub(super) fn is_gone(gone: Option<Now>, at: Now) -> bool {
    gone.is_some_and(|gone| gone <= at)
}

impl Machine {
    /// When a claim that starts or comes back now will end, if known.
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

    /// When this part of past runs had ended, among those that lasted as long as this one so far; `None` if there are
    /// none.
    fn predicted_end(&self, now: Now, id: ClaimId, part: f64) -> Option<Now> {
        let span = self.run_times.get(&id)?;
        Some(now.saturating_add(span.left(self.ran(id), part)?))
    }

    /// Known ends of granted claims, earliest first.
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

    /// The last end of all granted claims; `None` if any is unknown.
    #[must_use]
    pub fn last_end(&self, now: Now) -> Option<Now> {
        let ends = self.ends(now);
        let all = ends.len() == self.ledger.held().count();
        ends.last().filter(|_| all).map(|(at, _)| *at)
    }

    /// Ends for a claim that has waited very long: claims of unknown end that have not run long are assumed to run as
    /// long again.
    fn guessed(&self, now: Now, future: &Future) -> Vec<(Now, ClaimId)> {
        let held = future.ledger.held().map(|(id, _)| id);
        let unknown = held.filter(|id| future.ends.iter().all(|(_, known)| known != id));
        unknown
            .map(|id| (self.ran(id), id))
            .filter(|(ran, _)| *ran <= GUESSED)
            .map(|(ran, id)| (now.saturating_add(ran), id))
            .collect()
    }

    /// The earliest place for a waiting claim by known ends; `None` if there is none.
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
        // Monotonic: more ends mean more room.
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
