//! What is remembered of use outside claims and beyond them; and the GPU time that the members' proxies counted between
//! two looks, process by process: what the driver's figures are compared with.

use std::collections::{BTreeMap, BTreeSet};
use std::path::PathBuf;

use gshare_abi::host::SlotView;
use gshare_core::ClaimId;
use gshare_core::reconcile::Reconcile;
use gshare_enforcer::device::Guard;
use gshare_enforcer::proc::ProcessKey;

use super::gpu::{DriverUse, Gpu};
use super::journal::ClaimRecord;
use super::live::Live;

/// What is remembered from one look to the next.
#[derive(Debug, Default)]
pub(crate) struct Policy {
    /// GPU time that was counted by the last look.
    pub(crate) time: Time,
    /// Looks at the driver so far.
    pub(crate) looks: u64,
    /// Claims that use more than they are counted.
    pub(crate) over: Reconcile<ProcessKey>,
    /// Processes on a GPU of which nobody can tell what of their time is counted.
    pub(crate) untold: BTreeSet<(usize, ProcessKey)>,
    /// Processes outside claims that are accounted as claims of their own.
    pub(crate) auto: BTreeMap<ClaimId, AutoClaim>,
    /// The filter that keeps programs outside claims from GPUs.
    pub(crate) denial: Option<Denial>,
    /// Users were told that nothing keeps programs outside claims from the GPUs.
    pub(super) told_open: bool,
    /// The directories where cgroups and sessions appear that are watched.
    pub(super) watched: BTreeSet<PathBuf>,
    /// Whether the driver limits the memory of control groups, by GPU, where that is known.
    pub(crate) limits: BTreeMap<usize, Result<(), String>>,
    /// gshare's own processes besides the service, which are nobody's use: they and their descendants.
    pub(crate) own: BTreeSet<i32>,
}

/// A process outside claims that is accounted as a claim.
#[derive(Debug)]
pub(crate) struct AutoClaim {
    /// As the journal has it.
    pub(super) record: ClaimRecord,
    /// The process.
    pub(super) process: ProcessKey,
    /// What it uses, by GPU.
    pub(super) uses: BTreeMap<usize, DriverUse>,
    /// Highest sum of its bytes.
    pub(super) peak: u64,
}

impl AutoClaim {
    /// The process.
    pub(crate) fn pid(&self) -> i32 {
        self.process.pid
    }

    /// The process for good.
    pub(crate) fn process(&self) -> ProcessKey {
        self.process
    }

    /// What the journal has of it.
    pub(crate) fn record(&self) -> &ClaimRecord {
        &self.record
    }

    /// Its owner.
    pub(crate) fn uid(&self) -> u32 {
        self.record.uid
    }
}

/// What is in force.
#[derive(Debug)]
pub(crate) struct Denial {
    pub(super) guard: Guard,
    /// Directories of the cgroups that have the filter.
    pub(super) places: BTreeSet<PathBuf>,
    /// Paths of the exempt cgroups, from the top.
    pub(super) exempt: BTreeSet<PathBuf>,
    /// Why it could not be set everywhere.
    pub(super) trouble: Option<String>,
    /// What an earlier service may have left was looked for.
    pub(super) settled: bool,
    /// What it refuses is listened to, where the kernel says it.
    pub(super) heard: bool,
}

/// Of a process's launches so many, in a hundred, may be without a measured time before its count says nothing.
const UNMEASURED: u64 = 10;

/// Looks that follow each other faster say nothing new, in nanoseconds: on a busy machine they are handled late, and
/// then at once.
const SHORTEST_NS: u64 = 150_000_000;

/// A claim's process on one GPU: slots are handed out again, but never with the same number.
type Place = (ClaimId, usize, usize, u64);

/// What a process had counted at a look.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
struct Count {
    /// Nanoseconds, with what runs now.
    busy_ns: u64,
    launches: u64,
    unmeasured: u64,
}

/// What was counted so far.
#[derive(Debug, Default)]
pub(crate) struct Time {
    at_ns: u64,
    counts: BTreeMap<Place, Count>,
    /// What was told at the last look and at the one before.
    told: [Told; 2],
}

/// Percent of the GPU's time by GPU and process; `None` where the proxy cannot say.
type Told = BTreeMap<(usize, ProcessKey), Option<f64>>;

/// What a process has counted, to be held against the driver's figure. The two are not of the same moment: work
/// that the driver saw in its last samples may lie in the interval before, so the larger one counts, and who
/// could not say then is not accused now.
fn lenient(now: &Told, before: &Told) -> BTreeMap<(usize, ProcessKey), f64> {
    let both = now.iter().filter_map(|(key, percent)| {
        let then = before.get(key).copied().unwrap_or(Some(0.0));
        Some((*key, (*percent)?.max(then?)))
    });
    both.collect()
}

fn count(slot: &SlotView, now: u64) -> Option<Count> {
    let work = slot.work?;
    // What runs counts from its earliest beginning: rather too much than too little.
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
    /// What the claims' processes counted since the last look, by GPU, in percent of the GPU's time; absent for
    /// those whose proxy cannot say.
    pub(super) fn look(
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
                    // One that came in between has counted all that it did in this time.
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
        // Work that ended between the driver's look and ours; one whose count was not known.
        let counted = lenient(&now, &told([Some(90.0), None, Some(5.0)]));
        assert_eq!(counted, BTreeMap::from([(key(1), 90.0)]));
        // A process that is new.
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
        // Streams side by side count each, and an estimate may be too large.
        assert_eq!(part(at(0, 0, 0), at(2 * second, 9, 0)), Some(100.0));
        assert_eq!(part(at(second, 9, 0), at(0, 9, 0)), Some(0.0));
        // Where many launches have no measured time nobody can say.
        assert_eq!(part(at(0, 0, 0), at(second, 100, 10)), Some(100.0));
        assert_eq!(part(at(0, 0, 0), at(second, 100, 11)), None);
        assert_eq!(percent(at(0, 0, 0), at(9, 9, 0), 0), None);
    }
}
