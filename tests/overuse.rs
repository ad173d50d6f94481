//! A member that goes around the proxy is seen by what it uses, within two looks at the driver, and dealt with as the
//! policy says; an honest one is not, whatever its modules take.

use crate::support;

use std::fs::Permissions;
use std::os::unix::fs::PermissionsExt;
use std::os::unix::process::ExitStatusExt;
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::Duration;

use gshare::station::Station;
use gshare_proto::ClaimView;
use support::terminal::Terminal;
use support::users::{Users, as_user};
use support::{
    Raw, accused_at, claim_of, copy_program, example, looks, next_look, root, station_with, until,
};

const MIB: u64 = 1 << 20;
/// Two looks at the driver in these tests, and much for a busy machine.
const SOON: Duration = Duration::from_secs(5);

fn station(policy: &str) -> Station {
    station_with(|o| {
        o.tick = "0.1s".to_owned();
        o.costs = "add_one 2ms\n".to_owned();
        o.config = format!("[claims]\nleftover-grace = \"1s\"\n[policy]\n{policy}");
    })
}

/// `gshare claim FLAGS -- env LD_LIBRARY_PATH=the driver's own directory PROGRAM`: a member without the proxy.
fn around(station: &Station, flags: &[&str]) -> Command {
    let mut command = station.command();
    command
        .args(["claim", "-q"])
        .args(flags)
        .args(["--", "env"]);
    command.arg(format!(
        "LD_LIBRARY_PATH={}",
        station.sim_dir().join("lib").display()
    ));
    command.arg(example("raw_client"));
    command
}

fn accused(station: &Station, pid: u32) -> Option<ClaimView> {
    let snapshot = station.snapshot().ok()?;
    let claim = claim_of(&snapshot, pid)?;
    claim.overuse.is_some().then(|| claim.clone())
}

#[test]
fn memory_that_nobody_counts_freezes_the_claim_and_warns_its_owner() {
    let station = station("");
    let mut bypass = Raw::start(around(&station, &["-g", "0.5", "--gpu-ids", "0"]));
    let id = claim_of(&station.snapshot().expect("served"), bypass.pid())
        .expect("listed")
        .id
        .clone();
    let mut member = station.command();
    member
        .args(["join", "-q", &id, "--"])
        .arg(example("raw_client"));
    let mut honest = Raw::start(member);
    assert_eq!(honest.ask(&format!("alloc {}", 256 * MIB)), "ok 0");

    // A context and half a gibibyte could be modules: nothing is held against anybody.
    assert_eq!(bypass.ask(&format!("alloc {}", 512 * MIB)), "ok 0");
    let clean = |looks: usize| {
        let mut seen = 0;
        until("some looks pass", SOON, || {
            let snapshot = station.snapshot().ok()?;
            let claim = claim_of(&snapshot, bypass.pid())?;
            assert_eq!(claim.overuse, None);
            seen += 1;
            (seen > looks).then_some(())
        });
    };
    clean(20);
    let before = std::time::Instant::now();
    assert_eq!(bypass.ask(&format!("alloc {}", 3072 * MIB)), "ok 1");
    let claim = until("it is accused", SOON, || accused(&station, bypass.pid()));
    println!("accused after {:?}, looks every 100 ms", before.elapsed());
    let why = claim.overuse.expect("accused");
    assert!(why.contains("than counted by gshare"), "{why}");
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
    // The claim grows no more, though its ledger is far from its cap; and what it took is nobody's to claim.
    until("growth is refused", SOON, || {
        (honest.ask(&format!("alloc {}", 64 * MIB)) == "error 2 CUDA_ERROR_OUT_OF_MEMORY")
            .then_some(())
    });
    // Within the claim's own request there is room for it: nobody else loses anything.
    let allocatable = snapshot.gpus[0].mem_allocatable.expect("known");
    assert!(claim.gpus[0].mem_request <= allocatable);

    // It gives the memory back: growth is allowed again.
    assert_eq!(bypass.ask("free 1"), "ok");
    until("it is cured", SOON, || {
        let snapshot = station.snapshot().ok()?;
        claim_of(&snapshot, bypass.pid())?
            .overuse
            .is_none()
            .then_some(())
    });
    assert_eq!(honest.ask(&format!("alloc {}", 64 * MIB)), "ok 1");
    assert_eq!(bypass.finish(), Some(0), "a warning ends nobody");
}

/// The loader gives such a program no library path (`AT_SECURE`): it has the driver without the library, and is dealt with as any
/// other that goes around it. Where it knows the driver by its name only, it finds none.
#[test]
fn a_program_with_the_set_user_id_bit_has_no_library_and_is_seen_by_what_it_uses() {
    if !root("a_program_with_the_set_user_id_bit_has_no_library_and_is_seen_by_what_it_uses") {
        return;
    }
    let (users, station) = (Users::some(1), station(""));
    let program = station.dir().join("bin/set-root");
    copy_program(example("raw_client"), &program);
    std::fs::set_permissions(&program, Permissions::from_mode(0o4755)).expect("set");
    let driver = station.sim_dir().join("lib/libcuda.so.1");
    let claim = |driver: &[&Path]| {
        let mut command = station.command();
        command.args(["claim", "-q", "-g", "0.5", "--gpu-ids", "0", "--"]);
        command.arg(&program).args(driver);
        as_user(command, users.uid(0))
    };
    let mut by_name = claim(&[]);
    let output = by_name.stdin(Stdio::null()).output().expect("runs");
    let said = String::from_utf8_lossy(&output.stdout);
    assert!(
        said.starts_with("error -1 cannot load libcuda"),
        "{output:?}"
    );
    let mut around = Raw::start(claim(&[&driver]));
    let snapshot = station.snapshot().expect("served");
    let view = claim_of(&snapshot, around.pid()).expect("listed");
    assert_eq!(view.uid, users.uid(0));
    assert!(view.members.contains(&around.pid()), "{view:?}");
    assert_eq!(around.ask(&format!("alloc {}", 3072 * MIB)), "ok 0");
    let claim = until("it is accused", SOON, || accused(&station, around.pid()));
    let why = claim.overuse.expect("accused");
    println!("{}: {why}", claim.state_text);
    assert!(why.contains("than counted by gshare"), "{why}");
    assert!(why.contains(&format!("pid {}", around.pid())), "{why}");
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
    let ps = station.command().arg("ps").output().expect("it runs");
    let ps = String::from_utf8_lossy(&ps.stdout).into_owned();
    assert!(ps.contains("the driver itself uses 640 MiB"), "{ps}");
    // It has the rest of its limit, and no more.
    let left = part.mem_limit - part.mem_charge.expect("known") - 640 * MIB;
    let more = format!("alloc {}", left + 2 * MIB);
    assert_eq!(member.ask(&more), "error 2 CUDA_ERROR_OUT_OF_MEMORY");
    assert_eq!(
        member.ask(&format!("alloc {}", left / (2 * MIB) * 2 * MIB)),
        "ok 1"
    );
    assert_eq!(member.ask("count"), "ok 1");
}

/// In ticks, whatever the clock says: the first look that can see it is a glance, the second counts.
#[test]
fn what_goes_around_the_proxy_counts_at_the_second_look() {
    let station = station_with(|o| {
        o.tick = "1s".to_owned();
        o.costs = "add_one 2ms\n".to_owned();
    });
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
        (free(&station) == before - (used - claim.gpus[0].mem_request)).then_some(())
    });
}

#[test]
fn by_policy_the_offender_is_ended_after_the_grace_time_and_his_siblings_live() {
    let station = station("overuse = \"stop\"\noveruse-grace = \"1s\"\n");
    let mut honest = Raw::claim(&station, &["-q", "-g", "0.5", "--gpu-ids", "1"]);
    let id = claim_of(&station.snapshot().expect("served"), honest.pid())
        .expect("listed")
        .id
        .clone();
    let mut member = station.command();
    member.args(["join", "-q", &id, "--", "env"]);
    member.arg(format!(
        "LD_LIBRARY_PATH={}",
        station.sim_dir().join("lib").display()
    ));
    member.arg(example("raw_client"));
    let mut bypass = Raw::start(member);
    let started = std::time::Instant::now();
    assert_eq!(bypass.ask(&format!("alloc {}", 4096 * MIB)), "ok 0");
    let status = until("it is ended", SOON, || {
        bypass.child.try_wait().ok().flatten()
    });
    assert_eq!(status.signal(), Some(libc::SIGTERM));
    assert!(
        started.elapsed() >= Duration::from_secs(1),
        "not before the grace time"
    );
    until("the claim is cured", SOON, || {
        let snapshot = station.snapshot().ok()?;
        claim_of(&snapshot, honest.pid())?
            .overuse
            .is_none()
            .then_some(())
    });
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
    assert!(
        said.contains("`enabled = false` in [reclaim] overrides the stage"),
        "{said}"
    );
    assert!(!said.contains("overuse"), "{said}");
    let said = stage("2");
    assert!(
        said.contains("the stage overrides `overuse = \"stop\"`"),
        "{said}"
    );
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

#[test]
fn gpu_time_without_a_counted_launch_is_seen() {
    let station = station("");
    let mut bypass = Raw::start(around(&station, &["-g", "0.25", "--gpu-ids", "0"]));
    let pid = bypass.pid();
    // Beside it one that launches as much, counted.
    let mut honest = Raw::claim(&station, &["-q", "-g", "0.25", "--gpu-ids", "1"]);
    let stop = std::sync::atomic::AtomicBool::new(false);
    std::thread::scope(|scope| {
        for client in [&mut bypass, &mut honest] {
            let stop = &stop;
            scope.spawn(move || {
                while !stop.load(std::sync::atomic::Ordering::Relaxed) {
                    assert!(client.ask("launch 20").starts_with("ok"));
                }
            });
        }
        let seen = until("it is accused", Duration::from_secs(20), || {
            accused(&station, pid).or_else(|| {
                let snapshot = station.snapshot().ok()?;
                let busy = claim_of(&snapshot, pid)?.gpus[0].time_busy?;
                println!("{} % busy", busy.value);
                None
            })
        });
        let why = seen.overuse.expect("accused");
        assert!(why.contains("than counted by gshare"), "{why}");
        stop.store(true, std::sync::atomic::Ordering::Relaxed);
    });
    assert_eq!(accused(&station, honest.pid()), None);
}

/// Members that do launch through the proxy are compared too: by the time that it counted.
#[test]
fn gpu_time_beyond_what_a_member_counted_is_seen_at_the_second_look() {
    let station = station_with(|o| {
        o.tick = "1s".to_owned();
        o.costs = "add_one 2ms\n".to_owned();
    });
    let driver = station.sim_dir().join("lib/libcuda.so.1");
    let start = |gpu: &str| {
        let mut command = station.command();
        command.args(["claim", "-q", "-g", "0.25", "--gpu-ids", gpu, "--"]);
        command
            .arg(example("raw_client"))
            .arg("libcuda.so.1")
            .arg(&driver);
        Raw::start(command)
    };
    // One alone and two side by side that launch as they should, and one that does so now and then only.
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
    assert!(why.contains("time than counted by gshare"), "{why}");
    assert_eq!(sly.line(), "ok 2000");
    // It counts again: cured.
    until("it is cured", Duration::from_secs(20), || {
        let snapshot = station.snapshot().ok()?;
        for raw in &honest {
            let claim = claim_of(&snapshot, raw.pid())?;
            assert_eq!(claim.overuse, None, "an honest one, alone or beside others");
        }
        claim_of(&snapshot, sly.pid())?
            .overuse
            .is_none()
            .then_some(())
    });
    for raw in &mut honest {
        let busy = claim_of(&station.snapshot().expect("served"), raw.pid()).cloned();
        let busy = busy.and_then(|c| c.gpus[0].time_busy).map(|f| f.value);
        assert!(
            busy.is_some_and(|b| b > 20.0),
            "{busy:?}: it proves nothing"
        );
        raw.kill();
    }
}

fn ps(station: &Station) -> String {
    let output = station.command().arg("ps").output().expect("it runs");
    String::from_utf8_lossy(&output.stdout).into_owned()
}

/// As Ollama does: it loads the driver's own library by its path, and has none of gshare's.
#[test]
fn programs_that_load_the_drivers_own_library_are_named() {
    let station = station("");
    let row = doctor(&station, "memory limit (");
    assert_ne!(row["state"], "limited", "{row}");
    let honest = Raw::claim(&station, &["-q", "-g", "0.5", "--gpu-ids", "0"]);
    let past = Raw::start(around(&station, &["-g", "0.5", "--gpu-ids", "0"]));
    let named = format!("pid {} uses GPU 0 without gshare's library", past.pid());
    until("ps names it", SOON, || {
        ps(&station).contains(&named).then_some(())
    });
    let row = doctor(&station, "memory limit (");
    let detail = row["detail"].as_str().expect("told");
    assert!(detail.contains(&past.pid().to_string()), "{row}");
    assert!(!detail.contains(&honest.pid().to_string()), "{row}");
    assert_eq!(row["state"], "limited", "{row}");
    let snapshot = station.snapshot().expect("served");
    let part = |raw: &Raw| claim_of(&snapshot, raw.pid()).expect("listed").gpus[0].clone();
    assert_eq!(part(&past).past_library, [past.pid()]);
    assert!(part(&honest).past_library.is_empty());
}

/// OptiX launches past everything that counts. Here a copy of the driver has its name.
#[test]
fn where_launches_cannot_be_counted_ps_says_that_it_cannot_tell() {
    let station = station("");
    let unseen = station.sim_dir().join("lib/libnvoptix.so.1");
    std::fs::copy(station.sim_dir().join("lib/libcuda.so.1"), &unseen).expect("copied");
    let mut command = station.command();
    command.args(["claim", "-q", "-g", "0.5", "--gpu-ids", "0", "--"]);
    command
        .arg(example("raw_client"))
        .arg("libcuda.so.1")
        .arg(&unseen);
    let mut raw = Raw::start(command);
    assert_eq!(raw.ask("launch 10"), "ok 10");
    let last = looks(&station) + 20;
    raw.tell("around 3000");
    let named = format!(
        "gshare cannot count all that pid {} ran on GPU 0",
        raw.pid()
    );
    until("ps says so", SOON, || {
        ps(&station).contains(&named).then_some(())
    });
    while looks(&station) < last {
        next_look(&station);
        assert_eq!(accused(&station, raw.pid()), None);
    }
    let snapshot = station.snapshot().expect("served");
    let part = &claim_of(&snapshot, raw.pid()).expect("listed").gpus[0];
    assert_eq!(part.cannot_tell, [raw.pid()]);
    assert_eq!(raw.line(), "ok 3000");
}

/// Kernels that start kernels (dynamic parallelism). Here those outlive the events behind their parents.
#[test]
fn what_kernels_start_is_held_against_nobody() {
    let station = station_with(|o| {
        o.tick = "0.1s".to_owned();
        o.costs = "parent 1ms starts 9ms\n".to_owned();
    });
    let start = |gpu: &str, variable: &str| {
        let mut raw = Raw::claim(&station, &["-q", "-g", "0.5", "--gpu-ids", gpu]);
        raw.tell(&format!("parents 2000 {variable}"));
        raw
    };
    // What libcudadevrt has in every program that it is linked with; and one that hides how it does it.
    let mut honest = start("0", "__CNPRT_VERSION_NUMBER__");
    let mut hidden = start("1", "other");
    let named = format!(
        "gshare cannot count all that pid {} ran on GPU 0",
        honest.pid()
    );
    until("ps says so", SOON, || {
        ps(&station).contains(&named).then_some(())
    });
    let (claim, _) = accused_at(&station, hidden.pid());
    assert!(
        claim
            .overuse
            .is_some_and(|why| why.contains("time than counted by gshare"))
    );
    let last = looks(&station) + 20;
    while looks(&station) < last {
        next_look(&station);
        assert_eq!(accused(&station, honest.pid()), None);
    }
    honest.kill();
    hidden.kill();
}

/// NVML as unkind as real drivers were seen to be: the two that share a GPU are honest, alone or not.
#[test]
fn samples_that_name_one_process_accuse_nobody_honest() {
    let station = station_with(|o| {
        o.tick = "0.3s".to_owned();
        o.costs = "add_one 2ms\n".to_owned();
    });
    let board = gshare_sim_board::Board::open(&station.sim_dir().join("board")).expect("opens");
    board
        .set_fault(gshare_sim_board::Fault::NvmlSamples, true)
        .expect("set");
    let start = |gpu: &str| Raw::claim(&station, &["-q", "-g", "0.25", "--gpu-ids", gpu]);
    let mut honest = [start("1"), start("2"), start("2")];
    honest.iter_mut().for_each(|raw| raw.tell("launch 2000"));
    let last = looks(&station) + 20;
    let mut busy = 0;
    while looks(&station) < last {
        next_look(&station);
        for raw in &honest {
            let snapshot = station.snapshot().expect("served");
            let claim = claim_of(&snapshot, raw.pid()).expect("listed");
            assert_eq!(claim.overuse, None);
            busy += u32::from(claim.gpus[0].time_got.is_some_and(|f| f.value > 10.0));
        }
    }
    assert!(busy > 20, "{busy}: it proves nothing");
    honest.iter_mut().for_each(Raw::kill);
}

#[test]
fn a_gpu_that_a_member_has_open_from_before_counts_against_the_claim() {
    if !root("a_gpu_that_a_member_has_open_from_before_counts_against_the_claim") {
        return;
    }
    let station = station("unclaimed = \"observe\"\n");
    // Without cgroups a shell joins a claim with all that it has started; here the kernel moves the process.
    let mut outside = Command::new(example("raw_client"));
    outside.env("LD_LIBRARY_PATH", station.sim_dir().join("lib"));
    let mut outside = Raw::start(outside);
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
    assert!(
        why.contains("uses GPU 0, which is not in the claim"),
        "{why}"
    );
    assert_eq!(owner.ask("count"), "ok 1");
}

#[test]
fn the_warning_comes_to_the_terminal_of_the_claim() {
    if !root("the_warning_comes_to_the_terminal_of_the_claim") {
        return;
    }
    let station = station("");
    let command = around(&station, &["-g", "0.25", "--gpu-ids", "0"]);
    let mut terminal = Terminal::start(&command, 24, 200);
    terminal.shows(&["ok ready"], SOON);
    terminal.send(&format!("alloc {}\n", 4096 * MIB));
    terminal.shows(&["than counted by gshare"], SOON);
    terminal.shows(&["it gets no more memory there"], SOON);
}

#[test]
fn a_driver_with_memory_limits_of_its_own_refuses_whatever_way_was_taken() {
    if !root("a_driver_with_memory_limits_of_its_own_refuses_whatever_way_was_taken") {
        return;
    }
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
    let row = doctor(&station, "memory limits");
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
    assert_eq!(
        bypass.ask(&format!("alloc {}", free + 1)),
        "error 2 CUDA_ERROR_OUT_OF_MEMORY"
    );
    assert_eq!(bypass.ask(&format!("alloc {free}")), "ok 0");
    assert_eq!(bypass.ask("alloc 1"), "error 2 CUDA_ERROR_OUT_OF_MEMORY");
    let limits = support::board(&station).memory_limits();
    assert_eq!(limits.len(), 1);
    assert_eq!(
        (limits[0].gpu, limits[0].soft, limits[0].hard),
        (0, part.mem_request, part.mem_limit)
    );
    // Outside claims nothing is limited.
    let mut outside = Command::new(example("raw_client"));
    outside.env("LD_LIBRARY_PATH", station.sim_dir().join("lib"));
    let mut outside = Raw::start(outside);
    assert!(outside.info().1 > part.mem_limit);
    // Another size is another limit, at once.
    let id = claim_of(&snapshot, bypass.pid())
        .expect("listed")
        .id
        .clone();
    let resized = station
        .command()
        .args(["resize", &id, "-g", "0.5"])
        .output()
        .expect("runs");
    assert!(resized.status.success(), "{resized:?}");
    until("the limit has grown", SOON, || {
        (bypass.info().1 > part.mem_limit).then_some(())
    });
    assert_eq!(bypass.finish(), Some(0));
    until("the limit goes with the claim", SOON, || {
        support::board(&station)
            .memory_limits()
            .is_empty()
            .then_some(())
    });
}

#[test]
fn a_driver_without_memory_limits_is_told_as_such() {
    let station = station("");
    let row = doctor(&station, "memory limits");
    assert_eq!(row["state"], "missing", "{row}");
}

fn doctor(station: &Station, row: &str) -> serde_json::Value {
    let output = station
        .command()
        .args(["doctor", "--json"])
        .output()
        .expect("runs");
    let value: serde_json::Value = serde_json::from_slice(&output.stdout).expect("JSON");
    let rows = value["checks"].as_array().expect("rows");
    let named = |r: &&serde_json::Value| r["name"].as_str().is_some_and(|n| n.starts_with(row));
    rows.iter().find(named).expect("a row").clone()
}
