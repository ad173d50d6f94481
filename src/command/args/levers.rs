//! Arguments of the commands that take a claim, or its memory, off its GPU and bring it back.

use clap::Args;

/// `gshare offload`, `restore`, `suspend`, `resume`.
#[derive(Args, Clone, Debug)]
pub struct LeverArgs {
    /// Claim: its id (c3) or name
    pub id: String,
    /// Say nothing but errors
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
    /// All of your own, waiting ones included
    #[arg(short, long, conflicts_with = "ids")]
    pub all: bool,
    /// Do not ask before the kernel of a notebook is ended
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
    /// GPU to move to: index, UUID or the start of one; one for each that the claim has
    #[arg(long, value_name = "GPU", required = true, value_delimiter = ',')]
    pub gpu: Vec<String>,
    /// Say nothing but errors
    #[arg(short, long)]
    pub quiet: bool,
    /// Print JSON
    #[arg(long)]
    pub json: bool,
}

pub(super) const OFFLOAD: &str = "Examples:\n  \
    gshare offload c3            free its GPU memory; its programs live on\n  \
    gshare offload sweep --json\n\n\
    Its memory goes to the host and its place on the GPU to others. The next CUDA call of one of its programs waits until \
    there is room, and brings it back by itself; calls that only ask (cuMemGetInfo, cuStreamQuery, ...) do so after \
    10 seconds. Programs that use MPS, MIG, managed memory, memory shared between processes (IPC) or NCCL \
    cannot be offloaded: gshare ps says why.";
pub(super) const RESTORE: &str = "Example:\n  \
    gshare restore c3            bring it back now; waits for room";
pub(super) const SUSPEND: &str = "Example:\n  \
    gshare suspend c3           offload it and stop its processes until gshare resume c3";
pub(super) const RESUME: &str = "Example:\n  \
    gshare resume c3            let its processes run again, on a GPU; waits for room";
pub(super) const MOVE: &str = "Examples:\n  \
    gshare move c3 --gpu 1          to another GPU of the same model, while its programs run\n  \
    gshare move big --gpu 2,3       a claim of two GPUs\n\n\
    Its programs wait meanwhile, their memory is as before. It takes a driver of release 580 or later, and programs that \
    were not started with CUDA_VISIBLE_DEVICES. Of the GPUs that a claim was bound to (--gpu-ids) the new one takes \
    the place of the one that it leaves.";
