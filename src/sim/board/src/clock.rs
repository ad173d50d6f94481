//! The one clock of the board: `CLOCK_MONOTONIC`, in nanoseconds.
#![allow(unsafe_code, reason = "the clock is read through libc")]

/// Nanoseconds of `CLOCK_MONOTONIC`, the same for every process of the machine.
#[must_use]
pub fn now_ns() -> u64 {
    let mut ts = libc::timespec {
        tv_sec: 0,
        tv_nsec: 0,
    };
    // SAFETY: `ts` is a valid timespec to write to; the clock id is a constant that Linux knows.
    unsafe { libc::clock_gettime(libc::CLOCK_MONOTONIC, &raw mut ts) };
    ts.tv_sec.cast_unsigned() * 1_000_000_000 + ts.tv_nsec.cast_unsigned()
}
