//! Replay of recorded runs in the scheduler: which would have waited, been refused or reached a limit, had they
//! shared.

use std::collections::{BTreeMap, BTreeSet};

use gshare_core::machine::ReclaimRules;
use gshare_core::play::{self, Entry, Setup};
use gshare_core::{Bytes, Class, GpuFacts};
use gshare_proto::history::{Fared, SharingView, UserFared};

use super::journal::ClaimRecord;
use crate::figures;

/// Requested memory as a multiple of the peak.
const ABOVE: f64 = 1.1;
/// A later start counts as a wait, in seconds.
const WAIT_S: f64 = 1.0;
const WHOLE: u32 = 1000;
/// Maximum number of replayed runs, the newest.
pub(crate) const MOST: usize = 2_000;

/// The GPUs of a replay, all alike.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Machine {
    pub(crate) gpus: usize,
    /// Bytes of each that claims can divide.
    pub(crate) mem: u64,
}

impl Machine {
    /// The machine's GPUs, each with the memory of the smallest; none if one is divided into MIG instances.
    pub(crate) fn of(divided: bool, gpus: &[GpuFacts]) -> Option<Self> {
        let mem = gpus.iter().filter_map(GpuFacts::capacity).min()?;
        (!divided && mem > Bytes::ZERO).then_some(Self {
            gpus: gpus.len(),
            mem: mem.0,
        })
    }

    /// Thousandths of a GPU with this many bytes.
    fn milli(self, bytes: f64) -> u32 {
        // Round to whole bytes, so that an exact fraction stays exact.
        let parts = u128::from(bytes.round() as u64) * u128::from(WHOLE);
        let parts = parts.div_ceil(u128::from(self.mem));
        u32::try_from(parts).unwrap_or(WHOLE).clamp(1, WHOLE)
    }
}

/// A recorded run of a claim, or of a program without one.
#[derive(Clone, Debug, Default)]
pub(crate) struct Run {
    pub(crate) uid: u32,
    /// Program and script.
    pub(crate) program: Vec<String>,
    class: Class,
    /// Unix milliseconds.
    begun_ms: u64,
    ended_ms: u64,
    /// Its GPUs, as far as known.
    gpus: BTreeSet<String>,
    /// Peak bytes on all of them.
    peak: u64,
    /// Mean fraction of each GPU that it used.
    used: Option<f64>,
    /// Requested thousandths of each GPU; none without a claim.
    asked: Option<u32>,
    /// Only its owner and administrators may see it.
    private: bool,
}

impl Run {
    /// A run between two moments, by its record.
    pub(crate) fn new(
        record: &ClaimRecord,
        (from_ms, to_ms): (u64, u64),
        peak: u64,
        machine: Machine,
    ) -> Self {
        let asked = |s: &super::journal::SliceRecord| machine.milli(s.mem as f64).max(s.sm_milli);
        Self {
            uid: record.uid,
            program: figures::program(&record.command),
            class: record.class.parse().unwrap_or_default(),
            begun_ms: record.granted_ms.max(from_ms),
            ended_ms: to_ms,
            gpus: record.slices.iter().map(|s| s.uuid.clone()).collect(),
            peak,
            used: None,
            asked: record.slices.iter().map(asked).max(),
            private: record.is_private(),
        }
    }

    /// Whether this user may see it: `only` sees no others' private runs; `None` sees all.
    pub(crate) fn is_seen_by(&self, only: Option<u32>) -> bool {
        !self.private || only.is_none_or(|uid| uid == self.uid)
    }

    /// Adds figures of the history: its GPUs, and the mean fraction of each that it used.
    pub(crate) fn with(mut self, gpus: BTreeSet<String>, used: Option<f64>) -> Self {
        self.gpus.extend(gpus);
        self.used = used;
        self
    }

    fn seconds(&self) -> f64 {
        self.ended_ms.saturating_sub(self.begun_ms) as f64 / 1000.0
    }

    fn count(&self) -> usize {
        self.gpus.len().max(1)
    }

    /// Peak bytes on one GPU.
    fn each(&self) -> f64 {
        self.peak as f64 / self.count() as f64
    }

    /// Thousandths of a GPU for its own peak and the margin.
    fn own(&self, machine: Machine) -> u32 {
        machine.milli(self.each() * ABOVE)
    }
}

/// Result of a replayed run.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct Came {
    /// Seconds until it started; none if it never could.
    pub(crate) start_s: Option<f64>,
    /// How often it was offloaded or moved.
    pub(crate) taken: u32,
}

impl Came {
    pub(crate) fn has_waited(&self) -> bool {
        self.start_s.is_some_and(|s| s >= WAIT_S)
    }
}

/// Replays runs as claims with their recorded sizes; programs without a claim request their own peak and a tenth.
/// With `takes`, claims have guarantees and may be offloaded and moved.
pub(crate) fn as_asked(runs: &[Run], machine: Machine, takes: bool) -> Vec<Came> {
    let size = |run: &Run| run.asked.unwrap_or_else(|| run.own(machine));
    play(
        runs,
        &runs.iter().map(size).collect::<Vec<_>>(),
        machine,
        takes,
    )
}

fn play(runs: &[Run], sizes: &[u32], machine: Machine, takes: bool) -> Vec<Came> {
    let uids: BTreeSet<u32> = runs.iter().map(|r| r.uid).collect();
    let uids: Vec<u32> = uids.into_iter().collect();
    let mut order: Vec<usize> = (0..runs.len()).collect();
    order.sort_by_key(|i| runs[*i].begun_ms);
    let first = order.first().map_or(0, |i| runs[*i].begun_ms);
    let entry = |i: &usize| Entry {
        arrival_s: (runs[*i].begun_ms - first) as f64 / 1000.0,
        run_s: runs[*i].seconds(),
        gpus: u32::try_from(runs[*i].count()).unwrap_or(u32::MAX),
        milli: sizes[*i],
        user: uids.binary_search(&runs[*i].uid).unwrap_or(0),
        class: runs[*i].class,
        ..Entry::default()
    };
    let list: Vec<Entry> = order.iter().map(entry).collect();
    let setup = Setup {
        gpus: machine.gpus,
        mem: Bytes(machine.mem),
        guaranteed: if takes { uids.len() } else { 0 },
        offload: takes,
        moves: takes,
        rules: ReclaimRules {
            enabled: takes,
            ..Setup::default().rules
        },
        ..Setup::default()
    };
    let came = |c: &play::Outcome| Came {
        start_s: c.granted_s,
        taken: c.suspensions + c.moves,
    };
    let mut all = vec![None; runs.len()];
    for (i, outcome) in order.iter().zip(&play::play(&list, &setup).claims) {
        all[*i] = Some(came(outcome));
    }
    all.into_iter().flatten().collect()
}

/// Sizes for two ways to share: all share compute freely and know their peaks; or each keeps the GPU time that it
/// used, a whole GPU if unknown, and requests by the peaks of its program's earlier runs. Runs are in order of their
/// beginning.
fn ways<'r>(runs: &'r [Run], machine: Machine) -> [Vec<u32>; 2] {
    let mut earlier: BTreeMap<(u32, &[String]), f64> = BTreeMap::new();
    let cautious = |run: &'r Run| {
        let known = earlier.entry((run.uid, run.program.as_slice()));
        let known = known.or_insert(run.each());
        let mem = machine.milli(*known * ABOVE);
        *known = known.max(run.each());
        let used = run
            .used
            .map_or(WHOLE, |part| (part * f64::from(WHOLE)).ceil() as u32);
        mem.max(used.min(WHOLE))
    };
    let careful = runs.iter().map(cautious).collect();
    [runs.iter().map(|r| r.own(machine)).collect(), careful]
}

/// Effect of sharing on these runs, some of which are listed.
pub(crate) fn sharing(
    runs: &mut [Run],
    machine: Machine,
    shown: impl Fn(&Run) -> bool,
    name: impl Fn(u32) -> String,
) -> SharingView {
    runs.sort_by_key(|r| r.begun_ms);
    let (older, runs) = runs.split_at(runs.len().saturating_sub(MOST));
    let older = older.iter().filter(|r| shown(r)).count();
    let mut total = Fared::default();
    let mut users: BTreeMap<u32, Fared> = BTreeMap::new();
    for (way, sizes) in ways(runs, machine).into_iter().enumerate() {
        let came = play(runs, &sizes, machine, false);
        for ((run, size), came) in runs.iter().zip(sizes).zip(came) {
            if !shown(run) {
                continue;
            }
            let part = f64::from(size) / f64::from(WHOLE);
            for fared in [&mut total, users.entry(run.uid).or_default()] {
                fared.runs += u32::from(way == 0);
                let Some(start_s) = came.start_s else {
                    fared.refused[way] += 1;
                    continue;
                };
                fared.held_gpu_s[way] += part * run.count() as f64 * run.seconds();
                fared.limited[way] += u32::from(run.each() > part * machine.mem as f64);
                if came.has_waited() {
                    fared.waited[way] += 1;
                    fared.longest_s[way] = fared.longest_s[way].max(start_s);
                }
            }
        }
    }
    let named = |(uid, fared): (u32, Fared)| UserFared {
        uid,
        user: name(uid),
        fared: fared.sorted(),
    };
    let mut users: Vec<UserFared> = users.into_iter().map(named).collect();
    users.sort_by_key(|u| std::cmp::Reverse((u.fared.harmed(), u.fared.runs)));
    SharingView {
        occupied_gpu_s: occupied(runs.iter().filter(|r| shown(r))),
        left_out: u32::try_from(older).unwrap_or(u32::MAX),
        total: total.sorted(),
        users,
    }
}

/// GPU seconds in which a GPU had at least one of these runs; runs on unknown GPUs count as on one.
fn occupied<'r>(runs: impl Iterator<Item = &'r Run>) -> f64 {
    let mut until: BTreeMap<&str, u64> = BTreeMap::new();
    let mut sum_ms = 0;
    // In order of the beginning: time before the end so far is already counted.
    for run in runs {
        let unknown = run.gpus.is_empty().then_some("");
        for gpu in run.gpus.iter().map(String::as_str).chain(unknown) {
            let end = until.entry(gpu).or_default();
            sum_ms += run.ended_ms.saturating_sub(run.begun_ms.max(*end));
            *end = run.ended_ms.max(*end);
        }
    }
    sum_ms as f64 / 1000.0
}

#[cfg(test)]
mod tests {
    use super::*;

    const GIB: f64 = (1u64 << 30) as f64;
    const HOUR_MS: f64 = 3_600_000.0;
    const HOUR: f64 = 3600.0;
    const ONE: Machine = Machine {
        gpus: 1,
        mem: 20 << 30,
    };

    /// From one hour to another.
    fn run(uid: u32, program: &str, (from, to): (f64, f64), gib: f64) -> Run {
        Run {
            uid,
            program: vec![program.to_owned()],
            begun_ms: (from * HOUR_MS) as u64,
            ended_ms: (to * HOUR_MS) as u64,
            gpus: ["GPU-0".to_owned()].into(),
            peak: (gib * GIB) as u64,
            ..Run::default()
        }
    }

    fn shared(runs: &[Run], machine: Machine) -> SharingView {
        let name = |uid| format!("user {uid}");
        sharing(&mut runs.to_vec(), machine, |_| true, name)
    }

    /// By hand: 10 of 20 GiB and a tenth are 0.55 of the GPU, so the second waits for the first to end, 9 h; 8 GiB
    /// are 0.44 and fit beside the first. 20 GiB and a tenth exceed the GPU: the whole GPU is enough. 20.5 GiB do not
    /// exist, and neither do two GPUs.
    #[test]
    fn who_waits_is_refused_or_reaches_a_limit_is_as_computed_by_hand() {
        let mut two = run(5, "two.py", (24.0, 25.0), 4.0);
        two.gpus.insert("GPU-9".to_owned());
        let runs = [
            run(1, "train.py", (0.0, 10.0), 10.0),
            run(2, "small.py", (0.5, 0.9), 8.0),
            run(3, "train.py", (1.0, 3.0), 10.0),
            run(4, "full.py", (20.0, 21.0), 20.0),
            run(4, "more.py", (22.0, 23.0), 20.5),
            two,
        ];
        let said = shared(&runs, ONE);
        // One way all share compute; the other, their compute is unknown and each has the GPU to itself: the second
        // waits for the first, 9.5 h, and the third for both, 9.4 h.
        let total = &said.total;
        assert_eq!(total.runs, 6);
        assert_eq!(total.waited, [1, 2]);
        assert_eq!(
            total.longest_s.map(|s| (s / HOUR * 10.0).round()),
            [90.0, 95.0]
        );
        assert_eq!((total.refused, total.limited), ([1, 1], [1, 1]));
        // GPU-0 was in use for 10 + 1 + 1 + 1 hours, and GPU-9 for one.
        assert_eq!(said.occupied_gpu_s, 14.0 * HOUR);
        // Held: 0.55 x 10, 0.44 x 0.4, 0.55 x 2 and 1 + 1; or all whole.
        let held = 5.5 + 0.176 + 1.1 + 2.0;
        assert!(
            (total.held_gpu_s[0] / HOUR - held).abs() < 1e-9,
            "{total:?}"
        );
        assert!(
            (total.held_gpu_s[1] / HOUR - 14.4).abs() < 1e-9,
            "{total:?}"
        );
        let of = |uid| {
            &said
                .users
                .iter()
                .find(|u| u.uid == uid)
                .expect("named")
                .fared
        };
        assert_eq!((of(2).waited, of(3).waited), ([0, 1], [1, 1]));
        assert_eq!((of(4).limited, of(5).refused), ([1, 1], [1, 1]));
        assert_eq!(said.users.iter().map(|u| u.fared.runs).sum::<u32>(), 6);
        let alone =
            |of: &dyn Fn(&Run) -> bool| sharing(&mut runs.to_vec(), ONE, of, |_| String::new());
        let mut private = runs.to_vec();
        private[2].private = true;
        let users = |only| {
            let said = sharing(
                &mut private.clone(),
                ONE,
                |r| r.is_seen_by(only),
                |_| String::new(),
            );
            assert_eq!(
                said.total.runs,
                said.users.iter().map(|u| u.fared.runs).sum::<u32>()
            );
            said.users.iter().any(|u| u.uid == 3)
        };
        assert_eq!(
            [users(None), users(Some(3)), users(Some(1))],
            [true, true, false]
        );
        let alone = alone(&|r| r.uid == 3);
        assert_eq!(
            (alone.total.runs, alone.total.waited),
            (1, [1, 1]),
            "it waits for others"
        );
        assert_eq!(alone.occupied_gpu_s, 2.0 * HOUR);
    }

    /// By hand: the second run of a program, which needs more than its first, requests 4.4 GiB and has 6.
    #[test]
    fn who_asks_by_earlier_runs_reaches_a_limit_where_a_run_needs_more() {
        let quiet = |r: Run| r.with(BTreeSet::new(), Some(0.1));
        let runs = [
            quiet(run(1, "a.py", (0.0, 1.0), 4.0)),
            quiet(run(1, "a.py", (2.0, 3.0), 6.0)),
            quiet(run(1, "a.py", (4.0, 5.0), 6.0)),
            quiet(run(2, "a.py", (6.0, 7.0), 9.0)),
        ];
        let total = shared(&runs, ONE).total;
        assert_eq!(
            (total.limited, total.waited, total.refused),
            ([0, 1], [0, 0], [0, 0])
        );
        // Used compute counts too: 0.8 for two runs at once.
        let busy = |from| run(1, "b.py", (from, from + 2.0), 2.0).with(BTreeSet::new(), Some(0.8));
        let total = shared(&[busy(0.0), busy(0.5)], ONE).total;
        assert_eq!((total.waited, total.longest_s), ([0, 1], [0.0, 1.5 * HOUR]));
    }

    #[test]
    fn of_very_many_runs_the_newest_are_played() {
        let begin = |n: usize| run(1, "x", (n as f64 * 0.1, n as f64 * 0.1 + 0.1), 1.0);
        let runs: Vec<Run> = (0..MOST + 7).map(begin).collect();
        let said = shared(&runs, ONE);
        assert_eq!((said.left_out, said.total.runs), (7, MOST as u32));
    }

    #[test]
    fn claims_are_played_with_the_sizes_that_they_asked_for() {
        let asked = |uid, milli, hours| Run {
            asked: Some(milli),
            ..run(uid, "x", hours, 1.0)
        };
        let runs = [
            asked(1, 600, (0.0, 4.0)),
            asked(2, 600, (1.0, 2.0)),
            run(3, "bare", (1.5, 2.5), 6.0),
        ];
        let starts = |takes| as_asked(&runs, ONE, takes);
        let waits: Vec<f64> = starts(false).iter().filter_map(|c| c.start_s).collect();
        assert_eq!(
            waits,
            [0.0, 3.0 * HOUR, 0.0],
            "6.6 of 20 GiB fit beside the first"
        );
        assert!(starts(false).iter().all(|c| c.taken == 0));
    }
}
