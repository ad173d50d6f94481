//! One lever on one claim, in a thread: in the end all its processes run, or all have their memory in the host, never
//! a mix. The driver says how far each process is, so a job can be continued wherever an earlier one, or the service
//! itself, has ended.

use std::cell::RefCell;
use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant};

use gshare_abi::host::GateWatch;
use gshare_core::machine::lever::Failure;
use gshare_core::{Bytes, ClaimId};
use gshare_enforcer::checkpoint::{CheckpointError, Engine, ProcessState, Step};
use gshare_enforcer::proc::PidFd;

use super::suspended::Suspended;
use crate::daemon::die;
use crate::daemon::msg::{Outcome, Unable};

/// Timeout of the driver's lock: by then no call of the claim is in the driver, only work on the GPU.
const LOCK_MS: u32 = 3_000;
/// Longest wait for the state of a process.
const ASK: Duration = Duration::from_secs(5);
/// Time between two attempts to undo a step.
const AGAIN: Duration = Duration::from_millis(200);
/// Time between two looks at the marks.
const LOOK: Duration = Duration::from_millis(1);
/// How long the kernel may take to end a process that is killed in the middle of a step.
const ENDING: Duration = Duration::from_millis(500);
/// Bytes that must stay free in a claim's own cgroup, for what its programs do while they run for the transfer.
const OWN_RESERVE: u64 = 64 << 20;
/// Slowest expected transfer rate, in bytes per second.
const SLOWEST: u64 = 500_000_000;
/// Processes that appear while others are being locked are locked too, for this many rounds.
const ROUNDS: u32 = 5;

/// From GPU to GPU, by UUID.
pub(crate) type Pairs = Vec<(String, String)>;

/// Maps of GPUs to try in turn: the driver wants every GPU that a process sees, and which those are depends on how it
/// was started.
#[derive(Clone, Debug, Default)]
pub(crate) struct Maps(pub(super) Vec<Pairs>);

#[derive(Clone, Debug)]
pub(crate) enum Kind {
    /// Offload to host memory.
    Park,
    /// Restore; without maps, to the same GPUs.
    Unpark(Option<Maps>),
    /// Move to other GPUs, with the maps back in case that fails.
    Move {
        there: Maps,
        back: Maps,
        /// Processes that the driver already lists on the new GPUs.
        arrived: BTreeSet<i32>,
    },
}

/// A job for the checkpoint engine.
#[derive(Debug)]
pub(crate) struct Prepared {
    pub(crate) id: ClaimId,
    /// It continues what the previous service began.
    pub(super) again: bool,
    pub(super) kind: Kind,
}

/// Where the processes of the claim are found.
#[derive(Clone, Debug)]
pub(super) enum Members {
    Cgroup(PathBuf),
    Known(Vec<i32>),
}

/// Time limits of the job.
#[derive(Clone, Copy, Debug)]
pub(super) struct Patience {
    /// For calls in the driver to return.
    pub(super) drain: Duration,
    /// For one step of the driver, in addition to the transfer of memory.
    pub(super) step: Duration,
    /// Host memory that must stay free, in bytes.
    pub(super) host_reserve: u64,
}

/// Looks at the marks that must find a thread in the driver before it counts as caught: it may be leaving.
const CAUGHT_LOOKS: u32 = 5;

/// Reports that something does not succeed and is retried.
pub(super) struct Tell(pub(super) Box<dyn Fn(String) + Send>);

impl std::fmt::Debug for Tell {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Tell")
    }
}

#[derive(Debug)]
pub(super) struct Job {
    pub(super) kind: Kind,
    pub(super) engine: Arc<Engine>,
    pub(super) members: Members,
    /// The marks of the claim's threads, with the slots of its processes.
    pub(super) marks: Option<(GateWatch, Vec<(usize, u32)>)>,
    /// Bytes of the claim.
    pub(super) bytes: u64,
    pub(super) patience: Patience,
    /// Slurm has suspended it, or resumed it since.
    pub(super) suspended: Option<Suspended>,
    pub(super) tell: Tell,
    /// Processes that the driver has lost, or does not answer for.
    pub(super) unable: RefCell<BTreeMap<i32, Unable>>,
    /// Processes for which a step was given up without an answer.
    pub(super) unsure: RefCell<BTreeSet<i32>>,
}

type Fail = (Failure, String);
type Done<T = ()> = Result<T, Fail>;
/// Why a step failed, and whether the driver rejected its arguments.
struct Fault(Fail, bool);

pub(super) fn procs_below(dir: &Path) -> Vec<i32> {
    let text = std::fs::read_to_string(dir.join("cgroup.procs")).unwrap_or_default();
    let mut pids: Vec<i32> = text.lines().filter_map(|l| l.parse().ok()).collect();
    for entry in std::fs::read_dir(dir).into_iter().flatten().flatten() {
        if entry.file_type().is_ok_and(|t| t.is_dir()) {
            pids.extend(procs_below(&entry.path()));
        }
    }
    pids
}

/// Free host memory, in bytes, by the kernel.
fn free_memory() -> u64 {
    let info = std::fs::read_to_string("/proc/meminfo").unwrap_or_default();
    let line = info.lines().find_map(|l| l.strip_prefix("MemAvailable:"));
    let kib = line.and_then(|l| l.split_whitespace().next()?.parse::<u64>().ok());
    kib.map_or(u64::MAX, |kib| kib << 10)
}

/// Bytes left by the limits of a cgroup and of its ancestors. Pages of files give way.
fn room_below(dir: &Path) -> u64 {
    let left = |dir: &Path| {
        let number = |name: &str| -> Option<u64> {
            let text = std::fs::read_to_string(dir.join(name)).ok()?;
            text.trim().parse().ok()
        };
        let (most, used) = (number("memory.max")?, number("memory.current")?);
        let stat = std::fs::read_to_string(dir.join("memory.stat")).unwrap_or_default();
        let files = stat.lines().filter_map(|line| {
            let (name, bytes) = line.split_once(' ')?;
            matches!(name, "active_file" | "inactive_file").then(|| bytes.parse::<u64>().ok())?
        });
        let used = used.saturating_sub(files.sum());
        Some(most.saturating_sub(used))
    };
    dir.ancestors().filter_map(left).min().unwrap_or(u64::MAX)
}

/// Whether these bytes fit into the free memory of the host, and of the claim's cgroup.
fn fits((host, own): (u64, u64), bytes: u64, reserve: u64) -> Done {
    let rooms = [
        ("its cgroup", own, OWN_RESERVE),
        ("the host", host, reserve),
    ];
    let short = |(_, room, reserve): &(&str, u64, u64)| bytes.saturating_add(*reserve) > *room;
    let Some((whose, room, reserve)) = rooms.into_iter().find(short) else {
        return Ok(());
    };
    let why = format!(
        "{whose} has {} free; the claim needs {}, and {} must stay free",
        Bytes(room),
        Bytes(bytes),
        Bytes(reserve)
    );
    Err((Failure::HostRam, why))
}

fn is_gone(pid: i32) -> bool {
    gshare_enforcer::proc::stat(pid).is_none_or(|s| matches!(s.state, 'Z' | 'X'))
}

/// Whether a process is gone, or about to be: the driver may report its death before the kernel has ended it.
fn ends(pid: i32) -> bool {
    match PidFd::open(pid) {
        Ok(Some(process)) => process.ends(Instant::now() + ENDING),
        _ => is_gone(pid),
    }
}

fn fail_of(error: &CheckpointError) -> Fail {
    if let (true, Some(pid)) = (error.is_not_ready(), error.pid()) {
        let seconds = LOCK_MS / 1000;
        let why = format!("work of process {pid} on the GPU did not end within {seconds} s");
        return (Failure::Busy, why);
    }
    let failure = if error.is_out_of_memory() {
        Failure::Busy
    } else if error.is_unanswered() {
        Failure::TimedOut
    } else {
        Failure::Refused
    };
    (failure, error.to_string())
}

/// The crash point after a step.
fn step_of_death(step: &Step) -> Option<&'static str> {
    match step {
        Step::State => None,
        Step::Lock { .. } => Some("lever-locked"),
        Step::Checkpoint => Some("lever-out"),
        Step::Restore { .. } => Some("lever-back"),
        Step::Unlock => Some("lever-unlocked"),
    }
}

impl Job {
    /// Runs the job. It may take long; the rest of the service does not wait for it.
    pub(super) fn run(&self) -> (Outcome, BTreeMap<i32, Unable>) {
        let result = match &self.kind {
            Kind::Park => match &self.suspended {
                Some(job) => self.out_of_suspended(job),
                None => self.out_or_stay(),
            },
            Kind::Unpark(maps) => match &self.suspended {
                Some(job) => job.while_running(|| self.come_back(maps.as_ref())),
                None => self.come_back(maps.as_ref()),
            },
            Kind::Move {
                there,
                back,
                arrived,
            } => match self.out(arrived) {
                Ok(()) => match self.restore_all(Some(there)) {
                    Ok(()) => {
                        self.undo(Some(there));
                        Ok(())
                    }
                    Err(fail) => {
                        self.park_again();
                        self.undo(Some(back));
                        Err(fail)
                    }
                },
                Err(fail) => {
                    self.undo(Some(back));
                    Err(fail)
                }
            },
        };
        let outcome = match result {
            Ok(()) => Outcome::Done,
            Err((failure, why)) => Outcome::Failed(failure, why),
        };
        (outcome, self.unable.take())
    }

    /// Notes that the driver has lost a process.
    fn lost(&self, pid: i32, during: Option<&'static str>) -> Fail {
        let mut unable = self.unable.borrow_mut();
        if !matches!(unable.get(&pid), Some(Unable::Lost(_))) {
            unable.insert(pid, Unable::Lost(during));
        }
        let why = format!("the driver has lost process {pid} in the middle of a checkpoint");
        (Failure::Refused, why)
    }

    fn pids(&self) -> Vec<i32> {
        match &self.members {
            Members::Cgroup(dir) => procs_below(dir),
            Members::Known(pids) => pids.clone(),
        }
    }

    /// States of the processes that use CUDA.
    fn states(&self) -> Done<BTreeMap<i32, ProcessState>> {
        let mut states = BTreeMap::new();
        for pid in self.pids() {
            if let Some(state) = self.state_of(pid)? {
                states.insert(pid, state);
            }
        }
        Ok(states)
    }

    /// State of a process; none if it does not use CUDA, or has ended.
    fn state_of(&self, pid: i32) -> Done<Option<ProcessState>> {
        match self.rested(pid) {
            Ok(Some(ProcessState::Busy)) => {
                let why =
                    format!("process {pid} is in the middle of a checkpoint that does not end");
                Err((Failure::TimedOut, why))
            }
            Err(_) if is_gone(pid) => Ok(None),
            state => state.map_err(|error| fail_of(&error)),
        }
    }

    /// State of a process once no step is under way: a step that an earlier service or engine began completes without
    /// it.
    fn rested(&self, pid: i32) -> Result<Option<ProcessState>, CheckpointError> {
        let until = Instant::now() + self.moving();
        loop {
            let state = self.engine.state(pid, ASK)?;
            if state != Some(ProcessState::Busy) || Instant::now() >= until {
                return Ok(state);
            }
            std::thread::sleep(LOOK);
        }
    }

    fn in_state(&self, wanted: ProcessState) -> Done<Vec<i32>> {
        let states = self.states()?;
        let found = states.iter().filter(|(_, s)| **s == wanted);
        Ok(found.map(|(pid, _)| *pid).collect())
    }

    /// Time limit for a step that moves all memory of the claim.
    fn moving(&self) -> Duration {
        self.patience.step + Duration::from_secs(self.bytes / SLOWEST)
    }

    /// Executes one step. A process that has ended meanwhile is skipped, and so is one that the driver loses on the
    /// way back. An engine that died has not undone its step.
    fn step(&self, pid: i32, step: &Step, reaches: ProcessState) -> Done {
        let done = self.try_step(pid, step, reaches);
        if let (Ok(()), Some(point)) = (&done, step_of_death(step)) {
            die::at(point);
        }
        done.map_err(|fault| fault.0)
    }

    fn try_step(&self, pid: i32, step: &Step, reaches: ProcessState) -> Result<(), Fault> {
        let patience = match step {
            Step::Checkpoint | Step::Restore { .. } => self.moving(),
            _ => self.patience.step + Duration::from_millis(u64::from(LOCK_MS)),
        };
        let mut tries = 0;
        loop {
            let Err(error) = self.engine.step(pid, step, patience) else {
                return Ok(());
            };
            // A step without an answer may still complete, so its state counts now.
            if is_gone(pid) || !error.is_unanswered() && ends(pid) {
                return Ok(());
            }
            tries += 1;
            let state = match &error {
                CheckpointError::Died { .. } => self.rested(pid),
                _ => self.engine.state(pid, ASK),
            };
            match state {
                Ok(Some(state)) if state == reaches => return Ok(()),
                Ok(Some(ProcessState::Failed)) => {
                    let fail = self.lost(pid, Some(step.call()));
                    let leaves = matches!(step, Step::Lock { .. } | Step::Checkpoint);
                    return if leaves {
                        Err(Fault(fail, false))
                    } else {
                        Ok(())
                    };
                }
                Ok(_) if matches!(error, CheckpointError::Died { .. }) && tries < 3 => {}
                _ => {
                    if error.is_unanswered() {
                        self.unsure.borrow_mut().insert(pid);
                    }
                    return Err(Fault(fail_of(&error), error.is_invalid()));
                }
            }
        }
    }

    /// A step that was given up may still complete. Repeats `step` until none is under way: either it is done, or its
    /// order is wrong.
    fn settle(&self, pid: i32, step: &Step, reaches: ProcessState) -> Done {
        if !self.unsure.borrow().contains(&pid) {
            return Ok(());
        }
        match self.engine.step(pid, step, self.moving()) {
            Ok(()) => {}
            Err(_) if is_gone(pid) => {}
            Err(error) if error.is_unanswered() => return Err(fail_of(&error)),
            Err(error) if error.is_illegal_state() => {
                let state = self.engine.state(pid, ASK).map_err(|e| fail_of(&e))?;
                if state == Some(ProcessState::Busy) {
                    return Err(fail_of(&error));
                }
            }
            Err(error) => match self.engine.state(pid, ASK) {
                Ok(Some(state)) if state == reaches => {}
                Ok(Some(ProcessState::Failed)) => drop(self.lost(pid, Some(step.call()))),
                _ => return Err(fail_of(&error)),
            },
        }
        self.unsure.borrow_mut().remove(&pid);
        Ok(())
    }

    /// Waits until no thread is in a driver call. The barrier orders the marks of calls that began before with what
    /// those calls then saw in the state word.
    fn drained(&self) -> Done {
        let Some((watch, slots)) = &self.marks else {
            return Ok(());
        };
        if let Err(error) = gshare_abi::barrier() {
            let why = format!("the kernel does not support membarrier: {error}");
            return Err((Failure::Refused, why));
        }
        let until = Instant::now() + self.patience.drain;
        loop {
            let inside =
                |(slot, pid): &&(usize, u32)| watch.calls(*slot) > 0 && !is_gone(pid.cast_signed());
            let Some((_, pid)) = slots.iter().find(inside) else {
                die::at("lever-drained");
                return Ok(());
            };
            if Instant::now() >= until {
                let drain = self.patience.drain.as_secs_f32();
                let why =
                    format!("a call of process {pid} in the driver did not end within {drain} s");
                return Err((Failure::Busy, why));
            }
            std::thread::sleep(LOOK);
        }
    }

    /// A thread that entered the driver between the look and the lock hangs there, and receives no signals.
    fn nobody_caught(&self) -> Done {
        let Some((watch, slots)) = &self.marks else {
            return Ok(());
        };
        let caught =
            |(slot, pid): &&(usize, u32)| watch.calls(*slot) > 0 && !is_gone(pid.cast_signed());
        for look in 0..CAUGHT_LOOKS {
            let Some((_, pid)) = slots.iter().find(caught) else {
                return Ok(());
            };
            if look + 1 == CAUGHT_LOOKS {
                let why = format!("a thread of process {pid} is still in a driver call");
                return Err((Failure::Busy, why));
            }
            // A thread that has just set its mark sees the state word and leaves again.
            std::thread::sleep(LOOK);
        }
        Ok(())
    }

    /// Moves all memory to the host, except of processes that have already arrived elsewhere.
    fn out(&self, arrived: &BTreeSet<i32>) -> Done {
        self.drained()?;
        for round in 0..ROUNDS {
            let states = self.states()?;
            if let Some((pid, _)) = states.iter().find(|(_, s)| **s == ProcessState::Failed) {
                return Err(self.lost(*pid, None));
            }
            let running = |(pid, state): &(&i32, &ProcessState)| {
                **state == ProcessState::Running && !arrived.contains(pid)
            };
            let running: Vec<i32> = states.iter().filter(running).map(|(pid, _)| *pid).collect();
            if running.is_empty() && round > 0 {
                break;
            }
            let mut others = states.values().any(|s| *s == ProcessState::Locked);
            for pid in running {
                let timeout_ms = LOCK_MS;
                let locked = self.step(pid, &Step::Lock { timeout_ms }, ProcessState::Locked);
                if let (Err((Failure::TimedOut, _)), true) = (&locked, others) {
                    self.unable.borrow_mut().insert(pid, Unable::Silent);
                }
                locked?;
                others = true;
            }
        }
        self.nobody_caught()?;
        self.host_room()?;
        for pid in self.in_state(ProcessState::Locked)? {
            if !arrived.contains(&pid) {
                self.step(pid, &Step::Checkpoint, ProcessState::Checkpointed)?;
            }
        }
        Ok(())
    }

    fn out_or_stay(&self) -> Done {
        self.out(&BTreeSet::new()).inspect_err(|_| self.undo(None))
    }

    /// Moves the memory of stopped programs, which run meanwhile, with their calls waiting.
    fn out_of_suspended(&self, job: &Suspended) -> Done {
        if job.is_new {
            self.host_room()?;
        }
        job.while_running(|| self.out_or_stay())
    }

    /// Whether the host has room, including the limits of the claim's cgroup, or of the steps of a job.
    fn host_room(&self) -> Done {
        let own = match (&self.suspended, &self.members) {
            (Some(job), _) => job.steps.iter().map(|step| room_below(step)).min(),
            (None, Members::Cgroup(dir)) => Some(room_below(dir)),
            (None, Members::Known(_)) => None,
        };
        let own = own.unwrap_or(u64::MAX);
        fits((free_memory(), own), self.bytes, self.patience.host_reserve)
    }

    fn restore(&self, pid: i32, maps: Option<&Maps>) -> Done {
        let plain = Maps(vec![Pairs::new()]);
        let maps = maps.unwrap_or(&plain);
        let mut last = (
            Failure::Refused,
            format!("gshare does not know to which GPU it must restore process {pid}"),
        );
        for pairs in &maps.0 {
            let step = Step::Restore {
                pairs: pairs.clone(),
            };
            match self.try_step(pid, &step, ProcessState::Locked) {
                Ok(()) => {
                    die::at("lever-back");
                    return Ok(());
                }
                Err(Fault(fail, true)) if !pairs.is_empty() => last = fail,
                Err(Fault(fail, _)) => return Err(fail),
            }
        }
        Err(last)
    }

    /// Moves all memory back to GPUs; calls still wait.
    fn restore_all(&self, maps: Option<&Maps>) -> Done {
        for pid in self.in_state(ProcessState::Checkpointed)? {
            self.restore(pid, maps)?;
        }
        Ok(())
    }

    fn come_back(&self, maps: Option<&Maps>) -> Done {
        // A process that initialised CUDA meanwhile is moved too; otherwise it would stay on the old GPUs.
        let new: Vec<i32> = match maps {
            Some(_) => self.in_state(ProcessState::Running)?,
            None => Vec::new(),
        };
        let all = || -> Done {
            for pid in &new {
                let timeout_ms = LOCK_MS;
                self.step(*pid, &Step::Lock { timeout_ms }, ProcessState::Locked)?;
                self.step(*pid, &Step::Checkpoint, ProcessState::Checkpointed)?;
            }
            self.restore_all(maps)
        };
        match all() {
            Ok(()) => {
                self.undo(maps);
                Ok(())
            }
            Err(fail) => {
                self.park_again();
                Err(fail)
            }
        }
    }

    /// Offloads again what was restored, until it succeeds.
    fn park_again(&self) {
        let out = (Step::Checkpoint, ProcessState::Checkpointed);
        self.insist(|pid| {
            self.settle(pid, &out.0, out.1)?;
            match self.state_of(pid)? {
                Some(ProcessState::Locked) => self.step(pid, &out.0, out.1),
                _ => Ok(()),
            }
        });
    }

    /// Brings all processes back to running with their memory on GPUs, until it succeeds.
    fn undo(&self, maps: Option<&Maps>) {
        let open = (Step::Unlock, ProcessState::Running);
        self.insist(|pid| {
            self.settle(pid, &open.0, open.1)?;
            match self.state_of(pid)? {
                Some(ProcessState::Checkpointed) => self.restore(pid, maps)?,
                Some(ProcessState::Locked) => {}
                _ => return Ok(()),
            }
            self.step(pid, &open.0, open.1)
        });
    }

    /// Repeats something for all processes until it is done. Processes whose step was given up come last: the driver
    /// may answer for them only once no other is locked.
    fn insist(&self, work: impl Fn(i32) -> Done) {
        let all = || {
            let mut pids = self.pids();
            pids.sort_by_key(|pid| self.unsure.borrow().contains(pid));
            let done: Vec<Done> = pids.into_iter().map(&work).collect();
            done.into_iter().collect::<Done>()
        };
        let mut told = String::new();
        while let Err((_, why)) = all() {
            if self.pids().iter().all(|pid| is_gone(*pid)) {
                return;
            }
            if why != told {
                tracing::warn!(
                    "a claim is only partly offloaded or restored; gshare tries again: {why}"
                );
                (self.tell.0)(why.clone());
                told = why;
            }
            std::thread::sleep(AGAIN);
        }
    }
}

#[cfg(test)]
mod tests {
    use std::process::Command;
    use std::time::Duration;

    use super::{ends, fits, is_gone, room_below};

    #[test]
    fn a_process_that_is_killed_is_gone_though_the_kernel_takes_its_time() {
        let mut child = Command::new("sleep").arg("60").spawn().expect("it starts");
        let pid = child.id().cast_signed();
        assert!(!ends(pid), "it lives");
        let killed = std::thread::spawn(move || {
            std::thread::sleep(Duration::from_millis(100));
            child.kill().expect("killed");
            child
        });
        assert!(!is_gone(pid));
        assert!(ends(pid));
        killed.join().expect("ended").wait().expect("reaped");
    }

    #[test]
    fn a_job_whose_cgroup_has_less_room_than_the_host_stays_and_says_so() {
        let gib = |n: u64| n << 30;
        let why = |host, own| fits((host, own), gib(40), gib(2)).err().map(|fail| fail.1);
        assert_eq!(why(gib(256), u64::MAX), None);
        assert_eq!(
            why(gib(256), gib(15)).as_deref(),
            Some(
                "its cgroup has 15.0 GiB free; the claim needs 40.0 GiB, and 64 MiB must stay free"
            )
        );
        assert_eq!(why(gib(256), gib(41)), None, "the reserve is the host's");
        let short = why(gib(41), gib(256)).expect("no room");
        assert!(
            short.starts_with("the host has 41.0 GiB") && short.contains("2.0 GiB must stay"),
            "{short}"
        );
    }

    #[test]
    fn host_ram_short_in_a_control_group_above_counts() {
        let dir = tempfile::tempdir().expect("a directory");
        let claim = dir.path().join("user/claim");
        std::fs::create_dir_all(&claim).expect("made");
        let set = |at: &str, max: &str, now: &str| {
            std::fs::write(dir.path().join(at).join("memory.max"), max).expect("written");
            std::fs::write(dir.path().join(at).join("memory.current"), now).expect("written");
        };
        set("user/claim", "max\n", "4096\n");
        assert_eq!(room_below(&claim), u64::MAX, "no limit is no limit");
        set("user", "10000\n", "9000\n");
        assert_eq!(room_below(&claim), 1000);
        set("user/claim", "5000\n", "4096\n");
        assert_eq!(room_below(&claim), 904);
        set("user/claim", "4000\n", "4096\n");
        assert_eq!(room_below(&claim), 0);
        set("user", "max\n", "9000\n");
        let stat = "anon 96\nfile 4000\ninactive_file 3000\nactive_file 500\nslab 7\n";
        std::fs::write(claim.join("memory.stat"), stat).expect("written");
        assert_eq!(room_below(&claim), 4000 - 596, "pages of files give way");
    }
}
