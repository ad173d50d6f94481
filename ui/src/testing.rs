//! Helpers for the tests of this crate: models on canned snapshots, and keys written as text.

use crossterm::event::{KeyCode, KeyEvent, KeyModifiers};
use gshare_proto::Snapshot;
use ratatui::buffer::Buffer;
use ratatui::layout::Rect;
use ratatui::style::Color;

use crate::feed::Update;
use crate::model::{Model, Page, Viewer};
use crate::msg::{Cmd, Msg};
use crate::picture;
use crate::text::Clock;
use crate::theme::{Depth, Look};
use crate::update::update;
use crate::view;

#[path = "../tests/support/canned.rs"]
pub(crate) mod canned;

/// The owner of c12 in the canned snapshots.
pub(crate) const NLP: Viewer = Viewer {
    uid: 1001,
    admin: false,
};

pub(crate) const ROOT: Viewer = Viewer {
    uid: 0,
    admin: true,
};

/// A model at the moment of the canned snapshots.
pub(crate) fn model(viewer: Viewer, size: (u16, u16), snapshot: Snapshot) -> Model {
    let clock = Clock {
        now_ms: canned::NOW_MS,
        offset_s: 0,
    };
    let mut model = Model::new(viewer, size, clock);
    show(&mut model, snapshot);
    model
}

/// A snapshot arrives.
pub(crate) fn show(model: &mut Model, snapshot: Snapshot) {
    update(model, Msg::Update(Update::Snapshot(Box::new(snapshot))));
}

/// Opens a screen.
pub(crate) fn open(model: &mut Model, page: Page) {
    model.page = page;
    model.settle();
}

/// Presses keys, written like `jj<enter>/vis<esc>`.
pub(crate) fn press(model: &mut Model, keys: &str) -> Vec<Cmd> {
    let mut commands = Vec::new();
    let mut rest = keys;
    while let Some(first) = rest.chars().next() {
        let (event, length) = match rest.strip_prefix('<').and_then(|r| r.split_once('>')) {
            Some((name, _)) => (named(name), name.len() + 2),
            None => (KeyCode::Char(first).into(), first.len_utf8()),
        };
        rest = &rest[length..];
        commands.extend(update(model, Msg::Key(event)));
    }
    commands
}

fn named(name: &str) -> KeyEvent {
    let code = match name {
        "enter" => KeyCode::Enter,
        "esc" => KeyCode::Esc,
        "tab" => KeyCode::Tab,
        "backtab" => KeyCode::BackTab,
        "backspace" => KeyCode::Backspace,
        "down" => KeyCode::Down,
        "up" => KeyCode::Up,
        "right" => KeyCode::Right,
        "left" => KeyCode::Left,
        "pgdn" => KeyCode::PageDown,
        "pgup" => KeyCode::PageUp,
        "home" => KeyCode::Home,
        "end" => KeyCode::End,
        "space" => KeyCode::Char(' '),
        _ => match name.strip_prefix("c-").and_then(|c| c.chars().next()) {
            Some(c) => return KeyEvent::new(KeyCode::Char(c), KeyModifiers::CONTROL),
            None => panic!("no key <{name}>"),
        },
    };
    code.into()
}

/// The terminal's contents.
pub(crate) fn buffer(model: &Model, look: &Look) -> Buffer {
    let (width, height) = model.size;
    let area = Rect::new(0, 0, width, height);
    let mut buf = Buffer::empty(area);
    view::draw(model, look, area, &mut buf);
    buf
}

/// Its characters.
pub(crate) fn screen(model: &Model) -> String {
    picture::buffer_text(&buffer(model, &Look::new(Depth::Mono, true)))
}

/// The first row with this beginning, whatever its indent.
pub(crate) fn row(text: &str, start: &str) -> String {
    let found = text.lines().find(|l| l.trim_start().starts_with(start));
    let found = found.unwrap_or_else(|| panic!("no `{start}` on\n{text}"));
    found.to_owned()
}

/// Everything that a screen can ask the service for.
pub(crate) fn known(model: &mut Model) {
    model.checks.rows = Some(Ok(canned::checks()));
    model.past.view = Some(Ok(Box::new(canned::recorded())));
}

/// Its characters, and in a second picture below, the style of each: a letter, explained at the end. Cells without a
/// style of their own are blank there.
pub(crate) fn styled_screen(model: &Model, look: &Look) -> String {
    let buf = buffer(model, look);
    let mut styles: Vec<String> = Vec::new();
    let mut picture = String::new();
    for y in 0..buf.area.height {
        let mut line = String::new();
        for x in 0..buf.area.width {
            let cell = &buf[(x, y)];
            let style = format!("{:?} on {:?} {:?}", cell.fg, cell.bg, cell.modifier);
            if style == "Reset on Reset NONE" {
                line.push(' ');
                continue;
            }
            let known = styles.iter().position(|s| *s == style);
            let at = known.unwrap_or_else(|| {
                styles.push(style);
                styles.len() - 1
            });
            line.push(char::from(b'a' + u8::try_from(at).unwrap_or(25).min(25)));
        }
        picture.push_str(line.trim_end());
        picture.push('\n');
    }
    let legend = styles.iter().enumerate().map(|(i, style)| {
        let letter = char::from(b'a' + u8::try_from(i).unwrap_or(25).min(25));
        format!("{letter} = {style}\n")
    });
    let legend: String = legend.collect();
    format!("{}---\n{picture}---\n{legend}", picture::buffer_text(&buf))
}

/// Compares with the checked-in file `tests/screens/<name>.txt`; `GSHARE_BLESS=1` writes it.
pub(crate) fn check_screen(name: &str, model: &Model) {
    check_text(name, &screen(model));
}

/// The same for any text.
pub(crate) fn check_text(name: &str, got: &str) {
    let path = format!("{}/tests/screens/{name}.txt", env!("CARGO_MANIFEST_DIR"));
    if std::env::var_os("GSHARE_BLESS").is_some() {
        std::fs::write(&path, got).unwrap();
    }
    let want = std::fs::read_to_string(&path).unwrap_or_default();
    assert!(
        got == want,
        "the screen differs from {path} (GSHARE_BLESS=1 accepts it); it is now\n{got}\nand was\n{want}"
    );
}

pub(crate) type Rgb = (u8, u8, u8);

/// The 16 colours of xterm, and of the console of Linux and VGA.
pub(crate) const XTERM: [u32; 16] = [
    0x00_0000, 0xcd_0000, 0x00_cd00, 0xcd_cd00, 0x00_00ee, 0xcd_00cd, 0x00_cdcd, 0xe5_e5e5,
    0x7f_7f7f, 0xff_0000, 0x00_ff00, 0xff_ff00, 0x5c_5cff, 0xff_00ff, 0x00_ffff, 0xff_ffff,
];
pub(crate) const CONSOLE: [u32; 16] = [
    0x00_0000, 0xaa_0000, 0x00_aa00, 0xaa_5500, 0x00_00aa, 0xaa_00aa, 0x00_aaaa, 0xaa_aaaa,
    0x55_5555, 0xff_5555, 0x55_ff55, 0xff_ff55, 0x55_55ff, 0xff_55ff, 0x55_ffff, 0xff_ffff,
];

/// A colour as such a terminal shows it; none for the terminal's own.
pub(crate) fn rgb_of(colour: Color, sixteen: &[u32; 16]) -> Rgb {
    let level = |n: u8| if n == 0 { 0 } else { 55 + 40 * n };
    let named = [
        Color::Black,
        Color::Red,
        Color::Green,
        Color::Yellow,
        Color::Blue,
        Color::Magenta,
        Color::Cyan,
        Color::Gray,
        Color::DarkGray,
        Color::LightRed,
        Color::LightGreen,
        Color::LightYellow,
        Color::LightBlue,
        Color::LightMagenta,
        Color::LightCyan,
        Color::White,
    ];
    let of_16 = |n: usize| {
        let [_, r, g, b] = sixteen[n].to_be_bytes();
        (r, g, b)
    };
    match colour {
        Color::Rgb(r, g, b) => (r, g, b),
        Color::Indexed(n @ 232..) => {
            let grey = 8 + 10 * (n - 232);
            (grey, grey, grey)
        }
        Color::Indexed(n @ 16..) => {
            let n = n - 16;
            (level(n / 36), level(n / 6 % 6), level(n % 6))
        }
        Color::Indexed(n) => of_16(n.into()),
        named_one => {
            let place = named.iter().position(|c| *c == named_one);
            of_16(place.unwrap_or_else(|| panic!("{named_one:?} is the terminal's own")))
        }
    }
}

/// Contrast between two colours by WCAG 2: 1 to 21.
pub(crate) fn contrast(a: Rgb, b: Rgb) -> f64 {
    let linear = |v: u8| {
        let v = f64::from(v) / 255.0;
        if v <= 0.03928 {
            v / 12.92
        } else {
            ((v + 0.055) / 1.055).powf(2.4)
        }
    };
    let light = |(r, g, b)| 0.2126 * linear(r) + 0.7152 * linear(g) + 0.0722 * linear(b) + 0.05;
    let (a, b) = (light(a), light(b));
    if a > b { a / b } else { b / a }
}
