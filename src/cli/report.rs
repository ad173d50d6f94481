//! `gshare report`: claimed and used by user, with charts, and the most wasteful claims.

mod merge;
mod page;
mod sharing;

use std::path::Path;
use std::time::{Duration, SystemTime};

use chrono::{Local, TimeZone};
use gshare_core::units::{many, show_duration};
use gshare_proto::figures::{self, about, hours, percent};
use gshare_proto::{Call, HistoryPoint, Reply, ReportSpec, ReportView, Usage, messages};

use super::args::report::ReportArgs;
use super::claim::unexpected;
use super::failure::Failure;
use super::table::{Align, Table, UNKNOWN, plain};
use super::{Outcome, connect, out};
pub(super) use merge::add;

const LEVELS: [char; 8] = ['▁', '▂', '▃', '▄', '▅', '▆', '▇', '█'];
const HOUR: f64 = 3600.0;
const GIB: f64 = 1_073_741_824.0;

pub(crate) fn run(socket: Option<&Path>, args: &ReportArgs) -> Outcome {
    if args.until.is_some_and(|until| until >= args.since) {
        let text = messages::period_ends_first();
        let hint = "--until counts back from now like --since and must be shorter: gshare report --since 2w --until 1w";
        return Err(Failure::new(super::failure::USAGE, text).with_hint(hint));
    }
    if args.raw {
        return raw(socket);
    }
    let report = match args.merge.as_slice() {
        [] => ask(socket, args)?,
        files => {
            let reports: Result<Vec<_>, _> = files.iter().map(|file| merge::read(file)).collect();
            merge::merged(reports?)
        }
    };
    if args.json {
        out::json(&report)?;
    } else if args.csv {
        out::print(&csv(&report))?;
    } else if let Some(file) = &args.html {
        let html = page::Page::new(&report, args.names).html();
        std::fs::write(file, html).map_err(|e| {
            let why = format!("cannot write the report to {}: {e}", file.display());
            Failure::new(super::failure::INTERNAL, why)
        })?;
    } else if args.text {
        out::print(&page::Page::new(&report, args.names).mail())?;
    } else {
        let user = args.user.as_deref().or(args.mine.then_some("you"));
        out::print(&text(&report, user, out::columns(), out::colour()))?;
    }
    Ok(0)
}

/// Prints the data that the service stores about the caller.
fn raw(socket: Option<&Path>) -> Outcome {
    let mut client = connect::connect(socket)?;
    let mut after = None;
    loop {
        let part = match client.call(&Call::Stored { after })? {
            Reply::Stored(part) => part,
            other => return Err(unexpected(&other)),
        };
        for row in &part.rows {
            out::print(&format!("{row}\n"))?;
        }
        after = part.next;
        if after.is_none() {
            return Ok(0);
        }
    }
}

/// The service's answer.
fn ask(socket: Option<&Path>, args: &ReportArgs) -> Result<ReportView, Failure> {
    let now = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH);
    let now = now.unwrap_or_default();
    let ago = |time: Duration| u64::try_from(now.saturating_sub(time).as_millis()).unwrap_or(0);
    let own = nix::unistd::Uid::effective().to_string();
    let user = args.user.clone().or_else(|| args.mine.then_some(own));
    let call = Call::Report(ReportSpec {
        from_ms: ago(args.since),
        to_ms: args.until.map_or(0, ago),
        user: user.map(Into::into),
    });
    match connect::connect(socket)?.call(&call)? {
        Reply::Report(report) => Ok(*report),
        other => Err(unexpected(&other)),
    }
}

fn maybe_hours(seconds: Option<f64>, estimate: bool) -> String {
    seconds.map_or_else(|| UNKNOWN.to_owned(), |s| about(estimate, hours(s)))
}

/// Average use in percent, with `~` if part of it is an estimate.
pub(crate) fn average(usage: &Usage) -> String {
    let shown = usage.average_use();
    let shown = shown.map(|p| about(usage.estimate, percent(p)) + " %");
    shown.unwrap_or_else(|| UNKNOWN.to_owned())
}

fn day(ms: u64) -> String {
    let at = i64::try_from(ms).ok();
    let at = at.and_then(|ms| Local.timestamp_millis_opt(ms).single());
    at.map_or_else(
        || UNKNOWN.to_owned(),
        |t| t.format("%Y-%m-%d %H:%M").to_string(),
    )
}

fn text(report: &ReportView, user: Option<&str>, width: Option<usize>, bold: bool) -> String {
    let span = report.to_ms.saturating_sub(report.from_ms) as f64 / 1000.0;
    let looked = if span > 0.0 {
        percent((100.0 * report.known_s / span).min(100.0))
    } else {
        percent(0.0)
    };
    let mut text = format!(
        "{} to {}, {}; data for {looked} % of this period\n\n",
        day(report.from_ms),
        day(report.to_ms),
        many(report.gpu_count as usize, "GPU")
    );
    if report.users.is_empty() {
        text.push_str(&match user {
            Some(user) => format!("{} claimed nothing\n", plain(user)),
            None => "nobody claimed anything\n".to_owned(),
        });
        return text;
    }
    text.push_str(&users(report).blocks(width, bold));
    text.push_str("\nGPU hours; SM USED: SM activity; IDLE: claimed but not used, by cause\n");
    // A user's own group adds nothing as a project.
    let own = |project: &str| report.users.iter().any(|u| u.user == project);
    if report.projects.iter().any(|p| !own(&p.project)) {
        text.push('\n');
        text.push_str(&projects(report).blocks(width, bold));
    }
    if report.gpus.iter().any(|g| g.usage.claimed_gpu_s > 0.0) {
        text.push('\n');
        text.push_str(&gpu_table(report).blocks(width, bold));
    }
    text.push('\n');
    text.push_str(&charts(report, width));
    if !report.worst.is_empty() {
        text.push_str("\nclaims with the most idle time\n");
        text.push_str(&worst(report).blocks(width, bold));
    }
    let sentences = sharing::sentences(report);
    if !sentences.is_empty() {
        text.push_str(&format!("\n{}\n", sharing::TITLE.to_lowercase()));
        for line in sentences.iter().flat_map(|s| wrap(s, width)) {
            text.push_str(&format!("{line}\n"));
        }
    }
    if sharing::rows(report).next().is_some() {
        text.push('\n');
        text.push_str(&fared(report).blocks(width, bold));
    }
    text
}

fn wrap(text: &str, width: Option<usize>) -> Vec<String> {
    figures::wrap(text, width.unwrap_or(usize::MAX), usize::MAX)
}

/// Users whose runs would have been delayed by sharing.
fn fared(report: &ReportView) -> Table {
    let columns = sharing::COLUMNS.map(|name| (name, Align::Right));
    let columns: Vec<_> = [("USER", Align::Left)].into_iter().chain(columns).collect();
    let mut table = Table::new(&columns);
    for (user, cells) in sharing::rows(report) {
        table.row([user.to_owned()].into_iter().chain(cells).collect());
    }
    table
}

fn users(report: &ReportView) -> Table {
    let users = report.users.iter().map(|u| (&*u.user, &u.usage));
    let all = (report.users.len() > 1).then_some(("all", &report.total));
    usage_table("USER", users.chain(all))
}

fn projects(report: &ReportView) -> Table {
    let projects = report.projects.iter();
    usage_table("PROJECT", projects.map(|p| (&*p.project, &p.usage)))
}

fn usage_table<'a>(title: &'static str, rows: impl Iterator<Item = (&'a str, &'a Usage)>) -> Table {
    let mut table = Table::new(&[
        (title, Align::Left),
        ("CLAIMED", Align::Right),
        ("SM USED", Align::Right),
        ("AVG USE", Align::Right),
        ("TIME", Align::Right),
        ("BURST", Align::Right),
        ("THROTTLED", Align::Right),
        ("WAITED", Align::Right),
        ("MEM used/claimed", Align::Right),
        ("MEM BURST", Align::Right),
        ("IDLE", Align::Right),
        ("off hours", Align::Right),
        ("kernel", Align::Right),
        ("CPU", Align::Right),
        ("IO", Align::Right),
        ("unknown", Align::Right),
    ]);
    for (name, u) in rows {
        let mem = |byte_s: f64| byte_s / GIB / HOUR;
        let idle = u.idle;
        let cause = |gpu_s: f64| {
            u.idle_gpu_s()
                .map_or_else(|| UNKNOWN.to_owned(), |_| hours(gpu_s))
        };
        table.row(vec![
            name.to_owned(),
            hours(u.claimed_gpu_s),
            maybe_hours(u.used_gpu_s, u.estimate),
            average(u),
            maybe_hours(u.busy_gpu_s, false),
            maybe_hours(u.borrowed(), false),
            hours(u.throttled_gpu_s),
            hours(u.waited_gpu_s),
            format!(
                "{}/{} GiB h",
                u.mem_used_byte_s
                    .map_or_else(|| UNKNOWN.to_owned(), |b| percent(mem(b))),
                percent(mem(u.mem_claimed_byte_s))
            ),
            u.mem_borrowed_byte_s.map_or_else(
                || UNKNOWN.to_owned(),
                |b| format!("{} GiB h", percent(mem(b))),
            ),
            cause(idle.total()),
            cause(idle.off_hours),
            cause(idle.kernel),
            cause(idle.cpu),
            cause(idle.io),
            cause(idle.other),
        ]);
    }
    table
}

fn gpu_table(report: &ReportView) -> Table {
    let mut table = Table::new(&[
        ("GPU", Align::Left),
        ("CLAIMED", Align::Right),
        ("SM USED", Align::Right),
        ("TIME", Align::Right),
        ("IDLE", Align::Right),
    ]);
    for gpu in &report.gpus {
        let u = &gpu.usage;
        table.row(vec![
            gpu.gpu.map_or_else(|| gpu.uuid.clone(), |g| g.to_string()),
            hours(u.claimed_gpu_s),
            maybe_hours(u.used_gpu_s, u.estimate),
            maybe_hours(u.busy_gpu_s, false),
            maybe_hours(u.idle_gpu_s(), false),
        ]);
    }
    table
}

/// Claimed and used over time, one line per user, all on one scale.
fn charts(report: &ReportView, width: Option<usize>) -> String {
    let most = report.users.iter().flat_map(|u| &u.series);
    let most = most
        .map(|p| p.claimed.max(p.used.unwrap_or(0.0)))
        .fold(0.0, f64::max);
    if most <= 0.0 || report.step_ms == 0 {
        return String::new();
    }
    let names = report.users.iter().map(|u| figures::width(&plain(&u.user)));
    let name = names.max().unwrap_or(0).max(4);
    let steps = (report.to_ms.saturating_sub(report.from_ms))
        .div_ceil(report.step_ms)
        .max(1);
    let room = width
        .map_or(usize::MAX, |w| w.saturating_sub(name + 10))
        .max(10);
    let columns = usize::try_from(steps).unwrap_or(1).min(room);
    let mut text = format!(
        "over time: each column is {}, full height is {most:.1} GPUs, blank is unknown\n",
        show_duration(Duration::from_millis(
            report.step_ms * steps.div_ceil(columns as u64)
        ))
    );
    for user in &report.users {
        let line = |value: &dyn Fn(&HistoryPoint) -> Option<f64>| {
            chart(&user.series, report, columns, most, value)
        };
        text.push_str(&format!(
            "{}  claimed {}\n{:name$}  SM used {}\n",
            figures::left(&plain(&user.user), name, ""),
            line(&|p| Some(p.claimed)),
            "",
            line(&|p| p.used)
        ));
    }
    text
}

/// Means of points by column; a column without a known point is blank.
fn chart(
    points: &[HistoryPoint],
    report: &ReportView,
    columns: usize,
    most: f64,
    value: &dyn Fn(&HistoryPoint) -> Option<f64>,
) -> String {
    let span = report.to_ms.saturating_sub(report.from_ms).max(1);
    let mut cells = vec![(0.0, 0u32); columns];
    for point in points {
        let into = point.at_ms.saturating_sub(report.from_ms).min(span - 1);
        let column = (into as f64 / span as f64 * columns as f64) as usize;
        if let (Some(cell), Some(v)) = (cells.get_mut(column), value(point)) {
            cell.0 += v;
            cell.1 += 1;
        }
    }
    let draw = |(sum, n): &(f64, u32)| match n {
        0 => ' ',
        n => {
            let height = (sum / f64::from(*n) / most * 8.0).clamp(0.0, 7.0);
            LEVELS[height as usize]
        }
    };
    let line: String = cells.iter().map(draw).collect();
    line.trim_end().to_owned()
}

fn worst(report: &ReportView) -> Table {
    let mut table = Table::new(&[
        ("ID", Align::Left),
        ("USER", Align::Left),
        ("SINCE", Align::Left),
        ("HELD", Align::Right),
        ("CLAIMED", Align::Right),
        ("IDLE", Align::Right),
        ("AVG USE", Align::Right),
        ("MOSTLY", Align::Left),
        ("WHAT", Align::Left),
    ]);
    for held in &report.worst {
        let what = held.notebook.as_ref().map_or(&held.what, |n| &n.value);
        table.row(vec![
            held.id.clone(),
            held.user.clone(),
            day(held.since_ms),
            show_duration(Duration::from_secs(held.held_s as u64)),
            hours(held.usage.claimed_gpu_s),
            maybe_hours(held.usage.idle_gpu_s(), false),
            average(&held.usage),
            held.cause.clone().unwrap_or_default(),
            what.clone(),
        ]);
    }
    table
}

fn csv(report: &ReportView) -> String {
    let mut out = String::from(
        "user,uid,claimed_gpu_s,used_gpu_s,average_use_percent,estimate,busy_gpu_s,borrowed_gpu_s,throttled_gpu_s,\
         waited_gpu_s,mem_claimed_byte_s,mem_used_byte_s,idle_off_hours_gpu_s,idle_kernel_gpu_s,idle_cpu_gpu_s,\
         idle_io_gpu_s,idle_unknown_gpu_s,mem_borrowed_byte_s\n",
    );
    let some = |v: Option<f64>| v.map_or_else(String::new, |v| format!("{v:.1}"));
    let mut line = |name: &str, uid: String, u: &Usage| {
        let idle = |gpu_s: f64| some(u.idle_gpu_s().map(|_| gpu_s));
        let fields = [
            super::rows::csv_field(name),
            uid,
            format!("{:.1}", u.claimed_gpu_s),
            some(u.used_gpu_s),
            u.average_use()
                .map_or_else(String::new, |p| format!("{p:.2}")),
            u.estimate.to_string(),
            some(u.busy_gpu_s),
            some(u.borrowed()),
            format!("{:.1}", u.throttled_gpu_s),
            format!("{:.1}", u.waited_gpu_s),
            format!("{:.0}", u.mem_claimed_byte_s),
            u.mem_used_byte_s
                .map_or_else(String::new, |v| format!("{v:.0}")),
            idle(u.idle.off_hours),
            idle(u.idle.kernel),
            idle(u.idle.cpu),
            idle(u.idle.io),
            idle(u.idle.other),
            u.mem_borrowed_byte_s
                .map_or_else(String::new, |v| format!("{v:.0}")),
        ];
        out.push_str(&fields.join(","));
        out.push('\n');
    };
    for user in &report.users {
        line(&user.user, user.uid.to_string(), &user.usage);
    }
    line("all", String::new(), &report.total);
    out
}

#[cfg(test)]
mod tests {
    use gshare_proto::UserReport;

    use super::*;

    fn report() -> ReportView {
        let point = |at_ms, claimed, used| HistoryPoint {
            at_ms,
            claimed,
            used,
            ..HistoryPoint::default()
        };
        ReportView {
            from_ms: 0,
            to_ms: 4000,
            step_ms: 1000,
            users: vec![UserReport {
                user: "ada".into(),
                series: vec![
                    point(0, 1.0, Some(0.5)),
                    point(1000, 1.0, None),
                    point(3000, 0.0, Some(0.0)),
                ],
                ..UserReport::default()
            }],
            ..ReportView::default()
        }
    }

    #[test]
    fn a_little_is_not_nothing() {
        let mut seen = report();
        (seen.to_ms, seen.known_s) = (604_800_000, 30.0);
        let shown = text(&seen, None, None, false);
        assert!(shown.contains("data for <1 % of this period"), "{shown}");
        seen.users.clear();
        let of = |user| text(&seen, user, None, false);
        assert!(of(None).ends_with("nobody claimed anything\n"));
        assert!(of(Some("ada")).ends_with("ada claimed nothing\n"));
    }

    #[test]
    fn at_80_and_120_columns_no_word_and_no_figure_is_cut() {
        let usage = Usage {
            claimed_gpu_s: 123_456.0 * HOUR,
            used_gpu_s: Some(65_432.1 * HOUR),
            mem_used_byte_s: Some(98_765.0 * GIB * HOUR),
            mem_claimed_byte_s: 123_456.0 * GIB * HOUR,
            mem_borrowed_byte_s: Some(34_567.0 * GIB * HOUR),
            ..Usage::default()
        };
        let mut seen = report();
        seen.users[0].user = "a.longer-name".into();
        seen.users[0].usage = usage;
        seen.worst = vec![gshare_proto::IdleHolding {
            id: "c12345".into(),
            user: "a.longer-name".into(),
            what: "python -m torch.distributed.run".into(),
            usage,
            ..gshare_proto::IdleHolding::default()
        }];
        let words = |text: &str| -> std::collections::BTreeSet<String> {
            text.split_whitespace().map(str::to_owned).collect()
        };
        seen.sharing = Some(sharing::example());
        let whole = [users(&seen), worst(&seen), fared(&seen)]
            .map(|table| table.text(None, false))
            .concat();
        for width in [80, 120] {
            let shown = text(&seen, None, Some(width), false);
            assert!(
                shown.lines().all(|line| figures::width(line) <= width),
                "{shown}"
            );
            assert!(!shown.contains('\u{2026}'), "{shown}");
            let missing: Vec<String> = words(&whole).difference(&words(&shown)).cloned().collect();
            assert!(missing.is_empty(), "{missing:?} at {width}:\n{shown}");
        }
    }

    #[test]
    fn projects_are_shown_unless_each_is_a_users_own_group() {
        let mut seen = report();
        let projects = |names: &[&str]| {
            let project = |name: &&str| gshare_proto::ProjectReport {
                project: (*name).to_owned(),
                ..gshare_proto::ProjectReport::default()
            };
            names.iter().map(project).collect()
        };
        seen.projects = projects(&["ada"]);
        assert!(!text(&seen, None, None, false).contains("PROJECT"));
        seen.projects = projects(&["ada", "vision"]);
        let shown = text(&seen, None, None, false);
        let table = shown.split("\nPROJECT").nth(1).expect("a table");
        assert!(table.contains("\nvision "), "{shown}");
    }

    #[test]
    fn a_chart_has_a_gap_where_nothing_is_known() {
        let text = charts(&report(), None);
        let lines: Vec<&str> = text.lines().skip(1).collect();
        assert_eq!(lines[0], "ada   claimed ██ ▁");
        assert_eq!(lines[1], "      SM used ▅  ▁");
        assert!(charts(&ReportView::default(), None).is_empty());
    }

    #[test]
    fn unknown_use_is_a_dash_and_an_empty_field() {
        let usage = Usage {
            claimed_gpu_s: 7200.0,
            ..Usage::default()
        };
        assert_eq!(
            (average(&usage), maybe_hours(usage.used_gpu_s, false)),
            (UNKNOWN.to_owned(), UNKNOWN.to_owned())
        );
        let line = csv(&ReportView {
            total: usage,
            ..ReportView::default()
        });
        assert!(
            line.ends_with("all,,7200.0,,,false,,,0.0,0.0,0,,,,,,,\n"),
            "{line}"
        );
    }
}
