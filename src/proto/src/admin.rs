//! Administrators' requests, and the record of them.

use crate::bounds::{Label, List, Text};
use crate::call::ClaimSpec;
use serde::{Deserialize, Serialize};

/// A request of `gshare admin`: `{"op":"admin","do":"drain",...}`. Root, the service's own user and members
/// of the groups in `[admin] groups` may; others get `not_permitted`. [`AdminCall::ClaimFor`] is root's alone. All but
/// that and [`AdminCall::Log`] are written to the audit log.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(tag = "do", rename_all = "snake_case")]
pub enum AdminCall {
    /// No new claims on these GPUs. Answers [`AdminDone`].
    Drain {
        /// Indices, UUIDs or unique UUID prefixes.
        gpus: List<Text<128>, 64>,
        /// Reason, for users who wait.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        reason: Option<Label<512>>,
    },
    /// Lets claims start there again. Answers [`AdminDone`].
    Undrain {
        /// Indices, UUIDs or unique UUID prefixes.
        gpus: List<Text<128>, 64>,
    },
    /// Ends claims with all their processes: SIGTERM, and SIGKILL after the grace time. Answers [`AdminDone`].
    Kill {
        /// Claims by id or name; empty: those of `user` and on `gpu`.
        #[serde(default, skip_serializing_if = "<[_]>::is_empty")]
        ids: List<Text<256>, 512>,
        /// Only claims of this user (login name or uid), waiting ones too.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        user: Option<Text<256>>,
        /// Only claims that hold a part of this GPU.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        gpu: Option<Text<128>>,
        /// Milliseconds between SIGTERM and SIGKILL; absent: ten seconds.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        grace_ms: Option<u64>,
        /// Reason, for the owners.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        reason: Option<Label<512>>,
    },
    /// Sets a guarantee, replacing an earlier or configured one. Answers [`AdminDone`].
    QuotaSet(QuotaView),
    /// Removes a guarantee that was set; the configured one applies again. Answers [`AdminDone`].
    QuotaRemove {
        /// `user:ada`, `group:lab` or `project:vision`.
        party: Text<256>,
    },
    /// The guarantees in force; open to everybody. Answers [`crate::Reply::Quotas`].
    QuotaList,
    /// How claims share a GPU. Answers [`AdminDone`] once it is in force or, with `when_empty`, once it is
    /// noted; [`crate::ErrorCode::NotAvailable`] while claims hold a part of the GPU.
    Mode {
        /// Index, UUID or unique UUID prefix.
        gpu: Text<128>,
        /// `timeslice`, `mps`, `auto`, `exclusive` or `mig`.
        mode: Text<32>,
        /// Take no new claims and change when the last one has ended. Setting the mode in force cancels that.
        #[serde(default)]
        when_empty: bool,
    },
    /// gshare closes these GPUs, so that they can be reset; no claims there meanwhile. Answers [`AdminDone`] once nothing
    /// of gshare has them open; [`crate::ErrorCode::NotAvailable`] while claims hold a part of them.
    Release {
        /// Indices, UUIDs or unique UUID prefixes.
        gpus: List<Text<128>, 64>,
        /// Milliseconds after which gshare takes them back; absent: [`AdminCall::Take`] does.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        for_ms: Option<u64>,
    },
    /// gshare uses released GPUs again. Answers [`AdminDone`].
    Take {
        /// Indices, UUIDs or unique UUID prefixes.
        gpus: List<Text<128>, 64>,
    },
    /// Divides an unused GPU into instances (MIG). Answers [`AdminDone`] once they exist;
    /// [`crate::ErrorCode::NotAvailable`] while claims hold a part of it, or if the instances do not fit.
    Mig {
        /// Index, UUID or unique UUID prefix.
        gpu: Text<128>,
        /// Profiles, as `3g.40gb+2g.20gb+1g.10gb`, or `off`.
        layout: Text<256>,
        /// Only report what would be done.
        #[serde(default)]
        dry_run: bool,
    },
    /// gshare stops acting: it limits, takes and refuses nothing until [`AdminCall::On`]. Answers [`AdminDone`].
    Off {
        /// Milliseconds after which it is on again; absent: on command.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        for_ms: Option<u64>,
    },
    /// gshare acts again; that ends nothing. Answers [`AdminDone`].
    On,
    /// Sets how much gshare does from now on; no running program is limited, suspended, moved or ended by that.
    /// Answers [`AdminDone`]; [`crate::ErrorCode::NotAvailable`] if the configuration sets the stage.
    Stage {
        /// `1` to `4`, or its name.
        stage: Text<16>,
        /// For these GPUs: indices, UUIDs or unique UUID prefixes.
        #[serde(default, skip_serializing_if = "<[_]>::is_empty")]
        gpus: List<Text<128>, 64>,
        /// Maximum for the members of this group. With neither: for everything, without exceptions.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        group: Option<Text<256>>,
        /// When it applies, Unix milliseconds. Absent: at once.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        from_ms: Option<u64>,
        /// Only report the runs of the last 7 days that would be treated differently, with the id of that plan.
        #[serde(default)]
        dry_run: bool,
        /// Apply only if the plan still has this id.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        plan: Option<Text<64>>,
    },
    /// Stores the result of the driver checks on this machine. Absent: only checks the caller's rights.
    Conformance {
        #[serde(default, skip_serializing_if = "Option::is_none")]
        found: Option<Conformance>,
    },
    /// A claim on behalf of a user, for all processes below a cgroup that gshare does not own. The same name again gives
    /// the same claim. Answers as [`crate::Call::Claim`]. Root alone.
    ClaimFor(Box<ClaimFor>),
    /// The newest entries of the audit log. Answers [`crate::Reply::Audit`].
    Log {
        /// How many, newest last.
        last: u32,
    },
}

/// Prefix of the name of a Slurm job's claim, before the job's number.
pub const SLURM_JOB: &str = "slurm-";

/// Why such a claim cannot be offloaded by gshare alone.
pub const MOVED_BY_SLURM: &str =
    "it is a job of Slurm, whose memory moves when Slurm suspends or resumes it";

/// A claim on behalf.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct ClaimFor {
    pub uid: u32,
    /// Its name, unique on the machine among claims on behalf.
    pub name: Label<64>,
    /// The request, with its GPUs. Its name, command, directory, kernel and time limit are ignored.
    pub spec: Box<ClaimSpec>,
    /// The cgroup: its directory or the kernel's name of it. It need not exist yet.
    pub cgroup: Text<4096>,
    /// Only its owner and administrators may see it.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub private: bool,
    /// Another program sets the device filter of the cgroup, and could not beside one of gshare.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub filtered: bool,
}

/// Answer to an administrator's request.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct AdminDone {
    /// Sentences for display, one per line.
    pub message: String,
    /// The command that undoes it; absent if nothing can.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub undo: Option<String>,
}

/// A guarantee. GPUs and weights in thousandths; absent values are not set.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct QuotaView {
    /// `user:ada`, `group:lab` or `project:vision`.
    pub party: Text<256>,
    /// Guaranteed GPUs.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub gpus_milli: Option<u32>,
    /// Weight for GPU time beyond all guarantees; 1000 if absent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub weight_milli: Option<u32>,
    /// Maximum GPUs held at a time.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub max_milli: Option<u32>,
    /// From the configuration, not set by an administrator.
    #[serde(default)]
    pub from_config: bool,
}

/// Result of the driver checks.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Conformance {
    pub gpu: u32,
    /// Checks that ran and apply here.
    pub checks: u32,
    /// Checks in which the driver differed from its documentation.
    pub different: u32,
}

/// An entry of the audit log.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct AuditEntry {
    /// Its number, never reused.
    pub seq: u64,
    /// When, Unix milliseconds.
    pub at_ms: u64,
    /// The administrator, by the kernel's credentials.
    pub uid: u32,
    /// Name of that user at that time.
    pub user: String,
    /// Action: `drain`, `undrain`, `kill`.
    pub action: String,
    /// Target: `GPU 1 (GPU-...)`, `c3 of ada`.
    pub target: String,
    /// The state before.
    pub before: String,
    /// The state after.
    pub after: String,
    /// The reason given.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub reason: Option<String>,
}

/// A drained GPU.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct DrainView {
    /// Since when, Unix milliseconds.
    pub since_ms: u64,
    /// Name of the administrator.
    pub by: String,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub reason: Option<String>,
}
