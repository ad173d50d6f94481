//! The floods, each in a process of the flooding user. They write the wire format as text, so that they can also send
//! what no client of gshare would.

use std::io::{ErrorKind, Read, Write};
use std::os::fd::AsFd;
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use gshare_abi::Bell;
use gshare_abi::wire::{Register, Request};
use serde_json::{Value, json};

/// First argument of the flooding process.
pub(crate) const FLOOD_ARGUMENT: &str = "__bench-abuse";

/// Names of the floods.
pub(super) const KINDS: [&str; 12] = [
    "claims",
    "resizes",
    "half lines",
    "watchers",
    "registrations",
    "questions",
    "stopped readers",
    "waiting claims",
    "reconnects",
    "doorbells",
    "lazy claims",
    "log followers",
];

/// Floods the service at a socket for a number of seconds.
///
/// # Errors
/// When the service does not answer at all.
pub(crate) fn flood(args: &[String]) -> anyhow::Result<()> {
    let [kind, socket, seconds] = args else {
        anyhow::bail!("three arguments are needed");
    };
    let flood = Flood {
        socket: PathBuf::from(socket),
        until: Instant::now() + Duration::from_secs(seconds.parse()?),
    };
    match kind.as_str() {
        "claims" => flood.ask(8, 2, true, claims),
        "resizes" => flood.resizes(),
        "half lines" => flood.half_lines(),
        "watchers" => flood.ask(
            1000,
            1,
            true,
            |_| json!({"op": "watch", "min_interval_ms": 1}),
        ),
        "registrations" => flood.registrations(),
        "questions" => flood.ask(60, 1, true, questions),
        "stopped readers" => flood.ask(200, 100, false, questions),
        "waiting claims" => flood.waiting(),
        "reconnects" => flood.reconnects(),
        "doorbells" => flood.doorbells(),
        "lazy claims" => flood.lazy(),
        "log followers" => flood.log_followers(),
        other => anyhow::bail!("there is no flood `{other}`"),
    }
}

fn claims(n: u64) -> Value {
    let name = format!("f{}", n / 2);
    if n.is_multiple_of(2) {
        let words = vec!["x".repeat(1000); 250];
        json!({"op": "claim", "lazy": true, "name": name, "command": words})
    } else {
        json!({"op": "release", "id": name})
    }
}

fn questions(n: u64) -> Value {
    match n % 6 {
        0 => json!({"op": "lease", "pid": n, "start_ticks": n}),
        1 => json!({"op": "doctor"}),
        2 => json!({"op": "report", "from_ms": 0}),
        3 => json!({"op": "history", "from_ms": 0, "by": "claim"}),
        4 => json!({"op": "suggest", "command": ["python", "t.py", "x".repeat(200)]}),
        _ => json!({"op": "snapshot"}),
    }
}

/// A claim with the longest texts that a client may send.
fn large(n: u64, more: &Value) -> Value {
    let mut claim = json!({
        "op": "claim", "name": format!("{n}{}", "n".repeat(56)),
        "command": vec!["x".repeat(255); 64], "models": [""], "wait": "forever",
    });
    if let (Some(claim), Some(more)) = (claim.as_object_mut(), more.as_object()) {
        claim.extend(more.clone());
    }
    claim
}

struct Flood {
    socket: PathBuf,
    until: Instant,
}

impl Flood {
    fn goes_on(&self) -> bool {
        Instant::now() < self.until
    }

    /// Sends requests on this many connections with `ahead` unanswered on each; `reads` says whether to read the
    /// answers.
    fn ask<Q: Into<Question>>(
        &self,
        connections: usize,
        ahead: usize,
        reads: bool,
        mut question: impl FnMut(u64) -> Q,
    ) -> anyhow::Result<()> {
        let mut lines = self.connect(connections)?;
        let mut n = 0;
        while self.goes_on() {
            let before = n;
            for line in &mut lines {
                if reads {
                    line.drain();
                }
                if !line.flush() {
                    continue;
                }
                if line.unanswered < ahead {
                    line.send(&question(n).into());
                    n += 1;
                }
            }
            if n == before {
                std::thread::sleep(Duration::from_millis(1));
            }
        }
        Ok(())
    }

    /// Opens up to this many connections, as far as the service accepts them.
    fn connect(&self, connections: usize) -> anyhow::Result<Vec<Line>> {
        let mut lines = vec![Line::open(&self.socket)?];
        while lines.len() < connections && self.goes_on() {
            match Line::open(&self.socket) {
                Ok(line) => lines.push(line),
                Err(_) => std::thread::sleep(Duration::from_millis(1)),
            }
        }
        Ok(lines)
    }

    /// Submits a claim of this process; returns its id.
    fn claim(&self, claim: &Value) -> anyhow::Result<(Line, String)> {
        let mut line = Line::open(&self.socket)?;
        line.say(claim);
        let answer = line.answer(self.until)?;
        let id = answer["id"].as_str().unwrap_or_default().to_owned();
        anyhow::ensure!(!id.is_empty(), "no claim: {answer}");
        Ok((line, id))
    }

    fn resizes(&self) -> anyhow::Result<()> {
        let (_line, id) = self.claim(&json!({"op": "claim", "gpus_milli": 200, "hold": true}))?;
        self.ask(
            16,
            4,
            true,
            |n| json!({"op": "resize", "id": id, "gpus_milli": 100 + n % 50}),
        )
    }

    fn half_lines(&self) -> anyhow::Result<()> {
        let mut lines = self.connect(2000)?;
        let half = vec![b'x'; 260_000];
        let half = [
            b"{\"op\":\"watch\",\"min_interval_ms\":3600000}\n".as_slice(),
            &half,
        ]
        .concat();
        for line in &mut lines {
            line.pending.extend_from_slice(&half);
        }
        while self.goes_on() {
            for line in &mut lines {
                line.flush();
                line.drain();
                if line.gone
                    && let Ok(new) = Line::open(&self.socket)
                {
                    *line = new;
                    line.pending.extend_from_slice(&half);
                }
            }
            std::thread::sleep(Duration::from_millis(1));
        }
        Ok(())
    }

    /// Registers for a claim that waits for its GPUs.
    fn registrations(&self) -> anyhow::Result<()> {
        let _held = self.claim(&json!({"op": "claim", "gpus_milli": 2000, "hold": true}))?;
        let claim = json!({"op": "claim", "lazy": true, "gpus_milli": 2000, "command": ["flood"], "wait": "forever"});
        let (_line, _) = self.claim(&claim)?;
        let register = register();
        self.ask(60, usize::MAX, true, |_| Question(register.clone()))
    }

    /// Submits claims that wait, and cancels all at once, repeatedly.
    fn waiting(&self) -> anyhow::Result<()> {
        let mut n = 0;
        while self.goes_on() {
            let mut lines = self.connect(4)?;
            for round in 0..50 {
                for line in &mut lines {
                    n += 1;
                    let _ = round;
                    line.say(&large(n, &json!({"gpus_milli": 2000, "hold": true})));
                    line.drain();
                }
            }
            for _ in 0..200 {
                lines.iter_mut().for_each(|line| {
                    line.flush();
                    line.drain();
                });
                std::thread::sleep(Duration::from_millis(10));
                if !self.goes_on() {
                    break;
                }
            }
        }
        Ok(())
    }

    fn reconnects(&self) -> anyhow::Result<()> {
        while self.goes_on() {
            match Line::open(&self.socket) {
                Ok(mut line) => line.say(&json!({"op": "snapshot"})),
                Err(_) => std::thread::sleep(Duration::from_millis(1)),
            }
        }
        Ok(())
    }

    /// Rings the doorbell of the user's own claim.
    fn doorbells(&self) -> anyhow::Result<()> {
        let claim = json!({"op": "claim", "gpus_milli": 100, "command": ["flood"]});
        let (_line, _) = self.claim(&claim)?;
        let mut stream = UnixStream::connect(&self.socket)?;
        stream.write_all(&register())?;
        let (mut buffer, mut fds) = ([0; 4096], Vec::new());
        gshare_abi::recv_with_fds(stream.as_fd(), &mut buffer, &mut fds)?;
        let bells: Vec<Bell> = fds
            .into_iter()
            .filter_map(|fd| Bell::new(fd).ok())
            .collect();
        anyhow::ensure!(
            !bells.is_empty(),
            "no doorbell: {}",
            String::from_utf8_lossy(&buffer)
        );
        while self.goes_on() {
            for _ in 0..1000 {
                bells.iter().for_each(Bell::ring);
            }
        }
        Ok(())
    }

    /// Starts notebook kernels, with a helper that is stopped.
    fn lazy(&self) -> anyhow::Result<()> {
        let mut lines = self.connect(1)?;
        let id = "k".repeat(64);
        let mut n = 0;
        while self.goes_on() {
            for line in &mut lines {
                line.drain();
                if line.flush() && line.unanswered < 2 {
                    n += 1;
                    let kernel = json!({
                        "id": format!("{n}{}", &id[n.to_string().len()..]),
                        "connection": format!("/tmp/{}/k.json", "d".repeat(200)),
                    });
                    line.say(&large(n, &json!({"lazy": true, "kernel": kernel})));
                }
            }
            if n % 16 == 0 {
                stop_helpers();
            }
            std::thread::sleep(Duration::from_millis(1));
        }
        Ok(())
    }

    fn log_followers(&self) -> anyhow::Result<()> {
        let (mut line, id) =
            self.claim(&json!({"op": "claim", "gpus_milli": 200, "hold": true}))?;
        let half = self.until - (self.until - Instant::now()) / 2;
        for n in 0.. {
            line.say(&json!({"op": "resize", "id": id, "gpus_milli": 100 + n % 50}));
            if line.answer(half).is_err() {
                break;
            }
        }
        self.ask(60, 1, true, |_| json!({"op": "log", "id": id}))
    }
}

/// A request in wire format.
struct Question(Vec<u8>);

impl From<Value> for Question {
    fn from(question: Value) -> Self {
        Self(format!("{question}\n").into_bytes())
    }
}

/// First message of a member.
fn register() -> Vec<u8> {
    Request::Register(Register {
        abi: gshare_abi::ABI_VERSION,
        pid: std::process::id(),
        hint: None,
        looks: false,
    })
    .bytes()
}

/// Stops all notebook helpers that run as this user.
fn stop_helpers() {
    use nix::sys::signal::{Signal, kill};
    let me = nix::unistd::Uid::effective().as_raw();
    for entry in std::fs::read_dir("/proc").into_iter().flatten().flatten() {
        use std::os::unix::fs::MetadataExt;
        let name = entry.file_name();
        let Some(pid) = name.to_str().and_then(|n| n.parse().ok()) else {
            continue;
        };
        let command = std::fs::read(entry.path().join("cmdline")).unwrap_or_default();
        let is_helper = command.split(|b| *b == 0).nth(1) == Some(b"__notebooks");
        if is_helper
            && entry
                .metadata()
                .is_ok_and(|m| m.uid() == me || m.uid() == 0)
        {
            let _ = kill(nix::unistd::Pid::from_raw(pid), Signal::SIGSTOP);
        }
    }
}

/// A non-blocking connection.
struct Line {
    stream: UnixStream,
    pending: Vec<u8>,
    unanswered: usize,
    gone: bool,
    heard: Vec<u8>,
}

impl Line {
    fn open(socket: &Path) -> std::io::Result<Self> {
        let mut stream = UnixStream::connect(socket)?;
        stream.write_all(b"{\"gshare\":1}\n")?;
        stream.set_nonblocking(true)?;
        Ok(Self {
            stream,
            pending: Vec::new(),
            // The greeting counts as unanswered.
            unanswered: 1,
            gone: false,
            heard: Vec::new(),
        })
    }

    fn say(&mut self, value: &Value) {
        self.send(&value.clone().into());
    }

    fn send(&mut self, question: &Question) {
        self.pending.extend_from_slice(&question.0);
        self.unanswered += 1;
        self.flush();
    }

    /// Whether everything has been sent.
    fn flush(&mut self) -> bool {
        while !self.pending.is_empty() && !self.gone {
            match self.stream.write(&self.pending) {
                Ok(n) => drop(self.pending.drain(..n)),
                Err(e) if e.kind() == ErrorKind::WouldBlock => return false,
                Err(_) => self.gone = true,
            }
        }
        !self.gone
    }

    /// Reads what has arrived.
    fn drain(&mut self) {
        let mut buffer = [0; 16 * 1024];
        loop {
            match self.stream.read(&mut buffer) {
                Ok(0) => {
                    self.gone = true;
                    return;
                }
                Ok(n) => {
                    let ends = buffer[..n].iter().filter(|b| **b == b'\n').count();
                    self.unanswered = self.unanswered.saturating_sub(ends);
                    self.heard.clear();
                }
                Err(_) => return,
            }
        }
    }

    /// The next answer after the greeting.
    fn answer(&mut self, until: Instant) -> anyhow::Result<Value> {
        let mut buffer = [0; 16 * 1024];
        loop {
            self.flush();
            while let Some(end) = self.heard.iter().position(|b| *b == b'\n') {
                let line: Vec<u8> = self.heard.drain(..=end).collect();
                self.unanswered = self.unanswered.saturating_sub(1);
                let value: Value = serde_json::from_slice(&line)?;
                if value["reply"] != "hello" {
                    return Ok(value);
                }
            }
            match self.stream.read(&mut buffer) {
                Ok(0) => anyhow::bail!("the service closed the connection"),
                Ok(n) => self.heard.extend_from_slice(&buffer[..n]),
                Err(_) if Instant::now() > until => anyhow::bail!("no answer in time"),
                Err(_) => std::thread::sleep(Duration::from_millis(1)),
            }
        }
    }
}
