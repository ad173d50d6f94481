//! Tables for display: aligned columns, a dash for unknown values, cut to the terminal's width.

use gshare_proto::{figures, printable};

/// Alignment of a column.
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
    whole: &'static str,
    spare: &'static [&'static str],
}

/// An unknown figure.
pub(crate) const UNKNOWN: &str = "\u{2014}";
/// Marks a cut.
const DOTS: &str = "\u{2026}";

impl Table {
    /// A table without rows.
    pub(crate) fn new(columns: &[(&'static str, Align)]) -> Self {
        Self {
            columns: columns.to_vec(),
            rows: Vec::new(),
            whole: "",
            spare: &[],
        }
    }

    /// If the terminal has no room for all columns up to `whole`, these are dropped, in this order.
    pub(crate) fn spare(mut self, whole: &'static str, columns: &'static [&'static str]) -> Self {
        (self.whole, self.spare) = (whole, columns);
        self
    }

    /// Adds a row with one cell per column. Control characters in users' names and commands are shown as spaces,
    /// because they could control the terminal.
    pub(crate) fn row(&mut self, cells: Vec<String>) {
        debug_assert_eq!(cells.len(), self.columns.len());
        self.rows.push(cells.iter().map(|c| plain(c)).collect());
    }

    /// The table as text, its lines at most `width` columns wide.
    pub(crate) fn text(&self, width: Option<usize>, bold: bool) -> String {
        let widths: Vec<usize> = (0..self.columns.len())
            .map(|i| {
                let cells = self.rows.iter().map(|row| figures::width(&row[i]));
                cells.max().unwrap_or(0).max(self.columns[i].0.len())
            })
            .collect();
        let shown = self.shown(&widths, width);
        let heading: Vec<String> = self.columns.iter().map(|(n, _)| (*n).to_owned()).collect();
        let mut out = String::new();
        let line = cut(&self.line(&heading, &widths, &shown), width);
        if bold {
            out.push_str(&format!("\x1b[1m{line}\x1b[0m\n"));
        } else {
            out.push_str(&format!("{line}\n"));
        }
        for row in &self.rows {
            out.push_str(&cut(&self.line(row, &widths, &shown), width));
            out.push('\n');
        }
        out
    }

    /// The same without cuts: columns that do not fit stand in further blocks below, each of which starts with the
    /// first column.
    pub(crate) fn blocks(&self, width: Option<usize>, bold: bool) -> String {
        let cells = |i: usize| self.rows.iter().map(move |row| figures::width(&row[i]));
        let wide = |i: usize| cells(i).max().unwrap_or(0).max(self.columns[i].0.len()) + 2;
        let most = width.map_or(usize::MAX, |width| width + 2);
        let mut blocks: Vec<Vec<usize>> = vec![vec![0]];
        for i in 1..self.columns.len() {
            match blocks.last_mut() {
                Some(last)
                    if last.len() == 1
                        || last.iter().map(|i| wide(*i)).sum::<usize>() + wide(i) <= most =>
                {
                    last.push(i);
                }
                _ => blocks.push(vec![0, i]),
            }
        }
        let block = |columns: &Vec<usize>| {
            let of = |row: &Vec<String>| columns.iter().map(|i| row[*i].clone()).collect();
            let table = Self {
                columns: columns.iter().map(|i| self.columns[*i]).collect(),
                rows: self.rows.iter().map(of).collect(),
                ..Self::new(&[])
            };
            table.text(width, bold)
        };
        let blocks: Vec<String> = blocks.iter().map(block).collect();
        blocks.join("\n")
    }

    /// The columns that fit.
    fn shown(&self, widths: &[usize], width: Option<usize>) -> Vec<usize> {
        let at = |name: &str| self.columns.iter().position(|(n, _)| *n == name);
        let mut shown: Vec<usize> = (0..self.columns.len()).collect();
        let (Some(width), Some(whole)) = (width, at(self.whole)) else {
            return shown;
        };
        for column in self.spare.iter().filter_map(|name| at(name)) {
            let first = shown.iter().filter(|i| **i <= whole);
            if first.map(|i| widths[*i] + 2).sum::<usize>() <= width {
                break;
            }
            shown.retain(|i| *i != column);
        }
        shown
    }

    fn line(&self, cells: &[String], widths: &[usize], shown: &[usize]) -> String {
        let mut line = String::new();
        for (n, &i) in shown.iter().enumerate() {
            if n > 0 {
                line.push_str("  ");
            }
            line.push_str(&match self.columns[i].1 {
                Align::Left => figures::left(&cells[i], widths[i], DOTS),
                Align::Right => figures::right(&cells[i], widths[i], DOTS),
            });
        }
        line.truncate(line.trim_end().len());
        line
    }
}

/// `text` without control characters.
pub(crate) fn plain(text: &str) -> String {
    printable(text).collect()
}

/// At most `width` columns, with an ellipsis after a cut.
pub(crate) fn cut(line: &str, width: Option<usize>) -> String {
    let width = width.filter(|width| *width > 0);
    width.map_or_else(
        || line.to_owned(),
        |width| figures::cut_row(line, width, DOTS),
    )
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

    #[test]
    fn wide_and_invisible_names_keep_the_columns() {
        let mut table = Table::new(&[("USER", Align::Left), ("WHAT", Align::Right)]);
        let names = [
            "ada",
            "\u{65e5}\u{672c}\u{8a9e}",
            "\u{1f680}x",
            "e\u{301}mile",
            "a\u{200b}b",
            "a\u{202e}b",
        ];
        for name in names {
            table.row(vec![name.to_owned(), name.to_owned()]);
        }
        let text = table.text(None, false);
        for line in text.lines().skip(1) {
            // Each name takes 6 columns at the left and ends in the 14th.
            assert_eq!(figures::width(line), 14, "{line:?}");
            let name = line.split("  ").next().unwrap_or_default();
            let (start, end) = line.split_at(line.len() - name.len());
            assert_eq!(
                (figures::width(start) + figures::width(name), end),
                (14, name)
            );
        }
        for line in table.text(Some(9), false).lines() {
            assert!(figures::width(line) <= 9, "{line:?}");
        }
    }

    #[test]
    fn columns_that_can_be_spared_make_room_for_those_that_cannot() {
        let names = ["ID", "OCC", "AVG", "STATE", "WHAT"].map(|n| (n, Align::Left));
        let mut table = Table::new(&names).spare("STATE", &["AVG", "OCC"]);
        let cells = ["c3", "12", "50", "suspended", "python train.py"];
        table.row(cells.map(str::to_owned).into());
        let row = |width| table.text(width, false).lines().nth(1).map(str::to_owned);
        for (width, shown) in [
            (None, "c3  12   50   suspended  python train.py"),
            (Some(25), "c3  12   50   suspended \u{2026}"),
            (Some(24), "c3  12   suspended  pyt\u{2026}"),
            (Some(15), "c3  suspended \u{2026}"),
            (Some(9), "c3  susp\u{2026}"),
        ] {
            assert_eq!(row(width).as_deref(), Some(shown));
        }
    }
}
