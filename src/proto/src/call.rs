//! Requests and replies.

use serde::{Deserialize, Serialize};

use crate::admin::{AdminCall, AdminDone, AuditEntry, QuotaView};
use crate::bounds::{CommandLine, Label, List, Text};
use crate::history::{HistorySpec, HistoryView, ReportSpec, ReportView};
use crate::snapshot::{Notice, Snapshot};
use crate::suggest::{SuggestSpec, SuggestView};

/// The first line of a client.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Hello {
    /// [`crate::PROTOCOL`] of the client.
    pub gshare: u32,
    /// The calling program, for the log: `gshare 0.1.0`.
    #[serde(default)]
    pub client: Label<64>,
}

/// How long a claim may wait in the queue.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Wait {
    /// By the service's configuration.
    #[default]
    Default,
    /// Until it is granted.
    Forever,
    /// Not at all: refuse with `not_available`.
    No,
    /// At most this many seconds.
    Seconds(u64),
}

/// A request for a claim. Sizes in bytes per GPU, shares in thousandths of a GPU.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct ClaimSpec {
    /// `-g`: thousandths of a GPU (500), or whole GPUs (2000). `None` takes the class's default size.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub gpus_milli: Option<u32>,
    /// `-g 2x0.5`: number of GPUs, each with `gpus_milli`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub gpu_count: Option<u32>,
    /// `--gpu-mem`: guaranteed bytes per GPU.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub mem: Option<u64>,
    /// `--gpu-mem-limit`: limit in bytes per GPU.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub mem_limit: Option<u64>,
    /// `--sm`: guaranteed SMs in thousandths of a GPU.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub sm_milli: Option<u32>,
    /// `--limit`: limit of SMs in thousandths of a GPU.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub sm_limit_milli: Option<u32>,
    /// `--name`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub name: Option<Label<64>>,
    /// `--project`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub project: Option<Text<128>>,
    /// `--class`: `interactive`, `batch` or `inference`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub class: Option<Text<32>>,
    /// `-t`: time limit in seconds.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub lease_s: Option<u64>,
    /// `--gpu-ids`: indices, UUIDs or unique UUID prefixes; empty means any.
    #[serde(default, skip_serializing_if = "<[_]>::is_empty")]
    pub gpu_ids: List<Text<128>, 64>,
    /// `--model`: only GPUs whose name contains one of these.
    #[serde(default, skip_serializing_if = "<[_]>::is_empty")]
    pub models: List<Text<128>, 64>,
    /// `--mode`: only GPUs that are shared in this mode: `timeslice`, `mps`, `exclusive` or `mig`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub mode: Option<Text<32>>,
    /// `--requeue`: its command may be ended and started again when there is room.
    #[serde(default)]
    pub requeue: bool,
    /// `--signal`: signal to its programs before it ends.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub signal: Option<SignalSpec>,
    /// `--movable`, `--no-movable`: whether it may be moved to other GPUs while it runs (default).
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub movable: Option<bool>,
    #[serde(default)]
    pub wait: Wait,
    /// Whether the claim outlives the command (`--hold`): it ends with `release` or its time limit.
    #[serde(default)]
    pub hold: bool,
    /// The command line, for display.
    #[serde(default)]
    pub command: CommandLine,
    /// `-g auto`: the service chooses the size, from earlier runs of the command.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub auto: bool,
    /// The claim is made now, and granted when a program first needs the GPU.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub lazy: bool,
    /// `--no-library`: its command is counted and filtered, and starts without the library that limits it.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub no_library: bool,
    /// The command is a notebook kernel; the claim outlives its restarts.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub kernel: Option<KernelSpec>,
}

/// A signal that tells programs to save their state before the claim ends.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct SignalSpec {
    pub number: i32,
    /// Seconds before the end.
    pub before_s: u32,
    /// `B:`: only for the command, not for its programs on the GPU.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub command: bool,
}

/// A Jupyter kernel.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct KernelSpec {
    /// Its id: the UUID in the name of its connection file, the same after restarts.
    pub id: Text<64>,
    /// The connection file, absolute. Jupyter deletes it when it shuts the kernel down.
    pub connection: Text<4096>,
}

/// Changes of a held claim; absent values stay. Sizes in bytes per GPU, shares in thousandths.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct ResizeSpec {
    /// The claim, `c3` or its name.
    pub id: Text<256>,
    /// `-g`: fraction of the GPU, for memory and SMs alike.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub gpus_milli: Option<u32>,
    /// `-g 2x0.5`: number of the claim's GPUs, each with `gpus_milli`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub gpu_count: Option<u32>,
    /// `--gpu-mem`: guaranteed bytes per GPU.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub mem: Option<u64>,
    /// `--gpu-mem-limit`: limit in bytes per GPU.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub mem_limit: Option<u64>,
    /// `--sm`: guaranteed SMs.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub sm_milli: Option<u32>,
    /// `--limit`: limit of SMs.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub sm_limit_milli: Option<u32>,
    /// How long to wait for room; by default not at all.
    #[serde(default = "no_wait")]
    pub wait: Wait,
}

fn no_wait() -> Wait {
    Wait::No
}

/// A requested action on a held claim.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum LeverWish {
    /// Offload its GPU memory to the host; its processes live on.
    #[serde(rename = "detach", alias = "offload")]
    Offload,
    /// Restore it to a GPU.
    #[serde(rename = "attach", alias = "restore")]
    Restore,
    /// Offload its GPU memory to the host and freeze its processes.
    Suspend,
    /// Let its processes run again, on a GPU.
    Resume,
}

impl LeverWish {
    /// The word on the command line.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Offload => "offload",
            Self::Restore => "restore",
            Self::Suspend => "suspend",
            Self::Resume => "resume",
        }
    }
}

/// A request, one per line: `{"op":"snapshot"}`.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(tag = "op", rename_all = "snake_case")]
pub enum Call {
    /// Claims. Answers [`Reply::Queued`] whenever its place or reason changes, then [`Reply::Granted`] or
    /// [`Reply::Error`]. Closing the connection before the grant withdraws the claim. The caller's process (from the
    /// kernel) becomes the claim's command: it executes it in place after the grant.
    Claim(Box<ClaimSpec>),
    /// Puts the calling process (or, with `parent`, the process that started it) into an existing claim
    /// of the same user. Answers [`Reply::Granted`].
    Join {
        /// The claim, `c3` or its name.
        id: Text<256>,
        /// Move the caller's parent instead (`eval "$(gshare env c3)"`).
        #[serde(default)]
        parent: bool,
    },
    /// The environment of a claim; answers [`Reply::Granted`] and moves no process.
    Env {
        /// The claim, `c3` or its name.
        id: Text<256>,
    },
    /// Ends a claim or withdraws a waiting one. Owner or root only. Answers [`Reply::Done`].
    Release {
        /// The claim, `c3` or its name.
        id: Text<256>,
    },
    /// Changes the size of a held claim. Owner or root only. Answers [`Reply::Queued`] while it waits for room, then
    /// [`Reply::Resized`] or [`Reply::Error`]. Closing the connection withdraws the request.
    Resize(Box<ResizeSpec>),
    /// Requests an action on a held claim. Owner or root only. Answers [`Reply::Queued`] while it waits for room,
    /// then [`Reply::Done`] or [`Reply::Error`] once it is done.
    Lever {
        /// The claim, `c3` or its name.
        id: Text<256>,
        /// The action.
        wish: LeverWish,
    },
    /// Moves a claim to other GPUs, while its programs run. Owner or root only. Answers as [`Call::Lever`].
    Move {
        /// The claim, `c3` or its name.
        id: Text<256>,
        /// As many GPUs as it has: indices, UUIDs or unique UUID prefixes.
        gpus: List<Text<128>, 64>,
    },
    /// A dry run of a claim; nothing is claimed. Answers [`Reply::Tried`].
    Try(Box<ClaimSpec>),
    /// The log of a claim, oldest first. Without one: the claims whose logs the caller may read, those that run or wait
    /// by their ids, and the last that ended, newest first. Answers [`Reply::Log`].
    Log {
        /// The claim: its id, even if it has ended, or its name.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        id: Option<Text<256>>,
    },
    /// Keeps an announced claim; answered by [`Reply::Done`].
    Keep {
        /// Id or name.
        id: Text<256>,
    },
    /// Extends a claim's time limit. Owner or root only. Answers [`Reply::Done`].
    Extend {
        /// The claim, `c3` or its name.
        id: Text<256>,
        /// Seconds that are added.
        by_s: u64,
    },
    /// State of the time limit of the claim whose command a process of the caller's is or was. Answers
    /// [`Reply::Lease`].
    Lease {
        pid: u32,
        /// Its start, in clock ticks since boot.
        start_ticks: u64,
    },
    /// Ends all claims of the caller. Answers [`Reply::Done`].
    ReleaseAll,
    /// Makes a running process a claim of its owner. Owner or root only. Answers [`Reply::Granted`] or, if it does
    /// not fit now, [`Reply::Error`]. Without a size it claims the process's present use.
    Adopt {
        pid: u32,
        /// The request; its command, directory and wait are ignored.
        spec: Box<ClaimSpec>,
    },
    /// One [`Reply::Snapshot`].
    Snapshot,
    /// A [`Reply::Snapshot`] now and after every tick or change, at most one per `min_interval_ms`.
    Watch {
        /// Shortest time between two snapshots, in milliseconds.
        #[serde(default)]
        min_interval_ms: u64,
    },
    /// Claimed and used over time. Answers [`Reply::History`].
    History(HistorySpec),
    /// Sums of claimed and used, by user. Answers [`Reply::Report`].
    Report(ReportSpec),
    /// All data stored about the caller, in parts. Answers [`Reply::Stored`].
    Stored {
        /// Where the last answer ended.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        after: Option<StoredPlace>,
    },
    /// Sizes from experience. Answers [`Reply::Suggest`].
    Suggest(SuggestSpec),
    /// The rows of `gshare doctor`. Answers [`Reply::Doctor`].
    Doctor,
    /// A request of an administrator.
    Admin(AdminCall),
    /// Describes the claim as a device for containers. Owner or root. Answers [`Reply::Container`].
    Container {
        /// The claim, `c3` or its name.
        id: Text<256>,
        /// The container program puts containers only into systemd slices.
        #[serde(default)]
        slice: bool,
        /// For starting existing containers, which needs a hook.
        #[serde(default)]
        hook: bool,
    },
}

/// A waiting claim.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Queued {
    /// Its id, valid for `release` while it waits.
    pub id: String,
    /// 1 is the head of the queue.
    pub position: u32,
    /// Why, with the holders: `needs 11.8 GiB; most free is 5.8 on GPU 0`.
    pub reason: String,
    /// Arguments that would start now: `-g 0.2`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub would_start: Option<String>,
}

/// A claim is granted (or looked up by `env` and `join`).
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Granted {
    /// Its id, `c3`.
    pub id: String,
    /// A sentence for display: `c3: 0.50 of GPU 1 (11.8 GiB, ...)`.
    pub message: String,
    /// Environment to set, name and value. An empty value for a name with `prepend` set is never sent.
    pub env: Vec<(String, String)>,
    /// Environment to prepend with `:` (`LD_LIBRARY_PATH`), name and directory.
    #[serde(default)]
    pub env_prepend: Vec<(String, String)>,
    /// Environment to remove: a claim that may be moved must not start with a subset of GPUs in
    /// `CUDA_VISIBLE_DEVICES`.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub env_remove: Vec<String>,
    /// Parent of the pipe directories of the service's MPS daemons. An environment with one of them in
    /// `CUDA_MPS_PIPE_DIRECTORY` has it from another claim, together with the variables of that claim's share.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub mps_dir: Option<String>,
    /// Microseconds that the service spent in each phase (`journal`, `cgroup`, `filter`, `pages`).
    #[serde(default)]
    pub phases_us: Box<[(String, u64)]>,
    /// Limits are strict: the command must be started by this program, the launcher.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub launcher: Option<String>,
    /// Limits are strict, and the program that starts the job's tasks makes a mount namespace for each: source and
    /// target of the mounts in it.
    #[serde(default, skip_serializing_if = "<[_]>::is_empty")]
    pub binds: Box<[(String, String)]>,
    /// For a job of Slurm: the device node of each of its GPUs, in the order of `CUDA_VISIBLE_DEVICES`.
    #[serde(default, skip_serializing_if = "<[_]>::is_empty")]
    pub nodes: Box<[String]>,
}

/// The new size of a claim.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Resized {
    /// Its id, `c3`.
    pub id: String,
    /// A sentence for display: `c3: 0.80 of GPU 1 (18.8 GiB, ...), was 0.50 (11.8 GiB, ...)`.
    pub message: String,
    /// Its present size, by GPU.
    pub gpus: Vec<ResizedGpu>,
}

/// A claim's part of one GPU. Bytes, and fractions of the SMs from 0 to 1.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct ResizedGpu {
    pub gpu: u32,
    pub uuid: String,
    /// Guaranteed bytes.
    pub mem_request: u64,
    /// Limit in bytes.
    pub mem_limit: u64,
    /// Guaranteed SMs.
    pub sm_request: f64,
    pub sm_limit: f64,
}

/// The result of a dry run.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Tried {
    /// It would start at once.
    pub starts: bool,
    /// It could never run here.
    #[serde(default)]
    pub never: bool,
    pub message: String,
    /// The GPUs where it would start.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub gpus: Vec<TriedGpu>,
    /// Its place in the queue, if it would wait.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub position: Option<u32>,
    /// It would be within its owner's guarantee.
    #[serde(default)]
    pub entitled: bool,
    /// When it would start at the earliest, Unix milliseconds.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub expected_ms: Option<u64>,
    /// That start is set by the hours of its class.
    #[serde(default)]
    pub by_hours: bool,
    /// Expected start by run times, announcements and earlier runs.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub expected: Option<crate::ExpectedView>,
    /// Arguments that would start now: `-g 0.2`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub would_start: Option<String>,
    /// Actions on other claims that would make room for it.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub takings: Vec<TakingView>,
    /// Why others that could give way to it would not, one sentence each.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub alone: Vec<String>,
}

/// A part of a GPU that a claim would get.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct TriedGpu {
    pub gpu: u32,
    /// Guaranteed bytes.
    pub mem: u64,
    /// Limit in bytes.
    #[serde(default)]
    pub mem_limit: u64,
    /// Guaranteed fraction of the SMs, 0 to 1.
    pub sm: f64,
    #[serde(default)]
    pub sm_limit: f64,
}

/// An action on a claim that would make room for another.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct TakingView {
    pub id: String,
    /// Its owner.
    pub user: String,
    /// In words: `moves to another GPU`.
    pub what: String,
    /// The GPUs that it would move to.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub to: Vec<u32>,
    /// When, Unix milliseconds.
    pub at_ms: u64,
}

/// State of a time limit.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct LeaseView {
    /// The claim; absent if the process had none recently.
    pub id: Option<String>,
    /// End of the time limit, Unix milliseconds.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub ends_ms: Option<u64>,
    /// The claim ends, or has ended, because of its time limit.
    #[serde(default)]
    pub over: bool,
    /// Some of its programs were asked to end because of that.
    #[serde(default)]
    pub told: bool,
    /// It was ended so that others could start; its command is to be claimed and started again.
    #[serde(default)]
    pub requeued: bool,
}

/// A line from the service.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(tag = "reply", rename_all = "snake_case")]
pub enum Reply {
    /// Answer to [`Hello`].
    Hello {
        /// [`crate::PROTOCOL`] of the service.
        gshare: u32,
        /// `gshared 0.1.0`.
        server: String,
    },
    /// The claim waits; more lines follow.
    Queued(Queued),
    /// The claim is held.
    Granted(Granted),
    /// The claim has its new size.
    Resized(Resized),
    /// The result of a dry run.
    Tried(Tried),
    /// State of a time limit.
    Lease(LeaseView),
    /// Done, with a sentence for display.
    Done {
        /// `c3 released`.
        message: String,
    },
    /// The log of a claim, or claims that ended.
    Log {
        #[serde(default, skip_serializing_if = "Option::is_none")]
        id: Option<String>,
        /// Claims that run or wait.
        #[serde(default, skip_serializing_if = "Vec::is_empty")]
        present: Vec<String>,
        entries: Vec<Notice>,
    },
    /// The state of everything.
    Snapshot(Box<Snapshot>),
    /// Claimed and used over time.
    History(Box<HistoryView>),
    /// Sums of claimed and used, by user.
    Report(Box<ReportView>),
    /// A part of the data stored about the caller.
    Stored(StoredView),
    /// Sizes.
    Suggest(Box<SuggestView>),
    /// Lines of `gshare doctor`.
    Doctor {
        /// One row per mechanism.
        checks: Vec<Check>,
    },
    /// Where the containers of a claim belong.
    Container(ContainerPlace),
    /// An administrator's request is done.
    Admin(AdminDone),
    Quotas {
        /// By party.
        quotas: Vec<QuotaView>,
    },
    /// Entries of the audit log, oldest first.
    Audit { entries: Vec<AuditEntry> },
    /// The request failed.
    Error(WireError),
}

/// The end of a part of stored data.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct StoredPlace {
    /// Number of the table.
    pub table: u32,
    /// The last row.
    pub key: [i64; 2],
}

/// A part of the data stored about a user.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct StoredView {
    /// One JSON object per row.
    pub rows: Vec<String>,
    /// Where the next part begins.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub next: Option<StoredPlace>,
}

/// One line of `gshare doctor`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Check {
    /// Its heading: `memory`.
    #[serde(default)]
    pub group: String,
    /// Mechanism: `device filter`.
    pub name: String,
    /// `ok`, `limited` or `missing`.
    pub state: String,
    /// The result.
    pub detail: String,
    /// `seen on hardware 2026-..`, `real control program only`, `simulation only`, or empty if no GPU is involved.
    #[serde(default)]
    pub status: String,
    /// The command or step that fixes it, if known.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub fix: Option<String>,
}

/// Where the containers of a claim belong.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct ContainerPlace {
    /// Name for `--device` (CDI): `gshare.dev/claim=c3`; empty for a claim that is only counted, whose containers are
    /// ordinary ones.
    pub device: String,
    /// For `--cgroup-parent`: a cgroup by the kernel's name, or a slice.
    pub cgroup_parent: String,
    /// The equivalent flags for any container program (`--device`, `--mount`, `--env`): for those without CDI, and
    /// for rootless ones, which cannot create device nodes.
    #[serde(default)]
    pub flags: Vec<String>,
    /// Directory for `--hooks-dir` of `podman start`, if requested.
    #[serde(default)]
    pub hooks: String,
}

/// Kinds of failure; the client turns them into exit codes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum ErrorCode {
    /// The line is not a request.
    BadRequest,
    /// Another version of the protocol.
    Protocol,
    /// A request that can never succeed here (exit 64).
    Usage,
    /// Not possible now, or not within the wait (exit 75).
    NotAvailable,
    /// Not the owner (exit 77).
    NotPermitted,
    /// No such claim.
    NoClaim,
    /// The claim was released or its time limit ended while it waited (exit 124).
    Ended,
    /// The service's files cannot be written, for example on a full disk (exit 74).
    Storage,
    /// An internal error of the service.
    Internal,
}

/// A failure: what happened, why, and what to do.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct WireError {
    pub code: ErrorCode,
    /// Sentence, lower case, no full stop.
    pub message: String,
    /// What the user can do.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub hint: Option<String>,
}

impl WireError {
    /// An error without a hint.
    #[must_use]
    pub fn new(code: ErrorCode, message: impl Into<String>) -> Self {
        Self {
            code,
            message: message.into(),
            hint: None,
        }
    }

    /// The same with a hint.
    #[must_use]
    pub fn with_hint(mut self, hint: impl Into<String>) -> Self {
        self.hint = Some(hint.into());
        self
    }
}
