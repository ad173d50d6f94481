//! A member that bypasses the library is detected by its use, within two looks at the driver, and treated according
//! to the policy; an honest one is not, whatever its modules need.

use crate::support;

use std::collections::BTreeMap;
use std::fs::Permissions;
use std::os::unix::fs::PermissionsExt;
use std::os::unix::process::ExitStatusExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use animals::{ANIMALS, Animal, Cheat};
use gshare::station::{Options, Station};
use gshare_proto::{ClaimView, Snapshot};
use gshare_sim_board::Fault;
use support::detach::fast;
use support::terminal::Terminal;
use support::users::{Users, as_user};
use support::{
    FULL, GIB, MIB, Random, Raw, SOON, accused_at, all_ended, board, claim, claim_of, copy_program,
    doctor_row, example, has_all, looks, next_look, ok, root, run, station_with, until,
};

fn station(policy: &str) -> Station {
    let config = format!("[claims]\nleftover-grace = \"1s\"\n[policy]\n{policy}");
    ticking("0.1s", "add_one 2ms\n", |o| o.config = config)
}

fn ticking(tick: &str, costs: &str, more: impl FnOnce(&mut Options)) -> Station {
    station_with(|o| {
        (o.tick, o.costs) = (tick.to_owned(), costs.to_owned());
        more(o);
    })
}

/// `gshare claim FLAGS -- env LD_LIBRARY_PATH=the driver's own directory PROGRAM`: a member without the library.
fn around(station: &Station, flags: &[&str]) -> Command {
    past(station, &[&["claim", "-q"], flags].concat())
}

fn past(station: &Station, how: &[&str]) -> Command {
    let (mut command, driver) = (station.command(), station.sim_dir().join("lib"));
    command.args(how).args(["--", "env"]);
    command.arg(format!("LD_LIBRARY_PATH={}", driver.display()));
    command.arg(example("raw_client"));
    command
}

fn accused(station: &Station, pid: u32) -> Option<ClaimView> {
    let snapshot = station.snapshot().ok()?;
    let claim = claim_of(&snapshot, pid)?;
    claim.overuse.is_some().then(|| claim.clone())
}

fn cured(station: &Station, pid: u32) {
    until("it is cured", SOON, || {
        let snapshot = station.snapshot().ok()?;
        claim_of(&snapshot, pid)?.overuse.is_none().then_some(())
    });
}

/// For this many looks there is no over-use of its claim.
fn is_trusted(station: &Station, pid: u32, for_looks: u64) {
    let last = looks(station) + for_looks;
    while looks(station) < last {
        next_look(station);
        assert_eq!(claim(station, pid).overuse, None);
    }
}

#[test]
fn memory_that_nobody_counts_freezes_the_claim_and_warns_its_owner() {
    let station = station("");
    let mut bypass = Raw::start(around(&station, &["-g", "0.5", "--gpu-ids", "0"]));
    let id = claim(&station, bypass.pid()).id;
    let mut honest = Raw::join(&station, &id);
    assert_eq!(honest.ask(&format!("alloc {}", 256 * MIB)), "ok 0");

    // A context and half a gibibyte could be modules: no over-use.
    assert_eq!(bypass.ask(&format!("alloc {}", 512 * MIB)), "ok 0");
    is_trusted(&station, bypass.pid(), 20);
    let before = Instant::now();
    assert_eq!(bypass.ask(&format!("alloc {}", 3072 * MIB)), "ok 1");
    let claim = until("it is accused", SOON, || accused(&station, bypass.pid()));
    println!("accused after {:?}, looks every 100 ms", before.elapsed());
    let why = claim.overuse.expect("accused");
    has_all(&why, &["than gshare's count"]);
    assert!(
        why.contains(&format!("pid {}", bypass.pid())),
        "it names the one who does it: {why}"
    );
    assert!(
        claim.state_text.starts_with("over-use: 3."),
        "{}",
        claim.state_text
    );
    let snapshot = station.snapshot().expect("served");
    assert!(
        snapshot
            .notices
            .iter()
            .any(|n| n.claim.as_deref() == Some(&id) && n.text.contains("no more memory"))
    );
    // The claim cannot grow, though its ledger is far below its cap; and its extra memory cannot be claimed.
    until("growth is refused", SOON, || {
        honest.ask(&format!("alloc {}", 64 * MIB)) == FULL
    });
    // The claim's own size has room for it: no other claim loses anything.
    let allocatable = snapshot.gpus[0].mem_allocatable.expect("known");
    assert!(claim.gpus[0].mem_request <= allocatable);

    // It gives the memory back: growth is allowed again.
    assert_eq!(bypass.ask("free 1"), "ok");
    cured(&station, bypass.pid());
    assert_eq!(honest.ask(&format!("alloc {}", 64 * MIB)), "ok 1");
    assert_eq!(bypass.finish(), Some(0), "a warning ends nobody");
}

/// The loader ignores the library path for such a program (`AT_SECURE`): it uses the driver without the library, and
/// is treated like any other that bypasses it. If it knows the driver by its name only, it finds none.
#[test]
fn a_program_with_the_set_user_id_bit_has_no_library_and_is_seen_by_what_it_uses() {
    root!("a_program_with_the_set_user_id_bit_has_no_library_and_is_seen_by_what_it_uses");
    let (users, station) = (Users::some(1), station(""));
    let program = station.dir().join("bin/set-root");
    copy_program(example("raw_client"), &program);
    std::fs::set_permissions(&program, Permissions::from_mode(0o4755)).expect("set");
    let driver = driver(&station);
    let start = |driver: &[&Path]| {
        let mut command = station.command();
        command.args(["claim", "-q", "-g", "0.5", "--gpu-ids", "0", "--"]);
        command.arg(&program).args(driver);
        as_user(command, users.uid(0))
    };
    let mut by_name = start(&[]);
    let output = by_name.stdin(Stdio::null()).output().expect("runs");
    let said = String::from_utf8_lossy(&output.stdout);
    assert!(
        said.starts_with("error -1 cannot load libcuda"),
        "{output:?}"
    );
    let mut around = Raw::start(start(&[&driver]));
    let view = claim(&station, around.pid());
    assert_eq!(view.uid, users.uid(0));
    assert!(view.members.contains(&around.pid()), "{view:?}");
    assert_eq!(around.ask(&format!("alloc {}", 3072 * MIB)), "ok 0");
    let claim = until("it is accused", SOON, || accused(&station, around.pid()));
    let why = claim.overuse.expect("accused");
    println!("{}: {why}", claim.state_text);
    has_all(&why, &["than gshare's count"]);
    has_all(&why, &[&format!("pid {}", around.pid())]);
    assert_eq!(around.finish(), Some(0));
}

/// vLLM pull request 51590: a process 1.37 GiB above its own accounting. Here a module has a large variable.
#[test]
fn what_the_driver_needs_for_an_honest_member_is_charged_to_its_claim() {
    let station = station("overuse = \"stop\"\noveruse-grace = \"1s\"\n");
    let mut member = Raw::claim(&station, &["-q", "-g", "0.25", "--gpu-ids", "0"]);
    assert_eq!(member.ask(&format!("alloc {}", 512 * MIB)), "ok 0");
    assert_eq!(member.ask(&format!("module {}", 640 * MIB)), "ok");
    let part = |member: &Raw| {
        let snapshot = station.snapshot().ok()?;
        let claim = claim_of(&snapshot, member.pid())?;
        assert_eq!(claim.overuse, None);
        Some(claim.gpus[0].clone())
    };
    let part = until("it is charged", SOON, || {
        part(&member).filter(|p| p.mem_driver == Some(640 * MIB))
    });
    let ps = run(&station, &["ps"]);
    let ps = String::from_utf8_lossy(&ps.stdout).into_owned();
    has_all(&ps, &["the driver itself uses 640 MiB"]);
    // It has the rest of its limit, and no more.
    let left = part.mem_limit - part.mem_charge.expect("known") - 640 * MIB;
    let more = format!("alloc {}", left + 2 * MIB);
    assert_eq!(member.ask(&more), FULL);
    assert_eq!(
        member.ask(&format!("alloc {}", left / (2 * MIB) * 2 * MIB)),
        "ok 1"
    );
    assert_eq!(member.ask("count"), "ok 1");
}

/// In ticks, whatever the clock says: the first look that can see it is partial, the second counts.
#[test]
fn what_goes_around_the_proxy_counts_at_the_second_look() {
    let station = ticking("1s", "add_one 2ms\n", |_| ());
    let mut memory = Raw::start(around(&station, &["-g", "0.25", "--gpu-ids", "0"]));
    let mut time = Raw::start(around(&station, &["-g", "0.25", "--gpu-ids", "1"]));
    let before = next_look(&station);
    let bytes = format!("alloc {}", 3072 * MIB);
    assert_eq!(memory.ask(&bytes), "ok 0");
    time.tell("launch 5000");
    // On a busy machine that may have taken longer than to the next look.
    let second = before + 2..=looks(&station) + 2;
    let (claim, at) = accused_at(&station, memory.pid());
    assert!(second.contains(&at), "{at} {second:?} {:?}", claim.overuse);
    let (claim, at) = accused_at(&station, time.pid());
    assert!(second.contains(&at), "{at} {second:?} {:?}", claim.overuse);
    assert!(
        claim.state_text.contains("% of time"),
        "{}",
        claim.state_text
    );
}

#[test]
fn what_a_claim_takes_beyond_its_own_is_not_given_to_others() {
    let station = station("");
    let free = |station: &Station| {
        station.snapshot().expect("served").gpus[0]
            .mem_allocatable
            .expect("known")
    };
    let before = free(&station);
    let mut bypass = Raw::start(around(&station, &["-g", "0.1", "--gpu-ids", "0"]));
    assert_eq!(bypass.ask(&format!("alloc {}", 8192 * MIB)), "ok 0");
    let claim = until("it is accused", SOON, || accused(&station, bypass.pid()));
    let used = until("its use is known", SOON, || claim.gpus[0].mem_used);
    until("the rest shrinks by what it has too much", SOON, || {
        free(&station) == before - (used - claim.gpus[0].mem_request)
    });
}

#[test]
fn by_policy_the_offender_is_ended_after_the_grace_time_and_his_siblings_live() {
    let station = station("overuse = \"stop\"\noveruse-grace = \"1s\"\n");
    let mut honest = Raw::claim(&station, &["-q", "-g", "0.5", "--gpu-ids", "1"]);
    let id = claim(&station, honest.pid()).id;
    let mut bypass = Raw::start(past(&station, &["join", "-q", &id]));
    let started = Instant::now();
    assert_eq!(bypass.ask(&format!("alloc {}", 4096 * MIB)), "ok 0");
    let status = until("it is ended", SOON, || {
        bypass.child.try_wait().ok().flatten()
    });
    assert_eq!(status.signal(), Some(libc::SIGTERM));
    assert!(
        started.elapsed() >= Duration::from_secs(1),
        "not before the grace time"
    );
    cured(&station, honest.pid());
    assert_eq!(honest.ask(&format!("alloc {}", 64 * MIB)), "ok 0");
    let notices = station.snapshot().expect("served").notices;
    assert!(
        notices.iter().any(|n| n.text.contains("asked to end")),
        "{notices:?}"
    );
}

#[test]
fn in_stage_2_no_policy_ends_a_process_and_the_command_says_so() {
    let station =
        station("overuse = \"stop\"\noveruse-grace = \"0s\"\n[reclaim]\nenabled = false\n");
    let stage = |number: &str| {
        let output = station.command().args(["admin", "stage", number]).output();
        String::from_utf8(output.expect("runs").stdout).expect("text")
    };
    let said = stage("3");
    has_all(
        &said,
        &["`enabled = false` in [reclaim] overrides the stage"],
    );
    assert!(!said.contains("overuse"), "{said}");
    let said = stage("2");
    has_all(&said, &["the stage overrides `overuse = \"stop\"`"]);
    assert!(!said.contains("[reclaim]"), "{said}");
    let mut bypass = Raw::start(around(&station, &["-g", "0.5", "--gpu-ids", "0"]));
    assert_eq!(bypass.ask(&format!("alloc {}", 4096 * MIB)), "ok 0");
    let claim = until("it is accused", SOON, || accused(&station, bypass.pid()));
    let why = claim.overuse.expect("accused");
    assert!(!why.contains("ended in"), "{why}");
    std::thread::sleep(Duration::from_secs(1));
    assert_eq!(bypass.ask("ping"), "ok pong");
    let notices = station.snapshot().expect("served").notices;
    assert!(
        notices.iter().all(|n| !n.text.contains("ended in")),
        "{notices:?}"
    );
    assert_eq!(bypass.finish(), Some(0));
}

/// Members that launch through the library are compared too, with the time that it counted.
#[test]
fn gpu_time_beyond_what_a_member_counted_is_seen_at_the_second_look() {
    let station = ticking("1s", "add_one 2ms\n", |_| ());
    let driver = driver(&station);
    let start = |gpu: &str| {
        let mut command = station.command();
        command.args(["claim", "-q", "-g", "0.25", "--gpu-ids", gpu, "--"]);
        command
            .arg(example("raw_client"))
            .arg("libcuda.so.1")
            .arg(&driver);
        Raw::start(command)
    };
    // One alone and two side by side that launch normally, and one that does so only sometimes.
    let mut honest = [start("1"), start("2"), start("2")];
    let mut sly = start("0");
    assert_eq!(sly.ask("launch 100"), "ok 100");
    honest.iter_mut().for_each(|raw| raw.tell("launch 4000"));
    let before = next_look(&station);
    sly.tell("around 2000");
    let second = before + 2..=looks(&station) + 2;
    let (claim, at) = accused_at(&station, sly.pid());
    assert!(second.contains(&at), "{at} {second:?} {:?}", claim.overuse);
    let why = claim.overuse.expect("accused");
    has_all(&why, &["time than gshare's count"]);
    assert_eq!(sly.line(), "ok 2000");
    // It counts again: over-use ends.
    cured(&station, sly.pid());
    for raw in &mut honest {
        let honest = support::claim(&station, raw.pid());
        assert_eq!(honest.overuse, None, "alone or beside others");
        let busy = honest.gpus[0].time_busy.as_ref().map(|f| f.value);
        assert!(
            busy.is_some_and(|b| b > 20.0),
            "{busy:?}: it proves nothing"
        );
        raw.kill();
    }
}

/// Like Ollama: it loads the driver's own library by its path, and none of gshare's.
#[test]
fn programs_that_load_the_drivers_own_library_are_named() {
    let station = station("");
    let row = doctor_row(station.command(), "memory limit (");
    assert_ne!(row["state"], "limited", "{row}");
    // The driver itself has no limits before release 615.
    assert_eq!(
        doctor_row(station.command(), "memory limits")["state"],
        "missing"
    );
    let honest = Raw::claim(&station, &["-q", "-g", "0.5", "--gpu-ids", "0"]);
    let past = Raw::start(around(&station, &["-g", "0.5", "--gpu-ids", "0"]));
    let named = format!("pid {} uses GPU 0 without gshare's library", past.pid());
    until("ps names it", SOON, || {
        ok(&station, &["ps"]).contains(&named)
    });
    let row = doctor_row(station.command(), "memory limit (");
    let detail = row["detail"].as_str().expect("told");
    assert!(detail.contains(&past.pid().to_string()), "{row}");
    assert!(!detail.contains(&honest.pid().to_string()), "{row}");
    assert_eq!(row["state"], "limited", "{row}");
    let snapshot = station.snapshot().expect("served");
    let part = |raw: &Raw| claim_of(&snapshot, raw.pid()).expect("listed").gpus[0].clone();
    assert_eq!(part(&past).past_library, [past.pid()]);
    assert!(part(&honest).past_library.is_empty());
}

/// OptiX launches bypass everything that counts. Here a copy of the driver has its name.
#[test]
fn where_launches_cannot_be_counted_ps_says_that_it_cannot_tell() {
    let station = station("");
    let unseen = station.sim_dir().join("lib/libnvoptix.so.1");
    std::fs::copy(driver(&station), &unseen).expect("copied");
    let mut command = station.command();
    command.args(["claim", "-q", "-g", "0.5", "--gpu-ids", "0", "--"]);
    command
        .arg(example("raw_client"))
        .arg("libcuda.so.1")
        .arg(&unseen);
    let mut raw = Raw::start(command);
    assert_eq!(raw.ask("launch 10"), "ok 10");
    raw.tell("around 3000");
    let named = format!(
        "gshare cannot count all that pid {} ran on GPU 0",
        raw.pid()
    );
    until("ps says so", SOON, || {
        ok(&station, &["ps"]).contains(&named)
    });
    is_trusted(&station, raw.pid(), 20);
    let part = &claim(&station, raw.pid()).gpus[0];
    assert_eq!(part.cannot_tell, [raw.pid()]);
    assert_eq!(raw.line(), "ok 3000");
}

/// Kernels that start kernels (dynamic parallelism). Here those outlive the events behind their parents.
#[test]
fn what_kernels_start_is_held_against_nobody() {
    let station = ticking("0.1s", "parent 1ms starts 9ms\n", |_| ());
    let start = |gpu: &str, variable: &str| {
        let mut raw = Raw::claim(&station, &["-q", "-g", "0.5", "--gpu-ids", gpu]);
        raw.tell(&format!("parents 2000 {variable}"));
        raw
    };
    // The mark of libcudadevrt in every program linked with it; and a program that hides it.
    let mut honest = start("0", "__CNPRT_VERSION_NUMBER__");
    let mut hidden = start("1", "other");
    let named = format!(
        "gshare cannot count all that pid {} ran on GPU 0",
        honest.pid()
    );
    until("ps says so", SOON, || {
        ok(&station, &["ps"]).contains(&named)
    });
    let (claim, _) = accused_at(&station, hidden.pid());
    assert!(
        claim
            .overuse
            .is_some_and(|why| why.contains("time than gshare's count"))
    );
    is_trusted(&station, honest.pid(), 20);
    honest.kill();
    hidden.kill();
}

#[test]
fn a_gpu_that_a_member_has_open_from_before_counts_against_the_claim() {
    root!("a_gpu_that_a_member_has_open_from_before_counts_against_the_claim");
    let station = station("unclaimed = \"observe\"\n");
    // Without cgroups a shell joins a claim with all that it has started; here the kernel moves the process.
    let mut outside = Raw::outside(&station);
    assert_eq!(outside.ask(&format!("alloc {}", 64 * MIB)), "ok 0");
    let mut owner = Raw::claim(&station, &["-q", "-g", "0.25", "--gpu-ids", "2"]);
    let group = std::fs::read_to_string(format!("/proc/{}/cgroup", owner.pid())).expect("read");
    let path = gshare_enforcer::cgroup::v2_path(&group)
        .expect("v2")
        .to_owned();
    let mount = gshare_enforcer::cgroup::Mount::find().expect("mounted");
    let procs = mount.dir_of(&path).expect("shown").join("cgroup.procs");
    std::fs::write(procs, outside.pid().to_string()).expect("moved");
    let claim = until("the claim is accused", SOON, || {
        accused(&station, owner.pid())
    });
    let why = claim.overuse.expect("accused");
    has_all(&why, &["uses GPU 0, which is not in the claim"]);
    assert_eq!(owner.ask("count"), "ok 1");
}

#[test]
fn the_warning_comes_to_the_terminal_of_the_claim() {
    root!("the_warning_comes_to_the_terminal_of_the_claim");
    let station = station("");
    let command = around(&station, &["-g", "0.25", "--gpu-ids", "0"]);
    let mut terminal = Terminal::start(&command, 24, 200);
    terminal.shows(&["ok ready"], SOON);
    terminal.send(&format!("alloc {}\n", 4096 * MIB));
    terminal.shows(&["than gshare's count"], SOON);
    terminal.shows(&["it gets no more memory there"], SOON);
}

#[test]
fn a_driver_with_memory_limits_of_its_own_refuses_whatever_way_was_taken() {
    root!("a_driver_with_memory_limits_of_its_own_refuses_whatever_way_was_taken");
    let station = station_with(|o| {
        o.tick = "0.1s".to_owned();
        o.driver = Some("615.71.09".to_owned());
        o.config = "[claims]\nleftover-grace = \"1s\"\n".to_owned();
    });
    if !station
        .snapshot()
        .expect("served")
        .service
        .is_some_and(|s| s.cgroups)
    {
        println!("skipped: no cgroups here");
        return;
    }
    let row = doctor_row(station.command(), "memory limits");
    assert_eq!(
        (row["state"].as_str(), row["status"].as_str()),
        (Some("ok"), Some("simulation only"))
    );
    let mut bypass = Raw::start(around(&station, &["-g", "0.25", "--gpu-ids", "0"]));
    let snapshot = station.snapshot().expect("served");
    let part = claim_of(&snapshot, bypass.pid()).expect("listed").gpus[0].clone();
    let (free, total) = bypass.info();
    assert_eq!(
        total, part.mem_limit,
        "it sees its limit as the whole, without the proxy"
    );
    assert_eq!(bypass.ask(&format!("alloc {}", free + 1)), FULL);
    assert_eq!(bypass.ask(&format!("alloc {free}")), "ok 0");
    assert_eq!(bypass.ask("alloc 1"), FULL);
    let limits = board(&station).memory_limits();
    assert_eq!(limits.len(), 1);
    assert_eq!(
        (limits[0].gpu, limits[0].soft, limits[0].hard),
        (0, part.mem_request, part.mem_limit)
    );
    // Without a claim nothing is limited.
    let mut outside = Raw::outside(&station);
    assert!(outside.info().1 > part.mem_limit);
    // Another size is another limit, at once.
    let id = claim_of(&snapshot, bypass.pid())
        .expect("listed")
        .id
        .clone();
    let resized = run(&station, &["resize", &id, "-g", "0.5"]);
    assert!(resized.status.success(), "{resized:?}");
    until("the limit has grown", SOON, || {
        bypass.info().1 > part.mem_limit
    });
    assert_eq!(bypass.finish(), Some(0));
    until("the limit goes with the claim", SOON, || {
        board(&station).memory_limits().is_empty()
    });
}

// The honest zoo as whole programs: four claims on a GPU, each filled up to its limit, on a driver with samples as
// unreliable as real ones. No claim is accused, offloaded unasked or lost; and one cheat among them is found.
//
// From sources: 1.37 GiB above a process's own accounting (vLLM pull request 51590: the modules here), a stack for
// every thread that can be resident (cms-sw pull request 51395: 16 KiB are 4.1 GiB on an H100), samples that name
// whoever was on the GPU (ctrl2080perf.h of open-gpu-kernel-modules), garbage among them (DCGM issue 83),
// `__managed__` and shared memory that a checkpoint refuses (README of cuda-checkpoint). Assumed: 64 KiB for each
// kernel in a graph, what communicators and workers take, what OptiX launches.
//
// `GSHARE_ZOO=1000` plays so many runs of each kind; `.ci/long zoo` does.

#[path = "../src/core/src/reconcile/tests/animals.rs"]
mod animals;

/// GPUs of a station, each with a run of its own.
const GPUS: usize = 4;

const CLAIMS: usize = 4;

/// Rounds in which programs fill their claims, and total; a look at the driver ends each.
const FILLING: usize = 7;

const ROUNDS: usize = 16;

/// Looks within which a cheat must be found: a second each by default.
const FOUND: u64 = 10;

/// Runs of each kind.
const RUNS: usize = 8;

/// Maximum number of stations at once: programs mostly wait for the next look.
const STATIONS: usize = 6;

struct Program {
    animal: Animal,
    raw: Raw,
    workers: Vec<Raw>,
    sum: String,
    /// Its blocks besides its first buffer.
    held: Vec<String>,
    full: bool,
}

fn driver(station: &Station) -> PathBuf {
    station.sim_dir().join("lib/libcuda.so.1")
}

/// A further process of a program's claim, with this library.
fn join(station: &Station, of: &Raw, library: &str) -> Raw {
    let snapshot = station.snapshot().expect("served");
    let id = &claim_of(&snapshot, of.pid()).expect("its claim").id;
    let mut command = station.command();
    command.args(["join", "-q", id, "--"]);
    command.arg(example("raw_client")).arg(library);
    Raw::start(command)
}

impl Program {
    /// Starts it; `around` is the library for its uncounted work.
    fn start(station: &Station, gpu: usize, animal: Animal, around: &Path) -> Self {
        let mut command = station.command();
        command.args(["claim", "-q", "-g", "0.2", "--gpu-ids"]);
        command.args([&gpu.to_string(), "--"]);
        command.arg(example("raw_client")).arg("libcuda.so.1");
        command.arg(around);
        let mut raw = Raw::start(command);
        assert_eq!(raw.ask(&format!("alloc {}", 256 * MIB)), "ok 0");
        let seed = 2 * raw.pid() + 1;
        assert_eq!(raw.ask(&format!("fill 0 {seed}")), "ok");
        let mut program = Self {
            animal,
            sum: raw.ask("sum 0"),
            raw,
            workers: Vec::new(),
            held: Vec::new(),
            full: false,
        };
        match animal {
            Animal::Stack => program.must("stack 16384"),
            Animal::EagerModules => {
                (0..4).for_each(|_| program.must(&format!("module {}", 350 * MIB)));
            }
            Animal::Communicators => {
                program.must("share 0");
                program.must(&format!("module {}", 300 * MIB));
            }
            Animal::Managed => program.must(&format!("managed {GIB}")),
            Animal::Workers => {
                let workers = (0..2).map(|_| join(station, &program.raw, "libcuda.so.1"));
                program.workers = workers.collect();
            }
            Animal::Graphs | Animal::OptiX | Animal::Churn => {}
        }
        program
    }

    fn must(&mut self, command: &str) {
        let said = self.raw.ask(command);
        assert!(
            said.starts_with("ok"),
            "{:?}: {command}: {said}",
            self.animal
        );
    }

    /// Whether it could allocate this much.
    fn takes(&mut self, bytes: u64) -> bool {
        let said = self.raw.ask(&format!("alloc {bytes}"));
        let index = said.strip_prefix("ok ");
        self.held.extend(index.map(str::to_owned));
        index.is_some()
    }

    /// Its work between two looks.
    fn step(&mut self, dice: &mut Random) {
        if !self.full {
            let (free, total) = self.raw.info();
            let keeps = if self.animal == Animal::Graphs {
                total / 10
            } else {
                0
            };
            let bytes = free.saturating_sub(keeps).min(4 * GIB) / (2 * MIB) * (2 * MIB);
            self.full = bytes < 4 * GIB;
            self.takes(bytes);
            if self.full && self.animal == Animal::Graphs {
                self.must("graphs 500 40");
            }
        }
        match (self.animal, self.held.pop()) {
            (Animal::Churn, Some(index)) => {
                self.must(&format!("free {index}"));
                self.takes((1 + dice.below(2000)) * 2 * MIB);
            }
            (_, index) => self.held.extend(index),
        }
        let work = if self.animal == Animal::OptiX {
            "around"
        } else {
            "launch"
        };
        self.must(&format!("{work} {}", 1 + dice.below(20)));
    }

    /// Whether its checkpoint would be refused.
    fn stays(&self) -> bool {
        matches!(self.animal, Animal::Managed | Animal::Communicators)
    }
}

/// Accusations by process: the look at which each was first reported, and why.
#[derive(Default)]
struct Accused(BTreeMap<Option<u32>, (u64, String)>);

impl Accused {
    fn note(&mut self, snapshot: &Snapshot) {
        let look = snapshot.service.as_ref().expect("told").looks;
        let all = snapshot.claims.iter();
        for (pid, why) in all.filter_map(|c| Some((c.pid, c.overuse.clone()?))) {
            self.0.entry(pid).or_insert((look, why));
        }
    }
}

fn zoo() -> Station {
    let config = "[claims]\nleftover-grace = \"1s\"\n[detach]\nhost-reserve = \"1 MiB\"\n\
        [policy]\noveruse = \"stop\"\noveruse-grace = \"30s\"\n";
    let station = fast(config.to_owned(), |o| {
        o.gpus = vec!["h100".to_owned(); GPUS];
        o.tick = "0.2s".to_owned();
        o.costs = "add_one 2ms\nnothing 2us\n".to_owned();
    });
    let unseen = station.sim_dir().join("lib/libnvoptix.so.1");
    std::fs::copy(driver(&station), unseen).expect("copied");
    station
}

/// Four programs on each GPU, at their limits; all work until the look at which `done` is true.
fn play(
    station: &Station,
    dice: &mut Random,
    mut each: impl FnMut(usize, &mut [Vec<Program>], &Snapshot, &Accused) -> bool,
) -> Vec<Vec<Program>> {
    let mut gpus: Vec<Vec<Program>> = Vec::new();
    for gpu in 0..GPUS {
        let start = |_| {
            let animal = ANIMALS[dice.below(8) as usize];
            let around = match animal {
                Animal::OptiX => station.sim_dir().join("lib/libnvoptix.so.1"),
                _ => driver(station),
            };
            Program::start(station, gpu, animal, &around)
        };
        gpus.push((0..CLAIMS).map(start).collect());
    }
    let mut accused = Accused::default();
    for round in 0.. {
        let seeds: Vec<u64> = gpus.iter().map(|_| 1 + dice.below(1 << 30)).collect();
        std::thread::scope(|scope| {
            let works = gpus.iter_mut().zip(seeds).map(|(programs, seed)| {
                let mut dice = Random::seeded(seed);
                scope.spawn(move || programs.iter_mut().for_each(|p| p.step(&mut dice)))
            });
            // Their work may last for many looks on a busy machine.
            let works: Vec<_> = works.collect();
            while works.iter().any(|work| !work.is_finished()) {
                accused.note(&station.snapshot().expect("served"));
                std::thread::sleep(Duration::from_millis(50));
            }
        });
        next_look(station);
        let snapshot = station.snapshot().expect("served");
        accused.note(&snapshot);
        if each(round, &mut gpus, &snapshot, &accused) {
            break;
        }
    }
    gpus
}

/// All end normally, with their memory intact; then the station is empty.
fn ends(station: &Station, gpus: Vec<Vec<Program>>) {
    for mut program in gpus.into_iter().flatten() {
        assert_eq!(
            program.raw.ask("sum 0"),
            program.sum,
            "{:?}",
            program.animal
        );
        for worker in program.workers {
            assert_eq!(worker.finish(), Some(0));
        }
        assert_eq!(program.raw.finish(), Some(0), "{:?}", program.animal);
    }
    all_ended(station);
}

/// Plays the runs on several stations, those of a station's GPUs at once; returns all results, and the number of
/// runs. If one fails the other stations continue.
fn stations<T: Send>(each: impl Fn(&Station, &mut Random, usize) -> T + Sync) -> (usize, Vec<T>) {
    let asked = std::env::var("GSHARE_ZOO")
        .ok()
        .and_then(|n| n.parse().ok());
    let times = asked.unwrap_or(RUNS).div_ceil(GPUS);
    let (seed, next) = (Random::new("zoo").seed(), AtomicUsize::new(0));
    let play = || {
        let (station, mut given) = (zoo(), Vec::new());
        while let Some(time) = Some(next.fetch_add(1, Ordering::Relaxed)).filter(|t| *t < times) {
            let mut dice = Random::seeded(seed.wrapping_add(time as u64 * 0x9e37_79b9));
            given.push(each(&station, &mut dice, time));
        }
        given
    };
    let given = std::thread::scope(|scope| {
        let all = 0..STATIONS.min(times / 2).max(1);
        let all: Vec<_> = all.map(|_| scope.spawn(play)).collect();
        let ended = all
            .into_iter()
            .map(|one| one.join().expect("plays to the end"));
        ended.flatten().collect()
    });
    (times * GPUS, given)
}

#[test]
fn honest_programs_at_their_limits_are_not_accused_and_not_lost() {
    let begun = Instant::now();
    let (runs, offloaded) = stations(|station, dice, _| {
        board(station)
            .set_fault(Fault::NvmlSamples, true)
            .expect("set");
        let mut gpus = play(station, dice, |round, gpus, snapshot, accused| {
            let kind = |pid| {
                gpus.iter()
                    .flatten()
                    .find(|p| Some(p.raw.pid()) == pid)
                    .map(|p| p.animal)
            };
            let seen: Vec<_> = accused
                .0
                .iter()
                .map(|(pid, why)| (kind(*pid), why))
                .collect();
            assert!(seen.is_empty(), "round {round}: {seen:?}");
            let moved = snapshot.claims.iter().filter_map(|c| c.place.word.as_ref());
            assert_eq!(moved.count(), 0, "nobody asked for that");
            round + 1 == ROUNDS
        });
        let mut offloaded = [0; 2];
        for programs in &mut gpus {
            assert!(programs.iter().all(|p| p.full), "one is not at its limit");
            // One of each run is offloaded and restored; one that cannot be is refused, and continues.
            let at = dice.below(CLAIMS as u64) as usize;
            let program = &mut programs[at];
            for index in std::mem::take(&mut program.held) {
                program.must(&format!("free {index}"));
            }
            let id = claim(station, program.raw.pid()).id;
            let output = run(station, &["offload", &id]);
            // Other tests may have taken the host's memory.
            let no_room = String::from_utf8_lossy(&output.stderr).contains("the host has ");
            let stays = program.stays() || no_room;
            let wanted = if stays { 75 } else { 0 };
            assert_eq!(
                output.status.code(),
                Some(wanted),
                "{:?}: {output:?}",
                program.animal
            );
            offloaded[usize::from(stays)] += 1;
            if !stays {
                assert_eq!(run(station, &["restore", &id]).status.code(), Some(0));
            }
        }
        ends(station, gpus);
        offloaded
    });
    let [moved, refused] = [0, 1].map(|i| offloaded.iter().map(|o| o[i]).sum::<usize>());
    println!(
        "result: {runs} honest runs of {CLAIMS} programs, none accused, none lost; {moved} offloaded and restored, \
         {refused} refused that; {:?}",
        begun.elapsed()
    );
}

#[test]
fn one_cheat_among_four_programs_is_found() {
    let begun = Instant::now();
    let (runs, late) = stations(|station, dice, time| {
        let cheat = [Cheat::Stranger, Cheat::Member, Cheat::Time][time % 3];
        // Samples that name one process are no shares, and a driver that has no others reports nothing about time.
        let unkind = !matches!(cheat, Cheat::Time);
        board(station)
            .set_fault(Fault::NvmlSamples, unkind)
            .expect("set");
        let guilty: Vec<usize> = (0..GPUS).map(|_| dice.below(4) as usize).collect();
        let more = (1200 + dice.below(4096)) * MIB;
        let mut strangers: Vec<Raw> = Vec::new();
        let (mut since, mut soon) = (0, [false; GPUS]);
        let gpus = play(station, dice, |round, gpus, snapshot, accused| {
            let now = snapshot.service.as_ref().expect("told").looks;
            let pids: Vec<u32> = gpus
                .iter()
                .zip(&guilty)
                .map(|(all, at)| all[*at].raw.pid())
                .collect();
            for (pid, (_, why)) in &accused.0 {
                let known = pid.is_some_and(|pid| pids.contains(&pid)) && round >= FILLING;
                assert!(known, "{cheat:?}, round {round}: {why}");
            }
            if round + 1 == FILLING {
                for (all, at) in gpus.iter_mut().zip(&guilty) {
                    let raw = &mut all[*at].raw;
                    let library = driver(station);
                    let library = library.to_str().expect("a path");
                    match cheat {
                        Cheat::Member => {
                            // Above its cap, from below it, and it frees nothing afterwards.
                            let past = raw.info().0 + more + GIB;
                            let said = raw.ask(&format!("around alloc {past}"));
                            assert!(said.starts_with("ok"), "{said}");
                            all[*at].held.clear();
                        }
                        Cheat::Stranger => {
                            let mut stranger = join(station, raw, library);
                            assert_eq!(stranger.ask(&format!("alloc {more}")), "ok 0");
                            strangers.push(stranger);
                        }
                        Cheat::Time => {
                            let mut stranger = join(station, raw, library);
                            stranger.tell("launch 1000000");
                            strangers.push(stranger);
                        }
                    }
                }
                since = looks(station);
            }
            for (soon, pid) in soon.iter_mut().zip(&pids) {
                let at = accused.0.get(&Some(*pid));
                *soon |= at.is_some_and(|(look, _)| *look <= since + FOUND);
            }
            round >= FILLING && (now > since + FOUND || soon.iter().all(|s| *s))
        });
        let late = gpus.iter().zip(&guilty).zip(soon).filter(|(_, soon)| !soon);
        let late: Vec<_> = late
            .map(|((all, at), _)| (cheat, all[*at].animal))
            .collect();
        drop(strangers);
        ends(station, gpus);
        late
    });
    let late: Vec<_> = late.into_iter().flatten().collect();
    let found = runs - late.len();
    println!(
        "result: {found} of {runs} cheats found within {FOUND} looks; not: {late:?}; {:?}",
        begun.elapsed()
    );
    assert!(found * 100 >= runs * 95, "{found} of {runs}: {late:?}");
}
