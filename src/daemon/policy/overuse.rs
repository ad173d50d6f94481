//! Compares the driver's figures with the claims' limits at each look: members' use above their ledgers is charged to
//! the claim; a claim in over-use cannot grow and is warned, and by policy ended. `core::reconcile` decides.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use gshare_abi::STARTS_KERNELS;
use gshare_config::Overuse;
use gshare_core::reconcile::{Act, Finding, Hold, Kind, Look, Rules, Seen};
use gshare_core::units::show_duration;
use gshare_core::{Bytes, ClaimId, Held, Slice};
use gshare_enforcer::gpu::GpuProcess;
use gshare_enforcer::proc::{self, ProcessKey};

use super::super::live::Live;
use super::super::whose::Whose;
use crate::daemon::command::{Command, EndCommand, GpuCommand, LimitCommand};
use crate::daemon::outside::{Counted, Policy};
use crate::daemon::settings::Settings;
use crate::daemon::world::World;
use crate::daemon::{convert, off, turns, whose};
use crate::figures;

/// Tolerance for uncounted time in percent of a GPU's time: the libraries' count is an estimate.
const UNCOUNTED_TIME: f64 = 20.0;

/// Name prefixes of libraries whose GPU work bypasses all counted launches: OptiX, OpenCL, Vulkan and OpenGL.
const UNSEEN: [&str; 4] = [
    "libnvoptix",
    "libnvidia-opencl",
    "libGLX_nvidia",
    "libEGL_nvidia",
];

/// Whether a claim's process has such a library mapped, or kernels that can start others: its counted time may then
/// be incomplete.
fn works_unseen(live: &Live, process: ProcessKey) -> bool {
    let slots = live.seats.iter().flat_map(|s| s.usage.read_slots(0));
    slots
        .filter(|s| s.pid.cast_signed() == process.pid && s.start_time == process.start_ticks)
        .any(|s| s.flags & STARTS_KERNELS != 0)
        || proc::has_mapped(process.pid, |file| {
            UNSEEN.iter().any(|start| file.starts_with(start))
        })
}

/// State of all claims by the newest sample.
pub(crate) fn look_at_all(world: &World<'_>, counted: &Counted) -> Vec<Look<ProcessKey>> {
    let gpus = 0..world.gpus.len();
    gpus.flat_map(|g| looks(world, g, counted)).collect()
}

/// Commands after a look: owners are warned, processes ended, caps written.
pub(crate) fn follows(world: &World<'_>, acts: Vec<Act<ProcessKey>>) -> Vec<Command> {
    let mut out = Vec::new();
    for act in acts {
        match act {
            Act::Warn {
                claim,
                gpu,
                finding,
            } => out.push(warning(world, claim, gpu, &finding)),
            Act::Stop { claim, .. } if !world.claims.may_be_stopped(claim) => {}
            Act::Stop {
                claim,
                gpu,
                finding,
                force,
            } => out.extend(stop(world, claim, gpu, &finding, force)),
            Act::Context { claim, gpu, bytes } => {
                out.push(Command::Gpus(GpuCommand::Relearn(claim, gpu, bytes)));
            }
            Act::Cured { claim, gpu } => {
                let text = format!("over-use by {claim} on GPU {gpu} has ended");
                out.push(Command::Limits(LimitCommand::WriteCaps(claim, gpu)));
                out.push(Command::NoticeOf { id: claim, text });
            }
        }
    }
    let down = world.policy.over.held_down().into_iter();
    out.extend(down.map(|(id, gpu)| Command::Limits(LimitCommand::WriteCaps(id, gpu))));
    out
}

fn warning(world: &World<'_>, id: ClaimId, gpu: usize, finding: &Finding<ProcessKey>) -> Command {
    let what = overuse_text(id, gpu, finding);
    let policy = &world.config.policy;
    let then = match policy.overuse {
        Overuse::Stop if world.claims.may_be_stopped(id) => format!(
            "it gets no more memory there, and the process is ended in {} if that continues",
            show_duration(policy.overuse_grace)
        ),
        _ => "it gets no more memory there".to_owned(),
    };
    let text = format!("{what}; {then}");
    Command::TellOwner { id, text }
}

fn stop(
    world: &World<'_>,
    id: ClaimId,
    gpu: usize,
    finding: &Finding<ProcessKey>,
    force: bool,
) -> Vec<Command> {
    // Check that it is still a member: the pid may have been reused.
    let process = finding.process;
    if proc::key(process.pid) != Some(process) || whose::claim_of(world, process.pid) != Some(id) {
        return Vec::new();
    }
    let what = overuse_text(id, gpu, finding);
    let (signal, how) = if force {
        (libc::SIGKILL, "killed")
    } else {
        (libc::SIGTERM, "asked to end")
    };
    let text = format!("{what}; the process is {how}");
    vec![
        Command::TellOwner { id, text },
        Command::Ends(EndCommand::Signal(vec![process], signal)),
    ]
}

/// Writes all caps of a claim into its pages.
pub(crate) fn write_caps(world: &World<'_>, id: ClaimId) {
    for slice in world.machine.ledger().slices(id).unwrap_or_default() {
        write_cap(world, id, slice);
    }
}

/// Writes the cap of a claim on a GPU into its page.
pub(crate) fn write_cap(world: &World<'_>, id: ClaimId, slice: &Slice) {
    let seat = world
        .claims
        .get(&id)
        .and_then(|live| live.seats.iter().find(|s| s.gpu == slice.gpu));
    if let Some(seat) = seat {
        seat.limits.set_memory_cap(cap_in_force(world, id, slice));
    }
}

/// The cap for a slice: without the driver's own use for the claim, and with no room to grow if the claim is in
/// over-use.
pub(crate) fn cap_in_force(world: &World<'_>, id: ClaimId, slice: &Slice) -> u64 {
    let most = (slice.mem_cap.0).saturating_sub(world.policy.driver_bytes(id, slice.gpu));
    let over = world.policy.over.is_over(id, slice.gpu);
    let seat = world
        .claims
        .get(&id)
        .filter(|_| over)
        .and_then(|live| live.seats.iter().find(|s| s.gpu == slice.gpu));
    let charged = seat.map(|s| s.usage.charged_bytes(world.gpus[slice.gpu].total));
    let cap = charged.map_or(most, |c| c.min(most));
    off::cap_now(world, id, slice.gpu, cap)
}

/// The over-use of a claim: for the state column, and as a sentence.
pub(crate) fn overuse_of(world: &World<'_>, id: ClaimId) -> Option<(String, String)> {
    let (_, gpu, since, finding) = world.policy.over.all().find(|(c, ..)| *c == id)?;
    let short = match finding.kind {
        Kind::Memory { excess } => format!("over-use: {excess}"),
        Kind::Time { excess } => format!("over-use: {excess:.0} % of time"),
        Kind::NotGranted => format!("over-use: GPU {gpu}, not in its claim"),
    };
    let mut text = overuse_text(id, gpu, &finding);
    let rules = world.config.overuse_rules();
    if rules.stop && world.claims.may_be_stopped(id) {
        let left = (since + rules.grace).saturating_sub(world.now.core);
        let left = Duration::from_secs(left.as_secs() + u64::from(left.subsec_nanos() > 0));
        text.push_str(&format!(
            "; ended in {} if that continues",
            show_duration(left)
        ));
    }
    Some((short, text))
}

/// `c3 (python train.py, pid 31) uses 3.4 GiB more on GPU 1 than gshare's count`.
fn overuse_text(id: ClaimId, gpu: usize, finding: &Finding<ProcessKey>) -> String {
    let pid = finding.process.pid;
    let what = figures::public(&convert::command_line(pid));
    let who = format!("({what}, pid {pid})");
    match finding.kind {
        Kind::Memory { excess } => {
            format!("{id} {who} uses {excess} more on GPU {gpu} than gshare's count")
        }
        Kind::Time { excess } => {
            format!("{id} {who} uses {excess:.0} % more of GPU {gpu}'s time than gshare's count")
        }
        Kind::NotGranted => format!("{id} {who} uses GPU {gpu}, which is not in the claim"),
    }
}

/// Bytes of claims in over-use above what they hold on a GPU: not available to others.
pub(crate) fn overused_bytes(world: &World<'_>, gpu: usize) -> u64 {
    let mut sum = 0u64;
    for (id, g, ..) in world.policy.over.all().filter(|(_, g, ..)| *g == gpu) {
        let used = world.driver_use(g).get(&id).and_then(|u| u.bytes);
        let slices = world.machine.ledger().slices(id).unwrap_or_default();
        let held = slices.iter().find(|s| s.gpu == g);
        let held = held.map_or(0, |s| s.mem.max(s.charge).0);
        sum = sum.saturating_add(used.unwrap_or(0).saturating_sub(held));
    }
    sum
}

/// Processes of a claim that use a GPU and never registered, or whose counts may be incomplete.
pub(crate) fn uncounted(world: &World<'_>, id: ClaimId, gpu: usize) -> [Vec<u32>; 2] {
    let Some(live) = world.claims.get(&id) else {
        return Default::default();
    };
    let held = world.host.driver.libcuda.is_ok()
        && !live.record.has_no_library()
        && !off::is_unlimited(world, id);
    let all = world.gpus.reading(gpu).and_then(|r| r.processes.as_ref());
    let own = all.into_iter().flatten().filter_map(|p| {
        let key = world.gpus.owners.key(p.pid)?;
        (world.whose(p.pid) == Whose::Claim(id)).then_some(key)
    });
    let own: Vec<ProcessKey> = own.filter(|_| held).collect();
    let pids = |fits: &dyn Fn(&ProcessKey) -> bool| {
        let found = own.iter().filter(|key| fits(key));
        found.map(|key| key.pid.cast_unsigned()).collect()
    };
    [
        pids(&|key| !live.members.contains_key(key)),
        pids(&|key| world.policy.over.is_untold(gpu, *key)),
    ]
}

/// Processes whose time is not counted, by their loaded libraries; read only if needed.
pub(crate) fn untold(world: &World<'_>, counted: &Counted) -> BTreeSet<(usize, ProcessKey)> {
    let unseen = |(g, p): (u32, &GpuProcess)| {
        let key = (g as usize, world.gpus.owners.key(p.pid)?);
        let counted = counted.get(&key).copied().unwrap_or(0.0);
        let more = p
            .time_busy
            .is_some_and(|busy| busy - counted >= UNCOUNTED_TIME);
        // Programs without limits are not checked.
        let unseen = || match world.whose(p.pid) {
            Whose::Claim(id) => world
                .claims
                .get(&id)
                .is_some_and(|l| !l.record.has_no_library() && works_unseen(l, key.1)),
            _ => false,
        };
        let is = world.policy.over.is_untold(key.0, key.1) || more && unseen();
        is.then_some(key)
    };
    world.processes().filter_map(unseen).collect()
}

/// Writes the caps of a claim on a GPU into its page.
pub(crate) fn write_caps_of(world: &World<'_>, id: ClaimId, gpu: usize) {
    let slices = world.machine.ledger().slices(id).unwrap_or_default();
    if let Some(slice) = slices.iter().find(|s| s.gpu == gpu) {
        write_cap(world, id, slice);
    }
}

impl Settings {
    /// What is done about over-use.
    pub(crate) fn overuse_rules(&self) -> Rules {
        let policy = &self.policy;
        Rules {
            stop: policy.overuse == Overuse::Stop,
            grace: policy.overuse_grace,
            tolerance: policy.overuse_tolerance,
            time: UNCOUNTED_TIME,
        }
    }
}

impl Policy {
    /// Bytes that the driver uses for a claim's members beyond the ledger: modules, graphs, stack, heap.
    pub(crate) fn driver_bytes(&self, id: ClaimId, gpu: usize) -> u64 {
        self.over.driver_bytes(id, gpu).0
    }
}

fn look(
    world: &World<'_>,
    id: ClaimId,
    live: &Live,
    gpu: usize,
    processes: &[&GpuProcess],
    counted: &Counted,
) -> Look<ProcessKey> {
    let seat = live.seats.iter().find(|s| s.gpu == gpu);
    let total = world.gpus[gpu].total;
    let slots = seat.map(|s| s.usage.read_slots(total)).unwrap_or_default();
    let slice = live
        .record
        .slices
        .iter()
        .find(|s| s.uuid == world.gpus[gpu].uuid);
    let held = slice.map_or(Held::Timeslice, |slice| slice.held);
    let hold = match slice {
        None => Hold::Nothing,
        // Without the library nothing is counted.
        Some(slice) if world.host.driver.libcuda.is_err() || live.record.has_no_library() => {
            Hold::Most(Bytes(slice.mem_limit))
        }
        Some(slice) => Hold::Cap(Bytes(slice.mem_limit)),
    };
    let charged = slots.iter().map(|s| s.charge_bytes);
    let highest = slots.iter().map(|s| s.peak_bytes).max().unwrap_or(0);
    let peak = charged.fold(0, u64::saturating_add).max(highest);
    let seen = processes.iter().filter_map(|p| {
        let process = world.gpus.owners.key(p.pid)?;
        let slot = slots
            .iter()
            .find(|s| s.pid.cast_signed() == process.pid && s.start_time == process.start_ticks);
        Some(Seen {
            process,
            bytes: p.bytes.map(Bytes),
            charge: slot.map(|s| Bytes(s.charge_bytes)),
            busy: p.time_busy,
            counted: match slot {
                Some(_) => counted.get(&(gpu, process)).copied(),
                None => Some(0.0),
            }
            .filter(|_| !world.policy.over.is_untold(gpu, process)),
        })
    });
    Look {
        claim: id,
        gpu,
        hold,
        peak: Bytes(peak),
        overhead: Bytes(world.gpus[gpu].context_cost(held)),
        guessed: !world.gpus[gpu].context_cost_known(held),
        turns: turns::take_turns(world, gpu),
        seen: seen.collect(),
    }
}

/// State of the claims on a GPU; empty if the driver gives no list.
fn looks(world: &World<'_>, gpu: usize, counted: &Counted) -> Vec<Look<ProcessKey>> {
    let Some(processes) = world.gpus.reading(gpu).and_then(|r| r.processes.as_ref()) else {
        return Vec::new();
    };
    let mut by_claim: BTreeMap<ClaimId, Vec<&GpuProcess>> = BTreeMap::new();
    for (id, live) in world.claims.iter() {
        if live.seats.iter().any(|s| s.gpu == gpu) {
            by_claim.insert(*id, Vec::new());
        }
    }
    for process in processes {
        if let Whose::Claim(id) = world.whose(process.pid) {
            by_claim.entry(id).or_default().push(process);
        }
    }
    let look = |(id, processes): (ClaimId, Vec<&GpuProcess>)| {
        // A moving claim has memory on both sides, and each side is its own.
        if world.machine.on_its_way(id) || off::is_unlimited(world, id) {
            return None;
        }
        let live = world.claims.get(&id).filter(|l| l.ending.is_none())?;
        Some(look(world, id, live, gpu, &processes, counted))
    };
    by_claim.into_iter().filter_map(look).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::daemon::world::scene::Scene;

    /// Results for this test's own process, in claim 1.
    fn done(scene: &mut Scene, act: impl Fn(Finding<ProcessKey>) -> Act<ProcessKey>) -> String {
        let process = proc::key(std::process::id().cast_signed()).expect("it lives");
        let finding = Finding {
            process,
            kind: Kind::Memory {
                excess: Bytes::gib(3),
            },
        };
        let live = scene.claim(1, 0);
        live.record.process = Some(process);
        live.record.runs.stage = gshare_config::Stage::Reclaim;
        format!("{:?}", follows(&scene.world(), vec![act(finding)]))
    }

    fn warn(finding: Finding<ProcessKey>) -> Act<ProcessKey> {
        Act::Warn {
            claim: ClaimId(1),
            gpu: 0,
            finding,
        }
    }

    fn stop(finding: Finding<ProcessKey>) -> Act<ProcessKey> {
        Act::Stop {
            claim: ClaimId(1),
            gpu: 0,
            finding,
            force: false,
        }
    }

    #[test]
    fn the_owner_is_warned_of_the_end_only_where_the_policy_ends_processes() {
        let mut scene = Scene::of(1);
        scene.config.policy.overuse = Overuse::Warn;
        let told = done(&mut scene, warn);
        assert!(told.contains("uses 3.0 GiB more on GPU 0"), "{told}");
        assert!(!told.contains("the process is ended in"), "{told}");
        scene.config.policy.overuse = Overuse::Stop;
        let told = done(&mut scene, warn);
        assert!(told.contains("the process is ended in"), "{told}");
    }

    #[test]
    fn a_process_is_stopped_only_while_it_is_the_same_and_in_the_claim() {
        let mut scene = Scene::of(1);
        let told = done(&mut scene, stop);
        assert!(
            told.contains("asked to end") && told.contains("Signal("),
            "{told}"
        );
        let another = |finding: Finding<ProcessKey>| {
            let process = ProcessKey {
                start_ticks: 1,
                ..finding.process
            };
            stop(Finding { process, ..finding })
        };
        assert_eq!(done(&mut scene, another), "[]", "its number is another's");
        let elsewhere = |finding| Act::Stop {
            claim: ClaimId(2),
            gpu: 0,
            finding,
            force: true,
        };
        scene.claim(2, 0).record.runs.stage = gshare_config::Stage::Reclaim;
        assert_eq!(done(&mut scene, elsewhere), "[]", "it is in another claim");
    }
}
