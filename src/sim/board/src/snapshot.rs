//! The board as readers see it: NVML, tests, the demo's checks.

use crate::models::Model;
use crate::presets::Preset;
use crate::slots::SlotLocks;
use crate::state::{MARK_NS, MARKS, Mark, MemoryKind, State, XIDS};

/// The board at one moment.
#[derive(Debug, Clone)]
pub struct BoardSnapshot {
    /// `CLOCK_MONOTONIC` in nanoseconds.
    pub now_ns: u64,
    /// Driver version, such as `580.95.05`.
    pub driver_version: String,
    /// CUDA version of the driver, such as 13000 for 13.0.
    pub cuda_version: u32,
    /// How often processes have initialised the driver.
    pub inits: u64,
    /// Costs and faults of the driver.
    pub preset: Preset,
    pub gpus: Vec<GpuSnapshot>,
}

/// One GPU at one moment.
#[derive(Debug, Clone)]
pub struct GpuSnapshot {
    /// UUID as NVML prints it, `GPU-xxxxxxxx-...`.
    pub uuid: String,
    pub uuid_bytes: [u8; 16],
    /// Index, and minor number of the device node.
    pub minor: u32,
    /// PCI bus number; domain and device are 0.
    pub pci_bus: u32,
    pub model: &'static Model,
    /// Parent and numbers of a MIG instance; `None` for a whole GPU.
    pub instance: Option<Instance>,
    /// MIG mode: current and pending. A change waits until no process has the GPU open.
    pub mig: [bool; 2],
    /// The GPU has fallen off the bus.
    pub lost: bool,
    pub resets: u64,
    /// The last 16 Xid events at most, the oldest first.
    pub xids: Vec<Xid>,
    /// Errors, repairs and clock event reasons.
    pub health: Health,
    /// Number of all Xid events since the board was made.
    pub xid_count: u64,
    /// Bytes that processes have, including context overhead, without `reserved`.
    pub used: u64,
    /// Bytes that the driver reserves.
    pub reserved: u64,
    /// Number of context switches; counted only if the preset has slices.
    pub switches: u64,
    /// Nanoseconds with any kernel resident.
    pub busy_ns: u64,
    /// SMs with at least one block, times nanoseconds.
    pub sm_ns: u64,
    /// Resident warps times nanoseconds, over all SMs.
    pub warp_ns: u64,
    /// Growth of the three integrals over about the last second; `None` on a fresh board.
    pub recent: Option<Recent>,
    /// The processes that use it.
    pub processes: Vec<ProcessSnapshot>,
}

impl GpuSnapshot {
    /// Whether a program can use it: false for a divided GPU and for an instance without a compute instance.
    #[must_use]
    pub fn is_usable(&self) -> bool {
        !self.is_divided() && self.instance.is_none_or(|i| i.made)
    }

    /// Whether MIG mode is on, so that only instances can be used.
    #[must_use]
    pub fn is_divided(&self) -> bool {
        self.mig[0]
    }
}

/// State of a GPU's memory and clocks, independent of its load.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Health {
    /// Corrected memory errors since the driver was loaded.
    pub ecc_corrected: u64,
    /// Uncorrected memory errors since the driver was loaded.
    pub ecc_uncorrected: u64,
    /// Rows remapped after corrected errors.
    pub remapped_corrected: u64,
    /// Rows remapped after uncorrected errors.
    pub remapped_uncorrected: u64,
    /// A remapping waits for a reset.
    pub remap_pending: bool,
    /// A remapping failed.
    pub remap_failed: bool,
    /// Bits of `nvmlDeviceGetCurrentClocksEventReasons` other than idle.
    pub clock_reasons: u64,
    /// Value of the field `NVML_FI_DEV_GET_GPU_RECOVERY_ACTION`.
    pub recovery: u64,
}

impl Health {
    pub(crate) fn to_words(self) -> [u64; 8] {
        [
            self.ecc_corrected,
            self.ecc_uncorrected,
            self.remapped_corrected,
            self.remapped_uncorrected,
            u64::from(self.remap_pending),
            u64::from(self.remap_failed),
            self.clock_reasons,
            self.recovery,
        ]
    }

    pub(crate) fn of_words(words: [u64; 8]) -> Self {
        let [
            ecc_corrected,
            ecc_uncorrected,
            remapped_corrected,
            remapped_uncorrected,
            pending,
            failed,
            clock_reasons,
            recovery,
        ] = words;
        Self {
            ecc_corrected,
            ecc_uncorrected,
            remapped_corrected,
            remapped_uncorrected,
            remap_pending: pending != 0,
            remap_failed: failed != 0,
            clock_reasons,
            recovery,
        }
    }
}

/// A MIG instance.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Instance {
    /// Index of the GPU on the board.
    pub parent: usize,
    /// GPU instance.
    pub gi: u32,
    /// Compute instance.
    pub ci: u32,
    /// First memory slice.
    pub start: u32,
    /// It has its compute instance. False also for a removed instance, whose parent is not a GPU either.
    pub made: bool,
}

impl Instance {
    /// Minors of `/dev/nvidia-caps/nvidia-cap<N>` for the GPU instance and the compute instance. The numbering is the
    /// driver's: two for the machine, then 15 instances of up to eight per GPU.
    #[must_use]
    pub fn caps(&self) -> [u32; 2] {
        let parent = u32::try_from(self.parent).unwrap_or(0);
        Self::caps_of(parent, self.gi, self.ci)
    }

    /// The minors by the numbers of GPU, GPU instance and compute instance.
    #[must_use]
    pub fn caps_of(gpu: u32, gi: u32, ci: u32) -> [u32; 2] {
        let gi = 3 + gpu * 15 * 9 + gi * 9;
        [gi, gi + 1 + ci]
    }
}

/// Used bytes; of a divided GPU, including its instances.
fn used(state: &State, index: usize) -> u64 {
    let own = |i: &usize| state.gpus()[*i].parent == index as u64 + 1;
    let instances = (0..state.gpus().len()).filter(own);
    instances.fold(state.used(index), |sum, i| {
        sum.saturating_add(state.used(i))
    })
}

fn instance_of(g: &crate::state::Gpu) -> Option<Instance> {
    let parent = g.parent.checked_sub(1)?;
    Some(Instance {
        parent: usize::try_from(parent).ok()?,
        gi: g.instance[0] as u32,
        ci: g.instance[1] as u32,
        start: g.start as u32,
        made: g.made != 0,
    })
}

/// An error event of a GPU.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Xid {
    /// The Xid code.
    pub code: u64,
    /// Time in nanoseconds of `CLOCK_MONOTONIC`.
    pub at_ns: u64,
}

/// One process on one GPU at one moment.
#[derive(Debug, Clone)]
pub struct ProcessSnapshot {
    /// Pid as seen by the reader; the process's own pid if it is not visible to the reader.
    pub pid: u32,
    /// User id that the process had when it registered.
    pub uid: u32,
    pub name: String,
    /// Id on the board, never reused.
    pub id: u64,
    /// Bytes of device memory, including context overhead.
    pub bytes: u64,
    /// Bytes by [`MemoryKind`], without context overhead.
    pub by_kind: [(MemoryKind, u64); 5],
    pub contexts: u64,
    /// Bytes of context overhead.
    pub context_bytes: u64,
    /// Number of launched kernels.
    pub launched: u64,
    /// Board id of its MPS server.
    pub mps: Option<u64>,
    /// Maximum SMs as a client of MPS; 0 for all.
    pub sms: u32,
    /// Code of its fault; 0 for none.
    pub fault: u32,
    /// Nanoseconds of GPU time: all of it while alone, 1/n while n contexts take turns.
    pub busy_ns: u64,
    /// SMs with at least one block, times nanoseconds.
    pub sm_ns: u64,
    /// Resident warps times nanoseconds.
    pub warp_ns: u64,
    /// Maximum bytes of a client of MPS; 0 for no limit.
    pub pinned: u64,
    /// Nanoseconds in which a kernel or a copy of the process ran; `busy_ns` counts kernels only.
    pub work_ns: u64,
    /// Bytes moved by copies and fills that take time.
    pub copied_bytes: u64,
    /// Growth of the three integrals over the GPU's `recent` span.
    pub recent: Option<Recent>,
}

/// Growth of the integrals over a span that ends now.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Recent {
    /// Length of the span in nanoseconds, above 0.
    pub span_ns: u64,
    /// Growth of `busy_ns`.
    pub busy_ns: f64,
    /// Growth of `sm_ns`.
    pub sm_ns: f64,
    /// Growth of `warp_ns`.
    pub warp_ns: f64,
}

/// A UUID as text, as NVML prints it.
#[must_use]
pub fn uuid_text(bytes: &[u8; 16]) -> String {
    let mut s = String::from("GPU-");
    for (i, b) in bytes.iter().enumerate() {
        if matches!(i, 4 | 6 | 8 | 10) {
            s.push('-');
        }
        s.push_str(&format!("{b:02x}"));
    }
    s
}

fn text(bytes: &[u8]) -> String {
    let end = bytes.iter().position(|b| *b == 0).unwrap_or(bytes.len());
    String::from_utf8_lossy(&bytes[..end]).into_owned()
}

fn grown(now_ns: u64, from: &Mark, now: &Mark) -> Option<Recent> {
    (from.at_ns != 0 && now_ns > from.at_ns).then(|| Recent {
        span_ns: now_ns - from.at_ns,
        busy_ns: (now.busy_ns - from.busy_ns).max(0.0),
        sm_ns: (now.sm_ns - from.sm_ns).max(0.0),
        warp_ns: (now.warp_ns - from.warp_ns).max(0.0),
    })
}

/// `pids` has each process's identity and pid as seen from here, by row, so that each is asked for once.
pub(crate) fn take(state: &State, locks: SlotLocks, pids: &mut Vec<(u64, u32)>) -> BoardSnapshot {
    let now_ns = state.head.now_ns;
    pids.resize(state.procs().len(), (0, 0));
    for (slot, (process, known)) in state.procs().iter().zip(&mut *pids).enumerate() {
        if known.0 != process.id {
            let seen = locks.holder(slot).filter(|p| *p > 0);
            let pid = seen.map_or(process.pid as u32, i32::cast_unsigned);
            *known = (process.id, pid);
        }
    }
    let gpus = state.gpus().iter().enumerate().map(|(index, g)| {
        let oldest = now_ns.saturating_sub(MARKS as u64 * MARK_NS);
        let from = g
            .marks
            .iter()
            .filter(|m| m.at_ns != 0 && m.at_ns >= oldest && m.at_ns < now_ns)
            .min_by_key(|m| m.at_ns);
        let present = Mark {
            at_ns: now_ns,
            busy_ns: g.busy_ns,
            sm_ns: g.sm_ns,
            warp_ns: g.warp_ns,
        };
        let processes = state
            .uses()
            .iter()
            .filter(|u| u.owner != 0 && u.gpu == index as u64 && u.parked == 0)
            .filter_map(|u| {
                let slot = state.procs().iter().position(|p| p.id == u.owner)?;
                let p = &state.procs()[slot];
                // The totals of a process that registered after the sample were 0 at the sample.
                let then = from.map(|from| {
                    let same = u.marks.iter().find(|m| m.at_ns == from.at_ns);
                    same.copied().unwrap_or(Mark {
                        at_ns: from.at_ns,
                        busy_ns: 0.0,
                        sm_ns: 0.0,
                        warp_ns: 0.0,
                    })
                });
                let present = Mark {
                    at_ns: now_ns,
                    busy_ns: u.busy_ns,
                    sm_ns: u.sm_ns,
                    warp_ns: u.warp_ns,
                };
                Some(ProcessSnapshot {
                    pid: pids[slot].1,
                    uid: p.uid as u32,
                    name: text(&p.name),
                    id: p.id,
                    bytes: u.device_bytes(),
                    by_kind: MemoryKind::ALL.map(|k| (k, u.bytes[k as usize])),
                    contexts: u.contexts,
                    context_bytes: u.context_bytes,
                    launched: u.launched,
                    mps: u.is_mps_client().then_some(u.mps),
                    sms: u.sms as u32,
                    fault: u.fault as u32,
                    busy_ns: u.busy_ns as u64,
                    sm_ns: u.sm_ns as u64,
                    warp_ns: u.warp_ns as u64,
                    pinned: u.pinned,
                    work_ns: u.work_ns as u64,
                    copied_bytes: u.copied,
                    recent: then.and_then(|t| grown(now_ns, &t, &present)),
                })
            })
            .collect();
        let known = g.xid_count.min(XIDS as u64);
        GpuSnapshot {
            uuid: match g.parent {
                0 => uuid_text(&g.uuid),
                _ => uuid_text(&g.uuid).replacen("GPU-", "MIG-", 1),
            },
            uuid_bytes: g.uuid,
            minor: g.parent.checked_sub(1).unwrap_or(index as u64) as u32,
            pci_bus: g.pci_bus as u32,
            model: g.model(),
            instance: instance_of(g),
            mig: g.mig.map(|word| word != 0),
            lost: g.lost != 0,
            resets: g.resets,
            health: Health::of_words(g.health),
            xids: (g.xid_count - known..g.xid_count)
                .map(|n| g.xids[n as usize % XIDS])
                .map(|[code, at_ns]| Xid { code, at_ns })
                .collect(),
            xid_count: g.xid_count,
            used: used(state, index),
            reserved: g.model().reserved,
            switches: g.switches,
            busy_ns: g.busy_ns as u64,
            sm_ns: g.sm_ns as u64,
            warp_ns: g.warp_ns as u64,
            recent: from.and_then(|f| grown(now_ns, f, &present)),
            processes,
        }
    });
    BoardSnapshot {
        now_ns,
        driver_version: text(&state.head.driver_version),
        cuda_version: state.head.cuda_version as u32,
        inits: state.head.inits,
        preset: state.head.preset,
        gpus: gpus.collect(),
    }
}
