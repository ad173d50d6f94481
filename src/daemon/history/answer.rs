//! Answers from the history: lines over time, and the report.

use std::collections::BTreeMap;

use chrono::{Datelike, Local, TimeZone, Timelike};
use gshare_proto::history::{
    GpuReport, Heat, HistoryBy, HistoryPoint, HistorySeries, HistorySpec, HistoryView, IdleHolding,
    ProjectReport, ReportSpec, ReportView, Usage, UserReport,
};
use gshare_proto::{ErrorCode, Named, WireError, messages};
use rusqlite::OptionalExtension;

use super::ask::{Filter, Group, Span, Sums};
use super::store::{ClaimFace, NOBODY, Store, kind};
use super::sum::Sum;
use crate::daemon::names::Names;
use crate::daemon::played::Machine;
use crate::daemon::viewer::Viewer;

/// Default number of points in a line.
const POINTS: i64 = 120;
/// Points of a user's line in a report.
const REPORT_POINTS: i64 = 60;
/// Period for means by hour of the week.
const HEAT_S: i64 = 35 * 86_400;
/// Claims in the list of the most wasteful.
const WORST: usize = 10;
/// Maximum number of lines in an answer; the smallest are left out.
const MOST_LINES: usize = 200;

/// Facts about the machine, and the caller.
#[derive(Clone, Debug, Default)]
pub(crate) struct Place {
    /// UUIDs by index.
    pub(crate) gpus: Vec<String>,
    /// Now, in Unix milliseconds.
    pub(crate) now_ms: u64,
    pub(crate) viewer: Viewer,
    /// For a report, if runs can be replayed: the machine, and the peak bytes of running claims.
    pub(crate) played: Option<Box<(Machine, BTreeMap<u64, u64>)>>,
}

impl Place {
    fn index(&self, uuid: &str) -> Option<u32> {
        let at = self.gpus.iter().position(|g| g == uuid)?;
        u32::try_from(at).ok()
    }

    fn span(&self, from_ms: u64, to_ms: u64) -> Result<(i64, i64), WireError> {
        let to = if to_ms == 0 {
            self.now_ms
        } else {
            to_ms.min(self.now_ms)
        };
        if from_ms >= to {
            return Err(WireError::new(
                ErrorCode::Usage,
                messages::period_ends_first(),
            ));
        }
        // A step that has begun is included.
        Ok(((from_ms / 1000) as i64, (to / 1000) as i64 + 1))
    }
}

fn broken(error: &rusqlite::Error) -> WireError {
    WireError::new(
        ErrorCode::Internal,
        format!("the history cannot be read: {error}"),
    )
    .with_hint("gshare doctor says why")
}

/// Name of the user of a sum.
fn user_name(names: &Names, uid: u32) -> String {
    match uid {
        NOBODY => "(no name kept)".to_owned(),
        uid => names.user(uid),
    }
}

/// Mean use over a time of which `known` of `all` is known.
fn scaled(sum: Option<f64>, all: f64, known: f64) -> (Option<f64>, bool) {
    match sum {
        Some(value) if known > 0.0 && all > known * 1.001 => (Some(value * all / known), true),
        other => (other, false),
    }
}

fn point(at: i64, step: i64, sum: &Sum, looked: f64) -> HistoryPoint {
    let mean = |v: f64| if looked > 0.0 { v / looked } else { 0.0 };
    let (used, part) = if sum.claimed > 0.0 {
        scaled(sum.used, sum.claimed, sum.used_known)
    } else {
        (sum.used, false)
    };
    let mut idle = sum.idle();
    for v in [
        &mut idle.off_hours,
        &mut idle.kernel,
        &mut idle.cpu,
        &mut idle.io,
        &mut idle.other,
    ] {
        *v = mean(*v);
    }
    HistoryPoint {
        at_ms: (at * 1000).unsigned_abs(),
        known: (looked / step as f64).min(1.0),
        claimed: mean(sum.claimed),
        used: used.map(mean),
        estimate: sum.estimate || part,
        busy: sum.busy.map(mean),
        mem_claimed: mean(sum.mem_claimed),
        mem_used: sum.mem_used.map(mean),
        mem_borrowed: sum.mem_borrowed.map(mean),
        borrowed: sum.used.or(sum.busy).map(|_| mean(sum.borrowed)),
        throttled: Some(mean(sum.throttled)),
        waiting: mean(sum.waited),
        idle,
    }
}

pub(super) fn total(line: &BTreeMap<i64, Sum>) -> Sum {
    let mut all = Sum::default();
    line.values().for_each(|sum| all.add(sum));
    all
}

pub(super) fn only(kinds: &[i64]) -> Filter {
    Filter {
        kinds: kinds.to_vec(),
        ..Filter::default()
    }
}

/// A line with points wherever there was a look.
fn points(
    line: &BTreeMap<i64, Sum>,
    span: &Span,
    looked: &BTreeMap<i64, Sum>,
) -> Vec<HistoryPoint> {
    let none = Sum::default();
    looked
        .iter()
        .map(|(b, machine)| {
            let sum = line.get(b).unwrap_or(&none);
            point(span.from + b * span.step, span.step, sum, machine.looked)
        })
        .collect()
}

/// Takes use and memory from the devices' figures.
fn with_devices(line: &mut BTreeMap<i64, Sum>, devices: &BTreeMap<i64, Sum>) {
    for (b, device) in devices {
        let sum = line.entry(*b).or_default();
        if device.used.is_some() {
            sum.used = device.used;
            sum.estimate = device.estimate;
            // Known for a part of the time of a part of the GPUs: the rest is not estimated.
            sum.used_known = sum.claimed;
        }
        sum.busy = device.busy.or(sum.busy);
        sum.mem_used = device.mem_used.or(sum.mem_used);
    }
}

/// The lines of a query.
fn filter(spec: &HistorySpec, place: &Place, names: &Names) -> Result<Filter, WireError> {
    let mut filter = Filter {
        private_of: place.viewer.only(),
        ..only(&[kind::CLAIM, kind::WAIT])
    };
    let Some(key) = &spec.key else {
        return Ok(filter);
    };
    let none = |what: &str| WireError::new(ErrorCode::Usage, format!("there is no {what} `{key}`"));
    match spec.by {
        HistoryBy::All => {}
        HistoryBy::Gpu => {
            let index = key.parse::<usize>().ok();
            let by_index = index.and_then(|i| place.gpus.get(i));
            let uuid = by_index.or_else(|| place.gpus.iter().find(|g| g.starts_with(key.as_str())));
            filter.gpu = Some(uuid.ok_or_else(|| none("GPU"))?.clone());
        }
        HistoryBy::User => {
            filter.uid = Some(names.uid(key).ok_or_else(|| none("user"))?);
        }
        HistoryBy::Claim => match key.parse::<gshare_core::ClaimId>() {
            Ok(id) => filter.claim = Some(id.0),
            Err(_) => filter.name = Some(key.to_string()),
        },
    }
    Ok(filter)
}

/// What the largest come first by: programs without a claim have only use.
fn weight(usage: &Usage) -> f64 {
    usage.claimed_gpu_s.max(usage.used_gpu_s.unwrap_or(0.0))
}

impl Store {
    fn machine(&self, span: &Span) -> rusqlite::Result<BTreeMap<i64, Sum>> {
        let found = self.sums(span, Group::All, &only(&[kind::MACHINE]))?;
        Ok(found.into_values().next().unwrap_or_default())
    }

    fn all(&self, span: &Span) -> rusqlite::Result<BTreeMap<i64, Sum>> {
        let one = |sums: Sums| sums.into_values().next().unwrap_or_default();
        let mut line = one(self.sums(span, Group::All, &only(&[kind::CLAIM, kind::WAIT]))?);
        let devices = one(self.sums(span, Group::All, &only(&[kind::GPU]))?);
        with_devices(&mut line, &devices);
        Ok(line)
    }

    fn per_gpu(&self, span: &Span, gpu: Option<String>) -> rusqlite::Result<Sums> {
        let filter = |kinds: &[i64]| Filter {
            gpu: gpu.clone(),
            ..only(kinds)
        };
        let mut lines = self.sums(span, Group::Gpu, &filter(&[kind::CLAIM]))?;
        for (uuid, devices) in self.sums(span, Group::Gpu, &filter(&[kind::GPU]))? {
            with_devices(lines.entry(uuid).or_default(), &devices);
        }
        Ok(lines)
    }

    /// Lines over time.
    ///
    /// # Errors
    ///
    /// A time that ends before it begins, an unknown name, a file that cannot be read.
    pub(crate) fn history(
        &self,
        spec: &HistorySpec,
        place: &Place,
        names: &Names,
    ) -> Result<HistoryView, WireError> {
        let (from, to) = place.span(spec.from_ms, spec.to_ms)?;
        let wanted = match spec.points {
            0 => POINTS,
            n => i64::from(n.min(2000)),
        };
        let span = Span::of(from, to, wanted);
        let view = self.lines(spec, &span, place, names)?;
        let heat = match spec.by {
            HistoryBy::Claim => None,
            by => Some(self.heat(by, spec, place, names)?),
        };
        Ok(HistoryView {
            from_ms: (span.from * 1000).unsigned_abs(),
            to_ms: (to * 1000).unsigned_abs(),
            step_ms: (span.step * 1000).unsigned_abs(),
            gpu_count: u32::try_from(place.gpus.len()).unwrap_or(u32::MAX),
            series: view,
            heat,
        })
    }

    fn lines(
        &self,
        spec: &HistorySpec,
        span: &Span,
        place: &Place,
        names: &Names,
    ) -> Result<Vec<HistorySeries>, WireError> {
        let read = |error: rusqlite::Error| broken(&error);
        let filter = filter(spec, place, names)?;
        let looked = self.machine(span).map_err(read)?;
        let series = |key: String, label: String, uid: Option<u32>, line: &BTreeMap<i64, Sum>| {
            HistorySeries {
                usage: total(line).usage(),
                points: points(line, span, &looked),
                key,
                label,
                uid,
            }
        };
        let machine = || -> Result<HistorySeries, WireError> {
            let line = self.all(span).map_err(read)?;
            Ok(series("all".to_owned(), "all".to_owned(), None, &line))
        };
        let mut lines = match spec.by {
            HistoryBy::All => return Ok(vec![machine()?]),
            HistoryBy::Gpu => {
                let found = self.per_gpu(span, filter.gpu).map_err(read)?;
                let mut lines: Vec<(u32, HistorySeries)> = found
                    .iter()
                    .map(|(uuid, line)| {
                        let index = place.index(uuid);
                        let label = index.map_or_else(|| uuid.clone(), |i| format!("GPU {i}"));
                        (
                            index.unwrap_or(u32::MAX),
                            series(uuid.clone(), label, None, line),
                        )
                    })
                    .collect();
                lines.sort_by_key(|(index, _)| *index);
                return Ok(lines.into_iter().map(|(_, line)| line).collect());
            }
            HistoryBy::User => {
                let found = self.sums(span, Group::User, &filter).map_err(read)?;
                let line = |(uid, line): (&String, &BTreeMap<i64, Sum>)| {
                    let number = uid.parse().unwrap_or(u32::MAX);
                    series(uid.clone(), user_name(names, number), Some(number), line)
                };
                found.iter().map(line).collect::<Vec<_>>()
            }
            HistoryBy::Claim => {
                let filter = Filter {
                    kinds: vec![kind::CLAIM],
                    ..filter
                };
                let name = filter.name.clone();
                let found = self.sums(span, Group::Claim, &filter).map_err(read)?;
                let mut lines = Vec::new();
                for (claim, line) in &found {
                    let face = self.face(claim.parse().unwrap_or(0)).map_err(read)?;
                    let face = face.map(|f| place.viewer.sees_face(f));
                    let (what, uid) = face.map(|f| (f.what, f.uid)).unzip();
                    // The caller may not know others' names.
                    let is_seen = |name: &String| what.as_ref().is_some_and(|w| w.ends_with(name));
                    if !name.as_ref().is_none_or(is_seen) {
                        continue;
                    }
                    let label = format!("c{claim} {}", what.unwrap_or_default());
                    lines.push(series(
                        format!("c{claim}"),
                        label.trim_end().to_owned(),
                        uid,
                        line,
                    ));
                }
                lines
            }
        };
        lines.sort_by(|a, b| weight(&b.usage).total_cmp(&weight(&a.usage)));
        lines.truncate(MOST_LINES);
        if spec.by == HistoryBy::User && spec.key.is_none() {
            lines.insert(0, machine()?);
        }
        Ok(lines)
    }

    /// Owner and name of a claim; `None` if an older version kept figures without them.
    fn face(&self, claim: u64) -> rusqlite::Result<Option<ClaimFace>> {
        let row = |r: &rusqlite::Row<'_>| {
            let notebook: Option<String> = r.get(4)?;
            let source: Option<String> = r.get(5)?;
            Ok(ClaimFace {
                claim,
                uid: r.get(0)?,
                since_ms: r.get::<_, i64>(1)?.unsigned_abs(),
                project: r.get(2)?,
                what: r.get(3)?,
                notebook: notebook.zip(source),
                private: r.get(6)?,
            })
        };
        self.db
            .prepare_cached(
                "SELECT uid, since_ms, project, what, notebook, source, private FROM face WHERE claim = ?1",
            )?
            .query_row([claim.cast_signed()], row)
            .optional()
    }

    fn heat(
        &self,
        by: HistoryBy,
        spec: &HistorySpec,
        place: &Place,
        names: &Names,
    ) -> Result<Heat, WireError> {
        let read = |error: rusqlite::Error| broken(&error);
        let now = (place.now_ms / 1000) as i64;
        let span = Span {
            from: now - now.rem_euclid(3600) - HEAT_S,
            to: now + 1,
            level: 2,
            step: 3600,
        };
        let looked = self.machine(&span).map_err(read)?;
        let filter = filter(spec, place, names)?;
        let whole = by == HistoryBy::All || spec.key.is_none();
        let line = if whole {
            self.all(&span).map_err(read)?
        } else if by == HistoryBy::Gpu {
            let found = self.per_gpu(&span, filter.gpu).map_err(read)?;
            found.into_values().next().unwrap_or_default()
        } else {
            let found = self.sums(&span, Group::All, &filter).map_err(read)?;
            found.into_values().next().unwrap_or_default()
        };
        let alone = by == HistoryBy::Gpu && !whole;
        // Seven days of 24 hours: sums of capacity, claimed, used, and claimed while use was known.
        let mut cells = vec![[0.0_f64; 4]; 7 * 24];
        for (b, machine) in &looked {
            let at = span.from + b * span.step;
            let Some(local) = Local.timestamp_opt(at, 0).single() else {
                continue;
            };
            let day = local.weekday().num_days_from_monday() as usize;
            let cell = &mut cells[day * 24 + local.hour() as usize];
            let there = if alone {
                machine.looked
            } else {
                machine.claimed
            };
            let sum = line.get(b).copied().unwrap_or_default();
            cell[0] += there;
            cell[1] += sum.claimed;
            if let Some(used) = sum.used {
                cell[2] += used;
                cell[3] += there;
            }
        }
        let rows = |top: usize, below: usize| {
            let percent =
                |c: &[f64; 4]| (c[below] > 0.0).then(|| (100.0 * c[top] / c[below]) as f32);
            cells
                .chunks(24)
                .map(|day| day.iter().map(percent).collect())
                .collect()
        };
        Ok(Heat {
            claimed: rows(1, 0),
            used: rows(2, 3),
        })
    }

    /// Sums by user, GPU and claim.
    ///
    /// # Errors
    ///
    /// As [`Self::history`].
    pub(crate) fn report(
        &self,
        spec: &ReportSpec,
        place: &Place,
        names: &Names,
    ) -> Result<ReportView, WireError> {
        let read = |error: rusqlite::Error| broken(&error);
        let (from, to) = place.span(spec.from_ms, spec.to_ms)?;
        // A report over days uses hours, over hours it uses minutes; its time is rounded to these.
        let level = match to - from {
            0..=3600 => 0,
            3601..=172_800 => 1,
            _ => 2,
        };
        let span = Span::with_level(from, to, REPORT_POINTS, level);
        let uid = match &spec.user {
            Some(user) => Some(names.uid(user).ok_or_else(|| {
                WireError::new(ErrorCode::Usage, messages::no_user(user))
                    .with_hint("a login name or a uid")
            })?),
            None => None,
        };
        let claims = Filter {
            uid,
            private_of: place.viewer.only(),
            ..only(&[kind::CLAIM, kind::WAIT])
        };
        let looked = self.machine(&span).map_err(read)?;
        let machine = total(&looked);
        let lines = self.sums(&span, Group::User, &claims).map_err(read)?;
        let mut sum = Sum::default();
        let mut users: Vec<UserReport> = lines
            .iter()
            .map(|(uid, line)| {
                let own = total(line);
                sum.add(&own);
                let uid = uid.parse().unwrap_or(u32::MAX);
                UserReport {
                    uid,
                    user: user_name(names, uid),
                    usage: own.usage(),
                    series: points(line, &span, &looked),
                }
            })
            .collect();
        users.sort_by(|a, b| weight(&b.usage).total_cmp(&weight(&a.usage)));
        let held = Filter {
            kinds: vec![kind::CLAIM],
            ..claims.clone()
        };
        let projects = self.sums(&span, Group::Project, &held).map_err(read)?;
        let mut projects: Vec<ProjectReport> = projects
            .into_iter()
            .map(|(project, line)| ProjectReport {
                usage: total(&line).usage(),
                project: match project.is_empty() {
                    true => user_name(names, NOBODY),
                    false => project,
                },
            })
            .collect();
        projects.sort_by(|a, b| weight(&b.usage).total_cmp(&weight(&a.usage)));
        let gpus = if uid.is_some() {
            self.sums(&span, Group::Gpu, &held)
        } else {
            self.per_gpu(&span, None)
        };
        let mut gpus: Vec<GpuReport> = gpus
            .map_err(read)?
            .into_iter()
            .map(|(uuid, line)| GpuReport {
                gpu: place.index(&uuid),
                usage: total(&line).usage(),
                uuid,
            })
            .collect();
        gpus.sort_by_key(|g| g.gpu.unwrap_or(u32::MAX));
        Ok(ReportView {
            from_ms: (span.from * 1000).unsigned_abs(),
            to_ms: ((to - 1) * 1000).unsigned_abs(),
            step_ms: (span.step * 1000).unsigned_abs(),
            known_s: machine.looked,
            gpu_count: u32::try_from(place.gpus.len()).unwrap_or(u32::MAX),
            total: sum.usage(),
            gpus,
            users,
            projects,
            worst: self
                .worst(&span, &held, place.viewer, names)
                .map_err(read)?,
            ..ReportView::default()
        })
    }

    fn worst(
        &self,
        span: &Span,
        filter: &Filter,
        viewer: Viewer,
        names: &Names,
    ) -> rusqlite::Result<Vec<IdleHolding>> {
        let whole = Span {
            step: (span.to - span.from).max(1),
            ..*span
        };
        let found = self.sums(&whole, Group::Claim, filter)?;
        let mut claims: Vec<(u64, Sum)> = found
            .iter()
            .filter_map(|(claim, line)| Some((claim.parse().ok()?, total(line))))
            .filter(|(_, sum)| sum.idle().total() > 0.0)
            .collect();
        claims.sort_by(|a, b| b.1.idle().total().total_cmp(&a.1.idle().total()));
        claims.truncate(WORST);
        let mut worst = Vec::new();
        for (claim, sum) in claims {
            let Some(face) = self.face(claim)? else {
                continue;
            };
            let face = viewer.sees_face(face);
            let gpus: i64 = self
                .db
                .prepare_cached("SELECT count(*) FROM series WHERE kind = 2 AND claim = ?1")?
                .query_row([claim.cast_signed()], |r| r.get(0))?;
            worst.push(IdleHolding {
                id: format!("c{claim}"),
                user: names.user(face.uid),
                project: face.project,
                what: face.what,
                notebook: face.notebook.map(|(value, source)| Named { value, source }),
                since_ms: face.since_ms,
                held_s: sum.looked / gpus.max(1) as f64,
                usage: sum.usage(),
                cause: sum.idle().main().map(str::to_owned),
            });
        }
        Ok(worst)
    }

    /// Use of each user in the last day.
    pub(crate) fn day(&self, now_ms: u64) -> rusqlite::Result<BTreeMap<u32, Sum>> {
        let now = (now_ms / 1000) as i64;
        let span = Span::with_level(now - 86_400, now + 1, 1, 2);
        let lines = self.sums(&span, Group::User, &only(&[kind::CLAIM, kind::WAIT]))?;
        let user =
            |(uid, line): (String, BTreeMap<i64, Sum>)| Some((uid.parse().ok()?, total(&line)));
        Ok(lines.into_iter().filter_map(user).collect())
    }

    /// Use of claims between two moments, Unix milliseconds.
    pub(crate) fn of_claims(
        &self,
        from_ms: u64,
        to_ms: u64,
    ) -> rusqlite::Result<BTreeMap<u64, Sum>> {
        let (from, to) = ((from_ms / 1000) as i64, (to_ms / 1000) as i64 + 1);
        let span = Span::with_level(from, to, 1, 2);
        let lines = self.sums(&span, Group::Claim, &only(&[kind::CLAIM]))?;
        let claim = |(id, line): (String, _)| Some((id.parse().ok()?, total(&line)));
        Ok(lines.into_iter().filter_map(claim).collect())
    }
}
