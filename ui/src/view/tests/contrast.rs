//! Contrast of drawn cells on dark and light terminals: 4.5 for text, 3 for signs and for adjacent areas. Rules, dots
//! and unused parts are faint on purpose: a tick or a word says the same.

use ratatui::buffer::Cell;

use super::*;
use crate::testing::{CONSOLE, Rgb, XTERM, contrast, rgb_of};
use crate::theme::Background;

/// A terminal: its colours, its background and its ink.
struct Terminal {
    depth: Depth,
    on: Background,
    sixteen: &'static [u32; 16],
    page: Rgb,
    ink: Rgb,
}

/// The kind of a cell.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Kind {
    Text,
    /// `▲`, `✗` and the like.
    Sign,
    /// A part of a bar or a map, with the colours of its left and right edge.
    Area(Rgb, Rgb),
    Blank,
    /// Rules, walls, ticks, dots and dotted lines.
    Faint,
}

impl Terminal {
    fn of(&self, colour: Color, own: Rgb) -> Rgb {
        match colour {
            Color::Reset => own,
            colour => rgb_of(colour, self.sixteen),
        }
    }

    /// The colours of the text and of its background.
    fn colours(&self, cell: &Cell) -> (Rgb, Rgb) {
        (self.of(cell.fg, self.ink), self.of(cell.bg, self.page))
    }

    fn kind(&self, cell: &Cell) -> Kind {
        let (front, behind) = self.colours(cell);
        let sign = cell.symbol().chars().next().unwrap_or(' ');
        let many = matches!(self.depth, Depth::Indexed | Depth::Rgb);
        match sign {
            ' ' if cell.bg == Color::Reset => Kind::Blank,
            // A chosen row, the caption.
            ' ' => Kind::Faint,
            '▲' | '✗' | '▸' | '▾' | '▴' | '→' => Kind::Sign,
            '█' => Kind::Area(front, front),
            // Shades also differ by their form; with 16 colours by that alone.
            '▒' | '░' if many => Kind::Area(front, front),
            '▒' => Kind::Sign,
            '▉'..='▏' if many => Kind::Area(front, behind),
            '▉'..='▏' | '▁'..='▇' | '▀'..='▐' => Kind::Sign,
            '─'..='╿' | '·' | '░' | '⠀'..='⣿' => Kind::Faint,
            _ => Kind::Text,
        }
    }
}

/// Screens of every state, at the usual sizes.
fn screens() -> Vec<(String, Model)> {
    let more = [
        ("workstation", canned::workstation()),
        ("demo", canned::demo()),
        ("eventful", canned::eventful()),
        ("crowd", canned::crowd()),
        ("monitor", canned::monitor()),
    ];
    let mut out = Vec::new();
    for (name, snapshot) in laboratory().into_iter().chain(more_states()).chain(more) {
        for size in [(60, 15), (80, 24), (120, 40), (200, 50)] {
            for page in Page::ALL {
                let mut m = model(NLP, size, snapshot.clone());
                known(&mut m);
                press(&mut m, &(page.place() + 1).to_string());
                out.push((format!("{name} {page:?} {size:?}"), m));
            }
        }
    }
    out
}

/// Amber and red belong to the signs, except for the words that say that gshare is off.
#[test]
fn every_sign_has_its_colour_and_no_word_has_it() {
    let look = Look::new(Depth::Rgb, true);
    let signs = [("▲", look.theme.warn), ("✗", look.theme.error)];
    for (name, mut m) in screens() {
        for keys in ["", "<left>", "<enter>"] {
            press(&mut m, keys);
            let alone = m.page == Page::Overview && m.dialog.is_none() && m.off().is_none();
            let behind = m.dialog.as_ref().and(look.theme.free.fg);
            let is_free = |c: &&Cell| Some(c.bg) != look.theme.selected.bg && Some(c.fg) != behind;
            let buf = buffer(&m, &look);
            for cell in buf.content.iter().filter(is_free) {
                for (sign, style) in &signs {
                    let (is_sign, coloured) = (cell.symbol() == *sign, Some(cell.fg) == style.fg);
                    let blank = cell.symbol() == " ";
                    let wrong = is_sign && !coloured || alone && coloured && !is_sign && !blank;
                    assert!(!wrong, "{} {name} {keys}\n{}", cell.symbol(), screen(&m));
                }
            }
        }
    }
}

#[test]
fn what_is_drawn_has_contrast() {
    let dark = ((0x1e, 0x1e, 0x1e), (0xd0, 0xd0, 0xd0), Background::Dark);
    let black = ((0, 0, 0), (0xe5, 0xe5, 0xe5), Background::Dark);
    let light = ((0xff, 0xff, 0xff), (0, 0, 0), Background::Light);
    let mut terminals = Vec::new();
    for (depth, sixteen, pages) in [
        (Depth::Rgb, &XTERM, [dark, light]),
        (Depth::Indexed, &XTERM, [dark, light]),
        (Depth::Ansi, &XTERM, [black, light]),
        (Depth::Ansi, &CONSOLE, [black, light]),
    ] {
        terminals.extend(pages.map(|(page, ink, on)| Terminal {
            depth,
            on,
            sixteen,
            page,
            ink,
        }));
    }
    let screens = screens();
    let mut least = [f64::MAX; 3];
    for t in &terminals {
        let look = Look::new(t.depth, true).on(t.on);
        let unused = t.of(look.theme.unused.fg.unwrap(), t.ink);
        for (name, m) in &screens {
            let buf = buffer(m, &look);
            let row = usize::from(buf.area.width);
            for (y, cells) in buf.content.chunks(row).enumerate() {
                for (x, cell) in cells.iter().enumerate() {
                    let (front, behind) = t.colours(cell);
                    let seen = contrast(front, behind);
                    let what = || {
                        let (depth, on, symbol) = (t.depth, t.on, cell.symbol());
                        format!("{depth:?} on {on:?}, {name}, {x},{y} `{symbol}`: {seen:.2}")
                    };
                    match t.kind(cell) {
                        Kind::Text => {
                            assert!(seen >= 4.5, "text: {}", what());
                            least[0] = least[0].min(seen);
                        }
                        Kind::Sign => {
                            assert!(seen >= 3.0, "sign: {}", what());
                            least[1] = least[1].min(seen);
                        }
                        Kind::Area(..) | Kind::Blank | Kind::Faint => {}
                    }
                    let Some(next) = cells.get(x + 1) else {
                        continue;
                    };
                    let edges = match (t.kind(cell), t.kind(next)) {
                        (Kind::Area(_, a), Kind::Area(b, _)) => Some((a, b)),
                        (Kind::Area(_, a), Kind::Blank) => Some((a, t.page)),
                        (Kind::Blank, Kind::Area(b, _)) => Some((t.page, b)),
                        _ => None,
                    };
                    let edges = edges.filter(|(a, b)| {
                        a != b && ![(t.page, unused), (unused, t.page)].contains(&(*a, *b))
                    });
                    // A chosen row has one colour; the forms of its signs distinguish the parts.
                    let is_chosen = |cell: &Cell| Some(cell.bg) == look.theme.selected.bg;
                    if let Some((a, b)) = edges.filter(|_| !is_chosen(cell) && !is_chosen(next)) {
                        let seen = contrast(a, b);
                        assert!(
                            seen >= 3.0,
                            "beside `{}`: {seen:.2}; {}",
                            next.symbol(),
                            what()
                        );
                        least[2] = least[2].min(seen);
                    }
                }
            }
        }
    }
    let [text, sign, area] = least;
    println!("least contrast: text {text:.2}, signs {sign:.2}, areas {area:.2}");
}
