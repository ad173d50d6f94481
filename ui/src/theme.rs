//! Styles by meaning: used, claimed, free, wrong. Colour never carries a meaning alone, so a terminal without colours
//! or UTF-8 shows the same information.

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

/// The background of the terminal.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Background {
    /// With light text.
    #[default]
    Dark,
    /// With dark text.
    Light,
}

/// Each sign, in UTF-8 and in ASCII.
macro_rules! glyphs {
    ($($(#[$doc:meta])* $name:ident: $type:ty = $utf8:expr, $ascii:expr;)*) => {
        /// The characters that are not letters.
        #[derive(Clone, Debug, PartialEq, Eq)]
        pub struct Glyphs { $($(#[$doc])* pub(crate) $name: $type,)* }
        pub(crate) const UTF8: Glyphs = Glyphs { $($name: $utf8,)* };
        pub(crate) const ASCII: Glyphs = Glyphs { $($name: $ascii,)* };
    };
}

glyphs! {
    /// Used within the claim.
    used: &'static str = "█", "#";
    /// Used above the claim.
    burst: &'static str = "▒", "+";
    /// Claimed and not used.
    unused: &'static str = "░", "=";
    /// Free.
    free: &'static str = "·", ".";
    /// The end of the claim: with less use; with more use.
    tick: [&'static str; 2] = ["│", "┃"], ["|", "|"];
    /// Between the slices of a GPU.
    wall: &'static str = "┃", "|";
    /// Marks the viewer's own.
    mine: &'static str = "▌", ">";
    /// Warning.
    sign: &'static str = "▲", "!";
    /// Broken.
    broken: &'static str = "✗", "x";
    /// Moves there.
    arrow: &'static str = "→", "->";
    /// A lower bound; the rest is unknown.
    at_least: &'static str = "≥", ">=";
    /// Unit of temperature.
    degrees: &'static str = "°C", "C";
    /// Unknown.
    dash: &'static str = "—", "-";
    /// Something was cut off.
    ellipsis: &'static str = "…", "..";
    /// A rule across the screen.
    rule: &'static str = "─", "-";
    /// After the heading of the sort column; second if reversed.
    sorted: [&'static str; 2] = ["▾", "▴"], ["*", "^"];
    /// The selected row or focused section.
    pointer: &'static str = "▸", ">";
    /// A group whose rows are shown.
    open: &'static str = "▾", "v";
    /// Eighths of a cell from the left.
    eighths: [&'static str; 8] = ["▏", "▎", "▍", "▌", "▋", "▊", "▉", "█"], ["#"; 8];
    /// Levels of the history, lowest first.
    levels: [&'static str; 8] = ["▁", "▂", "▃", "▄", "▅", "▆", "▇", "█"], ["_", "_", ".", ".", "-", "-", "=", "#"];
    /// Whether frames are drawn with line characters.
    lines: bool = true, false;
}

/// Styles by meaning. Colour is for state alone: used, burst and unused are three depths of one hue.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Theme {
    /// Ordinary text.
    pub(crate) text: Style,
    /// Most important in its line: figures in use, the viewer's own.
    pub(crate) strong: Style,
    /// Names of sections and columns.
    pub(crate) heading: Style,
    /// Heading of the focused section.
    pub(crate) focus: Style,
    /// Less important.
    pub(crate) dim: Style,
    /// Used within the claim.
    pub(crate) used: Style,
    /// Used above the claim.
    pub(crate) burst: Style,
    /// Claimed and not used.
    pub(crate) unused: Style,
    /// Text on these three.
    pub(crate) on: [Style; 3],
    /// Free, and rules.
    pub(crate) free: Style,
    /// What the viewer can have.
    pub(crate) good: Style,
    /// Warning signs, nothing else.
    pub(crate) warn: Style,
    /// Errors, nothing else.
    pub(crate) error: Style,
    /// Keys and commands to type.
    pub(crate) key: Style,
    /// The selected row.
    pub(crate) selected: Style,
    /// The mark of the simulated driver, and the demo's caption.
    pub(crate) caption: Style,
}

impl Theme {
    /// The theme for a number of colours on a background.
    #[must_use]
    pub fn new(depth: Depth, background: Background) -> Self {
        let at = usize::from(background == Background::Light);
        // A colour by name, number and 24 bits, for a dark and a light background.
        let pick = |named: [Color; 2], numbers: [u8; 2], bits: [u32; 2]| match depth {
            Depth::Mono => Color::Reset,
            Depth::Ansi => named[at],
            Depth::Indexed => Color::Indexed(numbers[at]),
            Depth::Rgb => Color::from_u32(bits[at]),
        };
        let ink_of = |colour: Color| match colour {
            Color::Reset => Style::new(),
            colour => Style::new().fg(colour),
        };
        let ink = |named, numbers, bits| ink_of(pick(named, numbers, bits));
        let used = pick([Color::LightBlue; 2], [195, 18], [0xb5_dcff, 0x0b_2f62]);
        let burst = pick([Color::LightBlue; 2], [32, 32], [0x35_77ba, 0x4a_86c8]);
        let unused = pick([Color::DarkGray; 2], [236, 254], [0x1f_2733, 0xe3_eaf2]);
        // Text on these.
        let on_used = pick([Color::White; 2], [16, 231], [0, 0xff_ffff]);
        let on_burst = pick([Color::Reset; 2], [16; 2], [0xff_ffff, 0]);
        let on_unused = pick([Color::Reset; 2], [231, 16], [0xff_ffff, 0]);
        // With many colours areas are coloured, with few colours signs.
        let area = |colour: Color| match depth {
            Depth::Mono | Depth::Ansi => ink_of(colour),
            Depth::Indexed | Depth::Rgb => Style::new().fg(colour).bg(colour),
        };
        let letters = |(ink, behind): (Color, Color)| Style::new().fg(ink).bg(behind);
        let on = match depth {
            Depth::Mono => [Modifier::REVERSED, Modifier::UNDERLINED, Modifier::empty()]
                .map(|m| Style::new().add_modifier(m)),
            Depth::Ansi => [
                letters((on_used, used)),
                letters((on_burst, Color::Reset)).add_modifier(Modifier::UNDERLINED),
                letters((on_unused, Color::Reset)),
            ],
            Depth::Indexed | Depth::Rgb => {
                [(on_used, used), (on_burst, burst), (on_unused, unused)].map(letters)
            }
        };
        let dim = match depth {
            Depth::Mono => Style::new().add_modifier(Modifier::DIM),
            _ => ink(
                [Color::Gray, Color::Reset],
                [246, 242],
                [0x8c_95a0, 0x5c_646e],
            ),
        };
        let bold = |style: Style| style.add_modifier(Modifier::BOLD);
        let block = |ink: Color, behind: Color| match depth {
            Depth::Mono => {
                let reversed = Style::new().add_modifier(Modifier::REVERSED);
                bold(reversed.remove_modifier(Modifier::DIM))
            }
            _ => bold(letters((ink, behind))),
        };
        // Of 16 colours, only some are readable on light backgrounds.
        let accent = ink([Color::Cyan, Color::Blue], [37, 53], [0x35_b3b5, 0x32_0f2d]);
        let (green, red) = ([Color::Green, Color::Reset], [Color::LightRed, Color::Red]);
        Self {
            text: Style::new(),
            strong: bold(Style::new()),
            heading: bold(accent),
            focus: bold(accent).add_modifier(Modifier::UNDERLINED),
            dim,
            used: ink_of(used),
            burst: area(burst),
            unused: area(unused),
            on,
            free: match depth {
                Depth::Mono => dim,
                _ => ink([Color::DarkGray; 2], [240, 250], [0x5a_6068, 0xb0_b6be]),
            },
            good: bold(ink(green, [85, 22], [0x59_f2bb, 0x0a_644b])),
            warn: ink(
                [Color::Yellow, Color::Reset],
                [214, 94],
                [0xe8_b124, 0xa1_6200],
            ),
            error: bold(ink(red, [203, 88], [0xff_5d5d, 0x8a_0106])),
            key: bold(accent),
            // One colour for the whole row, whatever its figures have and whatever is behind the screen.
            selected: block(
                pick([Color::Black; 2], [255; 2], [0xee_eeee; 2]),
                pick([Color::Cyan; 2], [238; 2], [0x30_3a48; 2]),
            ),
            caption: block(
                pick([Color::Black; 2], [16; 2], [0x10_1010; 2]),
                pick([Color::White; 2], [253; 2], [0xe6_eaee; 2]),
            ),
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
    depth: Depth,
    background: Background,
}

impl Look {
    /// A look for `depth` colours on a dark background, with or without UTF-8.
    #[must_use]
    pub fn new(depth: Depth, utf8: bool) -> Self {
        let background = Background::Dark;
        Self {
            theme: Theme::new(depth, background),
            glyphs: if utf8 { UTF8 } else { ASCII },
            depth,
            background,
        }
    }

    /// The same on this background.
    #[must_use]
    pub fn on(mut self, background: Background) -> Self {
        self.background = background;
        self.theme = Theme::new(self.depth, background);
        self
    }

    /// Whether there are colours at all.
    #[must_use]
    pub fn has_colours(&self) -> bool {
        self.depth != Depth::Mono
    }

    /// The same with these colours and characters, if given.
    #[must_use]
    pub fn with(self, depth: Option<Depth>, on: Option<Background>, utf8: bool) -> Self {
        let background = on.unwrap_or(self.background);
        Self::new(depth.unwrap_or(self.depth), utf8).on(background)
    }

    /// Whether characters beyond ASCII are drawn.
    #[must_use]
    pub fn is_utf8(&self) -> bool {
        self.glyphs == UTF8
    }

    /// The terminal's abilities by its environment: `NO_COLOR`, `COLORTERM`, `TERM`, the locale (`LC_ALL`, else
    /// `LC_CTYPE`, else `LANG`) for UTF-8, and `COLORFGBG` for the background.
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
        let look = Self::new(depth, utf8 && term != "linux");
        // `15;0`: the last number is the background; 7 and 15 are light.
        match get("COLORFGBG")
            .as_deref()
            .and_then(|c| c.rsplit(';').next())
        {
            Some("7" | "15") => look.on(Background::Light),
            _ => look,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::{Rgb, XTERM, rgb_of};

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

    /// The colour of a style with many colours.
    fn rgb(colour: Option<Color>) -> Rgb {
        match colour {
            Some(colour @ (Color::Rgb(..) | Color::Indexed(16..))) => rgb_of(colour, &XTERM),
            other => panic!("{other:?} is as the terminal has it"),
        }
    }

    /// Normal vision, and without one of the three kinds of cones: Machado et al. 2009, on linear light.
    const EYES: [[[f64; 3]; 3]; 4] = [
        [[1.0, 0.0, 0.0], [0.0, 1.0, 0.0], [0.0, 0.0, 1.0]],
        [
            [0.152286, 1.052583, -0.204868],
            [0.114503, 0.786281, 0.099216],
            [-0.003882, -0.048116, 1.051998],
        ],
        [
            [0.367322, 0.860646, -0.227968],
            [0.280085, 0.672501, 0.047413],
            [-0.011820, 0.042940, 0.968881],
        ],
        [
            [1.255528, -0.076749, -0.178779],
            [-0.078411, 0.930809, 0.147602],
            [0.004733, 0.691367, 0.303900],
        ],
    ];

    /// A colour as these eyes see it, in CIE L*a*b* (D65).
    fn lab((r, g, b): Rgb, eye: &[[f64; 3]; 3]) -> [f64; 3] {
        let linear = |v: u8| match f64::from(v) / 255.0 {
            v if v <= 0.04045 => v / 12.92,
            v => ((v + 0.055) / 1.055).powf(2.4),
        };
        let light = [r, g, b].map(linear);
        let dot = |row: &[f64; 3], v: &[f64; 3]| row.iter().zip(v).map(|(a, b)| a * b).sum::<f64>();
        let seen = [0, 1, 2].map(|i| dot(&eye[i], &light).clamp(0.0, 1.0));
        let to_xyz = [
            [
                0.4124564 / 0.95047,
                0.3575761 / 0.95047,
                0.1804375 / 0.95047,
            ],
            [0.2126729, 0.7151522, 0.0721750],
            [
                0.0193339 / 1.08883,
                0.1191920 / 1.08883,
                0.9503041 / 1.08883,
            ],
        ];
        let root = |t: f64| match t {
            t if t > 0.008856 => t.cbrt(),
            t => 7.787 * t + 16.0 / 116.0,
        };
        let [x, y, z] = to_xyz.map(|row| root(dot(&row, &seen)));
        [116.0 * y - 16.0, 500.0 * (x - y), 200.0 * (y - z)]
    }

    /// Any two meanings differ by a deltaE (1976) of at least 20.
    #[test]
    fn meanings_differ_also_for_eyes_without_one_kind_of_cones() {
        let mut least = f64::MAX;
        for background in [Background::Dark, Background::Light] {
            let t = Theme::new(Depth::Rgb, background);
            let meanings = [
                ("used", t.used),
                ("burst", t.burst),
                ("unused", t.unused),
                ("can be had", t.good),
                ("look", t.warn),
                ("broken", t.error),
                ("press", t.key),
            ];
            for (kind, eye) in EYES.iter().enumerate() {
                for (i, (a, first)) in meanings.iter().enumerate() {
                    for (b, second) in &meanings[i + 1..] {
                        let [p, q] = [first, second].map(|s| lab(rgb(s.fg), eye));
                        let apart = p.iter().zip(q).map(|(a, b)| (a - b).powi(2)).sum::<f64>();
                        let apart = apart.sqrt();
                        assert!(
                            apart >= 20.0,
                            "{background:?}, eye {kind}: {a}, {b}: {apart:.1}"
                        );
                        least = least.min(apart);
                    }
                }
            }
        }
        println!("least deltaE {least:.1}");
    }

    #[test]
    fn the_terminal_tells_a_light_background() {
        let dark = detect(&[("TERM", "xterm-256color")]);
        let told = |value| detect(&[("TERM", "xterm-256color"), ("COLORFGBG", value)]);
        assert_eq!(told("15;0"), dark);
        assert_eq!(told("0;default;15"), dark.clone().on(Background::Light));
        assert_ne!(told("0;15"), dark);
    }

    #[test]
    fn bars_differ_without_colour() {
        for glyphs in [&UTF8, &ASCII] {
            let bars = [glyphs.used, glyphs.burst, glyphs.unused, glyphs.free];
            for (i, a) in bars.iter().enumerate() {
                assert!(bars.iter().skip(i + 1).all(|b| a != b), "{bars:?}");
            }
        }
    }
}
