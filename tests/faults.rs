//! Failures around the service: a full disk, sick, lost and hanging GPUs, a second service, clients that lie or do
//! not read.

use crate::support;

use std::io::Write;
use std::os::unix::fs::PermissionsExt;
use std::os::unix::net::UnixStream;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use gshare::station::Station;
use gshare_abi::host::{LimitsFile, UsageMemfd};
use gshare_proto::{ClaimState, Grade, HealthView};
use gshare_sim_board::Health;
use nix::sys::signal::Signal;
use support::{
    MIB, Raw, SOON, all_ended, board, claim, claim_of, has_all, is_root, quick, root, station,
    tried, until, words,
};

// Failures around the service: a full disk, a lost GPU, a driver that hangs, a second service, a restart at a bad
// moment, clients that lie or do not read.

fn ended(command: &mut Command) -> (Option<i32>, String) {
    let Output { status, stderr, .. } = command.output().expect("runs");
    (status.code(), String::from_utf8_lossy(&stderr).into_owned())
}

fn claim_true(station: &Station, flags: &[&str]) -> (Option<i32>, String) {
    let mut command = station.command();
    ended(command.arg("claim").args(flags).args(["--", "true"]))
}

/// A small disk over a directory, taken away at the end.
pub(crate) struct SmallDisk(PathBuf);

impl SmallDisk {
    pub(crate) fn mount(over: &Path, mode: &str) -> Self {
        let mode = format!("size=1m,mode={mode}");
        let options = ["-t", "tmpfs", "-o", &mode, "none"];
        let status = Command::new("mount").args(options).arg(over).status();
        assert!(status.expect("mount runs").success());
        Self(over.to_owned())
    }

    pub(crate) fn fill(&self) -> PathBuf {
        let path = self.0.join("ballast");
        let mut file = std::fs::File::create(&path).expect("created");
        while file.write_all(&[1; 4096]).is_ok() {}
        path
    }
}

impl Drop for SmallDisk {
    fn drop(&mut self) {
        let _ = Command::new("umount").arg("-l").arg(&self.0).status();
    }
}

#[test]
fn a_full_disk_refuses_claims_in_words_and_keeps_none_that_ended() {
    root!("a_full_disk_refuses_claims_in_words_and_keeps_none_that_ended");
    let mut station = station();
    station.stop_service(Signal::SIGTERM).expect("stopped");
    let disk = SmallDisk::mount(&station.dir().join("state"), "0700");
    station.start_service().expect("starts on the small disk");
    let mut held = Raw::claim(&station, &["-q", "-g", "0.5", "--gpu-ids", "0"]);
    let ballast = disk.fill();

    let (code, text) = claim_true(&station, &["-g", "0.25", "--nonblock"]);
    assert_eq!(code, Some(74), "{text}");
    has_all(&text, &["disk", "hint:"]);
    let snapshot = station.snapshot().expect("served");
    assert_eq!(snapshot.claims.len(), 1, "nothing is half granted");
    assert!(claim_of(&snapshot, held.pid()).is_some());
    // Nor does one that would have to wait.
    let (code, text) = claim_true(&station, &["-g", "1", "--gpu-ids", "0", "--wait", "5s"]);
    assert_eq!(code, Some(74), "{text}");
    has_all(&text, &["disk", "nothing was changed"]);
    let snapshot = station.snapshot().expect("served");
    assert_eq!(snapshot.queue, [], "nobody waits");
    // Ended claims are free again, full disk or not.
    held.kill();
    until("the claim has ended", SOON, || {
        let snapshot = station.snapshot().ok()?;
        (snapshot.claims.is_empty() && snapshot.gpus[0].mem_claimed == 0).then_some(())
    });
    std::fs::remove_file(ballast).expect("removed");
    until("claims are granted again", SOON, || {
        claim_true(&station, &["-q", "-g", "1", "--gpu-ids", "0", "--nonblock"]).0 == Some(0)
    });
    support::restart(&mut station, Signal::SIGKILL);
    assert_eq!(station.snapshot().expect("served").claims, []);
    drop(station);
}

#[test]
fn no_room_for_pages_refuses_claims_and_the_service_lives() {
    root!("no_room_for_pages_refuses_claims_and_the_service_lives");
    let station = station();
    let claims = station.dir().join("run/claims");
    let disk = SmallDisk::mount(&claims, "0700");
    let ballast = disk.fill();
    let (code, text) = claim_true(&station, &["-g", "2", "--nonblock"]);
    assert_eq!(code, Some(74), "{text}");
    has_all(&text, &["no room left"]);
    assert_eq!(station.snapshot().expect("it lives").claims, []);
    std::fs::remove_file(ballast).expect("removed");
    assert_eq!(
        claim_true(&station, &["-q", "-g", "2", "--nonblock"]).0,
        Some(0)
    );
    until("nothing is left", SOON, || {
        let left = std::fs::read_dir(&claims).ok()?.count();
        (left == 0).then_some(())
    });
}

#[test]
fn a_hanging_driver_library_takes_the_figures_and_not_the_service() {
    let station = station();
    // A foreign process's memory must not count as free when it becomes invisible.
    let mut stranger = Raw::outside(&station);
    assert_eq!(stranger.ask(&format!("alloc {}", 4096 * MIB)), "ok 0");
    let seen = |station: &Station| {
        let snapshot = station.snapshot().ok()?;
        let unclaimed = snapshot.gpus[0].mem_unclaimed?;
        (unclaimed >= 4096 * MIB).then_some(snapshot.gpus[0].mem_allocatable?)
    };
    let before = until("it is seen", SOON, || seen(&station));
    let mut raw = Raw::claim(&station, &["-q", "-g", "0.25", "--gpu-ids", "1"]);
    board(&station)
        .set_fault(gshare_sim_board::Fault::NvmlHangs, true)
        .expect("set");
    let snapshot = until("its figures are gone", SOON, || {
        let snapshot = station.snapshot().ok()?;
        (snapshot.gpus[0].mem_used.is_none()).then_some(snapshot)
    });
    assert_eq!(snapshot.gpus[0].mem_unclaimed, None);
    assert_eq!(snapshot.gpus[0].mem_allocatable, Some(before));
    assert_eq!(
        claim_of(&snapshot, raw.pid()).map(|c| c.state),
        Some(ClaimState::Running)
    );
    assert_eq!(raw.ask("launch 1"), "ok 1", "members run on");
    raw.kill();
    until("claims still end", SOON, || {
        // The foreign process's use counts as a claim of its own.
        let claims = station.snapshot().ok()?.claims;
        claims.iter().all(|c| c.adopted).then_some(())
    });
    board(&station)
        .set_fault(gshare_sim_board::Fault::NvmlHangs, false)
        .expect("set");
    until("the figures are back", SOON, || seen(&station));
}

#[test]
fn a_second_service_is_refused_and_the_first_goes_on() {
    let station = station();
    let config = std::fs::read_to_string(station.dir().join("gshare.toml")).expect("there");
    let try_with = |text: &str| {
        let path = station.dir().join("second.toml");
        std::fs::write(&path, text).expect("written");
        let mut command = Command::new(station.program());
        command.arg("daemon").arg("--config").arg(&path);
        if !nix::unistd::Uid::effective().is_root() {
            command.arg("--user");
        }
        ended(&mut command)
    };
    let elsewhere = config.replace("/run\"", "/run-2\"");
    assert_ne!(config, elsewhere);
    for text in [config, elsewhere] {
        let (code, text) = try_with(&text);
        assert_ne!(code, Some(0));
        has_all(&text, &["another gshare service", "hint:"]);
        assert_eq!(claim_true(&station, &["-q", "-g", "0.1"]).0, Some(0));
    }
}

#[test]
fn a_waiting_claim_goes_on_waiting_when_the_service_is_restarted() {
    let mut station = station();
    let hog = Raw::claim(&station, &["-q", "-g", "1", "--gpu-ids", "0"]);
    let mut waiting = Raw::asks(&station, &["-q", "-g", "0.5", "--gpu-ids", "0"]);
    let queued = |station: &Station| {
        let snapshot = station.snapshot().ok()?;
        let first = snapshot.queue.first()?;
        Some(first.id.clone())
    };
    let old = until("it waits", SOON, || queued(&station));
    for signal in [Signal::SIGKILL, Signal::SIGTERM] {
        support::restart(&mut station, signal);
        let new = until("it waits again", SOON, || queued(&station));
        assert_eq!(new, old, "a waiting claim keeps its number");
    }
    assert_eq!(hog.finish(), Some(0));
    assert_eq!(waiting.line(), "ok ready");
    assert!(waiting.info().1 > 0);
    let snapshot = station.snapshot().expect("served");
    assert!(claim_of(&snapshot, waiting.pid()).is_some());
}

#[test]
fn a_release_goes_on_after_a_restart() {
    let mut station = station();
    let mut command = station.command();
    let script = "trap '' TERM; exec \"$0\"";
    command
        .args("claim -q -g 0.5 --name deaf -- sh -c".split(' '))
        .arg(script);
    let mut deaf = Raw::start({
        command.arg(support::example("raw_client"));
        command
    });
    let mut release = station.command();
    assert_eq!(ended(release.args(["release", "deaf"])).0, Some(0));
    assert_eq!(
        station.snapshot().expect("served").claims[0].state,
        ClaimState::Ending
    );
    support::restart(&mut station, Signal::SIGKILL);
    assert_eq!(
        station.snapshot().expect("served").claims[0].state,
        ClaimState::Ending
    );
    let status = until("it is killed after the grace time", SOON, || {
        deaf.child.try_wait().ok().flatten()
    });
    assert!(!status.success());
    all_ended(&station);
}

#[test]
fn a_member_that_has_just_died_never_counts_as_unclaimed() {
    let station = station();
    for _ in 0..5 {
        let mut raw = Raw::claim(&station, &["-q", "-g", "0.25", "--gpu-ids", "0", "--hold"]);
        assert_eq!(raw.ask(&format!("alloc {}", 1024 * MIB)), "ok 0");
        let id = until("the driver's word is seen", SOON, || {
            let snapshot = station.snapshot().ok()?;
            let claim = claim_of(&snapshot, raw.pid())?;
            (claim.gpus[0].mem_used? > 1024 * MIB).then(|| claim.id.clone())
        });
        raw.kill();
        let until = Instant::now() + Duration::from_millis(1500);
        while Instant::now() < until {
            let snapshot = station.snapshot().expect("served");
            assert_eq!(snapshot.unclaimed, []);
            assert_eq!(
                (snapshot.claims.len(), snapshot.gpus[0].mem_unclaimed),
                (1, Some(0))
            );
        }
        let claim = &station.snapshot().expect("served").claims[0];
        assert_eq!(
            (claim.gpus[0].mem_used, claim.gpus[0].mem_charge),
            (Some(0), Some(0))
        );
        let mut release = station.command();
        assert_eq!(ended(release.args(["release", &id])).0, Some(0));
    }
}

/// A member writes into its page that another user's process holds its memory, and the service is restarted, so that
/// the page is all that it has. The other process must not be ended.
#[test]
fn a_forged_page_turns_the_service_against_nobody() {
    root!("a_forged_page_turns_the_service_against_nobody");
    let mut station = station();
    let mut raw = Raw::claim(
        &station,
        &["-q", "-g", "0.25", "--gpu-ids", "0", "--name", "liar"],
    );
    let mut victim = Command::new("sleep").arg("600").spawn().expect("starts");
    let claim = claim(&station, raw.pid());
    let number: u64 = claim.id[1..].parse().expect("a number");
    let uuid = &claim.gpus[0].uuid;
    let limits = station
        .dir()
        .join(format!("run/claims/c{number}-{uuid}.limits"));
    let token = LimitsFile::open(&limits).expect("opens").page().token();
    let gpu = uuid.parse().expect("a UUID");
    let mut page = UsageMemfd::find(
        raw.pid(),
        number,
        gpu,
        token,
        Instant::now() + Duration::from_secs(5),
    )
    .expect("looked for")
    .expect("found");
    let start = gshare_enforcer::proc::key(victim.id().cast_signed()).expect("lives");
    let forged = page
        .assign_slot(victim.id(), start.start_ticks)
        .expect("a slot is free");
    let charge = &page.page().slots[forged.slot].charge;
    charge.store(u64::MAX, Ordering::SeqCst);
    support::restart(&mut station, Signal::SIGKILL);
    // A charge of all memory does not keep others from free memory either.
    let flags = ["-q", "-g", "0.75", "--gpu-ids", "0", "--nonblock"];
    assert_eq!(claim_true(&station, &flags).0, Some(0));
    page.page().slots[0]
        .charge
        .store(u64::MAX, Ordering::SeqCst);
    assert_eq!(claim_true(&station, &flags).0, Some(0));

    let mut release = station.command();
    assert_eq!(ended(release.args(["release", "liar"])).0, Some(0));
    until("the member itself ends", SOON, || {
        raw.child.try_wait().ok().flatten()
    });
    assert_eq!(
        victim.try_wait().expect("asked"),
        None,
        "the stranger lives"
    );
    victim.kill().expect("killed");
    victim.wait().expect("reaped");
    drop(raw.child.wait());
}

fn resident_kib(pid: u32) -> u64 {
    let status = std::fs::read_to_string(format!("/proc/{pid}/status")).expect("lives");
    let line = status.lines().find_map(|l| l.strip_prefix("VmRSS:"));
    let number = line.and_then(|l| l.split_whitespace().next()?.parse().ok());
    number.expect("a number")
}

#[test]
fn clients_that_ask_and_do_not_read_cost_little() {
    let station = station();
    let pid = station.service_pid().expect("runs");
    let before = resident_kib(pid);
    let line = "{\"op\":\"snapshot\"}\n";
    let flood = format!("{{\"gshare\":1}}\n{}", line.repeat(64 * 1024 / line.len()));
    let clients: Vec<UnixStream> = (0..40)
        .map(|_| {
            let mut stream = UnixStream::connect(station.socket()).expect("connects");
            stream.set_nonblocking(true).expect("set");
            let _ = stream.write(flood.as_bytes()).expect("taken");
            stream
        })
        .collect();
    for _ in 0..20 {
        let started = Instant::now();
        assert_eq!(station.snapshot().expect("others are served").gpus.len(), 4);
        assert!(started.elapsed() < Duration::from_secs(2));
    }
    let after = resident_kib(pid);
    assert!(
        after < before + 64 * 1024,
        "{before} KiB before, {after} KiB after"
    );
    drop(clients);
}

#[test]
fn one_users_thousand_claims_leave_room_for_others() {
    let station = station();
    let _hogs: Vec<Raw> = ["0", "1", "2", "3"]
        .iter()
        .map(|gpu| Raw::claim(&station, &["-q", "-g", "1", "--gpu-ids", gpu]))
        .collect();
    let mut stream = UnixStream::connect(station.socket()).expect("connects");
    let claim = "{\"op\":\"claim\",\"gpus_milli\":500,\"wait\":\"forever\",\"command\":[\"x\"]}\n";
    let mut reader = stream.try_clone().expect("cloned");
    let drained = std::thread::spawn(move || std::io::copy(&mut reader, &mut std::io::sink()));
    stream.write_all(b"{\"gshare\":1}\n").expect("taken");
    for _ in 0..1000 {
        stream.write_all(claim.as_bytes()).expect("taken");
    }
    let queue = until("all were looked at", Duration::from_secs(60), || {
        let started = Instant::now();
        let queue = station.snapshot().expect("others are served").queue.len();
        assert!(
            started.elapsed() < Duration::from_secs(2),
            "with {queue} waiting"
        );
        (queue >= 500).then_some(queue)
    });
    assert!(queue <= 512, "{queue}");
    stream.shutdown(std::net::Shutdown::Both).expect("closed");
    // The service may close first, with unread input: a reset counts as an end.
    let _ = drained.join().expect("ends");
    until("all are withdrawn", SOON, || {
        station.snapshot().ok()?.queue.is_empty().then_some(())
    });
}

/// A package manager that was interrupted: the program is new, and some of its parts are missing.
#[test]
fn a_half_done_upgrade_is_named_and_harms_no_claim() {
    let mut station = station();
    let mut held = Raw::claim(&station, &["-q", "-g", "0.25", "--gpu-ids", "0"]);
    let over = "alloc 12884901888";
    assert!(held.ask(over).starts_with("error 2"), "it is limited");
    station.stop_service(Signal::SIGTERM).expect("stopped");
    assert!(
        held.ask(over).starts_with("error 2"),
        "it is limited without the service"
    );
    let parts = station.dir().join("lib/gshare/parts");
    std::fs::create_dir_all(&parts).expect("made");
    std::fs::write(parts.join("libgshare_shim.so.dpkg-new"), "").expect("written");
    let why = match station.start_service() {
        Err(error) => format!("{error:#}"),
        Ok(()) => claim_true(&station, &["-g", "0.1", "--nonblock"]).1,
    };
    has_all(&why, &["gshare is not completely installed"]);
    assert!(held.ask(over).starts_with("error 2"), "it is still limited");
    // The upgrade is finished.
    std::fs::remove_dir_all(station.dir().join("lib")).expect("removed");
    let _ = station.stop_service(Signal::SIGKILL);
    station.start_service().expect("starts");
    let snapshot = station.snapshot().expect("served");
    assert!(claim_of(&snapshot, held.pid()).is_some());
    assert_eq!(
        claim_true(&station, &["-q", "-g", "0.1", "--nonblock"]).0,
        Some(0)
    );
    assert!(held.ask("alloc 1048576").starts_with("ok"));
    assert_eq!(held.finish(), Some(0));
}

/// Any user: no account is needed.
const USER: u32 = 61_305;

/// A shell in a claim of an ordinary user that starts a CUDA program when it is told to.
fn claimed_shell(station: &Station, client: &str) -> Child {
    let script = "env | grep ^LD_LIBRARY_PATH= >&2; read go; exec \"$0\"";
    let mut command = station.command();
    command.args(["claim", "-q", "-g", "0.1", "--", "sh", "-c", script, client]);
    let command = as_user(&mut command);
    let [input, out, errors] = [(); 3].map(|()| Stdio::piped());
    let child = command.stdin(input).stdout(out).stderr(errors).spawn();
    let child = child.expect("starts");
    until("it has its claim", SOON, || {
        claim_of(&station.snapshot().ok()?, child.id()).map(|_| ())
    });
    child
}

fn as_user(command: &mut Command) -> &mut Command {
    if nix::unistd::Uid::effective().is_root() {
        command.uid(USER).gid(USER).current_dir("/");
    }
    command
}

/// The output of the shell's program.
fn goes(mut shell: Child) -> String {
    let mut input = shell.stdin.take().expect("piped");
    input.write_all(b"go\n").expect("reads");
    drop(input);
    let Output { stdout, stderr, .. } = shell.wait_with_output().expect("ends");
    [stdout, stderr]
        .map(|bytes| String::from_utf8_lossy(&bytes).into_owned())
        .concat()
}

#[test]
fn broken_in_five_ways_every_program_starts_and_claimed_ones_say_what_is_missing() {
    let mut station = station();
    let client = station.dir().join("bin/raw_client");
    support::copy_program(support::example("raw_client"), &client);
    let client = client.display().to_string();
    let starts = |station: &Station, shell: Child, missing: &str| {
        let mut plain = Command::new(&client);
        plain.env("LD_LIBRARY_PATH", station.sim_dir().join("lib"));
        as_user(&mut plain);
        assert_eq!(
            Raw::start(plain).finish(),
            Some(0),
            "without a claim: {missing}"
        );
        let told = goes(shell);
        assert!(
            told.contains("ok ready") && told.contains(missing),
            "{missing}: {told}"
        );
        told
    };
    let unheld = "do not apply to this process: ";

    let shell = claimed_shell(&station, &client);
    station.stop_service(Signal::SIGKILL).expect("killed");
    let told = starts(&station, shell, unheld);
    station.start_service().expect("starts again");

    let path = told
        .lines()
        .find_map(|l| l.strip_prefix("LD_LIBRARY_PATH="));
    let library =
        Path::new(path.expect("set").split(':').next().expect("some")).join("libcuda.so.1");
    std::fs::remove_file(&library).expect("removed");
    let shell = claimed_shell(&station, &client);
    starts(&station, shell, "gshare's library is missing in");
    support::restart(&mut station, Signal::SIGTERM);
    assert!(library.exists());

    let shell = claimed_shell(&station, &client);
    let mode = |mode| {
        let mode = std::fs::Permissions::from_mode(mode);
        std::fs::set_permissions(station.socket(), mode).expect("changed");
    };
    mode(0o600);
    let told = starts(&station, shell, unheld);
    has_all(&told, &["Permission denied"]);
    mode(0o666);

    if is_root("the full disk") {
        station.stop_service(Signal::SIGTERM).expect("stopped");
        let disk = SmallDisk::mount(&station.dir().join("state"), "0700");
        station.start_service().expect("starts on the small disk");
        let shell = claimed_shell(&station, &client);
        let ballast = disk.fill();
        let told = starts(&station, shell, "");
        assert!(!told.contains("gshare:"), "its limits hold: {told}");
        let (code, text) = claim_true(&station, &["-g", "0.1", "--nonblock"]);
        assert!(code == Some(74) && text.contains("disk"), "{text}");
        std::fs::remove_file(ballast).expect("removed");
        station.stop_service(Signal::SIGTERM).expect("stopped");
        drop(disk);
        station.start_service().expect("starts");
    }

    // The package's files are gone, but not its directories and running processes.
    let shell = claimed_shell(&station, &client);
    let parts = station.dir().join("lib/gshare/parts");
    std::fs::create_dir_all(&parts).expect("made");
    station.stop_service(Signal::SIGTERM).expect("stopped");
    let ended = station
        .start_service()
        .map_err(|error| format!("{error:#}"));
    let text = match ended {
        Err(text) => text,
        Ok(()) => claim_true(&station, &["-g", "0.1", "--nonblock"]).1,
    };
    has_all(&text, &["gshare is not completely installed"]);
    starts(&station, shell, unheld);
}

// Sick GPUs: shown, journaled, closed to new claims; their holders are told what to do.

fn health(station: &Station, gpu: usize) -> Option<HealthView> {
    station.snapshot().ok()?.gpus[gpu].health.clone()
}

fn graded(station: &Station, gpu: usize, grade: Grade) -> HealthView {
    until(&format!("GPU {gpu} is {grade:?}"), SOON, || {
        health(station, gpu).filter(|h| h.grade == grade)
    })
}

fn claim_on(station: &Station, gpu: &str) -> Option<i32> {
    let line = format!("claim -q -g 0.25 --gpu-ids {gpu} --nonblock -- true");
    tried(station, &words(&line)).0
}

#[test]
fn an_error_that_needs_a_reset_keeps_new_claims_off_until_it_is_mended() {
    let mut station = quick("");
    let held = Raw::claim(&station, &["-q", "-g", "0.5", "--gpu-ids", "1"]);
    assert_eq!(graded(&station, 1, Grade::Good).xids, []);
    assert_eq!(claim_on(&station, "1"), Some(0));
    board(&station).raise_xid(1, 95).expect("raised");
    let sick = graded(&station, 1, Grade::Sick);
    assert_eq!(
        (sick.xids[0].code, sick.xids[0].source.as_str()),
        (95, "nvml")
    );
    assert!(sick.reasons[0].contains("Xid 95"), "{sick:?}");
    assert!(
        sick.tell
            .is_some_and(|t| t.contains("nvidia-smi --gpu-reset -i 1"))
    );
    until("claims are kept off", SOON, || {
        claim_on(&station, "1") == Some(75)
    });
    assert_eq!(claim_on(&station, "0"), Some(0), "the others go on");

    // Its holder is notified, and can read it later.
    let claim = claim(&station, held.pid()).id;
    let log = tried(&station, &["log", &claim]).1;
    has_all(&log, &["Xid 95", "--gpu-reset"]);
    assert_eq!(log.matches("--gpu-reset").count(), 1, "told once: {log}");
    let doctor = tried(&station, &["doctor"]).1;
    has_all(&doctor, &["health GPU 1", "Xid 95"]);

    // A restart of the service repairs nothing.
    support::restart(&mut station, Signal::SIGKILL);
    assert_eq!(graded(&station, 1, Grade::Sick).xids.len(), 1);
    assert_eq!(claim_on(&station, "1"), Some(75));
    let (code, text) = tried(&station, &["admin", "undrain", "1"]);
    if code == Some(0) {
        has_all(&text, &["takes claims again"]);
        assert_eq!(graded(&station, 1, Grade::Good).xids, []);
        assert_eq!(claim_on(&station, "1"), Some(0));
    } else {
        println!("skipped: only root may say that a GPU is mended: {text}");
    }
    drop(held);
}

#[test]
fn memory_errors_repairs_and_clocks_are_graded_and_absent_where_a_gpu_has_none() {
    let station = quick("");
    let good = until("the counters are known", SOON, || {
        health(&station, 2).filter(|h| h.ecc_corrected.is_some() && h.throttle.is_some())
    });
    assert_eq!(
        (good.grade, good.ecc_uncorrected, good.throttle),
        (Grade::Good, Some(0), Some(Vec::new()))
    );
    assert!(good.remapped.is_some());
    let geforce = health(&station, 0).expect("answers");
    assert_eq!(
        (geforce.ecc_corrected, geforce.remapped),
        (None, None),
        "a 4090 has no ECC by default"
    );

    let board = board(&station);
    let mut state = Health {
        ecc_corrected: 4,
        clock_reasons: 0x40,
        ..Health::default()
    };
    board.set_health(2, state).expect("set");
    let warned = graded(&station, 2, Grade::Warned);
    assert!(
        warned
            .reasons
            .iter()
            .any(|r| r.contains("too warm (hardware)")),
        "{warned:?}"
    );
    until("counted", SOON, || {
        (health(&station, 2)?.ecc_corrected == Some(4)).then_some(())
    });
    assert_eq!(
        claim_on(&station, "2"),
        Some(0),
        "a warning keeps nobody off"
    );

    state = Health {
        remapped_uncorrected: 1,
        remap_pending: true,
        ecc_uncorrected: 2,
        ..Health::default()
    };
    board.set_health(2, state).expect("set");
    let pending = until("it is seen", SOON, || {
        health(&station, 2).filter(|h| h.reasons.len() == 2)
    });
    assert_eq!(pending.grade, Grade::Warned);
    assert!(
        pending
            .remapped
            .is_some_and(|r| r.pending && r.uncorrected == 1)
    );

    state.remap_failed = true;
    board.set_health(2, state).expect("set");
    graded(&station, 2, Grade::Sick);
    until("claims are kept off", SOON, || {
        claim_on(&station, "2") == Some(75)
    });
    board.set_health(2, Health::default()).expect("set");
    graded(&station, 2, Grade::Good);
    // The driver's own report.
    let recovery = Health {
        recovery: 1,
        ..Health::default()
    };
    board.set_health(3, recovery).expect("set");
    assert_eq!(
        graded(&station, 3, Grade::Sick).recovery.as_deref(),
        Some("reset")
    );
    board.set_health(3, Health::default()).expect("set");
    graded(&station, 3, Grade::Good);
    until("claims come again", SOON, || {
        claim_on(&station, "3") == Some(0)
    });
}

#[test]
fn a_reset_behind_the_services_back_is_seen_told_and_new_claims_get_the_gpu() {
    let station = quick("");
    let mut held = Raw::claim(&station, &["-q", "-g", "0.5", "--gpu-ids", "2"]);
    let mut beside = Raw::claim(&station, &["-q", "-g", "0.5", "--gpu-ids", "3"]);
    for raw in [&mut held, &mut beside] {
        assert_eq!(raw.ask("alloc 1073741824"), "ok 0");
    }
    board(&station).raise_xid(2, 95).expect("raised");
    graded(&station, 2, Grade::Sick);
    assert_eq!(claim_on(&station, "2"), Some(75));
    let snapshot = station.snapshot().expect("served");
    let [id, other] = [&held, &beside].map(|raw| {
        let claim = claim_of(&snapshot, raw.pid()).expect("listed");
        claim.id.clone()
    });

    board(&station).reset_by_force(2).expect("reset");
    // The old problem is over without an administrator's report.
    let well = graded(&station, 2, Grade::Good);
    assert_eq!(well.xids, []);
    let told = until("its holder is told", SOON, || {
        let log = tried(&station, &["log", &id]).1;
        log.contains("GPU 2 was reset").then_some(log)
    });
    has_all(&told, &["restart them"]);
    assert!(!tried(&station, &["log", &other]).1.contains("was reset"));
    // Its program has lost its memory, its neighbour on another GPU has not.
    assert!(
        held.ask("alloc 1048576").starts_with("error 709"),
        "the context is gone"
    );
    assert_eq!(beside.ask("alloc 1048576"), "ok 1");
    assert_eq!(claim_on(&station, "2"), Some(0), "there is room beside it");
    // The handles are looked up again: the figures are current.
    let mut fresh = Raw::claim(&station, &["-q", "-g", "0.5", "--gpu-ids", "2"]);
    assert_eq!(fresh.ask("alloc 2147483648"), "ok 0");
    let pid = fresh.pid();
    until("its memory is seen by the driver", SOON, || {
        let snapshot = station.snapshot().ok()?;
        let part = claim_of(&snapshot, pid)?.gpus.first()?;
        part.mem_used.filter(|b| *b >= 2 << 30)
    });
    // The old claim ends normally, and then the whole GPU is free.
    held.kill();
    fresh.kill();
    until("all of it can be claimed", SOON, || {
        let flags = ["-q", "-g", "1", "--gpu-ids", "2", "--nonblock"];
        claim_true(&station, &flags).0 == Some(0)
    });
    drop(beside);
}
