//! How the scheduler is judged: blocks of a list under policies, figures over all blocks, and goals.

use std::collections::BTreeMap;

use super::Setup;
use super::figures::{Outcome, Played, mean, quantile};
use super::list::{self, Cut, Entry};
use super::policy::{EASY, GSHARE, NO_MOVE, NO_OFFLOAD, Policy};
use crate::units::Bytes;

/// What to do with a list's claims of the whole machine.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Whole {
    /// Leave them out.
    Out,
    /// Keep them.
    In,
    /// Turn every fiftieth claim of a block into one.
    Fiftieth,
}

/// A row of the table: which claims, on which machine, under which policy.
#[derive(Clone, Debug)]
pub struct Case {
    pub name: String,
    /// What happens to claims of the whole machine.
    pub whole: Whole,
    /// Requested GPU time as a part of the machine's.
    pub load: f64,
    /// Claims per block.
    pub claims: usize,
    /// The scheduling policy.
    pub policy: Policy,
    /// The machine.
    pub setup: Setup,
}

/// A block after it was played.
#[derive(Clone, Debug)]
pub struct Block {
    /// The claims.
    pub list: Vec<Entry>,
    /// The results.
    pub played: Played,
}

impl Case {
    fn new(name: &str, policy: Policy, setup: Setup) -> Self {
        Self {
            name: name.to_owned(),
            whole: Whole::Out,
            load: 0.9,
            claims: 1500,
            policy,
            setup,
        }
    }

    fn with(self, whole: Whole, load: f64) -> Self {
        Self {
            whole,
            load,
            ..self
        }
    }

    /// The block of claims for a seed.
    #[must_use]
    pub fn block(&self, trace: &[Entry], seed: u64) -> Vec<Entry> {
        let gpus = self.setup.gpus;
        let cut = Cut {
            gpus,
            load: self.load,
            claims: self.claims,
            ..Cut::default()
        };
        let kept = |e: &&Entry| self.whole == Whole::In || (e.gpus as usize) < gpus;
        let trace: Vec<Entry> = trace.iter().filter(kept).copied().collect();
        let mut block = list::block(&trace, &cut, seed);
        if self.whole == Whole::Fiftieth {
            for e in block.iter_mut().skip(25).step_by(50) {
                (e.gpus, e.milli) = (gpus as u32, 1000);
            }
            list::stretch(&mut block, gpus, self.load);
        }
        block
    }

    /// Plays the block of a seed.
    #[must_use]
    pub fn play(&self, trace: &[Entry], seed: u64) -> Block {
        let list = self.block(trace, seed);
        let played = self.policy.play(&list, &self.setup);
        Block { list, played }
    }
}

/// Plays independent blocks on two threads.
#[must_use]
pub fn two_at_a_time<T: Send>(
    seeds: std::ops::Range<u64>,
    one: impl Fn(u64) -> T + Sync,
) -> Vec<T> {
    let half = |odd: u64| {
        let own = seeds.clone().filter(|s| s % 2 == odd);
        own.map(|s| (s, one(s))).collect::<Vec<(u64, T)>>()
    };
    let mut all = std::thread::scope(|scope| {
        let odd = scope.spawn(|| half(1));
        let mut all = half(0);
        all.extend(odd.join().unwrap_or_default());
        all
    });
    all.sort_by_key(|(seed, _)| *seed);
    all.into_iter().map(|(_, played)| played).collect()
}

/// All rows of a list, in the order of play. `quick` leaves out slow rows. Rows with claims of the whole machine need a
/// list that has some.
#[must_use]
pub fn cases(trace: &[Entry], quick: bool) -> Vec<Case> {
    let shipped = Setup::default();
    let equal = Setup {
        guaranteed: 4,
        ..Setup::default()
    };
    let host = |gib, setup: &Setup| Setup {
        host: Bytes::gib(gib),
        ..setup.clone()
    };
    let fixed = Policy::named("static").copied().unwrap_or(EASY);
    // Claims are told when they will start; this affects no decision.
    let told = Setup {
        asks: true,
        ..Setup::default()
    };
    let mut rows = vec![
        Case::new("equal guarantees", GSHARE, equal.clone()),
        Case::new("as shipped", GSHARE, told),
        Case::new("easy", EASY, shipped.clone()),
        Case::new("fixed parts", fixed, shipped.clone()),
        Case::new("no offload, no move", NO_OFFLOAD, shipped.clone()),
        Case::new("offload, no move", NO_MOVE, shipped.clone()),
        Case::new("host memory 128 GiB", GSHARE, host(128, &equal)),
        Case::new("host memory 32 GiB", GSHARE, host(32, &equal)),
    ];
    for (whole, name) in [
        (Whole::In, "whole in"),
        (Whole::Fiftieth, "every 50th whole"),
    ] {
        let loads: &[f64] = if quick { &[0.9] } else { &[0.5, 0.9, 1.1] };
        for load in loads {
            for policy in [EASY, GSHARE] {
                let name = format!("{name}, load {load}: {}", policy.name);
                rows.push(Case::new(&name, policy, shipped.clone()).with(whole, *load));
            }
        }
        for gpus in [2, 4] {
            if quick {
                continue;
            }
            for policy in [EASY, GSHARE] {
                let name = format!("{name}, {gpus} GPUs: {}", policy.name);
                let setup = Setup {
                    gpus,
                    ..shipped.clone()
                };
                rows.push(Case::new(&name, policy, setup).with(whole, 0.9));
            }
        }
    }
    if !quick {
        let name = format!("every 50th whole: {}", NO_OFFLOAD.name);
        rows.push(Case::new(&name, NO_OFFLOAD, shipped).with(Whole::Fiftieth, 0.9));
    }
    let whole = |gpus: usize| trace.iter().any(|e| e.gpus as usize >= gpus);
    rows.retain(|row| row.whole != Whole::In || whole(row.setup.gpus));
    rows
}

/// Figures over all blocks of a row, in the units of the field names.
#[derive(Clone, Debug, Default)]
pub struct Sums {
    /// See [`super::Figures`].
    pub wait_min: f64,
    /// See [`super::Figures`].
    pub wait_p95_min: f64,
    /// See [`super::Figures`].
    pub jct_h: f64,
    /// In percent.
    pub usage: f64,
    /// Mean per claim.
    pub suspensions: f64,
    /// Mean per claim.
    pub moves: f64,
    /// Percent of run time.
    pub stall: f64,
    /// Longest time between two runs of a claim.
    pub away_h: f64,
    /// See [`super::Figures`].
    pub jain: f64,
    /// Percent of GPU time that was free while a claim that would fit was waiting.
    pub kept: f64,
    /// Longest wait of a claim of the whole machine.
    pub whole_h: f64,
    /// Largest delay of a claim of the whole machine ([`super::Outcome::whole_late_s`]).
    pub whole_late_h: f64,
    /// Percent of claims within their guarantee that started in time.
    pub in_time: f64,
    /// 99th percentile of the wait of those that did not.
    pub late_p99_min: f64,
    /// 95th percentile of the time that claims of less than ten minutes lose.
    pub short_loss_p95_min: f64,
    /// Claims that never ended, or were cut short.
    pub unfinished: usize,
    /// Mean wait of each block, in minutes.
    pub waits: Vec<f64>,
    /// Mean completion time of each user, in hours.
    pub users_h: Vec<f64>,
    /// Accuracy of the expected starts, if claims were told.
    pub foreseen: Option<Foreseen>,
}

/// Aggregates blocks.
#[must_use]
pub fn sums(case: &Case, blocks: &[Block]) -> Sums {
    let over = |of: &dyn Fn(&Block) -> f64| mean(&blocks.iter().map(of).collect::<Vec<f64>>());
    let all = || {
        let pairs = |b: &'_ Block| {
            let pairs = b.list.iter().copied().zip(b.played.claims.iter().copied());
            pairs.collect::<Vec<(Entry, Outcome)>>()
        };
        blocks.iter().flat_map(pairs)
    };
    let claims = all().count().max(1) as f64;
    let each = |of: fn(&Outcome) -> f64| all().map(|(_, c)| of(&c)).sum::<f64>();
    let setup = &case.setup;
    let in_time = setup.in_time().as_secs_f64();
    let within: Vec<f64> = all().filter_map(|(_, c)| c.guaranteed_wait_s).collect();
    let mut late: Vec<f64> = within.iter().copied().filter(|w| *w > in_time).collect();
    let mut short: Vec<f64> = all()
        .filter(|(e, _)| e.run_s < 600.0)
        .map(|(e, c)| (c.done_s.unwrap_or(f64::INFINITY) - e.run_s) / 60.0)
        .collect();
    let whole = all().filter(|(e, _)| e.gpus as usize == setup.gpus);
    let users = all().map(|(e, _)| e.user + 1).max().unwrap_or(0);
    let user_h = |user: usize| {
        let own = all().filter(|(e, _)| e.user == user);
        let own: Vec<f64> = own.filter_map(|(_, c)| c.done_s).collect();
        mean(&own) / 3600.0
    };
    Sums {
        wait_min: over(&|b| b.played.figures(&b.list).wait_mean_s / 60.0),
        wait_p95_min: over(&|b| b.played.figures(&b.list).wait_p95_s / 60.0),
        jct_h: over(&|b| b.played.figures(&b.list).jct_mean_s / 3600.0),
        usage: over(&|b| b.played.useful * 100.0),
        suspensions: each(|c| f64::from(c.suspensions)) / claims,
        moves: each(|c| f64::from(c.moves)) / claims,
        stall: each(|c| c.stall_s) / each(|c| c.ran_s).max(1.0) * 100.0,
        away_h: all().map(|(_, c)| c.away_s).fold(0.0, f64::max) / 3600.0,
        jain: over(&|b| b.played.figures(&b.list).jain),
        kept: over(&|b| b.played.kept_idle * 100.0),
        whole_h: whole
            .map(|(_, c)| c.wait_s.unwrap_or(f64::INFINITY) / 3600.0)
            .fold(0.0, f64::max),
        whole_late_h: all()
            .filter_map(|(_, c)| Some(c.whole_late_s? / 3600.0))
            .fold(0.0, f64::max),
        in_time: (1.0 - late.len() as f64 / within.len().max(1) as f64) * 100.0,
        late_p99_min: quantile(&mut late, 0.99) / 60.0,
        short_loss_p95_min: quantile(&mut short, 0.95),
        unfinished: blocks.iter().map(|b| b.played.unfinished()).sum(),
        waits: blocks
            .iter()
            .map(|b| b.played.figures(&b.list).wait_mean_s / 60.0)
            .collect(),
        users_h: (0..users).map(user_h).collect(),
        foreseen: setup.asks.then(|| Foreseen::of(blocks)),
    }
}

/// Expected start of a claim: from, to, in seconds, and whether it was certain.
type Told = Option<(f64, f64, bool)>;

/// Accuracy of the start times that waiting claims were told.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Foreseen {
    /// Claims that waited.
    pub waited: usize,
    /// Claims that were told a certain time.
    pub certain: usize,
    /// Percent of these that started within ten seconds of it.
    pub close: f64,
    /// Percent of the claims with a time span that started within it.
    pub holds: f64,
    /// Median width of these spans, as a multiple of the wait.
    pub width: f64,
    /// Percent of the claims with a wait of over two minutes that were told nothing.
    pub silent: f64,
}

impl Foreseen {
    /// From blocks played with [`Setup::asks`].
    fn of(blocks: &[Block]) -> Self {
        let all = blocks.iter().flat_map(|b| &b.played.claims);
        let waited: Vec<(f64, Told)> = all
            .filter_map(|c| Some((c.granted_s.filter(|wait| *wait > 0.0)?, c.expected)))
            .map(|(wait, told)| {
                (
                    wait,
                    told.and_then(|(low, high, sure)| Some((low, high?, sure))),
                )
            })
            .collect();
        let percent = |part: usize, of: usize| part as f64 / of.max(1) as f64 * 100.0;
        let told = |sure: bool| {
            let told = waited
                .iter()
                .filter_map(|(wait, told)| Some((*wait, (*told)?)));
            told.filter(move |(_, (.., s))| *s == sure)
        };
        let close = told(true).filter(|(wait, (_, at, _))| (wait - at).abs() <= 10.0);
        let holds = told(false).filter(|(wait, (low, high, _))| *low <= *wait && *wait <= *high);
        let mut widths: Vec<f64> = told(false)
            .map(|(wait, (low, high, _))| (high - low) / wait)
            .collect();
        let long = || waited.iter().filter(|(wait, _)| *wait > 120.0);
        Self {
            waited: waited.len(),
            certain: told(true).count(),
            close: percent(close.count(), told(true).count()),
            holds: percent(holds.count(), told(false).count()),
            width: quantile(&mut widths, 0.5),
            silent: percent(
                long().filter(|(_, told)| told.is_none()).count(),
                long().count(),
            ),
        }
    }

    /// A row of a table.
    #[must_use]
    pub fn line(&self, name: &str) -> String {
        format!(
            "{name:<46} waited {}, certain {} ({:.1} % within 10 s); else {:.1} % in the span, width {:.2} of the wait; {:.1} % of waits over 2 min without",
            self.waited, self.certain, self.close, self.holds, self.width, self.silent
        )
    }
}

/// Column headings for [`Sums::line`].
#[must_use]
pub fn head() -> String {
    format!(
        "{:<46} {:>8} {:>8} {:>6} {:>6} {:>6} {:>6} {:>7} {:>6} {:>6} {:>6} {:>7} {:>7} {:>8}",
        "",
        "wait min",
        "p95",
        "done h",
        "use %",
        "susp",
        "moves",
        "stall %",
        "away h",
        "jain",
        "kept %",
        "whole h",
        "in time",
        "short"
    )
}

impl Sums {
    /// A row of a table.
    #[must_use]
    pub fn line(&self, name: &str) -> String {
        let open = match self.unfinished {
            0 => String::new(),
            n => format!("  {n} did not end"),
        };
        format!(
            "{name:<46} {:>8.1} {:>8.1} {:>6.2} {:>6.1} {:>6.2} {:>6.2} {:>7.2} {:>6.1} {:>6.3} {:>6.2} {:>7.1} {:>7.1} {:>8.1}{open}",
            self.wait_min,
            self.wait_p95_min,
            self.jct_h,
            self.usage,
            self.suspensions,
            self.moves,
            self.stall,
            self.away_h,
            self.jain,
            self.kept,
            self.whole_h,
            self.in_time,
            self.short_loss_p95_min,
        )
    }
}

/// A goal with the measured value.
#[derive(Clone, Debug, PartialEq)]
pub struct Goal {
    /// What is measured.
    pub name: String,
    /// Measured value.
    pub got: f64,
    /// Target value.
    pub goal: f64,
    /// The target is a minimum; otherwise a maximum.
    pub at_least: bool,
}

impl Goal {
    /// The value may be at most `goal`.
    #[must_use]
    pub fn most(name: impl Into<String>, got: f64, goal: f64) -> Self {
        Self {
            name: name.into(),
            got,
            goal,
            at_least: false,
        }
    }

    /// The value must be at least `goal`.
    #[must_use]
    pub fn least(name: impl Into<String>, got: f64, goal: f64) -> Self {
        Self {
            at_least: true,
            ..Self::most(name, got, goal)
        }
    }

    /// Whether the goal is met; NaN never meets one.
    #[must_use]
    pub fn met(&self) -> bool {
        if self.at_least {
            self.got >= self.goal
        } else {
            self.got <= self.goal
        }
    }

    /// `missed  as shipped: mean wait, min: 54.9 (goal <= 5.0)`.
    #[must_use]
    pub fn line(&self) -> String {
        format!(
            "{:<6} {}: {:.3} (goal {} {:.3})",
            if self.met() { "met" } else { "missed" },
            self.name,
            self.got,
            if self.at_least { ">=" } else { "<=" },
            self.goal,
        )
    }
}

/// The goals of a list, for the rows that were played. Targets that depend on how many claims share GPUs have two
/// values: for lists of mostly whole GPUs, and for lists of mostly parts (`shared`).
#[must_use]
pub fn goals(list: &str, shared: bool, rows: &BTreeMap<String, Sums>) -> Vec<Goal> {
    let mut goals = Vec::new();
    let most = |name: &str, got, goal| Goal::most(format!("{list}: {name}"), got, goal);
    let least = |name: &str, got, goal| Goal::least(format!("{list}: {name}"), got, goal);
    let either = |whole: f64, parts: f64| if shared { parts } else { whole };
    let row = |name: &str| rows.get(name);
    if let Some(r) = row("equal guarantees") {
        goals.extend([
            most(
                "equal guarantees: mean wait, min",
                r.wait_min,
                either(2.0, 8.0),
            ),
            most(
                "equal guarantees: mean completion, h",
                r.jct_h,
                either(2.5, 2.0),
            ),
            most(
                "equal guarantees: p95 of what claims under 10 min lose, min",
                r.short_loss_p95_min,
                10.0,
            ),
            most("equal guarantees: suspensions a claim", r.suspensions, 1.5),
            most("equal guarantees: stall, % of run time", r.stall, 1.0),
            most(
                "equal guarantees: GPU time left idle by keeping, %",
                r.kept,
                1.0,
            ),
            least("within the guarantee, started in time, %", r.in_time, 99.0),
            most(
                "within the guarantee, p99 of those late, min",
                r.late_p99_min,
                15.0,
            ),
        ]);
        if let Some(fixed) = row("fixed parts") {
            let worst = r.users_h.iter().zip(&fixed.users_h);
            let worst = worst.map(|(a, b)| a / b.max(1e-9)).fold(0.0, f64::max);
            goals.push(most(
                "worst user's completion over a fixed part",
                worst,
                1.05,
            ));
        }
    }
    if let Some(r) = row("as shipped") {
        goals.extend([
            most("as shipped: mean wait, min", r.wait_min, either(5.0, 15.0)),
            most("as shipped: longest time away, h", r.away_h, 24.0),
            least("as shipped: Jain of users' speed", r.jain, 0.97),
        ]);
        if let Some(told) = &r.foreseen {
            let name = |what| format!("expected starts: {what}");
            let close = least(&name("certain ones within 10 s, %"), told.close, 99.0);
            goals.extend((told.certain > 0).then_some(close));
            goals.extend([
                least(&name("the others within the span, %"), told.holds, 80.0),
                most(&name("width of the span over the wait"), told.width, 2.0),
                most(&name("waits over 2 min without, %"), told.silent, 25.0),
            ]);
        }
    }
    if let (Some(none), Some(easy)) = (row("no offload, no move"), row("easy")) {
        let blocks = none.waits.iter().zip(&easy.waits);
        let worst = blocks.map(|(a, b)| a / b.max(1e-9)).fold(0.0, f64::max);
        let wait = |r: &Sums| r.wait_min / easy.wait_min.max(1e-9);
        goals.extend([
            most("no offload, no move: mean wait over EASY", wait(none), 1.0),
            most("no offload, no move: worst block's", worst, 1.05),
            least(
                "no offload, no move: use above EASY, points",
                none.usage - easy.usage,
                -0.5,
            ),
        ]);
        if let Some(moves) = row("offload, no move") {
            let done = moves.jct_h / easy.jct_h.max(1e-9);
            goals.extend([
                most("offload, no move: mean wait over EASY", wait(moves), 0.5),
                most("offload, no move: completion over EASY", done, 1.0),
            ]);
        }
        for (name, goal) in [("host memory 128 GiB", 5.0), ("host memory 32 GiB", 30.0)] {
            let Some(r) = row(name) else { continue };
            if !shared {
                goals.push(most(&format!("{name}: mean wait, min"), r.wait_min, goal));
            }
            let name = format!("{name}: mean wait over that without offloading");
            goals.push(most(&name, r.wait_min / none.wait_min.max(1e-9), 1.0));
        }
    }
    if let Some(r) = row(&format!("every 50th whole: {}", NO_OFFLOAD.name)) {
        let name = "no offload: start of the whole machine after the last end + 1 h, h";
        goals.push(most(name, r.whole_late_h, 0.0));
    }
    for (name, easy) in rows {
        let Some(name) = name.strip_suffix(": easy") else {
            continue;
        };
        let Some(live) = row(&format!("{name}: gshare")) else {
            continue;
        };
        goals.extend([
            most(
                &format!("{name}: mean wait over EASY"),
                live.wait_min / easy.wait_min.max(1e-9),
                0.5,
            ),
            least(
                &format!("{name}: use above EASY, points"),
                live.usage - easy.usage,
                -1.0,
            ),
            most(
                &format!("{name}: longest wait for the whole machine, h"),
                live.whole_h,
                4.0,
            ),
        ]);
    }
    goals
}
