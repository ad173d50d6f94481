//! The service's death at a step of one's choice, for the tests of what it leaves: `gshare daemon --die-at STEP`.
//! A hidden option of whoever starts the service; no client and no environment reaches it. What is installed is built
//! without the feature `crash-points` and has neither the option nor the steps.

/// The steps of a launch at which it can be asked to die, in their order: of the grant, of the launcher's
/// request (strict caps only), of a program's registration. `-told` is before the answer is written, `-heard` after.
#[cfg(feature = "crash-points")]
pub const STEPS: [&str; 20] = [
    "claim-asked",
    "grant-decided",
    "grant-journaled",
    "grant-cgroup",
    "grant-filter",
    "grant-limits-page",
    "grant-usage-page",
    "grant-memory-limit",
    "grant-moved",
    "grant-told",
    "grant-heard",
    "launch-asked",
    "launch-checked",
    "launch-moved",
    "launch-told",
    "launch-heard",
    "member-asked",
    "member-seated",
    "member-told",
    "member-heard",
];

/// The same of a lever, in the order of a move: what is under way is journaled; calls wait in front of the driver; a
/// process is locked, its memory in the host, back on a GPU; it runs; all processes are where they were to go. Then what has
/// gone to the host is marked so, and all is journaled.
#[cfg(feature = "crash-points")]
pub const LEVER_STEPS: [&str; 9] = [
    "lever-journaled",
    "lever-drained",
    "lever-locked",
    "lever-out",
    "lever-back",
    "lever-unlocked",
    "lever-worked",
    "lever-parked",
    "lever-settled",
];

/// The same of dividing a GPU: what is wanted is journaled; the mode is on; an instance cannot be used any more, is removed,
/// is made, can be used; the mode is off.
#[cfg(feature = "crash-points")]
pub const MIG_STEPS: [&str; 7] = [
    "mig-journaled",
    "mig-mode",
    "mig-closed",
    "mig-removed",
    "mig-made",
    "mig-opened",
    "mig-whole",
];

/// The same of a claim on behalf, beside those of its grant: it is asked; its cgroup has the filter; that it was there is
/// journaled; at its end the filter is off; nothing knows of it any more.
#[cfg(feature = "crash-points")]
pub const BEHALF_STEPS: [&str; 5] = [
    "behalf-asked",
    "behalf-filter",
    "behalf-seen",
    "behalf-open",
    "behalf-ended",
];

#[cfg(feature = "crash-points")]
pub(super) use points::{after_answer, answered, at, choose};

/// Without crash points nothing happens here.
#[cfg(not(feature = "crash-points"))]
pub(super) fn at(_step: &str) {}
/// Likewise.
#[cfg(not(feature = "crash-points"))]
pub(super) fn after_answer(_step: &str) {}
/// Likewise.
#[cfg(not(feature = "crash-points"))]
pub(super) fn answered() {}

#[cfg(feature = "crash-points")]
mod points {
    use std::sync::OnceLock;
    use std::sync::atomic::{AtomicBool, Ordering};

    use super::{BEHALF_STEPS, LEVER_STEPS, MIG_STEPS, STEPS};

    static CHOSEN: OnceLock<String> = OnceLock::new();
    /// The next answer that is written is the one after which to die.
    static ARMED: AtomicBool = AtomicBool::new(false);

    /// Chooses the step, once for the process.
    ///
    /// # Errors
    /// When there is no such step.
    pub(in crate::daemon) fn choose(step: Option<&str>) -> anyhow::Result<()> {
        let Some(step) = step else { return Ok(()) };
        anyhow::ensure!(is_known(step), "there is no step `{step}`");
        let _ = CHOSEN.set(step.to_owned());
        Ok(())
    }

    fn is_known(step: &str) -> bool {
        let all = STEPS.iter().chain(&LEVER_STEPS).chain(&MIG_STEPS);
        let mut all = all.chain(&BEHALF_STEPS);
        all.any(|s| *s == step)
    }

    fn is(step: &str) -> bool {
        debug_assert!(is_known(step), "{step}");
        CHOSEN.get().is_some_and(|chosen| chosen == step)
    }

    /// Dies here, as by SIGKILL, if that was chosen.
    pub(in crate::daemon) fn at(step: &str) {
        if is(step) {
            let _ = nix::sys::signal::raise(nix::sys::signal::Signal::SIGKILL);
        }
    }

    /// The same, once the next answer has been written.
    pub(in crate::daemon) fn after_answer(step: &str) {
        if is(step) {
            ARMED.store(true, Ordering::SeqCst);
        }
    }

    /// An answer has been written.
    pub(in crate::daemon) fn answered() {
        if ARMED.load(Ordering::SeqCst) {
            let _ = nix::sys::signal::raise(nix::sys::signal::Signal::SIGKILL);
        }
    }
}
