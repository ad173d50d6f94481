//! The ledger as the search sees it: what GPUs have left, who could leave them, and at what cost.

use super::Machine;
use crate::claim::{ClaimId, Request};
use crate::ledger::{GpuFacts, Ledger, Sharing, Slice};
use crate::place;
use crate::sched::solve::{Board, Item, MAX_GPUS, Need};
use crate::units::Share;

/// More than any GPU has.
const NEVER: Need = Need {
    sm: u32::MAX,
    mem: u64::MAX,
};

/// A problem for the search, and which claim each item of it is.
#[derive(Debug)]
pub(super) struct Problem {
    pub(super) board: Board,
    pub(super) who: Vec<ClaimId>,
}

/// What leaving would cost a claim; `None` where it cannot be.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Costs {
    pub(super) moved: Option<u64>,
    pub(super) dropped: Option<u64>,
}

/// GPUs that look the same to a request are of one kind: of these each has its own part, so sizes tell.
fn kinds(ledger: &Ledger) -> Vec<usize> {
    let mut seen: Vec<&GpuFacts> = Vec::new();
    let same = |a: &GpuFacts, b: &GpuFacts| {
        a.model == b.model && a.allocatable() == b.allocatable() && a.sharing == b.sharing
    };
    let kind = |facts| match seen.iter().position(|s| same(s, facts)) {
        Some(kind) => kind,
        None => {
            seen.push(facts);
            seen.len() - 1
        }
    };
    ledger.gpus().iter().map(kind).collect()
}

fn need(slice: &Slice) -> Need {
    Need {
        sm: slice.sm.milli(),
        mem: slice.mem.max(slice.charge).0,
    }
}

/// Whether a GPU takes anybody.
fn open(ledger: &Ledger, g: usize) -> bool {
    ledger.gpus()[g].healthy && !ledger.is_drained(g)
}

impl Problem {
    /// The GPUs of `ledger` and the claims on them that may leave. GPUs in `blocked` take nobody.
    pub(super) fn new(
        machine: &Machine,
        ledger: &Ledger,
        blocked: &[bool],
        costs: impl Fn(ClaimId, &[Slice]) -> Costs,
    ) -> Option<Self> {
        let gpus = ledger.gpus().len();
        if gpus > MAX_GPUS {
            return None;
        }
        let kind = kinds(ledger);
        let count = kind.iter().max().map_or(0, |k| k + 1);
        let free = (0..gpus)
            .map(|g| Need {
                sm: ledger.sm_free(g).milli(),
                mem: ledger.mem_free(g).0,
            })
            .collect();
        let (mut items, mut who) = (Vec::new(), Vec::new());
        for (id, slices) in ledger.held() {
            let costs = costs(id, slices);
            if costs.moved.is_none() && costs.dropped.is_none() {
                continue;
            }
            let mut needs = vec![NEVER; count];
            for slice in slices {
                needs[kind[slice.gpu]] = need(slice);
            }
            let at: Vec<usize> = slices.iter().map(|s| s.gpu).collect();
            let only = machine
                .request_of(id)
                .map(|r| r.only_gpus.clone())
                .unwrap_or_default();
            let allowed = |g: &usize| {
                let named = only.is_empty() || u32::try_from(*g).is_ok_and(|g| only.contains(&g));
                let free = open(ledger, *g) && !blocked.get(*g).copied().unwrap_or(false);
                named && free && ledger.alike(*g, &at)
            };
            // It may stay where it is, whatever is said of others.
            let mask = (0..gpus)
                .filter(|g| at.contains(g) || allowed(g))
                .fold(0, |mask, g| mask | (1u32 << g));
            items.push(Item {
                need: needs,
                parts: u32::try_from(slices.len()).unwrap_or(u32::MAX),
                mask,
                at,
                move_cost: costs.moved,
                drop_cost: costs.dropped,
            });
            who.push(id);
        }
        let board = Board { kind, free, items };
        Some(Self { board, who })
    }

    /// A claim that is to be placed; `None` where it can be nowhere.
    pub(super) fn item(
        &self,
        ledger: &Ledger,
        request: &Request,
        blocked: &[bool],
    ) -> Option<Item> {
        let kinds = self.board.kind.iter().max().map_or(0, |k| k + 1);
        let mut needs = vec![NEVER; kinds];
        let mut mask = 0u32;
        for g in place::candidates(ledger, request) {
            let facts = &ledger.gpus()[g];
            let Some(of) = facts.allocatable() else {
                continue;
            };
            let whole = matches!(facts.sharing, Sharing::Exclusive | Sharing::Instance { .. });
            // Who shares through MPS is in nobody's way but that of other users.
            let mixes = whole || ledger.held_as(request, g).is_some();
            let Some(mem) = Ledger::mem_needed(facts, request, of).filter(|m| m.0 > 0) else {
                continue;
            };
            if !open(ledger, g) || blocked.get(g).copied().unwrap_or(false) || !mixes {
                continue;
            }
            mask |= 1 << g;
            needs[self.board.kind[g]] = Need {
                sm: if whole { Share::ONE } else { request.sm }.milli(),
                mem: mem.0,
            };
        }
        (mask != 0).then_some(Item {
            need: needs,
            parts: request.gpus,
            mask,
            at: Vec::new(),
            move_cost: None,
            drop_cost: None,
        })
    }
}
