//! `gshare admin stage`: what gshare does in each stage, and that a change of stage touches no program that runs.

use crate::support;

use std::process::{Command, Output};
use std::time::Duration;

use gshare::station::Station;
use gshare_proto::{AdminCall, Call, Caps, Client, Conformance};
use nix::sys::signal::Signal;
use support::terminal::Terminal;
use support::{Raw, claim_of, detach, station_with, until};

const SOON: Duration = Duration::from_secs(10);
const HALF: &str = "alloc 12884901888";
const FULL: &str = "error 2 CUDA_ERROR_OUT_OF_MEMORY";
/// What idles is offloaded at once.
const IDLE_SOON: &str = "[idle]\nwarn = \"1s\"\ndetach = \"2s\"\nalways = \"2s\"\n";

fn run(station: &Station, words: &[&str]) -> Output {
    station.command().args(words).output().expect("gshare runs")
}

fn text(output: &Output) -> String {
    let (stdout, stderr) = (&output.stdout, &output.stderr);
    String::from_utf8_lossy(stdout).into_owned() + &String::from_utf8_lossy(stderr)
}

fn said(station: &Station, words: &[&str]) -> String {
    let output = run(station, words);
    assert!(output.status.success(), "{words:?}: {}", text(&output));
    text(&output)
}

fn refused(station: &Station, words: &[&str]) -> (Option<i32>, String) {
    let output = run(station, words);
    (output.status.code(), text(&output))
}

fn quick(config: &str) -> Station {
    station_with(|o| {
        o.tick = "0.1s".to_owned();
        o.config = format!("[claims]\nleftover-grace = \"1s\"\n{config}");
    })
}

/// A quarter of a GPU for a program that has taken nothing yet.
fn quarter(station: &Station, gpu: &str) -> Raw {
    Raw::claim(station, &["-q", "-g", "0.25", "--gpu-ids", gpu])
}

/// What a program could see of gshare: its environment, its cgroup, what is mapped and open in it.
fn trace(mut command: Command) -> Vec<String> {
    let script = "tr '\\0' '\\n' < /proc/$$/environ; cat /proc/$$/cgroup; cat /proc/$$/mountinfo; \
                  sed 's/.* //' /proc/$$/maps; for f in /proc/$$/fd/*; do readlink $f; done; grep -E '^(SigBlk|SigIgn|Cap)' /proc/self/status";
    let output = command.args(["sh", "-c", script]).output().expect("runs");
    let mut lines: Vec<String> = text(&output)
        .lines()
        .filter(|line| !line.contains("pipe:"))
        .map(str::to_owned)
        .collect();
    lines.sort();
    lines
}

#[test]
fn in_stage_1_claims_start_at_once_and_nothing_of_gshare_is_in_their_programs() {
    let mut station = quick("");
    let shown = said(&station, &["admin", "stage"]);
    assert_eq!(
        shown, "stage 3 (reclaim), experimental\n",
        "a journal without a stage"
    );
    let done = said(&station, &["admin", "stage", "1"]);
    assert!(done.ends_with("undo: gshare admin stage 3\n"), "{done}");
    assert!(said(&station, &["status"]).contains("stage 1 (observe)"));

    let mut claimed = station.command();
    claimed.args(["claim", "-q", "-g", "0.5", "--"]);
    let mut plain = station.client_environment(Command::new("env"));
    plain.current_dir(station.dir());
    assert_eq!(trace(claimed), trace(plain));

    // More than there is, and each may have all memory.
    let whole = || Raw::claim(&station, &["-q", "-g", "1", "--gpu-ids", "0"]);
    let (mut first, second) = (whole(), whole());
    let (_, total) = first.info();
    assert_eq!(first.ask(&format!("alloc {}", total / 2)), "ok 0");
    until("its memory is counted", SOON, || {
        let snapshot = station.snapshot().ok()?;
        let claim = claim_of(&snapshot, first.pid())?;
        let used = claim.gpus.first()?.mem_used?;
        let plain = claim.state_text == "only counted" && claim.caps == Caps::None;
        (used >= total / 2 && plain).then_some(())
    });
    let told = said(&station, &["claim", "-g", "1", "--", "true"]);
    assert!(
        told.contains("stage 1 (observe): gshare only counts this claim"),
        "{told}"
    );

    // A restart of the service forgets neither the stage nor the claims, and no later stage limits them.
    station.stop_service(Signal::SIGKILL).expect("killed");
    station.start_service().expect("starts again");
    assert!(said(&station, &["status"]).contains("stage 1 (observe)"));
    said(&station, &["admin", "stage", "3"]);
    assert!(first.ask(&format!("alloc {}", total / 4)).starts_with("ok"));
    assert_eq!(first.ask("launch 1"), "ok 1");
    let limited = refused(
        &station,
        &[
            "claim",
            "--nonblock",
            "--gpu-mem",
            "12G",
            "--gpu-ids",
            "0",
            "--",
            "true",
        ],
    );
    assert_eq!(limited.0, Some(75), "{}", limited.1);
    let mut limited = quarter(&station, "1");
    assert_eq!(limited.ask(HALF), FULL);
    // Its owner's release ends the count, not the program.
    let id = detach::claim(&station, second.pid()).id;
    said(&station, &["release", &id]);
    assert_eq!([first.finish(), second.finish()], [Some(0); 2]);
    until("they are gone", SOON, || {
        (station.snapshot().ok()?.claims.len() == 1).then_some(())
    });
}

#[test]
fn stages_hold_by_gpu_and_by_group_and_a_lower_one_opens_limits_for_good() {
    let station = quick("");
    let mut before = quarter(&station, "0");
    assert_eq!(before.ask(HALF), FULL);
    said(&station, &["admin", "stage", "1", "--gpus", "0"]);
    assert!(before.ask(HALF).starts_with("ok"), "its limit is open");
    let (mut here, mut there) = (quarter(&station, "0"), quarter(&station, "1"));
    assert_eq!(here.ask("alloc 1048576"), "ok 0");
    assert_eq!(there.ask(HALF), FULL, "GPU 1 is at stage 3");
    let shown = said(&station, &["admin", "stage"]);
    assert_eq!(shown, "stage 3 (reclaim), experimental; GPU 0: 1\n");
    said(&station, &["admin", "stage", "3"]);
    assert!(
        before.ask("alloc 1048576").starts_with("ok"),
        "it keeps its stage"
    );
    for mut raw in [before, here, there] {
        assert_eq!(raw.ask("launch 1"), "ok 1");
        assert_eq!(raw.finish(), Some(0));
    }

    let gid = nix::unistd::Gid::effective();
    let group = nix::unistd::Group::from_gid(gid).ok().flatten();
    let Some(group) = group.map(|g| g.name) else {
        return;
    };
    let done = said(&station, &["admin", "stage", "1", "--group", &group]);
    let undo = format!("undo: gshare admin stage 4 --group {group}\n");
    assert!(done.ends_with(&undo), "{done}");
    let mut observed = quarter(&station, "0");
    assert!(observed.ask(HALF).starts_with("ok"));
    let json = said(&station, &["admin", "stage", "--json"]);
    let json: serde_json::Value = serde_json::from_str(&json).expect("JSON");
    assert_eq!(json["groups"][&group], 1, "{json}");
    said(&station, &["admin", "stage", "4", "--group", &group]);
    let mut limited = quarter(&station, "1");
    assert_eq!(limited.ask(HALF), FULL);
    assert_eq!([observed.finish(), limited.finish()], [Some(0); 2]);
    let log = said(&station, &["admin", "log"]);
    assert!(log.contains("stage") && log.contains("group"), "{log}");
}

#[test]
fn in_stage_2_claims_have_limits_and_a_queue_and_nothing_is_taken() {
    let station = detach::station_that(IDLE_SOON, |_| ());
    said(&station, &["admin", "stage", "2"]);
    let told = said(&station, &["claim", "-g", "0.25", "--", "true"]);
    assert!(
        told.contains("does not protect it from programs without a claim"),
        "{told}"
    );
    let (mut idle, sum) = detach::holder(
        &station,
        &["-q", "-g", "1", "--class", "interactive", "--gpu-ids", "0"],
    );
    let held = detach::on_gpus(&station, idle.pid());
    let waits = refused(
        &station,
        &[
            "claim",
            "--wait",
            "5s",
            "-g",
            "1",
            "--gpu-ids",
            "0",
            "--",
            "true",
        ],
    );
    assert_eq!(waits.0, Some(75), "{}", waits.1);
    assert_eq!(
        detach::on_gpus(&station, idle.pid()),
        held,
        "it idled, and others waited"
    );
    assert_eq!(idle.ask("sum 0"), sum);
    // In stage 3 the same is taken from a claim that starts then, and never from this one.
    said(&station, &["admin", "stage", "3"]);
    std::thread::sleep(Duration::from_secs(3));
    assert_eq!(detach::on_gpus(&station, idle.pid()), held);
    assert_eq!(idle.finish(), Some(0));
    let (mut later, sum) = detach::holder(
        &station,
        &["-q", "-g", "1", "--class", "interactive", "--gpu-ids", "0"],
    );
    until("it is offloaded for idleness", SOON, || {
        (detach::on_gpus(&station, later.pid()) == 0).then_some(())
    });
    // Going down brings it back.
    let held = held.max(1);
    said(&station, &["admin", "stage", "2"]);
    until("it is back", SOON, || {
        (detach::on_gpus(&station, later.pid()) >= held).then_some(())
    });
    assert_eq!(later.ask("sum 0"), sum);
    assert_eq!(later.finish(), Some(0));
}

#[test]
fn a_claim_that_gets_its_gpu_later_has_the_stage_of_that_moment() {
    let station = detach::station_that(IDLE_SOON, |_| ());
    said(&station, &["admin", "stage", "2"]);
    let lazy = [
        "-q",
        "--lazy",
        "-g",
        "1",
        "--class",
        "interactive",
        "--gpu-ids",
        "0",
    ];
    let (mut lazy, sum) = detach::holder(&station, &lazy);
    let held = detach::on_gpus(&station, lazy.pid());
    said(&station, &["admin", "stage", "3"]);
    std::thread::sleep(Duration::from_secs(4));
    assert_eq!(
        detach::on_gpus(&station, lazy.pid()),
        held,
        "in stage 2 nothing is taken"
    );
    assert_eq!(lazy.ask("sum 0"), sum);
    assert_eq!(lazy.finish(), Some(0));
}

#[test]
fn in_stage_3_a_program_without_a_claim_that_takes_a_claims_memory_is_named_to_both_owners() {
    let station = detach::station_of(1, "");
    let claim = Raw::claim(&station, &["-q", "-g", "0.75", "--gpu-ids", "0"]);
    let mut command = Command::new("sh");
    let client = support::example("raw_client");
    command.args(["-c", "exec \"$0\""]).arg(client);
    command.env("LD_LIBRARY_PATH", station.sim_dir().join("lib"));
    let mut bare = Terminal::start(&command, 24, 250);
    bare.shows(&["ready"], SOON);
    bare.send(&format!("alloc {}\n", 5_u64 << 30));
    let seen = || station.snapshot().ok();
    until("it is accounted", SOON, || {
        let claims = seen()?.claims;
        claims.iter().find(|c| c.adopted).map(|_| ())
    });
    let told = |part: &str| seen().is_some_and(|s| s.notices.iter().any(|n| n.text.contains(part)));
    assert!(!told("has no claim and uses"), "there is room for both");
    bare.send(&format!("alloc {}\n", 5_u64 << 30));
    bare.shows(
        &[
            "is guaranteed to c1 of",
            "To create a claim for your program: gshare adopt",
        ],
        SOON,
    );
    let snapshot = seen().expect("served");
    let user = &claim_of(&snapshot, claim.pid()).expect("its claim").user;
    let user = format!(") of {user} has no claim and uses");
    until("the claim's owner is told", SOON, || {
        (told(&user) && told("c1 might not get all of its")).then_some(())
    });
    drop(bare);
    assert_eq!(claim.finish(), Some(0));
}

#[test]
fn stages_3_and_4_are_experimental_until_the_checks_of_the_driver_have_passed() {
    let mut station = quick("");
    let shown = |station: &Station| said(station, &["admin", "stage"]);
    let untried = "stage 3 (reclaim), experimental\n";
    assert_eq!(shown(&station), untried);
    let told = said(&station, &["admin", "stage", "3"]);
    assert!(told.contains("gshare doctor --conformance"), "{told}");
    let told = said(&station, &["admin", "stage", "2"]);
    assert!(!told.contains("experimental"), "{told}");
    said(&station, &["admin", "stage", "3"]);

    // Some of the checks, beside a claim that has the first GPU.
    let holder = quarter(&station, "0");
    let checks = |words: &str| {
        let mut command = station.command();
        command.env("LD_LIBRARY_PATH", station.sim_dir().join("lib"));
        command
            .args(["doctor", words])
            .output()
            .expect("gshare runs")
    };
    let some = checks("--conformance=init.,error.");
    let said_of_some = text(&some);
    assert_eq!(some.status.code(), Some(0), "{said_of_some}");
    for part in ["on GPU 1,", " 0 different, ", "nothing was recorded"] {
        assert!(said_of_some.contains(part), "{part}: {said_of_some}");
    }
    assert_eq!(shown(&station), untried);
    let more: Vec<Raw> = (1..station.snapshot().expect("served").gpus.len())
        .map(|gpu| quarter(&station, &gpu.to_string()))
        .collect();
    let busy = checks("--conformance");
    assert_eq!(busy.status.code(), Some(75), "{}", text(&busy));
    for raw in more.into_iter().chain([holder]) {
        assert_eq!(raw.finish(), Some(0));
    }

    // What a run of all of them tells the service.
    let found = |different| {
        let found = Some(Conformance {
            gpu: 1,
            checks: 190,
            different,
        });
        let mut client = Client::connect(&station.socket()).expect("serves");
        client
            .call(&Call::Admin(AdminCall::Conformance { found }))
            .expect("is taken down");
    };
    found(2);
    assert_eq!(shown(&station), untried);
    found(0);
    assert_eq!(shown(&station), "stage 3 (reclaim)\n");
    station.stop_service(Signal::SIGKILL).expect("killed");
    station.start_service().expect("starts again");
    assert_eq!(shown(&station), "stage 3 (reclaim)\n");
    let row = said(&station, &["doctor"]);
    assert!(
        row.contains("in 0 of 190 checks the driver differs"),
        "{row}"
    );
    // Another driver has to pass by itself.
    let line = station.dir().join("state/conformance");
    let text = std::fs::read_to_string(&line).expect("the line");
    let mut json: serde_json::Value = serde_json::from_str(&text).expect("JSON");
    json["driver"] = "1.2".into();
    std::fs::write(&line, json.to_string()).expect("written");
    station.stop_service(Signal::SIGKILL).expect("killed");
    station.start_service().expect("starts again");
    assert_eq!(shown(&station), untried);
}

#[test]
fn a_stage_for_later_is_announced_survives_a_restart_and_is_cancelled_by_another_command() {
    let mut station = quick("");
    let (code, text) = refused(&station, &["admin", "stage", "2", "--from", "soon"]);
    assert_eq!(code, Some(64), "{text}");
    assert!(text.contains("such as \"Mon 08:00\""), "{text}");
    let order = ["admin", "stage", "2", "--from", "Mon 08:00"];
    let done = said(&station, &order);
    assert!(
        done.starts_with("stage 2 (opt-in) for every GPU and user from Mon "),
        "{done}"
    );
    assert!(done.ends_with("undo: gshare admin stage 3\n"), "{done}");
    let waits =
        "stage 3 (reclaim), experimental; stage 2 (opt-in) for every GPU and user from Mon ";
    let shown = || said(&station, &["admin", "stage"]);
    assert!(shown().starts_with(waits), "{}", shown());
    let cancelled = said(&station, &["admin", "stage", "3"]);
    assert!(
        cancelled.contains("cancelled: stage 2 (opt-in) for every GPU and user from Mon "),
        "{cancelled}"
    );
    assert_eq!(shown(), "stage 3 (reclaim), experimental\n");

    said(&station, &order);
    station.stop_service(Signal::SIGKILL).expect("killed");
    station.start_service().expect("starts again");
    let status = said(&station, &["status"]);
    assert!(status.contains(waits), "{status}");
    // The time comes while the service is dead.
    station.stop_service(Signal::SIGKILL).expect("killed");
    let line = station.dir().join("state/stage");
    let text = std::fs::read_to_string(&line).expect("the line");
    let mut json: serde_json::Value = serde_json::from_str(&text).expect("JSON");
    json["later"]["from_ms"] = 1.into();
    std::fs::write(&line, json.to_string()).expect("written");
    station.start_service().expect("starts again");
    until("it is in force", SOON, || {
        (said(&station, &["admin", "stage"]) == "stage 2 (opt-in)\n").then_some(())
    });
    let text = std::fs::read_to_string(&line).expect("the line");
    assert!(!text.contains("later"), "{text}");
}

#[test]
fn what_the_configuration_says_of_the_stage_is_not_changed_by_the_command() {
    let station = quick("[stage]\nmachine = \"opt-in\"\n");
    let shown = said(&station, &["admin", "stage"]);
    assert_eq!(
        shown,
        "stage 2 (opt-in) (set by machine in [stage] in gshare.toml)\n"
    );
    let (code, text) = refused(&station, &["admin", "stage", "3"]);
    assert_eq!(code, Some(75), "{text}");
    assert!(
        text.contains("machine in [stage] in gshare.toml sets stage 2"),
        "{text}"
    );
    let (code, text) = refused(&station, &["admin", "stage", "5"]);
    assert_eq!(code, Some(64), "{text}");

    let station = quick("[policy]\nunclaimed = \"observe\"\n");
    let (code, text) = refused(&station, &["admin", "stage", "4"]);
    assert_eq!(code, Some(75), "{text}");
    assert!(text.contains("contradicts stage 4"), "{text}");
    let (code, _) = refused(
        &station,
        &["admin", "stage", "2", "--group", "no-such-group"],
    );
    assert_eq!(code, Some(64));
}

#[test]
fn a_dry_run_names_whom_a_stage_would_affect_and_its_plan_holds_only_while_that_is_so() {
    let station = quick("");
    said(&station, &["admin", "stage", "1"]);
    let mut above = quarter(&station, "0");
    assert!(above.ask(HALF).starts_with("ok"));
    let mut command = Command::new(support::example("raw_client"));
    command.env("LD_LIBRARY_PATH", station.sim_dir().join("lib"));
    let mut bare = Raw::start(command);
    assert_eq!(bare.ask("alloc 1048576"), "ok 0");
    until("both are seen", SOON, || {
        let snapshot = station.snapshot().ok()?;
        let half = claim_of(&snapshot, above.pid())?.gpus.first()?.mem_used?;
        claim_of(&snapshot, bare.pid())?;
        (half >= 12 << 30).then_some(())
    });
    std::thread::sleep(Duration::from_millis(500));
    assert_eq!([above.finish(), bare.finish()], [Some(0); 2]);
    until("both are over", SOON, || {
        station.snapshot().ok()?.claims.is_empty().then_some(())
    });
    let dry = |stage: &str| {
        let text = said(&station, &["admin", "stage", stage, "--dry-run"]);
        let (_, id) = text.split_once("\nplan ").expect(&text);
        let (id, _) = id.split_once("; nothing was changed").expect(&text);
        (text.clone(), id.to_owned())
    };
    let (text, plan) = dry("2");
    let user = nix::unistd::User::from_uid(nix::unistd::Uid::effective());
    let user = user.ok().flatten().expect("a user").name;
    let line = format!("  raw_client of {user}, 1 run: would have reached its memory limit\n");
    assert!(text.contains(&line), "{text}");
    assert!(!text.contains("could not open"), "{text}");
    let refusal = format!("  raw_client of {user}, 1 run: could not open a GPU without a claim\n");
    assert!(dry("4").0.contains(&refusal), "{}", dry("4").0);
    assert!(
        dry("4").0.contains("were used without a claim"),
        "{}",
        dry("4").0
    );
    assert_eq!(said(&station, &["admin", "stage"]), "stage 1 (observe)\n");
    assert_eq!(dry("2").1, plan, "nothing has happened");
    // Another program has run since.
    said(&station, &["claim", "-q", "-g", "0.1", "--", "true"]);
    until("it is over", SOON, || {
        station.snapshot().ok()?.claims.is_empty().then_some(())
    });
    let (code, text) = refused(&station, &["admin", "stage", "2", "--plan", &plan]);
    assert_eq!(code, Some(75), "{text}");
    assert!(text.contains("the plan is out of date"), "{text}");
    let plan = dry("2").1;
    said(&station, &["admin", "stage", "2", "--plan", &plan]);
    assert_eq!(said(&station, &["admin", "stage"]), "stage 2 (opt-in)\n");
    let (text, _) = dry("2");
    assert!(
        text.contains("no run would be treated differently"),
        "{text}"
    );
}

#[test]
fn a_dry_run_plays_who_would_have_waited_and_what_going_down_would_change() {
    let station = detach::station_of(1, "");
    said(&station, &["admin", "stage", "1"]);
    let whole = |program: &str, seconds: &str| {
        let mut command = station.command();
        command.args(["claim", "-q", "-g", "1", "--", program, seconds]);
        command.spawn().expect("starts")
    };
    // Both run at once, and share a GPU that is whole for each.
    let mut first = whole("sleep", "6");
    std::thread::sleep(Duration::from_secs(1));
    let script = station.dir().join("later.sh");
    std::fs::write(&script, "sleep 1\n").expect("written");
    let mut second = whole("sh", script.to_str().expect("plain"));
    for child in [&mut second, &mut first] {
        assert!(child.wait().expect("waits").success());
    }
    until("both are over", SOON, || {
        station.snapshot().ok()?.claims.is_empty().then_some(())
    });
    let user = nix::unistd::User::from_uid(nix::unistd::Uid::effective());
    let user = user.ok().flatten().expect("a user").name;
    let text = said(&station, &["admin", "stage", "2", "--dry-run"]);
    let waits =
        format!("  sh later.sh of {user}, 1 run: would have waited for room, the longest for ");
    let (_, rest) = text.split_once(&waits).expect(&text);
    let wait: u64 = rest
        .split('s')
        .next()
        .and_then(|n| n.parse().ok())
        .expect(&text);
    assert!(
        (3..=5).contains(&wait),
        "the first had 6 s, and the second came after one: {text}"
    );
    let limits = format!("  sleep of {user}, 1 run: would have had limits\n");
    assert!(text.contains(&limits), "{text}");

    said(&station, &["admin", "stage", "3"]);
    said(&station, &["claim", "-q", "-g", "0.5", "--", "true"]);
    until("it is over", SOON, || {
        station.snapshot().ok()?.claims.is_empty().then_some(())
    });
    let down = |stage: &str| said(&station, &["admin", "stage", stage, "--dry-run"]);
    let spared =
        format!("  true of {user}, 1 run: would not be offloaded, moved or suspended for others\n");
    assert!(down("2").contains(&spared), "{}", down("2"));
    let free = format!("  true of {user}, 1 run: would have no limits, and start at once\n");
    assert!(down("1").contains(&free), "{}", down("1"));
}
