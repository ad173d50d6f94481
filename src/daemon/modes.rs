//! How each GPU is shared: the administrator's choice, the mode in force, and the change between them, which waits
//! until no claim holds a part of the GPU.

use gshare_config::{Config, GpuMode};
use gshare_core::Sharing;
use gshare_proto::messages;

use super::command::{Command, GpuCommand};
use super::gpu::{Gpus, Modes};
use super::journal::{Journal, JournalError, Store};
use super::world::World;

/// The journal's key of a mode that was set by command.
fn meta_key(uuid: &str) -> String {
    format!("mode.{uuid}")
}

/// The journal's key of a mode that applies once the GPU is empty; absent without one.
pub(crate) fn next_key(uuid: &str) -> String {
    format!("mode-next.{uuid}")
}

/// The claims that still hold a part of a GPU, for display: `c3 (ada), c4 (bob)`.
pub(crate) fn holders_text(world: &World<'_>, g: usize) -> String {
    let who: Vec<String> = world
        .machine
        .ledger()
        .holders(g)
        .into_iter()
        .map(|id| {
            let uid = world.claims.get(&id).map(|l| l.record.uid);
            let user = uid.map_or_else(|| "?".to_owned(), |uid| world.host.names.user(uid));
            format!("{id} ({user})")
        })
        .collect();
    who.join(", ")
}

/// How the core shares a GPU.
pub(crate) fn sharing(world: &World<'_>, g: usize) -> Sharing {
    if let Some(part) = world.gpus[g].part {
        return Sharing::Instance {
            mem: part.mem,
            sm: part.sm,
        };
    }
    match world.gpus[g].modes.now {
        GpuMode::Timeslice | GpuMode::Mig => Sharing::Timeslice,
        GpuMode::Exclusive => Sharing::Exclusive,
        GpuMode::Mps => Sharing::Mps {
            multi_user: world.config.mps.multi_user,
        },
        GpuMode::Auto => Sharing::Auto {
            mps: world
                .gpus
                .mps_is_up(g)
                .then_some(world.config.mps.multi_user),
        },
    }
}

/// Applies pending modes on GPUs without holders.
pub(crate) fn change(world: &World<'_>) -> Vec<Command> {
    let mut commands = Vec::new();
    for (g, gpu) in world.gpus.iter().enumerate() {
        let Some(now) = gpu.modes.next else { continue };
        if !world.machine.ledger().holders(g).is_empty() {
            continue;
        }
        let text = messages::gpu_mode(g, now.name());
        commands.extend([
            Command::Store(Store::Meta(meta_key(&gpu.uuid), now.name().to_owned())),
            Command::Store(Store::Meta(next_key(&gpu.uuid), String::new())),
            Command::Gpus(GpuCommand::SetMode(g, now)),
            Command::Notice(text),
            Command::Gpus(GpuCommand::ShareAnew),
        ]);
    }
    commands
}

impl Gpus {
    /// Every GPU's mode: as set by command, otherwise from the configuration; and the mode that was pending when the
    /// previous service ended.
    pub(crate) fn load_modes(
        &mut self,
        config: &Config,
        journal: &Journal,
    ) -> Result<(), JournalError> {
        for (g, gpu) in self.iter_mut().enumerate() {
            let known = |key: &str| -> Result<Option<GpuMode>, JournalError> {
                Ok(journal.meta(key)?.as_deref().and_then(GpuMode::from_name))
            };
            let set = known(&meta_key(&gpu.uuid))?;
            let configured = config.gpu(&gpu.uuid, g).map(|keys| keys.mode);
            let now = set.or(configured).unwrap_or_default();
            let next = known(&next_key(&gpu.uuid))?.filter(|next| *next != now);
            gpu.modes = Modes { now, next };
        }
        Ok(())
    }

    /// Whether a GPU is divided into instances now, whatever mode is set: the hardware decides.
    pub(crate) fn is_divided(&self, g: usize) -> bool {
        self.last_reading(g).and_then(|r| r.mig_enabled) == Some(true)
    }

    /// Whether a GPU's mode allows new claims at present.
    pub(crate) fn mode_is_ready(&self, g: usize) -> bool {
        if self.dividing.contains(&self[g].parent.unwrap_or(g)) {
            return false;
        }
        if let Some(parent) = self[g].parent {
            return self[parent].modes.next.is_none() && self.is_divided(parent);
        }
        let modes = self[g].modes;
        let served = modes.now != GpuMode::Mps || self.mps_is_up(g);
        modes.next.is_none() && !self.is_divided(g) && modes.now != GpuMode::Mig && served
    }
}

/// The mode in force, for the screen.
pub(crate) fn mode_text(gpus: &Gpus, g: usize) -> String {
    if gpus.is_divided(g) || gpus[g].parent.is_some() {
        return GpuMode::Mig.name().to_owned();
    }
    gpus[g].modes.now.name().to_owned()
}

#[cfg(test)]
mod tests {
    use gshare_core::ClaimId;
    use gshare_core::machine::Event;

    use super::*;
    use crate::daemon::effects::written;
    use crate::daemon::world::scene::Scene;

    /// The service starts on this journal.
    fn starts(scene: &mut Scene, journal: &Journal) {
        scene.gpus = Scene::of(2).gpus;
        let loaded = scene.gpus.load_modes(&scene.config, journal);
        loaded.expect("read");
    }

    #[test]
    fn a_mode_that_waits_for_an_empty_gpu_outlives_the_service() {
        let dir = tempfile::tempdir().expect("a directory");
        let journal = Journal::open(&dir.path().join("db")).expect("opened");
        let mut scene = Scene::of(2);
        scene.grant_half(None);
        let asked = next_key(&scene.gpus[0].uuid);
        let exclusive = GpuMode::Exclusive;
        journal.set_meta(&asked, exclusive.name()).expect("written");

        // The claim still has the GPU.
        starts(&mut scene, &journal);
        assert_eq!(scene.gpus[0].modes.next, Some(exclusive));
        let other = scene.gpus[1].modes.next;
        assert_eq!(other, None, "of another GPU nothing was asked");
        assert!(!scene.gpus.mode_is_ready(0), "it takes no new claims");
        assert!(change(&scene.world()).is_empty());

        // The claim has ended.
        let gone = Event::Gone { id: ClaimId(1) };
        scene.machine.step(scene.now.core, gone);
        starts(&mut scene, &journal);
        let done = written(&journal, change(&scene.world()));
        let set = |c: &Command| matches!(c, Command::Gpus(GpuCommand::SetMode(0, mode)) if *mode == exclusive);
        assert!(done.iter().any(set), "{done:?}");

        // It is in force, and nothing is pending.
        starts(&mut scene, &journal);
        let modes = scene.gpus[0].modes;
        assert_eq!((modes.now, modes.next), (exclusive, None));
        assert!(scene.gpus.mode_is_ready(0));
    }
}
