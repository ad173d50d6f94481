//! PTX texts: parsed, linked, and every kernel run for a few instructions. Bytes 0 part several texts.
#![no_main]

use gshare_sim_ptx::{DeviceMemory, LaunchConfig, MemFault, Module};
use libfuzzer_sys::fuzz_target;

const BASE: u64 = 0x7f00_0000_0000;
const BYTES: usize = 64 << 10;
/// Instructions that a launch may take.
const BUDGET: u64 = 2_000;
/// Larger parameter buffers are the driver's to refuse.
const PARAM_BYTES: usize = 32 << 10;

/// Bytes at `BASE`; everything else faults.
struct Flat(Vec<u8>);

impl Flat {
    fn range(&self, addr: u64, len: usize) -> Result<std::ops::Range<usize>, MemFault> {
        let start = addr
            .checked_sub(BASE)
            .and_then(|at| usize::try_from(at).ok())
            .filter(|at| at.saturating_add(len) <= self.0.len());
        start.map(|at| at..at + len).ok_or(MemFault { addr })
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

fuzz_target!(|text: &str| {
    let texts: Vec<&str> = text.split('\0').collect();
    let Ok(mut module) = Module::link(&texts) else {
        return;
    };
    let names: Vec<String> = module.globals().iter().map(|g| g.name.clone()).collect();
    for (nth, name) in (0..).zip(&names) {
        assert!(module.bind_global(name, BASE + nth % 16 * 256));
    }
    let mut memory = Flat(vec![0; BYTES]);
    for kernel in module.kernels().to_vec() {
        if kernel.param_bytes > PARAM_BYTES {
            continue;
        }
        // Every 8-byte parameter points into memory; smaller ones see parts of that.
        let params: Vec<u8> = BASE
            .to_le_bytes()
            .into_iter()
            .cycle()
            .take(kernel.param_bytes)
            .collect();
        let config = LaunchConfig {
            grid: [2, 1, 1],
            block: [40, 1, 1],
            params: &params,
            dynamic_shared: 256,
            budget: BUDGET,
            ..LaunchConfig::default()
        };
        // A trap is an answer; only a panic or a hang is not.
        let _ = module.launch(&kernel.name, &config, &mut memory);
    }
});
