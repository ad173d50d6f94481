//! What the tests of this crate share: models on canned snapshots, and keys written as text.

use crossterm::event::{KeyCode, KeyEvent, KeyModifiers};
use gshare_proto::Snapshot;
use ratatui::buffer::Buffer;
use ratatui::layout::Rect;

use crate::feed::Update;
use crate::model::{Model, Viewer};
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

/// Root.
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

/// What the terminal shows.
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

/// Its characters, and below them, in a second picture, the style of each: a letter, explained at the end. Cells
/// without a style of their own are blank there.
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
