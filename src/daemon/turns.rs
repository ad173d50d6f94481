//! The arbiter's table: the claims on each GPU, with their processes.

use std::collections::BTreeMap;
use std::sync::Arc;

use gshare_abi::host::{LimitsFile, UsageMemfd};
use gshare_abi::{State, monotonic_ns};
use gshare_config::ExcessTime;
use gshare_core::{ClaimId, Held};
use gshare_gate::Arbiter;
use gshare_proto::{ClaimView, StuckView, TurnsView, messages};

use super::arbiter::{Entry, Table, Turning};
use super::live::{Live, Seat};
use super::off;
use super::world::World;

/// Priority and weight for the time above all sizes.
fn standing(class: &str, excess: ExcessTime) -> (u8, u32) {
    match (excess, class) {
        (ExcessTime::Equal, _) | (ExcessTime::Weights, "batch") => (0, 1000),
        (ExcessTime::Weights, _) => (0, 2000),
        (ExcessTime::Strict, "interactive") => (0, 1000),
        (ExcessTime::Strict, "inference") => (1, 1000),
        (ExcessTime::Strict, _) => (2, 1000),
    }
}

impl Seat {
    /// A claim's pages on a GPU, for the service and for its arbiter.
    pub(crate) fn new(gpu: usize, limits: LimitsFile, usage: UsageMemfd) -> Self {
        let turning = Turning::new(limits.path(), &usage).inspect_err(
            |error| tracing::error!(%error, "a claim's share of GPU time is not enforced"),
        );
        Self {
            gpu,
            turning: turning.ok().map(Arc::new),
            limits,
            usage,
        }
    }
}

/// The claims on each GPU, with their processes.
pub(crate) fn gate_table(world: &World<'_>) -> Table {
    let mut table = Table::new();
    for (ClaimId(claim), live) in world.claims.iter() {
        if off::is_unlimited(world, ClaimId(*claim)) {
            continue;
        }
        let (tier, weight_milli) = standing(&live.record.class, world.config.policy.excess_time);
        for seat in &live.seats {
            let Some(turning) = &seat.turning else {
                continue;
            };
            let uuid = &world.gpus[seat.gpu].uuid;
            let slice = live.record.slices.iter().find(|s| s.uuid == *uuid);
            let Some(slice) = slice else { continue };
            table.entry(seat.gpu).or_default().push(Entry {
                claim: *claim,
                gpu: seat.gpu,
                gpus: live.seats.len(),
                turning: turning.clone(),
                by_time: slice.held == Held::Timeslice
                    && seat.limits.page().state() == State::Granted,
                tier,
                weight_milli,
                request_permille: slice.sm_milli,
                limit_permille: slice.sm_limit_milli,
                cgroup: live.cgroup.as_ref().map(|c| c.dir().to_owned()),
                members: seat
                    .usage
                    .owners()
                    .map(|(assigned, pid, _)| (assigned.slot, pid))
                    .collect(),
            });
        }
    }
    table
}

/// Whether shares of GPU time are enforced on GPUs in mode `timeslice`.
///
/// # Errors
///
/// Why they are not, in words.
pub(crate) fn gate_in_force(world: &World<'_>) -> Result<(), String> {
    if let Err(why) = &world.host.driver.libcuda {
        return Err(messages::no_libcuda(why));
    }
    match &world.host.gates {
        Some(gates) if gates.is_running() => Ok(()),
        _ => Err("the service's scheduler of GPU time does not run".to_owned()),
    }
}

/// Whether the claims on a GPU take turns.
pub(crate) fn take_turns(world: &World<'_>, gpu: usize) -> bool {
    let by_time = |seat: &Seat| seat.gpu == gpu && seat.turning.is_some();
    let here = |live: &&Live| live.seats.iter().any(by_time);
    gate_in_force(world).is_ok() && world.claims.values().filter(here).count() > 1
}

/// Names in claims that take turns the kernel that keeps a GPU of theirs from being shared. The arbiter would not see one
/// that began while nobody shared.
pub(crate) fn name_stuck(world: &World<'_>, views: &mut [ClaimView]) {
    let now = monotonic_ns();
    let mut works: BTreeMap<usize, Vec<(u64, u64)>> = BTreeMap::new();
    for (id, live) in world.claims.iter() {
        for seat in live.seats.iter().filter(|seat| seat.turning.is_some()) {
            let said = seat.usage.gates().map(|(.., said)| (id.0, said.since_ns));
            works.entry(seat.gpu).or_default().extend(said);
        }
    }
    let stuck = works.into_iter().filter_map(|(gpu, works)| {
        let (claim, since_ns) = Arbiter::stuck(now, works)?;
        let stuck = StuckView {
            claim,
            gpu,
            seconds: now.saturating_sub(since_ns) / 1_000_000_000,
        };
        take_turns(world, gpu).then_some((gpu, stuck))
    });
    let stuck: BTreeMap<usize, StuckView> = stuck.collect();
    for view in views {
        if let Some(turns) = &mut view.turns {
            let mut gpus = view.gpus.iter();
            turns.stuck = gpus.find_map(|part| stuck.get(&(part.gpu as usize)).copied());
        }
    }
}

/// How a claim's share of GPU time is enforced.
pub(crate) fn turns_view(world: &World<'_>, id: ClaimId, live: &Live) -> Option<TurnsView> {
    gate_in_force(world).ok()?;
    let gates = world.host.gates.as_ref()?;
    let by_time = |seat: &&Seat| {
        let uuid = &world.gpus[seat.gpu].uuid;
        let slice = live.record.slices.iter().find(|s| s.uuid == *uuid);
        seat.turning.is_some() && slice.is_some_and(|s| s.held == Held::Timeslice)
    };
    let mut view = None;
    for seat in live.seats.iter().filter(by_time) {
        let view: &mut TurnsView = view.get_or_insert_default();
        let done = gates.done(seat.gpu, id.0).unwrap_or_default();
        view.contended |= done.contended;
        view.turns_ms += done.turns_ns / 1_000_000;
        let held_back = seat.usage.gates().map(|(.., said)| said.waited_ns);
        view.held_back_ms += held_back.fold(0, u64::saturating_add) / 1_000_000;
    }
    view
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn classes_by_policy() {
        for (class, equal, weights, strict) in [
            ("interactive", (0, 1000), (0, 2000), (0, 1000)),
            ("inference", (0, 1000), (0, 2000), (1, 1000)),
            ("batch", (0, 1000), (0, 1000), (2, 1000)),
        ] {
            assert_eq!(standing(class, ExcessTime::Equal), equal, "{class}");
            assert_eq!(standing(class, ExcessTime::Weights), weights, "{class}");
            assert_eq!(standing(class, ExcessTime::Strict), strict, "{class}");
        }
    }
}
