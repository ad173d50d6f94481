//! Arguments of `gshare adopt`.

use std::time::Duration;

use clap::Args;
use gshare_config::value;
use gshare_core::{Bytes, Class, Share};

use super::ClassParser;

/// `gshare adopt`.
#[derive(Args, Clone, Debug)]
pub struct AdoptArgs {
    /// Process: one of yours, or any process as root
    #[arg(value_name = "PID", value_parser = clap::value_parser!(u32).range(2..))]
    pub pid: u32,
    /// GPUs: a part of one (0.5) or a whole number (2) [default: what it has]
    #[arg(short, long, value_name = "N", value_parser = value::gpus)]
    pub gpus: Option<Share>,
    /// Memory per GPU, e.g. 8G (GiB) [default: what it has]
    #[arg(long, visible_alias = "gpu-memory", value_name = "SIZE", value_parser = value::gpu_memory)]
    pub gpu_mem: Option<Bytes>,
    /// Share of each GPU's SMs, in percent
    #[arg(long, value_name = "PERCENT", value_parser = value::sm)]
    pub sm: Option<Share>,
    /// Name of the claim
    #[arg(short, long, value_name = "NAME")]
    pub name: Option<String>,
    /// Project that the claim belongs to
    #[arg(long, value_name = "PROJECT")]
    pub project: Option<String>,
    /// Class of work: interactive, batch or inference
    #[arg(long, value_name = "CLASS", value_parser = ClassParser)]
    pub class: Option<Class>,
    /// End the claim after this time: 90m, 2h, 1-12:00:00; a bare number is minutes
    #[arg(short, long, value_name = "TIME", value_parser = value::time)]
    pub time: Option<Duration>,
    /// Print only the id
    #[arg(short, long, conflicts_with = "json")]
    pub quiet: bool,
    /// Print the new claim as JSON
    #[arg(long)]
    pub json: bool,
}
