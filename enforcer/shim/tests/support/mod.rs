//! A claim in miniature: a desk at which processes register, a driver, and a program that makes driver calls on
//! command.

#![allow(
    clippy::unwrap_used,
    unsafe_code,
    reason = "a test fails by panicking; the client calls C functions"
)]
#![allow(dead_code, reason = "each test file uses its part")]

mod burst;
pub(crate) mod client;

use std::{
    fs::{self, File},
    io::{BufRead, BufReader, Read, Write},
    os::{
        fd::{AsFd, AsRawFd},
        unix::net::{UnixListener, UnixStream},
    },
    path::{Path, PathBuf},
    process::{Child, ChildStdin, ChildStdout, Command, Stdio},
    sync::{
        Arc, Mutex,
        atomic::{AtomicUsize, Ordering},
    },
    thread,
};

use gshare_abi::{
    GpuUuid,
    host::{Doorbell, LimitsFile, LimitsInit, SlotView, UsageMemfd},
    send_with_fds,
    wire::{Answer, Register, Request, Seat, read_request},
};
use gshare_artifacts::{Mode, stage_shim};
use gshare_sim_board::{Board, BoardSpec};

pub(crate) const MIB: u64 = 1 << 20;
pub(crate) const GIB: u64 = 1 << 30;
pub(crate) const OVERHEAD: u64 = 100 * MIB;
pub(crate) const GPU_BYTES: u64 = 64 << 30;

/// UUIDs of the fake driver's GPUs.
pub(crate) fn uuid(gpu: usize) -> GpuUuid {
    GpuUuid([0x11 + gpu as u8; 16])
}

/// A GPU of the claim on the service's side.
pub(crate) struct Held {
    pub(crate) uuid: GpuUuid,
    pub(crate) limits: LimitsFile,
    pub(crate) usage: UsageMemfd,
    /// `None` once the service is gone.
    pub(crate) doorbell: Option<Doorbell>,
}

pub(crate) struct Desk {
    pub(crate) directory: tempfile::TempDir,
    pub(crate) held: Arc<Mutex<Vec<Held>>>,
    pub(crate) registrations: Arc<AtomicUsize>,
    pub(crate) last: Arc<Mutex<Option<Register>>>,
    refuse: Arc<Mutex<Option<&'static str>>>,
}

impl Desk {
    /// A claim with this cap on each of these fake GPUs, the shim staged before the fake driver, and the service's side
    /// of the socket.
    pub(crate) fn open(gpus: &[(usize, u64)]) -> Self {
        let directory = tempfile::tempdir().unwrap();
        let driver = build_fake(directory.path());
        Self::before(
            directory,
            &driver,
            gpus.iter().map(|(gpu, cap)| (uuid(*gpu), *cap, OVERHEAD)),
        )
    }

    /// The same with a driver that has NVML.
    pub(crate) fn with_nvml(gpus: &[(usize, u64)]) -> Self {
        let directory = tempfile::tempdir().unwrap();
        let driver = build_fake(directory.path());
        build_library(directory.path(), "libnvidia-ml");
        Self::before(
            directory,
            &driver,
            gpus.iter().map(|(gpu, cap)| (uuid(*gpu), *cap, OVERHEAD)),
        )
    }

    /// The same with any driver, with UUID, cap and context overhead of each GPU.
    pub(crate) fn before(
        directory: tempfile::TempDir,
        driver: &Path,
        gpus: impl Iterator<Item = (GpuUuid, u64, u64)>,
    ) -> Self {
        let socket = directory.path().join("s");
        stage_shim(
            &directory.path().join("shim"),
            driver,
            &socket,
            Mode::Preload,
        )
        .unwrap();
        let held = gpus
            .map(|(uuid, cap, overhead)| {
                let init = LimitsInit {
                    claim: 3,
                    uuid,
                    token: 42,
                    epoch: 1,
                    memory_cap_bytes: cap,
                    memory_request_bytes: cap,
                    context_overhead_bytes: overhead,
                    ..LimitsInit::default()
                };
                let path = directory.path().join(uuid.to_string());
                Held {
                    uuid,
                    limits: LimitsFile::create(&path, &init).unwrap(),
                    usage: UsageMemfd::create(3, uuid, 42).unwrap(),
                    doorbell: Some(Doorbell::new().unwrap()),
                }
            })
            .collect();
        let desk = Self {
            directory,
            held: Arc::new(Mutex::new(held)),
            registrations: Arc::default(),
            last: Arc::default(),
            refuse: Arc::default(),
        };
        desk.listen();
        desk
    }

    /// A claim on the simulated driver, whose kernels have these costs. Of the board's models it has those of `gpus`,
    /// each with a cap by its place in `gpus` and the overhead of a context. Returns that overhead, too.
    pub(crate) fn simulated(
        models: &[&str],
        costs: &str,
        gpus: &[usize],
        cap: impl Fn(usize, u64) -> u64,
    ) -> (Self, Board, u64) {
        let directory = tempfile::tempdir().unwrap();
        let sim = directory.path().join("sim");
        gshare_artifacts::stage_sim(&sim).unwrap();
        if !costs.is_empty() {
            fs::write(sim.join("costs"), costs).unwrap();
        }
        let board = Board::create(&sim.join("board"), &BoardSpec::new(models)).unwrap();
        let all = board.snapshot().gpus;
        let overhead = all[gpus[0]].model.context_overhead;
        let held = gpus.iter().enumerate().map(|(nth, gpu)| {
            let uuid = GpuUuid(all[*gpu].uuid_bytes);
            assert_eq!(all[*gpu].uuid, uuid.to_string());
            (uuid, cap(nth, overhead), overhead)
        });
        let desk = Self::before(directory, &sim.join("lib/libcuda.so.1"), held);
        (desk, board, overhead)
    }

    /// Changes the shim to the one that a launcher puts in the fake driver's place.
    pub(crate) fn be_strict(&self) {
        let directory = self.directory.path();
        let driver = directory.join("real/libcuda.so.1");
        stage_shim(
            &directory.join("shim"),
            &driver,
            &self.socket(),
            Mode::Strict,
        )
        .unwrap();
    }

    pub(crate) fn socket(&self) -> PathBuf {
        self.directory.path().join("s")
    }

    fn listen(&self) {
        let listener = UnixListener::bind(self.socket()).unwrap();
        let (held, count) = (Arc::clone(&self.held), Arc::clone(&self.registrations));
        let (last, refuse) = (Arc::clone(&self.last), Arc::clone(&self.refuse));
        // Ends with the test process.
        thread::spawn(move || {
            for stream in listener.incoming() {
                let Ok(mut stream) = stream else { return };
                let Ok(Request::Register(request)) = read_request(&mut stream) else {
                    continue;
                };
                if let Some(code) = *refuse.lock().unwrap() {
                    let answer = Answer::Refused {
                        code: code.into(),
                        message: format!("process {} gets no seat", request.pid),
                    };
                    stream.write_all(&answer.bytes()).unwrap();
                    continue;
                }
                *last.lock().unwrap() = Some(request.clone());
                count.fetch_add(1, Ordering::SeqCst);
                answer(&stream, &request, &mut held.lock().unwrap());
            }
        });
    }

    /// Refuses membership to everybody from now on.
    pub(crate) fn refuse_all(&self) {
        self.refuse_with("no_claim");
    }

    /// Refuses everybody with this code from now on.
    pub(crate) fn refuse_with(&self, code: &'static str) {
        *self.refuse.lock().unwrap() = Some(code);
    }

    /// The members' figures on the claim's n-th GPU.
    pub(crate) fn slots(&self, nth: usize) -> Vec<SlotView> {
        self.held.lock().unwrap()[nth].usage.read_slots(GPU_BYTES)
    }

    /// Bytes charged on the claim's n-th GPU.
    pub(crate) fn charged(&self, nth: usize) -> u64 {
        self.held.lock().unwrap()[nth]
            .usage
            .charged_bytes(GPU_BYTES)
    }

    /// Frees the slots of dead processes, like the service.
    pub(crate) fn reap(&self, pid: u32) {
        for held in self.held.lock().unwrap().iter_mut() {
            let owners: Vec<_> = held.usage.owners().collect();
            for (seat, owner, _) in owners {
                if owner == pid {
                    assert!(held.usage.reclaim(seat.slot, seat.generation));
                }
            }
        }
    }

    /// Starts the program with the shim in front.
    pub(crate) fn client(&self) -> Client {
        self.client_with(&[])
    }

    pub(crate) fn client_with(&self, environment: &[(&str, &str)]) -> Client {
        Client::start(&self.directory.path().join("shim"), |command| {
            command.env("FAKE_BOARD", self.directory.path().join("board"));
            command.envs(environment.iter().copied());
        })
    }

    /// The same for a Python script, which answers like the program.
    pub(crate) fn script(&self, text: &str) -> Client {
        let mut python = Command::new("python3");
        python.args(["-c", text]);
        Client::of(python, &self.directory.path().join("shim"), |_| {})
    }

    /// Bytes in use now, and the highest so far, on one of the fake GPUs: the driver's own figures.
    pub(crate) fn board(&self, gpu: usize) -> (u64, u64) {
        let bytes = fs::read(self.directory.path().join("board")).unwrap();
        let word = |at: usize| u64::from_ne_bytes(bytes[at * 8..][..8].try_into().unwrap());
        (word(gpu), word(2 + gpu))
    }
}

fn answer(stream: &UnixStream, request: &Register, held: &mut [Held]) {
    let stat = fs::read_to_string(format!("/proc/{}/stat", request.pid)).unwrap();
    let fields = stat.rsplit_once(')').unwrap().1;
    let start = fields.split_whitespace().nth(19).unwrap().parse().unwrap();
    let mut seats = Vec::new();
    let mut limits = Vec::new();
    for gpu in held.iter_mut() {
        let seat = gpu.usage.assign_slot(request.pid, start).unwrap();
        seats.push(Seat {
            uuid: gpu.uuid,
            slot: seat.slot,
            generation: seat.generation,
        });
        limits.push(gpu.limits.member_fd().unwrap());
    }
    let mut fds = Vec::new();
    for (gpu, limits) in held.iter().zip(&limits) {
        fds.push(limits.as_fd());
        fds.push(gpu.usage.fd());
    }
    fds.extend(
        held.iter()
            .flat_map(|gpu| &gpu.doorbell)
            .map(Doorbell::member_fd),
    );
    let message = Answer::Member {
        claim: 3,
        name: "c3".into(),
        gpus: seats,
        env: Vec::new(),
    }
    .bytes();
    assert_eq!(
        send_with_fds(stream.as_fd(), &message, &fds).unwrap(),
        message.len()
    );
}

/// Compiles the fake driver and makes its board.
pub(crate) fn build_fake(directory: &Path) -> PathBuf {
    fs::create_dir(directory.join("real")).unwrap();
    File::create(directory.join("board"))
        .unwrap()
        .write_all(&[0; 32])
        .unwrap();
    build_library(directory, "libcuda")
}

fn build_library(directory: &Path, name: &str) -> PathBuf {
    let library = directory.join("real").join(format!("{name}.so.1"));
    let sources = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/fake");
    let status = Command::new("cc")
        .args(["-O1", "-shared", "-fPIC", "-fvisibility=hidden"])
        .arg(format!("-Wl,-soname,{name}.so.1"))
        .args(["-Wl,-Bsymbolic", "-o"])
        .args([&library, &sources.join(format!("{name}.c"))])
        .arg("-lpthread")
        .status()
        .unwrap();
    assert!(status.success(), "the fake {name} does not compile");
    library
}

pub(crate) struct Client {
    pub(crate) child: Child,
    input: Option<ChildStdin>,
    output: BufReader<ChildStdout>,
}

/// Longest wait for an answer.
const PATIENCE_MS: i32 = 60_000;

impl Client {
    pub(crate) fn start(libraries: &Path, prepare: impl FnOnce(&mut Command)) -> Self {
        let mut command = Command::new(std::env::current_exe().unwrap());
        command
            .args(["--exact", "support::client::client", "--nocapture"])
            .env("SHIM_TEST_CLIENT", "1");
        Self::of(command, libraries, prepare)
    }

    fn of(mut command: Command, libraries: &Path, prepare: impl FnOnce(&mut Command)) -> Self {
        command
            .env("LD_LIBRARY_PATH", libraries)
            .env_remove("GSHARE_CLAIM_ID")
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped());
        prepare(&mut command);
        let mut child = command.spawn().unwrap();
        let input = child.stdin.take();
        let output = BufReader::new(child.stdout.take().unwrap());
        Self {
            child,
            input,
            output,
        }
    }

    /// Gives the program an order without waiting.
    pub(crate) fn tell(&mut self, order: &str) {
        writeln!(self.input.as_mut().unwrap(), "{order}").unwrap();
    }

    /// The program's next answer: the driver's code and a number.
    pub(crate) fn hear(&mut self) -> (i32, u64) {
        let mut line = String::new();
        loop {
            line.clear();
            if self.output.buffer().is_empty() {
                let mut waiting = libc::pollfd {
                    fd: self.output.get_ref().as_raw_fd(),
                    events: libc::POLLIN,
                    revents: 0,
                };
                // SAFETY: one valid entry.
                let ready = unsafe { libc::poll(&raw mut waiting, 1, PATIENCE_MS) };
                assert_eq!(ready, 1, "the client does not answer");
            }
            assert!(
                self.output.read_line(&mut line).unwrap() > 0,
                "client ended"
            );
            if let Some(answer) = line.strip_prefix("> ") {
                let (code, value) = answer.trim().split_once(' ').unwrap();
                return (code.parse().unwrap(), value.parse().unwrap());
            }
        }
    }

    pub(crate) fn ask(&mut self, order: &str) -> (i32, u64) {
        self.tell(order);
        self.hear()
    }

    /// Gives an order that must succeed; returns the number.
    pub(crate) fn must(&mut self, order: &str) -> u64 {
        let (code, value) = self.ask(order);
        assert_eq!(code, 0, "{order}");
        value
    }

    /// Initialises the driver and makes the primary context of a device current.
    pub(crate) fn begin(&mut self, device: i32) {
        self.must("init");
        self.must(&format!("retain {device}"));
    }

    pub(crate) fn pid(&self) -> u32 {
        self.child.id()
    }

    /// Ends the program regularly; returns its stderr.
    pub(crate) fn end(self) -> String {
        let (status, said) = self.ends();
        assert!(status.success(), "{status:?}");
        said
    }

    /// Waits for the program's end after its last order; returns the status and its stderr.
    pub(crate) fn ends(mut self) -> (std::process::ExitStatus, String) {
        drop(self.input.take());
        let mut said = String::new();
        let mut errors = self.child.stderr.take().unwrap();
        errors.read_to_string(&mut said).unwrap();
        (self.child.wait().unwrap(), said)
    }

    pub(crate) fn kill(self) {
        drop(self);
    }
}

impl Drop for Client {
    fn drop(&mut self) {
        // Fails if it has ended already.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}
