//! Carries out decisions of the core: the commands for each, and what callers are told.

use std::time::{Duration, Instant};

use gshare_core::machine::Action;
use gshare_core::machine::lever::Lever;
use gshare_core::units::show_duration;
use gshare_core::{ClaimId, Reason};
use gshare_proto::{ErrorCode, Queued, Reply, WireError, messages};

use super::claims;
use super::claims::Claims;
use super::command::{ClaimCommand, Command, EndCommand, LeverCommand, LimitCommand};
use super::connection::UNREAD_PLACES;
use super::effects::Effects;
use super::engine::LeverState;
use super::features::Features;
use super::reasons;
use super::world::World;
use super::{lazy, lease, reclaim, slurm};
use crate::clock::unix_ms;

/// Commands for a decision of the core.
pub(crate) fn commands(
    world: &World<'_>,
    features: &Features,
    levers: &LeverState,
    action: Action,
) -> Vec<Command> {
    match action {
        Action::Cap { id, slice } => vec![Command::Limits(LimitCommand::WriteCap(id, slice))],
        Action::Measure => vec![Command::Limits(LimitCommand::Measure)],
        Action::Grant {
            id,
            slices,
            ends,
            counted,
        } => {
            let grant = Command::Claims(ClaimCommand::Grant {
                id,
                slices,
                ends,
                counted,
            });
            vec![grant, Command::Publish]
        }
        Action::Wait {
            id,
            position,
            reason,
        } => {
            let place = Command::Claims(ClaimCommand::Place {
                id,
                position,
                reason,
            });
            vec![place, Command::Publish]
        }
        Action::Refuse {
            id,
            reason,
            for_now,
        } => {
            let error = refusal(world, features, id, &reason, for_now);
            let refuse = error.map(|error| Command::Claims(ClaimCommand::Refuse(id, error)));
            refuse.into_iter().chain([Command::Publish]).collect()
        }
        action @ (Action::Resize { .. }
        | Action::ResizeWaits { .. }
        | Action::ResizeRefused { .. }) => vec![Command::Claims(ClaimCommand::Resized(action))],
        action @ (Action::Park { .. } | Action::Unpark { .. } | Action::Move { .. }) => {
            vec![Command::Levers(LeverCommand::Pull(action))]
        }
        Action::MoveRefused { id, why } => {
            vec![Command::Levers(LeverCommand::RefuseLever(id, why))]
        }
        Action::Announce {
            id,
            lever,
            to,
            at,
            cause,
        } => {
            let what = (lever, to.as_slice());
            let mut out = vec![reclaim::announced(world, features, id, what, (at, cause))];
            // Tell a waiting claim about its plan at once.
            out.extend(cause.waiter.and_then(|id| {
                let (position, reason) = world.machine.place(id)?;
                let reason = reason.clone();
                Some(Command::Claims(ClaimCommand::Place {
                    id,
                    position,
                    reason,
                }))
            }));
            out.push(Command::Publish);
            out
        }
        Action::Retract { id, lever } => vec![reclaim::retracted(id, lever)],
        Action::Share { id, slices } => vec![Command::Claims(ClaimCommand::Share(id, slices))],
        Action::Requeue { id, cause } => reclaim::end_for(world, levers, id, Lever::Requeue, cause),
        Action::Kill { id, cause } => reclaim::end_for(world, levers, id, Lever::Kill, cause),
        // A job that finishes after its claim has ended is normal.
        Action::Late(error) => {
            tracing::info!(%error, "nothing is done");
            Vec::new()
        }
        Action::LeaseWarning { id, at } => lease::warning(world, id, at).into_iter().collect(),
        Action::LeaseMoved { id, ends } => {
            let ends_ms = world.now.unix_at(ends);
            vec![Command::Ends(EndCommand::MoveLease(id, Some(ends_ms)))]
        }
        Action::LeaseOver { id } => lease::over(world, id),
    }
}

/// The answer to the caller of a claim that does not start.
fn refusal(
    world: &World<'_>,
    features: &Features,
    id: ClaimId,
    reason: &Reason,
    for_now: bool,
) -> Option<WireError> {
    let asked = world.claims.waiting.get(&id)?;
    let mut text = reasons::waits_text(world, features, id, reason);
    let waited = unix_ms().saturating_sub(asked.since_ms) / 1000;
    if for_now && waited > 0 {
        let waited = show_duration(Duration::from_secs(waited));
        text = format!("not available within {waited}; {text}");
    }
    let code = match for_now {
        true => ErrorCode::NotAvailable,
        false => ErrorCode::Usage,
    };
    let error = WireError::new(code, text);
    Some(if *reason == Reason::Foreign {
        error.with_hint(slurm::hint(world, asked))
    } else if let Some(share) = reason.would_start() {
        error.with_hint(messages::starts_now(format_args!("-g {}", share.short())))
    } else {
        error
    })
}

/// Tells the callers of a waiting claim its place in the queue.
pub(crate) fn tell_place(
    world: &World<'_>,
    (features, levers): (&Features, &LeverState),
    (id, position): (ClaimId, usize),
    reason: &Reason,
) -> Option<Command> {
    if !world.claims.waiting.contains_key(&id) {
        levers.waits(world, features, (id, position), reason);
        return None;
    }
    Some(Command::Claims(ClaimCommand::TellStart {
        id,
        position,
        reason: reason.clone(),
        start: reclaim::start_known(world, features, id, reason),
    }))
}

/// Tells the callers of a waiting claim its place, and its start if that is known.
pub(crate) fn tell_start(
    with: &mut Effects,
    features: &Features,
    (id, position): (ClaimId, usize),
    reason: &Reason,
    start: Option<&str>,
) {
    let Some(asked) = with.claims.waiting.get_mut(&id) else {
        return;
    };
    asked.told_no_start = start.is_none().then(Instant::now);
    let out = asked.out.clone();
    let position = u32::try_from(position).unwrap_or(u32::MAX);
    if with.claims.contains_key(&id) {
        let text = reclaim::waits_and_start(&with.world(), features, id, reason, start);
        lazy::tell_wanting(&mut with.claims, id, position, text);
    } else if out.unsent() <= UNREAD_PLACES {
        let text = reasons::waits_text(&with.world(), features, id, reason);
        out.reply(&Reply::Queued(Queued {
            id: id.to_string(),
            position,
            reason: match start {
                Some(start) => format!("{text}; {start}"),
                None => text,
            },
            would_start: reason.would_start().map(|s| format!("-g {}", s.short())),
        }));
    }
}

/// Refuses a waiting claim.
pub(crate) fn refuse(claims: &mut Claims, id: ClaimId, error: WireError) {
    let Some(asked) = claims.waiting.remove(&id) else {
        return;
    };
    if claims.contains_key(&id) {
        claims::refuse_wanting(claims, id, &error);
    } else {
        asked.out.error(error);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::daemon::world::scene::Scene;

    fn done(scene: &Scene, action: Action) -> Vec<Command> {
        let levers = LeverState::start(None, &scene.host.events);
        commands(&scene.world(), &Features::default(), &levers, action)
    }

    #[test]
    fn a_time_limit_that_stood_still_moves_by_the_clock_of_the_calendar() {
        let mut scene = Scene::of(1);
        scene.now.core = Duration::from_secs(100);
        let ends = Duration::from_secs(160);
        let id = ClaimId(1);
        let moved = done(&scene, Action::LeaseMoved { id, ends });
        let at = scene.now.unix_ms + 60_000;
        assert!(
            matches!(moved[..], [Command::Ends(EndCommand::MoveLease(_, Some(ms)))] if ms == at),
            "{moved:?}"
        );
    }

    #[test]
    fn a_claim_on_behalf_that_cannot_make_room_is_not_ended_for_others() {
        use gshare_core::machine::lever::Cause;

        let mut scene = Scene::of(1);
        scene.claim(1, 0);
        let kill = |id: u64| Action::Kill {
            id: ClaimId(id),
            cause: Cause {
                waiter: None,
                entitled: false,
            },
        };
        let ends = done(&scene, kill(1));
        assert!(
            matches!(&ends[..], [Command::TellOwner { text, .. }, .., Command::Ends(EndCommand::KeepGpu(_))]
                if text.contains("others came first")),
            "{ends:?}"
        );
        scene.claim(2, 0).record.origin.behalf = Some(crate::daemon::journal::BehalfRecord {
            cgroup: "/slurm/job_1".into(),
            seen: true,
            ..crate::daemon::journal::BehalfRecord::default()
        });
        let stays = done(&scene, kill(2));
        assert!(
            matches!(
                stays[..],
                [Command::Levers(LeverCommand::LeverFailed { .. })]
            ),
            "{stays:?}"
        );
    }

    #[test]
    fn a_claim_that_nobody_asked_for_is_not_refused() {
        let scene = Scene::of(1);
        let refuse = Action::Refuse {
            id: ClaimId(7),
            reason: Reason::Planned,
            for_now: false,
        };
        let done = done(&scene, refuse);
        assert!(matches!(done[..], [Command::Publish]), "{done:?}");
    }
}
