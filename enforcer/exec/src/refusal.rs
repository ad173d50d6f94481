//! How the launcher refuses: the sentence, the remedy, the exit code of the command line.

use std::io::Write;
use std::process::ExitCode;

/// Wrong arguments.
pub(crate) const USAGE: u8 = 64;
/// No service answers.
pub(crate) const NO_SERVICE: u8 = 69;
/// The kernel refused a step.
pub(crate) const INTERNAL: u8 = 70;
/// Not permitted, or the installation cannot be trusted.
pub(crate) const NOT_PERMITTED: u8 = 77;
/// The claim has ended.
pub(crate) const ENDED: u8 = 124;
/// The command exists but cannot be run.
pub(crate) const CANNOT_RUN: u8 = 126;
/// There is no such command.
pub(crate) const NOT_FOUND: u8 = 127;

/// Why the command does not run.
#[derive(Debug)]
pub(crate) struct Refusal {
    pub(crate) code: u8,
    pub(crate) message: String,
    pub(crate) hint: Option<String>,
}

impl Refusal {
    pub(crate) fn new(code: u8, message: impl Into<String>) -> Self {
        Self {
            code,
            message: message.into(),
            hint: None,
        }
    }

    pub(crate) fn hint(mut self, hint: impl Into<String>) -> Self {
        self.hint = Some(hint.into());
        self
    }

    /// Prints to stderr, in one write; a closed stderr cannot be helped.
    pub(crate) fn tell(&self) -> ExitCode {
        let mut text = format!("gshare: {}\n", self.message);
        if let Some(hint) = &self.hint {
            text.push_str(&format!("hint: {hint}\n"));
        }
        let _ = std::io::stderr().write_all(text.as_bytes());
        ExitCode::from(self.code)
    }
}
