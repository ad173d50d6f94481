//! `unclaimed = "deny"`: where the filter belongs, who is exempt, and which programs it would stop.

use std::collections::BTreeSet;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use gshare_config::{Mode, Unclaimed};
use gshare_enforcer::cgroup::{Mount, path_of_pid};
use gshare_enforcer::device::GuardRules;
use gshare_enforcer::proc;
use gshare_enforcer::session;

use super::super::outside::{NoEffect, Places, Wanted};
use crate::daemon::stage;
use crate::daemon::world::World;

/// Services that start users' programs, which get the filter besides the top-level cgroups.
const SERVICES: [&str; 6] = [
    "/system.slice/cron.service",
    "/system.slice/crond.service",
    "/system.slice/anacron.service",
    "/system.slice/atd.service",
    "/system.slice/docker-*.scope",
    "/system.slice/libpod-*.scope",
];
/// Top-level cgroups that start no user's programs.
const SPARED: [&str; 2] = ["init.scope", "system.slice"];
/// Accounts below this uid belong to the system: their display servers are exempt.
const FIRST_USER: u32 = 1000;

/// Where the filter belongs now.
pub(crate) fn wanted(world: &World<'_>) -> Wanted {
    let denies = stage::unclaimed_policy(world) == Unclaimed::Deny;
    let fences = &world.host.fences;
    let tree = fences.tree.as_ref().filter(|_| fences.filters.is_some());
    let places = tree.filter(|_| denies).and_then(|_| places(world));
    Wanted {
        tree: tree.map(|tree| tree.dir().to_owned()),
        places: places.map(|(mount, dirs)| {
            let exempt = exempt(world, &mount);
            Places {
                dirs,
                watched: watched(world, &mount),
                rules: rules(world, &mount, &exempt),
                exempt,
            }
        }),
    }
}

/// Why a wanted filter has no effect; the cause is known after an attempt to attach it.
pub(crate) fn no_effect(world: &World<'_>) -> Option<NoEffect> {
    let own = world.host.mode == Mode::User;
    let wanted = match own {
        true => !world.config.is_off() && !world.gpus.denied(&world.config.stages).is_empty(),
        false => stage::unclaimed_policy(world) == Unclaimed::Deny,
    };
    let fences = &world.host.fences;
    let missing = match (&fences.tree, &fences.filters) {
        (None, _) => fences.no_tree.as_deref(),
        (_, None) => fences.no_filter.as_deref(),
        _ => None,
    };
    let (why, fix) = match (own, missing, world.policy.denial.trouble()) {
        (true, ..) => (
            "a service that a user started cannot block programs from GPUs",
            "sudo gshare setup",
        ),
        (_, Some(why), _) if why.contains("in the config") => (
            why,
            "switch it on in gshare.toml, then sudo systemctl restart gshared",
        ),
        (_, Some(why), _) => (
            why,
            "see gshare doctor, or go back by sudo gshare admin stage 3",
        ),
        (_, None, Some(why)) => (
            why,
            "list the cgroups of users' programs under deny-cgroups in gshare.toml, then sudo systemctl reload gshared",
        ),
        (_, None, None) => return None,
    };
    wanted.then(|| NoEffect {
        why: why.to_owned(),
        fix: fix.to_owned(),
    })
}

/// Directories where cgroups and sessions appear.
fn watched(world: &World<'_>, mount: &Mount) -> BTreeSet<PathBuf> {
    let named = world.config.policy.deny_cgroups.iter().flatten();
    let patterns = named.map(String::as_str).chain(SERVICES);
    let parents = patterns.filter_map(|path| {
        let (parent, _) = path.rsplit_once('/')?;
        mount.dir_of(if parent.is_empty() { "/" } else { parent })
    });
    let mut dirs: BTreeSet<PathBuf> = parents.collect();
    dirs.extend([mount.point.clone(), PathBuf::from(session::SESSIONS)]);
    dirs.retain(|dir| dir.is_dir());
    dirs
}

fn rules(world: &World<'_>, mount: &Mount, exempt: &BTreeSet<PathBuf>) -> GuardRules {
    let ids = exempt.iter().filter_map(|path| {
        let dir = mount.dir_of(path.to_str()?)?;
        std::fs::metadata(dir).ok().map(|m| m.ino())
    });
    let mut ids: BTreeSet<u64> = ids.collect();
    // Claims of units, which live outside the tree.
    let live = world.claims.values().filter_map(|l| l.cgroup.as_ref());
    let tree = world.host.fences.tree.as_ref().map(|t| t.dir().to_owned());
    let within = |dir: &Path| tree.as_ref().is_some_and(|t| dir.starts_with(t));
    let elsewhere = live.filter(|c| !within(c.dir()));
    ids.extend(elsewhere.map(gshare_enforcer::cgroup::ClaimCgroup::id));
    ids.extend(
        tree.as_ref()
            .and_then(|dir| std::fs::metadata(dir).ok())
            .map(|m| m.ino()),
    );
    let closed = world.gpus.denied(&world.config.stages);
    let minor = |g: usize| world.gpus[g].minor.filter(|_| !closed.contains(&g));
    GuardRules {
        majors: world.host.fences.majors.clone(),
        open: (0..world.gpus.len()).filter_map(minor).collect(),
        exempt: ids,
    }
}

/// Paths of the cgroups that keep their GPU: those of the configuration, graphical sessions at the machine's screens,
/// and the system's own display servers.
fn exempt(world: &World<'_>, mount: &Mount) -> BTreeSet<PathBuf> {
    let mut exempt: BTreeSet<PathBuf> = session::graphical_cgroups(Path::new(session::SESSIONS))
        .into_iter()
        .collect();
    exempt.extend(world.config.policy.exempt_cgroups.iter().map(PathBuf::from));
    let drawing = (0..world.gpus.len())
        .filter_map(|g| world.gpus.reading(g))
        .flat_map(|r| r.processes.iter().flatten())
        .filter(|p| p.graphics);
    for process in drawing {
        let system = proc::uids(process.pid).is_some_and(|u| u.real < FIRST_USER);
        let place = cgroup_of(process.pid).filter(|path| path.components().count() > 2);
        exempt.extend(place.filter(|_| system));
    }
    exempt.retain(|path| path.to_str().and_then(|p| mount.dir_of(p)).is_some());
    exempt
}

/// The mount, and the directories of the cgroups where the filter belongs.
fn places(world: &World<'_>) -> Option<(Mount, BTreeSet<PathBuf>)> {
    let mount = Mount::find().ok()?;
    let mut places = BTreeSet::new();
    let policy = &world.config.policy;
    match &policy.deny_cgroups {
        Some(list) => places.extend(list.iter().flat_map(|path| matching(&mount, path))),
        None => {
            places.extend(top_level(&mount));
            places.extend(SERVICES.iter().flat_map(|path| matching(&mount, path)));
        }
    }
    let own = world.host.fences.tree.as_ref().map(|t| t.dir().to_owned());
    places.retain(|dir| own.as_ref().is_none_or(|own| !dir.starts_with(own)));
    Some((mount, places))
}

/// Whether the filter would keep programs in a cgroup from GPUs.
pub(super) fn would_deny(world: &World<'_>) -> impl Fn(&Path) -> bool + use<> {
    let places: Vec<PathBuf> = places(world).map_or_else(Vec::new, |(mount, places)| {
        let paths = places.iter().filter_map(|dir| mount.path_of(dir));
        paths.collect()
    });
    let exempt = Mount::find()
        .map(|mount| exempt(world, &mount))
        .unwrap_or_default();
    move |cgroup: &Path| {
        places.iter().any(|place| cgroup.starts_with(place))
            && !exempt.iter().any(|path| cgroup.starts_with(path))
    }
}

/// The cgroup of a process, as a path from the top.
pub(super) fn cgroup_of(pid: i32) -> Option<PathBuf> {
    path_of_pid(pid).map(PathBuf::from)
}

/// Top-level cgroups in which users' programs may start.
fn top_level(mount: &Mount) -> Vec<PathBuf> {
    let entries = std::fs::read_dir(&mount.point).into_iter().flatten();
    let dirs = entries
        .flatten()
        .filter(|e| e.file_type().is_ok_and(|t| t.is_dir()));
    let starts_programs = |name: &str| {
        !SPARED.contains(&name)
            && !name.starts_with("gshare")
            && !name.ends_with(".mount")
            && !name.ends_with(".swap")
    };
    dirs.filter(|e| e.file_name().to_str().is_some_and(starts_programs))
        .map(|e| e.path())
        .collect()
}

/// The directories of a path in the list: itself, or with a `*` all whose last part matches.
fn matching(mount: &Mount, path: &str) -> Vec<PathBuf> {
    let Some((parent, last)) = path.rsplit_once('/') else {
        return Vec::new();
    };
    let Some((head, tail)) = last.split_once('*') else {
        let dir = mount.dir_of(path).filter(|dir| dir.is_dir());
        return dir.into_iter().collect();
    };
    let parent = if parent.is_empty() { "/" } else { parent };
    let Some(parent) = mount.dir_of(parent) else {
        return Vec::new();
    };
    let entries = std::fs::read_dir(parent).into_iter().flatten().flatten();
    let dirs = entries.filter(|e| e.file_type().is_ok_and(|t| t.is_dir()));
    let fits = |name: &str| {
        name.len() >= head.len() + tail.len() && name.starts_with(head) && name.ends_with(tail)
    };
    dirs.filter(|e| e.file_name().to_str().is_some_and(fits))
        .map(|e| e.path())
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn places_are_found_by_name() {
        let dir = tempfile::tempdir().unwrap();
        for name in [
            "user.slice",
            "machine.slice",
            "init.scope",
            "system.slice/cron.service",
            "system.slice/docker-12.scope",
            "system.slice/docker-34.scope",
            "system.slice/docker.service",
            "gshare",
            "gshare-claims.slice",
            "dev-hugepages.mount",
            "docker",
        ] {
            std::fs::create_dir_all(dir.path().join(name)).unwrap();
        }
        let mount = Mount {
            point: dir.path().into(),
            root: "/".into(),
        };
        let names = |mut found: Vec<PathBuf>| {
            found.sort();
            let names = found.iter().map(|p| p.strip_prefix(dir.path()).unwrap());
            let names: Vec<String> = names.map(|p| p.display().to_string()).collect();
            names.join(" ")
        };
        assert_eq!(names(top_level(&mount)), "docker machine.slice user.slice");
        for (path, found) in [
            ("/user.slice", "user.slice"),
            ("/absent.slice", ""),
            ("/system.slice/cron.service", "system.slice/cron.service"),
            (
                "/system.slice/docker-*.scope",
                "system.slice/docker-12.scope system.slice/docker-34.scope",
            ),
            (
                "/*.slice",
                "gshare-claims.slice machine.slice system.slice user.slice",
            ),
            ("/system.slice/absent*", ""),
        ] {
            assert_eq!(names(matching(&mount, path)), found, "{path}");
        }
    }
}
