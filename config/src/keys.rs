//! Every key of `gshare.toml`: its type, its form and its bounds. The defaults are in [`Config::default`].

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::time::Duration;

use gshare_core::class::Classes;
use gshare_core::mig::Layout;
use gshare_core::{Bytes, Class, Quota, Share};
use serde::{Deserialize, Serialize};

use crate::form::{
    AbsolutePath, AcceptOff, Auto, AutoOff, CgroupName, Cgroups, ClassWord, FileSize, Form, Gpus,
    HiddenBy, Limit, Memory as Size, NamesOf, Never, Off, Optional, Or, StageWord, Text, Time,
    UnclaimedWord, Whole,
};
use crate::idle::Idle;
use crate::types::{KernelLog, Listen, SlurmGpus, Wait, WorkHours};
use crate::words::{
    AutoShrink, ExcessTime, GpuMode, LaunchCaps, LogLevel, MpsShare, OnFault, Overuse, ShareRuns,
    Silent, Stage, Unclaimed,
};

/// Bounds of times, in milliseconds.
const SEC: u64 = 1000;
const MIN: u64 = 60 * SEC;
const HOUR: u64 = 60 * MIN;
const DAY: u64 = 24 * HOUR;
const WEEK: u64 = 7 * DAY;

/// The service's configuration.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "kebab-case")]
pub struct Config {
    pub service: Service,
    pub driver: Driver,
    pub devices: Devices,
    pub memory: Memory,
    pub defaults: Defaults,
    pub claims: Claims,
    pub advice: Advice,
    /// `[class]`: priority, preemption and rules by the hour.
    #[serde(rename = "class", with = "crate::classes")]
    pub classes: Classes,
    pub idle: Idle,
    pub sizes: Sizes,
    pub reclaim: Reclaim,
    pub cgroup: Cgroup,
    pub admin: Admin,
    pub history: History,
    pub metrics: Metrics,
    pub privacy: Privacy,
    pub containers: Containers,
    /// `[quotas]`, by party.
    #[serde(with = "crate::quotas")]
    pub quotas: Vec<Quota>,
    /// `[gpu]`, by index, UUID or `all`.
    #[serde(rename = "gpu")]
    pub gpus: BTreeMap<String, GpuKeys>,
    pub mps: Mps,
    pub stage: StageKeys,
    pub slurm: Slurm,
    pub policy: Policy,
    pub detach: Detach,
    pub launch: Launch,
    /// `[projects]`, by name.
    pub projects: BTreeMap<String, Project>,
}

/// The service itself. Where a path is `None` it depends on the mode: see [`crate::Paths`].
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "kebab-case")]
pub struct Service {
    /// `socket`: where clients connect.
    #[serde(with = "Or::<Auto, AbsolutePath>")]
    pub socket: Option<PathBuf>,
    /// `runtime-dir`: claim pages and staged libraries, gone after a reboot.
    #[serde(with = "Or::<Auto, AbsolutePath>")]
    pub runtime_dir: Option<PathBuf>,
    /// `state-dir`: journal and history.
    #[serde(with = "Or::<Auto, AbsolutePath>")]
    pub state_dir: Option<PathBuf>,
    /// `tick`: time between two looks at the GPUs.
    #[serde(with = "Time::<100, MIN>")]
    pub tick: Duration,
    /// `log`: least severity that is logged.
    pub log: LogLevel,
    /// `idle-connections`: most connections of one user that hold or await no claim.
    #[serde(with = "Whole::<1, 10_000>")]
    pub idle_connections: u32,
}

/// Paths of the driver's libraries; `None` searches like the dynamic linker.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "kebab-case")]
pub struct Driver {
    /// `libcuda`: `libcuda.so.1`.
    #[serde(with = "Or::<Auto, AbsolutePath>")]
    pub libcuda: Option<PathBuf>,
    /// `libnvidia-ml`: `libnvidia-ml.so.1`.
    #[serde(with = "Or::<Auto, AbsolutePath>")]
    pub libnvidia_ml: Option<PathBuf>,
    /// `kernel-log`: where the driver's errors are read beside NVML.
    #[serde(with = "Text")]
    pub kernel_log: KernelLog,
}

/// Device nodes and the filter on them.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "kebab-case")]
pub struct Devices {
    /// `dir`: where `nvidia0`, `nvidiactl` and `nvidia-uvm` are.
    #[serde(with = "AbsolutePath")]
    pub dir: PathBuf,
    /// `nvidia-major`: device major of the GPU nodes; `None` reads `/proc/devices`.
    #[serde(with = "Or::<Auto, Whole<1, 4095>>")]
    pub nvidia_major: Option<u32>,
    /// `uvm-major`: device major of `nvidia-uvm`; `None` reads `/proc/devices`.
    #[serde(with = "Or::<Auto, Whole<1, 4095>>")]
    pub uvm_major: Option<u32>,
    /// `caps-major`: device major of `nvidia-caps/nvidia-cap<N>`; `None` reads `/proc/devices`.
    #[serde(with = "Or::<Auto, Whole<1, 4095>>")]
    pub caps_major: Option<u32>,
    /// `mig-minors`: the driver's list of the minors of MIG instances.
    #[serde(with = "AbsolutePath")]
    pub mig_minors: PathBuf,
    /// `filter`: whether members may open only the devices of their grant, if the kernel supports it.
    #[serde(with = "AutoOff")]
    pub filter: bool,
}

/// Device memory that claims never get.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "kebab-case")]
pub struct Memory {
    /// `reserve`: bytes of each GPU.
    #[serde(with = "Size")]
    pub reserve: Bytes,
    /// `display-reserve`: bytes of a GPU that drives a display, instead of `reserve`.
    #[serde(with = "Size")]
    pub display_reserve: Bytes,
}

/// Defaults for claims.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "kebab-case")]
pub struct Defaults {
    /// `size-command`: GPUs of `gshare claim`.
    #[serde(with = "Gpus")]
    pub size_command: Share,
    /// `size-interactive`: GPUs of `gshare shell` and of every claim of class `interactive`.
    #[serde(with = "Gpus")]
    pub size_interactive: Share,
    /// `sm-limit`: limit of SMs, as a fraction of each GPU.
    #[serde(with = "Limit")]
    pub sm_limit: Share,
    /// `mem-limit-notebook`: fraction of a GPU's memory that a notebook may use while others leave it free.
    #[serde(with = "Limit")]
    pub mem_limit_notebook: Share,
    /// `class`: class of `gshare claim`.
    #[serde(with = "ClassWord")]
    pub class: Class,
    /// `wait`: how long a claim waits in the queue.
    #[serde(with = "Wait")]
    pub wait: Wait,
}

/// The life of claims.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "kebab-case")]
pub struct Claims {
    /// `leftover-grace`: how long processes that a command left behind may go without GPU use before the claim ends.
    #[serde(with = "Time::<0, DAY>")]
    pub leftover_grace: Duration,
    /// `lease-warning`: how long before the end of a time limit the owner is warned; zero: never.
    #[serde(with = "Time::<0, DAY>")]
    pub lease_warning: Duration,
    /// `lease-grace`: how long the processes of a claim whose time limit has ended may continue, to save their state.
    #[serde(with = "Time::<0, DAY>")]
    pub lease_grace: Duration,
    /// `kernel-grace`: how long the claim of a dead notebook kernel is kept for its restart.
    #[serde(with = "Time::<0, DAY>")]
    pub kernel_grace: Duration,
    /// `hide-gpus`: whether, without a device filter, gshare's library hides other GPUs from a claim instead of
    /// `CUDA_VISIBLE_DEVICES`, which would keep the driver from moving the claim.
    #[serde(rename = "hide-gpus", with = "HiddenBy")]
    pub hide_by_library: bool,
    /// `held-limit`: default time limit of a claim without a command.
    #[serde(with = "Or::<Never, Time<SEC, WEEK>>")]
    pub held_limit: Option<Duration>,
    /// `no-library`: whether users may start a command without gshare's library.
    pub no_library: bool,
}

/// Thresholds of advice.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "kebab-case")]
pub struct Advice {
    /// `idle-after`: a claim without a launch for this long gets the advice to release its GPU.
    #[serde(with = "Time::<SEC, WEEK>")]
    pub idle_after: Duration,
    /// `over-asked-after`: how long a claim is observed before a smaller size is suggested.
    #[serde(with = "Time::<SEC, WEEK>")]
    pub over_asked_after: Duration,
}

/// Experience from runs, and its use.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "kebab-case")]
pub struct Sizes {
    /// `auto-shrink`: what to do with unused sizes.
    pub auto_shrink: AutoShrink,
    /// `share-runs`: whose runs others may learn from.
    pub share_runs: ShareRuns,
    /// `first-look`: the period after which a claim without earlier runs gets its size from its use.
    #[serde(with = "Time::<SEC, DAY>")]
    pub first_look: Duration,
    /// `horizon`: how far ahead growth is reserved.
    #[serde(with = "Time::<SEC, DAY>")]
    pub horizon: Duration,
    /// `follow`: a size shrinks after a smaller need for this long.
    #[serde(with = "Time::<SEC, DAY>")]
    pub follow: Duration,
}

/// Making room for waiting claims.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "kebab-case")]
pub struct Reclaim {
    /// `enabled`: whether running claims may lose anything.
    pub enabled: bool,
    /// `spread`: whether claims that can burst start on idle GPUs and are moved together later.
    pub spread: bool,
    /// `countdown`: time between the announcement and the action.
    #[serde(with = "Time::<0, HOUR>")]
    pub countdown: Duration,
    /// `keep`: how long `gshare keep` postpones the action.
    #[serde(with = "Time::<0, DAY>")]
    pub keep: Duration,
    /// `quiet`: time without arrivals and departures before running claims are spread again.
    #[serde(with = "Time::<0, DAY>")]
    pub quiet: Duration,
    /// `host-ram`: maximum percentage of the host's memory for all offloaded claims together.
    #[serde(with = "Whole::<0, 95>")]
    pub host_ram: u32,
    /// `requeue`: whether commands claimed with `--requeue` may be ended and started again.
    pub requeue: bool,
    /// `kill`: whether claims may be ended if nothing else is possible.
    pub kill: bool,
}

/// Control groups.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "kebab-case")]
pub struct Cgroup {
    /// `enabled`: whether claims get cgroups, if the kernel and the privileges allow it.
    #[serde(with = "AutoOff")]
    pub enabled: bool,
    /// `systemd`: whether claims live in systemd units, if systemd runs the machine.
    #[serde(with = "AutoOff")]
    pub systemd: bool,
    /// `root`: name of gshare's cgroup below the one that it may use.
    #[serde(with = "CgroupName")]
    pub root: String,
}

/// The groups that may use `gshare admin`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "kebab-case")]
pub struct Admin {
    /// `groups`: Unix groups whose members may, besides root.
    pub groups: Vec<String>,
}

/// The history of use.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "kebab-case")]
pub struct History {
    /// `work-hours`: when users are present; idleness at other times has the cause "off hours".
    #[serde(with = "Text")]
    pub work_hours: WorkHours,
    /// `max-size`: maximum bytes of the file; the oldest and finest points are dropped first.
    #[serde(with = "FileSize")]
    pub max_size: Bytes,
}

/// Metrics for Prometheus.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "kebab-case")]
pub struct Metrics {
    /// `listen`: where `/metrics` is served.
    #[serde(with = "Text")]
    pub listen: Listen,
}

/// What users can see about others.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "kebab-case")]
pub struct Privacy {
    /// `names`: whether users see the names of others' programs and notebooks.
    #[serde(rename = "names", with = "NamesOf")]
    pub names_of_all: bool,
}

/// Containers in claims.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "kebab-case")]
pub struct Containers {
    /// `cdi-dir`: where container programs look for device descriptions; `None` disables containers.
    #[serde(with = "Or::<Off, AbsolutePath>")]
    pub cdi_dir: Option<PathBuf>,
}

/// How one GPU is shared.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields, rename_all = "kebab-case")]
pub struct GpuKeys {
    /// `mode`: how claims share it.
    pub mode: GpuMode,
    /// `mig`: the instances that it is divided into, restored after a boot; `None` does not change it.
    #[serde(with = "Optional::<Text>", skip_serializing_if = "Option::is_none")]
    pub mig: Option<Layout>,
}

/// NVIDIA's Multi-Process Service.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "kebab-case")]
pub struct Mps {
    /// `control`: NVIDIA's `nvidia-cuda-mps-control`; `None` looks on `PATH`.
    #[serde(with = "Or::<Auto, AbsolutePath>")]
    pub control: Option<PathBuf>,
    /// `multi-user`: whether claims of several users may share one MPS server, and its failures.
    #[serde(with = "AcceptOff")]
    pub multi_user: bool,
    /// `share`: basis of a client's thread percentage.
    pub share: MpsShare,
    /// `on-fault`: what to do with the claims on a GPU whose MPS server failed.
    pub on_fault: OnFault,
}

/// How much gshare does.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "kebab-case")]
pub struct StageKeys {
    /// `machine`: the stage of all GPUs and users; `None` leaves it to `gshare admin stage`.
    #[serde(with = "Or::<Auto, StageWord>")]
    pub machine: Option<Stage>,
}

/// GPUs that Slurm allocates.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "kebab-case")]
pub struct Slurm {
    /// `gpus`: which of this machine's GPUs Slurm allocates.
    #[serde(with = "SlurmGpus")]
    pub gpus: SlurmGpus,
    /// `silent`: what happens to jobs with a part of a GPU while the service does not answer.
    pub silent: Silent,
    /// `burst`: partitions and QOS whose jobs may use more compute than their part while others leave it free.
    pub burst: Vec<String>,
}

/// Use without a claim, and use above claims.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "kebab-case")]
pub struct Policy {
    /// `unclaimed`: measure against GPU processes without a claim; `None` follows the stage.
    #[serde(with = "Or::<Auto, UnclaimedWord>")]
    pub unclaimed: Option<Unclaimed>,
    /// `deny-cgroups`: where `unclaimed = "deny"` applies; `None` finds the places where users' programs start.
    #[serde(with = "Or::<Auto, Cgroups>")]
    pub deny_cgroups: Option<Vec<String>>,
    /// `exempt-cgroups`: exceptions, besides the seat's graphical session.
    #[serde(with = "Cgroups")]
    pub exempt_cgroups: Vec<String>,
    /// `overuse`: measure against a claim with more use than is counted.
    pub overuse: Overuse,
    /// `overuse-grace`: time between the warning and the end of the offending process.
    #[serde(with = "Time::<0, DAY>")]
    pub overuse_grace: Duration,
    /// `overuse-tolerance`: bytes that each process may use above its limit.
    #[serde(with = "Size")]
    pub overuse_tolerance: Bytes,
    /// `excess-time`: who gets the GPU time beyond all sizes.
    pub excess_time: ExcessTime,
}

/// Offloading the GPU memory of running claims to host memory.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "kebab-case")]
pub struct Detach {
    /// `drain`: longest wait for calls in the driver to return before a claim is left alone.
    #[serde(with = "Time::<1, HOUR>")]
    pub drain: Duration,
    /// `timeout`: longest time for one step of the driver, in addition to the transfer of memory.
    #[serde(with = "Time::<100, HOUR>")]
    pub timeout: Duration,
    /// `host-reserve`: host memory that must stay free.
    #[serde(with = "Size")]
    pub host_reserve: Bytes,
}

/// How a claim's command starts.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "kebab-case")]
pub struct Launch {
    /// `caps`: how strictly a command is limited.
    pub caps: LaunchCaps,
    /// `launcher`: `gshare-exec`; `None` looks where it is installed.
    #[serde(with = "Or::<Auto, AbsolutePath>")]
    pub launcher: Option<PathBuf>,
}

/// The users and groups that may claim for a project.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields, rename_all = "kebab-case")]
pub struct Project {
    /// `users`: login names.
    pub users: Vec<String>,
    /// `groups`: Unix groups whose members count.
    pub groups: Vec<String>,
}

impl Config {
    /// The keys of a GPU: its UUID comes before its index, and that before `all`.
    #[must_use]
    pub fn gpu(&self, uuid: &str, index: usize) -> Option<&GpuKeys> {
        let mut keys = self.gpus.iter();
        let by_uuid =
            keys.find(|(name, _)| name.starts_with("GPU-") && uuid.starts_with(name.as_str()));
        by_uuid
            .map(|(_, keys)| keys)
            .or_else(|| self.gpus.get(&index.to_string()))
            .or_else(|| self.gpus.get("all"))
    }
}
