//! The capability, raised and dropped for good, and the settings that the kernel reset when it granted it.

use nix::sys::personality::{self, Persona};
use nix::sys::prctl;
use nix::sys::resource::{Resource, getrlimit, setrlimit};
use nix::sys::signal::{Signal, raise as raise_signal};
use nix::unistd::{getppid, getuid};

use gshare_abi::Handover;
use gshare_abi::wire::NO_NEW_PRIVS;

use crate::refusal::{INTERNAL, NOT_PERMITTED, Refusal};
use crate::sys::{self, SYS_ADMIN, Sets};

fn sets() -> Result<Sets, Refusal> {
    Sets::now()
        .map_err(|error| Refusal::new(INTERNAL, format!("capabilities cannot be read: {error}")))
}

/// Whether the kernel gave this program its capability, and if not, why. Without it the program never goes on silently.
pub(crate) fn check_privilege() -> Result<(), Refusal> {
    if sets()?.may(SYS_ADMIN) {
        return Ok(());
    }
    if prctl::get_no_new_privs().unwrap_or(false) {
        let [text, hint] = NO_NEW_PRIVS;
        return Err(Refusal::new(NOT_PERMITTED, text).hint(hint));
    }
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let traced = status
        .lines()
        .find_map(|line| line.strip_prefix("TracerPid:"))
        .is_some_and(|pid| pid.trim() != "0");
    let why = if traced {
        "it is being traced (strace, gdb)"
    } else {
        "its file has no capability, or is on a file system mounted nosuid, or gshare-exec was started in a user namespace"
    };
    Err(Refusal::new(
        NOT_PERMITTED,
        format!("this machine enforces strict limits, and gshare-exec lacks the capability to set them: {why}"),
    )
    .hint("gshare doctor says what is missing. To use strace or gdb, start it inside the claim: gshare claim -- strace CMD"))
}

pub(crate) fn raise() -> Result<(), Refusal> {
    sets()?
        .raised(SYS_ADMIN)
        .set()
        .map_err(|error| Refusal::new(INTERNAL, format!("the capability cannot be used: {error}")))
}

/// Drops all capabilities and checks that they are gone. The bounding set stays: it grants nothing, and without it
/// `sudo`, `ping` and the user's own mounts would fail inside a claim only.
pub(crate) fn for_good() -> Result<(), Refusal> {
    // Root had them all along and gets them back at exec; the kernel would count them as gained if they were dropped
    // here.
    if getuid().is_root() {
        return Ok(());
    }
    let failed = |error: std::io::Error| {
        Refusal::new(
            INTERNAL,
            format!("the capability cannot be given up: {error}"),
        )
    };
    sys::clear_ambient().map_err(failed)?;
    sets()?.dropped().set().map_err(failed)?;
    if sets()?.none() {
        Ok(())
    } else {
        Err(Refusal::new(
            INTERNAL,
            "the capability could not be given up: the process still has it",
        ))
    }
}

/// Restores what the kernel resets for every program that gains capabilities, with the user's own rights: what they do
/// not allow stays as it is.
pub(crate) fn restore(handover: &Handover) {
    if let Ok((soft, hard)) = getrlimit(Resource::RLIMIT_STACK)
        && soft != handover.stack_bytes
        && handover.stack_bytes <= hard
        && handover.stack_bytes > 0
    {
        let _ = setrlimit(Resource::RLIMIT_STACK, handover.stack_bytes, hard);
    }
    let persona = Persona::from_bits_retain(handover.personality.cast_signed());
    if personality::get().is_ok_and(|now| now != persona) {
        let _ = personality::set(persona);
    }
    let signal = i32::try_from(handover.death_signal)
        .ok()
        .map(Signal::try_from);
    if let Some(Ok(signal)) = signal
        && prctl::set_pdeathsig(signal).is_ok()
        && getppid().as_raw().cast_unsigned() != handover.parent
    {
        // The parent died before the signal was set.
        let _ = raise_signal(signal);
    }
}
