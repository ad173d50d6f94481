//! Draws the model into a buffer, part by part, and notes the meaning of a click on each part. What does not fit is
//! scrolled or counted, never cut silently.

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
pub(crate) mod waiting;

use std::ops::Range;
use std::sync::LazyLock;

use gshare_proto::{ClaimView, Figure, GpuView, Snapshot};
use ratatui::buffer::Buffer;
use ratatui::layout::{Alignment, Constraint, Layout, Rect};
use ratatui::style::Style;
use ratatui::text::{Line, Span};
use ratatui::widgets::{StatefulWidget, Table, TableState};

pub(crate) use claims::what;
pub(crate) use overview::SIDE;

use crate::keymap::Command;
use crate::model::{AtLeast, Model, Page, RowKey, Section, Sort, Words, words};
use crate::text;
use crate::theme::{Depth, Glyphs, Look, Theme};

/// The cursor's place, if there is input.
pub(crate) type Cursor = Option<(u16, u16)>;

#[derive(Clone)]
pub(crate) enum Target {
    Command(&'static Command),
    Page(Page),
    Row(Section, RowKey),
    Sort(Sort),
    /// An entry of the box.
    Entry(usize),
}

/// A line of texts, each in a style of the theme: `line!(view; heading "QUEUE ", dim "nobody waits")`.
macro_rules! line {
    ($view:expr; $($style:ident $text:expr),* $(,)?) => {
        ratatui::text::Line::from(vec![$(crate::view::span($text, $view.theme.$style)),*])
    };
}
pub(crate) use line;

#[derive(Clone, Copy)]
struct View<'a> {
    model: &'a Model,
    /// The newest one; empty if there is none.
    snapshot: &'a Snapshot,
    look: &'a Look,
    theme: &'a Theme,
    glyphs: &'a Glyphs,
}

impl<'a> View<'a> {
    fn new(model: &'a Model, look: &'a Look) -> Self {
        static EMPTY: LazyLock<Snapshot> = LazyLock::new(Snapshot::default);
        Self {
            model,
            snapshot: model.snapshot.as_deref().unwrap_or(&EMPTY),
            look,
            theme: &look.theme,
            glyphs: &look.glyphs,
        }
    }

    /// For results that do not depend on colours or on the characters of frames.
    fn bare(model: &'a Model) -> Self {
        static LOOK: LazyLock<Look> = LazyLock::new(|| Look::new(Depth::Mono, true));
        Self::new(model, &LOOK)
    }

    fn cut(&self, text: &str, cols: usize) -> String {
        text::cut(text, cols, self.glyphs.ellipsis)
    }

    fn brief(&self, text: &str, cols: usize) -> String {
        text::brief(text, cols, self.glyphs.ellipsis)
    }

    fn left(&self, text: &str, cols: usize) -> String {
        text::left(text, cols, self.glyphs.ellipsis)
    }

    fn right(&self, text: &str, cols: usize) -> String {
        text::right(text, cols, self.glyphs.ellipsis)
    }

    /// The value, or a dash if unknown.
    fn or_dash<T: ToString>(&self, known: Option<T>) -> String {
        known.map_or_else(|| self.glyphs.dash.to_owned(), |known| known.to_string())
    }

    fn gib(&self, bytes: Option<u64>) -> String {
        self.or_dash(bytes.map(text::gib))
    }

    fn figure(&self, figure: Option<Figure>) -> String {
        text::measured(figure, self.glyphs.dash)
    }

    fn at_least(&self, sum: AtLeast) -> String {
        sum.text(self.glyphs.dash, self.glyphs.at_least)
    }

    fn percent(&self, figure: Option<Figure>) -> String {
        let sign = if figure.is_some() { " %" } else { "" };
        self.figure(figure) + sign
    }

    fn degrees(&self, gpu: &GpuView) -> String {
        let degrees = |t: u32| format!("{t} {}", self.glyphs.degrees);
        self.or_dash(gpu.temperature_c.map(degrees))
    }

    fn words(&self, claim: &ClaimView) -> Words {
        words(claim, self.snapshot, self.model.clock, self.glyphs.arrow)
    }

    /// Whether this row is chosen in the focused section.
    fn is_chosen(&self, section: Section, key: &RowKey) -> bool {
        self.model.focus() == section && self.model.current() == Some(key)
    }
}

/// With this many columns or more, all columns of tables fit.
const WIDE: usize = 100;

/// The buffer, with the meaning of its places for the mouse.
struct Scene<'b> {
    buf: &'b mut Buffer,
    look: &'b Look,
    hits: Vec<(Rect, Target)>,
}

impl<'b> Scene<'b> {
    fn new(buf: &'b mut Buffer, look: &'b Look) -> Self {
        let hits = Vec::new();
        Self { buf, look, hits }
    }

    fn line(&mut self, line: Line<'static>, area: Rect, y: u16) {
        let at = row_of(area, y).intersection(self.buf.area);
        let line = fit(line, at.width.into(), self.look);
        let indent = match line.alignment {
            Some(Alignment::Right) => at.width.saturating_sub(cells(line_width(&line))),
            _ => 0,
        };
        self.buf
            .set_line(at.x + indent, at.y, &line, at.width - indent);
    }

    fn hit(&mut self, area: Rect, target: Target) {
        self.hits.push((area, target));
    }

    fn rows(&mut self, rows: impl IntoIterator<Item = Line<'static>>, area: Rect) {
        for (row, at) in rows.into_iter().zip(area.rows()) {
            self.line(row, at, 0);
        }
    }

    /// A table of a section's rows, below this many rows of headings; the chosen one is marked.
    fn table(
        &mut self,
        view: &View<'_>,
        table: Table<'_>,
        area: Rect,
        (section, head, keys): (Section, u16, Vec<RowKey>),
    ) {
        let at = keys.iter().position(|key| view.is_chosen(section, key));
        let table = table.row_highlight_style(view.theme.selected);
        let mut state = TableState::default().with_selected(at.map(|at| at + usize::from(head)));
        let place = area.intersection(self.buf.area);
        StatefulWidget::render(table, place, self.buf, &mut state);
        for (key, at) in keys.into_iter().zip(area.rows().skip(head.into())) {
            self.hit(at, Target::Row(section, key));
        }
    }

    /// A rule above a part that has rows; returns the rest of its area.
    fn ruled(&mut self, area: Rect, has: bool) -> Rect {
        let look = self.look;
        if !has || area.is_empty() {
            return area;
        }
        for place in row_of(area, 0).intersection(self.buf.area).positions() {
            let cell = &mut self.buf[place];
            cell.set_symbol(look.glyphs.rule).set_style(look.theme.free);
        }
        below(area, 1)
    }
}

fn cells(n: usize) -> u16 {
    u16::try_from(n).unwrap_or(u16::MAX)
}

/// Row `y` of `area`, empty below it.
fn row_of(area: Rect, y: u16) -> Rect {
    area.rows().nth(y.into()).unwrap_or_default()
}

/// This many columns of `area` from this one on, as far as available.
fn columns(area: Rect, from: u16, cols: u16) -> Rect {
    let from = from.min(area.width);
    let (x, width) = (area.x + from, cols.min(area.width - from));
    Rect { x, width, ..area }
}

/// `area` without its first `rows`.
fn below(area: Rect, rows: u16) -> Rect {
    let rows = rows.min(area.height);
    let (y, height) = (area.y + rows, area.height - rows);
    Rect { y, height, ..area }
}

/// Splits `area` into parts of these heights, from the top; parts without room are empty. `usize::MAX` takes the
/// rest.
fn parts<const N: usize>(area: Rect, rows: [usize; N]) -> [Rect; N] {
    let size = |n| match n {
        usize::MAX => Constraint::Fill(1),
        n => Constraint::Max(cells(n)),
    };
    Layout::vertical(rows.map(size)).areas(area)
}

fn frame(model: &Model, area: Rect, scene: &mut Scene<'_>) -> Cursor {
    let view = View::new(model, scene.look);
    let (cols, rows) = (usize::from(area.width), usize::from(area.height));
    let foot = keys::rows(model, (cols, rows)).min(rows);
    let banner = header::banner(&view, cols, 2);
    let head = (rows - foot).min(1);
    let above = rows - foot - head;
    let parts = [
        Constraint::Length(cells(head)),
        Constraint::Length(cells(banner.len().min(above))),
        Constraint::Fill(1),
        Constraint::Length(cells(foot)),
    ];
    let [head, above, body, below] = Layout::vertical(parts).areas(area);
    header::draw(&view, head, scene);
    scene.rows(banner, above);
    match (&model.snapshot, model.page) {
        (None, _) => scene.line(header::waiting(&view), body, 1),
        (_, Page::Overview) => overview::draw(&view, body, scene),
        (_, Page::Claims) => tree::draw(&view, body, scene),
        (_, Page::Queue) => waiting::draw(&view, body, scene),
        (_, Page::History) => history::draw(&view, body, scene),
        (_, Page::Health) => health::draw(&view, body, scene),
    }
    // Stale figures are grey; the banner says since when.
    if model.is_stale() {
        let grey = Style::reset().patch(view.theme.dim);
        scene.buf.set_style(body.intersection(scene.buf.area), grey);
    }
    keys::draw(&view, below, scene)
}

/// Draws everything, with the box.
fn paint(model: &Model, area: Rect, scene: &mut Scene<'_>) -> Cursor {
    let area = area.intersection(scene.buf.area);
    if area.is_empty() {
        return None;
    }
    let typed = frame(model, area, scene);
    dialog::draw(&View::new(model, scene.look), area, scene).unwrap_or(typed)
}

pub(crate) fn draw(model: &Model, look: &Look, area: Rect, buf: &mut Buffer) -> Cursor {
    paint(model, area, &mut Scene::new(buf, look))
}

pub(crate) fn target(model: &Model, (x, y): (u16, u16)) -> Option<Target> {
    let (width, height) = model.size;
    let buf = &mut Buffer::empty(Rect::new(0, 0, width, height));
    let area = buf.area;
    let mut scene = Scene::new(buf, View::bare(model).look);
    paint(model, area, &mut scene);
    let mut hits = scene.hits.into_iter();
    let under = hits.find(|(place, _)| place.contains((x, y).into()));
    under.map(|(_, target)| target)
}

/// A cell of `area`, clamped.
fn at(area: Rect, x: usize, y: usize) -> (u16, u16) {
    let to = |v: usize, from: u16, len: u16| from + cells(v).min(len.saturating_sub(1));
    (to(x, area.x, area.width), to(y, area.y, area.height))
}

/// Visible rows of the table, the step of PgDn.
pub(crate) fn page(model: &Model) -> usize {
    match &model.snapshot {
        Some(_) if model.page == Page::Overview => overview::page(model),
        _ => usize::from(model.size.1.saturating_sub(8).max(1)),
    }
}

/// The warnings, each with the command to act on it or who can.
pub(crate) fn warnings(model: &Model) -> Vec<(String, String)> {
    let notes = notes::warnings(&View::bare(model)).into_iter();
    notes.map(|note| (note.text, note.command)).collect()
}

pub(crate) fn free_now(model: &Model, look: &Look) -> String {
    overview::free_now(&View::new(model, look))
}

/// The last line to which the text in the box can be scrolled.
pub(crate) fn scroll_end(model: &Model) -> usize {
    dialog::scroll_end(&View::bare(model))
}

/// The part of `n` rows to show in `rows`, with the chosen one in the middle if possible.
fn window(n: usize, rows: usize, chosen: Option<usize>) -> Range<usize> {
    let rows = rows.min(n);
    let start = chosen.unwrap_or(0).saturating_sub(rows / 2).min(n - rows);
    start..start + rows
}

/// `3-9 of 20`; empty if all are shown.
fn place(shown: &Range<usize>, n: usize) -> String {
    match shown.len() {
        some if some == n => String::new(),
        1 => format!("{} of {n}", shown.end),
        _ => format!("{}-{} of {n}", shown.start + 1, shown.end),
    }
}

/// Pads a line to `width` and marks it as chosen.
fn chosen(mut line: Line<'static>, width: usize, look: &Look) -> Line<'static> {
    let gap = width.saturating_sub(line.width());
    line.spans.push(Span::raw(" ".repeat(gap)));
    for span in &mut line.spans {
        span.style = line.style.patch(span.style).patch(look.theme.selected);
    }
    line
}

/// Columns of a line: for plain text without the tables that its own count needs.
fn line_width(line: &Line<'_>) -> usize {
    line.iter().map(|span| text::width(&span.content)).sum()
}

/// Cuts a line of spans to `width` columns, with an ellipsis if something is left out.
pub(crate) fn fit(mut line: Line<'static>, width: usize, look: &Look) -> Line<'static> {
    if line_width(&line) <= width {
        return line;
    }
    let dots = look.glyphs.ellipsis;
    let mut left = width;
    let is_cut = |span: &Span<'_>| {
        let fits = span.width() + text::width(dots) <= left;
        left -= if fits { span.width() } else { 0 };
        !fits
    };
    if let Some(at) = line.spans.iter().position(is_cut) {
        line.spans.truncate(at + 1);
        let last = &mut line.spans[at];
        last.content = text::cut(&format!("{}{dots}", last.content), left, dots).into();
    }
    line
}

/// Lines with a label before each text.
struct Facts<'a> {
    look: &'a Look,
    cols: usize,
    /// Columns before a label, and columns of it.
    label: (usize, usize),
    lines: Vec<Line<'static>>,
}

impl<'a> Facts<'a> {
    fn new(look: &'a Look, cols: usize, label: (usize, usize)) -> Self {
        Self {
            look,
            cols,
            label,
            lines: Vec::new(),
        }
    }

    /// A text in at most `most` rows.
    fn tell(&mut self, label: &str, text: &str, style: Style, most: usize) {
        self.signed((label, self.look.theme.dim), (text, style), most);
    }

    fn signed(&mut self, label: (&str, Style), (text, style): (&str, Style), most: usize) {
        let (indent, cols) = self.label;
        let dots = self.look.glyphs.ellipsis;
        let rows = text::wrap(text, self.cols.saturating_sub(indent + cols), most, dots);
        for (i, row) in rows.into_iter().enumerate() {
            let name = text::left(if i == 0 { label.0 } else { "" }, cols - 1, dots);
            let name = span(format!("{}{name} ", " ".repeat(indent)), label.1);
            let sign = self.look.glyphs.sign;
            let (sign, row) = match row.strip_prefix(sign) {
                Some(rest) => (sign, rest.to_owned()),
                None => ("", row),
            };
            let sign = span(sign, self.look.theme.warn);
            self.lines
                .push(Line::from(vec![name, sign, span(row, style)]));
        }
    }
}

/// A span from text and style.
pub(crate) fn span(text: impl Into<String>, style: Style) -> Span<'static> {
    Span::styled(text.into(), style)
}

#[cfg(test)]
mod tests;
