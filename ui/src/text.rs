//! Figures and words on the screen: [`gshare_proto::figures`], and times in the user's time zone.

use std::time::Duration;

use gshare_proto::figures;
use gshare_proto::units::show_duration;

pub(crate) use gshare_proto::figures::{
    about, cut, gib, hours, left, measured, parts, percent, right, share, until, width,
};

/// Breaks `text` at spaces into at most `lines` lines of `cols` columns; what does not fit is cut.
pub(crate) fn wrap(text: &str, cols: usize, lines: usize, dots: &str) -> Vec<String> {
    let rows = figures::wrap(text, cols, lines).into_iter();
    rows.map(|row| cut(&row, cols, dots)).collect()
}

/// A sentence shortened to `cols` columns: first without its parentheses, then without its last clauses.
pub(crate) fn brief(text: &str, cols: usize, dots: &str) -> String {
    if width(text) <= cols {
        return text.to_owned();
    }
    let plain = match (text.find(" ("), text.find(')')) {
        (Some(from), Some(to)) if from < to => format!("{}{}", &text[..from], &text[to + 1..]),
        _ => text.to_owned(),
    };
    let ends = ["; ", ": ", " in ", " by "].map(|end| plain.match_indices(end));
    let ends = ends.into_iter().flatten().map(|(at, _)| at);
    let least = BRIEF.min(cols / 2);
    let fits = |at: &usize| (least..=cols).contains(&width(&plain[..*at]));
    match ends.chain([plain.len()]).filter(fits).max() {
        Some(end) => plain[..end].to_owned(),
        None => cut(&plain, cols, dots),
    }
}

/// A shorter part of a sentence is useless, if there is room for twice as much.
const BRIEF: usize = 16;

/// A period that ended longer ago is over, in milliseconds: the last week is requested every five minutes.
const OVER_MS: u64 = 600_000;

/// The first day of 1970 was a Thursday.
const DAYS: [&str; 7] = ["Thu ", "Fri ", "Sat ", "Sun ", "Mon ", "Tue ", "Wed "];

/// The wall clock in the user's time zone.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Clock {
    /// Unix milliseconds.
    pub(crate) now_ms: u64,
    /// Seconds east of UTC.
    pub(crate) offset_s: i32,
}

impl Clock {
    /// The day since 1970, and the second of that day.
    fn local(self, ms: u64) -> (u64, u64) {
        let s = (ms / 1000).saturating_add_signed(self.offset_s.into());
        (s / 86_400, s % 86_400)
    }

    /// `14:32:07`.
    pub(crate) fn time(self, ms: u64) -> String {
        let (_, s) = self.local(ms);
        format!("{:02}:{:02}:{:02}", s / 3600, s / 60 % 60, s % 60)
    }

    /// `16:05`, or `Mon 16:05` if it is not today.
    pub(crate) fn short_time(self, ms: u64) -> String {
        let ((day, s), (today, _)) = (self.local(ms), self.local(self.now_ms));
        let name = match day == today {
            true => "",
            false => DAYS[(day % 7) as usize],
        };
        format!("{name}{:02}:{:02}", s / 3600, s / 60 % 60)
    }

    /// Times at round hours (or days) in this many columns; now is at one end.
    pub(crate) fn axis(self, (from, to): (u64, u64), cols: usize) -> String {
        let length = to.saturating_sub(from).max(1);
        let minutes = [1, 2, 5, 10, 30, 60, 180, 360, 720, 1440, 2880];
        let far = |m: &u64| m * 60_000 * cols as u64 / length >= 12;
        let step = minutes.into_iter().find(far).unwrap_or(2880) * 60_000;
        let east = i64::from(self.offset_s) * 1000;
        let local = i64::try_from(from).unwrap_or(0) + east;
        let first = (local.max(0) as u64).div_ceil(step) * step;
        let at = |n: u64| (first + n * step).saturating_add_signed(-east);
        let ahead = from >= self.now_ms;
        let mut out = String::from(if from == self.now_ms { "now" } else { "" });
        for ms in (0..40).map(at).take_while(|ms| *ms < to) {
            let text = self.short_time(ms);
            let text = text.strip_suffix(" 00:00").unwrap_or(&text);
            let column = (ms.saturating_sub(from) * cols as u64 / length) as usize;
            let end = if ahead { 0 } else { 5 };
            if column + width(text) + end <= cols && (column > width(&out) || out.is_empty()) {
                out = format!("{out:column$}{text}");
            }
        }
        let end = match self.now_ms.saturating_sub(to) > OVER_MS {
            true => self.short_time(to),
            false => "now".to_owned(),
        };
        if ahead {
            return out;
        }
        let last = cols.saturating_sub(width(&end));
        let kept = out.get(..last.min(out.len())).unwrap_or("");
        format!("{kept:last$}{end}")
    }

    /// The time since `ms`: `3m`.
    pub(crate) fn since(self, ms: u64) -> String {
        show_duration(Duration::from_millis(self.now_ms.saturating_sub(ms)))
    }
}

/// `22m`, from seconds.
pub(crate) fn seconds(s: u64) -> String {
    show_duration(Duration::from_secs(s))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_sentence_without_room_loses_whole_parts() {
        let cases = [
            (
                "needs 23.5 GiB on one GPU; c20 ends 16:05",
                "needs 23.5 GiB on one GPU",
            ),
            (
                "c6 (vis, 4.4 GiB) moves from GPU 3 in 3s",
                "c6 moves from GPU 3 in 3s",
            ),
            (
                "c4 throttled 62 % by c3, and some more of it",
                "c4 throttled 62 %",
            ),
            (
                "a sentence that has no parts and no end",
                "a sentence that has no …",
            ),
        ];
        for (text, wanted) in cases {
            assert_eq!(brief(text, 27, "…"), wanted);
            assert_eq!(brief(text, 60, "…"), text);
        }
    }

    #[test]
    fn wrapping_breaks_at_words_and_cuts_the_last_line() {
        assert_eq!(wrap("one two three", 7, 2, "…"), ["one two", "three"]);
        assert_eq!(
            wrap("one two three four", 7, 2, "…"),
            ["one two", "three …"]
        );
        assert_eq!(wrap("enormous", 4, 3, "…"), ["eno…"]);
        assert!(wrap("x", 0, 3, "…").is_empty());
    }

    #[test]
    fn the_clock_is_local() {
        let clock = Clock {
            now_ms: 1_700_000_180_000,
            offset_s: 3600,
        };
        assert_eq!(clock.time(1_700_000_000_000), "23:13:20");
        assert_eq!(clock.since(1_700_000_000_000), "3m");
        assert_eq!(clock.since(u64::MAX), "0s");
        assert_eq!(clock.short_time(1_700_000_000_000), "23:13");
        assert_eq!(clock.short_time(1_700_010_000_000), "Wed 02:00");
        // The record of a new service is soon slightly old, and an hour ago is over.
        let now = clock.now_ms;
        assert!(
            clock
                .axis((now - 70_000, now - 40_000), 40)
                .ends_with("now")
        );
        let before = clock.axis((now - 7_200_000, now - 3_600_000), 40);
        assert!(before.ends_with("22:16"), "{before}");
    }
}
