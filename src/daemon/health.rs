//! Health of GPUs: the driver's errors, repairs and clocks, their meaning, and who is notified. A GPU with a serious
//! error takes no new claims until an administrator reports its repair or the machine restarts. The kernel's log
//! alone is not enough: NVML has to confirm the error.

mod kmsg;
mod table;

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::time::{Duration, Instant};

use gshare_core::ClaimId;
use gshare_core::units::many;
use gshare_enforcer::gpu::{GpuState, Seen};
use gshare_proto::{Grade, HealthView, RemappedView, XidView, messages};

use super::command::Command;
use super::fact::{Fact, KernelXid, Look, Pages};
use super::journal::{HoldingRecord, Journal, Store, XidRecord};
use super::world::World;
use crate::clock;
pub(crate) use kmsg::watch;
use table::{Act, Meaning};

/// Maximum number of errors shown per GPU.
const SHOWN: usize = 8;
/// NVML and the kernel's log report the same error within this time, in milliseconds.
const SAME: u64 = 10_000;
/// An error that only the kernel's log reports is a warning for this long, in milliseconds.
const UNCONFIRMED: u64 = 600_000;
/// Names of the two sources of errors.
const NVML: &str = "nvml";
const KERNEL_LOG: &str = "kernel log";
/// Older memory errors need no check.
const LATELY: Duration = Duration::from_secs(7 * 86_400);

/// State of the GPUs' health.
#[derive(Debug, Default)]
pub(crate) struct Health {
    /// Errors by UUID of the GPU, newest first.
    xids: BTreeMap<String, VecDeque<XidView>>,
    /// Newest NVML event that was taken, by index.
    taken: BTreeMap<usize, Instant>,
    /// Number of losses when the GPU was last seen working, by index.
    losses: BTreeMap<usize, u32>,
    /// GPUs that have returned, and since when in Unix milliseconds: their recovery state is awaited.
    back: BTreeMap<usize, u64>,
    /// GPUs with a serious error at the last look, with the first reason.
    sick: BTreeMap<String, String>,
}

fn view_of(xid: &XidRecord, gpu: usize) -> XidView {
    let meaning = table::of(xid.code);
    XidView {
        at_ms: xid.at_ms,
        code: xid.code,
        text: meaning.text.to_owned(),
        tell: tell(&meaning, &xid.source, gpu),
        pid: xid.pid,
        source: xid.source.clone(),
    }
}

/// Whether an error would be serious if NVML confirmed it.
fn unconfirmed(meaning: &Meaning, source: &str) -> bool {
    source == KERNEL_LOG && meaning.act.grade() == Grade::Sick
}

/// What to do about an error.
fn tell(meaning: &Meaning, source: &str, gpu: usize) -> String {
    match unconfirmed(meaning, source) {
        true => format!(
            "NVML does not confirm this error of the kernel log, so the GPU still takes claims. Look at sudo dmesg and \
             nvidia-smi -i {gpu}; if the GPU is faulty: sudo gshare admin drain {gpu}"
        ),
        false => meaning.act.tell(gpu),
    }
}

/// Identifies this boot; a restart clears errors that need one.
pub(super) fn boot_id() -> String {
    let id = std::fs::read_to_string("/proc/sys/kernel/random/boot_id");
    id.unwrap_or_default().trim().to_owned()
}

/// The errors since this boot, oldest first.
pub(super) fn known(journal: &Journal) -> Vec<XidRecord> {
    let from = clock::unix_ms().saturating_sub(clock::millis(LATELY));
    let known = journal.xids(&boot_id(), from);
    known.unwrap_or_else(|error| {
        tracing::warn!(%error, "earlier errors are unknown");
        Vec::new()
    })
}

impl Health {
    pub(crate) fn on(&mut self, world: &World<'_>, fact: &Fact, out: &mut Vec<Command>) {
        match fact {
            Fact::Started { xids } => self.begin(world, xids),
            Fact::Sample(Look { pages, .. }) => {
                let whole = |g: &usize| world.gpus[*g].parent.is_none();
                for g in (0..world.gpus.len()).filter(whole) {
                    self.look(world, g, pages, out);
                }
            }
            Fact::KernelXid { xid, claim } => self.kernel_xid(world, xid, *claim, out),
            Fact::TakenBack { gpu } => {
                self.back.insert(*gpu, world.now.unix_ms);
            }
            Fact::Mended { gpu } => {
                let uuid = world.gpus[*gpu].uuid.clone();
                self.xids.remove(&uuid);
                out.push(Command::Store(Store::ForgetXids { uuid, code: None }));
                self.tell_of_sickness(world, *gpu, out);
            }
            _ => {}
        }
    }

    fn begin(&mut self, world: &World<'_>, xids: &[XidRecord]) {
        for xid in xids {
            let view = view_of(xid, world.gpus.gpu_index(&xid.uuid).unwrap_or(0));
            let known = self.xids.entry(xid.uuid.clone()).or_default();
            known.push_front(view);
        }
        for (g, gpu) in world.gpus.iter().enumerate() {
            if let Some(reason) = self.sickness(world, g) {
                self.sick.insert(gpu.uuid.clone(), reason);
            }
        }
    }

    /// Handles the newest sample of a GPU.
    fn look(&mut self, world: &World<'_>, g: usize, pages: &Pages, out: &mut Vec<Command>) {
        let Some(reading) = world.gpus.last_reading(g) else {
            return;
        };
        let taken = self.taken.get(&g).copied();
        let new = reading.health.xids.iter();
        for xid in new.filter(|x| taken.is_none_or(|t| x.at > t)) {
            self.taken.insert(g, xid.at);
            self.take_xid(world, g, (xid.code, None, NVML), None, out);
        }
        self.look_for_return(world, g, pages, out);
        self.tell_of_sickness(world, g, out);
    }

    /// A lost GPU that answers again was reset. Errors that a reset clears are over, if the driver asks for no
    /// further action. Its memory is lost.
    fn look_for_return(
        &mut self,
        world: &World<'_>,
        g: usize,
        pages: &Pages,
        out: &mut Vec<Command>,
    ) {
        let reading = world.gpus.last_reading(g);
        let Some(reading) = reading.filter(|r| r.state == GpuState::Ok) else {
            return;
        };
        let (losses, recovery) = (reading.losses, reading.health.recovery);
        let before = self.losses.insert(g, losses).unwrap_or(0);
        // A smaller count means that NVML was initialised again.
        if losses > before {
            self.back.insert(g, world.now.unix_ms);
            tell_of_reset(world, g, pages, out);
            self.forget_xids(world, g, |x| x.code == table::OFF_THE_BUS, out);
        }
        if let Some(needed) = recovery
            && let Some(since) = self.back.remove(&g)
            && needed == 0
        {
            let mends = |code| matches!(table::of(code).act, Act::Reset | Act::Later);
            self.forget_xids(world, g, |x| x.at_ms <= since && mends(x.code), out);
        }
    }

    /// Forgets errors of a GPU that are over.
    fn forget_xids(
        &mut self,
        world: &World<'_>,
        g: usize,
        over: impl Fn(&XidView) -> bool,
        out: &mut Vec<Command>,
    ) {
        let uuid = &world.gpus[g].uuid;
        let Some(known) = self.xids.get_mut(uuid) else {
            return;
        };
        let codes: BTreeSet<u64> = known.iter().filter(|x| over(x)).map(|x| x.code).collect();
        known.retain(|x| !codes.contains(&x.code));
        out.extend(codes.into_iter().map(|code| {
            let (uuid, code) = (uuid.clone(), Some(code));
            Command::Store(Store::ForgetXids { uuid, code })
        }));
    }

    /// Handles an error from the kernel's log.
    fn kernel_xid(
        &mut self,
        world: &World<'_>,
        xid: &KernelXid,
        claim: Option<ClaimId>,
        out: &mut Vec<Command>,
    ) {
        let found = (0..world.gpus.len()).find(|g| {
            let bus = world
                .gpus
                .last_reading(*g)
                .and_then(|r| r.pci_bus_id.as_deref());
            world.gpus[*g].parent.is_none() && bus.and_then(kmsg::pci) == Some(xid.pci)
        });
        match found {
            Some(g) => {
                self.take_xid(world, g, (xid.code, xid.pid, KERNEL_LOG), claim, out);
                self.tell_of_sickness(world, g, out);
            }
            None => tracing::warn!(code = xid.code, "an Xid of an unknown GPU"),
        }
    }

    /// Handles an error: its number, the process that it names with the claim, and the source.
    fn take_xid(
        &mut self,
        world: &World<'_>,
        g: usize,
        (code, pid, source): (u64, Option<u32>, &str),
        claim: Option<ClaimId>,
        out: &mut Vec<Command>,
    ) {
        let uuid = world.gpus[g].uuid.clone();
        let now = world.now.unix_ms;
        let known = self.xids.entry(uuid.clone()).or_default();
        let same = known
            .iter_mut()
            .find(|x| x.code == code && x.source != source && now.saturating_sub(x.at_ms) <= SAME);
        if let Some(same) = same {
            same.pid = same.pid.or(pid);
            let meaning = table::of(code);
            if source != NVML || !unconfirmed(&meaning, &same.source) {
                return;
            }
            // Replace the entry of the kernel's log with NVML's.
            known.retain(|x| x.code != code || x.source != KERNEL_LOG);
        }
        let record = XidRecord {
            uuid,
            at_ms: now,
            code,
            pid,
            source: source.to_owned(),
        };
        known.push_front(view_of(&record, g));
        // A graver error stays in the list when lesser ones follow.
        if known.len() > SHOWN {
            let grade = |i: &usize| table::of(known[*i].code).act.grade();
            let least = (0..known.len()).rev().min_by_key(grade);
            known.remove(least.unwrap_or(SHOWN));
        }
        out.push(Command::Store(Store::AddXid(record)));
        let meaning = table::of(code);
        let text = format!("GPU {g}: Xid {code}: {}", meaning.text);
        out.push(Command::Notice(text.clone()));
        // A program's own fault is reported to its owner, other errors to all holders of the GPU.
        let concerned = match (claim, meaning.act) {
            (_, Act::Nothing) => Vec::new(),
            (Some(id), Act::Program) => vec![id],
            _ => world.holders_of(g),
        };
        let text = format!("{text}; {}", tell(&meaning, source, g));
        tell_owners(concerned, &text, out);
    }

    /// Notifies once that a GPU has failed or recovered.
    fn tell_of_sickness(&mut self, world: &World<'_>, g: usize, out: &mut Vec<Command>) {
        let uuid = world.gpus[g].uuid.clone();
        let was = self.sick.contains_key(&uuid);
        let view = self.view(world, g).unwrap_or_default();
        match (view.grade, view.reasons.into_iter().next()) {
            (Grade::Sick, Some(reason)) if !was => {
                self.sick.insert(uuid, reason.clone());
                out.push(Command::Notice(format!(
                    "GPU {g} takes no new claims: {reason}"
                )));
                // The holders have just been notified of a serious error, with advice.
                if !self.told_just_now(world, g) {
                    let what = view.tell.unwrap_or_default();
                    let text = format!("GPU {g} is sick: {reason}; {what}");
                    tell_owners(world.holders_of(g), &text, out);
                }
            }
            (Grade::Sick, _) => {}
            _ if was => {
                self.sick.remove(&uuid);
                out.push(Command::Notice(messages::gpu_takes_claims(g)));
            }
            _ => {}
        }
    }

    /// Whether the holders of a GPU were just notified of an error for which it takes no new claims.
    fn told_just_now(&self, world: &World<'_>, g: usize) -> bool {
        let newest = self.xids.get(&world.gpus[g].uuid);
        newest.and_then(VecDeque::front).is_some_and(|x| {
            let meaning = table::of(x.code);
            let sick = meaning.act.grade() == Grade::Sick && !unconfirmed(&meaning, &x.source);
            sick && world.now.unix_ms.saturating_sub(x.at_ms) <= SAME
        })
    }

    /// Whether a GPU (or the GPU of an instance) takes no new claims because of errors.
    pub(crate) fn is_sick(&self, world: &World<'_>, g: usize) -> bool {
        let g = world.gpus[g].parent.unwrap_or(g);
        self.sickness(world, g).is_some()
    }

    /// Whether a GPU has known errors that an administrator may have repaired.
    pub(crate) fn is_ill(&self, world: &World<'_>, g: usize) -> bool {
        let xids = self.xids.get(&world.gpus[g].uuid);
        xids.is_some_and(|x| !x.is_empty())
    }

    /// Why a GPU takes no new claims.
    pub(crate) fn sickness(&self, world: &World<'_>, g: usize) -> Option<String> {
        let view = self.view(world, g).filter(|v| v.grade == Grade::Sick)?;
        view.reasons.into_iter().next()
    }

    /// Health of a GPU; absent if nothing is known.
    pub(crate) fn view(&self, world: &World<'_>, g: usize) -> Option<HealthView> {
        let reading = world.gpus.last_reading(g)?;
        let xids = self.xids.get(&world.gpus[g].uuid);
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
            // A released GPU is not polled.
            GpuState::Ok | GpuState::Released => {}
            GpuState::Lost => {
                found.push((Grade::Sick, messages::gpu_is_lost(), Act::Restart.tell(g)));
            }
            GpuState::Hung => found.push((
                Grade::Sick,
                "driver calls for it do not return".to_owned(),
                Act::Restart.tell(g),
            )),
        }
        for xid in &view.xids {
            let meaning = table::of(xid.code);
            let text = format!("Xid {}: {}", xid.code, meaning.text);
            if !unconfirmed(&meaning, &xid.source) {
                found.push((meaning.act.grade(), text, meaning.act.tell(g)));
            } else if world.now.unix_ms.saturating_sub(xid.at_ms) <= UNCONFIRMED {
                let text = format!("{text} (reported only by the kernel log)");
                found.push((Grade::Warned, text, xid.tell.clone()));
            }
        }
        found.extend(of_seen(&reading.health, g));
        // The worst first, then the newest.
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
}

fn tell_owners(ids: Vec<ClaimId>, text: &str, out: &mut Vec<Command>) {
    out.extend(ids.into_iter().map(|id| {
        let text = text.to_owned();
        Command::TellOwner { id, text }
    }));
}

/// Notifies owners whose programs live on while the driver does not list them any more.
fn tell_of_reset(world: &World<'_>, g: usize, pages: &Pages, out: &mut Vec<Command>) {
    let Some(listed) = world.gpus.reading(g).and_then(|r| r.processes.as_ref()) else {
        return;
    };
    let listed: BTreeSet<i32> = listed.iter().map(|p| p.pid).collect();
    let bereft = |id: &ClaimId| {
        let live = world.claims.get(id);
        let here = live.is_some_and(|l| matches!(l.record.holding, HoldingRecord::Here));
        let mut slots = pages.get(&(*id, g)).into_iter().flatten();
        here && slots.any(|s| s.charge_bytes > 0 && !listed.contains(&s.pid.cast_signed()))
    };
    let hit: Vec<ClaimId> = world.claims.keys().copied().filter(bereft).collect();
    if hit.is_empty() {
        return;
    }
    out.push(Command::Notice(format!(
        "GPU {g} was reset: all programs lost their data on it"
    )));
    for id in hit {
        let text = format!(
            "GPU {g} was reset: {id} lost its data there, and CUDA calls of its programs fail; restart them"
        );
        out.push(Command::TellOwner { id, text });
    }
}

/// Problems by the GPU's counters.
fn of_seen(seen: &Seen, g: usize) -> Vec<(Grade, String, String)> {
    let mut found = Vec::new();
    let reset = || Act::Reset.tell(g);
    if let Some((text, act)) = table::recovery(seen.recovery) {
        found.push((
            act.grade(),
            format!("the driver reports that the GPU needs a {text}"),
            act.tell(g),
        ));
    }
    if let Some(n) = seen.ecc_uncorrected.filter(|n| *n > 0) {
        let errors = many(n as usize, "memory error");
        let text = format!("{errors} that could not be corrected");
        found.push((Grade::Warned, text, reset()));
    }
    if let Some(rows) = seen.remapped {
        if rows.failed {
            let text = messages::remapping_failed();
            found.push((Grade::Sick, text, "replace the GPU".to_owned()));
        } else if rows.pending {
            found.push((Grade::Warned, messages::remapping_waits(), reset()));
        }
    }
    for text in seen.clock_reasons.map(table::throttled).unwrap_or_default() {
        let what = "check cooling and power supply".to_owned();
        found.push((
            Grade::Warned,
            format!("its clocks are slowed: {text}"),
            what,
        ));
    }
    found
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::daemon::world::scene::Scene;

    fn on(health: &mut Health, scene: &Scene, fact: Fact) -> Vec<Command> {
        let mut out = Vec::new();
        health.on(&scene.world(), &fact, &mut out);
        out
    }

    fn sample() -> Fact {
        Fact::Sample(Look::default())
    }

    fn raise(scene: &mut Scene, gpu: usize, code: u64) {
        let at = Instant::now();
        let seen = &mut scene.sample().gpus[gpu].health;
        seen.xids.push(gshare_enforcer::gpu::Xid { at, code });
    }

    fn told(commands: &[Command]) -> Vec<u64> {
        let id = |c: &Command| match c {
            Command::TellOwner { id, .. } => Some(id.0),
            _ => None,
        };
        commands.iter().filter_map(id).collect()
    }

    #[test]
    fn an_error_is_written_down_and_told_once_to_those_on_the_gpu() {
        let (mut health, mut scene) = (Health::default(), Scene::of(2));
        for (id, gpu) in [(1, 0), (2, 1), (3, 0)] {
            scene.claim(id, gpu);
        }
        assert!(on(&mut health, &scene, sample()).is_empty());
        raise(&mut scene, 0, 95);
        let done = on(&mut health, &scene, sample());
        assert!(matches!(&done[0], Command::Store(Store::AddXid(x)) if x.code == 95));
        assert_eq!(told(&done), [1, 3]);
        assert!(on(&mut health, &scene, sample()).is_empty(), "told once");
        let sick = [0, 1].map(|g| health.is_sick(&scene.world(), g));
        assert_eq!(sick, [true, false]);
        let done = on(&mut health, &scene, Fact::Mended { gpu: 0 });
        let forgotten = |s: &Store| matches!(s, Store::ForgetXids { code: None, .. });
        assert!(matches!(&done[0], Command::Store(s) if forgotten(s)));
        assert!(!health.is_sick(&scene.world(), 0));
    }

    /// The order of NVIDIA's catalogue of Xids: the error, the row that is to be replaced, how far it reaches, then
    /// each channel that is cleaned up.
    #[test]
    fn what_follows_an_error_does_not_hide_it() {
        let (mut health, mut scene) = (Health::default(), Scene::of(1));
        for code in [48, 63, 95].into_iter().chain([45; 12]) {
            raise(&mut scene, 0, code);
        }
        on(&mut health, &scene, sample());
        assert!(health.is_sick(&scene.world(), 0));
        scene.sample().gpus[0].health.xids.clear();
        for _ in 0..2 * SHOWN {
            raise(&mut scene, 0, 31);
        }
        on(&mut health, &scene, sample());
        let view = health.view(&scene.world(), 0).expect("known");
        assert_eq!((view.grade, view.xids.len()), (Grade::Sick, SHOWN));
        assert_eq!(view.xids[0].code, 31, "the newest is there, too");
    }

    #[test]
    fn a_programs_own_fault_is_told_to_its_owner_alone() {
        let (mut health, mut scene) = (Health::default(), Scene::of(1));
        scene.claim(1, 0);
        scene.claim(2, 0);
        scene.sample().gpus[0].pci_bus_id = Some("00000000:2B:00.0".to_owned());
        let log = |code| KernelXid {
            pci: (0, 0x2b, 0),
            code,
            pid: Some(7),
        };
        let mut hear = |code| {
            let (xid, claim) = (log(code), Some(ClaimId(2)));
            on(&mut health, &scene, Fact::KernelXid { xid, claim })
        };
        assert_eq!(told(&hear(31)), [2]);
        assert_eq!(told(&hear(95)), [1, 2]);
        // NVML has not confirmed it.
        assert!(!health.is_sick(&scene.world(), 0));
        raise(&mut scene, 0, 95);
        on(&mut health, &scene, sample());
        assert!(health.is_sick(&scene.world(), 0));
    }

    #[test]
    fn what_a_reset_mends_is_over_when_the_driver_says_so() {
        let (mut health, mut scene) = (Health::default(), Scene::of(1));
        raise(&mut scene, 0, 95);
        on(&mut health, &scene, sample());
        on(&mut health, &scene, Fact::TakenBack { gpu: 0 });
        assert!(health.is_sick(&scene.world(), 0), "it has said nothing yet");
        scene.sample().gpus[0].health.recovery = Some(0);
        on(&mut health, &scene, sample());
        assert!(!health.is_sick(&scene.world(), 0));
        // A restarted service knows the errors from the journal.
        let (mut anew, uuid) = (Health::default(), "GPU-0".to_owned());
        let xid = XidRecord {
            uuid,
            at_ms: 5,
            code: 95,
            pid: None,
            source: NVML.to_owned(),
        };
        on(&mut anew, &scene, Fact::Started { xids: vec![xid] });
        assert!(anew.is_sick(&scene.world(), 0));
    }

    #[test]
    fn a_gpu_that_is_lost_is_sick_and_those_on_it_are_told() {
        let (mut health, mut scene) = (Health::default(), Scene::of(2));
        scene.claim(1, 0);
        scene.claim(2, 1);
        assert!(on(&mut health, &scene, sample()).is_empty());
        scene.sample().gpus[0].state = GpuState::Lost;
        assert_eq!(told(&on(&mut health, &scene, sample())), [1]);
        let view = health.view(&scene.world(), 0).expect("known");
        assert_eq!(view.grade, Grade::Sick);
        assert!(view.reasons[0].contains("lost"), "{view:?}");
    }
}
