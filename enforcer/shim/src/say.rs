//! Lines for the user at the terminal: few, complete, and at most one a second of each kind.

use std::{
    fmt::Write,
    mem::MaybeUninit,
    sync::atomic::{AtomicU64, Ordering},
};

use gshare_abi::{GpuUuid, enough, monotonic_ns, size_between};

const PAUSE_NS: u64 = 1_000_000_000;

/// Admits one call per second.
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

/// Writes one line to stderr in one piece, bypassing the program's buffers.
pub(crate) fn line(text: &str) {
    put(libc::STDERR_FILENO, &format!("gshare: {text}\n"));
}

/// Writes without blocking on a reader that does not read, and without SIGPIPE ending the program.
fn put(to: libc::c_int, line: &str) {
    let mut room = libc::pollfd {
        fd: to,
        events: libc::POLLOUT,
        revents: 0,
    };
    let mut pipe = MaybeUninit::<libc::sigset_t>::uninit();
    let mut old = MaybeUninit::<libc::sigset_t>::uninit();
    let none = libc::timespec {
        tv_sec: 0,
        tv_nsec: 0,
    };
    // SAFETY: one valid entry; the sets are filled before they are read, and only the calling thread's mask is touched;
    // the buffer is alive for its whole length.
    unsafe {
        if libc::poll(&raw mut room, 1, 0) != 1 || room.revents != libc::POLLOUT {
            return;
        }
        libc::sigemptyset(pipe.as_mut_ptr());
        libc::sigaddset(pipe.as_mut_ptr(), libc::SIGPIPE);
        libc::pthread_sigmask(libc::SIG_BLOCK, pipe.as_ptr(), old.as_mut_ptr());
        let written = libc::write(to, line.as_ptr().cast(), line.len());
        if written < 0 && *libc::__errno_location() == libc::EPIPE {
            // The reader went a moment ago; the blocked signal is this thread's own.
            libc::sigtimedwait(pipe.as_ptr(), std::ptr::null_mut(), &raw const none);
        }
        libc::pthread_sigmask(libc::SIG_SETMASK, old.as_ptr(), std::ptr::null_mut());
    }
}

/// The facts about a refusal; figures in bytes.
pub(crate) struct AtCap<'a> {
    pub(crate) claim: &'a str,
    /// The claim's number for commands.
    pub(crate) number: u64,
    pub(crate) gpu: String,
    pub(crate) charged: u64,
    pub(crate) cap: u64,
    /// Highest charge of the program.
    pub(crate) peak: u64,
    /// Requested by the program.
    pub(crate) asked: u64,
    /// The driver's size for them.
    pub(crate) whole: u64,
    /// Largest possible guarantee of the claim on each of its GPUs at the service's last update.
    pub(crate) reach: Option<u64>,
    pub(crate) total: Option<u64>,
    /// The driver's smallest allocation.
    pub(crate) least: u64,
}

/// The line about a refusal: a claim that is full is at its cap, otherwise the request was too large. A remedy follows
/// if there is one.
pub(crate) fn at_cap(what: &AtCap<'_>) -> String {
    let AtCap { claim, gpu, .. } = what;
    let left = what.cap.saturating_sub(what.charged);
    let mut line = if left < what.least {
        let share = share(what.charged, what.cap);
        format!("claim {claim} has reached its memory limit: {share} on {gpu}")
    } else {
        let (asked, cap) = (amount(what.asked), amount(what.cap));
        let (rest, lacks) = (amount_below(left), what.whole.saturating_sub(left));
        let than = if asked == rest {
            format!("{} more than the claim has", amount(lacks))
        } else {
            format!("but the claim has {rest}")
        };
        format!(
            "claim {claim}: the program asked for {asked}, {than} left of its limit of {cap} on {gpu}"
        )
    };
    line.push_str(&way_out(what));
    line
}

/// The user's remedy for a refusal.
fn way_out(what: &AtCap<'_>) -> String {
    let needed = what.charged.saturating_add(what.whole);
    let resize = |size: &str| format!("gshare resize c{} --gpu-mem {size}", what.number);
    if let Some(total) = what.total.filter(|total| needed > *total) {
        return format!("; the GPU has {} in all: ask for less", amount(total));
    }
    let Some(reach) = what.reach else {
        return String::new();
    };
    let more = reach.saturating_sub(what.cap.max(what.charged));
    let free = if more < what.least {
        "no more is free there".to_owned()
    } else {
        format!("{} more is free there", amount_below(more))
    };
    if let Some(size) = enough(needed, what.peak, reach) {
        return format!("; {free}: {}", resize(&size));
    }
    match size_between(needed, what.total.unwrap_or(u64::MAX)) {
        Some(size) => format!("; {free}; to wait for more: {} --wait", resize(&size)),
        None => format!("; {free}"),
    }
}

/// As [`amount`], rounded down: the rest must not look sufficient when it is not.
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

/// `6.0 of 6.0 GiB`, with the unit once if it is the same.
pub(crate) fn share(part: u64, whole: u64) -> String {
    let (part, whole) = (amount(part), amount(whole));
    match (part.split_once(' '), whole.split_once(' ')) {
        (Some((number, unit)), Some((_, other))) if unit == other => {
            format!("{number} of {whole}")
        }
        _ => format!("{part} of {whole}"),
    }
}

/// The start of a UUID, which nvidia-smi and CUDA_VISIBLE_DEVICES also accept.
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

    const MIB: u64 = 1 << 20;
    const GIB: u64 = 1 << 30;

    fn full() -> AtCap<'static> {
        AtCap {
            claim: "c3",
            number: 3,
            gpu: "GPU 1".to_owned(),
            charged: 6 * GIB,
            cap: 6 * GIB,
            peak: 0,
            asked: 2 * GIB - 5,
            whole: 2 * GIB,
            reach: Some(8 * GIB),
            total: Some(24 * GIB),
            least: 2 * MIB,
        }
    }

    #[test]
    fn a_refusal_names_the_way_out_where_so_much_is_free() {
        let mut what = full();
        assert_eq!(
            at_cap(&what),
            "claim c3 has reached its memory limit: 6.0 of 6.0 GiB on GPU 1; 2.0 GiB more is free there: gshare \
             resize c3 --gpu-mem 8G"
        );
        what.reach = Some(16 * GIB);
        let line = at_cap(&what);
        assert!(
            line.ends_with("--gpu-mem 10G"),
            "a fifth more than 8 GiB: {line}"
        );
        what.peak = 10 * GIB;
        let line = at_cap(&what);
        assert!(
            line.ends_with("--gpu-mem 12G"),
            "it had more before: {line}"
        );
        // Less is free: a size in between that still suffices.
        what.claim = "training";
        what.whole = GIB + 200 * MIB;
        what.reach = Some(7 * GIB + 943 * MIB);
        assert_eq!(
            at_cap(&what),
            "claim training has reached its memory limit: 6.0 of 6.0 GiB on GPU 1; 1.9 GiB more is free there: \
             gshare resize c3 --gpu-mem 7.5G"
        );
        what.reach = Some(7 * GIB + 210 * MIB);
        assert!(
            at_cap(&what).ends_with("--gpu-mem 7368M"),
            "{}",
            at_cap(&what)
        );
        what.reach = Some(7 * GIB + 199 * MIB);
        assert_eq!(
            at_cap(&what),
            "claim training has reached its memory limit: 6.0 of 6.0 GiB on GPU 1; 1.1 GiB more is free there; to \
             wait for more: gshare resize c3 --gpu-mem 8G --wait"
        );
    }

    #[test]
    fn a_refusal_without_a_way_out_says_what_is_known() {
        let mut what = full();
        what.reach = None;
        assert_eq!(
            at_cap(&what),
            "claim c3 has reached its memory limit: 6.0 of 6.0 GiB on GPU 1"
        );
        what.reach = Some(6 * GIB);
        assert_eq!(
            at_cap(&what),
            "claim c3 has reached its memory limit: 6.0 of 6.0 GiB on GPU 1; no more is free there; to wait for \
             more: gshare resize c3 --gpu-mem 8G --wait"
        );
        what.asked = 30 * GIB;
        what.whole = 30 * GIB;
        assert_eq!(
            at_cap(&what),
            "claim c3 has reached its memory limit: 6.0 of 6.0 GiB on GPU 1; the GPU has 24.0 GiB in all: ask for \
             less"
        );
        what.total = None;
        what.whole = u64::MAX;
        assert!(at_cap(&what).ends_with("no more is free there"));
    }

    #[test]
    fn a_refusal_says_how_much_was_asked_where_the_claim_is_not_full() {
        let mut what = full();
        what.charged = 8 * GIB;
        what.reach = None;
        assert_eq!(
            at_cap(&what),
            "claim c3 has reached its memory limit: 8.0 of 6.0 GiB on GPU 1"
        );
        what.charged = 5 * GIB;
        what.asked = 3 * GIB;
        what.whole = 3 * GIB;
        what.reach = Some(6 * GIB + 2 * MIB);
        assert_eq!(
            at_cap(&what),
            "claim c3: the program asked for 3.0 GiB, but the claim has 1.0 GiB left of its limit of 6.0 GiB on GPU 1; \
             2 MiB more is \
             free there; to wait for more: gshare resize c3 --gpu-mem 8G --wait"
        );
        what.charged += 1;
        what.asked = GIB;
        what.reach = None;
        assert_eq!(
            at_cap(&what),
            "claim c3: the program asked for 1.0 GiB, but the claim has 1023.9 MiB left of its limit of 6.0 GiB on GPU 1"
        );
        what.charged = 3 * GIB;
        what.asked = 3 * GIB + 8 * MIB;
        what.whole = what.asked;
        assert_eq!(
            at_cap(&what),
            "claim c3: the program asked for 3.0 GiB, 8 MiB more than the claim has left of its limit of 6.0 GiB on GPU 1"
        );
    }

    #[test]
    fn a_line_that_nobody_reads_neither_waits_nor_kills() {
        use std::{io::Read, os::fd::AsRawFd};
        // As in real programs; that of a test ignores it. SAFETY: no handler.
        unsafe { libc::signal(libc::SIGPIPE, libc::SIG_DFL) };
        let (reader, writer) = std::io::pipe().expect("a pipe");
        drop(reader);
        put(writer.as_raw_fd(), "nobody");
        let (mut reader, writer) = std::io::pipe().expect("a pipe");
        let line = "x".repeat(4096);
        for _ in 0..100 {
            put(writer.as_raw_fd(), &line);
        }
        drop(writer);
        let mut all = Vec::new();
        reader.read_to_end(&mut all).expect("readable");
        assert_eq!(all.len(), 65536, "a pipe full, in whole lines");
    }

    #[test]
    fn one_caller_per_second_may_speak() {
        let pace = Pace::default();
        assert!(pace.due());
        assert!(!pace.due());
    }
}
