//! `gshare bench`: the last line is one JSON object that carries what was measured. How fast it was is for
//! the benchmark to judge, not for a test on whatever machine this is.

use crate::support;

use std::process::Command;

use serde_json::Value;

/// What a quick run of a benchmark prints, and its last line.
fn quick(args: &[&str]) -> (String, Value) {
    let output = Command::new(env!("CARGO_BIN_EXE_gshare"))
        .args(["bench", "--quick"])
        .args(args)
        .output()
        .expect("starts");
    let text = String::from_utf8(output.stdout).expect("text");
    let errors = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{text}{errors}");
    let line = serde_json::from_str(text.lines().last().expect("a line")).expect("JSON");
    (text, line)
}

#[test]
fn bench_schedule_ends_with_its_figures() {
    let (_, line) = quick(&["schedule", "--runs", "1"]);
    assert_eq!(
        (&line["bench"], &line["judged"]),
        (&"schedule".into(), &false.into())
    );
    let measured = line["measured"].as_array().expect("figures");
    let of = |key: &str| measured.iter().find_map(|m| m.get(key)).expect("a table");
    let rows = of("rows").as_object().expect("rows");
    for name in [
        "equal guarantees",
        "as shipped",
        "easy",
        "no offload, no move",
    ] {
        let (wait, part) = (&rows[name]["wait_min"], rows[name]["use"].as_f64());
        assert!(
            wait.is_f64() && part.is_some_and(|u| 0.0 < u && u <= 1.0),
            "{name}: {}",
            rows[name]
        );
    }
    // A pool without GPUs wastes nothing that GPUs do not.
    let fifo = of("arrival_order");
    let wait = |policy: &str| fifo[policy]["wait_min"].as_f64().expect("a figure");
    assert!(wait("pooled") <= wait("exact") + 1e-9 && wait("exact") < wait("exclusive"));
    let goals = line["goals"].as_array().expect("goals");
    for what in [
        "as shipped: mean wait",
        "over EASY",
        "left idle by keeping",
        "exact placement",
        "core step p99",
    ] {
        let named = |g: &&Value| g["name"].as_str().is_some_and(|n| n.contains(what));
        assert!(goals.iter().any(|g| named(&g)), "{what}");
    }
}

#[test]
fn bench_predict_ends_with_its_figures_and_takes_own_records_and_lists() {
    // Records of real runs, and a list of memory over time.
    let dir = tempfile::tempdir().expect("a directory");
    let station = support::runs::sized("");
    support::runs::runs(&station, &["-q", "--gpu-mem", "6G", "--sm", "20%"], 3, 3, 4);
    support::runs::runs(&station, &["-q", "--gpu-mem", "6G", "--sm", "20%"], 3, 2, 4);
    let own = support::runs::ok(&station, &["suggest", "--records"]);
    std::fs::write(dir.path().join("runs.jsonl"), own).expect("written");
    let list = (0..600u64).map(|n| {
        let gib: u64 = if n % 200 < 20 { 2 } else { 9 };
        format!("{},{},one", n * 60, gib << 30)
    });
    let list: Vec<String> = list.collect();
    let list = format!("timestamp_anon,value,container_ip\n{}\n", list.join("\n"));
    std::fs::write(dir.path().join("memory.csv"), list).expect("written");
    let place = dir.path().display().to_string();
    let (text, line) = quick(&["predict", "--runs", "1", "--traces", &place]);
    assert_eq!(
        (&line["bench"], &line["judged"], &line["seeds"]),
        (&"predict".into(), &false.into(), &1.into())
    );
    let measured = &line["measured"];
    for rule in ["error", "oracle", "last", "highest", "user_median"] {
        let error = measured["repeated"][format!("{rule}_percent")].as_f64();
        assert!(error.is_some_and(|e| e > 0.0), "{rule}: {measured}");
    }
    for row in measured["replay"].as_array().expect("three rows") {
        assert!(
            row["used_of_allocated"].as_f64().is_some_and(|u| u > 0.1),
            "{row}"
        );
    }
    assert!(
        measured["suggest"]["median_ms"]
            .as_f64()
            .is_some_and(|ms| ms > 0.0),
        "{measured}"
    );
    let files = measured["files"].as_array().expect("two files");
    let of = |name: &str| {
        let found = files
            .iter()
            .find(|f| f["file"].as_str().is_some_and(|n| n.ends_with(name)));
        found.unwrap_or_else(|| panic!("{name}: {measured}"))
    };
    // The first of five runs has none before it.
    let own = of("runs.jsonl");
    assert_eq!((&own["runs"], &own["predicted"]), (&5.into(), &4.into()));
    // Runs of the same in the simulation need the same.
    assert!(
        own["error_percent"].as_f64().is_some_and(|e| e < 5.0),
        "{own}"
    );
    assert!(
        of("memory.csv")["windows"].as_u64().is_some_and(|n| n > 10),
        "{measured}"
    );
    assert!(text.contains("5 runs, 4 of them predicted"), "{text}");
}

#[test]
fn bench_schedule_measures_a_step_of_the_core_alone() {
    let (text, line) = quick(&["schedule", "--only", "core-step"]);
    assert_eq!(
        (&line["only"], &line["judged"]),
        (&"core-step".into(), &false.into())
    );
    let row = &line["measured"][0]["core_step"][0];
    assert_eq!((&row["gpus"], &row["claims"]), (&16.into(), &500.into()));
    // It is no history of an empty machine: claims run, wait and are parked, and plans are made.
    for count in ["running", "waiting", "parked", "announced", "pulled"] {
        assert!(row[count].as_f64() > Some(0.0), "{count}: {row}");
    }
    for kind in ["steps", "decisions"] {
        let at = |q: &str| row[kind][q].as_f64().expect("a figure");
        assert!(0.0 < at("p50_us") && at("p50_us") <= at("p99_us") && at("p99_us") <= at("max_us"));
    }
    assert!(text.contains("seed 1"), "{text}");
}

#[test]
fn replay_compares_policies_and_names_what_is_wrong() {
    let dir = tempfile::tempdir().expect("a directory");
    let file = dir.path().join("claims.csv");
    std::fs::write(
        &file,
        "user,arrival_s,duration_s,num_gpu,gpu_milli\nada,0,7200,1,1000\nada,1,7200,1,1000\nbob,10,60,1,1000\n",
    )
    .expect("written");
    let run = |args: &[&str]| {
        let mut command = Command::new(env!("CARGO_BIN_EXE_gshare"));
        command.arg("replay").arg(&file).args(args);
        command.output().expect("starts")
    };
    let output = run(&["--gpus", "2", "--json"]);
    let line: Value = serde_json::from_slice(&output.stdout).expect("JSON");
    assert_eq!(line["claims"], 3);
    let wait = |i: usize| {
        line["policies"][i]["wait_mean_s"]
            .as_f64()
            .expect("a figure")
    };
    // Bob is entitled to one of the two GPUs: one of ada's is suspended for bob once it has run a minute.
    assert_eq!(line["policies"][0]["policy"], "gshare");
    assert!(wait(0) < 60.0, "{line}");
    assert_eq!(line["policies"][2]["policy"], "fgd");
    assert!(wait(2) > 2000.0, "{line}");
    let wrong = run(&["--policy", "magic"]);
    assert_eq!(wrong.status.code(), Some(64));
    assert!(String::from_utf8_lossy(&wrong.stderr).contains("gshare-no-offload"));
}

/// Columns of a list of claims.
const HEAD: &str = "user,arrival_s,duration_s,num_gpu,gpu_milli\n";

#[test]
fn replay_plays_every_policy_and_says_what_a_list_lacks() {
    let dir = tempfile::tempdir().expect("a directory");
    let file = |name: &str, text: &str| {
        let path = dir.path().join(name);
        std::fs::write(&path, text).expect("written");
        path
    };
    let run = |file: &std::path::Path, args: &[&str]| {
        let mut command = Command::new(env!("CARGO_BIN_EXE_gshare"));
        let output = command.arg("replay").arg(file).args(args).output();
        output.expect("starts")
    };
    let errors = |output: &std::process::Output| {
        assert_eq!(output.status.code(), Some(64), "{output:?}");
        assert!(output.stdout.is_empty(), "{output:?}");
        String::from_utf8_lossy(&output.stderr).into_owned()
    };
    let lines: String = (0..40)
        .map(|n| {
            format!(
                "u{},{},{},1,{}\n",
                n % 3,
                n * 300,
                600 + 60 * (n % 7),
                250 * (1 + n % 4)
            )
        })
        .collect();
    let good = file("claims.csv", &format!("{HEAD}{lines}"));
    // The names come from the program itself: a new policy is played here as well.
    let unknown = errors(&run(&good, &["--policy", "magic"]));
    let names = unknown.split("one of ").nth(1).expect("they are listed");
    let names: Vec<&str> = names
        .lines()
        .next()
        .unwrap_or_default()
        .split(", ")
        .collect();
    assert!(names.len() >= 11, "{names:?}");
    let mut args: Vec<&str> = vec!["--gpus", "2"];
    for name in &names {
        args.extend(["--policy", name.trim()]);
    }
    let text = run(&good, &args);
    let text = String::from_utf8_lossy(&text.stdout).into_owned();
    assert!(
        text.starts_with("POLICY") && text.contains("WAIT min"),
        "{text}"
    );
    assert_eq!(text.lines().count(), names.len() + 1, "{text}");
    args.push("--json");
    let all: Value = serde_json::from_slice(&run(&good, &args).stdout).expect("JSON");
    let rows = all["policies"].as_array().expect("rows");
    assert_eq!((rows.len(), &all["claims"]), (names.len(), &40.into()));
    let mut waits: Vec<f64> = Vec::new();
    for (row, name) in rows.iter().zip(&names) {
        assert_eq!(row["policy"], name.trim());
        let figure = |key: &str| row[key].as_f64().unwrap_or_else(|| panic!("{key}: {row}"));
        let (mean, p95) = (figure("wait_mean_s"), figure("wait_p95_s"));
        assert!(0.0 <= mean && 0.0 <= p95, "{row}");
        assert!(figure("jct_mean_s") >= mean + 600.0, "{row}");
        assert!((0.0..=1.0).contains(&figure("use")), "{row}");
        assert!((0.0..=1.0).contains(&figure("jain")), "{row}");
        assert!(figure("away_max_s") >= 0.0, "{row}");
        let live = name.trim().starts_with("gshare");
        assert!(
            row["suspensions"].is_u64() && row["moves"].is_u64(),
            "{row}"
        );
        assert!(live || row["suspensions"] == 0, "{row}");
        waits.push(figure("wait_mean_s"));
    }
    // They differ: whoever gives whole GPUs to parts makes people wait.
    let of = |name: &str| waits[names.iter().position(|n| n.trim() == name).expect(name)];
    assert!(of("gshare") < of("exclusive"), "{waits:?}");
    // More of the machine asked for, longer waits; fewer claims, fewer lines.
    let mean = |args: &[&str]| {
        let all = [&["--gpus", "2", "--policy", "fgd", "--json"], args].concat();
        let line: Value = serde_json::from_slice(&run(&good, &all).stdout).expect("JSON");
        let claims = line["claims"].as_u64().expect("counted");
        (
            claims,
            line["policies"][0]["wait_mean_s"]
                .as_f64()
                .expect("a figure"),
        )
    };
    assert!(mean(&["--load", "1.5"]).1 > mean(&["--load", "0.3"]).1);
    assert_eq!(mean(&["--claims", "7"]).0, 7);

    for (name, text, said) in [
        ("empty.csv", String::new(), "has no column `num_gpu`"),
        (
            "head.csv",
            HEAD.to_owned(),
            "no line of the list uses a GPU",
        ),
        (
            "column.csv",
            "num_gpu,gpu_milli\n1,500\n".to_owned(),
            "has no column `arrival_s`",
        ),
        (
            "word.csv",
            format!("{HEAD}ada,0,long,1,500\n"),
            "line 2: `long` is not a number",
        ),
        (
            "endless.csv",
            format!("{HEAD}ada,0,60,1,500\nada,0,inf,1,500\n"),
            "line 3: `inf` is not a number",
        ),
        (
            "records.jsonl",
            "{\"nothing\": 1}\n".to_owned(),
            "no record of a run",
        ),
    ] {
        let path = file(name, &text);
        let errors = errors(&run(&path, &[]));
        assert!(
            errors.contains(said) && errors.contains(name),
            "{name}: {errors}"
        );
    }
    let missing = errors(&run(&dir.path().join("none.csv"), &[]));
    assert!(
        missing.contains("cannot read") && missing.contains("none.csv"),
        "{missing}"
    );
    let load = errors(&run(&good, &["--load", "0"]));
    assert!(load.contains("--load"), "{load}");
    let records = file("runs.jsonl", "{}\n");
    let records = errors(&run(&records, &["--policy", "fgd"]));
    assert!(records.contains("sizes, not policies"), "{records}");
}

#[test]
fn bench_shim_ends_with_its_figures() {
    let (text, line) = quick(&["shim", "--runs", "2"]);
    assert_eq!(
        (&line["bench"], &line["rounds"]),
        (&"shim".into(), &2.into())
    );
    assert_eq!(line["judged"], false, "two rounds are no median");
    assert!(
        text.contains("not judged") && !text.contains("missed"),
        "{text}"
    );
    assert!(line["ok"].is_boolean());
    let goals = line["goals"]["added_ns"].as_object().expect("goals");
    assert!(goals.len() >= 11);
    for key in goals.keys() {
        assert!(line["measured"]["added_ns"][key].is_f64(), "{key}: {line}");
        let bare = line["baseline"]["bare_ns"][key]
            .as_f64()
            .expect("a baseline");
        assert!(bare > 0.0, "{key}: a call takes time");
    }
    for key in ["launch", "alloc_free"] {
        for side in ["measured", "baseline"] {
            let ratio = line[side]["eight_threads_ratio"][key].as_f64();
            assert!(ratio.is_some_and(|r| r > 0.0), "{side} {key}: {line}");
        }
    }
    // The proxy charges, so a pair of allocations through it cannot cost what a bare one does.
    let added = line["measured"]["added_ns"]["alloc_free_10000"].as_f64();
    assert!(added.is_some_and(|ns| ns > 0.0), "{line}");
}

#[test]
fn an_unknown_benchmark_is_refused_with_those_that_exist() {
    let output = Command::new(env!("CARGO_BIN_EXE_gshare"))
        .args(["bench", "nonsense"])
        .output()
        .expect("starts");
    let errors = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(!output.status.success());
    assert!(
        errors.contains("nonsense") && errors.contains("bench shim"),
        "{errors}"
    );
}

#[test]
fn bench_gate_ends_with_its_figures_and_its_check_can_fail() {
    let (text, line) = quick(&["gate"]);
    // Without the gate 10:90 misses by more than 20 points.
    assert_eq!(line["void"], false, "{text}");
    let mix = &line["measured"][0];
    let got = |key: &str| mix[key][0].as_f64().expect("a part");
    // How exactly depends on the machine; that the gate works at all does not.
    assert!(got("got") < 0.2 && got("got_ungated") > 0.3, "{text}");
    let used = &line["service_killed"][0]["used"];
    assert!(
        used[0].as_f64() < Some(0.3) && used[1].as_f64() < Some(0.4),
        "{text}"
    );
    // Also where only one of the claims is at work.
    let alone = &line["service_killed"][1]["used"][0];
    assert!(alone.as_f64() < Some(0.3), "{text}");
    // With one claim at work there is nothing to decide.
    assert_eq!(line["uncontended"]["arbiter_ns"], 0, "{text}");
}

/// Command lines that name a directory.
fn running_from(dir: &std::path::Path) -> Vec<String> {
    let name = dir.display().to_string();
    let processes = std::fs::read_dir("/proc").expect("readable").flatten();
    let lines = processes.filter_map(|p| std::fs::read(p.path().join("cmdline")).ok());
    let lines = lines.map(|l| String::from_utf8_lossy(&l).replace('\0', " "));
    lines.filter(|l| l.contains(&name)).collect()
}

#[test]
fn a_benchmark_that_is_ended_by_a_signal_leaves_nothing_running() {
    use std::time::{Duration, Instant};
    let tmp = tempfile::tempdir().expect("a directory");
    let open = std::os::unix::fs::PermissionsExt::from_mode(0o755);
    std::fs::set_permissions(tmp.path(), open).expect("set");
    let mut bench = Command::new(env!("CARGO_BIN_EXE_gshare"))
        .args(["bench", "cost", "--quick"])
        .env("TMPDIR", tmp.path())
        .stdout(std::process::Stdio::null())
        .spawn()
        .expect("starts");
    let until = Instant::now() + Duration::from_secs(30);
    let served = || {
        let stations = std::fs::read_dir(tmp.path()).expect("readable").flatten();
        let mut sockets = stations.map(|s| s.path().join("run/gshared.sock"));
        sockets.any(|s| std::os::unix::net::UnixStream::connect(s).is_ok())
    };
    while !served() {
        assert!(Instant::now() < until, "its service does not answer");
        std::thread::sleep(Duration::from_millis(10));
    }
    assert!(!running_from(tmp.path()).is_empty());
    let pid = nix::unistd::Pid::from_raw(bench.id().cast_signed());
    nix::sys::signal::kill(pid, nix::sys::signal::Signal::SIGTERM).expect("sent");
    assert_eq!(bench.wait().expect("waited for").code(), Some(143));
    let left = running_from(tmp.path());
    assert!(left.is_empty(), "{left:?}");
    let files: Vec<_> = std::fs::read_dir(tmp.path()).expect("readable").collect();
    assert!(files.is_empty(), "{files:?}");
}

#[test]
fn bench_kernel_ends_with_its_figures() {
    let (_, line) = quick(&["kernel", "--runs", "3"]);
    assert_eq!(
        (&line["bench"], &line["runs"]),
        (&"kernel".into(), &3.into())
    );
    let measured = &line["measured"];
    assert!(measured["ratio"].as_f64() > Some(0.0), "{line}");
    assert!(measured["added_ms"]["median"].is_f64(), "{line}");
    assert!(
        line["baseline"]["without_ms"].as_f64() > Some(0.0),
        "{line}"
    );
}

#[test]
fn bench_attribution_prints_what_it_drew_and_a_small_set_meets_the_goals() {
    let run = |args: &[&str]| {
        let mut command = Command::new(env!("CARGO_BIN_EXE_gshare"));
        command.args(["bench", "attribution"]).args(args);
        command.output().expect("starts")
    };
    let figures = |args: &[&str]| -> (String, Value) {
        let output = run(args);
        let errors = String::from_utf8_lossy(&output.stderr);
        let text = String::from_utf8(output.stdout).expect("text");
        assert!(output.status.success(), "{text}{errors}");
        let line = serde_json::from_str(text.lines().last().expect("a line")).expect("JSON");
        (text, line)
    };
    // One to four claims, in turns, without and with a figure of the GPU: the worst is known to be within the goals. (Not so
    // where launches have a way: kernels of some microseconds are learnt with it.)
    let small = ["--only", "h100 turns", "--seeds", "1000..1003"];
    let (text, line) = figures(&[&small[..], &["--preset", "kind"]].concat());
    assert_eq!(
        (&line["mixes"], &line["judged"], &line["simulation"]),
        (&4.into(), &false.into(), &true.into())
    );
    assert_eq!(line["seeds"], serde_json::json!([1000, 1003]));
    assert_eq!(line["mixes_over"], 0, "{text}");
    assert_eq!(line["windows"], 30, "three of each claim: {text}");
    for (name, goal) in [
        ("sm_points", 3.0),
        ("sm_points_with_device", 3.0),
        ("occupancy_points", 5.0),
        ("occupancy_points_with_device", 5.0),
    ] {
        let off = line["measured"][name].as_f64().expect("a figure");
        assert!(off > 0.0 && off <= goal, "{name}: {text}");
    }
    let naive = line["baseline"]["naive_sm_points"].as_f64();
    assert!(
        naive > Some(3.0),
        "time busy times the grids must fail: {text}"
    );
    assert!(
        text.contains("simulation, no GPU") && text.contains("seeds 1000 to 1003"),
        "{text}"
    );

    let wrong = run(&["--only", "voodoo"]);
    let errors = String::from_utf8_lossy(&wrong.stderr).into_owned();
    assert!(
        !wrong.status.success() && errors.contains("rtx4090"),
        "{errors}"
    );
    let wrong = run(&["--seeds", "9..3"]);
    let errors = String::from_utf8_lossy(&wrong.stderr).into_owned();
    assert_eq!(wrong.status.code(), Some(64), "{errors}");
    assert!(errors.contains("not a range of seeds"), "{errors}");
}

#[test]
fn bench_abuse_ends_with_its_figures() {
    let (_, line) = quick(&["abuse", "--only", "half"]);
    assert_eq!(
        (&line["bench"], &line["judged"]),
        (&"abuse".into(), &false.into())
    );
    let floods = line["measured"]["floods"].as_array().expect("floods");
    assert_eq!(floods.len(), 1);
    for key in ["p99_ms", "resident_bytes", "journal_bytes"] {
        assert!(floods[0][key].as_f64() > Some(0.0), "{key}: {line}");
        assert!(line["measured"]["idle"][key].is_number());
    }
}
