//! The five rules of advice on a simulated workstation: each sentence appears when it is true, its command is
//! run as it is printed, and the sentence goes.

use crate::support;

use std::process::{Child, Command, Stdio};
use std::time::Duration;

use gshare::demo::Job;
use gshare::station::Station;
use gshare_proto::Advice;
use support::{Raw, claim_of, station_with, until};

const SOON: Duration = Duration::from_secs(20);

fn workstation() -> Station {
    station_with(|o| {
        o.costs = "small_grid 12ms\n".to_owned();
        o.config = "[claims]\nleftover-grace = \"1s\"\n[advice]\nidle-after = \"2s\"\nover-asked-after = \"2s\"\n"
            .to_owned();
    })
}

/// The advice of a rule, by words that only it has.
fn advice(station: &Station, words: &str) -> Option<Advice> {
    let all = station.snapshot().ok()?.advice;
    all.into_iter().find(|a| a.text.contains(words))
}

/// The printed command, on this station.
fn command(station: &Station, advice: &Advice) -> Command {
    let text = advice.command.as_deref().expect("each rule has a command");
    let words: Vec<&str> = text.trim_start_matches("sudo ").split(' ').collect();
    assert_eq!(words[0], "gshare", "{text}");
    let mut command = station.command();
    command.args(&words[1..]);
    command
}

fn run(station: &Station, advice: &Advice) {
    let output = command(station, advice).output().expect("it starts");
    let said = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(output.status.success(), "{advice:?}: {said}");
}

fn goes(station: &Station, words: &str) {
    until(&format!("`{words}` goes"), SOON, || {
        advice(station, words).is_none().then_some(())
    });
}

fn launch(raw: &mut Raw) {
    let said = raw.ask("launch 1");
    assert!(said.starts_with("ok"), "{said}");
}

/// Ends with the test.
struct Ended(Child);

impl Drop for Ended {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

#[test]
fn idle_sms_could_run_side_by_side() {
    let station = workstation();
    let job = Job::Steady {
        kernel: "small_grid".into(),
        grid: 40,
        block: 256,
        mib: 100,
        pause_ms: 0,
    };
    let mut start = station.command();
    start.args(["claim", "-q", "-g", "0.3", "--gpu-ids", "2", "--"]);
    start.arg(station.laboratory()).args(job.arguments());
    let _job = Ended(start.stdout(Stdio::null()).spawn().expect("it starts"));
    let words = "could run side by side";
    let found = until("it is said", SOON, || advice(&station, words));
    assert!(
        found.text.contains("GPU 2") && found.text.contains("SMs are idle"),
        "{found:?}"
    );
    // It waits until the GPU is empty; what is advised is done from then on.
    let mut waits = command(&station, &found);
    let _waits = Ended(waits.stderr(Stdio::null()).spawn().expect("it starts"));
    goes(&station, words);
    let gpu = &station.snapshot().expect("served").gpus[2];
    assert_eq!(gpu.mode_wanted.as_deref(), Some("mps"));
}

#[test]
fn an_idle_claim_with_memory_leaves_its_gpu_and_its_programs_live_on() {
    let station = workstation();
    let mut raw = Raw::claim(&station, &["-q", "-g", "0.25"]);
    assert_eq!(raw.ask(&format!("alloc {}", 1u64 << 30)), "ok 0");
    launch(&mut raw);
    let words = "has launched nothing for";
    let found = until("offloading is said", SOON, || {
        let said = advice(&station, words)?;
        let command = said.command.clone()?;
        command.starts_with("gshare offload ").then_some(said)
    });
    run(&station, &found);
    goes(&station, words);
    let snapshot = station.snapshot().expect("served");
    let claim = claim_of(&snapshot, raw.pid()).expect("its program lives");
    assert!(
        matches!(
            claim.place.word.as_deref(),
            Some("offloading" | "offloaded")
        ),
        "{claim:?}"
    );
}

#[test]
fn a_claim_that_asked_for_too_much_gets_a_smaller_size() {
    let station = workstation();
    let mut raw = Raw::claim(&station, &["-q", "-g", "0.8"]);
    let words = "it used at most";
    // It works, a little.
    let found = until("it is said", SOON, || {
        launch(&mut raw);
        advice(&station, words)
    });
    run(&station, &found);
    until("it goes", SOON, || {
        launch(&mut raw);
        advice(&station, words).is_none().then_some(())
    });
    let snapshot = station.snapshot().expect("served");
    let claim = claim_of(&snapshot, raw.pid()).expect("it runs on");
    assert!(claim.gpus[0].sm_request < 0.5, "{claim:?}");
    // It stays away: the new size fits what is used.
    launch(&mut raw);
    assert!(advice(&station, words).is_none());
}

/// As a training that asks for one large piece: much is left, but not enough.
#[test]
fn a_claim_that_was_refused_far_below_its_cap_gets_what_it_asked_for() {
    let station = workstation();
    let mut raw = Raw::claim(&station, &["-q", "-g", "0.25", "--gpu-ids", "2"]);
    let (free, _) = raw.info();
    let piece = free / 3 * 2 / (2 << 20) * (2 << 20);
    assert_eq!(raw.ask(&format!("alloc {piece}")), "ok 0");
    assert!(raw.ask(&format!("alloc {piece}")).starts_with("error"));
    let words = "at its limit of";
    let found = until("it is said", SOON, || advice(&station, words));
    run(&station, &found);
    goes(&station, words);
    assert_eq!(raw.ask(&format!("alloc {piece}")), "ok 1");
    // What no part of the GPU would be enough for is no reason to ask for more.
    assert!(
        raw.ask(&format!("alloc {}", 200u64 << 30))
            .starts_with("error")
    );
    let start = support::looks(&station);
    until("some looks", SOON, || {
        let told = advice(&station, words);
        assert!(told.is_none(), "{told:?}");
        (support::looks(&station) > start + 6).then_some(())
    });
}

#[test]
fn use_outside_claims_becomes_a_claim() {
    let station = workstation();
    let outside = station.client_environment(Command::new(support::example("raw_client")));
    let mut raw = Raw::start(outside);
    assert_eq!(raw.ask(&format!("alloc {}", 1u64 << 30)), "ok 0");
    let words = "outside claims: nothing limits it";
    let found = until("it is said", SOON, || advice(&station, words));
    assert!(found.text.contains(&raw.pid().to_string()), "{found:?}");
    run(&station, &found);
    goes(&station, words);
    let snapshot = station.snapshot().expect("served");
    assert!(
        claim_of(&snapshot, raw.pid()).is_some(),
        "{:?}",
        snapshot.claims
    );
}
