//! The rules in force: the configuration, overridden by administrators' settings.

use std::collections::BTreeMap;
use std::ops::{Deref, DerefMut};

use gshare_config::Config;
use gshare_core::units::many;
use gshare_core::{Party, Quota};
use serde::{Deserialize, Serialize};

use crate::clock::local;
use crate::off::Off;
use crate::stage::Stages;

/// All settings; as a configuration, the one in force.
#[derive(Debug, Default)]
pub(crate) struct Settings {
    config: Config,
    /// Whether gshare acts at all.
    pub(crate) off: Off,
    /// How much it does.
    pub(crate) stages: Stages,
    /// Result of the driver checks on this machine.
    pub(crate) conformance: Option<Conformance>,
    /// Guarantees set by administrators.
    pub(crate) set_quotas: BTreeMap<Party, Quota>,
}

impl From<Config> for Settings {
    fn from(config: Config) -> Self {
        Self {
            config,
            ..Self::default()
        }
    }
}

impl Deref for Settings {
    type Target = Config;

    fn deref(&self) -> &Config {
        &self.config
    }
}

impl DerefMut for Settings {
    fn deref_mut(&mut self) -> &mut Config {
        &mut self.config
    }
}

/// When the checks ran, on which GPU and driver, and the result.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Conformance {
    pub(super) at_ms: u64,
    pub(super) gpu: String,
    pub(super) driver: String,
    pub(super) checks: u32,
    pub(super) different: u32,
}

impl Conformance {
    /// For display.
    pub(super) fn text(&self) -> String {
        let (gpu, driver, at) = (&self.gpu, &self.driver, local(self.at_ms));
        format!(
            "in {} of {} the driver differs from its documentation: {gpu}, driver {driver}, {at}",
            self.different,
            many(self.checks as usize, "check")
        )
    }
}
