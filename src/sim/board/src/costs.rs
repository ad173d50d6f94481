//! The registry of kernel durations: a text file `costs` beside the board.
//!
//! Each line names a kernel and the time that one of its blocks takes: `saxpy 250us`. Units are
//! `ns`, `us`, `ms` and `s`; `#` begins a comment. A name that ends in `*` stands for every kernel
//! whose name begins so (Numba mangles its names); the first line that fits counts. The registry
//! sets durations only, never results. `pcie 4GB/s` sets how fast copies over PCI Express are. A kernel that it lacks gets a duration from its instructions.

use std::path::Path;

/// Rows of the registry, in the order of the file.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Costs {
    rows: Vec<(String, u64)>,
    pcie: Option<u64>,
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
                (Some("pcie"), None, None) => match bandwidth(line) {
                    Some(bytes) => costs.pcie = Some(bytes),
                    None => wrong.push(i + 1),
                },
                _ => wrong.push(i + 1),
            }
        }
        (costs, wrong)
    }

    /// Bytes in a second over PCI Express, if the registry sets them.
    #[must_use]
    pub fn pcie_bytes_per_second(&self) -> Option<u64> {
        self.pcie
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

/// Bytes in a second of a line such as `pcie 4GB/s`.
fn bandwidth(line: &str) -> Option<u64> {
    let word = line.split_whitespace().nth(1)?;
    let number: u64 = word.strip_suffix("GB/s")?.parse().ok()?;
    number.checked_mul(1_000_000_000).filter(|b| *b > 0)
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
        assert_eq!(costs.pcie_bytes_per_second(), None);
        let (costs, wrong) = Costs::parse("pcie 4GB/s\npcie 4ms\npcie 0GB/s\npcie fast\n");
        assert_eq!(costs.pcie_bytes_per_second(), Some(4_000_000_000));
        assert_eq!(
            costs.block_ns("pcie"),
            Some(4_000_000),
            "a kernel may be called so"
        );
        assert_eq!(wrong, [3, 4]);
    }
}
