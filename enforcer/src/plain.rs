//! Makes other programs' text safe to show.

/// The text in printable ASCII, cut after `most` characters; each other character becomes a question mark.
pub(crate) fn plain(text: &str, most: usize) -> String {
    let is_plain = |c: char| c.is_ascii_graphic() || c == ' ';
    text.chars()
        .map(|c| if is_plain(c) { c } else { '?' })
        .take(most)
        .collect()
}
