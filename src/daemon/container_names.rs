//! Names of containers, from the programs that supervise them.

use std::collections::BTreeSet;
use std::fs::File;
use std::io::{self, Read};
use std::path::Path;

use gshare_enforcer::cgroup::{ClaimCgroup, container_id};
use gshare_enforcer::proc::{self, Stat};

use crate::figures;

/// Maximum number of bytes read from docker's file about a container.
const LONGEST_FILE: u64 = 1 << 20;

/// Names of the containers that run in a claim, for display. Without a name from the supervising program, the
/// beginning of the id.
pub(crate) fn names_in(cgroup: &ClaimCgroup) -> Vec<String> {
    let below = std::fs::read_dir(cgroup.dir())
        .into_iter()
        .flatten()
        .flatten()
        .filter(|entry| entry.file_type().is_ok_and(|t| t.is_dir()))
        .filter_map(|entry| {
            let id = container_id(entry.file_name().to_str()?)?.to_owned();
            // An empty cgroup belongs to a container that has ended.
            let pid = first_process(&entry.path()).ok()??;
            Some(name(pid, &id))
        });
    // A rootless container stays in the claim's own cgroup, with the program that supervises it.
    let members = std::fs::read_to_string(cgroup.dir().join("cgroup.procs")).unwrap_or_default();
    let own = members
        .lines()
        .filter_map(|pid| watched_by(&conmon_words(&proc::stat(pid.parse().ok()?)?)?));
    let names: BTreeSet<String> = below.chain(own).collect();
    names.into_iter().collect()
}

/// The container that a process runs in. If no cgroup names one, the supervising program may.
pub(crate) fn name_of(pid: i32) -> Option<String> {
    let cgroups = |of: &str| std::fs::read_to_string(format!("/proc/{of}/cgroup"));
    let (found, own) = (cgroups(&pid.to_string()).ok()?, cgroups("self").ok()?);
    let watched = || watchers(pid).iter().find_map(|words| watched_by(words));
    id_in(&found, &own).map(|id| name(pid, id)).or_else(watched)
}

/// The id of the outermost container in the text of `/proc/PID/cgroup`, except one that contains the service itself.
fn id_in<'a>(cgroups: &'a str, own: &str) -> Option<&'a str> {
    let paths = cgroups
        .lines()
        .filter_map(|line| line.splitn(3, ':').nth(2));
    let mut ids = paths
        .flat_map(|path| path.split('/'))
        .filter_map(container_id);
    ids.find(|id| !own.contains(id))
}

/// The name of the container with this id in which a process runs, or the beginning of the id.
fn name(pid: i32, id: &str) -> String {
    let name = watched_name(pid, id).or_else(|| docker_name(id));
    name.unwrap_or_else(|| id[..12].to_owned())
}

/// The name that docker gave a container with this id, if its files are at the usual place.
fn docker_name(id: &str) -> Option<String> {
    let file = format!("/var/lib/docker/containers/{id}/config.v2.json");
    let mut bytes = Vec::new();
    let file = File::open(file).ok()?;
    file.take(LONGEST_FILE).read_to_end(&mut bytes).ok()?;
    name_in(&bytes)
}

/// The name in docker's file about a container.
pub(crate) fn name_in(file: &[u8]) -> Option<String> {
    #[derive(serde::Deserialize)]
    #[serde(rename_all = "PascalCase")]
    struct Kept {
        name: String,
    }
    let kept: Kept = serde_json::from_slice(file).ok()?;
    let name = kept.name.trim_start_matches('/');
    (!name.is_empty()).then(|| shown(name))
}

/// A name for display.
fn shown(name: &str) -> String {
    figures::printable(name).take(64).collect()
}

/// The name of the container in the command line of podman's `conmon`.
fn watched_by(words: &[String]) -> Option<String> {
    let at = words.iter().position(|w| w == "-n")?;
    words.get(at + 1).map(|name| shown(name))
}

/// The command line of a process, if it is podman's `conmon`.
fn conmon_words(process: &Stat) -> Option<Vec<String>> {
    (process.comm == "conmon").then(|| words_of(process.pid))?
}

fn words_of(pid: i32) -> Option<Vec<String>> {
    let words = proc::cmdline(pid)?;
    Some(
        words
            .iter()
            .map(|w| w.to_string_lossy().into_owned())
            .collect(),
    )
}

fn first_process(cgroup: &Path) -> io::Result<Option<i32>> {
    let text = std::fs::read_to_string(cgroup.join("cgroup.procs"))?;
    Ok(text.lines().find_map(|line| line.parse().ok()))
}

/// The container name of podman's `conmon` among the ancestors of the container's processes.
fn watched_name(pid: i32, id: &str) -> Option<String> {
    let of_this = |words: &&Vec<String>| words.iter().any(|w| w == id);
    let watchers = watchers(pid);
    watchers
        .iter()
        .filter(of_this)
        .find_map(|words| watched_by(words))
}

/// Command lines of podman's `conmon` among the ancestors of a process.
fn watchers(pid: i32) -> Vec<Vec<String>> {
    proc::ancestors(pid)
        .iter()
        .filter_map(conmon_words)
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_container_is_known_by_the_cgroup_of_its_processes() {
        let id = "0123456789abcdef".repeat(4);
        let (inner, id) = (id.replace('0', "f"), id.as_str());
        for place in [
            format!("0::/system.slice/docker-{id}.scope"),
            format!(
                "0::/user.slice/user-7.slice/user@7.service/user.slice/libpod-{id}.scope/container"
            ),
            format!("0::/machine.slice/libpod-{id}.scope/system.slice/docker-{inner}.scope"),
            format!("5:devices:/docker/{id}\n0::/"),
        ] {
            assert_eq!(id_in(&place, "0::/init.scope"), Some(id), "{place}");
        }
        let session = "0::/user.slice/user-7.slice/session-3.scope\n";
        assert_eq!(id_in(session, "0::/init.scope"), None);
        let both = format!("0::/docker/{id}/libpod-{inner}");
        let machine = format!("0::/docker/{id}/gshare");
        assert_eq!(id_in(&both, &machine), Some(inner.as_str()));
        assert_eq!(id_in(&machine, &machine), None, "the machine itself");
        assert_eq!(name(i32::MAX, id), id[..12], "nothing tells its name");
    }
}
