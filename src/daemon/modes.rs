//! How each GPU is shared: what the administrator wants, what is in force, and the change from one to the
//! other, which waits until nobody holds a part of the GPU.

use gshare_config::{Config, GpuMode};
use gshare_core::{Machine, Sharing};

use super::command::Command;
use super::gpu::{Gpus, Modes};
use super::journal::{Journal, JournalError};
use super::world::World;

/// The journal's key of a mode that was set by command.
fn meta_key(uuid: &str) -> String {
    format!("mode.{uuid}")
}

/// The claims that still hold a part of a GPU, for people: `c3 (ada), c4 (bob)`.
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

/// How the core is to share a GPU.
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

impl Gpus {
    /// Every GPU's mode: as set by command, else as the configuration says.
    pub(crate) fn load_modes(
        &mut self,
        config: &Config,
        journal: &Journal,
    ) -> Result<(), JournalError> {
        for (g, gpu) in self.iter_mut().enumerate() {
            let set = journal.meta(&meta_key(&gpu.uuid))?;
            let set = set.as_deref().and_then(GpuMode::from_name);
            let configured = config.gpu(&gpu.uuid, g).map(|keys| keys.mode);
            gpu.modes.now = set.or(configured).unwrap_or_default();
        }
        Ok(())
    }

    /// Modes that were waited for come into force when nobody holds a part of the GPU any more.
    pub(crate) fn change_modes(&mut self, core: &Machine, journal: &mut Journal) -> Vec<Command> {
        let mut commands = Vec::new();
        for (g, gpu) in self.iter_mut().enumerate() {
            let Some(now) = gpu.modes.next else { continue };
            if !core.ledger().holders(g).is_empty() {
                continue;
            }
            gpu.modes = Modes { now, next: None };
            if let Err(error) = journal.set_meta(&meta_key(&gpu.uuid), now.name()) {
                tracing::error!(%error, "the mode of GPU {g} could not be journaled");
            }
            let text = format!("GPU {g} is now in mode {}", now.name());
            commands.extend([Command::Notice(text), Command::ShareAnew]);
        }
        commands
    }

    /// Whether a GPU is divided into instances now, whatever mode was asked for: the hardware decides.
    pub(crate) fn is_divided(&self, g: usize) -> bool {
        self.last_reading(g).and_then(|r| r.mig_enabled) == Some(true)
    }

    /// What an administrator would type to divide a GPU so that a quarter, a half and small claims find an instance.
    pub(crate) fn mig_commands(&self, g: usize) -> String {
        super::mig::commands(g, &self[g].model)
    }

    /// Whether a GPU's mode lets it take new claims at present.
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

    /// The mode in force, as the screen shows it.
    pub(crate) fn mode_text(&self, g: usize) -> String {
        if self.is_divided(g) || self[g].parent.is_some() {
            return GpuMode::Mig.name().to_owned();
        }
        self[g].modes.now.name().to_owned()
    }
}
