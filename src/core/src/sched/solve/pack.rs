//! Repacks everything if a few moves are not enough.

use std::collections::HashSet;

use super::{Board, Fit, Item, Need, Search, allowed, mix, size};

/// Repacks everything: `Some(None)` if that is proven impossible, `None` if the budget was used up first.
pub(super) fn anew(board: &Board, new: &Item, limit: u32, steps: &mut u32) -> Option<Option<Fit>> {
    let mut free = board.free.clone();
    let mut order: Vec<usize> = Vec::new();
    let items = board.items.iter().enumerate();
    for (index, item) in items.filter(|(_, i)| i.move_cost.is_some()) {
        board.change(&mut free, item, &item.at, Need::plus);
        order.push(index);
    }
    order.push(board.items.len());
    let item = |i: usize| board.items.get(i).unwrap_or(new);
    order.sort_by_key(|&i| std::cmp::Reverse(size(item(i), &board.kind)));
    // What remains to be placed from each position of the order on: the sum, and the smallest need.
    let mut rest = vec![
        (
            Need::default(),
            Need {
                sm: u32::MAX,
                mem: u64::MAX
            }
        );
        order.len() + 1
    ];
    for (place, &i) in order.iter().enumerate().rev() {
        let (sum, least) = rest[place + 1];
        let needs = item(i).need.iter();
        let small = needs.fold(least, |l, n| Need {
            sm: l.sm.min(n.sm),
            mem: l.mem.min(n.mem),
        });
        let own = item(i).need.iter().copied().reduce(|a, b| Need {
            sm: a.sm.min(b.sm),
            mem: a.mem.min(b.mem),
        });
        let own = own.unwrap_or_default();
        let mut sum = sum;
        for _ in 0..item(i).parts {
            sum = sum.plus(own);
        }
        rest[place] = (sum, small);
    }
    let mut pack = Pack {
        board,
        new,
        free,
        order: &order,
        rest,
        at: vec![Vec::new(); board.items.len() + 1],
        failed: HashSet::new(),
        steps: 0,
        limit,
        mark: Search::new(board, new).mark,
    };
    let found = pack.go(0);
    *steps += pack.steps;
    if found {
        return Some(Some(pack.fit()));
    }
    (pack.steps < pack.limit).then_some(None)
}

/// Makes room by suspending claims and repacking all that may move: every claim that may be suspended is, and those that
/// still fit at their places then stay, the most expensive first.
pub(super) fn clear(board: &Board, new: &Item, limit: u32) -> Option<Fit> {
    let mut drops: Vec<usize> = (0..board.items.len()).collect();
    drops.retain(|i| board.items[*i].drop_cost.is_some());
    let mut bare = board.clone();
    for i in &drops {
        let item = &mut bare.items[*i];
        item.move_cost = None;
        board.change(&mut bare.free, item, &item.at, Need::plus);
    }
    let fit = anew(&bare, new, limit, &mut 0)??;
    let mut free = bare.free;
    for (i, _) in &fit.moves {
        board.change(&mut free, &board.items[*i], &board.items[*i].at, Need::plus);
    }
    for (i, to) in &fit.moves {
        board.change(&mut free, &board.items[*i], to, Need::less);
    }
    board.change(&mut free, new, &fit.at, Need::less);
    drops.sort_by_key(|i| std::cmp::Reverse(board.items[*i].drop_cost));
    drops.retain(|i| {
        let item = &board.items[*i];
        let stays = |g: &usize| item.need[board.kind[*g]].fits(free[*g]);
        let stays = item.at.iter().all(stays);
        if stays {
            board.change(&mut free, item, &item.at, Need::less);
        }
        !stays
    });
    Some(Fit { drops, ..fit })
}

/// Whether the new claim and those that may move but not be suspended are proven not to fit into these rooms. With
/// several kinds of GPUs sums prove nothing.
pub(super) fn impossible(board: &Board, new: &Item, rooms: &[Need]) -> bool {
    if board.is_mixed() {
        return false;
    }
    let stays = |i: &&Item| i.move_cost.is_some() && i.drop_cost.is_none();
    let items = || board.items.iter().filter(stays).chain([new]);
    let of: [fn(Need) -> u64; 2] = [|n| u64::from(n.sm), |n| n.mem];
    of.into_iter().any(|of| {
        let each = items().flat_map(|i| std::iter::repeat_n(of(i.need[0]), i.parts as usize));
        let rooms: Vec<u64> = rooms.iter().map(|room| of(*room)).collect();
        too_many(each.collect(), &rooms)
    })
}

/// Whether parts of these sizes cannot fit into these rooms in any arrangement: the bound of Martello and Toth, with
/// the largest room for all.
fn too_many(mut parts: Vec<u64>, rooms: &[u64]) -> bool {
    parts.sort_unstable();
    let sums = parts.iter().scan(0, |sum, part| {
        *sum += part;
        Some(*sum)
    });
    let sums: Vec<u64> = std::iter::once(0).chain(sums).collect();
    let most = rooms.iter().copied().max().unwrap_or(0);
    if sums[parts.len()] > rooms.iter().sum() || parts.last().is_some_and(|p| *p > most) {
        return true;
    }
    let half = parts.partition_point(|p| *p <= most / 2);
    // Smaller parts than the threshold count as nothing, so larger ones than the rest have a room each.
    (0..=half).any(|first| {
        let threshold = parts[..half].get(first).copied().unwrap_or(0);
        let alone = parts.partition_point(|p| *p <= most - threshold);
        let large = (alone - half) as u64;
        let left = large * most - (sums[alone] - sums[half]);
        let rest = (sums[half] - sums[first]).saturating_sub(left);
        let rooms_for_rest = rest.div_ceil(most.max(1));
        (parts.len() - alone) as u64 + large + rooms_for_rest > rooms.len() as u64
    })
}

struct Pack<'a> {
    board: &'a Board,
    new: &'a Item,
    free: Vec<Need>,
    order: &'a [usize],
    rest: Vec<(Need, Need)>,
    at: Vec<Vec<usize>>,
    failed: HashSet<u64>,
    steps: u32,
    limit: u32,
    mark: Vec<u64>,
}

impl Pack<'_> {
    fn go(&mut self, next: usize) -> bool {
        let Some(&index) = self.order.get(next) else {
            return true;
        };
        // Room that is too small for the smallest item is lost.
        let (sum, least) = self.rest[next];
        let room = self.free.iter().filter(|f| least.fits(**f));
        let room = room.fold(Need::default(), |r, f| r.plus(*f));
        if !sum.fits(room) {
            return false;
        }
        self.steps += u32::try_from(self.free.len()).unwrap_or(u32::MAX);
        // The same items in the same rooms, in whatever order of GPUs, are known to fail.
        let rooms = (0..self.free.len()).map(|g| {
            let f = self.free[g];
            let room = mix(f.mem) ^ u64::from(f.sm);
            mix(room ^ self.mark[g] ^ (self.board.kind[g] as u64) << 40)
        });
        let key = mix(rooms.fold(mix(next as u64), u64::wrapping_add));
        if self.failed.contains(&key) {
            return false;
        }
        if self.part(index, next, 0) {
            return true;
        }
        if self.steps < self.limit {
            self.failed.insert(key);
        }
        false
    }

    fn part(&mut self, index: usize, next: usize, from: usize) -> bool {
        let item = self.board.items.get(index).unwrap_or(self.new);
        if self.at[index].len() == item.parts as usize {
            return self.go(next + 1);
        }
        // Try the current GPU first: a claim that stays costs no move.
        let own = item.at.first().filter(|_| item.parts == 1).copied();
        let others = (from..self.free.len()).filter(|g| Some(*g) != own);
        for g in own.into_iter().chain(others) {
            self.steps += 1;
            if self.steps >= self.limit {
                return false;
            }
            let kind = self.board.kind[g];
            let need = item.need[kind];
            let other_model = self.at[index]
                .first()
                .is_some_and(|&first| self.board.model[first] != self.board.model[g]);
            if !allowed(item, g) || other_model || !need.fits(self.free[g]) {
                continue;
            }
            let mut tried = own.into_iter().chain(from..g);
            if Some(g) != own && tried.any(|t| self.alike(t, g)) {
                continue;
            }
            let before = self.free[g];
            self.free[g] = before.less(need);
            self.at[index].push(g);
            if self.part(index, next, g + 1) {
                return true;
            }
            self.at[index].pop();
            self.free[g] = before;
        }
        false
    }

    /// Whether two GPUs have the same room and serve the same claims.
    fn alike(&self, a: usize, b: usize) -> bool {
        let (kind, model) = (&self.board.kind, &self.board.model);
        let same = kind[a] == kind[b] && model[a] == model[b];
        self.free[a] == self.free[b] && self.mark[a] == self.mark[b] && same
    }

    /// The packing found, with GPUs exchanged so that more claims stay.
    fn fit(mut self) -> Fit {
        let gpus = self.free.len();
        for a in 0..gpus {
            for b in a + 1..gpus {
                let same = self.board.kind[a] == self.board.kind[b] && self.mark[a] == self.mark[b];
                if !same || !self.exchangeable(a, b) {
                    continue;
                }
                let before = self.moved();
                self.swap(a, b);
                if self.moved() >= before {
                    self.swap(a, b);
                }
            }
        }
        let new = self.board.items.len();
        let mut moves = Vec::new();
        for (index, item) in self.board.items.iter().enumerate() {
            if item.move_cost.is_some() {
                self.at[index].sort_unstable();
                if self.at[index] != item.at {
                    moves.push((index, self.at[index].clone()));
                }
            }
        }
        let mut at = std::mem::take(&mut self.at[new]);
        at.sort_unstable();
        Fit {
            at,
            moves,
            drops: Vec::new(),
            optimal: false,
        }
    }

    /// Whether claims that cannot move take the same on both GPUs.
    fn exchangeable(&self, a: usize, b: usize) -> bool {
        let room = |g: usize| {
            let movable = self.board.items.iter().filter(|i| i.move_cost.is_some());
            movable
                .filter(|i| i.at.contains(&g))
                .fold(self.board.free[g], |f, i| {
                    f.plus(i.need[self.board.kind[g]])
                })
        };
        room(a) == room(b)
    }

    fn moved(&self) -> usize {
        let items = self.board.items.iter().enumerate();
        items
            .filter(|(i, item)| {
                item.move_cost.is_some() && item.at.iter().any(|g| !self.at[*i].contains(g))
            })
            .count()
    }

    fn swap(&mut self, a: usize, b: usize) {
        for at in &mut self.at {
            for g in at.iter_mut() {
                *g = match *g {
                    x if x == a => b,
                    x if x == b => a,
                    x => x,
                };
            }
        }
    }
}
