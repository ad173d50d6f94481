//! Words of other programs as they may be shown.

/// The text in printable ASCII, cut after `most` characters; whatever else stands in it is a question mark each.
pub(crate) fn plain(text: &str, most: usize) -> String {
    let is_plain = |c: char| c.is_ascii_graphic() || c == ' ';
    text.chars()
        .map(|c| if is_plain(c) { c } else { '?' })
        .take(most)
        .collect()
}
