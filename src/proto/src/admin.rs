//! What administrators ask for, and the record of it.

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
        /// Why, for those who wait.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        reason: Option<Label<512>>,
    },
    /// Claims may start there again. Answers [`AdminDone`].
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
        /// Why, for the owners.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        reason: Option<Label<512>>,
    },
    /// Sets a quota, in the place of what was set or configured. Answers [`AdminDone`].
    QuotaSet(QuotaView),
    /// Removes a quota that was set; what is configured holds again. Answers [`AdminDone`].
    QuotaRemove {
        /// `user:ada`, `group:lab` or `project:vision`.
        party: Text<256>,
    },
    /// The quotas in force; everybody may ask. Answers [`crate::Reply::Quotas`].
    QuotaList,
    /// How claims share a GPU. Answers [`AdminDone`] once it is in force or, with `when_empty`, once it is
    /// noted; [`crate::ErrorCode::NotAvailable`] while claims hold a part of the GPU.
    Mode {
        /// Index, UUID or unique UUID prefix.
        gpu: Text<128>,
        /// `timeslice`, `mps`, `auto`, `exclusive` or `mig`.
        mode: Text<32>,
        /// Take no new claims and change when the last one has ended. The mode in force takes that back.
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
    /// Divides a GPU into instances (MIG) with nobody on it. Answers [`AdminDone`] once they are there;
    /// [`crate::ErrorCode::NotAvailable`] while claims hold a part of it, or where the instances do not fit.
    Mig {
        /// Index, UUID or unique UUID prefix.
        gpu: Text<128>,
        /// Profiles, as `3g.40gb+2g.20gb+1g.10gb`, or `off`.
        layout: Text<256>,
        /// Only say what would be done.
        #[serde(default)]
        dry_run: bool,
    },
    /// gshare stops acting: it limits, takes and refuses nothing until [`AdminCall::On`]. Answers [`AdminDone`].
    Off {
        /// Milliseconds after which it is on again; absent: when told.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        for_ms: Option<u64>,
    },
    /// gshare acts again; nothing is ended by that. Answers [`AdminDone`].
    On,
    /// How much gshare does from now on; no running program is limited, paused, moved or ended by it. Answers [`AdminDone`];
    /// [`crate::ErrorCode::NotAvailable`] where the configuration says.
    Stage {
        /// `1` to `4`, or its word.
        stage: Text<16>,
        /// Of these GPUs: indices, UUIDs or unique UUID prefixes.
        #[serde(default, skip_serializing_if = "<[_]>::is_empty")]
        gpus: List<Text<128>, 64>,
        /// The most for the members of this group. Neither: of everything, without exceptions.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        group: Option<Text<256>>,
        /// When it comes into force, Unix milliseconds. Absent: at once.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        from_ms: Option<u64>,
        /// Only say whose runs of the last 7 days would be treated differently, with the id of that plan.
        #[serde(default)]
        dry_run: bool,
        /// Only if that would still be said: the id.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        plan: Option<Text<64>>,
    },
    /// What the list of checks of the driver found here. Absent: only whether the caller may say so.
    Conformance {
        /// In numbers.
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

/// Before the number of a Slurm job in the name of its claim.
pub const SLURM_JOB: &str = "slurm-";

/// A claim on behalf.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct ClaimFor {
    /// Its owner.
    pub uid: u32,
    /// Its name, one of its kind on the machine.
    pub name: Label<64>,
    /// What is claimed, and on which GPUs. Its name, command, directory, kernel and time limit are not looked at.
    pub spec: Box<ClaimSpec>,
    /// The cgroup: its directory or the kernel's name of it. It need not be there yet.
    pub cgroup: Text<4096>,
    /// Only its owner and administrators may see it.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub private: bool,
}

/// What was done.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct AdminDone {
    /// Sentences for people, a line each.
    pub message: String,
    /// The command that undoes it; absent where nothing can.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub undo: Option<String>,
}

/// A quota. GPUs and weights in thousandths; what is absent is not said.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct QuotaView {
    /// `user:ada`, `group:lab` or `project:vision`.
    pub party: Text<256>,
    /// Guaranteed GPUs.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub gpus_milli: Option<u32>,
    /// Weight in what nobody is guaranteed; 1000 where absent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub weight_milli: Option<u32>,
    /// The most GPUs held at a time.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub max_milli: Option<u32>,
    /// From the configuration, not set by an administrator.
    #[serde(default)]
    pub from_config: bool,
}

/// What the list of checks of the driver found.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Conformance {
    /// Index of the GPU.
    pub gpu: u32,
    /// Checks that ran and apply here.
    pub checks: u32,
    /// Those in which the driver was not as documented.
    pub different: u32,
}

/// An entry of the audit log.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct AuditEntry {
    /// Its number, never used twice.
    pub seq: u64,
    /// When, Unix milliseconds.
    pub at_ms: u64,
    /// Who, by the kernel's word.
    pub uid: u32,
    /// Name of that user then.
    pub user: String,
    /// What: `drain`, `undrain`, `kill`.
    pub action: String,
    /// On what: `GPU 1 (GPU-...)`, `c3 of ada`.
    pub target: String,
    /// The state before.
    pub before: String,
    /// The state after.
    pub after: String,
    /// The reason given.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub reason: Option<String>,
}

/// That a GPU takes no new claims.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct DrainView {
    /// Since when, Unix milliseconds.
    pub since_ms: u64,
    /// Name of the administrator.
    pub by: String,
    /// Why.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub reason: Option<String>,
}
