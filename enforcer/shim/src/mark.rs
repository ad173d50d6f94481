//! The driver call of each thread: the number of the entry point, in a word that the service also reads, written at
//! every entry and cleared at the return. It lies in the usage page of the claim's first GPU (`gshare_abi::Mark`), for
//! a process without a GPU in memory of its own. A thread keeps the place of its first call until it ends. Thread-local
//! words hold the place, the present hook, and the stripe of counters.
//!
//! The words are found through a TLS descriptor: it costs two instructions if the loader has static room for it and,
//! unlike the fixed form, never makes loading the library fail if there is none.

use std::sync::{
    OnceLock,
    atomic::{AtomicBool, AtomicIsize, AtomicPtr, AtomicU32, AtomicU64, Ordering},
};

use gshare_abi::{MARKS, Mark, STRIPES};

/// Offset of the words from every thread's pointer, if it is the same for all threads; 0 before the first look, and if
/// it differs.
pub(crate) static WORDS: AtomicIsize = AtomicIsize::new(0);

/// Looks whether the loader has put the words at the same offset from every thread's pointer. Then the descriptor holds
/// that offset, and its function returns it; otherwise the function finds each thread's block, and the descriptor holds
/// an address for it. In a program (the tests) the linker has put the offset itself in place of the descriptor's
/// address.
fn find_words() {
    let (given, descriptor): (isize, *const [isize; 2]);
    // SAFETY: as in `word`.
    unsafe {
        std::arch::asm!(
            "leaq gshare_mark@tlsdesc(%rip), %rax",
            "movq %rax, {descriptor}",
            "callq *gshare_mark@tlscall(%rax)",
            descriptor = out(reg) descriptor,
            out("rax") given,
            options(att_syntax),
        );
    }
    // SAFETY: a descriptor is two words, which the loader has filled when the library was loaded.
    if given == descriptor.addr().cast_signed() || given == unsafe { (*descriptor)[1] } {
        WORDS.store(given, Ordering::Relaxed);
    }
}

/// The calling thread's words at this offset, unless it is 0.
#[inline(always)]
fn word_at(words: isize) -> Option<*mut u32> {
    if words == 0 {
        return None;
    }
    let at: *mut u32;
    // SAFETY: the first word at the thread pointer is its own address (x86-64 ABI).
    unsafe {
        std::arch::asm!(
            "addq %fs:0, {at}",
            at = inout(reg) words => at,
            options(att_syntax, pure, nomem, nostack),
        );
    }
    Some(at)
}

/// The calling thread's words: its hook, counted from 1; its number; its place, see [`PLACES`].
#[inline]
fn word() -> *mut u32 {
    if let Some(at) = word_at(WORDS.load(Ordering::Relaxed)) {
        return at;
    }
    let at: *mut u32;
    // SAFETY: a call of a TLS descriptor gives the offset from the thread pointer and keeps all
    // other registers; the first word at the thread pointer is its own address (x86-64 ABI). What comes
    // out depends on the thread alone, so that one look does for the whole of a hook.
    unsafe {
        std::arch::asm!(
            "leaq gshare_mark@tlsdesc(%rip), %rax",
            "callq *gshare_mark@tlscall(%rax)",
            "addq %fs:0, %rax",
            out("rax") at,
            options(att_syntax, pure, nomem),
        );
    }
    at
}

std::arch::global_asm!(
    ".pushsection .tbss.gshare_mark,\"awT\",@nobits",
    ".globl gshare_mark",
    ".hidden gshare_mark",
    ".type gshare_mark,@object",
    ".size gshare_mark,16",
    ".balign 16",
    "gshare_mark:",
    ".zero 16",
    ".popsection",
);

/// Size of a place in bytes.
const PLACE: u32 = size_of::<Mark>() as u32;

/// Marks of a process without a page.
static OWN: [Mark; MARKS] = [const { Mark::new() }; MARKS];

/// One place before the first: a thread's third word is the offset in bytes to its own place; it is 0 before the thread
/// has one.
pub(crate) static PLACES: AtomicPtr<Mark> = AtomicPtr::new(before(&OWN));

const fn before(marks: &[Mark; MARKS]) -> *mut Mark {
    marks.as_ptr().cast_mut().wrapping_sub(1)
}

/// The last place is for all threads beyond the others: their marks tell little.
const CROWD: u32 = MARKS as u32 - 1;
static CROWDED: AtomicBool = AtomicBool::new(false);
/// Occupied places, as bits. A forked child keeps those of threads that it does not have.
static TAKEN: [AtomicU64; MARKS / 64] = {
    let mut taken = [const { AtomicU64::new(0) }; MARKS / 64];
    taken[MARKS / 64 - 1] = AtomicU64::new(1 << 63);
    taken
};
/// Threads beyond these; their numbers are not reused.
static LATER: AtomicU32 = AtomicU32::new(0);
/// Called when a thread comes that gets no place of its own.
static WHEN_CROWDED: OnceLock<fn()> = OnceLock::new();

/// Moves the marks to these places.
pub(crate) fn put_in(marks: &'static [Mark; MARKS], when_crowded: fn()) {
    PLACES.store(before(marks), Ordering::Release);
    WHEN_CROWDED.get_or_init(|| when_crowded);
}

/// Frees the place when its thread ends.
struct Ends(u32);

impl Drop for Ends {
    fn drop(&mut self) {
        // SAFETY: the thread's own words; the places stay mapped, and this one is still the thread's.
        unsafe {
            word().add(1).write(0);
            word().add(2).write(0);
        }
        // Orders the thread's counts before those of the next owner of its place.
        let taken = &TAKEN[self.0 as usize / 64];
        taken.fetch_and(!(1 << (self.0 % 64)), Ordering::Release);
    }
}

fn free_place() -> Option<u32> {
    let take = |taken: u64| (taken != u64::MAX).then(|| taken | (taken + 1));
    (0..).zip(&TAKEN).find_map(|(word, taken)| {
        let before = taken.fetch_update(Ordering::Acquire, Ordering::Relaxed, take);
        Some(word * 64 + before.ok()?.trailing_ones())
    })
}

/// Gives the calling thread a place and a number: its second and third word.
#[cold]
fn take_place() {
    thread_local!(static ENDS: std::cell::RefCell<Option<Ends>> = const { std::cell::RefCell::new(None) });
    find_words();
    let free = free_place();
    let number = if let Some(place) = free {
        // A thread that is ending cannot register: its place stays taken.
        let _ = ENDS.try_with(|ends| ends.borrow_mut().replace(Ends(place)));
        place + 1
    } else {
        CROWDED.store(true, Ordering::Relaxed);
        if let Some(tell) = WHEN_CROWDED.get() {
            tell();
        }
        let later = LATER.fetch_add(1, Ordering::Relaxed);
        CROWD + 1 + later % (1 << 23)
    };
    let words = word();
    // SAFETY: the thread's own words.
    unsafe {
        words.add(1).write(Thread::new(number).0);
        words.add(2).write((free.unwrap_or(CROWD) + 1) * PLACE);
    }
}

#[inline]
fn place(words: *mut u32) -> &'static AtomicU32 {
    // SAFETY: the thread's own words.
    let known = unsafe { words.add(2).read() };
    if known == 0 {
        take_place();
    }
    // SAFETY: as above.
    let offset = unsafe { words.add(2).read() };
    let before = PLACES.load(Ordering::Relaxed);
    // SAFETY: a place of the process's own marks or of a page that stays mapped for the rest of the process.
    unsafe { &(*before.wrapping_byte_add(offset as usize)).entry }
}

/// Bits of a thread's first word: its function uses the thread's default stream; it copies bytes.
const PER_THREAD: u32 = 1 << 31;
const COPIES: u32 = 1 << 30;

/// The kind of a function, derived from its name.
pub(crate) const fn kind(name: &str) -> u32 {
    let name = name.as_bytes();
    let mut kind = 0;
    if let [.., b'_', b'p', b't', b's' | b'd', b'z' | b's'] = name {
        kind |= PER_THREAD;
    }
    if let [b'c', b'u', b'M', b'e', b'm', b'c', b'p', b'y', ..] = name {
        kind |= COPIES;
    }
    kind
}

/// The place of the calling thread.
pub(crate) fn own_place() -> &'static AtomicU32 {
    place(word())
}

/// Marks the calling thread as inside a hook during its lifetime.
pub(crate) struct Inside {
    words: *mut u32,
    place: &'static AtomicU32,
}

impl Inside {
    #[inline]
    pub(crate) fn new(entry: u32, kind: u32) -> Self {
        let words = word();
        let place = place(words);
        // SAFETY: the thread's own word.
        unsafe { words.write_volatile((entry + 1) | kind) };
        place.store(entry + 1, Ordering::Relaxed);
        // The service orders this store before later ones, see `gshare_abi::barrier`; the compiler must not reorder it.
        std::sync::atomic::compiler_fence(Ordering::SeqCst);
        Self { words, place }
    }
}

/// The same for a thread that has made such a call before, and a hook that asks for none of the other words.
pub(crate) struct Quick {
    pub(crate) thread: Thread,
    place: &'static AtomicU32,
}

impl Quick {
    #[inline(always)]
    pub(crate) fn new(entry: u32) -> Option<Self> {
        let words = word_at(WORDS.load(Ordering::Relaxed))?;
        // SAFETY: the thread's own words.
        let (number, offset) = unsafe { (words.add(1).read(), words.add(2).read()) };
        if number == 0 {
            return None;
        }
        let before = PLACES.load(Ordering::Relaxed);
        // SAFETY: as in `place`; a thread with a number has one.
        let place = unsafe { &(*before.wrapping_byte_add(offset as usize)).entry };
        place.store(entry + 1, Ordering::Relaxed);
        // As in `Inside`.
        std::sync::atomic::compiler_fence(Ordering::SeqCst);
        let thread = Thread(number);
        Some(Self { thread, place })
    }

    #[inline(always)]
    pub(crate) fn end(self) {
        self.place.store(0, Ordering::Release);
    }
}

/// Clears the calling thread's mark; returns what puts it back.
pub(crate) fn step_out() -> impl Fn() + Copy {
    let place = own_place();
    let mark = place.swap(0, Ordering::SeqCst);
    move || place.store(mark, Ordering::SeqCst)
}

impl Drop for Inside {
    #[inline]
    fn drop(&mut self) {
        // SAFETY: the thread's own word; the guard does not leave the thread.
        unsafe { self.words.write_volatile(0) };
        // Orders the call's effects before it.
        self.place.store(0, Ordering::Release);
    }
}

/// Threads with a stripe of their own; later ones share the rest.
const OWNERS: u32 = STRIPES as u32 / 2;
const SHARED: u32 = 1 << 7;

/// A thread: its number among the threads that count now, above the byte that says where it counts.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Thread(u32);

impl Thread {
    /// The first number is 1.
    fn new(number: u32) -> Self {
        let stripe = if number <= OWNERS {
            number - 1
        } else {
            SHARED | OWNERS | (number % OWNERS)
        };
        Self(number << 8 | stripe)
    }

    #[inline]
    pub(crate) fn current() -> Self {
        let words = word();
        place(words);
        // SAFETY: the thread's own second word, which it has together with its place.
        Self(unsafe { words.add(1).read() })
    }

    /// Differs from that of every other thread that runs.
    #[inline]
    pub(crate) fn id(self) -> usize {
        self.0 as usize
    }

    /// Whether no other thread counts in its stripe.
    #[inline]
    pub(crate) fn has_own_stripe(self) -> bool {
        self.0 & SHARED == 0
    }

    /// Its stripe among the process's stripes.
    #[inline]
    pub(crate) fn stripe(self) -> usize {
        self.0 as usize % STRIPES
    }
}

/// The calling thread's hook, by its place in the table.
pub(crate) fn entry() -> Option<u32> {
    // SAFETY: the thread's own word.
    unsafe { word().read_volatile() & !(PER_THREAD | COPIES) }.checked_sub(1)
}

/// Whether the calling thread is inside a function of this kind; `None` if unknown.
fn is_of(kind: u32) -> Option<bool> {
    // SAFETY: the thread's own word.
    let word = unsafe { word().read_volatile() };
    (word != 0).then_some(word & kind != 0)
}

/// Whether the calling thread's function uses the thread's default stream.
pub(crate) fn is_per_thread() -> Option<bool> {
    is_of(PER_THREAD)
}

/// Whether that function copies bytes rather than filling memory.
pub(crate) fn is_copy() -> bool {
    is_of(COPIES) == Some(true)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{cuda::NOT_FOUND, table::passed};

    fn read() -> u32 {
        // SAFETY: the thread's own word.
        unsafe { word().read_volatile() }
    }

    /// Tests that count on free places run one at a time.
    static ONE: std::sync::Mutex<()> = std::sync::Mutex::new(());

    #[test]
    fn threads_count_apart() {
        let _one = ONE
            .lock()
            .unwrap_or_else(std::sync::PoisonError::into_inner);
        let first = Thread::current();
        assert_eq!(Thread::current(), first, "a thread keeps its number");
        let others: Vec<Thread> = (0..4)
            .filter_map(|_| std::thread::spawn(Thread::current).join().ok())
            .collect();
        assert_eq!(others.len(), 4);
        assert!(others.iter().all(|other| *other != first));

        for _ in 0..200 {
            let next = std::thread::spawn(|| Thread::current().id() >> 8).join();
            assert!(
                next.is_ok_and(|number| number <= MARKS),
                "the number of an ended thread is reused"
            );
        }
        let there = AtomicU32::new(0);
        let count = || {
            let number = Thread::current().id();
            there.fetch_add(1, Ordering::SeqCst);
            let until = std::time::Instant::now() + std::time::Duration::from_secs(60);
            while there.load(Ordering::SeqCst) < 100 && std::time::Instant::now() < until {
                std::thread::sleep(std::time::Duration::from_millis(1));
            }
            number
        };
        let mut numbers: Vec<usize> = std::thread::scope(|scope| {
            let threads: Vec<_> = (0..100).map(|_| scope.spawn(count)).collect();
            let joined = threads.into_iter().filter_map(|thread| thread.join().ok());
            joined.collect()
        });
        numbers.sort_unstable();
        numbers.dedup();
        assert_eq!(
            numbers.len(),
            100,
            "no two running threads have the same number"
        );

        let all: Vec<Thread> = (1..100).map(Thread::new).collect();
        let (own, shared): (Vec<Thread>, Vec<Thread>) =
            all.iter().partition(|thread| thread.has_own_stripe());
        assert_eq!(own.len(), OWNERS as usize);
        for thread in &own {
            let there = all.iter().filter(|other| other.stripe() == thread.stripe());
            assert_eq!(there.count(), 1, "{thread:?}");
        }
        assert!(shared.iter().all(|thread| thread.stripe() < STRIPES));
        let neighbours = shared.windows(STRIPES / 2).all(|some| {
            let stripes: std::collections::HashSet<usize> =
                some.iter().map(|thread| thread.stripe()).collect();
            stripes.len() == some.len()
        });
        assert!(
            neighbours,
            "threads with neighbouring numbers use separate stripes"
        );
    }

    #[test]
    fn names_say_what_functions_are() {
        for (name, is) in [
            ("cuMemcpy_ptds", PER_THREAD | COPIES),
            ("cuMemcpyDtoDAsync_v2_ptsz", PER_THREAD | COPIES),
            ("cuLaunchKernel_ptsz", PER_THREAD),
            ("cuMemcpy2D_v2", COPIES),
            ("cuMemsetD8_v2", 0),
        ] {
            assert_eq!(kind(name), is, "{name}");
        }
        let inside = Inside::new(6, PER_THREAD);
        assert_eq!(
            (entry(), is_per_thread(), is_copy()),
            (Some(6), Some(true), false)
        );
        drop(inside);
        assert_eq!((entry(), is_per_thread()), (None, None));
    }

    #[test]
    fn calls_are_marked_while_they_last_in_places_that_are_used_again() {
        let _one = ONE
            .lock()
            .unwrap_or_else(std::sync::PoisonError::into_inner);
        let inside = Inside::new(6, 0);
        assert_eq!((read(), own_place().load(Ordering::Relaxed)), (7, 7));
        let elsewhere = std::thread::spawn(|| (read(), own_place().load(Ordering::Relaxed))).join();
        assert_eq!(elsewhere.ok(), Some((0, 0)), "each thread has its own");
        drop(inside);
        assert_eq!((read(), own_place().load(Ordering::Relaxed)), (0, 0));
        // A library that was never staged has no driver behind it.
        let at = passed::NAMES
            .iter()
            .position(|name| *name == "cuCtxGetFlags");
        let (_, entry) = passed::rows()[at.unwrap_or(0)];
        // SAFETY: with no driver behind it no argument is looked at.
        let code = unsafe {
            std::mem::transmute::<*mut std::ffi::c_void, extern "C" fn(usize) -> i32>(entry)(0)
        };
        assert_eq!(code, NOT_FOUND);
        assert_eq!(
            own_place().load(Ordering::Relaxed),
            0,
            "the call cleared its place on return"
        );
        // Places are reused, and excess threads share one.
        for _ in 0..3 * MARKS {
            let used = std::thread::spawn(|| drop(Inside::new(1, 0))).join();
            assert!(used.is_ok());
        }
        assert!(!CROWDED.load(Ordering::Relaxed), "ended threads leave room");
        let all = std::sync::Barrier::new(MARKS + 8);
        std::thread::scope(|scope| {
            for _ in 0..MARKS + 8 {
                scope.spawn(|| {
                    let _inside = Inside::new(2, 0);
                    all.wait();
                });
            }
        });
        assert!(CROWDED.load(Ordering::Relaxed));
    }
}
