//! The first hour on a GPU (`tests/device/hour`), in short on a simulated one: every part of it runs, needs nothing but
//! Python, and writes to its own folder only.

use crate::support;

use std::path::Path;
use std::process::{Command, Stdio};

use gshare_sim_board::{Board, BoardSpec};
use support::GSHARE;

/// What each call must have come to.
const CALLS: [(&str, &[&str]); 5] = [
    (
        "machine",
        &[
            "| a process, again | {\"model\": \"NVIDIA H100",
            "10 us kernel, events idle",
            "| a stack of 16 KiB |",
        ],
    ),
    (
        "shares",
        &[
            "Over-use announced for it: no.",
            "| eager |",
            "| callback |",
        ],
    ),
    (
        "turns",
        &["| flood 0.1 : flood 0.9 |", "| killed |", "\"graphs_s\": "],
    ),
    (
        "detach",
        &[
            "| one allocation | 64 |",
            "| same longest",
            "SIGTERM while detached: status -15",
        ],
    ),
    ("mps", &["| 0.25 | 132 | 32 |", "| 0.75 | 132 | 98 |"]),
];

/// Kernels of the programs, with what the names say that they take.
const COSTS: &str = "spin_10us 10us\nspin_30us 30us\nspin_100us 100us\nspin_1000us 1ms\n";

fn simulate(sim: &Path) -> String {
    gshare_artifacts::stage_sim(sim).expect("staged");
    let board = Board::create(&sim.join("board"), &BoardSpec::new(&["h100"])).expect("a board");
    board
        .set_checkpoint_rate(std::time::Duration::from_millis(50), 1 << 34)
        .expect("set");
    std::fs::write(sim.join("costs"), COSTS).expect("written");
    let control = sim.join("bin/nvidia-cuda-mps-control");
    std::fs::create_dir(sim.join("bin")).expect("made");
    support::copy_program(GSHARE, &control);
    format!(
        "[driver]\nlibcuda = \"{0}/lib/libcuda.so.1\"\nlibnvidia-ml = \"{0}/lib/libnvidia-ml.so.1\"\n\
         [devices]\nfilter = \"off\"\n[mps]\ncontrol = {control:?}\n",
        sim.display()
    )
}

#[test]
fn every_call_of_the_hour_runs_on_the_simulated_driver() {
    let dir = tempfile::Builder::new()
        .prefix("hour-")
        .tempdir()
        .expect("a directory");
    let config = simulate(&dir.path().join("sim"));
    let list = Path::new(GSHARE).with_file_name("gshare-device");
    let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/device/first_hour");
    let folder = dir.path().join("folder");
    std::fs::create_dir(&folder).expect("made");
    for name in ["hour.py", "client.py"] {
        std::fs::copy(source.join(name), folder.join(name)).expect("copied");
    }
    for (call, expected) in CALLS {
        let out = dir.path().join("out");
        let ran = Command::new("python3")
            .arg(folder.join("hour.py"))
            .args([call, "--short", "--raw"])
            .current_dir("/")
            .env("OUT", &out)
            .env("HOME", "/nonexistent")
            .env("LD_LIBRARY_PATH", dir.path().join("sim/lib"))
            .env("HOUR_SIMULATED", "1")
            .env("HOUR_CONFIG", &config)
            .env("HOUR_GSHARE", GSHARE)
            .env("HOUR_LIST", &list)
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .expect("python3 runs");
        let group = format!("/gshare-hour-{}", ran.id());
        let ran = ran.wait_with_output().expect("it ends");
        let said = String::from_utf8_lossy(&ran.stdout);
        let errors = String::from_utf8_lossy(&ran.stderr);
        let programs = std::fs::read_to_string(out.join("clients.txt")).unwrap_or_default();
        assert!(ran.status.success(), "{call}: {said}{errors}{programs}");
        println!("{said}");
        for text in expected {
            assert!(
                said.contains(text),
                "{call} lacks `{text}`: {said}{programs}"
            );
        }
        assert!(!said.contains("failed\": \""), "{call}: {said}{programs}");
        let group = gshare_enforcer::cgroup::Mount::find()
            .ok()
            .and_then(|mount| mount.dir_of(&group));
        assert!(group.is_none_or(|group| !group.exists()), "{call}: {said}");
        let kept = std::fs::read_to_string(out.join(format!("{call}.md"))).expect("kept");
        assert_eq!(kept.trim(), said.trim(), "{call}");
    }
    let runs: Vec<String> = std::fs::read_dir("/proc")
        .expect("listed")
        .filter_map(|entry| entry.ok()?.file_name().to_str()?.parse().ok())
        .filter_map(gshare_enforcer::proc::exe)
        .filter(|program| program.starts_with(dir.path()))
        .map(|program| program.display().to_string())
        .collect();
    assert!(runs.is_empty(), "still running: {runs:?}");
    let left: Vec<_> = std::fs::read_dir(&folder).expect("there").collect();
    assert_eq!(
        left.len(),
        2,
        "something was written beside the program: {left:?}"
    );
}

/// Lines that come together, of a program that then says nothing; and a call that hangs, with a program that it started.
#[test]
fn a_call_of_the_hour_ends_in_bounded_time_with_what_it_had() {
    let dir = tempfile::tempdir().expect("a directory");
    let script = "import hour, sys, time\n\
        hour.CLIENT = ['sh', '-c', 'printf \"first\\n= {}\\n\"; exec sleep 600']\n\
        def call():\n    \
            program = hour.Program([])\n    \
            hour.say('read: %s %s' % (program.line('first', 30), program.line('= ', 30)))\n    \
            print('pid:', program.process.pid)\n    \
            time.sleep(600)\n\
        hour.CALLS['machine'], hour.LIMIT = call, -8\n\
        hour.main('machine')\n";
    let ran = Command::new("python3")
        .args(["-c", script])
        .current_dir(Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/device/first_hour"))
        .env("PYTHONDONTWRITEBYTECODE", "1")
        .env("OUT", dir.path())
        .output()
        .expect("python3 runs");
    let said = String::from_utf8_lossy(&ran.stdout);
    let errors = String::from_utf8_lossy(&ran.stderr);
    assert_eq!(ran.status.code(), Some(1), "{said}{errors}");
    assert!(said.contains("read: first = {}\n"), "{said}{errors}");
    assert!(said.contains("Stopped after 2 s. It stood at:"), "{said}");
    assert!(said.contains("in call"), "where it stood: {said}");
    let pid = said.lines().find_map(|line| line.strip_prefix("pid: "));
    let pid: i32 = pid.and_then(|pid| pid.parse().ok()).expect("a program");
    assert!(
        gshare_enforcer::proc::stat(pid).is_none(),
        "{pid} still runs"
    );
    let kept = std::fs::read_to_string(dir.path().join("machine.md")).expect("kept");
    assert!(kept.contains("It stood at:"), "{kept}");
}
