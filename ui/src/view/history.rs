//! Used against claimed over time: a chart, the users, why claims idled, the hours of the week, and what was wasted most.

use gshare_proto::{HistoryPoint, HistorySeries, HistoryView, Snapshot, Usage};
use ratatui::layout::{Constraint, Layout, Rect};
use ratatui::text::{Line, Span as Words};
use ratatui::widgets::Widget;

use super::{Row, Scene, chosen, fit, span, window};
use crate::model::{Model, RowKey, Section, Span};
use crate::text::{Clock, hours, percent, width};
use crate::theme::Look;
use crate::widgets::bullet::Bullet;
use crate::widgets::columns::{Column, row, total};
use crate::widgets::heat::{self, Week};
use crate::widgets::over_time::{Moment, OverTime, per_cell};
use crate::widgets::spark::spark;

pub(super) fn draw(
    model: &Model,
    snapshot: &Snapshot,
    look: &Look,
    area: Rect,
    scene: &mut Scene<'_>,
) {
    let why = match &model.past.view {
        Some(Ok(view)) => return recorded(model, view, look, area, scene),
        Some(Err(why)) => why.clone(),
        None => match model.service() {
            Ok(()) => "asking the service what it recorded".to_owned(),
            Err(why) => why,
        },
    };
    last_minutes(snapshot, why, look, area, scene);
}

/// Without a record: the last ten minutes of each GPU, which come with every snapshot.
fn last_minutes(snapshot: &Snapshot, why: String, look: &Look, area: Rect, scene: &mut Scene<'_>) {
    let theme = &look.theme;
    let title = "LAST TEN MINUTES  SM activity, where it is known";
    let mut out = vec![
        Line::styled(why, theme.strong),
        Line::styled(title, theme.heading),
    ];
    let names = snapshot.gpus.iter().map(|g| width(&g.short) + 4).max();
    let names = names.unwrap_or(0);
    let cols = usize::from(area.width).saturating_sub(names + 2).min(60);
    for gpu in &snapshot.gpus {
        let name = format!("{} {}", gpu.index, gpu.short);
        out.push(Line::from(vec![
            span(crate::text::left(&name, names, &look.glyphs), theme.text),
            span(spark(&gpu.history, cols, &look.glyphs), theme.used),
        ]));
    }
    scene.rows(super::plain(out), area, look);
}

/// The series of the chosen user, else of the whole machine.
fn shown(model: &Model) -> (String, Option<&HistorySeries>) {
    if let Some(RowKey::User(uid)) = model.current() {
        let users = model.past.users();
        if let Some(user) = users.into_iter().find(|u| u.uid == Some(*uid)) {
            return (user.label.clone(), Some(user));
        }
    }
    ("everybody".to_owned(), model.past.all())
}

/// Rows of a list of claims at most.
const WORST: usize = 5;

fn recorded(model: &Model, view: &HistoryView, look: &Look, area: Rect, scene: &mut Scene<'_>) {
    let users = model.past_rows();
    let worst = model.past.worst();
    let room = usize::from(area.height);
    // The chart takes what the users and the claims leave, and is worth more than the last of them.
    let beside = area.width >= 110 && view.heat.is_some();
    let below = [users.len() + 4, worst.len().min(WORST) + 1];
    let week = usize::from(heat::SIZE.1);
    let mut table = below[0].min((room / 3).max(3));
    if beside && room >= 30 {
        table = table.max(week);
    }
    let worst_rows = match (worst.is_empty(), room.saturating_sub(table + 8)) {
        (true, _) | (_, 0..2) => 0,
        (false, spare) => below[1].min(spare),
    };
    let week_rows = match view.heat {
        Some(_) if !beside && room >= table + worst_rows + week + 9 => week,
        _ => 0,
    };
    let rest = room.saturating_sub(table + worst_rows + week_rows + 1);
    let chart = rest.clamp(2, 30);
    let size = |n: usize| Constraint::Length(u16::try_from(n).unwrap_or(u16::MAX));
    let sizes = [1, chart, table, worst_rows, week_rows].map(size);
    let [head, plot, sums, claims, hours_at] = Layout::vertical(sizes).areas(area);
    let (who, series) = shown(model);
    scene.line(&title(model, &who, look, area.width.into()), head);
    draw_chart(model, view, series, look, plot, scene);
    let columns = [Constraint::Fill(1), Constraint::Length(heat::SIZE.0)];
    let [left, right] = match beside && table >= week {
        true => Layout::horizontal(columns).spacing(2).areas(sums),
        false => [sums, hours_at],
    };
    let rows = table_rows(model, &users, look, left.width.into(), left.height.into());
    scene.rows(rows, left, look);
    if let Some(heat) = view.heat.as_ref().filter(|_| !right.is_empty()) {
        Week { heat, look }.render(right, scene.buf);
    }
    let (theme, glyphs) = (&look.theme, &look.glyphs);
    let mut lines = vec![Line::styled("MOST WASTED", theme.heading)];
    for claim in worst {
        let idle = hours(claim.usage.idle.total());
        let held = hours(claim.usage.claimed_gpu_s);
        let cause = claim.cause.as_deref().unwrap_or("cause not known");
        lines.push(Line::from(vec![
            span(format!("{} {} ", glyphs.sign, claim.id), theme.warn),
            span(format!("{} {}", claim.user, claim.what), theme.text),
            span(
                format!("  {idle} GPU h idle of {held}: {cause}"),
                theme.strong,
            ),
        ]));
    }
    scene.rows(super::plain(lines), claims, look);
}

fn title(model: &Model, who: &str, look: &Look, cols: usize) -> Line<'static> {
    let (theme, glyphs) = (&look.theme, &look.glyphs);
    let mut spans = vec![span(format!("GPUS IN USE of {who}  "), theme.heading)];
    for each in Span::ALL {
        let (text, style) = if each == model.past.span {
            (format!("[{}]", each.name()), theme.focus)
        } else {
            (format!(" {} ", each.name()), theme.dim)
        };
        spans.push(span(text, style));
    }
    let signs = [
        (glyphs.used, "used", theme.used),
        (glyphs.burst, "burst", theme.burst),
        (
            if glyphs.lines { "⠒" } else { glyphs.free },
            "claimed",
            theme.dim,
        ),
        (glyphs.levels[2], "waited for", theme.text),
        (glyphs.dash, "not known", theme.dim),
    ];
    for (sign, word, style) in signs {
        let more = [span(format!("  {sign} "), style), span(word, theme.dim)];
        let taken = crate::text::span_width(&spans) + crate::text::span_width(&more);
        if taken <= cols {
            spans.extend(more);
        }
    }
    fit(Line::from(spans), cols, look)
}

/// The points of a series, by the columns of a chart.
pub(super) fn moments(
    points: &[HistoryPoint],
    view: &HistoryView,
    cols: usize,
    of: impl Fn(&HistoryPoint) -> (f64, Option<f64>, f64),
) -> Vec<Option<Moment>> {
    let length = view.to_ms.saturating_sub(view.from_ms).max(1);
    let mut sums: Vec<(f64, f64, Option<f64>, f64)> = vec![(0.0, 0.0, Some(0.0), 0.0); cols];
    let step = view.step_ms.max(1);
    for point in points {
        // A point may be wider than a column, or the other way round.
        let from = point.at_ms.saturating_sub(view.from_ms);
        let column = |ms: u64| (ms as f64 / length as f64 * cols as f64) as usize;
        let first = column(from).min(cols.saturating_sub(1));
        let last = column(from + step - 1).min(cols.saturating_sub(1));
        for sum in sums.iter_mut().take(last + 1).skip(first) {
            sum.0 += 1.0;
            let (claimed, used, waiting) = of(point);
            sum.1 += claimed;
            sum.2 = sum.2.zip(used).map(|(a, b)| a + b);
            sum.3 += waiting;
        }
    }
    let moment = |(n, claimed, used, waiting): (f64, f64, Option<f64>, f64)| {
        (n > 0.0).then(|| Moment {
            claimed: claimed / n,
            used: used.map(|u| u / n),
            waiting: waiting / n,
        })
    };
    sums.into_iter().map(moment).collect()
}

/// Columns before the chart.
const AXIS: usize = 4;

/// Times at round hours (or days), the column of each, so that none touches another.
fn ticks(view: &HistoryView, clock: Clock, cols: usize) -> Vec<(usize, String)> {
    let length = view.to_ms.saturating_sub(view.from_ms).max(1);
    let minutes = [1, 2, 5, 10, 30, 60, 180, 360, 720, 1440, 2880];
    let far = |m: &u64| m * 60_000 * cols as u64 / length >= 12;
    let step = minutes.into_iter().find(far).unwrap_or(2880) * 60_000;
    let east = i64::from(clock.offset_s) * 1000;
    let local = i64::try_from(view.from_ms).unwrap_or(0) + east;
    let first = (local.max(0) as u64).div_ceil(step) * step;
    let at = |n: u64| (first + n * step).saturating_add_signed(-east);
    let times = (0..40).map(at).take_while(|ms| *ms < view.to_ms);
    let column = |ms: u64| (ms.saturating_sub(view.from_ms) * cols as u64 / length) as usize;
    let mut out: Vec<(usize, String)> = Vec::new();
    for ms in times {
        let text = clock.short_time(ms);
        let text = text
            .strip_suffix(" 00:00")
            .map_or(text.clone(), str::to_owned);
        if column(ms) + width(&text) + 5 <= cols {
            out.push((column(ms), text));
        }
    }
    out.push((cols.saturating_sub(3), "now".to_owned()));
    out
}

fn draw_chart(
    model: &Model,
    view: &HistoryView,
    series: Option<&HistorySeries>,
    look: &Look,
    area: Rect,
    scene: &mut Scene<'_>,
) {
    let (theme, glyphs) = (&look.theme, &look.glyphs);
    let cols = usize::from(area.width).saturating_sub(AXIS + 1).min(180);
    let points = series.map(|s| s.points.as_slice()).unwrap_or_default();
    // A service that is young opens on the time that it knows.
    let known = model.past.all().and_then(|s| s.points.first());
    let known = known.map_or(view.from_ms, |p| p.at_ms.max(view.from_ms));
    let young = (view.to_ms - known.min(view.to_ms)) * 4 < view.to_ms.saturating_sub(view.from_ms);
    let view = &HistoryView {
        from_ms: if young { known } else { view.from_ms },
        to_ms: view.to_ms,
        step_ms: view.step_ms,
        gpu_count: view.gpu_count,
        ..HistoryView::default()
    };
    let moments = moments(points, view, cols * per_cell(look), |p| {
        (p.claimed, p.used, p.waiting)
    });
    let waited = moments.iter().flatten().any(|m| m.waiting > 0.0);
    let below = 1 + u16::from(waited && area.height >= 6);
    let plot = Rect {
        x: area.x + AXIS as u16,
        width: u16::try_from(cols).unwrap_or(u16::MAX),
        height: area.height.saturating_sub(below),
        ..area
    };
    let top = f64::from(view.gpu_count.max(1));
    OverTime {
        moments: &moments,
        top,
        look,
    }
    .render(plot, scene.buf);
    // A figure and a line at whole GPUs, as many as have rows.
    let each = (view.gpu_count.max(1) as usize).div_ceil((usize::from(plot.height) / 2).max(1));
    for gpus in (0..=view.gpu_count as usize).step_by(each.max(1)) {
        let up = (gpus as f64 / top * f64::from(plot.height)) as u16;
        let y = (plot.bottom().saturating_sub(1))
            .saturating_sub(up)
            .max(plot.y);
        let row = Rect {
            y,
            height: 1,
            ..area
        };
        scene.line(&Line::styled(format!("{gpus:>3} "), theme.dim), row);
        for x in plot.x..plot.right().min(scene.buf.area.right()) {
            let cell = &mut scene.buf[(x, y)];
            if gpus > 0 && cell.symbol() == " " && glyphs.lines {
                cell.set_symbol("┈").set_style(theme.free);
            }
        }
    }
    let mut y = plot.bottom();
    if below > 1 {
        let level = |m: Option<Moment>| m.map(|m| (m.waiting / top * 100.0) as f32);
        let levels: Vec<Option<f32>> = moments
            .iter()
            .step_by(per_cell(look))
            .map(|m| level(*m).filter(|l| *l > 0.0))
            .collect();
        let line = Line::from(vec![
            span("wait", theme.dim),
            span(spark(&levels, cols, glyphs), theme.text),
        ]);
        scene.line(
            &line,
            Rect {
                y,
                height: 1,
                ..area
            },
        );
        y += 1;
    }
    let mut axis = String::new();
    for (at, text) in ticks(view, model.clock, cols) {
        let gap = at.saturating_sub(width(&axis));
        if gap > 0 || axis.is_empty() {
            axis = format!("{axis}{}{text}", " ".repeat(gap));
        }
    }
    let axis = Line::styled(format!("    {axis}"), theme.dim);
    scene.line(
        &axis,
        Rect {
            y,
            height: 1,
            ..area
        },
    );
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Col {
    User,
    Claimed,
    Used,
    Average,
    Idle,
    Waited,
    Why,
}

fn cell(col: Col, label: &str, usage: &Usage, look: &Look) -> String {
    let dash = || look.glyphs.dash.to_owned();
    let about = if usage.estimate { "~" } else { "" };
    match col {
        Col::User => label.to_owned(),
        Col::Claimed => hours(usage.claimed_gpu_s),
        Col::Used => usage
            .used_gpu_s
            .map_or_else(dash, |s| format!("{about}{}", hours(s))),
        Col::Average => usage
            .average_use()
            .map_or_else(dash, |p| format!("{about}{}%", percent(p))),
        Col::Idle => usage.idle_gpu_s().map_or_else(dash, hours),
        Col::Waited => hours(usage.waited_gpu_s),
        Col::Why => usage.idle.main().unwrap_or_default().to_owned(),
    }
}

/// Users with their sums in GPU hours, the whole machine last.
fn table_rows(
    model: &Model,
    users: &[&HistorySeries],
    look: &Look,
    cols: usize,
    rows: usize,
) -> Vec<Row> {
    let (theme, glyphs) = (&look.theme, &look.glyphs);
    // Users for whom there is no row are counted in the last one.
    // The causes have the last row where there is one.
    let causes = usize::from(rows >= users.len() + 4);
    let room = rows.saturating_sub(2 + causes);
    let everybody = match users.len() > room {
        true if cols < 70 => format!("all {}", users.len()),
        true => format!("all {} users", users.len()),
        false => "everybody".to_owned(),
    };
    let names = users.iter().map(|u| width(&u.label));
    let names = names.chain([width(&everybody)]).max().unwrap_or(0);
    let mut columns = vec![
        Column::words(Col::User, "GPU HOURS", names.clamp(9, 14)),
        Column::figures(Col::Claimed, "claimed", 8),
        Column::figures(Col::Used, "used", 7),
        Column::figures(Col::Average, "average", 8),
        Column::figures(Col::Idle, "idle", 7),
        Column::figures(Col::Waited, "waited", 7),
    ];
    if total(&columns) + 14 <= cols {
        columns.push(Column::words(Col::Why, " idle mostly", 13));
    }
    let bar = cols.saturating_sub(total(&columns) + 2);
    let bar = if bar >= 12 { bar.min(60) } else { 0 };
    let mut out = vec![Row::from(fit(
        row(&columns, glyphs, |c| (c.title.to_owned(), theme.heading)),
        cols,
        look,
    ))];
    // One scale for all users, on which the largest use has room as well as the largest claim.
    let most = |u: &&HistorySeries| u.usage.claimed_gpu_s.max(u.usage.used_gpu_s.unwrap_or(0.0));
    let whole = users.iter().map(most).fold(1.0, f64::max);
    let line = |label: &str, usage: &Usage, bar: usize| {
        let mut line = row(&columns, glyphs, |c| {
            let text = cell(c.key, label, usage, look);
            let text = if c.key == Col::Why {
                format!(" {text}")
            } else {
                text
            };
            let dim = matches!(c.key, Col::Why | Col::Waited);
            (text, if dim { theme.dim } else { theme.text })
        });
        if bar > 0 {
            line.push_span(Words::raw("  "));
            let bullet = Bullet {
                used: usage.used_gpu_s,
                claim: usage.claimed_gpu_s,
                whole,
            };
            line.spans.extend(bullet.spans(bar, look));
        }
        fit(line, cols, look)
    };
    for user in &users[window(users.len(), room, model.chosen_index(Section::Users))] {
        let Some(uid) = user.uid else { continue };
        let key = RowKey::User(uid);
        let line = line(&user.label, &user.usage, bar);
        let line = if model.current() == Some(&key) {
            chosen(line, cols, look)
        } else {
            line
        };
        out.push(Row::of(line, Section::Users, key));
    }
    if let Some(all) = model.past.all() {
        // Their bars are on another scale, so the sum has none.
        out.push(line(&everybody, &all.usage, 0).into());
        if causes > 0 {
            out.push(fit(idle_by(&all.usage, look, cols), cols, look).into());
        }
    }
    out
}

/// Why claims idled: one bar, and the causes with their hours in its order.
fn idle_by(usage: &Usage, look: &Look, cols: usize) -> Line<'static> {
    let (theme, glyphs) = (&look.theme, &look.glyphs);
    let mut parts: Vec<_> = usage
        .idle
        .parts()
        .into_iter()
        .filter(|(_, s)| *s > 0.0)
        .collect();
    parts.sort_by(|a, b| b.1.total_cmp(&a.1));
    let total = usage.idle.total();
    let mut line = Line::from(span("idle by ", theme.dim));
    let cells = (cols / 4).clamp(8, 40) as f64;
    let signs = [
        (glyphs.used, theme.text),
        (glyphs.unused, theme.text),
        (glyphs.burst, theme.text),
        (glyphs.free, theme.text),
        (glyphs.dash, theme.dim),
    ];
    for ((_, s), (sign, style)) in parts.iter().zip(signs) {
        let n = (s / total * cells).round().max(1.0) as usize;
        line.push_span(span(sign.repeat(n), style));
    }
    for ((name, s), (sign, style)) in parts.iter().zip(signs) {
        line.push_span(span(format!("  {sign} "), style));
        line.push_span(span(format!("{name} {}", hours(*s)), theme.dim));
    }
    line
}
