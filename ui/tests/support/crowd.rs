//! Extreme snapshots: no service, and everything at once.

use gshare_proto::{Caps, GpuState, GpuView, QueueView, Snapshot, Source, UserView};

use super::{gib, measured, workstation};

/// No service: NVML's figures, and no claims.
pub(crate) fn monitor() -> Snapshot {
    let mut base = workstation();
    base.service = None;
    base.claimable_now = None;
    base.caps = Caps::None;
    base.claims.clear();
    base.queue.clear();
    base.users.clear();
    base.notices.clear();
    base.advice.clear();
    for gpu in &mut base.gpus {
        gpu.mem_claimed = 0;
        gpu.mem_charged = None;
        gpu.mem_unclaimed = None;
        gpu.mem_allocatable = None;
        gpu.sm_claimed = 0.0;
        gpu.sm_active = None;
        gpu.sm_occupancy = None;
    }
    base.gpus[2].mem_used = None;
    base.gpus[2].time_busy = None;
    base
}

/// Everything at once: 16 GPUs, one of them lost and one hung, 60 claims, 9 waiting, long and strange names, unknown
/// figures.
pub(crate) fn crowd() -> Snapshot {
    let mut base = workstation();
    base.claimable_now = None;
    let first = base.gpus[0].clone();
    base.gpus = (0..16)
        .map(|index| GpuView {
            index,
            ..first.clone()
        })
        .collect();
    base.gpus[4].state = GpuState::Lost;
    base.gpus[5].state = GpuState::Hung;
    base.gpus[6].short = "RTX PRO 6000 Blackwell Workstation".to_owned();
    base.gpus[7].mem_total = Some(gib(141.0));
    base.gpus[7].mem_allocatable = Some(gib(140.4));
    base.gpus[8].mem_used = None;
    base.gpus[8].mem_allocatable = None;
    base.gpus[8].mem_total = None;
    let claim = base.claims[1].clone();
    base.claims = (0..60)
        .map(|i| {
            let mut claim = claim.clone();
            claim.id = format!("c{}", i * 3 + 1);
            claim.user = ["nlp", "vis", "a-very-long-user-name"][i as usize % 3].to_owned();
            claim.gpus[0].gpu = i % 16;
            claim.gpus[0].time_busy = measured(f64::from(i), Source::Nvml).filter(|_| i % 4 != 0);
            if i % 7 == 0 {
                claim.gpus[0].mem_used = None;
                claim.gpus[0].mem_charge = None;
                claim.what =
                    "python -c 'x = 1\n\ty = 2' 日本語の名前 --with --many --arguments".to_owned();
            }
            if i % 9 == 0 {
                let second = claim.gpus[0].clone();
                claim.gpus.push(second);
            }
            claim
        })
        .collect();
    let waiting = base.queue[0].clone();
    base.queue = (0..9)
        .map(|i| QueueView {
            id: format!("c{}", 200 + i),
            gpus: 1 + i % 3,
            position: i + 1,
            ..waiting.clone()
        })
        .collect();
    let one = base.users[1].clone();
    base.users = (0..20)
        .map(|i| UserView {
            user: format!("user{i}"),
            ..one.clone()
        })
        .collect();
    base
}
