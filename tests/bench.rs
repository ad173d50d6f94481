//! `gshare bench`: the last line is one JSON object that carries what was measured. How fast it was is for
//! the benchmark to judge, not for a test on whatever machine this is.

use std::process::Command;

use serde_json::Value;

#[test]
fn bench_shim_ends_with_its_figures() {
    let output = Command::new(env!("CARGO_BIN_EXE_gshare"))
        .args(["bench", "shim", "--quick", "--runs", "2"])
        .output()
        .expect("starts");
    let text = String::from_utf8(output.stdout).expect("text");
    let errors = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{text}{errors}");
    let line: Value = serde_json::from_str(text.lines().last().expect("a line")).expect("JSON");
    assert_eq!(
        (&line["bench"], &line["rounds"]),
        (&"shim".into(), &2.into())
    );
    assert_eq!(line["judged"], false, "two rounds are no median");
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
