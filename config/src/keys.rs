//! Every key of `gshare.toml`, with its type, its default and its bounds.

mod admin;
mod advice;
mod quota;

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::time::Duration;

use gshare_core::class::Classes;
use gshare_core::{Bytes, Class, Quota, Share};
use toml::de::{DeTable, DeValue};

pub use admin::{Admin, Containers, Listen, Metrics};
pub use advice::Advice;
pub use quota::unpackable;

use crate::claims::Claims;
use crate::detach::Detach;
use crate::history::{History, KernelLog};
use crate::policy::Policy;
use crate::problem::Problem;
use crate::read::{self, Reader};
use crate::sharing::{self, GpuKeys, Mps};

/// The service's configuration.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Config {
    /// `[service]`
    pub service: Service,
    /// `[driver]`
    pub driver: Driver,
    /// `[devices]`
    pub devices: Devices,
    /// `[memory]`
    pub memory: Memory,
    /// `[defaults]`
    pub defaults: Defaults,
    /// `[claims]`
    pub claims: Claims,
    /// `[advice]`
    pub advice: Advice,
    /// `[class]`: priority, preemption and rules by the hour.
    pub classes: Classes,
    /// `[idle]`
    pub idle: crate::idle::Idle,
    /// `[sizes]`
    pub sizes: crate::sizes::Sizes,
    /// `[reclaim]`
    pub reclaim: crate::reclaim::Reclaim,
    /// `[cgroup]`
    pub cgroup: Cgroup,
    /// `[admin]`
    pub admin: Admin,
    /// `[history]`
    pub history: History,
    /// `[metrics]`
    pub metrics: Metrics,
    /// `[containers]`
    pub containers: Containers,
    /// `[quotas]`, by party.
    pub quotas: Vec<Quota>,
    /// `[gpu]`, by index, UUID or `all`.
    pub gpus: BTreeMap<String, GpuKeys>,
    /// `[mps]`
    pub mps: Mps,
    /// `[policy]`
    pub policy: Policy,
    /// `[detach]`
    pub detach: Detach,
    /// `[launch]`
    pub launch: Launch,
    /// `[projects]`, by name.
    pub projects: BTreeMap<String, Project>,
}

/// The service itself. Where a path is `None` it depends on the mode: see [`crate::Paths`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Service {
    /// `socket`: where clients connect.
    pub socket: Option<PathBuf>,
    /// `runtime-dir`: claim pages and staged libraries, gone after a reboot.
    pub runtime_dir: Option<PathBuf>,
    /// `state-dir`: journal and history.
    pub state_dir: Option<PathBuf>,
    /// `tick`: time between two looks at the GPUs.
    pub tick: Duration,
    /// `log`: least severity that is logged.
    pub log: LogLevel,
    /// `idle-connections`: most connections of one user that hold or await no claim.
    pub idle_connections: u32,
}

/// Least severity that is logged.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum LogLevel {
    /// Failures of the service.
    Error,
    /// Also what an administrator should know.
    Warn,
    /// Also claims coming and going.
    #[default]
    Info,
    /// Also every request.
    Debug,
    /// Everything.
    Trace,
}

impl LogLevel {
    /// The word in the file, also a filter directive of `tracing`.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Error => "error",
            Self::Warn => "warn",
            Self::Info => "info",
            Self::Debug => "debug",
            Self::Trace => "trace",
        }
    }
}

/// Where the driver's libraries are; `None` searches as the dynamic linker does.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Driver {
    /// `libcuda`: `libcuda.so.1`.
    pub libcuda: Option<PathBuf>,
    /// `libnvidia-ml`: `libnvidia-ml.so.1`.
    pub libnvidia_ml: Option<PathBuf>,
    /// `kernel-log`: where the driver's errors are read beside NVML.
    pub kernel_log: KernelLog,
}

/// Device nodes and the filter on them.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Devices {
    /// `dir`: where `nvidia0`, `nvidiactl` and `nvidia-uvm` are.
    pub dir: PathBuf,
    /// `nvidia-major`: device major of the GPU nodes; `None` reads `/proc/devices`.
    pub nvidia_major: Option<u32>,
    /// `uvm-major`: device major of `nvidia-uvm`; `None` reads `/proc/devices`.
    pub uvm_major: Option<u32>,
    /// `caps-major`: device major of `nvidia-caps/nvidia-cap<N>`; `None` reads `/proc/devices`.
    pub caps_major: Option<u32>,
    /// `mig-minors`: the driver's list of the minors of MIG instances.
    pub mig_minors: PathBuf,
    /// `filter`: whether members may open only what they were granted, where the kernel can do that.
    pub filter: bool,
}

/// Device memory that is never given to claims.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Memory {
    /// `reserve`: bytes of each GPU.
    pub reserve: Bytes,
    /// `display-reserve`: bytes of a GPU that drives a display, instead of `reserve`.
    pub display_reserve: Bytes,
}

/// What a claim gets where its owner says nothing.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Defaults {
    /// `size-command`: GPUs of `gshare claim`.
    pub size_command: Share,
    /// `size-interactive`: GPUs of `gshare shell` and of every claim of class `interactive`.
    pub size_interactive: Share,
    /// `sm-limit`: most SMs, as a part of each GPU.
    pub sm_limit: Share,
    /// `mem-limit-notebook`: most of a GPU's memory that a notebook may use while others leave it free.
    pub mem_limit_notebook: Share,
    /// `class`: class of `gshare claim`.
    pub class: Class,
    /// `wait`: how long a claim waits in the queue.
    pub wait: Wait,
}

/// How long a claim waits in the queue.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Wait {
    /// Until it is granted: `"forever"`.
    #[default]
    Forever,
    /// Not at all: `"no"`.
    No,
    /// At most this long.
    For(Duration),
}

/// Control groups.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Cgroup {
    /// `enabled`: whether claims get cgroups, where the kernel and the privilege allow.
    pub enabled: bool,
    /// `systemd`: whether claims live in units of systemd, where it runs the machine.
    pub systemd: bool,
    /// `root`: name of gshare's group under the cgroup that it may use.
    pub root: String,
}

/// How a claim's command is started.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Launch {
    /// `caps`: how firmly a command is held.
    pub caps: LaunchCaps,
    /// `launcher`: `gshare-exec`; `None` looks where it is installed.
    pub launcher: Option<PathBuf>,
}

/// How firmly a claim's command is held.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum LaunchCaps {
    /// Strict where the launcher is installed and this is the system service, else by the library path.
    #[default]
    Auto,
    /// By the launcher or not at all.
    Strict,
    /// By the library path.
    Preload,
}

impl LaunchCaps {
    /// The word in the file.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Auto => "auto",
            Self::Strict => "strict",
            Self::Preload => "preload",
        }
    }
}

/// The users and groups that may claim for a project.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Project {
    /// `users`: login names.
    pub users: Vec<String>,
    /// `groups`: Unix groups whose members count.
    pub groups: Vec<String>,
}

impl Default for Service {
    fn default() -> Self {
        Self {
            socket: None,
            runtime_dir: None,
            state_dir: None,
            tick: Duration::from_secs(1),
            log: LogLevel::Info,
            idle_connections: 64,
        }
    }
}

impl Default for Devices {
    fn default() -> Self {
        Self {
            dir: PathBuf::from("/dev"),
            nvidia_major: None,
            uvm_major: None,
            caps_major: None,
            mig_minors: PathBuf::from("/proc/driver/nvidia-caps/mig-minors"),
            filter: true,
        }
    }
}

impl Default for Memory {
    fn default() -> Self {
        Self {
            reserve: Bytes::mib(512),
            display_reserve: Bytes::mib(1536),
        }
    }
}

impl Default for Defaults {
    fn default() -> Self {
        Self {
            size_command: Share::from_milli(500),
            size_interactive: Share::from_milli(250),
            sm_limit: Share::ONE,
            mem_limit_notebook: Share::from_milli(800),
            class: Class::Batch,
            wait: Wait::Forever,
        }
    }
}

impl Default for Cgroup {
    fn default() -> Self {
        Self {
            enabled: true,
            systemd: true,
            root: "gshare".to_owned(),
        }
    }
}

const LEVELS: &[(&str, LogLevel)] = &[
    ("error", LogLevel::Error),
    ("warn", LogLevel::Warn),
    ("info", LogLevel::Info),
    ("debug", LogLevel::Debug),
    ("trace", LogLevel::Trace),
];
const AUTO_OFF: &[(&str, bool)] = &[("auto", true), ("off", false)];
const LAUNCH_CAPS: &[(&str, LaunchCaps)] = &[
    ("auto", LaunchCaps::Auto),
    ("strict", LaunchCaps::Strict),
    ("preload", LaunchCaps::Preload),
];
pub(crate) const CLASSES: &[(&str, Class)] = &[
    ("interactive", Class::Interactive),
    ("batch", Class::Batch),
    ("inference", Class::Inference),
];

const MS: Duration = Duration::from_millis(1);
const SEC: Duration = Duration::from_secs(1);
const DAY: Duration = Duration::from_secs(86_400);

impl Config {
    /// Reads the text of a file; `file` is only named in problems.
    ///
    /// # Errors
    /// All problems, in the order of the file.
    pub fn check(text: &str, file: &Path) -> Result<Self, Vec<Problem>> {
        Reader::read(text, file, Self::walk)
    }

    /// Every key, with its section: `("service", "tick")`. Keys of a project stand under `projects.NAME`.
    #[must_use]
    pub fn keys() -> Vec<(String, &'static str)> {
        Reader::keys(|reader, root| {
            Self::walk(reader, root);
        })
    }

    fn walk<'t>(reader: &mut Reader<'t>, root: &DeTable<'t>) -> Self {
        let config = Self {
            service: Service::walk(reader, root),
            driver: Driver::walk(reader, root),
            devices: Devices::walk(reader, root),
            memory: Memory::walk(reader, root),
            defaults: Defaults::walk(reader, root),
            claims: Claims::walk(reader, root),
            advice: Advice::walk(reader, root),
            classes: crate::classes::walk(reader, root),
            idle: crate::idle::Idle::walk(reader, root),
            sizes: crate::sizes::Sizes::walk(reader, root),
            reclaim: crate::reclaim::Reclaim::walk(reader, root),
            cgroup: Cgroup::walk(reader, root),
            admin: Admin::walk(reader, root),
            history: History::walk(reader, root),
            metrics: Metrics::walk(reader, root),
            containers: Containers::walk(reader, root),
            quotas: quota::walk(reader, root),
            gpus: sharing::walk_gpus(reader, root),
            mps: Mps::walk(reader, root),
            policy: Policy::walk(reader, root),
            detach: Detach::walk(reader, root),
            launch: Launch::walk(reader, root),
            projects: walk_projects(reader, root),
        };
        reader.no_other_sections(root);
        config
    }
}

impl Service {
    fn walk<'t>(reader: &mut Reader<'t>, root: &DeTable<'t>) -> Self {
        let d = Self::default();
        let mut s = reader.section(root, "service");
        let value = Self {
            socket: s.get("socket", d.socket, read::auto_or_path),
            runtime_dir: s.get("runtime-dir", d.runtime_dir, read::auto_or_path),
            state_dir: s.get("state-dir", d.state_dir, read::auto_or_path),
            tick: s.get("tick", d.tick, read::time(100 * MS..=60 * SEC)),
            log: s.get("log", d.log, read::word(LEVELS)),
            idle_connections: s.get(
                "idle-connections",
                d.idle_connections,
                read::whole(1..=10_000),
            ),
        };
        s.finish();
        value
    }
}

impl Driver {
    fn walk<'t>(reader: &mut Reader<'t>, root: &DeTable<'t>) -> Self {
        let mut s = reader.section(root, "driver");
        let value = Self {
            libcuda: s.get("libcuda", None, read::auto_or_path),
            libnvidia_ml: s.get("libnvidia-ml", None, read::auto_or_path),
            kernel_log: s.get("kernel-log", KernelLog::default(), KernelLog::read),
        };
        s.finish();
        value
    }
}

impl Devices {
    fn walk<'t>(reader: &mut Reader<'t>, root: &DeTable<'t>) -> Self {
        let d = Self::default();
        let mut s = reader.section(root, "devices");
        let value = Self {
            dir: s.get("dir", d.dir, read::path),
            nvidia_major: s.get("nvidia-major", d.nvidia_major, major),
            uvm_major: s.get("uvm-major", d.uvm_major, major),
            caps_major: s.get("caps-major", d.caps_major, major),
            mig_minors: s.get("mig-minors", d.mig_minors, read::path),
            filter: s.get("filter", d.filter, read::word(AUTO_OFF)),
        };
        s.finish();
        value
    }
}

impl Memory {
    fn walk<'t>(reader: &mut Reader<'t>, root: &DeTable<'t>) -> Self {
        let d = Self::default();
        let mut s = reader.section(root, "memory");
        let value = Self {
            reserve: s.get("reserve", d.reserve, read::size),
            display_reserve: s.get("display-reserve", d.display_reserve, read::size),
        };
        if value.display_reserve < value.reserve {
            let key = if s.has("display-reserve") {
                "display-reserve"
            } else {
                "reserve"
            };
            s.complain(
                key,
                format!(
                    "`display-reserve` ({}) is below `reserve` ({}), but a display needs memory besides",
                    value.display_reserve, value.reserve
                ),
                Some("raise display-reserve to at least reserve".to_owned()),
            );
        }
        s.finish();
        value
    }
}

impl Defaults {
    fn walk<'t>(reader: &mut Reader<'t>, root: &DeTable<'t>) -> Self {
        let d = Self::default();
        let mut s = reader.section(root, "defaults");
        let value = Self {
            size_command: s.get("size-command", d.size_command, read::gpus),
            size_interactive: s.get("size-interactive", d.size_interactive, read::gpus),
            sm_limit: s.get("sm-limit", d.sm_limit, read::limit),
            mem_limit_notebook: s.get("mem-limit-notebook", d.mem_limit_notebook, read::limit),
            class: s.get("class", d.class, read::word(CLASSES)),
            wait: s.get("wait", d.wait, wait),
        };
        s.finish();
        value
    }
}

impl Cgroup {
    fn walk<'t>(reader: &mut Reader<'t>, root: &DeTable<'t>) -> Self {
        let d = Self::default();
        let mut s = reader.section(root, "cgroup");
        let value = Self {
            enabled: s.get("enabled", d.enabled, read::word(AUTO_OFF)),
            systemd: s.get("systemd", d.systemd, read::word(AUTO_OFF)),
            root: s.get("root", d.root, cgroup_name),
        };
        s.finish();
        value
    }
}

impl Launch {
    fn walk<'t>(reader: &mut Reader<'t>, root: &DeTable<'t>) -> Self {
        let mut s = reader.section(root, "launch");
        let value = Self {
            caps: s.get("caps", LaunchCaps::Auto, read::word(LAUNCH_CAPS)),
            launcher: s.get("launcher", None, read::auto_or_path),
        };
        s.finish();
        value
    }
}

fn walk_projects<'t>(reader: &mut Reader<'t>, root: &DeTable<'t>) -> BTreeMap<String, Project> {
    let mut projects = BTreeMap::new();
    let section = reader.section(root, "projects");
    section.named("NAME", |name, s| {
        let project = Project {
            users: s.get("users", Vec::new(), read::texts),
            groups: s.get("groups", Vec::new(), read::texts),
        };
        if s.is_sound() && project.users.is_empty() && project.groups.is_empty() {
            s.complain(
                "",
                format!("nobody may claim for project `{name}`"),
                Some("add users = [\"...\"] or groups = [\"...\"]".to_owned()),
            );
        }
        if s.exists() {
            projects.insert(name.to_owned(), project);
        }
    });
    projects
}

fn major(value: &DeValue<'_>) -> Result<Option<u32>, String> {
    match value {
        DeValue::String(s) if s == "auto" => Ok(None),
        other => read::whole(1..=4095)(other)
            .map(Some)
            .map_err(|e| format!("{e}, or \"auto\"")),
    }
}

fn wait(value: &DeValue<'_>) -> Result<Wait, String> {
    match value.as_str() {
        Some("forever") => Ok(Wait::Forever),
        Some("no") => Ok(Wait::No),
        _ => read::time(SEC..=365 * DAY)(value)
            .map(Wait::For)
            .map_err(|e| format!("{e}; \"forever\" and \"no\" are possible too")),
    }
}

fn cgroup_name(value: &DeValue<'_>) -> Result<String, String> {
    let name = read::text(value)?;
    let plain = |c: char| c.is_ascii_alphanumeric() || "-_.".contains(c);
    if name.is_empty() || name.starts_with('.') || !name.chars().all(plain) {
        return Err(format!(
            "`{name}` is not a cgroup name; expected letters, digits, `-`, `_` and `.` only"
        ));
    }
    Ok(name)
}
