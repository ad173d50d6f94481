//! Minimal parsing of a scraper's HTTP request: its first line.

/// Maximum bytes of a request.
const LONGEST: usize = 8 * 1024;

/// The requested page.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Asked {
    Metrics,
    /// The page that links to the metrics.
    Root,
    /// Unknown.
    Other,
    /// Neither `GET` nor `HEAD`.
    Method,
}

/// A complete request.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Request {
    pub(super) asked: Asked,
    /// The answer has only a head.
    pub(super) head: bool,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct TooLong;

/// Parses the received bytes; `None` while more is to come.
pub(super) fn read(bytes: &[u8]) -> Result<Option<Request>, TooLong> {
    if !bytes.windows(4).any(|w| w == b"\r\n\r\n") {
        let fits = bytes.len() <= LONGEST;
        return fits.then_some(None).ok_or(TooLong);
    }
    let line = bytes.split(|b| *b == b'\r').next().unwrap_or_default();
    let mut words = line.split(|b| *b == b' ');
    let method = words.next().unwrap_or_default();
    let target = words.next().unwrap_or_default();
    let path = target.split(|b| *b == b'?').next().unwrap_or_default();
    let head = method == b"HEAD";
    let asked = match path {
        _ if method != b"GET" && !head => Asked::Method,
        b"/metrics" => Asked::Metrics,
        b"/" => Asked::Root,
        _ => Asked::Other,
    };
    Ok(Some(Request { asked, head }))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_first_line_is_what_is_asked() {
        let of = |text: &str| read(text.as_bytes()).map(|r| r.map(|r| (r.asked, r.head)));
        let metrics = of("GET /metrics?x=1 HTTP/1.1\r\nHost: a\r\n\r\n");
        assert_eq!(metrics, Ok(Some((Asked::Metrics, false))));
        assert_eq!(of("HEAD / HTTP/1.1\r\n\r\n"), Ok(Some((Asked::Root, true))));
        assert_eq!(of("GET /x\r\n\r\n"), Ok(Some((Asked::Other, false))));
        assert_eq!(
            of("POST / HTTP/1.1\r\n\r\n"),
            Ok(Some((Asked::Method, false)))
        );
        assert_eq!(of("\r\n\r\n"), Ok(Some((Asked::Method, false))));
        assert_eq!(of("GET /metrics HTTP/1.1\r\n"), Ok(None));
        assert_eq!(of(&"x".repeat(LONGEST + 1)), Err(TooLong));
    }
}
