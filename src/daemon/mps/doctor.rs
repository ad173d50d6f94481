//! Rows of `gshare doctor` about compute limits: for each GPU the mechanism, why, and how to improve it.

use crate::daemon::doctor::row::SIMULATION;
use crate::daemon::mig;
use crate::daemon::settings::Settings;
use crate::daemon::turns;
use crate::daemon::world::World;
use gshare_abi::NO_EVENT_TIMES;
use gshare_config::GpuMode;
use gshare_core::Held;
use gshare_core::units::many;
use gshare_proto::{Check, messages};

/// Status of MPS; docs/hardware.md uses the same words.
const MPS: &str = "tested only with NVIDIA's MPS control program (550.163, without a GPU)";

/// How each claim on a GPU holds its part.
fn held_there(world: &World<'_>, g: usize) -> impl Iterator<Item = Held> {
    let uuid = &world.gpus[g].uuid;
    let records = world.claims.values().map(|live| &live.record);
    let slices = records.flat_map(|r| &r.slices);
    slices.filter(move |s| s.uuid == *uuid).map(|s| s.held)
}

/// Whether some claims on a GPU run through MPS and others take turns.
pub(crate) fn is_mixed(world: &World<'_>, g: usize) -> bool {
    let mps = |held| held == Held::Mps;
    held_there(world, g).any(mps) && !held_there(world, g).all(mps)
}

/// How MPS enforces shares on a GPU, or why it does not.
fn mps_words(world: &World<'_>, g: usize) -> Result<String, String> {
    let program = world.config.mps_program()?;
    let multi = world.config.mps.multi_user;
    let rung = if multi {
        "mps, all users share one server, and a fatal fault ends the programs of all"
    } else {
        "mps, one user at a time"
    };
    match world.gpus.mps.get(&g) {
        Some(on) if on.up => {
            let servers = on.servers.len();
            let clients: usize = on.servers.iter().map(|s| s.clients.len()).sum();
            Ok(format!(
                "{rung}: {}, {}; gshare does not use the namespaces of MPS 3 (release 615) yet",
                many(servers, "server"),
                many(clients, "client")
            ))
        }
        Some(on) => Err(on
            .why
            .clone()
            .unwrap_or_else(|| "the daemon does not answer yet".to_owned())),
        None => Ok(format!("{rung}, by {}", program.display())),
    }
}

/// Whether the claims on a GPU run through MPS now; `None` without claims.
fn runs_through_mps(world: &World<'_>, g: usize) -> Option<bool> {
    held_there(world, g).next().map(|held| held == Held::Mps)
}

impl Settings {
    /// How more claims could run side by side than MPS allows now.
    fn above_mps(&self) -> Option<String> {
        let accept = "to run several users side by side: [mps] multi-user = \"accept\"; a fault of one program then \
                      ends the programs of all";
        (!self.mps.multi_user).then(|| accept.to_owned())
    }
}

fn rung_row(world: &World<'_>, g: usize) -> Check {
    let row = |state: &str, detail: String, status: &str, fix: Option<String>| Check {
        status: status.to_owned(),
        fix,
        ..crate::daemon::doctor::row::check(&format!("compute limit GPU {g}"), state, detail)
    };
    if world.gpus[g].parent.is_some() {
        let detail = "mig: this instance serves one claim at a time".to_owned();
        return row("ok", detail, SIMULATION, None);
    }
    if world.gpus.is_divided(g) {
        let detail = "mig: claims get its instances".to_owned();
        return row("ok", detail, SIMULATION, None);
    }
    let mps = mps_words(world, g);
    match world.gpus[g].modes.now {
        GpuMode::Exclusive => row(
            "ok",
            "exclusive: one claim at a time has the whole GPU".to_owned(),
            SIMULATION,
            None,
        ),
        GpuMode::Mig => row(
            "missing",
            "mode mig without instances: no claim can use this GPU".to_owned(),
            SIMULATION,
            Some(mig::commands(g, &world.gpus[g].model)),
        ),
        GpuMode::Mps => match mps {
            Ok(detail) => row("ok", detail, MPS, world.config.above_mps()),
            Err(why) => row(
                "missing",
                format!("mode mps, but no MPS: {why}"),
                MPS,
                Some(format!(
                    "install NVIDIA's MPS (Debian: nvidia-cuda-mps), or gshare admin mode {g} timeslice"
                )),
            ),
        },
        GpuMode::Auto if is_mixed(world, g) => row(
            "limited",
            "auto, now mixed: some claims run through MPS and others take turns; the driver divides the time \
             between them, and shares are not enforced".to_owned(),
            SIMULATION,
            Some(format!(
                "if more GPUs have mode auto, gshare can put MPS claims and turn-taking claims on different ones. Or \
                 choose one mode for this GPU: gshare admin mode {g} timeslice --wait (or mps)"
            )),
        ),
        GpuMode::Auto => match (mps, runs_through_mps(world, g)) {
            (Ok(detail), Some(true)) => {
                let detail = format!("auto, now {detail}");
                row("ok", detail, MPS, world.config.above_mps())
            }
            (Ok(_), Some(false)) => {
                let raise =
                    "claims run side by side while all of them are batch or inference of one owner";
                turns_row(world, g, "auto, now timeslice", raise.to_owned())
            }
            (Ok(detail), None) => {
                let detail = format!(
                    "auto, no claims now: {detail}; batch and inference of one owner use MPS, other claims take \
                     turns"
                );
                row("ok", detail, MPS, world.config.above_mps())
            }
            (Err(why), _) => {
                let raise = messages::needs_mps(why);
                turns_row(world, g, "mode auto without MPS: claims take turns (timeslice)", raise)
            }
        },
        GpuMode::Timeslice => {
            let raise = match mps {
                Ok(_) => format!("to run claims side by side: gshare admin mode {g} mps"),
                Err(why) => messages::needs_mps(why),
            };
            turns_row(world, g, "timeslice", raise)
        }
    }
}

/// A row per GPU.
pub(crate) fn rung_rows(world: &World<'_>) -> Vec<Check> {
    world.gpus.present().map(|g| rung_row(world, g)).collect()
}

/// The row of a GPU whose claims take turns.
fn turns_row(world: &World<'_>, g: usize, rung: &str, raise: String) -> Check {
    let mut seats = world.claims.values().flat_map(|live| &live.seats);
    let timeless = seats.any(|s| s.gpu == g && s.usage.flags() & NO_EVENT_TIMES != 0);
    let (state, detail) = match turns::gate_in_force(world) {
        Ok(()) if timeless => (
            "missing",
            format!(
                "{rung}, but shares are not enforced: the driver's CUDA events have no timestamps, so gshare cannot \
                 tell how long kernels take"
            ),
        ),
        Ok(()) => (
            "ok",
            format!(
                "{rung}: claims take turns, each by its share of GPU time; enforced as strictly as the memory limit"
            ),
        ),
        Err(why) => (
            "missing",
            format!("{rung}, but shares are not enforced: {why}"),
        ),
    };
    Check {
        status: SIMULATION.to_owned(),
        fix: Some(raise),
        ..crate::daemon::doctor::row::check(&format!("compute limit GPU {g}"), state, detail)
    }
}
