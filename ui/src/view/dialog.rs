//! Boxes above the screen: the claim dialog, questions, details, help.

mod detail;
mod help;

use ratatui::buffer::Buffer;
use ratatui::layout::Rect;
use ratatui::style::Style;
use ratatui::text::{Line, Span};
use ratatui::widgets::{Clear, Widget};

use super::{Cursor, at, fit, put, span};
use crate::form::{CLASSES, ClaimForm, Field, Fit, fit as room_for};
use crate::model::{Dialog, Model};
use crate::text::{left, width, wrap};
use crate::theme::{Depth, Look};

/// What a box holds.
#[derive(Default)]
struct Content {
    title: String,
    lines: Vec<Line<'static>>,
    /// Lines scrolled away.
    scroll: usize,
    /// Column and line of the cursor.
    cursor: Option<(usize, usize)>,
}

/// Columns inside a box at most.
const INSIDE: usize = 66;

/// Columns that the frame and its margins take.
const FRAME: usize = 4;

fn content(model: &Model, look: &Look, cols: usize) -> Option<Content> {
    Some(match model.dialog.as_ref()? {
        Dialog::Claim(form) => claim(form, model, look, cols),
        Dialog::Confirm { id, question } => Content {
            title: format!("Release {id}"),
            lines: wrap(question, cols, 6, &look.glyphs)
                .into_iter()
                .map(Line::from)
                .collect(),
            ..Content::default()
        },
        Dialog::Message { title, lines } => {
            let wrapped = lines.iter().flat_map(|l| match l.as_str() {
                "" => vec![String::new()],
                text => wrap(text, cols, 6, &look.glyphs),
            });
            Content {
                title: title.clone(),
                lines: wrapped.map(Line::from).collect(),
                ..Content::default()
            }
        }
        Dialog::Detail { key, scroll } => {
            let (title, lines) = detail::lines(model, key, look, cols);
            Content {
                title,
                lines,
                scroll: *scroll,
                cursor: None,
            }
        }
        Dialog::Help { scroll } => Content {
            title: "Help".to_owned(),
            lines: help::lines(model, look, cols),
            scroll: *scroll,
            cursor: None,
        },
    })
}

fn inside(cols: u16) -> usize {
    usize::from(cols).saturating_sub(FRAME + 2).min(INSIDE)
}

/// The last line to which the box can be scrolled on a terminal of this size.
pub(super) fn scroll_end(model: &Model, (cols, rows): (u16, u16)) -> usize {
    // How many lines there are does not depend on colours or on the frame's characters.
    let look = Look::new(Depth::Mono, true);
    let lines = content(model, &look, inside(cols)).map_or(0, |c| c.lines.len());
    lines.saturating_sub(usize::from(rows).saturating_sub(4))
}

/// Draws the box, if there is one; says where the cursor is in it.
pub(super) fn draw(model: &Model, look: &Look, area: Rect, buf: &mut Buffer) -> Option<Cursor> {
    let cols = inside(area.width);
    let content = content(model, look, cols)?;
    if cols == 0 || area.height < 3 {
        return Some(None);
    }
    // The key line stays visible.
    let most = usize::from(area.height).saturating_sub(2).max(3);
    let rows = (content.lines.len() + 2).min(most);
    let outer = cols + FRAME;
    let x = area.x + u16::try_from((usize::from(area.width) - outer) / 2).unwrap_or(0);
    let y = area.y + u16::try_from((usize::from(area.height) - rows) / 2).unwrap_or(0);
    let size = |n: usize| u16::try_from(n).unwrap_or(u16::MAX);
    let frame = Rect::new(x, y, size(outer), size(rows)).intersection(area);
    // What is behind the box steps back.
    let foot = 1 + u16::from(model.caption.is_some());
    for y in area.y + 1..area.bottom().saturating_sub(foot) {
        let row = Rect::new(area.x, y, area.width, 1);
        buf.set_style(row, Style::reset().patch(look.theme.free));
    }
    Clear.render(frame, buf);
    let shown = rows.saturating_sub(2);
    let scroll = content
        .scroll
        .min(content.lines.len().saturating_sub(shown));
    let more = content.lines.len() > scroll + shown;
    edge(look, frame, 0, &content.title, buf);
    let foot = if more || scroll > 0 {
        "Down, Up: more"
    } else {
        ""
    };
    edge(look, frame, rows - 1, foot, buf);
    let side = if look.glyphs.lines { "│" } else { "|" };
    for (i, line) in content
        .lines
        .into_iter()
        .skip(scroll)
        .take(shown)
        .enumerate()
    {
        let line = fit(line, cols, look);
        let gap = cols.saturating_sub(line.width());
        let mut spans = vec![span(format!("{side} "), look.theme.heading)];
        spans.extend(line.spans.into_iter().map(|s| {
            let style = line.style.patch(s.style);
            s.style(style)
        }));
        spans.push(Span::raw(" ".repeat(gap)));
        spans.push(span(format!(" {side}"), look.theme.heading));
        put(Line::from(spans), frame, i + 1, buf);
    }
    Some(
        content
            .cursor
            .map(|(column, line)| at(frame, column + 2, (line + 1).saturating_sub(scroll))),
    )
}

/// The top (row 0) or bottom edge of a box, with words in it.
fn edge(look: &Look, frame: Rect, row: usize, words: &str, buf: &mut Buffer) {
    let (corners, bar) = match (look.glyphs.lines, row) {
        (true, 0) => (("╭", "╮"), "─"),
        (true, _) => (("╰", "╯"), "─"),
        (false, _) => (("+", "+"), "-"),
    };
    let cols = usize::from(frame.width).saturating_sub(2);
    let words = if words.is_empty() {
        String::new()
    } else {
        format!("{bar} {words} ")
    };
    let words = crate::text::cut(&words, cols, &look.glyphs);
    let rest = bar.repeat(cols.saturating_sub(width(&words)));
    let line = format!("{}{words}{rest}{}", corners.0, corners.1);
    put(Line::styled(line, look.theme.heading), frame, row, buf);
}

/// Columns of a label and of a field of the claim dialog.
const LABEL: usize = 9;
const FIELD: usize = 20;

fn claim(form: &ClaimForm, model: &Model, look: &Look, cols: usize) -> Content {
    let (theme, glyphs) = (&look.theme, &look.glyphs);
    let mut lines = vec![Line::default()];
    let mut cursor = None;
    for field in Field::ALL {
        let (label, input, hint) = match field {
            Field::Size => ("Size", Some(&form.size), "0.25 of a GPU, or 2 whole GPUs"),
            Field::Memory => (
                "Memory",
                Some(&form.memory),
                "on each GPU: 8G; empty: by size",
            ),
            Field::Name => ("Name", Some(&form.name), "for the screen"),
            Field::Class => ("Class", None, "Left and Right choose"),
            Field::Hold => ("Hold for", Some(&form.hold), "2h; empty: until released"),
        };
        let focus = form.focus == field;
        let style = if focus { theme.key } else { theme.text };
        let pointer = if focus { glyphs.pointer } else { " " };
        let mut spans = vec![span(
            format!("{pointer} {}", left(label, LABEL, glyphs)),
            style,
        )];
        match input {
            Some(input) => {
                let (before, after) = input.split();
                // A long text shows the part before the cursor.
                let skip = width(before).saturating_sub(FIELD - 1);
                let text: String = format!("{before}{after}").chars().skip(skip).collect();
                if focus {
                    cursor = Some((2 + LABEL + width(before) - skip, lines.len()));
                }
                spans.push(span(
                    left(&text, FIELD, glyphs),
                    if focus { theme.selected } else { theme.text },
                ));
            }
            None => {
                let class = CLASSES[form.class % CLASSES.len()];
                let text = left(&format!("< {class} >"), FIELD, glyphs);
                spans.push(span(text, if focus { theme.selected } else { theme.text }));
            }
        }
        spans.push(span(format!("  {hint}"), theme.dim));
        lines.push(Line::from(spans));
    }
    lines.push(Line::default());
    let (text, style) = if form.sent.is_some() {
        ("asking the service".to_owned(), theme.dim)
    } else if let Some(refused) = &form.refused {
        let hint = refused.hint.iter().map(|h| format!(". {h}"));
        let all = std::iter::once(refused.message.clone())
            .chain(hint)
            .collect::<String>();
        (all, theme.error)
    } else {
        match (form.spec(), &model.snapshot) {
            (Err(wrong), _) => (wrong, theme.warn),
            (Ok(spec), Some(snapshot)) => match room_for(&spec, snapshot) {
                Fit::Now(text) => (text, theme.good),
                Fit::Not(text) => (text, theme.warn),
            },
            (Ok(_), None) => ("no figures yet".to_owned(), theme.dim),
        }
    };
    let wrapped = wrap(&text, cols.saturating_sub(2), 3, glyphs);
    // The box keeps its height while somebody types.
    let gap = 3usize.saturating_sub(wrapped.len());
    lines.extend(
        wrapped
            .into_iter()
            .map(|l| Line::styled(format!("  {l}"), style)),
    );
    lines.extend(std::iter::repeat_n(Line::default(), gap));
    let note = "It belongs to no program and is held until you release it.";
    lines.push(Line::styled(format!("  {note}"), theme.dim));
    Content {
        title: "Claim a part of a GPU".to_owned(),
        lines,
        scroll: 0,
        cursor,
    }
}
