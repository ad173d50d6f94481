//! The driver's state in this process: made by `cuInit`, never destroyed.
//!
//! One mutex guards all tables. It is not held during interpretation of a kernel, waits for the board's time or
//! callbacks of the program.

use std::collections::{BTreeMap, HashMap};
use std::ffi::CStr;
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, OnceLock, PoisonError, RwLock};

use gshare_sim_board::{
    Board, BoardError, BoardSnapshot, Finished, MAX_DEPS, Model, Opener, Preset, ProcessInfo, Slot,
    now_ns,
};

use crate::array::{Array, Mipmap};
use crate::capture::Capture;
use crate::checkpoint;
use crate::code::{
    CUresult, DEINITIALIZED, INVALID_DEVICE, LAUNCH_OUT_OF_RESOURCES, NO_DEVICE, NOT_INITIALIZED,
    OUT_OF_MEMORY, R, UNKNOWN,
};
use crate::context::Context;
use crate::event::Event;
use crate::function::Function;
use crate::graph::Graphs;
use crate::ipc::Imports;
use crate::library::Library;
use crate::link::Linker;
use crate::memory::Memory;
use crate::module::Module;
use crate::mps;
use crate::op::PutOff;
use crate::pool::Pool;
use crate::stream::Stream;
use crate::visible;
use crate::vmm::Vmm;

/// A GPU that this process sees.
#[derive(Debug)]
pub(crate) struct Device {
    /// Index on the board.
    pub gpu: usize,
    pub model: &'static Model,
    pub pci_bus: u32,
}

#[derive(Debug, Default)]
pub(crate) struct Primary {
    pub context: Option<u64>,
    pub references: u32,
    pub flags: u32,
}

/// Longest interpretation that the GPU's clock does not subtract, in nanoseconds: a real launch takes as long.
const CALL_NS: u64 = 10_000;
/// No interpreted instruction takes longer, in nanoseconds: in the rest of the time the thread had no processor, which
/// delays a real launch as well.
const INSTRUCTION_NS: u64 = 300;

/// Work that the board has not reported as finished.
#[derive(Debug)]
pub(crate) struct Live {
    pub context: u64,
    pub stream: u64,
    /// Tickets of its dependencies.
    pub deps: [u64; MAX_DEPS],
    /// On the GPU's clock: when it was launched, and when what is before it ended.
    pub ready_ns: u64,
    pub after_ns: u64,
    /// The clock's lag then.
    pub lag_ns: u64,
    /// Events that record its end.
    pub events: Vec<u64>,
}

/// The clock that events show: real time minus the time in which kernels were interpreted.
///
/// On a real GPU a launch returns at once; here it computes the results first. Without this correction two events
/// around a kernel would measure the interpreter. Times up to the duration of a real launch call are not subtracted,
/// nor those in which a thread had no processor for the few instructions of a kernel: otherwise the clock would fall
/// behind by milliseconds per second.
#[derive(Debug, Default)]
struct GpuClock {
    /// Total time of finished interpretations.
    lag_ns: u64,
    running: u32,
    since_ns: u64,
    /// What the interpretations since then took at most.
    most_ns: u64,
}

impl GpuClock {
    /// Its time at `then`, unless it stands still, or has stood still since it lagged by `lag_ns`.
    fn steady(&self, now: u64, then: u64, lag_ns: u64) -> Option<u64> {
        let calls = now.saturating_sub(self.since_ns) <= CALL_NS;
        let runs = self.running == 0 || calls || then <= self.since_ns;
        (runs && lag_ns == self.lag_ns).then(|| then.saturating_sub(lag_ns))
    }

    fn at(&self, now: u64) -> u64 {
        let current = match self.running {
            0 => 0,
            _ => now.saturating_sub(self.since_ns),
        };
        now.saturating_sub(self.lag_ns + current)
    }

    fn begin(&mut self, now: u64) {
        if self.running == 0 {
            (self.since_ns, self.most_ns) = (now, 0);
        }
        self.running += 1;
    }

    /// Ends an interpretation of this many instructions.
    fn end(&mut self, now: u64, instructions: u64) {
        self.running = self.running.saturating_sub(1);
        let most_ns = instructions.saturating_mul(INSTRUCTION_NS);
        self.most_ns = self.most_ns.saturating_add(most_ns);
        let took = now.saturating_sub(self.since_ns).min(self.most_ns);
        if self.running == 0 && took > CALL_NS {
            self.lag_ns += took;
        }
    }
}

/// The objects behind all handles.
#[derive(Debug, Default)]
pub(crate) struct Tables {
    pub primaries: Vec<Primary>,
    pub contexts: HashMap<u64, Context>,
    /// The device of each green context.
    pub greens: HashMap<u64, i32>,
    pub streams: HashMap<u64, Stream>,
    pub events: HashMap<u64, Event>,
    pub modules: HashMap<u64, Module>,
    pub functions: HashMap<u64, Function>,
    pub libraries: HashMap<u64, Library>,
    pub linkers: HashMap<u64, Linker>,
    pub pools: HashMap<u64, Pool>,
    /// The current pool of each device, by index.
    pub current_pools: Vec<u64>,
    pub default_pools: Vec<u64>,
    pub memory: Memory,
    pub vmm: Vmm,
    pub live: BTreeMap<u64, Live>,
    /// Postponed work that waits for host functions, by its number.
    pub put_off: BTreeMap<u64, PutOff>,
    /// Tickets of postponed work that is on the board now.
    pub done: HashMap<u64, u64>,
    pub graphs: Graphs,
    pub captures: HashMap<u64, Capture>,
    pub arrays: HashMap<u64, Array>,
    pub mipmaps: HashMap<u64, Mipmap>,
    pub imports: Imports,
    /// Imported memory of other drivers.
    pub external: HashMap<u64, OwnedFd>,
    /// Launches per GPU of each kernel with a meeting.
    pub meetings: HashMap<(String, usize), u64>,
    clock: GpuClock,
    last_handle: u64,
}

#[derive(Debug)]
pub(crate) struct Driver {
    pub board: Board,
    pub slot: Slot,
    pub devices: Vec<Device>,
    tables: Mutex<Tables>,
    /// Signals that postponed work has run.
    pub changed: Condvar,
    /// This process's part as a client of MPS.
    pub mps: Option<mps::Client>,
    /// `CUDA_VISIBLE_DEVICES` hides GPUs that the process could open.
    pub is_subset: bool,
    /// The UUIDs of all GPUs of the board.
    pub uuids: Vec<[u8; 16]>,
    /// Directory of the device nodes.
    nodes: PathBuf,
    /// Held for reading while a kernel is interpreted, for writing while memory is unmapped.
    pub memory_gate: RwLock<()>,
    /// Bytes per second over PCI Express, if the file of kernel durations sets them.
    pub pcie: Option<u64>,
    /// Costs of the driver beyond the work itself.
    pub preset: Preset,
}

static DRIVER: OnceLock<Driver> = OnceLock::new();
static INIT: Mutex<()> = Mutex::new(());
static FORKED: AtomicBool = AtomicBool::new(false);

extern "C" fn after_fork_in_child() {
    FORKED.store(true, Ordering::Relaxed);
}

/// Whether this process is a forked child of a process that called `cuInit`.
pub(crate) fn is_forked() -> bool {
    FORKED.load(Ordering::Relaxed)
}

/// The driver, if `cuInit` has been called in this process.
pub(crate) fn get() -> R<&'static Driver> {
    if is_forked() {
        return Err(NOT_INITIALIZED);
    }
    DRIVER.get().ok_or(NOT_INITIALIZED)
}

/// The result code for an error of the board.
pub(crate) fn code_of(error: &BoardError) -> CUresult {
    match error {
        BoardError::OutOfMemory { .. } => OUT_OF_MEMORY,
        BoardError::TooLarge => LAUNCH_OUT_OF_RESOURCES,
        BoardError::NotRegistered => DEINITIALIZED,
        BoardError::NoSuchGpu { .. } => INVALID_DEVICE,
        BoardError::Fault { code } => *code,
        _ => UNKNOWN,
    }
}

/// The path of the board: from the environment, else beside the directory of this library.
pub(crate) fn board_path() -> Option<PathBuf> {
    if let Some(path) = std::env::var_os("GSHARE_SIM_BOARD") {
        return Some(PathBuf::from(path));
    }
    let own = own_path()?;
    Some(own.parent()?.join("../board"))
}

fn own_path() -> Option<PathBuf> {
    // SAFETY: Dl_info is plain data, for which zero is a value.
    let mut info: libc::Dl_info = unsafe { std::mem::zeroed() };
    // SAFETY: the address is of a function in this object, `info` is valid to write to.
    let found = unsafe { libc::dladdr((own_path as *const ()).cast(), &raw mut info) };
    if found == 0 || info.dli_fname.is_null() {
        return None;
    }
    // SAFETY: dladdr filled in a C string that lives as long as this object is loaded.
    let name = unsafe { CStr::from_ptr(info.dli_fname) };
    Some(PathBuf::from(name.to_str().ok()?))
}

/// `cuInit`: joins the board. Calling it again changes nothing.
pub(crate) fn init() -> R {
    if FORKED.load(Ordering::Relaxed) {
        return Err(NOT_INITIALIZED);
    }
    let _one = INIT.lock().unwrap_or_else(PoisonError::into_inner);
    if DRIVER.get().is_some() {
        return Ok(());
    }
    let path = board_path().ok_or(NO_DEVICE)?;
    let board = match Board::open(&path) {
        Ok(board) => board,
        Err(e) => {
            if std::env::var_os("GSHARE_SIM_BOARD").is_some() {
                eprintln!("simulated libcuda: {e}");
            }
            return Err(NO_DEVICE);
        }
    };
    let seen = board.snapshot();
    let dev = path.parent().unwrap_or(Path::new(".")).join("dev");
    let accessible = visible::accessible(&seen, &dev);
    let uuids: Vec<String> = seen.gpus.iter().map(|g| g.uuid.clone()).collect();
    let variable = std::env::var("CUDA_VISIBLE_DEVICES").ok();
    let chosen = visible::chosen(&accessible, &uuids, variable.as_deref());
    let is_subset = chosen.len() < visible::chosen(&accessible, &uuids, None).len();
    let mps = mps::connect()?;
    let part = |gpu: usize| mps.as_ref().map(|c| c.part(&seen, gpu));
    let devices: Vec<Device> = chosen
        .into_iter()
        // A client has the devices of its server.
        .filter(|&gpu| part(gpu) != Some(None))
        .map(|gpu| Device {
            gpu,
            model: match part(gpu) {
                Some(Some((sms, _))) => mps::with_sms(seen.gpus[gpu].model, sms),
                _ => seen.gpus[gpu].model,
            },
            pci_bus: seen.gpus[gpu].pci_bus,
        })
        .filter(|d| !seen.gpus[d.gpu].lost)
        .collect();
    if devices.is_empty() {
        return Err(NO_DEVICE);
    }
    let slot = board
        .register(&ProcessInfo::current())
        .map_err(|e| code_of(&e))?;
    for d in &devices {
        if let (Some(client), Some(Some((sms, pinned)))) = (&mps, part(d.gpu)) {
            board
                .join_mps(slot, d.gpu, client.server, sms, pinned)
                .map_err(|e| code_of(&e))?;
        }
    }
    for d in &devices {
        // Opens an instance and its parent GPU.
        board.open_gpu(Opener::Cuda, d.gpu);
        board.open_gpu(Opener::Cuda, seen.gpus[d.gpu].minor as usize);
    }
    // SAFETY: registers a handler that only stores to an atomic.
    unsafe { libc::pthread_atfork(None, None, Some(after_fork_in_child)) };
    let mut tables = Tables {
        last_handle: 0x10_0000,
        ..Tables::default()
    };
    for (ordinal, d) in devices.iter().enumerate() {
        tables.primaries.push(Primary::default());
        let pool = tables.handle();
        tables.pools.insert(pool, Pool::new(ordinal, d.gpu));
        tables.default_pools.push(pool);
        tables.current_pools.push(pool);
    }
    let driver = Driver {
        pcie: gshare_sim_board::Costs::beside(board.path()).pcie_bytes_per_second(),
        preset: board.preset(),
        board,
        slot,
        devices,
        tables: Mutex::new(tables),
        changed: Condvar::new(),
        mps,
        is_subset,
        uuids: seen.gpus.iter().map(|g| g.uuid_bytes).collect(),
        nodes: dev,
        memory_gate: RwLock::new(()),
    };
    checkpoint::start(DRIVER.get_or_init(|| driver));
    Ok(())
}

impl Tables {
    /// A new handle: never reused, and not a reserved stream handle.
    pub(crate) fn handle(&mut self) -> u64 {
        self.last_handle += 16;
        self.last_handle
    }

    pub(crate) fn context(&self, handle: u64) -> R<&Context> {
        self.contexts
            .get(&self.owner(handle))
            .ok_or(crate::code::INVALID_CONTEXT)
    }

    /// Processes work that the board reports as over.
    pub(crate) fn absorb(&mut self, finished: &[Finished]) {
        for f in finished {
            self.over(f.ticket, f.end_ns.map(|end| (f.start_ns, end)));
        }
    }

    /// A fault of another client of the MPS server ends the contexts on this GPU.
    fn faulted(&mut self, gpu: usize, code: CUresult) {
        for c in self.contexts.values_mut().filter(|c| c.gpu == gpu) {
            c.sticky.get_or_insert(code);
        }
    }

    /// Removes work that is over: it ran then by the board's clock, or failed.
    ///
    /// What ran while another kernel was interpreted has no time on the GPU's clock: it took as long after what was
    /// before it.
    pub(crate) fn over(&mut self, ticket: u64, ran: Option<(u64, u64)>) {
        let Some(live) = self.live.remove(&ticket) else {
            return;
        };
        if !self.done.is_empty() {
            self.done.retain(|_, t| *t != ticket);
        }
        if ran.is_none()
            && let Some(c) = self.contexts.get_mut(&live.context)
        {
            c.sticky.get_or_insert(UNKNOWN);
        }
        let ns = ran.map_or(0, |(start, end)| end.saturating_sub(start));
        let known = ran.and_then(|(_, end)| self.clock.steady(now_ns(), end, live.lag_ns));
        let end = known.unwrap_or(live.ready_ns + ns).max(live.after_ns + ns);
        for other in self.live.values_mut() {
            if other.deps.contains(&ticket) {
                other.after_ns = other.after_ns.max(end);
            }
        }
        if let Some(s) = self.streams.get_mut(&live.stream) {
            s.end_ns = s.end_ns.max(end);
        }
        for e in live.events {
            if let Some(event) = self.events.get_mut(&e) {
                event.finish(ticket, end);
            }
        }
    }

    /// The time now, on the clock that events show.
    pub(crate) fn gpu_now(&self) -> u64 {
        self.clock.at(now_ns())
    }

    /// How far it is behind.
    pub(crate) fn gpu_lag(&self) -> u64 {
        self.clock.lag_ns
    }

    /// Begins an interpretation, during which the GPU's clock stands still.
    pub(crate) fn interprets(&mut self) {
        self.clock.begin(now_ns());
    }

    /// Ends one of this many instructions.
    pub(crate) fn interpreted(&mut self, instructions: u64) {
        self.clock.end(now_ns(), instructions);
    }
}

impl Driver {
    pub(crate) fn tables(&self) -> MutexGuard<'_, Tables> {
        self.tables.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(crate) fn device(&self, ordinal: i32) -> R<&Device> {
        usize::try_from(ordinal)
            .ok()
            .and_then(|i| self.devices.get(i))
            .ok_or(INVALID_DEVICE)
    }

    /// Whether this process may open the node of a GPU of the board.
    pub(crate) fn may_open(&self, board: &BoardSnapshot, gpu: usize) -> bool {
        visible::accessible(board, &self.nodes).contains(&gpu)
    }

    /// Reads faults of other clients of the MPS server. Must precede reading finished work, which would report the work
    /// that such a fault ended as failed by itself.
    pub(crate) fn learn_faults(&self, tables: &mut Tables) {
        if self.mps.is_none() {
            return;
        }
        for d in &self.devices {
            if let Some(code) = self.board.fault_of(self.slot, d.gpu) {
                tables.faulted(d.gpu, code);
            }
        }
    }

    /// Reads from the board which work is over.
    pub(crate) fn poll(&self, tables: &mut Tables) {
        self.learn_faults(tables);
        if !tables.live.is_empty() {
            tables.absorb(&self.board.poll(self.slot));
        }
        tables.imports.foreign.retain(|t| !self.board.is_over(*t));
    }
}

/// Prints a note on stderr, once per process and text.
pub(crate) fn note_once(text: &str) {
    static SEEN: Mutex<Vec<Arc<str>>> = Mutex::new(Vec::new());
    let mut seen = SEEN.lock().unwrap_or_else(PoisonError::into_inner);
    if !seen.iter().any(|s| &**s == text) {
        seen.push(text.into());
        eprintln!("simulated libcuda: {text}");
    }
}

#[cfg(test)]
mod tests {
    use super::GpuClock;

    /// A thousand launches of nearly empty kernels, one whose thread loses its processor, and one of a kernel that
    /// computes.
    #[test]
    fn events_fall_behind_by_what_is_interpreted_and_not_by_calls() {
        let (mut clock, ms) = (GpuClock::default(), 1_000_000);
        let mut interpret = |at: u64, ns: u64, instructions| {
            clock.begin(at);
            clock.end(at + ns, instructions);
            clock.at(at + ns)
        };
        for launch in 1..=1000 {
            assert_eq!(interpret(launch * ms, 1000, 32), launch * ms + 1000);
        }
        assert_eq!(interpret(1500 * ms, 4 * ms, 32), 1504 * ms);
        assert_eq!(interpret(2000 * ms, 5 * ms, 100_000), 2000 * ms);
        clock.begin(3000 * ms);
        assert_eq!(clock.at(3001 * ms), 2995 * ms, "while it runs");
    }
}
