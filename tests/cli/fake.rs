//! A home directory and a thread that plays the service.

use std::fs;
use std::io::{BufRead, BufReader, Read, Write};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::PathBuf;
use std::process::{Child, ChildStderr, Command, Output, Stdio};
use std::thread::JoinHandle;
use std::time::Duration;

use nix::unistd::Pid;
use serde_json::{Value, json};

/// Directory of a test's files; nothing of the caller's environment is used.
pub(crate) struct Home {
    dir: tempfile::TempDir,
}

impl Home {
    pub(crate) fn new() -> Self {
        Self {
            dir: tempfile::tempdir().expect("tempdir"),
        }
    }

    pub(crate) fn path(&self, name: &str) -> PathBuf {
        self.dir.path().join(name)
    }

    /// `gshare` with `args`.
    pub(crate) fn gshare(&self, args: &[&str]) -> Command {
        let mut command = Command::new(env!("CARGO_BIN_EXE_gshare"));
        self.prepare(&mut command).args(args);
        command
    }

    /// What it prints, and its exit code.
    pub(crate) fn output(&self, args: &[&str]) -> Output {
        self.gshare(args).output().expect("gshare")
    }

    /// Gives a command this home and its service.
    pub(crate) fn prepare<'c>(&self, command: &'c mut Command) -> &'c mut Command {
        command
            .current_dir(self.dir.path())
            .env("HOME", self.dir.path())
            .env("XDG_RUNTIME_DIR", self.path("run"))
            .env("XDG_CONFIG_HOME", self.path(".config"))
            .env("GSHARE_SOCKET", self.path("sock"))
            // The thread serves one connection.
            .env("GSHARE_RECONNECT", "0s")
            .env_remove("XDG_STATE_HOME")
            .env_remove("NO_COLOR")
    }

    /// A service for one connection at the usual socket of these tests.
    pub(crate) fn service(&self, serve: impl FnOnce(Conn) -> Value + Send + 'static) -> Service {
        self.service_at("sock", serve)
    }

    pub(crate) fn service_at(
        &self,
        name: &str,
        serve: impl FnOnce(Conn) -> Value + Send + 'static,
    ) -> Service {
        let path = self.path(name);
        let _ = fs::remove_file(&path);
        let listener = UnixListener::bind(&path).expect("bind");
        let thread = std::thread::spawn(move || {
            let (stream, _) = listener.accept().expect("accept");
            // A client that hangs fails the test instead of stopping it.
            let limit = Some(Duration::from_secs(20));
            stream.set_read_timeout(limit).expect("timeout");
            stream.set_write_timeout(limit).expect("timeout");
            let mut conn = Conn(BufReader::new(stream));
            let hello = conn.call();
            assert_eq!(
                hello["gshare"],
                json!(1),
                "the greeting comes first: {hello}"
            );
            serve(conn)
        });
        Service(thread)
    }
}

/// The thread that plays the service.
pub(crate) struct Service(JoinHandle<Value>);

impl Service {
    /// Its result.
    pub(crate) fn join(self) -> Value {
        match self.0.join() {
            Ok(value) => value,
            Err(panic) => std::panic::resume_unwind(panic),
        }
    }
}

/// The service's end of a connection.
pub(crate) struct Conn(BufReader<UnixStream>);

impl Conn {
    /// The client's next line.
    pub(crate) fn call(&mut self) -> Value {
        let mut line = String::new();
        self.0.read_line(&mut line).expect("a line");
        serde_json::from_str(&line).unwrap_or_else(|e| panic!("{e}: {line:?}"))
    }

    pub(crate) fn send(&mut self, reply: &Value) {
        assert!(self.try_send(reply), "the client is gone");
    }

    /// False when the client is gone.
    pub(crate) fn try_send(&mut self, reply: &Value) -> bool {
        writeln!(self.0.get_mut(), "{reply}").is_ok()
    }

    /// Waits for the client to close, or to execute its command (which must not inherit the connection).
    pub(crate) fn wait_closed(&mut self) {
        let mut rest = Vec::new();
        match self.0.read_to_end(&mut rest) {
            Ok(_) => assert_eq!(
                String::from_utf8_lossy(&rest),
                "",
                "more than was asked for"
            ),
            // A client that left with unread replies resets the connection.
            Err(e) if e.kind() == std::io::ErrorKind::ConnectionReset => {}
            Err(e) => panic!("the connection stays open: {e}"),
        }
    }
}

pub(crate) fn stdout(output: &Output) -> String {
    String::from_utf8_lossy(&output.stdout).into_owned()
}

pub(crate) fn stderr(output: &Output) -> String {
    String::from_utf8_lossy(&output.stderr).into_owned()
}

/// Standard output has these words.
pub(crate) fn says(output: &Output, words: &str) {
    let text = stdout(output);
    assert!(text.contains(words), "{words}: {text}");
}

/// Standard error has these words.
pub(crate) fn complains(output: &Output, words: &str) {
    let text = stderr(output);
    assert!(text.contains(words), "{words}: {text}");
}

pub(crate) fn grant() -> Value {
    json!({
        "reply": "granted", "id": "c3",
        "message": "c3: 0.50 of GPU 1 (11.8 GiB, 50 % of its time, up to 100 %), cooperative; ends with this command",
        "env": [["GSHARE_CLAIM_ID", "c3"], ["CUDA_VISIBLE_DEVICES", "GPU-1"]],
        "env_prepend": [["LD_LIBRARY_PATH", "/shim/c3"]],
        "phases_us": [["journal", 120]],
        "a_field_of_a_newer_service": true
    })
}

pub(crate) fn queued(position: u32, reason: &str) -> Value {
    json!({"reply": "queued", "id": "c22", "position": position, "reason": reason, "would_start": "-g 0.2"})
}

pub(crate) fn error(code: &str, message: &str, hint: Option<&str>) -> Value {
    json!({"reply": "error", "code": code, "message": message, "hint": hint})
}

/// Serves one claim with `replies` and then waits for the client to close; returns the claim.
pub(crate) fn serve_claim(replies: Vec<Value>) -> impl FnOnce(Conn) -> Value + Send + 'static {
    move |mut conn| {
        let claim = conn.call();
        for reply in &replies {
            conn.send(reply);
        }
        conn.wait_closed();
        claim
    }
}

/// Runs `gshare ARGS` against a service that answers its one claim with `replies`.
pub(crate) fn run(home: &Home, args: &[&str], replies: Vec<Value>) -> (Output, Value) {
    let service = home.service(serve_claim(replies));
    (home.output(args), service.join())
}

pub(crate) fn code(output: &Output) -> Option<i32> {
    output.status.code()
}

/// A client whose stderr is read line by line.
pub(crate) fn spawn(home: &Home, args: &[&str]) -> (Child, BufReader<ChildStderr>) {
    start(home.gshare(args))
}

/// Starts a command whose messages are read.
pub(crate) fn start(mut command: Command) -> (Child, BufReader<ChildStderr>) {
    command
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped());
    let mut child = command.spawn().expect("gshare");
    let lines = BufReader::new(child.stderr.take().expect("stderr"));
    (child, lines)
}

pub(crate) fn line(reader: &mut impl BufRead) -> String {
    let mut line = String::new();
    reader.read_line(&mut line).expect("a line");
    line
}

pub(crate) fn pid(child: &Child) -> Pid {
    Pid::from_raw(i32::try_from(child.id()).expect("pid"))
}
