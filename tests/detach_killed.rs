//! The service is killed between every two steps of every lever, on a claim of two processes: it finds the claim
//! again, whole on one side, its contents equal.

use crate::support;

use std::process::Stdio;
use std::time::Duration;

use gshare::station::Station;
use gshare_enforcer::checkpoint::{Engine, ProcessState};
use gshare_sim_board::{CheckpointHow, CheckpointStep};
use nix::sys::signal::Signal;
use support::detach::{
    SOON, by_gpu, claim, fault, fill, holder, join, met, ok, on_gpus, ready, settles, station_of,
    station_that, word,
};
use support::{Raw, until};

/// Two processes of one claim on GPU 0, and what they have.
struct Two {
    station: Station,
    raws: [Raw; 2],
    sums: [String; 2],
    held: [u64; 2],
    id: String,
}

impl Two {
    fn new() -> Self {
        let station = station_of(2, "");
        let mut first = Raw::claim(&station, &["-q", "-g", "0.5", "--gpu-ids", "0"]);
        let id = claim(&station, first.pid()).id;
        let mut second = join(&station, &id);
        let sums = [fill(&mut first, 0), fill(&mut second, 0)];
        ready(&station, first.pid());
        let held = [&first, &second].map(|raw| by_gpu(&station, raw.pid())[0]);
        Self {
            station,
            raws: [first, second],
            sums,
            held,
            id,
        }
    }

    fn pid(&self) -> u32 {
        self.raws[0].pid()
    }

    /// Brings the claim to where a lever starts: on GPU 0, or in the host.
    fn begin(&self, lever: &str) {
        ok(&self.station, &["restore", "-q", &self.id]);
        if claim(&self.station, self.pid()).gpus[0].gpu != 0 {
            ok(&self.station, &["move", "-q", &self.id, "--gpu", "0"]);
        }
        match lever {
            "restore" => drop(ok(&self.station, &["offload", "-q", &self.id])),
            "resume" => drop(ok(&self.station, &["suspend", "-q", &self.id])),
            _ => {}
        }
    }

    /// Pulls the lever while the service dies at this step, and starts it again.
    fn dies_at(&mut self, words: &[&str], step: &str) {
        let what = format!("{} dies at {step}", words[0]);
        self.begin(words[0]);
        self.station.stop_service(Signal::SIGTERM).expect("stopped");
        let started = self.station.start_service_with(&["--die-at", step]);
        started.expect("starts");
        if !matches!(words[0], "restore" | "resume") {
            ready(&self.station, self.pid());
        }
        let mut command = self.station.command();
        command.arg(words[0]).arg(&self.id).args(&words[1..]);
        command.stdout(Stdio::null()).stderr(Stdio::null());
        let mut asking = command.spawn().expect("runs");
        until(&what, SOON, || self.station.service_ended().then_some(()));
        let _ = asking.kill();
        let _ = asking.wait();
        let started = self.station.start_service();
        started.unwrap_or_else(|e| panic!("{what}: {e:#}"));
        // Where it was to go, or where it was.
        let (there, gpu) = match words[0] {
            "offload" => (Some("offloaded"), 0),
            "suspend" => (Some("suspended"), 0),
            "move" => (None, 1),
            _ => (None, 0),
        };
        until(&format!("{what}: found again"), SOON, || {
            (word(&self.station, self.pid()).as_deref() == there).then_some(())
        });
        for (raw, held) in self.raws.iter().zip(self.held) {
            let mut wanted = [0; 2];
            wanted[gpu] = if there.is_some() { 0 } else { held };
            let seen = by_gpu(&self.station, raw.pid());
            assert_eq!(seen, wanted, "{what}: on one side");
        }
        if there.is_none() {
            assert_eq!(claim(&self.station, self.pid()).gpus[0].gpu as usize, gpu);
        }
        if there == Some("suspended") {
            ok(&self.station, &["resume", "-q", &self.id]);
        }
        for (raw, sum) in self.raws.iter_mut().zip(&self.sums) {
            assert_eq!(raw.ask("sum 0"), *sum, "{what}");
        }
    }

    fn dies_at_each(mut self, words: &[&str], but: &[&str]) {
        for step in gshare::daemon::LEVER_STEPS {
            if !but.contains(&step) {
                self.dies_at(words, step);
            }
        }
        for raw in self.raws {
            assert_eq!(raw.finish(), Some(0));
        }
    }
}

/// Steps that only a way to the GPU has.
const BACK: [&str; 2] = ["lever-back", "lever-unlocked"];
/// Steps that only a way to the host has.
const OUT: [&str; 4] = ["lever-drained", "lever-locked", "lever-out", "lever-parked"];

#[test]
fn killed_between_any_two_steps_of_detach_the_service_finds_the_claim_again() {
    Two::new().dies_at_each(&["offload"], &BACK);
}

#[test]
fn killed_between_any_two_steps_of_attach_the_service_finds_the_claim_again() {
    Two::new().dies_at_each(&["restore"], &OUT);
}

#[test]
fn killed_between_any_two_steps_of_suspend_the_service_finds_the_claim_again() {
    if support::root("killed_between_any_two_steps_of_suspend") {
        Two::new().dies_at_each(&["suspend"], &BACK);
    }
}

#[test]
fn killed_between_any_two_steps_of_resume_the_service_finds_the_claim_again() {
    if support::root("killed_between_any_two_steps_of_resume") {
        Two::new().dies_at_each(&["resume"], &OUT);
    }
}

#[test]
fn killed_between_any_two_steps_of_move_the_service_finds_the_claim_again() {
    Two::new().dies_at_each(&["move", "--gpu", "1"], &["lever-parked"]);
}

/// From CUDA 13.4 on the driver says that a step is under way. A service that finds a process so waits for the end of
/// the step, whoever began it.
#[test]
fn a_process_found_in_the_middle_of_a_step_is_waited_for() {
    let mut station = station_that("", |o| {
        o.gpus = vec!["rtx4090".to_owned(); 2];
        o.driver = Some("615.71.09".to_owned());
    });
    let libcuda = station.libraries().join("libcuda.so.1");
    let command = [
        support::GSHARE.into(),
        "__checkpoint-engine".into(),
        libcuda.into_os_string(),
    ];
    let onlooker = Engine::new(command);
    let (mut raw, sum) = holder(&station, &["-q", "-g", "0.5", "--gpu-ids", "0"]);
    let (pid, id) = (raw.pid(), claim(&station, raw.pid()).id);
    let held = on_gpus(&station, pid);
    let state = || {
        let state = onlooker.state(pid.cast_signed(), Duration::from_secs(10));
        state.expect("told").expect("it uses CUDA")
    };
    assert_eq!(state(), ProcessState::Running);
    for (words, step, ends) in [
        (
            vec!["offload", &id],
            CheckpointStep::Checkpoint,
            Some("offloaded"),
        ),
        (vec!["restore", &id], CheckpointStep::Restore, None),
        (
            vec!["move", &id, "--gpu", "1"],
            CheckpointStep::Checkpoint,
            None,
        ),
        (
            vec!["move", &id, "--gpu", "0"],
            CheckpointStep::Restore,
            None,
        ),
    ] {
        fault(&station, Some((step, CheckpointHow::Waits)), None);
        let mut asking = station.command();
        asking
            .args(&words)
            .stdout(Stdio::null())
            .stderr(Stdio::null());
        let mut asking = asking.spawn().expect("runs");
        met(&station);
        assert_eq!(state(), ProcessState::Busy, "{words:?}");
        station.stop_service(Signal::SIGKILL).expect("killed");
        let _ = asking.kill();
        let _ = asking.wait();
        station.start_service().expect("starts again");
        assert_eq!(
            state(),
            ProcessState::Busy,
            "{words:?}: nobody else ended it"
        );
        let before = claim(&station, pid).place.word;
        assert!(before.is_some(), "{words:?}: it is on its way still");
        fault(&station, None, None);
        settles(&station, pid, ends);
        let there = if ends.is_some() { 0 } else { held };
        assert_eq!(on_gpus(&station, pid), there, "{words:?}: on one side");
        if let ["move", .., gpu] = words.as_slice() {
            let gpu: u32 = gpu.parse().expect("a number");
            assert_eq!(claim(&station, pid).gpus[0].gpu, gpu, "{words:?}");
        }
        if ends.is_none() {
            assert_eq!(raw.ask("sum 0"), sum, "{words:?}");
        }
    }
    assert_eq!(raw.finish(), Some(0));
}
