//! While gshare is off it limits, throttles, takes and refuses nothing, and its device filters open every GPU.
//!
//! The line in the state directory decides (`src/off.rs`); the service follows it at its start, at each tick and when it is
//! told. The configuration in force meanwhile is the file's with all rules that act taken out.

use std::time::Duration;

use gshare_config::{AutoShrink, Config, Idle, Overuse, Unclaimed};
use gshare_core::ClaimId;
use gshare_core::machine::Event;
use gshare_core::machine::lever::Wish;
use gshare_core::units::show_duration;
use gshare_proto::{AdminDone, OffView, Reply, WireError};

use super::admin::Act;
use super::claims::Claims;
use super::journal::HoldingRecord;
use super::live::Live;
use super::peer::Peer;
use super::policy::limits;
use super::service::Service;
use super::settings::Settings;
use super::world::World;
use super::{act, reclaim};
use crate::clock::unix_ms;
use crate::daemon::command::Command;
use crate::off;

/// So long before a time that was set with `--for` runs out everybody is told.
const WARNING: Duration = Duration::from_secs(600);

/// A configuration that does nothing to anybody.
fn harmless(config: &Config) -> Config {
    let mut open = config.clone();
    open.reclaim.enabled = false;
    open.reclaim.spread = false;
    open.reclaim.kill = false;
    open.reclaim.requeue = false;
    open.policy.unclaimed = Some(Unclaimed::Observe);
    open.policy.overuse = Overuse::Warn;
    open.sizes.auto_shrink = AutoShrink::Off;
    open.idle = Idle {
        warn: None,
        detach: None,
        always: None,
        rules: Vec::new(),
        ..open.idle
    };
    open
}

impl Service {
    /// Follows the line in the state directory.
    pub(crate) fn follow_off(&mut self) {
        let mut line = off::read(&self.host.paths.state_dir);
        let left = line.as_ref().and_then(|l| l.until_ms);
        let left = left.map(|until| Duration::from_millis(until.saturating_sub(unix_ms())));
        if left.is_some_and(|left| left.is_zero()) {
            match off::remove(&self.host.paths.state_dir) {
                Ok(()) => line = None,
                Err(error) => {
                    tracing::error!(%error, "gshare stays off: cannot remove `off` from the state directory");
                }
            }
        }
        let soon = left.is_some_and(|left| left <= WARNING);
        if let (true, true, false) = (soon, line.is_some(), self.config.off.warned) {
            let left = show_duration(left.unwrap_or_default());
            let text =
                format!("gshare will be on again in {left}; to keep it off: sudo gshare admin off");
            self.notice(None, text);
        }
        self.config.off.warned = soon && line.is_some();
        let was = self.config.is_off();
        let new = line.is_some();
        self.config.off.line = line;
        if was != new {
            self.switch();
        }
        if new {
            let back = self.config.call_back(&self.claims, |_| true);
            self.drive_all(back);
        }
    }

    /// Brings everything to what is so now.
    fn switch(&mut self) {
        if self.config.is_off() {
            self.config.off.configured = Some(Box::new(self.config.clone()));
            *self.config = harmless(&self.config);
        } else if let Some(configured) = self.config.off.configured.take() {
            *self.config = *configured;
            self.config.off.called.clear();
        }
        self.drive_all(reclaim::rules(&self.world(), &self.levers));
        self.tell_admission();
        for id in self.claims.keys().copied().collect::<Vec<_>>() {
            self.limits_anew(id);
        }
        self.execute(vec![Command::FiltersAnew]);
        self.execute(vec![Command::Deny]);
        self.refresh();
        let text = match self.config.is_off() {
            true => "gshare is off: nothing is limited, taken or refused until gshare admin on",
            false => {
                "gshare is on again: a claim above its limit may not grow, and nothing is ended"
            }
        };
        tracing::warn!("{text}");
        self.notice(None, text.to_owned());
        self.screens.touch();
    }

    /// The limits of a claim as they are to be now: in its pages, and with the driver.
    pub(crate) fn limits_anew(&mut self, id: ClaimId) {
        let slices = self.core.ledger().slices(id).unwrap_or_default().to_vec();
        for slice in &slices {
            act::write_cap(&self.world(), id, slice);
        }
        let unlimited = is_unlimited(&self.world(), id);
        let Some(live) = self.claims.get(&id) else {
            return;
        };
        match unlimited {
            true => limits::unlimit_memory(&self.world(), &self.observer, live),
            false => self.execute(vec![Command::LimitMemory(id)]),
        }
    }

    /// Switches off, for an administrator.
    pub(crate) fn admin_off(
        &mut self,
        peer: &Peer,
        for_ms: Option<u64>,
    ) -> Result<Reply, WireError> {
        let line = off::line(self.host.names.user(peer.uid), for_ms);
        let until = off::span(for_ms);
        let acts = vec![self.config.off_act("off", &until)];
        (self.journal).audit(&self.host.names, peer, acts, |_| Ok(()))?;
        off::write(&self.host.paths.state_dir, &line).map_err(|e| unwritten(&e))?;
        self.follow_off();
        let mut lines = vec![format!(
            "gshare is off {until}: nothing is limited, taken or refused, and every program can open the GPUs"
        )];
        for (id, live) in self.claims.iter() {
            if ![HoldingRecord::Here, HoldingRecord::Counted].contains(&live.record.holding) {
                lines.push(format!("{id} is not on its GPU yet; gshare restores it when its memory fits, or: gshare restore {id}"));
            }
        }
        for (id, live) in self.claims.iter() {
            if live
                .record
                .slices
                .iter()
                .any(|s| s.held == gshare_core::Held::Mps)
            {
                lines.push(format!(
                    "{id}: running MPS programs keep their SM limit until they are restarted"
                ));
            }
        }
        Ok(Reply::Admin(AdminDone {
            message: lines.join("\n"),
            undo: Some("gshare admin on".to_owned()),
        }))
    }

    /// Switches on again.
    pub(crate) fn admin_on(&mut self, peer: &Peer) -> Result<Reply, WireError> {
        let acts = vec![self.config.off_act("on", "on")];
        (self.journal).audit(&self.host.names, peer, acts, |_| Ok(()))?;
        off::remove(&self.host.paths.state_dir).map_err(|e| unwritten(&e))?;
        self.follow_off();
        let above = |(id, live): (&ClaimId, &Live)| {
            let over = live.seats.iter().any(|seat| {
                let most = seat.limits.memory_cap();
                seat.usage.most_charged_bytes(self.gpus[seat.gpu].total) > most
            });
            over.then(|| format!("{id} has more than its limit and may not grow; nothing is ended"))
        };
        let mut lines = vec!["gshare is on: limits, queue and filters apply again".to_owned()];
        lines.extend(self.claims.iter().filter_map(above));
        Ok(Reply::Admin(AdminDone {
            message: lines.join("\n"),
            undo: Some("gshare admin off".to_owned()),
        }))
    }
}

/// The cap that is written now in the place of this one.
pub(crate) fn cap_now(world: &World<'_>, id: ClaimId, gpu: usize, cap: u64) -> u64 {
    match is_unlimited(world, id) {
        true => world.gpus[gpu].total,
        false => cap,
    }
}

/// Whether nothing limits a claim: gshare is off, it is only counted, or observed.
pub(crate) fn is_unlimited(world: &World<'_>, id: ClaimId) -> bool {
    let live = world.claims.get(&id);
    world.config.is_off()
        || world.claims.is_counted(id)
        || live.is_some_and(|l| l.record.is_observed())
}

fn unwritten(error: &std::io::Error) -> WireError {
    let text = format!("nothing was changed: {error}");
    WireError::new(gshare_proto::ErrorCode::Internal, text)
        .with_hint("sudo gshare admin off also works without the service")
}

impl Claims {
    /// A claim is about to be granted, in the books or outside them.
    pub(crate) fn note_counted(&mut self, id: ClaimId, counted: bool) {
        let holding = match counted {
            true => HoldingRecord::Counted,
            false => HoldingRecord::Here,
        };
        if let Some(live) = self.get_mut(&id) {
            live.record.holding = holding;
        } else if let Some(asked) = self.waiting.get_mut(&id) {
            asked.record.holding = holding;
        }
    }

    /// Whether a claim was let in where everybody is: nothing is booked for it, and it has no limits until it ends.
    pub(crate) fn is_counted(&self, id: ClaimId) -> bool {
        let live = self.get(&id);
        live.is_some_and(|l| l.record.holding == HoldingRecord::Counted)
    }
}

impl Settings {
    /// Takes a configuration into force, or keeps it for when gshare is on again.
    pub(crate) fn configure(&mut self, new: Config) {
        if self.is_off() {
            **self = harmless(&new);
            self.off.configured = Some(Box::new(new));
        } else {
            **self = new;
        }
    }

    /// Offloaded and suspended claims come back where their memory fits, each asked once: for the core.
    pub(crate) fn call_back(
        &mut self,
        claims: &Claims,
        which: impl Fn(&Live) -> bool,
    ) -> Vec<Event> {
        let away = |live: &Live| match &live.record.holding {
            HoldingRecord::Parked(parked) => Some(match parked.frozen {
                true => Wish::Resume,
                false => Wish::Restore,
            }),
            _ => None,
        };
        let claims = claims.iter().filter(|(_, live)| which(live));
        let away = claims.filter_map(|(id, live)| Some((*id, away(live)?)));
        let called = &mut self.off.called;
        let event = |(id, wish)| called.insert(id).then_some(Event::Wish { id, wish });
        away.filter_map(event).collect()
    }

    /// The configuration that holds while gshare is on.
    pub(crate) fn configured(&self) -> &Config {
        self.off.configured.as_deref().unwrap_or(self)
    }

    /// Whether nothing is to be limited, taken or refused.
    pub(crate) fn is_off(&self) -> bool {
        self.off.line.is_some()
    }

    fn off_act(&self, action: &'static str, after: &str) -> Act {
        let before = match self.is_off() {
            true => "off",
            false => "on",
        };
        Act {
            action,
            target: "gshare".to_owned(),
            before: before.to_owned(),
            after: after.to_owned(),
            reason: None,
        }
    }

    /// For the screen.
    pub(crate) fn off_view(&self) -> Option<OffView> {
        self.off.line.as_ref().map(|line| OffView {
            since_ms: line.since_ms,
            until_ms: line.until_ms,
            by: line.by.clone(),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_harmless_configuration_takes_ends_and_denies_nothing() {
        let text = "[policy]\nunclaimed = \"deny\"\noveruse = \"stop\"\n[reclaim]\nkill = true\n\
                    [idle]\nrules = [{ class = \"batch\", detach = \"1h\" }]\n";
        let config = Config::check(text, std::path::Path::new("t")).expect("valid");
        let open = harmless(&config);
        assert_eq!(open.policy.unclaimed, Some(Unclaimed::Observe));
        assert_eq!(open.policy.overuse, Overuse::Warn);
        assert!(!open.reclaim.enabled && !open.reclaim.kill && !open.reclaim.requeue);
        for class in [gshare_core::Class::Interactive, gshare_core::Class::Batch] {
            assert_eq!(open.idle.rule(class, &[], 0).first(), None);
        }
        assert_eq!(open.service, config.service);
    }
}
