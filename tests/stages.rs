//! Stages and off: what gshare does in each, that a change affects no running program, and what stage 1 leaves in
//! programs.

use crate::support;

use crate::containers::{Image, all_gpus, made, name, podman, podman_run};
use crate::history;
use crate::sharing::Flood;

use std::collections::BTreeSet;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use gshare::demo::Job;
use gshare::station::Station;
use gshare_abi::host::LimitsFile;
use gshare_gate::{Mode, Word};
use gshare_proto::{AdminCall, Call, Caps, Client, Conformance};
use gshare_sim_board::Board;
use nix::sys::signal::Signal;
use nix::unistd::Pid;
use support::notebook::{ADD, ADDED, BARE};
use support::terminal::Terminal;
use support::users::{Users, as_user, reachable};
use support::{
    DENIED, FULL, GSHARE, OPEN, Random, Raw, SOON, all_ended, claim, claim_of, detach, has_all, ok,
    python, quick, root, run, station_with, text, tried, until, words,
};

// `gshare admin stage`: what gshare does in each stage, and that a change of stage affects no running program.

const HALF: &str = "alloc 12884901888";

/// Idle claims are offloaded at once.
const IDLE_SOON: &str = "[idle]\nwarn = \"1s\"\ndetach = \"2s\"\nalways = \"2s\"\n";

fn said(station: &Station, words: &[&str]) -> String {
    let output = run(station, words);
    assert!(output.status.success(), "{words:?}: {}", text(&output));
    text(&output)
}

/// A quarter of a GPU for a program without allocations yet.
fn quarter(station: &Station, gpu: &str) -> Raw {
    Raw::claim(station, &["-q", "-g", "0.25", "--gpu-ids", gpu])
}

/// What a program of this command has.
fn trace(mut command: Command) -> BTreeSet<String> {
    let mut child = command.args(["sleep", "60"]).spawn().expect("runs");
    // It has loaded everything once it sleeps.
    until("it sleeps", SOON, || {
        let stat = std::fs::read_to_string(format!("/proc/{}/stat", child.id()));
        stat.ok()?.contains(" (sleep) S ").then_some(())
    });
    let found = has(child.id());
    child.kill().expect("killed");
    child.wait().expect("reaped");
    found
}

#[test]
fn in_stage_1_claims_start_at_once_and_nothing_of_gshare_is_in_their_programs() {
    let mut station = quick("");
    let shown = said(&station, &["admin", "stage"]);
    assert_eq!(
        shown, "stage 3 (reclaim), experimental\n",
        "a journal without a stage"
    );
    let mut holder = Raw::claim(&station, &["-q", "-g", "1", "--gpu-ids", "1"]);
    assert_eq!(holder.ask(HALF), "ok 0");
    let asks = |gib| Raw::asks(&station, &["-q", "--gpu-mem", gib, "--gpu-ids", "1"]);
    let (mut large, mut small) = (asks("20G"), asks("4G"));
    let waiting = || station.snapshot().expect("served").queue.len();
    until("both wait", SOON, || waiting() == 2);
    let done = said(&station, &["admin", "stage", "1"]);
    assert!(done.ends_with("undo: gshare admin stage 3\n"), "{done}");
    assert!(said(&station, &["status"]).contains("stage 1 (observe)"));
    // The queue is let in as far as memory is free.
    assert_eq!(small.line(), "ok ready");
    assert_eq!(waiting(), 1);
    assert_eq!([small.finish(), holder.finish()], [Some(0); 2]);
    assert_eq!(large.line(), "ok ready");
    assert_eq!(large.finish(), Some(0));
    all_ended(&station);

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
    has_all(&told, &["stage 1 (observe): gshare only counts this claim"]);

    // A restart of the service keeps the stage and the claims, and no later stage limits them.
    support::restart(&mut station, Signal::SIGKILL);
    assert!(said(&station, &["status"]).contains("stage 1 (observe)"));
    said(&station, &["admin", "stage", "3"]);
    assert!(first.ask(&format!("alloc {}", total / 4)).starts_with("ok"));
    assert_eq!(first.ask("launch 1"), "ok 1");
    let limited = tried(
        &station,
        &words("claim --nonblock --gpu-mem 12G --gpu-ids 0 -- true"),
    );
    assert_eq!(limited.0, Some(75), "{}", limited.1);
    let mut limited = quarter(&station, "1");
    assert_eq!(limited.ask(HALF), FULL);
    // Its owner's release ends the account, not the program.
    let id = claim(&station, second.pid()).id;
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
    has_all(&log, &["stage", "group"]);
}

/// A shell stays in the cgroup of a claim that it was put into, also after the claim's end.
#[test]
fn in_stage_1_what_runs_on_after_its_claim_has_ended_is_refused_no_gpu() {
    let station = quick("");
    if !support::is_filtered(&station) {
        return;
    }
    assert_eq!(
        said(&station, &words("claim -q -g 0.25 --gpu-ids 0")),
        "c1\n"
    );
    let node = station.sim_dir().join("dev/nvidia1").display().to_string();
    let script = format!(
        "open='(exec 3<{node}) 2>&1 | sed s/.*:.//'; eval \"$({GSHARE} env c1)\"
        {GSHARE} release c1; echo 3: $(sh -c \"$open\")
        {GSHARE} admin stage 1 --gpus 1 >&2; echo 1: $(sh -c \"$open\")
        echo claim: $({GSHARE} claim -q -g 0.25 --gpu-ids 1 -- sh -c \"$open\")
        {GSHARE} admin stage 3 >&2; echo raised: $(sh -c \"$open\")"
    );
    let mut shell = station.client_environment(Command::new("sh"));
    let shell = shell.args(["-c", &script]).output().expect("sh");
    let expected = format!("c1 released\n3: {DENIED}\n1: {OPEN}\nclaim: {OPEN}\nraised: {OPEN}\n");
    assert_eq!(
        String::from_utf8_lossy(&shell.stdout),
        expected,
        "{}",
        text(&shell)
    );
}

/// The name of who runs the tests.
fn me() -> String {
    let user = nix::unistd::User::from_uid(nix::unistd::Uid::effective());
    user.ok().flatten().expect("a user").name
}

/// A program that runs through all changes of stages.
struct Through {
    raw: Raw,
    launches: u32,
    /// Of a claim with limits.
    limited: bool,
}

impl Through {
    fn new(mut raw: Raw, limited: bool) -> Self {
        assert_eq!(raw.ask("alloc 1048576"), "ok 0");
        Self {
            raw,
            launches: 0,
            limited,
        }
    }

    /// It launches, keeps its memory, and has no limit that it did not have. Returns whether it has one.
    fn goes_on(&mut self, after: &str) -> bool {
        self.launches += 1;
        let told = self.raw.ask("launch 1");
        assert_eq!(told, format!("ok {}", self.launches), "{after}");
        let more = self.raw.ask("alloc 4294967296");
        if more == FULL && self.limited {
            return true;
        }
        let buffer = more.strip_prefix("ok ").expect(&more);
        assert_eq!(self.raw.ask(&format!("free {buffer}")), "ok", "{after}");
        false
    }
}

#[test]
fn stages_up_and_down_touch_none_of_fifty_programs() {
    let mut random = Random::new("stages with fifty programs");
    let station = station_with(|o| {
        o.gpus = vec!["h100".to_owned(); 4];
        o.tick = "0.1s".to_owned();
        o.config = "[claims]\nleftover-grace = \"1s\"\n".to_owned();
    });
    let claim = |n: u32| {
        let gpu = (n % 4).to_string();
        Raw::claim(&station, &["-q", "-g", "0.04", "--gpu-ids", &gpu])
    };
    let bare = |_| Through::new(Raw::outside(&station), false);
    said(&station, &["admin", "stage", "1"]);
    let mut all: Vec<Through> = (0..18).map(bare).collect();
    all.extend((0..16).map(|n| Through::new(claim(n), false)));
    said(&station, &["admin", "stage", "3"]);
    all.extend((0..16).map(|n| Through::new(claim(n), true)));
    let group = nix::unistd::Group::from_gid(nix::unistd::Gid::effective());
    let group = group.ok().flatten().map(|g| g.name);
    for _ in 0..10 {
        let stage = (1 + random.below(4)).to_string();
        let mut words = vec!["admin", "stage", &stage];
        match random.below(4) {
            0 => words.extend(["--gpus", "1,3"]),
            1 => words.extend(["--gpus", "0"]),
            2 => words.extend(group.iter().flat_map(|g| ["--group", g])),
            _ => {}
        }
        let dry = said(&station, &[&words[..], &["--dry-run"]].concat());
        has_all(&dry, &["no run would be treated differently"]);
        said(&station, &words);
        for program in &mut all {
            program.goes_on(&words.join(" "));
        }
    }
    // The lowest stage opens limits for good.
    said(&station, &["admin", "stage", "1"]);
    for mut program in all {
        program.limited = false;
        program.goes_on("stage 1 at last");
        assert_eq!(program.raw.finish(), Some(0));
    }
}

#[test]
fn in_stage_2_claims_have_limits_and_a_queue_and_nothing_is_taken() {
    let station = detach::station_that(IDLE_SOON, |_| ());
    said(&station, &["admin", "stage", "2"]);
    let told = said(&station, &["claim", "-g", "0.25", "--", "true"]);
    has_all(
        &told,
        &["does not protect it from programs without a claim"],
    );
    let flags = ["-q", "-g", "1", "--class", "interactive", "--gpu-ids"];
    let whole = |more: &[&str]| detach::holder(&station, &[&flags[..], more].concat());
    let (mut idle, sum) = whole(&["0"]);
    // The stage of a claim is that of the moment in which it gets its GPU.
    let (mut lazy, its_sum) = whole(&["1", "--lazy"]);
    let held = [&idle, &lazy].map(|raw| detach::on_gpus(&station, raw.pid()));
    let waits = tried(&station, &words("claim --wait 5s -g 1 --gpu-ids 0 -- true"));
    assert_eq!(waits.0, Some(75), "{}", waits.1);
    let now = |raw: &Raw| detach::on_gpus(&station, raw.pid());
    assert_eq!(now(&idle), held[0], "it idled, and others waited");
    assert_eq!(idle.ask("sum 0"), sum);
    // In stage 3 a later claim loses the same, and these never do.
    said(&station, &["admin", "stage", "3"]);
    std::thread::sleep(Duration::from_secs(4));
    assert_eq!([now(&idle), now(&lazy)], held);
    assert_eq!(lazy.ask("sum 0"), its_sum);
    assert_eq!([idle.finish(), lazy.finish()], [Some(0); 2]);
    let (mut later, sum) = whole(&["0"]);
    until("it is offloaded for idleness", SOON, || now(&later) == 0);
    // A lower stage restores it.
    said(&station, &["admin", "stage", "2"]);
    until("it is back", SOON, || now(&later) >= held[0]);
    assert_eq!(later.ask("sum 0"), sum);
    assert_eq!(later.finish(), Some(0));
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
            "part of the size of c1 of",
            "To create a claim for your program: gshare adopt",
        ],
        SOON,
    );
    let snapshot = seen().expect("served");
    let user = &claim_of(&snapshot, claim.pid()).expect("its claim").user;
    let user = format!(") of {user} has no claim and uses");
    until("the claim's owner is told", SOON, || {
        told(&user) && told("c1 might not get all of its")
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
    has_all(&told, &["gshare doctor --conformance"]);
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

    // The report of a complete run to the service.
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
    support::restart(&mut station, Signal::SIGKILL);
    assert_eq!(shown(&station), "stage 3 (reclaim)\n");
    let row = said(&station, &["doctor"]);
    has_all(&row, &["in 0 of 190 checks the driver differs"]);
    // Another driver has to pass by itself.
    let line = station.dir().join("state/conformance");
    let text = std::fs::read_to_string(&line).expect("the line");
    let mut json: serde_json::Value = serde_json::from_str(&text).expect("JSON");
    json["driver"] = "1.2".into();
    std::fs::write(&line, json.to_string()).expect("written");
    support::restart(&mut station, Signal::SIGKILL);
    assert_eq!(shown(&station), untried);
}

#[test]
fn a_stage_for_later_is_announced_survives_a_restart_and_is_cancelled_by_another_command() {
    let mut station = quick("");
    let (code, text) = tried(&station, &["admin", "stage", "2", "--from", "soon"]);
    assert_eq!(code, Some(64), "{text}");
    has_all(&text, &["such as \"Mon 08:00\""]);
    let order = ["admin", "stage", "2", "--from", "Mon 08:00"];
    let done = said(&station, &order);
    assert!(
        done.starts_with("stage 2 (opt-in) for every GPU and user from Mon "),
        "{done}"
    );
    let undo =
        "until then, setting the present stage again cancels this\nundo: gshare admin stage 3\n";
    assert!(done.ends_with(undo), "{done}");
    let waits =
        "stage 3 (reclaim), experimental; stage 2 (opt-in) for every GPU and user from Mon ";
    let shown = || said(&station, &["admin", "stage"]);
    assert!(shown().starts_with(waits), "{}", shown());
    let cancelled = said(&station, &["admin", "stage", "3"]);
    has_all(
        &cancelled,
        &["cancelled: stage 2 (opt-in) for every GPU and user from Mon "],
    );
    assert!(!cancelled.contains("undo:"), "{cancelled}");
    assert_eq!(shown(), "stage 3 (reclaim), experimental\n");
    let same = said(&station, &["admin", "stage", "3"]);
    assert!(
        same.ends_with("this stage is set already; nothing was changed\n"),
        "{same}"
    );

    said(&station, &order);
    support::restart(&mut station, Signal::SIGKILL);
    let status = said(&station, &["status"]);
    has_all(&status, &[waits]);
    // The time comes while the service is dead.
    station.stop_service(Signal::SIGKILL).expect("killed");
    let line = station.dir().join("state/stage");
    let text = std::fs::read_to_string(&line).expect("the line");
    let mut json: serde_json::Value = serde_json::from_str(&text).expect("JSON");
    json["later"]["from_ms"] = 1.into();
    std::fs::write(&line, json.to_string()).expect("written");
    station.start_service().expect("starts again");
    until("it is in force", SOON, || {
        said(&station, &["admin", "stage"]) == "stage 2 (opt-in)\n"
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
    let (code, text) = tried(&station, &["admin", "stage", "3"]);
    assert_eq!(code, Some(75), "{text}");
    has_all(&text, &["machine in [stage] in gshare.toml sets stage 2"]);
    let (code, text) = tried(&station, &["admin", "stage", "5"]);
    assert_eq!(code, Some(64), "{text}");

    let station = quick("[policy]\nunclaimed = \"observe\"\n");
    let (code, text) = tried(&station, &["admin", "stage", "4"]);
    assert_eq!(code, Some(75), "{text}");
    has_all(&text, &["contradicts stage 4"]);
    let (code, _) = tried(
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
    let mut bare = Raw::outside(&station);
    assert_eq!(bare.ask("alloc 1048576"), "ok 0");
    until("both are seen", SOON, || {
        let snapshot = station.snapshot().ok()?;
        let half = claim_of(&snapshot, above.pid())?.gpus.first()?.mem_used?;
        claim_of(&snapshot, bare.pid())?;
        (half >= 12 << 30).then_some(())
    });
    let idle = said(&station, &words("claim -q -g 0.1"));
    std::thread::sleep(Duration::from_millis(500));
    said(&station, &["release", idle.trim()]);
    assert_eq!([above.finish(), bare.finish()], [Some(0); 2]);
    all_ended(&station);
    let dry = |stage: &str| {
        let text = said(&station, &["admin", "stage", stage, "--dry-run"]);
        let (_, id) = text.split_once("\nplan ").expect(&text);
        let (id, _) = id.split_once("; nothing was changed").expect(&text);
        (text.clone(), id.to_owned())
    };
    let (text, plan) = dry("2");
    let user = me();
    let line = format!("  raw_client of {user}, 1 run: would have reached its memory limit\n");
    has_all(&text, &[&line]);
    let bare = format!("  a claim of {user} without a command, 1 run: would have had limits\n");
    has_all(&text, &[&bare]);
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
    all_ended(&station);
    let (code, text) = tried(&station, &["admin", "stage", "2", "--plan", &plan]);
    assert_eq!(code, Some(75), "{text}");
    has_all(&text, &["the plan is out of date"]);
    let plan = dry("2").1;
    said(&station, &["admin", "stage", "2", "--plan", &plan]);
    assert_eq!(said(&station, &["admin", "stage"]), "stage 2 (opt-in)\n");
    let (text, _) = dry("2");
    has_all(&text, &["no run would be treated differently"]);
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
    all_ended(&station);
    let user = me();
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
    has_all(&text, &[&limits]);

    said(&station, &["admin", "stage", "3"]);
    said(&station, &["claim", "-q", "-g", "0.5", "--", "true"]);
    all_ended(&station);
    let down = |stage: &str| said(&station, &["admin", "stage", stage, "--dry-run"]);
    let spared =
        format!("  true of {user}, 1 run: would not be offloaded, moved or suspended for others\n");
    assert!(down("2").contains(&spared), "{}", down("2"));
    let free = format!("  true of {user}, 1 run: would have no limits, and start at once\n");
    assert!(down("1").contains(&free), "{}", down("1"));
}

// `gshare admin off`: gshare stops acting at once, with its service or without, and `on` ends nothing.

const MORE: &str = "alloc 9663676416";

/// The kernel's answer when a program of a claim opens a GPU outside the claim.
fn opens_other(station: &Station, id: &str) -> String {
    let node = station.sim_dir().join("dev/nvidia1").display().to_string();
    let script = format!("(exec 3<{node}) 2>&1 | sed 's/.*: //'");
    said(station, &["join", "-q", id, "--", "sh", "-c", &script])
        .trim()
        .to_owned()
}

#[test]
fn off_lifts_limits_and_filters_says_so_everywhere_and_on_ends_nothing() {
    let mut station = quick("");
    let filtered = support::is_filtered(&station);
    let mut raw = quarter(&station, "0");
    assert_eq!(raw.ask(MORE), FULL);
    if filtered {
        assert_eq!(opens_other(&station, "c1"), DENIED);
    }
    let text = said(&station, &["admin", "off"]);
    has_all(&text, &["gshare is off until gshare admin on"]);
    assert!(text.ends_with("undo: gshare admin on\n"), "{text}");
    let (_, total) = raw.info();
    assert!(
        raw.ask(MORE).starts_with("ok"),
        "its limit is off; it is shown {total}"
    );
    if filtered {
        assert_eq!(opens_other(&station, "c1"), OPEN);
    }
    // Everybody is told, in every view and at every claim.
    let text = said(&station, &["status"]);
    assert!(text.starts_with("gshare is OFF"), "{text}");
    let json: serde_json::Value =
        serde_json::from_str(&said(&station, &["status", "--json"])).expect("JSON");
    assert!(
        json["service"]["off"]["since_ms"].is_u64(),
        "{}",
        json["service"]
    );
    let text = said(
        &station,
        &["claim", "-g", "0.1", "--gpu-ids", "1", "--", "true"],
    );
    has_all(&text, &["gshare is off"]);
    // Nothing is free for anybody while no room is kept.
    assert!(json["claimable_now"].is_null(), "{json}");
    assert_eq!(json["gpus"][0]["claimable"], 0.0, "{json}");
    let text = said(&station, &["claim", "-g", "0.1", "--dry-run"]);
    let wanted = "; gshare is off: nothing limits or protects this claim\n";
    assert!(
        text.starts_with("would start now on GPU ") && text.ends_with(wanted),
        "{text}"
    );
    for words in [&["ps"][..], &["queue"]] {
        let text = said(&station, words);
        assert!(text.starts_with("gshare is OFF"), "{text}");
    }
    for screen in ["overview", "queue"] {
        let words = ["top", "--once", "--screen", screen, "--size", "120x40"];
        let text = said(&station, &words);
        let promised = text.contains("┃free") || text.contains("free for you");
        assert!(text.contains("OFF") && !promised, "{text}");
    }
    // It survives a death of the service, and so do open filters and pages.
    support::restart(&mut station, Signal::SIGKILL);
    assert!(said(&station, &["status"]).starts_with("gshare is OFF"));
    assert!(raw.ask("alloc 1073741824").starts_with("ok"));
    if filtered {
        assert_eq!(opens_other(&station, "c1"), OPEN);
    }

    assert_eq!(raw.ask("launch 1"), "ok 1");
    let text = said(&station, &["admin", "on"]);
    has_all(
        &text,
        &["c1 is above its limit: it keeps what it has and gets no more"],
    );
    assert_eq!(raw.ask("alloc 67108864"), FULL, "it may not grow");
    assert_eq!(raw.ask("launch 1"), "ok 2", "and goes on");
    if filtered {
        assert_eq!(opens_other(&station, "c1"), DENIED);
    }
    assert!(!said(&station, &["status"]).contains("OFF"));
    let log = said(&station, &["admin", "log"]);
    has_all(&log, &["off", "on"]);
    assert_eq!(raw.finish(), Some(0));
}

#[test]
fn off_for_a_time_ends_by_itself_and_a_time_limit_that_is_over_meanwhile_ends_nothing() {
    let station = quick("");
    let line = station.dir().join("state/off");
    let told = || {
        let notices = station.snapshot().expect("served").notices;
        let texts = notices.into_iter().map(|n| n.text);
        texts
            .filter(|t| t.starts_with("gshare will be on again in"))
            .collect::<Vec<_>>()
    };
    let raw = quarter(&station, "0");
    said(&station, &["admin", "off", "--for", "20m"]);
    std::thread::sleep(Duration::from_millis(500));
    assert_eq!(told(), [""; 0]);
    // Time passes.
    let text = std::fs::read_to_string(&line).expect("there");
    let mut value: serde_json::Value = serde_json::from_str(&text).expect("JSON");
    let until_ms = value["until_ms"].as_u64().expect("a time");
    value["until_ms"] = (until_ms - 10 * 60_000).into();
    std::fs::write(&line, value.to_string()).expect("written");
    let texts = until("it is told", SOON, || {
        Some(told()).filter(|t| !t.is_empty())
    });
    std::thread::sleep(Duration::from_millis(500));
    assert_eq!(told(), texts, "once");
    let [text] = texts.as_slice() else {
        panic!("{texts:?}")
    };
    assert!(
        text.contains("in 9m") && text.ends_with("to keep it off: sudo gshare admin off"),
        "{text}"
    );
    let log = said(&station, &["log", "c1"]);
    has_all(&log, &["Then its limits apply again"]);
    assert!(
        said(&station, &["status"]).starts_with("gshare is OFF"),
        "and not before"
    );
    assert_eq!(raw.finish(), Some(0));
    let on = "gshare is on: limits, queue and filters apply again\nundo: gshare admin off\n";
    assert_eq!(said(&station, &["admin", "on"]), on);
    let already = "gshare is already on; nothing was changed\n";
    assert_eq!(said(&station, &["admin", "on"]), already);

    let mut raw = Raw::claim(
        &station,
        &["-q", "-g", "0.25", "--gpu-ids", "0", "-t", "5s"],
    );
    let text = said(&station, &["admin", "off", "--for", "8s"]);
    has_all(&text, &["gshare is off for 8s"]);
    until("it is on", SOON, || {
        !said(&station, &["status"]).contains("OFF")
    });
    assert_eq!(raw.ask("launch 1"), "ok 1");
    assert_eq!(raw.ask(MORE), FULL);
    std::thread::sleep(Duration::from_secs(1));
    assert_eq!(
        raw.ask("launch 1"),
        "ok 2",
        "its time limit was over while gshare was off"
    );
    assert_eq!(raw.finish(), Some(0));
}

#[test]
fn what_was_taken_comes_back_where_it_fits() {
    let station = detach::station_that("", |_| ());
    let (mut first, sum) = detach::holder(&station, &["-q", "-g", "0.25", "--gpu-ids", "0"]);
    let (mut second, other) = detach::holder(&station, &["-q", "-g", "0.25", "--gpu-ids", "1"]);
    let held = [&first, &second].map(|raw| detach::on_gpus(&station, raw.pid()));
    for (raw, how) in [(&first, "offload"), (&second, "suspend")] {
        let id = claim(&station, raw.pid()).id;
        ok(&station, &[how, &id]);
        assert_eq!(detach::on_gpus(&station, raw.pid()), 0, "{how}");
    }
    // The second has no room now.
    let mut full = Raw::claim(&station, &["-q", "-g", "1", "--gpu-ids", "1"]);
    let (free, _) = full.info();
    assert!(
        full.ask(&format!("alloc {}", free - (1 << 28)))
            .starts_with("ok")
    );
    let text = said(&station, &["admin", "off"]);
    has_all(&text, &["c2 is not on its GPU yet"]);
    until("the first is back without a call", SOON, || {
        detach::on_gpus(&station, first.pid()) == held[0]
    });
    assert_eq!(first.ask("sum 0"), sum);
    assert_eq!(detach::on_gpus(&station, second.pid()), 0, "it has no room");
    assert_eq!(full.finish(), Some(0));
    until("the second is back", SOON, || {
        detach::on_gpus(&station, second.pid()) == held[1]
    });
    assert_eq!(second.ask("sum 0"), other);
    said(&station, &["admin", "on"]);
    assert_eq!([first.finish(), second.finish()], [Some(0); 2]);
}

#[test]
fn waiting_claims_start_one_by_one_where_memory_is_free_and_stay_uncounted() {
    let station = quick("");
    // It has claimed all of the GPU, and uses a third.
    let mut holder = Raw::claim(&station, &["-q", "-g", "1", "--gpu-ids", "0"]);
    assert!(holder.ask("alloc 8589934592").starts_with("ok"));
    let waits = || {
        let words = ["claim", "-q", "--gpu-mem", "10G", "--gpu-ids", "0", "--"];
        let mut command = station.command();
        Raw::spawn(command.args(words).arg(support::example("raw_client")))
    };
    let queue = |of: usize| {
        until("so many wait", SOON, || {
            let queue = station.snapshot().ok()?.queue;
            (queue.len() == of).then_some(queue)
        })
    };
    let mut first = waits();
    queue(1);
    let mut second = waits();
    queue(2);
    let text = said(&station, &["admin", "off"]);
    has_all(
        &text,
        &["c3 waits; it starts when a GPU has enough free memory"],
    );
    assert_eq!(first.line(), "ok ready", "10 of 15 GiB");
    let left = queue(1);
    assert!(
        left[0]
            .reason
            .starts_with("gshare is off, so this claim starts"),
        "{left:?}"
    );
    // The first has allocated nothing yet, and the second waits anyway.
    std::thread::sleep(Duration::from_secs(1));
    assert_eq!(queue(1)[0].id, "c3");
    assert_eq!(holder.finish(), Some(0));
    assert_eq!(second.line(), "ok ready");
    assert!(first.ask("alloc 11811160064").starts_with("ok"), "11 GiB");

    said(&station, &["admin", "on"]);
    // Their rows and the GPU's say the same.
    let gpus = station.snapshot().expect("served").gpus;
    assert_eq!(gpus[0].mem_claimed, 20 << 30);
    let text = said(&station, &["env", "c2", "--json"]);
    has_all(&text, &["made while gshare was off"]);
    // What they claim keeps nobody out: what they use does.
    let beside = words("claim -q --nonblock --gpu-mem 10G --gpu-ids 0 -- true");
    let beside = run(&station, &beside);
    assert!(beside.status.success(), "{beside:?}");
    assert!(
        first.ask("alloc 134217728").starts_with("ok"),
        "until it ends"
    );
    // Their memory is offered to nobody.
    until("it is seen", SOON, || {
        let gpus = station.snapshot().ok()?.gpus;
        (gpus[0].mem_allocatable? < 13 << 30).then_some(())
    });
    let refused = run(
        &station,
        &words("claim --nonblock --gpu-mem 14G --gpu-ids 0 -- true"),
    );
    assert_eq!(refused.status.code(), Some(75), "{refused:?}");
    assert_eq!([first.finish(), second.finish()], [Some(0); 2]);
    let granted = || {
        run(
            &station,
            &words("claim -q --nonblock -g 1 --gpu-ids 0 -- true"),
        )
    };
    until("all is free again", SOON, || granted().status.success());
}

/// State of the service when an administrator switches gshare off.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Service {
    Serves,
    Hangs,
    Dead,
    CannotStart,
}

/// Whether the pages of all claims let everybody launch.
fn no_turns(station: &Station) -> bool {
    let pages = std::fs::read_dir(station.dir().join("run/claims")).expect("pages");
    let pages = pages
        .flatten()
        .filter(|e| e.path().extension().is_some_and(|e| e == "limits"));
    let pages: Vec<LimitsFile> = pages
        .filter_map(|e| LimitsFile::open(&e.path()).ok())
        .collect();
    assert!(!pages.is_empty());
    pages
        .iter()
        .all(|page| Word(page.turn_word()).mode() == Mode::Free)
}

#[test]
fn off_at_twenty_random_moments_opens_all_to_fifty_programs_and_on_puts_it_back() {
    root!("off at twenty random moments");
    let mut random = Random::new("off at twenty random moments");
    let mut station = station_with(|o| {
        o.gpus = vec!["h100".to_owned(); 4];
        o.tick = "0.1s".to_owned();
        o.costs = "spin_1ms 1000000ns\n".to_owned();
        o.config = "[claims]\nleftover-grace = \"1s\"\n".to_owned();
    });
    let filtered = support::is_filtered(&station);
    let config = station.dir().join("gshare.toml").display().to_string();
    let journal = station.dir().join("state/gshare.db");
    let claim = |size: &str, gpu: &str| Raw::claim(&station, &["-q", "-g", size, "--gpu-ids", gpu]);
    let mut raw = claim("0.1", "0");
    let in_claims = (0..30).map(|n| Through::new(claim("0.02", ["1", "2", "3"][n % 3]), true));
    let mut all: Vec<Through> = in_claims.collect();
    all.extend((0..16).map(|_| Through::new(Raw::outside(&station), false)));
    let floods = [(); 2].map(|()| Flood::claim(&station, "0.25 --gpu-ids 0"));
    let node = station.sim_dir().join("dev/nvidia1").display().to_string();
    let opens = format!("(exec 3<{node}) 2>&1 | sed 's/.*: //'");
    let mut shell = station.command();
    shell.args(["claim", "-q", "-g", "0.1", "--gpu-ids", "0", "--", "sh"]);
    let mut shell = Raw::spawn(&mut shell);
    let held = |raw: &mut Raw, shell: &mut Raw, station: &Station| {
        until("turns are taken", SOON, || !no_turns(station));
        assert_eq!(raw.ask(MORE), FULL);
        assert!(!filtered || shell.ask(&opens) == DENIED);
    };
    held(&mut raw, &mut shell, &station);

    let kinds = [
        Service::Serves,
        Service::Hangs,
        Service::Dead,
        Service::CannotStart,
    ];
    for moment in 0..20 {
        let kind = kinds[random.below(4) as usize];
        // Claims come and go meanwhile, so that a moment may be in the middle of anything.
        let mut others = [(); 3].map(|()| {
            let mut command = station.command();
            command.args("claim -q -g 0.1 --gpu-ids 1 --nonblock -- true".split(' '));
            command.env("GSHARE_RECONNECT", "0s");
            command.stderr(Stdio::null()).spawn().expect("gshare runs")
        });
        std::thread::sleep(Duration::from_millis(random.below(60)));
        let pid = Pid::from_raw(station.service_pid().expect("it runs").cast_signed());
        let kept = journal.with_extension("kept");
        match kind {
            Service::Serves => {}
            Service::Hangs => nix::sys::signal::kill(pid, Signal::SIGSTOP).expect("stopped"),
            Service::Dead | Service::CannotStart => {
                station.stop_service(Signal::SIGKILL).expect("killed");
            }
        }
        if kind == Service::CannotStart {
            std::fs::rename(&journal, &kept).expect("moved");
            std::fs::create_dir(&journal).expect("made");
            assert!(station.start_service().is_err());
        }
        let busy = floods.each_ref().map(|f| f.busy(&station));
        let begun = Instant::now();
        let text = said(&station, &["admin", "off", "--config", &config]);
        let answers = kind == Service::Serves;
        assert!(answers || text.contains("No service answers"), "{text}");
        let answer = raw.ask(MORE);
        assert!(answer.starts_with("ok"), "{moment}, {kind:?}: {answer}");
        assert!(!filtered || shell.ask(&opens) == OPEN, "{moment}, {kind:?}");
        assert!(no_turns(&station), "{moment}, {kind:?}");
        let took = begun.elapsed();
        println!("{moment}: {kind:?} {took:?}");
        assert!(
            took < Duration::from_secs(1),
            "{moment}, {kind:?}: {took:?}"
        );
        until("both go on", SOON, || {
            let now = floods.each_ref().map(|f| f.busy(&station));
            now[0] > busy[0] && now[1] > busy[1]
        });
        for program in &mut all {
            assert!(!program.goes_on("off"), "{moment}, {kind:?}");
        }

        match kind {
            Service::Serves => {}
            Service::Hangs => nix::sys::signal::kill(pid, Signal::SIGCONT).expect("goes on"),
            // Without a service `on` applies from its next start.
            Service::Dead => {
                said(&station, &["admin", "on", "--config", &config]);
                station.start_service().expect("starts again");
                assert!(!said(&station, &["status"]).contains("OFF"));
            }
            Service::CannotStart => {
                std::fs::remove_dir(&journal).expect("removed");
                std::fs::rename(&kept, &journal).expect("moved back");
                station.start_service().expect("starts again");
            }
        }
        if kind != Service::Dead {
            until("the service follows", SOON, || {
                said(&station, &["status"]).starts_with("gshare is OFF")
            });
            said(&station, &["admin", "on"]);
        }
        assert_eq!(raw.ask(&answer.replace("ok", "free")), "ok");
        held(&mut raw, &mut shell, &station);
        for program in &mut all {
            assert_eq!(program.goes_on("on"), program.limited, "{moment}, {kind:?}");
        }
        for other in &mut others {
            other.wait().expect("ends");
        }
    }
    for program in all {
        assert_eq!(program.raw.finish(), Some(0));
    }
    for mut flood in floods {
        assert!(
            flood.0.try_wait().expect("known").is_none(),
            "nothing is ended"
        );
    }
    assert_eq!(raw.finish(), Some(0));
}

// Stage 1 beside the programs of eight users, a container and a notebook: traces of gshare in them, its cost, and
// whether its hours equal the board's.

const WINDOW: Duration = Duration::from_secs(60);

const GPUS: usize = 4;

/// Ends with the test.
struct Runs(Vec<Child>);

impl Drop for Runs {
    fn drop(&mut self) {
        for child in &mut self.0 {
            let _ = child.kill();
            let _ = child.wait();
        }
    }
}

/// Processor time of a process so far.
fn processor_s(pid: u32) -> f64 {
    let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).expect("it lives");
    let fields: Vec<&str> = stat
        .rsplit_once(')')
        .expect("a name")
        .1
        .split(' ')
        .collect();
    let ticks = |n: usize| fields[n].parse::<f64>().expect("a number");
    (ticks(12) + ticks(13)) / 100.0
}

#[test]
fn in_stage_1_gpu_hours_by_user_are_the_boards_and_the_service_needs_little() {
    root!("in_stage_1_gpu_hours_by_user_are_the_boards_and_the_service_needs_little");
    let users = Users::some(8);
    let station = station_with(|o| o.costs = "train_step 4ms\n".to_owned());
    let set = station.command().args(["admin", "stage", "1"]).output();
    assert!(set.expect("gshare runs").status.success());
    let program = station.dir().join("bin/jobs");
    std::fs::create_dir_all(program.parent().expect("a parent")).expect("made");
    support::copy_program(GSHARE, &program);
    let start = |n: usize| {
        let job = Job::Steady {
            kernel: "train_step".to_owned(),
            grid: 66,
            block: 256,
            mib: 256 << (n % 3),
            pause_ms: 4 + 2 * n as u64,
        };
        let mut command = station.client_environment(Command::new(&program));
        command
            .args(job.arguments())
            .env("LD_LIBRARY_PATH", station.sim_dir().join("lib"));
        command
            .env("CUDA_VISIBLE_DEVICES", (n % GPUS).to_string())
            .stdout(Stdio::null());
        as_user(command, users.uid(n)).spawn().expect("starts")
    };
    let runs = Runs((0..8).map(start).collect());
    until("all are counted", SOON, || {
        let claims = station.snapshot().ok()?.claims;
        (claims.iter().filter(|c| c.adopted).count() == 8).then_some(())
    });
    let board = Board::open(&station.sim_dir().join("board")).expect("the board opens");
    // Seconds with a kernel of each program, and of each GPU.
    let truth = || {
        let gpus = board.snapshot().gpus;
        let of = |child: &Child| -> f64 {
            let processes = gpus.iter().flat_map(|g| &g.processes);
            let own = processes.filter(|p| p.pid == child.id());
            own.map(|p| p.busy_ns as f64 / 1e9).sum()
        };
        let programs: Vec<f64> = runs.0.iter().map(of).collect();
        let gpus: Vec<f64> = gpus.iter().map(|g| g.busy_ns as f64 / 1e9).collect();
        (programs, gpus)
    };
    let told = || {
        let report = history::ask(&station).expect("served");
        let user = |n| report.users.iter().find(|u| u.uid == users.uid(n));
        let busy = |n| user(n).and_then(|u| u.usage.busy_gpu_s).unwrap_or(0.0);
        let gpu = |n: u32| report.gpus.iter().find(|g| g.gpu == Some(n));
        let gpu = |n| gpu(n).and_then(|g| g.usage.busy_gpu_s).unwrap_or(0.0);
        let gpus: Vec<f64> = (0..GPUS as u32).map(gpu).collect();
        ((0..8).map(busy).collect::<Vec<f64>>(), gpus)
    };
    let service = station.service_pid().expect("it runs");
    let (at, used) = (Instant::now(), processor_s(service));
    let (before, told_before) = (truth(), told());
    std::thread::sleep(WINDOW);
    let part = (processor_s(service) - used) / at.elapsed().as_secs_f64();
    let (after, told_after) = (truth(), told());
    let span = at.elapsed().as_secs_f64();
    println!("the service: {:.2} % of a core", part * 100.0);
    for n in 0..8 {
        let truth = after.0[n] - before.0[n];
        let told = told_after.0[n] - told_before.0[n];
        println!("user {n}: {told:.2} s, by the board {truth:.2} s");
        assert!(
            (told - truth).abs() <= 0.03 * truth,
            "user {n}: {told} for {truth}"
        );
    }
    for n in 0..GPUS {
        let idle = |busy: f64| 100.0 * (1.0 - busy / span);
        let truth = idle(after.1[n] - before.1[n]);
        let told = idle(told_after.1[n] - told_before.1[n]);
        println!("GPU {n}: idle {told:.1} %, by the board {truth:.1} %");
        assert!((told - truth).abs() <= 5.0, "GPU {n}: {told} for {truth}");
    }
    // The bound is for an installed program; this one may not be optimised.
    let most = if cfg!(unoptimized) { 0.015 } else { 0.005 };
    assert!(part <= most, "{part}");
}

/// A line without numbers and addresses.
fn plain(line: &str) -> String {
    let mut out = String::new();
    for word in line.split_inclusive(|c: char| !c.is_ascii_alphanumeric()) {
        let is_number = word.starts_with(|c: char| c.is_ascii_digit());
        out.push_str(if is_number { "# " } else { word });
    }
    out
}

/// State of a living process: environment, cgroups, mounts, libraries, descriptors, signals, capabilities, limits,
/// namespaces.
fn has(pid: u32) -> BTreeSet<String> {
    let dir = format!("/proc/{pid}");
    let read = |file: &str| {
        let bytes =
            std::fs::read(format!("{dir}/{file}")).unwrap_or_else(|e| panic!("{file}: {e}"));
        String::from_utf8_lossy(&bytes).replace('\0', "\n")
    };
    let mut all = BTreeSet::new();
    for file in ["environ", "cgroup", "mountinfo", "limits", "oom_score_adj"] {
        all.extend(
            read(file)
                .lines()
                .map(|line| format!("{file}: {}", plain(line))),
        );
    }
    let maps = read("maps");
    let paths = maps
        .lines()
        .filter_map(|line| line.find('/').map(|at| &line[at..]));
    all.extend(paths.map(|path| format!("maps: {path}")));
    // Without SigQ, which counts signals of all programs of the user.
    let signs = [
        "SigP", "SigB", "SigI", "SigC", "Shd", "Cap", "NoNew", "Seccomp", "Uid", "Gid", "Groups",
    ];
    let status = read("status");
    let signs = status
        .lines()
        .filter(|l| signs.iter().any(|s| l.starts_with(s)));
    all.extend(signs.map(|line| format!("status: {line}")));
    for links in ["fd", "ns"] {
        for link in std::fs::read_dir(format!("{dir}/{links}"))
            .expect("listed")
            .flatten()
        {
            let to = std::fs::read_link(link.path()).unwrap_or_default();
            all.insert(format!("{links}: {}", plain(&to.display().to_string())));
        }
    }
    all
}

/// The newest child of a process with this word in its command line.
fn child(of: u32, word: &str) -> u32 {
    until(&format!("{word} runs"), SOON, || {
        let list = std::fs::read_to_string(format!("/proc/{of}/task/{of}/children")).ok()?;
        let mut pids = list
            .split_whitespace()
            .filter_map(|pid| pid.parse::<u32>().ok());
        pids.find(|pid| {
            let words = std::fs::read(format!("/proc/{pid}/cmdline")).unwrap_or_default();
            String::from_utf8_lossy(&words).contains(word)
        })
    })
}

/// State and calls of the programs of eight users, each by itself.
fn users_programs(station: &Station, users: &Users, is_served: bool) -> Vec<BTreeSet<String>> {
    let client = reachable(station);
    let logs = tempfile::tempdir().expect("a directory");
    // A file for each thread: in one, calls would interrupt each other.
    let log = |n: usize| logs.path().join(n.to_string());
    (0..8).for_each(|n| std::fs::create_dir(log(n)).expect("made"));
    let start = |n: usize| {
        let mut command = Command::new("strace");
        command
            .args(["-ff", "-qq", "-s", "300", "-u", users.name(n), "-o"])
            .arg(log(n).join("calls"));
        command
            .args(["-e", "trace=%file,%network,%signal,%process", "--"])
            .arg(&client);
        command.env_clear().current_dir("/");
        command.env("LD_LIBRARY_PATH", station.sim_dir().join("lib"));
        Raw::start(command)
    };
    let mut raws: Vec<Raw> = (0..8).map(start).collect();
    for raw in &mut raws {
        assert_eq!(raw.ask("alloc 1048576"), "ok 0");
    }
    if is_served {
        until("all are counted", SOON, || {
            let claims = station.snapshot().ok()?.claims;
            (claims.iter().filter(|c| c.adopted).count() == 8).then_some(())
        });
    }
    for raw in &mut raws {
        assert_eq!(raw.ask("launch 3"), "ok 3");
    }
    let mut found: Vec<BTreeSet<String>> = raws
        .iter()
        .map(|raw| has(child(raw.pid(), "raw_client")))
        .collect();
    for (n, raw) in raws.into_iter().enumerate() {
        assert_eq!(raw.finish(), Some(0));
        for file in std::fs::read_dir(log(n)).expect("listed").flatten() {
            let calls = std::fs::read_to_string(file.path()).expect("written");
            found[n].extend(calls.lines().map(|line| format!("call: {}", plain(line))));
        }
    }
    found
}

/// State of a kernel without a kernelspec after a cell that used the GPU.
fn kernel(station: &Station, bin: &std::path::Path, home: &std::path::Path) -> BTreeSet<String> {
    let mut command = Command::new(bin.join("python"));
    command.args(["-c", BARE, ADD]).current_dir(home);
    command
        .env_clear()
        .env("HOME", home)
        .env("LD_LIBRARY_PATH", station.sim_dir().join("lib"));
    let mut raw = Raw::spawn(&mut command);
    assert_eq!([raw.line(), raw.line()], [ADDED, "ok"]);
    std::thread::sleep(Duration::from_secs(2));
    let found = has(child(raw.pid(), "ipykernel_launcher"));
    raw.tell("");
    raw.finish();
    found
}

/// State of an existing container.
fn contained(name: &str) -> BTreeSet<String> {
    let mut start = Command::new("podman");
    start.args(["start", "--attach", "--interactive", name]);
    let mut raw = Raw::start(start);
    assert_eq!(raw.ask("alloc 1048576"), "ok 0");
    std::thread::sleep(Duration::from_secs(2));
    let pid = podman(&["inspect", "--format", "{{.State.Pid}}", name]).stdout;
    let pid = String::from_utf8_lossy(&pid).trim().parse().expect("a pid");
    let found = has(pid);
    assert_eq!(raw.finish(), Some(0));
    found
}

#[test]
fn in_stage_1_programs_have_and_call_what_they_do_on_a_machine_without_gshare() {
    root!("in_stage_1_programs_have_and_call_what_they_do_on_a_machine_without_gshare");
    let users = Users::some(8);
    let mut station = station_with(|_| ());
    let set = station.command().args(["admin", "stage", "1"]).output();
    assert!(set.expect("gshare runs").status.success());
    let (image, bin) = (
        Image::make("observed"),
        python::bin("a notebook in stage 1"),
    );
    let (container, home) = (name("observed"), tempfile::tempdir().expect("a directory"));
    let all = all_gpus(&station);
    if let Some(image) = &image {
        let mut words = podman_run(&container, image, &all.each_ref().map(String::as_str));
        words.retain(|word| *word != "--rm");
        words.push("/raw_client");
        made("cgroupfs", &words, |create| create);
    }
    let seen = |station: &mut Station, is_served: bool| {
        let mut all = users_programs(station, &users, is_served);
        all.extend(image.iter().map(|_| contained(&container)));
        all.extend(bin.iter().map(|bin| kernel(station, bin, home.path())));
        if is_served {
            station.stop_service(Signal::SIGKILL).expect("killed");
        }
        all
    };
    // Once for what a first run leaves: in the home of a notebook, and in the mount options of a container's overlay.
    image.iter().for_each(|_| drop(contained(&container)));
    bin.iter()
        .for_each(|bin| drop(kernel(&station, bin, home.path())));
    let (with, without) = (seen(&mut station, true), seen(&mut station, false));
    podman(&["rm", "-f", &container]);
    assert!(
        with.len() >= 8 && with.iter().all(|found| found.len() > 50),
        "{with:?}"
    );
    let programs = with.iter().zip(&without).enumerate();
    let differ = programs.flat_map(|(n, (with, without))| {
        let more = with.symmetric_difference(without);
        more.map(move |line| format!("program {n}: {line}"))
    });
    let differ: Vec<String> = differ.collect();
    assert!(differ.is_empty(), "{differ:#?}");
}
