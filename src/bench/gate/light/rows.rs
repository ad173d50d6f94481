//! The light mixes and their goals.

use super::arm::Arm;

/// One claim of a mix.
#[derive(Clone, Copy, Debug)]
pub(super) struct Program {
    /// Thousandths of each of its GPUs.
    pub(super) share: u32,
    /// Arguments of the program; the last one is the number of steps.
    pub(super) words: &'static [&'static str],
    /// Whether its steps are measured; otherwise it only provides load.
    pub(super) measured: bool,
    /// Its GPUs, separated by commas.
    pub(super) gpus: &'static str,
}

impl Program {
    /// Number of measured steps.
    pub(super) fn steps(&self) -> u64 {
        let last = self.words.last().and_then(|w| w.parse().ok());
        last.unwrap_or(0)
    }
}

const fn light(share: u32, words: &'static [&'static str]) -> Program {
    Program {
        share,
        words,
        measured: true,
        gpus: "0",
    }
}

const fn beside(share: u32, words: &'static [&'static str]) -> Program {
    Program {
        measured: false,
        ..light(share, words)
    }
}

/// Baseline of a mix in claims, without gshare.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Baseline {
    /// The same programs concurrently.
    SideBySide,
    /// The first program alone.
    Alone,
}

/// Goal of a mix.
#[derive(Clone, Copy, Debug)]
enum Goal {
    /// Each program's steps take at most this many times as long.
    Slower(f64),
    /// The first program's steps take at most this many times as long as alone.
    SlowerThanAlone(f64),
    /// Like `SlowerThanAlone`, and 99 % of its launches wait at most this many milliseconds.
    SlowerAndWait(f64, f64),
    /// 99 % of its launches wait at most this many milliseconds.
    Wait(f64),
    /// The second program gets at least this fraction of the GPU's time.
    SecondKeeps(f64),
    /// The 99th percentile of a step is at most this multiple of the one without gshare.
    Token(f64),
    /// The first program gets its share, plus or minus this many percentage points.
    Share(f64),
    /// No step of the first program takes longer than this many milliseconds.
    WorstStep(f64),
}

#[derive(Debug)]
pub(super) struct Row {
    pub(super) name: &'static str,
    pub(super) programs: &'static [Program],
    pub(super) baseline: Baseline,
    pub(super) gpus: usize,
    goal: Goal,
    pub(super) quick: bool,
}

/// Condition on a figure.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) enum Limit {
    Most(f64),
    Least(f64),
    /// No condition: only printed.
    Told,
}

impl Limit {
    /// NaN meets no goal.
    pub(super) fn holds(self, value: f64) -> bool {
        match self {
            Limit::Most(most) => value <= most,
            Limit::Least(least) => value >= least,
            Limit::Told => true,
        }
    }
}

/// A figure's name, unit and limit.
#[derive(Clone, Copy, Debug)]
pub(super) struct Figure {
    pub(super) name: &'static str,
    pub(super) unit: &'static str,
    pub(super) limit: Limit,
}

const fn most(name: &'static str, unit: &'static str, most: f64) -> Figure {
    Figure {
        name,
        unit,
        limit: Limit::Most(most),
    }
}

const fn told(name: &'static str, unit: &'static str) -> Figure {
    Figure {
        name,
        unit,
        limit: Limit::Told,
    }
}

const fn spread(share: u32) -> Program {
    Program {
        gpus: "0,1",
        ..light(share, &["collective", "1000", "100", "20", "20"])
    }
}

const THINK_10: &[&str] = &["think", "10", "200", "1500"];
const THINK_100: &[&str] = &["think", "100", "200", "1500"];
const FLOOD_1MS: &[&str] = &["flood", "1000", "0"];
const FLOOD_20MS: &[&str] = &["flood", "20000", "0"];

const fn together(name: &'static str, programs: &'static [Program]) -> Row {
    Row {
        name,
        programs,
        baseline: Baseline::SideBySide,
        gpus: 1,
        goal: Goal::Slower(1.05),
        quick: false,
    }
}

pub(super) const ROWS: &[Row] = &[
    Row {
        quick: true,
        ..together("2 x light, 10 us", &[light(500, THINK_10); 2])
    },
    together("2 x light, 100 us", &[light(500, THINK_100); 2]),
    together("4 x light, 10 us", &[light(250, THINK_10); 4]),
    together(
        "10:90 light, 10 us",
        &[light(100, THINK_10), light(900, THINK_10)],
    ),
    together(
        "10:90 light, 100 us",
        &[light(100, THINK_100), light(900, THINK_100)],
    ),
    Row {
        baseline: Baseline::Alone,
        goal: Goal::SlowerAndWait(1.2, 1.3),
        quick: true,
        ..together(
            "light 1 ms + 9 ms beside a flood of 1 ms",
            &[
                light(250, &["think", "1000", "9000", "150"]),
                beside(750, FLOOD_1MS),
            ],
        )
    },
    Row {
        baseline: Baseline::Alone,
        goal: Goal::SlowerAndWait(1.2, 1.3),
        ..together(
            "light 100 us + 900 us beside a flood of 1 ms",
            &[
                light(250, &["think", "100", "900", "600"]),
                beside(750, FLOOD_1MS),
            ],
        )
    },
    Row {
        baseline: Baseline::Alone,
        goal: Goal::Wait(20.3),
        ..together(
            "light 1 ms + 9 ms beside a flood of 20 ms",
            &[
                light(250, &["think", "1000", "9000", "100"]),
                beside(750, FLOOD_20MS),
            ],
        )
    },
    Row {
        goal: Goal::SecondKeeps(0.5),
        ..together(
            "1 us each 200 us beside a flood of 1 ms",
            &[
                light(500, &["think", "1", "200", "1500"]),
                beside(500, FLOOD_1MS),
            ],
        )
    },
    Row {
        goal: Goal::Token(0.7),
        ..together(
            "decode each 15 ms beside training of 1 ms",
            &[
                light(500, &["decode", "30", "100", "15000", "120"]),
                beside(500, FLOOD_1MS),
            ],
        )
    },
    Row {
        goal: Goal::Token(0.7),
        ..together(
            "decode each 15 ms beside training of 5 ms",
            &[
                light(500, &["decode", "30", "100", "15000", "120"]),
                beside(500, &["flood", "5000", "0"]),
            ],
        )
    },
    Row {
        goal: Goal::Share(2.0),
        ..together(
            "decode without pauses beside training of 1 ms",
            &[
                light(500, &["decode", "30", "100", "0", "600"]),
                beside(500, FLOOD_1MS),
            ],
        )
    },
    Row {
        baseline: Baseline::Alone,
        goal: Goal::WorstStep(20.01),
        ..together(
            "host function of 2 s beside a flood of 1 ms",
            &[
                light(500, &["host", "10", "2000", "400"]),
                beside(500, FLOOD_1MS),
            ],
        )
    },
    Row {
        baseline: Baseline::Alone,
        gpus: 2,
        goal: Goal::SlowerThanAlone(1.2),
        ..together(
            "collectives on two GPUs, a light claim on each",
            &[
                spread(500),
                beside(250, &["think", "100", "900", "0"]),
                Program {
                    gpus: "1",
                    ..beside(250, &["think", "100", "900", "0"])
                },
            ],
        )
    },
    Row {
        baseline: Baseline::Alone,
        gpus: 2,
        goal: Goal::SlowerThanAlone(3.0),
        ..together(
            "collectives on two GPUs, a flood on each",
            &[
                spread(500),
                beside(500, FLOOD_1MS),
                Program {
                    gpus: "1",
                    ..beside(500, FLOOD_1MS)
                },
            ],
        )
    },
    Row {
        baseline: Baseline::Alone,
        gpus: 2,
        goal: Goal::SlowerThanAlone(2.2),
        ..together("2 x collectives on two GPUs", &[spread(500); 2])
    },
];

impl Row {
    /// The figures of one pair.
    pub(super) fn figures(&self, shared: &Arm, base: &Arm) -> Vec<(Figure, f64)> {
        let measured = |at: usize| self.programs[at].measured;
        let slower = |at: usize| shared.steps[at].mean_us / base.steps[at].mean_us;
        let worst = || {
            (0..base.steps.len())
                .filter(|at| measured(*at))
                .map(slower)
                .fold(0.0, f64::max)
        };
        // A launch waits for the time by which its step exceeds the median step alone.
        let waits = || (shared.steps[0].p99_us - base.steps[0].median_us).max(0.0) / 1e3;
        let part = |arm: &Arm, at: usize| arm.used.get(at).copied().unwrap_or(f64::NAN);
        let mut figures = match self.goal {
            Goal::Slower(limit) => vec![(most("slower", "x", limit), worst())],
            Goal::SlowerThanAlone(limit) => {
                vec![(most("slower than alone", "x", limit), slower(0))]
            }
            Goal::SlowerAndWait(limit, ms) => vec![
                (most("slower than alone", "x", limit), slower(0)),
                (most("p99 of a wait", " ms", ms), waits()),
                (told("the flood's part of the GPU", ""), part(shared, 1)),
            ],
            Goal::Wait(ms) => vec![
                (most("p99 of a wait", " ms", ms), waits()),
                (told("slower than alone", "x"), slower(0)),
            ],
            Goal::SecondKeeps(least) => vec![
                (
                    Figure {
                        name: "the flood's part of the GPU",
                        unit: "",
                        limit: Limit::Least(least),
                    },
                    part(shared, 1),
                ),
                (told("without gshare", ""), part(base, 1)),
                (told("slower", "x"), slower(0)),
            ],
            Goal::Token(limit) => vec![
                (
                    most("p99 of a token", "x", limit),
                    shared.steps[0].p99_us / base.steps[0].p99_us,
                ),
                (told("token", " ms"), shared.steps[0].p99_us / 1e3),
                (told("without gshare", " ms"), base.steps[0].p99_us / 1e3),
            ],
            Goal::Share(points) => {
                let share = f64::from(self.programs[0].share) / 1000.0;
                let (first, second) = (part(shared, 0), part(shared, 1));
                let miss = (first / (first + second) - share).abs() * 100.0;
                vec![
                    (most("off its share", " points", points), miss),
                    (told("GPU in use", ""), first + second),
                ]
            }
            Goal::WorstStep(ms) => vec![
                (most("worst step", " ms", ms), shared.steps[0].most_us / 1e3),
                (told("alone", " ms"), base.steps[0].most_us / 1e3),
                (told("the flood's part of the GPU", ""), part(shared, 1)),
            ],
        };
        // Without contention there is almost nothing to decide.
        let limit = match self.goal {
            Goal::Slower(_) => 0.05,
            _ => 1.0,
        };
        figures.push((most("arbiter", " %", limit), shared.arbiter * 100.0));
        // A light claim that delays others reports the start of each burst, and the GPU switches to its context and back.
        if let Goal::SlowerAndWait(..) | Goal::Wait(_) | Goal::Token(_) | Goal::SecondKeeps(_) =
            self.goal
        {
            let bursts = shared.switches_per_step.map_or(1.0, |many| many / 2.0);
            let least = bursts * shared.doorbell_us / shared.steps[0].mean_us;
            figures.push((told("arbiter at least", " %"), least * 100.0));
        }
        if let (Some(with), Some(without)) = (shared.switches_per_step, base.switches_per_step) {
            match self.baseline {
                Baseline::SideBySide if matches!(self.goal, Goal::Slower(_)) => {
                    let ratio = if with <= without { 1.0 } else { with / without };
                    figures.push((most("context switches", "x", 1.2), ratio));
                    figures.push((told("of them without gshare", " a step"), without));
                }
                _ => figures.push((told("context switches", " a step"), with)),
            }
        }
        figures
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::bench::gate::light::arm::Steps;

    fn arm(means: &[f64], p99: f64, used: &[f64], switches: f64) -> Arm {
        let steps = |mean: &f64| Steps {
            mean_us: *mean,
            median_us: *mean,
            p99_us: p99,
            most_us: 2.0 * p99,
        };
        Arm {
            steps: means.iter().map(steps).collect(),
            used: used.to_vec(),
            switches_per_step: Some(switches),
            arbiter: 0.0,
            others: 0.0,
            doorbell_us: 0.0,
        }
    }

    fn row(name: &str) -> &'static Row {
        ROWS.iter().find(|r| r.name == name).expect("a row")
    }

    fn kept(row: &Row, shared: &Arm, base: &Arm) -> Vec<bool> {
        let figures = row.figures(shared, base);
        figures.iter().map(|(f, v)| f.limit.holds(*v)).collect()
    }

    #[test]
    fn the_slowest_claim_counts_and_so_do_context_switches() {
        let row = row("2 x light, 10 us");
        let base = arm(&[300.0, 300.0], 400.0, &[], 1.0);
        let good = arm(&[310.0, 312.0], 400.0, &[], 1.19);
        assert_eq!(kept(row, &good, &base), [true; 4]);
        let one_slow = arm(&[300.0, 320.0], 400.0, &[], 1.3);
        assert_eq!(kept(row, &one_slow, &base), [false, true, false, true]);
        let awake = Arm {
            arbiter: 0.0006,
            ..good
        };
        assert_eq!(kept(row, &awake, &base), [true, false, true, true]);
    }

    #[test]
    fn a_wait_is_what_a_step_takes_beyond_its_usual_time_alone() {
        let row = row("light 1 ms + 9 ms beside a flood of 1 ms");
        let base = arm(&[1050.0], 1100.0, &[], 0.0);
        let shared = |p99| arm(&[1200.0, 0.0], p99, &[], 0.0);
        assert_eq!(kept(row, &shared(2340.0), &base), [true; 6]);
        let late = [true, false, true, true, true, true];
        assert_eq!(kept(row, &shared(2360.0), &base), late);
    }

    #[test]
    fn what_is_not_known_meets_no_goal() {
        let row = row("1 us each 200 us beside a flood of 1 ms");
        let steps = arm(&[300.0, 0.0], 400.0, &[], 0.0);
        assert!(!kept(row, &steps, &steps)[0]);
        let short = arm(&[300.0, 0.0], 400.0, &[0.01, 0.49], 0.0);
        assert!(!kept(row, &short, &steps)[0]);
        let kept_it = arm(&[300.0, 0.0], 400.0, &[0.01, 0.51], 0.0);
        assert!(kept(row, &kept_it, &steps)[0]);
    }
}
