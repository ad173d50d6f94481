//! The daemon: accepts commands, clients and its own servers on one socket; starts and stops servers.

use std::collections::BTreeMap;
use std::fs::{File, OpenOptions, Permissions};
use std::io::{BufRead, BufReader, Read, Write};
use std::os::unix::fs::PermissionsExt;
use std::os::unix::net::{UnixListener, UnixStream};
use std::os::unix::process::CommandExt;
use std::process::{Command, ExitCode, Stdio};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use gshare_sim_board::{Board, ProcessSnapshot};
use nix::sys::socket::{getsockopt, sockopt::PeerCredentials};
use nix::unistd::Uid;

use crate::percent::{limit_of, percentage, shown, sms};
use crate::ui::END;
use crate::{CONTROL, Place, SERVER, server};

/// How long a client waits for a server, or for the end of another user's clients.
const PATIENCE: Duration = Duration::from_secs(20);
/// Maximum clients of a GPU: before CUDA 13.1, and from then on.
const CLIENTS: (usize, usize) = (48, 60);

/// Settings of new servers, or of the clients of one server.
#[derive(Debug, Clone)]
pub(crate) struct Settings {
    pub(crate) percentage: f64,
    /// Mebibytes by ordinal.
    pub(crate) pinned: BTreeMap<usize, u64>,
    pub(crate) priority: u32,
}

#[derive(Debug)]
pub(crate) struct Server {
    pub(crate) pid: u32,
    pub(crate) uid: u32,
    /// Board id of the server, once it is ready.
    pub(crate) board: Option<u64>,
    pub(crate) settings: Settings,
    /// Closing it ends the server.
    pub(crate) stream: Option<UnixStream>,
}

impl Server {
    /// Ends the server by closing its connection.
    pub(crate) fn let_go(&mut self) {
        if let Some(stream) = self.stream.take() {
            let _ = stream.shutdown(std::net::Shutdown::Both);
        }
    }
}

#[derive(Debug)]
pub(crate) struct Client {
    pub(crate) pid: u32,
    pub(crate) server: u32,
    serial: u64,
}

#[derive(Debug)]
pub(crate) struct State {
    pub(crate) defaults: Settings,
    pub(crate) servers: Vec<Server>,
    pub(crate) clients: Vec<Client>,
    /// Exit status of the last server.
    pub(crate) last_status: i32,
    serial: u64,
}

#[derive(Debug)]
pub(crate) struct Control {
    pub(crate) place: Place,
    pub(crate) board: Option<Board>,
    /// Board indices of the devices, by ordinal.
    devices: Vec<usize>,
    multi_user: bool,
    state: Mutex<State>,
    changed: Condvar,
}

fn log(text: &str) {
    println!("[Control {}] {text}", std::process::id());
}

/// `-d`: runs the daemon in the background.
pub(crate) fn detach(place: &Place, args: &[String]) -> ExitCode {
    if UnixStream::connect(place.pipe.join("control")).is_ok() {
        println!("An instance of this daemon is already running");
        return ExitCode::FAILURE;
    }
    let flags = args.iter().filter(|a| *a != "-d");
    let logs = File::create(place.log.join("control.log"));
    let out = logs.map_or_else(|_| Stdio::null(), Stdio::from);
    let started = std::env::current_exe().and_then(|exe| {
        Command::new(exe)
            .arg0(CONTROL)
            .arg("-f")
            .args(flags)
            .stdin(Stdio::null())
            .stdout(out)
            .stderr(Stdio::null())
            .process_group(0)
            .spawn()
    });
    let Ok(mut child) = started else {
        return ExitCode::FAILURE;
    };
    let end = Instant::now() + PATIENCE;
    while UnixStream::connect(place.pipe.join("control")).is_err() {
        if Instant::now() > end || child.try_wait().is_ok_and(|s| s.is_some()) {
            println!(
                "Cannot access CUDA_MPS_PIPE_DIRECTORY={}",
                place.pipe.display()
            );
            return ExitCode::FAILURE;
        }
        std::thread::sleep(Duration::from_millis(2));
    }
    ExitCode::SUCCESS
}

/// `-f`: runs until `quit` or a signal.
pub(crate) fn run(place: Place, multi_user: bool) -> ExitCode {
    let open = |name: &str| {
        let mut options = OpenOptions::new();
        options.create(true).write(true).truncate(false);
        options.open(place.pipe.join(name))
    };
    // Held for the life of the daemon.
    let lock = match open("control_lock") {
        Ok(lock) if lock.try_lock().is_ok() => lock,
        Ok(_) => {
            println!("An instance of this daemon is already running");
            return ExitCode::FAILURE;
        }
        Err(_) => {
            println!(
                "Cannot access CUDA_MPS_PIPE_DIRECTORY={}",
                place.pipe.display()
            );
            return ExitCode::FAILURE;
        }
    };
    let path = place.pipe.join("control");
    let _ = std::fs::remove_file(&path);
    let listener = UnixListener::bind(&path).and_then(|l| {
        std::fs::set_permissions(&path, Permissions::from_mode(0o666))?;
        let id = format!("{}\n", std::process::id());
        std::fs::write(place.pipe.join("nvidia-cuda-mps-control.pid"), id)?;
        Ok(l)
    });
    let Ok(listener) = listener else {
        println!(
            "Cannot access CUDA_MPS_PIPE_DIRECTORY={}",
            place.pipe.display()
        );
        return ExitCode::FAILURE;
    };
    log(&format!(
        "Starting control daemon using socket {}",
        path.display()
    ));
    let board = Board::open(&place.board).ok();
    let start = std::env::var("CUDA_MPS_ACTIVE_THREAD_PERCENTAGE").ok();
    let control = Arc::new(Control {
        devices: board.as_ref().map(server::devices).unwrap_or_default(),
        board,
        place,
        multi_user,
        state: Mutex::new(State {
            defaults: Settings {
                percentage: start.and_then(|t| percentage(&t)).unwrap_or(100.0),
                pinned: BTreeMap::new(),
                priority: 0,
            },
            servers: Vec::new(),
            clients: Vec::new(),
            last_status: 0,
            serial: 0,
        }),
        changed: Condvar::new(),
    });
    for stream in listener.incoming().flatten() {
        let control = Arc::clone(&control);
        std::thread::spawn(move || control.connection(stream));
    }
    drop(lock);
    ExitCode::SUCCESS
}

impl Control {
    pub(crate) fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn connection(self: Arc<Self>, stream: UnixStream) {
        let Ok(peer) = getsockopt(&stream, PeerCredentials) else {
            return;
        };
        let Ok(clone) = stream.try_clone() else {
            return;
        };
        let mut from = BufReader::new(clone);
        let mut first = String::new();
        if from.read_line(&mut first).is_err() {
            return;
        }
        let words: Vec<&str> = first.split_whitespace().collect();
        match words.as_slice() {
            ["ui"] => self.commands(from, stream, peer.uid()),
            ["server", pid, board] => {
                if let (Ok(pid), Ok(board)) = (pid.parse(), board.parse()) {
                    self.server_is_ready(pid, board, stream);
                }
            }
            ["client", percentage, pinned] => {
                let pid = peer.pid().cast_unsigned();
                self.client(pid, peer.uid(), percentage, pinned, &stream);
            }
            _ => {}
        }
    }

    fn commands(self: &Arc<Self>, from: impl BufRead, mut to: UnixStream, uid: u32) {
        for line in from.lines().map_while(Result::ok) {
            log(&format!("Cmd:{line}"));
            let reply = self.answer(&line, uid);
            let Some(mut reply) = reply else {
                return self.quit(&to);
            };
            reply.push(char::from(END));
            if to.write_all(reply.as_bytes()).is_err() {
                return;
            }
        }
    }

    fn quit(&self, mut to: &UnixStream) {
        let mut state = self.state();
        let status = state.last_status;
        state.servers.iter_mut().for_each(Server::let_go);
        let end = Instant::now() + PATIENCE;
        while !state.servers.is_empty() && Instant::now() < end {
            state = self.wait(state, Duration::from_millis(100));
        }
        let _ = to.write_all(if status == 0 { b"0" } else { b"1" });
        log(&format!("Exit with status {status}"));
        let _ = std::fs::remove_file(self.place.pipe.join("nvidia-cuda-mps-control.pid"));
        std::process::exit(status);
    }

    fn wait<'a>(&self, state: MutexGuard<'a, State>, most: Duration) -> MutexGuard<'a, State> {
        let waited = self.changed.wait_timeout(state, most);
        waited.unwrap_or_else(PoisonError::into_inner).0
    }

    /// Starts a server for a user; returns its pid.
    pub(crate) fn start_server(self: &Arc<Self>, state: &mut State, uid: u32) -> Option<u32> {
        self.board.as_ref()?;
        let mut command = Command::new(std::env::current_exe().ok()?);
        command.arg0(SERVER).stdin(Stdio::null());
        if Uid::effective().is_root() {
            command.uid(uid).gid(uid);
        }
        let mut child = command.spawn().ok()?;
        let pid = child.id();
        log(&format!("Starting new server {pid} for user {uid}"));
        state.servers.push(Server {
            pid,
            uid,
            board: None,
            settings: state.defaults.clone(),
            stream: None,
        });
        let control = Arc::clone(self);
        std::thread::spawn(move || {
            let status = child.wait().ok().and_then(|s| s.code()).unwrap_or(1);
            log(&format!("Server {pid} exited with status {status}"));
            let mut state = control.state();
            state.servers.retain(|s| s.pid != pid);
            state.last_status = status;
            drop(state);
            control.changed.notify_all();
        });
        Some(pid)
    }

    fn server_is_ready(&self, pid: u32, board: u64, mut stream: UnixStream) {
        let kept = stream.try_clone().ok();
        if let Some(server) = self.state().servers.iter_mut().find(|s| s.pid == pid) {
            log(&format!("NEW SERVER {pid}: Ready"));
            server.board = Some(board);
            server.stream = kept;
        }
        self.changed.notify_all();
        let _ = stream.read(&mut [0]);
    }

    /// Serves a client until its connection ends.
    fn client(
        self: &Arc<Self>,
        pid: u32,
        uid: u32,
        asked: &str,
        pinned: &str,
        mut stream: &UnixStream,
    ) {
        log(&format!("NEW CLIENT {pid} from user {uid}"));
        let serial = match self.admit(pid, uid, asked, pinned) {
            Ok((serial, line)) => {
                let _ = stream.write_all(line.as_bytes());
                serial
            }
            Err(code) => {
                let _ = stream.write_all(format!("error {code}\n").as_bytes());
                return;
            }
        };
        let _ = stream.read_to_end(&mut Vec::new());
        self.state().clients.retain(|c| c.serial != serial);
        self.changed.notify_all();
    }

    /// Finds or starts the server of a user; waits for the end of other users' clients. Returns the line for the
    /// client, or the code of `cuInit`.
    fn admit(
        self: &Arc<Self>,
        pid: u32,
        uid: u32,
        asked: &str,
        pinned: &str,
    ) -> Result<(u64, String), u32> {
        let uid = if self.multi_user { 0 } else { uid };
        let end = Instant::now() + PATIENCE;
        let mut state = self.state();
        loop {
            let ours = state.servers.iter().find(|s| s.uid == uid);
            match ours.map(|s| (s.pid, s.board)) {
                Some((pid, Some(_))) if self.fault_of(&state, pid) != 0 => return Err(807),
                Some((_, Some(_))) => break,
                Some((_, None)) => {}
                None => {
                    let idle = state.clients.is_empty();
                    for other in state.servers.iter_mut().filter(|_| idle) {
                        other.let_go();
                    }
                    if state.servers.is_empty() && self.start_server(&mut state, uid).is_none() {
                        return Err(805);
                    }
                }
            }
            if Instant::now() > end {
                return Err(807);
            }
            state = self.wait(state, Duration::from_millis(50));
        }
        let board = self.board.as_ref().ok_or(805_u32)?;
        let most = if board.snapshot().cuda_version >= 13_010 {
            CLIENTS.1
        } else {
            CLIENTS.0
        };
        if state.clients.len() >= most {
            return Err(808);
        }
        let server = state.servers.iter().find(|s| s.uid == uid).ok_or(805_u32)?;
        let uuids = self.uuids();
        let percentage = percentage(asked).unwrap_or(100.0);
        let percentage = percentage.min(server.settings.percentage);
        let limits: Vec<String> = (0..uuids.len())
            .map(|i| {
                let own = limit_of(pinned, &uuids, i);
                let set = server.settings.pinned.get(&i).copied();
                let least = own.into_iter().chain(set).min().unwrap_or(0);
                least.to_string()
            })
            .collect();
        let seen = board.snapshot();
        let parts: Vec<String> = self
            .devices
            .iter()
            .filter_map(|g| seen.gpus.get(*g))
            .map(|gpu| sms(gpu.model.sms, percentage).to_string())
            .collect();
        let line = format!(
            "ok {} {} {} {}\n",
            server.board.unwrap_or(0),
            uuids.join(","),
            parts.join(","),
            limits.join(","),
        );
        let server = server.pid;
        state.serial += 1;
        let serial = state.serial;
        state.clients.push(Client {
            pid,
            server,
            serial,
        });
        Ok((serial, line))
    }

    pub(crate) fn uuids(&self) -> Vec<String> {
        let Some(seen) = self.board.as_ref().map(Board::snapshot) else {
            return Vec::new();
        };
        let uuid = |g: &usize| seen.gpus.get(*g).map(|gpu| gpu.uuid.clone());
        self.devices.iter().filter_map(uuid).collect()
    }

    /// The code of a server's current fault; 0 for none.
    pub(crate) fn fault_of(&self, state: &State, pid: u32) -> u32 {
        let id = state.servers.iter().find(|s| s.pid == pid);
        let Some(id) = id.and_then(|s| s.board) else {
            return 0;
        };
        let of = |p: &ProcessSnapshot| (p.id == id).then_some(p.fault);
        let seen = self.board.as_ref().map(Board::snapshot);
        let gpus = seen.iter().flat_map(|s| &s.gpus);
        gpus.flat_map(|g| &g.processes)
            .filter_map(of)
            .max()
            .unwrap_or(0)
    }

    /// Ends the work of a client; true if the process was a client.
    pub(crate) fn terminate(&self, state: &State, server: u32, client: u32) -> bool {
        let known = |c: &Client| c.pid == client && c.server == server;
        let board = state.servers.iter().find(|s| s.pid == server);
        match (board.and_then(|s| s.board), &self.board) {
            (Some(id), Some(board)) if state.clients.iter().any(known) => {
                board.terminate_mps_client(id, client).is_ok()
            }
            _ => false,
        }
    }

    pub(crate) fn shown_default(&self) -> String {
        shown(self.state().defaults.percentage)
    }
}
