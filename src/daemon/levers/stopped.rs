//! Finds jobs of Slurm whose programs are stopped, and asks slurmctld whether it has suspended them.

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use gshare_core::ClaimId;
use gshare_core::machine::lever::Failure;
use gshare_enforcer::cgroup::ClaimCgroup;
use gshare_enforcer::proc;

use super::job::procs_below;
use super::suspended::{Suspended, is_frozen, is_stopped_task, is_suspended, no_answer};
use crate::daemon::engine::{LeverState, Stopped};
use crate::daemon::journal::HoldingRecord;
use crate::daemon::live::Live;
use crate::daemon::msg::{LeverMsg, Msg};
use crate::daemon::slurm;
use crate::daemon::world::World;
use crate::plugin;

/// Time until slurmctld is asked again if it does not answer, or about a job that it has not suspended or that could not
/// be offloaded. Each pause is twice as long as the one before.
const FIRST_PAUSE: Duration = Duration::from_secs(1);
/// Longest pause. If the programs ran for the attempt, it is the shortest, so that they stand still for most of the time.
const LONGEST_PAUSE: Duration = Duration::from_secs(30);

impl Suspended {
    /// The job of a claim that is offloaded because Slurm has suspended it, or restored after Slurm has resumed it.
    pub(super) fn of(world: &World<'_>, live: &Live, is_new: bool) -> Option<Self> {
        let job = slurm::job_of(&live.record)?;
        let steps = match &live.record.holding {
            HoldingRecord::Parking { thawed, .. } => thawed.clone(),
            HoldingRecord::Unparking { .. } => steps(live, |_| true),
            _ => Vec::new(),
        };
        (!steps.is_empty()).then(|| Self {
            is_new,
            job,
            jobs: plugin::jobs(&world.host.paths),
            steps,
        })
    }
}

/// The cgroups of those `such` steps that have the job's programs on GPUs; none if one of the programs is elsewhere.
fn steps(live: &Live, such: impl Fn(&PathBuf) -> bool) -> Vec<PathBuf> {
    let dir = live.cgroup.iter().map(ClaimCgroup::dir);
    let steps = dir.filter_map(|dir| fs::read_dir(dir).ok()).flatten();
    let steps = steps.flatten().map(|step| step.path().join("user"));
    let mut running: BTreeSet<i32> = live.members.keys().map(|m| m.pid).collect();
    let has_members = |step: &PathBuf| {
        let before = running.len();
        for pid in procs_below(step) {
            running.remove(&pid);
        }
        running.len() < before
    };
    let steps: Vec<PathBuf> = steps.filter(such).filter(has_members).collect();
    if running.is_empty() {
        steps
    } else {
        Vec::new()
    }
}

fn frozen_steps(live: &Live) -> Vec<PathBuf> {
    steps(live, |step| is_frozen(step))
}

/// The cgroups to thaw so that the memory of a suspended job can be moved, or why that cannot be.
pub(super) fn to_thaw(live: &Live) -> Result<Vec<PathBuf>, String> {
    let steps = frozen_steps(live);
    if steps.is_empty() {
        return Err("Slurm has resumed the job".to_owned());
    }
    let programs = live.members.keys().filter_map(|m| proc::stat(m.pid));
    let mut stopped = programs.filter(|p| p.state == 'T' && !is_stopped_task(p));
    match stopped.next() {
        Some(program) => Err(format!("a signal has stopped process {}", program.pid)),
        None => Ok(steps),
    }
}

/// Whether all programs of a job are stopped by signals, in a cgroup that Slurm does not know.
fn is_stopped_without_cgroup(live: &Live) -> bool {
    let is_slurms = |path: &Path| path.display().to_string().contains("slurmstepd.scope/");
    let behalf = live.record.origin.behalf.as_ref();
    let is_stopped = |pid: i32| proc::stat(pid).is_some_and(|p| p.state == 'T');
    behalf.is_some_and(|b| !is_slurms(&b.cgroup))
        && !live.members.is_empty()
        && live.members.keys().all(|m| is_stopped(m.pid))
}

impl LeverState {
    /// Finds jobs whose programs are stopped, and asks slurmctld whether it has suspended them.
    pub(super) fn look_for_stopped(&mut self, world: &World<'_>) {
        for (&id, live) in world.claims.iter() {
            let Some(job) = slurm::job_of(&live.record) else {
                continue;
            };
            let lever = self.claims.entry(id).or_default();
            if live.record.holding.is_on_its_way() {
                continue;
            }
            let here = live.ending.is_none() && live.record.holding == HoldingRecord::Here;
            let stopped = || Stopped {
                again: Instant::now(),
                pause: FIRST_PAUSE,
                stays: None,
            };
            if !here || frozen_steps(live).is_empty() {
                let signalled = here && is_stopped_without_cgroup(live);
                lever.stopped = signalled.then(stopped);
                let why = "slurmd does not use cgroup v2 here";
                self.note_stays(id, Failure::Refused, why);
                continue;
            }
            let stopped = lever.stopped.get_or_insert_with(stopped);
            if Instant::now() < stopped.again {
                continue;
            }
            // Until the answer.
            stopped.again = Instant::now() + LONGEST_PAUSE;
            let (jobs, events) = (plugin::jobs(&world.host.paths), world.host.events.clone());
            let ask = move || {
                let said = is_suspended(&jobs, job);
                let is_suspended = said.unwrap_or_else(|error| {
                    no_answer(job, &error);
                    false
                });
                let _ = events.send(Msg::Lever(LeverMsg::Suspended(id, is_suspended)));
            };
            let thread = std::thread::Builder::new().name(format!("slurm-{job}"));
            if let Err(error) = thread.spawn(ask) {
                no_answer(job, &error);
            }
        }
    }

    /// Lets Slurm be asked again about a stopped job, whose programs `ran` for the last attempt or not.
    pub(crate) fn ask_again(&mut self, id: ClaimId, ran: bool) {
        let lever = self.claims.get_mut(&id);
        if let Some(stopped) = lever.and_then(|lever| lever.stopped.as_mut()) {
            let pause = match ran {
                true => stopped.pause.max(LONGEST_PAUSE),
                false => stopped.pause.min(LONGEST_PAUSE),
            };
            (stopped.again, stopped.pause) = (Instant::now() + pause, pause * 2);
        }
    }

    /// Notes why the memory of a stopped job stays on the GPU.
    pub(super) fn note_stays(&mut self, id: ClaimId, failure: Failure, why: &str) {
        let lever = self.claims.get_mut(&id);
        if let Some(stopped) = lever.and_then(|lever| lever.stopped.as_mut()) {
            stopped.stays = Some(format!(
                "its job is suspended, and its memory stays on the GPU: {why}"
            ));
        }
        // Its programs ran for the others.
        self.ask_again(id, !matches!(failure, Failure::Refused | Failure::HostRam));
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::daemon::world::scene::Scene;

    #[test]
    fn the_pauses_between_questions_grow_and_more_so_if_programs_run_for_each() {
        let id = ClaimId(1);
        let mut levers = LeverState::start(None, &Scene::of(1).host.events);
        let mut after = |failures: &[Failure]| -> Vec<u64> {
            levers.claims.entry(id).or_default().stopped = Some(Stopped {
                again: Instant::now(),
                pause: FIRST_PAUSE,
                stays: None,
            });
            let pause = |failure: &Failure| {
                levers.note_stays(id, *failure, "a reason");
                let again = levers.claims[&id].stopped.as_ref().expect("stopped").again;
                (again - Instant::now()).as_secs_f64().round() as u64
            };
            failures.iter().map(pause).collect()
        };
        assert_eq!(after(&[Failure::HostRam; 7]), [1, 2, 4, 8, 16, 30, 30]);
        assert_eq!(after(&[Failure::Busy; 4]), [30, 60, 120, 240]);
    }
}
