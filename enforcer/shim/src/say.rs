//! Lines for the person at the terminal: few, whole, and never more than one a second of a kind.

use std::{
    fmt::Write,
    sync::atomic::{AtomicU64, Ordering},
};

use gshare_abi::{GpuUuid, monotonic_ns};

const PAUSE_NS: u64 = 1_000_000_000;

/// Lets one caller per second through.
#[derive(Debug, Default)]
pub(crate) struct Pace(AtomicU64);

impl Pace {
    pub(crate) fn due(&self) -> bool {
        let now = monotonic_ns().max(1);
        let last = self.0.load(Ordering::Relaxed);
        (last == 0 || now.saturating_sub(last) >= PAUSE_NS)
            && self
                .0
                .compare_exchange(last, now, Ordering::Relaxed, Ordering::Relaxed)
                .is_ok()
    }
}

/// Writes one line to stderr in one piece, past whatever buffer the program has.
pub(crate) fn line(text: &str) {
    let line = format!("gshare: {text}\n");
    // SAFETY: the buffer is alive for its whole length. Failure means that nobody listens.
    unsafe { libc::write(2, line.as_ptr().cast(), line.len()) };
}

/// Bytes for people: `512 MiB`, `6.0 GiB`.
pub(crate) fn amount(bytes: u64) -> String {
    let units = ["B", "KiB", "MiB", "GiB", "TiB"];
    let mut unit = 0;
    let mut value = bytes as f64;
    while value >= 1024.0 && unit + 1 < units.len() {
        value /= 1024.0;
        unit += 1;
    }
    let mut text = String::new();
    let digits = usize::from(unit >= 3 || (unit > 0 && value.fract() != 0.0));
    // Writing to a String cannot fail.
    let _ = write!(text, "{value:.digits$} {}", units[unit]);
    text
}

/// `6.0 of 6.0 GiB`, the unit once where it is the same.
pub(crate) fn share(part: u64, whole: u64) -> String {
    let (part, whole) = (amount(part), amount(whole));
    match (part.split_once(' '), whole.split_once(' ')) {
        (Some((number, unit)), Some((_, other))) if unit == other => {
            format!("{number} of {whole}")
        }
        _ => format!("{part} of {whole}"),
    }
}

/// The start of a UUID, by which nvidia-smi and CUDA_VISIBLE_DEVICES know a GPU too.
pub(crate) fn short(uuid: GpuUuid) -> String {
    let mut text = uuid.to_string();
    text.truncate(12);
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn amounts_read_as_people_write_them() {
        for (bytes, text) in [
            (0, "0 B"),
            (512 << 20, "512 MiB"),
            (6 << 30, "6.0 GiB"),
            (1536, "1.5 KiB"),
            ((12 << 30) + (205 << 20), "12.2 GiB"),
        ] {
            assert_eq!(amount(bytes), text);
        }
        assert_eq!(share(6 << 30, 6 << 30), "6.0 of 6.0 GiB");
        assert_eq!(share(512 << 20, 6 << 30), "512 MiB of 6.0 GiB");
        assert_eq!(short(GpuUuid([0xab; 16])), "GPU-abababab");
    }

    #[test]
    fn one_caller_per_second_may_speak() {
        let pace = Pace::default();
        assert!(pace.due());
        assert!(!pace.due());
    }
}
