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

/// After this long a process is looked at again.
const AGAIN: Duration = Duration::from_secs(20);

/// The processes that were looked at, and what claims are by them.
#[derive(Debug, Default)]
pub(crate) struct Faces {
    known: HashMap<ProcessKey, (Rc<Face>, Instant)>,
    claims: BTreeMap<ClaimId, Identity>,
}

impl Faces {
    /// A process that lives now.
    pub(crate) fn of(&mut self, process: ProcessKey) -> Rc<Face> {
        if let Some((face, at)) = self.known.get(&process)
            && at.elapsed() < AGAIN
        {
            return Rc::clone(face);
        }
        let face = Rc::new(Face::of(process.pid));
        let entry = (Rc::clone(&face), Instant::now());
        self.known.insert(process, entry);
        face
    }

    /// Forgets processes that nobody asked for lately.
    fn tidy(&mut self) {
        self.known.retain(|_, (_, at)| at.elapsed() < 2 * AGAIN);
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
            for process in command.map(convert::key).into_iter().chain(others) {
                identity::merge(&mut found, &faces.of(process).identity);
            }
            identity::merge(&mut found, &identity::of_command(&live.record.command));
            found.unit = unit_of(live);
            claims.insert(*id, found);
        }
        faces.claims = claims;
        self.faces = faces;
    }

    /// What a process is, as it was last looked at.
    pub(crate) fn faces_of(&self, process: ProcessKey) -> Identity {
        let known = self.faces.known.get(&process);
        known
            .map(|(face, _)| face.identity.clone())
            .unwrap_or_default()
    }

    /// What a claim is beside its command line.
    pub(crate) fn identity_of(&self, id: ClaimId, live: &Live) -> Identity {
        let known = self.faces.claims.get(&id).cloned();
        let mut found = known.unwrap_or_else(|| Identity {
            unit: unit_of(live),
            ..identity::of_command(&live.record.command)
        });
        // The environment has the name that the notebook had when its kernel was started.
        if let Some(now) = self.notebook_of(id) {
            found.notebook = Some(now);
        }
        found
    }
}

/// The containers that run in a claim, or the service that it lives in. Its own cgroup names nothing.
fn unit_of(live: &Live) -> Option<Named> {
    if let Some(lodging) = &live.record.lodging {
        let name = lodging.file_name()?.to_string_lossy();
        return Some(Named {
            value: figures::printable(&name).collect(),
            source: "the unit whose main process claimed".to_owned(),
        });
    }
    let names = live.cgroup.as_ref().map(container::names_in)?;
    (!names.is_empty()).then(|| Named {
        value: names.join(", "),
        source: "container in the claim's cgroup".to_owned(),
    })
}
