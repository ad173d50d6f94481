//! Orders of the claims table.

use std::cmp::Ordering;

use gshare_proto::{ClaimView, Figure};

use gshare_proto::totals::{mem_used, sm_active, time_busy};

use super::around;

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) enum Sort {
    /// The viewer's own, then warnings, then bursting claims; equal ones by id.
    #[default]
    Need,
    User,
    Gpu,
    Memory,
    Time,
    Sm,
    Id,
}

impl Sort {
    /// All orders in the sequence of `s`, with their names.
    const ALL: [(Self, &'static str); 7] = [
        (
            Self::Need,
            "need: your claims first, then those that need attention",
        ),
        (Self::User, "user"),
        (Self::Gpu, "GPU"),
        (Self::Memory, "memory, most first"),
        (Self::Time, "GPU time, most first"),
        (Self::Sm, "SM activity, most first"),
        (Self::Id, "id"),
    ];

    pub(crate) fn next(self) -> Self {
        around(&Self::ALL.map(|sort| sort.0), self, 1)
    }

    pub(crate) fn name(self) -> &'static str {
        Self::ALL[self as usize].1
    }

    /// Compares two claims in this order or reversed: equal ones by id, unknown values last in both.
    pub(crate) fn compare(self, reversed: bool, a: &ClaimView, b: &ClaimView) -> Ordering {
        let gpus = |c: &ClaimView| c.gpus.iter().map(|g| g.gpu).collect::<Vec<_>>();
        let value = |f: Option<Figure>| f.map(|f| f.value);
        let figure = |c: &ClaimView| match self {
            Self::Memory => mem_used(c).map(|bytes| bytes as f64),
            Self::Time => value(time_busy(c)),
            Self::Sm => value(sm_active(c)),
            Self::Need | Self::Id | Self::User | Self::Gpu => Some(0.0),
        };
        let order = match (self, figure(a), figure(b)) {
            (Self::User, ..) => a.user.cmp(&b.user),
            (Self::Gpu, ..) => gpus(a).cmp(&gpus(b)),
            (_, Some(a), Some(b)) => b.total_cmp(&a),
            (_, None, None) => Ordering::Equal,
            (_, a, b) => return a.is_none().cmp(&b.is_none()),
        };
        // `c9` before `c12`.
        let order = order.then_with(|| (a.id.len(), &a.id).cmp(&(b.id.len(), &b.id)));
        if reversed { order.reverse() } else { order }
    }
}
