//! Placeholders in a program's environment for variables known only later: a claim without a GPU gets them at its
//! start, and they are filled when it has one.
//!
//! The launcher leaves `GSHARE_LATER_NAME=____`; the library writes `NAME=value` over it before the driver is
//! initialised. Nothing moves or grows, so concurrent readers of the environment are safe, and `/proc/PID/environ`
//! shows what the driver found. A placeholder that is never filled is an unknown variable without effect.

/// Start of a placeholder's name.
pub const LATER: &str = "GSHARE_LATER_";
/// Fills the rest of a placeholder behind a shorter value: a variable of its own, because readers of
/// `/proc/PID/environ` take an empty entry for the end.
const REST: &str = "GSHARE_REST=";
const FILLER: u8 = b'_';

/// The placeholder for `name` with a value of at most `longest` bytes.
#[must_use]
pub fn place(name: &str, longest: usize) -> (String, String) {
    let room = longest.max(1);
    let filler = char::from(FILLER).to_string().repeat(room);
    (format!("{LATER}{name}"), filler)
}

/// The bytes for an entry of `room` bytes (without the final NUL); `None` if they do not fit.
#[must_use]
pub fn filled(name: &str, value: &str, room: usize) -> Option<Vec<u8>> {
    let mut text = format!("{name}={value}").into_bytes();
    if text.contains(&0) {
        return None;
    }
    if text.len() < room {
        text.push(0);
        text.extend_from_slice(REST.as_bytes());
    }
    if text.len() > room {
        return None;
    }
    text.resize(room, FILLER);
    Some(text)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_place_takes_every_value_up_to_the_longest_and_no_empty_entry_is_left() {
        for longest in [1, 9, 40] {
            let (name, value) = place("CUDA_X", longest);
            let room = name.len() + 1 + value.len();
            for length in 0..=longest {
                let given = "v".repeat(length);
                let bytes = filled("CUDA_X", &given, room).expect("fits");
                assert_eq!(bytes.len(), room);
                let entries: Vec<&[u8]> = bytes.split(|b| *b == 0).collect();
                assert_eq!(entries[0], format!("CUDA_X={given}").as_bytes());
                assert_eq!(entries.len(), 2, "{length} of {longest}");
                assert!(entries[1].starts_with(REST.as_bytes()));
            }
            assert!(filled("CUDA_X", &"v".repeat(longest + 1), room).is_none());
        }
    }

    #[test]
    fn what_has_the_places_own_length_leaves_nothing_and_a_zero_byte_is_no_value() {
        assert_eq!(filled("A", "b", 3).as_deref(), Some(b"A=b".as_slice()));
        assert_eq!(filled("A", "b", 4), None, "no room for the rest's name");
        assert_eq!(filled("A", "b\0", 40), None);
    }
}
