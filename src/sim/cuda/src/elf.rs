//! Machine code (cubin): which kernels it has, and what they take. It is never executed.

use crate::image::KernelFacts;

/// First word of an ELF file.
pub(crate) const MAGIC: u32 = u32::from_le_bytes(*b"\x7fELF");
/// Bytes of its header.
pub(crate) const HEADER: usize = 64;

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

/// Bytes of the file: the section headers come last in cubins, or the program headers do.
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

/// The kernels of a cubin: each has a section of code named after it.
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
            // The register count is in the upper byte of the section's info.
            regs: (s.info >> 24).max(8),
            shared: find(".nv.shared.", name).map_or(0, |s| s.size as u32),
            local: 0,
            max_threads: 1024,
        };
        // Only kernels, not device functions, have parameters in a constant bank.
        let constant = find(".nv.constant0.", name)?;
        if let Some(info) = find(".nv.info.", name) {
            attributes(info.data, &mut facts);
        }
        facts.param_bytes = facts.params.iter().map(|p| p.0 + p.1).max().unwrap_or(0);
        let _ = constant;
        Some(facts)
    });
    Some(list.collect())
}

/// Reads the attributes of a kernel: parameters (0x17) and most threads (0x05).
fn attributes(data: &[u8], facts: &mut KernelFacts) {
    let mut at = 0;
    while let (Some(format), Some(kind), Some(size)) =
        (data.get(at), data.get(at + 1), u16_at(data, at + 2))
    {
        at += 4;
        // Format 4 has a value of `size` bytes; in the others the value is in those two bytes.
        if *format != 4 {
            continue;
        }
        let value = data.get(at..at + usize::from(size)).unwrap_or(&[]);
        at += usize::from(size);
        match kind {
            0x17 => {
                if let (Some(offset), Some(flags)) = (u16_at(value, 6), u32_at(value, 8)) {
                    facts
                        .params
                        .push((usize::from(offset), (flags >> 18) as usize));
                }
            }
            0x05 => {
                let dims = (0..3).map(|i| u32_at(value, 4 * i).unwrap_or(1).max(1));
                facts.max_threads = dims.product::<u32>().min(1024);
            }
            _ => {}
        }
    }
    facts.params.sort_unstable();
}
