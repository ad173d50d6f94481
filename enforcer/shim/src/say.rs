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

/// What there is to say about a refusal; figures in bytes.
pub(crate) struct AtCap<'a> {
    pub(crate) claim: &'a str,
    pub(crate) gpu: String,
    pub(crate) charged: u64,
    pub(crate) cap: u64,
    pub(crate) asked: u64,
    /// What the GPU had free when the service last looked.
    pub(crate) driver_free: Option<u64>,
    /// The least that the driver takes.
    pub(crate) least: u64,
}

/// The line about a refusal: a claim that is full is at its cap, one that is not had too much asked
/// of it.
pub(crate) fn at_cap(what: &AtCap<'_>) -> String {
    let AtCap { claim, gpu, .. } = what;
    let left = what.cap.saturating_sub(what.charged);
    let mut line = if left < what.least {
        let share = share(what.charged, what.cap);
        format!("claim {claim} is at its cap: {share} on {gpu}")
    } else {
        let (asked, cap) = (amount(what.asked), amount(what.cap));
        let left = amount_below(left);
        format!("claim {claim}: {asked} asked, {left} left of its cap of {cap} on {gpu}")
    };
    // What is free beyond that which the claim may still take.
    let more = what.driver_free.map_or(0, |free| free.saturating_sub(left));
    if more >= what.least {
        let more = amount_below(more);
        // Writing to a String cannot fail.
        let _ = write!(line, "; {more} more is free there");
    }
    line
}

/// As [`amount`], rounded down: what is left must not read as enough when it is not.
fn amount_below(bytes: u64) -> String {
    let unit = match bytes {
        ..0x400 => 1,
        0x400..0x10_0000 => 1 << 10,
        0x10_0000..0x4000_0000 => 1 << 20,
        _ => 1 << 30,
    };
    let tenths = bytes.saturating_mul(10) / unit;
    amount((tenths.saturating_mul(unit)).div_ceil(10).min(bytes))
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
    fn a_refusal_says_whether_the_claim_is_full_and_what_is_free() {
        let mut what = AtCap {
            claim: "c3",
            gpu: "GPU 1".to_owned(),
            charged: 6 << 30,
            cap: 6 << 30,
            asked: 1 << 20,
            driver_free: Some(1_990 << 20),
            least: 2 << 20,
        };
        assert_eq!(
            at_cap(&what),
            "claim c3 is at its cap: 6.0 of 6.0 GiB on GPU 1; 1.9 GiB more is free there"
        );
        what.driver_free = None;
        assert_eq!(
            at_cap(&what),
            "claim c3 is at its cap: 6.0 of 6.0 GiB on GPU 1"
        );
        what.charged = 8 << 30;
        assert_eq!(
            at_cap(&what),
            "claim c3 is at its cap: 8.0 of 6.0 GiB on GPU 1"
        );
        what.charged = 5 << 30;
        what.asked = 3 << 30;
        what.driver_free = Some((1 << 30) + (2 << 20));
        assert_eq!(
            at_cap(&what),
            "claim c3: 3.0 GiB asked, 1.0 GiB left of its cap of 6.0 GiB on GPU 1; 2 MiB more is \
             free there"
        );
        what.charged += 1;
        what.asked = 1 << 30;
        what.driver_free = Some(0);
        assert_eq!(
            at_cap(&what),
            "claim c3: 1.0 GiB asked, 1023.9 MiB left of its cap of 6.0 GiB on GPU 1"
        );
    }

    #[test]
    fn one_caller_per_second_may_speak() {
        let pace = Pace::default();
        assert!(pace.due());
        assert!(!pace.due());
    }
}
