//! What was claimed and what was used of it, a column a moment.

use ratatui::text::{Line, Span};

use crate::theme::Look;

/// A moment, in GPUs.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub(crate) struct Moment {
    /// Claimed.
    pub(crate) claimed: f64,
    /// Used; absent where nobody knows.
    pub(crate) used: Option<f64>,
    /// Asked for and not had.
    pub(crate) waiting: f64,
}

/// The chart.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct OverTime {
    /// The oldest first; nothing is drawn where nothing was recorded.
    pub(crate) moments: Vec<Option<Moment>>,
    /// GPUs at the upper edge.
    pub(crate) top: f64,
}

/// What a cell shows.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Cell {
    Nothing,
    Free,
    Used,
    Burst,
    Claimed,
    Unknown,
}

impl OverTime {
    /// The cell at a row from below.
    fn cell(&self, moment: Option<Moment>, row: usize, rows: usize) -> Cell {
        let Some(moment) = moment else {
            return Cell::Nothing;
        };
        let size = self.top / rows as f64;
        // A cell is filled from its middle on; the lowest as soon as there is anything.
        let middle =
            |amount: f64| amount >= (row as f64 + 0.5) * size || (row == 0 && amount > 0.0);
        let claimed = middle(moment.claimed);
        match moment.used {
            Some(used) if middle(used) => {
                if claimed {
                    Cell::Used
                } else {
                    Cell::Burst
                }
            }
            Some(_) if claimed => Cell::Claimed,
            // How much was claimed, and no word of what was used.
            None if claimed && !self.above(moment.claimed, row, size) => Cell::Unknown,
            _ => Cell::Free,
        }
    }

    /// Whether the cell above is filled too.
    fn above(&self, amount: f64, row: usize, size: f64) -> bool {
        amount >= (row as f64 + 1.5) * size
    }

    /// `rows` lines, the top first.
    pub(crate) fn lines(&self, rows: usize, look: &Look) -> Vec<Line<'static>> {
        let (theme, glyphs) = (&look.theme, &look.glyphs);
        let draw = |cell: Cell, n: usize| {
            let (glyph, style) = match cell {
                Cell::Nothing | Cell::Free => (" ", theme.free),
                Cell::Used => (glyphs.used, theme.used),
                Cell::Burst => (glyphs.burst, theme.burst),
                Cell::Claimed => (glyphs.unused, theme.unused),
                Cell::Unknown => (glyphs.dash, theme.dim),
            };
            Span::styled(glyph.repeat(n), style)
        };
        let line = |row: usize| {
            let mut spans = Vec::new();
            let mut run: Option<(Cell, usize)> = None;
            for moment in &self.moments {
                let cell = self.cell(*moment, row, rows);
                run = match run {
                    Some((same, n)) if same == cell => Some((same, n + 1)),
                    Some((other, n)) => {
                        spans.push(draw(other, n));
                        Some((cell, 1))
                    }
                    None => Some((cell, 1)),
                };
            }
            spans.extend(run.map(|(cell, n)| draw(cell, n)));
            Line::from(spans)
        };
        (0..rows).rev().map(line).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::theme::Depth;

    #[test]
    fn allocation_stands_beside_use_and_gaps_are_blank() {
        let at = |claimed: f64, used: Option<f64>| {
            Some(Moment {
                claimed,
                used,
                waiting: 0.0,
            })
        };
        let chart = OverTime {
            moments: vec![
                at(4.0, Some(2.0)),
                at(2.0, Some(3.0)),
                at(3.0, None),
                None,
                at(0.0, Some(0.0)),
                at(0.1, Some(0.1)),
            ],
            top: 4.0,
        };
        let look = Look::new(Depth::Mono, true);
        let text: Vec<String> = chart.lines(4, &look).iter().map(Line::to_string).collect();
        assert_eq!(text, ["░     ", "░▒—   ", "██    ", "██   █"]);
        assert!(chart.lines(0, &look).is_empty());
    }
}
