//! GPUs that take no new claims.

use gshare_config::GpuMode;
use gshare_core::Reason;
use gshare_core::machine::Event;
use gshare_proto::{AdminDone, DrainView, ErrorCode, WireError, messages};

use super::rights::{in_brackets, reason_of};
use crate::daemon::command::{Command, GpuCommand};
use crate::daemon::fact::Fact;
use crate::daemon::features::Features;
use crate::daemon::gpu::Gpus;
use crate::daemon::journal::{DrainRecord, Journal, JournalError, Store};
use crate::daemon::order::{Act, Order};
use crate::daemon::peer::Peer;
use crate::daemon::release::released_text;
use crate::daemon::world::World;
use crate::figures;

/// `gshare admin drain`.
pub(super) fn drain(
    world: &World<'_>,
    peer: &Peer,
    words: &[impl AsRef<str>],
    reason: Option<&str>,
) -> Result<Order, WireError> {
    let gpus = world.gpus.gpus_named(words)?;
    let given = reason_of(reason);
    // A GPU that is drained again keeps its reason, unless there is a new one.
    let reason = |g: &usize| {
        let drained = world.gpus.drains.get(&world.gpus.lasting_name(*g));
        given.clone().or_else(|| drained?.reason.clone())
    };
    let drain = |g: &usize| DrainRecord {
        uuid: world.gpus.lasting_name(*g),
        since_ms: world.now.unix_ms,
        by: world.host.names.user(peer.uid),
        reason: reason(g),
    };
    let drains: Vec<DrainRecord> = gpus.iter().map(drain).collect();
    let act = |g: &usize| world.gpus.drain_act("drain", *g, "drained", reason(g));
    let (acts, text) = (
        gpus.iter().map(act).collect(),
        format!("{}: no new claims there", figures::gpus(&gpus)),
    );
    let then = drains
        .iter()
        .cloned()
        .map(|it| Command::Gpus(GpuCommand::Drain(it)));
    let then = then.chain([Command::Notice(text)]).collect();
    Ok(Order {
        acts,
        stores: drains.into_iter().map(Store::Drain).collect(),
        then,
        ..Order::answered(move |world, _| {
            let lines: Vec<String> = gpus.iter().map(|g| drained_line(world, *g)).collect();
            let undo = format!("gshare admin undrain {}", list(&gpus));
            done(&lines, Some(undo))
        })
    })
}

/// `gshare admin undrain`. A GPU with errors counts as repaired from then on.
pub(super) fn undrain(
    world: &World<'_>,
    features: &Features,
    words: &[impl AsRef<str>],
) -> Result<Order, WireError> {
    let gpus = world.gpus.gpus_named(words)?;
    let (closed, open): (Vec<usize>, Vec<usize>) = gpus.into_iter().partition(|g| {
        let ill = features.health.is_ill(world, *g);
        ill || (world.gpus.drains).contains_key(&world.gpus.lasting_name(*g))
    });
    let mut lines: Vec<String> = open
        .iter()
        .map(|g| format!("GPU {g} was not drained"))
        .collect();
    if closed.is_empty() {
        return Ok(Order::answered(move |_, _| done(&lines, None)));
    }
    let act = |g: &usize| world.gpus.drain_act("undrain", *g, "open", None);
    let acts = closed.iter().map(act).collect();
    let names_of = || closed.iter().map(|g| world.gpus.lasting_name(*g));
    let mended = closed.iter().map(|gpu| Fact::Mended { gpu: *gpu });
    let text = format!("{} is no longer drained", figures::gpus(&closed));
    let then = names_of().map(|it| Command::Gpus(GpuCommand::Undrain(it)));
    let then = then.chain(mended.map(Command::Tell));
    let then = then.chain([Command::Refresh, Command::Notice(text)]);
    Ok(Order {
        acts,
        stores: names_of().map(Store::Undrain).collect(),
        then: then.collect(),
        ..Order::answered(move |world, features| {
            lines.extend(
                closed
                    .iter()
                    .map(|g| match features.health.sickness(world, *g) {
                        Some(reason) => {
                            format!("GPU {g} is no longer drained, but still sick: {reason}")
                        }
                        None => messages::gpu_takes_claims(g),
                    }),
            );
            let undo = format!("gshare admin drain {}", list(&closed));
            done(&lines, Some(undo))
        })
    })
}

fn drained_line(world: &World<'_>, gpu: usize) -> String {
    let holders = world.machine.ledger().holders(gpu);
    let who: Vec<String> = holders
        .iter()
        .filter_map(|id| {
            let live = world.claims.get(id)?;
            Some(format!("{id} ({})", world.host.names.user(live.record.uid)))
        })
        .collect();
    let left = match who.len() {
        0 => "it is empty".to_owned(),
        1 => format!("{} still runs", who[0]),
        n => format!("{n} claims still run: {}", who.join(", ")),
    };
    format!("GPU {gpu} is drained: no new claims start there; {left}")
}

fn done(lines: &[String], undo: Option<String>) -> AdminDone {
    AdminDone {
        message: lines.join("\n"),
        undo,
    }
}

fn list(gpus: &[usize]) -> String {
    let words: Vec<String> = gpus.iter().map(ToString::to_string).collect();
    words.join(" ")
}

impl Gpus {
    /// Reads the drains from the journal; gives the events for the core.
    pub(crate) fn load_drains(&mut self, journal: &Journal) -> Result<Vec<Event>, JournalError> {
        let drains = journal.drains()?.into_iter();
        Ok(drains.map(|drain| self.drain(drain)).collect())
    }

    /// Drains a GPU; gives the event for the core.
    pub(crate) fn drain(&mut self, drain: DrainRecord) -> Event {
        let event = self.drain_event(&drain.uuid, true);
        self.drains.insert(drain.uuid.clone(), drain);
        event
    }

    /// Ends the drain of a GPU, named by its lasting name; gives the event for the core.
    pub(crate) fn undrain(&mut self, name: &str) -> Event {
        self.drains.remove(name);
        self.drain_event(name, false)
    }

    /// The event for a drain. The core knows a GPU by its present UUID.
    fn drain_event(&self, name: &str, on: bool) -> Event {
        let gpu = self.gpu_index(name).map(|g| self[g].uuid.clone());
        let uuid = gpu.unwrap_or_else(|| name.to_owned());
        Event::Drain { uuid, on }
    }

    /// The event for an instance that was made again: it stays drained if the one at its place was.
    pub(crate) fn drained_again(&self, g: usize) -> Option<Event> {
        let name = self.lasting_name(g);
        (self.drains.contains_key(&name)).then(|| self.drain_event(&name, true))
    }

    fn drain_act(
        &self,
        action: &'static str,
        gpu: usize,
        after: &str,
        reason: Option<String>,
    ) -> Act {
        let before = drain_view(self, gpu).map_or_else(
            || "open".to_owned(),
            |d| format!("drained by {}{}", d.by, in_brackets(d.reason.as_deref())),
        );
        Act {
            action,
            target: format!("GPU {gpu} ({})", self[gpu].uuid),
            before,
            after: after.to_owned(),
            reason,
        }
    }

    fn gpus_named(&self, words: &[impl AsRef<str>]) -> Result<Vec<usize>, WireError> {
        if words.is_empty() {
            return Err(WireError::new(ErrorCode::Usage, messages::no_gpu_named()));
        }
        let found = self.gpu_ids("GPU ", words)?;
        Ok(found.into_iter().map(|g| g as usize).collect())
    }
}

/// The drain of a GPU, for the screen.
pub(crate) fn drain_view(gpus: &Gpus, gpu: usize) -> Option<DrainView> {
    gpus.get(gpu)?;
    let drain = gpus.drains.get(&gpus.lasting_name(gpu))?;
    Some(DrainView {
        since_ms: drain.since_ms,
        by: drain.by.clone(),
        reason: drain.reason.clone(),
    })
}

/// Why GPUs of this list (all, if it is empty) take no new claims: `GPU 1 is drained (new fan)`.
pub(crate) fn closed_text(
    world: &World<'_>,
    features: &Features,
    only: &[u32],
    reason: &Reason,
) -> Option<String> {
    if matches!(reason, Reason::Behind { .. } | Reason::Planned) {
        return None;
    }
    let meant = |g: &usize| only.is_empty() || u32::try_from(*g).is_ok_and(|g| only.contains(&g));
    let closed = (world.gpus.present())
        .filter(meant)
        // A divided GPU counts as a whole only if it is named.
        .filter(|g| !only.is_empty() || !world.gpus.is_divided(*g))
        .filter_map(|g| why_closed(world, features, g));
    let mut said: Vec<String> = Vec::new();
    for why in closed {
        // A reason for a GPU covers its instances.
        if !said.contains(&why) {
            said.push(why);
        }
    }
    (!said.is_empty()).then(|| said.join(", "))
}

/// Why a GPU takes no new claims; `None` if it takes them.
fn why_closed(world: &World<'_>, features: &Features, g: usize) -> Option<String> {
    if let Some(released) = released_text(world.gpus, g) {
        return Some(released);
    }
    let whole = world.gpus[g].parent.unwrap_or(g);
    if world.gpus.dividing.contains(&whole) {
        return Some(format!("GPU {whole} is being divided"));
    }
    if let Some(drain) = drain_view(world.gpus, g) {
        let why = in_brackets(drain.reason.as_deref());
        return Some(format!("GPU {g} is drained{why}"));
    }
    if let Some(why) = features.health.sickness(world, whole) {
        return Some(format!("GPU {g} is sick{}", in_brackets(Some(&why))));
    }
    if world.gpus.is_divided(g) {
        let own = |i: &usize| world.gpus[*i].parent == Some(g) && !world.gpus[*i].gone;
        let parts = (0..world.gpus.len()).filter(own);
        let parts: Vec<String> = parts.map(|i| i.to_string()).collect();
        let them = if parts.is_empty() {
            "it has none yet".to_owned()
        } else {
            format!("GPUs {}", parts.join(", "))
        };
        return Some(format!("GPU {g} is divided into MIG instances ({them})"));
    }
    let modes = world.gpus[g].modes;
    match modes.next {
        Some(next) => Some(format!("GPU {g} becomes {} when it is empty", next.name())),
        None if modes.now == GpuMode::Mps && !world.gpus.mode_is_ready(g) => {
            Some(format!("MPS of GPU {g} is not up yet"))
        }
        None => None,
    }
}
