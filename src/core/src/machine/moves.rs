//! A person has a claim moved to GPUs of his choice.

use super::holding::{Transit, settled_on};
use super::{Action, Machine};
use crate::claim::ClaimId;
use crate::ledger::{Held, Slice};

impl Machine {
    /// Sends a claim to these GPUs, or says why not.
    pub(super) fn move_to(&mut self, id: ClaimId, gpus: &[usize], actions: &mut Vec<Action>) {
        match self.way_to(id, gpus) {
            Ok((from, to)) => {
                self.ledger.reserve(id, to.clone());
                self.set_out(id, Transit::Moving);
                actions.push(Action::Move { id, from, to });
            }
            Err(why) => actions.push(Action::MoveRefused { id, why }),
        }
    }

    fn way_to(&self, id: ClaimId, gpus: &[usize]) -> Result<(Vec<Slice>, Vec<Slice>), String> {
        let from = match self.ledger.slices(id) {
            Some(slices) if !self.on_its_way(id) => slices.to_vec(),
            Some(_) => return Err("it is on its way elsewhere".to_owned()),
            None => {
                return Err(format!(
                    "it is not on a GPU now; gshare attach {id} brings it back"
                ));
            }
        };
        let here: Vec<usize> = from.iter().map(|s| s.gpu).collect();
        let apart = |(i, gpu): (usize, &usize)| !gpus[..i].contains(gpu);
        if gpus.len() != from.len() || !gpus.iter().enumerate().all(apart) {
            return Err(format!("it has {} GPUs, each once", from.len()));
        }
        if let Some(gpu) = gpus.iter().find(|gpu| here.contains(gpu)) {
            return Err(format!("it is on GPU {gpu} already"));
        }
        for (slice, &gpu) in from.iter().zip(gpus) {
            if !self.ledger.alike(gpu, &here) {
                return Err(format!("GPU {gpu} is of another model"));
            }
            let other = self.ledger.on(gpu).any(|(_, s)| s.held != Held::Timeslice);
            if other || slice.held != Held::Timeslice {
                return Err(format!("GPU {gpu} is shared in another way"));
            }
            let (needs, free) = (slice.mem.max(slice.charge), self.ledger.mem_free(gpu));
            if needs > free {
                return Err(format!(
                    "it needs {needs} on GPU {gpu}, of which {free} is free"
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
