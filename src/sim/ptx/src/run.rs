//! Runs a decoded kernel block by block, each block as warps of 32 lanes.
//!
//! The lanes at a warp's lowest instruction run first, so the sides of a branch reconverge where they join. Lanes wait
//! for the other members of a shuffle or vote, warps for each other at a barrier.

use crate::code::{
    Addr, Base, Code, LOCAL_BASE, Lanes, Meeting, Op, SHARED_BASE, Space, Special, Ty, WARP,
};
use crate::error::Trap;
use crate::module::{DeviceMemory, LaunchConfig};

type Globals<'a> = dyn Fn(u32) -> Result<u64, Trap> + 'a;

/// State that all warps of a launch share.
struct Launch<'a> {
    code: &'a Code,
    config: &'a LaunchConfig<'a>,
    globals: &'a Globals<'a>,
    memory: &'a mut dyn DeviceMemory,
    shared: Vec<u8>,
    block: [u32; 3],
    /// Instructions, summed over threads.
    spent: u64,
}

pub(crate) fn run(
    code: &Code,
    static_shared: u32,
    config: &LaunchConfig<'_>,
    memory: &mut dyn DeviceMemory,
    globals: &Globals<'_>,
) -> Result<u64, Trap> {
    let mut launch = Launch {
        code,
        config,
        globals,
        memory,
        shared: vec![0; (static_shared.next_multiple_of(16) + config.dynamic_shared) as usize],
        block: [0; 3],
        spent: 0,
    };
    let threads: u32 = config.block.iter().product();
    let warps = threads.div_ceil(WARP as u32);
    // Only barriers need all warps of a block at once; otherwise one warp is reused.
    let many = if code.barrier { warps } else { 1 };
    let mut pool: Vec<Warp> = (0..many).map(|_| Warp::new(code)).collect();
    let [nx, ny, nz] = config.grid;
    for z in 0..nz {
        for y in 0..ny {
            for x in 0..nx {
                launch.block = [x, y, z];
                launch.shared.fill(0);
                for index in 0..warps {
                    let at = if code.barrier { index as usize } else { 0 };
                    pool[at].start(index * WARP as u32, threads);
                    pool[at].run(&mut launch)?;
                }
                while pool.iter().any(|warp| warp.waiting != 0) {
                    for warp in &mut pool {
                        warp.waiting = 0;
                        warp.run(&mut launch)?;
                    }
                }
            }
        }
    }
    Ok(launch.spent)
}

struct Warp {
    registers: Vec<Lanes>,
    /// Local memory, lane by lane.
    local: Vec<u8>,
    /// Position of each lane.
    at: [u32; WARP],
    /// Lanes that have not ended, as bits.
    live: u32,
    /// Lanes at a barrier.
    waiting: u32,
    /// Lanes that wait for others of a shuffle or vote.
    held: u32,
    /// Index of the warp's first thread in its block.
    first: u32,
}

fn lanes(mask: u32) -> impl Iterator<Item = usize> {
    (0..WARP).filter(move |lane| mask >> lane & 1 == 1)
}

/// Whether all lanes have the same value, as most have whose instructions depend on the block only.
fn is_uniform(values: &Lanes) -> bool {
    values[1] == values[0] && values.iter().fold(0, |bits, v| bits | (v ^ values[0])) == 0
}

impl Warp {
    fn new(code: &Code) -> Self {
        let mut registers = vec![[0; WARP]; code.registers as usize];
        for (register, value) in &code.constants {
            registers[*register as usize] = [*value; WARP];
        }
        Self {
            registers,
            local: vec![0; code.local as usize * WARP],
            at: [0; WARP],
            live: 0,
            waiting: 0,
            held: 0,
            first: 0,
        }
    }

    fn start(&mut self, first: u32, threads: u32) {
        let many = (threads - first).min(WARP as u32);
        self.live = u32::MAX >> (WARP as u32 - many);
        (self.waiting, self.held) = (0, 0);
        self.at = [0; WARP];
        self.first = first;
        self.local.fill(0);
    }

    /// Runs until every lane has ended or waits at a barrier.
    fn run(&mut self, launch: &mut Launch<'_>) -> Result<(), Trap> {
        let mut stuck = false;
        loop {
            let ready = self.live & !self.waiting & !self.held;
            if ready == 0 {
                if self.held == 0 {
                    return Ok(());
                }
                // The lanes that they wait for may have ended.
                if stuck {
                    let line = self.line(launch, self.held);
                    let text = "lanes that wait for each other".to_owned();
                    return Err(Trap::Unsupported { line, text });
                }
                stuck = true;
                self.held = 0;
                continue;
            }
            let pc = lanes(ready).map(|lane| self.at[lane]).min().unwrap_or(0);
            let mut mask = 0;
            let mut until = u32::MAX;
            for lane in lanes(ready) {
                if self.at[lane] == pc {
                    mask |= 1 << lane;
                } else {
                    until = until.min(self.at[lane]);
                }
            }
            if self.advance(launch, pc, mask, until)? {
                stuck = false;
            }
        }
    }

    fn line(&self, launch: &Launch<'_>, of: u32) -> u32 {
        let lane = of.trailing_zeros() as usize;
        launch.code.insts[self.at[lane] as usize].line
    }

    fn set(&mut self, mask: u32, pc: u32) {
        for lane in lanes(mask) {
            self.at[lane] = pc;
        }
    }

    /// Runs lanes at the same position until they reach others' position, diverge, end or wait; false if they only
    /// waited for others of a shuffle or vote.
    fn advance(
        &mut self,
        launch: &mut Launch<'_>,
        mut pc: u32,
        mut mask: u32,
        until: u32,
    ) -> Result<bool, Trap> {
        let code = launch.code;
        let first = pc;
        while pc < until && mask != 0 {
            let inst = &code.insts[pc as usize];
            let chosen = match inst.guard {
                None => mask,
                Some((predicate, not)) => {
                    let values = &self.registers[predicate as usize];
                    let true_in = |bits, lane| bits | u32::from(values[lane] & 1 == 1) << lane;
                    let holds = (0..WARP).fold(0, true_in);
                    mask & if not { !holds } else { holds }
                }
            };
            launch.spent += u64::from(mask.count_ones());
            if launch.spent > launch.config.budget {
                return Err(Trap::Budget);
            }
            match &inst.op {
                _ if chosen == 0 => {}
                Op::Jump(target) if chosen == mask => {
                    pc = *target;
                    continue;
                }
                Op::Jump(target) => {
                    self.set(mask, pc + 1);
                    self.set(chosen, *target);
                    return Ok(true);
                }
                Op::Exit => {
                    self.live &= !chosen;
                    mask &= !chosen;
                }
                Op::Barrier => {
                    self.set(mask, pc + 1);
                    self.waiting |= chosen;
                    return Ok(true);
                }
                Op::Meet {
                    how,
                    d,
                    found,
                    args,
                    members,
                } => {
                    self.set(mask, pc);
                    let here = lanes(self.live).filter(|lane| self.at[*lane] == pc);
                    let here = here.fold(0, |bits, lane| bits | 1 << lane);
                    let one = chosen.trailing_zeros() as usize;
                    let members = self.registers[*members as usize][one] as u32 & self.live;
                    if members & !here != 0 {
                        self.held |= mask;
                        return Ok(pc > first);
                    }
                    self.meet(*how, [*d, *found], args, members);
                    self.held &= !here;
                    self.set(here, pc + 1);
                    return Ok(true);
                }
                Op::Alu { f, d, args } => {
                    let [a, b, c] = args.map(|register| self.registers[register as usize]);
                    let d = &mut self.registers[*d as usize];
                    if [&a, &b, &c].into_iter().all(is_uniform) {
                        let value = f(a[0], b[0], c[0]);
                        lanes(chosen).for_each(|lane| d[lane] = value);
                    } else {
                        for lane in lanes(chosen) {
                            d[lane] = f(a[lane], b[lane], c[lane]);
                        }
                    }
                }
                Op::Special { d, which } => {
                    let values = self.special(launch, *which);
                    let d = &mut self.registers[*d as usize];
                    lanes(chosen).for_each(|lane| d[lane] = values[lane]);
                }
                op => {
                    for lane in lanes(chosen) {
                        self.memory(launch, op, inst.line, lane)?;
                    }
                }
            }
            pc += 1;
        }
        self.set(mask, pc);
        Ok(true)
    }

    fn special(&self, launch: &Launch<'_>, which: Special) -> Lanes {
        let [bx, by, _] = launch.config.block;
        match which {
            Special::Tid(axis) => std::array::from_fn(|lane| {
                let thread = self.first + lane as u32;
                [thread % bx, thread / bx % by, thread / bx / by][axis].into()
            }),
            Special::Ntid(axis) => [launch.config.block[axis].into(); WARP],
            Special::Ctaid(axis) => [launch.block[axis].into(); WARP],
            Special::Nctaid(axis) => [launch.config.grid[axis].into(); WARP],
            Special::Lane => std::array::from_fn(|lane| lane as u64),
        }
    }

    fn meet(&mut self, how: Meeting, to: [u32; 2], args: &[u32; 3], members: u32) {
        let [a, b, c] = args.map(|register| self.registers[register as usize]);
        let ballot = lanes(members).fold(0, |bits, lane| bits | (a[lane] as u32 & 1) << lane);
        for lane in lanes(members) {
            let segment = (c[lane] >> 8 & 31) as usize;
            let last = lane & segment | c[lane] as usize & 31 & !segment;
            let by = b[lane] as usize & 31;
            let (other, there) = match how {
                Meeting::Up => (lane.wrapping_sub(by), lane >= by + last),
                Meeting::Down => (lane + by, lane + by <= last),
                Meeting::Butterfly => (lane ^ by, lane ^ by <= last),
                _ => {
                    let other = lane & segment | by & !segment;
                    (other, other <= last)
                }
            };
            let value = match how {
                Meeting::Any => u64::from(ballot != 0),
                Meeting::All => u64::from(ballot == members),
                Meeting::Uniform => u64::from(ballot == 0 || ballot == members),
                Meeting::Ballot => ballot.into(),
                // Without such a lane in the segment, the lane's own value.
                _ => a[if there { other } else { lane }],
            };
            self.registers[to[0] as usize][lane] = value;
            self.registers[to[1] as usize][lane] = there.into();
        }
    }

    /// The effect of one lane: memory accesses, and the end of a kernel.
    fn memory(
        &mut self,
        launch: &mut Launch<'_>,
        op: &Op,
        line: u32,
        lane: usize,
    ) -> Result<(), Trap> {
        match op {
            Op::Address { d, addr } => {
                self.registers[*d as usize][lane] = self.address(launch, addr, lane)?;
            }
            Op::Load { ty, addr, regs } => {
                let size = ty.size() as usize;
                let mut buf = [0; 32];
                let buf = &mut buf[..size * regs.len()];
                self.transfer(launch, addr, line, lane, Transfer::Load(buf))?;
                for (register, bytes) in regs.iter().zip(buf.chunks(size)) {
                    self.registers[*register as usize][lane] = value(bytes, *ty);
                }
            }
            Op::Store { ty, addr, regs } => {
                let size = ty.size() as usize;
                let mut buf = [0; 32];
                for (register, bytes) in regs.iter().zip(buf.chunks_mut(size)) {
                    let value = self.registers[*register as usize][lane];
                    bytes.copy_from_slice(&value.to_le_bytes()[..size]);
                }
                let buf = &buf[..size * regs.len()];
                self.transfer(launch, addr, line, lane, Transfer::Store(buf))?;
            }
            Op::Atomic {
                ty,
                addr,
                d,
                f,
                args,
            } => {
                let mut buf = [0; 8];
                let buf = &mut buf[..ty.size() as usize];
                self.transfer(launch, addr, line, lane, Transfer::Load(buf))?;
                let old = value(buf, *ty);
                let [b, c] = args.map(|register| self.registers[register as usize][lane]);
                buf.copy_from_slice(&f(old, b, c).to_le_bytes()[..buf.len()]);
                self.transfer(launch, addr, line, lane, Transfer::Store(buf))?;
                self.registers[*d as usize][lane] = old;
            }
            Op::Unsupported(text) => {
                let text = text.clone();
                return Err(Trap::Unsupported { line, text });
            }
            _ => return Err(Trap::Instruction { line }),
        }
        Ok(())
    }

    fn address(&self, launch: &Launch<'_>, addr: &Addr, lane: usize) -> Result<u64, Trap> {
        let base = match addr.base {
            Base::Zero => 0,
            Base::Register(register) => self.registers[register as usize][lane],
            Base::Global(index) => (launch.globals)(index)?,
        };
        Ok(base.wrapping_add_signed(addr.offset))
    }

    fn transfer(
        &mut self,
        launch: &mut Launch<'_>,
        addr: &Addr,
        line: u32,
        lane: usize,
        what: Transfer<'_>,
    ) -> Result<(), Trap> {
        let addr_of = self.address(launch, addr, lane)?;
        let size = match &what {
            Transfer::Load(buf) => buf.len(),
            Transfer::Store(buf) => buf.len(),
        };
        if !addr_of.is_multiple_of(size as u64) {
            let addr = addr_of;
            return Err(Trap::MisalignedAddress { addr, line });
        }
        let (space, at) = match (addr.space, addr_of & !(SHARED_BASE - 1)) {
            (Space::Generic, SHARED_BASE) => (Space::Shared, addr_of - SHARED_BASE),
            (Space::Generic, LOCAL_BASE) => (Space::Local, addr_of - LOCAL_BASE),
            (space, _) => (space, addr_of),
        };
        let illegal = Trap::IllegalAddress {
            addr: addr_of,
            line,
        };
        let done = match (space, what) {
            (Space::Generic | Space::Global, Transfer::Load(buf)) => {
                launch.memory.load(at, buf).is_ok()
            }
            (Space::Generic | Space::Global, Transfer::Store(buf)) => {
                launch.memory.store(at, buf).is_ok()
            }
            (Space::Param, Transfer::Load(buf)) => copy(launch.config.params, at, buf),
            (Space::Param, Transfer::Store(_)) => false,
            (space, what) => {
                let own = launch.code.local as usize;
                let memory = match space {
                    Space::Shared => &mut launch.shared[..],
                    _ => &mut self.local[own * lane..own * (lane + 1)],
                };
                match what {
                    Transfer::Load(buf) => copy(memory, at, buf),
                    Transfer::Store(buf) => match part(at, buf.len(), memory.len()) {
                        Some(range) => {
                            memory[range].copy_from_slice(buf);
                            true
                        }
                        None => false,
                    },
                }
            }
        };
        if done { Ok(()) } else { Err(illegal) }
    }
}

enum Transfer<'a> {
    Load(&'a mut [u8]),
    Store(&'a [u8]),
}

fn part(at: u64, len: usize, of: usize) -> Option<std::ops::Range<usize>> {
    let at = usize::try_from(at).ok()?;
    let end = at.checked_add(len)?;
    (end <= of).then_some(at..end)
}

/// Fills the buffer from memory; false outside it.
fn copy(memory: &[u8], at: u64, buf: &mut [u8]) -> bool {
    match part(at, buf.len(), memory.len()) {
        Some(range) => {
            buf.copy_from_slice(&memory[range]);
            true
        }
        None => false,
    }
}

/// The number in the bytes, with the sign of its type.
fn value(bytes: &[u8], ty: Ty) -> u64 {
    let mut all = [0; 8];
    all[..bytes.len()].copy_from_slice(bytes);
    let value = u64::from_le_bytes(all);
    let above = 64 - 8 * bytes.len() as u32;
    match ty.is_signed() {
        true => ((value << above).cast_signed() >> above).cast_unsigned(),
        false => value,
    }
}
