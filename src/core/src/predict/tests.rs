use std::time::Duration;

use super::*;

fn words(text: &str) -> Vec<String> {
    text.split_whitespace().map(str::to_owned).collect()
}

fn shape(text: &str) -> Shape {
    Shape::of(&words(text))
}

const GIB: f64 = 1_073_741_824.0;

fn past(id: u64, command: &str, gib: f64) -> Past {
    Past {
        id,
        shape: shape(command),
        peak: Bytes((gib * GIB) as u64),
    }
}

fn ask(command: &str, newest_first: Vec<Past>) -> Option<Estimate> {
    let earlier = Earlier {
        script: newest_first,
        ..Earlier::default()
    };
    estimate(&shape(command), &earlier, &Scores::default(), NOMINAL)
}

fn gib(bytes: Bytes) -> f64 {
    bytes.0 as f64 / GIB
}

#[test]
fn numbers_are_features_and_paths_are_reduced() {
    let s = shape(
        "/opt/venv/bin/python3.11 -u src/train.py --batch-size 32 --lr=1e-4 --data /d/set7/part-12.bin --amp x",
    );
    assert_eq!(
        (s.program.as_str(), s.script.as_str()),
        ("python3", "train.py")
    );
    assert_eq!(s.words, "amp=x batch-size=# data=part-#.bin lr=#");
    assert_eq!(s.number("batch-size"), Some(32.0));
    assert_eq!(s.number("lr"), Some(1e-4));
    let m = shape("env A=1 python -m pkg.train model=resnet50 ctx=4k");
    assert_eq!(
        (m.script.as_str(), m.number("ctx")),
        ("pkg.train", Some(4000.0))
    );
    assert_eq!(m.words, "ctx=# model=resnet50");
    let t = shape("torchrun --nproc-per-node 2 train.py --bs=8");
    assert_eq!(
        (t.program.as_str(), t.script.as_str(), t.number("bs")),
        ("torchrun", "train.py", Some(8.0))
    );
    assert_eq!(shape("./infer -n 5").script, "infer");
    assert_eq!(Shape::of(&[]), Shape::default());
}

#[test]
fn code_and_paths_are_neither_a_script_nor_the_name_of_a_number() {
    const CODE: &str = "cd /x/secret=7 --secret 5";
    for start in [
        "bash -c",
        "bash -lc",
        "sh -cx",
        "bash -eo pipefail -c",
        "uv run bash -xec",
        "python -uc",
        "python -W ignore -Bc",
        "perl -MTime::HiRes -lane",
        "ruby -e",
        "node -pe",
        "node --print",
        "julia --eval",
        "Rscript -e",
    ] {
        let mut line = words(start);
        line.push(CODE.to_owned());
        let shape = Shape::of(&line);
        assert_eq!((&*shape.script, shape.numbers.len()), ("-c", 0), "{start}");
    }
    for (line, program, script) in [
        ("bash -e -o pipefail /x/run.sh", "bash", "run.sh"),
        ("python -Wonce -X dev -m pkg.train", "python", "pkg.train"),
        ("python -cprint(1) /x/secret", "python", "-c"),
        ("bash -m /secret/run.sh", "bash", "run.sh"),
        ("env KEY=a/secret python t.py", "python", "t.py"),
        ("env --chdir=/x/secret python t.py", "env", "env"),
    ] {
        let shape = shape(line);
        assert_eq!(
            (&*shape.program, &*shape.script),
            (program, script),
            "{line}"
        );
    }
    let long = format!("{}=1", "n".repeat(65));
    for word in [
        "/d/secret/year=2024",
        "a b where id=5",
        "-I/secret 5",
        "--x=1e308k",
        &long,
    ] {
        let shape = Shape::of(&["./t".to_owned(), word.to_owned(), "3".to_owned()]);
        let names: Vec<&str> = shape.numbers.iter().map(|(name, _)| &**name).collect();
        assert!(
            matches!(names[..], [] | ["argument 1" | "argument 2"]),
            "{names:?}"
        );
        assert!(
            shape.numbers.iter().all(|(_, n)| n.is_finite()),
            "{shape:?}"
        );
    }
}

#[test]
fn repeats_say_what_a_run_needs() {
    let runs = vec![
        past(3, "python t.py --bs 8", 9.2),
        past(2, "python t.py --bs 8", 9.0),
        past(1, "python t.py --bs 8", 9.4),
    ];
    let e = ask("python t.py --bs 8", runs).unwrap();
    assert_eq!(
        (e.level, e.runs.len(), e.confidence()),
        (Level::Repeats, 3, "good")
    );
    assert!((9.0..9.4).contains(&gib(e.middle)), "{}", gib(e.middle));
    assert!(
        gib(e.bound) > 9.4 && gib(e.bound) < 12.0,
        "{}",
        gib(e.bound)
    );
}

#[test]
fn arguments_scale_from_16_and_32_to_64() {
    let mem = |b: f64| 2.0 + 0.1 * b;
    let runs = (0..6).map(|i| {
        let b = if i < 3 { 32.0 } else { 16.0 };
        past(
            6 - i,
            &format!("python t.py --batch-size {b} --seed {}", i * 7919),
            mem(b),
        )
    });
    let runs: Vec<Past> = runs.collect();
    let e = ask("python t.py --batch-size 64 --seed 5", runs.clone()).unwrap();
    assert_eq!(
        (e.level, e.follows.as_slice()),
        (Level::Scaled, &["batch-size".to_owned()][..])
    );
    assert!(
        (gib(e.middle) / mem(64.0) - 1.0).abs() < 0.02,
        "{}",
        gib(e.middle)
    );
    let between = ask("python t.py --batch-size 24 --seed 5", runs).unwrap();
    assert!(
        (gib(between.middle) / mem(24.0) - 1.0).abs() < 0.02,
        "{}",
        gib(between.middle)
    );
}

#[test]
fn between_numbers_memory_never_falls_when_it_rises_on_the_whole() {
    let seen = [
        (8.0, 3.0),
        (16.0, 5.0),
        (32.0, 4.9),
        (64.0, 12.0),
        (128.0, 30.0),
    ];
    let runs: Vec<Past> = seen
        .iter()
        .flat_map(|(b, g)| (0..3).map(move |i| past(i, &format!("python t.py --bs {b}"), *g)))
        .collect();
    let mut last = 0.0;
    for b in 8..=128 {
        let e = ask(&format!("python t.py --bs {b}"), runs.clone()).unwrap();
        assert!(
            gib(e.middle) >= last - 1e-9,
            "{b}: {} after {last}",
            gib(e.middle)
        );
        last = gib(e.middle);
    }
}

#[test]
fn a_change_counts_after_two_runs() {
    let mut runs: Vec<Past> = (0..8)
        .map(|i| past(8 - i, "python t.py", 6.0 + 0.05 * (i % 3) as f64))
        .collect();
    runs.insert(0, past(9, "python t.py", 11.0));
    let one = ask("python t.py", runs.clone()).unwrap();
    assert_eq!(one.changed, None);
    runs.insert(0, past(10, "python t.py", 11.2));
    let two = ask("python t.py", runs).unwrap();
    assert_eq!(two.changed.map(|(n, _)| n), Some(2));
    assert!(
        (10.5..11.7).contains(&gib(two.middle)),
        "{}",
        gib(two.middle)
    );
}

#[test]
fn it_falls_back_from_near_to_far_and_ends_without_an_answer() {
    let asked = shape("python t.py --model big");
    let other = past(1, "python t.py --model small", 4.0);
    let mut earlier = Earlier {
        script: vec![other],
        ..Earlier::default()
    };
    let scores = Scores::default();
    let level = |e: &Earlier| estimate(&asked, e, &scores, NOMINAL).map(|e| e.level);
    assert_eq!(level(&earlier), Some(Level::Script));
    earlier.shared = std::mem::take(&mut earlier.script);
    assert_eq!(level(&earlier), Some(Level::Shared));
    earlier.shared = vec![past(2, "python t.py --model big", 5.0)];
    assert_eq!(level(&earlier), Some(Level::Shared));
    earlier.shared.clear();
    earlier.user = (0..2).map(|i| past(i, "python other.py", 3.0)).collect();
    assert_eq!(
        level(&earlier),
        None,
        "two runs of something else say nothing"
    );
    earlier.user = (0..3).map(|i| past(i, "python other.py", 3.0)).collect();
    assert_eq!(level(&earlier), Some(Level::User));
}

#[test]
fn the_bound_is_the_conformal_quantile_of_the_scores() {
    let mut scores = Scores::default();
    let kind = Scores::kind(Level::Repeats, 9);
    assert!(scores.quantile(kind, 0.01) >= 3.0, "few scores: wide");
    for i in 0..999u32 {
        scores.push(kind, u64::from(i), f64::from(i) / 999.0 * 4.0 - 2.0);
    }
    let q = scores.quantile(kind, 0.01);
    assert!((1.95..=2.0).contains(&q), "{q}");
    let above = scores.0[kind].iter().filter(|(_, s)| *s > q).count();
    assert!(above <= 10, "{above} of 999");
    let others = [
        Scores::kind(Level::User, 9),
        Scores::kind(Level::Repeats, 3),
    ];
    assert!(
        others
            .iter()
            .all(|k| *k != kind && scores.quantile(*k, 0.01) >= 3.0)
    );
    scores.forget(&[998, 997]);
    assert!(
        scores.quantile(kind, 0.01) < q,
        "what was a change is no error"
    );
}

#[test]
fn the_smallest_share_that_does_not_slow() {
    let mut busy = Busy::default();
    assert_eq!(busy.enough(), None);
    busy.add(95.0, 0.3, 0.0);
    busy.add(5.0, 1.0, 0.0);
    // With 0.3: 95 s are unchanged, 5 s take 3.3 times as long, 11.7 % in total; with 0.5: 5 %.
    assert_eq!(busy.enough(), Some(0.5));
    assert_eq!(busy.most(), Some(1.0));
    let mut held = Busy::default();
    held.add(10.0, 0.25, 0.5);
    assert_eq!(held.enough(), Some(0.5), "what was held back was wanted");
}

#[test]
fn the_next_minutes_follow_the_last_two_hours() {
    let mut track = Track::default();
    assert_eq!(track.need(), None);
    for minute in 0..60 {
        track.look(
            Duration::from_secs(60 * minute),
            if minute == 10 { 14.0 } else { 2.0 },
        );
    }
    assert_eq!(track.need().unwrap().highest, 14.0);
    track.look(Duration::from_secs(60 * 200), 2.0);
    assert_eq!(
        track.need().unwrap().highest,
        2.0,
        "three hours later that is over"
    );
    track.look(Duration::from_secs(60 * 201), 0.1);
    assert_eq!(
        track.need().unwrap().highest,
        0.1,
        "it holds nothing: between two lives"
    );
}

#[test]
fn durations_are_medians_of_the_same_script_else_of_the_user() {
    let s = |v: &[u64]| {
        v.iter()
            .map(|s| Duration::from_secs(*s))
            .collect::<Vec<_>>()
    };
    assert_eq!(duration(&s(&[10]), &s(&[1, 2])), None);
    let user = duration(&s(&[10]), &s(&[100, 200, 300])).unwrap();
    assert_eq!((user.at(0.5), user.runs()), (Duration::from_secs(200), 3));
    let same = duration(&s(&[10, 12, 11]), &s(&[100, 200, 300])).unwrap();
    assert_eq!(
        (same.at(0.5), same.at(0.1), same.at(0.9)),
        (
            Duration::from_secs(11),
            Duration::from_secs(10),
            Duration::from_secs(12)
        )
    );
}

#[test]
fn a_run_goes_on_as_those_did_that_were_as_long() {
    let s = Duration::from_secs;
    let span = Span::of([10, 20, 100, 200, 300].map(s).to_vec()).unwrap();
    assert_eq!(span.left(s(0), 0.5), Some(s(100)));
    assert_eq!(
        span.left(s(50), 0.5),
        Some(s(150)),
        "half of 100, 200 and 300"
    );
    assert_eq!(span.left(s(250), 0.9), Some(s(50)));
    assert_eq!(span.left(s(300), 0.9), None, "none was longer");
    // One run ends each minute from then on: that none ended in the next half minute says little.
    let span = Span::of((41..=80).map(|m| s(60 * m)).collect()).unwrap();
    let soon = span.ends_within(s(2400), s(30), 30.0 / 2430.0);
    assert!((0.01..0.02).contains(&soon), "{soon}");
    let next = span.ends_within(s(2400), s(60), 60.0 / 2460.0);
    assert!((0.02..0.03).contains(&next), "{next}");
}

#[test]
fn a_repeat_is_not_given_many_times_what_was_ever_seen_of_it() {
    let runs = [14.0, 1.0, 1.05, 0.97].iter().zip((0..4).rev());
    let runs = runs.map(|(gib, id)| past(id, "python train.py", *gib));
    let said = ask("python train.py", runs.collect()).expect("known");
    assert_eq!(said.level, Level::Repeats);
    assert!(gib(said.bound) <= 1.51 * 14.0, "{said:?}");
}
