//! A list with a chosen row; Enter hands the terminal to the program of that row until it ends.

use std::io;
use std::process::Command;
use std::time::Duration;

use crossterm::event::{Event, KeyCode, KeyEvent, KeyEventKind, KeyModifiers, MouseEventKind};
use nix::sys::signal::Signal::{self, SIGINT, SIGTSTP};
use nix::sys::signal::{kill, raise};
use nix::unistd::Pid;
use ratatui::buffer::Buffer;
use ratatui::layout::Rect;
use tokio::time::{Instant, sleep_until};

use crate::run::{Exit, Keys, Options, Signals, blocking};
use crate::term::Screen;
use crate::text::{left, width, wrap};
use crate::theme::Look;

/// A list as it is now.
#[derive(Clone, Debug, Default)]
pub struct List {
    /// The first line.
    pub title: String,
    /// The headings of the columns.
    pub heading: String,
    /// The rows.
    pub items: Vec<Item>,
}

/// A row.
#[derive(Clone, Debug, Default)]
pub struct Item {
    /// What it is while others come and go.
    pub name: String,
    /// Its columns.
    pub text: String,
    /// Something is wrong with it.
    pub wrong: bool,
    /// Texts with their labels, below the list while it is chosen.
    pub detail: Vec<(&'static str, String)>,
}

/// The list and what the user did with it.
#[derive(Debug, Default)]
struct Chooser {
    list: List,
    chosen: usize,
    /// In place of the keys, until the next key.
    said: String,
}

/// What a key asks the loop for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Wish {
    Quit,
    Suspend,
    Redraw,
    Open,
}

/// Rows above the list: title and headings.
const ABOVE: usize = 2;
/// A screen with fewer rows has no details.
const LOW: usize = 12;
const KEYS: [(&str, &str); 3] = [
    ("Up Down", "choose"),
    ("Enter", "its screen"),
    ("q", "quit"),
];

impl Chooser {
    /// The chosen row stays, wherever it is now.
    fn take(&mut self, list: List) {
        let chosen = self.list.items.get(self.chosen).map(|item| &item.name);
        let now = list.items.iter().position(|i| Some(&i.name) == chosen);
        self.chosen = now.unwrap_or(self.chosen);
        self.list = list;
        self.step(0);
    }

    fn step(&mut self, rows: isize) {
        let last = self.list.items.len().saturating_sub(1);
        self.chosen = self.chosen.saturating_add_signed(rows).min(last);
    }

    /// The details of the chosen row, each line with its label; on a low screen, none.
    fn detail(&self, (cols, rows): (usize, usize), dots: &str) -> Vec<(String, String)> {
        if rows < LOW {
            return Vec::new();
        }
        let all = self.list.items.get(self.chosen).map(|i| &i.detail[..]);
        let all = all.unwrap_or_default();
        let labels = all.iter().map(|(label, _)| width(label)).max().unwrap_or(0) + 2;
        let lines = all.iter().flat_map(|(label, text)| {
            let lines = wrap(text, cols.saturating_sub(labels + 2), 2, dots);
            let label = |n| if n == 0 { *label } else { "" };
            let line = |(n, text)| (left(label(n), labels, dots), text);
            lines.into_iter().enumerate().map(line).collect::<Vec<_>>()
        });
        lines.collect()
    }

    /// How many rows there is room for, and the first of them.
    fn window(&self, rows: usize, detail: usize) -> (usize, usize) {
        let below = 1 + if detail > 0 { detail + 1 } else { 0 };
        let room = rows.saturating_sub(ABOVE + below).max(1);
        (room, (self.chosen + 1).saturating_sub(room))
    }

    fn draw(&self, look: &Look, area: Rect, buf: &mut Buffer) {
        let (theme, glyphs) = (&look.theme, &look.glyphs);
        let (cols, rows) = (usize::from(area.width), usize::from(area.height));
        let detail = self.detail((cols, rows), glyphs.ellipsis);
        let (room, first) = self.window(rows, detail.len());
        let mut put = |x: usize, y: usize, text: &str, style| {
            if x < cols && y < rows {
                let text = left(text, cols - x, glyphs.ellipsis);
                buf.set_string(area.x + x as u16, area.y + y as u16, text, style);
            }
        };
        put(0, 0, &self.list.title, theme.strong);
        put(2, 1, &self.list.heading, theme.heading);
        let items = self.list.items.iter().enumerate();
        for (n, item) in items.skip(first).take(room) {
            let (mark, style) = match n == self.chosen {
                true => (glyphs.pointer, theme.selected),
                false if item.wrong => (" ", theme.warn),
                false => (" ", theme.text),
            };
            let text = format!("{mark} {}", item.text);
            put(0, ABOVE + n - first, &text, style);
        }
        for (n, (label, text)) in detail.iter().enumerate() {
            let row = rows - 1 - detail.len() + n;
            put(2, row, label, theme.dim);
            put(2 + width(label), row, text, theme.text);
        }
        let all = self.list.items.len();
        if room < all {
            let count = format!("  {} to {} of {all}", first + 1, first + room);
            put(cols.saturating_sub(width(&count)), 0, &count, theme.dim);
        }
        let last = rows.saturating_sub(1);
        if !self.said.is_empty() {
            return put(0, last, &self.said, theme.error);
        }
        let mut at = 0;
        for (key, label) in KEYS {
            put(at, last, key, theme.key);
            put(at + width(key) + 1, last, label, theme.dim);
            at += width(key) + width(label) + 3;
        }
    }

    /// Acts on a key, a click or a turn of the wheel, on a screen of this size.
    fn on(&mut self, event: &Event, size: (usize, usize)) -> Option<Wish> {
        let (room, first) = self.window(size.1, self.detail(size, "").len());
        match event {
            Event::Key(KeyEvent {
                kind: KeyEventKind::Release,
                ..
            }) => {}
            Event::Key(key) => {
                self.said.clear();
                let page = room as isize;
                match (key.code, key.modifiers.contains(KeyModifiers::CONTROL)) {
                    (KeyCode::Char('q'), false) | (KeyCode::Char('c'), true) => {
                        return Some(Wish::Quit);
                    }
                    (KeyCode::Char('z'), true) => return Some(Wish::Suspend),
                    (KeyCode::Char('l'), true) => return Some(Wish::Redraw),
                    (KeyCode::Enter, _) => return Some(Wish::Open),
                    (KeyCode::Down | KeyCode::Char('j'), false) => self.step(1),
                    (KeyCode::Up | KeyCode::Char('k'), false) => self.step(-1),
                    (KeyCode::PageDown, _) | (KeyCode::Char('d'), true) => self.step(page),
                    (KeyCode::PageUp, _) | (KeyCode::Char('u'), true) => self.step(-page),
                    (KeyCode::Home | KeyCode::Char('g'), false) => self.chosen = 0,
                    (KeyCode::End | KeyCode::Char('G'), false) => self.step(isize::MAX),
                    _ => {}
                }
            }
            Event::Mouse(mouse) => match mouse.kind {
                MouseEventKind::ScrollDown => self.step(1),
                MouseEventKind::ScrollUp => self.step(-1),
                MouseEventKind::Down(_) => {
                    let row = usize::from(mouse.row).checked_sub(ABOVE);
                    let row = row.filter(|row| *row < room).map(|row| first + row);
                    self.chosen = row
                        .filter(|row| *row < self.list.items.len())
                        .unwrap_or(self.chosen);
                }
                _ => {}
            },
            _ => {}
        }
        None
    }
}

/// Shows a list until the user quits or a signal ends it. `look` gives the list for a number of columns, and for how
/// long it holds; `open` the program of a row, or why it has none.
///
/// # Errors
/// When input or output is not a terminal, or the terminal fails.
pub fn choose_blocking(
    options: Options,
    look: impl FnMut(usize) -> (List, Duration),
    open: impl FnMut(&str) -> Result<Command, String>,
) -> io::Result<Exit> {
    blocking(choose(options, look, open))
}

async fn choose(
    mut options: Options,
    mut look: impl FnMut(usize) -> (List, Duration),
    mut open: impl FnMut(&str) -> Result<Command, String>,
) -> io::Result<Exit> {
    let mut signals = Signals::new()?;
    let mut chooser = Chooser::default();
    loop {
        // It has the terminal until a row is opened.
        let mut screen = Screen::take()?;
        options.find_background();
        let mut keys = Keys::read();
        screen.fit()?;
        let mut due = Instant::now();
        let program = loop {
            let (cols, rows) = screen.size();
            let size = (usize::from(cols), usize::from(rows));
            if due <= Instant::now() {
                let (list, holds) = look(size.0.saturating_sub(2));
                chooser.take(list);
                due = Instant::now() + holds;
            }
            screen.show(|area, buf| {
                chooser.draw(&options.look, area, buf);
                None
            })?;
            let wish = tokio::select! {
                biased;
                caught = signals.next() => match caught {
                    SIGTSTP => {
                        screen.stop()?;
                        continue;
                    }
                    number => return Ok(Exit::Signal(number as i32)),
                },
                event = keys.next() => match event {
                    Some(Ok(Event::Resize(width, height))) => {
                        screen.renew(width, height)?;
                        due = Instant::now();
                        continue;
                    }
                    Some(Ok(event)) => chooser.on(&event, size),
                    // The terminal is gone.
                    Some(Err(_)) | None => return Ok(Exit::Signal(Signal::SIGHUP as i32)),
                },
                () = sleep_until(due) => None,
            };
            let name = chooser
                .list
                .items
                .get(chooser.chosen)
                .map(|item| &item.name);
            match (wish, name) {
                (Some(Wish::Quit), _) => return Ok(Exit::Quit),
                (Some(Wish::Suspend), _) => kill(Pid::from_raw(0), SIGTSTP)?,
                (Some(Wish::Redraw), _) => screen.renew(cols, rows)?,
                (Some(Wish::Open), Some(name)) => match open(name) {
                    Ok(program) => break program,
                    Err(why) => chooser.said = why,
                },
                _ => {}
            }
        };
        keys.end().await;
        drop(screen);
        let name = program.get_program().display().to_string();
        let mut child = match tokio::process::Command::from(program).spawn() {
            Ok(child) => child,
            Err(error) => {
                chooser.said = format!("cannot start {name}: {error}");
                continue;
            }
        };
        let status = loop {
            tokio::select! {
                status = child.wait() => break status?,
                // The program gets the terminal's own signals, too.
                caught = signals.next() => match caught {
                    SIGINT => {}
                    SIGTSTP => raise(Signal::SIGSTOP)?,
                    number => {
                        child.start_kill()?;
                        child.wait().await?;
                        return Ok(Exit::Signal(number as i32));
                    }
                },
            }
        };
        if !status.success() {
            chooser.said = format!("{name} ended with {status}");
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::picture::buffer_text;
    use crate::theme::Depth;

    fn list(names: &[&str]) -> List {
        let item = |name: &&str| Item {
            name: (*name).to_owned(),
            text: format!("{name}  2.00"),
            detail: vec![("state", format!("{name} is ok"))],
            ..Item::default()
        };
        List {
            title: "machines".to_owned(),
            heading: "HOST".to_owned(),
            items: names.iter().map(item).collect(),
        }
    }

    fn shown(chooser: &Chooser, (cols, rows): (u16, u16)) -> Vec<String> {
        let area = Rect::new(0, 0, cols, rows);
        let mut buf = Buffer::empty(area);
        chooser.draw(&Look::new(Depth::Mono, false), area, &mut buf);
        buffer_text(&buf).lines().map(str::to_owned).collect()
    }

    fn press(chooser: &mut Chooser, code: KeyCode) -> Option<Wish> {
        chooser.on(&Event::Key(code.into()), (40, 12))
    }

    #[test]
    fn the_chosen_row_stays_chosen_and_in_sight() {
        let mut chooser = Chooser::default();
        assert_eq!(press(&mut chooser, KeyCode::Down), None, "no rows yet");
        let names: Vec<String> = (0..20).map(|n| format!("m{n}")).collect();
        let names: Vec<&str> = names.iter().map(String::as_str).collect();
        chooser.take(list(&names));
        let rows = shown(&chooser, (40, 12));
        assert_eq!(rows[0], "machines                    1 to 7 of 20");
        assert_eq!(rows[1..3], ["  HOST", "> m0  2.00"]);
        assert_eq!(rows[10], "  state  m0 is ok");
        assert_eq!(rows[11], "Up Down choose  Enter its screen  q quit");
        for code in [KeyCode::PageDown, KeyCode::Down] {
            press(&mut chooser, code);
        }
        assert_eq!(shown(&chooser, (40, 12))[8], "> m8  2.00");
        // Others come and go; then it goes itself.
        chooser.take(list(&["m7", "m8", "m9"]));
        assert_eq!(chooser.chosen, 1);
        chooser.take(list(&["m7"]));
        assert_eq!(chooser.chosen, 0);
        assert_eq!(press(&mut chooser, KeyCode::Enter), Some(Wish::Open));
        assert_eq!(press(&mut chooser, KeyCode::Char('q')), Some(Wish::Quit));
        chooser.take(List::default());
        for size in [(0, 0), (1, 1), (3, 2), (40, 5)] {
            shown(&chooser, size);
        }
        chooser.take(list(&names));
        for size in [(1, 1), (3, 2), (40, 5)] {
            shown(&chooser, size);
        }
    }

    #[test]
    fn a_click_chooses_the_row_below_it() {
        let mut chooser = Chooser::default();
        chooser.take(list(&["m0", "m1", "m2"]));
        let mut click = |row| {
            let event = Event::Mouse(crossterm::event::MouseEvent {
                kind: MouseEventKind::Down(crossterm::event::MouseButton::Left),
                column: 3,
                row,
                modifiers: KeyModifiers::NONE,
            });
            chooser.on(&event, (40, 12));
            chooser.chosen
        };
        assert_eq!([3, 1, 8, 4].map(&mut click), [1, 1, 1, 2]);
    }
}
