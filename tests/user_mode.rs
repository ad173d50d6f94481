//! A user's own service: `gshare daemon --user` by an ordinary account, without cgroups, without a runtime
//! directory from a login, found by its clients at the usual place.

use crate::support;

use std::os::unix::fs::PermissionsExt;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, Instant};

use gshare_proto::{Call, ClaimState, Client, Reply, Snapshot};
use gshare_sim_board::{Board, BoardSpec};
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use support::users::{account, group_of};
use support::{GSHARE, Raw, claim_of, root, until};

static NEXT: AtomicU32 = AtomicU32::new(0);

/// An account with a home, a simulated driver and a configuration that names it.
struct Account {
    dir: tempfile::TempDir,
    name: String,
    uid: u32,
    service: Option<Child>,
}

fn open_dir(path: &Path) {
    std::fs::create_dir_all(path).expect("made");
    std::fs::set_permissions(path, std::fs::Permissions::from_mode(0o755)).expect("set");
}

impl Account {
    fn make() -> Self {
        let dir = tempfile::Builder::new()
            .prefix("gshare-user-")
            .permissions(std::fs::Permissions::from_mode(0o755))
            .tempdir()
            .expect("made");
        let number = NEXT.fetch_add(1, Ordering::Relaxed);
        let name = format!("gsu{}x{number}", std::process::id());
        let home = dir.path().join("home");
        let home = home.to_str().expect("text");
        account(
            "useradd",
            &[
                "--create-home",
                "--home-dir",
                home,
                "--shell",
                "/bin/sh",
                &name,
            ],
        );
        let id = Command::new("id")
            .args(["-u", &name])
            .output()
            .expect("id runs");
        let uid = String::from_utf8_lossy(&id.stdout).trim().parse();
        let account = Self {
            uid: uid.expect("a number"),
            dir,
            name,
            service: None,
        };
        account.furnish();
        account
    }

    fn path(&self, name: &str) -> PathBuf {
        self.dir.path().join(name)
    }

    fn furnish(&self) {
        let sim = self.path("sim");
        open_dir(&sim);
        let board = Board::create(&sim.join("board"), &BoardSpec::new(&["rtx4090", "h100"]));
        drop(board.expect("made"));
        gshare_artifacts::stage_sim(&sim).expect("staged");
        let bin = self.path("bin");
        open_dir(&bin);
        support::copy_program(GSHARE, bin.join("gshare"));
        support::copy_program(support::example("raw_client"), bin.join("raw_client"));
        let config = self.path("home/.config/gshare");
        open_dir(&config);
        let text = format!(
            "[service]\ntick = \"1s\"\n[claims]\nleftover-grace = \"1s\"\n[driver]\nlibcuda = {:?}\nlibnvidia-ml = {:?}\n",
            sim.join("lib/libcuda.so.1"),
            sim.join("lib/libnvidia-ml.so.1"),
        );
        std::fs::write(config.join("gshare.toml"), text).expect("written");
    }

    /// The environment of somebody who came by `su`: no XDG_RUNTIME_DIR, a strict umask.
    fn command(&self, program: &Path) -> Command {
        let mut command = Command::new("sh");
        command
            .args(["-c", "umask 077; exec \"$0\" \"$@\""])
            .arg(program)
            .env_clear()
            .env("HOME", self.path("home"))
            .env("PATH", "/usr/bin:/bin")
            .env("LD_LIBRARY_PATH", self.path("sim/lib"))
            .current_dir(self.path("home"))
            .uid(self.uid)
            .gid(group_of(self.uid));
        command
    }

    fn gshare(&self, args: &[&str]) -> Command {
        let mut command = self.command(&self.path("bin/gshare"));
        command.args(args);
        command
    }

    fn socket(&self) -> PathBuf {
        PathBuf::from(format!("/tmp/gshare-{}/gshared.sock", self.uid))
    }

    fn start(&mut self) {
        let log = std::fs::File::options()
            .create(true)
            .append(true)
            .open(self.path("log"))
            .expect("opened");
        let child = self
            .gshare(&["daemon", "--user"])
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(log)
            .spawn();
        self.service = Some(child.expect("starts"));
        let end = Instant::now() + Duration::from_secs(20);
        while self.snapshot().is_none() {
            let log = std::fs::read_to_string(self.path("log")).unwrap_or_default();
            assert!(Instant::now() < end, "the service does not answer:\n{log}");
            std::thread::sleep(Duration::from_millis(10));
        }
    }

    fn stop(&mut self, signal: Signal) {
        if let Some(mut child) = self.service.take() {
            kill(Pid::from_raw(child.id().cast_signed()), signal).expect("signalled");
            child.wait().expect("reaped");
        }
    }

    fn snapshot(&self) -> Option<Snapshot> {
        match Client::connect(&self.socket())
            .ok()?
            .call(&Call::Snapshot)
            .ok()?
        {
            Reply::Snapshot(snapshot) => Some(*snapshot),
            _ => None,
        }
    }

    fn claim(&self, flags: &[&str]) -> Raw {
        let mut command = self.gshare(&["claim", "-q"]);
        command
            .args(flags)
            .arg("--")
            .arg(self.path("bin/raw_client"));
        Raw::start(command)
    }
}

impl Drop for Account {
    fn drop(&mut self) {
        let _ = Command::new("pkill")
            .args(["-KILL", "-u", &self.uid.to_string()])
            .status();
        if let Some(mut child) = self.service.take() {
            let _ = child.wait();
        }
        if let Some(dir) = self.socket().parent() {
            let _ = std::fs::remove_dir_all(dir);
        }
        account("userdel", &[&self.name]);
    }
}

#[test]
fn a_users_own_service_holds_caps_and_finds_claims_again_without_cgroups() {
    if !root("a_users_own_service_holds_caps_and_finds_claims_again_without_cgroups") {
        return;
    }
    let mut account = Account::make();
    account.start();
    let service = account.snapshot().and_then(|s| s.service).expect("served");
    assert_eq!((service.mode.as_str(), service.uid), ("user", account.uid));
    assert!(service.shim);

    // A cap, and a release that is the owner's own signal.
    let mut raw = account.claim(&["-g", "0.25", "--gpu-ids", "0"]);
    let (room, cap) = raw.info();
    let refused = raw.ask(&format!("alloc {}", room + 1));
    assert_eq!(refused, "error 2 CUDA_ERROR_OUT_OF_MEMORY");
    assert_eq!(raw.ask("alloc 1048576"), "ok 0");

    // A claim made inside a claimed shell is its own: the nearest ancestor counts.
    let mut shell = account.gshare(&[
        "claim",
        "-q",
        "-g",
        "0.5",
        "--gpu-ids",
        "0",
        "--",
        "sh",
        "-c",
    ]);
    shell
        .arg("\"$0\" claim -q -g 0.1 --gpu-ids 1 -- \"$1\"; exit 7")
        .arg(account.path("bin/gshare"))
        .arg(account.path("bin/raw_client"));
    let mut inner = Raw::start(shell);
    let snapshot = account.snapshot().expect("served");
    assert_eq!(snapshot.claims.len(), 3);
    let small = snapshot.claims.iter().find(|c| c.gpus[0].gpu == 1);
    assert_eq!(inner.info().1, small.expect("listed").gpus[0].mem_limit);

    // Found again after SIGKILL, with the same ledger.
    account.stop(Signal::SIGKILL);
    assert_eq!(raw.ask("alloc 1048576"), "ok 1");
    account.start();
    let snapshot = account.snapshot().expect("served");
    assert_eq!(snapshot.claims.len(), 3);
    let part = &claim_of(&snapshot, raw.pid()).expect("found again").gpus[0];
    let (free, total) = raw.info();
    assert_eq!((total, Some(total - free)), (cap, part.mem_charge));
    assert_eq!(inner.finish(), Some(7));
    let pid = raw.pid();
    until("only one claim is left", Duration::from_secs(5), || {
        let claims = account.snapshot()?.claims;
        (claims.len() == 1 && claims[0].pid == Some(pid)).then_some(())
    });

    // Other users cannot even connect, and a second service is refused.
    let mut other = Command::new(account.path("bin/gshare"));
    let socket = account.socket();
    let other = other
        .arg("--socket")
        .arg(&socket)
        .arg("ps")
        .uid(65534)
        .gid(65534);
    assert!(!other.output().expect("runs").status.success());
    let second = account
        .gshare(&["daemon", "--user"])
        .output()
        .expect("runs");
    let text = String::from_utf8_lossy(&second.stderr).into_owned();
    assert!(
        !second.status.success() && text.contains("another gshare service"),
        "{text}"
    );
    let released = account
        .gshare(&["release", "--all"])
        .output()
        .expect("runs");
    assert!(released.status.success());
    until("the member ends", Duration::from_secs(5), || {
        raw.child.try_wait().ok().flatten()
    });
}

/// A daemonized child has no ancestor in the claim: its registration says whose it is, and the claim goes on
/// until it has given the GPU back.
#[test]
fn a_daemonized_member_keeps_its_claim_without_cgroups() {
    if !root("a_daemonized_member_keeps_its_claim_without_cgroups") {
        return;
    }
    let mut account = Account::make();
    account.start();
    let fifo = account.path("home/stop");
    let script = "mkfifo stop out; setsid sh -c '\"$0\" < stop > out & exec true' \"$0\"; exec 3> stop; read line < out; echo \"$line\"";
    let mut command = account.gshare(&["claim", "-q", "-g", "0.25", "--", "sh", "-c", script]);
    command.arg(account.path("bin/raw_client"));
    // Keeps the daemon's input open when the command has exited.
    let mut raw = Raw::spawn(command.stderr(Stdio::null()));
    let hold = until("the pipe is there", Duration::from_secs(10), || {
        std::fs::File::options()
            .read(true)
            .write(true)
            .open(&fifo)
            .ok()
    });
    assert_eq!(raw.line(), "ok ready");
    assert_eq!(raw.child.wait().expect("reaped").code(), Some(0));
    let ending = || {
        let snapshot = account.snapshot()?;
        let claim = snapshot.claims.first()?;
        let charged = claim.gpus[0].mem_charge? > 0 && claim.gpus[0].mem_used? > 0;
        (claim.state == ClaimState::Ending && charged).then_some(())
    };
    until(
        "the claim waits for the leftover",
        Duration::from_secs(5),
        ending,
    );
    drop(hold);
    until("it ends with the leftover", Duration::from_secs(10), || {
        account.snapshot()?.claims.is_empty().then_some(())
    });
    let _ = raw;
}
