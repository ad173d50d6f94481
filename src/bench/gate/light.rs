//! Mixes of programs with light GPU use, alone and beside floods: an unmodified C program (`tests/device/light`) in
//! claims is compared with the same without gshare, in consecutive pairs.

mod arm;
mod bound;
mod rows;

use anyhow::Context as _;
use serde_json::{Value, json};

use self::arm::{Arm, Kit};
use self::rows::{Figure, Limit, ROWS, Row};
use super::{PAIRS, Place};
use crate::bench::say;
use crate::bench::stats::Times;

/// Mean duration of one run of a mix, in seconds.
const ARM_SECONDS: f64 = 1.8;
/// Load by other processes above which goals are not judged.
const OTHERS_MOST: f64 = 0.6;

/// A figure over all pairs of a row.
struct Measured {
    figure: Figure,
    values: Times,
}

impl Measured {
    fn median(&self) -> f64 {
        self.values.median().unwrap_or(f64::NAN)
    }

    fn met(&self) -> bool {
        self.figure.limit.holds(self.median())
    }

    fn text(&self) -> String {
        let at = |q| self.values.quantile(q).unwrap_or(f64::NAN);
        let limit = match self.figure.limit {
            Limit::Most(most) => format!("at most {most}"),
            Limit::Least(least) => format!("at least {least}"),
            Limit::Told => "for information".to_owned(),
        };
        let Figure { name, unit, .. } = self.figure;
        format!(
            "{name} {:.2}{unit} ({:.2}..{:.2}; {limit})",
            self.median(),
            at(0.0),
            at(1.0)
        )
    }

    fn json(&self) -> Value {
        let limit = match self.figure.limit {
            Limit::Most(most) => json!({ "at_most": most }),
            Limit::Least(least) => json!({ "at_least": least }),
            Limit::Told => Value::Null,
        };
        json!({
            "name": self.figure.name, "unit": self.figure.unit.trim(), "median": self.median(),
            "least": self.values.quantile(0.0), "most": self.values.quantile(1.0),
            "goal": limit, "met": self.met(),
        })
    }
}

/// Figures of all rows, and whether the judged ones met their goals.
pub(super) struct Report {
    pub(super) rows: Vec<Value>,
    pub(super) ok: bool,
}

/// Whether a row with this text in its name exists.
pub(super) fn has(text: &str) -> bool {
    ROWS.iter().any(|row| row.name.contains(text))
}

fn chosen<'a>(
    place: &Place,
    quick: bool,
    only: Option<&'a str>,
) -> impl Iterator<Item = &'static Row> + use<'a> {
    let is_simulated = place.rounds.is_none();
    ROWS.iter()
        .filter(move |row| match only {
            Some(text) => row.name.contains(text),
            None => row.quick || !quick,
        })
        .filter(move |row| row.gpus == 1 || is_simulated)
}

/// Duration of all rows in seconds.
pub(super) fn takes(place: &Place, quick: bool, only: Option<&str>) -> f64 {
    let arms = 2 * if quick { 1 } else { PAIRS };
    let arm = if quick {
        ARM_SECONDS / 2.0
    } else {
        ARM_SECONDS
    };
    chosen(place, quick, only).count() as f64 * arms as f64 * arm
}

pub(super) fn run(
    place: &Place,
    preset: &str,
    quick: bool,
    only: Option<&str>,
) -> anyhow::Result<Report> {
    let mut report = Report {
        rows: Vec::new(),
        ok: true,
    };
    let chosen: Vec<&Row> = chosen(place, quick, only).collect();
    if chosen.is_empty() {
        return Ok(report);
    }
    let kit = match Kit::build(place) {
        Ok(kit) => kit,
        Err(why) => {
            say(&format!("  light mixes: not measured: {why:#}"));
            report
                .rows
                .push(json!({ "skipped": format!("{why:#}"), "judged": false }));
            return Ok(report);
        }
    };
    say("  light mixes: medians of pairs with gshare and without (least..most; goal)");
    for row in chosen {
        let (mut value, met) =
            one(&kit, place, row, quick).with_context(|| format!("mix `{}`", row.name))?;
        report.ok &= met;
        value["preset"] = json!(preset);
        report.rows.push(value);
    }
    Ok(report)
}

/// Runs the pairs of a row. Returns its figures, and false if it missed a goal while the machine was idle enough to
/// judge.
fn one(kit: &Kit, place: &Place, row: &Row, quick: bool) -> anyhow::Result<(Value, bool)> {
    let pairs = if quick { 1 } else { PAIRS };
    let steps = if quick { 4 } else { 1 };
    let mut values: Vec<(Figure, Vec<f64>)> = Vec::new();
    let mut others: f64 = 0.0;
    for pair in 0..pairs {
        // The order alternates, so that drift affects both arms.
        let mut arms: [Option<Arm>; 2] = [None, None];
        for at in [pair % 2, 1 - pair % 2] {
            arms[at] = Some(arm::run(kit, place, row, at == 1, steps)?);
        }
        let [Some(base), Some(shared)] = arms else {
            continue;
        };
        others = others.max(base.others).max(shared.others);
        for (at, (figure, value)) in row.figures(&shared, &base).into_iter().enumerate() {
            match values.get_mut(at) {
                Some((_, list)) => list.push(value),
                None => values.push((figure, vec![value])),
            }
        }
    }
    let measured: Vec<Measured> = values
        .into_iter()
        .map(|(figure, values)| Measured {
            figure,
            values: Times::new(values),
        })
        .collect();
    let met = measured.iter().all(Measured::met);
    let judged = others <= OTHERS_MOST && !quick;
    let verdict = match (met, judged, quick) {
        (_, _, true) => "not judged",
        (true, ..) => "ok",
        (false, true, _) => "MISSED",
        (false, false, _) => "not judged: processors busy with others",
    };
    say(&format!(
        "  {:<44} others {:>3.0} %  {verdict}",
        row.name,
        others * 100.0
    ));
    for m in &measured {
        say(&format!("    {}", m.text()));
    }
    let figures: Vec<Value> = measured.iter().map(Measured::json).collect();
    let value = json!({
        "mix": row.name, "pairs": pairs, "figures": figures, "others": others, "judged": judged, "met": met,
    });
    Ok((value, met || !judged))
}
