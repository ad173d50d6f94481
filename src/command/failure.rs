//! How a command fails: what, why, what next, and the exit code.

use std::fmt;
use std::io;

use gshare_config::ConfigError;
use gshare_proto::{ClientError, ErrorCode, WireError};

/// Wrong use of the command line, or a request that can never be met.
pub const USAGE: u8 = 64;
/// No service answers.
pub const NO_SERVICE: u8 = 69;
/// Something broke that should not.
pub const INTERNAL: u8 = 70;
/// A file cannot be written, for example on a full disk.
pub const STORAGE: u8 = 74;
/// Not available now, or not within the wait.
pub const NOT_AVAILABLE: u8 = 75;
pub const NOT_PERMITTED: u8 = 77;
/// The configuration is not valid.
pub const CONFIG: u8 = 78;
/// The claim ended, or its time limit was reached.
pub const ENDED: u8 = 124;
/// The command exists but cannot be run.
pub const CANNOT_RUN: u8 = 126;
/// The command was not found.
pub const NOT_FOUND: u8 = 127;
/// A failure of a command, shown as `gshare: <message>` and `hint: <hint>`.
#[derive(Debug)]
pub struct Failure {
    pub code: u8,
    /// What failed and why: lower case, no full stop. Empty prints nothing.
    pub message: String,
    /// What the user can do.
    pub hint: Option<String>,
}

impl Failure {
    /// A failure without a hint.
    #[must_use]
    pub fn new(code: u8, message: impl Into<String>) -> Self {
        Self {
            code,
            message: message.into(),
            hint: None,
        }
    }

    /// The same with advice.
    #[must_use]
    pub fn with_hint(mut self, hint: impl Into<String>) -> Self {
        self.hint = Some(hint.into());
        self
    }
}

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.message)
    }
}

impl std::error::Error for Failure {}

impl From<WireError> for Failure {
    fn from(e: WireError) -> Self {
        let code = match e.code {
            ErrorCode::Usage | ErrorCode::NoClaim => USAGE,
            ErrorCode::NotAvailable => NOT_AVAILABLE,
            ErrorCode::NotPermitted => NOT_PERMITTED,
            ErrorCode::Ended => ENDED,
            ErrorCode::Storage => STORAGE,
            ErrorCode::Protocol => NO_SERVICE,
            ErrorCode::BadRequest | ErrorCode::Internal => INTERNAL,
        };
        let hint = e.hint.or_else(|| {
            (e.code == ErrorCode::Protocol).then(|| {
                "this program and the service are of different versions: restart the service after an upgrade"
                    .to_owned()
            })
        });
        Self {
            code,
            message: e.message,
            hint,
        }
    }
}

impl From<ClientError> for Failure {
    fn from(e: ClientError) -> Self {
        let e = match e {
            ClientError::Refused(e) => return e.into(),
            other => other,
        };
        let code = match &e {
            ClientError::NoService { source, .. }
                if source.kind() == io::ErrorKind::PermissionDenied =>
            {
                NOT_PERMITTED
            }
            ClientError::Garbled(_) => INTERNAL,
            _ => NO_SERVICE,
        };
        let hint = match &e {
            ClientError::NoService { source, .. } => Some(match source.kind() {
                io::ErrorKind::PermissionDenied => {
                    "ask your administrator who may use gshare on this machine".to_owned()
                }
                io::ErrorKind::ConnectionRefused => {
                    "the socket is there but the service has stopped: start it again with \
                     `sudo systemctl start gshared`, or your own with `gshare daemon --user`"
                        .to_owned()
                }
                _ => START.to_owned(),
            }),
            ClientError::Closed | ClientError::Io(_) => Some(
                "the service stopped or restarted; running programs are not affected. To check: gshare doctor"
                    .to_owned(),
            ),
            ClientError::Garbled(_) => Some(
                "does the socket belong to another program, or to another version of gshare?".to_owned(),
            ),
            ClientError::Refused(_) => None,
        };
        Self {
            code,
            message: chain(&e),
            hint,
        }
    }
}

/// How to get a service.
pub(crate) const START: &str = "ask your administrator to install it (`sudo gshare setup`), \
                                or start your own: `gshare daemon --user`";

impl From<ConfigError> for Failure {
    fn from(e: ConfigError) -> Self {
        Self::new(CONFIG, chain(&e))
    }
}

impl From<io::Error> for Failure {
    fn from(e: io::Error) -> Self {
        // The reader of the output has seen enough: no message, and the status of a closed pipe.
        if e.kind() == io::ErrorKind::BrokenPipe {
            return Self::new(128 + 13, "");
        }
        Self::new(INTERNAL, e.to_string())
    }
}

impl From<anyhow::Error> for Failure {
    fn from(e: anyhow::Error) -> Self {
        let e = match e.downcast::<Self>() {
            Ok(failure) => return failure,
            Err(e) => e,
        };
        let e = match e.downcast::<ConfigError>() {
            Ok(config) => return config.into(),
            Err(e) => e,
        };
        match e.downcast::<ClientError>() {
            Ok(client) => client.into(),
            Err(e) => internal(&e),
        }
    }
}

/// An error with its causes; a text may end with a line `hint: ...`.
fn internal(e: &anyhow::Error) -> Failure {
    let mut messages: Vec<String> = Vec::new();
    let mut hints: Vec<String> = Vec::new();
    for cause in e.chain() {
        let text = cause.to_string();
        let (message, hint) = match text.split_once("\nhint: ") {
            Some((message, hint)) => (message.to_owned(), Some(hint.to_owned())),
            None => (text, None),
        };
        if !messages.last().is_some_and(|last| last.ends_with(&message)) {
            messages.push(message);
        }
        hints.extend(hint);
    }
    Failure {
        code: INTERNAL,
        message: messages.join(": "),
        hint: hints.into_iter().next(),
    }
}

/// The error with its causes, each once.
fn chain(e: &dyn std::error::Error) -> String {
    let mut text = e.to_string();
    let mut next = e.source();
    while let Some(cause) = next {
        let cause_text = cause.to_string();
        if !text.ends_with(&cause_text) {
            text = format!("{text}: {cause_text}");
        }
        next = cause.source();
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn refusals_have_the_exit_codes_of_sysexits() {
        for (code, exit) in [
            (ErrorCode::Usage, 64),
            (ErrorCode::NoClaim, 64),
            (ErrorCode::Protocol, 69),
            (ErrorCode::Internal, 70),
            (ErrorCode::BadRequest, 70),
            (ErrorCode::Storage, 74),
            (ErrorCode::NotAvailable, 75),
            (ErrorCode::NotPermitted, 77),
            (ErrorCode::Ended, 124),
        ] {
            assert_eq!(
                Failure::from(WireError::new(code, "x")).code,
                exit,
                "{code:?}"
            );
        }
    }

    #[test]
    fn the_outermost_hint_is_shown() {
        let cause = anyhow::anyhow!("no usable libnvidia-ml.so.1 found\nhint: install it");
        let e = cause.context("no NVIDIA driver\nhint: gshare demo");
        let failure = Failure::from(e);
        assert_eq!(
            failure.message,
            "no NVIDIA driver: no usable libnvidia-ml.so.1 found"
        );
        assert_eq!(failure.hint.as_deref(), Some("gshare demo"));
        let config = anyhow::Error::from(ConfigError::Invalid(Vec::new()));
        assert_eq!(Failure::from(config).code, CONFIG);
    }

    #[test]
    fn causes_are_printed_once() {
        let e = ClientError::NoService {
            path: "/x".into(),
            source: io::Error::from(io::ErrorKind::NotFound),
        };
        let failure = Failure::from(e);
        assert_eq!(failure.code, NO_SERVICE);
        assert_eq!(
            failure.message,
            "no gshare service answers at /x: entity not found"
        );
        assert!(failure.hint.is_some_and(|h| h.contains("gshare daemon")));
    }
}
