//! `gshare-exec` with hostile arguments, surroundings and files.

use crate::support::has_all;
use std::fs::Permissions;
use std::io::Write;
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};

use super::support::users::as_user;
use super::support::{Raw, claim_of};
use super::{claim, client, desk, held, said};
use gshare::station::Station;
use gshare_abi::Handover;
use nix::fcntl::{FcntlArg, OFlag, SealFlag, fcntl};
use nix::sys::memfd::{MFdFlags, memfd_create};
use nix::sys::stat::Mode;

fn launcher(station: &Station) -> PathBuf {
    station.dir().join("lib/gshare/gshare-exec")
}

/// The handover of `gshare claim`, open in every child from now on.
fn handover(bytes: &[u8], seals: SealFlag) -> OwnedFd {
    let fd = memfd_create(c"test", MFdFlags::MFD_ALLOW_SEALING).expect("made");
    let mut file = std::fs::File::from(fd);
    file.write_all(bytes).expect("written");
    fcntl(file.as_fd(), FcntlArg::F_ADD_SEALS(seals)).expect("sealed");
    file.into()
}

pub(crate) fn sound() -> OwnedFd {
    handover(&Handover::default().to_bytes(), SealFlag::all())
}

/// The launcher itself, started by a user without `gshare claim`.
fn direct(program: &Path, uid: u32, words: &[&str]) -> Output {
    let mut command = Command::new(program);
    command.args(words);
    as_user(command, uid).output().expect("runs")
}

#[track_caller]
fn refused(output: &Output, code: i32, why: &str) {
    let (told, text) = said(output);
    assert_eq!(output.status.code(), Some(code), "{told}{text}");
    assert!(told.is_empty(), "the command ran: {told}");
    has_all(&text, &[why]);
}

#[test]
fn arguments_and_handovers_of_anybody_are_refused() {
    let Some((users, station)) = desk("arguments_and_handovers_of_anybody_are_refused") else {
        return;
    };
    let mut raw = held(
        &station,
        claim(&station, users.uid(0), &[&client(&station)]),
    );
    let program = launcher(&station);
    let uid = users.uid(0);
    let good = sound();
    let fd = good.as_raw_fd().to_string();
    let long = "9".repeat(100_000);
    for words in [
        &[][..],
        &["1"],
        &["1", &fd, "--"],
        &["1", &fd, "echo", "ran"],
        &["x", &fd, "--", "echo", "ran"],
        &["-1", &fd, "--", "echo", "ran"],
        &[&long, &fd, "--", "echo", "ran"],
        &["1", "0", "--", "echo", "ran"],
        &["1", "-7", "--", "echo", "ran"],
        &["1", "1048575", "--", "echo", "ran"],
    ] {
        refused(&direct(&program, uid, words), 64, "gshare");
    }
    let whole = Handover::default().to_bytes();
    for bad in [
        handover(&whole, SealFlag::F_SEAL_GROW),
        handover(b"", SealFlag::all()),
        handover(&whole[..4], SealFlag::all()),
        handover(&[whole.as_slice(), b"A=1"].concat(), SealFlag::all()),
        std::fs::File::open("/dev/null").expect("opened").into(),
    ] {
        let plain = bad.try_clone().expect("cloned");
        fcntl(&plain, FcntlArg::F_SETFD(nix::fcntl::FdFlag::empty())).expect("set");
        let fd = plain.as_raw_fd().to_string();
        refused(
            &direct(&program, uid, &["1", &fd, "--", "echo", "ran"]),
            64,
            "environment",
        );
    }
    assert!(raw.info().1 > 0);
}

#[test]
fn nobody_is_launched_into_a_claim_that_is_not_his() {
    let Some((users, station)) = desk("nobody_is_launched_into_a_claim_that_is_not_his") else {
        return;
    };
    let raw = held(
        &station,
        claim(&station, users.uid(0), &[&client(&station)]),
    );
    let snapshot = station.snapshot().expect("served");
    let id = claim_of(&snapshot, raw.pid()).expect("listed").id.clone();
    let number = id.trim_start_matches('c');
    let good = sound();
    let fd = good.as_raw_fd().to_string();
    let program = launcher(&station);
    let other = direct(&program, users.uid(1), &[number, &fd, "--", "echo", "ran"]);
    refused(&other, 77, "is not yours");
    let absent = direct(&program, users.uid(1), &["999", &fd, "--", "echo", "ran"]);
    refused(&absent, 124, "c999 has ended");
    // The owner may do that, as `gshare join` does.
    let own = direct(&program, users.uid(0), &[number, &fd, "--", "echo", "ran"]);
    assert_eq!(said(&own), ("ran\n".to_owned(), String::new()));
    // A program that speaks to the service like the launcher is not the launcher.
    let script = format!(
        "import socket, struct; s = socket.socket(socket.AF_UNIX); s.connect('{}'); \
         s.send(b'\\x01gsh' + struct.pack('=HHIQ', 2, 3, 8, {number})); print(s.recv(65536).decode())",
        station.socket().display()
    );
    let mut python = Command::new("python3");
    python.args(["-c", &script]);
    match as_user(python, users.uid(0)).output() {
        Ok(output) => {
            let (told, why) = said(&output);
            assert!(told.contains("only gshare-exec may ask"), "{told}{why}");
        }
        Err(_) => println!("skipped: no python3"),
    }
}

#[test]
fn without_its_right_the_launcher_starts_nothing() {
    let Some((users, station)) = desk("without_its_right_the_launcher_starts_nothing") else {
        return;
    };
    let uid = users.uid(0);
    let inner = claim(&station, uid, &["echo", "ran"]);
    let wrapped = |words: &[&str]| {
        let mut command = Command::new(words[0]);
        command
            .args(&words[1..])
            .arg(inner.get_program())
            .args(inner.get_args());
        as_user(station.client_environment(command), uid)
            .output()
            .expect("runs")
    };
    refused(&wrapped(&["setpriv", "--no-new-privs"]), 77, "no_new_privs");
    refused(&wrapped(&["unshare", "-Ur"]), 77, "user namespace");
    refused(&wrapped(&["unshare", "-Urm"]), 77, "user namespace");
    // The launcher alone, after a claim that was granted to an honest client.
    let raw = held(&station, claim(&station, uid, &[&client(&station)]));
    let snapshot = station.snapshot().expect("served");
    let id = claim_of(&snapshot, raw.pid()).expect("listed").id.clone();
    let good = sound();
    let fd = good.as_raw_fd().to_string();
    let words = [id.trim_start_matches('c'), &fd, "--", "echo", "ran"];
    let mut bound = Command::new("setpriv");
    bound
        .arg("--no-new-privs")
        .arg(launcher(&station))
        .args(words);
    let output = as_user(bound, uid).output().expect("runs");
    refused(&output, 77, "no_new_privs");
    // A copy has no capability; a link in a user's directory has one, and is not trusted.
    let own = station.dir().join("own");
    std::fs::create_dir(&own).expect("made");
    std::fs::set_permissions(&own, Permissions::from_mode(0o777)).expect("set");
    let copy = own.join("copy");
    std::fs::copy(launcher(&station), &copy).expect("copied");
    refused(&direct(&copy, uid, &words), 77, "no capability");
    let link = own.join("link");
    std::fs::hard_link(launcher(&station), &link).expect("linked");
    refused(
        &direct(&link, uid, &words),
        77,
        "can be written by everybody",
    );
}

#[test]
fn libraries_that_others_can_write_are_not_used() {
    let Some((users, station)) = desk("libraries_that_others_can_write_are_not_used") else {
        return;
    };
    let uid = users.uid(0);
    let client = client(&station);
    let run = station.dir().join("run");
    let mode = |path: &Path| std::fs::metadata(path).expect("there").permissions();
    for path in [
        run.join("lib/strict/libcuda.so.1"),
        run.join("lib/strict"),
        station.sim_dir().join("lib/libcuda.so.1"),
        station.sim_dir().join("lib"),
        launcher(&station),
        launcher(&station).parent().expect("below").to_owned(),
    ] {
        let before = mode(&path);
        std::fs::set_permissions(&path, Permissions::from_mode(0o777)).expect("set");
        let output = claim(&station, uid, &["echo", "ran"])
            .output()
            .expect("runs");
        refused(&output, 77, "can be written by everybody");
        std::fs::set_permissions(&path, before).expect("set");
    }
    held(&station, claim(&station, uid, &[&client]));
}

#[test]
fn under_any_limit_a_command_is_held_or_does_not_run() {
    let Some((users, station)) = desk("under_any_limit_a_command_is_held_or_does_not_run") else {
        return;
    };
    let client = client(&station);
    let inner = claim(&station, users.uid(0), &[&client]);
    let mut ran = 0;
    for limit in [
        "--nofile=3",
        "--nofile=5",
        "--nofile=8",
        "--nofile=64",
        "--as=20000000",
        "--as=200000000:",
        "--fsize=0",
        "--fsize=100",
        "--fsize=100000",
        "--nproc=1",
        "--core=unlimited",
        "--stack=100000",
        "--data=1000000",
        "--memlock=0",
        "--cpu=60",
        "--sigpending=0",
        "--nofile=1048576",
    ] {
        let mut command = Command::new("prlimit");
        command
            .arg(limit)
            .arg(inner.get_program())
            .args(inner.get_args());
        let mut command = as_user(station.client_environment(command), users.uid(0));
        command.stderr(std::process::Stdio::null());
        let mut raw = Raw::spawn(&mut command);
        if raw.line() == "ok ready" {
            ran += 1;
            let cap = super::cap(&station, raw.pid());
            assert_eq!(raw.info().1, cap, "{limit}");
        }
    }
    assert!(ran >= 6, "only {ran} ran");
}

#[test]
fn surroundings_are_the_commands_as_they_were() {
    let Some((users, station)) = desk("surroundings_are_the_commands_as_they_were") else {
        return;
    };
    let uid = users.uid(0);
    let shell = |before: &str, after: &str| {
        let program = station.program().display();
        let script = format!("{before}; exec {program} claim -q -g 0.1 -- sh -c '{after}'");
        let mut command = station.client_environment(Command::new("sh"));
        command.args(["-c", &script]).current_dir(station.dir());
        as_user(command, uid).output().expect("runs")
    };
    let same = |before: &str, look: &str| {
        let mut bare = Command::new("sh");
        bare.args(["-c", &format!("{before}; exec sh -c '{look}'")]);
        let bare = as_user(bare, uid).output().expect("runs");
        let there = shell(before, look);
        assert_eq!(said(&there), said(&bare), "{before}; {look}");
        assert!(there.status.success());
    };
    same("ulimit -s unlimited", "ulimit -s");
    same("ulimit -S -s 4096", "ulimit -s; ulimit -n; ulimit -c");
    same("umask 027", "umask");
    same(
        "true",
        "grep -E \"Cap(Inh|Prm|Eff|Amb|Bnd)|NoNewPrivs|Seccomp:|TracerPid|Sig(Blk|Ign)\" /proc/self/status",
    );
    same(
        "true",
        "cat /proc/self/oom_score_adj /proc/self/coredump_filter",
    );
    // No address space randomisation, as for debuggers and benchmarks; the signal at a parent's death. The kernel
    // removes both from programs that gain capabilities.
    for uid in [uid, 0] {
        let wrapped = |words: &[&str], command: &[&str]| {
            let mut wrapper = station.client_environment(Command::new(words[0]));
            wrapper.args(&words[1..]).arg(station.program());
            wrapper
                .args(["claim", "-q", "-g", "0.1", "--"])
                .args(command);
            said(&as_user(wrapper, uid).output().expect("runs"))
        };
        let (told, why) = wrapped(&["setarch", "-R"], &["cat", "/proc/self/personality"]);
        assert_eq!(told.trim(), "00040000", "{why}");
        let (told, why) = wrapped(&["setpriv", "--pdeathsig", "TERM"], &["setpriv", "--dump"]);
        let kept = told
            .lines()
            .any(|line| line.starts_with("Parent death signal") && line.contains("TERM"));
        assert!(kept, "{told}{why}");
    }
    // Closed standard descriptors and a directory that is gone.
    let closed = shell("exec <&- >&- 2>&-", "exit 7");
    assert_eq!(closed.status.code(), Some(7));
    let gone = shell("d=$(mktemp -d); cd $d; rmdir $d", "echo ran");
    assert_eq!(said(&gone).0, "ran\n", "{}", said(&gone).1);
}

#[test]
fn devices_that_were_open_before_are_closed() {
    let Some((users, station)) = desk("devices_that_were_open_before_are_closed") else {
        return;
    };
    // No driver is behind the stand-ins, so these descriptors only name them (O_PATH).
    let open = |name: &str| {
        let path = station.sim_dir().join("dev").join(name);
        nix::fcntl::open(&path, OFlag::O_PATH, Mode::empty()).expect("opened")
    };
    let devices = [open("nvidia2"), open("nvidiactl"), open("nvidia-uvm")];
    let other = nix::fcntl::open("/dev/zero", OFlag::O_RDONLY, Mode::empty()).expect("opened");
    let list = ["sh", "-c", "ls -l /proc/self/fd"];
    let output = claim(&station, users.uid(0), &list).output().expect("runs");
    let (told, why) = said(&output);
    assert!(output.status.success(), "{why}");
    assert!(!told.contains("nvidia"), "{told}");
    let kept = format!(" {} -> /dev/zero", other.as_raw_fd());
    has_all(&told, &[&kept]);
    drop(devices);
}

#[test]
fn the_mounts_stay_inside_and_others_come_in() {
    let Some((users, station)) = desk("the_mounts_stay_inside_and_others_come_in") else {
        return;
    };
    let client = client(&station);
    let raw = held(&station, claim(&station, users.uid(0), &[&client]));
    let driver = station.sim_dir().join("lib/libcuda.so.1");
    let driver = driver.display().to_string();
    let mounts =
        |pid: &str| std::fs::read_to_string(format!("/proc/{pid}/mountinfo")).expect("read");
    let pid = raw.pid().to_string();
    assert!(mounts(&pid).contains(&driver));
    assert!(!mounts("self").contains(&driver));
    let place = station.dir().join("home");
    std::fs::create_dir(&place).expect("made");
    let done = Command::new("mount")
        .args(["-t", "tmpfs", "later"])
        .arg(&place)
        .status();
    assert!(done.expect("runs").success());
    let inside = mounts(&pid).contains(&place.display().to_string());
    let undone = Command::new("umount").arg(&place).status();
    assert!(undone.expect("runs").success());
    // Mounts propagate only if the mount above is shared.
    let root = mounts("self");
    let shared = root
        .lines()
        .any(|l| l.contains(" / / ") && l.contains("shared:"));
    assert_eq!(inside, shared);
}
