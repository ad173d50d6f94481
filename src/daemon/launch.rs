//! Strict launches: who may request one, and the move into the claim.

use std::fs;
use std::sync::Arc;

use gshare_abi::wire::{Launch, LaunchAnswer, NO_NEW_PRIVS, Plan};
use gshare_core::{ClaimId, Request, Share};
use gshare_enforcer::proc::PidFd;
use gshare_proto::{Caps, ErrorCode, WireError, messages};

use super::connection::Sender;
use super::driver::Driver;
use super::journal::ClaimRecord;
use super::peer::Peer;
use super::strict::{Strict, field, is_launcher};
use super::world::World;
use super::{bound, die};

/// Moves the launcher into its claim, and answers what it must do.
pub(crate) fn launch(world: &World<'_>, peer: &Peer, launch: &Launch, out: &Sender) {
    die::at("launch-asked");
    let answer = match plan(world, peer, ClaimId(launch.claim)) {
        Ok(plan) => LaunchAnswer::Go(plan),
        Err((code, message)) => {
            tracing::info!(
                uid = peer.uid,
                claim = launch.claim,
                "launch refused: {message}"
            );
            let code = code.to_owned();
            LaunchAnswer::Refused { code, message }
        }
    };
    out.launcher(&answer);
    die::at("launch-told");
    die::after_answer("launch-heard");
}

fn plan(world: &World<'_>, peer: &Peer, id: ClaimId) -> Result<Plan, (&'static str, String)> {
    let denied = |why: String| ("not_permitted", why);
    let unavailable = |why: String| ("unavailable", why);
    if !world.host.driver.strict.on {
        return Err(unavailable("limits are not strict here".to_owned()));
    }
    let launcher = world
        .host
        .driver
        .strict
        .launcher()
        .map_err(unavailable)?
        .to_owned();
    let (Some(process), Some(pidfd)) = (peer.process, &peer.pidfd) else {
        return Err(denied(messages::unknown_peer()));
    };
    let live = world
        .claims
        .get(&id)
        .ok_or_else(|| ("ended", format!("{id} has ended")))?;
    if live.record.uid != peer.uid {
        return Err(denied(format!("{id} is not yours")));
    }
    if live.ending.is_some() && live.record.process != Some(process) {
        return Err(("ended", format!("{id} is ending")));
    }
    let cgroup = live.cgroup.as_ref();
    let cgroup = cgroup.ok_or_else(|| unavailable(format!("{id} has no cgroup")))?;
    is_launcher(process.pid, &launcher).map_err(denied)?;
    alive(pidfd).map_err(denied)?;
    die::at("launch-checked");
    cgroup
        .move_process(process.pid, Some(pidfd))
        .map_err(|error| {
            let told = bound::not_moved(&error);
            match told.code {
                ErrorCode::NotPermitted => denied(told.message),
                _ => ("internal", told.message),
            }
        })?;
    die::at("launch-moved");
    Ok(Plan {
        claim: id.0,
        majors: world.host.fences.driver_majors(),
        binds: world.host.driver.strict.binds().to_vec(),
    })
}

impl Driver {
    pub(crate) fn caps(&self) -> Caps {
        match self.strict.on {
            true => Caps::Strict,
            false => self.caps_without_launcher(),
        }
    }

    /// How a claim's members are limited.
    pub(crate) fn caps_of(&self, record: &ClaimRecord) -> Caps {
        if record.is_observed() || record.terms.no_library {
            Caps::None
        } else if record.runs.strict {
            Caps::Strict
        } else {
            self.caps_without_launcher()
        }
    }

    fn caps_without_launcher(&self) -> Caps {
        match self.libcuda {
            Ok(_) => Caps::Cooperative,
            Err(_) => Caps::None,
        }
    }
}

impl Strict {
    /// Strict limits mean little if a part of a GPU can be had without them.
    pub(crate) fn may_go_without_library(&self, request: &Request) -> Result<(), WireError> {
        let whole = request.sm == Some(Share::ONE) && request.mem.is_none();
        if !self.on || whole {
            return Ok(());
        }
        let text = "this machine enforces strict limits, and without gshare's library nothing could limit a program to \
            a part of a GPU";
        Err(WireError::new(ErrorCode::NotPermitted, text)
            .with_hint("claim whole GPUs (-g 1), or drop --no-library"))
    }

    /// Refuses early what the launcher would have to refuse after a long wait.
    pub(crate) fn may_launch(&self, peer: &Peer) -> Result<(), WireError> {
        if !self.on {
            return Ok(());
        }
        if let Err(why) = self.launcher() {
            return Err(WireError::new(
                ErrorCode::NotPermitted,
                format!("this machine enforces strict limits, but cannot start commands under them now: {why}"),
            )
            .with_hint("ask your administrator to run gshare doctor"));
        }
        let Some(process) = peer.process else {
            return Ok(());
        };
        let status = fs::read_to_string(format!("/proc/{}/status", process.pid));
        let status = status.unwrap_or_default();
        if field(&status, "NoNewPrivs:") == Some("1") && peer.uid != 0 {
            let [text, hint] = NO_NEW_PRIVS;
            return Err(WireError::new(ErrorCode::NotPermitted, text).with_hint(hint));
        }
        Ok(())
    }
}

/// The facts read about this pid belong to this process if it still lives.
fn alive(pidfd: &Arc<PidFd>) -> Result<(), String> {
    if pidfd.has_exited() {
        Err("the process has ended".to_owned())
    } else {
        Ok(())
    }
}
