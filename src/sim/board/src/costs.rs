//! Kernel durations: a text file `costs` beside the board. It sets durations only, never results.
//!
//! Each line names a kernel and the duration of one block. Units are `ns`, `us`, `ms` and `s`; `#` begins a comment. A
//! name that ends in `*` matches by prefix (Numba mangles its names). The first matching line counts. A kernel without
//! a line gets a duration from its instructions.
//!
//! - `saxpy 250us`: one block takes 250 us.
//! - `allreduce 100us meets 2`: two GPUs of a process launch the kernel, and it advances while both run it. It computes
//!   nothing.
//! - `parent 1ms starts 5ms`: starts a kernel of 5 ms per block on the GPU, which runs after it and which no stream and
//!   no event waits for.
//! - `pcie 4GB/s`: rate of copies over PCI Express.

use std::path::Path;

/// Rows of the file, in order.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Costs {
    rows: Vec<(String, Takes)>,
    pcie: Option<u64>,
}

/// A kernel's line in the file.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Takes {
    /// Duration of one block in nanoseconds.
    pub block_ns: u64,
    /// Number of GPUs that must run it at the same time; 0 if it waits for no other.
    pub meets: u64,
    /// Duration in nanoseconds of one block of the kernel that it starts; 0 if it starts none.
    pub starts_ns: u64,
}

impl Costs {
    /// Reads the file beside the board; empty if there is none.
    #[must_use]
    pub fn beside(board: &Path) -> Costs {
        let path = board.with_file_name("costs");
        std::fs::read_to_string(path)
            .map(|text| Costs::parse(&text).0)
            .unwrap_or_default()
    }

    /// Parses the text of the file; returns the rows and the numbers of invalid lines.
    #[must_use]
    pub fn parse(text: &str) -> (Costs, Vec<usize>) {
        let (mut costs, mut wrong) = (Costs::default(), Vec::new());
        for (i, line) in text.lines().enumerate() {
            let line = line.split('#').next().unwrap_or("").trim();
            if line.is_empty() {
                continue;
            }
            let mut words = line.split_whitespace();
            let (name, block_ns) = (words.next(), words.next().and_then(nanoseconds));
            let more = match (words.next(), words.next(), words.next()) {
                (None, ..) => Some((0, 0)),
                (Some("meets"), Some(many), None) => many.parse().ok().map(|many| (many, 0)),
                (Some("starts"), Some(time), None) => nanoseconds(time).map(|ns| (0, ns)),
                _ => None,
            };
            match (name, block_ns, more) {
                (Some(name), Some(block_ns), Some((meets, starts_ns))) => {
                    let takes = Takes {
                        block_ns,
                        meets,
                        starts_ns,
                    };
                    costs.rows.push((name.to_owned(), takes));
                }
                (Some("pcie"), None, Some((0, 0))) => match bandwidth(line) {
                    Some(bytes) => costs.pcie = Some(bytes),
                    None => wrong.push(i + 1),
                },
                _ => wrong.push(i + 1),
            }
        }
        (costs, wrong)
    }

    /// Bytes per second over PCI Express, if the file sets them.
    #[must_use]
    pub fn pcie_bytes_per_second(&self) -> Option<u64> {
        self.pcie
    }

    /// The kernel's line, if the file has one.
    #[must_use]
    pub fn of(&self, kernel: &str) -> Option<Takes> {
        let fits = |name: &str| match name.strip_suffix('*') {
            Some(start) => kernel.starts_with(start),
            None => kernel == name,
        };
        self.rows.iter().find(|r| fits(&r.0)).map(|r| r.1)
    }
}

/// Bytes per second of a line such as `pcie 4GB/s`.
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
            let takes = costs.of(kernel);
            assert_eq!(takes.map(|t| t.block_ns), expect, "{kernel}");
            assert_eq!(takes.map_or(0, |t| t.meets), 0, "{kernel}");
        }
        assert_eq!(wrong, [5, 6, 7]);
        assert_eq!(costs.pcie_bytes_per_second(), None);
        let (costs, wrong) = Costs::parse("pcie 4GB/s\npcie 4ms\npcie 0GB/s\npcie fast\n");
        assert_eq!(costs.pcie_bytes_per_second(), Some(4_000_000_000));
        let pcie = costs.of("pcie").map(|t| t.block_ns);
        assert_eq!(pcie, Some(4_000_000), "a kernel may be called so");
        assert_eq!(wrong, [3, 4]);
        let (costs, wrong) = Costs::parse(
            "ring 5us meets 2\nr 5us meets\nr 5us meets x\nr 5us joins 2\np 1ms starts 5us\np 1us starts 2",
        );
        let ring = Takes {
            block_ns: 5_000,
            meets: 2,
            starts_ns: 0,
        };
        assert_eq!(costs.of("ring"), Some(ring));
        assert_eq!(costs.of("p").map(|t| t.starts_ns), Some(5_000));
        assert_eq!(wrong, [2, 3, 4, 6]);
    }
}
