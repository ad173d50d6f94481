//! GPU memory of claims that run goes to the host and comes back: contents equal, processes alive, bytes on one side.

use crate::support;

use std::io::{BufRead, BufReader};
use std::os::unix::process::ExitStatusExt;
use std::process::{Child, Stdio};
use std::time::Duration;

use gshare::station::Station;
use support::detach::{GIB, SOON, claim, holder, ok, on_gpus, ready, run, station_that};
use support::{Raw, board, board_bytes, claim_of, until};

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
    // Its place is free: a claim of the whole GPU fits, and has to go before the other is back.
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
    assert!(line.contains("has its GPU memory back"), "{line}");
    assert_eq!(raw.finish(), Some(0));
}

#[test]
fn attach_brings_a_claim_back_without_a_call() {
    let station = station();
    let (mut raw, sum) = holder(&station, &ON_GPU_0);
    let id = claim(&station, raw.pid()).id;
    let held = on_gpus(&station, raw.pid());
    for _ in 0..3 {
        ok(&station, &["offload", &id]);
        assert_eq!(on_gpus(&station, raw.pid()), 0);
        let again = ok(&station, &["offload", &id]);
        assert!(again.contains("already"), "{again}");
        ok(&station, &["restore", &id]);
        assert_eq!(on_gpus(&station, raw.pid()), held);
    }
    assert_eq!(raw.ask("sum 0"), sum);
    let json = ok(&station, &["offload", &id, "--json"]);
    let json: serde_json::Value = serde_json::from_str(&json).expect("JSON");
    assert_eq!(json["id"], id.as_str());
    assert_eq!(raw.ask("sum 0"), sum);
}

/// One more process of a claim, which does nothing but count.
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
        until("it counts", SOON, || (self.count() > from).then_some(()));
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
        events.lines().any(|l| l == "frozen 1").then_some(())
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

#[test]
fn suspended_processes_stand_still_and_resume_where_they_stopped() {
    if !support::root("suspended_processes_stand_still_and_resume_where_they_stopped") {
        return;
    }
    let station = station();
    let (mut raw, sum) = holder(&station, &ON_GPU_0);
    let id = claim(&station, raw.pid()).id;
    let counter = Counter::join(&station, &id);
    counter.goes_on();
    ok(&station, &["suspend", &id]);
    let view = claim(&station, raw.pid());
    assert_eq!(view.place.word.as_deref(), Some("suspended"));
    assert_eq!(on_gpus(&station, raw.pid()), 0);
    raw.tell("ping");
    raw.tell("sum 0");
    // Neither its threads nor its calls go on, and no call brings it back.
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
    if !support::root("a_suspended_claim_that_is_released_runs_again_to_end") {
        return;
    }
    let station = station();
    let (mut raw, _) = holder(&station, &ON_GPU_0);
    let id = claim(&station, raw.pid()).id;
    let counter = Counter::join(&station, &id);
    counter.goes_on();
    ok(&station, &["suspend", &id]);
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
        assert!(done.contains(&format!("moved to GPU {target}")), "{done}");
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
    // Its ledger goes on there: the cap holds, and what is freed is free.
    let (free, total) = raw.info();
    assert!(
        raw.ask(&format!("alloc {}", free + 1))
            .starts_with("error 2")
    );
    assert_eq!(raw.ask(&format!("alloc {GIB}")), "ok 1");
    assert_eq!(raw.info(), (free - GIB, total));
    // It comes back to where it was sent, not to the GPU that it was claimed on.
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
    assert!(log.contains("moved to GPU 1"), "{log}");
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
    assert!(why.contains("--no-movable"), "{why}");
    let stays = format!(
        "{} cannot be moved: it was claimed with --no-movable",
        view.id
    );
    let ps = ok(&station, &["ps"]);
    assert!(ps.contains(&stays), "{ps}");
    assert_eq!(raw.ask("managed 4096"), "ok");
    let why = until("it is seen", SOON, || {
        claim(&station, raw.pid()).place.levers.not_detachable
    });
    assert!(why.contains("managed memory"), "{why}");
    let ps = ok(&station, &["ps"]);
    assert!(
        ps.contains("cannot be offloaded: it uses managed memory"),
        "{ps}"
    );
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
    assert!(
        said.contains("memory of graphics or of other drivers"),
        "{said}"
    );
    assert_eq!(other.ask("launch 1"), "ok 1", "nothing happened to it");
}

/// The library is mapped by frameworks when they are imported, long before a communicator is made; on one GPU there is
/// none to make.
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
    assert!(why.contains(&words), "{why}");
    let ps = ok(&station, &["ps"]);
    assert!(
        ps.contains(&format!("cannot be offloaded: {words}")),
        "{ps}"
    );
    assert_eq!(both.ask("launch 1"), "ok 1");
    // Without it two GPUs are no reason.
    assert_eq!(both.finish(), Some(0));
    let plain = Raw::claim(&station, &["-q", "-g", "2x0.5"]);
    ready(&station, plain.pid());
}

#[test]
fn a_claim_of_the_same_number_that_another_service_has_is_left_alone() {
    // Without cgroups a service knows its members by what they have in their environment.
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
