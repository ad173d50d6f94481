//! Completion scripts and manual pages, from the same definition as the arguments.

use std::fs;
use std::path::Path;

use clap::CommandFactory;

use super::args::Cli;
use super::failure::{self, Failure};
use super::{Outcome, out};

pub(crate) fn completions(shell: clap_complete::Shell) -> Outcome {
    let mut text = Vec::new();
    clap_complete::generate(shell, &mut Cli::command(), "gshare", &mut text);
    out::print(&String::from_utf8_lossy(&text))?;
    Ok(0)
}

/// Writes `gshare.1` and one page per subcommand.
pub(crate) fn man(dir: &Path) -> Outcome {
    let write = || -> std::io::Result<()> {
        fs::create_dir_all(dir)?;
        clap_mangen::generate_to(Cli::command().disable_help_subcommand(true), dir)
    };
    write().map_err(|e| {
        let why = format!("cannot write manual pages to {}: {e}", dir.display());
        Failure::new(failure::INTERNAL, why)
    })?;
    Ok(0)
}
