//! Memory of running claims leaves the GPU and comes back: contents equal, processes alive, bytes on one side; for
//! one process, several, and several GPUs. Nothing is lost when a driver refuses, hangs or loses a process, or when
//! the service dies between two steps. Claims that cannot be offloaded say so.

use crate::support;

use std::io::{BufRead, BufReader};
use std::os::unix::fs::FileExt;
use std::os::unix::process::ExitStatusExt;
use std::process::{Child, Stdio};
use std::time::{Duration, Instant};

use gshare::station::Station;
use gshare_abi::UsagePage;
use gshare_enforcer::checkpoint::{Engine, ProcessState};
use gshare_sim_board::{CheckpointHow, CheckpointStep};
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use support::detach::{
    by_gpu, fault, fill, holder, met, on_gpus, ready, settles, station_of, station_that, word,
};
use support::{
    GIB, Raw, SOON, all_ended, board, board_bytes, claim, claim_of, has_all, ok, refused, run,
    until,
};

// GPU memory of running claims moves to the host and back: contents equal, processes alive, bytes on one side.

/// Two RTX 4090 and two H100 on which memory moves fast.
fn station() -> Station {
    station_that("", |_| ())
}

const ON_GPU_0: [&str; 5] = ["-q", "-g", "0.5", "--gpu-ids", "0"];

#[test]
fn detached_memory_is_free_the_process_lives_and_its_next_call_brings_it_back() {
    let station = station();
    let mut command = station.command();
    command
        .arg("claim")
        .args(ON_GPU_0)
        .arg("--")
        .arg(support::example("raw_client"))
        .stderr(Stdio::piped());
    let mut raw = Raw::start(command);
    let errors = BufReader::new(raw.child.stderr.take().expect("piped"));
    let said = std::thread::spawn(move || {
        let mut lines = errors.lines().map_while(Result::ok);
        lines.find(|line| line.contains("this call waited"))
    });
    assert_eq!(raw.ask(&format!("alloc {GIB}")), "ok 0");
    assert_eq!(raw.ask("fill 0 7"), "ok");
    assert_eq!(raw.ask("launch 3"), "ok 3");
    let sum = raw.ask("sum 0");
    let before = ready(&station, raw.pid());
    let held = on_gpus(&station, raw.pid());
    assert!(held > GIB, "{held}");

    let done = ok(&station, &["offload", &before.id]);
    assert!(
        done.starts_with(&format!("{} offloaded, ", before.id)),
        "{done}"
    );
    assert_eq!(on_gpus(&station, raw.pid()), 0, "nothing is on a GPU");
    let view = claim(&station, raw.pid());
    assert_eq!(view.place.word.as_deref(), Some("offloaded"));
    assert_eq!(view.place.host_bytes, before.gpus[0].mem_charge);
    assert!(
        view.state_text.starts_with("offloaded, "),
        "{}",
        view.state_text
    );
    assert_eq!(raw.ask("ping"), "ok pong", "its threads run");
    // Its room is free: a claim of the whole GPU fits, and must end before the other is restored.
    let mut other = Raw::claim(&station, &["-q", "-g", "1", "--gpu-ids", "0", "--nonblock"]);
    assert_eq!(other.ask(&format!("alloc {GIB}")), "ok 0");
    raw.tell("sum 0");
    until("the call waits for room", SOON, || {
        let snapshot = station.snapshot().ok()?;
        claim_of(&snapshot, raw.pid())
            .is_some_and(|c| c.place.word.as_deref() == Some("offloaded"))
            .then_some(())
    });
    assert_eq!(other.finish(), Some(0));
    assert_eq!(raw.line(), sum, "contents are as before");
    assert_eq!(on_gpus(&station, raw.pid()), held, "and on the GPU");
    assert_eq!(raw.ask("launch 1"), "ok 4", "modules and kernels, too");
    assert_eq!(claim(&station, raw.pid()).place.word, None);
    let line = said.join().expect("reads on").expect("was said");
    has_all(&line, &["has its GPU memory back"]);
    assert_eq!(raw.finish(), Some(0));
}

/// A further process of a claim, which only counts.
struct Counter {
    child: Child,
    file: tempfile::NamedTempFile,
}

impl Counter {
    fn join(station: &Station, id: &str) -> Self {
        let file = tempfile::NamedTempFile::new().expect("a file");
        let mut command = station.command();
        command.args(["join", "-q", id, "--", "sh", "-c"]);
        command.arg("while :; do printf x; sleep 0.01; done");
        let out = file.reopen().expect("opened");
        let child = command.stdout(out).spawn().expect("it starts");
        Self { child, file }
    }

    fn count(&self) -> u64 {
        self.file.as_file().metadata().expect("its size").len()
    }

    fn goes_on(&self) {
        let from = self.count();
        until("it counts", SOON, || self.count() > from);
    }
}

impl Drop for Counter {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Asserts that no thread of a process runs or can; the processor time that it has had, in ticks.
fn stands_still(pid: u32) -> u64 {
    let read = |path: &str| std::fs::read_to_string(path).expect(path);
    let cgroup = read(&format!("/proc/{pid}/cgroup"));
    let path = cgroup.lines().find_map(|l| l.strip_prefix("0::"));
    let mounts = read("/proc/mounts");
    let mut mounts = mounts.lines().map(|l| l.split(' ').collect::<Vec<_>>());
    let root = mounts.find_map(|m| (m.get(2) == Some(&"cgroup2")).then(|| m[1].to_owned()));
    let (root, path) = (root.expect("cgroup v2"), path.expect("its cgroup"));
    until("all of it stands still", SOON, || {
        let events = read(&format!("{root}{path}/cgroup.events"));
        events.lines().any(|l| l == "frozen 1")
    });
    let threads = std::fs::read_dir(format!("/proc/{pid}/task")).expect("its threads");
    let ticks = threads.flatten().map(|thread| {
        let stat = read(&thread.path().join("stat").display().to_string());
        let (_, rest) = stat.rsplit_once(')').expect("a name in brackets");
        let fields: Vec<&str> = rest.split_whitespace().collect();
        assert_ne!(fields[0], "R", "{stat}");
        let ticks = |i: usize| fields[i].parse::<u64>().expect("ticks");
        ticks(11) + ticks(12)
    });
    ticks.sum()
}

/// A suspended claim, the checksum of its memory, its id, and a program of it that counted until then.
fn suspended(station: &Station) -> (Raw, String, String, Counter) {
    let (raw, sum) = holder(station, &ON_GPU_0);
    let id = claim(station, raw.pid()).id;
    let counter = Counter::join(station, &id);
    counter.goes_on();
    ok(station, &["suspend", &id]);
    (raw, sum, id, counter)
}

#[test]
fn suspended_processes_stand_still_and_resume_where_they_stopped() {
    support::root!("suspended_processes_stand_still_and_resume_where_they_stopped");
    let station = station();
    let (mut raw, sum, id, counter) = suspended(&station);
    let view = claim(&station, raw.pid());
    assert_eq!(view.place.word.as_deref(), Some("suspended"));
    assert_eq!(on_gpus(&station, raw.pid()), 0);
    raw.tell("ping");
    raw.tell("sum 0");
    // Neither its threads nor its calls continue, and no call restores it.
    let all = [raw.pid(), counter.child.id()];
    let before = (counter.count(), all.map(stands_still));
    std::thread::sleep(Duration::from_millis(500));
    assert_eq!((counter.count(), all.map(stands_still)), before);
    assert_eq!(on_gpus(&station, raw.pid()), 0);
    ok(&station, &["resume", &id]);
    counter.goes_on();
    assert_eq!(raw.line(), "ok pong");
    assert_eq!(raw.line(), sum);
    // Offloaded without being frozen: its threads run.
    ok(&station, &["suspend", &id]);
    ok(&station, &["offload", &id]);
    assert_eq!(raw.ask("ping"), "ok pong");
    ok(&station, &["suspend", &id]);
    assert_eq!(
        claim(&station, raw.pid()).place.word.as_deref(),
        Some("suspended")
    );
    ok(&station, &["restore", &id]);
    assert_eq!(raw.ask("sum 0"), sum);
}

#[test]
fn a_suspended_claim_that_is_released_runs_again_to_end() {
    support::root!("a_suspended_claim_that_is_released_runs_again_to_end");
    let station = station();
    let (mut raw, _, id, counter) = suspended(&station);
    stands_still(raw.pid());
    ok(&station, &["release", &id]);
    let status = raw.child.wait().expect("it ends");
    let text = "by the signal that it could act on, not by SIGKILL";
    assert_eq!(status.signal(), Some(15), "{text}");
    counter.goes_on();
}

#[test]
fn a_moved_claim_has_its_memory_on_the_other_gpu_and_sees_no_difference() {
    let station = station();
    let (mut raw, sum) = holder(&station, &ON_GPU_0);
    assert_eq!(raw.ask("launch 2"), "ok 2");
    let before = claim(&station, raw.pid());
    assert_eq!(before.place.levers.not_movable, None);
    let (id, held) = (before.id.clone(), on_gpus(&station, raw.pid()));
    for target in [1, 0, 1] {
        let done = ok(&station, &["move", &id, "--gpu", &target.to_string()]);
        has_all(&done, &[&format!("moved to GPU {target}")]);
        let bound = format!("the claim is now bound to GPU {target}");
        assert!(done.contains(&bound), "as its --gpu-ids said: {done}");
        let seen = board(&station).snapshot();
        assert_eq!(board_bytes(&seen, target, &[raw.pid()]), held);
        assert_eq!(on_gpus(&station, raw.pid()), held, "and nowhere else");
        let after = claim(&station, raw.pid());
        assert_eq!(after.gpus[0].gpu as usize, target);
        assert_eq!(after.gpus[0].mem_charge, before.gpus[0].mem_charge);
        assert_eq!(raw.ask("sum 0"), sum);
        assert_eq!(raw.ask("count"), "ok 1");
    }
    assert_eq!(raw.ask("launch 1"), "ok 3");
    // Its ledger continues there: the cap holds, and freed memory is free.
    let (free, total) = raw.info();
    assert!(
        raw.ask(&format!("alloc {}", free + 1))
            .starts_with("error 2")
    );
    assert_eq!(raw.ask(&format!("alloc {GIB}")), "ok 1");
    assert_eq!(raw.info(), (free - GIB, total));
    // It is restored where it was sent, not on the GPU of its grant.
    ok(&station, &["offload", &id]);
    ok(&station, &["restore", &id]);
    assert_eq!(claim(&station, raw.pid()).gpus[0].gpu, 1);
    let wrong = run(&station, &["move", &id, "--gpu", "2"]);
    assert_eq!(wrong.status.code(), Some(75), "another model: {wrong:?}");
    let twice = run(&station, &["move", &id, "--gpu", "1"]);
    assert_eq!(twice.status.code(), Some(75), "there already: {twice:?}");
    assert_eq!(raw.finish(), Some(0));
}

#[test]
fn a_claim_on_its_way_is_not_taken_for_one_that_uses_gpus_of_others() {
    let station = station_that("", |o| {
        o.gpus = vec!["rtx4090".to_owned(); 2];
        o.tick = "0.1s".to_owned();
    });
    let (raw, _) = holder(&station, &ON_GPU_0);
    let id = claim(&station, raw.pid()).id;
    // Many looks while its memory is on one side, on the other, and on neither.
    let slow = board(&station).set_checkpoint_rate(Duration::from_millis(1500), 1 << 42);
    slow.expect("set");
    ok(&station, &["move", &id, "--gpu", "1"]);
    ok(&station, &["suspend", &id]);
    ok(&station, &["resume", &id]);
    let log = ok(&station, &["log", &id]);
    has_all(&log, &["moved to GPU 1"]);
    assert!(
        !log.contains("does not hold") && !log.contains("beyond"),
        "{log}"
    );
    assert_eq!(raw.finish(), Some(0));
}

#[test]
fn what_cannot_be_detached_says_so_before_anybody_asks() {
    let station = station();
    let mut raw = Raw::claim(&station, &["-q", "-g", "0.5", "--no-movable"]);
    let view = ready(&station, raw.pid());
    let why = view.place.levers.not_movable.expect("it was claimed so");
    has_all(&why, &["--no-movable"]);
    let stays = format!(
        "{} cannot be moved: it was claimed with --no-movable",
        view.id
    );
    let ps = ok(&station, &["ps"]);
    has_all(&ps, &[&stays]);
    assert_eq!(raw.ask("managed 4096"), "ok");
    let why = until("it is seen", SOON, || {
        claim(&station, raw.pid()).place.levers.not_detachable
    });
    has_all(&why, &["managed memory"]);
    let ps = ok(&station, &["ps"]);
    has_all(&ps, &["cannot be offloaded: it uses managed memory"]);
    assert!(!ps.contains("cannot be moved"), "said once: {ps}");
    let refused = run(&station, &["offload", &view.id]);
    assert_eq!(refused.status.code(), Some(75), "{refused:?}");
    assert_eq!(raw.ask("launch 1"), "ok 1", "nothing happened to it");
    // Nor memory of other drivers, of which the claim is charged nothing.
    let mut other = Raw::claim(&station, &["-q", "-g", "0.25"]);
    let view = ready(&station, other.pid());
    let charged = view.gpus[0].mem_charge;
    assert_eq!(other.ask("import"), "ok");
    let view = until("it is seen", SOON, || {
        let view = claim(&station, other.pid());
        view.place.levers.not_detachable.is_some().then_some(view)
    });
    assert_eq!(view.gpus[0].mem_charge, charged);
    let refused = run(&station, &["offload", &view.id]);
    let said = String::from_utf8_lossy(&refused.stderr);
    assert_eq!(refused.status.code(), Some(75), "{said}");
    has_all(&said, &["memory of graphics or of other drivers"]);
    assert_eq!(other.ask("launch 1"), "ok 1", "nothing happened to it");
}

/// Frameworks map the library when they are imported, long before a communicator is made; on one GPU there is none.
#[test]
fn a_claim_of_several_gpus_with_nccl_loaded_says_so_before_anybody_asks() {
    let station = station();
    let library = station.dir().join("libnccl.so.2");
    std::fs::copy(station.libraries().join("libnvidia-ml.so.1"), &library).expect("copied");
    let start = |size: &str| {
        let mut command = station.command();
        command.args(["claim", "-q", "-g", size, "--"]);
        command.arg(support::example("raw_client"));
        command.env("LD_PRELOAD", &library);
        Raw::start(command)
    };
    let (one, mut both) = (start("0.25"), start("2x0.5"));
    ready(&station, one.pid());
    let why = until("it is seen", SOON, || {
        let why = claim(&station, both.pid()).place.levers.not_detachable?;
        (!why.contains("starting")).then_some(why)
    });
    let words = format!("process {} has NCCL loaded and several GPUs", both.pid());
    has_all(&why, &[&words]);
    let ps = ok(&station, &["ps"]);
    has_all(&ps, &[&format!("cannot be offloaded: {words}")]);
    assert_eq!(both.ask("launch 1"), "ok 1");
    // Two GPUs without it are no reason.
    assert_eq!(both.finish(), Some(0));
    let plain = Raw::claim(&station, &["-q", "-g", "2x0.5"]);
    ready(&station, plain.pid());
}

#[test]
fn a_claim_of_the_same_number_that_another_service_has_is_left_alone() {
    // Without cgroups a service recognises its members by their environment.
    let stations = [0, 1].map(|_| station_that("", |o| o.cgroups = false));
    let mut holders = stations.each_ref().map(|s| holder(s, &["-q", "-g", "0.5"]));
    let [one, other] = [0, 1].map(|i| claim(&stations[i], holders[i].0.pid()).id);
    assert_eq!(one, other);
    ok(&stations[0], &["offload", &one]);
    assert_eq!(on_gpus(&stations[0], holders[0].0.pid()), 0);
    assert!(on_gpus(&stations[1], holders[1].0.pid()) >= GIB);
    for (raw, sum) in &mut holders {
        assert_eq!(raw.ask("sum 0"), *sum);
    }
}

// Claims with several processes and several GPUs are offloaded, restored and moved as one: all or nothing, with the
// memory of each process on each GPU unchanged.

/// A claim with three processes on GPU 0, each with something in its memory.
struct Three {
    raws: Vec<Raw>,
    sums: Vec<String>,
    held: Vec<u64>,
    id: String,
}

impl Three {
    fn new(station: &Station) -> Self {
        let first = Raw::claim(station, &["-q", "-g", "0.5", "--gpu-ids", "0"]);
        let pid = first.pid();
        let id = claim(station, pid).id;
        let mut raws = vec![first, Raw::join(station, &id), Raw::join(station, &id)];
        let sums = raws.iter_mut().map(|raw| fill(raw, 0)).collect();
        for raw in &mut raws {
            assert_eq!(raw.ask("launch 2"), "ok 2");
        }
        ready(station, pid);
        let held = raws.iter().map(|r| on_gpus(station, r.pid())).collect();
        Self {
            raws,
            sums,
            held,
            id,
        }
    }

    fn pid(&self) -> u32 {
        self.raws[0].pid()
    }

    /// Bytes of each process on the GPUs.
    fn on(&self, station: &Station) -> Vec<u64> {
        let each = |raw: &Raw| on_gpus(station, raw.pid());
        self.raws.iter().map(each).collect()
    }

    /// All of them are on the GPU with unchanged memory, and continue.
    fn whole(&mut self, station: &Station, what: &str) {
        assert_eq!(self.on(station), self.held, "{what}");
        for (raw, sum) in self.raws.iter_mut().zip(&self.sums) {
            assert_eq!(raw.ask("sum 0"), *sum, "{what}");
        }
        assert_eq!(word(station, self.pid()), None, "{what}");
    }
}

#[test]
fn all_processes_of_a_claim_leave_come_back_stop_and_move_as_one() {
    let station = station_of(2, "");
    let mut three = Three::new(&station);
    let id = three.id.clone();
    let nothing = vec![0; 3];
    for round in 0..2 {
        ok(&station, &["offload", &id]);
        assert_eq!(three.on(&station), nothing, "nobody is left on the GPU");
        for raw in &mut three.raws {
            assert_eq!(raw.ask("ping"), "ok pong", "all live");
        }
        let host = claim(&station, three.pid()).place.host_bytes;
        assert!(host >= Some(three.held.iter().sum()), "{host:?}");
        if round == 0 {
            ok(&station, &["restore", &id]);
        } else {
            // A call of any of them restores all.
            assert_eq!(three.raws[2].ask("sum 0"), three.sums[2]);
        }
        three.whole(&station, "after offload");
    }
    ok(&station, &["move", &id, "--gpu", "1"]);
    for (raw, held) in three.raws.iter().zip(&three.held) {
        assert_eq!(by_gpu(&station, raw.pid()), [0, *held]);
    }
    three.whole(&station, "after move");
    if support::is_root("suspend") {
        ok(&station, &["suspend", &id]);
        assert_eq!(three.on(&station), nothing);
        for raw in &mut three.raws {
            raw.tell("ping");
        }
        ok(&station, &["resume", &id]);
        for raw in &mut three.raws {
            assert_eq!(raw.line(), "ok pong");
        }
        three.whole(&station, "after suspend");
    }
    for raw in &mut three.raws {
        assert_eq!(raw.ask("launch 1"), "ok 3", "kernels go on");
    }
}

#[test]
fn what_fails_for_one_process_of_a_claim_is_undone_for_all() {
    use CheckpointHow::{Fails, Refused};
    use CheckpointStep::{Checkpoint, Lock, Restore, Unlock};
    let station = station_of(2, "");
    let mut three = Three::new(&station);
    let id = three.id.clone();
    let pids: Vec<u32> = three.raws.iter().map(Raw::pid).collect();
    for pid in pids.clone() {
        for step in [Lock, Checkpoint] {
            fault(&station, Some((step, Refused)), Some(pid));
            for words in [&["offload", &id][..], &["move", &id, "--gpu", "1"]] {
                let why = refused(&station, words);
                has_all(&why, &[&format!("process {pid}")]);
                has_all(&why, &[&format!("cuCheckpointProcess{step:?}")]);
                fault(&station, None, None);
                three.whole(&station, &format!("{words:?}, {step:?} of {pid}"));
                fault(&station, Some((step, Refused)), Some(pid));
            }
            fault(&station, None, None);
        }
        // On the way back: all of them stay in the host.
        ok(&station, &["offload", &id]);
        fault(&station, Some((Restore, Refused)), Some(pid));
        let why = refused(&station, &["restore", &id]);
        has_all(&why, &["cuCheckpointProcessRestore"]);
        assert_eq!(three.on(&station), vec![0; 3], "restore of {pid}");
        assert_eq!(word(&station, three.pid()).as_deref(), Some("offloaded"));
        fault(&station, None, None);
        ok(&station, &["restore", &id]);
        three.whole(&station, &format!("restore of {pid}"));
        // Once all are back they run, however many attempts that takes.
        ok(&station, &["offload", &id]);
        fault(&station, Some((Unlock, Refused)), Some(pid));
        let mut restore = station.command();
        restore.args(["restore", "-q", &id]);
        let mut restore = restore.spawn().expect("it starts");
        until("it is tried again", SOON, || {
            let log = std::fs::read_to_string(station.log_path()).ok()?;
            let tried = format!("cuCheckpointProcessUnlock on process {pid}");
            log.contains(&tried).then_some(())
        });
        assert_eq!(three.on(&station), three.held);
        fault(&station, None, None);
        assert_eq!(restore.wait().expect("ends").code(), Some(0));
        three.whole(&station, &format!("unlock of {pid}"));
    }
    // A process that dies in the middle, or that the driver loses, does not affect the others.
    let lost = three.raws.pop().expect("three");
    three.sums.truncate(2);
    three.held.truncate(2);
    let pid = lost.pid();
    fault(&station, Some((Checkpoint, Fails)), Some(pid));
    let why = refused(&station, &["offload", &id]);
    has_all(&why, &[&format!("lost process {pid}")]);
    fault(&station, None, None);
    three.whole(&station, "one is lost");
}

#[test]
fn a_process_that_dies_in_the_middle_leaves_the_others_whole() {
    use CheckpointHow::Dies;
    use CheckpointStep::{Checkpoint, Lock, Restore, Unlock};
    let station = station_of(2, "");
    for step in [Lock, Checkpoint, Restore, Unlock] {
        let mut three = Three::new(&station);
        let (id, dead) = (three.id.clone(), three.raws[1].pid());
        let leaves = matches!(step, Lock | Checkpoint);
        if !leaves {
            ok(&station, &["offload", &id]);
        }
        fault(&station, Some((step, Dies)), Some(dead));
        let words = if leaves { "offload" } else { "restore" };
        let output = run(&station, &[words, &id]);
        fault(&station, None, None);
        assert!(output.status.success(), "{step:?}: {output:?}");
        three.raws.remove(1);
        three.sums.remove(1);
        three.held.remove(1);
        assert_eq!(on_gpus(&station, dead), 0);
        if leaves {
            settles(&station, three.pid(), Some("offloaded"));
            assert_eq!(three.on(&station), [0, 0], "{step:?}");
            ok(&station, &["restore", &id]);
        }
        three.whole(&station, &format!("{step:?}"));
        while let Some(raw) = three.raws.pop() {
            assert_eq!(raw.finish(), Some(0));
        }
        all_ended(&station);
    }
}

#[test]
fn a_process_that_joins_a_detached_claim_brings_all_of_it_back() {
    let station = station_of(2, "");
    let mut three = Three::new(&station);
    let id = three.id.clone();
    ok(&station, &["offload", &id]);
    assert_eq!(three.on(&station), [0, 0, 0]);
    let mut fourth = Raw::join(&station, &id);
    let sum = fill(&mut fourth, 0);
    settles(&station, three.pid(), None);
    three.whole(&station, "somebody joined");
    ready(&station, three.pid());
    ok(&station, &["move", &id, "--gpu", "1"]);
    assert_eq!(by_gpu(&station, fourth.pid())[0], 0, "it goes along");
    assert_eq!(fourth.ask("sum 0"), sum);
    three.whole(&station, "moved with the new one");
}

#[test]
fn a_claim_of_several_gpus_is_the_same_on_each_wherever_it_goes() {
    let station = station_of(4, "");
    let mut first = Raw::claim(&station, &["-q", "-g", "2x0.5"]);
    let pid = first.pid();
    let id = claim(&station, pid).id;
    let mut second = Raw::join(&station, &id);
    // What each process has on each of the two GPUs.
    let mut sums = Vec::new();
    for raw in [&mut first, &mut second] {
        let mut own = Vec::new();
        for device in 0..2 {
            assert_eq!(raw.ask(&format!("device {device}")), "ok");
            own.push(fill(raw, device));
            if device == 1 {
                assert_eq!(raw.ask(&format!("alloc {}", 1 << 29)), "ok 2");
            }
        }
        sums.push(own);
    }
    assert_ne!(sums[0][0], sums[0][1]);
    let view = ready(&station, pid);
    assert_eq!(view.place.levers.not_movable, None);
    let held: Vec<Vec<u64>> = [&first, &second]
        .map(|raw| by_gpu(&station, raw.pid()))
        .to_vec();
    assert!(held.iter().all(|h| h[1] > h[0] && h[2] == 0), "{held:?}");
    // Where the parts for the first and the second device are now.
    let mut whole = |station: &Station, at: [usize; 2], what: &str| {
        for (raw, (held, sums)) in [&mut first, &mut second]
            .into_iter()
            .zip(held.iter().zip(&sums))
        {
            let mut wanted = [0; 4];
            (wanted[at[0]], wanted[at[1]]) = (held[0], held[1]);
            assert_eq!(by_gpu(station, raw.pid()), wanted, "{what}");
            for (device, before) in sums.iter().enumerate() {
                assert_eq!(raw.ask(&format!("device {device}")), "ok");
                let sum = raw.ask(&format!("sum {device}"));
                assert_eq!(sum, *before, "{what}: device {device}");
            }
        }
        let gpus = claim(station, pid).gpus;
        let gpus: Vec<usize> = gpus.iter().map(|g| g.gpu as usize).collect();
        assert_eq!(gpus, at, "{what}");
    };
    let out = |station: &Station| {
        let seen = board(station).snapshot();
        let bytes = seen.gpus.iter().flat_map(|g| &g.processes).map(|p| p.bytes);
        assert_eq!(bytes.sum::<u64>(), 0, "all is in the host");
    };
    ok(&station, &["offload", &id]);
    out(&station);
    ok(&station, &["restore", &id]);
    whole(&station, [0, 1], "back where it was");
    for to in [[2, 3], [1, 0], [3, 2]] {
        let gpus = format!("{},{}", to[0], to[1]);
        let done = ok(&station, &["move", &id, "--gpu", &gpus]);
        has_all(&done, &[&format!("moved to GPUs {gpus}")]);
        whole(&station, to, &format!("moved to {gpus}"));
    }
    // Others take its GPUs while it is offloaded: it is restored on the free ones.
    ok(&station, &["offload", &id]);
    out(&station);
    let other = Raw::claim(&station, &["-q", "-g", "2", "--gpu-ids", "2,3"]);
    let done = ok(&station, &["restore", &id]);
    has_all(&done, &["restored"]);
    whole(&station, [0, 1], "restored elsewhere");
    assert_eq!(other.finish(), Some(0));
    // Too few GPUs, one twice, one that it has: an error, and nothing is done.
    for gpus in ["2", "2,2", "2,0"] {
        let output = run(&station, &["move", &id, "--gpu", gpus]);
        assert!(matches!(output.status.code(), Some(64 | 75)), "{output:?}");
    }
    whole(&station, [0, 1], "after wrong wishes");
}

// Claims that cannot be offloaded or moved say so in `gshare ps`, in words and as JSON, as soon as it is known;
// nothing is done to them, and room is made elsewhere.

/// Waits until a claim reports that it cannot be offloaded; returns the reason.
fn fixed(station: &Station, pid: u32, wanted: &str) -> String {
    until(&format!("ps says `{wanted}`"), SOON, || {
        let snapshot = station.snapshot().ok()?;
        let why = claim_of(&snapshot, pid)?
            .place
            .levers
            .not_detachable
            .clone()?;
        why.contains(wanted).then_some(why)
    })
}

/// `ps`, `ps --json` and the refusals of a claim that cannot be offloaded.
fn says(station: &Station, pid: u32, wanted: &str) {
    let why = fixed(station, pid, wanted);
    let ps = ok(station, &["ps"]);
    has_all(&ps, &[&format!("cannot be offloaded: {why}")]);
    let json = ok(station, &["ps", "--json"]);
    has_all(&json, &[&why]);
    let id = claim(station, pid).id;
    for words in [
        &["offload", &id][..],
        &["suspend", &id],
        &["move", &id, "--gpu", "1"],
    ] {
        let said = refused(station, words);
        assert!(said.contains(&why), "{words:?}: {said}");
    }
}

#[test]
fn ipc_says_so_from_when_it_is_used() {
    let station = station_of(2, "");
    let (mut raw, sum) = holder(&station, &["-q", "-g", "0.5"]);
    let id = claim(&station, raw.pid()).id;
    // For any of its processes.
    let mut other = Raw::join(&station, &id);
    let _ = fill(&mut other, 0);
    ready(&station, raw.pid());
    assert_eq!(other.ask("share 0"), "ok");
    says(&station, raw.pid(), "(IPC)");
    assert_eq!(raw.ask("sum 0"), sum, "nothing happened to it");
    // When that one has ended, the claim can be offloaded again.
    assert_eq!(other.finish(), Some(0));
    ready(&station, raw.pid());
    ok(&station, &["offload", &id]);
    assert_eq!(raw.ask("sum 0"), sum);
}

#[test]
fn nccl_says_so_from_when_it_joins_gpus() {
    let station = station_that("", |o| o.gpus = vec!["h100".to_owned(); 2]);
    let (mut raw, sum) = holder(&station, &["-q", "-g", "0.5"]);
    assert_eq!(raw.ask("multicast"), "ok");
    says(&station, raw.pid(), "(NCCL)");
    assert_eq!(raw.ask("sum 0"), sum, "nothing happened to it");
}

#[test]
fn mps_says_so_from_the_start() {
    support::root!("mps_says_so_from_the_start");
    let keys = "[gpu.0]\nmode = \"mps\"\n[gpu.1]\nmode = \"mps\"\n";
    let station = station_of(2, keys);
    let raw = Raw::claim(&station, &["-q", "-g", "0.5"]);
    let why = claim(&station, raw.pid()).place.levers.not_detachable;
    assert!(why.expect("from the start").contains("MPS"));
    says(&station, raw.pid(), "MPS");
}

#[test]
fn a_mig_instance_says_so_from_the_start() {
    let station = station_that("", |o| {
        o.gpus = vec!["a100-80gb:1g.10gb+2g.20gb".to_owned()];
    });
    let mut raw = Raw::claim(&station, &["-q", "-g", "0.25"]);
    assert_eq!(raw.ask("launch 1"), "ok 1");
    let why = claim(&station, raw.pid()).place.levers.not_detachable;
    let why = why.expect("from the start");
    says(&station, raw.pid(), "MIG instance");
    assert!(
        why.contains("MIG instance") || why.contains("starting"),
        "{why}"
    );
    assert_eq!(raw.ask("launch 1"), "ok 2");
}

#[test]
fn an_old_driver_says_so_from_the_start() {
    for (driver, offloads) in [("560.35.03", false), ("570.86.10", true)] {
        let station = station_that("", |o| {
            o.gpus = vec!["rtx4090".to_owned(); 2];
            o.driver = Some(driver.to_owned());
        });
        let mut raw = Raw::claim(&station, &["-q", "-g", "0.5"]);
        let sum = fill(&mut raw, 0);
        let pid = raw.pid();
        let doctor = String::from_utf8_lossy(&run(&station, &["doctor"]).stdout).into_owned();
        if offloads {
            // Reclaim leaves it alone: such drivers refuse PyTorch (cuda-checkpoint issue 34).
            fixed(&station, pid, "gshare offloads no claim by itself");
            let levers = claim(&station, pid).place.levers;
            assert!(levers.not_movable.expect("told").contains("580"));
            let id = claim(&station, pid).id;
            ok(&station, &["offload", &id]);
            assert_eq!(on_gpus(&station, pid), 0);
            let notices = station.snapshot().expect("served").notices;
            assert!(
                notices.iter().any(|n| n.text.contains("including PyTorch")),
                "{notices:?}"
            );
            let said = refused(&station, &["move", &id, "--gpu", "1"]);
            has_all(&said, &["release 580"]);
            assert_eq!(raw.ask("sum 0"), sum);
            has_all(&doctor, &["needs driver release 580"]);
        } else {
            says(&station, pid, "release 570");
            assert_eq!(raw.ask("sum 0"), sum);
        }
    }
}

#[test]
fn a_part_of_the_gpus_in_the_environment_says_so_from_the_start() {
    // Without a device filter it takes the variable to hide the other GPUs.
    let station = station_that("", |o| {
        o.gpus = vec!["rtx4090".to_owned(); 2];
        o.cgroups = false;
    });
    let (mut raw, sum) = holder(&station, &["-q", "-g", "0.5", "--gpu-ids", "0"]);
    let view = claim(&station, raw.pid());
    let why = view.place.levers.not_movable.expect("told");
    has_all(&why, &["CUDA_VISIBLE_DEVICES"]);
    let json = ok(&station, &["ps", "--json"]);
    has_all(&json, &[&why]);
    let said = refused(&station, &["move", &view.id, "--gpu", "1"]);
    has_all(&said, &[&why]);
    // It can leave the GPU, and is restored there.
    ok(&station, &["offload", &view.id]);
    assert_eq!(on_gpus(&station, raw.pid()), 0);
    assert_eq!(raw.ask("sum 0"), sum);
    settles(&station, raw.pid(), None);
}

#[test]
fn room_is_made_by_way_of_a_claim_that_can_be_moved() {
    let keys = "[class]\ninteractive = { min-run = \"0s\" }\nbatch = { min-run = \"0s\" }\n\
                [reclaim]\ncountdown = \"1s\"\nquiet = \"1d\"\nhost-ram = 90\n";
    let station = station_of(2, keys);
    let notebook = ["-q", "-g", "0.5", "--limit", "1", "--class", "interactive"];
    // The smaller one would be moved, if it could be.
    let (mut stays, first) = holder(&station, &notebook);
    let (mut goes, second) = holder(&station, &notebook);
    assert_eq!(goes.ask(&format!("alloc {}", 4 * GIB)), "ok 1");
    assert_eq!(stays.ask("managed 4096"), "ok");
    fixed(&station, stays.pid(), "managed memory");
    let gpu = |pid: u32| claim(&station, pid).gpus[0].gpu;
    let (at, other) = (gpu(stays.pid()), gpu(goes.pid()));
    assert_ne!(at, other, "they are spread");
    let whole = Raw::claim(&station, &["-q", "-g", "1"]);
    assert_eq!(gpu(whole.pid()), other);
    assert_eq!((gpu(stays.pid()), gpu(goes.pid())), (at, at));
    assert_eq!((stays.ask("sum 0"), goes.ask("sum 0")), (first, second));
}

// Failures of levers: the driver refuses, hangs or loses a process, its engine is killed, a thread is stuck in a
// call, the host's memory is short. Nothing is lost: a claim is whole on one side, its contents equal, and its owner
// is notified in words.

fn start(station: &Station, words: &[&str]) -> Child {
    let mut command = station.command();
    command.args(words);
    command.stdout(Stdio::null()).stderr(Stdio::null());
    command.spawn().expect("it starts")
}

fn log(station: &Station, id: &str) -> String {
    ok(station, &["log", id])
}

/// Engines of a station's service, by the parent of each process: the kernel's lists of children miss one whose
/// thread ends while they are read.
fn engines(station: &Station) -> Vec<i32> {
    let service = station.service_pid().expect("it runs").to_string();
    let all = std::fs::read_dir("/proc").expect("processes").flatten();
    let pids = all.filter_map(|p| p.file_name().to_str()?.parse::<i32>().ok());
    let is_engine = |pid: &i32| {
        let line = std::fs::read_to_string(format!("/proc/{pid}/cmdline"));
        line.is_ok_and(|l| l.contains("__checkpoint-engine"))
    };
    let is_child = |pid: &i32| {
        let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
        let rest = stat.rsplit_once(')').map_or("", |(_, rest)| rest);
        rest.split_whitespace().nth(1) == Some(&service)
    };
    let mut engines: Vec<i32> = pids.filter(is_engine).filter(is_child).collect();
    engines.sort_unstable();
    engines
}

#[test]
fn whatever_the_driver_refuses_leaves_a_claim_whole_on_one_side() {
    use CheckpointStep::{Checkpoint, Lock, Restore};
    let station = station_of(2, "");
    let (mut raw, sum) = holder(&station, &ON_GPU_0);
    let id = claim(&station, raw.pid()).id;
    let held = on_gpus(&station, raw.pid());
    let suspends = support::is_root("suspend");
    let levers = ["offload", "suspend"]
        .into_iter()
        .filter(|l| suspends || *l == "offload");
    for lever in levers {
        for step in [Lock, Checkpoint] {
            fault(&station, Some((step, CheckpointHow::Refused)), None);
            let why = refused(&station, &[lever, &id]);
            has_all(&why, &[&format!("cuCheckpointProcess{step:?}")]);
            assert_eq!(on_gpus(&station, raw.pid()), held, "{step:?}");
            fault(&station, None, None);
            assert_eq!(raw.ask("sum 0"), sum, "{step:?}: it runs on");
            assert!(log(&station, &id).contains("could not be offloaded"));
        }
        // On its way back it stays in the host, and is restored once that is possible.
        ok(&station, &[lever, &id]);
        fault(&station, Some((Restore, CheckpointHow::Refused)), None);
        let back = if lever == "suspend" {
            "resume"
        } else {
            "restore"
        };
        refused(&station, &[back, &id]);
        assert_eq!(on_gpus(&station, raw.pid()), 0, "all in the host");
        let (pid, is) = (raw.pid(), format!("{lever}ed"));
        settles(&station, pid, Some(&is));
        fault(&station, None, None);
        ok(&station, &[back, &id]);
        assert_eq!(on_gpus(&station, raw.pid()), held);
        assert_eq!(raw.ask("sum 0"), sum);
    }
    // A move whose second half is refused ends where it began.
    fault(&station, Some((Checkpoint, CheckpointHow::Refused)), None);
    refused(&station, &["move", &id, "--gpu", "1"]);
    fault(&station, None, None);
    assert_eq!(claim(&station, raw.pid()).gpus[0].gpu, 0);
    // The driver has no room there: an uncounted program has just taken it.
    let mut stranger =
        station.client_environment(std::process::Command::new(support::example("raw_client")));
    stranger.env("CUDA_VISIBLE_DEVICES", "1");
    let mut stranger = Raw::start(stranger);
    board(&station)
        .set_checkpoint_rate(Duration::from_millis(5), 1 << 42)
        .expect("set");
    fault(&station, Some((Restore, CheckpointHow::Waits)), None);
    let mut moving = start(&station, &["move", "-q", &id, "--gpu", "1"]);
    met(&station);
    let free = stranger.info().0;
    assert_eq!(
        stranger.ask(&format!("alloc {}", free - (64 << 20))),
        "ok 0"
    );
    fault(&station, None, None);
    assert_eq!(moving.wait().expect("ends").code(), Some(75));
    assert_eq!(claim(&station, raw.pid()).gpus[0].gpu, 0);
    assert_eq!(on_gpus(&station, raw.pid()), held);
    assert_eq!(raw.ask("sum 0"), sum, "it is back where it was");
    assert!(log(&station, &id).contains("could not be moved"));
}

/// Each step takes longer than the limit, and then fails or works.
fn late(how: CheckpointHow, driver: &str) {
    use CheckpointStep::{Checkpoint, Lock, Restore, Unlock};
    let station = station_that("", |o| {
        o.gpus = vec!["rtx4090".to_owned(); 2];
        o.driver = Some(driver.to_owned());
    });
    let (mut raw, sum) = holder(&station, &ON_GPU_0);
    let id = claim(&station, raw.pid()).id;
    let held = on_gpus(&station, raw.pid());
    for step in [Lock, Checkpoint, Restore, Unlock] {
        let leaves = matches!(step, Lock | Checkpoint);
        if !leaves {
            ok(&station, &["offload", &id]);
        }
        let before = engines(&station);
        assert_eq!(before.len(), 1, "{before:?}");
        fault(&station, Some((step, how)), None);
        let mut asking = start(
            &station,
            &[if leaves { "offload" } else { "restore" }, "-q", &id],
        );
        met(&station);
        // The engine that hangs is ended, and the owner notified, before anything else changes.
        until("the step is given up", SOON, || {
            engines(&station).iter().all(|e| !before.contains(e))
        });
        until("it is told", SOON, || {
            log(&station, &id).contains("tries again")
        });
        assert!(asking.try_wait().expect("waited").is_none(), "it is open");
        fault(&station, None, None);
        let code = asking.wait().expect("ends").code();
        match step {
            // Once all are restored, a pending unlock is no reason to give up.
            Unlock => assert_eq!(code, Some(0)),
            _ => assert_eq!(code, Some(75), "{step:?}"),
        }
        let gave_up = format!("cuCheckpointProcess{step:?} on process {}", raw.pid());
        let told = log(&station, &id);
        let mut told = told.lines().filter(|l| l.contains("did not end within"));
        assert!(told.any(|l| l.contains(&gave_up)), "{step:?}");
        if step == Restore {
            settles(&station, raw.pid(), Some("offloaded"));
            assert_eq!(on_gpus(&station, raw.pid()), 0, "it has not come back late");
            ok(&station, &["restore", &id]);
        }
        settles(&station, raw.pid(), None);
        assert_eq!(on_gpus(&station, raw.pid()), held, "{step:?}");
        assert_eq!(raw.ask("sum 0"), sum, "{step:?}");
    }
}

#[test]
fn every_step_that_hangs_is_given_up_and_undone_once_it_ends() {
    late(CheckpointHow::Hangs, "580.95.05");
}

#[test]
fn every_step_that_is_done_too_late_is_undone() {
    late(CheckpointHow::Waits, "580.95.05");
}

/// Newer drivers report a step that is under way, and accept no other until it has ended.
#[test]
fn with_a_driver_that_tells_the_states_in_between_late_steps_are_undone_as_well() {
    for how in [CheckpointHow::Hangs, CheckpointHow::Waits] {
        late(how, "615.71.09");
    }
}

#[test]
fn a_process_that_the_driver_loses_is_told_and_keeps_nobody_from_coming_back() {
    use CheckpointStep::{Checkpoint, Lock, Restore, Unlock};
    let station = station_of(2, "");
    for step in [Lock, Checkpoint, Restore, Unlock] {
        let (mut first, sum) = holder(&station, &ON_GPU_0);
        let id = claim(&station, first.pid()).id;
        let mut second = Raw::join(&station, &id);
        let _ = fill(&mut second, 0);
        ready(&station, first.pid());
        let held = on_gpus(&station, first.pid());
        let leaves = matches!(step, Lock | Checkpoint);
        if !leaves {
            ok(&station, &["offload", &id]);
        }
        let pid = second.pid();
        fault(&station, Some((step, CheckpointHow::Fails)), Some(pid));
        if leaves {
            let why = refused(&station, &["offload", &id]);
            has_all(&why, &[&format!("the driver has lost process {pid}")]);
        } else {
            ok(&station, &["restore", &id]);
        }
        fault(&station, None, None);
        settles(&station, first.pid(), None);
        assert_eq!(on_gpus(&station, first.pid()), held, "{step:?}");
        assert_eq!(first.ask("sum 0"), sum, "{step:?}: the other goes on");
        assert!(second.ask("sum 0").starts_with("error"), "it is lost");
        let told = log(&station, &id);
        has_all(&told, &[&format!("a checkpoint of process {pid} failed")]);
        has_all(&told, &[&format!("failed in cuCheckpointProcess{step:?}")]);
        // Until then the claim stays where it is, and reports that before any request.
        let why = claim(&station, first.pid()).place.levers.not_detachable;
        assert!(
            why.expect("told")
                .contains(&format!("checkpoint of process {pid} failed"))
        );
        second.kill();
        ready(&station, first.pid());
        ok(&station, &["offload", &id]);
        assert_eq!(first.ask("sum 0"), sum);
        assert_eq!(first.finish(), Some(0));
        all_ended(&station);
    }
}

/// Processes with a common communicator: while one is locked every call of the other hangs, and the lock that hung
/// completes late, once the first runs again. In the end all run as before, and it is not tried again.
#[test]
fn processes_that_wait_for_each_other_are_given_up_and_all_run_on() {
    let station = station_of(2, "");
    let (mut first, sum) = holder(&station, &ON_GPU_0);
    let id = claim(&station, first.pid()).id;
    let mut others = [Raw::join(&station, &id), Raw::join(&station, &id)];
    let sums = others.each_mut().map(|other| fill(other, 0));
    ready(&station, first.pid());
    let held = on_gpus(&station, first.pid());
    let hang = (CheckpointStep::Lock, CheckpointHow::WaitsForPeers);
    fault(&station, Some(hang), None);
    let begun = Instant::now();
    let why = refused(&station, &["offload", &id]);
    let took = begun.elapsed();
    println!("given up after {took:?}: {why}");
    assert!(took < Duration::from_secs(45), "{took:?}");
    has_all(&why, &["did not end within"]);
    assert_eq!(on_gpus(&station, first.pid()), held, "nothing has moved");
    assert_eq!(first.ask("sum 0"), sum, "it runs");
    for (other, sum) in others.iter_mut().zip(&sums) {
        assert_eq!(&other.ask("sum 0"), sum, "and so do the others");
    }
    assert_eq!(word(&station, first.pid()), None);
    assert!(log(&station, &id).contains("could not be offloaded"));
    let unable = claim(&station, first.pid()).place.levers.not_detachable;
    let unable = unable.expect("known from now on");
    has_all(&unable, &["while another process of the claim is paused"]);
    fault(&station, None, None);
    // A person may try, and if that works the mark is removed.
    ok(&station, &["offload", &id]);
    assert_eq!(on_gpus(&station, first.pid()), 0);
    ok(&station, &["restore", &id]);
    ready(&station, first.pid());
    assert_eq!(first.ask("sum 0"), sum);
}

#[test]
fn an_engine_that_is_killed_in_the_middle_of_a_step_is_replaced_and_the_step_done() {
    use CheckpointStep::{Checkpoint, Lock, Restore, Unlock};
    let station = station_of(2, "");
    let (mut raw, sum) = holder(&station, &ON_GPU_0);
    let id = claim(&station, raw.pid()).id;
    let held = on_gpus(&station, raw.pid());
    for step in [Lock, Checkpoint, Restore, Unlock] {
        let leaves = matches!(step, Lock | Checkpoint);
        if !leaves {
            ok(&station, &["offload", &id]);
        }
        fault(&station, Some((step, CheckpointHow::Waits)), None);
        let mut asking = start(
            &station,
            &[if leaves { "offload" } else { "restore" }, "-q", &id],
        );
        met(&station);
        for engine in engines(&station) {
            kill(Pid::from_raw(engine), Signal::SIGKILL).expect("killed");
        }
        fault(&station, None, None);
        assert_eq!(asking.wait().expect("ends").code(), Some(0), "{step:?}");
        if leaves {
            assert_eq!(on_gpus(&station, raw.pid()), 0, "{step:?}");
            ok(&station, &["restore", &id]);
        }
        assert_eq!(on_gpus(&station, raw.pid()), held, "{step:?}");
        assert_eq!(raw.ask("sum 0"), sum, "{step:?}");
    }
}

#[test]
fn the_driver_is_initialised_once_however_many_levers_are_pulled() {
    let station = station_of(2, "");
    let (mut raw, sum) = holder(&station, &ON_GPU_0);
    let id = claim(&station, raw.pid()).id;
    let inits = || board(&station).snapshot().inits;
    let before = (inits(), engines(&station));
    assert_eq!(before.1.len(), 1);
    for gpu in ["1", "0", "1"] {
        ok(&station, &["offload", &id]);
        ok(&station, &["restore", &id]);
        ok(&station, &["move", &id, "--gpu", gpu]);
        assert_eq!(raw.ask("sum 0"), sum);
    }
    assert_eq!((inits(), engines(&station)), before, "nobody called cuInit");
    // A dead one is replaced, by one.
    kill(Pid::from_raw(before.1[0]), Signal::SIGKILL).expect("killed");
    ok(&station, &["offload", &id]);
    ok(&station, &["restore", &id]);
    assert_eq!(inits(), before.0 + 1);
    let after = engines(&station);
    assert!(after.len() == 1 && after != before.1, "{after:?}");
}

/// A kernel that takes a minute: a thread that waits for it is in the driver.
fn slow_kernels(station: &Station) {
    let costs = station.sim_dir().join("costs");
    std::fs::write(costs, "add_one 60s\n").expect("costs are written");
}

#[test]
fn a_thread_that_is_stuck_in_the_driver_keeps_its_claim_where_it_is() {
    let station = station_of(2, "");
    slow_kernels(&station);
    let (mut raw, _) = holder(&station, &ON_GPU_0);
    let id = claim(&station, raw.pid()).id;
    let mut other = Raw::join(&station, &id);
    let sum = fill(&mut other, 0);
    raw.tell("launch 1");
    until("the kernel runs", SOON, || {
        (claim(&station, raw.pid()).launches? > 0).then_some(())
    });
    let held = on_gpus(&station, raw.pid());
    let suspends = support::is_root("suspend");
    let levers: [&[&str]; 3] = [
        &["offload", &id],
        &["move", &id, "--gpu", "1"],
        &["suspend", &id],
    ];
    for words in levers.into_iter().filter(|l| suspends || l[0] != "suspend") {
        let why = refused(&station, words);
        let process = format!("process {}", raw.pid());
        has_all(&why, &["did not end within", &process]);
        assert_eq!(on_gpus(&station, raw.pid()), held);
        assert_eq!(word(&station, raw.pid()), None, "it runs on");
        assert_eq!(other.ask("sum 0"), sum, "and so does the other process");
        assert!(log(&station, &id).contains(&process));
    }
}

#[test]
fn work_that_does_not_end_is_given_up_by_the_locks_own_time_out() {
    let station = station_of(2, "");
    slow_kernels(&station);
    let (mut raw, _) = holder(&station, &ON_GPU_0);
    let (pid, id) = (raw.pid(), claim(&station, raw.pid()).id);
    // No thread is in the driver: the GPU is at work.
    assert_eq!(raw.ask("start 1"), "ok");
    let held = on_gpus(&station, pid);
    let before = engines(&station);
    let why = refused(&station, &["offload", &id]);
    let wanted = format!("work of process {pid} on the GPU did not end within 3 s");
    has_all(&why, &[&wanted]);
    assert!(log(&station, &id).contains(&wanted));
    assert_eq!(engines(&station), before, "the driver gave it up by itself");
    assert_eq!((on_gpus(&station, pid), word(&station, pid)), (held, None));
    assert_eq!(raw.ask(&format!("alloc {GIB}")), "ok 1", "calls go through");
}

/// Marks a thread of the process as inside a call, as it would itself, or takes that back.
fn mark(pid: u32, entry: u32) {
    let dir = format!("/proc/{pid}/fd");
    let maps = format!("/proc/{pid}/map_files");
    let at = std::mem::offset_of!(UsagePage, marks);
    let mut marked = 0;
    let all = [dir, maps].map(|d| std::fs::read_dir(d).ok());
    let all = all.into_iter().flatten().flatten().flatten();
    for file in all {
        let target = std::fs::read_link(file.path()).unwrap_or_default();
        if !target.to_string_lossy().contains("memfd:gshare") || marked > 0 {
            continue;
        }
        let open = std::fs::File::options().write(true).open(file.path());
        let Ok(open) = open else { continue };
        if open
            .metadata()
            .is_ok_and(|m| m.len() == size_of::<UsagePage>() as u64)
        {
            // The last place but one: no thread of this program has it.
            let place = (at + 126 * 64) as u64;
            open.write_all_at(&entry.to_ne_bytes(), place)
                .expect("written");
            marked += 1;
        }
    }
    assert_eq!(marked, 1, "the page of the claim's use");
}

#[test]
fn a_thread_found_in_the_driver_after_the_lock_means_that_all_run_again_at_once() {
    support::root!("a_thread_found_in_the_driver_after_the_lock");
    let station = station_of(2, "");
    let (mut raw, sum) = holder(&station, &ON_GPU_0);
    let id = claim(&station, raw.pid()).id;
    let held = on_gpus(&station, raw.pid());
    fault(
        &station,
        Some((CheckpointStep::Lock, CheckpointHow::Waits)),
        None,
    );
    let mut asking = start(&station, &["offload", "-q", &id]);
    // All calls were out when the lock was requested; now one is in the driver.
    met(&station);
    mark(raw.pid(), 7);
    fault(&station, None, None);
    assert_eq!(asking.wait().expect("ends").code(), Some(75));
    mark(raw.pid(), 0);
    let told = log(&station, &id);
    has_all(&told, &["is still in a driver call"]);
    assert_eq!(on_gpus(&station, raw.pid()), held, "nothing has moved");
    assert_eq!(raw.ask("sum 0"), sum, "it runs");
    ok(&station, &["offload", &id]);
    assert_eq!(
        on_gpus(&station, raw.pid()),
        0,
        "and can be offloaded later"
    );
    assert_eq!(raw.ask("sum 0"), sum);
}

#[test]
fn too_little_host_memory_is_found_before_anything_is_done() {
    let station = station_that("", |o| {
        o.config = "[detach]\nhost-reserve = \"100000 GiB\"\n".to_owned();
    });
    let (mut raw, sum) = holder(&station, &ON_GPU_0);
    let id = claim(&station, raw.pid()).id;
    let held = on_gpus(&station, raw.pid());
    for words in [&["offload", &id][..], &["move", &id, "--gpu", "1"]] {
        let why = refused(&station, words);
        has_all(&why, &["the host has", "GiB"]);
        assert_eq!(on_gpus(&station, raw.pid()), held);
        assert_eq!(raw.ask("sum 0"), sum);
    }
}

#[test]
fn a_process_that_ends_while_its_memory_is_on_the_way_frees_its_place() {
    let station = station_of(2, "");
    for (lever, step) in [
        ("offload", CheckpointStep::Checkpoint),
        ("restore", CheckpointStep::Restore),
    ] {
        let (mut raw, _) = holder(&station, &["-q", "-g", "1", "--gpu-ids", "0", "--nonblock"]);
        let (id, pid) = (claim(&station, raw.pid()).id, raw.pid());
        if lever == "restore" {
            ok(&station, &["offload", &id]);
        }
        fault(&station, Some((step, CheckpointHow::Waits)), None);
        let mut asking = start(&station, &[lever, "-q", &id]);
        met(&station);
        raw.kill();
        let begun = Instant::now();
        fault(&station, None, None);
        let _ = asking.wait().expect("ends");
        all_ended(&station);
        assert!(begun.elapsed() < SOON);
        assert_eq!(on_gpus(&station, pid), 0);
    }
    let (mut next, sum) = holder(&station, &["-q", "-g", "1", "--gpu-ids", "0", "--nonblock"]);
    assert_eq!(next.ask("sum 0"), sum, "its place is free");
    assert_eq!(next.ask(&format!("alloc {}", 20 * GIB)), "ok 1");
}

// The service is killed between every two steps of every lever, on a claim with two processes: it finds the claim
// again, whole on one side, its contents equal.

/// Two processes of one claim on GPU 0, and what they have.
struct Two {
    station: Station,
    raws: [Raw; 2],
    sums: [String; 2],
    held: [u64; 2],
    id: String,
}

impl Two {
    fn new() -> Self {
        let station = station_of(2, "");
        let mut first = Raw::claim(&station, &["-q", "-g", "0.5", "--gpu-ids", "0"]);
        let id = claim(&station, first.pid()).id;
        let mut second = Raw::join(&station, &id);
        let sums = [fill(&mut first, 0), fill(&mut second, 0)];
        ready(&station, first.pid());
        let held = [&first, &second].map(|raw| by_gpu(&station, raw.pid())[0]);
        Self {
            station,
            raws: [first, second],
            sums,
            held,
            id,
        }
    }

    fn pid(&self) -> u32 {
        self.raws[0].pid()
    }

    /// Brings the claim to where a lever starts: on GPU 0, or in the host.
    fn begin(&self, lever: &str) {
        ok(&self.station, &["restore", "-q", &self.id]);
        if claim(&self.station, self.pid()).gpus[0].gpu != 0 {
            ok(&self.station, &["move", "-q", &self.id, "--gpu", "0"]);
        }
        match lever {
            "restore" => drop(ok(&self.station, &["offload", "-q", &self.id])),
            "resume" => drop(ok(&self.station, &["suspend", "-q", &self.id])),
            _ => {}
        }
    }

    /// Runs the lever while the service dies at this step, and restarts it.
    fn dies_at(&mut self, words: &[&str], step: &str) {
        let what = format!("{} dies at {step}", words[0]);
        self.begin(words[0]);
        self.station.stop_service(Signal::SIGTERM).expect("stopped");
        let started = self.station.start_service_with(&["--die-at", step]);
        started.expect("starts");
        if !matches!(words[0], "restore" | "resume") {
            ready(&self.station, self.pid());
        }
        let mut command = self.station.command();
        command.arg(words[0]).arg(&self.id).args(&words[1..]);
        command.stdout(Stdio::null()).stderr(Stdio::null());
        let mut asking = command.spawn().expect("runs");
        until(&what, SOON, || self.station.service_ended());
        let _ = asking.kill();
        let _ = asking.wait();
        let started = self.station.start_service();
        started.unwrap_or_else(|e| panic!("{what}: {e:#}"));
        // At its destination, or where it was.
        let (there, gpu) = match words[0] {
            "offload" => (Some("offloaded"), 0),
            "suspend" => (Some("suspended"), 0),
            "move" => (None, 1),
            _ => (None, 0),
        };
        until(&format!("{what}: found again"), SOON, || {
            word(&self.station, self.pid()).as_deref() == there
        });
        for (raw, held) in self.raws.iter().zip(self.held) {
            let mut wanted = [0; 2];
            wanted[gpu] = if there.is_some() { 0 } else { held };
            let seen = by_gpu(&self.station, raw.pid());
            assert_eq!(seen, wanted, "{what}: on one side");
        }
        if there.is_none() {
            assert_eq!(claim(&self.station, self.pid()).gpus[0].gpu as usize, gpu);
        }
        if there == Some("suspended") {
            ok(&self.station, &["resume", "-q", &self.id]);
        }
        for (raw, sum) in self.raws.iter_mut().zip(&self.sums) {
            assert_eq!(raw.ask("sum 0"), *sum, "{what}");
        }
    }

    fn dies_at_each(mut self, words: &[&str], but: &[&str]) {
        for step in gshare::daemon::LEVER_STEPS {
            if !but.contains(&step) {
                self.dies_at(words, step);
            }
        }
        for raw in self.raws {
            assert_eq!(raw.finish(), Some(0));
        }
    }
}

/// Steps that only occur on the way to the GPU.
const BACK: [&str; 2] = ["lever-back", "lever-unlocked"];

/// Steps that only occur on the way to the host.
const OUT: [&str; 4] = ["lever-drained", "lever-locked", "lever-out", "lever-parked"];

#[test]
fn killed_between_any_two_steps_of_detach_the_service_finds_the_claim_again() {
    Two::new().dies_at_each(&["offload"], &BACK);
}

#[test]
fn killed_between_any_two_steps_of_attach_the_service_finds_the_claim_again() {
    Two::new().dies_at_each(&["restore"], &OUT);
}

#[test]
fn killed_between_any_two_steps_of_suspend_the_service_finds_the_claim_again() {
    if support::is_root("killed_between_any_two_steps_of_suspend") {
        Two::new().dies_at_each(&["suspend"], &BACK);
    }
}

#[test]
fn killed_between_any_two_steps_of_resume_the_service_finds_the_claim_again() {
    if support::is_root("killed_between_any_two_steps_of_resume") {
        Two::new().dies_at_each(&["resume"], &OUT);
    }
}

#[test]
fn killed_between_any_two_steps_of_move_the_service_finds_the_claim_again() {
    Two::new().dies_at_each(&["move", "--gpu", "1"], &["lever-parked"]);
}

/// From CUDA 13.4 on the driver reports a step that is under way. A service that finds such a process waits for the
/// end of the step, whoever began it.
#[test]
fn a_process_found_in_the_middle_of_a_step_is_waited_for() {
    let mut station = station_that("", |o| {
        o.gpus = vec!["rtx4090".to_owned(); 2];
        o.driver = Some("615.71.09".to_owned());
    });
    let libcuda = station.libraries().join("libcuda.so.1");
    let command = [
        support::GSHARE.into(),
        "__checkpoint-engine".into(),
        libcuda.into_os_string(),
    ];
    let onlooker = Engine::new(command);
    let (mut raw, sum) = holder(&station, &["-q", "-g", "0.5", "--gpu-ids", "0"]);
    let (pid, id) = (raw.pid(), claim(&station, raw.pid()).id);
    let held = on_gpus(&station, pid);
    let state = || {
        let state = onlooker.state(pid.cast_signed(), Duration::from_secs(10));
        state.expect("told").expect("it uses CUDA")
    };
    assert_eq!(state(), ProcessState::Running);
    for (words, step, ends) in [
        (
            vec!["offload", &id],
            CheckpointStep::Checkpoint,
            Some("offloaded"),
        ),
        (vec!["restore", &id], CheckpointStep::Restore, None),
        (
            vec!["move", &id, "--gpu", "1"],
            CheckpointStep::Checkpoint,
            None,
        ),
        (
            vec!["move", &id, "--gpu", "0"],
            CheckpointStep::Restore,
            None,
        ),
    ] {
        fault(&station, Some((step, CheckpointHow::Waits)), None);
        let mut asking = station.command();
        asking
            .args(&words)
            .stdout(Stdio::null())
            .stderr(Stdio::null());
        let mut asking = asking.spawn().expect("runs");
        met(&station);
        assert_eq!(state(), ProcessState::Busy, "{words:?}");
        station.stop_service(Signal::SIGKILL).expect("killed");
        let _ = asking.kill();
        let _ = asking.wait();
        station.start_service().expect("starts again");
        assert_eq!(
            state(),
            ProcessState::Busy,
            "{words:?}: nobody else ended it"
        );
        let before = claim(&station, pid).place.word;
        assert!(before.is_some(), "{words:?}: it is on its way still");
        fault(&station, None, None);
        settles(&station, pid, ends);
        let there = if ends.is_some() { 0 } else { held };
        assert_eq!(on_gpus(&station, pid), there, "{words:?}: on one side");
        if let ["move", .., gpu] = words.as_slice() {
            let gpu: u32 = gpu.parse().expect("a number");
            assert_eq!(claim(&station, pid).gpus[0].gpu, gpu, "{words:?}");
        }
        if ends.is_none() {
            assert_eq!(raw.ask("sum 0"), sum, "{words:?}");
        }
    }
    assert_eq!(raw.finish(), Some(0));
}
