//! Arguments of `gshare nodes`.

use std::ffi::OsString;
use std::path::PathBuf;
use std::time::Duration;

use clap::Args;

/// `gshare nodes`.
#[derive(Args, Clone, Debug, Default)]
pub struct NodesArgs {
    /// Machines: hosts for ssh, or a directory with status files, given as a path with a / in it [default: those listed
    /// in ~/.config/gshare/nodes, else in /etc/gshare/nodes]
    #[arg(value_name = "HOST|DIR/")]
    pub hosts: Vec<OsString>,
    /// Print JSON
    #[arg(long)]
    pub json: bool,
    /// Repeat every SEC seconds; on a terminal, a screen in which Enter opens the screen of the chosen machine
    #[arg(short, long, value_name = "SEC", value_parser = watch)]
    pub watch: Option<Option<Watch>>,
    /// Write this machine's status file into a directory every second, until Ctrl-C; for machines that ssh cannot reach
    #[arg(long, value_name = "DIR", conflicts_with_all = ["hosts", "json", "watch"])]
    pub write: Option<PathBuf>,
}

/// What stands behind `--watch`: its seconds, or the first machine.
#[derive(Clone, Debug)]
pub enum Watch {
    /// How often.
    Every(Duration),
    /// A machine.
    Host(OsString),
}

fn watch(text: &str) -> Result<Watch, String> {
    match text.parse::<f64>() {
        Ok(_) => super::seconds(text).map(Watch::Every),
        Err(_) => Ok(Watch::Host(text.into())),
    }
}

impl NodesArgs {
    /// How often to repeat, if that is asked for.
    pub fn every(&self) -> Option<Duration> {
        self.watch.as_ref().map(|watch| match watch {
            Some(Watch::Every(every)) => *every,
            Some(Watch::Host(_)) | None => Duration::from_secs(2),
        })
    }

    /// The machines that are named.
    pub fn named(&self) -> Vec<OsString> {
        let first = match &self.watch {
            Some(Some(Watch::Host(host))) => Some(host),
            _ => None,
        };
        first.into_iter().chain(&self.hosts).cloned().collect()
    }
}

/// What the manual says below the options.
pub const EXAMPLES: &str = "Examples:\n  \
    gshare nodes h100box gpu2       two machines, by ssh\n  \
    gshare nodes -w                 a screen of the listed machines, new every 2 seconds\n  \
    gshare nodes /nfs/gshare/       from status files\n\n\
    FREE NOW is what you could claim there now. If it comes from a status file, it is what the user who writes that \
    file could claim. A \
    machine without news for 3 seconds is shown as silent. ssh must not ask for a password.";
