//! Used and claimed over time: a chart, the users, causes of idleness, the hours of the week, and the most wasteful
//! claims.

use gshare_proto::{
    Heat, HistoryBy, HistoryPoint, HistorySeries, HistoryView, IdleHolding, Usage, messages,
};
use ratatui::layout::{Constraint, Layout, Rect};
use ratatui::text::Line;
use ratatui::widgets::{Row as Cells, Table, Widget};

use super::{Scene, View, below, cells, columns, line, notes, span, window};
use crate::model::{Model, RowKey, Section, Span, young};
use crate::text::{about, hours, percent, width};
use crate::widgets::bullet::Bullet;
use crate::widgets::heat::{self, Week};
use crate::widgets::over_time::{Moment, OverTime, per_cell};
use crate::widgets::spark::spark;

pub(super) fn draw(view: &View<'_>, area: Rect, scene: &mut Scene<'_>) {
    let why = match &view.model.past.view {
        Some(Ok(past)) => return recorded(view, past, area, scene),
        Some(Err(why)) => why.clone(),
        None => match view.model.service() {
            Ok(()) => messages::asking_for_history(),
            Err(why) => why,
        },
    };
    // Without a record: the last ten minutes of each GPU, from the snapshot.
    let title = "LAST TEN MINUTES  SM activity, where it is known";
    let head = vec![line!(view; strong why), line!(view; heading title)];
    scene.rows(head, area);
    let gpus = &view.snapshot.gpus;
    let names = gpus.iter().map(|g| width(&g.short) + 4).max();
    let names = cells(names.unwrap_or(0));
    for (gpu, at) in gpus.iter().zip(area.rows().skip(2)) {
        let name = format!("{} {}", gpu.index, gpu.short);
        scene.line(line!(view; text name), at, 0);
        let plot = spark(&gpu.history, 1, view.look);
        plot.render(columns(at, names, 60), scene.buf);
    }
}

/// The series of the chosen user, otherwise of the whole machine.
fn shown(model: &Model) -> (String, Option<&HistorySeries>) {
    if let Some(RowKey::User(uid)) = model.current() {
        let users = model.past.users();
        if let Some(user) = users.into_iter().find(|u| u.uid == Some(*uid)) {
            return (user.label.clone(), Some(user));
        }
    }
    ("everybody".to_owned(), model.past.all())
}

/// Less idle time, and its cause, is not shown: it would read `<0.01` GPU hours.
const LITTLE_S: f64 = 18.0;

const WORST: usize = 5;

fn recorded(view: &View<'_>, past: &HistoryView, area: Rect, scene: &mut Scene<'_>) {
    let (model, look) = (view.model, view.look);
    let users = model.past_rows();
    let wasted = |c: &&IdleHolding| c.usage.idle.total() >= LITTLE_S;
    let worst: Vec<&IdleHolding> = model.past.worst().iter().filter(wasted).collect();
    let room = usize::from(area.height);
    // The chart gets the rows that users and claims leave, and displaces the last of them if there are too few. A
    // week with less than a day of data is not shown.
    let known = |heat: &&Heat| heat.claimed.iter().flatten().flatten().count();
    let heat = past.heat.as_ref().filter(|heat| known(heat) >= 24);
    let beside = area.width >= 110 && heat.is_some();
    let week = usize::from(heat::SIZE.1);
    let mut table = (users.len() + 4).min((room / 3).max(3));
    if beside && room >= 30 {
        table = table.max(week);
    }
    let worst_rows = match (worst.is_empty(), room.saturating_sub(table + 8)) {
        (true, _) | (_, 0..2) => 0,
        (false, spare) => spare.min(worst.len().min(WORST) + 1),
    };
    let week_rows = match heat {
        Some(_) if !beside && room >= table + worst_rows + week + 9 => week,
        _ => 0,
    };
    let chart = room.saturating_sub(table + worst_rows + week_rows + 1);
    let chart = chart.max(2);
    let sizes = [1, chart, table, worst_rows, week_rows];
    let sizes = sizes.map(|n| Constraint::Length(cells(n)));
    let [head, plot, sums, claims, hours_at] = Layout::vertical(sizes).areas(area);
    let (who, series) = shown(model);
    scene.rows([title(view, &who, area.width.into())], head);
    let split = split(view, &users);
    match split.is_empty() {
        true => draw_chart(view, past, (series, past.gpu_count), plot, scene),
        false => draw_split(view, past, &split, plot, scene),
    }
    let columns = [Constraint::Fill(1), Constraint::Length(heat::SIZE.0)];
    let [left, right] = match beside && table >= week {
        true => Layout::horizontal(columns).spacing(2).areas(sums),
        false => [sums, hours_at],
    };
    draw_users(view, &users, left, scene);
    if let Some(heat) = heat.filter(|_| !right.is_empty()) {
        Week { heat, look }.render(right, scene.buf);
    }
    let mut lines = vec![line!(view; heading "MOST WASTED")];
    for claim in worst {
        let idle = hours(claim.usage.idle.total());
        let held = hours(claim.usage.claimed_gpu_s);
        let cause = claim.cause.as_deref().unwrap_or("cause not known");
        let advice = notes::advice_on(view.snapshot, &claim.id);
        lines.push(line!(view;
            warn format!("{} ", view.glyphs.sign),
            text format!("{} {} {}", claim.id, claim.user, claim.what),
            strong format!("  {idle} GPU h idle of {held}: {cause}  "),
            key advice.unwrap_or_default(),
        ));
    }
    scene.rows(lines, claims);
}

/// The whole machine over time, on other screens.
pub(super) fn chart(view: &View<'_>, area: Rect, scene: &mut Scene<'_>) {
    if let Some(Ok(past)) = &view.model.past.view {
        let title = title(view, "everybody", area.width.into());
        scene.rows([title], area);
        let all = (view.model.past.all(), past.gpu_count);
        draw_chart(view, past, all, below(area, 1), scene);
    }
}

/// The series with charts of their own; empty if one chart shows all.
fn split<'a>(view: &View<'a>, users: &[&'a HistorySeries]) -> Vec<&'a HistorySeries> {
    let past = &view.model.past;
    match past.by {
        HistoryBy::User => users.to_vec(),
        HistoryBy::Gpu => past.gpus.iter().flat_map(|p| &p.series).collect(),
        _ => Vec::new(),
    }
}

/// Minimum rows of a small chart: its name, three of the plot and the times.
const SMALL: u16 = 5;

/// A small chart for each, two or three side by side if there is room.
fn draw_split(
    view: &View<'_>,
    past: &HistoryView,
    all: &[&HistorySeries],
    area: Rect,
    scene: &mut Scene<'_>,
) {
    // A GPU has at most one whole GPU.
    let is_gpu = view.model.past.by == HistoryBy::Gpu;
    let gpus = if is_gpu { 1 } else { past.gpu_count };
    let down = usize::from(area.height / SMALL).max(1);
    let across = all
        .len()
        .div_ceil(down)
        .clamp(1, usize::from(area.width / 40).max(1));
    let down = all.len().div_ceil(across).min(down);
    let mut all = all.iter();
    for row in Layout::vertical(vec![Constraint::Fill(1); down])
        .split(area)
        .iter()
    {
        let columns = Layout::horizontal(vec![Constraint::Fill(1); across]).spacing(1);
        for (at, one) in columns.split(*row).iter().zip(all.by_ref()) {
            let used = view.or_dash(one.usage.used_gpu_s.map(hours));
            let about = format!(
                "  SM used {used} of {} GPU h",
                hours(one.usage.claimed_gpu_s)
            );
            scene.rows([line!(view; strong one.label.clone(), dim about)], *at);
            draw_chart(view, past, (Some(one), gpus), below(*at, 1), scene);
        }
    }
    let hidden = all.len();
    if hidden > 0 {
        let more = line!(view; dim format!("+{hidden}"));
        scene.line(more.right_aligned(), area, 0);
    }
}

fn title(view: &View<'_>, who: &str, cols: usize) -> Line<'static> {
    let (theme, glyphs) = (view.theme, view.glyphs);
    let who = match view.model.past.by {
        HistoryBy::All => who,
        HistoryBy::Gpu => "each GPU",
        _ => "each user",
    };
    let mut line = line!(view; heading format!("GPUS IN USE of {who}  "));
    let back = match view.model.past.back {
        0 => String::new(),
        n => format!(", {n} back"),
    };
    for each in Span::ALL {
        line.push_span(match each == view.model.past.span {
            true => span(format!("[{}{back}]", each.name()), theme.focus),
            false => span(format!(" {} ", each.name()), theme.dim),
        });
    }
    let dots = if glyphs.lines { "⠒" } else { glyphs.free };
    let signs = [
        (glyphs.used, "SM used", theme.used),
        (glyphs.burst, "burst", theme.burst),
        (dots, "claimed", theme.dim),
        (glyphs.levels[2], "waited for", theme.text),
        (glyphs.dash, "not known", theme.dim),
    ];
    for (sign, word, style) in signs {
        let more = Line::from(vec![
            span("  ", theme.dim),
            span(sign, style),
            span(format!(" {word}"), theme.dim),
        ]);
        if line.width() + more.width() <= cols {
            line.extend(more);
        }
    }
    line
}

/// The points of a series, by the columns of a chart.
pub(super) fn moments(
    points: &[HistoryPoint],
    (from, to): (u64, u64),
    step: u64,
    cols: usize,
    of: impl Fn(&HistoryPoint) -> (f64, Option<f64>, f64),
) -> Vec<Option<Moment>> {
    let length = to.saturating_sub(from).max(1);
    let mut sums: Vec<(f64, f64, Option<f64>, f64)> = vec![(0.0, 0.0, Some(0.0), 0.0); cols];
    let step = step.max(1);
    for point in points {
        // A point may be wider than a column, or narrower.
        let column = |ms: u64| {
            let part = ms.saturating_sub(from) as f64 / length as f64;
            ((part * cols as f64) as usize).min(cols.saturating_sub(1))
        };
        let (first, last) = (column(point.at_ms), column(point.at_ms + step - 1));
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

const AXIS: usize = 4;

fn draw_chart(
    view: &View<'_>,
    past: &HistoryView,
    (series, gpus): (Option<&HistorySeries>, u32),
    area: Rect,
    scene: &mut Scene<'_>,
) {
    let (model, look, theme, glyphs) = (view.model, view.look, view.theme, view.glyphs);
    let cols = usize::from(area.width).saturating_sub(AXIS + 1).min(180);
    let points = series.map(|s| s.points.as_slice()).unwrap_or_default();
    // For a new service, begin with the time that it knows.
    let time = (young(past).unwrap_or(past.from_ms), past.to_ms);
    let moments = moments(points, time, past.step_ms, cols * per_cell(look), |p| {
        (p.claimed, p.used, p.waiting)
    });
    let waited = moments.iter().flatten().any(|m| m.waiting > 0.0);
    let under = 1 + u16::from(waited && area.height >= 6);
    let mut plot = columns(area, AXIS as u16, cells(cols));
    plot.height = area.height.saturating_sub(under);
    let gpus = gpus.max(1) as usize;
    let top = gpus as f64;
    let moments = &moments;
    OverTime { moments, top, look }.render(plot, scene.buf);
    // Figures and lines at whole GPUs, as many as there are rows for.
    let each = gpus.div_ceil((usize::from(plot.height) / 2).max(1));
    let last = plot.height.saturating_sub(1);
    for gpus in (0..=gpus).step_by(each) {
        let up = (gpus as f64 / top * f64::from(plot.height)) as u16;
        let y = last.saturating_sub(up);
        scene.line(line!(view; dim format!("{gpus:>3} ")), area, y);
        for x in plot.x..plot.right().min(scene.buf.area.right()) {
            let cell = &mut scene.buf[(x, plot.y + y)];
            if gpus > 0 && cell.symbol() == " " && glyphs.lines {
                cell.set_symbol("┈").set_style(theme.free);
            }
        }
    }
    if under > 1 {
        let level = |m: Option<Moment>| m.map(|m| (m.waiting / top * 100.0) as f32);
        let each = moments.iter().step_by(per_cell(look));
        let levels: Vec<Option<f32>> = each.map(|m| level(*m).filter(|l| *l > 0.0)).collect();
        scene.line(line!(view; dim "wait"), area, plot.height);
        let row = super::row_of(area, plot.height);
        let at = columns(row, AXIS as u16, plot.width).intersection(scene.buf.area);
        let waits = spark(&levels, 1, look).style(theme.text);
        waits.render(at, scene.buf);
    }
    let axis = model.clock.axis(time, cols);
    let y = plot.height + under - 1;
    scene.line(line!(view; dim format!("    {axis}")), area, y);
}

/// Users with their sums in GPU hours, the whole machine last.
fn draw_users(view: &View<'_>, users: &[&HistorySeries], area: Rect, scene: &mut Scene<'_>) {
    let (model, theme) = (view.model, view.theme);
    let (cols, rows) = (usize::from(area.width), usize::from(area.height));
    // Users without a row are counted in the last one. The causes have the last row if there is one.
    let causes = usize::from(rows >= users.len() + 4);
    let room = rows.saturating_sub(2 + causes);
    let everybody = match users.len() > room {
        true if cols < 70 => format!("all {}", users.len()),
        true => format!("all {} users", users.len()),
        false => "everybody".to_owned(),
    };
    let names = users.iter().map(|u| width(&u.label));
    let names = names.chain([width(&everybody)]).max().unwrap_or(0);
    let names = names.clamp(9, 14);
    // The causes and the bars if there is room.
    let figures = names + 42;
    let bar = cols.saturating_sub(figures + 16).min(60);
    let shown = match (bar, figures + 14 <= cols) {
        (12.., _) => 8,
        (_, true) => 7,
        _ => 6,
    };
    // One scale for all users, which fits the largest use and the largest claim.
    let most = |u: &&HistorySeries| u.usage.claimed_gpu_s.max(u.usage.used_gpu_s.unwrap_or(0.0));
    let whole = users.iter().map(most).fold(1.0, f64::max);
    let line = |label: &str, usage: &Usage, bars: usize| {
        let hours_of = |s: f64| about(usage.estimate, hours(s));
        let average = |p: f64| about(usage.estimate, percent(p) + " %");
        let bullet = Bullet {
            used: usage.used_gpu_s,
            claim: usage.claimed_gpu_s,
            whole,
        };
        let mut bar = Line::from(" ");
        bar.extend(bullet.line(bars, view.look));
        let cause = usage.idle.main().filter(|_| usage.idle.total() >= LITTLE_S);
        let idle = format!(" {}", cause.unwrap_or_default());
        let cells = [
            line!(view; text view.cut(label, names)),
            line!(view; text hours(usage.claimed_gpu_s)).right_aligned(),
            line!(view; text view.or_dash(usage.used_gpu_s.map(hours_of))).right_aligned(),
            line!(view; text view.or_dash(usage.average_use().map(average))).right_aligned(),
            line!(view; text view.or_dash(usage.idle_gpu_s().map(hours))).right_aligned(),
            line!(view; dim hours(usage.waited_gpu_s)).right_aligned(),
            line!(view; dim view.cut(&idle, 13)),
            bar,
        ];
        Cells::new(cells.into_iter().take(shown))
    };
    let titles = ["claimed", "SM used", "average", "idle", "waited"];
    let titles = titles.map(|title| Line::from(title).right_aligned());
    let first = [Line::from("GPU HOURS")].into_iter().chain(titles);
    let titles = first.chain([Line::from(" idle mostly")]).take(shown);
    let window = window(users.len(), room, model.chosen_index(Section::Users));
    let of = |user: &&HistorySeries| line(&user.label, &user.usage, bar);
    let mut lines: Vec<Cells<'_>> = users[window.clone()].iter().map(of).collect();
    // The bars of users have another scale, so the sum has none.
    let all = model.past.all();
    lines.extend(all.map(|all| line(&everybody, &all.usage, 0)));
    let widths = [names, 8, 7, 8, 7, 7, 13, bar + 1].into_iter();
    let widths = widths.take(shown).map(|n| Constraint::Length(cells(n)));
    let head = Cells::new(titles).style(theme.heading);
    let table = Table::new([head].into_iter().chain(lines), widths);
    let keys = users[window].iter().filter_map(|u| u.uid);
    let keys = keys.map(RowKey::User).collect();
    scene.table(view, table, area, (Section::Users, 1, keys));
    if let Some(all) = all.filter(|_| causes > 0) {
        let y = users.len().min(room) + 2;
        scene.line(idle_by(view, &all.usage, cols), area, cells(y));
    }
}

/// Causes of idleness: one bar, and the causes with their hours in its order.
fn idle_by(view: &View<'_>, usage: &Usage, cols: usize) -> Line<'static> {
    let (theme, g) = (view.theme, view.glyphs);
    let mut parts = usage.idle.parts().to_vec();
    parts.retain(|(_, s)| *s >= LITTLE_S);
    parts.sort_by(|a, b| b.1.total_cmp(&a.1));
    let total = usage.idle.total();
    let cells = (cols / 4).clamp(8, 40) as f64;
    let signs = [g.used, g.unused, g.burst, g.free, g.dash];
    if parts.is_empty() {
        return Line::default();
    }
    let mut line = line!(view; dim "idle by ");
    for ((_, s), sign) in parts.iter().zip(signs) {
        let n = (s / total * cells).round().max(1.0) as usize;
        line.push_span(span(sign.repeat(n), theme.text));
    }
    for ((name, s), sign) in parts.iter().zip(signs) {
        line.extend(line!(view; text format!("  {sign} "), dim format!("{name} {}", hours(*s))));
    }
    line
}
