//! A GPU, its processes and their threads in virtual time, made for these tests alone: round-robin slices between
//! contexts with switching costs, streams, launches that arrive late, event times that include the neighbours' slices
//! and an idle stream's launch gap, and delayed wake-ups.

pub(crate) mod gates;

use std::{
    cmp::Reverse,
    collections::{BinaryHeap, VecDeque},
};

pub(crate) use gates::{Gate, Verdict};

pub(crate) const MS: u64 = 1_000_000;
pub(crate) const US: u64 = 1_000;
/// Length of a context's slice.
pub(crate) const SLICE: u64 = 2 * MS;

/// Overheads beside the kernels, in nanoseconds: each is drawn between two bounds.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Costs {
    /// From the launch call until the GPU has it.
    pub(crate) reach: (u64, u64),
    /// From an event, or a futex call, until the waiting thread runs.
    pub(crate) wake: (u64, u64),
    /// A context switch.
    pub(crate) switch: (u64, u64),
    /// GPU time of recording an event.
    pub(crate) record: u64,
    /// Extra processor time, on top of [`LAUNCH`], of a launch that asks the gate and is measured.
    pub(crate) ask: u64,
}

impl Costs {
    pub(crate) const KIND: Costs = Costs {
        reach: (0, 0),
        wake: (10 * US, 60 * US),
        switch: (0, 0),
        record: 0,
        ask: 2 * US,
    };
    pub(crate) const REAL: Costs = Costs {
        reach: (2 * US, 4 * US),
        wake: (30 * US, 80 * US),
        switch: (50 * US, 100 * US),
        record: US,
        ask: 2 * US,
    };
    /// The upper ends of the ranges: `real:high` of the benches.
    pub(crate) const HIGH: Costs = Costs {
        reach: (4 * US, 4 * US),
        wake: (80 * US, 80 * US),
        switch: (200 * US, 200 * US),
        ..Self::REAL
    };
    pub(crate) const WORST: Costs = Costs {
        reach: (4 * US, 10 * US),
        wake: (50 * US, 150 * US),
        switch: (150 * US, 200 * US),
        record: 2 * US,
        ask: 2 * US,
    };
}
/// Processor time of a launch.
const LAUNCH: u64 = 4 * US;
/// Launches that the driver queues for one process.
const QUEUE: usize = 1024;
/// Width of the bins in which GPU time is counted.
pub(crate) const BIN: u64 = 10 * MS;

pub(crate) struct Rng(pub u64);

impl Rng {
    pub(crate) fn below(&mut self, n: u64) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0 % n.max(1)
    }
    fn between(&mut self, (least, most): (u64, u64)) -> u64 {
        least + self.below(most - least + 1)
    }
}

/// What a thread does in a loop.
#[derive(Debug, Clone, Copy)]
pub(crate) enum Program {
    /// Launches as fast as allowed.
    Flood { kernel: u64 },
    /// The same with at most two kernels queued.
    Two { kernel: u64 },
    /// A flood of kernels that each wait for a twin on another GPU.
    Meet { kernel: u64 },
    /// The same with an independent kernel before each of these.
    Collective { kernel: u64, meet: u64 },
    /// Launches, waits for the kernel, computes for a while.
    Sync { kernel: u64, think: u64 },
    /// `count` times a launch, its wait and a moment of thinking, then nothing for a while.
    Steps {
        kernel: u64,
        think: u64,
        count: u64,
        pause: u64,
    },
    /// `count` launches, then nothing for a while.
    Burst { kernel: u64, count: u32, pause: u64 },
    /// `count` launches each `every`, however long they take.
    Beat { kernel: u64, count: u32, every: u64 },
    /// A copy, which uses no SM, and a kernel behind it, with at most two such pairs queued.
    Copies { copy: u64, kernel: u64 },
    /// Launches behind a host function of this duration, and waits.
    Held { kernel: u64, hold: u64 },
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Event {
    Thread(usize, u64),
    Gpu(u64),
    Watcher(usize),
    Arbiter(u64),
    Wake(usize),
    Act(usize),
}

/// An event in a process's life.
#[derive(Debug, Clone, Copy)]
pub(crate) enum Act {
    Start(usize),
    Stop(usize),
    Continue(usize),
    Kill(usize),
    /// A claim's memory leaves the GPU, its processes stay.
    Detach(usize),
    /// It comes back.
    Attach(usize),
    /// The service dies.
    Silence,
}

/// An event behind a launch, and when the launch ran.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Mark {
    id: u64,
    pub(crate) thread: usize,
    /// There is an event before the launch, too.
    pub(crate) is_pair: bool,
    pub(crate) ran: Option<(u64, u64)>,
}

struct Kernel {
    length: f64,
    left: f64,
    width: f64,
    began: Option<u64>,
    /// When the GPU has it, and when it has the event before it.
    ready: u64,
    mark_ready: u64,
    asked: u64,
    marker: Option<u64>,
    thread: usize,
}

impl Kernel {
    /// Only its event is work for the GPU.
    fn is_event(&self) -> bool {
        self.length == 0.0
    }
}

pub(crate) struct Thread {
    pub(crate) process: usize,
    program: Program,
    /// Fraction of the GPU that its kernels fill.
    width: f64,
    queue: VecDeque<Kernel>,
    ticket: Option<u64>,
    /// When it first asked for its next launch.
    asked: Option<u64>,
    asleep: Option<u64>,
    version: u64,
    step: u32,
    syncing: bool,
    waits_for_room: bool,
    launched: u64,
    /// GPU time of its finished kernels, without copies.
    pub(crate) computed: f64,
    pub(crate) finished: u64,
    pub(crate) last_finish: u64,
    pub(crate) worst_stall: u64,
    /// When its first kernel after the start began.
    pub(crate) first_run: Option<u64>,
    /// From the first ask for a launch until the GPU began with it.
    pub(crate) waits: Vec<u64>,
    burst_began: u64,
    /// Duration of each burst, from its first launch to its end.
    pub(crate) bursts: Vec<u64>,
}

#[derive(Default)]
pub(crate) struct Process {
    pub(crate) claim: usize,
    pub(crate) running: bool,
    pub(crate) stopped: bool,
    pub(crate) dead: bool,
    queued: usize,
    pub(crate) launches: u64,
    /// The same at the time when a thread last began to wait for its work.
    awaited: u64,
    pub(crate) markers: VecDeque<Mark>,
    next_marker: u64,
}

/// Progress of a thread whose kernels wait for those of another GPU.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct Twin {
    pub(crate) finished: u64,
    /// The GPU has the next kernel and works for its process.
    pub(crate) runs: bool,
}

pub(crate) struct Sim {
    pub(crate) now: u64,
    pub(crate) costs: Costs,
    /// All kernels of one kind take the same time.
    pub(crate) is_exact: bool,
    pub(crate) rng: Rng,
    events: BinaryHeap<Reverse<(u64, u64, Event)>>,
    order: u64,
    pub(crate) processes: Vec<Process>,
    pub(crate) threads: Vec<Thread>,
    pub(crate) claims: usize,
    acts: Vec<Act>,
    context: Option<usize>,
    /// The GPU switches contexts until then.
    changes_until: u64,
    pub(crate) switches: u64,
    slice_end: u64,
    /// A stream is held up by something other than the GPU.
    pub(crate) has_blocked: bool,
    /// Since when the GPU is idle.
    idle_since: u64,
    gpu_at: u64,
    gpu_version: u64,
    /// The first thread's twin on another GPU.
    pub(crate) twin: Twin,
    pub(crate) arbiter_version: u64,
    pub(crate) arbiter_runs: u64,
    /// GPU time by bin and claim.
    pub(crate) bins: Vec<Vec<u64>>,
}

impl Sim {
    pub(crate) fn new(claims: usize, seed: u64) -> Sim {
        Sim {
            now: 1000 * MS,
            costs: Costs::REAL,
            is_exact: false,
            rng: Rng(seed.wrapping_mul(2).wrapping_add(0x9e37_79b9)),
            events: BinaryHeap::new(),
            order: 0,
            processes: Vec::new(),
            threads: Vec::new(),
            claims,
            acts: Vec::new(),
            context: None,
            changes_until: 0,
            switches: 0,
            slice_end: 0,
            has_blocked: false,
            idle_since: 0,
            gpu_at: 1000 * MS,
            gpu_version: 0,
            twin: Twin::default(),
            arbiter_version: 0,
            arbiter_runs: 0,
            bins: Vec::new(),
        }
    }

    pub(crate) fn process(&mut self, claim: usize) -> usize {
        self.processes.push(Process {
            claim,
            ..Process::default()
        });
        self.processes.len() - 1
    }

    pub(crate) fn thread(&mut self, process: usize, program: Program, width: f64) -> usize {
        self.has_blocked |= matches!(program, Program::Held { .. });
        self.threads.push(Thread {
            process,
            program,
            width,
            queue: VecDeque::new(),
            ticket: None,
            asked: None,
            waits: Vec::new(),
            burst_began: 0,
            bursts: Vec::new(),
            asleep: None,
            version: 0,
            step: 0,
            syncing: false,
            waits_for_room: false,
            launched: 0,
            computed: 0.0,
            finished: 0,
            last_finish: 0,
            worst_stall: 0,
            first_run: None,
        });
        self.threads.len() - 1
    }

    /// The first thread's state for its twin.
    pub(crate) fn as_twin(&self) -> Twin {
        let thread = &self.threads[0];
        let there = thread.queue.front().is_some_and(|k| k.began.is_some());
        Twin {
            finished: thread.finished,
            runs: there && self.context == Some(thread.process),
        }
    }

    fn at(&mut self, time: u64, event: Event) {
        self.order += 1;
        self.events
            .push(Reverse((time.max(self.now), self.order, event)));
    }

    /// Schedules an act `after` nanoseconds from the start of the run.
    pub(crate) fn act(&mut self, after: u64, act: Act) {
        self.acts.push(act);
        let at = self.now + after;
        self.at(at, Event::Act(self.acts.len() - 1));
    }

    pub(crate) fn latency(&mut self) -> u64 {
        self.rng.between(self.costs.wake)
    }

    pub(crate) fn knock(&mut self) {
        let at = self.now + self.latency();
        self.arbiter_version += 1;
        let version = self.arbiter_version;
        self.at(at, Event::Arbiter(version));
    }

    pub(crate) fn arbiter_at(&mut self, time: u64) {
        let version = self.arbiter_version;
        self.at(time, Event::Arbiter(version));
    }

    pub(crate) fn watcher_at(&mut self, process: usize, time: u64) {
        self.at(time, Event::Watcher(process));
    }

    /// Whether a process has launched nothing since it last began to wait for its work.
    pub(crate) fn is_awaited(&self, p: usize) -> bool {
        self.processes[p].awaited == self.processes[p].launches
    }

    /// Records an event on a thread's stream.
    pub(crate) fn record(&mut self, t: usize) {
        let process = &mut self.processes[self.threads[t].process];
        process.next_marker += 1;
        let marker = Some(process.next_marker);
        process.markers.push_back(Mark {
            id: process.next_marker,
            thread: t,
            is_pair: false,
            ran: None,
        });
        let last = self.threads[t].queue.back_mut();
        if let Some(kernel) = last.filter(|kernel| kernel.marker.is_none()) {
            kernel.marker = marker;
            return;
        }
        let ready = self.now + self.rng.between(self.costs.reach);
        self.threads[t].queue.push_back(Kernel {
            length: 0.0,
            left: self.costs.record as f64,
            width: 0.0,
            began: None,
            ready,
            mark_ready: ready,
            asked: self.now,
            marker,
            thread: t,
        });
        self.schedule_gpu();
    }

    /// Finished events of a process; those of a stream are in the order of their launches.
    pub(crate) fn take_over(&mut self, p: usize) -> Vec<Mark> {
        let markers = &mut self.processes[p].markers;
        let over = markers.iter().copied().filter(|m| m.ran.is_some());
        let over = over.collect();
        markers.retain(|m| m.ran.is_none());
        over
    }

    /// The oldest event of each stream, and whether the work behind the previous one has begun, if there is one.
    pub(crate) fn heads_of(&self, p: usize) -> Vec<(usize, Option<bool>)> {
        let mut heads: Vec<(usize, Option<bool>)> = Vec::new();
        for mark in &self.processes[p].markers {
            if heads.iter().any(|(thread, _)| *thread == mark.thread) {
                continue;
            }
            let mut queue = self.threads[mark.thread].queue.iter();
            let kernel = queue.find(|k| k.marker == Some(mark.id));
            let began = kernel.is_some_and(|k| k.began.is_some());
            heads.push((mark.thread, mark.is_pair.then_some(began)));
        }
        heads
    }

    /// Wakes the waiting threads of a claim after the wake-up delay.
    pub(crate) fn wake_claim(&mut self, claim: usize) {
        let at = self.now + self.latency();
        self.at(at, Event::Wake(claim));
    }

    pub(crate) fn run(&mut self, length: u64, gate: &mut dyn Gate) {
        let end = self.now + length;
        while let Some(Reverse((time, _, event))) = self.events.peek().copied() {
            if time > end {
                break;
            }
            self.events.pop();
            self.now = time;
            match event {
                Event::Thread(t, version) => {
                    if self.threads[t].version == version {
                        self.run_thread(t, gate);
                    }
                }
                Event::Gpu(version) => {
                    if self.gpu_version == version {
                        self.advance_gpu(gate);
                        self.schedule_gpu();
                    }
                }
                Event::Watcher(p) => {
                    let process = &self.processes[p];
                    if process.running && !process.stopped && !process.dead {
                        gate.watch(self, p);
                    }
                }
                Event::Arbiter(version) => {
                    if version == self.arbiter_version {
                        self.arbiter_runs += 1;
                        gate.arbitrate(self);
                    }
                }
                Event::Wake(claim) => {
                    for t in 0..self.threads.len() {
                        let th = &self.threads[t];
                        if self.processes[th.process].claim == claim && th.asleep.is_some() {
                            self.run_soon(t);
                        }
                    }
                }
                Event::Act(i) => self.happen(self.acts[i], gate),
            }
        }
        self.now = end;
        self.advance_gpu(gate);
    }

    fn run_soon(&mut self, t: usize) {
        let thread = &mut self.threads[t];
        thread.version += 1;
        thread.asleep = None;
        let version = thread.version;
        self.at(self.now, Event::Thread(t, version));
    }

    fn happen(&mut self, act: Act, gate: &mut dyn Gate) {
        match act {
            Act::Start(p) | Act::Continue(p) => {
                self.processes[p].running = true;
                self.processes[p].stopped = false;
                for t in 0..self.threads.len() {
                    if self.threads[t].process == p {
                        self.threads[t].last_finish = self.now;
                        self.run_soon(t);
                    }
                }
                self.watcher_at(p, self.now);
            }
            Act::Stop(p) => self.processes[p].stopped = true,
            Act::Kill(p) => {
                self.advance_gpu(gate);
                self.processes[p].dead = true;
                for t in &mut self.threads {
                    if t.process == p {
                        t.queue.clear();
                    }
                }
                self.schedule_gpu();
                gate.died(self, p);
            }
            Act::Detach(claim) => gate.detach(self, claim, true),
            Act::Attach(claim) => gate.detach(self, claim, false),
            Act::Silence => gate.silence(),
        }
    }

    fn run_thread(&mut self, t: usize, gate: &mut dyn Gate) {
        let p = self.threads[t].process;
        if !self.processes[p].running || self.processes[p].stopped || self.processes[p].dead {
            return;
        }
        let (kernel, count) = match self.threads[t].program {
            Program::Flood { kernel } | Program::Two { kernel } | Program::Meet { kernel } => {
                (kernel, 1)
            }
            Program::Sync { kernel, .. }
            | Program::Steps { kernel, .. }
            | Program::Held { kernel, .. } => (kernel, 1),
            Program::Burst { kernel, count, .. } | Program::Beat { kernel, count, .. } => {
                (kernel, count)
            }
            Program::Copies {
                copy: first,
                kernel: second,
            }
            | Program::Collective {
                kernel: first,
                meet: second,
            } => {
                let is_first = self.threads[t].launched.is_multiple_of(2);
                (if is_first { first } else { second }, u32::MAX)
            }
        };
        let copies =
            matches!(self.threads[t].program, Program::Copies { copy, .. } if copy == kernel);
        let is_full = match self.threads[t].program {
            Program::Two { .. } => self.threads[t].queue.len() >= 2,
            _ => copies && self.threads[t].queue.len() > 2,
        };
        if is_full {
            // Woken when a kernel, or a pair, is over.
            self.threads[t].waits_for_room = true;
            return;
        }
        let thread = &mut self.threads[t];
        if thread.step == 0 && !thread.syncing && thread.asked.is_none() {
            thread.burst_began = self.now;
        }
        if self.threads[t].step >= count || self.threads[t].syncing {
            let idle = self.threads[t].queue.is_empty();
            let (wait, pause) = match self.threads[t].program {
                Program::Flood { .. } | Program::Two { .. } => (false, 0),
                Program::Meet { .. } | Program::Collective { .. } => (false, 0),
                Program::Sync { think, .. } => (true, think),
                Program::Steps {
                    think,
                    count,
                    pause,
                    ..
                } => {
                    let is_last = self.threads[t].launched.is_multiple_of(count);
                    (true, if is_last { pause } else { think })
                }
                Program::Held { .. } => (true, 0),
                Program::Burst { pause, .. } => (true, pause),
                Program::Beat { every, .. } => {
                    let took = self.now - self.threads[t].burst_began;
                    (true, every.saturating_sub(took))
                }
                Program::Copies { .. } => (false, 0),
            };
            self.threads[t].step = 0;
            if wait && !idle {
                // Woken when the last kernel is over.
                self.threads[t].syncing = true;
                self.processes[p].awaited = self.processes[p].launches;
                return;
            }
            let after_sync = std::mem::take(&mut self.threads[t].syncing);
            let burst = self.now - self.threads[t].burst_began;
            self.threads[t].bursts.push(burst);
            if after_sync || pause > 0 {
                self.again(t, pause);
                return;
            }
        }
        if self.processes[p].queued >= QUEUE {
            self.again(t, 200 * US);
            return;
        }
        let mut ticket = self.threads[t].ticket.take();
        let asked = *self.threads[t].asked.get_or_insert(self.now);
        let verdict = gate.ask(self, p, t, kernel, &mut ticket);
        self.threads[t].ticket = ticket;
        match verdict {
            Verdict::Wait { until } => {
                let thread = &mut self.threads[t];
                thread.version += 1;
                thread.asleep = Some(until);
                let version = thread.version;
                self.at(until.max(self.now + 1), Event::Thread(t, version));
            }
            Verdict::Go { marked } => {
                self.advance_gpu(gate);
                let marker = marked.then(|| {
                    let process = &mut self.processes[p];
                    process.next_marker += 1;
                    process.markers.push_back(Mark {
                        id: process.next_marker,
                        thread: t,
                        is_pair: true,
                        ran: None,
                    });
                    process.next_marker
                });
                // Durations vary a little; kernels that meet end together.
                let length = match self.threads[t].program {
                    Program::Meet { .. } | Program::Collective { .. } => kernel,
                    _ if self.is_exact => kernel,
                    _ => kernel - kernel / 10 + self.rng.below(kernel / 5 + 1),
                };
                let width = if copies { 0.0 } else { self.threads[t].width };
                let records = if marked { 2 * self.costs.record } else { 0 };
                let held = match self.threads[t].program {
                    Program::Held { hold, .. } => hold,
                    _ => 0,
                };
                let reach = held + self.rng.between(self.costs.reach);
                let mark_ready = self.now + reach;
                let asks = if marked { self.costs.ask } else { 0 };
                let calls = asks + LAUNCH / 2;
                self.threads[t].asked = None;
                self.threads[t].queue.push_back(Kernel {
                    length: length as f64,
                    left: (length + records) as f64,
                    width,
                    began: None,
                    ready: mark_ready + if reach == 0 { 0 } else { calls },
                    mark_ready,
                    asked,
                    marker,
                    thread: t,
                });
                self.threads[t].launched += 1;
                self.threads[t].step += 1;
                self.processes[p].launches += 1;
                self.processes[p].queued += 1;
                self.schedule_gpu();
                self.again(t, LAUNCH + asks);
            }
        }
    }

    fn again(&mut self, t: usize, after: u64) {
        self.threads[t].version += 1;
        let version = self.threads[t].version;
        self.at(self.now + after, Event::Thread(t, version));
    }

    /// The kernels at the heads of a process's streams that have reached the GPU.
    fn heads(&self, p: usize) -> impl Iterator<Item = &Kernel> {
        let heads = self.threads.iter().filter(move |t| t.process == p);
        let heads = heads.filter_map(|t| t.queue.front());
        heads.filter(|kernel| kernel.ready <= self.gpu_at)
    }

    fn has_work(&self, p: usize) -> bool {
        self.heads(p).next().is_some()
    }

    /// When the next launch in flight reaches the GPU.
    fn next_ready(&self) -> Option<u64> {
        let heads = self.threads.iter().filter_map(|t| t.queue.front());
        let coming = heads
            .map(|kernel| kernel.ready)
            .filter(|ready| *ready > self.gpu_at);
        coming.min()
    }

    fn rate(&self, p: usize) -> f64 {
        let heads = self.heads(p);
        let total: f64 = heads.map(|kernel| kernel.width).sum();
        (1.0 / total).min(1.0)
    }

    /// Switches the GPU to a process's context.
    fn change_to(&mut self, p: usize) {
        if self.context != Some(p) {
            self.switches += 1;
            self.changes_until = self.gpu_at + self.rng.between(self.costs.switch);
        }
        self.context = Some(p);
        self.slice_end = self.gpu_at.max(self.changes_until) + SLICE;
    }

    /// Advances the GPU to the present time.
    fn advance_gpu(&mut self, gate: &mut dyn Gate) {
        while self.gpu_at < self.now {
            if self.changes_until > self.gpu_at {
                self.gpu_at = self.changes_until.min(self.now);
                continue;
            }
            let in_slice = self.slice_end > self.gpu_at;
            let Some(p) = self.context.filter(|&p| in_slice && self.has_work(p)) else {
                if let Some(next) = self.next_context() {
                    self.change_to(next);
                } else {
                    self.idle_since = self.idle_since.max(self.gpu_at);
                    let ready = self.next_ready().unwrap_or(self.now);
                    self.gpu_at = ready.min(self.now);
                    if self.gpu_at == self.now {
                        return;
                    }
                }
                continue;
            };
            let rate = self.rate(p);
            let mut until = self.slice_end.min(self.now);
            until = until.min(self.next_ready().unwrap_or(until));
            for head in self.heads(p) {
                until = until.min(self.gpu_at + (head.left / rate).ceil().max(1.0) as u64);
            }
            let span = until - self.gpu_at;
            self.count(self.processes[p].claim, self.gpu_at, until);
            let mut over = Vec::new();
            let (at, idle_since, twin) = (self.gpu_at, self.idle_since, self.twin);
            for t in self.threads.iter_mut().filter(|t| t.process == p) {
                let Some(head) = t.queue.front_mut().filter(|k| k.ready <= at) else {
                    continue;
                };
                if head.began.is_none() {
                    // If nothing else runs, the event before it is stamped at once.
                    let idle = idle_since <= head.mark_ready && t.last_finish <= head.mark_ready;
                    let idle = idle && at == head.ready;
                    head.began = Some(if idle { head.mark_ready } else { at });
                    if !head.is_event() {
                        t.waits.push(at.saturating_sub(head.asked));
                    }
                }
                t.first_run.get_or_insert(at);
                let meets = match t.program {
                    Program::Meet { .. } => true,
                    Program::Collective { .. } => t.finished % 2 == 1,
                    _ => false,
                };
                let waits = meets
                    && (twin.finished < t.finished || twin.finished == t.finished && !twin.runs);
                if !waits {
                    head.left -= span as f64 * rate;
                }
                if head.left <= 0.5 {
                    over.push(t.queue.pop_front());
                }
            }
            self.gpu_at = until;
            self.idle_since = until;
            for kernel in over.into_iter().flatten() {
                self.finish(p, kernel, gate);
            }
        }
    }

    fn next_context(&self) -> Option<usize> {
        let n = self.processes.len();
        let from = self.context.map_or(0, |p| p + 1);
        (0..n).map(|i| (from + i) % n).find(|&p| self.has_work(p))
    }

    fn finish(&mut self, p: usize, kernel: Kernel, gate: &mut dyn Gate) {
        let at = self.gpu_at;
        let t = kernel.thread;
        if !kernel.is_event() {
            self.processes[p].queued -= 1;
            let thread = &mut self.threads[t];
            thread.finished += 1;
            thread.computed += kernel.length * kernel.width;
            thread.worst_stall = thread.worst_stall.max(at - thread.last_finish);
            thread.last_finish = at;
        }
        let thread = &mut self.threads[t];
        if thread.waits_for_room && thread.queue.len() <= 2 {
            thread.waits_for_room = false;
            thread.version += 1;
            let (version, wake) = (thread.version, 10 * US);
            self.at(at + wake, Event::Thread(t, version));
        }
        let thread = &mut self.threads[t];
        if thread.syncing && thread.queue.is_empty() {
            let wake = 5 * US;
            self.threads[t].version += 1;
            let version = self.threads[t].version;
            self.at(at + wake, Event::Thread(t, version));
        }
        if let Some(id) = kernel.marker {
            let ran = Some((kernel.began.unwrap_or(at), at));
            let mut markers = self.processes[p].markers.iter_mut();
            if let Some(marker) = markers.find(|m| m.id == id) {
                marker.ran = ran;
            }
            let when = at + self.latency();
            self.at(when, Event::Watcher(p));
        }
        gate.finished(self, p);
    }

    fn count(&mut self, claim: usize, from: u64, to: u64) {
        let mut at = from;
        while at < to {
            let bin = (at / BIN) as usize;
            let end = ((bin as u64 + 1) * BIN).min(to);
            if self.bins.len() <= bin {
                self.bins.resize(bin + 1, vec![0; self.claims]);
            }
            self.bins[bin][claim] += end - at;
            at = end;
        }
    }

    fn schedule_gpu(&mut self) {
        self.gpu_version += 1;
        let version = self.gpu_version;
        let mut next = self.next_ready();
        let mut sooner = |at: u64| next = Some(next.map_or(at, |next| next.min(at)));
        if self.changes_until > self.now {
            sooner(self.changes_until);
        } else if let Some(p) = self.context.filter(|&p| self.has_work(p)) {
            let rate = self.rate(p);
            sooner(self.slice_end.max(self.now + 1));
            for head in self.heads(p) {
                sooner(self.now + (head.left / rate).ceil().max(1.0) as u64);
            }
        } else if self.next_context().is_some() {
            sooner(self.now + 1);
        }
        if let Some(next) = next {
            self.at(next.max(self.now + 1), Event::Gpu(version));
        }
    }

    /// The 99th percentile of a thread's bursts.
    pub(crate) fn p99_of_bursts(&self, thread: usize) -> u64 {
        let mut bursts = self.threads[thread].bursts.clone();
        bursts.sort_unstable();
        bursts.get(bursts.len() * 99 / 100).copied().unwrap_or(0)
    }

    /// GPU time of each claim in an interval, as parts of the interval.
    pub(crate) fn used(&self, from: u64, to: u64) -> Vec<f64> {
        let mut sum = vec![0; self.claims];
        for bin in from / BIN..to / BIN {
            for (sum, used) in sum
                .iter_mut()
                .zip(self.bins.get(bin as usize).into_iter().flatten())
            {
                *sum += used;
            }
        }
        sum.iter()
            .map(|ns| *ns as f64 / (to - from) as f64)
            .collect()
    }
}
