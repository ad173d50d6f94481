//! Sick GPUs: shown, written down, kept from new claims; their holders are told what to do.

use crate::support;

use std::io::Write;
use std::time::Duration;

use gshare::station::Station;
use gshare_proto::{Grade, HealthView};
use gshare_sim_board::Health;
use nix::sys::signal::Signal;
use support::{Raw, board, claim_of, station_with, until};

const SOON: Duration = Duration::from_secs(10);

fn quick(config: &str) -> Station {
    let config = format!("[claims]\nleftover-grace = \"1s\"\n{config}");
    station_with(|o| {
        o.tick = "0.1s".to_owned();
        o.config = config;
    })
}

fn health(station: &Station, gpu: usize) -> Option<HealthView> {
    station.snapshot().ok()?.gpus[gpu].health.clone()
}

fn graded(station: &Station, gpu: usize, grade: Grade) -> HealthView {
    until(&format!("GPU {gpu} is {grade:?}"), SOON, || {
        health(station, gpu).filter(|h| h.grade == grade)
    })
}

fn run(station: &Station, words: &[&str]) -> (Option<i32>, String) {
    let output = station.command().args(words).output().expect("runs");
    let mut text = String::from_utf8_lossy(&output.stdout).into_owned();
    text.push_str(&String::from_utf8_lossy(&output.stderr));
    (output.status.code(), text)
}

fn claim_on(station: &Station, gpu: &str) -> Option<i32> {
    let words = [
        "claim",
        "-q",
        "-g",
        "0.25",
        "--gpu-ids",
        gpu,
        "--nonblock",
        "--",
        "true",
    ];
    run(station, &words).0
}

#[test]
fn an_error_that_needs_a_reset_keeps_new_claims_off_until_it_is_mended() {
    let mut station = quick("");
    let held = Raw::claim(&station, &["-q", "-g", "0.5", "--gpu-ids", "1"]);
    assert_eq!(graded(&station, 1, Grade::Good).xids, []);
    assert_eq!(claim_on(&station, "1"), Some(0));
    board(&station).raise_xid(1, 95).expect("raised");
    let sick = graded(&station, 1, Grade::Sick);
    assert_eq!(
        (sick.xids[0].code, sick.xids[0].source.as_str()),
        (95, "nvml")
    );
    assert!(sick.reasons[0].contains("Xid 95"), "{sick:?}");
    assert!(
        sick.tell
            .is_some_and(|t| t.contains("nvidia-smi --gpu-reset -i 1"))
    );
    until("claims are kept off", SOON, || {
        (claim_on(&station, "1") == Some(75)).then_some(())
    });
    assert_eq!(claim_on(&station, "0"), Some(0), "the others go on");

    // Its holder is told, and can read it later.
    let snapshot = station.snapshot().expect("served");
    let claim = claim_of(&snapshot, held.pid()).expect("runs on").id.clone();
    let log = run(&station, &["log", &claim]).1;
    assert!(
        log.contains("Xid 95") && log.contains("--gpu-reset"),
        "{log}"
    );
    assert_eq!(log.matches("--gpu-reset").count(), 1, "told once: {log}");
    let doctor = run(&station, &["doctor"]).1;
    assert!(
        doctor.contains("health GPU 1") && doctor.contains("Xid 95"),
        "{doctor}"
    );

    // A restart of the service mends nothing.
    station.stop_service(Signal::SIGKILL).expect("killed");
    station.start_service().expect("starts");
    assert_eq!(graded(&station, 1, Grade::Sick).xids.len(), 1);
    assert_eq!(claim_on(&station, "1"), Some(75));
    let (code, text) = run(&station, &["admin", "undrain", "1"]);
    if code == Some(0) {
        assert!(text.contains("takes claims again"), "{text}");
        assert_eq!(graded(&station, 1, Grade::Good).xids, []);
        assert_eq!(claim_on(&station, "1"), Some(0));
    } else {
        println!("skipped: only root may say that a GPU is mended: {text}");
    }
    drop(held);
}

#[test]
fn memory_errors_repairs_and_clocks_are_graded_and_absent_where_a_gpu_has_none() {
    let station = quick("");
    let good = until("the counters are known", SOON, || {
        health(&station, 2).filter(|h| h.ecc_corrected.is_some() && h.throttle.is_some())
    });
    assert_eq!(
        (good.grade, good.ecc_uncorrected, good.throttle),
        (Grade::Good, Some(0), Some(Vec::new()))
    );
    assert!(good.remapped.is_some());
    let geforce = health(&station, 0).expect("answers");
    assert_eq!(
        (geforce.ecc_corrected, geforce.remapped),
        (None, None),
        "a 4090 has no ECC by default"
    );

    let board = board(&station);
    let mut state = Health {
        ecc_corrected: 4,
        clock_reasons: 0x40,
        ..Health::default()
    };
    board.set_health(2, state).expect("set");
    let warned = graded(&station, 2, Grade::Warned);
    assert!(
        warned
            .reasons
            .iter()
            .any(|r| r.contains("too warm (hardware)")),
        "{warned:?}"
    );
    until("counted", SOON, || {
        (health(&station, 2)?.ecc_corrected == Some(4)).then_some(())
    });
    assert_eq!(
        claim_on(&station, "2"),
        Some(0),
        "a warning keeps nobody off"
    );

    state = Health {
        remapped_uncorrected: 1,
        remap_pending: true,
        ecc_uncorrected: 2,
        ..Health::default()
    };
    board.set_health(2, state).expect("set");
    let pending = until("it is seen", SOON, || {
        health(&station, 2).filter(|h| h.reasons.len() == 2)
    });
    assert_eq!(pending.grade, Grade::Warned);
    assert!(
        pending
            .remapped
            .is_some_and(|r| r.pending && r.uncorrected == 1)
    );

    state.remap_failed = true;
    board.set_health(2, state).expect("set");
    graded(&station, 2, Grade::Sick);
    until("claims are kept off", SOON, || {
        (claim_on(&station, "2") == Some(75)).then_some(())
    });
    board.set_health(2, Health::default()).expect("set");
    graded(&station, 2, Grade::Good);
    // The driver's own word.
    let recovery = Health {
        recovery: 1,
        ..Health::default()
    };
    board.set_health(3, recovery).expect("set");
    assert_eq!(
        graded(&station, 3, Grade::Sick).recovery.as_deref(),
        Some("reset")
    );
    board.set_health(3, Health::default()).expect("set");
    graded(&station, 3, Grade::Good);
    until("claims come again", SOON, || {
        (claim_on(&station, "3") == Some(0)).then_some(())
    });
}

#[test]
fn the_kernels_log_names_the_process_and_one_error_is_told_once() {
    let dir = tempfile::tempdir().expect("a directory");
    let log = dir.path().join("kmsg");
    nix::unistd::mkfifo(
        &log,
        nix::sys::stat::Mode::S_IRUSR | nix::sys::stat::Mode::S_IWUSR,
    )
    .expect("a pipe");
    // The station's own [driver] section is written before these lines.
    let station = station_with(|o| {
        o.tick = "0.1s".to_owned();
        o.driver_config = format!("kernel-log = {log:?}\n");
    });
    let one = Raw::claim(&station, &["-q", "-g", "0.25", "--gpu-ids", "0"]);
    let other = Raw::claim(&station, &["-q", "-g", "0.25", "--gpu-ids", "0"]);
    let board = board(&station);
    let bus = board.snapshot().gpus[0].pci_bus;
    board.raise_xid(0, 31).expect("raised");
    until("NVML has told it", SOON, || {
        health(&station, 0).filter(|h| !h.xids.is_empty())
    });
    let mut pipe = std::fs::File::options()
        .write(true)
        .open(&log)
        .expect("opens");
    let line = |code: u32, pid: u32| {
        format!(
            "3,1,2,-;NVRM: Xid (PCI:0000:{bus:02x}:00): {code}, pid={pid}, name=raw_client, Ch 1\n"
        )
    };
    pipe.write_all(line(31, one.pid()).as_bytes())
        .expect("written");
    let seen = until("the process is named", SOON, || {
        health(&station, 0).filter(|h| h.xids[0].pid == Some(one.pid()))
    });
    assert_eq!(seen.xids.len(), 1, "the same error: {seen:?}");
    // One that the log alone has: its owner is told, nobody else.
    pipe.write_all(line(13, one.pid()).as_bytes())
        .expect("written");
    until("it is seen", SOON, || {
        health(&station, 0).filter(|h| h.xids.len() == 2)
    });
    let snapshot = station.snapshot().expect("served");
    let told = |pid: u32| {
        let id = claim_of(&snapshot, pid).expect("runs on").id.clone();
        run(&station, &["log", &id]).1.contains("Xid 13")
    };
    assert!(told(one.pid()) && !told(other.pid()));
    // That a GPU is gone is believed when NVML does not find it either.
    pipe.write_all(line(79, 0).as_bytes()).expect("written");
    let warned = graded(&station, 0, Grade::Warned);
    assert!(
        warned.reasons[0].contains("reported only by the kernel log"),
        "{warned:?}"
    );
    board.set_lost(0, true).expect("lost");
    let gone = graded(&station, 0, Grade::Sick);
    assert!(
        gone.tell.is_some_and(|t| t.contains("restart")),
        "{:?}",
        gone.reasons
    );
    drop((one, other));
}

#[test]
fn a_reset_behind_the_services_back_is_seen_told_and_new_claims_get_the_gpu() {
    let station = quick("");
    let mut held = Raw::claim(&station, &["-q", "-g", "0.5", "--gpu-ids", "2"]);
    let mut beside = Raw::claim(&station, &["-q", "-g", "0.5", "--gpu-ids", "3"]);
    for raw in [&mut held, &mut beside] {
        assert_eq!(raw.ask("alloc 1073741824"), "ok 0");
    }
    board(&station).raise_xid(2, 95).expect("raised");
    graded(&station, 2, Grade::Sick);
    assert_eq!(claim_on(&station, "2"), Some(75));
    let snapshot = station.snapshot().expect("served");
    let [id, other] = [&held, &beside].map(|raw| {
        let claim = claim_of(&snapshot, raw.pid()).expect("listed");
        claim.id.clone()
    });

    board(&station).reset_by_force(2).expect("reset");
    // What it was is over, and nobody has to say so.
    let well = graded(&station, 2, Grade::Good);
    assert_eq!(well.xids, []);
    let told = until("its holder is told", SOON, || {
        let log = run(&station, &["log", &id]).1;
        log.contains("GPU 2 was reset").then_some(log)
    });
    assert!(told.contains("restart them"), "{told}");
    assert!(!run(&station, &["log", &other]).1.contains("was reset"));
    // Its program has lost what it had, its neighbour on another GPU has not.
    assert!(
        held.ask("alloc 1048576").starts_with("error 709"),
        "the context is gone"
    );
    assert_eq!(beside.ask("alloc 1048576"), "ok 1");
    assert_eq!(claim_on(&station, "2"), Some(0), "there is room beside it");
    // The handles are looked up anew: the figures are those of now.
    let mut fresh = Raw::claim(&station, &["-q", "-g", "0.5", "--gpu-ids", "2"]);
    assert_eq!(fresh.ask("alloc 2147483648"), "ok 0");
    let pid = fresh.pid();
    until("its memory is seen by the driver", SOON, || {
        let snapshot = station.snapshot().ok()?;
        let part = claim_of(&snapshot, pid)?.gpus.first()?;
        part.mem_used.filter(|b| *b >= 2 << 30)
    });
    // The old claim ends as any other, and then the whole GPU is there.
    held.kill();
    fresh.kill();
    until("all of it can be claimed", SOON, || {
        let words = [
            "claim",
            "-q",
            "-g",
            "1",
            "--gpu-ids",
            "2",
            "--nonblock",
            "--",
            "true",
        ];
        (run(&station, &words).0 == Some(0)).then_some(())
    });
    drop(beside);
}
