//! Room for those who wait, from beginning to end: real processes, the simulated driver, announcements and all.

use crate::support;

use std::process::Child;
use std::time::{Duration, Instant};

use gshare::station::Station;
use gshare_proto::ClaimView;
use support::detach::{end, station_of_sharers, waiter};
use support::{Raw, board, claim_of, until};

const SOON: Duration = Duration::from_secs(30);
/// How long both notebooks are watched while they burst, and launches of 20 ms that last longer than that.
const BURST: Duration = Duration::from_secs(2);
const LAUNCHES: u32 = 150;

/// GPUs of one model, and rules that are over quickly.
fn station(gpus: usize, more: &str) -> Station {
    station_of_sharers(gpus, &format!("countdown = \"2s\"\n{more}"))
}

fn seen(station: &Station, pid: u32) -> Option<ClaimView> {
    claim_of(&station.snapshot().ok()?, pid).cloned()
}

fn gpu_of(station: &Station, pid: u32) -> Option<u32> {
    let claim = seen(station, pid)?;
    let here = claim.place.word.is_none();
    claim.gpus.first().filter(|_| here).map(|g| g.gpu)
}

/// A member with something in every byte of its memory, and the checksum of all; it can be moved.
fn holder(station: &Station, flags: &[&str], mib: u64) -> (Raw, String) {
    let mut raw = Raw::claim(station, flags);
    assert_eq!(raw.ask(&format!("alloc {}", mib << 20)), "ok 0");
    assert_eq!(raw.ask(&format!("fill-all {}", raw.pid())), "ok");
    let sum = raw.ask("sum-all");
    assert!(sum.ends_with(&format!("of {} bytes", mib << 20)), "{sum}");
    until("the claim can be moved", SOON, || {
        let levers = seen(station, raw.pid())?.place.levers;
        (levers.not_detachable.is_none() && levers.not_movable.is_none()).then_some(())
    });
    (raw, sum)
}

fn said(station: &Station, words: &[&str]) -> String {
    let output = station.command().args(words).output().expect("gshare runs");
    String::from_utf8_lossy(&output.stdout).into_owned()
}

#[test]
fn two_notebooks_burst_and_one_moves_beside_the_other_when_a_gpu_is_claimed() {
    let station = station(2, "");
    std::fs::write(station.sim_dir().join("costs"), "add_one 20ms\n").expect("written");
    let notebook = ["-q", "-g", "0.5", "--limit", "1", "--class", "interactive"];
    let (mut first, first_sum) = holder(&station, &notebook, 64);
    let (mut second, second_sum) = holder(&station, &notebook, 32);
    let (a, b) = (first.pid(), second.pid());
    assert_eq!(
        (gpu_of(&station, a), gpu_of(&station, b)),
        (Some(0), Some(1))
    );
    for pid in [a, b] {
        let part = seen(&station, pid).expect("listed").gpus[0].clone();
        assert!((part.sm_limit - 1.0).abs() < 1e-9, "up to all of its GPU");
    }
    both_burst_and_a_full_gpu_is_claimable(&station, &mut first, &mut second);
    for size in ["1", "0.6"] {
        let waits = waiter(&station, &["-g", size]);
        let plan = until("it is said how room is made", SOON, || {
            station.snapshot().ok()?.queue.first()?.plan.clone()
        });
        assert!(plan.contains("moves from GPU"), "{plan}");
        let id = station.snapshot().expect("served").queue[0].id.clone();
        let why = said(&station, &["why", &id]);
        assert!(
            why.contains("room is made for it") && why.contains("it starts in"),
            "{why}"
        );
        until("the claim starts", SOON, || gpu_of(&station, waits.id()));
        let beside = (gpu_of(&station, a), gpu_of(&station, b));
        assert_eq!(beside.0, beside.1, "the notebooks share a GPU");
        assert_ne!(gpu_of(&station, waits.id()), beside.0);
        assert_eq!(
            (first.ask("sum-all"), second.ask("sum-all")),
            (first_sum.clone(), second_sum.clone())
        );
        let told = [a, b].iter().any(|pid| {
            let id = seen(&station, *pid).expect("listed").id;
            said(&station, &["log", &id]).contains("gshare keep")
        });
        assert!(told, "it was announced");
        end(waits);
        until("its claim is over", SOON, || {
            (station.snapshot().ok()?.claims.len() == 2).then_some(())
        });
        if size == "1" {
            // Apart again, by hand: for the second size.
            let id = seen(&station, b).expect("listed").id;
            let free = if gpu_of(&station, b) == Some(0) {
                "1"
            } else {
                "0"
            };
            let output = station
                .command()
                .args(["move", &id, "--gpu", free])
                .output();
            assert!(output.expect("runs").status.success());
            until("they are apart", SOON, || {
                (gpu_of(&station, a)? != gpu_of(&station, b)?).then_some(())
            });
        }
    }
}

/// Both compute for seconds at the same time, each with nearly all of its GPU, by the board; and all of a GPU could be
/// claimed.
fn both_burst_and_a_full_gpu_is_claimable(station: &Station, a: &mut Raw, b: &mut Raw) {
    let pids = [a.pid(), b.pid()];
    let computed = || -> [u64; 2] {
        let gpus = board(station).snapshot().gpus;
        let all = gpus.into_iter().flat_map(|gpu| gpu.processes);
        let all: Vec<(u32, u64)> = all.map(|p| (p.pid, p.busy_ns)).collect();
        pids.map(|pid| all.iter().filter(|p| p.0 == pid).map(|p| p.1).sum())
    };
    for raw in [&mut *a, &mut *b] {
        raw.tell(&format!("launch {LAUNCHES}"));
    }
    let early = computed();
    until("both compute", SOON, || {
        let now = computed();
        (now[0] > early[0] && now[1] > early[1]).then_some(())
    });
    let (before, started) = (computed(), Instant::now());
    std::thread::sleep(BURST);
    let (after, took) = (computed(), started.elapsed());
    let parts = [0, 1].map(|i| (after[i] - before[i]) as f64 / took.as_nanos() as f64);
    println!("of their GPUs they had {parts:.3?} for {took:.2?}");
    assert!(parts.iter().all(|part| *part > 0.9), "{parts:?}");
    for raw in [&mut *a, &mut *b] {
        assert_eq!(raw.line(), format!("ok {LAUNCHES}"));
    }
    until("a full GPU can be had by a move", SOON, || {
        let asked = ["claim", "-g", "1", "--dry-run", "--json"];
        let tried = station.command().args(asked).output().ok()?;
        let tried: serde_json::Value = serde_json::from_slice(&tried.stdout).ok()?;
        let takings = tried["takings"].as_array()?;
        (takings.len() == 1 && !takings[0]["to"].as_array()?.is_empty()).then_some(())
    });
}

#[test]
fn a_service_that_dies_in_the_countdown_goes_on_where_it_was() {
    let mut station = station(2, "");
    let notebook = ["-q", "-g", "0.5", "--limit", "1", "--class", "interactive"];
    let (mut first, first_sum) = holder(&station, &notebook, 64);
    let (mut second, second_sum) = holder(&station, &notebook, 32);
    let (a, b) = (first.pid(), second.pid());
    let waits = waiter(&station, &["-g", "1"]);
    until("the first waits", SOON, || {
        (station.snapshot().ok()?.queue.len() == 1).then_some(())
    });
    let later = waiter(&station, &["-g", "0.9"]);
    let queue = |station: &Station| -> Option<Vec<String>> {
        let queue = station.snapshot().ok()?.queue;
        let plan = queue.first()?.plan.is_some();
        let waits = queue.into_iter().map(|q| q.id);
        Some(waits.collect::<Vec<_>>()).filter(|q| q.len() == 2 && plan)
    };
    let before = until("both wait, the first with a plan", SOON, || queue(&station));
    station
        .stop_service(nix::sys::signal::Signal::SIGKILL)
        .expect("killed");
    station.start_service().expect("starts again");
    // The countdown may be over by now: then the first runs, with the number that it had.
    let number = until("the first has its place, or its GPU", SOON, || {
        let held = seen(&station, waits.id()).map(|c| c.id);
        let queued = || queue(&station).filter(|q| *q == before);
        held.or_else(|| Some(queued()?[0].clone()))
    });
    assert_eq!(number, before[0]);
    until("the first claim starts", SOON, || {
        gpu_of(&station, waits.id())
    });
    assert_eq!(gpu_of(&station, a), gpu_of(&station, b));
    assert_eq!(
        (first.ask("sum-all"), second.ask("sum-all")),
        (first_sum, second_sum)
    );
    let told = |pid| {
        let id = seen(&station, pid).expect("listed").id;
        said(&station, &["log", &id])
    };
    let told = told(a) + &told(b);
    let times = told.matches("gshare keep").count();
    assert_eq!(times, 1, "told once: {told}");
    end(waits);
    until("the second claim starts", SOON, || {
        gpu_of(&station, later.id())
    });
    assert_eq!(seen(&station, later.id()).expect("listed").id, before[1]);
    end(later);
}

#[test]
fn borrowed_gpus_go_back_to_the_project_that_is_guaranteed_them_and_its_jobs_resume() {
    let quotas = "[projects]\np1 = { users = [\"root\"] }\np2 = { users = [\"root\"] }\n\
                  [quotas]\n\"project:p1\" = { gpus = 2.0 }\n\"project:p2\" = { gpus = 2.0 }\n";
    if !support::root("borrowed_gpus_go_back") {
        return;
    }
    let station = station(4, quotas);
    let job = |project: &'static str| ["-q", "-g", "1", "--project", project];
    let mut jobs: Vec<(Raw, String)> = (0..4).map(|_| holder(&station, &job("p1"), 32)).collect();
    let pids: Vec<u32> = jobs.iter().map(|(raw, _)| raw.pid()).collect();
    let others = [(), ()].map(|()| waiter(&station, &["-g", "1", "--project", "p2"]));
    until("the other project runs on its two GPUs", SOON, || {
        let on = |child: &Child| gpu_of(&station, child.id());
        Some((on(&others[0])?, on(&others[1])?))
    });
    let parked = || -> Vec<u32> {
        let here = |pid: &&u32| gpu_of(&station, **pid).is_none();
        pids.iter().filter(here).copied().collect()
    };
    assert_eq!(parked().len(), 2, "as many as it needs");
    for pid in parked() {
        let place = seen(&station, pid).expect("listed").place;
        assert_eq!(place.word.as_deref(), Some("suspended"));
    }
    others.into_iter().for_each(end);
    until("all of the first run again", SOON, || {
        parked().is_empty().then_some(())
    });
    for (raw, sum) in &mut jobs {
        assert_eq!(raw.ask("sum-all"), *sum, "it goes on where it was");
    }
}
