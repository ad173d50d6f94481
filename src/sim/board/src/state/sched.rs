//! Fluid, lazy time: kernels advance only when the board is read, exactly up to then.
//!
//! On one GPU the contexts that have work take turns. With slices in the preset, a context has the GPU until its slice
//! ends or its work runs out. A slice goes on while no other context has work, and a switch takes time. Without slices
//! they are infinitely short, so each of `n` contexts advances at 1/n. During its slice a context has all SMs: its
//! running kernels place their blocks in the order in which they began ([`crate::room`]), and a kernel of which fewer
//! blocks fit than it has runs slower in proportion.
//!
//! The clients of an MPS server share one slice, in which each has its own SMs. If these are more than the GPU has, the
//! clients run slower in proportion.
//!
//! Copies run beside the kernels of all contexts, on engines of their own. Copies on one route share it evenly.
//!
//! Kernels of a meeting advance while all of them are on their GPUs. They occupy these while they wait.

use super::{
    DONE, FAILED, FREE, Gpu, Kernel, MARK_NS, MARKS, MAX_DEPS, MAX_KERNELS, MAX_PENDING, Mark,
    PENDING, RUNNING, State,
};
use crate::cost::{Shape, Transfer, phases, resident_blocks};
use crate::error::BoardError;
use crate::nature::{self, Felt, Habit};
use crate::room::{Floor, Place, Room};

/// One piece of work for a stream.
#[derive(Debug, Clone, Copy)]
pub struct Work {
    pub gpu: usize,
    /// The context, from [`Board::add_context`](crate::Board::add_context).
    pub context: u64,
    /// Shape of a kernel; `None` for a marker, which takes no time and joins its dependencies.
    pub shape: Option<Shape>,
    /// Duration of one block in nanoseconds.
    pub block_ns: u64,
    /// A copy in place of a kernel.
    pub transfer: Option<Transfer>,
    /// An event record in place of a kernel or copy; its duration comes from the preset.
    pub record: bool,
    /// Meeting number (0: none) and number of kernels. The kernel advances only while all of them are on their GPUs.
    pub meeting: (u64, u64),
    /// Tickets of work that must end first; 0 for none.
    pub deps: [u64; MAX_DEPS],
}

/// What a running kernel gets now.
struct Share {
    row: usize,
    /// Progress per nanosecond of the phase's own length.
    rate: f64,
    /// SMs with a block and none of an earlier kernel of its context, averaged over the slices.
    sms: f64,
    /// The part of the SMs with a block of it during its slice.
    part: f64,
    /// Resident warps, averaged over the slices.
    warps: f64,
    /// The part of the time in which its context is on the GPU.
    slice: f64,
}

/// A running kernel; in this order they get SMs.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
struct Running {
    gpu: u64,
    group: u64,
    context: u64,
    start_ns: u64,
    ticket: u64,
    row: usize,
}

impl Kernel {
    fn phase(&self) -> Option<usize> {
        (0..2).find(|&p| self.phase_ns[p] > 0.0 && self.phase_blocks[p] > 0)
    }

    /// Length of a phase until something changes.
    fn left_ns(&self, phase: usize) -> f64 {
        match self.phase_ns[phase] - self.given_ns {
            more if phase == 0 && more > 0.0 => more,
            _ => self.phase_ns[phase],
        }
    }
}

impl State {
    /// Queues a kernel or a marker; returns its ticket.
    pub(crate) fn submit(&mut self, owner: u64, s: &Work) -> Result<u64, BoardError> {
        self.check_gpu(s.gpu)?;
        self.check_fault(owner, s.gpu)?;
        let model = self.gpus[s.gpu].model();
        let sms = self.sms_of(owner, s.gpu as u64);
        let held = self.kernels().iter().filter(|k| k.state != FREE);
        if held.filter(|k| k.owner == owner).count() >= MAX_PENDING {
            return Err(BoardError::Full {
                what: "rows for kernels of one process",
                rows: MAX_PENDING,
            });
        }
        let (mut resident, mut phase, mut needs) = (0, None, Room::default());
        if let Some(shape) = &s.shape {
            resident = resident_blocks(model, shape);
            needs = Room::of_block(model, shape)
                .filter(|_| resident > 0)
                .ok_or(BoardError::TooLarge)?;
            phase = Some(phases(sms, resident, shape.blocks, s.block_ns.max(1)));
        }
        if let Some(transfer) = &s.transfer {
            phase = Some(phases(1, 1, 1, transfer.ns.max(1)));
        }
        if s.record && self.head.preset.record_ns > 0 {
            phase = Some(phases(1, 1, 1, self.head.preset.record_ns));
        }
        let free = self.kernels().iter().position(|k| k.state == FREE);
        let row = free.unwrap_or(self.head.kernel_hwm());
        if row >= MAX_KERNELS {
            return Err(BoardError::Full {
                what: "rows for kernels",
                rows: MAX_KERNELS,
            });
        }
        self.use_row(owner, s.gpu)?.launched += u64::from(s.shape.is_some());
        let ticket = self.fresh_id();
        // A marker is not a command to the GPU.
        let way = match phase {
            Some(_) => self.head.preset.launch.draw(ticket),
            None => 0,
        };
        let mut habit = Habit::default();
        if let (Some(shape), Some(plain)) = (&s.shape, phase) {
            let (drawn, bent) = nature::bend(self.head.nature, owner, ticket, shape, plain);
            (habit, phase) = (drawn, Some(bent));
        }
        let mut given_ns = 0.0;
        if let (Some(shape), Some([full, _])) = (&s.shape, phase) {
            let wave = u64::from(sms) * u64::from(resident);
            if shape.blocks.is_multiple_of(wave) {
                given_ns = full.ns / (shape.blocks / wave) as f64;
            }
        }
        self.kernels[row] = Kernel {
            state: PENDING,
            ticket,
            owner,
            gpu: s.gpu as u64,
            context: s.context,
            deps: s.deps,
            needs,
            phase_blocks: phase.map_or([0; 2], |p| p.map(|p| p.blocks)),
            phase_ns: phase.map_or([0.0; 2], |p| p.map(|p| p.ns)),
            given_ns,
            route: s.transfer.map_or(0, |t| t.route as u64),
            bytes: s.transfer.map_or(0, |t| t.bytes),
            ready_ns: self.head.now_ns.saturating_add(way),
            meeting: [s.meeting.0, s.meeting.1],
            demand: habit.demand,
            cache: habit.cache,
            start_ns: 0,
            end_ns: 0,
        };
        self.head.kernel_hwm = self.head.kernel_hwm.max(row as u64 + 1);
        self.promote();
        Ok(ticket)
    }

    /// Fails the kernels that `which` selects, at once.
    pub(crate) fn cancel(&mut self, which: impl Fn(&Kernel) -> bool) {
        let now = self.head.now_ns;
        for k in self.kernels_mut() {
            if (k.state == PENDING || k.state == RUNNING) && which(k) {
                k.state = FAILED;
                k.end_ns = now;
            }
        }
    }

    /// Takes the finished work of a process off the table: ticket, start and end (`None`: failed).
    pub(crate) fn collect(&mut self, owner: u64) -> Vec<(u64, u64, Option<u64>)> {
        let mut done = Vec::new();
        for k in self.kernels_mut() {
            if k.owner == owner && (k.state == DONE || k.state == FAILED) {
                let end = (k.state == DONE).then_some(k.end_ns);
                done.push((k.ticket, k.start_ns, end));
                k.state = FREE;
            }
        }
        if !done.is_empty() {
            self.trim();
        }
        // Tickets ascend, so work comes after its dependencies.
        done.sort_unstable();
        done
    }

    pub(crate) fn is_live(&self, ticket: u64) -> bool {
        self.kernels()
            .iter()
            .any(|k| k.ticket == ticket && (k.state == PENDING || k.state == RUNNING))
    }

    /// Starts work whose dependencies are over; markers finish at once.
    fn promote(&mut self) {
        let now = self.head.now_ns;
        if !self.kernels().iter().any(|k| k.state == PENDING) {
            return;
        }
        loop {
            let mut live: Vec<u64> = self
                .kernels()
                .iter()
                .filter(|k| k.state == PENDING || k.state == RUNNING)
                .map(|k| k.ticket)
                .collect();
            live.sort_unstable();
            let mut marker_done = false;
            for k in self.kernels_mut() {
                if k.state != PENDING {
                    continue;
                }
                for d in &mut k.deps {
                    if *d != 0 && live.binary_search(d).is_err() {
                        *d = 0;
                    }
                }
                if k.deps == [0; MAX_DEPS] && k.ready_ns <= now {
                    k.start_ns = now;
                    k.state = RUNNING;
                    if k.phase().is_none() {
                        k.state = DONE;
                        k.end_ns = now;
                        marker_done = true;
                    }
                }
            }
            if !marker_done {
                return;
            }
        }
    }

    /// SMs that the kernels of a process can use on a GPU.
    fn sms_of(&self, owner: u64, gpu: u64) -> u32 {
        let row = self
            .uses()
            .iter()
            .find(|u| u.owner == owner && u.gpu == gpu && u.is_mps_client());
        let index = usize::try_from(gpu).unwrap_or(usize::MAX);
        let all = self.gpus().get(index).map_or(0, |g| g.model().sms);
        match row.map(|u| u.sms as u32) {
            Some(sms @ 1..) => sms.min(all),
            _ => all,
        }
    }

    /// The contexts that share a slice: all clients of an MPS server, else each alone.
    fn slice_group(&self, k: &Kernel) -> u64 {
        let row = self
            .uses()
            .iter()
            .find(|u| u.owner == k.owner && u.gpu == k.gpu);
        row.filter(|u| u.mps != 0).map_or(k.context, |u| u.mps)
    }

    /// The current share of each running kernel, on all GPUs.
    fn shares(&self) -> Vec<Share> {
        let mut rows: Vec<Running> = self
            .kernels()
            .iter()
            .enumerate()
            .filter(|(_, k)| k.state == RUNNING && k.route == 0)
            .map(|(row, k)| Running {
                gpu: k.gpu,
                group: self.slice_group(k),
                context: k.context,
                start_ns: k.start_ns,
                ticket: k.ticket,
                row,
            })
            .collect();
        rows.sort_unstable();
        let mut shares = Vec::with_capacity(rows.len());
        for on_gpu in rows.chunk_by(|a, b| a.gpu == b.gpu) {
            let index = usize::try_from(on_gpu[0].gpu).unwrap_or(usize::MAX);
            let Some(gpu) = self.gpus().get(index) else {
                continue;
            };
            let groups = on_gpu.chunk_by(|a, b| a.group == b.group).count().max(1);
            let lost = match groups {
                1 => 0.0,
                _ => nature::lost_to_switches(self.head.nature),
            };
            let slice = match self.head.preset.slice_ns {
                0 => (1.0 - lost) / groups as f64,
                _ => 1.0,
            };
            let all = f64::from(gpu.model().sms);
            for in_group in on_gpu.chunk_by(|a, b| a.group == b.group) {
                let has_slice =
                    gpu.turn == in_group[0].group && self.head.now_ns >= gpu.turn_since_ns;
                if self.head.preset.slice_ns > 0 && !has_slice {
                    continue;
                }
                let first = shares.len();
                for of_context in in_group.chunk_by(|a, b| a.context == b.context) {
                    self.share_of_context(of_context, gpu, slice, &mut shares);
                }
                // Partitions may overlap: then each gets less than its size.
                let wanted: f64 = shares[first..].iter().map(|s| s.sms / slice).sum();
                if wanted > all {
                    for share in &mut shares[first..] {
                        let part = all / wanted;
                        share.rate *= part;
                        share.sms *= part;
                        share.part *= part;
                        share.warps *= part;
                    }
                }
                if self.head.nature != 0 {
                    self.slow_down(&mut shares[first..], groups > 1);
                }
            }
        }
        self.wait_for_meetings(&mut shares);
        self.share_routes(&mut shares);
        shares
    }

    /// Kernels of a meeting are as fast as the slowest of them; while one is missing, the others stay resident without
    /// progress.
    fn wait_for_meetings(&self, shares: &mut [Share]) {
        let meeting = |s: &Share| self.kernels[s.row].meeting;
        let there: Vec<(u64, f64)> = shares.iter().map(|s| (meeting(s)[0], s.rate)).collect();
        for share in shares.iter_mut() {
            let [number, many] = meeting(share);
            if number == 0 {
                continue;
            }
            let met = there.iter().filter(|other| other.0 == number);
            let slowest = met.clone().map(|other| other.1).fold(share.rate, f64::min);
            let is_complete = met.count() as u64 >= many;
            share.rate = if is_complete { slowest } else { 0.0 };
        }
    }

    /// Length of a slice on a GPU. Each GPU has its own timer, so the slices of two GPUs drift: two processes with
    /// meetings would otherwise wait for each other for ever, each on the GPU on which the other is not.
    fn slice_ns(&self, gpu: u64) -> u64 {
        let slice = self.head.preset.slice_ns;
        slice.saturating_add(gpu.saturating_mul(slice / 256))
    }

    /// Gives the slice of each GPU to the next context if it is over; returns the time of the next slice end.
    fn take_turns(&mut self) -> u64 {
        let (now, mut next) = (self.head.now_ns, u64::MAX);
        if self.head.preset.slice_ns == 0 {
            return next;
        }
        let mut waiting: Vec<(u64, u64)> = self
            .kernels()
            .iter()
            .filter(|k| k.state == RUNNING && k.route == 0)
            .map(|k| (k.gpu, self.slice_group(k)))
            .collect();
        waiting.sort_unstable();
        waiting.dedup();
        let switch = self.head.preset.switch;
        for of_gpu in waiting.chunk_by(|a, b| a.0 == b.0) {
            let slice = self.slice_ns(of_gpu[0].0);
            let gpu = usize::try_from(of_gpu[0].0).ok();
            let Some(g) = gpu.and_then(|gpu| self.gpus.get_mut(gpu)) else {
                continue;
            };
            if now >= g.turn_since_ns {
                let has_work = of_gpu.iter().any(|w| w.1 == g.turn);
                let passed = now - g.turn_since_ns;
                let is_over = passed > 0 && passed.is_multiple_of(slice);
                if !has_work || (is_over && of_gpu.len() > 1) {
                    let after = of_gpu.iter().find(|w| w.1 > g.turn);
                    let takes = match g.turn {
                        // The first context has no predecessor to switch from.
                        0 => 0,
                        _ => {
                            g.switches += 1;
                            switch.draw(g.switches)
                        }
                    };
                    (g.turn, g.turn_since_ns) =
                        (after.unwrap_or(&of_gpu[0]).1, now.saturating_add(takes));
                }
            }
            if now < g.turn_since_ns {
                next = next.min(g.turn_since_ns);
            } else if of_gpu.len() > 1 {
                let slices = (now - g.turn_since_ns) / slice + 1;
                next = next.min(g.turn_since_ns.saturating_add(slices.saturating_mul(slice)));
            }
        }
        next
    }

    fn share_routes(&self, shares: &mut Vec<Share>) {
        let copies = self.kernels().iter().enumerate();
        let mut rows: Vec<(u64, u64, usize)> = copies
            .filter(|(_, k)| k.state == RUNNING && k.route != 0)
            .map(|(i, k)| (k.gpu, k.route, i))
            .collect();
        rows.sort_unstable();
        for on_route in rows.chunk_by(|a, b| (a.0, a.1) == (b.0, b.1)) {
            let part = 1.0 / on_route.len() as f64;
            shares.extend(on_route.iter().map(|&(.., row)| Share {
                row,
                rate: part,
                sms: 0.0,
                part: 0.0,
                warps: 0.0,
                slice: part,
            }));
        }
    }

    /// Applies the nature to the kernels on a GPU during one slice.
    fn slow_down(&self, shares: &mut [Share], turns: bool) {
        let felt = |share: &Share| {
            let k = &self.kernels[share.row];
            Felt {
                habit: Habit {
                    demand: k.demand,
                    cache: k.cache,
                },
                owner: k.owner,
                part: share.part,
            }
        };
        let felt: Vec<Felt> = shares.iter().map(felt).collect();
        for (share, factor) in shares.iter_mut().zip(nature::slowed(&felt, turns)) {
            share.rate *= factor;
        }
    }

    fn share_of_context(
        &self,
        of_context: &[Running],
        gpu: &Gpu,
        slice: f64,
        shares: &mut Vec<Share>,
    ) {
        let Some(first) = of_context.first() else {
            return;
        };
        let sms = u64::from(self.sms_of(self.kernels[first.row].owner, first.gpu));
        let mut floor = Floor::new(sms, Room::of_sm(gpu.model()));
        let mut is_given_out = true;
        for &Running { row, .. } in of_context {
            let k = &self.kernels[row];
            let Some(p) = k.phase() else { continue };
            let mut share = Share {
                row,
                rate: slice,
                sms: 0.0,
                part: 0.0,
                warps: 0.0,
                slice,
            };
            // A record needs no SM.
            if k.needs != Room::default() {
                let blocks = k.phase_blocks[p];
                let place = if is_given_out {
                    floor.place(blocks, k.needs)
                } else {
                    Place::default()
                };
                is_given_out &= (p == 1 || k.phase_ns[0] <= k.given_ns) && place.blocks == blocks;
                share.rate = slice * place.blocks as f64 / blocks as f64;
                share.sms = slice * place.fresh as f64;
                share.part = place.sms as f64 / f64::from(gpu.model().sms);
                share.warps = slice * place.blocks as f64 * f64::from(k.needs.warps);
            }
            shares.push(share);
        }
    }

    /// Advances the board to `to` (nanoseconds); a time in the past changes nothing.
    pub(crate) fn advance(&mut self, to: u64) {
        self.run(to, None);
    }

    /// When this work will end if nothing else changes, or `horizon` if that is earlier; `None` if it is over.
    pub(crate) fn predict(&self, ticket: u64, horizon: u64, scratch: &mut State) -> Option<u64> {
        if !self.is_live(ticket) {
            return None;
        }
        scratch.clone_used(self);
        scratch.run(horizon, Some(ticket));
        Some(scratch.head.now_ns)
    }

    fn run(&mut self, to: u64, stop: Option<u64>) {
        loop {
            self.promote();
            if self.head.now_ns >= to || stop.is_some_and(|t| !self.is_live(t)) {
                return;
            }
            let next_turn = self.take_turns();
            let shares = self.shares();
            let now = self.head.now_ns;
            let mut until = to.min(next_turn);
            let on_their_way = self.kernels().iter().filter(|k| k.state == PENDING);
            for k in on_their_way.filter(|k| k.deps == [0; MAX_DEPS]) {
                until = until.min(k.ready_ns);
            }
            for s in &shares {
                let k = &self.kernels[s.row];
                if let Some(p) = k.phase().filter(|_| s.rate > 0.0) {
                    let left = (k.left_ns(p) / s.rate).ceil().max(1.0);
                    until = until.min(now.saturating_add(left as u64));
                }
            }
            // Only samples of the last second are needed, so those of longer gaps are not stored.
            let boundary = (now / MARK_NS + 1).saturating_mul(MARK_NS);
            let kept = (MARKS as u64 + 1) * MARK_NS;
            if boundary.saturating_add(kept) >= to {
                until = until.min(boundary);
            } else {
                until = until.min(to - kept);
            }

            self.integrate(&shares, until - now);
            self.head.now_ns = until;
            for s in &shares {
                let k = &mut self.kernels[s.row];
                if k.phase().is_none() {
                    k.state = DONE;
                    k.end_ns = until;
                    let (owner, gpu, bytes, [number, _]) = (k.owner, k.gpu, k.bytes, k.meeting);
                    // The longer kernels of a meeting go on alone.
                    let of_meeting =
                        |other: &&mut Kernel| number != 0 && other.meeting[0] == number;
                    for other in self.kernels_mut().iter_mut().filter(of_meeting) {
                        other.meeting = [0; 2];
                    }
                    if bytes > 0 {
                        for u in self.uses_mut() {
                            if u.owner == owner && u.gpu == gpu {
                                u.copied = u.copied.saturating_add(bytes);
                            }
                        }
                    }
                }
            }
            if until == boundary {
                self.mark(until);
            }
        }
    }

    fn integrate(&mut self, shares: &[Share], ns: u64) {
        let dt = ns as f64;
        let mut last = (u64::MAX, u64::MAX);
        let mut slices: Vec<(u64, u64, f64)> = Vec::new();
        let mut work: Vec<(u64, u64, f64)> = Vec::new();
        for s in shares {
            let k = &mut self.kernels[s.row];
            if let Some(p) = k.phase() {
                let left = k.phase_ns[p] - s.rate * dt;
                // A remainder below a thousandth of a nanosecond is rounding.
                k.phase_ns[p] = if left < 1e-3 { 0.0 } else { left };
            }
            let (gpu, owner, context) = (k.gpu, k.owner, k.context);
            // Concurrent work of a process counts once.
            match work.iter_mut().find(|w| (w.0, w.1) == (gpu, owner)) {
                Some(known) => known.2 = known.2.max(s.slice),
                None => work.push((gpu, owner, s.slice)),
            }
            if k.route != 0 {
                continue;
            }
            if last != (gpu, context) {
                last = (gpu, context);
                slices.push((gpu, owner, s.slice));
            }
            if let Some(g) = usize::try_from(gpu).ok().and_then(|g| self.gpus.get_mut(g)) {
                g.sm_ns += s.sms * dt;
                g.warp_ns += s.warps * dt;
            }
            for u in self.uses_mut() {
                if u.owner == owner && u.gpu == gpu {
                    u.sm_ns += s.sms * dt;
                    u.warp_ns += s.warps * dt;
                }
            }
        }
        for (gpu, owner, part) in work {
            for u in self.uses_mut() {
                if u.owner == owner && u.gpu == gpu {
                    u.work_ns += dt * part;
                }
            }
        }
        for of_gpu in slices.chunk_by(|a, b| a.0 == b.0) {
            let gpu = of_gpu[0].0;
            if let Some(g) = usize::try_from(gpu).ok().and_then(|g| self.gpus.get_mut(g)) {
                g.busy_ns += dt;
            }
            for &(_, owner, slice) in of_gpu {
                for u in self.uses_mut() {
                    if u.owner == owner && u.gpu == gpu {
                        u.busy_ns += dt * slice;
                    }
                }
            }
        }
    }

    fn mark(&mut self, at_ns: u64) {
        let i = mark_index(at_ns);
        let count = self.head.gpu_count();
        for g in &mut self.gpus[..count] {
            g.marks[i] = Mark {
                at_ns,
                busy_ns: g.busy_ns,
                sm_ns: g.sm_ns,
                warp_ns: g.warp_ns,
            };
        }
        for u in self.uses_mut() {
            u.marks[i] = Mark {
                at_ns,
                busy_ns: u.busy_ns,
                sm_ns: u.sm_ns,
                warp_ns: u.warp_ns,
            };
        }
    }

    fn clone_used(&mut self, from: &State) {
        self.head = from.head;
        self.gpus[..from.gpus().len()].copy_from_slice(from.gpus());
        self.procs[..from.procs().len()].copy_from_slice(from.procs());
        self.uses[..from.uses().len()].copy_from_slice(from.uses());
        self.kernels[..from.kernels().len()].copy_from_slice(from.kernels());
    }
}

/// Index in the ring of the sample for the boundary `at_ns`.
pub(crate) fn mark_index(at_ns: u64) -> usize {
    (at_ns / MARK_NS) as usize % MARKS
}

#[cfg(test)]
mod tests;
