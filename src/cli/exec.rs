//! Executes the user's command in place of this process: directly, or through the launcher if limits are strict.

use std::ffi::{CString, OsStr, OsString};
use std::fs::File;
use std::io::{self, Write};
use std::os::fd::{AsFd, AsRawFd};
use std::os::unix::ffi::OsStrExt;
use std::path::Path;

use gshare_abi::Handover;
use gshare_proto::Granted;
use nix::fcntl::{FcntlArg, FdFlag, SealFlag, fcntl};
use nix::sys::resource::{Resource, getrlimit};
use nix::sys::{personality, prctl};

use super::failure::{self, Failure};
use super::out;

/// Tells a program where its MPS daemon is.
pub(super) const MPS_PIPE: &str = "CUDA_MPS_PIPE_DIRECTORY";
/// Variables that make a program a client of a daemon, and set its share.
pub(super) const MPS_PART: [&str; 5] = [
    MPS_PIPE,
    "CUDA_MPS_LOG_DIRECTORY",
    "CUDA_MPS_ACTIVE_THREAD_PERCENTAGE",
    "CUDA_MPS_PINNED_DEVICE_MEM_LIMIT",
    "CUDA_MPS_CLIENT_PRIORITY",
];

/// Executes `argv` with the environment of the claim: same pid, terminal, job control and signals. Returns only on
/// failure.
pub(crate) fn exec(argv: &[OsString], granted: &Granted) -> Failure {
    let Some(program) = argv.first() else {
        return Failure::new(failure::USAGE, "no command to run");
    };
    say_what_is_missing(granted);
    let own = own_environment();
    let environment = environment(&own, granted);
    let error = match &granted.launcher {
        Some(launcher) => match through(launcher, argv, granted, &own, &environment) {
            Ok(never) => match never {},
            Err(failure) => return failure,
        },
        None => become_program(program, argv, &environment),
    };
    refused(program, &error)
}

/// A partly removed package leaves programs without limits: they start, with a warning.
fn say_what_is_missing(granted: &Granted) {
    let missing = |dir: &&String| {
        let dir = Path::new(dir);
        dir.exists() && !dir.join("libcuda.so.1").exists()
    };
    let dirs = granted.env_prepend.iter().map(|(_, dir)| dir);
    if let Some(dir) = dirs.into_iter().find(missing) {
        out::note(&format!(
            "gshare: gshare's library is missing in {dir}, so this program is counted and not limited; to put it back: \
             sudo systemctl restart gshared"
        ));
    }
}

/// Entries of an environment: `NAME=value`, or any other bytes.
type Environment = Vec<Vec<u8>>;

/// This process's environment as the kernel received it, in order, with duplicates and entries without `=`.
fn own_environment() -> Environment {
    let block = std::fs::read("/proc/self/environ").unwrap_or_default();
    if let Some(block) = block.strip_suffix(b"\0") {
        return block.split(|byte| *byte == 0).map(<[u8]>::to_vec).collect();
    }
    std::env::vars_os()
        .map(|(name, value)| [name.as_bytes(), b"=", value.as_bytes()].concat())
        .collect()
}

/// The caller's environment with the claim's variables: each at its old place, new ones at the end, everything else
/// unchanged to the byte.
fn environment(own: &Environment, granted: &Granted) -> Environment {
    let mut environment = own.clone();
    // A record for the shell that started this command; the command has a claim of its own.
    environment.retain(|entry| value_of(entry, super::env::CHANGED).is_none());
    // The value is another claim's if it is one of the service's own pipes.
    let through_mps = own.iter().find_map(|entry| value_of(entry, MPS_PIPE));
    let of_another = granted.mps_dir.as_ref().zip(through_mps);
    let of_another = of_another.is_some_and(|(dir, pipe)| is_below(pipe, dir));
    let part = MPS_PART.iter().filter(|_| of_another).copied();
    for name in granted.env_remove.iter().map(String::as_str).chain(part) {
        let is_set = granted.env.iter().any(|(set, _)| set == name);
        environment.retain(|entry| is_set || value_of(entry, name).is_none());
    }
    let set = granted
        .env
        .iter()
        .map(|(name, value)| (name, value.as_bytes().to_vec()));
    let prepended = granted.env_prepend.iter().map(|(name, dir)| {
        let old = own.iter().find_map(|entry| value_of(entry, name));
        let old = old.filter(|old| !old.is_empty());
        let value = match old {
            Some(old) => [dir.as_bytes(), b":", old].concat(),
            None => dir.as_bytes().to_vec(),
        };
        (name, value)
    });
    for (name, value) in set.chain(prepended) {
        let entry = [name.as_bytes(), b"=", &value].concat();
        let place = environment.iter().position(|e| value_of(e, name).is_some());
        match place {
            Some(place) => {
                environment[place] = entry;
                // Programs differ in which of two entries they use.
                let mut at = 0;
                environment.retain(|e| {
                    at += 1;
                    at - 1 <= place || value_of(e, name).is_none()
                });
            }
            None => environment.push(entry),
        }
    }
    environment
}

/// Leaves out the claim's library, and that of a claim in which this command was typed.
pub(super) fn without_library(granted: &mut Granted) {
    for (name, dir) in std::mem::take(&mut granted.env_prepend) {
        let own = std::env::var(&name).unwrap_or_default();
        let left: Vec<&str> = own.split(':').filter(|at| *at != dir).collect();
        match left.join(":") {
            rest if rest.is_empty() => granted.env_remove.push(name),
            rest => granted.env.push((name, rest)),
        }
    }
}

fn is_below(path: &[u8], dir: &str) -> bool {
    let rest = path.strip_prefix(dir.as_bytes());
    rest.is_some_and(|rest| rest.starts_with(b"/"))
}

fn value_of<'a>(entry: &'a [u8], name: &str) -> Option<&'a [u8]> {
    entry.strip_prefix(name.as_bytes())?.strip_prefix(b"=")
}

/// A word with a zero byte cannot be passed to a program; words from a program have none.
fn words<'a>(words: impl IntoIterator<Item = &'a [u8]>) -> io::Result<Vec<CString>> {
    let words = words.into_iter().map(CString::new);
    words
        .collect::<Result<_, _>>()
        .map_err(|_| io::Error::from(io::ErrorKind::InvalidInput))
}

fn become_program(program: &OsStr, argv: &[OsString], environment: &Environment) -> io::Error {
    let ready = || {
        let program = CString::new(program.as_bytes())?;
        let argv = words(argv.iter().map(|a| a.as_bytes()))?;
        Ok((program, argv, words(environment.iter().map(Vec::as_slice))?))
    };
    let (program, argv, environment) = match ready() {
        Ok(ready) => ready,
        Err(error) => return error,
    };
    gshare_enforcer::proc::end_by_sigpipe();
    let Err(error) = nix::unistd::execvpe(&program, &argv, &environment);
    error.into()
}

/// Executes the launcher. It gets only PATH, to find the command; the command's environment is in a sealed file,
/// because the loader clears that of a program with capabilities.
fn through(
    launcher: &str,
    argv: &[OsString],
    granted: &Granted,
    own: &Environment,
    environment: &Environment,
) -> Result<std::convert::Infallible, Failure> {
    let failed = |what: &str, error: io::Error| {
        Failure::new(
            failure::CANNOT_RUN,
            format!("the launcher {launcher} {what}: {error}"),
        )
        .with_hint("gshare doctor says what is missing")
    };
    if has_ambient_capabilities() {
        out::note(
            "gshare: the command runs without its ambient capabilities, because this machine enforces strict limits",
        );
    }
    let handover =
        handover(environment).map_err(|e| failed("cannot receive the environment", e))?;
    let claim = granted.id.trim_start_matches('c');
    let fd = handover.as_raw_fd().to_string();
    let path = own
        .iter()
        .find(|entry| value_of(entry, "PATH").is_some())
        .into_iter();
    let head = [launcher.as_bytes(), claim.as_bytes(), fd.as_bytes(), b"--"];
    let words = words(head.into_iter().chain(argv.iter().map(|a| a.as_bytes())))
        .and_then(|argv| Ok((argv, words(path.map(Vec::as_slice))?)));
    let (argv, path) = words.map_err(|e| failed("cannot be started", e))?;
    gshare_enforcer::proc::end_by_sigpipe();
    let Err(error) = nix::unistd::execve(&argv[0], &argv, &path);
    Err(failed("cannot be started", error.into()))
}

/// A program with file capabilities does not inherit the caller's.
fn has_ambient_capabilities() -> bool {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let sets = status.lines().find_map(|line| line.strip_prefix("CapAmb:"));
    sets.is_some_and(|sets| sets.trim().bytes().any(|digit| digit != b'0'))
}

/// The sealed file, which stays open across exec.
fn handover(environment: &Environment) -> io::Result<std::os::fd::OwnedFd> {
    let signal = prctl::get_pdeathsig()?.map_or(0, |signal| signal as u32);
    let persona = personality::get().map_or(0, |p| p.bits().cast_unsigned());
    let handover = Handover {
        death_signal: signal,
        parent: nix::unistd::getppid().as_raw().cast_unsigned(),
        stack_bytes: getrlimit(Resource::RLIMIT_STACK)?.0,
        personality: persona,
        environment: environment
            .iter()
            .flat_map(|entry| entry.iter().copied().chain([0]))
            .collect(),
    };
    let bytes = handover.to_bytes();
    // A file beyond this limit raises a signal that ends the process.
    let most = getrlimit(Resource::RLIMIT_FSIZE)?.0;
    if most < bytes.len() as u64 {
        return Err(io::Error::other(format!(
            "files are limited to {most} bytes here (ulimit -f)"
        )));
    }
    let fd = gshare_abi::memfd("gshare-environment")?;
    fcntl(fd.as_fd(), FcntlArg::F_SETFD(FdFlag::empty()))?;
    let mut file = File::from(fd);
    file.write_all(&bytes)?;
    fcntl(file.as_fd(), FcntlArg::F_ADD_SEALS(SealFlag::all()))?;
    Ok(file.into())
}

/// Whether `program` can be found at all: a claim should not wait an hour for a missing command.
///
/// # Errors
///
/// When it is certainly missing.
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
    // Without PATH the C library has its own default; exec reports an error.
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

#[cfg(test)]
mod tests {
    use super::*;

    fn entries(words: &[&str]) -> Environment {
        words.iter().map(|w| w.as_bytes().to_vec()).collect()
    }

    #[test]
    fn only_the_claims_own_variables_change() {
        let pair = |name: &str, value: &str| (name.to_owned(), value.to_owned());
        let granted = |env: &[(&str, &str)], prepend: &[(&str, &str)]| Granted {
            id: "c3".into(),
            message: String::new(),
            env: env.iter().map(|(n, v)| pair(n, v)).collect(),
            env_prepend: prepend.iter().map(|(n, v)| pair(n, v)).collect(),
            mps_dir: Some("/run/gshare/mps".to_owned()),
            ..Granted::default()
        };
        let check = |own: &[&str], granted: &Granted, expect: &[&str]| {
            assert_eq!(environment(&entries(own), granted), entries(expect));
        };
        let one = granted(&[("GSHARE_A", "1")], &[("LIB", "/x")]);
        check(&[], &one, &["GSHARE_A=1", "LIB=/x"]);
        check(
            &["Z=1", "A=1", "A=2", "no equals sign", "=", "A="],
            &one,
            &[
                "Z=1",
                "A=1",
                "A=2",
                "no equals sign",
                "=",
                "A=",
                "GSHARE_A=1",
                "LIB=/x",
            ],
        );
        check(
            &[
                "LIB=/own",
                "GSHARE_A=old",
                "GSHARE_AB=2",
                "LIB=/second",
                "GSHARE_A=older",
            ],
            &one,
            &["LIB=/x:/own", "GSHARE_A=1", "GSHARE_AB=2"],
        );
        check(&["LIB="], &one, &["LIB=/x", "GSHARE_A=1"]);
        // A claim inside a claim through MPS inherits none of its variables, whichever GPU it has; other daemons
        // stay.
        let pipe = "CUDA_MPS_PIPE_DIRECTORY";
        let percentage = "CUDA_MPS_ACTIVE_THREAD_PERCENTAGE";
        let outer = [
            "A=1",
            &format!("{percentage}=025.00000"),
            &format!("{pipe}=/run/gshare/mps/0/pipe"),
            "B=2",
        ];
        let none = granted(&[], &[]);
        check(&outer, &none, &["A=1", "B=2"]);
        let inner = granted(
            &[(pipe, "/run/gshare/mps/1/pipe"), (percentage, "050.00000")],
            &[],
        );
        check(
            &outer,
            &inner,
            &[
                "A=1",
                &format!("{percentage}=050.00000"),
                &format!("{pipe}=/run/gshare/mps/1/pipe"),
                "B=2",
            ],
        );
        for elsewhere in [
            "/tmp/nvidia-mps",
            "/run/gshare/mps-own/0/pipe",
            "/run/gshare/mps",
            "",
        ] {
            let own = [&format!("{pipe}={elsewhere}"), "CUDA_MPS_CLIENT_PRIORITY=1"];
            check(&own, &none, &own);
        }
    }

    #[test]
    fn the_handed_over_environment_is_sealed_and_whole() {
        let given = entries(&["A=1", "odd", ""]);
        let fd = handover(&given).expect("made");
        let mut file = File::from(fd);
        let mut bytes = Vec::new();
        io::Seek::rewind(&mut file).expect("rewound");
        io::Read::read_to_end(&mut file, &mut bytes).expect("read");
        let read = Handover::from_bytes(&bytes).expect("reads");
        assert_eq!(
            read.entries().map(<[u8]>::to_vec).collect::<Vec<_>>(),
            given
        );
        assert_eq!(read.parent, nix::unistd::getppid().as_raw().cast_unsigned());
        assert!(file.write_all(b"x").is_err());
        assert!(file.set_len(0).is_err());
    }
}
