//! Who plays in the demo, when, and what the captions say of it. The captions are made from the snapshot:
//! a sentence appears only when it is true.

use std::time::{Duration, Instant};

use gshare_proto::{Call, ClaimView, Client, ClientError, Snapshot};
use gshare_ui::{Failure, Feeder, Request, Update, UpdateSender};

use super::job::Job;
use super::{Cast, enter};
use crate::cli::args::DemoArgs;
use crate::station::Station;

/// One of the demo's users.
#[derive(Debug)]
pub(super) struct User {
    pub(super) name: &'static str,
    /// Used as root; no account has these.
    pub(super) uid: u32,
}

const NLP: User = User {
    name: "nlp",
    uid: 61_001,
};
const VIS: User = User {
    name: "vis",
    uid: 61_002,
};
const CHEM: User = User {
    name: "chem",
    uid: 61_003,
};
const BIO: User = User {
    name: "bio",
    uid: 61_004,
};
pub(super) const USERS: &[User] = &[NLP, VIS, CHEM, BIO];

/// A job and its claim.
#[derive(Debug)]
pub(super) struct Actor {
    pub(super) name: &'static str,
    pub(super) user: &'static User,
    /// Flags of `gshare claim`.
    pub(super) claim: &'static [&'static str],
    /// When it enters.
    pub(super) at: Duration,
    job: fn() -> Job,
}

impl Actor {
    pub(super) fn job(&self) -> Job {
        (self.job)()
    }
}

const fn at(ms: u64) -> Duration {
    Duration::from_millis(ms)
}

/// Durations of the jobs' kernels in the simulation: time only, never results.
pub(super) const COSTS: &str = "\
tagger_step 12ms
vllm_step 6ms
train_step 4ms
finetune_step 8ms
llama_step 9ms
notebook_cell 40ms
";

pub(super) const ACTORS: &[Actor] = &[
    Actor {
        name: "vit.ipynb",
        user: &NLP,
        claim: &[
            "-g",
            "0.25",
            "--limit",
            "0.8",
            "--class",
            "interactive",
            "--gpu-ids",
            "0",
        ],
        at: at(0),
        job: || Job::Notebook { mib: 3600 },
    },
    Actor {
        name: "train.py",
        user: &VIS,
        claim: &["-g", "0.5", "--class", "batch", "--gpu-ids", "0"],
        at: at(0),
        job: || Job::Hog {
            step_mib: 768,
            every_ms: 400,
        },
    },
    Actor {
        name: "vllm Llama-3-8B",
        user: &CHEM,
        claim: &[
            "-g",
            "0.6",
            "--limit",
            "0.9",
            "--class",
            "inference",
            "--gpu-ids",
            "1",
            "-t",
            "24s",
        ],
        at: at(0),
        job: || Job::Steady {
            kernel: "vllm_step".into(),
            grid: 96,
            block: 256,
            mib: 12_000,
            pause_ms: 6,
        },
    },
    // 40 blocks of a long kernel on 132 SMs, one after the other: always busy, mostly idle.
    Actor {
        name: "tagger.service",
        user: &CHEM,
        claim: &["-g", "0.3", "--class", "inference", "--gpu-ids", "2"],
        at: at(0),
        job: || Job::Steady {
            kernel: "tagger_step".into(),
            grid: 40,
            block: 256,
            mib: 9_000,
            pause_ms: 0,
        },
    },
    Actor {
        name: "llama-ft.ipynb",
        user: &NLP,
        claim: &["-g", "0.5", "--class", "interactive", "--gpu-ids", "3"],
        at: at(0),
        job: || Job::Steady {
            kernel: "llama_step".into(),
            grid: 528,
            block: 256,
            mib: 30_000,
            pause_ms: 8,
        },
    },
    Actor {
        name: "eval.ipynb",
        user: &VIS,
        claim: &["-g", "0.25", "--class", "interactive", "--gpu-ids", "3"],
        at: at(500),
        job: || Job::Notebook { mib: 12_000 },
    },
    Actor {
        name: "finetune.py",
        user: &BIO,
        claim: &["-g", "1", "--class", "batch"],
        at: at(6000),
        job: || Job::Steady {
            kernel: "finetune_step".into(),
            grid: 512,
            block: 256,
            mib: 16_000,
            pause_ms: 1,
        },
    },
];

/// The scenes in their order: from when each is told, and its sentence if it is true.
type Scene = (Duration, fn(&Snapshot, &Story) -> Option<String>);

/// What the captions need beyond the newest snapshot.
#[derive(Debug, Default)]
struct Story {
    /// Launches per second of each claim over the last snapshots, by name.
    rates: Vec<(String, f64)>,
    /// The hog's own words.
    hog: Option<String>,
}

const SCENES: &[Scene] = &[
    (at(0), busy_but_idle),
    (at(5_000), hog_at_cap),
    (at(11_000), somebody_waits),
    (at(24_000), it_starts),
    (at(29_000), your_turn),
];

fn busy_but_idle(s: &Snapshot, _: &Story) -> Option<String> {
    let gpu = s.gpus.iter().find(|g| {
        g.time_busy.is_some_and(|f| f.value > 90.0) && g.sm_active.is_some_and(|f| f.value < 50.0)
    })?;
    let (busy, active, sms) = (gpu.time_busy?.value, gpu.sm_active?.value, gpu.sms?);
    let idle = (f64::from(sms) * (1.0 - active / 100.0)).round();
    Some(format!(
        "GPU {} is {busy:.0} % busy, as nvidia-smi would say - and {idle:.0} of its {sms} SMs are idle",
        gpu.index
    ))
}

fn hog_at_cap(s: &Snapshot, story: &Story) -> Option<String> {
    let hog = named(s, "train.py")?;
    let words = story.hog.as_deref()?;
    let gpu = hog.gpus.first()?.gpu;
    let neighbour = s
        .claims
        .iter()
        .find(|c| c.id != hog.id && c.gpus.iter().any(|p| p.gpu == gpu))?;
    Some(format!(
        "{} hit its cap: \"{words}\". Its neighbour {} keeps its {}",
        hog.id,
        neighbour.id,
        gib(neighbour)
    ))
}

fn gib(claim: &ClaimView) -> String {
    let bytes = claim.gpus.first().and_then(|p| p.mem_charge);
    bytes.map_or_else(
        || "memory".to_owned(),
        |b| format!("{:.1} GiB", b as f64 / (1u64 << 30) as f64),
    )
}

fn somebody_waits(s: &Snapshot, _: &Story) -> Option<String> {
    let head = s.queue.first()?;
    Some(format!(
        "{} ({}) waits for a whole GPU: {}",
        head.id,
        owner(&head.project, &head.user),
        head.reason
    ))
}

fn it_starts(s: &Snapshot, story: &Story) -> Option<String> {
    let claim = named(s, "finetune.py")?;
    let rate = story
        .rates
        .iter()
        .find(|(name, _)| name == "finetune.py")?
        .1;
    let gpu = claim.gpus.first()?.gpu;
    Some(format!(
        "GPU {gpu} became free: {} runs there, {rate:.0} launches/s",
        claim.id
    ))
}

fn your_turn(_: &Snapshot, _: &Story) -> Option<String> {
    Some("your turn - press n and claim 0.25 yourself; q ends the demo".to_owned())
}

fn owner<'a>(project: &'a str, user: &'a str) -> &'a str {
    if project.is_empty() { user } else { project }
}

fn named<'a>(s: &'a Snapshot, name: &str) -> Option<&'a ClaimView> {
    s.claims.iter().find(|c| c.name.as_deref() == Some(name))
}

/// The newest scene whose time has come and whose sentence is true.
fn caption(at: Duration, snapshot: &Snapshot, story: &Story) -> Option<String> {
    SCENES
        .iter()
        .rev()
        .filter(|(from, _)| *from <= at)
        .find_map(|(_, say)| say(snapshot, story))
}

/// Plays with the screen on top, until it is closed or the time is over.
pub(super) fn on_screen(
    args: &DemoArgs,
    station: &Station,
    cast: &mut Cast,
    started: Instant,
) -> anyhow::Result<i32> {
    let (feeder, feed) = gshare_ui::channel();
    let screen = std::thread::Builder::new()
        .name("screen".to_owned())
        .spawn(move || gshare_ui::run_blocking(gshare_ui::Options::default(), feed))?;
    let updates = feeder.updates.clone();
    let played = play(args, station, cast, started, feeder);
    updates.send(Update::Close);
    match screen.join() {
        Ok(result) => {
            result?;
        }
        Err(_) => anyhow::bail!("the screen ended unexpectedly"),
    }
    played.map(|()| 0)
}

/// How often the demo looks at the service and at what it is asked.
const BEAT: Duration = Duration::from_millis(200);

fn play(
    args: &DemoArgs,
    station: &Station,
    cast: &mut Cast,
    started: Instant,
    mut feeder: Feeder,
) -> anyhow::Result<()> {
    let mut waiting: Vec<&Actor> = ACTORS.iter().collect();
    let mut story = Story::default();
    let mut last: Option<(Instant, Snapshot)> = None;
    let mut paused = false;
    while !feeder.updates.is_closed() && args.duration.is_none_or(|d| started.elapsed() < d) {
        enter(station, cast, &mut waiting, started.elapsed())?;
        while let Ok(request) = feeder.requests.try_recv() {
            match request {
                Request::Captions { paused: still } => paused = still,
                Request::Replay(_) => {}
                Request::Call { seq, call } => answer(station, feeder.updates.clone(), seq, *call),
            }
        }
        match station.snapshot() {
            Ok(snapshot) => {
                let now = Instant::now();
                if let Some((before, old)) = &last {
                    story.rates = rates(old, &snapshot, now.duration_since(*before));
                }
                if last
                    .as_ref()
                    .is_none_or(|(before, _)| now.duration_since(*before) > Duration::from_secs(1))
                {
                    last = Some((now, snapshot.clone()));
                }
                story.hog = story.hog.take().or_else(|| hog_words(station));
                if !paused {
                    feeder.updates.send(Update::Caption(caption(
                        started.elapsed(),
                        &snapshot,
                        &story,
                    )));
                }
                feeder.updates.send(Update::Snapshot(Box::new(snapshot)));
            }
            Err(error) => {
                feeder.updates.send(Update::Disconnected(error.to_string()));
            }
        }
        std::thread::sleep(BEAT);
    }
    Ok(())
}

/// Launches per second between two snapshots, by the names of the claims.
fn rates(old: &Snapshot, new: &Snapshot, apart: Duration) -> Vec<(String, f64)> {
    let rate = |claim: &ClaimView| {
        let before = old.claims.iter().find(|c| c.id == claim.id)?.launches?;
        let launched = claim.launches?.checked_sub(before)?;
        Some((claim.name.clone()?, launched as f64 / apart.as_secs_f64()))
    };
    new.claims.iter().filter_map(rate).collect()
}

/// What the hog itself printed when it was refused.
fn hog_words(station: &Station) -> Option<String> {
    let log = std::fs::read_to_string(station.dir().join("train.py.log")).ok()?;
    let line = log.lines().find(|l| l.contains("out of memory"))?;
    let words = line.trim_start_matches("train.py: RuntimeError: ");
    Some(words.split(" with ").next().unwrap_or(words).to_owned())
}

fn answer(station: &Station, updates: UpdateSender, seq: u64, call: Call) {
    let socket = station.socket();
    std::thread::spawn(move || {
        let outcome = Client::connect(&socket)
            .and_then(|mut client| client.call(&call))
            .map_err(|error| Failure {
                message: error.to_string(),
                hint: match &error {
                    ClientError::Refused(wire) => wire.hint.clone(),
                    _ => None,
                },
            });
        updates.send(Update::CallResult { seq, outcome });
    });
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_caption_is_only_told_when_it_is_true() {
        let story = Story::default();
        assert_eq!(caption(at(3_000), &Snapshot::default(), &story), None);
        assert!(
            caption(at(60_000), &Snapshot::default(), &story)
                .is_some_and(|c| c.starts_with("your turn"))
        );
        let busy = |active: f64| {
            let figure = |value| {
                Some(gshare_proto::Figure {
                    value,
                    source: gshare_proto::Source::Gpm,
                    estimate: false,
                })
            };
            Snapshot {
                gpus: vec![gshare_proto::GpuView {
                    index: 2,
                    sms: Some(132),
                    time_busy: figure(99.0),
                    sm_active: figure(active),
                    ..Default::default()
                }],
                ..Snapshot::default()
            }
        };
        let told = caption(at(1_000), &busy(30.0), &story);
        assert_eq!(
            told.as_deref(),
            Some("GPU 2 is 99 % busy, as nvidia-smi would say - and 92 of its 132 SMs are idle")
        );
        assert_eq!(caption(at(1_000), &busy(90.0), &story), None);
    }
}
