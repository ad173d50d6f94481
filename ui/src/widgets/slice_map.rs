//! A GPU as a map of slices, as disk tools draw them: the holders' names, and below, in the same columns, what each
//! uses. Burst is drawn in the free part, then in others' unused parts.

use std::cmp::Reverse;

use ratatui::buffer::Buffer;
use ratatui::layout::Rect;
use ratatui::widgets::Widget;

use super::bullet::eighths;
use crate::text::{cut, width};
use crate::theme::Look;

#[derive(Clone, Debug, Default, PartialEq)]
pub(crate) struct Slice {
    /// Its names, the most informative first; the first that fits is shown.
    pub(crate) names: Vec<String>,
    pub(crate) id: String,
    pub(crate) size: f64,
    pub(crate) kind: Kind,
    /// Used fraction of the slice, 0 to 1; absent if unknown.
    pub(crate) used: Option<f64>,
    pub(crate) burst: f64,
}

impl Slice {
    /// A slice of this size, with names, the most informative first.
    pub(crate) fn new(kind: Kind, size: f64, names: impl IntoIterator<Item = String>) -> Self {
        Self {
            names: names.into_iter().collect(),
            size,
            kind,
            ..Self::default()
        }
    }
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) enum Kind {
    #[default]
    Held,
    Mine,
    Free,
    Rest,
}

impl Kind {
    fn is_held(self) -> bool {
        matches!(self, Self::Held | Self::Mine)
    }
}

fn whole(slices: &[Slice]) -> f64 {
    let sum: f64 = slices.iter().map(|s| s.size.max(0.0)).sum();
    if sum > 0.0 { sum } else { 1.0 }
}

/// The map of one GPU; with two rows the use has one of its own, with one it is the background of the names.
#[derive(Clone, Debug)]
pub(crate) struct SliceMap<'a> {
    pub(crate) slices: Vec<Slice>,
    pub(crate) look: &'a Look,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Use {
    Used(usize),
    Burst(usize),
    Unused,
    Free,
    Unknown,
}

/// A name is not shown in fewer cells, and not shortened in fewer.
const LEAST: usize = 3;
const LEAST_CUT: usize = 8;

/// Slices of fewer cells are shown together.
const SMALL: f64 = 2.0;

impl SliceMap<'_> {
    /// Merges slices that would have too few cells, if there are several.
    fn gathered(slices: Vec<Slice>, cells: usize) -> Vec<Slice> {
        let whole = whole(&slices);
        let is_small = |s: &Slice| s.kind == Kind::Held && s.size / whole * (cells as f64) < SMALL;
        if slices.iter().filter(|s| is_small(s)).count() < 2 {
            return slices;
        }
        let (small, mut out): (Vec<Slice>, Vec<Slice>) = slices.into_iter().partition(is_small);
        let size: f64 = small.iter().map(|s| s.size).sum();
        let used: Option<f64> = small.iter().map(|s| s.used.map(|u| u * s.size)).sum();
        let n = small.len();
        let full = format!("{n} small {}", crate::text::share(size));
        let names = [full, format!("{n} small"), format!("{n} more")];
        let together = Slice {
            used: used.map(|u| u / size.max(f64::MIN_POSITIVE)),
            burst: small.iter().map(|s| s.burst).sum(),
            ..Slice::new(Kind::Held, size, names)
        };
        let last = out.iter().rposition(|s| s.kind.is_held());
        out.insert(last.map_or(0, |at| at + 1), together);
        out
    }

    /// The cells of each slice: rounded at the edges, at least one each.
    fn cells(slices: &[Slice], cells: usize) -> Vec<usize> {
        let whole = whole(slices);
        let (mut sum, mut edge) = (0.0, 0);
        let mut out: Vec<usize> = Vec::new();
        for slice in slices {
            sum += slice.size.max(0.0) / whole;
            let next = (sum.min(1.0) * cells as f64).round() as usize;
            out.push(next.saturating_sub(edge));
            edge = next;
        }
        for i in 0..out.len() {
            let most = (0..out.len()).max_by_key(|&j| out[j]);
            if let (0, Some(most)) = (out[i], most)
                && out[most] > 1
            {
                out[most] -= 1;
                out[i] = 1;
            }
        }
        out
    }

    fn uses(slices: &[Slice], cells: &[usize]) -> Vec<Vec<Use>> {
        let mut out: Vec<Vec<Use>> = Vec::new();
        for (slice, &cells) in slices.iter().zip(cells) {
            let filled = eighths(slice.used.unwrap_or(0.0), 1.0, cells);
            let cell = |at: usize| match (slice.kind.is_held(), slice.used) {
                (false, _) => Use::Free,
                (true, None) => Use::Unknown,
                (true, Some(_)) if at < filled.div_ceil(8) => Use::Used((filled - at * 8).min(8)),
                (true, Some(_)) => Use::Unused,
            };
            out.push((0..cells).map(cell).collect());
        }
        let all: usize = cells.iter().sum();
        let whole = whole(slices);
        for (lender, slice) in slices.iter().enumerate() {
            let mut left = (eighths(slice.burst, whole, all) + 4) / 8;
            for wanted in [Use::Free, Use::Unused] {
                let others = out.iter_mut().enumerate().filter(|o| o.0 != lender);
                let mut others: Vec<&mut Vec<Use>> = others.map(|o| o.1).collect();
                // The widest room first, where the borrower's name fits.
                let room = |part: &Vec<Use>| part.iter().filter(|u| **u == wanted).count();
                others.sort_by_key(|part| Reverse(room(part)));
                let open = others.into_iter().flatten().filter(|u| **u == wanted);
                for cell in open.take(left) {
                    *cell = Use::Burst(lender);
                    left -= 1;
                }
            }
        }
        out
    }

    fn name(&self, slice: &Slice, cells: usize) -> String {
        if cells < LEAST {
            return String::new();
        }
        let fits = slice.names.iter().find(|n| width(n) <= cells);
        match (fits, slice.names.iter().rev().find(|n| width(n) >= LEAST)) {
            (Some(name), _) => cut(name, cells, self.look.glyphs.ellipsis),
            (None, Some(name)) if cells >= LEAST_CUT => cut(name, cells, self.look.glyphs.ellipsis),
            _ => String::new(),
        }
    }

    /// The use: in a row of its own, or behind a name that covers so many of its cells.
    fn draw_use(
        &self,
        area: Rect,
        (uses, covered): (&[Use], Option<usize>),
        slices: &[Slice],
        buf: &mut Buffer,
    ) {
        let (theme, glyphs) = (&self.look.theme, &self.look.glyphs);
        for (x, seen) in (area.x..area.right()).zip(uses) {
            let (sign, style) = match seen {
                // The rest of the cell is unused.
                Use::Used(n) if *n < 8 => {
                    let behind = theme.unused.bg.map(|bg| theme.used.bg(bg));
                    (glyphs.eighths[n - 1], behind.unwrap_or(theme.used))
                }
                Use::Used(_) => (glyphs.used, theme.used),
                Use::Burst(_) => (glyphs.burst, theme.burst),
                Use::Unused => (glyphs.unused, theme.unused),
                Use::Free | Use::Unknown => (" ", theme.text),
            };
            buf[(x, area.y)].set_symbol(sign).set_style(style);
        }
        if covered.is_none() && uses.contains(&Use::Unknown) {
            let fits = |text: &&str| text.len() <= uses.len();
            let words = ["no figure", glyphs.dash].into_iter().find(fits);
            let words = words.unwrap_or(glyphs.dash);
            buf.set_stringn(area.x, area.y, words, uses.len(), theme.dim);
        }
        let mut at = covered.unwrap_or(0);
        while let Some(seen) = uses.get(at) {
            let run = uses[at..].iter().take_while(|u| *u == seen).count();
            if let Use::Burst(lender) = seen
                && let Some(lender) = slices.get(*lender).filter(|l| width(&l.id) < run)
            {
                let x = area.x + at as u16 + 1;
                buf.set_stringn(x, area.y, &lender.id, run - 1, theme.on[1]);
            }
            at += run;
        }
    }
}

impl Widget for SliceMap<'_> {
    fn render(mut self, area: Rect, buf: &mut Buffer) {
        let area = area.intersection(buf.area);
        if area.is_empty() {
            return;
        }
        let (theme, glyphs) = (&self.look.theme, &self.look.glyphs);
        let walls = |slices: &[Slice]| slices.len() + 1;
        let width_of = usize::from(area.width);
        let slices = std::mem::take(&mut self.slices);
        let cells = width_of.saturating_sub(walls(&slices));
        let slices = Self::gathered(slices, cells);
        let room = width_of.saturating_sub(walls(&slices));
        if room < slices.len() {
            return;
        }
        let cells = Self::cells(&slices, room);
        let uses = Self::uses(&slices, &cells);
        let last = area.height.min(2) - 1;
        let mut wall = |x: u16| {
            for y in 0..=last {
                buf[(x, area.y + y)]
                    .set_symbol(glyphs.wall)
                    .set_style(theme.free);
            }
        };
        let mut edge = area.x;
        wall(edge);
        for n in &cells {
            edge += 1 + *n as u16;
            wall(edge);
        }
        let mut x = area.x + 1;
        for ((slice, uses), n) in slices.iter().zip(&uses).zip(&cells) {
            let part = Rect::new(x, area.y, *n as u16, 1);
            x += part.width + 1;
            let beneath = Rect {
                y: area.y + last,
                ..part
            };
            let name = self.name(slice, *n);
            let style = match slice.kind {
                Kind::Mine => theme.strong,
                Kind::Free => theme.good,
                Kind::Held => theme.text,
                Kind::Rest => theme.dim,
            };
            // The first cell shows the use if one can be spared.
            let spare = u16::from(last == 0 && slice.kind != Kind::Mine && width(&name) < *n);
            let covered = Some(usize::from(spare) + width(&name)).filter(|_| last == 0);
            self.draw_use(beneath, (uses, covered), &slices, buf);
            let (to, _) = buf.set_stringn(part.x + spare, part.y, &name, *n, style);
            if last == 0 {
                for at in part.x + spare..to {
                    let seen = uses.get(usize::from(at - part.x));
                    let on = match seen {
                        Some(Use::Used(_)) => theme.on[0],
                        Some(Use::Burst(_)) => theme.on[1],
                        Some(Use::Unused) => theme.on[2],
                        _ => continue,
                    };
                    buf[(at, part.y)].set_style(on);
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::theme::Depth;

    fn held(id: &str, what: &str, size: f64, used: f64) -> Slice {
        Slice {
            names: vec![format!("{id} {what}"), id.to_owned()],
            id: id.to_owned(),
            size,
            used: Some(used.min(size) / size),
            burst: (used - size).max(0.0),
            ..Slice::default()
        }
    }

    fn free(size: f64, name: &str) -> Slice {
        Slice {
            names: vec![name.to_owned()],
            size,
            kind: Kind::Free,
            ..Slice::default()
        }
    }

    fn draw(slices: Vec<Slice>, cols: u16, rows: u16) -> Vec<String> {
        let look = Look::new(Depth::Mono, true);
        let area = Rect::new(0, 0, cols, rows);
        let mut buf = Buffer::empty(area);
        let look = &look;
        SliceMap { slices, look }.render(area, &mut buf);
        let text = crate::picture::buffer_text(&buf);
        text.lines().map(str::to_owned).collect()
    }

    #[test]
    fn who_holds_stands_above_what_is_used() {
        let mut slices = vec![
            held("c1", "vit", 0.25, 0.0),
            held("c2", "train.py", 0.5, 0.75),
            free(0.25, "free"),
        ];
        assert_eq!(
            draw(slices.clone(), 36, 2),
            [
                "┃c1 vit  ┃c2 train.py     ┃free    ┃",
                "┃░░░░░░░░┃████████████████┃▒c2▒▒▒▒▒┃"
            ]
        );
        // With one row the use is behind the names, and a burst has the name of its claim there, too.
        assert_eq!(
            draw(slices.clone(), 36, 1),
            ["┃░c1 vit░┃█c2 train.py████┃▒free▒c2┃"]
        );
        slices.pop();
        assert_eq!(
            draw(slices, 36, 1),
            ["┃▒c1 vit▒c2▒┃█c2 train.py██████████┃"]
        );
    }

    #[test]
    fn burst_goes_into_what_is_free_and_then_onto_the_idle() {
        let slices = vec![
            held("c1", "vit", 0.25, 0.0),
            held("c2", "train.py", 0.5, 0.95),
            free(0.25, ""),
        ];
        assert_eq!(
            draw(slices, 36, 2)[1],
            "┃▒c2▒▒▒░░┃████████████████┃▒c2▒▒▒▒▒┃"
        );
    }

    #[test]
    fn small_slices_are_counted_and_each_other_one_has_a_cell() {
        let mut slices: Vec<Slice> = (0..6)
            .map(|i| held(&format!("c{i}"), "x", 0.02, 0.01))
            .collect();
        slices.insert(0, held("c9", "big.py", 0.6, 0.3));
        slices.push(free(0.28, "free 0.28"));
        let rows = draw(slices, 40, 2);
        assert_eq!(rows[0], "┃c9 big.py             ┃    ┃free 0.28 ┃");
        assert!(
            rows[1].starts_with("┃███████████░░░░░░░░░░░┃██░░┃"),
            "{rows:?}"
        );
    }

    #[test]
    fn every_width_is_kept_also_with_wide_letters() {
        for cols in 0..90 {
            for rows in 1..=2 {
                let slices = vec![
                    held("c1", "日本語のノートブック", 0.3, 0.2),
                    held("c2", "長い名前", 0.4, 0.9),
                    Slice {
                        used: None,
                        ..held("c3", "x", 0.2, 0.0)
                    },
                    free(0.1, "free 0.10"),
                ];
                for line in draw(slices, cols, rows) {
                    assert!(
                        line.is_empty() || width(&line) == usize::from(cols),
                        "{cols}: {line}"
                    );
                }
            }
        }
    }

    #[test]
    fn a_name_is_left_out_rather_than_cut_to_nothing() {
        let narrow = |cells: u16| {
            let slices = vec![held("c1234", "very-long-name.ipynb", 1.0, 1.0)];
            draw(slices, cells + 2, 2)[0].clone()
        };
        assert_eq!(narrow(4), "┃    ┃");
        assert_eq!(narrow(5), "┃c1234┃");
        assert_eq!(narrow(26), "┃c1234 very-long-name.ipynb┃");
        let long = vec![Slice {
            names: vec!["a-very-long-user-name".to_owned()],
            ..held("", "", 1.0, 1.0)
        }];
        assert_eq!(draw(long.clone(), 12, 2)[0], "┃a-very-lo…┃");
        assert_eq!(draw(long, 8, 2)[0], "┃      ┃");
    }

    #[test]
    fn what_is_not_measured_is_said() {
        let slices = vec![
            Slice {
                used: None,
                ..held("c1", "x", 0.5, 0.0)
            },
            Slice {
                used: None,
                ..held("c2", "x", 0.1, 0.0)
            },
            free(0.4, "free"),
        ];
        assert_eq!(draw(slices, 34, 2)[1], "┃no figure      ┃—  ┃            ┃");
    }
}
