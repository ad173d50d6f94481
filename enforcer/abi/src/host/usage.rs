//! The usage page as a sealed memfd: it lives as long as any member, its length is fixed, and the service keeps its own
//! record of the slots' owners.

use std::{
    fmt, fs, io,
    os::fd::{AsFd, BorrowedFd, OwnedFd},
    os::unix::fs::OpenOptionsExt,
    sync::atomic::Ordering,
    time::Instant,
};

use super::limits::halves;
use crate::ledger::most_charged;
use crate::{
    ABI_VERSION, GateSlot, GateView, GpuUuid, SLOTS, USAGE_BYTES, UsagePage, WorkView,
    layout::USAGE_MAGIC,
    member::{map_usage, wrong},
    sys::{Mapping, memfd, monotonic_ns, seal},
};

/// A slot that was handed out.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Assigned {
    pub slot: usize,
    /// Times the slot was handed out.
    pub generation: u64,
}

/// No slot is free.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct AssignError {
    /// Process that asked for a slot.
    pub pid: u32,
}

impl fmt::Display for AssignError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "process {} cannot join: the claim already has {SLOTS} processes on this GPU",
            self.pid
        )
    }
}

impl std::error::Error for AssignError {}

/// Figures of a member, untrusted and clamped.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct SlotView {
    pub slot: usize,
    /// Times the slot was handed out.
    pub generation: u64,
    /// Process that has the slot.
    pub pid: u32,
    /// Start time of that process in clock ticks after boot.
    pub start_time: u64,
    /// Bytes that count towards the cap, at most the GPU's size.
    pub charge_bytes: u64,
    /// Bytes that the program asked for, at most the GPU's size.
    pub requested_bytes: u64,
    /// Part of the charge that is context overhead.
    pub context_bytes: u64,
    /// Live allocations.
    pub allocations: u64,
    /// Kernels launched.
    pub launches: u64,
    /// CLOCK_MONOTONIC in nanoseconds of the poll that last found new launches.
    pub last_launch_ns: Option<u64>,
    /// Allocations refused at the cap.
    pub refusals: u64,
    /// Size of the last refused allocation.
    pub last_refused_bytes: Option<u64>,
    /// CLOCK_MONOTONIC of the last refusal in nanoseconds.
    pub last_refusal_ns: Option<u64>,
    /// Driver features that the process has used, as bits of [`crate::Slot::flags`].
    pub flags: u64,
    /// SMs that the driver shows to it as an MPS client.
    pub mps_sms: Option<u64>,
    pub copied_bytes: u64,
    /// Highest charge of the whole claim that the process has seen, at most the GPU's size.
    pub peak_bytes: u64,
    /// Time during which some thread was held back so far, in nanoseconds.
    pub waited_ns: u64,
    /// Sums over its launches; `None` if they kept changing during the read.
    pub work: Option<WorkView>,
}

/// A usage page for the arbiter's thread, which reads only the gate words.
#[derive(Debug)]
pub struct GateWatch(Mapping<UsagePage>);

impl GateWatch {
    /// Threads of the slot's process that are inside driver calls, untrusted.
    pub fn calls(&self, slot: usize) -> usize {
        self.0.get().calls(slot)
    }

    /// Kernels launched by the slot's process, untrusted.
    pub fn launches(&self, slot: usize) -> u64 {
        self.0.get().launches(slot)
    }

    /// The figures of a slot; defaults for a slot that does not exist.
    pub fn view(&self, slot: usize) -> GateView {
        let gates = &self.0.get().gates;
        gates.get(slot).map(GateSlot::view).unwrap_or_default()
    }
}

#[derive(Debug, Clone, Copy)]
struct Owner {
    pid: u32,
    start_time: u64,
    generation: u64,
}

/// The usage page of one claim on one GPU.
#[derive(Debug)]
pub struct UsageMemfd {
    map: Mapping<UsagePage>,
    fd: OwnedFd,
    owners: Vec<Option<Owner>>,
    claim: u64,
    uuid: GpuUuid,
    token: u64,
}

/// Maximum number of descriptors, and of mappings, of a process that are searched for the page: Linux allows that many
/// mappings by default.
const MOST_LOOKED_AT: usize = 65_536;
/// Maximum number of them with the page's name that are opened: one for each GPU, and copies.
const MOST_ALIKE: usize = 256;

/// Start of the name of a claim's usage page in `/proc/PID/fd`; the original GPU follows.
fn memfd_start(claim: u64) -> String {
    format!("gshare-usage:{claim}:")
}

impl UsageMemfd {
    /// Creates the page, and seals its length and its seals.
    pub fn create(claim: u64, uuid: GpuUuid, token: u64) -> io::Result<Self> {
        let fd = memfd(&format!("{}{uuid}", memfd_start(claim)))?;
        let file = fs::File::from(fd);
        file.set_len(USAGE_BYTES as u64)?;
        let fd = OwnedFd::from(file);
        let map: Mapping<UsagePage> = Mapping::new(fd.as_fd(), true)?;
        seal(fd.as_fd())?;
        let page = Self {
            map,
            fd,
            owners: vec![None; SLOTS],
            claim,
            uuid,
            token,
        };
        page.write_header();
        Ok(page)
    }

    fn write_header(&self) {
        let header = &self.page().header;
        let store = Ordering::Relaxed;
        header.version.store(ABI_VERSION, store);
        header.bytes.store(USAGE_BYTES as u32, store);
        header.claim.store(self.claim, store);
        header.token.store(self.token, store);
        let (low, high) = halves(self.uuid);
        header.uuid[0].store(low, store);
        header.uuid[1].store(high, store);
        header.magic.store(USAGE_MAGIC, Ordering::Release);
    }

    /// Maps the page again for the arbiter of the GPU.
    pub fn watch_gates(&self) -> io::Result<GateWatch> {
        Ok(GateWatch(Mapping::new(self.fd.as_fd(), false)?))
    }

    /// Takes over a page of an earlier run of the service after checking the seals, length, claim, GPU and token.
    /// [`Self::owners`] is untrusted until the caller has checked each process.
    pub fn adopt(fd: OwnedFd, claim: u64, uuid: GpuUuid, token: u64) -> io::Result<Self> {
        Self::adopt_from(fd, claim, Some(uuid), token)
    }

    fn adopt_from(fd: OwnedFd, claim: u64, uuid: Option<GpuUuid>, token: u64) -> io::Result<Self> {
        let map = map_usage(fd.as_fd())?;
        let page = map.get();
        let header = &page.header;
        let read = |word: &std::sync::atomic::AtomicU64| word.load(Ordering::Relaxed);
        let seen = super::limits::whole(read(&header.uuid[0]), read(&header.uuid[1]));
        let uuid = uuid.unwrap_or(seen);
        if read(&header.claim) != claim || read(&header.token) != token || seen != uuid {
            return Err(wrong(format!(
                "usage page is not that of claim {claim} on {uuid}"
            )));
        }
        let mut highest = 0;
        let owners = page
            .slots
            .iter()
            .enumerate()
            .map(|(index, slot)| {
                let pid = slot.pid.load(Ordering::Relaxed);
                let used = slot.in_use.load(Ordering::SeqCst) == 1 && pid != 0;
                used.then(|| {
                    highest = index + 1;
                    Owner {
                        pid,
                        start_time: slot.start_time.load(Ordering::Relaxed),
                        generation: slot.generation.load(Ordering::Relaxed),
                    }
                })
            })
            .collect();
        let adopted = Self {
            map,
            fd,
            owners,
            claim,
            uuid,
            token,
        };
        adopted.raise_high_water(highest);
        Ok(adopted)
    }

    /// Takes over the page from the descriptors and mappings of process `pid`. The token identifies it, so a page of
    /// another GPU than `uuid` is found after an unfinished move. `Ok(None)` if the process has none.
    ///
    /// The process controls the names, and what opening a descriptor does. So the search never blocks (a lease on the
    /// file would block for 45 seconds), and ends at `until`.
    pub fn find(
        pid: u32,
        claim: u64,
        uuid: GpuUuid,
        token: u64,
        until: Instant,
    ) -> io::Result<Option<Self>> {
        let wanted = format!("/memfd:{}", memfd_start(claim));
        for directory in ["fd", "map_files"] {
            let entries = match fs::read_dir(format!("/proc/{pid}/{directory}")) {
                Ok(entries) => entries,
                Err(error) if directory == "fd" => return Err(error),
                // Needs privileges that a user's own service lacks.
                Err(_) => continue,
            };
            let mut alike = 0;
            for entry in entries.flatten().take(MOST_LOOKED_AT) {
                if alike == MOST_ALIKE || Instant::now() >= until {
                    break;
                }
                let path = entry.path();
                let named = fs::read_link(&path)
                    .is_ok_and(|link| link.to_string_lossy().starts_with(&wanted));
                if !named {
                    continue;
                }
                alike += 1;
                let opened = fs::OpenOptions::new()
                    .read(true)
                    .write(true)
                    .custom_flags(libc::O_NONBLOCK | libc::O_NOCTTY)
                    .open(&path);
                if let Ok(file) = opened
                    && let Ok(found) = Self::adopt_from(file.into(), claim, None, token)
                {
                    let mut found = found;
                    found.relabel(uuid);
                    return Ok(Some(found));
                }
            }
        }
        Ok(None)
    }

    /// The descriptor for members.
    pub fn fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }

    pub fn page(&self) -> &UsagePage {
        self.map.get()
    }

    /// The owners of slots: slot, pid, start time.
    pub fn owners(&self) -> impl Iterator<Item = (Assigned, u32, u64)> + '_ {
        self.owners.iter().enumerate().filter_map(|(slot, owner)| {
            owner.map(|owner| {
                let assigned = Assigned {
                    slot,
                    generation: owner.generation,
                };
                (assigned, owner.pid, owner.start_time)
            })
        })
    }

    /// Assigns a slot to a process: its present one, or a free one.
    pub fn assign_slot(&mut self, pid: u32, start_time: u64) -> Result<Assigned, AssignError> {
        if let Some((assigned, ..)) = self
            .owners()
            .find(|&(_, owner, start)| owner == pid && start == start_time)
        {
            return Ok(assigned);
        }
        let slot = self
            .owners
            .iter()
            .position(Option::is_none)
            .ok_or(AssignError { pid })?;
        let words = &self.page().slots[slot];
        let generation = words
            .generation
            .load(Ordering::Relaxed)
            .wrapping_add(1)
            .max(1);
        self.page().clear(slot);
        words.generation.store(generation, Ordering::SeqCst);
        words.start_time.store(start_time, Ordering::Relaxed);
        words.pid.store(pid, Ordering::Relaxed);
        words.in_use.store(1, Ordering::SeqCst);
        self.raise_high_water(slot + 1);
        self.owners[slot] = Some(Owner {
            pid,
            start_time,
            generation,
        });
        Ok(Assigned { slot, generation })
    }

    /// Frees the slot of a process that has ended; `false` if the slot has another owner now.
    pub fn reclaim(&mut self, slot: usize, generation: u64) -> bool {
        let Some(entry) = self.owners.get_mut(slot) else {
            return false;
        };
        if entry.is_none_or(|owner| owner.generation != generation) {
            return false;
        }
        *entry = None;
        let words = &self.page().slots[slot];
        // The generation changes first: if the process is alive after all, it sees the loss of its slot before the
        // charge is gone.
        words
            .generation
            .store(generation.wrapping_add(1).max(1), Ordering::SeqCst);
        self.page().clear(slot);
        true
    }

    /// The members' figures, clamped to the size of the GPU (`gpu_bytes`).
    pub fn read_slots(&self, gpu_bytes: u64) -> Vec<SlotView> {
        self.mend();
        let some = |value: u64| (value != 0).then_some(value);
        self.owners()
            .map(|(assigned, pid, start_time)| {
                let words = &self.page().slots[assigned.slot];
                let read = |word: &std::sync::atomic::AtomicU64| word.load(Ordering::Relaxed);
                let refusals = read(&words.refusals);
                // Timed here, not at each launch: that would make each launch a third more expensive.
                let launches = self.page().launches(assigned.slot);
                if words.launches_seen.swap(launches, Ordering::Relaxed) != launches {
                    words.launched_ns.store(monotonic_ns(), Ordering::Relaxed);
                }
                SlotView {
                    slot: assigned.slot,
                    generation: assigned.generation,
                    pid,
                    start_time,
                    charge_bytes: words.charge.load(Ordering::SeqCst).min(gpu_bytes),
                    requested_bytes: read(&words.requested).min(gpu_bytes),
                    context_bytes: read(&words.context_bytes).min(gpu_bytes),
                    allocations: read(&words.allocations),
                    launches,
                    last_launch_ns: some(read(&words.launched_ns)),
                    refusals,
                    last_refused_bytes: (refusals > 0).then(|| read(&words.last_refused_bytes)),
                    last_refusal_ns: some(read(&words.last_refusal_ns)),
                    flags: read(&words.flags),
                    mps_sms: some(read(&words.mps_sms)),
                    copied_bytes: self.page().copied(assigned.slot),
                    peak_bytes: read(&words.charge_peak).min(gpu_bytes),
                    waited_ns: self.page().gates[assigned.slot].view().waited_ns,
                    work: self.page().gates[assigned.slot].work(),
                }
            })
            .collect()
    }

    /// Feature bits of all members together.
    pub fn flags(&self) -> u64 {
        let slots = &self.page().slots;
        let of = |assigned: Assigned| slots[assigned.slot].flags.load(Ordering::Relaxed);
        self.owners().fold(0, |all, (slot, ..)| all | of(slot))
    }

    /// Processes with threads inside driver calls, untrusted: pid, threads.
    pub fn inside(&self) -> impl Iterator<Item = (u32, usize)> + '_ {
        let calls = self
            .owners()
            .map(|(assigned, pid, _)| (pid, self.page().calls(assigned.slot)));
        calls.filter(|(_, threads)| *threads > 0)
    }

    /// Moves the page to another GPU after the claim's memory has moved; members keep it.
    pub fn relabel(&mut self, uuid: GpuUuid) {
        self.uuid = uuid;
        self.write_header();
    }

    /// The members' gate figures: slot, pid, figures. Slot and pid come from the service's own record; the figures are
    /// untrusted.
    pub fn gates(&self) -> impl Iterator<Item = (usize, u32, GateView)> + '_ {
        self.owners().map(|(assigned, pid, _)| {
            let said = self.page().gates[assigned.slot].view();
            (assigned.slot, pid, said)
        })
    }

    /// Restores the service's words that a member may have overwritten: owners, and empty slots. A neighbour that lost
    /// its slot this way gets it back.
    fn mend(&self) {
        self.write_header();
        // A member can lower the mark, but the others must keep counting everybody.
        let highest = self.owners.iter().rposition(Option::is_some);
        self.raise_high_water(highest.map_or(0, |highest| highest + 1));
        // Members add up only the slots below the mark.
        let counted = self.page().high_water();
        let slots = self.page().slots[..counted].iter();
        for (owner, words) in self.owners.iter().zip(slots) {
            match owner {
                Some(owner) => {
                    if words.generation.load(Ordering::Relaxed) != owner.generation {
                        words.start_time.store(owner.start_time, Ordering::Relaxed);
                        words.pid.store(owner.pid, Ordering::Relaxed);
                        words.in_use.store(1, Ordering::Relaxed);
                        words.generation.store(owner.generation, Ordering::SeqCst);
                    }
                }
                None => {
                    let foreign = words.charge.load(Ordering::Relaxed) != 0
                        || words.reserving.load(Ordering::Relaxed) != 0;
                    if foreign {
                        words.clear();
                    }
                }
            }
        }
    }

    /// Sum of the members' charges in bytes, each clamped to the size of the GPU.
    pub fn charged_bytes(&self, gpu_bytes: u64) -> u64 {
        self.mend();
        let slots = &self.page().slots;
        self.owners().fold(0, |sum: u64, (assigned, ..)| {
            let charge = slots[assigned.slot].charge.load(Ordering::SeqCst);
            sum.saturating_add(charge.min(gpu_bytes))
        })
    }

    /// Upper bound of the members' charges under caps written before, each clamped to the size of the GPU; announced
    /// reservations count. Valid until a cap is raised.
    pub fn most_charged_bytes(&self, gpu_bytes: u64) -> u64 {
        self.mend();
        self.owners().fold(0, |sum: u64, (assigned, ..)| {
            sum.saturating_add(most_charged(self.page(), assigned.slot).min(gpu_bytes))
        })
    }

    fn raise_high_water(&self, slots: usize) {
        let mark = &self.page().header.high_water;
        let now = mark.load(Ordering::Relaxed);
        if (now as usize) < slots || now as usize > SLOTS {
            mark.store(slots.min(SLOTS) as u32, Ordering::SeqCst);
        }
    }
}
