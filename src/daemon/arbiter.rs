//! The arbiter: a thread that gives turns on each GPU that claims share in time. GPUs with the same claims are
//! scheduled together: a claim has its turn on all of them, because its work on one may wait for its work on another.
//!
//! It sleeps until a member rings its claim's doorbell, the set of claims changes, or a period ends while claims take
//! turns. It maps the pages itself, treats what members write as untrusted input, and shares only the table of claims
//! with the rest of the service.

use std::collections::{BTreeMap, BTreeSet};
use std::io;
use std::os::fd::BorrowedFd;
use std::os::unix::net::UnixDatagram;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use gshare_abi::host::{Doorbell, GateWatch, LimitsFile, UsageMemfd};
use gshare_abi::monotonic_ns;
use gshare_enforcer::cgroup::CgroupEvents;
use gshare_enforcer::proc;
use gshare_gate::{Arbiter, Claim, Frame, Mode, Order, PERIOD_NS, Process, Word};
use nix::sys::epoll::{Epoll, EpollCreateFlags, EpollEvent, EpollFlags, EpollTimeout};
use nix::sys::time::TimeSpec;
use nix::sys::timerfd::{ClockId, Expiration, TimerFd, TimerFlags, TimerSetTimeFlags};

/// Maximum number of rings of a doorbell in a period; more are ignored until the period ends.
const CALLS: u32 = 200;
/// Smallest place in the frame, in thousandths, for a claim without a guaranteed share.
const LEAST_PLACE: u32 = 10;
/// Larger than the number of slots in a page, to number the slots of a claim's pages without overlap.
const SLOTS: usize = 1 << 16;
/// Upper limit for the duration of one piece of work, whatever a member reports.
const LONGEST_WORK_NS: u64 = 60_000_000_000;

/// The arbiter's mapping of a claim's pages on one GPU.
#[derive(Debug)]
pub(crate) struct Turning {
    limits: LimitsFile,
    gates: GateWatch,
    bell: Doorbell,
}

impl Turning {
    /// Maps the pages and creates the doorbell.
    pub(crate) fn new(limits: &Path, usage: &UsageMemfd) -> io::Result<Self> {
        Ok(Self {
            limits: LimitsFile::open(limits)?,
            gates: usage.watch_gates()?,
            bell: Doorbell::new()?,
        })
    }

    /// The members' end of the doorbell.
    pub(crate) fn member_fd(&self) -> BorrowedFd<'_> {
        self.bell.member_fd()
    }
}

/// One claim on one GPU.
#[derive(Debug, Clone)]
pub(crate) struct Entry {
    pub(crate) claim: u64,
    /// Index of the GPU, and the number of GPUs that the claim holds.
    pub(crate) gpu: usize,
    pub(crate) gpus: usize,
    pub(crate) turning: Arc<Turning>,
    /// The claim holds the GPU and shares it in time.
    pub(crate) by_time: bool,
    pub(crate) tier: u8,
    pub(crate) weight_milli: u32,
    pub(crate) request_permille: u32,
    pub(crate) limit_permille: u32,
    pub(crate) cgroup: Option<PathBuf>,
    /// Slots and process ids of its members.
    pub(crate) members: Vec<(usize, u32)>,
}

impl Entry {
    /// Identifies the page.
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

/// Figures of the arbiter about a claim on a GPU.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct Done {
    /// Total duration of its turns, in nanoseconds.
    pub(crate) turns_ns: u64,
    /// Claims take turns on that GPU at present.
    pub(crate) contended: bool,
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
        let bells = Bells::new(&woken)?;
        let of_thread = Arc::clone(&shared);
        let thread = std::thread::Builder::new()
            .name("arbiter".to_owned())
            .spawn(move || run(&of_thread, &woken, bells))?;
        Ok(Self {
            shared,
            wake,
            thread,
            told: Table::new(),
        })
    }

    pub(crate) fn is_running(&self) -> bool {
        !self.thread.is_finished()
    }

    /// The arbiter's figures about a claim on a GPU.
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
        // A full socket wakes the thread anyway.
        let _ = self.wake.send(&[1]);
    }
}

/// GPUs that are scheduled together, usually one.
#[derive(Default)]
struct Set {
    arbiter: Arbiter,
    gpus: Vec<usize>,
    claims: Vec<Entry>,
    /// Entries of the same claims on GPUs of other sets.
    beyond: Vec<Entry>,
    /// Time of its next look without a doorbell.
    next_ns: Option<u64>,
    /// Its figures were reported after its last look.
    is_told: bool,
    /// Sum of turns per claim at the last report.
    reported: BTreeMap<u64, u64>,
}

/// Per GPU: the claim whose turn it is, and when the turn ends.
type Turns = BTreeMap<usize, (u64, u64)>;

fn run(shared: &Shared, woken: &UnixDatagram, mut bells: Bells) {
    let mut sets: BTreeMap<usize, Set> = BTreeMap::new();
    let mut turns = Turns::new();
    let mut period_ends = 0;
    // The service of an ordinary user lacks the right; its arbiter then has normal priority.
    gshare_abi::host::Priority::Arbiter.take();
    loop {
        let next = sets.values().filter_map(|set| set.next_ns).min();
        let (called, rang) = bells.wait(next, period_ends);
        let mut byte = [0; 1];
        while called && woken.recv(&mut byte).is_ok() {}
        let now = monotonic_ns();
        let is_over = now >= period_ends;
        if is_over {
            period_ends = now + PERIOD_NS;
            bells.begin();
        }
        let table = shared.table.lock();
        let table = table.unwrap_or_else(PoisonError::into_inner).take();
        let is_new = table.is_some();
        if let Some(table) = table {
            bells.hang(&table);
            sets = regroup(sets, together(table));
            turns.clear();
            let mut done = shared.done.lock().unwrap_or_else(PoisonError::into_inner);
            done.retain(|(gpu, claim), _| {
                let mut entries = sets.values().flat_map(|set| &set.claims);
                entries.any(|e| (e.gpu, e.claim) == (*gpu, *claim))
            });
        }
        // Only claims that have GPUs of several sets look at others' turns.
        let is_apart = sets.values().any(|set| !set.beyond.is_empty());
        let before = match is_apart {
            true => turns.clone(),
            false => Turns::new(),
        };
        for set in sets.values_mut() {
            let due = set.next_ns.is_some_and(|at| now >= at);
            if is_new || due || set.gpus.iter().any(|gpu| rang.contains(gpu)) {
                set.look(&mut turns);
                set.is_told = false;
            }
            // The service reads the figures less often than turns change.
            if !set.is_told && (is_new || is_over || set.next_ns.is_none()) {
                set.report(shared);
            }
        }
        for set in sets.values_mut() {
            let of =
                |turns: &Turns, e: &Entry| turns.get(&e.gpu).copied().filter(|t| t.0 == e.claim);
            // A claim that got a turn elsewhere, or a longer one, may need one here. Where it has one, that can wait for the
            // next look; where it does not wait for one, it will ring.
            let waits = |claim| {
                let mut here = set.claims.iter().filter(|e| e.claim == claim);
                here.any(|e| e.said(now, 0).any(|p| p.waiting))
            };
            let begins = |e: &Entry| {
                let turn = of(&turns, e);
                let is_new = turn.is_some() && turn != of(&before, e);
                is_new && !set.arbiter.has_turn(e.claim) && waits(e.claim)
            };
            if set.beyond.iter().any(begins) {
                set.next_ns = set.next_ns.map(|_| now);
            }
        }
    }
}

/// Claims by the lowest GPU of each set.
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

/// The sets for a new table; sets that stay keep their state.
fn regroup(mut old: BTreeMap<usize, Set>, table: Table) -> BTreeMap<usize, Set> {
    let kept: BTreeSet<usize> = table.values().flatten().map(Entry::address).collect();
    // Wake threads that wait for the turn of a claim that has ended.
    let entries = old.values().flat_map(|set| &set.claims);
    for gone in entries.filter(|e| !kept.contains(&e.address())) {
        let limits = &gone.turning.limits;
        limits.set_turn(
            Word(limits.turn_word()).next(Mode::Free).0,
            0..0,
            0,
            0,
            true,
        );
    }
    let mut sets = BTreeMap::new();
    let all: Vec<Entry> = table.values().flatten().cloned().collect();
    for (index, claims) in table {
        let beyond = all.iter().filter(|e| {
            let here = |is_gpu: bool| {
                claims
                    .iter()
                    .any(|c| c.claim == e.claim && (!is_gpu || c.gpu == e.gpu))
            };
            here(false) && !here(true)
        });
        let beyond = beyond.cloned().collect();
        let gpus: BTreeSet<usize> = claims.iter().map(|e| e.gpu).collect();
        let same = old.iter().find(|(_, set)| gpus.iter().eq(&set.gpus));
        let set = if let Some(at) = same.map(|(at, _)| *at) {
            let set = old.remove(&at).unwrap_or_default();
            Set {
                claims,
                beyond,
                ..set
            }
        } else {
            agree(&claims);
            let word = |id| {
                let mut entries = claims.iter().filter(|e| e.claim == id);
                entries.next().map(|e| Word(e.turning.limits.turn_word()))
            };
            let before = |gpu| {
                old.values().find_map(|set| {
                    let at = set.gpus.iter().position(|other| other == gpu)?;
                    Some((&set.arbiter, at))
                })
            };
            let before: Vec<_> = gpus.iter().map(before).collect();
            Set {
                arbiter: Arbiter::regrouped(&before, word),
                gpus: gpus.into_iter().collect(),
                claims,
                beyond,
                ..Set::default()
            }
        };
        set.place();
        sets.insert(index, set);
    }
    sets
}

/// Makes all pages of a claim agree: the next decision is new to each of them.
fn agree(claims: &[Entry]) {
    let word = |e: &Entry| e.turning.limits.turn_word();
    let newest = |claim: u64| claims.iter().filter(move |e| e.claim == claim).map(word);
    for entry in claims {
        let word = newest(entry.claim).max().unwrap_or(0);
        entry.turning.limits.set_turn(word, 0..0, 0, 0, true);
    }
}

/// The doorbells of all claims. One that rings too often in a period is not heard until the period ends.
struct Bells {
    /// All that ends a sleep, each reported once, however it is read.
    ready: Epoll,
    timer: TimerFd,
    /// The time for which the timer is set.
    timer_ns: Option<u64>,
    hung: Vec<Bell>,
}

/// The doorbell of a claim on a GPU.
struct Bell {
    gpu: usize,
    turning: Arc<Turning>,
    /// Rings in this period.
    calls: u32,
    is_heard: bool,
}

/// What ended a sleep, apart from doorbells, which have their place in the list.
const BY_SERVICE: u64 = u64::MAX;
const BY_TIMER: u64 = u64::MAX - 1;

impl Bells {
    fn new(woken: &UnixDatagram) -> io::Result<Self> {
        let ready = Epoll::new(EpollCreateFlags::EPOLL_CLOEXEC)?;
        let flags = TimerFlags::TFD_CLOEXEC | TimerFlags::TFD_NONBLOCK;
        let timer = TimerFd::new(ClockId::CLOCK_MONOTONIC, flags)?;
        ready.add(woken, once(BY_SERVICE))?;
        ready.add(&timer, once(BY_TIMER))?;
        Ok(Self {
            ready,
            timer,
            timer_ns: None,
            hung: Vec::new(),
        })
    }

    /// Takes those of a new table.
    fn hang(&mut self, table: &Table) {
        let before = std::mem::take(&mut self.hung);
        for bell in before.iter().filter(|bell| bell.is_heard) {
            // It is in there, and its descriptor is open.
            let _ = self.ready.delete(&bell.turning.bell);
        }
        let calls = |turning| {
            let same = before
                .iter()
                .find(|bell| Arc::ptr_eq(&bell.turning, turning));
            same.map_or(0, |bell| bell.calls)
        };
        let bells = table.values().flatten().map(|entry| Bell {
            gpu: entry.gpu,
            turning: Arc::clone(&entry.turning),
            calls: calls(&entry.turning),
            is_heard: false,
        });
        self.hung = bells.collect();
        self.listen();
    }

    /// Begins a period: all are heard again.
    fn begin(&mut self) {
        for bell in &mut self.hung {
            bell.calls = 0;
        }
        self.listen();
    }

    fn listen(&mut self) {
        for (at, bell) in self.hung.iter_mut().enumerate() {
            let is_heard = bell.calls < CALLS;
            let fd = &bell.turning.bell;
            let done = match (bell.is_heard, is_heard) {
                (false, true) => self.ready.add(fd, once(at as u64)),
                (true, false) => self.ready.delete(fd),
                _ => continue,
            };
            match done {
                Ok(()) => bell.is_heard = is_heard,
                Err(error) => tracing::error!(%error, "cannot poll a claim's doorbell"),
            }
        }
    }

    /// Sleeps until a time or an event. Returns whether the service woke it, and the GPUs whose doorbells rang.
    fn wait(&mut self, next: Option<u64>, period_ends: u64) -> (bool, Vec<usize>) {
        let is_deaf = self.hung.iter().any(|bell| !bell.is_heard);
        let next = next.into_iter().chain(is_deaf.then_some(period_ends)).min();
        if let Some(at) = next.filter(|_| next != self.timer_ns) {
            let at = Duration::from_nanos(at.max(1));
            let expiration = Expiration::OneShot(TimeSpec::from(at));
            let flags = TimerSetTimeFlags::TFD_TIMER_ABSTIME;
            match self.timer.set(expiration, flags) {
                Ok(()) => self.timer_ns = next,
                Err(error) => tracing::error!(%error, "cannot set the timer for GPU turns"),
            }
        }
        let mut events = [EpollEvent::empty(); 64];
        let count = self.ready.wait(&mut events, EpollTimeout::NONE);
        let (mut by_service, mut rang, mut is_deaf) = (false, Vec::new(), false);
        for event in &events[..count.unwrap_or(0)] {
            match event.data() {
                BY_SERVICE => by_service = true,
                BY_TIMER => self.timer_ns = None,
                at => {
                    let Some(bell) = self.hung.get_mut(at as usize) else {
                        continue;
                    };
                    // A member can shut down its end, which is an event without a byte.
                    bell.calls += bell.turning.bell.drain().max(1);
                    is_deaf |= bell.calls >= CALLS;
                    rang.push(bell.gpu);
                }
            }
        }
        if is_deaf {
            self.listen();
        }
        (by_service, rang)
    }
}

/// To be told of each new event once.
fn once(data: u64) -> EpollEvent {
    EpollEvent::new(EpollFlags::EPOLLIN | EpollFlags::EPOLLET, data)
}

impl Set {
    /// Writes the place of each claim in the frame of its GPU, for the case that the arbiter stops.
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

    /// Work that a claim's members report on GPUs of other sets, and the end of its turn there.
    fn elsewhere(&self, now: u64, claim: u64, turns: &Turns) -> (Vec<Process>, Option<u64>) {
        let there = || self.beyond.iter().filter(|e| e.claim == claim);
        let number = self.gpus.len()..;
        let said = number.zip(there()).flat_map(|(gpu, e)| e.said(now, gpu));
        let turns = there().filter_map(|e| turns.get(&e.gpu).filter(|t| t.0 == claim));
        (said.collect(), turns.map(|(_, ends_ns)| *ends_ns).max())
    }

    /// One look at the claims of this set, with the resulting decisions.
    fn look(&mut self, turns: &mut Turns) {
        let now = monotonic_ns();
        let gpus = &self.gpus;
        let place = |gpu| gpus.iter().position(|other| *other == gpu).unwrap_or(0);
        // Each claim once, with its processes on all GPUs, and elsewhere.
        let mut said = Vec::with_capacity(self.claims.len());
        for entry in &self.claims {
            let processes = entry.said(now, place(entry.gpu));
            let same = |(e, ..): &&mut (&Entry, Vec<Process>, _)| e.claim == entry.claim;
            match said.iter_mut().find(same) {
                Some((_, known, _)) => known.extend(processes),
                None => {
                    let elsewhere = self.elsewhere(now, entry.claim, turns);
                    said.push((entry, processes.collect(), elsewhere));
                }
            }
        }
        let claims: Vec<Claim<'_>> = said
            .iter()
            .map(|(e, processes, elsewhere)| Claim {
                id: e.claim,
                request_permille: e.request_permille,
                limit_permille: e.limit_permille,
                tier: e.tier,
                weight_milli: e.weight_milli,
                is_gated: e.by_time,
                is_spread: e.gpus > gpus.len(),
                elsewhere: &elsewhere.0,
                elsewhere_ns: elsewhere.1,
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
        for gpu in gpus {
            match self.arbiter.turn() {
                Some(turn) => turns.insert(*gpu, turn),
                None => turns.remove(gpu),
            };
        }
        for entry in &self.claims {
            entry.turning.limits.turn_beat(now);
        }
        for order in orders {
            for entry in self.claims.iter().filter(|e| e.claim == order.id) {
                let limits = &entry.turning.limits;
                limits.set_turn(
                    order.word.0,
                    order.turn_begins_ns..order.turn_ends_ns,
                    order.ahead_ns,
                    order.flags.0,
                    order.word.mode() != Mode::Closed,
                );
            }
        }
    }

    fn report(&mut self, shared: &Shared) {
        let used: BTreeMap<u64, u64> = self
            .claims
            .iter()
            .map(|e| (e.claim, self.arbiter.used_ns(e.claim)))
            .collect();
        let reported = std::mem::replace(&mut self.reported, used);
        self.is_told = true;
        let mut all = shared.done.lock().unwrap_or_else(PoisonError::into_inner);
        for entry in &self.claims {
            let done = all.entry((entry.gpu, entry.claim)).or_default();
            let before = reported.get(&entry.claim).copied().unwrap_or(0);
            // A new arbiter counts from zero; the claim's figure continues.
            done.turns_ns += self.reported[&entry.claim].saturating_sub(before);
            done.contended = self.arbiter.is_contended();
        }
    }
}

impl Entry {
    /// Reports of its members on one GPU of the set.
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
                // Libraries before 0.2 do not report it.
                held_ns: said.held_ns.max(said.used_ns),
                demand_ns: said.demand_ns,
                waited_ns: said.waited_ns,
                said_ns: said.said_ns.min(now),
                since_ns: said.since_ns,
                launches: self.turning.gates.launches(*slot),
                stamp: said.stamp,
            }
        })
    }

    /// Whether the process in a slot can run: neither dead, stopped nor frozen.
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

#[cfg(test)]
mod tests {
    use std::fs::File;
    use std::io::Write;
    use std::os::fd::AsRawFd;

    use gshare_abi::host::LimitsInit;
    use gshare_abi::{GateView, GpuUuid};
    use nix::sys::socket::{Shutdown, shutdown};

    use super::*;

    /// A claim on a GPU with one member, and the usage page of that member.
    fn entry(dir: &Path, claim: u64, gpu: usize) -> (Entry, UsageMemfd) {
        let path = dir.join(format!("{claim}.{gpu}"));
        let init = LimitsInit {
            claim,
            ..LimitsInit::default()
        };
        LimitsFile::create(&path, &init).expect("a page");
        let mut usage = UsageMemfd::create(claim, GpuUuid([0; 16]), 0).expect("a page");
        let slot = usage.assign_slot(std::process::id(), 1).expect("a slot");
        let entry = Entry {
            claim,
            gpu,
            gpus: 2,
            turning: Arc::new(Turning::new(&path, &usage).expect("mapped")),
            by_time: true,
            tier: 0,
            weight_milli: 1000,
            request_permille: 500,
            limit_permille: 1000,
            cgroup: None,
            members: vec![(slot.slot, std::process::id())],
        };
        (entry, usage)
    }

    fn table(entries: &[&Entry]) -> Table {
        let mut table = Table::new();
        for entry in entries {
            table.entry(entry.gpu).or_default().push((*entry).clone());
        }
        table
    }

    #[test]
    fn gpus_with_the_same_claims_are_one_set() {
        let dir = tempfile::tempdir().expect("a directory");
        let of = |claim, gpu| entry(dir.path(), claim, gpu).0;
        let here = [of(1, 0), of(2, 0), of(2, 1), of(1, 1), of(1, 2)];
        let sets = together(table(&here.iter().collect::<Vec<_>>()));
        let sizes: Vec<(usize, usize)> = sets.iter().map(|(gpu, all)| (*gpu, all.len())).collect();
        assert_eq!(sizes, [(0, 4), (2, 1)]);
    }

    #[test]
    fn pages_of_a_new_set_say_the_same_and_figures_go_on() {
        let dir = tempfile::tempdir().expect("a directory");
        let of = |claim, gpu| entry(dir.path(), claim, gpu).0;
        let (a, b, other, gone) = (of(1, 0), of(1, 1), of(2, 0), of(3, 1));
        let said = |e: &Entry| {
            let turn = &e.turning.limits.page().turn;
            let flags = turn.flags.load(std::sync::atomic::Ordering::Relaxed);
            let [begins, ends] = [&turn.begins_ns, &turn.ends_ns]
                .map(|ns| ns.load(std::sync::atomic::Ordering::Relaxed));
            (Word(e.turning.limits.turn_word()), flags, begins..ends)
        };
        let mut sets = regroup(BTreeMap::new(), together(table(&[&a, &b, &other, &gone])));
        assert_eq!(sets.len(), 2);
        let shared = Shared::default();
        let before = Done {
            turns_ns: 7,
            ..Done::default()
        };
        let figures = || shared.done.lock().expect("no panic");
        figures().insert((0, 1), before);
        // The older decision is in the other page.
        let closed = Word::default().next(Mode::Closed);
        let turn = closed.next(Mode::Turn);
        a.turning.limits.set_turn(closed.0, 0..0, 0, 0, true);
        b.turning.limits.set_turn(turn.0, 8..9, 9, 3, true);
        gone.turning.limits.set_turn(closed.0, 0..0, 0, 0, true);
        let second = of(2, 1);
        sets = regroup(sets, together(table(&[&a, &b, &other, &second])));
        assert_eq!(sets.keys().copied().collect::<Vec<_>>(), [0]);
        assert_eq!([said(&a), said(&b)], [(turn, 0, 0..0), (turn, 0, 0..0)]);
        assert_eq!(said(&gone).0.mode(), Mode::Free);
        sets.get_mut(&0).expect("a set").report(&shared);
        assert_eq!(figures()[&(0, 1)].turns_ns, 7);
    }

    #[test]
    fn a_member_that_shuts_its_end_of_the_doorbell_down_costs_few_looks() {
        let dir = tempfile::tempdir().expect("a directory");
        let (one, other) = (entry(dir.path(), 1, 0).0, entry(dir.path(), 2, 0).0);
        let (service, woken) = UnixDatagram::pair().expect("sockets");
        let mut bells = Bells::new(&woken).expect("epoll");
        bells.hang(&table(&[&one, &other]));
        let mut looks = |how| {
            shutdown(one.turning.member_fd().as_raw_fd(), how).expect("shut down");
            bells.begin();
            let looks = (0..50).map(|n| {
                if n == 25 {
                    bells.hang(&table(&[&other, &one]));
                }
                service.send(&[1]).expect("sent");
                bells.wait(None, 0).1.len()
            });
            looks.sum::<usize>()
        };
        for how in [Shutdown::Write, Shutdown::Read] {
            assert!((1..=2).contains(&looks(how)), "{how:?}");
        }
    }

    #[test]
    fn a_member_that_rings_all_the_time_is_heard_as_often_as_allowed() {
        let dir = tempfile::tempdir().expect("a directory");
        let (one, other) = (entry(dir.path(), 1, 0).0, entry(dir.path(), 2, 0).0);
        let (_service, woken) = UnixDatagram::pair().expect("sockets");
        let mut bells = Bells::new(&woken).expect("epoll");
        bells.hang(&table(&[&one, &other]));
        let member = one.turning.member_fd().try_clone_to_owned();
        let mut member = File::from(member.expect("an end"));
        let mut rings = |bells: &mut Bells, at_once: u32| {
            for _ in 0..at_once {
                let _ = member.write(&[1]);
            }
            // The timer ends it if nothing rings.
            bells.wait(Some(monotonic_ns()), 0).1.len() as u32
        };
        // What came while it was not heard counts for the next period.
        for heard in [CALLS, 1, 1] {
            let looks: u32 = (0..2 * CALLS).map(|_| rings(&mut bells, 1)).sum();
            assert_eq!(looks, heard);
            // Also if others come and go.
            bells.hang(&table(&[&other, &one]));
            assert_eq!(rings(&mut bells, 1), 0);
            bells.begin();
        }
        // More often than its doorbell has room for.
        for _ in 0..3 {
            assert_eq!([rings(&mut bells, 1000), rings(&mut bells, 1)], [1, 0]);
            bells.begin();
        }
    }

    #[test]
    fn a_turn_of_a_claim_is_known_where_it_has_other_neighbours() {
        let dir = tempfile::tempdir().expect("a directory");
        let made = [(1, 0), (1, 1), (2, 0), (3, 1)].map(|(c, g)| entry(dir.path(), c, g));
        let entries: Vec<&Entry> = made.iter().map(|(entry, _)| entry).collect();
        let sets = regroup(BTreeMap::new(), together(table(&entries)));
        let now = monotonic_ns();
        let view = GateView {
            waiting: true,
            said_ns: now,
            ..GateView::default()
        };
        let (on_second, usage) = &made[1];
        usage.page().gates[on_second.members[0].0].publish(&view);
        let first = &sets[&0];
        let there = |turn| {
            let (said, ends_ns) = first.elsewhere(now, 1, &Turns::from([(1, turn)]));
            let said: Vec<_> = said.iter().map(|p| (p.gpu, p.waiting)).collect();
            (said, ends_ns)
        };
        assert_eq!(there((1, 7)), (vec![(1, true)], Some(7)));
        assert_eq!(there((3, 7)), (vec![(1, true)], None), "its neighbour's");
        assert_eq!(
            first.elsewhere(now, 2, &Turns::from([(1, (3, 7))])),
            (vec![], None)
        );
    }
}
