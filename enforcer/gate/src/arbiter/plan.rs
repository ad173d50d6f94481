//! Turns that begin by themselves when the light claims' work is over: most end as they told, and the arbiter can
//! decide what follows when they begin.

use super::{Arbiter, Claim, Phase, Process, Says, stamps_of};
use crate::{Flags, SILENCE_NS};

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
    pub(super) fn adopt_plan(&mut self, now: u64, claims: &[Claim<'_>]) {
        let Some(plan) = self.plan.take().filter(|plan| now >= plan.at_ns) else {
            return;
        };
        *self = *plan.then;
        // Reports from before the turn do not count as its use.
        let holder = claims.iter().find(|c| c.id == plan.id);
        if let Some(claim) = holder.filter(|c| c.processes.iter().all(|p| p.said_ns < plan.at_ns))
            && let Phase::Turn { stamps, .. } = &mut self.phase
        {
            *stamps = stamps_of(claim);
        }
    }

    /// The turn after the light claims' work, if it ends as told, where no claim has several GPUs.
    pub(super) fn foresee(&self, now: u64, claims: &[Claim<'_>]) -> Option<Plan> {
        let lit = self.records.iter().filter(|r| self.lit.contains(&r.id));
        if !{ lit }.all(|r| r.pauses.is_sure() && r.flags.has(Flags::LATER)) {
            return None;
        }
        let at_ns = self.light_until_ns(claims).filter(|at| *at > now)?;
        // A report that changes little changes nothing.
        let mut told = self.records.iter().map(|r| r.turn_begins_ns);
        let same = told.find(|told| *told > now && told.abs_diff(at_ns) <= self.late_ns);
        let at_ns = same.unwrap_or(at_ns);
        if at_ns > now + SILENCE_NS / 2 {
            return None;
        }
        // The only heavy claim wants to go on behind its work.
        let heavy = claims.iter().filter(|c| c.is_gated && self.is_heavy(c.id));
        let is_only = heavy.count() == 1;
        let later = |p: &Process, is_heavy: bool| match is_heavy && p.busy {
            true => Process {
                waiting: p.waiting || is_only,
                busy: p.expected_ns > at_ns,
                used_ns: p.used_ns + p.expected_ns.min(at_ns).saturating_sub(p.said_ns),
                ..*p
            },
            false => *p,
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
        let (id, _) = then.turn().filter(|(id, _)| self.is_heavy(*id))?;
        let said = then.find(id)?;
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
