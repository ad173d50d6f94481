//! `gshare slurm comment`, on the host of slurmctld: writes how ended jobs used their GPUs into the AdminComment that
//! sacct shows. `gshare slurm used`, on each node, reports the node's part.

use std::collections::BTreeMap;
use std::ffi::OsStr;
use std::io::{Seek as _, Write as _};
use std::path::Path;
use std::process::{Command, Stdio};

use gshare_proto::figures::{hours, percent_of};
use gshare_proto::{Call, HistoryBy, HistorySpec, Reply, SLURM_JOB, Usage};
use serde::{Deserialize, Serialize};

use super::super::args::slurm::CommentArgs;
use super::super::nodes;
use super::super::report::{add, average};
use super::{Not, Outcome, Site, out, program};
use crate::cli::claim::unexpected;
use crate::command::failure::{self, Failure};

/// An ended job, in a line to a node.
#[derive(Debug, PartialEq, Eq, Serialize, Deserialize)]
struct Job {
    job: u32,
    uid: u32,
    /// Its start, Unix seconds.
    begun: u64,
    /// How many nodes it had.
    #[serde(skip)]
    nodes: usize,
}

/// A node's answer about a job.
#[derive(Debug, Serialize, Deserialize)]
struct Used {
    job: u32,
    usage: Usage,
}

pub(super) fn run(site: &Site, config: Option<&Path>, args: &CommentArgs) -> Outcome {
    let mut sacct = Command::new(program(&site.jobs, "sacct"));
    sacct.args("--noheader --parsable2 --allocations --allusers".split(' '));
    sacct.args([
        FIELDS,
        &format!("--starttime=now-{}seconds", args.since.as_secs()),
    ]);
    sacct.env("SLURM_TIME_FORMAT", "%s");
    let jobs: Vec<Job> = said(sacct, "")?.lines().filter_map(ended).collect();
    let lines: Result<Vec<String>, _> = jobs.iter().map(serde_json::to_string).collect();
    let lines = lines.map_err(std::io::Error::from)?.join("\n");
    let none = args.hosts.is_empty().then_some(None);
    let hosts = args.hosts.iter().map(Some).chain(none);
    let mut sums: BTreeMap<u32, (usize, Usage)> = BTreeMap::new();
    let mut first = None;
    for host in hosts.filter(|_| !jobs.is_empty()) {
        match asked(host.map(AsRef::as_ref), config, &lines) {
            Ok(all) => {
                for Used { job, usage } in all {
                    let (nodes, sum) = sums.entry(job).or_default();
                    *nodes += 1;
                    add(sum, &usage);
                }
            }
            Err(failure) => first = first.or(Some(failure)),
        }
    }
    let texts = jobs.iter().filter_map(|Job { job, nodes, .. }| {
        // A node that does not answer now may answer next time.
        let (_, usage) = sums.get(job).filter(|(answers, _)| answers == nodes)?;
        Some(format!(
            "modify job where jobid={job} set AdminComment=\"{}\"\n",
            text(usage)
        ))
    });
    let texts: String = texts.collect();
    let mut written = 0;
    if !texts.is_empty() {
        let mut sacctmgr = Command::new(program(&site.jobs, "sacctmgr"));
        // It reads commands from stdin, and goes on after one that fails.
        let (said, failed) = output(sacctmgr.args(["--immediate", "--quiet"]), &texts)?;
        written = said.matches("Modified jobs").count();
        first = first.or(failed);
    }
    out::print(&format!("comments written: {written}\n"))?;
    first.map_or(Ok(0), Err)
}

/// What [`ended`] reads. A line break in a comment would cut its line before the last fields.
const FIELDS: &str = "--format=JobIDRaw,UID,NNodes,Start,AdminComment,End,AllocTRES";

/// A job of GPUs that has ended and has no comment, in a line of sacct.
fn ended(line: &str) -> Option<Job> {
    let fields: Vec<&str> = line.split('|').collect();
    let [job, uid, nodes, begun, "", end, had] = fields[..] else {
        return None;
    };
    end.parse::<u64>().ok()?;
    had.contains("gres/").then_some(())?;
    Some(Job {
        job: job.parse().ok()?,
        uid: uid.parse().ok()?,
        begun: begun.parse().ok()?,
        nodes: nodes.parse().ok()?,
    })
}

/// The comment, in small letters, since sacctmgr makes them small: `gshare: compute 34 % and memory 76 % of 1.5 gpu hours, idle 0.40`.
fn text(usage: &Usage) -> String {
    let unknown = || "unknown".to_owned();
    let all = usage.mem_claimed_byte_s;
    let memory = usage.mem_used_byte_s.filter(|_| all > 0.0);
    format!(
        "gshare: compute {} and memory {} of {} gpu hours, idle {}",
        usage.average_use().map_or_else(unknown, |_| average(usage)),
        memory.map_or_else(unknown, |used| percent_of(used / all)),
        hours(usage.claimed_gpu_s),
        usage.idle_gpu_s().map_or_else(unknown, hours)
    )
}

/// A node's answers; without a host, this machine's.
fn asked(host: Option<&OsStr>, config: Option<&Path>, lines: &str) -> Result<Vec<Used>, Failure> {
    let mut command = match host {
        Some(host) => nodes::ssh(&nodes::host(host, "gshare slurm comment")?),
        None => Command::new(std::env::current_exe()?),
    };
    command.args(["slurm", "used"]);
    if let (None, Some(file)) = (host, config) {
        command.arg("--config").arg(file);
    }
    let answers = said(command, lines).and_then(|text| {
        let all = text.lines().map(serde_json::from_str);
        all.collect::<Result<_, _>>()
            .map_err(|e| Failure::new(failure::NOT_AVAILABLE, e.to_string()))
    });
    answers.map_err(|mut failure| {
        if let Some(host) = host {
            failure.message = format!("{}: {}", host.display(), failure.message);
        }
        failure
    })
}

/// The output of a successful command with this input.
fn said(mut command: Command, input: &str) -> Result<String, Failure> {
    let (said, failed) = output(&mut command, input)?;
    failed.map_or(Ok(said), Err)
}

/// The output of a command with this input, and why it failed.
fn output(command: &mut Command, input: &str) -> Result<(String, Option<Failure>), Failure> {
    let name = command.get_program().display().to_string();
    let failed = |e| Failure::new(failure::NOT_FOUND, format!("{name}: {e}"));
    // A pipe could fill while its reader writes.
    let mut file = tempfile::tempfile()?;
    file.write_all(input.as_bytes())?;
    file.rewind()?;
    let output = command.stdin(Stdio::from(file)).output().map_err(failed)?;
    let [text, error] =
        [output.stdout, output.stderr].map(|t| String::from_utf8_lossy(&t).into_owned());
    // sacctmgr says the same of each command that failed.
    let mut why: Vec<&str> = error.trim().lines().collect();
    why.dedup();
    let why = why.join("\n");
    let failed = || Failure::new(failure::NOT_AVAILABLE, format!("{name}: {why}"));
    Ok((text, (!output.status.success()).then(failed)))
}

/// Prints how the jobs in the lines of stdin used GPUs of this machine.
pub(super) fn used(site: &Site) -> Outcome {
    for line in std::io::stdin().lines() {
        let wrong = |e: serde_json::Error| {
            Failure::new(
                failure::USAGE,
                format!("not a line of gshare slurm comment: {e}"),
            )
        };
        let Job {
            job, uid, begun, ..
        } = serde_json::from_str(&line?).map_err(wrong)?;
        let call = Call::History(HistorySpec {
            from_ms: begun * 1000,
            points: 1,
            by: HistoryBy::Claim,
            key: Some(format!("{SLURM_JOB}{job}").into()),
            ..HistorySpec::default()
        });
        let history = match site.ask(call) {
            Ok(Reply::History(history)) => history,
            Ok(other) => return Err(unexpected(&other)),
            Err(Not::Refused(why)) => return Err(Failure::new(failure::NOT_AVAILABLE, why)),
            Err(Not::Silent) => {
                let text = "its gshare service does not answer";
                return Err(Failure::new(failure::NO_SERVICE, text));
            }
        };
        // Users can name their own claims like jobs of others.
        let own = history.series.iter().filter(|line| line.uid == Some(uid));
        let usage = own.fold(Usage::default(), |mut sum, line| {
            add(&mut sum, &line.usage);
            sum
        });
        if usage.claimed_gpu_s > 0.0 {
            out::json(&Used { job, usage })?;
        }
    }
    Ok(0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_ended_jobs_of_gpus_without_a_comment_get_one() {
        let job = |comment: &str, end: &str, had: &str| {
            ended(&format!("7|1000|2|60|{comment}|{end}|{had}"))
        };
        let had = "cpu=1,gres/shard=50";
        let of = Job {
            job: 7,
            uid: 1000,
            begun: 60,
            nodes: 2,
        };
        assert_eq!(job("", "90", had), Some(of));
        for (comment, end, had) in [
            ("theirs", "90", had),
            ("a|b", "90", had),
            ("", "Unknown", had),
            ("", "90", "cpu=1"),
        ] {
            assert_eq!(job(comment, end, had), None);
        }
        assert_eq!(
            ended("7|1000|2|60|"),
            None,
            "a comment that begins with a line break"
        );
    }

    #[test]
    fn a_comment_says_what_is_unknown() {
        let mut usage = Usage {
            claimed_gpu_s: 5400.0,
            used_gpu_s: Some(1836.0),
            used_known_gpu_s: 5400.0,
            mem_claimed_byte_s: 400.0,
            mem_used_byte_s: Some(304.0),
            ..Usage::default()
        };
        usage.idle.cpu = 1440.0;
        let said = "gshare: compute 34 % and memory 76 % of 1.5 gpu hours, idle 0.40";
        assert_eq!(text(&usage), said);
        let unknown = Usage {
            claimed_gpu_s: 5400.0,
            ..Usage::default()
        };
        let said = "gshare: compute unknown and memory unknown of 1.5 gpu hours, idle unknown";
        assert_eq!(text(&unknown), said);
    }
}
