//! The simulated driver passes the whole list, on an old and on a new GPU.

use std::path::PathBuf;
use std::process::Command;

use gshare_sim_board::{Board, BoardSpec};

/// A shared object that cargo built as a dependency of this test.
fn built(name: &str) -> PathBuf {
    let exe = std::env::current_exe().expect("own path");
    let places = exe.ancestors().skip(1).take(2).map(|dir| dir.join(name));
    let found = places.into_iter().find(|path| path.exists());
    found.unwrap_or_else(|| panic!("{name} is not beside {}", exe.display()))
}

/// Runs the list on a workstation with two GPUs of a model and a driver of this CUDA version; returns its output and
/// whether it succeeded.
fn run(model: &str, cuda: u32, args: &[&str]) -> (String, bool) {
    let dir = tempfile::tempdir().expect("directory");
    let lib = dir.path().join("lib");
    std::fs::create_dir(&lib).expect("directory");
    for (from, to) in [
        ("libgshare_sim_cuda.so", "libcuda.so.1"),
        ("libgshare_sim_nvml.so", "libnvidia-ml.so.1"),
    ] {
        std::fs::copy(built(from), lib.join(to)).expect("copy");
    }
    let mut spec = BoardSpec::new(&[model, model]);
    spec.cuda_version = cuda;
    let board = Board::create(&dir.path().join("board"), &spec).expect("board");
    let fixed = std::time::Duration::from_millis(2);
    board.set_checkpoint_rate(fixed, 1 << 40).expect("rate");
    let out = Command::new(env!("CARGO_BIN_EXE_gshare-device"))
        .args(args)
        .env("LD_LIBRARY_PATH", &lib)
        .env_remove("CUDA_VISIBLE_DEVICES")
        .env_remove("GSHARE_SIM_BOARD")
        .output()
        .expect("the list runs");
    let text = String::from_utf8_lossy(&out.stdout).into_owned();
    let errors = String::from_utf8_lossy(&out.stderr);
    (format!("{text}{errors}"), out.status.success())
}

/// The summary's numbers: checks, points, as documented, different, skipped.
fn numbers(text: &str) -> Vec<u32> {
    let line = text.lines().find(|l| l.contains(" as documented, "));
    let words = line.unwrap_or_default().split(' ');
    words.filter_map(|w| w.parse().ok()).collect()
}

#[test]
fn the_simulated_driver_is_as_documented() {
    for model in ["rtx4090", "h100"] {
        let (text, ok) = run(model, 13_040, &[]);
        println!("{model}:\n{text}");
        // Only root can become another user.
        let skips = u32::from(!is_root());
        let seen = numbers(&text);
        assert!(ok, "{model}: something differs");
        assert!(seen[0] >= 100 && seen[1] >= 500, "{model}: {seen:?}");
        let wanted = (seen[0] - skips, 0, skips);
        assert_eq!((seen[2], seen[3], seen[4]), wanted, "{model}");
    }
}

fn is_root() -> bool {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let uids = status.lines().find(|l| l.starts_with("Uid:"));
    uids.and_then(|l| l.split_whitespace().nth(2)) == Some("0")
}

#[test]
fn what_an_older_driver_has_not_is_skipped_and_the_rest_is_as_documented() {
    let (text, ok) = run("h100", 13_000, &["checkpoint"]);
    println!("{text}");
    let seen = numbers(&text);
    let skips = 1 + u32::from(!is_root());
    assert!(ok, "something differs");
    assert_eq!((seen[2], seen[3], seen[4]), (seen[0] - skips, 0, skips));
    assert!(text.contains("these states came with CUDA 13.4"), "{text}");
}

#[test]
fn a_driver_that_differs_is_reported() {
    // A machine without a driver.
    let out = Command::new(env!("CARGO_BIN_EXE_gshare-device"))
        .arg("device.count")
        .env("LD_LIBRARY_PATH", "/nonexistent")
        .output()
        .expect("the list runs");
    let text = String::from_utf8_lossy(&out.stderr);
    assert_eq!(out.status.code(), Some(2), "{text}");
    assert!(text.contains("libcuda.so.1 cannot be loaded"), "{text}");
    // With a driver but no board, cuInit does not succeed.
    let dir = tempfile::tempdir().expect("directory");
    let to = dir.path().join("libcuda.so.1");
    std::fs::copy(built("libgshare_sim_cuda.so"), &to).expect("copy");
    let out = Command::new(env!("CARGO_BIN_EXE_gshare-device"))
        .args(["init.twice", "device.count"])
        .env("LD_LIBRARY_PATH", dir.path())
        .env("GSHARE_SIM_BOARD", dir.path().join("none"))
        .output()
        .expect("the list runs");
    let text = String::from_utf8_lossy(&out.stdout);
    assert!(!out.status.success(), "{text}");
    assert!(text.contains("CUDA_ERROR_NO_DEVICE (100)"), "{text}");
    assert_eq!(numbers(&text)[3], 2, "{text}");
}
