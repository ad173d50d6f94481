//! Claims and rooms, as the search sees them.

use super::Mask;

/// What a claim needs of one GPU, or what a GPU has left.
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

    /// Whether this much can be taken from `free`.
    #[must_use]
    pub const fn fits(self, free: Self) -> bool {
        self.sm <= free.sm && self.mem <= free.mem
    }

    /// What is left of `self` after `other`; never below nothing.
    #[must_use]
    pub const fn less(self, other: Self) -> Self {
        Self {
            sm: self.sm.saturating_sub(other.sm),
            mem: self.mem.saturating_sub(other.mem),
        }
    }

    /// Both together.
    #[must_use]
    pub const fn plus(self, other: Self) -> Self {
        Self {
            sm: self.sm.saturating_add(other.sm),
            mem: self.mem.saturating_add(other.mem),
        }
    }
}

/// A claim in a problem.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Item {
    /// What it needs of each of its GPUs, by kind of GPU.
    pub need: Vec<Need>,
    /// How many GPUs.
    pub parts: u32,
    /// The GPUs on which it may run.
    pub mask: Mask,
    /// Where it is; empty if it is to be placed.
    pub at: Vec<usize>,
    /// What it costs to move it to other GPUs, in bytes; `None` if it cannot be moved.
    pub move_cost: Option<u64>,
    /// What it costs to suspend it, in any unit of the caller's; `None` if it must run.
    pub drop_cost: Option<u64>,
}

impl Item {
    pub(super) fn can_leave(&self) -> bool {
        self.move_cost.is_some() || self.drop_cost.is_some()
    }
}
