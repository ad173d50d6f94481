//! The ledger as the search sees it: what GPUs have left, which claims can leave, and at what cost.

use super::Machine;
use super::lever::Lever;
use super::plan::Who;
use crate::claim::{ClaimId, Request};
use crate::ledger::{Held, Ledger, Sharing, Slice};
use crate::place;
use crate::sched::solve::{Board, Item, Mask, Need};

/// A problem for the search, and the claim of each of its items. Parts that do not depend on the waiting claim are
/// computed once and reused until something changes.
#[derive(Debug)]
pub(super) struct Problem {
    pub(super) board: Board,
    pub(super) who: Vec<ClaimId>,
    leaves: Vec<Leaves>,
    /// Where each item could be if nothing were kept for other claims.
    wide: Vec<Mask>,
    /// Costs for the current waiting claim.
    costs: Vec<Costs>,
}

/// Costs if a claim leaves, independent of the waiting claim; `None` if impossible.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Leaves {
    pub(super) moved: Option<u64>,
    /// Cost to offload it because it is idle.
    pub(super) idle: Option<u64>,
    /// Lever and cost to take all of it, for waiting claims to which it gives way.
    pub(super) taken: Option<(Lever, u64)>,
    /// Decides to which claims it gives way.
    pub(super) rank: Rank,
    /// It is in its turn, and has had the shortest one: only [`Who::late`] ones take it, if it is on loan.
    pub(super) turn: bool,
}

impl Leaves {
    fn none(self) -> bool {
        self.moved.is_none() && self.idle.is_none() && self.taken.is_none()
    }
}

/// Decides for which waiting claims a running claim gives way.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Rank {
    pub(super) preemptible: bool,
    /// Its owner holds more than the guarantee.
    pub(super) borrower: bool,
    /// It uses more memory than its guarantee.
    pub(super) over: bool,
    pub(super) priority: u16,
    pub(super) level: u8,
    pub(super) uid: u32,
    /// Level of its owner's recent use.
    pub(super) owner: u8,
}

impl Rank {
    /// Whether all of this claim may be taken so that another can start. Every preemptible claim makes room for a claim
    /// whose turn it is. Claims on loan make room for claims within a guarantee, whatever their class. They also make
    /// room for claims on loan of higher priority, or of the same priority and less past use: the claim's own if the
    /// owner is the same, else the owner's. A claim that uses more memory than its guarantee has that on loan from all
    /// claims that do not.
    pub(super) fn gives_way(self, who: &Who<'_>) -> bool {
        if !self.preemptible {
            return false;
        }
        if who.due {
            return true;
        }
        if !self.borrower {
            return who.entitled && self.over && !who.over;
        }
        if who.entitled || who.priority > self.priority {
            return true;
        }
        let less = match who.request.uid == self.uid {
            true => who.level < self.level,
            false => who.owner < self.owner,
        };
        who.priority == self.priority && less
    }
}

/// Costs for the current waiting claim.
#[derive(Clone, Copy, Debug, Default)]
struct Costs {
    moved: Option<u64>,
    idle: Option<u64>,
    taken: Option<(Lever, u64)>,
}

impl Costs {
    fn none(self) -> bool {
        self.moved.is_none() && self.idle.is_none() && self.taken.is_none()
    }

    /// How all is taken from it if no lever above `strongest` is used.
    fn taking(self, strongest: Lever) -> Option<(Lever, u64)> {
        let idle = self.idle.filter(|_| strongest != Lever::Move);
        let hard = |lever| matches!(lever, Lever::Requeue | Lever::Kill);
        let taken = self.taken.filter(|(lever, _)| {
            strongest >= Lever::Suspend && (!hard(*lever) || *lever <= strongest)
        });
        idle.map(|cost| (Lever::Offload, cost)).or(taken)
    }
}

fn need(slice: &Slice) -> Need {
    Need {
        sm: slice.sm.milli(),
        mem: slice.mem.max(slice.charge).0,
    }
}

/// What a claim needs on each kind of GPU: what it holds on its own kind, and the largest of its parts on similar GPUs,
/// with what these lack.
fn needs(board: &Board, excess: &[Need], slices: &[Slice], like: Mask) -> Vec<Need> {
    let larger = |a: Need, b: Need| Need {
        sm: a.sm.max(b.sm),
        mem: a.mem.max(b.mem),
    };
    let most = slices.iter().map(need).fold(Need::default(), larger);
    let kinds = board.kind.iter().max().map_or(0, |k| k + 1);
    let mut needs = vec![Need::NEVER; kinds];
    for g in (0..board.kind.len()).filter(|g| like & (1 << g) != 0) {
        needs[board.kind[g]] = most.plus(excess[g]);
    }
    let mut own = vec![Need::default(); kinds];
    for slice in slices {
        let kind = board.kind[slice.gpu];
        own[kind] = larger(own[kind], need(slice));
        needs[kind] = own[kind];
    }
    needs
}

/// For each GPU, the GPUs to which a claim on it could move: same model, same sharing.
fn alike(ledger: &Ledger, gpus: usize) -> Vec<Mask> {
    let facts = ledger.gpus();
    let same = |a: usize, b: usize| {
        let divided = matches!(facts[a].sharing, Sharing::Instance { .. });
        let make = |g: usize| (&facts[g].model, facts[g].usable, facts[g].sharing);
        a == b || (!divided && make(a) == make(b))
    };
    let mut masks: Vec<Mask> = Vec::with_capacity(gpus);
    for g in 0..gpus {
        let first = (0..g).find(|&f| same(f, g));
        let mask = match first {
            Some(first) => masks[first],
            None => (g..gpus)
                .filter(|&o| same(g, o))
                .fold(0, |mask, o| mask | (1 << o)),
        };
        masks.push(mask);
    }
    masks
}

impl Problem {
    /// The GPUs of `ledger` and the claims on them that may leave, before a waiting claim is set.
    pub(super) fn new(
        machine: &Machine,
        ledger: &Ledger,
        leaves: impl Fn(ClaimId, &[Slice]) -> Leaves,
    ) -> Self {
        let mut problem = Self {
            board: place::board(ledger),
            who: Vec::new(),
            leaves: Vec::new(),
            wide: Vec::new(),
            costs: Vec::new(),
        };
        let gpus = problem.board.kind.len();
        let excess: Vec<Need> = (0..gpus).map(|g| place::excess(ledger, g)).collect();
        let alike = alike(ledger, gpus);
        // Claims that take turns share a GPU only with each other, if its mode allows both.
        let turns = |g: &usize| {
            ledger.gpus()[*g].sharing == Sharing::Timeslice
                || ledger.on(*g).all(|(_, s)| s.held == Held::Timeslice)
        };
        let open: Vec<bool> = (0..gpus)
            .map(|g| place::takes_in(ledger, g) && turns(&g))
            .collect();
        for (id, slices) in ledger.held() {
            let leaves = leaves(id, slices);
            if leaves.none() || slices.iter().any(|s| s.gpu >= gpus) {
                continue;
            }
            let at: Vec<usize> = slices.iter().map(|s| s.gpu).collect();
            let own: Mask = at.iter().fold(0, |mask, g| mask | (1 << g));
            let turns = slices.iter().all(|s| s.held == Held::Timeslice);
            let like = at.iter().fold(Mask::MAX, |mask, g| mask & alike[*g]);
            let like = if turns { like } else { 0 };
            let only: &[u32] = machine.request_of(id).map_or(&[], |r| &r.only_gpus);
            let named =
                |g: usize| only.is_empty() || u32::try_from(g).is_ok_and(|g| only.contains(&g));
            let mask = (0..gpus)
                .filter(|&g| like & (1 << g) != 0 && named(g) && open[g])
                .fold(own, |mask, g| mask | (1 << g));
            problem.board.items.push(Item {
                need: needs(&problem.board, &excess, slices, mask),
                parts: u32::try_from(slices.len()).unwrap_or(u32::MAX),
                mask,
                at,
                move_cost: None,
                drop_cost: None,
            });
            problem.who.push(id);
            problem.leaves.push(leaves);
            problem.wide.push(mask);
            problem.costs.push(Costs::default());
        }
        problem
    }

    /// Sets `who` as the waiting claim. GPUs in `blocked` are closed, and only moves are allowed until [`Self::allow`].
    pub(super) fn asked_by(&mut self, who: &Who<'_>, blocked: &[bool]) {
        let kept = blocked.iter().take(self.board.kind.len()).enumerate();
        let kept = kept.fold(0, |mask, (g, kept)| mask | (Mask::from(*kept) << g));
        let items = self.board.items.iter_mut().zip(&mut self.costs);
        let known = self.leaves.iter().zip(&self.wide);
        for ((item, costs), (leaves, wide)) in items.zip(known) {
            let rank = leaves.rank;
            let ends = !leaves.turn || (who.late && rank.borrower);
            // A claim may stay where it is, even on a closed GPU.
            let own: Mask = item.at.iter().fold(0, |mask, g| mask | (1 << g));
            item.mask = (wide & !kept) | own;
            *costs = Costs {
                moved: leaves.moved,
                idle: leaves.idle,
                taken: leaves.taken.filter(|_| ends && rank.gives_way(who)),
            };
        }
        self.allow(Lever::Move);
    }

    /// Whether any claim may leave for the waiting claim.
    pub(super) fn anybody(&self) -> bool {
        self.costs.iter().any(|c| !c.none())
    }

    pub(super) fn allow(&mut self, strongest: Lever) {
        for (item, costs) in self.board.items.iter_mut().zip(&self.costs) {
            item.move_cost = costs.moved.filter(|_| strongest != Lever::Offload);
            item.drop_cost = costs.taking(strongest).map(|(_, cost)| cost);
        }
    }

    /// Number of claims from which all may be taken, as allowed now.
    pub(super) fn drops(&self) -> u32 {
        let drops = self.board.items.iter().filter(|i| i.drop_cost.is_some());
        u32::try_from(drops.count()).unwrap_or(u32::MAX)
    }

    /// The lever that takes all of one item.
    pub(super) fn taking(&self, index: usize, strongest: Lever) -> Option<Lever> {
        let (lever, _) = self.costs.get(index)?.taking(strongest)?;
        Some(lever)
    }

    /// Whether a lever works on any item.
    pub(super) fn any(&self, lever: Lever) -> bool {
        let taken = |c: &Costs| c.taken.is_some_and(|(l, _)| l == lever);
        self.costs.iter().any(taken)
    }

    /// An item for a claim to be placed; `None` if no GPU suits it.
    pub(super) fn item(
        &self,
        ledger: &Ledger,
        request: &Request,
        blocked: &[bool],
    ) -> Option<Item> {
        place::item(ledger, &self.board, request, blocked)
    }
}
