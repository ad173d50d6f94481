//! The exported metrics. GPU metrics have the names and units of NVIDIA's DCGM exporter, so that its dashboards work;
//! metrics that only gshare has begin with `gshare_`.

use gshare_core::{Quota, Share};
use gshare_proto::{GpuView, Snapshot};

use super::ledger::{SM_OCCUPANCY_HELP, part, value};
use super::page::Page;
use super::{About, COUNTER, GAUGE, Metrics};
use crate::daemon::world::World;

const MIB: f64 = 1_048_576.0;

/// The DCGM exporter's families, as far as NVML has them. Memory is in MiB, power in W; profiling metrics are 0 to 1.
pub(super) fn dcgm(page: &mut Page, world: &World<'_>, snapshot: &Snapshot) {
    type Read<'a> = Box<dyn Fn(usize, &GpuView) -> Option<f64> + 'a>;
    let reading = |g: usize| world.gpus.reading(g);
    let free = move |g: usize| {
        let r = reading(g)?;
        let free = r.mem_total?.checked_sub(r.mem_used?)?;
        free.checked_sub(r.mem_reserved?).map(|b| b as f64 / MIB)
    };
    let families: [(&str, &str, Read<'_>); 8] = [
        (
            "DCGM_FI_DEV_GPU_UTIL",
            "Percentage of time in which at least one kernel was on the GPU; does not say how many SMs were busy.",
            Box::new(|_, v| value(v.time_busy)),
        ),
        (
            "DCGM_FI_DEV_FB_USED",
            "Device memory used (in MiB).",
            Box::new(|_, v| v.mem_used.map(|b| b as f64 / MIB)),
        ),
        (
            "DCGM_FI_DEV_FB_FREE",
            "Device memory free (in MiB).",
            Box::new(move |g, _| free(g)),
        ),
        (
            "DCGM_FI_DEV_FB_TOTAL",
            "Device memory (in MiB).",
            Box::new(|_, v| v.mem_total.map(|b| b as f64 / MIB)),
        ),
        (
            "DCGM_FI_DEV_GPU_TEMP",
            "GPU temperature (in C).",
            Box::new(|_, v| v.temperature_c.map(f64::from)),
        ),
        (
            "DCGM_FI_DEV_POWER_USAGE",
            "Power draw (in W).",
            Box::new(|_, v| v.power_w),
        ),
        (
            "DCGM_FI_PROF_SM_ACTIVE",
            "Part of the SMs with a warp, averaged over time; absent where the GPU does not count it.",
            Box::new(|_, v| part(v.sm_active.filter(|f| !f.estimate))),
        ),
        (
            "DCGM_FI_PROF_SM_OCCUPANCY",
            SM_OCCUPANCY_HELP,
            Box::new(|_, v| part(v.sm_occupancy.filter(|f| !f.estimate))),
        ),
    ];
    let driver = snapshot.driver.as_deref().unwrap_or_default();
    for (name, help, read) in families {
        page.family(name, GAUGE, help);
        for (g, gpu) in snapshot.gpus.iter().enumerate() {
            let index = gpu.index.to_string();
            let minor = world.gpus.get(g).and_then(|g| g.minor).unwrap_or(gpu.index);
            let bus = world
                .gpus
                .last_reading(g)
                .and_then(|r| r.pci_bus_id.clone());
            let labels = [
                ("gpu", index.as_str()),
                ("UUID", &gpu.uuid),
                ("pci_bus_id", bus.as_deref().unwrap_or_default()),
                ("device", &format!("nvidia{minor}")),
                ("modelName", &gpu.model),
                ("Hostname", &snapshot.host),
                ("DCGM_FI_DRIVER_VERSION", driver),
            ];
            page.sample(name, &labels, read(g, gpu));
        }
    }
}

pub(super) fn service(
    page: &mut Page,
    stats: &Metrics,
    world: &World<'_>,
    snapshot: &Snapshot,
    about: &About,
) {
    let now = world.now.unix_ms;
    let live: u64 = snapshot.claims.iter().map(|c| c.refusals).sum();
    let refusals_ever = stats.past_refusals.saturating_add(live);
    let since = |ms: u64| now.saturating_sub(ms) as f64 / 1000.0;
    page.family("gshare_build_info", GAUGE, "The running service.");
    let labels = [
        ("version", env!("CARGO_PKG_VERSION")),
        ("mode", world.host.mode.name()),
        ("simulated", if about.simulated { "true" } else { "false" }),
    ];
    page.sample("gshare_build_info", &labels, Some(1.0));
    let start = about.started_ms as f64 / 1000.0;
    for (name, kind, help, value) in [
        (
            "gshare_start_time_seconds",
            GAUGE,
            "When the service started, Unix time.",
            Some(start),
        ),
        (
            "gshare_starts_total",
            COUNTER,
            "Starts of the service, as counted in its journal.",
            Some(about.epoch as f64),
        ),
        (
            "gshare_sample_age_seconds",
            GAUGE,
            "Age of the newest reading of the GPUs.",
            world
                .gpus
                .sample
                .as_ref()
                .map(|s| s.taken.elapsed().as_secs_f64()),
        ),
        (
            "gshare_unwritten_ends",
            GAUGE,
            "Ended claims not yet written to the journal; above 0 the disk may be full.",
            Some(about.unwritten as f64),
        ),
        (
            "gshare_claims",
            GAUGE,
            "Granted claims.",
            Some(snapshot.claims.len() as f64),
        ),
        (
            "gshare_queue_length",
            GAUGE,
            "Waiting claims.",
            Some(snapshot.queue.len() as f64),
        ),
        (
            "gshare_queue_oldest_seconds",
            GAUGE,
            "How long the longest waiting claim has waited; absent when none waits.",
            snapshot.queue.iter().map(|q| q.since_ms).min().map(since),
        ),
        (
            "gshare_granted_total",
            COUNTER,
            "Claims granted since the service started.",
            Some(stats.granted as f64),
        ),
        (
            "gshare_refused_total",
            COUNTER,
            "Claims refused since the service started: too big, or not available in time.",
            Some(stats.refused as f64),
        ),
        (
            "gshare_ended_total",
            COUNTER,
            "Claims that ended since the service started.",
            Some(stats.ended as f64),
        ),
        (
            "gshare_leases_over_total",
            COUNTER,
            "Claims that reached their time limit since the service started.",
            Some(stats.leases_over as f64),
        ),
        (
            "gshare_caps_written_total",
            COUNTER,
            "Changes of memory limits since the service started, to lend memory or take it back.",
            Some(stats.caps as f64),
        ),
        (
            "gshare_allocation_refusals_total",
            COUNTER,
            "Allocations refused at claims' memory limits since the service started.",
            Some(refusals_ever as f64),
        ),
    ] {
        page.single(name, kind, help, value);
    }
    let waits = "Time between asking for a claim and its grant.";
    page.histogram("gshare_queue_wait_seconds", waits, &stats.waits);
    let decisions = "Time of one scheduling decision, for a request, a timer tick or new readings.";
    page.histogram("gshare_decision_seconds", decisions, &stats.decisions);
    let (name, help) = (
        "gshare_answer_seconds",
        "Time from a user's request to the first line of the answer.",
    );
    page.family(name, "histogram", help);
    for (uid, histogram) in stats.answers.by_user() {
        let user = world.host.names.user(uid);
        page.buckets(name, &[("user", &user)], &histogram);
    }
}

pub(super) fn quotas(page: &mut Page, quotas: &[Quota]) {
    type Read = fn(&Quota) -> Option<f64>;
    let families: [(&str, &str, Read); 2] = [
        (
            "gshare_quota_gpus",
            "GPUs guaranteed to a user, group or project.",
            |q| q.gpus.map(Share::as_f64),
        ),
        (
            "gshare_quota_max_gpus",
            "The most GPUs that a user, group or project may hold at a time.",
            |q| q.max.map(Share::as_f64),
        ),
    ];
    for (name, help, read) in families {
        page.family(name, GAUGE, help);
        for quota in quotas {
            let party = quota.party.to_string();
            page.sample(name, &[("party", &party)], read(quota));
        }
    }
}

/// Metrics of the service's process, under the names that all exporters use.
pub(super) fn process(page: &mut Page) {
    let usage = nix::sys::resource::getrusage(nix::sys::resource::UsageWho::RUSAGE_SELF).ok();
    let seconds = |t: nix::sys::time::TimeVal| t.tv_sec() as f64 + t.tv_usec() as f64 / 1e6;
    let cpu = usage.map(|u| seconds(u.user_time()) + seconds(u.system_time()));
    let statm = std::fs::read_to_string("/proc/self/statm").ok();
    let pages = statm.and_then(|t| t.split_whitespace().nth(1)?.parse::<f64>().ok());
    let size = nix::unistd::sysconf(nix::unistd::SysconfVar::PAGE_SIZE).ok();
    let size = size.flatten().map(|n| n as f64);
    let fds = std::fs::read_dir("/proc/self/fd").ok();
    for (name, kind, help, value) in [
        (
            "process_cpu_seconds_total",
            COUNTER,
            "CPU time of the service in seconds.",
            cpu,
        ),
        (
            "process_resident_memory_bytes",
            GAUGE,
            "Host memory of the service.",
            pages.zip(size).map(|(n, size)| n * size),
        ),
        (
            "process_open_fds",
            GAUGE,
            "Open descriptors of the service.",
            fds.map(|fds| fds.count() as f64),
        ),
    ] {
        page.single(name, kind, help, value);
    }
}
