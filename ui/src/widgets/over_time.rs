//! What was used over time as an area, and what was claimed as a dotted line, on ratatui's canvas.

use ratatui::buffer::Buffer;
use ratatui::layout::Rect;
use ratatui::style::Color;
use ratatui::symbols::Marker;
use ratatui::widgets::Widget;
use ratatui::widgets::canvas::{Canvas, Context, Points};

use crate::theme::Look;

/// A moment, in the unit of the chart's upper edge.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub(crate) struct Moment {
    pub(crate) claimed: f64,
    /// Used; absent where nobody knows.
    pub(crate) used: Option<f64>,
    pub(crate) waiting: f64,
}

#[derive(Clone, Debug, PartialEq)]
pub(crate) struct OverTime<'a> {
    /// The oldest first, [`per_cell`] of them a column; nothing is drawn where nothing was recorded.
    pub(crate) moments: &'a [Option<Moment>],
    pub(crate) top: f64,
    pub(crate) look: &'a Look,
}

/// Moments in a column: the dots of a braille sign.
pub(crate) fn per_cell(look: &Look) -> usize {
    if look.glyphs.lines { 2 } else { 1 }
}

#[derive(Default)]
struct Dots {
    used: Vec<(f64, f64)>,
    burst: Vec<(f64, f64)>,
    claim: Vec<(f64, f64)>,
}

impl OverTime<'_> {
    fn dots(&self, rows: usize) -> Dots {
        let mut out = Dots::default();
        let height = |amount: f64| {
            let part = (amount / self.top.max(f64::MIN_POSITIVE)).clamp(0.0, 1.0) * rows as f64;
            // Something is never nothing.
            (part.round() as usize).max(usize::from(amount > 0.0))
        };
        for (x, moment) in self.moments.iter().enumerate() {
            let Some(moment) = moment else { continue };
            let claim = height(moment.claimed);
            for y in 0..height(moment.used.unwrap_or(0.0)) {
                let dot = (x as f64, y as f64);
                match y < claim {
                    true => out.used.push(dot),
                    // Every second dot, so that burst differs from use without colours.
                    false if !self.look.glyphs.lines || (x + y) % 2 == 0 => out.burst.push(dot),
                    false => {}
                }
            }
            if claim > 0 && (x % 4 < 2 || !self.look.glyphs.lines) {
                out.claim.push((x as f64, claim as f64 - 1.0));
            }
        }
        out
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
        let (width, height) = (
            usize::from(area.width) * across,
            usize::from(area.height) * down,
        );
        let dots = self.dots(height);
        let first = |text: &str| text.chars().next().unwrap_or('.');
        let paint = |ctx: &mut Context<'_>| {
            let parts = [
                (&dots.claim, glyphs.free, theme.dim),
                (&dots.burst, glyphs.burst, theme.burst),
                (&dots.used, glyphs.used, theme.used),
            ];
            for (coords, sign, style) in parts {
                if !glyphs.lines {
                    ctx.marker(Marker::Custom(first(sign)));
                }
                let color = style.fg.unwrap_or(Color::Reset);
                ctx.draw(&Points { coords, color });
            }
        };
        Canvas::default()
            .marker(Marker::Braille)
            .x_bounds([0.0, (width.max(2) - 1) as f64])
            .y_bounds([0.0, (height.max(2) - 1) as f64])
            .paint(paint)
            .render(area, buf);
        // How much was claimed, and no word of what was used.
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
