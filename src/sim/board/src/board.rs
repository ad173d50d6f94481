//! The board as processes use it. Every call is one commit, and every read advances the board's time.

mod faults;
mod mig;
mod park;

use std::fs::{OpenOptions, Permissions};
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use crate::clock::now_ns;
use crate::error::BoardError;
use crate::mix;
use crate::models::index_of;
use crate::presets::Preset;
use crate::process::ProcessInfo;
use crate::slots::SlotLocks;
use crate::snapshot::{self, BoardSnapshot};
use crate::state::{MAX_GPUS, MAX_PROCS, MemoryKind, State, Work};
use crate::store::{OpenError, Store, zeroed};

/// A waiter checks the board at least this often, so that it also notices processes that died.
const LONGEST_SLEEP_NS: u64 = 20_000_000;
/// Shortest time between two searches for dead processes on the launch path, in nanoseconds.
const REAP_NS: u64 = 1_000_000;
/// A read commits what it computed if the board's last commit is older than this, in nanoseconds.
const STALE_NS: u64 = 50_000_000;

/// See [`Board::snapshot_lately`].
const LATELY_NS: u64 = 2_000_000;

pub use park::{CheckpointFault, CheckpointHow, CheckpointStep};

/// Specification of a new board.
#[derive(Debug, Clone)]
pub struct BoardSpec {
    /// Model slugs of the GPUs, by index. `a100-80gb:2g.20gb+1g.10gb` is a GPU divided into these MIG instances.
    pub gpus: Vec<String>,
    /// Driver version that NVML prints.
    pub driver_version: String,
    /// CUDA version of the driver, such as 13000 for 13.0.
    pub cuda_version: u32,
    /// Seed of the UUIDs: boards with the same seed and GPUs have the same UUIDs.
    pub seed: u64,
    /// Seed of the effects that the plain kernel model omits (memory, cache, slices, uneven blocks); 0 disables them.
    pub nature: u64,
}

impl BoardSpec {
    /// A board with these GPUs, driver 580.95.05, CUDA 13.0 and the expected costs of a real driver.
    #[must_use]
    pub fn new(gpus: &[&str]) -> BoardSpec {
        BoardSpec {
            gpus: gpus.iter().map(|&g| g.to_owned()).collect(),
            driver_version: "580.95.05".to_owned(),
            cuda_version: 13_000,
            seed: 0,
            nature: 0,
        }
    }
}

/// A registered process.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Slot {
    row: usize,
    id: u64,
}

impl Slot {
    /// The process's id on the board, as in [`crate::ProcessSnapshot::id`].
    #[must_use]
    pub fn id(self) -> u64 {
        self.id
    }
}

/// Finished work.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Finished {
    pub ticket: u64,
    /// When it began, in nanoseconds of `CLOCK_MONOTONIC`.
    pub start_ns: u64,
    /// When it ended; `None` if it failed because its context ended or its GPU was lost.
    pub end_ns: Option<u64>,
}

/// A simulated workstation, shared by all processes that open its file.
#[derive(Debug)]
pub struct Board {
    path: PathBuf,
    store: Store,
    locks: SlotLocks,
    scratch: Mutex<Scratch>,
    /// The last snapshot for [`Board::snapshot_lately`], with the state that it shows.
    last: Mutex<Option<(u64, Arc<BoardSnapshot>)>>,
    /// Maps this process's GPU numbers to GPUs of the board. A restore can change the mapping.
    at: [AtomicUsize; MAX_GPUS],
}

struct Scratch {
    state: Box<State>,
    /// Scratch state for predictions, allocated on first use.
    other: Option<Box<State>>,
    /// For [`snapshot::take`].
    pids: Vec<(u64, u32)>,
}

impl std::fmt::Debug for Scratch {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Scratch")
    }
}

fn io(doing: &'static str, path: &Path) -> impl FnOnce(std::io::Error) -> BoardError {
    let path = path.to_owned();
    move |source| BoardError::Io {
        doing,
        path,
        source,
    }
}

fn lock_path(path: &Path) -> PathBuf {
    let mut name = path.file_name().unwrap_or_default().to_owned();
    name.push(".locks");
    path.with_file_name(name)
}

fn uuid(seed: u64, index: u64, model: u64) -> [u8; 16] {
    let a = mix(seed ^ (index + 1) << 32 ^ (model + 1));
    let mut bytes = [0; 16];
    bytes[..8].copy_from_slice(&a.to_be_bytes());
    bytes[8..].copy_from_slice(&mix(a).to_be_bytes());
    bytes[6] = (bytes[6] & 0x0f) | 0x40;
    bytes[8] = (bytes[8] & 0x3f) | 0x80;
    bytes
}

impl Board {
    /// Makes a board file and, beside it, its lock file. Every user of the machine can open both.
    ///
    /// # Errors
    /// If a model is unknown, the number of GPUs is 0 or too large, or a file cannot be made.
    pub fn create(path: &Path, spec: &BoardSpec) -> Result<Board, BoardError> {
        let mut state = zeroed();
        // Instances follow all GPUs: slug, parent and number of each.
        let mut rows: Vec<(String, Option<(usize, u64)>)> = Vec::new();
        for slug in &spec.gpus {
            let model = slug.split(':').next().unwrap_or(slug);
            rows.push((model.to_owned(), None));
        }
        for (parent, slug) in spec.gpus.iter().enumerate() {
            let Some((model, cut)) = slug.split_once(':') else {
                continue;
            };
            for (gi, profile) in (1..).zip(cut.split('+')) {
                rows.push((format!("{model}:{profile}"), Some((parent, gi))));
            }
        }
        if rows.is_empty() || rows.len() > state.gpus.len() {
            return Err(BoardError::NoSuchGpu { gpu: rows.len() });
        }
        for (i, (slug, instance)) in rows.iter().enumerate() {
            let model =
                index_of(slug).ok_or_else(|| BoardError::UnknownModel { slug: slug.clone() })?;
            let (parent, gi) = instance.unwrap_or((i, 0));
            let g = &mut state.gpus[i];
            g.model = model as u64;
            g.pci_bus = 1 + 0x10 * parent as u64;
            g.uuid = uuid(spec.seed, i as u64, model as u64);
            g.parent = instance.map_or(0, |(parent, _)| parent as u64 + 1);
            g.instance = [gi, 0];
            g.made = u64::from(instance.is_some());
            if let Some((parent, _)) = instance {
                state.gpus[*parent].mig = [1; 2];
            }
            state.head.gpu_count = i as u64 + 1;
            mig::place(&mut state, i);
        }
        state.head.now_ns = now_ns();
        state.head.nature = spec.nature;
        state.head.preset = Preset::REAL;
        state.head.cuda_version = u64::from(spec.cuda_version);
        let version = spec.driver_version.as_bytes();
        let len = version.len().min(31);
        state.head.driver_version[..len].copy_from_slice(&version[..len]);

        let locks = lock_path(path);
        let open_to_all = Permissions::from_mode(0o666);
        let make = |path: &Path| {
            let mut options = OpenOptions::new();
            let file = options.read(true).write(true).create(true).open(path)?;
            file.set_permissions(open_to_all.clone())?;
            Ok(file)
        };
        make(&locks).map_err(io("make the lock file", &locks))?;
        // Processes that have the previous board open keep it: the new board is a new file.
        let mut fresh = path.as_os_str().to_owned();
        fresh.push(format!(".{}", std::process::id()));
        let fresh = PathBuf::from(fresh);
        let file = make(&fresh).map_err(io("make the board", &fresh))?;
        let store = Store::create(&file, &state).map_err(io("lay out the board", &fresh))?;
        std::fs::rename(&fresh, path).map_err(io("put in place the board", path))?;
        Board::with(path, store)
    }

    /// Opens a board that [`Board::create`] made.
    ///
    /// # Errors
    /// If the file cannot be opened or is not a board of this version.
    pub fn open(path: &Path) -> Result<Board, BoardError> {
        let mut options = OpenOptions::new();
        let file = options
            .read(true)
            .write(true)
            .open(path)
            .map_err(io("open the board", path))?;
        let store = Store::open(&file).map_err(|e| match e {
            OpenError::Io(source) => io("map the board", path)(source),
            OpenError::Bad(why) => BoardError::NotABoard {
                path: path.to_owned(),
                why,
            },
        })?;
        Board::with(path, store)
    }

    fn with(path: &Path, store: Store) -> Result<Board, BoardError> {
        let locks = lock_path(path);
        Ok(Board {
            path: path.to_owned(),
            store,
            locks: SlotLocks::open(&locks).map_err(io("open the lock file", &locks))?,
            scratch: Mutex::new(Scratch {
                state: zeroed(),
                other: None,
                pids: Vec::new(),
            }),
            last: Mutex::new(None),
            at: std::array::from_fn(AtomicUsize::new),
        })
    }

    /// Path of the board file.
    #[must_use]
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Translates a GPU number of this process to the board's index.
    #[must_use]
    pub fn gpu_at(&self, gpu: usize) -> usize {
        let at = self.at.get(gpu);
        at.map_or(gpu, |at| at.load(Ordering::Relaxed))
    }

    fn scratch(&self) -> MutexGuard<'_, Scratch> {
        self.scratch.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Removes dead processes; returns whether there were any.
    fn reap(&self, state: &mut State) -> bool {
        let mut any = false;
        for slot in 0..state.procs().len() {
            // Removing rows can lower the high-water mark.
            let taken = state.procs().get(slot).is_some_and(|p| p.id != 0);
            if taken && self.locks.holder(slot).is_none() {
                state.remove_process(slot);
                any = true;
            }
        }
        state.head.last_reap_ns = state.head.now_ns;
        any
    }

    /// One commit: advances the board to now, removes dead processes, applies the change.
    fn change<R>(
        &self,
        reap_always: bool,
        mut f: impl FnMut(&mut State) -> Result<R, BoardError>,
    ) -> Result<R, BoardError> {
        let mut scratch = self.scratch();
        let mut reaped = false;
        let result = self.store.transact(&mut scratch.state, |state| {
            reaped = self.look(state, now_ns(), reap_always);
            let result = f(state);
            let commit = reaped || result.is_ok();
            (result, commit)
        });
        drop(scratch);
        if reaped {
            self.store.wake();
        }
        result
    }

    fn look(&self, state: &mut State, now: u64, reap_always: bool) -> bool {
        let due = reap_always || now.saturating_sub(state.head.last_reap_ns) > REAP_NS;
        state.advance(now);
        due && self.reap(state)
    }

    /// Registers this process on the board. The kernel drops its lock when it ends, which tells the others.
    ///
    /// # Errors
    /// If the board has no room for another process.
    pub fn register(&self, info: &ProcessInfo) -> Result<Slot, BoardError> {
        let full = BoardError::Full {
            what: "rows for processes",
            rows: MAX_PROCS,
        };
        let mut from = 0;
        loop {
            let row = {
                let mut scratch = self.scratch();
                self.store.load(&mut scratch.state);
                let state = &scratch.state;
                let is_free = |&row: &usize| {
                    state.procs().get(row).is_none_or(|p| p.id == 0)
                        || self.locks.holder(row).is_none()
                };
                (from..MAX_PROCS).find(is_free)
            };
            let Some(row) = row else {
                return Err(full);
            };
            from = row + 1;
            if self.locks.holder(row).is_some() || !self.locks.take(row) {
                continue;
            }
            let id = self.change(false, |state| {
                // The row may still show a dead process; this process now holds its lock.
                state.remove_process(row);
                state.head.inits += 1;
                let id = state.add_process(
                    row,
                    u64::from(info.pid),
                    u64::from(info.uid),
                    info.start,
                    &info.name,
                );
                Ok(id)
            })?;
            return Ok(Slot { row, id });
        }
    }

    /// Removes this process and everything it has from the board.
    pub fn unregister(&self, slot: Slot) -> Result<(), BoardError> {
        let result = self.change(false, |state| {
            if !state.is_registered(slot.id) {
                return Err(BoardError::NotRegistered);
            }
            state.remove_process(slot.row);
            Ok(())
        });
        self.locks.give_back(slot.row);
        self.store.wake();
        result
    }

    /// Makes a context on a GPU, charged with the model's overhead; returns its id.
    ///
    /// # Errors
    /// If the GPU is full, lost or absent.
    pub fn add_context(&self, slot: Slot, gpu: usize) -> Result<u64, BoardError> {
        let gpu = self.gpu_at(gpu);
        let held = self.held(gpu);
        self.retry_full(|s| {
            s.check_gpu(gpu)?;
            let overhead = s.context_cost(slot.id, gpu);
            s.within(held.as_ref(), gpu, overhead)?;
            s.add_context(slot.id, gpu)
        })
    }

    /// Ends a context and fails its kernels.
    ///
    /// # Errors
    /// If the process is not on the board, or the GPU is lost or absent.
    pub fn remove_context(&self, slot: Slot, gpu: usize, context: u64) -> Result<(), BoardError> {
        let gpu = self.gpu_at(gpu);
        self.change(false, |s| s.remove_context(slot.id, gpu, context))?;
        self.store.wake();
        Ok(())
    }

    /// Takes device memory; returns the bytes taken, a multiple of [`crate::GRANULARITY`].
    ///
    /// # Errors
    /// [`BoardError::OutOfMemory`] if the GPU has less than that left.
    pub fn alloc(
        &self,
        slot: Slot,
        gpu: usize,
        kind: MemoryKind,
        bytes: u64,
    ) -> Result<u64, BoardError> {
        let gpu = self.gpu_at(gpu);
        let held = self.held(gpu).filter(|_| kind != MemoryKind::Managed);
        self.retry_full(|s| {
            s.within(held.as_ref(), gpu, bytes)?;
            s.reserve(slot.id, gpu, kind, bytes)
        })
    }

    /// Frees device memory.
    ///
    /// # Errors
    /// If the process is not on the board, or the GPU is lost or absent.
    pub fn free(
        &self,
        slot: Slot,
        gpu: usize,
        kind: MemoryKind,
        bytes: u64,
    ) -> Result<(), BoardError> {
        let gpu = self.gpu_at(gpu);
        self.change(false, |s| s.release(slot.id, gpu, kind, bytes))
    }

    /// Runs `f` again after removing dead processes if the GPU is full.
    fn retry_full<R>(
        &self,
        mut f: impl FnMut(&mut State) -> Result<R, BoardError>,
    ) -> Result<R, BoardError> {
        match self.change(false, &mut f) {
            Err(BoardError::OutOfMemory { .. }) => self.change(true, f),
            other => other,
        }
    }

    /// Free and total bytes of a GPU as CUDA reports them to this process. A client of MPS may have a lower limit.
    ///
    /// # Errors
    /// If the GPU is lost or absent.
    pub fn memory_for(&self, slot: Slot, gpu: usize) -> Result<(u64, u64), BoardError> {
        let gpu = self.gpu_at(gpu);
        let held = self.held(gpu);
        self.change(true, |s| {
            s.check_gpu(gpu)?;
            let (free, total) = (s.free_for(slot.id, gpu), s.gpus()[gpu].model().cuda_total());
            // A process in a limited group sees the limit as the total.
            let (left, limit) = held.as_ref().map_or((free, total), |h| h.left(s, gpu));
            Ok((free.min(left), total.min(limit)))
        })
    }

    /// Queues work; returns its ticket and this process's work that has finished since the last call.
    ///
    /// # Errors
    /// [`BoardError::Full`] if the process has too much work in the queue: wait for some of it.
    pub fn submit(&self, slot: Slot, work: &Work) -> Result<(u64, Vec<Finished>), BoardError> {
        let work = Work {
            gpu: self.gpu_at(work.gpu),
            ..*work
        };
        self.change(false, |s| {
            let done = s.collect(slot.id);
            let ticket = s.submit(slot.id, &work)?;
            Ok((ticket, finished(done)))
        })
    }

    /// Returns this process's work that has finished since the last call.
    pub fn poll(&self, slot: Slot) -> Vec<Finished> {
        let done = self.change(false, |s| Ok(s.collect(slot.id)));
        done.map(finished).unwrap_or_default()
    }

    /// Sleeps until the work with this ticket is over. See [`Board::poll`] for its result.
    ///
    /// A call that has to sleep wakes as late as the preset says.
    pub fn wait(&self, ticket: u64) {
        loop {
            let seen = self.store.change_word();
            let now = now_ns();
            let mut until = None;
            let mut scratch = self.scratch();
            let Scratch { state, other, .. } = &mut *scratch;
            let mut reaped = false;
            self.store.transact(state, |state| {
                reaped = self.look(state, now, true);
                let other = other.get_or_insert_with(zeroed);
                let horizon = state.head.now_ns + LONGEST_SLEEP_NS;
                until = state.predict(ticket, horizon, other).map(|at| {
                    let late = state.head.preset.late_ns(ticket);
                    (at, late.map(|ns| if at < horizon { ns } else { 0 }))
                });
                ((), reaped)
            });
            drop(scratch);
            if reaped {
                self.store.wake();
            }
            let Some((until, late)) = until else { return };
            // If the preset sets the lateness, it includes what the machine adds to a sleep.
            let ns = (until + late.unwrap_or(0)).saturating_sub(now_ns());
            if ns > 0 && !reaped {
                self.store.sleep(seen, ns, late.is_some());
            }
        }
    }

    /// Whether the work with this ticket, of any process, is over.
    #[must_use]
    pub fn is_over(&self, ticket: u64) -> bool {
        self.change(true, |s| Ok(!s.is_live(ticket)))
            .unwrap_or(true)
    }

    /// The board now.
    #[must_use]
    pub fn snapshot(&self) -> BoardSnapshot {
        self.snapshot_at(now_ns())
    }

    /// The last snapshot while the board is unchanged, at most [`LATELY_NS`] old; else a new one. For callers that read
    /// many figures in a row. It may still show a process that died meanwhile.
    #[must_use]
    pub fn snapshot_lately(&self) -> Arc<BoardSnapshot> {
        let mut last = self.last.lock().unwrap_or_else(PoisonError::into_inner);
        let (now, current) = (now_ns(), self.store.current());
        if let Some((of, snapshot)) = &*last
            && *of == current
            && now.saturating_sub(snapshot.now_ns) <= LATELY_NS
        {
            return Arc::clone(snapshot);
        }
        let snapshot = Arc::new(self.snapshot_at(now));
        *last = Some((current, Arc::clone(&snapshot)));
        snapshot
    }

    /// The board at `now` (nanoseconds of `CLOCK_MONOTONIC`), or at its last commit if that is later.
    #[must_use]
    pub fn snapshot_at(&self, now: u64) -> BoardSnapshot {
        let mut scratch = self.scratch();
        let Scratch { state, pids, .. } = &mut *scratch;
        self.store.load(state);
        let stale = now.saturating_sub(state.head.now_ns) > STALE_NS;
        let mut reaped = self.look(state, now, true);
        if stale || reaped {
            self.store.transact(state, |state| {
                reaped |= self.look(state, now, true);
                ((), true)
            });
        }
        if reaped {
            self.store.wake();
        }
        snapshot::take(state, self.locks, pids)
    }
}

fn finished(done: Vec<(u64, u64, Option<u64>)>) -> Vec<Finished> {
    done.into_iter()
        .map(|(ticket, start_ns, end_ns)| Finished {
            ticket,
            start_ns,
            end_ns,
        })
        .collect()
}

#[cfg(test)]
mod tests;
