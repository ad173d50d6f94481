//! What the core knows beside where claims are, as journaled. Times are Unix milliseconds, GPUs numbers in the list
//! that is journaled with them.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use gshare_core::machine::lever::{Lever, Levers};
use gshare_core::machine::{Kept, Memory, Now, Plan, Stage, Standing, Step};
use gshare_core::{Bytes, ClaimId, Request, Share};
use serde::{Deserialize, Serialize};

/// All of it.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub(crate) struct MemoryRecord {
    /// UUIDs of the GPUs, in the order of their numbers.
    pub(crate) gpus: Vec<String>,
    claims: BTreeMap<u64, StandingRecord>,
    plans: Vec<PlanRecord>,
    /// By uid: GPU-seconds, and as of when (Unix seconds).
    past: BTreeMap<u32, (f64, f64)>,
    past_ms: u64,
    seq: u64,
    quiet_ms: u64,
    wanted: Vec<u64>,
    warned: Vec<u64>,
    over: Vec<u64>,
    #[serde(default)]
    away_ms: BTreeMap<u64, u64>,
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
struct StandingRecord {
    seq: u64,
    since_ms: u64,
    attained_s: f64,
    park: Result<(), String>,
    movable: Result<(), String>,
    requeue: bool,
    idle: bool,
    spared: Vec<(LeverRecord, u64)>,
    failures: u32,
    kept_for: Vec<Option<u64>>,
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub(crate) struct KeptRecord {
    id: u64,
    request: RequestRecord,
    seq: u64,
    since_ms: u64,
    deadline_ms: Option<u64>,
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
struct RequestRecord {
    gpus: u32,
    share: u32,
    mem: Option<u64>,
    mem_limit: Option<u64>,
    mem_limit_share: Option<u32>,
    sm: u32,
    sm_limit: u32,
    only: Vec<u32>,
    mode: Option<String>,
    movable: bool,
    lease_ms: Option<u64>,
    class: String,
    uid: u32,
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
struct PlanRecord {
    waiter: Option<u64>,
    at: Vec<usize>,
    steps: Vec<StepRecord>,
    due_ms: u64,
    entitled: bool,
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
struct StepRecord {
    id: u64,
    lever: LeverRecord,
    to: Vec<usize>,
    sm: Option<u32>,
    stage: StageRecord,
}

/// The same words in the core and in the journal.
macro_rules! words {
    ($record:ident of $core:ident: $($word:ident),*) => {
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
        #[serde(rename_all = "snake_case")]
        enum $record { $($word),* }
        impl From<$core> for $record {
            fn from(word: $core) -> Self {
                match word { $($core::$word => Self::$word),* }
            }
        }
        impl From<$record> for $core {
            fn from(word: $record) -> Self {
                match word { $($record::$word => Self::$word),* }
            }
        }
    };
}
words!(LeverRecord of Lever: Caps, Share, Detach, Move, Suspend, Requeue, Kill);
words!(StageRecord of Stage: Announced, Underway, Done);

impl RequestRecord {
    fn of(request: &Request) -> Self {
        Self {
            gpus: request.gpus,
            share: request.share.milli(),
            mem: request.mem.map(|b| b.0),
            mem_limit: request.mem_limit.map(|b| b.0),
            mem_limit_share: request.mem_limit_share.map(Share::milli),
            sm: request.sm.milli(),
            sm_limit: request.sm_limit.milli(),
            only: request.only_gpus.clone(),
            mode: request.mode.map(|m| m.name().to_owned()),
            movable: request.movable,
            lease_ms: request.lease.map(crate::clock::millis),
            class: request.class.name().to_owned(),
            uid: request.uid,
        }
    }

    fn request(&self) -> Request {
        Request {
            gpus: self.gpus,
            share: Share::from_milli(self.share),
            mem: self.mem.map(Bytes),
            mem_limit: self.mem_limit.map(Bytes),
            mem_limit_share: self.mem_limit_share.map(Share::from_milli),
            sm: Share::from_milli(self.sm),
            sm_limit: Share::from_milli(self.sm_limit),
            only_gpus: self.only.clone(),
            mode: self.mode.as_deref().and_then(|m| m.parse().ok()),
            movable: self.movable,
            lease: self.lease_ms.map(Duration::from_millis),
            class: self.class.parse().unwrap_or_default(),
            uid: self.uid,
        }
    }
}

impl KeptRecord {
    /// What is to be written.
    pub(crate) fn of(kept: &Kept, unix: impl Fn(Now) -> u64) -> Self {
        Self {
            id: kept.id.0,
            request: RequestRecord::of(&kept.request),
            seq: kept.seq,
            since_ms: unix(kept.since),
            deadline_ms: kept.deadline.map(unix),
        }
    }

    /// What was written, by the clock of this core.
    pub(crate) fn kept(&self, now: impl Fn(u64) -> Now) -> Kept {
        Kept {
            id: ClaimId(self.id),
            request: self.request.request(),
            seq: self.seq,
            since: now(self.since_ms),
            deadline: self.deadline_ms.map(now),
        }
    }

    pub(super) fn id(&self) -> u64 {
        self.id
    }

    pub(super) fn seq(&self) -> u64 {
        self.seq
    }
}

impl MemoryRecord {
    /// What is to be written, with the clock of the core in Unix milliseconds.
    pub(crate) fn of(memory: &Memory, gpus: Vec<String>, unix: impl Fn(Now) -> u64) -> Self {
        let standing = |(id, s): (&ClaimId, &Standing)| {
            let spared = s.spared.iter().map(|(l, at)| ((*l).into(), unix(*at)));
            let record = StandingRecord {
                seq: s.seq,
                since_ms: unix(s.since),
                attained_s: s.attained_s,
                park: s.levers.park.clone(),
                movable: s.levers.movable.clone(),
                requeue: s.levers.requeue,
                idle: s.levers.idle,
                spared: spared.collect(),
                failures: s.failures,
                kept_for: s.kept_for.iter().map(|id| id.map(|id| id.0)).collect(),
            };
            (id.0, record)
        };
        let step = |s: &Step| StepRecord {
            id: s.id.0,
            lever: s.lever.into(),
            to: s.to.clone(),
            sm: s.sm.map(Share::milli),
            stage: s.stage.into(),
        };
        let plan = |p: &Plan| PlanRecord {
            waiter: p.waiter.map(|id| id.0),
            at: p.at.clone(),
            steps: p.steps.iter().map(step).collect(),
            due_ms: unix(p.due),
            entitled: p.entitled,
        };
        let origin = unix(Now::ZERO) as f64 / 1000.0;
        let past = memory.past.iter();
        Self {
            gpus,
            claims: memory.claims.iter().map(standing).collect(),
            plans: memory.plans.iter().map(plan).collect(),
            past: past
                .map(|(uid, (sum, at))| (*uid, (*sum, origin + at)))
                .collect(),
            past_ms: unix(memory.past_at),
            seq: memory.seq,
            quiet_ms: unix(memory.quiet_since),
            wanted: memory.wanted.iter().map(|id| id.0).collect(),
            warned: memory.warned.iter().map(|id| id.0).collect(),
            over: memory.over.iter().map(|id| id.0).collect(),
            away_ms: memory
                .away
                .iter()
                .map(|(id, at)| (id.0, unix(*at)))
                .collect(),
        }
    }

    /// What was written, by the clock of this core; the queue has rows of its own.
    pub(crate) fn memory(&self, now: impl Fn(u64) -> Now) -> Memory {
        let standing = |(id, s): (&u64, &StandingRecord)| {
            let spared = s.spared.iter().map(|(l, at)| ((*l).into(), now(*at)));
            let standing = Standing {
                seq: s.seq,
                since: now(s.since_ms),
                attained_s: s.attained_s,
                levers: Levers {
                    park: s.park.clone(),
                    movable: s.movable.clone(),
                    requeue: s.requeue,
                    idle: s.idle,
                },
                spared: spared.collect(),
                failures: s.failures,
                kept_for: s.kept_for.iter().map(|id| id.map(ClaimId)).collect(),
            };
            (ClaimId(*id), standing)
        };
        let step = |s: &StepRecord| Step {
            id: ClaimId(s.id),
            lever: s.lever.into(),
            to: s.to.clone(),
            sm: s.sm.map(Share::from_milli),
            stage: s.stage.into(),
        };
        let plan = |p: &PlanRecord| Plan {
            waiter: p.waiter.map(ClaimId),
            at: p.at.clone(),
            steps: p.steps.iter().map(step).collect(),
            due: now(p.due_ms),
            entitled: p.entitled,
        };
        let ids =
            |list: &[u64]| -> BTreeSet<ClaimId> { list.iter().map(|id| ClaimId(*id)).collect() };
        let second = |unix_s: f64| now((unix_s.max(0.0) * 1000.0) as u64).as_secs_f64();
        let past = self.past.iter();
        Memory {
            claims: self.claims.iter().map(standing).collect(),
            queue: Vec::new(),
            plans: self.plans.iter().map(plan).collect(),
            past: past
                .map(|(uid, (sum, at))| (*uid, (*sum, second(*at))))
                .collect(),
            past_at: now(self.past_ms),
            seq: self.seq,
            quiet_since: now(self.quiet_ms),
            wanted: ids(&self.wanted),
            warned: ids(&self.warned),
            over: ids(&self.over),
            away: self
                .away_ms
                .iter()
                .map(|(id, ms)| (ClaimId(*id), now(*ms)))
                .collect(),
        }
    }
}
