//! The registry of kernel durations: a text file `costs` beside the board.
//!
//! Each line names a kernel and the time that one of its blocks takes: `saxpy 250us`. Units are
//! `ns`, `us`, `ms` and `s`; `#` begins a comment. A name that ends in `*` stands for every kernel
//! whose name begins so (Numba mangles its names); the first line that fits counts. The registry
//! sets durations only, never results. A kernel that it lacks gets a duration from its instructions.

use std::path::Path;

/// Rows of the registry, in the order of the file.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Costs {
    rows: Vec<(String, u64)>,
}

impl Costs {
    /// Reads the registry beside the board file; empty where there is none.
    #[must_use]
    pub fn beside(board: &Path) -> Costs {
        let path = board.with_file_name("costs");
        std::fs::read_to_string(path)
            .map(|text| Costs::parse(&text).0)
            .unwrap_or_default()
    }

    /// Parses the text of a registry; gives the rows, and the numbers of the lines that are wrong.
    #[must_use]
    pub fn parse(text: &str) -> (Costs, Vec<usize>) {
        let (mut costs, mut wrong) = (Costs::default(), Vec::new());
        for (i, line) in text.lines().enumerate() {
            let line = line.split('#').next().unwrap_or("").trim();
            if line.is_empty() {
                continue;
            }
            let mut words = line.split_whitespace();
            match (
                words.next(),
                words.next().and_then(nanoseconds),
                words.next(),
            ) {
                (Some(name), Some(ns), None) => costs.rows.push((name.to_owned(), ns)),
                _ => wrong.push(i + 1),
            }
        }
        (costs, wrong)
    }

    /// Nanoseconds that one block of the kernel takes, if the registry has it.
    #[must_use]
    pub fn block_ns(&self, kernel: &str) -> Option<u64> {
        let fits = |name: &str| match name.strip_suffix('*') {
            Some(start) => kernel.starts_with(start),
            None => kernel == name,
        };
        self.rows.iter().find(|r| fits(&r.0)).map(|r| r.1)
    }
}

fn nanoseconds(text: &str) -> Option<u64> {
    let digits = text.find(|c: char| !c.is_ascii_digit())?;
    let (number, unit) = text.split_at(digits);
    let scale = match unit {
        "ns" => 1,
        "us" => 1_000,
        "ms" => 1_000_000,
        "s" => 1_000_000_000,
        _ => return None,
    };
    number.parse::<u64>().ok()?.checked_mul(scale)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_prefixes_units_and_mistakes() {
        let text =
            "# durations\nsaxpy 250us\n_ZN4gemm* 3ms # Numba\n\nbad\nworse 3 ms\nx 9h\nlong 2s";
        let (costs, wrong) = Costs::parse(text);
        for (kernel, expect) in [
            ("saxpy", Some(250_000)),
            ("saxpy2", None),
            ("_ZN4gemmB3v1", Some(3_000_000)),
            ("long", Some(2_000_000_000)),
            ("x", None),
        ] {
            assert_eq!(costs.block_ns(kernel), expect, "{kernel}");
        }
        assert_eq!(wrong, [5, 6, 7]);
    }
}
