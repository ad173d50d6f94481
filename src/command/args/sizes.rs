//! Arguments of the commands that change sizes and replay lists.

use std::path::PathBuf;
use std::time::Duration;

use clap::{Args, ValueHint};
use gshare_config::{Wait, value};
use gshare_core::{Bytes, Share, Size};

/// A command that explains one claim, or lists the claims that it can explain.
#[derive(Args, Clone, Debug)]
pub struct ClaimIdArgs {
    /// Claim: its id (c3) or name [default: print a list]
    pub id: Option<String>,
    /// Print JSON
    #[arg(long)]
    pub json: bool,
}

/// The parts of each GPU that a claim is guaranteed, and the most that it may use, beside `-g`: the same for all
/// commands that say a size.
#[derive(Args, Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct PartArgs {
    /// Guaranteed memory per GPU, e.g. 8G (GiB) [default: the same part as -g]
    #[arg(long, visible_alias = "gpu-memory", value_name = "SIZE", value_parser = value::gpu_memory)]
    pub gpu_mem: Option<Bytes>,
    /// Upper limit on memory per GPU, while it is free [default of a new claim: what is guaranteed; of a notebook:
    /// the service's]
    #[arg(long, visible_alias = "gpu-memory-limit", value_name = "SIZE", value_parser = value::gpu_memory)]
    pub gpu_mem_limit: Option<Bytes>,
    /// Guaranteed share of each GPU's SMs, in percent [default: the same part as -g]
    #[arg(long, value_name = "PERCENT", value_parser = value::sm)]
    pub sm: Option<Share>,
    /// Upper limit on SMs, while they are idle: 0.8 or 80% [default of a new claim: the service's, normally all]
    #[arg(long, value_name = "PART", value_parser = value::limit)]
    pub limit: Option<Share>,
}

/// `gshare resize`.
#[derive(Args, Clone, Debug)]
pub struct ResizeArgs {
    /// Claim: its id (c3) or name
    pub id: String,
    /// Part of the GPU, memory and SMs alike: 0.5; of each of its GPUs: 2x0.5
    #[arg(short, long, value_name = "N", value_parser = value::claim_size)]
    pub gpus: Option<Size>,
    /// Memory and SMs apart.
    #[command(flatten)]
    pub part: PartArgs,
    /// Wait until there is room, at most this long [without TIME: as long as it takes]
    #[arg(long, value_name = "TIME", num_args = 0..=1, default_missing_value = "forever", value_parser = super::wait)]
    pub wait: Option<Wait>,
    /// Say nothing but errors
    #[arg(short, long)]
    pub quiet: bool,
    /// Print JSON
    #[arg(long)]
    pub json: bool,
}

/// Examples of `gshare keep`.
pub const KEEP: &str = "Examples:\n  \
    gshare keep c3    c3 is not moved, offloaded or suspended for the next 10 minutes\n\n\
    Before anything is taken from a claim its owner is told on the terminal: what, when and for whom. Until then this \
    puts it off ([reclaim] keep in gshare.toml), once for each claim that waits: others make room, or it waits.";

/// `gshare keep`.
#[derive(Args, Clone, Debug)]
pub struct KeepArgs {
    /// Claim: its id (c3) or name
    pub id: String,
}

/// Examples of `gshare extend`.
pub const EXTEND: &str = "Examples:\n  \
    gshare extend c3 -t 1h    an hour more than it had\n\n\
    The owner of a claim with a lease is told on the terminal before it ends ([claims] lease-warning in gshare.toml, \
    10 minutes unless changed). Refused while somebody within what is guaranteed waits for the GPU of an owner who has \
    more than that. When the lease is over, programs on the GPU get SIGTERM, keep the GPU for the grace time \
    (lease-grace, 30 seconds) to save what they have, and are killed then; gshare claim exits 124 (0 where a script \
    goes on without them and succeeds).";

/// `gshare extend`.
#[derive(Args, Clone, Debug)]
pub struct ExtendArgs {
    /// Claim: its id (c3) or name
    pub id: String,
    /// Time that is added: 90m, 2h, 1-12:00:00; a bare number is minutes
    #[arg(short, long, visible_alias = "duration", value_name = "TIME", value_parser = value::time)]
    pub time: Duration,
    /// Say nothing but errors
    #[arg(short, long)]
    pub quiet: bool,
}

/// `gshare replay`.
#[derive(Args, Clone, Debug)]
pub struct ReplayArgs {
    /// List of claims (CSV)
    #[arg(value_name = "TRACE", value_hint = ValueHint::FilePath)]
    pub trace: PathBuf,
    /// Policy (below), more than once to compare [default: gshare, gshare-no-offload and fgd]
    #[arg(long, value_name = "NAME")]
    pub policy: Vec<String>,
    /// GPUs of the machine
    #[arg(long, value_name = "N", default_value_t = 8, value_parser = clap::value_parser!(u8).range(1..=32))]
    pub gpus: u8,
    /// Memory of each GPU, which is what moves cost
    #[arg(long, value_name = "SIZE", default_value = "24G", value_parser = value::size)]
    pub mem: Bytes,
    /// Stretch the times between requests until this part of the machine is asked for [default: as listed]
    #[arg(long, value_name = "PART")]
    pub load: Option<f64>,
    /// Only the first N claims
    #[arg(long, value_name = "N")]
    pub claims: Option<usize>,
    /// Print JSON
    #[arg(long)]
    pub json: bool,
}
