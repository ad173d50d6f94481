//! The first line: whose machine, which GPUs, how caps hold; and what must be said above everything.

use gshare_proto::counts::many;
use gshare_proto::{Caps, Snapshot};
use ratatui::text::{Line, Span};

use super::{fit, span};
use crate::model::Model;
use crate::text::{span_width, wrap};
use crate::theme::Look;

/// `4x RTX 4090 + 2x H100`.
fn models(snapshot: &Snapshot) -> String {
    let mut counts: Vec<(&str, usize)> = Vec::new();
    for gpu in &snapshot.gpus {
        match counts.iter_mut().find(|(name, _)| *name == gpu.short) {
            Some((_, n)) => *n += 1,
            None => counts.push((&gpu.short, 1)),
        }
    }
    let words: Vec<String> = counts
        .iter()
        .map(|(name, n)| match n {
            1 => (*name).to_owned(),
            n => format!("{n}x {name}"),
        })
        .collect();
    if words.is_empty() {
        "no GPU".to_owned()
    } else {
        words.join(" + ")
    }
}

fn caps(snapshot: &Snapshot) -> &'static str {
    match (&snapshot.service, snapshot.caps) {
        (None, _) | (_, Caps::None) => "look only",
        (_, Caps::Strict) => "caps: strict",
        (_, Caps::Cooperative) => "caps: cooperative",
    }
}

/// `4 users  6 claims  1 waiting`.
fn counts(snapshot: &Snapshot) -> String {
    let mut words = vec![
        many(snapshot.users.len(), "user"),
        many(snapshot.claims.len(), "claim"),
    ];
    if !snapshot.queue.is_empty() {
        words.push(format!("{} waiting", snapshot.queue.len()));
    }
    words.join("  ")
}

/// What may stand on the line.
struct Item {
    span: Span<'static>,
    /// Dropped first: the smallest.
    rank: u8,
    right: bool,
    /// Said instead when there is little room.
    short: Option<String>,
}

/// The first line. What matters less is left out when there is no room; that the driver is simulated
/// is always said.
pub(super) fn line(model: &Model, look: &Look, width: usize) -> Line<'static> {
    let theme = &look.theme;
    let item = |text: String, style, rank, right| Item {
        span: span(text, style),
        rank,
        right,
        short: None,
    };
    let mut items = vec![item("gshare".to_owned(), theme.title, 9, false)];
    if let Some(snapshot) = &model.snapshot {
        if !snapshot.host.is_empty() {
            items.push(item(snapshot.host.clone(), theme.text, 5, false));
        }
        if snapshot.simulated {
            items.push(item(
                " SIMULATED DRIVER ".to_owned(),
                theme.simulated,
                10,
                false,
            ));
        }
        let mut gpus = item(models(snapshot), theme.text, 6, false);
        gpus.short = Some(snapshot.gpus_text());
        items.push(gpus);
        if let Some(driver) = &snapshot.driver {
            items.push(item(format!("driver {driver}"), theme.dim, 3, false));
        }
        let style = match caps(snapshot) {
            "look only" => theme.warn,
            "caps: strict" => theme.good,
            _ => theme.text,
        };
        items.push(item(caps(snapshot).to_owned(), style, 7, false));
        if snapshot.service.is_some() {
            items.push(item(counts(snapshot), theme.dim, 2, true));
        }
    }
    items.push(item(
        model.clock.time(model.clock.now_ms),
        theme.text,
        4,
        true,
    ));
    // What matters most takes its room first; the GPUs may do with their number.
    let mut order: Vec<usize> = (0..items.len()).collect();
    order.sort_by_key(|&i| std::cmp::Reverse(items[i].rank));
    let mut room = width;
    let mut kept = vec![false; items.len()];
    for i in order {
        let gap = if kept.contains(&true) { 2 } else { 0 };
        if let Some(short) = items[i].short.take()
            && items[i].span.width() + gap > room.saturating_sub(30)
        {
            items[i].span.content = short.into();
        }
        let wanted = items[i].span.width() + gap;
        if wanted <= room {
            room -= wanted;
            kept[i] = true;
        }
    }
    let mut kept = kept.into_iter();
    items.retain(|_| kept.next().unwrap_or(false));
    let (right, left): (Vec<Item>, Vec<Item>) = items.into_iter().partition(|i| i.right);
    let joined = |items: Vec<Item>| {
        let mut spans: Vec<Span<'static>> = Vec::new();
        for item in items {
            if !spans.is_empty() {
                spans.push(Span::raw("  "));
            }
            spans.push(item.span);
        }
        spans
    };
    let (mut spans, right) = (joined(left), joined(right));
    let gap = width.saturating_sub(span_width(&spans) + span_width(&right));
    spans.push(Span::raw(" ".repeat(gap)));
    spans.extend(right);
    fit(Line::from(spans), width, look)
}

/// The banner in at most `rows` rows.
pub(super) fn banner(model: &Model, look: &Look, width: usize, rows: usize) -> Vec<Line<'static>> {
    let Some(text) = model.banner() else {
        return Vec::new();
    };
    let style = if model.disconnected.is_some() {
        look.theme.error
    } else {
        look.theme.warn
    };
    let lines = wrap(&text, width, rows, &look.glyphs);
    lines.into_iter().map(|l| Line::styled(l, style)).collect()
}

/// Before the first snapshot.
pub(super) fn waiting(model: &Model, look: &Look, width: usize) -> Line<'static> {
    let line = match &model.disconnected {
        Some(why) => Line::styled(why.clone(), look.theme.error),
        None => Line::styled("asking for the first figures", look.theme.dim),
    };
    fit(line, width, look)
}
