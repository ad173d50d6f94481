//! What is done about use outside claims and about use beyond them: the service's side of `[policy]`.

pub(crate) mod adopt;
pub(crate) mod auto;
pub(crate) mod deny;
pub(crate) mod doctor;
pub(crate) mod limits;
pub(crate) mod overuse;
pub(crate) mod places;
mod refusals;
pub(crate) mod takes;

use gshare_config::{Mode, Unclaimed};
use gshare_enforcer::proc;
use gshare_proto::{ErrorCode, WireError};

use super::command::Command;
use super::outside::AutoClaim;
use super::world::World;
use super::{mps, stage};

pub(crate) use refusals::{Refused, follow};

/// What is done after each look at the driver: in this order, since who is accounted takes no part in over-use.
pub(crate) fn after_a_sample() -> Vec<Command> {
    vec![
        Command::ProbeLimits,
        Command::Deny,
        Command::Account,
        Command::Reconcile,
    ]
}

/// The refusal of what cannot be done with an auto-claim.
pub(crate) fn is_auto(world: &World<'_>, word: &str, auto: &AutoClaim) -> WireError {
    let (pid, user) = (auto.pid(), world.host.names.user(auto.uid()));
    WireError::new(
        ErrorCode::NotAvailable,
        format!("{word} stands for process {pid} of {user}, which has no claim and no limit; {word} disappears when \
                 the process exits"),
    )
    .with_hint(format!("to give the process a claim: gshare adopt {pid}; to end the process: kill {pid}"))
}

/// A process that gshare itself runs: a probe, a server of its own.
pub(crate) fn is_own_process(world: &World<'_>, pid: i32) -> bool {
    let service = std::process::id().cast_signed();
    let own = |pid: i32| pid == service || world.policy.own.contains(&pid);
    mps::is_mps_server(world, pid) || proc::ancestors(pid).iter().any(|a| own(a.pid))
}

/// What is done about processes outside claims. A user's own service is nobody's accountant: others'
/// claims look like use outside claims to it.
pub(crate) fn unclaimed_policy(world: &World<'_>) -> Unclaimed {
    match world.host.mode {
        Mode::System => {
            let set = world.config.policy.unclaimed;
            set.unwrap_or_else(|| stage::unclaimed_by_stage(world))
        }
        Mode::User => Unclaimed::Observe,
    }
}
