//! The actors of the demo: their claims and times.

use std::time::Duration;

use super::job::Job;

/// One of the demo's users.
#[derive(Debug)]
pub(super) struct User {
    pub(super) name: &'static str,
    /// User id when the demo runs as root; no account has these.
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

/// When a job begins.
#[derive(Debug)]
pub(super) enum Enters {
    /// This long after the start.
    At(Duration),
    /// After the first captions, so that those are still true while they are read.
    Opened,
}

/// A job and its claim.
#[derive(Debug)]
pub(super) struct Actor {
    pub(super) name: &'static str,
    pub(super) user: &'static User,
    /// Flags of `gshare claim`.
    pub(super) claim: &'static [&'static str],
    pub(super) enters: Enters,
    job: fn() -> Job,
}

impl Actor {
    pub(super) fn job(&self) -> Job {
        (self.job)()
    }
}

pub(super) const fn at(ms: u64) -> Duration {
    Duration::from_millis(ms)
}

/// Durations of the jobs' kernels in the simulation: they affect time only, never results.
pub(super) const COSTS: &str = "\
tagger_step 12ms
vllm_step 6ms
train_step 12ms
finetune_step 24ms
llama_step 36ms
eval_step 28ms
notebook_cell 40ms
toy_step 20ms
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
        enters: Enters::At(at(0)),
        job: || Job::Notebook { mib: 3600 },
    },
    Actor {
        name: "train.py",
        user: &VIS,
        claim: &["-g", "0.5", "--class", "batch", "--gpu-ids", "0"],
        enters: Enters::At(at(0)),
        job: || Job::Hog {
            step_mib: 768,
            every_ms: 250,
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
        ],
        enters: Enters::At(at(0)),
        job: || Job::Steady {
            kernel: "vllm_step".into(),
            grid: 48,
            block: 256,
            mib: 12_000,
            pause_ms: 6,
        },
    },
    // 40 blocks of a long kernel on 128 SMs, one after the other: always busy, mostly idle.
    Actor {
        name: "tagger.service",
        user: &CHEM,
        claim: &["-g", "0.3", "--class", "inference", "--gpu-ids", "1"],
        enters: Enters::At(at(0)),
        job: || Job::Steady {
            kernel: "tagger_step".into(),
            grid: 40,
            block: 256,
            mib: 5_000,
            pause_ms: 0,
        },
    },
    // Two notebooks that use a whole H100 each while nobody else needs one.
    Actor {
        name: LLAMA,
        user: &NLP,
        claim: HALF_AN_H100,
        enters: Enters::At(at(0)),
        job: || Job::Model {
            kernel: "llama_step".into(),
            mib: 30_000,
            weights_mib: 4,
            pause_ms: 1,
            ends: false,
        },
    },
    Actor {
        name: EVAL,
        user: &VIS,
        claim: HALF_AN_H100,
        enters: Enters::At(at(500)),
        job: || Job::Model {
            kernel: "eval_step".into(),
            mib: 4_000,
            weights_mib: 4,
            pause_ms: 1,
            ends: false,
        },
    },
    Actor {
        name: FINETUNE,
        user: &BIO,
        claim: &["-g", "1", "--class", "batch", "--gpu-ids", "2,3"],
        enters: Enters::Opened,
        job: || Job::Model {
            kernel: "finetune_step".into(),
            mib: 16_000,
            weights_mib: 1,
            pause_ms: 1,
            ends: true,
        },
    },
];

/// A notebook with half an H100, which may burst to all of it.
const HALF_AN_H100: &[&str] = &[
    "-g",
    "0.5",
    "--limit",
    "1",
    "--class",
    "interactive",
    "--gpu-ids",
    "2,3",
];

pub(super) const LLAMA: &str = "llama-ft.ipynb";
pub(super) const EVAL: &str = "eval.ipynb";
pub(super) const FINETUNE: &str = "finetune.py";

/// Shorter times than on a real machine.
pub(super) const RULES: &str = "\
[claims]
hide-gpus = \"library\"

[privacy]
names = \"all\"

[class]
interactive = { min-run = \"2s\" }

[reclaim]
countdown = \"3s\"
quiet = \"1s\"
host-ram = 90

[detach]
host-reserve = \"64 MiB\"

";
