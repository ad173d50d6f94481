//! Use of running claims so far, and state for their sizes.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, Mutex, OnceLock};
use std::time::{Duration, Instant};

use gshare_core::ClaimId;
use gshare_core::machine::{Action, Claimable, Expected};
use gshare_core::predict::{Busy, Phase, Place, Track, phases};
use gshare_proto::{ClaimGpu, Figure};

use super::connection::ConnId;
use super::history::runs::{AskedByRun, EndOfRun, PARTS, RunRecord, Told, UsedByRun};
use super::history::say::Used;
use super::journal::ClaimRecord;

/// Maximum number of points; beyond it, pairs are merged.
const POINTS: usize = 512;
/// Longest time that one look covers, in seconds.
const LONGEST: f64 = 5.0;
/// Maximum number of earlier runs whose phases are followed.
const FOLLOWED: usize = 4;

/// Experience from earlier runs.
#[derive(Clone, Debug, Default)]
pub(crate) struct Experience {
    /// Bytes that all but a nominal fraction stay below, and the median.
    pub(crate) bound: u64,
    pub(crate) middle: u64,
    /// They ran the same script with the same arguments.
    pub(crate) near: bool,
    pub(crate) runs: usize,
    /// Phases of the newest ones.
    pub(crate) phases: Vec<Vec<Phase>>,
    /// Fraction of the SMs that was enough.
    pub(crate) share: Option<f64>,
}

/// State of running claims for their sizes.
#[derive(Debug, Default)]
pub(crate) struct Sizes {
    pub(super) runs: BTreeMap<ClaimId, RunTrack>,
    /// Connections that wait for a size.
    pub(super) asking: BTreeSet<ConnId>,
    /// Number of claims whose earlier runs are being looked up.
    pub(super) looked_up: usize,
    /// Expected starts of waiting claims, computed on the first query after each decision.
    pub(super) expected: OnceLock<BTreeMap<ClaimId, Expected>>,
    /// What each user who has asked could claim, computed likewise.
    pub(super) room: Mutex<BTreeMap<u32, Arc<Claimable>>>,
}

impl Sizes {
    /// The core has made decisions, perhaps about resize requests.
    pub(crate) fn decided(&mut self, actions: &[Action]) {
        let followed = |action: &Action| match action {
            Action::Resize { ticket, .. } | Action::ResizeRefused { ticket, .. } => Some(*ticket),
            _ => None,
        };
        for ticket in actions.iter().filter_map(followed) {
            for track in self.runs.values_mut() {
                track.wish.take_if(|(open, _)| *open == ticket);
            }
        }
        self.expected.take();
        if let Ok(known) = self.room.get_mut() {
            known.clear();
        }
    }
}

/// A running run.
#[derive(Clone, Debug)]
pub(crate) struct RunTrack {
    pub(crate) began: Instant,
    last: Option<Instant>,
    pub(crate) memory: MemoryTrack,
    work: WorkTrack,
    /// Its notebook, when last seen.
    pub(crate) notebook: Option<String>,
    /// The records were requested.
    pub(crate) asked: bool,
    pub(crate) experience: Option<Experience>,
    /// The records have answered.
    pub(crate) known: bool,
    /// Last automatic change of its size.
    pub(crate) changed: Option<Instant>,
    /// An open request to grow, and its bytes.
    pub(crate) wish: Option<(u64, u64)>,
}

/// Its memory so far.
#[derive(Clone, Debug, Default)]
pub(crate) struct MemoryTrack {
    /// Peaks in equal parts of time.
    points: Vec<u64>,
    point_s: f64,
    filled_s: f64,
    peak: u64,
    /// The last two hours, for a size that follows the need.
    next: Track,
    lately: Track,
    pub(crate) place: Place,
    stable_s: f64,
}

/// Its use of the SMs of its GPUs.
#[derive(Clone, Debug, Default)]
struct WorkTrack {
    next_sm: Track,
    busy: Busy,
    /// In the present stretch of time and in the previous one.
    lately_busy: [Busy; 2],
    stretch_began: f64,
    in_turns: bool,
    sm: (f64, f64),
    occupancy: (f64, f64),
    gpu_s: Option<f64>,
    burst: f64,
    throttled: f64,
}

impl RunTrack {
    pub(crate) fn new(follow: Duration) -> Self {
        Self {
            began: Instant::now(),
            last: None,
            memory: MemoryTrack {
                point_s: 0.25,
                lately: Track::over(follow),
                stable_s: follow.as_secs_f64() / 2.0,
                ..MemoryTrack::default()
            },
            work: WorkTrack {
                in_turns: true,
                ..WorkTrack::default()
            },
            notebook: None,
            asked: false,
            experience: None,
            known: false,
            changed: None,
            wish: None,
        }
    }

    pub(crate) fn look(&mut self, parts: &[ClaimGpu], held_back: f64, in_turns: bool) {
        let now = Instant::now();
        let passed = self
            .last
            .replace(now)
            .map_or(0.0, |at| now.duration_since(at).as_secs_f64());
        let at = now.duration_since(self.began);
        self.memory.look(parts, at, passed);
        self.work.in_turns = in_turns;
        // A stretch is as long as the period for memory.
        if at.as_secs_f64() - self.work.stretch_began >= 2.0 * self.memory.stable_s {
            self.work.lately_busy = [Busy::default(), self.work.lately_busy[0]];
            self.work.stretch_began = at.as_secs_f64();
        }
        self.work.look(parts, at, passed.min(LONGEST), held_back);
    }

    pub(crate) fn learn(&mut self, told: &Told) {
        self.known = true;
        let Some(e) = &told.estimate else { return };
        let followed = told.records.iter().take(FOLLOWED);
        self.experience = Some(Experience {
            bound: e.bound.0,
            middle: e.middle.0,
            near: matches!(
                e.level,
                gshare_core::predict::Level::Repeats | gshare_core::predict::Level::Scaled
            ),
            runs: e.runs.len(),
            phases: followed
                .map(|r| phases(&r.used.parts, r.ended.seconds))
                .collect(),
            share: told.share(),
        });
    }

    /// Seconds since it was first looked at.
    pub(crate) fn ran(&self) -> f64 {
        self.began.elapsed().as_secs_f64()
    }

    /// Memory now, and the recent peak.
    pub(crate) fn lately(&self) -> Option<f64> {
        self.memory.lately.need().map(|n| n.highest)
    }

    pub(crate) fn used(&self) -> Used {
        let next = self.memory.next.need();
        Used {
            seconds: self.ran(),
            peak: self.memory.peak,
            next_mem: next.map(|n| n.need as u64),
            next_sm: self.work.next_sm.need().map(|n| n.need.min(1.0)),
            enough: self.work.busy.enough(),
            most: self.work.busy.most(),
        }
    }

    /// The fraction of the SMs (of GPU time) to guarantee: enough for earlier runs of the same program, and for
    /// recent use.
    pub(crate) fn share(&self) -> Option<f64> {
        let near = self.experience.as_ref().filter(|e| e.near);
        let mut lately = self.work.lately_busy[0];
        lately.merge(&self.work.lately_busy[1]);
        let shares = [near.and_then(|e| e.share), lately.enough()];
        shares.into_iter().flatten().reduce(f64::max)
    }

    /// Its record, at its end.
    pub(crate) fn record(
        &self,
        claim: &ClaimRecord,
        peak: u64,
        model: &str,
        cause: &str,
        refusals: u64,
        now_ms: u64,
    ) -> RunRecord {
        let gpus = claim.slices.len().max(1);
        let slice = claim.slices.first();
        let peak = self.memory.peak.max(peak / gpus as u64);
        let mean = |(sum, seconds): (f64, f64)| (seconds > 0.0).then_some(sum / seconds);
        RunRecord {
            claim: claim.id,
            ended_ms: now_ms,
            uid: claim.uid,
            project: claim.project.clone(),
            class: claim.class.clone(),
            shape: claim.command.key().clone(),
            asked: AskedByRun {
                gpu_model: model.to_owned(),
                gpus: gpus as u32,
                mem: slice.map_or(0, |s| s.mem),
                sm: slice.map_or(0.0, |s| f64::from(s.sm_milli) / 1000.0),
                auto: claim.terms.auto,
            },
            used: UsedByRun {
                peak,
                mem: self.memory.quantiles(peak),
                parts: self.memory.parts(peak),
                sm_active: mean(self.work.sm),
                occupancy: mean(self.work.occupancy),
                busy: self.work.busy.0,
                in_turns: self.work.in_turns,
                gpu_s: self.work.gpu_s,
                burst_gpu_s: self.work.burst,
                throttled_s: self.work.throttled,
                refusals,
            },
            ended: EndOfRun {
                seconds: now_ms.saturating_sub(claim.granted_ms) as f64 / 1000.0,
                cause: cause.to_owned(),
                ..EndOfRun::default()
            },
            ..RunRecord::default()
        }
    }
}

impl MemoryTrack {
    fn look(&mut self, parts: &[ClaimGpu], at: Duration, passed: f64) {
        let mem = parts
            .iter()
            .filter_map(|p| p.mem_charge.or(p.mem_used))
            .max();
        let peaks = parts.iter().filter_map(|p| p.mem_peak).max().unwrap_or(0);
        self.peak = self.peak.max(mem.unwrap_or(0)).max(peaks);
        if let Some(mem) = mem {
            self.next.look(at, mem as f64);
            self.lately.look(at, mem as f64);
            self.place.look(at.as_secs_f64(), mem as f64, self.stable_s);
            self.add_point(passed, mem);
        }
    }

    fn add_point(&mut self, passed: f64, mem: u64) {
        self.filled_s += passed;
        let wanted = ((self.filled_s / self.point_s) as usize).max(self.points.len());
        // Time between two looks counts like the later one.
        while self.points.len() <= wanted {
            if self.points.len() >= POINTS {
                self.points = self
                    .points
                    .chunks(2)
                    .map(|c| c.iter().copied().max().unwrap_or(0))
                    .collect();
                self.point_s *= 2.0;
                return self.add_point(0.0, mem);
            }
            self.points.push(mem);
            if self.filled_s / self.point_s <= self.points.len() as f64 {
                break;
            }
        }
        if let Some(last) = self.points.last_mut() {
            *last = (*last).max(mem);
        }
    }

    /// Median, 90th and 99th percentile over its time; `peak` if no point is known.
    fn quantiles(&self, peak: u64) -> [u64; 3] {
        let mut sorted = self.points.clone();
        sorted.sort_unstable();
        [0.5, 0.9, 0.99].map(|q| {
            let place = ((sorted.len() as f64 * q).ceil() as usize).saturating_sub(1);
            sorted.get(place).copied().unwrap_or(peak)
        })
    }

    /// Peak in each part of the run, in order of time.
    fn parts(&self, peak: u64) -> Vec<u64> {
        let many = self.points.len();
        let parts = (0..PARTS).map(|n| {
            let (from, to) = (n * many / PARTS, (n + 1) * many / PARTS);
            let part = &self.points[from..to.max(from + 1).min(many)];
            part.iter().copied().max().unwrap_or(peak)
        });
        parts.filter(|_| many > 0).collect()
    }
}

impl WorkTrack {
    fn look(&mut self, parts: &[ClaimGpu], at: Duration, seconds: f64, held_back: f64) {
        let of = |figure: Option<Figure>| figure.map(|f| (f.value / 100.0).clamp(0.0, 1.0));
        for part in parts {
            let time = of(part.time_got).or(of(part.time_busy));
            // In turns time is shared, side by side SMs.
            let used = match self.in_turns {
                true => time.or(of(part.sm_active)),
                false => of(part.sm_active).or(time),
            };
            if let Some(used) = used {
                self.busy.add(seconds, used, held_back);
                self.lately_busy[0].add(seconds, used, held_back);
                self.next_sm.look(at, used);
                *self.gpu_s.get_or_insert(0.0) += used * seconds;
                self.burst += (used - part.sm_request).max(0.0) * seconds;
            }
            if let Some(active) = of(part.sm_active) {
                self.sm = (self.sm.0 + active * seconds, self.sm.1 + seconds);
            }
            if let Some(resident) = of(part.sm_occupancy) {
                let (sum, before) = self.occupancy;
                self.occupancy = (sum + resident * seconds, before + seconds);
            }
        }
        self.throttled += held_back * seconds;
    }
}
