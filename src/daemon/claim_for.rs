//! Makes claims on behalf, opens their cgroups and ends them. `behalf.rs` decides when.

use std::collections::BTreeMap;
use std::path::Path;

use gshare_core::ClaimId;
use gshare_proto::{ClaimFor, ClaimSpec, ErrorCode, Reply, Wait, WireError};

use super::claims::{Asked, Claims};
use super::connection::Sender;
use super::fact::Found;
use super::journal::BehalfRecord;
use super::order::Order;
use super::peer::Peer;
use super::world::World;
use super::{convert, die, grant, slurm, whose};
use crate::daemon::command::{ClaimCommand, Command, GpuCommand};

/// The journaled form of a request: the same request gets the same claim again.
fn plain(spec: ClaimSpec, name: &str) -> ClaimSpec {
    ClaimSpec {
        name: Some(name.to_owned().into()),
        // The caller only makes the claim; its command is not recorded.
        command: Vec::new().into(),
        kernel: None,
        lazy: false,
        auto: false,
        requeue: false,
        signal: None,
        lease_s: None,
        // The claim ends with its cgroup, and its programs are not moved.
        hold: true,
        movable: Some(false),
        wait: Wait::Default,
        ..spec
    }
}

/// `gshare admin claim-for`: makes a claim on behalf, or finds the existing one.
pub(crate) fn order(
    world: &World<'_>,
    peer: &Peer,
    asked: ClaimFor,
    out: &Sender,
) -> Result<Order, WireError> {
    die::at("behalf-asked");
    if let Some(own) = own_claim(world, peer, &asked) {
        return Ok(found(own));
    }
    if !peer.is_root() {
        let user = world.host.names.user(peer.uid);
        tracing::warn!("{user} tried to use gshare admin claim-for");
        let text = if peer.uid == 0 {
            "only root can make claims for others, outside of containers and of units with a file system of their own \
             (PrivateTmp= and the like)"
                .to_owned()
        } else {
            format!("only root can make claims for others, and you are {user}")
        };
        return Err(WireError::new(ErrorCode::NotPermitted, text)
            .with_hint("sudo gshare admin claim-for ..."));
    }
    let fences = &world.host.fences;
    let Some(tree) = &fences.tree else {
        let why = fences.no_tree.as_deref().unwrap_or("none was found");
        let text = format!("claim-for needs cgroups, and this machine has none: {why}");
        return Err(WireError::new(ErrorCode::NotAvailable, text));
    };
    let usage = |text: String| WireError::new(ErrorCode::Usage, text);
    let name = convert::clean(&asked.name, 64).trim().to_owned();
    if name.is_empty() {
        return Err(usage("claim-for needs a name".to_owned()).with_hint(
            "for example --name job-4711; a second call with that name returns the same claim",
        ));
    }
    let cgroup = tree
        .foreign_name(Path::new(&*asked.cgroup))
        .map_err(usage)?;
    let wait = asked.spec.wait;
    let spec = plain(*asked.spec, &name);
    let behalf = BehalfRecord {
        cgroup,
        spec: Box::new(spec.clone()),
        seen: false,
        private: asked.private,
        filtered: asked.filtered,
    };
    if let Some(known) = known_behalf(world, asked.uid, &name, &behalf)? {
        return Ok(found(known));
    }
    let owner = Peer {
        uid: asked.uid,
        gids: world.host.names.account(asked.uid).gids().into(),
        ..peer.clone()
    };
    // The caller vouches for the project, which may be an account of another scheduler.
    let mut spec = ClaimSpec { wait, ..spec };
    let project = spec.project.take().map(|p| convert::clean(&p, 128));
    let (request, patience, mut record) = convert::request(world, &owner, &spec)?;
    slurm::names_its_gpus(world, &request)?;
    slurm::stays_in_its_part(world, &request)?;
    record.project = project.unwrap_or(record.project);
    record.origin.behalf = Some(behalf);
    let asked = Asked {
        peer: owner,
        out: out.clone(),
        record,
        since_ms: 0,
        request,
        told: false,
        told_no_start: None,
    };
    let submit = Command::Claims(ClaimCommand::Submit(Box::new(asked), patience));
    Ok(Order {
        then: vec![submit, Command::Gpus(GpuCommand::DoubtOwners)],
        ..Order::default()
    })
}

/// The requested claim, if the caller is already in it: another program of the same job asked first. Root in it
/// counts as its owner.
fn own_claim(world: &World<'_>, peer: &Peer, asked: &ClaimFor) -> Option<ClaimId> {
    let id = whose::behalf_of(world, peer.process?.pid)?;
    let record = &world.claims.get(&id)?.record;
    (record.uid == asked.uid && record.name.as_deref() == Some(&*asked.name)).then_some(id)
}

fn found(id: ClaimId) -> Order {
    Order::then(Vec::new(), move |world, _| Ok(grant::granted(world, id)))
}

/// The cgroups of claims on behalf that exist.
pub(crate) fn cgroups_of_others(world: &World<'_>) -> BTreeMap<ClaimId, Found> {
    let Some(tree) = &world.host.fences.tree else {
        return BTreeMap::new();
    };
    let found = |(id, live): (&ClaimId, &super::live::Live)| {
        let behalf = live.record.origin.behalf.as_ref()?;
        let known = live.cgroup.as_ref();
        let found = if known.is_some_and(gshare_enforcer::cgroup::ClaimCgroup::is_there) {
            Found::Same
        } else if tree.is_there(&behalf.cgroup) {
            Found::Anew
        } else {
            Found::Gone
        };
        Some((*id, found))
    };
    world.claims.iter().filter_map(found).collect()
}

/// The claim of this name, if the request is the same; an error if it is a different claim.
fn known_behalf(
    world: &World<'_>,
    uid: u32,
    name: &str,
    asked: &BehalfRecord,
) -> Result<Option<ClaimId>, WireError> {
    let held = world.claims.iter().map(|(id, live)| (*id, &live.record));
    let waiting = world.claims.waiting.iter().map(|(id, a)| (*id, &a.record));
    let taken = |text: String| WireError::new(ErrorCode::NotAvailable, text);
    for (id, record) in held.chain(waiting) {
        let label = record.name.as_deref().unwrap_or("no name");
        let Some(behalf) = &record.origin.behalf else {
            let lodging = record.runs.lodging.as_ref();
            if lodging.is_some_and(|at| overlap(at, &asked.cgroup)) {
                let text = format!(
                    "{} overlaps with the cgroup of {id} ({label})",
                    asked.cgroup.display()
                );
                return Err(taken(text));
            }
            continue;
        };
        if record.name.as_deref() == Some(name) {
            let same =
                record.uid == uid && behalf.cgroup == asked.cgroup && behalf.spec == asked.spec;
            return match (same, world.claims.contains_key(&id)) {
                (true, true) => Ok(Some(id)),
                (true, false) => Err(taken(format!("`{name}` already waits, as {id}"))),
                (false, _) => Err(taken(format!(
                    "`{name}` already exists as {id}, with another user, size or cgroup ({} of {})",
                    behalf.cgroup.display(),
                    world.host.names.user(record.uid)
                ))
                .with_hint(format!("to end that one: gshare release {id}"))),
            };
        }
        if overlap(&behalf.cgroup, &asked.cgroup) {
            let (asked, other) = (asked.cgroup.display(), behalf.cgroup.display());
            let text = format!("{asked} overlaps with {other}, which belongs to {id} ({label})");
            return Err(taken(text).with_hint("a process can belong to one claim only"));
        }
    }
    Ok(None)
}

/// Whether one cgroup equals or contains the other.
fn overlap(a: &Path, b: &Path) -> bool {
    a.starts_with(b) || b.starts_with(a)
}

impl Claims {
    /// Whether a claim was made on behalf.
    pub(crate) fn is_on_behalf(&self, id: ClaimId) -> bool {
        let live = self.get(&id);
        live.is_some_and(|live| live.record.origin.behalf.is_some())
    }
}

/// The answer to a process that asks for a claim inside a claim on behalf: it joins that one and is not moved.
pub(crate) fn joins_behalf(world: &World<'_>, peer: &Peer) -> Option<Result<Reply, WireError>> {
    let id = whose::behalf_of(world, peer.process?.pid)?;
    let record = &world.claims.get(&id)?.record;
    let owner = record.uid;
    if peer.uid == owner {
        let mut reply = grant::granted(world, id);
        if let Reply::Granted(granted) = &mut reply {
            let name = record.name.as_deref().unwrap_or("the cgroup");
            granted.message +=
                &format!("\n  the claim of {name}: a size in the command does not change it");
        }
        return Some(Ok(reply));
    }
    let whose = world.host.names.user(owner);
    let text = format!("the programs of this cgroup belong to {id} of {whose}");
    Some(Err(
        WireError::new(ErrorCode::NotPermitted, text).with_hint("claim from a session of your own")
    ))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::daemon::world::scene::Scene;

    #[test]
    fn only_root_makes_claims_for_others_and_only_where_there_are_cgroups() {
        let scene = Scene::of(1);
        let ask = |uid: u32| {
            let peer = Peer {
                uid,
                ..Peer::root()
            };
            let asked = ClaimFor {
                uid: 1000,
                name: "job-1".to_owned().into(),
                cgroup: "/slurm/job_1".to_owned().into(),
                ..ClaimFor::default()
            };
            let refused = order(&scene.world(), &peer, asked, &Sender::closed());
            refused.expect_err("it cannot be had").message
        };
        assert!(ask(1000).contains("only root"), "{}", ask(1000));
        assert!(ask(0).contains("needs cgroups"), "{}", ask(0));
    }
}
