//! Containers that hold PTX and machine code for several architectures.

/// First word of the structure that programs compiled with nvcc point to.
pub(crate) const WRAPPER: u32 = 0x4662_43b1;
/// First word of the container itself.
pub(crate) const CONTAINER: u32 = 0xba55_ed50;
/// Bytes of the container's header.
pub(crate) const HEADER: usize = 16;

const KIND_PTX: u16 = 1;
const KIND_ELF: u16 = 2;
const FLAG_LZ4: u64 = 0x2000;
const FLAG_ZSTD: u64 = 0x8000;
/// Maximum unpacked bytes of an entry of a container.
const MOST: u64 = 1 << 30;

pub(crate) struct Entry {
    pub is_ptx: bool,
    /// For example 80 for sm_80.
    pub architecture: u32,
    pub data: Vec<u8>,
}

fn u16_at(b: &[u8], at: usize) -> Option<u16> {
    Some(u16::from_le_bytes(*b.get(at..)?.first_chunk()?))
}
fn u32_at(b: &[u8], at: usize) -> Option<u32> {
    Some(u32::from_le_bytes(*b.get(at..)?.first_chunk()?))
}
fn u64_at(b: &[u8], at: usize) -> Option<u64> {
    Some(u64::from_le_bytes(*b.get(at..)?.first_chunk()?))
}

/// Bytes of the whole container, from its header.
pub(crate) fn length(header: &[u8]) -> Option<usize> {
    let own = u64::from(u16_at(header, 6)?);
    usize::try_from(own.checked_add(u64_at(header, 8)?)?).ok()
}

/// The readable entries; entries with an unknown packing are left out.
pub(crate) fn entries(bytes: &[u8]) -> Option<Vec<Entry>> {
    let end = length(bytes)?;
    let bytes = bytes.get(..end)?;
    let mut at = usize::from(u16_at(bytes, 6)?);
    let mut list = Vec::new();
    while at < bytes.len() {
        let entry = &bytes[at..];
        let kind = u16_at(entry, 0)?;
        let header = u32_at(entry, 4)? as usize;
        let size = usize::try_from(u64_at(entry, 8)?).ok()?;
        let packed_size = u32_at(entry, 16)? as usize;
        let architecture = u32_at(entry, 28)?;
        let flags = u64_at(entry, 40)?;
        let unpacked = u64_at(entry, 56).filter(|n| *n <= MOST)?;
        let payload = entry.get(header..header.checked_add(size)?)?;
        let data = if flags & FLAG_ZSTD != 0 {
            crate::driver::note_once("a container's entry is packed with zstd and is skipped");
            None
        } else if flags & FLAG_LZ4 != 0 {
            lz4(payload.get(..packed_size)?, unpacked as usize)
        } else {
            Some(payload.to_vec())
        };
        if let Some(data) = data.filter(|_| kind == KIND_PTX || kind == KIND_ELF) {
            list.push(Entry {
                is_ptx: kind == KIND_PTX,
                architecture,
                data,
            });
        }
        at = at.checked_add(header.checked_add(size)?)?;
        if header == 0 {
            return None;
        }
    }
    Some(list)
}

/// Unpacks one LZ4 block.
fn lz4(packed: &[u8], size: usize) -> Option<Vec<u8>> {
    fn more(packed: &[u8], at: &mut usize, n: usize) -> Option<usize> {
        let mut n = n;
        if n == 15 {
            loop {
                let b = *packed.get(*at)?;
                *at += 1;
                n += usize::from(b);
                if b != 255 {
                    break;
                }
            }
        }
        Some(n)
    }
    let mut out = Vec::with_capacity(size);
    let mut at = 0;
    while at < packed.len() {
        let token = packed[at];
        at += 1;
        let literals = more(packed, &mut at, usize::from(token >> 4))?;
        out.extend_from_slice(packed.get(at..at.checked_add(literals)?)?);
        at += literals;
        if at >= packed.len() {
            break;
        }
        let back = usize::from(u16_at(packed, at)?);
        at += 2;
        let length = more(packed, &mut at, usize::from(token & 15))? + 4;
        let from = out.len().checked_sub(back).filter(|_| back > 0)?;
        if out.len() + length > size {
            return None;
        }
        for i in from..from + length {
            out.push(out[i]);
        }
    }
    (out.len() == size).then_some(out)
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;

    /// A container with uncompressed entries: whether it is PTX, architecture, data.
    pub(crate) fn container(list: &[(bool, u32, &[u8])]) -> Vec<u8> {
        container_with(list, 0, <[u8]>::to_vec)
    }

    fn container_with(
        list: &[(bool, u32, &[u8])],
        flags: u64,
        pack: impl Fn(&[u8]) -> Vec<u8>,
    ) -> Vec<u8> {
        let mut body = Vec::new();
        for (is_ptx, architecture, data) in list {
            let packed = pack(data);
            let padded = packed.len().next_multiple_of(8);
            let mut e = vec![0; 64];
            e[0..2].copy_from_slice(&(if *is_ptx { 1u16 } else { 2 }).to_le_bytes());
            e[4..8].copy_from_slice(&64u32.to_le_bytes());
            e[8..16].copy_from_slice(&(padded as u64).to_le_bytes());
            e[16..20].copy_from_slice(&(packed.len() as u32).to_le_bytes());
            e[28..32].copy_from_slice(&architecture.to_le_bytes());
            e[40..48].copy_from_slice(&flags.to_le_bytes());
            e[56..64].copy_from_slice(&(data.len() as u64).to_le_bytes());
            e.extend(packed);
            e.resize(64 + padded, 0);
            body.extend(e);
        }
        let mut whole = CONTAINER.to_le_bytes().to_vec();
        whole.extend(1u16.to_le_bytes());
        whole.extend(16u16.to_le_bytes());
        whole.extend((body.len() as u64).to_le_bytes());
        whole.extend(body);
        whole
    }

    #[test]
    fn lz4_blocks() {
        // Literals "abcd", then 9 bytes from 4 back, then the last literals.
        let packed = [0x45, b'a', b'b', b'c', b'd', 4, 0, 0x30, b'x', b'y', b'z'];
        assert_eq!(lz4(&packed, 16).as_deref(), Some(&b"abcdabcdabcdaxyz"[..]));
        assert_eq!(lz4(&packed, 15), None);
        assert_eq!(lz4(&[0x45, b'a'], 16), None);
        assert_eq!(lz4(&[0x10, b'a', 9, 0, 0], 16), None);
        // 15 and more literals have extra length bytes.
        let mut long = vec![0xf0, 5];
        long.extend([7; 20]);
        assert_eq!(lz4(&long, 20), Some(vec![7; 20]));
    }

    #[test]
    fn packed_and_foreign_entries() {
        let text = b"aaaaaaaaaaaaaaaa";
        let packed = container_with(&[(true, 90, text)], FLAG_LZ4, |_| {
            vec![0x15, b'a', 1, 0, 0x60, b'a', b'a', b'a', b'a', b'a', b'a']
        });
        let list = entries(&packed).expect("container");
        assert_eq!((list.len(), &list[0].data[..]), (1, &text[..]));
        let zstd = container_with(&[(true, 90, text)], FLAG_ZSTD, <[u8]>::to_vec);
        assert_eq!(entries(&zstd).map(|l| l.len()), Some(0));
        for cut in 0..packed.len() {
            assert!(entries(&packed[..cut]).is_none(), "cut at {cut}");
        }
    }
}
