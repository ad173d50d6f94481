//! Data for the screen, `ps` and `status`. Bytes are bytes, shares are fractions of one GPU (0.5), percent is 0 to
//! 100, times are Unix milliseconds. An unknown figure is absent, never 0.

use std::collections::BTreeMap;
use std::time::Duration;

use gshare_core::units::show_duration;
use serde::{Deserialize, Serialize};

use crate::admin::DrainView;
use crate::health::HealthView;
use crate::history::Usage;
use crate::messages;
use crate::place::{IdleView, PlaceView};
use crate::queue::QueueView;

/// Source of a figure.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Source {
    /// NVML GPM counters (Hopper and later).
    Gpm,
    /// DCGM's profiling counters.
    Dcgm,
    /// Counters of the library in the claim's page.
    CuptiPm,
    /// Counters of the shim in the claim's page.
    Shim,
    /// NVML: the fraction of time with any kernel running.
    TimeBusy,
    /// NVML memory figures.
    Nvml,
    /// gshare's own ledger.
    Ledger,
}

/// A measured figure with its source.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct Figure {
    /// The value; unit as the field says.
    pub value: f64,
    pub source: Source,
    /// An estimate, shown with `~`.
    #[serde(default)]
    pub estimate: bool,
}

/// How members are held to their limits.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Caps {
    /// By the launcher: holds even against programs that try to bypass it.
    Strict,
    /// By the library path: holds for programs that do not try to bypass it.
    #[default]
    Cooperative,
    /// Not at all: read-only.
    None,
}

/// Everything at one moment.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Snapshot {
    /// When, Unix milliseconds.
    pub taken_ms: u64,
    pub host: String,
    /// Driver version, `580.95.05`.
    pub driver: Option<String>,
    /// Whether the driver is the simulated one.
    pub simulated: bool,
    /// The strongest limits in force.
    pub caps: Caps,
    /// The service; absent in the read-only monitor.
    pub service: Option<ServiceView>,
    /// Free room for the viewer; absent without a service.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub claimable_now: Option<ClaimableView>,
    pub gpus: Vec<GpuView>,
    /// Granted claims by id.
    pub claims: Vec<ClaimView>,
    /// Number of others' claims that are hidden, because Slurm keeps jobs private.
    #[serde(default, skip_serializing_if = "is_none")]
    pub hidden: usize,
    /// Waiting claims, head first.
    pub queue: Vec<QueueView>,
    /// Users with claims, waiting or running, or with use without a claim.
    pub users: Vec<UserView>,
    /// GPU processes without a claim.
    pub unclaimed: Vec<UnclaimedView>,
    /// Recent events, newest first (refusals, ended claims, crashes).
    pub notices: Vec<Notice>,
    /// Advice that is true now.
    #[serde(default)]
    pub advice: Vec<Advice>,
}

fn is_none(count: &usize) -> bool {
    *count == 0
}

/// What the viewer would get at once: a claim of this size is granted, a larger one is not. Fractions of GPUs.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct ClaimableView {
    /// Free fractions, all GPUs together.
    pub sum: f64,
    pub models: Vec<crate::ModelRoomView>,
}

/// The service itself.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct ServiceView {
    pub version: String,
    /// `system` (root) or `user`.
    pub mode: String,
    /// Since when, Unix milliseconds.
    pub started_ms: u64,
    /// Whether claims have cgroups of their own.
    pub cgroups: bool,
    /// Whether the device filter is in force.
    pub device_filter: bool,
    /// Whether claims have the library on their library path.
    pub shim: bool,
    pub uid: u32,
    /// Number of looks at the driver, one per tick: figures and over-use change with it.
    #[serde(default)]
    pub looks: u64,
    /// gshare is off: it limits, takes and refuses nothing.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub off: Option<OffView>,
    /// Slurm allocates GPUs of this machine.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub slurm: bool,
    /// How much gshare does; absent from a service before 0.2.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub stage: Option<StageView>,
}

/// The stages in force, 1 to 4. The lower of a GPU's and a user's applies.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct StageView {
    /// For every GPU without an entry.
    pub machine: u8,
    /// Its name: `observe`, `opt-in`, `reclaim` or `require`.
    pub name: String,
    /// For other GPUs, by index.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub gpus: BTreeMap<u32, u8>,
    /// Maximum for the members of groups, by name.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub groups: BTreeMap<String, u8>,
    /// The key of the configuration that sets it; absent if `gshare admin stage` does.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub pinned: Option<String>,
    /// Stages 3 and 4 have not been tested with this machine's driver.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub experimental: bool,
    /// Stage 4 has no effect here: why, and what to do about it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub no_effect: Option<String>,
    /// A change that was scheduled for later.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub later: Option<LaterView>,
}

/// A scheduled change of the stage.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct LaterView {
    /// Unix milliseconds.
    pub from_ms: u64,
    /// In words, with the local time.
    pub text: String,
}

impl StageView {
    /// `stage 3 (reclaim); GPU 6: 2; group students: at most 1`, and a later change.
    #[must_use]
    pub fn text(&self) -> String {
        let gpus = self.gpus.iter().map(|(g, n)| format!("; GPU {g}: {n}"));
        let groups = self.groups.iter();
        let groups = groups.map(|(name, n)| format!("; group {name}: at most {n}"));
        let later = self.later.iter().map(|later| format!("; {}", later.text));
        let rest: String = gpus.chain(groups).chain(later).collect();
        let mut all = self.gpus.values().chain([&self.machine]);
        let untried = match self.experimental && all.any(|n| *n >= 3) {
            true => ", experimental",
            false => "",
        };
        format!("stage {} ({}){untried}{rest}", self.machine, self.name)
    }
}

/// The state while gshare is off.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct OffView {
    /// Since when, Unix milliseconds.
    pub since_ms: u64,
    /// End, Unix milliseconds; absent: until an administrator switches it on.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub until_ms: Option<u64>,
    /// Name of the administrator.
    pub by: String,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum GpuState {
    /// Answers.
    #[default]
    Ok,
    /// Fell off the bus or answers "GPU is lost".
    Lost,
    /// Its driver calls hang: figures are absent.
    Hung,
    /// gshare has closed it for an administrator: figures are absent.
    Released,
}

#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct GpuView {
    /// Index in NVML order.
    pub index: u32,
    /// `GPU-...`.
    pub uuid: String,
    /// Full name, `NVIDIA GeForce RTX 4090`.
    pub model: String,
    /// Short name, `RTX 4090`.
    pub short: String,
    /// How it is shared: `timeslice`, `mps`, `auto`, `exclusive`, `mig`.
    pub mode: String,
    /// The mode that it gets once no claim holds a part of it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub mode_wanted: Option<String>,
    pub state: GpuState,
    /// An administrator has drained it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub drain: Option<DrainView>,
    /// For an instance (MIG): the fraction of its GPU.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub instance: Option<InstanceView>,
    pub sms: Option<u32>,
    /// Physical bytes.
    pub mem_total: Option<u64>,
    /// Bytes that claims can divide.
    pub mem_allocatable: Option<u64>,
    /// Bytes in use by all programs, by the driver.
    pub mem_used: Option<u64>,
    /// Claimed bytes.
    pub mem_claimed: u64,
    /// Bytes charged to claims now.
    pub mem_charged: Option<u64>,
    /// Bytes used by processes without a claim.
    pub mem_unclaimed: Option<u64>,
    /// Claimed fraction of the SMs, 0 to 1.
    pub sm_claimed: f64,
    /// Largest size that the viewer would get here at once (memory and SMs), 0 to 1.
    pub claimable: f64,
    /// The claim for which the rest is planned, and its owner: `c7 bio`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub planned_for: Option<String>,
    /// Percent of SMs active, averaged over time.
    pub sm_active: Option<Figure>,
    /// Resident warps as a percentage of the maximum.
    pub sm_occupancy: Option<Figure>,
    /// Percent of time with any kernel running.
    pub time_busy: Option<Figure>,
    /// SM activity in percent of the GPU that no claim accounts for; absent without counters of the GPU.
    #[serde(default)]
    pub sm_unattributed: Option<Figure>,
    /// The same for occupancy.
    #[serde(default)]
    pub occupancy_unattributed: Option<Figure>,
    /// Percent of time in which the tensor cores work.
    #[serde(default)]
    pub tensor_active: Option<Figure>,
    /// Percent of the memory's bandwidth in use.
    #[serde(default)]
    pub dram_active: Option<Figure>,
    /// Bytes per second into the GPU over PCIe.
    #[serde(default)]
    pub pcie_rx: Option<Figure>,
    /// Bytes per second out of the GPU over PCIe.
    #[serde(default)]
    pub pcie_tx: Option<Figure>,
    /// Bytes per second into the GPU over NVLink.
    #[serde(default)]
    pub nvlink_rx: Option<Figure>,
    /// Bytes per second out of the GPU over NVLink.
    #[serde(default)]
    pub nvlink_tx: Option<Figure>,
    /// SM activity of the last minutes (or busy time if there is no better figure), oldest first, percent.
    #[serde(default)]
    pub history: Vec<Option<f32>>,
    pub temperature_c: Option<u32>,
    pub power_w: Option<f64>,
    pub power_limit_w: Option<f64>,
    /// Its health; absent if unknown.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub health: Option<HealthView>,
}

impl GpuView {
    /// Bytes for claims and for programs without one; absent if the driver does not report them.
    #[must_use]
    pub fn mem_whole(&self) -> Option<u64> {
        match self.mem_allocatable {
            Some(part) => Some(part + self.mem_unclaimed.unwrap_or(0)),
            None => self.mem_total,
        }
    }

    /// Whether programs without a claim hold more of its memory than a desktop does.
    #[must_use]
    pub fn is_used_without_claim(&self) -> bool {
        let outside = self.mem_unclaimed.unwrap_or(0);
        self.mem_whole()
            .is_some_and(|all| outside >= all.div_ceil(20).max(1))
    }

    /// Its fraction of a GPU, by SMs: 1 for a whole GPU, or if unknown.
    #[must_use]
    pub fn part_of_a_gpu(&self) -> f64 {
        self.instance.as_ref().map_or(1.0, |i| i.sm)
    }

    /// How the GPU is shared if not in the default way: `mps`, `timeslice to mps`.
    #[must_use]
    pub fn mode_shown(&self) -> Option<String> {
        match &self.mode_wanted {
            Some(wanted) => Some(format!("{} to {wanted}", self.mode)),
            None if matches!(self.mode.as_str(), "" | "timeslice") => None,
            None => Some(self.mode.clone()),
        }
    }
}

/// An instance (MIG) as a fraction of its GPU.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct InstanceView {
    /// UUID of the GPU.
    pub of: String,
    /// Its fraction of the GPU's SMs, 0 to 1.
    pub sm: f64,
}

/// A claim's part of one GPU.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct ClaimGpu {
    pub gpu: u32,
    pub uuid: String,
    /// Guaranteed fraction of the SMs, 0 to 1.
    pub sm_request: f64,
    /// Most of the SMs, 0 to 1.
    pub sm_limit: f64,
    /// SMs of its programs through MPS: read back if reported, otherwise by MPS's rounding.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub mps_sms: Option<Figure>,
    /// Processes that run beside MPS instead of through it: their SMs are not limited.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub beside_mps: Vec<u32>,
    /// Processes that use the GPU without gshare's library: neither memory limit nor turns apply to them.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub past_library: Vec<u32>,
    /// Processes whose launches cannot be counted (OptiX, OpenCL, Vulkan, OpenGL, kernels that start kernels), with
    /// more GPU time than was counted: their use is unknown, and not held against them.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub cannot_tell: Vec<u32>,
    /// Guaranteed bytes.
    pub mem_request: u64,
    /// Most bytes (the cap).
    pub mem_limit: u64,
    /// Bytes charged now (ledger: rounded to the driver's granularity, with context overhead).
    pub mem_charge: Option<u64>,
    /// Bytes that the driver uses for the claim beyond its allocations (modules, graphs, stack, heap); they count
    /// against the limit. Absent if there are none.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub mem_driver: Option<u64>,
    /// Bytes of the claim's processes, by the driver.
    pub mem_used: Option<u64>,
    /// Percent of the GPU's time of the claim's processes (driver's process utilisation).
    pub time_busy: Option<Figure>,
    /// Percent of SMs active through this claim.
    pub sm_active: Option<Figure>,
    /// Percent of warps resident through this claim.
    pub sm_occupancy: Option<Figure>,
    /// Percent of the GPU's time in which the claim's kernels ran, by the library's counters.
    #[serde(default)]
    pub time_got: Option<Figure>,
    /// Percent of the time in which a launch of the claim waited for its turn.
    #[serde(default)]
    pub throttled: Option<Figure>,
    /// Bytes per second that it copies to, from and on the GPU.
    #[serde(default)]
    pub copied: Option<Figure>,
    /// Kernel launches per second.
    #[serde(default)]
    pub launch_rate: Option<Figure>,
    /// Highest charge so far, bytes.
    #[serde(default)]
    pub mem_peak: Option<u64>,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum ClaimState {
    /// Its command runs.
    #[default]
    Running,
    /// Held without a command (`--hold`).
    Held,
    /// Its command has exited; remaining members still use the GPU.
    Ending,
}

/// A granted claim.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct ClaimView {
    /// `c3`.
    pub id: String,
    /// Name given by the user.
    pub name: Option<String>,
    pub uid: u32,
    pub user: String,
    pub project: String,
    /// `interactive`, `batch` or `inference`.
    pub class: String,
    /// The program, for display: `python train.py`.
    pub what: String,
    /// Full command line.
    pub command: Vec<String>,
    /// Pid of the command.
    pub pid: Option<u32>,
    /// `strict`, `cooperative`; `none` without a cap.
    pub caps: Caps,
    /// The cgroup of a claim on behalf, by the kernel's name.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cgroup: Option<String>,
    /// The Slurm job that it limits.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub slurm_job: Option<u32>,
    /// Hidden from other users: Slurm keeps jobs private.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub private: bool,
    /// A process without a claim that is accounted as one: it has no cap, holds what it uses, and ends with the
    /// process.
    #[serde(default)]
    pub adopted: bool,
    pub state: ClaimState,
    /// The state in words for the screen: `run`, `idle 41m`, `at limit`, `ends 16:05`.
    pub state_text: String,
    /// Over-use, as a sentence; absent if there is none.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub overuse: Option<String>,
    /// Announced action: `moves from GPU 1 to GPU 0 in 12s for c22`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub announced: Option<String>,
    /// Granted at, Unix milliseconds.
    pub since_ms: u64,
    /// End of the time limit, Unix milliseconds.
    pub ends_ms: Option<u64>,
    pub gpus: Vec<ClaimGpu>,
    /// Names of the containers that run in it.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub containers: Vec<String>,
    /// Live processes in the claim.
    pub members: Vec<u32>,
    /// Members that the driver lists on its GPUs.
    #[serde(default)]
    pub processes: Vec<ProcessView>,
    /// Kernel launches so far.
    pub launches: Option<u64>,
    /// Seconds since the last launch.
    pub idle_s: Option<u64>,
    /// How often an allocation was refused at the cap.
    pub refusals: u64,
    /// How its share of GPU time is enforced; absent if it is not.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub turns: Option<TurnsView>,
    /// Its identity besides the command: notebook, script, model.
    #[serde(default)]
    pub identity: Identity,
    /// Its place if not on its GPUs, and possible actions on it.
    #[serde(default)]
    pub place: PlaceView,
    /// Its idleness; absent if it is not watched.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub idle: Option<IdleView>,
    /// What it claimed and used since it was granted; absent before the first look.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub usage: Option<Usage>,
}

/// A word with its source. Users control such words: they are displayed, and nothing depends on them.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Named {
    /// The word.
    pub value: String,
    /// Its source: `JPY_SESSION_NAME of pid 77`.
    pub source: String,
}

/// Identity of a claim or process besides its command line.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Identity {
    /// Path of the notebook.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub notebook: Option<Named>,
    /// Running script or module: `train.py`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub script: Option<Named>,
    /// Model or checkpoint in its arguments.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub model: Option<Named>,
    /// The container or systemd unit that it runs in.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub unit: Option<Named>,
}

impl Identity {
    /// Whether nothing is known.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        *self == Self::default()
    }
}

/// A claim's share of GPU time, summed over its GPUs.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct TurnsView {
    /// Claims take turns on one of its GPUs now.
    pub contended: bool,
    /// Milliseconds of its turns so far, without time alone on the GPU.
    pub turns_ms: u64,
    /// Milliseconds for which launches of its present processes were delayed.
    pub held_back_ms: u64,
    /// A kernel that blocks one of its GPUs.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub stuck: Option<StuckView>,
}

/// A kernel that does not end while other claims have work.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct StuckView {
    /// Number of the claim that runs it.
    pub claim: u64,
    pub gpu: usize,
    /// Seconds since it began.
    pub seconds: u64,
}

impl StuckView {
    /// What it keeps from whom.
    #[must_use]
    pub fn told(&self) -> String {
        let span = show_duration(Duration::from_secs(self.seconds));
        messages::one_kernel(format!("c{}", self.claim), span, self.gpu)
    }
}

/// A process of a claim on one GPU, by the driver.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct ProcessView {
    pub pid: u32,
    pub gpu: u32,
    /// Bytes.
    pub mem_used: Option<u64>,
    /// Percent of the GPU's time.
    pub time_busy: Option<f64>,
    /// Command line.
    pub what: String,
}

/// Totals of a user.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct UserView {
    pub uid: u32,
    pub user: String,
    /// Claimed fractions of the SMs, summed, in GPUs: here and below an instance counts as its fraction of the GPU's
    /// SMs.
    pub claimed: f64,
    /// Used GPUs: SM activity of the user's claims, in GPUs; absent if it cannot be attributed.
    pub sm_used: Option<Figure>,
    /// SM occupancy of the user's claims, in GPUs.
    #[serde(default)]
    pub occupancy_used: Option<Figure>,
    /// GPU time of the user's claims, in GPUs.
    #[serde(default)]
    pub time_got: Option<Figure>,
    /// Throttled time of the user's most throttled claim, in percent.
    #[serde(default)]
    pub throttled: Option<Figure>,
    /// Bytes per second that the user's claims copy.
    #[serde(default)]
    pub copied: Option<Figure>,
    /// Claimed bytes.
    pub mem_claimed: u64,
    /// Bytes used by the user's claims.
    pub mem_used: Option<u64>,
    /// Sizes of waiting claims, in GPUs.
    pub waiting: f64,
    pub claims: u32,
    /// Sums over the last 24 hours; absent if unknown.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub day: Option<Usage>,
}

/// A GPU process without a claim.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct UnclaimedView {
    pub pid: u32,
    /// Owner's uid, if the process could be read.
    pub uid: Option<u32>,
    pub user: Option<String>,
    /// Command line.
    pub what: String,
    pub gpu: u32,
    /// Bytes, by the driver.
    pub mem_used: Option<u64>,
    /// Percent of the SMs that it keeps busy; known only if it is alone on a GPU with counters.
    #[serde(default)]
    pub sm_active: Option<Figure>,
    /// Graphics process (exempt).
    pub graphics: bool,
    /// Its identity besides its command line.
    #[serde(default)]
    pub identity: Identity,
}

/// An event.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Notice {
    /// When, Unix milliseconds.
    pub at_ms: u64,
    /// Claim it concerns.
    pub claim: Option<String>,
    pub text: String,
}

/// Advice: a true sentence and a command that works.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Advice {
    pub text: String,
    /// Command that acts on it.
    pub command: Option<String>,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_an_older_service_does_not_say_is_unknown() {
        let unset = |value: &serde_json::Value, names: &[&str]| {
            let mut value = value.clone();
            for name in names {
                value.as_object_mut().and_then(|all| all.remove(*name));
            }
            value
        };
        let part = serde_json::to_value(ClaimGpu::default()).unwrap_or_default();
        let part = unset(
            &part,
            &["time_got", "throttled", "copied", "launch_rate", "mem_peak"],
        );
        let part: ClaimGpu = serde_json::from_value(part).expect("an older claim");
        assert_eq!(
            (part.time_got, part.throttled, part.copied),
            (None, None, None)
        );
        assert_eq!((part.launch_rate, part.mem_peak), (None, None));
        let gpu = serde_json::to_value(GpuView::default()).unwrap_or_default();
        let gpu = unset(
            &gpu,
            &["sm_unattributed", "tensor_active", "dram_active", "pcie_rx"],
        );
        let gpu: GpuView = serde_json::from_value(gpu).expect("an older GPU");
        assert_eq!((gpu.sm_unattributed, gpu.tensor_active), (None, None));
        let user = serde_json::to_value(UserView::default()).unwrap_or_default();
        let user = unset(
            &user,
            &["occupancy_used", "time_got", "throttled", "copied"],
        );
        let user: UserView = serde_json::from_value(user).expect("an older user");
        assert_eq!((user.occupancy_used, user.time_got), (None, None));
    }
}
