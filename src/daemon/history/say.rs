//! Suggested sizes, with reasons in words. Every number in a reason is in the records behind it, or a count, minimum,
//! maximum or median of them.

use std::fmt::Write as _;
use std::time::Duration;

use gshare_core::Bytes;
use gshare_core::predict::{Busy, Level, NOMINAL};
use gshare_core::units::{many, show_duration};
use gshare_proto::Suggestion;
use gshare_proto::figures::percent_of as percent;

use super::runs::{RunRecord, Told};
use crate::daemon::line::Line;

/// Sizes are multiples of this.
pub(crate) const STEP: u64 = 256 << 20;

/// Use of a run so far.
#[derive(Clone, Debug, Default)]
pub(crate) struct Used {
    pub(crate) seconds: f64,
    pub(crate) peak: u64,
    /// Expected memory in the next minutes, and the fraction of SMs.
    pub(crate) next_mem: Option<u64>,
    pub(crate) next_sm: Option<f64>,
    /// Fraction of the SMs that is enough, and the largest used.
    pub(crate) enough: Option<f64>,
    pub(crate) most: Option<f64>,
}

/// Rounds bytes up to a multiple of [`STEP`].
pub(crate) fn rounded(bytes: f64) -> u64 {
    ((bytes / STEP as f64).ceil() as u64).max(1) * STEP
}

/// Capacity and defaults of the machine.
#[derive(Clone, Debug)]
pub(crate) struct Facts {
    pub(crate) default_mem: Bytes,
    pub(crate) default_sm: f64,
    /// Memory of the largest GPU that claims can have.
    pub(crate) largest: Bytes,
    pub(crate) first_look: Duration,
}

/// A running claim.
#[derive(Clone, Debug)]
pub(crate) struct Running {
    pub(crate) id: String,
    pub(crate) command: Line,
    pub(crate) asked_mem: u64,
    pub(crate) asked_sm: f64,
    pub(crate) gpus: u32,
    pub(crate) used: Used,
}

/// `9.1-9.6 GiB`, or one value if both are the same.
fn from_to(low: u64, high: u64) -> String {
    let (a, b) = (Bytes(low).to_string(), Bytes(high).to_string());
    if a == b {
        a
    } else {
        format!("{}-{b}", a.trim_end_matches(" GiB"))
    }
}

/// A command line as typed in a shell.
pub(crate) fn typed(command: &[String]) -> String {
    let plain = |w: &String| {
        let safe = |c: char| c.is_ascii_alphanumeric() || "-_=./:,+@%".contains(c);
        if !w.is_empty() && w.chars().all(safe) {
            w.clone()
        } else {
            format!("'{}'", w.replace('\'', "'\\''"))
        }
    };
    command.iter().map(plain).collect::<Vec<_>>().join(" ")
}

/// Reasons: the earlier runs, what they needed, and how certain that is.
pub(crate) fn reasons(told: &Told) -> Vec<String> {
    let Some(e) = &told.estimate else {
        return Vec::new();
    };
    let records = &told.records;
    let (Some(low), Some(high)) = (
        records.iter().map(|r| r.used.peak).min(),
        records.iter().map(|r| r.used.peak).max(),
    ) else {
        return Vec::new();
    };
    let script = records.first().map_or("", |r| r.shape.script.as_str());
    let n = many(records.len(), "earlier run");
    let mut said = Vec::new();
    let mut first = match e.level {
        Level::Repeats => format!("{n} of {script}"),
        Level::Scaled => format!("{n} of {script} with other numeric arguments"),
        Level::Script => format!("{n} of {script} with other arguments"),
        Level::Shared => format!("{n} of {script} by others of your group"),
        Level::User | Level::Prior => format!("{n} of your other programs"),
    };
    let _ = write!(first, ": peak {}", from_to(low, high));
    said.push(first);
    if let Some(name) = e.follows.first() {
        let mut seen: Vec<f64> = records
            .iter()
            .filter_map(|r| r.shape.number(name))
            .collect();
        seen.sort_by(f64::total_cmp);
        seen.dedup();
        let seen: Vec<String> = seen.iter().map(f64::to_string).collect();
        said.push(format!(
            "memory depends on the argument {name}; earlier runs had the values {}",
            seen.join(", ")
        ));
    }
    if let Some((newest, factor)) = e.changed {
        said.push(format!("the last {newest} runs needed {factor:.2} times as much as earlier ones, so they have more weight"));
    }
    said.push(format!(
        "half of such runs need at most {}, {:.0} % need at most {}",
        e.middle,
        (1.0 - NOMINAL) * 100.0,
        e.bound
    ));
    said.extend(share_reason(records, told.share()));
    if let Some(time) = &told.time {
        said.push(format!(
            "half of {} took less than {}",
            many(time.runs(), "run"),
            show_duration(time.at(0.5).max(Duration::from_secs(1)))
        ));
    }
    said
}

fn share_reason(records: &[RunRecord], share: Option<f64>) -> Option<String> {
    let share = share?;
    let mut all = Busy::default();
    for record in records {
        all.merge(&Busy(record.used.busy));
    }
    let what = if records.first().is_some_and(|r| r.used.in_turns) {
        "GPU time"
    } else {
        "SMs"
    };
    let most = all.most()?;
    let mut text = format!("{what} never above {}", percent(most));
    if share < most {
        let _ = write!(
            text,
            "; with only {}, nine of ten runs would have been at most 5 % slower than they were",
            percent(share)
        );
    }
    Some(text)
}

/// Suggests a size for a command.
pub(crate) fn suggest(told: &Told, facts: &Facts, command: &[String]) -> Suggestion {
    let mut out = Suggestion {
        confidence: "guess".to_owned(),
        level: Level::Prior.name().to_owned(),
        ..Suggestion::default()
    };
    let shape = gshare_core::predict::Shape::of(command);
    out.what = shape.script;
    match &told.estimate {
        Some(e) => {
            let whole = facts.largest.0 / STEP * STEP;
            out.mem = rounded(e.bound.0 as f64).min(whole.max(STEP));
            out.middle = Some(e.middle.0);
            out.sm = told.share();
            e.level.name().clone_into(&mut out.level);
            e.confidence().clone_into(&mut out.confidence);
            out.reasons = reasons(told);
            out.runs = told.records.iter().map(|r| r.id).collect();
        }
        None => {
            out.mem = (facts.default_mem.0 / STEP).max(1) * STEP;
            out.sm = Some(facts.default_sm);
            out.reasons = vec![format!(
                "a guess: no earlier run of {} used a GPU. The claim starts with the default size of its class and may \
                 use all free capacity; after {}, gshare sets the size to what the claim used until then",
                if out.what.is_empty() {
                    "this command"
                } else {
                    &out.what
                },
                show_duration(facts.first_look)
            )];
        }
    }
    out.seconds = told
        .time
        .as_ref()
        .map(|t| [0.1, 0.5, 0.9].map(|q| t.at(q)).map(|d| d.as_secs_f64()));
    if let Some(last) = told.records.first() {
        frees(&mut out, last.asked.mem, last.asked.sm);
    }
    let sm = out
        .sm
        .map_or_else(String::new, |sm| format!(" --sm {:.0}%", sm * 100.0));
    out.command = format!(
        "gshare claim --gpu-mem {}{sm} -- {}",
        size(out.mem),
        typed(command)
    );
    out
}

/// `9G`, `9472M`.
pub(crate) fn size(bytes: u64) -> String {
    let mib = bytes >> 20;
    if mib.is_multiple_of(1024) {
        format!("{}G", mib >> 10)
    } else {
        format!("{mib}M")
    }
}

fn frees(out: &mut Suggestion, asked_mem: u64, asked_sm: f64) {
    out.asked_mem = Some(asked_mem);
    out.asked_sm = Some(asked_sm);
    out.frees_mem = Some(asked_mem.cast_signed() - out.mem.cast_signed());
    out.frees_sm = out.sm.map(|sm| asked_sm - sm);
}

/// Suggests a size for a running claim.
pub(crate) fn running(told: &Told, facts: &Facts, claim: &Running) -> Suggestion {
    let mut out = suggest(told, facts, &claim.command);
    out.id = Some(claim.id.clone());
    let used = &claim.used;
    (out.next_mem, out.next_sm) = (used.next_mem, used.next_sm);
    let seen = format!(
        "it has run for {} and used at most {}{}",
        show_duration(Duration::from_secs(used.seconds as u64)),
        Bytes(used.peak),
        used.most.map_or_else(String::new, |m| format!(
            " and at most {} of a GPU",
            percent(m)
        ))
    );
    if told.estimate.is_none() {
        if used.seconds >= facts.first_look.as_secs_f64() && used.peak > 0 {
            out.mem = rounded(used.next_mem.unwrap_or(used.peak).max(used.peak) as f64)
                .min(facts.largest.0.max(STEP));
            out.sm = used.enough;
            out.reasons = vec![format!("a guess: {seen}, and nothing else is known")];
        } else {
            // Without experience it stays as it is.
            out.mem = claim.asked_mem;
            out.sm = Some(claim.asked_sm);
            out.reasons.push(seen);
        }
    } else {
        out.mem = out.mem.max(rounded(used.peak as f64 * 1.02));
        out.sm = [out.sm, used.enough].into_iter().flatten().reduce(f64::max);
        out.reasons.push(seen);
    }
    frees(&mut out, claim.asked_mem, claim.asked_sm);
    let sm = out
        .sm
        .map_or_else(String::new, |sm| format!(" --sm {:.0}%", sm * 100.0));
    out.command = format!("gshare resize {} --gpu-mem {}{sm}", claim.id, size(out.mem));
    out
}

#[cfg(test)]
mod tests;
