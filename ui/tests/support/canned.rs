//! Snapshots to draw: possible workstations at a fixed moment. Shared by the tests and by `examples/canned.rs`.
#![allow(dead_code, unused_imports, reason = "each user draws some of them")]

mod crowd;
mod lab;
mod recorded;
pub(crate) mod states;

pub(crate) use crowd::{crowd, monitor};
pub(crate) use lab::{first_day, lab, mig, nothing_free};
pub(crate) use recorded::recorded;

use gshare_proto::{
    Advice, Caps, ClaimGpu, ClaimState, ClaimView, ClaimableView, Figure, GpuState, GpuView,
    ModelRoomView, Notice, QueueView, ServiceView, Snapshot, Source, UnclaimedView, UserView,
};

/// 14:32:07 UTC on a day in 2026.
pub(crate) const NOW_MS: u64 = 1_795_185_127_000;

/// Bytes of a number of GiB.
pub(crate) fn gib(n: f64) -> u64 {
    (n * f64::from(1 << 30)) as u64
}

fn measured(value: f64, source: Source) -> Option<Figure> {
    Some(Figure {
        value,
        source,
        estimate: false,
    })
}

fn estimate(value: f64) -> Option<Figure> {
    Some(Figure {
        value,
        source: Source::Shim,
        estimate: true,
    })
}

fn service() -> Option<ServiceView> {
    Some(ServiceView {
        version: "0.1.0".to_owned(),
        mode: "system".to_owned(),
        started_ms: NOW_MS - 86_400_000,
        cgroups: true,
        device_filter: true,
        shim: true,
        uid: 0,
        looks: 86_400,
        off: None,
        slurm: false,
        stage: None,
    })
}

struct Gpu {
    index: u32,
    short: &'static str,
    sms: u32,
    total: f64,
    whole: f64,
    used: f64,
    claimed: f64,
    unclaimed: f64,
    sm_claimed: f64,
    active: Option<Figure>,
    occupancy: Option<Figure>,
    busy: f64,
    history: &'static [u8],
}

impl Gpu {
    fn view(self) -> GpuView {
        let allocatable = self.whole - self.unclaimed;
        let free = (allocatable - self.claimed) / allocatable;
        GpuView {
            index: self.index,
            uuid: format!("GPU-0000000{}-1111-2222-3333-444444444444", self.index),
            model: format!("NVIDIA {}", self.short),
            short: self.short.to_owned(),
            mode: "timeslice".to_owned(),
            mode_wanted: None,
            state: GpuState::Ok,
            drain: None,
            sms: Some(self.sms),
            mem_total: Some(gib(self.total)),
            mem_allocatable: Some(gib(allocatable)),
            mem_used: Some(gib(self.used)),
            mem_claimed: gib(self.claimed),
            mem_charged: Some(gib(self.used - self.unclaimed)),
            mem_unclaimed: Some(gib(self.unclaimed)),
            sm_claimed: self.sm_claimed,
            claimable: ((free.min(1.0 - self.sm_claimed).max(0.0)) * 100.0).round() / 100.0,
            sm_active: self.active,
            sm_occupancy: self.occupancy,
            time_busy: measured(self.busy, Source::TimeBusy),
            history: self.history.iter().map(|v| Some(f32::from(*v))).collect(),
            temperature_c: Some(61 + self.index),
            power_w: Some(285.0),
            power_limit_w: Some(450.0),
            ..GpuView::default()
        }
    }
}

/// The owner's uid and class.
fn owner(user: &str) -> (u32, &'static str) {
    match user {
        "nlp" => (1001, "interactive"),
        "vis" => (1002, "batch"),
        "chem" => (1003, "inference"),
        other => (lab::uid(other), "batch"),
    }
}

/// A claim from a row: id, owner, program, state, then GPU, size, limit, memory in use and claimed, GPU time in percent.
fn claim(row: &str, of: impl Fn(f64) -> [Option<Figure>; 2]) -> ClaimView {
    let cells: Vec<&str> = row.split('|').map(str::trim).collect();
    let [id, user, what, state, figures] = cells[..] else {
        panic!("{row}")
    };
    let figures = figures.split_whitespace().map(|f| f.parse().ok());
    let figures: Option<Vec<f64>> = figures.collect();
    let [gpu, request, limit, used, claimed, time] = figures.unwrap_or_default()[..] else {
        panic!("{row}")
    };
    let (gpu, [active, occupancy]) = (gpu as u32, of(time));
    let (uid, class) = owner(user);
    ClaimView {
        id: id.to_owned(),
        uid,
        user: user.to_owned(),
        project: "lab".to_owned(),
        class: class.to_owned(),
        what: what.to_owned(),
        command: what.split(' ').map(str::to_owned).collect(),
        pid: Some(4000 + uid),
        caps: Caps::Strict,
        state: ClaimState::Running,
        state_text: state.to_owned(),
        since_ms: NOW_MS - 7_500_000,
        gpus: vec![ClaimGpu {
            gpu,
            uuid: format!("GPU-0000000{gpu}"),
            sm_request: request,
            sm_limit: limit,
            mem_request: gib(claimed),
            mem_limit: gib(claimed),
            mem_charge: Some(gib(used)),
            mem_used: Some(gib(used)),
            time_busy: measured(time, Source::Nvml),
            sm_active: active,
            sm_occupancy: occupancy,
            throttled: measured(0.0, Source::Shim),
            ..ClaimGpu::default()
        }],
        members: vec![4000 + uid, 4100 + uid],
        launches: Some(48_211),
        idle_s: Some(0),
        ..ClaimView::default()
    }
}

/// What could be claimed, by model: the largest part of one GPU, and whole ones.
fn claimable(models: &[(&str, f64, u32)]) -> Option<ClaimableView> {
    let model = |(model, largest, whole): &(&str, f64, u32)| ModelRoomView {
        model: format!("NVIDIA {model}"),
        largest: *largest,
        whole: *whole,
    };
    Some(ClaimableView {
        sum: models.iter().map(|(_, largest, _)| largest).sum(),
        models: models.iter().map(model).collect(),
    })
}

fn user(uid: u32, name: &str, claimed: f64, used: Option<Figure>, waiting: f64) -> UserView {
    UserView {
        uid,
        user: name.to_owned(),
        claimed,
        sm_used: used,
        mem_claimed: gib(claimed * 23.5),
        mem_used: Some(gib(claimed * 16.0)),
        waiting,
        claims: if claimed > 0.0 { 1 } else { 0 },
        ..UserView::default()
    }
}

fn advice(text: &str, command: &str) -> Advice {
    Advice {
        text: text.to_owned(),
        command: Some(command.to_owned()),
    }
}

/// Of a workstation.
const CLAIMS: [&str; 5] = [
    "c12 | nlp  | vit.ipynb       | idle 41m   | 0 0.25 0.8  4.1  5.9   0",
    "c14 | vis  | train.py        | burst +48  | 0 0.50 1.0 11.2 11.8  98",
    "c15 | chem | vllm Llama-3-8B | burst +21  | 1 0.60 0.9 13.6 14.1  81",
    "c17 | chem | tagger.service  | run        | 1 0.30 0.9  3.0  7.1  18",
    "c20 | vis  | sweep.py #3     | ends 16:05 | 2 1.00 1.0 21.8 23.5 100",
];

/// A GPU: memory in use, claimed and without a claim; the claimed size; SM activity and occupancy; time in use.
type Card = ((f64, f64, f64), f64, (Option<Figure>, Option<Figure>), f64);

/// Four RTX 4090 with estimates only, one process without a claim, one claim waiting.
pub(crate) fn workstation() -> Snapshot {
    let gpu = |(index, card): (u32, Card)| {
        let ((used, claimed, unclaimed), sm_claimed, (active, occupancy), busy) = card;
        let gpu = Gpu {
            index,
            short: "RTX 4090",
            sms: 128,
            total: 24.0,
            whole: 23.5,
            used,
            claimed,
            unclaimed,
            sm_claimed,
            active,
            occupancy,
            busy,
            history: &[20, 20, 35, 60, 62, 61, 74, 60, 61, 61],
        };
        gpu.view()
    };
    let about = |active, occupancy| (estimate(active), estimate(occupancy));
    let cards = [
        ((15.3, 17.7, 0.0), 0.75, about(61.0, 24.0), 98.0),
        ((16.6, 21.2, 0.0), 0.9, about(40.0, 11.0), 99.0),
        ((21.8, 23.5, 0.0), 1.0, about(88.0, 41.0), 100.0),
        ((9.2, 0.0, 9.2), 0.0, (None, None), 71.0),
    ];
    let active = |time| [estimate(time * 0.6), estimate(time * 0.25)];
    let mut claims = CLAIMS.map(|row| claim(row, active)).to_vec();
    // An idle claim has a known use of 0.
    for figures in &mut claims[0].gpus {
        figures.sm_active = measured(0.0, Source::Shim);
        figures.sm_occupancy = measured(0.0, Source::Shim);
    }
    claims[0].idle_s = Some(41 * 60);
    claims[1].refusals = 2;
    Snapshot {
        claimable_now: claimable(&[("RTX 4090", 1.0, 0)]),
        taken_ms: NOW_MS,
        host: "lab-ws1".to_owned(),
        driver: Some("580.95".to_owned()),
        simulated: false,
        hidden: 0,
        caps: Caps::Strict,
        service: service(),
        gpus: (0..).zip(cards).map(gpu).collect(),
        claims,
        queue: vec![QueueView {
            id: "c22".to_owned(),
            uid: 1004,
            user: "bio".to_owned(),
            project: "lab".to_owned(),
            class: "batch".to_owned(),
            what: "finetune.py".to_owned(),
            gpus: 1,
            share: 1.0,
            sm_limit: 1.0,
            mem_request: Some(gib(23.5)),
            since_ms: NOW_MS - 180_000,
            position: 1,
            reason: "needs 23.5 GiB on one GPU; c20 ends 16:05".to_owned(),
            would_start: Some("-g 0.5".to_owned()),
            ..QueueView::default()
        }],
        users: vec![
            user(1001, "nlp", 0.25, measured(0.0, Source::Shim), 0.0),
            user(1002, "vis", 1.5, estimate(1.49), 0.0),
            user(1003, "chem", 0.9, estimate(0.4), 0.0),
            user(1004, "bio", 0.0, None, 1.0),
        ],
        unclaimed: vec![UnclaimedView {
            pid: 48_211,
            uid: Some(1009),
            user: Some("ext".to_owned()),
            what: "python".to_owned(),
            gpu: 3,
            mem_used: Some(gib(9.2)),
            graphics: false,
            ..UnclaimedView::default()
        }],
        notices: vec![Notice {
            at_ms: NOW_MS - 15_000,
            claim: Some("c14".to_owned()),
            text: "refused 1.2 GiB at its limit of 11.8 GiB".to_owned(),
        }],
        advice: vec![advice(
            "c12 holds .25 of GPU 0 and had no GPU work for 41 min",
            "gshare release c12",
        )],
    }
}

/// Of the demo, with SM activity and occupancy.
const NOTEBOOKS: [(&str, [f64; 2]); 2] = [
    (
        "c18 | nlp | ~/llama/llama-ft.ipynb | burst +43 | 2 0.5 1.0 33.0 39.6 93",
        [71.0, 38.0],
    ),
    (
        "c19 | vis | ~/eval/eval.ipynb | burst +40 | 3 0.5 1.0 28.4 39.6 90",
        [66.0, 35.0],
    ),
];

/// Two RTX 4090 and two H100 of the simulated driver.
pub(crate) fn demo() -> Snapshot {
    let mut base = workstation();
    let h100 = |index, used, active, occupancy, busy, history| {
        let gpu = Gpu {
            index,
            short: "H100 80GB",
            sms: 132,
            total: 80.0,
            whole: 79.1,
            used,
            claimed: 39.6,
            unclaimed: 0.0,
            sm_claimed: 0.5,
            active: measured(active, Source::Gpm),
            occupancy: measured(occupancy, Source::Gpm),
            busy,
            history,
        };
        gpu.view()
    };
    let history: [&[u8]; 2] = [
        &[5, 5, 5, 70, 72, 71, 70, 71, 74, 71],
        &[4, 5, 4, 5, 60, 71, 70, 68, 66, 66],
    ];
    base.gpus.truncate(2);
    base.claimable_now = claimable(&[("H100 80GB", 0.5, 0), ("RTX 4090", 0.25, 0)]);
    base.gpus.push(h100(2, 33.0, 71.0, 38.0, 93.0, history[0]));
    base.gpus.push(h100(3, 28.4, 66.0, 35.0, 90.0, history[1]));
    base.gpus[1].history = [45, 46, 44, 45, 45, 40, 44, 43, 44, 45]
        .map(|v| Some(f32::from(v as u8)))
        .to_vec();
    base.claims.retain(|c| c.id != "c20");
    base.claims[0].what = "~/vit/vit.ipynb".to_owned();
    base.claims[1].what = "python train.py".to_owned();
    base.claims[2].what = "vllm serve Llama-3-8B".to_owned();
    for (row, active) in NOTEBOOKS {
        let mut notebook = claim(row, |_| active.map(|v| measured(v, Source::Gpm)));
        notebook.class = "interactive".to_owned();
        base.claims.push(notebook);
    }
    base.users = vec![
        user(1001, "nlp", 0.75, measured(0.71, Source::Gpm), 0.0),
        user(1002, "vis", 1.0, estimate(1.27), 0.0),
        user(1003, "chem", 0.9, estimate(0.4), 0.0),
        user(1004, "bio", 0.0, None, 1.0),
    ];
    base.queue[0].what = "python finetune.py".to_owned();
    base.queue[0].mem_request = Some(gib(79.1));
    base.queue[0].reason =
        "needs 79.1 GiB on one GPU; most free is 39.5 on GPU 2 (c18, nlp holds 39.6)".to_owned();
    base.unclaimed.clear();
    base.host = "demo".to_owned();
    base.simulated = true;
    base.caps = Caps::Cooperative;
    for claim in &mut base.claims {
        claim.caps = Caps::Cooperative;
    }
    base.advice.insert(
        0,
        advice(
            "GPU 1: 99% busy, but ~77 of 128 SMs idle",
            "gshare ps --gpu 1",
        ),
    );
    base
}

/// The same workstation while room is made: a claim that will move, an offloaded one, time limits that end.
pub(crate) fn eventful() -> Snapshot {
    let mut base = workstation();
    for claim in &mut base.claims {
        claim.ends_ms = Some(NOW_MS + 5_580_000);
        claim.place.on_its_way = Some(false);
    }
    let moves = "moves from GPU 0 to GPU 3 in 12s for c22";
    base.claims[0].announced = Some(moves.to_owned());
    base.claims[0].state_text = moves.to_owned();
    base.claims[1].place.word = Some("offloaded".to_owned());
    base.claims[1].state_text = "offloaded, 11.2 GiB in host RAM".to_owned();
    base.queue[0].plan = Some("c12 moves from GPU 0 to GPU 3 in 12s".to_owned());
    base
}

/// Rows of the doctor.
pub(crate) fn checks() -> Vec<gshare_proto::Check> {
    let row = |group: &str, name: &str, state: &str, detail: &str| gshare_proto::Check {
        group: group.to_owned(),
        name: name.to_owned(),
        state: state.to_owned(),
        detail: detail.to_owned(),
        status: "simulation only".to_owned(),
        fix: (state != "ok").then(|| "sudo gshare setup".to_owned()),
    };
    let filter = "a BPF program on each claim";
    let mps = "nvidia-cuda-mps-control is not running";
    vec![
        row(
            "service",
            "cgroups",
            "ok",
            "claims live below /sys/fs/cgroup/gshare",
        ),
        row("who opens which GPU", "device filter", "ok", filter),
        row(
            "memory",
            "memory cap",
            "ok",
            "the proxy libcuda holds it, strict",
        ),
        row("compute", "MPS", "limited", mps),
        row("around it", "containers", "missing", "no CDI directory"),
    ]
}
