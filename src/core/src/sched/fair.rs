//! What each party is guaranteed, what it used in the past, and whether all guarantees fit at the same time.
//!
//! Shares are fractions of GPUs, never rounded down to whole ones: rounding starves the newest user, since a share of
//! zero can reclaim nothing.

use std::time::Duration;

use super::solve::{Answer, Board, Budget, Item, Mask, Need, Prefer};
use crate::units::{Share, many};

/// What each party is guaranteed of `total` GPUs: its entry's part, or without an entry an equal part of what the
/// entries leave. Entries that exceed the machine together shrink in proportion.
#[must_use]
pub fn guarantees(total: f64, quotas: &[Option<f64>]) -> Vec<f64> {
    let named: f64 = quotas.iter().flatten().sum();
    let scale = if named > total { total / named } else { 1.0 };
    let without = quotas.iter().filter(|q| q.is_none()).count();
    let equal = (total - named).max(0.0) / without.max(1) as f64;
    let part = |quota: &Option<f64>| quota.map_or(equal, |q| q * scale);
    quotas.iter().map(part).collect()
}

/// Upper bounds of the levels of attained service: 10 minutes, 1 hour, 4 hours.
pub const LEVELS: [Duration; 3] = [
    Duration::from_secs(600),
    Duration::from_secs(3600),
    Duration::from_secs(4 * 3600),
];

/// The level for an attained service in seconds: level 0 goes first.
#[must_use]
pub fn level(attained_s: f64) -> u8 {
    LEVELS
        .iter()
        .map(|bound| u8::from(attained_s >= bound.as_secs_f64()))
        .sum()
}

/// Past GPU-seconds of a party, decaying exponentially.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct History {
    sum: f64,
    at_s: f64,
}

impl History {
    /// Half-life in seconds.
    pub const HALF_LIFE_S: f64 = 24.0 * 3600.0;

    /// Remaining GPU-seconds of `gpus` held from `from_ago_s` to `to_ago_s` seconds ago.
    #[must_use]
    pub fn of(gpus: f64, from_ago_s: f64, to_ago_s: f64) -> f64 {
        let keep = |ago: f64| (-ago * std::f64::consts::LN_2 / Self::HALF_LIFE_S).exp();
        let scale = Self::HALF_LIFE_S / std::f64::consts::LN_2;
        (gpus * scale * (keep(to_ago_s) - keep(from_ago_s))).max(0.0)
    }

    /// Adds `gpus` held from the last call until `now_s`; `weight` reduces what was borrowed while nobody wanted it.
    pub fn hold(&mut self, now_s: f64, gpus: f64, weight: f64) {
        let passed = (now_s - self.at_s).max(0.0);
        let keep = (-passed * std::f64::consts::LN_2 / Self::HALF_LIFE_S).exp();
        // Integral of the decay over this time.
        let gained = gpus * weight * Self::HALF_LIFE_S / std::f64::consts::LN_2 * (1.0 - keep);
        self.sum = self.sum * keep + gained;
        self.at_s = self.at_s.max(now_s);
    }

    /// Adds GPU-seconds held before the last call.
    pub fn add(&mut self, gpu_seconds: f64) {
        self.sum += gpu_seconds.max(0.0);
    }

    /// Remaining GPU-seconds and the time in seconds that they refer to, for [`History::from_parts`].
    #[must_use]
    pub fn parts(&self) -> (f64, f64) {
        (self.sum, self.at_s)
    }

    /// Restores a history from [`History::parts`].
    #[must_use]
    pub fn from_parts(sum: f64, at_s: f64) -> Self {
        Self { sum, at_s }
    }

    /// Remaining GPU-seconds at the last call.
    #[must_use]
    pub fn gpu_seconds(&self) -> f64 {
        self.sum
    }
}

/// Whether all quotas fit on `gpus` equal GPUs at the same time, each as whole GPUs and one fraction. If not, the index
/// of the first quota without room.
#[must_use]
fn unpackable(gpus: usize, quotas: &[Share]) -> Option<usize> {
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

/// Why the guarantees do not fit at the same time.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Unpackable {
    /// GPUs of the machine.
    pub gpus: usize,
    /// The first entry without room.
    pub party: crate::quota::Party,
    /// Its guarantee.
    pub wanted: Share,
    /// The sum of all guarantees.
    pub sum: Share,
    /// The most that could be guaranteed to it with the others unchanged.
    pub most: Share,
}

impl std::fmt::Display for Unpackable {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let (gpus, wanted) = (many(self.gpus, "GPU"), self.wanted.short());
        let why = if self.sum.milli() as usize > self.gpus * 1000 {
            format!("all guarantees together are {} of {gpus}", self.sum.short())
        } else {
            format!(
                "their sum fits into {gpus}, but a fraction cannot be split between GPUs, and no GPU has enough room left"
            )
        };
        write!(
            f,
            "{} cannot be guaranteed {wanted} in addition to the other guarantees: {why}",
            self.party
        )
    }
}

/// Why these guarantees do not fit on `gpus` equal GPUs at the same time, if so. Whole GPUs and large fractions are
/// placed first, so that the error names the smallest change that helps.
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
    use super::*;

    #[test]
    fn entries_shrink_to_the_machine_and_the_others_divide_the_rest() {
        let parts = [Some(2.0), Some(3.0), None, None];
        assert_eq!(guarantees(8.0, &parts), [2.0, 3.0, 1.5, 1.5]);
        assert_eq!(guarantees(2.5, &parts), [1.0, 1.5, 0.0, 0.0]);
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
        // The same, one interval at a time.
        let day = History::HALF_LIFE_S;
        assert!((History::of(1.0, day + 100.0, day) - 50.0).abs() < 0.1);
        assert_eq!([599.0, 600.0, 3600.0, 14_400.0].map(level), [0, 1, 2, 3]);
    }
}
