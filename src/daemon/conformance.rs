//! Results of the driver checks on this machine (`gshare doctor --conformance`). Until they have passed with the
//! installed driver, stages 3 and 4 are experimental.

use gshare_proto::{AdminDone, Check, Conformance as Found, ErrorCode, WireError, messages};

use super::command::{Command, RuleCommand};
use super::doctor::row::check;
use super::order::{Act, Order};
use super::settings::Conformance;
use super::world::World;
use crate::clock::unix_ms;
use crate::off;

/// File name in the state directory.
const FILE: &str = "conformance";
const COMMAND: &str = "sudo gshare doctor --conformance";

/// The saved result; `None` if the line cannot be parsed.
pub(crate) fn read(world: &World<'_>) -> Option<Conformance> {
    off::read_line(&world.host.paths.state_dir, FILE).flatten()
}

/// Whether the installed driver has not passed yet.
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

/// The warning of `gshare admin stage` for stages 3 and 4.
pub(crate) fn warning(world: &World<'_>) -> Option<String> {
    let text = format!(
        "stages 3 and 4 are experimental here until this driver passes its checks. To run them (idle GPU, about 10 min): {COMMAND}"
    );
    is_untried(world).then_some(text)
}

/// Saves the result for an administrator who has run the checks; without one, reports the saved result.
pub(crate) fn order(world: &World<'_>, found: Option<Found>) -> Result<Order, WireError> {
    let answer = || {
        Order::answered(|world, _| AdminDone {
            message: row(world).detail,
            undo: None,
        })
    };
    let Some(found) = found else {
        return Ok(answer());
    };
    let gpu = (world.gpus.get(found.gpu as usize))
        .ok_or_else(|| WireError::new(ErrorCode::Usage, messages::no_gpu(found.gpu)))?;
    let new = Conformance {
        at_ms: unix_ms(),
        gpu: gpu.model.clone(),
        driver: world.gpus.driver_version().to_owned(),
        checks: found.checks,
        different: found.different,
    };
    let before = world.config.conformance.as_ref();
    let act = Act {
        action: "conformance",
        target: format!("GPU {} ({})", found.gpu, gpu.uuid),
        before: before.map_or_else(String::new, Conformance::text),
        after: new.text(),
        reason: None,
    };
    let (dir, line) = (world.host.paths.state_dir.clone(), new.clone());
    let write = move || {
        off::write_line(&dir, FILE, &line).map_err(|error| {
            WireError::new(ErrorCode::Storage, format!("nothing was recorded: {error}"))
                .with_hint(messages::state_disk_room())
        })
    };
    Ok(Order {
        acts: vec![act],
        file: Some(Box::new(write)),
        then: vec![Command::Rules(RuleCommand::SetConformance(new))],
        ..answer()
    })
}
