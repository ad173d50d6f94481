//! When the machine wants to hear of the time, if nothing else happens before.

use std::time::Duration;

use super::order::AWAY;
use super::{Machine, Now};
use crate::sched::fair::LEVELS;

/// While somebody waits, what owners have had moves them past one another: that is looked at so often.
const RETHINK: Duration = Duration::from_secs(60);

impl Machine {
    /// The next moment at which [`super::Event::Tick`] may change something that no other event changes: a countdown or a
    /// lease is over, somebody has waited, run or had for long enough. `None` while only events can.
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
        // From whom something can be taken, and how much they have had.
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
        // Claims of several owners are compared by what those have had.
        let held = self.held_by(|_, uid| uid);
        for ((id, uid), gpus) in self.held_by(|id, uid| (id, uid)) {
            let had = self.had_s(id, uid);
            let mut bounds = LEVELS.iter().map(Duration::as_secs_f64);
            if let Some(bound) = bounds
                .find(|b| *b > had)
                .filter(|_| gpus > 0.0 && had > 0.0)
            {
                let left = (bound / had - 1.0) * self.past(uid) / held[&uid];
                // It is forgotten meanwhile, so this is a little early.
                at(now.saturating_add(Duration::from_secs_f64(left.max(1.0))));
            }
        }
        for waiting in &self.queue {
            let ends = [waiting.deadline, waiting.absent, waiting.expected];
            ends.into_iter().flatten().for_each(&mut at);
            at(self.turn_of(waiting));
            at(waiting.since.saturating_add(AWAY));
        }
        at(now.saturating_add(RETHINK));
        next
    }
}
