//! Reports about claims: whether one would start, the log of one, and users' recent use.

use std::collections::BTreeMap;
use std::time::Duration;

use gshare_core::machine::{Caller, Event, Rehearsal, Taking};
use gshare_core::place::candidates;
use gshare_core::sched::fair::History;
use gshare_core::units::show_duration;
use gshare_core::{ClaimId, Party, Request, Share, Slice};
use gshare_proto::{
    ClaimSpec, ErrorCode, Notice, Reply, TakingView, Tried, TriedGpu, WireError, messages,
};

use super::admin::quota;
use super::features::Features;
use super::find::find;
use super::journal::{ClaimRecord, Journal, JournalError};
use super::peer::Peer;
use super::reasons;
use super::viewer::Viewer;
use super::watch;
use super::world::World;
use super::{claim_for, grant, reclaim, rules, sizes, submit};
use crate::clock::unix_ms;
use crate::figures;

/// Use before this period does not count for the order of the queue.
const REMEMBERED: Duration = Duration::from_secs(7 * 24 * 3600);

fn before(span: Duration) -> u64 {
    let ms = u64::try_from(span.as_millis()).unwrap_or(u64::MAX);
    unix_ms().saturating_sub(ms)
}

/// Adds an entry to a claim's log.
pub(crate) fn write_down(world: &World<'_>, journal: &mut Journal, id: ClaimId, text: &str) {
    journal.note(world.uid_of(id).unwrap_or(0), id, text);
}

/// Users' claims before this service started, for the core.
pub(crate) fn past(world: &World<'_>, journal: &Journal) -> Option<Event> {
    if world.claims.knows_the_past() {
        return None;
    }
    let ended = match journal.ended_since(before(REMEMBERED)) {
        Ok(ended) => ended,
        Err(error) => {
            tracing::warn!(%error, "cannot read the recent use per user");
            return None;
        }
    };
    let now = unix_ms();
    let live = world.claims.values().map(|l| (&l.record, now));
    let ended = ended.iter().map(|(record, at, _)| (record, *at));
    let mut past: BTreeMap<u32, f64> = BTreeMap::new();
    for (record, until) in ended.chain(live) {
        let ago = |ms: u64| now.saturating_sub(ms) as f64 / 1000.0;
        let gpus = reasons::gpus_of(world, record);
        *past.entry(record.uid).or_default() +=
            History::of(gpus, ago(record.granted_ms), ago(until));
    }
    let past = past.into_iter().map(|(uid, s)| (uid, s as u64)).collect();
    Some(Event::Remember(past))
}

/// A smaller claim of the same kind that would start now.
fn smaller(world: &World<'_>, request: Request, parties: Vec<Party>) -> Option<String> {
    let open = candidates(world.machine.ledger(), &request);
    let share = (request.gpus == 1 && request.mem.is_none()).then_some(request.share);
    let room = sizes::claimable_by(world, &Caller { request, parties });
    let most = open.into_iter().map(|g| room.by_gpu[g]).max()?;
    let helps = most > Share::ZERO && share.is_none_or(|asked| most < asked);
    helps.then(|| format!("-g {}", most.short()))
}

fn taking_view(world: &World<'_>, taking: &Taking) -> TakingView {
    let owner = world.claims.get(&taking.id).map(|l| l.record.uid);
    let index = |g: &usize| u32::try_from(*g).unwrap_or(u32::MAX);
    TakingView {
        id: taking.id.to_string(),
        user: owner.map_or_else(String::new, |uid| world.host.names.user(uid)),
        what: taking.lever.verb().to_owned(),
        to: taking.to.iter().map(index).collect(),
        at_ms: world.now.unix_at(taking.at),
    }
}

fn would_start(world: &World<'_>, slices: &[Slice], entitled: bool) -> Tried {
    let parts: Vec<String> = slices
        .iter()
        .map(|s| {
            let (sm, most) = (s.sm.percent(), s.sm_limit.percent());
            format!(
                "{} (limit {}) and {sm} % (limit {most} %) of the compute of GPU {}",
                s.mem, s.mem_limit, s.gpu
            )
        })
        .collect();
    let gpus = slices.iter().map(|s| TriedGpu {
        gpu: u32::try_from(s.gpu).unwrap_or(u32::MAX),
        mem: s.mem.0,
        mem_limit: s.mem_limit.0,
        sm: s.sm.as_f64(),
        sm_limit: s.sm_limit.as_f64(),
    });
    let message = match world.config.is_off() {
        true => {
            let of = figures::gpus(slices.iter().map(|s| s.gpu));
            format!("would start now on {of}; {}", messages::off_holds_nothing())
        }
        false => format!("would start now: {}", parts.join(", ")),
    };
    Tried {
        starts: true,
        message,
        gpus: gpus.collect(),
        entitled,
        ..Tried::default()
    }
}

/// The claim with a name: one that is here and whose log the caller may read, or the last that ended.
fn named(
    world: &World<'_>,
    journal: &Journal,
    peer: &Peer,
    name: &str,
) -> Result<ClaimId, WireError> {
    let viewer = watch::viewer(world, peer);
    let here = find(world, peer, name);
    let is_other = match &here {
        Ok(id) => world.uid_of(*id).is_some_and(|uid| !viewer.may_read(uid)),
        // There may be several.
        Err(error) => error.message == messages::no_claim(name),
    };
    let ended = match is_other {
        true => journal.last_named(viewer.only(), name).map_err(unread)?,
        false => None,
    };
    ended.map_or(here, Ok)
}

/// The log of a claim, by its id or its name.
pub(crate) fn log(
    world: &World<'_>,
    journal: &Journal,
    peer: &Peer,
    word: &str,
) -> Result<Reply, WireError> {
    let id = match word.parse::<ClaimId>() {
        Ok(id) => id,
        Err(_) => named(world, journal, peer, word)?,
    };
    let events = journal.events(id).map_err(unread)?;
    if events.is_empty() {
        let text = format!("nothing is known of {id}");
        return Err(WireError::new(ErrorCode::NoClaim, text)
            .with_hint("events are kept for 30 days; to list claims: gshare log"));
    }
    let viewer = watch::viewer(world, peer);
    if !events.iter().any(|(_, uid, _)| viewer.may_read(*uid)) {
        let text = format!("{id} belongs to another user");
        return Err(WireError::new(ErrorCode::NotPermitted, text)
            .with_hint("its log is for its owner and root; to see its size and time: gshare ps"));
    }
    let entries = events.into_iter().map(|(at_ms, _, text)| Notice {
        at_ms,
        claim: Some(id.to_string()),
        text,
    });
    Ok(Reply::Log {
        id: Some(id.to_string()),
        present: Vec::new(),
        entries: entries.collect(),
    })
}

/// Claims whose logs the caller may read: those that run or wait, and the last that ended.
pub(crate) fn logs(world: &World<'_>, journal: &Journal, peer: &Peer) -> Result<Reply, WireError> {
    let viewer = watch::viewer(world, peer);
    let running = world.claims.iter().map(|(id, l)| (id, l.record.uid));
    let waiting = &world.claims.waiting;
    let present = running.chain(waiting.iter().map(|(id, asked)| (id, asked.record.uid)));
    let present = present.filter(|(_, uid)| viewer.may_read(*uid));
    let only = match viewer {
        Viewer::User { uid, names: false } => Some(uid),
        _ => None,
    };
    let last = journal.last_ended(only).map_err(unread)?;
    let entry = |(record, at_ms, cause): (ClaimRecord, u64, String)| {
        let of = match only {
            Some(_) => String::new(),
            None => format!("{}, ", world.host.names.user(record.uid)),
        };
        let what = match (&record.name, record.command.is_empty()) {
            (None, true) => "no command".to_owned(),
            (name, _) => figures::what(name.as_deref(), &record.command),
        };
        let span = Duration::from_millis(at_ms.saturating_sub(record.granted_ms));
        let size = grant::size_text(world, &record);
        let size = size.as_deref().and_then(|size| size.split(" (").next());
        let with = size.map_or_else(String::new, |size| format!(" with {size}"));
        Notice {
            at_ms,
            claim: Some(ClaimId(record.id).to_string()),
            text: format!("{of}{what}, {}{with}; {cause}", show_duration(span)),
        }
    };
    Ok(Reply::Log {
        id: None,
        present: present.map(|(id, _)| id.to_string()).collect(),
        entries: last.into_iter().map(entry).collect(),
    })
}

fn unread(error: JournalError) -> WireError {
    WireError::new(
        ErrorCode::Internal,
        format!("{:#}", anyhow::Error::from(error)),
    )
}

/// What would happen to a claim.
pub(crate) fn try_claim(
    world: &World<'_>,
    features: &Features,
    peer: &Peer,
    spec: &ClaimSpec,
) -> Result<Reply, WireError> {
    if let Some(Reply::Granted(granted)) = claim_for::joins_behalf(world, peer).transpose()? {
        return Ok(Reply::Tried(Tried {
            starts: true,
            message: format!("joins {}", granted.message),
            ..Tried::default()
        }));
    }
    let (request, _, record) = submit::request(world, peer, spec)?;
    let parties = quota::parties_of(world, record.uid, &record.project);
    let only = request.only_gpus.clone();
    let told = world.machine.rehearse(
        world.now.core,
        request.clone(),
        parties.clone(),
        &world.charges(),
    );
    Ok(Reply::Tried(match told {
        Rehearsal::Starts { slices, entitled } => would_start(world, &slices, entitled),
        Rehearsal::Refused(reason) => Tried {
            never: true,
            message: format!("cannot run here: {}", reasons::reason_text(world, &reason)),
            ..Tried::default()
        },
        Rehearsal::Waits {
            position,
            reason,
            entitled,
            expected,
            likely,
            takings,
            alone,
        } => {
            let hours = rules::hours_start(&reason);
            Tried {
                message: format!(
                    "would wait: {}",
                    reasons::would_wait_text(world, features, &only, &reason)
                ),
                position: u32::try_from(position).ok(),
                entitled,
                expected_ms: expected.map(|at| world.now.unix_at(at)).or(hours),
                by_hours: hours.is_some(),
                expected: likely.map(|e| sizes::expected_view(world, e)),
                would_start: smaller(world, request, parties),
                takings: takings.iter().map(|t| taking_view(world, t)).collect(),
                alone: reclaim::alone_texts(world, &alone),
                ..Tried::default()
            }
        }
    }))
}
