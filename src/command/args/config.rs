//! Arguments of `gshare config`.

use std::path::PathBuf;

use clap::{Args, Subcommand, ValueHint};

/// `gshare config`.
#[derive(Args, Clone, Debug)]
pub struct ConfigArgs {
    /// What to do.
    #[command(subcommand)]
    pub command: ConfigCommand,
}

/// Subcommands of `gshare config`.
#[derive(Clone, Debug, Subcommand)]
pub enum ConfigCommand {
    /// Report every mistake in a file; exit 78 if there is one
    Check {
        /// File: a gshare.toml or a .gshare.toml [default: the ones in force here]
        #[arg(value_hint = ValueHint::FilePath)]
        file: Option<PathBuf>,
        /// Number of GPUs to check the quotas against [default: those of the running service]
        #[arg(long, value_name = "N", value_parser = clap::value_parser!(u8).range(1..=64))]
        gpus: Option<u8>,
        /// Print JSON
        #[arg(long)]
        json: bool,
    },
    /// Print every key with its value in force
    Show {
        /// File instead of the one in force
        #[arg(long, value_name = "FILE", value_hint = ValueHint::FilePath)]
        config: Option<PathBuf>,
        /// Show the configuration of your own service, even as root
        #[arg(long)]
        user: bool,
    },
    /// Print where files, sockets and state are
    Path {
        /// Print the paths of your own service, even as root
        #[arg(long)]
        user: bool,
        /// Print JSON
        #[arg(long)]
        json: bool,
    },
}
