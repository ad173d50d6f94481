//! Writes paths into placeholders of the proxy. A file that does not contain each placeholder exactly once is refused,
//! so that a change of the compiler cannot go unnoticed.

use std::{
    collections::BTreeSet,
    io::{self, BufRead},
};

use object::{
    Object, ObjectSection, ObjectSymbol,
    elf::{SHN_UNDEF, Sym64},
};

/// Start of the dependency's name, and its whole length in bytes.
const NEEDED: (&[u8], usize) = (b"/gshare-real-libcuda-placeholder", 255);
/// Marks in front of the texts that the proxy reads, and the room behind each in bytes.
const REAL_PATH: (&[u8], usize) = (b"\x01gshare:real-libcuda-path:\x01", 256);
const SOCKET_PATH: (&[u8], usize) = (b"\x01gshare:service-socket-path:\x01", 256);
/// Where the proxy of libcuda reads its mode; the other proxy has no mode.
const MODE: (&[u8], usize) = (b"\x01gshare:shim-mode:\x01", 256);

/// Maximum length of a socket path, in bytes.
const SOCKET_LIMIT: usize = 107;

/// Whether a file's bytes are those of a proxy, staged or not.
pub(crate) fn is_proxy(image: &[u8]) -> bool {
    only(image, REAL_PATH.0).is_ok() && only(image, SOCKET_PATH.0).is_ok()
}

/// The proxy's bytes with the absolute paths of the real driver and the socket.
pub(crate) fn patched(image: &[u8], real: &[u8], socket: &[u8]) -> io::Result<Vec<u8>> {
    check("path of the real libcuda", real, NEEDED.1)?;
    check("path of the service's socket", socket, SOCKET_LIMIT)?;
    let mut image = image.to_vec();
    let at = only(&image, NEEDED.0)?;
    let end = at + NEEDED.1;
    let whole = image.get(at + NEEDED.0.len()..end);
    if whole.is_none_or(|rest| rest.iter().any(|&byte| byte != b'/')) {
        return Err(other(
            "the library's placeholder is not as long as expected",
        ));
    }
    fill(&mut image[at..end], real);
    for (place, text) in [(REAL_PATH, real), (SOCKET_PATH, socket)] {
        write(&mut image, place, text)?;
    }
    Ok(image)
}

/// Changes the mode of a proxy of libcuda that was staged with another.
pub(crate) fn stamp(image: &mut [u8], mode: &[u8]) -> io::Result<()> {
    write(image, MODE, mode)
}

/// Removes the functions that `driver` lacks from a proxy, so that looking them up fails as without the proxy. Programs
/// test for features by name.
pub(crate) fn leave_out(image: &mut [u8], driver: &BTreeSet<String>) -> io::Result<()> {
    let odd = |error: object::Error| other(&format!("the library cannot be read: {error}"));
    let file = object::File::parse(&*image).map_err(odd)?;
    let table = file
        .section_by_name(".dynsym")
        .and_then(|section| section.file_range());
    let (start, bytes) = table.ok_or_else(|| other("the library has no table of symbols"))?;
    let lacking: Vec<usize> = file
        .dynamic_symbols()
        .filter(|symbol| symbol.is_definition() && symbol.is_global())
        .filter(|symbol| {
            let name = symbol.name().unwrap_or_default();
            let drivers = name.starts_with("cu") || name.starts_with("nvml");
            drivers && !driver.contains(name)
        })
        .map(|symbol| symbol.index().0)
        .collect();
    let table = image
        .get_mut(start as usize..(start + bytes) as usize)
        .ok_or_else(|| other("the library's table of symbols is cut off"))?;
    let symbols = object::slice_from_all_bytes_mut::<Sym64<object::LittleEndian>>(table)
        .map_err(|()| other("the library's table of symbols has an odd length"))?;
    for at in lacking {
        // The loader skips symbols without a value; the proxy itself does not refer to them by name.
        symbols[at].st_value.set(object::LittleEndian, 0);
        symbols[at].st_shndx.set(object::LittleEndian, SHN_UNDEF);
    }
    Ok(())
}

fn write(image: &mut [u8], (mark, room): (&[u8], usize), text: &[u8]) -> io::Result<()> {
    let at = only(image, mark)? + mark.len();
    let place = image
        .get_mut(at..at + room)
        .ok_or_else(|| other("the library ends inside a placeholder"))?;
    fill(place, text);
    Ok(())
}

fn fill(place: &mut [u8], text: &[u8]) {
    place.fill(0);
    place[..text.len()].copy_from_slice(text);
}

fn check(what: &str, path: &[u8], limit: usize) -> io::Result<()> {
    let shown = String::from_utf8_lossy(path);
    let problem = if path.first() != Some(&b'/') {
        "is not absolute".to_owned()
    } else if path.len() > limit {
        format!("is longer than {limit} bytes")
    } else if path.contains(&0) {
        "contains a NUL".to_owned()
    } else if path.contains(&b'$') {
        // The dynamic loader would expand it.
        "contains a `$`".to_owned()
    } else {
        return Ok(());
    };
    Err(io::Error::new(
        io::ErrorKind::InvalidInput,
        format!("{what} `{shown}` {problem}"),
    ))
}

/// Position of the mark, which must occur once. The search uses libc's search for its first byte: every start of the
/// service searches megabytes.
fn only(image: &[u8], mark: &[u8]) -> io::Result<usize> {
    let (mut rest, mut found) = (image, None);
    while !rest.is_empty() {
        rest.skip_until(mark[0])?;
        let at = image.len() - rest.len() - 1;
        if image[at..].starts_with(mark) && found.replace(at).is_some() {
            return Err(other("the library has a placeholder twice"));
        }
    }
    found.ok_or_else(|| other("the library lacks a placeholder"))
}

fn other(what: &str) -> io::Error {
    io::Error::other(what)
}

#[cfg(test)]
#[cfg(feature = "carried")]
mod tests {
    use super::*;
    use crate::carried::SHIM;

    fn refusal(real: &str, socket: &str) -> String {
        patched(SHIM, real.as_bytes(), socket.as_bytes())
            .unwrap_err()
            .to_string()
    }

    #[test]
    fn paths_that_do_not_fit_are_refused_by_name() {
        let long = format!("/{}", "x".repeat(255));
        assert!(refusal(&long, "/s").contains("libcuda"));
        assert!(refusal("/r", &long[..109]).contains("socket"));
        assert!(refusal("lib.so", "/s").contains("not absolute"));
        assert!(refusal("/opt/$LIB/x", "/s").contains('$'));
    }

    #[test]
    fn the_longest_paths_fit() {
        let real = format!("/{}", "r".repeat(254));
        let socket = format!("/{}", "s".repeat(106));
        let image = patched(SHIM, real.as_bytes(), socket.as_bytes()).unwrap();
        assert_eq!(image.len(), SHIM.len());
        let count = |text: &str| {
            image
                .windows(text.len())
                .filter(|window| *window == text.as_bytes())
                .count()
        };
        assert_eq!((count(&real), count(&socket)), (2, 1));
    }

    #[test]
    fn an_image_without_or_with_two_places_is_refused() {
        assert!(patched(b"ELF", b"/r", b"/s").is_err());
        let twice = [SHIM, SHIM].concat();
        assert!(patched(&twice, b"/r", b"/s").is_err());
    }
}
