//! `gshare setup`: its flags.

use std::path::PathBuf;

use clap::{Args, ValueHint};

/// Examples of the manual.
pub(super) const EXAMPLES: &str = "Examples:\n  \
    gshare setup --dry-run    what would change\n  \
    sudo gshare setup         install, start the service, run gshare doctor\n  \
    sudo gshare setup --undo  uninstall\n\n\
    gshare prints each change, and keeps the files that it replaces; --undo restores them. It never replaces a \
    configuration that you edited. Run setup again after an upgrade; programs in claims keep running.";

/// `gshare setup`.
#[derive(Args, Clone, Debug)]
pub struct SetupArgs {
    /// Print what would be done, and do nothing
    #[arg(long)]
    pub dry_run: bool,
    /// Restore everything as it was before the first setup, except files that you edited since
    #[arg(long)]
    pub undo: bool,
    /// Where to install the program
    #[arg(long, value_name = "DIR", default_value = "/usr/local", value_hint = ValueHint::DirPath)]
    pub prefix: PathBuf,
    /// Only install files below DIR (a system image, or / on a machine without systemd); start nothing
    #[arg(long, value_name = "DIR", value_hint = ValueHint::DirPath)]
    pub root: Option<PathBuf>,
}
