//! Makes room for waiting claims, in what concerns people and the journal: rules, announcements, countdowns,
//! temporarily lower shares, and claims that are ended for others.

use std::time::Duration;

use gshare_core::machine::lever::{Cause, Failure, Lever, Wish};
use gshare_core::machine::{Alone, Event, Now, ReclaimRules, Stage, Step};
use gshare_core::units::show_duration;
use gshare_core::{Bytes, ClaimId, Party, Reason, Slice};
use gshare_proto::{ErrorCode, Reply, WireError, messages};

use super::command::{Command, LeverCommand, RuleCommand};
use super::effects::Effects;
use super::engine::LeverState;
use super::fact::Fact;
use super::features::Features;
use super::find::find;
use super::levers::facts;
use super::order::Order;
use super::peer::Peer;
use super::reasons;
use super::reminders::{step_text, whole};
use super::tracks::Sizes;
use super::world::World;
use super::{ending, sizes};
use crate::clock::unix_ms;

/// The host's memory, by the kernel.
fn host_memory() -> Option<Bytes> {
    let text = std::fs::read_to_string("/proc/meminfo").ok()?;
    let line = text.lines().find(|l| l.starts_with("MemTotal:"))?;
    let kib: u64 = line.split_whitespace().nth(1)?.parse().ok()?;
    Some(Bytes(kib.saturating_mul(1024)))
}

/// The rules of the configuration, for the core.
pub(crate) fn rules(world: &World<'_>, levers: &LeverState) -> [Event; 2] {
    let keys = &world.config.reclaim;
    let rules = ReclaimRules {
        enabled: keys.enabled,
        spread: keys.spread && facts::moves_work(world, levers),
        quiet: keys.quiet,
        countdown: keys.countdown,
        keep: keys.keep,
        requeue: keys.requeue,
        kill: keys.kill,
    };
    let part = u64::from(keys.host_ram);
    let most = host_memory().map_or(0, |Bytes(all)| all / 100 * part);
    [Event::HostRam(Bytes(most)), Event::Reclaim(rules)]
}

/// Ends a claim, or ends and queues it again, for others with precedence.
pub(crate) fn end_for(
    world: &World<'_>,
    levers: &LeverState,
    id: ClaimId,
    lever: Lever,
    cause: Cause,
) -> Vec<Command> {
    let whom = cause.waiter.map_or_else(
        || "others".to_owned(),
        |w| format!("{w} of {}", owner_of(world, w)),
    );
    let why = format!("{whom} came first");
    if let Err(why) = facts::may_park(world, levers, id)
        && world.claims.is_on_behalf(id)
    {
        let failure = Failure::Refused;
        return vec![Command::Levers(LeverCommand::LeverFailed {
            id,
            failure,
            why,
        })];
    }
    if lever == Lever::Requeue {
        return ending::requeue(world, id, &why);
    }
    let text = format!(
        "{id} is ended: {why}. Its programs have {} to save their work",
        show_duration(ending::GRACE)
    );
    let mut out = vec![Command::TellOwner { id, text }];
    out.extend(ending::end_claim(world, id, &format!("ended for {whom}")));
    out
}

/// Its owner keeps an announced claim, once.
pub(crate) fn keep(
    world: &World<'_>,
    features: &Features,
    peer: &Peer,
    word: &str,
) -> Result<Order, WireError> {
    let id = find(world, peer, word)?;
    ending::may(world, peer, id, "keep")?;
    let refused = |text: String| WireError::new(ErrorCode::NotAvailable, text);
    let announced = world.machine.announced(id).map(|(_, step)| step.stage);
    let long = show_duration(world.config.reclaim.keep);
    match announced {
        Some(Stage::Announced) => {}
        Some(_) => {
            let text = messages::too_late(id);
            return Err(refused(text));
        }
        None if features.idle.is_warned(id) => {
            let kept = Fact::Kept { claim: id };
            let message = format!(
                "gshare treats {id} as in use for the next {long} and does not reclaim it as idle"
            );
            return Ok(Order::then(
                vec![
                    Command::Tell(kept),
                    Command::Rules(RuleCommand::LookAtLevers),
                ],
                |_, _| Ok(Reply::Done { message }),
            ));
        }
        None => return Err(refused(format!("nothing is announced for {id}"))),
    }
    let wish = Wish::Keep;
    let then = vec![Command::Core(Event::Wish { id, wish })];
    Ok(Order::then(then, move |world, _| {
        if let Some((plan, _)) = world.machine.announced(id) {
            let whom = plan.waiter.map(|waiter| format!(" for {waiter}"));
            return Err(refused(format!(
                "the action announced for {id} was already postponed once{}, and cannot be postponed again",
                whom.unwrap_or_default()
            )));
        }
        let message = format!("{id} keeps what it has for {long}; other claims make room or wait");
        Ok(Reply::Done { message })
    }))
}

/// Tells the owner what happens to the claim, when and for whom, and the waiting claim that it does.
pub(crate) fn announced(
    world: &World<'_>,
    features: &Features,
    id: ClaimId,
    (lever, to): (Lever, &[usize]),
    (at, cause): (Now, Cause),
) -> Command {
    let left = at.saturating_sub(world.now.core);
    let when = if left < Duration::from_millis(500) {
        "now".to_owned()
    } else {
        format!("in {}", show_duration(whole(left)))
    };
    let what = step_text(world, id, lever, to);
    let why = match cause.waiter {
        Some(waiter) => {
            let who = owner_of(world, waiter);
            let standing = if lever == Lever::Offload && features.idle.is_idle(id) {
                format!("and {id} is idle")
            } else if cause.entitled {
                let party = party_of(world, waiter);
                let whose = party.as_deref().unwrap_or(&who);
                format!("within the guarantee of {whose}")
            } else {
                format!("and {who} has used the GPUs less than you recently")
            };
            format!("{waiter} of {who} waits for room, {standing}")
        }
        None => "another GPU is idle".to_owned(),
    };
    let keeps = match lever {
        Lever::Share => format!("; {id} gets them back when nobody needs them"),
        Lever::Offload | Lever::Suspend | Lever::Move => {
            format!("; the memory of {id} is kept")
        }
        _ => String::new(),
    };
    let text = format!("{id} {what} {when}: {why}{keeps}. To postpone: gshare keep {id}");
    Command::TellOwner { id, text }
}

/// An announced action is cancelled.
pub(crate) fn retracted(id: ClaimId, lever: Lever) -> Command {
    let what = match lever {
        Lever::Move => "stays where it is",
        _ => "keeps what it has",
    };
    let text = format!("{id} {what} after all");
    Command::TellOwner { id, text }
}

/// Changes a claim's share of the SMs for a while. Returns the notice for its owner.
pub(crate) fn share(with: &mut Effects, id: ClaimId, slices: &[Slice]) -> Option<Command> {
    let live = with.claims.get_mut(&id)?;
    let record = &mut live.record;
    let before = record.slices.first().map_or(0, |s| s.sm_milli);
    for slice in slices {
        let uuid = &with.gpus[slice.gpu].uuid;
        if let Some(part) = record.slices.iter_mut().find(|s| s.uuid == *uuid) {
            part.sm_milli = slice.sm.milli();
        }
        if let Some(seat) = live.seats.iter().find(|s| s.gpu == slice.gpu) {
            seat.limits
                .set_sm_permille(slice.sm.milli(), slice.sm_limit.milli());
        }
    }
    let full = *record.runs.sm_full.get_or_insert(before);
    let now = record.slices.first().map_or(0, |s| s.sm_milli);
    if now >= full {
        record.runs.sm_full = None;
    }
    // An unsaved share is back to the full one after a restart, which harms nobody.
    with.journal.keep(record, "a claim's lowered share");
    let text = format!(
        "{id} now has {} % of the compute; it asked for {} %",
        now / 10,
        full / 10
    );
    Some(Command::TellOwner { id, text })
}

/// Why others that could give way do not: `c5 (mail) does not have to make room yet: ...`.
pub(crate) fn alone_texts(world: &World<'_>, alone: &[(ClaimId, Alone)]) -> Vec<String> {
    let now = world.now.core;
    let left = |until: &Now| show_duration(whole(until.saturating_sub(now)));
    let text = |(id, alone): &(ClaimId, Alone)| {
        let why = match alone {
            Alone::Young { until } => format!(
                "does not have to make room yet: its minimum run time (min-run) protects it for {}",
                left(until)
            ),
            Alone::PutOff { until } => format!(
                "does not have to make room for the next {}: the last attempt was postponed or failed (gshare log {id})",
                left(until)
            ),
            Alone::Fixed(why) => format!("cannot make room: {why}"),
            Alone::NoHostRam(bytes) => {
                format!("cannot make room: not enough host memory for its {bytes} (host-ram)")
            }
        };
        format!("{id} ({}) {why}", owner_of(world, *id))
    };
    alone.iter().map(text).collect()
}

/// What will happen to a running claim: `moves from GPU 1 to GPU 0 in 12s for c22`.
pub(crate) fn announced_text(world: &World<'_>, id: ClaimId) -> Option<String> {
    let (plan, step) = world.machine.announced(id)?;
    let left = plan.due.saturating_sub(world.now.core);
    let what = step_text(world, id, step.lever, &step.to);
    let when = match (step.stage, left.is_zero()) {
        (Stage::Announced, false) => format!(" in {}", show_duration(whole(left))),
        _ => " now".to_owned(),
    };
    let waiter = plan.waiter.map(|w| format!(" for {w}"));
    Some(format!("{what}{when}{}", waiter.unwrap_or_default()))
}

fn owner_of(world: &World<'_>, id: ClaimId) -> String {
    let uid = world.uid_of(id);
    uid.map_or_else(|| "somebody".to_owned(), |uid| world.host.names.user(uid))
}

/// The party whose guarantee serves a claim, if not its owner: `project vision`.
pub(crate) fn party_of(world: &World<'_>, id: ClaimId) -> Option<String> {
    match world.machine.guaranteed_by(id)? {
        Party::User(_) => None,
        Party::Group(name) => Some(format!("group {name}")),
        Party::Project(name) => Some(format!("project {name}")),
    }
}

/// How a waiting claim gets its room: `c2 (ada, 8.0 GiB) moves from GPU 1 to GPU 0 in 12s`.
pub(crate) fn plan_text(world: &World<'_>, id: ClaimId) -> Option<String> {
    let plan = world.machine.plan_of(id)?;
    let left = plan.due.saturating_sub(world.now.core);
    let open: Vec<String> = plan
        .steps
        .iter()
        .filter(|s| s.stage != Stage::Done)
        .map(|s| step_of(world, s))
        .collect();
    if open.is_empty() {
        return Some("room has been made for it; it starts in a moment".to_owned());
    }
    let when = if left.is_zero() {
        "now".to_owned()
    } else {
        format!("in {}", show_duration(whole(left)))
    };
    Some(format!("{} {when}", open.join(" and ")))
}

fn step_of(world: &World<'_>, step: &Step) -> String {
    let held = world.machine.ledger().slices(step.id).unwrap_or_default();
    let bytes = held
        .iter()
        .fold(Bytes::ZERO, |sum, s| sum.saturating_add(s.charge));
    let carried = match step.lever {
        Lever::Offload | Lever::Suspend | Lever::Move if bytes > Bytes::ZERO => {
            format!(", {bytes}")
        }
        _ => String::new(),
    };
    format!(
        "{} ({}{carried}) {}",
        step.id,
        owner_of(world, step.id),
        step_text(world, step.id, step.lever, &step.to)
    )
}

/// The start of a waiting claim, also by the durations of earlier runs, which is slow to compute.
pub(crate) fn start_expected(world: &World<'_>, sizes: &Sizes, id: ClaimId) -> Option<String> {
    let expected = *sizes::expected_starts(world, sizes).get(&id)?;
    Some(format!(
        "starts {}",
        sizes::expected_view(world, expected).text()
    ))
}

/// The start of a waiting claim as far as it is quick to compute: by its plan, time limits, and idle claims.
pub(crate) fn start_known(
    world: &World<'_>,
    features: &Features,
    id: ClaimId,
    reason: &Reason,
) -> Option<String> {
    if let Some(plan) = plan_text(world, id) {
        let left = world
            .machine
            .plan_of(id)
            .map(|p| p.due.saturating_sub(world.now.core));
        let left = whole(left.unwrap_or_default());
        return Some(match left.is_zero() {
            true => plan,
            false => format!("starts in about {}: {plan}", show_duration(left)),
        });
    }
    let holders = reason.holders();
    let leases = holders.iter().filter_map(|h| {
        let ends = world.claims.get(h)?.record.terms.ends_ms?;
        let left = Duration::from_millis(ends.saturating_sub(unix_ms()));
        Some((left, format!("when the time limit of {h} ends")))
    });
    let idle = holders.iter().filter_map(|h| {
        let left = features.idle.promise(world, *h)?;
        Some((left, format!("when {h}, which is idle, is offloaded")))
    });
    let (left, how) = leases.chain(idle).min()?;
    let left = show_duration(Duration::from_secs(left.as_secs()));
    Some(format!("starts in {left} at the earliest, {how}"))
}

/// Why a program waits that has already started, and until when.
pub(crate) fn waits_and_start(
    world: &World<'_>,
    features: &Features,
    id: ClaimId,
    reason: &Reason,
    start: Option<&str>,
) -> String {
    let start = start.map_or_else(messages::start_unknown, str::to_owned);
    format!(
        "{}; {start}",
        reasons::waits_text(world, features, id, reason)
    )
}
