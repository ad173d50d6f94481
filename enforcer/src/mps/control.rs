//! One control daemon, driven through NVIDIA's program.

use std::fs::{DirBuilder, File, Permissions};
use std::io::{self, Read, Seek, SeekFrom, Write};
use std::os::unix::fs::{DirBuilderExt, MetadataExt, PermissionsExt};
use std::os::unix::net::UnixStream;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use nix::sys::socket::{getsockopt, sockopt::PeerCredentials};
use nix::unistd::{Uid, geteuid};

use super::access::{self, Access};
use super::answer::{self, ServerState};
use crate::proc::{self, PidFd};

/// The program answers in milliseconds; a daemon that hangs must not block its supervisor.
const ANSWER: Duration = Duration::from_secs(5);
/// Longest wait for a daemon's first answer.
const START: Duration = Duration::from_secs(5);
/// Maximum path length of a Unix socket, less `/control_privileged` and the final NUL.
const LONGEST_DIR: usize = 108 - 20;

#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum MpsError {
    #[error("cannot {verb} {}", path.display())]
    Io {
        verb: &'static str,
        path: PathBuf,
        #[source]
        source: io::Error,
    },
    #[error("the MPS directory {} is not safe: {why}", pipe.display())]
    Untrusted {
        /// Directory of the sockets.
        pipe: PathBuf,
        why: String,
    },
    #[error("no MPS control daemon answers in {}", pipe.display())]
    Silent {
        /// Directory of the sockets.
        pipe: PathBuf,
    },
    #[error("the MPS control daemon refused `{command}`: {answer}")]
    Refused { command: String, answer: String },
    #[error("the MPS control daemon of {} (pid {pid}) does not end", pipe.display())]
    Runs {
        /// Directory of the sockets.
        pipe: PathBuf,
        pid: i32,
    },
    #[error("{} does not start: {said}", program.display())]
    NotStarted { program: PathBuf, said: String },
}

/// One control daemon and its directories.
#[derive(Clone, Debug)]
pub struct Control {
    program: PathBuf,
    pipe: PathBuf,
    log: PathBuf,
    /// Inode of the socket whose owner was last checked.
    checked: Arc<AtomicU64>,
}

fn failed(verb: &'static str, path: &Path) -> impl FnOnce(io::Error) -> MpsError {
    let path = path.to_owned();
    move |source| MpsError::Io { verb, path, source }
}

/// A directory that everybody may pass through and only its owner may change.
fn make_dir(dir: &Path) -> Result<(), MpsError> {
    DirBuilder::new()
        .recursive(true)
        .mode(0o755)
        .create(dir)
        .and_then(|()| std::fs::set_permissions(dir, Permissions::from_mode(0o755)))
        .map_err(failed("make the directory", dir))
}

/// Kills a daemon and its servers; true if it has ended.
fn kill(daemon: i32, held: &PidFd) -> bool {
    let entries = std::fs::read_dir("/proc").into_iter().flatten().flatten();
    let pids = entries.filter_map(|entry| entry.file_name().to_str()?.parse().ok());
    let servers = pids.filter(|pid| proc::stat(*pid).is_some_and(|s| s.ppid == daemon));
    let servers = servers.filter_map(|pid| PidFd::open(pid).ok().flatten());
    let servers: Vec<PidFd> = servers.collect();
    let end = Instant::now() + ANSWER;
    let all = || std::iter::once(held).chain(&servers);
    for process in all() {
        let _ = process.signal(libc::SIGKILL);
    }
    all().all(|process| process.ends(end))
}

/// A program's output on a pipe.
fn all_of(pipe: Option<impl Read>) -> String {
    let mut bytes = Vec::new();
    if let Some(pipe) = pipe {
        let _ = pipe.take(answer::LONGEST).read_to_end(&mut bytes);
    }
    String::from_utf8_lossy(&bytes).into_owned()
}

impl Control {
    /// A daemon with the directories `DIR/pipe` and `DIR/log`; it is not started yet. The server runs under its
    /// clients' user id, so everybody must be able to pass through every parent of `dir`.
    ///
    /// # Errors
    /// [`MpsError::Io`] if the directories cannot be made.
    pub fn new(program: &Path, dir: &Path) -> Result<Self, MpsError> {
        let control = Self {
            program: program.to_owned(),
            pipe: dir.join("pipe"),
            log: dir.join("log"),
            checked: Arc::default(),
        };
        if control.pipe.as_os_str().len() > LONGEST_DIR {
            let long = io::Error::new(
                io::ErrorKind::InvalidInput,
                "the path is too long for a socket",
            );
            return Err(failed("use the directory", &control.pipe)(long));
        }
        for made in [dir, &control.log] {
            make_dir(made)?;
        }
        // An existing directory may have clients.
        if control.pipe.symlink_metadata().is_err() {
            control.make_pipe()?;
        }
        Ok(control)
    }

    /// The directory of the sockets, at first for the service's own user only.
    fn make_pipe(&self) -> Result<(), MpsError> {
        DirBuilder::new()
            .mode(0o700)
            .create(&self.pipe)
            .map_err(failed("make the directory", &self.pipe))
    }

    /// Users who may enter the directory of the sockets; an error if another user may have written there.
    ///
    /// # Errors
    /// [`MpsError::Untrusted`], [`MpsError::Io`].
    pub fn access(&self) -> Result<Access, MpsError> {
        self.check()?;
        access::of(&self.pipe).map_err(failed("read the access list of", &self.pipe))
    }

    /// Lets a user enter the directory of the sockets, if the daemon serves one user at a time, or everybody. A user
    /// who may connect may also give commands; only the service's user can change the directory.
    ///
    /// # Errors
    /// [`MpsError::Untrusted`] if another user was let in before: see [`Self::renew`].
    pub fn open_to(&self, wanted: Access) -> Result<(), MpsError> {
        match self.access()? {
            now if now == wanted => Ok(()),
            Access::One(_) => Err(self.untrusted("another user has access to it")),
            _ => access::set(&self.pipe, wanted)
                .map_err(failed("set the access list of", &self.pipe)),
        }
    }

    /// Ends the daemon and its servers, and creates the directory of the sockets anew: no change to the old one reaches
    /// the next user. Servers get this many seconds to end.
    ///
    /// # Errors
    /// [`MpsError::Runs`]; [`MpsError::Io`] if the directory cannot be removed or made.
    pub fn renew(&self, seconds: u32) -> Result<(), MpsError> {
        self.quit(seconds)?;
        match std::fs::remove_dir_all(&self.pipe) {
            Err(e) if e.kind() != io::ErrorKind::NotFound => {
                return Err(failed("remove", &self.pipe)(e));
            }
            _ => {}
        }
        self.make_pipe()
    }

    /// Daemons of the service's own user that were started for this directory, according to the kernel: the directory
    /// itself may have been another user's.
    fn daemons(&self) -> Vec<i32> {
        let Ok(program) = self.program.canonicalize() else {
            return Vec::new();
        };
        let own = geteuid().as_raw();
        let mut variable = std::ffi::OsString::from("CUDA_MPS_PIPE_DIRECTORY=");
        variable.push(&self.pipe);
        let entries = std::fs::read_dir("/proc").into_iter().flatten().flatten();
        entries
            .filter_map(|entry| entry.file_name().to_str()?.parse().ok())
            .filter(|pid| proc::uids(*pid).is_some_and(|u| u.real == own))
            .filter(|pid| proc::exe(*pid).is_some_and(|exe| exe == program))
            .filter(|pid| proc::environ(*pid).is_some_and(|all| all.contains(&variable)))
            .collect()
    }

    fn untrusted(&self, why: &str) -> MpsError {
        MpsError::Untrusted {
            pipe: self.pipe.clone(),
            why: why.to_owned(),
        }
    }

    /// Refuses to start or ask anything if another user may have put something there.
    fn check(&self) -> Result<(), MpsError> {
        let own = geteuid();
        if own.is_root() {
            let real = self.pipe.canonicalize();
            let real = real.map_err(failed("read", &self.pipe))?;
            gshare_abi::trusted(&real).map_err(|why| self.untrusted(&why))?;
        }
        let socket = self.pipe.join("control");
        let Ok(found) = socket.symlink_metadata() else {
            return Ok(());
        };
        if found.uid() != own.as_raw() {
            return Err(self.untrusted("its socket is another user's"));
        }
        if self.checked.load(Ordering::Relaxed) == found.ino() {
            return Ok(());
        }
        // A socket that does not answer belongs to a dead daemon.
        let Ok(stream) = UnixStream::connect(&socket) else {
            return Ok(());
        };
        let peer = getsockopt(&stream, PeerCredentials).map(|c| Uid::from_raw(c.uid()));
        if peer != Ok(own) {
            return Err(self.untrusted("another user's process answers there"));
        }
        self.checked.store(found.ino(), Ordering::Relaxed);
        Ok(())
    }

    /// The directory for clients' `CUDA_MPS_PIPE_DIRECTORY`.
    #[must_use]
    pub fn pipe(&self) -> &Path {
        &self.pipe
    }

    /// The directory of `control.log` and `server.log`.
    #[must_use]
    pub fn log(&self) -> &Path {
        &self.log
    }

    fn command(&self) -> Command {
        let mut command = Command::new(&self.program);
        command
            .env("CUDA_MPS_PIPE_DIRECTORY", &self.pipe)
            .env("CUDA_MPS_LOG_DIRECTORY", &self.log)
            // Newer releases speak protocol version 3; older ones do not know the variable.
            .env("CUDA_MPS_PROTOCOL_VERSION", "2")
            .env_remove("CUDA_MPS_ACTIVE_THREAD_PERCENTAGE");
        command
    }

    /// Starts the daemon for the GPU (or MIG instance) with this UUID and waits until it answers; returns its pid. It
    /// is detached, so the caller may end.
    ///
    /// # Errors
    /// [`MpsError::NotStarted`] with what it printed, [`MpsError::Untrusted`].
    pub fn start(&self, uuid: &str, multi_user: bool) -> Result<i32, MpsError> {
        self.check()?;
        let path = self.log.join("control.log");
        let log = File::options()
            .create(true)
            .append(true)
            .open(&path)
            .map_err(failed("open", &path))?;
        let errors = log.try_clone().map_err(failed("open", &path))?;
        let mut command = self.command();
        command
            .arg("-f")
            .args(multi_user.then_some("-M"))
            .env("CUDA_VISIBLE_DEVICES", uuid)
            .current_dir("/")
            .stdin(Stdio::null())
            .stdout(log)
            .stderr(errors)
            .process_group(0);
        let mut child = command.spawn().map_err(failed("run", &self.program))?;
        let pid = child.id().cast_signed();
        let end = Instant::now() + START;
        let ended = loop {
            if child.try_wait().is_ok_and(|s| s.is_some()) {
                break true;
            }
            if self.percentage().is_ok() {
                break false;
            }
            if Instant::now() > end {
                let _ = child.kill();
                let _ = child.wait();
                break true;
            }
            std::thread::sleep(Duration::from_millis(5));
        };
        if ended {
            return Err(MpsError::NotStarted {
                program: self.program.clone(),
                said: self.last_words(),
            });
        }
        // Reaps it when it ends.
        std::thread::spawn(move || child.wait());
        Ok(pid)
    }

    fn last_words(&self) -> String {
        let end = File::open(self.log.join("control.log")).and_then(|mut log| {
            let length = log.metadata()?.len();
            log.seek(SeekFrom::Start(length.saturating_sub(answer::LONGEST)))?;
            Ok(log)
        });
        answer::last_words(&all_of(end.ok()))
    }

    /// Sends a command; returns the printed reply.
    ///
    /// # Errors
    /// [`MpsError::Silent`] if no daemon answers in time.
    pub fn ask(&self, command: &str) -> Result<String, MpsError> {
        self.check()?;
        let mut child = self
            .command()
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .map_err(failed("run", &self.program))?;
        let run = failed("run", &self.program);
        if let Some(mut stdin) = child.stdin.take() {
            // A daemon that has ended already prints the reason on its standard output.
            let _ = stdin.write_all(format!("{command}\n").as_bytes());
        }
        let pidfd = PidFd::open(child.id().cast_signed()).ok().flatten();
        if pidfd.is_some_and(|pidfd| !pidfd.ends(Instant::now() + ANSWER)) {
            let _ = child.kill();
        }
        let reply = all_of(child.stdout.take());
        let trouble = all_of(child.stderr.take());
        let status = child.wait().map_err(run)?;
        let silent = ["Cannot find MPS", "Cannot authenticate", "Cannot send"];
        if status.code().is_none() || silent.iter().any(|s| trouble.starts_with(s)) {
            return Err(MpsError::Silent {
                pipe: self.pipe.clone(),
            });
        }
        Ok(reply)
    }

    fn share(&self, command: &str) -> Result<f64, MpsError> {
        let said = self.ask(command)?;
        answer::percentage(&said).ok_or_else(|| MpsError::Refused {
            command: command.to_owned(),
            answer: answer::text(&said),
        })
    }

    /// The default thread percentage: the cheapest request that shows whether the daemon lives.
    ///
    /// # Errors
    /// [`MpsError`] if it does not answer.
    pub fn percentage(&self) -> Result<f64, MpsError> {
        self.share("get_default_active_thread_percentage")
    }

    /// Sets the thread percentage of new servers; returns the value in force.
    ///
    /// # Errors
    /// [`MpsError`] if it does not answer or another value is in force.
    pub fn set_percentage(&self, percentage: f64) -> Result<f64, MpsError> {
        self.share(&format!(
            "set_default_active_thread_percentage {percentage}"
        ))
    }

    /// Pids of the servers.
    ///
    /// # Errors
    /// [`MpsError::Silent`].
    pub fn servers(&self) -> Result<Vec<i32>, MpsError> {
        self.pids("get_server_list")
    }

    /// Pids of a server's clients; none if the server does not exist.
    ///
    /// # Errors
    /// [`MpsError::Silent`].
    pub fn clients(&self, server: i32) -> Result<Vec<i32>, MpsError> {
        self.pids(&format!("get_client_list {server}"))
    }

    fn pids(&self, command: &str) -> Result<Vec<i32>, MpsError> {
        Ok(answer::pids(&self.ask(command)?))
    }

    /// State of a server; `None` if it does not exist (any more).
    ///
    /// # Errors
    /// [`MpsError::Silent`].
    pub fn state(&self, server: i32) -> Result<Option<ServerState>, MpsError> {
        Ok(answer::state(
            &self.ask(&format!("get_server_status {server}"))?,
        ))
    }

    /// Ends a client's GPU work regularly; true if that worked. Call it before signalling the process: killing a client
    /// with work in flight leaves the server undefined.
    ///
    /// # Errors
    /// [`MpsError::Silent`].
    pub fn terminate(&self, server: i32, client: i32) -> Result<bool, MpsError> {
        let answer = self.ask(&format!("terminate_client {server} {client}"))?;
        Ok(answer.trim() == "0")
    }

    /// Ends the daemon and waits until it is gone: another that starts meanwhile would end too. Servers get this many
    /// seconds; those that do not end, or cannot be asked safely, are killed.
    ///
    /// # Errors
    /// [`MpsError::Refused`] by a daemon that is not this user's, [`MpsError::Runs`].
    pub fn quit(&self, seconds: u32) -> Result<(), MpsError> {
        let command = format!("quit -t {seconds}");
        // Held before the request: afterwards the pid may be another process's.
        let daemons = self.daemons().into_iter();
        let held: Vec<(i32, PidFd)> = daemons
            .filter_map(|pid| Some((pid, PidFd::open(pid).ok()??)))
            .collect();
        let end = match self.ask(&command) {
            Ok(answer) if answer.trim().is_empty() => {
                Instant::now() + Duration::from_secs(seconds.into()) + ANSWER
            }
            Ok(answer) if held.is_empty() => {
                return Err(MpsError::Refused {
                    command,
                    answer: answer::text(&answer),
                });
            }
            // It will not end by itself.
            _ => Instant::now(),
        };
        for (pid, daemon) in held {
            if !daemon.ends(end) && !kill(pid, &daemon) {
                let pipe = self.pipe.clone();
                return Err(MpsError::Runs { pipe, pid });
            }
        }
        Ok(())
    }
}
