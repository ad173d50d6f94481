//! Reminds owners of announced actions on their claims as the time approaches.

use std::collections::BTreeMap;
use std::time::Duration;

use gshare_core::ClaimId;
use gshare_core::machine::lever::Lever;
use gshare_core::machine::{Now, Stage};
use gshare_core::units::show_duration;

use super::command::Command;
use super::fact::Fact;
use super::world::World;
use crate::figures;

/// Times of the reminders before the action.
const REMINDERS: [Duration; 3] = [
    Duration::from_secs(60),
    Duration::from_secs(10),
    Duration::from_secs(3),
];
/// An announcement younger than this needs no reminder.
const HEARD: Duration = Duration::from_secs(2);

/// `moves from GPU 1 to GPU 0`, `moves from GPUs 0,1 to GPUs 2,3`.
pub(super) fn step_text(world: &World<'_>, id: ClaimId, lever: Lever, to: &[usize]) -> String {
    if lever != Lever::Move {
        return lever.verb().to_owned();
    }
    let from = world.machine.ledger().slices(id).unwrap_or_default();
    let from = figures::gpus(from.iter().map(|s| s.gpu));
    format!("moves from {from} to {}", figures::gpus(to))
}

/// Rounded up to the next second.
pub(super) fn whole(left: Duration) -> Duration {
    Duration::from_secs(left.as_millis().div_ceil(1000).try_into().unwrap_or(0))
}

/// Number of reminders for each claim's announcement.
#[derive(Debug, Default)]
pub(crate) struct Reminders(BTreeMap<ClaimId, (Now, usize)>);

impl Reminders {
    pub(crate) fn on(&mut self, world: &World<'_>, fact: &Fact, out: &mut Vec<Command>) {
        if !matches!(fact, Fact::Tick(_)) {
            return;
        }
        let announced = |id: &ClaimId| {
            let announced = world.machine.announced(*id);
            announced.filter(|(_, step)| step.stage == Stage::Announced)
        };
        self.0
            .retain(|id, _| world.claims.contains_key(id) && announced(id).is_some());
        for &id in world.claims.keys() {
            let Some((plan, step)) = announced(&id) else {
                continue;
            };
            let left = plan.due.saturating_sub(world.now.core);
            let Some(mark) = REMINDERS.iter().rposition(|mark| left <= *mark) else {
                continue;
            };
            let last = self.0.insert(id, (plan.due, mark));
            // An owner who was told within a moment of a mark needs no reminder for it.
            let long = world.config.reclaim.countdown > REMINDERS[mark] + HEARD;
            let said = last.is_some_and(|(due, m)| due == plan.due && m >= mark);
            if said || !long || left.is_zero() {
                continue;
            }
            let what = step_text(world, id, step.lever, &step.to);
            let when = show_duration(whole(left));
            let waiter = plan.waiter.map(|w| format!(" for {w}"));
            let waiter = waiter.unwrap_or_default();
            let text = format!("{id} {what} in {when}{waiter}; to postpone: gshare keep {id}");
            out.push(Command::TellOwner { id, text });
        }
    }
}
