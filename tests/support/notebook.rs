//! Notebooks without a browser: a Jupyter client that is driven line by line.

use std::io::{BufRead, BufReader, Write};
use std::os::unix::fs::chown;
use std::path::Path;
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};

use gshare::station::Station;
use serde_json::{Value, json};

use super::python;
use super::users::as_user;

/// The last output of a cell of `ADD`.
pub const ADDED: &str = "sum 32896.0";
/// A cell of Numba, which remembers whether it has initialised the driver.
pub const ADD: &str = "\
import numpy as np
from numba import cuda
@cuda.jit
def add(x, y):
    y[cuda.grid(1)] = x[cuda.grid(1)] + 1
x = cuda.to_device(np.arange(256.0))
y = cuda.device_array(256)
add[1, 256](x, y)
print('sum', y.copy_to_host().sum())";

/// A kernel without a kernelspec, as editors start it: runs the cell of its argument, says so, and ends at a line of input.
pub const BARE: &str = "\
import sys, json; from jupyter_client import BlockingKernelClient as B, write_connection_file as w
import subprocess, sys
f, _ = w('bare.json')
p = subprocess.Popen([sys.executable, '-m', 'ipykernel_launcher', '-f', f], stdout=subprocess.DEVNULL)
c = B(connection_file=f); c.load_connection_file(); c.start_channels()
for i in range(60):
  try: c.wait_for_ready(timeout=60); break
  except RuntimeError: assert p.poll() is None and i < 59
r = c.execute_interactive(sys.argv[1], timeout=60)
print(r['content']['status'], flush=True); sys.stdin.readline(); p.kill(); p.wait()
";

/// A script of `tests/python` that is driven line by line.
pub struct Script {
    child: Child,
    stdin: ChildStdin,
    stdout: BufReader<ChildStdout>,
    last: &'static str,
}

impl Script {
    /// Starts it; its last step is `last`.
    pub fn start(mut command: Command, last: &'static str) -> Self {
        let mut child = command
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .expect("python starts");
        let stdin = child.stdin.take().expect("piped");
        let stdout = BufReader::new(child.stdout.take().expect("piped"));
        Self {
            child,
            stdin,
            stdout,
            last,
        }
    }

    /// Has it do one step.
    pub fn act(&mut self, step: &Value) -> Value {
        writeln!(self.stdin, "{step}").expect("it reads");
        let mut line = String::new();
        self.stdout.read_line(&mut line).expect("it answers");
        if line.is_empty() {
            panic!("{step} ended the script: {:?}", self.child.wait());
        }
        serde_json::from_str(&line).unwrap_or_else(|_| panic!("{step} was answered with `{line}`"))
    }
}

impl Drop for Script {
    fn drop(&mut self) {
        let _ = writeln!(self.stdin, "{}", json!({ "do": self.last }));
        let mut line = String::new();
        let _ = self.stdout.read_line(&mut line);
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// A script in a home where a kernel of gshare is installed.
pub struct Driven {
    script: Script,
    pub home: tempfile::TempDir,
}

impl Driven {
    /// Installs the kernel of `bin` with these flags, and starts the script with the Python of `client`; its last step
    /// is `last`.
    pub fn start(
        station: &Station,
        [bin, client]: [&Path; 2],
        install: &[&str],
        [script, last]: [&'static str; 2],
        change: impl FnOnce(&mut Command),
    ) -> Self {
        Self::start_as(
            None,
            station,
            [bin, client],
            install,
            [script, last],
            change,
        )
    }

    /// The same, by another user.
    pub fn start_as(
        user: Option<u32>,
        station: &Station,
        [bin, client]: [&Path; 2],
        install: &[&str],
        [script, last]: [&'static str; 2],
        change: impl FnOnce(&mut Command),
    ) -> Self {
        let home = tempfile::tempdir().expect("made");
        if let Some(uid) = user {
            chown(home.path(), Some(uid), Some(uid)).expect("given");
        }
        let by_user = |command: Command| match user {
            Some(uid) => as_user(command, uid),
            None => command,
        };
        let mut first = jupyter(station.command(), bin, home.path());
        first.args(["kernel", "install"]).args(install);
        let output = by_user(first).output().expect("runs");
        assert!(
            output.status.success(),
            "{}",
            String::from_utf8_lossy(&output.stderr)
        );
        let command = station.client_environment(Command::new(client.join("python")));
        let mut command = jupyter(command, client, home.path());
        command.arg(python::script(script));
        change(&mut command);
        let script = Script::start(by_user(command), last);
        Self { script, home }
    }

    /// Has it do one step. A text that it waited for must have been printed.
    pub fn act(&mut self, step: &Value) -> Value {
        let said = self.script.act(step);
        if let (Some(text), Some(printed)) = (step["until"].as_str(), said["printed"].as_str()) {
            assert!(printed.contains(text), "no `{text}` in {said}");
        }
        said
    }
}

/// A Jupyter client of the tests' environment, with a kernel.
pub struct Notebook {
    client: Driven,
    /// Pid of the kernel when it was started.
    pub pid: u32,
}

impl Notebook {
    /// Installs the kernel with half a GPU, and starts it.
    pub fn start(station: &Station, bin: &Path) -> Self {
        Self::start_as(None, station, bin)
    }

    /// The same, by another user.
    pub fn start_as(user: Option<u32>, station: &Station, bin: &Path) -> Self {
        let install = ["-g", "0.5", "--user", "--name", "half"];
        let script = ["notebook.py", "shutdown"];
        let mut client = Driven::start_as(user, station, [bin, bin], &install, script, |_| ());
        let said = client.act(&json!({ "do": "start", "kernel": "half" }));
        let pid = said["pid"].as_u64().and_then(|pid| pid.try_into().ok());
        let pid = pid.expect("it has a process");
        Self { client, pid }
    }

    /// Has it do one step.
    pub fn act(&mut self, step: &Value) -> Value {
        self.client.act(step)
    }

    /// Stops a cell at a breakpoint and lets it go on.
    pub fn debugs(&mut self) {
        let code = "a = 6\nb = a * 7\nprint('product', b)";
        let said = self.act(&json!({ "do": "debug", "code": code, "line": 2 }));
        assert_eq!(said["stopped"], 2, "{said}");
        let printed = said["printed"].as_str().unwrap_or_default();
        assert!(printed.contains("product 42\n"), "{said}");
    }

    /// Runs a cell to its end; its output.
    pub fn run(&mut self, code: &str) -> String {
        let said = self.act(&json!({ "do": "run", "code": code }));
        assert_eq!(
            (&said["ended"], &said["error"]),
            (&true.into(), &Value::Null),
            "{said}"
        );
        without_grant(said["printed"].as_str().unwrap_or_default())
    }
}

/// A cell's own output: gshare's line about the notebook's GPU may come at any time.
pub fn without_grant(printed: &str) -> String {
    let own = printed.split_inclusive('\n');
    own.filter(|line| {
        !(line.starts_with("gshare: c")
            && line.contains(" of GPU ")
            && line.contains(", up to 100 %)"))
    })
    .collect()
}

/// Whether another user may run that Python; says why it skips if not.
pub fn may_run(test: &str, bin: &Path, uid: u32) -> bool {
    let mut try_it = Command::new(bin.join("python"));
    try_it.args(["-c", "import ipykernel"]).current_dir("/");
    let may = as_user(try_it, uid).status().is_ok_and(|s| s.success());
    if !may {
        println!("skipped: {test} needs a Python that other users may run");
    }
    may
}

/// A command with the tests' Python environment in use, and a home of its own.
pub fn jupyter(mut command: Command, bin: &Path, home: &Path) -> Command {
    let path = std::env::var("PATH").unwrap_or_default();
    command
        .env("PATH", format!("{}:{path}", bin.display()))
        .env("VIRTUAL_ENV", bin.parent().unwrap_or(bin))
        .env("HOME", home)
        .env_remove("JUPYTER_PATH")
        .env_remove("JUPYTER_DATA_DIR")
        .env_remove("XDG_DATA_HOME");
    command
}
