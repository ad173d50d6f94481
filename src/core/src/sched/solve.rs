//! Exact placement: whether a claim fits, with the fewest and cheapest moves of others.
//!
//! The search is over final assignments, not over sequences of moves, because images in host memory permit cyclic
//! swaps. It deepens on the number of moves, places the largest unplaced claim first, tries GPUs that look alike once,
//! and lifts claims from a GPU only in sets none of which could stay. A budget of steps bounds the search; beyond it
//! the answer is marked as not proven.

mod lift;
mod need;
mod pack;

use std::cmp::Reverse;
use std::collections::BTreeMap;

use lift::{Here, alike, looks_of, rest};
pub use need::{Item, Need};
use pack::anew;

/// A set of GPUs, one bit each.
pub type Mask = u128;

/// Maximum number of GPUs in a problem: eight GPUs in seven instances each, and as many again.
pub const MAX_GPUS: usize = Mask::BITS as usize;

/// GPUs and the claims on them.
#[derive(Clone, Debug, Default)]
pub struct Board {
    /// Kind of each GPU: on GPUs of one kind a claim needs the same.
    pub kind: Vec<usize>,
    /// Model of each GPU: all GPUs of one claim have the same model.
    pub model: Vec<usize>,
    /// Free resources of each GPU.
    pub free: Vec<Need>,
    /// Placed claims.
    pub items: Vec<Item>,
}

/// Preference of a new claim among several GPUs with room.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Prefer {
    /// The GPU with the least left afterwards.
    Pack,
    /// The GPU with the most free SMs, as room for bursts; of equal ones the one with the least free memory.
    Spread,
}

/// Where a claim can go.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Fit {
    /// GPUs of the claim, ascending.
    pub at: Vec<usize>,
    /// Claims to move, by index in the board, with their new GPUs.
    pub moves: Vec<(usize, Vec<usize>)>,
    /// Claims to suspend.
    pub drops: Vec<usize>,
    /// No answer with fewer moves exists.
    pub optimal: bool,
}

/// Result of a search.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Answer {
    Fits(Fit),
    /// It does not fit, whatever is moved.
    No,
    /// The budget was used up before either was proven.
    Unknown,
}

/// Limits of a search.
#[derive(Clone, Copy, Debug)]
pub struct Budget {
    /// Maximum number of steps.
    pub steps: u32,
    /// Maximum number of moves.
    pub moves: u32,
    /// Minimum number of suspensions to try: with fewer it is known not to fit.
    pub least: u32,
    /// Maximum number of suspensions.
    pub drops: u32,
}

impl Default for Budget {
    fn default() -> Self {
        Self {
            steps: 3000,
            moves: 5,
            least: 0,
            drops: 0,
        }
    }
}

impl Board {
    /// Finds a place for `new` with the fewest suspensions, then the fewest moves, then the lowest cost. `reluctance`
    /// is an extra cost of a GPU. If no other claim is affected the GPU with the lowest reluctance is chosen.
    #[must_use]
    pub fn place(
        &self,
        new: &Item,
        prefer: Prefer,
        reluctance: impl Fn(usize) -> u64,
        budget: Budget,
    ) -> Answer {
        if let Some(at) = self.direct(new, prefer, reluctance) {
            return Answer::Fits(Fit {
                at,
                moves: Vec::new(),
                drops: Vec::new(),
                optimal: true,
            });
        }
        self.rearrange(new, budget).0
    }

    /// Like [`Self::place`], if no free place is left; also returns the number of steps.
    #[must_use]
    pub fn rearrange(&self, new: &Item, budget: Budget) -> (Answer, u32) {
        if !self.able(new) {
            return (Answer::No, 0);
        }
        let mut steps = 0;
        let answer = self.search(new, budget, &mut steps);
        (answer, steps)
    }

    fn search(&self, new: &Item, budget: Budget, steps: &mut u32) -> Answer {
        let count = |able: fn(&Item) -> bool| self.items.iter().filter(|i| able(i)).count();
        let movable = count(|i| i.move_cost.is_some());
        let droppable = count(|i| i.drop_cost.is_some());
        let most = |have: usize, budget: u32| budget.min(u32::try_from(have).unwrap_or(u32::MAX));
        let (most_moves, most_drops) = (most(movable, budget.moves), most(droppable, budget.drops));
        let mut proven = true;
        let mut search = Search::new(self, new);
        for drops in budget.least..=most_drops {
            if !self.enough(new, drops) {
                continue;
            }
            // Half of the remaining steps, to leave some for more suspensions.
            let left = budget.steps.saturating_sub(search.steps);
            search.limit = search.steps + if most_drops > 0 { left / 2 } else { left };
            for moves in 0..=most_moves {
                let before = search.steps;
                search.run(Left { moves, drops });
                *steps += search.steps - before;
                if let Some((_, found)) = search.best.take() {
                    return Answer::Fits(search.fit(found, proven && !search.out()));
                }
                if search.out() {
                    break;
                }
            }
            let shown = !search.out() && most_moves as usize == movable;
            if drops == 0 && movable > 0 && !shown {
                // A few moves are not enough, or this was not proven: repack everything.
                match anew(self, new, budget.steps, steps) {
                    Some(Some(found)) => return Answer::Fits(found),
                    Some(None) => {}
                    None => proven = false,
                }
            } else {
                proven &= shown;
            }
        }
        // A search without suspensions only has to prove that it does not fit without them.
        if proven && (budget.drops == 0 || most_drops as usize == droppable) {
            Answer::No
        } else {
            Answer::Unknown
        }
    }

    /// Makes room by suspensions alone, without a limit on their number, on the GPUs where they cost least. It suspends
    /// no claim needlessly, and finds answers beyond the search: a large job against a hundred small claims. If that is
    /// not enough, it repacks all claims that may move as well, within this number of steps.
    #[must_use]
    pub fn clear(&self, new: &Item, steps: u32) -> Option<Fit> {
        let leave = |g: usize| {
            let items = self.items.iter().filter(move |i| i.at.contains(&g));
            items.filter_map(|i| Some((i, i.drop_cost?)))
        };
        let mut by_model: BTreeMap<usize, Vec<(u64, usize)>> = BTreeMap::new();
        for g in (0..self.kind.len()).filter(|g| new.mask & (1 << g) != 0) {
            let kind = self.kind[g];
            let room = leave(g).fold(self.free[g], |room, (i, _)| room.plus(i.need[kind]));
            if new.need[kind].fits(room) {
                let cost = match new.need[kind].fits(self.free[g]) {
                    true => 0,
                    false => leave(g).fold(0, |sum: u64, (_, cost)| sum.saturating_add(cost)),
                };
                by_model.entry(self.model[g]).or_default().push((cost, g));
            }
        }
        let cheapest = by_model.into_values().filter_map(|mut gpus| {
            gpus.sort_unstable();
            gpus.truncate(new.parts as usize);
            let cost = gpus
                .iter()
                .fold(0, |sum: u64, (cost, _)| sum.saturating_add(*cost));
            (gpus.len() == new.parts as usize).then_some((cost, gpus))
        });
        let Some((_, gpus)) = cheapest.min() else {
            return pack::clear(self, new, steps);
        };
        let mut at: Vec<usize> = gpus.into_iter().map(|(_, g)| g).collect();
        at.sort_unstable();
        let lacks = |g: usize, room: Need| !new.need[self.kind[g]].fits(room);
        let mut room = self.free.clone();
        let touches = |i: &Item| at.iter().any(|g| i.at.contains(g));
        let mut drops: Vec<usize> = (0..self.items.len())
            .filter(|i| self.items[*i].drop_cost.is_some() && touches(&self.items[*i]))
            .collect();
        for item in drops.iter().map(|i| &self.items[*i]) {
            self.change(&mut room, item, &item.at, Need::plus);
        }
        // Most expensive first: these are kept if possible.
        drops.sort_by_key(|i| Reverse(self.items[*i].drop_cost));
        drops.retain(|i| {
            let item = &self.items[*i];
            let mut without = room.clone();
            self.change(&mut without, item, &item.at, Need::less);
            let needed = at.iter().any(|g| lacks(*g, without[*g]));
            if !needed {
                room = without;
            }
            needed
        });
        Some(Fit {
            at,
            moves: Vec::new(),
            drops,
            optimal: false,
        })
    }

    /// Gives back or takes what a claim needs on these GPUs.
    fn change(&self, free: &mut [Need], item: &Item, at: &[usize], by: fn(Need, Need) -> Need) {
        for &g in at {
            free[g] = by(free[g], item.need[self.kind[g]]);
        }
    }

    /// Whether there are several kinds of GPUs, on which a claim needs different parts.
    fn is_mixed(&self) -> bool {
        self.kind.iter().any(|k| *k != self.kind[0])
    }

    /// Finds a place without moving other claims.
    #[must_use]
    pub fn direct(
        &self,
        new: &Item,
        prefer: Prefer,
        reluctance: impl Fn(usize) -> u64,
    ) -> Option<Vec<usize>> {
        let mut fits: Vec<usize> = (0..self.free.len())
            .filter(|&g| allowed(new, g) && new.need[self.kind[g]].fits(self.free[g]))
            .collect();
        if fits.len() < new.parts as usize {
            return None;
        }
        let left = |g: usize| self.free[g].less(new.need[self.kind[g]]);
        fits.sort_by_cached_key(|&g| {
            let left = left(g);
            let key = (left.mem, u64::from(left.sm));
            match prefer {
                Prefer::Pack => (reluctance(g), key.0, key.1, g),
                Prefer::Spread => (reluctance(g), !key.1, key.0, g),
            }
        });
        if new.parts > 1 {
            // All of one model.
            fits = of_one_model(&fits, &self.model, new.parts as usize)?;
        }
        fits.truncate(new.parts as usize);
        fits.sort_unstable();
        Some(fits)
    }

    /// Whether enough GPUs would have room for a part of it if all movable and suspendable claims left, and the movable
    /// ones may fit as well.
    pub(crate) fn able(&self, new: &Item) -> bool {
        let mut most = self.free.clone();
        for item in self.items.iter().filter(|i| i.can_leave()) {
            self.change(&mut most, item, &item.at, Need::plus);
        }
        let able = most.iter().enumerate();
        let able =
            able.filter(|(g, most)| allowed(new, *g) && new.need[self.kind[*g]].fits(**most));
        able.count() >= new.parts as usize && !pack::impossible(self, new, &most)
    }

    /// Whether the total free room would be enough if the `drops` largest claims were suspended. With several kinds of
    /// GPUs totals prove nothing.
    fn enough(&self, new: &Item, drops: u32) -> bool {
        if self.is_mixed() {
            return true;
        }
        let parts = u64::from(new.parts);
        let dimension = |of: fn(Need) -> u64| {
            let mut sizes: Vec<u64> = self
                .items
                .iter()
                .filter(|i| i.drop_cost.is_some())
                .map(|i| of(i.need[0]).saturating_mul(u64::from(i.parts)))
                .collect();
            sizes.sort_unstable_by(|a, b| b.cmp(a));
            let free: u64 = self.free.iter().map(|f| of(*f)).sum();
            let dropped: u64 = sizes.iter().take(drops as usize).sum();
            of(new.need[0]).saturating_mul(parts) <= free.saturating_add(dropped)
        };
        dimension(|n| u64::from(n.sm)) && dimension(|n| n.mem)
    }
}

fn allowed(item: &Item, g: usize) -> bool {
    item.mask & (1 << g) != 0
}

/// The first `count` GPUs of `order` that have the same model.
fn of_one_model(order: &[usize], model: &[usize], count: usize) -> Option<Vec<usize>> {
    order.iter().find_map(|&first| {
        let same = order.iter().copied().filter(|g| model[*g] == model[first]);
        let of: Vec<usize> = same.take(count).collect();
        (of.len() == count).then_some(of)
    })
}

/// Where a part of a claim should go.
#[derive(Clone, Copy)]
struct Spot {
    index: usize,
    g: usize,
    need: Need,
}

/// All places in a solution: the index of the new claim is `items.len()`, no GPUs means suspended.
type Found = Vec<(usize, Vec<usize>)>;

/// Remaining moves and suspensions.
#[derive(Clone, Copy)]
struct Left {
    moves: u32,
    drops: u32,
}

struct Search<'a> {
    board: &'a Board,
    new: &'a Item,
    free: Vec<Need>,
    /// Movable claims on each GPU that have not been lifted.
    on: Vec<Vec<usize>>,
    lifted: Vec<bool>,
    placed: Found,
    steps: u32,
    limit: u32,
    best: Option<(u64, Found)>,
    /// Differs between GPUs that some claim distinguishes by their number.
    mark: Vec<u64>,
    /// Same value for movable claims that look alike, so that only one of them is tried.
    alike: Vec<usize>,
    /// What each claim adds to the looks of its GPU, and the sum of the claims on each GPU that have not been lifted.
    looks: Vec<u64>,
    looks_on: Vec<u64>,
    /// Lists for reuse: allocating them took a fifth of the time.
    spare: Vec<Vec<usize>>,
}

impl<'a> Search<'a> {
    fn new(board: &'a Board, new: &'a Item) -> Self {
        let gpus = board.free.len();
        let mut on = vec![Vec::new(); gpus];
        let all = Mask::MAX >> (MAX_GPUS - gpus.clamp(1, MAX_GPUS));
        let mut mark = vec![0u64; gpus];
        let items = board.items.iter().enumerate();
        for (index, item) in items.filter(|(_, i)| i.can_leave()) {
            for &g in &item.at {
                on[g].push(index);
            }
        }
        let leave = board.items.iter().filter(|i| i.can_leave());
        for (index, item) in leave.chain([new]).enumerate() {
            if item.mask & all != all {
                for (g, mark) in mark.iter_mut().enumerate() {
                    let bit = u64::from(allowed(item, g)) + 1;
                    *mark = mix(*mark ^ bit.wrapping_mul(index as u64 + 1));
                }
            }
        }
        let alike = alike(&board.items);
        let looks: Vec<u64> = alike.iter().map(|i| looks_of(*i)).collect();
        let all_on = |on: &Vec<usize>| on.iter().fold(0u64, |sum, i| sum.wrapping_add(looks[*i]));
        Self {
            board,
            new,
            free: board.free.clone(),
            looks_on: on.iter().map(all_on).collect(),
            alike,
            looks,
            on,
            lifted: vec![false; board.items.len()],
            placed: Vec::new(),
            steps: 0,
            limit: 0,
            best: None,
            mark,
            spare: Vec::new(),
        }
    }

    fn out(&self) -> bool {
        self.steps >= self.limit
    }

    fn item(&self, index: usize) -> &'a Item {
        self.board.items.get(index).unwrap_or(self.new)
    }

    fn run(&mut self, left: Left) {
        let mut open = vec![self.board.items.len()];
        self.best = None;
        self.place(&mut open, left, 0);
    }

    fn fit(&self, found: Found, optimal: bool) -> Fit {
        let new = self.board.items.len();
        let mut at = Vec::new();
        let (mut moves, mut drops) = (Vec::new(), Vec::new());
        for (index, mut gpus) in found {
            gpus.sort_unstable();
            if index == new {
                at = gpus;
            } else if gpus.is_empty() {
                drops.push(index);
            } else if gpus != self.board.items[index].at {
                moves.push((index, gpus));
            }
        }
        drops.sort_unstable();
        Fit {
            at,
            moves,
            drops,
            optimal,
        }
    }

    /// Places or suspends the largest claim of `open`, then the rest.
    fn place(&mut self, open: &mut Vec<usize>, left: Left, cost: u64) {
        if self.best.as_ref().is_some_and(|(best, _)| cost >= *best) {
            return;
        }
        let Some(largest) =
            (0..open.len()).max_by_key(|&i| size(self.item(open[i]), &self.board.kind))
        else {
            self.best = Some((cost, self.placed.clone()));
            return;
        };
        let index = open.swap_remove(largest);
        let at = self.spare.pop().unwrap_or_default();
        self.placed.push((index, at));
        let item = self.item(index);
        if index == self.board.items.len() {
            self.part(index, open, left, cost, 0);
        } else {
            if let (Some(more), true) = (item.drop_cost, left.drops > 0) {
                let drops = left.drops - 1;
                self.place(
                    open,
                    Left { drops, ..left },
                    cost.saturating_add(more.max(1)),
                );
            }
            if let (Some(more), true) = (item.move_cost, left.moves > 0) {
                let moves = left.moves - 1;
                self.part(
                    index,
                    open,
                    Left { moves, ..left },
                    cost.saturating_add(more.max(1)),
                    0,
                );
            }
        }
        self.spare.extend(self.placed.pop().map(|(_, at)| at));
        open.push(index);
        let last = open.len() - 1;
        open.swap(largest, last);
    }

    /// Places the next part of a claim on a GPU with index `from` or higher.
    fn part(&mut self, index: usize, open: &mut Vec<usize>, left: Left, cost: u64, from: usize) {
        let item = self.item(index);
        let have = self.placed.last().map_or(0, |(_, at)| at.len());
        if have == item.parts as usize {
            self.place(open, left, cost);
            return;
        }
        // Each open claim already uses one of the remaining moves or suspensions.
        let lifts = ((left.moves + left.drops) as usize).saturating_sub(open.len());
        let board = self.board;
        let model = &board.model;
        let first = self.placed.last().and_then(|(_, at)| at.first().copied());
        let may = |g: usize| allowed(item, g) && first.is_none_or(|f| model[f] == model[g]);
        for g in from..self.free.len() {
            self.steps += 1;
            if self.out() {
                return;
            }
            if !may(g) {
                continue;
            }
            let kind = board.kind[g];
            let looks = |g: usize| {
                let lifts = left.moves + left.drops;
                (board.kind[g], self.free[g], self.looks(g, lifts))
            };
            let this = looks(g);
            let tried = |t| self.free[t] == self.free[g] && may(t) && looks(t) == this;
            if (from..g).any(tried) {
                continue;
            }
            let need = item.need[kind];
            if need.fits(self.free[g]) {
                self.put(index, g, need, open, left, cost);
            } else if lifts > 0 {
                let spot = Spot { index, g, need };
                let mut claims = self.spare.pop().unwrap_or_default();
                let here = self.on[g].iter().filter(|i| !self.lifted[**i]);
                claims.extend(here);
                let rest = rest(claims.iter().map(|&i| self.item(i).need[kind]));
                let here = Here {
                    claims: &claims,
                    rest: &rest,
                };
                let mut set = self.spare.pop().unwrap_or_default();
                self.sets(here, lifts, &mut set, spot, open, left, cost);
                for mut list in [claims, set] {
                    list.clear();
                    self.spare.push(list);
                }
            }
        }
    }

    fn put(
        &mut self,
        index: usize,
        g: usize,
        need: Need,
        open: &mut Vec<usize>,
        left: Left,
        cost: u64,
    ) {
        let before = self.free[g];
        self.free[g] = before.less(need);
        if let Some((_, at)) = self.placed.last_mut() {
            at.push(g);
        }
        self.part(index, open, left, cost, g + 1);
        if let Some((_, at)) = self.placed.last_mut() {
            at.pop();
        }
        self.free[g] = before;
    }

    /// Lifts sets of claims, none of which could stay beside the claim to be placed.
    #[allow(
        clippy::too_many_arguments,
        reason = "the state of one level of the search"
    )]
    fn sets(
        &mut self,
        here: Here<'_>,
        lifts: usize,
        set: &mut Vec<usize>,
        spot: Spot,
        open: &mut Vec<usize>,
        left: Left,
        cost: u64,
    ) {
        self.steps += 1;
        let kind = self.board.kind[spot.g];
        let gained = set
            .iter()
            .fold(self.free[spot.g], |f, &i| f.plus(self.item(i).need[kind]));
        if spot.need.fits(gained) {
            let needless = set.iter().any(|&i| {
                let without = gained.less(self.item(i).need[kind]);
                spot.need.fits(without)
            });
            if !needless {
                self.lift(set, spot, open, left, cost);
            }
            return;
        }
        if set.len() >= lifts {
            return;
        }
        let more = u32::try_from(lifts - set.len()).unwrap_or(u32::MAX);
        for (i, &candidate) in here.claims.iter().enumerate() {
            // Not even the largest of the following claims would make enough room.
            if !spot.need.fits(gained.plus(here.rest[i].most(more))) {
                return;
            }
            // Of several alike on one GPU only the first may be lifted first.
            let alike = self.alike[candidate];
            if here.claims[..i].iter().any(|c| self.alike[*c] == alike) {
                continue;
            }
            set.push(candidate);
            self.sets(here.after(i), lifts, set, spot, open, left, cost);
            set.pop();
            if self.out() {
                return;
            }
        }
    }

    fn lift(&mut self, set: &[usize], spot: Spot, open: &mut Vec<usize>, left: Left, cost: u64) {
        self.steps += 4;
        for &i in set {
            let item = self.item(i);
            self.lifted[i] = true;
            for &at in &item.at {
                self.free[at] = self.free[at].plus(item.need[self.board.kind[at]]);
                self.looks_on[at] = self.looks_on[at].wrapping_sub(self.looks[i]);
            }
            open.push(i);
        }
        self.put(spot.index, spot.g, spot.need, open, left, cost);
        open.retain(|i| !set.contains(i));
        for &i in set {
            let item = self.item(i);
            self.lifted[i] = false;
            for &at in &item.at {
                self.free[at] = self.free[at].less(item.need[self.board.kind[at]]);
                self.looks_on[at] = self.looks_on[at].wrapping_add(self.looks[i]);
            }
        }
    }

    /// What distinguishes a GPU, apart from its kind and room.
    fn looks(&self, g: usize, lifts: u32) -> u64 {
        if lifts == 0 {
            return self.mark[g];
        }
        self.mark[g].wrapping_add(self.looks_on[g])
    }
}

fn mix(x: u64) -> u64 {
    let mut x = x.wrapping_add(0x9e37_79b9_7f4a_7c15);
    x = (x ^ (x >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    x = (x ^ (x >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    x ^ (x >> 31)
}

fn size(item: &Item, kind: &[usize]) -> (u32, u64, u64) {
    let need = item.need[kind.first().copied().unwrap_or(0).min(item.need.len() - 1)];
    (item.parts, need.mem, u64::from(need.sm))
}

#[cfg(test)]
mod tests;
