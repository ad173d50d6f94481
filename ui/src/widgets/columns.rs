//! Rows of a table with columns of fixed width: a heading and its figures cannot drift apart.

use ratatui::style::Style;
use ratatui::text::{Line, Span};

use crate::text::{left, right};
use crate::theme::Glyphs;

/// A column.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Column<K> {
    /// What it shows.
    pub(crate) key: K,
    /// Its heading.
    pub(crate) title: &'static str,
    /// Columns of the terminal.
    pub(crate) width: usize,
    /// Whether figures stand at its right edge.
    pub(crate) right: bool,
}

/// Between two columns.
const BETWEEN: &str = " ";
/// Its width.
pub(crate) const GAP: usize = BETWEEN.len();

impl<K: Copy> Column<K> {
    /// A column of words.
    pub(crate) const fn words(key: K, title: &'static str, width: usize) -> Self {
        Self {
            key,
            title,
            width,
            right: false,
        }
    }

    /// A column of figures.
    pub(crate) const fn figures(key: K, title: &'static str, width: usize) -> Self {
        Self {
            key,
            title,
            width,
            right: true,
        }
    }

    fn fit(&self, text: &str, glyphs: &Glyphs) -> String {
        if self.right {
            right(text, self.width, glyphs)
        } else {
            left(text, self.width, glyphs)
        }
    }
}

/// Columns of the terminal that the table takes.
pub(crate) fn total<K>(columns: &[Column<K>]) -> usize {
    columns
        .iter()
        .map(|c| c.width + GAP)
        .sum::<usize>()
        .saturating_sub(GAP)
}

/// One row; `cell` gives the text and style of each column.
pub(crate) fn row<K: Copy>(
    columns: &[Column<K>],
    glyphs: &Glyphs,
    cell: impl Fn(&Column<K>) -> (String, Style),
) -> Line<'static> {
    let mut spans = Vec::with_capacity(columns.len() * 2);
    for (i, column) in columns.iter().enumerate() {
        if i > 0 {
            spans.push(Span::raw(BETWEEN));
        }
        let (text, style) = cell(column);
        spans.push(Span::styled(column.fit(&text, glyphs), style));
    }
    Line::from(spans)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::theme::UTF8;

    #[test]
    fn heading_and_figures_share_their_edges() {
        let columns = [
            Column::words('a', "WHAT", 6),
            Column::figures('b', "MEM", 5),
            Column::words('c', "STATE", 4),
        ];
        let head = row(&columns, &UTF8, |c| (c.title.to_owned(), Style::new()));
        assert_eq!(head.to_string(), "WHAT     MEM STA…");
        let line = row(&columns, &UTF8, |c| {
            (
                if c.key == 'a' { "train.py" } else { "7" }.to_owned(),
                Style::new(),
            )
        });
        assert_eq!(line.to_string(), "train…     7 7   ");
        assert_eq!(total(&columns), line.width());
    }
}
