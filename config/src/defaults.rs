//! Default values.

use std::collections::BTreeMap;
use std::time::Duration;

use gshare_core::class::Classes;
use gshare_core::machine::ReclaimRules;
use gshare_core::{Bytes, Class, Share};

use crate::keys::{
    Admin, Advice, Cgroup, Claims, Config, Containers, Defaults, Detach, Devices, Driver, History,
    Launch, Memory, Metrics, Mps, Policy, Privacy, Reclaim, Service, Sizes, Slurm, StageKeys,
};
use crate::{
    AutoShrink, ExcessTime, Idle, KernelLog, LaunchCaps, Listen, LogLevel, MpsShare, NoDetach,
    OnFault, Overuse, ShareRuns, Silent, SlurmGpus, Wait, WorkHours,
};

const SEC: Duration = Duration::from_secs(1);
const MIN: Duration = Duration::from_secs(60);

impl Default for Config {
    /// The default of every key; a file overrides them.
    fn default() -> Self {
        let rules = ReclaimRules::default();
        Self {
            service: Service {
                socket: None,
                runtime_dir: None,
                state_dir: None,
                tick: SEC,
                log: LogLevel::Info,
                idle_connections: 64,
            },
            driver: Driver {
                libcuda: None,
                libnvidia_ml: None,
                kernel_log: KernelLog::Auto,
            },
            devices: Devices {
                dir: "/dev".into(),
                nvidia_major: None,
                uvm_major: None,
                caps_major: None,
                mig_minors: "/proc/driver/nvidia-caps/mig-minors".into(),
                filter: true,
            },
            memory: Memory {
                reserve: Bytes::mib(512),
                display_reserve: Bytes::mib(1536),
            },
            defaults: Defaults {
                size_command: Share::from_milli(500),
                size_interactive: Share::from_milli(250),
                sm_limit: Share::ONE,
                mem_limit_notebook: Share::from_milli(800),
                class: Class::Batch,
                wait: Wait::Forever,
            },
            claims: Claims {
                leftover_grace: 30 * SEC,
                lease_warning: 10 * MIN,
                lease_grace: 30 * SEC,
                kernel_grace: 30 * SEC,
                hide_by_library: false,
                held_limit: Some(120 * MIN),
                no_library: true,
            },
            advice: Advice {
                idle_after: 20 * MIN,
                over_asked_after: 30 * MIN,
            },
            classes: Classes::default(),
            idle: Idle {
                warn: Some(20 * MIN),
                detach: Some(30 * MIN),
                always: None,
                no_detach: NoDetach::Warn,
                rules: Vec::new(),
            },
            sizes: Sizes {
                auto_shrink: AutoShrink::Advise,
                share_runs: ShareRuns::None,
                first_look: MIN,
                horizon: 10 * MIN,
                follow: 20 * SEC,
            },
            reclaim: Reclaim {
                enabled: rules.enabled,
                spread: true,
                countdown: rules.countdown,
                keep: rules.keep,
                quiet: rules.quiet,
                host_ram: 50,
                requeue: rules.requeue,
                kill: rules.kill,
            },
            cgroup: Cgroup {
                enabled: true,
                systemd: true,
                root: "gshare".to_owned(),
            },
            admin: Admin { groups: Vec::new() },
            history: History {
                work_hours: WorkHours::default(),
                max_size: Bytes::mib(200),
            },
            metrics: Metrics {
                listen: Listen::Off,
            },
            privacy: Privacy {
                names_of_all: false,
            },
            containers: Containers {
                cdi_dir: Some("/run/cdi".into()),
            },
            quotas: Vec::new(),
            gpus: BTreeMap::new(),
            mps: Mps {
                control: None,
                multi_user: false,
                share: MpsShare::Request,
                on_fault: OnFault::End,
            },
            stage: StageKeys { machine: None },
            slurm: Slurm {
                gpus: SlurmGpus::None,
                silent: Silent::Drain,
                burst: Vec::new(),
            },
            policy: Policy {
                unclaimed: None,
                deny_cgroups: None,
                exempt_cgroups: Vec::new(),
                overuse: Overuse::Warn,
                overuse_grace: MIN,
                overuse_tolerance: Bytes::mib(512),
                excess_time: ExcessTime::Equal,
            },
            detach: Detach {
                drain: 5 * SEC,
                timeout: 30 * SEC,
                host_reserve: Bytes::gib(2),
            },
            launch: Launch {
                caps: LaunchCaps::Auto,
                launcher: None,
            },
            projects: BTreeMap::new(),
        }
    }
}
