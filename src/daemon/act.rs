//! What the core decides, carried out one action after the other.

use std::time::Duration;

use gshare_core::machine::lever::Lever;
use gshare_core::machine::{Action, Event};
use gshare_core::units::show_duration;
use gshare_core::{Bytes, ClaimId, Reason, Slice};
use gshare_proto::{ErrorCode, Queued, Reply, WireError};

use super::fact::Fact;
use super::policy::overuse;
use super::service::Service;
use super::world::{World, world_of};
use super::{grant, lease, reclaim, resize, slurm, story};
use crate::clock::unix_ms;

/// A client that does not read is not told its place more often than this ahead.
pub(crate) const UNREAD_PLACES: usize = 16;

impl Service {
    /// Gives the core an event and carries out what it decides. What happens meanwhile waits until that is
    /// done: actions of two decisions never mix.
    pub(crate) fn drive(&mut self, event: Event) {
        self.drive_all([event]);
    }

    /// Several, and what they come to is written down once.
    pub(crate) fn drive_all(&mut self, events: impl IntoIterator<Item = Event>) {
        if !self.core.begin(events) {
            return;
        }
        while let Some((actions, decided)) = self.core.step() {
            self.tell(Fact::Decided(decided));
            self.sizes.decided();
            for action in actions {
                match action {
                    Action::Cap { id, slice } => write_cap(&self.world(), id, &slice),
                    Action::Measure => {
                        let measured = measure(&self.world());
                        self.core.then(Event::Measured(measured));
                    }
                    Action::Grant {
                        id,
                        slices,
                        ends,
                        counted,
                    } => {
                        self.claims.note_counted(id, counted);
                        if !self.grant(id, &slices, ends) {
                            self.core.then(Event::Gone { id });
                        } else if let Some(live) = self.claims.get(&id) {
                            let size =
                                grant::size_text(&self.world(), &live.record).unwrap_or_default();
                            let text = format!("granted: {size}");
                            story::write_down(&world_of!(self), &mut self.journal, id, &text);
                        }
                        self.screens.touch();
                    }
                    Action::Wait {
                        id,
                        position,
                        reason,
                    } => {
                        self.tell_place(id, position, &reason);
                        self.screens.touch();
                    }
                    Action::Refuse {
                        id,
                        reason,
                        for_now,
                    } => {
                        let mut text =
                            story::waits_text(&self.world(), &self.features, id, &reason);
                        if let Some(asked) = self.claims.waiting.remove(&id) {
                            let waited = unix_ms().saturating_sub(asked.since_ms) / 1000;
                            if for_now && waited > 0 {
                                let waited = show_duration(Duration::from_secs(waited));
                                text = format!("not available within {waited}; {text}");
                            }
                            let late = self.claims.contains_key(&id);
                            let code = if for_now {
                                ErrorCode::NotAvailable
                            } else {
                                ErrorCode::Usage
                            };
                            let mut error = WireError::new(code, text);
                            if reason == Reason::Foreign {
                                error = error.with_hint(slurm::hint(&self.world(), &asked));
                            } else if let Some(share) = reason.would_start() {
                                error = error
                                    .with_hint(format!("-g {} would start now", share.short()));
                            }
                            if late {
                                self.claims.refuse_wanting(id, &error);
                            } else {
                                asked.out.error(error);
                            }
                        }
                        self.screens.touch();
                    }
                    Action::Resize {
                        ticket,
                        id,
                        before,
                        slices,
                    } => {
                        if let Some(undo) = self.resized(ticket, id, before, &slices) {
                            self.core.then(undo);
                        }
                    }
                    Action::ResizeWaits {
                        ticket,
                        position,
                        error,
                    } => resize::resize_waits(&self.world(), ticket, position, &error),
                    Action::ResizeRefused { ticket, error } => {
                        self.sizes.followed(ticket);
                        resize::resize_refused(&self.world(), ticket, &error);
                        self.claims.wishes.open.remove(&ticket);
                    }
                    action
                    @ (Action::Park { .. } | Action::Unpark { .. } | Action::Move { .. }) => {
                        self.pull(action);
                    }
                    Action::MoveRefused { id, why } => self.levers.answer(id, Err(&why)),
                    Action::Announce {
                        id,
                        lever,
                        to,
                        at,
                        cause,
                    } => {
                        let (world, what) = (self.world(), (lever, to.as_slice()));
                        let (features, when) = (&self.features, (at, cause));
                        let told = reclaim::announced(&world, features, id, what, when);
                        self.execute(vec![told]);
                        // A claim that waits hears of its plan at once.
                        let waiter = cause.waiter.and_then(|id| Some((id, self.core.place(id)?)));
                        if let Some((id, (position, reason))) = waiter {
                            let reason = reason.clone();
                            self.tell_place(id, position, &reason);
                        }
                        self.screens.touch();
                    }
                    Action::Retract { id, lever } => {
                        self.execute(vec![reclaim::retracted(id, lever)]);
                    }
                    Action::Share { id, slices } => {
                        let journal = &mut self.journal;
                        let told = self.claims.share(journal, &self.gpus, id, &slices);
                        self.execute(told.into_iter().collect());
                    }
                    Action::Requeue { id, cause } => {
                        let lever = Lever::Requeue;
                        let ends = reclaim::end_for(&self.world(), &self.levers, id, lever, cause);
                        self.execute(ends);
                    }
                    Action::Kill { id, cause } => {
                        let lever = Lever::Kill;
                        let ends = reclaim::end_for(&self.world(), &self.levers, id, lever, cause);
                        self.execute(ends);
                    }
                    // A job that finishes after its claim has ended is normal.
                    Action::Late(error) => tracing::info!(%error, "nothing is done"),
                    Action::LeaseWarning { id, at } => {
                        let warning = lease::warning(&self.world(), id, at);
                        self.execute(warning.into_iter().collect());
                    }
                    Action::LeaseMoved { id, ends } => {
                        let ends_ms = self.core.moment().unix_at(ends);
                        (self.claims).move_lease(&mut self.journal, id, Some(ends_ms));
                    }
                    Action::LeaseOver { id } => {
                        let ends = lease::over(&self.world(), id);
                        self.execute(ends);
                    }
                }
            }
        }
        (self.claims).remember(&self.core, &self.gpus, &mut self.journal);
    }

    pub(crate) fn tell_place(&mut self, id: ClaimId, position: usize, reason: &Reason) {
        let Some(asked) = self.claims.waiting.get_mut(&id) else {
            let (world, place) = (self.world(), (id, position));
            return (self.levers).waits(&world, &self.features, place, reason);
        };
        if !std::mem::replace(&mut asked.told, true) {
            if let Err(error) = self.journal.set_meta("told", &id.0.to_string()) {
                tracing::warn!(%id, %error, "after a restart, the service may reuse this claim id");
            }
            let text = format!(
                "waits: {}",
                story::waits_text(&self.world(), &self.features, id, reason)
            );
            story::write_down(&world_of!(self), &mut self.journal, id, &text);
        }
        if self.claims.contains_key(&id) {
            let start = reclaim::start_known(&self.world(), &self.features, id, reason);
            return self.tell_start(id, position, reason, start);
        }
        let Some(asked) = self.claims.waiting.get(&id) else {
            return;
        };
        if asked.out.unsent() > UNREAD_PLACES {
            return;
        }
        asked.out.reply(&Reply::Queued(Queued {
            id: id.to_string(),
            position: u32::try_from(position).unwrap_or(u32::MAX),
            reason: match reclaim::plan_text(&self.world(), id) {
                Some(plan) => format!(
                    "{}; {plan}",
                    story::waits_text(&self.world(), &self.features, id, reason)
                ),
                None => story::waits_text(&self.world(), &self.features, id, reason),
            },
            would_start: reason.would_start().map(|s| format!("-g {}", s.short())),
        }));
    }
}

pub(crate) fn measure(world: &World<'_>) -> Vec<(ClaimId, usize, Bytes)> {
    let mut charges = Vec::new();
    for (id, live) in world.claims.iter() {
        for seat in &live.seats {
            // The cap holds what is charged below the limit; a member that writes more into its page
            // must not keep others from what is free.
            let uuid = &world.gpus[seat.gpu].uuid;
            let slice = live.record.slices.iter().find(|s| s.uuid == *uuid);
            let most = slice.map_or(world.gpus[seat.gpu].total, |s| s.mem_limit);
            let charge = seat.usage.most_charged_bytes(most);
            let charge = charge
                .saturating_add(world.policy.driver_bytes(*id, seat.gpu))
                .min(most);
            charges.push((*id, seat.gpu, Bytes(charge)));
        }
    }
    charges
}

/// Writes all caps of a claim into its pages.
pub(crate) fn write_caps(world: &World<'_>, id: ClaimId) {
    for slice in world.machine.ledger().slices(id).unwrap_or_default() {
        write_cap(world, id, slice);
    }
}

pub(crate) fn write_cap(world: &World<'_>, id: ClaimId, slice: &Slice) {
    let seat = world
        .claims
        .get(&id)
        .and_then(|live| live.seats.iter().find(|s| s.gpu == slice.gpu));
    if let Some(seat) = seat {
        seat.limits
            .set_memory_cap(overuse::cap_in_force(world, id, slice));
    }
}
