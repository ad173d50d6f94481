//! The gates under test: the real one, and two like those of other systems.

use gshare_gate::{
    Arbiter, CHUNK_NS, Claim, Fill, Flags, Frame, Key, Measure, Member, Order, Rest, Step, Tally,
    Verdict as Answer, View,
};

use super::{MS, Mark, Sim};

pub(crate) enum Verdict {
    Go { marked: bool },
    Wait { until: u64 },
}

pub(crate) trait Gate {
    fn ask(
        &mut self,
        sim: &mut Sim,
        process: usize,
        thread: usize,
        kernel: u64,
        ticket: &mut Option<u64>,
    ) -> Verdict;
    fn watch(&mut self, _sim: &mut Sim, _process: usize) {}
    fn arbitrate(&mut self, _sim: &mut Sim) {}
    fn finished(&mut self, _sim: &mut Sim, _process: usize) {}
    fn died(&mut self, _sim: &mut Sim, _process: usize) {}
    fn silence(&mut self) {}
    fn detach(&mut self, _sim: &mut Sim, _claim: usize, _detached: bool) {}
}

/// No gate at all.
pub(crate) struct Open;

impl Gate for Open {
    fn ask(&mut self, _: &mut Sim, _: usize, _: usize, _: u64, _: &mut Option<u64>) -> Verdict {
        Verdict::Go { marked: false }
    }
}

/// A bucket of GPU time, checked before a launch and never in debt; filled every 10 ms. With `private`, each process
/// has a bucket of its own with the claim's whole share.
pub(crate) struct Bucket {
    pub(crate) shares: Vec<f64>,
    pub(crate) private: bool,
    pub(crate) debt: bool,
    levels: Vec<(f64, u64)>,
}

impl Bucket {
    pub(crate) fn new(shares: &[f64], private: bool, debt: bool) -> Bucket {
        Bucket {
            shares: shares.to_vec(),
            private,
            debt,
            levels: vec![(0.0, 0); 64],
        }
    }
}

impl Gate for Bucket {
    fn ask(
        &mut self,
        sim: &mut Sim,
        p: usize,
        _: usize,
        kernel: u64,
        _: &mut Option<u64>,
    ) -> Verdict {
        let claim = sim.processes[p].claim;
        let share = self.shares[claim];
        let (level, tick) = &mut self.levels[if self.private { p } else { claim }];
        let now = sim.now / (10 * MS);
        if *tick == 0 {
            *tick = now;
        }
        if now > *tick {
            let fill = (now - *tick) as f64 * share * (10 * MS) as f64;
            *level = (*level + fill).min(share * (20 * MS) as f64);
            *tick = now;
        }
        if *level <= 0.0 {
            return Verdict::Wait {
                until: (now + 1) * 10 * MS,
            };
        }
        *level -= kernel as f64;
        if !self.debt {
            *level = level.max(0.0);
        }
        Verdict::Go { marked: false }
    }
}

#[derive(Default)]
struct Gated {
    member: Member,
    tally: Tally,
    slot: Slot,
}

/// A process's words in the shared page.
#[derive(Default)]
struct Slot {
    waiting: bool,
    busy: bool,
    expected_ns: u64,
    used_ns: u64,
    held_ns: u64,
    demand_ns: u64,
    waited_ns: u64,
    said_ns: u64,
    since_ns: u64,
    stamp: u64,
}

/// A claim's request.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Asked {
    pub(crate) request: u32,
    pub(crate) limit: u32,
    pub(crate) tier: u8,
    pub(crate) weight: u32,
    /// It holds other GPUs too.
    pub(crate) spread: bool,
}

/// The gate of this crate, connected as in the library and the service.
pub(crate) struct Turns {
    pub(crate) asked: Vec<Asked>,
    detached: Vec<bool>,
    gated: Vec<Gated>,
    pages: Vec<Order>,
    beat_ns: u64,
    /// Processes of the first claim on its other GPU.
    pub(crate) elsewhere: Vec<gshare_gate::Process>,
    pub(crate) elsewhere_ns: Option<u64>,
    pub(crate) arbiter: Arbiter,
    pub(crate) silent: bool,
    /// The service is gone, and the members see it.
    pub(crate) dead: bool,
    pub(crate) waited_ns: Vec<u64>,
    /// The claim whose kernel does not end, and since when.
    pub(crate) stuck: Option<(u64, u64)>,
}

impl Turns {
    pub(crate) fn new(sim: &Sim, asked: &[Asked]) -> Turns {
        let page = |(id, _)| Order {
            id: id as u64,
            word: gshare_gate::Word::default(),
            turn_begins_ns: 0,
            turn_ends_ns: 0,
            ahead_ns: 0,
            flags: Flags::NONE,
        };
        Turns {
            asked: asked.to_vec(),
            detached: vec![false; asked.len()],
            gated: sim.processes.iter().map(|_| Gated::default()).collect(),
            pages: asked.iter().enumerate().map(page).collect(),
            beat_ns: 0,
            elsewhere: Vec::new(),
            elsewhere_ns: None,
            arbiter: Arbiter::default(),
            silent: false,
            dead: false,
            waited_ns: vec![0; sim.processes.len()],
            stuck: None,
        }
    }

    fn view(&self, sim: &Sim, p: usize) -> View {
        let claim = sim.processes[p].claim;
        let part = |permille: u32| u64::from(permille) * Frame::LENGTH_NS / 1000;
        let others = (0..self.gated.len())
            .filter(|&o| o != p && sim.processes[o].claim == claim)
            .map(|o| self.gated[o].slot.used_ns)
            .sum();
        View {
            word: self.pages[claim].word,
            turn_begins_ns: self.pages[claim].turn_begins_ns,
            turn_ends_ns: self.pages[claim].turn_ends_ns,
            ahead_ns: self.pages[claim].ahead_ns,
            flags: self.pages[claim].flags,
            beat_ns: self.beat_ns,
            alive: !self.dead,
            frame: Frame {
                offset_ns: self.asked[..claim].iter().map(|a| part(a.request)).sum(),
                window_ns: part(self.asked[claim].request),
            },
            others_used_ns: others,
        }
    }

    /// The figures of a claim's processes.
    pub(crate) fn said(&self, sim: &Sim, claim: usize) -> Vec<gshare_gate::Process> {
        let mine = (0..self.gated.len()).filter(|&p| sim.processes[p].claim == claim);
        let there = mine.filter(|&p| !sim.processes[p].dead);
        there
            .map(|p| {
                let slot = &self.gated[p].slot;
                gshare_gate::Process {
                    slot: p,
                    gpu: 0,
                    waiting: slot.waiting,
                    busy: slot.busy,
                    expected_ns: slot.expected_ns,
                    used_ns: slot.used_ns,
                    held_ns: slot.held_ns,
                    demand_ns: slot.demand_ns,
                    waited_ns: slot.waited_ns,
                    said_ns: slot.said_ns,
                    since_ns: slot.since_ns,
                    launches: sim.processes[p].launches,
                    stamp: slot.stamp,
                }
            })
            .collect()
    }

    fn publish(&mut self, sim: &mut Sim, p: usize) {
        let signals = self.gated[p].member.signals(sim.now);
        let slot = &mut self.gated[p].slot;
        *slot = Slot {
            waiting: signals.waiting,
            busy: signals.busy,
            expected_ns: signals.expected_ns,
            used_ns: signals.used_ns,
            held_ns: signals.held_ns,
            demand_ns: signals.demand_ns,
            waited_ns: signals.waited_ns,
            said_ns: signals.said_ns,
            since_ns: signals.since_ns,
            stamp: slot.stamp + 1,
        };
        self.waited_ns[p] = signals.waited_ns;
        if signals.knock {
            sim.knock();
        }
    }
}

impl Gate for Turns {
    fn ask(
        &mut self,
        sim: &mut Sim,
        p: usize,
        t: usize,
        kernel: u64,
        ticket: &mut Option<u64>,
    ) -> Verdict {
        if self.detached[sim.processes[p].claim] {
            // Its work on the GPU ends first, then its memory goes; launches wait for its return.
            return Verdict::Wait {
                until: sim.now + 1000 * MS,
            };
        }
        let view = self.view(sim, p);
        let key = Key::kernel(kernel as usize, 132, 256);
        let stream = t + 1;
        let g = &mut self.gated[p];
        let place = gshare_gate::place(stream, (t + 1) << 8);
        if ticket.is_none() && g.tally.pass(view.word, key, false, place) == Step::Go {
            return Verdict::Go { marked: false };
        }
        if g.tally.known(key).is_none() {
            g.tally.know(key, Fill::default());
        }
        let expected = g.tally.expected(key);
        let turn_ns = view.turn_begins_ns..view.turn_ends_ns;
        (g.member).adopt(sim.now, view.word, turn_ns, view.flags, &g.tally);
        g.member.refund(g.tally.take_grant(place));
        let is_marked = g.tally.is_marked(place);
        match g.member.ask(sim.now, &view, key, expected, ticket) {
            Answer::Free => Verdict::Go { marked: false },
            Answer::Go { grant_ns } => {
                g.member.refund(g.tally.grant(view.word, place, grant_ns));
                assert!(grant_ns <= CHUNK_NS);
                let marked = g.member.mark(sim.now, stream as u64, Some(key), grant_ns);
                g.member.returned();
                let waiters = g.member.has_waiters();
                self.publish(sim, p);
                if waiters {
                    sim.wake_claim(sim.processes[p].claim);
                }
                Verdict::Go { marked }
            }
            Answer::Wait { until_ns } => {
                // The stream's launches since its last event are covered before it sleeps.
                if !is_marked {
                    g.member.refund(g.tally.grant(view.word, place, 0));
                    if g.member.mark(sim.now, stream as u64, None, 0) {
                        sim.record(t);
                    }
                }
                self.publish(sim, p);
                Verdict::Wait { until: until_ns }
            }
        }
    }

    fn watch(&mut self, sim: &mut Sim, p: usize) {
        let page = self.pages[sim.processes[p].claim];
        let g = &mut self.gated[p];
        let turn_ns = page.turn_begins_ns..page.turn_ends_ns;
        (g.member).adopt(sim.now, page.word, turn_ns, page.flags, &g.tally);
        let over = sim.take_over(p);
        let landed = !over.is_empty();
        for mark in over {
            let Mark {
                thread,
                is_pair,
                ran,
                ..
            } = mark;
            let elapsed = ran.filter(|_| is_pair).map(|(start, end)| end - start);
            let ran = ran.map(|(start, end)| (if is_pair { start } else { end }, end));
            let stream = thread as u64 + 1;
            if let Some(learnt) = g.member.done(sim.now, stream, ran, elapsed) {
                let how = if learnt.alone {
                    Measure::Alone
                } else {
                    Measure::Crowd
                };
                g.tally.expect(learnt.key, learnt.ns, how);
            }
        }
        for (thread, started) in sim.heads_of(p) {
            g.member.look(sim.now, thread as u64 + 1, started);
        }
        let launches = sim.processes[p].launches;
        let unused = g.tally.unused_ns();
        let awaited = sim.is_awaited(p);
        let rest = g.member.rest(sim.now, launches, unused, awaited);
        if rest == Rest::Idle && g.member.is_told_of() {
            let unused = g.tally.take_grants();
            g.member.refund(unused);
        }
        let waiters = g.member.has_waiters();
        match rest {
            Rest::At(time) => {
                let late = sim.latency();
                sim.watcher_at(p, time + late);
            }
            // Ends of events wake the watcher; missing ends do not.
            Rest::Marker if sim.has_blocked => sim.watcher_at(p, sim.now + MS),
            Rest::Marker | Rest::Idle => {}
        }
        self.publish(sim, p);
        if waiters && landed {
            sim.wake_claim(sim.processes[p].claim);
        }
    }

    fn arbitrate(&mut self, sim: &mut Sim) {
        if self.silent {
            return;
        }
        let processes: Vec<Vec<_>> = (0..self.asked.len())
            .map(|claim| self.said(sim, claim))
            .collect();
        let claims: Vec<Claim<'_>> = self
            .asked
            .iter()
            .zip(&processes)
            .enumerate()
            .map(|(id, (asked, processes))| Claim {
                id: id as u64,
                request_permille: asked.request,
                limit_permille: asked.limit,
                tier: asked.tier,
                weight_milli: asked.weight,
                is_gated: !self.detached[id],
                is_spread: asked.spread,
                elsewhere: if id == 0 { &self.elsewhere } else { &[] },
                elsewhere_ns: self.elsewhere_ns.filter(|_| id == 0),
                word: self.pages[id].word,
                processes,
            })
            .collect();
        let mut orders = Vec::new();
        let mut alive = |_: u64, p: usize| !sim.processes[p].stopped && !sim.processes[p].dead;
        let next = self.arbiter.step(sim.now, &claims, &mut alive, &mut orders);
        let works = |c: &Claim<'_>| -> Vec<_> {
            let here = c.processes.iter().filter(|p| p.gpu == 0);
            here.map(|p| (c.id, p.since_ns)).collect()
        };
        self.stuck = Arbiter::stuck(sim.now, claims.iter().flat_map(works));
        self.beat_ns = sim.now;
        for order in orders {
            let claim = order.id as usize;
            self.pages[claim] = order;
            if order.word.mode() != gshare_gate::Mode::Closed {
                sim.wake_claim(claim);
            }
        }
        if let Some(next) = next {
            sim.arbiter_at(next);
        }
    }

    fn died(&mut self, sim: &mut Sim, _: usize) {
        sim.knock();
    }

    fn silence(&mut self) {
        self.silent = true;
    }

    fn detach(&mut self, sim: &mut Sim, claim: usize, detached: bool) {
        self.detached[claim] = detached;
        sim.knock();
        if !detached {
            sim.wake_claim(claim);
        }
    }
}
