//! Identity of the processes on the GPUs, with and without a claim, and of claims: command line, notebook, script,
//! model, unit. Read once per process, and again from time to time because a process may execute another program;
//! reading `/proc` for all of them at each look would cost too much.

use std::collections::{BTreeMap, HashMap};
use std::rc::Rc;
use std::time::{Duration, Instant};

use gshare_core::ClaimId;
use gshare_enforcer::proc::ProcessKey;
use gshare_proto::{Identity as View, Named, ProcessView, UnclaimedView};

use super::command::Command;
use super::container_names::{self, names_in};
use super::fact::Fact;
use super::live::Live;
use super::names::Names;
use super::owners::Whose;
use super::world::World;
use crate::figures::{self, Face};
use crate::identity;

/// A process is read again after this time, then after twice the time, up to [`RARELY`].
const AGAIN: Duration = Duration::from_secs(20);
/// Longest time between two reads of a process.
const RARELY: Duration = Duration::from_secs(160);
/// The containers in a claim are searched again after this time, then after twice the time while nothing changes, up
/// to [`CONTAINERS_RARELY`]; immediately when its processes on GPUs change.
const CONTAINERS_AGAIN: Duration = Duration::from_secs(5);
const CONTAINERS_RARELY: Duration = Duration::from_secs(20);

/// The processes that were read, and the identity of claims by them.
#[derive(Debug, Default)]
pub(crate) struct Identity {
    known: HashMap<ProcessKey, Known>,
    claims: BTreeMap<ClaimId, OfClaim>,
    /// Processes on the GPUs without a claim, by the newest sample.
    outside: Vec<UnclaimedView>,
    /// Processes of claims.
    members: Vec<ProcessView>,
    names: Names,
}

/// Identity of a claim by its processes.
#[derive(Debug, Default)]
struct OfClaim {
    /// `None` until it is read.
    view: Option<View>,
    containers: Option<Containers>,
}

/// A process that was read.
#[derive(Debug)]
struct Known {
    face: Rc<Face>,
    at: Instant,
    /// For how long that is valid.
    good: Duration,
    /// When it was last requested.
    asked: Instant,
}

/// The containers that were found in a claim.
#[derive(Debug)]
struct Containers {
    names: Vec<String>,
    at: Instant,
    /// For how long that is valid.
    good: Duration,
    /// Its processes on GPUs at that time.
    beside: Vec<ProcessKey>,
}

impl Identity {
    pub(crate) fn on(&mut self, world: &World<'_>, fact: &Fact, _: &mut Vec<Command>) {
        match fact {
            Fact::Owners { servers } => self.look(world, servers),
            Fact::MayHaveMoved => {
                for of_claim in self.claims.values_mut() {
                    of_claim.containers = None;
                }
            }
            Fact::Accounted(pids) => self.outside.retain(|u| !pids.contains(&u.pid)),
            _ => {}
        }
    }

    /// Reads the processes of the newest sample; `servers` are those of MPS.
    fn look(&mut self, world: &World<'_>, servers: &[i32]) {
        let mut on_gpus: BTreeMap<ClaimId, Vec<ProcessKey>> = BTreeMap::new();
        let (mut outside, mut members) = (Vec::new(), Vec::new());
        for (gpu, p) in world.processes() {
            let key = world.gpus.owners.key(p.pid);
            match world.whose(p.pid) {
                // An MPS server is not listed as a program without a claim.
                Whose::Outside if servers.contains(&p.pid) => {}
                Whose::Outside => {
                    let face = key.map(|key| self.face(key));
                    let name = |uid| self.names.user(uid);
                    outside.push(figures::unclaimed(p, gpu, face.as_deref(), name));
                }
                Whose::Claim(id) => {
                    let face = key.map(|key| self.face(key));
                    members.push(figures::claimed(p, gpu, face.as_deref()));
                    on_gpus.entry(id).or_default().extend(key);
                }
                Whose::Gone => {}
            }
        }
        (self.outside, self.members) = (outside, members);
        self.known
            .retain(|_, known| known.asked.elapsed() < 2 * AGAIN);
        self.claims.retain(|id, _| world.claims.contains_key(id));
        for (id, live) in world.claims.iter() {
            let command = live.record.process.filter(|_| live.command_alive);
            let others = on_gpus.remove(id).unwrap_or_default();
            let mut found = View::default();
            self.look_into(*id, live, &others);
            for process in command.into_iter().chain(others) {
                identity::merge(&mut found, &self.face(process).identity);
            }
            identity::merge(&mut found, &identity::of_command(&live.record.command));
            found.unit = unit_of(live, &self.containers(*id, live));
            self.claims.entry(*id).or_default().view = Some(found);
        }
    }

    /// Identity of a living process.
    fn face(&mut self, process: ProcessKey) -> Rc<Face> {
        let now = Instant::now();
        let mut good = AGAIN;
        if let Some(known) = self.known.get_mut(&process) {
            known.asked = now;
            if now.duration_since(known.at) < known.good {
                return Rc::clone(&known.face);
            }
            good = (known.good * 2).min(RARELY);
        }
        let mut face = Face::of(process.pid);
        if let Some(name) = container_names::name_of(process.pid) {
            face.contained(name);
        }
        let mut face = Rc::new(face);
        if let Some(known) = self.known.get(&process) {
            if known.face == face {
                face = Rc::clone(&known.face);
            } else {
                good = AGAIN;
            }
        }
        let known = Known {
            face: Rc::clone(&face),
            at: now,
            good,
            asked: now,
        };
        self.known.insert(process, known);
        face
    }

    /// Searches for the containers in a claim, if it is time.
    fn look_into(&mut self, id: ClaimId, live: &Live, beside: &[ProcessKey]) {
        let Some(cgroup) = &live.cgroup else { return };
        let known = self.containers_in(id).filter(|c| c.beside == beside);
        if known.is_some_and(|c| c.at.elapsed() < c.good) {
            return;
        }
        let names = names_in(cgroup);
        let good = match known.filter(|c| c.names == names) {
            Some(known) => (known.good * 2).min(CONTAINERS_RARELY),
            None => CONTAINERS_AGAIN,
        };
        let found = Containers {
            names,
            at: Instant::now(),
            good,
            beside: beside.to_vec(),
        };
        self.claims.entry(id).or_default().containers = Some(found);
    }

    fn containers_in(&self, id: ClaimId) -> Option<&Containers> {
        self.claims.get(&id)?.containers.as_ref()
    }

    /// Names of the containers that were last found in a claim.
    pub(crate) fn containers(&self, id: ClaimId, live: &Live) -> Vec<String> {
        match self.containers_in(id) {
            Some(found) => found.names.clone(),
            None => live.cgroup.as_ref().map(names_in).unwrap_or_default(),
        }
    }

    /// Processes on the GPUs without a claim, by the newest sample.
    pub(crate) fn outside(&self) -> &[UnclaimedView] {
        &self.outside
    }

    /// A claim's processes on the GPUs.
    pub(crate) fn members(&self, world: &World<'_>, id: ClaimId) -> Vec<ProcessView> {
        let own = |p: &&ProcessView| world.whose(p.pid.cast_signed()) == Whose::Claim(id);
        self.members.iter().filter(own).cloned().collect()
    }

    /// Identity of a process, as last read.
    pub(crate) fn process(&self, process: ProcessKey) -> View {
        let known = self.known.get(&process);
        known.map_or_else(View::default, |known| known.face.identity.clone())
    }

    /// Identity of a claim besides its command line.
    pub(crate) fn show(&self, id: ClaimId, live: &Live) -> View {
        let known = self.claims.get(&id).and_then(|c| c.view.clone());
        known.unwrap_or_else(|| View {
            unit: unit_of(live, &self.containers(id, live)),
            ..identity::of_command(&live.record.command)
        })
    }
}

/// The containers that run in a claim, or the service that it lives in. Its own cgroup names neither.
fn unit_of(live: &Live, containers: &[String]) -> Option<Named> {
    let lodging = live.record.runs.lodging.as_ref();
    if let Some(lodging) = lodging.filter(|unit| unit.extension().is_none_or(|e| e != "slice")) {
        let name = lodging.file_name()?.to_string_lossy();
        return Some(Named {
            value: figures::printable(&name).collect(),
            source: "unit whose main process made the claim".to_owned(),
        });
    }
    (!containers.is_empty()).then(|| Named {
        value: containers.join(", "),
        source: "container in the claim's cgroup".to_owned(),
    })
}

#[cfg(test)]
mod tests {
    use gshare_enforcer::gpu::GpuProcess;
    use gshare_enforcer::proc;

    use super::*;
    use crate::daemon::world::scene::Scene;

    /// This process on a GPU, as a member of a claim or without one.
    fn look(identity: &mut Identity, whose: Whose, servers: &[i32]) -> Scene {
        let mut scene = Scene::of(1);
        scene.claim(1, 0).record.command = vec!["python3".into(), "train.py".into()].into();
        let pid = std::process::id().cast_signed();
        let process = GpuProcess {
            pid,
            bytes: None,
            compute: true,
            graphics: false,
            mps: false,
            time_busy: None,
        };
        scene.sample().gpus[0].processes = Some(vec![process]);
        scene.gpus.owners.of.insert(pid, whose);
        scene
            .gpus
            .owners
            .keys
            .extend(proc::key(pid).map(|k| (pid, k)));
        let servers = servers.to_vec();
        identity.on(&scene.world(), &Fact::Owners { servers }, &mut Vec::new());
        scene
    }

    #[test]
    fn a_process_is_shown_in_its_claim_or_outside_and_a_server_of_mps_nowhere() {
        let mut identity = Identity::default();
        let pid = std::process::id();
        let scene = look(&mut identity, Whose::Claim(ClaimId(1)), &[]);
        let members = identity.members(&scene.world(), ClaimId(1));
        assert_eq!(members.iter().map(|p| p.pid).collect::<Vec<_>>(), [pid]);
        assert!(members[0].what.contains("gshare"), "{}", members[0].what);
        assert!(identity.members(&scene.world(), ClaimId(2)).is_empty());
        assert!(identity.outside().is_empty());

        look(&mut identity, Whose::Outside, &[]);
        assert_eq!(identity.outside()[0].pid, pid);
        let own = nix::unistd::Uid::current().as_raw();
        assert_eq!(identity.outside()[0].uid, Some(own));
        assert!(identity.outside()[0].user.is_some());
        let scene = look(&mut identity, Whose::Outside, &[pid.cast_signed()]);
        assert!(identity.outside().is_empty());
        assert!(identity.members(&scene.world(), ClaimId(1)).is_empty());

        let scene = look(&mut identity, Whose::Outside, &[]);
        let accounted = Fact::Accounted([pid].into());
        identity.on(&scene.world(), &accounted, &mut Vec::new());
        assert!(identity.outside().is_empty(), "it is a claim's now");
    }

    #[test]
    fn a_claim_is_its_command_and_what_its_processes_are() {
        let mut identity = Identity::default();
        let scene = look(&mut identity, Whose::Claim(ClaimId(1)), &[]);
        let script = |view: View| view.script.map(|named| named.value);
        let live = &scene.claims[&ClaimId(1)];
        let shown = identity.show(ClaimId(1), live);
        assert_eq!(script(shown).as_deref(), Some("train.py"));
        // A process that came after the last look.
        let shown = Identity::default().show(ClaimId(1), live);
        assert_eq!(script(shown).as_deref(), Some("train.py"));

        // The unit that it lives in, by its own name alone.
        let mut scene = scene;
        scene.claim(1, 0).record.runs.lodging = Some("/system.slice/serve.service".into());
        let shown = Identity::default().show(ClaimId(1), &scene.claims[&ClaimId(1)]);
        assert_eq!(shown.unit.expect("a unit").value, "serve.service");
    }
}
