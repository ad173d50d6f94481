//! `gshare admin mig`: compares the request with the present layout, and applies it in a thread.

use gshare_core::mig::{Layout, NoRoom, Place};
use gshare_enforcer::gpu::{MigOrder, MigState, Observer};
use gshare_proto::{AdminDone, ErrorCode, Reply, WireError, messages};

use super::divide::{Dividing, LOOK, Undivided, layout, meta_key, place, profiles, wanted};
use crate::daemon::admin::rights;
use crate::daemon::command::{Command, GpuCommand};
use crate::daemon::connection::Sender;
use crate::daemon::engine::LeverState;
use crate::daemon::journal::Store;
use crate::daemon::order::{Act, Order};
use crate::daemon::peer::Peer;
use crate::daemon::release;
use crate::daemon::world::World;

/// Handles a request; the answer comes when the instances exist.
pub(crate) fn order(
    world: &World<'_>,
    (observer, levers): (&Observer, &LeverState),
    peer: &Peer,
    (word, text): (&str, &str),
    dry_run: bool,
    out: &Sender,
) -> Result<Order, WireError> {
    rights::may_administrate(world, peer)?;
    let layout: Layout = text
        .parse()
        .map_err(|e| WireError::new(ErrorCode::Usage, format!("`{text}`: {e}")))?;
    let g = world.gpus.whole_gpus(&[word])?.into_iter().next();
    let g = g.ok_or_else(|| WireError::new(ErrorCode::Usage, messages::no_gpu_named()))?;
    let refuse = |text: String| WireError::new(ErrorCode::NotAvailable, text);
    if world.gpus.is_released(g) {
        return Err(refuse(format!("GPU {g} is released")).with_hint(messages::take_back(g)));
    }
    if !world.gpus.dividing.is_empty() {
        return Err(refuse("another GPU is being divided".to_owned()));
    }
    let divider = observer.divider(u32::try_from(g).unwrap_or(u32::MAX));
    let undivided = |e: Undivided| {
        let error = refuse(format!("GPU {g} cannot be divided into {layout}: {e}"));
        match e {
            Undivided::NoRoom(NoRoom { fits, .. }) if !fits.is_off() => {
                error.with_hint(format!("gshare admin mig {g} {fits} --dry-run"))
            }
            _ => error,
        }
    };
    let state = divider.step(MigOrder::Look, LOOK);
    let state = state.map_err(|e| undivided(e.into()))?;
    let places = wanted(&state, &layout).map_err(|e| undivided(e.into()))?;
    let before = self::layout(&state);
    if dry_run {
        let message = would(g, &state, &places, &layout);
        return Ok(Order::saying(message, None));
    }
    release::may_be_let_go(world, levers, g)?;
    let others = release::users_without_claim(world, g);
    if !others.is_empty() {
        return Err(refuse(format!(
            "GPU {g} is in use without a claim by {others}"
        )));
    }
    let act = Act {
        action: "mig",
        target: format!("GPU {g} ({})", world.gpus[g].uuid),
        before: before.to_string(),
        after: layout.to_string(),
        reason: None,
    };
    let dividing = Dividing {
        gpu: g,
        divider,
        is_change: before != layout,
        undo: format!("gshare admin mig {g} {before}"),
        out: out.clone(),
        layout,
    };
    let key = meta_key(&world.gpus[g].uuid);
    Ok(Order {
        acts: vec![act],
        stores: vec![Store::Meta(key, dividing.layout.to_string())],
        then: vec![
            Command::Gpus(GpuCommand::Divide(Box::new(dividing))),
            Command::Refresh,
        ],
        ..Order::default()
    })
}

/// The text of a dry run.
fn would(g: usize, state: &MigState, places: &[Place], layout: &Layout) -> String {
    let profiles = profiles(state);
    let name = |id: u32| {
        profiles
            .iter()
            .find(|p| p.id == id)
            .map_or("?", |p| &p.name)
    };
    let mut lines = Vec::new();
    if !layout.is_off() && !state.on {
        lines.push(format!("would switch GPU {g} to MIG"));
    }
    for instance in &state.instances {
        if !places.contains(&place(instance)) {
            lines.push(format!(
                "would remove {} at slice {}",
                name(instance.profile),
                instance.start
            ));
        }
    }
    let there = |p: &&Place| !state.instances.iter().any(|i| place(i) == **p);
    for Place { profile, start } in places.iter().filter(there) {
        lines.push(format!("would make {} at slice {start}", name(*profile)));
    }
    if layout.is_off() && state.on {
        lines.push(format!("would switch GPU {g} back to one whole GPU"));
    }
    if lines.is_empty() {
        lines.push(format!(
            "GPU {g} already has this layout: nothing would change"
        ));
    }
    lines.join("\n")
}

/// Commands once a GPU has been divided, or could not be.
pub(crate) fn divided(g: usize, result: Result<AdminDone, WireError>, out: Sender) -> Vec<Command> {
    let text = result.as_ref().ok().map(|done| done.message.clone());
    let mut then = vec![
        Command::Gpus(GpuCommand::Divided(g)),
        Command::Gpus(GpuCommand::TendMps),
        Command::Refresh,
    ];
    then.extend(text.map(Command::Notice));
    then.push(Command::Reply(out, result.map(Reply::Admin)));
    then
}
