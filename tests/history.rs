//! What was claimed and used, over real processes: reports, restarts, kill -9 in the middle, a full disk.

use crate::support;

use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, Instant};

use gshare::demo::Job;
use gshare::station::Station;
use gshare_proto::{Call, HistoryBy, HistorySpec, HistoryView, Reply, ReportSpec, ReportView};
use nix::sys::signal::Signal;
use rusqlite::Connection;
use support::{Raw, claim_of, root, station_with, until};

const SOON: Duration = Duration::from_secs(10);
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

fn ask(station: &Station) -> Option<ReportView> {
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

fn history(station: &Station, by: HistoryBy, key: Option<&str>) -> HistoryView {
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

fn text(station: &Station, args: &[&str]) -> String {
    let output = station.command().args(args).output().expect("runs");
    assert!(output.status.success(), "{output:?}");
    String::from_utf8_lossy(&output.stdout).into_owned()
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
    // One whose program computes on the processor only.
    let mut command = station.command();
    command.args([
        "claim",
        "-q",
        "-g",
        "0.25",
        "--gpu-ids",
        "3",
        "--name",
        "burner",
    ]);
    command.args(["--", "sh", "-c", "while :; do :; done"]);
    let mut burner = command.spawn().expect("starts");
    // One that waits for a GPU that nobody gives back.
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
    // Everything that was claimed idled, and that is known.
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
    let list = text(&station, &["ps"]);
    assert!(
        list.contains("AVG USE") && list.contains("IDLE h"),
        "{list}"
    );
    let status = until("the last day is known", LATER, || {
        let status = text(&station, &["status"]);
        status.contains("last 24 h").then_some(status)
    });
    assert!(status.contains("BORROWED"), "{status}");

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

    // For people, for programs and for spreadsheets.
    let shown = text(&station, &["report", "--since", "1h"]);
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
        serde_json::from_str(&text(&station, &["report", "--json"])).expect("a report");
    assert!(json.total.claimed_gpu_s >= report.total.claimed_gpu_s);
    let csv = text(&station, &["report", "--csv"]);
    assert_eq!(csv.lines().count(), 3, "{csv}");
    let mail = text(&station, &["report", "--text"]);
    assert!(mail.lines().count() <= 25, "{mail}");
    assert!(
        mail.contains("user 1 ") && !mail.contains(&user.user),
        "{mail}"
    );
    let stored = text(&station, &["report", "--mine", "--raw"]);
    let stored = stored.lines().map(serde_json::from_str);
    let stored: Vec<serde_json::Value> = stored.collect::<Result<_, _>>().expect("JSON lines");
    for table in ["claim", "event", "face", "ten"] {
        assert!(stored.iter().any(|row| row["table"] == table), "{table}");
    }
    let dir = tempfile::tempdir().expect("a directory");
    let file = dir.path().join("report.html");
    let file = file.to_str().expect("a path in UTF-8");
    text(&station, &["report", "--names", "--html", file]);
    let page = std::fs::read_to_string(file).expect("a page");
    assert!(
        page.contains(&user.user) && page.contains("burner"),
        "{page}"
    );
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

/// What an offloaded claim had is free for others: it is nobody's any more.
/// The report named root, and the year 1970, as owner and start of claims that ended within their first step of 5 s.
#[test]
fn a_short_claim_has_its_owner_and_its_start_in_the_report() {
    let station = quick();
    let start = hour_ago() + 3_600_000;
    text(
        &station,
        &[
            "claim", "-q", "-g", "0.5", "--name", "short", "--", "sleep", "0.7",
        ],
    );
    let report = until("the report has it", LATER, || {
        ask(&station).filter(|report| !report.worst.is_empty())
    });
    let short = &report.worst[0];
    assert_eq!(
        (report.worst.len(), short.what.as_str()),
        (1, "short"),
        "{short:?}"
    );
    assert!(short.since_ms >= start, "{short:?}");
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
    text(&station, &["offload", &id]);
    let held = start.elapsed().as_secs_f64();

    let snapshot = station.snapshot().expect("served");
    let user = &snapshot.users[0];
    assert_eq!((user.claims, user.claimed, user.mem_claimed), (1, 0.0, 0));
    let list = text(&station, &["ps"]);
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
        // Questions make it write; it is killed while they go on.
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
    // What the claim had before is not forgotten.
    let usage = until("the claim's sums are found again", SOON, || {
        let snapshot = station.snapshot().ok()?;
        claim_of(&snapshot, held.pid())?.usage
    });
    assert!(usage.claimed_gpu_s >= last - 1e-6, "{usage:?} after {last}");
    drop(held);
}

/// A small disk over a directory, taken away at the end.
struct SmallDisk(PathBuf);

impl Drop for SmallDisk {
    fn drop(&mut self) {
        let _ = Command::new("umount").arg("-l").arg(&self.0).status();
    }
}

#[test]
fn a_full_disk_delays_the_history_and_loses_nothing() {
    if !root("a_full_disk_delays_the_history_and_loses_nothing") {
        return;
    }
    let mut station = quick();
    station.stop_service(Signal::SIGTERM).expect("stopped");
    let state = station.dir().join("state");
    let mount = Command::new("mount")
        .args(["-t", "tmpfs", "-o", "size=1m,mode=0711", "none"])
        .arg(&state)
        .status();
    assert!(mount.expect("mount runs").success());
    let disk = SmallDisk(state);
    station.start_service().expect("starts");
    let mut held = Raw::claim(&station, &["-q", "-g", "0.5", "--gpu-ids", "2"]);
    assert_eq!(held.ask("alloc 1048576"), "ok 0");
    let claimed = |station: &Station| ask(station).map(|r| r.total.claimed_gpu_s);
    let before = until("something is kept", SOON, || {
        claimed(&station).filter(|c| *c > 0.1)
    });
    let ballast = disk.0.join("ballast");
    let mut file = std::fs::File::create(&ballast).expect("created");
    while file.write_all(&[1; 4096]).is_ok() {}

    let doctor = until("the doctor says so", SOON, || {
        // Each question makes it try to write.
        let _ = ask(&station);
        let shown = station.command().arg("doctor").output().ok()?;
        let shown = String::from_utf8_lossy(&shown.stdout).into_owned();
        shown.contains("cannot write").then_some(shown)
    });
    assert!(doctor.contains("free disk space"), "{doctor}");
    // Claims are looked at as before; nothing of that time is lost once there is room.
    let full = Instant::now();
    until("time goes by", SOON, || {
        (full.elapsed() > Duration::from_secs(1)).then_some(())
    });
    drop(file);
    std::fs::remove_file(&ballast).expect("room again");
    let expect = before + 0.5;
    until("what waited is written", SOON, || {
        claimed(&station).filter(|c| *c >= expect)
    });
    let (check, written) = sums(&disk.0.join("history.db"));
    assert_eq!(check, "ok");
    assert!(written >= expect, "{written}");
    station.stop_service(Signal::SIGTERM).expect("stopped");
    drop(held);
}

#[test]
fn points_of_an_older_version_move_from_the_journal() {
    let mut station = quick();
    station.stop_service(Signal::SIGTERM).expect("stopped");
    let uuid = station.dir().join("state/gshare.db");
    let db = Connection::open(&uuid).expect("opens");
    let gpu = gshare_sim_board::Board::open(&station.sim_dir().join("board")).expect("opens");
    let name = gpu.snapshot().gpus[0].uuid.clone();
    let now = hour_ago() + 3_600_000;
    db.execute_batch(
        "CREATE TABLE sample (at_ms INTEGER NOT NULL, uuid TEXT NOT NULL, activity REAL, used_bytes INTEGER,
         claimed_bytes INTEGER NOT NULL, PRIMARY KEY (uuid, at_ms)) STRICT, WITHOUT ROWID",
    )
    .expect("made");
    for back in 2..12 {
        db.execute(
            "INSERT INTO sample VALUES (?1, ?2, 77.0, 5, 6)",
            rusqlite::params![i64::try_from(now - back * 10_000).expect("fits"), name],
        )
        .expect("written");
    }
    drop(db);
    station.start_service().expect("starts");
    let shown = station.snapshot().expect("served").gpus[0].history.clone();
    assert!(
        shown.iter().flatten().filter(|v| **v == 77.0).count() >= 9,
        "{shown:?}"
    );
    let db = Connection::open(&uuid).expect("opens");
    let left: i64 = db
        .query_row(
            "SELECT count(*) FROM sqlite_master WHERE name = 'sample'",
            [],
            |r| r.get(0),
        )
        .expect("counted");
    assert_eq!(left, 0);
}
