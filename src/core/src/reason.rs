//! Why a claim waits or is refused: the condition that fails, and what would start now.

use std::fmt;

use crate::claim::{ClaimId, Class, Request};
use crate::class::show_minute;
use crate::ledger::{Admission, GpuFacts, Ledger, Sharing};
use crate::place;
use crate::quota::Over;
use crate::units::{Bytes, Share, many};

/// Why a claim does not start.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Reason {
    /// No GPU takes new claims now.
    NoGpu,
    /// More GPUs of one model than the machine (or the set the request is bound to) has.
    TooManyGpus {
        /// Requested.
        wanted: u32,
        present: u32,
    },
    /// More memory than any GPU can ever give.
    TooBig {
        /// Requested bytes on one GPU.
        wanted: Bytes,
        /// Most bytes that claims can divide on one GPU.
        largest: Bytes,
    },
    /// There are only MIG instances, and none is large enough.
    Instances {
        gpus: u32,
        /// Requested part of a GPU's memory, if not in bytes, and of its SMs.
        wanted: (Option<Share>, Share),
        /// Memory of the largest instance, and the most SMs among instances with enough memory.
        largest: (Share, Share),
    },
    /// Too few of the GPUs that it may use take new claims.
    Drained {
        /// Requested.
        wanted: u32,
        /// GPUs that take new claims.
        open: u32,
    },
    /// Another scheduler decides about all GPUs that it may use.
    Foreign,
    /// Another scheduler's claim names a GPU that this scheduler does not decide about.
    NotForeign { gpu: usize },
    /// A user, group or project that it counts for is at its maximum.
    Quota(Over),
    /// Claims of its class start at other hours.
    Hours {
        class: Class,
        /// When these hours begin, in minutes from midnight; `None` if the class never starts.
        from: Option<u16>,
    },
    /// Claims of its class cannot be reclaimed, and this one would put its owner above the guarantee.
    Firm { class: Class },
    /// Not enough memory is free.
    Memory {
        /// Requested bytes on one GPU.
        wanted: Bytes,
        /// Most bytes free on one GPU.
        free: Bytes,
        gpu: usize,
        /// The claims that hold parts of it.
        holders: Vec<ClaimId>,
        /// Bytes that processes outside claims use there.
        unclaimed: Bytes,
        /// Largest share that would start now, if any.
        would_start: Option<Share>,
    },
    /// Memory is free, but not enough SMs.
    Sms {
        /// Requested SMs.
        wanted: Share,
        /// Most SMs free on a GPU with enough memory.
        free: Share,
        gpu: usize,
        /// The claims that hold parts of it.
        holders: Vec<ClaimId>,
        /// Largest share that would start now, if any.
        would_start: Option<Share>,
    },
    /// It fits on some GPUs, but on fewer than requested.
    FewerGpus {
        /// Requested.
        wanted: u32,
        /// GPUs on which it fits now.
        fit: u32,
    },
    /// Everything is free, but the GPUs' modes do not let it run beside the claims there.
    Mode {
        /// One such GPU.
        gpu: usize,
        /// How it is shared.
        sharing: Sharing,
        /// The claims that hold it.
        holders: Vec<ClaimId>,
    },
    /// It would fit, but claims ahead of it come first.
    Behind {
        /// The claim just ahead.
        ahead: ClaimId,
    },
    /// It would fit, but the room is promised to an earlier plan.
    Planned,
}

impl Reason {
    /// The share that would start now, if any.
    #[must_use]
    pub fn would_start(&self) -> Option<Share> {
        match self {
            Self::Memory { would_start, .. } | Self::Sms { would_start, .. } => *would_start,
            _ => None,
        }
    }

    /// Whether a rule keeps it waiting, not a GPU.
    #[must_use]
    pub const fn is_rule(&self) -> bool {
        matches!(
            self,
            Self::Foreign | Self::Quota(_) | Self::Hours { .. } | Self::Firm { .. }
        )
    }

    /// The claims that hold what it waits for.
    #[must_use]
    pub fn holders(&self) -> &[ClaimId] {
        match self {
            Self::Memory { holders, .. }
            | Self::Sms { holders, .. }
            | Self::Mode { holders, .. } => holders,
            Self::Behind { ahead } => std::slice::from_ref(ahead),
            _ => &[],
        }
    }
}

impl fmt::Display for Reason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Foreign => {
                f.write_str("another scheduler hands out the GPUs that this claim may use")
            }
            Self::NotForeign { gpu } => {
                write!(
                    f,
                    "GPU {gpu} is scheduled by gshare's queue, not by another scheduler"
                )
            }
            Self::NoGpu => f.write_str("none of the GPUs that it may use takes claims now"),
            Self::TooManyGpus { wanted, present } => {
                let several = if *wanted > 1 {
                    "GPUs of one model"
                } else {
                    "GPU"
                };
                write!(f, "needs {wanted} {several}; {present} can be used here")
            }
            Self::TooBig { wanted, largest } => {
                write!(
                    f,
                    "needs {wanted} on one GPU; the largest share of a GPU here is {largest}"
                )
            }
            Self::Instances { gpus: 2.., .. } => f.write_str(
                "a claim of several GPUs cannot use MIG instances, and all GPUs that it may use are divided into them",
            ),
            Self::Instances {
                wanted: (Some(mem), sm),
                largest,
                ..
            } => write!(
                f,
                "needs {} % of a GPU's memory and {} % of its SMs; the largest MIG instance has {} % and {} %",
                mem.percent(),
                sm.percent(),
                largest.0.percent(),
                largest.1.percent()
            ),
            Self::Instances {
                wanted, largest, ..
            } => write!(
                f,
                "needs {} % of a GPU's SMs; the largest MIG instance with this memory has {} %",
                wanted.1.percent(),
                largest.1.percent()
            ),
            Self::Quota(over) => over.fmt(f),
            Self::Hours {
                class,
                from: Some(at),
            } => {
                let (class, at) = (class.name(), show_minute(*at));
                write!(f, "claims of class {class} start from {at} on")
            }
            Self::Hours { class, from: None } => {
                write!(
                    f,
                    "no hour of the day is open to claims of class {}",
                    class.name()
                )
            }
            Self::Firm { class } => write!(
                f,
                "gshare takes nothing back from claims of class {}, so they start only within their owner's guarantee",
                class.name()
            ),
            Self::Drained { wanted, open } => write!(
                f,
                "needs {}; of the GPUs that it may use, {open} accept{} new claims",
                many(*wanted as usize, "GPU"),
                if *open == 1 { "s" } else { "" },
            ),
            Self::Memory {
                wanted,
                free,
                gpu,
                unclaimed,
                ..
            } => {
                write!(f, "needs {wanted}; most free is {free} on GPU {gpu}")?;
                if *unclaimed >= Bytes::mib(64) {
                    write!(f, " ({unclaimed} there is used without a claim)")?;
                }
                Ok(())
            }
            Self::Sms {
                wanted, free, gpu, ..
            } => write!(
                f,
                "needs {} % of a GPU's SMs; most free is {} % on GPU {gpu}",
                wanted.percent(),
                free.percent()
            ),
            Self::FewerGpus { wanted, fit } => {
                write!(
                    f,
                    "needs {wanted} GPUs of one model at once; {fit} would fit now"
                )
            }
            Self::Mode { gpu, sharing, .. } => match sharing {
                Sharing::Mps { .. } => write!(
                    f,
                    "MPS on GPU {gpu} serves one user at a time, and another user's claims run there"
                ),
                Sharing::Instance { .. } => {
                    write!(f, "every MIG instance that is large enough is taken")
                }
                _ => write!(f, "GPU {gpu} is for one claim at a time, and one has it"),
            },
            Self::Behind { ahead } => write!(f, "would fit, but {ahead} came first"),
            Self::Planned => {
                f.write_str("would fit, but the room is kept for a claim that comes back or moves")
            }
        }
    }
}

/// Whether another scheduler decides about all GPUs on which a request may run.
#[must_use]
pub fn foreign(ledger: &Ledger, request: &Request) -> Option<Reason> {
    if ledger.all_queued() {
        return None;
    }
    let mut gpus = place::named(ledger, request).peekable();
    let some = gpus.peek().is_some();
    let all = gpus.all(|g| ledger.admission(g) == Admission::Foreign);
    (some && all).then_some(Reason::Foreign)
}

/// Why a request can never be met here, if so.
#[must_use]
pub fn never(ledger: &Ledger, request: &Request) -> Option<Reason> {
    if let Some(reason) = foreign(ledger, request) {
        return Some(reason);
    }
    let candidates = place::candidates(ledger, request);
    let known: Vec<usize> = candidates
        .iter()
        .copied()
        .filter(|&g| ledger.gpus()[g].capacity().is_some())
        .collect();
    let present = place::of_one_model(ledger, candidates.iter().copied());
    let present = u32::try_from(present).unwrap_or(u32::MAX);
    if present < request.gpus || present == 0 {
        return Some(Reason::TooManyGpus {
            wanted: request.gpus,
            present,
        });
    }
    // A GPU that does not answer now may answer later: only known GPUs can be ruled out.
    let possible = candidates
        .iter()
        .copied()
        .filter(|g| !known.contains(g) || ledger.could_ever_fit(request, *g));
    if place::of_one_model(ledger, possible) >= request.gpus as usize {
        return None;
    }
    if let Some(reason) = no_instance(ledger, request, &known) {
        return Some(reason);
    }
    let largest = known
        .iter()
        .filter_map(|&g| ledger.gpus()[g].capacity())
        .max()
        .unwrap_or_default();
    let wanted = Ledger::mem_wanted(request, largest);
    Some(Reason::TooBig { wanted, largest })
}

/// Why no instance is large enough, if there are only instances and the request does not name bytes of memory.
fn no_instance(ledger: &Ledger, request: &Request, known: &[usize]) -> Option<Reason> {
    let part = |g: &usize| match ledger.gpus()[*g].sharing {
        Sharing::Instance { mem, sm } => Some((*g, mem, sm)),
        _ => None,
    };
    let parts: Vec<(usize, Share, Share)> = known.iter().map(part).collect::<Option<_>>()?;
    let has = |g: usize, bytes| ledger.gpus()[g].capacity().is_some_and(|all| bytes <= all);
    let with_memory = parts
        .iter()
        .filter(|(g, ..)| request.mem.is_none_or(|bytes| has(*g, bytes)));
    let largest = with_memory.map(|(_, mem, sm)| (*mem, *sm)).max()?;
    Some(Reason::Instances {
        gpus: request.gpus,
        wanted: (
            request.mem.is_none().then_some(request.share),
            request.sm.unwrap_or_default(),
        ),
        largest,
    })
}

/// The GPUs that a request may use and that take new claims.
fn open_candidates(ledger: &Ledger, request: &Request) -> Vec<usize> {
    let mut gpus = place::candidates(ledger, request);
    gpus.retain(|g| !ledger.is_drained(*g));
    gpus
}

/// Why a request does not start now.
#[must_use]
pub fn waits(
    ledger: &Ledger,
    request: &Request,
    blocked: &[bool],
    ahead: Option<ClaimId>,
) -> Reason {
    let candidates = open_candidates(ledger, request);
    let all = place::candidates(ledger, request).len();
    if candidates.len() < all && candidates.len() < request.gpus as usize {
        return Reason::Drained {
            wanted: request.gpus,
            open: u32::try_from(candidates.len()).unwrap_or(u32::MAX),
        };
    }
    let fit = candidates
        .iter()
        .copied()
        .filter(|&g| ledger.fit(request, g).is_some());
    let fit = place::of_one_model(ledger, fit);
    if fit >= request.gpus as usize {
        return ahead.map_or(Reason::Planned, |ahead| Reason::Behind { ahead });
    }
    if fit > 0 {
        let fit = u32::try_from(fit).unwrap_or(u32::MAX);
        return Reason::FewerGpus {
            wanted: request.gpus,
            fit,
        };
    }
    let usable = |g: &&usize| {
        let facts = &ledger.gpus()[**g];
        facts.healthy && facts.allocatable().is_some() && ledger.could_ever_fit(request, **g)
    };
    let Some(&gpu) = candidates
        .iter()
        .filter(usable)
        .max_by_key(|&&g| (ledger.mem_free(g), std::cmp::Reverse(g)))
    else {
        return Reason::NoGpu;
    };
    let by_mode = candidates
        .iter()
        .filter(usable)
        .copied()
        .find(|&g| ledger.held_as(request, g).is_none());
    let open = |g: &usize| ledger.held_as(request, *g).is_some();
    if let (Some(gpu), false) = (by_mode, candidates.iter().filter(usable).any(open)) {
        return Reason::Mode {
            gpu,
            sharing: ledger.gpus()[gpu].sharing,
            holders: ledger.holders(gpu),
        };
    }
    let free_share = candidates
        .iter()
        .filter(|_| request.gpus == 1 && ahead.is_none())
        .filter(|&&g| !blocked.get(g).copied().unwrap_or(false))
        .map(|&g| ledger.claimable(g))
        .max()
        .filter(|s| *s > Share::ZERO);
    // A smaller share helps only if it is below the requested one.
    let would_start = free_share.filter(|s| request.mem.is_some() || *s < request.share);
    let wanted_on = |g: usize| {
        let facts = &ledger.gpus()[g];
        let of = facts.allocatable().unwrap_or_default();
        Ledger::mem_needed(facts, request, of).unwrap_or_default()
    };
    let enough_memory = candidates
        .iter()
        .copied()
        .filter(|&g| {
            ledger.gpus()[g].healthy
                && wanted_on(g) > Bytes::ZERO
                && wanted_on(g) <= ledger.mem_free(g)
        })
        .max_by_key(|&g| (ledger.sm_free(g), std::cmp::Reverse(g)));
    if let Some(gpu) = enough_memory {
        return Reason::Sms {
            wanted: Ledger::sm_needed(&ledger.gpus()[gpu], request),
            free: ledger.sm_free(gpu),
            gpu,
            holders: ledger.holders(gpu),
            would_start,
        };
    }
    Reason::Memory {
        wanted: wanted_on(gpu),
        free: ledger.mem_free(gpu),
        gpu,
        holders: ledger.holders(gpu),
        unclaimed: ledger
            .gpus()
            .get(gpu)
            .map_or(Bytes::ZERO, |g: &GpuFacts| g.unclaimed),
        would_start,
    }
}
