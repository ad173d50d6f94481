//! Use beside the claim, on one line: a solid bar with a tick at the claim.

use ratatui::text::{Line, Span};

use crate::theme::Look;

/// All in the unit of `whole`, which is the full width.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub(crate) struct Bullet {
    /// Used; absent if unknown.
    pub(crate) used: Option<f64>,
    pub(crate) claim: f64,
    pub(crate) whole: f64,
}

/// Eighths of cells for a part of a whole, clamped; anything above zero is at least one.
pub(super) fn eighths(part: f64, whole: f64, cells: usize) -> usize {
    if !(part > 0.0 && whole > 0.0) {
        return 0;
    }
    let filled = (part / whole).min(1.0) * (cells * 8) as f64;
    (filled.round() as usize).max(1)
}

impl Bullet {
    pub(crate) fn bytes(used: Option<u64>, claim: u64, whole: Option<u64>) -> Self {
        Self {
            used: used.map(|bytes| bytes as f64),
            claim: claim as f64,
            whole: whole.unwrap_or(0) as f64,
        }
    }

    /// In `cells` columns: used, then unused up to the tick or burst past it, then free. Without a tick if the claim
    /// is zero or the whole.
    pub(crate) fn line(&self, cells: usize, look: &Look) -> Line<'static> {
        let (theme, glyphs) = (&look.theme, &look.glyphs);
        let filled = eighths(self.used.unwrap_or(0.0), self.whole, cells);
        let (full, rest) = (filled / 8, filled % 8);
        let place = (eighths(self.claim, self.whole, cells) + 4) / 8;
        let tick = (self.claim > 0.0 && self.whole > 0.0 && place < cells).then_some(place);
        let end = if self.claim > 0.0 { place } else { cells };
        let mut line = Line::default();
        for at in 0..cells {
            let (sign, style) = match self.used {
                _ if Some(at) == tick => {
                    let most = self.claim + self.whole / 200.0;
                    let over = self.used.is_some_and(|used| used > most);
                    (glyphs.tick[usize::from(over)], theme.text)
                }
                // In the middle, so that it is not read as a small value.
                None if at == cells / 2 => (glyphs.dash, theme.dim),
                None => (" ", theme.text),
                Some(_) if at < full && at < end => (glyphs.used, theme.used),
                Some(_) if at < full => (glyphs.burst, theme.burst),
                Some(_) if at == full && rest > 0 && at < end => {
                    (glyphs.eighths[rest - 1], theme.used)
                }
                Some(_) if at == full && rest > 3 => (glyphs.burst, theme.burst),
                Some(_) if at < end && self.claim > 0.0 => (glyphs.unused, theme.unused),
                Some(_) => (glyphs.free, theme.free),
            };
            match line.spans.last_mut() {
                Some(last) if last.style == style => last.content.to_mut().push_str(sign),
                _ => line.push_span(Span::styled(sign, style)),
            }
        }
        line
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::theme::Depth;

    fn draw(used: Option<f64>, claim: f64, cells: usize, utf8: bool) -> String {
        let whole = 10.0;
        let look = Look::new(Depth::Mono, utf8);
        let bullet = Bullet { used, claim, whole };
        let line = bullet.line(cells, &look);
        assert_eq!(line.width(), cells);
        line.to_string()
    }

    #[test]
    fn the_tick_is_the_claim_and_what_is_past_it_is_burst() {
        for (used, claim, want) in [
            (Some(3.0), 5.0, "███░░│····"),
            (Some(8.0), 5.0, "█████┃▒▒··"),
            (Some(0.0), 5.0, "░░░░░│····"),
            (Some(0.01), 5.0, "▏░░░░│····"),
            (Some(10.0), 10.0, "██████████"),
            (Some(99.0), 5.0, "█████┃▒▒▒▒"),
            // Without a claim all of it is use.
            (Some(4.0), 0.0, "████······"),
            (Some(f64::NAN), 5.0, "░░░░░│····"),
        ] {
            assert_eq!(draw(used, claim, 10, true), want, "{used:?} of {claim}");
        }
        assert_eq!(draw(Some(3.5), 5.0, 10, true), "███▌░│····");
        assert_eq!(draw(Some(8.0), 5.0, 10, false), "#####|++..");
        assert_eq!(draw(Some(2.0), 5.0, 10, false), "##===|....");
    }

    #[test]
    fn what_is_not_known_is_no_bar() {
        assert_eq!(draw(None, 3.0, 10, true), "   │ —    ");
        assert_eq!(draw(None, 0.0, 10, true), "     —    ");
    }

    #[test]
    fn every_width_is_kept_and_more_use_is_never_shorter() {
        let look = Look::new(Depth::Rgb, true);
        for cells in 0..50 {
            let mut before = 0;
            for used in 0..=20 {
                let text = draw(Some(f64::from(used) / 2.0), 5.0, cells, true);
                let drawn = text.chars().filter(|c| !"░·│".contains(*c)).count();
                assert!(drawn + 1 >= before, "{text}");
                before = drawn;
            }
            let nothing = Bullet::default().line(cells, &look);
            assert_eq!(nothing.width(), cells);
        }
    }
}
