//! What is done about use outside claims and about use beyond them: the service's side of `[policy]`.

mod adopt;
mod auto;
mod deny;
mod doctor;
mod limits;
mod overuse;
mod places;

use gshare_config::{Mode, Unclaimed};
use gshare_enforcer::proc;
use gshare_proto::{ErrorCode, WireError};

use super::outside::AutoClaim;
use super::service::Service;

impl Service {
    /// What is done about processes outside claims. A user's own service is nobody's accountant: others'
    /// claims look like use outside claims to it.
    pub(crate) fn unclaimed_policy(&self) -> Unclaimed {
        match self.mode {
            Mode::System => {
                let set = self.config.policy.unclaimed;
                set.unwrap_or_else(|| self.unclaimed_by_stage())
            }
            Mode::User => Unclaimed::Observe,
        }
    }

    /// After each look at the driver.
    pub(crate) fn apply_policy(&mut self) {
        self.policy.looks += 1;
        self.probe_limits();
        self.apply_denial();
        self.update_auto_claims();
        self.reconcile();
    }

    /// The refusal of what cannot be done with an auto-claim.
    pub(crate) fn is_auto(&self, word: &str, auto: &AutoClaim) -> WireError {
        let (pid, user) = (auto.pid(), self.names.user(auto.uid()));
        WireError::new(
            ErrorCode::NotAvailable,
            format!("{word} is process {pid} of {user}, which has no claim: the process has no limit, and {word} ends \
                     when it exits"),
        )
        .with_hint(format!("to make it a claim: gshare adopt {pid}; to end it: kill {pid}"))
    }

    /// A process that gshare itself runs: a probe, a server of its own.
    pub(crate) fn is_own_process(&self, pid: i32) -> bool {
        let service = std::process::id().cast_signed();
        let own = |pid: i32| pid == service || self.policy.own.contains(&pid);
        self.is_mps_server(pid) || proc::ancestors(pid).iter().any(|a| own(a.pid))
    }
}
