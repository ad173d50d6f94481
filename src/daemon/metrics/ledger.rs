//! Families from the ledger and the claims' pages: GPUs, claims, users.

use gshare_proto::{ClaimGpu, ClaimView, Figure, GpuState, GpuView, Snapshot};

use super::page::Page;
use super::{COUNTER, GAUGE};

/// Help text of the metric under both of its names.
pub(super) const SM_OCCUPANCY_HELP: &str =
    "Resident warps as a fraction of the maximum; absent where the GPU does not count it.";

pub(super) fn value(figure: Option<Figure>) -> Option<f64> {
    figure.map(|f| f.value)
}

/// Percent as a fraction.
pub(super) fn part(figure: Option<Figure>) -> Option<f64> {
    value(figure).map(|v| v / 100.0)
}

pub(super) fn gpus(page: &mut Page, snapshot: &Snapshot) {
    type Read = fn(&GpuView) -> Option<f64>;
    page.family(
        "gshare_gpu_info",
        GAUGE,
        "What the GPU is and how it is shared.",
    );
    for gpu in &snapshot.gpus {
        let index = gpu.index.to_string();
        let labels = [
            ("gpu", index.as_str()),
            ("UUID", &gpu.uuid),
            ("modelName", &gpu.model),
            ("mode", &gpu.mode),
        ];
        page.sample("gshare_gpu_info", &labels, Some(1.0));
    }
    let families: [(&str, &str, Read); 13] = [
        ("gshare_gpu_up", "1 while the GPU answers.", |g| {
            Some(f64::from(u8::from(g.state == GpuState::Ok)))
        }),
        (
            "gshare_gpu_drained",
            "1 while an administrator has drained the GPU.",
            |g| Some(f64::from(u8::from(g.drain.is_some()))),
        ),
        ("gshare_gpu_sms", "Streaming multiprocessors.", |g| {
            g.sms.map(f64::from)
        }),
        (
            "gshare_gpu_memory_allocatable_bytes",
            "Memory that claims can have: total minus the reserve and what is used without a claim.",
            |g| g.mem_allocatable.map(|b| b as f64),
        ),
        (
            "gshare_gpu_memory_requested_bytes",
            "Guaranteed to claims.",
            |g| Some(g.mem_claimed as f64),
        ),
        (
            "gshare_gpu_memory_charged_bytes",
            "Counted for claims, context overhead included.",
            |g| g.mem_charged.map(|b| b as f64),
        ),
        (
            "gshare_gpu_memory_used_bytes",
            "Used by all processes, as the driver reports.",
            |g| g.mem_used.map(|b| b as f64),
        ),
        (
            "gshare_gpu_memory_unclaimed_bytes",
            "Used by processes without a claim.",
            |g| g.mem_unclaimed.map(|b| b as f64),
        ),
        (
            "gshare_gpu_sm_requested_ratio",
            "Part of the SMs in the sizes of claims.",
            |g| Some(g.sm_claimed),
        ),
        (
            "gshare_gpu_claimable_ratio",
            "Largest part of the GPU that a new claim would get immediately.",
            |g| Some(g.claimable),
        ),
        (
            "gshare_gpu_time_busy_ratio",
            "Part of the time in which at least one kernel was on the GPU; does not say how many SMs were busy.",
            |g| part(g.time_busy),
        ),
        (
            "gshare_gpu_sm_active_ratio",
            "Part of the SMs with a warp; absent where the GPU does not count it.",
            |g| part(g.sm_active.filter(|f| !f.estimate)),
        ),
        ("gshare_gpu_sm_occupancy_ratio", SM_OCCUPANCY_HELP, |g| {
            part(g.sm_occupancy.filter(|f| !f.estimate))
        }),
    ];
    for (name, help, read) in families {
        page.family(name, GAUGE, help);
        for gpu in &snapshot.gpus {
            let index = gpu.index.to_string();
            let labels = [("gpu", index.as_str()), ("UUID", &gpu.uuid)];
            page.sample(name, &labels, read(gpu));
        }
    }
}

/// Labels of a claim; `job` is that of Slurm, empty for others.
fn labels<'a>(claim: &'a ClaimView, job: &'a str) -> Vec<(&'static str, &'a str)> {
    let mut labels = vec![
        ("claim", claim.id.as_str()),
        ("user", &claim.user),
        ("project", &claim.project),
    ];
    labels.extend((!job.is_empty()).then_some(("slurm_job", job)));
    labels
}

fn job(claim: &ClaimView) -> String {
    claim
        .slurm_job
        .map_or_else(String::new, |job| job.to_string())
}

pub(super) fn claims(page: &mut Page, snapshot: &Snapshot) {
    type Read = fn(&ClaimView, &ClaimGpu) -> Option<f64>;
    let families: [(&str, &str, Read); 10] = [
        (
            "gshare_claim_memory_requested_bytes",
            "Memory in the claim's size.",
            |_, g| Some(g.mem_request as f64),
        ),
        (
            "gshare_claim_memory_limit_bytes",
            "The most memory the claim may use.",
            |_, g| Some(g.mem_limit as f64),
        ),
        (
            "gshare_claim_memory_charged_bytes",
            "Counted for the claim, context overhead included.",
            |_, g| g.mem_charge.map(|b| b as f64),
        ),
        (
            "gshare_claim_memory_borrowed_bytes",
            "Memory counted for the claim above the claim's size.",
            |_, g| g.mem_charge.map(|b| b.saturating_sub(g.mem_request) as f64),
        ),
        (
            "gshare_claim_memory_used_bytes",
            "Used by its processes, as the driver reports.",
            |_, g| g.mem_used.map(|b| b as f64),
        ),
        (
            "gshare_claim_sm_requested_ratio",
            "Part of the SMs in the claim's size.",
            |_, g| Some(g.sm_request),
        ),
        (
            "gshare_claim_sm_limit_ratio",
            "The largest part of the SMs the claim may use.",
            |_, g| Some(g.sm_limit),
        ),
        (
            "gshare_claim_time_busy_ratio",
            "Part of the GPU's time that its processes got.",
            |_, g| part(g.time_busy),
        ),
        (
            "gshare_claim_sm_active_ratio",
            "Part of the SMs that the claim keeps active; absent where unknown.",
            |_, g| part(g.sm_active),
        ),
        (
            "gshare_claim_sm_occupancy_ratio",
            "Resident warps of the claim as a fraction of the GPU's maximum; absent where unknown.",
            |_, g| part(g.sm_occupancy),
        ),
    ];
    for (name, help, read) in families {
        page.family(name, GAUGE, help);
        for claim in &snapshot.claims {
            let job = job(claim);
            for gpu in &claim.gpus {
                let index = gpu.gpu.to_string();
                let mut labels = labels(claim, &job);
                labels.extend([("gpu", index.as_str()), ("UUID", &gpu.uuid)]);
                page.sample(name, &labels, read(claim, gpu));
            }
        }
    }
    claims_alone(page, snapshot);
}

/// Figures of a claim over all its GPUs.
fn claims_alone(page: &mut Page, snapshot: &Snapshot) {
    type Read = fn(&ClaimView) -> Option<f64>;
    page.family(
        "gshare_claim_info",
        GAUGE,
        "Always 1; the labels describe the claim.",
    );
    for claim in &snapshot.claims {
        let job = job(claim);
        let mut labels = labels(claim, &job);
        labels.extend([
            ("class", claim.class.as_str()),
            ("name", claim.name.as_deref().unwrap_or_default()),
        ]);
        page.sample("gshare_claim_info", &labels, Some(1.0));
    }
    let families: [(&str, &str, &str, Read); 9] = [
        (
            "gshare_claim_start_time_seconds",
            GAUGE,
            "When it was granted, Unix time.",
            |c| Some(c.since_ms as f64 / 1000.0),
        ),
        ("gshare_claim_members", GAUGE, "Processes in it.", |c| {
            Some(c.members.len() as f64)
        }),
        (
            "gshare_claim_idle_seconds",
            GAUGE,
            "Time since its last kernel launch; absent before the first.",
            |c| c.idle_s.map(|s| s as f64),
        ),
        (
            "gshare_claim_launches_total",
            COUNTER,
            "Its kernel launches.",
            |c| c.launches.map(|n| n as f64),
        ),
        (
            "gshare_claim_allocation_refusals_total",
            COUNTER,
            "Its allocations that were refused at the memory limit.",
            |c| Some(c.refusals as f64),
        ),
        (
            "gshare_claim_contended",
            GAUGE,
            "1 while it takes turns with others on a GPU; absent where its share of GPU time is not enforced.",
            |c| c.turns.map(|t| f64::from(u8::from(t.contended))),
        ),
        (
            "gshare_claim_turn_seconds_total",
            COUNTER,
            "Duration of its turns so far; time alone on a GPU is not counted.",
            |c| c.turns.map(|t| t.turns_ms as f64 / 1000.0),
        ),
        (
            "gshare_claim_throttled_seconds",
            GAUGE,
            "Time during which launches of its present processes were throttled.",
            |c| c.turns.map(|t| t.held_back_ms as f64 / 1000.0),
        ),
        (
            "gshare_claim_overuse",
            GAUGE,
            "1 while the claim uses more than gshare has counted for it.",
            |c| Some(f64::from(u8::from(c.overuse.is_some()))),
        ),
    ];
    for (name, kind, help, read) in families {
        page.family(name, kind, help);
        for claim in &snapshot.claims {
            page.sample(name, &labels(claim, &job(claim)), read(claim));
        }
    }
}

pub(super) fn users(page: &mut Page, snapshot: &Snapshot) {
    type Read = fn(&gshare_proto::UserView) -> Option<f64>;
    let families: [(&str, &str, Read); 6] = [
        ("gshare_user_claims", "Granted claims.", |u| {
            Some(f64::from(u.claims))
        }),
        ("gshare_user_claimed_gpus", "Parts of GPUs claimed.", |u| {
            Some(u.claimed)
        }),
        (
            "gshare_user_waiting_gpus",
            "Parts of GPUs that waiting claims ask for.",
            |u| Some(u.waiting),
        ),
        (
            "gshare_user_sm_used_gpus",
            "SMs used, as a number of GPUs; absent where unknown.",
            |u| value(u.sm_used),
        ),
        (
            "gshare_user_memory_requested_bytes",
            "Guaranteed to the user's claims.",
            |u| Some(u.mem_claimed as f64),
        ),
        (
            "gshare_user_memory_used_bytes",
            "Used by the user's claims, as the driver reports.",
            |u| u.mem_used.map(|b| b as f64),
        ),
    ];
    for (name, help, read) in families {
        page.family(name, GAUGE, help);
        for user in &snapshot.users {
            page.sample(name, &[("user", &user.user)], read(user));
        }
    }
    page.family(
        "gshare_unclaimed_processes",
        GAUGE,
        "GPU processes without a claim, excluding graphics.",
    );
    for gpu in &snapshot.gpus {
        let outside = snapshot.unclaimed.iter();
        let outside = outside.filter(|u| u.gpu == gpu.index && !u.graphics);
        let index = gpu.index.to_string();
        let labels = [("gpu", index.as_str()), ("UUID", &gpu.uuid)];
        let count = outside.count() as f64;
        page.sample("gshare_unclaimed_processes", &labels, Some(count));
    }
}
