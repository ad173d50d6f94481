//! What is told of claims: whether one would start, what happened to one, and what users held lately.

use std::collections::BTreeMap;
use std::time::Duration;

use gshare_core::machine::{Caller, Event, Rehearsal, Taking};
use gshare_core::place::candidates;
use gshare_core::sched::fair::History;
use gshare_core::{ClaimId, Party, Reason, Request, Share, Slice};
use gshare_proto::{ClaimSpec, ErrorCode, Notice, Reply, TakingView, Tried, TriedGpu, WireError};

use super::grant::show_until;
use super::journal::{ClaimRecord, KEPT_MS};
use super::peer::Peer;
use super::service::Service;
use super::{convert, rules};
use crate::clock::unix_ms;

/// Nothing that ended before is remembered when it comes to whose turn it is.
const REMEMBERED: Duration = Duration::from_secs(7 * 24 * 3600);

fn before(span: Duration) -> u64 {
    let ms = u64::try_from(span.as_millis()).unwrap_or(u64::MAX);
    unix_ms().saturating_sub(ms)
}

impl Service {
    /// What would become of a claim.
    pub(crate) fn try_claim(&self, peer: &Peer, spec: &ClaimSpec) -> Result<Reply, WireError> {
        let (request, _, record) = convert::request(&self.world(), &self.names, peer, spec)?;
        if let Some(Reply::Granted(granted)) = self.joins_behalf(peer).transpose()? {
            return Ok(Reply::Tried(Tried {
                starts: true,
                message: format!("joins {}", granted.message),
                ..Tried::default()
            }));
        }
        if let Some(process) = &record.process {
            self.may_leave(process.pid, peer.uid)?;
        }
        let parties = self.parties_of(record.uid, &record.project);
        let only = request.only_gpus.clone();
        let told = self.machine.rehearse(
            self.now(),
            request.clone(),
            parties.clone(),
            &self.measure(),
        );
        Ok(Reply::Tried(match told {
            Rehearsal::Starts { slices, entitled } => would_start(&slices, entitled),
            Rehearsal::Refused(reason) => Tried {
                never: true,
                message: format!("cannot run here: {}", self.reason_text(&reason)),
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
                    message: format!("would wait: {}", self.would_wait_text(&only, &reason)),
                    position: u32::try_from(position).ok(),
                    entitled,
                    expected_ms: expected.map(|at| self.unix_at(at)).or(hours),
                    by_hours: hours.is_some(),
                    expected: likely.map(|e| self.expected_view(e)),
                    would_start: self.smaller(request, parties),
                    takings: takings.iter().map(|t| self.taking_view(t)).collect(),
                    alone: self.alone_texts(&alone),
                    ..Tried::default()
                }
            }
        }))
    }

    /// What of the same kind would start now instead.
    fn smaller(&self, request: Request, parties: Vec<Party>) -> Option<String> {
        let open = candidates(self.machine.ledger(), &request);
        let share = (request.gpus == 1 && request.mem.is_none()).then_some(request.share);
        let room = self.claimable_by(&Caller { request, parties });
        let most = open.into_iter().map(|g| room.by_gpu[g]).max()?;
        let helps = most > Share::ZERO && share.is_none_or(|asked| most < asked);
        helps.then(|| format!("-g {}", most.short()))
    }

    fn taking_view(&self, taking: &Taking) -> TakingView {
        let owner = self.claims.get(&taking.id).map(|l| l.record.uid);
        let index = |g: &usize| u32::try_from(*g).unwrap_or(u32::MAX);
        TakingView {
            id: taking.id.to_string(),
            user: owner.map_or_else(String::new, |uid| self.names.user(uid)),
            what: taking.lever.verb().to_owned(),
            to: taking.to.iter().map(index).collect(),
            at_ms: self.unix_at(taking.at),
        }
    }

    /// What happened to a claim.
    pub(crate) fn log(&self, peer: &Peer, word: &str) -> Result<Reply, WireError> {
        let id = match word.parse::<ClaimId>() {
            Ok(id) => id,
            Err(_) => self.find(peer, word)?,
        };
        let failed =
            |e| WireError::new(ErrorCode::Internal, format!("{:#}", anyhow::Error::from(e)));
        let events = self.journal.events(id).map_err(failed)?;
        if events.is_empty() {
            let text = format!("nothing is known of {id}");
            return Err(WireError::new(ErrorCode::NoClaim, text)
                .with_hint("events are kept for 30 days; to list claims: gshare ps"));
        }
        let entries = events.into_iter().map(|(at_ms, text)| Notice {
            at_ms,
            claim: Some(id.to_string()),
            text,
        });
        Ok(Reply::Log {
            id: id.to_string(),
            entries: entries.collect(),
        })
    }

    /// Why a claim waits: the rule, who holds what it needs, and what an administrator has closed.
    pub(crate) fn waits_text(&self, id: ClaimId, reason: &Reason) -> String {
        let waiting = self.waiting.get(&id);
        self.would_wait_text(waiting.map_or(&[], |a| &a.request.only_gpus), reason)
    }

    /// The same of a claim that may use these GPUs (all, if none is named).
    fn would_wait_text(&self, only: &[u32], reason: &Reason) -> String {
        let text = self.reason_text(reason);
        match self.closed_text(only, reason) {
            Some(closed) => format!("{text}; {closed}"),
            None => text,
        }
    }

    /// Why a claim waits, with the names of those who hold what it needs.
    pub(crate) fn reason_text(&self, reason: &Reason) -> String {
        self.held_text(reason.to_string(), reason.holders())
    }

    /// A reason, with the names of those who hold what is needed.
    pub(crate) fn held_text(&self, reason: String, holders: &[ClaimId]) -> String {
        let mut who: Vec<String> = holders
            .iter()
            .filter_map(|id| {
                if let Some(auto) = self.policy.auto.get(id) {
                    return Some(format!("{id} ({}, no cap)", self.names.user(auto.uid())));
                }
                let live = self.claims.get(id)?;
                let ends = live
                    .record
                    .ends_ms
                    .map(|ms| format!(", ends in {}", show_until(ms)));
                Some(format!(
                    "{id} ({}{})",
                    self.names.user(live.record.uid),
                    ends.unwrap_or_default()
                ))
            })
            .collect();
        who.truncate(4);
        if who.is_empty() {
            reason
        } else {
            format!("{reason}; held by {}", who.join(", "))
        }
    }

    /// Writes down what happened to a claim. A full disk loses that, nothing else.
    pub(crate) fn write_down(&mut self, id: ClaimId, text: &str) {
        let uid = self.uid_of(id).unwrap_or(0);
        self.write_down_for(uid, id, text);
    }

    /// The same of a claim that has gone.
    pub(crate) fn write_down_for(&mut self, uid: u32, id: ClaimId, text: &str) {
        if let Err(error) = self.journal.add_event(unix_ms(), id, uid, text) {
            tracing::warn!(%id, %error, "could not record an event of a claim");
        }
    }

    /// Forgets some of what happened long ago; with nothing left to forget again after an hour.
    pub(crate) fn forget_past(&mut self) {
        let now = unix_ms();
        if now < self.forget_ms {
            return;
        }
        match self.journal.forget(now.saturating_sub(KEPT_MS)) {
            Ok(true) => {}
            Ok(false) => self.forget_ms = now + 3_600_000,
            Err(error) => {
                self.forget_ms = now + 60_000;
                tracing::warn!(%error, "could not delete old events");
            }
        }
    }

    /// Whose a claim is, also of one that waits.
    pub(crate) fn uid_of(&self, id: ClaimId) -> Option<u32> {
        let held = self.claims.get(&id).map(|live| live.record.uid);
        let auto = || {
            self.policy
                .auto
                .get(&id)
                .map(super::outside::AutoClaim::uid)
        };
        held.or_else(|| self.waiting.get(&id).map(|asked| asked.record.uid))
            .or_else(auto)
    }

    /// Tells the core what users held before this service was started.
    pub(crate) fn remember_past(&mut self) {
        if self.knows_the_past() {
            return;
        }
        let ended = match self.journal.ended_since(before(REMEMBERED)) {
            Ok(ended) => ended,
            Err(error) => {
                tracing::warn!(%error, "cannot read the recent use per user");
                return;
            }
        };
        let now = unix_ms();
        let live = self.claims.values().map(|l| (&l.record, now));
        let ended = ended.iter().map(|(record, at, _)| (record, *at));
        let mut past: BTreeMap<u32, f64> = BTreeMap::new();
        for (record, until) in ended.chain(live) {
            let ago = |ms: u64| now.saturating_sub(ms) as f64 / 1000.0;
            let gpus = self.gpus_of(record);
            *past.entry(record.uid).or_default() +=
                History::of(gpus, ago(record.granted_ms), ago(until));
        }
        let past = past.into_iter().map(|(uid, s)| (uid, s as u64)).collect();
        self.drive(Event::Remember(past));
    }

    pub(crate) fn gpus_of(&self, record: &ClaimRecord) -> f64 {
        record.slices.iter().map(|s| self.share_of(s)).sum()
    }
}

fn would_start(slices: &[Slice], entitled: bool) -> Tried {
    let parts: Vec<String> = slices
        .iter()
        .map(|s| {
            let sm = s.sm.percent();
            format!("{} and {sm} % of the SMs of GPU {}", s.mem, s.gpu)
        })
        .collect();
    let gpus = slices.iter().map(|s| TriedGpu {
        gpu: u32::try_from(s.gpu).unwrap_or(u32::MAX),
        mem: s.mem.0,
        sm: s.sm.as_f64(),
    });
    Tried {
        starts: true,
        message: format!("would start now: {}", parts.join(", ")),
        gpus: gpus.collect(),
        entitled,
        ..Tried::default()
    }
}
