//! How the screen looks, by meaning: what is used, claimed, free, wrong. Colour never carries a
//! meaning alone, so a terminal without colours or without UTF-8 loses nothing but beauty.

use ratatui::style::{Color, Modifier, Style};

/// How many colours the terminal has.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Depth {
    /// None: `NO_COLOR`, or a terminal that has none.
    Mono,
    /// The 16 named ones.
    Ansi,
    /// 256 indexed ones.
    Indexed,
    /// 24 bits.
    Rgb,
}

/// The characters that are not letters.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Glyphs {
    /// Used within the request.
    pub(crate) used: &'static str,
    /// Used above the request.
    pub(crate) burst: &'static str,
    /// Claimed and not used.
    pub(crate) claimed: &'static str,
    /// Used outside claims.
    pub(crate) unclaimed: &'static str,
    /// Free.
    pub(crate) free: &'static str,
    /// Not known.
    pub(crate) dash: &'static str,
    /// Something was cut off.
    pub(crate) ellipsis: &'static str,
    /// Between items of a line.
    pub(crate) dot: &'static str,
    /// A rule across the screen.
    pub(crate) rule: &'static str,
    /// Sorted by this column.
    pub(crate) sorted: &'static str,
    /// The selected row or focused section.
    pub(crate) pointer: &'static str,
    /// A group whose rows are shown.
    pub(crate) open: &'static str,
    /// Levels of the history, lowest first.
    pub(crate) levels: [&'static str; 8],
    /// Whether frames are drawn with line characters.
    pub(crate) lines: bool,
}

/// With UTF-8.
pub(crate) const UTF8: Glyphs = Glyphs {
    used: "█",
    burst: "▓",
    claimed: "▒",
    unclaimed: "░",
    free: "·",
    dash: "—",
    ellipsis: "…",
    dot: "·",
    rule: "─",
    sorted: "▾",
    pointer: "▸",
    open: "▾",
    levels: ["▁", "▂", "▃", "▄", "▅", "▆", "▇", "█"],
    lines: true,
};

/// Without.
pub(crate) const ASCII: Glyphs = Glyphs {
    used: "#",
    burst: "+",
    claimed: "=",
    unclaimed: "%",
    free: ".",
    dash: "-",
    ellipsis: "..",
    dot: "|",
    rule: "-",
    sorted: "*",
    pointer: ">",
    open: "v",
    levels: ["_", "_", ".", ".", "-", "-", "=", "#"],
    lines: false,
};

/// Styles by meaning.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Theme {
    /// Ordinary text.
    pub(crate) text: Style,
    /// Names of sections and columns.
    pub(crate) heading: Style,
    /// The heading of the section that has the focus.
    pub(crate) focus: Style,
    /// The program's name.
    pub(crate) title: Style,
    /// Less important.
    pub(crate) dim: Style,
    /// Used within the request.
    pub(crate) used: Style,
    /// Used above the request.
    pub(crate) burst: Style,
    /// Claimed and not used.
    pub(crate) claimed: Style,
    /// Used outside claims.
    pub(crate) unclaimed: Style,
    /// Free.
    pub(crate) free: Style,
    /// Good news.
    pub(crate) good: Style,
    /// Worth a look.
    pub(crate) warn: Style,
    /// Wrong.
    pub(crate) error: Style,
    /// Keys and commands to type.
    pub(crate) key: Style,
    /// The selected row.
    pub(crate) selected: Style,
    /// The mark of the simulated driver.
    pub(crate) simulated: Style,
    /// The demo's caption.
    pub(crate) caption: Style,
}

impl Theme {
    /// The theme for a number of colours. Nobody tells which background a terminal has, so with 256 colours and more
    /// each stands out from a white one as from a black one.
    #[must_use]
    pub fn new(depth: Depth) -> Self {
        let pick = |ansi: Color, indexed: u8, rgb: (u8, u8, u8)| match depth {
            Depth::Mono => Style::new(),
            Depth::Ansi => Style::new().fg(ansi),
            Depth::Indexed => Style::new().fg(Color::Indexed(indexed)),
            Depth::Rgb => Style::new().fg(Color::Rgb(rgb.0, rgb.1, rgb.2)),
        };
        let dim = match depth {
            Depth::Mono => Style::new().add_modifier(Modifier::DIM),
            _ => pick(Color::DarkGray, 244, (0x80, 0x86, 0x8e)),
        };
        let bar = |style: Style| match depth {
            Depth::Mono => style.add_modifier(Modifier::REVERSED | Modifier::BOLD),
            _ => style.add_modifier(Modifier::BOLD),
        };
        let accent = pick(Color::Cyan, 31, (0x00, 0x8c, 0xaa));
        Self {
            text: Style::new(),
            heading: pick(Color::Reset, 68, (0x4f, 0x84, 0xc8)).add_modifier(Modifier::BOLD),
            focus: accent.add_modifier(Modifier::BOLD | Modifier::UNDERLINED),
            title: accent.add_modifier(Modifier::BOLD),
            dim,
            used: pick(Color::Green, 71, (0x4c, 0xa0, 0x4c)),
            burst: pick(Color::Yellow, 172, (0xc4, 0x84, 0x10)),
            claimed: pick(Color::LightBlue, 67, (0x5f, 0x87, 0xc0)),
            unclaimed: pick(Color::Magenta, 133, (0xaa, 0x66, 0xaa)),
            free: match depth {
                Depth::Mono => dim,
                _ => pick(Color::DarkGray, 240, (0x5a, 0x60, 0x68)),
            },
            good: pick(Color::Green, 64, (0x46, 0x90, 0x46)),
            warn: pick(Color::Yellow, 136, (0xb2, 0x7e, 0x00)),
            error: pick(Color::Red, 167, (0xdc, 0x50, 0x50)).add_modifier(Modifier::BOLD),
            key: accent.add_modifier(Modifier::BOLD),
            // One colour for the whole row, whatever its figures have and whatever is behind the screen.
            selected: match depth {
                Depth::Mono => Style::new()
                    .add_modifier(Modifier::REVERSED)
                    .remove_modifier(Modifier::DIM),
                Depth::Ansi => Style::new().fg(Color::Black).bg(Color::Cyan),
                Depth::Indexed => Style::new()
                    .fg(Color::Indexed(255))
                    .bg(Color::Indexed(238))
                    .add_modifier(Modifier::BOLD),
                Depth::Rgb => Style::new()
                    .fg(Color::Rgb(0xee, 0xee, 0xee))
                    .bg(Color::Rgb(0x30, 0x3a, 0x48))
                    .add_modifier(Modifier::BOLD),
            },
            simulated: bar(match depth {
                Depth::Mono => Style::new(),
                Depth::Ansi => Style::new().fg(Color::Black).bg(Color::Yellow),
                Depth::Indexed => Style::new().fg(Color::Indexed(16)).bg(Color::Indexed(214)),
                Depth::Rgb => Style::new()
                    .fg(Color::Rgb(0x10, 0x10, 0x10))
                    .bg(Color::Rgb(0xff, 0xc0, 0x40)),
            }),
            caption: bar(match depth {
                Depth::Mono => Style::new(),
                Depth::Ansi => Style::new().fg(Color::Black).bg(Color::Cyan),
                Depth::Indexed => Style::new().fg(Color::Indexed(16)).bg(Color::Indexed(80)),
                Depth::Rgb => Style::new()
                    .fg(Color::Rgb(0x10, 0x10, 0x10))
                    .bg(Color::Rgb(0x5f, 0xd7, 0xd7)),
            }),
        }
    }
}

/// Theme and characters together.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Look {
    /// Styles.
    pub(crate) theme: Theme,
    /// Characters.
    pub(crate) glyphs: Glyphs,
}

impl Look {
    /// A look for `depth` colours, with or without UTF-8.
    #[must_use]
    pub fn new(depth: Depth, utf8: bool) -> Self {
        Self {
            theme: Theme::new(depth),
            glyphs: if utf8 { UTF8 } else { ASCII },
        }
    }

    /// Whether characters beyond ASCII are drawn.
    #[must_use]
    pub fn is_utf8(&self) -> bool {
        self.glyphs == UTF8
    }

    /// The same with or without them.
    #[must_use]
    pub fn with_utf8(self, utf8: bool) -> Self {
        let glyphs = if utf8 { UTF8 } else { ASCII };
        Self { glyphs, ..self }
    }

    /// What the terminal can do, by its environment: `NO_COLOR`, `COLORTERM`, `TERM`, and the locale
    /// (`LC_ALL`, else `LC_CTYPE`, else `LANG`) for UTF-8.
    #[must_use]
    pub fn detect(env: impl Fn(&str) -> Option<String>) -> Self {
        let get = |name: &str| env(name).filter(|v| !v.is_empty());
        let term = get("TERM").unwrap_or_default();
        let depth = if get("NO_COLOR").is_some() || term == "dumb" || term.starts_with("vt1") {
            Depth::Mono
        } else if get("COLORTERM").is_some_and(|c| c == "truecolor" || c == "24bit") {
            Depth::Rgb
        } else if term.contains("256color") || term.contains("direct") {
            Depth::Indexed
        } else {
            Depth::Ansi
        };
        let locale = ["LC_ALL", "LC_CTYPE", "LANG"].into_iter().find_map(get);
        let utf8 = locale.is_some_and(|l| {
            let l = l.to_ascii_lowercase();
            l.contains("utf-8") || l.contains("utf8")
        });
        // The kernel's console has UTF-8, but a font of 512 signs without bars and arrows.
        Self::new(depth, utf8 && term != "linux")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn detect(vars: &[(&str, &str)]) -> Look {
        Look::detect(|name| {
            vars.iter()
                .find(|(n, _)| *n == name)
                .map(|(_, v)| (*v).to_owned())
        })
    }

    #[test]
    fn the_environment_decides_colours_and_characters() {
        for (vars, depth, utf8) in [
            (
                &[("TERM", "xterm-256color"), ("LANG", "en_GB.UTF-8")][..],
                Depth::Indexed,
                true,
            ),
            (
                &[("TERM", "xterm-256color"), ("COLORTERM", "truecolor")],
                Depth::Rgb,
                false,
            ),
            (
                &[("TERM", "linux"), ("LANG", "C.UTF-8")],
                Depth::Ansi,
                false,
            ),
            (
                &[("TERM", "screen"), ("LC_ALL", "C"), ("LANG", "C.UTF-8")],
                Depth::Ansi,
                false,
            ),
            (
                &[("TERM", "xterm"), ("LC_ALL", ""), ("LANG", "de_DE.utf8")],
                Depth::Ansi,
                true,
            ),
            (&[("TERM", "dumb")], Depth::Mono, false),
            (
                &[("TERM", "xterm-256color"), ("NO_COLOR", "1")],
                Depth::Mono,
                false,
            ),
        ] {
            assert_eq!(detect(vars), Look::new(depth, utf8), "{vars:?}");
        }
    }

    /// Contrast between two colours as WCAG 2 has it: 1 to 21.
    fn contrast(a: (u8, u8, u8), b: (u8, u8, u8)) -> f64 {
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

    fn rgb(colour: Option<Color>) -> (u8, u8, u8) {
        let level = |n: u8| if n == 0 { 0 } else { 55 + 40 * n };
        match colour {
            Some(Color::Rgb(r, g, b)) => (r, g, b),
            Some(Color::Indexed(n @ 232..)) => {
                (8 + 10 * (n - 232), 8 + 10 * (n - 232), 8 + 10 * (n - 232))
            }
            Some(Color::Indexed(n @ 16..)) => {
                let n = n - 16;
                (level(n / 36), level(n / 6 % 6), level(n % 6))
            }
            other => panic!("{other:?} is as the terminal has it"),
        }
    }

    #[test]
    fn colours_are_readable_on_dark_and_on_light_terminals() {
        let (dark, light) = ((0x1e, 0x1e, 0x1e), (0xff, 0xff, 0xff));
        for depth in [Depth::Indexed, Depth::Rgb] {
            let t = Theme::new(depth);
            let texts = [
                ("heading", t.heading),
                ("focus", t.focus),
                ("title", t.title),
                ("dim", t.dim),
                ("unclaimed", t.unclaimed),
                ("good", t.good),
                ("warn", t.warn),
                ("error", t.error),
                ("key", t.key),
            ];
            let bars = [("used", t.used), ("burst", t.burst), ("claimed", t.claimed)];
            let all = texts.map(|t| (t, 3.2)).into_iter();
            for ((name, style), least) in all.chain(bars.map(|b| (b, 2.5))) {
                assert_eq!(style.bg, None, "{name}");
                for behind in [dark, light] {
                    let seen = contrast(rgb(style.fg), behind);
                    assert!(seen >= least, "{depth:?} {name} on {behind:?}: {seen:.1}");
                }
            }
            // These bring their own background.
            for (name, style) in [
                ("selected", t.selected),
                ("simulated", t.simulated),
                ("caption", t.caption),
            ] {
                let seen = contrast(rgb(style.fg), rgb(style.bg));
                assert!(seen >= 4.5, "{depth:?} {name}: {seen:.1}");
            }
        }
    }

    #[test]
    fn bars_differ_without_colour() {
        for glyphs in [&UTF8, &ASCII] {
            let bars = [
                glyphs.used,
                glyphs.burst,
                glyphs.claimed,
                glyphs.unclaimed,
                glyphs.free,
            ];
            for (i, a) in bars.iter().enumerate() {
                assert!(bars.iter().skip(i + 1).all(|b| a != b), "{bars:?}");
            }
        }
    }
}
