//! GPUs: their identity, what the core may divide, and their history of the last minutes.

use gshare_core::{Bytes, ClaimId, GpuFacts};
use gshare_enforcer::cgroup::ClaimCgroup;
use gshare_enforcer::device::DeviceRules;
use gshare_enforcer::gpu::GpuState;

use super::command::{Command, GpuCommand};
use super::effects::Effects;
use super::engine;
use super::fact::Fact;
use super::features::Features;
use super::fences::Rules;
use super::gpu::{FIRST_LOOK, Gpus, Modes};
use super::journal::ClaimRecord;
use super::levers::place;
use super::policy::overuse;
use super::release::letting_go::Wait;
use super::settings::Settings;
use super::whose::Whose;
use super::world::World;
use super::{die, modes, mps, stage, whose};
use gshare_enforcer::device::DeviceError;

/// Carries out a command about GPUs.
pub(crate) fn carry_out(with: &mut Effects, command: GpuCommand) -> Vec<Command> {
    match command {
        GpuCommand::TendMps => {
            let changes = mps::changes(&with.world());
            with.gpus.mps.change(changes);
        }
        GpuCommand::RenewMps => {
            let anew = mps::to_renew(&with.world());
            if !anew.is_empty() {
                with.gpus.mps.renew(&anew);
                return vec![Command::Refresh];
            }
        }
        GpuCommand::LetIntoMps { gpu, uid } => mps::let_in(&with.world(), gpu, uid),
        GpuCommand::Drain(drain) => return vec![Command::Core(with.gpus.drain(drain))],
        GpuCommand::Undrain(name) => return vec![Command::Core(with.gpus.undrain(&name))],
        GpuCommand::NextMode(g, next) => with.gpus[g].modes.next = next,
        GpuCommand::ChangeModes => return modes::change(&with.world()),
        GpuCommand::SetMode(g, now) => with.gpus[g].modes = Modes { now, next: None },
        GpuCommand::LetGo(let_go) => {
            with.gpus.released.clone_from(&let_go.next);
            // Waits for all released GPUs, including earlier ones.
            let mut waits: Vec<Wait> = (let_go.gpus.iter().flat_map(|g| close(with, *g))).collect();
            waits.push(Wait {
                what: "a call of NVML",
                ended: with.observer.release(with.gpus.released_indices()),
            });
            let_go.answer(waits);
        }
        GpuCommand::TakeBack(next) => {
            with.gpus.released = next;
            // Not waited for: a GPU takes claims once it answers.
            drop(with.observer.release(with.gpus.released_indices()));
            drop(engine::restrict_engine(&with.world(), &with.levers));
        }
        GpuCommand::Divide(dividing) => {
            die::at("mig-journaled");
            // From now on no program may start there, and everything of gshare's except NVML's handle is closed.
            let g = dividing.gpu;
            with.gpus.dividing.insert(g);
            let waits = close(with, g);
            if !dividing.start(waits, with.host.events.clone()) {
                with.gpus.dividing.remove(&g);
            }
        }
        GpuCommand::Divided(g) => {
            with.gpus.dividing.remove(&g);
            drop(engine::restrict_engine(&with.world(), &with.levers));
            let sample = with.observer.sample_now(FIRST_LOOK).ok();
            let sample = sample.map(|sample| Command::Sample(Box::new(sample)));
            let overheads = Command::Gpus(GpuCommand::Overheads);
            return sample.into_iter().chain([overheads]).collect();
        }
        GpuCommand::Overheads => {
            if let Err(error) = with.gpus.load_overheads(&with.journal) {
                tracing::warn!(
                    "the memory of a CUDA context on new instances is unknown: {error:#}"
                );
            }
        }
        GpuCommand::LookUpOwners => {
            with.gpus.owners = whose::look_up_all(&with.world());
            let servers = whose::servers(&with.world());
            return vec![Command::Tell(Fact::Owners { servers })];
        }
        GpuCommand::DoubtOwners => {
            with.gpus.owners.trusted = 0;
            return vec![Command::Tell(Fact::MayHaveMoved)];
        }
        GpuCommand::Relearn(id, gpu, bytes) => {
            let seen = (id, gpu, bytes.0);
            (with.gpus).relearn(&mut with.journal, &with.claims, seen);
        }
        GpuCommand::ShareAnew => {
            return vec![Command::Gpus(GpuCommand::TendMps), Command::Refresh];
        }
    }
    Vec::new()
}

/// Opens its GPUs in the device filter of a claim's cgroup, including those that it moves to, and no others.
pub(crate) fn open_gpus(with: &mut Effects, id: ClaimId) -> Result<(), DeviceError> {
    let Some(live) = with.claims.get(&id).filter(|live| !live.uncovered) else {
        return Ok(());
    };
    let gpus = place::gpus_of(&with.gpus, &live.record);
    let rules = rules(&with.world(), Some(&live.record), gpus);
    with.host.fences.set(live.cgroup.as_ref(), &rules)
}

/// Opens the GPUs of a running claim. False if that failed.
pub(crate) fn open_again(with: &mut Effects, id: ClaimId) -> bool {
    let opened = open_gpus(with, id);
    opened
        .inspect_err(|error| tracing::error!(%id, %error, "cannot change its device filter"))
        .is_ok()
}

/// Closes everything of gshare's that has a GPU open besides NVML's handle: its MPS daemon and the engine.
fn close(with: &mut Effects, g: usize) -> Vec<Wait> {
    let engine = engine::restrict_engine(&with.world(), &with.levers);
    let ended = [
        ("the MPS control daemon", with.gpus.mps.end(g)),
        ("the process that offloads claims", engine),
    ];
    let waits = ended.into_iter();
    waits
        .filter_map(|(what, ended)| ended.map(|ended| Wait { what, ended }))
        .collect()
}

/// What the core may divide of each GPU, by the last sample.
pub(crate) fn all_facts(world: &World<'_>, features: &Features) -> Vec<GpuFacts> {
    let gpus = 0..world.gpus.len();
    gpus.map(|g| facts(world, features, g)).collect()
}

/// Bytes in use without a claim on each GPU, minus the room reserved for graphics; `None` if the GPU does not answer.
pub(crate) fn unclaimed(world: &World<'_>) -> Vec<Option<u64>> {
    let left = |g: usize| {
        let bytes = unclaimed_bytes(world, g)?;
        let desktop = desktop_bytes(world, g).min(world.config.desktop_room());
        Some(bytes.saturating_sub(desktop))
    };
    (0..world.gpus.len()).map(left).collect()
}

/// The device rules of all claims with a cgroup.
pub(crate) fn all_rules(world: &World<'_>) -> Rules {
    let of = |(id, live): (&ClaimId, &super::live::Live)| {
        let closed = live.uncovered || live.ending.as_ref().is_some_and(|e| !e.saving);
        let gpus = live.seats.iter().map(|seat| seat.gpu).filter(|_| !closed);
        (*id, rules(world, Some(&live.record), gpus))
    };
    Rules {
        claims: world.claims.iter().map(of).collect(),
        ended: (world.claims.lingering.iter())
            .map(|cgroup| remains(world, cgroup))
            .collect(),
    }
}

/// The device rules for what runs on in the cgroup of an ended claim: no GPU, except in stage 1, where no program is
/// refused.
pub(crate) fn remains(world: &World<'_>, cgroup: &ClaimCgroup) -> DeviceRules {
    let observed = stage::observed(world, cgroup.place().uid);
    let closed = world.gpus.denied(&world.config.stages);
    rules(world, None, observed.filter(|g| !closed.contains(g)))
}

/// Bytes that claims have above their limits, as they may while gshare is off and keep after that, and bytes of
/// claims that the ledger does not book: not available to others.
fn beyond_books(world: &World<'_>, gpu: usize) -> u64 {
    let uuid = &world.gpus[gpu].uuid;
    let above = |live: &super::live::Live| {
        let seat = live.seats.iter().find(|s| s.gpu == gpu)?;
        let slice = live.record.slices.iter().find(|s| s.uuid == *uuid)?;
        let charged = seat.usage.charged_bytes(world.gpus[gpu].total);
        Some(charged.saturating_sub(slice.mem_limit.max(slice.mem)))
    };
    let used = world.driver_use(gpu);
    let beyond = |(id, live): (&ClaimId, &super::live::Live)| match world.claims.is_counted(*id) {
        true => used.get(id)?.bytes,
        false => above(live),
    };
    let beyond = world.claims.iter().filter_map(beyond);
    beyond.fold(0, u64::saturating_add)
}

/// Bytes of graphics programs without a claim.
fn desktop_bytes(world: &World<'_>, gpu: usize) -> u64 {
    let processes = world.gpus.reading(gpu).and_then(|r| r.processes.as_ref());
    let draws = processes.into_iter().flatten().filter(|p| p.graphics);
    draws
        .filter(|p| world.whose(p.pid) == Whose::Outside)
        .filter_map(|p| p.bytes)
        .fold(0, u64::saturating_add)
}

/// Device rules for the given GPUs, of a claim that may be observed.
pub(crate) fn rules(
    world: &World<'_>,
    of: Option<&ClaimRecord>,
    gpus: impl IntoIterator<Item = usize>,
) -> DeviceRules {
    let own: Vec<usize> = gpus.into_iter().collect();
    let all = 0..world.gpus.len();
    let gpus: Vec<usize> = if world.config.is_off() {
        all.collect()
    } else if of.is_some_and(ClaimRecord::is_observed) {
        // Like a program without a claim: GPUs in stage 4 stay closed.
        let closed = world.gpus.denied(&world.config.stages);
        all.filter(|g| own.contains(g) || !closed.contains(g))
            .collect()
    } else {
        own
    };
    let minors = gpus.iter().filter_map(|g| world.gpus[*g].minor);
    let mut rules = DeviceRules::gpus(world.host.fences.majors.clone(), minors);
    rules.caps = gpus
        .iter()
        .flat_map(|g| world.gpus[*g].caps.iter().copied())
        .collect();
    rules
}

/// Bytes in use without a claim; `None` while nothing is known.
pub(crate) fn unclaimed_bytes(world: &World<'_>, gpu: usize) -> Option<u64> {
    let reading = world.gpus.reading(gpu)?;
    let (mut outside, mut inside) = (Some(0u64), 0u64);
    for process in reading.processes.as_ref()? {
        match world.whose(process.pid) {
            Whose::Claim(_) | Whose::Gone => {
                inside = inside.saturating_add(process.bytes.unwrap_or(0));
            }
            Whose::Outside => {
                outside = outside
                    .zip(process.bytes)
                    .map(|(sum, b)| sum.saturating_add(b));
            }
        }
    }
    // If the driver does not report the memory of each process, the remainder of the total counts.
    outside.or_else(|| Some(reading.mem_used?.saturating_sub(inside)))
}

impl Settings {
    /// Bytes reserved for graphics, in addition to the reserve of every GPU.
    fn desktop_room(&self) -> u64 {
        let memory = &self.memory;
        memory.display_reserve.saturating_sub(memory.reserve).0
    }
}

impl Gpus {
    /// Driver version, the key of values learnt under it.
    pub(crate) fn driver_version(&self) -> &str {
        self.sample
            .as_ref()
            .and_then(|s| s.driver_version.as_deref())
            .unwrap_or("unknown")
    }
}

/// Updates the bytes in use without a claim. A GPU that does not answer keeps its old value.
pub(crate) fn note_unclaimed(gpus: &mut Gpus, bytes: Vec<Option<u64>>) {
    for (gpu, bytes) in gpus.iter_mut().zip(bytes) {
        gpu.unclaimed = bytes.unwrap_or(gpu.unclaimed);
    }
}

fn facts(world: &World<'_>, features: &Features, gpu: usize) -> GpuFacts {
    let identity = &world.gpus[gpu];
    let reading = world.gpus.last_reading(gpu);
    let total = reading.and_then(|r| r.mem_total);
    let usable =
        total.map(|t| Bytes(t.saturating_sub(reading.and_then(|r| r.mem_reserved).unwrap_or(0))));
    let display = reading.is_some_and(|r| {
        r.display_active == Some(true) || r.processes.iter().flatten().any(|p| p.graphics)
    });
    let memory = &world.config.memory;
    let healthy = world
        .gpus
        .reading(gpu)
        .is_some_and(|r| r.state == GpuState::Ok)
        && (identity.uuid.starts_with("GPU-") || identity.parent.is_some())
        && world.gpus.mode_is_ready(gpu)
        && !features.health.is_sick(world, gpu);
    GpuFacts {
        uuid: identity.uuid.clone(),
        model: identity.model.clone(),
        usable,
        reserve: if display {
            memory.display_reserve
        } else {
            memory.reserve
        },
        unclaimed: Bytes(
            (identity.unclaimed)
                .saturating_add(overuse::overused_bytes(world, gpu))
                .saturating_add(beyond_books(world, gpu)),
        ),
        healthy,
        sharing: modes::sharing(world, gpu),
    }
}
