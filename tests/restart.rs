//! The service dies at any moment: members run on under their caps, and a restarted service finds every claim
//! again, once.

use crate::support;

use std::time::Duration;

use nix::sys::signal::Signal;
use support::{Raw, claim_of, station, until};

const MIB: u64 = 1 << 20;

#[test]
fn members_run_on_under_their_cap_while_no_service_runs() {
    let mut station = station();
    let mut raw = Raw::claim(&station, &["-q", "-g", "0.25", "--gpu-ids", "0"]);
    let before = station.snapshot().expect("served");
    station.stop_service(Signal::SIGKILL).expect("killed");
    assert_eq!(raw.ask("launch 3"), "ok 3");
    let (room, cap) = raw.info();
    assert_eq!(
        raw.ask(&format!("alloc {}", room + 1)),
        "error 2 CUDA_ERROR_OUT_OF_MEMORY"
    );
    assert_eq!(raw.ask(&format!("alloc {}", 512 * MIB)), "ok 0");
    station.start_service().expect("starts again");
    let after = station.snapshot().expect("served");
    assert_eq!(after.claims.len(), 1);
    let (old, new) = (&before.claims[0], &after.claims[0]);
    assert_eq!(
        (&old.id, old.pid, &old.command),
        (&new.id, new.pid, &new.command)
    );
    assert_eq!(new.gpus[0].mem_limit, cap);
    let charge = new.gpus[0].mem_charge.expect("known");
    assert_eq!(
        Some(charge),
        new.gpus[0].mem_used,
        "the ledger was found again in the member"
    );
    assert!(charge >= 512 * MIB);
    // Still held, by the same ledger.
    let (room, _) = raw.info();
    assert_eq!(room, cap - charge);
    assert_eq!(
        raw.ask(&format!("alloc {}", room + 1)),
        "error 2 CUDA_ERROR_OUT_OF_MEMORY"
    );
    assert_eq!(raw.finish(), Some(0));
    until(
        "the claim ends with its command",
        Duration::from_secs(5),
        || station.snapshot().ok()?.claims.is_empty().then_some(()),
    );
}

#[test]
fn what_ended_meanwhile_is_noticed_and_ids_are_never_used_again() {
    let mut station = station();
    let mut first = Raw::claim(&station, &["-q", "-g", "0.25"]);
    let second = Raw::claim(&station, &["-q", "-g", "0.25"]);
    station.stop_service(Signal::SIGKILL).expect("killed");
    first.kill();
    station.start_service().expect("starts again");
    until("the dead claim is gone", Duration::from_secs(5), || {
        let snapshot = station.snapshot().ok()?;
        (snapshot.claims.len() == 1 && claim_of(&snapshot, second.pid()).is_some()).then_some(())
    });
    let third = Raw::claim(&station, &["-q", "-g", "0.25"]);
    let snapshot = station.snapshot().expect("served");
    assert_eq!(
        claim_of(&snapshot, third.pid()).map(|c| c.id.as_str()),
        Some("c3")
    );
}

#[test]
fn an_older_service_on_a_newer_journal_keeps_what_runs_and_promises_nothing() {
    let mut station = station();
    let mut raw = Raw::claim(&station, &["-q", "-g", "0.25", "--gpu-ids", "0"]);
    let (_, cap) = raw.info();
    station.stop_service(Signal::SIGKILL).expect("killed");
    let file = station.dir().join("state/gshare.db");
    let db = rusqlite::Connection::open(&file).expect("opened");
    db.pragma_update(None, "user_version", 99).expect("newer");
    drop(db);
    let before = std::fs::read(&file).expect("read");
    station.start_service().expect("starts");
    let snapshot = station.snapshot().expect("served");
    assert_eq!(snapshot.claims[0].gpus[0].mem_limit, cap);
    let said = snapshot
        .notices
        .iter()
        .any(|n| n.text.contains("format 99"));
    assert!(said, "{:?}", snapshot.notices);
    let (room, still) = raw.info();
    assert_eq!(still, cap);
    assert_eq!(
        raw.ask(&format!("alloc {}", room + 1)),
        "error 2 CUDA_ERROR_OUT_OF_MEMORY"
    );
    let mut claim = station.command();
    claim.args(["claim", "-g", "0.1", "--", "true"]);
    let refused = claim.output().expect("runs");
    let words = String::from_utf8_lossy(&refused.stderr).into_owned();
    assert_eq!(refused.status.code(), Some(75), "{words}");
    assert!(
        words.contains("format 99") && words.contains("hint: "),
        "{words}"
    );
    assert_eq!(raw.finish(), Some(0));
    until("it ends", Duration::from_secs(5), || {
        station.snapshot().ok()?.claims.is_empty().then_some(())
    });
    station.stop_service(Signal::SIGTERM).expect("stopped");
    assert_eq!(
        std::fs::read(&file).expect("read"),
        before,
        "the file is left alone"
    );
}
