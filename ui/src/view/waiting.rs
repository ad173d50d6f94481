//! Waiting claims: why each waits and when it starts; how long the GPUs are held; what could start when.

use gshare_proto::{ClaimView, GpuView, Snapshot};
use ratatui::layout::Rect;
use ratatui::text::Line;
use ratatui::widgets::Widget;

use super::{Facts, Scene, Target, View, columns, history, line, overview, queue, span};
use crate::model::{Model, RowKey, Section, bytes_of, trouble};
use crate::text::{gib, share, width};
use crate::theme::Look;
use crate::widgets::gantt::{Gantt, Segment};

pub(crate) const HOURS: [u64; 6] = [1, 2, 5, 12, 24, 72];

/// With this many rows or more the GPUs' axis of time is drawn.
const TALL: u16 = 12;

pub(super) fn draw(view: &View<'_>, area: Rect, scene: &mut Scene<'_>) {
    let look = view.look;
    let cols = usize::from(area.width);
    let chosen = match view.model.chosen(Section::Queue) {
        Some(RowKey::Waiting(id)) => detail(view.model, id, look, cols),
        _ => Vec::new(),
    };
    let n = match view.model.queue_rows().len() {
        0 => queue::wanted(view),
        n => n,
    };
    let gpus = view.snapshot.gpus.len();
    let future = future(view, cols);
    // Each part has a few rows; then the list grows, then the GPUs' axis.
    let room = usize::from(area.height);
    let detail = chosen.len().min(room / 3);
    // What could start when gives way to the GPUs.
    let later = room.saturating_sub(1 + 2 + detail + gpus + 3);
    let later = match later.min(future.len() + 1) {
        0..4 => 0,
        rows => rows,
    };
    let held = match area.height >= TALL {
        true => (gpus + 3).min(room.saturating_sub(detail + later + 3)),
        false => 0,
    };
    let most = room.saturating_sub(1 + detail + held + later);
    let list = n.max(1).min(most.max(1));
    let spare = most.saturating_sub(list);
    // Two rows a GPU where there is room: the second says what is free when.
    let each = 1 + usize::from(held == gpus + 3 && spare >= gpus);
    let held = held + (each - 1) * gpus;
    let sizes = [1 + list, detail, held, later, usize::MAX];
    let [list, detail, held, later, past] = super::parts(area, sizes);
    queue::draw(view, list, scene);
    scene.rows(chosen, detail);
    until(view, held, each as u16, scene);
    let later = scene.ruled(later, true);
    scene.rows(future, later);
    if past.height >= 5 {
        let past = scene.ruled(past, true);
        history::chart(view, past, scene);
    }
}

/// Why the chosen one waits, the plan for it, and when it starts.
pub(super) fn detail(model: &Model, id: &str, look: &Look, cols: usize) -> Vec<Line<'static>> {
    let theme = &look.theme;
    let Some(waiting) = model.waiting(id) else {
        return Vec::new();
    };
    let mut out = Facts::new(look, cols, (2, 7));
    let mut tell = |label: &str, text: &str, style| out.tell(label, text, style, 4);
    let what = match waiting.name.as_ref().filter(|n| **n != waiting.what) {
        Some(name) => format!("{name}: {}", waiting.what),
        None => waiting.what.clone(),
    };
    let each = if waiting.gpus > 1 { " on each GPU" } else { "" };
    let memory = |bytes| format!(", {} GiB{each}", gib(bytes));
    let memory = waiting.mem_request.map(memory).unwrap_or_default();
    let needs = format!("{}{memory}  {what}", queue::size(waiting));
    tell("needs", needs.trim_end(), theme.text);
    tell("why", &waiting.reason, theme.text);
    if let Some(plan) = &waiting.plan {
        tell("doing", &format!("room is made: {plan}"), theme.good);
    }
    for text in waiting.alone.iter().take(2) {
        tell("", text, theme.text);
    }
    let start = waiting.starts_in_full("", model.clock.now_ms);
    let party = waiting.party.as_ref().unwrap_or(&waiting.user);
    let within = format!("; within the guarantee of {party}");
    let within = Some(within)
        .filter(|_| waiting.entitled)
        .unwrap_or_default();
    tell("when", &(start + &within), theme.text);
    if let Some(args) = &waiting.would_start
        && model.may(waiting.uid)
    {
        tell("or now", &format!("gshare claim {args}"), theme.key);
    }
    out.lines
}

/// Length of the axis at the viewer's zoom, and the last known end or start after now; milliseconds.
pub(crate) fn axis_of(model: &Model, snapshot: &Snapshot) -> (u64, u64) {
    let ends = snapshot.claims.iter().filter_map(|c| c.ends_ms);
    let starts = snapshot.queue.iter().filter_map(|q| q.expected_ms);
    let last = ends.chain(starts).max().unwrap_or(0);
    let needed = last.saturating_sub(model.clock.now_ms);
    let fits = |hours: &u64| hours * 3_600_000 > needed;
    let place = HOURS.iter().position(fits).unwrap_or(HOURS.len() - 1);
    let place = place.saturating_add_signed(model.zoom);
    let length = HOURS[place.min(HOURS.len() - 1)] * 3_600_000;
    (length, needed)
}

/// The claims on a GPU, those that end first at the beginning; without an end last.
fn holders<'a>(gpu: &GpuView, snapshot: &'a Snapshot) -> Vec<(&'a ClaimView, f64)> {
    let size = |c: &ClaimView| {
        let parts = c.gpus.iter().filter(|p| p.gpu == gpu.index);
        parts.map(|p| p.sm_request).sum::<f64>()
    };
    let claims = snapshot.claims.iter();
    let on = claims.filter(|c| overview::is_on(c, gpu.index));
    let mut held: Vec<(&ClaimView, f64)> = on.map(|c| (c, size(c))).collect();
    held.sort_by_key(|(c, _)| c.ends_ms.unwrap_or(u64::MAX));
    held
}

/// The holders of a GPU and until when, and the claim for which the rest is planned.
fn segments(view: &View<'_>, gpu: &GpuView, (begin, length): (u64, u64)) -> Vec<Segment> {
    let snapshot = view.snapshot;
    let part = |ms: u64| ms.saturating_sub(begin) as f64 / length as f64;
    let mut left = holders(gpu, snapshot);
    left.retain(|(c, _)| c.ends_ms.is_none_or(|at| at > begin));
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
            label: format!("{names} {}", share(size)),
            planned: false,
            limit: end.is_some_and(|at| part(at) < 1.0),
        });
        from = to;
        left.retain(|(c, _)| c.ends_ms != end);
    }
    if let (Some(why), Some(first)) = (closed(gpu), out.first_mut()) {
        first.label = format!("{why}; {}", first.label);
    } else if let (Some(who), Some(first)) = (&gpu.planned_for, out.first_mut()) {
        first.label += &format!(", the rest planned for {who}");
    }
    let mut programs = overview::programs(snapshot, gpu.index);
    let user = programs.find_map(|u| u.user.as_deref());
    let rest = match (closed(gpu), &gpu.planned_for, user) {
        (Some(why), ..) if out.is_empty() => Some((why.to_owned(), true)),
        (_, Some(who), _) => Some((format!("planned for {who}"), true)),
        (_, None, Some(user)) => Some((format!("{user} (no claim): end unknown"), false)),
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

fn closed(gpu: &GpuView) -> Option<&'static str> {
    match gpu.drain {
        _ if gpu.condition() == "sick" => Some("sick: no new claims"),
        Some(_) if trouble(gpu).is_none() => Some("drained: no new claims"),
        _ => trouble(gpu),
    }
}

fn until(view: &View<'_>, area: Rect, each: u16, scene: &mut Scene<'_>) {
    if area.height < 3 {
        return;
    }
    let glyphs = view.glyphs;
    let area = scene.ruled(area, true);
    let gpus = &view.snapshot.gpus;
    let one = gpus.iter().all(|g| g.short == gpus[0].short);
    let name = |g: &GpuView| match one && area.width < 100 {
        true => g.index.to_string(),
        false => format!("{} {}", g.index, g.short),
    };
    let names = gpus.iter().map(|g| width(&name(g))).max();
    let names = names.unwrap_or(0).max(4);
    let at = super::cells(names + 1).min(area.width);
    let axis = columns(area, at, u16::MAX);
    let begin = view.model.clock.now_ms + view.model.ahead_ms;
    let (length, _) = axis_of(view.model, view.snapshot);
    let (held, planned) = match glyphs.lines {
        true => ("━━", "╌╌"),
        false => ("==", "--"),
    };
    let wall = glyphs.wall;
    let hours = match (length / 3_600_000, view.model.ahead_ms) {
        (hours, 0) => format!("next {hours} h"),
        (hours, _) => format!("{hours} h from {}", view.model.clock.short_time(begin)),
    };
    let legend = format!("  {hours}  {held} held  {planned} planned  {wall} time limit  ");
    let mut head = line!(view; heading "HELD UNTIL", dim legend);
    if view.model.ahead_ms == 0 && view.snapshot.claimable_now.is_some() {
        head.extend(line!(view; good "0.25", dim " free for you now"));
    }
    scene.line(head, area, 0);
    let times = (begin, begin + length);
    let times = view.model.clock.axis(times, axis.width.into());
    scene.line(line!(view; dim times), axis, 1);
    let places = area.rows().zip(axis.rows()).skip(2);
    for (gpu, (at, axis)) in gpus.iter().zip(places.step_by(each.into())) {
        scene.line(line!(view; text view.left(&name(gpu), names)), at, 0);
        let segments = segments(view, gpu, (begin, length));
        let (segments, look) = (&segments, view.look);
        Gantt { segments, look }.render(axis, scene.buf);
        scene.hit(at, Target::Row(Section::Gpus, RowKey::Gpu(gpu.index)));
        if each > 1 && at.bottom() < area.bottom() {
            let line = free_when(view, gpu, begin, segments, axis.width);
            let y = axis.y + 1;
            scene.line(line, Rect { y, ..axis }, 0);
        }
    }
}

/// The free part of a GPU: now for the viewer, and later when time limits have ended claims.
fn free_when(
    view: &View<'_>,
    gpu: &GpuView,
    begin: u64,
    segments: &[Segment],
    cols: u16,
) -> Line<'static> {
    if closed(gpu).is_some() || view.model.off().is_some() {
        return Line::default();
    }
    let after = |at| left_after(gpu, view.snapshot, at);
    let mut line = match (view.model.ahead_ms, after(begin)) {
        (0, _) if view.snapshot.service.is_some() && gpu.claimable > 0.0 => {
            line!(view; good share(gpu.claimable))
        }
        (1.., left) if left > 0.0 => line!(view; dim format!("~{}", share(left))),
        _ => Line::default(),
    };
    let held = holders(gpu, view.snapshot);
    let mut ends: Vec<u64> = held.iter().filter_map(|(c, _)| c.ends_ms).collect();
    ends.retain(|at| *at > begin);
    ends.dedup();
    for (segment, end) in segments.iter().filter(|s| s.limit).zip(ends) {
        let left = after(end);
        let column = usize::from(Gantt::column(segment.to, cols));
        let free = format!("~{}", share(left));
        let gap = column.saturating_sub(line.width());
        if gap > 0 && left > 0.0 {
            let text = format!("{}{free}", " ".repeat(gap));
            line.push_span(span(text, view.theme.dim));
        }
    }
    line
}

/// The free part of a GPU after the claims that end by then: without what is planned for others, and no more than now
/// beside programs without a known end.
fn left_after(gpu: &GpuView, snapshot: &Snapshot, at: u64) -> f64 {
    let mut programs = overview::programs(snapshot, gpu.index);
    if closed(gpu).is_some() || gpu.planned_for.is_some() {
        return 0.0;
    } else if programs.next().is_some() {
        return gpu.claimable;
    }
    let mut stay = holders(gpu, snapshot);
    stay.retain(|(c, _)| c.ends_ms.is_none_or(|end| end > at));
    (1.0 - stay.iter().map(|(_, size)| size).sum::<f64>()).clamp(0.0, 1.0)
}

/// The largest part and whole GPUs: now by the service's figure, later by what ends and is not planned for others.
fn future(view: &View<'_>, cols: usize) -> Vec<Line<'static>> {
    let (model, snapshot) = (view.model, view.snapshot);
    let Some(now) = &snapshot.claimable_now else {
        return Vec::new();
    };
    let mut times: Vec<u64> = snapshot.claims.iter().filter_map(|c| c.ends_ms).collect();
    times.retain(|at| *at > model.clock.now_ms);
    times.sort_unstable();
    times.dedup();
    times.truncate((cols / 16).saturating_sub(2).min(5));
    let count = |n: usize| match n {
        0 => "none".to_owned(),
        n => n.to_string(),
    };
    // The GPU with the largest free part at a time, the one with the most memory first, and that part.
    let column = |time: String, free: Vec<f64>| {
        let parts = free.iter().zip(&snapshot.gpus).rev();
        let best = parts.max_by(|a, b| {
            let bytes = bytes_of(a.1, *a.0).cmp(&bytes_of(b.1, *b.0));
            a.0.total_cmp(b.0).then(bytes)
        });
        let whole = free.iter().zip(&snapshot.gpus);
        let whole = whole.filter(|(part, gpu)| **part >= 0.9995 && !gpu.is_used_without_claim());
        let best = best.filter(|(part, _)| **part > 0.0);
        let of = |text: &dyn Fn(f64, &GpuView) -> String| {
            best.map_or_else(|| "none".to_owned(), |(part, gpu)| text(*part, gpu))
        };
        [
            time,
            of(&|part, _| share(part)),
            count(whole.count()),
            of(&|_, gpu| gpu.index.to_string()),
            of(&|part, gpu| view.gib(bytes_of(gpu, part))),
        ]
    };
    let claimable = snapshot.gpus.iter().map(|g| g.claimable).collect();
    let mut all = vec![column("now".to_owned(), claimable)];
    all.extend(times.into_iter().map(|at| {
        let free = snapshot.gpus.iter().map(|g| left_after(g, snapshot, at));
        column(format!("~{}", model.clock.short_time(at)), free.collect())
    }));
    let whole: u32 = now.models.iter().map(|m| m.whole).sum();
    all[0][2] = count(whole as usize);
    let behind = overview::first(view).map_or_else(String::new, |text| text + "; ");
    let whose = model.viewer_name().unwrap_or("you").to_uppercase();
    let mut out = vec![line!(view;
        heading format!("WHAT {whose} COULD START  "),
        dim format!("{behind}~: estimated from time limits"),
    )];
    let cell = |text: &str| view.right(text, 14);
    let labels = ["", "largest part", "whole GPUs", "on GPU", "memory, GiB"];
    for (i, label) in labels.into_iter().enumerate() {
        let later: String = all[1..].iter().map(|c| cell(&c[i])).collect();
        out.push(line!(view; dim view.left(label, 16), good cell(&all[0][i]), text later));
    }
    let tried = now.models.iter().filter_map(|room| model.dry_run(room));
    let tried = tried
        .filter(|(_, tried)| tried.starts)
        .max_by_key(|(run, _)| run.milli);
    if let Some((_, tried)) = tried {
        out.push(line!(view; dim view.left("lasts", 16), good cell(overview::keeps(tried))));
    }
    if all[0][1] != "none" {
        let command = format!("  gshare claim -g {} -- CMD", all[0][1]);
        out.push(line!(view; dim view.left("type", 16), key command));
    }
    out
}
