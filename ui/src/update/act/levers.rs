//! Offloading and restoring claims whose programs live on.

use gshare_proto::{Call, ClaimView, LeverWish, messages};

use super::{Asking, ask, called, own_claim};
use crate::model::{Asked, Model, Question, Tone, can_be_kept, ends_idle, mem_used};
use crate::text;

/// The confirmation for offloading the chosen claim, or why it is not possible.
pub(crate) fn offload(model: &Model) -> Asking {
    let claim = own_claim(model)?;
    let id = &claim.id;
    if let Some(word) = &claim.place.word {
        return Err(format!("{id} is {word}"));
    }
    if let Some(why) = &claim.place.levers.not_detachable {
        return Err(messages::not_offloadable(id, why));
    }
    let memory = mem_used(claim).map(|b| format!(" ({} GiB)", text::gib(b)));
    let (called, memory) = (called(claim, false), memory.unwrap_or_default());
    let text = format!(
        "Offload {called}? Its GPU memory{memory} moves to host RAM, and others can claim its part of the GPU. Its programs keep \
         running; their next CUDA call waits until there is room again."
    );
    let call = lever(claim, LeverWish::Offload);
    let title = format!("Offload {id}");
    Ok(Question { title, text, call })
}

fn lever(claim: &ClaimView, wish: LeverWish) -> Call {
    let id = claim.id.clone().into();
    Call::Lever { id, wish }
}

/// The call that restores the chosen claim, or why it is not possible.
pub(crate) fn restorable(model: &Model) -> Result<Call, String> {
    let claim = own_claim(model)?;
    match claim.place.word.as_deref() {
        Some("offloaded") => Ok(lever(claim, LeverWish::Restore)),
        Some("suspended") => Ok(lever(claim, LeverWish::Resume)),
        Some(word) => Err(format!("{} is {word}", claim.id)),
        None => Err(messages::on_its_gpu(&claim.id)),
    }
}

pub(crate) fn restore(model: &mut Model) {
    if let Ok(call) = restorable(model) {
        model.say(Tone::Plain, "bringing it back");
        ask(model, Asked::Act, call);
    }
}

/// The claim to keep: the chosen one, otherwise the viewer's first with an announcement.
pub(crate) fn keepable(model: &Model) -> Result<String, String> {
    model.service()?;
    let told = |c: &ClaimView| (c.announced.is_some() && can_be_kept(c)) || ends_idle(c);
    if let Ok(claim) = own_claim(model) {
        let id = &claim.id;
        let warned = claim.idle.as_ref().is_some_and(|i| i.warned && !i.kept);
        if told(claim) || warned {
            return Ok(id.clone());
        }
        if claim.announced.is_some() {
            return Err(match claim.place.on_its_way {
                Some(_) => messages::too_late(id),
                None => format!(
                    "this service does not say whether the action on {id} can still be postponed; try: gshare keep {id}"
                ),
            });
        }
    }
    let mut claims = model.snapshot.iter().flat_map(|s| &s.claims);
    let own = claims.find(|c| told(c) && model.may(c.uid));
    own.map(|c| c.id.clone())
        .ok_or_else(|| "nothing is announced for your claims".to_owned())
}

pub(crate) fn keep(model: &mut Model) {
    if let Ok(id) = keepable(model) {
        model.say(Tone::Plain, format!("keeping {id} where it is"));
        ask(model, Asked::Act, Call::Keep { id: id.into() });
    }
}
