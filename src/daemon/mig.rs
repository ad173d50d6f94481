//! Instances of divided GPUs (MIG). Each is a GPU of its own for placement, pages and the screen, listed after the
//! whole GPUs; its GPU then offers nothing itself. An instance gets a new UUID whenever it is made, so state that
//! lasts (drains, history, the GPUs that a claim named) is kept under its place: see [`Gpus::lasting_name`].

pub(crate) mod divide;
pub(crate) mod order;

use std::collections::VecDeque;

use gshare_config::Config;
use gshare_core::Share;
use gshare_core::machine::Event;
use gshare_enforcer::gpu::{GpuReading, GpuState, MigReading};
use gshare_enforcer::nodes::MigMinors;

use super::claims::Claims;
use super::gpu::{Gpu, Gpus, Part};

/// Bytes as the nearest number of eighths of the whole: `2g.20gb` has 19.5 GiB and is a quarter of 80.
fn eighths(bytes: u64, whole: u64) -> Share {
    let part = (bytes as f64 / whole.max(1) as f64 * 8.0).round();
    Share::from_milli((part as u32).clamp(1, 8) * 125)
}

fn part(instance: &MigReading, whole: u64) -> Option<Part> {
    let (own, all) = instance.slices.filter(|(_, all)| *all > 0)?;
    Some(Part {
        mem: eighths(instance.mem_total?, whole),
        sm: Share::from_milli((own * 1000 / all).min(1000)),
    })
}

/// An instance as a reading of a GPU. Values of the whole GPU (clocks, power) are left out.
fn reading(index: usize, parent: &GpuReading, instance: &MigReading) -> GpuReading {
    GpuReading {
        index: u32::try_from(index).unwrap_or(u32::MAX),
        uuid: Some(instance.uuid.clone()),
        name: instance.name.clone(),
        sm_count: instance.sm_count,
        gpm_supported: parent.gpm_supported,
        mig_enabled: Some(false),
        mem_total: instance.mem_total,
        mem_reserved: instance.mem_reserved,
        mem_used: instance.mem_used,
        time_busy: None,
        gpm: instance.gpm,
        temperature: None,
        power_w: None,
        power_limit_w: None,
        processes: instance.processes.clone(),
        instances: Vec::new(),
        ..parent.clone()
    }
}

impl Gpus {
    /// Updates the instances from the newest sample: new ones are added, and each has a reading at its place. Returns
    /// the new ones that are drained, for the core.
    pub(crate) fn meet_instances(&mut self, config: &Config, claims: &Claims) -> Vec<Event> {
        let mut drained = Vec::new();
        let Some(mut sample) = self.sample.take() else {
            return drained;
        };
        let found: Vec<(usize, MigReading)> = (0..)
            .zip(&sample.gpus)
            .flat_map(|(g, r)| r.instances.iter().map(move |i| (g, i.clone())))
            .collect();
        let seen = |uuid: &str| found.iter().any(|(_, i)| i.uuid == uuid);
        for gpu in self.iter_mut().filter(|g| g.parent.is_some()) {
            gpu.gone = !seen(&gpu.uuid);
        }
        // First those at the place of an earlier one: they get its number again.
        for same_place in [true, false] {
            for (parent, instance) in &found {
                if self.gpu_index(&instance.uuid).is_none() {
                    let met = self.meet_instance((config, claims), *parent, instance, same_place);
                    drained.extend(met);
                }
            }
        }
        for g in sample.gpus.len()..self.len() {
            let uuid = &self[g].uuid;
            let seen = found.iter().find(|(_, i)| i.uuid == *uuid);
            let Some(parent) = self[g].parent else {
                continue;
            };
            let mut next = sample.gpus[parent].clone();
            match seen {
                Some((parent, instance)) => next = reading(g, &sample.gpus[*parent], instance),
                // It was removed: nothing is known of it any more.
                None => {
                    next.state = GpuState::Released;
                    next.uuid = Some(String::new());
                    next.processes = None;
                    next.instances = Vec::new();
                }
            }
            sample.gpus.push(next);
        }
        self.sample = Some(sample);
        drained
    }

    fn meet_instance(
        &mut self,
        (config, claims): (&Config, &Claims),
        parent: usize,
        instance: &MigReading,
        same_place: bool,
    ) -> Option<Event> {
        let profile = instance.name.as_deref().and_then(|n| n.rsplit(' ').next());
        let place = profile
            .zip(instance.start)
            .map(|(profile, start)| format!("{profile}@{start}"));
        let number = match (same_place, &place) {
            (true, None) => return None,
            (true, Some(_)) => match free_number(self, claims, parent, place.as_ref()) {
                None => return None,
                found => found,
            },
            (false, _) => free_number(self, claims, parent, None),
        };
        let minor = self[parent].minor;
        let list = MigMinors::read(&config.devices.mig_minors);
        let caps = minor.and_then(|m| list.of_instance(m, instance.gi, instance.ci));
        if caps.is_none() {
            tracing::warn!(
                "{}: its MIG capabilities are not listed in {}: programs in claims cannot open it",
                instance.uuid,
                config.devices.mig_minors.display()
            );
        }
        let g = number.unwrap_or(self.len());
        let model = instance.name.clone().unwrap_or_else(|| "MIG".to_owned());
        tracing::info!("GPU {g} is an instance of GPU {parent}: {model}");
        let whole = self[parent].total;
        let history = match self.get_mut(g).filter(|_| same_place) {
            Some(before) => std::mem::take(&mut before.history),
            None => VecDeque::new(),
        };
        let gpu = Gpu {
            minor,
            total: instance.mem_total.unwrap_or(u64::MAX),
            history,
            caps: caps.into_iter().flatten().collect(),
            part: part(instance, whole),
            parent: Some(parent),
            place,
            ..Gpu::new(instance.uuid.clone(), model)
        };
        match self.get_mut(g) {
            Some(before) => *before = gpu,
            None => self.push(gpu),
        }
        self.drained_again(g)
    }
}

/// The number of a removed instance that nothing refers to any more.
fn free_number(
    gpus: &Gpus,
    claims: &Claims,
    parent: usize,
    place: Option<&String>,
) -> Option<usize> {
    (0..gpus.len()).find(|g| {
        let gpu = &gpus[*g];
        let spoken_of =
            |r: &super::journal::ClaimRecord| r.slices.iter().any(|s| s.uuid == gpu.uuid);
        gpu.gone
            && (place.is_none() || gpu.parent == Some(parent) && gpu.place.as_ref() == place)
            && !claims.values().any(|live| spoken_of(&live.record))
    })
}

/// The command that divides a GPU so that a quarter, a half and small claims find an instance.
pub(crate) fn commands(gpu: usize, model: &str) -> String {
    let cut = if model.contains("A100") {
        "3g.40gb+2g.20gb+1g.10gb"
    } else if model.contains("H200") {
        "3g.71gb+2g.35gb+1g.18gb"
    } else if model.contains("H100") {
        "3g.40gb+2g.20gb+1g.10gb"
    } else if model.contains("RTX PRO 6000") {
        "2g.48gb+1g.24gb+1g.24gb"
    } else {
        return format!(
            "{model} cannot be divided; to share it in turns: gshare admin mode {gpu} timeslice"
        );
    };
    // From NVIDIA's guide: these have displays, and MIG only in compute mode.
    let before = if model.contains("RTX PRO 6000") && !model.contains("Server") {
        "first, once per GPU, with NVIDIA's tool: DisplayModeSelector --gpumode=compute; then "
    } else {
        ""
    };
    format!("{before}sudo gshare admin mig {gpu} {cut}")
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::daemon::journal::DrainRecord;
    use crate::daemon::world::scene::Scene;

    #[test]
    fn who_has_a_display_is_switched_first() {
        let model = "NVIDIA RTX PRO 6000 Blackwell Workstation Edition";
        assert!(commands(1, model).starts_with("first, once per GPU, with NVIDIA's tool"));
        let model = "NVIDIA RTX PRO 6000 Blackwell Server Edition";
        assert_eq!(
            commands(1, model),
            "sudo gshare admin mig 1 2g.48gb+1g.24gb+1g.24gb"
        );
        assert!(commands(0, "NVIDIA GeForce RTX 4090").contains("cannot be divided"));
    }

    #[test]
    fn memory_is_counted_in_eighths() {
        let gib = |n: f64| (n * 1024.0 * 1024.0 * 1024.0) as u64;
        for (bytes, whole, milli) in [
            (9.5, 80.0, 125),
            (19.5, 80.0, 250),
            (39.25, 80.0, 500),
            (78.75, 80.0, 1000),
            (16.0, 140.4, 125),
            (32.5, 140.4, 250),
            (23.6, 95.6, 250),
        ] {
            assert_eq!(
                eighths(gib(bytes), gib(whole)),
                Share::from_milli(milli),
                "{bytes}"
            );
        }
    }

    #[test]
    fn an_instance_that_is_made_again_has_its_number_and_stays_drained() {
        let mut scene = Scene::of(1);
        let instance = |uuid: &str| MigReading {
            uuid: uuid.to_owned(),
            name: Some("NVIDIA A100 MIG 2g.20gb".to_owned()),
            gi: 1,
            ci: 0,
            start: Some(4),
            sm_count: None,
            slices: Some((2, 7)),
            mem_total: Some(20 << 30),
            mem_reserved: None,
            mem_used: None,
            gpm: None,
            processes: None,
        };
        let shows = |scene: &mut Scene, instances: Vec<MigReading>| {
            let sample = scene.sample();
            sample.gpus.truncate(1);
            sample.gpus[0].instances = instances;
            scene.gpus.meet_instances(&scene.config, &scene.claims)
        };
        assert!(shows(&mut scene, vec![instance("MIG-a")]).is_empty());
        assert_eq!((scene.gpus.len(), scene.gpus[1].parent), (2, Some(0)));
        let drain = DrainRecord {
            uuid: scene.gpus.lasting_name(1),
            since_ms: 0,
            by: "root".to_owned(),
            reason: None,
        };
        scene.gpus.drain(drain);
        assert!(shows(&mut scene, Vec::new()).is_empty());
        assert!(scene.gpus[1].gone);
        let events = shows(&mut scene, vec![instance("MIG-b")]);
        let uuid = "MIG-b".to_owned();
        assert_eq!(events, [Event::Drain { uuid, on: true }]);
        assert_eq!(scene.gpus.len(), 2, "it has the number again");
        assert!(!scene.gpus[1].gone && scene.gpus[1].uuid == "MIG-b");
    }
}
