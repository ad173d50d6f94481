//! Arguments of `gshare nodes`.

use std::ffi::OsString;
use std::path::PathBuf;
use std::time::Duration;

use clap::Args;

/// `gshare nodes`.
#[derive(Args, Clone, Debug, Default)]
pub struct NodesArgs {
    /// Machines: what ssh takes as a host, or a directory with status files (with a /). Without any: the lines of
    /// ~/.config/gshare/nodes, else of /etc/gshare/nodes
    #[arg(value_name = "HOST|DIR/")]
    pub hosts: Vec<OsString>,
    /// Print JSON
    #[arg(long)]
    pub json: bool,
    /// Repeat every SEC seconds
    #[arg(short, long, value_name = "SEC", num_args = 0..=1, default_missing_value = "2", value_parser = super::seconds)]
    pub watch: Option<Duration>,
    /// Write the status file of this machine into a directory, each second, until it is ended; for machines that ssh does not
    /// reach
    #[arg(long, value_name = "DIR", conflicts_with_all = ["hosts", "json", "watch"])]
    pub write: Option<PathBuf>,
}

/// What the manual says below the options.
pub const EXAMPLES: &str = "Examples:\n  \
    gshare nodes h100box gpu2       two machines, by ssh\n  \
    gshare nodes -w                 those of the list, every 2 seconds\n  \
    gshare nodes /nfs/gshare/       from status files\n\n\
    FREE NOW is what you would get there at once; in a status file it is what its writer would. A machine that says \
    nothing for 3 seconds is shown as silent. ssh must not ask for a password.";
