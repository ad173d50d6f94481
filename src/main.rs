//! The `gshare` program; called `gshared`, it is the service.
#![forbid(unsafe_code)]

use std::process::ExitCode;

fn main() -> ExitCode {
    gshare::hidden::run().unwrap_or_else(gshare::cli::main)
}
