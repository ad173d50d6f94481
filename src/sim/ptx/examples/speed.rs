//! Prints how many thread-instructions the interpreter runs in a second: `cargo run --release --example speed`.

use std::time::Instant;

use gshare_sim_ptx::{DeviceMemory, LaunchConfig, MemFault, Module};

struct Flat(Vec<u8>);

impl DeviceMemory for Flat {
    fn load(&mut self, addr: u64, buf: &mut [u8]) -> Result<(), MemFault> {
        let bytes = self
            .0
            .get(addr as usize..addr as usize + buf.len())
            .ok_or(MemFault { addr })?;
        buf.copy_from_slice(bytes);
        Ok(())
    }

    fn store(&mut self, addr: u64, data: &[u8]) -> Result<(), MemFault> {
        let bytes = self
            .0
            .get_mut(addr as usize..addr as usize + data.len())
            .ok_or(MemFault { addr })?;
        bytes.copy_from_slice(data);
        Ok(())
    }
}

fn main() {
    let text = include_str!("../tests/data/nvrtc_elementwise.ptx");
    let start = Instant::now();
    let module = Module::parse(text).expect("the text of the tests");
    println!(
        "parse   {:7.2} ms for {} bytes",
        start.elapsed().as_secs_f64() * 1e3,
        text.len()
    );
    let n = 1u32 << 18;
    let mut memory = Flat(vec![0; 4 << 20]);
    let mut saxpy = 2.5f32.to_le_bytes().to_vec();
    saxpy.resize(8, 0);
    saxpy.extend((1u64 << 20).to_le_bytes());
    saxpy.extend((2u64 << 20).to_le_bytes());
    saxpy.extend(n.to_le_bytes());
    let mut mandel = (1u64 << 20).to_le_bytes().to_vec();
    for value in [512u32, 512, 200] {
        mandel.extend(value.to_le_bytes());
    }
    for (kernel, params, grid) in [
        ("saxpy", saxpy, [n / 256, 1, 1]),
        ("mandel", mandel, [2, 512, 1]),
    ] {
        let config = LaunchConfig {
            grid,
            block: [256, 1, 1],
            params: &params,
            ..LaunchConfig::default()
        };
        let start = Instant::now();
        let stats = module
            .launch(kernel, &config, &mut memory)
            .expect("the kernel runs");
        let rate = stats.instructions as f64 / start.elapsed().as_secs_f64() / 1e6;
        println!(
            "{kernel:7} {rate:7.0} M thread-instructions/s ({} in all)",
            stats.instructions
        );
    }
}
