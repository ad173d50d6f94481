//! A simulated `nvidia-cuda-mps-control`, version 2 of its protocol.
//!
//! Commands and replies are those of NVIDIA's program (550.163, compared command by command in `tests/mps_control.rs`).
//! GPU effects happen on the simulated board: the server is a process on the board, and its clients are partitions that
//! run side by side.
//!
//! The executable's name and arguments select one of three programs: the control daemon (`-d`, `-f`), the server that
//! it starts (`nvidia-cuda-mps-server`), and the program that passes on commands from its standard input.
#![forbid(unsafe_code)]

mod control;
mod percent;
mod server;
mod ui;
mod words;

use std::path::{Path, PathBuf};
use std::process::ExitCode;

/// Name of the control program.
pub const CONTROL: &str = "nvidia-cuda-mps-control";
/// Name of the server.
pub const SERVER: &str = "nvidia-cuda-mps-server";

/// Paths from the environment.
#[derive(Debug, Clone)]
pub(crate) struct Place {
    /// Directory of the sockets.
    pub(crate) pipe: PathBuf,
    /// Directory of the logs.
    pub(crate) log: PathBuf,
    /// The simulated workstation's board.
    pub(crate) board: PathBuf,
}

impl Place {
    fn of_this_process() -> Self {
        let dir = |name: &str, or: &str| {
            std::env::var_os(name).map_or_else(|| PathBuf::from(or), PathBuf::from)
        };
        let beside = std::env::current_exe().ok();
        let beside = beside.as_deref().and_then(Path::parent);
        let beside = beside.map(|dir| dir.join("../board"));
        Self {
            pipe: dir("CUDA_MPS_PIPE_DIRECTORY", "/tmp/nvidia-mps"),
            log: dir("CUDA_MPS_LOG_DIRECTORY", "/var/log/nvidia-mps"),
            board: std::env::var_os("GSHARE_SIM_BOARD").map_or_else(
                || beside.unwrap_or_else(|| PathBuf::from("board")),
                PathBuf::from,
            ),
        }
    }
}

/// Runs the program if the executable has one of its names.
#[must_use]
pub fn run() -> Option<ExitCode> {
    let mut args = std::env::args();
    let called = args.next()?;
    let args: Vec<String> = args.collect();
    match Path::new(&called).file_name()?.to_str()? {
        CONTROL => Some(control_program(&args)),
        SERVER => Some(server::run(&Place::of_this_process())),
        _ => None,
    }
}

fn control_program(args: &[String]) -> ExitCode {
    let place = Place::of_this_process();
    let has = |flag: &str| args.iter().any(|a| a == flag);
    if args.is_empty() {
        return ui::run(&place);
    }
    if has("-h") || has("--help") {
        println!("CUDA MPS Control for Linux/Unix, simulated by gshare");
        return ExitCode::SUCCESS;
    }
    if !has("-d") && !has("-f") {
        return ui::run(&place);
    }
    let multi_user = has("-M") || has("-multiuser-server");
    if multi_user && !nix::unistd::Uid::effective().is_root() {
        eprintln!("Only root user may enable -multiuser-server!");
        return ExitCode::FAILURE;
    }
    if has("-f") {
        control::run(place, multi_user)
    } else {
        control::detach(&place, args)
    }
}
