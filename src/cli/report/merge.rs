//! Reports of several machines, merged into one.

use std::collections::BTreeMap;
use std::path::Path;

use gshare_proto::{
    HistoryPoint, Idle, ProjectReport, ReportView, SharingView, Usage, UserFared, UserReport,
};

use crate::command::failure::{self, Failure};

/// Reads the output of `gshare report --json`. A file is named after its machine.
///
/// # Errors
///
/// A file that cannot be read or is no report.
pub(super) fn read(file: &Path) -> Result<(String, ReportView), Failure> {
    let wrong = |why: String| {
        let text = format!("{} is not a gshare report: {why}", file.display());
        Failure::new(failure::USAGE, text)
            .with_hint("to write one: gshare report --json > HOST.json")
    };
    let text = std::fs::read_to_string(file).map_err(|e| wrong(e.to_string()))?;
    let report = serde_json::from_str(&text).map_err(|e| wrong(e.to_string()))?;
    let name = file.file_stem().unwrap_or_default().display().to_string();
    Ok((name, report))
}

/// Users and projects of the same name are the same on all machines; GPUs and claims get the name of their machine.
/// The shortest observed time counts.
pub(super) fn merged(reports: Vec<(String, ReportView)>) -> ReportView {
    let mut all = ReportView {
        from_ms: reports.iter().map(|r| r.1.from_ms).min().unwrap_or(0),
        to_ms: reports.iter().map(|r| r.1.to_ms).max().unwrap_or(0),
        step_ms: reports.iter().map(|r| r.1.step_ms).max().unwrap_or(0),
        known_s: f64::INFINITY,
        ..ReportView::default()
    };
    let mut users: BTreeMap<String, UserReport> = BTreeMap::new();
    let mut projects: BTreeMap<String, Usage> = BTreeMap::new();
    for (host, mut report) in reports {
        for part in &report.projects {
            let project = projects.entry(part.project.clone());
            add(project.or_default(), &part.usage);
        }
        all.known_s = all.known_s.min(report.known_s);
        all.gpu_count += report.gpu_count;
        add(&mut all.total, &report.total);
        for gpu in &mut report.gpus {
            let index = gpu.gpu.take().map(|n| format!("GPU {n}"));
            gpu.uuid = format!("{host} {}", index.as_ref().unwrap_or(&gpu.uuid));
        }
        for claim in &mut report.worst {
            claim.id = format!("{host} {}", claim.id);
        }
        if let Some(sharing) = report.sharing {
            add_sharing(all.sharing.get_or_insert_default(), sharing);
        }
        if let Some(why) = report.not_played {
            all.not_played = Some(format!("of {host}, {why}"));
        }
        all.gpus.append(&mut report.gpus);
        all.worst.append(&mut report.worst);
        // A point is a mean over its step: shorter steps count as fractions of a longer one.
        let part = report.step_ms as f64 / all.step_ms.max(1) as f64;
        for mut user in report.users {
            for point in &mut user.series {
                point.claimed *= part;
                point.used = point.used.map(|used| used * part);
                point.waiting *= part;
            }
            match users.get_mut(&user.user) {
                Some(known) => {
                    add(&mut known.usage, &user.usage);
                    known.series.extend(user.series);
                }
                None => {
                    users.insert(user.user.clone(), user);
                }
            }
        }
    }
    all.users = users.into_values().collect();
    let projects = projects.into_iter();
    all.projects = projects
        .map(|(project, usage)| ProjectReport { project, usage })
        .collect();
    // Points of several machines, by step.
    let (from, step) = (all.from_ms, all.step_ms.max(1));
    for user in &mut all.users {
        let begin = |at: u64| from + at.saturating_sub(from) / step * step;
        user.series = added_up(&user.series, begin);
    }
    let most = |a: f64, b: f64| b.total_cmp(&a);
    all.users
        .sort_by(|a, b| most(a.usage.claimed_gpu_s, b.usage.claimed_gpu_s));
    all.projects
        .sort_by(|a, b| most(a.usage.claimed_gpu_s, b.usage.claimed_gpu_s));
    all.worst
        .sort_by(|a, b| most(a.usage.idle.total(), b.usage.idle.total()));
    all
}

/// The sums of points that count for the same moment, in order.
pub(super) fn added_up<'a>(
    points: impl IntoIterator<Item = &'a HistoryPoint>,
    moment: impl Fn(u64) -> u64,
) -> Vec<HistoryPoint> {
    let mut sums: BTreeMap<u64, HistoryPoint> = BTreeMap::new();
    for point in points {
        let at_ms = moment(point.at_ms);
        let sum = sums.entry(at_ms).or_insert(HistoryPoint {
            at_ms,
            used: Some(0.0),
            ..HistoryPoint::default()
        });
        sum.known = sum.known.max(point.known);
        sum.claimed += point.claimed;
        sum.used = sum.used.zip(point.used).map(|(a, b)| a + b);
        sum.estimate |= point.estimate;
        sum.waiting += point.waiting;
    }
    sums.into_values().collect()
}

/// Users of the same name are the same.
fn add_sharing(all: &mut SharingView, more: SharingView) {
    all.occupied_gpu_s += more.occupied_gpu_s;
    all.left_out += more.left_out;
    all.total.add(&more.total);
    for user in more.users {
        match all.users.iter_mut().find(|known| known.user == user.user) {
            Some(known) => known.fared.add(&user.fared),
            None => all.users.push(user),
        }
    }
    let harmed = |user: &UserFared| std::cmp::Reverse(user.fared.harmed());
    all.users.sort_by_key(harmed);
}

/// If one value is unknown, the sum is unknown, unless that one claimed nothing.
pub(in crate::cli) fn add(sum: &mut Usage, more: &Usage) {
    let (before, here) = (sum.claimed_gpu_s > 0.0, more.claimed_gpu_s > 0.0);
    let both = |a: Option<f64>, b: Option<f64>| match (a, b) {
        (Some(a), Some(b)) => Some(a + b),
        (a, None) if !here => a,
        (None, b) if !before => b,
        _ => None,
    };
    // For use, keep the time for which it is known.
    if let Some(used) = more.used_gpu_s {
        *sum.used_gpu_s.get_or_insert(0.0) += used;
    }
    sum.busy_gpu_s = both(sum.busy_gpu_s, more.busy_gpu_s);
    sum.mem_used_byte_s = both(sum.mem_used_byte_s, more.mem_used_byte_s);
    sum.mem_borrowed_byte_s = both(sum.mem_borrowed_byte_s, more.mem_borrowed_byte_s);
    sum.estimate |= more.estimate;
    sum.used_known_gpu_s += more.used_known_gpu_s;
    sum.claimed_gpu_s += more.claimed_gpu_s;
    sum.mem_claimed_byte_s += more.mem_claimed_byte_s;
    sum.borrowed_gpu_s += more.borrowed_gpu_s;
    sum.throttled_gpu_s += more.throttled_gpu_s;
    sum.waited_gpu_s += more.waited_gpu_s;
    let (a, b) = (sum.idle, more.idle);
    sum.idle = Idle {
        off_hours: a.off_hours + b.off_hours,
        kernel: a.kernel + b.kernel,
        cpu: a.cpu + b.cpu,
        io: a.io + b.io,
        other: a.other + b.other,
    };
}

#[cfg(test)]
mod tests {
    use gshare_proto::{GpuReport, IdleHolding};

    use super::*;

    fn report(claimed: f64, used: Option<f64>, user: &str) -> ReportView {
        let usage = Usage {
            claimed_gpu_s: claimed,
            used_gpu_s: used,
            busy_gpu_s: used,
            used_known_gpu_s: used.map_or(0.0, |_| claimed),
            ..Usage::default()
        };
        let point = HistoryPoint {
            at_ms: 60_000,
            claimed: 1.0,
            used: Some(0.5),
            ..HistoryPoint::default()
        };
        ReportView {
            to_ms: 120_000,
            step_ms: 60_000,
            known_s: 100.0,
            gpu_count: 2,
            total: usage,
            gpus: vec![GpuReport {
                gpu: Some(0),
                uuid: "GPU-0".to_owned(),
                usage,
            }],
            users: vec![UserReport {
                uid: 1000,
                user: user.to_owned(),
                usage,
                series: vec![point],
            }],
            projects: vec![ProjectReport {
                project: "vision".to_owned(),
                usage,
            }],
            worst: vec![IdleHolding {
                id: "c3".to_owned(),
                ..IdleHolding::default()
            }],
            ..ReportView::default()
        }
    }

    #[test]
    fn users_add_up_and_gpus_and_claims_stay_apart() {
        let reports = [
            ("a", report(10.0, Some(5.0), "ada")),
            ("b", report(30.0, None, "ada")),
            ("c", report(20.0, Some(1.0), "bob")),
        ];
        let all = merged(reports.map(|(h, r)| (h.to_owned(), r)).into());
        assert_eq!(all.gpu_count, 6);
        let names: Vec<&str> = all.users.iter().map(|u| u.user.as_str()).collect();
        assert_eq!(names, ["ada", "bob"], "the one with the most claimed first");
        let ada = &all.users[0];
        assert_eq!(ada.usage.claimed_gpu_s, 40.0);
        assert_eq!(ada.usage.average_use(), Some(50.0), "where it is known");
        assert_eq!(ada.usage.busy_gpu_s, None, "not known on one of them");
        assert_eq!(ada.series.len(), 1);
        assert_eq!(
            (ada.series[0].claimed, ada.series[0].used),
            (2.0, Some(1.0))
        );
        assert_eq!(all.total.claimed_gpu_s, 60.0);
        let gpus: Vec<&str> = all.gpus.iter().map(|g| g.uuid.as_str()).collect();
        assert_eq!(gpus, ["a GPU 0", "b GPU 0", "c GPU 0"]);
        assert_eq!(all.worst[1].id, "b c3");
        assert_eq!(all.projects.len(), 1);
        assert_eq!(
            all.projects[0].usage, all.total,
            "one account on three machines"
        );
        assert_eq!((&all.sharing, &all.not_played), (&None, &None));
    }

    #[test]
    fn what_sharing_would_have_done_adds_up_by_user() {
        let shared = || {
            let sharing = Some(super::super::sharing::example());
            let report = report(10.0, Some(5.0), "ada");
            ReportView { sharing, ..report }
        };
        let reports = ["a", "b"].map(|host| (host.to_owned(), shared()));
        let all = merged(reports.into()).sharing.expect("played");
        assert_eq!((all.total.runs, all.users.len()), (28, 2));
        assert_eq!(
            (all.total.waited, all.total.longest_s),
            ([0, 4], [0.0, 5400.0])
        );
        assert_eq!(
            (all.users[0].user.as_str(), all.users[0].fared.runs),
            ("ada", 18)
        );
    }
}
