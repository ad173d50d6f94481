//! Reports about jobs that make no progress, and about processes that the driver has lost.

use std::collections::BTreeMap;

use gshare_core::ClaimId;
use gshare_proto::messages;

use super::job::Tell;
use crate::daemon::engine::LeverState;
use crate::daemon::host::Host;
use crate::daemon::msg::{LeverMsg, Msg, Outcome, Unable};

impl Host {
    /// How the job of a claim reports that it makes no progress.
    pub(super) fn teller(&self, id: ClaimId) -> Tell {
        let events = self.events.clone();
        Tell(Box::new(move |why| {
            let _ = events.send(Msg::Lever(LeverMsg::Stuck { id, why }));
        }))
    }
}

impl LeverState {
    /// Notifies the owner of processes that the driver has lost, or for which it does not answer.
    pub(crate) fn note_unable(
        &mut self,
        id: ClaimId,
        outcome: &Outcome,
        unable: BTreeMap<i32, Unable>,
    ) -> Vec<String> {
        let known = &mut self.claims.entry(id).or_default().unable;
        if matches!(outcome, Outcome::Done) {
            known.retain(|_, why| *why != Unable::Silent);
        }
        let new = unable.into_iter();
        let new = new.filter(|(pid, why)| known.insert(*pid, *why) != Some(*why));
        let text = |(pid, why)| match why {
            Unable::Lost(during) => {
                let call = during.map_or_else(String::new, |call| format!(" in {call}"));
                format!(
                    "{id}: a checkpoint of process {pid} failed{call}, and its GPU calls fail from now on. End this \
                     process and start it again; the others continue"
                )
            }
            Unable::Silent | Unable::Nccl => format!(
                "{id}: {}. All processes of {id} continue. Until process {pid} ends, gshare offloads {id} only on request \
                 (gshare offload {id})",
                messages::driver_is_silent(pid)
            ),
        };
        new.map(text).collect()
    }
}
