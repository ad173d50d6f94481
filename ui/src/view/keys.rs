//! The last lines: keys that work now, or what was just said, or what is being typed; and the demo's
//! caption.

use gshare_proto::counts::many;
use ratatui::text::{Line, Span};

use super::{Row, Target, fit, span};
use crate::keymap::{self, Command};
use crate::model::{Model, Tone};
use crate::text::{left, span_width, width, wrap};
use crate::theme::Look;

/// The foot of the screen.
pub(super) struct Foot {
    /// Its rows.
    pub(super) rows: Vec<Row>,
    /// Column of the cursor on the first of them.
    pub(super) cursor: Option<usize>,
}

/// A caption has two rows on a screen that is narrower than this and has at least so many rows.
const TWO_ROWS: (usize, usize) = (132, 24);

/// Rows of the foot on a screen of this size.
pub(super) fn rows(model: &Model, (cols, rows): (usize, usize)) -> usize {
    match model.caption {
        None => 1,
        // How far a recording has got is never long.
        Some(_) if model.recorded || cols >= TWO_ROWS.0 || rows < TWO_ROWS.1 => 2,
        Some(_) => 3,
    }
}

/// The foot of a screen of this size.
pub(super) fn lines(model: &Model, look: &Look, size: (usize, usize)) -> Foot {
    let theme = &look.theme;
    let cols = size.0;
    let caption = rows(model, size) - 1;
    let mut spans: Vec<Span<'static>> = Vec::new();
    let mut cursor = None;
    if model.filtering {
        let (before, after) = model.filter.split();
        cursor = Some(width("filter: ") + width(before));
        spans.push(span("filter: ", theme.key));
        spans.push(span(format!("{before}{after}  "), theme.text));
    } else if let Some(toast) = &model.toast {
        let style = match toast.tone {
            Tone::Good => theme.good,
            Tone::Plain => theme.text,
            Tone::Bad => theme.error,
        };
        let line = fit(Line::styled(toast.text.clone(), style), cols, look);
        return Foot {
            rows: with_caption(model, look, (cols, caption), line.into()),
            cursor: None,
        };
    } else if !model.filter.text().is_empty() {
        let shown = many(model.filtered_rows(), "row");
        let text = format!("filter `{}`: {shown}  ", model.filter.text());
        spans.push(span(text, theme.text));
    }
    let before = span_width(&spans);
    let shown = shortened(keymap::line(model), cols.saturating_sub(before));
    let mut hits = Vec::new();
    let mut at = before;
    for (i, command) in shown.into_iter().enumerate() {
        if i > 0 {
            spans.push(Span::raw("  "));
            at += 2;
        }
        let label = format!(" {}", command.label);
        let key = first(command);
        let cols = width(key) + width(&label);
        hits.push((at..at + cols, Target::Command(command)));
        at += cols;
        spans.push(span(key, look.theme.key));
        spans.push(span(label, look.theme.dim));
    }
    let line = fit(Line::from(spans), cols, look);
    Foot {
        rows: with_caption(model, look, (cols, caption), Row { line, hits }),
        cursor,
    }
}

/// The key that is told; the help has the others.
fn first(command: &Command) -> &'static str {
    command.shown.split(' ').next().unwrap_or_default()
}

/// The commands whose keys and labels fit into `room` columns; the least important go first.
fn shortened(mut commands: Vec<&'static Command>, room: usize) -> Vec<&'static Command> {
    let wanted = |commands: &[&Command]| {
        let texts = commands
            .iter()
            .map(|c| width(first(c)) + 1 + width(c.label));
        texts.sum::<usize>() + 2 * commands.len().saturating_sub(1)
    };
    while wanted(&commands) > room && !commands.is_empty() {
        let least = commands.iter().enumerate().min_by_key(|(_, c)| c.rank);
        let Some((at, _)) = least else { break };
        commands.remove(at);
    }
    commands
}

/// The keys, and below them the caption in so many rows, with its key behind the first.
fn with_caption(model: &Model, look: &Look, (cols, rows): (usize, usize), keys: Row) -> Vec<Row> {
    let mut out = vec![keys];
    if let Some(caption) = &model.caption {
        let hint = if model.captions_paused {
            "  Space goes on "
        } else {
            "  Space pauses "
        };
        let room = cols.saturating_sub(width(hint));
        // Where it fits into one row it stands in the first.
        let mut texts = match width(caption) < room {
            true => vec![caption.clone()],
            false => wrap(caption, room.saturating_sub(1), rows, &look.glyphs),
        };
        texts.resize(rows, String::new());
        for (i, text) in texts.into_iter().enumerate() {
            let text = left(&format!(" {text}"), room, &look.glyphs);
            let hint = if i == 0 {
                hint.to_owned()
            } else {
                " ".repeat(width(hint))
            };
            let line = Line::styled(format!("{text}{hint}"), look.theme.caption);
            out.push(fit(line, cols, look).into());
        }
    }
    out
}
