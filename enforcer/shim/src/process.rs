//! The process as a member: its charges on each of its claim's GPUs.

mod graphs;
mod pools;

use std::{
    panic::{AssertUnwindSafe, catch_unwind},
    sync::{
        Mutex,
        atomic::{AtomicBool, AtomicU64, Ordering},
    },
};

use gshare_abi::{GpuUuid, HAS_CROWD, STARTS_KERNELS, monotonic_ns};

use crate::{
    contexts::Contexts,
    cuda::{CuResult, Device, Handle, NOT_PERMITTED, OUT_OF_MEMORY, SUCCESS},
    driver, forked,
    gpu::Gpu,
    graphs::Graphs,
    grid, held,
    join::{self, Joined},
    ledger::Refusal,
    live::{Family, Live, LiveMap},
    mark,
    pools::Pools,
    say,
    vmm::Virtual,
};

/// This process as a member, if it is one.
#[inline]
pub(crate) fn current() -> Option<&'static Process> {
    let process = forked::known()?.process.load(Ordering::Acquire);
    // SAFETY: null, or a leaked `Process`.
    unsafe { process.cast::<Process>().as_ref() }
}

/// Runs the proxy's own part of a hook. `None` if this process is not a member, or if the part panicked: either way the
/// program's call goes on as if the proxy were not there.
pub(crate) fn with<R>(part: impl FnOnce(&'static Process) -> R) -> Option<R> {
    let process = current()?;
    catch_unwind(AssertUnwindSafe(|| part(process))).ok()
}

#[derive(Debug)]
pub(crate) struct Process {
    pub(crate) claim: u64,
    pub(crate) name: String,
    pub(crate) gpus: Vec<Gpu>,
    /// The claim's GPU of each device number.
    by_device: Vec<Option<usize>>,
    /// The devices that the program sees, in the driver's order. If all other devices are hidden, a device's place is
    /// its number: programs confuse the two.
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

impl Process {
    /// The member for the service's answer. The driver has been initialised.
    pub(crate) fn new(joined: Joined) -> Self {
        let uuids: Vec<GpuUuid> = joined.seats.iter().map(|(uuid, _)| *uuid).collect();
        let by_device = devices(&uuids);
        let view = (0..).zip(&by_device);
        let view = view.filter_map(|(device, gpu)| gpu.map(|_| device));
        let view = view.collect();
        Self {
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
        }
    }

    /// Whether a device number belongs to a GPU outside the claim. False for an invalid number, which is left to the
    /// driver.
    pub(crate) fn is_foreign(&self, device: Device) -> bool {
        usize::try_from(device).is_ok_and(|device| self.by_device.get(device) == Some(&None))
    }

    /// The claim's GPU of a device number.
    pub(crate) fn gpu_of_device(&self, device: Device) -> Option<usize> {
        let device = usize::try_from(device).ok()?;
        self.by_device.get(device).copied().flatten()
    }

    /// The device number of one of the claim's GPUs, if this process sees it.
    pub(crate) fn device_of_gpu(&self, gpu: usize) -> Option<Device> {
        let device = self
            .by_device
            .iter()
            .position(|known| *known == Some(gpu))?;
        Device::try_from(device).ok()
    }

    /// The claim's GPUs with their device numbers here.
    pub(crate) fn devices(&self) -> impl Iterator<Item = (Device, usize)> + '_ {
        let numbered = (0..).zip(&self.by_device);
        numbered.filter_map(|(device, gpu)| gpu.map(|gpu| (device, gpu)))
    }

    /// Index of the GPU of the current context, and the context.
    #[inline]
    pub(crate) fn here(&self) -> Option<(usize, Handle)> {
        let helpers = driver::helpers();
        let mut context: Handle = 0;
        // SAFETY: `context` is valid for the result.
        let result = unsafe { helpers.ctx_get_current?(&raw mut context) };
        if result != SUCCESS || context == 0 {
            return None;
        }
        match self.contexts.gpu(context) {
            Some(gpu) => Some((gpu, context)),
            None => self.stranger(context),
        }
    }

    /// The same for a current context that the proxy has not seen made.
    #[cold]
    #[inline(never)]
    fn stranger(&self, context: Handle) -> Option<(usize, Handle)> {
        let mut device: Device = -1;
        // SAFETY: `device` is valid for the result.
        let result = unsafe { driver::helpers().ctx_get_device?(&raw mut device) };
        if result != SUCCESS {
            return None;
        }
        let gpu = self.gpu_of_device(device)?;
        // What a green context has belongs to its device's primary one.
        let is_green = self.contexts.has_green(device);
        let owner = is_green.then(|| self.contexts.primary(gpu)).flatten();
        Some((gpu, owner.unwrap_or(context)))
    }

    pub(crate) fn remember(&self, pointer: u64, live: Live) {
        self.live.insert(pointer, live);
    }

    /// Removes an allocation before the driver frees it, because its address may be reused as soon as the driver has it
    /// back. `None`: unknown.
    pub(crate) fn take(&self, pointer: u64) -> Option<Live> {
        self.live.remove(pointer)
    }

    /// Takes back the charge of a freed allocation.
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

    /// A context is gone, with its overhead and its allocations.
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

    /// Notes a refusal, tells the user at most once a second, and returns the code for the program.
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
                peak: gpu.ledger().peak(),
                asked: bytes,
                whole: gpu.rounded(bytes),
                reach: self.gpus.iter().map(Gpu::reach).min().flatten(),
                total: self.total_bytes(index),
                least: gpu.rounded(1),
            }));
        }
        OUT_OF_MEMORY
    }

    /// Total memory of a GPU of the claim according to the driver; `None` if this process does not see the GPU.
    fn total_bytes(&self, gpu: usize) -> Option<u64> {
        let mut bytes: usize = 0;
        let device = self.device_of_gpu(gpu)?;
        // SAFETY: `bytes` is valid for the result.
        let result = unsafe { driver::helpers().total_mem?(&raw mut bytes, device) };
        (result == SUCCESS).then_some(bytes as u64)
    }

    /// Notes driver features that the program has used, as bits of the slot's flags.
    pub(crate) fn note(&self, flags: u64) {
        if let Some(gpu) = self.gpus.first() {
            gpu.note(flags);
        }
    }

    /// Notes the abilities of a new kernel; returns the bytes of local memory that each of its threads needs, `None` if
    /// the driver does not tell.
    pub(crate) fn meet_kernel(&self, function: Handle) -> Option<u64> {
        if grid::starts_kernels(function) == Some(true) {
            self.note(STARTS_KERNELS);
        }
        grid::local_bytes(function)
    }

    /// Tells the user that the claim does not have the GPU; returns the code for the program.
    pub(crate) fn not_granted(&self) -> CuResult {
        if self.ended.due() {
            say::line(&format!(
                "claim {} does not hold its GPU now: allocations and launches are refused",
                self.name
            ));
        }
        NOT_PERMITTED
    }

    /// Looks whether the service has restarted, and if so takes new seats from it. At most one attempt a second; until
    /// one succeeds the present caps apply.
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
        let Some(joined) = join::again() else { return };
        if joined.claim != self.claim {
            return;
        }
        for (uuid, seat) in joined.seats {
            if let Some(gpu) = self.gpus.iter().find(|gpu| gpu.uuid == uuid) {
                gpu.move_to(seat);
            }
        }
        self.watch();
    }

    /// Makes calls check the page of the first GPU, and mark threads there.
    pub(crate) fn watch(&self) {
        let Some(gpu) = self.gpus.first() else { return };
        if let Some(marks) = gpu.marks() {
            mark::put_in(marks, || {
                let _ = with(|process| process.note(HAS_CROWD));
            });
        }
        held::look_at(gpu.limits().state_word());
    }
}

/// The claim's GPU of each device number, by UUID: the numbers depend on the environment of the process.
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
