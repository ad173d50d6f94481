//! What the screen, `ps` and `status` show. Bytes are bytes, shares are parts of one GPU (0.5), percent
//! is 0 to 100, times are Unix milliseconds. A figure that is not known is absent, never 0.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use crate::admin::DrainView;
use crate::health::HealthView;
use crate::history::Usage;
use crate::place::{IdleView, PlaceView};
use crate::queue::QueueView;

/// Where a figure comes from.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Source {
    /// NVML GPM counters (Hopper and later).
    Gpm,
    /// DCGM's profiling counters.
    Dcgm,
    /// CUPTI's PM sampling.
    CuptiPm,
    /// Counters of the shim in the claim's page.
    Shim,
    /// NVML: the fraction of time with any kernel resident.
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
    /// Where it comes from.
    pub source: Source,
    /// An estimate: drawn with `~`.
    #[serde(default)]
    pub estimate: bool,
}

/// How members are held to their caps.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Caps {
    /// By the launcher: also against programs that try to get around it.
    Strict,
    /// By the library path: holds for programs that do not try to get around it.
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
    /// Host name.
    pub host: String,
    /// Driver version, `580.95.05`.
    pub driver: Option<String>,
    /// Whether the driver is the simulated one.
    pub simulated: bool,
    /// The strongest way of holding caps that is in force.
    pub caps: Caps,
    /// The service; absent in the read-only monitor.
    pub service: Option<ServiceView>,
    /// What could be claimed now; absent without a service.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub claimable_now: Option<ClaimableView>,
    /// GPUs by index.
    pub gpus: Vec<GpuView>,
    /// Granted claims by id.
    pub claims: Vec<ClaimView>,
    /// How many claims of others are left out, because Slurm keeps jobs private.
    #[serde(default, skip_serializing_if = "is_none")]
    pub hidden: usize,
    /// Waiting claims, head first.
    pub queue: Vec<QueueView>,
    /// Users with claims, waiting or unclaimed use.
    pub users: Vec<UserView>,
    /// GPU processes outside claims.
    pub unclaimed: Vec<UnclaimedView>,
    /// Latest things worth telling, newest first (refusals, ended claims, crashes).
    pub notices: Vec<Notice>,
    /// Sentences of advice that are true now.
    #[serde(default)]
    pub advice: Vec<Advice>,
}

fn is_none(count: &usize) -> bool {
    *count == 0
}

/// What the viewer would get at once: a claim of this size is granted, a larger one is not. Parts of GPUs.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct ClaimableView {
    /// Free parts, all GPUs together.
    pub sum: f64,
    /// By model.
    pub models: Vec<crate::ModelRoomView>,
}

/// The service itself.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct ServiceView {
    /// Version.
    pub version: String,
    /// `system` (root) or `user`.
    pub mode: String,
    /// Since when, Unix milliseconds.
    pub started_ms: u64,
    /// Whether claims have cgroups of their own.
    pub cgroups: bool,
    /// Whether the device filter is in force.
    pub device_filter: bool,
    /// Whether claims have the shim on their library path.
    pub shim: bool,
    /// uid of the service.
    pub uid: u32,
    /// Looks at the driver so far, one a tick: figures and over-use change with them.
    #[serde(default)]
    pub looks: u64,
    /// gshare is off: it limits, takes and refuses nothing.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub off: Option<OffView>,
    /// Slurm gives out GPUs of this machine.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub slurm: bool,
    /// How much gshare does; absent from a service before 0.2.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub stage: Option<StageView>,
}

/// The stages in force, 1 to 4. Of a GPU's and a user's the lower counts.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct StageView {
    /// Of every GPU without an entry.
    pub machine: u8,
    /// Its word: `observe`, `opt-in`, `reclaim` or `require`.
    pub name: String,
    /// Of other GPUs, by index.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub gpus: BTreeMap<u32, u8>,
    /// The most for the members of groups, by name.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub groups: BTreeMap<String, u8>,
    /// The key of the configuration that sets it; absent where `gshare admin stage` does.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub pinned: Option<String>,
    /// That stages 3 and 4 were not tried with this machine's driver.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub experimental: bool,
    /// That stage 4 keeps nobody from the GPUs here, why, and what to do about it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub no_effect: Option<String>,
    /// A change that was ordered for later.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub later: Option<LaterView>,
}

/// A change of the stage that comes into force at a time.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct LaterView {
    /// Unix milliseconds.
    pub from_ms: u64,
    /// In words, with the time as the machine's clock shows it.
    pub text: String,
}

impl StageView {
    /// `stage 3 (reclaim); GPU 6: 2; group students: at most 1`, and what comes later.
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

/// That gshare is off.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct OffView {
    /// Since when, Unix milliseconds.
    pub since_ms: u64,
    /// Until when, Unix milliseconds; absent: until an administrator switches it on.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub until_ms: Option<u64>,
    /// Name of the administrator.
    pub by: String,
}

/// State of a GPU.
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

/// One GPU.
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
    /// The mode that it gets once nobody holds a part of it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub mode_wanted: Option<String>,
    /// State.
    pub state: GpuState,
    /// An administrator has closed it to new claims.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub drain: Option<DrainView>,
    /// Of an instance (MIG): what it is a part of.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub instance: Option<InstanceView>,
    /// SMs.
    pub sms: Option<u32>,
    /// Physical bytes.
    pub mem_total: Option<u64>,
    /// Bytes that claims can divide.
    pub mem_allocatable: Option<u64>,
    /// Bytes in use by everybody, as the driver says.
    pub mem_used: Option<u64>,
    /// Bytes requested by claims (the guarantee).
    pub mem_claimed: u64,
    /// Bytes charged to claims now.
    pub mem_charged: Option<u64>,
    /// Bytes used by processes outside claims.
    pub mem_unclaimed: Option<u64>,
    /// Part of the SMs that claims requested, 0 to 1.
    pub sm_claimed: f64,
    /// Largest share that the viewer would get here at once (memory and SMs), 0 to 1.
    pub claimable: f64,
    /// For which claim more than that is planned, and whose it is: `c7 bio`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub planned_for: Option<String>,
    /// Percent of SMs active, averaged over time.
    pub sm_active: Option<Figure>,
    /// Resident warps over the maximum, percent.
    pub sm_occupancy: Option<Figure>,
    /// Percent of time with any kernel resident.
    pub time_busy: Option<Figure>,
    /// Part of the SM activity in percent of the GPU that no claim accounts for; absent without counters of the GPU.
    #[serde(default)]
    pub sm_unattributed: Option<Figure>,
    /// The same of the occupancy.
    #[serde(default)]
    pub occupancy_unattributed: Option<Figure>,
    /// Percent of time in which the tensor cores work.
    #[serde(default)]
    pub tensor_active: Option<Figure>,
    /// Percent of the memory's bandwidth in use.
    #[serde(default)]
    pub dram_active: Option<Figure>,
    /// Bytes a second into the GPU over PCIe.
    #[serde(default)]
    pub pcie_rx: Option<Figure>,
    /// Bytes a second out of the GPU over PCIe.
    #[serde(default)]
    pub pcie_tx: Option<Figure>,
    /// Bytes a second into the GPU over NVLink.
    #[serde(default)]
    pub nvlink_rx: Option<Figure>,
    /// Bytes a second out of the GPU over NVLink.
    #[serde(default)]
    pub nvlink_tx: Option<Figure>,
    /// Last minutes of SM activity (or time busy where there is no better figure), oldest first, percent.
    #[serde(default)]
    pub history: Vec<Option<f32>>,
    /// Degrees Celsius.
    pub temperature_c: Option<u32>,
    /// Watts.
    pub power_w: Option<f64>,
    /// Watts.
    pub power_limit_w: Option<f64>,
    /// How it is doing beside its load; absent where nothing is known of it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub health: Option<HealthView>,
}

impl GpuView {
    /// Bytes that claims and programs without one divide; absent where the driver does not say.
    #[must_use]
    pub fn mem_whole(&self) -> Option<u64> {
        match self.mem_allocatable {
            Some(part) => Some(part + self.mem_unclaimed.unwrap_or(0)),
            None => self.mem_total,
        }
    }

    /// What it is of a GPU, by SMs: 1 where it is no instance or nobody says.
    #[must_use]
    pub fn part_of_a_gpu(&self) -> f64 {
        self.instance.as_ref().map_or(1.0, |i| i.sm)
    }

    /// How the GPU is shared where that is not the common way: `mps`, `timeslice to mps`.
    #[must_use]
    pub fn mode_shown(&self) -> Option<String> {
        match &self.mode_wanted {
            Some(wanted) => Some(format!("{} to {wanted}", self.mode)),
            None if matches!(self.mode.as_str(), "" | "timeslice") => None,
            None => Some(self.mode.clone()),
        }
    }
}

/// What an instance (MIG) is of its GPU.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct InstanceView {
    /// UUID of the GPU.
    pub of: String,
    /// Its part of the GPU's SMs, 0 to 1.
    pub sm: f64,
}

/// A claim's part of one GPU.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct ClaimGpu {
    /// Index of the GPU.
    pub gpu: u32,
    /// UUID of the GPU.
    pub uuid: String,
    /// Guaranteed part of the SMs, 0 to 1.
    pub sm_request: f64,
    /// Most of the SMs, 0 to 1.
    pub sm_limit: f64,
    /// SMs that its programs have through MPS: read back where they told, else as MPS rounds.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub mps_sms: Option<Figure>,
    /// Processes that run beside MPS where they should be its clients: nothing limits their SMs.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub beside_mps: Vec<u32>,
    /// Processes that use the GPU without gshare's library: neither memory limit nor turns hold for them.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub past_library: Vec<u32>,
    /// Processes whose launches cannot be counted (OptiX, OpenCL, Vulkan, OpenGL, kernels that start kernels), with more GPU
    /// time than was counted: what they do is not known, and not held against them.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub cannot_tell: Vec<u32>,
    /// Guaranteed bytes.
    pub mem_request: u64,
    /// Most bytes (the cap).
    pub mem_limit: u64,
    /// Bytes charged now (ledger: rounded to the driver's granularity, with context overhead).
    pub mem_charge: Option<u64>,
    /// Bytes that the driver uses for the claim beyond what is allocated (modules, graphs, stack, heap); they count
    /// against the limit. Absent where there are none.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub mem_driver: Option<u64>,
    /// Bytes that the driver says the claim's processes use.
    pub mem_used: Option<u64>,
    /// Percent of the GPU's time that the claim's processes got (driver's process utilisation).
    pub time_busy: Option<Figure>,
    /// Percent of SMs active through this claim.
    pub sm_active: Option<Figure>,
    /// Percent of warps resident through this claim.
    pub sm_occupancy: Option<Figure>,
    /// Percent of the GPU's time in which the claim's kernels ran, by its own counters.
    #[serde(default)]
    pub time_got: Option<Figure>,
    /// Percent of the time in which some launch of the claim was held back for its turn.
    #[serde(default)]
    pub throttled: Option<Figure>,
    /// Bytes a second that it copies to, from and on the GPU.
    #[serde(default)]
    pub copied: Option<Figure>,
    /// Kernels that it launches a second.
    #[serde(default)]
    pub launch_rate: Option<Figure>,
    /// Highest charge so far, bytes.
    #[serde(default)]
    pub mem_peak: Option<u64>,
}

/// State of a claim.
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
    /// Owner.
    pub uid: u32,
    /// Owner's name.
    pub user: String,
    /// Project it counts for.
    pub project: String,
    /// `interactive`, `batch` or `inference`.
    pub class: String,
    /// What runs, for people: `python train.py`.
    pub what: String,
    /// Full command line.
    pub command: Vec<String>,
    /// Pid of the command.
    pub pid: Option<u32>,
    /// `strict`, `cooperative`; `none` for what has no cap.
    pub caps: Caps,
    /// The cgroup whose processes a claim on behalf stands for, by the kernel's name.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cgroup: Option<String>,
    /// The Slurm job that it limits.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub slurm_job: Option<u32>,
    /// Other users do not see it: Slurm keeps jobs private.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub private: bool,
    /// A process outside claims that is accounted as one: it has no cap, holds what it uses, and ends with the
    /// process.
    #[serde(default)]
    pub adopted: bool,
    /// State.
    pub state: ClaimState,
    /// The state in words for the screen: `run`, `idle 41m`, `at limit`, `ends 16:05`.
    pub state_text: String,
    /// It uses more than is counted, or what it does not hold: a sentence; absent where nothing is held against it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub overuse: Option<String>,
    /// What is announced for it: `moves from GPU 1 to GPU 0 in 12s for c22`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub announced: Option<String>,
    /// Granted at, Unix milliseconds.
    pub since_ms: u64,
    /// Lease end, Unix milliseconds.
    pub ends_ms: Option<u64>,
    /// Its GPUs.
    pub gpus: Vec<ClaimGpu>,
    /// Names of the containers that run in it.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub containers: Vec<String>,
    /// Live processes in the claim.
    pub members: Vec<u32>,
    /// Those of them that the driver sees on its GPUs.
    #[serde(default)]
    pub processes: Vec<ProcessView>,
    /// Kernel launches so far.
    pub launches: Option<u64>,
    /// Seconds since the last launch.
    pub idle_s: Option<u64>,
    /// How often an allocation was refused at the cap.
    pub refusals: u64,
    /// How its share of GPU time is held; absent where nothing holds it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub turns: Option<TurnsView>,
    /// What it is beside its command: notebook, script, model.
    #[serde(default)]
    pub identity: Identity,
    /// Where it is while it is not simply on its GPUs, and what can be done to it.
    #[serde(default)]
    pub place: PlaceView,
    /// For how long it does nothing; absent where that is not looked at.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub idle: Option<IdleView>,
    /// What it claimed and used since it was granted; absent where nothing was looked at yet.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub usage: Option<Usage>,
}

/// A word and where it is from: such words are what users say of themselves, good for a screen, not for decisions.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Named {
    /// The word.
    pub value: String,
    /// Where it is from: `JPY_SESSION_NAME of pid 77`.
    pub source: String,
}

/// What a claim or process is, beside its command line.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Identity {
    /// Path of the notebook.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub notebook: Option<Named>,
    /// Script or module that runs: `train.py`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub script: Option<Named>,
    /// Name of the model or checkpoint that its arguments give.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub model: Option<Named>,
    /// The container or the unit of systemd that it runs in.
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
    /// Milliseconds that its turns lasted so far; time alone on the GPU is not in it.
    pub turns_ms: u64,
    /// Milliseconds during which launches of its present processes were held back.
    pub held_back_ms: u64,
    /// A kernel that keeps one of its GPUs from being shared.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub stuck: Option<StuckView>,
}

/// A kernel that does not end while other claims have work.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct StuckView {
    /// Number of the claim that runs it.
    pub claim: u64,
    /// Index of the GPU.
    pub gpu: usize,
    /// Seconds since it began.
    pub seconds: u64,
}

/// A process of a claim on one GPU, by the driver's word.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct ProcessView {
    /// Process.
    pub pid: u32,
    /// Index of the GPU.
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
    /// uid.
    pub uid: u32,
    /// Name.
    pub user: String,
    /// Claimed parts of the SMs, summed, in GPUs: here and below an instance counts for its part of the GPU's SMs.
    pub claimed: f64,
    /// Used GPUs: SM activity of the user's claims, in GPUs; absent where it cannot be attributed.
    pub sm_used: Option<Figure>,
    /// SM occupancy of the user's claims, in GPUs.
    #[serde(default)]
    pub occupancy_used: Option<Figure>,
    /// Time that the user's claims got, in GPUs.
    #[serde(default)]
    pub time_got: Option<Figure>,
    /// Percent of the time in which the claim that was held back most was.
    #[serde(default)]
    pub throttled: Option<Figure>,
    /// Bytes a second that the user's claims copy.
    #[serde(default)]
    pub copied: Option<Figure>,
    /// Bytes requested.
    pub mem_claimed: u64,
    /// Bytes used by the user's claims.
    pub mem_used: Option<u64>,
    /// Requested parts of GPUs that wait.
    pub waiting: f64,
    /// Number of granted claims.
    pub claims: u32,
    /// Sums over the last 24 hours; absent while they are not known.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub day: Option<Usage>,
}

/// A GPU process outside claims.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct UnclaimedView {
    /// Process.
    pub pid: u32,
    /// Owner's uid, if the process could be read.
    pub uid: Option<u32>,
    /// Owner's name.
    pub user: Option<String>,
    /// Command line.
    pub what: String,
    /// Index of the GPU.
    pub gpu: u32,
    /// Bytes, as the driver says.
    pub mem_used: Option<u64>,
    /// Percent of the SMs that it keeps busy: known only where it has the GPU's counters to itself.
    #[serde(default)]
    pub sm_active: Option<Figure>,
    /// Graphics process (exempt).
    pub graphics: bool,
    /// What it is beside its command line.
    #[serde(default)]
    pub identity: Identity,
}

/// Something that happened.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Notice {
    /// When, Unix milliseconds.
    pub at_ms: u64,
    /// Claim it concerns.
    pub claim: Option<String>,
    /// Sentence.
    pub text: String,
}

/// Advice: a true sentence and a command that works.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Advice {
    /// Sentence.
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
