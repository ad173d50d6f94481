//! `gshare admin release`: a GPU is reset only while nobody has it open, and gshare is somebody.

use crate::support;

use std::process::Output;
use std::time::Duration;

use gshare::station::Station;
use gshare_proto::{GpuState, Grade};
use gshare_sim_board::BoardError;
use nix::sys::signal::Signal;
use support::detach::{ok, refused, run};
use support::{Raw, board, claim_of, station_with, until};

const SOON: Duration = Duration::from_secs(30);

fn quick(config: &str) -> Station {
    station_with(|o| {
        o.tick = "0.1s".to_owned();
        o.config = format!("[claims]\nleftover-grace = \"1s\"\n{config}");
    })
}

fn claim_on(station: &Station, gpu: &str) -> Output {
    let words = ["claim", "-q", "-g", "0.25", "--gpu-ids", gpu, "--nonblock"];
    run(station, &[&words[..], &["--", "true"]].concat())
}

fn is_in_use(station: &Station, gpu: usize) -> bool {
    match board(station).reset(gpu) {
        Err(BoardError::InUse { .. }) => true,
        Ok(()) => false,
        Err(other) => panic!("{other}"),
    }
}

fn answers(station: &Station, gpu: usize) {
    until("the GPU answers", SOON, || {
        let gpu = &station.snapshot().ok()?.gpus[gpu];
        (gpu.state == GpuState::Ok && gpu.mem_used.is_some()).then_some(())
    });
}

#[test]
fn a_reset_is_refused_while_gshared_has_the_gpu_open_and_done_once_it_is_released() {
    let station = quick("");
    let mut beside = Raw::claim(&station, &["-q", "-g", "0.5", "--gpu-ids", "0"]);
    assert_eq!(beside.ask("alloc 1073741824"), "ok 0");
    // The service's NVML and the process that can offload claims have it open.
    assert!(is_in_use(&station, 1));
    board(&station).raise_xid(1, 95).expect("raised");
    until("GPU 1 is sick", SOON, || {
        let snapshot = station.snapshot().ok()?;
        let health = snapshot.gpus[1].health.clone()?;
        let tell = health.tell.filter(|_| health.grade == Grade::Sick)?;
        assert!(tell.contains("gshare admin release 1"), "{tell}");
        Some(())
    });
    let said = ok(&station, &["admin", "release", "1"]);
    assert!(said.contains("gshare no longer has it open"), "{said}");
    assert!(
        said.contains("undo: gshare admin release 1 --take"),
        "{said}"
    );
    board(&station).reset(1).expect("nobody has it open");
    // What it is stays known; nothing is started there, and why is said.
    let snapshot = station.snapshot().expect("served");
    assert_eq!(snapshot.gpus[1].state, GpuState::Released);
    assert_eq!(snapshot.gpus[1].mem_used, None);
    let none = claim_on(&station, "1");
    assert_eq!(none.status.code(), Some(75));
    let text = String::from_utf8_lossy(&none.stderr).into_owned();
    assert!(text.contains("GPU 1 is released by"), "{text}");
    // A claim elsewhere runs on, and others may start there.
    assert_eq!(beside.ask("alloc 1048576"), "ok 1");
    assert!(claim_on(&station, "0").status.success());
    answers(&station, 0);
    let taken = ok(&station, &["admin", "release", "1", "--take"]);
    assert!(taken.contains("GPU 1 is taken back"), "{taken}");
    answers(&station, 1);
    // The reset has mended what it was, and nobody has to say so.
    until("it takes claims again", SOON, || {
        claim_on(&station, "1").status.success().then_some(())
    });
    assert!(is_in_use(&station, 1));
    let log = ok(&station, &["admin", "log"]);
    assert!(log.contains("release") && log.contains("take"), "{log}");
}

#[test]
fn a_release_for_a_time_ends_by_itself_and_outlives_the_service() {
    let mut station = quick("");
    let said = ok(&station, &["admin", "release", "1", "2", "--for", "15s"]);
    assert!(said.contains("taken back in 15 s"), "{said}");
    board(&station).reset(1).expect("nobody has it open");
    // A service that dies and is started again does not open them.
    station.stop_service(Signal::SIGKILL).expect("killed");
    station.start_service().expect("starts");
    until("what the one before had open is closed", SOON, || {
        (!is_in_use(&station, 1) && !is_in_use(&station, 2)).then_some(())
    });
    assert!(is_in_use(&station, 0));
    let snapshot = station.snapshot().expect("served");
    assert_eq!(snapshot.gpus[2].state, GpuState::Released);
    assert!(snapshot.gpus[2].uuid.starts_with("GPU-"));
    answers(&station, 1);
    answers(&station, 2);
    assert!(is_in_use(&station, 1) && is_in_use(&station, 2));
    until("claims start", SOON, || {
        claim_on(&station, "2").status.success().then_some(())
    });
}

#[test]
fn a_gpu_that_a_claim_holds_is_not_released() {
    let station = quick("");
    let held = Raw::claim(&station, &["-q", "-g", "0.5", "--gpu-ids", "1"]);
    let snapshot = station.snapshot().expect("served");
    let id = claim_of(&snapshot, held.pid())
        .expect("its claim")
        .id
        .clone();
    let text = refused(&station, &["admin", "release", "1"]);
    assert!(text.contains(&format!("GPU 1 is held by {id}")), "{text}");
    assert!(text.contains("gshare admin drain 1 --wait"), "{text}");
    assert!(is_in_use(&station, 1));
    let none = run(&station, &["admin", "release", "1", "--take"]);
    let text = String::from_utf8_lossy(&none.stdout).into_owned();
    assert!(text.contains("GPU 1 was not released"), "{text}");
}

#[test]
fn the_mps_daemon_lets_go_with_the_rest_and_is_started_again() {
    let station = quick("[gpu.1]\nmode = \"mps\"\n");
    let mps_claim = || {
        let words = [
            "claim",
            "-q",
            "-g",
            "0.25",
            "--gpu-ids",
            "1",
            "--nonblock",
            "--",
        ];
        let raw = support::example("raw_client");
        let mut command = station.command();
        command.args(words).arg(raw);
        command
    };
    // A client brings up a server, which has the GPU open after it.
    until("MPS is up", SOON, || {
        let mut raw = Raw::spawn(&mut mps_claim());
        (raw.line() == "ok ready").then(|| raw.finish())
    });
    ok(&station, &["admin", "release", "1"]);
    board(&station).reset(1).expect("nobody has it open");
    ok(&station, &["admin", "release", "1", "--take"]);
    until("MPS is up again", SOON, || {
        let mut raw = Raw::spawn(&mut mps_claim());
        (raw.line() == "ok ready").then_some(())
    });
}
