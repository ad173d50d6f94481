//! Claims and free room, as the search represents them.

use super::Mask;

/// What a claim needs on one GPU, or what a GPU has free.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Need {
    /// Thousandths of the SMs.
    pub sm: u32,
    /// Bytes.
    pub mem: u64,
}

impl Need {
    /// More than any GPU has.
    pub const NEVER: Self = Self {
        sm: u32::MAX,
        mem: u64::MAX,
    };

    /// Whether `free` has this much.
    #[must_use]
    pub const fn fits(self, free: Self) -> bool {
        self.sm <= free.sm && self.mem <= free.mem
    }

    /// Difference, never below zero.
    #[must_use]
    pub const fn less(self, other: Self) -> Self {
        Self {
            sm: self.sm.saturating_sub(other.sm),
            mem: self.mem.saturating_sub(other.mem),
        }
    }

    /// Sum.
    #[must_use]
    pub const fn plus(self, other: Self) -> Self {
        Self {
            sm: self.sm.saturating_add(other.sm),
            mem: self.mem.saturating_add(other.mem),
        }
    }
}

/// A claim of the problem.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Item {
    /// What it needs on each of its GPUs, by kind of GPU.
    pub need: Vec<Need>,
    /// Number of GPUs.
    pub parts: u32,
    /// GPUs that it may use.
    pub mask: Mask,
    /// Its GPUs; empty if it has to be placed.
    pub at: Vec<usize>,
    /// Cost of moving it, in bytes; `None` if it cannot move.
    pub move_cost: Option<u64>,
    /// Cost of suspending it, in any unit of the caller; `None` if it must run.
    pub drop_cost: Option<u64>,
}

impl Item {
    pub(super) fn can_leave(&self) -> bool {
        self.move_cost.is_some() || self.drop_cost.is_some()
    }
}
