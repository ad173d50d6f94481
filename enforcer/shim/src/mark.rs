//! What each thread is doing in the driver: a word of thread-local storage with the number of the
//! entry point, written at every entry. A hook clears it when it returns; a trampoline, which jumps
//! and never comes back, leaves the number of the last entry there. The word behind it says with
//! which other threads this one shares its counters.
//!
//! The words are found through a TLS descriptor: it costs two instructions where the loader has static
//! room for it and, unlike the fixed form, never makes loading the library fail where it has none.

use std::sync::atomic::{AtomicU32, Ordering};

use gshare_abi::STRIPES;

/// The calling thread's two words: hooks count from 1 in the order of the table, trampolines after them.
#[cfg(target_arch = "x86_64")]
#[inline]
fn word() -> *mut u32 {
    let at: *mut u32;
    // SAFETY: a call of a TLS descriptor gives the offset from the thread pointer and keeps all
    // other registers; the first word at the thread pointer is its own address (x86-64 ABI).
    unsafe {
        std::arch::asm!(
            "leaq gshare_mark@tlsdesc(%rip), %rax",
            "callq *gshare_mark@tlscall(%rax)",
            "addq %fs:0, %rax",
            out("rax") at,
            options(att_syntax),
        );
    }
    at
}

#[cfg(target_arch = "x86_64")]
std::arch::global_asm!(
    ".pushsection .tbss.gshare_mark,\"awT\",@nobits",
    ".globl gshare_mark",
    ".hidden gshare_mark",
    ".type gshare_mark,@object",
    ".size gshare_mark,8",
    ".balign 8",
    "gshare_mark:",
    ".zero 8",
    ".popsection",
);

/// Marks the calling thread as inside a hook while it lives.
pub(crate) struct Inside(#[cfg(target_arch = "x86_64")] *mut u32);

impl Inside {
    #[inline]
    pub(crate) fn new(entry: u32) -> Self {
        #[cfg(target_arch = "x86_64")]
        {
            let word = word();
            // SAFETY: the thread's own word.
            unsafe { word.write_volatile(entry + 1) };
            Self(word)
        }
        #[cfg(not(target_arch = "x86_64"))]
        {
            let _ = entry;
            Self()
        }
    }
}

impl Drop for Inside {
    #[inline]
    fn drop(&mut self) {
        // SAFETY: the thread's own word; the guard does not leave the thread.
        #[cfg(target_arch = "x86_64")]
        unsafe {
            self.0.write_volatile(0);
        }
    }
}

/// Threads that have counted something.
static THREADS: AtomicU32 = AtomicU32::new(0);

#[cold]
fn next_thread() -> u32 {
    // 0 means that a thread has none.
    THREADS
        .fetch_add(1, Ordering::Relaxed)
        .wrapping_add(1)
        .max(1)
}

/// Threads that have a stripe to themselves; the later ones share out the rest.
const OWNERS: usize = STRIPES / 2;

/// A thread, by its number among those that have counted something; the first is 1.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Thread(u32);

impl Thread {
    /// The calling thread.
    #[inline]
    pub(crate) fn current() -> Self {
        Self(thread())
    }

    #[inline]
    pub(crate) fn number(self) -> usize {
        self.0 as usize
    }

    /// Whether no other thread counts in its stripe.
    #[inline]
    pub(crate) fn has_own_stripe(self) -> bool {
        (1..=OWNERS).contains(&self.number())
    }

    /// Which of the process's stripes it counts in.
    #[inline]
    pub(crate) fn stripe(self) -> usize {
        if self.has_own_stripe() {
            self.number() - 1
        } else {
            OWNERS + self.number() % (STRIPES - OWNERS)
        }
    }
}

/// The hook that the calling thread is in, by its place in the table.
#[cfg(target_arch = "x86_64")]
pub(crate) fn entry() -> Option<u32> {
    // SAFETY: the thread's own word.
    unsafe { word().read_volatile() }.checked_sub(1)
}

/// The hook that the calling thread is in, by its place in the table.
#[cfg(not(target_arch = "x86_64"))]
pub(crate) fn entry() -> Option<u32> {
    None
}

#[cfg(target_arch = "x86_64")]
#[inline]
fn thread() -> u32 {
    // SAFETY: the thread's own second word.
    unsafe {
        let place = word().add(1);
        if place.read() == 0 {
            place.write(next_thread());
        }
        place.read()
    }
}

#[cfg(not(target_arch = "x86_64"))]
#[inline]
fn thread() -> u32 {
    use std::cell::Cell;
    thread_local!(static NUMBER: Cell<u32> = const { Cell::new(0) });
    NUMBER
        .try_with(|place| {
            if place.get() == 0 {
                place.set(next_thread());
            }
            place.get()
        })
        .unwrap_or(u32::MAX)
}

#[cfg(all(test, target_arch = "x86_64"))]
mod tests {
    use super::*;
    use crate::{
        cuda::NOT_FOUND,
        table::{COUNT, passed},
    };

    fn read() -> u32 {
        // SAFETY: the thread's own word.
        unsafe { word().read_volatile() }
    }

    #[test]
    fn threads_count_apart() {
        let first = Thread::current();
        assert_eq!(Thread::current(), first, "a thread keeps its number");
        let others: Vec<Thread> = (0..4)
            .filter_map(|_| std::thread::spawn(Thread::current).join().ok())
            .collect();
        assert_eq!(others.len(), 4);
        assert!(others.iter().all(|other| *other != first));

        let all: Vec<Thread> = (1..100).map(Thread).collect();
        let (own, shared): (Vec<Thread>, Vec<Thread>) =
            all.iter().partition(|thread| thread.has_own_stripe());
        assert_eq!(own.len(), OWNERS);
        for thread in &own {
            let there = all.iter().filter(|other| other.stripe() == thread.stripe());
            assert_eq!(there.count(), 1, "{thread:?}");
        }
        assert!(shared.iter().all(|thread| thread.stripe() < STRIPES));
        let neighbours = shared.windows(STRIPES - OWNERS).all(|some| {
            let stripes: std::collections::HashSet<usize> =
                some.iter().map(|thread| thread.stripe()).collect();
            stripes.len() == some.len()
        });
        assert!(neighbours, "threads that came together count apart");
    }

    #[test]
    fn a_hook_clears_the_word_and_a_trampoline_leaves_its_number() {
        let inside = Inside::new(6);
        assert_eq!(read(), 7);
        let elsewhere = std::thread::spawn(read).join();
        assert_eq!(elsewhere.ok(), Some(0), "each thread has its own");
        drop(inside);
        assert_eq!(read(), 0);
        // There is no driver behind a library that was never staged.
        let at = passed::NAMES
            .iter()
            .position(|name| *name == "cuCtxGetFlags");
        let (_, entry) = passed::rows()[at.unwrap_or(0)];
        // SAFETY: with no driver behind it no argument is looked at.
        let code = unsafe {
            std::mem::transmute::<*mut std::ffi::c_void, extern "C" fn(usize) -> i32>(entry)(0)
        };
        assert_eq!(code, NOT_FOUND);
        assert_eq!(Some(read() as usize), at.map(|at| COUNT + at + 1));
    }
}
