//! Rows of the tables, and the goals with the distance to them.

use gshare_core::play::Entry;
use gshare_core::play::list::Cut;
use gshare_core::sched::replay::{Outcome, Policy};
use serde_json::{Value, json};

use crate::bench::stats::Times;

/// One policy over all blocks.
pub(super) struct Row {
    pub(super) policy: &'static Policy,
    pub(super) outcomes: Vec<Outcome>,
    step_p99_us: f64,
}

pub(super) fn mean(values: &[f64]) -> f64 {
    values.iter().sum::<f64>() / values.len().max(1) as f64
}

impl Row {
    pub(super) fn new(policy: &'static Policy, outcomes: Vec<Outcome>, steps_us: &Times) -> Self {
        Self {
            policy,
            outcomes,
            step_p99_us: steps_us.p99().unwrap_or(0.0),
        }
    }

    fn over(&self, of: impl Fn(&Outcome) -> f64) -> f64 {
        mean(&self.outcomes.iter().map(of).collect::<Vec<f64>>())
    }

    /// Minutes to the first start: mean.
    fn wait_min(&self) -> f64 {
        self.over(|o| mean(&o.wait_s) / 60.0)
    }

    /// Minutes to the first start below which a part `q` of the claims lies.
    fn wait_quantile_min(&self, q: f64) -> f64 {
        self.over(|o| Times::new(o.wait_s.clone()).quantile(q).unwrap_or(0.0) / 60.0)
    }

    fn moves(&self) -> f64 {
        self.over(|o| f64::from(o.moves) / o.wait_s.len().max(1) as f64)
    }

    fn completion_h(&self) -> f64 {
        self.over(|o| mean(&o.turnaround_s) / 3600.0)
    }

    pub(super) fn line(&self) -> String {
        format!(
            "{:<17} {:<14} {:>8.1} {:>8.1} {:>8.1} {:>8.2} {:>7.1} {:>7.1} {:>8.1} {:>7.3} {:>8.1} {:>7.3} {:>8.0}",
            self.policy.name,
            self.policy.rights(),
            self.wait_min(),
            self.wait_quantile_min(0.5),
            self.wait_quantile_min(0.95),
            self.completion_h(),
            self.over(|o| o.allocation) * 100.0,
            self.over(|o| o.useful) * 100.0,
            self.over(|o| o.headroom) * 100.0,
            self.moves(),
            self.over(|o| f64::from(o.suspensions)),
            self.over(|o| o.stall) * 100.0,
            self.step_p99_us,
        )
    }
}

pub(super) fn head() -> String {
    format!(
        "{:<17} {:<14} {:>8} {:>8} {:>8} {:>8} {:>7} {:>7} {:>8} {:>7} {:>8} {:>7} {:>8}",
        "policy",
        "may",
        "wait min",
        "p50",
        "p95",
        "done h",
        "alloc %",
        "use %",
        "headroom",
        "moves",
        "suspends",
        "stall %",
        "p99 us"
    )
}

pub(super) fn figures(rows: &[Row]) -> Value {
    let row = |r: &Row| {
        let figures = json!({
            "may": r.policy.rights(),
            "wait_min": r.wait_min(),
            "wait_p50_min": r.wait_quantile_min(0.5),
            "wait_p95_min": r.wait_quantile_min(0.95),
            "completion_h": r.completion_h(),
            "allocation": r.over(|o| o.allocation),
            "use": r.over(|o| o.useful),
            "headroom": r.over(|o| o.headroom),
            "moves_per_claim": r.moves(),
            "suspensions": r.over(|o| f64::from(o.suspensions)),
            "stall": r.over(|o| o.stall),
            "decision_p99_us": r.step_p99_us,
        });
        (r.policy.name.to_owned(), figures)
    };
    Value::Object(rows.iter().map(row).collect())
}

/// A goal and how far it is.
pub(super) struct Goal {
    pub(super) name: String,
    pub(super) got: f64,
    pub(super) goal: f64,
    /// Larger is better.
    pub(super) at_least: bool,
    pub(super) met: bool,
}

impl Goal {
    pub(super) fn most(name: impl Into<String>, got: f64, goal: f64) -> Self {
        Self {
            name: name.into(),
            got,
            goal,
            at_least: false,
            met: got <= goal,
        }
    }

    pub(super) fn least(name: impl Into<String>, got: f64, goal: f64) -> Self {
        Self {
            name: name.into(),
            got,
            goal,
            at_least: true,
            met: got >= goal,
        }
    }

    pub(super) fn line(&self) -> String {
        format!(
            "{:<6} {}: {:.3} (goal {} {:.3}{})",
            if self.met { "met" } else { "missed" },
            self.name,
            self.got,
            if self.at_least { ">=" } else { "<=" },
            self.goal,
            if self.met {
                String::new()
            } else {
                format!(", {:.3} away", (self.got - self.goal).abs())
            }
        )
    }

    pub(super) fn json(&self) -> Value {
        json!({ "name": self.name, "got": self.got, "goal": self.goal, "at_least": self.at_least, "met": self.met })
    }
}

fn find<'r>(rows: &'r [Row], name: &str) -> Option<&'r Row> {
    rows.iter().find(|r| r.policy.name == name)
}

/// Blocks in which the first has the shorter mean wait.
fn wins(a: &Row, b: &Row) -> f64 {
    let pairs = a.outcomes.iter().zip(&b.outcomes);
    let won = pairs
        .filter(|(a, b)| mean(&a.wait_s) < mean(&b.wait_s))
        .count();
    won as f64 / a.outcomes.len().max(1) as f64
}

pub(super) fn fifo_goals(list: &str, shared: bool, rows: &[Row]) -> Vec<Goal> {
    let (Some(exact), Some(fgd), Some(pooled)) =
        (find(rows, "exact"), find(rows, "fgd"), find(rows, "pooled"))
    else {
        return Vec::new();
    };
    let (wait, points) = if shared { (0.75, 4.5) } else { (0.91, 1.2) };
    let gained = |r: &Row| (r.over(|o| o.allocation) - fgd.over(|o| o.allocation)) * 100.0;
    vec![
        Goal::most(
            format!(
                "B1 {list}: mean wait over that of fgd (bound {:.3})",
                pooled.wait_min() / fgd.wait_min()
            ),
            exact.wait_min() / fgd.wait_min(),
            wait,
        ),
        Goal::least(
            format!(
                "B1 {list}: allocation above fgd, points (bound {:.2})",
                gained(pooled)
            ),
            gained(exact),
            points,
        ),
        Goal::least(
            format!("B1 {list}: blocks with a shorter mean wait than fgd"),
            wins(exact, fgd),
            0.95,
        ),
        Goal::most(
            format!("B2 {list}: stall, % of run time"),
            exact.over(|o| o.stall) * 100.0,
            0.2,
        ),
        Goal::most(format!("B2 {list}: moves per claim"), exact.moves(), 0.2),
    ]
}

pub(super) fn search_goals(gpus: usize, goal_us: f64, row: &Row) -> Vec<Goal> {
    let (all, open) = row.outcomes.iter().fold((0, 0), |sum, o| {
        (sum.0 + o.searches.0, sum.1 + o.searches.1)
    });
    vec![
        Goal::most(
            format!("B6 {gpus} GPUs: decision p99, us of processor time"),
            row.step_p99_us,
            goal_us,
        ),
        Goal::least(
            format!("B6 {gpus} GPUs: searches with a proof, of {all}"),
            1.0 - f64::from(open) / f64::from(all.max(1)),
            0.99,
        ),
    ]
}

pub(super) fn spread_goals(list: &str, rows: &[Row]) -> Vec<Goal> {
    let (Some(best), Some(exact), Some(spread)) = (
        find(rows, "best-fit"),
        find(rows, "exact"),
        find(rows, "spread"),
    ) else {
        return Vec::new();
    };
    let headroom = |r: &Row| r.over(|o| o.headroom);
    vec![
        Goal::least(
            format!("B3 {list}: burst headroom over that of best-fit"),
            headroom(spread) / headroom(best).max(1e-9),
            1.3,
        ),
        Goal::least(
            format!("B3 {list}: allocation above exact packing, points"),
            (spread.over(|o| o.allocation) - exact.over(|o| o.allocation)) * 100.0,
            -0.1,
        ),
    ]
}

pub(super) fn quota_goals(
    list: &str,
    rows: &[Row],
    trace: &[Entry],
    cut: &Cut,
    blocks: u32,
) -> Vec<Goal> {
    let (Some(ours), Some(parted)) = (find(rows, "gshare"), find(rows, "static")) else {
        return Vec::new();
    };
    let entitled: (u32, u32) = ours.outcomes.iter().fold((0, 0), |sum, o| {
        (sum.0 + o.entitled.0, sum.1 + o.entitled.1)
    });
    let (mine, theirs) = (
        super::by_user(ours, trace, cut),
        super::by_user(parted, trace, cut),
    );
    let worst = mine
        .iter()
        .zip(&theirs)
        .map(|(a, b)| a / b.max(1e-9))
        .fold(0.0, f64::max);
    let denied: usize = ours
        .outcomes
        .iter()
        .map(|o| o.turnaround_s.iter().filter(|t| **t <= 0.0).count())
        .sum();
    let bound = super::play_bound(trace, cut, blocks);
    vec![
        Goal::most(
            format!("B4 {list}: first start, mean min"),
            ours.wait_min(),
            24.0,
        ),
        Goal::most(
            format!("B4 {list}: first start, median min"),
            ours.wait_quantile_min(0.5),
            0.5,
        ),
        Goal::least(
            format!("B4 {list}: use, % (bound {bound:.1}: all that was asked by then)"),
            ours.over(|o| o.useful) * 100.0,
            83.0,
        ),
        Goal::most(
            format!("B4 {list}: mean completion, h"),
            ours.completion_h(),
            3.1,
        ),
        Goal::least(
            format!(
                "B5 {list}: entitled claims that start within a minimum run and two parkings, of {}",
                entitled.0
            ),
            f64::from(entitled.1) / f64::from(entitled.0.max(1)),
            0.99,
        ),
        Goal::most(
            format!("B5 {list}: claims that never ran, with quotas that can be packed"),
            denied as f64,
            0.0,
        ),
        Goal::most(
            format!(
                "B5 {list}: worst user's mean completion over that with a fixed part of his own"
            ),
            worst,
            1.0,
        ),
    ]
}
