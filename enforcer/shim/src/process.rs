//! The process as a member: registration, and the state that dies with a fork.
//!
//! Everything hangs on one pointer in a page that the kernel wipes in a forked child. The child thus
//! begins as a stranger without any handler of the proxy having run, whichever way it was forked,
//! and registers when it initialises the driver itself.

use std::{
    os::fd::AsFd,
    panic::{AssertUnwindSafe, catch_unwind},
    ptr,
    sync::{
        Mutex,
        atomic::{AtomicBool, AtomicPtr, AtomicU32, AtomicU64, Ordering},
    },
    time::{Duration, Instant},
};

use gshare_abi::{
    GpuUuid, LimitsMap, UsageMap, monotonic_ns, move_fd_up,
    wire::{Answer, register},
};

use crate::{
    contexts::Contexts,
    cuda::{CuResult, Device, Handle, NOT_PERMITTED, OUT_OF_MEMORY, SUCCESS},
    driver,
    gpu::{Charge, Gpu},
    graphs::Graphs,
    ledger::{Refusal, Seat},
    live::LiveMap,
    paths,
    pools::Pools,
    say, trampoline,
    vmm::Virtual,
};

/// Longest wait for the service when the process starts.
const FIRST_WAIT: Duration = Duration::from_secs(2);
/// How long a process that names a claim looks for a service that does not answer.
const PATIENCE: Duration = Duration::from_secs(3);
/// Between two knocks.
const AGAIN: Duration = Duration::from_millis(100);
/// Longest wait for a service that has started anew; the process has its caps already.
const NEXT_WAIT: Duration = Duration::from_millis(500);

/// What is known of an allocation that the program holds.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Live {
    pub(crate) bytes: u64,
    pub(crate) gpu: usize,
    pub(crate) context: Handle,
    pub(crate) family: Family,
}

#[derive(Debug, Clone, Copy)]
pub(crate) enum Family {
    Plain(Charge),
    /// From the pool with this number.
    Pool(u64),
}

/// A member of a claim.
#[derive(Debug)]
pub(crate) struct Process {
    pub(crate) claim: u64,
    pub(crate) name: String,
    pub(crate) gpus: Vec<Gpu>,
    /// The claim's GPU behind each device number.
    by_device: Vec<Option<usize>>,
    /// The devices that the program sees, in their order.
    pub(crate) view: Vec<Device>,
    pub(crate) contexts: Contexts,
    live: LiveMap,
    pub(crate) pools: Mutex<Pools>,
    pub(crate) pools_changed: AtomicBool,
    pub(crate) mapped: Mutex<Virtual>,
    pub(crate) graphs: Mutex<Graphs>,
    at_cap: say::Pace,
    ended: say::Pace,
    tried_ns: AtomicU64,
}

/// Wiped in a forked child.
#[repr(C, align(4096))]
struct Wiped {
    process: AtomicPtr<Process>,
    joining: AtomicU32,
    /// The service knows the claim and has no seat for this process.
    barred: AtomicBool,
}

static WIPED: AtomicPtr<Wiped> = AtomicPtr::new(ptr::null_mut());

/// This process as a member, if it is one.
#[inline]
pub(crate) fn current() -> Option<&'static Process> {
    let page = WIPED.load(Ordering::Acquire);
    if page.is_null() {
        return None;
    }
    // SAFETY: the page stays mapped for the rest of the process, and zeroes are a valid `Wiped`.
    let process = unsafe { &(*page).process }.load(Ordering::Acquire);
    // SAFETY: null, or a leaked `Process`.
    unsafe { process.as_ref() }
}

/// Runs the proxy's own part of a hook. `None` when this process is no member, or when the part
/// panicked: either way the program's call goes on as if the proxy were not there.
pub(crate) fn with<R>(part: impl FnOnce(&'static Process) -> R) -> Option<R> {
    let process = current()?;
    catch_unwind(AssertUnwindSafe(|| part(process))).ok()
}

fn wiped() -> Option<&'static Wiped> {
    let present = WIPED.load(Ordering::Acquire);
    if let Some(page) = ptr::NonNull::new(present) {
        // SAFETY: stays mapped for the rest of the process.
        return Some(unsafe { page.as_ref() });
    }
    let bytes = size_of::<Wiped>();
    // SAFETY: a fresh anonymous mapping touches no existing memory.
    let page = unsafe {
        libc::mmap(
            ptr::null_mut(),
            bytes,
            libc::PROT_READ | libc::PROT_WRITE,
            libc::MAP_PRIVATE | libc::MAP_ANONYMOUS,
            -1,
            0,
        )
    };
    if page == libc::MAP_FAILED {
        return None;
    }
    // SAFETY: the range is the mapping just made.
    let marked = unsafe { libc::madvise(page, bytes, libc::MADV_WIPEONFORK) };
    let page = page.cast::<Wiped>();
    let won = marked == 0
        && WIPED
            .compare_exchange(ptr::null_mut(), page, Ordering::AcqRel, Ordering::Acquire)
            .is_ok();
    if !won {
        // SAFETY: nobody else has seen this mapping.
        unsafe { libc::munmap(page.cast(), bytes) };
    }
    // SAFETY: null, or the page that stays mapped.
    unsafe { WIPED.load(Ordering::Acquire).as_ref() }
}

/// Makes this process a member, once; called when the driver has been initialised. `false` when it may
/// not use the driver: it belongs to a claim that cannot count it.
pub(crate) fn join() -> bool {
    let Some(page) = wiped() else { return true };
    // Whoever comes second need not wait for the first: it has nothing to charge before that one
    // is through `cuInit` as well, unless it skips it, and then it waits here.
    loop {
        match page
            .joining
            .compare_exchange(0, 1, Ordering::AcqRel, Ordering::Acquire)
        {
            Ok(_) => break,
            Err(2) => return !page.barred.load(Ordering::Acquire),
            Err(_) => std::thread::yield_now(),
        }
    }
    let joined = catch_unwind(Process::join).unwrap_or(Entry::Open);
    page.barred
        .store(matches!(joined, Entry::Barred), Ordering::Release);
    let allowed = !matches!(joined, Entry::Barred);
    if let Entry::Member(process) = joined {
        let process = Box::leak(process);
        if let Some(gpu) = process.gpus.first() {
            trampoline::watch(gpu.limits());
        }
        page.process.store(process, Ordering::Release);
    }
    page.joining.store(2, Ordering::Release);
    allowed
}

/// How a process stands to the service.
enum Entry {
    /// It is a member.
    Member(Box<Process>),
    /// It is none: the driver is untouched.
    Open,
    /// Its claim has no seat left.
    Barred,
}

/// Why a registration failed.
enum Unheld {
    /// No service answered; one that starts anew will.
    Silence(String),
    /// The service answered.
    Word { code: String, message: String },
}

/// What a registration brought, pages mapped.
struct Joined {
    claim: u64,
    name: String,
    seats: Vec<(GpuUuid, Seat)>,
}

fn knock(wait: Duration) -> Result<Joined, Unheld> {
    let hint = std::env::var("GSHARE_CLAIM_ID").ok();
    let hint = hint.and_then(|text| text.trim_start_matches('c').parse().ok());
    let version = env!("CARGO_PKG_VERSION");
    let (answer, fds) = register(paths::socket(), version, hint, wait).map_err(|error| {
        Unheld::Silence(format!("cannot register with {}: {error}", paths::socket()))
    })?;
    let garbled = |message: String| Unheld::Word {
        code: "garbled".to_owned(),
        message,
    };
    let (claim, name, gpus) = match answer {
        Answer::Member { claim, name, gpus } => (claim, name, gpus),
        Answer::Refused { code, message } => return Err(Unheld::Word { code, message }),
    };
    let mut fds = fds.into_iter().map(move_fd_up);
    let mut seats = Vec::with_capacity(gpus.len());
    for gpu in gpus {
        let (Some(limits), Some(usage)) = (fds.next(), fds.next()) else {
            return Err(garbled("the service sent too few descriptors".to_owned()));
        };
        let limits = LimitsMap::new(limits.as_fd()).map_err(|error| garbled(error.to_string()))?;
        let usage = UsageMap::new(usage).map_err(|error| garbled(error.to_string()))?;
        if usage.page().slot(gpu.slot).is_none() || limits.page().uuid() != gpu.uuid {
            return Err(garbled(format!(
                "the service's pages for {} do not match",
                gpu.uuid
            )));
        }
        let seat = Seat {
            limits: limits.leak(),
            usage: usage.leak(),
            slot: gpu.slot,
            generation: gpu.generation,
        };
        seats.push((gpu.uuid, seat));
    }
    Ok(Joined { claim, name, seats })
}

/// Knocks again for a while where nobody answers a process that says it is in a claim: the service may just
/// be starting anew, and without it the process would run on uncounted for good.
fn knock_patiently(claimed: bool) -> Result<Joined, Unheld> {
    let until = Instant::now() + PATIENCE;
    loop {
        let left = until.saturating_duration_since(Instant::now());
        match knock(FIRST_WAIT.min(left).max(AGAIN)) {
            Err(Unheld::Silence(_)) if claimed && Instant::now() + AGAIN < until => {
                std::thread::sleep(AGAIN);
            }
            other => return other,
        }
    }
}

impl Process {
    fn join() -> Entry {
        if paths::socket().is_empty() {
            return Entry::Open;
        }
        let claim = std::env::var_os("GSHARE_CLAIM_ID");
        let joined = match knock_patiently(claim.is_some()) {
            Ok(joined) => joined,
            Err(refusal) => {
                let (barred, reason) = match refusal {
                    Unheld::Silence(reason) => (false, reason),
                    Unheld::Word { code, message } => (code == "full", message),
                };
                let named = claim.map_or_else(
                    || "its claim".to_owned(),
                    |c| format!("claim {}", c.display()),
                );
                if barred {
                    say::line(&format!("this process may not use the GPU: {reason}"));
                    return Entry::Barred;
                }
                if named != "its claim" {
                    say::line(&format!("this process is not held to {named}: {reason}"));
                }
                return Entry::Open;
            }
        };
        let uuids: Vec<GpuUuid> = joined.seats.iter().map(|(uuid, _)| *uuid).collect();
        let by_device = devices(&uuids);
        let view = view(&by_device);
        Entry::Member(Box::new(Self {
            claim: joined.claim,
            name: joined.name,
            gpus: joined
                .seats
                .into_iter()
                .map(|(uuid, seat)| Gpu::new(uuid, seat))
                .collect(),
            by_device,
            view,
            contexts: Contexts::new(),
            live: LiveMap::new(),
            pools: Mutex::new(Pools::default()),
            pools_changed: AtomicBool::new(false),
            mapped: Mutex::new(Virtual::default()),
            graphs: Mutex::new(Graphs::new(uuids.len())),
            at_cap: say::Pace::default(),
            ended: say::Pace::default(),
            tried_ns: AtomicU64::new(monotonic_ns()),
        }))
    }

    /// Whether a device number is that of a GPU which the claim does not have. A number that is no
    /// device's is not: that one is the driver's to judge.
    pub(crate) fn is_foreign(&self, device: Device) -> bool {
        usize::try_from(device).is_ok_and(|device| self.by_device.get(device) == Some(&None))
    }

    /// The claim's GPU behind a device number.
    pub(crate) fn gpu_of_device(&self, device: Device) -> Option<usize> {
        let device = usize::try_from(device).ok()?;
        self.by_device.get(device).copied().flatten()
    }

    /// The device number of one of the claim's GPUs, where this process sees it.
    pub(crate) fn device_of_gpu(&self, gpu: usize) -> Option<Device> {
        let device = self
            .by_device
            .iter()
            .position(|known| *known == Some(gpu))?;
        Device::try_from(device).ok()
    }

    /// The claim's GPUs with the device numbers that they have here.
    pub(crate) fn devices(&self) -> impl Iterator<Item = (Device, usize)> + '_ {
        let numbered = (0..).zip(&self.by_device);
        numbered.filter_map(|(device, gpu)| gpu.map(|gpu| (device, gpu)))
    }

    /// Index of the GPU of the current context, and the context.
    pub(crate) fn here(&self) -> Option<(usize, Handle)> {
        let helpers = driver::helpers();
        let mut context: Handle = 0;
        // SAFETY: `context` is valid for the result.
        let result = unsafe { helpers.ctx_get_current?(&raw mut context) };
        if result != SUCCESS || context == 0 {
            return None;
        }
        if let Some(gpu) = self.contexts.gpu(context) {
            return Some((gpu, context));
        }
        let mut device: Device = -1;
        // SAFETY: `device` is valid for the result.
        let result = unsafe { helpers.ctx_get_device?(&raw mut device) };
        if result != SUCCESS {
            return None;
        }
        self.gpu_of_device(device).map(|gpu| (gpu, context))
    }

    /// Remembers an allocation.
    pub(crate) fn remember(&self, pointer: u64, live: &Live) {
        self.live.insert(pointer, live);
    }

    /// Takes an allocation out before the driver frees it, because its address may be handed out
    /// again the moment the driver has it back.
    pub(crate) fn take(&self, pointer: u64) -> Option<Live> {
        self.live.remove(pointer)
    }

    /// Gives back what a freed allocation was charged.
    pub(crate) fn settle(&self, pointer: u64, live: &Live) {
        match live.family {
            Family::Plain(charge) => {
                if let Some(gpu) = self.gpus.get(live.gpu) {
                    gpu.release(charge, pointer, live.bytes);
                }
            }
            Family::Pool(pool) => self.left_pool(pool, live),
        }
    }

    /// A context is gone, and with it its overhead and what was allocated in it.
    pub(crate) fn drop_context(&self, context: Handle) {
        let Some((gpu, overhead)) = self.contexts.remove(context) else {
            return;
        };
        let gone = self
            .live
            .remove_all(|live| live.context == context && matches!(live.family, Family::Plain(_)));
        for (pointer, live) in gone {
            self.settle(pointer, &live);
        }
        if let Some(gpu) = self.gpus.get(gpu) {
            gpu.ledger().context_died(overhead);
        }
        self.refresh_pools();
        self.refresh_graph_memory(gpu);
    }

    /// Notes a refusal, tells the person at most once a second, and gives the code for the program.
    pub(crate) fn refuse(&self, index: usize, refusal: Refusal, bytes: u64) -> CuResult {
        let Some(gpu) = self.gpus.get(index) else {
            return OUT_OF_MEMORY;
        };
        let charged = match refusal {
            Refusal::AtCap { charged } => charged,
            Refusal::SeatLost => return self.not_granted(),
        };
        gpu.ledger().refused(bytes);
        if self.at_cap.due() {
            let limits = gpu.limits();
            say::line(&say::at_cap(&say::AtCap {
                claim: &self.name,
                number: self.claim,
                gpu: limits
                    .gpu_index()
                    .map_or_else(|| say::short(gpu.uuid), |index| format!("GPU {index}")),
                charged,
                cap: limits.memory_cap_bytes.load(Ordering::Relaxed),
                asked: bytes,
                whole: gpu.rounded(bytes),
                reach: self.gpus.iter().map(Gpu::reach).min().flatten(),
                total: self.total_bytes(index),
                least: gpu.rounded(1),
            }));
        }
        OUT_OF_MEMORY
    }

    /// What a GPU of the claim has in all, as the driver says; `None` where this process does not see
    /// it.
    fn total_bytes(&self, gpu: usize) -> Option<u64> {
        let mut bytes: usize = 0;
        let device = self.device_of_gpu(gpu)?;
        // SAFETY: `bytes` is valid for the result.
        let result = unsafe { driver::helpers().total_mem?(&raw mut bytes, device) };
        (result == SUCCESS).then_some(bytes as u64)
    }

    /// Tells the person that the claim does not hold the GPU; gives the code for the program.
    pub(crate) fn not_granted(&self) -> CuResult {
        if self.ended.due() {
            say::line(&format!(
                "claim {} does not hold its GPU now: allocations and launches are refused",
                self.name
            ));
        }
        NOT_PERMITTED
    }

    /// Looks whether the service has started anew, and if so takes the seats that it gives now. At
    /// most one try a second; until one succeeds the process goes on under the caps it has.
    pub(crate) fn keep_up(&self) {
        let changed = self.gpus.iter().any(|gpu| {
            gpu.limits().epoch.load(Ordering::Relaxed) != gpu.epoch.load(Ordering::Relaxed)
                || !gpu.holds()
        });
        if !changed {
            return;
        }
        let (now, last) = (monotonic_ns(), self.tried_ns.load(Ordering::Relaxed));
        let due = now.saturating_sub(last) >= 1_000_000_000;
        let mine = due
            && self
                .tried_ns
                .compare_exchange(last, now, Ordering::Relaxed, Ordering::Relaxed)
                .is_ok();
        if !mine {
            return;
        }
        let Ok(joined) = knock(NEXT_WAIT) else { return };
        if joined.claim != self.claim {
            return;
        }
        for (uuid, seat) in joined.seats {
            if let Some(gpu) = self.gpus.iter().find(|gpu| gpu.uuid == uuid) {
                gpu.move_to(seat);
            }
        }
        if let Some(gpu) = self.gpus.first() {
            trampoline::watch(gpu.limits());
        }
    }
}

/// The claim's devices in the claim's order, or in the program's own where it asked for one.
fn view(by_device: &[Option<usize>]) -> Vec<Device> {
    let numbered = (0..).zip(by_device);
    let mut held: Vec<(usize, Device)> = numbered
        .filter_map(|(device, gpu)| gpu.map(|gpu| (gpu, device)))
        .collect();
    if std::env::var_os("CUDA_VISIBLE_DEVICES").is_none() {
        held.sort_unstable();
    }
    held.into_iter().map(|(_, device)| device).collect()
}

/// Which of the claim's GPUs each device number means, by UUID: the numbers depend on the
/// environment of the process.
fn devices(uuids: &[GpuUuid]) -> Vec<Option<usize>> {
    let mut by_device = Vec::new();
    let helpers = driver::helpers();
    let (Some(count_of), Some(device_of), Some(uuid_of)) = (
        helpers.device_get_count,
        helpers.device_get,
        helpers.device_get_uuid,
    ) else {
        return by_device;
    };
    let mut count = 0;
    // SAFETY: `count` is valid for the result.
    if unsafe { count_of(&raw mut count) } != SUCCESS {
        return by_device;
    }
    by_device.resize(usize::try_from(count).unwrap_or(0), None);
    for index in 0..count {
        let mut device: Device = -1;
        let mut uuid = [0; 16];
        // SAFETY: `device` is valid for the result.
        if unsafe { device_of(&raw mut device, index) } != SUCCESS {
            continue;
        }
        // SAFETY: `uuid` is valid for 16 bytes.
        if unsafe { uuid_of(&raw mut uuid, device) } != SUCCESS {
            continue;
        }
        let place = usize::try_from(device)
            .ok()
            .and_then(|device| by_device.get_mut(device));
        if let Some(place) = place {
            *place = uuids.iter().position(|known| known.0 == uuid);
        }
    }
    by_device
}
