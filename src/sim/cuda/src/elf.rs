//! Machine code (cubin): the names and resources of its kernels. It is never executed.

use crate::image::KernelFacts;

/// First word of an ELF file.
pub(crate) const MAGIC: u32 = u32::from_le_bytes(*b"\x7fELF");
/// Bytes of the file header.
pub(crate) const HEADER: usize = 64;

/// Bytes of a section header.
const SECTION: usize = 64;
const NOBITS: u32 = 8;

fn u16_at(b: &[u8], at: usize) -> Option<u16> {
    Some(u16::from_le_bytes(*b.get(at..)?.first_chunk()?))
}
fn u32_at(b: &[u8], at: usize) -> Option<u32> {
    Some(u32::from_le_bytes(*b.get(at..)?.first_chunk()?))
}
fn offset_at(b: &[u8], at: usize) -> Option<usize> {
    usize::try_from(u64::from_le_bytes(*b.get(at..)?.first_chunk()?)).ok()
}

/// Length of the file: cubins end with the section headers or the program headers.
pub(crate) fn length(header: &[u8]) -> Option<usize> {
    let table = |offset: usize, size: usize, count: usize| {
        let size = usize::from(u16_at(header, size)?);
        let count = usize::from(u16_at(header, count)?);
        offset_at(header, offset)?.checked_add(size * count)
    };
    Some(table(40, 58, 60)?.max(table(32, 54, 56)?).max(HEADER))
}

struct Section<'a> {
    name: &'a str,
    info: u32,
    size: usize,
    data: &'a [u8],
}

fn sections(b: &[u8]) -> Option<Vec<Section<'_>>> {
    let (start, size) = (offset_at(b, 40)?, usize::from(u16_at(b, 58)?));
    // Overlapping shorter headers would allow as many sections as the file claims, however short the file is.
    if size < SECTION {
        return None;
    }
    let count = usize::from(u16_at(b, 60)?);
    let names = usize::from(u16_at(b, 62)?);
    let header = |i: usize| b.get(start.checked_add(i * size)?..);
    let data = |h: &'_ [u8]| {
        let (from, len) = (offset_at(h, 24)?, offset_at(h, 32)?);
        if u32_at(h, 4)? == NOBITS {
            return Some((&b[..0], len));
        }
        Some((b.get(from..from.checked_add(len)?)?, len))
    };
    let (strings, _) = data(header(names)?)?;
    (0..count)
        .map(|i| {
            let h = header(i)?;
            let name = strings.get(u32_at(h, 0)? as usize..)?;
            let end = name.iter().position(|c| *c == 0)?;
            let (data, size) = data(h)?;
            Some(Section {
                name: std::str::from_utf8(&name[..end]).ok()?,
                info: u32_at(h, 44)?,
                size,
                data,
            })
        })
        .collect()
}

/// The kernels of a cubin: each has a code section named after it.
pub(crate) fn kernels(b: &[u8]) -> Option<Vec<KernelFacts>> {
    let all = sections(b)?;
    let find = |prefix: &str, name: &str| {
        all.iter()
            .find(|s| s.name.strip_prefix(prefix) == Some(name))
    };
    let list = all.iter().filter_map(|s| {
        let name = s.name.strip_prefix(".text.")?;
        let mut facts = KernelFacts {
            name: name.to_owned(),
            params: Vec::new(),
            param_bytes: 0,
            // From the attribute of the code's symbol; older files have the count in the section's upper info byte.
            regs: registers(&all, s.info & 0xff_ffff)
                .unwrap_or(s.info >> 24)
                .max(8),
            shared: find(".nv.shared.", name).map_or(0, |s| s.size as u32),
            local: 0,
            max_threads: 1024,
        };
        // Kernels have parameters in a constant bank; device functions do not.
        find(".nv.constant0.", name)?;
        if let Some(info) = find(".nv.info.", name) {
            attributes(info.data, &mut facts);
        }
        facts.param_bytes = facts.params.iter().map(|p| p.0 + p.1).max().unwrap_or(0);
        Some(facts)
    });
    Some(list.collect())
}

/// Calls `f` with kind and value of each attribute. Only format 4 has a value with its own length; in the others the
/// value is the two bytes of the length.
fn each(data: &[u8], mut f: impl FnMut(u8, &[u8])) {
    let mut at = 0;
    while let (Some(format), Some(kind), Some(size)) =
        (data.get(at), data.get(at + 1), u16_at(data, at + 2))
    {
        at += 4;
        if *format == 4 {
            let end = at + usize::from(size);
            f(*kind, data.get(at..end).unwrap_or(&[]));
            at = end;
        }
    }
}

/// Registers per thread of the code with this symbol (attribute 0x2f of the whole file).
fn registers(all: &[Section<'_>], symbol: u32) -> Option<u32> {
    let mut found = None;
    let info = all.iter().find(|s| s.name == ".nv.info")?;
    each(info.data, |kind, value| {
        if kind == 0x2f && u32_at(value, 0) == Some(symbol) {
            found = u32_at(value, 4);
        }
    });
    found
}

/// Reads the attributes of a kernel: parameters (0x17) and maximum threads (0x05).
fn attributes(data: &[u8], facts: &mut KernelFacts) {
    each(data, |kind, value| match kind {
        0x17 => {
            if let (Some(offset), Some(flags)) = (u16_at(value, 6), u32_at(value, 8)) {
                let param = (usize::from(offset), (flags >> 18) as usize);
                facts.params.push(param);
            }
        }
        0x05 => {
            let dims = (0..3).map(|i| u64::from(u32_at(value, 4 * i).unwrap_or(1).max(1)));
            let product = dims.fold(1, u64::saturating_mul);
            facts.max_threads = product.min(1024) as u32;
        }
        _ => {}
    });
    facts.params.sort_unstable();
}

#[cfg(test)]
mod tests {
    use super::*;

    /// An ELF file with these sections: name, type, info, data; for type 8 only the size of the data counts.
    fn file(sections: &[(&str, u32, u32, &[u8])]) -> Vec<u8> {
        let mut body = Vec::new();
        let mut headers = vec![0; 64];
        let strings: Vec<u8> = sections.iter().fold(vec![0], |mut all, s| {
            all.extend(s.0.bytes().chain([0]));
            all
        });
        let mut all = vec![("", 3, 0, &strings[..])];
        all.extend(sections);
        for (name, kind, info, data) in &all {
            let mut h = vec![0; 64];
            let at = strings
                .windows(name.len() + 1)
                .position(|w| w.strip_suffix(&[0]) == Some(name.as_bytes()));
            h[..4].copy_from_slice(&(at.unwrap_or(0) as u32).to_le_bytes());
            h[4..8].copy_from_slice(&u32::to_le_bytes(*kind));
            h[24..32].copy_from_slice(&(64 + body.len() as u64).to_le_bytes());
            h[32..40].copy_from_slice(&(data.len() as u64).to_le_bytes());
            h[44..48].copy_from_slice(&u32::to_le_bytes(*info));
            headers.extend(h);
            if *kind != NOBITS {
                body.extend_from_slice(data);
            }
        }
        let mut whole = vec![0; 64];
        whole[..4].copy_from_slice(b"\x7fELF");
        whole[40..48].copy_from_slice(&(64 + body.len() as u64).to_le_bytes());
        whole[58..60].copy_from_slice(&64u16.to_le_bytes());
        whole[60..62].copy_from_slice(&(all.len() as u16 + 1).to_le_bytes());
        whole[62..64].copy_from_slice(&1u16.to_le_bytes());
        whole.extend(body);
        whole.extend(headers);
        whole
    }

    #[test]
    fn kernels_of_machine_code() {
        let registers = [4, 0x2f, 8, 0, 7, 0, 0, 0, 40, 0, 0, 0];
        let param = |offset: u8, size: u8| {
            let flags = (u32::from(size) << 18 | 0x1f000).to_le_bytes();
            let mut p = vec![4, 0x17, 12, 0, 0, 0, 0, 0, 0, 0, offset, 0];
            p.extend(flags);
            p
        };
        let mut info = vec![1, 0x03, 0, 0];
        info.extend(param(8, 4));
        info.extend(param(0, 8));
        info.extend([4, 5, 12, 0, 0, 1, 0, 0, 2, 0, 0, 0, 1, 0, 0, 0]);
        let whole = file(&[
            (".nv.info", 1, 0, &registers),
            (".text.k", 1, 7, &[0; 16]),
            (".nv.info.k", 1, 0, &info),
            (".nv.constant0.k", 1, 0, &[0; 8]),
            (".nv.shared.k", NOBITS, 0, &[0; 100]),
            (".text.old", 1, 33 << 24, &[0; 16]),
            (".nv.constant0.old", 1, 0, &[0; 8]),
            (".text.device_function", 1, 0, &[0; 16]),
        ]);
        assert_eq!(length(&whole[..HEADER]), Some(whole.len()));
        let found = kernels(&whole).expect("kernels");
        assert_eq!(found.len(), 2);
        let k = &found[0];
        assert_eq!((k.name.as_str(), k.regs, k.shared), ("k", 40, 100));
        assert_eq!((&k.params[..], k.param_bytes), (&[(0, 8), (8, 4)][..], 12));
        assert_eq!(k.max_threads, 512);
        assert_eq!((found[1].name.as_str(), found[1].regs), ("old", 33));
        for cut in 0..whole.len() - 64 {
            assert!(kernels(&whole[..cut]).is_none(), "cut at {cut}");
        }
    }

    /// Regression test: a file of 262 bytes took seventeen minutes.
    #[test]
    fn a_header_of_a_section_has_its_whole_length() {
        let mut whole = file(&[(".text.k", 1, 0, b"code"), (".nv.constant0.k", 1, 0, b"")]);
        assert_eq!(kernels(&whole).map(|k| k.len()), Some(1));
        // All headers are the second one.
        let table = offset_at(&whole, 40).unwrap() as u64 + 64;
        whole[40..48].copy_from_slice(&table.to_le_bytes());
        whole[58..60].copy_from_slice(&0_u16.to_le_bytes());
        whole[60..62].copy_from_slice(&u16::MAX.to_le_bytes());
        assert!(kernels(&whole).is_none());
    }
}
