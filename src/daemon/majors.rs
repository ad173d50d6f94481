//! Numbers of the driver's devices follow a reload of its modules: all but the GPUs' own change from one to the next, and a
//! filter for the old ones lets everything of the new ones through.

use super::gpus;
use super::service::Service;

impl Service {
    /// Makes the filters of all claims, of what is left of ended ones, and of programs without a claim anew.
    pub(crate) fn filters_anew(&mut self) {
        for (id, live) in self.claims.iter() {
            let closed = live.uncovered || live.ending.as_ref().is_some_and(|e| !e.saving);
            let gpus = live.seats.iter().map(|seat| seat.gpu).filter(|_| !closed);
            let rules = gpus::rules(&self.world(), Some(&live.record), gpus);
            if let Err(error) = self.host.fences.set(live.cgroup.as_ref(), &rules) {
                tracing::error!(%id, %error, "cannot update its device filter");
            }
        }
        let rules = gpus::rules(&self.world(), None, []);
        for cgroup in &self.claims.lingering {
            if let Err(error) = self.host.fences.set(Some(cgroup), &rules) {
                tracing::error!(%error, "cannot update the device filter of an ended claim");
            }
        }
        self.places_changed();
    }
}
