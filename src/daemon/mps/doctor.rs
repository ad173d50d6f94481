//! What `gshare doctor` says of compute caps: a row per GPU with its rung, why, and what would raise it.

use crate::daemon::service::Service;
use gshare_config::GpuMode;
use gshare_core::Held;
use gshare_proto::Check;

/// Where MPS has been seen to work so far; docs/hardware.md has the same words.
const MPS: &str = "real control program only (550.163, without a GPU)";
const SIMULATION: &str = "simulation only";

impl Service {
    /// A row per GPU.
    pub(crate) fn rung_rows(&self) -> Vec<Check> {
        (0..self.gpus.len()).map(|g| self.rung_row(g)).collect()
    }

    fn rung_row(&self, g: usize) -> Check {
        let row = |state: &str, detail: String, status: &str, fix: Option<String>| Check {
            status: status.to_owned(),
            fix,
            ..crate::daemon::doctor::check(&format!("compute cap GPU {g}"), state, detail)
        };
        if self.gpus[g].parent.is_some() {
            let detail = "rung C1 (mig): an instance of its own, one claim at a time".to_owned();
            return row("ok", detail, SIMULATION, None);
        }
        if self.is_divided(g) {
            let detail = "rung C1 (mig): claims get its instances".to_owned();
            return row("ok", detail, SIMULATION, None);
        }
        let mps = self.mps_words(g);
        match self.gpus[g].modes.now {
            GpuMode::Exclusive => row(
                "ok",
                "exclusive: one claim at a time has it whole".to_owned(),
                SIMULATION,
                None,
            ),
            GpuMode::Mig => row(
                "missing",
                "mode mig, but it has no instances: no claim can use it".to_owned(),
                SIMULATION,
                Some(self.mig_commands(g)),
            ),
            GpuMode::Mps => match mps {
                Ok(detail) => row("ok", detail, MPS, self.above_mps()),
                Err(why) => row(
                    "missing",
                    format!("mode mps, but no MPS: {why}"),
                    MPS,
                    Some(format!(
                        "install NVIDIA's MPS (Debian: nvidia-cuda-mps), or gshare admin mode {g} timeslice"
                    )),
                ),
            },
            GpuMode::Auto if self.is_mixed(g) => row(
                "limited",
                "auto, now some claims run through MPS and others take turns: the driver divides the time between the two kinds, and no share is held there".to_owned(),
                SIMULATION,
                Some(format!(
                    "more GPUs with mode auto keep them apart; gshare admin mode {g} timeslice --wait, or mps, has one kind"
                )),
            ),
            GpuMode::Auto => match (mps, self.runs_through_mps(g)) {
                (Ok(detail), Some(true)) => {
                    let detail = format!("auto, now {detail}");
                    row("ok", detail, MPS, self.above_mps())
                }
                (Ok(_), Some(false)) => {
                    let raise =
                        "side by side while all claims there are batch or inference of one owner";
                    self.turns_row(g, "auto, now rung C5 (timeslice)", raise.to_owned())
                }
                (Ok(detail), None) => {
                    let detail = format!(
                        "auto, nobody there: {detail}; that is for batch and inference of one owner, others take turns (C5)"
                    );
                    row("ok", detail, MPS, self.above_mps())
                }
                (Err(why), _) => {
                    let raise = format!("side by side needs MPS, which is not here: {why}");
                    self.turns_row(g, "auto, without MPS rung C5 (timeslice)", raise)
                }
            },
            GpuMode::Timeslice => {
                let raise = match mps {
                    Ok(_) => format!("side by side instead of in turns: gshare admin mode {g} mps"),
                    Err(why) => format!("side by side needs MPS, which is not here: {why}"),
                };
                self.turns_row(g, "rung C5 (timeslice)", raise)
            }
        }
    }

    /// The row of a GPU whose claims take turns.
    fn turns_row(&self, g: usize, rung: &str, raise: String) -> Check {
        let (state, detail) = match self.gate_in_force() {
            Ok(()) => (
                "ok",
                format!(
                    "{rung}: claims take turns, each by its share of GPU time; as firm as the memory cap"
                ),
            ),
            Err(why) => ("missing", format!("{rung} does not hold: {why}")),
        };
        Check {
            status: SIMULATION.to_owned(),
            fix: Some(raise),
            ..crate::daemon::doctor::check(&format!("compute cap GPU {g}"), state, detail)
        }
    }

    /// Whether the claims on a GPU run through MPS now; `None` where there are none.
    fn runs_through_mps(&self, g: usize) -> Option<bool> {
        self.held_there(g).next().map(|held| held == Held::Mps)
    }

    /// Whether some claims on a GPU run through MPS and others take turns.
    pub(crate) fn is_mixed(&self, g: usize) -> bool {
        let mps = |held| held == Held::Mps;
        self.held_there(g).any(mps) && !self.held_there(g).all(mps)
    }

    /// How each claim on a GPU holds its part.
    fn held_there(&self, g: usize) -> impl Iterator<Item = Held> {
        let uuid = &self.gpus[g].uuid;
        let records = self.claims.values().map(|live| &live.record);
        let slices = records.flat_map(|r| &r.slices);
        slices.filter(move |s| s.uuid == *uuid).map(|s| s.held)
    }

    /// What would let more claims run side by side than MPS does now.
    fn above_mps(&self) -> Option<String> {
        let accept = "several users side by side: [mps] multi-user = \"accept\"; a fault of one program then ends those of all";
        (!self.config.mps.multi_user).then(|| accept.to_owned())
    }

    /// The rung that MPS gives on a GPU, or why there is none.
    fn mps_words(&self, g: usize) -> Result<String, String> {
        let program = self.mps_program()?;
        let multi = self.config.mps.multi_user;
        let rung = if multi {
            "rung C3 (mps, all users share one server and its faults)"
        } else {
            "rung C4 (mps, one user at a time)"
        };
        match self.mps.get(&g) {
            Some(on) if on.up => {
                let servers = on.servers.len();
                let clients: usize = on.servers.iter().map(|s| s.clients.len()).sum();
                Ok(format!(
                    "{rung}: {}, {}; C2 (MPS 3, release 615) is not built",
                    count(servers, "server"),
                    count(clients, "client")
                ))
            }
            Some(on) => Err(on
                .why
                .clone()
                .unwrap_or_else(|| "the daemon does not answer yet".to_owned())),
            None => Ok(format!("{rung} by {}", program.display())),
        }
    }
}

fn count(n: usize, what: &str) -> String {
    let s = if n == 1 { "" } else { "s" };
    format!("{n} {what}{s}")
}
