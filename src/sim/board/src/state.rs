//! The board's state as plain data, and the pure operations on it.
//!
//! Nothing here reads a clock, a file or another process: the caller passes the time and the list of dead processes, so
//! that every rule is tested in virtual time. The structures are `repr(C)` without padding, made of 8-byte words, and
//! any bit pattern is a valid value: a corrupted board file gives wrong figures, never undefined behaviour.

mod memory;
mod mps;
mod park;
mod sched;

pub use sched::Work;

use crate::models::Model;
use crate::presets::Preset;
use crate::room::Room;

/// Maximum number of GPUs on a board.
pub const MAX_GPUS: usize = 16;
/// Maximum number of processes on a board.
pub const MAX_PROCS: usize = 256;
/// Maximum number of pairs of process and GPU.
pub const MAX_USES: usize = 1024;
/// Maximum number of kernels that are queued, running, or done and not yet collected.
pub const MAX_KERNELS: usize = 2048;
/// Maximum number of rows of the kernel table that one process may hold; a launch beyond it waits.
pub const MAX_PENDING: usize = 128;
/// Maximum number of dependencies of one launch.
pub const MAX_DEPS: usize = 4;
/// Samples kept of each integral.
pub(crate) const MARKS: usize = 8;
/// Time between samples in nanoseconds.
pub(crate) const MARK_NS: u64 = 125_000_000;
/// Xid events kept per GPU.
pub const XIDS: usize = 16;
/// Maximum bytes of a process name.
pub(crate) const NAME: usize = 64;

#[repr(C)]
#[derive(Clone, Copy)]
pub(crate) struct Head {
    pub now_ns: u64,
    pub last_reap_ns: u64,
    pub next_id: u64,
    pub gpu_count: u64,
    pub proc_hwm: u64,
    pub use_hwm: u64,
    pub kernel_hwm: u64,
    pub cuda_version: u64,
    /// Cost of moving memory between a GPU and the host: fixed time in nanoseconds, and bytes per second; 0 for the
    /// defaults.
    pub checkpoint: [u64; 2],
    /// Checkpoint fault: step and kind in the upper half, process (0: all) in the lower; 0 for none.
    pub checkpoint_fault: u64,
    /// Seed of the effects that the plain model omits; 0 disables them.
    pub nature: u64,
    /// Costs and faults of the driver.
    pub preset: Preset,
    /// How often processes have initialised the driver.
    pub inits: u64,
    pub driver_version: [u8; 32],
}

#[repr(C)]
#[derive(Clone, Copy)]
pub(crate) struct Mark {
    pub at_ns: u64,
    pub busy_ns: f64,
    pub sm_ns: f64,
    pub warp_ns: f64,
}

#[repr(C)]
#[derive(Clone, Copy)]
pub(crate) struct Gpu {
    pub model: u64,
    pub uuid: [u8; 16],
    pub pci_bus: u64,
    /// MIG instance: 1 + the index of its GPU; 0 for a GPU; all ones for a removed instance.
    pub parent: u64,
    /// Instance: numbers of GPU instance and compute instance.
    pub instance: [u64; 2],
    /// Instance: first memory slice.
    pub start: u64,
    /// Instance: 1 once it has a compute instance. Until then no program can use it.
    pub made: u64,
    /// GPU: MIG mode, current and pending; 1 if only its instances can be used.
    pub mig: [u64; 2],
    pub lost: u64,
    pub resets: u64,
    pub xid_count: u64,
    pub xids: [[u64; 2]; XIDS],
    /// Memory errors and repairs, clock reasons, recovery action: see `Health`.
    pub health: [u64; 8],
    /// The group (`State::slice_group`) that has the slice; 0 before the first.
    pub turn: u64,
    /// When that slice began; in the future during a context switch.
    pub turn_since_ns: u64,
    pub switches: u64,
    pub busy_ns: f64,
    pub sm_ns: f64,
    pub warp_ns: f64,
    pub marks: [Mark; MARKS],
}

impl Gpu {
    pub(crate) fn model(&self) -> &'static Model {
        crate::models::by_index(usize::try_from(self.model).unwrap_or(0))
    }
}

#[repr(C)]
#[derive(Clone, Copy)]
pub(crate) struct Proc {
    /// Board id of the process; 0 for a free row.
    pub id: u64,
    pub pid: u64,
    pub uid: u64,
    pub start: u64,
    pub name: [u8; NAME],
}

/// Kinds of device memory.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum MemoryKind {
    /// `cuMemAlloc` and its relatives.
    Device,
    /// Memory pools of the stream-ordered allocator.
    Pool,
    /// Physical memory made by `cuMemCreate`.
    Virtual,
    /// `cuMemAllocManaged`. Not counted as device memory: the real driver keeps such pages in host memory until a
    /// kernel touches them.
    Managed,
    /// Memory that the driver takes for itself: see [`crate::Hidden`].
    Driver,
}

impl MemoryKind {
    pub const ALL: [MemoryKind; 5] = [
        MemoryKind::Device,
        MemoryKind::Pool,
        MemoryKind::Virtual,
        MemoryKind::Managed,
        MemoryKind::Driver,
    ];
}

#[repr(C)]
#[derive(Clone, Copy)]
pub(crate) struct Use {
    /// Board id of the process, 0 for a free row.
    pub owner: u64,
    pub gpu: u64,
    pub bytes: [u64; 5],
    pub contexts: u64,
    pub context_bytes: u64,
    pub launched: u64,
    /// Board id of the process's MPS server; the server's own for the server; 0 for none.
    pub mps: u64,
    /// SMs that a client of MPS may use at a time.
    pub sms: u64,
    /// Maximum bytes of a client of MPS; 0 for no limit.
    pub pinned: u64,
    /// Code that every call returns since a fault; 0 for none.
    pub fault: u64,
    /// 1 while the memory of the process is on the host.
    pub parked: u64,
    pub busy_ns: f64,
    pub sm_ns: f64,
    pub warp_ns: f64,
    /// Time in which a kernel or a copy of the process ran, in nanoseconds.
    pub work_ns: f64,
    /// Bytes moved by copies and fills.
    pub copied: u64,
    pub marks: [Mark; MARKS],
}

impl Use {
    /// Whether this is a client of MPS. A server is not its own client.
    pub(crate) fn is_mps_client(&self) -> bool {
        self.mps != 0 && self.mps != self.owner
    }

    /// Bytes on the GPU now, including context overhead.
    pub(crate) fn device_bytes(&self) -> u64 {
        if self.parked != 0 {
            0
        } else {
            self.own_bytes()
        }
    }

    /// Bytes on the GPU or parked on the host, including context overhead.
    pub(crate) fn own_bytes(&self) -> u64 {
        let [device, pool, virt, _managed, driver] = self.bytes;
        device
            .saturating_add(driver)
            .saturating_add(pool)
            .saturating_add(virt)
            .saturating_add(self.context_bytes)
    }
}

pub(crate) const FREE: u64 = 0;
pub(crate) const PENDING: u64 = 1;
pub(crate) const RUNNING: u64 = 2;
pub(crate) const DONE: u64 = 3;
pub(crate) const FAILED: u64 = 4;

#[repr(C)]
#[derive(Clone, Copy)]
pub(crate) struct Kernel {
    pub state: u64,
    pub ticket: u64,
    pub owner: u64,
    pub gpu: u64,
    pub context: u64,
    pub deps: [u64; MAX_DEPS],
    /// What a block needs of an SM; nothing for an event record or a copy.
    pub needs: Room,
    pub phase_blocks: [u64; 2],
    pub phase_ns: [f64; 2],
    /// All blocks are given out when this much of the first phase is left.
    pub given_ns: f64,
    /// 0 for a kernel, else the route of a copy of `bytes` bytes.
    pub route: u64,
    pub bytes: u64,
    /// When the command reaches the GPU.
    pub ready_ns: u64,
    /// Meeting of a kernel that waits for others: its number, and how many kernels come.
    pub meeting: [u64; 2],
    /// Part of the memory's bandwidth that it wants, and its sensitivity to cache misses.
    pub demand: f64,
    pub cache: f64,
    pub start_ns: u64,
    pub end_ns: u64,
}

#[repr(C)]
#[derive(Clone)]
pub(crate) struct State {
    pub head: Head,
    pub gpus: [Gpu; MAX_GPUS],
    pub procs: [Proc; MAX_PROCS],
    pub uses: [Use; MAX_USES],
    pub kernels: [Kernel; MAX_KERNELS],
}

const _: () = assert!(size_of::<Head>() == 208);
const _: () = assert!(size_of::<Mark>() == 32);
const _: () = assert!(size_of::<Gpu>() == 736);
const _: () = assert!(size_of::<Proc>() == 96);
const _: () = assert!(size_of::<Use>() == 416);
const _: () = assert!(size_of::<Kernel>() == 200);
const _: () = assert!(
    size_of::<State>()
        == size_of::<Head>()
            + MAX_GPUS * size_of::<Gpu>()
            + MAX_PROCS * size_of::<Proc>()
            + MAX_USES * size_of::<Use>()
            + MAX_KERNELS * size_of::<Kernel>()
);

fn clamp(count: u64, most: usize) -> usize {
    usize::try_from(count).unwrap_or(most).min(most)
}

impl Head {
    pub(crate) fn gpu_count(&self) -> usize {
        clamp(self.gpu_count, MAX_GPUS)
    }
    pub(crate) fn proc_hwm(&self) -> usize {
        clamp(self.proc_hwm, MAX_PROCS)
    }
    pub(crate) fn use_hwm(&self) -> usize {
        clamp(self.use_hwm, MAX_USES)
    }
    pub(crate) fn kernel_hwm(&self) -> usize {
        clamp(self.kernel_hwm, MAX_KERNELS)
    }
}

impl State {
    pub(crate) fn gpus(&self) -> &[Gpu] {
        &self.gpus[..self.head.gpu_count()]
    }
    pub(crate) fn procs(&self) -> &[Proc] {
        &self.procs[..self.head.proc_hwm()]
    }
    pub(crate) fn uses(&self) -> &[Use] {
        &self.uses[..self.head.use_hwm()]
    }
    pub(crate) fn uses_mut(&mut self) -> &mut [Use] {
        let hwm = self.head.use_hwm();
        &mut self.uses[..hwm]
    }
    pub(crate) fn kernels(&self) -> &[Kernel] {
        &self.kernels[..self.head.kernel_hwm()]
    }
    pub(crate) fn kernels_mut(&mut self) -> &mut [Kernel] {
        let hwm = self.head.kernel_hwm();
        &mut self.kernels[..hwm]
    }

    /// A number that this board has never used before, for tickets, contexts and processes.
    pub(crate) fn fresh_id(&mut self) -> u64 {
        self.head.next_id += 1;
        self.head.next_id
    }

    pub(crate) fn is_registered(&self, owner: u64) -> bool {
        owner != 0 && self.procs().iter().any(|p| p.id == owner)
    }

    /// Puts a process into row `slot`, which must be free; returns its id.
    pub(crate) fn add_process(
        &mut self,
        slot: usize,
        pid: u64,
        uid: u64,
        start: u64,
        name: &str,
    ) -> u64 {
        let id = self.fresh_id();
        // Clears rows between the old high-water mark and this one, which become visible.
        for i in self.head.proc_hwm()..slot {
            self.procs[i].id = 0;
        }
        let mut bytes = [0; NAME];
        let mut end = name.len().min(NAME - 1);
        while !name.is_char_boundary(end) {
            end -= 1;
        }
        bytes[..end].copy_from_slice(&name.as_bytes()[..end]);
        self.procs[slot] = Proc {
            id,
            pid,
            uid,
            start,
            name: bytes,
        };
        self.head.proc_hwm = self.head.proc_hwm.max(slot as u64 + 1);
        id
    }

    /// Removes a process with all that it has.
    pub(crate) fn remove_process(&mut self, slot: usize) {
        let Some(id) = self.procs().get(slot).map(|p| p.id) else {
            return;
        };
        if id == 0 {
            return;
        }
        self.procs[slot].id = 0;
        self.end_mps(id);
        for u in self.uses_mut() {
            if u.owner == id {
                u.owner = 0;
            }
        }
        for k in self.kernels_mut() {
            if k.owner == id {
                k.state = FREE;
            }
        }
        self.trim();
    }

    /// Lowers the high-water marks to the last used rows.
    pub(crate) fn trim(&mut self) {
        let last = |n: Option<usize>| n.map_or(0, |i| i as u64 + 1);
        self.head.proc_hwm = last(self.procs().iter().rposition(|p| p.id != 0));
        self.head.use_hwm = last(self.uses().iter().rposition(|u| u.owner != 0));
        self.head.kernel_hwm = last(self.kernels().iter().rposition(|k| k.state != FREE));
    }
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;

    /// A board state with these GPUs and one process, without a file.
    pub(crate) fn state(slugs: &[&str]) -> (Box<State>, u64) {
        let mut s = crate::store::zeroed();
        for (i, slug) in slugs.iter().enumerate() {
            let model = crate::models::index_of(slug).expect("model");
            s.gpus[i].model = model as u64;
        }
        s.head.gpu_count = slugs.len() as u64;
        let id = s.add_process(0, 100, 1000, 1, "first");
        (s, id)
    }

    #[test]
    fn removing_a_process_takes_all_that_it_has() {
        let (mut s, a) = state(&["h100"]);
        let b = s.add_process(3, 101, 1001, 2, "second");
        s.reserve(a, 0, MemoryKind::Device, 5).expect("a");
        s.reserve(b, 0, MemoryKind::Device, 5).expect("b");
        assert_eq!(s.head.proc_hwm, 4);
        s.remove_process(3);
        assert_eq!(s.head.proc_hwm, 1);
        assert!(s.is_registered(a) && !s.is_registered(b));
        assert_eq!(s.used(0), 2 << 20);
        s.remove_process(0);
        assert_eq!((s.head.proc_hwm, s.head.use_hwm, s.used(0)), (0, 0, 0));
    }
}
