//! The `gshare` program; called `gshared`, it is the service.
#![forbid(unsafe_code)]

use std::process::ExitCode;

fn main() -> ExitCode {
    gshare::cli::main()
}
