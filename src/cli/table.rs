//! Tables for people: aligned columns, a dash for what is not known, cut to the terminal.

/// How a column is set.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Align {
    /// Words.
    Left,
    /// Figures.
    Right,
}

/// A table with a heading.
#[derive(Debug)]
pub(crate) struct Table {
    columns: Vec<(&'static str, Align)>,
    rows: Vec<Vec<String>>,
}

/// Stands for a figure that is not known.
pub(crate) const UNKNOWN: &str = "\u{2014}";

impl Table {
    /// A table without rows.
    pub(crate) fn new(columns: &[(&'static str, Align)]) -> Self {
        Self {
            columns: columns.to_vec(),
            rows: Vec::new(),
        }
    }

    /// Adds a row; it has one cell per column. Control characters of users' names and commands are
    /// shown as spaces: they must not steer the terminal.
    pub(crate) fn row(&mut self, cells: Vec<String>) {
        debug_assert_eq!(cells.len(), self.columns.len());
        self.rows.push(cells.iter().map(|c| plain(c)).collect());
    }

    /// The table as text, its lines at most `width` characters long.
    pub(crate) fn text(&self, width: Option<usize>, bold: bool) -> String {
        let widths: Vec<usize> = (0..self.columns.len())
            .map(|i| {
                let cells = self.rows.iter().map(|row| row[i].chars().count());
                cells.max().unwrap_or(0).max(self.columns[i].0.len())
            })
            .collect();
        let heading: Vec<String> = self.columns.iter().map(|(n, _)| (*n).to_owned()).collect();
        let mut out = String::new();
        let line = cut(&self.line(&heading, &widths), width);
        if bold {
            out.push_str(&format!("\x1b[1m{line}\x1b[0m\n"));
        } else {
            out.push_str(&format!("{line}\n"));
        }
        for row in &self.rows {
            out.push_str(&cut(&self.line(row, &widths), width));
            out.push('\n');
        }
        out
    }

    fn line(&self, cells: &[String], widths: &[usize]) -> String {
        let mut line = String::new();
        for (i, (cell, (_, align))) in cells.iter().zip(&self.columns).enumerate() {
            let gap = " ".repeat(widths[i] - cell.chars().count());
            if i > 0 {
                line.push_str("  ");
            }
            match align {
                Align::Left => line.extend([cell.as_str(), &gap]),
                Align::Right => line.extend([gap.as_str(), cell]),
            }
        }
        line.truncate(line.trim_end().len());
        line
    }
}

/// `text` without characters that a terminal would obey.
pub(crate) fn plain(text: &str) -> String {
    text.chars()
        .map(|c| if c.is_control() { ' ' } else { c })
        .collect()
}

/// At most `width` characters, the last of them an ellipsis where something was left out.
pub(crate) fn cut(line: &str, width: Option<usize>) -> String {
    match width {
        Some(width) if line.chars().count() > width && width > 0 => {
            let head: String = line.chars().take(width - 1).collect();
            head + "\u{2026}"
        }
        _ => line.to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn columns_line_up_and_long_lines_are_cut() {
        let mut table = Table::new(&[
            ("ID", Align::Left),
            ("MEM", Align::Right),
            ("WHAT", Align::Left),
        ]);
        table.row(vec![
            "c3".into(),
            "4.1/5.9".into(),
            "python\ttrain.py\x1b[2J".into(),
        ]);
        table.row(vec!["c12".into(), UNKNOWN.into(), "x".into()]);
        assert_eq!(
            table.text(None, false),
            "ID       MEM  WHAT\nc3   4.1/5.9  python train.py [2J\nc12        \u{2014}  x\n"
        );
        assert_eq!(
            table.text(Some(20), false),
            "ID       MEM  WHAT\nc3   4.1/5.9  pytho\u{2026}\nc12        \u{2014}  x\n"
        );
    }
}
