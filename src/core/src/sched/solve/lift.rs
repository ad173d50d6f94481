//! Claims that can be lifted from a GPU: which of them are alike, and how much room they can free at most.

use super::{Item, Need, mix};

/// Liftable claims on one GPU, and what the claims from each index on can free.
#[derive(Clone, Copy, Debug)]
pub(super) struct Here<'b> {
    pub(super) claims: &'b [usize],
    pub(super) rest: &'b [Rest],
}

impl Here<'_> {
    pub(super) fn after(self, i: usize) -> Self {
        Self {
            claims: &self.claims[i + 1..],
            rest: &self.rest[i + 1..],
        }
    }
}

/// Sum of the needs of some claims, and the largest need of one.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Rest {
    sum: Need,
    largest: Need,
}

impl Rest {
    /// Upper bound for `count` of these claims.
    pub(super) fn most(self, count: u32) -> Need {
        Need {
            sm: self.sum.sm.min(self.largest.sm.saturating_mul(count)),
            mem: self
                .sum
                .mem
                .min(self.largest.mem.saturating_mul(count.into())),
        }
    }
}

/// What the claims from each index on can free.
pub(super) fn rest(needs: impl DoubleEndedIterator<Item = Need>) -> Vec<Rest> {
    let mut rest = vec![Rest::default()];
    for need in needs.rev() {
        let after = rest.last().copied().unwrap_or_default();
        rest.push(Rest {
            sum: after.sum.plus(need),
            largest: Need {
                sm: after.largest.sm.max(need.sm),
                mem: after.largest.mem.max(need.mem),
            },
        });
    }
    rest.reverse();
    rest
}

/// For each claim the first that looks the same. A claim with several GPUs, or one that cannot leave, is like no other.
pub(super) fn alike(items: &[Item]) -> Vec<usize> {
    let mut first: Vec<(u64, usize)> = Vec::new();
    let looks = |i: &Item| (i.mask, i.move_cost, i.drop_cost);
    let alike = items.iter().enumerate().map(|(index, item)| {
        if item.parts > 1 || !item.can_leave() {
            return index;
        }
        let needs = item.need.iter();
        let print = needs.fold(item.move_cost.unwrap_or(1), |print, n| {
            mix(print ^ n.mem ^ u64::from(n.sm) << 40)
        });
        let same = |&&(p, i): &&(u64, usize)| {
            p == print && looks(&items[i]) == looks(item) && items[i].need == item.need
        };
        if let Some((_, known)) = first.iter().find(same) {
            return *known;
        }
        first.push((print, index));
        index
    });
    alike.collect()
}

/// What a claim of this look adds to the looks of its GPU.
pub(super) fn looks_of(alike: usize) -> u64 {
    mix(mix(alike as u64 + 77))
}
