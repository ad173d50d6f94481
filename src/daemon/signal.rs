//! `gshare claim --signal`: programs that can save their state get a signal some time before their claim ends.

use std::time::Duration;

use gshare_core::ClaimId;
use gshare_core::machine::Stage;
use gshare_core::machine::lever::Lever;
use gshare_core::units::show_duration;
use gshare_proto::SignalSpec;
use nix::sys::signal::Signal;

use super::command::{Command, EndCommand};
use super::journal::ClaimRecord;
use super::live::Live;
use super::whose;
use super::world::World;

/// Time until the claim ends, as far as known, and whether its command starts again afterwards.
fn end_of(world: &World<'_>, id: ClaimId) -> Option<(Duration, bool)> {
    let now = world.now.core;
    let lease = world
        .machine
        .lease_end(id)
        .map(|at| (at.saturating_sub(now), false));
    let announced = world.machine.announced(id).and_then(|(plan, step)| {
        let ends =
            matches!(step.lever, Lever::Requeue | Lever::Kill) && step.stage == Stage::Announced;
        ends.then(|| (plan.due.saturating_sub(now), step.lever == Lever::Requeue))
    });
    lease.into_iter().chain(announced).min()
}

/// Signals whose time has come.
pub(crate) fn due(world: &World<'_>) -> Vec<Command> {
    let mut out = Vec::new();
    for (&id, live) in world.claims.iter() {
        let record = &live.record;
        let Some(spec) = record.terms.signal.filter(|_| live.ending.is_none()) else {
            continue;
        };
        let before = Duration::from_secs(spec.before_s.into());
        let due = end_of(world, id).filter(|(left, _)| *left <= before);
        // A postponed end is announced again when its time comes.
        if due.is_some() != record.end.signalled && !(due.is_some() && world.config.is_off()) {
            out.push(Command::Ends(EndCommand::Signalled {
                id,
                due: due.is_some(),
                again: due.is_some_and(|(_, again)| again),
            }));
            out.extend(
                due.into_iter()
                    .flat_map(|(left, _)| send(world, live, spec, left)),
            );
        }
    }
    out
}

fn send(world: &World<'_>, live: &Live, spec: SignalSpec, left: Duration) -> Vec<Command> {
    let id = ClaimId(live.record.id);
    let Ok(signal) = Signal::try_from(spec.number) else {
        return Vec::new();
    };
    let on_gpu = whose::holders(world, id);
    let command = live.record.process;
    let processes = match spec.command || on_gpu.is_empty() {
        true => command.into_iter().collect(),
        false => on_gpu,
    };
    let left = show_duration(Duration::from_secs(left.as_secs()));
    let text =
        format!("{id} ends in {left}: its programs got {signal} (--signal) to save their work");
    vec![
        Command::Ends(EndCommand::Signal(processes, spec.number)),
        Command::TellOwner { id, text },
    ]
}

/// Records that the programs of a claim got their signal, or that the end was postponed. If the command then ends by
/// itself it is started `again`, as after a forced end.
pub(super) fn signalled(record: &mut ClaimRecord, due: bool, again: bool) {
    (record.end.signalled, record.end.requeued) = (due, again);
}

#[cfg(test)]
mod tests {
    use gshare_core::machine::Event;

    use super::*;
    use crate::daemon::world::scene::Scene;

    #[test]
    fn a_signal_is_sent_once_before_the_time_limit_and_again_when_that_was_put_off() {
        let mut scene = Scene::of(1);
        let minutes = |n: u64| Duration::from_secs(60 * n);
        let id = ClaimId(1);
        scene.grant_half(Some(minutes(10)));
        scene.claim(1, 0).record.terms.signal = Some(SignalSpec {
            number: libc::SIGUSR1,
            before_s: 120,
            command: false,
        });
        let looks = |scene: &mut Scene, at: Duration| {
            scene.now.core = at;
            let commands = due(&scene.world());
            for command in &commands {
                if let Command::Ends(EndCommand::Signalled { id, due, again }) = command {
                    signalled(&mut scene.claim(id.0, 0).record, *due, *again);
                }
            }
            let sent = |c: &Command| matches!(c, Command::Ends(EndCommand::Signal(_, signal)) if *signal == libc::SIGUSR1);
            commands.iter().any(sent)
        };
        assert!(!looks(&mut scene, minutes(7)));
        assert!(looks(&mut scene, minutes(8)) && !looks(&mut scene, minutes(9)));
        let put_off = Event::Lease {
            id,
            ends: Some(minutes(20)),
        };
        scene.machine.step(scene.now.core, put_off);
        assert!(!looks(&mut scene, minutes(9)), "it has time again");
        assert!(looks(&mut scene, minutes(18)));
        scene.claim(1, 0).record.end.signalled = false;
        let line = Some(crate::off::line("root".to_owned(), None));
        scene.config.follow_off(line, &scene.claims);
        assert!(
            !looks(&mut scene, minutes(19)),
            "while gshare is off nothing ends"
        );
    }
}
