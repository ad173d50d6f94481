//! Why a Slurm job waits: what squeue says, asked as the user, so that Slurm's own rules of privacy hold.

use std::io::Read as _;
use std::process::{Command, Stdio};

use gshare_proto::printable;
use serde::Serialize;

use super::soon;
use crate::command::failure::{self, Failure};

/// A job as squeue shows it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub(crate) struct SlurmJob {
    job: String,
    state: String,
    /// Slurm's word for why it waits.
    reason: String,
    /// When Slurm expects it to start, by the clock of this machine; absent if Slurm does not say.
    start: Option<String>,
    name: String,
}

impl SlurmJob {
    /// The caller's jobs that wait.
    pub(crate) fn waiting() -> Result<Vec<Self>, Failure> {
        squeue(&["--me", "--states=PENDING"])
    }

    /// The job that a word means, `slurm-12`, `12` or `12_3`; `None` if Slurm has none.
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
            Some(start) => format!("Slurm expects it to start at {start}"),
            None => "Slurm does not say yet when it starts".to_owned(),
        };
        format!(
            "Slurm job {job} ({name}) waits: {reason}. {start}; more: scontrol show job {job}\n"
        )
    }
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

/// Asks for two seconds at most: while slurmctld is down, squeue itself asks for longer.
fn squeue(words: &[&str]) -> Result<Vec<SlurmJob>, Failure> {
    let mut squeue = Command::new("squeue");
    squeue
        .args(["--noheader", "--format=%i|%T|%r|%S|%j"])
        .args(words);
    squeue
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::null());
    let failed = |e: std::io::Error| Failure::new(failure::NOT_FOUND, format!("squeue: {e}"));
    let mut child = squeue.spawn().map_err(failed)?;
    let mut stdout = child.stdout.take().expect("piped");
    let said = soon(move || {
        let mut text = Vec::new();
        stdout.read_to_end(&mut text).map(|_| text)
    });
    if said.is_none() {
        let _ = child.kill();
    }
    child.wait().map_err(failed)?;
    match said {
        // Of a job that it does not know squeue prints nothing here.
        Some(Ok(text)) => {
            let text = String::from_utf8_lossy(&text);
            Ok(text.lines().filter_map(parsed).collect())
        }
        _ => {
            let text = "Slurm does not answer within 2 s";
            Err(Failure::new(failure::NOT_AVAILABLE, text).with_hint("squeue --me --start"))
        }
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
        let held = text("12_3|PENDING|JobHeldUser|N/A|x");
        assert!(
            held.contains("JobHeldUser. Slurm does not say yet"),
            "{held}"
        );
        assert_eq!(text("7|RUNNING|None|N/A|x"), "Slurm job 7 (x): running\n");
        assert_eq!(parsed("slurm_load_jobs error"), None);
    }
}
