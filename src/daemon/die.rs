//! Crash points for tests: `gshare daemon --die-at STEP` kills the service at a chosen step. The option is hidden,
//! and neither clients nor the environment can set it. Installed programs are built without the feature
//! `crash-points`, which has both the option and the steps.

/// Crash points of a launch, in order: of the grant, the launcher's request (strict limits only), and a program's
/// registration. `-told` is before the answer is written, `-heard` after.
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

/// Crash points of a lever, in the order of a move: the move is journaled; calls wait in front of the driver; a
/// process is locked, its memory is in the host, then back on a GPU; it runs; all processes are on their GPUs. Then
/// the offloaded state is set, and the result is journaled.
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

/// Crash points of dividing a GPU: the layout is journaled; the mode is on; an instance is closed, removed, made,
/// opened; the mode is off.
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

/// Crash points of a claim on behalf, in addition to those of its grant: it is requested; its cgroup has the filter;
/// that it was there is journaled; at its end the filter is off; nothing knows of it any more.
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

/// Without the feature this does nothing.
#[cfg(not(feature = "crash-points"))]
pub(super) fn at(_step: &str) {}
/// Without the feature this does nothing.
#[cfg(not(feature = "crash-points"))]
pub(super) fn after_answer(_step: &str) {}
/// Without the feature this does nothing.
#[cfg(not(feature = "crash-points"))]
pub(super) fn answered() {}

#[cfg(feature = "crash-points")]
mod points {
    use std::sync::OnceLock;
    use std::sync::atomic::{AtomicBool, Ordering};

    use super::{BEHALF_STEPS, LEVER_STEPS, MIG_STEPS, STEPS};

    static CHOSEN: OnceLock<String> = OnceLock::new();
    /// Die after the next answer has been written.
    static ARMED: AtomicBool = AtomicBool::new(false);

    /// Chooses the step, once per process.
    ///
    /// # Errors
    ///
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

    /// Dies here, as by SIGKILL, if this step was chosen.
    pub(in crate::daemon) fn at(step: &str) {
        if is(step) {
            let _ = nix::sys::signal::raise(nix::sys::signal::Signal::SIGKILL);
        }
    }

    /// Dies here, but after the next answer has been written.
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
