//! Waiting claims in short: the place, what is wanted, when it starts and after what.

use gshare_proto::QueueView;
use ratatui::text::Line;

use super::{Row, chosen, span, window, zero};
use crate::model::{Model, RowKey, Section};
use crate::text::{cut, left, share, width};
use crate::theme::Look;

/// What is being done for a waiting claim, else why it waits.
fn reason(waiting: &QueueView) -> &str {
    waiting.plan.as_deref().unwrap_or(&waiting.reason)
}

/// `1 GPU`, `2 GPUs`, `0.50`.
pub(super) fn size(waiting: &QueueView) -> String {
    match waiting.gpus {
        0 | 1 if waiting.share < 1.0 => zero(share(waiting.share)),
        0 | 1 => "1 GPU".to_owned(),
        n => format!("{n} GPUs"),
    }
}

/// When it starts: `in 12m`, `in 5m to 12m`, or a dash.
fn start(model: &Model, waiting: &QueueView, look: &Look) -> String {
    match (waiting.expected_ms, &waiting.expected) {
        (Some(at), _) if at <= model.clock.now_ms => "at once".to_owned(),
        (_, Some(expected)) if !waiting.by_hours => expected.when(),
        (Some(at), _) => format!("in {}", model.clock.until(at)),
        (None, _) => look.glyphs.dash.to_owned(),
    }
}

/// The list on the first screen: the heading beside the first; those that are out of sight are counted.
pub(super) fn list(model: &Model, look: &Look, cols: usize, room: usize) -> Vec<Row> {
    let rows = model.queue_rows();
    let focus = model.section == Section::Queue;
    let at = model.chosen_index(Section::Queue).filter(|_| focus);
    let shown = window(rows.len(), room, at);
    let more = match rows.len() - shown.len() {
        0 => String::new(),
        hidden => format!("  +{hidden} on 3"),
    };
    let head = format!("QUEUE {}  ", rows.len());
    lines(model, look, cols, &rows[shown], (&head, &more))
}

/// A row for each. Without a heading beside the first, how long each waits stands in place of what runs.
pub(super) fn lines(
    model: &Model,
    look: &Look,
    cols: usize,
    shown: &[&QueueView],
    (head, more): (&str, &str),
) -> Vec<Row> {
    let (theme, glyphs) = (&look.theme, &look.glyphs);
    let page = head.is_empty();
    let focus = page || model.section == Section::Queue;
    let longest = |f: &dyn Fn(&QueueView) -> usize| shown.iter().map(|q| f(q)).max().unwrap_or(0);
    let since = |q: &QueueView| format!("waits {}", model.clock.since(q.since_ms));
    let start = |q: &QueueView| start(model, q, look);
    let place = longest(&|q| q.position.to_string().len());
    let id = longest(&|q| width(&q.id)).min(7);
    let user = longest(&|q| width(&q.user)).clamp(4, 10);
    let what = longest(&|q| width(&q.what)).clamp(6, 16);
    let (sizes, starts) = (
        longest(&|q| width(&size(q))),
        longest(&|q| width(&start(q))),
    );
    let waits = longest(&|q| width(&since(q)));
    let fixed = width(head) + place + id + user + sizes + starts + 9;
    let what = if !page && cols >= fixed + what + 14 {
        what
    } else {
        0
    };
    let mut out = Vec::new();
    for (i, waiting) in shown.iter().enumerate() {
        let mine = waiting.uid == model.viewer.uid;
        let name = if mine { theme.strong } else { theme.text };
        let style = if focus { theme.focus } else { theme.heading };
        let (head, more) = (
            if i == 0 {
                head.to_owned()
            } else {
                " ".repeat(width(head))
            },
            if i + 1 == shown.len() { more } else { "" },
        );
        let program = match what {
            0 => String::new(),
            n => format!("{} ", left(&waiting.what, n, glyphs)),
        };
        let who = format!("{} {program}", left(&waiting.user, user, glyphs));
        let mut line = Line::from(vec![
            span(head, style),
            span(format!("{:>place$} ", waiting.position), theme.dim),
            span(format!("{} ", left(&waiting.id, id, glyphs)), theme.dim),
            span(who, name),
            span(
                format!("{}  ", left(&size(waiting), sizes, glyphs)),
                theme.text,
            ),
            span(
                format!("{}  ", left(&start(waiting), starts, glyphs)),
                theme.strong,
            ),
        ]);
        if page {
            let waits = left(&since(waiting), waits, glyphs);
            line.push_span(span(format!("{waits}  "), theme.dim));
        }
        let rest = cols.saturating_sub(line.width() + width(more));
        let why = left(&cut(reason(waiting), rest, glyphs), rest, glyphs);
        line.push_span(span(why, theme.dim));
        line.push_span(span(more.to_owned(), theme.key));
        let key = RowKey::Waiting(waiting.id.clone());
        if focus && model.current() == Some(&key) {
            line = chosen(line, cols, look);
        }
        out.push(Row::of(line, Section::Queue, key));
    }
    out
}
