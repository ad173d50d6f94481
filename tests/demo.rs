//! `gshare demo --headless`: what it prints is what the simulated GPUs really did. One demo at a time: each of them keeps a
//! processor busy.

use crate::support;

use std::fs::Permissions;
use std::io::{BufRead, BufReader};
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use gshare_proto::{Call, ClaimView, Client, Reply, Snapshot, Source};
use gshare_sim_board::Board;
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use support::terminal::Terminal;
use support::users::{Users, as_user};
use support::{GSHARE, alone, root, until};

const SOON: Duration = Duration::from_secs(20);

/// The demo's directory: found by its process among the temporary ones.
fn directory(tmp: &Path) -> Option<PathBuf> {
    let entries = std::fs::read_dir(tmp).ok()?.flatten();
    entries
        .map(|e| e.path())
        .find(|p| p.join("run/gshared.sock").exists())
}

fn snapshot(dir: &Path) -> Option<Snapshot> {
    match Client::connect(&dir.join("run/gshared.sock"))
        .ok()?
        .call(&Call::Snapshot)
        .ok()?
    {
        Reply::Snapshot(s) => Some(*s),
        _ => None,
    }
}

#[test]
fn the_demo_shows_what_the_board_did_and_cleans_up() {
    let _stage = alone();
    let tmp = tempfile::tempdir().expect("a directory");
    let mode = PermissionsExt::from_mode(0o755);
    std::fs::set_permissions(tmp.path(), mode).expect("set");
    let mut demo = Command::new(GSHARE)
        .args(["demo", "--headless", "--for", "15m", "--json"])
        .env("TMPDIR", tmp.path())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .expect("starts");
    let started = Instant::now();
    let dir = until(
        "the demo's service answers",
        Duration::from_secs(20),
        || directory(tmp.path()),
    );
    let board = Board::open(&dir.join("sim/board")).expect("the board opens");

    // While it plays, the service's memory figures are the board's: looked at until both were read in the
    // same quiet moment.
    until(
        "the figures agree with the board",
        Duration::from_secs(20),
        || {
            if started.elapsed() < Duration::from_secs(4) {
                return None;
            }
            let (before, seen, after) = (board.snapshot(), snapshot(&dir)?, board.snapshot());
            let used = |b: &gshare_sim_board::BoardSnapshot| {
                b.gpus.iter().map(|g| g.used).collect::<Vec<u64>>()
            };
            let shown: Option<Vec<u64>> = seen.gpus.iter().map(|g| g.mem_used).collect();
            (used(&before) == used(&after) && shown? == used(&before)).then_some(())
        },
    );

    // A job is killed: its bytes are gone from the next snapshot.
    let victim = until("the tagger runs", Duration::from_secs(10), || {
        let s = snapshot(&dir)?;
        let claim = s
            .claims
            .iter()
            .find(|c| c.name.as_deref() == Some("tagger.service"))?
            .clone();
        claim.gpus[0].mem_used.filter(|b| *b > 1 << 30)?;
        Some(claim)
    });
    let (pid, gpu) = (
        victim.pid.expect("it has a process"),
        victim.gpus[0].gpu as usize,
    );
    // The service's figure is of its last second or so, the board's of the last two: on a busy machine both are
    // looked at until they are of the same time.
    let busy = |b: &Board| b.snapshot().gpus[gpu].busy_ns;
    let (mut from, mut at) = (busy(&board), Instant::now());
    let shown = until("time busy is the board's", Duration::from_secs(20), || {
        if at.elapsed() < Duration::from_secs(2) {
            return None;
        }
        let g = snapshot(&dir)?.gpus[gpu].clone();
        let truth = 100.0 * (busy(&board) - from) as f64 / at.elapsed().as_nanos() as f64;
        (from, at) = (busy(&board), Instant::now());
        let figures = (g.time_busy?.value, g.sm_active?.value);
        ((figures.0 - truth).abs() < 15.0).then_some(figures)
    });
    assert!(
        shown.1 < 45.0,
        "its few blocks leave most SMs idle: {}",
        shown.1
    );
    kill(Pid::from_raw(pid.cast_signed()), Signal::SIGKILL).expect("killed");
    until("its bytes are gone", Duration::from_secs(10), || {
        let s = snapshot(&dir)?;
        let gone = s.claims.iter().all(|c| c.id != victim.id);
        (gone
            && board.snapshot().gpus[gpu]
                .processes
                .iter()
                .all(|p| p.pid != pid))
        .then_some(())
    });

    two_notebooks_burst_and_one_moves_for_a_whole_gpu(&mut demo, &dir, &board);
    kill(Pid::from_raw(demo.id().cast_signed()), Signal::SIGINT).expect("stopped");
    let output = demo.wait_with_output().expect("ends");
    assert_eq!(output.status.code(), Some(130));
    let last: Snapshot = serde_json::from_slice(&output.stdout).expect("one JSON object");
    assert_eq!(last.gpus.len(), 4);
    assert!(last.simulated);
    assert!(
        last.gpus
            .iter()
            .all(|g| g.mem_allocatable.is_some() && g.mem_used.is_some())
    );
    assert!(last.claims.len() >= 5, "{} claims", last.claims.len());
    assert!(
        last.users.len()
            >= if nix::unistd::Uid::effective().is_root() {
                3
            } else {
                1
            }
    );
    let hog = last
        .claims
        .iter()
        .find(|c| c.name.as_deref() == Some("train.py"))
        .expect("the hog is there");
    assert!(hog.refusals >= 1, "it hit its cap");
    // A 4090 has no counters: what its claims' own launches give is an estimate, the H100's figure is none.
    let source = |gpu: usize| last.gpus[gpu].sm_active.map(|f| (f.source, f.estimate));
    assert_eq!(source(0), Some((Source::Shim, true)));
    assert_eq!(source(2), Some((Source::Gpm, false)));
    assert!(!dir.exists(), "everything is cleaned up");
    let ours = std::fs::read_dir("/sys/fs/cgroup/unified")
        .into_iter()
        .flatten()
        .flatten();
    let name = dir
        .file_name()
        .expect("a name")
        .to_string_lossy()
        .replace('.', "");
    assert!(
        !ours
            .map(|e| e.file_name())
            .any(|n| n.to_string_lossy().contains(&name)),
        "no cgroup is left"
    );
}

fn named(seen: &Snapshot, name: &str) -> Option<ClaimView> {
    let found = seen.claims.iter().find(|c| c.name.as_deref() == Some(name));
    found.cloned()
}

/// The GPUs on which the board has memory of a process, with its bytes.
fn on_the_board(board: &Board, pid: u32) -> Vec<(u32, u64)> {
    let gpus = board.snapshot().gpus.into_iter().zip(0u32..);
    gpus.filter_map(|(gpu, index)| {
        let process = gpu.processes.iter().find(|p| p.pid == pid)?;
        (process.bytes > 0).then_some((index, process.bytes))
    })
    .collect()
}

/// Part of the time for which the process has computed, by the board.
fn computed(board: &Board, pid: u32) -> u64 {
    let gpus = board.snapshot().gpus.into_iter();
    let processes = gpus.flat_map(|g| g.processes);
    processes.filter(|p| p.pid == pid).map(|p| p.busy_ns).sum()
}

/// The later scenes: what is said and shown is what the board and the notebook's own checksums say.
fn two_notebooks_burst_and_one_moves_for_a_whole_gpu(demo: &mut Child, dir: &Path, board: &Board) {
    let stderr = demo.stderr.take().expect("piped");
    let said = Arc::new(Mutex::new(Vec::<String>::new()));
    let hears = Arc::clone(&said);
    std::thread::spawn(move || {
        for line in BufReader::new(stderr).lines().map_while(Result::ok) {
            hears.lock().expect("not poisoned").push(line);
        }
    });
    let heard = |words: &str| -> Option<String> {
        let said = said.lock().expect("not poisoned");
        said.iter().find(|line| line.contains(words)).cloned()
    };
    let checksums = || -> Vec<String> {
        let log = std::fs::read_to_string(dir.join("eval.ipynb.log")).expect("it has a log");
        let sums = log
            .lines()
            .filter_map(|l| l.strip_prefix("checksum of the weights "));
        sums.map(str::to_owned).collect()
    };
    let late = Duration::from_secs(30);

    until("it is said that both burst", late, || {
        heard("nobody else needs it")
    });
    let seen = snapshot(dir).expect("served");
    let (llama, eval) = (named(&seen, "llama-ft.ipynb"), named(&seen, "eval.ipynb"));
    let (llama, eval) = (llama.expect("it runs"), eval.expect("it runs"));
    let (other, pid) = (llama.pid.expect("a process"), eval.pid.expect("a process"));
    let (stays, leaves) = (llama.gpus[0].gpu, eval.gpus[0].gpu);
    let gpus = |pid| -> Vec<u32> { on_the_board(board, pid).iter().map(|(g, _)| *g).collect() };
    assert_eq!((gpus(other), gpus(pid)), (vec![stays], vec![leaves]));
    assert_ne!(stays, leaves, "each has a GPU");
    let before = until("checksums are printed", late, || {
        checksums().into_iter().next()
    });

    let waits = until("a whole GPU is waited for, with a plan", late, || {
        snapshot(dir)?.queue.into_iter().find(|q| q.plan.is_some())
    });
    let plan = waits.plan.expect("looked at");
    let way = format!("moves from GPU {leaves} to GPU {stays}");
    assert!(plan.starts_with(&eval.id) && plan.contains(&way), "{plan}");
    assert!(
        plan.contains(" in ") && waits.reason.contains("most free"),
        "{plan}: {}",
        waits.reason
    );

    let runs = until("the whole GPU is had", late, || {
        named(&snapshot(dir)?, "finetune.py").filter(|c| c.id == waits.id)
    });
    assert_eq!(runs.gpus[0].gpu, leaves);
    assert_eq!(gpus(pid), vec![stays], "all of it is there, by the board");
    until("memory is shown as the board has it", late, || {
        let shown = named(&snapshot(dir)?, "eval.ipynb")?.gpus[0].clone();
        let (gpu, bytes) = on_the_board(board, pid)[0];
        (shown.gpu == gpu && shown.mem_used == Some(bytes)).then_some(())
    });
    let free = until("it is said whose GPU became free", late, || {
        heard("became free")
    });
    assert!(free.contains(&before) && free.contains(&waits.id), "{free}");
    assert!(
        checksums().iter().all(|sum| *sum == before),
        "the memory is the same"
    );

    let again = until("it is said that both burst again", late, || {
        heard("burst again")
    });
    assert!(again.contains(&before) && checksums().iter().all(|sum| *sum == before));
    assert_ne!(gpus(pid), gpus(other), "each has a GPU again");
    let (mut from, mut at) = (computed(board, pid), Instant::now());
    until("what it gets is shown as the board has it", late, || {
        if at.elapsed() < Duration::from_secs(2) {
            return None;
        }
        let got = named(&snapshot(dir)?, "eval.ipynb")?.gpus[0]
            .time_got?
            .value;
        let now = computed(board, pid);
        let truth = 100.0 * (now - from) as f64 / at.elapsed().as_nanos() as f64;
        (from, at) = (now, Instant::now());
        // More than its half, and as much as the board says.
        ((got - truth).abs() < 15.0 && got > 55.0).then_some(())
    });
    let said = said.lock().expect("not poisoned").join("\n");
    let order = [
        "asked for half",
        "waits for a whole GPU",
        "processes live on",
        "became free",
        "burst again",
    ];
    let places: Vec<Option<usize>> = order.iter().map(|w| said.find(w)).collect();
    assert!(
        places.iter().all(Option::is_some) && places.is_sorted(),
        "{said}"
    );
}

/// A demo that is ended in order also where a test fails: its jobs run as an account that is removed then.
struct Played(Child);

impl Drop for Played {
    fn drop(&mut self) {
        let pid = Pid::from_raw(self.0.id().cast_signed());
        if matches!(self.0.try_wait(), Ok(None)) {
            let _ = kill(pid, Signal::SIGINT);
            let _ = self.0.wait();
        }
    }
}

/// Without root there are no device filters: the other GPUs are hidden from the notebooks by gshare's library alone.
#[test]
fn without_root_the_later_scenes_play_as_well() {
    if !root("without_root_the_later_scenes_play_as_well (the other scenes' test plays them then)")
    {
        return;
    }
    let users = Users::some(1);
    let _stage = alone();
    let tmp = tempfile::tempdir().expect("a directory");
    let mode = PermissionsExt::from_mode(0o755);
    std::fs::set_permissions(tmp.path(), mode).expect("set");
    let program = tmp.path().join("gshare");
    support::copy_program(GSHARE, &program);
    std::os::unix::fs::chown(tmp.path(), Some(users.uid(0)), None).expect("given");
    let mut demo = as_user(Command::new(&program), users.uid(0));
    demo.args(["demo", "--headless", "--for", "15m"])
        .current_dir(tmp.path())
        .env("TMPDIR", tmp.path())
        .env("HOME", tmp.path())
        .env_remove("XDG_RUNTIME_DIR")
        .stdout(Stdio::null())
        .stderr(Stdio::piped());
    let mut demo = Played(demo.spawn().expect("starts"));
    let dir = until(
        "the demo's service answers",
        Duration::from_secs(20),
        || directory(tmp.path()),
    );
    let board = Board::open(&dir.join("sim/board")).expect("the board opens");
    let service = until("it serves", Duration::from_secs(20), || {
        snapshot(&dir)?.service
    });
    assert_eq!((service.device_filter, service.cgroups), (false, false));
    two_notebooks_burst_and_one_moves_for_a_whole_gpu(&mut demo.0, &dir, &board);
    let pid = Pid::from_raw(demo.0.id().cast_signed());
    kill(pid, Signal::SIGINT).expect("stopped");
    assert_eq!(demo.0.wait().expect("ends").code(), Some(130));
}

#[test]
fn ctrl_c_ends_the_demo_in_order() {
    let _stage = alone();
    let tmp = tempfile::tempdir().expect("a directory");
    let mode = PermissionsExt::from_mode(0o755);
    std::fs::set_permissions(tmp.path(), mode).expect("set");
    let mut demo = Command::new(GSHARE)
        .args(["demo", "--headless", "--for", "15m"])
        .env("TMPDIR", tmp.path())
        .stdout(Stdio::null())
        .spawn()
        .expect("starts");
    let dir = until("claims run", Duration::from_secs(20), || {
        let dir = directory(tmp.path())?;
        (snapshot(&dir)?.claims.len() >= 4).then_some(dir)
    });
    let pids: Vec<u32> = snapshot(&dir)
        .expect("served")
        .claims
        .into_iter()
        .flat_map(|c| c.members)
        .collect();
    assert!(!pids.is_empty());
    let pid = Pid::from_raw(demo.id().cast_signed());
    kill(pid, Signal::SIGINT).expect("sent");
    let status = until("the demo ends", Duration::from_secs(10), || {
        demo.try_wait().ok().flatten()
    });
    assert_eq!(status.code(), Some(130));
    assert!(!dir.exists(), "its directory is gone");
    let alive = |pid: &u32| Path::new(&format!("/proc/{pid}/exe")).read_link().is_ok();
    until("its jobs are gone", Duration::from_secs(10), || {
        (!pids.iter().any(alive)).then_some(())
    });
}

/// A demo whose terminal window is closed, or that is told to end, leaves nothing behind.
#[test]
fn a_shell_on_the_simulated_workstation_ends_with_its_terminal() {
    for (ends, code) in [
        (None, 7),
        (Some(Signal::SIGHUP), 129),
        (Some(Signal::SIGTERM), 143),
    ] {
        let tmp = tempfile::tempdir().expect("a directory");
        let mut command = Command::new(GSHARE);
        command
            .args(["demo", "--shell"])
            .env("TMPDIR", tmp.path())
            .env("SHELL", "/bin/sh");
        let mut terminal = Terminal::start(&command, 30, 120);
        terminal.shows(&["A shell on a SIMULATED workstation"], SOON);
        terminal.send("gshare claim -g 0.25 --short; gshare admin mode 1 mps\n");
        terminal.shows(&["c1", "GPU 1 is now in mode mps"], SOON);
        let dir = directory(tmp.path()).expect("its directory");
        match ends {
            None => terminal.send("exit 7\n"),
            Some(signal) => {
                let pid = i32::try_from(terminal.pid()).expect("a pid");
                kill(Pid::from_raw(pid), signal).expect("sent");
            }
        }
        assert_eq!(terminal.ended(SOON), code);
        let left: Vec<_> = std::fs::read_dir(tmp.path()).expect("read").collect();
        assert!(left.is_empty(), "{left:?}");
        let name = dir.to_str().expect("text");
        // A question to the daemon of MPS may just be ending.
        until(&format!("{ends:?}: nothing of it runs"), SOON, || {
            running(name).is_empty().then_some(())
        });
    }
}

#[test]
fn a_kernel_that_was_installed_on_the_simulated_workstation_starts_later() {
    let tmp = tempfile::tempdir().expect("a directory");
    let kernels = tmp.path().join("share/jupyter/kernels");
    let own = kernels.join("own");
    std::fs::create_dir_all(&own).expect("made");
    let text = r#"{"argv": ["sh", "-c", "echo started", "{connection_file}"], "display_name": "Own", "language": "sh"}"#;
    std::fs::write(own.join("kernel.json"), text).expect("written");
    let install = tmp.path().join("install");
    let script = "#!/bin/sh\nexec gshare kernel install own --user\n";
    std::fs::write(&install, script).expect("written");
    std::fs::set_permissions(&install, Permissions::from_mode(0o755)).expect("set");
    let mut demo = Command::new(GSHARE);
    demo.args(["demo", "--shell"]).env("SHELL", &install);
    demo.env("JUPYTER_DATA_DIR", tmp.path().join("share/jupyter"));
    let output = demo.output().expect("runs");
    assert!(output.status.success(), "{output:?}");
    let made = std::fs::read(kernels.join("own-gshare-0.25/kernel.json")).expect("installed");
    let made: serde_json::Value = serde_json::from_slice(&made).expect("JSON");
    let argv = made["argv"].as_array().expect("a command").iter();
    let argv: Vec<&str> = argv.map(|w| w.as_str().expect("text")).collect();
    let mut kernel = Command::new(argv[0]);
    kernel.args(["--socket", "/nonexistent"]).args(&argv[1..]);
    let output = kernel.output().expect("the program is still there");
    assert_eq!(String::from_utf8_lossy(&output.stdout), "started\n");
}

/// The commands that the README has to be typed in that shell, in its order.
#[test]
fn the_tour_of_the_readme_runs_in_its_order() {
    let page = include_str!("../README.md");
    let (_, tour) = page.split_once("Type these in that shell").expect("a tour");
    let (_, tour) = tour.split_once("\n\n").expect("its commands");
    let tour: Vec<&str> = tour.lines().map_while(|l| l.strip_prefix("    ")).collect();
    assert!(tour.len() > 5, "{tour:?}");
    let tmp = tempfile::tempdir().expect("a directory");
    let script = tmp.path().join("tour");
    // At a keyboard, a program in the background has time to start.
    let typed = tour.iter().map(|line| match line.contains(" & ") {
        true => format!("{line}\nsleep 2\n"),
        false => format!("{line}\n"),
    });
    let text = format!(
        "#!/bin/sh\nset -eu\n{}echo whole\n",
        typed.collect::<String>()
    );
    std::fs::write(&script, text).expect("written");
    std::fs::set_permissions(&script, Permissions::from_mode(0o755)).expect("set");
    let mut demo = Command::new(GSHARE);
    demo.args(["demo", "--shell"]).env("SHELL", &script);
    let output = demo.output().expect("runs");
    let (out, err) = (&output.stdout, String::from_utf8_lossy(&output.stderr));
    let out = String::from_utf8_lossy(out);
    assert!(
        output.status.success() && out.ends_with("whole\n"),
        "{out}{err}"
    );
    // A program with half of a GPU takes its memory and computes; one that wants more than its claim has is refused.
    for part in [
        "gshare-toy: took 4096 MiB; the GPU shows ",
        "gshare-toy: launched ",
        "\n1\n",
    ] {
        assert!(out.contains(part), "{part}: {out}{err}");
    }
    assert!(
        err.contains("gshare-toy: ") && err.contains("OUT_OF_MEMORY"),
        "{err}"
    );
    // The memory of the one that holds it is shown, and goes to the host.
    assert!(
        out.contains("offloaded, 2.4 GiB to host memory"),
        "{out}{err}"
    );
}

/// The command lines that name something.
fn running(name: &str) -> Vec<String> {
    let processes = std::fs::read_dir("/proc").expect("read").flatten();
    let lines = processes.filter_map(|p| std::fs::read(p.path().join("cmdline")).ok());
    let lines = lines.map(|l| String::from_utf8_lossy(&l).replace('\0', " "));
    lines.filter(|l| l.contains(name)).collect()
}
