//! The board file, and how a change is committed.
//!
//! The file holds a header and several buffers for whole states. One word of the header names the current buffer and
//! counts the commits. A writer copies the current buffer into its own memory, changes the copy, writes it into an
//! unused buffer and publishes that with a single compare-and-swap. So a process that is killed at any store leaves the
//! state as it was. A stopped process delays the others briefly: after [`PATIENCE_MS`] they go on without its lock, and
//! when it continues, its swap fails and it starts again from the newer state.
//!
//! Locks are robust, process-shared mutexes. The first kind only avoids work that would be thrown away; the second
//! guards each buffer, so that only one writer fills it.
#![allow(unsafe_code, reason = "maps a file that other processes change")]

use std::cell::UnsafeCell;
use std::fs::File;
use std::mem::offset_of;
use std::os::fd::AsRawFd;
use std::ptr;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering, fence};

use crate::state::{Gpu, Head, Kernel, Proc, State, Use};

const MAGIC: u64 = u64::from_le_bytes(*b"gsboard\x01");
const VERSION: u64 = 11;
const LOCKS: usize = 8;
const BUFFERS: usize = 8;
/// How long a writer waits for another one's lock before it goes on without.
const PATIENCE_MS: i64 = 10;

#[repr(C, align(64))]
struct Mutex(UnsafeCell<libc::pthread_mutex_t>);

#[repr(C)]
struct Header {
    magic: u64,
    version: u64,
    size: u64,
    state_size: u64,
    /// Number of commits in the upper 56 bits, the current buffer in the lower 8.
    current: AtomicU64,
    /// Index into `locks` of the lock that writers use now.
    lock: AtomicU32,
    /// Changes whenever work may end earlier than predicted; waiters sleep on it.
    change: AtomicU32,
    waiters: AtomicU32,
    reserved: u32,
    locks: [Mutex; LOCKS],
    buffer_locks: [Mutex; BUFFERS],
}

const PAGE: usize = 4096;
const BUFFER: usize = size_of::<State>().next_multiple_of(PAGE);
const SIZE: usize = PAGE + BUFFERS * BUFFER;
const _: () = assert!(size_of::<Header>() <= PAGE);
const _: () = assert!(size_of::<State>().is_multiple_of(8));
const _: () = assert!(BUFFERS <= 256);

/// A mapped board file.
#[derive(Debug)]
pub(crate) struct Store {
    base: *mut u8,
}

// SAFETY: the mapping lives as long as the store, and all access to it goes through atomics and
// process-shared mutexes.
unsafe impl Send for Store {}
// SAFETY: as above.
unsafe impl Sync for Store {}

/// Why a file cannot be opened as a board.
pub(crate) enum OpenError {
    Io(std::io::Error),
    Bad(String),
}

impl Drop for Store {
    fn drop(&mut self) {
        // SAFETY: `base` is a mapping of SIZE bytes that this store made; nothing refers to it.
        unsafe { libc::munmap(self.base.cast(), SIZE) };
    }
}

/// A state with all bytes zero: an empty board without GPUs.
pub(crate) fn zeroed() -> Box<State> {
    let layout = std::alloc::Layout::new::<State>();
    // SAFETY: the layout has a size above 0; a State consists of integers, floats and byte arrays,
    // for all of which zero is a value, so the allocation holds a valid State for the Box to own.
    unsafe {
        let p = std::alloc::alloc_zeroed(layout).cast::<State>();
        if p.is_null() {
            std::alloc::handle_alloc_error(layout);
        }
        Box::from_raw(p)
    }
}

struct Held<'a>(Option<&'a Mutex>);

impl Drop for Held<'_> {
    fn drop(&mut self) {
        if let Some(m) = self.0 {
            // SAFETY: this thread locked the mutex, which lies in the live mapping.
            unsafe { libc::pthread_mutex_unlock(m.0.get()) };
        }
    }
}

impl Mutex {
    fn init(&self) {
        // SAFETY: the attribute object is initialised before use and destroyed after; the mutex
        // memory is in a mapping that nobody else uses yet.
        unsafe {
            let mut attr = std::mem::zeroed::<libc::pthread_mutexattr_t>();
            libc::pthread_mutexattr_init(&raw mut attr);
            libc::pthread_mutexattr_setpshared(&raw mut attr, libc::PTHREAD_PROCESS_SHARED);
            libc::pthread_mutexattr_setrobust(&raw mut attr, libc::PTHREAD_MUTEX_ROBUST);
            libc::pthread_mutex_init(self.0.get(), &raw const attr);
            libc::pthread_mutexattr_destroy(&raw mut attr);
        }
    }

    /// Whether a lock call that returned `rc` got the lock. The lock of a dead owner is taken over.
    fn taken(&self, rc: i32) -> bool {
        if rc == libc::EOWNERDEAD {
            // SAFETY: the lock call said that this thread now holds the mutex of a dead owner. Nothing needs repair:
            // one store publishes what the lock guards.
            unsafe { libc::pthread_mutex_consistent(self.0.get()) };
        }
        rc == 0 || rc == libc::EOWNERDEAD
    }

    fn try_lock(&self) -> Option<Held<'_>> {
        // SAFETY: the mutex lies in the live mapping and was initialised by the board's creator.
        let rc = unsafe { libc::pthread_mutex_trylock(self.0.get()) };
        self.taken(rc).then_some(Held(Some(self)))
    }

    fn lock_for(&self, ms: i64) -> Option<Held<'_>> {
        if let Some(held) = self.try_lock() {
            return Some(held);
        }
        let mut at = libc::timespec {
            tv_sec: 0,
            tv_nsec: 0,
        };
        // SAFETY: `at` is a valid timespec to write to.
        unsafe { libc::clock_gettime(libc::CLOCK_REALTIME, &raw mut at) };
        let ns = at.tv_nsec + ms * 1_000_000;
        at.tv_sec += ns / 1_000_000_000;
        at.tv_nsec = ns % 1_000_000_000;
        // SAFETY: as in `try_lock`; `at` is a valid timespec.
        let rc = unsafe { libc::pthread_mutex_timedlock(self.0.get(), &raw const at) };
        self.taken(rc).then_some(Held(Some(self)))
    }
}

impl Store {
    /// Lays out an empty file as a board that holds `state`.
    pub(crate) fn create(file: &File, state: &State) -> std::io::Result<Store> {
        file.set_len(SIZE as u64)?;
        let store = Store::map(file)?;
        let h = store.base.cast::<Header>();
        // SAFETY: the mapping is SIZE bytes, page-aligned, and nobody else has it yet.
        unsafe {
            (*h).version = VERSION;
            (*h).size = SIZE as u64;
            (*h).state_size = size_of::<State>() as u64;
            for m in (*h).locks.iter().chain(&(*h).buffer_locks) {
                m.init();
            }
        }
        store.copy_out(0, state);
        // SAFETY: as above; the magic number comes last, so that a half-made board is not valid.
        unsafe { (*h).magic = MAGIC };
        Ok(store)
    }

    /// Maps an existing board.
    pub(crate) fn open(file: &File) -> Result<Store, OpenError> {
        let len = file.metadata().map_err(OpenError::Io)?.len();
        if len != SIZE as u64 {
            let why = format!("it has {len} bytes, not {SIZE}");
            return Err(OpenError::Bad(why));
        }
        let store = Store::map(file).map_err(OpenError::Io)?;
        let h = store.header();
        if h.magic != MAGIC {
            return Err(OpenError::Bad("its first bytes are wrong".into()));
        }
        if (h.version, h.size, h.state_size) != (VERSION, SIZE as u64, size_of::<State>() as u64) {
            let why = format!("its layout is version {}, not {VERSION}", h.version);
            return Err(OpenError::Bad(why));
        }
        if current_buffer(h.current.load(Ordering::Acquire)) >= BUFFERS {
            return Err(OpenError::Bad("its current buffer does not exist".into()));
        }
        Ok(store)
    }

    fn map(file: &File) -> std::io::Result<Store> {
        // SAFETY: a fresh shared mapping of a file that has SIZE bytes; the result is checked.
        let base = unsafe {
            libc::mmap(
                ptr::null_mut(),
                SIZE,
                libc::PROT_READ | libc::PROT_WRITE,
                libc::MAP_SHARED,
                file.as_raw_fd(),
                0,
            )
        };
        if base == libc::MAP_FAILED {
            return Err(std::io::Error::last_os_error());
        }
        Ok(Store { base: base.cast() })
    }

    fn header(&self) -> &Header {
        // SAFETY: the mapping starts with a Header, page-aligned; its plain fields never change
        // after creation, the others are atomics and mutexes.
        unsafe { &*self.base.cast::<Header>() }
    }

    fn word(&self, buffer: usize, byte: usize) -> &AtomicU64 {
        debug_assert!(buffer < BUFFERS && byte < BUFFER && byte.is_multiple_of(8));
        // SAFETY: inside the mapping and 8-byte aligned; buffers are only accessed as atomic words.
        unsafe {
            &*self
                .base
                .add(PAGE + (buffer % BUFFERS) * BUFFER + byte)
                .cast::<AtomicU64>()
        }
    }

    fn copy_range_in(&self, buffer: usize, state: &mut State, start: usize, len: usize) {
        let to = ptr::from_mut(state).cast::<u8>();
        for byte in (start..start + len).step_by(8) {
            let v = self.word(buffer, byte).load(Ordering::Relaxed);
            // SAFETY: `byte` is a word inside the State (its size and all its parts are multiples
            // of 8, checked at compile time), of which any bit pattern is a value.
            unsafe { to.add(byte).cast::<u64>().write(v) };
        }
    }

    fn copy_range_out(&self, buffer: usize, state: &State, start: usize, len: usize) {
        let from = ptr::from_ref(state).cast::<u8>();
        for byte in (start..start + len).step_by(8) {
            // SAFETY: as in `copy_range_in`, for reading; a State has no padding.
            let v = unsafe { from.add(byte).cast::<u64>().read() };
            fault::point();
            self.word(buffer, byte).store(v, Ordering::Relaxed);
        }
    }

    fn copy_out(&self, buffer: usize, state: &State) {
        for (start, len) in used_ranges(&state.head) {
            self.copy_range_out(buffer, state, start, len);
        }
    }

    /// Copies the current state into `state`; returns the word that names it.
    pub(crate) fn load(&self, state: &mut State) -> u64 {
        let h = self.header();
        loop {
            let current = h.current.load(Ordering::Acquire);
            let buffer = current_buffer(current) % BUFFERS;
            self.copy_range_in(buffer, state, 0, size_of::<Head>());
            for (start, len) in used_ranges(&state.head).into_iter().skip(1) {
                self.copy_range_in(buffer, state, start, len);
            }
            fence(Ordering::Acquire);
            if h.current.load(Ordering::Relaxed) == current {
                return current;
            }
        }
    }

    /// The word that names the current state; it differs after every change.
    pub(crate) fn current(&self) -> u64 {
        self.header().current.load(Ordering::Acquire)
    }

    /// Publishes `state` in place of the state that `current` names; false if that is out of date.
    fn publish(&self, current: u64, state: &State) -> bool {
        let h = self.header();
        for (i, lock) in h.buffer_locks.iter().enumerate() {
            let Some(_held) = lock.try_lock() else {
                continue;
            };
            fault::point();
            // From here on, with the buffer locked, no other writer can make it current.
            let at = h.current.load(Ordering::Acquire);
            if at != current {
                return false;
            }
            if current_buffer(at) == i {
                continue;
            }
            self.copy_out(i, state);
            fault::point();
            let next = ((current >> 8).wrapping_add(1) << 8) | i as u64;
            let ok = h
                .current
                .compare_exchange(current, next, Ordering::AcqRel, Ordering::Relaxed)
                .is_ok();
            fault::point();
            return ok;
        }
        false
    }

    fn lock(&self) -> Held<'_> {
        let h = self.header();
        for _ in 0..LOCKS {
            let i = h.lock.load(Ordering::Relaxed);
            if let Some(held) = h.locks[i as usize % LOCKS].lock_for(PATIENCE_MS) {
                return held;
            }
            // The lock's holder is stopped. All writers go on with the next lock.
            let next = (i + 1) % LOCKS as u32;
            let _ = h
                .lock
                .compare_exchange(i, next, Ordering::Relaxed, Ordering::Relaxed);
        }
        Held(None)
    }

    /// Runs `change` on the current state and commits it if `change` says so; `scratch` is overwritten.
    pub(crate) fn transact<R>(
        &self,
        scratch: &mut State,
        mut change: impl FnMut(&mut State) -> (R, bool),
    ) -> R {
        loop {
            let _held = self.lock();
            fault::point();
            let current = self.load(scratch);
            let (result, commit) = change(scratch);
            if !commit || self.publish(current, scratch) {
                return result;
            }
            std::thread::yield_now();
        }
    }

    /// Current value of the word that waiters sleep on.
    pub(crate) fn change_word(&self) -> u32 {
        self.header().change.load(Ordering::Acquire)
    }

    /// Wakes all waiters: work may end earlier than predicted.
    pub(crate) fn wake(&self) {
        let h = self.header();
        h.change.fetch_add(1, Ordering::Release);
        if h.waiters.load(Ordering::Acquire) > 0 {
            // SAFETY: the futex word is a live, aligned u32 in a shared mapping.
            unsafe {
                libc::syscall(
                    libc::SYS_futex,
                    h.change.as_ptr(),
                    libc::FUTEX_WAKE,
                    i32::MAX,
                );
            }
        }
    }

    /// Sleeps for up to `ns` nanoseconds, or until the change word is no longer `seen`. `exact` removes the timer slack
    /// that Linux adds to sleeps (50 us by default).
    pub(crate) fn sleep(&self, seen: u32, ns: u64, exact: bool) {
        let h = self.header();
        // SAFETY: reads and sets a number of this thread.
        let slack = unsafe { libc::prctl(libc::PR_GET_TIMERSLACK) };
        let set_slack = |ns: libc::c_ulong| {
            if exact {
                // SAFETY: as above.
                unsafe { libc::prctl(libc::PR_SET_TIMERSLACK, ns) };
            }
        };
        set_slack(1);
        let timeout = libc::timespec {
            tv_sec: (ns / 1_000_000_000).cast_signed(),
            tv_nsec: (ns % 1_000_000_000).cast_signed(),
        };
        h.waiters.fetch_add(1, Ordering::AcqRel);
        // SAFETY: the futex word is a live, aligned u32 in a shared mapping; the timeout is valid.
        unsafe {
            libc::syscall(
                libc::SYS_futex,
                h.change.as_ptr(),
                libc::FUTEX_WAIT,
                seen,
                &raw const timeout,
            );
        }
        h.waiters.fetch_sub(1, Ordering::AcqRel);
        set_slack(libc::c_ulong::try_from(slack).unwrap_or(0));
    }
}

fn current_buffer(current: u64) -> usize {
    (current & 0xff) as usize
}

/// The used parts of a state, by its high-water marks: first byte and length.
fn used_ranges(head: &Head) -> [(usize, usize); 5] {
    [
        (0, size_of::<Head>()),
        (offset_of!(State, gpus), head.gpu_count() * size_of::<Gpu>()),
        (
            offset_of!(State, procs),
            head.proc_hwm() * size_of::<Proc>(),
        ),
        (offset_of!(State, uses), head.use_hwm() * size_of::<Use>()),
        (
            offset_of!(State, kernels),
            head.kernel_hwm() * size_of::<Kernel>(),
        ),
    ]
}

#[cfg(not(test))]
mod fault {
    #[inline(always)]
    pub(super) fn point() {}
}

/// Lets a test kill the process at any store.
#[cfg(test)]
pub(crate) mod fault {
    use std::sync::atomic::{AtomicI32, AtomicI64, Ordering};

    /// Number of stores before the signal; negative for never.
    pub(crate) static COUNTDOWN: AtomicI64 = AtomicI64::new(-1);
    pub(crate) static SIGNAL: AtomicI32 = AtomicI32::new(libc::SIGKILL);

    pub(super) fn point() {
        if COUNTDOWN.load(Ordering::Relaxed) >= 0 && COUNTDOWN.fetch_sub(1, Ordering::Relaxed) == 0
        {
            // SAFETY: signals the own process, which is what the test wants.
            unsafe { libc::kill(libc::getpid(), SIGNAL.load(Ordering::Relaxed)) };
        }
    }
}
