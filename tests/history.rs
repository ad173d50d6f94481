//! Claimed and used amounts, the need of runs, and sizes from experience.

use crate::faults::SmallDisk;
use crate::support;

use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, Instant};

use gshare::demo::Job;
use gshare::station::Station;
use gshare_proto::{
    Call, ClaimGpu, HistoryBy, HistorySpec, HistoryView, Reply, ReportSpec, ReportView,
};
use nix::sys::signal::Signal;
use rusqlite::Connection;
use serde_json::{Value, json};
use support::runs::{alloc, free, looked, recorded, records, runs, sized, sized_on, suggestion};
use support::{
    GIB, Raw, SOON, claim_of, example, has_all, looks, ok, root, station_with, tried, until, words,
};

// Claimed and used, over real processes: reports, restarts, kill -9 in the middle, a full disk.

/// Programs on a busy machine get their processor late.
const LATER: Duration = Duration::from_secs(40);

fn quick() -> Station {
    station_with(|o| {
        o.tick = "0.1s".to_owned();
        o.costs = "train_step 4ms\n".to_owned();
        o.config =
            "[claims]\nleftover-grace = \"1s\"\n[history]\nwork-hours = \"always\"\n".to_owned();
    })
}

/// The report of the last hour.
pub(crate) fn ask(station: &Station) -> Option<ReportView> {
    let spec = ReportSpec {
        from_ms: hour_ago(),
        ..ReportSpec::default()
    };
    match station.client().ok()?.call(&Call::Report(spec)).ok()? {
        Reply::Report(report) => Some(*report),
        other => panic!("{other:?}"),
    }
}

fn hour_ago() -> u64 {
    let now = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH);
    u64::try_from(now.expect("after 1970").as_millis()).expect("fits") - 3_600_000
}

pub(crate) fn history(station: &Station, by: HistoryBy, key: Option<&str>) -> HistoryView {
    let spec = HistorySpec {
        from_ms: hour_ago(),
        points: 360,
        by,
        key: key.map(str::to_owned).map(Into::into),
        ..HistorySpec::default()
    };
    match station.client().expect("served").call(&Call::History(spec)) {
        Ok(Reply::History(view)) => *view,
        other => panic!("{other:?}"),
    }
}

#[test]
fn a_report_has_claimed_used_idle_by_cause_and_waited() {
    let station = quick();
    // An H100 to itself: its counters are the claim's. It idles with its program asleep.
    let mut asleep = Raw::claim(
        &station,
        &["-q", "-g", "0.5", "--gpu-ids", "2", "--name", "sleeper"],
    );
    assert_eq!(asleep.ask("alloc 1073741824"), "ok 0");
    // A claim whose program computes on the processor only.
    let mut command = station.command();
    command.args("claim -q -g 0.25 --gpu-ids 3 --name burner".split(' '));
    command.args(["--", "sh", "-c", "while :; do :; done"]);
    let mut burner = command.spawn().expect("starts");
    // A claim that waits for a GPU that never becomes free.
    let mut command = station.command();
    command.args(["claim", "-q", "-g", "1", "--gpu-ids", "2", "--", "true"]);
    let mut waits = command.spawn().expect("starts");

    let most = |report: &ReportView, what: &str, cause: &str| {
        let held = report.worst.iter().find(|w| w.what == what);
        held.is_some_and(|w| w.cause.as_deref() == Some(cause))
    };
    let report = until("the report has all of it", LATER, || {
        let report = ask(&station)?;
        let all = most(&report, "burner", "CPU busy")
            && most(&report, "sleeper", "kernel idle")
            && report.total.waited_gpu_s > 0.5;
        all.then_some(report)
    });
    let user = &report.users[0];
    assert_eq!((report.users.len(), report.gpu_count), (1, 4));
    assert_eq!(user.uid, nix::unistd::Uid::effective().as_raw());
    let usage = user.usage;
    // Everything claimed was idle, and that is known.
    assert!(
        usage.idle.total() <= usage.claimed_gpu_s + 1e-6,
        "{usage:?}"
    );
    assert_eq!(usage.average_use().map(f64::round), Some(0.0), "{usage:?}");
    assert!(report.known_s > 0.0 && report.known_s < 60.0);
    // The same figures beside the claim and its owner.
    let snapshot = until("the claim has its sums", SOON, || {
        let snapshot = station.snapshot().ok()?;
        let claim = claim_of(&snapshot, asleep.pid())?;
        (claim.usage?.claimed_gpu_s > 0.3).then_some(snapshot)
    });
    assert!(snapshot.claims.iter().all(|c| c.usage.is_some()));
    let list = ok(&station, &["ps"]);
    has_all(&list, &["AVG USE", "IDLE h"]);
    let status = until("the last day is known", LATER, || {
        let status = ok(&station, &["status"]);
        status.contains("last 24 h").then_some(status)
    });
    has_all(&status, &["BURST"]);

    // Lines over time, of all, of the GPU and of the claim.
    let all = history(&station, HistoryBy::User, None);
    assert_eq!(all.series[0].key, "all");
    assert!(
        all.heat
            .is_some_and(|h| h.claimed.len() == 7 && h.used[0].len() == 24)
    );
    let gpu = history(&station, HistoryBy::Gpu, Some("2"));
    let point = gpu.series[0].points.last().expect("a point");
    assert!((point.claimed - 0.5).abs() < 0.05, "{point:?}");
    assert!(
        point.used.is_some() && point.mem_used.is_some_and(|b| b > 1e9),
        "{point:?}"
    );
    let sleeper = claim_of(&snapshot, asleep.pid()).map(|c| c.id.clone());
    let claim = history(&station, HistoryBy::Claim, sleeper.as_deref());
    assert_eq!(claim.series.len(), 1);

    // For display, for programs and for spreadsheets.
    let shown = ok(&station, &["report", "--since", "1h"]);
    for word in [
        "CLAIMED",
        "AVG USE",
        "claims with the most idle time",
        "burner",
        "over time",
    ] {
        assert!(shown.contains(word), "{word} is not in\n{shown}");
    }
    let json: ReportView =
        serde_json::from_str(&ok(&station, &["report", "--json"])).expect("a report");
    assert!(json.total.claimed_gpu_s >= report.total.claimed_gpu_s);
    let csv = ok(&station, &["report", "--csv"]);
    assert_eq!(csv.lines().count(), 3, "{csv}");
    let mail = ok(&station, &["report", "--text"]);
    assert!(mail.lines().count() <= 25, "{mail}");
    assert!(
        mail.contains("user 1 ") && !mail.contains(&user.user),
        "{mail}"
    );
    let stored = ok(&station, &["report", "--mine", "--raw"]);
    let stored = stored.lines().map(serde_json::from_str);
    let stored: Vec<Value> = stored.collect::<Result<_, _>>().expect("JSON lines");
    for table in ["claim", "event", "face", "ten"] {
        assert!(stored.iter().any(|row| row["table"] == table), "{table}");
    }
    let dir = tempfile::tempdir().expect("a directory");
    let file = dir.path().join("report.html");
    let file = file.to_str().expect("a path in UTF-8");
    ok(&station, &["report", "--names", "--html", file]);
    let page = std::fs::read_to_string(file).expect("a page");
    has_all(&page, &[&user.user, "burner"]);
    let nobody = station
        .command()
        .args(["report", "--user", "nobody-there"])
        .output();
    assert_eq!(nobody.expect("runs").status.code(), Some(64));

    for child in [&mut burner, &mut waits] {
        let _ = child.kill();
        let _ = child.wait();
    }
}

/// The memory of an offloaded claim is free for others. The report named root, and the year 1970, as owner and start
/// of claims that ended within their first step of 5 s.
#[test]
fn a_short_claim_has_its_owner_and_its_start_in_the_report() {
    let station = quick();
    let start = hour_ago() + 3_600_000;
    for name in ["short", "auto"] {
        let size = if name == "auto" { "auto" } else { "0.5" };
        let line = format!("claim -q -g {size} --name {name} -- sleep 0.7");
        ok(&station, &words(&line));
    }
    let report = until("the report has both", LATER, || {
        ask(&station).filter(|report| report.worst.len() == 2)
    });
    let me = report.users[0].user.clone();
    for claim in &report.worst {
        assert!(claim.since_ms >= start && claim.user == me, "{claim:?}");
    }
    let (_, text) = tried(&station, &["report"]);
    let row = |name: &str| text.lines().find(|l| l.contains(name)).map(str::to_owned);
    for row in ["short", "auto"].map(row) {
        assert!(row.is_some_and(|row| row.contains(&*me)), "{text}");
    }
    assert!(!text.contains("1970"), "{text}");
}

#[test]
fn use_counts_against_the_size_that_the_claim_had_then() {
    let station = station_with(|o| o.tick = "2s".to_owned());
    let raw = Raw::claim(&station, &["-q", "-g", "0.5", "--gpu-ids", "2"]);
    let claimed = || {
        let snapshot = station.snapshot().ok()?;
        Some(claim_of(&snapshot, raw.pid())?.usage?.claimed_gpu_s)
    };
    let first = until("its sums", SOON, claimed);
    let before = until("a look", SOON, || claimed().filter(|sum| *sum > first));
    let looked = Instant::now();
    std::thread::sleep(Duration::from_millis(2900));
    ok(&station, &["resize", "c1", "-g", "0.1"]);
    let held = looked.elapsed().as_secs_f64();
    let sum = claimed().expect("sums") - before;
    assert!((sum - 0.5 * held).abs() < 0.2, "{sum} of {held} s");
    assert_eq!(raw.finish(), Some(0));
}

#[test]
fn what_is_in_host_memory_is_not_claimed() {
    let station = quick();
    let start = Instant::now();
    let mut raw = Raw::claim(&station, &["-q", "-g", "0.5", "--gpu-ids", "2"]);
    assert_eq!(raw.ask("alloc 1073741824"), "ok 0");
    let snapshot = until("a member", SOON, || {
        let snapshot = station.snapshot().ok()?;
        claim_of(&snapshot, raw.pid())?;
        Some(snapshot)
    });
    let id = claim_of(&snapshot, raw.pid()).expect("there").id.clone();
    assert!((snapshot.users[0].claimed - 0.5).abs() < 1e-6);
    ok(&station, &["offload", &id]);
    let held = start.elapsed().as_secs_f64();

    let snapshot = station.snapshot().expect("served");
    let user = &snapshot.users[0];
    assert_eq!((user.claims, user.claimed, user.mem_claimed), (1, 0.0, 0));
    let list = ok(&station, &["ps"]);
    let row: Vec<&str> = list
        .lines()
        .find(|l| l.starts_with(&format!("{id} ")))
        .expect("a row")
        .split_whitespace()
        .collect();
    assert!(row.contains(&"-") && !row.contains(&"2"), "{list}");

    let report = until("it was looked at for long enough", LATER, || {
        ask(&station).filter(|r| r.known_s > held + 14.0)
    });
    let claimed = report.users.first().map_or(0.0, |u| u.usage.claimed_gpu_s);
    assert!(claimed <= 0.5 * (held + 2.0), "{held} {report:?}");
    assert_eq!(raw.finish(), Some(0));
}

#[test]
fn use_is_told_where_counters_know_it() {
    let station = quick();
    let job = Job::Steady {
        kernel: "train_step".to_owned(),
        grid: 66,
        block: 1024,
        mib: 64,
        pause_ms: 0,
    };
    let mut command = station.command();
    command.args(["claim", "-q", "-g", "0.5", "--gpu-ids", "2", "--"]);
    command.arg(station.laboratory()).args(job.arguments());
    let mut busy = command.spawn().expect("starts");
    let user = until("it is used", SOON, || {
        let report = ask(&station)?;
        let user = report.users.first()?.clone();
        (user.usage.used_gpu_s? > 0.0).then_some(user)
    });
    assert!(
        user.usage.average_use().is_some_and(|p| p > 0.0),
        "{user:?}"
    );
    // The GPU itself says so, too.
    let gpu = history(&station, HistoryBy::Gpu, Some("2"));
    assert!(
        gpu.series[0]
            .points
            .iter()
            .any(|p| p.used.is_some_and(|u| u > 0.0))
    );
    let _ = busy.kill();
    let _ = busy.wait();
}

fn sums(db: &Path) -> (String, f64) {
    let db = Connection::open(db).expect("opens");
    let check = db.query_row("PRAGMA integrity_check", [], |r| r.get(0));
    let claimed = db.query_row(
        "SELECT coalesce(sum(claimed), 0) / 1000.0 FROM ten JOIN series s ON s.id = series WHERE s.kind = 2",
        [],
        |r| r.get(0),
    );
    (check.expect("checked"), claimed.expect("summed"))
}

#[test]
fn the_history_survives_kill_9_in_the_middle_of_writing() {
    let mut station = quick();
    let began = Instant::now();
    let mut held = Raw::claim(&station, &["-q", "-g", "0.5", "--gpu-ids", "2"]);
    assert_eq!(held.ask("alloc 1048576"), "ok 0");
    let db = station.dir().join("state/history.db");
    let mut last = 0.0;
    for round in 0..6 {
        // Queries make it write; it is killed meanwhile.
        let socket = station.socket();
        let asked = Arc::new(AtomicU32::new(0));
        let count = Arc::clone(&asked);
        let asker = std::thread::spawn(move || {
            while let Ok(mut client) = gshare_proto::Client::connect(&socket) {
                let spec = ReportSpec {
                    from_ms: hour_ago(),
                    ..ReportSpec::default()
                };
                match client.call(&Call::Report(spec)) {
                    Ok(_) => count.fetch_add(1, Ordering::Relaxed),
                    Err(_) => break,
                };
            }
        });
        until("it has written more", SOON, || {
            let usage = ask(&station)?.total.claimed_gpu_s;
            (usage > last + 0.05 && asked.load(Ordering::Relaxed) > 1).then_some(())
        });
        station.stop_service(Signal::SIGKILL).expect("killed");
        asker.join().expect("asked");
        let (check, claimed) = sums(&db);
        assert_eq!(check, "ok", "round {round}");
        assert!(claimed >= last, "{claimed} after {last}");
        assert!(
            claimed <= 0.5 * began.elapsed().as_secs_f64() + 0.1,
            "{claimed}"
        );
        last = claimed;
        station.start_service().expect("starts again");
    }
    // The claim's earlier sums are kept.
    let usage = until("the claim's sums are found again", SOON, || {
        let snapshot = station.snapshot().ok()?;
        claim_of(&snapshot, held.pid())?.usage
    });
    assert!(usage.claimed_gpu_s >= last - 1e-6, "{usage:?} after {last}");
    drop(held);
}

#[test]
fn a_full_disk_delays_the_history_and_loses_nothing() {
    root!("a_full_disk_delays_the_history_and_loses_nothing");
    let mut station = quick();
    station.stop_service(Signal::SIGTERM).expect("stopped");
    let state = station.dir().join("state");
    let disk = SmallDisk::mount(&state, "0711");
    station.start_service().expect("starts");
    let mut held = Raw::claim(&station, &["-q", "-g", "0.5", "--gpu-ids", "2"]);
    assert_eq!(held.ask("alloc 1048576"), "ok 0");
    let claimed = |station: &Station| ask(station).map(|r| r.total.claimed_gpu_s);
    let before = until("something is kept", SOON, || {
        claimed(&station).filter(|c| *c > 0.1)
    });
    let ballast = disk.fill();

    let doctor = until("the doctor says so", SOON, || {
        // Each query makes it try to write.
        let _ = ask(&station);
        let shown = station.command().arg("doctor").output().ok()?;
        let shown = String::from_utf8_lossy(&shown.stdout).into_owned();
        shown.contains("cannot write").then_some(shown)
    });
    has_all(&doctor, &["free disk space"]);
    // Claims are observed as before; nothing of that time is lost once there is room.
    let full = Instant::now();
    until("time goes by", SOON, || {
        full.elapsed() > Duration::from_secs(1)
    });
    std::fs::remove_file(ballast).expect("room again");
    let expect = before + 0.5;
    until("what waited is written", SOON, || {
        claimed(&station).filter(|c| *c >= expect)
    });
    let (check, written) = sums(&state.join("history.db"));
    assert_eq!(check, "ok");
    assert!(written >= expect, "{written}");
    station.stop_service(Signal::SIGTERM).expect("stopped");
    drop(held);
}

// Records of runs: their content for real runs, who may see them, and expected starts based on them.

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
        .args("claim -q --class batch --gpu-mem 8G --gpu-mem-limit 10G".split(' '))
        .args(["--sm", "20%", "--limit", "50%", "--"])
        .arg(example("raw_client"))
        .args("libcuda.so.1 --batch_size=32 --data /data/run17/set3.bin --amp".split(' '));
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
    // It works until it has burst above its 20 %, was throttled at its 50 %, and the driver has reported its SMs.
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
        ("notebook", json!("vit.ipynb")),
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
    // Arguments are compared, but their words are not stored.
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
    // One block at a time: hardly any SMs, but all the GPU time that it was given.
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
    failing
        .args("claim -q -g 0.1 -- sh -c".split(' '))
        .arg("read line; exit 3");
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
    let mut waits = Raw::asks(&station, &["-q", "-g", "0.5"]);
    let expected = until("its start is expected, and said so", SOON, || {
        let snapshot = station.snapshot().ok()?;
        let view = snapshot.queue.into_iter().next()?;
        let expected = view.expected?;
        let queue = ok(&station, &["queue"]);
        let why = ok(&station, &["why", &view.id]);
        println!("{expected:?} {queue}\n{why}");
        // They may be a second later.
        let told = format!("it starts {} (earlier runs such as ", expected.when());
        (queue.contains(&expected.when()) && why.contains(&told)).then_some(expected)
    });
    assert!(!expected.certain, "nobody has set an end: {expected:?}");
    let high = expected.high_s.expect("runs end") as f64;
    assert!(
        high <= 1.3 * took[2] + 11.0,
        "{expected:?}, runs took {took:?}"
    );
    assert_eq!(held.finish(), Some(0));
    assert_eq!(waits.line(), "ok ready");
    assert_eq!(waits.finish(), Some(0));
    // A program that waits for its GPU in its first call gets the same message. Repeat if this took longer than the
    // runs: then the start is unknown.
    until("it is told as well", 3 * SOON, || told_later(&station));
}

/// Whether a program that waits for its GPU in its first call was told its start by earlier runs.
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

// Sizes from experience: suggestions after some runs, claims with `-g auto`, and sizes that follow the need.

/// A run with this need, and its end.
fn run(station: &Station, flags: &[&str], gib: u64) {
    let mut raw = Raw::claim(station, flags);
    let _ = alloc(&mut raw, gib);
    // The time before the memory is there is part of the run, and longer on a slow machine.
    looked(station, 12);
    assert_eq!(raw.finish(), Some(0));
}

#[test]
fn what_is_suggested_is_what_runs_needed_and_auto_claims_it() {
    let station = sized("");
    let client = example("raw_client").display().to_string();
    let guess = &suggestion(&station, &["--", &client]).suggestions[0];
    assert_eq!(
        (guess.level.as_str(), guess.confidence.as_str()),
        ("prior", "guess")
    );
    assert!(
        guess.reasons[0].starts_with("a guess: no earlier run of raw_client used a GPU"),
        "{guess:?}"
    );
    for n in 0..3 {
        run(&station, &["-q", "-g", "0.5"], 5);
        recorded(&station, n + 1);
    }
    let all = records(&station);
    assert!(
        all.iter()
            .all(|r| r["script"] == "raw_client" && r["end"] == "command exited"),
        "{all:?}"
    );
    assert!(
        all.iter().all(|r| r["peak"]
            .as_u64()
            .is_some_and(|p| (5 * GIB..6 * GIB).contains(&p))),
        "{all:?}"
    );
    let said = &suggestion(&station, &["--", &client]).suggestions[0];
    assert_eq!(
        (said.level.as_str(), said.confidence.as_str()),
        ("repeats", "good"),
        "{said:?}"
    );
    assert!((5 * GIB..8 * GIB).contains(&said.mem), "{said:?}");
    assert!(said.frees_mem.is_some_and(|b| b > 3 << 30), "{said:?}");
    let peak = all[0]["peak"].as_f64().expect("a peak") / GIB as f64;
    assert!(
        said.reasons[0].starts_with(&format!("3 earlier runs of raw_client: peak {peak:.1}")),
        "{said:?}"
    );
    let text = ok(&station, &["suggest", "--", &client]);
    has_all(&text, &["confidence: good", "frees "]);
    let last = ok(&station, &["suggest"]);
    let typed = last.lines().next().unwrap_or_default();
    assert!(
        typed.ends_with(" -- raw_client"),
        "what was run last: {last}"
    );
    assert!(!last.contains("less than 0s"), "{last}");

    // The records as a list: the same runs with other sizes.
    let dir = tempfile::tempdir().expect("a directory");
    let list = dir.path().join("runs.jsonl");
    std::fs::write(&list, ok(&station, &["suggest", "--records"])).expect("written");
    let replayed = ok(
        &station,
        &[
            "replay",
            "--json",
            "--gpus",
            "1",
            &list.display().to_string(),
        ],
    );
    let replayed: Value = serde_json::from_str(&replayed).expect("JSON");
    let used = |row: usize| {
        replayed["sizes"][row]["used_of_allocated"]
            .as_f64()
            .expect("a part")
    };
    assert_eq!(
        (&replayed["runs"], &replayed["sizes"][1]["sizes"]),
        (&3.into(), &"learnt".into())
    );
    assert!(used(0) < 0.6 && used(2) > 0.8, "{replayed}");

    let raw = Raw::claim(&station, &["-q", "-g", "auto"]);
    let view = claim_of(&station.snapshot().expect("served"), raw.pid())
        .expect("listed")
        .clone();
    assert_eq!(
        view.gpus[0].mem_request, said.mem,
        "what was suggested is claimed"
    );
    assert!(
        view.gpus[0].mem_limit > 20 * GIB && (view.gpus[0].sm_limit - 1.0).abs() < 1e-9,
        "{view:?}"
    );
    assert_eq!(raw.finish(), Some(0));
}

#[test]
fn running_claims_get_the_size_that_they_need_when_asked() {
    let station = sized("");
    let mut raw = Raw::claim(&station, &["-q", "-g", "0.9"]);
    let _ = alloc(&mut raw, 3);
    let view = until("its first second is over", SOON, || {
        let said = suggestion(&station, &["--running"]).suggestions.pop()?;
        said.reasons[0]
            .starts_with("a guess: it has run for")
            .then_some(said)
    });
    assert!((3 * GIB..5 * GIB).contains(&view.mem), "{view:?}");
    assert!(view.next_mem.is_some_and(|n| n >= 3 * GIB), "{view:?}");
    let text = ok(&station, &["suggest", "--running", "--apply"]);
    has_all(&text, &["was"]);
    let now = claim_of(&station.snapshot().expect("served"), raw.pid())
        .expect("listed")
        .clone();
    assert!(
        (3 * GIB..5 * GIB).contains(&now.gpus[0].mem_request),
        "{now:?}"
    );
    assert_eq!(raw.finish(), Some(0));
}

/// Load, train, evaluate: each kept for this many looks. Returns the blocks that it still has.
fn load_and_train(station: &Station, raw: &mut Raw, kept: u64) -> (String, String) {
    let load = alloc(raw, 2);
    looked(station, kept);
    let (rest, train) = (alloc(raw, 4), alloc(raw, 8));
    looked(station, kept);
    let _ = rest;
    (load, train)
}

#[test]
fn a_run_in_phases_is_tracked_and_a_queued_claim_starts_in_the_gap() {
    let station = sized("auto-shrink = \"request\"\n");
    let auto = ["-q", "-g", "auto"];
    for n in 0..1 {
        let mut raw = Raw::claim(&station, &auto);
        let (_, train) = load_and_train(&station, &mut raw, 20);
        free(&mut raw, &train);
        looked(&station, 20);
        assert_eq!(raw.finish(), Some(0));
        recorded(&station, n + 1);
    }
    let mut raw = Raw::claim(&station, &auto);
    let pid = raw.pid();
    let request = || {
        let snapshot = station.snapshot().expect("served");
        claim_of(&snapshot, pid).expect("listed").gpus[0].mem_request
    };
    assert!(
        request() >= 14 * GIB,
        "its training is known before it begins"
    );
    let (_, train) = load_and_train(&station, &mut raw, 20);
    assert!(request() >= 14 * GIB, "{}", request());
    let mut other = Raw::asks(&station, &["-q", "--gpu-mem", "12G", "--sm", "20%"]);
    until("it waits", SOON, || {
        (station.snapshot().ok()?.queue.len() == 1).then_some(())
    });
    looked(&station, 5);
    assert_eq!(
        station.snapshot().expect("served").queue.len(),
        1,
        "there is no room beside the training"
    );
    free(&mut raw, &train);
    let freed = Instant::now();
    until("the request follows", SOON, || request() < 9 * GIB);
    // 30 s at twenty times the speed, plus the delay of looks on a busy machine.
    println!(
        "tracked after {:.2} s, 1.5 s are 30 s",
        freed.elapsed().as_secs_f64()
    );
    assert!(request() >= 6 * GIB, "never below what it uses");
    assert_eq!(
        other.line(),
        "ok ready",
        "the queued claim starts in the gap"
    );
    let _ = alloc(&mut other, 11);
    looked(&station, 10);
    let snapshot = station.snapshot().expect("served");
    assert!(
        snapshot.claims.iter().all(|c| c.refusals == 0),
        "no allocation was refused"
    );
    assert_eq!((raw.finish(), other.finish()), (Some(0), Some(0)));
}

/// The claim's part of its GPU.
fn part(station: &Station, pid: u32) -> ClaimGpu {
    let snapshot = station.snapshot().expect("served");
    claim_of(&snapshot, pid).expect("listed").gpus[0].clone()
}

#[test]
fn with_burst_the_limit_falls_to_what_runs_needed_and_never_below_the_request() {
    let station = sized("auto-shrink = \"burst\"\n");
    let flags = |mem: &'static str| {
        [
            "-q",
            "--gpu-mem",
            mem,
            "--gpu-mem-limit",
            "20G",
            "--sm",
            "20%",
        ]
    };
    runs(&station, &flags("6G"), 5, 3, 4);
    let mut raw = Raw::claim(&station, &flags("6G"));
    let lowered = until("the limit falls", SOON, || {
        let now = part(&station, raw.pid());
        (now.mem_limit < 19 * GIB).then_some(now)
    });
    assert!(
        (6 * GIB..9 * GIB).contains(&lowered.mem_limit),
        "{lowered:?}"
    );
    assert_eq!(lowered.mem_request, 6 * GIB, "a request of its own stays");
    let _ = alloc(&mut raw, 5);
    assert!(
        raw.ask(&format!("alloc {}", 5 * GIB)).starts_with("error"),
        "above the limit"
    );
    // Others are above its need: their limit is their size.
    let other = Raw::claim(&station, &flags("12G"));
    let lowered = until("the limit falls", SOON, || {
        let now = part(&station, other.pid());
        (now.mem_limit < 19 * GIB).then_some(now)
    });
    assert_eq!(
        (lowered.mem_request, lowered.mem_limit),
        (12 * GIB, 12 * GIB)
    );
    assert_eq!((raw.finish(), other.finish()), (Some(0), Some(0)));
}

#[test]
fn advise_only_says_it_and_off_not_even_that() {
    let words = "it used at most";
    let mut took = 0;
    for policy in ["advise", "off"] {
        let more = format!("auto-shrink = {policy:?}\n[advice]\nover-asked-after = \"1s\"\n");
        let station = sized(&more);
        runs(&station, &["-q", "--gpu-mem", "6G", "--sm", "20%"], 1, 3, 4);
        let flags = [
            "-q",
            "--gpu-mem",
            "16G",
            "--gpu-mem-limit",
            "20G",
            "--sm",
            "80%",
        ];
        let mut raw = Raw::claim(&station, &flags);
        let before = part(&station, raw.pid());
        let _ = alloc(&mut raw, 1);
        let from = looks(&station);
        let mut works = || {
            assert!(raw.ask("launch 1").starts_with("ok"));
            let said = station.snapshot().expect("served").advice;
            (
                said.iter().any(|a| a.text.contains(words)),
                looks(&station) - from,
            )
        };
        if policy == "advise" {
            took = until("it is said", SOON, || {
                let (said, looks) = works();
                said.then_some(looks)
            });
        } else {
            until("twice as many looks", SOON * 3, || {
                let (said, looks) = works();
                assert!(!said, "nothing is said");
                looks > 2 * took + 10
            });
        }
        let after = part(&station, raw.pid());
        let sizes = |p: &ClaimGpu| (p.mem_request, p.mem_limit, p.sm_request, p.sm_limit);
        assert_eq!(sizes(&before), sizes(&after), "{policy} changes nothing");
        let said = suggestion(&station, &["--running"]).suggestions.pop();
        assert_eq!(said.expect("asked, it answers").level, "repeats");
        assert_eq!(raw.finish(), Some(0));
    }
}

#[test]
fn the_request_for_sms_follows_need_in_both_directions() {
    let station = sized_on("rtx4090", "add_one 20ms\n", "auto-shrink = \"request\"\n");
    let mut raw = Raw::claim(&station, &["-q", "-g", "auto"]);
    let _ = alloc(&mut raw, 2);
    let pid = raw.pid();
    let falls = || {
        until("the part of the SMs falls", SOON, || {
            part(&station, pid).sm_request <= 0.2
        });
    };
    falls();
    until("it rises when it works", SOON, || {
        assert!(raw.ask("launch 4").starts_with("ok"));
        part(&station, pid).sm_request >= 0.6
    });
    let memory = part(&station, pid).mem_request;
    falls();
    assert_eq!(
        part(&station, pid).mem_request,
        memory,
        "memory did not change with it"
    );
    assert_eq!(raw.finish(), Some(0));
}
