//! Whether the claim has its GPUs: a word of its page, checked by every call.

use std::sync::atomic::{AtomicPtr, AtomicU32, Ordering};

use gshare_abi::State;

/// The state word outside claims.
static OPEN: AtomicU32 = AtomicU32::new(State::Granted as u32);

/// The state word for the trampolines. The GPUs of a claim are granted and taken together, so the first one's word
/// counts for all.
pub(crate) static WORD: AtomicPtr<AtomicU32> = AtomicPtr::new((&raw const OPEN).cast_mut());

/// Makes calls check this word from now on.
pub(crate) fn look_at(word: &'static AtomicU32) {
    WORD.store(std::ptr::from_ref(word).cast_mut(), Ordering::Release);
}

/// Whether calls of a process that is not a member must ask first: its `cuInit` was postponed, and some programs
/// (Numba) assume that it has succeeded.
pub(crate) fn put_off(on: bool) {
    let state = if on { State::Detached } else { State::Granted };
    OPEN.store(state as u32, Ordering::SeqCst);
}

/// The word itself, for a wait.
#[inline]
pub(crate) fn word() -> &'static AtomicU32 {
    // SAFETY: points to a static or to a page that stays mapped for the rest of the process.
    unsafe { &*WORD.load(Ordering::Acquire) }
}

/// The present state.
pub(crate) fn state() -> State {
    State::from_word(word().load(Ordering::Relaxed))
}
