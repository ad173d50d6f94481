//! Claims as they are journaled.

use gshare_config::Stage;
use gshare_core::Held;
use std::path::PathBuf;

use gshare_proto::{ClaimSpec, KernelSpec, SignalSpec};
use serde::{Deserialize, Serialize};

use super::holding::HoldingRecord;

/// A claim's part of one GPU, as journaled.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct SliceRecord {
    /// UUID of the GPU.
    pub(crate) uuid: String,
    /// Ties the usage page to this grant.
    pub(crate) token: u64,
    /// Guaranteed bytes.
    pub(crate) mem: u64,
    /// Most bytes.
    pub(crate) mem_limit: u64,
    /// Guaranteed SMs in thousandths.
    pub(crate) sm_milli: u32,
    /// Most SMs in thousandths.
    pub(crate) sm_limit_milli: u32,
    /// How the claim holds it.
    #[serde(default)]
    pub(crate) held: Held,
}

/// A process for good: pids are used again, the pair is not.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct ProcessRecord {
    /// Process id.
    pub(crate) pid: i32,
    /// Start in clock ticks since boot.
    pub(crate) start_ticks: u64,
}

/// A granted claim, as journaled.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct ClaimRecord {
    /// Number.
    pub(crate) id: u64,
    /// Owner.
    pub(crate) uid: u32,
    /// Name given by the user.
    pub(crate) name: Option<String>,
    /// Project.
    pub(crate) project: String,
    /// Class.
    pub(crate) class: String,
    /// Command line.
    pub(crate) command: Vec<String>,
    /// Working directory.
    pub(crate) cwd: Option<String>,
    /// Granted, Unix milliseconds.
    pub(crate) granted_ms: u64,
    /// The command; absent for a held claim without one.
    pub(crate) process: Option<ProcessRecord>,
    /// Its GPUs.
    pub(crate) slices: Vec<SliceRecord>,
    /// Where it is.
    #[serde(default)]
    pub(crate) holding: HoldingRecord,
    #[serde(flatten)]
    pub(crate) terms: TermsRecord,
    #[serde(flatten)]
    pub(crate) origin: OriginRecord,
    #[serde(flatten)]
    pub(crate) runs: RunsRecord,
    #[serde(flatten)]
    pub(crate) end: EndRecord,
}

/// What was asked for besides a size.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct TermsRecord {
    /// It outlives its command.
    pub(crate) hold: bool,
    /// Lease end, Unix milliseconds.
    pub(crate) ends_ms: Option<u64>,
    /// UUIDs of the GPUs that it may use; none named: any.
    #[serde(default)]
    pub(crate) only: Vec<String>,
    /// How its GPUs are to be shared; none named: in any way.
    #[serde(default)]
    pub(crate) mode: Option<String>,
    /// It stays on the GPUs where it started.
    #[serde(default)]
    pub(crate) no_move: bool,
    /// Its command may be ended and started anew.
    #[serde(default)]
    pub(crate) requeue: bool,
    /// What its programs get before it ends.
    #[serde(default)]
    pub(crate) signal: Option<SignalSpec>,
    /// Its command starts without the library, as its owner asked.
    #[serde(default)]
    pub(crate) no_library: bool,
    /// The service said its size.
    #[serde(default)]
    pub(crate) auto: bool,
    /// What it asks for when a program first needs the GPU.
    #[serde(default)]
    pub(crate) lazy: Option<Box<ClaimSpec>>,
}

/// What became a claim other than a command of `gshare claim`.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct OriginRecord {
    /// Its command ran before it was claimed: nobody counts what that process uses.
    #[serde(default)]
    pub(crate) adopted: bool,
    /// A process outside claims that is accounted as a claim: it holds nothing and has no cap.
    #[serde(default)]
    pub(crate) uncapped: bool,
    /// The cgroup that an adopted or uncapped process was found in, from the top.
    #[serde(default)]
    pub(crate) place: Option<String>,
    /// The notebook's kernel that is its command.
    #[serde(default)]
    pub(crate) kernel: Option<KernelSpec>,
    /// Made by root for the processes below a cgroup that gshare does not own.
    #[serde(default)]
    pub(crate) behalf: Option<BehalfRecord>,
}

/// How its programs run.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct RunsRecord {
    /// Processes that joined later (used without cgroups, where descent says who is a member).
    #[serde(default)]
    pub(crate) joined: Vec<ProcessRecord>,
    /// The cgroup of the service that the command is the main process of, where the claim lives in it.
    #[serde(default)]
    pub(crate) lodging: Option<PathBuf>,
    /// Its commands are started by the launcher.
    #[serde(default)]
    pub(crate) strict: bool,
    /// The stage that it was granted in, or a lower one that came later.
    #[serde(default)]
    pub(crate) stage: Stage,
    /// Its programs were started with nothing of gshare: no cgroup, library or environment.
    #[serde(default)]
    pub(crate) plain: bool,
    /// Thousandths of the SMs that it asked for, while its share is lowered.
    #[serde(default)]
    pub(crate) sm_full: Option<u32>,
}

/// How it ends: a restarted service goes on with that.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct EndRecord {
    /// It is being ended, and why.
    #[serde(default)]
    pub(crate) ending: Option<String>,
    /// And all its processes with it.
    #[serde(default)]
    pub(crate) kill_all: bool,
    /// Its command is ended to be started anew.
    #[serde(default)]
    pub(crate) requeued: bool,
    /// Its programs got the signal that was asked for.
    #[serde(default)]
    pub(crate) signalled: bool,
    /// Its command was asked to end because its lease was over.
    #[serde(default)]
    pub(crate) stopped: bool,
    /// Programs of it were, whether its command was or not.
    #[serde(default)]
    pub(crate) told: bool,
}

/// What a claim on behalf stands for.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct BehalfRecord {
    /// The cgroup, in the kernel's words.
    pub(crate) cgroup: PathBuf,
    /// What was asked.
    pub(crate) spec: Box<ClaimSpec>,
    /// The cgroup was there.
    pub(crate) seen: bool,
    /// Only its owner and administrators may see it.
    #[serde(default)]
    pub(crate) private: bool,
}

impl ClaimRecord {
    /// Whether other users do not see it.
    pub(crate) fn is_private(&self) -> bool {
        self.origin.behalf.as_ref().is_some_and(|b| b.private)
    }

    /// Whether its command runs without the library, so that nobody but the driver counts what it uses.
    pub(crate) fn has_no_library(&self) -> bool {
        self.origin.adopted || self.terms.no_library
    }

    /// Whether gshare records what it uses and does nothing else.
    pub(crate) fn is_observed(&self) -> bool {
        self.runs.stage == Stage::Observe
    }

    /// Whether the same process asks for the same once more, as a client does that lost its connection; of a claim on
    /// behalf, whether any process does.
    pub(crate) fn asks_as(&self, other: &Self) -> bool {
        let asked = |r: &Self| {
            (
                r.process,
                r.uid,
                r.name.clone(),
                r.project.clone(),
                r.class.clone(),
                r.command.clone(),
                r.cwd.clone(),
                r.terms.hold,
                r.origin
                    .behalf
                    .as_ref()
                    .map(|b| (b.cgroup.clone(), b.spec.clone())),
            )
        };
        let can_ask_again = self.process.is_some() || self.origin.behalf.is_some();
        can_ask_again && asked(self) == asked(other)
    }
}

/// A point of a GPU's history: means over the ten seconds before.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct SampleRecord {
    /// When, Unix milliseconds.
    pub(crate) at_ms: u64,
    /// UUID of the GPU.
    pub(crate) uuid: String,
    /// SM activity, or time busy where the GPU does not count it, in percent.
    pub(crate) activity: Option<f32>,
    /// Bytes in use by everybody.
    pub(crate) used_bytes: Option<u64>,
    /// Bytes that claims requested.
    pub(crate) claimed_bytes: u64,
}
