//! Arguments of the commands that change sizes and replay lists.

use std::path::PathBuf;
use std::time::Duration;

use clap::{Args, ValueHint};
use gshare_config::{Wait, value};
use gshare_core::{Bytes, Share, Size};

/// A command that explains one claim, or lists the claims that it can explain.
#[derive(Args, Clone, Debug)]
pub struct ClaimIdArgs {
    /// Claim: its id (c3) or name [without it: list the claims to choose from]
    pub id: Option<String>,
    /// Print JSON
    #[arg(long)]
    pub json: bool,
}

/// Guaranteed parts of each GPU and upper limits, besides `-g`: the same for all commands that take a size.
#[derive(Args, Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct PartArgs {
    /// Memory per GPU, e.g. 8G (GiB) [default with -g: the same fraction]
    #[arg(help_heading = "Size", long, visible_alias = "gpu-memory", value_name = "SIZE", value_parser = value::gpu_memory)]
    pub gpu_mem: Option<Bytes>,
    /// Maximum memory per GPU. Memory above the size is available only while other claims leave it free
    /// [default for new claims: the size; for notebooks: set by the service]
    #[arg(help_heading = "Size", long, visible_alias = "gpu-memory-limit", value_name = "SIZE", value_parser = value::gpu_memory)]
    pub gpu_mem_limit: Option<Bytes>,
    /// Share of each GPU's SMs, in percent [default with -g: the same fraction; for a new claim with
    /// --gpu-mem but no -g: --gpu-mem divided by the GPU's memory]
    #[arg(help_heading = "Size", long, value_name = "PERCENT", value_parser = value::sm)]
    pub sm: Option<Share>,
    /// Maximum share of each GPU's SMs, e.g. 0.8 or 80%. SMs above the size are available only while other
    /// claims leave them idle [default for new claims: set by the service, normally all]
    #[arg(help_heading = "Size", long, value_name = "PART", value_parser = value::limit)]
    pub limit: Option<Share>,
}

/// `gshare resize`.
#[derive(Args, Clone, Debug)]
pub struct ResizeArgs {
    /// Claim: its id (c3) or name
    pub id: String,
    /// New fraction of each GPU of the claim, for memory and SMs: 0.5, or 2x0.5 for two GPUs
    #[arg(help_heading = "Size", short, long, value_name = "N", value_parser = value::claim_size)]
    pub gpus: Option<Size>,
    /// Memory and SMs separately.
    #[command(flatten)]
    pub part: PartArgs,
    /// Wait until there is room, at most TIME [without TIME: no limit]
    #[arg(long, value_name = "TIME", num_args = 0..=1, default_missing_value = "forever", value_parser = super::wait)]
    pub wait: Option<Wait>,
    /// Print errors only
    #[arg(short, long)]
    pub quiet: bool,
    /// Print JSON
    #[arg(long)]
    pub json: bool,
}

/// Examples of `gshare keep`.
pub const KEEP: &str = "Examples:\n  \
    gshare keep c3    c3 is not moved, offloaded or suspended for 10 minutes\n\n\
    Before gshare takes anything from a claim, it warns the owner on the terminal: what, when and for whom. Until the \
    announced time, gshare keep can postpone the action by 10 minutes (keep in section [reclaim] of gshare.toml). You \
    can do this once for each claim that waits for the room. During these minutes other claims make room, or the \
    waiting claim waits longer.";

/// `gshare keep`.
#[derive(Args, Clone, Debug)]
pub struct KeepArgs {
    /// Claim: its id (c3) or name
    pub id: String,
}

/// Examples of `gshare extend`.
pub const EXTEND: &str = "Examples:\n  \
    gshare extend c3 -t 1h    one hour more\n\n\
    gshare warns the owner on the terminal before the time limit (lease-warning in section [claims] of gshare.toml, \
    default 10 minutes). A claim above its owner's guarantee (quota) is on loan. gshare does not extend a claim on \
    loan while a claim with priority waits for the same GPU. Claims within their owner's guarantee have priority, and \
    so do claims that have waited very long. At the time limit, programs on the GPU get SIGTERM, then a grace time to \
    save (lease-grace, default 30 seconds), then SIGKILL. gshare claim then exits 124, or 0 if CMD is a script that \
    keeps running without its GPU program and succeeds.";

/// `gshare extend`.
#[derive(Args, Clone, Debug)]
pub struct ExtendArgs {
    /// Claim: its id (c3) or name
    pub id: String,
    /// Time to add: 90m, 2h, 1-12:00:00; a bare number is minutes
    #[arg(short, long, visible_alias = "duration", value_name = "TIME", value_parser = value::time)]
    pub time: Duration,
    /// Print errors only
    #[arg(short, long)]
    pub quiet: bool,
}

/// `gshare replay`.
#[derive(Args, Clone, Debug)]
pub struct ReplayArgs {
    /// List of claims (CSV)
    #[arg(value_name = "TRACE", value_hint = ValueHint::FilePath)]
    pub trace: PathBuf,
    /// Policy (see below); repeat to compare several [default: gshare, gshare-no-offload and fgd]
    #[arg(long, value_name = "NAME")]
    pub policy: Vec<String>,
    /// GPUs of the machine, or of each node
    #[arg(long, value_name = "N", default_value_t = 8, value_parser = clap::value_parser!(u8).range(1..=32))]
    pub gpus: u8,
    /// Simulate Slurm with N nodes, and compare ways to give out their GPUs
    #[arg(long, value_name = "N", conflicts_with = "policy", value_parser = clap::value_parser!(u16).range(1..=4096))]
    pub nodes: Option<u16>,
    /// Memory of each GPU; sets how long moves and offloads take
    #[arg(long, value_name = "SIZE", default_value = "24G", value_parser = value::size)]
    pub mem: Bytes,
    /// Scale the times between requests so that the load is this fraction of the machine [default: as listed]
    #[arg(long, value_name = "PART")]
    pub load: Option<f64>,
    /// Use only the first N claims. With --nodes, use N consecutive claims from a random place in the list (repeated as
    /// needed), at random times
    #[arg(long, value_name = "N")]
    pub claims: Option<usize>,
    /// Print JSON
    #[arg(long)]
    pub json: bool,
}
