//! Programs that gshare starts for itself: recognised by their first argument, before the command line is parsed, and
//! hidden from users.

use std::path::Path;
use std::process::ExitCode;

use crate::daemon::{COVER_ARGUMENT, ENGINE_ARGUMENT, HOOK_ARGUMENT, PROBE_ARGUMENT, cover};
use crate::kernel::helper::ARGUMENT as NOTEBOOKS_ARGUMENT;

/// The list of checks of the driver.
pub(crate) const CHECKS_ARGUMENT: &str = "device-checks";

/// Runs such a program if the process was started as one.
#[must_use]
pub fn run() -> Option<ExitCode> {
    #[cfg(feature = "lab")]
    if let Some(code) = gshare_sim_mps::run() {
        return Some(code);
    }
    #[cfg(feature = "lab")]
    if let Some(code) = toy() {
        return Some(code);
    }
    let mut args = std::env::args().skip(1);
    let (name, args) = (args.next()?, args.collect::<Vec<_>>());
    // The service, which starts them, has a higher priority than users' programs; these do not.
    if [PROBE_ARGUMENT, COVER_ARGUMENT, NOTEBOOKS_ARGUMENT].contains(&name.as_str()) {
        gshare_abi::host::Priority::Background.take();
    }
    let result = match name.as_str() {
        CHECKS_ARGUMENT => return Some(gshare_device::run(&[CHECKS_ARGUMENT], &args)),
        PROBE_ARGUMENT => probe(&args),
        COVER_ARGUMENT => cover(&args).map_err(|e| format!("{e:#}")),
        ENGINE_ARGUMENT => engine(&args),
        HOOK_ARGUMENT => crate::cli::container_hook(&args),
        NOTEBOOKS_ARGUMENT => crate::kernel::helper::run(&args).map_err(|e| e.to_string()),
        #[cfg(feature = "lab")]
        other => lab(other, &args)?,
        #[cfg(not(feature = "lab"))]
        _ => return None,
    };
    Some(match result {
        Ok(()) => ExitCode::SUCCESS,
        Err(text) => {
            crate::command::out::note(&text);
            ExitCode::FAILURE
        }
    })
}

/// The programs of the demo and of the benches.
#[cfg(feature = "lab")]
fn lab(name: &str, args: &[String]) -> Option<Result<(), String>> {
    use crate::bench;
    use crate::demo::{JOB_ARGUMENT, Job};
    Some(match name {
        JOB_ARGUMENT => Job::parse(args)
            .ok_or_else(|| "this is not a job of the demo".to_owned())
            .and_then(|job| job.run().map_err(|e| e.to_string())),
        bench::WORKER_ARGUMENT => bench::program(args).map_err(|e| format!("{e:#}")),
        bench::FLOOD_ARGUMENT => bench::flood(args).map_err(|e| format!("{e:#}")),
        // Measures calls of a driver and of a library in front of it.
        bench::CHILD_ARGUMENT => {
            bench::child(args)
                .map_err(|e| format!("{e:#}"))
                .and_then(|line| {
                    crate::command::out::print(&format!("{line}\n")).map_err(|e| e.message)
                })
        }
        _ => return None,
    })
}

/// The small GPU program in the shell of the demo, by its name.
#[cfg(feature = "lab")]
fn toy() -> Option<ExitCode> {
    use crate::demo::{Job, TOY};
    use std::io::Write;
    let mut args = std::env::args();
    let called = args.next()?;
    if called.rsplit('/').next() != Some(TOY) {
        return None;
    }
    let job = Job::toy(&args.collect::<Vec<_>>());
    let done = job.and_then(|job| job.run().map_err(|e| format!("{TOY}: {e}")));
    let Err(text) = done else {
        return Some(ExitCode::SUCCESS);
    };
    // If its terminal is gone, its exit code remains.
    let _ = writeln!(std::io::stderr(), "{text}");
    Some(ExitCode::FAILURE)
}

/// Prints the bytes of a context on a GPU.
fn probe(args: &[String]) -> Result<(), String> {
    let [libcuda, nvml, uuid] = args else {
        return Err("three arguments are needed".to_owned());
    };
    let bytes = gshare_enforcer::cuda::measure_context(Path::new(libcuda), Path::new(nvml), uuid)
        .map_err(|e| e.to_string())?;
    crate::command::out::print(&format!("{bytes}\n")).map_err(|e| e.message)
}

/// Checkpoints processes for the service, until it ends.
fn engine(args: &[String]) -> Result<(), String> {
    let [libcuda] = args else {
        return Err("one argument is needed".to_owned());
    };
    gshare_enforcer::checkpoint::serve(Path::new(libcuda));
    Ok(())
}
