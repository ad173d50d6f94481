//! The report as one HTML file and as a mail: no script, nothing external, users by alias unless names are requested.

use std::collections::BTreeMap;
use std::fmt::Write as _;

use chrono::{Local, TimeZone};
use gshare_core::units::many;
use gshare_proto::figures::{hours, left, parts, percent, wrap};
use gshare_proto::{HistoryPoint, IdleHolding, ReportView, Usage};

use super::{average, maybe_hours, merge, sharing};

/// The report with names or aliases.
pub(super) struct Page<'a> {
    report: &'a ReportView,
    /// Displayed names of users.
    shown: BTreeMap<&'a str, String>,
    /// Whether users and their programs are named.
    names: bool,
    /// Time of the first figures of the period, in ms since 1970, where the drawings begin.
    begun_ms: u64,
}

/// No advice to shrink a claim that was throttled for this fraction of its time.
const THROTTLED: f64 = 0.05;

/// No advice to shrink a claim whose use is this close to its size, in GPUs.
const NEAR: f64 = 0.1;

/// Maximum number of lines in a mail.
const MAIL: usize = 25;

/// The sufficient size for a claim that used less than it held.
struct Enough<'a> {
    held: &'a IdleHolding,
    /// Its mean size and its mean need, in GPUs.
    size: f64,
    needed: f64,
}

impl Enough<'_> {
    /// GPU seconds that others could have used.
    fn freed(&self) -> f64 {
        (self.size - self.needed) * self.held.held_s
    }
}

/// The mean need of a claim, in steps of 0.05; none if it was throttled, nearly full or not measured. Use is GPU time
/// or SM activity, whichever is larger: in turns the share is GPU time.
fn enough(held: &IdleHolding) -> Option<Enough<'_>> {
    let usage = &held.usage;
    let used = match (usage.used_gpu_s, usage.busy_gpu_s) {
        (Some(sms), Some(time)) => sms.max(time),
        (sms, time) => sms.or(time)?,
    };
    if held.held_s <= 0.0 || usage.throttled_gpu_s > THROTTLED * usage.claimed_gpu_s {
        return None;
    }
    let size = usage.claimed_gpu_s / held.held_s;
    let needed = ((used / held.held_s) / 0.05).ceil().max(1.0) * 0.05;
    (size - used / held.held_s > NEAR && needed < size).then_some(Enough { held, size, needed })
}

/// Escapes a text for a page.
fn safe(text: &str) -> String {
    let text = text
        .replace('&', "&amp;")
        .replace('<', "&lt;")
        .replace('>', "&gt;");
    text.replace('"', "&quot;").replace(char::is_control, " ")
}

fn time(ms: u64) -> String {
    let at = i64::try_from(ms).ok();
    let at = at.and_then(|ms| Local.timestamp_millis_opt(ms).single());
    at.map_or_else(String::new, |t| t.format("%a %d %b %Y %H:%M").to_string())
}

/// Colours of a light and a dark page: used, burst and claimed are depths of one hue.
const STYLE: &str = "\
:root{color-scheme:light dark;--page:#fff;--ink:#1b2330;--dim:#5c646e;--line:#dfe4ea;--used:#0b2f62;--over:#4a86c8;\
--claimed:#c3d3e6;--unknown:#8a8f96;--wait:#a16200}\
@media(prefers-color-scheme:dark){:root{--page:#10151c;--ink:#d6dde6;--dim:#8c95a0;--line:#2a323d;--used:#b5dcff;\
--over:#3577ba;--claimed:#2c3a4d;--unknown:#6b7077;--wait:#e8b124}}\
body{margin:0 auto;padding:1rem;max-width:64rem;background:var(--page);color:var(--ink);font:16px/1.5 system-ui,sans-serif}\
h1{font-size:1.4rem;margin:.2rem 0}h2{font-size:1.1rem;margin:2rem 0 .5rem}p{margin:.4rem 0}.dim{color:var(--dim)}\
.sums{display:grid;grid-template-columns:repeat(auto-fit,minmax(8rem,1fr));gap:.75rem;margin:1rem 0}\
.sums div{border-left:4px solid var(--line);padding-left:.6rem}.sums b{display:block;font-size:1.5rem;line-height:1.2}\
svg{display:block;width:100%;background:none}.axis{display:flex;justify-content:space-between;color:var(--dim);font-size:.85rem}\
.key span{margin-right:1rem;white-space:nowrap}.key i{display:inline-block;width:.8em;height:.8em;margin-right:.35em}\
.wide{overflow-x:auto}table{border-collapse:collapse;width:100%;font-variant-numeric:tabular-nums}\
td,th{padding:.3rem .6rem;text-align:right;border-bottom:1px solid var(--line);white-space:nowrap}\
th{color:var(--dim);font-weight:600}td:first-child,th:first-child,.left{text-align:left}\
.bar{width:9rem;min-width:6rem}.bar svg{height:.9rem}.small{display:grid;\
grid-template-columns:repeat(auto-fit,minmax(15rem,1fr));gap:1rem}\
@media(max-width:36rem){td,th{padding:.25rem .2rem;font-size:.8rem}td:first-child,.left{white-space:normal;\
overflow-wrap:anywhere}.more{display:none}}";

/// Width of the drawings in their units.
const WIDTH: f64 = 600.0;

impl<'a> Page<'a> {
    pub(super) fn new(report: &'a ReportView, names: bool) -> Self {
        let users = report.users.iter().map(|u| u.user.as_str());
        let held = report.worst.iter().map(|w| w.user.as_str());
        let fared = report.sharing.iter().flat_map(|s| &s.users);
        let fared = fared.map(|u| u.user.as_str());
        let mut shown = BTreeMap::new();
        for user in users.chain(held).chain(fared) {
            let alias = format!("user {}", shown.len() + 1);
            let name = if names { user.to_owned() } else { alias };
            shown.entry(user).or_insert(name);
        }
        let points = report.users.iter().flat_map(|u| &u.series);
        let begun = points.map(|p| p.at_ms).min().unwrap_or(report.from_ms);
        Self {
            report,
            shown,
            names,
            begun_ms: begun.clamp(report.from_ms, report.to_ms),
        }
    }

    fn user(&self, user: &str) -> &str {
        self.shown.get(user).map_or("", String::as_str)
    }

    /// The program of a claim, if users are named.
    fn what<'h>(&self, held: &'h IdleHolding) -> &'h str {
        match self.names {
            true => held.notebook.as_ref().map_or(&held.what, |n| &n.value),
            false => "",
        }
    }

    /// Sufficient sizes, the largest gain first.
    fn changes(&self) -> Vec<Enough<'a>> {
        let mut all: Vec<Enough<'_>> = self.report.worst.iter().filter_map(enough).collect();
        all.sort_by(|a, b| b.freed().total_cmp(&a.freed()));
        all
    }

    /// The effect of changes, one sentence each.
    fn advice(&self) -> Vec<String> {
        let total = &self.report.total;
        let mut out = Vec::new();
        if let Some(idle) = total.idle_gpu_s().filter(|idle| *idle > 0.0) {
            let (waited, idle_h) = (total.waited_gpu_s, hours(idle));
            out.push(match waited > 0.0 {
                true => format!(
                    "Users waited for {} GPU h of capacity, while {idle_h} GPU h of claimed capacity were idle. If \
                     idle claims had made room, this would have avoided at most {} GPU h of waiting.",
                    hours(waited),
                    hours(idle.min(waited))
                ),
                false => format!("{idle_h} GPU h of claimed capacity were idle, and nobody waited."),
            });
        }
        for change in self.changes().into_iter().take(5) {
            let Enough { held, size, needed } = &change;
            out.push(format!(
                "{} of {}: on average {} GPU would have been enough instead of {}, which would have freed {} GPU h. \
                 Peaks may need more.",
                held.id,
                self.user(&held.user),
                parts(*needed),
                parts(*size),
                hours(change.freed())
            ));
        }
        out
    }

    /// All users together over time: claimed, used and waited for.
    fn total(&self) -> Vec<HistoryPoint> {
        let points = self.report.users.iter().flat_map(|u| &u.series);
        merge::added_up(points, |at_ms| at_ms)
    }

    /// Used and claimed over time as areas, waiting as a line; unknown times are gaps.
    fn chart(&self, points: &[HistoryPoint], height: f64, top: f64) -> String {
        let report = self.report;
        let span = report.to_ms.saturating_sub(self.begun_ms).max(1) as f64;
        let x = |ms: u64| ms.saturating_sub(self.begun_ms) as f64 / span * WIDTH;
        let step = report.step_ms.max(1) as f64 / span * WIDTH;
        let y = |gpus: f64| height - (gpus / top.max(1e-9)).min(1.0) * height;
        let mut paths: [String; 5] = Default::default();
        for point in points {
            let at = x(point.at_ms);
            let mut area = |path: usize, from: f64, to: f64| {
                if to > from {
                    let (low, high) = (y(from), y(to));
                    let _ = write!(
                        paths[path],
                        "M{at:.1} {low:.1}V{high:.1}h{step:.2}V{low:.1}z"
                    );
                }
            };
            match point.used {
                Some(used) => {
                    area(0, 0.0, point.claimed);
                    area(1, 0.0, used.min(point.claimed));
                    area(2, point.claimed, used);
                }
                None => area(4, 0.0, point.claimed),
            }
            if point.waiting > 0.0 {
                area(3, 0.0, top * 0.02);
            }
        }
        let colours = ["claimed", "used", "over", "wait", "unknown"];
        let path =
            |(d, colour): (&String, &str)| format!("<path d=\"{d}\" fill=\"var(--{colour})\"/>");
        let paths: String = paths.iter().zip(colours).map(path).collect();
        format!(
            "<svg viewBox=\"0 0 {WIDTH} {height}\" preserveAspectRatio=\"none\" height=\"{height}\" role=\"img\" \
             aria-label=\"claimed and used over time\">{paths}</svg>"
        )
    }

    /// Used of claimed, on the scale of the largest.
    fn bar(usage: &Usage, most: f64) -> String {
        let part = |s: f64| (s / most.max(1e-9)).min(1.0) * 100.0;
        let claimed = part(usage.claimed_gpu_s);
        let used = part(usage.used_gpu_s.unwrap_or(0.0));
        let (within, over) = (used.min(claimed), (used - claimed).max(0.0));
        format!(
            "<td class=\"bar more\"><svg viewBox=\"0 0 100 10\" preserveAspectRatio=\"none\" aria-hidden=\"true\"><rect \
             width=\"{claimed:.1}\" height=\"10\" fill=\"var(--claimed)\"/><rect width=\"{within:.1}\" height=\"10\" \
             fill=\"var(--used)\"/><rect x=\"{claimed:.1}\" width=\"{over:.1}\" height=\"10\" fill=\"var(--over)\"/></svg>"
        )
    }

    /// A table with sums of use, one row each.
    fn table(title: &str, rows: &[(String, &Usage)]) -> String {
        let most = rows
            .iter()
            .map(|(_, u)| u.claimed_gpu_s.max(u.used_gpu_s.unwrap_or(0.0)));
        let most = most.fold(0.0, f64::max);
        let mut out = format!(
            "<div class=\"wide\"><table><tr><th>{title}<th>claimed<th>SM used<th>SM used %<th>idle<th class=\"more\">burst<th>waited\
             <th class=\"left more\">idle mostly<th class=\"bar more\">"
        );
        for (name, usage) in rows {
            let _ = write!(
                out,
                "<tr><td>{}<td>{}<td>{}<td>{}<td>{}<td class=\"more\">{}<td>{}<td class=\"left more\">{}{}",
                safe(name),
                hours(usage.claimed_gpu_s),
                maybe_hours(usage.used_gpu_s, usage.estimate),
                average(usage),
                maybe_hours(usage.idle_gpu_s(), false),
                maybe_hours(usage.borrowed(), false),
                hours(usage.waited_gpu_s),
                usage.idle.main().unwrap_or_default(),
                Self::bar(usage, most)
            );
        }
        out + "</table></div>\n"
    }

    /// The page.
    pub(super) fn html(&self) -> String {
        let report = self.report;
        let total = &report.total;
        let span = report.to_ms.saturating_sub(report.from_ms) as f64 / 1000.0;
        let looked = percent((100.0 * report.known_s / span.max(1.0)).min(100.0));
        let (from, to) = (time(report.from_ms), time(report.to_ms));
        let mut out = format!(
            "<!doctype html>\n<html lang=\"en\"><head><meta charset=\"utf-8\"><meta name=\"viewport\" \
             content=\"width=device-width,initial-scale=1\"><meta http-equiv=\"Content-Security-Policy\" \
             content=\"default-src 'none'; style-src 'unsafe-inline'\"><title>GPU report</title><style>{STYLE}</style>\
             </head><body>\n<h1>GPU report</h1><p class=\"dim\">{from} to {to}, {}; data for {looked} % of this \
             period. All figures are GPU hours. SM used is the activity of the multiprocessors.</p>\n<div class=\"sums\">",
            many(report.gpu_count as usize, "GPU")
        );
        for (what, figure) in [
            ("claimed", hours(total.claimed_gpu_s)),
            ("SM used", maybe_hours(total.used_gpu_s, total.estimate)),
            ("SM used of claimed", average(total)),
            ("idle", maybe_hours(total.idle_gpu_s(), false)),
            ("waited for", hours(total.waited_gpu_s)),
        ] {
            let _ = write!(out, "<div><b>{figure}</b>{what}</div>");
        }
        out += "</div>\n<h2>Over time</h2><p class=\"key dim\">";
        for (colour, what) in [
            ("used", "SM used"),
            ("over", "burst above the claims"),
            ("claimed", "claimed, not used"),
            ("unknown", "claimed, use not known"),
            ("wait", "a claim waited"),
        ] {
            let _ = write!(
                out,
                "<span><i style=\"background:var(--{colour})\"></i>{what}</span>"
            );
        }
        let all = self.total();
        let most = |points: &[HistoryPoint]| {
            let each = points.iter().map(|p| p.claimed.max(p.used.unwrap_or(0.0)));
            each.fold(0.0, f64::max)
        };
        let top = f64::from(report.gpu_count).max(most(&all));
        let axis = |top: f64| {
            format!(
                "<div class=\"axis\"><span>{}</span><span>0 to {} GPUs</span><span>{to}</span></div>",
                time(self.begun_ms),
                parts(top)
            )
        };
        let _ = writeln!(out, "</p>{}{}", self.chart(&all, 160.0, top), axis(top));
        if report.users.len() > 1 {
            out += "<h2>Each user over time</h2><div class=\"small\">";
            for user in report.users.iter().take(12) {
                let top = most(&user.series).max(0.01);
                let name = safe(self.user(&user.user));
                let chart = self.chart(&user.series, 60.0, top);
                let _ = write!(
                    out,
                    "<div>{name} <span class=\"dim\">0 to {} GPUs</span>{chart}</div>",
                    parts(top)
                );
            }
            out += "</div>\n";
        }
        let users = report
            .users
            .iter()
            .map(|u| (self.user(&u.user).to_owned(), &u.usage));
        let users: Vec<(String, &Usage)> = users.collect();
        out += "<h2>By user</h2>";
        out += &match users.is_empty() {
            true => "<p>Nobody claimed anything.</p>\n".to_owned(),
            false => Self::table("user", &users),
        };
        let name =
            |g: &gshare_proto::GpuReport| g.gpu.map_or(g.uuid.clone(), |n| format!("GPU {n}"));
        let gpus_of: Vec<(String, &Usage)> =
            report.gpus.iter().map(|g| (name(g), &g.usage)).collect();
        if !gpus_of.is_empty() {
            let _ = write!(out, "<h2>By GPU</h2>{}", Self::table("GPU", &gpus_of));
        }
        if !report.worst.is_empty() {
            out += "<h2>Most wasted</h2><div class=\"wide\"><table><tr><th>claim<th class=\"left\">user<th>claimed<th>idle\
                    <th>SM used %<th class=\"left\">idle mostly";
            if self.names {
                out += "<th class=\"left\">runs";
            }
            for held in &report.worst {
                let _ = write!(
                    out,
                    "<tr><td>{}<td class=\"left\">{}<td>{}<td>{}<td>{}<td class=\"left\">{}{}",
                    safe(&held.id),
                    safe(self.user(&held.user)),
                    hours(held.usage.claimed_gpu_s),
                    maybe_hours(held.usage.idle_gpu_s(), false),
                    average(&held.usage),
                    safe(held.cause.as_deref().unwrap_or("—")),
                    match self.names {
                        true => format!("<td class=\"left\">{}", safe(self.what(held))),
                        false => String::new(),
                    }
                );
            }
            out += "</table></div>\n";
        }
        let advice = self.advice();
        if !advice.is_empty() {
            out += "<h2>What a change would do</h2><ul>";
            for text in advice {
                let _ = write!(out, "<li>{}", safe(&text));
            }
            out += "</ul>\n";
        }
        out += &self.sharing();
        if !self.names {
            out += "<p class=\"dim\">User names are replaced by aliases; --names shows the names of users and \
                programs.</p>\n";
        }
        out + "</body></html>\n"
    }

    /// Effect of sharing on runs without limits, for the page.
    fn sharing(&self) -> String {
        let sentences = sharing::sentences(self.report);
        let Some((first, more)) = sentences.split_first() else {
            return String::new();
        };
        let mut out = format!("<h2>{}</h2><p>{}</p>", sharing::TITLE, safe(first));
        for text in more {
            let _ = write!(out, "<p class=\"dim\">{}</p>", safe(text));
        }
        let mut rows = sharing::rows(self.report).peekable();
        if rows.peek().is_some() {
            // A phone has no room for all of them.
            let class = |name| match name {
                "HELD" | "LONGEST" => " class=\"more\"",
                _ => "",
            };
            let heads = sharing::COLUMNS.map(|n| format!("<th{}>{}", class(n), n.to_lowercase()));
            let heads = heads.concat();
            let _ = write!(out, "<div class=\"wide\"><table><tr><th>user{heads}");
            for (user, cells) in rows {
                let cells = sharing::COLUMNS.iter().zip(cells);
                let cells = cells.map(|(n, cell)| format!("<td{}>{}", class(n), safe(&cell)));
                let cells: String = cells.collect();
                let _ = write!(out, "<tr><td>{}{cells}", safe(self.user(user)));
            }
            out += "</table></div>";
        }
        out + "\n"
    }

    /// The same as a mail, in at most [`MAIL`] lines of 78 columns.
    pub(super) fn mail(&self) -> String {
        let report = self.report;
        let total = &report.total;
        let mut out = vec![format!(
            "GPU report, {} to {}",
            time(report.from_ms),
            time(report.to_ms)
        )];
        let sums = format!(
            "{}. GPU h: {} claimed, {} SM used ({}), {} idle, {} waited for",
            many(report.gpu_count as usize, "GPU"),
            hours(total.claimed_gpu_s),
            maybe_hours(total.used_gpu_s, total.estimate),
            average(total),
            maybe_hours(total.idle_gpu_s(), false),
            hours(total.waited_gpu_s)
        );
        out.extend(wrap(&sums, 78, usize::MAX));
        out.push(String::new());
        let row = |name: &str, [a, b, c, d]: [&str; 4], last: &str| {
            format!(
                "{} {a:>8} {b:>8} {c:>7} {d:>8}  {last}",
                left(name, 20, "…")
            )
        };
        out.push(row(
            "user",
            ["claimed", "SM used", "SM %", "idle"],
            "idle mostly",
        ));
        let said = sharing::sentences(report).into_iter().take(1);
        let said = said.flat_map(|text| wrap(&text, 76, usize::MAX));
        let said: Vec<String> = said.map(|line| format!("  {line}")).collect();
        let most = if said.is_empty() { 8 } else { 4 };
        let shown = most - usize::from(report.users.len() > most);
        for user in report.users.iter().take(shown) {
            let usage = &user.usage;
            let (claimed, used) = (
                hours(usage.claimed_gpu_s),
                maybe_hours(usage.used_gpu_s, usage.estimate),
            );
            let (part, idle) = (average(usage), maybe_hours(usage.idle_gpu_s(), false));
            let cause = usage.idle.main().unwrap_or_default();
            out.push(row(
                self.user(&user.user),
                [&claimed, &used, &part, &idle],
                cause,
            ));
        }
        if report.users.len() > shown {
            out.push(format!("and {} more", report.users.len() - shown));
        }
        let mut section = |title: &str, lines: Vec<String>| {
            if !lines.is_empty() {
                out.extend([String::new(), title.to_owned()]);
                out.extend(lines);
            }
        };
        section(sharing::TITLE, said);
        let worst = report.worst.iter().take(3).map(|held| {
            format!(
                "  {} of {}: {} of {} GPU h idle, {} {}",
                held.id,
                self.user(&held.user),
                maybe_hours(held.usage.idle_gpu_s(), false),
                hours(held.usage.claimed_gpu_s),
                held.cause.as_deref().unwrap_or("cause not known"),
                self.what(held)
            )
        });
        section("Most wasted", worst.collect());
        let changes = self.changes().into_iter().take(3).map(|change| {
            format!(
                "  {}: {} GPU instead of {} frees {} GPU h",
                change.held.id,
                parts(change.needed),
                parts(change.size),
                hours(change.freed())
            )
        });
        section("What a change would do, on average", changes.collect());
        out.truncate(MAIL);
        let lines = out
            .iter()
            .map(|line| left(line, 78, "…").trim_end().to_owned() + "\n");
        lines.collect()
    }
}

#[cfg(test)]
mod tests {
    use gshare_proto::{GpuReport, Idle, UserReport};

    use super::*;

    const HOUR: u64 = 3_600_000;

    fn usage(claimed_h: f64, used_h: f64) -> Usage {
        Usage {
            claimed_gpu_s: claimed_h * 3600.0,
            used_gpu_s: Some(used_h * 3600.0),
            used_known_gpu_s: claimed_h * 3600.0,
            busy_gpu_s: Some(used_h * 3600.0),
            waited_gpu_s: 7200.0,
            idle: Idle {
                kernel: (claimed_h - used_h).max(0.0) * 3600.0,
                ..Idle::default()
            },
            ..Usage::default()
        }
    }

    fn held(id: &str, user: &str, usage: Usage) -> IdleHolding {
        IdleHolding {
            id: id.to_owned(),
            user: user.to_owned(),
            what: "secret <b>thesis</b>.ipynb".to_owned(),
            held_s: 36_000.0,
            usage,
            cause: Some("kernel idle".to_owned()),
            ..IdleHolding::default()
        }
    }

    fn report() -> ReportView {
        let users = ["ada", "bob & co", "cem"].iter().enumerate();
        let users = users.map(|(n, user)| UserReport {
            uid: n as u32,
            user: (*user).to_owned(),
            usage: usage(20.0, 6.0 * n as f64),
            series: (0..168)
                .map(|hour| HistoryPoint {
                    at_ms: hour * HOUR,
                    claimed: if hour % 24 > 8 { 1.0 } else { 0.25 },
                    used: (hour % 24 != 3).then_some((hour % (5 + n as u64)) as f64 * 0.3),
                    waiting: if hour % 24 == 10 { 1.0 } else { 0.0 },
                    ..HistoryPoint::default()
                })
                .collect(),
        });
        ReportView {
            from_ms: 0,
            to_ms: 168 * HOUR,
            step_ms: HOUR,
            known_s: 168.0 * 3600.0,
            gpu_count: 4,
            total: usage(60.0, 18.0),
            gpus: (0..4)
                .map(|gpu| GpuReport {
                    gpu: Some(gpu),
                    usage: usage(15.0, 4.5),
                    ..GpuReport::default()
                })
                .collect(),
            users: users.collect(),
            projects: Vec::new(),
            worst: vec![
                held("c1", "ada", usage(5.0, 0.2)),
                held(
                    "c2",
                    "bob & co",
                    Usage {
                        throttled_gpu_s: 3600.0,
                        ..usage(5.0, 1.0)
                    },
                ),
                held("c3", "cem", usage(3.0, 2.5)),
                held(
                    "c4",
                    "cem",
                    Usage {
                        used_gpu_s: Some(0.0),
                        busy_gpu_s: Some(4.5 * 3600.0),
                        ..usage(5.0, 0.0)
                    },
                ),
            ],
            sharing: Some(sharing::example()),
            ..ReportView::default()
        }
    }

    #[test]
    fn users_are_aliases_until_they_are_asked_for() {
        let report = report();
        for page in [
            Page::new(&report, false).html(),
            Page::new(&report, false).mail(),
        ] {
            for name in ["ada", "bob", "cem", "thesis"] {
                assert!(!page.contains(name), "{name}: {page}");
            }
            assert!(page.contains("user 1") && page.contains("user 3"), "{page}");
        }
        let named = Page::new(&report, true);
        assert!(named.html().contains("bob &amp; co") && named.html().contains("&lt;b&gt;thesis"));
        assert!(named.mail().contains("bob & co") && named.mail().contains("thesis"));
    }

    #[test]
    fn the_page_is_one_file_without_scripts_and_every_figure_is_the_reports() {
        let report = report();
        let html = Page::new(&report, false).html();
        for part in ["<script", "http://", "https://", "src=", "url(", "@import"] {
            assert!(!html.contains(part), "{part}");
        }
        assert!(html.contains("default-src 'none'") && html.contains("prefers-color-scheme:dark"));
        for figure in [
            "<b>60.0</b>claimed",
            "<b>18.0</b>SM used",
            "<b>30 %</b>",
            "<b>42.0</b>idle",
            "<b>2.0</b>waited",
        ] {
            assert!(html.contains(figure), "{figure}");
        }
        assert_eq!(html.matches("<tr><td>GPU ").count(), 4);
        assert_eq!(html.matches("<svg").count(), html.matches("</svg>").count());
        // Moments with unknown use must not be drawn as unused.
        let page = Page::new(&report, false);
        let unknown = HistoryPoint {
            claimed: 1.0,
            ..HistoryPoint::default()
        };
        let chart = page.chart(&[unknown], 100.0, 1.0);
        let drawn = |colour: &str| format!("V0.0h3.57V100.0z\" fill=\"var(--{colour})\"");
        assert!(
            chart.contains(&drawn("unknown")) && !chart.contains(&drawn("claimed")),
            "{chart}"
        );
        assert!(
            html.contains("Suppose each program had claimed its own peak plus 10 %. Then 14 runs would have held 1.5 \
                to 3.0 GPU h")
                && html.contains("<tr><td>user 1<td>9<td class=\"more\">1.0 to 2.5<td>0 to 2<td"),
            "{html}"
        );
        let empty = Page::new(&ReportView::default(), false).html();
        assert!(
            empty.contains("Nobody claimed anything") && !empty.contains("NaN"),
            "{empty}"
        );
        if let Some(path) = std::env::var_os("GSHARE_TEST_REPORT") {
            std::fs::write(path, html).unwrap();
        }
    }

    /// These pages as a browser draws them, phone and desktop wide, on a light or a dark page; none without a
    /// browser.
    fn seen_in_a_browser(pages: &[String], dark: bool) -> Option<String> {
        let dir = tempfile::tempdir().unwrap();
        let mut harness = "<!doctype html><meta charset=\"utf-8\">".to_owned();
        for page in pages {
            // The page itself allows no script; this one is outside it.
            let (head, rest) = page.split_once("<meta http-equiv").unwrap();
            let (_, rest) = rest.split_once('>').unwrap();
            for width in [390, 1200] {
                let page = safe(&format!("{head}{rest}"));
                let _ = write!(
                    harness,
                    "<iframe width=\"{width}\" height=\"900\" style=\"border:0\" srcdoc=\"{page}\"></iframe>"
                );
            }
        }
        let script = include_str!("../../../tests/support/page.js");
        let _ = write!(harness, "<pre id=\"said\"></pre><script>{script}</script>");
        let file = dir.path().join("harness.html");
        std::fs::write(&file, harness).unwrap();
        let profile = dir.path().join("profile");
        let found = std::process::Command::new("chromium")
            .args([
                "--headless",
                "--no-sandbox",
                "--disable-gpu",
                "--window-size=1300,1000",
            ])
            .args(["--virtual-time-budget=5000", "--dump-dom"])
            .arg(format!(
                "--blink-settings=preferredColorScheme={}",
                i32::from(!dark)
            ))
            .arg(format!("--user-data-dir={}", profile.display()))
            .arg(file)
            .output();
        let found = match found {
            Ok(found) => found,
            Err(why) => {
                println!("skipped: the page of a report is not looked at: chromium: {why}");
                return None;
            }
        };
        let text = String::from_utf8_lossy(&found.stdout).into_owned();
        let said = text.split("<pre id=\"said\">").nth(1);
        let said = said.and_then(|said| said.split("</pre>").next());
        let said = said.filter(|said| !said.is_empty()).map(str::to_owned);
        Some(said.unwrap_or_else(|| panic!("{text}{}", String::from_utf8_lossy(&found.stderr))))
    }

    #[test]
    fn a_browser_draws_the_page_within_its_width_and_with_contrast() {
        let mut report = report();
        report.users[1].user = "maximilian.von-der-lauterbach".to_owned();
        report.worst[1].user = report.users[1].user.clone();
        report.total.claimed_gpu_s *= 40.0;
        let pages = [false, true].map(|names| Page::new(&report, names).html());
        for (dark, behind) in [(false, "rgb(255, 255, 255)"), (true, "rgb(16, 21, 28)")] {
            let Some(said) = seen_in_a_browser(&pages, dark) else {
                return;
            };
            println!("{said}");
            assert!(!said.contains("WRONG"), "{said}");
            for width in ["390", "1200"] {
                let line = format!("{width} on {behind}: ");
                assert_eq!(said.matches(&line).count(), pages.len(), "{said}");
            }
        }
    }

    #[test]
    fn only_a_claim_that_was_neither_throttled_nor_full_is_told_a_smaller_size() {
        let report = report();
        let page = Page::new(&report, false);
        let changes = page.changes();
        // c2 was throttled, c3 used nearly all of its size, c4 in GPU time.
        let told: Vec<&str> = changes.iter().map(|c| c.held.id.as_str()).collect();
        assert_eq!(told, ["c1"]);
        assert_eq!(
            (parts(changes[0].needed), parts(changes[0].size)),
            ("0.05".to_owned(), "0.50".to_owned())
        );
        assert_eq!(hours(changes[0].freed()), "4.5");
        let text = page.advice().join("\n");
        assert!(
            text.contains("Users waited for 2.0 GPU h of capacity, while 42.0 GPU h of claimed capacity were idle"),
            "{text}"
        );
        assert!(text.contains("at most 2.0 GPU h"), "{text}");
    }

    #[test]
    fn a_mail_has_25_lines_at_most() {
        let mut report = report();
        let one = report.users[0].clone();
        report.users.extend((0..40).map(|n| UserReport {
            user: format!("x{n}"),
            ..one.clone()
        }));
        let claim = report.worst[0].clone();
        report.worst.extend(vec![claim; 9]);
        let mail = Page::new(&report, true).mail();
        let words = mail.split_whitespace().collect::<Vec<_>>().join(" ");
        assert!(words.contains("idle, 2.0 waited for user "), "{mail}");
        let said = &sharing::sentences(&report)[0];
        assert!(words.contains(said), "{mail}");
        assert!(mail.lines().count() <= MAIL, "{mail}");
        assert!(mail.lines().all(|l| l.chars().count() <= 78), "{mail}");
        assert!(
            mail.contains("and 40 more") && mail.contains("c1: 0.05 GPU instead of 0.50"),
            "{mail}"
        );
    }
}
