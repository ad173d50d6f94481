//! Advice: five rules. Each sentence is true now and has a command; once the command has run, the sentence
//! disappears.

use std::cell::RefCell;
use std::collections::{BTreeMap, BTreeSet};
use std::time::{Duration, Instant};

use gshare_config::{AutoShrink, Mode};
use gshare_core::{Bytes, ClaimId};
use gshare_proto::{
    Advice, Caps, ClaimGpu, ClaimState, ClaimView, GpuState, GpuView, UnclaimedView, messages,
};

use super::command::Command;
use super::fact::{Fact, Look, Pages};
use super::live::Live;
use super::world::World;
use crate::figures;

/// A GPU whose time is used to this percentage, with at most the same percentage of its SMs active, can be shared
/// better.
const BUSY: f64 = 90.0;
const ACTIVE: f64 = 50.0;
/// Advice that was given stays down to this value, so that it does not flicker.
const STILL_BUSY: f64 = 75.0;
const STILL_ACTIVE: f64 = 60.0;
/// A proposed size is the largest use times this.
const MARGIN: f64 = 1.25;
/// Propose a smaller size only if it is below this fraction of the present one.
const WORTH: f64 = 0.6;
/// Refusals older than this are not mentioned.
const RECENT: Duration = Duration::from_secs(600);
/// Window for averaging use, so that a short burst does not count as the peak.
const MINUTE: Duration = Duration::from_secs(60);
/// Proposed sizes are multiples of this fraction of a GPU.
const STEP: f64 = 0.05;
/// Granularity in which memory is charged.
const PAGE: u64 = 2 << 20;

/// Per GPU: SMs in thousandths, bytes, and the limit in bytes.
type Size = Vec<(u32, u64, u64)>;

/// Use of a claim since it got its present size, and since its use was last unknown.
#[derive(Debug)]
struct Seen {
    /// Start of the observation.
    since: Instant,
    /// Size during the observation: thousandths of a GPU, and bytes.
    size: Size,
    /// Busiest minute on any of its GPUs, in percent of GPU time.
    busiest: f64,
    minute: Instant,
    sum: f64,
    looks: u32,
    /// No advice on the size while it is unknown.
    is_known: bool,
    /// Highest charge on any of its GPUs, in bytes.
    peak: u64,
    refusals: u64,
    refused: Option<Refused>,
}

/// The last refused allocation.
#[derive(Clone, Copy, Debug)]
struct Refused {
    at: Instant,
    /// Requested bytes, and the GPU.
    asked: Option<(u64, usize)>,
}

/// Observations that the rules need.
#[derive(Debug, Default)]
pub(crate) struct AdviceState {
    seen: BTreeMap<ClaimId, Seen>,
    /// GPUs with advice to let claims run side by side; see [`STILL_BUSY`].
    side_by_side: RefCell<BTreeSet<u32>>,
}

impl Seen {
    fn new(size: Size, refusals: u64, now: Instant) -> Self {
        Self {
            since: now,
            size,
            busiest: 0.0,
            minute: now,
            sum: 0.0,
            looks: 0,
            is_known: false,
            peak: 0,
            refusals,
            refused: None,
        }
    }

    fn look(&mut self, busy: Option<f64>, charge: u64, now: Instant) {
        self.peak = self.peak.max(charge);
        match busy {
            Some(busy) => {
                self.sum += busy;
                self.looks += 1;
            }
            // What it used meanwhile may have been more.
            None => {
                (self.since, self.minute) = (now, now);
                (self.busiest, self.sum, self.looks) = (0.0, 0.0, 0);
            }
        }
        self.is_known = busy.is_some();
        if now.duration_since(self.minute) >= MINUTE {
            self.busiest = self.busiest();
            (self.minute, self.sum, self.looks) = (now, 0.0, 0);
        }
    }

    fn look_at_refusals(&mut self, refusals: u64, asked: Option<(u64, usize)>, at: Instant) {
        if refusals > self.refusals {
            self.refusals = refusals;
            self.refused = Some(Refused { at, asked });
        }
    }

    /// Percent of GPU time in the busiest minute, including the current, incomplete one.
    fn busiest(&self) -> f64 {
        self.busiest.max(self.sum / f64::from(self.looks.max(1)))
    }
}

/// A charge within this distance of the cap counts as "at limit".
const NEAR_CAP: u64 = 2 << 20;

pub(super) fn near_cap(part: &ClaimGpu) -> bool {
    part.mem_charge
        .is_some_and(|c| c.saturating_add(NEAR_CAP) >= part.mem_limit)
}

/// The size and the cap of a claim on each of its GPUs.
fn size(live: &Live) -> Size {
    let slices = live.record.slices.iter();
    slices.map(|s| (s.sm_milli, s.mem, s.mem_limit)).collect()
}

impl AdviceState {
    /// Records the use of every claim, once per sample of the driver.
    pub(crate) fn on(&mut self, world: &World<'_>, fact: &Fact, _: &mut Vec<Command>) {
        let Fact::Sample(Look { pages, .. }) = fact else {
            return;
        };
        let now = Instant::now();
        let gpus = 0..world.gpus.len();
        let uses: Vec<_> = gpus.clone().map(|g| world.driver_use(g)).collect();
        // A sampled GPU without a process of the claim has a use of 0.
        let least: Vec<Option<f64>> = gpus
            .map(|g| world.gpus.reading(g)?.processes.as_ref().map(|_| 0.0))
            .collect();
        self.seen.retain(|id, _| world.claims.contains_key(id));
        for (id, live) in world.claims.iter() {
            let busy = |gpu: usize| match uses[gpu].get(id) {
                Some(used) => used.busy,
                None => least[gpu],
            };
            self.look(*id, live, pages, busy, now);
        }
    }

    fn look(
        &mut self,
        id: ClaimId,
        live: &Live,
        pages: &Pages,
        busy_on: impl Fn(usize) -> Option<f64>,
        now: Instant,
    ) {
        let size = size(live);
        let (mut busy, mut charge, mut refusals) = (Some(0.0f64), 0u64, live.past.refusals);
        let mut asked = None;
        for ((_, gpu), slots) in pages.range((id, 0)..=(id, usize::MAX)) {
            let mut here = 0u64;
            for slot in slots {
                here = here.saturating_add(slot.charge_bytes);
                refusals = refusals.saturating_add(slot.refusals);
                let last = slot.last_refusal_ns.zip(slot.last_refused_bytes);
                asked = asked.max(last.map(|(at, bytes)| (at, bytes, *gpu)));
            }
            charge = charge.max(here);
            busy = busy.zip(busy_on(*gpu)).map(|(a, b)| a.max(b));
        }
        let seen = self
            .seen
            .entry(id)
            .or_insert_with(|| Seen::new(size.clone(), 0, now));
        if seen.size != size {
            *seen = Seen::new(size, refusals, now);
        }
        seen.look(busy, charge, now);
        seen.look_at_refusals(refusals, asked.map(|(_, bytes, gpu)| (bytes, gpu)), now);
    }

    /// The sentences that hold now. `mps` says whether GPUs can be shared by MPS.
    pub(crate) fn show(
        &self,
        world: &World<'_>,
        mps: impl Fn() -> bool,
        (gpus, claims, unclaimed): (&[GpuView], &[ClaimView], &[UnclaimedView]),
    ) -> Vec<Advice> {
        let mut out = Vec::new();
        let mut told = self.side_by_side.borrow_mut();
        for gpu in gpus {
            let said = told.remove(&gpu.index);
            let advice = match gpu.state {
                GpuState::Ok => {
                    side_by_side(world, gpu, (claims, unclaimed), said).filter(|_| mps())
                }
                _ => None,
            };
            if let Some(advice) = advice {
                told.insert(gpu.index);
                out.push(advice);
            }
        }
        for claim in claims.iter().filter(|c| c.state != ClaimState::Ending) {
            if claim.adopted {
                out.extend(
                    claim
                        .members
                        .first()
                        .and_then(|pid| outside(world, *pid, claim.gpus.first(), &claim.user)),
                );
                continue;
            }
            // Launches of a program without the library are not counted.
            if claim.caps == Caps::None {
                continue;
            }
            // An idle claim gets no advice about its size as well.
            match idle(world, claim) {
                Some(advice) => out.push(advice),
                None => out.extend(self.over_asked(world, claim, gpus)),
            }
            out.extend(self.at_cap(world, claim, gpus));
        }
        let mut told: Vec<u32> = Vec::new();
        for process in unclaimed.iter().filter(|u| !u.graphics) {
            if !told.contains(&process.pid) {
                told.push(process.pid);
                let user = process.user.as_deref().unwrap_or("somebody");
                let part = ClaimGpu {
                    gpu: process.gpu,
                    mem_used: process.mem_used,
                    ..ClaimGpu::default()
                };
                out.extend(outside(world, process.pid, Some(&part), user));
            }
        }
        out
    }

    /// Observations of a claim since it got its present size.
    fn seen(&self, live: &Live, id: ClaimId) -> Option<&Seen> {
        self.seen.get(&id).filter(|seen| seen.size == size(live))
    }

    /// A claim whose use has stayed well below its size, in its busiest minute too.
    fn over_asked(&self, world: &World<'_>, claim: &ClaimView, gpus: &[GpuView]) -> Option<Advice> {
        let (id, policy) = (claim.id.parse().ok()?, world.config.sizes.auto_shrink);
        let live = world.claims.get(&id)?;
        // No advice for sizes that are adjusted automatically.
        let follows = policy == AutoShrink::Request && live.record.terms.auto;
        if policy == AutoShrink::Off || follows {
            return None;
        }
        let seen = self.seen(live, id)?;
        if !seen.is_known || seen.since.elapsed() < world.config.advice.over_asked_after {
            return None;
        }
        let part = claim.gpus.first()?;
        let whole = gpus.iter().find(|g| g.index == part.gpu)?.mem_allocatable?;
        let memory = seen.peak as f64 / whole.max(1) as f64;
        let has = part
            .sm_request
            .max(part.mem_request as f64 / whole.max(1) as f64);
        let wanted = memory.max(seen.busiest() / 100.0) * MARGIN;
        let enough = ((wanted / STEP).ceil() * STEP).max(STEP);
        if enough > has * WORTH {
            return None;
        }
        let id = &claim.id;
        let time = gshare_core::units::show_duration(seen.since.elapsed());
        Some(Advice {
            text: format!(
                "{id} asked for {has:.2} of each GPU; in {time} it used at most {} of memory and {:.0} % of the GPU's \
                 time",
                Bytes(seen.peak),
                seen.busiest()
            ),
            command: Some(format!("gshare resize {id} -g {enough:.2}")),
        })
    }

    /// A claim that was refused memory at its cap recently and would be refused again, while the GPU has more.
    fn at_cap(&self, world: &World<'_>, claim: &ClaimView, gpus: &[GpuView]) -> Option<Advice> {
        let id = claim.id.parse().ok()?;
        let seen = self.seen(world.claims.get(&id)?, id)?;
        let refused = seen.refused.filter(|r| r.at.elapsed() < RECENT)?;
        // The refused size is known only for a living process; for others only that the claim is at its cap.
        let asked = refused.asked.and_then(|(bytes, gpu)| {
            let gpu = u32::try_from(gpu).ok()?;
            Some((bytes, claim.gpus.iter().find(|p| p.gpu == gpu)?))
        });
        let (part, needed) = match asked {
            Some((bytes, part)) => {
                let taken = bytes.next_multiple_of(PAGE);
                (part, part.mem_charge?.saturating_add(taken))
            }
            None => {
                let part = claim.gpus.iter().find(|p| near_cap(p))?;
                (part, part.mem_limit + 1)
            }
        };
        if needed <= part.mem_limit {
            return None;
        }
        let free = |p: &ClaimGpu| {
            let gpu = gpus.iter().find(|g| g.index == p.gpu)?;
            Some(gpu.mem_allocatable?.saturating_sub(gpu.mem_claimed))
        };
        let free = claim.gpus.iter().map(free).min()??;
        // The peak is a sum over all GPUs.
        let peak = if claim.gpus.len() == 1 { seen.peak } else { 0 };
        let size = gshare_abi::enough(needed, peak, part.mem_limit.saturating_add(free))?;
        let flag = if part.mem_limit == part.mem_request {
            "--gpu-mem"
        } else {
            "--gpu-mem-limit"
        };
        let id = &claim.id;
        let what = asked.map_or_else(
            || "memory".to_owned(),
            |(bytes, _)| Bytes(bytes).to_string(),
        );
        Some(Advice {
            text: messages::refused(id, what, Bytes(part.mem_limit), Bytes(free), part.gpu),
            command: Some(format!("gshare resize {id} {flag} {size}")),
        })
    }
}

/// `sudo ` where the command needs root.
fn sudo(world: &World<'_>) -> &'static str {
    match world.host.mode {
        Mode::System => "sudo ",
        Mode::User => "",
    }
}

/// SMs are idle because claims of one user take turns on a GPU; they could run side by side.
fn side_by_side(
    world: &World<'_>,
    gpu: &GpuView,
    (claims, unclaimed): (&[ClaimView], &[UnclaimedView]),
    said: bool,
) -> Option<Advice> {
    let (busy, active, sms) = (gpu.time_busy?, gpu.sm_active?, gpu.sms?);
    let (least, most) = match said {
        true => (STILL_BUSY, STILL_ACTIVE),
        false => (BUSY, ACTIVE),
    };
    if busy.value < least || active.value > most {
        return None;
    }
    let turns = gpu.mode == "timeslice" && gpu.mode_wanted.is_none();
    if !turns || unclaimed.iter().any(|u| u.gpu == gpu.index) {
        return None;
    }
    let mut there = claims
        .iter()
        .filter(|c| c.gpus.iter().any(|p| p.gpu == gpu.index));
    let first = there.next()?;
    if first.adopted || there.any(|c| c.uid != first.uid || c.adopted) {
        return None;
    }
    let about = if active.estimate { "~" } else { "" };
    let idle = (f64::from(sms) * (1.0 - active.value / 100.0)).round();
    let (n, user) = (gpu.index, &first.user);
    Some(Advice {
        text: format!(
            "GPU {n}: {:.0} % busy, but {about}{idle:.0} of {sms} SMs are idle on average; all claims there are \
             {user}'s and could run side by side",
            busy.value
        ),
        command: Some(format!("{}gshare admin mode {n} mps --wait", sudo(world))),
    })
}

/// A claim that holds a GPU and launches nothing.
fn idle(world: &World<'_>, claim: &ClaimView) -> Option<Advice> {
    let seconds = match claim.idle_s {
        Some(seconds) => seconds,
        // Nothing was ever launched in it.
        None if claim.launches == Some(0) => {
            world.now.unix_ms.saturating_sub(claim.since_ms) / 1000
        }
        None => return None,
    };
    // An offloaded claim occupies no GPU.
    if seconds < world.config.advice.idle_after.as_secs() || claim.place.word.is_some() {
        return None;
    }
    // Suggest offloading where it works: programs and their memory are kept.
    let holds = claim.gpus.iter().any(|p| p.mem_charge != Some(0));
    let verb = match claim.place.levers.not_detachable {
        None if holds => "offload",
        _ => "release",
    };
    let part: f64 = claim.gpus.iter().map(|p| p.sm_request).sum();
    let gpus = figures::gpus(claim.gpus.iter().map(|p| p.gpu));
    let time = gshare_core::units::show_duration(Duration::from_secs(seconds));
    let id = &claim.id;
    Some(Advice {
        text: format!("{id} holds {part:.2} of {gpus} and had no GPU work for {time}"),
        command: Some(format!("gshare {verb} {id}")),
    })
}

/// A process that uses a GPU without a claim.
fn outside(world: &World<'_>, pid: u32, part: Option<&ClaimGpu>, user: &str) -> Option<Advice> {
    let part = part?;
    let memory = part
        .mem_used
        .map_or_else(|| "—".to_owned(), |b| Bytes(b).to_string());
    Some(Advice {
        text: format!(
            "process {pid} of {user} uses GPU {} ({memory}) without a claim: nothing limits it",
            part.gpu
        ),
        command: Some(format!("{}gshare adopt {pid}", sudo(world))),
    })
}

#[cfg(test)]
mod tests {
    use gshare_abi::host::SlotView;
    use gshare_proto::Snapshot;

    use super::*;
    use crate::daemon::world::scene::Scene;

    /// A quarter of a GPU on which one process is charged this much.
    fn scene(charge_bytes: u64) -> (Scene, Pages, Snapshot) {
        let mut scene = Scene::of(1);
        scene.config.advice.over_asked_after = Duration::ZERO;
        scene.claim(1, 0);
        let slot = SlotView {
            charge_bytes,
            ..SlotView::default()
        };
        let pages = Pages::from([((ClaimId(1), 0), vec![slot])]);
        let part = ClaimGpu {
            sm_request: 0.25,
            mem_request: 6 << 30,
            mem_limit: 6 << 30,
            mem_charge: Some(charge_bytes),
            ..ClaimGpu::default()
        };
        let claim = ClaimView {
            id: "c1".to_owned(),
            caps: Caps::Cooperative,
            idle_s: Some(0),
            gpus: vec![part],
            ..ClaimView::default()
        };
        let gpu = GpuView {
            mem_allocatable: Some(24 << 30),
            mem_claimed: 6 << 30,
            ..GpuView::default()
        };
        let shown = Snapshot {
            gpus: vec![gpu],
            claims: vec![claim],
            ..Snapshot::default()
        };
        (scene, pages, shown)
    }

    fn look(advice: &mut AdviceState, scene: &Scene, pages: &Pages) {
        let look = Look {
            pages: pages.clone(),
            ..Look::default()
        };
        advice.on(&scene.world(), &Fact::Sample(look), &mut Vec::new());
    }

    /// The commands that are advised now.
    fn said(advice: &AdviceState, scene: &Scene, shown: &Snapshot) -> Vec<String> {
        let all = (&*shown.gpus, &*shown.claims, &*shown.unclaimed);
        let told = advice.show(&scene.world(), || true, all);
        told.into_iter().filter_map(|a| a.command).collect()
    }

    #[test]
    fn a_claim_that_uses_little_is_advised_a_smaller_size_until_it_has_one() {
        let (mut scene, pages, shown) = scene(1 << 30);
        let mut advice = AdviceState::default();
        assert!(said(&advice, &scene, &shown).is_empty());
        look(&mut advice, &scene, &pages);
        let told = said(&advice, &scene, &shown);
        assert_eq!(told, ["gshare resize c1 -g 0.10"]);
        scene.claim(1, 0).record.slices[0].sm_milli = 100;
        assert!(said(&advice, &scene, &shown).is_empty(), "another size");
    }

    #[test]
    fn nothing_is_said_of_a_claim_whose_use_is_not_known() {
        let (mut scene, pages, shown) = scene(1 << 30);
        let mut advice = AdviceState::default();
        look(&mut advice, &scene, &pages);
        let known = std::mem::take(&mut scene.sample().gpus[0].processes);
        look(&mut advice, &scene, &pages);
        assert!(said(&advice, &scene, &shown).is_empty());
        scene.sample().gpus[0].processes = known;
        look(&mut advice, &scene, &pages);
        assert_eq!(said(&advice, &scene, &shown).len(), 1, "known since");
    }

    #[test]
    fn a_claim_that_was_refused_gets_what_it_asked_for_where_it_is_free() {
        let (scene, mut pages, shown) = scene(5 << 30);
        let mut advice = AdviceState::default();
        look(&mut advice, &scene, &pages);
        assert!(
            said(&advice, &scene, &shown).is_empty(),
            "it uses what it has"
        );
        let slot = &mut pages.get_mut(&(ClaimId(1), 0)).expect("a page")[0];
        slot.refusals = 1;
        (slot.last_refusal_ns, slot.last_refused_bytes) = (Some(5), Some(4 << 30));
        look(&mut advice, &scene, &pages);
        let told = said(&advice, &scene, &shown);
        assert_eq!(told, ["gshare resize c1 --gpu-mem 11G"]);
        let mut full = shown;
        full.gpus[0].mem_claimed = 23 << 30;
        assert!(said(&advice, &scene, &full).is_empty(), "not there");
    }

    #[test]
    fn a_claim_that_launches_nothing_is_to_be_detached_or_released() {
        let (scene, _, mut shown) = scene(1 << 30);
        let advice = AdviceState::default();
        shown.claims[0].idle_s = Some(1 << 20);
        let told = said(&advice, &scene, &shown);
        assert_eq!(told, ["gshare offload c1"]);
        shown.claims[0].gpus[0].mem_charge = Some(0);
        let told = said(&advice, &scene, &shown);
        assert_eq!(told, ["gshare release c1"]);
        shown.claims[0].place.word = Some("offloaded".to_owned());
        assert!(said(&advice, &scene, &shown).is_empty());
    }
}
