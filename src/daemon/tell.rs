//! Telling the owner of a claim: on the screen for everybody, on the terminals that its processes have, and in the
//! output of its notebook.

use std::collections::BTreeSet;

use gshare_core::ClaimId;
use gshare_enforcer::proc::{self, ProcessKey};
use gshare_proto::Notice;

use super::fact::Fact;
use super::restore::members_of;
use super::service::Service;
use super::story;
use super::world::World;
use crate::clock::unix_ms;

impl Service {
    /// Tells everybody on the screen, and writes it down if it is about a claim.
    pub(crate) fn notice(&mut self, claim: Option<ClaimId>, text: String) {
        let owner = claim.and_then(|id| story::uid_of(&self.world(), id));
        self.notice_for(owner, claim, text);
    }

    /// The same of a claim that has gone.
    pub(crate) fn notice_for(&mut self, owner: Option<u32>, claim: Option<ClaimId>, text: String) {
        tracing::info!(claim = claim.map(|c| c.to_string()), "{text}");
        if let Some(id) = claim {
            self.journal.note(owner.unwrap_or(0), id, &text);
        }
        let notice = Notice {
            at_ms: unix_ms(),
            claim: claim.map(|c| c.to_string()),
            text,
        };
        self.tell(Fact::Told { owner, notice });
        self.screens.touch();
    }

    /// A notice, and the same as a line on the owner's terminals. A terminal that takes no text at once is
    /// left alone.
    pub(crate) fn tell_owner(&mut self, id: ClaimId, text: &str) {
        let Some(live) = self.claims.get(&id) else {
            return;
        };
        let owner = live.record.uid;
        let members = members_now(&self.world(), id);
        self.host.helpers.say(live, text, &self.host.events);
        let terminals: BTreeSet<_> = members
            .iter()
            .filter_map(|p| proc::terminal(p.pid, owner))
            .collect();
        for terminal in terminals {
            if let Err(error) = terminal.say(&format!("gshare: {text}")) {
                tracing::debug!(%id, %error, "cannot write to the owner's terminal");
            }
        }
        self.notice(Some(id), text.to_owned());
    }
}

/// The claim's processes at this moment, on the GPU or not.
pub(crate) fn members_now(world: &World<'_>, id: ClaimId) -> Vec<ProcessKey> {
    let members = |live| {
        members_of(
            live,
            &world.host.paths.socket,
            world.host.fences.tree.as_ref(),
        )
    };
    world.claims.get(&id).map(members).unwrap_or_default()
}
