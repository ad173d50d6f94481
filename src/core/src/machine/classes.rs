//! Rules that delay a claim even if room is free: quotas, and the class's rules at this hour.

use std::time::Duration;

use super::{Machine, Now};
use crate::claim::{ClaimId, Class, Request};
use crate::class::Rules;
use crate::quota::Party;
use crate::reason::{self, Reason};

impl Machine {
    /// The rules of a class now.
    #[must_use]
    pub fn rules_of(&self, class: Class) -> Rules {
        self.clocked.rules(class)
    }

    /// Time left until a running claim has reached its minimum run time.
    #[must_use]
    pub fn min_run_left(&self, now: Now, id: ClaimId) -> Duration {
        let granted = self.claims.get(id);
        let until = granted.map(|g| self.min_run_ends(g));
        until.unwrap_or_default().saturating_sub(now)
    }

    /// The party whose guarantee serves a claim; none for its owner's equal part.
    #[must_use]
    pub fn guaranteed_by(&self, id: ClaimId) -> Option<&Party> {
        self.quotas.guarantees(id)
    }

    /// The minute of the day that rules refer to.
    #[must_use]
    pub fn minute(&self) -> u16 {
        self.clocked.minute
    }

    /// Whether the class of a claim may not start at this hour. Parked claims may always come back.
    pub(super) fn waits_for_hours(&self, id: ClaimId, request: &Request) -> bool {
        !self.rules_of(request.class).start && self.request_of(id).is_none()
    }

    /// The rule of a quota, a GPU or the class that keeps a claim from starting.
    pub(super) fn kept_by_rule(
        &self,
        id: ClaimId,
        request: &Request,
        entitled: bool,
    ) -> Option<Reason> {
        if let Some(over) = self.quotas.keeps(&self.ledger, id, request) {
            return Some(Reason::Quota(over));
        }
        if let Some(foreign) = reason::foreign(&self.ledger, request) {
            return Some(foreign);
        }
        let class = request.class;
        if self.waits_for_hours(id, request) {
            let by_hour = self.clocked.classes.of(class);
            let from = by_hour.starts_at(self.clocked.minute);
            return Some(Reason::Hours { class, from });
        }
        // A claim that cannot be reclaimed gets nothing on loan. Parked claims may come back.
        let firm = !self.rules_of(class).preemptible && self.request_of(id).is_none();
        (firm && !entitled).then_some(Reason::Firm { class })
    }
}
