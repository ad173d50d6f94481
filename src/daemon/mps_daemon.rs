//! One GPU's MPS daemon, and the thread that talks to it: an answer takes milliseconds, or never comes.

use std::collections::{BTreeMap, BTreeSet};
use std::ops::Deref;
use std::path::Path;
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::time::{Duration, Instant};

use gshare_core::ClaimId;
use gshare_enforcer::mps::{Control, Look, MpsError, MpsEvent, Server, Watch};
use tokio::sync::mpsc::UnboundedSender;

use super::msg::{MpsReport as Report, Msg};

/// Longest wait for terminated clients to leave their server.
const LEAVE: Duration = Duration::from_secs(3);
/// Seconds that servers get when the daemon ends.
const QUIT_S: u32 = 5;

/// MPS on one GPU.
#[derive(Debug)]
pub(crate) struct OnGpu {
    pub(super) control: Control,
    pub(super) worker: Worker,
    /// The daemon answers.
    pub(crate) up: bool,
    /// Its directory is being replaced, and must not be used.
    renewing: bool,
    /// Why it does not answer.
    pub(crate) why: Option<String>,
    pub(crate) servers: Vec<Server>,
    /// Processes of claims that run beside MPS and were reported.
    beside: BTreeMap<i32, ClaimId>,
}

impl OnGpu {
    /// A daemon that has just been started or found.
    pub(super) fn new(control: Control, worker: Worker) -> Self {
        Self {
            control,
            worker,
            up: false,
            renewing: false,
            why: None,
            servers: Vec::new(),
            beside: BTreeMap::new(),
        }
    }

    /// The directory of its pipes.
    pub(crate) fn pipe(&self) -> &Path {
        self.control.pipe()
    }

    /// Whether its directory is being replaced.
    pub(crate) fn is_renewing(&self) -> bool {
        self.renewing
    }

    /// Processes of a claim that run beside it.
    pub(crate) fn beside(&self, id: ClaimId) -> Vec<u32> {
        let own = self.beside.iter().filter(|(_, of)| **of == id);
        own.map(|(pid, _)| pid.cast_unsigned()).collect()
    }
}

/// A change of a GPU's daemon.
#[derive(Debug)]
pub(crate) enum Change {
    /// It was started, or found.
    Begin(usize, Box<OnGpu>),
    /// It is released.
    End(usize),
}

/// MPS daemons by GPU. Other modules read them and decide; this one acts.
#[derive(Debug, Default)]
pub(crate) struct Daemons(BTreeMap<usize, OnGpu>);

impl Deref for Daemons {
    type Target = BTreeMap<usize, OnGpu>;

    fn deref(&self) -> &Self::Target {
        &self.0
    }
}

impl Daemons {
    pub(crate) fn change(&mut self, changes: Vec<Change>) {
        for change in changes {
            match change {
                Change::Begin(g, on) => drop(self.0.insert(g, *on)),
                Change::End(g) => drop(self.end(g)),
            }
        }
    }

    /// Ends the daemon of a GPU; the receiver tells when it has ended.
    pub(crate) fn end(&mut self, g: usize) -> Option<Receiver<()>> {
        let on = self.0.remove(&g)?;
        let (ended_tx, ended_rx) = channel();
        on.worker.send(Order::Quit(ended_tx));
        Some(ended_rx)
    }

    /// Replaces the directories of these daemons. Their GPUs take no new claims until that is done.
    pub(crate) fn renew(&mut self, gpus: &[usize]) {
        for g in gpus {
            if let Some(on) = self.0.get_mut(g) {
                on.renewing = true;
                on.worker.send(Order::Renew);
            }
        }
    }

    /// Handles a worker's report. False if it contained nothing new.
    pub(crate) fn note(&mut self, g: usize, report: &Report) -> bool {
        let Some(on) = self.0.get_mut(&g) else {
            return true;
        };
        match report {
            Report::Seen(events, servers) => {
                on.servers.clone_from(servers);
                for event in events {
                    match event {
                        MpsEvent::Up => (on.up, on.why) = (true, None),
                        MpsEvent::Down => on.up = false,
                        _ => {}
                    }
                }
                true
            }
            Report::NotStarted(why) => on.why.replace(why.clone()).as_ref() != Some(why),
            Report::Renewed => {
                (on.up, on.renewing, on.why) = (true, false, None);
                on.servers.clear();
                true
            }
            Report::Terminated(_) => true,
        }
    }

    /// Updates the processes that run beside a daemon; returns the new ones.
    pub(crate) fn note_beside(
        &mut self,
        g: usize,
        now: BTreeMap<i32, ClaimId>,
    ) -> Vec<(i32, ClaimId)> {
        let Some(on) = self.0.get_mut(&g) else {
            return Vec::new();
        };
        let before = std::mem::replace(&mut on.beside, now);
        let new = on
            .beside
            .iter()
            .filter(|(pid, _)| !before.contains_key(pid));
        new.map(|(pid, id)| (*pid, *id)).collect()
    }

    /// A daemon without users, in a directory.
    #[cfg(test)]
    pub(super) fn with_idle(g: usize, dir: &Path) -> Self {
        let control = Control::new(Path::new("/bin/false"), dir).expect("made");
        let on = OnGpu::new(control, Worker(channel().0));
        Self(BTreeMap::from([(g, on)]))
    }
}

/// Orders for a daemon's thread.
#[derive(Debug)]
pub(super) enum Order {
    /// End the GPU work of these processes of a claim.
    Terminate(ClaimId, BTreeSet<i32>),
    /// Look now.
    Look,
    /// End the daemon, replace its directory and start another: the user has changed.
    Renew,
    /// End the daemon, and report when it has ended.
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
                // NVIDIA's server does not get the service's priority.
                gshare_abi::host::Priority::Background.take();
                work.run(&orders, tick);
            });
        if let Err(error) = started {
            tracing::error!("cannot start the thread for MPS on GPU {gpu}: {error}");
        }
        Self(sender)
    }

    /// False if the thread has ended.
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
    /// The directory must be replaced first.
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
                        Err(error) => tracing::warn!("MPS of GPU {}: {error}", self.gpu),
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

    /// One look; false if the receiver is gone.
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

    /// Replaces the directory and starts a daemon there; false if the receiver is gone.
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
            // A server that has ended in between is skipped.
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
                    Err(error) => tracing::warn!("MPS of GPU {}: {error}", self.gpu),
                }
            }
        }
        let end = Instant::now() + LEAVE;
        // The real server drops a client once its work is over; a client that stays in the list holds no work.
        while Instant::now() < end {
            let ended = |pid: &i32| {
                gshare_enforcer::proc::stat(*pid).is_none_or(|s| matches!(s.state, 'Z' | 'X'))
            };
            let left = self.servers().unwrap_or_default();
            let stays = |pid: &&i32| left.iter().any(|s| s.clients.contains(pid));
            if pids.iter().filter(stays).all(ended) || left.iter().all(|s| s.clients.is_empty()) {
                return;
            }
            // Clients leave by themselves only when their program sees the error: allow a short while.
            if end.saturating_duration_since(Instant::now()) < LEAVE - Duration::from_millis(200) {
                return;
            }
            std::thread::sleep(Duration::from_millis(10));
        }
    }
}
