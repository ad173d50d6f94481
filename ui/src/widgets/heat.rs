//! The hours of the week: used of claimed in each, as a shade.

use gshare_proto::Heat;
use ratatui::buffer::Buffer;
use ratatui::layout::Rect;
use ratatui::text::{Line, Span};
use ratatui::widgets::Widget;

use crate::theme::Look;

const DAYS: [&str; 7] = ["Mo", "Tu", "We", "Th", "Fr", "Sa", "Su"];
const HOURS: usize = 24;

pub(crate) const SIZE: (u16, u16) = (4 + HOURS as u16, 2 + DAYS.len() as u16);

/// A heading, a row a day with a column an hour, and the hours.
pub(crate) struct Week<'a> {
    pub(crate) heat: &'a Heat,
    pub(crate) look: &'a Look,
}

impl Week<'_> {
    /// Used of claimed: more is darker; nothing claimed is blank, unknown is a dash.
    fn sign(&self, day: usize, hour: usize) -> &'static str {
        let glyphs = &self.look.glyphs;
        let of = |table: &[Vec<Option<f32>>]| table.get(day)?.get(hour).copied().flatten();
        let shades = [glyphs.free, glyphs.unused, glyphs.burst, glyphs.used];
        match (of(&self.heat.claimed), of(&self.heat.used)) {
            (Some(claimed), _) if claimed < 0.5 => " ",
            (Some(claimed), Some(used)) => {
                let part = (used / claimed).clamp(0.0, 1.0) * 4.0;
                shades[(part as usize).min(3)]
            }
            _ => glyphs.dash,
        }
    }
}

impl Widget for Week<'_> {
    fn render(self, area: Rect, buf: &mut Buffer) {
        let theme = &self.look.theme;
        let mut lines = vec![Line::styled("WEEK used % of claimed", theme.heading)];
        for (day, name) in DAYS.iter().enumerate() {
            let signs: String = (0..HOURS).map(|hour| self.sign(day, hour)).collect();
            lines.push(Line::from(vec![
                Span::styled(format!("{name}  "), theme.dim),
                Span::styled(signs, theme.text),
            ]));
        }
        lines.push(Line::styled("    0     6     12    18", theme.dim));
        for (line, at) in lines.into_iter().zip(area.rows()) {
            line.render(at.intersection(buf.area), buf);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::theme::Depth;

    #[test]
    fn more_use_of_the_claims_is_darker_and_nothing_claimed_is_blank() {
        let hours = |values: [Option<f32>; 6]| vec![values.to_vec()];
        let heat = Heat {
            claimed: hours([
                Some(0.0),
                Some(80.0),
                Some(80.0),
                Some(80.0),
                Some(80.0),
                None,
            ]),
            used: hours([None, Some(0.0), Some(30.0), Some(50.0), Some(90.0), None]),
        };
        let look = &Look::new(Depth::Mono, true);
        let week = Week { heat: &heat, look };
        let signs: String = (0..6).map(|hour| week.sign(0, hour)).collect();
        assert_eq!(signs, " ·░▒█—");
        let mut buf = Buffer::empty(Rect::new(0, 0, SIZE.0, SIZE.1));
        week.render(buf.area, &mut buf);
        let text = crate::picture::buffer_text(&buf);
        assert_eq!(text.lines().count(), usize::from(SIZE.1));
        assert!(text.contains("Mo   ·░▒█—"), "{text}");
    }
}
