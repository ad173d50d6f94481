//! Finds the service's socket and connects.

use std::io::ErrorKind;
use std::os::unix::fs::FileTypeExt;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use gshare_config::find_socket;
use gshare_core::units::{parse_duration, show_duration};
use gshare_proto::{Client, ClientError, messages};

use super::failure::{self, Failure, START};
use super::out;
use super::waiting::Waiting;

/// A service that has not greeted by then may hang.
const LATE: Duration = Duration::from_secs(3);
/// Longest wait for an answer of callers that do not wait. Jupyter waits a minute for a kernel; two seconds were too
/// short for twenty at once on two processors.
pub(crate) const PROMPT: Duration = Duration::from_secs(5);
/// Time between two attempts to reach a service that went away.
const BETWEEN_TRIES: Duration = Duration::from_millis(200);

/// The expected path of the service's socket: `--socket`, `$GSHARE_SOCKET`, the machine's, the user's own.
///
/// # Errors
///
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
                "{}: nothing at {}",
                messages::no_service(),
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
    let path = socket(flag)?;
    reach(&path).map_err(|e| explained(flag, &path, e))
}

/// A connection that tells the user if the service does not answer.
fn reach(path: &Path) -> Result<Client, ClientError> {
    let mut client = Client::connect(path)?;
    client.tell_if_late(LATE, || {
        out::note(&format!(
            "gshare: the service has not answered for {} and may hang; this command waits for it (Ctrl-C ends the wait). \
             Claims keep running when it is restarted: sudo systemctl restart gshared",
            show_duration(LATE)
        ));
    })?;
    Ok(client)
}

/// Whether the answer did not come in time.
pub(crate) fn is_late(error: &ClientError) -> bool {
    let late = [ErrorKind::WouldBlock, ErrorKind::TimedOut];
    matches!(error, ClientError::Io(e) if late.contains(&e.kind()))
}

/// An error after [`PROMPT`], in words.
pub(crate) fn silent(error: ClientError) -> Failure {
    if !is_late(&error) {
        return error.into();
    }
    let waited = PROMPT.as_secs();
    let text = format!("the gshare service did not answer within {waited} s");
    Failure::new(failure::NO_SERVICE, text).with_hint(
        "it hangs or is very busy: `systemctl status gshared` says which. Claims keep running when it is restarted: \
         sudo systemctl restart gshared",
    )
}

/// If the user named the socket, the name may be wrong; installing gshare would not help.
fn explained(flag: Option<&Path>, path: &Path, error: ClientError) -> Failure {
    let named = matches!(&error, ClientError::NoService { source, .. } if matches!(
        source.kind(),
        ErrorKind::NotFound | ErrorKind::ConnectionRefused
    ));
    let by = match flag {
        Some(_) => "--socket",
        None if std::env::var_os("GSHARE_SOCKET").is_some_and(|p| !p.is_empty()) => "GSHARE_SOCKET",
        None => "",
    };
    let failure = Failure::from(error);
    if !named || is_socket(path) || by.is_empty() {
        return failure;
    }
    failure.with_hint(format!(
        "there is no socket at the path that {by} gives; without {by}, gshare looks in the usual places (gshare config \
         path). To start the service: `sudo systemctl start gshared`; your own: `gshare daemon --user`"
    ))
}

/// As [`connect`], for a claim that may wait for at most `wait`: waits for a restarting service, whose socket exists
/// and refuses or closes connections. The main process of a systemd service also waits for a missing socket: at boot
/// the two may start together.
pub(crate) fn patiently(
    flag: Option<&Path>,
    wait: Duration,
    waiting: &Waiting,
) -> Result<Client, Failure> {
    if is_main_of_unit() {
        return expect_service(flag);
    }
    let path = socket(flag)?;
    match reach(&path) {
        Err(lost) if is_restarting(&lost, &path) => {
            again(flag, Instant::now() + wait.min(patience()), waiting)?
                .ok_or_else(|| explained(flag, &path, lost))
        }
        other => other.map_err(|e| explained(flag, &path, e)),
    }
}

/// Whether the service has stopped and may start again.
fn is_restarting(error: &ClientError, path: &Path) -> bool {
    match error {
        ClientError::Io(_) | ClientError::Closed => true,
        ClientError::NoService { source, .. } => {
            source.kind() == ErrorKind::ConnectionRefused && is_socket(path)
        }
        ClientError::Garbled(_) | ClientError::Refused(_) => false,
    }
}

fn is_socket(path: &Path) -> bool {
    let kind = path.symlink_metadata().map(|m| m.file_type());
    kind.is_ok_and(|kind| kind.is_socket())
}

/// Whether systemd started this process itself, rather than a shell or script in between.
pub(crate) fn is_main_of_unit() -> bool {
    std::env::var("SYSTEMD_EXEC_PID").is_ok_and(|pid| pid == std::process::id().to_string())
}

fn expect_service(flag: Option<&Path>) -> Result<Client, Failure> {
    let until = Instant::now() + patience();
    let mut told = false;
    loop {
        match connect(flag) {
            Err(failure) if failure.code == failure::NO_SERVICE && Instant::now() < until => {
                if !told {
                    told = true;
                    let most = show_duration(patience());
                    out::note(&format!(
                        "gshare: no service yet; waiting up to {most} (After=gshared.service in this unit avoids the wait)"
                    ));
                }
                std::thread::sleep(BETWEEN_TRIES);
            }
            other => return other,
        }
    }
}

/// How long a waiting claim tries to reach a service that went away: `GSHARE_RECONNECT` (`30s`), otherwise a minute,
/// enough for an upgrade.
pub(crate) fn patience() -> Duration {
    let given = std::env::var("GSHARE_RECONNECT").ok();
    given
        .and_then(|text| parse_duration(&text).ok())
        .unwrap_or(Duration::from_secs(60))
}

/// A new connection to a service that went away, once it is back; `None` if that is after `until`.
pub(crate) fn again(
    flag: Option<&Path>,
    until: Instant,
    waiting: &Waiting,
) -> Result<Option<Client>, Failure> {
    let path = socket(flag)?;
    let mut told = false;
    while Instant::now() < until {
        std::thread::sleep(BETWEEN_TRIES);
        if let Ok(client) = reach(&path) {
            return Ok(Some(client));
        }
        if !told {
            told = true;
            waiting.service_gone();
        }
    }
    Ok(None)
}
