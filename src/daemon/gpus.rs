//! The GPUs: who they are, what the core may divide, how they did in the last minutes.

use gshare_core::machine::Event;
use gshare_core::{Bytes, ClaimId, GpuFacts};
use gshare_enforcer::device::DeviceRules;
use gshare_enforcer::gpu::{GpuReading, GpuSample, GpuState};

pub(crate) use super::gpu::{DriverUse, Gpu, UNKNOWN_OVERHEAD};
use super::journal::ClaimRecord;
use super::service::Service;
use super::whose::Whose;
use super::world::{is_fresh, last_reading};

impl Service {
    /// Device rules for the given GPUs, of a claim that may be observed.
    pub(crate) fn rules(
        &self,
        of: Option<&ClaimRecord>,
        gpus: impl IntoIterator<Item = usize>,
    ) -> DeviceRules {
        let own: Vec<usize> = gpus.into_iter().collect();
        let all = 0..self.gpus.len();
        let gpus: Vec<usize> = if self.is_off() {
            all.collect()
        } else if of.is_some_and(ClaimRecord::is_observed) {
            // As a program without a claim: GPUs in stage 4 stay closed.
            let closed = self.denied(&self.stages);
            all.filter(|g| own.contains(g) || !closed.contains(g))
                .collect()
        } else {
            own
        };
        let minors = gpus.iter().filter_map(|g| self.gpus[*g].minor);
        let mut rules = DeviceRules::gpus(self.majors.clone(), minors);
        rules.caps = gpus
            .iter()
            .flat_map(|g| self.gpus[*g].caps.iter().copied())
            .collect();
        rules
    }

    /// Takes the GPUs' identities from the first sample.
    pub(crate) fn identify_gpus(&mut self, sample: &GpuSample) -> anyhow::Result<()> {
        for reading in &sample.gpus {
            let uuid = reading.uuid.clone().unwrap_or_else(|| {
                tracing::warn!(
                    "GPU {} does not report a UUID and cannot be claimed",
                    reading.index
                );
                format!("unknown-{}", reading.index)
            });
            let name = reading.name.clone();
            let model = name.unwrap_or_else(|| "unknown GPU".to_owned());
            self.gpus.push(Gpu {
                minor: reading.minor,
                total: reading.mem_total.unwrap_or(u64::MAX),
                ..Gpu::new(uuid, model)
            });
        }
        anyhow::ensure!(
            self.gpus.iter().any(|g| g.uuid.starts_with("GPU-")),
            "the driver lists GPUs but none of them answers\nhint: check nvidia-smi and dmesg; a lost GPU needs a \
             restart of the machine"
        );
        Ok(())
    }

    /// A GPU that did not answer when the service started may do so later.
    pub(crate) fn meet_gpus(&mut self) {
        let Some(sample) = &self.sample else { return };
        let whole = |(gpu, _): &(&mut Gpu, &GpuReading)| gpu.parent.is_none();
        for (gpu, reading) in self.gpus.iter_mut().zip(&sample.gpus).filter(whole) {
            if let (Some(uuid), false) = (&reading.uuid, gpu.uuid.starts_with("GPU-")) {
                tracing::info!("GPU {} answers now", reading.index);
                gpu.uuid.clone_from(uuid);
                gpu.model = reading.name.clone().unwrap_or_default();
                gpu.minor = reading.minor;
                gpu.total = reading.mem_total.unwrap_or(u64::MAX);
            }
        }
    }

    /// Driver version, for what is learnt under it.
    pub(crate) fn driver_version(&self) -> &str {
        self.sample
            .as_ref()
            .and_then(|s| s.driver_version.as_deref())
            .unwrap_or("unknown")
    }

    /// A reading that is fresh enough to speak of now.
    pub(crate) fn reading(&self, gpu: usize) -> Option<&GpuReading> {
        self.last_reading(gpu).filter(is_fresh)
    }

    /// The last reading of a GPU however old it is; none if another GPU has taken its number.
    pub(crate) fn last_reading(&self, gpu: usize) -> Option<&GpuReading> {
        last_reading(&self.gpus, self.sample.as_ref(), gpu)
    }

    /// Gives the core what the last sample says.
    pub(crate) fn refresh_facts(&mut self) {
        for g in 0..self.gpus.len() {
            // A GPU that does not answer has not become empty.
            if let Some(bytes) = self.unclaimed_bytes(g) {
                let desktop = self.desktop_bytes(g).min(self.desktop_room());
                self.gpus[g].unclaimed = bytes.saturating_sub(desktop);
            }
        }
        let facts = (0..self.gpus.len()).map(|g| self.facts(g)).collect();
        self.drive(Event::Gpus(facts));
    }

    fn facts(&self, gpu: usize) -> GpuFacts {
        let identity = &self.gpus[gpu];
        let reading = self.last_reading(gpu);
        let total = reading.and_then(|r| r.mem_total);
        let usable = total
            .map(|t| Bytes(t.saturating_sub(reading.and_then(|r| r.mem_reserved).unwrap_or(0))));
        let display = reading.is_some_and(|r| {
            r.display_active == Some(true) || r.processes.iter().flatten().any(|p| p.graphics)
        });
        let memory = &self.config.memory;
        let healthy = self.reading(gpu).is_some_and(|r| r.state == GpuState::Ok)
            && (identity.uuid.starts_with("GPU-") || identity.parent.is_some())
            && self.mode_is_ready(gpu)
            && !self.features.health.is_sick(&self.world(), gpu);
        GpuFacts {
            uuid: identity.uuid.clone(),
            model: identity.model.clone(),
            usable,
            reserve: if display {
                memory.display_reserve
            } else {
                memory.reserve
            },
            unclaimed: Bytes(
                (identity.unclaimed)
                    .saturating_add(self.overused_bytes(gpu))
                    .saturating_add(self.beyond_books(gpu)),
            ),
            healthy,
            sharing: self.sharing(gpu),
        }
    }

    /// Bytes that claims have above their limits, as they may while gshare is off and keep after that, and those of claims
    /// for which nothing is booked: offered to nobody.
    fn beyond_books(&self, gpu: usize) -> u64 {
        let uuid = &self.gpus[gpu].uuid;
        let above = |live: &super::live::Live| {
            let seat = live.seats.iter().find(|s| s.gpu == gpu)?;
            let slice = live.record.slices.iter().find(|s| s.uuid == *uuid)?;
            let charged = seat.usage.charged_bytes(self.gpus[gpu].total);
            Some(charged.saturating_sub(slice.mem_limit.max(slice.mem)))
        };
        let used = self.world().driver_use(gpu);
        let beyond = |(id, live): (&ClaimId, &super::live::Live)| match self.is_counted(*id) {
            true => used.get(id)?.bytes,
            false => above(live),
        };
        let beyond = self.claims.iter().filter_map(beyond);
        beyond.fold(0, u64::saturating_add)
    }

    /// Bytes that programs that draw use outside claims.
    fn desktop_bytes(&self, gpu: usize) -> u64 {
        let processes = self.reading(gpu).and_then(|r| r.processes.as_ref());
        let draws = processes.into_iter().flatten().filter(|p| p.graphics);
        draws
            .filter(|p| self.whose(p.pid) == Whose::Outside)
            .filter_map(|p| p.bytes)
            .fold(0, u64::saturating_add)
    }

    /// Bytes that are held back for what draws, beside the reserve of every GPU.
    fn desktop_room(&self) -> u64 {
        let memory = &self.config.memory;
        memory.display_reserve.saturating_sub(memory.reserve).0
    }

    /// Bytes that processes outside claims use; `None` while nothing is known.
    pub(crate) fn unclaimed_bytes(&self, gpu: usize) -> Option<u64> {
        let reading = self.reading(gpu)?;
        let (mut outside, mut inside) = (Some(0u64), 0u64);
        for process in reading.processes.as_ref()? {
            match self.whose(process.pid) {
                Whose::Claim(_) | Whose::Gone => {
                    inside = inside.saturating_add(process.bytes.unwrap_or(0));
                }
                Whose::Outside => {
                    outside = outside
                        .zip(process.bytes)
                        .map(|(sum, b)| sum.saturating_add(b));
                }
            }
        }
        // Where the driver does not say how much a process uses, what is left of the total counts.
        outside.or_else(|| Some(reading.mem_used?.saturating_sub(inside)))
    }
}
