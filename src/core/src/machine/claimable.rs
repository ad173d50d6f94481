//! The largest size that a user could claim at once. A copy of the machine decides up to the turn of a trial claim of
//! this user, so that the answer agrees with the real decision.

use std::collections::BTreeMap;

use super::plan::Future;
use super::{Action, Ask, Machine, Now, Waiting};
use crate::claim::{ClaimId, Request};
use crate::place;
use crate::quota::Party;
use crate::reason::Reason;
use crate::units::{Bytes, Share};

/// A user who could claim now.
#[derive(Clone, Debug)]
pub struct Caller {
    /// Template of the request, without sizes and GPUs.
    pub request: Request,
    /// The parties that it would count for.
    pub parties: Vec<Party>,
}

/// Room on the GPUs of one model.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ModelRoom {
    pub model: String,
    /// The largest part of one GPU.
    pub largest: Share,
    /// Number of whole GPUs that one claim can get.
    pub whole: u32,
}

/// What a caller could claim now.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Claimable {
    /// The largest part of each GPU, in hundredths.
    pub by_gpu: Vec<Share>,
    /// The claim for which the rest of each GPU is planned; none if there is no rest or a rule is the cause.
    pub planned: Vec<Option<ClaimId>>,
    pub models: Vec<ModelRoom>,
    /// The quota or class rule that limits the caller.
    pub rule: Option<Reason>,
}

impl Caller {
    /// A claim for `part` of each of `count` GPUs among `of`.
    pub(super) fn asks(&self, of: &[usize], part: Share, count: u32) -> Request {
        let gpus = of.iter().filter_map(|g| u32::try_from(*g).ok());
        Request {
            gpus: count,
            share: part,
            mem: None,
            sm: Some(part),
            sm_limit: self.request.sm_limit.max(part),
            only_gpus: gpus.collect(),
            ..self.request.clone()
        }
    }
}

/// A trial claim of the caller in the queue of a copy of the machine. Its size also affects its place in the queue and
/// what is left of its owner's guarantee. Sizes for which these agree are of one kind, and one decision answers for all
/// of them.
struct Probe<'m> {
    copy: Machine,
    now: Now,
    caller: &'m Caller,
    models: Vec<(&'m str, Vec<usize>)>,
    /// Kind of each size that was tried.
    sizes: BTreeMap<Share, u64>,
    kinds: BTreeMap<u64, Found>,
}

/// What a trial claim of one kind finds when its turn comes.
#[derive(Clone, Debug, Default)]
struct Found {
    /// The largest part of each GPU.
    by_gpu: Vec<Share>,
    /// Number of whole GPUs of each model.
    whole: Vec<usize>,
    /// The claim for which the rest of each GPU is planned.
    planned: Vec<Option<ClaimId>>,
    rule: Option<Reason>,
}

/// Number of the trial claim, far above real ones: plans may still refer to a claim that has just ended.
pub(super) const NOBODY: ClaimId = ClaimId(u64::MAX >> 16);
/// Sizes are reported in these steps.
const STEP: Share = Share::from_milli(10);
/// More decisions than any event takes.
const ROUNDS: usize = 8;

impl Machine {
    /// The largest claim that this caller would get at once. `charges` must be current: while the queue is empty the
    /// machine's own are outdated.
    #[must_use]
    pub fn claimable_now(
        &self,
        now: Now,
        caller: &Caller,
        charges: &[(ClaimId, usize, Bytes)],
    ) -> Claimable {
        let gpus = self.ledger.gpus();
        let mut models: Vec<(&str, Vec<usize>)> = Vec::new();
        for (g, facts) in gpus.iter().enumerate() {
            match models.iter_mut().find(|(model, _)| *model == facts.model) {
                Some((_, of)) => of.push(g),
                None => models.push((&facts.model, vec![g])),
            }
        }
        models.sort_unstable();
        let mut probe = Probe::new(self, now, caller, charges, models);
        let mut found = Claimable::default();
        let mut spans = Vec::new();
        probe.spans(1, Share::ONE.milli() / STEP.milli(), &mut spans);
        for g in 0..gpus.len() {
            let (part, planned, rule) = probe.largest(g, &spans);
            found.by_gpu.push(part);
            found.planned.push(planned);
            found.rule = found.rule.or(rule);
        }
        found.models = (0..probe.models.len())
            .map(|model| {
                let parts = probe.models[model].1.iter().map(|g| found.by_gpu[*g]);
                ModelRoom {
                    largest: parts.max().unwrap_or_default(),
                    whole: u32::try_from(probe.whole(model)).unwrap_or(u32::MAX),
                    model: probe.models[model].0.to_owned(),
                }
            })
            .collect();
        found
    }
}

impl<'m> Probe<'m> {
    fn new(
        machine: &Machine,
        now: Now,
        caller: &'m Caller,
        charges: &[(ClaimId, usize, Bytes)],
        models: Vec<(&'m str, Vec<usize>)>,
    ) -> Self {
        let mut copy = machine.clone();
        copy.account(now);
        copy.quotas.enter(NOBODY, caller.parties.clone());
        copy.charge(charges.to_vec());
        copy.adopt(now, &mut Vec::new());
        copy.forget_absent(now);
        let ask = Ask::Claim {
            id: NOBODY,
            request: caller.asks(&[], Share::ONE, 1),
            told: None,
        };
        copy.enqueue(now, ask, None);
        Self {
            copy,
            now,
            caller,
            models,
            sizes: BTreeMap::new(),
            kinds: BTreeMap::new(),
        }
    }

    /// What a trial claim of this size finds.
    fn found(&mut self, size: Share) -> &Found {
        // Sizes between two of one kind are of that kind.
        let less = self.sizes.range(..=size).next_back().map(|(_, kind)| *kind);
        let more = self.sizes.range(size..).next().map(|(_, kind)| *kind);
        let between = less.filter(|_| less == more);
        let copy = &mut self.copy;
        let kind = *self.sizes.entry(size).or_insert_with(|| {
            if let Some(kind) = between {
                return kind;
            }
            let mut queue = copy.queue.iter_mut();
            let own = queue.find(|w| w.id() == NOBODY).map(|w| &mut w.ask);
            if let Some(Ask::Claim { request, .. }) = own {
                (request.share, request.sm) = (size, Some(size));
            }
            copy.order(self.now);
            copy.fingerprint(self.now)
        });
        if !self.kinds.contains_key(&kind) {
            let found = self.decide();
            self.kinds.insert(kind, found);
        }
        &self.kinds[&kind]
    }

    /// What the trial claim finds at its current size.
    fn decide(&self) -> Found {
        let mut copy = self.copy.clone();
        let mut found = Found::default();
        for round in 0..ROUNDS {
            if round > 0 {
                copy.order(self.now);
            }
            let mut actions = Vec::new();
            let mut look = |machine: &Machine, waiting: &Waiting, future: &Future| {
                let own = waiting.id() == NOBODY;
                if own {
                    found.add(self.turn(machine, waiting, future));
                }
                own
            };
            copy.serve(self.now, &mut look, &mut actions);
            if !actions.contains(&Action::Measure) {
                break;
            }
        }
        found
    }

    /// What it finds when its turn comes.
    fn turn(&self, machine: &Machine, waiting: &Waiting, future: &Future) -> Found {
        let ledger = &machine.ledger;
        let asks = |of: &[usize], part, count| self.caller.asks(of, part, count);
        let gone = machine.gone(self.now, NOBODY, &asks(&[], Share::ONE, 1));
        let rule = |request: &Request| {
            let never = machine.quotas.never(ledger, NOBODY, request);
            let kept = || machine.kept_by_rule(NOBODY, request, waiting.entitled);
            never.map(Reason::Quota).or_else(kept)
        };
        let mut found = Found::default();
        for g in 0..ledger.gpus().len() {
            let ask = |part| asks(&[g], part, 1);
            let free = ledger.largest(g, |part| ledger.fit(&ask(part), g).is_some());
            let starts = |part| {
                let ask = ask(part);
                part <= free && rule(&ask).is_none() && !future.is_kept(&ask, gone, g)
            };
            let part = ledger.largest(g, starts);
            found.by_gpu.push(part);
            let kept = (part < free).then(|| rule(&ask(part.saturating_add(STEP))));
            let planned = kept.as_ref().is_some_and(Option::is_none);
            let planned = planned.then(|| future.comes(ledger, g)).flatten();
            // A claim that starts earlier in this decision takes room that was free until then.
            let came = || ledger.comes(&self.copy.ledger, g);
            found.planned.push(planned.or_else(came));
            found.rule = found.rule.or(kept.flatten());
        }
        let whole = |(_, of): &(&str, Vec<usize>)| {
            let most = of
                .iter()
                .filter(|g| found.by_gpu[**g] == Share::ONE)
                .count();
            let starts = |n: &usize| {
                let ask = asks(of, Share::ONE, u32::try_from(*n).unwrap_or(u32::MAX));
                let blocked = future.block(&ask, gone);
                rule(&ask).is_none() && place::best_fit(ledger, &ask, &blocked).is_some()
            };
            (1..=most).rev().find(starts).unwrap_or(0)
        };
        found.whole = self.models.iter().map(whole).collect();
        found
    }

    /// The kinds of sizes in ascending order, each with its first and last size.
    fn spans(&mut self, low: u32, high: u32, spans: &mut Vec<(Share, Share)>) {
        let size = |n: u32| Share::from_milli(n * STEP.milli());
        let (from, to) = (size(low), size(high));
        self.found(from);
        self.found(to);
        if self.sizes[&from] == self.sizes[&to] {
            match spans.last_mut() {
                Some((_, last)) if self.sizes[last] == self.sizes[&from] => *last = to,
                _ => spans.push((from, to)),
            }
        } else {
            let middle = u32::midpoint(low, high);
            self.spans(low, middle, spans);
            self.spans(middle + 1, high, spans);
        }
    }

    /// The largest part of a GPU, the claim for which the rest is planned, and the rule that limits the caller. Not
    /// monotonic: a smaller claim may fail where a larger one starts, if it competes with another claim of its owner.
    fn largest(
        &mut self,
        gpu: usize,
        spans: &[(Share, Share)],
    ) -> (Share, Option<ClaimId>, Option<Reason>) {
        for (from, to) in spans.iter().rev() {
            let found = self.found(*from).by_gpu[gpu];
            if found < *from {
                continue;
            }
            let part = found.min(*to);
            let rest = if part == found {
                *from
            } else {
                part.saturating_add(STEP).min(Share::ONE)
            };
            let rest = self.found(rest);
            return (part, rest.planned[gpu], rest.rule.clone());
        }
        let found = self.found(STEP);
        (Share::ZERO, found.planned[gpu], found.rule.clone())
    }

    /// Number of whole GPUs of a model.
    fn whole(&mut self, model: usize) -> usize {
        let size = |n: usize| Share::from_milli(u32::try_from(n * 1000).unwrap_or(u32::MAX));
        let most = self.found(STEP).whole[model];
        let starts = |n: &usize| self.found(size(*n)).whole[model] >= *n;
        (1..=most).rev().find(starts).unwrap_or(0)
    }
}

impl Found {
    /// Merges the result of a later decision for the same event: the larger sizes count.
    fn add(&mut self, later: Self) {
        let before = std::mem::replace(self, later);
        let most = |now: &mut Share, before: Share| *now = before.max(*now);
        self.by_gpu
            .iter_mut()
            .zip(before.by_gpu)
            .for_each(|(now, before)| most(now, before));
        self.whole
            .iter_mut()
            .zip(before.whole)
            .for_each(|(now, before)| *now = before.max(*now));
    }
}
