//! Notebooks without a browser: a Jupyter client that is driven line by line.

use std::io::{BufRead, BufReader, Write};
use std::path::Path;
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};

use gshare::station::Station;
use serde_json::{Value, json};

use super::python;

/// A Jupyter client of the environment that the tests have made, with a kernel.
pub struct Notebook {
    child: Child,
    stdin: ChildStdin,
    stdout: BufReader<ChildStdout>,
    /// Pid of the kernel when it was started.
    pub pid: u32,
    _home: tempfile::TempDir,
}

impl Notebook {
    /// Installs the kernel with half a GPU, and starts it.
    pub fn start(station: &Station, bin: &Path) -> Self {
        let home = tempfile::tempdir().expect("made");
        let install = |args: &[&str]| {
            let output = jupyter(station.command(), bin, home.path())
                .args(["kernel", "install"])
                .args(args)
                .output();
            let output = output.expect("runs");
            assert!(
                output.status.success(),
                "{}",
                String::from_utf8_lossy(&output.stderr)
            );
        };
        install(&["-g", "0.5", "--user", "--name", "half"]);
        let mut command = jupyter(
            station.client_environment(Command::new(bin.join("python"))),
            bin,
            home.path(),
        );
        command.arg(python::script("notebook.py"));
        let mut child = command
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .expect("python starts");
        let stdin = child.stdin.take().expect("piped");
        let stdout = BufReader::new(child.stdout.take().expect("piped"));
        let mut notebook = Self {
            child,
            stdin,
            stdout,
            pid: 0,
            _home: home,
        };
        let said = notebook.act(&json!({ "do": "start", "kernel": "half" }));
        let pid = said["pid"].as_u64().and_then(|pid| pid.try_into().ok());
        notebook.pid = pid.expect("it has a process");
        notebook
    }

    /// Has it do one step.
    pub fn act(&mut self, step: &Value) -> Value {
        writeln!(self.stdin, "{step}").expect("it reads");
        let mut line = String::new();
        self.stdout.read_line(&mut line).expect("it answers");
        serde_json::from_str(&line).unwrap_or_else(|_| panic!("{step} was answered with `{line}`"))
    }

    /// Runs a cell to its end; what it printed.
    pub fn run(&mut self, code: &str) -> String {
        let said = self.act(&json!({ "do": "run", "code": code }));
        assert_eq!(
            (&said["ended"], &said["error"]),
            (&true.into(), &Value::Null),
            "{said}"
        );
        said["printed"].as_str().unwrap_or_default().to_owned()
    }
}

impl Drop for Notebook {
    fn drop(&mut self) {
        let _ = self.stdin.write_all(b"{\"do\": \"shutdown\"}\n");
        let mut line = String::new();
        let _ = self.stdout.read_line(&mut line);
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
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
