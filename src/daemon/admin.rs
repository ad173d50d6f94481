//! Requests of administrators: who may make them, and the audit entry that is written before anything is done.

pub(crate) mod drain;
pub(crate) mod kill;
mod mode;
pub(crate) mod quota;
pub(crate) mod rights;

use gshare_proto::{AdminCall, AuditEntry, ErrorCode, Reply, WireError};

use self::rights::{may_administrate, unwritten};
use super::features::Features;
use super::journal::{Journal, Store};
use super::names::Names;
use super::order::{Act, Order};
use super::peer::Peer;
use super::world::World;
use super::{conformance, off, release};
use crate::clock::unix_ms;

/// Maximum number of audit entries in one answer.
const ENTRIES: u32 = 10_000;

/// Orders for requests of `gshare admin` that are answered at once.
pub(crate) fn order(
    world: &World<'_>,
    features: &Features,
    peer: &Peer,
    call: AdminCall,
) -> Result<Order, WireError> {
    may_administrate(world, peer)?;
    match call {
        AdminCall::Drain { gpus, reason } => drain::drain(world, peer, &gpus, reason.as_deref()),
        AdminCall::Undrain { gpus } => drain::undrain(world, features, &gpus),
        AdminCall::Kill {
            ids,
            user,
            gpu,
            grace_ms,
            reason,
        } => {
            let chosen = kill::chosen(world, peer, &ids, user.as_deref(), gpu.as_deref())?;
            Ok(kill::order(
                world,
                peer,
                &chosen,
                grace_ms,
                reason.as_deref(),
            ))
        }
        AdminCall::QuotaSet(quota) => quota::set(world, quota),
        AdminCall::QuotaRemove { party } => quota::remove(world, &party),
        AdminCall::Mode {
            gpu,
            mode,
            when_empty,
        } => mode::order(world, &gpu, &mode, when_empty),
        AdminCall::Off { for_ms } => Ok(off::order_off(world, peer, for_ms)),
        AdminCall::On => Ok(off::order_on(world)),
        AdminCall::Conformance { found } => conformance::order(world, found),
        AdminCall::Take { gpus } => release::take(world, &gpus),
        // Answered elsewhere: see `Service::call`.
        AdminCall::Release { .. }
        | AdminCall::Mig { .. }
        | AdminCall::Stage { .. }
        | AdminCall::QuotaList
        | AdminCall::Log { .. }
        | AdminCall::ClaimFor(_) => Err(WireError::new(ErrorCode::Internal, "not here")),
    }
}

/// The newest entries of the audit log.
pub(crate) fn log(
    world: &World<'_>,
    journal: &Journal,
    peer: &Peer,
    last: u32,
) -> Result<Reply, WireError> {
    may_administrate(world, peer)?;
    let entries = journal.audit_log(last.min(ENTRIES));
    let entries = entries.map_err(|e| unwritten(&e))?;
    Ok(Reply::Audit { entries })
}

impl Journal {
    /// Adds administrators' acts to the audit log in the journal, and to the service's log, which systemd keeps too.
    pub(crate) fn audit(
        &mut self,
        names: &Names,
        peer: &Peer,
        acts: Vec<Act>,
        stores: &[Store],
    ) -> Result<(), WireError> {
        let user = names.user(peer.uid);
        let entries: Vec<AuditEntry> = acts
            .into_iter()
            .map(|act| AuditEntry {
                seq: 0,
                at_ms: unix_ms(),
                uid: peer.uid,
                user: user.clone(),
                action: act.action.to_owned(),
                target: act.target,
                before: act.before,
                after: act.after,
                reason: act.reason,
            })
            .collect();
        let written = self.audited(&entries, |tx| stores.iter().try_for_each(|s| s.put(tx)));
        written.map_err(|e| unwritten(&e))?;
        for e in &entries {
            let why = e.reason.as_deref().map(|r| format!(" ({r})"));
            tracing::info!(
                target: super::manager::AUDIT,
                uid = e.uid,
                "{} {} {}: {} -> {}{}",
                e.user, e.action, e.target, e.before, e.after, why.unwrap_or_default()
            );
        }
        Ok(())
    }
}
