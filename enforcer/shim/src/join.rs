//! Registration: the service is asked on behalf of this process, and its pages are mapped.

use std::{
    io::Read as _,
    os::fd::{AsFd, AsRawFd as _},
    ptr,
    sync::atomic::Ordering,
    time::{Duration, Instant},
};

use gshare_abi::wire::Waits as _;
use gshare_abi::{
    Bell, GpuUuid, LimitsMap, UsageMap, move_fd_up,
    wire::{Answer, register},
};

use crate::{
    forked::{MARK, wiped},
    ledger::Seat,
    paths, say,
    waiting::Waiting,
};

/// Longest wait for one answer of the service when the process starts.
const FIRST_WAIT: Duration = Duration::from_secs(2);
/// How long a process that names a claim looks for a service that does not answer.
const PATIENCE: Duration = Duration::from_secs(3);
/// The same where the library itself was put before the driver by the launcher: without the service
/// the process has no GPU, so a restart is waited out.
const STRICT_PATIENCE: Duration = Duration::from_secs(10);
/// After so long a silence the person is told what is waited for.
const TOLD_AFTER: Duration = Duration::from_secs(1);
/// Between two knocks.
const AGAIN: Duration = Duration::from_millis(100);
/// Longest wait for a service that has started anew; the process has its caps already.
const NEXT_WAIT: Duration = Duration::from_millis(500);

/// Makes this copy of the proxy the one that counts for the process; false where another copy does already. `dlmopen`
/// loads any number of them beside each other, and each knows only of the memory that was taken through it: the second
/// one would write its own figures over those of the first.
fn counts(joined: &Joined) -> bool {
    let Some(page) = wiped() else { return true };
    let own = ptr::from_ref(page).expose_provenance() as u64;
    joined.seats.iter().all(|(_, seat)| {
        let copy = &seat.slot().copy;
        let mut known = copy.load(Ordering::Acquire);
        loop {
            // One of before an exec is not there any more.
            if known != own && known != 0 && is_marked(known) {
                return false;
            }
            match copy.compare_exchange(known, own, Ordering::AcqRel, Ordering::Acquire) {
                Ok(_) => return true,
                Err(now) => known = now,
            }
        }
    })
}

/// Whether a copy's page lies at this address. Nothing may be there: so the kernel looks, which says so.
fn is_marked(address: u64) -> bool {
    let Ok((mut from, to)) = std::io::pipe() else {
        return false;
    };
    let mut found = [0; size_of::<u64>()];
    // SAFETY: write(2) only reads, and answers EFAULT where memory cannot be read.
    let sent = unsafe {
        libc::write(
            to.as_raw_fd(),
            ptr::with_exposed_provenance(address as usize),
            found.len(),
        )
    };
    usize::try_from(sent) == Ok(found.len())
        && from.read_exact(&mut found).is_ok()
        && u64::from_ne_bytes(found) == MARK
}

/// Asks the service anew on behalf of a member; `None` when it does not answer or says no.
pub(crate) fn again() -> Option<Joined> {
    knock(NEXT_WAIT, &mut Waiting::new()).ok().filter(counts)
}

/// How a process stands to the service.
pub(crate) enum Standing {
    /// It is a member.
    Member(Box<Joined>),
    /// It is none: the driver is untouched.
    Open,
    /// It may not use the driver.
    Barred,
    /// Its claim gets no GPU now.
    Later,
}

/// Why a registration failed.
enum Unheld {
    /// No service answered; one that starts anew will.
    Silence(String),
    /// The service answered.
    Word { code: String, message: String },
    /// The wait was interrupted.
    Stopped,
}

/// What a registration brought, pages mapped.
#[derive(Debug)]
pub(crate) struct Joined {
    pub(crate) claim: u64,
    pub(crate) name: String,
    pub(crate) seats: Vec<(GpuUuid, Seat)>,
    /// Variables for which the launcher has left places.
    pub(crate) env: Vec<(String, String)>,
}

fn knock(wait: Duration, waiting: &mut Waiting) -> Result<Joined, Unheld> {
    let hint = std::env::var("GSHARE_CLAIM_ID").ok();
    let hint = hint.and_then(|text| text.trim_start_matches('c').parse().ok());
    let answer = register(paths::socket(), hint, wait, Some(waiting));
    let (answer, fds) = answer.map_err(|error| match error.kind() {
        std::io::ErrorKind::Interrupted => Unheld::Stopped,
        _ => Unheld::Silence(format!("cannot register with {}: {error}", paths::socket())),
    })?;
    let garbled = |message: String| Unheld::Word {
        code: "garbled".to_owned(),
        message,
    };
    let (claim, name, gpus, env) = match answer {
        Answer::Member {
            claim,
            name,
            gpus,
            env,
        } => (claim, name, gpus, env),
        Answer::Refused { code, message } => return Err(Unheld::Word { code, message }),
        Answer::Wait { .. } | Answer::Later { .. } | Answer::Wanted { .. } => {
            return Err(garbled("unexpected reply from the service".to_owned()));
        }
    };
    let pages = 2 * gpus.len();
    let mut fds: Vec<_> = fds.into_iter().map(move_fd_up).collect();
    let mut bells = fds.split_off(pages.min(fds.len())).into_iter();
    let mut fds = fds.into_iter();
    let mut seats = Vec::with_capacity(gpus.len());
    for gpu in gpus {
        let (Some(limits), Some(usage)) = (fds.next(), fds.next()) else {
            return Err(garbled("the service sent too few descriptors".to_owned()));
        };
        let limits = LimitsMap::new(limits.as_fd()).map_err(|error| garbled(error.to_string()))?;
        let usage = UsageMap::new(usage).map_err(|error| garbled(error.to_string()))?;
        if usage.page().slot(gpu.slot).is_none() || limits.page().uuid() != gpu.uuid {
            return Err(garbled(format!(
                "the service sent shared memory that is not for {}",
                gpu.uuid
            )));
        }
        let seat = Seat {
            limits: limits.leak(),
            usage: usage.leak(),
            slot: gpu.slot,
            generation: gpu.generation,
            bell: bells
                .next()
                .and_then(|end| Bell::new(end).ok())
                .map(|bell| &*Box::leak(Box::new(bell))),
        };
        seats.push((gpu.uuid, seat));
    }
    Ok(Joined {
        claim,
        name,
        seats,
        env,
    })
}

/// Knocks again for a while where nobody answers a process that is in a claim: the service may just be
/// starting anew, and without it the process would run on uncounted for good, or not at all.
fn knock_patiently(
    patience: Duration,
    tell: bool,
    waiting: &mut Waiting,
) -> Result<Joined, Unheld> {
    let begun = Instant::now();
    let mut told = !tell;
    loop {
        let left = patience.saturating_sub(begun.elapsed());
        let mut wait = FIRST_WAIT.min(left).max(AGAIN);
        if !told {
            wait = wait.min(TOLD_AFTER.saturating_sub(begun.elapsed()).max(AGAIN));
        }
        match knock(wait, waiting) {
            // Its place in the queue is kept by whoever comes back.
            Err(Unheld::Silence(_)) if waiting.has_waited() => {
                waiting.deserted();
                if waiting.stops() {
                    return Err(Unheld::Stopped);
                }
                std::thread::sleep(AGAIN);
            }
            Err(Unheld::Silence(_)) if begun.elapsed() + AGAIN < patience => {
                if !told && begun.elapsed() >= TOLD_AFTER {
                    told = true;
                    let most = patience.as_secs();
                    say::line(&format!(
                        "waiting for the service at {}, at most {most} s ...",
                        paths::socket()
                    ));
                }
                std::thread::sleep(AGAIN);
            }
            other => return other,
        }
    }
}

pub(crate) fn ask() -> Standing {
    let strict = paths::strict();
    if paths::socket().is_empty() {
        return Standing::Open;
    }
    let claim = std::env::var_os("GSHARE_CLAIM_ID");
    let mut waiting = Waiting::new();
    let refusal = match match (strict, &claim) {
        (true, _) => knock_patiently(STRICT_PATIENCE, true, &mut waiting),
        (false, Some(_)) => knock_patiently(PATIENCE, false, &mut waiting),
        (false, None) => knock(FIRST_WAIT, &mut waiting),
    } {
        Ok(joined) if !counts(&joined) => {
            say::line(
                "this process loaded a second copy of gshare's library (dlmopen), and that copy cannot use the GPU: load libcuda.so.1 only once, with dlopen",
            );
            return Standing::Barred;
        }
        Ok(joined) => {
            waiting.granted();
            return Standing::Member(Box::new(joined));
        }
        Err(refusal) => refusal,
    };
    let (barred, reason) = match refusal {
        Unheld::Stopped => {
            waiting.given_up();
            return Standing::Later;
        }
        Unheld::Word { code, message } if code == "not_available" => {
            say::line(&message);
            return Standing::Later;
        }
        // The service names the claim itself, and why it is no more.
        Unheld::Word { code, message } if code == "no_claim" && !strict => {
            if claim.is_some() {
                say::line(&message);
            }
            return Standing::Open;
        }
        Unheld::Silence(reason) => (strict, reason),
        Unheld::Word { code, message } => (strict || code == "full", message),
    };
    if barred {
        say::line(&format!("this process may not use the GPU: {reason}"));
        return Standing::Barred;
    }
    if let Some(claim) = claim {
        let claim = claim.display();
        say::line(&format!(
            "the limits of claim {claim} do not apply to this process: {reason}"
        ));
    }
    Standing::Open
}
