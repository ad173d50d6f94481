//! Finds the claim that a caller means.

use gshare_core::ClaimId;
use gshare_proto::{ErrorCode, WireError, messages};

use super::journal::ClaimRecord;
use super::outside::AutoClaim;
use super::peer::Peer;
use super::watch;
use super::world::World;

/// Finds a claim by `c3`, `3` or its name, granted or waiting. Among several with that name, the caller's own.
pub(crate) fn find(world: &World<'_>, peer: &Peer, word: &str) -> Result<ClaimId, WireError> {
    let only = watch::viewer(world, peer).only();
    let is_seen = |r: &ClaimRecord| !r.is_private() || only.is_none_or(|uid| uid == r.uid);
    if let Ok(id) = word.parse::<ClaimId>()
        && (world
            .claims
            .get(&id)
            .is_some_and(|live| is_seen(&live.record))
            || world.claims.waiting.contains_key(&id))
    {
        return Ok(id);
    }
    let auto = word.parse().ok().and_then(|id| world.policy.auto.get(&id));
    if let Some(auto) = auto {
        return Err(is_auto(world, word, auto));
    }
    let held = world.claims.iter().map(|(id, l)| (*id, &l.record));
    let waiting = world.claims.waiting.iter().map(|(id, a)| (*id, &a.record));
    let named: Vec<(ClaimId, u32)> = held
        .chain(waiting)
        .filter(|(_, record)| record.name.as_deref() == Some(word) && is_seen(record))
        .map(|(id, record)| (id, record.uid))
        .collect();
    let own = named.iter().filter(|(_, uid)| *uid == peer.uid);
    let mut found: Vec<ClaimId> = own.map(|(id, _)| *id).collect();
    if found.is_empty() {
        found = named.into_iter().map(|(id, _)| id).collect();
    }
    match found.as_slice() {
        [id] => Ok(*id),
        [] => Err(WireError::new(ErrorCode::NoClaim, messages::no_claim(word))
            .with_hint(messages::claims_are_listed())),
        _ => Err(WireError::new(
            ErrorCode::NoClaim,
            format!("several claims are named `{word}`"),
        )
        .with_hint("use the id, as gshare ps shows it")),
    }
}

/// The error for a request that an auto-claim does not support.
fn is_auto(world: &World<'_>, word: &str, auto: &AutoClaim) -> WireError {
    let (pid, user) = (auto.pid(), world.host.names.user(auto.uid()));
    WireError::new(
        ErrorCode::NotAvailable,
        format!("{word} is not a claim: it is the name under which gshare lists process {pid} of {user}, which runs \
            without a claim and without a limit"),
    )
    .with_hint(format!("to give the process a claim: gshare adopt {pid}; to end the process: kill {pid}"))
}
