//! Picks the next claim, and the length of its turn.

use super::{
    Arbiter, CREDIT_NS, CYCLE_NS, CYCLE_OF_SETS_NS, Claim, Holder, LEAST_TURN_NS, MEET_AHEAD_NS,
    MOST_TURN_NS, Phase, REST_NS, State, TORN_AHEAD_NS, divide, is_torn,
    long::{self, Candidate},
    of_holder, stamps_of, used_by,
};
use crate::PERIOD_NS;

impl Arbiter {
    /// Picks the claim that is furthest behind.
    pub(super) fn next_turn(
        &mut self,
        now: u64,
        open: Option<u64>,
        wanting: &[(&Claim<'_>, State)],
    ) {
        let list: Vec<&Claim<'_>> = wanting.iter().map(|(c, _)| *c).collect();
        let shares = divide(&list);
        let begin = |holder, ends_ns, taken| Phase::Turn {
            holder,
            began_ns: now,
            ends_ns,
            due_ns: ends_ns,
            empty_since_ns: None,
            stamps: of_holder(holder, &list, stamps_of),
            used_ns: of_holder(holder, &list, used_by),
            taken,
            backlog: wanting.iter().any(|(c, s)| {
                let was_free = self.records.iter().any(|r| r.id == c.id && r.was_free);
                holder == Holder::Claim(c.id) && (s.busy || was_free)
            }),
            crowded: wanting
                .iter()
                .any(|(c, s)| s.busy && holder != Holder::Claim(c.id)),
            is_only: wanting
                .iter()
                .all(|(c, s)| !s.waiting || holder == Holder::Claim(c.id)),
        };
        let record = |id: u64| self.records.iter().find(|r| r.id == id);
        // Others' work on the GPU, apart from the next claim's, goes first.
        let least = wanting.iter().filter(|(_, s)| s.waiting);
        let ahead = |id: u64| record(id).map_or(0.0, |r| r.ahead_ns);
        let least = least.min_by(|(a, _), (b, _)| ahead(a.id).total_cmp(&ahead(b.id)));
        let least = least.map(|(c, _)| c.id);
        let drains = wanting.iter().find(|(c, s)| {
            let lingers = record(c.id).is_some_and(|r| r.lingers);
            s.busy && !lingers && least != Some(c.id)
        });
        self.beside.clear();
        if let Some((claim, _)) = drains {
            let busy = wanting.iter().filter(|(c, s)| s.busy && c.id != claim.id);
            self.beside = busy.map(|(c, _)| c.id).collect();
            self.phase = begin(Holder::Claim(claim.id), now, true);
            return;
        }
        // Work queued by a claim that nobody counted is seen in its turn.
        let was_free = |id: u64| record(id).is_some_and(|r| r.was_free);
        if let Some((claim, _)) = wanting.iter().find(|(c, s)| s.waiting && was_free(c.id)) {
            self.phase = begin(Holder::Claim(claim.id), now + LEAST_TURN_NS, false);
            return;
        }
        // Lingering work is on the GPU already; its claim gets a turn when it asks for one.
        let mut order: Vec<(f64, Holder, f64)> = wanting
            .iter()
            .zip(&shares.claims)
            .filter(|((_, s), _)| s.waiting)
            .map(|((c, _), share)| (ahead(c.id), Holder::Claim(c.id), *share))
            .collect();
        if shares.nobody > 0.0 {
            order.push((self.nobody_ahead_ns, Holder::Nobody, shares.nobody));
        }
        order.sort_by(|a, b| a.0.total_cmp(&b.0));
        self.prefer_longest_wait(&mut order);
        let Some(&(mine, holder, share)) = order.first() else {
            self.phase = begin(Holder::Nobody, now + PERIOD_NS, false);
            return;
        };
        // Work of a claim on its other GPUs may wait for its work here.
        let meets = order.iter().copied().find(|(ahead, holder, _)| {
            let claim = list.iter().find(|c| Holder::Claim(c.id) == *holder);
            claim.is_some_and(|c| {
                let again = open == Some(c.id) && !is_torn(now, c);
                let most = self.may_be_ahead(now, c);
                !again && most > 0.0 && ahead - mine < most
            })
        });
        let each_ns = each_ns(&list);
        let (_, holder, share) = meets
            .or_else(|| self.by_deadline(now, &order, each_ns))
            .unwrap_or((mine, holder, share));
        let mut length = self.length_ns(holder, share, order.len(), each_ns);
        let elsewhere = list.iter().find(|c| holder == Holder::Claim(c.id));
        if let Some(ends_ns) = elsewhere
            .and_then(|c| c.elsewhere_ns)
            .filter(|_| meets.is_some())
        {
            length = length.min(ends_ns.saturating_sub(now).max(REST_NS));
        }
        if Some(holder) != open.map(Holder::Claim) {
            self.hand_overs += 1;
        }
        self.phase = begin(holder, now + length, false);
        // One launch goes in each turn, also in the next one of the same claim that ends earlier.
        if let Holder::Claim(id) = holder
            && let Some(record) = self.record(id)
        {
            record.turn_ends_ns = 0;
        }
    }

    /// Length of a turn, where so many want one.
    fn length_ns(&self, holder: Holder, share: f64, count: usize, each_ns: u64) -> u64 {
        let by_share = (share * (each_ns * (count as u64).max(2)) as f64) as u64;
        // The time that a turn takes to begin and end is charged to nobody.
        let lost_ns = match holder {
            Holder::Claim(id) => self.find(id).map_or(0, |r| r.lost_ns),
            Holder::Light | Holder::Nobody => 0,
        };
        by_share.clamp(LEAST_TURN_NS, MOST_TURN_NS) + lost_ns
    }

    /// The claim that goes first with long kernels.
    fn by_deadline(
        &self,
        now: u64,
        order: &[(f64, Holder, f64)],
        each_ns: u64,
    ) -> Option<(f64, Holder, f64)> {
        let candidate = |&(ahead_ns, holder, share): &(f64, Holder, f64)| {
            let Holder::Claim(id) = holder else {
                return None;
            };
            let record = self.find(id)?;
            let (usual_ns, waited_ns) = match self.even_ns {
                Some(ns) => (ns, ns * (self.turns - record.usual.last)),
                None => (record.usual.ns, now.saturating_sub(record.last_turn.0)),
            };
            Some(Candidate {
                id,
                ahead_ns,
                share,
                usual_ns,
                waited_ns,
            })
        };
        let candidates: Vec<Candidate> = order.iter().map(candidate).collect::<Option<_>>()?;
        let next = long::next(&candidates, each_ns)?;
        let mut all = order.iter();
        all.find(|(_, holder, _)| *holder == Holder::Claim(next))
            .copied()
    }

    /// Kernels of one kind vary in duration; a claim that is slightly behind because of that does not overtake a claim
    /// that has waited longer.
    fn prefer_longest_wait(&self, order: &mut [(f64, Holder, f64)]) {
        let Some(&(least, first, _)) = order.first() else {
            return;
        };
        let last = |holder: Holder| match holder {
            Holder::Claim(id) => self.find(id).map_or((0, 0.0), |r| r.last_turn),
            Holder::Light | Holder::Nobody => (u64::MAX, 0.0),
        };
        let near = order.iter().take_while(|(ahead, holder, _)| {
            let (a, b) = (last(*holder).1, last(first).1);
            let (small, large) = (a.min(b), a.max(b));
            ahead - least <= small * (small / large.max(1.0)).powi(4)
        });
        // A claim that is further behind counts as having waited longer.
        let waited = |(ahead, holder, _): &(f64, Holder, f64)| last(*holder).0 as f64 + ahead / 2.0;
        let longest = near
            .enumerate()
            .min_by(|(_, a), (_, b)| waited(a).total_cmp(&waited(b)));
        if let Some((at, _)) = longest {
            order[..=at].rotate_right(1);
        }
    }

    /// Ends a long turn early if a claim arrives that is further behind; if nobody wanted a turn before, otherwise where it
    /// would have ended with that claim.
    pub(super) fn shorten(&mut self, now: u64, wanting: &[(&Claim<'_>, State)]) {
        let Phase::Turn {
            holder,
            began_ns,
            ends_ns,
            is_only,
            ..
        } = self.phase
        else {
            return;
        };
        let torn = |(c, _): &(&Claim<'_>, State)| holder == Holder::Claim(c.id) && is_torn(now, c);
        if ends_ns <= now || wanting.iter().any(torn) {
            return;
        }
        let ahead = |id: u64| self.find(id).map_or(0.0, |r| r.ahead_ns);
        let mine = match holder {
            Holder::Claim(id) => ahead(id),
            Holder::Light => return,
            Holder::Nobody => self.nobody_ahead_ns,
        } + now.saturating_sub(began_ns) as f64;
        let meets = |c: &Claim<'_>| match self.may_be_ahead(now, c) {
            0.0 => -CREDIT_NS / 4.0,
            more => more,
        };
        // Claims on several GPUs do not end each other's turns to meet.
        let own = wanting.iter().map(|(c, _)| *c);
        let own = { own }.find(|c| holder == Holder::Claim(c.id) && c.elsewhere_ns.is_some());
        let behind = wanting.iter().any(|(c, s)| {
            let more = own.map_or_else(|| meets(c), |own| -meets(own).abs());
            s.waiting && holder != Holder::Claim(c.id) && ahead(c.id) - more < mine
        });
        let most_ns = match behind {
            true => Some(LEAST_TURN_NS),
            // Turns on several GPUs end together.
            false if own.is_some() || !is_only => None,
            false => self.most_ns(holder, wanting),
        };
        if let Phase::Turn {
            ends_ns, due_ns, ..
        } = &mut self.phase
            && let Some(most_ns) = most_ns
        {
            *ends_ns = (*ends_ns).min(now.max(began_ns + most_ns));
            *due_ns = (*due_ns).min(*ends_ns);
        }
    }

    /// Length of a claim's turn if all that want one now had wanted it at its beginning; `None` if nobody else does.
    fn most_ns(&self, holder: Holder, wanting: &[(&Claim<'_>, State)]) -> Option<u64> {
        let at = wanting
            .iter()
            .position(|(c, _)| holder == Holder::Claim(c.id))?;
        let others = wanting.iter().enumerate();
        let others = { others }
            .filter(|(other, (_, s))| *other != at && s.waiting)
            .count();
        if others == 0 {
            return None;
        }
        let list: Vec<&Claim<'_>> = wanting.iter().map(|(c, _)| *c).collect();
        let shares = divide(&list);
        let count = 1 + others + usize::from(shares.nobody > 0.0);
        Some(self.length_ns(holder, shares.claims[at], count, each_ns(&list)))
    }

    /// Lead that a claim may have and still go first, because it has the turn on other GPUs.
    fn may_be_ahead(&self, now: u64, claim: &Claim<'_>) -> f64 {
        let ns = match claim.elsewhere_ns {
            Some(_) if is_torn(now, claim) => TORN_AHEAD_NS,
            Some(ends_ns) if ends_ns > now + LEAST_TURN_NS => MEET_AHEAD_NS,
            _ => return 0.0,
        };
        let share = self.find(claim.id).map_or(0.0, |r| r.usual.share);
        ns / share
            .max(f64::from(claim.request_permille) / 1000.0)
            .max(0.01)
    }
}

/// Time per claim in a cycle of turns.
fn each_ns(claims: &[&Claim<'_>]) -> u64 {
    match claims.iter().any(|c| c.has_many()) {
        true => CYCLE_OF_SETS_NS,
        false => CYCLE_NS,
    }
}
