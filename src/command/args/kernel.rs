//! Arguments of `gshare kernel`.

use std::ffi::OsString;
use std::path::PathBuf;

use clap::{Args, Subcommand, ValueHint};
use gshare_config::value;
use gshare_core::Size;

use super::sizes::PartArgs;

/// Examples of `gshare kernel`.
pub const EXAMPLES: &str = "Examples:\n  \
    gshare kernel install                        python3 with a quarter of a GPU\n  \
    gshare kernel install -g 0.5 --limit 1.0     half a GPU, up to all SMs\n  \
    gshare kernel install ir julia-1.11 -g 1     two kernels with a whole GPU\n  \
    gshare kernel list                           all kernels that Jupyter offers\n  \
    gshare kernel remove --all                   remove gshare's kernels\n\n\
    Each install copies a kernel under a new name, so one kernel can be offered in several sizes. \
    Choose it in Jupyter's launcher, or in VS Code under \"Jupyter Kernel...\".";

/// `gshare kernel`.
#[derive(Args, Clone, Debug)]
pub struct KernelArgs {
    /// What to do.
    #[command(subcommand)]
    pub command: KernelCommand,
}

/// Subcommands of `gshare kernel`.
#[derive(Clone, Debug, Subcommand)]
pub enum KernelCommand {
    /// Offer kernels with a part of a GPU in Jupyter
    Install(InstallArgs),
    /// List the kernels that Jupyter offers here
    List {
        /// Print JSON
        #[arg(long)]
        json: bool,
    },
    /// Remove kernels that gshare installed
    Remove(RemoveArgs),
    /// Start a kernel (installed kernels call this)
    #[command(
        override_usage = "gshare kernel exec [OPTIONS] -- CMD...",
        after_long_help = "gshare starts the command at once, in this process, with a claim that holds nothing until \
            the first CUDA call. That call waits for the GPU and says what it waits for. If no service answers, the \
            kernel starts without a claim."
    )]
    Exec(ExecArgs),
}

/// How much a kernel claims.
#[derive(Args, Clone, Debug, Default, PartialEq, Eq)]
pub struct KernelSize {
    /// GPUs: a part of one (0.5) or a whole number (2) [default: 0.25]
    #[arg(short, long, value_name = "N", value_parser = value::claim_size)]
    pub gpus: Option<Size>,
    /// Memory and SMs separately.
    #[command(flatten)]
    pub part: PartArgs,
    /// Project that the claim belongs to
    #[arg(long, value_name = "PROJECT")]
    pub project: Option<String>,
}

/// `gshare kernel install`.
#[derive(Args, Clone, Debug, Default)]
pub struct InstallArgs {
    /// Kernels to copy, by the names that `gshare kernel list` prints [default: python3]
    #[arg(value_name = "KERNEL")]
    pub kernels: Vec<String>,
    /// All kernels that are not gshare's
    #[arg(long, conflicts_with = "kernels")]
    pub all: bool,
    /// Size of each kernel's claim.
    #[command(flatten)]
    pub size: KernelSize,
    /// Name of the new kernel [default: the old name with the size]
    #[arg(long, value_name = "NAME", conflicts_with = "all")]
    pub name: Option<String>,
    /// Name that Jupyter shows [default: the old one with the size]
    #[arg(long, value_name = "TEXT", conflicts_with = "all")]
    pub display_name: Option<String>,
    /// Where it goes.
    #[command(flatten)]
    pub place: PlaceArgs,
    /// Print JSON
    #[arg(long)]
    pub json: bool,
}

/// Where kernels are installed.
#[derive(Args, Clone, Debug, Default)]
#[group(multiple = false)]
pub struct PlaceArgs {
    /// For yourself, in ~/.local/share/jupyter (the default; root's default is /usr/local/share/jupyter, for all users)
    #[arg(long)]
    pub user: bool,
    /// Into the Python environment in use
    #[arg(long)]
    pub sys_prefix: bool,
    /// Below this directory, in share/jupyter/kernels
    #[arg(long, value_name = "DIR", value_hint = ValueHint::DirPath)]
    pub prefix: Option<PathBuf>,
}

/// `gshare kernel exec`.
#[derive(Args, Clone, Debug)]
pub struct ExecArgs {
    /// Size of the claim.
    #[command(flatten)]
    pub size: KernelSize,
    /// Do not wait for the GPU: the first CUDA call fails if the GPU is not free
    #[arg(long)]
    pub no_wait: bool,
    /// Appends times of the phases to a file, for `gshare bench`.
    #[arg(long, hide = true, value_name = "FILE")]
    pub phases: Option<PathBuf>,
    /// The kernel's own command
    #[arg(
        required = true,
        trailing_var_arg = true,
        value_name = "CMD",
        value_hint = ValueHint::CommandWithArguments
    )]
    pub command: Vec<OsString>,
}

/// `gshare kernel remove`.
#[derive(Args, Clone, Debug)]
pub struct RemoveArgs {
    /// Names of the kernels
    #[arg(value_name = "NAME", required_unless_present = "all")]
    pub names: Vec<String>,
    /// All kernels that gshare installed
    #[arg(long, conflicts_with = "names")]
    pub all: bool,
    /// Print JSON
    #[arg(long)]
    pub json: bool,
}
