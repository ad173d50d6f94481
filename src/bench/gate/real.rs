//! `bench gate --device real`: a private service with the machine's own driver and first GPU. It does not change
//! compute mode or MIG.

use std::process::Stdio;

use anyhow::Context;
use gshare_enforcer::driver::{Library, Search};

use super::Place;
use super::run::WORKER_ARGUMENT;
use crate::bench::say;
use crate::station::{Options, Station};

/// The private service, with the speed of the GPU.
pub(super) fn place() -> anyhow::Result<Place> {
    let search = Search::of_this_process();
    let find = |library| {
        search.locate(library).map_err(|why| {
            anyhow::anyhow!(
                "--device real needs an NVIDIA GPU with its driver, and there is none here: {why}\nhint: without a GPU: gshare bench gate --device sim"
            )
        })
    };
    let libraries = (find(Library::Cuda)?, find(Library::Nvml)?);
    let program = std::env::current_exe().context("cannot find the program itself")?;
    let mut station = Station::start(&Options {
        libraries: Some(libraries),
        ..Options::new(program)
    })
    .context("--device real cannot start a service over this machine's driver")?;
    let gpus = station.snapshot()?.gpus;
    let Some(gpu) = gpus.first() else {
        anyhow::bail!(
            "--device real needs an NVIDIA GPU, and the driver shows none\nhint: without a GPU: gshare bench gate --device sim"
        );
    };
    say(&format!("  on {}: {}", gpu.uuid, gpu.model));
    anyhow::ensure!(
        gpu.mode == "timeslice",
        "GPU 0 is in the mode {}: claims do not take turns there",
        gpu.mode
    );
    let rounds = calibrate(&mut station)?;
    Ok(Place {
        station,
        rounds: Some(rounds),
    })
}

/// Loop iterations per millisecond of a kernel that is alone on the GPU.
fn calibrate(station: &mut Station) -> anyhow::Result<u64> {
    let output = station
        .command()
        .args(["claim", "-q", "-g", "1", "--gpu-ids", "0", "--"])
        .arg(station.program())
        .args([WORKER_ARGUMENT, "calibrate", "spin_1ms"])
        .stdin(Stdio::null())
        .stderr(Stdio::inherit())
        .output()
        .context("cannot start a program")?;
    anyhow::ensure!(
        output.status.success(),
        "the GPU's speed cannot be measured: {}",
        output.status
    );
    let text = String::from_utf8_lossy(&output.stdout);
    text.trim().parse().context("the GPU's speed was not told")
}
