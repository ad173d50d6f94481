//! What is shown of processes: command line, notebook, script, model, unit. Read once a process and again from time
//! to time (a process may become another program), because a look at `/proc` costs and there are many processes.

use std::collections::{BTreeMap, HashMap};
use std::rc::Rc;
use std::time::{Duration, Instant};

use gshare_core::ClaimId;
use gshare_enforcer::proc::ProcessKey;
use gshare_proto::{Identity, Named};

use super::service::{Live, Service};
use super::whose::Whose;
use super::{container, convert};
use crate::figures::{self, Face};
use crate::identity;

/// After this long a process is looked at again, and again after twice the time, up to [`RARELY`].
const AGAIN: Duration = Duration::from_secs(20);
/// A process that has long been the same is looked at again after this long.
const RARELY: Duration = Duration::from_secs(160);
/// After this long the containers in a claim are looked for again, after twice the time where nothing has changed, up to
/// [`CONTAINERS_RARELY`], and at once when other processes of it are on a GPU.
const CONTAINERS_AGAIN: Duration = Duration::from_secs(5);
const CONTAINERS_RARELY: Duration = Duration::from_secs(20);

/// The processes that were looked at, and what claims are by them.
#[derive(Debug, Default)]
pub(crate) struct Faces {
    known: HashMap<ProcessKey, Known>,
    claims: BTreeMap<ClaimId, Identity>,
    containers: BTreeMap<ClaimId, Containers>,
}

/// A process that was looked at.
#[derive(Debug)]
struct Known {
    face: Rc<Face>,
    at: Instant,
    /// How long that is good for.
    good: Duration,
    /// When somebody asked last.
    asked: Instant,
}

/// The containers that were found in a claim.
#[derive(Debug)]
struct Containers {
    names: Vec<String>,
    at: Instant,
    /// How long that is good for.
    good: Duration,
    /// Its processes on GPUs then.
    beside: Vec<ProcessKey>,
}

impl Faces {
    /// A process that lives now.
    pub(crate) fn of(&mut self, process: ProcessKey) -> Rc<Face> {
        let now = Instant::now();
        let mut good = AGAIN;
        if let Some(known) = self.known.get_mut(&process) {
            known.asked = now;
            if now.duration_since(known.at) < known.good {
                return Rc::clone(&known.face);
            }
            good = (known.good * 2).min(RARELY);
        }
        let mut face = Rc::new(Face::of(process.pid));
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

    /// A process may have come into a claim, and with it a container.
    pub(crate) fn doubt_containers(&mut self) {
        self.containers.clear();
    }

    /// Forgets processes that nobody asked for lately.
    fn tidy(&mut self) {
        self.known
            .retain(|_, known| known.asked.elapsed() < 2 * AGAIN);
    }

    /// Looks for the containers in a claim, if that is due.
    fn look_into(&mut self, id: ClaimId, live: &Live, beside: &[ProcessKey]) {
        let Some(cgroup) = &live.cgroup else { return };
        let known = self.containers.get(&id).filter(|c| c.beside == beside);
        if known.is_some_and(|c| c.at.elapsed() < c.good) {
            return;
        }
        let names = container::names_in(cgroup);
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
        self.containers.insert(id, found);
    }

    /// The containers that were last found in a claim.
    fn containers(&self, id: ClaimId, live: &Live) -> Vec<String> {
        match self.containers.get(&id) {
            Some(found) => found.names.clone(),
            None => live
                .cgroup
                .as_ref()
                .map(container::names_in)
                .unwrap_or_default(),
        }
    }
}

impl Service {
    /// Puts together what each claim is, after the owners of the newest sample are known.
    pub(crate) fn look_at_faces(&mut self) {
        let mut faces = std::mem::take(&mut self.faces);
        faces.tidy();
        let mut on_gpus: BTreeMap<ClaimId, Vec<ProcessKey>> = BTreeMap::new();
        for view in &self.claimed {
            let pid = view.pid.cast_signed();
            if let (Whose::Claim(id), Some(key)) = (self.whose(pid), self.owners.key(pid)) {
                on_gpus.entry(id).or_default().push(key);
            }
        }
        let mut claims = BTreeMap::new();
        for (id, live) in &self.claims {
            let command = live.record.process.filter(|_| live.command_alive);
            let others = on_gpus.remove(id).unwrap_or_default();
            let mut found = Identity::default();
            faces.look_into(*id, live, &others);
            for process in command.map(convert::key).into_iter().chain(others) {
                identity::merge(&mut found, &faces.of(process).identity);
            }
            identity::merge(&mut found, &identity::of_command(&live.record.command));
            found.unit = unit_of(live, &faces.containers(*id, live));
            claims.insert(*id, found);
        }
        faces.containers.retain(|id, _| claims.contains_key(id));
        faces.claims = claims;
        self.faces = faces;
    }

    /// What a process is, as it was last looked at.
    pub(crate) fn faces_of(&self, process: ProcessKey) -> Identity {
        let known = self.faces.known.get(&process);
        known
            .map(|known| known.face.identity.clone())
            .unwrap_or_default()
    }

    /// Names of the containers in a claim.
    pub(crate) fn containers_of(&self, id: ClaimId, live: &Live) -> Vec<String> {
        self.faces.containers(id, live)
    }

    /// What a claim is beside its command line.
    pub(crate) fn identity_of(&self, id: ClaimId, live: &Live) -> Identity {
        let known = self.faces.claims.get(&id).cloned();
        let mut found = known.unwrap_or_else(|| Identity {
            unit: unit_of(live, &self.containers_of(id, live)),
            ..identity::of_command(&live.record.command)
        });
        // The environment has the name that the notebook had when its kernel was started.
        if let Some(now) = self.features.notebooks.notebook_of(id) {
            found.notebook = Some(now);
        }
        found
    }
}

/// The containers that run in a claim, or the service that it lives in. Its own cgroup names nothing.
fn unit_of(live: &Live, containers: &[String]) -> Option<Named> {
    if let Some(lodging) = &live.record.lodging {
        let name = lodging.file_name()?.to_string_lossy();
        return Some(Named {
            value: figures::printable(&name).collect(),
            source: "the unit whose main process claimed".to_owned(),
        });
    }
    (!containers.is_empty()).then(|| Named {
        value: containers.join(", "),
        source: "container in the claim's cgroup".to_owned(),
    })
}
