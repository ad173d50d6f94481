//! Format of figures and columns on the command line and on the screen. Only zero is shown as 0, an estimate has a
//! tilde, and every cut has a sign. Durations and sizes with their unit: [`crate::units`].

use gshare_core::Bytes;
use unicode_width::{UnicodeWidthChar, UnicodeWidthStr};

use crate::printable;
use crate::snapshot::Figure;

/// Values not above 0 become 0: an empty sum is -0.0.
fn positive(value: f64) -> f64 {
    if value > 0.0 { value } else { 0.0 }
}

/// A quantity: `15.3`, `141` from a hundred on, `<0.1` for a small one.
fn tenths(value: f64) -> String {
    match value {
        _ if value >= 99.95 => format!("{value:.0}"),
        _ if value > 0.0 && value < 0.05 => "<0.1".to_owned(),
        _ => format!("{:.1}", positive(value)),
    }
}

/// Bytes in GiB, without the unit.
#[must_use]
pub fn gib(bytes: u64) -> String {
    tenths(Bytes(bytes).as_gib())
}

/// GPU seconds in hours, without the unit: `15.3`; two decimals below one hour, as on the first day: `0.05`; 0 is `0`.
#[must_use]
pub fn hours(seconds: f64) -> String {
    match seconds / 3600.0 {
        none if none <= 0.0 => "0".to_owned(),
        few if few < 0.005 => "<0.01".to_owned(),
        few if few < 0.995 => format!("{few:.2}"),
        more => tenths(more),
    }
}

/// A fraction of a GPU: `0.25`, `0.125`, `1.00`, `1.25`; 0 is `0`.
#[must_use]
pub fn share(part: f64) -> String {
    let milli = (part * 1000.0).round().max(0.0) as u64;
    match milli {
        0 => "0".to_owned(),
        1..1000 if milli.is_multiple_of(10) => format!("0.{:02}", milli / 10),
        1..1000 => format!("0.{milli:03}"),
        _ => parts(part),
    }
}

/// A sum of fractions with two decimals: `0.25`, `1.50`, `0.00`.
#[must_use]
pub fn parts(sum: f64) -> String {
    format!("{:.2}", positive(sum))
}

/// `GPU 1`, `GPUs 0,2`.
#[must_use]
pub fn gpus(numbers: impl IntoIterator<Item = impl ToString>) -> String {
    let words: Vec<String> = numbers.into_iter().map(|g| g.to_string()).collect();
    let s = if words.len() == 1 { "" } else { "s" };
    format!("GPU{s} {}", words.join(","))
}

/// A percentage without its sign: `61`, `<1` for a small one; only zero is 0.
#[must_use]
pub fn percent(value: f64) -> String {
    if value > 0.0 && value < 0.5 {
        "<1".to_owned()
    } else {
        format!("{:.0}", positive(value))
    }
}

/// A fraction as a percentage: `61 %`.
#[must_use]
pub fn percent_of(part: f64) -> String {
    percent(part * 100.0) + " %"
}

/// A measured percentage without its sign: `61`, `~61`; `unknown` without a measurement.
#[must_use]
pub fn measured(figure: Option<Figure>, unknown: &str) -> String {
    figure.map_or_else(
        || unknown.to_owned(),
        |f| about(f.estimate, percent(f.value)),
    )
}

/// Time from `now_ms` until `at_ms`, Unix milliseconds: `3m`, rounded up to minutes; the last minute in seconds.
#[must_use]
pub fn until(now_ms: u64, at_ms: u64) -> String {
    let left = match at_ms.saturating_sub(now_ms).div_ceil(1000) {
        left @ 0..60 => left,
        left => left.div_ceil(60) * 60,
    };
    crate::units::show_duration(std::time::Duration::from_secs(left))
}

/// A figure, with a tilde if it is an estimate; `<0.1` needs none.
#[must_use]
pub fn about(estimate: bool, figure: String) -> String {
    match estimate && !figure.starts_with('<') {
        true => format!("~{figure}"),
        false => figure,
    }
}

/// Whether each byte is one column: true for most text, which then needs no tables.
fn is_plain(text: &str) -> bool {
    text.bytes().all(|b| (b' '..=b'~').contains(&b))
}

/// Columns that `text` takes.
#[must_use]
pub fn width(text: &str) -> usize {
    if is_plain(text) {
        return text.len();
    }
    UnicodeWidthStr::width(text)
}

/// Breaks `text` at spaces into lines of `cols` columns. A longer word stays whole, and the last of `lines` lines
/// contains the rest.
#[must_use]
pub fn wrap(text: &str, cols: usize, lines: usize) -> Vec<String> {
    let mut out: Vec<String> = Vec::new();
    if cols == 0 || lines == 0 {
        return out;
    }
    for word in text.split_whitespace() {
        let full = out.len() == lines;
        match out.last_mut() {
            Some(line) if full || width(line) + 1 + width(word) <= cols => {
                line.push(' ');
                line.push_str(word);
            }
            _ => out.push(word.to_owned()),
        }
    }
    out
}

/// `text` in at most `max` columns, without control characters. What does not fit is replaced by `dots`: from the
/// last whole word on, if the words before it fill two thirds of the room, otherwise within a word. A figure at the
/// edge is dropped as a whole, because a truncated one would mislead.
#[must_use]
pub fn cut(text: &str, max: usize, dots: &str) -> String {
    shortened(text, max, dots, |kept| {
        let words = kept.rfind(' ').map_or("", |at| &kept[..=at]);
        match width(words) * 3 >= width(kept) * 2 {
            true => words,
            false => without_figure(kept),
        }
    })
}

/// The same for a row of columns, where the words before the last belong to other cells.
#[must_use]
pub fn cut_row(row: &str, max: usize, dots: &str) -> String {
    shortened(row, max, dots, without_figure)
}

/// `text`, or the part of it that fits and that `readable` keeps, with `dots`.
fn shortened(text: &str, max: usize, dots: &str, readable: fn(&str) -> &str) -> String {
    if text.len() <= max && is_plain(text) {
        return text.to_owned();
    }
    let clean: String = printable(text).collect();
    if width(&clean) <= max {
        return clean;
    }
    let Some(room) = max.checked_sub(width(dots)) else {
        return String::new();
    };
    let mut used = 0;
    let mut kept = String::new();
    for c in clean.chars() {
        used += c.width().unwrap_or(0);
        if used > room {
            break;
        }
        kept.push(c);
    }
    readable(&kept).to_owned() + dots
}

/// `text` without a figure at its end.
fn without_figure(text: &str) -> &str {
    let short = text.trim_end_matches(|c: char| c.is_ascii_digit() || c == '.');
    let figure = text[short.len()..].contains(|c: char| c.is_ascii_digit());
    if figure { short } else { text }
}

/// `text` in exactly `cols` columns, left-aligned.
#[must_use]
pub fn left(text: &str, cols: usize, dots: &str) -> String {
    let mut out = cut(text, cols, dots);
    pad(&mut out, cols);
    out
}

/// `text` in exactly `cols` columns, right-aligned.
#[must_use]
pub fn right(text: &str, cols: usize, dots: &str) -> String {
    let cut = cut(text, cols, dots);
    let mut out = String::with_capacity(cols);
    blanks(&mut out, cols.saturating_sub(width(&cut)));
    out.push_str(&cut);
    out
}

/// Pads with spaces to `cols` columns.
pub fn pad(text: &mut String, cols: usize) {
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_nothing_is_0() {
        assert_eq!(parts(-0.0), "0.00");
        for (bytes, shown) in [
            (0, "0.0"),
            (1 << 20, "<0.1"),
            (6_334_040_000, "5.9"),
            (141 << 30, "141"),
        ] {
            assert_eq!(gib(bytes), shown);
        }
        assert_eq!(
            [0.0, 1.0, 10.0, 60.0, 179.0, 181.0, 3582.0, 3600.0, 5400.0].map(hours),
            [
                "0", "<0.01", "<0.01", "0.02", "0.05", "0.05", "1.0", "1.0", "1.5"
            ]
        );
        assert_eq!(
            (percent(0.0), percent(0.2), percent(99.6)),
            ("0".into(), "<1".into(), "100".into())
        );
    }

    #[test]
    fn what_was_not_measured_is_a_dash() {
        let estimate = Figure {
            value: 61.4,
            source: crate::Source::Shim,
            estimate: true,
        };
        assert_eq!(measured(None, "—"), "—");
        assert_eq!(measured(Some(estimate), "—"), "~61");
    }

    #[test]
    fn less_than_the_least_figure_has_no_tilde() {
        let little = [hours(10.0), gib(1 << 20), percent(0.2)].map(|figure| about(true, figure));
        assert_eq!(little, ["<0.01", "<0.1", "<1"]);
        assert_eq!(about(true, hours(60.0)), "~0.02");
    }

    #[test]
    fn shares_keep_what_was_asked_for() {
        for (part, want) in [
            (0.0, "0"),
            (0.25, "0.25"),
            (0.125, "0.125"),
            (0.5, "0.50"),
            (1.0, "1.00"),
            (1.25, "1.25"),
            (2.0, "2.00"),
        ] {
            assert_eq!(share(part), want);
        }
        assert_eq!(parts(0.0), "0.00");
        assert_eq!(parts(1.5), "1.50");
    }

    #[test]
    fn the_last_minute_is_told_in_seconds() {
        for (at, left) in [(0, "0s"), (19_001, "20s"), (60_001, "2m"), (570_000, "10m")] {
            assert_eq!(until(0, at), left);
        }
    }

    #[test]
    fn plain_text_is_as_wide_as_the_tables_say() {
        let all: String = (' '..='~').collect();
        for text in [
            "",
            " ",
            "train.py",
            "a\tb",
            "~61%",
            "日本語",
            "é",
            "e\u{301}",
            &all,
        ] {
            assert_eq!(width(text), UnicodeWidthStr::width(text), "{text:?}");
        }
        for cols in [0, 3, 8, 31, 32, 33, 100] {
            for text in ["", "7.5", "日本"] {
                let at_right = right(text, cols, "…");
                assert_eq!(width(&at_right), cols, "{at_right:?}");
                assert!(cols < 4 || at_right.ends_with(text));
                let at_left = left(text, cols, "…");
                assert_eq!(width(&at_left), cols, "{at_left:?}");
                assert!(cols < 4 || at_left.starts_with(text));
            }
        }
    }

    #[test]
    fn cutting_shows_that_something_is_missing() {
        assert_eq!(cut("train.py", 8, "…"), "train.py");
        assert_eq!(cut("train.py", 5, "…"), "trai…");
        assert_eq!(cut("train.py", 5, ".."), "tra..");
        assert_eq!(cut("日本語", 4, "…"), "日…");
        assert_eq!(cut("a\u{1b}[2J", 9, "…"), "a [2J");
        assert_eq!(cut("train.py", 0, "…"), "");
        assert_eq!(cut("python 48211", 10, "…"), "python …");
        assert_eq!(cut("2 allocations refused", 18, "…"), "2 allocations …");
        assert_eq!(cut("vllm Llama-3-8B", 12, "…"), "vllm Llama-…");
        assert_eq!(cut("used 11.25 GiB", 9, "…"), "used …");
        assert_eq!(cut("used 11.25 GiB", 11, "…"), "used …");
        assert_eq!(left("日本", 6, "…"), "日本  ");
        assert_eq!(right("7", 3, "…"), "  7");
    }
}
