//! Finds the service's socket and connects.

use std::path::{Path, PathBuf};

use gshare_config::find_socket;
use gshare_proto::Client;

use super::failure::{self, Failure, START};

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
