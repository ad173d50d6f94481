//! Named policies for playing lists.

use super::figures::Played;
use super::list::Entry;
use super::player::Setup;
use super::simple::{self, Order, Placing};

/// What makes the decisions.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Who {
    /// The live machine with these capabilities.
    Live { offload: bool, moves: bool },
    /// One of the simple players.
    Simple(Order, Placing),
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Policy {
    /// Its name in tables and on the command line.
    pub name: &'static str,
    who: Who,
}

const fn simple(name: &'static str, order: Order, placing: Placing) -> Policy {
    Policy {
        name,
        who: Who::Simple(order, placing),
    }
}

const fn live(name: &'static str, offload: bool, moves: bool) -> Policy {
    Policy {
        name,
        who: Who::Live { offload, moves },
    }
}

/// The service with everything that the machine of the list permits.
pub const GSHARE: Policy = live("gshare", true, true);
/// The service without offload: an old driver, MPS or NCCL.
pub const NO_OFFLOAD: Policy = live("gshare-no-offload", false, false);
/// The service without moves between GPUs.
pub const NO_MOVE: Policy = live("gshare-no-move", true, false);
/// EASY backfill: arrival order, but small claims may start earlier if that delays nobody. The baseline for a machine
/// without offload.
pub const EASY: Policy = simple("easy", Order::Backfill, Placing::BestFit);

pub const POLICIES: [Policy; 12] = [
    GSHARE,
    NO_MOVE,
    NO_OFFLOAD,
    EASY,
    simple("exact+quota", Order::Quota, Placing::Exact),
    simple("exact", Order::Arrival, Placing::Exact),
    simple("fgd", Order::Arrival, Placing::Fgd),
    simple("best-fit", Order::Arrival, Placing::BestFit),
    simple("first-fit", Order::Arrival, Placing::FirstFit),
    simple("static", Order::Arrival, Placing::Static),
    simple("exclusive", Order::Arrival, Placing::Exclusive),
    simple("pooled", Order::Arrival, Placing::Pooled),
];

impl Policy {
    /// The policy with this name.
    #[must_use]
    pub fn named(name: &str) -> Option<&'static Self> {
        POLICIES.iter().find(|p| p.name == name)
    }

    /// What the policy may do to running claims.
    #[must_use]
    pub const fn rights(&self) -> &'static str {
        match self.who {
            Who::Live {
                offload: true,
                moves: true,
            } => "offload, move",
            Who::Live { offload: true, .. } => "offload",
            Who::Simple(_, Placing::Exact) => "move",
            Who::Live { .. } | Who::Simple(..) => "-",
        }
    }

    /// Plays a list (in order of arrival) under the policy.
    #[must_use]
    pub fn play(&self, list: &[Entry], setup: &Setup) -> Played {
        match self.who {
            Who::Live { offload, moves } => {
                let setup = Setup {
                    offload: setup.offload && offload,
                    moves: setup.moves && moves,
                    ..setup.clone()
                };
                super::play(list, &setup)
            }
            Who::Simple(order, placing) => {
                simple::play(list, setup, order, placing, &mut |_| {}).played
            }
        }
    }
}
