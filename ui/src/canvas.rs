//! ratatui's terminal. The bytes of a frame are written in one piece, or not at all if nothing has changed.

use std::cell::RefCell;
use std::io::{self, Write};
use std::rc::Rc;

use crossterm::cursor::Hide;
use crossterm::queue;
use crossterm::terminal::{BeginSynchronizedUpdate, Clear, ClearType, EndSynchronizedUpdate};
use ratatui::backend::CrosstermBackend;
use ratatui::buffer::Buffer;
use ratatui::layout::Rect;
use ratatui::{Terminal, TerminalOptions, Viewport};

use crate::view::Cursor;

/// Collects what is written. The terminal flushes before and after the cursor, which is not the end of a frame.
#[derive(Clone, Debug, Default)]
struct Bytes(Rc<RefCell<Vec<u8>>>);

impl Write for Bytes {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.0.borrow_mut().write(bytes)
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

#[derive(Debug)]
pub(crate) struct Canvas {
    terminal: Terminal<CrosstermBackend<Bytes>>,
    bytes: Bytes,
    /// The previous frame.
    last: Vec<u8>,
    size: (u16, u16),
}

impl Canvas {
    /// A terminal of this size with unknown contents.
    pub(crate) fn new(columns: u16, rows: u16) -> io::Result<Self> {
        let mut bytes = Bytes::default();
        queue!(bytes, Hide, Clear(ClearType::All))?;
        let viewport = Viewport::Fixed(Rect::new(0, 0, columns, rows));
        let backend = CrosstermBackend::new(bytes.clone());
        Ok(Self {
            terminal: Terminal::with_options(backend, TerminalOptions { viewport })?,
            bytes,
            last: Vec::new(),
            size: (columns, rows),
        })
    }

    pub(crate) fn size(&self) -> (u16, u16) {
        self.size
    }

    /// The bytes that bring the terminal to this frame; empty if nothing has changed.
    pub(crate) fn show(
        &mut self,
        draw: impl FnOnce(Rect, &mut Buffer) -> Cursor,
    ) -> io::Result<Vec<u8>> {
        self.terminal.draw(|frame| {
            if let Some(at) = draw(frame.area(), frame.buffer_mut()) {
                frame.set_cursor_position(at);
            }
        })?;
        let now = self.bytes.0.take();
        let mut out = Vec::new();
        // The end of the previous frame changes nothing: without new cells that is only the cursor.
        if !self.last.ends_with(&now) {
            queue!(out, BeginSynchronizedUpdate)?;
            out.extend_from_slice(&now);
            queue!(out, EndSynchronizedUpdate)?;
        }
        self.last = now;
        Ok(out)
    }
}

#[cfg(test)]
mod tests {
    use std::num::NonZero;

    use super::*;
    use crate::model::{Model, Page};
    use crate::picture::buffer_text;
    use crate::testing::{ROOT, buffer, canned, known, model, open, press, show};
    use crate::theme::{Depth, Look};
    use crate::view::draw;

    /// A terminal, and what the program assumes about it.
    struct Shown {
        canvas: Canvas,
        terminal: vt100::Parser,
    }

    impl Shown {
        fn new((columns, rows): (u16, u16)) -> Self {
            Self {
                canvas: Canvas::new(columns, rows).unwrap(),
                terminal: vt100::Parser::new(
                    NonZero::new(rows).unwrap(),
                    NonZero::new(columns).unwrap(),
                    0,
                ),
            }
        }

        /// Returns the number of bytes written.
        fn draw(&mut self, model: &Model, look: &Look) -> usize {
            let drawn = self.canvas.show(|area, buf| draw(model, look, area, buf));
            let bytes = drawn.unwrap();
            self.terminal.process(&bytes);
            bytes.len()
        }

        /// All cells with their styles, and the cursor's place if it is visible.
        fn cells(&self) -> (Vec<impl PartialEq + use<>>, Option<(u16, u16)>) {
            let screen = self.terminal.screen();
            let (columns, rows) = self.canvas.size();
            let cell = |x, y| {
                let cell = screen.cell(y, x).unwrap();
                // A cell that was never written is blank.
                let text = Some(cell.contents()).filter(|t| !t.is_empty());
                let marks = [cell.bold(), cell.dim(), cell.underline(), cell.inverse()];
                let text = text.unwrap_or(" ").to_owned();
                (text, cell.fgcolor(), cell.bgcolor(), marks)
            };
            let all = (0..rows).flat_map(|y| (0..columns).map(move |x| (x, y)));
            let cursor = screen.cursor_position();
            let cursor = (!screen.hide_cursor()).then_some(cursor);
            (all.map(|(x, y)| cell(x, y)).collect(), cursor)
        }
    }

    /// The terminal shows what a new one of its size would show.
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
                    "j", "<enter>", "j", "<esc>", "/vis", "<esc>", "?", "<esc>", "n", "<esc>",
                ] {
                    press(&mut model, keys);
                    let what = format!("{size:?} {page:?} {n} {keys}");
                    check(&mut shown, &model, &look, &what);
                }
                assert_eq!(shown.draw(&model, &look), 0, "nothing has changed");
                model.clock.now_ms += 1000;
                check(&mut shown, &model, &look, "a second later");
                // Whatever another program has left there.
                shown
                    .terminal
                    .process(b"\x1b[5;5H\x1b[31;7mwall: hello\x1b[0m");
                shown.canvas = Canvas::new(size.0, size.1).unwrap();
                check(&mut shown, &model, &look, "drawn anew");
            }
        }
    }

    /// Bytes for a second in which only the time changes.
    #[test]
    fn an_idle_second_is_cheap_on_every_screen() {
        let look = Look::new(Depth::Rgb, true);
        let mut most = 0;
        for snapshot in [canned::workstation(), canned::lab(), canned::eventful()] {
            for page in Page::ALL {
                let mut model = model(ROOT, (120, 40), snapshot.clone());
                known(&mut model);
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
