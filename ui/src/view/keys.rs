//! The last lines: keys that work now, a message, or the input; and the demo's caption.

use gshare_proto::counts::many;
use ratatui::layout::Rect;
use ratatui::text::Line;

use super::{Cursor, Scene, Target, View, at, below, cells, columns, line, row_of, span};
use crate::keymap::{self, Command};
use crate::model::{Model, Tone};
use crate::text::{width, wrap};

/// A caption has two rows on a screen that is narrower than this and has at least this many rows.
const TWO_ROWS: (usize, usize) = (132, 24);

pub(super) fn rows(model: &Model, (cols, rows): (usize, usize)) -> usize {
    match model.caption {
        None => 1,
        // The position in a recording is always short.
        Some(_) if model.recorded || cols >= TWO_ROWS.0 || rows < TWO_ROWS.1 => 2,
        Some(_) => 3,
    }
}

/// Draws the bottom of the screen; returns the cursor's place in it.
pub(super) fn draw(view: &View<'_>, area: Rect, scene: &mut Scene<'_>) -> Cursor {
    let (model, theme) = (view.model, view.theme);
    let mut line = Line::default();
    let mut cursor = None;
    let said = model.toast.as_ref().filter(|_| !model.filtering);
    if model.filtering {
        let (before, after) = model.filter.split();
        cursor = Some(at(area, width("filter: ") + width(before), 0));
        line = line!(view; key "filter: ", text format!("{before}{after}  "));
    } else if let Some(toast) = said {
        let style = match toast.tone {
            Tone::Good => theme.good,
            Tone::Plain => theme.text,
            Tone::Bad => theme.error,
        };
        line = Line::from(span(toast.text.clone(), style));
    } else if !model.filter.text().is_empty() {
        let shown = many(model.filtered_rows(), "row");
        line = line!(view; text format!("filter `{}`: {shown}  ", model.filter.text()));
    }
    let room = usize::from(area.width).saturating_sub(line.width());
    let shown = shortened(keymap::line(model), room);
    let shown = if said.is_some() { Vec::new() } else { shown };
    for (i, command) in shown.into_iter().enumerate() {
        line.push_span(if i > 0 { "  " } else { "" });
        let from = line.width();
        line.extend(line!(view; key first(command), dim format!(" {}", command.label)));
        let place = columns(area, cells(from), cells(line.width() - from));
        scene.hit(row_of(place, 0), Target::Command(command));
    }
    scene.line(line, area, 0);
    scene.rows(caption(view, below(area, 1)), below(area, 1));
    cursor
}

/// The key that is shown; the help has the others.
fn first(command: &Command) -> &'static str {
    command.shown.split(' ').next().unwrap_or_default()
}

/// The commands whose keys and labels fit into `room` columns; the least important are dropped first.
fn shortened(mut commands: Vec<&'static Command>, room: usize) -> Vec<&'static Command> {
    let cols = |c: &&Command| width(first(c)) + width(c.label) + 3;
    while commands.iter().map(cols).sum::<usize>() > room + 2 {
        let least = commands.iter().enumerate().min_by_key(|(_, c)| c.rank);
        let Some((at, _)) = least else { break };
        commands.remove(at);
    }
    commands
}

/// The caption, with its key after the first row.
fn caption(view: &View<'_>, area: Rect) -> Vec<Line<'static>> {
    let (cols, rows) = (usize::from(area.width), usize::from(area.height));
    let Some(caption) = &view.model.caption else {
        return Vec::new();
    };
    let hint = match view.model.captions_paused {
        true => "  Space resumes ",
        false => "  Space pauses ",
    };
    let room = cols.saturating_sub(width(hint));
    // If it fits into one row, the first one.
    let mut texts = match width(caption) < room {
        true => vec![caption.clone()],
        false => wrap(caption, room.saturating_sub(1), rows, view.glyphs.ellipsis),
    };
    texts.resize(rows, String::new());
    let line = |(i, text)| {
        let text = view.left(&format!(" {text}"), room);
        let hint = view.left(if i == 0 { hint } else { "" }, width(hint));
        Line::styled(format!("{text}{hint}"), view.theme.caption)
    };
    texts.into_iter().enumerate().map(line).collect()
}
