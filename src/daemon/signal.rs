//! `gshare claim --signal`: programs that can save what they have get a signal some time before their claim ends.

use std::time::Duration;

use gshare_core::ClaimId;
use gshare_core::machine::Stage;
use gshare_core::machine::lever::Lever;
use gshare_core::units::show_duration;
use gshare_proto::{ErrorCode, SignalSpec, WireError};
use nix::sys::signal::Signal;

use super::service::Service;
use super::world::World;
use super::{convert, ending, whose};

/// Longest time before the end, as Slurm has it.
const LONGEST_S: u32 = 65_535;

/// Why a signal cannot be asked for.
pub(crate) fn check(spec: SignalSpec) -> Result<(), WireError> {
    let known = Signal::try_from(spec.number).is_ok();
    (known && (1..=LONGEST_S).contains(&spec.before_s))
        .then_some(())
        .ok_or_else(|| {
            let text = format!(
                "--signal: signal {} cannot be sent {} s before the end (1 to {LONGEST_S} s)",
                spec.number, spec.before_s
            );
            WireError::new(ErrorCode::Usage, text)
        })
}

/// In what time the claim ends, as far as that is known, and whether its command starts again afterwards.
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

impl Service {
    /// Sends the signals whose time has come.
    pub(crate) fn signal_before_ends(&mut self) {
        let asked = |(id, live): (&ClaimId, &super::live::Live)| {
            let record = &live.record;
            Some((*id, record.signal?, record.signalled)).filter(|_| live.ending.is_none())
        };
        let asked: Vec<_> = self.claims.iter().filter_map(asked).collect();
        for (id, spec, signalled) in asked {
            let before = Duration::from_secs(spec.before_s.into());
            let due = end_of(&self.world(), id).filter(|(left, _)| *left <= before);
            // An end that was put off is announced again when its time comes.
            if due.is_some() != signalled && !(due.is_some() && self.config.is_off()) {
                self.signal_one(id, spec, due);
            }
        }
    }

    fn signal_one(&mut self, id: ClaimId, spec: SignalSpec, due: Option<(Duration, bool)>) {
        let Some(live) = self.claims.get_mut(&id) else {
            return;
        };
        live.record.signalled = due.is_some();
        // A command that ends by itself now is started again, as one that is made to end is.
        live.record.requeued = due.is_some_and(|(_, again)| again);
        let command = live.record.process.map(convert::key);
        self.journal
            .keep(&live.record, "that a claim's programs got their signal");
        let (Some((left, _)), Ok(signal)) = (due, Signal::try_from(spec.number)) else {
            return;
        };
        let on_gpu = whose::holders(&self.world(), id);
        let processes = match spec.command || on_gpu.is_empty() {
            true => command.into_iter().collect(),
            false => on_gpu,
        };
        ending::signal(&self.world(), &processes, spec.number);
        let left = show_duration(Duration::from_secs(left.as_secs()));
        let text =
            format!("{id} ends in {left}: its programs got {signal} (--signal) to save their work");
        self.tell_owner(id, &text);
    }
}
