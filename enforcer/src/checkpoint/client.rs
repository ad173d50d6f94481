//! The service's side: keeps the engine alive, sends requests, ends an engine that hangs.

use std::collections::HashMap;
use std::io::{BufRead, BufReader, Write};
use std::process::{Child, ChildStdin, Command, Stdio};
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use super::{Answer, CheckpointError, Outcome, ProcessState, Request, Step};

/// Maximum time of `cuInit`.
const START: Duration = Duration::from_secs(60);

type Waiting = Arc<Mutex<HashMap<u64, Sender<Outcome>>>>;

#[derive(Debug)]
struct Running {
    child: Child,
    input: ChildStdin,
    waiting: Waiting,
}

impl Drop for Running {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

#[derive(Debug, Default)]
struct State {
    running: Option<Running>,
    last: u64,
    /// UUIDs of the GPUs that it may open; `None`: all.
    only: Option<String>,
}

/// Connection to the process that talks to the driver. Several threads may use it at once.
#[derive(Debug)]
pub struct Engine {
    /// Program and arguments.
    command: Vec<std::ffi::OsString>,
    state: Mutex<State>,
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Engine {
    /// An engine, started on first use by this program with these arguments. The program must call [`super::serve`].
    pub fn new(command: impl IntoIterator<Item = impl Into<std::ffi::OsString>>) -> Self {
        Self {
            command: command.into_iter().map(Into::into).collect(),
            state: Mutex::default(),
        }
    }

    /// The engine's process, while there is one.
    pub fn pid(&self) -> Option<u32> {
        lock(&self.state).running.as_ref().map(|r| r.child.id())
    }

    /// Starts the engine if it is not running.
    ///
    /// # Errors
    /// If it cannot be started or cannot use the driver.
    pub fn start(&self) -> Result<(), CheckpointError> {
        self.started().map(drop)
    }

    /// Lets the engine open only these GPUs (UUIDs, as in `CUDA_VISIBLE_DEVICES`), or all. Ends a running engine, and
    /// with it all that it has open; the next request starts another.
    pub fn restrict(&self, only: Option<String>) {
        let mut state = lock(&self.state);
        state.running = None;
        state.only = only;
    }

    fn started(&self) -> Result<MutexGuard<'_, State>, CheckpointError> {
        let mut state = lock(&self.state);
        let dead = |r: &mut Running| !matches!(r.child.try_wait(), Ok(None));
        if state.running.as_mut().is_some_and(dead) {
            state.running = None;
        }
        if state.running.is_none() {
            state.running = Some(self.spawn(state.only.as_deref())?);
        }
        Ok(state)
    }

    fn spawn(&self, only: Option<&str>) -> Result<Running, CheckpointError> {
        let no_engine = |why: String| CheckpointError::NoEngine(why);
        let (program, arguments) = self
            .command
            .split_first()
            .ok_or_else(|| no_engine("its command is empty".to_owned()))?;
        let mut command = Command::new(program);
        command
            .args(arguments)
            // The real driver, all its GPUs, and no MPS.
            .env_remove("LD_LIBRARY_PATH")
            .env_remove("LD_PRELOAD")
            .env_remove("CUDA_VISIBLE_DEVICES")
            .env_remove("CUDA_MPS_PIPE_DIRECTORY")
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::null());
        if let Some(only) = only {
            command.env("CUDA_VISIBLE_DEVICES", only);
        }
        let mut child = command.spawn().map_err(|e| no_engine(e.to_string()))?;
        let (Some(input), Some(output)) = (child.stdin.take(), child.stdout.take()) else {
            return Err(no_engine("it has no pipes".to_owned()));
        };
        let waiting = Waiting::default();
        let running = Running {
            child,
            input,
            waiting: Arc::clone(&waiting),
        };
        let (first, ready) = channel();
        lock(&waiting).insert(0, first);
        std::thread::Builder::new()
            .name("checkpoint".to_owned())
            .spawn(move || read(BufReader::new(output), &waiting))
            .map_err(|e| no_engine(e.to_string()))?;
        match ready.recv_timeout(START) {
            Ok(Outcome::Done) => Ok(running),
            Ok(Outcome::NoSuchDriver) => Err(CheckpointError::NoSuchDriver),
            Ok(Outcome::Unusable(why)) => Err(no_engine(why)),
            Ok(_) => Err(no_engine("its first reply is not valid".to_owned())),
            Err(RecvTimeoutError::Timeout) => {
                Err(no_engine(format!("cuInit took more than {START:?}")))
            }
            Err(RecvTimeoutError::Disconnected) => Err(no_engine("it died".to_owned())),
        }
    }

    /// Sends a request; returns its engine, and the channel of the answer.
    fn ask(&self, pid: i32, step: &Step) -> Result<(u32, Receiver<Outcome>), CheckpointError> {
        let mut state = self.started()?;
        state.last += 1;
        let seq = state.last;
        let request = Request {
            seq,
            pid,
            step: step.clone(),
        };
        let (send, receive) = channel();
        let died = || CheckpointError::Died {
            call: step.call(),
            pid,
        };
        let mut line = serde_json::to_string(&request).map_err(|_| died())?;
        line.push('\n');
        let running = state.running.as_mut().ok_or_else(died)?;
        lock(&running.waiting).insert(seq, send);
        let written = running.input.write_all(line.as_bytes());
        let engine = running.child.id();
        drop(state);
        if written.is_err() {
            self.give_up(engine);
            return Err(died());
        }
        Ok((engine, receive))
    }

    /// Ends an engine, unless it was already replaced.
    fn give_up(&self, engine: u32) {
        let mut state = lock(&self.state);
        if state
            .running
            .as_ref()
            .is_some_and(|r| r.child.id() == engine)
        {
            state.running = None;
        }
    }

    fn run(&self, pid: i32, step: &Step, patience: Duration) -> Result<Outcome, CheckpointError> {
        let (engine, receive) = self.ask(pid, step)?;
        match receive.recv_timeout(patience) {
            Ok(Outcome::Failed { code, name }) => Err(CheckpointError::Call {
                call: step.call(),
                pid,
                code,
                name,
            }),
            Ok(outcome) => Ok(outcome),
            Err(RecvTimeoutError::Disconnected) => {
                // Its pipe is closed; the kernel may report its end a moment later.
                self.give_up(engine);
                Err(CheckpointError::Died {
                    call: step.call(),
                    pid,
                })
            }
            Err(RecvTimeoutError::Timeout) => {
                // Nothing else cancels a call in the driver. Other waiting callers find the engine dead and ask again.
                self.give_up(engine);
                Err(CheckpointError::TimedOut {
                    call: step.call(),
                    pid,
                    patience,
                })
            }
        }
    }

    /// Carries out a step.
    ///
    /// # Errors
    /// The driver's refusal, or that there was no answer within `patience`.
    pub fn step(&self, pid: i32, step: &Step, patience: Duration) -> Result<(), CheckpointError> {
        self.run(pid, step, patience).map(drop)
    }

    /// Checkpoint state of a process; `None` if it does not use CUDA. An engine that dies meanwhile is replaced, once.
    ///
    /// # Errors
    /// If the engine or the driver cannot tell.
    pub fn state(
        &self,
        pid: i32,
        patience: Duration,
    ) -> Result<Option<ProcessState>, CheckpointError> {
        let until = Instant::now() + patience;
        let mut result = self.run(pid, &Step::State, patience);
        if matches!(result, Err(CheckpointError::Died { .. })) {
            let left = until.saturating_duration_since(Instant::now());
            result = self.run(pid, &Step::State, left);
        }
        match result {
            Ok(Outcome::State(state)) => Ok(Some(state)),
            Ok(_) => Ok(None),
            Err(error @ CheckpointError::Call { .. }) if error.has_no_cuda() => Ok(None),
            Err(error) => Err(error),
        }
    }
}

/// Passes answers to their callers until the engine ends; later callers get none.
fn read(output: impl BufRead, waiting: &Waiting) {
    for line in output.lines().map_while(Result::ok) {
        let Ok(answer) = serde_json::from_str::<Answer>(&line) else {
            continue;
        };
        if let Some(to) = lock(waiting).remove(&answer.seq) {
            let _ = to.send(answer.outcome);
        }
    }
    lock(waiting).clear();
}
