//! Rows of a table with columns of fixed width: a heading and its figures cannot drift apart.

use ratatui::text::{Line, Span};

use crate::theme::Look;
use crate::view::fit;

#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Column<K> {
    pub(crate) key: K,
    pub(crate) title: &'static str,
    pub(crate) width: usize,
    /// Whether figures stand at its right edge.
    pub(crate) right: bool,
}

const BETWEEN: &str = " ";
pub(crate) const GAP: usize = BETWEEN.len();

impl<K: Copy> Column<K> {
    pub(crate) const fn words(key: K, title: &'static str, width: usize) -> Self {
        Self {
            key,
            title,
            width,
            right: false,
        }
    }

    pub(crate) const fn figures(key: K, title: &'static str, width: usize) -> Self {
        Self {
            key,
            title,
            width,
            right: true,
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

/// One row; `cell` gives the text of each column.
pub(crate) fn row<K: Copy>(
    columns: &[Column<K>],
    look: &Look,
    cell: impl Fn(&Column<K>) -> Line<'static>,
) -> Line<'static> {
    let mut out = Line::default();
    for (i, column) in columns.iter().enumerate() {
        if i > 0 {
            out.push_span(Span::raw(BETWEEN));
        }
        let line = fit(cell(column), column.width, look);
        let gap = Span::raw(" ".repeat(column.width.saturating_sub(line.width())));
        let spans = line.spans.into_iter();
        let spans = spans.map(|span| Span::styled(span.content, line.style.patch(span.style)));
        match column.right {
            true => out.extend([gap].into_iter().chain(spans)),
            false => out.extend(spans.chain([gap])),
        }
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::theme::Depth;

    #[test]
    fn heading_and_figures_share_their_edges() {
        let columns = [
            Column::words('a', "WHAT", 6),
            Column::figures('b', "MEM", 5),
            Column::words('c', "STATE", 4),
        ];
        let look = &Look::new(Depth::Mono, true);
        let head = row(&columns, look, |c| c.title.into());
        assert_eq!(head.to_string(), "WHAT     MEM STA…");
        let line = row(&columns, look, |c| match c.key {
            'a' => "train.py".into(),
            _ => "7".into(),
        });
        assert_eq!(line.to_string(), "train…     7 7   ");
        assert_eq!(total(&columns), line.width());
    }
}
