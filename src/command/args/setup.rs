//! `gshare setup`: its flags.

use std::path::PathBuf;

use clap::{Args, ValueHint};

/// Examples of the manual.
pub(super) const EXAMPLES: &str = "Examples:\n  \
    gshare setup --dry-run    what would change\n  \
    sudo gshare setup         program, unit, configuration, manual pages; then gshare doctor\n  \
    sudo gshare setup --undo  everything as it was before\n\n\
    Each change is printed. Files that were there are kept and come back with --undo; files that you \
    edited since are not touched. Run again after an upgrade: members of claims run on meanwhile.";

/// `gshare setup`.
#[derive(Args, Clone, Debug)]
pub struct SetupArgs {
    /// Print what would be done, and do nothing
    #[arg(long)]
    pub dry_run: bool,
    /// Put everything back as it was before the first setup
    #[arg(long)]
    pub undo: bool,
    /// Where the program goes
    #[arg(long, value_name = "DIR", default_value = "/usr/local", value_hint = ValueHint::DirPath)]
    pub prefix: PathBuf,
    /// Install the files only, below DIR (an image of a machine, or / without systemd); starts nothing
    #[arg(long, value_name = "DIR", value_hint = ValueHint::DirPath)]
    pub root: Option<PathBuf>,
}
