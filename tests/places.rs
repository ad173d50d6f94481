//! Claims that get their GPU later: what the driver must find in the environment of their programs is there when it
//! looks, and nowhere before.

use crate::support;

use std::process::{Command, Stdio};
use std::time::Duration;

use gshare::station::Station;
use gshare_proto::Source;
use support::{Raw, claim_of, example, python, root, station_with, until};

const SOON: Duration = Duration::from_secs(20);
const MPS: [&str; 5] = [
    "CUDA_MPS_PIPE_DIRECTORY",
    "CUDA_MPS_LOG_DIRECTORY",
    "CUDA_MPS_ACTIVE_THREAD_PERCENTAGE",
    "CUDA_MPS_PINNED_DEVICE_MEM_LIMIT",
    "CUDA_MPS_CLIENT_PRIORITY",
];

/// One H100 that is shared through MPS.
fn through_mps(strict: bool) -> Station {
    let station = station_with(|o| {
        o.strict = strict;
        o.gpus = vec!["h100".to_owned()];
        o.tick = "0.2s".to_owned();
        o.config = "[gpu.0]\nmode = \"mps\"\n[claims]\nleftover-grace = \"1s\"\n[mps]\n".to_owned();
    });
    until("MPS is up", SOON, || {
        let notices = station.snapshot().ok()?.notices;
        notices
            .iter()
            .any(|n| n.text.contains("MPS on GPU 0 is up"))
            .then_some(())
    });
    station
}

/// A lazy claim of the raw client, which waits for its GPU as soon as it starts.
fn lazily(station: &Station, flags: &[&str]) -> Command {
    let mut command = station.command();
    command.args(["claim", "-q", "--lazy"]).args(flags);
    command.arg("--").arg(example("raw_client"));
    command
}

/// What `/proc/PID/environ` shows.
fn environ(pid: u32) -> Vec<String> {
    let block = std::fs::read(format!("/proc/{pid}/environ")).expect("it lives");
    let text = String::from_utf8_lossy(&block).into_owned();
    text.trim_end_matches('\0')
        .split('\0')
        .map(str::to_owned)
        .collect()
}

fn value(environ: &[String], name: &str) -> Option<String> {
    let mut found = environ
        .iter()
        .filter_map(|entry| entry.strip_prefix(name)?.strip_prefix('='));
    let value = found.next().map(str::to_owned);
    assert!(found.next().is_none(), "{name} twice: {environ:?}");
    value
}

fn has_place(environ: &[String], name: &str) -> bool {
    value(environ, &format!("GSHARE_LATER_{name}")).is_some()
}

/// Waits until the claim of a process is in the queue.
fn queued(station: &Station) {
    until("it waits", SOON, || {
        (station.snapshot().ok()?.queue.len() == 1).then_some(())
    });
}

#[test]
fn on_a_gpu_shared_through_mps_it_is_a_client_with_its_part_that_is_read_back() {
    let station = through_mps(false);
    let hog = Raw::claim(&station, &["-q", "-g", "1"]);
    let mut lazy = Raw::spawn(&mut lazily(&station, &["-g", "0.25"]));
    queued(&station);
    let before = environ(lazy.pid());
    for name in MPS {
        assert!(has_place(&before, name), "{name}: {before:?}");
        assert_eq!(value(&before, name), None);
    }
    drop(hog);
    assert_eq!(lazy.line(), "ok ready");
    assert_eq!(
        (lazy.ask("mps"), lazy.ask("sms"), lazy.ask("launch 1")),
        ("ok 1".into(), "ok 32".into(), "ok 1".into())
    );
    let after = environ(lazy.pid());
    for name in MPS {
        assert!(!has_place(&after, name), "{name}: {after:?}");
    }
    let entries_are_whole = after.iter().all(|entry| entry.contains('='));
    assert!(entries_are_whole, "{after:?}");
    let told = |name| value(&after, name).unwrap_or_default();
    let pipe = told("CUDA_MPS_PIPE_DIRECTORY");
    assert!(pipe.ends_with("/mps/0/pipe"), "{after:?}");
    assert!(std::path::Path::new(&pipe).join("control").exists());
    assert_eq!(told("CUDA_MPS_ACTIVE_THREAD_PERCENTAGE").len(), 9);
    let uuid = station.snapshot().expect("served").gpus[0].uuid.clone();
    assert_eq!(told("CUDA_VISIBLE_DEVICES"), uuid);
    // As a program that was started with the same claim in its environment.
    let mut now = station.command();
    now.args(["claim", "-q", "-g", "0.25", "--"]);
    let mut now = Raw::start({
        now.arg(example("raw_client"));
        now
    });
    assert_eq!(now.ask("sms"), "ok 32");
    let ordinary = environ(now.pid());
    for name in MPS {
        let (late, early) = (value(&after, name), value(&ordinary, name));
        if name == "CUDA_MPS_PINNED_DEVICE_MEM_LIMIT" {
            // A quarter of what can be given away: what MPS itself uses came between the two.
            let (late, early) = (mebibytes(late), mebibytes(early));
            assert!(late.abs_diff(early) <= 64, "{late} and {early}");
        } else {
            assert_eq!(late, early, "{name}");
        }
    }
    until("the SMs that the driver showed", SOON, || {
        let snapshot = station.snapshot().ok()?;
        let figure = claim_of(&snapshot, lazy.pid())?.gpus[0].mps_sms?;
        (figure.value == 32.0 && figure.source == Source::Shim).then_some(())
    });
    let snapshot = station.snapshot().expect("served");
    let beside = |text: &str| text.contains("outside MPS");
    assert!(!snapshot.notices.iter().any(|n| beside(&n.text)));
}

/// Of a limit like `0=20124M`.
fn mebibytes(limit: Option<String>) -> u64 {
    let limit = limit.expect("a limit");
    let mib = limit.strip_prefix("0=").and_then(|m| m.strip_suffix('M'));
    mib.and_then(|m| m.parse().ok()).expect("MiB of GPU 0")
}

#[test]
fn children_from_before_and_after_the_grant_have_the_same_part() {
    let Some(bin) = python::bin("children_from_before_and_after_the_grant_have_the_same_part")
    else {
        return;
    };
    let station = through_mps(false);
    let mut command = station.command();
    command
        .args(["claim", "-q", "--lazy", "-g", "0.25", "--"])
        .arg(bin.join("python"))
        .arg(python::script("places.py"))
        .arg(example("raw_client"));
    let output = command.output().expect("runs");
    let said = String::from_utf8_lossy(&output.stdout).into_owned();
    let errors = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(output.status.success(), "{said} {errors}");
    let uuid = station.snapshot().expect("served").gpus[0].uuid.clone();
    let pipe = said
        .lines()
        .find_map(|l| l.strip_prefix("CUDA_MPS_PIPE_DIRECTORY "))
        .and_then(|l| l.split(' ').next())
        .unwrap_or_default();
    assert!(pipe.ends_with("/mps/0/pipe"), "{said}");
    let expected = [
        "before True True True".to_owned(),
        "forked 0 32".to_owned(),
        "own place still empty True".to_owned(),
        "own 0 32".to_owned(),
        // By the C library and in /proc; Python's own copy is of its start.
        format!("CUDA_VISIBLE_DEVICES {uuid} True None"),
        format!("CUDA_MPS_PIPE_DIRECTORY {pipe} True None"),
        "whole True True".to_owned(),
        "child ready 32 1 1".to_owned(),
        "child with the copy ready 32 1 1".to_owned(),
    ];
    assert_eq!(said.lines().collect::<Vec<_>>(), expected, "{errors}");
}

#[test]
fn it_is_a_client_where_caps_are_strict_too() {
    if !root("it_is_a_client_where_caps_are_strict_too") {
        return;
    }
    let station = through_mps(true);
    let mut lazy = Raw::start(lazily(&station, &["-g", "0.25"]));
    assert_eq!(
        (lazy.ask("mps"), lazy.ask("sms")),
        ("ok 1".into(), "ok 32".into())
    );
    let shown = environ(lazy.pid());
    for name in MPS {
        assert!(value(&shown, name).is_some() && !has_place(&shown, name));
    }
}

#[test]
fn a_mig_instance_is_chosen_when_it_is_granted() {
    for cgroups in [true, false] {
        let station = station_with(|o| {
            o.gpus = vec![
                "a100-80gb:1g.10gb+1g.20gb+2g.20gb+3g.40gb".to_owned(),
                "h100".to_owned(),
            ];
            o.config = "[gpu.1]\nmode = \"mig\"\n".to_owned();
            o.cgroups = cgroups;
        });
        let mut lazy = Raw::start(lazily(&station, &["-g", "0.25"]));
        let snapshot = station.snapshot().expect("served");
        let part = claim_of(&snapshot, lazy.pid()).expect("its claim").gpus[0].clone();
        assert!(part.uuid.starts_with("MIG-"), "{part:?}");
        assert_eq!(
            (lazy.ask("count"), lazy.ask("sms")),
            ("ok 1".into(), "ok 28".into())
        );
        let own = lazy.ask("uuid").replace("GPU-", "MIG-");
        assert_eq!(own, format!("ok {}", part.uuid));
        let shown = environ(lazy.pid());
        assert_eq!(value(&shown, "CUDA_VISIBLE_DEVICES"), Some(part.uuid));
        for name in MPS {
            assert!(has_place(&shown, name) && value(&shown, name).is_none());
        }
    }
}

#[test]
fn in_time_slices_a_filter_hides_the_other_gpus_or_the_variable_does() {
    for cgroups in [true, false] {
        let station = station_with(|o| {
            o.gpus = vec!["rtx4090".to_owned(); 2];
            o.cgroups = cgroups;
        });
        let hog = Raw::claim(&station, &["-q", "-g", "1"]);
        let taken = claim_of(&station.snapshot().expect("served"), hog.pid())
            .expect("its claim")
            .gpus[0]
            .gpu;
        // What somebody had chosen before counts no more than in any other claim.
        let mut command = lazily(&station, &["-g", "0.25"]);
        let mut lazy = Raw::start({
            command.env("CUDA_VISIBLE_DEVICES", taken.to_string());
            command
        });
        let other = &station.snapshot().expect("served").gpus[1 - taken as usize];
        assert_eq!(
            (lazy.ask("count"), lazy.ask("uuid")),
            ("ok 1".into(), format!("ok {}", other.uuid))
        );
        let shown = environ(lazy.pid());
        for name in MPS {
            assert!(
                has_place(&shown, name) && value(&shown, name).is_none(),
                "{name}: {shown:?}"
            );
        }
        // Where no filter hides the other GPUs the variable does, as in a claim that starts with its GPU.
        let service = station.snapshot().expect("served").service;
        let filtered = service.expect("it serves").device_filter;
        let variable = value(&shown, "CUDA_VISIBLE_DEVICES");
        assert_eq!(variable.is_none(), filtered, "{variable:?}");
        until("it is known whether it can be moved", SOON, || {
            let snapshot = station.snapshot().ok()?;
            let levers = &claim_of(&snapshot, lazy.pid())?.place.levers;
            let as_said = levers.not_movable.is_none() == filtered;
            (as_said && levers.not_detachable.is_none()).then_some(())
        });
        // One that is not to be moved has its GPUs in the variable, as claims that start with them.
        let mut fixed = Raw::start(lazily(&station, &["-g", "0.25", "--no-movable"]));
        assert_eq!(fixed.ask("count"), "ok 1");
        let shown = environ(fixed.pid());
        assert_eq!(
            value(&shown, "CUDA_VISIBLE_DEVICES").as_deref(),
            Some(other.uuid.as_str())
        );
    }
}

/// What a claim through MPS has in its environment is not for one that is made inside it, on another GPU.
#[test]
fn a_claim_within_one_through_mps_is_no_client_of_its_daemon() {
    let station = station_with(|o| {
        o.gpus = vec!["h100".to_owned(), "h100".to_owned()];
        o.tick = "0.2s".to_owned();
        o.config = "[gpu.0]\nmode = \"mps\"\n".to_owned();
    });
    until("MPS is up", SOON, || {
        let notices = station.snapshot().ok()?.notices;
        let up = |text: &str| text.contains("MPS on GPU 0 is up");
        notices.iter().any(|n| up(&n.text)).then_some(())
    });
    for later in [None, Some("--lazy")] {
        let mut outer = station.command();
        let gshare = outer.get_program().to_owned();
        outer
            .args(["claim", "-q", "-g", "0.25", "--gpu-ids", "0", "--"])
            .arg(gshare)
            .args(["claim", "-q", "-g", "0.25", "--gpu-ids", "1"])
            .args(later)
            .arg("--")
            .arg(example("raw_client"));
        let mut inner = Raw::start(outer);
        assert_eq!(
            (inner.ask("mps"), inner.ask("count"), inner.ask("launch 1")),
            ("ok 0".into(), "ok 1".into(), "ok 1".into()),
            "{later:?}"
        );
        let shown = environ(inner.pid());
        for name in MPS {
            assert_eq!(value(&shown, name), None, "{later:?}");
        }
        let snapshot = station.snapshot().expect("served");
        // The same process was the outer claim's command before.
        let mut its = snapshot
            .claims
            .iter()
            .filter(|c| c.pid == Some(inner.pid()));
        let own = its.find(|c| c.gpus[0].gpu == 1);
        assert!(own.is_some(), "{later:?}: {:?}", snapshot.claims);
    }
}

#[test]
fn places_of_others_are_left_alone_and_a_program_without_them_is_told() {
    let station = through_mps(false);
    // Outside every claim, and in one that had its GPU at once: names that nobody knows.
    let place = ("GSHARE_LATER_CUDA_VISIBLE_DEVICES", "_".repeat(60));
    let mut libraries = station.command();
    libraries.args(["claim", "-q", "--", "sh", "-c", "echo $LD_LIBRARY_PATH"]);
    let libraries = libraries.output().expect("runs").stdout;
    let libraries = String::from_utf8_lossy(&libraries).trim().to_owned();
    let mut outside = station.client_environment(Command::new(example("raw_client")));
    outside
        .env("LD_LIBRARY_PATH", libraries)
        .env(place.0, &place.1);
    let mut outside = Raw::start(outside);
    assert_eq!(
        (outside.ask("count"), outside.ask("mps")),
        ("ok 1".into(), "ok 0".into())
    );
    assert_eq!(
        value(&environ(outside.pid()), place.0).as_ref(),
        Some(&place.1)
    );
    drop(outside);
    let mut ordinary = station.command();
    ordinary.args(["claim", "-q", "-g", "0.25", "--"]);
    ordinary.arg(example("raw_client")).env(place.0, &place.1);
    let ordinary = Raw::start(ordinary);
    let shown = environ(ordinary.pid());
    assert_eq!(value(&shown, place.0).as_ref(), Some(&place.1));
    drop(ordinary);

    let mut without = station.command();
    without
        .args(["claim", "-q", "--lazy", "-g", "0.25", "--", "env"])
        .args(["-u", "GSHARE_LATER_CUDA_MPS_PIPE_DIRECTORY"])
        .arg(example("raw_client"))
        .stdin(Stdio::null());
    let said = without.output().expect("runs").stderr;
    let said = String::from_utf8_lossy(&said).into_owned();
    assert!(
        said.contains("CUDA_MPS_PIPE_DIRECTORY cannot be set") && said.contains("gshare join c"),
        "{said}"
    );

    // A daemon of MPS that somebody had before is not the claim's.
    let mut before = lazily(&station, &["-g", "0.25"]);
    before.env("CUDA_MPS_PIPE_DIRECTORY", "/nonexistent/pipe");
    let mut before = Raw::start(before);
    assert_eq!(
        (before.ask("mps"), before.ask("sms")),
        ("ok 1".into(), "ok 32".into())
    );
}
