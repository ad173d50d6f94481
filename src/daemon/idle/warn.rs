//! Warns the owner of an idle claim.

use std::time::Duration;

use gshare_config::NoDetach;
use gshare_core::units::show_duration;

use super::Idling;
use crate::daemon::command::Command;
use crate::daemon::world::World;

/// Warns once per pause; also if another claim waits and this one cannot be offloaded.
pub(super) fn warn(world: &World<'_>, claim: &mut Idling, out: &mut Vec<Command>) {
    let rule = claim.rule;
    let instead = claim.fixed.is_some() && world.machine.queue().next().is_some();
    let over = claim.over(rule.warn)
        || claim.over(rule.always)
        || instead && !claim.pause.done.contains(super::INSTEAD) && claim.over(rule.detach);
    if over && claim.pause.warned_ns.is_none() && !claim.is_kept() {
        claim.pause.warned_ns = Some(claim.now_ns);
        let (id, text) = (claim.id, text(claim));
        out.push(Command::TellOwner { id, text });
    }
}

fn text(claim: &Idling) -> String {
    let id = claim.id;
    let since = |time: Duration| show_duration(Duration::from_secs(time.as_secs()));
    let kernel = match &claim.kernel {
        Some((_, idle, source)) => {
            format!(
                ", and its notebook kernel did nothing for {} ({source})",
                since(*idle)
            )
        }
        None => String::new(),
    };
    let left = |limit: Duration| match limit.saturating_sub(claim.idle()).as_secs() {
        0 => "from now on".to_owned(),
        left => format!("in {}", show_duration(Duration::from_secs(left))),
    };
    let then = match (&claim.fixed, claim.rule.always, claim.rule.detach) {
        (Some(_), _, Some(at)) => match claim.rule.no_detach {
            NoDetach::Warn => {
                "It cannot be offloaded; please release what you do not need".to_owned()
            }
            NoDetach::Shrink => format!(
                "If others wait, its size shrinks to what it uses, {}",
                left(at)
            ),
            NoDetach::Release => format!(
                "It cannot be offloaded. If another claim can start in its place, its programs on the GPU are ended, \
                 {}",
                left(at)
            ),
        },
        (None, Some(at), _) => {
            format!("It is offloaded {}; its memory is kept", left(at))
        }
        (None, None, Some(at)) => format!(
            "It is offloaded {} if others wait; its memory is kept",
            left(at)
        ),
        _ => "Please release what you do not need".to_owned(),
    };
    format!(
        "{id} had no GPU work for {}{kernel}. {then}. To keep it: gshare keep {id}",
        since(claim.gpu)
    )
}
