//! What cannot be offloaded or moved says so in `gshare ps`, in words and as JSON, as soon as it is known; nothing is done
//! to it, and room is made by way of others.

use crate::support;

use gshare::station::Station;
use support::detach::{
    GIB, SOON, claim, fill, holder, join, ok, on_gpus, ready, refused, run, settles, station_of,
    station_that,
};
use support::{Raw, claim_of, until};

/// Waits until a claim says that it cannot be offloaded; why.
fn fixed(station: &Station, pid: u32, wanted: &str) -> String {
    until(&format!("ps says `{wanted}`"), SOON, || {
        let snapshot = station.snapshot().ok()?;
        let why = claim_of(&snapshot, pid)?
            .place
            .levers
            .not_detachable
            .clone()?;
        why.contains(wanted).then_some(why)
    })
}

/// `ps`, `ps --json` and the refusals of a claim that cannot be offloaded.
fn says(station: &Station, pid: u32, wanted: &str) {
    let why = fixed(station, pid, wanted);
    let ps = ok(station, &["ps"]);
    assert!(ps.contains(&format!("cannot be offloaded: {why}")), "{ps}");
    let json = ok(station, &["ps", "--json"]);
    assert!(json.contains(&why), "{json}");
    let id = claim(station, pid).id;
    for words in [
        &["offload", &id][..],
        &["suspend", &id],
        &["move", &id, "--gpu", "1"],
    ] {
        let said = refused(station, words);
        assert!(said.contains(&why), "{words:?}: {said}");
    }
}

#[test]
fn managed_memory_says_so_from_when_it_is_used() {
    let station = station_of(2, "");
    let (mut raw, sum) = holder(&station, &["-q", "-g", "0.5"]);
    assert_eq!(claim(&station, raw.pid()).place.levers.not_detachable, None);
    assert_eq!(raw.ask("managed 4096"), "ok");
    says(&station, raw.pid(), "managed memory");
    assert_eq!(raw.ask("sum 0"), sum, "nothing happened to it");
}

#[test]
fn ipc_says_so_from_when_it_is_used() {
    let station = station_of(2, "");
    let (mut raw, sum) = holder(&station, &["-q", "-g", "0.5"]);
    let id = claim(&station, raw.pid()).id;
    // Of any of its processes.
    let mut other = join(&station, &id);
    let _ = fill(&mut other, 0);
    ready(&station, raw.pid());
    assert_eq!(other.ask("share 0"), "ok");
    says(&station, raw.pid(), "(IPC)");
    assert_eq!(raw.ask("sum 0"), sum, "nothing happened to it");
    // When that one has ended, the claim can be offloaded again.
    assert_eq!(other.finish(), Some(0));
    ready(&station, raw.pid());
    ok(&station, &["offload", &id]);
    assert_eq!(raw.ask("sum 0"), sum);
}

#[test]
fn nccl_says_so_from_when_it_joins_gpus() {
    let station = station_that("", |o| o.gpus = vec!["h100".to_owned(); 2]);
    let (mut raw, sum) = holder(&station, &["-q", "-g", "0.5"]);
    assert_eq!(raw.ask("multicast"), "ok");
    says(&station, raw.pid(), "(NCCL)");
    assert_eq!(raw.ask("sum 0"), sum, "nothing happened to it");
}

#[test]
fn mps_says_so_from_the_start() {
    if !support::root("mps_says_so_from_the_start") {
        return;
    }
    let keys = "[gpu.0]\nmode = \"mps\"\n[gpu.1]\nmode = \"mps\"\n";
    let station = station_of(2, keys);
    let raw = Raw::claim(&station, &["-q", "-g", "0.5"]);
    let why = claim(&station, raw.pid()).place.levers.not_detachable;
    assert!(why.expect("from the start").contains("MPS"));
    says(&station, raw.pid(), "MPS");
}

#[test]
fn a_mig_instance_says_so_from_the_start() {
    let station = station_that("", |o| {
        o.gpus = vec!["a100-80gb:1g.10gb+2g.20gb".to_owned()];
    });
    let mut raw = Raw::claim(&station, &["-q", "-g", "0.25"]);
    assert_eq!(raw.ask("launch 1"), "ok 1");
    let why = claim(&station, raw.pid()).place.levers.not_detachable;
    let why = why.expect("from the start");
    says(&station, raw.pid(), "MIG instance");
    assert!(
        why.contains("MIG instance") || why.contains("starting"),
        "{why}"
    );
    assert_eq!(raw.ask("launch 1"), "ok 2");
}

#[test]
fn that_no_hardware_has_moved_a_claim_is_said_by_the_doctor_and_the_hardware_page() {
    let station = station_of(2, "");
    let (raw, _) = holder(&station, &["-q", "-g", "0.5"]);
    let doctor = run(&station, &["doctor"]);
    let doctor = String::from_utf8_lossy(&doctor.stdout).into_owned();
    let row = doctor.split("moving between GPUs").nth(1).expect("a row");
    assert!(
        row.contains("not tested on hardware with two GPUs"),
        "{doctor}"
    );
    let page = include_str!("../docs/hardware.md");
    let row = page
        .lines()
        .find(|l| l.starts_with("| moving between GPUs"));
    let row = row.expect("a row");
    assert!(row.contains("simulation only") && row.contains("never seen on hardware"));
    drop(raw);
}

#[test]
fn an_old_driver_says_so_from_the_start() {
    for (driver, offloads) in [("560.35.03", false), ("570.86.10", true)] {
        let station = station_that("", |o| {
            o.gpus = vec!["rtx4090".to_owned(); 2];
            o.driver = Some(driver.to_owned());
        });
        let mut raw = Raw::claim(&station, &["-q", "-g", "0.5"]);
        let sum = fill(&mut raw, 0);
        let pid = raw.pid();
        let doctor = String::from_utf8_lossy(&run(&station, &["doctor"]).stdout).into_owned();
        if offloads {
            // Reclaim leaves it alone: such drivers refuse PyTorch (cuda-checkpoint issue 34).
            fixed(&station, pid, "gshare offloads none by itself");
            let levers = claim(&station, pid).place.levers;
            assert!(levers.not_movable.expect("told").contains("580"));
            let id = claim(&station, pid).id;
            ok(&station, &["offload", &id]);
            assert_eq!(on_gpus(&station, pid), 0);
            let notices = station.snapshot().expect("served").notices;
            assert!(
                notices.iter().any(|n| n.text.contains("including PyTorch")),
                "{notices:?}"
            );
            let said = refused(&station, &["move", &id, "--gpu", "1"]);
            assert!(said.contains("release 580"), "{said}");
            assert_eq!(raw.ask("sum 0"), sum);
            assert!(doctor.contains("needs driver release 580"), "{doctor}");
        } else {
            says(&station, pid, "release 570");
            assert_eq!(raw.ask("sum 0"), sum);
        }
    }
}

#[test]
fn a_part_of_the_gpus_in_the_environment_says_so_from_the_start() {
    // Without a device filter it takes the variable to hide the other GPUs.
    let station = station_that("", |o| {
        o.gpus = vec!["rtx4090".to_owned(); 2];
        o.cgroups = false;
    });
    let (mut raw, sum) = holder(&station, &["-q", "-g", "0.5", "--gpu-ids", "0"]);
    let view = claim(&station, raw.pid());
    let why = view.place.levers.not_movable.expect("told");
    assert!(why.contains("CUDA_VISIBLE_DEVICES"), "{why}");
    let json = ok(&station, &["ps", "--json"]);
    assert!(json.contains(&why), "{json}");
    let said = refused(&station, &["move", &view.id, "--gpu", "1"]);
    assert!(said.contains(&why), "{said}");
    // It can leave the GPU, and comes back where it was.
    ok(&station, &["offload", &view.id]);
    assert_eq!(on_gpus(&station, raw.pid()), 0);
    assert_eq!(raw.ask("sum 0"), sum);
    settles(&station, raw.pid(), None);
}

#[test]
fn room_is_made_by_way_of_a_claim_that_can_be_moved() {
    let keys = "[class]\ninteractive = { min-run = \"0s\" }\nbatch = { min-run = \"0s\" }\n\
                [reclaim]\ncountdown = \"1s\"\nquiet = \"1d\"\nhost-ram = 90\n";
    let station = station_of(2, keys);
    let notebook = ["-q", "-g", "0.5", "--limit", "1", "--class", "interactive"];
    // The smaller one would be moved, if it could be.
    let (mut stays, first) = holder(&station, &notebook);
    let (mut goes, second) = holder(&station, &notebook);
    assert_eq!(goes.ask(&format!("alloc {}", 4 * GIB)), "ok 1");
    assert_eq!(stays.ask("managed 4096"), "ok");
    fixed(&station, stays.pid(), "managed memory");
    let gpu = |pid: u32| claim(&station, pid).gpus[0].gpu;
    let (at, other) = (gpu(stays.pid()), gpu(goes.pid()));
    assert_ne!(at, other, "they are spread");
    let whole = Raw::claim(&station, &["-q", "-g", "1"]);
    assert_eq!(gpu(whole.pid()), other);
    assert_eq!((gpu(stays.pid()), gpu(goes.pid())), (at, at));
    assert_eq!((stays.ask("sum 0"), goes.ask("sum 0")), (first, second));
}
