//! Rules of classes for the core, and the local time on which some of them depend.

use chrono::Timelike;
use gshare_core::machine::Event;
use gshare_core::{Machine, Reason};
use gshare_proto::{ErrorCode, WireError};

use super::admin::quota;
use super::claims::Claims;
use super::command::{Command, RuleCommand};
use super::effects::Effects;
use super::engine::LeverState;
use super::features::Features;
use super::peer::Peer;
use super::world::{World, world_of};
use super::{off, reclaim, stage};
use crate::clock::unix_ms;

/// Maximum number of claims that one user may hold and wait for: each costs descriptors and time in every decision.
const CLAIMS_PER_USER: usize = 512;

/// Local time in minutes from midnight.
fn minute_now() -> u16 {
    let now = chrono::Local::now();
    u16::try_from(now.hour() * 60 + now.minute()).unwrap_or(0)
}

/// Next time that the local clock shows this minute of the day, Unix milliseconds; `None` if the claim does not wait
/// for the hours of its class.
pub(crate) fn hours_start(reason: &Reason) -> Option<u64> {
    let Reason::Hours { from, .. } = reason else {
        return None;
    };
    let seconds = chrono::Local::now().num_seconds_from_midnight();
    Some(unix_ms() + u64::from(until((*from)?, seconds)) * 1000)
}

/// Seconds to a minute of the day from a second of it.
fn until(minute: u16, second: u32) -> u32 {
    const DAY: u32 = 24 * 3600;
    (u32::from(minute) * 60 + DAY - second % DAY) % DAY
}

/// Carries out a command about rules.
pub(crate) fn carry_out(
    with: &mut Effects,
    features: &Features,
    command: RuleCommand,
) -> Vec<Command> {
    let events = match command {
        RuleCommand::SetQuota(party, set) => {
            with.config.set_quota(party, set);
            quota::anew(&with.world())
        }
        RuleCommand::Quotas => quota::anew(&with.world()),
        RuleCommand::SetConformance(found) => {
            with.config.conformance = Some(found);
            return Vec::new();
        }
        RuleCommand::FollowOff => {
            let line = off::line_now(&with.world());
            return with.config.follow_off(line, &with.claims);
        }
        RuleCommand::ReadStages => {
            let stages = Box::new(stage::read_stages(&with.world()));
            return vec![Command::Rules(RuleCommand::FollowStages(stages))];
        }
        RuleCommand::FollowStages(stages) => {
            with.config.stages = *stages;
            return stage::follow(with);
        }
        RuleCommand::Admission => stage::admission(&with.world()),
        RuleCommand::Rules => all(&with.world(), &with.levers),
        RuleCommand::ReclaimRules => reclaim::rules(&with.world(), &with.levers).into(),
        RuleCommand::LookAtLevers => with.levers.look(&world_of!(with), features),
        RuleCommand::CallBack(which) => with.config.call_back(&with.claims, which),
    };
    vec![Command::Events(events)]
}

/// The rules of the configuration, for the core.
pub(crate) fn all(world: &World<'_>, levers: &LeverState) -> Vec<Event> {
    let mut all = vec![
        Event::Classes(world.config.classes.clone()),
        Event::LeaseWarning(world.config.claims.lease_warning),
    ];
    all.extend(minute(world.machine));
    all.extend(reclaim::rules(world, levers));
    all
}

/// The time of day for the core, when it has changed.
pub(crate) fn minute(core: &Machine) -> Option<Event> {
    let minute = minute_now();
    (core.minute() != minute).then_some(Event::Minute(minute))
}

impl Claims {
    /// Whether a user may have one more claim.
    pub(crate) fn room_for(&self, peer: &Peer) -> Result<(), WireError> {
        let held = self.values().map(|l| l.record.uid);
        let waiting = self.waiting.values().map(|a| a.record.uid);
        let own = held.chain(waiting).filter(|uid| *uid == peer.uid).count();
        if own < CLAIMS_PER_USER {
            return Ok(());
        }
        Err(WireError::new(
            ErrorCode::NotAvailable,
            format!("you have {own} running and waiting claims, the maximum for one user"),
        )
        .with_hint("to list waiting claims: gshare queue; to end claims: gshare release"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_hour_that_has_passed_today_comes_tomorrow() {
        assert_eq!(until(14 * 60, 13 * 3600 + 1800), 1800);
        assert_eq!(until(6 * 60, 22 * 3600), 8 * 3600);
        assert_eq!(until(0, 23 * 3600 + 3599), 1);
        assert_eq!(until(60, 3600), 0, "it is that moment");
    }
}
