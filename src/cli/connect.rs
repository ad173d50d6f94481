//! Finds the service's socket and connects.

use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use gshare_config::find_socket;
use gshare_core::units::parse_duration;
use gshare_proto::{Client, ClientError};

use super::failure::{self, Failure, START};
use super::waiting::Waiting;

/// Between two attempts to reach a service that has gone.
const BETWEEN_TRIES: Duration = Duration::from_millis(200);

/// Where the service should listen: `--socket`, `$GSHARE_SOCKET`, the machine's, the user's own.
///
/// # Errors
/// When there is no socket at any of the usual places.
pub(crate) fn socket(flag: Option<&Path>) -> Result<PathBuf, Failure> {
    if let Some(path) = flag {
        return Ok(path.to_owned());
    }
    if let Some(path) = std::env::var_os("GSHARE_SOCKET").filter(|p| !p.is_empty()) {
        return Ok(path.into());
    }
    let (found, tried) = find_socket();
    found.ok_or_else(|| {
        let tried: Vec<String> = tried.iter().map(|p| p.display().to_string()).collect();
        Failure::new(
            failure::NO_SERVICE,
            format!(
                "no gshare service on this machine: nothing at {}",
                tried.join(" or ")
            ),
        )
        .with_hint(START)
    })
}

/// A connection to the service.
///
/// # Errors
/// When no service answers.
pub(crate) fn connect(flag: Option<&Path>) -> Result<Client, Failure> {
    Ok(Client::connect(&socket(flag)?)?)
}

/// As [`connect`]; a service that goes away while it is greeted is waited for.
pub(crate) fn patiently(flag: Option<&Path>, waiting: &Waiting) -> Result<Client, Failure> {
    match Client::connect(&socket(flag)?) {
        Err(lost @ ClientError::Io(_)) => {
            again(flag, Instant::now() + patience(), waiting)?.ok_or_else(|| lost.into())
        }
        other => Ok(other?),
    }
}

/// How long a claim looks for a service that has gone while it waited: `GSHARE_RECONNECT` (`30s`), else a
/// minute, enough for an upgrade.
pub(crate) fn patience() -> Duration {
    let given = std::env::var("GSHARE_RECONNECT").ok();
    given
        .and_then(|text| parse_duration(&text).ok())
        .unwrap_or(Duration::from_secs(60))
}

/// A new connection to a service that has gone, as soon as it is back; `None` if it is not by `until`.
///
/// # Errors
/// When signals cannot be set up.
pub(crate) fn again(
    flag: Option<&Path>,
    until: Instant,
    waiting: &Waiting,
) -> Result<Option<Client>, Failure> {
    let path = socket(flag)?;
    let mut told = false;
    while Instant::now() < until {
        std::thread::sleep(BETWEEN_TRIES);
        if let Ok(client) = Client::connect(&path) {
            return Ok(Some(client));
        }
        if !told {
            told = true;
            waiting.service_gone();
        }
    }
    Ok(None)
}
