//! Telling the owner of a claim: on the screen for everybody, on the terminals that its processes have, and in the
//! output of its notebook.

use std::collections::BTreeSet;

use gshare_core::ClaimId;
use gshare_enforcer::proc::{self, ProcessKey};

use super::restore::members_of;
use super::service::Service;

impl Service {
    /// The claim's processes at this moment, on the GPU or not.
    pub(crate) fn members_now(&self, id: ClaimId) -> Vec<ProcessKey> {
        let members = |live| members_of(live, &self.paths.socket);
        self.claims.get(&id).map(members).unwrap_or_default()
    }

    /// A notice, and the same as a line on the owner's terminals. A terminal that takes no text at once is
    /// left alone.
    pub(crate) fn tell_owner(&mut self, id: ClaimId, text: &str) {
        let Some(live) = self.claims.get(&id) else {
            return;
        };
        let owner = live.record.uid;
        let members = self.members_now(id);
        let terminals: BTreeSet<_> = members
            .iter()
            .filter_map(|p| proc::terminal(p.pid, owner))
            .collect();
        for terminal in terminals {
            if let Err(error) = terminal.say(&format!("gshare: {text}")) {
                tracing::debug!(%id, %error, "the owner's terminal takes no text");
            }
        }
        self.say_in_notebook(id, text);
        self.notice(Some(id), text.to_owned());
    }
}
