//! What the list of checks of the driver found here (`gshare doctor --conformance`). Until it has passed with the driver that
//! is installed, stages 3 and 4 are experimental.

use gshare_proto::{AdminDone, Check, Conformance as Found, ErrorCode, Reply, WireError};
use serde::{Deserialize, Serialize};

use super::admin::Act;
use super::doctor::check;
use super::peer::Peer;
use super::service::Service;
use super::world::World;
use crate::clock::{local, unix_ms};
use crate::off;

/// Name of the line in the state directory.
const FILE: &str = "conformance";
const COMMAND: &str = "sudo gshare doctor --conformance";

/// When it ran on which GPU with which driver, and what it found.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Conformance {
    at_ms: u64,
    gpu: String,
    driver: String,
    checks: u32,
    different: u32,
}

impl Conformance {
    fn text(&self) -> String {
        let (gpu, driver, at) = (&self.gpu, &self.driver, local(self.at_ms));
        format!(
            "{} of {} checks differ from the documentation: {gpu}, driver {driver}, {at}",
            self.different, self.checks
        )
    }
}

/// What was found before. A line that cannot be understood says nothing.
pub(crate) fn read(world: &World<'_>) -> Option<Conformance> {
    off::read_line(&world.host.paths.state_dir, FILE).flatten()
}

/// Whether the driver that is installed has not passed.
pub(crate) fn is_untried(world: &World<'_>) -> bool {
    let driver = world.gpus.driver_version();
    let passed = |c: &Conformance| c.different == 0 && c.checks > 0 && c.driver == driver;
    !world.config.conformance.as_ref().is_some_and(passed)
}

/// For `gshare doctor`.
pub(crate) fn row(world: &World<'_>) -> Check {
    let name = "conformance";
    let seen = world.config.conformance.as_ref();
    let seen = seen.map_or_else(|| "never run here".to_owned(), Conformance::text);
    match is_untried(world) {
        false => check(name, "ok", seen),
        true => Check {
            fix: Some(format!("on an idle GPU, about 10 min: {COMMAND}")),
            ..check(
                name,
                "limited",
                format!("{seen}; stages 3 and 4 are experimental"),
            )
        },
    }
}

/// What `gshare admin stage` says of stages 3 and 4.
pub(crate) fn warning(world: &World<'_>) -> Option<String> {
    let text = format!(
        "stages 3 and 4 are experimental here until the checks of this driver pass (an idle GPU, about 10 min): {COMMAND}"
    );
    is_untried(world).then_some(text)
}

impl Service {
    /// Takes down what the list found, for an administrator who has run it.
    pub(crate) fn admin_conformance(
        &mut self,
        peer: &Peer,
        found: Option<Found>,
    ) -> Result<Reply, WireError> {
        let Some(found) = found else {
            return Ok(Reply::Admin(AdminDone {
                message: row(&self.world()).detail,
                undo: None,
            }));
        };
        let gpu = self.gpus.get(found.gpu as usize).ok_or_else(|| {
            WireError::new(ErrorCode::Usage, format!("there is no GPU {}", found.gpu))
        })?;
        let new = Conformance {
            at_ms: unix_ms(),
            gpu: gpu.model.clone(),
            driver: self.gpus.driver_version().to_owned(),
            checks: found.checks,
            different: found.different,
        };
        let before = self.config.conformance.as_ref();
        let act = Act {
            action: "conformance",
            target: format!("GPU {} ({})", found.gpu, gpu.uuid),
            before: before.map_or_else(String::new, Conformance::text),
            after: new.text(),
            reason: None,
        };
        self.journal
            .audit(&self.host.names, peer, vec![act], |_| Ok(()))?;
        off::write_line(&self.host.paths.state_dir, FILE, &new).map_err(|error| {
            WireError::new(
                ErrorCode::Internal,
                format!("nothing was recorded: {error}"),
            )
            .with_hint("is there room on the disk of the state directory (gshare config path)?")
        })?;
        self.config.conformance = Some(new);
        self.screens.touch();
        Ok(Reply::Admin(AdminDone {
            message: row(&self.world()).detail,
            undo: None,
        }))
    }
}
