//! A program without a claim that uses memory guaranteed to claims: from stage 3 on, both owners are notified.

use std::collections::BTreeSet;

use gshare_config::Stage;
use gshare_core::{Bytes, ClaimId, GpuFacts};
use gshare_enforcer::proc;

use super::super::live::Live;
use super::super::outside::AutoClaim;
use crate::daemon::command::Command;
use crate::daemon::fact::Fact;
use crate::daemon::world::World;
use crate::figures;

/// A claim, its owner, and its guaranteed bytes on the GPU.
type Short = (ClaimId, u32, Bytes);

/// Programs without a claim that were named, by the number of their account.
#[derive(Debug, Default)]
pub(crate) struct Takers(BTreeSet<ClaimId>);

impl Takers {
    /// Names the largest such program on each GPU, once.
    pub(crate) fn on(&mut self, world: &World<'_>, fact: &Fact, out: &mut Vec<Command>) {
        if !matches!(fact, Fact::Accounted(_)) {
            return;
        }
        let auto = &world.policy.auto;
        self.0.retain(|id| auto.contains_key(id));
        for gpu in 0..world.gpus.len() {
            let taken = |(id, auto): (&ClaimId, &AutoClaim)| {
                let bytes = auto.uses().get(&gpu)?.bytes.filter(|b| *b > 0)?;
                Some((Bytes(bytes), *id))
            };
            let most = auto.iter().filter_map(taken).max();
            let Some((bytes, taker)) = most.filter(|(_, taker)| !self.0.contains(taker)) else {
                continue;
            };
            let short = short_of_memory(world, gpu);
            if let (Some(auto), false) = (auto.get(&taker), short.is_empty()) {
                self.0.insert(taker);
                name(world, auto, (gpu, bytes), &short, out);
            }
        }
    }
}

/// The claims on a GPU whose sizes together exceed the memory that is left.
fn short_of_memory(world: &World<'_>, gpu: usize) -> Vec<Short> {
    let ledger = world.machine.ledger();
    // Claims' memory above their limits is not the fault of these programs.
    let unclaimed = Bytes(world.gpus[gpu].unclaimed);
    let there = ledger.gpus().get(gpu).and_then(|facts| {
        let facts = GpuFacts {
            unclaimed,
            ..facts.clone()
        };
        facts.allocatable()
    });
    if there.is_none_or(|there| ledger.mem_requested(gpu) <= there) {
        return Vec::new();
    }
    let short = |(id, live): (&ClaimId, &Live)| {
        let slices = ledger
            .slices(*id)
            .filter(|_| live.record.runs.stage >= Stage::Reclaim)?;
        let slice = slices.iter().find(|s| s.gpu == gpu && s.charge < s.mem)?;
        Some((*id, live.record.uid, slice.mem))
    };
    world.claims.iter().filter_map(short).collect()
}

fn name(
    world: &World<'_>,
    auto: &AutoClaim,
    (gpu, bytes): (usize, Bytes),
    short: &[Short],
    out: &mut Vec<Command>,
) {
    let (pid, uid) = (auto.pid(), auto.uid());
    let command = figures::program(&auto.record().command);
    let program = command.first().map_or("a program", |c| c.as_str());
    let user = world.host.names.user(uid);
    let what = format!("{program} ({pid}) of {user} has no claim and uses {bytes} of GPU {gpu}");
    let mut others = Vec::new();
    for &(id, owner, mem) in short {
        let text = format!(
            "{what}, so {id} might not get all of its {mem}. Ask {user} to run gshare adopt {pid}"
        );
        out.push(Command::TellOwner { id, text });
        others.push(format!("{id} of {}", world.host.names.user(owner)));
    }
    let line = format!(
        "gshare: {what}. This memory is part of the size of {}. To create a claim for your program: gshare adopt {pid}",
        others.join(", ")
    );
    let terminal = proc::terminal(pid, uid);
    out.extend(terminal.map(|terminal| Command::Say(terminal, line)));
}

#[cfg(test)]
mod tests {
    use gshare_enforcer::proc::ProcessKey;

    use super::*;
    use crate::daemon::gpu::DriverUse;
    use crate::daemon::journal::{ClaimRecord, Journal};
    use crate::daemon::world::scene::Scene;

    #[test]
    fn the_largest_program_is_named_once_and_only_where_a_guarantee_is_not_there() {
        let mut scene = Scene::of(1);
        scene.claim(1, 0).record.runs.stage = Stage::Reclaim;
        scene.grant_half(None);
        for (id, gib) in [(7, 15), (8, 1)] {
            let used = DriverUse {
                bytes: Some(gib << 30),
                ..DriverUse::default()
            };
            let process = ProcessKey {
                pid: i32::MAX,
                start_ticks: id,
            };
            let record = ClaimRecord {
                id,
                ..ClaimRecord::default()
            };
            let mut auto = AutoClaim::new(record, process);
            auto.note([(0, used)].into());
            scene.policy.auto.enter(auto);
        }
        let mut takers = Takers::default();
        let mut told = |scene: &Scene| {
            let mut out = Vec::new();
            let fact = Fact::Accounted(BTreeSet::new());
            takers.on(&scene.world(), &fact, &mut out);
            format!("{out:?}")
        };
        scene.gpus[0].unclaimed = 12 << 30;
        assert_eq!(told(&scene), "[]", "there is room for both");
        scene.gpus[0].unclaimed = 16 << 30;
        let first = told(&scene);
        assert!(first.contains("uses 15.0 GiB of GPU 0"), "{first}");
        assert_eq!(told(&scene), "[]");
        let dir = tempfile::tempdir().expect("a directory");
        let mut journal = Journal::open(&dir.path().join("db")).expect("opened");
        scene.policy.auto.end(&mut journal, ClaimId(7), "it ended");
        assert!(told(&scene).contains("uses 1.0 GiB"), "the next");
    }
}
