//! One warp: its registers, its fragments, and the loop that runs them.

use crate::error::Trap;
use crate::exec::Launch;
use crate::ir::{
    Base, CODE_BASE, CONST_BIT, CallOp, Function, Inst, Lanes, NO_GUARD, Op, PARAM_BASE, Place,
    Shfl, Special, Src, Target, Vote, WARP,
};

/// Most bytes of local memory of a thread, and most nested calls.
const LOCAL_MAX: u32 = 512 << 10;
const DEPTH_MAX: usize = 4096;

/// Where a caller goes on.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Caller {
    func: u32,
    /// Of the call.
    pc: u32,
    regs: u32,
    local: u32,
}

/// Lanes at the same place.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Fragment {
    mask: u32,
    func: u32,
    pc: u32,
    /// First register of the frame.
    regs: u32,
    /// First byte of the frame in local memory.
    local: u32,
    stack: Vec<Caller>,
    /// The barrier it stands at, and its line.
    barrier: Option<(u32, u32)>,
}

impl Fragment {
    /// Whether both stand at the same place.
    fn joins(&self, other: &Self) -> bool {
        (self.func, self.pc, self.regs, self.local)
            == (other.func, other.pc, other.regs, other.local)
            && self.barrier == other.barrier
            && self.stack == other.stack
    }
}

/// Why a warp stopped.
pub(crate) enum Stop {
    Done,
    /// All its live lanes stand at this barrier.
    Barrier {
        id: u32,
        line: u32,
    },
}

#[derive(Default)]
pub(crate) struct Warp {
    pub(crate) regs: Vec<Lanes>,
    pub(crate) local: Vec<Vec<u8>>,
    fragments: Vec<Fragment>,
    tid: [[u32; WARP]; 3],
    index: u32,
    /// Instructions of this warp so far.
    clock: u64,
    scratch: Box<Lanes0>,
}

/// A scratch register with a `Default`.
struct Lanes0(Lanes);

impl Default for Lanes0 {
    fn default() -> Self {
        Self([0; WARP])
    }
}

/// The lanes of a mask.
pub(crate) fn lanes(mask: u32) -> impl Iterator<Item = usize> {
    let mut left = mask;
    std::iter::from_fn(move || {
        if left == 0 {
            return None;
        }
        let lane = left.trailing_zeros() as usize % WARP;
        left &= left - 1;
        Some(lane)
    })
}

/// How the loop goes on after an instruction.
enum Flow {
    Next,
    /// The program counter was set, or lanes have gone: look which fragment runs.
    Moved,
}

impl Warp {
    /// Puts the warp at the start of a kernel.
    pub(crate) fn start(&mut self, launch: &Launch<'_>, entry: u32, index: usize, threads: u32) {
        let first = (index * WARP) as u32;
        let [nx, ny, _] = launch.config.block;
        let mut mask = 0;
        for lane in 0..WARP {
            let thread = first + lane as u32;
            if thread < threads {
                mask |= 1 << lane;
            }
            self.tid[0][lane] = thread % nx;
            self.tid[1][lane] = thread / nx % ny;
            self.tid[2][lane] = thread / nx / ny;
        }
        self.index = index as u32;
        self.clock = 0;
        self.local.resize_with(WARP, Vec::new);
        let function = &launch.functions[entry as usize];
        for local in &mut self.local {
            local.clear();
            local.resize(function.frame_bytes as usize, 0);
        }
        self.reserve(function.regs);
        self.fragments.clear();
        self.fragments.push(Fragment {
            mask,
            func: entry,
            pc: 0,
            regs: 0,
            local: 0,
            stack: Vec::new(),
            barrier: None,
        });
    }

    fn reserve(&mut self, regs: u32) {
        if self.regs.len() < regs as usize {
            self.regs.resize(regs as usize, [0; WARP]);
        }
    }

    /// Lets the lanes at a barrier go on.
    pub(crate) fn release(&mut self) {
        for fragment in &mut self.fragments {
            fragment.barrier = None;
        }
    }

    /// Runs until all lanes have ended or stand at a barrier.
    pub(crate) fn run(&mut self, launch: &mut Launch<'_>) -> Result<Stop, Trap> {
        while let Some(at) = self.pick() {
            let mut current = self.fragments.swap_remove(at);
            self.merge_into(&mut current);
            if let Some((id, line)) = current.barrier {
                self.fragments.push(current);
                return Ok(Stop::Barrier { id, line });
            }
            // Where another fragment of the same frame waits to be joined.
            let limit = self
                .fragments
                .iter()
                .filter(|f| f.stack.len() == current.stack.len() && f.func == current.func)
                .map(|f| f.pc)
                .filter(|pc| *pc > current.pc)
                .min()
                .unwrap_or(u32::MAX);
            self.run_fragment(launch, &mut current, limit)?;
            if current.mask != 0 {
                self.fragments.push(current);
            }
        }
        Ok(Stop::Done)
    }

    /// The fragment to run next: not at a barrier, deepest, lowest.
    fn pick(&self) -> Option<usize> {
        let key = |f: &Fragment| {
            (
                f.barrier.is_some(),
                usize::MAX - f.stack.len(),
                f.func,
                f.pc,
            )
        };
        (0..self.fragments.len()).min_by_key(|i| key(&self.fragments[*i]))
    }

    fn merge_into(&mut self, current: &mut Fragment) {
        let mut i = 0;
        while i < self.fragments.len() {
            if self.fragments[i].joins(current) {
                current.mask |= self.fragments.swap_remove(i).mask;
            } else {
                i += 1;
            }
        }
    }

    fn run_fragment(
        &mut self,
        launch: &mut Launch<'_>,
        at: &mut Fragment,
        limit: u32,
    ) -> Result<(), Trap> {
        let functions = launch.functions;
        loop {
            let function = &functions[at.func as usize];
            let Some(inst) = function.code.get(at.pc as usize) else {
                return Err(Trap::Unsupported {
                    line: 0,
                    text: "code after the end".to_owned(),
                });
            };
            let lanes = u64::from(at.mask.count_ones());
            let weight = u64::from(inst.weight);
            launch.stats.instructions += weight * lanes;
            launch.stats.warp_instructions += weight;
            self.clock += weight;
            if launch.stats.instructions > launch.config.budget {
                return Err(Trap::Budget);
            }
            let mask = if inst.guard == NO_GUARD {
                at.mask
            } else {
                self.guard(at, inst.guard)
            };
            if mask == 0 {
                at.pc += 1;
            } else if let Op::Alu { f, d, a, b, c } = inst.op {
                self.alu(function, at.regs, mask, f, d, [a, b, c]);
                at.pc += 1;
            } else {
                match self.step(launch, function, inst, at, mask)? {
                    Flow::Next => at.pc += 1,
                    Flow::Moved => {
                        if at.mask == 0
                            || limit != u32::MAX
                            || !self.fragments.is_empty()
                            || at.barrier.is_some()
                        {
                            return Ok(());
                        }
                    }
                }
            }
            if at.pc == limit {
                return Ok(());
            }
        }
    }

    #[inline(always)]
    fn alu(
        &mut self,
        function: &Function,
        regs: u32,
        mask: u32,
        f: crate::ir::AluFn,
        d: u32,
        srcs: [Src; 3],
    ) {
        let base = regs as usize;
        let all = &self.regs;
        let src = |s: Src| {
            if s & CONST_BIT == 0 {
                &all[base + s as usize]
            } else {
                &function.consts[(s & !CONST_BIT) as usize]
            }
        };
        let out = &mut self.scratch.0;
        f(mask, src(srcs[0]), src(srcs[1]), src(srcs[2]), out);
        let dst = &mut self.regs[base + d as usize];
        if mask == u32::MAX {
            *dst = *out;
        } else {
            for lane in lanes(mask) {
                dst[lane] = out[lane];
            }
        }
    }

    fn guard(&self, at: &Fragment, guard: u32) -> u32 {
        let reg = &self.regs[at.regs as usize + (guard & !CONST_BIT) as usize];
        let mut mask = 0;
        for (lane, value) in reg.iter().enumerate() {
            mask |= ((*value & 1) as u32) << lane;
        }
        if guard & CONST_BIT != 0 {
            mask = !mask;
        }
        mask & at.mask
    }

    pub(crate) fn source<'a>(&'a self, function: &'a Function, regs: u32, src: Src) -> &'a Lanes {
        if src & CONST_BIT == 0 {
            &self.regs[regs as usize + src as usize]
        } else {
            &function.consts[(src & !CONST_BIT) as usize]
        }
    }

    fn set(&mut self, at: &Fragment, mask: u32, d: u32, value: impl Fn(usize) -> u64) {
        let dst = &mut self.regs[(at.regs + d) as usize];
        for lane in lanes(mask) {
            dst[lane] = value(lane);
        }
    }

    fn step(
        &mut self,
        launch: &mut Launch<'_>,
        function: &Function,
        inst: &Inst,
        at: &mut Fragment,
        mask: u32,
    ) -> Result<Flow, Trap> {
        let line = inst.line;
        match &inst.op {
            Op::Ld(op) => self.load(launch, function, (at.regs, at.local), mask, op, line)?,
            Op::St(op) => self.store(launch, function, (at.regs, at.local), mask, op, line)?,
            Op::Atom(op) => self.atomic(launch, function, (at.regs, at.local), mask, op, line)?,
            Op::Special { d, which } => self.special(launch, at, mask, *d, *which),
            Op::Address { d, addr } => {
                let base = match addr.base {
                    Base::Frame => u64::from(at.local),
                    Base::KernelParam => PARAM_BASE,
                    Base::DynamicShared => u64::from(launch.static_shared.next_multiple_of(16)),
                    Base::Global(index) => launch.globals[index as usize]
                        .ok_or_else(|| Trap::UnboundGlobal((launch.global_names)(index)))?,
                    Base::Code(index) => CODE_BASE + u64::from(index),
                    Base::Zero | Base::Shared | Base::Reg(_) => 0,
                };
                let value = base.wrapping_add(addr.offset as u64);
                self.set(at, mask, *d, |_| value);
            }
            Op::Bra(target) => {
                self.split(at, mask);
                at.pc = *target;
                return Ok(Flow::Moved);
            }
            Op::Brx { index, targets } => {
                self.split(at, mask);
                self.branch_by_index(function, at, *index, targets, line)?;
                return Ok(Flow::Moved);
            }
            Op::Call(call) => {
                self.split(at, mask);
                self.call(launch, function, at, call, line)?;
                return Ok(Flow::Moved);
            }
            Op::Ret => {
                self.split(at, mask);
                self.ret(launch.functions, at);
                return Ok(Flow::Moved);
            }
            Op::Exit => {
                self.split(at, mask);
                at.mask = 0;
                return Ok(Flow::Moved);
            }
            Op::Barrier { id } => {
                if mask != at.mask {
                    return Err(Trap::Unsupported {
                        line,
                        text: "a barrier under a divergent guard".into(),
                    });
                }
                let id = self.source(function, at.regs, *id)[mask.trailing_zeros() as usize] as u32;
                at.barrier = Some((id, line));
                at.pc += 1;
                return Ok(Flow::Moved);
            }
            Op::ActiveMask(d) => self.set(at, mask, *d, |_| u64::from(mask)),
            Op::Shfl { mode, d, p, args } => {
                self.shuffle(function, at, mask, (*mode, *d, *p), args, line)?;
            }
            Op::Vote {
                mode,
                d,
                a,
                members,
            } => self.vote(function, at, mask, (*mode, *d, *a, *members), line)?,
            Op::Trap => return Err(Trap::Instruction { line }),
            Op::Unsupported(index) => {
                let text = function.unsupported[*index as usize].clone();
                return Err(Trap::Unsupported { line, text });
            }
            Op::Nop | Op::Alu { .. } => {}
        }
        Ok(Flow::Next)
    }

    /// Leaves the lanes outside the mask behind, at the next instruction.
    fn split(&mut self, at: &mut Fragment, mask: u32) {
        let rest = at.mask & !mask;
        if rest != 0 {
            let mut other = at.clone();
            other.mask = rest;
            other.pc += 1;
            self.fragments.push(other);
            at.mask = mask;
        }
    }

    fn branch_by_index(
        &mut self,
        function: &Function,
        at: &mut Fragment,
        index: Src,
        targets: &[u32],
        line: u32,
    ) -> Result<(), Trap> {
        let index = *self.source(function, at.regs, index);
        let mut left = at.mask;
        let mut moved = Vec::new();
        while left != 0 {
            let first = index[left.trailing_zeros() as usize] as u32;
            let same = lanes(left)
                .filter(|l| index[*l] as u32 == first)
                .fold(0, |m, l| m | 1 << l);
            let Some(target) = targets.get(first as usize) else {
                return Err(Trap::Unsupported {
                    line,
                    text: format!("branch to entry {first} of its table"),
                });
            };
            let mut to = at.clone();
            to.mask = same;
            to.pc = *target;
            moved.push(to);
            left &= !same;
        }
        if let Some(first) = moved.pop() {
            *at = first;
        }
        self.fragments.append(&mut moved);
        Ok(())
    }

    fn call(
        &mut self,
        launch: &Launch<'_>,
        function: &Function,
        at: &mut Fragment,
        call: &CallOp,
        line: u32,
    ) -> Result<(), Trap> {
        let target = match call.target {
            Target::Direct(target) => target,
            Target::Indirect(reg) => {
                let to = *self.source(function, at.regs, reg);
                let first = to[at.mask.trailing_zeros() as usize];
                let same = lanes(at.mask)
                    .filter(|l| to[*l] == first)
                    .fold(0, |m, l| m | 1 << l);
                if same != at.mask {
                    // The others come back to this call.
                    let mut other = at.clone();
                    other.mask = at.mask & !same;
                    self.fragments.push(other);
                    at.mask = same;
                }
                u32::try_from(first.wrapping_sub(CODE_BASE)).unwrap_or(u32::MAX)
            }
        };
        let callee = launch
            .functions
            .get(target as usize)
            .filter(|_| launch.defined[target as usize]);
        let Some(callee) = callee else {
            let name = launch
                .functions
                .get(target as usize)
                .map_or("?", |f| f.name.as_str());
            return Err(Trap::Unsupported {
                line,
                text: format!("call of {name}, which no text defines"),
            });
        };
        let regs = at.regs + function.regs;
        let local = (at.local + function.frame_bytes).next_multiple_of(16);
        let end = local.saturating_add(callee.frame_bytes);
        if end > LOCAL_MAX || at.stack.len() >= DEPTH_MAX {
            return Err(Trap::StackOverflow { line });
        }
        self.reserve(regs + callee.regs);
        for lane in lanes(at.mask) {
            if self.local[lane].len() < end as usize {
                self.local[lane].resize(end as usize, 0);
            }
        }
        for (from, to) in call.args.iter().zip(&callee.params) {
            self.pass(
                function,
                at.mask,
                (*from, at.regs, at.local),
                (*to, regs, local),
            );
        }
        at.stack.push(Caller {
            func: at.func,
            pc: at.pc,
            regs: at.regs,
            local: at.local,
        });
        at.func = target;
        at.pc = 0;
        at.regs = regs;
        at.local = local;
        Ok(())
    }

    fn ret(&mut self, functions: &[Function], at: &mut Fragment) {
        let Some(caller) = at.stack.pop() else {
            at.mask = 0;
            return;
        };
        let callee = &functions[at.func as usize];
        let function = &functions[caller.func as usize];
        if let Op::Call(call) = &function.code[caller.pc as usize].op {
            for (from, to) in callee.rets.iter().zip(&call.rets) {
                self.pass(
                    callee,
                    at.mask,
                    (*from, at.regs, at.local),
                    (*to, caller.regs, caller.local),
                );
            }
        }
        at.func = caller.func;
        at.pc = caller.pc + 1;
        at.regs = caller.regs;
        at.local = caller.local;
    }

    /// Copies an argument or a result between two frames (place, registers, local memory).
    fn pass(
        &mut self,
        function: &Function,
        mask: u32,
        from: (Place, u32, u32),
        to: (Place, u32, u32),
    ) {
        for lane in lanes(mask) {
            let mut bytes = [0; 8];
            match (from.0, to.0) {
                (
                    Place::Frame { offset, size },
                    Place::Frame {
                        offset: at,
                        size: room,
                    },
                ) => {
                    let start = (from.2 + offset) as usize;
                    let size = size.min(room) as usize;
                    self.local[lane].copy_within(start..start + size, (to.2 + at) as usize);
                    continue;
                }
                (Place::Reg(reg, _), _) => {
                    bytes = self.source(function, from.1, reg)[lane].to_le_bytes();
                }
                (Place::Frame { offset, size }, Place::Reg(..)) => {
                    let start = (from.2 + offset) as usize;
                    let size = size.min(8) as usize;
                    bytes[..size].copy_from_slice(&self.local[lane][start..start + size]);
                }
            }
            match to.0 {
                Place::Reg(reg, _) => {
                    self.regs[(to.1 + reg) as usize][lane] = u64::from_le_bytes(bytes);
                }
                Place::Frame { offset, size } => {
                    let start = (to.2 + offset) as usize;
                    let size = size.min(8) as usize;
                    self.local[lane][start..start + size].copy_from_slice(&bytes[..size]);
                }
            }
        }
    }

    fn special(&mut self, launch: &Launch<'_>, at: &Fragment, mask: u32, d: u32, which: Special) {
        let config = launch.config;
        let tid = self.tid;
        let threads = config.block.iter().product::<u32>();
        let shared = launch.shared.len() as u32;
        let now = config.time_ns.wrapping_add(launch.stats.warp_instructions);
        let all = |value: u32| -> Lanes { [u64::from(value); WARP] };
        let by_lane =
            |f: fn(u32) -> u32| -> Lanes { std::array::from_fn(|lane| u64::from(f(lane as u32))) };
        let values = match which {
            Special::Tid(axis) => tid[usize::from(axis)].map(u64::from),
            Special::Ntid(axis) => all(config.block[usize::from(axis)]),
            Special::Ctaid(axis) => all(launch.block[usize::from(axis)]),
            Special::Nctaid(axis) => all(config.grid[usize::from(axis)]),
            Special::LaneId => by_lane(|lane| lane),
            Special::WarpId => all(self.index),
            Special::NwarpId => all(threads.div_ceil(WARP as u32)),
            Special::SmId => all((launch.block_index % u64::from(config.sm_count.max(1))) as u32),
            Special::NsmId => all(config.sm_count),
            Special::GridId => all(1),
            Special::LaneMaskEq => by_lane(|lane| 1 << lane),
            Special::LaneMaskLt => by_lane(|lane| (1 << lane) - 1),
            Special::LaneMaskLe => by_lane(|lane| (1 << lane) | ((1 << lane) - 1)),
            Special::LaneMaskGt => by_lane(|lane| !((1 << lane) | ((1 << lane) - 1))),
            Special::LaneMaskGe => by_lane(|lane| !((1 << lane) - 1)),
            Special::Clock => [self.clock; WARP],
            Special::ClockHi => [self.clock >> 32; WARP],
            Special::GlobalTimer => [now; WARP],
            Special::GlobalTimerHi => [now >> 32; WARP],
            Special::DynamicSharedSize => all(config.dynamic_shared),
            Special::TotalSharedSize => all(shared),
        };
        self.set(at, mask, d, |lane| values[lane]);
    }

    fn shuffle(
        &mut self,
        function: &Function,
        at: &Fragment,
        mask: u32,
        (mode, d, p): (Shfl, u32, u32),
        args: &[Src; 4],
        line: u32,
    ) -> Result<(), Trap> {
        let [a, b, c, members] = args.map(|src| *self.source(function, at.regs, src));
        self.converged(mask, &members, line)?;
        let pick = |lane: usize| {
            let (clamp, segment) = (c[lane] as u32 & 31, c[lane] as u32 >> 8 & 31);
            let (own, by) = (lane as u32, b[lane] as u32 & 31);
            let first = own & segment;
            let last = first | (clamp & !segment);
            let (from, inside) = match mode {
                Shfl::Up => (own.wrapping_sub(by), own as i32 - by as i32 >= last as i32),
                Shfl::Down => (own + by, own + by <= last),
                Shfl::Bfly => (own ^ by, own ^ by <= last),
                Shfl::Idx => (first | (by & !segment), first | (by & !segment) <= last),
            };
            (if inside { from as usize % WARP } else { lane }, inside)
        };
        self.set(at, mask, d, |lane| a[pick(lane).0]);
        self.set(at, mask, p, |lane| u64::from(pick(lane).1));
        Ok(())
    }

    fn vote(
        &mut self,
        function: &Function,
        at: &Fragment,
        mask: u32,
        (mode, d, a, members): (Vote, u32, Src, Src),
        line: u32,
    ) -> Result<(), Trap> {
        let members = *self.source(function, at.regs, members);
        self.converged(mask, &members, line)?;
        let a = *self.source(function, at.regs, a);
        let ballot = lanes(mask).fold(0u32, |all, lane| all | ((a[lane] & 1) as u32) << lane);
        let value = match mode {
            Vote::Any => u64::from(ballot != 0),
            Vote::All => u64::from(ballot == mask),
            Vote::Uni => u64::from(ballot == mask || ballot == 0),
            Vote::Ballot => u64::from(ballot),
        };
        self.set(at, mask, d, |_| value);
        Ok(())
    }

    /// Whether all live lanes that are named take part now.
    fn converged(&self, mask: u32, members: &Lanes, line: u32) -> Result<(), Trap> {
        let live = self.fragments.iter().fold(mask, |live, f| live | f.mask);
        let missing = lanes(mask).any(|lane| members[lane] as u32 & live & !mask != 0);
        if missing {
            let text = "lanes of a divergent warp speaking to each other".to_owned();
            return Err(Trap::Unsupported { line, text });
        }
        Ok(())
    }
}
