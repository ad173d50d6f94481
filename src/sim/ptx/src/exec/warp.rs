//! One warp: its registers, its fragments, and the loop that runs them.

use crate::error::Trap;
use crate::exec::Launch;
use crate::ir::{
    AluFn, Base, CODE_BASE, CONST_BIT, Function, Inst, Lanes, NO_GUARD, Op, PARAM_BASE, Src, WARP,
};

/// Where a caller goes on.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Caller {
    pub(super) func: u32,
    /// Of the call.
    pub(super) pc: u32,
    pub(super) regs: u32,
    pub(super) local: u32,
}

/// Lanes at the same place.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Fragment {
    pub(super) mask: u32,
    pub(super) func: u32,
    pub(super) pc: u32,
    /// First register of the frame.
    pub(super) regs: u32,
    /// First byte of the frame in local memory.
    pub(super) local: u32,
    pub(super) stack: Vec<Caller>,
    /// The barrier it stands at, and its line.
    barrier: Option<(u32, u32)>,
    /// It stands at an instruction that other lanes have to come to first.
    pub(super) waits: bool,
}

impl Fragment {
    /// Whether it can only go on with others.
    pub(super) fn is_held(&self) -> bool {
        self.waits || self.barrier.is_some()
    }

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
    pub(super) fragments: Vec<Fragment>,
    pub(super) tid: [[u32; WARP]; 3],
    pub(super) index: u32,
    /// Instructions of this warp so far.
    pub(super) clock: u64,
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
            waits: false,
        });
    }

    pub(super) fn reserve(&mut self, regs: u32) {
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
            current.waits = false;
            if let Some((id, line)) = current.barrier {
                // The one to run next stands at a barrier, so all do.
                if self
                    .fragments
                    .iter()
                    .any(|f| f.barrier.is_some_and(|(other, _)| other != id))
                {
                    let text = "lanes of a warp at different barriers".to_owned();
                    return Err(Trap::Unsupported { line, text });
                }
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

    /// The fragment to run next: not at a barrier, not waiting, deepest, lowest.
    fn pick(&self) -> Option<usize> {
        let key = |f: &Fragment| {
            (
                f.barrier.is_some(),
                f.waits,
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
                            || at.waits
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
    fn alu(&mut self, function: &Function, regs: u32, mask: u32, f: AluFn, d: u32, srcs: [Src; 3]) {
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

    pub(super) fn set(&mut self, at: &Fragment, mask: u32, d: u32, value: impl Fn(usize) -> u64) {
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
            Op::Shfl { args, .. } if self.must_wait(function, at, mask, args[3], line)? => {
                return Ok(Flow::Moved);
            }
            Op::Vote { members, .. } if self.must_wait(function, at, mask, *members, line)? => {
                return Ok(Flow::Moved);
            }
            Op::Shfl { mode, d, p, args } => {
                self.shuffle(function, at, mask, (*mode, *d, *p), args);
            }
            Op::Vote { mode, d, a, .. } => self.vote(function, at, mask, (*mode, *d, *a)),
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
}
