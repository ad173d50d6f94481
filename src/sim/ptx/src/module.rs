//! A loaded PTX module: its kernels, its variables, and how a launch is asked for.

use crate::error::{PtxError, Trap};
use crate::exec::{self, Launch};
use crate::ir::Function;
use crate::memory::DeviceMemory;
use crate::parse;

/// One parameter of a kernel, as laid out in the parameter buffer.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Param {
    /// Name in the PTX text.
    pub name: String,
    /// First byte in the parameter buffer.
    pub offset: usize,
    /// Size in bytes.
    pub size: usize,
    /// Alignment in bytes.
    pub align: usize,
}

/// What is known about a kernel without running it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct KernelInfo {
    /// Name in the PTX text.
    pub name: String,
    /// Parameters in order.
    pub params: Vec<Param>,
    /// Size of the parameter buffer in bytes.
    pub param_bytes: usize,
    /// Estimated 32-bit registers per thread (the real figure is made by an assembler).
    pub regs_estimate: u32,
    /// Static shared memory per block in bytes.
    pub static_shared_bytes: usize,
    /// Local memory per thread in bytes.
    pub local_bytes: usize,
    /// Most threads per block (`.maxntid`/`.reqntid`; else 1024).
    pub max_threads: u32,
    /// Instructions in the text of the kernel.
    pub static_instructions: usize,
}

/// Where a module variable lives.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Space {
    /// `.global`
    Global,
    /// `.const`
    Const,
}

/// A module variable: the caller gives it memory, writes [`init`](Self::init) there and binds it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct GlobalInfo {
    /// Name in the PTX text.
    pub name: String,
    /// Size in bytes.
    pub size: usize,
    /// Alignment in bytes.
    pub align: usize,
    /// Initial value; shorter than `size` means zeroes follow.
    pub init: Vec<u8>,
    /// Where the initial value holds addresses: byte offset, variable whose address belongs there
    /// (8 bytes, added to what [`init`](Self::init) has there).
    pub addresses: Vec<(usize, String)>,
    /// It lies in memory that the host reaches, too (`__managed__`).
    pub managed: bool,
    /// Its state space.
    pub space: Space,
}

/// How to run a kernel.
#[derive(Debug, Clone)]
pub struct LaunchConfig<'a> {
    /// Blocks in x, y, z.
    pub grid: [u32; 3],
    /// Threads per block in x, y, z.
    pub block: [u32; 3],
    /// Parameter buffer, at least as long as [`KernelInfo::param_bytes`].
    pub params: &'a [u8],
    /// Dynamic shared memory per block in bytes.
    pub dynamic_shared: u32,
    /// Most instructions (summed over threads) before [`Trap::Budget`].
    pub budget: u64,
    /// What `%globaltimer` reads at the start, in nanoseconds.
    pub time_ns: u64,
    /// SMs that `%smid` spreads the blocks over.
    pub sm_count: u32,
}

impl Default for LaunchConfig<'_> {
    fn default() -> Self {
        Self {
            grid: [1; 3],
            block: [1; 3],
            params: &[],
            dynamic_shared: 0,
            budget: u64::MAX,
            time_ns: 0,
            sm_count: 1,
        }
    }
}

/// What a finished launch executed.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct LaunchStats {
    /// Instructions summed over threads.
    pub instructions: u64,
    /// Instructions summed over warps (lanes that run together count once).
    pub warp_instructions: u64,
}

/// A PTX module, ready to launch.
#[derive(Debug, Clone)]
pub struct Module {
    functions: Vec<Function>,
    defined: Vec<bool>,
    kernels: Vec<KernelInfo>,
    /// The function of each kernel.
    entries: Vec<u32>,
    globals: Vec<GlobalInfo>,
    bound: Vec<Option<u64>>,
    shared_bytes: u32,
}

impl Module {
    /// Reads one PTX text.
    ///
    /// # Errors
    /// The line and reason if the text is no PTX. Instructions that the interpreter does not carry
    /// are no error here: they trap when a thread reaches them.
    pub fn parse(text: &str) -> Result<Self, PtxError> {
        Self::link(&[text])
    }

    /// Reads several PTX texts into one module, as a linker would: `.extern` names in one are found
    /// among the visible names of the others.
    ///
    /// # Errors
    /// As [`parse`](Self::parse); also a variable that is declared but defined nowhere.
    pub fn link(texts: &[&str]) -> Result<Self, PtxError> {
        let build = parse::parse(texts)?;
        Ok(Self {
            functions: build.functions,
            defined: build.defined,
            kernels: build.kernels,
            entries: build.entries,
            bound: vec![None; build.globals.len()],
            globals: build.globals,
            shared_bytes: build.shared_bytes,
        })
    }

    /// All kernels (`.entry`) in order of the text.
    pub fn kernels(&self) -> &[KernelInfo] {
        &self.kernels
    }

    /// The kernel of that name.
    pub fn kernel(&self, name: &str) -> Option<&KernelInfo> {
        self.kernels.iter().find(|kernel| kernel.name == name)
    }

    /// All variables of module scope in `.global` and `.const`.
    pub fn globals(&self) -> &[GlobalInfo] {
        &self.globals
    }

    /// Instructions that are not carried (they trap when reached): function and text.
    pub fn unsupported(&self) -> impl Iterator<Item = (&str, &str)> {
        self.functions.iter().flat_map(|function| {
            let texts = function.unsupported.iter();
            texts.map(|text| (function.name.as_str(), text.as_str()))
        })
    }

    /// Tells at which device address the variable lives; false if there is none of that name.
    pub fn bind_global(&mut self, name: &str, addr: u64) -> bool {
        let mut found = false;
        for (info, bound) in self.globals.iter().zip(&mut self.bound) {
            if info.name == name {
                *bound = Some(addr);
                found = true;
            }
        }
        found
    }

    /// Runs a kernel to its end.
    ///
    /// # Errors
    /// The first trap of any thread; memory written until then stays written.
    pub fn launch(
        &self,
        name: &str,
        config: &LaunchConfig<'_>,
        memory: &mut dyn DeviceMemory,
    ) -> Result<LaunchStats, Trap> {
        let found = self.kernels.iter().position(|kernel| kernel.name == name);
        let Some(index) = found else {
            return Err(Trap::UnknownKernel(name.to_owned()));
        };
        let kernel = &self.kernels[index];
        if config.params.len() < kernel.param_bytes {
            let (got, want) = (config.params.len(), kernel.param_bytes);
            return Err(Trap::InvalidLaunch(format!(
                "{got} bytes of parameters, {want} are needed"
            )));
        }
        let launch = Launch {
            functions: &self.functions,
            defined: &self.defined,
            global_names: &|index| self.globals[index as usize].name.clone(),
            globals: &self.bound,
            config,
            static_shared: self.shared_bytes,
            memory,
            shared: Vec::new(),
            block: [0; 3],
            block_index: 0,
            stats: LaunchStats::default(),
        };
        exec::run(launch, self.entries[index])
    }
}
