//! A user moves a claim to chosen GPUs.

use super::claims::Phase;
use super::holding::settled_on;
use super::{Action, Machine};
use crate::claim::ClaimId;
use crate::ledger::{Admission, Held, Slice};

impl Machine {
    pub(super) fn move_to(&mut self, id: ClaimId, gpus: &[usize], actions: &mut Vec<Action>) {
        match self.way_to(id, gpus) {
            Ok((from, to)) => {
                if self.set_out(id, Phase::Moving, actions) {
                    self.ledger.reserve(id, to.clone());
                    actions.push(Action::Move { id, from, to });
                }
            }
            Err(why) => actions.push(Action::MoveRefused { id, why }),
        }
    }

    /// Updates the GPUs that a moved claim is bound to: its new GPUs replace those that it left. Else its next restore
    /// would bring it back to the old ones.
    pub(super) fn bind_to(&mut self, id: ClaimId, to: &[Slice]) {
        let from = self.ledger.slices(id).unwrap_or_default();
        let Some(granted) = self.claims.get_mut(id) else {
            return;
        };
        let number = |s: &Slice| u32::try_from(s.gpu).unwrap_or(u32::MAX);
        let pairs = from.iter().zip(to);
        let pairs = pairs.map(|(from, to)| (number(from), number(to)));
        rebind(&mut granted.request.only_gpus, pairs.collect());
    }

    fn way_to(&self, id: ClaimId, gpus: &[usize]) -> Result<(Vec<Slice>, Vec<Slice>), String> {
        let from = match self.ledger.slices(id) {
            Some(slices) if !self.on_its_way(id) => slices.to_vec(),
            Some(_) => return Err("it is already being moved".to_owned()),
            None => {
                return Err(format!(
                    "it is not on a GPU now; gshare restore {id} brings it back"
                ));
            }
        };
        let here: Vec<usize> = from.iter().map(|s| s.gpu).collect();
        if !self.ledger.queued(&from) {
            return Err("gshare's queue does not schedule its GPUs".to_owned());
        }
        let apart = |(i, gpu): (usize, &usize)| !gpus[..i].contains(gpu);
        if gpus.len() != from.len() || !gpus.iter().enumerate().all(apart) {
            return Err(format!(
                "name as many GPUs as the claim has ({}), each only once",
                from.len()
            ));
        }
        if let Some(gpu) = gpus.iter().find(|gpu| here.contains(gpu)) {
            return Err(format!("it is already on GPU {gpu}"));
        }
        for (slice, &gpu) in from.iter().zip(gpus) {
            if !self.ledger.alike(gpu, &here) {
                return Err(format!("GPU {gpu} is of another model"));
            }
            if self.ledger.admission(gpu) != Admission::Queue {
                return Err(format!("gshare's queue does not schedule GPU {gpu}"));
            }
            if self.ledger.is_drained(gpu) {
                return Err(format!("GPU {gpu} is drained: no claim can move there"));
            }
            let other = self.ledger.on(gpu).any(|(_, s)| s.held != Held::Timeslice);
            if other || slice.held != Held::Timeslice {
                return Err(format!("GPU {gpu} has another sharing mode"));
            }
            let (needs, free) = (slice.mem.max(slice.charge), self.ledger.mem_free(gpu));
            if needs > free {
                return Err(format!(
                    "it needs {needs} on GPU {gpu}, but only {free} is free there"
                ));
            }
            if slice.sm > self.ledger.sm_free(gpu) {
                return Err(format!("GPU {gpu} has too few SMs left"));
            }
        }
        let to = settled_on(&from, gpus.iter().copied());
        Ok((from, to))
    }
}

/// Replaces, among the GPUs that a claim is bound to, those that it left by its new ones. An empty list (no binding)
/// stays empty. False if nothing changes.
pub fn rebind<G: PartialEq>(only: &mut Vec<G>, moves: Vec<(G, G)>) -> bool {
    if only.is_empty() || moves.iter().all(|(_, to)| only.contains(to)) {
        return false;
    }
    for (from, to) in moves {
        if only.contains(&to) {
            continue;
        }
        match only.iter().position(|g| *g == from) {
            Some(place) => only[place] = to,
            None => only.push(to),
        }
    }
    true
}

#[cfg(test)]
mod tests {
    use super::super::lever::Wish;
    use super::super::reclaim::tests::{Bench, s};
    use super::super::*;
    use super::rebind;
    use crate::claim::Class;

    fn move_to(b: &mut Bench, gpu: usize) {
        let (id, gpus) = (ClaimId(1), vec![gpu]);
        b.send(Event::MoveTo { id, gpus });
        b.pass(s(3));
    }

    fn wish(b: &mut Bench, wish: Wish) {
        let id = ClaimId(1);
        b.send(Event::Wish { id, wish });
        b.pass(s(3));
    }

    #[test]
    fn who_was_sent_to_a_gpu_to_which_he_was_not_bound_is_bound_to_it() {
        for (only, then) in [
            (vec![], vec![]),
            (vec![0], vec![2]),
            (vec![1, 0], vec![1, 2]),
        ] {
            let mut b = Bench::new(3);
            let mut r =
                Request::from_gpus(Share::from_milli(500), Share::ONE, Class::Batch).unwrap();
            r.only_gpus = only.clone();
            // Fills GPU 1, so that the claim starts on GPU 0.
            b.claim(2, 1000, 1, Class::Batch, 1);
            let first = b.at(2).unwrap()[0];
            if first != 1 {
                b.send(Event::MoveTo {
                    id: ClaimId(2),
                    gpus: vec![1],
                });
                b.pass(s(3));
            }
            b.submit(1, r, 4);
            assert_eq!(b.at(1), Some(vec![0]));
            move_to(&mut b, 2);
            assert_eq!(b.at(1), Some(vec![2]));
            let request = b.w.machine.request_of(ClaimId(1)).unwrap();
            assert_eq!(request.only_gpus, then);
            // It comes back to its new GPU, though the first is idle.
            wish(&mut b, Wish::Offload);
            wish(&mut b, Wish::Restore);
            if !only.is_empty() {
                assert_eq!(b.at(1), Some(vec![2]));
            }
        }
    }

    #[test]
    fn nobody_is_sent_to_a_gpu_that_takes_no_claims() {
        let mut b = Bench::new(2);
        b.claim(1, 500, 1, Class::Batch, 4);
        let mut gpus = b.w.machine.ledger().gpus().to_vec();
        for (g, facts) in gpus.iter_mut().enumerate() {
            facts.uuid = format!("GPU-{g}");
        }
        b.send(Event::Gpus(gpus));
        let uuid = "GPU-1".to_owned();
        b.send(Event::Drain { uuid, on: true });
        move_to(&mut b, 1);
        assert_eq!(b.at(1), Some(vec![0]));
        let refused = |a: &Action| matches!(a, Action::MoveRefused { why, .. } if why == "GPU 1 is drained: no claim can move there");
        assert!(b.w.log.iter().any(refused));
    }

    #[test]
    fn of_several_gpus_only_those_change_that_were_left() {
        let mut only = vec!["a", "b"];
        assert!(rebind(&mut only, vec![("a", "c"), ("b", "d")]));
        assert_eq!(only, ["c", "d"]);
        assert!(!rebind(&mut only, vec![("c", "d")]), "it is bound to that");
        let mut none: Vec<&str> = Vec::new();
        assert!(!rebind(&mut none, vec![("a", "b")]));
    }
}
