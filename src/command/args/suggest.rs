//! Arguments of `gshare suggest`, and sizes of which one is `auto`.

use std::ffi::OsString;
use std::str::FromStr;

use clap::Args;
use gshare_config::value;
use gshare_core::{Class, Size};

use super::class::ClassParser;

/// `-g`: a size, or `auto`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Wanted {
    /// That much.
    Size(Size),
    /// As much as earlier runs of the command needed.
    Auto,
}

impl FromStr for Wanted {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        if text.eq_ignore_ascii_case("auto") {
            return Ok(Self::Auto);
        }
        value::claim_size(text).map(Self::Size)
    }
}

impl Wanted {
    /// The size, where one is named.
    #[must_use]
    pub const fn size(self) -> Option<Size> {
        match self {
            Self::Size(size) => Some(size),
            Self::Auto => None,
        }
    }
}

/// Examples of `gshare suggest`.
pub const EXAMPLES: &str = "Examples:\n  \
    gshare suggest -- python train.py --batch-size 32    what it will need, and why\n  \
    gshare suggest                                       of what you ran last\n  \
    gshare suggest --running                             of your claims that run\n  \
    gshare suggest --running --apply                     and give them these sizes\n  \
    gshare suggest --records > runs.jsonl                your records, a line of JSON each\n\n\
    It rests on runs in claims that ended on this machine: your own ones, and with share-runs in gshare.toml those of \
    your group. Nothing known is said to be a guess. gshare claim -g auto -- CMD claims what is suggested.";

/// `gshare suggest`.
#[derive(Args, Clone, Debug)]
pub struct SuggestArgs {
    /// Of your claims that run
    #[arg(long, conflicts_with = "command")]
    pub running: bool,
    /// Give them these sizes
    #[arg(long, requires = "running")]
    pub apply: bool,
    /// Print the records of your runs, a line of JSON each, oldest first
    #[arg(long, conflicts_with_all = ["running", "command", "apply"])]
    pub records: bool,
    /// Class of work, whose default size is the guess where no run is known
    #[arg(long, value_name = "CLASS", value_parser = ClassParser)]
    pub class: Option<Class>,
    /// Print JSON
    #[arg(long)]
    pub json: bool,
    /// Command
    #[arg(last = true, value_name = "CMD")]
    pub command: Vec<OsString>,
}
