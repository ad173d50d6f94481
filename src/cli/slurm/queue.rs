//! Why a Slurm job waits: squeue, run as the user, so that Slurm's own privacy rules apply.

use std::path::Path;

use gshare_proto::printable;
use serde::Serialize;

use super::slurm;
use crate::command::failure::Failure;

/// A job as squeue shows it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub(crate) struct SlurmJob {
    job: String,
    state: String,
    /// Slurm's reason for waiting.
    reason: String,
    /// Slurm's expected start, by the clock of this machine; absent if Slurm has none.
    start: Option<String>,
    name: String,
}

impl SlurmJob {
    /// The caller's jobs that wait.
    pub(crate) fn waiting() -> Result<Vec<Self>, Failure> {
        squeue(&["--me", "--states=PENDING"])
    }

    /// The job named by a word, `slurm-12`, `12` or `12_3`; `None` if Slurm has none.
    pub(crate) fn of(word: &str) -> Result<Option<Self>, Failure> {
        let number = word.strip_prefix(gshare_proto::SLURM_JOB).unwrap_or(word);
        let plain = number.starts_with(|c: char| c.is_ascii_digit())
            && number.chars().all(|c| c.is_ascii_digit() || c == '_');
        if !plain {
            return Ok(None);
        }
        let found = squeue(&["--states=all", &format!("--jobs={number}")])?;
        Ok(found.into_iter().next())
    }

    pub(crate) fn text(&self) -> String {
        let Self {
            job, name, reason, ..
        } = self;
        if self.state != "PENDING" {
            return format!("Slurm job {job} ({name}): {}\n", self.state.to_lowercase());
        }
        let start = match &self.start {
            _ if reason.to_lowercase().contains("held") => {
                format!("It does not start before: scontrol release {job}")
            }
            Some(at) if is_far(at, chrono::Local::now()) => {
                "Slurm expects no start within months: running jobs have no time limit, or a long one"
                    .to_owned()
            }
            Some(at) => format!("Slurm expects it to start at {at}"),
            None => "Slurm does not say yet when it starts".to_owned(),
        };
        format!(
            "Slurm job {job} ({name}) waits: {reason}. {start}; more: scontrol show job {job}\n"
        )
    }
}

/// Slurm counts a job without a time limit as one of a year.
fn is_far(start: &str, now: chrono::DateTime<chrono::Local>) -> bool {
    let start = chrono::NaiveDateTime::parse_from_str(start, "%Y-%m-%dT%H:%M:%S");
    start.is_ok_and(|at| at - now.naive_local() > chrono::TimeDelta::days(180))
}

fn parsed(line: &str) -> Option<SlurmJob> {
    let mut fields = line.splitn(5, '|').map(|word| printable(word).collect());
    let mut next = || -> Option<String> { fields.next() };
    Some(SlurmJob {
        job: next()?,
        state: next()?,
        reason: next()?,
        start: Some(next()?).filter(|at| at != "N/A"),
        name: next()?,
    })
}

fn squeue(words: &[&str]) -> Result<Vec<SlurmJob>, Failure> {
    let asked = [&["--noheader", "--format=%i|%T|%r|%S|%j"], words].concat();
    match slurm(Path::new("squeue"), &asked) {
        Ok(text) => Ok(text.lines().filter_map(parsed).collect()),
        // An answer about an unknown job is an answer.
        Err(failure) if failure.message.contains("Invalid job id") => Ok(Vec::new()),
        Err(failure) => Err(failure.with_hint("squeue --me --start")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_job_waits_for_a_reason_until_a_time_if_slurm_says_one() {
        let text = |line: &str| parsed(line).expect("a job").text();
        let waits = text("12|PENDING|Resources|2026-11-26T15:00:00|a|b");
        assert_eq!(
            waits,
            "Slurm job 12 (a|b) waits: Resources. Slurm expects it to start at 2026-11-26T15:00:00; more: scontrol show job 12\n"
        );
        let held = text("12|PENDING|job requeued in held state|2026-11-26T15:00:00|a");
        assert!(held.contains("before: scontrol release 12; more"), "{held}");
        let year = chrono::Local::now() + chrono::TimeDelta::days(365);
        let late = text(
            &year
                .format("12|PENDING|Resources|%Y-%m-%dT%H:%M:%S|x")
                .to_string(),
        );
        assert!(late.contains("no start within months"), "{late}");
        let held = text("12_3|PENDING|JobHeldUser|N/A|x");
        assert!(held.contains("before: scontrol release 12_3;"), "{held}");
        let unknown = text("12_3|PENDING|Priority|N/A|x");
        assert!(
            unknown.contains("Priority. Slurm does not say yet"),
            "{unknown}"
        );
        assert_eq!(text("7|RUNNING|None|N/A|x"), "Slurm job 7 (x): running\n");
        assert_eq!(parsed("slurm_load_jobs error"), None);
    }
}
