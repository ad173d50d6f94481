//! Waiting claims: why each waits, and what would start now.

use gshare_proto::QueueView;
use ratatui::text::Line;

use super::plan::Plan;
use super::{Row, chosen, fit, span};
use crate::model::{Model, RowKey, Section};
use crate::text::{cut, gib, share, width, wrap};
use crate::theme::Look;
use crate::view::claims::short_class;

/// Rows with the heading, if everything is shown.
pub(super) fn wanted(model: &Model) -> usize {
    match model.queue_rows().len() {
        0 => 0,
        n => 1 + 2 * n,
    }
}

/// Whether a reason does not fit into one row.
pub(super) fn long(model: &Model, cols: usize) -> bool {
    let text = |q: &QueueView| {
        let start = q.would_start.as_ref().map_or(0, |s| width(s) + 15);
        width(&reason(q)) + start + INDENT
    };
    model.queue_rows().into_iter().any(|q| text(q) > cols)
}

/// What is being done for a waiting claim, then why it waits.
fn reason(waiting: &QueueView) -> String {
    match &waiting.plan {
        Some(plan) if waiting.reason.is_empty() => plan.clone(),
        Some(plan) => format!("{plan}; {}", waiting.reason),
        None => waiting.reason.clone(),
    }
}

/// Columns before a reason.
const INDENT: usize = 5;

/// Heading and waiting claims, two rows each: who, and why.
pub(super) fn lines(model: &Model, look: &Look, plan: &Plan) -> Vec<Row> {
    let theme = &look.theme;
    let rows = model.queue_rows();
    let focus = model.section == Section::Queue;
    let room = plan.queue.saturating_sub(1);
    let each = if room >= 2 { 1 + plan.why } else { 1 };
    let shown = super::window(rows.len(), room / each, model.chosen_index(Section::Queue));
    let mut head = Line::from(vec![
        span("QUEUE", if focus { theme.focus } else { theme.heading }),
        span(format!(" {}", rows.len()), theme.text),
    ]);
    if shown.len() < rows.len() {
        let place = match shown.len() {
            0 => "none".to_owned(),
            1 => (shown.start + 1).to_string(),
            _ => format!("{}-{}", shown.start + 1, shown.end),
        };
        let note = format!("  {place} shown, all on 3");
        head.push_span(span(note, theme.dim));
    }
    let mut out = vec![Row::from(fit(head, plan.width, look))];
    for waiting in &rows[shown] {
        let line = fit(who(model, waiting, look, plan, true), plan.width, look);
        let key = RowKey::Waiting(waiting.id.clone());
        let line = if focus && model.current() == Some(&key) {
            chosen(line, plan.width, look)
        } else {
            line
        };
        out.push(Row::of(line, Section::Queue, key.clone()));
        if each > 1 {
            let reasons = why(waiting, look, plan).into_iter();
            out.extend(reasons.map(|line| Row::of(line, Section::Queue, key.clone())));
        }
    }
    out
}

/// When it starts, where that is known: `starts in 12m`, `starts in ~12m` by experience alone.
fn start(model: &Model, waiting: &QueueView) -> Option<String> {
    match (waiting.expected_ms, waiting.likely_ms) {
        (Some(at), _) if at <= model.clock.now_ms => Some("starts at any moment".to_owned()),
        (Some(at), _) => Some(format!("starts in {}", model.clock.until(at))),
        (None, Some(at)) => Some(format!("starts in ~{}", model.clock.until(at))),
        (None, None) => None,
    }
}

/// A waiting claim's owner, what it wants, since when; with `starts`, also when it starts.
pub(super) fn who(
    model: &Model,
    waiting: &QueueView,
    look: &Look,
    plan: &Plan,
    starts: bool,
) -> Line<'static> {
    let theme = &look.theme;
    let name = waiting.name.as_ref().filter(|n| **n != waiting.what);
    let what = match name {
        Some(name) => format!("{name}: {}", waiting.what),
        None => waiting.what.clone(),
    };
    let memory = match waiting.mem_request {
        Some(bytes) if waiting.gpus > 1 => {
            format!("needs {} GiB on each", gib(bytes))
        }
        Some(bytes) => format!("needs {} GiB", gib(bytes)),
        None => String::new(),
    };
    let mut wait = format!("waits {}", model.clock.since(waiting.since_ms));
    if let Some(start) = start(model, waiting).filter(|_| starts && plan.wide) {
        wait.push_str(&format!(", {start}"));
    }
    let glyphs = &look.glyphs;
    let class = if plan.wide {
        format!("{:<6}", short_class(&waiting.class))
    } else {
        String::new()
    };
    let who = crate::text::left(&waiting.user, width(&waiting.user).clamp(4, 12), glyphs);
    let figures = match waiting.gpus {
        0 | 1 if waiting.share < 1.0 => format!("  {} GPU  {memory}", share(waiting.share)),
        0 | 1 => format!("  1 GPU  {memory}"),
        n => format!("  {n} GPUs  {memory}"),
    };
    let fixed = width(&waiting.id).max(3) + 2 + width(&who) + width(&class);
    let room = plan
        .width
        .saturating_sub(fixed + width(&figures) + 2 + width(&wait));
    let what = crate::text::left(&what, room.min(width(&what).max(14)), glyphs);
    let mut line = Line::from(vec![
        span(format!("{:<3} {who} ", waiting.id), theme.text),
        span(class, theme.dim),
        span(what, theme.text),
        span(figures, theme.dim),
    ]);
    let edge = plan.width.min(120);
    let gap = edge.saturating_sub(line.width() + width(&wait));
    if gap >= 2 {
        line.push_span(span(" ".repeat(gap), theme.text));
        line.push_span(span(wait, theme.warn));
    }
    line
}

fn why(waiting: &QueueView, look: &Look, plan: &Plan) -> Vec<Line<'static>> {
    let (theme, glyphs) = (&look.theme, &look.glyphs);
    let start = waiting.would_start.as_ref();
    let start = start.map(|args| format!("{args} starts now"));
    let start = start.map(|s| (format!(" {} ", glyphs.dot), s));
    let tail = start.as_ref().map_or(0, |(gap, s)| width(gap) + width(s));
    let cols = plan.width.saturating_sub(INDENT);
    let mut rows = wrap(&reason(waiting), cols, plan.why, glyphs);
    // What would start now is never cut, and stands at the end of the reason.
    if let Some(last) = rows.pop() {
        let fits = width(&last) + tail <= cols;
        if fits || rows.len() + 1 == plan.why {
            rows.push(cut(&last, cols.saturating_sub(tail), glyphs));
        } else {
            rows.push(last);
            rows.push(String::new());
        }
    }
    rows.resize(plan.why, String::new());
    let at = rows.iter().rposition(|r| !r.is_empty()).unwrap_or(0);
    let at = if width(&rows[at]) + tail <= cols {
        at
    } else {
        plan.why - 1
    };
    let lines = rows.into_iter().enumerate().map(|(i, row)| {
        let mut line = Line::styled(format!("{}{row}", " ".repeat(INDENT)), theme.dim);
        if let (true, Some((gap, start))) = (i == at, &start) {
            if !row.is_empty() {
                line.push_span(span(gap.clone(), theme.dim));
            }
            line.push_span(span(start.clone(), theme.key));
        }
        fit(line, plan.width, look)
    });
    lines.collect()
}
