//! Boxes above the screen: the claim dialog, questions, details, help.

mod claim;
mod detail;
mod help;

use ratatui::buffer::Buffer;
use ratatui::layout::{Margin, Rect};
use ratatui::style::Style;
use ratatui::symbols::{border, scrollbar};
use ratatui::text::{Line, Span};
use ratatui::widgets::{Block, Clear, Padding, Scrollbar, ScrollbarOrientation, ScrollbarState};
use ratatui::widgets::{StatefulWidget, Widget};

use super::{Cursor, Scene, Target, View, at, cells, fit, line, row_of, span, window};
use crate::form::{Form, Kind};
use crate::input::LineInput;
use crate::model::{Dialog, Model};
use crate::text::{width, wrap};
use crate::theme::Look;

#[derive(Default)]
struct Content {
    title: String,
    lines: Vec<Line<'static>>,
    scroll: usize,
    /// The line that must stay visible.
    focus: Option<usize>,
    cursor: Option<(usize, usize)>,
    hits: Vec<(usize, Target)>,
}

impl Content {
    /// Lines scrolled away if this many are visible.
    fn scrolled(&self, shown: usize) -> usize {
        let least = self.focus.map_or(0, |at| (at + 1).saturating_sub(shown));
        let most = self.lines.len().saturating_sub(shown);
        self.scroll.max(least).min(most)
    }
}

const INSIDE: usize = 96;

/// Columns that the frame and its margins take.
const FRAME: usize = 4;

fn widget(widget: impl Widget, size: (u16, u16), look: &Look) -> Vec<Line<'static>> {
    drawn(|area, scene| widget.render(area, scene.buf), size, look)
}

/// Its contents for this many columns and rows, as lines.
fn drawn(
    draw: impl FnOnce(Rect, &mut Scene<'_>),
    (cols, rows): (u16, u16),
    look: &Look,
) -> Vec<Line<'static>> {
    let mut buf = Buffer::empty(Rect::new(0, 0, cols, rows));
    draw(buf.area, &mut Scene::new(&mut buf, look));
    let cell = |x: u16, y: u16| span(buf[(x, y)].symbol().to_owned(), buf[(x, y)].style());
    let line = |y| (0..cols).map(|x| cell(x, y)).collect::<Line<'static>>();
    (0..rows).map(line).collect()
}

fn content(view: &View<'_>, cols: usize) -> Option<Content> {
    let dots = view.glyphs.ellipsis;
    let texts = |text: &str| match text {
        "" => vec![Line::default()],
        text => {
            let rows = wrap(text, cols, 6, dots).into_iter();
            rows.map(Line::from).collect()
        }
    };
    let text = |title: String, lines: Vec<Line<'static>>, scroll: usize| Content {
        title,
        lines,
        scroll,
        ..Content::default()
    };
    Some(match view.model.dialog.as_ref()? {
        Dialog::Form(form) => filled(form, view, cols),
        Dialog::Warnings(chosen) => warnings(*chosen, view, cols),
        Dialog::Confirm(asked) => text(asked.title.clone(), texts(&asked.text), 0),
        Dialog::Message { title, lines } => {
            let lines = lines.iter().flat_map(|line| texts(line));
            text(title.clone(), lines.collect(), 0)
        }
        Dialog::Detail { key, scroll } => {
            let (title, lines) = detail::lines(view, key, cols);
            text(title, lines, *scroll)
        }
        Dialog::Log(scroll) => {
            let news = super::notes::news(view, (cols, usize::MAX), usize::MAX);
            text("What has happened".to_owned(), news, *scroll)
        }
        Dialog::Help(scroll) => text("Help".to_owned(), help::lines(view, cols), *scroll),
    })
}

fn inside(model: &Model, cols: u16) -> usize {
    let most = match model.dialog {
        Some(Dialog::Help(_)) => usize::MAX,
        _ => INSIDE,
    };
    usize::from(cols).saturating_sub(FRAME + 2).min(most)
}

pub(super) fn scroll_end(view: &View<'_>) -> usize {
    let (cols, rows) = view.model.size;
    let lines = content(view, inside(view.model, cols)).map_or(0, |c| c.lines.len());
    lines.saturating_sub(room(view.model, cols, rows).saturating_sub(3))
}

/// Rows above the keys and the caption, which stay visible.
fn room(model: &Model, cols: u16, rows: u16) -> usize {
    let foot = super::keys::rows(model, (cols.into(), rows.into()));
    usize::from(rows).saturating_sub(foot)
}

fn place(model: &Model, content: &Content, cols: usize, area: Rect) -> Rect {
    let room = room(model, area.width, area.height);
    let most = room.saturating_sub(1).max(3);
    let rows = (content.lines.len() + 2).min(most);
    let outer = cols + FRAME;
    let x = area.x + cells((usize::from(area.width) - outer) / 2);
    let y = area.y + cells((room + 1).saturating_sub(rows) / 2);
    Rect::new(x, y, cells(outer), cells(rows)).intersection(area)
}

/// Draws the box, if there is one; returns the cursor's place in it.
pub(super) fn draw(view: &View<'_>, area: Rect, scene: &mut Scene<'_>) -> Option<Cursor> {
    let look = view.look;
    let cols = inside(view.model, area.width);
    let content = content(view, cols)?;
    if cols == 0 || area.height < 3 {
        return Some(None);
    }
    let frame = place(view.model, &content, cols, area);
    // The screen behind the box is dimmed, and ignores the mouse.
    let behind = Rect {
        height: cells(room(view.model, area.width, area.height)),
        ..area
    };
    scene.hits.retain(|(at, _)| at.y >= behind.bottom());
    let grey = Style::reset().patch(look.theme.free);
    scene.buf.set_style(super::below(behind, 1), grey);
    Clear.render(frame, scene.buf);
    let shown = usize::from(frame.height).saturating_sub(2);
    let scroll = content.scrolled(shown);
    let total = content.lines.len();
    let hides = total > scroll + shown || scroll > 0;
    // A dialog with input lines scrolls with the cursor.
    let foot = match hides && content.focus.is_none() {
        true => format!("{} Down, Up: more ", look.glyphs.rule),
        false => String::new(),
    };
    let block = self::frame(look, &content.title, frame.width).title_bottom(foot);
    let inside = block.inner(frame);
    block.render(frame, scene.buf);
    let lines = content.lines.into_iter().skip(scroll).take(shown);
    scene.rows(lines, inside);
    for (line, target) in content.hits {
        if (scroll..scroll + shown).contains(&line) {
            scene.hit(row_of(frame, cells(line - scroll + 1)), target);
        }
    }
    if hides && look.glyphs.lines {
        let past = total.saturating_sub(shown) + 1;
        let mut bar = ScrollbarState::new(past).position(scroll);
        let signs = Scrollbar::new(ScrollbarOrientation::VerticalRight);
        let signs = signs.symbols(scrollbar::VERTICAL).style(look.theme.heading);
        let signs = signs.begin_symbol(None).end_symbol(None).track_symbol(None);
        signs.render(frame.inner(Margin::new(0, 1)), scene.buf, &mut bar);
    }
    let cursor = content.cursor;
    Some(cursor.map(|(column, line)| at(frame, column + 2, (line + 1).saturating_sub(scroll))))
}

/// A box with a title in at most this many columns.
pub(super) fn frame(look: &Look, title: &str, cols: u16) -> Block<'static> {
    let signs = match look.glyphs.lines {
        true => border::ROUNDED,
        false => ASCII_EDGES,
    };
    let title = format!("{} {title} ", look.glyphs.rule);
    let room = usize::from(cols).saturating_sub(2);
    let title = crate::text::cut(&title, room, look.glyphs.ellipsis);
    Block::bordered()
        .border_set(signs)
        .border_style(look.theme.heading)
        .title_style(look.theme.heading)
        .padding(Padding::horizontal(1))
        .title_top(title)
}

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

/// Columns of the labels in a dialog with input lines.
const LABEL: usize = 9;
const FIELD: usize = 20;

/// An input field: the span, and the column of the cursor in it.
fn field(view: &View<'_>, input: &LineInput, cols: usize, focus: bool) -> (Span<'static>, usize) {
    let (before, after) = input.split();
    // Of a long text, show the part before the cursor.
    let skip = width(before).saturating_sub(cols - 1);
    let text: String = format!("{before}{after}").chars().skip(skip).collect();
    let style = match focus {
        true => view.theme.selected,
        false => view.theme.text,
    };
    (span(view.left(&text, cols), style), width(before) - skip)
}

fn filled(form: &Form, view: &View<'_>, cols: usize) -> Content {
    let (theme, glyphs) = (view.theme, view.glyphs);
    let mut lines = vec![Line::default()];
    let (mut cursor, mut hits) = (None, Vec::new());
    let (shown, more) = form.entries.split_at(form.shown());
    for (i, entry) in shown.iter().enumerate() {
        let focus = form.focus == i;
        hits.push((lines.len(), Target::Entry(i)));
        let style = if focus { theme.key } else { theme.text };
        let pointer = if focus { glyphs.pointer } else { " " };
        let label = format!("{pointer} {}", view.left(entry.label, LABEL));
        let (value, at) = field(view, &entry.input, FIELD, focus);
        if focus {
            cursor = Some((2 + LABEL + at, lines.len()));
        }
        let hint = span(format!("  {}", entry.hint), theme.dim);
        lines.push(Line::from(vec![span(label, style), value, hint]));
    }
    if !more.is_empty() {
        hits.push((lines.len(), Target::Entry(shown.len())));
        let labels: Vec<String> = more.iter().map(|e| e.label.to_lowercase()).collect();
        let text = format!("  {}{}", view.left("more", LABEL), labels.join(", "));
        lines.push(line!(view; dim text));
    }
    lines.push(Line::default());
    let is_claim = form.kind == Kind::Claim;
    let (wrong, style) = wrong(form, view).unwrap_or_default();
    let mut rows = wrap(&wrong, cols.saturating_sub(2), 3, glyphs.ellipsis);
    let answer = form.answer().filter(|_| wrong.is_empty());
    let told = match answer {
        Some(Ok(tried)) => claim::lines(tried, view, cols),
        // The box keeps its height during typing.
        _ => {
            let least = if is_claim { claim::ROWS } else { 3 };
            rows.resize(least, String::new());
            Vec::new()
        }
    };
    let rows = rows.into_iter();
    lines.extend(rows.map(|l| Line::styled(format!("  {l}"), style)));
    lines.extend(told);
    if !is_claim {
        lines.push(line!(view; dim format!("  {}", form.note())));
    }
    Content {
        title: format!("{}  {}", form.title(), form.command()),
        lines,
        focus: Some(form.focus + 1),
        cursor,
        hits,
        ..Content::default()
    }
}

/// The problem with the input, or the refusal; none if there is neither.
fn wrong(form: &Form, view: &View<'_>) -> Option<(String, Style)> {
    let theme = view.theme;
    let asking = || Some(("asking the service".to_owned(), theme.dim));
    match (&form.refused, form.call(), form.answer()) {
        _ if form.sent.is_some() => asking(),
        (Some(refused), ..) => Some((refused.clone(), theme.error)),
        (_, Err(wrong), _) => Some((wrong, theme.text)),
        (_, _, Some(Err(wrong))) => Some((wrong.clone(), theme.text)),
        (_, _, None) if form.kind == Kind::Claim => match view.model.service() {
            Err(why) => Some((why, theme.dim)),
            Ok(()) => asking(),
        },
        _ => None,
    }
}

/// Maximum number of visible warnings.
const LISTED: usize = 9;

/// One row for each warning, with the chosen one in full below the list.
fn warnings(at: usize, view: &View<'_>, cols: usize) -> Content {
    let all = super::warnings(view.model);
    let sign = format!("{} ", view.glyphs.sign);
    let row = |i: usize| line!(view; warn sign.clone(), text all[i].0.clone());
    let shown = window(all.len(), LISTED, Some(at));
    let hits = shown.clone().map(Target::Entry).enumerate().collect();
    let row = |i: usize| match (i == at, fit(row(i), cols, view.look)) {
        (true, line) => super::chosen(line, cols, view.look),
        (false, line) => line,
    };
    let mut lines: Vec<_> = shown.map(row).collect();
    lines.push(Line::default());
    let (text, command) = all.get(at).cloned().unwrap_or_default();
    let words = wrap(&text, cols, 3, view.glyphs.ellipsis);
    lines.extend(words.into_iter().map(Line::from));
    lines.push(line!(view; key command));
    Content {
        title: format!("Warnings ({})", all.len()),
        lines,
        focus: Some(0),
        hits,
        ..Content::default()
    }
}
