//! Released GPUs: an administrator can reset them or make changes for which no process may have them open. NVML's
//! handles, the checkpoint engine and the MPS daemon are closed, and come back later.

use std::time::Duration;

use gshare_enforcer::gpu::{GpuReading, GpuState};
use gshare_proto::{AdminDone, ErrorCode, WireError, messages};

pub(crate) mod letting_go;

use self::letting_go::LetGo;
use super::admin::rights;
use super::command::{Command, GpuCommand};
use super::connection::Sender;
use super::engine::LeverState;
use super::fact::Fact;
use super::gpu::Gpus;
use super::gpu::{Released, ReleasedGpus};
use super::health::boot_id;
use super::journal::{Journal, JournalError, Store};
use super::order::{Act, Order};
use super::peer::Peer;
use super::world::World;
use super::{modes, whose};
use crate::clock::unix_ms;

/// The journal's key of the released GPUs.
const META: &str = "released";
/// The journaled ones, if released since this boot.
pub(crate) fn load(journal: &Journal) -> Result<ReleasedGpus, JournalError> {
    let text = journal.meta(META)?.unwrap_or_default();
    let all: Vec<Released> = serde_json::from_str(&text).unwrap_or_default();
    let boot = boot_id();
    let now = unix_ms();
    let lasts = |r: &Released| r.boot == boot && r.until_ms.is_none_or(|until| until > now);
    let kept = all.into_iter().filter(lasts);
    Ok(kept.map(|r| (r.index, r)).collect())
}

/// Readings of released GPUs for the observer.
pub(crate) fn readings(released: &ReleasedGpus) -> Vec<GpuReading> {
    let reading = |r: &Released| GpuReading {
        state: GpuState::Released,
        uuid: Some(r.uuid.clone()),
        name: Some(r.model.clone()),
        minor: r.minor,
        mem_total: Some(r.total),
        ..GpuReading::unread(u32::try_from(r.index).unwrap_or(u32::MAX))
    };
    released.values().map(reading).collect()
}

/// `gshare admin release`; the answer comes when nothing of gshare has the GPUs open any more.
pub(crate) fn order(
    world: &World<'_>,
    levers: &LeverState,
    peer: &Peer,
    words: &[impl AsRef<str>],
    for_ms: Option<u64>,
    out: &Sender,
) -> Result<Order, WireError> {
    rights::may_administrate(world, peer)?;
    let gpus = world.gpus.whole_gpus(words)?;
    for g in &gpus {
        may_be_let_go(world, levers, *g)?;
    }
    let by = world.host.names.user(peer.uid);
    let until_ms = for_ms.map(|ms| unix_ms().saturating_add(ms));
    let after = match for_ms {
        None => "released".to_owned(),
        Some(ms) => format!("released for {} s", ms / 1000),
    };
    let mut next = world.gpus.released.clone();
    for g in &gpus {
        let gpu = &world.gpus[*g];
        let released = Released {
            index: *g,
            uuid: gpu.uuid.clone(),
            model: gpu.model.clone(),
            minor: gpu.minor,
            total: gpu.total,
            by: by.clone(),
            until_ms,
            boot: boot_id(),
        };
        next.insert(*g, released);
    }
    let act = |g: &usize| release_act(world.gpus, "release", *g, &after);
    let acts = gpus.iter().map(act).collect();
    let names = list(&gpus);
    let undo = messages::take_back(words_of(&gpus));
    let back = match for_ms {
        None => format!("to take it back: {undo}"),
        Some(ms) => format!("taken back in {} s", ms / 1000),
    };
    let mut message = format!("gshare has closed {names}; {back}");
    for g in &gpus {
        let others = users_without_claim(world, *g);
        if !others.is_empty() {
            message.push_str(&format!("\nGPU {g} is still open in {others}"));
        }
    }
    let text = format!("{names} is released by {by}: no claims there");
    let stores = vec![stored(&next)];
    let undo = Some(undo);
    let let_go = LetGo {
        next,
        gpus,
        done: AdminDone { message, undo },
        out: out.clone(),
    };
    Ok(Order {
        acts,
        stores,
        then: vec![
            Command::Notice(text),
            Command::Gpus(GpuCommand::LetGo(Box::new(let_go))),
            Command::Refresh,
        ],
        ..Order::default()
    })
}

/// `gshare admin release --take`.
pub(crate) fn take(world: &World<'_>, words: &[impl AsRef<str>]) -> Result<Order, WireError> {
    let released = &world.gpus.released;
    let gpus = world.gpus.whole_gpus(words)?.into_iter();
    let (gone, here): (Vec<usize>, Vec<usize>) = gpus.partition(|g| released.contains_key(g));
    let mut lines: Vec<String> = here
        .iter()
        .map(|g| format!("GPU {g} was not released"))
        .collect();
    if gone.is_empty() {
        return Ok(Order::saying(lines.join("\n"), None));
    }
    lines.push(format!("{} is taken back", list(&gone)));
    let undo = format!("gshare admin release {}", words_of(&gone));
    let act = |g: &usize| release_act(world.gpus, "take", *g, "open");
    let next = without(released, &gone);
    Ok(Order {
        acts: gone.iter().map(act).collect(),
        stores: vec![stored(&next)],
        then: taken_back(next, &gone),
        ..Order::saying(lines.join("\n"), Some(undo))
    })
}

/// Takes GPUs back whose time is over.
pub(crate) fn take_in_time(world: &World<'_>) -> Vec<Command> {
    let (released, now) = (&world.gpus.released, world.now.unix_ms);
    let over = |(_, r): &(&usize, &Released)| r.until_ms.is_some_and(|until| until <= now);
    let over: Vec<usize> = released.iter().filter(over).map(|(g, _)| *g).collect();
    if over.is_empty() {
        return Vec::new();
    }
    let next = without(released, &over);
    let store = Command::Store(stored(&next));
    std::iter::once(store)
        .chain(taken_back(next, &over))
        .collect()
}

fn without(released: &ReleasedGpus, gone: &[usize]) -> ReleasedGpus {
    let kept = released.iter().filter(|(g, _)| !gone.contains(g));
    kept.map(|(g, r)| (*g, r.clone())).collect()
}

/// Commands for GPUs that were taken back: they take claims once they answer.
fn taken_back(next: ReleasedGpus, gpus: &[usize]) -> Vec<Command> {
    let text = format!("{} is taken back", list(gpus));
    // It may have been reset; its own report decides.
    let back = gpus.iter().map(|gpu| Fact::TakenBack { gpu: *gpu });
    let mut out = vec![Command::Gpus(GpuCommand::TakeBack(next))];
    out.extend(back.map(Command::Tell));
    out.extend([
        Command::Gpus(GpuCommand::TendMps),
        Command::Notice(text),
        Command::Refresh,
    ]);
    out
}

/// Programs without a claim that the driver lists on a GPU, for display.
pub(crate) fn users_without_claim(world: &World<'_>, g: usize) -> String {
    let reading = world.gpus.last_reading(g);
    let processes = reading.into_iter().flat_map(|r| {
        let parts = r.instances.iter().filter_map(|i| i.processes.as_ref());
        parts.chain(&r.processes).flatten()
    });
    // The last look at the driver may list programs that have ended since.
    let runs = |pid| gshare_enforcer::proc::key(pid).is_some();
    let processes = processes.filter(|p| !whose::is_mps_server(world, p.pid) && runs(p.pid));
    let named = processes.map(|p| {
        let line = gshare_enforcer::proc::cmdline(p.pid).unwrap_or_default();
        let program = line.first().map(std::path::Path::new);
        let name = program.and_then(|p| p.file_name()?.to_str());
        let name = name.unwrap_or("a program");
        format!("{name} (pid {})", p.pid)
    });
    let mut named: Vec<String> = named.collect();
    named.dedup();
    named.join(", ")
}

fn text(released: &ReleasedGpus) -> String {
    let all: Vec<&Released> = released.values().collect();
    serde_json::to_string(&all).unwrap_or_default()
}

fn stored(released: &ReleasedGpus) -> Store {
    Store::Meta(META.to_owned(), text(released))
}

fn list(gpus: &[usize]) -> String {
    let words: Vec<String> = gpus.iter().map(|g| format!("GPU {g}")).collect();
    words.join(", ")
}

fn words_of(gpus: &[usize]) -> String {
    let words: Vec<String> = gpus.iter().map(ToString::to_string).collect();
    words.join(" ")
}

impl Gpus {
    /// Whether a GPU is released, or the GPU of an instance.
    pub(crate) fn is_released(&self, g: usize) -> bool {
        let whole = self[g].parent.unwrap_or(g);
        self.released.contains_key(&whole)
    }

    /// Their NVML indices.
    pub(crate) fn released_indices(&self) -> Vec<u32> {
        let indices = self.released.keys();
        indices.filter_map(|g| u32::try_from(*g).ok()).collect()
    }

    /// The named GPUs, none of them an instance.
    pub(crate) fn whole_gpus(&self, words: &[impl AsRef<str>]) -> Result<Vec<usize>, WireError> {
        let usage = |text: String| WireError::new(ErrorCode::Usage, text);
        if words.is_empty() {
            return Err(usage(messages::no_gpu_named()));
        }
        let found = self.gpu_ids("GPU ", words)?;
        let gpus: Vec<usize> = found.into_iter().map(|g| g as usize).collect();
        match gpus.iter().find_map(|g| Some((*g, self[*g].parent?))) {
            Some((g, parent)) => Err(usage(format!("GPU {g} is an instance of GPU {parent}"))
                .with_hint(format!(
                    "use GPU {parent} instead: this includes all of its instances"
                ))),
            None => Ok(gpus),
        }
    }
}

/// Why a released GPU takes no claims.
pub(crate) fn released_text(gpus: &Gpus, g: usize) -> Option<String> {
    let whole = gpus[g].parent.unwrap_or(g);
    let released = gpus.released.get(&whole)?;
    let until = match released.until_ms {
        None => format!("until gshare admin release {whole} --take"),
        Some(until) => {
            let left = Duration::from_millis(until.saturating_sub(unix_ms()));
            format!("for another {} s", left.as_secs() + 1)
        }
    };
    Some(format!(
        "GPU {whole} is released by {} {until}",
        released.by
    ))
}

fn release_act(gpus: &Gpus, action: &'static str, g: usize, after: &str) -> Act {
    let before = match gpus.released.contains_key(&g) {
        true => "released",
        false => "open",
    };
    Act {
        action,
        target: format!("GPU {g} ({})", gpus[g].uuid),
        before: before.to_owned(),
        after: after.to_owned(),
        reason: None,
    }
}

/// Whether a GPU can be released: no claim on it or its instances, no call that hangs, and no claim moving between
/// GPU and host, which needs the engine.
pub(crate) fn may_be_let_go(
    world: &World<'_>,
    levers: &LeverState,
    g: usize,
) -> Result<(), WireError> {
    let refuse = |text: String| WireError::new(ErrorCode::NotAvailable, text);
    let parts = (0..world.gpus.len()).filter(|i| *i == g || world.gpus[*i].parent == Some(g));
    let held: Vec<String> = parts
        .filter(|i| !world.machine.ledger().holders(*i).is_empty())
        .map(|i| modes::holders_text(world, i))
        .collect();
    if !held.is_empty() {
        return Err(
            refuse(messages::gpu_is_held(g, held.join(", "))).with_hint(format!(
                "to wait until they have ended: gshare admin drain {g} --wait"
            )),
        );
    }
    if let Some(id) = levers.under_way() {
        return Err(refuse(format!("{id} is being offloaded or restored"))
            .with_hint("try again when that is over"));
    }
    if world
        .gpus
        .last_reading(g)
        .is_some_and(|r| r.state == GpuState::Hung)
    {
        return Err(refuse(format!("driver calls for GPU {g} do not return")));
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::daemon::world::scene::Scene;

    fn released(index: usize, until_ms: Option<u64>) -> (usize, Released) {
        let released = Released {
            index,
            uuid: format!("GPU-{index}"),
            model: String::new(),
            minor: None,
            total: 0,
            by: "root".to_owned(),
            until_ms,
            boot: String::new(),
        };
        (index, released)
    }

    #[test]
    fn a_gpu_is_taken_back_when_its_time_is_over_and_the_others_are_not() {
        let mut scene = Scene::of(3);
        let now = scene.now.unix_ms;
        let all = [(0, Some(now)), (1, Some(now + 1)), (2, None)];
        scene.gpus.released = all.map(|(g, until)| released(g, until)).into();
        let done = take_in_time(&scene.world());
        let left = ReleasedGpus::from([released(1, Some(now + 1)), released(2, None)]);
        assert!(
            matches!(&done[..], [Command::Store(store), Command::Gpus(GpuCommand::TakeBack(next)),
                Command::Tell(Fact::TakenBack { gpu: 0 }), Command::Gpus(GpuCommand::TendMps), ..]
                if *next == left && *store == stored(&left)),
            "{done:?}"
        );
        scene.gpus.released = left;
        assert!(take_in_time(&scene.world()).is_empty());
        let said = take(&scene.world(), &["0"]).expect("it can");
        assert!(
            said.acts.is_empty() && said.then.is_empty(),
            "it was not released"
        );
        let back = take(&scene.world(), &["2"]).expect("it can");
        assert_eq!(back.acts.len(), 1);
    }
}
