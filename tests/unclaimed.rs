//! GPU processes outside claims: shown, accounted to their owners, or kept from the GPUs.

use crate::support;

use std::process::Command;
use std::time::Duration;

use gshare::station::Station;
use gshare_proto::{Caps, ClaimView};
use nix::sys::signal::Signal;
use support::{Raw, board, board_bytes, claim_of, example, root, station_with, until};

const MIB: u64 = 1 << 20;
const SOON: Duration = Duration::from_secs(5);

fn station(policy: &str) -> Station {
    station_with(|o| {
        o.tick = "0.1s".to_owned();
        o.config = format!("[claims]\nleftover-grace = \"1s\"\n[policy]\n{policy}");
    })
}

/// A program that knows nothing of gshare, as somebody starts it on a real machine.
fn outside(station: &Station) -> Raw {
    let mut command = Command::new(example("raw_client"));
    command.env("LD_LIBRARY_PATH", station.sim_dir().join("lib"));
    Raw::start(command)
}

fn auto(station: &Station, pid: u32) -> Option<ClaimView> {
    let snapshot = station.snapshot().ok()?;
    claim_of(&snapshot, pid).filter(|c| c.adopted).cloned()
}

fn gshare(station: &Station, words: &[&str]) -> (Option<i32>, String) {
    let output = station.command().args(words).output().expect("runs");
    let mut text = String::from_utf8_lossy(&output.stdout).into_owned();
    text.push_str(&String::from_utf8_lossy(&output.stderr));
    (output.status.code(), text)
}

#[test]
fn what_runs_outside_claims_is_its_owners_claim_without_a_cap() {
    let station = station("");
    let mut program = outside(&station);
    assert_eq!(program.ask(&format!("alloc {}", 4096 * MIB)), "ok 0");
    let pid = program.pid();
    let truth = board_bytes(&board(&station).snapshot(), 0, &[pid]);
    let claim = until("it is counted", SOON, || {
        auto(&station, pid).filter(|c| c.gpus[0].mem_used == Some(truth))
    });
    assert_eq!(
        (claim.caps, claim.state_text.as_str()),
        (Caps::None, "no cap")
    );
    assert_eq!(claim.uid, nix::unistd::Uid::effective().as_raw());
    assert_eq!(
        (
            claim.gpus.len(),
            claim.gpus[0].mem_request,
            claim.gpus[0].sm_request
        ),
        (1, truth, 0.0)
    );
    let snapshot = station.snapshot().expect("served");
    assert!(snapshot.unclaimed.is_empty());
    let user = snapshot
        .users
        .iter()
        .find(|u| u.uid == claim.uid)
        .expect("listed");
    assert_eq!((user.claims, user.mem_used), (0, Some(truth)));
    let (code, list) = gshare(&station, &["ps"]);
    let row = list
        .lines()
        .find(|l| l.starts_with(&claim.id))
        .expect("listed");
    assert!(
        code == Some(0) && row.contains("no cap") && row.contains("4."),
        "{list}"
    );

    // The waiting user is told which programs are in the way.
    let (code, why) = gshare(
        &station,
        &[
            "claim",
            "--nonblock",
            "-g",
            "1",
            "--gpu-mem",
            "22G",
            "--gpu-ids",
            "0",
            "--",
            "true",
        ],
    );
    assert!(
        code == Some(75)
            && why.contains(&format!("held by {} (", claim.id))
            && why.contains("no cap)"),
        "{why}"
    );

    // It cannot be given back by a word: it ends with the process, at once.
    let (code, why) = gshare(&station, &["release", &claim.id]);
    assert_eq!(code, Some(75), "{why}");
    assert!(
        why.contains(&format!("process {pid}")) && why.contains("gshare adopt"),
        "{why}"
    );
    assert_eq!(program.finish(), Some(0));
    until("the claim is gone", SOON, || {
        station.snapshot().ok()?.claims.is_empty().then_some(())
    });
}

#[test]
fn an_auto_claim_keeps_its_number_over_a_restart_and_ends_when_its_process_joins() {
    let mut station = station("");
    let program = outside(&station);
    let pid = program.pid();
    let first = until("it is counted", SOON, || auto(&station, pid));
    station.stop_service(Signal::SIGKILL).expect("killed");
    station.start_service().expect("starts again");
    let again = until("it is counted again", SOON, || auto(&station, pid));
    assert_eq!(
        (again.id, again.since_ms),
        (first.id.clone(), first.since_ms)
    );
    // One that ended while no service looked is over.
    station.stop_service(Signal::SIGKILL).expect("killed");
    assert_eq!(program.finish(), Some(0));
    station.start_service().expect("starts again");
    assert_eq!(station.snapshot().expect("served").claims, []);
    let next = outside(&station);
    let claim = until("the next is counted", SOON, || auto(&station, next.pid()));
    assert_ne!(claim.id, first.id, "a number is never given twice");
}

#[test]
fn observe_only_shows() {
    let station = station("unclaimed = \"observe\"\n");
    let program = outside(&station);
    let snapshot = until("it is shown", SOON, || {
        let snapshot = station.snapshot().ok()?;
        (snapshot.unclaimed.len() == 1).then_some(snapshot)
    });
    assert_eq!(snapshot.unclaimed[0].pid, program.pid());
    assert_eq!(snapshot.claims, []);
}

#[test]
fn the_services_own_measurement_is_nobodys_use() {
    let station = station("");
    until("a context was measured", Duration::from_secs(20), || {
        let snapshot = station.snapshot().ok()?;
        assert!(
            snapshot.claims.is_empty() && snapshot.notices.is_empty(),
            "{snapshot:?}"
        );
        let log = std::fs::read_to_string(station.log_path()).ok()?;
        (log.matches("a CUDA context on GPU").count() >= 2).then_some(())
    });
}

#[test]
fn a_running_process_becomes_a_claim_and_is_told_what_that_means() {
    let station = station("");
    let mut program = outside(&station);
    assert_eq!(program.ask(&format!("alloc {}", 4096 * MIB)), "ok 0");
    let pid = program.pid();
    let truth = board_bytes(&board(&station).snapshot(), 0, &[pid]);
    let auto = until("it is counted", SOON, || {
        auto(&station, pid).filter(|c| c.gpus[0].mem_used == Some(truth))
    });
    // The rest of the GPU is another's: what it has already needs no room.
    let rest = station.snapshot().expect("served").gpus[0]
        .mem_allocatable
        .expect("known");
    let neighbour = Raw::claim(
        &station,
        &[
            "-q",
            "-g",
            "0.5",
            "--gpu-mem",
            &format!("{}M", rest >> 20),
            "--gpu-ids",
            "0",
        ],
    );
    let (code, text) = gshare(&station, &["adopt", &pid.to_string(), "--gpu-mem", "1G"]);
    assert!(
        code == Some(64) && text.contains("more than is claimed for it"),
        "{text}"
    );
    let (code, text) = gshare(&station, &["adopt", &pid.to_string(), "--name", "mine"]);
    assert_eq!(code, Some(0), "{text}");
    for part in [
        "has a claim now",
        "counted:",
        "limit: none while it runs. To limit it, start it again in a claim",
        "what it starts belongs to",
    ] {
        assert!(text.contains(part), "{text}");
    }
    let snapshot = station.snapshot().expect("served");
    let claim = claim_of(&snapshot, pid).expect("listed");
    assert!(!claim.adopted && claim.id != auto.id && claim.name.as_deref() == Some("mine"));
    assert_eq!(claim.state_text, "no cap yet");
    let held = truth.next_multiple_of(2 * MIB);
    assert_eq!(
        (claim.gpus[0].mem_request, claim.gpus[0].mem_charge),
        (held, None)
    );
    assert_eq!(snapshot.claims.len(), 2, "its auto-claim is over");
    assert_eq!(snapshot.gpus[0].mem_unclaimed, Some(0));
    let (code, text) = gshare(&station, &["adopt", &pid.to_string()]);
    assert!(code == Some(64) && text.contains("already"), "{text}");
    // It works on with what it has, and what it takes beyond its claim is over-use.
    assert!(program.ask("launch 3").starts_with("ok"));
    assert_eq!(neighbour.finish(), Some(0));
    assert_eq!(program.ask(&format!("alloc {}", 1024 * MIB)), "ok 1");
    let claim = until("it is accused", SOON, || {
        let snapshot = station.snapshot().ok()?;
        claim_of(&snapshot, pid)
            .filter(|c| c.overuse.is_some())
            .cloned()
    });
    assert!(
        claim.state_text.starts_with("over-use: 51"),
        "half a gibibyte is tolerated: {}",
        claim.state_text
    );
    assert_eq!(program.finish(), Some(0));
    until("it ends with its process", SOON, || {
        station.snapshot().ok()?.claims.is_empty().then_some(())
    });
}

#[test]
fn a_process_on_a_gpu_that_others_have_in_full_is_adopted_and_over_its_limit() {
    let station = station("");
    // All of its memory and SMs, and all of its SMs.
    for size in [&["-g", "1"][..], &["-g", "1", "--gpu-mem", "2G"]] {
        let neighbour = Raw::claim(&station, &[&["-q", "--gpu-ids", "0"], size].concat());
        let mut program = outside(&station);
        assert_eq!(program.ask(&format!("alloc {}", 4096 * MIB)), "ok 0");
        let pid = program.pid();
        until("it is counted", SOON, || auto(&station, pid));
        let (code, text) = gshare(&station, &["adopt", &pid.to_string()]);
        assert!(
            code == Some(0) && text.contains("is over its limit: other claims have all of GPU 0"),
            "{text}"
        );
        let view = || {
            let snapshot = station.snapshot().expect("served");
            let claim = claim_of(&snapshot, pid).expect("listed");
            (claim.id.clone(), claim.state_text.clone())
        };
        let (id, state) = view();
        assert_eq!(state, "over its limit");
        let (_, list) = gshare(&station, &["ps"]);
        let row = list.lines().find(|l| l.starts_with(&format!("{id} ")));
        assert!(
            row.is_some_and(|row| row.contains("over its limit")),
            "{list}"
        );
        let (_, why) = gshare(&station, &["why", &id]);
        assert!(
            why.contains("keeps what it has there and is guaranteed nothing"),
            "{why}"
        );
        assert!(program.ask("launch 1").starts_with("ok"));
        assert_eq!(neighbour.finish(), Some(0));
        until("there is room for it", SOON, || {
            (view().1 == "no cap yet").then_some(())
        });
        assert_eq!(program.finish(), Some(0));
        until("it ends with its process", SOON, || {
            station.snapshot().ok()?.claims.is_empty().then_some(())
        });
    }
}

#[test]
fn an_adopted_process_opens_no_other_gpu_and_neither_does_what_it_starts() {
    if !root("an_adopted_process_opens_no_other_gpu_and_neither_does_what_it_starts") {
        return;
    }
    for strict in [false, true] {
        let station = station_with(|o| {
            o.tick = "0.1s".to_owned();
            o.strict = strict;
        });
        adopts_and_restricts(&station);
    }
}

fn adopts_and_restricts(station: &Station) {
    let script = "exec 4<$0/null; sleep 600 & while read n; do (exec 3<$0/nvidia$n) 2>&1 | sed 's/.*: //'; done";
    let dev = station.sim_dir().join("dev");
    std::os::unix::fs::symlink("/dev/null", dev.join("null")).expect("linked");
    let mut command = Command::new("sh");
    command.args(["-c", script]).arg(&dev);
    let mut shell = Raw::spawn(&mut command);
    assert_eq!(shell.ask("1"), "No such device or address");
    let pid = shell.pid().to_string();
    let (code, text) = gshare(station, &["adopt", &pid]);
    assert!(
        code == Some(64) && text.contains("does not use a GPU yet"),
        "{text}"
    );
    let (code, text) = gshare(station, &["adopt", &pid, "-g", "0.25", "--json"]);
    assert_eq!(code, Some(0), "{text}");
    let snapshot = station.snapshot().expect("served");
    let claim = claim_of(&snapshot, shell.pid()).expect("listed");
    let gpu = claim.gpus[0].gpu;
    assert_eq!(claim.members.len(), 2, "its child is moved too");
    for other in 0..4 {
        let wanted = if other == gpu {
            "No such device or address"
        } else {
            "Operation not permitted"
        };
        assert_eq!(shell.ask(&other.to_string()), wanted);
    }
    let (code, text) = gshare(station, &["release", &claim.id]);
    assert_eq!(code, Some(0), "{text}");
    assert_eq!(shell.ask(&gpu.to_string()), "Operation not permitted");
    shell.kill();
}

#[test]
fn only_its_owner_and_root_make_a_process_a_claim() {
    if !root("only_its_owner_and_root_make_a_process_a_claim") {
        return;
    }
    let station = station("");
    let as_user = |uid: u32, words: &[&str]| {
        use std::os::unix::process::CommandExt;
        let mut command = station.command();
        command.args(words).uid(uid).gid(uid);
        let output = command.output().expect("runs");
        let mut text = String::from_utf8_lossy(&output.stdout).into_owned();
        text.push_str(&String::from_utf8_lossy(&output.stderr));
        (output.status.code(), text)
    };
    let sleeper = |uid: u32| {
        use std::os::unix::process::CommandExt;
        Command::new("sleep")
            .arg("600")
            .uid(uid)
            .gid(uid)
            .spawn()
            .expect("starts")
    };
    let (ada, bob) = (61_301, 61_302);
    let (mut own, mut other) = (sleeper(ada), sleeper(bob));
    let (mine, theirs) = (own.id().to_string(), other.id().to_string());
    let (code, text) = as_user(ada, &["adopt", &theirs, "-g", "0.1"]);
    assert!(
        code == Some(77) && text.contains("belongs to 61302"),
        "{text}"
    );
    let (code, text) = as_user(ada, &["adopt", &mine, "-g", "0.1"]);
    assert_eq!(code, Some(0), "{text}");
    let (code, text) = as_user(0, &["adopt", &theirs, "-g", "0.1"]);
    assert_eq!(code, Some(0), "{text}");
    let snapshot = station.snapshot().expect("served");
    let mut owners: Vec<u32> = snapshot.claims.iter().map(|c| c.uid).collect();
    owners.sort_unstable();
    assert_eq!(owners, [ada, bob], "a claim is its owner's, whoever asked");
    let (code, text) = as_user(ada, &["adopt", "999999999"]);
    assert!(
        code == Some(75) && text.contains("there is no process"),
        "{text}"
    );
    for child in [&mut own, &mut other] {
        child.kill().expect("killed");
        child.wait().expect("reaped");
    }
    until("both claims are over", SOON, || {
        station.snapshot().ok()?.claims.is_empty().then_some(())
    });
}
