//! The command line: reads arguments, talks to the service, prints, and executes commands in place.
//!
//! Invariant: a client path starts no runtime and reads no more files than it needs before its first line is on the
//! socket, because a claim must cost milliseconds.

mod admin;
mod adopt;
mod claim;
mod config;
mod conformance;
mod connect;
mod container;
mod doctor;
mod dry_run;
mod env;
mod exec;
mod kernel;
mod levers;
mod list;
mod nodes;
mod off;
mod phases;
mod prospect;
mod release;
mod replay;
mod replay_sizes;
mod report;
mod resize;
mod rows;
mod slurm;
mod smi;
mod stage;
mod suggest;
mod supervise;
mod table;
mod top;
#[cfg(test)]
mod truth;
mod waiting;
mod why;

use std::ffi::OsString;
use std::path::Path;
use std::process::ExitCode;

use clap::Parser;
use clap::error::{ContextKind, ContextValue, ErrorKind};

pub(crate) use container::hook as container_hook;

use crate::command::args::{Cli, Command};
use crate::command::failure::Failure;
use crate::command::{Outcome, args, complete, failure, out};
use gshare_proto::LeverWish;

/// Runs the program with the arguments of the process and returns its exit code.
#[must_use]
pub fn main() -> ExitCode {
    let started = phases::now_ns();
    let cli = match Cli::try_parse_from(arguments(std::env::args_os().collect())) {
        Ok(cli) => cli,
        Err(e) => return usage(&e),
    };
    match dispatch(cli, started) {
        Ok(code) => ExitCode::from(code),
        Err(failure) => {
            out::failure(&failure);
            ExitCode::from(failure.code)
        }
    }
}

/// Help and version go to stdout and succeed; everything else is printed like any failure.
fn usage(e: &clap::Error) -> ExitCode {
    if !e.use_stderr() {
        // A closed stdout has no reader.
        let _ = e.print();
        return ExitCode::SUCCESS;
    }
    if let Some(failure) = size_or_gpu(e, std::env::args().nth(1).as_deref()) {
        out::failure(&failure);
        return ExitCode::from(failure.code);
    }
    let text = e.to_string();
    out::note(&format!(
        "gshare: {}",
        text.strip_prefix("error: ").unwrap_or(&text).trim_end()
    ));
    ExitCode::from(failure::USAGE)
}

/// `--gpu 1` may mean a size or a certain GPU; each has its own flag.
fn size_or_gpu(e: &clap::Error, command: Option<&str>) -> Option<Failure> {
    let Some(ContextValue::String(wrong)) = e.get(ContextKind::InvalidArg) else {
        return None;
    };
    let claims = matches!(command, Some("claim" | "run" | "shell"));
    (claims && e.kind() == ErrorKind::UnknownArgument && wrong == "--gpu").then(|| {
        let text = "--gpu does not say whether a size or a certain GPU is meant";
        Failure::new(failure::USAGE, text)
            .with_hint("half of one is -g 0.5 (--gpus), GPU 1 and no other is --gpu-ids 1")
    })
}

/// A program called `gshared` is `gshare daemon`, one called `gshare-demo` is `gshare demo`.
fn arguments(mut argv: Vec<OsString>) -> Vec<OsString> {
    let called = argv.first().map(Path::new).and_then(Path::file_name);
    match called.and_then(|name| name.to_str()) {
        Some("gshared") => argv.insert(1, "daemon".into()),
        Some(LABORATORY) => argv.insert(1, "demo".into()),
        _ => {}
    }
    argv
}

/// Program of the package `gshare-demo`: this one with the simulated workstation, its demo and the benches.
const LABORATORY: &str = "gshare-demo";

/// Commands of the laboratory run there, with the same arguments.
#[cfg(not(feature = "lab"))]
fn laboratory() -> Outcome {
    use std::os::unix::process::CommandExt;

    let program = std::env::current_exe()?.with_file_name(LABORATORY);
    let error = std::process::Command::new(&program)
        .arg0("gshare")
        .args(std::env::args_os().skip(1))
        .exec();
    if error.kind() != std::io::ErrorKind::NotFound {
        return Err(error.into());
    }
    let text = "the simulated workstation is not installed";
    Err(Failure::new(failure::NOT_FOUND, text).with_hint(
        "it is the package gshare-demo; or, in a clone of gshare: cargo run --release -- demo",
    ))
}

fn dispatch(cli: Cli, started_ns: u64) -> Outcome {
    let socket = cli.socket.as_deref();
    match cli.command {
        None => top::run(socket, &args::top::TopArgs::default()),
        Some(Command::Top(args)) => top::run(socket, &args),
        Some(Command::Claim(args)) => claim::claim(socket, &args, cli.child, started_ns),
        Some(Command::Shell(args)) => claim::shell(socket, &args, cli.child, started_ns),
        Some(Command::Join(args)) => claim::join(socket, &args),
        Some(Command::Env(args)) => env::run(socket, &args),
        Some(Command::Ps(args)) => list::ps(socket, &args),
        Some(Command::Queue(args)) => list::queue(socket, &args),
        Some(Command::Status(args)) => list::status(socket, &args),
        Some(Command::Nodes(args)) => nodes::run(socket, &args),
        Some(Command::Slurm(args)) => slurm::run(&args),
        Some(Command::Report(args)) => report::run(socket, &args),
        Some(Command::Smi(args)) => smi::run(socket, &args),
        Some(Command::Release(args)) => release::run(socket, &args),
        Some(Command::Adopt(args)) => adopt::run(socket, &args),
        Some(Command::Why(args)) => why::why(socket, &args),
        Some(Command::Log(args)) => why::log(socket, &args),
        Some(Command::Keep(args)) => why::keep(socket, &args),
        Some(Command::Extend(args)) => resize::extend(socket, &args),
        Some(Command::Suggest(args)) => suggest::run(socket, &args),
        Some(Command::Resize(args)) => resize::run(socket, &args),
        Some(Command::Kernel(args)) => kernel::run(socket, &args),
        Some(Command::Offload(args)) => levers::pull(socket, LeverWish::Offload, &args),
        Some(Command::Restore(args)) => levers::pull(socket, LeverWish::Restore, &args),
        Some(Command::Suspend(args)) => levers::pull(socket, LeverWish::Suspend, &args),
        Some(Command::Resume(args)) => levers::pull(socket, LeverWish::Resume, &args),
        Some(Command::Move(args)) => levers::go(socket, &args),
        Some(Command::Doctor(args)) => doctor::run(socket, &args),
        Some(Command::Admin(args)) => admin::run(socket, &args),
        Some(Command::Config(args)) => config::run(socket, &args),
        Some(Command::Daemon(args)) => {
            if socket.is_some() {
                return Err(Failure::new(
                    failure::USAGE,
                    "--socket is for clients; the service listens where its configuration says",
                )
                .with_hint("set `socket` under [service] and name the file with --config"));
            }
            exit_code(crate::daemon::run(&args))
        }
        Some(Command::Setup(args)) => crate::setup::run(&args),
        #[cfg(feature = "lab")]
        Some(Command::Demo(args)) => exit_code(crate::demo::run(args)),
        Some(Command::Replay(args)) => replay::run(&args),
        #[cfg(feature = "lab")]
        Some(Command::Bench(args)) => exit_code(crate::bench::run(args)),
        #[cfg(not(feature = "lab"))]
        Some(Command::Demo(_) | Command::Bench(_)) => laboratory(),
        Some(Command::Completions { shell }) => complete::completions(shell),
        Some(Command::Man { dir }) => complete::man(&dir),
    }
}

fn exit_code(result: anyhow::Result<i32>) -> Outcome {
    let code = result?;
    Ok(u8::try_from(code).unwrap_or(failure::INTERNAL))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_gpu_by_its_number_is_told_from_a_size() {
        let wrong = |argv: &[&str]| Cli::try_parse_from(argv).expect_err("refused");
        let failure = size_or_gpu(&wrong(&["gshare", "claim", "--gpu", "1"]), Some("claim"));
        let hint = failure.and_then(|f| f.hint).expect("says what to write");
        assert!(
            hint.contains("--gpus") && hint.contains("--gpu-ids 1"),
            "{hint}"
        );
        let other = wrong(&["gshare", "claim", "--gpo", "1"]);
        assert!(size_or_gpu(&other, Some("claim")).is_none());
        let else_where = wrong(&["gshare", "ps", "--gpu", "1"]);
        assert!(size_or_gpu(&else_where, Some("ps")).is_none());
    }

    #[test]
    fn gshared_is_the_daemon() {
        let argv = |name: &str| arguments(vec![name.into(), "--user".into()]);
        assert_eq!(
            argv("/usr/sbin/gshared"),
            ["/usr/sbin/gshared", "daemon", "--user"]
        );
        assert_eq!(argv("gshare"), ["gshare", "--user"]);
        let demo = argv("/usr/bin/gshare-demo");
        assert_eq!(demo, ["/usr/bin/gshare-demo", "demo", "--user"]);
    }
}
