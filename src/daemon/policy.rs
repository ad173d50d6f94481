//! What is done about use outside claims and about use beyond them: the service's side of `[policy]`.

mod adopt;
mod auto;
mod deny;
mod doctor;
mod limits;
mod overuse;
mod places;
mod time;

use std::collections::{BTreeMap, BTreeSet};
use std::path::PathBuf;

use gshare_config::{Mode, Unclaimed};
use gshare_core::ClaimId;
use gshare_core::reconcile::Reconcile;
use gshare_enforcer::proc::{self, ProcessKey};
use gshare_proto::{ErrorCode, WireError};

pub(crate) use auto::AutoClaim;
use deny::Denial;

use super::service::Service;

/// What is remembered from one look to the next.
#[derive(Debug, Default)]
pub(crate) struct Policy {
    /// GPU time that was counted by the last look.
    pub(crate) time: time::Time,
    /// Looks at the driver so far.
    pub(crate) looks: u64,
    /// Claims that use more than they are counted.
    pub(crate) over: Reconcile<ProcessKey>,
    /// Highest sum of a claim's charges on a GPU since the last look at the driver.
    pub(crate) charged: BTreeMap<(ClaimId, usize), u64>,
    /// Processes outside claims that are accounted as claims of their own.
    pub(crate) auto: BTreeMap<ClaimId, AutoClaim>,
    /// The filter that keeps programs outside claims from GPUs.
    pub(crate) denial: Option<Denial>,
    /// Users were told that nothing keeps programs outside claims from the GPUs.
    told_open: bool,
    /// The directories where cgroups and sessions appear that are watched.
    watched: BTreeSet<PathBuf>,
    /// Whether the driver limits the memory of control groups, by GPU, where that is known.
    pub(crate) limits: BTreeMap<usize, Result<(), String>>,
    /// gshare's own processes besides the service, which are nobody's use: they and their descendants.
    pub(crate) own: BTreeSet<i32>,
}

impl Policy {
    /// A claim's charges on a GPU, read between two looks at the driver.
    pub(crate) fn saw_charge(&mut self, id: ClaimId, gpu: usize, bytes: u64) {
        let highest = self.charged.entry((id, gpu)).or_default();
        *highest = bytes.max(*highest);
    }
}

impl Service {
    /// What is done about processes outside claims. A user's own service is nobody's accountant: others'
    /// claims look like use outside claims to it.
    pub(crate) fn unclaimed_policy(&self) -> Unclaimed {
        match self.mode {
            Mode::System => self.config.policy.unclaimed,
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
            format!("{word} is process {pid} of {user}, outside claims: it has no cap and ends with the process"),
        )
        .with_hint(format!("gshare adopt {pid} makes it a claim; kill {pid} ends it"))
    }

    /// A process that gshare itself runs: a probe, a server of its own.
    pub(crate) fn is_own_process(&self, pid: i32) -> bool {
        let service = std::process::id().cast_signed();
        let own = |pid: i32| pid == service || self.policy.own.contains(&pid);
        self.is_mps_server(pid) || proc::ancestors(pid).iter().any(|a| own(a.pid))
    }
}
