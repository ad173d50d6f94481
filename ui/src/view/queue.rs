//! Waiting claims in short: the place, what is wanted, when it starts and after what.

use gshare_proto::counts::many;
use gshare_proto::{OffView, QueueView};
use ratatui::text::Line;

use super::{Row, View, line, span, window};
use crate::model::{RowKey, Section};
use crate::text::{share, width};

/// What is being done for a waiting claim, else why it waits.
fn reason(waiting: &QueueView) -> &str {
    waiting.plan.as_deref().unwrap_or(&waiting.reason)
}

/// `1 GPU`, `2 GPUs`, `0.50`.
pub(super) fn size(waiting: &QueueView) -> String {
    match waiting.gpus {
        0 | 1 if waiting.share < 1.0 => share(waiting.share),
        0 | 1 => "1 GPU".to_owned(),
        n => format!("{n} GPUs"),
    }
}

/// Rows that the list could fill.
pub(super) fn wanted(view: &View<'_>) -> usize {
    match view.snapshot.service.as_ref().and_then(|s| s.off.as_ref()) {
        Some(off) => off_means(view, off).len(),
        None => view.model.queue_rows().len(),
    }
}

/// What is different while gshare is off, in place of a queue.
fn off_means(view: &View<'_>, off: &OffView) -> Vec<Row> {
    let clock = view.model.clock;
    let (since, by) = (clock.short_time(off.since_ms), &off.by);
    let claims = many(view.snapshot.claims.len(), "claim");
    let back = match off.until_ms {
        Some(at) => format!("at {}", clock.short_time(at)),
        None => "later".to_owned(),
    };
    let rows = [
        ("limits", "none: a program can take all of a GPU".to_owned()),
        (
            "claims",
            format!("{claims} kept; nothing enforces sizes, time limits rest"),
        ),
        ("queue", "nobody waits: claims start at once".to_owned()),
        (&back, "limits return; nothing is ended for it".to_owned()),
        (
            "figures",
            "are still measured; the history has them".to_owned(),
        ),
    ];
    let head = line!(view; heading "WHAT OFF MEANS", dim format!("  since {since}, {by}"));
    let rows = rows
        .iter()
        .map(|(what, text)| line!(view; dim format!("  {what:<10}"), text text.clone()));
    [head].into_iter().chain(rows).map(Row::from).collect()
}

/// The list on the first screen: the heading beside the first; those that are out of sight are counted.
pub(super) fn list(view: &View<'_>, cols: usize, room: usize) -> Vec<Row> {
    if let Some(off) = view.snapshot.service.as_ref().and_then(|s| s.off.as_ref()) {
        return off_means(view, off);
    }
    let rows = view.model.queue_rows();
    if rows.is_empty() {
        return vec![line!(view; heading "QUEUE", dim " nobody waits").into()];
    }
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
    let texts = |q: &QueueView| {
        let waits = format!("waits {}", view.model.clock.since(q.since_ms));
        let (place, size, start) = (
            q.position.to_string(),
            size(q),
            view.or_dash(q.starts(view.model.clock.now_ms)),
        );
        [
            place,
            q.id.clone(),
            q.user.clone(),
            q.what.clone(),
            size,
            start,
            waits,
        ]
    };
    let texts: Vec<[String; 7]> = shown.iter().map(|q| texts(q)).collect();
    // Columns at least and at most.
    let limits = [(0, 9), (0, 7), (4, 10), (6, 16), (0, 20), (0, 40), (0, 40)];
    let cols_of = |i: usize| {
        let longest = texts.iter().map(|t| width(&t[i])).max().unwrap_or(0);
        longest.clamp(limits[i].0, limits[i].1)
    };
    let cols_of: [usize; 7] = std::array::from_fn(cols_of);
    let fixed = width(head) + [0, 1, 2, 4, 5].map(|i| cols_of[i]).iter().sum::<usize>() + 9;
    let with_program = !page && cols >= fixed + cols_of[3] + 14;
    let mut out = Vec::new();
    for (i, (waiting, texts)) in shown.iter().zip(&texts).enumerate() {
        let mine = waiting.uid == view.model.viewer.uid;
        let name = if mine { theme.strong } else { theme.text };
        let style = if focus { theme.focus } else { theme.heading };
        let head = if i == 0 {
            head
        } else {
            &" ".repeat(width(head))
        };
        let more = if i + 1 == shown.len() { more } else { "" };
        let place = format!("{:>1$} ", texts[0], cols_of[0]);
        let mut line = Line::from(vec![span(head, style), span(place, theme.dim)]);
        for (at, style, gap, shown) in [
            (1, theme.dim, " ", true),
            (2, name, " ", true),
            (3, name, " ", with_program),
            (4, theme.text, "  ", true),
            (5, theme.strong, "  ", true),
            (6, theme.dim, "  ", page),
        ] {
            if shown {
                let text = view.left(&texts[at], cols_of[at]);
                line.push_span(span(text + gap, style));
            }
        }
        let rest = cols.saturating_sub(line.width() + width(more));
        line.push_span(span(view.left(reason(waiting), rest), theme.dim));
        line.push_span(span(more.to_owned(), theme.key));
        let key = RowKey::Waiting(waiting.id.clone());
        out.push(view.row(line, cols, Section::Queue, key));
    }
    out
}
