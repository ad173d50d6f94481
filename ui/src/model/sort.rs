//! Orders of the claims table.

use std::cmp::Ordering;

use gshare_proto::{ClaimView, Figure};

use gshare_proto::totals::{mem_used, sm_active, time_busy};

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) enum Sort {
    /// The viewer's own, then what is worth a look, then what bursts; by id where that is equal.
    #[default]
    Need,
    Id,
    User,
    Gpu,
    Memory,
    Time,
    Sm,
}

impl Sort {
    pub(crate) fn next(self) -> Self {
        match self {
            Self::Need => Self::User,
            Self::Id => Self::Need,
            Self::User => Self::Gpu,
            Self::Gpu => Self::Memory,
            Self::Memory => Self::Time,
            Self::Time => Self::Sm,
            Self::Sm => Self::Id,
        }
    }

    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::Need => "need: yours, then those that need attention",
            Self::Id => "id",
            Self::User => "user",
            Self::Gpu => "GPU",
            Self::Memory => "memory, most first",
            Self::Time => "GPU time, most first",
            Self::Sm => "SM activity, most first",
        }
    }

    /// How two claims stand to each other; the id decides between equals.
    pub(crate) fn compare(self, a: &ClaimView, b: &ClaimView) -> Ordering {
        let bytes = |c| mem_used(c).map(|b| b as f64);
        let gpus = |c: &ClaimView| c.gpus.iter().map(|g| g.gpu).collect::<Vec<_>>();
        let percent = |f: Option<Figure>| f.map(|f| f.value);
        let order = match self {
            Self::Need | Self::Id => Ordering::Equal,
            Self::User => a.user.cmp(&b.user),
            Self::Gpu => gpus(a).cmp(&gpus(b)),
            Self::Memory => most(bytes(a), bytes(b)),
            Self::Time => most(percent(time_busy(a)), percent(time_busy(b))),
            Self::Sm => most(percent(sm_active(a)), percent(sm_active(b))),
        };
        order.then_with(|| by_id(&a.id, &b.id))
    }
}

/// Most first; what is not known last.
fn most(a: Option<f64>, b: Option<f64>) -> Ordering {
    match (a, b) {
        (Some(a), Some(b)) => b.total_cmp(&a),
        (Some(_), None) => Ordering::Less,
        (None, Some(_)) => Ordering::Greater,
        (None, None) => Ordering::Equal,
    }
}

/// `c9` before `c12`.
fn by_id(a: &str, b: &str) -> Ordering {
    a.len().cmp(&b.len()).then_with(|| a.cmp(b))
}
