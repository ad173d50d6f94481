//! What comes in by the service's sockets and pipes, in pieces: lines of clients, messages of members, lines of members of
//! 0.1, calls of the arbiter, requests for figures, and what the helper says of notebooks. The service's own files are compiled
//! in where their readers are not public.
#![no_main]
#![allow(
    dead_code,
    reason = "the readers' files have parts that this target does not call"
)]

use gshare_abi::host::Doorbell;
use gshare_proto::MAX_LINE;
use libfuzzer_sys::fuzz_target;

#[path = "../../../src/daemon/older.rs"]
mod older;
#[path = "../../../src/daemon/metrics/request.rs"]
mod request;
#[path = "../../../src/kernel/seen.rs"]
mod seen;
#[path = "../../../src/daemon/server/split.rs"]
mod split;

/// Most calls that are taken in at a time.
const CALLS: u32 = 512;

/// The pieces in which the bytes arrive: by the first byte, which is none of them.
fn pieces(data: &[u8]) -> impl Iterator<Item = &[u8]> {
    let (first, rest) = data
        .split_first()
        .map_or((1, data), |(f, rest)| (usize::from(*f), rest));
    rest.chunks(first.max(1))
}

/// All lines and messages, and the rest; `None` once nothing further is read.
fn lines<'a>(pieces: impl Iterator<Item = &'a [u8]>) -> Option<(Vec<Vec<u8>>, usize)> {
    let mut split = split::Split::default();
    let mut taken = Vec::new();
    for piece in pieces {
        split.push(piece);
        while let Some(whole) = split.whole().ok()? {
            assert!(whole > 0 && whole <= split.len());
            taken.push(split.take(whole));
        }
        assert!(split.len() <= MAX_LINE, "kept without an end");
    }
    Some((taken, split.len()))
}

fuzz_target!(|data: &[u8]| {
    let whole = data.get(1..).unwrap_or_default();
    let at_once = lines(std::iter::once(whole));
    assert_eq!(lines(pieces(data)), at_once, "it depends on the pieces");
    if let Some((taken, rest)) = &at_once {
        assert_eq!(
            taken.iter().map(Vec::len).sum::<usize>() + rest,
            whole.len()
        );
    }
    for line in at_once.iter().flat_map(|(taken, _)| taken) {
        let line = String::from_utf8_lossy(line);
        let _ = older::request(line.trim_end());
        for seen in seen::read(&line).into_iter().flatten() {
            assert!(seen.path.is_none_or(|path| path.chars().count() <= 1024));
        }
    }
    // A request is whole at the same byte however it comes.
    let mut asked = Ok(None);
    let mut arrived = 0;
    for piece in pieces(data) {
        arrived += piece.len();
        asked = request::read(&whole[..arrived]);
        if asked != Ok(None) {
            break;
        }
    }
    if let Ok(Some(asked)) = asked {
        assert_eq!(request::read(&whole[..arrived]), Ok(Some(asked)));
        assert!(!asked.head || whole.starts_with(b"HEAD "));
    }
    let bell = Doorbell::new().expect("a pair");
    for piece in pieces(data).take(1024) {
        let _ = gshare_abi::send_with_fds(bell.member_fd(), piece, &[]);
    }
    assert!(bell.drain() <= CALLS);
});
