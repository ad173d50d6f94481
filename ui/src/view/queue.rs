//! Waiting claims in short: the place, what is wanted, when it starts and after what.

use gshare_proto::QueueView;
use ratatui::text::Line;

use super::{Row, View, span, window, zero};
use crate::model::{RowKey, Section};
use crate::text::{share, width};

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
fn start(view: &View<'_>, waiting: &QueueView) -> String {
    let clock = view.model.clock;
    match (waiting.expected_ms, &waiting.expected) {
        (Some(at), _) if at <= clock.now_ms => "at once".to_owned(),
        (_, Some(expected)) if !waiting.by_hours => expected.when(),
        (Some(at), _) => format!("in {}", clock.until(at)),
        (None, _) => view.glyphs.dash.to_owned(),
    }
}

/// The list on the first screen: the heading beside the first; those that are out of sight are counted.
pub(super) fn list(view: &View<'_>, cols: usize, room: usize) -> Vec<Row> {
    let rows = view.model.queue_rows();
    let focus = view.model.section == Section::Queue;
    let at = view.model.chosen_index(Section::Queue);
    let shown = window(rows.len(), room, at.filter(|_| focus));
    let more = match rows.len() - shown.len() {
        0 => String::new(),
        hidden => format!("  +{hidden} on 3"),
    };
    let head = format!("QUEUE {}  ", rows.len());
    lines(view, cols, &rows[shown], (&head, &more))
}

/// A row for each. Without a heading beside the first, how long each waits stands in place of what runs.
pub(super) fn lines(
    view: &View<'_>,
    cols: usize,
    shown: &[&QueueView],
    (head, more): (&str, &str),
) -> Vec<Row> {
    let theme = view.theme;
    let page = head.is_empty();
    let focus = page || view.model.section == Section::Queue;
    // Texts of one width.
    let column = |of: &dyn Fn(&QueueView) -> String, least: usize, most: usize| {
        let texts: Vec<String> = shown.iter().map(|q| of(q)).collect();
        let cols = texts.iter().map(|t| width(t)).max().unwrap_or(0);
        let cols = cols.clamp(least, most);
        texts
            .into_iter()
            .map(|t| view.left(&t, cols))
            .collect::<Vec<_>>()
    };
    let cols_of = |texts: &[String]| texts.first().map_or(0, |t| width(t));
    let places = column(&|q| q.position.to_string(), 0, 9);
    let ids = column(&|q| q.id.clone(), 0, 7);
    let users = column(&|q| q.user.clone(), 4, 10);
    let programs = column(&|q| q.what.clone(), 6, 16);
    let sizes = column(&size, 0, 20);
    let starts = column(&|q| start(view, q), 0, 40);
    let waits = column(
        &|q| format!("waits {}", view.model.clock.since(q.since_ms)),
        0,
        40,
    );
    let fixed: usize = [&places, &ids, &users, &sizes, &starts]
        .map(|c| cols_of(c))
        .iter()
        .sum();
    let fixed = width(head) + fixed + 9;
    let with_program = !page && cols >= fixed + cols_of(&programs) + 14;
    let mut out = Vec::new();
    for (i, waiting) in shown.iter().enumerate() {
        let mine = waiting.uid == view.model.viewer.uid;
        let name = if mine { theme.strong } else { theme.text };
        let style = if focus { theme.focus } else { theme.heading };
        let head = match i {
            0 => head.to_owned(),
            _ => " ".repeat(width(head)),
        };
        let more = if i + 1 == shown.len() { more } else { "" };
        let program = match with_program {
            true => format!("{} ", programs[i]),
            false => String::new(),
        };
        let mut line = Line::from(vec![
            span(head, style),
            span(
                format!("{:>1$} {2} ", waiting.position, cols_of(&places), ids[i]),
                theme.dim,
            ),
            span(format!("{} {program}", users[i]), name),
            span(format!("{}  ", sizes[i]), theme.text),
            span(format!("{}  ", starts[i]), theme.strong),
        ]);
        if page {
            line.push_span(span(format!("{}  ", waits[i]), theme.dim));
        }
        let rest = cols.saturating_sub(line.width() + width(more));
        line.push_span(span(view.left(reason(waiting), rest), theme.dim));
        line.push_span(span(more.to_owned(), theme.key));
        out.push(view.row(
            line,
            cols,
            Section::Queue,
            RowKey::Waiting(waiting.id.clone()),
        ));
    }
    out
}
