//! The arbiter: one thread that says whose turn it is on each GPU that claims share in time. GPUs with the same claims on
//! them are shared out together: a claim that has the turn has it on all of them, because its work on one may wait for its
//! work on another.
//!
//! It sleeps until a member rings its claim's doorbell, the set of claims changes, or, while claims take
//! turns, a period is over. It has mappings of its own of the pages, reads what members write as
//! untrusted input, and shares nothing with the rest of the service but the list of who is where.

use std::collections::{BTreeMap, BTreeSet};
use std::io;
use std::os::fd::{AsFd, BorrowedFd};
use std::os::unix::net::UnixDatagram;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};

use gshare_abi::host::{Doorbell, GateWatch, LimitsFile, UsageMemfd};
use gshare_abi::monotonic_ns;
use gshare_enforcer::cgroup::CgroupEvents;
use gshare_enforcer::proc;
use gshare_gate::{Arbiter, Claim, Frame, Mode, Order, PERIOD_NS, Process, Word};
use nix::poll::{PollFd, PollFlags, ppoll};
use nix::sys::time::TimeSpec;

/// Calls of one claim's members in one period beyond which they are not listened to until it is over.
const CALLS: u32 = 200;
/// Shortest place in the frame, in thousandths, for a claim that was guaranteed nothing.
const LEAST_PLACE: u32 = 10;
/// More slots than a page has, to tell those of a claim's several pages apart.
const SLOTS: usize = 1 << 16;
/// No work lasts longer, whatever a member says.
const LONGEST_WORK_NS: u64 = 60_000_000_000;

/// A claim's pages on one GPU as the arbiter uses them.
#[derive(Debug)]
pub(crate) struct Turning {
    limits: LimitsFile,
    gates: GateWatch,
    bell: Doorbell,
}

impl Turning {
    /// Maps the pages once more, and makes the doorbell.
    pub(crate) fn new(limits: &Path, usage: &UsageMemfd) -> io::Result<Self> {
        Ok(Self {
            limits: LimitsFile::open(limits)?,
            gates: usage.watch_gates()?,
            bell: Doorbell::new()?,
        })
    }

    /// The end of the doorbell for members.
    pub(crate) fn member_fd(&self) -> BorrowedFd<'_> {
        self.bell.member_fd()
    }
}

/// One claim on one GPU.
#[derive(Debug, Clone)]
pub(crate) struct Entry {
    pub(crate) claim: u64,
    /// Index of the GPU, and how many the claim holds.
    pub(crate) gpu: usize,
    pub(crate) gpus: usize,
    pub(crate) turning: Arc<Turning>,
    /// It holds the GPU, and shares it in time.
    pub(crate) by_time: bool,
    pub(crate) tier: u8,
    pub(crate) weight_milli: u32,
    pub(crate) request_permille: u32,
    pub(crate) limit_permille: u32,
    pub(crate) cgroup: Option<PathBuf>,
    /// Slots and processes of its members.
    pub(crate) members: Vec<(usize, u32)>,
}

impl Entry {
    /// Tells pages apart.
    fn address(&self) -> usize {
        Arc::as_ptr(&self.turning).addr()
    }
}

impl PartialEq for Entry {
    fn eq(&self, other: &Self) -> bool {
        let key = |e: &Self| {
            (
                e.claim,
                e.gpu,
                e.gpus,
                e.by_time,
                e.tier,
                e.weight_milli,
                e.request_permille,
                e.limit_permille,
            )
        };
        key(self) == key(other)
            && Arc::ptr_eq(&self.turning, &other.turning)
            && self.cgroup == other.cgroup
            && self.members == other.members
    }
}

/// Claims by the index of their GPU.
pub(crate) type Table = BTreeMap<usize, Vec<Entry>>;

/// What the arbiter did for a claim on a GPU.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct Done {
    /// Nanoseconds that its turns lasted.
    pub(crate) turns_ns: u64,
    /// Claims take turns on that GPU now.
    pub(crate) contended: bool,
    /// A claim whose kernel keeps the GPU from being shared, and since when.
    pub(crate) stuck: Option<(u64, u64)>,
}

#[derive(Debug, Default)]
struct Shared {
    table: Mutex<Option<Table>>,
    done: Mutex<BTreeMap<(usize, u64), Done>>,
}

/// The service's handle on the thread.
#[derive(Debug)]
pub(crate) struct Gates {
    shared: Arc<Shared>,
    wake: UnixDatagram,
    thread: std::thread::JoinHandle<()>,
    told: Table,
}

impl Gates {
    /// Starts the thread.
    ///
    /// # Errors
    /// When there are no descriptors or threads left.
    pub(crate) fn start() -> io::Result<Self> {
        let shared = Arc::new(Shared::default());
        let (wake, woken) = UnixDatagram::pair()?;
        wake.set_nonblocking(true)?;
        woken.set_nonblocking(true)?;
        let of_thread = Arc::clone(&shared);
        let thread = std::thread::Builder::new()
            .name("arbiter".to_owned())
            .spawn(move || run(&of_thread, &woken))?;
        Ok(Self {
            shared,
            wake,
            thread,
            told: Table::new(),
        })
    }

    /// Whether the thread still runs.
    pub(crate) fn is_running(&self) -> bool {
        !self.thread.is_finished()
    }

    /// What was done for a claim on a GPU.
    pub(crate) fn done(&self, gpu: usize, claim: u64) -> Option<Done> {
        let done = self.shared.done.lock();
        let done = done.unwrap_or_else(PoisonError::into_inner);
        done.get(&(gpu, claim)).copied()
    }

    pub(crate) fn tell(&mut self, table: Table) {
        if table == self.told {
            return;
        }
        self.told.clone_from(&table);
        let place = self.shared.table.lock();
        *place.unwrap_or_else(PoisonError::into_inner) = Some(table);
        // A full socket means that it will wake anyway.
        let _ = self.wake.send(&[1]);
    }
}

/// GPUs that are shared out together, most often one.
#[derive(Default)]
struct Set {
    arbiter: Arbiter,
    gpus: Vec<usize>,
    claims: Vec<Entry>,
    /// When it looks again without being called.
    next_ns: Option<u64>,
    stuck: Option<(u64, u64)>,
    calls: BTreeMap<u64, u32>,
}

fn run(shared: &Shared, woken: &UnixDatagram) {
    let mut sets: BTreeMap<usize, Set> = BTreeMap::new();
    let mut period_ends = 0;
    // An ordinary user's service may not; its arbiter then waits with the others.
    gshare_abi::host::Priority::Arbiter.take();
    loop {
        let (called, rang) = wait(&mut sets, woken, period_ends);
        let mut byte = [0; 1];
        while called && woken.recv(&mut byte).is_ok() {}
        let now = monotonic_ns();
        if now >= period_ends {
            period_ends = now + PERIOD_NS;
            for set in sets.values_mut() {
                set.calls.clear();
            }
        }
        let table = shared.table.lock();
        let table = table.unwrap_or_else(PoisonError::into_inner).take();
        let is_new = table.is_some();
        if let Some(table) = table {
            let table = together(table);
            // A page that goes on in another set is not let go.
            let entries = table.values().flatten();
            let kept: BTreeSet<usize> = entries.map(Entry::address).collect();
            for (index, set) in &mut sets {
                if !table.contains_key(index) {
                    set.set_claims(Vec::new(), &kept);
                }
            }
            sets.retain(|index, _| table.contains_key(index));
            for (index, claims) in table {
                sets.entry(index).or_default().set_claims(claims, &kept);
            }
            let mut done = shared.done.lock().unwrap_or_else(PoisonError::into_inner);
            done.retain(|(gpu, claim), _| {
                let mut entries = sets.values().flat_map(|set| &set.claims);
                entries.any(|e| (e.gpu, e.claim) == (*gpu, *claim))
            });
        }
        for (index, set) in &mut sets {
            let due = set.next_ns.is_some_and(|at| now >= at);
            if is_new || due || rang.contains(index) {
                set.look();
                set.report(shared);
            }
        }
    }
}

/// Claims by the lowest GPU of those that are shared out together.
fn together(table: Table) -> Table {
    let who = |claims: &[Entry]| -> Vec<(u64, bool)> {
        let mut who: Vec<_> = claims.iter().map(|e| (e.claim, e.by_time)).collect();
        who.sort_unstable();
        who
    };
    let mut sets: BTreeMap<_, (usize, Vec<Entry>)> = BTreeMap::new();
    for (gpu, claims) in table {
        let (_, set) = sets.entry(who(&claims)).or_insert((gpu, Vec::new()));
        set.extend(claims);
    }
    sets.into_values().collect()
}

/// Sleeps until something has to be looked at; gives whether the service called, and the sets whose doorbells rang.
fn wait(
    sets: &mut BTreeMap<usize, Set>,
    woken: &UnixDatagram,
    period_ends: u64,
) -> (bool, Vec<usize>) {
    let mut next = sets.values().filter_map(|g| g.next_ns).min();
    let mut fds = vec![PollFd::new(woken.as_fd(), PollFlags::POLLIN)];
    let mut whose = Vec::new();
    for (index, set) in sets.iter() {
        for (at, entry) in set.claims.iter().enumerate() {
            if set.calls.get(&entry.claim).is_some_and(|n| *n >= CALLS) {
                next = Some(next.map_or(period_ends, |n| n.min(period_ends)));
                continue;
            }
            fds.push(PollFd::new(entry.turning.bell.as_fd(), PollFlags::POLLIN));
            whose.push((*index, at));
        }
    }
    let timeout = next.map(|at| {
        let ns = at.saturating_sub(monotonic_ns()).min(1_000_000_000);
        TimeSpec::new(0, i64::try_from(ns.min(999_999_999)).unwrap_or(0))
    });
    if ppoll(&mut fds, timeout, None).is_err() {
        return (false, Vec::new());
    }
    let is_ready = |fd: &PollFd<'_>| fd.any() == Some(true);
    let by_service = fds.first().is_some_and(is_ready);
    let called: Vec<bool> = fds[1..].iter().map(is_ready).collect();
    let mut rang = Vec::new();
    for ((index, at), _) in whose.iter().zip(called).filter(|(_, called)| *called) {
        if let Some(set) = sets.get_mut(index)
            && let Some(entry) = set.claims.get(*at)
        {
            let calls = entry.turning.bell.drain();
            *set.calls.entry(entry.claim).or_default() += calls;
            rang.push(*index);
        }
    }
    (by_service, rang)
}

impl Set {
    fn set_claims(&mut self, claims: Vec<Entry>, kept: &BTreeSet<usize>) {
        // Threads that wait for a claim which is gone are not to sleep on.
        for old in &self.claims {
            if !kept.contains(&old.address()) {
                let limits = &old.turning.limits;
                limits.set_turn(Word(limits.turn_word()).next(Mode::Free).0, 0, 0, 0);
            }
        }
        self.claims = claims;
        let gpus: BTreeSet<usize> = self.claims.iter().map(|e| e.gpu).collect();
        if !gpus.iter().eq(&self.gpus) {
            self.gpus = gpus.into_iter().collect();
            self.arbiter = Arbiter::default();
            self.agree();
        }
        self.place();
    }

    /// From here on all pages of a claim are told the same: the next decision is to be new to each of them.
    fn agree(&self) {
        let word = |e: &Entry| e.turning.limits.turn_word();
        for entry in &self.claims {
            let pages = || self.claims.iter().filter(|e| e.claim == entry.claim);
            let newest = pages().map(word).max().unwrap_or(0);
            for page in pages().filter(|e| word(e) != newest) {
                page.turning.limits.set_turn(newest, 0, 0, 0);
            }
        }
    }

    /// Gives every claim its place in each GPU's frame, for when nobody decides.
    fn place(&self) {
        let part = |permille: u32| u64::from(permille) * Frame::LENGTH_NS / 1000;
        for gpu in &self.gpus {
            let here = self.claims.iter().filter(|e| e.gpu == *gpu && e.by_time);
            let promised: u32 = here.clone().map(|e| e.request_permille).sum();
            let mut spare = 1000u32.saturating_sub(promised);
            let mut at = 0;
            for entry in here {
                let more = LEAST_PLACE
                    .saturating_sub(entry.request_permille)
                    .min(spare);
                spare -= more;
                let permille = (entry.request_permille + more).min(1000 - at);
                entry.turning.limits.set_frame(part(at), part(permille));
                at += permille;
            }
        }
    }

    /// One look, and what follows from it.
    fn look(&mut self) {
        let now = monotonic_ns();
        let gpus = &self.gpus;
        let place = |gpu| gpus.iter().position(|other| *other == gpu).unwrap_or(0);
        // A claim once, with its processes on all of the GPUs.
        let mut said: Vec<(&Entry, Vec<Process>)> = Vec::new();
        for entry in &self.claims {
            let processes = entry.said(now, place(entry.gpu));
            match said.iter_mut().find(|(e, _)| e.claim == entry.claim) {
                Some((_, known)) => known.extend(processes),
                None => said.push((entry, processes.collect())),
            }
        }
        let claims: Vec<Claim<'_>> = said
            .iter()
            .map(|(e, processes)| Claim {
                id: e.claim,
                request_permille: e.request_permille,
                limit_permille: e.limit_permille,
                tier: e.tier,
                weight_milli: e.weight_milli,
                is_gated: e.by_time,
                is_spread: e.gpus > gpus.len(),
                word: Word(e.turning.limits.turn_word()),
                processes,
            })
            .collect();
        let entries = &self.claims;
        let mut is_alive = |claim: u64, slot: usize| {
            let here = |e: &&Entry| e.claim == claim && place(e.gpu) == slot / SLOTS;
            let entry = entries.iter().find(here);
            entry.is_some_and(|e| e.is_alive(slot % SLOTS))
        };
        let mut orders: Vec<Order> = Vec::new();
        self.next_ns = self.arbiter.step(now, &claims, &mut is_alive, &mut orders);
        self.stuck = self.next_ns.and_then(|_| self.arbiter.stuck(now, &claims));
        if self.arbiter.is_contended() {
            for entry in &self.claims {
                entry.turning.limits.turn_beat(now);
            }
        }
        for order in orders {
            for entry in self.claims.iter().filter(|e| e.claim == order.id) {
                let limits = &entry.turning.limits;
                limits.set_turn(
                    order.word.0,
                    order.turn_ends_ns,
                    order.ahead_ns,
                    order.flags.0,
                );
            }
        }
    }

    fn report(&self, shared: &Shared) {
        let contended = self.arbiter.is_contended();
        let mut done = shared.done.lock().unwrap_or_else(PoisonError::into_inner);
        for entry in &self.claims {
            let turns_ns = self.arbiter.used_ns(entry.claim);
            done.insert(
                (entry.gpu, entry.claim),
                Done {
                    turns_ns,
                    contended,
                    stuck: self.stuck,
                },
            );
        }
    }
}

impl Entry {
    /// What its members have said, as those of that GPU of the set.
    fn said(&self, now: u64, gpu: usize) -> impl Iterator<Item = Process> {
        self.members.iter().map(move |(slot, _)| {
            let said = self.turning.gates.view(*slot);
            Process {
                slot: gpu * SLOTS + slot,
                gpu,
                waiting: said.waiting,
                busy: said.busy,
                expected_ns: said.expected_ns.min(now.saturating_add(LONGEST_WORK_NS)),
                used_ns: said.used_ns,
                // Proxies before 0.2 do not say it.
                held_ns: said.held_ns.max(said.used_ns),
                demand_ns: said.demand_ns,
                waited_ns: said.waited_ns,
                said_ns: said.said_ns.min(now),
                since_ns: said.since_ns,
                stamp: said.stamp,
            }
        })
    }

    /// Whether the process in a slot could go on with its work: not dead, stopped or frozen.
    fn is_alive(&self, slot: usize) -> bool {
        let Some((_, pid)) = self.members.iter().find(|(s, _)| *s == slot) else {
            return false;
        };
        let state = proc::stat(pid.cast_signed()).map(|s| s.state);
        if state.is_none_or(|s| matches!(s, 'Z' | 'X' | 'T' | 't')) {
            return false;
        }
        let events = self
            .cgroup
            .as_ref()
            .and_then(|dir| std::fs::read_to_string(dir.join("cgroup.events")).ok());
        let frozen = events.and_then(|text| CgroupEvents::parse(&text)?.frozen);
        frozen != Some(true)
    }
}
