//! One GPU's MPS daemon, and the thread that talks to it: its answers take milliseconds, or for ever.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::time::{Duration, Instant};

use gshare_core::ClaimId;
use gshare_enforcer::mps::{Control, Look, MpsError, Server, Watch};
use tokio::sync::mpsc::UnboundedSender;

use super::msg::{MpsReport as Report, Msg};

/// Longest wait for terminated clients to leave their server.
const LEAVE: Duration = Duration::from_secs(3);
/// Seconds that servers have when the daemon ends.
const QUIT_S: u32 = 5;

/// MPS on one GPU.
#[derive(Debug)]
pub(crate) struct OnGpu {
    pub(super) control: Control,
    pub(super) worker: Worker,
    /// The daemon answers.
    pub(crate) up: bool,
    /// Its directory is made anew: nobody may use it meanwhile.
    pub(super) renewing: bool,
    /// Why it does not.
    pub(crate) why: Option<String>,
    pub(crate) servers: Vec<Server>,
    /// Processes of claims that run beside MPS, and were told.
    pub(super) beside: BTreeMap<i32, ClaimId>,
}

/// MPS daemons by GPU.
pub(crate) type Daemons = BTreeMap<usize, OnGpu>;

impl OnGpu {
    /// The directory of its pipes.
    pub(crate) fn pipe(&self) -> &Path {
        self.control.pipe()
    }
}

/// What the service asks of a daemon.
#[derive(Debug)]
pub(super) enum Order {
    /// End the GPU work of these processes of a claim.
    Terminate(ClaimId, BTreeSet<i32>),
    /// Look now.
    Look,
    /// End the daemon, make its directory anew and start another: the user has changed.
    Renew,
    /// End the daemon, and say when it has ended.
    Quit(Sender<()>),
}

#[derive(Debug)]
pub(super) struct Worker(Sender<Order>);

impl Worker {
    pub(super) fn start(
        gpu: usize,
        control: Control,
        uuid: String,
        multi_user: bool,
        tick: Duration,
        events: UnboundedSender<Msg>,
    ) -> Self {
        let (sender, orders) = channel();
        let work = Work {
            gpu,
            control,
            uuid,
            multi_user,
            events,
            watch: Watch::default(),
            began: Instant::now(),
            renew: false,
        };
        let started = std::thread::Builder::new()
            .name(format!("mps-{gpu}"))
            .spawn(move || {
                // NVIDIA's server is no part of the service.
                gshare_abi::host::Priority::Background.take();
                work.run(&orders, tick);
            });
        if let Err(error) = started {
            tracing::error!("cannot start the thread for MPS on GPU {gpu}: {error}");
        }
        Self(sender)
    }

    /// False if nobody takes orders any more.
    pub(super) fn send(&self, order: Order) -> bool {
        self.0.send(order).is_ok()
    }
}

struct Work {
    gpu: usize,
    control: Control,
    uuid: String,
    multi_user: bool,
    events: UnboundedSender<Msg>,
    watch: Watch,
    began: Instant,
    /// The directory has to be made anew before anything else.
    renew: bool,
}

impl Work {
    fn run(mut self, orders: &Receiver<Order>, tick: Duration) {
        loop {
            let told = if self.renew {
                self.renewed()
            } else {
                self.look()
            };
            if !told {
                return;
            }
            match orders.recv_timeout(tick) {
                Ok(Order::Terminate(claim, pids)) => {
                    self.terminate(&pids);
                    if !self.tell(Report::Terminated(claim)) {
                        return;
                    }
                }
                Ok(Order::Quit(ended)) => {
                    match self.control.quit(QUIT_S) {
                        Ok(()) => drop(ended.send(())),
                        Err(error) => tracing::warn!("MPS on GPU {}: {error}", self.gpu),
                    }
                    return;
                }
                Ok(Order::Renew) => self.renew = true,
                Ok(Order::Look) | Err(RecvTimeoutError::Timeout) => {}
                // The service has ended: the daemon lives on for its clients.
                Err(RecvTimeoutError::Disconnected) => return,
            }
        }
    }

    fn tell(&self, report: Report) -> bool {
        let gpu = self.gpu;
        self.events.send(Msg::Mps { gpu, report }).is_ok()
    }

    /// One look; false if nobody wants to know.
    fn look(&mut self) -> bool {
        let mut look = self.see();
        if look == Look::Silent && self.watch.start_now(self.began.elapsed()) {
            self.watch.tried(self.began.elapsed());
            match self.control.start(&self.uuid, self.multi_user) {
                Ok(_) => look = self.see(),
                Err(error) => return self.tell(Report::NotStarted(error.to_string())),
            }
        }
        let before = self.watch.servers().to_vec();
        let events = self.watch.look(self.began.elapsed(), look);
        let servers = self.watch.servers().to_vec();
        (events.is_empty() && before == servers) || self.tell(Report::Seen(events, servers))
    }

    /// Makes the directory anew and starts a daemon there; false if nobody wants to know.
    fn renewed(&mut self) -> bool {
        let made = self.control.renew(QUIT_S);
        let up = made.and_then(|()| self.control.start(&self.uuid, self.multi_user));
        if let Err(error) = up {
            return self.tell(Report::NotStarted(error.to_string()));
        }
        self.renew = false;
        self.watch = Watch::default();
        let look = self.see();
        let _ = self.watch.look(self.began.elapsed(), look);
        self.tell(Report::Renewed)
    }

    fn see(&self) -> Look {
        self.servers().map_or(Look::Silent, Look::Servers)
    }

    fn servers(&self) -> Result<Vec<Server>, MpsError> {
        let mut servers = Vec::new();
        for pid in self.control.servers()? {
            // One that has ended in between is none.
            if let Some(state) = self.control.state(pid)? {
                servers.push(Server {
                    pid,
                    state,
                    clients: self.control.clients(pid)?,
                });
            }
        }
        Ok(servers)
    }

    /// Ends the work of clients and waits until they have left.
    fn terminate(&self, pids: &BTreeSet<i32>) {
        let Ok(servers) = self.servers() else { return };
        for server in &servers {
            for client in server.clients.iter().filter(|c| pids.contains(c)) {
                match self.control.terminate(server.pid, *client) {
                    Ok(true) => {}
                    Ok(false) => {
                        tracing::warn!("MPS on GPU {} does not end client {client}", self.gpu);
                    }
                    Err(error) => tracing::warn!("MPS on GPU {}: {error}", self.gpu),
                }
            }
        }
        let end = Instant::now() + LEAVE;
        // The real server drops a client once its work is over; one that stays in the list holds no work.
        while Instant::now() < end {
            let ended = |pid: &i32| {
                gshare_enforcer::proc::stat(*pid).is_none_or(|s| matches!(s.state, 'Z' | 'X'))
            };
            let left = self.servers().unwrap_or_default();
            let stays = |pid: &&i32| left.iter().any(|s| s.clients.contains(pid));
            if pids.iter().filter(stays).all(ended) || left.iter().all(|s| s.clients.is_empty()) {
                return;
            }
            // Clients leave by themselves only when their program sees the error: a short while is given.
            if end.saturating_duration_since(Instant::now()) < LEAVE - Duration::from_millis(200) {
                return;
            }
            std::thread::sleep(Duration::from_millis(10));
        }
    }
}
