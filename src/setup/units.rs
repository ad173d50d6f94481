//! Setup's calls to systemd.

use std::process::Command;

use gshare_enforcer::mps::{self, Control};

use crate::command::failure::{self, Failure};
use crate::command::out;

const UNIT: &str = "gshared.service";
/// Seconds for MPS servers to end.
const MPS_QUIT_S: u32 = 2;
/// Parent of all units with claims.
const CLAIMS: &str = "gshare.slice";

fn systemctl(arguments: &[&str]) -> Result<bool, Failure> {
    let run = Command::new("systemctl").args(arguments).output();
    let output =
        run.map_err(|e| Failure::new(failure::NO_SERVICE, format!("cannot run systemctl: {e}")))?;
    if !output.status.success() && arguments[0] != "is-active" {
        let why = String::from_utf8_lossy(&output.stderr);
        out::note(&format!(
            "systemctl {}: {}",
            arguments.join(" "),
            why.trim()
        ));
    }
    Ok(output.status.success())
}

fn is_active() -> Result<bool, Failure> {
    systemctl(&["is-active", "--quiet", UNIT])
}

/// What [`start`] will do, one line each.
pub(super) fn plan(changed: bool) -> Result<Vec<String>, Failure> {
    if !gshare_enforcer::systemd::booted() {
        let text = "setup would change nothing, because systemd is not running here; to install only the files: gshare \
                    setup --root /";
        return Ok(vec![text.to_owned()]);
    }
    let mut lines = vec![
        "systemctl daemon-reload".to_owned(),
        format!("systemctl enable {UNIT}"),
    ];
    lines.push(match (is_active()?, changed) {
        (true, true) => format!("systemctl restart {UNIT} (programs in claims keep running)"),
        (true, false) => format!("nothing: {UNIT} is already running"),
        (false, _) => format!("systemctl start {UNIT}"),
    });
    Ok(lines)
}

/// Starts the service, or restarts it after a change.
///
/// # Errors
///
/// When it does not start; its output is in the text.
pub(super) fn start(changed: bool) -> Result<(), Failure> {
    systemctl(&["daemon-reload"])?;
    systemctl(&["enable", "--quiet", UNIT])?;
    let done = match (is_active()?, changed) {
        (true, true) => systemctl(&["restart", UNIT])?,
        (true, false) => true,
        (false, _) => {
            systemctl(&["reset-failed", UNIT])?;
            systemctl(&["start", UNIT])?
        }
    };
    if done {
        return Ok(());
    }
    let log = Command::new("journalctl")
        .args(["-u", UNIT, "-n", "4", "-o", "cat", "--no-pager"])
        .output()
        .map(|o| String::from_utf8_lossy(&o.stdout).trim().to_owned())
        .unwrap_or_default();
    Err(Failure::new(
        failure::NO_SERVICE,
        format!("everything is installed, but the service does not start:\n{log}"),
    )
    .with_hint("fix that, then: sudo systemctl start gshared && gshare doctor"))
}

/// Stops the service, and removes its remains.
pub(super) fn stop() -> Result<(), Failure> {
    systemctl(&["disable", "--now", "--quiet", UNIT])?;
    leave()
}

/// Removes the remains of the stopped service, unless processes of claims still live there.
pub(super) fn leave() -> Result<(), Failure> {
    // Without the service no program would be admitted any more.
    if let Err(error) = gshare_enforcer::device::Guard::lift_all() {
        out::note(&format!(
            "gshare could not remove its device filters: {error}. Programs without a claim may be kept from GPUs until \
             the machine restarts"
        ));
    }
    if members() == 0 {
        end_mps();
        systemctl(&["stop", CLAIMS])?;
        // Pages of ended claims; the next boot would remove them anyway.
        let _ = std::fs::remove_dir_all("/run/gshare");
    }
    Ok(())
}

/// Ends the service's MPS control daemons, which outlive it.
fn end_mps() {
    let config = gshare_config::Config::load(gshare_config::Mode::System).unwrap_or_default();
    let Some(program) = mps::find_program(config.mps.control.as_deref()) else {
        return;
    };
    let dirs = std::fs::read_dir("/run/gshare/mps");
    for dir in dirs.into_iter().flatten().flatten() {
        let ended =
            Control::new(&program, &dir.path()).and_then(|control| control.quit(MPS_QUIT_S));
        if let Err(error) = ended {
            out::note(&format!(
                "an MPS control daemon may still be running: {error}"
            ));
        }
    }
}

/// Reloads systemd after units were removed.
pub(super) fn reload() -> Result<(), Failure> {
    systemctl(&["daemon-reload"])?;
    // Clears its earlier failure.
    let _ = Command::new("systemctl")
        .args(["reset-failed", UNIT])
        .output();
    Ok(())
}

/// Number of running processes of claims.
pub(super) fn members() -> usize {
    gshare_enforcer::cgroup::UnitTree::members("gshare")
}
