//! Attribution of SM activity: at each sample, `gshare_core::attribution` divides it by the reports in the members'
//! pages.

use std::collections::{BTreeMap, BTreeSet};

use gshare_abi::host::SlotView;
use gshare_core::attribution::{
    Counters, Division, Interval, Meter, Part, Present, Reading, Running, Times, Together, Work,
    attribute,
};
use gshare_core::{ClaimId, Held};
use gshare_enforcer::gpu::GpuState;
use gshare_proto::{ClaimGpu, Figure, GpuView, Source, UserView};

use super::command::Command;
use super::fact::{Fact, Look, Others};
use super::owners::Whose;
use super::world::World;

/// An attribution older than this is not shown as current, in nanoseconds.
const STALE_NS: u64 = 5_000_000_000;
/// Shorter intervals are merged with the next one, in nanoseconds.
const SHORTEST_NS: u64 = 200_000_000;

/// A claim's process on one GPU. Slots are reused; the number at the end makes them unique.
type Place = (ClaimId, usize, usize, u64);

/// State of a process between two looks.
#[derive(Debug, Default)]
struct Known {
    meter: Meter,
    copied: u64,
    waited_ns: u64,
    launches: u64,
    /// The process has ended; its last report counts in this interval.
    last: Option<SlotView>,
}

/// Figures of a claim on one GPU in the last interval.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Done {
    part: Part,
    /// Bytes per second; absent if no library counts them.
    copied: Option<f64>,
    launches: Option<f64>,
    /// Fraction of the time in which launches were delayed.
    throttled: Option<f64>,
}

/// The last interval of all GPUs, and the state for the next.
#[derive(Debug, Default)]
pub(crate) struct Attribution {
    at_ns: u64,
    known: BTreeMap<Place, Known>,
    parts: BTreeMap<(ClaimId, usize), Done>,
    gpus: Vec<Option<Division>>,
    together: BTreeMap<usize, Together>,
    present: BTreeMap<usize, Present<ClaimId>>,
}

fn reading_of(slot: &SlotView) -> Option<Reading> {
    let work = slot.work?;
    Some(Reading {
        done: Times {
            busy_ns: work.busy_ns as f64,
            sm_ns: work.sm_ns as f64,
            warp_ns: work.warp_ns as f64,
        },
        running: work.flight.map(|flight| Running {
            since_ns: flight.since_ns,
            expected_ns: flight.expected_ns,
            sms: flight.sms_milli as f64 / 1000.0,
            warps: flight.warps_milli as f64 / 1000.0,
        }),
        launches: slot.launches,
        unmeasured: work.unmeasured,
    })
}

/// Sums over the processes of one claim.
#[derive(Default)]
struct Sums {
    work: Work,
    /// The living ones.
    slots: Vec<SlotView>,
    counted: bool,
    copied: f64,
    launches: f64,
    waited: f64,
}

impl Attribution {
    pub(crate) fn on(&mut self, world: &World<'_>, fact: &Fact, _: &mut Vec<Command>) {
        match fact {
            Fact::Sample(look) | Fact::NoSample(look) => self.divide_all(world, look),
            // Its last report counts in this interval.
            Fact::Departed { claim, gpu, slot } => {
                let place = (*claim, *gpu, slot.slot, slot.generation);
                self.known.entry(place).or_default().last = Some((**slot).clone());
            }
            _ => {}
        }
    }

    /// End of the last interval, by the clock of launches.
    pub(crate) fn at_ns(&self) -> u64 {
        self.at_ns
    }

    /// Attributes the time since the last look to the claims.
    fn divide_all(&mut self, world: &World<'_>, look: &Look) {
        let now = world.now.mono_ns;
        let ns = now.saturating_sub(self.at_ns);
        if ns < SHORTEST_NS {
            return;
        }
        let first = self.at_ns == 0;
        self.parts.clear();
        self.gpus.clear();
        let mut seen: BTreeSet<Place> = BTreeSet::new();
        for g in 0..world.gpus.len() {
            let mut claims: BTreeMap<ClaimId, Sums> = BTreeMap::new();
            for ((id, _), slots) in look.pages.iter().filter(|((_, gpu), _)| *gpu == g) {
                let sums = claims.entry(*id).or_default();
                for slot in slots {
                    let place = (*id, g, slot.slot, slot.generation);
                    seen.insert(place);
                    self.add(sums, place, slot, now);
                }
                sums.slots.clone_from(slots);
            }
            let gone: Vec<(Place, SlotView)> = self
                .known
                .iter()
                .filter(|((_, gpu, ..), _)| *gpu == g)
                .filter_map(|(place, known)| Some((*place, known.last.clone()?)))
                .collect();
            for (place, slot) in gone {
                if let Some(sums) = claims.get_mut(&place.0) {
                    self.add(sums, place, &slot, now);
                }
            }
            let here = claims.iter().filter(|(_, sums)| !sums.slots.is_empty());
            let here = here.map(|(id, _)| *id).collect();
            let left = self.present.entry(g).or_default().look(here);
            let others = look.others.get(g).copied().unwrap_or_default();
            let division = match first {
                true => None,
                false => self.divide(world, g, ns, &mut claims, (others, left)),
            };
            for (i, (id, sums)) in claims.iter().enumerate() {
                let part = division.as_ref().and_then(|d| d.parts.get(i));
                let rate = |sum: f64| (sums.counted && !first).then(|| sum * 1e9 / ns as f64);
                let done = Done {
                    part: part.copied().unwrap_or_default(),
                    copied: rate(sums.copied),
                    launches: rate(sums.launches),
                    throttled: rate(sums.waited / 1e9).map(|part| part.min(1.0)),
                };
                self.parts.insert((*id, g), done);
            }
            self.gpus.push(division);
        }
        self.known
            .retain(|place, known| known.last.is_none() && seen.contains(place));
        self.at_ns = now;
    }

    fn add(&mut self, sums: &mut Sums, place: Place, slot: &SlotView, now: u64) {
        let born = self.at_ns;
        let known = self.known.entry(place).or_default();
        sums.counted = true;
        // A process that dies while it writes leaves an interval that cannot be read.
        sums.work
            .processes
            .push(reading_of(slot).map(|reading| known.meter.read(now, born, &reading)));
        let grown = |now: u64, then: &mut u64| {
            let by = now.saturating_sub(*then);
            *then = now;
            by as f64
        };
        sums.copied += grown(slot.copied_bytes, &mut known.copied);
        sums.launches += grown(slot.launches, &mut known.launches);
        sums.waited = sums.waited.max(grown(slot.waited_ns, &mut known.waited_ns));
    }

    fn divide(
        &mut self,
        world: &World<'_>,
        g: usize,
        ns: u64,
        claims: &mut BTreeMap<ClaimId, Sums>,
        (others, left): (Others, bool),
    ) -> Option<Division> {
        let last = world.gpus.last_reading(g)?;
        if last.state == GpuState::Lost {
            return None;
        }
        let reading = world.gpus.reading(g).filter(|r| r.state == GpuState::Ok);
        let listed = reading.and_then(|r| r.processes.as_ref());
        let mut side_by_side = false;
        for (id, sums) in claims.iter_mut() {
            let Some(live) = world.claims.get(id) else {
                continue;
            };
            let uuid = &world.gpus[g].uuid;
            let slice = live.record.slices.iter().find(|s| s.uuid == *uuid);
            let slots = &sums.slots;
            if let Some(slice) = slice.filter(|s| s.held == Held::Mps) {
                side_by_side = true;
                let told = world.mps_figure(slice, slots);
                let all = last.sm_count.map(f64::from);
                sums.work.most = told.zip(all).map(|(sms, all)| sms.value / all.max(1.0));
            }
            // Processes that the driver lists and no library counts.
            let uncounted = listed.into_iter().flatten().filter(|p| {
                p.compute
                    && world.whose(p.pid) == Whose::Claim(*id)
                    && slots.iter().all(|s| s.pid.cast_signed() != p.pid)
            });
            sums.work.processes.extend(uncounted.map(|_| None));
        }
        let counters = reading.and_then(|r| r.gpm).map(|gpm| Counters {
            sm_active: gpm.sm_active.map(|percent| percent / 100.0),
            sm_occupancy: gpm.sm_occupancy.map(|percent| percent / 100.0),
        });
        let work: Vec<Work> = claims.values().map(|sums| sums.work.clone()).collect();
        let interval = Interval {
            ns,
            sms: last.sm_count?,
            warps_per_sm: last
                .compute_capability
                .and_then(gshare_enforcer::gpu::warps_per_sm)?,
            side_by_side,
            crowd: self.together.entry(g).or_default().crowd(ns, &work),
            outsiders: listed.is_none() || others.compute,
            desktop: others.draw,
            left,
            counters,
        };
        // A claim without a process cannot have neighbours.
        Some(attribute(&interval, &work))
    }

    /// Whether a GPU's counters may contain work of a claim that has left.
    pub(crate) fn counts_who_left(&self, g: usize) -> bool {
        let present = self.present.get(&g);
        present.is_some_and(Present::has_left)
    }

    fn division(&self, world: &World<'_>, g: usize) -> Option<&Division> {
        let age = world.now.mono_ns.saturating_sub(self.at_ns);
        let known = self.gpus.get(g).filter(|_| age < STALE_NS);
        known.and_then(Option::as_ref)
    }

    /// Adds the claims' counters to the view of a GPU.
    pub(crate) fn show_gpu(&self, world: &World<'_>, g: usize, view: &mut GpuView) {
        let Some(division) = self.division(world, g) else {
            return;
        };
        view.sm_unattributed = division.sm_unattributed.map(estimate);
        view.occupancy_unattributed = division.occupancy_unattributed.map(estimate);
        let has_counters = world
            .gpus
            .reading(g)
            .is_none_or(|r| r.gpm_supported == Some(true));
        if !has_counters {
            view.sm_active = division.sm_total.map(estimate);
            view.sm_occupancy = division.occupancy_total.map(estimate);
        }
    }

    /// Adds a claim's own counters to its part of a GPU.
    pub(crate) fn show_part(
        &self,
        world: &World<'_>,
        id: ClaimId,
        g: usize,
        slots: &[SlotView],
        view: &mut ClaimGpu,
    ) {
        view.mem_peak = slots.iter().map(|s| s.peak_bytes).max();
        if self.division(world, g).is_none() {
            return;
        }
        let Some(done) = self.parts.get(&(id, g)) else {
            return;
        };
        let own = |value: f64, is_estimate| Figure {
            value,
            source: Source::Shim,
            estimate: is_estimate,
        };
        let part = |part: f64, source: Source| Figure {
            source,
            estimate: source != Source::Gpm,
            ..estimate(part)
        };
        let source = if done.part.measured {
            Source::Gpm
        } else {
            Source::Shim
        };
        view.sm_active = done.part.sm_active.map(|value| part(value, source));
        view.sm_occupancy = done.part.sm_occupancy.map(|value| part(value, source));
        view.time_got = done.part.time_got.map(estimate);
        view.throttled = done.throttled.map(|part| own(part * 100.0, false));
        view.copied = done.copied.map(|bytes| own(bytes, true));
        view.launch_rate = done.launches.map(|rate| own(rate, false));
    }
}

/// A part of a GPU in percent, from the claims' own counters.
fn estimate(part: f64) -> Figure {
    Figure {
        value: part * 100.0,
        source: Source::Shim,
        estimate: true,
    }
}

/// Sums the use of a user's claims; a figure is present only if all claims have it.
pub(crate) fn sum_up(user: &mut UserView, parts: &[&ClaimGpu], of_a_gpu: &impl Fn(u32) -> f64) {
    let nothing = Figure {
        value: 0.0,
        source: Source::Shim,
        estimate: false,
    };
    let sum = |figure: fn(&ClaimGpu) -> Option<Figure>, in_gpus: bool| {
        // A GPU without a process of the claim has a known use of 0.
        let of = |part: &&ClaimGpu| {
            let idle = part.mem_used == Some(0);
            let weight = match in_gpus {
                true => of_a_gpu(part.gpu) / 100.0,
                false => 1.0,
            };
            let known = figure(part).or(idle.then_some(nothing))?;
            Some(Figure {
                value: known.value * weight,
                ..known
            })
        };
        let all: Option<Vec<Figure>> = parts.iter().map(of).collect();
        let all = all?;
        let first = all.first()?;
        Some(Figure {
            value: all.iter().map(|f| f.value).sum(),
            // The least reliable source counts.
            source: all.iter().find(|f| f.estimate).unwrap_or(first).source,
            estimate: all.iter().any(|f| f.estimate),
        })
    };
    user.sm_used = sum(|part| part.sm_active, true);
    user.occupancy_used = sum(|part| part.sm_occupancy, true);
    user.time_got = sum(|part| part.time_got, true);
    user.copied = sum(|part| part.copied, false);
    user.throttled = parts
        .iter()
        .filter_map(|part| part.throttled)
        .max_by(|a, b| a.value.total_cmp(&b.value));
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::daemon::world::scene::Scene;

    fn slot(copied_bytes: u64) -> SlotView {
        SlotView {
            copied_bytes,
            ..SlotView::default()
        }
    }

    /// Looks one second later, with these reports of the claims' processes on GPU 0.
    fn look(attribution: &mut Attribution, scene: &mut Scene, slots: &[(u64, u64)]) {
        scene.now.mono_ns += 1_000_000_000;
        let page = |(claim, copied): &(u64, u64)| ((ClaimId(*claim), 0), vec![slot(*copied)]);
        let look = Look {
            pages: slots.iter().map(page).collect(),
            ..Look::default()
        };
        attribution.on(&scene.world(), &Fact::Sample(look), &mut Vec::new());
    }

    fn scene() -> Scene {
        let mut scene = Scene::of(1);
        scene.sample().gpus[0].sm_count = Some(128);
        scene.sample().gpus[0].compute_capability = Some((8, 9));
        scene.claim(1, 0);
        scene.claim(2, 0);
        scene
    }

    fn copied(attribution: &Attribution, scene: &Scene, claim: u64) -> Option<f64> {
        let mut view = ClaimGpu::default();
        attribution.show_part(&scene.world(), ClaimId(claim), 0, &[], &mut view);
        view.copied.map(|f| f.value)
    }

    #[test]
    fn each_claim_has_what_its_own_processes_did_since_the_last_look() {
        let (mut attribution, mut scene) = (Attribution::default(), scene());
        look(&mut attribution, &mut scene, &[(1, 500), (2, 70)]);
        assert_eq!(copied(&attribution, &scene, 1), None, "since when?");
        look(&mut attribution, &mut scene, &[(1, 900), (2, 70)]);
        let both = [1, 2].map(|c| copied(&attribution, &scene, c));
        assert_eq!(both, [Some(400.0), Some(0.0)]);
        scene.now.mono_ns += 2 * STALE_NS;
        assert_eq!(copied(&attribution, &scene, 1), None, "says nothing of now");
    }

    #[test]
    fn what_a_process_did_last_counts_although_it_is_gone() {
        let (mut attribution, mut scene) = (Attribution::default(), scene());
        look(&mut attribution, &mut scene, &[(1, 500), (2, 0)]);
        let departed = Fact::Departed {
            claim: ClaimId(1),
            gpu: 0,
            slot: Box::new(slot(800)),
        };
        attribution.on(&scene.world(), &departed, &mut Vec::new());
        scene.now.mono_ns += 1_000_000_000;
        let pages = [((ClaimId(1), 0), Vec::new())].into();
        let nothing = Look {
            pages,
            ..Look::default()
        };
        attribution.on(&scene.world(), &Fact::Sample(nothing), &mut Vec::new());
        assert_eq!(copied(&attribution, &scene, 1), Some(300.0));
    }
}
