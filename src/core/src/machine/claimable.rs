//! What could be claimed now, with the claims that can be moved packed on paper: in fact they may be spread.

use std::collections::BTreeMap;

use super::Machine;
use super::lever::Holding;
use crate::claim::ClaimId;
use crate::ledger::{Ledger, Sharing, Slice};
use crate::sched::solve::{Answer, Board, Budget, Item, MAX_GPUS, Need, Prefer};
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
    /// The largest part of each GPU.
    pub by_gpu: Vec<Share>,
    /// By model.
    pub models: Vec<ModelRoom>,
    /// Parts that are free, all GPUs together.
    pub sum: Share,
}

const BUDGET: Budget = Budget {
    steps: 2000,
    moves: 6,
    drops: 0,
};

struct Paper<'a> {
    ledger: &'a Ledger,
    board: Board,
    /// Memory of each GPU that claims divide.
    whole: Vec<Bytes>,
}

impl Machine {
    /// What a claim made now could have at once, if those that can be moved are moved. Nothing of a GPU that
    /// somebody waits for.
    #[must_use]
    pub fn claimable_now(&self) -> Claimable {
        let ledger = &self.ledger;
        let gpus = ledger.gpus().len();
        let direct: Vec<Share> = (0..gpus).map(|g| self.claimable(g)).collect();
        let sum = direct
            .iter()
            .fold(Share::ZERO, |sum, s| sum.saturating_add(*s));
        let paper = self.paper().filter(|_| self.queue.is_empty());
        let by_gpu: Vec<Share> = (0..gpus)
            .map(|g| match &paper {
                Some(paper) => paper.largest(1 << g, direct[g]),
                None => direct[g],
            })
            .collect();
        let mut of_model: BTreeMap<&str, u32> = BTreeMap::new();
        for (g, facts) in ledger.gpus().iter().enumerate().take(MAX_GPUS) {
            *of_model.entry(&facts.model).or_default() |= 1 << g;
        }
        let room = |(model, mask): (&str, u32)| {
            let of = || (0..gpus).filter(|g| mask & (1 << g) != 0);
            let whole = |count: u32| match &paper {
                Some(paper) => paper.fits(mask, 1000, count),
                None => of().filter(|g| direct[*g] >= Share::ONE).count() >= count as usize,
            };
            ModelRoom {
                model: model.to_owned(),
                largest: of().map(|g| by_gpu[g]).max().unwrap_or(Share::ZERO),
                whole: (1..=mask.count_ones())
                    .take_while(|n| whole(*n))
                    .last()
                    .unwrap_or(0),
            }
        };
        Claimable {
            models: of_model.into_iter().map(room).collect(),
            by_gpu,
            sum,
        }
    }

    /// The GPUs and the claims that could be moved; none, where that is not to be told.
    fn paper(&self) -> Option<Paper<'_>> {
        let ledger = &self.ledger;
        let gpus = ledger.gpus().len();
        if gpus == 0 || gpus > MAX_GPUS {
            return None;
        }
        // Each GPU is a kind of its own: sizes are in bytes.
        let kind: Vec<usize> = (0..gpus).collect();
        let free = (0..gpus).map(|g| Need {
            sm: ledger.sm_free(g).milli(),
            mem: ledger.mem_free(g).0,
        });
        let whole = ledger.gpus().iter();
        let whole = whole.map(|f| f.allocatable().unwrap_or_default()).collect();
        let items = ledger
            .held()
            .filter_map(|(id, slices)| self.item(id, slices));
        Some(Paper {
            ledger,
            board: Board {
                kind,
                free: free.collect(),
                items: items.collect(),
            },
            whole,
        })
    }

    fn item(&self, id: ClaimId, slices: &[Slice]) -> Option<Item> {
        let request = self.request_of(id)?;
        let granted = self.reclaim.granted.get(&id)?;
        let movable = request.movable && granted.levers.movable.is_ok();
        let here = matches!(self.holding(id), Some(Holding::Here(_)));
        let [slice] = slices else { return None };
        if !movable || !here {
            return None;
        }
        let gpus = self.ledger.gpus().len();
        let need = Need {
            sm: slice.sm.milli(),
            mem: slice.mem.max(slice.charge).0,
        };
        let allowed = |g: &usize| {
            let named = &request.only_gpus;
            let named = named.is_empty() || u32::try_from(*g).is_ok_and(|g| named.contains(&g));
            let turns = self.ledger.gpus()[*g].sharing == Sharing::Timeslice;
            let open = self.ledger.gpus()[*g].healthy && !self.ledger.is_drained(*g);
            named && turns && open && self.ledger.alike(*g, &[slice.gpu])
        };
        let mask = (0..gpus)
            .filter(|g| *g == slice.gpu || allowed(g))
            .fold(0, |mask, g| mask | (1u32 << g));
        Some(Item {
            need: vec![need; gpus],
            parts: 1,
            mask,
            at: vec![slice.gpu],
            move_cost: Some(slice.charge.0.max(1)),
            drop_cost: None,
        })
    }
}

impl Paper<'_> {
    fn item(&self, mask: u32, milli: u32) -> Item {
        let part = |whole: &Bytes| Need {
            sm: milli,
            mem: whole
                .times(Share::from_milli(milli))
                .round_down(crate::ledger::GRANULARITY)
                .0
                .max(1),
        };
        Item {
            need: self.whole.iter().map(part).collect(),
            parts: 1,
            mask,
            at: Vec::new(),
            move_cost: None,
            drop_cost: None,
        }
    }

    /// Whether `count` claims of this part of one of these GPUs each could start.
    fn fits(&self, mask: u32, milli: u32, count: u32) -> bool {
        let open = (0..self.whole.len())
            .filter(|g| self.ledger.gpus()[*g].healthy && !self.ledger.is_drained(*g))
            .fold(0, |open, g| open | (1u32 << g));
        let mut board = self.board.clone();
        for _ in 0..count {
            let new = self.item(mask & open, milli);
            let Answer::Fits(fit) = board.place(&new, Prefer::Pack, |_| 0, BUDGET) else {
                return false;
            };
            for (index, at) in fit.moves {
                let need = board.items[index].need[0];
                let from = std::mem::replace(&mut board.items[index].at, at.clone());
                board.free[from[0]] = board.free[from[0]].plus(need);
                board.free[at[0]] = board.free[at[0]].less(need);
            }
            let g = fit.at[0];
            board.free[g] = board.free[g].less(new.need[g]);
        }
        true
    }

    /// The largest part of one of these GPUs, in hundredths: at least what is there without a move.
    fn largest(&self, mask: u32, direct: Share) -> Share {
        if self.board.items.is_empty() {
            return direct;
        }
        let (mut low, mut high) = (direct.milli() / 10, 100);
        while low < high {
            let middle = (low + high).div_ceil(2);
            if self.fits(mask, middle * 10, 1) {
                low = middle;
            } else {
                high = middle - 1;
            }
        }
        Share::from_milli(low * 10).max(direct)
    }
}

#[cfg(test)]
mod tests {
    use super::super::Event;
    use super::super::lever::Levers;
    use super::super::tests::World;
    use super::*;
    use crate::claim::{Class, Request};

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
        assert_eq!(w.machine.claimable_now().models[0].whole, 2);
        notebook(&mut w, 1, 0, true);
        notebook(&mut w, 2, 1, true);
        let direct = [0, 1].map(|g| w.machine.claimable(g).milli());
        assert_eq!(direct, [500, 500], "in fact half of each is free");
        let now = w.machine.claimable_now();
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
        let now = w.machine.claimable_now();
        assert_eq!(now.by_gpu, [Share::from_milli(500); 2]);
        assert_eq!(now.models[0].whole, 0);
    }
}
