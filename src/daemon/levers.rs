//! Levers on claims that run: the core's decisions to park, bring back and move them, carried out.

use gshare_core::machine::lever::Failure;
use gshare_core::machine::{Action, Event};

use super::service::Service;

impl Service {
    /// Whether claims can be moved between GPUs here.
    pub(crate) fn moves_work(&self) -> bool {
        false
    }

    /// Carries out a lever; the core is told what came of it.
    pub(crate) fn pull(&mut self, action: Action) {
        let (Action::Park { id, .. } | Action::Unpark { id, .. } | Action::Move { id, .. }) =
            action
        else {
            return;
        };
        self.drive(Event::LeverFailed {
            id,
            failure: Failure::Refused,
            why: "this driver cannot do that".to_owned(),
        });
    }
}
