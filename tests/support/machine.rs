//! A machine with a real systemd as its pid 1, in namespaces of this one: Debian from `mmdebstrap`, made once under
//! `target/`, below an overlay of the test's own.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};
use std::time::{Duration, Instant};

use gshare_sim_board::{Board, BoardSpec};

use super::until;

/// A machine; dropping it switches it off and deletes its changes.
#[derive(Debug)]
pub struct Machine {
    work: tempfile::TempDir,
    root: PathBuf,
    hybrid: bool,
    running: Option<Running>,
}

#[derive(Debug)]
struct Running {
    unshare: Child,
    init: u32,
    cgroups: Vec<PathBuf>,
}

impl Machine {
    /// Starts one, with cgroups of version 2 only or (`hybrid`) beside version 1; `None`, and the reason on stdout,
    /// if that is not possible.
    pub fn boot(test: &str, hybrid: bool) -> Option<Self> {
        Self::boot_debian("bookworm", test, hybrid)
    }

    /// The same with a release of Debian of one's choice.
    pub fn boot_debian(release: &str, test: &str, hybrid: bool) -> Option<Self> {
        if !super::is_root(test) {
            return None;
        }
        let root = match debian(release) {
            Ok(root) => root,
            Err(why) => {
                println!("skipped: {test} needs a machine with systemd: {why}");
                return None;
            }
        };
        let work = tempfile::Builder::new()
            .prefix("machine-")
            .tempdir_in(env!("CARGO_TARGET_TMPDIR"))
            .expect("a directory");
        let mut machine = Self {
            work,
            root,
            hybrid,
            running: None,
        };
        match machine.start() {
            Ok(()) => Some(machine),
            Err(why) => {
                println!("skipped: {test} needs a machine with systemd: {why}");
                None
            }
        }
    }

    /// Switches it on (again).
    pub fn start(&mut self) -> Result<(), String> {
        let name = format!(
            "gshare-test-{}",
            self.work
                .path()
                .file_name()
                .expect("a name")
                .to_string_lossy()
        );
        let mut cgroups = Vec::new();
        let mounts = fs::read_to_string("/proc/mounts").map_err(|e| e.to_string())?;
        for line in mounts.lines() {
            let fields: Vec<&str> = line.split(' ').collect();
            let named = fields[2] == "cgroup" && fields[3].contains("name=systemd");
            if (fields[2] == "cgroup2" || named) && !fields[1].contains("machine-") {
                let dir = Path::new(fields[1]).join(&name);
                fs::create_dir_all(&dir).map_err(|e| format!("{}: {e}", dir.display()))?;
                cgroups.push(dir);
            }
        }
        if cgroups.is_empty() {
            return Err("no cgroup2 is mounted".to_owned());
        }
        let enter: String = cgroups
            .iter()
            .map(|dir| format!("echo $$ > {}/cgroup.procs && ", dir.display()))
            .collect();
        let script = format!(
            "{enter}exec setpriv --pdeathsig KILL unshare --mount --pid --uts --ipc --cgroup --fork --kill-child \"$@\""
        );
        let boot = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/systemd/boot.sh");
        let log = fs::File::create(self.work.path().join("boot.log")).map_err(|e| e.to_string())?;
        let unshare = Command::new("bash")
            .args(["-c", &script, "bash"])
            .arg(boot)
            .args([&self.root, self.work.path()])
            .arg(if self.hybrid { "hybrid" } else { "unified" })
            .stdin(Stdio::null())
            .stdout(log.try_clone().map_err(|e| e.to_string())?)
            .stderr(log)
            .spawn()
            .map_err(|e| format!("bash: {e}"))?;
        let pid = unshare.id();
        let mut running = Running {
            unshare,
            init: 0,
            cgroups,
        };
        running.init = until("pid 1 is systemd", Duration::from_secs(20), || {
            let gone = running.unshare.try_wait().ok().flatten().is_some();
            let children = fs::read_to_string(format!("/proc/{pid}/task/{pid}/children"));
            let child = children.unwrap_or_default().trim().parse::<u32>().ok();
            let comm = child.and_then(|c| fs::read_to_string(format!("/proc/{c}/comm")).ok());
            if gone {
                return Some(0);
            }
            child.filter(|_| comm.is_some_and(|c| c.trim() == "systemd"))
        });
        if running.init == 0 {
            let log = fs::read_to_string(self.work.path().join("boot.log")).unwrap_or_default();
            return Err(log.trim().to_owned());
        }
        self.running = Some(running);
        until("the machine is up", Duration::from_secs(60), || {
            let state = self.run("systemctl is-system-running");
            let state = String::from_utf8_lossy(&state.stdout).trim().to_owned();
            ["running", "degraded"].contains(&state.as_str())
        });
        Ok(())
    }

    /// Switches it off like `systemctl poweroff`: all units stop in their order.
    pub fn power_off(&mut self) {
        self.run("systemctl poweroff");
        let mut running = self.running.take().expect("on");
        until("the machine is off", Duration::from_secs(60), || {
            running.unshare.try_wait().ok().flatten()
        });
        drop(running);
    }

    /// A path of the machine, as seen from here.
    pub fn path(&self, path: &str) -> PathBuf {
        let init = self.running.as_ref().expect("on").init;
        PathBuf::from(format!("/proc/{init}/root")).join(path.trim_start_matches('/'))
    }

    /// A command line for bash in the machine, as root.
    pub fn command(&self, line: &str) -> Command {
        let init = self.running.as_ref().expect("on").init;
        let mut command = Command::new("nsenter");
        command
            .args(["-t", &init.to_string(), "-m", "-p", "-u", "-i", "-C", "--"])
            .args([
                "env",
                "-i",
                "PATH=/usr/local/bin:/usr/bin:/usr/sbin:/bin:/sbin",
                "HOME=/root",
            ])
            .args(["bash", "-c", line])
            .stdin(Stdio::null());
        command
    }

    pub fn run(&self, line: &str) -> Output {
        self.command(line).output().expect("nsenter runs")
    }

    /// Runs it and returns its output; anything but success fails the test.
    pub fn ok(&self, line: &str) -> String {
        let output = self.run(line);
        let text = String::from_utf8_lossy(&output.stdout).trim().to_owned();
        assert!(
            output.status.success(),
            "{line}: {:?}\n{text}\n{}\n{}",
            output.status.code(),
            String::from_utf8_lossy(&output.stderr),
            String::from_utf8_lossy(&self.run("journalctl -n 30 -o cat --no-pager").stdout),
        );
        text
    }

    /// The claims of its service; none while that does not answer.
    pub fn claims(&self) -> Vec<serde_json::Value> {
        let output = self.run("gshare ps --json");
        let value: serde_json::Value = serde_json::from_slice(&output.stdout).unwrap_or_default();
        value["claims"].as_array().cloned().unwrap_or_default()
    }

    /// Installs the simulated driver with these GPUs as a real one would be, and makes the user ada.
    pub fn simulate(&self, models: &[&str]) {
        let sim = self.path("/opt/sim");
        fs::create_dir_all(&sim).expect("a directory");
        drop(Board::create(&sim.join("board"), &BoardSpec::new(models)).expect("a board"));
        gshare_artifacts::stage_sim(&sim).expect("staged");
        fs::write(sim.join("costs"), "").expect("written");
        fs::write(self.path("/etc/ld.so.conf.d/sim.conf"), "/opt/sim/lib\n").expect("written");
        self.ok("chmod 755 /opt/sim /opt && chmod 666 /opt/sim/board && ldconfig && useradd -m -u 1000 -s /bin/bash ada");
    }

    /// Copies a program into the machine.
    pub fn copy(&self, from: &Path, to: &str) {
        fs::create_dir_all(self.path(to).parent().expect("a parent")).expect("made");
        fs::copy(from, self.path(to)).expect("copied");
        self.ok(&format!("chmod 755 {to}"));
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        let _ = self.unshare.kill();
        let _ = self.unshare.wait();
        for top in &self.cgroups {
            // The last processes of the machine may still be dying. No panic here: the test may already be in one.
            let end = Instant::now() + Duration::from_secs(10);
            while top.exists() && Instant::now() < end {
                remove_below(top);
                std::thread::sleep(Duration::from_millis(5));
            }
        }
    }
}

/// Removes a tree of cgroups.
pub fn remove_below(dir: &Path) {
    for entry in fs::read_dir(dir).into_iter().flatten().flatten() {
        if entry.file_type().is_ok_and(|t| t.is_dir()) {
            remove_below(&entry.path());
        }
    }
    let _ = fs::remove_dir(dir);
}

/// The directory with this Debian, made if needed.
fn debian(release: &str) -> Result<PathBuf, String> {
    let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/systemd/debian");
    let mut make = Command::new(script);
    make.args([release, env!("CARGO_TARGET_TMPDIR")]);
    let made = make.output().map_err(|e| format!("{make:?}: {e}"))?;
    if made.status.success() {
        return Ok(PathBuf::from(
            String::from_utf8_lossy(&made.stdout).trim_end(),
        ));
    }
    let said = String::from_utf8_lossy(&made.stderr);
    Err(said.lines().last().unwrap_or_default().to_owned())
}
