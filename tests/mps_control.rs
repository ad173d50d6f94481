//! The simulated control program of MPS against NVIDIA's own, and gshare's driver of it against the latter.
//! NVIDIA's program runs without a GPU; `.ci/drivers` fetches it into the target directory.

use crate::support;

use std::io::Write;
use std::os::unix::fs::PermissionsExt;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::Duration;

use gshare_enforcer::mps::{Control, MpsError, PROGRAM};
use support::{GSHARE, until};

/// NVIDIA's program where CI puts it, or as it is installed.
fn real(test: &str) -> Option<PathBuf> {
    let target = Path::new(GSHARE).ancestors().nth(2)?;
    let fetched = target.join("nvidia-mps/usr/bin").join(PROGRAM);
    let installed = Path::new("/usr/bin").join(PROGRAM);
    let found = [fetched, installed].into_iter().find(|p| p.is_file());
    if found.is_none() {
        println!("skipped: {test} needs NVIDIA's {PROGRAM} (.ci/drivers fetches it)");
    }
    found
}

/// The simulated one: the program itself under another name.
fn simulated(dir: &Path) -> PathBuf {
    let program = dir.join(PROGRAM);
    if std::fs::hard_link(GSHARE, &program).is_err() {
        support::copy_program(GSHARE, &program);
    }
    program
}

fn directory() -> tempfile::TempDir {
    let open = std::fs::Permissions::from_mode(0o755);
    let made = tempfile::Builder::new()
        .prefix("gsm")
        .permissions(open)
        .tempdir();
    made.expect("a directory")
}

struct Daemon {
    program: PathBuf,
    dir: PathBuf,
}

impl Daemon {
    fn start(program: &Path, dir: &Path) -> Self {
        for name in ["pipe", "log"] {
            std::fs::create_dir_all(dir.join(name)).expect("made");
        }
        let daemon = Self {
            program: program.to_owned(),
            dir: dir.to_owned(),
        };
        let mut start = daemon.command();
        start.stdout(Stdio::null()).stderr(Stdio::null());
        let status = start.arg("-d").status().expect("runs");
        assert!(status.success(), "{program:?} -d");
        let second = daemon.command().arg("-d").output().expect("runs");
        assert_eq!(
            second.status.code(),
            Some(1),
            "only one daemon in a directory"
        );
        daemon
    }

    fn command(&self) -> Command {
        let mut command = Command::new(&self.program);
        command
            .env("CUDA_MPS_PIPE_DIRECTORY", self.dir.join("pipe"))
            .env("CUDA_MPS_LOG_DIRECTORY", self.dir.join("log"))
            .stderr(Stdio::piped());
        command
    }

    /// What is printed for some commands by a user, with the exit status.
    fn say(&self, input: &str, uid: u32) -> String {
        let mut command = self.command();
        command.stdin(Stdio::piped()).stdout(Stdio::piped());
        if uid != 0 {
            command.uid(uid).gid(uid);
        }
        let mut child = command.spawn().expect("runs");
        let mut stdin = child.stdin.take().expect("piped");
        let _ = writeln!(stdin, "{input}");
        drop(stdin);
        let output = child.wait_with_output().expect("ends");
        let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
        let code = output.status.code().unwrap_or(-1);
        format!("{}{}[{code}]", text(&output.stderr), text(&output.stdout))
    }
}

/// Every command that needs no GPU, in an order in which some see what others set.
const COMMANDS: &str = "get_server_list
get_server_list x
get_server_status
get_server_status 1
get_server_status abc
get_client_list
get_client_list 1
get_device_client_list
get_device_client_list 1
ps
ps -p 1
get_default_active_thread_percentage
set_default_active_thread_percentage 50
get_default_active_thread_percentage
set_default_active_thread_percentage 0
set_default_active_thread_percentage 100.5
set_default_active_thread_percentage -3
set_default_active_thread_percentage 33.333
set_default_active_thread_percentage abc
set_default_active_thread_percentage
set_default_active_thread_percentage 12x
set_default_active_thread_percentage 1e1
set_default_active_thread_percentage 25 70
get_active_thread_percentage 1
set_active_thread_percentage 1 50
set_active_thread_percentage
get_default_device_pinned_mem_limit 0
set_default_device_pinned_mem_limit 0 2G
get_default_device_pinned_mem_limit 0
set_default_device_pinned_mem_limit 0 512M
get_default_device_pinned_mem_limit 0
set_default_device_pinned_mem_limit 0 1500M
get_default_device_pinned_mem_limit 0
set_default_device_pinned_mem_limit 0 12
get_default_device_pinned_mem_limit 0
set_default_device_pinned_mem_limit 0 2g
get_default_device_pinned_mem_limit 0
set_default_device_pinned_mem_limit 0 abc
get_default_device_pinned_mem_limit 0
set_default_device_pinned_mem_limit GPU-x 1G
get_default_device_pinned_mem_limit GPU-x
set_default_device_pinned_mem_limit 99 1G
get_default_device_pinned_mem_limit 99
get_default_device_pinned_mem_limit
set_default_device_pinned_mem_limit 0
get_device_pinned_mem_limit 1 0
set_device_pinned_mem_limit 1 0 1G
get_default_client_priority
set_default_client_priority 1
get_default_client_priority
set_default_client_priority 2
set_default_client_priority x
get_default_client_priority
terminate_client 1 1
terminate_client
shutdown_server
shutdown_server 1
shutdown_server 1 -f
start_server
start_server -uid
start_server -uid x
nonsense
GET_SERVER_LIST
sm_partition add x 1
lspart
device_query
 get_default_client_priority";

#[test]
fn the_simulated_program_answers_as_the_real_one() {
    let Some(real) = real("the comparison of control programs") else {
        return;
    };
    let (a, b) = (directory(), directory());
    let program = simulated(b.path());
    let (real, sim) = (
        Daemon::start(&real, a.path()),
        Daemon::start(&program, b.path()),
    );
    for command in COMMANDS.lines() {
        assert_eq!(sim.say(command, 0), real.say(command, 0), "{command:?}");
    }
    let together = "get_default_active_thread_percentage\nnonsense\nget_server_list";
    assert_eq!(sim.say(together, 0), real.say(together, 0));
    // The socket takes everybody; changing anything is for the owner.
    if nix::unistd::Uid::effective().is_root() {
        let stranger = 61_003;
        for command in COMMANDS
            .lines()
            .filter(|c| !c.starts_with("start_server -uid"))
        {
            let (of_sim, of_real) = (sim.say(command, stranger), real.say(command, stranger));
            assert_eq!(of_sim, of_real, "{command:?} by a stranger");
        }
        for command in ["start_server -uid 0", "quit", "quit -t 1"] {
            let (of_sim, of_real) = (sim.say(command, stranger), real.say(command, stranger));
            assert_eq!(of_sim, of_real, "{command:?} by a stranger");
        }
    }
    assert_eq!(sim.say("quit", 0), real.say("quit", 0));
    for daemon in [&sim, &real] {
        until("the daemon has ended", Duration::from_secs(10), || {
            let answer = daemon.say("get_server_list", 0);
            answer
                .starts_with("Cannot find MPS control daemon process")
                .then_some(())
        });
    }
}

/// Drives a control program as the service does.
fn drive(program: &Path) {
    let dir = directory();
    let control = Control::new(program, &dir.path().join("0")).expect("directories");
    assert!(matches!(control.percentage(), Err(MpsError::Silent { .. })));
    let pid = control.start("GPU-x", false).expect("starts");
    assert!(gshare_enforcer::proc::stat(pid).is_some());
    // A release whose own words are newer speaks those that are understood here.
    let environment = std::fs::read(format!("/proc/{pid}/environ")).expect("readable");
    let mut settings = environment.split(|byte| *byte == 0);
    assert!(settings.any(|s| s == b"CUDA_MPS_PROTOCOL_VERSION=2"));
    assert_eq!(control.percentage().expect("answers"), 100.0);
    assert_eq!(control.set_percentage(25.0).expect("set"), 25.0);
    assert_eq!(control.servers().expect("answers"), Vec::<i32>::new());
    assert_eq!(control.state(1).expect("answers"), None);
    assert!(control.clients(1).expect("answers").is_empty());
    assert!(!control.terminate(1, 1).expect("answers"));
    // A second daemon does not get into the way of the first.
    let again = control.start("GPU-x", false);
    assert!(again.is_ok() || matches!(again, Err(MpsError::NotStarted { .. })));
    control.quit(1).expect("ends");
    // What is left of it, sockets and all, does not hinder the next.
    control.start("GPU-x", false).expect("starts again");
    control.quit(1).expect("ends");
    // One that hangs is not waited for and is gone all the same.
    let hung = control.start("GPU-x", false).expect("starts once more");
    hang(hung);
    control.quit(60).expect("ends");
    gone(hung);
}

fn hang(pid: i32) {
    let stop = nix::sys::signal::Signal::SIGSTOP;
    nix::sys::signal::kill(nix::unistd::Pid::from_raw(pid), stop).expect("stopped");
}

fn gone(pid: i32) {
    let state = gshare_enforcer::proc::stat(pid).map(|s| s.state);
    assert!(matches!(state, None | Some('Z')), "{state:?}");
}

/// As by an upgrade of the driver: the kernel then calls the program of the daemon that runs deleted.
#[test]
fn a_daemon_is_ended_after_its_program_was_replaced() {
    let dir = directory();
    let program = simulated(dir.path());
    let control = Control::new(&program, &dir.path().join("0")).expect("directories");
    let daemon = control.start("GPU-x", false).expect("starts");
    std::fs::remove_file(&program).expect("removed");
    std::fs::write(&program, "#!/bin/sh\necho other words\n").expect("written");
    std::fs::set_permissions(&program, std::fs::Permissions::from_mode(0o755)).expect("set");
    hang(daemon);
    control.quit(60).expect("ends");
    gone(daemon);
}

#[test]
fn the_driver_of_the_control_program_works_with_the_real_one() {
    if let Some(real) = real("driving the real control program") {
        drive(&real);
    }
}

#[test]
fn and_with_the_simulated_one() {
    let dir = directory();
    drive(&simulated(dir.path()));
}
