//! Turns that begin by themselves when the light claims' work is over: most end as they told, and the arbiter can
//! decide what follows when they begin.

use super::{Arbiter, Claim, Process, Says};
use crate::SILENCE_NS;

/// The state from a later time on, if no process calls until then.
#[derive(Debug, Clone)]
pub(super) struct Plan {
    at_ns: u64,
    then: Box<Arbiter>,
    /// Time of the look after that.
    pub next_ns: u64,
    /// The claim whose turn begins then, and what it is told now.
    pub id: u64,
    pub says: Says,
}

impl Arbiter {
    /// What was planned has happened, unless a process called earlier.
    pub(super) fn adopt_plan(&mut self, now: u64) {
        if let Some(plan) = self.plan.take().filter(|plan| now >= plan.at_ns) {
            *self = *plan.then;
        }
    }

    /// The turn after the light claims' work, if it ends as told.
    pub(super) fn foresee(&self, now: u64, claims: &[Claim<'_>]) -> Option<Plan> {
        let lit = self.records.iter().filter(|r| self.lit.contains(&r.id));
        let is_sure = { lit }.all(|r| r.pauses.is_as_told());
        let at_ns = self.light_until_ns(claims).filter(|at| *at > now)?;
        let is_near = at_ns <= now + SILENCE_NS / 2;
        if !is_sure || !is_near || claims.iter().any(|c| c.has_many()) {
            return None;
        }
        // A heavy claim that has work wants to go on behind it.
        let later = |p: &Process, is_heavy: bool| Process {
            waiting: p.waiting || is_heavy && p.busy,
            busy: p.busy && !(is_heavy && p.expected_ns <= at_ns),
            ..*p
        };
        let processes: Vec<Vec<Process>> = claims
            .iter()
            .map(|c| {
                let is_heavy = self.is_heavy(c.id);
                c.processes.iter().map(|p| later(p, is_heavy)).collect()
            })
            .collect();
        let claims: Vec<Claim<'_>> = claims
            .iter()
            .zip(&processes)
            .map(|(claim, processes)| Claim {
                processes,
                ..claim.clone()
            })
            .collect();
        let mut then = Box::new(self.clone());
        then.release(at_ns, &claims, &mut |_, _| true);
        let next_ns = then.decide(at_ns, &claims, &mut Vec::new())?;
        let (id, _) = then.turn()?;
        let said = then.records.iter().find(|r| r.id == id)?;
        let says = Says {
            turn_begins_ns: at_ns,
            turn_ends_ns: said.turn_ends_ns,
            ahead_ns: said.ahead_of_gpu_ns,
            flags: said.flags,
            ..Says::just(said.word.mode())
        };
        Some(Plan {
            at_ns,
            then,
            next_ns: next_ns.min(now + SILENCE_NS / 5 * 3),
            id,
            says,
        })
    }

    /// Remembers a plan, of which the claims have been told.
    pub(super) fn keep_plan(&mut self, mut plan: Plan) {
        for record in &mut plan.then.records {
            if let Some(told) = self.records.iter().find(|r| r.id == record.id) {
                record.word = told.word;
                record.flags = told.flags;
                (record.turn_begins_ns, record.turn_ends_ns) = (0, told.turn_ends_ns);
                record.ahead_of_gpu_ns = told.ahead_of_gpu_ns;
            }
        }
        self.plan = Some(plan);
    }
}
