//! How much each party is entitled to: guaranteed quota first, then weighted max-min over real numbers.
//!
//! Shares are parts of GPUs, never floored to whole ones: flooring starves the newest user, since a share of
//! nothing can reclaim nothing.

use std::time::Duration;

use super::solve::{Answer, Board, Budget, Item, Mask, Need, Prefer};
use crate::units::Share;

/// A user, group or project among which a machine is divided. All in GPUs.
#[derive(Clone, Debug, PartialEq)]
pub struct Party {
    /// Guaranteed part; `None` is an equal part of what no quota guarantees.
    pub quota: Option<f64>,
    /// Weight for what is left over the guarantees.
    pub weight: f64,
    /// Most it may hold; `None` is all.
    pub max: Option<f64>,
    /// What it holds and waits for.
    pub demand: f64,
}

/// What each party is guaranteed of `total` GPUs: its quota, or an equal part of what the quotas leave for
/// those who have none. Quotas that together exceed the machine shrink in proportion.
#[must_use]
pub fn guarantees(total: f64, parties: &[Party]) -> Vec<f64> {
    let named: f64 = parties.iter().filter_map(|p| p.quota).sum();
    let scale = if named > total { total / named } else { 1.0 };
    let without = parties.iter().filter(|p| p.quota.is_none()).count();
    let equal = (total - named).max(0.0) / without.max(1) as f64;
    parties
        .iter()
        .map(|p| {
            let part = p.quota.map_or(equal, |q| q * scale);
            part.min(p.max.unwrap_or(f64::INFINITY))
        })
        .collect()
}

/// What each party should hold of `total` GPUs: its guarantee as far as it wants it, and of the rest in
/// proportion to the weights until it has all that it wants.
#[must_use]
pub fn shares(total: f64, parties: &[Party]) -> Vec<f64> {
    let guaranteed = guarantees(total, parties);
    let want = |p: &Party| p.demand.min(p.max.unwrap_or(f64::INFINITY)).max(0.0);
    let mut share: Vec<f64> = parties
        .iter()
        .zip(&guaranteed)
        .map(|(p, g)| want(p).min(*g))
        .collect();
    let mut left = (total - share.iter().sum::<f64>()).max(0.0);
    // Each round satisfies somebody, or hands out all that is left.
    for _ in 0..=parties.len() {
        let open: Vec<usize> = (0..parties.len())
            .filter(|&i| parties[i].weight > 0.0 && want(&parties[i]) > share[i] + 1e-12)
            .collect();
        let weights: f64 = open.iter().map(|&i| parties[i].weight).sum();
        if open.is_empty() || left <= 1e-12 {
            break;
        }
        let level = open
            .iter()
            .map(|&i| (want(&parties[i]) - share[i]) / parties[i].weight)
            .fold(left / weights, f64::min);
        for i in open {
            let give = level * parties[i].weight;
            share[i] += give;
            left -= give;
        }
    }
    share
}

/// Bounds of the levels of attained service: less than 10 minutes, 1 hour, 4 hours.
pub const LEVELS: [Duration; 3] = [
    Duration::from_secs(600),
    Duration::from_secs(3600),
    Duration::from_secs(4 * 3600),
];

/// The level of attained service, in seconds: 0 goes first.
#[must_use]
pub fn level(attained_s: f64) -> u8 {
    LEVELS
        .iter()
        .map(|bound| u8::from(attained_s >= bound.as_secs_f64()))
        .sum()
}

/// What somebody held in the past, in GPU-seconds, forgotten by halves.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct History {
    sum: f64,
    at_s: f64,
}

impl History {
    /// After this many seconds half of it is forgotten.
    pub const HALF_LIFE_S: f64 = 24.0 * 3600.0;

    /// GPU-seconds that are still remembered of `gpus` held from `from_ago_s` to `to_ago_s` seconds ago.
    #[must_use]
    pub fn of(gpus: f64, from_ago_s: f64, to_ago_s: f64) -> f64 {
        let keep = |ago: f64| (-ago * std::f64::consts::LN_2 / Self::HALF_LIFE_S).exp();
        let scale = Self::HALF_LIFE_S / std::f64::consts::LN_2;
        (gpus * scale * (keep(to_ago_s) - keep(from_ago_s))).max(0.0)
    }

    /// Adds `gpus` held from the last call until `now_s`; what was borrowed while nobody wanted it counts as
    /// `weight` of it.
    pub fn hold(&mut self, now_s: f64, gpus: f64, weight: f64) {
        let passed = (now_s - self.at_s).max(0.0);
        let keep = (-passed * std::f64::consts::LN_2 / Self::HALF_LIFE_S).exp();
        // The integral of what decays while it is held.
        let gained = gpus * weight * Self::HALF_LIFE_S / std::f64::consts::LN_2 * (1.0 - keep);
        self.sum = self.sum * keep + gained;
        self.at_s = self.at_s.max(now_s);
    }

    /// Adds GPU-seconds held before the last call.
    pub fn add(&mut self, gpu_seconds: f64) {
        self.sum += gpu_seconds.max(0.0);
    }

    /// GPU-seconds that are remembered, and as of when (seconds): what [`History::from_parts`] takes.
    #[must_use]
    pub fn parts(&self) -> (f64, f64) {
        (self.sum, self.at_s)
    }

    /// A history with these parts.
    #[must_use]
    pub fn from_parts(sum: f64, at_s: f64) -> Self {
        Self { sum, at_s }
    }

    /// GPU-seconds that are remembered as of the last call.
    #[must_use]
    pub fn gpu_seconds(&self) -> f64 {
        self.sum
    }
}

/// Whether quotas can be had at the same time on `gpus` equal GPUs, each as whole GPUs and one fraction. If
/// not, the first of them (by index) for which no room is left.
#[must_use]
pub fn unpackable(gpus: usize, quotas: &[Share]) -> Option<usize> {
    let mut board = Board {
        kind: vec![0; gpus],
        model: vec![0; gpus],
        free: vec![Need { sm: 1000, mem: 1 }; gpus],
        items: Vec::new(),
    };
    let part = |milli: u32| Item {
        need: vec![Need { sm: milli, mem: 0 }],
        parts: 1,
        mask: Mask::MAX,
        at: Vec::new(),
        move_cost: Some(1),
        drop_cost: None,
    };
    let budget = Budget {
        steps: 200_000,
        moves: u32::MAX,
        least: 0,
        drops: 0,
    };
    for (index, quota) in quotas.iter().enumerate() {
        let whole = std::iter::repeat_n(1000, (quota.milli() / 1000) as usize);
        let rest = std::iter::once(quota.milli() % 1000).filter(|r| *r > 0);
        for milli in whole.chain(rest) {
            let mut item = part(milli);
            match board.place(&item, Prefer::Pack, |_| 0, budget) {
                Answer::Fits(fit) => {
                    for (moved, at) in fit.moves {
                        let need = board.items[moved].need[0];
                        let from = std::mem::replace(&mut board.items[moved].at, at.clone());
                        board.free[from[0]] = board.free[from[0]].plus(need);
                        board.free[at[0]] = board.free[at[0]].less(need);
                    }
                    let g = fit.at[0];
                    board.free[g] = board.free[g].less(item.need[0]);
                    item.at = fit.at;
                    board.items.push(item);
                }
                Answer::No => return Some(index),
                Answer::Unknown => return None,
            }
        }
    }
    None
}

/// Why guaranteed parts cannot be had at the same time.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Unpackable {
    /// GPUs of the machine.
    pub gpus: usize,
    /// The first entry for which no room is left.
    pub party: crate::quota::Party,
    /// What it is guaranteed.
    pub wanted: Share,
    /// All guaranteed parts together.
    pub sum: Share,
    /// The most that could be guaranteed to it beside the others.
    pub most: Share,
}

impl std::fmt::Display for Unpackable {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let (gpus, wanted) = (self.gpus, self.wanted.short());
        let s = if gpus == 1 { "" } else { "s" };
        let why = if self.sum.milli() as usize > gpus * 1000 {
            format!(
                "all guarantees together are {} of {gpus} GPU{s}",
                self.sum.short()
            )
        } else {
            format!(
                "their sum fits into {gpus} GPU{s}, but a fraction cannot be split between GPUs, and no GPU has enough room left"
            )
        };
        write!(
            f,
            "{} cannot be guaranteed {wanted} in addition to the other guarantees: {why}",
            self.party
        )
    }
}

/// Why the guarantees among these entries cannot be had at the same time on `gpus` equal GPUs, if so. Whole GPUs
/// and large fractions are put down first, so what is named is the smallest change that helps.
#[must_use]
pub fn unpackable_quotas(gpus: usize, quotas: &[crate::quota::Quota]) -> Option<Unpackable> {
    let mut sure: Vec<(&crate::quota::Party, Share)> = quotas
        .iter()
        .filter_map(|q| Some((&q.party, q.gpus?)))
        .collect();
    sure.sort_by(|a, b| b.1.cmp(&a.1).then_with(|| a.0.cmp(b.0)));
    let shares: Vec<Share> = sure.iter().map(|(_, s)| *s).collect();
    let index = unpackable(gpus, &shares)?;
    let (party, wanted) = sure[index];
    let fits = |milli: &u32| {
        let mut less = shares.clone();
        less[index] = Share::from_milli(*milli);
        unpackable(gpus, &less).is_none()
    };
    let tens = (0..wanted.milli() / 10).rev().map(|t| t * 10);
    Some(Unpackable {
        gpus,
        party: party.clone(),
        wanted,
        sum: shares
            .iter()
            .fold(Share::ZERO, |sum, s| sum.saturating_add(*s)),
        most: Share::from_milli(tens.into_iter().find(fits).unwrap_or(0)),
    })
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn party(quota: Option<f64>, weight: f64, demand: f64) -> Party {
        Party {
            quota,
            weight,
            max: None,
            demand,
        }
    }

    #[test]
    fn three_who_ask_for_half_of_one_gpu_get_a_third_each() {
        let all = vec![party(Some(0.0), 1.0, 0.5); 3];
        for share in shares(1.0, &all) {
            assert!((share - 1.0 / 3.0).abs() < 1e-9);
        }
    }

    #[test]
    fn guarantee_first_then_by_weight_up_to_the_demand_and_the_maximum() {
        let parties = [
            party(Some(2.0), 1.0, 8.0),
            party(Some(2.0), 3.0, 8.0),
            party(None, 1.0, 1.0),
        ];
        let got = shares(8.0, &parties);
        assert!((got[2] - 1.0).abs() < 1e-9);
        assert!((got[0] - (2.0 + 0.75)).abs() < 1e-9, "{got:?}");
        assert!((got[1] - (2.0 + 2.25)).abs() < 1e-9, "{got:?}");
        let mut capped = parties.to_vec();
        capped[1].max = Some(3.0);
        let got = shares(8.0, &capped);
        assert!((got[1] - 3.0).abs() < 1e-9 && (got[0] - 4.0).abs() < 1e-9);
        assert_eq!(guarantees(8.0, &parties), [2.0, 2.0, 4.0]);
    }

    #[test]
    fn quotas_must_be_packable_and_not_only_sum_up() {
        let milli = |all: &[u32]| {
            all.iter()
                .map(|m| Share::from_milli(*m))
                .collect::<Vec<_>>()
        };
        assert_eq!(unpackable(2, &milli(&[700, 700, 600])), Some(2));
        assert_eq!(unpackable(2, &milli(&[700, 600, 300, 400])), None);
        assert_eq!(unpackable(2, &milli(&[1500, 500])), None);
        assert_eq!(unpackable(8, &milli(&[2000, 2000, 2000, 2000])), None);
        assert_eq!(unpackable(1, &milli(&[2000])), Some(0));
    }

    #[test]
    fn what_cannot_be_packed_is_named_with_the_reason_and_what_would_fit() {
        let quota = |name: &str, milli| crate::quota::Quota {
            party: crate::quota::Party::Project(name.into()),
            gpus: Some(Share::from_milli(milli)),
            weight_milli: None,
            max: None,
        };
        let all = [quota("a", 600), quota("b", 700), quota("c", 700)];
        let told = unpackable_quotas(2, &all).expect("not packable");
        assert_eq!(
            told.to_string(),
            "project:a cannot be guaranteed 0.6 in addition to the other guarantees: their sum fits into 2 GPUs, but a fraction cannot be split between GPUs, and no GPU has enough room left"
        );
        assert_eq!(told.most, Share::from_milli(300));
        let told = unpackable_quotas(1, &all).expect("too many");
        assert_eq!(told.party, crate::quota::Party::Project("c".into()));
        assert!(
            told.to_string()
                .ends_with("all guarantees together are 2 of 1 GPU")
        );
        assert_eq!(unpackable_quotas(3, &all), None);
        assert_eq!(
            unpackable_quotas(2, &[quota("a", 1500), quota("b", 500)]),
            None
        );
    }

    #[test]
    fn history_is_forgotten_by_halves_and_levels_follow_service() {
        let mut h = History::default();
        h.hold(100.0, 1.0, 1.0);
        assert!((h.gpu_seconds() - 100.0).abs() < 0.1);
        h.hold(100.0 + History::HALF_LIFE_S, 0.0, 1.0);
        assert!((h.gpu_seconds() - 50.0).abs() < 0.1);
        // The same, an interval at a time.
        let day = History::HALF_LIFE_S;
        assert!((History::of(1.0, day + 100.0, day) - 50.0).abs() < 0.1);
        assert_eq!([599.0, 600.0, 3600.0, 14_400.0].map(level), [0, 1, 2, 3]);
    }

    proptest! {
        #[test]
        fn nobody_gets_more_than_wanted_nothing_is_left_that_is_wanted_and_guarantees_hold(
            total in 0.5f64..16.0,
            parties in prop::collection::vec(
                (prop::option::of(0.0f64..6.0), 0.1f64..4.0, prop::option::of(0.1f64..8.0), 0.0f64..12.0),
                1..9,
            ),
        ) {
            let parties: Vec<Party> = parties
                .into_iter()
                .map(|(quota, weight, max, demand)| Party { quota, weight, max, demand })
                .collect();
            let got = shares(total, &parties);
            let sum: f64 = got.iter().sum();
            prop_assert!(sum <= total + 1e-6);
            let mut wanted = 0.0;
            for ((p, share), sure) in parties.iter().zip(&got).zip(guarantees(total, &parties)) {
                let want = p.demand.min(p.max.unwrap_or(f64::INFINITY));
                wanted += want;
                prop_assert!(*share <= want + 1e-6);
                prop_assert!(*share >= want.min(sure) - 1e-6);
            }
            prop_assert!((sum - total.min(wanted)).abs() < 1e-6, "{} of {}", sum, total.min(wanted));
            // Max-min: a party with more over its guarantee per weight than another could not give to that one.
            let over = |i: usize| {
                let want = parties[i].demand.min(parties[i].max.unwrap_or(f64::INFINITY));
                let sure = want.min(guarantees(total, &parties)[i]);
                ((got[i] - sure) / parties[i].weight, want - got[i] > 1e-6)
            };
            for i in 0..parties.len() {
                for j in 0..parties.len() {
                    let ((a, _), (b, unmet)) = (over(i), over(j));
                    prop_assert!(!unmet || a <= b + 1e-6);
                }
            }
        }
    }
}
