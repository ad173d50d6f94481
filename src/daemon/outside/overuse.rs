//! Claims with more use than their library counts: the GPU time of each process between two looks by the members'
//! libraries, for comparison with the driver's figures. `policy/overuse.rs` decides what to do.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use gshare_abi::host::SlotView;
use gshare_core::reconcile::{Act, Finding, Look, Reconcile, Rules};
use gshare_core::{Bytes, ClaimId};
use gshare_enforcer::proc::ProcessKey;

use crate::daemon::gpu::Gpu;
use crate::daemon::live::Live;

/// Percent of a GPU's time that a process counted since the last look.
pub(crate) type Counted = BTreeMap<(usize, ProcessKey), f64>;

/// State between two looks.
#[derive(Debug, Default)]
pub(crate) struct Overuse {
    time: Time,
    over: Reconcile<ProcessKey>,
    /// Processes on a GPU whose counted time may be incomplete.
    untold: BTreeSet<(usize, ProcessKey)>,
}

impl Overuse {
    /// Updates the time that the claims' processes counted since the last look.
    pub(crate) fn count(&mut self, claims: &BTreeMap<ClaimId, Live>, gpus: &[Gpu]) -> Counted {
        self.time.look(claims, gpus)
    }

    /// Updates the processes with incomplete counts.
    pub(crate) fn note_untold(&mut self, untold: BTreeSet<(usize, ProcessKey)>) {
        self.untold = untold;
    }

    /// Compares the driver's figures with the claims' limits.
    pub(crate) fn judge(
        &mut self,
        now: Duration,
        rules: &Rules,
        looks: &[Look<ProcessKey>],
    ) -> Vec<Act<ProcessKey>> {
        self.over.step(now, rules, looks)
    }

    /// A claim has ended.
    pub(crate) fn forget(&mut self, id: ClaimId) {
        self.over.forget(id);
    }

    /// Whether the counted time of a process on a GPU may be incomplete.
    pub(crate) fn is_untold(&self, gpu: usize, process: ProcessKey) -> bool {
        self.untold.contains(&(gpu, process))
    }

    /// Whether a claim is in over-use on a GPU.
    pub(crate) fn is_over(&self, id: ClaimId, gpu: usize) -> bool {
        self.over.over(id, gpu).is_some()
    }

    /// Claims in over-use: on which GPU, since when, and by how much.
    pub(crate) fn all(
        &self,
    ) -> impl Iterator<Item = (ClaimId, usize, Duration, Finding<ProcessKey>)> + '_ {
        self.over.all()
    }

    /// Claims that may not grow on a GPU.
    pub(crate) fn held_down(&self) -> Vec<(ClaimId, usize)> {
        self.over.held_down().into_iter().collect()
    }

    /// Bytes that the driver uses for a claim's members beyond the ledger: modules, graphs, stack, heap.
    pub(crate) fn driver_bytes(&self, id: ClaimId, gpu: usize) -> Bytes {
        self.over.driver_bytes(id, gpu)
    }
}

/// A process with more than this percentage of launches without a measured time has an incomplete count.
const UNMEASURED: u64 = 10;

/// Shorter intervals between looks are skipped, in nanoseconds: on a busy machine looks are delayed, then follow each
/// other at once.
const SHORTEST_NS: u64 = 150_000_000;

/// A claim's process on one GPU. Slots are reused; the number at the end makes them unique.
type Place = (ClaimId, usize, usize, u64);

/// Counters of a process at a look.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
struct Count {
    /// Nanoseconds, including running work.
    busy_ns: u64,
    launches: u64,
    unmeasured: u64,
}

/// Counted time.
#[derive(Debug, Default)]
pub(crate) struct Time {
    at_ns: u64,
    counts: BTreeMap<Place, Count>,
    /// Results of the last look and of the one before.
    told: [Told; 2],
}

/// Percent of the GPU's time by GPU and process; `None` if the library cannot tell.
type Told = BTreeMap<(usize, ProcessKey), Option<f64>>;

/// Counted time for comparison with the driver's figure. The two differ in time: work in the driver's last samples
/// may belong to the previous interval, so the larger value counts, and a process that could not be counted then is
/// not accused now.
fn lenient(now: &Told, before: &Told) -> BTreeMap<(usize, ProcessKey), f64> {
    let both = now.iter().filter_map(|(key, percent)| {
        let then = before.get(key).copied().unwrap_or(Some(0.0));
        Some((*key, (*percent)?.max(then?)))
    });
    both.collect()
}

fn count(slot: &SlotView, now: u64) -> Option<Count> {
    let work = slot.work?;
    // Running work counts from its earliest possible beginning: better too much than too little.
    let runs = work.flight.map_or(0, |f| now.saturating_sub(f.since_ns));
    Some(Count {
        busy_ns: work.busy_ns.saturating_add(runs),
        launches: slot.launches,
        unmeasured: work.unmeasured,
    })
}

/// Percent of the time since the last look that a process counted.
fn percent(then: Count, now: Count, ns: u64) -> Option<f64> {
    let launches = now.launches.saturating_sub(then.launches);
    let unmeasured = now.unmeasured.saturating_sub(then.unmeasured);
    if unmeasured.saturating_mul(100) > launches.saturating_mul(UNMEASURED) {
        return None;
    }
    let busy = now.busy_ns.saturating_sub(then.busy_ns);
    (ns > 0).then(|| (busy as f64 / ns as f64 * 100.0).min(100.0))
}

impl Time {
    /// Time that the claims' processes counted since the last look, by GPU, in percent of the GPU's time; absent if
    /// the library cannot tell.
    fn look(
        &mut self,
        claims: &BTreeMap<ClaimId, Live>,
        gpus: &[Gpu],
    ) -> BTreeMap<(usize, ProcessKey), f64> {
        let now = gshare_abi::monotonic_ns();
        let [last, earlier] = &self.told;
        if now.saturating_sub(self.at_ns) < SHORTEST_NS {
            return lenient(last, earlier);
        }
        let mut before = std::mem::take(self);
        let ns = now.saturating_sub(before.at_ns);
        let mut counts = BTreeMap::new();
        let mut told = Told::new();
        for (id, live) in claims {
            for seat in &live.seats {
                for slot in seat.usage.read_slots(gpus[seat.gpu].total) {
                    let process = ProcessKey {
                        pid: slot.pid.cast_signed(),
                        start_ticks: slot.start_time,
                    };
                    let key = (seat.gpu, process);
                    let Some(count) = count(&slot, now) else {
                        told.insert(key, (slot.launches == 0).then_some(0.0));
                        continue;
                    };
                    let place = (*id, seat.gpu, slot.slot, slot.generation);
                    let then = before.counts.get(&place).copied();
                    // A process that started in between has counted all its work in this time.
                    told.insert(key, percent(then.unwrap_or_default(), count, ns));
                    counts.insert(place, count);
                }
            }
        }
        let [last, _] = std::mem::take(&mut before.told);
        let counted = lenient(&told, &last);
        *self = Self {
            at_ns: now,
            counts,
            told: [told, last],
        };
        counted
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn figures_of_two_moments_are_compared_leniently() {
        let key = |pid| {
            let start_ticks = 1;
            (0, ProcessKey { pid, start_ticks })
        };
        let told = |list: [Option<f64>; 3]| (1..).map(key).zip(list).collect::<Told>();
        let now = told([Some(0.0), Some(70.0), None]);
        // Work that ended between the driver's look and ours; a process whose count was unknown.
        let counted = lenient(&now, &told([Some(90.0), None, Some(5.0)]));
        assert_eq!(counted, BTreeMap::from([(key(1), 90.0)]));
        // A new process.
        let counted = lenient(&now, &Told::new());
        assert_eq!(counted, BTreeMap::from([(key(1), 0.0), (key(2), 70.0)]));
    }

    #[test]
    fn what_was_counted_is_a_part_of_the_time() {
        let at = |busy_ns, launches, unmeasured| Count {
            busy_ns,
            launches,
            unmeasured,
        };
        let second = 1_000_000_000;
        let part = |then, now| percent(then, now, second);
        assert_eq!(part(at(0, 0, 0), at(second / 2, 9, 0)), Some(50.0));
        assert_eq!(part(at(second, 9, 0), at(second, 9, 0)), Some(0.0));
        // Parallel streams count separately, and an estimate may be too large.
        assert_eq!(part(at(0, 0, 0), at(2 * second, 9, 0)), Some(100.0));
        assert_eq!(part(at(second, 9, 0), at(0, 9, 0)), Some(0.0));
        // With many launches without a measured time the count is unknown.
        assert_eq!(part(at(0, 0, 0), at(second, 100, 10)), Some(100.0));
        assert_eq!(part(at(0, 0, 0), at(second, 100, 11)), None);
        assert_eq!(percent(at(0, 0, 0), at(9, 9, 0), 0), None);
    }
}
