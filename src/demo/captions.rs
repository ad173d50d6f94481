//! Captions of the demo, from the snapshot and the jobs' output: a sentence appears only if it is true.

use std::time::{Duration, Instant};

use gshare_core::Bytes;
use gshare_proto::{ClaimView, QueueView, Snapshot};

use super::actors::{EVAL, FINETUNE, LLAMA};
use super::direction::Direction;
use super::job::WEIGHTS;
use crate::station::Station;

/// The sentence of a scene, if it is true.
pub(super) type Say = fn(&Snapshot, &Story) -> Option<String>;

/// State of the captions besides the newest snapshot.
#[derive(Debug, Default)]
pub(super) struct Story {
    /// Launches per second of each claim over the last snapshots, by name.
    rates: Vec<(String, f64)>,
    /// The hog's output.
    hog: Option<String>,
    /// GPU of the moving notebook, as last seen, and its number of printed checksums on arrival.
    at: Option<(u32, usize)>,
    /// Its previous GPU.
    left: Option<u32>,
    /// All its printed checksums.
    checksums: Vec<String>,
    /// The claim of a whole GPU ran.
    ran: bool,
}

/// Finds the caption from successive snapshots of a station.
#[derive(Debug, Default)]
pub(super) struct Narrator {
    story: Story,
    last: Option<(Instant, Snapshot)>,
    pub(super) direction: Direction,
}

impl Narrator {
    /// The present caption, `at` from the start.
    pub(super) fn say(
        &mut self,
        station: &Station,
        snapshot: &Snapshot,
        at: Duration,
    ) -> Option<String> {
        let now = Instant::now();
        if let Some((before, old)) = &self.last {
            self.story.rates = rates(old, snapshot, now.duration_since(*before));
        }
        let age = |(before, _): &(Instant, Snapshot)| now.duration_since(*before);
        if self
            .last
            .as_ref()
            .is_none_or(|l| age(l) > Duration::from_secs(1))
        {
            self.last = Some((now, snapshot.clone()));
        }
        let hog = self.story.hog.take();
        self.story.hog = hog.or_else(|| hog_words(station));
        self.story.checksums = checksums(station, EVAL);
        self.story.follow(snapshot);
        self.direction.say(at, snapshot, &self.story)
    }
}

impl Story {
    /// Tracks the GPU of the moving notebook.
    fn follow(&mut self, snapshot: &Snapshot) {
        self.ran |= named(snapshot, FINETUNE).is_some();
        let Some(gpu) = named(snapshot, EVAL).and_then(gpu_of) else {
            return;
        };
        match self.at {
            Some((before, _)) if before == gpu => {}
            before => {
                self.left = before.map(|(gpu, _)| gpu);
                self.at = Some((gpu, self.checksums.len()));
            }
        }
    }

    /// The checksum of the notebook's weights, if it is the same before and after the move. A line printed before the
    /// move may arrive after it, so the next line counts.
    fn kept(&self) -> Option<&str> {
        let (_, before) = self.at?;
        let first = self.checksums.first()?;
        let after = before > 0 && self.checksums.len() > before + 1;
        let same = self.checksums.iter().all(|sum| sum == first);
        (after && same).then_some(first)
    }
}

/// The GPU of a claim that is not moving.
fn gpu_of(claim: &ClaimView) -> Option<u32> {
    let first = claim.gpus.first()?;
    claim.place.word.is_none().then_some(first.gpu)
}

/// Percent of its GPU's time that a claim got, if it exceeds the size.
fn burst(claim: &ClaimView) -> Option<f64> {
    let part = claim.gpus.first()?;
    let got = part.time_got?.value;
    (claim.place.word.is_none() && got > 100.0 * part.sm_request + 5.0).then_some(got)
}

/// The checksums that a job has printed.
fn checksums(station: &Station, name: &str) -> Vec<String> {
    let log = std::fs::read_to_string(station.dir().join(format!("{name}.log")));
    let log = log.unwrap_or_default();
    let lines = log
        .split_inclusive('\n')
        .filter_map(|l| l.strip_suffix('\n'));
    let sums = lines.filter_map(|l| l.strip_prefix(WEIGHTS));
    sums.map(str::to_owned).collect()
}

pub(super) fn busy_but_idle(s: &Snapshot, _: &Story) -> Option<String> {
    let gpu = s.gpus.iter().find(|g| {
        let (busy, active) = (g.time_busy.map(|f| f.value), g.sm_active.map(|f| f.value));
        busy.zip(active)
            .is_some_and(|(busy, active)| busy > 50.0 && active < busy / 2.0)
    })?;
    let (busy, active, sms) = (gpu.time_busy?.value, gpu.sm_active?.value, gpu.sms?);
    let idle = (f64::from(sms) * (1.0 - active / 100.0)).round();
    Some(format!(
        "GPU {} is {busy:.0} % busy, as nvidia-smi would say - and {idle:.0} of its {sms} SMs are idle",
        gpu.index
    ))
}

pub(super) fn hog_at_cap(s: &Snapshot, story: &Story) -> Option<String> {
    let hog = named(s, "train.py")?;
    let words = story.hog.as_deref()?;
    let gpu = hog.gpus.first()?.gpu;
    let neighbour = s
        .claims
        .iter()
        .find(|c| c.id != hog.id && c.gpus.iter().any(|p| p.gpu == gpu))?;
    Some(format!(
        "{} hit its limit: \"{words}\". Its neighbour {} keeps its {}",
        hog.id,
        neighbour.id,
        gib(neighbour)
    ))
}

fn gib(claim: &ClaimView) -> String {
    let bytes = claim.gpus.first().and_then(|p| p.mem_charge);
    bytes.map_or_else(|| "memory".to_owned(), |b| Bytes(b).to_string())
}

/// Two notebooks on GPUs of their own, each above its size.
fn two_bursts(s: &Snapshot) -> Option<(&ClaimView, &ClaimView, [f64; 2])> {
    let (a, b) = (named(s, LLAMA)?, named(s, EVAL)?);
    let got = [burst(a)?, burst(b)?];
    (gpu_of(a)? != gpu_of(b)?).then_some((a, b, got))
}

pub(super) fn both_burst(s: &Snapshot, _: &Story) -> Option<String> {
    let (a, b, got) = two_bursts(s)?;
    Some(format!(
        "{} and {} asked for half an H100 each and have {:.0} % and {:.0} % of one: nobody else needs it",
        a.id, b.id, got[0], got[1]
    ))
}

pub(super) fn somebody_waits(s: &Snapshot, _: &Story) -> Option<String> {
    let whole = |q: &&QueueView| q.name.as_deref() == Some(FINETUNE);
    let head = s.queue.iter().find(whole)?;
    let who = owner(&head.project, &head.user);
    let how = head.plan.as_ref().map_or(&head.reason, |plan| plan);
    Some(format!("{} ({who}) waits for a whole GPU: {how}", head.id))
}

pub(super) fn one_moves(s: &Snapshot, story: &Story) -> Option<String> {
    let claim = named(s, EVAL)?;
    let moved = || {
        let (from, to, sum) = (story.left?, gpu_of(claim)?, story.kept()?);
        let after = format!("moved from GPU {from} to GPU {to} while it ran");
        Some(format!(
            "{} {after}; its weights there have the checksum {sum}, as before",
            claim.id
        ))
    };
    match claim.place.word.as_deref() {
        Some("moving") => {
            let to = claim.place.to.first()?;
            let what = gib(claim);
            Some(format!(
                "{} moves to GPU {to} with its {what}; its processes live on",
                claim.id
            ))
        }
        // After its return there are other sentences.
        _ if !s.queue.is_empty() || named(s, FINETUNE).is_some() => moved(),
        _ => None,
    }
}

pub(super) fn it_starts(s: &Snapshot, story: &Story) -> Option<String> {
    let claim = named(s, FINETUNE)?;
    let rate = story.rates.iter().find(|(name, _)| name == FINETUNE)?.1;
    let gpu = gpu_of(claim)?;
    let kept = match (story.left, story.kept()) {
        (Some(from), Some(sum)) if from == gpu => {
            let moved = named(s, EVAL)?;
            let to = gpu_of(moved)?;
            format!("; {} works on GPU {to}, checksum {sum} as before", moved.id)
        }
        _ => return None,
    };
    Some(format!(
        "GPU {gpu} became free: {} runs there, {rate:.0} launches/s{kept}",
        claim.id
    ))
}

pub(super) fn it_has_ended(s: &Snapshot, story: &Story) -> Option<String> {
    let (stayed, moved) = (named(s, LLAMA)?, named(s, EVAL)?);
    let how = moved.announced.as_ref()?;
    let over = story.ran && named(s, FINETUNE).is_none() && s.queue.is_empty();
    over.then(|| {
        let (a, b) = (&stayed.id, &moved.id);
        format!("the whole GPU is free again; {a} and {b} share another: {b} {how}")
    })
}

pub(super) fn bursts_return(s: &Snapshot, story: &Story) -> Option<String> {
    let (a, b, got) = two_bursts(s)?;
    let sum = story.kept()?;
    let over = story.ran && named(s, FINETUNE).is_none() && s.queue.is_empty();
    over.then(|| {
        format!(
            "{} and {} burst again, {:.0} % and {:.0} % of a GPU each; checksum {sum} still - press n: claim 0.25 yourself",
            a.id, b.id, got[0], got[1]
        )
    })
}

pub(super) fn your_turn(_: &Snapshot, _: &Story) -> Option<String> {
    Some("your turn - press n and claim 0.25 yourself; q ends the demo".to_owned())
}

fn owner<'a>(project: &'a str, user: &'a str) -> &'a str {
    if project.is_empty() { user } else { project }
}

fn named<'a>(s: &'a Snapshot, name: &str) -> Option<&'a ClaimView> {
    s.claims.iter().find(|c| c.name.as_deref() == Some(name))
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

/// The hog's output when it was refused.
fn hog_words(station: &Station) -> Option<String> {
    let log = std::fs::read_to_string(station.dir().join("train.py.log")).ok()?;
    let line = log.lines().find(|l| l.contains("out of memory"))?;
    let words = line.trim_start_matches("train.py: RuntimeError: ");
    Some(words.split(" with ").next().unwrap_or(words).to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_caption_is_only_told_when_it_is_true() {
        let story = Story::default();
        assert_eq!(busy_but_idle(&Snapshot::default(), &story), None);
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
        let told = busy_but_idle(&busy(30.0), &story);
        assert_eq!(
            told.as_deref(),
            Some("GPU 2 is 99 % busy, as nvidia-smi would say - and 92 of its 132 SMs are idle")
        );
        assert_eq!(busy_but_idle(&busy(90.0), &story), None);
    }
}
