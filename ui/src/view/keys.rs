//! The last lines: keys that work now, or what was just said, or what is being typed; and the demo's
//! caption.

use ratatui::text::{Line, Span};

use super::{Row, Target, fit, span};
use crate::keymap::{self, Command};
use crate::model::{Model, Tone};
use crate::text::{left, span_width, width};
use crate::theme::Look;

/// The foot of the screen.
pub(super) struct Foot {
    /// Its rows.
    pub(super) rows: Vec<Row>,
    /// Column of the cursor on the first of them.
    pub(super) cursor: Option<usize>,
}

/// The foot in `cols` columns.
pub(super) fn lines(model: &Model, look: &Look, cols: usize) -> Foot {
    let theme = &look.theme;
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
            rows: with_caption(model, look, cols, line.into()),
            cursor: None,
        };
    } else if !model.filter.text().is_empty() {
        let shown = model.claim_rows().len() + model.queue_rows().len();
        let text = format!("filter `{}`: {shown} rows  ", model.filter.text());
        spans.push(span(text, theme.warn));
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
        let cols = width(command.shown) + width(&label);
        hits.push((at..at + cols, Target::Command(command)));
        at += cols;
        spans.push(span(command.shown, look.theme.key));
        spans.push(span(label, look.theme.dim));
    }
    let line = fit(Line::from(spans), cols, look);
    Foot {
        rows: with_caption(model, look, cols, Row { line, hits }),
        cursor,
    }
}

/// The commands whose keys and labels fit into `room` columns; the least important go first.
fn shortened(mut commands: Vec<&'static Command>, room: usize) -> Vec<&'static Command> {
    let wanted = |commands: &[&Command]| {
        let texts = commands.iter().map(|c| width(c.shown) + 1 + width(c.label));
        texts.sum::<usize>() + 2 * commands.len().saturating_sub(1)
    };
    while wanted(&commands) > room && !commands.is_empty() {
        let least = commands.iter().enumerate().min_by_key(|(_, c)| c.rank);
        let Some((at, _)) = least else { break };
        commands.remove(at);
    }
    commands
}

fn with_caption(model: &Model, look: &Look, cols: usize, keys: Row) -> Vec<Row> {
    let mut rows = vec![keys];
    if let Some(caption) = &model.caption {
        let hint = if model.captions_paused {
            "  Space goes on "
        } else {
            "  Space pauses "
        };
        let room = cols.saturating_sub(width(hint));
        let text = left(&format!(" {caption}"), room, &look.glyphs);
        let line = Line::styled(format!("{text}{hint}"), look.theme.caption);
        rows.push(fit(line, cols, look).into());
    }
    rows
}
