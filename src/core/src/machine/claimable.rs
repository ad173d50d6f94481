//! What could be claimed now, with the claims that can be moved packed on paper: in fact they may be spread. Asked of
//! what decides, so that both cannot disagree.

use std::cell::Cell;

use super::board::Problem;
use super::plan::{Future, Who};
use super::{Ask, Machine, Now};
use crate::claim::{ClaimId, Request};
use crate::ledger::largest_part;
use crate::sched::solve::MAX_GPUS;
use crate::units::{Bytes, Share};

/// What could be claimed of the GPUs of one model.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ModelRoom {
    /// The model.
    pub model: String,
    /// The largest part of one GPU.
    pub largest: Share,
    /// Whole GPUs at a time.
    pub whole: u32,
}

/// What could be claimed now.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Claimable {
    /// The largest part of each GPU that is free as it is.
    pub direct: Vec<Share>,
    /// The largest part of each GPU.
    pub by_gpu: Vec<Share>,
    /// By model.
    pub models: Vec<ModelRoom>,
    /// Parts that are free, all GPUs together.
    pub sum: Share,
}

/// Somebody who would come after all who wait, and what the decision about him would look at.
#[derive(Debug)]
struct Asker<'m> {
    machine: &'m Machine,
    now: Now,
    blocked: Vec<bool>,
    future: Future,
    /// Those who could be moved.
    problem: Option<Problem>,
    /// Steps of the searches so far.
    steps: Cell<u32>,
}

/// Steps of all searches. Where they are used up no more is told than is known: a few milliseconds on 16 full GPUs.
const STEPS: u32 = 60_000;

impl Machine {
    /// What a claim made now could have: at once, or as soon as others have been moved for it. Found by what decides
    /// about claims that wait, so a claim of this size is granted or gets a plan of moves, and a larger one does not, unless
    /// more is done to others: two that change places (one waits in the host), or something that is taken for whoever is
    /// guaranteed that much. It comes after all who wait. While somebody does, it is what it would get at once: of a GPU
    /// that is kept there is nothing, and where room is made, there is what will be left. Of moves nothing is promised
    /// then, since those who are suspended for somebody come back before it. `charges` are those of this moment: while
    /// nobody waits the machine has none that are as fresh.
    #[must_use]
    pub fn claimable_now(&self, charges: Vec<(ClaimId, usize, Bytes)>) -> Claimable {
        let mut fresh = self.clone();
        fresh.charge(charges);
        fresh.borrowers_now();
        fresh.room()
    }

    fn room(&self) -> Claimable {
        let gpus = self.ledger.gpus().len().min(MAX_GPUS);
        let asker = self.asker();
        let direct: Vec<Share> = (0..gpus).map(|g| asker.direct(g)).collect();
        let sum = direct
            .iter()
            .fold(Share::ZERO, |sum, s| sum.saturating_add(*s));
        let mut models: Vec<(&str, Vec<usize>)> = Vec::new();
        for (g, facts) in self.ledger.gpus().iter().enumerate().take(gpus) {
            match models.iter_mut().find(|(model, _)| *model == facts.model) {
                Some((_, of)) => of.push(g),
                None => models.push((&facts.model, vec![g])),
            }
        }
        models.sort_unstable();
        let by_gpu: Vec<Share> = (0..gpus).map(|g| asker.largest(&[g], direct[g])).collect();
        let room = |(model, of): (&str, Vec<usize>)| {
            let most = of.iter().map(|g| direct[*g]).max().unwrap_or_default();
            let whole = |count: &u32| asker.starts(&of, Share::ONE, *count);
            let count = u32::try_from(of.len()).unwrap_or(u32::MAX);
            ModelRoom {
                whole: (1..=count).take_while(whole).last().unwrap_or(0),
                largest: asker.largest(&of, most),
                model: model.to_owned(),
            }
        };
        Claimable {
            models: models.into_iter().map(room).collect(),
            direct,
            by_gpu,
            sum,
        }
    }

    pub(super) fn left(&self, gpu: usize, future: &Future) -> Share {
        let reserved = future.reserved.as_ref();
        let beside = reserved.map_or(Share::ONE, |r| r.ledger.claimable(gpu));
        let now = self.ledger.claimable(gpu);
        now.min(future.ledger.claimable(gpu)).min(beside)
    }

    /// The machine as whoever comes after all who wait finds it: where those for whom room is made will be, and what is
    /// kept for another.
    pub(super) fn behind_all(&self) -> Future {
        let now = self.past.at();
        let mut future = self.all_arrived(now);
        for waiting in &self.queue {
            let plan = self.plan_of(waiting.id());
            let planned = match (&waiting.ask, plan) {
                (Ask::Claim { request, .. }, Some(plan)) => future.take(plan, request),
                _ => false,
            };
            if !planned && !waiting.blocks.is_empty() && future.reserved.is_none() {
                future.reserved = self.reserve(now, waiting, &future);
            }
        }
        future
    }

    fn asker(&self) -> Asker<'_> {
        let now = self.past.at();
        let future = self.behind_all();
        let blocked = vec![false; self.ledger.gpus().len()];
        let nobody = Request::anybody(Share::ZERO, 0);
        let problem = (self.queue.is_empty() && self.reclaim.rules.enabled)
            .then(|| self.problem(now, &future))
            .map(|mut p| {
                p.asked_by(&Who::last(&nobody), &blocked);
                p
            })
            .filter(|p| p.board.items.iter().any(|i| i.mask.count_ones() > i.parts));
        Asker {
            machine: self,
            now,
            blocked,
            future,
            problem,
            steps: Cell::new(0),
        }
    }
}

impl Asker<'_> {
    /// Whether a claim of so many of these GPUs, this part of each, would start, now or after moves.
    fn starts(&self, of: &[usize], part: Share, count: u32) -> bool {
        let first = of.first().map_or(0, |g| self.machine.ledger.first_on(*g));
        let gpus = of.iter().filter_map(|g| u32::try_from(*g).ok());
        let request = Request {
            gpus: count,
            only_gpus: gpus.collect(),
            ..Request::anybody(part, first)
        };
        let now = self.machine.place_now(&request, None, &self.future);
        now.is_some() || self.moves(&request)
    }

    fn moves(&self, request: &Request) -> bool {
        let Some(problem) = self.problem.as_ref().filter(|_| self.steps.get() < STEPS) else {
            return false;
        };
        let ledger = &self.future.ledger;
        let Some(item) = problem.item(ledger, request, &self.blocked) else {
            return false;
        };
        let who = Who::last(request);
        let (plan, steps) = self
            .machine
            .by_moves(self.now, &who, problem, &item, &self.future);
        self.steps.set(self.steps.get() + steps);
        // Who changes places with another waits in the host meanwhile: that is more than a move.
        plan.is_some_and(|plan| {
            self.machine.goes_in_turn(ledger, &plan.steps)
                && self.future.after(&plan, request).is_some()
        })
    }

    /// The largest part of a GPU that is free as it is.
    fn direct(&self, gpu: usize) -> Share {
        self.machine.left(gpu, &self.future)
    }

    /// The largest part of one of these GPUs; `direct` of it without a move.
    fn largest(&self, of: &[usize], direct: Share) -> Share {
        if self.problem.is_none() || direct == Share::ONE {
            return direct;
        }
        largest_part(|part| part <= direct || self.starts(of, part, 1)).max(direct)
    }
}

#[cfg(test)]
mod agrees;
#[cfg(test)]
mod tests {
    use super::super::Event;
    use super::super::lever::{Holding, Levers};
    use super::super::tests::World;
    use super::*;
    use crate::claim::Class;

    fn notebook(w: &mut World, id: u64, gpu: u32, movable: bool) {
        let half = Share::from_milli(500);
        let mut r = Request::from_gpus(half, Share::ONE, Class::Interactive).unwrap();
        r.only_gpus = vec![gpu];
        w.submit_request(id, r, None);
        // It may go elsewhere now that it is there.
        let mut r = Request::from_gpus(half, Share::ONE, Class::Interactive).unwrap();
        r.movable = movable;
        let slices = w.machine.ledger().slices(ClaimId(id)).unwrap().to_vec();
        w.send(Event::Restore {
            id: ClaimId(id),
            request: Some(Box::new(r)),
            holding: Holding::Here(slices),
            ends: None,
        });
        w.send(Event::Levers {
            id: ClaimId(id),
            levers: Levers {
                movable: Ok(()),
                park: Ok(()),
                ..Levers::default()
            },
        });
    }

    #[test]
    fn two_halves_that_are_spread_leave_a_whole_gpu_claimable_on_paper() {
        let mut w = World::new(&[24, 24]);
        let half = Share::from_milli(500);
        assert_eq!(w.machine.claimable_now(Vec::new()).models[0].whole, 2);
        notebook(&mut w, 1, 0, true);
        notebook(&mut w, 2, 1, true);
        let now = w.machine.claimable_now(Vec::new());
        assert_eq!(now.by_gpu, [half; 2], "they have just started");
        w.now += std::time::Duration::from_secs(30);
        w.send(Event::Tick);
        let direct = [0, 1].map(|g| w.machine.claimable(g).milli());
        assert_eq!(direct, [500, 500], "in fact half of each is free");
        let now = w.machine.claimable_now(Vec::new());
        assert_eq!(now.by_gpu, [Share::ONE, Share::ONE]);
        let model = &now.models[0];
        assert_eq!((model.largest, model.whole), (Share::ONE, 1));
        assert_eq!(now.sum, Share::ONE);
    }

    #[test]
    fn who_stays_where_he_is_leaves_what_is_free() {
        let mut w = World::new(&[24, 24]);
        notebook(&mut w, 1, 0, false);
        notebook(&mut w, 2, 1, false);
        let now = w.machine.claimable_now(Vec::new());
        assert_eq!(now.by_gpu, [Share::from_milli(500); 2]);
        assert_eq!(now.models[0].whole, 0);
    }
}
