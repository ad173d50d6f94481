//! Resizing a held claim: what it would hold, whether that fits, and if not, why.
//!
//! Shrinking needs no room. It is refused only if the new limit would be below the memory already charged, so that no
//! process is ever above its limit. Growing needs room that nobody else holds, borrows or waits for.

use std::fmt;

use crate::claim::{ClaimId, RequestError};
use crate::ledger::{Admission, GRANULARITY, Ledger, Slice};
use crate::units::{Bytes, Share};

/// The requested changes; `None` leaves a size unchanged.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Change {
    /// Part of each GPU, for memory and SMs; for a claim of several whole GPUs their number, which cannot change.
    pub share: Option<Share>,
    /// Number of GPUs that `share` applies to; it must be the number that the claim has.
    pub count: Option<u32>,
    /// Guaranteed memory on each GPU.
    pub mem: Option<Bytes>,
    /// Memory limit on each GPU.
    pub mem_limit: Option<Bytes>,
    /// Guaranteed SMs of each GPU.
    pub sm: Option<Share>,
    /// SM limit on each GPU.
    pub sm_limit: Option<Share>,
}

impl Change {
    /// Whether nothing changes.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        *self == Self::default()
    }
}

/// Why a claim cannot have the size that its owner asks for.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ResizeError {
    #[error("{id} holds nothing that could be resized")]
    NotHeld { id: ClaimId },
    #[error("{id} is being moved")]
    OnItsWay { id: ClaimId },
    #[error("a later resize of {id} replaced this one")]
    Replaced { id: ClaimId },
    /// The sizes contradict each other.
    #[error(transparent)]
    Sizes(#[from] RequestError),
    #[error("{id} holds parts of {held} GPUs; a resize changes the part of each, not their number")]
    Count { id: ClaimId, held: usize },
    #[error("{0}")]
    Quota(crate::quota::Over),
    #[error("GPU {gpu} does not answer, so nothing on it can grow")]
    NoAnswer { gpu: usize },
    #[error("another scheduler decides about GPU {gpu}, and about the size of what runs there")]
    Foreign { gpu: usize },
    #[error("needs {wanted} on GPU {gpu}; claims can use at most {largest} there")]
    TooBig {
        wanted: Bytes,
        largest: Bytes,
        gpu: usize,
    },
    #[error("its programs have {charge} on GPU {gpu}, which is more than the new limit of {limit}")]
    BelowCharge {
        charge: Bytes,
        limit: Bytes,
        gpu: usize,
    },
    #[error("{0}")]
    NoRoom(NoRoom),
    #[error("{ahead} waits for GPU {gpu} and came first")]
    Behind { ahead: ClaimId, gpu: usize },
}

impl ResizeError {
    /// Whether the same resize may succeed later.
    #[must_use]
    pub fn for_now(&self) -> bool {
        matches!(
            self,
            Self::NoRoom(_)
                | Self::Behind { .. }
                | Self::NoAnswer { .. }
                | Self::Quota(_)
                | Self::OnItsWay { .. }
        )
    }

    /// The claims that hold the missing room.
    #[must_use]
    pub fn holders(&self) -> &[ClaimId] {
        match self {
            Self::NoRoom(room) => &room.holders,
            Self::Behind { ahead, .. } => std::slice::from_ref(ahead),
            _ => &[],
        }
    }

    /// The largest part of the change that fits now.
    #[must_use]
    pub fn would_fit(&self) -> Option<&Change> {
        match self {
            Self::NoRoom(room) => room.would_fit.as_ref(),
            _ => None,
        }
    }
}

/// What prevents a claim from growing.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NoRoom {
    pub gpu: usize,
    /// The missing resource.
    pub short: Short,
    /// The other claims that hold parts of the GPU.
    pub holders: Vec<ClaimId>,
    /// The largest part of the change that fits now; `None` if it cannot grow at all.
    pub would_fit: Option<Change>,
}

/// The missing resource.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Short {
    Memory {
        /// Requested memory.
        wanted: Bytes,
        /// The most that could be guaranteed to the claim there, including what it has.
        most: Bytes,
    },
    Sms {
        /// Requested SMs.
        wanted: Share,
        /// The most that could be guaranteed to the claim there, including what it has.
        most: Share,
    },
}

impl fmt::Display for NoRoom {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let gpu = self.gpu;
        match self.short {
            Short::Memory { wanted, most } => write!(
                f,
                "needs {wanted} on GPU {gpu}; at most {most} is possible, including what it has"
            ),
            Short::Sms { wanted, most } => write!(
                f,
                "needs {} % of the compute of GPU {gpu}; at most {} % is possible, including what it has",
                wanted.percent(),
                most.percent()
            ),
        }
    }
}

/// What a claim would hold after a change.
///
/// # Errors
/// When the sizes contradict each other, or are impossible on this machine.
pub fn target(ledger: &Ledger, id: ClaimId, change: &Change) -> Result<Vec<Slice>, ResizeError> {
    let held = ledger.slices(id).ok_or(ResizeError::NotHeld { id })?;
    let share = match change.share {
        share if change.count.is_some() => {
            let count = change.count.and_then(|n| usize::try_from(n).ok());
            if count != Some(held.len()) || share.is_some_and(|s| s > Share::ONE) {
                let held = held.len();
                return Err(ResizeError::Count { id, held });
            }
            share
        }
        Some(share) if share > Share::ONE || held.len() > 1 => {
            let count = u32::try_from(held.len()).unwrap_or(u32::MAX);
            if held.len() < 2 || share.milli() != count.saturating_mul(1000) {
                return Err(ResizeError::Count {
                    id,
                    held: held.len(),
                });
            }
            Some(Share::ONE)
        }
        share => share,
    };
    held.iter()
        .map(|old| slice(ledger, old, share, change))
        .collect()
}

fn slice(
    ledger: &Ledger,
    old: &Slice,
    share: Option<Share>,
    change: &Change,
) -> Result<Slice, ResizeError> {
    let gpu = old.gpu;
    let facts = ledger.gpus().get(gpu);
    let mem = match (change.mem, share) {
        (Some(mem), _) => mem,
        (None, Some(share)) => facts
            .and_then(crate::GpuFacts::allocatable)
            .ok_or(ResizeError::NoAnswer { gpu })?
            .times(share)
            .round_down(GRANULARITY),
        (None, None) => old.mem,
    };
    if mem == Bytes::ZERO {
        return Err(RequestError::NoMemory.into());
    }
    let capacity = facts.and_then(crate::GpuFacts::capacity);
    if let Some(largest) = capacity
        && mem > old.mem
        && mem > largest
    {
        return Err(ResizeError::TooBig {
            wanted: mem,
            largest,
            gpu,
        });
    }
    let mem_limit = match change.mem_limit {
        Some(limit) if limit < mem => {
            return Err(RequestError::LimitBelowRequest {
                what: "memory",
                limit: limit.to_string(),
                request: mem.to_string(),
            }
            .into());
        }
        // A limit above the GPU's memory has no effect.
        Some(limit) => capacity.map_or(limit, |most| limit.min(most.max(mem))),
        // A limit that equalled the request follows it.
        None if old.mem_limit == old.mem => mem,
        None => old.mem_limit.max(mem),
    };
    let sm = change.sm.or(share).unwrap_or(old.sm);
    let sm_limit = match change.sm_limit {
        Some(limit) if limit < sm => {
            return Err(RequestError::LimitBelowRequest {
                what: "SM",
                limit: format!("{} %", limit.percent()),
                request: format!("{} %", sm.percent()),
            }
            .into());
        }
        Some(limit) => limit,
        None => old.sm_limit.max(sm),
    };
    if sm > Share::ONE || sm_limit > Share::ONE {
        return Err(RequestError::TooManySms(sm.max(sm_limit)).into());
    }
    Ok(Slice {
        mem,
        mem_limit,
        mem_cap: old.mem_cap.min(mem_limit),
        sm,
        sm_limit,
        ..old.clone()
    })
}

/// Whether the new slice guarantees more than the old one.
#[must_use]
pub fn grows(old: &Slice, new: &Slice) -> bool {
    new.mem > old.mem || new.sm > old.sm
}

/// Whether a claim can hold `new` now. `ahead` returns the claim that is waiting for a GPU and came first, if any. The
/// charges must be upper bounds, as after a freeze.
///
/// # Errors
/// The first condition that fails.
pub fn check(
    ledger: &Ledger,
    id: ClaimId,
    new: &[Slice],
    change: &Change,
    ahead: impl Fn(usize) -> Option<ClaimId>,
) -> Result<(), ResizeError> {
    let held = ledger.slices(id).ok_or(ResizeError::NotHeld { id })?;
    for (old, new) in held.iter().zip(new) {
        if new.mem_limit < old.mem_limit && old.charge > new.mem_limit {
            return Err(ResizeError::BelowCharge {
                charge: old.charge,
                limit: new.mem_limit,
                gpu: old.gpu,
            });
        }
    }
    let short = held.iter().zip(new).find_map(|(old, new)| {
        let (mem, sm) = room(ledger, id, old.gpu);
        if new.mem > old.mem && new.mem > mem {
            let wanted = new.mem;
            Some((old.gpu, Short::Memory { wanted, most: mem }))
        } else if new.sm > old.sm && new.sm > sm {
            let wanted = new.sm;
            Some((old.gpu, Short::Sms { wanted, most: sm }))
        } else {
            None
        }
    });
    for (old, new) in held.iter().zip(new) {
        if !grows(old, new) {
            continue;
        }
        if !ledger.gpus().get(old.gpu).is_some_and(|g| g.healthy) {
            return Err(ResizeError::NoAnswer { gpu: old.gpu });
        }
        if ledger.admission(old.gpu) == Admission::Foreign {
            return Err(ResizeError::Foreign { gpu: old.gpu });
        }
        if let (Some(ahead), None) = (ahead(old.gpu), &short) {
            let gpu = old.gpu;
            return Err(ResizeError::Behind { ahead, gpu });
        }
    }
    let Some((gpu, short)) = short else {
        return Ok(());
    };
    let waited = held.iter().any(|s| ahead(s.gpu).is_some());
    let would_fit = (!waited)
        .then(|| would_fit(ledger, id, held, change))
        .flatten();
    let mut holders = ledger.holders(gpu);
    holders.retain(|other| *other != id);
    Err(ResizeError::NoRoom(NoRoom {
        gpu,
        short,
        holders,
        would_fit,
    }))
}

/// Memory and SMs that could be guaranteed to a claim on a GPU now, including what it has.
fn room(ledger: &Ledger, id: ClaimId, gpu: usize) -> (Bytes, Share) {
    let mut without = ledger.clone();
    without.remove(id);
    (without.mem_free(gpu), without.sm_free(gpu))
}

/// The largest part of the change that fits now; `None` if that is no more than the claim has.
fn would_fit(ledger: &Ledger, id: ClaimId, held: &[Slice], change: &Change) -> Option<Change> {
    let rooms: Vec<(Bytes, Share)> = held.iter().map(|s| room(ledger, id, s.gpu)).collect();
    let mem = rooms
        .iter()
        .map(|(mem, _)| mem.round_down(GRANULARITY))
        .min()?;
    let sm = rooms.iter().map(|(_, sm)| *sm).min()?;
    let mut fit = Change::default();
    if change.share.is_some() && held.len() == 1 {
        let allocatable = ledger.gpus().get(held[0].gpu)?.allocatable()?;
        let most = (1..=sm.milli() / 10)
            .rev()
            .map(|h| Share::from_milli(h * 10));
        let fits = |s: &Share| {
            let want = allocatable.times(*s).round_down(GRANULARITY);
            (want <= mem || change.mem.is_some()) && (want > held[0].mem || *s > held[0].sm)
        };
        fit.share = most.into_iter().find(fits);
    }
    if let Some(wanted) = change.mem {
        fit.mem = Some(wanted.min(mem)).filter(|m| *m > held[0].mem);
    }
    if let Some(wanted) = change.sm {
        fit.sm = Some(wanted.min(sm)).filter(|s| *s > held[0].sm);
    }
    (!fit.is_empty()).then_some(fit)
}

#[cfg(test)]
mod tests;
