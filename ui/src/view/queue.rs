//! The short list of waiting claims: place, size, start, and what it waits for.

use gshare_proto::counts::many;
use gshare_proto::{OffView, QueueView, messages};
use ratatui::layout::{Constraint, Rect};
use ratatui::text::{Line, Span};
use ratatui::widgets::{Row as Cells, Table};

use super::{Facts, Scene, View, below, cells, columns, fit, line, place, row_of, span, window};
use crate::model::{Page, Section};
use crate::text::share;

/// `1 GPU`, `2 GPUs`, `0.50`.
pub(super) fn size(waiting: &QueueView) -> String {
    match waiting.gpus {
        0 | 1 if waiting.share < 1.0 => share(waiting.share),
        n => many(n.max(1) as usize, "GPU"),
    }
}

fn off<'a>(view: &View<'a>) -> Option<&'a OffView> {
    view.snapshot.service.as_ref()?.off.as_ref()
}

pub(super) fn wanted(view: &View<'_>) -> usize {
    match off(view) {
        Some(_) => 6,
        None => view.model.queue_rows().len(),
    }
}

/// The effect of off, in place of a queue.
fn off_means(view: &View<'_>, off: &OffView, cols: usize) -> Vec<Line<'static>> {
    let clock = view.model.clock;
    let (since, by) = (clock.short_time(off.since_ms), &off.by);
    let claims = many(view.snapshot.claims.len(), "claim");
    let kept = format!("{claims} still there; sizes are not enforced, time limits are paused");
    let queue = match view.snapshot.queue.len() {
        0 => "nobody waits: claims start at once".to_owned(),
        n => format!("claims start at once where memory is free; waiting: {n}"),
    };
    let back = off.until_ms.map(|at| clock.short_time(at));
    let back = back.map_or("later".to_owned(), |at| format!("at {at}"));
    let mut out = Facts::new(view.look, cols, (2, 10));
    let head = line!(view; heading "WHAT OFF MEANS", dim format!("  since {since}, {by}"));
    out.lines.push(head);
    for (what, text) in [
        ("limits", "none: a program can take all of a GPU"),
        ("claims", &kept),
        ("queue", &queue),
        (&back, "limits apply again; no program is ended"),
        ("history", "use is still measured and recorded"),
    ] {
        out.tell(what, text, view.theme.text, 1);
    }
    out.lines
}

/// The list: on its own screen below its heading, on the first one beside it; hidden rows are counted.
pub(super) fn draw(view: &View<'_>, area: Rect, scene: &mut Scene<'_>) {
    let model = view.model;
    let page = model.page == Page::Queue;
    let rows = model.queue_rows();
    let n = rows.len();
    if let Some(off) = off(view).filter(|_| !page || n == 0) {
        return scene.rows(off_means(view, off, area.width.into()), area);
    }
    if n == 0 {
        let none = match &view.snapshot.service {
            Some(service) if service.slurm => messages::none_waits_here(),
            Some(_) => "nobody waits".to_owned(),
            None => "no service, so no queue".to_owned(),
        };
        let lines = match page {
            true => vec![line!(view; heading "WAITING"), line!(view; dim none)],
            false => vec![line!(view; heading "QUEUE ", dim none)],
        };
        return scene.rows(lines, area);
    }
    let focus = model.focus() == Section::Queue;
    let at = model.chosen_index(Section::Queue).filter(|_| focus);
    let room = usize::from(area.height).saturating_sub(page.into());
    let shown = window(n, room, at);
    let chosen = at.map(|at| cells(at - shown.start));
    let head = match (page, focus) {
        (true, _) => {
            line!(view; heading "WAITING", dim format!(" {n}, next to start on top  {}", place(&shown, n)))
        }
        (_, true) => line!(view; focus format!("QUEUE {n}  ")),
        _ => line!(view; heading format!("QUEUE {n}  ")),
    };
    let at = match page {
        true => below(area, 1),
        false => columns(area, cells(head.width()), u16::MAX),
    };
    scene.line(head, area, 0);
    let hidden = Some(n - shown.len()).filter(|n| *n > 0 && !page);
    let more = hidden.map_or_else(String::new, |n| format!(" +{n} on 3"));
    let keys = model.keys(Section::Queue).drain(shown.clone()).collect();
    let cols = usize::from(at.width).saturating_sub(more.len());
    let table = table(view, &rows[shown], cols);
    scene.table(view, table, at, (Section::Queue, 0, keys));
    if let Some(y) = chosen.filter(|_| !page) {
        // The heading is part of the first row.
        let row = row_of(area, y).intersection(scene.buf.area);
        scene.buf.set_style(row, view.theme.selected);
    }
    let more = line!(view; key more).right_aligned();
    scene.line(more, area, area.height.saturating_sub(1));
}

/// A row for each: its start and the plan for it, otherwise why it waits.
fn table(view: &View<'_>, shown: &[&QueueView], cols: usize) -> Table<'static> {
    let (theme, model) = (view.theme, view.model);
    let texts = |q: &&QueueView| {
        let is_own = q.uid == model.viewer.uid;
        let name = if is_own { theme.strong } else { theme.text };
        let start = view.or_dash(q.starts(model.clock.now_ms));
        let waits = format!("waits {}", model.clock.since(q.since_ms));
        let why = q.plan.as_deref().unwrap_or(&q.reason);
        [
            span(q.position.to_string(), theme.dim),
            span(q.id.clone(), theme.dim),
            span(q.user.clone(), name),
            span(q.what.clone(), name),
            span(size(q), theme.text),
            span(start, theme.strong),
            span(waits, theme.dim),
            span(why, theme.dim),
        ]
    };
    let texts: Vec<[Span<'static>; 8]> = shown.iter().map(texts).collect();
    let most = [9, 7, 10, 16, 20, 40, 40, 0];
    let longest = |i: usize| texts.iter().map(|t| t[i].width()).max().unwrap_or(0);
    // A gap after each figure.
    let gap = |i| usize::from((4..7).contains(&i));
    let mut widths: [usize; 8] = std::array::from_fn(|i| longest(i).min(most[i]) + gap(i));
    // The program is shown on the first screen if there is room; the waiting time on its own screen.
    widths[if model.page == Page::Queue { 3 } else { 6 }] = 0;
    let rest = |widths: &[usize; 8]| {
        let known = widths.iter().filter(|n| **n > 0);
        cols.saturating_sub(known.map(|n| n + 1).sum())
    };
    if rest(&widths) < 14 {
        widths[3] = 0;
    }
    widths[7] = rest(&widths);
    let row = |mut texts: [Span<'static>; 8]| {
        texts[7].content = view.brief(&texts[7].content, widths[7]).into();
        let cells = texts.into_iter().zip(widths).filter(|(_, cols)| *cols > 0);
        Cells::new(cells.map(|(text, cols)| fit(text.into(), cols, view.look)))
    };
    let columns = widths.into_iter().filter(|n| *n > 0);
    Table::new(
        texts.into_iter().map(row),
        columns.map(|n| Constraint::Length(cells(n))),
    )
}
