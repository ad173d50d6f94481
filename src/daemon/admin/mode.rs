//! How claims share a GPU, by command.

use gshare_config::GpuMode;
use gshare_proto::{AdminDone, ErrorCode, Reply, WireError};

use super::Act;
use crate::daemon::journal::put_meta;
use crate::daemon::modes;
use crate::daemon::peer::Peer;
use crate::daemon::service::Service;
use crate::daemon::world::World;

impl Service {
    pub(super) fn admin_mode(
        &mut self,
        peer: &Peer,
        word: &str,
        mode: &str,
        when_empty: bool,
    ) -> Result<Reply, WireError> {
        let usage = |text: String| WireError::new(ErrorCode::Usage, text);
        let found = self.gpus.gpu_ids("GPU ", &[word.to_owned()])?;
        let g = found
            .first()
            .map(|g| *g as usize)
            .ok_or_else(|| usage(format!("this machine has no GPU {word}")))?;
        if self.gpus[g].parent.is_some() {
            return Err(usage(format!(
                "GPU {g} is an instance; set the mode of its whole GPU"
            )));
        }
        let wanted = GpuMode::from_name(mode)
            .ok_or_else(|| usage(format!("`{mode}` is not a mode of a GPU")))?;
        mode_is_possible(&self.world(), g, wanted)?;
        let before = self.gpus[g].modes;
        let holders = self.core.ledger().holders(g);
        let key = modes::next_key(&self.gpus[g].uuid);
        if wanted == before.now {
            let none = self.journal.set_meta(&key, "");
            none.map_err(|e| super::unwritten(&e))?;
            self.gpus[g].modes.next = None;
            self.refresh();
            return Ok(done(format!("GPU {g} is in mode {mode}"), None));
        }
        if !holders.is_empty() && !when_empty {
            return Err(WireError::new(
                ErrorCode::NotAvailable,
                format!(
                    "GPU {g} is held by {}",
                    modes::holders_text(&self.world(), g)
                ),
            )
            .with_hint(format!(
                "to change it when they have ended: gshare admin mode {g} {mode} --wait"
            )));
        }
        let act = Act {
            action: "mode",
            target: format!("GPU {g} ({})", self.gpus[g].uuid),
            before: before.now.name().to_owned(),
            after: if holders.is_empty() {
                mode.to_owned()
            } else {
                format!("{mode} when it is empty")
            },
            reason: None,
        };
        self.journal
            .audit(&self.host.names, peer, vec![act], |tx| {
                put_meta(tx, &key, mode)
            })?;
        self.gpus[g].modes.next = Some(wanted);
        let undo = Some(format!("gshare admin mode {g} {}", before.now.name()));
        if holders.is_empty() {
            let modes = self.gpus.change_modes(&self.core);
            self.execute(modes);
            return Ok(done(format!("GPU {g} is now in mode {mode}"), undo));
        }
        self.refresh();
        for id in holders {
            let text = format!(
                "{id}: the administrator waits for your claim to end: GPU {g} then changes to mode {mode}; your \
                 claim is not affected"
            );
            self.tell_owner(id, &text);
        }
        let text = format!(
            "GPU {g} takes no new claims and changes to mode {mode} when it is empty; held by {}",
            modes::holders_text(&self.world(), g)
        );
        Ok(done(text, undo))
    }
}

/// Whether a mode can be had on this GPU at all.
fn mode_is_possible(world: &World<'_>, g: usize, wanted: GpuMode) -> Result<(), WireError> {
    let refuse = |text: String, hint: String| {
        Err(WireError::new(ErrorCode::NotAvailable, text).with_hint(hint))
    };
    match wanted {
        GpuMode::Mps => match world.config.mps_program() {
            Ok(_) => Ok(()),
            Err(why) => refuse(
                format!("no MPS on this machine: {why}"),
                "install NVIDIA's MPS (Debian: nvidia-cuda-mps), or set its path: [mps] control = \"PATH\""
                    .to_owned(),
            ),
        },
        GpuMode::Mig if !world.gpus.is_divided(g) => refuse(
            format!("GPU {g} has no MIG instances"),
            world.gpus.mig_commands(g),
        ),
        GpuMode::Mig => Ok(()),
        _ if world.gpus.is_divided(g) => refuse(
            format!("GPU {g} is divided into MIG instances"),
            format!("sudo gshare admin mig {g} off"),
        ),
        _ => Ok(()),
    }
}

fn done(message: String, undo: Option<String>) -> Reply {
    Reply::Admin(AdminDone { message, undo })
}
