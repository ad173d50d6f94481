//! Copies and fills: treated like launches on a shared GPU, except that short ones pass.
//!
//! The hooks take every argument as a register's worth of bits and pass it on unchanged, so that all functions of one
//! shape share a hook.

#![allow(clippy::too_many_arguments, reason = "the driver's signatures")]

use gshare_gate::Key;

use super::launch::{counted_as, let_through, note_copy};
use crate::{
    cuda::{CuResult, Handle},
    mark,
    work::Work,
};

/// Copies up to this size pass in any turn: they take some microseconds, and programs wait for them.
const SHORT_BYTES: usize = 64 << 10;

/// Groups sizes of about the same duration: the upper three bits, and the number of bits that follow.
fn size_class(bytes: usize) -> u64 {
    let rest = bytes.checked_ilog2().unwrap_or(0).saturating_sub(2);
    ((bytes >> rest) as u64) << 8 | u64::from(rest)
}

#[inline]
fn moved(
    stream: Handle,
    bytes: impl FnOnce() -> usize,
    call: impl FnOnce() -> CuResult,
) -> CuResult {
    let bytes = bytes();
    let entry = mark::entry().unwrap_or(0);
    let copied = if mark::is_copy() && bytes != UNKNOWN {
        bytes as u64
    } else {
        0
    };
    if bytes <= SHORT_BYTES {
        return let_through(copied, call);
    }
    let key = Key::kernel(entry as usize, size_class(bytes), u64::MAX);
    let call = || {
        let result = call();
        note_copy(copied, result);
        result
    };
    counted_as(stream, key, false, 0, || Work::moved(key), call)
}

/// Product of `COUNT` consecutive words of a description that the program passes by address.
///
/// # Safety
/// `description` is NULL or contains these words.
unsafe fn product<const COUNT: usize>(description: usize, at: usize) -> usize {
    let words = description as *const usize;
    if words.is_null() {
        return 0;
    }
    (at..at + COUNT).fold(1, |product: usize, word| {
        // SAFETY: as the caller promises; the driver reads them too.
        product.saturating_mul(unsafe { words.add(word).read_unaligned() })
    })
}

/// Width and height in `CUDA_MEMCPY2D`.
unsafe fn flat(description: usize) -> usize {
    // SAFETY: the caller's own description.
    unsafe { product::<2>(description, 14) }
}

/// Width, height and depth in `CUDA_MEMCPY3D` and `CUDA_MEMCPY3D_PEER`.
unsafe fn deep(description: usize) -> usize {
    // SAFETY: the caller's own description.
    unsafe { product::<3>(description, 22) }
}

macro_rules! moves {
    ($($name:ident($($arg:ident),*) on $stream:expr, $bytes:expr;)*) => {
        $(
            pub(crate) unsafe fn $name(
                original: unsafe extern "C" fn($(moves!(@ $arg)),*) -> CuResult,
                $($arg: usize),*
            ) -> CuResult {
                // SAFETY: the caller's own arguments.
                #[allow(unused_unsafe, reason = "some sizes are read from the program's memory")]
                moved($stream, || unsafe { $bytes }, || unsafe { original($($arg),*) })
            }
        )*
    };
    (@ $arg:ident) => { usize };
}

/// A size that is not looked up.
const UNKNOWN: usize = usize::MAX;

moves! {
    line(a, b, bytes) on 0, bytes;
    line_async(a, b, bytes, stream) on stream, bytes;
    array(a, b, c, bytes) on 0, bytes;
    array_async(a, b, c, bytes, stream) on stream, bytes;
    across(a, b, c, d, bytes) on 0, bytes;
    across_async(a, b, c, d, bytes, stream) on stream, bytes;
    rows(a, b, c, width, height) on 0, width.saturating_mul(height);
    rows_async(a, b, c, width, height, stream) on stream, width.saturating_mul(height);
    flat_old(copy) on 0, if copy == 0 { 0 } else { UNKNOWN };
    flat_old_async(copy, stream) on stream, if copy == 0 { 0 } else { UNKNOWN };
    flat_copy(copy) on 0, flat(copy);
    flat_copy_async(copy, stream) on stream, flat(copy);
    deep_copy(copy) on 0, deep(copy);
    deep_copy_async(copy, stream) on stream, deep(copy);
    list_3(a, b, stream) on stream, UNKNOWN;
    list_4(a, b, c, stream) on stream, UNKNOWN;
    list_5(a, b, c, d, stream) on stream, UNKNOWN;
    list_8(a, b, c, d, e, f, g, stream) on stream, UNKNOWN;
    list_9(a, b, c, d, e, f, g, h, stream) on stream, UNKNOWN;
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_of_one_class_differ_by_a_quarter_at_most() {
        let mut last = 0;
        for bytes in (1..200_000).chain((1 << 40..1 << 41).step_by(1 << 35)) {
            let class = size_class(bytes);
            let (top, rest) = (class >> 8, class & 0xff);
            let (least, most) = (top << rest, ((top + 1) << rest) - 1);
            assert!((least..=most).contains(&(bytes as u64)), "{bytes}");
            assert!(bytes < 8 || most - least < least / 3, "{bytes}");
            assert_ne!(class, 0);
            last = class;
        }
        assert_ne!(last, 0);
    }

    #[test]
    fn descriptions_are_read_where_the_headers_have_them() {
        let mut words = [0_usize; 25];
        (words[14], words[15]) = (30, 7);
        (words[22], words[23], words[24]) = (5, 6, 7);
        let at = words.as_ptr() as usize;
        // SAFETY: 25 words.
        assert_eq!(unsafe { (flat(at), deep(at)) }, (210, 210));
        // SAFETY: NULL is allowed.
        assert_eq!(unsafe { (flat(0), deep(0)) }, (0, 0));
    }
}
