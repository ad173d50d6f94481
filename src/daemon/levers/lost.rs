//! What is told of levers that do not get on, and of processes that the driver has lost.

use std::collections::BTreeSet;

use gshare_core::ClaimId;

use super::job::Tell;
use crate::daemon::msg::{LeverMsg, Lost, Msg};
use crate::daemon::service::Service;

impl Service {
    /// How the job of a claim says that it does not get on.
    pub(super) fn teller(&self, id: ClaimId) -> Tell {
        let events = self.events.clone();
        Tell(Box::new(move |why| {
            let _ = events.send(Msg::Lever(LeverMsg::Stuck { id, why }));
        }))
    }

    /// The owner learns that the driver has lost processes.
    pub(super) fn tell_lost(&mut self, id: ClaimId, lost: BTreeSet<Lost>) {
        for Lost { pid, during } in lost {
            if !self.levers.lost.entry(id).or_default().insert(pid) {
                continue;
            }
            let call = during.map_or_else(String::new, |call| format!(" ({call} failed)"));
            let text = format!(
                "{id}: the driver has lost process {pid}{call}; its GPU calls fail from now on. End it and start it \
                 again; the others continue"
            );
            self.tell_owner(id, &text);
        }
    }
}
