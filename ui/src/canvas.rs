//! What is on the terminal, and the bytes that make it what it should be: ratatui's difference of two buffers, which
//! goes out in one piece, or not at all where there is none.

use std::io;

use crossterm::cursor::{Hide, MoveTo, Show};
use crossterm::queue;
use crossterm::terminal::{BeginSynchronizedUpdate, Clear, ClearType, EndSynchronizedUpdate};
use ratatui::backend::{Backend, CrosstermBackend};
use ratatui::buffer::{Buffer, Cell};
use ratatui::layout::Rect;
use ratatui::style::{Color, Modifier};

use crate::view::Cursor;

#[derive(Debug, Default)]
pub(crate) struct Canvas {
    shown: Buffer,
    /// For the next frame.
    spare: Buffer,
    cursor: Cursor,
    /// Whether that is what the terminal shows.
    known: bool,
}

impl Canvas {
    /// An unknown terminal of this size.
    pub(crate) fn new(columns: u16, rows: u16) -> Self {
        Self {
            shown: Buffer::empty(Rect::new(0, 0, columns, rows)),
            ..Self::default()
        }
    }

    pub(crate) fn size(&self) -> (u16, u16) {
        (self.shown.area.width, self.shown.area.height)
    }

    /// The bytes that make the terminal show what is drawn; none if it does.
    pub(crate) fn show(
        &mut self,
        draw: impl FnOnce(Rect, &mut Buffer) -> Cursor,
    ) -> io::Result<Vec<u8>> {
        let mut now = std::mem::take(&mut self.spare);
        match now.area == self.shown.area {
            true => now.reset(),
            false => now = Buffer::empty(self.shown.area),
        }
        let cursor = draw(now.area, &mut now);
        let mut out = Vec::new();
        queue!(out, BeginSynchronizedUpdate)?;
        if !self.known {
            queue!(out, Hide, Clear(ClearType::All))?;
        }
        let news = changed(&self.shown, &now);
        let is_news = !news.is_empty() || !self.known || cursor != self.cursor;
        if !news.is_empty() {
            let cells = news.iter().flat_map(|(was, is)| was.diff_iter(is));
            CrosstermBackend::new(&mut out).draw(cells)?;
        }
        match cursor {
            Some((x, y)) => queue!(out, Show, MoveTo(x, y))?,
            None if self.cursor.is_some() => queue!(out, Hide)?,
            None => {}
        }
        queue!(out, EndSynchronizedUpdate)?;
        if !is_news {
            out.clear();
        }
        self.spare = std::mem::replace(&mut self.shown, now);
        (self.cursor, self.known) = (cursor, true);
        Ok(out)
    }
}

/// The rows that differ, before and now: mostly few, and to tell a row from itself costs less than the difference.
fn changed(was: &Buffer, is: &Buffer) -> Vec<(Buffer, Buffer)> {
    let rows = was.area.rows().filter_map(|area| {
        let (y, width) = (usize::from(area.y), usize::from(area.width));
        let cells = y * width..(y + 1) * width;
        let [a, b] = [was, is].map(|buf| &buf.content[cells.clone()]);
        let row = |cells: &[Cell]| Buffer {
            area,
            content: cells.to_vec(),
        };
        let is_same = a.iter().zip(b).all(|(a, b)| look(a) == look(b));
        (!is_same).then(|| (row(a), row(b)))
    });
    rows.collect()
}

/// All of a cell that is ever set. Its own comparison has more, and is a call for each cell: 7 % of a refresh at 200x50.
fn look(cell: &Cell) -> (&str, Color, Color, Modifier) {
    (cell.symbol(), cell.fg, cell.bg, cell.modifier)
}

#[cfg(test)]
mod tests {
    use std::num::NonZero;

    use super::*;
    use crate::model::{Model, Page};
    use crate::picture::buffer_text;
    use crate::testing::{ROOT, buffer, canned, model, open, press, show};
    use crate::theme::{Depth, Look};
    use crate::view::draw;

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
            let drawn = self.canvas.show(|area, buf| draw(model, look, area, buf));
            let bytes = drawn.unwrap();
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
                open(&mut model, page);
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

    /// Bytes for a second in which time alone goes on.
    #[test]
    fn an_idle_second_is_cheap_on_every_screen() {
        let look = Look::new(Depth::Rgb, true);
        let mut most = 0;
        for snapshot in [canned::workstation(), canned::lab(), canned::eventful()] {
            for page in Page::ALL {
                let mut model = model(ROOT, (120, 40), snapshot.clone());
                model.checks.rows = Some(Ok(canned::checks()));
                model.past.view = Some(Ok(Box::new(canned::recorded())));
                open(&mut model, page);
                let mut shown = Shown::new(model.size);
                shown.draw(&model, &look);
                for _ in 0..30 {
                    model.clock.now_ms += 1000;
                    model.received_ms = model.clock.now_ms;
                    let bytes = shown.draw(&model, &look);
                    assert!(bytes <= 600, "{page:?}: {bytes}");
                    most = most.max(bytes);
                }
            }
        }
        println!("most bytes in an idle second: {most}");
    }
}
