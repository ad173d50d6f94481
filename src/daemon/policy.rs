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
use gshare_core::ClaimId;
use gshare_core::machine::Event;
use gshare_enforcer::proc;
use gshare_proto::{ErrorCode, WireError};

use super::command::{Command, LimitCommand};
use super::effects::Effects;
use super::outside::AutoClaim;
use super::world::World;
use super::{act, cover, gpus, mps, off, stage};

pub(crate) use refusals::{Refused, follow};

/// Carries out a command about filters and limits.
pub(crate) fn carry_out(with: &mut Effects, command: LimitCommand) -> Vec<Command> {
    match command {
        LimitCommand::Deny => {
            let wanted = deny::wanted(&with.world());
            let events = &with.host.events;
            let told = (with.policy.denial).follow(
                wanted,
                |dirs| places::watch(dirs, events.clone()),
                |refusals| follow(refusals, events.clone()),
            );
            let open = deny::no_effect(&with.world());
            let open = with.policy.denial.note(open);
            return open.into_iter().chain(told).collect();
        }
        LimitCommand::FiltersAnew => {
            let rules = gpus::all_rules(&with.world());
            with.host.fences.set_all(&with.claims, rules);
            return carry_out(with, LimitCommand::Deny);
        }
        LimitCommand::Account => {
            let (seen, changes) = auto::changes(&with.world(), with.journal.next_id());
            return (with.policy.auto).follow(&mut with.journal, seen, changes);
        }
        LimitCommand::Reconcile => {
            let counted = with.policy.over.count(&with.claims, &with.gpus);
            let untold = overuse::untold(&with.world(), &counted);
            with.policy.over.note_untold(untold);
            let looks = overuse::look_at_all(&with.world(), &counted);
            let (now, rules) = (with.core.now(), with.config.overuse_rules());
            let acts = with.policy.over.judge(now, &rules, &looks);
            return overuse::follows(&with.world(), acts);
        }
        LimitCommand::ProbeLimits => {
            let unknown = limits::unknown(&with.world());
            let ask = limits::asking(&with.observer);
            if with.policy.limits.probe(unknown, ask) {
                let all = with.claims.keys().copied();
                return all.map(limit_memory).collect();
            }
        }
        LimitCommand::LimitMemory(id) => {
            limits::weigh(&with.world(), id);
            let limits = limits::of(&with.world(), id);
            let ask = limits::asking(&with.observer);
            return with.policy.limits.set(id, limits, ask);
        }
        LimitCommand::WriteCaps(id, gpu) => overuse::write_caps_of(&with.world(), id, gpu),
        LimitCommand::WriteCap(id, slice) => act::write_cap(&with.world(), id, &slice),
        LimitCommand::Measure => {
            let measured = act::measure(&with.world());
            with.core.then(Event::Measured(measured));
        }
        LimitCommand::LimitsAnew(id) => {
            act::write_caps(&with.world(), id);
            match with.claims.get(&id) {
                Some(live) if off::is_unlimited(&with.world(), id) => {
                    limits::weigh(&with.world(), id);
                    limits::unlimit_memory(&with.world(), &with.observer, live);
                }
                _ => return carry_out(with, LimitCommand::LimitMemory(id)),
            }
        }
        LimitCommand::AllLimitsAnew => {
            let all = with.claims.keys().copied();
            let anew = |id| Command::Limits(LimitCommand::LimitsAnew(id));
            return all.map(anew).collect();
        }
        LimitCommand::Uncover(id) => return cover::uncover(with, id),
        LimitCommand::Cover(id) => return cover::undo_uncover(with, id),
        LimitCommand::Remount { id, bare, expected } => {
            if cover::remount(&with.world(), id, &bare, &expected) {
                return cover::undo_uncover(with, id);
            }
        }
    }
    Vec::new()
}

fn limit_memory(id: ClaimId) -> Command {
    Command::Limits(LimitCommand::LimitMemory(id))
}

/// What is done after each look at the driver: in this order, since who is accounted takes no part in over-use.
pub(crate) fn after_a_sample() -> Vec<Command> {
    vec![
        Command::Limits(LimitCommand::ProbeLimits),
        Command::Limits(LimitCommand::Deny),
        Command::Limits(LimitCommand::Account),
        Command::Limits(LimitCommand::Reconcile),
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
