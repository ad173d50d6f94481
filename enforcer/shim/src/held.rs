//! Whether the claim holds its GPUs: one word of its page, at which every call looks.

use std::sync::atomic::{AtomicPtr, AtomicU32, Ordering};

use gshare_abi::State;

/// The state word of a process that is in no claim.
static OPEN: AtomicU32 = AtomicU32::new(State::Granted as u32);

/// The state word that the trampolines look at. The GPUs of a claim are granted and taken together,
/// so that of the first one speaks for all.
pub(crate) static WORD: AtomicPtr<AtomicU32> = AtomicPtr::new((&raw const OPEN).cast_mut());

/// From now on calls look at this word.
pub(crate) fn look_at(word: &'static AtomicU32) {
    WORD.store(std::ptr::from_ref(word).cast_mut(), Ordering::Release);
}

/// Whether calls of a process that is no member must ask first: its `cuInit` was put off, and some programs (Numba)
/// take that for done.
pub(crate) fn put_off(on: bool) {
    let state = if on { State::Detached } else { State::Granted };
    OPEN.store(state as u32, Ordering::SeqCst);
}

/// The word itself, to wait on.
#[inline]
pub(crate) fn word() -> &'static AtomicU32 {
    // SAFETY: points to a static or to a page that stays mapped for the rest of the process.
    unsafe { &*WORD.load(Ordering::Acquire) }
}

/// What it says now.
pub(crate) fn state() -> State {
    State::from_word(word().load(Ordering::Relaxed))
}
