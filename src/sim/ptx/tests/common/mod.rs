//! Shared by the tests: a flat device memory, parameter buffers, reading results.
#![allow(dead_code, reason = "not every test binary uses all of it")]

use gshare_sim_ptx::{DeviceMemory, LaunchConfig, MemFault, Module, Trap};

/// Start of the tests' memory.
pub(crate) const BASE: u64 = 0x7f00_0000_0000;

/// Bytes at `BASE`; everything else faults.
pub(crate) struct Flat(pub(crate) Vec<u8>);

impl Flat {
    fn range(&self, addr: u64, len: usize) -> Result<std::ops::Range<usize>, MemFault> {
        let start = addr
            .checked_sub(BASE)
            .and_then(|at| usize::try_from(at).ok());
        let start = start.filter(|at| at.saturating_add(len) <= self.0.len());
        start.map(|at| at..at + len).ok_or(MemFault)
    }

    /// Appends the bytes at a multiple of 256 and returns their address.
    pub(crate) fn put<const N: usize>(&mut self, bytes: impl IntoIterator<Item = [u8; N]>) -> u64 {
        self.0.resize(self.0.len().next_multiple_of(256), 0);
        let at = BASE + self.0.len() as u64;
        self.0.extend(bytes.into_iter().flatten());
        at
    }

    /// Elements of `N` bytes at the address.
    pub(crate) fn get<const N: usize>(&self, addr: u64, count: usize) -> Vec<[u8; N]> {
        let at = (addr - BASE) as usize;
        self.0[at..at + N * count].as_chunks::<N>().0.to_vec()
    }
}

impl DeviceMemory for Flat {
    fn load(&mut self, addr: u64, buf: &mut [u8]) -> Result<(), MemFault> {
        let range = self.range(addr, buf.len())?;
        buf.copy_from_slice(&self.0[range]);
        Ok(())
    }

    fn store(&mut self, addr: u64, data: &[u8]) -> Result<(), MemFault> {
        let range = self.range(addr, data.len())?;
        self.0[range].copy_from_slice(data);
        Ok(())
    }
}

/// Allocates and initialises every variable of the module.
#[allow(clippy::unwrap_used, reason = "a test helper")]
pub(crate) fn bind(module: &mut Module, memory: &mut Flat) {
    let globals = module.globals().to_vec();
    let mut addrs = Vec::new();
    for global in &globals {
        let mut bytes = global.init.clone();
        bytes.resize(global.size, 0);
        let at = memory.put(bytes.into_iter().map(|b| [b]));
        addrs.push((global.name.clone(), at));
        module.bind_global(&global.name, at);
    }
    for (global, (_, at)) in globals.iter().zip(&addrs) {
        for (offset, name) in &global.addresses {
            let target = addrs
                .iter()
                .find(|(n, _)| n == name)
                .expect("a variable of the module")
                .1;
            let mut old = [0; 8];
            memory.load(at + *offset as u64, &mut old).unwrap();
            memory
                .store(
                    at + *offset as u64,
                    &(u64::from_le_bytes(old) + target).to_le_bytes(),
                )
                .unwrap();
        }
    }
}

/// Launches `blocks` of `threads` with the parameter bytes.
pub(crate) fn launch(
    module: &Module,
    kernel: &str,
    grid: [u32; 3],
    block: [u32; 3],
    params: &[u8],
    memory: &mut Flat,
) -> Result<u64, Trap> {
    let config = LaunchConfig {
        grid,
        block,
        params,
        dynamic_shared: 0,
        budget: 200_000_000,
    };
    module.launch(kernel, &config, memory)
}

pub(crate) fn launch_one(
    module: &Module,
    kernel: &str,
    params: &[u8],
    memory: &mut Flat,
) -> Result<u64, Trap> {
    launch(module, kernel, [1; 3], [1; 3], params, memory)
}

/// Runs a one-dimensional grid to its end.
#[allow(clippy::unwrap_used, reason = "a test helper")]
pub(crate) fn run(
    module: &Module,
    kernel: &str,
    blocks: u32,
    threads: u32,
    params: &[u8],
    memory: &mut Flat,
) {
    launch(
        module,
        kernel,
        [blocks, 1, 1],
        [threads, 1, 1],
        params,
        memory,
    )
    .unwrap();
}

pub(crate) fn module(text: &str, memory: &mut Flat) -> Module {
    let mut module = Module::link(&[text]).unwrap_or_else(|e| panic!("{e}"));
    bind(&mut module, memory);
    module
}

/// A parameter buffer: each value is aligned to its size.
#[derive(Default)]
pub(crate) struct Params(pub(crate) Vec<u8>);

impl Params {
    pub(crate) fn add<const N: usize>(mut self, bytes: [u8; N]) -> Self {
        self.0.resize(self.0.len().next_multiple_of(N), 0);
        self.0.extend(bytes);
        self
    }

    pub(crate) fn u64(self, value: u64) -> Self {
        self.add(value.to_le_bytes())
    }

    pub(crate) fn i32(self, value: i32) -> Self {
        self.add(value.to_le_bytes())
    }

    pub(crate) fn f32(self, value: f32) -> Self {
        self.add(value.to_le_bytes())
    }

    /// A Numba array: meminfo, parent, items, item size, data, shape, strides.
    pub(crate) fn array(self, data: u64, item: u64, shape: &[u64]) -> Self {
        let items = shape.iter().product();
        let mut params = self.u64(0).u64(0).u64(items).u64(item).u64(data);
        for n in shape {
            params = params.u64(*n);
        }
        let mut stride = item * shape.iter().product::<u64>();
        for n in shape {
            stride /= n;
            params = params.u64(stride);
        }
        params
    }
}

pub(crate) fn read_f32(memory: &Flat, at: u64, n: usize) -> Vec<f32> {
    memory
        .get::<4>(at, n)
        .into_iter()
        .map(f32::from_le_bytes)
        .collect()
}

pub(crate) fn read_f64(memory: &Flat, at: u64, n: usize) -> Vec<f64> {
    memory
        .get::<8>(at, n)
        .into_iter()
        .map(f64::from_le_bytes)
        .collect()
}

pub(crate) fn read_i32(memory: &Flat, at: u64, n: usize) -> Vec<i32> {
    memory
        .get::<4>(at, n)
        .into_iter()
        .map(i32::from_le_bytes)
        .collect()
}

pub(crate) fn read_i64(memory: &Flat, at: u64, n: usize) -> Vec<i64> {
    memory
        .get::<8>(at, n)
        .into_iter()
        .map(i64::from_le_bytes)
        .collect()
}
