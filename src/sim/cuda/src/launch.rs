//! Launches: the kernel is interpreted at once, its time is queued on the board.

use std::hash::{DefaultHasher, Hash, Hasher};
use std::sync::{Arc, PoisonError, RwLockReadGuard};

use gshare_sim_board::{Hidden, Shape, block_ns_from_instructions, resident_blocks};
use gshare_sim_ptx::{LaunchConfig, Trap};

use crate::code::{
    COOPERATIVE_LAUNCH_TOO_LARGE, CUresult, ILLEGAL_ADDRESS, INVALID_HANDLE, INVALID_VALUE,
    LAUNCH_FAILED, LAUNCH_OUT_OF_RESOURCES, MISALIGNED_ADDRESS, NOT_SUPPORTED, R,
};
use crate::driver::{Driver, note_once};
use crate::ffi::In;
use crate::function::Function;
use crate::image::KernelFacts;
use crate::memory::KernelMemory;
use crate::op::{Op, Place, Time};

/// Duration of a block in nanoseconds if neither the file of durations nor the interpreter knows it.
const UNKNOWN_BLOCK_NS: u64 = 10_000;

/// Maximum instructions of a cooperative launch.
const COOPERATIVE_BUDGET: u64 = 1 << 29;

/// Arguments of a launch.
pub(crate) struct Launch {
    pub function: u64,
    pub grid: [u32; 3],
    pub block: [u32; 3],
    pub shared: u32,
    pub stream: u64,
    pub cooperative: bool,
    pub params: In<u64>,
    pub extra: In<u64>,
}

fn shape(f: &Function, grid: [u32; 3], block: [u32; 3], shared: u32) -> Shape {
    Shape {
        blocks: volume(grid),
        threads: volume(block) as u32,
        regs: f.facts.regs,
        shared: f.facts.shared + shared,
    }
}

fn volume(d: [u32; 3]) -> u64 {
    d.iter().fold(1, |v, n| v.saturating_mul(u64::from(*n)))
}

/// The parameter buffer of a launch, from a list of pointers or from a packed buffer.
fn gather(facts: &KernelFacts, params: In<u64>, extra: In<u64>) -> R<Vec<u8>> {
    let mut buffer = vec![0; facts.param_bytes];
    if !extra.is_null() {
        if !params.is_null() {
            return Err(INVALID_VALUE);
        }
        let (mut data, mut size) = (0, 0);
        for i in (0..).step_by(2) {
            match extra.at(i)? {
                0 => break,
                1 => data = extra.at(i + 1)?,
                2 => size = In::<usize>::from_addr(extra.at(i + 1)?).get()?,
                _ => return Err(INVALID_VALUE),
            }
        }
        let n = size.min(buffer.len());
        if n > 0 {
            buffer[..n].copy_from_slice(In::<u8>::from_addr(data).bytes(n)?);
        }
        return Ok(buffer);
    }
    for (i, &(offset, size)) in facts.params.iter().enumerate() {
        let value = In::<u8>::from_addr(params.at(i)?).bytes(size)?;
        let end = offset + size;
        let place = buffer.get_mut(offset..end).ok_or(INVALID_VALUE)?;
        place.copy_from_slice(value);
    }
    Ok(buffer)
}

fn code_of(trap: &Trap) -> CUresult {
    match trap {
        Trap::IllegalAddress { .. } => ILLEGAL_ADDRESS,
        Trap::MisalignedAddress { .. } => MISALIGNED_ADDRESS,
        _ => LAUNCH_FAILED,
    }
}

/// Ends an interpretation on every path.
struct Interpreting<'a> {
    driver: &'a Driver,
    gate: Option<RwLockReadGuard<'a, ()>>,
    /// Executed instructions, if it did not fail.
    instructions: u64,
}

impl Drop for Interpreting<'_> {
    fn drop(&mut self) {
        // Releases the gate before the tables are locked: a waiter for the gate may hold the tables.
        self.gate = None;
        self.driver.tables().interpreted(self.instructions);
    }
}

/// The values of a launch's parameters, and pointers to each of them.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Params {
    bytes: Box<[u8]>,
    pub pointers: Box<[u64]>,
}

/// A launch whose arguments have been checked.
#[derive(Debug, Clone)]
pub(crate) struct Kernel {
    /// The handle from the program: a function, or a library's kernel.
    pub given: u64,
    pub function: u64,
    pub context: u64,
    pub grid: [u32; 3],
    pub block: [u32; 3],
    pub shared: u32,
    pub cooperative: bool,
    pub params: Arc<Params>,
}

impl Driver {
    /// Checks a launch into a context.
    pub(crate) fn prepare(&self, l: &Launch, context: u64) -> R<Kernel> {
        let (handle, f, model) = {
            let mut t = self.tables();
            let handle = self.function_handle(&mut t, l.function)?;
            let f: Function = t.functions.get(&handle).ok_or(INVALID_HANDLE)?.clone();
            if f.context != context {
                return Err(INVALID_HANDLE);
            }
            let model = self.model_of(&t, &f)?;
            (handle, f, model)
        };
        let threads = volume(l.block);
        if volume(l.grid) == 0 || threads == 0 || threads > 1024 || l.block[2] > 64 {
            return Err(INVALID_VALUE);
        }
        if l.grid[0] > 0x7fff_ffff || l.grid[1] > 65_535 || l.grid[2] > 65_535 {
            return Err(INVALID_VALUE);
        }
        if l.shared > f.dynamic_shared {
            return Err(INVALID_VALUE);
        }
        if threads > u64::from(f.facts.max_threads) {
            return Err(LAUNCH_OUT_OF_RESOURCES);
        }
        let resident = resident_blocks(model, &shape(&f, l.grid, l.block, l.shared));
        if resident == 0 {
            return Err(LAUNCH_OUT_OF_RESOURCES);
        }
        // All blocks of a cooperative launch must be resident at the same time.
        if l.cooperative && volume(l.grid) > u64::from(resident) * u64::from(model.sms) {
            return Err(COOPERATIVE_LAUNCH_TOO_LARGE);
        }
        let bytes = match &f.ptx {
            Some(_) => gather(&f.facts, l.params, l.extra)?,
            None => Vec::new(),
        };
        let bytes = bytes.into_boxed_slice();
        let start = bytes.as_ptr() as u64;
        let pointers = match f.ptx {
            Some(_) => f.facts.params.iter().map(|p| start + p.0 as u64).collect(),
            None => Box::default(),
        };
        Ok(Kernel {
            given: l.function,
            function: handle,
            context,
            grid: l.grid,
            block: l.block,
            shared: l.shared,
            cooperative: l.cooperative,
            params: Arc::new(Params { bytes, pointers }),
        })
    }

    fn launch(&self, l: &Launch) -> R {
        let stream = self.op_stream(l.stream)?;
        let context = self.tables().stream(stream)?.context;
        let op = Op::Kernel(self.prepare(l, context)?);
        if self.captured(stream, &op)?.is_some() {
            return Ok(());
        }
        if let Op::Kernel(kernel) = &op {
            self.grow_stack(kernel)?;
        }
        self.push(&Place::Stream(stream), op).map(drop)
    }

    /// Grows the stack of a kernel's context to the kernel's needs: when the kernel runs, not when it is recorded.
    pub(crate) fn grow_stack(&self, k: &Kernel) -> R {
        let mut t = self.tables();
        let f = t.functions.get(&k.function).ok_or(INVALID_HANDLE)?;
        let local = u64::from(f.facts.local);
        let grow = |hidden: &mut Hidden| hidden.stack = hidden.stack.max(local);
        self.hide(&mut t, k.context, grow)
    }

    /// Computes a kernel's results; returns its duration. `None` after an error on the GPU: as in the real driver the
    /// launch itself succeeds, and the next wait reports the error.
    pub(crate) fn compute(&self, k: &Kernel) -> R<Option<Time>> {
        let (f, gpu, model) = {
            let t = self.tables();
            let f = t.functions.get(&k.function).ok_or(INVALID_HANDLE)?.clone();
            let gpu = t.context(k.context)?.gpu;
            let model = self.model_of(&t, &f)?;
            (f, gpu, model)
        };
        let shape = shape(&f, k.grid, k.block, k.shared);
        let instructions = match self.interpret(&f, k) {
            Ok(instructions) => instructions,
            Err(trap) => {
                self.fail(k.context, gpu, &f, &trap);
                return Ok(None);
            }
        };
        let known = f.takes.map(|takes| takes.block_ns);
        let block_ns = known.unwrap_or_else(|| match instructions {
            Some(n) => block_ns_from_instructions(model, &shape, n),
            None => UNKNOWN_BLOCK_NS,
        });
        Ok(Some(Time::Blocks {
            shape,
            block_ns,
            meeting: self.meeting(&f, gpu),
            starts_ns: f.takes.map_or(0, |takes| takes.starts_ns),
        }))
    }

    /// Number and size of a launch's meeting. Each GPU counts the launches of the kernel, and launches with the same
    /// count meet. Meetings are within one process.
    fn meeting(&self, f: &Function, gpu: usize) -> (u64, u64) {
        let Some(meets) = f.takes.map(|takes| takes.meets).filter(|many| *many > 0) else {
            return (0, 0);
        };
        let mut hasher = DefaultHasher::new();
        let mut t = self.tables();
        let name = f.facts.name.clone();
        let launches = t.meetings.entry((name, gpu)).or_default();
        *launches += 1;
        (self.slot.id(), &f.facts.name, *launches).hash(&mut hasher);
        (hasher.finish().max(1), meets)
    }

    /// Runs the interpreter; returns the number of executed instructions, if there is PTX.
    fn interpret(&self, f: &Function, k: &Kernel) -> Result<Option<u64>, Trap> {
        let meets = f.takes.is_some_and(|takes| takes.meets > 0);
        let Some(ptx) = f.ptx.as_ref().filter(|_| !meets) else {
            return Ok(None);
        };
        // Lock order: tables, then gate, as when unmapping memory.
        let mut t = self.tables();
        let mut memory = KernelMemory {
            ranges: t.memory.ranges(),
            last: (0, 0),
        };
        t.interprets();
        let gate = self
            .memory_gate
            .read()
            .unwrap_or_else(PoisonError::into_inner);
        drop(t);
        let mut interpreting = Interpreting {
            driver: self,
            gate: Some(gate),
            instructions: u64::MAX,
        };
        let config = LaunchConfig {
            grid: k.grid,
            block: k.block,
            params: &k.params.bytes,
            dynamic_shared: k.shared,
            budget: match k.cooperative {
                // Blocks run one after the other, so a block that waits for others would never end.
                true if volume(k.grid) > 1 => COOPERATIVE_BUDGET,
                _ => u64::MAX,
            },
        };
        let instructions = ptx.launch(&f.facts.name, &config, &mut memory)?;
        interpreting.instructions = instructions;
        Ok(Some(instructions))
    }

    /// Ends the context after an error on the GPU.
    fn fail(&self, context: u64, gpu: usize, f: &Function, trap: &Trap) {
        let lacking = matches!(
            trap,
            Trap::Unsupported { .. } | Trap::UnboundGlobal(_) | Trap::Budget
        );
        if lacking {
            note_once(&format!("kernel {}: {trap}", f.facts.name));
        }
        let code = code_of(trap);
        if let Some(c) = self.tables().contexts.get_mut(&context) {
            c.sticky.get_or_insert(code);
        }
        // The Xid that a real GPU reports: 31 for its MMU, 13 for its engine.
        let xid = if code == ILLEGAL_ADDRESS { 31 } else { 13 };
        let _ = self.board.raise_xid(gpu, xid);
        if self.mps.is_some() {
            let _ = self.board.spread_fault(self.slot, gpu, code);
        }
    }
}

/// `CUlaunchConfig`.
#[derive(Clone, Copy)]
#[repr(C)]
struct Config {
    grid: [u32; 3],
    block: [u32; 3],
    shared: u32,
    stream: u64,
    attributes: In<Attribute>,
    attribute_count: u32,
}

const _: () = assert!(size_of::<Config>() == 56);

/// `CUlaunchAttribute`.
#[derive(Clone, Copy)]
#[repr(C)]
struct Attribute {
    id: u32,
    pad: u32,
    value: [u64; 8],
}

impl Config {
    /// Checks the attributes: accepts hints, refuses what needs more. Returns whether the launch is cooperative.
    fn check(&self) -> R<bool> {
        let mut cooperative = false;
        for a in self.attributes.list(self.attribute_count as usize)? {
            let set = a.value[0] & 0xffff_ffff != 0;
            match a.id {
                2 => cooperative = set,
                // A cluster of one block is not a cluster.
                4 | 11 => {
                    let dims = [
                        a.value[0] as u32,
                        (a.value[0] >> 32) as u32,
                        a.value[1] as u32,
                    ];
                    if volume(dims) > 1 {
                        return Err(NOT_SUPPORTED);
                    }
                }
                _ => {}
            }
        }
        Ok(cooperative)
    }
}

#[allow(clippy::too_many_arguments, reason = "the C function has as many")]
mod exports {
    use super::{Config, Launch};
    use crate::ffi::{In, export_stream};

    export_stream! {
        cuLaunchKernel, cuLaunchKernel_ptsz(
            function: u64, gx: u32, gy: u32, gz: u32, bx: u32, by: u32, bz: u32, shared: u32;
            stream, params: In<u64>, extra: In<u64>
        ) |d| d.launch(&Launch {
            function, grid: [gx, gy, gz], block: [bx, by, bz], shared, stream, params, extra,
            cooperative: false,
        });
        cuLaunchCooperativeKernel, cuLaunchCooperativeKernel_ptsz(
            function: u64, gx: u32, gy: u32, gz: u32, bx: u32, by: u32, bz: u32, shared: u32;
            stream, params: In<u64>
        ) |d| d.launch(&Launch {
            function, grid: [gx, gy, gz], block: [bx, by, bz], shared, stream, params,
            extra: In::NULL, cooperative: true,
        });
    }

    /// The stream is in the structure, so the twin is written by hand.
    fn launch_ex(
        config: In<Config>,
        function: u64,
        params: In<u64>,
        extra: In<u64>,
        twin: bool,
    ) -> u32 {
        crate::ffi::with(|d| {
            let c = config.get()?;
            let cooperative = c.check()?;
            let stream = if twin {
                crate::stream::per_thread(c.stream)
            } else {
                c.stream
            };
            let (grid, block, shared) = (c.grid, c.block, c.shared);
            d.launch(&Launch {
                function,
                grid,
                block,
                shared,
                stream,
                cooperative,
                params,
                extra,
            })
        })
    }

    #[unsafe(no_mangle)]
    extern "C" fn cuLaunchKernelEx(
        config: In<Config>,
        f: u64,
        params: In<u64>,
        extra: In<u64>,
    ) -> u32 {
        launch_ex(config, f, params, extra, false)
    }

    #[unsafe(no_mangle)]
    extern "C" fn cuLaunchKernelEx_ptsz(
        config: In<Config>,
        f: u64,
        params: In<u64>,
        extra: In<u64>,
    ) -> u32 {
        launch_ex(config, f, params, extra, true)
    }
}
