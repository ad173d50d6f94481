//! The socket: accepts, reads lines, writes replies. It handles framing only; the meaning of a line is decided in the
//! state's task.

mod budget;
mod lines;
mod split;

use std::collections::{HashMap, VecDeque};
use std::io;
use std::os::fd::AsFd;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use anyhow::Context;
use gshare_abi::wire::{self, Request};
use gshare_enforcer::cgroup::UnitTree;
use gshare_enforcer::proc;
use gshare_proto::{
    AdminCall, Call, ErrorCode, Hello, MAX_LINE, PROTOCOL, Reply, WireError, messages,
};
use tokio::io::Interest;
use tokio::net::{UnixListener, UnixStream};
use tokio::sync::{Semaphore, mpsc, watch};

use self::budget::{Budget, Pace};
use self::lines::{Lines, Stop};
use self::split::Bad;
use super::connection::{ConnId, Out, Sender, Turn};
use super::metrics::Answers;
use super::msg::{LeverMsg, Msg};
use super::names::Names;
use super::peer::{self, Peer};

/// Maximum number of connections per user, idle or not: each costs two descriptors.
const CONNECTIONS_PER_USER: usize = 2048;
/// Maximum number of connections that wait to be accepted. Their users are unknown until then, so all users wait
/// behind these; beyond the limit, `connect` waits in the client.
const BACKLOG: i32 = 64;
/// Longest time to send the last replies on a closing connection.
const LAST_WORDS: Duration = Duration::from_secs(1);
/// Maximum number of users whose connection rate is remembered.
const PACES: usize = 1024;
/// A client without a first request for this long is disconnected.
const GREETING_TIME: Duration = Duration::from_secs(10);

/// Connections by user. If there are too many, the oldest one that neither holds nor waits for anything is closed.
#[derive(Debug)]
struct Idle {
    most: usize,
    by_uid: HashMap<u32, VecDeque<(ConnId, watch::Sender<bool>)>>,
    all: HashMap<u32, (usize, Arc<Budget>)>,
    paces: HashMap<u32, Pace>,
}

impl Idle {
    /// `None` if the user has too many connections of any kind.
    fn enter(&mut self, uid: u32, conn: ConnId) -> Option<(watch::Receiver<bool>, Arc<Budget>)> {
        let (all, budget) = self.all.entry(uid).or_default();
        if *all >= CONNECTIONS_PER_USER {
            return None;
        }
        *all += 1;
        let budget = Arc::clone(budget);
        let (close, closed) = watch::channel(false);
        let list = self.by_uid.entry(uid).or_default();
        list.push_back((conn, close));
        if list.len() > self.most
            && let Some((_, oldest)) = list.pop_front()
        {
            oldest.send_replace(true);
        }
        Some((closed, budget))
    }

    /// How long a user's new connection has to wait, and for which permit after that; `None` if there are too many.
    fn pace(&mut self, uid: u32) -> Option<(Duration, Arc<Semaphore>)> {
        let now = Instant::now();
        if self.paces.len() >= PACES {
            self.paces.retain(|_, pace| !pace.is_over(now));
        }
        let pace = self.paces.entry(uid).or_default();
        Some((pace.connect(now)?, pace.arrivals()))
    }

    /// The connection has ended.
    fn exit(&mut self, uid: u32, conn: ConnId) {
        self.leave(uid, conn);
        if let Some((all, _)) = self.all.get_mut(&uid) {
            *all -= 1;
            if *all == 0 {
                self.all.remove(&uid);
            }
        }
    }

    fn leave(&mut self, uid: u32, conn: ConnId) {
        if let Some(list) = self.by_uid.get_mut(&uid) {
            list.retain(|(c, _)| *c != conn);
            if list.is_empty() {
                self.by_uid.remove(&uid);
            }
        }
    }
}

/// Makes the listening socket: not reachable under its name before its mode is right.
///
/// # Errors
///
/// When another service answers there, or the path cannot be used.
pub(crate) fn bind(path: &Path, everybody: bool) -> anyhow::Result<UnixListener> {
    match std::os::unix::net::UnixStream::connect(path) {
        Ok(_) => anyhow::bail!(
            "another gshare service already answers at {}\nhint: stop it, or give this one another socket in its config",
            path.display()
        ),
        Err(e) if e.kind() == io::ErrorKind::NotFound => {}
        Err(_)
            if path
                .symlink_metadata()
                .is_ok_and(|m| !std::os::unix::fs::FileTypeExt::is_socket(&m.file_type())) =>
        {
            anyhow::bail!(
                "{}\nhint: move it away",
                messages::not_a_socket(path.display())
            );
        }
        Err(_) => {}
    }
    // Bound under another name, given its mode, then renamed: clients never see an unfinished socket.
    let hidden = path.with_extension(format!("new-{}", std::process::id()));
    let _ = std::fs::remove_file(&hidden);
    let listener = UnixListener::bind(&hidden)
        .with_context(|| format!("cannot listen at {}", hidden.display()))?;
    nix::sys::socket::listen(&listener, nix::sys::socket::Backlog::new(BACKLOG)?)
        .with_context(|| format!("cannot listen at {}", hidden.display()))?;
    let mode = if everybody { 0o666 } else { 0o600 };
    std::fs::set_permissions(&hidden, std::fs::Permissions::from_mode(mode))
        .and_then(|()| std::fs::rename(&hidden, path))
        .with_context(|| format!("cannot create the socket {}", path.display()))?;
    Ok(listener)
}

/// Accepts for ever. `wake` is called at each connection, because a claim may follow.
pub(crate) async fn serve(
    listener: UnixListener,
    idle_connections: u32,
    events: mpsc::UnboundedSender<Msg>,
    answers: Answers,
    units: Option<UnitTree>,
    names: Names,
    wake: impl Fn(),
) {
    let most = usize::try_from(idle_connections).unwrap_or(usize::MAX);
    let idle = Arc::new(Mutex::new(Idle {
        most,
        by_uid: HashMap::new(),
        all: HashMap::new(),
        paces: HashMap::new(),
    }));
    let mut next: ConnId = 1;
    loop {
        // Lets existing connections run before the next one is accepted.
        tokio::task::yield_now().await;
        match listener.accept().await {
            Ok((stream, _)) => {
                let Ok(uid) = stream.peer_cred().map(|cred| cred.uid()) else {
                    continue;
                };
                let pace = idle
                    .lock()
                    .unwrap_or_else(std::sync::PoisonError::into_inner)
                    .pace(uid);
                let Some((wait, arrivals)) = pace else {
                    let message = format!("uid {uid} connects too often");
                    let error = Reply::Error(WireError::new(ErrorCode::NotAvailable, message));
                    let _ = stream.try_write(&Sender::encode(&error));
                    continue;
                };
                wake();
                let conn = next;
                next += 1;
                let (events, idle) = (events.clone(), Arc::clone(&idle));
                let (answers, units, names) = (answers.clone(), units.clone(), names.clone());
                tokio::spawn(async move {
                    if !wait.is_zero() {
                        tokio::time::sleep(wait).await;
                    }
                    let host = (units.as_ref(), &names);
                    match connection(conn, stream, &arrivals, &idle, &events, &answers, host).await
                    {
                        Ok(uid) => {
                            let _ = events.send(Msg::Closed { conn, uid });
                        }
                        // It did nothing yet.
                        Err(error) => tracing::debug!(conn, %error, "connection failed"),
                    }
                });
            }
            // Out of descriptors or memory: others may free theirs.
            Err(error) => {
                tracing::warn!(%error, "cannot accept a connection");
                tokio::time::sleep(Duration::from_millis(100)).await;
            }
        }
    }
}

async fn connection(
    conn: ConnId,
    stream: UnixStream,
    arrivals: &Semaphore,
    idle: &Arc<Mutex<Idle>>,
    events: &mpsc::UnboundedSender<Msg>,
    answers: &Answers,
    host: (Option<&UnitTree>, &Names),
) -> io::Result<u32> {
    let subordinate = peer::subordinate_owner(stream.peer_cred()?.uid(), host.1).await;
    let arriving = arrivals.acquire().await;
    let peer = Peer::of(conn, &stream, subordinate, host.1)?;
    tokio::task::yield_now().await;
    drop(arriving);
    let peer = match peer {
        Ok(peer) => peer,
        Err(refused) => {
            let _ = stream.try_write(&Sender::encode(&Reply::Error(refused)));
            // A caller unknown to the service, without a request yet.
            return Ok(stream.peer_cred()?.uid());
        }
    };
    let uid = peer.uid;
    let lock = || {
        idle.lock()
            .unwrap_or_else(std::sync::PoisonError::into_inner)
    };
    let entered = lock().enter(uid, conn);
    let Some((mut close, budget)) = entered else {
        let message = format!(
            "uid {uid} already has {CONNECTIONS_PER_USER} connections to gshare, the maximum; end some of its programs"
        );
        let error = Reply::Error(WireError::new(ErrorCode::NotAvailable, message));
        let _ = stream.try_write(&Sender::encode(&error));
        return Ok(uid);
    };
    let (out, mut rx) = mpsc::unbounded_channel();
    let unsent = Arc::new(AtomicUsize::new(0));
    let sender = Sender {
        out,
        unsent: Arc::clone(&unsent),
        older: false,
    };
    let mut reader = Lines::new(Arc::clone(&budget));
    // One request at a time: a client that does not read answers is not read either.
    let turns = Arc::new(Semaphore::new(1));
    let (mut greeted, mut counted, mut half_closed) = (false, true, false);
    let mut received: Option<Instant> = None;
    let greeting_over = tokio::time::sleep(GREETING_TIME);
    tokio::pin!(greeting_over);
    let result = loop {
        tokio::select! {
            biased;
            Some(out) = rx.recv() => {
                let written = tokio::select! {
                    written = write(&stream, &out, &budget) => written,
                    _ = close.changed(), if counted => break Ok(()),
                };
                if let Err(e) = written { break Err(e) }
                unsent.fetch_sub(1, Ordering::Relaxed);
                if let Some(received) = received.take() {
                    answers.note(uid, received.elapsed());
                }
            }
            _ = close.changed(), if counted => break Ok(()),
            line = next_line(&mut reader, &stream, &turns, &budget) => match line {
                Ok(Ok((line, turn))) => {
                    received = Some(turn.received);
                    // A connection that waits for or watches something no longer counts as idle.
                    if handle(&line, &mut greeted, &peer, &sender, turn, events, host).await {
                        lock().leave(uid, conn);
                        counted = false;
                    }
                }
                Ok(Err(Stop::Bad(Bad::TooLong))) => {
                    let message = format!("a line is longer than {MAX_LINE} bytes");
                    sender.error(WireError::new(ErrorCode::BadRequest, message));
                    break Ok(());
                }
                Ok(Err(Stop::Bad(Bad::Malformed(message)))) => {
                    sender.refuse_member("bad_request", message);
                    break Ok(());
                }
                Ok(Err(Stop::TooMany)) => {
                    let message = format!("uid {uid} has too many incomplete requests");
                    sender.error(WireError::new(ErrorCode::NotAvailable, message));
                    break Ok(());
                }
                Ok(Err(Stop::End)) => {
                    half_closed = !hung_up(&stream);
                    break Ok(());
                }
                Err(e) => break Err(e),
            },
            () = &mut greeting_over, if !greeted => break Ok(()),
        }
    };
    lock().exit(uid, conn);
    // Send the last replies if the client reads them. A client that has only closed its sending side also gets the
    // answers to its earlier requests: they are complete when no sender is left.
    drop(sender);
    if !half_closed {
        rx.close();
    }
    let flush = async {
        while let Some(out) = rx.recv().await {
            if write(&stream, &out, &budget).await.is_err() {
                break;
            }
        }
    };
    let _ = tokio::time::timeout(LAST_WORDS, flush).await;
    if let Err(error) = result {
        tracing::debug!(conn, %error, "connection ended");
    }
    Ok(uid)
}

/// Whether the client has closed both directions; with only its own closed it still reads.
fn hung_up(stream: &UnixStream) -> bool {
    use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
    let mut fds = [PollFd::new(stream.as_fd(), PollFlags::empty())];
    poll(&mut fds, PollTimeout::ZERO).is_ok()
        && fds[0]
            .revents()
            .is_some_and(|seen| seen.intersects(PollFlags::POLLHUP | PollFlags::POLLERR))
}

/// Longest line of a member of 0.1 in bytes.
const OLDER_LINE: usize = 1024;

/// Passes a line or message on. True if the client from now on waits for or holds something.
async fn handle(
    received: &[u8],
    greeted: &mut bool,
    peer: &Peer,
    sender: &Sender,
    turn: Turn,
    events: &mpsc::UnboundedSender<Msg>,
    (units, names): (Option<&UnitTree>, &Names),
) -> bool {
    let bad = |message: String| sender.error(WireError::new(ErrorCode::BadRequest, message));
    let line = String::from_utf8_lossy(received);
    let line = line.trim_end();
    let (of_member, out) = if wire::begins(received) {
        let request = Request::read(received).map_err(|error| error.to_string());
        (Some(request), sender.clone())
    } else if received.len() <= OLDER_LINE {
        (super::older::request(line), sender.to_older())
    } else {
        (None, sender.clone())
    };
    if let Some(request) = of_member {
        *greeted = true;
        let peer = peer.clone();
        let asked = match request {
            Ok(Request::Register(register)) => Msg::Register {
                peer,
                register,
                out,
                turn,
            },
            Ok(Request::Want(want)) => Msg::Lever(LeverMsg::Want {
                peer,
                want,
                out,
                turn,
            }),
            Ok(Request::Launch(launch)) => Msg::Launch {
                peer,
                launch,
                out,
                turn,
            },
            Err(message) => {
                out.refuse_member("bad_request", message);
                return false;
            }
        };
        let _ = events.send(asked);
        return false;
    }
    if !*greeted {
        match serde_json::from_str::<Hello>(line) {
            Ok(hello) if hello.gshare == PROTOCOL => {
                *greeted = true;
                sender.reply(&Reply::Hello {
                    gshare: PROTOCOL,
                    server: concat!("gshared ", env!("CARGO_PKG_VERSION")).to_owned(),
                });
            }
            Ok(hello) => sender.error(
                WireError::new(
                    ErrorCode::Protocol,
                    format!(
                        "this service speaks protocol {PROTOCOL}, the client {}",
                        hello.gshare
                    ),
                )
                .with_hint("use the gshare of the same installation as the service"),
            ),
            Err(_) => bad("the first line must be a greeting, {\"gshare\":1}".to_owned()),
        }
        return false;
    }
    match serde_json::from_str::<Call>(line) {
        Ok(call) => {
            let stays = matches!(call, Call::Claim(_) | Call::Watch { .. });
            if matches!(call, Call::Claim(_)) {
                prepare(units, peer.uid).await;
            }
            names.know(peer.uid, &peer.gids).await;
            match &call {
                Call::Admin(AdminCall::ClaimFor(asked)) => names.know(asked.uid, &[]).await,
                Call::Adopt { pid, .. } => {
                    if let Some(uids) = proc::uids(pid.cast_signed()) {
                        names.know(uids.real, &[]).await;
                    }
                }
                _ => {}
            }
            let _ = events.send(Msg::Call {
                peer: peer.clone(),
                call,
                out: sender.clone(),
                turn,
            });
            stays
        }
        Err(error) => {
            // It may repeat the input.
            let error: String = error.to_string().chars().take(200).collect();
            bad(format!("not a request: {error}"));
            false
        }
    }
}

/// Has systemd make the units for this user's claims, outside the state's task because it may be slow.
async fn prepare(units: Option<&UnitTree>, uid: u32) {
    let Some(units) = units.filter(|units| !units.has_home(uid)).cloned() else {
        return;
    };
    let made = tokio::task::spawn_blocking(move || units.prepare(uid)).await;
    if let Ok(Err(error)) = made {
        // The claim will report it.
        tracing::debug!(uid, %error, "could not prepare systemd units for this user's claims");
    }
}

/// The next line, once the previous one has been handled; cancel safe.
async fn next_line(
    reader: &mut Lines,
    stream: &UnixStream,
    turns: &Arc<Semaphore>,
    budget: &Budget,
) -> io::Result<Result<(Vec<u8>, Turn), Stop>> {
    let connection = Arc::clone(turns).acquire_owned().await;
    let connection = connection.map_err(io::Error::other)?;
    let length = match reader.next(stream).await? {
        Ok(length) => length,
        Err(stop) => return Ok(Err(stop)),
    };
    let turn = Turn {
        received: Instant::now(),
        _user: budget.request(length).await,
        _connection: connection,
    };
    Ok(Ok((reader.take(), turn)))
}

async fn write(stream: &UnixStream, out: &Out, budget: &Budget) -> io::Result<()> {
    let mut sent = 0;
    while sent < out.line.len() {
        stream.writable().await?;
        let fds: Vec<_> = if sent == 0 {
            out.fds.iter().map(AsFd::as_fd).collect()
        } else {
            Vec::new()
        };
        let part = &out.line[sent..];
        let send = || {
            stream.try_io(Interest::WRITABLE, || {
                gshare_abi::send_with_fds(stream.as_fd(), part, &fds)
            })
        };
        match budget.round(send).await {
            Ok(n) => sent += n,
            Err(e) if e.kind() == io::ErrorKind::WouldBlock => {}
            Err(e) => return Err(e),
        }
    }
    super::die::answered();
    Ok(())
}
