//! `gshare doctor --conformance`: the driver checks, run in a claim on an idle GPU.

use std::io::{BufRead, BufReader};
use std::path::Path;
use std::process::{Command, Stdio};

use gshare_device::Summary;
use gshare_proto::{AdminCall, Call, Conformance, GpuState, Reply, Snapshot};

use super::admin::{ask, show};
use super::claim::unexpected;
use super::failure::{self, Failure};
use super::{Outcome, connect, out};
use crate::hidden::CHECKS_ARGUMENT;

/// Exit code if something differs from its documentation.
const DIFFERS: u8 = 1;

/// Runs the checks with these prefixes; without any all, and then the service stores the result.
pub(super) fn run(socket: Option<&Path>, only: &[String], json: bool) -> Outcome {
    let mut client = connect::connect(socket)?;
    // Check the caller's rights first, not after ten minutes.
    ask(&mut client, AdminCall::Conformance { found: None })?;
    let snapshot = match client.call(&Call::Snapshot)? {
        Reply::Snapshot(snapshot) => snapshot,
        other => return Err(unexpected(&other)),
    };
    let gpu = idle(&snapshot).ok_or_else(|| {
        Failure::new(
            failure::NOT_AVAILABLE,
            "the checks need a GPU that nothing else uses, and no GPU is idle",
        )
        .with_hint("gshare status shows who uses the GPUs; gshare admin drain keeps one free")
    })?;
    out::note(&format!(
        "checking the driver on GPU {gpu}, which takes about 10 min"
    ));
    let broken = |error: std::io::Error| {
        Failure::new(
            failure::INTERNAL,
            format!("the checks cannot be started: {error}"),
        )
    };
    let own = std::env::current_exe().map_err(broken)?;
    let mut command = Command::new(&own);
    if let Some(socket) = socket {
        command.arg("--socket").arg(socket);
    }
    let words = [
        "claim",
        "--quiet",
        "--nonblock",
        "--no-library",
        "-g",
        "1",
        "--gpu-ids",
    ];
    command.args(words).arg(gpu.to_string()).arg("--").arg(&own);
    command.arg(CHECKS_ARGUMENT).args(only);
    let mut child = command.stdout(Stdio::piped()).spawn().map_err(broken)?;
    let mut sum = None;
    let said = child.stdout.take().into_iter();
    for line in said.flat_map(|said| BufReader::new(said).lines()) {
        let line = line.map_err(broken)?;
        sum = sum.or(Summary::parse(&line));
        if !json {
            out::print(&format!("{line}\n"))?;
        }
    }
    let status = child.wait().map_err(broken)?;
    let Some(sum) = sum else {
        // It has printed the reason.
        let code = status.code().and_then(|code| u8::try_from(code).ok());
        return Ok(code.filter(|code| *code != 0).unwrap_or(failure::INTERNAL));
    };
    let found = Conformance {
        gpu,
        checks: sum.checks - sum.skipped,
        different: sum.different,
    };
    if only.is_empty() {
        let mut client = connect::connect(socket)?;
        show(
            &ask(&mut client, AdminCall::Conformance { found: Some(found) })?,
            json,
        )?;
    } else if json {
        out::json(&found)?;
    } else {
        out::note("not all checks ran, so nothing was recorded");
    }
    Ok(if sum.different == 0 { 0 } else { DIFFERS })
}

/// The first unused GPU that takes claims.
fn idle(snapshot: &Snapshot) -> Option<u32> {
    let claimed = snapshot.claims.iter().flat_map(|c| &c.gpus).map(|g| g.gpu);
    let used: Vec<u32> = claimed
        .chain(snapshot.unclaimed.iter().map(|u| u.gpu))
        .collect();
    let mut gpus = snapshot
        .gpus
        .iter()
        .filter(|gpu| gpu.state == GpuState::Ok && gpu.drain.is_none() && gpu.instance.is_none());
    gpus.find(|gpu| !used.contains(&gpu.index))
        .map(|gpu| gpu.index)
}
