//! Programs that use a GPU in virtual time, each with the proxy.
//!
//! The proxy's counting is the real one (`gshare_gate::Tally`). The replacement of the shim's events and watcher
//! follows the same rules: one launch in a few milliseconds of its stream is measured, and its end shows that all
//! earlier work on the stream has ended. Where claims take turns, those launches are measured that the gate is asked
//! for, and a launch that has to wait for a turn records an event behind the earlier ones of its stream. What the record
//! of an event takes is measured, and taken off.

use std::collections::VecDeque;

use gshare_core::attribution::{Reading, Running, Times};
use gshare_gate::{
    CHUNK_NS, Current, Fill, Kernels, Key, Load, MARKERS, Measure, Mode, Records, Step, Tally,
    Timeline, Word,
};
use gshare_sim_board::{Finished, ImaginedBoard, Model, Shape, Work, resident_blocks};

use super::dice::Dice;

/// Delay until a watcher notices an awaited end.
const WAKE_NS: u64 = 60_000;
/// Launches of each kernel before a program records a graph.
const WARM: usize = 3;
/// Maximum number of concurrent measurements that the gate does not need.
const MEASURED: usize = 32;
/// Maximum number of queued kernels: the board keeps no more per process.
const ROWS: usize = 128;

/// A kernel of a program.
#[derive(Clone, Copy, Debug)]
pub(super) struct Kernel {
    pub(super) shape: Shape,
    pub(super) block_ns: u64,
}

/// Launch pattern of a program.
#[derive(Clone, Copy, Debug)]
pub(super) enum Way {
    /// This many launches are always queued on each stream.
    Ahead(usize),
    /// Launches this many kernels, waits for them, then pauses for this many nanoseconds.
    Rounds(usize, u64),
    /// Busy for the first time, idle for the second, in nanoseconds.
    Bursts(u64, u64),
}

/// Parameters of a program.
#[derive(Clone, Debug)]
pub(super) struct Plan {
    pub(super) kernels: Vec<Kernel>,
    pub(super) way: Way,
    pub(super) streams: usize,
    /// All consecutive kernels form one graph.
    pub(super) graph: bool,
}

impl Plan {
    /// Draws a random program for a GPU.
    pub(super) fn draw(dice: &mut Dice, model: &Model) -> Self {
        let length = dice.below(4);
        let small = dice.below(2) == 0;
        let kernels = (0..1 + dice.below(4)).map(|_| {
            let threads = dice.one(&[64, 128, 256, 512, 1024]);
            let regs = dice.one(&[24, 32, 48, 64, 96]);
            let mut shape = Shape {
                blocks: 1,
                threads,
                regs,
                shared: dice.one(&[0, 0, 16 << 10, 48 << 10]),
            };
            if resident_blocks(model, &shape) == 0 {
                shape.shared = 0;
                shape.regs = 32;
            }
            let wave = u64::from(model.sms) * u64::from(resident_blocks(model, &shape));
            shape.blocks = if small {
                1 + dice.below(u64::from(model.sms))
            } else {
                dice.scale(wave as f64 * 0.3, wave as f64 * 12.0) as u64
            };
            let waves = shape.blocks.div_ceil(wave).max(1);
            let whole = match length {
                0 => dice.scale(5e6, 1.5e8),
                // Short kernels, for which an event record and the launch itself take long.
                1 => dice.scale(3e3, 4e4),
                _ => dice.scale(4e4, 1e6),
            };
            Kernel {
                shape,
                block_ns: ((whole / waves as f64) as u64).max(2_000),
            }
        });
        let kernels: Vec<Kernel> = kernels.collect();
        let way = match dice.below(3) {
            0 => Way::Ahead(dice.one(&[2, 8, 32])),
            1 => Way::Rounds(1 + dice.below(8) as usize, dice.scale(1e5, 5e7) as u64),
            _ => Way::Bursts(dice.scale(5e7, 2e9) as u64, dice.scale(5e7, 2e9) as u64),
        };
        Self {
            graph: kernels.len() > 1 && dice.below(4) == 0,
            streams: if dice.below(5) == 0 { 2 } else { 1 },
            kernels,
            way,
        }
    }
}

/// A launch in a stream's queue, with its tickets and those of its events; or an event alone.
#[derive(Debug)]
struct Queued {
    last: u64,
    /// The flight that its events measure.
    measured: Option<u64>,
    start_ns: Option<u64>,
    first: u64,
    many: usize,
    /// An event right behind its last one, which tells what the record of an event takes.
    behind: Option<u64>,
}

/// A measurement in flight: see `enforcer/shim/src/gate.rs`.
#[derive(Debug)]
struct Flight {
    id: u64,
    place: u64,
    /// `None`: an event behind earlier launches.
    key: Option<Key>,
    /// Start and end.
    ran: Option<(u64, u64)>,
}

/// The proxy of one process.
#[derive(Debug, Default)]
struct Proxy {
    tally: Tally,
    timeline: Timeline,
    flights: VecDeque<Flight>,
    next: u64,
    /// The arbiter's decision.
    word: Word,
    sms: u32,
    launches: u64,
    said: (u64, Load, Option<Current>),
    /// Events right behind others, with the ends of those.
    behind: Vec<(u64, u64)>,
    records: Records,
}

#[derive(Debug)]
pub(super) struct Process {
    pub(super) id: u64,
    context: u64,
    /// SMs that the process can use.
    sms: u32,
    plan: Plan,
    proxy: Proxy,
    streams: Vec<VecDeque<Queued>>,
    /// Number of queued kernels.
    queued: usize,
    next_kernel: usize,
    /// Time of the next launch, and launches left in this round.
    wakes_ns: u64,
    left: usize,
    burst_ends_ns: u64,
    /// Warm-up launches before the graph is recorded.
    warm: usize,
    /// The graph is recorded.
    made: bool,
    /// Sum of its grids' fractions of the GPU, and their number.
    grids: (f64, f64),
}

impl Process {
    pub(super) fn new(id: u64, context: u64, sms: u32, plan: Plan) -> Self {
        let streams = (0..plan.streams).map(|_| VecDeque::new()).collect();
        Self {
            id,
            context,
            sms,
            plan,
            proxy: Proxy {
                sms,
                ..Proxy::default()
            },
            streams,
            queued: 0,
            next_kernel: 0,
            wakes_ns: 0,
            left: 0,
            burst_ends_ns: 0,
            warm: WARM,
            made: false,
            grids: (0.0, 0.0),
        }
    }

    /// SMs that the process can use.
    pub(super) fn sms(&self) -> u32 {
        self.sms
    }

    /// Whether work of the process is on the GPU.
    pub(super) fn is_busy(&self) -> bool {
        self.streams.iter().any(|stream| !stream.is_empty())
    }

    /// Whether the process would launch now.
    pub(super) fn wants(&mut self, now: u64) -> bool {
        match self.plan.way {
            Way::Ahead(_) => true,
            Way::Rounds(many, think) => {
                if self.left == 0 && !self.is_busy() {
                    if self.wakes_ns == 0 {
                        self.wakes_ns = now + think;
                    }
                    if now >= self.wakes_ns {
                        (self.left, self.wakes_ns) = (many, 0);
                    }
                }
                self.left > 0
            }
            Way::Bursts(busy, idle) => {
                if now >= self.wakes_ns {
                    self.burst_ends_ns = now + busy;
                    self.wakes_ns = now + busy + idle;
                }
                now < self.burst_ends_ns
            }
        }
    }

    /// It has a turn.
    pub(super) fn turn(&mut self) {
        self.proxy.word = self.proxy.word.next(Mode::Turn);
    }

    /// Its turn is over. The launch that waits first, on a stream with fewer than `most` launches, marks their end.
    pub(super) fn hold(&mut self, now: u64, board: &mut ImaginedBoard, most: usize) {
        if !self.wants(now) {
            return;
        }
        let Some(stream) = self.streams.iter().position(|queue| queue.len() < most) else {
            return;
        };
        if self.proxy.is_marked(stream) {
            return;
        }
        let last = self.streams[stream].back();
        let after = last.map_or(0, |queued| queued.behind.unwrap_or(queued.last));
        if let Some(ticket) = self.record(board, after) {
            self.queued += 1;
            self.streams[stream].push_back(Queued {
                first: ticket,
                last: ticket,
                many: 1,
                measured: Some(self.proxy.mark(now, stream)),
                start_ns: None,
                behind: None,
            });
        }
    }

    /// An event behind other work.
    fn record(&self, board: &mut ImaginedBoard, after: u64) -> Option<u64> {
        let work = Work {
            gpu: 0,
            context: self.context,
            shape: None,
            block_ns: 0,
            transfer: None,
            record: true,
            meeting: (0, 0),
            deps: [after, 0, 0, 0],
        };
        board.submit(self.id, &work).ok()
    }

    /// Launches what the program wants to, at most `most` ahead.
    pub(super) fn launch(&mut self, now: u64, board: &mut ImaginedBoard, most: usize) {
        let depth = match self.plan.way {
            Way::Ahead(depth) => depth,
            Way::Rounds(..) | Way::Bursts(..) => 8,
        };
        let depth = depth.min(most);
        for stream in 0..self.streams.len() {
            while self.streams[stream].len() < depth && self.wants(now) {
                if !self.launch_one(now, board, stream) {
                    return;
                }
                self.left = self.left.saturating_sub(1);
            }
        }
    }

    fn launch_one(&mut self, now: u64, board: &mut ImaginedBoard, stream: usize) -> bool {
        if self.plan.graph && self.warm == 0 && !self.made {
            // Programs wait for their warm-up before they record a graph.
            self.made = !self.is_busy() && self.proxy.flights.is_empty();
            if !self.made {
                return false;
            }
        }
        let count = if self.is_graph() {
            self.plan.kernels.len()
        } else {
            1
        };
        // Includes the records of three events.
        if self.queued + count + 3 > ROWS {
            return false;
        }
        let mut tickets = Vec::new();
        let before = self.streams[stream].back();
        let is_behind = before.is_some();
        let mut after = before.map_or(0, |queued| queued.behind.unwrap_or(queued.last));
        let first = self.next_kernel;
        let (key, fill) = self.known_as(first, count, board.model());
        let measured = self.proxy.launched(now, key, fill, stream, count as u64);
        if measured.is_some() {
            let Some(ticket) = self.record(board, after) else {
                return false;
            };
            after = ticket;
            tickets.push(ticket);
        }
        for i in 0..count {
            let kernel = self.plan.kernels[(first + i) % self.plan.kernels.len()];
            let work = Work {
                gpu: 0,
                context: self.context,
                shape: Some(kernel.shape),
                block_ns: kernel.block_ns,
                transfer: None,
                record: false,
                meeting: (0, 0),
                deps: [after, 0, 0, 0],
            };
            let Ok(ticket) = board.submit(self.id, &work) else {
                return false;
            };
            after = ticket;
            tickets.push(ticket);
            let all = f64::from(board.model().sms);
            let fit = f64::from(resident_blocks(board.model(), &kernel.shape)) * all;
            self.grids.0 += (kernel.shape.blocks as f64 / fit).min(1.0);
            self.grids.1 += 1.0;
        }
        self.next_kernel = (first + count) % self.plan.kernels.len();
        if self.plan.graph && self.next_kernel == 0 {
            self.warm = self.warm.saturating_sub(1);
        }
        if measured.is_some() {
            let Some(ticket) = self.record(board, after) else {
                return false;
            };
            after = ticket;
            tickets.push(ticket);
        }
        let compares =
            measured.is_some() && is_behind && self.proxy.records.wants(self.proxy.launches);
        let behind = compares.then(|| self.record(board, after)).flatten();
        self.queued += tickets.len() + usize::from(behind.is_some());
        if behind.is_some() {
            self.proxy.records.compare();
        }
        self.streams[stream].push_back(Queued {
            first: tickets[0],
            last: after,
            many: tickets.len(),
            measured,
            start_ns: None,
            behind,
        });
        true
    }

    /// Whether the process launches its graph, after the warm-up.
    fn is_graph(&self) -> bool {
        self.made
    }

    fn key(at: usize, kernel: &Kernel) -> Key {
        let threads = u64::from(kernel.shape.threads);
        Key::kernel(0x1000 + at * 64, kernel.shape.blocks, threads)
    }

    /// What the proxy knows about a launch: its key, and the occupancy according to the driver's calculator.
    fn known_as(&self, at: usize, count: usize, model: &Model) -> (Key, Fill) {
        let fill = |kernel: &Kernel| {
            let warps = kernel.shape.warps();
            let resident = resident_blocks(model, &kernel.shape);
            Fill::of_grid(self.sms, resident, kernel.shape.blocks, warps)
        };
        if count == 1 {
            let kernel = &self.plan.kernels[at];
            return (Self::key(at, kernel), fill(kernel));
        }
        let mut kernels = Kernels::default();
        for (at, kernel) in self.plan.kernels.iter().enumerate() {
            let needs = self.proxy.tally.needs(Self::key(at, kernel));
            let warps = u64::from(kernel.shape.warps()) * kernel.shape.blocks;
            kernels.add(fill(kernel), warps, needs, self.sms);
        }
        let fill = kernels.fill().unwrap_or_default();
        (Key::graph(0x9000), fill)
    }

    /// Processes what the board has finished.
    pub(super) fn collect(&mut self, now: u64, finished: &[Finished]) {
        for over in finished {
            self.queued -= usize::from(self.proxy.compare(over.ticket, over.end_ns));
            for stream in &mut self.streams {
                let Some(queued) = stream.front_mut() else {
                    continue;
                };
                if over.ticket == queued.first {
                    // Ends with the first event, if there is one.
                    queued.start_ns = over.end_ns;
                }
                if over.ticket == queued.last {
                    let (start, end) = (queued.start_ns, over.end_ns.unwrap_or(over.start_ns));
                    if let Some(id) = queued.measured {
                        let start = start.unwrap_or(over.start_ns).min(end);
                        self.proxy.over(id, start, end);
                    }
                    self.proxy
                        .behind
                        .extend(queued.behind.map(|next| (next, end)));
                    self.queued -= queued.many;
                    stream.pop_front();
                }
            }
        }
        self.proxy.land(now);
    }

    /// Contents of the usage page.
    pub(super) fn reading(&self) -> Reading {
        self.proxy.reading()
    }

    /// Mean fraction of the GPU that its grids fill: blocks divided by the blocks that fit.
    pub(super) fn grid_fraction(&self) -> f64 {
        self.grids.0 / self.grids.1.max(1.0)
    }
}

/// A stream's number; the program has one thread.
fn place(stream: usize) -> u64 {
    stream as u64 + 1
}

impl Proxy {
    fn launched(
        &mut self,
        now: u64,
        key: Key,
        fill: Fill,
        stream: usize,
        kernels: u64,
    ) -> Option<u64> {
        self.launches += kernels;
        let place = place(stream);
        let step = self.tally.pass(self.word, key, true, place);
        if step == Step::Go {
            return None;
        }
        if self.tally.known(key).is_none() {
            self.tally.know(key, fill);
        }
        let known = self.tally.known(key).is_some_and(|(_, ns)| ns.is_some());
        let in_turns = self.word.mode() != Mode::Free;
        let measured = match in_turns {
            true => step == Step::Stop && self.flights.len() < MARKERS,
            false => self.flights.len() < MEASURED && self.timeline.wants(place, known),
        };
        if !measured {
            let owed = self.tally.add_unmeasured(key, place);
            self.timeline.left_out(place, owed.map(|fill| (key, fill)));
            return None;
        }
        if in_turns && !self.tally.is_under(self.word, place) {
            self.timeline.waited(place);
        }
        let (fill, ns) = self.tally.known(key).unwrap_or_default();
        let before = self.tally.begin(place);
        self.timeline.issued(now, place, before, Some(fill), ns);
        if in_turns {
            let grant = match self.tally.expected(key) {
                Some(expected) => CHUNK_NS.saturating_sub(expected.ns),
                None => 0,
            };
            self.tally.grant(self.word, place, grant);
        }
        Some(self.fly(now, place, Some(key)))
    }

    /// Whether nothing was launched on a stream behind what is measured.
    fn is_marked(&self, stream: usize) -> bool {
        self.tally.is_marked(place(stream))
    }

    /// An event behind the launches of a stream.
    fn mark(&mut self, now: u64, stream: usize) -> u64 {
        let place = place(stream);
        self.tally.grant(self.word, place, 0);
        let before = self.tally.take(place);
        self.timeline.waited(place);
        self.timeline.issued(now, place, before, None, None);
        self.fly(now, place, None)
    }

    fn fly(&mut self, now: u64, place: u64, key: Option<Key>) -> u64 {
        self.next += 1;
        self.flights.push_back(Flight {
            id: self.next,
            place,
            key,
            ran: None,
        });
        // Behind other work of its stream, the end of that will tell soon enough.
        if self.flights.iter().filter(|f| f.place == place).count() == 1 {
            self.say(now);
        }
        self.next
    }

    /// Whether this is an event right behind another.
    fn compare(&mut self, ticket: u64, end_ns: Option<u64>) -> bool {
        let Some(at) = self.behind.iter().position(|(next, _)| *next == ticket) else {
            return false;
        };
        let (_, before_ns) = self.behind.remove(at);
        let took_ns = end_ns.map(|end_ns| end_ns.saturating_sub(before_ns));
        self.records.saw(took_ns);
        true
    }

    fn over(&mut self, id: u64, start_ns: u64, end_ns: u64) {
        if let Some(flight) = self.flights.iter_mut().find(|flight| flight.id == id) {
            flight.ran = Some((start_ns, end_ns));
        }
    }

    /// The watcher checks all streams.
    fn land(&mut self, now: u64) {
        let seen = |ran: Option<(u64, u64)>| ran.filter(|(_, end)| end + WAKE_NS <= now);
        while let Some(at) = self.flights.iter().position(|f| seen(f.ran).is_some()) {
            let Some(flight) = self.flights.remove(at) else {
                return;
            };
            let Some((start, end)) = flight.ran else {
                return;
            };
            let start = end - self.records.without(end - start);
            let takes = |key| self.tally.known(key).and_then(|(_, ns)| ns);
            let ran = Some((start, end));
            self.timeline
                .given(flight.place, self.tally.given(flight.place));
            let needs = flight.key.and_then(|key| self.tally.needs(key));
            let needs = needs.map(|load| load.busy_ns);
            let alone = self
                .timeline
                .landed(now, flight.place, ran, self.sms, needs, takes);
            if let Some((key, alone)) = flight.key.zip(alone) {
                self.tally.learn(key, end - start, alone);
                self.tally.expect(key, end - start, Measure::Alone);
            }
            self.say(now);
        }
    }

    fn say(&mut self, now: u64) {
        let (load, current) = self.timeline.tell(now);
        self.said = (now, load, current);
    }

    fn reading(&self) -> Reading {
        let (since_ns, done, current) = self.said;
        Reading {
            done: Times {
                busy_ns: done.busy_ns as f64,
                sm_ns: done.sm_ns as f64,
                warp_ns: done.warp_ns as f64,
            },
            running: current.map(|current| Running {
                since_ns,
                expected_ns: current.expected_ns,
                sms: current.fill.sms_milli as f64 / 1000.0,
                warps: current.fill.warps_milli as f64 / 1000.0,
            }),
            launches: self.launches,
            unmeasured: 0,
        }
    }
}
