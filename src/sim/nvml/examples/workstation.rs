//! Makes a simulated workstation to look at with nvidia-ml-py, nvtop or nvitop:
//! `workstation DIR LIBRARY MODEL...` lays out DIR and keeps one process busy on every GPU until killed.

use std::path::PathBuf;
use std::time::Duration;

use gshare_sim_board::{Board, BoardSpec, MIB, MemoryKind, ProcessInfo, Shape, Work};

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let mut args = std::env::args().skip(1);
    let (Some(dir), Some(library)) = (args.next(), args.next()) else {
        return Err("usage: workstation DIR LIBRARY MODEL...".into());
    };
    let dir = PathBuf::from(dir);
    let models: Vec<String> = args.collect();
    let models: Vec<&str> = models.iter().map(String::as_str).collect();
    std::fs::create_dir_all(dir.join("lib"))?;
    std::fs::copy(library, dir.join("lib/libnvidia-ml.so.1"))?;
    let board = Board::create(&dir.join("board"), &BoardSpec::new(&models))?;
    let slot = board.register(&ProcessInfo::current())?;
    let mut contexts = Vec::new();
    for gpu in 0..models.len() {
        contexts.push(board.add_context(slot, gpu)?);
        board.alloc(slot, gpu, MemoryKind::ALL[0], (gpu as u64 + 1) * 1024 * MIB)?;
    }
    println!("pid {} on {}", std::process::id(), dir.display());
    loop {
        let mut last = 0;
        for (gpu, context) in contexts.iter().enumerate() {
            // The first GPU is busy all the time with few SMs, the second half of the time with all.
            let blocks = if gpu % 2 == 0 { 16 } else { 2000 };
            let block_ns = if gpu % 2 == 0 {
                200_000_000
            } else {
                50_000_000
            };
            let shape = Some(Shape {
                blocks,
                threads: 256,
                regs: 32,
                shared: 0,
            });
            let work = Work {
                gpu,
                context: *context,
                shape,
                block_ns,
                transfer: None,
                record: false,
                meeting: (0, 0),
                deps: Default::default(),
            };
            last = last.max(board.submit(slot, &work)?.0);
        }
        board.wait(last);
        board.poll(slot);
        std::thread::sleep(Duration::from_millis(20));
    }
}
