//! The terminal's background, asked of the terminal itself: OSC 11 of xterm's control sequences, which most emulators
//! answer. Behind it the primary device attributes are asked for, which all answer, so that nobody waits for an answer
//! that does not come.

use std::io::{self, Write};
use std::os::fd::AsFd;
use std::time::{Duration, Instant};

use nix::errno::Errno;
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use nix::unistd::read;

use crate::theme::Background;

const QUESTION: &[u8] = b"\x1b]11;?\x1b\\\x1b[c";

/// A terminal of this machine answers at once.
const NEAR: Duration = Duration::from_millis(100);
/// Over a network, an answer that comes later would be taken for keys.
const FAR: Duration = Duration::from_secs(1);

/// Asks; `None` where the terminal does not say. It must be in raw mode, and nobody else may read from it. What is typed
/// meanwhile is lost.
pub(crate) fn ask(far: bool) -> io::Result<Option<Background>> {
    let mut out = io::stdout().lock();
    out.write_all(QUESTION)?;
    out.flush()?;
    let until = Instant::now() + if far { FAR } else { NEAR };
    let input = io::stdin();
    let mut answer = Vec::new();
    while !is_whole(&answer) && answer.len() < 1024 {
        let left = until.saturating_duration_since(Instant::now());
        let wait = PollTimeout::try_from(left).unwrap_or(PollTimeout::ZERO);
        let mut ready = [PollFd::new(input.as_fd(), PollFlags::POLLIN)];
        match poll(&mut ready, wait) {
            Ok(0) => break,
            Ok(_) => {}
            Err(Errno::EINTR) => continue,
            Err(error) => return Err(error.into()),
        }
        let mut bytes = [0; 256];
        match read(input.as_fd(), &mut bytes) {
            Ok(0) => break,
            Ok(n) => answer.extend_from_slice(&bytes[..n]),
            Err(Errno::EINTR) => {}
            Err(error) => return Err(error.into()),
        }
    }
    Ok(background(&answer))
}

/// The device attributes have come: `ESC [ ? 6 4 ; 1 c`.
fn is_whole(answer: &[u8]) -> bool {
    let text = String::from_utf8_lossy(answer);
    text.split_once("\x1b[?")
        .is_some_and(|(_, rest)| rest.contains('c'))
}

/// `ESC ] 11 ; rgb:ffff/ffff/ffff ESC \`, with one to four digits each, and a fourth part after `rgba:`.
fn background(answer: &[u8]) -> Option<Background> {
    let text = String::from_utf8_lossy(answer);
    let (_, colour) = text.split_once("\x1b]11;")?;
    let colour = colour.split(['\x07', '\x1b']).next()?;
    let (_, parts) = colour.split_once(':')?;
    let part = |part: &str| {
        let most = 16_u32.checked_pow(u32::try_from(part.len()).ok()?)? - 1;
        let value = u32::from_str_radix(part, 16).ok()?;
        (most > 0).then(|| f64::from(value) / f64::from(most))
    };
    let mut parts = parts.split('/').map(part);
    // How bright it looks: Rec. 709, on the values as they are.
    let (r, g, b) = (parts.next()??, parts.next()??, parts.next()??);
    let is_light = 0.2126 * r + 0.7152 * g + 0.0722 * b > 0.5;
    Some(match is_light {
        true => Background::Light,
        false => Background::Dark,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_terminals_answer_is_understood() {
        for (answer, want) in [
            (
                "\x1b]11;rgb:ffff/ffff/dddd\x1b\\\x1b[?64;1;2c",
                Some(Background::Light),
            ),
            ("\x1b]11;rgb:1e/1e/2e\x07\x1b[?62c", Some(Background::Dark)),
            (
                "\x1b]11;rgba:f/f/f/f\x1b\\\x1b[?1;2c",
                Some(Background::Light),
            ),
            ("\x1b[?1;2c", None),
            ("q\x1b[A", None),
            ("\x1b]11;rgb:zz/1/2\x07", None),
            ("\x1b]11;rgb://\x07", None),
            ("\x1b]11;rgb:ffffffffffffffff/1/1\x07", None),
        ] {
            assert_eq!(background(answer.as_bytes()), want, "{answer:?}");
        }
    }

    #[test]
    fn the_attributes_end_the_answer() {
        assert!(is_whole(b"\x1b]11;rgb:0/0/0\x07\x1b[?64;1c"));
        // A colour has a c, too.
        assert!(!is_whole(b"\x1b]11;rgb:cc/cc/cc\x07"));
        assert!(!is_whole(b""));
    }
}
