//! What is on the terminal, and the bytes that make it what it should be. Most rows of a frame are those of
//! the frame before: a row whose line has not changed is neither drawn nor compared, and a frame goes out in
//! one piece.

use std::io;

use crossterm::cursor::{Hide, MoveTo, Show};
use crossterm::queue;
use crossterm::terminal::{BeginSynchronizedUpdate, Clear, ClearType, EndSynchronizedUpdate};
use ratatui::backend::{Backend, CrosstermBackend};
use ratatui::buffer::Buffer;
use ratatui::layout::Rect;
use ratatui::text::Line;

use crate::view::{Cursor, Picture, put};

/// The cells that the terminal shows.
#[derive(Debug, Default)]
pub(crate) struct Canvas {
    area: Rect,
    /// What the rows were drawn from; none where a box lay over them.
    lines: Vec<Line<'static>>,
    /// The rows; none while it is not known what the terminal shows.
    rows: Vec<Buffer>,
    cursor: Cursor,
}

/// One row of the terminal.
fn row(area: Rect, y: usize) -> Rect {
    let y = u16::try_from(y).unwrap_or(u16::MAX);
    Rect::new(area.x, area.y.saturating_add(y), area.width, 1)
}

/// The rows of a whole screen.
fn split(whole: &Buffer) -> Vec<Buffer> {
    let columns = usize::from(whole.area.width).max(1);
    let rows = whole.content.chunks(columns).enumerate();
    rows.map(|(y, cells)| Buffer {
        area: row(whole.area, y),
        content: cells.to_vec(),
    })
    .collect()
}

impl Canvas {
    /// An unknown terminal of this size.
    pub(crate) fn new(columns: u16, rows: u16) -> Self {
        Self {
            area: Rect::new(0, 0, columns, rows),
            ..Self::default()
        }
    }

    /// Columns and rows.
    pub(crate) fn size(&self) -> (u16, u16) {
        (self.area.width, self.area.height)
    }

    /// The bytes that make the terminal show a picture of its size; none if it does.
    pub(crate) fn show(&mut self, picture: Picture, cursor: Cursor) -> io::Result<Vec<u8>> {
        let unknown = self.rows.is_empty();
        if unknown {
            let blank =
                (0..usize::from(self.area.height)).map(|y| Buffer::empty(row(self.area, y)));
            self.rows = blank.collect();
            self.lines.clear();
        }
        let (changed, lines) = match picture {
            Picture::Lines(lines) => (self.drawn(&lines), lines),
            Picture::Cells(whole) => (split(&whole).into_iter().enumerate().collect(), Vec::new()),
        };
        let mut out = Vec::new();
        queue!(out, BeginSynchronizedUpdate)?;
        if unknown {
            queue!(out, Hide, Clear(ClearType::All))?;
        }
        let news = changed
            .iter()
            .flat_map(|(y, now)| self.rows[*y].diff_iter(now));
        let mut news = news.peekable();
        let is_news = news.peek().is_some();
        if is_news {
            CrosstermBackend::new(&mut out).draw(news)?;
        }
        match cursor {
            Some((x, y)) => queue!(out, Show, MoveTo(x, y))?,
            None if self.cursor.is_some() => queue!(out, Hide)?,
            None => {}
        }
        queue!(out, EndSynchronizedUpdate)?;
        if !is_news && !unknown && cursor == self.cursor {
            out.clear();
        }
        for (y, now) in changed {
            self.rows[y] = now;
        }
        (self.lines, self.cursor) = (lines, cursor);
        Ok(out)
    }

    /// The rows whose lines are others than before.
    fn drawn(&self, lines: &[Line<'static>]) -> Vec<(usize, Buffer)> {
        let lines = lines.iter().take(self.rows.len()).enumerate();
        lines
            .filter(|(y, line)| self.lines.get(*y) != Some(line))
            .map(|(y, line)| {
                let mut now = Buffer::empty(row(self.area, y));
                put(line, self.area, y, &mut now);
                (y, now)
            })
            .collect()
    }
}

#[cfg(test)]
mod tests {
    use std::num::NonZero;

    use super::*;
    use crate::model::{Model, Page};
    use crate::testing::{ROOT, buffer, canned, model, press, show};
    use crate::theme::{Depth, Look};
    use crate::view::{buffer_text, picture};

    /// A terminal, and what the program believes of it.
    struct Shown {
        canvas: Canvas,
        terminal: vt100::Parser,
    }

    impl Shown {
        fn new((columns, rows): (u16, u16)) -> Self {
            Self {
                canvas: Canvas::new(columns, rows),
                terminal: vt100::Parser::new(
                    NonZero::new(rows).unwrap(),
                    NonZero::new(columns).unwrap(),
                    0,
                ),
            }
        }

        /// How many bytes were written.
        fn draw(&mut self, model: &Model, look: &Look) -> usize {
            let (picture, cursor) = picture(model, look, self.canvas.size());
            let bytes = self.canvas.show(picture, cursor).unwrap();
            self.terminal.process(&bytes);
            bytes.len()
        }

        /// All cells with their styles, and where the cursor is if it can be seen.
        fn cells(&self) -> (Vec<String>, Option<(u16, u16)>) {
            let screen = self.terminal.screen();
            let (columns, rows) = self.canvas.size();
            let cell = |x, y| {
                let cell = screen.cell(y, x).unwrap();
                // One that was never written is blank.
                let text = Some(cell.contents()).filter(|t| !t.is_empty());
                let colours = (cell.fgcolor(), cell.bgcolor());
                let marks = [cell.bold(), cell.dim(), cell.underline(), cell.inverse()];
                format!("{:?} {colours:?} {marks:?}", text.unwrap_or(" "))
            };
            let all = (0..rows).flat_map(|y| (0..columns).map(move |x| (x, y)));
            let cursor = screen.cursor_position();
            let cursor = (!screen.hide_cursor()).then_some(cursor);
            (all.map(|(x, y)| cell(x, y)).collect(), cursor)
        }
    }

    /// The terminal has what a new one of its size would have.
    fn check(shown: &mut Shown, model: &Model, look: &Look, what: &str) {
        shown.draw(model, look);
        let mut anew = Shown::new(model.size);
        anew.draw(model, look);
        assert!(
            shown.cells() == anew.cells(),
            "{what}: the terminal has\n{}\nand should have\n{}",
            shown.terminal.screen().contents(),
            anew.terminal.screen().contents()
        );
        let rows = shown.terminal.screen().rows(0, model.size.0);
        let rows: String = rows.map(|row| format!("{}\n", row.trim_end())).collect();
        assert_eq!(rows, buffer_text(&buffer(model, look)), "{what}");
    }

    #[test]
    fn rows_that_stay_are_left_alone_and_the_terminal_has_all_of_them() {
        let look = Look::new(Depth::Indexed, true);
        let snapshots = [canned::workstation(), canned::demo(), canned::crowd()];
        for size in [(110, 34), (80, 24), (200, 60), (60, 15)] {
            let mut model = model(ROOT, size, snapshots[0].clone());
            let mut shown = Shown::new(size);
            for (n, page) in Page::ALL.into_iter().cycle().take(12).enumerate() {
                model.page = page;
                show(&mut model, snapshots[n % snapshots.len()].clone());
                // A box, another place in it, the rows again, a line with a cursor, a box over other rows, none.
                for keys in [
                    "j", "<enter>", "j", "<esc>", "/vis", "<esc>", "?", "<esc>", ":", "<esc>",
                ] {
                    press(&mut model, keys);
                    let what = format!("{size:?} {page:?} {n} {keys}");
                    check(&mut shown, &model, &look, &what);
                }
                assert_eq!(shown.draw(&model, &look), 0, "nothing has changed");
                model.clock.now_ms += 1000;
                check(&mut shown, &model, &look, "a second later");
                // Whatever somebody else has left there.
                shown
                    .terminal
                    .process(b"\x1b[5;5H\x1b[31;7mwall: hello\x1b[0m");
                shown.canvas = Canvas::new(size.0, size.1);
                check(&mut shown, &model, &look, "drawn anew");
            }
        }
    }

    #[test]
    fn a_second_costs_the_header_alone() {
        let look = Look::new(Depth::Indexed, true);
        let mut model = model(ROOT, (110, 34), canned::crowd());
        let mut shown = Shown::new(model.size);
        let all = shown.draw(&model, &look);
        model.clock.now_ms += 1000;
        let second = shown.draw(&model, &look);
        assert!(all > 2000 && (1..120).contains(&second), "{all} {second}");
    }
}
