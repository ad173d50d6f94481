//! The last minutes of a percentage on ratatui's sparkline, the newest value at the right. Zero has the lowest level,
//! unknown is blank.

use ratatui::symbols::bar;
use ratatui::widgets::{RenderDirection, Sparkline};

use crate::theme::Look;

pub(crate) fn spark(history: &[Option<f32>], rows: u16, look: &Look) -> Sparkline<'static> {
    let most = 8 * u64::from(rows);
    let level = |v: f32| (f64::from(v.clamp(0.0, 100.0)) / 100.0 * most as f64) as u64;
    let known = |v: &Option<f32>| v.filter(|v| v.is_finite()).map(|v| level(v).max(1));
    let levels = look.glyphs.levels;
    Sparkline::default()
        .data(history.iter().rev().map(known).collect::<Vec<_>>())
        .max(most)
        .direction(RenderDirection::RightToLeft)
        .absent_value_symbol(" ")
        .bar_set(bar::Set {
            full: levels[7],
            seven_eighths: levels[6],
            three_quarters: levels[5],
            five_eighths: levels[4],
            half: levels[3],
            three_eighths: levels[2],
            one_quarter: levels[1],
            one_eighth: levels[0],
            empty: " ",
        })
        .style(look.theme.used)
}

#[cfg(test)]
mod tests {
    use ratatui::buffer::Buffer;
    use ratatui::layout::Rect;
    use ratatui::widgets::Widget;

    use super::*;
    use crate::picture::buffer_text;
    use crate::theme::Depth;

    #[test]
    fn unknown_moments_are_blank_and_the_newest_is_right() {
        let drawn = |history: &[Option<f32>], cols: u16| {
            let mut buf = Buffer::empty(Rect::new(0, 0, cols, 1));
            let look = Look::new(Depth::Mono, true);
            spark(history, 1, &look).render(buf.area, &mut buf);
            buffer_text(&buf)
        };
        let history = [
            Some(0.0),
            None,
            Some(50.0),
            Some(100.0),
            Some(f32::NAN),
            Some(1.0),
        ];
        assert_eq!(drawn(&history, 8), "  ▁ ▄█ ▁\n");
        assert_eq!(drawn(&history, 3), "█ ▁\n");
        assert_eq!(drawn(&[], 2), "\n");
    }
}
