//! Figures and words as the screen writes them. A figure that is not known is a dash, an estimate has
//! a tilde, and nothing is cut without an ellipsis.

use chrono::{DateTime, FixedOffset};
use gshare_proto::Figure;
use ratatui::text::Span;
use unicode_width::{UnicodeWidthChar, UnicodeWidthStr};

use crate::theme::Glyphs;

/// Whether each byte is a column: that is most of what is shown, and needs no tables.
fn is_plain(text: &str) -> bool {
    text.bytes().all(|b| (b' '..=b'~').contains(&b))
}

/// Columns that `text` takes.
pub(crate) fn width(text: &str) -> usize {
    if is_plain(text) {
        return text.len();
    }
    UnicodeWidthStr::width(text)
}

/// `text` in at most `max` columns; what does not fit is replaced by an ellipsis, and a figure at the
/// edge goes as a whole: nobody could tell whether it had lost digits. Control characters (a command line may hold anything) become spaces.
pub(crate) fn cut(text: &str, max: usize, glyphs: &Glyphs) -> String {
    if text.len() <= max && is_plain(text) {
        return text.to_owned();
    }
    let clean: String = text
        .chars()
        .map(|c| if c.is_control() { ' ' } else { c })
        .collect();
    if width(&clean) <= max {
        return clean;
    }
    let dots = glyphs.ellipsis;
    let Some(room) = max.checked_sub(width(dots)) else {
        return String::new();
    };
    let mut used = 0;
    let mut out = String::new();
    for c in clean.chars() {
        let w = c.width().unwrap_or(0);
        if used + w > room {
            out.truncate(without_figure(&out).len());
            break;
        }
        used += w;
        out.push(c);
    }
    out.push_str(dots);
    out
}

/// `text` without the figure at its end.
fn without_figure(text: &str) -> &str {
    let short = text.trim_end_matches(|c: char| c.is_ascii_digit() || c == '.');
    let figure = text[short.len()..].contains(|c: char| c.is_ascii_digit());
    if figure { short } else { text }
}

/// `text` in exactly `cols` columns, at the left.
pub(crate) fn left(text: &str, cols: usize, glyphs: &Glyphs) -> String {
    let mut out = cut(text, cols, glyphs);
    pad(&mut out, cols);
    out
}

/// `text` in exactly `cols` columns, at the right.
pub(crate) fn right(text: &str, cols: usize, glyphs: &Glyphs) -> String {
    let cut = cut(text, cols, glyphs);
    let gap = cols.saturating_sub(width(&cut));
    if gap == 0 {
        return cut;
    }
    let mut out = String::with_capacity(gap + cut.len());
    blanks(&mut out, gap);
    out.push_str(&cut);
    out
}

/// Fills up with spaces to `cols` columns.
pub(crate) fn pad(text: &mut String, cols: usize) {
    let gap = cols.saturating_sub(width(text));
    blanks(text, gap);
}

/// Adds `n` spaces.
fn blanks(text: &mut String, mut n: usize) {
    const SOME: &str = "                                ";
    text.reserve(n);
    while n > 0 {
        let part = &SOME[..n.min(SOME.len())];
        text.push_str(part);
        n -= part.len();
    }
}

/// Breaks `text` at spaces into at most `lines` lines of `cols` columns; the last one is cut.
pub(crate) fn wrap(text: &str, cols: usize, lines: usize, glyphs: &Glyphs) -> Vec<String> {
    let mut out: Vec<String> = Vec::new();
    if cols == 0 || lines == 0 {
        return out;
    }
    let mut words = text.split_whitespace().peekable();
    while words.peek().is_some() {
        if out.len() + 1 == lines {
            let rest: Vec<&str> = words.by_ref().collect();
            out.push(cut(&rest.join(" "), cols, glyphs));
            break;
        }
        let mut line = String::new();
        while let Some(word) = words.peek() {
            let space = usize::from(!line.is_empty());
            if !line.is_empty() && width(&line) + space + width(word) > cols {
                break;
            }
            if space == 1 {
                line.push(' ');
            }
            line.push_str(word);
            words.next();
        }
        out.push(cut(&line, cols, glyphs));
    }
    out
}

/// Columns of the given spans together.
pub(crate) fn span_width(spans: &[Span<'_>]) -> usize {
    spans.iter().map(|span| width(&span.content)).sum()
}

/// Bytes in GiB: `15.3`, and `141` from a hundred on.
pub(crate) fn gib(bytes: u64) -> String {
    let g = bytes as f64 / (1u64 << 30) as f64;
    if g >= 99.95 {
        format!("{g:.0}")
    } else if bytes > 0 && g < 0.05 {
        "<0.1".to_owned()
    } else {
        format!("{g:.1}")
    }
}

/// [`gib`], or a dash when it is not known.
pub(crate) fn gib_or(bytes: Option<u64>, glyphs: &Glyphs) -> String {
    bytes.map_or_else(|| glyphs.dash.to_owned(), gib)
}

/// A part of a GPU: `.25`, `.125`, `1.0`, `1.25`; 0 is `0`.
pub(crate) fn share(part: f64) -> String {
    let milli = (part * 1000.0).round().max(0.0) as u64;
    match milli {
        0 => "0".to_owned(),
        1..1000 if milli.is_multiple_of(10) => format!(".{:02}", milli / 10),
        1..1000 => format!(".{milli:03}"),
        _ if milli.is_multiple_of(100) => format!("{:.1}", part),
        _ => format!("{:.2}", part),
    }
}

/// A sum of parts with two decimals: `.25`, `1.50`, `.00`.
pub(crate) fn parts(sum: f64) -> String {
    let text = format!("{:.2}", sum.max(0.0));
    text.strip_prefix('0').map(str::to_owned).unwrap_or(text)
}

/// A percentage without its sign: `61`, `<1` for a little, never 0 for something.
pub(crate) fn percent(value: f64) -> String {
    if value > 0.0 && value < 0.5 {
        "<1".to_owned()
    } else {
        format!("{:.0}", value.max(0.0))
    }
}

/// A measured percentage: `61`, `~61`, or a dash.
pub(crate) fn figure(figure: Option<Figure>, glyphs: &Glyphs) -> String {
    match figure {
        None => glyphs.dash.to_owned(),
        Some(f) if f.estimate => format!("~{}", percent(f.value)),
        Some(f) => percent(f.value),
    }
}

/// [`figure`] with `%`; the dash stays bare.
pub(crate) fn figure_percent(value: Option<Figure>, glyphs: &Glyphs) -> String {
    match value {
        None => glyphs.dash.to_owned(),
        Some(_) => format!("{}%", figure(value, glyphs)),
    }
}

/// The wall clock in the user's time zone.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Clock {
    /// Unix milliseconds.
    pub(crate) now_ms: u64,
    /// Seconds east of UTC.
    pub(crate) offset_s: i32,
}

impl Clock {
    /// `14:32:07`.
    pub(crate) fn time(self, ms: u64) -> String {
        let zone = FixedOffset::east_opt(self.offset_s);
        let at = i64::try_from(ms)
            .ok()
            .and_then(DateTime::from_timestamp_millis);
        match (zone, at) {
            (Some(zone), Some(at)) => at.with_timezone(&zone).format("%H:%M:%S").to_string(),
            _ => "--:--:--".to_owned(),
        }
    }

    /// `16:05`, and `Mon 16:05` when it is not today.
    pub(crate) fn short_time(self, ms: u64) -> String {
        let zone = FixedOffset::east_opt(self.offset_s);
        let local = |ms: u64| {
            let at = i64::try_from(ms).ok();
            let at = at.and_then(DateTime::from_timestamp_millis)?;
            Some(at.with_timezone(&zone?))
        };
        match (local(ms), local(self.now_ms)) {
            (Some(at), Some(now)) if at.date_naive() == now.date_naive() => {
                at.format("%H:%M").to_string()
            }
            (Some(at), _) => at.format("%a %H:%M").to_string(),
            (None, _) => "--:--".to_owned(),
        }
    }

    /// How long until `ms`: `3m`, rounded up to minutes; the last minute in seconds.
    pub(crate) fn until(self, ms: u64) -> String {
        let left = match ms.saturating_sub(self.now_ms).div_ceil(1000) {
            left @ 0..60 => left,
            left => left.div_ceil(60) * 60,
        };
        gshare_proto::units::show_duration(std::time::Duration::from_secs(left))
    }

    /// How long ago `ms` was: `3m`.
    pub(crate) fn since(self, ms: u64) -> String {
        let gone = std::time::Duration::from_millis(self.now_ms.saturating_sub(ms));
        gshare_proto::units::show_duration(gone)
    }
}

/// `22m`, of a time in seconds.
pub(crate) fn seconds(s: u64) -> String {
    gshare_proto::units::show_duration(std::time::Duration::from_secs(s))
}

#[cfg(test)]
mod tests {
    use gshare_proto::Source;

    use super::*;
    use crate::theme::{ASCII, UTF8};

    #[test]
    fn unknown_is_a_dash_and_little_is_not_nothing() {
        assert_eq!(figure(None, &UTF8), "—");
        assert_eq!(figure(None, &ASCII), "-");
        assert_eq!(figure_percent(None, &UTF8), "—");
        assert_eq!(gib_or(None, &UTF8), "—");
        assert_eq!(percent(0.2), "<1");
        assert_eq!(gib(1 << 20), "<0.1");
        assert_eq!(gib(0), "0.0");
        let estimate = Figure {
            value: 61.4,
            source: Source::Shim,
            estimate: true,
        };
        assert_eq!(figure_percent(Some(estimate), &UTF8), "~61%");
    }

    #[test]
    fn shares_keep_what_was_asked_for() {
        for (part, want) in [
            (0.0, "0"),
            (0.25, ".25"),
            (0.125, ".125"),
            (0.5, ".50"),
            (1.0, "1.0"),
            (1.25, "1.25"),
            (2.0, "2.0"),
        ] {
            assert_eq!(share(part), want);
        }
        assert_eq!(parts(0.0), ".00");
        assert_eq!(parts(1.5), "1.50");
    }

    #[test]
    fn plain_text_is_as_wide_as_the_tables_say() {
        let printable: String = (' '..='~').collect();
        for text in [
            "",
            " ",
            "train.py",
            "a\tb",
            "~61%",
            "日本語",
            "é",
            "e\u{301}",
            &printable,
        ] {
            assert_eq!(width(text), UnicodeWidthStr::width(text), "{text:?}");
        }
        for cols in [0, 3, 8, 31, 32, 33, 100] {
            for text in ["", "7.5", "日本"] {
                let at_right = right(text, cols, &UTF8);
                assert_eq!(width(&at_right), cols, "{at_right:?}");
                assert!(cols < 4 || at_right.ends_with(text));
                let at_left = left(text, cols, &UTF8);
                assert_eq!(width(&at_left), cols, "{at_left:?}");
                assert!(cols < 4 || at_left.starts_with(text));
            }
        }
    }

    #[test]
    fn cutting_shows_that_something_is_missing() {
        assert_eq!(cut("train.py", 8, &UTF8), "train.py");
        assert_eq!(cut("train.py", 5, &UTF8), "trai…");
        assert_eq!(cut("train.py", 5, &ASCII), "tra..");
        assert_eq!(cut("日本語", 4, &UTF8), "日…");
        assert_eq!(cut("a\u{1b}[2J", 9, &UTF8), "a [2J");
        assert_eq!(cut("train.py", 0, &UTF8), "");
        assert_eq!(cut("python 48211", 10, &UTF8), "python …");
        assert_eq!(cut("used 11.25 GiB", 9, &UTF8), "used …");
        assert_eq!(cut("used 11.25 GiB", 11, &UTF8), "used …");
        assert_eq!(left("日本", 6, &UTF8), "日本  ");
        assert_eq!(right("7", 3, &UTF8), "  7");
    }

    #[test]
    fn wrapping_breaks_at_words_and_cuts_the_last_line() {
        assert_eq!(wrap("one two three", 7, 2, &UTF8), ["one two", "three"]);
        assert_eq!(
            wrap("one two three four", 7, 2, &UTF8),
            ["one two", "three …"]
        );
        assert_eq!(wrap("enormous", 4, 3, &UTF8), ["eno…"]);
        assert!(wrap("x", 0, 3, &UTF8).is_empty());
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
        assert_eq!(clock.until(1_700_000_200_000), "20s");
        assert_eq!(clock.until(1_700_000_250_000), "2m");
        assert_eq!(clock.until(1_700_000_000_000), "0s");
    }
}
