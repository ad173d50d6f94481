//! GPU processes outside claims: shown, accounted to their owners, or kept from the GPUs.

mod support;

use std::process::Command;
use std::time::Duration;

use gshare::station::Station;
use gshare_proto::{Caps, ClaimView};
use nix::sys::signal::Signal;
use support::{Raw, board, board_bytes, claim_of, example, station_with, until};

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
    assert_eq!((user.claims, user.mem_used), (1, Some(truth)));
    let (code, list) = gshare(&station, &["ps"]);
    let row = list
        .lines()
        .find(|l| l.starts_with(&claim.id))
        .expect("listed");
    assert!(
        code == Some(0) && row.contains("no cap") && row.contains("4."),
        "{list}"
    );

    // Who waits is told who stands in his way.
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
        (log.matches("a context on GPU").count() >= 2).then_some(())
    });
}
