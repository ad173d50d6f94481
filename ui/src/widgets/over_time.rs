//! Used over time as an area, and claimed as a dotted line, on ratatui's chart.

use ratatui::buffer::Buffer;
use ratatui::layout::Rect;
use ratatui::style::{Color, Style};
use ratatui::symbols::Marker;
use ratatui::widgets::{Axis, Chart, Dataset, Widget};

use crate::theme::Look;

/// A moment, in the unit of the chart's upper edge.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub(crate) struct Moment {
    pub(crate) claimed: f64,
    /// Used; absent if unknown.
    pub(crate) used: Option<f64>,
    pub(crate) waiting: f64,
}

#[derive(Clone, Debug, PartialEq)]
pub(crate) struct OverTime<'a> {
    /// The oldest first, [`per_cell`] of them a column; gaps where nothing was recorded.
    pub(crate) moments: &'a [Option<Moment>],
    pub(crate) top: f64,
    pub(crate) look: &'a Look,
}

/// Moments in a column: the dots of a braille sign.
pub(crate) fn per_cell(look: &Look) -> usize {
    if look.glyphs.lines { 2 } else { 1 }
}

/// Meaning of a dot; in a cell with several, the last of these decides the colour.
const CLAIM: usize = 0;
const BURST: usize = 1;
const USED: usize = 2;

impl OverTime<'_> {
    /// Heights of claim and use at each moment, in dots.
    fn heights(&self, most: usize) -> Vec<(usize, usize)> {
        let height = |amount: f64| {
            let part = (amount / self.top.max(f64::MIN_POSITIVE)).clamp(0.0, 1.0) * most as f64;
            // Anything above zero is at least one.
            (part.round() as usize).max(usize::from(amount > 0.0))
        };
        let of = |m: &Option<Moment>| {
            let m = m.unwrap_or_default();
            (height(m.claimed), height(m.used.unwrap_or(0.0)))
        };
        self.moments.iter().map(of).collect()
    }

    fn dot(&self, (x, y): (usize, usize), (claim, used): (usize, usize)) -> Option<usize> {
        let lines = self.look.glyphs.lines;
        match y {
            y if y < used.min(claim) => Some(USED),
            // Every second dot, so that burst differs from use without colours.
            y if y < used && (!lines || (x + y) % 2 == 0) => Some(BURST),
            y if y + 1 == claim && (x % 4 < 2 || !lines) => Some(CLAIM),
            _ => None,
        }
    }
}

impl Widget for OverTime<'_> {
    fn render(self, area: Rect, buf: &mut Buffer) {
        let area = area.intersection(buf.area);
        if area.is_empty() {
            return;
        }
        let (theme, glyphs) = (&self.look.theme, &self.look.glyphs);
        let (across, down) = (per_cell(self.look), if glyphs.lines { 4 } else { 1 });
        let width = usize::from(area.width) * across;
        let height = usize::from(area.height) * down;
        let heights = self.heights(height);
        // A data set draws over the previous one cell by cell, so all dots of a cell are in the set of its colour.
        let mut sets: [Vec<(f64, f64)>; 3] = Default::default();
        for (cell, tops) in heights.chunks(across).enumerate() {
            // Above the highest of them nothing is drawn.
            let top = tops.iter().map(|(claim, used)| claim.max(used)).max();
            for row in 0..top.map_or(0, |top| top.div_ceil(down)) {
                let places = (0..tops.len())
                    .flat_map(|x| (row * down..(row + 1) * down).map(move |y| (x, y)));
                let dot = |(x, y)| {
                    let at = (cell * across + x, y);
                    Some((self.dot(at, tops[x])?, (at.0 as f64, y as f64)))
                };
                let dots: Vec<_> = places.filter_map(dot).collect();
                if let Some(set) = dots.iter().map(|(set, _)| *set).max() {
                    sets[set].extend(dots.into_iter().map(|(_, at)| at));
                }
            }
        }
        let signs = [
            (glyphs.free, theme.dim),
            (glyphs.burst, theme.burst),
            (glyphs.used, theme.used),
        ];
        let drawn = sets.iter().zip(signs).filter(|(data, _)| !data.is_empty());
        let sets = drawn.map(|(data, (sign, style))| {
            let marker = match glyphs.lines {
                true => Marker::Braille,
                false => Marker::Custom(sign.chars().next().unwrap_or('.')),
            };
            let style = Style::new().fg(style.fg.unwrap_or(Color::Reset));
            Dataset::default().marker(marker).style(style).data(data)
        });
        let bounds = |dots: usize| Axis::default().bounds([0.0, (dots.max(2) - 1) as f64]);
        Chart::new(sets.collect())
            .x_axis(bounds(width))
            .y_axis(bounds(height))
            .render(area, buf);
        // The claimed amount, without a statement about use.
        for x in 0..area.width {
            let from = usize::from(x) * across;
            let moments = self.moments.iter().skip(from).take(across);
            let mut cell = moments.flatten().peekable();
            if cell.peek().is_some() && cell.all(|m| m.used.is_none()) {
                buf[(area.x + x, area.bottom() - 1)]
                    .set_symbol(glyphs.dash)
                    .set_style(theme.dim);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::picture::buffer_text;
    use crate::theme::Depth;

    fn draw(moments: &[Option<Moment>], utf8: bool, (cols, rows): (u16, u16)) -> String {
        let look = &Look::new(Depth::Mono, utf8);
        let mut buf = Buffer::empty(Rect::new(0, 0, cols, rows));
        let chart = OverTime {
            moments,
            top: 4.0,
            look,
        };
        chart.render(buf.area, &mut buf);
        buffer_text(&buf)
    }

    #[test]
    fn the_claim_stands_beside_use_and_gaps_are_blank() {
        let at = |claimed: f64, used: Option<f64>| {
            Some(Moment {
                claimed,
                used,
                waiting: 0.0,
            })
        };
        let moments = [
            at(4.0, Some(2.0)),
            at(2.0, Some(3.0)),
            at(3.0, None),
            None,
            at(0.0, Some(0.0)),
            at(0.1, Some(0.1)),
        ];
        let text = draw(&moments, false, (6, 4));
        assert_eq!(text, ".\n +.\n##\n##-  #\n");
        let pairs: Vec<_> = moments.iter().flat_map(|m| [*m, *m]).collect();
        let text = draw(&pairs, true, (6, 4));
        assert_eq!(text, "⠉\n ⡪⠉\n⣿⣿\n⣿⣿—  ⣀\n");
        assert_eq!(draw(&pairs, true, (0, 0)), "");
    }
}
