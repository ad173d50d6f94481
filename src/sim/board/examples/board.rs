//! Makes and looks at boards by hand.
//!
//! `board create FILE MODEL...` makes one; `board show FILE` prints what is on it.

use std::path::Path;
use std::process::ExitCode;

use gshare_sim_board::{Board, BoardSpec};

fn run(args: &[String]) -> Result<(), Box<dyn std::error::Error>> {
    match args {
        [verb, file, models @ ..] if verb == "create" => {
            let models: Vec<&str> = models.iter().map(String::as_str).collect();
            Board::create(Path::new(file), &BoardSpec::new(&models))?;
        }
        [verb, file] if verb == "show" => {
            let seen = Board::open(Path::new(file))?.snapshot();
            for (i, g) in seen.gpus.iter().enumerate() {
                println!(
                    "{i} {} {} used {} MiB, busy {} ms, SM {} ms",
                    g.uuid,
                    g.model.name,
                    g.used >> 20,
                    g.busy_ns / 1_000_000,
                    g.sm_ns / 1_000_000 / u64::from(g.model.sms)
                );
                for p in &g.processes {
                    println!(
                        "  {} uid {} {}: {} MiB, {} kernels, busy {} ms",
                        p.pid,
                        p.uid,
                        p.name,
                        p.bytes >> 20,
                        p.launched,
                        p.busy_ns / 1_000_000
                    );
                }
            }
        }
        _ => return Err("usage: board create FILE MODEL... | board show FILE".into()),
    }
    Ok(())
}

fn main() -> ExitCode {
    let args: Vec<String> = std::env::args().skip(1).collect();
    match run(&args) {
        Ok(()) => ExitCode::SUCCESS,
        Err(e) => {
            eprintln!("board: {e}");
            ExitCode::from(64)
        }
    }
}
