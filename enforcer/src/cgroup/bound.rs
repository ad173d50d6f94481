//! Reasons that bind a process to its cgroup: a batch job, a container, limits that its user cannot change. A claim
//! moves programs into its own cgroup, and must not be a way out of these.

use std::fs;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use super::Mount;

/// Names of the cgroups in which batch systems run jobs: Slurm's `slurmstepd.scope`, with a node's name in front if
/// several nodes share a machine.
const JOBS: [(&str, &str); 7] = [
    ("slurmstepd.scope", "Slurm"),
    ("slurm", "Slurm"),
    ("pbs_jobs.service", "PBS"),
    ("pbs_jobs", "PBS"),
    ("htcondor", "HTCondor"),
    ("lsf", "LSF"),
    ("oar", "OAR"),
];
/// Name prefixes of container programs' cgroups, beside cgroups named by a container's id.
const CONTAINERS: [&str; 4] = ["lxc.payload", "kubepods", "machine-", "systemd-nspawn@"];
/// Limits, each with its first word when unset. The number of tasks is not among them: systemd limits it for every
/// service, and a claim that has more takes nothing from others.
const LIMITS: [(&str, &str); 7] = [
    ("memory.max", "max"),
    ("memory.high", "max"),
    ("memory.swap.max", "max"),
    ("cpu.max", "max"),
    ("cpuset.cpus", ""),
    ("cpuset.mems", ""),
    ("io.max", ""),
];

/// Why a process must stay in its cgroup.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub enum Bound {
    /// A batch system runs it and accounts for it.
    Job {
        /// Name of the batch system.
        system: &'static str,
        /// The kernel's name of the job's cgroup.
        cgroup: PathBuf,
    },
    /// It runs in a container.
    Container {
        /// The container's cgroup.
        cgroup: PathBuf,
    },
    /// Another program has limited its resources.
    Limited {
        /// The cgroup that has the limit.
        cgroup: PathBuf,
        /// The limit's file and text: `memory.max = 4294967296`.
        limit: String,
    },
}

impl std::fmt::Display for Bound {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Job { system, cgroup } => {
                write!(f, "it runs in a job of {system} ({})", cgroup.display())
            }
            Self::Container { cgroup } => {
                write!(f, "it runs in a container ({})", cgroup.display())
            }
            Self::Limited { cgroup, limit } => write!(
                f,
                "its cgroup {} has a limit that its user cannot change ({limit})",
                cgroup.display()
            ),
        }
    }
}

/// Where a tree's claims may take programs from.
#[derive(Debug, Clone)]
pub(super) struct Ground {
    /// The mount of cgroup v2.
    pub(super) mount: Mount,
    /// The kernel's name of the cgroup above all claims.
    pub(super) tree: PathBuf,
    /// Claims have the limits of `user.slice` and of their user's slice.
    pub(super) has_slices_limits: bool,
}

impl Ground {
    /// What binds a process of `uid` to `from` when it is to move to `to`.
    pub(super) fn bound(&self, from: &Path, to: &Path, uid: u32) -> Option<Bound> {
        let left = from
            .ancestors()
            .take_while(|above| !to.starts_with(above) && !self.tree.starts_with(above));
        // A container's cgroup may have others below it, and limits of its own: the outermost reason is the most
        // useful.
        let left: Vec<&Path> = left.collect();
        let by_name = left.iter().rev().find_map(|cgroup| by_name(cgroup));
        if by_name.is_some() || from.starts_with(&self.tree) {
            return by_name;
        }
        let own = format!("/user.slice/user-{uid}.slice");
        let kept = |cgroup: &Path| {
            self.has_slices_limits && [Path::new("/user.slice"), Path::new(&own)].contains(&cgroup)
        };
        left.into_iter()
            .rev()
            .filter(|cgroup| !kept(cgroup))
            .find_map(|cgroup| self.limit(cgroup, uid))
    }

    /// A limit of this cgroup that the user cannot change.
    fn limit(&self, cgroup: &Path, uid: u32) -> Option<Bound> {
        let dir = self.mount.dir_of(cgroup.to_str()?)?;
        LIMITS.iter().find_map(|(name, unset)| {
            let file = dir.join(name);
            let text = fs::read_to_string(&file).ok()?;
            let set = text.split_whitespace().next().unwrap_or_default();
            let others = file.metadata().is_ok_and(|meta| meta.uid() != uid);
            (set != *unset && others).then(|| Bound::Limited {
                cgroup: cgroup.to_owned(),
                limit: format!("{name} = {}", text.trim().replace('\n', "; ")),
            })
        })
    }
}

fn by_name(cgroup: &Path) -> Option<Bound> {
    let name = cgroup.file_name()?.to_str()?;
    let job = JOBS.iter().find(|(job, _)| {
        name == *job
            || name
                .strip_suffix(job)
                .is_some_and(|node| node.ends_with('_'))
    });
    if let Some((_, system)) = job {
        return Some(Bound::Job {
            system,
            cgroup: cgroup.to_owned(),
        });
    }
    let contained = container_id(name).is_some()
        || name == "lxc"
        || CONTAINERS.iter().any(|start| name.starts_with(start));
    contained.then(|| Bound::Container {
        cgroup: cgroup.to_owned(),
    })
}

/// The id of a container in a cgroup's name: podman's `libpod-<id>`, docker's `<id>` or `docker-<id>.scope`.
#[must_use]
pub fn container_id(name: &str) -> Option<&str> {
    let id = name.strip_suffix(".scope").unwrap_or(name);
    let id = id.rsplit('-').next().unwrap_or(id);
    let hex = |c: char| c.is_ascii_hexdigit();
    (id.len() == 64 && id.chars().all(hex)).then_some(id)
}

#[cfg(test)]
mod tests {
    use super::*;

    const ID: &str = "2fc357eaad8073846b15c56af2de29d80f3718942bfce637d2529d59a1a78bb5";

    #[test]
    fn containers_are_known_by_their_cgroups_names() {
        for name in [
            format!("libpod-{ID}"),
            format!("libpod-{ID}.scope"),
            format!("docker-{ID}.scope"),
            ID.to_owned(),
        ] {
            assert_eq!(container_id(&name), Some(ID), "{name}");
        }
        for name in ["conmon", "libpod-conmon", "libpod-2fc3", ""] {
            assert_eq!(container_id(name), None, "{name}");
        }
    }

    /// A mount in the form of a directory, with files of limits.
    fn ground(files: &[(&str, &str)], has_slices_limits: bool) -> (tempfile::TempDir, Ground) {
        let dir = tempfile::tempdir().unwrap();
        for (path, text) in files {
            let file = dir.path().join(path);
            fs::create_dir_all(file.parent().unwrap()).unwrap();
            fs::write(file, text).unwrap();
        }
        let mount = Mount {
            point: dir.path().to_owned(),
            root: "/".into(),
        };
        let ground = Ground {
            mount,
            tree: "/gshare.slice/gshare-claims.slice".into(),
            has_slices_limits,
        };
        (dir, ground)
    }

    /// The reason that binds a user's process to a cgroup, as text.
    fn said(ground: &Ground, from: &str, uid: u32) -> Option<String> {
        let to = "/gshare.slice/gshare-claims.slice/gshare-claims-1000.slice/x.service/claim-7";
        let bound = ground.bound(Path::new(from), Path::new(to), uid);
        bound.map(|b| b.to_string())
    }

    #[test]
    fn jobs_and_containers_are_left_by_nobody() {
        let (_dir, ground) = ground(&[], true);
        for (from, expect) in [
            (
                "/system.slice/slurmstepd.scope/job_7/step_0/user/task_0".to_owned(),
                Some("it runs in a job of Slurm (/system.slice/slurmstepd.scope)".to_owned()),
            ),
            (
                "/system.slice/n1_slurmstepd.scope/job_7".to_owned(),
                Some("it runs in a job of Slurm (/system.slice/n1_slurmstepd.scope)".to_owned()),
            ),
            (
                "/pbs_jobs.service/jobid/9.host".to_owned(),
                Some("it runs in a job of PBS (/pbs_jobs.service)".to_owned()),
            ),
            (
                format!("/system.slice/docker-{ID}.scope/init"),
                Some(format!(
                    "it runs in a container (/system.slice/docker-{ID}.scope)"
                )),
            ),
            (
                "/lxc.payload.web/init.scope".to_owned(),
                Some("it runs in a container (/lxc.payload.web)".to_owned()),
            ),
            (
                "/machine.slice/systemd-nspawn@web.service/payload".to_owned(),
                Some(
                    "it runs in a container (/machine.slice/systemd-nspawn@web.service)".to_owned(),
                ),
            ),
            (
                "/user.slice/user-1000.slice/session-3.scope".to_owned(),
                None,
            ),
            ("/system.slice/slurmd.service".to_owned(), None),
            ("/".to_owned(), None),
            // A container of a claim stays in it; a claim made in a claim leaves it.
            (
                "/gshare.slice/gshare-claims.slice/gshare-claims-1000.slice/x.service/claim-3"
                    .to_owned(),
                None,
            ),
            (
                format!(
                    "/gshare.slice/gshare-claims.slice/gshare-claims-1000.slice/x.service/claim-3/libpod-{ID}"
                ),
                Some(format!(
                    "it runs in a container (/gshare.slice/gshare-claims.slice/gshare-claims-1000.slice/x.service/claim-3/libpod-{ID})"
                )),
            ),
        ] {
            assert_eq!(said(&ground, &from, 1000), expect, "{from}");
        }
        let inside =
            format!("/gshare.slice/gshare-claims.slice/a.slice/x.service/claim-7/libpod-{ID}");
        let to = Path::new("/gshare.slice/gshare-claims.slice/a.slice/x.service/claim-7");
        assert!(ground.bound(to, to, 1000).is_none());
        assert!(ground.bound(Path::new(&inside), to, 1000).is_some());
    }

    #[test]
    fn limits_of_others_are_kept_and_own_ones_are_the_users_affair() {
        let own = nix::unistd::getuid().as_raw();
        let unit = "system.slice/jupyter-ada.service";
        let session = format!("user.slice/user-{own}.slice");
        for (file, text, free) in [
            ("memory.max", "max\n", true),
            ("memory.max", "4294967296\n", false),
            ("memory.high", "1073741824\n", false),
            ("memory.swap.max", "0\n", false),
            ("cpu.max", "max 100000\n", true),
            ("cpu.max", "50000 100000\n", false),
            ("cpuset.cpus", "\n", true),
            ("cpuset.cpus", "0-1\n", false),
            ("cpuset.mems", "0\n", false),
            ("io.max", "", true),
            (
                "io.max",
                "8:0 rbps=1048576 wbps=max riops=max wiops=max\n",
                false,
            ),
            ("pids.max", "77\n", true),
        ] {
            let (_dir, ground) = ground(&[(&format!("{unit}/{file}"), text)], true);
            let from = format!("/{unit}/below");
            let expect = (!free).then(|| {
                format!(
                    "its cgroup /{unit} has a limit that its user cannot change ({file} = {})",
                    text.trim()
                )
            });
            // The files belong to this test's user, for whom they are no foreign limits.
            assert_eq!(said(&ground, &from, own + 1), expect, "{file} {text:?}");
            assert_eq!(said(&ground, &from, own), None, "{file} {text:?}");
        }
        // The limits of the user's slice apply to claims if systemd copies them; no other slice's do.
        let other = own + 1;
        let slice = format!("user.slice/user-{other}.slice");
        let files = [(format!("{slice}/memory.max"), "1000000")];
        let files: Vec<(&str, &str)> = files.iter().map(|(f, t)| (f.as_str(), *t)).collect();
        for (kept, uid, free) in [
            (true, other, true),
            (false, other, false),
            (true, own + 2, false),
        ] {
            let (_dir, ground) = ground(&files, kept);
            let found = said(&ground, &format!("/{slice}/session-1.scope"), uid);
            assert_eq!(found.is_none(), free, "{kept} {uid}: {found:?}");
        }
        let (_dir, ground) = ground(&[(&format!("{session}/s.scope/cpu.max"), "1 2")], true);
        assert!(said(&ground, &format!("/{session}/s.scope"), other).is_some());
    }
}
