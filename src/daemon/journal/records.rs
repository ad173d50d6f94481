//! Journaled claims.

use gshare_config::Stage;
use gshare_core::Held;
use gshare_core::units::Bytes;
use gshare_enforcer::proc::ProcessKey;
use std::path::{Path, PathBuf};

use gshare_proto::{ClaimSpec, CommandLine, KernelSpec, SignalSpec};
use serde::{Deserialize, Serialize};

use super::holding::HoldingRecord;
use crate::daemon::line::Line;

/// A journaled part of a claim on one GPU.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct SliceRecord {
    pub(crate) uuid: String,
    /// Ties the usage page to this grant.
    pub(crate) token: u64,
    /// Guaranteed bytes.
    pub(crate) mem: u64,
    /// Limit, bytes.
    pub(crate) mem_limit: u64,
    /// Guaranteed SMs in thousandths.
    pub(crate) sm_milli: u32,
    /// Limit of SMs in thousandths.
    pub(crate) sm_limit_milli: u32,
    /// How the claim holds it.
    #[serde(default)]
    pub(crate) held: Held,
}

/// A journaled claim that is granted.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct ClaimRecord {
    pub(crate) id: u64,
    pub(crate) uid: u32,
    /// Name given by the user.
    pub(crate) name: Option<String>,
    pub(crate) project: String,
    pub(crate) class: String,
    #[serde(flatten)]
    pub(crate) command: Line,
    /// Granted, Unix milliseconds.
    pub(crate) granted_ms: u64,
    /// The command; absent for a held claim without one.
    pub(crate) process: Option<ProcessKey>,
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

/// Terms of a claim besides its size.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct TermsRecord {
    /// It outlives its command.
    pub(crate) hold: bool,
    /// End of the time limit, Unix milliseconds.
    pub(crate) ends_ms: Option<u64>,
    /// UUIDs of the GPUs that it may use; empty: any.
    #[serde(default)]
    pub(crate) only: Vec<String>,
    /// Mode that its GPUs must have; absent: any.
    #[serde(default)]
    pub(crate) mode: Option<String>,
    /// It stays on the GPUs where it started.
    #[serde(default)]
    pub(crate) no_move: bool,
    /// Its command may be ended and started again.
    #[serde(default)]
    pub(crate) requeue: bool,
    /// Signal to its programs before it ends.
    #[serde(default)]
    pub(crate) signal: Option<SignalSpec>,
    /// Its command starts without the library, at its owner's request.
    #[serde(default)]
    pub(crate) no_library: bool,
    /// The service chose its size.
    #[serde(default)]
    pub(crate) auto: bool,
    /// Its request, made when a program first needs the GPU.
    #[serde(default)]
    pub(crate) lazy: Option<Box<ClaimSpec>>,
}

impl TermsRecord {
    /// Keeps the request for later, without what the record has already.
    pub(crate) fn ask_later(&mut self, spec: ClaimSpec) {
        // That it is a kernel gives it another memory limit.
        let kernel = spec.kernel.map(|_| KernelSpec::default());
        self.lazy = Some(Box::new(ClaimSpec {
            command: CommandLine::default(),
            kernel,
            ..spec
        }));
    }
}

/// Origin of a claim that is not a command of `gshare claim`.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct OriginRecord {
    /// Its command ran before it became a claim: the use of that process is not counted by the library.
    #[serde(default)]
    pub(crate) adopted: bool,
    /// A process without a claim that is accounted as one: it holds nothing and has no cap.
    #[serde(default)]
    pub(crate) uncapped: bool,
    /// The cgroup in which an adopted or uncapped process was found, from the top.
    #[serde(default)]
    pub(crate) place: Option<String>,
    /// The notebook kernel that is its command.
    #[serde(default)]
    pub(crate) kernel: Option<KernelRecord>,
    /// Made by root for the processes below a cgroup that gshare does not own.
    #[serde(default)]
    pub(crate) behalf: Option<BehalfRecord>,
}

/// How its programs run.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct RunsRecord {
    /// Processes that joined later (used without cgroups, where descent determines membership).
    #[serde(default)]
    pub(crate) joined: Vec<ProcessKey>,
    /// The cgroup of the service whose main process is the command, if the claim lives in it.
    #[serde(default)]
    pub(crate) lodging: Option<PathBuf>,
    /// Its commands are started by the launcher.
    #[serde(default)]
    pub(crate) strict: bool,
    /// Stage in which it was granted, or a lower one that came later.
    #[serde(default)]
    pub(crate) stage: Stage,
    /// Its programs run without anything of gshare: no cgroup, library or environment.
    #[serde(default)]
    pub(crate) plain: bool,
    /// Thousandths of the SMs of its size, while its share is lowered.
    #[serde(default)]
    pub(crate) sm_full: Option<u32>,
}

/// How it ends, so that a restarted service can continue.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct EndRecord {
    /// Cause, if it is being ended.
    #[serde(default)]
    pub(crate) ending: Option<String>,
    /// All its processes end with it.
    #[serde(default)]
    pub(crate) kill_all: bool,
    /// Its command is ended and will be started again.
    #[serde(default)]
    pub(crate) requeued: bool,
    /// Its programs got the requested signal.
    #[serde(default)]
    pub(crate) signalled: bool,
    /// Its command was asked to end because its time limit ended.
    #[serde(default)]
    pub(crate) stopped: bool,
    /// Its programs were asked to end, with or without the command.
    #[serde(default)]
    pub(crate) told: bool,
}

/// A Jupyter kernel.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct KernelRecord {
    /// Its id, the same after restarts.
    pub(crate) id: String,
    /// Its connection file, in memory only. Unknown after a restart of the service while the kernel does not run.
    #[serde(default, serialize_with = "no_path")]
    pub(crate) connection: PathBuf,
}

/// An older service cannot read a record without the field.
fn no_path<S: serde::Serializer>(_: &Path, serializer: S) -> Result<S::Ok, S::Error> {
    serializer.serialize_str("")
}

impl From<KernelSpec> for KernelRecord {
    fn from(spec: KernelSpec) -> Self {
        Self {
            id: spec.id.into(),
            connection: PathBuf::from(String::from(spec.connection)),
        }
    }
}

/// Origin of a claim on behalf.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct BehalfRecord {
    /// The cgroup, as the kernel names it.
    pub(crate) cgroup: PathBuf,
    pub(crate) spec: Box<ClaimSpec>,
    /// The cgroup was there.
    pub(crate) seen: bool,
    /// Only its owner and administrators may see it.
    #[serde(default)]
    pub(crate) private: bool,
    /// Another program sets its device filter.
    #[serde(default)]
    pub(crate) filtered: bool,
}

impl ClaimRecord {
    /// Whether it is hidden from other users.
    pub(crate) fn is_private(&self) -> bool {
        self.origin.behalf.as_ref().is_some_and(|b| b.private)
    }

    /// What its owner could claim more of this free memory. Only root resizes a claim on behalf.
    pub(crate) fn may_grow_by(&self, free: Bytes) -> Option<u64> {
        self.origin.behalf.is_none().then_some(free.0)
    }

    /// Whether its command runs without the library, so that only the driver counts its use.
    pub(crate) fn has_no_library(&self) -> bool {
        self.origin.adopted || self.terms.no_library
    }

    /// Whether gshare records its use and does nothing else.
    pub(crate) fn is_observed(&self) -> bool {
        self.runs.stage == Stage::Observe
    }

    /// Whether the same process makes the same request again, as a client does that lost its connection; for a claim
    /// on behalf, whether any process does.
    pub(crate) fn asks_as(&self, other: &Self) -> bool {
        let asked = |r: &Self| {
            (
                r.process,
                r.uid,
                r.name.clone(),
                r.project.clone(),
                r.class.clone(),
                r.command.clone(),
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
    pub(crate) uuid: String,
    /// SM activity, or busy time if the GPU does not count it, in percent.
    pub(crate) activity: Option<f32>,
    /// Bytes in use by all programs.
    pub(crate) used_bytes: Option<u64>,
    pub(crate) claimed_bytes: u64,
}
