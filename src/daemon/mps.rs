//! MPS daemons, one per GPU that is shared through MPS: started, watched, and asked to end clients in order. A thread
//! per GPU talks to the daemon; its reports are messages.

pub(crate) mod doctor;

use std::collections::{BTreeMap, BTreeSet};
use std::path::PathBuf;

use gshare_abi::host::{LimitsFile, SlotView};
use gshare_config::{GpuMode, MpsShare, OnFault};
use gshare_core::{ClaimId, Held};
use gshare_enforcer::gpu::GpuProcess;
use gshare_enforcer::mps::{self, Access, Control, MpsEvent, Server};
use gshare_proto::{Figure, Source};

use super::command::{Command, EndCommand, GpuCommand};
use super::gpu::Gpus;
use super::host::Host;
use super::journal::{ClaimRecord, SliceRecord};
use super::mps_daemon::{Change, OnGpu, Order, Worker};
use super::msg::MpsReport as Report;
use super::settings::Settings;
use super::whose;
use super::whose::Whose;
use super::world::World;

/// Changes of the daemons: those that GPUs need are started or found, the others are released.
pub(crate) fn changes(world: &World<'_>) -> Vec<Change> {
    let change = |g: usize| match (wants(world, g), world.gpus.mps.contains_key(&g)) {
        (true, false) => Some(Change::Begin(g, Box::new(begin(world, g)?))),
        // Clients that still run keep their server until the mode has changed.
        (false, true) => Some(Change::End(g)),
        _ => None,
    };
    (0..world.gpus.len()).filter_map(change).collect()
}

/// Whether a GPU needs a daemon.
fn wants(world: &World<'_>, g: usize) -> bool {
    let gpus = world.gpus;
    gpus[g].parent.is_none()
        && !gpus.is_released(g)
        && !gpus.dividing.contains(&g)
        && !gpus.is_divided(g)
        && matches!(gpus[g].modes.now, GpuMode::Mps | GpuMode::Auto)
}

fn begin(world: &World<'_>, g: usize) -> Option<OnGpu> {
    let program = world.config.mps_program().ok()?;
    let control = Control::new(&program, &world.host.mps_dir().join(g.to_string()));
    let control = control
        .inspect_err(|error| tracing::error!("no MPS on GPU {g}: {error}"))
        .ok()?;
    let worker = Worker::start(
        g,
        control.clone(),
        world.gpus[g].uuid.clone(),
        world.config.mps.multi_user,
        world.config.service.tick,
        world.host.events.clone(),
    );
    Some(OnGpu::new(control, worker))
}

/// GPUs whose daemons get a new directory: those that serve one user who has no claim there any more, and those with
/// an unsafe directory. Where users share a server, the directory is opened to all.
pub(crate) fn to_renew(world: &World<'_>) -> Vec<usize> {
    let multi_user = world.config.mps.multi_user;
    let all = world.gpus.mps.iter().filter(|(_, on)| !on.is_renewing());
    let fits = |g: usize, on: &OnGpu| {
        let users = mps_users(world, g);
        let fits = match on.control.access() {
            Ok(Access::One(uid)) => !multi_user && users.contains(&uid),
            Ok(Access::Owner) => true,
            // A user with running clients keeps it.
            Ok(Access::Everybody) => multi_user || !users.is_empty(),
            Err(error) => {
                tracing::warn!("MPS on GPU {g} restarts: {error}");
                false
            }
        };
        if fits
            && multi_user
            && let Err(error) = on.control.open_to(Access::Everybody)
        {
            tracing::error!("cannot open MPS on GPU {g} to all users: {error}");
        }
        fits
    };
    all.filter(|(g, on)| !fits(**g, on))
        .map(|(g, _)| *g)
        .collect()
}

/// Commands after a report that [`Daemons::note`] has taken in; `news` if it contained something new.
///
/// [`Daemons::note`]: super::mps_daemon::Daemons::note
pub(crate) fn follows(world: &World<'_>, g: usize, report: Report, news: bool) -> Vec<Command> {
    let mut out = Vec::new();
    match report {
        Report::Seen(events, _) => {
            for event in events {
                happened(world, g, event, &mut out);
            }
        }
        Report::NotStarted(why) if news => {
            let text = format!("MPS on GPU {g} does not start: {why}");
            out.push(Command::Notice(text));
        }
        Report::NotStarted(_) => {}
        Report::Renewed => {
            let users = mps_users(world, g).into_iter();
            out.extend(users.map(|uid| Command::Gpus(GpuCommand::LetIntoMps { gpu: g, uid })));
        }
        Report::Terminated(id) => out.push(Command::Ends(EndCommand::SignalEnd(id))),
    }
    out.extend([Command::Refresh, Command::Publish]);
    out
}

fn happened(world: &World<'_>, g: usize, event: MpsEvent, out: &mut Vec<Command>) {
    let text = match event {
        MpsEvent::Up => format!("MPS on GPU {g} is up"),
        MpsEvent::Down => {
            format!("the MPS daemon of GPU {g} no longer answers; gshare restarts it")
        }
        MpsEvent::Fault { clients, .. } => {
            let who = who(world, &clients);
            let text = format!(
                "a program of {who} had a fatal fault on GPU {g}, so MPS ended all programs that run through MPS there"
            );
            return lost(world, g, &clients, &text, out);
        }
        MpsEvent::ServerLost { clients, .. } => {
            return lost(world, g, &clients, "its MPS server died", out);
        }
        MpsEvent::Well { .. } => format!("MPS on GPU {g} serves again"),
    };
    out.push(Command::Notice(text));
}

/// All clients of a server have lost their GPU work: notifies their owners, and ends the remaining programs before
/// the server accepts others.
fn lost(world: &World<'_>, g: usize, clients: &[i32], what: &str, out: &mut Vec<Command>) {
    let uuid = &world.gpus[g].uuid;
    let held = |s: &SliceRecord| s.uuid == *uuid && s.held == Held::Mps;
    // A claim with nothing on the GPU has lost nothing.
    let had = |id: ClaimId| {
        let mut clients = clients.iter();
        clients.any(|p| whose::claim_of(world, *p) == Some(id))
            || !whose::holders(world, id).is_empty()
    };
    for (&id, live) in world.claims.iter() {
        if !live.record.slices.iter().any(held) || !had(id) {
            continue;
        }
        let on_fault = world.config.mps.on_fault;
        let requeues = live.record.terms.requeue;
        let then = match on_fault {
            OnFault::End => "its programs on the GPU are ended, and so is the claim",
            OnFault::Keep => {
                "its programs on the GPU are ended, but the claim stays: restart the programs in the claim"
            }
            OnFault::Requeue if requeues => "its command is ended and queued again",
            OnFault::Requeue => {
                "its programs on the GPU are ended, and so is the claim (it was made without --requeue)"
            }
        };
        let text = format!("{id}: GPU {g}: {what}; {then}");
        out.push(Command::TellOwner { id, text });
        let why = format!("MPS on GPU {g}: {what}");
        match on_fault {
            OnFault::Requeue if requeues => {
                out.push(Command::Ends(EndCommand::Requeue { id, why }));
            }
            OnFault::End | OnFault::Requeue => out.push(Command::Ends(EndCommand::End {
                id,
                cause: why.into(),
            })),
            OnFault::Keep => {
                let holders = whose::holders(world, id);
                out.extend([
                    Command::Ends(EndCommand::Hold(id)),
                    Command::Ends(EndCommand::Signal(holders, libc::SIGKILL)),
                ]);
            }
        }
    }
}

/// Processes of claims that should run through MPS and do not: their SMs are not limited.
pub(crate) fn strays(world: &World<'_>, g: usize) -> BTreeMap<i32, ClaimId> {
    let uuid = &world.gpus[g].uuid;
    let through = |id: &ClaimId| {
        let live = world.claims.get(id);
        let slices = live.into_iter().flat_map(|l| &l.record.slices);
        let mut here = slices.filter(|s| s.uuid == *uuid);
        here.any(|s| s.held == Held::Mps)
    };
    let processes = world.gpus.reading(g).into_iter();
    let processes = processes.flat_map(|r| r.processes.iter().flatten());
    let beside = processes.filter(|p: &&GpuProcess| p.compute && !p.mps);
    let of = beside.filter_map(|p| match world.whose(p.pid) {
        Whose::Claim(id) => Some((p.pid, id)),
        _ => None,
    });
    of.filter(|(_, id)| through(id)).collect()
}

/// Notice for the owner of a process that runs beside MPS.
pub(crate) fn stray_text(g: usize, (pid, id): (i32, ClaimId)) -> Command {
    let text = format!(
        "{id}: process {pid} runs on GPU {g} outside MPS, so nothing limits its SMs (does CUDA_MPS_PIPE_DIRECTORY have the value that gshare env prints?)"
    );
    Command::TellOwner { id, text }
}

/// Gives the user of a claim access to the daemon of a GPU. Without multi-user, the daemon and its directory serve
/// one user.
pub(crate) fn let_in(world: &World<'_>, g: usize, uid: u32) {
    let Some(on) = world.gpus.mps.get(&g).filter(|on| !on.is_renewing()) else {
        return;
    };
    let access = match world.config.mps.multi_user {
        true => Access::Everybody,
        false => Access::of_user(uid),
    };
    if let Err(error) = on.control.open_to(access) {
        tracing::error!("cannot give uid {uid} access to MPS on GPU {g}: {error}");
    }
}

/// Variables that make a claim's programs clients, with their share. Values have a fixed length, so that a later one
/// can replace them.
pub(crate) fn mps_env(world: &World<'_>, record: &ClaimRecord) -> Vec<(String, String)> {
    let slice = record.slices.iter().find(|s| s.held == Held::Mps);
    let Some((slice, g)) = slice.and_then(|s| Some((s, world.gpus.gpu_index(&s.uuid)?))) else {
        return Vec::new();
    };
    let Some(on) = world.gpus.mps.get(&g) else {
        return Vec::new();
    };
    let percentage = world.mps_percentage(slice);
    // Lower priority than interactive and inference claims.
    let priority = u8::from(record.class == "batch");
    let var = |name: &str, value: String| (format!("CUDA_MPS_{name}"), value);
    vec![
        var("PIPE_DIRECTORY", on.control.pipe().display().to_string()),
        var("LOG_DIRECTORY", on.control.log().display().to_string()),
        var("ACTIVE_THREAD_PERCENTAGE", format!("{percentage:09.5}")),
        // The daemon serves only this GPU.
        var(
            "PINNED_DEVICE_MEM_LIMIT",
            format!("0={}M", slice.mem_limit.div_ceil(1 << 20)),
        ),
        var("CLIENT_PRIORITY", priority.to_string()),
    ]
}

/// The users with a part of a GPU through MPS.
fn mps_users(world: &World<'_>, g: usize) -> BTreeSet<u32> {
    let uuid = &world.gpus[g].uuid;
    let through = |s: &SliceRecord| s.uuid == *uuid && s.held == Held::Mps;
    let records = world.claims.values().map(|live| &live.record);
    let here = records.filter(|r| r.slices.iter().any(through));
    here.map(|r| r.uid).collect()
}

/// Effect of a new size on programs that already run through MPS, in words; `None` if nothing is fixed.
pub(crate) fn mps_words_for_runners(
    world: &World<'_>,
    now: &ClaimRecord,
    old: &ClaimRecord,
) -> Option<String> {
    let part = |r: &ClaimRecord| r.slices.iter().find(|s| s.held == Held::Mps).cloned();
    let (slice, old) = (part(now)?, part(old)?);
    let (next, before) = (world.mps_sms(&slice), world.mps_sms(&old));
    let mut words = Vec::new();
    let keep = sms_of_runners(world, now, &slice.uuid);
    let as_it_is = |next: u32| keep.iter().eq([&u64::from(next)]);
    if let Some(next) = next.filter(|next| Some(*next) != before && !as_it_is(*next)) {
        let keep: Vec<String> = keep.iter().map(u64::to_string).collect();
        let runners = if keep.is_empty() {
            String::new()
        } else {
            format!("running ones keep {} SMs, ", keep.join(" and "))
        };
        words.push(format!(
            "MPS cannot change the SMs of a running program: {runners}programs started from now on get {next}"
        ));
    }
    if slice.sm_limit_milli != old.sm_limit_milli && world.config.mps.share == MpsShare::Request {
        words.push("the SM limit has no effect with MPS ([mps] share = \"request\")".to_owned());
    }
    if slice.mem_limit != old.mem_limit {
        words.push("the memory limit applies at once".to_owned());
    }
    (!words.is_empty()).then(|| words.join("; "))
}

/// A program of a claim has initialised CUDA: check which clients the servers have.
pub(crate) fn poke_mps(world: &World<'_>, id: ClaimId) {
    let record = world.claims.get(&id).map(|l| &l.record);
    let slices = record.iter().flat_map(|r| &r.slices);
    for slice in slices.filter(|s| s.held == Held::Mps) {
        if let Some(on) = world
            .gpus
            .gpu_index(&slice.uuid)
            .and_then(|g| world.gpus.mps.get(&g))
        {
            on.worker.send(Order::Look);
        }
    }
}

/// SMs that the driver has shown to a claim's programs since they started.
fn sms_of_runners(world: &World<'_>, record: &ClaimRecord, uuid: &str) -> BTreeSet<u64> {
    let live = world.claims.values().find(|l| l.record.id == record.id);
    let seats = live.into_iter().flat_map(|l| &l.seats);
    let there = seats.filter(|seat| world.gpus[seat.gpu].uuid == uuid);
    there
        .flat_map(|seat| seat.usage.read_slots(world.gpus[seat.gpu].total))
        .filter_map(|slot| slot.mps_sms)
        .collect()
}

/// Has MPS end the GPU work of an ending claim's processes before they are signalled. True if that is under way; the
/// signals follow.
pub(crate) fn terminate_clients(world: &World<'_>, id: ClaimId) -> bool {
    let Some(live) = world.claims.get(&id) else {
        return false;
    };
    let slice = live.record.slices.iter().find(|s| s.held == Held::Mps);
    let on = slice
        .and_then(|s| world.gpus.gpu_index(&s.uuid))
        .and_then(|g| world.gpus.mps.get(&g));
    let (Some(on), false) = (on, whose::holders(world, id).is_empty()) else {
        return false;
    };
    let pids = whose::holders(world, id)
        .into_iter()
        .map(|p| p.pid)
        .collect();
    on.up && on.worker.send(Order::Terminate(id, pids))
}

/// The claims of these processes, for display: `c3 (ada) or c4 (bob)`.
fn who(world: &World<'_>, clients: &[i32]) -> String {
    let claims: BTreeSet<ClaimId> = clients
        .iter()
        .filter_map(|p| whose::claim_of(world, *p))
        .collect();
    let named = claims.iter().map(|id| {
        let uid = world.claims.get(id).map(|l| l.record.uid);
        let user = uid.map_or_else(|| "?".to_owned(), |uid| world.host.names.user(uid));
        format!("{id} ({user})")
    });
    let named: Vec<String> = named.collect();
    if named.is_empty() {
        "no claim".to_owned()
    } else {
        named.join(" or ")
    }
}

/// Writes the share of a claim through MPS into its page, for programs that start from now on.
pub(crate) fn write_mps_part(
    world: &World<'_>,
    record: &ClaimRecord,
    gpu: usize,
    limits: &LimitsFile,
) {
    let uuid = &world.gpus[gpu].uuid;
    let through = |s: &&SliceRecord| s.uuid == *uuid && s.held == Held::Mps;
    let held = record.slices.iter().find(through);
    let thousandths = held.map_or(0, |s| (world.mps_percentage(s) * 1000.0).round() as u32);
    limits.set_mps_percentage(thousandths);
    let mib = held.map_or(0, |s| s.mem_limit.div_ceil(1 << 20));
    limits.set_mps_pinned(u32::try_from(mib).unwrap_or(u32::MAX));
    if held.is_some() {
        let_in(world, gpu, record.uid);
    }
}

impl World<'_> {
    /// The thread percentage of a claim's share.
    pub(crate) fn mps_percentage(&self, slice: &SliceRecord) -> f64 {
        let share = match self.config.mps.share {
            MpsShare::Request => slice.sm_milli,
            MpsShare::Limit => slice.sm_limit_milli,
        };
        let sms = self
            .gpus
            .gpu_index(&slice.uuid)
            .and_then(|g| self.gpus.last_reading(g)?.sm_count);
        // In thousandths, as in the limits page.
        (mps::percentage_for(share, sms) * 1000.0).round() / 1000.0
    }

    /// SMs of a claim's programs through MPS: the largest number that the driver showed one of them, otherwise the
    /// number that MPS would derive from the size.
    pub(crate) fn mps_figure(&self, slice: &SliceRecord, slots: &[SlotView]) -> Option<Figure> {
        let told = slots.iter().filter_map(|s| s.mps_sms).max();
        let asked = self.mps_sms(slice).map(f64::from);
        match told {
            Some(sms) if slice.held == Held::Mps => Some(Figure {
                value: sms as f64,
                source: Source::Shim,
                estimate: false,
            }),
            _ => asked.map(|value| Figure {
                value,
                source: Source::Ledger,
                estimate: true,
            }),
        }
    }

    /// Predicted SMs of a claim's programs through MPS, by its size.
    pub(crate) fn mps_sms(&self, slice: &SliceRecord) -> Option<u32> {
        self.mps_sms_of(slice).map(|(given, _)| given)
    }

    /// The same, and the number that the GPU has.
    pub(crate) fn mps_sms_of(&self, slice: &SliceRecord) -> Option<(u32, u32)> {
        let g = self.gpus.gpu_index(&slice.uuid)?;
        let all = self.gpus.last_reading(g)?.sm_count?;
        let given = || (mps::sms_of(all, self.mps_percentage(slice)), all);
        (slice.held == Held::Mps).then(given)
    }
}

impl Settings {
    /// Path of NVIDIA's control program.
    pub(crate) fn mps_program(&self) -> Result<PathBuf, String> {
        mps::find_program(self.mps.control.as_deref()).ok_or_else(|| {
            let name = mps::PROGRAM;
            match &self.mps.control {
                Some(path) => format!("{} is not there", path.display()),
                None => format!("{name} is not on PATH"),
            }
        })
    }
}

impl Gpus {
    /// Whether MPS serves a GPU now.
    pub(crate) fn mps_is_up(&self, g: usize) -> bool {
        let fault = |s: &Server| s.state == mps::ServerState::Fault;
        self.mps
            .get(&g)
            .is_some_and(|on| on.up && !on.is_renewing() && !on.servers.iter().any(fault))
    }
}

/// Processes of a claim that run on a GPU beside MPS.
pub(crate) fn beside_mps(gpus: &Gpus, id: ClaimId, g: usize) -> Vec<u32> {
    let on = gpus.mps.get(&g);
    on.map_or_else(Vec::new, |on| on.beside(id))
}

impl Host {
    /// Parent of the daemons' directories.
    pub(crate) fn mps_dir(&self) -> PathBuf {
        self.paths.runtime_dir.join("mps")
    }
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use gshare_enforcer::proc;

    use super::*;
    use crate::daemon::mps_daemon::Daemons;
    use crate::daemon::world::scene::Scene;

    /// A daemon on the first GPU, with claim 1 through it and claim 2 beside it.
    fn shared(dir: &Path) -> Scene {
        let mut scene = Scene::of(2);
        for id in [1, 2] {
            scene.claim(id, 0);
        }
        scene.claim(1, 0).record.slices[0].held = Held::Mps;
        scene.gpus.mps = Daemons::with_idle(0, dir);
        scene
    }

    fn reported(scene: &mut Scene, report: Report) -> String {
        let news = scene.gpus.mps.note(0, &report);
        format!("{:?}", follows(&scene.world(), 0, report, news))
    }

    #[test]
    fn a_daemon_that_does_not_start_is_told_once_for_each_cause() {
        let dir = tempfile::tempdir().expect("a directory");
        let mut scene = shared(dir.path());
        let mut not_started = |why: &str| {
            let report = Report::NotStarted(why.to_owned());
            reported(&mut scene, report).contains(&format!("does not start: {why}"))
        };
        assert!(not_started("no room") && !not_started("no room"));
        assert!(not_started("no driver"), "another cause");
        let up = Report::Seen(vec![MpsEvent::Up], Vec::new());
        assert!(reported(&mut scene, up).contains("MPS on GPU 0 is up"));
        assert!(scene.gpus.mps_is_up(0));
        scene.gpus.mps.renew(&[0]);
        assert!(!scene.gpus.mps_is_up(0), "until its directory is made");
        reported(&mut scene, Report::Renewed);
        assert!(scene.gpus.mps_is_up(0));
    }

    #[test]
    fn when_a_server_dies_the_claims_through_it_end_or_stay_by_the_configuration() {
        let dir = tempfile::tempdir().expect("a directory");
        let mut scene = shared(dir.path());
        let own = proc::key(std::process::id().cast_signed()).expect("it lives");
        scene.claim(1, 0).record.process = Some(own);
        let died = || {
            let (pid, clients) = (9, vec![own.pid]);
            Report::Seen(vec![MpsEvent::ServerLost { pid, clients }], Vec::new())
        };
        for (on_fault, requeue, does) in [
            (OnFault::End, false, "End {"),
            (OnFault::Requeue, false, "End {"),
            (OnFault::Requeue, true, "Requeue {"),
            (OnFault::Keep, false, "Hold("),
        ] {
            scene.config.mps.on_fault = on_fault;
            scene.claim(1, 0).record.terms.requeue = requeue;
            let told = reported(&mut scene, died());
            assert!(told.contains("c1: GPU 0: its MPS server died"), "{told}");
            assert!(told.contains(does) && !told.contains("c2"), "{told}");
        }
    }

    #[test]
    fn a_daemon_is_wanted_by_the_mode_and_not_where_its_gpu_was_let_go() {
        let dir = tempfile::tempdir().expect("a directory");
        let mut scene = shared(dir.path());
        scene.gpus[0].modes.now = GpuMode::Mps;
        assert!(changes(&scene.world()).is_empty(), "it is there");
        scene.gpus.dividing.insert(0);
        let ends = changes(&scene.world());
        assert!(matches!(ends[..], [Change::End(0)]), "{ends:?}");
        scene.gpus.mps.change(ends);
        assert!(scene.gpus.mps.is_empty());
    }
}
