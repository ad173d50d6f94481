//! The page for requests to a process, and how callers find it.

use std::fs::{File, OpenOptions};
use std::io::ErrorKind;
use std::os::fd::{AsRawFd, FromRawFd};
use std::sync::atomic::{AtomicU32, Ordering};

use super::state;
use crate::code::{ILLEGAL_STATE, INVALID_VALUE, OPERATING_SYSTEM, R};
use crate::memory::memory_file;

const MAGIC: u32 = 0x7470_6b63;
const PAGE: usize = 4096;
/// Maximum number of pairs in a map: one per GPU of a board.
pub(super) const MOST_PAIRS: usize = gshare_sim_board::MAX_GPUS;

/// `CUcheckpointGpuPair`.
#[repr(C)]
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Pair {
    pub old: [u8; 16],
    pub new: [u8; 16],
}

/// A request to a process.
#[derive(Debug)]
pub(super) enum Request {
    Lock { timeout_ms: u32 },
    Checkpoint,
    Restore { pairs: Vec<Pair> },
    Unlock,
}

/// All words are atomics: both sides see at worst stale numbers.
#[repr(C)]
struct Page {
    magic: AtomicU32,
    state: AtomicU32,
    thread: AtomicU32,
    /// Numbers of the last request and the last answer; both are futexes.
    asked: AtomicU32,
    answered: AtomicU32,
    result: AtomicU32,
    op: AtomicU32,
    timeout_ms: AtomicU32,
    count: AtomicU32,
    pairs: [[AtomicU32; 8]; MOST_PAIRS],
}

const _: () = assert!(size_of::<Page>() <= PAGE);

fn pair_words(pair: &Pair) -> [u32; 8] {
    let mut words = [0; 8];
    let bytes = pair.old.iter().chain(&pair.new);
    for (i, b) in bytes.enumerate() {
        words[i / 4] |= u32::from(*b) << (8 * (i % 4));
    }
    words
}

fn pair_of(words: [u32; 8]) -> Pair {
    let mut bytes = [0; 32];
    for (i, b) in bytes.iter_mut().enumerate() {
        *b = (words[i / 4] >> (8 * (i % 4))) as u8;
    }
    let mut pair = Pair {
        old: [0; 16],
        new: [0; 16],
    };
    pair.old.copy_from_slice(&bytes[..16]);
    pair.new.copy_from_slice(&bytes[16..]);
    pair
}

/// The page of one process.
#[derive(Debug)]
pub(super) struct Mailbox {
    page: *const Page,
    file: File,
    pid: i32,
}

// SAFETY: the mapping lives as long as the mailbox, and all words in it are atomics.
unsafe impl Send for Mailbox {}
// SAFETY: see above.
unsafe impl Sync for Mailbox {}

impl Drop for Mailbox {
    fn drop(&mut self) {
        // SAFETY: the mapping is this mailbox's own.
        unsafe { libc::munmap(self.page.cast_mut().cast(), PAGE) };
    }
}

fn wait(word: &AtomicU32, seen: u32, ms: i64) {
    let timeout = libc::timespec {
        tv_sec: ms / 1000,
        tv_nsec: ms % 1000 * 1_000_000,
    };
    // SAFETY: the word lives in a shared mapping; the timeout is valid.
    unsafe {
        libc::syscall(
            libc::SYS_futex,
            word.as_ptr(),
            libc::FUTEX_WAIT,
            seen,
            &raw const timeout,
        );
    }
}

fn wake(word: &AtomicU32) {
    // SAFETY: as in `wait`.
    unsafe { libc::syscall(libc::SYS_futex, word.as_ptr(), libc::FUTEX_WAKE, i32::MAX) };
}

impl Mailbox {
    fn map(file: File, pid: i32) -> R<Mailbox> {
        // SAFETY: a new shared mapping of a file; a file that is too short is found out below, by its length.
        let p = unsafe {
            libc::mmap(
                std::ptr::null_mut(),
                PAGE,
                libc::PROT_READ | libc::PROT_WRITE,
                libc::MAP_SHARED,
                file.as_raw_fd(),
                0,
            )
        };
        if p == libc::MAP_FAILED {
            return Err(OPERATING_SYSTEM);
        }
        let page = p.cast_const().cast();
        Ok(Mailbox { page, file, pid })
    }

    /// The own page of this process, and its file descriptor.
    pub(super) fn own() -> R<(Mailbox, i32)> {
        let fd = memory_file(c"cuda-checkpoint")?;
        // SAFETY: the descriptor is new and has no other owner.
        let file = unsafe { File::from_raw_fd(fd) };
        file.set_len(PAGE as u64).map_err(|_| OPERATING_SYSTEM)?;
        let own = Mailbox::map(file, std::process::id().cast_signed())?;
        own.page().magic.store(MAGIC, Ordering::Release);
        Ok((own, fd))
    }

    /// The page of another process, found by the name of its thread.
    pub(super) fn of(pid: i32) -> R<Mailbox> {
        let tasks = std::fs::read_dir(format!("/proc/{pid}/task")).map_err(|_| INVALID_VALUE)?;
        let named = tasks.flatten().find_map(|task| {
            let name = std::fs::read_to_string(task.path().join("comm")).ok()?;
            let digits = name
                .trim_end()
                .strip_prefix("cuda")
                .filter(|d| d.len() == 11)?;
            u32::from_str_radix(digits, 16).ok()
        });
        let fd = named.ok_or(INVALID_VALUE)?;
        let mut options = OpenOptions::new();
        let file = options
            .read(true)
            .write(true)
            .open(format!("/proc/{pid}/fd/{fd}"))
            .map_err(|e| match e.kind() {
                ErrorKind::NotFound => INVALID_VALUE,
                _ => OPERATING_SYSTEM,
            })?;
        if file.metadata().map_err(|_| OPERATING_SYSTEM)?.len() != PAGE as u64 {
            return Err(INVALID_VALUE);
        }
        let found = Mailbox::map(file, pid)?;
        if found.page().magic.load(Ordering::Acquire) != MAGIC || found.thread() == 0 {
            return Err(INVALID_VALUE);
        }
        Ok(found)
    }

    fn page(&self) -> &Page {
        // SAFETY: the mapping lives as long as `self`, is aligned, and all its words are atomics.
        unsafe { &*self.page }
    }

    pub(super) fn state(&self) -> u32 {
        self.page().state.load(Ordering::SeqCst)
    }

    pub(super) fn set_state(&self, state: u32) {
        self.page().state.store(state, Ordering::SeqCst);
    }

    pub(super) fn thread(&self) -> i32 {
        self.page().thread.load(Ordering::Acquire).cast_signed()
    }

    pub(super) fn set_thread(&self, thread: u32) {
        self.page().thread.store(thread, Ordering::Release);
    }

    fn lives(&self) -> bool {
        let (pid, thread) = (self.pid, self.thread());
        let stat = std::fs::read_to_string(format!("/proc/{pid}/task/{thread}/stat"));
        let state = stat.ok().and_then(|s| {
            let rest = s.rsplit_once(')')?.1.trim_start().chars().next()?;
            Some(rest)
        });
        state.is_some_and(|s| !matches!(s, 'Z' | 'X'))
    }

    /// Waits for the answer to the last request, whoever sent it.
    fn settled(&self) -> R<u32> {
        let page = self.page();
        loop {
            let asked = page.asked.load(Ordering::SeqCst);
            let answered = page.answered.load(Ordering::SeqCst);
            if asked == answered {
                return Ok(page.result.load(Ordering::SeqCst));
            }
            if !self.lives() {
                return Err(OPERATING_SYSTEM);
            }
            wait(&page.answered, answered, 20);
        }
    }

    /// Sends a request and waits for the answer. One caller at a time: the others wait for the file's lock, which the
    /// kernel releases if its holder dies.
    pub(super) fn ask(&self, request: &Request) -> R {
        if matches!(self.state(), state::CHECKPOINTING | state::RESTORING) {
            return Err(ILLEGAL_STATE);
        }
        // SAFETY: the descriptor is open.
        while unsafe { libc::flock(self.file.as_raw_fd(), libc::LOCK_EX) } != 0 {
            if std::io::Error::last_os_error().kind() != ErrorKind::Interrupted {
                return Err(OPERATING_SYSTEM);
            }
        }
        // A caller that died may have left a request.
        self.settled()?;
        let page = self.page();
        let store = |word: &AtomicU32, value| word.store(value, Ordering::SeqCst);
        store(&page.count, 0);
        let op = match request {
            Request::Lock { timeout_ms } => {
                store(&page.timeout_ms, *timeout_ms);
                1
            }
            Request::Checkpoint => 2,
            Request::Restore { pairs } => {
                store(&page.count, pairs.len() as u32);
                for (row, pair) in page.pairs.iter().zip(pairs) {
                    for (word, value) in row.iter().zip(pair_words(pair)) {
                        store(word, value);
                    }
                }
                3
            }
            Request::Unlock => 4,
        };
        store(&page.op, op);
        page.asked.fetch_add(1, Ordering::SeqCst);
        wake(&page.asked);
        match self.settled()? {
            0 => Ok(()),
            code => Err(code),
        }
    }

    /// The process's side: waits for a request.
    pub(super) fn next(&self) -> Request {
        let page = self.page();
        loop {
            let asked = page.asked.load(Ordering::SeqCst);
            if asked == page.answered.load(Ordering::SeqCst) {
                wait(&page.asked, asked, 3_600_000);
                continue;
            }
            let load = |word: &AtomicU32| word.load(Ordering::SeqCst);
            return match load(&page.op) {
                1 => Request::Lock {
                    timeout_ms: load(&page.timeout_ms),
                },
                2 => Request::Checkpoint,
                3 => {
                    let count = (load(&page.count) as usize).min(MOST_PAIRS);
                    let pair = |row: &[AtomicU32; 8]| pair_of(row.each_ref().map(load));
                    Request::Restore {
                        pairs: page.pairs[..count].iter().map(pair).collect(),
                    }
                }
                _ => Request::Unlock,
            };
        }
    }

    /// The process's side: answers.
    pub(super) fn answer(&self, result: u32) {
        let page = self.page();
        page.result.store(result, Ordering::SeqCst);
        let asked = page.asked.load(Ordering::SeqCst);
        page.answered.store(asked, Ordering::SeqCst);
        wake(&page.answered);
    }

    /// Initialises the page of a running process.
    pub(super) fn begin(&self, thread: u32) {
        self.set_state(state::RUNNING);
        self.set_thread(thread);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pairs_survive_the_way() {
        let pair = Pair {
            old: std::array::from_fn(|i| i as u8),
            new: std::array::from_fn(|i| 255 - i as u8),
        };
        assert_eq!(pair_of(pair_words(&pair)), pair);
    }

    #[test]
    fn a_process_without_a_handler_is_none() {
        assert!(matches!(
            Mailbox::of(1),
            Err(INVALID_VALUE | OPERATING_SYSTEM)
        ));
        assert!(matches!(Mailbox::of(-5), Err(INVALID_VALUE)));
    }
}
