//! Stage 1 beside the programs of eight users, a container and a notebook: what gshare leaves in them, what it costs, and
//! whether its hours are the board's.

use crate::support;

use std::collections::BTreeSet;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use gshare::demo::Job;
use gshare::station::Station;
use gshare_proto::{Call, Reply, ReportSpec, ReportView};
use gshare_sim_board::Board;
use support::notebook::{ADD, ADDED, BARE};
use support::users::{Users, as_user, reachable};
use support::{GSHARE, Raw, python, root, station_with, until};

use crate::containers::{Image, name, podman, run};

const SOON: Duration = Duration::from_secs(20);
const WINDOW: Duration = Duration::from_secs(60);
const GPUS: usize = 4;

/// Ends with the test.
struct Runs(Vec<Child>);

impl Drop for Runs {
    fn drop(&mut self) {
        for child in &mut self.0 {
            let _ = child.kill();
            let _ = child.wait();
        }
    }
}

/// Processor time of a process so far.
fn processor_s(pid: u32) -> f64 {
    let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).expect("it lives");
    let fields: Vec<&str> = stat
        .rsplit_once(')')
        .expect("a name")
        .1
        .split(' ')
        .collect();
    let ticks = |n: usize| fields[n].parse::<f64>().expect("a number");
    (ticks(12) + ticks(13)) / 100.0
}

fn report(station: &Station) -> ReportView {
    let now = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH);
    let spec = ReportSpec {
        from_ms: (now.expect("after 1970").as_secs() - 1800) * 1000,
        ..ReportSpec::default()
    };
    match station.client().expect("served").call(&Call::Report(spec)) {
        Ok(Reply::Report(report)) => *report,
        other => panic!("{other:?}"),
    }
}

#[test]
fn in_stage_1_gpu_hours_by_user_are_the_boards_and_the_service_needs_little() {
    if !root("in_stage_1_gpu_hours_by_user_are_the_boards_and_the_service_needs_little") {
        return;
    }
    let users = Users::some(8);
    let station = station_with(|o| o.costs = "train_step 4ms\n".to_owned());
    let set = station.command().args(["admin", "stage", "1"]).output();
    assert!(set.expect("gshare runs").status.success());
    let program = station.dir().join("bin/jobs");
    std::fs::create_dir_all(program.parent().expect("a parent")).expect("made");
    support::copy_program(GSHARE, &program);
    let start = |n: usize| {
        let job = Job::Steady {
            kernel: "train_step".to_owned(),
            grid: 66,
            block: 256,
            mib: 256 << (n % 3),
            pause_ms: 4 + 2 * n as u64,
        };
        let mut command = station.client_environment(Command::new(&program));
        command
            .args(job.arguments())
            .env("LD_LIBRARY_PATH", station.sim_dir().join("lib"));
        command
            .env("CUDA_VISIBLE_DEVICES", (n % GPUS).to_string())
            .stdout(Stdio::null());
        as_user(command, users.uid(n)).spawn().expect("starts")
    };
    let runs = Runs((0..8).map(start).collect());
    until("all are counted", SOON, || {
        let claims = station.snapshot().ok()?.claims;
        (claims.iter().filter(|c| c.adopted).count() == 8).then_some(())
    });
    let board = Board::open(&station.sim_dir().join("board")).expect("the board opens");
    // Seconds with a kernel of each program, and of each GPU.
    let truth = || {
        let gpus = board.snapshot().gpus;
        let of = |child: &Child| -> f64 {
            let processes = gpus.iter().flat_map(|g| &g.processes);
            let own = processes.filter(|p| p.pid == child.id());
            own.map(|p| p.busy_ns as f64 / 1e9).sum()
        };
        let programs: Vec<f64> = runs.0.iter().map(of).collect();
        let gpus: Vec<f64> = gpus.iter().map(|g| g.busy_ns as f64 / 1e9).collect();
        (programs, gpus)
    };
    let told = || {
        let report = report(&station);
        let user = |n| report.users.iter().find(|u| u.uid == users.uid(n));
        let busy = |n| user(n).and_then(|u| u.usage.busy_gpu_s).unwrap_or(0.0);
        let gpu = |n: u32| report.gpus.iter().find(|g| g.gpu == Some(n));
        let gpu = |n| gpu(n).and_then(|g| g.usage.busy_gpu_s).unwrap_or(0.0);
        let gpus: Vec<f64> = (0..GPUS as u32).map(gpu).collect();
        ((0..8).map(busy).collect::<Vec<f64>>(), gpus)
    };
    let service = station.service_pid().expect("it runs");
    let (at, used) = (Instant::now(), processor_s(service));
    let (before, told_before) = (truth(), told());
    std::thread::sleep(WINDOW);
    let part = (processor_s(service) - used) / at.elapsed().as_secs_f64();
    let (after, told_after) = (truth(), told());
    let span = at.elapsed().as_secs_f64();
    println!("the service: {:.2} % of a core", part * 100.0);
    for n in 0..8 {
        let truth = after.0[n] - before.0[n];
        let told = told_after.0[n] - told_before.0[n];
        println!("user {n}: {told:.2} s, by the board {truth:.2} s");
        assert!(
            (told - truth).abs() <= 0.03 * truth,
            "user {n}: {told} for {truth}"
        );
    }
    for n in 0..GPUS {
        let idle = |busy: f64| 100.0 * (1.0 - busy / span);
        let truth = idle(after.1[n] - before.1[n]);
        let told = idle(told_after.1[n] - told_before.1[n]);
        println!("GPU {n}: idle {told:.1} %, by the board {truth:.1} %");
        assert!((told - truth).abs() <= 5.0, "GPU {n}: {told} for {truth}");
    }
    // The bound is for the program as it is installed; this one may not be optimised.
    let most = if cfg!(debug_assertions) { 0.015 } else { 0.005 };
    assert!(part <= most, "{part}");
}

/// A line without numbers and addresses.
fn plain(line: &str) -> String {
    let mut out = String::new();
    for word in line.split_inclusive(|c: char| !c.is_ascii_alphanumeric()) {
        let is_number = word.starts_with(|c: char| c.is_ascii_digit());
        out.push_str(if is_number { "# " } else { word });
    }
    out
}

/// What a living process has: environment, cgroups, mounts, libraries, descriptors, signals, capabilities, limits, namespaces.
fn has(pid: u32) -> BTreeSet<String> {
    let dir = format!("/proc/{pid}");
    let read = |file: &str| {
        let bytes =
            std::fs::read(format!("{dir}/{file}")).unwrap_or_else(|e| panic!("{file}: {e}"));
        String::from_utf8_lossy(&bytes).replace('\0', "\n")
    };
    let mut all = BTreeSet::new();
    for file in ["environ", "cgroup", "mountinfo", "limits", "oom_score_adj"] {
        all.extend(
            read(file)
                .lines()
                .map(|line| format!("{file}: {}", plain(line))),
        );
    }
    let maps = read("maps");
    let paths = maps
        .lines()
        .filter_map(|line| line.find('/').map(|at| &line[at..]));
    all.extend(paths.map(|path| format!("maps: {path}")));
    let signs = [
        "Sig", "Shd", "Cap", "NoNew", "Seccomp", "Uid", "Gid", "Groups",
    ];
    let status = read("status");
    let signs = status
        .lines()
        .filter(|l| signs.iter().any(|s| l.starts_with(s)));
    all.extend(signs.map(|line| format!("status: {line}")));
    for links in ["fd", "ns"] {
        for link in std::fs::read_dir(format!("{dir}/{links}"))
            .expect("listed")
            .flatten()
        {
            let to = std::fs::read_link(link.path()).unwrap_or_default();
            all.insert(format!("{links}: {}", plain(&to.display().to_string())));
        }
    }
    all
}

/// The newest child of a process with this word in its command line.
fn child(of: u32, word: &str) -> u32 {
    until(&format!("{word} runs"), SOON, || {
        let list = std::fs::read_to_string(format!("/proc/{of}/task/{of}/children")).ok()?;
        let mut pids = list
            .split_whitespace()
            .filter_map(|pid| pid.parse::<u32>().ok());
        pids.find(|pid| {
            let words = std::fs::read(format!("/proc/{pid}/cmdline")).unwrap_or_default();
            String::from_utf8_lossy(&words).contains(word)
        })
    })
}

/// What the programs of eight users had and called, each by itself.
fn users_programs(station: &Station, users: &Users, is_served: bool) -> Vec<BTreeSet<String>> {
    let client = reachable(station);
    let logs = tempfile::tempdir().expect("a directory");
    // A file for each thread: in one, calls would interrupt each other.
    let log = |n: usize| logs.path().join(n.to_string());
    (0..8).for_each(|n| std::fs::create_dir(log(n)).expect("made"));
    let start = |n: usize| {
        let mut command = Command::new("strace");
        command
            .args(["-ff", "-qq", "-s", "300", "-u", users.name(n), "-o"])
            .arg(log(n).join("calls"));
        command
            .args(["-e", "trace=%file,%network,%signal,%process", "--"])
            .arg(&client);
        command.env_clear().current_dir("/");
        command.env("LD_LIBRARY_PATH", station.sim_dir().join("lib"));
        Raw::start(command)
    };
    let mut raws: Vec<Raw> = (0..8).map(start).collect();
    for raw in &mut raws {
        assert_eq!(raw.ask("alloc 1048576"), "ok 0");
    }
    if is_served {
        until("all are counted", SOON, || {
            let claims = station.snapshot().ok()?.claims;
            (claims.iter().filter(|c| c.adopted).count() == 8).then_some(())
        });
    }
    for raw in &mut raws {
        assert_eq!(raw.ask("launch 3"), "ok 3");
    }
    let mut found: Vec<BTreeSet<String>> = raws
        .iter()
        .map(|raw| has(child(raw.pid(), "raw_client")))
        .collect();
    for (n, raw) in raws.into_iter().enumerate() {
        assert_eq!(raw.finish(), Some(0));
        for file in std::fs::read_dir(log(n)).expect("listed").flatten() {
            let calls = std::fs::read_to_string(file.path()).expect("written");
            found[n].extend(calls.lines().map(|line| format!("call: {}", plain(line))));
        }
    }
    found
}

/// What a kernel without a kernelspec has after a cell that used the GPU.
fn kernel(station: &Station, bin: &std::path::Path, home: &std::path::Path) -> BTreeSet<String> {
    let mut command = Command::new(bin.join("python"));
    command.args(["-c", BARE, ADD]).current_dir(home);
    command
        .env_clear()
        .env("HOME", home)
        .env("LD_LIBRARY_PATH", station.sim_dir().join("lib"));
    let mut raw = Raw::spawn(&mut command);
    assert_eq!([raw.line(), raw.line()], [ADDED, "ok"]);
    std::thread::sleep(Duration::from_secs(2));
    let found = has(child(raw.pid(), "ipykernel_launcher"));
    raw.tell("");
    raw.finish();
    found
}

/// What a container has that was made before.
fn contained(name: &str) -> BTreeSet<String> {
    let mut start = Command::new("podman");
    start.args(["start", "--attach", "--interactive", name]);
    let mut raw = Raw::start(start);
    assert_eq!(raw.ask("alloc 1048576"), "ok 0");
    std::thread::sleep(Duration::from_secs(2));
    let pid = podman(&["inspect", "--format", "{{.State.Pid}}", name]).stdout;
    let pid = String::from_utf8_lossy(&pid).trim().parse().expect("a pid");
    let found = has(pid);
    assert_eq!(raw.finish(), Some(0));
    found
}

#[test]
fn in_stage_1_programs_have_and_call_what_they_do_on_a_machine_without_gshare() {
    if !root("in_stage_1_programs_have_and_call_what_they_do_on_a_machine_without_gshare") {
        return;
    }
    let users = Users::some(8);
    let mut station = station_with(|_| ());
    let set = station.command().args(["admin", "stage", "1"]).output();
    assert!(set.expect("gshare runs").status.success());
    let (image, bin) = (
        Image::make("observed"),
        python::bin("a notebook in stage 1"),
    );
    let (container, home) = (name("observed"), tempfile::tempdir().expect("a directory"));
    let sim = station.sim_dir().display().to_string();
    if let Some(image) = &image {
        let node = std::fs::metadata(station.sim_dir().join("dev/nvidia0")).expect("a stand-in");
        let major = nix::sys::stat::major(std::os::unix::fs::MetadataExt::rdev(&node));
        let (mount, path) = (
            format!("{sim}:{sim}:dev"),
            format!("LD_LIBRARY_PATH={sim}/lib"),
        );
        let rule = format!("--device-cgroup-rule=c {major}:* rwm");
        let more = ["--pid=host", "-v", &mount, "-e", &path, &rule];
        let mut words = run(&container, image, &more);
        words.retain(|word| !["podman", "--rm"].contains(word));
        words[0] = "create";
        words.push("/raw_client");
        assert!(podman(&words).status.success(), "{words:?}");
    }
    let seen = |station: &mut Station, is_served: bool| {
        let mut all = users_programs(station, &users, is_served);
        all.extend(image.iter().map(|_| contained(&container)));
        all.extend(bin.iter().map(|bin| kernel(station, bin, home.path())));
        if is_served {
            station
                .stop_service(nix::sys::signal::Signal::SIGKILL)
                .expect("killed");
        }
        all
    };
    // Once for what a first run leaves: in the home of a notebook, and in the mount options of a container's overlay.
    image.iter().for_each(|_| drop(contained(&container)));
    bin.iter()
        .for_each(|bin| drop(kernel(&station, bin, home.path())));
    let (with, without) = (seen(&mut station, true), seen(&mut station, false));
    podman(&["rm", "-f", &container]);
    assert!(
        with.len() >= 8 && with.iter().all(|found| found.len() > 50),
        "{with:?}"
    );
    let programs = with.iter().zip(&without).enumerate();
    let differ = programs.flat_map(|(n, (with, without))| {
        let more = with.symmetric_difference(without);
        more.map(move |line| format!("program {n}: {line}"))
    });
    let differ: Vec<String> = differ.collect();
    assert!(differ.is_empty(), "{differ:#?}");
}
