//! What administrators may do, and the record of it: who may, what is written before anything is done.

pub(crate) mod drain;
pub(crate) mod kill;
mod mode;
pub(crate) mod quota;

use gshare_enforcer::proc;
use gshare_proto::{AdminCall, AuditEntry, ErrorCode, Reply, WireError};

use super::convert;
use super::journal::{Journal, JournalError};
use super::names::Names;
use super::peer::Peer;
use super::service::Service;
use super::world::World;
use crate::clock::unix_ms;

/// Longest text of a reason, in characters.
const REASON: usize = 200;
/// Most entries of the audit log in one answer.
const ENTRIES: u32 = 10_000;

/// One decision for the audit log.
#[derive(Debug)]
pub(crate) struct Act {
    /// `drain`.
    pub(crate) action: &'static str,
    /// On what.
    pub(crate) target: String,
    /// The state before.
    pub(crate) before: String,
    /// The state after.
    pub(crate) after: String,
    /// The reason given.
    pub(crate) reason: Option<String>,
}

impl Service {
    /// A request of `gshare admin`.
    pub(crate) fn admin(&mut self, peer: &Peer, call: AdminCall) -> Result<Reply, WireError> {
        // What is guaranteed to whom is no secret.
        if !matches!(call, AdminCall::QuotaList) {
            may_administrate(&self.world(), peer)?;
        }
        match call {
            AdminCall::Drain { gpus, reason } => self.admin_drain(peer, &gpus, reason.as_deref()),
            AdminCall::Undrain { gpus } => self.admin_undrain(peer, &gpus),
            AdminCall::Kill {
                ids,
                user,
                gpu,
                grace_ms,
                reason,
            } => {
                let chosen =
                    kill::chosen(&self.world(), peer, &ids, user.as_deref(), gpu.as_deref())?;
                self.admin_kill(peer, &chosen, grace_ms, reason.as_deref())
            }
            AdminCall::QuotaSet(quota) => {
                let (journal, here) = (&mut self.journal, (&self.host.names, &self.gpus));
                let done = self.config.set_quota(journal, here, peer, quota)?;
                self.drive_all(quota::anew(&self.world()));
                Ok(done)
            }
            AdminCall::QuotaRemove { party } => {
                let (journal, names) = (&mut self.journal, &self.host.names);
                let done = self.config.remove_quota(journal, names, peer, &party)?;
                self.drive_all(quota::anew(&self.world()));
                Ok(done)
            }
            AdminCall::QuotaList => Ok(self.config.quota_list()),
            AdminCall::Mode {
                gpu,
                mode,
                when_empty,
            } => self.admin_mode(peer, &gpu, &mode, when_empty),
            AdminCall::Off { for_ms } => self.admin_off(peer, for_ms),
            AdminCall::On => self.admin_on(peer),
            AdminCall::Conformance { found } => self.admin_conformance(peer, found),
            AdminCall::Take { gpus } => self.take_gpus(peer, &gpus),
            // Answered when it is done: see `Service::call`.
            AdminCall::Release { .. }
            | AdminCall::Mig { .. }
            | AdminCall::Stage { .. }
            | AdminCall::ClaimFor(_) => Err(WireError::new(ErrorCode::Internal, "not here")),
            AdminCall::Log { last } => {
                let entries = self.journal.audit_log(last.min(ENTRIES));
                let entries = entries.map_err(|e| unwritten(&e))?;
                Ok(Reply::Audit { entries })
            }
        }
    }
}

impl Journal {
    /// Writes acts to the audit log, and to the service's log, which systemd keeps too.
    pub(crate) fn audit(
        &mut self,
        names: &Names,
        peer: &Peer,
        acts: Vec<Act>,
        change: impl FnOnce(&rusqlite::Transaction<'_>) -> Result<(), JournalError>,
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
        let written = self.audited(&entries, change);
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

/// Root, the service's own user, and the groups of the config; by the kernel's word on the connection.
pub(crate) fn may_administrate(world: &World<'_>, peer: &Peer) -> Result<(), WireError> {
    if !peer.on_machine {
        return Err(WireError::new(
            ErrorCode::NotPermitted,
            "gshare admin is not for programs in a container or in a user's claim, even as root"
                .to_owned(),
        )
        .with_hint("run it on the machine itself: sudo gshare admin ..."));
    }
    let own = nix::unistd::Uid::effective().as_raw();
    if peer.uid == 0 || peer.uid == own {
        return Ok(());
    }
    let groups = &world.config.admin.groups;
    let mut named = peer.gids.iter().filter_map(|gid| proc::group_name(*gid));
    if !groups.is_empty() && named.any(|name| groups.contains(&name)) {
        return Ok(());
    }
    let user = world.host.names.user(peer.uid);
    tracing::warn!("{user} tried to use gshare admin");
    let who = if groups.is_empty() {
        "root".to_owned()
    } else {
        format!("root and the groups {}", groups.join(", "))
    };
    Err(WireError::new(
        ErrorCode::NotPermitted,
        format!("{user} may not use gshare admin on this machine; {who} may"),
    )
    .with_hint("sudo gshare admin ..., or ask to be listed: [admin] groups in gshare.toml"))
}

/// The reason that an administrator gave, fit for other people's terminals.
fn reason_of(text: Option<&str>) -> Option<String> {
    text.map(|t| convert::clean(t, REASON))
        .filter(|t| !t.trim().is_empty())
}

/// ` (fan broken)`, or nothing.
fn in_brackets(reason: Option<&str>) -> String {
    reason.map_or_else(String::new, |r| format!(" ({r})"))
}

fn unwritten(error: &JournalError) -> WireError {
    WireError::new(ErrorCode::Internal, format!("nothing was changed: {error}"))
        .with_hint("is there room on the disk of the state directory (gshare config path)?")
}
