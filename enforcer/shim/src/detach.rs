//! A detached claim: its memory is in host RAM, and its calls wait here, in front of the driver, where signals reach
//! them. The first waiting call tells the service, which restores the memory as soon as there is room.

use std::{
    sync::atomic::{AtomicU64, Ordering},
    time::Duration,
};

use gshare_abi::{Reach, State, WAITS_FROM, futex_wait, monotonic_ns, wire};

use crate::{exit, held, hooks, mark, paths, process, process::Process, say, waiting::Ear};

/// A call that only queries waits this long before it asks for the memory: otherwise watchdogs that poll would restore
/// a detached claim all the time. Watchdogs have threads of their own; the first thread does the program's work, and
/// work on an array often begins with a query.
const ASKS_AFTER: Duration = Duration::from_secs(10);
/// An interrupt that another thread took is noticed within this time.
const NOTICE: Duration = Duration::from_millis(200);
/// Time between requests to the service, which may have restarted.
const AGAIN: Duration = Duration::from_secs(1);
/// Longest wait for the service's answer.
const ANSWER: Duration = Duration::from_millis(500);
/// When some thread last asked for the memory, last reported the reason for its wait, and last reported its end.
static KNOCKED_NS: AtomicU64 = AtomicU64::new(0);
static SPOKE_NS: AtomicU64 = AtomicU64::new(0);
static BACK_NS: AtomicU64 = AtomicU64::new(0);
/// When a call last reported that it stopped waiting.
static LEFT_NS: AtomicU64 = AtomicU64::new(0);

/// Whether calls must wait now.
#[inline]
pub(crate) fn is_due() -> bool {
    held::word().load(Ordering::Relaxed) >= WAITS_FROM
}

/// Whether a function only queries: a watchdog may call it without wanting the GPU.
pub(crate) fn only_asks(name: &str) -> bool {
    ["Get", "Query", "IsCapturing", "TotalMem"]
        .iter()
        .any(|word| name.contains(word))
}

/// Whether a function frees something, which would leak if the call failed.
fn gives_back(name: &str) -> bool {
    let words = [
        "Free",
        "Destroy",
        "Unload",
        "Release",
        "Unregister",
        "Unmap",
        "Close",
        "Pop",
    ];
    words.iter().any(|word| name.contains(word))
}

const fn starts_with(name: &str, start: &str) -> bool {
    let (name, start) = (name.as_bytes(), start.as_bytes());
    let mut i = 0;
    while i < start.len() {
        if i >= name.len() || name[i] != start[i] {
            return false;
        }
        i += 1;
    }
    true
}

/// Whether a hook needs no GPU and never waits.
pub(crate) const fn is_free(name: &str) -> bool {
    starts_with(name, "cuInit") || starts_with(name, "cuGetProcAddress")
}

/// Whether this thread is to do something that all threads together do once in a while.
fn turn(last: &AtomicU64, pause: Duration) -> bool {
    let (now, before) = (monotonic_ns(), last.load(Ordering::Relaxed));
    let due = before == 0 || now.saturating_sub(before) >= pause.as_nanos() as u64;
    due && last
        .compare_exchange(before, now, Ordering::Relaxed, Ordering::Relaxed)
        .is_ok()
}

/// Waits until the claim has its GPU, or never will again. `enter` marks the thread as inside before the last check, so
/// that the service sees it. False if an interrupt ended the wait: the call then fails with [`crate::cuda::NOT_READY`],
/// which has no side effects in the driver or the runtime and which polling code expects.
#[cold]
pub(crate) fn wait(name: &str, enter: impl Fn()) -> bool {
    let asks = only_asks(name);
    let Some(process) = process::current() else {
        // Its `cuInit` was postponed: this is the first use.
        hooks::lookup::init_late();
        enter();
        return true;
    };
    // Memory to be freed while the program ends goes with the program.
    let ear = (!gives_back(name) || exit::is_under_way()).then(Ear::new);
    let begun = monotonic_ns();
    let mut was_detached = false;
    loop {
        let gate = held::word();
        let word = gate.load(Ordering::SeqCst);
        if word < WAITS_FROM {
            enter();
            // As in a call: mark first, then check.
            std::sync::atomic::fence(Ordering::SeqCst);
            if held::word().load(Ordering::SeqCst) < WAITS_FROM {
                break;
            }
            continue;
        }
        let waited = Duration::from_nanos(monotonic_ns().saturating_sub(begun));
        if State::from_word(word) == State::Detached {
            was_detached = true;
            if !asks || is_first_thread() || waited >= ASKS_AFTER {
                knock(process);
            }
        }
        if ear.as_ref().is_some_and(Ear::hears) {
            if was_detached && turn(&LEFT_NS, AGAIN) {
                say::line(&format!(
                    "claim {}: this CUDA call stopped waiting for the claim's GPU memory; the next call waits again",
                    process.name
                ));
            }
            // A caller that asks again is told again.
            for last in [&KNOCKED_NS, &SPOKE_NS] {
                last.store(0, Ordering::Relaxed);
            }
            return false;
        }
        let pause = if ear.is_some() { NOTICE } else { AGAIN };
        let until = monotonic_ns().saturating_add(pause.as_nanos() as u64);
        futex_wait(gate, word, Some(until), Reach::Machine);
        process.keep_up();
    }
    let waited = Duration::from_nanos(monotonic_ns().saturating_sub(begun));
    if was_detached && turn(&BACK_NS, AGAIN) {
        say::line(&format!(
            "claim {} has its GPU memory back; this call waited {:.2} s",
            process.name,
            waited.as_secs_f64()
        ));
    }
    KNOCKED_NS.store(0, Ordering::Relaxed);
    true
}

/// Waits outside of a hook while the claim is detached; false if the call must not be made.
#[cold]
#[inline(never)]
pub(crate) fn hold_back(name: &str) -> bool {
    let step_in = mark::step_out();
    let wait = || wait(name, step_in);
    std::panic::catch_unwind(std::panic::AssertUnwindSafe(wait)).unwrap_or_else(|_| {
        step_in();
        true
    })
}

/// Whether this is the process's first thread.
fn is_first_thread() -> bool {
    // SAFETY: both only read numbers of the calling thread.
    unsafe { libc::syscall(libc::SYS_gettid) == libc::c_long::from(libc::getpid()) }
}

/// Asks the service for the memory.
fn knock(process: &Process) {
    if !turn(&KNOCKED_NS, AGAIN) {
        return;
    }
    let hint = (process.claim != 0).then_some(process.claim);
    let asked = monotonic_ns();
    let answer = wire::want(paths::socket(), hint, ANSWER);
    let took = Duration::from_nanos(monotonic_ns().saturating_sub(asked));
    let reason = match answer {
        // It was suspended during the request, and missed the answer: it asks again soon.
        Err(_) if took > 4 * ANSWER => return,
        Ok(reason) if reason.is_empty() => return,
        Ok(reason) => reason,
        Err(error) => format!("the service does not answer ({error})"),
    };
    if turn(&SPOKE_NS, Duration::from_secs(30)) {
        say::line(&format!(
            "claim {} is offloaded: its GPU memory is in host RAM. This call waits until it is restored: {reason}",
            process.name
        ));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn which_functions_only_ask() {
        for name in [
            "cuStreamQuery_ptsz",
            "cuEventQuery",
            "cuMemGetInfo_v2",
            "cuDeviceTotalMem_v2",
        ] {
            assert!(only_asks(name), "{name}");
        }
        for name in [
            "cuLaunchKernel",
            "cuMemcpyDtoH_v2",
            "cuCtxSynchronize",
            "cuMemFree_v2",
        ] {
            assert!(!only_asks(name), "{name}");
        }
        for (name, lost) in [
            ("cuMemFree_v2", true),
            ("cuStreamDestroy_v2", true),
            ("cuCtxPopCurrent_v2", true),
            ("cuLaunchKernel", false),
            ("cuCtxPushCurrent_v2", false),
        ] {
            assert_eq!(gives_back(name), lost, "{name}");
        }
        assert!(is_free("cuInit") && is_free("cuGetProcAddress_v2") && !is_free("cuIn"));
    }
}
