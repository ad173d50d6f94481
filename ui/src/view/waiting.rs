//! Waiting claims: why each waits and when it starts; how long the GPUs are held; what could be started when.

use gshare_proto::{ClaimView, ExpectedView, GpuState, GpuView, Snapshot};
use ratatui::layout::{Constraint, Layout, Rect};
use ratatui::text::Line;
use ratatui::widgets::Widget;

use super::{Row, Scene, queue, span, window, zero};
use crate::model::{Model, RowKey, Section, condition};
use crate::text::{left, right, share, width, wrap};
use crate::theme::Look;
use crate::widgets::gantt::{Gantt, Segment};

/// Lengths of the axis, in hours.
pub(crate) const HOURS: [u64; 6] = [1, 2, 5, 12, 24, 72];

/// From so many rows on the time of the GPUs is drawn.
const TALL: u16 = 12;

pub(super) fn draw(
    model: &Model,
    snapshot: &Snapshot,
    look: &Look,
    area: Rect,
    scene: &mut Scene<'_>,
) {
    let cols = usize::from(area.width);
    let chosen = match model.chosen(Section::Queue) {
        Some(RowKey::Waiting(id)) => detail(model, id, look, cols),
        _ => Vec::new(),
    };
    let n = model.queue_rows().len();
    let gpus = snapshot.gpus.len();
    let future = future(model, snapshot, look, cols);
    // Each part has a few rows; the list then grows, then the time of the GPUs.
    let room = usize::from(area.height);
    let detail = chosen.len().min(room / 3);
    // What could be started gives way to the GPUs.
    let later = room.saturating_sub(1 + 2 + detail + gpus + 3);
    let later = match later.min(future.len() + 1) {
        0..4 => 0,
        rows => rows,
    };
    let held = match area.height >= TALL {
        true => (gpus + 3).min(room.saturating_sub(detail + later + 3)),
        false => 0,
    };
    let list = n
        .max(1)
        .min(room.saturating_sub(1 + detail + held + later).max(1));
    let spare = room.saturating_sub(1 + list + detail + held + later);
    // Two rows a GPU where there is room: the second says what is free when.
    let each = 1 + usize::from(held == gpus + 3 && spare >= gpus);
    let held = held + (each - 1) * gpus;
    let size = |n: usize| Constraint::Max(u16::try_from(n).unwrap_or(u16::MAX));
    let [list, detail, held, later] =
        Layout::vertical([1 + list, detail, held, later].map(size)).areas(area);
    scene.rows(waiting(model, snapshot, look, list), list, look);
    scene.rows(super::plain(chosen), detail, look);
    until(model, snapshot, look, held, each as u16, scene);
    let later = ruled(later, look, scene);
    scene.rows(super::plain(future), later, look);
}

fn ruled(area: Rect, look: &Look, scene: &mut Scene<'_>) -> Rect {
    super::overview::ruled(area, !area.is_empty(), look, scene)
}

/// A row for each that waits.
fn waiting(model: &Model, snapshot: &Snapshot, look: &Look, area: Rect) -> Vec<Row> {
    let theme = &look.theme;
    let rows = model.queue_rows();
    let room = usize::from(area.height).saturating_sub(1);
    let shown = window(rows.len(), room, model.chosen_index(Section::Queue));
    let part = match shown.len() < rows.len() {
        true => format!("  {}-{} of {}", shown.start + 1, shown.end, rows.len()),
        false => String::new(),
    };
    let mut out = vec![Row::from(Line::from(vec![
        span("WAITING", theme.heading),
        span(
            format!(" {}, in the order of service{part}", rows.len()),
            theme.dim,
        ),
    ]))];
    if rows.is_empty() {
        let text = match snapshot.service.is_some() {
            true => "nobody waits",
            false => "no service, so nobody can wait",
        };
        out.push(Line::styled(text, theme.dim).into());
    }
    let cols = usize::from(area.width);
    out.extend(queue::lines(model, look, cols, &rows[shown], ("", "")));
    out
}

/// Why the chosen one waits, what is done for it, when it starts.
pub(super) fn detail(model: &Model, id: &str, look: &Look, cols: usize) -> Vec<Line<'static>> {
    let theme = &look.theme;
    let Some(waiting) = model.waiting(id) else {
        return Vec::new();
    };
    let mut out = Vec::new();
    let mut told = |label: &str, text: &str, style| {
        let room = cols.saturating_sub(9);
        for (i, text) in wrap(text, room, 4, &look.glyphs).into_iter().enumerate() {
            let label = if i == 0 { label } else { "" };
            out.push(Line::from(vec![
                span(format!("  {label:<7}"), theme.dim),
                span(text, style),
            ]));
        }
    };
    let what = match waiting.name.as_ref().filter(|n| **n != waiting.what) {
        Some(name) => format!("{name}: {}", waiting.what),
        None => waiting.what.clone(),
    };
    let memory = waiting.mem_request.map(crate::text::gib);
    let each = if waiting.gpus > 1 { " on each GPU" } else { "" };
    let memory = memory.map_or_else(String::new, |gib| format!(", {gib} GiB{each}"));
    told(
        "wants",
        format!("{}{memory}  {what}", queue::size(waiting)).trim_end(),
        theme.text,
    );
    told("why", &waiting.reason, theme.text);
    if let Some(plan) = &waiting.plan {
        told("doing", &format!("room is made: {plan}"), theme.good);
    }
    for text in waiting.alone.iter().take(2) {
        told("", text, theme.text);
    }
    let start = match waiting.expected_ms {
        Some(at) if at <= model.clock.now_ms => "starts at any moment".to_owned(),
        _ if waiting.expected.is_some() && !waiting.by_hours => {
            let expected = waiting.expected.as_ref().map(ExpectedView::text);
            format!("starts {}", expected.unwrap_or_default())
        }
        Some(at) => format!(
            "starts about {} at the earliest (in {})",
            model.clock.short_time(at),
            model.clock.until(at)
        ),
        None if waiting.plan.is_some() => "starts when that is done".to_owned(),
        None if !waiting.alone.is_empty() => format!("start {}", look.glyphs.dash),
        None => format!("start {}: nobody ahead has an end", look.glyphs.dash),
    };
    let within = match waiting.entitled {
        true => format!(
            "; within what {} is guaranteed",
            waiting.party.as_ref().unwrap_or(&waiting.user)
        ),
        false => String::new(),
    };
    told("when", &format!("{start}{within}"), theme.text);
    if let Some(args) = &waiting.would_start
        && model.may(waiting.uid)
    {
        told("or now", &format!("gshare claim {args}"), theme.key);
    }
    out
}

/// How many hours of the future are drawn: those that have the last end that is known, and as the viewer zooms.
fn ahead_ms(model: &Model, snapshot: &Snapshot) -> u64 {
    let ends = snapshot.claims.iter().filter_map(|c| c.ends_ms);
    let starts = snapshot.queue.iter().filter_map(|q| q.expected_ms);
    let last = ends.chain(starts).max().unwrap_or(0);
    let needed = last.saturating_sub(model.clock.now_ms);
    let fits = |hours: &u64| hours * 3_600_000 > needed;
    let place = HOURS.iter().position(fits).unwrap_or(HOURS.len() - 1);
    let place = place.saturating_add_signed(model.zoom);
    HOURS[place.min(HOURS.len() - 1)] * 3_600_000
}

/// The claims on a GPU, those that end first at the beginning; without an end last.
fn holders<'a>(gpu: &GpuView, snapshot: &'a Snapshot) -> Vec<(&'a ClaimView, f64)> {
    let size = |c: &ClaimView| {
        let parts = c.gpus.iter().filter(|p| p.gpu == gpu.index);
        parts.map(|p| p.sm_request).sum::<f64>()
    };
    let on = snapshot
        .claims
        .iter()
        .filter(|c| super::overview::is_on(c, gpu.index));
    let mut held: Vec<(&ClaimView, f64)> = on.map(|c| (c, size(c))).collect();
    held.sort_by_key(|(c, _)| c.ends_ms.unwrap_or(u64::MAX));
    held
}

/// The holders of a GPU and until when, and the claim for which the rest is planned.
fn segments(model: &Model, snapshot: &Snapshot, gpu: &GpuView, ahead: u64) -> Vec<Segment> {
    let now = model.clock.now_ms;
    let part = |ms: u64| ms.saturating_sub(now) as f64 / ahead as f64;
    let mut left = holders(gpu, snapshot);
    let mut out = Vec::new();
    let mut from = 0.0;
    while !left.is_empty() && from < 1.0 {
        let end = left[0].0.ends_ms;
        let size: f64 = left.iter().map(|(_, size)| size).sum();
        let names: Vec<&str> = left.iter().map(|(c, _)| c.id.as_str()).collect();
        let names = match (&left[..], names.len()) {
            ([(one, _)], _) if one.adopted => format!("no claim: {}", one.user),
            ([(one, _)], _) => format!("{} {}", one.id, one.user),
            (_, 6..) => format!("{} and {} more", names[..4].join(" "), names.len() - 4),
            _ => names.join(" "),
        };
        let to = end.map_or(1.0, part).min(1.0);
        out.push(Segment {
            from,
            to,
            label: format!("{names} {}", zero(share(size))),
            planned: false,
            limit: end.is_some_and(|at| part(at) < 1.0),
        });
        from = to;
        left.retain(|(c, _)| c.ends_ms != end);
    }
    if let (Some(why), Some(first)) = (closed(gpu), out.first_mut()) {
        first.label = format!("{why}; {}", first.label);
    } else if let (Some(who), Some(first)) = (&gpu.planned_for, out.first_mut()) {
        first
            .label
            .push_str(&format!(", the rest planned for {who}"));
    }
    let programs: Vec<&str> = snapshot
        .unclaimed
        .iter()
        .filter(|u| u.gpu == gpu.index && !u.graphics)
        .filter_map(|u| u.user.as_deref())
        .collect();
    let rest = match (closed(gpu), &gpu.planned_for, programs.first()) {
        (Some(why), ..) if out.is_empty() => Some((why.to_owned(), true)),
        (_, Some(who), _) => Some((format!("planned for {who}"), true)),
        (_, None, Some(user)) => Some((format!("no claim: {user}; no end known"), false)),
        (_, None, None) => None,
    };
    if let Some((label, planned)) = rest.filter(|_| from < 1.0) {
        out.push(Segment {
            from,
            to: 1.0,
            label,
            planned,
            limit: false,
        });
    }
    out
}

/// Why nobody can claim a part of it.
fn closed(gpu: &GpuView) -> Option<&'static str> {
    match gpu.state {
        _ if condition(gpu) == "sick" => Some("sick: no new claims"),
        GpuState::Ok if gpu.drain.is_some() => Some("drained: no new claims"),
        GpuState::Ok => None,
        GpuState::Lost => Some("lost"),
        GpuState::Hung => Some("does not answer"),
        GpuState::Released => Some("released by an administrator: no new claims"),
    }
}

/// A row or two for each GPU on an axis of hours.
fn until(
    model: &Model,
    snapshot: &Snapshot,
    look: &Look,
    area: Rect,
    each: u16,
    scene: &mut Scene<'_>,
) {
    if area.height < 3 {
        return;
    }
    let (theme, glyphs) = (&look.theme, &look.glyphs);
    let area = ruled(area, look, scene);
    let one = snapshot
        .gpus
        .iter()
        .all(|g| g.short == snapshot.gpus[0].short);
    let name = |g: &GpuView| match one && area.width < 100 {
        true => format!("{}", g.index),
        false => format!("{} {}", g.index, g.short),
    };
    let names = snapshot
        .gpus
        .iter()
        .map(|g| width(&name(g)))
        .max()
        .unwrap_or(0)
        .max(4);
    let at = u16::try_from(names + 1).unwrap_or(u16::MAX).min(area.width);
    let axis = Rect {
        x: area.x + at,
        width: area.width - at,
        height: 1,
        ..area
    };
    let ahead = ahead_ms(model, snapshot);
    let (held, planned) = if glyphs.lines {
        ("━━", "╌╌")
    } else {
        ("==", "--")
    };
    scene.line(
        &Line::from(vec![
            span("HELD UNTIL", theme.heading),
            span(
                format!(
                    "  next {} h  {held} held  {planned} planned  {} time limit  ",
                    ahead / 3_600_000,
                    glyphs.wall
                ),
                theme.dim,
            ),
            span("0.25", theme.good),
            span(" free for you now", theme.dim),
        ]),
        area,
    );
    let mut times = String::new();
    let ticks = if axis.width >= 70 { 5 } else { 4 };
    for n in 0..ticks {
        let ms = model.clock.now_ms + ahead * n / ticks;
        let column = usize::from(Gantt::column(n as f64 / ticks as f64, axis.width));
        let gap = column.saturating_sub(width(&times));
        let text = if n == 0 {
            "now".to_owned()
        } else {
            model.clock.short_time(ms)
        };
        times = format!("{times}{}{text}", " ".repeat(gap));
    }
    let second = Rect {
        y: area.y + 1,
        ..axis
    };
    scene.line(&Line::styled(times, theme.dim), second);
    for (i, gpu) in snapshot.gpus.iter().enumerate() {
        let y = area.y + 2 + i as u16 * each;
        if y >= area.bottom() {
            break;
        }
        let row = Rect {
            y,
            height: 1,
            ..area
        };
        scene.line(
            &Line::styled(left(&name(gpu), names, glyphs), theme.text),
            row,
        );
        let segments = segments(model, snapshot, gpu, ahead);
        let place = Rect { y, ..axis };
        Gantt {
            segments: &segments,
            look,
        }
        .render(place, scene.buf);
        scene.hit(
            row,
            super::Target::Row(Section::Gpus, RowKey::Gpu(gpu.index)),
        );
        if each > 1 && y + 1 < area.bottom() {
            let below = Rect { y: y + 1, ..axis };
            scene.line(
                &free_when(gpu, snapshot, &segments, look, below.width),
                below,
            );
        }
    }
}

/// What is free of a GPU now, for the viewer, and what ends leave later.
fn free_when(
    gpu: &GpuView,
    snapshot: &Snapshot,
    segments: &[Segment],
    look: &Look,
    cols: u16,
) -> Line<'static> {
    let theme = &look.theme;
    if closed(gpu).is_some() {
        return Line::default();
    }
    let mut line = match snapshot.service.is_some() && gpu.claimable > 0.0 {
        true => Line::styled(zero(share(gpu.claimable)), theme.good),
        false => Line::default(),
    };
    let held = holders(gpu, snapshot);
    let mut ends: Vec<u64> = held.iter().filter_map(|(c, _)| c.ends_ms).collect();
    ends.dedup();
    for (segment, end) in segments.iter().filter(|s| s.limit).zip(ends) {
        let stay = held
            .iter()
            .filter(|(c, _)| c.ends_ms.is_none_or(|at| at > end));
        let left = 1.0 - stay.map(|(_, size)| size).sum::<f64>();
        let column = usize::from(Gantt::column(segment.to, cols));
        let free = format!("~{}", zero(share(left.clamp(0.0, 1.0))));
        let gap = column.saturating_sub(line.width());
        if gap > 0 {
            line.push_span(span(format!("{}{free}", " ".repeat(gap)), theme.dim));
        }
    }
    line
}

/// The largest part and whole GPUs, now by the service's word, later by what ends and is not planned for others.
fn future(model: &Model, snapshot: &Snapshot, look: &Look, cols: usize) -> Vec<Line<'static>> {
    let (theme, glyphs) = (&look.theme, &look.glyphs);
    let Some(now) = &snapshot.claimable_now else {
        return Vec::new();
    };
    let mut times: Vec<u64> = snapshot.claims.iter().filter_map(|c| c.ends_ms).collect();
    times.retain(|at| *at > model.clock.now_ms);
    times.sort_unstable();
    times.dedup();
    times.truncate((cols / 16).saturating_sub(2).min(5));
    let open = |g: &&GpuView| closed(g).is_none() && g.planned_for.is_none();
    let room = |at: u64| -> Vec<f64> {
        let after = |g: &GpuView| {
            let held = holders(g, snapshot).into_iter();
            let held = held.filter(|(c, _)| c.ends_ms.is_none_or(|end| end > at));
            let programs = snapshot
                .unclaimed
                .iter()
                .any(|u| u.gpu == g.index && !u.graphics);
            match programs {
                true => g.claimable,
                false => (1.0 - held.map(|(_, size)| size).sum::<f64>()).max(0.0),
            }
        };
        snapshot.gpus.iter().filter(open).map(after).collect()
    };
    let largest = |rooms: &[f64]| rooms.iter().copied().fold(0.0, f64::max);
    let whole = |rooms: &[f64]| rooms.iter().filter(|r| **r >= 0.9995).count();
    let figure = |part: f64| match part > 0.0 {
        true => zero(share(part)),
        false => "none".to_owned(),
    };
    let whose = model.viewer_name().unwrap_or("you").to_uppercase();
    let now_part = now.models.iter().map(|m| m.largest).fold(0.0, f64::max);
    let now_whole: u32 = now.models.iter().map(|m| m.whole).sum();
    let cell = |text: &str| right(text, 14, glyphs);
    let row = |label: &str, first: String, rest: Vec<String>| {
        let mut line = Line::from(vec![
            span(left(label, 16, glyphs), theme.dim),
            span(cell(&first), theme.good),
        ]);
        line.spans
            .extend(rest.iter().map(|t| span(cell(t), theme.text)));
        line
    };
    let rooms: Vec<Vec<f64>> = times.iter().map(|at| room(*at)).collect();
    let n = snapshot.queue.len();
    let behind = match n {
        0 => "a time with ~ is what ends leave".to_owned(),
        1 => "1 waits before you; a time with ~ is what ends leave".to_owned(),
        n => format!("{n} wait before you; a time with ~ is what ends leave"),
    };
    let mut out = vec![
        Line::from(vec![
            span(format!("WHAT {whose} COULD START  "), theme.heading),
            span(behind, theme.dim),
        ]),
        row(
            "",
            "now".to_owned(),
            times
                .iter()
                .map(|at| format!("~{}", model.clock.short_time(*at)))
                .collect(),
        ),
        row(
            "largest part",
            figure(now_part.max(f64::from(now_whole.min(1)))),
            rooms.iter().map(|r| figure(largest(r))).collect(),
        ),
        row(
            "whole GPUs",
            if now_whole == 0 {
                "none".to_owned()
            } else {
                now_whole.to_string()
            },
            rooms
                .iter()
                .map(|r| match whole(r) {
                    0 => "none".to_owned(),
                    n => n.to_string(),
                })
                .collect(),
        ),
    ];
    if now_part > 0.0 || now_whole > 0 {
        let size = if now_whole > 0 {
            "1".to_owned()
        } else {
            zero(share(now_part))
        };
        out.push(Line::from(vec![
            span(left("type", 16, glyphs), theme.dim),
            span(format!("  gshare claim -g {size} -- CMD"), theme.key),
        ]));
    }
    out
}
