//! The tree of claims in units of systemd, the only writer above them:
//!
//! ```text
//! gshare.slice/gshare-claims.slice                  caps of user.slice
//!   gshare-claims-1000.slice                        caps of user-1000.slice
//!     gshare-claims-1000.service                    delegated: gshare's to divide
//!       claim-7                                     its processor time: in proportion to its size
//!       holder                                      the process that holds the service
//!     gshare-claims-1000-8.slice                    claim 8, with a container that systemd keeps
//!       claim
//!       docker-<id>.scope
//! ```
//!
//! None of it belongs to gshare's own service, so a restart of that service touches no member. A claim whose command is
//! the main process of a service stays in that service's cgroup instead: it *lodges* there. The service's limits and
//! log apply to it, and stopping the service ends all members.

use std::fs;
use std::io;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use super::bound::{Bound, Ground};
use super::claim::weights_in;
use super::tree::{number, warm_up};
use super::{CgroupError, ClaimCgroup, ClaimPlace, ClaimTree, Mount, OwnTree, Parent, path_of_pid};
use crate::systemd::{MainOf, Patience, Systemd, SystemdError};

#[derive(Debug, Clone)]
pub struct UnitTree {
    /// If systemd could not be reached, existing units are used, and other users' claims get a tree of gshare's own.
    systemd: Option<Systemd>,
    mount: Mount,
    dir: PathBuf,
    kernel_path: PathBuf,
    names: Names,
    /// Claims made without systemd.
    old: Option<OwnTree>,
}

#[derive(Debug, Clone, PartialEq, Eq)]
struct Names {
    /// `gshare-claims`.
    base: String,
}

impl Names {
    /// For the tree `root`. A dash in a slice's name separates levels.
    fn new(root: &str) -> Self {
        Self {
            base: format!("{}-claims", root.replace('-', "\\x2d")),
        }
    }

    fn top(&self) -> String {
        format!("{}.slice", self.base)
    }

    /// Kernel path of the uppermost slice.
    fn path_of_top(&self) -> PathBuf {
        let above = self.base.trim_end_matches("-claims");
        Path::new(&format!("/{above}.slice")).join(self.top())
    }

    fn slice(&self, uid: u32) -> String {
        format!("{}-{uid}.slice", self.base)
    }

    /// The claim's slice, within its user's.
    fn slice_of(&self, place: ClaimPlace) -> String {
        format!("{}-{}-{}.slice", self.base, place.uid, place.claim)
    }

    fn service(&self, uid: u32) -> String {
        format!("{}-{uid}.service", self.base)
    }

    fn path(&self, place: ClaimPlace) -> PathBuf {
        let claim = format!("claim-{}", place.claim);
        Path::new(&self.slice(place.uid))
            .join(self.service(place.uid))
            .join(claim)
    }

    /// The uid in the name of a user's slice.
    fn uid(&self, slice: &str) -> Option<u32> {
        let name = slice.strip_suffix(".slice")?;
        let uid = number(name, &format!("{}-", self.base))?;
        uid.try_into().ok()
    }

    /// Parses the path of a claim; cgroups made by members may follow.
    fn place(&self, path: &Path) -> Option<ClaimPlace> {
        let mut parts = path.iter().map(|part| part.to_str());
        let uid = self.uid(parts.next()??)?;
        if parts.next()?? != self.service(uid) {
            return None;
        }
        let claim = number(parts.next()??, "claim-")?;
        Some(ClaimPlace { uid, claim })
    }
}

impl UnitTree {
    /// Opens (and creates if necessary) the slice of the tree `root`. If systemd cannot be reached, an existing slice
    /// is used without it, and the error is returned beside the tree.
    ///
    /// # Errors
    /// [`CgroupError::NoMount`] without cgroup v2, [`CgroupError::Systemd`] if systemd is not in charge
    /// or does not answer, and there is no slice.
    pub fn open(root: &str) -> Result<(Self, Option<CgroupError>), CgroupError> {
        let mount = Mount::find()?;
        let names = Names::new(root);
        let (systemd, kernel_path, silent) = match Self::slice(&names) {
            Ok((systemd, path)) => (Some(systemd), path, None),
            Err(error) => {
                let path = names.path_of_top();
                if !dir_of(&mount, &path)?.is_dir() {
                    return Err(error);
                }
                (None, path, Some(error))
            }
        };
        let dir = dir_of(&mount, &kernel_path)?;
        let has_old = || {
            mount
                .dir_of(&format!("/{root}"))
                .is_some_and(|d| d.is_dir())
        };
        let old = (systemd.is_none() || has_old()).then(|| OwnTree::open(&Parent::Top, root).ok());
        let tree = Self {
            systemd,
            mount,
            dir,
            kernel_path,
            names,
            old: old.flatten(),
        };
        tree.refresh_caps();
        Ok((tree, silent))
    }

    fn slice(names: &Names) -> Result<(Systemd, PathBuf), CgroupError> {
        let systemd = Systemd::connect()?;
        let path = systemd.slice(
            names.top(),
            "GPU claims".to_owned(),
            Some("user.slice".to_owned()),
            Patience::Long,
        )?;
        Ok((systemd, path))
    }

    /// Directory of the slice of the tree `root`, if the mount shows it.
    pub(super) fn dir_in(mount: &Mount, root: &str) -> Option<PathBuf> {
        dir_of(mount, &Names::new(root).path_of_top()).ok()
    }

    /// Number of processes in claims of the tree `root`, without asking systemd.
    #[must_use]
    pub fn members(root: &str) -> usize {
        let names = Names::new(root);
        let dir = Mount::find().and_then(|mount| dir_of(&mount, &names.path_of_top()));
        let users = fs::read_dir(dir.unwrap_or_default()).into_iter().flatten();
        let homes = users.flatten().filter_map(|e| {
            let uid = names.uid(e.file_name().to_str()?)?;
            Some(e.path().join(names.service(uid)))
        });
        let claims = homes.flat_map(|home| fs::read_dir(home).into_iter().flatten().flatten());
        claims
            .filter(|e| {
                e.file_name()
                    .to_str()
                    .is_some_and(|n| number(n, "claim-").is_some())
            })
            .filter_map(|e| fs::read_to_string(e.path().join("cgroup.procs")).ok())
            .map(|procs| procs.lines().count())
            .sum()
    }

    /// The cgroup above all claims except lodged ones.
    #[must_use]
    pub fn dir(&self) -> &Path {
        &self.dir
    }

    /// Copies the caps of the users' slices again, in the background, after the administrator has changed them.
    pub fn refresh_caps(&self) {
        let Some(systemd) = &self.systemd else { return };
        systemd.refresh_caps(self.names.top(), "user.slice".to_owned(), || None);
        for (uid, _) in self.users() {
            self.refresh_user(uid);
        }
    }

    pub(super) fn ground(&self) -> Ground {
        Ground {
            mount: self.mount.clone(),
            tree: self.kernel_path.clone(),
            has_slices_limits: true,
        }
    }

    /// Copies the caps of a user's slice; if the administrator has set no weight, the user's claims determine it.
    pub(super) fn refresh_user(&self, uid: u32) {
        if let Some(systemd) = &self.systemd {
            let slice = self.names.slice(uid);
            let home = self.dir.join(&slice).join(self.names.service(uid));
            systemd.refresh_caps(slice, format!("user-{uid}.slice"), move || {
                weights_in(&home)
            });
        }
    }

    pub(super) fn warm_up(&self) -> Result<(), CgroupError> {
        warm_up(&self.mount)
    }

    /// The service whose main process this is, if its claim can live in the service's cgroup: only root can move a
    /// process out of it.
    #[must_use]
    pub fn lodging(&self, pid: u32) -> Option<MainOf> {
        let path = path_of_pid(i32::try_from(pid).ok()?)?;
        let cgroup = Path::new(&path);
        if cgroup.extension().is_none_or(|e| e != "service") {
            return None;
        }
        let found = self.systemd.as_ref()?.main_of(pid).ok().flatten()?;
        (found.cgroup == cgroup && self.is_roots(cgroup)).then_some(found)
    }

    /// Whether all cgroups above this one belong to root: the owner of any of them can move processes within it.
    fn is_roots(&self, cgroup: &Path) -> bool {
        let Some(dir) = cgroup.to_str().and_then(|c| self.mount.dir_of(c)) else {
            return false;
        };
        dir.ancestors()
            .skip(1)
            .take_while(|above| above.starts_with(&self.mount.point))
            .all(|above| {
                above
                    .symlink_metadata()
                    .is_ok_and(|m| m.uid() == 0 && m.mode() & 0o022 == 0)
            })
    }

    /// Users whose units exist, with their directories.
    fn users(&self) -> Vec<(u32, PathBuf)> {
        let entries = fs::read_dir(&self.dir).into_iter().flatten().flatten();
        entries
            .filter_map(|e| Some((self.names.uid(e.file_name().to_str()?)?, e.path())))
            .map(|(uid, dir)| (uid, dir.join(self.names.service(uid))))
            .collect()
    }

    /// Whether the user's units exist.
    #[must_use]
    pub fn has_home(&self, uid: u32) -> bool {
        let home = Path::new(&self.names.slice(uid)).join(self.names.service(uid));
        self.dir.join(home).is_dir()
    }

    /// Makes systemd create the user's units, which may take seconds: for callers that block nobody else. Without them,
    /// a claim has them made quickly or fails.
    ///
    /// # Errors
    /// [`CgroupError::Systemd`].
    pub fn prepare(&self, uid: u32) -> Result<(), CgroupError> {
        self.make_home(uid, Patience::Long)
    }

    /// Makes systemd create a slice for a claim with its user's limits, for programs that start units; returns the
    /// kernel's name of the cgroup.
    ///
    /// # Errors
    /// [`CgroupError::Systemd`].
    pub fn make_slice(&self, place: ClaimPlace) -> Result<PathBuf, CgroupError> {
        let Some(systemd) = &self.systemd else {
            let why = "it did not answer when gshare's service started";
            return Err(SystemdError::NoBus(why.to_owned()).into());
        };
        let description = format!("Containers of GPU claim {}", place.claim);
        let name = self.names.slice_of(place);
        Ok(systemd.slice(name, description, None, Patience::Short)?)
    }

    fn make_home(&self, uid: u32, patience: Patience) -> Result<(), CgroupError> {
        let Some(systemd) = &self.systemd else {
            return Ok(());
        };
        let user = nix::unistd::User::from_uid(uid.into()).ok().flatten();
        let name = user.map_or_else(|| format!("uid {uid}"), |u| u.name);
        let slice = self.names.slice(uid);
        systemd.slice(
            slice.clone(),
            format!("GPU claims of {name}"),
            Some(format!("user-{uid}.slice")),
            patience,
        )?;
        systemd.home(
            self.names.service(uid),
            slice,
            format!("Parent cgroup of the claims of {name}"),
            patience,
        )?;
        Ok(())
    }
}

pub(super) fn dir_of(mount: &Mount, cgroup: &Path) -> Result<PathBuf, CgroupError> {
    let dir = cgroup.to_str().and_then(|c| mount.dir_of(c));
    dir.ok_or_else(|| CgroupError::NotDelegated {
        dir: cgroup.to_owned(),
        uid: nix::unistd::geteuid().as_raw(),
        missing: format!("it is outside the mount {}", mount.point.display()),
    })
}

impl ClaimTree for UnitTree {
    fn create(&self, place: ClaimPlace) -> Result<ClaimCgroup, CgroupError> {
        if let Ok(found) = self.find(place) {
            return Ok(found);
        }
        let dir = self.dir.join(self.names.path(place));
        let made = match fs::create_dir(&dir) {
            // The user's first claim, or the units were stopped.
            Err(e) if e.kind() == io::ErrorKind::NotFound => {
                if let (None, Some(own)) = (&self.systemd, &self.old) {
                    return own.create(place);
                }
                self.make_home(place.uid, Patience::Short)?;
                fs::create_dir(&dir)
            }
            other => {
                self.refresh_user(place.uid);
                other
            }
        };
        match made {
            Err(e) if e.kind() != io::ErrorKind::AlreadyExists => {
                Err(CgroupError::io("create", dir, e))
            }
            _ => self.find(place),
        }
    }

    fn find(&self, place: ClaimPlace) -> Result<ClaimCgroup, CgroupError> {
        if let Some(old) = &self.old
            && let Ok(found) = old.find(place)
        {
            return Ok(found);
        }
        let below = self.names.path(place);
        let (dir, path) = (self.dir.join(&below), self.kernel_path.join(&below));
        ClaimCgroup::open(dir, path, place, self.ground())
    }

    fn claims(&self) -> Result<Vec<ClaimCgroup>, CgroupError> {
        let mut found = match &self.old {
            Some(old) => old.claims()?,
            None => Vec::new(),
        };
        for (uid, home) in self.users() {
            let entries = match fs::read_dir(&home) {
                Err(e) if e.kind() == io::ErrorKind::NotFound => continue,
                other => other.map_err(|e| CgroupError::io("list", &home, e))?,
            };
            for entry in entries.flatten() {
                let name = entry.file_name();
                let Some(claim) = name.to_str().and_then(|n| number(n, "claim-")) else {
                    continue;
                };
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
        let path = path_of_pid(pid)?;
        if let Ok(below) = Path::new(&path).strip_prefix(&self.kernel_path) {
            return self.names.place(below);
        }
        self.old.as_ref().and_then(|old| old.place_of(&path))
    }

    fn bound(&self, pid: i32, uid: u32) -> Option<Bound> {
        let path = path_of_pid(pid)?;
        let from = Path::new(&path);
        // The main process of a service stays in its cgroup.
        let bound = self.ground().bound(from, &self.kernel_path, uid)?;
        self.lodging(pid.cast_unsigned()).is_none().then_some(bound)
    }

    fn remove(&self, cgroup: &ClaimCgroup) -> Result<(), CgroupError> {
        cgroup.remove()?;
        if let (Some(systemd), true) = (&self.systemd, cgroup.has_slice()) {
            systemd.stop(self.names.slice_of(cgroup.place()));
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_claim_is_told_from_its_path() {
        let names = Names::new("gshare");
        let check = |path: &str, expect: Option<(u32, u64)>| {
            let found = names.place(Path::new(path)).map(|p| (p.uid, p.claim));
            assert_eq!(found, expect, "{path}");
        };
        let home = "gshare-claims-1000.slice/gshare-claims-1000.service";
        check(&format!("{home}/claim-7"), Some((1000, 7)));
        check(&format!("{home}/claim-7/own/deep"), Some((1000, 7)));
        check(home, None);
        check(&format!("{home}/claim-07"), None);
        check(&format!("{home}/other-7"), None);
        check(
            "gshare-claims-1000.slice/gshare-claims-1001.service/claim-7",
            None,
        );
        check(
            "gshare-claims-x.slice/gshare-claims-x.service/claim-7",
            None,
        );
        let place = ClaimPlace {
            uid: 1000,
            claim: 7,
        };
        assert_eq!(names.place(&names.path(place)), Some(place));
    }

    #[test]
    fn a_dash_in_the_name_of_the_tree_makes_no_level() {
        let names = Names::new("gshare-lab");
        assert_eq!(names.slice(5), "gshare\\x2dlab-claims-5.slice");
        assert_eq!(names.uid(&names.slice(5)), Some(5));
    }
}
