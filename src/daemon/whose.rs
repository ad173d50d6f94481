//! Owners of the processes on the GPUs. Looked up once per sample of the driver, not per figure: the kernel's answers
//! cost time, and an answer that changes within a snapshot would count a process twice.

use std::collections::{BTreeMap, BTreeSet, HashMap, HashSet};
use std::path::Path;
use std::sync::Arc;

use gshare_core::ClaimId;
use gshare_enforcer::cgroup::{ClaimTree, Tree};
use gshare_enforcer::proc::{self, ProcessKey};

use super::claims::Claims;
use super::journal::ClaimRecord;
use super::live::Live;
use super::mps_daemon::OnGpu;
pub(crate) use super::owners::{Owners, Whose};
use super::peer::Peer;
use super::world::World;

/// One look in this many queries all processes, not only those that are not watched members.
const LOOKS: u32 = 10;

/// Owners of the processes in the newest sample.
pub(crate) fn look_up_all(world: &World<'_>) -> Owners {
    let pids: BTreeSet<i32> = world.processes().map(|(_, p)| p.pid).collect();
    let (mut of, mut keys) = (HashMap::new(), HashMap::new());
    let trusted = world.gpus.owners.trusted;
    for pid in pids {
        if let Some((id, key)) = member_before(world, pid).filter(|_| trusted > 0) {
            of.insert(pid, Whose::Claim(id));
            keys.insert(pid, key);
            continue;
        }
        let stat = proc::stat(pid).filter(|s| !matches!(s.state, 'Z' | 'X'));
        of.insert(pid, look_up(world, pid, stat.is_some()));
        keys.extend(stat.map(|s| (pid, s.key())));
    }
    let mut by_claim: BTreeMap<ClaimId, Vec<i32>> = BTreeMap::new();
    for (pid, whose) in &of {
        if let Whose::Claim(id) = whose {
            by_claim.entry(*id).or_default().push(*pid);
        }
    }
    Owners {
        of,
        by_claim,
        keys,
        ended: HashSet::new(),
        trusted: match trusted {
            0 => LOOKS,
            left => left - 1,
        },
    }
}

/// Processes without a claim that serve MPS.
pub(crate) fn servers(world: &World<'_>) -> Vec<i32> {
    let outside = world.processes().map(|(_, p)| p.pid);
    let outside = outside.filter(|pid| world.whose(*pid) == Whose::Outside);
    outside.filter(|pid| is_mps_server(world, *pid)).collect()
}

/// Members of this claim that hold GPU memory, by the ledger or the driver. Membership is checked now, because they
/// may be signalled next.
pub(crate) fn holders(world: &World<'_>, id: ClaimId) -> Vec<ProcessKey> {
    let Some(live) = world.claims.get(&id) else {
        return Vec::new();
    };
    let mut found: Vec<ProcessKey> = processes_of(world, id).filter_map(proc::key).collect();
    for seat in &live.seats {
        let slots = seat.usage.read_slots(world.gpus[seat.gpu].total);
        found.extend(
            slots
                .iter()
                .filter(|s| s.charge_bytes > 0)
                .map(|s| ProcessKey {
                    pid: s.pid.cast_signed(),
                    start_ticks: s.start_time,
                }),
        );
    }
    found.sort_unstable_by_key(|p| (p.pid, p.start_ticks));
    found.dedup();
    found.retain(|p| proc::key(p.pid) == Some(*p) && claim_of(world, p.pid) == Some(id));
    found
}

/// The claim of a process: by its cgroup, or without cgroups by descent from a claim's command. A member that was
/// moved out of the claim's cgroup, as systemd does for users, stays a member.
pub(crate) fn claim_of(world: &World<'_>, pid: i32) -> Option<ClaimId> {
    let Some(tree) = &world.host.fences.tree else {
        return world.claims.claim_by_descent(pid, |_| true);
    };
    let place = tree.claim_of_pid(pid).map(|place| ClaimId(place.claim));
    place
        .filter(|id| world.claims.contains_key(id))
        .or_else(|| world.claims.claim_by_registration(pid))
        .or_else(|| {
            world
                .claims
                .claim_by_descent(pid, |record| record.runs.plain)
        })
}

/// Whether a process is an MPS server of ours: one that was seen, or the child of a daemon of this user.
pub(crate) fn is_mps_server(world: &World<'_>, pid: i32) -> bool {
    let seen = |on: &OnGpu| on.servers.iter().any(|s| s.pid == pid);
    if world.gpus.mps.values().any(seen) {
        return true;
    }
    if world.gpus.mps.is_empty() {
        return false;
    }
    let program = world.config.mps_program();
    program.is_ok_and(|program| is_child_of(pid, &program))
}

/// Whether the parent of a process runs this program as this user, even if the file was replaced meanwhile.
fn is_child_of(pid: i32, program: &Path) -> bool {
    let own = nix::unistd::Uid::effective().as_raw();
    let parent = proc::stat(pid).map(|s| s.ppid);
    let parent = parent.filter(|p| proc::uids(*p).is_some_and(|u| u.real == own));
    let program = program.canonicalize().ok();
    program.is_some() && parent.and_then(proc::exe) == program
}

/// The journaled processes: the command and those that joined.
pub(crate) fn roots(live: &Live) -> impl Iterator<Item = ProcessKey> {
    let recorded = live.record.process.iter().chain(&live.record.runs.joined);
    recorded.copied()
}

/// Processes of a claim that were moved out of its cgroup, as systemd does for users, and not into another claim's.
pub(crate) fn moved_out(
    processes: impl Iterator<Item = ProcessKey>,
    tree: &Tree,
) -> impl Iterator<Item = ProcessKey> {
    processes.filter(|p| proc::key(p.pid) == Some(*p) && tree.claim_of_pid(p.pid).is_none())
}

/// The processes in a claim's cgroup, and members that were moved out of it; none without a cgroup.
pub(crate) fn pids_of(live: &Live, tree: Option<&Tree>) -> Option<BTreeSet<i32>> {
    let (cgroup, tree) = live.cgroup.as_ref().zip(tree)?;
    let mut pids: BTreeSet<i32> = cgroup.procs().unwrap_or_default().into_iter().collect();
    let registered = live.members.keys().copied();
    let outside: Vec<_> = registered.filter(|p| !pids.contains(&p.pid)).collect();
    pids.extend(moved_out(outside.into_iter(), tree).map(|p| p.pid));
    Some(pids)
}

/// Processes that may map the claim's pages: those of its cgroup; without cgroups, the command, joined processes,
/// their descendants, and processes with the claim's environment from the service at `socket`, since other services
/// have claims of the same numbers.
pub(crate) fn members_of(live: &Live, socket: &Path, tree: Option<&Tree>) -> Vec<ProcessKey> {
    if live.record.origin.behalf.is_some() && live.cgroup.is_none() {
        return Vec::new();
    }
    if let Some(pids) = pids_of(live, tree) {
        return pids.into_iter().filter_map(proc::key).collect();
    }
    let roots: Vec<ProcessKey> = roots(live).collect();
    let markers = [
        format!("GSHARE_CLAIM_ID={}", live.record.id),
        format!("GSHARE_SOCKET={}", socket.display()),
    ];
    let marked = |pid| {
        let environ = proc::environ(pid).unwrap_or_default();
        markers.iter().all(|m| environ.iter().any(|v| **v == **m))
    };
    let pids = std::fs::read_dir("/proc")
        .into_iter()
        .flatten()
        .flatten()
        .filter_map(|e| e.file_name().to_str()?.parse::<i32>().ok());
    pids.filter(|pid| proc::uids(*pid).is_some_and(|u| u.effective == live.record.uid))
        .filter(|pid| {
            proc::ancestors(*pid)
                .iter()
                .any(|s| roots.contains(&s.key()))
                || marked(*pid)
        })
        .filter_map(proc::key)
        .collect()
}

/// A process that gshare itself runs: a probe, a server of its own.
pub(crate) fn is_own_process(world: &World<'_>, pid: i32) -> bool {
    let service = std::process::id().cast_signed();
    let own = |pid: i32| pid == service || world.policy.own.contains(&pid);
    is_mps_server(world, pid) || proc::ancestors(pid).iter().any(|a| own(a.pid))
}

/// The claim on behalf that a process is a member of.
pub(crate) fn behalf_of(world: &World<'_>, pid: i32) -> Option<ClaimId> {
    claim_of(world, pid).filter(|id| world.claims.is_on_behalf(*id))
}

/// A process that looks ended has just ended, unless the driver still lists it at the next look: then it cannot be
/// seen from here, or only its first thread has ended.
fn look_up(world: &World<'_>, pid: i32, lives: bool) -> Whose {
    if !lives && world.gpus.owners.of.get(&pid) != Some(&Whose::Gone) {
        return Whose::Gone;
    }
    claim_of(world, pid).map_or(Whose::Outside, Whose::Claim)
}

/// A process that was a claim's at the last look and whose end would have been noticed: it lives, and only root and
/// this service can move it.
fn member_before(world: &World<'_>, pid: i32) -> Option<(ClaimId, ProcessKey)> {
    let Some(Whose::Claim(id)) = world.gpus.owners.of.get(&pid) else {
        return None;
    };
    let key = world.gpus.owners.key(pid)?;
    let watched = world.claims.get(id)?.members.contains_key(&key);
    (watched && !world.gpus.owners.ended.contains(&pid)).then_some((*id, key))
}

/// A claim's processes in the newest sample.
pub(crate) fn processes_of(world: &World<'_>, id: ClaimId) -> impl Iterator<Item = i32> {
    let all = world.gpus.owners.by_claim.get(&id).into_iter().flatten();
    let own = move |pid: &i32| world.whose(*pid) == Whose::Claim(id);
    all.copied().filter(own)
}

/// The user as whom a peer acts: root below the cgroup of a user's claim acts for the claim's owner. Images contain
/// programs that run as root, and a claim must not give root's rights.
pub(crate) fn standing(world: &World<'_>, peer: Peer) -> Peer {
    let claim = peer.process.filter(|_| peer.uid == 0);
    let claim = claim.and_then(|process| claim_of(world, process.pid));
    let owner = claim
        .and_then(|id| world.claims.get(&id))
        .map(|l| l.record.uid);
    match owner.filter(|owner| *owner != 0) {
        Some(uid) => Peer {
            uid,
            gids: Arc::new([]),
            was_root: peer.is_root(),
            on_machine: false,
            ..peer
        },
        None => peer,
    }
}

impl Claims {
    /// Without cgroups: the claim of the nearest ancestor that is a claim's command, has joined one or was registered
    /// as its member; among several the newest, which the process requested last.
    fn claim_by_descent(&self, pid: i32, of: fn(&ClaimRecord) -> bool) -> Option<ClaimId> {
        if !self.values().any(|live| of(&live.record)) {
            return None;
        }
        proc::ancestors(pid).iter().find_map(|ancestor| {
            let key = ancestor.key();
            let has = |live: &Live| {
                let is_root = || roots(live).any(|root| root == key);
                of(&live.record) && (is_root() || live.members.contains_key(&key))
            };
            let found = self.iter().rev().find(|(_, live)| has(live));
            found.map(|(id, _)| *id)
        })
    }
}

#[cfg(test)]
mod tests {
    use std::io::{BufRead, BufReader};
    use std::process::Stdio;

    use super::*;
    use crate::daemon::world::scene::Scene;

    #[test]
    fn a_server_is_known_by_the_daemon_that_started_it() {
        let dir = tempfile::tempdir().expect("a directory");
        let program = dir.path().join("control");
        std::fs::copy("/bin/sh", &program).expect("copied");
        // A daemon, its server, and a process that the server started.
        let words = "sh -c 'sleep 60 & echo $! $$; wait; :' & wait; :";
        let mut daemon = std::process::Command::new(&program)
            .args(["-c", words])
            .stdout(Stdio::piped())
            .spawn()
            .expect("runs");
        let mut line = String::new();
        let said = daemon.stdout.take().expect("piped");
        BufReader::new(said).read_line(&mut line).expect("said");
        let pids: Vec<i32> = line
            .split(' ')
            .filter_map(|p| p.trim().parse().ok())
            .collect();
        let [below, server] = pids[..] else {
            panic!("{line}");
        };
        let known = |program: &Path| {
            [daemon.id().cast_signed(), server, below].map(|pid| is_child_of(pid, program))
        };
        assert_eq!(known(&program), [false, true, false]);
        assert_eq!(known(Path::new("/bin/cat")), [false; 3]);
        std::fs::remove_file(&program).expect("removed");
        assert_eq!(
            known(&program),
            [false; 3],
            "nothing can be said without the file"
        );
        std::fs::write(&program, "a newer one").expect("written");
        assert_eq!(known(&program), [false, true, false], "as by an upgrade");
        let without = Scene::of(1);
        assert!(!is_mps_server(&without.world(), server), "no GPU has MPS");
        for pid in [below, server, daemon.id().cast_signed()] {
            let _ =
                nix::sys::signal::kill(nix::unistd::Pid::from_raw(pid), nix::sys::signal::SIGKILL);
        }
        daemon.wait().expect("ended");
    }
}
