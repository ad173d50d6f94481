//! `gshare admin mig` and `[gpu] mig`: instances are made, used, kept, removed, and made anew after a boot and after the
//! service's death at any step.

use crate::support;

use std::time::Duration;

use gshare::station::Station;
use gshare_proto::ReportView;
use nix::sys::signal::Signal;
use support::detach::{ok, run};
use support::{Raw, board, claim_of, looks, next_look, root, station_with, until};

const SOON: Duration = Duration::from_secs(10);
const CUT: &str = "3g.40gb+2g.20gb+1g.10gb";

fn workstation(gpus: &[&str], config: &str) -> Station {
    station_with(|o| {
        o.gpus = gpus.iter().map(|g| (*g).to_owned()).collect();
        o.tick = "0.1s".to_owned();
        o.config = format!("[claims]\nleftover-grace = \"1s\"\n{config}");
    })
}

/// A refusal on one line.
fn refused(station: &Station, words: &[&str]) -> String {
    let text = support::detach::refused(station, words);
    text.split_whitespace().collect::<Vec<_>>().join(" ")
}

/// What the driver itself says: the instances of a GPU that programs can use.
fn cut(station: &Station, gpu: usize) -> Vec<&'static str> {
    let seen = board(station).snapshot();
    let mut own: Vec<(u32, &str)> = seen
        .gpus
        .iter()
        .filter_map(|g| Some((g.instance?, g.model.slug)))
        .filter(|(i, _)| i.parent == gpu && i.made)
        .map(|(i, slug)| (i.start, slug.split_once(':').map_or(slug, |(_, name)| name)))
        .collect();
    own.sort_unstable();
    own.into_iter().map(|(_, name)| name).collect()
}

fn gpu_of(station: &Station, raw: &Raw) -> u32 {
    let snapshot = station.snapshot().expect("served");
    claim_of(&snapshot, raw.pid()).expect("its claim").gpus[0].gpu
}

#[test]
fn a_layout_is_made_used_by_two_claims_refused_while_in_use_and_removed() {
    if !root("dividing a GPU") {
        return;
    }
    let mut station = workstation(&["h100", "h100"], "");
    let said = ok(&station, &["admin", "mig", "1", CUT, "--dry-run"]);
    assert!(said.contains("would switch GPU 1 to MIG"), "{said}");
    assert!(said.contains("would make 3g.40gb at slice"), "{said}");
    assert!(cut(&station, 1).is_empty());
    // Work on another GPU is not in the way, and is not disturbed.
    let mut beside = Raw::claim(&station, &["-q", "-g", "0.5", "--gpu-ids", "0"]);
    let said = ok(&station, &["admin", "mig", "1", CUT]);
    assert!(
        said.contains(&format!("GPU 1 is divided into {CUT}")),
        "{said}"
    );
    assert!(said.contains("undo: gshare admin mig 1 off"), "{said}");
    assert_eq!(cut(&station, 1), ["3g.40gb", "2g.20gb", "1g.10gb"]);
    assert_eq!(beside.ask("alloc 1073741824"), "ok 0");

    let on_parts = |size: &str| Raw::claim(&station, &["-q", "-g", size, "--gpu-ids", "2,3,4"]);
    let half = on_parts("0.4");
    let mut quarter = on_parts("0.25");
    let at = [gpu_of(&station, &half), gpu_of(&station, &quarter)];
    let models = |station: &Station| -> Vec<String> {
        let gpus = station.snapshot().expect("served").gpus;
        at.map(|g| gpus[g as usize].model.clone()).to_vec()
    };
    let named = models(&station);
    assert!(
        named[0].ends_with("3g.40gb") && named[1].ends_with("2g.20gb"),
        "{named:?}"
    );
    assert_eq!(quarter.ask("sms"), "ok 32");
    assert_eq!(quarter.ask("alloc 1073741824"), "ok 0");

    let text = refused(&station, &["admin", "mig", "1", "off"]);
    assert!(text.contains("GPU 1 is held by"), "{text}");
    let text = refused(&station, &["admin", "mig", "1", "4g.40gb+4g.40gb"]);
    assert!(
        text.contains("do not fit together; 4g.40gb would"),
        "{text}"
    );
    assert!(
        text.contains("1 x 4g.40gb") && text.contains("7 x 1g.10gb"),
        "{text}"
    );
    assert!(text.contains("admin mig 1 4g.40gb --dry-run"), "{text}");
    let text = refused(&station, &["admin", "mig", "1", "5g.50gb"]);
    assert!(text.contains("no profile 5g.50gb"), "{text}");
    assert_eq!(cut(&station, 1).len(), 3);

    // A service that dies finds claims and instances as they were.
    station.stop_service(Signal::SIGKILL).expect("killed");
    station.start_service().expect("starts");
    assert_eq!([gpu_of(&station, &half), gpu_of(&station, &quarter)], at);
    assert_eq!(models(&station), named);
    assert_eq!(quarter.ask("alloc 1048576"), "ok 1");

    drop((half, quarter));
    until("nobody holds it", SOON, || {
        let snapshot = station.snapshot().ok()?;
        (snapshot.claims.len() == 1).then_some(())
    });
    // What stays is not made anew: its UUID is the same.
    let uuid = |station: &Station, name: &str| {
        let gpus = station.snapshot().expect("served").gpus;
        let found = gpus
            .iter()
            .find(|g| g.model.ends_with(name) && !g.uuid.is_empty());
        found.map(|g| (g.index, g.uuid.clone()))
    };
    let before = uuid(&station, "3g.40gb").expect("there");
    ok(&station, &["admin", "mig", "1", "3g.40gb+3g.40gb"]);
    assert_eq!(cut(&station, 1), ["3g.40gb", "3g.40gb"]);
    assert_eq!(uuid(&station, "3g.40gb"), Some(before));
    // Media engines are there once, wherever the instance is.
    let text = refused(&station, &["admin", "mig", "1", "1g.10gb+me,1g.10gb+me"]);
    assert!(
        text.contains("1g.10gb+me would") && text.contains("1 x 1g.10gb+me"),
        "{text}"
    );
    ok(&station, &["admin", "mig", "1", "1g.10gb+me,3g.40gb"]);
    let mut there = cut(&station, 1);
    there.sort_unstable();
    assert_eq!(there, ["1g.10gb+me", "3g.40gb"]);
    ok(&station, &["admin", "mig", "1", "3g.40gb+3g.40gb"]);
    let said = ok(&station, &["admin", "mig", "1", "off"]);
    assert!(
        said.contains("undo: gshare admin mig 1 3g.40gb+3g.40gb"),
        "{said}"
    );
    let said = ok(&station, &["admin", "mig", "1", "off"]);
    assert_eq!(said.trim(), "GPU 1 is already whole");
    let words = [
        "claim",
        "-q",
        "-g",
        "1",
        "--gpu-ids",
        "1",
        "--nonblock",
        "--",
        "true",
    ];
    ok(&station, &words);
    let log = ok(&station, &["admin", "log"]);
    assert!(log.contains("mig") && log.contains(CUT), "{log}");
}

/// The RTX PRO 6000 has profiles with graphics, with all media engines and with none; each of its decoders is there once.
#[test]
fn profiles_with_graphics_and_media_engines_are_named_made_and_refused() {
    if !root("dividing a GPU") {
        return;
    }
    let station = workstation(&["rtxpro6000"], "");
    let divided = |layout: &str| {
        ok(&station, &["admin", "mig", "0", layout]);
        let gpus = station.snapshot().expect("served").gpus;
        let names = gpus.iter().filter(|g| !g.uuid.is_empty());
        let mut named: Vec<String> = names
            .filter_map(|g| Some(g.model.rsplit_once("MIG ")?.1.to_owned()))
            .collect();
        named.sort_unstable();
        (cut(&station, 0), named)
    };
    let (made, named) = divided("2g.48gb+gfx+1g.24gb-me+1g.24gb+me");
    assert_eq!(made, ["2g.48gb+gfx", "1g.24gb-me", "1g.24gb+me"]);
    assert_eq!(named, ["1g.24gb+me", "1g.24gb-me", "2g.48gb+gfx"]);
    let said = ok(&station, &["admin", "mig", "0", "off"]);
    assert!(
        said.contains("2g.48gb+gfx") && said.contains("1g.24gb-me"),
        "{said}"
    );
    // Beside one that has all decoders there is room for those that need none.
    let (made, _) = divided("1g.24gb+me.all,2g.48gb-me,1g.24gb-me");
    assert_eq!(made.len(), 3, "{made:?}");
    let text = refused(&station, &["admin", "mig", "0", "1g.24gb+me.all+1g.24gb"]);
    assert!(
        text.contains("do not fit together; 1g.24gb+me.all would"),
        "{text}"
    );
    for one in [
        "4 x 1g.24gb+gfx",
        "1 x 1g.24gb+me.all",
        "2 x 2g.48gb-me",
        "1 x 4g.96gb+gfx",
    ] {
        assert!(text.contains(one), "{one}: {text}");
    }
}

#[test]
fn a_boot_takes_the_instances_and_the_configuration_makes_them_anew_with_all_that_was_theirs() {
    if !root("dividing a GPU") {
        return;
    }
    let config = format!("[gpu.0]\nmig = \"{CUT}\"\n");
    // In order, and not.
    for (model, end) in [("h100", Signal::SIGTERM), ("a100-80gb", Signal::SIGKILL)] {
        let mut station = workstation(&[model, "h100"], &config);
        assert_eq!(
            cut(&station, 0),
            ["3g.40gb", "2g.20gb", "1g.10gb"],
            "{model}"
        );
        let shown = |station: &Station| -> Vec<(u32, String)> {
            let gpus = station.snapshot().expect("served").gpus;
            gpus.iter().map(|g| (g.index, g.model.clone())).collect()
        };
        let uuids = |station: &Station| -> Vec<String> {
            let gpus = station.snapshot().expect("served").gpus;
            gpus.iter().map(|g| g.uuid.clone()).collect()
        };
        let (before, names) = (uuids(&station), shown(&station));
        assert_eq!(before.len(), 5);
        ok(
            &station,
            &["admin", "quota", "set", "user:root", "--gpus", "1"],
        );
        let quotas = ok(&station, &["admin", "quota", "list"]);
        assert!(quotas.contains("user:root"), "{quotas}");
        let on_it = Raw::claim(&station, &["-q", "-g", "0.25", "--gpu-ids", "3"]);
        let first = next_look(&station);
        until("it is recorded", SOON, || {
            (looks(&station) > first + 5).then_some(())
        });
        drop(on_it);
        ok(&station, &["admin", "drain", "3", "--reason", "noisy"]);
        station.stop_service(end).expect("stopped");
        board(&station).reboot().expect("off and on");
        assert!(cut(&station, 0).is_empty());
        station.start_service().expect("starts");
        assert_eq!(
            cut(&station, 0),
            ["3g.40gb", "2g.20gb", "1g.10gb"],
            "{model}"
        );
        let after = uuids(&station);
        assert_eq!(after[..2], before[..2]);
        assert!((2..5).all(|g| after[g] != before[g]), "{after:?}");
        assert_eq!(shown(&station), names);
        assert_eq!(ok(&station, &["admin", "quota", "list"]), quotas);
        let report = ok(&station, &["report", "--json"]);
        let report: ReportView = serde_json::from_str(&report).expect("a report");
        let of_it = report.gpus.iter().find(|g| g.gpu == Some(3));
        let claimed = of_it.map_or(0.0, |g| g.usage.claimed_gpu_s);
        assert!(claimed > 0.0 || end == Signal::SIGKILL, "{:?}", report.gpus);
        let drained = |g: &str| {
            let words = [
                "claim",
                "-q",
                "-g",
                "0.1",
                "--gpu-ids",
                g,
                "--nonblock",
                "--",
                "true",
            ];
            run(&station, &words)
        };
        assert!(drained("2").status.success() && drained("4").status.success());
        let none = drained("3");
        let text = String::from_utf8_lossy(&none.stderr).into_owned();
        assert_eq!(none.status.code(), Some(75), "{text}");
        assert!(text.contains("GPU 3 is drained (noisy)"), "{text}");
    }
}

#[test]
fn a_service_that_dies_at_any_step_ends_with_what_was_asked_for_also_with_a_boot_between() {
    if !root("dividing a GPU") {
        return;
    }
    let mut station = workstation(&["h100"], "");
    let (one, other) = ("3g.40gb+2g.20gb", "7g.80gb");
    for (step, from, to) in [
        ("mig-mode", "off", one),
        ("mig-made", "off", one),
        ("mig-opened", "off", one),
        ("mig-journaled", one, other),
        ("mig-closed", one, other),
        ("mig-removed", one, other),
        ("mig-made", one, other),
        ("mig-opened", one, other),
        ("mig-closed", one, "off"),
        ("mig-removed", one, "off"),
        ("mig-whole", one, "off"),
    ] {
        for boot in [false, true] {
            ok(&station, &["admin", "mig", "0", from]);
            station.stop_service(Signal::SIGTERM).expect("stops");
            station
                .start_service_with(&["--die-at", step])
                .expect("starts");
            let output = run(&station, &["admin", "mig", "0", to]);
            assert!(!output.status.success(), "{step}: it has not died");
            until("it has died", SOON, || {
                station.service_ended().then_some(())
            });
            if boot {
                board(&station).reboot().expect("off and on");
            }
            station.start_service().expect("starts");
            let wanted: Vec<&str> = to.split('+').filter(|n| *n != "off").collect();
            assert_eq!(
                cut(&station, 0),
                wanted,
                "{step}, {from} to {to}, boot: {boot}"
            );
            let gpu = board(&station).snapshot().gpus[0].clone();
            assert_eq!(
                gpu.mig,
                [to != "off"; 2],
                "{step}, {from} to {to}, boot: {boot}"
            );
            let words = ["claim", "-q", "-g", "0.2", "--nonblock", "--", "true"];
            ok(&station, &words);
        }
    }
}

#[test]
fn a_gpu_that_cannot_be_divided_says_so() {
    if !root("dividing a GPU") {
        return;
    }
    let station = workstation(&["rtx4090"], "");
    let text = refused(&station, &["admin", "mig", "0", "1g.10gb"]);
    assert!(text.contains("the driver cannot divide this GPU"), "{text}");
}
