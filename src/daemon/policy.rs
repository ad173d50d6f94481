//! Measures against use without a claim and above claims: `[policy]` in the service.

pub(crate) mod adopt;
pub(crate) mod auto;
pub(crate) mod deny;
pub(crate) mod doctor;
pub(crate) mod limits;
pub(crate) mod overuse;
pub(crate) mod places;
mod refusals;
pub(crate) mod takes;

use gshare_core::ClaimId;
use gshare_core::machine::Event;

use super::command::{Command, LimitCommand};
use super::effects::Effects;
use super::outside::AutoClaim;
use super::{cover, gpus, off};

pub(crate) use refusals::{follow, told};

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
        LimitCommand::WriteCap(id, slice) => overuse::write_cap(&with.world(), id, &slice),
        LimitCommand::Measure => {
            let measured = with.world().charges();
            with.core.then(Event::Measured(measured));
        }
        LimitCommand::LimitsAnew(id) => {
            overuse::write_caps(&with.world(), id);
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

/// Commands after each look at the driver, in this order: accounted programs take no part in over-use.
pub(crate) fn after_a_sample() -> Vec<Command> {
    vec![
        Command::Limits(LimitCommand::ProbeLimits),
        Command::Limits(LimitCommand::Deny),
        Command::Limits(LimitCommand::Account),
        Command::Limits(LimitCommand::Reconcile),
    ]
}
