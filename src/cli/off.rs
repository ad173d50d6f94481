//! `gshare admin off` and `on`: the service does it, or root without it.

use std::path::Path;
use std::sync::mpsc;
use std::time::Duration;

use gshare_config::{Config, Mode};
use gshare_core::units::many;
use gshare_proto::{AdminCall, AdminDone, Call, Client, ClientError, ErrorCode, Reply};

use super::admin::show;
use super::args::admin::{OffArgs, OnArgs};
use super::claim::unexpected;
use super::failure::{self, Failure};
use super::{Outcome, connect, out};
use crate::off;

/// A service that has not answered by then counts as stuck: `off` works within a second, also on a busy machine. Where it
/// answers later after all, it does the same again.
const ANSWERS: Duration = Duration::from_millis(250);
/// The same for `on`, which is not urgent.
const ANSWERS_ON: Duration = Duration::from_secs(5);

pub(crate) fn off(socket: Option<&Path>, args: &OffArgs) -> Outcome {
    let for_ms = args
        .until
        .map(|d| u64::try_from(d.as_millis()).unwrap_or(u64::MAX));
    let done = match by_service(socket, AdminCall::Off { for_ms }, ANSWERS)? {
        Some(done) => done,
        None => off_without(args, for_ms)?,
    };
    show(&done, args.json)
}

pub(crate) fn on(socket: Option<&Path>, args: &OnArgs) -> Outcome {
    let done = match by_service(socket, AdminCall::On, ANSWERS_ON)? {
        Some(done) => done,
        None => {
            let config = config_of(args.config.as_deref())?;
            let state_dir = config.paths(Mode::System).state_dir;
            off::remove(&state_dir).map_err(|e| failed("switch on", &state_dir, &e))?;
            AdminDone {
                message: "no service answers; gshare will be on when one does".to_owned(),
                undo: Some("gshare admin off".to_owned()),
            }
        }
    };
    show(&done, args.json)
}

/// The service's answer; none if it does not answer soon.
fn by_service(
    socket: Option<&Path>,
    call: AdminCall,
    patience: Duration,
) -> Result<Option<AdminDone>, Failure> {
    let Ok(path) = connect::socket(socket) else {
        return Ok(None);
    };
    let (tell, told) = mpsc::channel();
    // Connecting also blocks if a service hangs.
    std::thread::spawn(move || {
        let answer = Client::connect(&path).and_then(|mut c| c.call(&Call::Admin(call)));
        // The receiver may have given up.
        let _ = tell.send(answer);
    });
    match told.recv_timeout(patience) {
        Ok(Ok(Reply::Admin(done))) => Ok(Some(done)),
        Ok(Ok(other)) => Err(unexpected(&other)),
        Ok(Err(ClientError::Refused(error))) if error.code == ErrorCode::NotPermitted => {
            Err(ClientError::Refused(error).into())
        }
        _ => Ok(None),
    }
}

/// The installation's configuration, read by root without the service. One with mistakes, with which no service
/// starts, must not prevent switching off.
fn config_of(file: Option<&Path>) -> Result<Config, Failure> {
    if !nix::unistd::Uid::effective().is_root() {
        let text = "the service does not answer, and without it only root can do this";
        return Err(
            Failure::new(failure::NO_SERVICE, text).with_hint("sudo gshare admin off, or on")
        );
    }
    let read = match file {
        Some(file) => Config::load_file(file),
        None => Config::load(Mode::System),
    };
    Ok(read.unwrap_or_else(|error| {
        out::note(&format!("gshare: using the default paths: {error}"));
        Config::default()
    }))
}

fn off_without(args: &OffArgs, for_ms: Option<u64>) -> Result<AdminDone, Failure> {
    let config = config_of(args.config.as_deref())?;
    let paths = config.paths(Mode::System);
    let user = std::env::var("SUDO_USER").unwrap_or_else(|_| "root".to_owned());
    let written = off::write(&paths.state_dir, &off::line(user, for_ms));
    let opened = off::open(&paths, &config.cgroup.root);
    for why in &opened.trouble {
        out::note(&format!("gshare: {why}"));
    }
    written.map_err(|e| failed("stay off", &paths.state_dir, &e))?;
    let until = off::span(for_ms);
    Ok(AdminDone {
        message: format!(
            "gshare is off {until}. No service answers, so this command lifted {} and {}. \
             gshare stays off when the service is restarted\nOffloaded and suspended claims come back when a service runs",
            many(opened.pages, "claim limit"),
            many(opened.filters, "device filter")
        ),
        undo: Some("gshare admin on".to_owned()),
    })
}

fn failed(what: &str, state_dir: &Path, error: &std::io::Error) -> Failure {
    let text = format!(
        "no service answers, and gshare cannot {what}: {}: {error}",
        state_dir.display()
    );
    Failure::new(failure::INTERNAL, text)
        .with_hint("if gshare uses another configuration file, name it with --config FILE")
}
