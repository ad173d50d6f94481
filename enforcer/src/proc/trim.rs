//! Drops memory that a long-lived program needed only for its start.

use std::fs;
use std::ops::Range;

use super::sys;

/// Drops the pages of the program's file and of its libraries: needed ones are read again from the kernel's cache, those
/// that only the start needed are not. Returns the bytes that were resident.
#[must_use]
pub fn give_back_files() -> u64 {
    let Ok(text) = fs::read_to_string("/proc/self/smaps") else {
        return 0;
    };
    let mut bytes = 0;
    for (range, resident) in clean(&text) {
        if sys::drop_clean_pages(range).is_ok() {
            bytes += resident;
        }
    }
    bytes
}

/// Private mappings of files that nothing has written to or can write to, and the resident bytes of each. Parts that the
/// dynamic linker has written (its tables are read-only afterwards) have anonymous pages.
fn clean(smaps: &str) -> Vec<(Range<usize>, u64)> {
    let mut found: Vec<(Range<usize>, u64, bool)> = Vec::new();
    for line in smaps.lines() {
        if let Some((range, rest)) = mapping(line) {
            let mut words = rest.split_ascii_whitespace();
            let closed = words
                .next()
                .is_some_and(|p| p.ends_with('p') && !p.contains('w'));
            let of_file = words.nth(3).is_some_and(|p| p.starts_with('/'));
            found.push((range, 0, closed && of_file));
            continue;
        }
        let Some((_, resident, is_clean)) = found.last_mut() else {
            continue;
        };
        let kib = |name: &str| {
            let text = line.strip_prefix(name)?.trim().strip_suffix("kB")?;
            text.trim().parse::<u64>().ok()
        };
        if let Some(kib) = kib("Rss:") {
            *resident = kib << 10;
        }
        for written in ["Anonymous:", "Locked:"] {
            *is_clean &= kib(written).unwrap_or(0) == 0;
        }
    }
    let clean = found.into_iter().filter(|(.., is_clean)| *is_clean);
    clean
        .map(|(range, resident, _)| (range, resident))
        .collect()
}

/// `55f0-55f8 r-xp 0 fe:00 12 /usr/bin/gshare`: the range, and the rest.
fn mapping(line: &str) -> Option<(Range<usize>, &str)> {
    let (range, rest) = line.split_once(' ')?;
    let (from, to) = range.split_once('-')?;
    let hex = |text| usize::from_str_radix(text, 16).ok();
    Some((hex(from)?..hex(to)?, rest))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_what_nothing_has_written_to_is_given_back() {
        let smaps = "1000-3000 r-xp 00000000 fe:00 12 /bin/x\nRss: 8 kB\nAnonymous: 0 kB\n\
                     3000-4000 r--p 00002000 fe:00 12 /bin/x\nRss: 4 kB\nAnonymous: 4 kB\n\
                     4000-5000 rw-p 00003000 fe:00 12 /bin/x\nRss: 4 kB\nAnonymous: 0 kB\n\
                     5000-6000 r--p 00000000 fe:00 13 /lib/y\nRss: 4 kB\nAnonymous: 0 kB\n\
                     6000-7000 r--s 00000000 fe:00 14 /run/z\nRss: 4 kB\nAnonymous: 0 kB\n\
                     7000-8000 r--p 00000000 00:00 0\nRss: 4 kB\nAnonymous: 0 kB\n\
                     8000-9000 r-xp 00000000 00:00 0 [vdso]\nRss: 4 kB\nAnonymous: 0 kB\n\
                     9000-a000 rw-p 00000000 00:00 0 [heap]\nRss: 4 kB\n";
        assert_eq!(
            clean(smaps),
            [(0x1000..0x3000, 8192), (0x5000..0x6000, 4096)]
        );
    }

    #[test]
    fn the_program_runs_on_and_is_smaller() {
        assert!(give_back_files() > 0);
        // Code and constants are still there, those of libraries too.
        assert_eq!(format!("{:>5}", 42), "   42");
        assert!(fs::metadata("/").is_ok());
        let again = give_back_files();
        assert!(again > 0, "what runs is resident again");
    }
}
