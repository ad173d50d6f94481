use gshare_core::predict::{BINS, Shape};

use super::*;
use crate::daemon::history::runs::{AskedByRun, EndOfRun, UsedByRun, Whose};
use crate::daemon::history::store::Store;

const GIB: f64 = 1_073_741_824.0;

fn words(text: &str) -> Vec<String> {
    text.split(' ').map(str::to_owned).collect()
}

fn record(uid: u32, n: u64, command: &str, peak: f64, seconds: f64) -> RunRecord {
    let mut busy = [0.0; BINS];
    // Up to 30 %, in one run up to 40 %.
    busy[if n == 3 { 7 } else { 5 }] = seconds;
    RunRecord {
        claim: n,
        ended_ms: 1_000_000 + n,
        uid,
        shape: Shape::of(&words(command)),
        asked: AskedByRun {
            gpus: 1,
            mem: 12 << 30,
            sm: 0.5,
            ..AskedByRun::default()
        },
        used: UsedByRun {
            peak: (peak * GIB) as u64,
            busy,
            ..UsedByRun::default()
        },
        ended: EndOfRun {
            seconds,
            cause: "command exited".to_owned(),
            ..EndOfRun::default()
        },
        ..RunRecord::default()
    }
}

fn facts() -> Facts {
    Facts {
        default_mem: Bytes::gib(11),
        default_sm: 0.5,
        largest: Bytes::gib(23),
        first_look: Duration::from_secs(60),
    }
}

fn whose(uid: u32) -> Whose {
    Whose {
        uid,
        ..Whose::default()
    }
}

fn store() -> (tempfile::TempDir, Store) {
    let dir = tempfile::tempdir().expect("a directory");
    let store = Store::open(&dir.path().join("history.db"), 1 << 30).expect("opens");
    (dir, store)
}

fn numbers(text: &str) -> Vec<String> {
    let parts = text.split(|c: char| !(c.is_ascii_digit() || c == '.'));
    parts
        .map(|p| p.trim_matches('.').to_owned())
        .filter(|p| !p.is_empty())
        .collect()
}

#[test]
fn each_number_in_a_reason_is_in_the_records() {
    let (_dir, mut store) = store();
    let runs = [
        (1, 16, 4.0),
        (2, 16, 4.1),
        (3, 16, 3.9),
        (4, 32, 7.0),
        (5, 32, 7.2),
        (6, 32, 6.9),
        (7, 16, 4.05),
    ];
    for (n, batch, peak) in runs {
        let command = format!("python train.py --batch-size {batch} --seed {}", n * 77);
        let run = record(1000, n, &command, peak, 100.0 + n as f64);
        store.add_run(run, &whose(1000)).expect("kept");
    }
    for asked in [
        "python train.py --batch-size 16 --seed 5",
        "python train.py --batch-size 64 --seed 5",
        "python train.py --eval",
    ] {
        let command = words(asked);
        let told = store
            .told(&whose(1000), &Shape::of(&command), 1)
            .expect("told");
        let said = suggest(&told, &facts(), &command);
        let all = store.runs_of(1000, 99).expect("records");
        let used: Vec<&RunRecord> = all.iter().filter(|r| said.runs.contains(&r.id)).collect();
        assert!(
            !used.is_empty() && used.len() == said.runs.len(),
            "{said:?}"
        );
        // Numbers that a reason may contain: the count, the smallest and largest peak, those in the arguments, the
        // estimate, the largest and the sufficient fraction of SMs, the durations; and the rule's 99, 5 and nine in
        // ten.
        let estimate = told.estimate.as_ref().expect("an estimate");
        let show = |bytes: u64| format!("{:.1}", bytes as f64 / GIB);
        let mut true_ones: Vec<String> =
            vec![used.len().to_string(), "99".to_owned(), "5".to_owned()];
        true_ones.extend(used.iter().map(|r| r.used.peak).min().map(show));
        true_ones.extend(used.iter().map(|r| r.used.peak).max().map(show));
        true_ones.extend([show(estimate.middle.0), show(estimate.bound.0)]);
        true_ones.extend(
            used.iter()
                .flat_map(|r| r.shape.numbers.iter().map(|(_, v)| v.to_string())),
        );
        let mut busy = Busy::default();
        for r in &used {
            busy.merge(&Busy(r.used.busy));
        }
        true_ones.extend(
            [busy.most(), told.share()]
                .into_iter()
                .flatten()
                .map(|p| format!("{:.0}", p * 100.0)),
        );
        let time = told.time.expect("run times");
        true_ones.push(time.runs().to_string());
        true_ones.extend(numbers(&show_duration(time.at(0.5))));
        assert!(
            all.iter()
                .any(|r| (r.ended.seconds - time.at(0.5).as_secs_f64()).abs() < 1.0)
        );
        for reason in &said.reasons {
            for number in numbers(&reason.replace("train.py", "")) {
                assert!(
                    true_ones.contains(&number),
                    "{number} of `{reason}` is not in {true_ones:?}"
                );
            }
        }
        assert!(said.reasons.len() >= 3, "{said:?}");
    }
}

#[test]
fn a_repeat_is_told_with_its_runs_its_sms_and_what_it_frees() {
    let (_dir, mut store) = store();
    for n in 1..=11 {
        let run = record(
            1000,
            n,
            "python train.py --bs 8",
            9.1 + 0.05 * n as f64,
            600.0,
        );
        store.add_run(run, &whose(1000)).expect("kept");
    }
    let command = words("python train.py --bs 8");
    let told = store
        .told(&whose(1000), &Shape::of(&command), 1)
        .expect("told");
    let said = suggest(&told, &facts(), &command);
    assert_eq!(
        said.reasons[0],
        "11 earlier runs of train.py: peak 9.1-9.6 GiB"
    );
    assert_eq!(said.confidence, "high");
    assert!(
        said.reasons
            .iter()
            .any(|r| r.starts_with("SMs never above 40 %; with only 30 %")),
        "{said:?}"
    );
    assert_eq!(said.frees_mem, Some((12i64 << 30) - said.mem.cast_signed()));
    assert!(said.sm.is_some_and(|s| (s - 0.3).abs() < 1e-9), "{said:?}");
    assert!(
        said.command.ends_with("--sm 30% -- python train.py --bs 8"),
        "{}",
        said.command
    );
}

#[test]
fn records_are_private_unless_the_configuration_shares_them() {
    let (_dir, mut store) = store();
    for n in 1..=3 {
        store
            .add_run(record(1000, n, "python train.py", 9.0, 60.0), &whose(1000))
            .expect("kept");
    }
    let shape = Shape::of(&words("python train.py"));
    let other = store.told(&whose(1001), &shape, 1).expect("told");
    assert!(other.estimate.is_none() && other.records.is_empty() && other.time.is_none());
    let all = Whose {
        all: true,
        ..whose(1001)
    };
    let shared = store
        .told(&all, &shape, 1)
        .expect("told")
        .estimate
        .expect("shared");
    assert_eq!(shared.level, Level::Shared);
    // No account has these numbers, so they share no group.
    let group = Whose {
        uid: 60_001,
        group: true,
        ..Whose::default()
    };
    assert!(
        store
            .told(&group, &shape, 1)
            .expect("told")
            .estimate
            .is_none()
    );
}

#[test]
fn what_was_a_change_is_forgotten_as_an_error() {
    let (_dir, mut store) = store();
    for n in 1..=12 {
        let peak = if n <= 8 {
            4.0 + 0.01 * n as f64
        } else {
            9.0 + 0.01 * n as f64
        };
        store
            .add_run(record(1000, n, "python t.py", peak, 60.0), &whose(1000))
            .expect("kept");
    }
    let told = store
        .told(&whose(1000), &Shape::of(&words("python t.py")), 1)
        .expect("told");
    let estimate = told.estimate.expect("known");
    assert!(
        (8.5..9.6).contains(&(estimate.middle.0 as f64 / GIB)),
        "{estimate:?}"
    );
    assert!(
        estimate.bound.0 < 14 << 30,
        "the change is no spread: {estimate:?}"
    );
}
