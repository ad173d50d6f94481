//! Draws the model into a buffer, part by part, and notes what a click on each part means. What does not fit is scrolled
//! or counted, never cut silently.

mod claims;
mod dialog;
mod header;
mod health;
mod history;
mod keys;
mod notes;
mod overview;
mod queue;
mod tree;
mod waiting;

use std::ops::Range;

use ratatui::buffer::Buffer;
use ratatui::layout::{Constraint, Layout, Rect};
use ratatui::style::Style;
use ratatui::text::{Line, Span};
use ratatui::widgets::Widget;

use gshare_proto::Snapshot;

pub(crate) use claims::what;

use crate::keymap::Command;
use crate::model::{Model, Page, RowKey, Section, Sort};
use crate::text;
use crate::theme::Look;

/// Where the cursor is, if something is being typed.
pub(crate) type Cursor = Option<(u16, u16)>;

/// What a click means.
#[derive(Clone)]
pub(crate) enum Target {
    /// This command.
    Command(&'static Command),
    /// This screen.
    Page(Page),
    /// This row.
    Row(Section, RowKey),
    /// This order of the claims.
    Sort(Sort),
    /// This line of the dialog.
    Field(usize),
    /// This command of those that are listed.
    Named(usize),
    /// This warning of those that are listed.
    Warning(usize),
}

/// A row of the screen, and what its columns mean to the mouse.
#[derive(Clone, Default)]
struct Row {
    line: Line<'static>,
    hits: Vec<(Range<usize>, Target)>,
}

impl From<Line<'static>> for Row {
    fn from(line: Line<'static>) -> Self {
        let hits = Vec::new();
        Self { line, hits }
    }
}

impl Row {
    /// A row that means the same all over.
    fn of(line: Line<'static>, section: Section, key: RowKey) -> Self {
        let hits = vec![(0..usize::MAX, Target::Row(section, key))];
        Self { line, hits }
    }
}

/// Lines without a meaning.
fn plain(lines: Vec<Line<'static>>) -> Vec<Row> {
    lines.into_iter().map(Row::from).collect()
}

/// The room that tables have.
#[derive(Clone, Copy)]
struct Plan {
    /// Columns.
    width: usize,
    /// Whether tables have all their columns.
    wide: bool,
}

/// From this many columns on there is room for all columns.
const WIDE: usize = 100;

/// What is drawn on, and what the places on it mean to the mouse.
struct Scene<'b> {
    buf: &'b mut Buffer,
    hits: Vec<(Rect, Target)>,
}

impl Scene<'_> {
    /// A line in the first row of `area`.
    fn line(&mut self, line: &Line<'_>, area: Rect) {
        put(line, area, 0, self.buf);
    }

    /// A click there means that.
    fn hit(&mut self, area: Rect, target: Target) {
        self.hits.push((area, target));
    }

    /// Rows from the top of `area`.
    fn rows(&mut self, rows: Vec<Row>, area: Rect, look: &Look) {
        for (row, at) in rows.into_iter().zip(area.rows()) {
            self.line(&fit(row.line, at.width.into(), look), at);
            for (cols, target) in row.hits {
                let from = u16::try_from(cols.start).unwrap_or(u16::MAX).min(at.width);
                let to = u16::try_from(cols.end).unwrap_or(u16::MAX).min(at.width);
                let place = Rect {
                    x: at.x + from,
                    width: to.saturating_sub(from),
                    ..at
                };
                self.hit(place, target);
            }
        }
    }
}

/// The whole screen without its box; says where the cursor is.
fn frame(model: &Model, look: &Look, area: Rect, scene: &mut Scene<'_>) -> Cursor {
    let (cols, rows) = (usize::from(area.width), usize::from(area.height));
    let foot = keys::lines(model, look, (cols, rows));
    let banner = header::banner(model, look, cols, 2);
    let least = |n: usize| Constraint::Length(u16::try_from(n).unwrap_or(u16::MAX));
    let head = rows.saturating_sub(foot.rows.len()).min(1);
    let parts = [
        least(head),
        least(
            banner
                .len()
                .min(rows.saturating_sub(foot.rows.len() + head)),
        ),
        Constraint::Fill(1),
        least(foot.rows.len().min(rows)),
    ];
    let [head, above, body, below] = Layout::vertical(parts).areas(area);
    header::draw(model, look, head, scene);
    scene.rows(plain(banner), above, look);
    let plan = Plan {
        width: cols,
        wide: cols >= WIDE,
    };
    let room = usize::from(body.height);
    let rows = match (&model.snapshot, model.page) {
        (None, _) => vec![Row::default(), header::waiting(model, look, cols).into()],
        (Some(snapshot), Page::Overview) => {
            overview::draw(model, snapshot, look, body, scene);
            Vec::new()
        }
        (Some(snapshot), Page::Claims) => {
            tree::draw(model, snapshot, look, body, scene);
            Vec::new()
        }
        (Some(snapshot), Page::Queue) => {
            waiting::draw(model, snapshot, look, body, scene);
            Vec::new()
        }
        (Some(snapshot), Page::History) => {
            history::draw(model, snapshot, look, body, scene);
            Vec::new()
        }
        (Some(snapshot), Page::Health) => health::rows(model, snapshot, look, &plan, room),
    };
    scene.rows(rows, body, look);
    // Old figures are grey; the banner says since when.
    if model.is_stale() {
        let grey = Style::reset().patch(look.theme.dim);
        scene.buf.set_style(body.intersection(scene.buf.area), grey);
    }
    scene.rows(foot.rows, below, look);
    foot.cursor.map(|x| at(area, x, (below.y - area.y).into()))
}

/// Draws everything into `area`.
pub(crate) fn draw(model: &Model, look: &Look, area: Rect, buf: &mut Buffer) -> Cursor {
    let area = area.intersection(buf.area);
    if area.is_empty() {
        return None;
    }
    let hits = Vec::new();
    let typed = frame(model, look, area, &mut Scene { buf, hits });
    dialog::draw(model, look, area, buf).unwrap_or(typed)
}

/// What is under a cell of the screen.
pub(crate) fn target(model: &Model, (x, y): (u16, u16)) -> Option<Target> {
    // Colours take no room.
    let look = Look::new(crate::theme::Depth::Mono, true);
    let (width, height) = model.size;
    let foot = keys::rows(model, (width.into(), height.into()));
    if model.dialog.is_some() && usize::from(y) + foot < usize::from(height) {
        return dialog::target(model, &look, (x.into(), y.into()));
    }
    let area = Rect::new(0, 0, width, height);
    let mut buf = Buffer::empty(area);
    let mut scene = Scene {
        buf: &mut buf,
        hits: Vec::new(),
    };
    if !area.is_empty() {
        frame(model, &look, area, &mut scene);
    }
    let under = |(place, _): &&(Rect, Target)| place.contains((x, y).into());
    let hit = scene.hits.iter().find(under);
    hit.map(|(_, target)| target.clone())
}

/// A cell of `area`, kept inside.
fn at(area: Rect, x: usize, y: usize) -> (u16, u16) {
    let inside = |v: usize, from: u16, len: u16| {
        from + u16::try_from(v)
            .unwrap_or(u16::MAX)
            .min(len.saturating_sub(1))
    };
    (
        inside(x, area.x, area.width),
        inside(y, area.y, area.height),
    )
}

/// One line at row `y` of `area`.
pub(crate) fn put(line: &Line<'_>, area: Rect, y: usize, buf: &mut Buffer) {
    let Ok(y) = u16::try_from(y) else { return };
    if y < area.height {
        let row = Rect::new(area.x, area.y + y, area.width, 1);
        line.render(row.intersection(buf.area), buf);
    }
}

/// A rule, or an empty row where rows are short.
fn gap(look: &Look, plan: &Plan) -> Row {
    if plan.wide {
        Line::styled(look.glyphs.rule.repeat(plan.width), look.theme.free).into()
    } else {
        Row::default()
    }
}

/// Rows of the table that fit: what PgDn moves by.
pub(crate) fn page(model: &Model) -> usize {
    let (_, height) = model.size;
    match &model.snapshot {
        Some(snapshot) if model.page == Page::Overview => overview::page(model, snapshot),
        _ => usize::from(height.saturating_sub(8).max(1)),
    }
}

/// What is worth a look, each with the command that acts on it or who can.
pub(crate) fn warnings(model: &Model) -> Vec<(String, String)> {
    let notes = model
        .snapshot
        .iter()
        .flat_map(|s| notes::warnings(model, s));
    notes.map(|note| (note.text, note.command)).collect()
}

/// What the viewer could claim now, in a sentence.
pub(crate) fn free_now(model: &Model, snapshot: &Snapshot, look: &Look) -> String {
    overview::free_now(model, snapshot, look)
}

/// The last line to which the text in the box can be scrolled.
pub(crate) fn scroll_end(model: &Model) -> usize {
    dialog::scroll_end(model, model.size)
}

/// The part of `n` rows to show in `rows`, with the chosen one in the middle where that is possible.
fn window(n: usize, rows: usize, chosen: Option<usize>) -> Range<usize> {
    let rows = rows.min(n);
    let start = chosen.unwrap_or(0).saturating_sub(rows / 2).min(n - rows);
    start..start + rows
}

/// Fills a line to `width` and marks it as chosen.
fn chosen(mut line: Line<'static>, width: usize, look: &Look) -> Line<'static> {
    let gap = width.saturating_sub(line.width());
    line.spans.push(Span::raw(" ".repeat(gap)));
    for span in &mut line.spans {
        span.style = line.style.patch(span.style).patch(look.theme.selected);
    }
    line
}

/// Cuts a line of spans to `width` columns, with an ellipsis if something is left out.
fn fit(line: Line<'static>, width: usize, look: &Look) -> Line<'static> {
    if text::span_width(&line.spans) <= width {
        return line;
    }
    let dots = look.glyphs.ellipsis;
    let mut left = width.saturating_sub(text::width(dots));
    let mut spans: Vec<Span<'static>> = Vec::new();
    for span in line.spans {
        let cols = text::width(&span.content);
        if cols <= left {
            left -= cols;
            spans.push(span);
            continue;
        }
        let marked = format!("{}{dots}", span.content);
        let marked = text::cut(&marked, (left + text::width(dots)).min(width), &look.glyphs);
        spans.push(Span::styled(marked, span.style));
        break;
    }
    let mut out = Line::from(spans);
    out.style = line.style;
    out
}

/// A figure below 1 with its zero, for where there is room: `0.25`.
fn zero(figure: String) -> String {
    match figure.starts_with('.') {
        true => format!("0{figure}"),
        false => figure,
    }
}

/// A span without more words.
fn span(text: impl Into<String>, style: Style) -> Span<'static> {
    Span::styled(text.into(), style)
}

#[cfg(test)]
mod tests;
