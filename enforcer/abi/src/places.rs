//! Places in a program's environment for variables that are known only later: what a claim without a GPU is started
//! with, and what stands there when it has one.
//!
//! The launcher leaves `GSHARE_LATER_NAME=____`; the library in the program writes `NAME=value` over it before the
//! driver is initialised. Nothing moves and nothing grows, so no other thread that reads the environment meanwhile is
//! disturbed, and `/proc/PID/environ` shows what the driver found. A place that is never filled is a variable that
//! nobody knows.

/// Start of a place's name.
pub const LATER: &str = "GSHARE_LATER_";
/// What stands behind a value that is shorter than its place: a variable of its own, because readers of
/// `/proc/PID/environ` take an empty entry for the end.
const REST: &str = "GSHARE_REST=";
const FILLER: u8 = b'_';

/// The variable that keeps a place for `name` with a value of at most `longest` bytes.
#[must_use]
pub fn place(name: &str, longest: usize) -> (String, String) {
    let room = longest.max(1);
    let filler = char::from(FILLER).to_string().repeat(room);
    (format!("{LATER}{name}"), filler)
}

/// The bytes that take the place of an entry of `room` bytes (without the NUL at its end); `None` if they do not
/// fit.
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
