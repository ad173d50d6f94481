//! The contents of device memory while they are on the host. Untouched pages are not stored and cost nothing, unlike
//! with the real driver.

use crate::code::{OPERATING_SYSTEM, R};
use crate::driver::Tables;
use crate::memory::{punch, shared_file};

/// Bytes moved at a time, to avoid having the memory twice.
const PIECE: u64 = 4 << 20;

/// Contents of memory files, and of graph memory, which has no file.
#[derive(Debug, Default)]
pub(super) struct Saved {
    files: Vec<(i32, u64, Vec<u8>)>,
    graphs: Vec<(u64, Vec<u8>)>,
}

/// The next range of a file from `at` on that holds data.
fn data(file: i32, at: u64) -> Option<(u64, u64)> {
    // SAFETY: asks about a memory file of this driver.
    let start = unsafe { libc::lseek(file, at.cast_signed(), libc::SEEK_DATA) };
    if start < 0 {
        return None;
    }
    // SAFETY: as above.
    let end = unsafe { libc::lseek(file, start, libc::SEEK_HOLE) };
    (end > start).then_some((start.cast_unsigned(), end.cast_unsigned()))
}

impl Saved {
    fn take_file(&mut self, file: i32) -> R {
        let mut at = 0;
        while let Some((start, end)) = data(file, at) {
            let len = (end - start).min(PIECE);
            let mut bytes = vec![0; len as usize];
            // SAFETY: the buffer has room for `len` bytes.
            let read = unsafe {
                libc::pread(
                    file,
                    bytes.as_mut_ptr().cast(),
                    bytes.len(),
                    start.cast_signed(),
                )
            };
            if read != len.cast_signed() as isize {
                return Err(OPERATING_SYSTEM);
            }
            self.files.push((file, start, bytes));
            punch(file, start, len);
            at = start + len;
        }
        Ok(())
    }

    /// Moves all device memory of the process here and leaves none behind. The process must be locked.
    pub(super) fn take(t: &mut Tables) -> R<Saved> {
        let mut saved = Saved::default();
        let files = shared_file().into_iter().chain(t.vmm.files());
        for file in files {
            if let Err(code) = saved.take_file(file) {
                saved.put_back()?;
                return Err(code);
            }
        }
        for (addr, len) in t.graph_memory() {
            let mut bytes = vec![0; len as usize];
            // SAFETY: graph memory that lives is mapped, and nothing writes to it while the process is locked.
            unsafe {
                std::ptr::copy_nonoverlapping(addr as *const u8, bytes.as_mut_ptr(), bytes.len());
                libc::madvise(addr as *mut _, len as usize, libc::MADV_DONTNEED);
            }
            saved.graphs.push((addr, bytes));
        }
        Ok(saved)
    }

    /// Puts everything back where it was.
    pub(super) fn put_back(self) -> R {
        for (file, at, bytes) in self.files {
            // SAFETY: writes back into a memory file what was read there.
            let written =
                unsafe { libc::pwrite(file, bytes.as_ptr().cast(), bytes.len(), at.cast_signed()) };
            if written != bytes.len().cast_signed() {
                return Err(OPERATING_SYSTEM);
            }
        }
        for (addr, bytes) in self.graphs {
            // SAFETY: as in `take`: the addresses of graph memory stay reserved while the process is locked.
            unsafe { std::ptr::copy_nonoverlapping(bytes.as_ptr(), addr as *mut u8, bytes.len()) };
        }
        Ok(())
    }
}
