//! Allocated against used over time: a chart, the users, and the hours of the week.

use gshare_proto::{HistoryPoint, HistorySeries, HistoryView, Snapshot, Usage};
use ratatui::text::{Line, Span as Words};

use super::{Plan, Row, chosen, fit, span, window};
use crate::model::{Model, RowKey, Section, Span};
use crate::text::{hours, percent, width};
use crate::theme::Look;
use crate::widgets::bullet::Bullet;
use crate::widgets::columns::{Column, row, total};
use crate::widgets::heat;
use crate::widgets::over_time::{Moment, OverTime};
use crate::widgets::spark::spark;

/// The history in `room` rows.
pub(super) fn rows(
    model: &Model,
    snapshot: &Snapshot,
    look: &Look,
    plan: &Plan,
    room: usize,
) -> Vec<Row> {
    match &model.past.view {
        Some(Ok(view)) => recorded(model, view, look, plan, room),
        Some(Err(why)) => last_minutes(snapshot, why, look, plan, room),
        None => {
            let why = match model.service() {
                Ok(()) => "asking the service what it recorded".to_owned(),
                Err(why) => why,
            };
            last_minutes(snapshot, &why, look, plan, room)
        }
    }
}

/// Without a record: the last ten minutes of each GPU, which come with every snapshot.
fn last_minutes(snapshot: &Snapshot, why: &str, look: &Look, plan: &Plan, room: usize) -> Vec<Row> {
    let theme = &look.theme;
    let words = |text: String, style| Row::from(fit(Line::styled(text, style), plan.width, look));
    let mut out = vec![
        words(why.to_owned(), theme.strong),
        words(
            "LAST TEN MINUTES  SM activity, where it is known".to_owned(),
            theme.heading,
        ),
    ];
    let names = snapshot.gpus.iter().map(|g| width(&g.short) + 4).max();
    let cols = plan.width.saturating_sub(names.unwrap_or(0) + 2).min(60);
    for gpu in snapshot.gpus.iter().take(room.saturating_sub(2)) {
        let name = format!("{} {}", gpu.index, gpu.short);
        let line = Line::from(vec![
            span(
                crate::text::left(&name, names.unwrap_or(0), &look.glyphs),
                theme.text,
            ),
            span(spark(&gpu.history, cols, &look.glyphs), theme.used),
        ]);
        out.push(fit(line, plan.width, look).into());
    }
    out
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

fn recorded(model: &Model, view: &HistoryView, look: &Look, plan: &Plan, room: usize) -> Vec<Row> {
    let users = model.past_rows();
    // The chart takes what the users and the hours leave.
    let user_rows = (users.len() + 2).min((room / 3).max(3));
    let heat_rows = heat::rows(plan.width);
    let heat_rows = match view.heat {
        Some(_) if room >= user_rows + heat_rows + 8 => heat_rows,
        Some(_) if room >= user_rows + 2 + 6 => 2,
        _ => 0,
    };
    let chart = room.saturating_sub(user_rows + heat_rows + 2).clamp(2, 16);
    let (who, series) = shown(model);
    let mut out = vec![title(model, &who, look, plan)];
    out.extend(draw(model, view, series, look, plan, chart));
    out.extend(table(model, &users, look, plan, user_rows));
    if let Some(heat) = view.heat.as_ref().filter(|_| heat_rows > 0) {
        let lines = heat::lines(heat, plan.width, heat_rows, look);
        out.extend(
            lines
                .into_iter()
                .map(|l| Row::from(fit(l, plan.width, look))),
        );
    }
    out.truncate(room);
    out
}

fn title(model: &Model, who: &str, look: &Look, plan: &Plan) -> Row {
    let (theme, glyphs) = (&look.theme, &look.glyphs);
    let mut spans = vec![span(format!("GPUs of {who}  "), theme.heading)];
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
        (glyphs.unused, "unused", theme.unused),
        (glyphs.dash, "use not known", theme.dim),
    ];
    for (sign, word, style) in signs {
        let more = [span(format!("  {sign}"), style), span(word, theme.dim)];
        let taken = crate::text::span_width(&spans) + crate::text::span_width(&more);
        if taken <= plan.width {
            spans.extend(more);
        }
    }
    fit(Line::from(spans), plan.width, look).into()
}

/// The points of a series, by the columns of a chart.
fn moments(points: &[HistoryPoint], view: &HistoryView, cols: usize) -> Vec<Option<Moment>> {
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
            sum.1 += point.claimed;
            sum.2 = sum.2.zip(point.used).map(|(a, b)| a + b);
            sum.3 += point.waiting;
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

fn draw(
    model: &Model,
    view: &HistoryView,
    series: Option<&HistorySeries>,
    look: &Look,
    plan: &Plan,
    rows: usize,
) -> Vec<Row> {
    const AXIS: usize = 4;
    let cols = plan.width.saturating_sub(AXIS + 1).min(180);
    let points = series.map(|s| s.points.as_slice()).unwrap_or_default();
    let chart = OverTime {
        moments: moments(points, view, cols),
        top: f64::from(view.gpu_count.max(1)),
    };
    let theme = &look.theme;
    let mut out: Vec<Row> = Vec::new();
    for (i, line) in chart.lines(rows, look).into_iter().enumerate() {
        let label = match i {
            0 => format!("{:>3} ", view.gpu_count),
            _ if i + 1 == rows => "  0 ".to_owned(),
            _ => " ".repeat(AXIS),
        };
        let mut spans = vec![span(label, theme.dim)];
        spans.extend(line.spans);
        out.push(fit(Line::from(spans), plan.width, look).into());
    }
    // When it was, at the edges and in the middle.
    let at = |part: f64| {
        let ms = view.from_ms as f64 + part * view.to_ms.saturating_sub(view.from_ms) as f64;
        model.clock.short_time(ms as u64)
    };
    let (left, middle, right) = (at(0.0), at(0.5), at(1.0));
    let first = (cols / 2).saturating_sub(width(&left) + width(&middle) / 2);
    let used = width(&left) + first + width(&middle);
    let second = cols.saturating_sub(used + width(&right));
    let axis = format!(
        "{}{left}{}{middle}{}{right}",
        " ".repeat(AXIS),
        " ".repeat(first),
        " ".repeat(second)
    );
    out.push(fit(Line::styled(axis, theme.dim), plan.width, look).into());
    out
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Col {
    User,
    Claimed,
    Used,
    Average,
    Idle,
    Borrowed,
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
        Col::Borrowed => usage.borrowed().map_or_else(dash, hours),
        Col::Waited => hours(usage.waited_gpu_s),
        Col::Why => usage.idle.main().unwrap_or_default().to_owned(),
    }
}

/// Users with their sums in GPU hours, the whole machine last.
fn table(
    model: &Model,
    users: &[&HistorySeries],
    look: &Look,
    plan: &Plan,
    rows: usize,
) -> Vec<Row> {
    let (theme, glyphs) = (&look.theme, &look.glyphs);
    // Users for whom there is no row are counted in the last one.
    let room = rows.saturating_sub(2);
    let everybody = match users.len() > room {
        true if plan.width < 70 => format!("all {}", users.len()),
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
        Column::figures(Col::Borrowed, "above", 7),
        Column::figures(Col::Waited, "waited", 7),
    ];
    if total(&columns) + 14 <= plan.width {
        columns.push(Column::words(Col::Why, " idle because", 13));
    }
    let bar = plan.width.saturating_sub(total(&columns) + 2);
    let bar = if bar >= 12 { bar.min(60) } else { 0 };
    let mut out = vec![Row::from(fit(
        row(&columns, glyphs, |c| (c.title.to_owned(), theme.heading)),
        plan.width,
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
            let dim = matches!(c.key, Col::Why | Col::Borrowed | Col::Waited);
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
        fit(line, plan.width, look)
    };
    for user in &users[window(users.len(), room, model.chosen_index(Section::Users))] {
        let Some(uid) = user.uid else { continue };
        let key = RowKey::User(uid);
        let line = line(&user.label, &user.usage, bar);
        let line = if model.current() == Some(&key) {
            chosen(line, plan.width, look)
        } else {
            line
        };
        out.push(Row::of(line, Section::Users, key));
    }
    if let Some(all) = model.past.all() {
        // Their bars are on another scale, so the sum has none.
        out.push(line(&everybody, &all.usage, 0).into());
    }
    out
}
