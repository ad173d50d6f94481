//! The process's thread that handles requests.

use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Sender, channel};
use std::time::{Duration, Instant};

use gshare_sim_board::{CheckpointHow, CheckpointStep, Opener};

use super::mailbox::{Mailbox, Pair, Request};
use super::save::Saved;
use super::{BETWEEN_SINCE, calls, state, wait_for_peers};
use crate::code::{
    ILLEGAL_STATE, INVALID_DEVICE, INVALID_VALUE, NOT_READY, NOT_SUPPORTED, R, UNKNOWN,
};
use crate::device;
use crate::driver::{Driver, code_of};
use crate::stream::thread_id;

/// The process shares memory or events with others.
static SHARES: AtomicBool = AtomicBool::new(false);

/// Marks the process as sharing something with others, so that it cannot be checkpointed.
pub(crate) fn shares() {
    SHARES.store(true, Ordering::Relaxed);
}

/// The process has multicast objects.
static HANGS: AtomicBool = AtomicBool::new(false);

/// Marks the process as having multicast objects, so that a lock hangs as with the real driver.
pub(crate) fn hangs() {
    HANGS.store(true, Ordering::Relaxed);
}

/// Starts the thread. If that fails, the process runs but cannot be checkpointed.
pub(crate) fn start(driver: &'static Driver) {
    let Ok((mailbox, file)) = Mailbox::own() else {
        return;
    };
    let handler = Handler {
        driver,
        mailbox,
        saved: Mutex::new(None),
    };
    let builder = std::thread::Builder::new()
        .name(format!("cuda{file:011x}"))
        .stack_size(256 << 10);
    let (begun, begins) = channel();
    // SAFETY: blocks all signals while the thread starts, so that it inherits the mask: signals are for the program's
    // threads.
    unsafe {
        let (mut all, mut before) = (std::mem::zeroed(), std::mem::zeroed());
        libc::sigfillset(&raw mut all);
        libc::pthread_sigmask(libc::SIG_SETMASK, &raw const all, &raw mut before);
        drop(builder.spawn(move || handler.run(begun)));
        libc::pthread_sigmask(libc::SIG_SETMASK, &raw const before, std::ptr::null_mut());
    }
    // From here on others find the thread. An error: it did not start.
    let _ = begins.recv();
}

struct Handler {
    driver: &'static Driver,
    mailbox: Mailbox,
    saved: Mutex<Option<Saved>>,
}

impl Handler {
    fn run(&self, begun: Sender<()>) {
        self.mailbox.begin(thread_id() as u32);
        drop(begun);
        loop {
            let request = self.mailbox.next();
            wait_for_peers(std::process::id().cast_signed());
            let result = match &request {
                Request::Lock { timeout_ms } => self.lock(*timeout_ms),
                Request::Checkpoint => self.checkpoint(),
                Request::Restore { pairs } => self.restore(pairs),
                Request::Unlock => self.unlock(),
            };
            self.mailbox.answer(result.err().unwrap_or(0));
        }
    }

    fn must_be(&self, state: u32) -> R {
        match self.mailbox.state() == state {
            true => Ok(()),
            false => Err(ILLEGAL_STATE),
        }
    }

    /// Applies the injected fault, if any.
    fn fault(&self, step: CheckpointStep) -> R {
        let board = &self.driver.board;
        let pid = std::process::id();
        match board.checkpoint_fault(step, pid) {
            None | Some(CheckpointHow::WaitsForPeers) => Ok(()),
            Some(CheckpointHow::Refused) => Err(UNKNOWN),
            Some(CheckpointHow::Hangs) => {
                while board.checkpoint_fault(step, pid) == Some(CheckpointHow::Hangs) {
                    std::thread::sleep(Duration::from_millis(5));
                }
                Err(UNKNOWN)
            }
            Some(CheckpointHow::Waits) => {
                while board.checkpoint_fault(step, pid) == Some(CheckpointHow::Waits) {
                    std::thread::sleep(Duration::from_millis(5));
                }
                Ok(())
            }
            Some(CheckpointHow::Fails) => {
                self.mailbox.set_state(state::FAILED);
                calls::lose();
                Err(UNKNOWN)
            }
            Some(CheckpointHow::Dies) => {
                // SAFETY: kills the own process, as the fault asks.
                unsafe { libc::kill(libc::getpid(), libc::SIGKILL) };
                Err(UNKNOWN)
            }
        }
    }

    /// Refuses clients of MPS and users of instances.
    fn allowed(&self) -> R {
        let seen = self.driver.board.snapshot();
        let instance = |gpu: usize| seen.gpus.get(gpu).is_some_and(|g| g.instance.is_some());
        match self.driver.mps.is_some() || self.driver.devices.iter().any(|d| instance(d.gpu)) {
            true => Err(NOT_SUPPORTED),
            false => Ok(()),
        }
    }

    fn lock(&self, timeout_ms: u32) -> R {
        self.must_be(state::RUNNING)?;
        self.allowed()?;
        calls::shut();
        let done = self.fault(CheckpointStep::Lock);
        let until = (timeout_ms != 0)
            .then(|| Instant::now() + Duration::from_millis(u64::from(timeout_ms)));
        let idle = || {
            let mut t = self.driver.tables();
            self.driver.poll(&mut t);
            t.live.is_empty() && t.put_off.is_empty() && !HANGS.load(Ordering::Relaxed)
        };
        let done = done.and_then(|()| match calls::drained(until, idle) {
            true => Ok(()),
            false => Err(NOT_READY),
        });
        match done {
            Ok(()) => self.mailbox.set_state(state::LOCKED),
            Err(_) if self.mailbox.state() == state::RUNNING => calls::open(),
            Err(_) => {}
        }
        done
    }

    /// Runs a longer step. Newer drivers show a state of its own meanwhile; a failed step restores the previous state.
    fn between(&self, word: u32, work: impl FnOnce() -> R) -> R {
        let before = self.mailbox.state();
        if device::version() >= BETWEEN_SINCE {
            self.mailbox.set_state(word);
        }
        let done = work();
        if done.is_err() && self.mailbox.state() == word {
            self.mailbox.set_state(before);
        }
        done
    }

    fn checkpoint(&self) -> R {
        self.must_be(state::LOCKED)?;
        if SHARES.load(Ordering::Relaxed) {
            return Err(NOT_SUPPORTED);
        }
        if self.driver.tables().has_managed() {
            // The real driver leaves the process in a bad state here (README of cuda-checkpoint).
            self.mailbox.set_state(state::FAILED);
            return Err(NOT_SUPPORTED);
        }
        self.between(state::CHECKPOINTING, || self.save())
    }

    fn save(&self) -> R {
        let d = self.driver;
        std::thread::sleep(d.board.checkpoint_time(d.slot));
        self.fault(CheckpointStep::Checkpoint)?;
        let saved = Saved::take(&mut d.tables())?;
        *lock(&self.saved) = Some(saved);
        d.board.park(d.slot).map_err(|e| code_of(&e))?;
        for v in &d.devices {
            d.board.close_gpu(Opener::Cuda, d.board.gpu_at(v.gpu));
        }
        self.mailbox.set_state(state::CHECKPOINTED);
        Ok(())
    }

    /// Translates a map of GPUs to the board's indices. The map has to name every GPU that the process sees.
    fn moves(&self, pairs: &[Pair]) -> R<Vec<(usize, usize)>> {
        let d = self.driver;
        if pairs.is_empty() {
            return Ok(Vec::new());
        }
        let seen = d.board.snapshot();
        let index = |uuid: &[u8; 16]| seen.gpus.iter().position(|g| g.uuid_bytes == *uuid);
        let moves: Option<Vec<(usize, usize)>> = pairs
            .iter()
            .map(|p| Some((index(&p.old)?, index(&p.new)?)))
            .collect();
        let moves = moves.ok_or(INVALID_VALUE)?;
        let named = |gpu: usize| moves.iter().filter(|m| m.0 == gpu).count() == 1;
        let own: Vec<usize> = d.devices.iter().map(|v| d.board.gpu_at(v.gpu)).collect();
        let whole = own.len() == moves.len() && own.iter().all(|gpu| named(*gpu));
        let apart = moves
            .iter()
            .all(|m| moves.iter().filter(|n| n.1 == m.1).count() == 1);
        if !whole || !apart || d.is_subset {
            return Err(INVALID_VALUE);
        }
        match moves.iter().all(|m| d.may_open(&seen, m.1)) {
            true => Ok(moves),
            false => Err(INVALID_DEVICE),
        }
    }

    fn restore(&self, pairs: &[Pair]) -> R {
        self.must_be(state::CHECKPOINTED)?;
        let moves = self.moves(pairs)?;
        self.between(state::RESTORING, || self.put_back(&moves))
    }

    fn put_back(&self, moves: &[(usize, usize)]) -> R {
        let d = self.driver;
        self.fault(CheckpointStep::Restore)?;
        d.board.unpark(d.slot, moves).map_err(|e| match e {
            gshare_sim_board::BoardError::OtherModel { .. } => INVALID_VALUE,
            e => code_of(&e),
        })?;
        for v in &d.devices {
            d.board.open_gpu(Opener::Cuda, d.board.gpu_at(v.gpu));
        }
        std::thread::sleep(d.board.checkpoint_time(d.slot));
        if let Some(saved) = lock(&self.saved).take() {
            saved.put_back()?;
        }
        self.mailbox.set_state(state::LOCKED);
        Ok(())
    }

    fn unlock(&self) -> R {
        self.must_be(state::LOCKED)?;
        self.fault(CheckpointStep::Unlock)?;
        self.mailbox.set_state(state::RUNNING);
        calls::open();
        Ok(())
    }
}

fn lock<T>(mutex: &Mutex<T>) -> std::sync::MutexGuard<'_, T> {
    mutex
        .lock()
        .unwrap_or_else(std::sync::PoisonError::into_inner)
}
