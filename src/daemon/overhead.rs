//! Cost of a context on each GPU: measured once per model (an instance is a model of its own) and driver by a
//! short-lived process that makes a context and asks the driver for its use, then remembered. Learnt again, and for
//! clients of MPS, from members that have only a context.

use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use gshare_core::{Bytes, ClaimId, Held};

use super::claims::Claims;
use super::driver::Driver;
use super::gpu::{Gpu, Gpus, UNKNOWN_OVERHEAD};
use super::journal::Journal;

/// Hidden first argument of the measuring process.
pub const PROBE_ARGUMENT: &str = "__probe-context";
/// Longest time for all GPUs.
const PATIENCE: Duration = Duration::from_secs(60);

/// Key under which it is remembered.
fn name(model: &str, held: Held) -> String {
    match held {
        Held::Mps => format!("{model} (MPS)"),
        _ => model.to_owned(),
    }
}

impl Gpus {
    /// Reads earlier services' measurements.
    pub(crate) fn load_overheads(&mut self, journal: &Journal) -> anyhow::Result<()> {
        let driver = self.driver_version().to_owned();
        for gpu in self.iter_mut() {
            if let Some(bytes) = journal.overhead(&gpu.model, &driver)? {
                gpu.overhead.bytes = bytes;
                gpu.overhead.known = true;
                gpu.overhead.probed = Some(bytes);
            }
            gpu.overhead.mps = journal.overhead(&name(&gpu.model, Held::Mps), &driver)?;
        }
        Ok(())
    }

    /// Measures unknown costs, on one GPU of each model, all models in parallel: before the first claim, so that no
    /// claim is charged a guess. Once per model and driver; a minute at most.
    pub(crate) fn measure_overheads(
        &mut self,
        driver: &Driver,
        journal: &mut Journal,
        claims: &Claims,
    ) {
        let Ok(libcuda) = &driver.libcuda else {
            return;
        };
        let mut models: Vec<(&str, &str)> = Vec::new();
        // A divided GPU has contexts only on its instances.
        let has_contexts = |g: usize, gpu: &Gpu| {
            gpu.parent.is_some() || gpu.uuid.starts_with("GPU-") && !self.is_divided(g)
        };
        for (g, gpu) in self.iter().enumerate() {
            if gpu.overhead.known || self.is_released(g) || !has_contexts(g, gpu) {
                continue;
            }
            if !models.iter().any(|(model, _)| *model == gpu.model) {
                models.push((&gpu.model, &gpu.uuid));
            }
        }
        if models.is_empty() {
            return;
        }
        tracing::info!(
            "measuring the memory of a CUDA context on {} GPU models, once per driver version",
            models.len()
        );
        let nvml = &driver.nvml;
        let measured: Vec<(String, anyhow::Result<u64>)> = std::thread::scope(|scope| {
            let begin = |(_, uuid): &(_, &str)| {
                let uuid = (*uuid).to_owned();
                (
                    uuid.clone(),
                    scope.spawn(move || probe(libcuda, nvml, &uuid)),
                )
            };
            let probes: Vec<_> = models.iter().map(begin).collect();
            let ends = probes.into_iter().map(|(uuid, probe)| {
                let ended = probe.join();
                let panicked = |_| Err(anyhow::anyhow!("the probe panicked"));
                (uuid, ended.unwrap_or_else(panicked))
            });
            ends.collect()
        });
        for (uuid, result) in measured {
            match result {
                Ok(bytes) => {
                    self.learnt(journal, claims, &uuid, (Held::Timeslice, bytes, true));
                }
                Err(error) => tracing::warn!(
                    "could not measure the memory of a CUDA context on {uuid}, so gshare assumes {} MiB: {error:#}",
                    UNKNOWN_OVERHEAD >> 20
                ),
            }
        }
    }

    /// A member of this claim that has only a context uses this much of a GPU.
    pub(crate) fn relearn(
        &mut self,
        journal: &mut Journal,
        claims: &Claims,
        (id, g, bytes): (ClaimId, usize, u64),
    ) {
        let uuid = self[g].uuid.clone();
        let slices = claims.get(&id).map(|live| &live.record.slices);
        let Some(slice) = slices.and_then(|all| all.iter().find(|s| s.uuid == uuid)) else {
            return;
        };
        let (held, gpu) = (slice.held, &self[g]);
        let is_news = !gpu.context_cost_known(held) || bytes < gpu.context_cost(held);
        if is_news && gpu.believable(held).contains(&bytes) {
            self.learnt(journal, claims, &uuid, (held, bytes, false));
        }
    }

    fn learnt(
        &mut self,
        journal: &mut Journal,
        claims: &Claims,
        uuid: &str,
        (held, bytes, by_probe): (Held, u64, bool),
    ) {
        let driver = self.driver_version().to_owned();
        let Some(index) = self.gpu_index(uuid) else {
            return;
        };
        let model = self[index].model.clone();
        let name = name(&model, held);
        tracing::info!(
            "a CUDA context on GPU {index} ({name}) takes {}",
            Bytes(bytes)
        );
        // There is no probe for clients of MPS.
        if by_probe || held == Held::Mps {
            let saved = journal.learn_overhead(&name, &driver, bytes);
            if let Err(error) = saved {
                tracing::warn!(%error, "could not save the measured memory of a CUDA context");
            }
        }
        for gpu in self.iter_mut().filter(|g| g.model == model) {
            if held == Held::Mps {
                gpu.overhead.mps = Some(bytes);
            } else {
                gpu.overhead.bytes = bytes;
                gpu.overhead.known = true;
                gpu.overhead.probed = gpu.overhead.probed.or(by_probe.then_some(bytes));
            }
        }
        // For contexts that are made from now on.
        for live in claims.values() {
            for seat in &live.seats {
                let gpu = &self[seat.gpu];
                let slice = live.record.slices.iter().find(|s| s.uuid == gpu.uuid);
                if let Some(slice) = slice {
                    seat.limits
                        .set_context_overhead(gpu.context_cost(slice.held));
                }
            }
        }
    }
}

fn probe(libcuda: &std::path::Path, nvml: &std::path::Path, uuid: &str) -> anyhow::Result<u64> {
    let mut command = Command::new(std::env::current_exe()?);
    if uuid.starts_with("MIG-") {
        // The driver shows a program one instance, and only if it is named.
        command.env("CUDA_VISIBLE_DEVICES", uuid);
    }
    let mut child = command
        .arg(PROBE_ARGUMENT)
        .arg(libcuda)
        .arg(nvml)
        .arg(uuid)
        .env_remove("LD_LIBRARY_PATH")
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()?;
    let until = Instant::now() + PATIENCE;
    // Its short output fits the pipe, so the process can be awaited first.
    while child.try_wait()?.is_none() {
        if Instant::now() > until {
            let _ = child.kill();
            let _ = child.wait();
            anyhow::bail!("no answer within {} s", PATIENCE.as_secs());
        }
        std::thread::sleep(Duration::from_millis(10));
    }
    let output = child.wait_with_output()?;
    let text = String::from_utf8_lossy(&output.stdout);
    anyhow::ensure!(
        output.status.success(),
        "{}",
        String::from_utf8_lossy(&output.stderr).trim()
    );
    Ok(text.trim().parse()?)
}
