//! Programs that gshare starts for itself: they are recognised by their first argument, before the command
//! line is parsed, and are no part of what users see.

use std::path::Path;
use std::process::ExitCode;

use crate::bench;
use crate::daemon::{COVER_ARGUMENT, ENGINE_ARGUMENT, PROBE_ARGUMENT, cover};
use crate::demo::{JOB_ARGUMENT, Job};
use crate::kernel::helper::ARGUMENT as NOTEBOOKS_ARGUMENT;

/// Runs such a program if the process was started as one.
#[must_use]
pub fn run() -> Option<ExitCode> {
    let mut args = std::env::args().skip(1);
    let result = match args.next()?.as_str() {
        PROBE_ARGUMENT => probe(&args.collect::<Vec<_>>()),
        COVER_ARGUMENT => cover(&args.collect::<Vec<_>>()).map_err(|e| format!("{e:#}")),
        ENGINE_ARGUMENT => engine(&args.collect::<Vec<_>>()),
        NOTEBOOKS_ARGUMENT => {
            crate::kernel::helper::run(&args.collect::<Vec<_>>()).map_err(|e| e.to_string())
        }
        JOB_ARGUMENT => job(&args.collect::<Vec<_>>()),
        bench::WORKER_ARGUMENT => {
            bench::program(&args.collect::<Vec<_>>()).map_err(|e| format!("{e:#}"))
        }
        bench::FLOOD_ARGUMENT => {
            bench::flood(&args.collect::<Vec<_>>()).map_err(|e| format!("{e:#}"))
        }
        bench::CHILD_ARGUMENT => bench_child(&args.collect::<Vec<_>>()),
        _ => return None,
    };
    Some(match result {
        Ok(()) => ExitCode::SUCCESS,
        Err(text) => {
            crate::cli::out::note(&text);
            ExitCode::FAILURE
        }
    })
}

/// Prints the bytes that a context costs on a GPU.
fn probe(args: &[String]) -> Result<(), String> {
    let [libcuda, nvml, uuid] = args else {
        return Err("three arguments are needed".to_owned());
    };
    let bytes = gshare_enforcer::cuda::measure_context(Path::new(libcuda), Path::new(nvml), uuid)
        .map_err(|e| e.to_string())?;
    crate::cli::out::print(&format!("{bytes}\n")).map_err(|e| e.message)
}

/// Checkpoints processes for the service, until that goes.
fn engine(args: &[String]) -> Result<(), String> {
    let [libcuda] = args else {
        return Err("one argument is needed".to_owned());
    };
    gshare_enforcer::checkpoint::serve(Path::new(libcuda));
    Ok(())
}

fn job(args: &[String]) -> Result<(), String> {
    Job::parse(args)
        .ok_or("this is no job of the demo")?
        .run()
        .map_err(|e| e.to_string())
}

/// Prints what the calls of a driver and of a proxy before it take.
fn bench_child(args: &[String]) -> Result<(), String> {
    let line = bench::child(args).map_err(|e| format!("{e:#}"))?;
    crate::cli::out::print(&format!("{line}\n")).map_err(|e| e.message)
}
