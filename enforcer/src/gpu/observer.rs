//! The observer: threads that call NVML, and a coordinator that never waits for one of them indefinitely.

use std::path::PathBuf;
use std::sync::mpsc::{self, Receiver, RecvTimeoutError, Sender};
use std::sync::{Arc, Mutex, PoisonError, Weak};
use std::thread;
use std::time::{Duration, Instant};

use super::limits::{LimitError, LimitOrder};
use super::mig::{MigError, MigOrder, MigState};
use super::nvml::{self, Eye, Look, Machine, Scope};
use super::{GpuError, GpuReading, GpuSample, GpuState};

#[derive(Debug, Clone)]
pub struct ObserverConfig {
    /// The library, `libnvidia-ml.so.1` with or without a directory.
    pub library: PathBuf,
    /// Time between samples.
    pub interval: Duration,
    /// How long a round waits for a GPU that has answered so far. Without an answer its figures are old.
    pub patience: Duration,
    /// Time without an answer after which a GPU counts as hung.
    pub hung_after: Duration,
    /// Time between attempts to initialise NVML.
    pub retry: Duration,
    /// Readings of GPUs that must not be opened until [`Observer::release`] allows it.
    pub released: Vec<GpuReading>,
}

impl ObserverConfig {
    /// The usual times: a sample each second, half a second of patience.
    #[must_use]
    pub fn new(library: impl Into<PathBuf>) -> Self {
        Self {
            library: library.into(),
            interval: Duration::from_secs(1),
            patience: Duration::from_millis(500),
            hung_after: Duration::from_secs(5),
            retry: Duration::from_secs(5),
            released: Vec::new(),
        }
    }
}

/// Whether there are readings.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Health {
    /// NVML is being initialised, since this time.
    Starting(Instant),
    /// Readings arrive.
    Running,
    /// NVML cannot be used; retried regularly.
    Unavailable(String),
}

/// Callback for an answer.
type Reply = Box<dyn FnOnce(Result<GpuSample, GpuError>) + Send>;
type Sink = Box<dyn FnMut(GpuSample) + Send>;

/// An order for a GPU's thread.
enum Job {
    Look(Scope),
    Limit(LimitOrder, Sender<Result<(), LimitError>>),
    Divide(MigOrder, MigReply),
}

type MigReply = Sender<Result<MigState, MigError>>;

enum Message {
    Ask(Reply),
    /// For the thread of one GPU.
    Limit(u32, LimitOrder, Sender<Result<(), LimitError>>),
    Divide(u32, MigOrder, MigReply),
    /// Close these GPUs; all others may be open.
    Release(Vec<u32>, Sender<()>),
    Loaded(Result<Arc<Machine>, String>),
    /// A reading, from a thread of this generation.
    Seen(u64, Box<Look>),
    Stop,
}

#[derive(Debug)]
struct Shared {
    health: Health,
    latest: Option<GpuSample>,
}

/// A running observer; dropping it stops the observation.
#[derive(Debug)]
pub struct Observer {
    inbox_tx: Sender<Message>,
    shared: Arc<Mutex<Shared>>,
}

impl Observer {
    /// Starts observing. `sink` gets a sample at each interval, from a thread of the observer. Returns at once even
    /// without NVML: see [`Observer::health`].
    pub fn spawn(config: ObserverConfig, sink: impl FnMut(GpuSample) + Send + 'static) -> Self {
        let (inbox_tx, inbox_rx) = mpsc::channel();
        let shared = Arc::new(Mutex::new(Shared {
            health: Health::Starting(Instant::now()),
            latest: None,
        }));
        let mut coordinator = Coordinator {
            next_tick: Instant::now() + config.interval,
            config,
            inbox_tx: inbox_tx.clone(),
            inbox_rx,
            shared: Arc::clone(&shared),
            sink: Box::new(sink),
            machine: None,
            next_load: None,
            generation: 0,
            gpus: Vec::new(),
            asked: Vec::new(),
            closing: None,
            stop: false,
        };
        spawn("gpu-observer", move || coordinator.run());
        Self { inbox_tx, shared }
    }

    /// Whether there are readings.
    #[must_use]
    pub fn health(&self) -> Health {
        self.lock().health.clone()
    }

    /// The newest sample.
    #[must_use]
    pub fn latest(&self) -> Option<GpuSample> {
        self.lock().latest.clone()
    }

    /// Age of the newest sample; single GPUs in it may be older.
    #[must_use]
    pub fn age(&self) -> Option<Duration> {
        self.lock().latest.as_ref().map(|s| s.taken.elapsed())
    }

    /// Reads memory and processes of all GPUs now and passes the sample to `reply`, in a thread of the observer; the
    /// other figures are those of the last interval. A GPU that hangs delays this by at most the configured patience,
    /// and only the first time.
    pub fn request(&self, reply: impl FnOnce(Result<GpuSample, GpuError>) + Send + 'static) {
        let ask = Message::Ask(Box::new(reply));
        if let Err(mpsc::SendError(Message::Ask(reply))) = self.inbox_tx.send(ask) {
            reply(Err(GpuError::Stopped));
        }
    }

    /// Like [`Observer::request`], but waits for the answer. The first call after the start also waits for NVML.
    ///
    /// # Errors
    /// [`GpuError::Unavailable`] without NVML, [`GpuError::Timeout`].
    pub fn sample_now(&self, timeout: Duration) -> Result<GpuSample, GpuError> {
        let (reply_tx, reply_rx) = mpsc::channel();
        self.request(move |result| {
            // The caller may have given up.
            let _ = reply_tx.send(result);
        });
        match reply_rx.recv_timeout(timeout) {
            Ok(result) => result,
            Err(RecvTimeoutError::Timeout) => Err(GpuError::Timeout { waited: timeout }),
            Err(RecvTimeoutError::Disconnected) => Err(GpuError::Stopped),
        }
    }

    /// Carries out an order for the driver's memory limits of a control group, in the GPU's own thread.
    ///
    /// # Errors
    /// [`LimitError`]; [`LimitError::NoAnswer`] after `timeout` (the order may still be carried out later).
    pub fn limit(&self, gpu: u32, order: LimitOrder, timeout: Duration) -> Result<(), LimitError> {
        let (reply_tx, reply_rx) = mpsc::channel();
        let sent = self.inbox_tx.send(Message::Limit(gpu, order, reply_tx));
        let no_answer = LimitError::NoAnswer { gpu };
        sent.map_err(|_| no_answer.clone())?;
        reply_rx.recv_timeout(timeout).unwrap_or(Err(no_answer))
    }

    /// A handle for dividing a GPU, for use in another thread.
    #[must_use]
    pub fn divider(&self, gpu: u32) -> Divider {
        Divider {
            gpu,
            inbox_tx: self.inbox_tx.clone(),
        }
    }

    /// Closes these GPUs and opens all others: NVML closes a GPU only at its shutdown, so NVML is initialised again
    /// without them. The answer comes when they are closed; never, while a call hangs in the driver.
    pub fn release(&self, gpus: impl IntoIterator<Item = u32>) -> Receiver<()> {
        let (reply_tx, reply_rx) = mpsc::channel();
        // An observer that has ended drops the sender, which the caller notices.
        let _ = self
            .inbox_tx
            .send(Message::Release(gpus.into_iter().collect(), reply_tx));
        reply_rx
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, Shared> {
        self.shared.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Divides one GPU, in the GPU's own thread of the observer.
#[derive(Debug)]
pub struct Divider {
    gpu: u32,
    inbox_tx: Sender<Message>,
}

impl Divider {
    /// Carries out a step; returns the new state of the GPU.
    ///
    /// # Errors
    /// [`MigError`]; [`MigError::NoAnswer`] after `timeout` (the step may still be done later).
    pub fn step(&self, order: MigOrder, timeout: Duration) -> Result<MigState, MigError> {
        let (reply_tx, reply_rx) = mpsc::channel();
        let sent = self
            .inbox_tx
            .send(Message::Divide(self.gpu, order, reply_tx));
        let no_answer = MigError::NoAnswer { gpu: self.gpu };
        sent.map_err(|_| no_answer.clone())?;
        reply_rx.recv_timeout(timeout).unwrap_or(Err(no_answer))
    }
}

impl Drop for Observer {
    fn drop(&mut self) {
        // Without waiting: a thread may hang in NVML.
        let _ = self.inbox_tx.send(Message::Stop);
    }
}

/// Time between checks whether NVML is shut down.
const CLOSING: Duration = Duration::from_millis(2);

/// A GPU on the coordinator's side.
struct Watched {
    reading: GpuReading,
    job_tx: Sender<Job>,
    /// Time of the unanswered request.
    asked: Option<Instant>,
    reload: bool,
}

struct Coordinator {
    config: ObserverConfig,
    inbox_tx: Sender<Message>,
    inbox_rx: Receiver<Message>,
    shared: Arc<Mutex<Shared>>,
    sink: Sink,
    /// `Some` while NVML is initialised.
    machine: Option<Arc<Machine>>,
    /// Time of the next attempt; `None` during an attempt.
    next_load: Option<Instant>,
    next_tick: Instant,
    /// Number of initialisations of NVML.
    generation: u64,
    gpus: Vec<Watched>,
    asked: Vec<Reply>,
    /// The old NVML, until all its threads have ended, and the callers that wait for that.
    closing: Option<(Weak<Machine>, Vec<Sender<()>>)>,
    stop: bool,
}

impl Coordinator {
    fn run(&mut self) {
        self.load();
        while !self.stop {
            // A request during a round needs a later reading.
            let wait = if self.machine.is_some() && !self.asked.is_empty() {
                Duration::ZERO
            } else if self.closing.is_some() {
                CLOSING
            } else {
                self.next_tick.saturating_duration_since(Instant::now())
            };
            match self.inbox_rx.recv_timeout(wait) {
                Ok(message) => self.take(message),
                Err(RecvTimeoutError::Timeout) => {}
                // Impossible: this struct contains a sender.
                Err(RecvTimeoutError::Disconnected) => return,
            }
            let now = Instant::now();
            if self.closing.is_some() {
                self.close();
            } else if self.machine.is_none() {
                self.wait_for_nvml(now);
            } else if now >= self.next_tick {
                self.tick(now);
            } else if !self.asked.is_empty() {
                let replies = std::mem::take(&mut self.asked);
                self.round(Scope::Memory);
                self.answer(replies);
            }
        }
        for reply in self.asked.drain(..) {
            reply(Err(GpuError::Stopped));
        }
    }

    fn take(&mut self, message: Message) {
        match message {
            Message::Ask(reply) => self.asked.push(reply),
            // For a missing GPU the order is dropped with its sender: no answer.
            Message::Limit(index, order, reply) => {
                let gpu = self.gpus.iter().find(|g| g.reading.index == index);
                let _ = gpu.map(|g| g.job_tx.send(Job::Limit(order, reply)));
            }
            Message::Divide(index, order, reply) => {
                let gpu = self.gpus.iter().find(|g| g.reading.index == index);
                let _ = gpu.map(|g| g.job_tx.send(Job::Divide(order, reply)));
            }
            Message::Release(gpus, reply) => self.release(&gpus, reply),
            // Initialised while GPUs were to be closed: it has opened none yet.
            Message::Loaded(Ok(_)) if self.closing.is_some() => {}
            Message::Loaded(Ok(machine)) => self.start(machine),
            Message::Loaded(Err(reason)) => self.give_up(reason),
            Message::Seen(generation, look) if generation == self.generation => self.see(*look),
            // From a thread that hung until after NVML was initialised again.
            Message::Seen(..) => {}
            Message::Stop => self.stop = true,
        }
    }

    /// Initialises NVML in a thread of its own, because it may hang too.
    fn load(&mut self) {
        self.next_load = None;
        let (library, inbox_tx) = (self.config.library.clone(), self.inbox_tx.clone());
        spawn("gpu-load", move || {
            // Fails only if the coordinator has ended.
            let _ = inbox_tx.send(Message::Loaded(nvml::load(&library).map(Arc::new)));
        });
    }

    fn give_up(&mut self, reason: String) {
        self.machine = None;
        self.gpus.clear();
        self.next_load = Some(Instant::now() + self.config.retry);
        let mut shared = self.shared.lock().unwrap_or_else(PoisonError::into_inner);
        shared.health = Health::Unavailable(reason);
        shared.latest = None;
    }

    fn release(&mut self, gpus: &[u32], reply: Sender<()>) {
        let known = |index: &u32| {
            let mut all = self
                .gpus
                .iter()
                .map(|g| &g.reading)
                .chain(&self.config.released);
            let known = all.find(|r| r.index == *index);
            let mut reading = known.map_or_else(|| GpuReading::unread(*index), Clone::clone);
            reading.state = GpuState::Released;
            reading.forget_figures();
            reading
        };
        self.config.released = gpus.iter().map(known).collect();
        let machine = self.machine.take();
        self.gpus.clear();
        self.next_load = None;
        let machine = machine.as_ref().map_or_else(Weak::new, Arc::downgrade);
        match &mut self.closing {
            Some((_, replies)) => replies.push(reply),
            None => self.closing = Some((machine, vec![reply])),
        }
    }

    /// Continues once every thread has released the old NVML: initialising it earlier would keep all GPUs open.
    fn close(&mut self) {
        if self
            .closing
            .as_ref()
            .is_some_and(|(machine, _)| machine.strong_count() > 0)
        {
            return;
        }
        for reply in self.closing.take().into_iter().flat_map(|(_, r)| r) {
            // The caller may have given up.
            let _ = reply.send(());
        }
        self.load();
    }

    /// Without NVML: answers callers, unless an attempt is running, for which they wait.
    fn wait_for_nvml(&mut self, now: Instant) {
        if now >= self.next_tick {
            self.next_tick = now + self.config.interval;
        }
        if self.next_load.is_some_and(|at| now >= at) {
            self.load();
        } else if self.next_load.is_some() {
            let reason = match self.health() {
                Health::Unavailable(reason) => reason,
                Health::Starting(_) | Health::Running => "NVML is being initialised".into(),
            };
            for reply in self.asked.drain(..) {
                reply(Err(GpuError::Unavailable {
                    reason: reason.clone(),
                }));
            }
        }
    }

    fn start(&mut self, machine: Arc<Machine>) {
        self.generation += 1;
        self.gpus = (0..machine.gpus)
            .map(|index| {
                let released = self.config.released.iter().find(|r| r.index == index);
                Watched {
                    reading: released.map_or_else(|| GpuReading::unread(index), Clone::clone),
                    job_tx: match released {
                        // Messages to it are dropped.
                        Some(_) => mpsc::channel().0,
                        None => self.watch(&machine, index),
                    },
                    asked: None,
                    reload: false,
                }
            })
            .collect();
        self.machine = Some(machine);
        self.shared
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .health = Health::Running;
        // The first full reading follows at once.
        self.next_tick = Instant::now();
    }

    /// Starts the thread of one GPU. It ends when the returned sender is dropped.
    fn watch(&self, machine: &Arc<Machine>, index: u32) -> Sender<Job> {
        let (job_tx, job_rx) = mpsc::channel();
        let library = self.config.library.clone();
        let (machine, inbox_tx) = (Arc::clone(machine), self.inbox_tx.clone());
        let generation = self.generation;
        spawn(&format!("gpu-{index}"), move || {
            let mut eye = Eye::new(&machine.nvml, index);
            for job in job_rx {
                let scope = match job {
                    Job::Look(scope) => scope,
                    Job::Divide(order, reply) => {
                        let _ = reply.send(eye.divide(order));
                        continue;
                    }
                    Job::Limit(order, reply) => {
                        // The caller may have given up.
                        let _ = reply.send(eye.limit(&library, &order));
                        continue;
                    }
                };
                let seen = Message::Seen(generation, Box::new(eye.look(scope)));
                if inbox_tx.send(seen).is_err() {
                    return;
                }
            }
        });
        job_tx
    }

    fn tick(&mut self, now: Instant) {
        self.next_tick += self.config.interval;
        if self.next_tick <= now {
            // Late by more than an interval (suspended machine): skip the missed ticks.
            self.next_tick = now + self.config.interval;
        }
        let replies = std::mem::take(&mut self.asked);
        self.round(Scope::All);
        if let Some(sample) = self.answer(replies) {
            (self.sink)(sample);
        }
        // All GPUs report that NVML itself is gone: the driver was reloaded.
        let watched = |gpu: &&Watched| gpu.reading.state != GpuState::Released;
        let mut watched = self.gpus.iter().filter(watched).peekable();
        if watched.peek().is_some() && watched.all(|gpu| gpu.reload) {
            self.give_up("the driver was unloaded or replaced".into());
        }
    }

    /// Asks every GPU without a pending answer, and waits up to the patience.
    fn round(&mut self, scope: Scope) {
        let start = Instant::now();
        for gpu in self.gpus.iter_mut().filter(|gpu| gpu.asked.is_none()) {
            if gpu.job_tx.send(Job::Look(scope)).is_ok() {
                gpu.asked = Some(start);
            }
        }
        while !self.stop && self.gpus.iter().any(|gpu| gpu.asked == Some(start)) {
            let left = self.config.patience.saturating_sub(start.elapsed());
            match self.inbox_rx.recv_timeout(left) {
                Ok(message) => self.take(message),
                Err(_) => break,
            }
        }
        for gpu in &mut self.gpus {
            if gpu
                .asked
                .is_some_and(|at| at.elapsed() >= self.config.hung_after)
            {
                gpu.reading.state = GpuState::Hung;
                gpu.reading.forget_figures();
            }
        }
    }

    /// Assembles and publishes the sample, and answers callers that asked before the round began.
    fn answer(&mut self, replies: Vec<Reply>) -> Option<GpuSample> {
        let machine = self.machine.as_ref()?;
        let sample = GpuSample {
            taken: Instant::now(),
            driver_version: machine.driver_version.clone(),
            cuda_version: machine.cuda_version,
            gpus: self.gpus.iter().map(|gpu| gpu.reading.clone()).collect(),
        };
        self.shared
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .latest = Some(sample.clone());
        for reply in replies {
            reply(Ok(sample.clone()));
        }
        Some(sample)
    }

    fn see(&mut self, look: Look) {
        let index = look.reading.index;
        if let Some(gpu) = self.gpus.iter_mut().find(|g| g.reading.index == index) {
            gpu.asked = None;
            gpu.reload = look.reload;
            gpu.reading = look.reading;
        }
    }

    fn health(&self) -> Health {
        let shared = self.shared.lock().unwrap_or_else(PoisonError::into_inner);
        shared.health.clone()
    }
}

/// A detached thread. If none is available, the reading stays absent, which shows.
fn spawn(name: &str, body: impl FnOnce() + Send + 'static) {
    let _ = thread::Builder::new().name(name.into()).spawn(body);
}
