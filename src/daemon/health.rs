//! Sick GPUs: what the driver reports of errors, repairs and clocks, what that means, who is told. A sick GPU takes no
//! new claims until an administrator says that it is mended, or the machine was restarted. The kernel's log alone makes
//! none sick: NVML has to confirm it.

mod kmsg;
mod table;

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::time::{Duration, Instant};

use gshare_core::ClaimId;
use gshare_enforcer::gpu::{GpuState, Seen};
use gshare_proto::{Check, Grade, HealthView, RemappedView, XidView};

use super::service::Service;
use super::{Msg, doctor, unix_ms};
pub(crate) use kmsg::KernelXid;
use table::{Act, Meaning};

/// Errors of a GPU that are shown.
const SHOWN: usize = 8;
/// The same error from NVML and from the kernel's log comes within this time.
const SAME: u64 = 10_000;
/// An error that the kernel's log alone has is a warning for so long, in milliseconds.
const UNCONFIRMED: u64 = 600_000;
/// What the two sources of errors are called.
const NVML: &str = "nvml";
const KERNEL_LOG: &str = "kernel log";
/// Memory errors of longer ago are not a reason to look.
const LATELY: Duration = Duration::from_secs(7 * 86_400);

/// Errors by UUID of the GPU, newest first.
#[derive(Debug, Default)]
pub(crate) struct Illness {
    xids: BTreeMap<String, VecDeque<XidView>>,
    /// Newest event of NVML that was taken, by index.
    taken: BTreeMap<usize, Instant>,
    /// How often GPUs had been lost when they were last seen well, by index.
    losses: BTreeMap<usize, u32>,
    /// GPUs that are back, and since when by Unix milliseconds: what the driver says of them is waited for.
    back: BTreeMap<usize, u64>,
    /// GPUs that were sick at the last look, with the first reason.
    sick: BTreeMap<String, String>,
}

impl Illness {
    /// A GPU may have been reset while nobody looked: what a reset mends is over if the driver says so.
    pub(super) fn came_back(&mut self, g: usize) {
        self.back.insert(g, unix_ms());
    }
}

/// An error as the journal keeps it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct XidRecord {
    /// UUID of the GPU.
    pub(crate) uuid: String,
    /// When, Unix milliseconds.
    pub(crate) at_ms: u64,
    /// Its number.
    pub(crate) code: u64,
    /// The process that it names.
    pub(crate) pid: Option<u32>,
    /// `nvml` or `kernel log`.
    pub(crate) source: String,
}

impl XidRecord {
    fn view(&self, gpu: usize) -> XidView {
        let meaning = table::of(self.code);
        XidView {
            at_ms: self.at_ms,
            code: self.code,
            text: meaning.text.to_owned(),
            tell: tell(&meaning, &self.source, gpu),
            pid: self.pid,
            source: self.source.clone(),
        }
    }
}

/// Whether an error would make a GPU sick if NVML said so too.
fn unconfirmed(meaning: &Meaning, source: &str) -> bool {
    source == KERNEL_LOG && meaning.act.grade() == Grade::Sick
}

/// What to do about an error.
fn tell(meaning: &Meaning, source: &str, gpu: usize) -> String {
    match unconfirmed(meaning, source) {
        true => format!(
            "only the kernel's log has it, so the GPU still takes claims; compare nvidia-smi -i {gpu} and sudo dmesg"
        ),
        false => meaning.act.tell(gpu),
    }
}

/// This start of the machine: a restart mends what only that can.
pub(super) fn boot_id() -> String {
    let id = std::fs::read_to_string("/proc/sys/kernel/random/boot_id");
    id.unwrap_or_default().trim().to_owned()
}

impl Service {
    /// Takes the errors of this start of the machine from the journal, and begins to read the kernel's log.
    pub(crate) fn load_health(&mut self) {
        let from = unix_ms().saturating_sub(super::millis(LATELY));
        match self.journal.xids(&boot_id(), from) {
            Ok(records) => {
                for record in records {
                    let gpu = self.gpu_index(&record.uuid).unwrap_or(0);
                    let view = record.view(gpu);
                    self.illness
                        .xids
                        .entry(record.uuid)
                        .or_default()
                        .push_front(view);
                }
            }
            Err(error) => tracing::warn!(%error, "errors of before are not known"),
        }
        for g in 0..self.gpus.len() {
            if let (Grade::Sick, Some(reason)) = self.grade(g) {
                self.illness.sick.insert(self.gpus[g].uuid.clone(), reason);
            }
        }
        if let Some(log) = self.config.driver.kernel_log.path(self.simulated) {
            let events = self.events.clone();
            kmsg::watch(&log, move |xid| events.send(Msg::KernelXid(xid)).is_ok());
        }
    }

    /// Takes what the newest sample says of health.
    pub(crate) fn look_at_health(&mut self) {
        for g in 0..self.gpus.len() {
            if self.gpus[g].parent.is_some() {
                continue;
            }
            let Some(reading) = self.last_reading(g) else {
                continue;
            };
            let taken = self.illness.taken.get(&g).copied();
            let new = |at: &Instant| taken.is_none_or(|t| *at > t);
            let xids: Vec<(Instant, u64)> = reading
                .health
                .xids
                .iter()
                .filter(|x| new(&x.at))
                .map(|x| (x.at, x.code))
                .collect();
            for (at, code) in xids {
                self.illness.taken.insert(g, at);
                self.take_xid(g, code, None, NVML);
            }
            self.look_for_return(g);
            self.tell_of_sickness(g);
        }
    }

    /// A GPU that was lost and answers again was reset: that it fell off the bus is over, and so is what a reset
    /// mends, where the driver itself says that nothing has to be done any more. What was on it is gone.
    fn look_for_return(&mut self, g: usize) {
        let Some(reading) = self.last_reading(g).filter(|r| r.state == GpuState::Ok) else {
            return;
        };
        let (losses, recovery) = (reading.losses, reading.health.recovery);
        let before = self.illness.losses.insert(g, losses).unwrap_or(0);
        // Fewer than before: NVML was initialised anew.
        if losses > before {
            self.illness.back.insert(g, unix_ms());
            self.tell_of_reset(g);
            self.forget_xids(g, |x| x.code == table::OFF_THE_BUS);
        }
        if let Some(needed) = recovery
            && let Some(since) = self.illness.back.remove(&g)
            && needed == 0
        {
            let mends = |code| matches!(table::of(code).act, Act::Reset | Act::Later);
            self.forget_xids(g, |x| x.at_ms <= since && mends(x.code));
        }
    }

    /// Forgets errors of a GPU that are over.
    fn forget_xids(&mut self, g: usize, over: impl Fn(&XidView) -> bool) {
        let uuid = self.gpus[g].uuid.clone();
        let Some(known) = self.illness.xids.get_mut(&uuid) else {
            return;
        };
        let codes: BTreeSet<u64> = known.iter().filter(|x| over(x)).map(|x| x.code).collect();
        known.retain(|x| !codes.contains(&x.code));
        for code in codes {
            if let Err(error) = self.journal.forget_xid(&uuid, code) {
                tracing::warn!(%error, "an error of a GPU that is back could not be forgotten");
            }
        }
    }

    /// Tells those whose programs live on while the driver does not name them any more.
    fn tell_of_reset(&mut self, g: usize) {
        let Some(listed) = self.reading(g).and_then(|r| r.processes.as_ref()) else {
            return;
        };
        let listed: BTreeSet<i32> = listed.iter().map(|p| p.pid).collect();
        let total = self.gpus[g].total;
        let bereft = |live: &super::service::Live| {
            let seats = live.seats.iter().filter(|s| s.gpu == g);
            let mut slots = seats.flat_map(|s| s.usage.read_slots(total));
            let here = matches!(live.record.holding, super::journal::HoldingRecord::Here);
            let gone = |pid: u32| !listed.contains(&pid.cast_signed());
            here && slots.any(|s| s.charge_bytes > 0 && gone(s.pid))
        };
        let hit: Vec<ClaimId> = self
            .claims
            .iter()
            .filter(|(_, live)| bereft(live))
            .map(|(id, _)| *id)
            .collect();
        if hit.is_empty() {
            return;
        }
        self.notice(
            None,
            format!("GPU {g} was reset: what programs had on it is lost"),
        );
        for id in hit {
            let text = format!(
                "GPU {g} was reset: what {id} had on it is lost, and CUDA calls of its programs fail; start them anew"
            );
            self.tell_owner(id, &text);
        }
    }

    /// The kernel's log has an error.
    pub(crate) fn kernel_xid(&mut self, xid: &KernelXid) {
        let found = (0..self.gpus.len()).find(|g| {
            let bus = self.last_reading(*g).and_then(|r| r.pci_bus_id.as_deref());
            self.gpus[*g].parent.is_none() && bus.and_then(kmsg::pci) == Some(xid.pci)
        });
        match found {
            Some(g) => {
                self.take_xid(g, xid.code, xid.pid, KERNEL_LOG);
                self.tell_of_sickness(g);
                self.refresh_facts();
            }
            None => tracing::warn!(code = xid.code, "an Xid of a GPU that is not known here"),
        }
    }

    fn take_xid(&mut self, g: usize, code: u64, pid: Option<u32>, source: &str) {
        let uuid = self.gpus[g].uuid.clone();
        let now = unix_ms();
        let known = self.illness.xids.entry(uuid.clone()).or_default();
        let same = known
            .iter_mut()
            .find(|x| x.code == code && x.source != source && now.saturating_sub(x.at_ms) <= SAME);
        if let Some(same) = same {
            same.pid = same.pid.or(pid);
            let meaning = table::of(code);
            if source != NVML || !unconfirmed(&meaning, &same.source) {
                return;
            }
            // Taken again as what NVML confirms.
            known.retain(|x| x.code != code || x.source != KERNEL_LOG);
        }
        let record = XidRecord {
            uuid,
            at_ms: now,
            code,
            pid,
            source: source.to_owned(),
        };
        known.push_front(record.view(g));
        known.truncate(SHOWN);
        if let Err(error) = self.journal.add_xid(&boot_id(), &record) {
            tracing::warn!(%error, "an error of a GPU could not be written down");
        }
        let meaning = table::of(code);
        let text = format!("GPU {g}: Xid {code}: {}", meaning.text);
        self.notice(None, text.clone());
        self.tell_of_xid(
            g,
            pid,
            &meaning,
            &format!("{text}; {}", tell(&meaning, source, g)),
        );
    }

    /// Tells those whose work it concerns: of a program's own fault its owner, else everybody who holds a part.
    fn tell_of_xid(&mut self, g: usize, pid: Option<u32>, meaning: &Meaning, text: &str) {
        let whose = pid.and_then(|pid| self.claim_of(pid.cast_signed()));
        let holders: Vec<ClaimId> = match (whose, meaning.act) {
            (_, Act::Nothing) => Vec::new(),
            (Some(id), Act::Program) => vec![id],
            _ => self.holders_of(g),
        };
        for id in holders {
            self.tell_owner(id, text);
        }
    }

    fn holders_of(&self, g: usize) -> Vec<ClaimId> {
        let on = |live: &super::service::Live| {
            let mut slices = live.record.slices.iter();
            slices.any(|s| {
                let at = self.gpu_index(&s.uuid);
                at == Some(g) || at.is_some_and(|at| self.gpus[at].parent == Some(g))
            })
        };
        let holding = self.claims.iter().filter(|(_, live)| on(live));
        holding.map(|(id, _)| *id).collect()
    }

    /// A GPU that has become sick, or well again, is told of once.
    fn tell_of_sickness(&mut self, g: usize) {
        let uuid = self.gpus[g].uuid.clone();
        let was = self.illness.sick.contains_key(&uuid);
        match self.grade(g) {
            (Grade::Sick, Some(reason)) if !was => {
                self.illness.sick.insert(uuid, reason.clone());
                self.notice(None, format!("GPU {g} takes no new claims: {reason}"));
                let what = self.health_view(g).and_then(|h| h.tell).unwrap_or_default();
                // Of an error that makes a GPU sick they have just been told, and what to do.
                let told = self.told_just_now(g);
                for id in self.holders_of(g).into_iter().filter(|_| !told) {
                    self.tell_owner(id, &format!("GPU {g} is sick: {reason}; {what}"));
                }
            }
            (Grade::Sick, _) => {}
            _ if was => {
                self.illness.sick.remove(&uuid);
                self.notice(None, format!("GPU {g} takes claims again"));
            }
            _ => {}
        }
    }

    /// Whether the holders of a GPU were told a moment ago of an error for which it takes no new claims.
    fn told_just_now(&self, g: usize) -> bool {
        let newest = self.illness.xids.get(&self.gpus[g].uuid);
        newest.and_then(VecDeque::front).is_some_and(|x| {
            let meaning = table::of(x.code);
            let sick = meaning.act.grade() == Grade::Sick && !unconfirmed(&meaning, &x.source);
            sick && unix_ms().saturating_sub(x.at_ms) <= SAME
        })
    }

    /// Whether new claims are kept off a GPU (or an instance of it).
    pub(crate) fn is_sick(&self, g: usize) -> bool {
        let g = self.gpus[g].parent.unwrap_or(g);
        self.grade(g).0 == Grade::Sick
    }

    /// An administrator says that a GPU is mended: what was reported of it so far holds no longer.
    pub(crate) fn mended(&mut self, g: usize) {
        let uuid = self.gpus[g].uuid.clone();
        self.illness.xids.remove(&uuid);
        if let Err(error) = self.journal.forget_xids(&uuid) {
            tracing::warn!(%error, "errors of a GPU that is mended could not be forgotten");
        }
        self.tell_of_sickness(g);
    }

    /// Whether errors are known of a GPU that somebody may have mended.
    pub(crate) fn is_ill(&self, g: usize) -> bool {
        let xids = self.illness.xids.get(&self.gpus[g].uuid);
        xids.is_some_and(|x| !x.is_empty())
    }

    /// Why a GPU is sick.
    pub(crate) fn sickness(&self, g: usize) -> Option<String> {
        let (grade, reason) = self.grade(g);
        reason.filter(|_| grade == Grade::Sick)
    }

    fn grade(&self, g: usize) -> (Grade, Option<String>) {
        let view = self.health_view(g).unwrap_or_default();
        (view.grade, view.reasons.into_iter().next())
    }

    /// How a GPU is doing; absent where nothing is known of it.
    pub(crate) fn health_view(&self, g: usize) -> Option<HealthView> {
        let reading = self.last_reading(g)?;
        let xids = self.illness.xids.get(&self.gpus[g].uuid);
        let mut view = HealthView {
            xids: xids.into_iter().flatten().cloned().collect(),
            ecc_corrected: reading.health.ecc_corrected,
            ecc_uncorrected: reading.health.ecc_uncorrected,
            throttle: reading.health.clock_reasons.map(table::throttled),
            recovery: table::recovery(reading.health.recovery).map(|(text, _)| text.to_owned()),
            remapped: reading.health.remapped.map(|r| RemappedView {
                corrected: r.corrected.into(),
                uncorrected: r.uncorrected.into(),
                pending: r.pending,
                failed: r.failed,
            }),
            ..HealthView::default()
        };
        let mut found: Vec<(Grade, String, String)> = Vec::new();
        match reading.state {
            // Nobody looks at one that was let go.
            GpuState::Ok | GpuState::Released => {}
            GpuState::Lost => found.push((
                Grade::Sick,
                "the driver has lost it".to_owned(),
                Act::Restart.tell(g),
            )),
            GpuState::Hung => found.push((
                Grade::Sick,
                "calls on it do not return".to_owned(),
                Act::Restart.tell(g),
            )),
        }
        for xid in &view.xids {
            let meaning = table::of(xid.code);
            let text = format!("Xid {}: {}", xid.code, meaning.text);
            if !unconfirmed(&meaning, &xid.source) {
                found.push((meaning.act.grade(), text, meaning.act.tell(g)));
            } else if unix_ms().saturating_sub(xid.at_ms) <= UNCONFIRMED {
                let text = format!("{text} (by the kernel's log alone)");
                found.push((Grade::Warned, text, xid.tell.clone()));
            }
        }
        found.extend(of_seen(&reading.health, g));
        // The worst first, and of the same the newest.
        found.sort_by_key(|(grade, ..)| std::cmp::Reverse(*grade));
        found.retain(|(grade, ..)| *grade > Grade::Good);
        if let Some((grade, _, tell)) = found.first() {
            view.grade = *grade;
            view.tell = Some(tell.clone());
        }
        view.reasons = found.into_iter().map(|(_, text, _)| text).collect();
        view.reasons.dedup();
        Some(view)
    }

    /// A row of the doctor for each GPU that is not well.
    pub(crate) fn health_rows(&self) -> Vec<Check> {
        let row = |g: usize| {
            let health = self.health_view(g).filter(|h| h.grade > Grade::Good)?;
            let state = if health.grade == Grade::Sick {
                "missing"
            } else {
                "limited"
            };
            Some(Check {
                status: doctor::SIMULATION.to_owned(),
                fix: health.tell,
                ..doctor::check(&format!("health GPU {g}"), state, health.reasons.join("; "))
            })
        };
        (0..self.gpus.len()).filter_map(row).collect()
    }
}

/// What counters say.
fn of_seen(seen: &Seen, g: usize) -> Vec<(Grade, String, String)> {
    let mut found = Vec::new();
    let reset = || Act::Reset.tell(g);
    if let Some((text, act)) = table::recovery(seen.recovery) {
        found.push((
            act.grade(),
            format!("the driver says that it needs a {text}"),
            act.tell(g),
        ));
    }
    if let Some(n) = seen.ecc_uncorrected.filter(|n| *n > 0) {
        let text = format!("{n} memory errors that could not be corrected");
        found.push((Grade::Warned, text, reset()));
    }
    if let Some(rows) = seen.remapped {
        if rows.failed {
            let text = "a row of memory could not be replaced".to_owned();
            found.push((Grade::Sick, text, "the GPU has to be replaced".to_owned()));
        } else if rows.pending {
            let text = "the replacement of a row of memory waits for a reset".to_owned();
            found.push((Grade::Warned, text, reset()));
        }
    }
    for text in seen.clock_reasons.map(table::throttled).unwrap_or_default() {
        let what = "look at cooling and power supply".to_owned();
        found.push((
            Grade::Warned,
            format!("its clocks are held down: {text}"),
            what,
        ));
    }
    found
}
