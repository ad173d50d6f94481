//! Segments on a linear axis of time: one row.

use ratatui::buffer::Buffer;
use ratatui::layout::Rect;
use ratatui::widgets::Widget;

use crate::text::{cut, width};
use crate::theme::Look;

#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Segment {
    /// From here to there, fractions of the whole axis.
    pub(crate) from: f64,
    pub(crate) to: f64,
    pub(crate) label: String,
    /// Planned, not held.
    pub(crate) planned: bool,
    pub(crate) limit: bool,
}

pub(crate) struct Gantt<'a> {
    pub(crate) segments: &'a [Segment],
    pub(crate) look: &'a Look,
}

impl Gantt<'_> {
    pub(crate) fn column(part: f64, cols: u16) -> u16 {
        (part.clamp(0.0, 1.0) * f64::from(cols)).round() as u16
    }
}

impl Widget for Gantt<'_> {
    fn render(self, area: Rect, buf: &mut Buffer) {
        let area = area.intersection(buf.area);
        let (theme, glyphs) = (&self.look.theme, &self.look.glyphs);
        for segment in self.segments {
            let from = Self::column(segment.from, area.width);
            let to = Self::column(segment.to, area.width).max(from);
            let cols = usize::from(to - from);
            let fill = match (segment.planned, glyphs.lines) {
                (false, true) => "━",
                (true, true) => "╌",
                (false, false) => "=",
                (true, false) => "-",
            };
            let end = usize::from(segment.limit && cols > 0);
            // The whole label, or a readable part of it, or the first name.
            let room = cols - end;
            let first = segment.label.split(' ').next().unwrap_or_default();
            let label = match &segment.label {
                label if width(label) <= room => label.clone(),
                label if room >= 8 => cut(label, room, glyphs.ellipsis),
                _ if width(first) <= room => first.to_owned(),
                _ => String::new(),
            };
            let style = if segment.planned {
                theme.dim
            } else {
                theme.text
            };
            let mut text = label;
            if !text.is_empty() && width(&text) + end + 1 < cols {
                text.push(' ');
            }
            let rest = cols.saturating_sub(width(&text) + end);
            buf.set_stringn(area.x + from, area.y, &text, cols, theme.text);
            let x = area.x + from + width(&text) as u16;
            buf.set_stringn(x, area.y, fill.repeat(rest), rest, style);
            if end > 0 && area.height > 0 {
                buf.set_stringn(area.x + to - 1, area.y, glyphs.wall, 1, theme.strong);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::theme::Depth;

    fn draw(segments: &[Segment], cols: u16) -> String {
        let look = &Look::new(Depth::Mono, true);
        let mut buf = Buffer::empty(Rect::new(0, 0, cols, 1));
        Gantt { segments, look }.render(buf.area, &mut buf);
        crate::picture::buffer_text(&buf)
    }

    #[test]
    fn segments_have_their_length_at_every_width() {
        let of = |from, to, label: &str, planned| Segment {
            from,
            to,
            label: label.to_owned(),
            planned,
            limit: !planned,
        };
        let row = [of(0.0, 0.5, "c1 0.50", false), of(0.5, 1.0, "c2", true)];
        assert_eq!(draw(&row, 24), "c1 0.50 ━━━┃c2 ╌╌╌╌╌╌╌╌╌\n");
        assert_eq!(draw(&row, 8), "c1━┃c2 ╌\n");
        assert_eq!(draw(&row, 4), "━┃c2\n");
        for cols in 0..60 {
            let text = draw(&row, cols);
            assert_eq!(text.trim_end().chars().count(), usize::from(cols));
        }
    }
}
