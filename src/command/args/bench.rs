//! Arguments of `gshare bench`.

use std::path::PathBuf;

use clap::{Args, ValueHint};

/// `gshare bench`.
#[derive(Args, Clone, Debug)]
pub struct BenchArgs {
    /// Benchmark
    pub name: String,
    /// Runs [default: the benchmark's own]
    #[arg(long, value_name = "N")]
    pub runs: Option<u32>,
    /// Fewer runs, for a quick look; the goals are not judged
    #[arg(long)]
    pub quick: bool,
    /// Only mixes whose name contains this (gate), only GPU models and ways of sharing whose names do, e.g. "h100" or
    /// "h100 turns" (attribution), or core-step alone (schedule)
    #[arg(long, value_name = "TEXT")]
    pub only: Option<String>,
    /// What users gain by tricks, alone (schedule)
    #[arg(long, conflicts_with = "only")]
    pub gaming: bool,
    /// Seeds of the mixes, both included, e.g. 7000..7047 (attribution)
    #[arg(long, value_name = "FROM..TO", value_parser = seeds, conflicts_with_all = ["runs", "quick"])]
    pub seeds: Option<(u64, u64)>,
    /// GPU that is shared (gate): `sim`, or `real` for the machine's first one
    #[arg(long, value_name = "DEVICE", default_value = "sim", value_parser = ["sim", "real"])]
    pub device: String,
    /// What the simulated driver costs beyond the work (gate, attribution): `kind`, `real`, `worst`, or an end of the
    /// ranges of one, e.g. `real:low` [default: both ends of `real`; with --quick `real`]
    #[arg(long, value_name = "PRESET")]
    pub preset: Option<String>,
    /// Directory with the lists of claims (schedule) [default: one that is made up]
    #[arg(long, value_name = "DIR", value_hint = ValueHint::DirPath)]
    pub traces: Option<PathBuf>,
}

fn seeds(text: &str) -> Result<(u64, u64), String> {
    let parse = || {
        let (from, to) = text.split_once("..")?;
        Some((from.parse().ok()?, to.parse().ok()?))
    };
    // More than anybody runs, and few enough to count.
    parse()
        .filter(|(from, to)| from <= to && to - from < 1_000_000)
        .ok_or_else(|| format!("`{text}` is not a range of seeds such as 1000..1023"))
}
