//! Rules that keep a claim from starting whatever is free: of quotas, and of its class at this hour.

use std::time::Duration;

use super::{Machine, Now};
use crate::claim::{ClaimId, Class, Request};
use crate::class::Rules;
use crate::quota::Party;
use crate::reason::{self, Reason};

impl Machine {
    /// What holds for the claims of a class now.
    #[must_use]
    pub fn rules_of(&self, class: Class) -> Rules {
        self.clocked.rules(class)
    }

    /// How long nothing is taken yet from a claim that runs, since it has come to its GPU only now.
    #[must_use]
    pub fn min_run_left(&self, now: Now, id: ClaimId) -> Duration {
        let granted = self.claims.get(id);
        let until = granted.map(|g| self.min_run_ends(g));
        until.unwrap_or_default().saturating_sub(now)
    }

    /// The party from whose guarantee a claim is served; none where it is its owner's equal part.
    #[must_use]
    pub fn guaranteed_by(&self, id: ClaimId) -> Option<&Party> {
        self.quotas.guarantees(id)
    }

    /// The minute of the day by which rules hold.
    #[must_use]
    pub fn minute(&self) -> u16 {
        self.clocked.minute
    }

    /// Whether a claim starts at no hour such as this. One that was parked comes back at any.
    pub(super) fn waits_for_hours(&self, id: ClaimId, request: &Request) -> bool {
        !self.rules_of(request.class).start && self.request_of(id).is_none()
    }

    /// The rule, of a quota, its GPUs or its class, that keeps a claim from starting whatever is free.
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
        // What could not be reclaimed is not lent; a claim that was parked comes back.
        let firm = !self.rules_of(class).preemptible && self.request_of(id).is_none();
        (firm && !entitled).then_some(Reason::Firm { class })
    }
}
