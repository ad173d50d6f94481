//! The service dies in the middle of a grant, the machine is restarted, the journal is lost: no claim is held
//! twice or by nobody, and no program runs outside the claim that it was told of.

use crate::support;

use std::time::Duration;

use gshare_proto::Snapshot;
use nix::sys::signal::Signal;
use support::{Random, Raw, claim_of, example, station, until};

fn limit_is_held(raw: &mut Raw, snapshot: &Snapshot) {
    let claim = claim_of(snapshot, raw.pid()).expect("its claim is listed");
    assert_eq!(claim.members, [raw.pid()], "{}", claim.id);
    let part = &claim.gpus[0];
    let (free, total) = raw.info();
    assert_eq!(
        (total, Some(total - free)),
        (part.mem_limit, part.mem_charge)
    );
    let answer = raw.ask(&format!("alloc {}", free + 1));
    assert_eq!(answer, "error 2 CUDA_ERROR_OUT_OF_MEMORY");
}

#[test]
fn a_service_killed_while_it_grants_leaves_nothing_half_done() {
    let mut station = station();
    let mut random = Random::new("a_service_killed_while_it_grants_leaves_nothing_half_done");
    for round in 0..40 {
        let mut raws: Vec<Raw> = (0..3)
            .map(|_| {
                let mut command = station.command();
                // Comes to the GPU when the service is back.
                let script = "echo granted; read go; exec \"$0\"";
                command.args(["claim", "-q", "-g", "0.3", "--", "sh", "-c", script]);
                Raw::spawn(command.arg(example("raw_client")))
            })
            .collect();
        std::thread::sleep(Duration::from_micros(random.below(20_000)));
        station.stop_service(Signal::SIGKILL).expect("killed");
        station
            .start_service()
            .unwrap_or_else(|e| panic!("round {round}: {e:#}"));
        let mut ready = Vec::new();
        for mut raw in raws.drain(..) {
            match raw.line().as_str() {
                "granted" => ready.push(raw),
                // It had not connected yet when there was nobody to connect to.
                "" => assert_eq!(raw.finish(), Some(69), "round {round}"),
                other => panic!("round {round}: {other}"),
            }
        }
        for raw in &mut ready {
            assert_eq!(raw.ask("go"), "ok ready");
        }
        let snapshot = station.snapshot().expect("served");
        assert_eq!(
            snapshot.claims.len(),
            ready.len(),
            "round {round}: {:?}",
            snapshot.claims
        );
        for raw in &mut ready {
            limit_is_held(raw, &snapshot);
        }
        drop(ready);
        until("all have ended", Duration::from_secs(5), || {
            station.snapshot().ok()?.claims.is_empty().then_some(())
        });
    }
}

#[test]
fn a_service_killed_at_every_step_of_a_launch_leaves_nothing_half_done() {
    let mut station = station();
    let client = example("raw_client").display().to_string();
    support::steps::each(&mut station, &client, false, |station, words| {
        let mut command = station.command();
        command.args(words);
        command
    });
}

#[test]
fn after_a_restart_of_the_machine_no_old_claim_is_held() {
    let mut station = station();
    let mut command = station.command();
    let held = command.args(["claim", "-q", "-g", "0.5"]).status();
    assert!(held.expect("runs").success());
    station.stop_service(Signal::SIGKILL).expect("killed");
    let journal = rusqlite::Connection::open(station.dir().join("state/gshare.db"));
    let changed = journal
        .expect("opens")
        .execute("UPDATE meta SET value = 'another' WHERE key = 'boot'", []);
    assert_eq!(changed.expect("written"), 1);
    station.start_service().expect("starts again");
    let snapshot = station.snapshot().expect("served");
    assert_eq!(
        (snapshot.claims.len(), snapshot.gpus[0].mem_claimed),
        (0, 0)
    );
    let left = std::fs::read_dir(station.dir().join("run/claims")).expect("there");
    assert_eq!(left.count(), 0, "its pages are gone");
}

#[test]
fn a_lost_journal_takes_the_gpu_from_old_members_and_gives_nobody_their_place() {
    let mut station = station();
    let mut old = Raw::claim(&station, &["-q", "-g", "0.5", "--gpu-ids", "0"]);
    station.stop_service(Signal::SIGKILL).expect("killed");
    std::fs::remove_dir_all(station.dir().join("state")).expect("removed");
    station.start_service().expect("starts again");
    let held = station.snapshot().expect("served").claims;
    assert!(held.iter().all(|c| c.adopted), "{held:?}");
    let answer = old.ask("alloc 1048576");
    assert!(answer.starts_with("error"), "{answer}");
    let mut new = Raw::claim(&station, &["-q", "-g", "0.25", "--gpu-ids", "0"]);
    let snapshot = station.snapshot().expect("served");
    limit_is_held(&mut new, &snapshot);
    // Old processes still have memory on the GPU; it counts as what it is.
    let auto = until("it is counted", Duration::from_secs(5), || {
        let snapshot = station.snapshot().ok()?;
        claim_of(&snapshot, old.pid()).cloned()
    });
    assert!(auto.adopted && auto.gpus[0].mem_used > Some(0));
}
