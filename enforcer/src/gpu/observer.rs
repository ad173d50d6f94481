//! The observer: threads that ask NVML, and a coordinator that never waits for one for ever.

use std::path::PathBuf;
use std::sync::mpsc::{self, Receiver, RecvTimeoutError, Sender};
use std::sync::{Arc, Mutex, PoisonError, Weak};
use std::thread;
use std::time::{Duration, Instant};

use super::limits::{LimitError, LimitOrder};
use super::mig::{MigError, MigOrder, MigState};
use super::nvml::{self, Eye, Look, Machine, Scope};
use super::{GpuError, GpuReading, GpuSample, GpuState};

/// How to observe.
#[derive(Debug, Clone)]
pub struct ObserverConfig {
    /// The library, `libnvidia-ml.so.1` with or without a directory.
    pub library: PathBuf,
    /// Time between samples.
    pub interval: Duration,
    /// How long one round waits for a GPU that answered so far. Its figures are old then.
    pub patience: Duration,
    /// After how long without an answer a GPU counts as hung.
    pub hung_after: Duration,
    /// Time between attempts to initialise NVML.
    pub retry: Duration,
    /// What is known of GPUs that are not to be opened until [`Observer::release`] says otherwise.
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

/// Whether there are readings at all.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Health {
    /// NVML is being initialised, since then.
    Starting(Instant),
    /// Readings come in.
    Running,
    /// NVML cannot be used; tried again from time to time.
    Unavailable(String),
}

/// What a caller wants to hear.
type Reply = Box<dyn FnOnce(Result<GpuSample, GpuError>) + Send>;
type Sink = Box<dyn FnMut(GpuSample) + Send>;

/// What a GPU's thread is told to do.
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
    /// These GPUs are not to be open, all others may be.
    Release(Vec<u32>, Sender<()>),
    Loaded(Result<Arc<Machine>, String>),
    /// A reading, by a thread of this generation.
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
    /// Starts observing. `sink` gets a sample at each interval, from a thread of the observer. It
    /// returns at once also where NVML is missing: see [`Observer::health`].
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

    /// How long ago the newest sample was put together; single GPUs in it may be older.
    #[must_use]
    pub fn age(&self) -> Option<Duration> {
        self.lock().latest.as_ref().map(|s| s.taken.elapsed())
    }

    /// Reads memory and processes of all GPUs now and hands the sample to `reply`, in a thread of
    /// the observer; the other figures are those of the last interval. A GPU that hangs delays
    /// this by the configured patience at most, and only the first time.
    pub fn request(&self, reply: impl FnOnce(Result<GpuSample, GpuError>) + Send + 'static) {
        let ask = Message::Ask(Box::new(reply));
        if let Err(mpsc::SendError(Message::Ask(reply))) = self.inbox_tx.send(ask) {
            reply(Err(GpuError::Stopped));
        }
    }

    /// As [`Observer::request`], waiting for the answer. The first call after the start also waits
    /// for NVML.
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

    /// Carries out what is wanted of the driver's memory limits for a control group, in the GPU's own thread.
    ///
    /// # Errors
    /// [`LimitError`]; [`LimitError::NoAnswer`] after `timeout` (the order may be carried out later still).
    pub fn limit(&self, gpu: u32, order: LimitOrder, timeout: Duration) -> Result<(), LimitError> {
        let (reply_tx, reply_rx) = mpsc::channel();
        let sent = self.inbox_tx.send(Message::Limit(gpu, order, reply_tx));
        let no_answer = LimitError::NoAnswer { gpu };
        sent.map_err(|_| no_answer.clone())?;
        reply_rx.recv_timeout(timeout).unwrap_or(Err(no_answer))
    }

    /// A way to divide a GPU that may be used by another thread.
    #[must_use]
    pub fn divider(&self, gpu: u32) -> Divider {
        Divider {
            gpu,
            inbox_tx: self.inbox_tx.clone(),
        }
    }

    /// Lets go of these GPUs and of no others: NVML closes a GPU only when it is shut down, so it is, and is
    /// initialised anew without them. The answer comes when they are closed; never, while a call hangs in the driver.
    pub fn release(&self, gpus: impl IntoIterator<Item = u32>) -> Receiver<()> {
        let (reply_tx, reply_rx) = mpsc::channel();
        // An observer that has ended drops the sender, which shows.
        let _ = self
            .inbox_tx
            .send(Message::Release(gpus.into_iter().collect(), reply_tx));
        reply_rx
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, Shared> {
        self.shared.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Carries out steps of dividing one GPU, in its own thread of the observer.
#[derive(Debug)]
pub struct Divider {
    gpu: u32,
    inbox_tx: Sender<Message>,
}

impl Divider {
    /// One step, and how the GPU is after it.
    ///
    /// # Errors
    /// [`MigError`]; [`MigError::NoAnswer`] after `timeout` (the step may be done later still).
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
        // Not waited for: a thread may hang in NVML, and then it may do so without us.
        let _ = self.inbox_tx.send(Message::Stop);
    }
}

/// Between two looks whether NVML is shut down.
const CLOSING: Duration = Duration::from_millis(2);

/// One GPU as the coordinator knows it.
struct Watched {
    reading: GpuReading,
    job_tx: Sender<Job>,
    /// When it was asked, while the answer is still due.
    asked: Option<Instant>,
    reload: bool,
}

struct Coordinator {
    config: ObserverConfig,
    inbox_tx: Sender<Message>,
    inbox_rx: Receiver<Message>,
    shared: Arc<Mutex<Shared>>,
    sink: Sink,
    /// Present while NVML is initialised.
    machine: Option<Arc<Machine>>,
    /// When to try again; absent while an attempt runs.
    next_load: Option<Instant>,
    next_tick: Instant,
    /// How often NVML was initialised.
    generation: u64,
    gpus: Vec<Watched>,
    asked: Vec<Reply>,
    /// NVML as it was before GPUs were let go, until all threads have ended, and those who wait for that.
    closing: Option<(Weak<Machine>, Vec<Sender<()>>)>,
    stop: bool,
}

impl Coordinator {
    fn run(&mut self) {
        self.load();
        while !self.stop {
            // A question during a round wants a reading from after it.
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
                // Cannot be: a sender lives in this struct.
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
            // A GPU that is not there drops the order, and so its sender: no answer.
            Message::Limit(index, order, reply) => {
                let gpu = self.gpus.iter().find(|g| g.reading.index == index);
                let _ = gpu.map(|g| g.job_tx.send(Job::Limit(order, reply)));
            }
            Message::Divide(index, order, reply) => {
                let gpu = self.gpus.iter().find(|g| g.reading.index == index);
                let _ = gpu.map(|g| g.job_tx.send(Job::Divide(order, reply)));
            }
            Message::Release(gpus, reply) => self.release(&gpus, reply),
            // Initialised while GPUs were to be let go: it has opened none yet.
            Message::Loaded(Ok(_)) if self.closing.is_some() => {}
            Message::Loaded(Ok(machine)) => self.start(machine),
            Message::Loaded(Err(reason)) => self.give_up(reason),
            Message::Seen(generation, look) if generation == self.generation => self.see(*look),
            // Of a thread that hung until after NVML was initialised anew.
            Message::Seen(..) => {}
            Message::Stop => self.stop = true,
        }
    }

    /// Initialises NVML in a thread of its own, because that may hang too.
    fn load(&mut self) {
        self.next_load = None;
        let (library, inbox_tx) = (self.config.library.clone(), self.inbox_tx.clone());
        spawn("gpu-load", move || {
            // Fails only when the coordinator has ended.
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

    /// Goes on once every thread that had NVML has let go of it: to initialise it before would keep all GPUs open.
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

    /// Without NVML: answer who asks (unless an attempt is running, which they wait for).
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
                        // What is sent there is dropped.
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
        // The first full reading at once.
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
            // Late by more than an interval (suspended machine): skip, do not catch up.
            self.next_tick = now + self.config.interval;
        }
        let replies = std::mem::take(&mut self.asked);
        self.round(Scope::All);
        if let Some(sample) = self.answer(replies) {
            (self.sink)(sample);
        }
        // All GPUs say that NVML itself is gone: the driver was reloaded.
        let watched = |gpu: &&Watched| gpu.reading.state != GpuState::Released;
        let mut watched = self.gpus.iter().filter(watched).peekable();
        if watched.peek().is_some() && watched.all(|gpu| gpu.reload) {
            self.give_up("the driver was unloaded or replaced".into());
        }
    }

    /// Asks every GPU that owes no answer and waits for them, up to the patience.
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

    /// Puts the sample together, publishes it and answers who asked before the round began.
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

/// A thread that is not waited for. If none can be had, the reading stays absent, which shows.
fn spawn(name: &str, body: impl FnOnce() + Send + 'static) {
    let _ = thread::Builder::new().name(name.into()).spawn(body);
}
