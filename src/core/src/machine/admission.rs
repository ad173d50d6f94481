//! GPUs that the queue does not decide about, and claims that are only counted. These are outside the ledger, and no
//! lever is used on them. Their real use comes with the facts, like that of programs without a claim, and is offered to
//! no other claim.

use std::cmp::Reverse;
use std::time::Duration;

use super::claims::{Claim, Phase, PhaseKind};
use super::{Action, Event, Machine, Now};
use crate::claim::{ClaimId, Request};
use crate::ledger::{Admission, Slice};
use crate::place;
use crate::reason::Reason;
use crate::resize::ResizeError;

/// By then a program has allocated its memory.
const SETTLES: Duration = Duration::from_secs(60);

impl Machine {
    /// Handles an event of a claim that is only counted, or becomes so; false for other events. No decision follows.
    pub(super) fn is_outside_the_books(
        &mut self,
        now: Now,
        event: &Event,
        actions: &mut Vec<Action>,
    ) -> bool {
        let (id, request, gpus) = match event {
            Event::Submit { id, request, .. } | Event::Adopt { id, request, .. } => {
                (*id, request, self.let_in(*id, request))
            }
            Event::OnBehalf { id, request, gpus } => {
                let passes = |g: &usize| self.ledger.admission(*g) == Admission::Pass;
                let all = !gpus.is_empty() && gpus.iter().all(passes);
                (*id, request, all.then(|| gpus.clone()))
            }
            _ => return self.of_counted(event, actions),
        };
        let slices = gpus.into_iter().flatten();
        let slices: Vec<Slice> = slices
            .filter_map(|g| self.ledger.regardless(request, g))
            .collect();
        if slices.is_empty() {
            return false;
        }
        self.next_seq += 1;
        let claim = Claim::new(request.clone(), self.next_seq, now);
        actions.push(self.count(id, claim, slices));
        true
    }

    /// Enters a claim outside the ledger.
    pub(super) fn count(&mut self, id: ClaimId, claim: Claim, slices: Vec<Slice>) -> Action {
        self.claims.enter(id, claim, Phase::Counted(slices.clone()));
        Action::Grant {
            id,
            slices,
            ends: None,
            counted: true,
        }
    }

    /// The GPUs that a claim gets if they admit every claim: those with the most memory left, of one model if possible.
    /// `None` if the queue or another scheduler decides, or if the claim is queued already.
    fn let_in(&self, id: ClaimId, request: &Request) -> Option<Vec<usize>> {
        if (self.ledger.all_queued() && !request.counted) || self.queue.iter().any(|w| w.id() == id)
        {
            return None;
        }
        let lets = |g: &usize| {
            let by = self.ledger.admission(*g);
            (by == Admission::Pass || (request.counted && by == Admission::Queue))
                && !self.ledger.is_drained(*g)
                && self.ledger.regardless(request, *g).is_some()
        };
        let open: Vec<usize> = match request.counted {
            true => place::named(&self.ledger, request).collect(),
            false => place::open_to(&self.ledger, request).collect(),
        };
        let mut gpus: Vec<usize> = open.into_iter().filter(lets).collect();
        gpus.sort_by_key(|g| (Reverse(self.ledger.mem_free(*g)), *g));
        let most = request.gpus as usize;
        let model = |g: usize| &self.ledger.gpus()[g].model;
        let alike = |g: &usize| {
            let of = gpus.iter().filter(|o| model(**o) == model(*g));
            of.copied().take(most).collect::<Vec<_>>()
        };
        let found = gpus.iter().map(alike).find(|of| of.len() == most);
        found.filter(|of| !of.is_empty())
    }

    /// Whether the GPUs that are open to a claim admit every claim.
    pub(super) fn lets_in(&self, request: &Request) -> bool {
        let passes = |g| self.ledger.admission(g) == Admission::Pass;
        !self.ledger.all_queued()
            && place::open_to(&self.ledger, request)
                .next()
                .is_some_and(passes)
    }

    /// Where a queued claim is admitted there: one by one, as far as memory is really free. Claims that were admitted a
    /// moment ago have not allocated theirs yet.
    pub(super) fn let_in_of_queue(&self, now: Now, request: &Request) -> Option<Vec<Slice>> {
        let mut used = self.ledger.in_use();
        for (id, claim) in self.claims.iter() {
            if let Some(Phase::Counted(slices)) = self.claims.phase(id)
                && now < claim.run.since.saturating_add(SETTLES)
            {
                used.insert(id, slices.clone());
            }
        }
        let found = place::best_fit(&used, request, &[])?;
        let slices = found.iter();
        let slices = slices.filter_map(|s| self.ledger.regardless(request, s.gpu));
        Some(slices.collect())
    }

    fn of_counted(&mut self, event: &Event, actions: &mut Vec<Action>) -> bool {
        let (Event::Gone { id }
        | Event::Ending { id }
        | Event::Resize { id, .. }
        | Event::Wish { id, .. }
        | Event::MoveTo { id, .. }
        | Event::Wanted { id }
        | Event::Unwanted { id }
        | Event::Lease { id, .. }
        | Event::Levers { id, .. }) = event
        else {
            return false;
        };
        let id = *id;
        if self.claims.phase(id).map(Phase::kind) != Some(PhaseKind::Counted) {
            return false;
        }
        match event {
            Event::Gone { .. } => {
                self.forget(id);
                self.quotas.leave(id);
            }
            Event::Ending { .. } => self.is_ending(id),
            Event::Resize { ticket, .. } => actions.push(Action::ResizeRefused {
                ticket: *ticket,
                error: ResizeError::NotHeld { id },
            }),
            Event::MoveTo { .. } => actions.push(Action::MoveRefused {
                id,
                why: "gshare only counts it and does not schedule it".to_owned(),
            }),
            _ => {}
        }
        true
    }

    /// Enters a claim to which another scheduler has given these GPUs. Its word counts: the ledger may hold more than
    /// exists.
    pub(super) fn on_behalf(
        &mut self,
        now: Now,
        id: ClaimId,
        request: Request,
        gpus: &[usize],
        actions: &mut Vec<Action>,
    ) {
        let own = |g: &&usize| self.ledger.admission(**g) != Admission::Foreign;
        let slices: Option<Vec<Slice>> = gpus
            .iter()
            .map(|g| self.ledger.regardless(&request, *g))
            .collect();
        match (gpus.iter().find(own), slices) {
            (None, Some(slices)) if !slices.is_empty() => {
                self.next_seq += 1;
                let claim = Claim::new(request, self.next_seq, now);
                actions.push(self.grant(id, claim, slices));
            }
            (gpu, _) => {
                self.quotas.leave(id);
                let not = |gpu: &usize| Reason::NotForeign { gpu: *gpu };
                actions.push(Action::Refuse {
                    id,
                    reason: gpu.map_or(Reason::NoGpu, not),
                    for_now: true,
                });
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::reclaim::tests::{Bench, s};
    use super::super::tests::{World, facts};
    use super::*;
    use crate::claim::Class;
    use crate::machine::lever::{Lever, Wish};
    use crate::units::{Bytes, Share};

    fn machine(gpus: usize) -> World {
        let mut w = World::new(&[]);
        let named = |g| crate::GpuFacts {
            uuid: format!("GPU-{g}"),
            ..facts(24)
        };
        w.send(Event::Gpus((0..gpus).map(named).collect()));
        w
    }

    fn admit(w: &mut World, gpu: usize, by: Admission) {
        let uuid = format!("GPU-{gpu}");
        w.send(Event::Admission { uuid, by });
    }

    fn request(milli: u32, gpus: &[u32]) -> Request {
        let mut r = Request::from_gpus(Share::from_milli(milli), Share::ONE, Class::Batch).unwrap();
        r.only_gpus = gpus.to_vec();
        r
    }

    fn phase(w: &World, id: u64) -> Option<Phase> {
        w.machine.holding(ClaimId(id)).map(|h| h.phase)
    }

    fn counted_on(w: &World, id: u64) -> Option<usize> {
        match phase(w, id)? {
            Phase::Counted(slices) => Some(slices.first()?.gpu),
            _ => None,
        }
    }

    fn used_outside(w: &mut World, gpu: usize, gib: u64) {
        let mut gpus = w.machine.ledger().gpus().to_vec();
        gpus[gpu].unclaimed = Bytes::gib(gib);
        w.send(Event::Gpus(gpus));
    }

    #[test]
    fn where_everybody_is_let_in_claims_are_counted_and_book_nothing() {
        let mut w = machine(1);
        admit(&mut w, 0, Admission::Pass);
        for id in 1..4 {
            w.submit(id, 1000);
            assert_eq!(counted_on(&w, id), Some(0));
        }
        let free = Bytes::gib(24);
        assert_eq!(w.machine.ledger().mem_free(0), free);
        // Even if all memory is used.
        used_outside(&mut w, 0, 24);
        w.submit(9, 500);
        assert_eq!(counted_on(&w, 9), Some(0));
        // Their real use is offered to no other claim, and they stay only counted.
        used_outside(&mut w, 0, 18);
        admit(&mut w, 0, Admission::Queue);
        let mut large = request(500, &[]);
        large.mem = Some(Bytes::gib(12));
        w.submit_request(4, large, None);
        assert!(
            w.machine.reason(ClaimId(4)).is_some(),
            "12 GiB of 6 that are left"
        );
        w.submit_request(5, request(200, &[]), None);
        assert_eq!(phase(&w, 5), Some(Phase::Granted));
        assert_eq!(counted_on(&w, 1), Some(0));
        w.send(Event::Gone { id: ClaimId(1) });
        used_outside(&mut w, 0, 0);
        assert_eq!((phase(&w, 1), phase(&w, 4)), (None, Some(Phase::Granted)));
    }

    #[test]
    fn a_user_who_is_only_counted_is_let_in_where_others_queue() {
        let mut w = machine(2);
        w.submit(1, 2000);
        let observed = |gpus: &[u32]| Request {
            counted: true,
            ..request(1000, gpus)
        };
        w.submit_request(2, observed(&[1]), None);
        assert_eq!(counted_on(&w, 2), Some(1));
        admit(&mut w, 1, Admission::Foreign);
        w.submit_request(3, observed(&[]), None);
        assert_eq!(counted_on(&w, 3), Some(0), "never on another scheduler's");
        w.submit_request(4, request(500, &[0]), None);
        assert!(w.machine.reason(ClaimId(4)).is_some(), "others wait");
    }

    #[test]
    fn the_queue_is_let_in_as_far_as_memory_is_free() {
        let mut w = machine(1);
        for (id, milli) in [(1, 750), (2, 500), (3, 250), (4, 500), (5, 250)] {
            w.submit(id, milli);
        }
        assert_eq!(w.machine.queue().count(), 3);
        w.used.insert((ClaimId(1), 0), Bytes::gib(8));
        w.used.insert((ClaimId(3), 0), Bytes::gib(6));
        w.log.clear();
        admit(&mut w, 0, Admission::Pass);
        // 10 GiB are free: the first two claims need more, and the third fits. It has not allocated them yet.
        assert_eq!(
            [2, 4, 5].map(|id| counted_on(&w, id)),
            [None, None, Some(0)]
        );
        let told = |a: &Action| matches!(a, Action::Wait { id: ClaimId(2), .. });
        assert!(w.log.iter().any(told), "it is told that it waits on");
        w.submit(6, 1000);
        assert_eq!(counted_on(&w, 6), Some(0), "others are let in at once");
        w.used.values_mut().for_each(|used| *used = Bytes::ZERO);
        w.send(Event::Tick);
        assert_eq!(counted_on(&w, 2), None, "the sixth may take all");
        w.now += SETTLES;
        // In the ledger all of it is promised.
        w.over.push(0);
        used_outside(&mut w, 0, 6);
        assert_eq!([2, 4].map(|id| counted_on(&w, id)), [Some(0), None]);
    }

    #[test]
    fn a_claim_is_counted_only_where_the_queue_has_too_few_gpus_for_it() {
        let mut w = machine(4);
        for gpu in 2..4 {
            admit(&mut w, gpu, Admission::Pass);
        }
        w.submit(1, 2000);
        assert_eq!(w.granted(1), Some(vec![0, 1]));
        w.submit(2, 500);
        assert!(
            w.machine.reason(ClaimId(2)).is_some(),
            "it waits for the queue's"
        );
        w.submit_request(3, request(500, &[3]), None);
        assert_eq!(counted_on(&w, 3), Some(3));
        w.submit(4, 3000);
        let refused = |a: &Action| matches!(a, Action::Refuse { id: ClaimId(4), .. });
        assert!(w.log.iter().any(refused), "three of neither kind");
    }

    #[test]
    fn another_schedulers_word_is_taken_and_nobody_waits_for_its_gpus() {
        let mut w = machine(2);
        w.submit_request(1, request(500, &[0]), None);
        w.submit_request(2, request(1000, &[0]), None);
        assert!(w.machine.reason(ClaimId(2)).is_some());
        admit(&mut w, 0, Admission::Foreign);
        assert_eq!(w.machine.reason(ClaimId(2)), Some(&Reason::Foreign));
        // More than exists.
        let on = |id, gpus: &[usize]| Event::OnBehalf {
            id: ClaimId(id),
            request: request(1000, &[]),
            gpus: gpus.to_vec(),
        };
        w.send(on(3, &[0]));
        assert_eq!(
            (phase(&w, 3), w.granted(3)),
            (Some(Phase::Granted), Some(vec![0]))
        );
        assert_eq!(w.machine.ledger().mem_requested(0), Bytes::gib(36));
        w.send(on(4, &[1]));
        let not = Reason::NotForeign { gpu: 1 };
        let refused = |id, why: &Reason| {
            let told = |a: &Action| matches!(a, Action::Refuse { id: i, reason, .. } if *i == ClaimId(id) && reason == why);
            w.log.iter().any(told)
        };
        assert!(refused(4, &not));
        w.submit_request(5, request(100, &[0]), None);
        assert!(w.log.iter().any(|a| matches!(
            a,
            Action::Refuse {
                id: ClaimId(5),
                reason: Reason::Foreign,
                ..
            }
        )));
        // Bookings there change no plan elsewhere.
        w.submit(6, 1000);
        assert_eq!(w.granted(6), Some(vec![1]));
        // Its memory leaves the GPU and comes back at that scheduler's word, not at its owner's.
        let id = ClaimId(3);
        w.send(Event::Wish {
            id,
            wish: Wish::Offload,
        });
        assert_eq!(phase(&w, 3), Some(Phase::Granted));
        w.send(Event::Wish {
            id,
            wish: Wish::Yield,
        });
        w.send(Event::Parked {
            id,
            host: Bytes::gib(5),
        });
        assert_eq!(w.machine.ledger().mem_requested(0), Bytes::gib(12));
        assert!(matches!(phase(&w, 3), Some(Phase::Offloaded(_))));
        w.send(on(7, &[0]));
        w.send(Event::Wanted { id });
        assert!(
            matches!(phase(&w, 3), Some(Phase::Restoring(_))),
            "whoever else is there"
        );
        w.send(Event::Unparked { id });
        assert_eq!(w.machine.ledger().mem_requested(0), Bytes::gib(60));
        w.send(Event::Wish {
            id: ClaimId(6),
            wish: Wish::Yield,
        });
        assert_eq!(
            phase(&w, 6),
            Some(Phase::Granted),
            "no other scheduler has it"
        );
        for id in [1, 3, 7] {
            w.send(Event::Gone { id: ClaimId(id) });
        }
        assert_eq!(phase(&w, 2), None, "it is not let in");
        admit(&mut w, 0, Admission::Queue);
        assert_eq!(w.granted(2), Some(vec![0]));
    }

    /// GPUs 0 to `gpus`, the last of which another scheduler has given to two claims, 1 and 2, at once.
    fn overbooked(gpus: usize) -> Bench {
        let mut b = Bench::new(gpus);
        let mut facts = b.w.machine.ledger().gpus().to_vec();
        for (g, facts) in facts.iter_mut().enumerate() {
            facts.uuid = format!("GPU-{g}");
        }
        b.send(Event::Gpus(facts));
        admit(&mut b.w, gpus - 1, Admission::Foreign);
        for id in [1, 2] {
            b.bytes.insert(ClaimId(id), (Bytes::ZERO, None));
            b.send(Event::OnBehalf {
                id: ClaimId(id),
                request: request(1000, &[]),
                gpus: vec![gpus - 1],
            });
        }
        b
    }

    #[test]
    fn what_is_overbooked_elsewhere_keeps_nobody_from_making_room() {
        let mut b = overbooked(2);
        b.claim(3, 1000, 1, Class::Batch, 4);
        b.pass(s(100));
        b.claim(4, 500, 2, Class::Batch, 4);
        b.pass(s(60));
        assert_eq!(
            b.at(4),
            Some(vec![0]),
            "{:?}",
            b.w.machine.reason(ClaimId(4))
        );
        assert_eq!((b.at(1), b.at(2)), (Some(vec![1]), Some(vec![1])));
    }

    #[test]
    fn one_claim_that_leaves_an_overbooked_gpu_makes_no_room_there() {
        let mut b = overbooked(3);
        for (id, milli) in [(3, 600), (4, 500), (5, 400)] {
            b.claim(id, milli, 1, Class::Batch, 4);
        }
        b.send(Event::Gone { id: ClaimId(3) });
        b.pass(s(100));
        admit(&mut b.w, 2, Admission::Queue);
        b.idles(2, true);
        b.claim(6, 1000, 1, Class::Batch, 4);
        let plan = b.w.machine.plan_of(ClaimId(6)).expect("a claim moves");
        assert!(
            plan.steps.iter().all(|s| s.lever == Lever::Move),
            "{plan:?}"
        );
        b.pass(s(60));
        assert_eq!((b.at(1), b.at(2)), (Some(vec![2]), Some(vec![2])));
        assert!(b.at(6).is_some());
    }
}
