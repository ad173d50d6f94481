//! When the machine needs the next tick, if no other event comes first.

use std::time::Duration;

use super::order::{AWAY, LEAST_SLOT};
use super::{Machine, Now};
use crate::sched::fair::LEVELS;

/// While claims wait, their order is checked this often, because owners' past use changes it.
const RETHINK: Duration = Duration::from_secs(60);
/// A decision that left out claims within their guarantees is followed by another after this time.
const SOON: Duration = Duration::from_secs(1);

impl Machine {
    /// The next time at which [`super::Event::Tick`] may change something: a countdown or lease ends, or a claim has
    /// waited, run or used enough. `None` if only other events can.
    #[must_use]
    pub fn next_wake(&self, now: Now) -> Option<Now> {
        let mut next: Option<Now> = None;
        let mut at = |at: Now| {
            if at > now {
                next = Some(next.map_or(at, |n| n.min(at)));
            }
        };
        let limits = self.claims.iter().flat_map(|(_, c)| [c.ends, c.warn_at]);
        limits.flatten().for_each(&mut at);
        for plan in &self.reclaim.plans {
            at(plan.due);
        }
        let rules = &self.reclaim.rules;
        if rules.enabled && rules.spread {
            at(self.reclaim.quiet_since.saturating_add(rules.quiet));
        }
        if self.queue.is_empty() && !(rules.enabled && rules.spread) {
            return next;
        }
        // When levers may be used: after minimum run times, and after delays for failed or postponed levers.
        for granted in self.claims.iter().map(|(_, g)| g) {
            at(self.min_run_ends(granted).saturating_sub(rules.countdown));
            for until in granted.run.spared.values() {
                at(*until);
            }
        }
        if self.queue.is_empty() {
            return next;
        }
        let granted = self.ledger.held().filter_map(|(id, _)| self.claims.get(id));
        for left in granted.filter_map(|g| self.left_in_level(g)) {
            at(now
                .saturating_add(left)
                .saturating_add(Duration::from_millis(1)));
        }
        // Claims of several owners are compared by their owners' use.
        let held = self.held_by(|_, uid| uid);
        for ((id, uid), gpus) in self.held_by(|id, uid| (id, uid)) {
            let had = self.had_s(id, uid);
            let mut bounds = LEVELS.iter().map(Duration::as_secs_f64);
            if let Some(bound) = bounds
                .find(|b| *b > had)
                .filter(|_| gpus > 0.0 && had > 0.0)
            {
                let left = (bound / had - 1.0) * self.past(uid) / held[&uid];
                // Use decays meanwhile, so this is a little early.
                at(now.saturating_add(Duration::from_secs_f64(left.max(1.0))));
            }
        }
        for waiting in &self.queue {
            let ends = [waiting.deadline, waiting.absent, waiting.expected];
            ends.into_iter().flatten().for_each(&mut at);
            at(self.turn_of(waiting));
            at(waiting.since.saturating_add(AWAY));
        }
        let turns = self.claims.iter();
        let turns: Vec<Now> = turns
            .filter_map(|(id, _)| self.shortest_turn_ends(now, id))
            .collect();
        if !turns.is_empty() {
            turns.into_iter().for_each(&mut at);
            let late = self.queue.iter();
            let late = late.map(|w| w.since.saturating_add(LEAST_SLOT));
            late.for_each(&mut at);
        }
        let soon = if self.reclaim.left_out { SOON } else { RETHINK };
        at(now.saturating_add(soon));
        next
    }
}
