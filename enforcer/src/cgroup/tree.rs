//! The tree of all claims: creation, recovery after a restart, and the claim of a process.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use nix::sys::statfs::{CGROUP2_SUPER_MAGIC, statfs};
use nix::unistd::{AccessFlags, access, geteuid};

use super::bound::{Bound, Ground};
use super::{CgroupError, ClaimCgroup, Mount, path_of_pid, v2_path};

/// Owner and number of a claim: the name of its cgroup.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ClaimPlace {
    /// Uid of the claim's owner.
    pub uid: u32,
    pub claim: u64,
}

impl ClaimPlace {
    fn path(self) -> PathBuf {
        PathBuf::from(format!("user-{}/claim-{}", self.uid, self.claim))
    }

    /// Parses `user-<uid>/claim-<id>`; cgroups made by members may follow.
    fn from_path(path: &Path) -> Option<Self> {
        let mut parts = path.iter().map(|part| part.to_str());
        let uid = number(parts.next()??, "user-")?;
        let claim = number(parts.next()??, "claim-")?;
        Some(Self {
            uid: uid.try_into().ok()?,
            claim,
        })
    }
}

/// The number in `<prefix><number>`, only in its printed form.
pub(super) fn number(name: &str, prefix: &str) -> Option<u64> {
    let digits = name.strip_prefix(prefix)?;
    let value: u64 = digits.parse().ok()?;
    (value.to_string() == digits).then_some(value)
}

/// Source of the claims' cgroups: gshare itself ([`OwnTree`]) or a service manager that owns the tree. Both give a
/// [`ClaimCgroup`].
pub trait ClaimTree {
    /// Creates the cgroup of a claim, or opens an existing one.
    ///
    /// # Errors
    /// [`CgroupError::Io`] naming the directory.
    fn create(&self, place: ClaimPlace) -> Result<ClaimCgroup, CgroupError>;

    /// Opens the cgroup of an existing claim.
    ///
    /// # Errors
    /// [`CgroupError::Io`], with `is_gone()` if there is none.
    fn find(&self, place: ClaimPlace) -> Result<ClaimCgroup, CgroupError>;

    /// Cgroups of all claims, in order, for a restarted service.
    ///
    /// # Errors
    /// [`CgroupError::Io`] if the tree is unreadable.
    fn claims(&self) -> Result<Vec<ClaimCgroup>, CgroupError>;

    /// The claim of a process according to the kernel; `None` if it is not in a claim or has ended.
    fn claim_of_pid(&self, pid: i32) -> Option<ClaimPlace>;

    /// Why a process of this user must stay in its cgroup instead of moving to a claim.
    fn bound(&self, pid: i32, uid: u32) -> Option<Bound>;

    /// Removes the (empty) cgroup of a claim, and its user's if that was the last.
    ///
    /// # Errors
    /// [`CgroupError::Busy`] while it has members.
    fn remove(&self, cgroup: &ClaimCgroup) -> Result<(), CgroupError>;
}

/// The cgroup under which the tree is made.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Parent {
    /// The top of the mounted hierarchy: for a service that runs as root without systemd. Members there outlive the
    /// service's own unit.
    Top,
    /// The service's own cgroup, as a delegated unit provides.
    Own,
    /// An existing cgroup with this kernel name (`/a/b`).
    At(PathBuf),
}

/// A tree of directories that gshare makes itself.
#[derive(Debug, Clone)]
pub struct OwnTree {
    mount: Mount,
    dir: PathBuf,
    kernel_path: PathBuf,
}

impl OwnTree {
    /// Opens (and creates if necessary) the tree `name` under `parent`, and checks at once that claims can be made and
    /// members moved in.
    ///
    /// # Errors
    /// [`CgroupError::NoMount`] without cgroup v2, [`CgroupError::NotDelegated`] without the right
    /// to use `parent`.
    pub fn open(parent: &Parent, name: &str) -> Result<Self, CgroupError> {
        let mount = Mount::find()?;
        let kernel_parent = match parent {
            Parent::Top => mount.root.clone(),
            Parent::At(path) => path.clone(),
            Parent::Own => {
                let path = Path::new("/proc/self/cgroup");
                let text =
                    fs::read_to_string(path).map_err(|e| CgroupError::io("read", path, e))?;
                let own = v2_path(&text).ok_or_else(|| CgroupError::Garbled {
                    path: path.into(),
                    contents: text.clone(),
                })?;
                own_parent(Path::new(own), name)
            }
        };
        let parent_dir = kernel_parent
            .to_str()
            .and_then(|path| mount.dir_of(path))
            .ok_or_else(|| CgroupError::NotDelegated {
                dir: kernel_parent.clone(),
                uid: geteuid().as_raw(),
                missing: format!("it is outside the mount {}", mount.point.display()),
            })?;
        check_writable(&parent_dir)?;
        let dir = parent_dir.join(name);
        make_dir(&dir)?;
        Ok(Self {
            dir,
            kernel_path: kernel_parent.join(name),
            mount,
        })
    }

    /// The directory of the tree.
    #[must_use]
    pub fn dir(&self) -> &Path {
        &self.dir
    }

    /// The claim of a cgroup with this kernel name, if it lies in this tree.
    pub(super) fn place_of(&self, cgroup: &str) -> Option<ClaimPlace> {
        ClaimPlace::from_path(Path::new(cgroup).strip_prefix(&self.kernel_path).ok()?)
    }

    pub(super) fn ground(&self) -> Ground {
        Ground {
            mount: self.mount.clone(),
            tree: self.kernel_path.clone(),
            has_slices_limits: false,
        }
    }

    /// Makes the moves of the next milliseconds cheap: see [`super::Tree::warm_up`].
    ///
    /// # Errors
    /// [`CgroupError::Io`]; nothing depends on its success.
    pub fn warm_up(&self) -> Result<(), CgroupError> {
        warm_up(&self.mount)
    }

    /// Removes the tree and its empty users. Existing claims, and then the tree, stay without an error: they contain
    /// members.
    ///
    /// # Errors
    /// [`CgroupError::Io`] on anything but cgroups in use.
    pub fn remove_if_empty(&self) -> Result<bool, CgroupError> {
        for (_, user_dir) in numbered(&self.dir, "user-")? {
            remove_if_unused(&user_dir)?;
        }
        remove_if_unused(&self.dir)
    }
}

impl ClaimTree for OwnTree {
    fn create(&self, place: ClaimPlace) -> Result<ClaimCgroup, CgroupError> {
        let dir = self.dir.join(place.path());
        match fs::create_dir(&dir) {
            Err(e) if e.kind() == io::ErrorKind::NotFound => {
                make_dir(dir.parent().unwrap_or(&self.dir))?;
                make_dir(&dir)?;
            }
            Err(e) if e.kind() == io::ErrorKind::AlreadyExists => {}
            other => other.map_err(|e| CgroupError::io("create", &dir, e))?,
        }
        self.find(place)
    }

    fn find(&self, place: ClaimPlace) -> Result<ClaimCgroup, CgroupError> {
        let below = place.path();
        let (dir, path) = (self.dir.join(&below), self.kernel_path.join(&below));
        ClaimCgroup::open(dir, path, place, self.ground())
    }

    fn claims(&self) -> Result<Vec<ClaimCgroup>, CgroupError> {
        let mut found = Vec::new();
        for (uid, user_dir) in numbered(&self.dir, "user-")? {
            let Ok(uid) = u32::try_from(uid) else {
                continue;
            };
            for (claim, _) in numbered(&user_dir, "claim-")? {
                match self.find(ClaimPlace { uid, claim }) {
                    Err(e) if e.is_gone() => {}
                    other => found.push(other?),
                }
            }
        }
        found.sort_by_key(ClaimCgroup::place);
        Ok(found)
    }

    fn claim_of_pid(&self, pid: i32) -> Option<ClaimPlace> {
        self.place_of(&path_of_pid(pid)?)
    }

    fn bound(&self, pid: i32, uid: u32) -> Option<Bound> {
        let from = path_of_pid(pid)?;
        self.ground()
            .bound(Path::new(&from), &self.kernel_path, uid)
    }

    fn remove(&self, cgroup: &ClaimCgroup) -> Result<(), CgroupError> {
        cgroup.remove()?;
        if !cgroup.dir().starts_with(&self.dir) {
            return Ok(());
        }
        if let Some(user_dir) = cgroup.dir().parent() {
            remove_if_unused(user_dir)?;
        }
        Ok(())
    }
}

/// Moves this process to its own cgroup: that takes the same locks as any move and changes nothing.
pub(super) fn warm_up(mount: &Mount) -> Result<(), CgroupError> {
    let own = Path::new("/proc/self/cgroup");
    let text = fs::read_to_string(own).map_err(|e| CgroupError::io("read", own, e))?;
    let procs = v2_path(&text)
        .and_then(|path| mount.dir_of(path))
        .ok_or_else(|| CgroupError::Garbled {
            path: own.into(),
            contents: text.clone(),
        })?
        .join("cgroup.procs");
    fs::write(&procs, std::process::id().to_string())
        .map_err(|e| CgroupError::io("write", procs, e))
}

/// The parent cgroup for a service whose own cgroup is `own`: not inside a claim of an outer tree, if a member starts
/// gshare.
fn own_parent(own: &Path, name: &str) -> PathBuf {
    own.ancestors()
        .find(|a| a.file_name().is_some_and(|n| n == name))
        .and_then(Path::parent)
        .unwrap_or(own)
        .to_owned()
}

fn check_writable(parent: &Path) -> Result<(), CgroupError> {
    let uid = geteuid().as_raw();
    let refuse = |missing: String| CgroupError::NotDelegated {
        dir: parent.into(),
        uid,
        missing,
    };
    match statfs(parent) {
        Ok(fs) if fs.filesystem_type() == CGROUP2_SUPER_MAGIC => {}
        Ok(_) => return Err(refuse("it is not on a cgroup v2 file system".into())),
        Err(e) => return Err(refuse(format!("it cannot be read ({e})"))),
    }
    access(parent, AccessFlags::W_OK | AccessFlags::X_OK)
        .map_err(|e| refuse(format!("no cgroup can be made in it ({e})")))?;
    // For a move the kernel checks this file of the common ancestor; the top has it too.
    let procs = parent.join("cgroup.procs");
    access(&procs, AccessFlags::W_OK)
        .map_err(|e| refuse(format!("cgroup.procs cannot be written ({e})")))
}

pub(super) fn make_dir(dir: &Path) -> Result<(), CgroupError> {
    match fs::create_dir(dir) {
        Err(e) if e.kind() != io::ErrorKind::AlreadyExists => {
            Err(CgroupError::io("create", dir, e))
        }
        _ => Ok(()),
    }
}

fn remove_if_unused(dir: &Path) -> Result<bool, CgroupError> {
    match fs::remove_dir(dir) {
        Ok(()) => Ok(true),
        Err(e) if e.kind() == io::ErrorKind::NotFound => Ok(true),
        Err(e) if matches!(e.raw_os_error(), Some(libc::EBUSY | libc::ENOTEMPTY)) => Ok(false),
        Err(e) => Err(CgroupError::io("remove", dir, e)),
    }
}

/// The subdirectories `<prefix><number>`.
fn numbered(dir: &Path, prefix: &str) -> Result<Vec<(u64, PathBuf)>, CgroupError> {
    let entries = match fs::read_dir(dir) {
        Err(e) if e.kind() == io::ErrorKind::NotFound => return Ok(Vec::new()),
        other => other.map_err(|e| CgroupError::io("list", dir, e))?,
    };
    Ok(entries
        .flatten()
        .filter(|entry| entry.file_type().is_ok_and(|t| t.is_dir()))
        .filter_map(|entry| Some((number(entry.file_name().to_str()?, prefix)?, entry.path())))
        .collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn tree(dir: &Path) -> OwnTree {
        OwnTree {
            mount: Mount {
                point: dir.into(),
                root: "/x/gshare".into(),
            },
            dir: dir.into(),
            kernel_path: "/x/gshare".into(),
        }
    }

    #[test]
    fn creates_finds_and_removes() {
        let dir = tempfile::tempdir().unwrap();
        let tree = tree(dir.path());
        let place = |uid, claim| ClaimPlace { uid, claim };
        for p in [place(1000, 12), place(1000, 3), place(0, 7)] {
            assert_eq!(tree.create(p).unwrap().place(), p);
        }
        let again = tree.create(place(1000, 3)).unwrap();
        for stray in [
            "user-1000/other",
            "user-x/claim-1",
            "user-07/claim-1",
            "stray",
        ] {
            fs::create_dir_all(dir.path().join(stray)).unwrap();
        }
        let found: Vec<_> = tree
            .claims()
            .unwrap()
            .iter()
            .map(ClaimCgroup::place)
            .collect();
        assert_eq!(found, [place(0, 7), place(1000, 3), place(1000, 12)]);

        tree.remove(&again).unwrap();
        assert!(!dir.path().join("user-1000/claim-3").exists());
        assert!(dir.path().join("user-1000/claim-12").exists());
        tree.remove(&again).unwrap();
        tree.remove(&tree.find(place(0, 7)).unwrap()).unwrap();
        assert!(!dir.path().join("user-0").exists());
        assert!(!tree.remove_if_empty().unwrap());
    }

    #[test]
    fn tells_a_claim_from_its_path() {
        let tree = tree(Path::new("/nowhere"));
        let check = |path: &str, expect: Option<(u32, u64)>| {
            let found = tree.place_of(path).map(|p| (p.uid, p.claim));
            assert_eq!(found, expect, "{path}");
        };
        check("/x/gshare/user-1000/claim-7", Some((1000, 7)));
        check("/x/gshare/user-1000/claim-7/own/deep", Some((1000, 7)));
        check("/x/gshare/user-1000", None);
        check("/x/gshare/user-1000/claim-07", None);
        check("/x/gshare/user-1000/claim-7x", None);
        check("/x/gshare2/user-1000/claim-7", None);
        check("/y/x/gshare/user-1000/claim-7", None);
        check("/x/gshare/user-99999999999/claim-7", None);
        check("/", None);
    }

    #[test]
    fn a_service_started_by_a_member_builds_beside_not_inside() {
        let check = |own: &str, expect: &str| {
            assert_eq!(
                own_parent(Path::new(own), "gshare"),
                Path::new(expect),
                "{own}"
            );
        };
        check("/user.slice/a.scope", "/user.slice/a.scope");
        check("/", "/");
        check("/a/gshare/user-1/claim-2", "/a");
        check("/gshare/user-1/claim-2", "/");
    }
}
