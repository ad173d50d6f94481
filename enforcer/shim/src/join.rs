//! Registration: asks the service for this process's membership, and maps its pages.

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

/// Longest wait for one answer of the service at the start of a process.
const FIRST_WAIT: Duration = Duration::from_secs(2);
/// How long a process that names a claim retries a service that does not answer.
const PATIENCE: Duration = Duration::from_secs(3);
/// The same if the launcher put the library before the driver: without the service the process has no GPU, so it waits
/// for a restart.
const STRICT_PATIENCE: Duration = Duration::from_secs(10);
/// After this much silence the user is told the reason for the wait.
const TOLD_AFTER: Duration = Duration::from_secs(1);
/// Time between attempts.
const AGAIN: Duration = Duration::from_millis(100);
/// Longest wait for a restarted service; the process has its caps already.
const NEXT_WAIT: Duration = Duration::from_millis(500);

/// Makes this copy of the proxy the one that counts for the process; false if another copy is. `dlmopen` loads any
/// number of copies, and each knows only the memory allocated through it: the second copy would overwrite the first
/// one's figures with its own.
fn counts(joined: &Joined) -> bool {
    let Some(page) = wiped() else { return true };
    let own = ptr::from_ref(page).expose_provenance() as u64;
    joined.seats.iter().all(|(_, seat)| {
        let copy = &seat.slot().copy;
        let mut known = copy.load(Ordering::Acquire);
        loop {
            // A page from before an exec is gone.
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

/// Whether a copy's page lies at this address. The address may be unmapped, so the check is a system call, which
/// reports that.
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

/// Registers a member again; `None` if the service does not answer or refuses.
pub(crate) fn again() -> Option<Joined> {
    knock(NEXT_WAIT, &mut Waiting::new()).ok().filter(counts)
}

/// Relation of a process to the service.
pub(crate) enum Standing {
    Member(Box<Joined>),
    /// Not a member: the driver is unchanged.
    Open,
    /// It may not use the driver.
    Barred,
    /// Its claim gets no GPU now.
    Later,
}

/// Why a registration failed.
enum Unheld {
    /// No service answered; a starting one will.
    Silence(String),
    /// The service refused.
    Word { code: String, message: String },
    /// The wait was interrupted.
    Stopped,
}

/// The result of a registration, with mapped pages.
#[derive(Debug)]
pub(crate) struct Joined {
    pub(crate) claim: u64,
    pub(crate) name: String,
    pub(crate) seats: Vec<(GpuUuid, Seat)>,
    /// Variables for the launcher's placeholders.
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

/// Retries for a while if nobody answers a process in a claim: the service may be restarting, and otherwise the process
/// would run uncounted for good, or not at all.
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
            // A process that comes back keeps its place in the queue.
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
        // The service names the claim itself, and why it has ended.
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
