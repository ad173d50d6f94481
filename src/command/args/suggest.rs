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
    /// A named size.
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
    gshare suggest -- python3 train.py --batch-size 32   what it needs, and why\n  \
    gshare suggest                                       for what you ran last\n  \
    gshare suggest --running                             for your running claims\n  \
    gshare suggest --running --apply                     also resize them\n  \
    gshare suggest --records > runs.jsonl                records as JSON lines\n\n\
    Estimates are based on finished runs in claims on this machine: yours and, with share-runs in gshare.toml, those \
    of other users. If there are none, the output says that the size is a guess. gshare claim -g auto -- CMD claims \
    the suggested size.";

/// `gshare suggest`.
#[derive(Args, Clone, Debug)]
pub struct SuggestArgs {
    /// Suggest sizes for your running claims
    #[arg(long, conflicts_with = "command")]
    pub running: bool,
    /// Resize the running claims to the suggested sizes
    #[arg(long, requires = "running")]
    pub apply: bool,
    /// Print the records of your runs as JSON lines, oldest first
    #[arg(long, conflicts_with_all = ["running", "command", "apply"])]
    pub records: bool,
    /// Class of work; if there are no earlier runs, gshare suggests the default size of this class
    #[arg(long, value_name = "CLASS", value_parser = ClassParser)]
    pub class: Option<Class>,
    /// Print JSON
    #[arg(long)]
    pub json: bool,
    /// Command
    #[arg(last = true, value_name = "CMD")]
    pub command: Vec<OsString>,
}
