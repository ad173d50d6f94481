//! One row that shows allocation beside use: used, used above the request, claimed but not used, used
//! outside claims, free.

use ratatui::style::Style;
use ratatui::text::Span;

use crate::theme::Look;

/// The parts of a whole, all in the unit of `total`.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub(crate) struct ShareBar {
    /// Used within the requests.
    pub(crate) used: f64,
    /// Used above the requests.
    pub(crate) burst: f64,
    /// Requested and not used.
    pub(crate) claimed: f64,
    /// Used outside claims.
    pub(crate) unclaimed: f64,
    /// The whole.
    pub(crate) total: f64,
    /// Whether the use is known: if not, what is not claimed is left blank instead of free.
    pub(crate) known: bool,
}

impl ShareBar {
    /// From what is used in all, what is claimed, and what is used outside claims; without a known
    /// use only the claims are drawn.
    pub(crate) fn of(used: Option<f64>, claimed: f64, unclaimed: f64, total: f64) -> Self {
        let by_claims = used.map_or(0.0, |u| (u - unclaimed).max(0.0));
        Self {
            used: by_claims.min(claimed),
            burst: (by_claims - claimed).max(0.0),
            claimed: (claimed - by_claims).max(0.0),
            unclaimed,
            total,
            known: used.is_some(),
        }
    }

    /// How many of `cells` each part takes: rounded by boundaries, so that the bar never jumps by two,
    /// and a part that is there at all is seen. Free cells are the rest.
    fn cells(&self, cells: usize) -> [usize; 4] {
        let parts = [self.used, self.burst, self.claimed, self.unclaimed];
        let mut out = [0usize; 4];
        // A whole that is not known, or not a number, draws nothing.
        if !self.total.is_finite() || self.total <= 0.0 {
            return out;
        }
        let (mut sum, mut edge) = (0.0, 0);
        for (size, part) in out.iter_mut().zip(parts) {
            sum += if part.is_finite() { part.max(0.0) } else { 0.0 };
            let next = ((sum / self.total).min(1.0) * cells as f64).round() as usize;
            *size = next - edge;
            edge = next;
        }
        for i in 0..parts.len() {
            if parts[i] <= self.total / 1000.0 || out[i] > 0 {
                continue;
            }
            let taken: usize = out.iter().sum();
            let largest = (0..out.len()).max_by_key(|&j| out[j]);
            if taken < cells {
                out[i] = 1;
            } else if let Some(j) = largest
                && out[j] > 1
            {
                out[j] -= 1;
                out[i] = 1;
            }
        }
        out
    }

    /// The bar in `width` columns, its brackets included.
    pub(crate) fn spans(&self, width: usize, look: &Look) -> Vec<Span<'static>> {
        let Some(inner) = width.checked_sub(2).filter(|n| *n > 0) else {
            return vec![Span::raw(" ".repeat(width))];
        };
        let (theme, glyphs) = (&look.theme, &look.glyphs);
        let sizes = self.cells(inner);
        let free = inner - sizes.iter().sum::<usize>();
        let part = |glyph: &str, n: usize, style: Style| Span::styled(glyph.repeat(n), style);
        let rest = if self.known {
            glyphs.free.repeat(free)
        } else if free == 0 {
            String::new()
        } else {
            let before = " ".repeat((free - 1) / 2);
            let after = " ".repeat(free - 1 - before.len());
            format!("{before}{}{after}", glyphs.dash)
        };
        let all = [
            Span::styled("[", theme.dim),
            part(glyphs.used, sizes[0], theme.used),
            part(glyphs.burst, sizes[1], theme.burst),
            part(glyphs.claimed, sizes[2], theme.claimed),
            part(glyphs.unclaimed, sizes[3], theme.unclaimed),
            Span::styled(rest, theme.free),
            Span::styled("]", theme.dim),
        ];
        all.into_iter().filter(|s| !s.content.is_empty()).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::theme::Depth;

    fn draw(bar: ShareBar, width: usize) -> String {
        let look = Look::new(Depth::Mono, true);
        bar.spans(width, &look)
            .iter()
            .map(|s| s.content.as_ref())
            .collect()
    }

    #[test]
    fn allocation_stands_beside_use() {
        assert_eq!(
            draw(ShareBar::of(Some(5.0), 7.0, 0.0, 10.0), 12),
            "[█████▒▒···]"
        );
        assert_eq!(
            draw(ShareBar::of(Some(7.0), 5.0, 0.0, 10.0), 12),
            "[█████▓▓···]"
        );
        assert_eq!(
            draw(ShareBar::of(Some(4.0), 0.0, 4.0, 10.0), 12),
            "[░░░░······]"
        );
        assert_eq!(draw(ShareBar::of(None, 5.0, 0.0, 10.0), 12), "[▒▒▒▒▒  —  ]");
        assert_eq!(
            draw(ShareBar::of(Some(0.0), 0.0, 0.0, 10.0), 12),
            "[··········]"
        );
    }

    #[test]
    fn a_little_is_seen_and_too_much_stays_inside() {
        assert_eq!(
            draw(ShareBar::of(Some(0.1), 0.0, 0.0, 10.0), 12),
            "[▓·········]"
        );
        assert_eq!(
            draw(ShareBar::of(Some(9.9), 10.0, 0.0, 10.0), 12),
            "[█████████▒]"
        );
        assert_eq!(
            draw(ShareBar::of(Some(99.0), 10.0, 0.0, 10.0), 12),
            "[█████████▓]"
        );
        assert_eq!(
            draw(ShareBar::of(Some(f64::NAN), 5.0, 0.0, 10.0), 6)
                .chars()
                .count(),
            6
        );
        assert_eq!(draw(ShareBar::of(Some(1.0), 1.0, 0.0, 0.0), 6), "[····]");
    }

    #[test]
    fn every_width_is_kept() {
        for width in 0..40 {
            for used in 0..12 {
                let bar = ShareBar::of(Some(f64::from(used)), 5.0, 1.5, 10.0);
                assert_eq!(draw(bar, width).chars().count(), width);
            }
        }
    }
}
