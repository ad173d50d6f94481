//! A flat device memory for tests.

use gshare_sim_ptx::{DeviceMemory, LaunchConfig, LaunchStats, MemFault, Module, Trap};

/// Where the tests' memory begins.
pub(crate) const BASE: u64 = 0x7f00_0000_0000;

/// Bytes at `BASE`; everything else faults.
pub(crate) struct Flat(pub(crate) Vec<u8>);

impl Flat {
    fn range(&self, addr: u64, len: usize) -> Result<std::ops::Range<usize>, MemFault> {
        let start = addr
            .checked_sub(BASE)
            .and_then(|at| usize::try_from(at).ok());
        let start = start.filter(|at| at.saturating_add(len) <= self.0.len());
        start.map(|at| at..at + len).ok_or(MemFault { addr })
    }

    /// Appends the bytes at a multiple of 256 and returns their address.
    pub(crate) fn put<const N: usize>(&mut self, bytes: impl IntoIterator<Item = [u8; N]>) -> u64 {
        self.0.resize(self.0.len().next_multiple_of(256), 0);
        let at = BASE + self.0.len() as u64;
        self.0.extend(bytes.into_iter().flatten());
        at
    }

    /// Elements of `N` bytes at the address.
    #[allow(dead_code, reason = "not every test binary reads arrays")]
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

/// Gives every variable of the module memory with its initial value.
#[allow(dead_code, reason = "not every test binary has variables")]
#[allow(clippy::unwrap_used, reason = "a test helper")]
pub(crate) fn bind(module: &mut Module, memory: &mut Flat) {
    let globals = module.globals().to_vec();
    let mut addrs = Vec::new();
    for global in &globals {
        let mut bytes = global.init.clone();
        bytes.resize(global.size, 0);
        let at = memory.put(bytes.into_iter().map(|b| [b]));
        addrs.push((global.name.clone(), at));
        assert!(module.bind_global(&global.name, at));
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
) -> Result<LaunchStats, Trap> {
    let config = LaunchConfig {
        grid,
        block,
        params,
        budget: 200_000_000,
        ..LaunchConfig::default()
    };
    module.launch(kernel, &config, memory)
}
