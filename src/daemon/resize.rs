//! Resizes claims: from the request to the core, and from its decision to the journal and the pages.
//!
//! The limits page holds the SM values that the compute gate reads, and the cap that every reservation is checked
//! against. So a change applies as soon as it is written; no member is asked or stopped.

use std::time::Duration;

use gshare_core::machine::lever::Holding;
use gshare_core::machine::{Action, Event};
use gshare_core::{Bytes, Change, ClaimId, Held, ResizeError, Share, Slice};
use gshare_proto::{
    ErrorCode, Queued, Reply, ResizeSpec, Resized, ResizedGpu, Wait, WireError, messages,
};

use super::claims::{Shrink, Wish, Wishes};
use super::command::{ClaimCommand, Command, LimitCommand};
use super::connection::{ConnId, Sender};
use super::effects::Effects;
use super::find::find;
use super::journal::{ClaimRecord, JournalError, SliceRecord};
use super::order::Order;
use super::peer::Peer;
use super::reasons;
use super::world::World;
use super::{ending, grant, mps, policy, slurm};

fn change(spec: &ResizeSpec) -> Result<Change, WireError> {
    let share = |milli: Option<u32>| milli.map(Share::from_milli);
    let change = Change {
        share: share(spec.gpus_milli),
        count: spec.gpu_count,
        mem: spec.mem.map(Bytes),
        mem_limit: spec.mem_limit.map(Bytes),
        sm: share(spec.sm_milli),
        sm_limit: share(spec.sm_limit_milli),
    };
    let error = |message: &str| WireError::new(ErrorCode::Usage, message);
    if change.is_empty() {
        return Err(error("nothing to change")
            .with_hint(format!("for example: gshare resize {} -g 0.5", spec.id)));
    }
    if change.share == Some(Share::ZERO) || change.sm == Some(Share::ZERO) {
        return Err(error("a claim cannot shrink to nothing")
            .with_hint(format!("give it back: gshare release {}", spec.id)));
    }
    Ok(change)
}

/// A change as command line options.
pub(crate) fn arguments(change: &Change) -> String {
    let mut words = Vec::new();
    if let Some(share) = change.share {
        let of = change.count.map(|n| format!("{n}x")).unwrap_or_default();
        words.push(format!("-g {of}{}", share.short()));
    }
    if let Some(Bytes(mem)) = change.mem {
        words.push(format!("--gpu-mem {}M", mem >> 20));
    }
    if let Some(sm) = change.sm {
        words.push(format!("--sm {}%", sm.percent()));
    }
    words.join(" ")
}

/// Guaranteed SMs are in whole percent.
const PERCENT: u64 = 10;

/// `gshare resize`; the answer comes when the core has decided.
pub(crate) fn order(
    world: &World<'_>,
    peer: &Peer,
    spec: &ResizeSpec,
    out: &Sender,
) -> Result<Order, WireError> {
    let (id, change) = may_resize(world, peer, spec)?;
    let patience = match spec.wait {
        Wait::No | Wait::Default => Some(Duration::ZERO),
        Wait::Forever => None,
        Wait::Seconds(s) => Some(Duration::from_secs(s)),
    };
    let wish = Wish {
        id,
        conn: peer.conn,
        uid: peer.uid,
        out: out.clone(),
    };
    Ok(Order {
        then: vec![Command::Claims(ClaimCommand::Resize(Box::new((
            wish, change, patience,
        ))))],
        ..Order::default()
    })
}

/// Handles the core's decision about another size.
pub(crate) fn decided(with: &mut Effects, action: Action) -> Vec<Command> {
    match action {
        Action::Resize {
            ticket,
            id,
            before,
            slices,
        } => {
            let wish = with.claims.wishes.open.remove(&ticket);
            return resize(with, id, before, &slices, wish);
        }
        Action::ResizeWaits {
            ticket,
            position,
            error,
        } => resize_waits(&with.world(), ticket, position, &error),
        Action::ResizeRefused { ticket, error } => {
            resize_refused(&with.world(), ticket, &error);
            with.claims.wishes.open.remove(&ticket);
        }
        _ => {}
    }
    Vec::new()
}

/// Gives a claim another size: journal, pages, answer. If it cannot be journaled, the core gets the old size.
fn resize(
    with: &mut Effects,
    id: ClaimId,
    before: Vec<Slice>,
    slices: &[Slice],
    wish: Option<Wish>,
) -> Vec<Command> {
    let Some(live) = with.claims.get_mut(&id) else {
        return Vec::new();
    };
    let mut record = live.record.clone();
    for slice in slices {
        let uuid = &with.gpus[slice.gpu].uuid;
        if let Some(part) = record.slices.iter_mut().find(|s| s.uuid == *uuid) {
            part.mem = slice.mem.0;
            part.mem_limit = slice.mem_limit.0;
            part.sm_milli = slice.sm.milli();
            part.sm_limit_milli = slice.sm_limit.milli();
        }
    }
    if let Err(error) = with.journal.put(&record) {
        return not_resized(&with.world(), id, before, wish, error);
    }
    for slice in slices {
        if let Some(seat) = live.seats.iter().find(|s| s.gpu == slice.gpu) {
            seat.limits.set_memory_request(slice.mem.0);
            seat.limits
                .set_sm_permille(slice.sm.milli(), slice.sm_limit.milli());
        }
    }
    let old = std::mem::replace(&mut live.record, record);
    let mut out = policy::carry_out(with, LimitCommand::LimitMemory(id));
    // Through MPS the share of SMs is fixed for running programs: the next ones get this.
    let world = with.world();
    if let Some(live) = world.claims.get(&id) {
        for seat in &live.seats {
            mps::write_mps_part(&world, &live.record, seat.gpu, &seat.limits);
        }
    }
    let text = resized_text(&world, id, &old, slices, wish);
    out.extend(text.map(|text| Command::NoticeOf { id, text }));
    out
}

/// Commands if it cannot be journaled.
fn not_resized(
    world: &World<'_>,
    id: ClaimId,
    before: Vec<Slice>,
    wish: Option<Wish>,
    error: JournalError,
) -> Vec<Command> {
    let state = world.host.paths.state_dir.display();
    let text = format!("{id} keeps its size: {:#}", anyhow::Error::from(error));
    let mut out = Vec::new();
    if let Some(wish) = wish {
        let told = WireError::new(ErrorCode::Internal, text.clone());
        let told = told.with_hint(messages::disk_room(state));
        out.push(Command::Reply(wish.out, Err(told)));
    }
    out.push(Command::NoticeOf { id, text });
    out.push(Command::Core(Event::Restore {
        id,
        request: None,
        holding: Holding::here(before),
        ends: world.machine.lease_end(id),
    }));
    out
}

/// The size that would cover only a claim's use; `None` if it uses all.
pub(crate) fn shrink(world: &World<'_>, id: ClaimId) -> Option<Shrink> {
    let live = world.claims.get(&id)?;
    let used = live.seats.iter().map(|seat| {
        let gpu = &world.gpus[seat.gpu];
        seat.usage.charged_bytes(gpu.total).max(gpu.overhead.bytes)
    });
    let used = used.max().unwrap_or(0).next_multiple_of(Bytes::MIB);
    let slices = &live.record.slices;
    let asked = slices.iter().map(|s| s.mem).max().unwrap_or(0);
    if used == 0 || used >= asked {
        return None;
    }
    // The share of a running client of MPS is fixed, and so is that of a claim with the whole GPU.
    let fixed = slices.iter().any(|s| s.held != Held::Timeslice);
    let sm = slices.iter().map(|s| s.sm_milli).max().unwrap_or(0);
    let most = slices.iter().map(|s| s.mem_limit).max().unwrap_or(asked);
    Some(Shrink {
        id,
        asked,
        change: Change {
            mem: Some(Bytes(used)),
            // It may burst while there is room.
            mem_limit: Some(Bytes(most)),
            sm: (!fixed).then(|| scaled(sm, used, asked)),
            ..Change::default()
        },
        back: Change {
            mem: Some(Bytes(asked)),
            sm: (!fixed).then(|| Share::from_milli(sm)),
            ..Change::default()
        },
        before: grant::size_text(world, &live.record).unwrap_or_default(),
    })
}

/// Notice for its owner once the core has decided.
pub(crate) fn shrunk(shrink: &Shrink, world: &World<'_>) -> Option<Command> {
    let id = shrink.id;
    let record = world.claims.get(&id).map(|l| &l.record);
    let smaller = |s: &SliceRecord| s.mem < shrink.asked;
    let Some(record) = record.filter(|r| r.slices.iter().all(smaller)) else {
        tracing::info!(%id, "could not make an idle claim smaller");
        return None;
    };
    let (now, before) = (grant::size_text(world, record), &shrink.before);
    let now = now.unwrap_or_default();
    let text = format!(
        "{id} is idle and others wait, so its size is now what it uses: {now}; was {before}. To get it back: \
         gshare resize {id} {}",
        arguments(&shrink.back)
    );
    Some(Command::TellOwner { id, text })
}

impl Wishes {
    /// Requests another size from the core.
    pub(crate) fn ask(&mut self, wish: Wish, change: Change, patience: Option<Duration>) -> Event {
        let (ticket, id) = (self.ticket(), wish.id);
        self.open.insert(ticket, wish);
        Event::Resize {
            ticket,
            id,
            change,
            patience,
        }
    }

    /// Drops the requests of a connection that has ended; for the core.
    pub(crate) fn closed(&mut self, conn: ConnId) -> Vec<Event> {
        let gone = self.open.extract_if(.., |_, wish| wish.conn == conn);
        gone.map(|(ticket, _)| Event::Unwish { ticket }).collect()
    }
}

/// Answers a request that was carried out; returns the notice.
fn resized_text(
    world: &World<'_>,
    id: ClaimId,
    old: &ClaimRecord,
    slices: &[Slice],
    wish: Option<Wish>,
) -> Option<String> {
    let live = world.claims.get(&id)?;
    let is = grant::size_text(world, &live.record).unwrap_or_default();
    let was = grant::size_text(world, old).unwrap_or_default();
    let mut message = format!("{id}: {is}; was {was}");
    let over: Vec<String> = slices
        .iter()
        .filter(|s| s.borrowed() > Bytes::ZERO)
        .map(|s| format!("{} on GPU {}", s.borrowed(), s.gpu))
        .collect();
    if !over.is_empty() {
        message = format!(
            "{message}\n{id} has {} more than its new size: it keeps that, but cannot grow while others wait",
            over.join(", ")
        );
    }
    if let Some(words) = mps::mps_words_for_runners(world, &live.record, old) {
        message = format!("{message}\n{words}");
    }
    let gpus = live.record.slices.iter().map(|s| ResizedGpu {
        gpu: world
            .gpus
            .gpu_index(&s.uuid)
            .and_then(|g| u32::try_from(g).ok())
            .unwrap_or(u32::MAX),
        uuid: s.uuid.clone(),
        mem_request: s.mem,
        mem_limit: s.mem_limit,
        sm_request: f64::from(s.sm_milli) / 1000.0,
        sm_limit: f64::from(s.sm_limit_milli) / 1000.0,
    });
    let gpus = gpus.collect();
    let by_other = wish.as_ref().is_some_and(|w| w.uid != live.record.uid);
    if let Some(wish) = wish {
        wish.out.reply(&Reply::Resized(Resized {
            id: id.to_string(),
            message,
            gpus,
        }));
    }
    let by = if by_other { " by root" } else { "" };
    Some(format!("{id} was resized{by}: {is}; was {was}"))
}

fn resize_refused(world: &World<'_>, ticket: u64, error: &ResizeError) {
    let Some(wish) = world.claims.wishes.open.get(&ticket) else {
        return;
    };
    let id = wish.id;
    let text = reasons::held_text(world, error.to_string(), error.holders());
    let code = match error {
        ResizeError::NotHeld { .. } => ErrorCode::Ended,
        e if e.for_now() => ErrorCode::NotAvailable,
        ResizeError::BelowCharge { .. } | ResizeError::Replaced { .. } => ErrorCode::NotAvailable,
        _ => ErrorCode::Usage,
    };
    let mut told = WireError::new(code, format!("{id} keeps its size: {text}"));
    if let Some(fit) = error.would_fit() {
        told = told.with_hint(format!(
            "there is room now for: gshare resize {id} {}. To wait for the full size: add --wait",
            arguments(fit)
        ));
    } else if let ResizeError::BelowCharge { charge, .. } = error {
        // Round up to the next MiB, so that the printed size is enough.
        let mib = charge.0.div_ceil(Bytes::MIB);
        told = told.with_hint(format!(
            "let the program free some memory, or lower only the size and keep the limit: add --gpu-mem-limit {mib}M"
        ));
    } else if error.for_now() {
        told = told.with_hint("--wait waits until there is room");
    }
    wish.out.error(told);
}

fn may_resize(
    world: &World<'_>,
    peer: &Peer,
    spec: &ResizeSpec,
) -> Result<(ClaimId, Change), WireError> {
    let id = find(world, peer, &spec.id)?;
    // Slurm's plugin asks from the cgroup of its job.
    if !(peer.was_root && world.claims.is_on_behalf(id)) {
        ending::may(world, peer, id, "resize")?;
    }
    let change = change(spec)?;
    let Some(live) = world.claims.get(&id) else {
        return Err(WireError::new(
            ErrorCode::NotAvailable,
            format!("{id} still waits; it can be resized once it is granted"),
        )
        .with_hint(format!(
            "to wait for a smaller size: gshare release {id}, then claim again"
        )));
    };
    if live.ending.as_ref().is_some_and(|e| e.kill_at.is_some()) {
        return Err(WireError::new(ErrorCode::Ended, format!("{id} is ending")));
    }
    if live.record.terms.no_library && world.host.driver.strict.on {
        let text = format!(
            "{id} keeps its size: it runs without the library, and this machine enforces strict limits"
        );
        return Err(
            WireError::new(ErrorCode::NotPermitted, text).with_hint(format!(
                "for another size: gshare release {id}, then claim again"
            )),
        );
    }
    for slice in &live.record.slices {
        let share = Share::from_milli(slice.sm_milli);
        if let Some(gpu) = world.gpus.gpu_index(&slice.uuid) {
            slurm::has_room_for(world, gpu as u32, share, change.mem)?;
        }
    }
    let of_the_gpu = change.share.is_some() || change.sm.is_some() || change.sm_limit.is_some();
    let slices = &live.record.slices;
    if let Some(whole) = slices.iter().find(|s| s.held == Held::Whole)
        && of_the_gpu
    {
        let why = if whole.uuid.starts_with("GPU-") {
            "it has its GPU to itself (mode exclusive), so a smaller size would free nothing for others"
        } else {
            "the size of a MIG instance cannot change"
        };
        let text = format!("{id} keeps its size: {why}");
        return Err(WireError::new(ErrorCode::Usage, text).with_hint(format!(
            "for another size: gshare release {id}, then claim again; --gpu-mem alone can still lower its memory"
        )));
    }
    Ok((id, change))
}

fn resize_waits(world: &World<'_>, ticket: u64, position: usize, error: &ResizeError) {
    if let Some(wish) = world.claims.wishes.open.get(&ticket) {
        wish.out.reply(&Reply::Queued(Queued {
            id: wish.id.to_string(),
            position: u32::try_from(position).unwrap_or(u32::MAX),
            reason: reasons::held_text(world, error.to_string(), error.holders()),
            would_start: error.would_fit().map(arguments),
        }));
    }
}

/// The used fraction of the size, in thousandths of the SMs, rounded up to a percent.
fn scaled(sm_milli: u32, used: u64, asked: u64) -> Share {
    let part = u128::from(sm_milli) * u128::from(used) / u128::from(asked.max(1));
    let part = u64::try_from(part).unwrap_or(u64::MAX);
    let whole = part.next_multiple_of(PERCENT).max(PERCENT);
    Share::from_milli(u32::try_from(whole).map_or(sm_milli, |w| w.min(sm_milli)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_change_is_printed_as_typed() {
        let change = Change {
            share: Some(Share::from_milli(250)),
            mem: Some(Bytes::gib(6)),
            sm: Some(Share::from_milli(305)),
            ..Change::default()
        };
        assert_eq!(arguments(&change), "-g 0.25 --gpu-mem 6144M --sm 30.5%");
    }

    #[test]
    fn nothing_is_no_change_and_no_size() {
        assert!(change(&ResizeSpec::default()).is_err());
        let nothing = ResizeSpec {
            gpus_milli: Some(0),
            ..ResizeSpec::default()
        };
        assert!(change(&nothing).is_err());
    }

    #[test]
    fn a_smaller_part_is_of_whole_percents_and_never_nothing() {
        let milli = |sm, used, asked| scaled(sm, used, asked).milli();
        assert_eq!(milli(500, 1 << 30, 12 << 30), 50);
        assert_eq!(milli(500, 1, 12 << 30), 10);
        assert_eq!(milli(500, 12 << 30, 12 << 30), 500);
        assert_eq!(milli(5, 1, 2), 5, "never more than it had");
    }
}
