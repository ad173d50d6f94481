//! While gshare is off it limits, throttles, takes and refuses nothing, and its device filters open every GPU.
//!
//! The line in the state directory decides (`src/off.rs`); the service reads it at its start, at each tick and on
//! command. The configuration in force meanwhile is the file's without all rules that act.

use std::time::Duration;

use gshare_config::{AutoShrink, Config, Idle, Overuse, Stage, Unclaimed};
use gshare_core::ClaimId;
use gshare_core::machine::Event;
use gshare_core::machine::lever::Wish;
use gshare_core::units::show_duration;
use gshare_proto::{AdminDone, OffView, WireError, messages};

use super::claims::Claims;
use super::command::{Command, LimitCommand, RuleCommand, Which};
use super::journal::HoldingRecord;
use super::live::Live;
use super::order::{Act, Order};
use super::peer::Peer;
use super::settings::Settings;
use super::world::World;
use crate::clock::unix_ms;
use crate::off;

/// Everybody is notified this long before a time that was set with `--for` ends.
const WARNING: Duration = Duration::from_secs(600);

/// A configuration without rules that act.
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

/// The line in the state directory, if it applies now; an expired one is removed.
pub(crate) fn line_now(world: &World<'_>) -> Option<OffView> {
    let dir = &world.host.paths.state_dir;
    let line = off::read(dir)?;
    let over = line.until_ms.is_some_and(|until| until <= unix_ms());
    match over.then(|| off::remove(dir)) {
        Some(Ok(())) => None,
        Some(Err(error)) => {
            tracing::error!(%error, "gshare stays off: cannot remove `off` from the state directory");
            Some(line)
        }
        None => Some(line),
    }
}

/// `gshare admin off`.
pub(crate) fn order_off(world: &World<'_>, peer: &Peer, for_ms: Option<u64>) -> Order {
    let line = off::line(world.host.names.user(peer.uid), for_ms);
    let until = off::span(for_ms);
    let dir = world.host.paths.state_dir.clone();
    Order {
        acts: vec![world.config.off_act("off", &until)],
        file: Some(Box::new(move || {
            off::write(&dir, &line).map_err(|e| unwritten(&e))
        })),
        then: vec![Command::Rules(RuleCommand::FollowOff)],
        ..Order::answered(move |world, _| {
            let mut lines = vec![format!(
                "gshare is off {until}: nothing is limited, reclaimed or refused, and every program can open the GPUs"
            )];
            lines.extend(
                world
                    .claims
                    .iter()
                    .filter_map(|(id, live)| away_text(*id, live)),
            );
            lines.extend(
                world
                    .claims
                    .iter()
                    .filter_map(|(id, live)| mps_text(*id, live)),
            );
            lines.extend(world.claims.waiting.keys().map(|id| {
                format!("{id} waits; it starts when a GPU has enough free memory for it")
            }));
            AdminDone {
                message: lines.join("\n"),
                undo: Some("gshare admin on".to_owned()),
            }
        })
    }
}

fn away_text(id: ClaimId, live: &Live) -> Option<String> {
    let here = [HoldingRecord::Here, HoldingRecord::Counted].contains(&live.record.holding);
    (!here).then(|| format!("{id} is not on its GPU yet; gshare restores it when its memory fits. To restore it now: gshare restore {id}"))
}

fn mps_text(id: ClaimId, live: &Live) -> Option<String> {
    let mut slices = live.record.slices.iter();
    let through = slices.any(|s| s.held == gshare_core::Held::Mps);
    through
        .then(|| format!("{id}: running MPS programs keep their SM limit until they are restarted"))
}

/// `gshare admin on`.
pub(crate) fn order_on(world: &World<'_>) -> Order {
    if !world.config.is_off() && line_now(world).is_none() {
        let text = "gshare is already on; nothing was changed".to_owned();
        return Order::saying(text, None);
    }
    let dir = world.host.paths.state_dir.clone();
    Order {
        acts: vec![world.config.off_act("on", "on")],
        file: Some(Box::new(move || {
            off::remove(&dir).map_err(|e| unwritten(&e))
        })),
        then: vec![Command::Rules(RuleCommand::FollowOff)],
        ..Order::answered(|world, _| {
            let above = |(id, live): (&ClaimId, &Live)| {
                let over = live.seats.iter().any(|seat| {
                    let most = seat.limits.memory_cap();
                    seat.usage.most_charged_bytes(world.gpus[seat.gpu].total) > most
                });
                over.then(|| {
                    format!("{id} is above its limit: it keeps what it has and gets no more; no program is stopped")
                })
            };
            let mut lines = vec!["gshare is on: limits, queue and filters apply again".to_owned()];
            lines.extend(world.claims.iter().filter_map(above));
            AdminDone {
                message: lines.join("\n"),
                undo: Some("gshare admin off".to_owned()),
            }
        })
    }
}

/// The cap that is written at present instead of this one.
pub(crate) fn cap_now(world: &World<'_>, id: ClaimId, gpu: usize, cap: u64) -> u64 {
    match is_unlimited(world, id) {
        true => world.gpus[gpu].total,
        false => cap,
    }
}

/// Whether nothing limits a claim: gshare is off, or the claim is only counted or observed.
pub(crate) fn is_unlimited(world: &World<'_>, id: ClaimId) -> bool {
    let live = world.claims.get(&id);
    world.config.is_off()
        || world.claims.is_counted(id)
        || live.is_some_and(|l| l.record.is_observed())
}

fn unwritten(error: &std::io::Error) -> WireError {
    let text = messages::nothing_changed(error);
    WireError::new(gshare_proto::ErrorCode::Storage, text)
        .with_hint("sudo gshare admin off also works without the service")
}

impl Claims {
    /// Whether a claim was admitted without a booking: it has no limits until it ends.
    pub(crate) fn is_counted(&self, id: ClaimId) -> bool {
        let live = self.get(&id);
        live.is_some_and(|l| l.record.holding == HoldingRecord::Counted)
    }
}

impl Settings {
    /// Applies the line as it is now. Returns commands if that switches gshare off or on.
    pub(crate) fn follow_off(&mut self, line: Option<OffView>, claims: &Claims) -> Vec<Command> {
        let mut out = Vec::new();
        let left = line.as_ref().and_then(|l| l.until_ms);
        let left = left.map(|until| Duration::from_millis(until.saturating_sub(unix_ms())));
        let soon = left.filter(|left| *left <= WARNING);
        if let (Some(left), false) = (soon, self.off.warned) {
            let soon = format!("gshare will be on again in {}", show_duration(left));
            let text = format!("{soon}; to keep it off: sudo gshare admin off");
            out.push(Command::Notice(text));
            out.extend(claims.keys().map(|id| Command::TellOwner {
                id: *id,
                text: format!("{id}: {soon}. Then its limits apply again; no program is stopped"),
            }));
        }
        self.off.warned = soon.is_some();
        let was = self.is_off();
        self.off.line = line;
        if was != self.is_off() {
            self.switch(&mut out);
        }
        if self.is_off() {
            out.push(Command::Rules(RuleCommand::CallBack(Which::All)));
        }
        out
    }

    /// Applies the configuration for the present state.
    fn switch(&mut self, out: &mut Vec<Command>) {
        if self.is_off() {
            let configured = Box::new((**self).clone());
            **self = harmless(&configured);
            self.off.configured = Some(configured);
        } else if let Some(configured) = self.off.configured.take() {
            **self = *configured;
            self.off.called.clear();
        }
        let text = match self.is_off() {
            true => "gshare is off: nothing is limited, reclaimed or refused until gshare admin on",
            false => {
                "gshare is on again: claims above their limit keep what they have and get no more; no program is stopped"
            }
        };
        tracing::warn!("{text}");
        out.extend([
            Command::Rules(RuleCommand::ReclaimRules),
            Command::Rules(RuleCommand::Admission),
            Command::Limits(LimitCommand::AllLimitsAnew),
            Command::Limits(LimitCommand::FiltersAnew),
            Command::Refresh,
            Command::Notice(text.to_owned()),
        ]);
    }

    /// Applies a configuration, or keeps it until gshare is on again.
    pub(crate) fn configure(&mut self, new: Config) {
        if self.is_off() {
            **self = harmless(&new);
            self.off.configured = Some(Box::new(new));
        } else {
            **self = new;
        }
    }

    /// Restores offloaded and suspended claims whose memory fits, each requested once; for the core.
    pub(crate) fn call_back(&mut self, claims: &Claims, which: Which) -> Vec<Event> {
        let away = |live: &Live| match &live.record.holding {
            HoldingRecord::Parked(parked) => Some(match parked.frozen {
                true => Wish::Resume,
                false => Wish::Restore,
            }),
            _ => None,
        };
        let claims = claims
            .iter()
            .filter(|(_, live)| which == Which::All || live.record.runs.stage < Stage::Reclaim);
        let away = claims.filter_map(|(id, live)| Some((*id, away(live)?)));
        let called = &mut self.off.called;
        let event = |(id, wish)| called.insert(id).then_some(Event::Wish { id, wish });
        away.filter_map(event).collect()
    }

    /// The configuration that holds while gshare is on.
    pub(crate) fn configured(&self) -> &Config {
        self.off.configured.as_deref().unwrap_or(self)
    }

    /// Whether nothing may be limited, reclaimed or refused.
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
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn while_it_is_off_the_configuration_is_harmless_and_then_it_is_as_before() {
        let (mut settings, none) = (Settings::default(), Claims::default());
        settings.policy.overuse = Overuse::Stop;
        assert!(settings.follow_off(None, &none).is_empty(), "it is on");
        let line = |until_ms| {
            let since_ms = unix_ms();
            let by = "root".to_owned();
            Some(OffView {
                since_ms,
                until_ms,
                by,
            })
        };
        let off = settings.follow_off(line(None), &none);
        assert!(matches!(
            off[..],
            [
                Command::Rules(RuleCommand::ReclaimRules),
                ..,
                Command::Rules(RuleCommand::CallBack(Which::All))
            ]
        ));
        assert_eq!(settings.policy.overuse, Overuse::Warn);
        let still = settings.follow_off(line(None), &none);
        assert!(
            matches!(still[..], [Command::Rules(RuleCommand::CallBack(_))]),
            "{still:?}"
        );
        let soon = Some(unix_ms() + 60_000);
        let warned = settings.follow_off(line(soon), &none);
        assert!(matches!(&warned[..], [Command::Notice(text), _] if text.contains("on again in")));
        let once = settings.follow_off(line(soon), &none);
        assert!(
            matches!(once[..], [Command::Rules(RuleCommand::CallBack(_))]),
            "{once:?}"
        );
        let on = settings.follow_off(None, &none);
        assert!(
            matches!(
                on[..],
                [
                    Command::Rules(RuleCommand::ReclaimRules),
                    ..,
                    Command::Notice(_)
                ]
            ),
            "{on:?}"
        );
        assert_eq!(settings.policy.overuse, Overuse::Stop);
    }

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
