//! Middle and spread of earlier runs, and their dependence on a number in the arguments.

use super::{Level, Past, RUNS, Shape};

/// Weight of a run relative to the next newer one.
const FADE: f64 = 0.9;
/// Prior spread, with the weight of one run.
const SPREAD: f64 = 0.05;
/// Memory that differs by less depends on nothing (in logarithms).
const SAME: f64 = 0.08;
/// A change needs at least two consecutive runs that are off by this much, and by this many times the spread.
const CHANGE: f64 = 0.12;
const CHANGE_SPREADS: f64 = 4.0;
/// Minimum spread of far levels, which mix different runs.
const FAR_SPREAD: f64 = 0.35;
/// A number must remove this fraction of the error to count.
const WORTH: f64 = 0.6;
/// Parts of names of arguments that memory depends on.
const SIZES: [&str; 14] = [
    "batch", "bs", "seq", "len", "ctx", "context", "dim", "hidden", "width", "layer", "res",
    "size", "tokens", "image",
];
/// Parts of names of arguments that memory does not depend on.
const NO_SIZES: [&str; 12] = [
    "seed", "lr", "rate", "epoch", "step", "port", "rank", "decay", "momentum", "dropout",
    "warmup", "save",
];

/// The result at one level, in logarithms of bytes.
#[derive(Clone, Debug, PartialEq)]
pub struct Found {
    /// Level of similarity.
    pub level: Level,
    /// Middle.
    pub log: f64,
    /// Expected standard deviation of the error.
    pub spread: f64,
    /// The runs, newest first.
    pub runs: Vec<Past>,
    /// Numbers that memory depends on.
    pub follows: Vec<String>,
    /// Number of runs considered.
    pub known: usize,
    /// Numbers of all runs considered, newest first.
    pub newest: Vec<u64>,
    /// If the newest runs differ from the older ones: how many they are, and by what factor.
    pub changed: Option<(usize, f64)>,
}

impl Found {
    /// Marks a result as one from other users' runs.
    #[must_use]
    pub fn shared(self) -> Self {
        Self {
            level: Level::Shared,
            ..self
        }
    }
}

#[derive(Clone, Copy, Debug)]
struct Point {
    x: f64,
    y: f64,
    weight: f64,
}

/// Weighted mean, weighted sum of squared deviations, and total weight.
fn mean(points: impl Iterator<Item = (f64, f64)> + Clone) -> (f64, f64, f64) {
    let weight: f64 = points.clone().map(|(_, w)| w).sum();
    if weight <= 0.0 {
        return (0.0, 0.0, 0.0);
    }
    let middle = points.clone().map(|(v, w)| v * w).sum::<f64>() / weight;
    let squares = points.map(|(v, w)| w * (v - middle).powi(2)).sum::<f64>();
    (middle, squares, weight)
}

/// `exp(y) = a + b x` by least squares of relative errors; a and b are not negative.
fn line(points: &[Point]) -> (f64, f64) {
    let (mut s0, mut s1, mut s2, mut t0, mut t1) = (0.0, 0.0, 0.0, 0.0, 0.0);
    let largest = points.iter().map(|p| p.y).fold(f64::MIN, f64::max);
    for p in points {
        let y = (p.y - largest).exp();
        let w = p.weight / (y * y);
        s0 += w;
        s1 += w * p.x;
        s2 += w * p.x * p.x;
        t0 += w * y;
        t1 += w * p.x * y;
    }
    let det = s0 * s2 - s1 * s1;
    let flat = (t0 / s0.max(f64::MIN_POSITIVE), 0.0);
    let (a, b) = if det.abs() <= 1e-12 * s0 * s2 {
        flat
    } else {
        let (a, b) = ((t0 * s2 - t1 * s1) / det, (s0 * t1 - s1 * t0) / det);
        if a < 0.0 && s2 > 0.0 {
            (0.0, t1 / s2)
        } else {
            (a, b)
        }
    };
    let scale = largest.exp();
    (a * scale, b * scale)
}

/// Dependence of memory on one number: a line, with deviations at numbers that were seen and interpolation between
/// them, but never against the line's direction.
struct Curve {
    a: f64,
    b: f64,
    /// Number and deviation (shrunk by the number of runs), sorted by number.
    off: Vec<(f64, f64)>,
    /// Range of the numbers seen; beyond it a prediction is less certain.
    seen: (f64, f64),
}

impl Curve {
    fn through(points: &[Point]) -> Self {
        let (a, b) = line(points);
        let mut curve = Self {
            a,
            b,
            off: Vec::new(),
            seen: (f64::MAX, f64::MIN),
        };
        let mut sorted = points.to_vec();
        sorted.sort_by(|p, q| p.x.total_cmp(&q.x));
        for group in sorted.chunk_by(|p, q| p.x == q.x) {
            let x = group[0].x;
            let (off, _, weight) = mean(group.iter().map(|p| (p.y - curve.on_line(x), p.weight)));
            // One or two runs weigh little against the line through all.
            let shrunk = off * weight / (weight + 2.0);
            // A large deviation means that the relation is not a line: the runs count more.
            curve
                .off
                .push((x, if off.abs() > SAME { off } else { shrunk }));
            curve.seen = (curve.seen.0.min(x), curve.seen.1.max(x));
        }
        // Monotone: if the line rises a larger number never needs less, if it falls never more.
        let rising = curve.b >= 0.0;
        for i in 1..curve.off.len() {
            let (before, here) = (curve.off[i - 1], curve.off[i]);
            let (low, high) = (
                curve.on_line(before.0) + before.1,
                curve.on_line(here.0) + here.1,
            );
            if (rising && high < low) || (!rising && high > low) {
                curve.off[i].1 = low - curve.on_line(here.0);
            }
        }
        curve
    }

    fn on_line(&self, x: f64) -> f64 {
        let smallest = self.a.max(self.b.abs()).max(1.0) * 1e-3;
        (self.a + self.b * x).max(smallest).ln()
    }

    fn at(&self, x: f64) -> f64 {
        let next = self.off.partition_point(|(n, _)| *n < x);
        let level = |(n, off): (f64, f64)| self.on_line(n) + off;
        let before = next.checked_sub(1).map(|i| self.off[i]);
        match (before, self.off.get(next).copied()) {
            (_, Some(here)) if here.0 == x => level(here),
            (Some(low), Some(high)) => {
                let part = (x - low.0) / (high.0 - low.0);
                let (from, to) = (level(low).exp(), level(high).exp());
                (from + (to - from) * part).ln()
            }
            (Some((_, off)), None) | (None, Some((_, off))) => self.on_line(x) + off,
            (None, None) => self.on_line(x),
        }
    }

    /// Distance of a number from the range seen; 0 within.
    fn beyond(&self, x: f64) -> f64 {
        let (low, high) = self.seen;
        if x > high && high > 0.0 {
            (x / high).ln()
        } else if x < low && x > 0.0 {
            (low / x).ln()
        } else {
            0.0
        }
    }
}

/// Runs as points over a number; at 0 without a number.
fn points(runs: &[Past], name: Option<&str>) -> Vec<Point> {
    let value = |run: &Past| name.map_or(Some(0.0), |name| run.shape.number(name));
    let all = runs.iter().enumerate().filter_map(|(age, run)| {
        Some(Point {
            x: value(run)?,
            y: (run.peak.0 as f64).ln(),
            weight: FADE.powi(i32::try_from(age).unwrap_or(i32::MAX)),
        })
    });
    all.collect()
}

/// Leave-one-out errors: with the number, and without.
fn left_out(points: &[Point]) -> (f64, f64) {
    let (mut with, mut without) = (0.0, 0.0);
    for i in 0..points.len() {
        let mut rest = points.to_vec();
        let p = rest.remove(i);
        with += (p.y - Curve::through(&rest).at(p.x)).abs();
        without += (p.y - mean(rest.iter().map(|q| (q.y, q.weight))).0).abs();
    }
    (with, without)
}

fn sounds_like(name: &str, parts: &[&str]) -> bool {
    let mut words = name.split(|c: char| !c.is_ascii_alphabetic());
    words.any(|word| {
        let word = word.to_ascii_lowercase();
        parts
            .iter()
            .any(|p| word == *p || (p.len() > 3 && word.starts_with(p)))
    })
}

/// The numbers that memory depends on, the most informative first.
fn follows(runs: &[Past]) -> Vec<String> {
    let Some(first) = runs.first() else {
        return Vec::new();
    };
    let mut found: Vec<(f64, String)> = Vec::new();
    for (name, _) in &first.shape.numbers {
        let points = points(runs, Some(name));
        let distinct = {
            let mut values: Vec<f64> = points.iter().map(|p| p.x).collect();
            values.sort_by(f64::total_cmp);
            values.dedup();
            values.len()
        };
        if distinct < 2 || points.len() < 3 {
            continue;
        }
        let named = sounds_like(name, &SIZES);
        if !named && (sounds_like(name, &NO_SIZES) || points.len() < 5) {
            continue;
        }
        let (with, without) = left_out(&points);
        let ratio = with / without.max(f64::MIN_POSITIVE);
        let curve = Curve::through(&points);
        let (low, high) = (curve.at(curve.seen.0), curve.at(curve.seen.1));
        let matters = (high - low).abs() > SAME;
        // A telling name only counts while there are few runs.
        let bar = if named && points.len() < 12 {
            1.0
        } else {
            WORTH
        };
        if matters && ratio < bar {
            found.push((ratio, name.clone()));
        }
    }
    found.sort_by(|a, b| a.0.total_cmp(&b.0));
    found.into_iter().map(|(_, name)| name).take(2).collect()
}

/// If the newest runs differ from the older ones: how many they are, and by how much.
fn change(residuals: &[f64]) -> Option<(usize, f64)> {
    let mut best: Option<(usize, f64, f64)> = None;
    for newest in 2..=residuals.len().saturating_sub(2).min(12) {
        let (new, old) = residuals.split_at(newest);
        let (m, squares, n) = mean(new.iter().map(|r| (*r, 1.0)));
        let (k, old_squares, o) = mean(old.iter().map(|r| (*r, 1.0)));
        let pooled = (squares + old_squares + SPREAD * SPREAD) / (n + o - 1.0);
        let error = (pooled * (1.0 / n + 1.0 / o)).sqrt();
        let (off, strength) = (m - k, (m - k).abs() / error);
        if off.abs() > CHANGE
            && strength > CHANGE_SPREADS
            && best.is_none_or(|(_, _, s)| strength > s)
        {
            best = Some((newest, off, strength));
        }
    }
    best.map(|(newest, off, _)| (newest, off))
}

/// Prediction from repeats of a command and from runs with other numbers.
pub(super) fn near(shape: &Shape, script: &[Past]) -> Option<Found> {
    let same = |run: &&Past| run.shape.words == shape.words && run.peak.0 > 0;
    let mut runs: Vec<Past> = script.iter().filter(same).take(RUNS).cloned().collect();
    let follows = follows(&runs);
    // If two numbers matter, use the runs with the same second number.
    if let [_, second] = follows.as_slice() {
        let wanted = shape.number(second);
        let agree = |run: &&Past| run.shape.number(second) == wanted;
        let agreeing: Vec<Past> = runs.iter().filter(agree).cloned().collect();
        if agreeing.len() >= 2 {
            runs = agreeing;
        }
    }
    let name = follows.first().map(String::as_str);
    let x = name.map_or(Some(0.0), |name| shape.number(name))?;
    if runs.is_empty() {
        return None;
    }
    // A new number, if only one value was seen: the dependence is unknown.
    let unseen = |(key, value): &(String, f64)| {
        sounds_like(key, &SIZES) && runs.iter().all(|run| run.shape.number(key) != Some(*value))
    };
    if name.is_none() && follows.is_empty() && shape.numbers.iter().any(unseen) {
        let varied = |(key, _): &(String, f64)| {
            let first = runs[0].shape.number(key);
            runs.iter().any(|run| run.shape.number(key) != first)
        };
        if !shape.numbers.iter().filter(|n| unseen(n)).all(varied) {
            return None;
        }
    }
    let mut points = points(&runs, name);
    let mut changed = None;
    let residuals = |points: &[Point]| -> Vec<f64> {
        let curve = Curve::through(points);
        points.iter().map(|p| p.y - curve.at(p.x)).collect()
    };
    // Compare the newest runs with what the older ones predict.
    if points.len() >= 4 {
        for newest in 2..=(points.len() - 2).min(12) {
            let curve = Curve::through(&points[newest..]);
            // A number outside the range of the older runs may be the reason.
            if points[..newest].iter().any(|p| curve.beyond(p.x) > 0.0) {
                continue;
            }
            let all: Vec<f64> = points.iter().map(|p| p.y - curve.at(p.x)).collect();
            if let Some((at, off)) = change(&all)
                && at == newest
            {
                changed = Some((newest, off.exp()));
                // Shift the older runs to the new level: they still show the dependence on the number.
                for p in &mut points[newest..] {
                    p.y += off;
                    p.weight *= 0.25;
                }
                break;
            }
        }
    }
    let curve = Curve::through(&points);
    let residuals = residuals(&points);
    let weights: f64 = points.iter().map(|p| p.weight).sum();
    let squares: f64 = residuals
        .iter()
        .zip(&points)
        .map(|(r, p)| p.weight * r * r)
        .sum();
    let parameters = if name.is_some() { 2.0 } else { 1.0 };
    let free = (weights - parameters).max(0.0);
    let noise = ((squares + SPREAD * SPREAD) / (free + 1.0)).sqrt();
    let own = points
        .iter()
        .filter(|p| p.x == x)
        .map(|p| p.weight)
        .sum::<f64>();
    let known = (own + 0.3 * (weights - own)).max(0.3);
    let beyond = curve.beyond(x);
    let spread = noise * (1.0 + 1.0 / known + 4.0 * beyond * beyond / weights.max(1.0)).sqrt()
        + 0.02 * beyond;
    let exact = own > 0.0 || name.is_none();
    let used = runs.iter().zip(&points).filter(|(_, p)| !exact || p.x == x);
    Some(Found {
        level: if exact { Level::Repeats } else { Level::Scaled },
        log: curve.at(x),
        spread,
        runs: used.map(|(run, _)| run.clone()).collect(),
        follows,
        known: runs.len(),
        newest: runs.iter().map(|run| run.id).collect(),
        changed,
    })
}

/// Prediction from less similar runs, if there are at least `few`.
pub(super) fn far(level: Level, runs: &[Past], few: usize) -> Option<Found> {
    let known = |run: &&Past| run.peak.0 > 0;
    let runs: Vec<Past> = runs.iter().filter(known).take(RUNS).cloned().collect();
    if runs.len() < few {
        return None;
    }
    let points = points(&runs, None);
    let (log, squares, weight) = mean(points.iter().map(|p| (p.y, p.weight)));
    let noise = ((squares + FAR_SPREAD * FAR_SPREAD) / weight.max(1.0)).sqrt();
    Some(Found {
        level,
        log,
        spread: noise * (1.0 + 1.0 / weight).sqrt(),
        known: runs.len(),
        newest: runs.iter().map(|run| run.id).collect(),
        runs,
        follows: Vec::new(),
        changed: None,
    })
}
