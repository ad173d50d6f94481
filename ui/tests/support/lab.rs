//! A laboratory with eight GPUs of one kind: before anybody claims, at work, and full. And a GPU in instances.

use gshare_proto::{
    Caps, ClaimView, ExpectedView, GpuView, Idle, InstanceView, QueueView, Snapshot, Source,
    UnclaimedView, Usage, UserView,
};

use super::{Gpu, NOW_MS, advice, claimable, estimate, gib, measured, workstation};

const WHOLE: f64 = 23.2;

/// A claim: number, owner, GPU, size, GPU time in percent, memory in use.
type Held = (u32, &'static str, u32, f64, f64, f64);

const HELD: [Held; 19] = [
    (1, "ada", 0, 0.25, 0.0, 3.9),
    (2, "ben", 0, 0.5, 99.0, 10.9),
    (3, "cem", 1, 0.5, 54.0, 9.8),
    (4, "dora", 1, 0.2, 20.0, 4.1),
    (5, "eva", 2, 0.2, 18.0, 4.2),
    (6, "fay", 1, 0.1, 10.0, 1.7),
    (7, "gil", 1, 0.1, 10.0, 1.8),
    (8, "gina", 2, 0.25, 33.0, 5.2),
    (9, "ben", 2, 0.2, 12.0, 4.0),
    (10, "hugo", 6, 0.15, 10.0, 2.4),
    (11, "ada", 2, 0.2, 20.0, 4.3),
    (13, "eva", 6, 0.1, 3.0, 1.1),
    (14, "hugo", 6, 0.25, 18.0, 5.5),
    (15, "gil", 2, 0.03, 3.0, 0.5),
    (16, "fay", 2, 0.03, 3.0, 0.5),
    (17, "dora", 2, 0.03, 3.0, 0.5),
    (18, "hugo", 2, 0.03, 3.0, 0.5),
    (19, "cem", 2, 0.03, 3.0, 0.4),
    (20, "dora", 7, 0.1, 13.0, 1.9),
];

pub(super) fn uid(user: &str) -> u32 {
    let users = [
        "ada", "ben", "cem", "dora", "eva", "fay", "finn", "gil", "gina", "hugo",
    ];
    let place = users.iter().position(|u| *u == user).unwrap_or(0);
    1001 + u32::try_from(place).unwrap_or(0)
}

fn claim((n, user, gpu, size, time, used): Held) -> ClaimView {
    let what = match n {
        1 => "vit.ipynb",
        11 => "eval.py",
        _ => "",
    };
    let figures = format!("{gpu} {size} 1 {used} {} {time}", size * WHOLE);
    let row = format!("c{n} | {user} | {what} | run | {figures}");
    super::claim(&row, |time| [estimate(time * 0.6), estimate(time * 0.2)])
}

/// A GPU with the use by claims and by programs without one.
fn gpu(index: u32, claims: &[ClaimView], outside: f64) -> GpuView {
    let parts = || {
        let all = claims.iter().flat_map(|c| &c.gpus);
        all.filter(|g| g.gpu == index)
    };
    let size: f64 = parts().map(|g| g.sm_request).sum();
    let busy: f64 = parts().filter_map(|g| g.time_busy).map(|f| f.value).sum();
    let busy = if outside > 0.0 { 100.0 } else { busy };
    let used: u64 = parts().filter_map(|g| g.mem_used).sum();
    let mut view = Gpu {
        index,
        short: "RTX 4090",
        sms: 128,
        total: 24.0,
        whole: WHOLE,
        used: outside,
        claimed: size * WHOLE,
        unclaimed: outside,
        sm_claimed: size,
        active: estimate(busy * 0.65),
        occupancy: estimate(busy * 0.2),
        busy,
        history: &[40, 60, 62, 61, 74, 60, 61, 61],
    }
    .view();
    view.mem_used = Some(used + gib(outside));
    view.mem_charged = Some(used);
    view
}

/// All eight of them; a program without a claim holds most of one.
fn gpus(claims: &[ClaimView]) -> Vec<GpuView> {
    let outside = |i| if i == 3 { 18.2 } else { 0.0 };
    let mut gpus: Vec<GpuView> = (0..8).map(|i| gpu(i, claims, outside(i))).collect();
    gpus[0].temperature_c = Some(84);
    gpus[0].health = Some(gshare_proto::HealthView {
        throttle: Some(vec!["heat".to_owned()]),
        ..gshare_proto::HealthView::default()
    });
    // The driver leaves nothing beside a program without a claim.
    gpus[3].claimable = 0.0;
    gpus
}

fn waiting(position: u32, id: &str, user: &str, size: (u32, f64), reason: &str) -> QueueView {
    QueueView {
        id: id.to_owned(),
        uid: uid(user),
        user: user.to_owned(),
        class: "batch".to_owned(),
        gpus: size.0,
        share: size.1,
        position,
        reason: reason.to_owned(),
        since_ms: NOW_MS - 240_000,
        ..QueueView::default()
    }
}

/// Eight GPUs, twenty claims, five that wait, a program without a claim, a move that is announced.
pub(crate) fn lab() -> Snapshot {
    let mut base = workstation();
    base.host = "lab1".to_owned();
    let mut claims: Vec<ClaimView> = HELD.into_iter().map(claim).collect();
    let mut pair = claim((12, "finn", 4, 1.0, 97.0, 22.0));
    pair.gpus.push(pair.gpus[0].clone());
    pair.gpus[1].gpu = 5;
    pair.gpus[1].time_busy = measured(96.0, Source::Nvml);
    pair.ends_ms = Some(NOW_MS + 9_300_000);
    claims.push(pair);
    for claim in &mut claims {
        claim.caps = Caps::Cooperative;
        let throttled = |claim: &mut ClaimView, percent| {
            claim.gpus[0].throttled = measured(percent, Source::Shim);
        };
        match claim.id.as_str() {
            "c1" => claim.state_text = "idle 41m".to_owned(),
            "c2" => claim.ends_ms = Some(NOW_MS + 2_640_000),
            "c4" => throttled(claim, 62.0),
            "c11" => throttled(claim, 12.0),
            "c20" => {
                let text = "moves from GPU 7 to GPU 6 in 3s for c21";
                claim.announced = Some(text.to_owned());
                claim.place.on_its_way = Some(false);
            }
            _ => {}
        }
    }
    base.gpus = gpus(&claims);
    base.gpus[7].claimable = 0.0;
    base.claimable_now = claimable(&[("RTX 4090", 0.4, 0)]);
    base.gpus[6].claimable = 0.4;
    base.gpus[7].planned_for = Some("c21 ben".to_owned());
    base.claims = claims;
    base.unclaimed = vec![UnclaimedView {
        pid: 48_211,
        uid: Some(uid("eva")),
        user: Some("eva".to_owned()),
        what: "python".to_owned(),
        gpu: 3,
        mem_used: Some(gib(18.2)),
        ..UnclaimedView::default()
    }];
    base.queue = vec![
        waiting(1, "c21", "ben", (1, 1.0), ""),
        waiting(2, "c22", "eva", (1, 0.5), "c2 ends, GPU 0"),
        waiting(3, "c23", "gina", (2, 1.0), "c12 ends"),
        waiting(4, "c24", "hugo", (1, 1.0), "c21, by its past"),
        waiting(5, "c25", "dora", (1, 0.75), "c23 ends"),
    ];
    base.queue[0].plan = Some("c20 moves from GPU 7 to GPU 6 in 3s".to_owned());
    base.queue[0].expected_ms = Some(NOW_MS + 3000);
    base.queue[1].expected_ms = Some(NOW_MS + 2_640_000);
    base.queue[2].expected_ms = Some(NOW_MS + 9_300_000);
    base.queue[3].expected = Some(ExpectedView {
        low_s: 9300,
        high_s: Some(11_700),
        certain: false,
        cause: "c21 ends".to_owned(),
    });
    base.caps = Caps::Cooperative;
    let day = Usage {
        claimed_gpu_s: 14.6 * 3600.0,
        used_gpu_s: Some(12.9 * 3600.0),
        borrowed_gpu_s: 1.9 * 3600.0,
        waited_gpu_s: 2.8 * 3600.0,
        idle: Idle {
            cpu: 1.7 * 3600.0,
            ..Idle::default()
        },
        ..Usage::default()
    };
    base.users = vec![UserView {
        uid: 1001,
        user: "ada".to_owned(),
        day: Some(day),
        ..UserView::default()
    }];
    base.advice = vec![
        advice(
            "eva runs a program without a claim on GPU 3: 18.2 GiB",
            "gshare ps --gpu 3",
        ),
        advice(
            "c1 holds 0.25 of GPU 0 and had no GPU work for 41 min",
            "gshare release c1",
        ),
    ];
    base
}

/// The same with a claim on every part that was free.
pub(crate) fn nothing_free() -> Snapshot {
    let mut base = lab();
    let more = [
        (26, "gina", 0, 0.25, 20.0, 5.1),
        (27, "cem", 6, 0.5, 41.0, 10.8),
        (28, "gil", 1, 0.1, 5.0, 1.9),
        (21, "ben", 7, 0.9, 80.0, 19.5),
    ];
    for claim in &mut base.claims {
        claim.announced = None;
        // They leave time to the new claims.
        let time = match claim.id.as_str() {
            "c2" => 79.0,
            "c3" => 54.0,
            _ => continue,
        };
        claim.gpus[0].time_busy = measured(time, Source::Nvml);
    }
    base.claims.extend(more.map(claim));
    base.queue.remove(0);
    for (waiting, position) in base.queue.iter_mut().zip(1..) {
        waiting.position = position;
    }
    base.gpus = gpus(&base.claims);
    for gpu in &mut base.gpus {
        gpu.claimable = 0.0;
    }
    base.claimable_now = claimable(&[("RTX 4090", 0.0, 0)]);
    base
}

/// Eight GPUs on the day after the installation: programs run without claims.
pub(crate) fn first_day() -> Snapshot {
    let mut base = lab();
    base.claims.clear();
    base.queue.clear();
    base.advice.clear();
    base.notices.clear();
    let programs = [
        ("mia", 0, 21.0),
        ("mia", 1, 20.4),
        ("leo", 2, 6.1),
        ("ann", 2, 4.0),
        ("kai", 3, 18.9),
        ("kai", 4, 8.7),
        ("raj", 4, 7.2),
        ("raj", 5, 3.2),
        ("zoe", 5, 5.5),
        ("ann", 5, 2.1),
        ("zoe", 6, 11.0),
        ("leo", 6, 3.0),
        ("raj", 6, 2.4),
        ("mia", 7, 9.6),
    ];
    base.users.clear();
    base.unclaimed = programs
        .into_iter()
        .zip(4242..)
        .map(|((user, gpu, used), pid)| UnclaimedView {
            pid,
            user: Some(user.to_owned()),
            what: "python".to_owned(),
            gpu,
            mem_used: Some(gib(used)),
            ..UnclaimedView::default()
        })
        .collect();
    let outside = |i: u32| programs.iter().filter(|p| p.1 == i).map(|p| p.2).sum();
    base.gpus = (0..8).map(|i| gpu(i, &[], outside(i))).collect();
    base.claimable_now = claimable(&[("RTX 4090", 1.0, 0)]);
    let busy = [98.0, 97.0, 2.0, 61.0, 37.0, 13.0, 54.0, 0.0];
    for (gpu, busy) in base.gpus.iter_mut().zip(busy) {
        gpu.time_busy = measured(busy, Source::TimeBusy);
        gpu.sm_active = estimate(busy * 0.62);
        gpu.history = vec![Some(busy as f32); 12];
    }
    base
}

/// An A100 in three instances beside an H100 that is shared in turns.
pub(crate) fn mig() -> Snapshot {
    let mut base = workstation();
    let instance =
        |index: u32, short: &'static str, whole: f64, used: f64, size: f64, active: f64| {
            let mut view = Gpu {
                index,
                short,
                sms: 14,
                total: whole,
                whole,
                used,
                claimed: size * whole,
                unclaimed: 0.0,
                sm_claimed: size,
                active: measured(active, Source::Gpm),
                occupancy: measured(active / 3.0, Source::Gpm),
                busy: 0.0,
                history: &[],
            }
            .view();
            view.uuid = format!("MIG-{index}");
            view.instance = Some(InstanceView {
                of: "GPU-a100".to_owned(),
                sm: [3.0 / 7.0, 2.0 / 7.0, 1.0 / 7.0][index as usize],
            });
            view.mode = "mig".to_owned();
            view.time_busy = None;
            view
        };
    let mut h100 = gpu(3, &[], 0.0);
    h100.mem_used = Some(gib(28.0));
    (h100.short, h100.model) = ("H100 80GB".to_owned(), "NVIDIA H100 80GB".to_owned());
    (h100.mem_allocatable, h100.mem_total) = (Some(gib(78.6)), Some(gib(80.0)));
    (h100.mem_claimed, h100.sm_claimed, h100.claimable) = (gib(47.2), 0.6, 0.4);
    h100.time_busy = measured(71.0, Source::TimeBusy);
    h100.sm_active = measured(58.0, Source::Gpm);
    h100.sm_occupancy = measured(19.0, Source::Gpm);
    base.gpus = vec![
        instance(0, "A100 3g.40gb", 39.5, 17.9, 1.0, 62.0),
        instance(1, "A100 2g.20gb", 19.5, 6.1, 1.0, 45.0),
        instance(2, "A100 1g.10gb", 9.5, 0.0, 0.0, 0.0),
        h100,
    ];
    // An instance is claimed as a whole; what is free of it is its part of the GPU.
    for (gpu, part) in base.gpus.iter_mut().zip([0.0, 0.0, 0.14]) {
        gpu.claimable = part;
    }
    let mut claims = vec![
        claim((1, "ada", 0, 1.0, 0.0, 17.9)),
        claim((2, "ben", 1, 1.0, 0.0, 6.1)),
        claim((3, "cem", 3, 0.6, 71.0, 28.0)),
    ];
    for (claim, (active, cap)) in claims
        .iter_mut()
        .zip([(62.0, 39.5), (45.0, 19.5), (58.0, 47.2)])
    {
        claim.gpus[0].sm_active = measured(active, Source::Gpm);
        claim.gpus[0].mem_request = gib(cap);
    }
    claims[0].gpus[0].time_busy = None;
    claims[1].gpus[0].time_busy = None;
    base.claims = claims;
    base.claimable_now = claimable(&[
        ("H100 80GB", 0.4, 0),
        ("A100 1g.10gb", 0.14, 0),
        ("A100 2g.20gb", 0.0, 0),
    ]);
    base.queue.clear();
    base.unclaimed.clear();
    base.advice.clear();
    base.notices.clear();
    base.users.clear();
    base
}
