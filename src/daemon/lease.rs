//! Time limits of claims: a warning before the end, extension by the owner, and a grace time in which programs can
//! save their state.

use std::time::{Duration, Instant};

use gshare_core::ClaimId;
use gshare_core::machine::{Event, Now};
use gshare_core::units::show_duration;
use gshare_proto::{ErrorCode, LeaseView, Reply, WireError};

use super::claims::Claims;
use super::command::{Command, EndCommand};
use super::convert::MOST_S;
use super::find::find;
use super::journal::{ClaimRecord, Journal, JournalError};
use super::live::Ending;
use super::order::Order;
use super::peer::Peer;
use super::reminders::whole;
use super::settings::Settings;
use super::world::World;
use super::{ending, whose};
use crate::clock::{millis, unix_ms};

/// Cause of the end of a claim whose time limit ended.
pub(crate) const LEASE_ENDED: &str = "time limit ended";
/// The same in journals of versions before 0.2.
pub(crate) const LEASE_ENDED_BEFORE: &str = "lease ended";
/// How recently a process may have ended that asks about its claim.
const JUST_NOW: Duration = Duration::from_secs(600);

impl Ending {
    /// The time limit has ended: processes on the GPU have had SIGTERM and keep it until `grace` is over.
    pub(crate) fn lease(grace: Duration) -> Self {
        Self {
            kill_at: Some(Instant::now() + grace),
            saving: true,
            by_mps: None,
            ..Self::killing(LEASE_ENDED, false)
        }
    }
}

/// `gshare extend`: the record of a claim whose time limit ends that much later.
pub(crate) fn extended(
    world: &World<'_>,
    peer: &Peer,
    word: &str,
    by_s: u64,
) -> Result<ClaimRecord, WireError> {
    let id = find(world, peer, word)?;
    ending::may(world, peer, id, "extend")?;
    if !(1..=MOST_S).contains(&by_s) {
        let text = "a time limit is extended by at least a second and at most a year";
        return Err(WireError::new(ErrorCode::Usage, text));
    }
    let Some(live) = world.claims.get(&id) else {
        let text = format!("{id} still waits: its time limit begins when it is granted");
        return Err(WireError::new(ErrorCode::NotAvailable, text));
    };
    if let Some(ending) = live.ending.as_ref().filter(|e| e.kill_at.is_some()) {
        let text = format!("{id} is already ending: {}", ending.cause);
        return Err(WireError::new(ErrorCode::Ended, text));
    }
    let (Some(ends_ms), Some(_)) = (live.record.terms.ends_ms, world.machine.lease_end(id)) else {
        let text = format!("{id} has no time limit: it ends when its command does, or is released");
        return Err(WireError::new(ErrorCode::Usage, text));
    };
    if let (Err(ahead), false) = (world.machine.may_extend(id), peer.is_root()) {
        let text = format!(
            "{id} is not extended: {} holds more than their guarantee, and {ahead}, which waits for the same GPU, has \
             priority",
            world.host.names.user(live.record.uid),
        );
        return Err(WireError::new(ErrorCode::NotAvailable, text)
            .with_hint(format!("see gshare why {ahead}")));
    }
    let stands = ends_ms.saturating_add(millis(world.machine.stood_still(id)));
    let mut record = live.record.clone();
    record.terms.ends_ms = Some(stands.saturating_add(millis(Duration::from_secs(by_s))));
    Ok(record)
}

/// The error if that cannot be journaled.
pub(crate) fn not_extended(id: ClaimId, error: JournalError) -> WireError {
    let text = format!("{id} is not extended: {:#}", anyhow::Error::from(error));
    WireError::new(ErrorCode::Internal, text)
}

/// Commands once that record is journaled.
pub(crate) fn extend(world: &World<'_>, id: ClaimId, by_s: u64) -> Order {
    let by = Duration::from_secs(by_s);
    let ends = world.machine.lease_end(id).unwrap_or(world.now.core);
    let ends = ends.saturating_add(by);
    let left = show_duration(ends.saturating_sub(world.now.core));
    let message = format!("{id}: its time limit ends in {left}");
    let text = format!("{message}, {} later than before", show_duration(by));
    let ends = Some(ends);
    let then = vec![
        Command::Core(Event::Lease { id, ends }),
        Command::NoticeOf { id, text },
    ];
    Order::then(then, |_, _| Ok(Reply::Done { message }))
}

/// The time limit of a claim ends. Programs on the GPU are asked to end, and keep it for the grace time.
pub(crate) fn over(world: &World<'_>, id: ClaimId) -> Vec<Command> {
    let tell = |text: String| Command::TellOwner { id, text };
    // While gshare is off it ends nothing, and does not make up for it later.
    if world.config.is_off() {
        let text = format!(
            "{id}: its time limit is over; it continues without one, because gshare is off"
        );
        return vec![
            Command::Ends(EndCommand::MoveLease(id, None)),
            Command::Core(Event::Lease { id, ends: None }),
            tell(text),
        ];
    }
    let Some(live) = world.claims.get(&id) else {
        return Vec::new();
    };
    let grace = world.config.claims.lease_grace;
    let holders = whose::holders(world, id);
    let command = live.record.process;
    let mut out = vec![Command::Ends(EndCommand::LeaseEnded {
        id,
        stopped: command.is_some_and(|c| holders.contains(&c)),
        told: !holders.is_empty(),
    })];
    if holders.is_empty() {
        out.push(tell(format!(
            "{id} has ended: its time limit is over. Its programs that still run have no GPU from now on; to start \
             one again: gshare claim -- CMD"
        )));
    }
    if grace.is_zero() {
        let cause = LEASE_ENDED.into();
        out.push(Command::Ends(EndCommand::End { id, cause }));
        return out;
    }
    if live.ending.as_ref().is_none_or(|e| e.kill_at.is_none()) {
        out.push(Command::Ends(EndCommand::BeginEnd(
            id,
            Box::new(Ending::lease(grace)),
        )));
    }
    if !holders.is_empty() {
        out.push(tell(format!(
            "{id}: its time limit is over; its programs on the GPU have {} to save their work",
            show_duration(grace)
        )));
        out.push(Command::Ends(EndCommand::Signal(holders, libc::SIGTERM)));
    }
    out.extend([Command::Ends(EndCommand::SettleEnd(id)), Command::Publish]);
    out
}

/// Warns the owner that a time limit ends soon.
pub(crate) fn warning(world: &World<'_>, id: ClaimId, at: Now) -> Option<Command> {
    let left = show_duration(whole(at.saturating_sub(world.now.core)));
    let text =
        format!("{id}: its time limit ends in {left}; to extend it: gshare extend {id} -t 1h");
    (!world.config.is_off()).then_some(Command::TellOwner { id, text })
}

impl Claims {
    /// Replaces the record of a claim by the journaled one.
    pub(crate) fn record(&mut self, record: ClaimRecord) {
        if let Some(live) = self.get_mut(&ClaimId(record.id)) {
            live.record = record;
        }
    }
}

impl Settings {
    /// How much of the grace time is left after a restart.
    pub(crate) fn grace_left(&self, ends_ms: Option<u64>) -> Option<Duration> {
        let until = ends_ms?.saturating_add(millis(self.claims.lease_grace));
        let left = until.saturating_sub(unix_ms());
        (left > 0).then(|| Duration::from_millis(left))
    }
}

/// The claim of which a process of the caller's is or was the command, and whether the end of its time limit ended
/// it.
pub(crate) fn lease_of(
    world: &World<'_>,
    journal: &Journal,
    peer: &Peer,
    pid: u32,
    start_ticks: u64,
) -> Reply {
    let own = |record: &ClaimRecord| {
        let mut process = record.process.iter();
        let same = process.any(|p| p.pid.cast_unsigned() == pid && p.start_ticks == start_ticks);
        record.uid == peer.uid && same
    };
    let view = |record: &ClaimRecord| LeaseView {
        id: Some(ClaimId(record.id).to_string()),
        ends_ms: record.terms.ends_ms,
        over: record.end.stopped,
        told: record.end.told,
        requeued: record.end.requeued,
    };
    if let Some(live) = world.claims.values().find(|l| own(&l.record)) {
        return Reply::Lease(view(&live.record));
    }
    let from = unix_ms().saturating_sub(millis(JUST_NOW));
    let ended = journal.ended_of(peer.uid, (pid, start_ticks), from);
    let ended = ended.unwrap_or_else(|error| {
        tracing::warn!(%error, "cannot read the ended claims from the journal");
        None
    });
    Reply::Lease(ended.as_ref().map(view).unwrap_or_default())
}
