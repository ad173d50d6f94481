//! Jobs that Slurm has suspended: it stops their tasks by SIGTSTP, then freezes the cgroup of each step.
//!
//! The driver's own thread in a program moves the program's memory, so the steps are thawed meanwhile. gshare freezes and
//! thaws no other cgroup that is not its own. slurmctld notes a change before it sends the change to the node, so a
//! state that is set before slurmctld confirms it can only be followed by Slurm's own change.

use std::fs;
use std::io::{self, ErrorKind};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{self, RecvTimeoutError};
use std::time::Duration;

use gshare_enforcer::proc::{self, PidFd, Stat};
use nix::sys::signal::Signal;

use super::job::procs_below;
use crate::plugin::program;

/// Time until slurmctld is asked again that did not answer, and between thaws.
const AGAIN: Duration = Duration::from_secs(1);

/// A suspended job.
#[derive(Clone, Debug)]
pub(super) struct Suspended {
    /// No earlier service has begun to move its memory.
    pub(super) is_new: bool,
    pub(super) job: u32,
    /// Directory of the plugin's files.
    pub(super) jobs: PathBuf,
    /// Cgroups of its steps.
    pub(super) steps: Vec<PathBuf>,
}

impl Suspended {
    /// Does something while its programs run, also if Slurm suspends the job meanwhile. If they were frozen, they are
    /// in the end what Slurm wants.
    pub(super) fn while_running<T>(&self, work: impl FnOnce() -> T) -> T {
        // An earlier service may have thawed them.
        let thawed = AtomicBool::new(!self.is_new);
        let thaw = || thawed.fetch_or(self.thaw(), Ordering::Relaxed);
        let done = std::thread::scope(|scope| {
            let (working, end) = mpsc::channel::<()>();
            thaw();
            let again = move || {
                while end.recv_timeout(AGAIN) == Err(RecvTimeoutError::Timeout) {
                    thaw();
                }
            };
            let thread = std::thread::Builder::new().name("thaw".to_owned());
            if let Err(error) = thread.spawn_scoped(scope, again) {
                tracing::warn!(job = self.job, %error, "a step that Slurm freezes again stays frozen");
            }
            let done = work();
            drop(working);
            done
        });
        if thawed.into_inner() {
            self.settle();
        }
        done
    }

    /// Lets its programs run; whether they were frozen.
    fn thaw(&self) -> bool {
        if !self.steps.iter().any(|step| is_frozen(step)) {
            return false;
        }
        self.set(false);
        let all = self.steps.iter().flat_map(|step| procs_below(step));
        for task in all.filter_map(proc::stat).filter(is_stopped_task) {
            if let Ok(Some(task)) = PidFd::open(task.pid) {
                // It may have ended.
                let _ = task.signal(Signal::SIGCONT as i32);
            }
        }
        true
    }

    /// Freezes its programs again, unless Slurm has resumed them.
    fn settle(&self) {
        for frozen in [true, false].into_iter().cycle() {
            self.set(frozen);
            if self.is_suspended() == frozen {
                return;
            }
        }
    }

    fn set(&self, frozen: bool) {
        for step in &self.steps {
            let set = fs::write(step.join("cgroup.freeze"), if frozen { "1" } else { "0" });
            if let Err(error) = set
                && error.kind() != ErrorKind::NotFound
            {
                let step = step.display();
                tracing::warn!(%step, %error, frozen, "cannot freeze or thaw a step of Slurm");
            }
        }
    }

    /// Waits for slurmctld. A job without steps is over.
    fn is_suspended(&self) -> bool {
        let mut told = false;
        loop {
            match is_suspended(&self.jobs, self.job) {
                Ok(is_suspended) => return is_suspended,
                Err(_) if !self.steps.iter().any(|step| step.exists()) => return false,
                Err(error) if !told => no_answer(self.job, &error),
                Err(_) => {}
            }
            told = true;
            std::thread::sleep(AGAIN);
        }
    }
}

pub(super) fn no_answer(job: u32, error: &io::Error) {
    tracing::warn!(job, %error, "cannot ask Slurm whether it has suspended a job");
}

/// Whether Slurm has suspended a job, by slurmctld.
pub(super) fn is_suspended(jobs: &Path, job: u32) -> io::Result<bool> {
    // `gshare slurm task` has noted the path of slurm.conf.
    let noted = fs::read_to_string(jobs.join(job.to_string())).unwrap_or_default();
    let conf = noted.lines().find_map(|line| line.strip_prefix("conf "));
    let mut scontrol = Command::new(program(jobs, "scontrol"));
    scontrol.args(["show", "job", "--oneliner", &job.to_string()]);
    scontrol.envs(conf.map(|conf| ("SLURM_CONF", conf)));
    let output = scontrol.output()?;
    match output.status.success() {
        true => Ok(says_suspended(
            job,
            &String::from_utf8_lossy(&output.stdout),
        )),
        false => Err(io::Error::other(
            String::from_utf8_lossy(&output.stderr).trim().to_owned(),
        )),
    }
}

/// The number of an array is also that of one of its jobs: scontrol then shows all of them.
fn says_suspended(job: u32, shown: &str) -> bool {
    let own = format!("JobId={job} ");
    let line = shown.lines().find(|line| line.starts_with(&own));
    line.is_some_and(|line| line.contains(" JobState=SUSPENDED "))
}

/// Whether a cgroup is frozen, or about to be.
pub(super) fn is_frozen(step: &Path) -> bool {
    let freeze = fs::read_to_string(step.join("cgroup.freeze"));
    freeze.is_ok_and(|text| text.trim() == "1")
}

/// Slurm signals only the children of slurmstepd, and continues them when it resumes the job.
pub(super) fn is_stopped_task(process: &Stat) -> bool {
    let parent = || proc::stat(process.ppid);
    process.state == 'T' && parent().is_some_and(|p| p.comm == "slurmstepd")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_state_of_a_job_is_that_of_its_own_line() {
        let array = "JobId=7 ArrayJobId=7 JobState=RUNNING Reason=None\n\
                     JobId=8 ArrayJobId=7 JobState=SUSPENDED Reason=None\n";
        assert!(!says_suspended(7, array) && says_suspended(8, array));
        assert!(!says_suspended(9, array) && !says_suspended(7, ""));
    }
}
