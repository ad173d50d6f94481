//! A loaded PTX module: its kernels, its variables, and launches.

use crate::code::Code;
use crate::error::{MemFault, PtxError, Trap};
use crate::{lower, run, text};

/// The memory of a launch's global addresses: bytes at addresses below 2^56, little-endian.
pub trait DeviceMemory {
    /// Fills `buf` from the bytes at `addr`.
    ///
    /// # Errors
    /// A fault if any byte of the range is not mapped.
    fn load(&mut self, addr: u64, buf: &mut [u8]) -> Result<(), MemFault>;

    /// Writes `data` to the bytes at `addr`.
    ///
    /// # Errors
    /// A fault if any byte of the range is not mapped.
    fn store(&mut self, addr: u64, data: &[u8]) -> Result<(), MemFault>;
}

/// Properties of a kernel. Sizes are in bytes.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct KernelInfo {
    /// Name in the PTX text.
    pub name: String,
    /// Offset and size of each parameter in the parameter buffer.
    pub params: Vec<(usize, usize)>,
    /// Size of the parameter buffer.
    pub param_bytes: usize,
    /// Static shared memory per block.
    pub shared_bytes: u32,
    /// Local variables per thread.
    pub local_bytes: u32,
    /// Maximum threads per block (`.maxntid`/`.reqntid`; else 1024).
    pub max_threads: u32,
}

/// A variable of the module. The caller allocates it, writes its initial value and binds it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct GlobalInfo {
    /// Name in the PTX text.
    pub name: String,
    /// Size in bytes.
    pub size: usize,
    /// Initial value; zeroes follow if it is shorter than `size`.
    pub init: Vec<u8>,
    /// Addresses in the initial value: byte offset, and the variable whose address (8 bytes) is added to what
    /// [`init`](Self::init) has there.
    pub addresses: Vec<(usize, String)>,
    /// The host can access its memory, too (`__managed__`).
    pub managed: bool,
}

/// Arguments of a launch.
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
    /// Maximum instructions, summed over threads, before [`Trap::Budget`].
    pub budget: u64,
}

/// A PTX module, ready to launch.
#[derive(Debug, Clone)]
pub struct Module {
    kernels: Vec<(KernelInfo, Code)>,
    globals: Vec<GlobalInfo>,
    bound: Vec<Option<u64>>,
}

impl Module {
    /// Links PTX texts into one module: what one declares as `.extern`, another defines.
    ///
    /// # Errors
    /// The line and reason if a text is not valid PTX. Unsupported instructions are not an error here: they trap when a
    /// thread reaches them.
    pub fn link(texts: &[&str]) -> Result<Self, PtxError> {
        let tokens: Vec<_> = texts
            .iter()
            .map(|text| crate::lexer::lex(text))
            .collect::<Result<_, _>>()?;
        let mut program = text::Program::default();
        for (text, tokens) in texts.iter().zip(&tokens) {
            program.read(text, tokens)?;
        }
        let kernels = lower::kernels(&program)?;
        Ok(Self {
            kernels,
            bound: vec![None; program.globals.len()],
            globals: program.globals,
        })
    }

    /// All kernels (`.entry`) in order of the text.
    pub fn kernels(&self) -> impl Iterator<Item = &KernelInfo> {
        self.kernels.iter().map(|kernel| &kernel.0)
    }

    /// All variables of module scope in `.global` and `.const`.
    pub fn globals(&self) -> &[GlobalInfo] {
        &self.globals
    }

    /// Sets the device address of a variable.
    pub fn bind_global(&mut self, name: &str, addr: u64) {
        for (info, bound) in self.globals.iter().zip(&mut self.bound) {
            if info.name == name {
                *bound = Some(addr);
            }
        }
    }

    /// Runs a kernel to its end; returns the number of instructions that its threads executed.
    ///
    /// # Errors
    /// The first trap of any thread; memory written before stays written.
    ///
    /// # Panics
    /// If the module has no such kernel.
    pub fn launch(
        &self,
        name: &str,
        config: &LaunchConfig<'_>,
        memory: &mut dyn DeviceMemory,
    ) -> Result<u64, Trap> {
        let found = self.kernels.iter().find(|kernel| kernel.0.name == name);
        let (info, code) = found.unwrap_or_else(|| panic!("no kernel {name}"));
        run::run(code, info.shared_bytes, config, memory, &|index| {
            self.bound[index as usize]
                .ok_or_else(|| Trap::UnboundGlobal(self.globals[index as usize].name.clone()))
        })
    }
}
