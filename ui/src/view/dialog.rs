//! Boxes above the screen: the claim dialog, questions, details, help.

mod claim;
mod detail;
mod help;

use ratatui::buffer::Buffer;
use ratatui::layout::Rect;
use ratatui::style::Style;
use ratatui::symbols::border;
use ratatui::text::{Line, Span};
use ratatui::widgets::{Block, Clear, Padding, Widget};

use super::{Cursor, Target, at, fit, put, span};
use crate::form::{Fit, Form, Kind, Value};
use crate::input::LineInput;
use crate::keymap;
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
    /// The line that is always in sight.
    focus: Option<usize>,
    /// Column and line of the cursor.
    cursor: Option<(usize, usize)>,
    /// What a click on a line means.
    hits: Vec<(usize, Target)>,
}

impl Content {
    /// Lines scrolled away where so many are shown.
    fn scrolled(&self, shown: usize) -> usize {
        let least = self.focus.map_or(0, |at| (at + 1).saturating_sub(shown));
        let most = self.lines.len().saturating_sub(shown);
        self.scroll.max(least).min(most)
    }
}

/// Columns inside a box at most.
const INSIDE: usize = 96;

/// Columns that the frame and its margins take.
const FRAME: usize = 4;

fn content(model: &Model, look: &Look, cols: usize) -> Option<Content> {
    Some(match model.dialog.as_ref()? {
        Dialog::Form(form) => filled(form, model, look, cols),
        Dialog::Palette { input, chosen } => palette(input, *chosen, model, look, cols),
        Dialog::Warnings { chosen } => warnings(*chosen, model, look, cols),
        Dialog::Confirm(question) => Content {
            title: question.title.clone(),
            lines: wrap(&question.text, cols, 6, &look.glyphs)
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
                ..Content::default()
            }
        }
        Dialog::Help { scroll } => Content {
            title: "Help".to_owned(),
            lines: help::lines(model, look, cols),
            scroll: *scroll,
            ..Content::default()
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
    lines.saturating_sub(room(model, cols, rows).saturating_sub(3))
}

/// Rows above the keys and the caption, which stay visible.
fn room(model: &Model, cols: u16, rows: u16) -> usize {
    let foot = super::keys::rows(model, (cols.into(), rows.into()));
    usize::from(rows).saturating_sub(foot)
}

/// Where the box is on the screen.
fn place(model: &Model, content: &Content, cols: usize, area: Rect) -> Rect {
    let room = room(model, area.width, area.height);
    let most = room.saturating_sub(1).max(3);
    let rows = (content.lines.len() + 2).min(most);
    let outer = cols + FRAME;
    let x = area.x + u16::try_from((usize::from(area.width) - outer) / 2).unwrap_or(0);
    let y = area.y + u16::try_from((room + 1).saturating_sub(rows) / 2).unwrap_or(0);
    let size = |n: usize| u16::try_from(n).unwrap_or(u16::MAX);
    Rect::new(x, y, size(outer), size(rows)).intersection(area)
}

/// What is under a cell of the screen that shows a box.
pub(super) fn target(model: &Model, look: &Look, (x, y): (usize, usize)) -> Option<Target> {
    let (width, height) = model.size;
    let cols = inside(width);
    let content = content(model, look, cols)?;
    if cols == 0 || height < 3 {
        return None;
    }
    let frame = place(model, &content, cols, Rect::new(0, 0, width, height));
    let left = usize::from(frame.x);
    if !(left..left + usize::from(frame.width)).contains(&x) {
        return None;
    }
    let shown = usize::from(frame.height).saturating_sub(2);
    let line = y.checked_sub(usize::from(frame.y) + 1)? + content.scrolled(shown);
    let hit = content.hits.into_iter().find(|(at, _)| *at == line);
    hit.map(|(_, target)| target)
}

/// Draws the box, if there is one; says where the cursor is in it.
pub(super) fn draw(model: &Model, look: &Look, area: Rect, buf: &mut Buffer) -> Option<Cursor> {
    let cols = inside(area.width);
    let content = content(model, look, cols)?;
    if cols == 0 || area.height < 3 {
        return Some(None);
    }
    let frame = place(model, &content, cols, area);
    let rows = usize::from(frame.height);
    // What is behind the box steps back.
    let room = u16::try_from(room(model, area.width, area.height)).unwrap_or(area.height);
    for y in area.y + 1..area.y + room {
        let row = Rect::new(area.x, y, area.width, 1);
        buf.set_style(row, Style::reset().patch(look.theme.free));
    }
    Clear.render(frame, buf);
    let shown = rows.saturating_sub(2);
    let scroll = content.scrolled(shown);
    let more = content.lines.len() > scroll + shown;
    // A dialog with lines goes with the line that is typed.
    let foot = if (more || scroll > 0) && content.focus.is_none() {
        "Down, Up: more"
    } else {
        ""
    };
    let block = self::frame(look, &content.title, frame.width);
    let foot = match foot {
        "" => String::new(),
        foot => format!("{} {foot} ", look.glyphs.rule),
    };
    let block = block.title_bottom(foot);
    let inside = block.inner(frame);
    block.render(frame, buf);
    buf.set_style(inside, Style::reset());
    let lines = content.lines.into_iter().skip(scroll).take(shown);
    for (i, line) in lines.enumerate() {
        put(&fit(line, cols, look), inside, i, buf);
    }
    Some(
        content
            .cursor
            .map(|(column, line)| at(frame, column + 2, (line + 1).saturating_sub(scroll))),
    )
}

/// A box with a title in at most so many columns.
pub(super) fn frame(look: &Look, title: &str, cols: u16) -> Block<'static> {
    let signs = match look.glyphs.lines {
        true => border::ROUNDED,
        false => ASCII_EDGES,
    };
    let title = format!("{} {title} ", look.glyphs.rule);
    let title = crate::text::cut(&title, usize::from(cols).saturating_sub(2), &look.glyphs);
    Block::bordered()
        .border_set(signs)
        .style(look.theme.heading)
        .padding(Padding::horizontal(1))
        .title_top(title)
}

/// The edges of a box without line characters.
const ASCII_EDGES: border::Set<'static> = border::Set {
    top_left: "+",
    top_right: "+",
    bottom_left: "+",
    bottom_right: "+",
    vertical_left: "|",
    vertical_right: "|",
    horizontal_top: "-",
    horizontal_bottom: "-",
};

/// Columns of a label and of a field of a dialog with lines.
const LABEL: usize = 9;
const FIELD: usize = 20;

/// A field with its text: the span, and the column of the cursor in it.
fn field(input: &LineInput, cols: usize, focus: bool, look: &Look) -> (Span<'static>, usize) {
    let (before, after) = input.split();
    // A long text shows the part before the cursor.
    let skip = width(before).saturating_sub(cols - 1);
    let text: String = format!("{before}{after}").chars().skip(skip).collect();
    let style = if focus {
        look.theme.selected
    } else {
        look.theme.text
    };
    (
        span(left(&text, cols, &look.glyphs), style),
        width(before) - skip,
    )
}

/// What would happen if the form were sent now.
fn outlook(form: &Form, model: &Model, look: &Look) -> (String, Style) {
    let theme = &look.theme;
    if form.sent.is_some() {
        return ("asking the service".to_owned(), theme.dim);
    }
    if let Some(refused) = &form.refused {
        return (refused.sentence(), theme.error);
    }
    let Some(snapshot) = &model.snapshot else {
        return ("no figures yet".to_owned(), theme.dim);
    };
    match form.fit(snapshot) {
        Err(wrong) => (wrong, theme.text),
        Ok(Fit::Now(text)) => (text, theme.good),
        Ok(Fit::Not(text)) => (text, theme.text),
    }
}

fn filled(form: &Form, model: &Model, look: &Look, cols: usize) -> Content {
    let (theme, glyphs) = (&look.theme, &look.glyphs);
    let mut lines = vec![Line::default()];
    let (mut cursor, mut hits) = (None, Vec::new());
    for (i, entry) in form.entries.iter().enumerate() {
        let focus = form.focus == i;
        hits.push((lines.len(), Target::Field(i)));
        let style = if focus { theme.key } else { theme.text };
        let pointer = if focus { glyphs.pointer } else { " " };
        let label = left(entry.label, LABEL, glyphs);
        let mut spans = vec![span(format!("{pointer} {label}"), style)];
        match &entry.value {
            Value::Text(input) => {
                let (text, at) = field(input, FIELD, focus, look);
                if focus {
                    cursor = Some((2 + LABEL + at, lines.len()));
                }
                spans.push(text);
            }
            Value::Choice(words, at) => {
                let word = words.get(*at).unwrap_or(&"");
                let text = left(&format!("< {word} >"), FIELD, glyphs);
                spans.push(span(text, if focus { theme.selected } else { theme.text }));
            }
        }
        spans.push(span(format!("  {}", entry.hint), theme.dim));
        lines.push(Line::from(spans));
    }
    lines.push(Line::default());
    if form.kind == Kind::Claim {
        lines.extend(claim::lines(form, model, look, cols));
    } else {
        change(form, model, look, cols, &mut lines);
    }
    Content {
        title: format!("{}  {}", form.title(), form.command()),
        lines,
        scroll: 0,
        focus: Some(form.focus + 1),
        cursor,
        hits,
    }
}

/// What would happen to a claim that there is.
fn change(form: &Form, model: &Model, look: &Look, cols: usize, lines: &mut Vec<Line<'static>>) {
    let (theme, glyphs) = (&look.theme, &look.glyphs);
    let (text, style) = outlook(form, model, look);
    let wrapped = wrap(&text, cols.saturating_sub(2), 3, glyphs);
    // The box keeps its height while somebody types.
    let gap = 3usize.saturating_sub(wrapped.len());
    let wrapped = wrapped.into_iter();
    lines.extend(wrapped.map(|l| Line::styled(format!("  {l}"), style)));
    lines.extend(std::iter::repeat_n(Line::default(), gap));
    lines.push(Line::styled(format!("  {}", form.note()), theme.dim));
}

/// Every warning in a row, the chosen one whole below the list.
fn warnings(at: usize, model: &Model, look: &Look, cols: usize) -> Content {
    let theme = &look.theme;
    let all = super::warnings(model);
    let (mut lines, mut hits) = (Vec::new(), Vec::new());
    let shown = super::window(all.len(), LISTED, Some(at));
    for (i, (text, _)) in all.iter().enumerate().skip(shown.start).take(shown.len()) {
        hits.push((lines.len(), Target::Warning(i)));
        let line = Line::from(vec![
            span(format!("{} ", look.glyphs.sign), theme.warn),
            span(text.clone(), theme.text),
        ]);
        let line = fit(line, cols, look);
        lines.push(match i == at {
            true => super::chosen(line, cols, look),
            false => line,
        });
    }
    lines.push(Line::default());
    let (text, command) = all.get(at).cloned().unwrap_or_default();
    let words = wrap(&text, cols, 3, &look.glyphs);
    lines.extend(words.into_iter().map(Line::from));
    lines.push(Line::styled(command, theme.key));
    Content {
        title: format!("Warnings ({})", all.len()),
        lines,
        focus: Some(0),
        hits,
        ..Content::default()
    }
}

/// Commands that are shown at a time.
const LISTED: usize = 9;

fn palette(input: &LineInput, at: usize, model: &Model, look: &Look, cols: usize) -> Content {
    let (theme, glyphs) = (&look.theme, &look.glyphs);
    let (text, column) = field(input, cols.saturating_sub(2).max(1), true, look);
    let mut lines = vec![Line::from(vec![span(":", theme.key), text])];
    let found = keymap::named(model, input.text());
    let shown = super::window(found.len(), LISTED, Some(at));
    let mut hits = Vec::new();
    let names = 16;
    for (i, command) in found.iter().enumerate().skip(shown.start).take(shown.len()) {
        hits.push((lines.len(), Target::Named(i)));
        let able = (command.able)(model).is_ok();
        let (name, rest) = match able {
            true => (theme.key, theme.text),
            false => (theme.dim, theme.dim),
        };
        let pointer = if i == at { glyphs.pointer } else { " " };
        let line = Line::from(vec![
            span(format!("{pointer} "), theme.key),
            span(left(command.name, names, glyphs), name),
            span(left(command.shown, 10, glyphs), theme.dim),
            span(command.help, rest),
        ]);
        let line = fit(line, cols, look);
        lines.push(if i == at {
            super::chosen(line, cols, look)
        } else {
            line
        });
    }
    if found.is_empty() {
        let text = format!("no command is called `{}`", input.text());
        lines.push(Line::styled(text, theme.text));
    }
    lines.resize(LISTED + 1, Line::default());
    Content {
        title: format!("Commands ({})", found.len()),
        lines,
        scroll: 0,
        focus: Some(0),
        cursor: Some((1 + column, 0)),
        hits,
    }
}
