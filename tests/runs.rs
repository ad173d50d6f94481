//! Records of runs: what they say of real runs, who may see them, and when waiting claims start by them.

use crate::support;

use std::process::Output;
use std::time::Instant;

use gshare::station::Station;
use gshare_proto::SuggestView;
use serde_json::{Value, json};
use support::runs::{GIB, SOON, alloc, looked, ok, recorded, records, runs, sized, sized_on};
use support::users::{Users, as_user, reachable};
use support::{Raw, claim_of, example, root, until};

fn number(record: &Value, field: &str) -> f64 {
    let value = record[field].as_f64();
    value.unwrap_or_else(|| panic!("{field} is not known: {record}"))
}

#[test]
fn every_field_of_a_record_is_what_the_run_was_and_did() {
    let station = sized_on("h100", "add_one 10ms\n", "");
    let mut command = station.command();
    command
        .env("JPY_SESSION_NAME", "/home/ada/vit/vit.ipynb")
        .args([
            "claim",
            "-q",
            "--class",
            "batch",
            "--gpu-mem",
            "8G",
            "--gpu-mem-limit",
            "10G",
        ])
        .args(["--sm", "20%", "--limit", "50%", "--"])
        .arg(example("raw_client"))
        .args([
            "libcuda.so.1",
            "--batch_size=32",
            "--data",
            "/data/run17/set3.bin",
            "--amp",
        ]);
    let began = Instant::now();
    let mut raw = Raw::start(command);
    let _ = alloc(&mut raw, 2);
    looked(&station, 10);
    let _ = alloc(&mut raw, 4);
    assert!(
        raw.ask(&format!("alloc {}", 6 * GIB)).starts_with("error"),
        "it is refused once"
    );
    let pid = raw.pid();
    // It works until it has borrowed above its 20 %, has been held back by its 50 %, and the driver has said its SMs.
    let view = until("it works", SOON, || {
        assert!(raw.ask("launch 5").starts_with("ok"));
        let snapshot = station.snapshot().ok()?;
        let claim = claim_of(&snapshot, pid)?;
        let part = claim.gpus.first()?;
        let enough = began.elapsed().as_secs() >= 3
            && claim.identity.notebook.is_some()
            && part.sm_active.is_some()
            && part.sm_occupancy.is_some();
        enough.then(|| claim.clone())
    });
    let model = station.snapshot().expect("served").gpus[0].model.clone();
    assert_eq!(raw.finish(), Some(0));
    recorded(&station, 1);
    let took = began.elapsed().as_secs_f64();
    let r = &records(&station)[0];
    for (field, value) in [
        ("uid", json!(nix::unistd::Uid::effective().as_raw())),
        ("project", json!(view.project)),
        ("class", json!("batch")),
        ("program", json!("raw_client")),
        ("script", json!("raw_client")),
        ("numbers", json!([["batch-size", 32.0]])),
        ("notebook", json!("/home/ada/vit/vit.ipynb")),
        ("gpu_model", json!(model)),
        ("gpus", json!(1)),
        ("asked_mem", json!(8 * GIB)),
        ("asked_sm", json!(0.2)),
        ("end", json!("command exited")),
        ("exit_code", json!(0)),
        ("refusals", json!(1)),
    ] {
        assert_eq!(r[field], value, "{field}: {r}");
    }
    // Arguments are compared, and their words are not kept.
    let words = r["words"].as_str().expect("words");
    let hex = |c: char| c.is_ascii_hexdigit();
    assert!(words.len() == 16 && words.chars().all(hex), "{r}");
    let gib = |value: &Value| value.as_f64().expect("bytes") / GIB as f64;
    assert!((6.0..7.0).contains(&gib(&r["peak"])), "{r}");
    let quantiles: Vec<f64> = r["mem"]
        .as_array()
        .expect("three")
        .iter()
        .map(gib)
        .collect();
    assert!(
        quantiles.is_sorted() && quantiles[2] <= gib(&r["peak"]),
        "{r}"
    );
    assert!(quantiles[0] >= 2.0 && quantiles[2] >= 6.0, "{r}");
    let course: Vec<f64> = r["parts"]
        .as_array()
        .expect("parts")
        .iter()
        .map(gib)
        .collect();
    // The last look may find the program ending, its memory freed.
    assert!(
        course.len() == 32 && course[0] < 4.0 && course[30] >= 6.0,
        "{r}"
    );
    // One block at a time: hardly any SMs, but of the GPU's time what it was let have.
    for field in ["sm_active", "occupancy"] {
        let part = number(r, field);
        assert!(part > 0.0 && part < 0.5, "{field}: {r}");
    }
    let [gpu, burst, throttled, seconds] =
        ["gpu_s", "burst_gpu_s", "throttled_s", "seconds"].map(|f| number(r, f));
    assert!(seconds > 2.5 && seconds <= took, "{seconds} of {took}: {r}");
    assert!(gpu > 0.3 && gpu < seconds, "{r}");
    assert!(burst > 0.0 && burst < gpu, "{r}");
    assert!(throttled > 0.0 && throttled < seconds, "{r}");
    let busy: f64 = r["busy"]
        .as_array()
        .expect("twentieths")
        .iter()
        .filter_map(Value::as_f64)
        .sum();
    assert!(busy > 0.5 * seconds && busy <= seconds * 1.1, "{r}");
}

#[test]
fn a_record_says_how_the_run_ended() {
    let station = sized("");
    let mut failing = station.command();
    failing.args([
        "claim",
        "-q",
        "-g",
        "0.1",
        "--",
        "sh",
        "-c",
        "read line; exit 3",
    ]);
    let mut failing = Raw::spawn(&mut failing);
    let mut killed = Raw::claim(&station, &["-q", "-g", "0.1"]);
    let released = Raw::claim(&station, &["-q", "-g", "0.1", "--name", "mine"]);
    until("all are there", SOON, || {
        (station.snapshot().ok()?.claims.len() == 3).then_some(())
    });
    looked(&station, 4);
    failing.tell("go");
    assert_eq!(failing.finish(), Some(3));
    killed.kill();
    ok(&station, &["release", "mine"]);
    recorded(&station, 3);
    let all = records(&station);
    let found = |test: &dyn Fn(&Value) -> bool| {
        let found = all.iter().filter(|r| test(r)).count();
        assert_eq!(found, 1, "{all:?}");
    };
    found(&|r| r["program"] == "sh" && r["exit_code"] == 3 && r["exit_signal"].is_null());
    found(&|r| r["end"] == "command exited" && r["exit_signal"] == 9 && r["exit_code"].is_null());
    found(&|r| r["end"] == "released");
    drop(released);
}

fn suggested(output: &Output) -> SuggestView {
    assert!(
        output.status.success(),
        "{}",
        String::from_utf8_lossy(&output.stderr)
    );
    serde_json::from_slice(&output.stdout).expect("JSON")
}

#[test]
fn runs_are_shared_within_a_group_where_the_configuration_says_so() {
    if !root("runs_are_shared_within_a_group_where_the_configuration_says_so") {
        return;
    }
    let users = Users::make();
    users.share_group(0, 1);
    let asked = |station: &Station, user: usize| {
        let mut command = station.command();
        command
            .args(["suggest", "--json", "--"])
            .arg(reachable(station));
        let output = as_user(command, users.uid(user)).output().expect("runs");
        suggested(&output).suggestions.remove(0)
    };
    for shared in [true, false] {
        let station = sized(if shared {
            "share-runs = \"group\"\n"
        } else {
            ""
        });
        let mut all: Vec<Raw> = (0..3)
            .map(|_| {
                let mut command = station.command();
                command.args(["claim", "-q", "--gpu-mem", "6G", "--sm", "20%", "--"]);
                command.arg(reachable(&station));
                Raw::start(as_user(command, users.uid(0)))
            })
            .collect();
        for raw in &mut all {
            let _ = alloc(raw, 5);
        }
        looked(&station, 4);
        for raw in all {
            assert_eq!(raw.finish(), Some(0));
        }
        until("its own runs count", SOON, || {
            (asked(&station, 0).runs.len() == 3).then_some(())
        });
        let said = asked(&station, 1);
        if shared {
            assert_eq!(
                (said.level.as_str(), said.confidence.as_str()),
                ("shared", "fair")
            );
            assert!((5 * GIB..9 * GIB).contains(&said.mem), "{said:?}");
            let first = "3 earlier runs of raw_client by others of your group: peak 5";
            assert!(said.reasons[0].starts_with(first), "{said:?}");
        } else {
            assert_eq!(said.level, "prior", "private unless it is said");
        }
        let stranger = asked(&station, 2);
        assert_eq!((stranger.level.as_str(), stranger.runs.len()), ("prior", 0));
        let mut list = station.command();
        list.args(["suggest", "--records"]);
        let list = as_user(list, users.uid(1)).output().expect("runs");
        assert!(
            list.status.success() && list.stdout.is_empty(),
            "records stay their user's"
        );
    }
}

#[test]
fn queue_and_why_say_when_a_waiting_claim_starts_by_how_long_runs_took() {
    let station = sized("");
    // Each takes about eight seconds.
    runs(
        &station,
        &["-q", "--gpu-mem", "6G", "--sm", "20%"],
        1,
        3,
        80,
    );
    let mut took: Vec<f64> = records(&station)
        .iter()
        .map(|r| number(r, "seconds"))
        .collect();
    took.sort_by(f64::total_cmp);
    let held = Raw::claim(&station, &["-q", "-g", "0.9"]);
    let mut waits = station.command();
    waits
        .args(["claim", "-q", "-g", "0.5", "--"])
        .arg(example("raw_client"));
    let mut waits = Raw::spawn(&mut waits);
    let (view, queue, why) = until("its start is expected", SOON, || {
        let snapshot = station.snapshot().ok()?;
        let view = snapshot
            .queue
            .first()
            .filter(|w| w.expected.is_some())?
            .clone();
        let queue = ok(&station, &["queue"]);
        let why = ok(&station, &["why", &view.id]);
        Some((view, queue, why))
    });
    let expected = view.expected.expect("known");
    assert!(!expected.certain, "nobody has set an end: {expected:?}");
    let high = expected.high_s.expect("runs end") as f64;
    assert!(
        high <= 1.3 * took[2] + 11.0,
        "{expected:?}, runs took {took:?}"
    );
    assert!(queue.contains(&expected.when()), "{expected:?} {queue}");
    let told = format!("it starts {} (earlier runs such as ", expected.when());
    assert!(why.contains(&told), "{told} {why}");
    assert_eq!(held.finish(), Some(0));
    assert_eq!(waits.line(), "ok ready");
    assert_eq!(waits.finish(), Some(0));
    // A program that waits for its GPU with its first call is told the same. Once more if this took longer than the runs
    // did: from then on nobody knows.
    until("it is told as well", 3 * SOON, || told_later(&station));
}

/// What a program is told that waits for its GPU with its first call, if that says when by earlier runs.
fn told_later(station: &Station) -> Option<()> {
    let held = Raw::claim(station, &["-q", "-g", "0.9"]);
    let lazy = |told: &str| {
        let mut command = station.command();
        command
            .args(["claim", "-q", "--lazy", "-g", "0.25", "--"])
            .arg(example("raw_client"))
            .stderr(std::fs::File::create(station.dir().join(told)).expect("made"));
        Raw::spawn(&mut command)
    };
    let _first = lazy("first");
    until(
        "it is known how long it takes, or that it takes longer",
        SOON,
        || {
            let snapshot = station.snapshot().ok()?;
            let since = claim_of(&snapshot, held.pid())?.since_ms;
            let held_for = snapshot.taken_ms.saturating_sub(since);
            let known = snapshot.queue.first()?.expected.is_some();
            (known || held_for > 15_000).then_some(())
        },
    );
    let _second = lazy("second");
    // First that it waits, then when it starts.
    let words = ["waits for its GPU", "starts ", "earlier runs such as "];
    let told = until(
        "it is told that it waits, and when that ends or that it has started",
        SOON,
        || {
            let text = std::fs::read_to_string(station.dir().join("second")).ok()?;
            let told = words.iter().all(|w| text.contains(w));
            (told || station.snapshot().ok()?.queue.is_empty()).then_some(told)
        },
    );
    told.then_some(())
}
