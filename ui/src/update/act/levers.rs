//! Claims leave their GPUs and come back while their programs live.

use gshare_proto::{Call, ClaimView, LeverWish};

use super::{ask, called, chosen_claim, confirm};
use crate::model::{Asked, Model, Tone, can_be_kept, ends_idle};
use crate::text;

fn chosen(model: &Model) -> Result<&ClaimView, String> {
    model.service()?;
    chosen_claim(model)
}

/// Whether the chosen claim can leave its GPU, else why not.
pub(crate) fn offloadable(model: &Model) -> Result<(), String> {
    let claim = chosen(model)?;
    let id = &claim.id;
    if let Some(word) = &claim.place.word {
        return Err(format!("{id} is {word}"));
    }
    match &claim.place.levers.not_detachable {
        Some(why) => Err(format!("{id} cannot be offloaded: {why}")),
        None => Ok(()),
    }
}

pub(crate) fn ask_offload(model: &mut Model) {
    let Ok(claim) = chosen(model) else {
        return;
    };
    let id = claim.id.clone();
    let bytes: Option<u64> = claim.gpus.iter().map(|g| g.mem_used.or(g.mem_charge)).sum();
    let memory = bytes.map_or_else(
        || "GPU memory".to_owned(),
        |b| format!("GPU memory ({} GiB)", text::gib(b)),
    );
    let text = format!(
        "Offload {}? Its {memory} goes to host memory and its part of the GPU is free for others; its processes \
         live on, and their next CUDA call waits until there is room again.",
        called(claim, false)
    );
    let (title, doing) = (format!("Offload {id}"), format!("offloading {id}"));
    let (id, wish) = (id.into(), LeverWish::Offload);
    confirm(model, title, text, doing, Call::Lever { id, wish });
}

/// Whether the chosen claim is off its GPU.
pub(crate) fn restorable(model: &Model) -> Result<(), String> {
    let claim = chosen(model)?;
    match claim.place.word.as_deref() {
        Some("offloaded" | "suspended") => Ok(()),
        Some(word) => Err(format!("{} is {word}", claim.id)),
        None => Err(format!("{} is on its GPU already", claim.id)),
    }
}

pub(crate) fn restore(model: &mut Model) {
    let Ok(claim) = chosen(model) else {
        return;
    };
    let id = claim.id.clone();
    let wish = match claim.place.word.as_deref() {
        Some("suspended") => LeverWish::Resume,
        _ => LeverWish::Restore,
    };
    model.say(Tone::Plain, format!("bringing {id} back"));
    let id = id.into();
    ask(model, Asked::Act, Call::Lever { id, wish });
}

/// The claim that would be kept: the chosen one, else the first of the viewer's that something was announced for.
fn announced(model: &Model) -> Result<&ClaimView, String> {
    model.service()?;
    if let Ok(claim) = chosen(model) {
        let id = &claim.id;
        let warned = claim.idle.as_ref().is_some_and(|i| i.warned && !i.kept);
        match (claim.announced.is_some(), can_be_kept(claim)) {
            (true, false) if claim.place.on_its_way.is_none() => {
                return Err(format!(
                    "this service does not report whether {id} can still be kept: try gshare keep {id}"
                ));
            }
            (true, false) => {
                return Err(format!("too late: what was announced for {id} has begun"));
            }
            (true, true) => return Ok(claim),
            (false, _) if warned => return Ok(claim),
            (false, _) => {}
        }
    }
    let mut claims = model.snapshot.iter().flat_map(|s| &s.claims);
    let told = |c: &ClaimView| (c.announced.is_some() && can_be_kept(c)) || ends_idle(c);
    let own = claims.find(|c| told(c) && model.may(c.uid));
    own.ok_or_else(|| "nothing is announced for your claims".to_owned())
}

/// Whether something was announced that can be put off, else why not.
pub(crate) fn keepable(model: &Model) -> Result<(), String> {
    announced(model).map(|_| ())
}

pub(crate) fn keep(model: &mut Model) {
    let Ok(claim) = announced(model) else {
        return;
    };
    let id = claim.id.clone();
    model.say(Tone::Plain, format!("keeping {id} where it is"));
    ask(model, Asked::Act, Call::Keep { id: id.into() });
}
