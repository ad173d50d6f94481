//! `gshare demo --shell`: a shell in which `gshare` is this program and talks to the simulated workstation.

use std::ffi::OsString;
use std::os::unix::fs::symlink;
use std::os::unix::process::ExitStatusExt;
use std::time::Duration;

use anyhow::Context;
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use tokio::process::Child;
use tokio::signal::unix::{SignalKind, signal};

use super::TOY;
use crate::command::out::note;
use crate::station::Station;

/// Longest time for a shell to end with its terminal.
const LAST_WORDS: Duration = Duration::from_secs(2);

/// Runs the shell until it or its terminal ends, and returns its exit code.
pub(super) fn run(station: &Station) -> anyhow::Result<i32> {
    let shell = std::env::var_os("SHELL").unwrap_or_else(|| "/bin/sh".into());
    // A link, so that Jupyter kernels installed from here name the program itself.
    let bin = station.dir().join("shell");
    std::fs::create_dir(&bin)?;
    let program = std::env::current_exe().context("cannot find the program itself")?;
    symlink(program, bin.join("gshare"))?;
    symlink(station.laboratory(), bin.join(TOY))?;
    let mut path = OsString::from(bin);
    if let Some(old) = std::env::var_os("PATH") {
        path.push(":");
        path.push(old);
    }
    let mut command = station.client_environment(std::process::Command::new(shell));
    command
        .env("PATH", path)
        .current_dir(std::env::current_dir()?);
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()?;
    runtime.block_on(async {
        let mut hangup = signal(SignalKind::hangup())?;
        let mut terminate = signal(SignalKind::terminate())?;
        // The shell handles the signals of the terminal's keys.
        let _keys = [
            signal(SignalKind::interrupt())?,
            signal(SignalKind::quit())?,
        ];
        note("A shell on a SIMULATED workstation. Nothing here touches a real GPU.");
        note(
            "Try: gshare status, gshare claim -g 0.25 -- gshare-toy 2048 10, gshare ps, gshare. exit ends it.",
        );
        let mut shell = tokio::process::Command::from(command)
            .spawn()
            .context("cannot start the shell")?;
        let ended = tokio::select! {
            status = shell.wait() => return Ok(code(status?)),
            _ = hangup.recv() => Signal::SIGHUP,
            _ = terminate.recv() => Signal::SIGTERM,
        };
        end(&mut shell).await;
        Ok(128 + ended as i32)
    })
}

fn code(status: std::process::ExitStatus) -> i32 {
    let by_signal = status.signal().map(|number| 128 + number);
    status.code().or(by_signal).unwrap_or(1)
}

/// Ends a shell by hangup, as the end of its terminal would, since it ignores SIGTERM.
async fn end(shell: &mut Child) {
    if let Some(pid) = shell.id().and_then(|pid| i32::try_from(pid).ok()) {
        let _ = kill(Pid::from_raw(pid), Signal::SIGHUP);
    }
    if tokio::time::timeout(LAST_WORDS, shell.wait())
        .await
        .is_err()
    {
        let _ = shell.kill().await;
    }
}
