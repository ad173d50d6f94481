//! What happened lately, for the screen.

use gshare_core::ClaimId;
use gshare_proto::Notice;

use super::service::Service;
use super::unix_ms;

/// How many notices are kept.
const NOTICES: usize = 50;

impl Service {
    /// Remembers something worth telling.
    pub(crate) fn notice(&mut self, claim: Option<ClaimId>, text: String) {
        let owner = claim.and_then(|id| self.uid_of(id));
        self.notice_for(owner, claim, text);
    }

    /// The same of a claim that has gone. Where there are too many, the oldest of the owner with the most goes.
    pub(crate) fn notice_for(&mut self, owner: Option<u32>, claim: Option<ClaimId>, text: String) {
        tracing::info!(claim = claim.map(|c| c.to_string()), "{text}");
        if let Some(id) = claim {
            self.write_down_for(owner.unwrap_or(0), id, &text);
        }
        let notice = Notice {
            at_ms: unix_ms(),
            claim: claim.map(|c| c.to_string()),
            text,
        };
        self.notices.push_front((owner, notice));
        if self.notices.len() > NOTICES {
            let of = |owner| self.notices.iter().filter(|(o, _)| *o == owner).count();
            let most = self
                .notices
                .iter()
                .map(|(owner, _)| *owner)
                .max_by_key(|o| of(*o));
            let oldest = self.notices.iter().rposition(|(o, _)| Some(*o) == most);
            oldest.and_then(|at| self.notices.remove(at));
        }
        self.dirty = true;
    }
}
