//! What `gshare doctor` says of compute caps: a row per GPU with its rung, why, and what would raise it.

use gshare_config::GpuMode;
use gshare_proto::Check;

use crate::daemon::service::Service;

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
            GpuMode::Mps | GpuMode::Auto => match mps {
                Ok(detail) => row("ok", detail, MPS, None),
                Err(why) => row(
                    "missing",
                    format!("mode {}, but no MPS: {why}", self.gpus[g].modes.now.name()),
                    MPS,
                    Some("install NVIDIA's MPS (Debian: nvidia-cuda-mps), or gshare admin mode GPU timeslice".to_owned()),
                ),
            },
            GpuMode::Timeslice => {
                let raise = match mps {
                    Ok(_) => format!("side by side instead of in turns: gshare admin mode {g} mps"),
                    Err(why) => format!("side by side needs MPS, which is not here: {why}"),
                };
                match self.gate_in_force() {
                    Ok(()) => row(
                        "ok",
                        "rung C5 (timeslice): claims take turns, each by its share of GPU time; as firm as the memory cap"
                            .to_owned(),
                        SIMULATION,
                        Some(raise),
                    ),
                    Err(why) => row(
                        "missing",
                        format!("rung C5 (timeslice) does not hold: {why}"),
                        SIMULATION,
                        Some(raise),
                    ),
                }
            }
        }
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
                    "{rung}: {servers} server, {clients} clients; C2 needs r615"
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
