//! Arguments of `gshare top`.

use std::path::PathBuf;
use std::time::Duration;

use clap::{Args, ValueEnum, ValueHint};
use gshare_config::value;
use gshare_ui::Page;

use super::screen_size;

/// How many colours the screen uses.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, ValueEnum)]
pub enum Colours {
    /// By the environment: `NO_COLOR`, `COLORTERM`, `TERM`
    #[default]
    Auto,
    /// No colours
    Mono,
    /// The 16 named colours
    #[value(name = "16")]
    Ansi,
    /// 256 colours
    #[value(name = "256")]
    Indexed,
    /// 24-bit colours
    Rgb,
}

/// The background of the terminal.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, ValueEnum)]
pub enum Theme {
    /// As the terminal or `COLORFGBG` says, else dark
    #[default]
    Auto,
    /// Dark
    Dark,
    /// Light
    Light,
}

/// `gshare top`.
#[derive(Args, Clone, Debug, Default)]
pub struct TopArgs {
    /// Print the screen once, as text, and exit; needs no terminal
    #[arg(long, conflicts_with_all = ["record", "interval"])]
    pub once: bool,
    /// Print each change as a line of text, for screen readers and logs, until Ctrl-C; needs no terminal
    #[arg(long, group = "lasting", conflicts_with_all = ["once", "screen", "ascii", "replay"])]
    pub plain: bool,
    /// First screen: overview, claims, queue, history, health, or its number
    #[arg(long, value_name = "NAME")]
    pub screen: Option<Page>,
    /// Columns and rows with --once, from 20x5 to 500x200 [default: 120x40]
    #[arg(long, value_name = "COLSxROWS", value_parser = screen_size, requires = "once")]
    pub size: Option<(u16, u16)>,
    /// Colours
    #[arg(long, value_name = "HOW", value_enum, default_value_t)]
    pub colours: Colours,
    /// Colours for a dark or a light background
    #[arg(long, value_name = "HOW", value_enum, default_value_t)]
    pub theme: Theme,
    /// Only ASCII characters
    #[arg(long)]
    pub ascii: bool,
    /// Minimum time between refreshes, for slow connections [default: 0.2s]
    #[arg(long, value_name = "TIME", value_parser = value::time)]
    pub interval: Option<Duration>,
    /// Record in this file what the screens show. Without a terminal, gshare records too, but displays nothing
    #[arg(long, value_name = "FILE", value_hint = ValueHint::FilePath, group = "lasting")]
    pub record: Option<PathBuf>,
    /// With --record or --plain: exit after this time
    #[arg(long = "for", value_name = "TIME", value_parser = value::time, requires = "lasting")]
    pub duration: Option<Duration>,
    /// Play a recording: Space pauses, < and > change the speed, comma and full stop seek back and forward
    #[arg(long, value_name = "FILE", value_hint = ValueHint::FilePath, conflicts_with_all = ["record", "interval"])]
    pub replay: Option<PathBuf>,
    /// Initial speed of the replay
    #[arg(long, value_name = "N", default_value_t = 1.0, requires = "replay", value_parser = speed)]
    pub speed: f64,
}

fn speed(text: &str) -> Result<f64, String> {
    let speed: f64 = text.parse().map_err(|_| "not a number".to_owned())?;
    if (0.01..=1000.0).contains(&speed) {
        return Ok(speed);
    }
    Err("from 0.01 to 1000".to_owned())
}
