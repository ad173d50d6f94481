//! Tests of the history's file: roll-up, crashes, old and new formats.

use std::collections::HashMap;
use std::sync::Arc;

use gshare_config::Stage;
use gshare_proto::history::{HistoryBy, HistorySpec, ReportSpec};

use super::answer::Place;
use super::store::{ClaimFace, Store};
use super::sum::{Cause, Fact, Key, Step, Sum};
use crate::daemon::journal::{self, ClaimRecord, Journal, OriginRecord, RunsRecord};
use crate::daemon::names::{Account, Names};
use crate::daemon::played::{self, Machine, Run};
use crate::daemon::viewer::Viewer;

const BEGIN: i64 = 1_780_002_000;
const MAX: u64 = 64 << 20;

fn gpu() -> Arc<str> {
    "GPU-x".into()
}

fn claim(claim: u64, uid: u32) -> Key {
    Key::Claim {
        claim,
        uid,
        gpu: gpu(),
    }
}

fn sum(claimed: f64, used: Option<f64>) -> Sum {
    Sum {
        looked: 10.0,
        claimed,
        used,
        used_known: if used.is_some() { claimed } else { 0.0 },
        used_s: if used.is_some() { 10.0 } else { 0.0 },
        mem_claimed: 10.0 * 1_048_576.0,
        ..Sum::default()
    }
}

/// A step in which user 7 claims half a GPU and uses a fifth, and the use of user 8 is unknown.
fn step(at: i64) -> Step {
    let mut rows = std::collections::BTreeMap::new();
    rows.insert(Key::Machine, sum(40.0, None));
    rows.insert(claim(1, 7), sum(5.0, Some(2.0)));
    rows.insert(claim(2, 8), sum(2.5, None));
    rows.insert(Key::Gpu(gpu()), sum(7.5, Some(4.0)));
    Step { at, rows }
}

fn place(now: i64) -> Place {
    Place {
        gpus: vec!["GPU-x".to_owned()],
        now_ms: now.unsigned_abs() * 1000,
        ..Place::default()
    }
}

fn user(uid: u32, names: bool) -> Viewer {
    Viewer::User { uid, names }
}

fn report(store: &Store, from: i64, to: i64) -> gshare_proto::ReportView {
    let spec = ReportSpec {
        from_ms: from.unsigned_abs() * 1000,
        ..ReportSpec::default()
    };
    // The system's own names come late on a busy machine.
    let names = Names::over(HashMap::new(), |_| Account::default(), None);
    store.report(&spec, &place(to), &names).unwrap()
}

fn open(dir: &tempfile::TempDir) -> Store {
    Store::open(&dir.path().join("history.db"), MAX).unwrap()
}

#[test]
fn every_level_has_the_same_sums() {
    let dir = tempfile::tempdir().unwrap();
    let mut store = open(&dir);
    let hours = 5;
    let steps: Vec<Step> = (0..hours * 360).map(|i| step(BEGIN + i * 10)).collect();
    for part in steps.chunks(100) {
        store.add_all(part).unwrap();
    }
    let end = BEGIN + hours * 3600;
    for (points, step_s) in [(5, 3600), (100, 180), (1800, 10)] {
        let spec = HistorySpec {
            from_ms: BEGIN.unsigned_abs() * 1000,
            points,
            by: HistoryBy::User,
            ..HistorySpec::default()
        };
        let view = store
            .history(&spec, &place(end - 1), &Names::default())
            .unwrap();
        assert_eq!(view.step_ms, step_s * 1000);
        let line = |key: &str| view.series.iter().find(|s| s.key == key).unwrap();
        let user = line("7");
        let expect = 0.5 * (hours * 3600) as f64;
        assert!(
            (user.usage.claimed_gpu_s - expect).abs() < 0.01,
            "{:?}",
            user.usage
        );
        assert_eq!(user.usage.average_use(), Some(40.0));
        assert!(
            user.points
                .iter()
                .all(|p| (p.claimed - 0.5).abs() < 1e-9 && p.known == 1.0)
        );
        assert_eq!(user.points[1].used, Some(0.2));
        // Unknown is not 0.
        let other = line("8");
        assert_eq!(
            (other.usage.used_gpu_s, other.usage.average_use()),
            (None, None)
        );
        assert!(other.points.iter().all(|p| p.used.is_none()));
        assert_eq!(line("all").points[0].used, Some(0.4), "by the device");
    }
    let face = ClaimFace {
        claim: 1,
        uid: 7,
        project: "vision".to_owned(),
        ..ClaimFace::default()
    };
    store.name_claim(&face).unwrap();
    let found = report(&store, BEGIN, end);
    assert!((found.total.claimed_gpu_s - 0.75 * (hours * 3600) as f64).abs() < 0.1);
    let projects = found.projects.iter();
    let projects: Vec<_> = projects.map(|p| (&*p.project, p.usage)).collect();
    let user = |n: usize| found.users[n].usage;
    assert_eq!(
        projects,
        [("vision", user(0)), ("(no name kept)", user(1))],
        "each has one user"
    );
}

#[test]
fn where_programs_have_no_claim_those_who_use_the_most_come_first() {
    let dir = tempfile::tempdir().unwrap();
    let mut store = open(&dir);
    let mut step = step(BEGIN);
    step.rows.insert(claim(1, 7), sum(0.0, Some(2.0)));
    step.rows.insert(claim(2, 8), sum(0.0, Some(9.0)));
    store.add_all(&[step]).unwrap();
    let users = report(&store, BEGIN, BEGIN + 10).users;
    let users: Vec<u32> = users.iter().map(|u| u.uid).collect();
    assert_eq!(users, [8, 7]);
}

#[test]
fn others_claims_have_no_names() {
    let dir = tempfile::tempdir().unwrap();
    let mut store = open(&dir);
    let mut step = step(BEGIN);
    let held = step.rows.get_mut(&claim(1, 7)).unwrap();
    held.idle[Cause::Other as usize] = 3.0;
    store.add_all(&[step]).unwrap();
    let face = ClaimFace {
        claim: 1,
        uid: 7,
        since_ms: 1,
        project: "lab".to_owned(),
        what: "secret.py".to_owned(),
        notebook: Some(("secret.ipynb".to_owned(), "jupyter".to_owned())),
        private: false,
    };
    store.name_claim(&face).unwrap();
    let by_claim = HistorySpec {
        by: HistoryBy::Claim,
        ..HistorySpec::default()
    };
    let (one, names) = (ReportSpec::default(), Names::default());
    let texts = |viewer| {
        let place = Place {
            viewer,
            ..place(BEGIN + 10)
        };
        let history = store.history(&by_claim, &place, &names).unwrap();
        let report = store.report(&one, &place, &names).unwrap();
        let worst = serde_json::to_string(&report.worst).unwrap();
        let labels: Vec<String> = history.series.into_iter().map(|s| s.label).collect();
        (labels, worst)
    };
    for viewer in [Viewer::All(0), user(7, false), user(8, true)] {
        let (labels, worst) = texts(viewer);
        assert_eq!(labels, ["c1 secret.py", "c2"]);
        assert!(worst.contains("secret.py"), "{worst}");
    }
    let (labels, worst) = texts(user(8, false));
    assert_eq!(labels, ["c1 -", "c2"]);
    assert!(worst.contains("c1") && !worst.contains("secret"), "{worst}");
    let named = HistorySpec {
        key: Some("secret.py".into()),
        ..by_claim.clone()
    };
    for what in ["secret.py", "[trainer, n1] secret.py"] {
        let sql = "UPDATE face SET what = ?1 WHERE claim = 1";
        store.db.execute(sql, [what]).unwrap();
        for (viewer, found) in [
            (Viewer::All(0), 1),
            (user(7, false), 1),
            (user(8, false), 0),
        ] {
            let place = Place {
                viewer,
                ..place(BEGIN + 10)
            };
            let history = store.history(&named, &place, &names).unwrap();
            assert_eq!(history.series.len(), found, "{what} {viewer:?}");
        }
    }

    // A private Slurm job appears only in the lists of its owner and root.
    let private = ClaimFace {
        private: true,
        ..face
    };
    store.name_claim(&private).unwrap();
    for viewer in [Viewer::All(0), user(7, false)] {
        assert_eq!(texts(viewer).0, ["c1 secret.py", "c2"]);
    }
    assert_eq!(
        texts(user(8, true)),
        (vec!["c2".to_owned()], "[]".to_owned())
    );
    let place = Place {
        viewer: user(8, true),
        ..place(BEGIN + 10)
    };
    let report = store.report(&one, &place, &names).unwrap();
    let users: Vec<u32> = report.users.iter().map(|u| u.uid).collect();
    assert_eq!((users, report.projects.len()), (vec![8], 1));
    let of_other = HistorySpec {
        key: Some("7".into()),
        by: HistoryBy::User,
        ..HistorySpec::default()
    };
    let history = store.history(&of_other, &place, &names).unwrap();
    assert!(history.series.is_empty(), "{:?}", history.series);
}

#[test]
fn what_a_crash_left_undone_is_done_by_the_next_start() {
    let dir = tempfile::tempdir().unwrap();
    let straight = tempfile::tempdir().unwrap();
    let mut whole = open(&straight);
    let count = 800;
    for i in 0..count {
        // Close and open it at any place in a minute and an hour; the last step is written in two parts.
        let mut store = open(&dir);
        store.add_all(&[step(BEGIN + i * 10)]).unwrap();
        whole.add_all(&[step(BEGIN + i * 10)]).unwrap();
    }
    let end = BEGIN + count * 10;
    let store = open(&dir);
    assert_eq!(report(&store, BEGIN, end), report(&whole, BEGIN, end));
    let minutes = |s: &Store| -> i64 {
        s.db.query_row("SELECT sum(looked) FROM minute", [], |r| r.get(0))
            .unwrap()
    };
    assert_eq!(minutes(&store), minutes(&whole));
    assert_eq!(minutes(&store), count / 6 * 6 * 4 * 10_000);
}

#[test]
fn a_step_that_is_written_in_two_parts_is_their_sum() {
    let dir = tempfile::tempdir().unwrap();
    let mut store = open(&dir);
    store.add_all(&[step(BEGIN)]).unwrap();
    store.add_all(&[step(BEGIN)]).unwrap();
    let usage = report(&store, BEGIN, BEGIN + 9).users[0].usage;
    assert_eq!((usage.claimed_gpu_s, usage.used_gpu_s), (10.0, Some(4.0)));
}

#[test]
fn a_clock_that_is_put_back_loses_nothing() {
    let dir = tempfile::tempdir().unwrap();
    let mut store = open(&dir);
    let steps: Vec<Step> = (0..720).map(|i| step(BEGIN + i * 10)).collect();
    store.add_all(&steps).unwrap();
    // Half an hour back, and on for an hour.
    let again: Vec<Step> = (540..900).map(|i| step(BEGIN + i * 10)).collect();
    store.add_all(&again).unwrap();
    let one =
        |sql: &str, mark: i64| -> i64 { store.db.query_row(sql, [mark], |r| r.get(0)).unwrap() };
    let mark = one("SELECT value FROM meta WHERE key = 'hour' AND ?1 = 0", 0);
    let from = "JOIN series s ON s.id = series WHERE s.uid = 7 AND at";
    let hours = one(&format!("SELECT sum(claimed) FROM hour {from} < ?1"), mark);
    let rest = one(
        &format!("SELECT coalesce(sum(claimed), 0) FROM ten {from} >= ?1"),
        mark,
    );
    assert_eq!(hours + rest, (720 + 360) * 5000);
}

#[test]
fn old_points_go_and_the_file_stays_within_its_bound() {
    let dir = tempfile::tempdir().unwrap();
    let mut store = Store::open(&dir.path().join("h.db"), 2 << 20).unwrap();
    let mut most = 0;
    // Many claims over four days need more than two MiB.
    for hour in 0..96 {
        let steps: Vec<Step> = (0..360)
            .step_by(3)
            .map(|i| {
                let mut step = step(BEGIN + hour * 3600 + i * 10 + 20);
                for n in 0..12 {
                    step.rows.insert(claim(100 + n, 9), sum(1.25, Some(0.3)));
                }
                step
            })
            .collect();
        store.add_all(&steps).unwrap();
        store.shrink().unwrap();
        most = most.max(store.bytes().unwrap());
    }
    assert!(most < 3 << 20, "{most}");
    let count = |table: &str| -> i64 {
        let sql = format!("SELECT count(DISTINCT at) FROM {table}");
        store.db.query_row(&sql, [], |r| r.get(0)).unwrap()
    };
    assert!(count("hour") >= 90, "{} hours are left", count("hour"));
    assert!(count("ten") < 86_400 / 10);
    // The report still covers all of it, from the hours.
    let usage = report(&store, BEGIN, BEGIN + 96 * 3600).users;
    let user = usage.iter().find(|u| u.uid == 7).unwrap();
    assert!(
        (user.usage.claimed_gpu_s - 5.0 * 96.0 * 120.0).abs() < 60.0,
        "{:?}",
        user.usage
    );
}

#[test]
fn a_damaged_file_is_put_aside_and_a_newer_one_is_left_alone() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("history.db");
    std::fs::write(
        &path,
        "no database, but long enough to be looked at by SQLite".repeat(99),
    )
    .unwrap();
    let mut store = Store::open(&path, MAX).unwrap();
    store.add_all(&[step(BEGIN)]).unwrap();
    assert!(dir.path().join("history.db.damaged").exists());
    store.db.pragma_update(None, "user_version", 99).unwrap();
    drop(store);
    assert!(Store::open(&path, MAX).is_err());
    assert!(path.exists());
}

#[test]
fn points_of_an_older_version_are_taken_over_once() {
    let dir = tempfile::tempdir().unwrap();
    let mut store = open(&dir);
    for _ in 0..2 {
        store.take_over(&[step(BEGIN), step(BEGIN + 10)]).unwrap();
    }
    let points = store.activity_since("GPU-x", 0).unwrap();
    assert_eq!(points.len(), 2);
    assert_eq!(points[0].1, Some(40.0));
}

#[test]
fn causes_and_waiting_reach_the_report() {
    let dir = tempfile::tempdir().unwrap();
    let mut store = open(&dir);
    let mut collector = super::sum::Collector::default();
    let idle = Fact {
        claimed: 0.5,
        used: Some(0.0),
        idle: true,
        throttled: 0.5,
        ..Fact::default()
    };
    let waits = Fact {
        waited: 2.0,
        ..Fact::default()
    };
    let facts = [
        (claim(1, 7), idle),
        (Key::Wait(7), waits),
        (Key::Machine, Fact::default()),
    ];
    let begin = BEGIN.unsigned_abs() * 1000;
    collector.look(begin, 60_000, &facts);
    let mut steps = collector.look(begin + 20_000, 60_000, &facts);
    for step in &mut steps {
        step.rows.get_mut(&claim(1, 7)).unwrap().because(Cause::Io);
    }
    store.add_all(&steps).unwrap();
    let nameless = report(&store, BEGIN, BEGIN + 20);
    assert!(nameless.worst.is_empty(), "nobody is accused of it");
    let face = ClaimFace {
        claim: 1,
        uid: 7,
        ..ClaimFace::default()
    };
    store.name_claim(&face).unwrap();
    let found = report(&store, BEGIN, BEGIN + 20);
    let usage = found.users[0].usage;
    assert_eq!((usage.idle.io, usage.idle.total()), (10.0, 10.0));
    assert_eq!((usage.waited_gpu_s, usage.throttled_gpu_s), (40.0, 5.0));
    assert_eq!(found.worst[0].cause.as_deref(), Some("IO busy"));
    assert_eq!(found.worst[0].held_s, 20.0);
}

#[test]
fn memory_above_the_claim_is_added_up_and_unknown_where_it_was_not_counted() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("history.db");
    let mut store = open(&dir);
    store.add_all(&[step(BEGIN)]).unwrap();
    // The file of the first format.
    let sql = "ALTER TABLE face DROP COLUMN private";
    store.db.execute_batch(sql).unwrap();
    store.db.pragma_update(None, "user_version", 1).unwrap();
    for level in super::store::LEVELS {
        let sql = format!("ALTER TABLE {} DROP COLUMN mem_borrowed", level.table);
        store.db.execute_batch(&sql).unwrap();
    }
    drop(store);
    let mut store = Store::open(&path, MAX).unwrap();
    let old = report(&store, BEGIN, BEGIN + 10);
    assert_eq!(old.total.mem_borrowed_byte_s, None);
    assert_eq!(old.users.len(), 2, "what was recorded is still there");
    let mut later = step(BEGIN + 60);
    let borrowed = 3.0 * 1_048_576.0 * 10.0;
    later.rows.get_mut(&claim(1, 7)).unwrap().mem_borrowed = Some(borrowed);
    store.add_all(&[later, step(BEGIN + 4000)]).unwrap();
    let found = report(&store, BEGIN, BEGIN + 4000);
    let of = |uid| found.users.iter().find(|u| u.uid == uid).unwrap().usage;
    assert_eq!(of(7).mem_borrowed_byte_s, Some(borrowed));
    assert_eq!(of(8).mem_borrowed_byte_s, None);
}

#[test]
fn after_90_days_sums_have_no_owner_and_runs_are_gone() {
    let dir = tempfile::tempdir().unwrap();
    let mut store = open(&dir);
    let first: Vec<Step> = (0..360).map(|i| step(BEGIN + i * 10)).collect();
    store.add_all(&first).unwrap();
    let face = ClaimFace {
        claim: 1,
        uid: 7,
        what: "secret.py".into(),
        ..ClaimFace::default()
    };
    store.name_claim(&face).unwrap();
    let later = BEGIN + 91 * 86_400;
    for ended in [BEGIN, later] {
        let run = super::runs::RunRecord {
            ended_ms: ended.unsigned_abs() * 1000,
            uid: 7,
            ..Default::default()
        };
        store.add_run(run, &super::runs::Whose::default()).unwrap();
    }
    let before = report(&store, BEGIN, BEGIN + 3600);
    assert_eq!((before.users.len(), before.worst.len()), (2, 0));
    for hour in 0..2 {
        let end = later - later.rem_euclid(3600) + (hour + 2) * 3600 - 10;
        store.add_all(&[step(end)]).unwrap();
    }
    let after = report(&store, BEGIN, BEGIN + 3600);
    let users: Vec<&str> = after.users.iter().map(|u| u.user.as_str()).collect();
    assert_eq!(users, ["(no name kept)"]);
    let claimed = |r: &gshare_proto::ReportView| r.total.claimed_gpu_s.round();
    assert_eq!(claimed(&after), claimed(&before));
    assert_eq!(after.total.used_gpu_s, before.total.used_gpu_s);
    let count = |sql: &str| -> i64 { store.db.query_row(sql, [], |r| r.get(0)).unwrap() };
    // Running claims keep their names in new hours.
    let named =
        "SELECT count(*) FROM hour JOIN series s ON s.id = series WHERE s.claim <> 0 AND at < ";
    assert_eq!(count(&format!("{named}{}", later - 90 * 86_400)), 0);
    assert!(count(&format!("{named}{}", later + 86_400)) > 0);
    assert_eq!(count("SELECT count(*) FROM run"), 1);
    assert_eq!(report(&store, later, later + 9000).users.len(), 2);
}

#[test]
fn of_arguments_only_numbers_are_kept() {
    use super::runs::{RunRecord, UsedByRun, Whose};
    use gshare_core::predict::Shape;
    let dir = tempfile::tempdir().unwrap();
    let words = "data=secret.bin";
    let run = RunRecord {
        uid: 7,
        notebook: Some("/home/secret/vit.ipynb".to_owned()),
        shape: Shape {
            script: "train.py".into(),
            words: words.into(),
            ..Shape::default()
        },
        used: UsedByRun {
            peak: 1 << 30,
            ..UsedByRun::default()
        },
        ..RunRecord::default()
    };
    let text = |store: &Store| -> String {
        let sql = "SELECT group_concat(record) FROM run";
        store.db.query_row(sql, [], |r| r.get(0)).unwrap()
    };
    let mut store = open(&dir);
    // The format of an earlier version.
    let old = serde_json::to_string(&run).unwrap();
    let sql = "INSERT INTO run (ended_ms, uid, script, gpus, seconds, record) VALUES (1, 7, 'train.py', 1, 1.0, ?1)";
    store.db.execute(sql, [old]).unwrap();
    store
        .db
        .execute("DELETE FROM meta WHERE key IN ('words', 'plain')", [])
        .unwrap();
    drop(store);
    store = open(&dir);
    let shape = Shape {
        words: crate::daemon::line::hashed(words),
        ..run.shape.clone()
    };
    let run = RunRecord {
        shape: shape.clone(),
        notebook: None,
        ..run
    };
    store.add_run(run, &Whose::default()).unwrap();
    assert!(!text(&store).contains("secret"), "{}", text(&store));
    // Both count as runs of the same command.
    let whose = Whose {
        uid: 7,
        ..Whose::default()
    };
    let told = store.told(&whose, &shape, 1).unwrap();
    assert_eq!(told.records.len(), 2);
}

#[test]
fn nothing_in_the_file_has_words_that_an_older_version_stored() {
    use super::runs::{RunRecord, Whose};
    use gshare_core::predict::Shape;
    let dir = tempfile::tempdir().unwrap();
    let mut store = open(&dir);
    let number = |name: &str| (name.to_owned(), 1.0);
    let run = RunRecord {
        notebook: Some("/home/SECRET/vit.ipynb".to_owned()),
        shape: Shape {
            script: "t.py --token SECRET".to_owned(),
            numbers: vec![number("/SECRET/year"), number("argument 1"), number("bs")],
            ..Shape::default()
        },
        ..RunRecord::default()
    };
    for _ in 0..99 {
        store.add_run(run.clone(), &Whose::default()).unwrap();
    }
    store
        .name_claim(&ClaimFace {
            claim: 1,
            what: "bash t.py --token SECRET".to_owned(),
            ..ClaimFace::default()
        })
        .unwrap();
    let full = "CREATE TRIGGER full BEFORE UPDATE ON run BEGIN SELECT RAISE(FAIL, 'full'); END;
        DELETE FROM run WHERE id > 9; DELETE FROM meta WHERE key IN ('paths', 'plain')";
    store.db.execute_batch(full).unwrap();
    drop(store);
    // On a full disk there is a history nevertheless, and the next start does it.
    store = open(&dir);
    store.db.execute_batch("DROP TRIGGER full").unwrap();
    drop(store);
    store = open(&dir);
    for file in std::fs::read_dir(dir.path()).unwrap() {
        let file = file.unwrap().path();
        let bytes = std::fs::read(&file).unwrap();
        assert!(!bytes.windows(6).any(|w| w == b"SECRET"), "{file:?}");
    }
    let run = &store.runs_of(0, 1).unwrap()[0];
    assert_eq!(
        (&*run.shape.script, run.notebook.as_deref()),
        ("-c", Some("vit.ipynb"))
    );
    assert_eq!(run.shape.numbers, [number("argument 1"), number("bs")]);
    let what = "SELECT what FROM face";
    let what: String = store.db.query_row(what, [], |r| r.get(0)).unwrap();
    assert_eq!(what, "bash -c");
}

/// By hand: three runs of an hour, half an hour apart, each with 11 GiB and a tenth of 20 GiB: 0.605 of the GPU, so
/// no two fit together. The second would have waited half an hour, the third an hour.
#[test]
fn a_report_plays_recorded_runs_once_there_is_a_day_of_records() {
    const HALF: i64 = 1800;
    let dir = tempfile::tempdir().unwrap();
    let mut store = open(&dir);
    let mut journal = Journal::open(&dir.path().join("gshare.db")).unwrap();
    // The second and third are known to have used 0.3 of one GPU.
    let look = |at: i64| {
        let mut rows = std::collections::BTreeMap::new();
        rows.insert(Key::Machine, sum(10.0, None));
        let half = (at - BEGIN) / HALF;
        for (id, uid, halves) in [(2, 8, 1..3), (3, 9, 2..4)] {
            if halves.contains(&half) {
                rows.insert(claim(id, uid), sum(5.0, Some(3.0)));
            }
        }
        Step { at, rows }
    };
    let looks = |from: i64, to: i64| -> Vec<Step> { (from..to).step_by(10).map(look).collect() };
    store.add_all(&looks(BEGIN, BEGIN + 3600)).unwrap();
    let mut end = |id, uid, uncapped| {
        let record = ClaimRecord {
            id,
            uid,
            origin: OriginRecord {
                uncapped,
                ..OriginRecord::default()
            },
            runs: RunsRecord {
                stage: Stage::Reclaim,
                ..RunsRecord::default()
            },
            granted_ms: (BEGIN + HALF * (id as i64 - 1)).unsigned_abs() * 1000,
            ..ClaimRecord::default()
        };
        let ended_ms = record.granted_ms + 3_600_000;
        let peak = Some(11 << 30);
        journal
            .end(&record, ended_ms, "process ended", peak, None)
            .unwrap();
    };
    let asked = |store: &Store, to: i64| {
        let machine = Machine {
            gpus: 1,
            mem: 20 << 30,
        };
        let place = Place {
            played: Some(Box::new((machine, std::collections::BTreeMap::new()))),
            ..place(to)
        };
        let spec = ReportSpec {
            from_ms: BEGIN.unsigned_abs() * 1000,
            ..ReportSpec::default()
        };
        let names = Names::default();
        let mut view = store.report(&spec, &place, &names).unwrap();
        let journal = journal::reader(&dir.path().join("gshare.db")).unwrap();
        let runs = store.to_be_played(&journal, &place, &mut view).unwrap();
        let play = |(mut runs, machine): (Vec<Run>, Machine)| {
            played::sharing(&mut runs, machine, |_| true, |uid| names.user(uid))
        };
        (runs.map(play), view.not_played)
    };
    end(1, 7, false);
    let (before, after) = (BEGIN + 3600, BEGIN + 87_000);
    assert_eq!(asked(&store, before), (None, None), "a claim with limits");
    end(2, 8, true);
    end(3, 9, true);
    let too_soon = Some("there is less than a day of records".to_owned());
    assert_eq!(asked(&store, before), (None, too_soon));
    store.add_all(&looks(before, after)).unwrap();
    let (sharing, why) = asked(&store, after);
    let sharing = sharing.expect("played");
    assert_eq!((why, sharing.users.len()), (None, 3));
    let total = sharing.total;
    assert_eq!(
        (total.runs, total.refused, total.limited),
        (3, [0, 0], [0, 0])
    );
    assert_eq!((total.waited, total.longest_s), ([2, 2], [3600.0, 3600.0]));
    // Nothing is known of the first, so it keeps a whole GPU for its hour, and not the others' GPU.
    let hours = total.held_gpu_s.map(|s| (s / 3.6).round());
    assert_eq!(hours, [1815.0, 2210.0], "thousandths");
    assert_eq!(sharing.occupied_gpu_s, 2.5 * 3600.0);
}
