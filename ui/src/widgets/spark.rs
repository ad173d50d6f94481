//! The last minutes of a percentage, one character a value.

use crate::text::pad;
use crate::theme::Glyphs;

/// The newest values that fit into `cols` columns, at the right; values that are not known are blank.
/// Few columns show the newest part, so that the same moment never changes its height.
pub(crate) fn spark(history: &[Option<f32>], cols: usize, glyphs: &Glyphs) -> String {
    let newest = &history[history.len().saturating_sub(cols)..];
    let mut out = String::new();
    pad(&mut out, cols - newest.len());
    for value in newest {
        out.push_str(match value {
            Some(v) if v.is_finite() => {
                let level = (v.clamp(0.0, 100.0) / 100.0 * 8.0) as usize;
                glyphs.levels[level.min(7)]
            }
            _ => " ",
        });
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::theme::UTF8;

    #[test]
    fn unknown_moments_are_blank_and_the_newest_is_right() {
        let history = [Some(0.0), None, Some(50.0), Some(100.0), Some(f32::NAN)];
        assert_eq!(spark(&history, 7, &UTF8), "  ▁ ▅█ ");
        assert_eq!(spark(&history, 3, &UTF8), "▅█ ");
        assert_eq!(spark(&history, 0, &UTF8), "");
        assert_eq!(spark(&[], 2, &UTF8), "  ");
    }
}
