//! Reads the configuration again while the service runs (SIGHUP, `systemctl reload gshared`).

use gshare_config::{Config, Service as ServiceKeys};
use gshare_core::units::many;

use super::command::{Command, RuleCommand};
use super::manager;
use super::settings::Settings;
use super::world::World;

/// Prefixes of keys that apply only at the start of the service. All others apply at once.
const AT_START: &[&str] = &[
    "service.", "driver.", "devices.", "launch.", "metrics.", "cgroup.",
];
/// Exceptions that apply at once.
const LIVE: &[&str] = &["service.log"];

fn at_start(key: &str) -> bool {
    AT_START.iter().any(|p| key.starts_with(p)) && !LIVE.contains(&key)
}

/// Changes of a new configuration.
#[derive(Debug, Default, PartialEq, Eq)]
struct Change {
    /// Keys that apply now.
    now: Vec<String>,
    /// Keys that apply after a restart.
    later: Vec<String>,
}

impl Change {
    fn between(old: &Config, new: &Config) -> Self {
        let (later, now) = old.changed(new).into_iter().partition(|key| at_start(key));
        Self { now, later }
    }

    fn text(&self) -> String {
        let mut parts = Vec::new();
        if !self.now.is_empty() {
            parts.push(format!("changed: {}", self.now.join(", ")));
        }
        if !self.later.is_empty() {
            parts.push(format!(
                "takes effect when the service restarts: {}",
                self.later.join(", ")
            ));
        }
        if parts.is_empty() {
            parts.push("nothing changed".to_owned());
        }
        format!("configuration read again; {}", parts.join("; "))
    }
}

/// `new`, with the old values of keys that apply only at the start.
fn merged(old: &Config, new: &Config) -> Config {
    Config {
        service: ServiceKeys {
            log: new.service.log,
            ..old.service.clone()
        },
        driver: old.driver.clone(),
        devices: old.devices.clone(),
        launch: old.launch.clone(),
        metrics: old.metrics.clone(),
        cgroup: old.cgroup.clone(),
        ..new.clone()
    }
}

impl Settings {
    /// Applies a configuration that was read again. A file with mistakes changes nothing.
    pub(crate) fn reload(
        &mut self,
        read: Result<Config, gshare_config::ConfigError>,
    ) -> Vec<Command> {
        let new = match read {
            Ok(new) => new,
            Err(error) => {
                let error = anyhow::Error::from(error);
                tracing::error!("the configuration is unchanged: {error:#}");
                let text = "the configuration file has mistakes, so nothing changed; see gshare config check";
                return vec![Command::Notice(text.to_owned())];
            }
        };
        let change = Change::between(self.configured(), &new);
        let new = merged(self.configured(), &new);
        self.configure(new);
        manager::set_level(self.service.log.name());
        vec![
            Command::Rules(RuleCommand::ReadStages),
            Command::Refresh,
            Command::Rules(RuleCommand::Quotas),
            Command::Rules(RuleCommand::Rules),
            Command::Notice(change.text()),
        ]
    }
}

/// One line for the service manager.
pub(crate) fn status(world: &World<'_>) -> String {
    format!(
        "{}, {}, {} waiting",
        many(world.gpus.len(), "GPU"),
        many(world.claims.len(), "claim"),
        world.claims.waiting.len()
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    fn config(text: &str) -> Config {
        Config::check(text, std::path::Path::new("test.toml")).expect("valid")
    }

    #[test]
    fn what_can_change_does_and_the_rest_is_named() {
        let old = Config::default();
        let new = config(
            "[service]\ntick = \"2s\"\nlog = \"debug\"\n[memory]\nreserve = \"1 GiB\"\n[projects]\nx = { users = [\"ada\"] }\n",
        );
        let change = Change::between(&old, &new);
        assert_eq!(change.now, ["service.log", "memory.reserve", "projects.x"]);
        assert_eq!(change.later, ["service.tick"]);
        let merged = merged(&old, &new);
        assert_eq!(merged.service.tick, old.service.tick);
        assert_eq!(merged.service.log, new.service.log);
        assert_eq!(merged.memory, new.memory);
        assert_eq!(merged.projects, new.projects);
        assert_eq!(
            Change::between(&old, &old).text(),
            "configuration read again; nothing changed"
        );
    }

    #[test]
    fn every_key_at_start_exists() {
        let keys: Vec<String> = Config::keys()
            .into_iter()
            .map(|(section, key)| format!("{section}.{key}"))
            .collect();
        for prefix in AT_START.iter().chain(LIVE) {
            assert!(keys.iter().any(|k| k.starts_with(prefix)), "{prefix}");
        }
    }
}
