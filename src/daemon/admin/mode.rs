//! `gshare admin mode`: how claims share a GPU.

use gshare_config::GpuMode;
use gshare_proto::{ErrorCode, WireError, messages};

use crate::daemon::command::{Command, GpuCommand};
use crate::daemon::journal::Store;
use crate::daemon::order::{Act, Order};
use crate::daemon::world::World;
use crate::daemon::{mig, modes};

/// Sets the mode of a GPU: at once if it is empty, otherwise when it becomes empty.
pub(super) fn order(
    world: &World<'_>,
    word: &str,
    mode: &str,
    when_empty: bool,
) -> Result<Order, WireError> {
    let usage = |text: String| WireError::new(ErrorCode::Usage, text);
    let found = world.gpus.gpu_ids("GPU ", &[word.to_owned()])?;
    let g = found
        .first()
        .map(|g| *g as usize)
        .ok_or_else(|| usage(messages::no_gpu(word)))?;
    let gpu = &world.gpus[g];
    if gpu.parent.is_some() {
        return Err(usage(format!(
            "GPU {g} is an instance; set the mode of its whole GPU"
        )));
    }
    let wanted = GpuMode::from_name(mode)
        .ok_or_else(|| usage(format!("`{mode}` is not a mode of a GPU")))?;
    mode_is_possible(world, g, wanted)?;
    let now = gpu.modes.now;
    let holders = world.machine.ledger().holders(g);
    let key = modes::next_key(&gpu.uuid);
    if wanted == now {
        return Ok(Order {
            stores: vec![Store::Meta(key, String::new())],
            then: vec![
                Command::Gpus(GpuCommand::NextMode(g, None)),
                Command::Refresh,
            ],
            ..Order::saying(format!("GPU {g} is in mode {mode}"), None)
        });
    }
    if !holders.is_empty() && !when_empty {
        return Err(WireError::new(
            ErrorCode::NotAvailable,
            messages::gpu_is_held(g, modes::holders_text(world, g)),
        )
        .with_hint(format!(
            "to change it when they have ended: gshare admin mode {g} {mode} --wait"
        )));
    }
    let act = Act {
        action: "mode",
        target: format!("GPU {g} ({})", gpu.uuid),
        before: now.name().to_owned(),
        after: if holders.is_empty() {
            mode.to_owned()
        } else {
            format!("{mode} when it is empty")
        },
        reason: None,
    };
    let mut then = vec![Command::Gpus(GpuCommand::NextMode(g, Some(wanted)))];
    let text = if holders.is_empty() {
        then.push(Command::Gpus(GpuCommand::ChangeModes));
        messages::gpu_mode(g, mode)
    } else {
        then.push(Command::Refresh);
        format!(
            "GPU {g} takes no new claims and changes to mode {mode} when it is empty; held by {}",
            modes::holders_text(world, g)
        )
    };
    then.extend(holders.into_iter().map(|id| {
        let text = format!(
            "{id}: when your claim has ended, GPU {g} changes to mode {mode}. You need not do anything; your claim \
             keeps running until then"
        );
        Command::TellOwner { id, text }
    }));
    Ok(Order {
        acts: vec![act],
        stores: vec![Store::Meta(key, mode.to_owned())],
        then,
        ..Order::saying(text, Some(format!("gshare admin mode {g} {}", now.name())))
    })
}

/// Whether this GPU can have the mode at all.
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
            mig::commands(g, &world.gpus[g].model),
        ),
        GpuMode::Mig => Ok(()),
        _ if world.gpus.is_divided(g) => refuse(
            format!("GPU {g} is divided into MIG instances"),
            format!("sudo gshare admin mig {g} off"),
        ),
        _ => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::daemon::world::scene::Scene;

    #[test]
    fn an_empty_gpu_changes_at_once_and_a_mode_that_is_in_force_ends_the_wait() {
        let scene = Scene::of(1);
        let world = scene.world();
        let changes = order(&world, "0", "exclusive", false).expect("it can");
        let wait = Store::Meta(modes::next_key("GPU-0"), "exclusive".to_owned());
        assert_eq!(changes.stores, [wait]);
        assert_eq!(changes.acts[0].after, "exclusive");
        let exclusive = Some(GpuMode::Exclusive);
        assert!(
            matches!(&changes.then[..], [Command::Gpus(GpuCommand::NextMode(0, next)), Command::Gpus(GpuCommand::ChangeModes)] if *next == exclusive),
            "{changes:?}"
        );
        let stays = order(&world, "0", "timeslice", false).expect("it can");
        assert!(stays.acts.is_empty(), "nothing is decided: {stays:?}");
        assert!(
            matches!(
                &stays.then[..],
                [Command::Gpus(GpuCommand::NextMode(0, None)), ..]
            ),
            "{stays:?}"
        );
        assert!(
            order(&world, "0", "mig", false).is_err(),
            "it has no instances"
        );
        assert!(
            order(&world, "1", "exclusive", false).is_err(),
            "no such GPU"
        );
    }
}
