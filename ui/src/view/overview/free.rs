//! FREE NOW: what the viewer could claim at this moment, by model.

use gshare_proto::{GpuView, ModelRoomView, Snapshot};
use ratatui::layout::{Constraint, Layout, Rect};
use ratatui::text::{Line, Span};

use crate::model::{Model, split, words};
use crate::text::{gib, parts, share, width};
use crate::theme::Look;
use crate::view::{Scene, fit, span, zero};

/// What there is of one model.
struct Answer {
    /// The large figure: `0.40`, `3`.
    amount: String,
    /// What it is of: `RTX 4090, 9.3 GiB, GPU 6`.
    of: String,
    /// Parts of a GPU.
    size: f64,
}

fn answer(snapshot: &Snapshot, room: &ModelRoomView) -> Answer {
    let is_one = |g: &&GpuView| g.model == room.model || g.short == room.model;
    let gpus = || snapshot.gpus.iter().filter(is_one);
    let short = gpus().next().map_or(room.model.as_str(), |g| &g.short);
    if room.whole > 0 {
        let part = gpus().any(GpuView::is_instance);
        let words = match (part, room.whole) {
            (true, 1) => "instance",
            (true, _) => "instances",
            (false, 1) => "whole GPU",
            (false, _) => "whole GPUs",
        };
        return Answer {
            amount: room.whole.to_string(),
            of: format!("{words} {short}"),
            size: f64::from(room.whole),
        };
    }
    // Of several that have it, the first.
    let has = |g: &&GpuView| g.claimable + 1e-6 >= room.largest;
    let gpu = gpus().find(has).filter(|_| room.largest > 0.0);
    let place = gpu.map_or_else(String::new, |g| {
        let bytes = g
            .mem_allocatable
            .map(|m| gib((m as f64 * room.largest) as u64));
        let bytes = bytes.map_or_else(String::new, |b| format!(", {b} GiB"));
        format!("{bytes}, GPU {}", g.index)
    });
    Answer {
        amount: zero(share(room.largest)),
        of: format!("{short}{place}"),
        size: room.largest,
    }
}

/// By model, most first; none where nobody says.
fn answers(snapshot: &Snapshot) -> Option<Vec<Answer>> {
    let now = snapshot.claimable_now.as_ref()?;
    let mut all: Vec<Answer> = now.models.iter().map(|m| answer(snapshot, m)).collect();
    all.sort_by(|a, b| b.size.total_cmp(&a.size));
    Some(all)
}

/// Rows that it can fill.
pub(super) fn rows(model: &Model, snapshot: &Snapshot, cols: u16) -> usize {
    let Some(all) = answers(snapshot) else {
        return 1;
    };
    let best = all.first().map_or(0.0, |a| a.size);
    let more = all.len() > 1 || !later(model, snapshot).is_empty();
    match best > 0.0 && usize::from(cols) >= crate::view::WIDE {
        true => 4,
        false => 1 + usize::from(more),
    }
}

/// For whom it is answered.
fn whose(model: &Model) -> String {
    match model.viewer_name() {
        Some(name) => format!(" for {name}"),
        None if model.viewer.admin => " for anyone".to_owned(),
        None => String::new(),
    }
}

/// `none now`, or what there is.
fn said(answer: &Answer, look: &Look) -> Vec<Span<'static>> {
    let theme = &look.theme;
    match answer.size > 0.0 {
        true => vec![
            span(answer.amount.clone(), theme.good),
            span(format!(" {}", answer.of), theme.text),
        ],
        false => vec![
            span(format!("{} ", answer.of), theme.text),
            span("none now", theme.strong),
        ],
    }
}

/// For whom, how much of each model, and when there may be more, in a sentence.
pub(in crate::view) fn free_now(model: &Model, snapshot: &Snapshot, look: &Look) -> String {
    let said: Vec<String> = match answers(snapshot) {
        None => return String::new(),
        Some(all) => all
            .iter()
            .map(|a| Line::from(said(a, look)).to_string())
            .collect(),
    };
    format!("FREE NOW{}: {}", whose(model), said.join("; "))
}

/// When there may be more, and who comes first.
fn later(model: &Model, snapshot: &Snapshot) -> Vec<String> {
    let ends = snapshot
        .claims
        .iter()
        .filter_map(|c| Some((c.ends_ms?, &c.id)));
    let next = ends
        .min()
        .map(|(at, id)| format!("{id} ends {}", model.clock.short_time(at)));
    let n = snapshot.queue.len();
    let first = (n > 0).then(|| format!("{n} wait{} before you", if n == 1 { "s" } else { "" }));
    next.into_iter().chain(first).collect()
}

fn heading(model: &Model, look: &Look) -> Vec<Span<'static>> {
    vec![
        span("FREE NOW", look.theme.heading),
        span(whose(model), look.theme.dim),
    ]
}

pub(super) fn draw(
    model: &Model,
    snapshot: &Snapshot,
    look: &Look,
    area: Rect,
    scene: &mut Scene<'_>,
) {
    let theme = &look.theme;
    let mut head = heading(model, look);
    head.push(Span::raw("  "));
    let indent = crate::text::span_width(&head);
    let Some(all) = answers(snapshot) else {
        let why = match snapshot.service {
            None => "nobody divides these GPUs",
            Some(_) => "this service does not say",
        };
        head.push(span(format!("{} ", look.glyphs.dash), theme.strong));
        head.push(span(why, theme.dim));
        scene.line(&fit(Line::from(head), area.width.into(), look), area);
        return;
    };
    let later = later(model, snapshot);
    if area.height >= 4 && look.glyphs.lines && all.first().is_some_and(|a| a.size > 0.0) {
        return large(model, snapshot, look, &all, &later, area, scene);
    }
    // The best in the first row, the others and what comes in the second.
    let cols = usize::from(area.width);
    let mut rest: Vec<Vec<Span<'static>>> = Vec::new();
    match all.split_first() {
        Some((first, others)) if first.size > 0.0 => {
            head.extend(said(first, look));
            rest.extend(others.iter().map(|a| said(a, look)));
        }
        _ => head.push(span("none now", theme.strong)),
    }
    scene.line(&fit(Line::from(head), cols, look), area);
    rest.extend(later.into_iter().map(|text| vec![span(text, theme.dim)]));
    let mut line = Line::from(" ".repeat(indent));
    for (i, spans) in rest.into_iter().enumerate() {
        let gap = if i > 0 { ";  " } else { "" };
        if line.width() + width(gap) + crate::text::span_width(&spans) <= cols {
            line.push_span(span(gap, theme.dim));
            line.spans.extend(spans);
        }
    }
    if area.height > 1 {
        scene.line(
            &line,
            Rect {
                y: area.y + 1,
                height: 1,
                ..area
            },
        );
    }
}

/// Digits of three rows.
fn digit(c: char) -> [&'static str; 3] {
    match c {
        '0' => ["█▀█", "█ █", "▀▀▀"],
        '1' => [" ▀█", "  █", "  ▀"],
        '2' => ["▀▀█", "█▀▀", "▀▀▀"],
        '3' => ["▀▀█", " ▀█", "▀▀▀"],
        '4' => ["█ █", "▀▀█", "  ▀"],
        '5' => ["█▀▀", "▀▀█", "▀▀▀"],
        '6' => ["█▀▀", "█▀█", "▀▀▀"],
        '7' => ["▀▀█", "  █", "  ▀"],
        '8' => ["█▀█", "█▀█", "▀▀▀"],
        '9' => ["█▀█", "▀▀█", "▀▀▀"],
        _ => [" ", " ", "▀"],
    }
}

/// With large figures, and the viewer's own sums at the right.
fn large(
    model: &Model,
    snapshot: &Snapshot,
    look: &Look,
    all: &[Answer],
    later: &[String],
    area: Rect,
    scene: &mut Scene<'_>,
) {
    let theme = &look.theme;
    scene.line(&Line::from(heading(model, look)), area);
    let below = Rect {
        y: area.y + 1,
        height: area.height - 1,
        ..area
    };
    let amount = &all[0].amount;
    let big = |row: usize| {
        amount
            .chars()
            .map(|c| digit(c)[row])
            .collect::<Vec<_>>()
            .join(" ")
    };
    let cells = u16::try_from(width(&big(0))).unwrap_or(0);
    let sizes = [
        Constraint::Length(cells + 2),
        Constraint::Fill(1),
        Constraint::Length(54),
    ];
    let [digits, words_at, you] = Layout::horizontal(sizes).spacing(1).areas(below);
    let mut lines = vec![Line::from(span(all[0].of.clone(), theme.strong))];
    lines.extend(all[1..].iter().map(|a| Line::from(said(a, look))));
    lines.extend(
        later
            .iter()
            .map(|text| Line::styled(text.clone(), theme.dim)),
    );
    for (row, at) in digits.rows().enumerate().take(3) {
        let line = Line::styled(format!(" {}", big(row)), theme.good);
        scene.line(&line, at);
    }
    for (line, at) in lines.into_iter().zip(words_at.rows()) {
        scene.line(&fit(line, at.width.into(), look), at);
    }
    for (line, at) in yours(model, snapshot, look).into_iter().zip(you.rows()) {
        scene.line(&fit(line, at.width.into(), look), at);
    }
}

/// The viewer's claims, and which of them to look at.
fn yours(model: &Model, snapshot: &Snapshot, look: &Look) -> Vec<Line<'static>> {
    let theme = &look.theme;
    let mine = || snapshot.claims.iter().filter(|c| c.uid == model.viewer.uid);
    if mine().next().is_none() {
        return Vec::new();
    }
    let on_gpus = mine().filter(|c| !c.place.in_host()).flat_map(|c| &c.gpus);
    let claimed: f64 = on_gpus.map(|g| g.sm_request).sum();
    let mut text = format!("claimed {}", zero(parts(claimed)));
    if let Some(sum) = split(mine(), snapshot) {
        text.push_str(&format!(
            ": used {}, unused {}",
            zero(parts(sum.used)),
            zero(parts(sum.unused))
        ));
        if sum.burst >= 0.005 {
            text.push_str(&format!(", burst {}", zero(parts(sum.burst))));
        }
    }
    let mut lines = vec![Line::from(vec![
        span("YOU ", theme.heading),
        span(text, theme.text),
    ])];
    for claim in mine() {
        let words = words(claim, snapshot, model.clock, look.glyphs.arrow);
        if words.sign {
            lines.push(Line::from(vec![
                span(format!("{} ", look.glyphs.sign), theme.warn),
                span(format!("{} {}", claim.id, words.text), theme.text),
            ]));
        }
    }
    lines
}
