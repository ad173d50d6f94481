//! Arguments of `gshare slurm`.

use std::ffi::OsString;
use std::path::PathBuf;
use std::time::Duration;

use clap::builder::PossibleValuesParser;
use clap::{Args, Subcommand};
use gshare_config::value;
use gshare_core::Bytes;

/// `gshare slurm`.
#[derive(Args, Clone, Debug)]
pub struct SlurmArgs {
    /// What to do.
    #[command(subcommand)]
    pub command: SlurmCommand,
    /// The service's configuration [default: /etc/gshare/gshare.toml]
    #[arg(long, global = true, value_name = "FILE")]
    pub config: Option<PathBuf>,
}

/// Subcommands of `gshare slurm`.
#[derive(Clone, Debug, Subcommand)]
pub enum SlurmCommand {
    /// Print what Slurm needs, file by file; without FILE, the list of files
    Config(ConfigArgs),
    /// For a cluster with one node: add gshare's lines, between marker comments, to Slurm's files; without --write,
    /// only show the changes
    Install(InstallArgs),
    /// Remove all that install has written; the files are again what they were
    Uninstall(UninstallArgs),
    /// Report what is missing on this node; exits 1 if anything is missing
    Check,
    /// For Slurm's Epilog: end the job's claim; always exits 0
    Epilog,
    /// For Slurm's HealthCheckProgram: drain this node while the service does not answer, and resume it afterwards
    Health,
    /// On the host of slurmctld: write how ended jobs used their GPUs into the AdminComment that sacct shows, except for
    /// jobs that have one
    Comment(CommentArgs),
    /// Print a node's part of that.
    #[command(hide = true)]
    Used,
    /// Make the claim of a job, for the plugin.
    #[command(hide = true)]
    Task(TaskArgs),
}

/// The files that `gshare slurm config` prints.
pub const FILES: [&str; 8] = [
    "slurm.conf",
    "gres.conf",
    "plugstack.conf",
    "job_submit.lua",
    "cli_filter.lua",
    "gshare-epilog",
    "gshare-health",
    "gshare_spank.c",
];

/// `gshare slurm config`.
#[derive(Args, Clone, Debug)]
pub struct ConfigArgs {
    /// Which file to print
    #[arg(value_name = "FILE", value_parser = PossibleValuesParser::new(FILES))]
    pub file: Option<String>,
    /// The site.
    #[command(flatten)]
    pub site: SiteArgs,
}

/// `gshare slurm install`.
#[derive(Args, Clone, Debug)]
pub struct InstallArgs {
    /// Write the files
    #[arg(long)]
    pub write: bool,
    /// Show the changes as a diff (default)
    #[arg(long, conflicts_with = "write")]
    pub dry_run: bool,
    /// The site.
    #[command(flatten)]
    pub site: SiteArgs,
}

/// `gshare slurm uninstall`.
#[derive(Args, Clone, Debug)]
pub struct UninstallArgs {
    /// Show the changes as a diff, and write nothing
    #[arg(long)]
    pub dry_run: bool,
    /// Directory of Slurm's configuration
    #[arg(long, value_name = "DIR", default_value = "/etc/slurm")]
    pub dir: PathBuf,
}

/// `gshare slurm comment`.
#[derive(Args, Clone, Debug)]
pub struct CommentArgs {
    /// The nodes, which are asked by ssh [default: this machine]
    #[arg(value_name = "HOST")]
    pub hosts: Vec<OsString>,
    /// Jobs that ended at most this long ago
    #[arg(long, value_name = "TIME", default_value = "1d", value_parser = value::time)]
    pub since: Duration,
}

/// What is printed or written depends on.
#[derive(Args, Clone, Debug)]
pub struct SiteArgs {
    /// Shards that each GPU has in this cluster
    #[arg(long, value_name = "N", default_value_t = 100, value_parser = clap::value_parser!(u32).range(1..))]
    pub shards: u32,
    /// Memory of the largest GPU of this cluster: slurmctld refuses jobs with a larger --gshare-mem [default: the
    /// largest that Slurm gives out on this machine]
    #[arg(long, value_name = "SIZE")]
    pub gpu_mem: Option<Bytes>,
    /// Directory of Slurm's configuration
    #[arg(long, value_name = "DIR", default_value = "/etc/slurm")]
    pub dir: PathBuf,
    /// Where the compiled plugin is
    #[arg(
        long,
        value_name = "FILE",
        default_value = "/usr/local/lib/slurm/gshare_spank.so"
    )]
    pub plugin: PathBuf,
}

/// `gshare slurm task`.
#[derive(Args, Clone, Debug, Default)]
pub struct TaskArgs {
    /// Number of the job
    #[arg(long, value_name = "N")]
    pub job: u32,
    /// Its user
    #[arg(long, value_name = "N")]
    pub uid: u32,
    /// Slurm's name of this node
    #[arg(long, default_value = "")]
    pub host: String,
    /// What Slurm gave the job on this node: `gpu:2(IDX:0-1)`
    #[arg(long, value_name = "G")]
    pub gres: String,
    /// What this node has: `gpu:2,shard:200`
    #[arg(long, value_name = "G")]
    pub node: String,
    /// Slurm's account of the job
    #[arg(long)]
    pub account: Option<String>,
    /// The partition and the QOS in which it runs
    #[arg(long)]
    pub queue: Vec<String>,
    /// `--gshare-mem`: memory on each GPU
    #[arg(long)]
    pub mem: Option<String>,
    /// `--gshare-limit`: most compute
    #[arg(long)]
    pub limit: Option<String>,
    /// For the step `extern`, which does not know the two options
    #[arg(long = "extern")]
    pub is_extern: bool,
}

/// What the manual says below the options.
pub const EXAMPLES: &str = "Examples:\n  \
    gshare slurm config                        which files Slurm needs\n  \
    gshare slurm config slurm.conf             the lines for slurm.conf\n  \
    gshare slurm config job_submit.lua --shards 8\n  \
    gshare slurm install                       what it would change, on a site with one node\n  \
    sudo gshare slurm check                    what is missing on this node\n\n\
    If gpus is set in section [slurm] of gshare.toml, gshare limits each Slurm job to the part of a GPU that Slurm \
    gave it. Users type `srun --gres=gshare:0.5 COMMAND`, which the block in cli_filter.lua turns into shards. They \
    never call gshare slurm.";
