//! Runs the user's command in place of this process.

use std::ffi::{OsStr, OsString};
use std::io;
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::Command;

use gshare_proto::Granted;

use super::failure::{self, Failure};

/// Becomes `argv` with the environment of the claim: same pid, terminal, job control and signals.
/// Returns only when that is not possible.
pub(crate) fn exec(argv: &[OsString], granted: &Granted) -> Failure {
    let Some((program, arguments)) = argv.split_first() else {
        return Failure::new(failure::USAGE, "no command to run");
    };
    let mut command = Command::new(program);
    command.args(arguments);
    for (name, value) in environment(granted) {
        command.env(name, value);
    }
    refused(program, &command.exec())
}

/// The variables of a claim, with what is prepended to the caller's own.
pub(crate) fn environment(granted: &Granted) -> Vec<(String, OsString)> {
    let set = granted
        .env
        .iter()
        .map(|(name, value)| (name.clone(), value.into()));
    let prepended = granted.env_prepend.iter().map(|(name, dir)| {
        let mut value = OsString::from(dir);
        if let Some(old) = std::env::var_os(name).filter(|v| !v.is_empty()) {
            value.push(":");
            value.push(old);
        }
        (name.clone(), value)
    });
    set.chain(prepended).collect()
}

/// Whether `program` can be found at all: a claim should not wait an hour for a command that is not there.
///
/// # Errors
/// When it certainly cannot.
pub(crate) fn look_for(program: &OsStr) -> Result<(), Failure> {
    if find(program) {
        Ok(())
    } else {
        Err(not_found(program))
    }
}

fn find(program: &OsStr) -> bool {
    if program.as_encoded_bytes().contains(&b'/') {
        return Path::new(program).exists();
    }
    // Without PATH the C library has a default of its own; exec will tell.
    let Some(path) = std::env::var_os("PATH") else {
        return true;
    };
    !program.is_empty() && std::env::split_paths(&path).any(|dir| dir.join(program).exists())
}

fn not_found(program: &OsStr) -> Failure {
    let name = program.to_string_lossy();
    let failure = Failure::new(failure::NOT_FOUND, format!("{name}: command not found"));
    if name.parse::<f64>().is_ok() {
        return failure.with_hint(format!("did you mean `-g {name}`?"));
    }
    failure
}

fn refused(program: &OsStr, error: &io::Error) -> Failure {
    let name = program.to_string_lossy();
    match error.kind() {
        io::ErrorKind::NotFound if find(program) => Failure::new(
            failure::CANNOT_RUN,
            format!(
                "{name}: cannot run: the interpreter in its first line, or its loader, does not exist"
            ),
        ),
        io::ErrorKind::NotFound => not_found(program),
        _ => Failure::new(failure::CANNOT_RUN, format!("{name}: cannot run: {error}")),
    }
}

/// The user's shell.
pub(crate) fn shell() -> OsString {
    std::env::var_os("SHELL")
        .filter(|s| !s.is_empty())
        .unwrap_or_else(|| "/bin/sh".into())
}
