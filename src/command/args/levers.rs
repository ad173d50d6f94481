//! Arguments of the commands that take a claim, or its memory, off its GPU and bring it back.

use clap::Args;

/// `gshare offload`, `restore`, `suspend`, `resume`.
#[derive(Args, Clone, Debug)]
pub struct LeverArgs {
    /// Claim: its id (c3) or name
    pub id: String,
    /// Print errors only
    #[arg(short, long)]
    pub quiet: bool,
    /// Print JSON
    #[arg(long)]
    pub json: bool,
}

/// `gshare release`.
#[derive(Args, Clone, Debug)]
pub struct ReleaseArgs {
    /// Claims: ids (c3) or names
    #[arg(required_unless_present = "all", value_name = "ID")]
    pub ids: Vec<String>,
    /// All of your claims, also waiting ones
    #[arg(short, long, conflicts_with = "ids")]
    pub all: bool,
    /// Do not ask before ending the kernel of a notebook
    #[arg(short, long)]
    pub yes: bool,
    /// Print JSON
    #[arg(long)]
    pub json: bool,
}

/// `gshare move`.
#[derive(Args, Clone, Debug)]
pub struct MoveArgs {
    /// Claim: its id (c3) or name
    pub id: String,
    /// Target GPU: index, UUID or start of a UUID; one for each GPU of the claim, separated by commas
    #[arg(long, value_name = "GPU", required = true, value_delimiter = ',')]
    pub gpu: Vec<String>,
    /// Print errors only
    #[arg(short, long)]
    pub quiet: bool,
    /// Print JSON
    #[arg(long)]
    pub json: bool,
}

pub(super) const OFFLOAD: &str = "Examples:\n  \
    gshare offload c3            its GPU memory moves to host RAM\n  \
    gshare offload sweep --json\n\n\
    Other claims can then use the room on the GPU. The next CUDA call of the claim's programs waits for room and \
    brings the memory back. So that a monitoring thread does not undo every offload, a call that only queries \
    (cuMemGetInfo, cuStreamQuery, ...) waits 10 seconds first if another than the main thread makes it. Programs \
    that use MPS, MIG, managed memory, memory shared between processes (IPC) or \
    NCCL cannot be offloaded: gshare ps says why.";
pub(super) const RESTORE: &str = "Example:\n  \
    gshare restore c3            bring it back now; waits for room";
pub(super) const SUSPEND: &str = "Example:\n  \
    gshare suspend c3           freeze it until gshare resume c3";
pub(super) const RESUME: &str = "Example:\n  \
    gshare resume c3            run it again; waits for room on a GPU";
pub(super) const MOVE: &str = "Examples:\n  \
    gshare move c3 --gpu 1          to another GPU of the same model\n  \
    gshare move big --gpu 2,3       a claim of two GPUs\n\n\
    Programs pause during the move and keep their memory. A move needs driver release 580 or later. It works only if \
    CUDA_VISIBLE_DEVICES was not set when the programs started. If the claim was bound to GPUs with --gpu-ids, the new \
    GPU replaces the \
    old one in that list.";
