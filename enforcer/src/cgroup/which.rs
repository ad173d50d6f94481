//! The tree of this machine: gshare's own, or systemd's; and claims whose cgroup lies elsewhere.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};

use super::bound::Ground;
use super::claim::{weights_in, write_in};
use super::name;
use super::units::dir_of;
use super::{
    Bound, CgroupError, ClaimCgroup, ClaimPlace, ClaimTree, Mount, OwnTree, UnitTree, path_of_pid,
    v2_path,
};

/// All claims' cgroups on this machine.
#[derive(Debug, Clone)]
pub struct Tree {
    kind: Kind,
    /// Claims in cgroups outside the tree, by the cgroup's kernel name.
    elsewhere: Arc<Mutex<BTreeMap<PathBuf, ClaimPlace>>>,
}

#[derive(Debug, Clone)]
enum Kind {
    /// gshare's own directories.
    Own(OwnTree),
    /// Units of systemd.
    Units(Box<UnitTree>),
}

impl Tree {
    /// The cgroup above all claims except those that live elsewhere.
    #[must_use]
    pub fn dir(&self) -> &Path {
        match &self.kind {
            Kind::Own(tree) => tree.dir(),
            Kind::Units(tree) => tree.dir(),
        }
    }

    /// Makes the moves of the next milliseconds cheap. The first move after a while waits for an RCU grace period
    /// (about 7 ms), the next ones do not. Call this in a thread of its own as soon as a claim is likely, such as when
    /// a client connects: the wait then passes while the request is read and journaled.
    ///
    /// # Errors
    /// [`CgroupError::Io`]; nothing depends on its success.
    pub fn warm_up(&self) -> Result<(), CgroupError> {
        match &self.kind {
            Kind::Own(tree) => tree.warm_up(),
            Kind::Units(tree) => tree.warm_up(),
        }
    }

    /// Gives a claim processor time in proportion to this weight, beside all other claims: a user counts with the sum
    /// of their claims' weights. False if the kernel has no processor controller there.
    ///
    /// # Errors
    /// [`CgroupError::Io`]; the claim then runs on unchanged.
    pub fn weigh(&self, cgroup: &ClaimCgroup, weight: u32) -> Result<bool, CgroupError> {
        let weighed = cgroup.weigh(weight)?;
        if weighed {
            self.weigh_user(cgroup)?;
        }
        Ok(weighed)
    }

    fn weigh_user(&self, cgroup: &ClaimCgroup) -> Result<(), CgroupError> {
        let home = cgroup.dir().parent().unwrap_or(self.dir());
        match &self.kind {
            Kind::Units(tree) => tree.refresh_user(cgroup.place().uid),
            Kind::Own(_) => {
                if let Some(sum) = weights_in(home) {
                    write_in(home, "cpu.weight", &sum.to_string())?;
                }
            }
        }
        Ok(())
    }

    /// The systemd units, if they hold the claims.
    #[must_use]
    pub fn units(&self) -> Option<&UnitTree> {
        match &self.kind {
            Kind::Own(_) => None,
            Kind::Units(tree) => Some(tree),
        }
    }

    /// Lets a claim live in a service's cgroup or in a slice of its own, `cgroup` being its kernel name; replaces an
    /// earlier claim there, which has ended.
    ///
    /// # Errors
    /// [`CgroupError::Io`], with `is_gone()` if there is no such cgroup.
    pub fn lodge(&self, place: ClaimPlace, cgroup: &Path) -> Result<ClaimCgroup, CgroupError> {
        let opened = self.open(place, cgroup)?;
        let opened = match cgroup.extension().is_some_and(|e| e == "slice") {
            true => opened.sliced()?,
            false => opened.lodged(),
        };
        self.elsewhere().insert(cgroup.to_owned(), place);
        Ok(opened)
    }

    /// Makes all processes below `cgroup` (the kernel's name) members of the claim. The cgroup belongs to another
    /// program and need not exist yet: then nothing is opened. `filtered`: that program sets its device filter.
    ///
    /// # Errors
    /// [`CgroupError::Io`] for any other failure.
    pub fn stand_for(
        &self,
        place: ClaimPlace,
        cgroup: &Path,
        filtered: bool,
    ) -> Result<Option<ClaimCgroup>, CgroupError> {
        self.elsewhere().insert(cgroup.to_owned(), place);
        match self.open(place, cgroup) {
            Ok(opened) => Ok(Some(opened.foreign(filtered))),
            Err(error) if error.is_gone() => Ok(None),
            Err(error) => Err(error),
        }
    }

    /// Whether a cgroup with this kernel name exists.
    #[must_use]
    pub fn is_there(&self, cgroup: &Path) -> bool {
        dir_of(&self.ground().mount, cgroup).is_ok_and(|dir| dir.is_dir())
    }

    /// Ends the claim's membership of `cgroup`.
    pub fn leave(&self, place: ClaimPlace, cgroup: &Path) {
        let mut elsewhere = self.elsewhere();
        if elsewhere.get(cgroup) == Some(&place) {
            elsewhere.remove(cgroup);
        }
    }

    /// The kernel's name of a cgroup given by its directory or by that name, if a claim can cover the processes below
    /// it.
    ///
    /// # Errors
    /// The reason, for people.
    pub fn foreign_name(&self, named: &Path) -> Result<PathBuf, String> {
        let Some(named) = named.to_str().and_then(name::plain) else {
            return Err(format!(
                "{named:?} is not the absolute path of a cgroup, such as /sys/fs/cgroup/system.slice/job.scope"
            ));
        };
        let ground = self.ground();
        let name = match ground.mount.path_of(&named) {
            Some(name) => name,
            None if named.is_dir() => {
                let mount = ground.mount.point.display();
                return Err(format!(
                    "{} is not a cgroup: cgroups are below {mount}",
                    named.display()
                ));
            }
            None => named,
        };
        let below = |above: &Path| above.starts_with(&name);
        if name.starts_with(&ground.tree) || below(&ground.tree) {
            return Err(format!(
                "{} is one of gshare's own cgroups, or contains them",
                name.display()
            ));
        }
        let own = fs::read_to_string("/proc/self/cgroup").unwrap_or_default();
        if v2_path(&own).is_some_and(|own| below(Path::new(own))) {
            return Err(format!(
                "gshare's service itself runs below {}",
                name.display()
            ));
        }
        Ok(name)
    }

    fn open(&self, place: ClaimPlace, cgroup: &Path) -> Result<ClaimCgroup, CgroupError> {
        let ground = self.ground();
        let dir = dir_of(&ground.mount, cgroup)?;
        ClaimCgroup::open(dir, cgroup.to_owned(), place, ground)
    }

    fn elsewhere(&self) -> std::sync::MutexGuard<'_, BTreeMap<PathBuf, ClaimPlace>> {
        self.elsewhere
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
    }

    fn ground(&self) -> Ground {
        match &self.kind {
            Kind::Own(tree) => tree.ground(),
            Kind::Units(tree) => tree.ground(),
        }
    }

    fn kind(&self) -> &dyn ClaimTree {
        match &self.kind {
            Kind::Own(tree) => tree,
            Kind::Units(tree) => tree.as_ref(),
        }
    }
}

/// Directories that may contain claims of the tree `root`, without asking systemd: gshare's own and systemd's.
#[must_use]
pub fn trees(mount: &Mount, root: &str) -> Vec<PathBuf> {
    let dirs = [Some(mount.point.join(root)), UnitTree::dir_in(mount, root)];
    let dirs = dirs.into_iter().flatten();
    dirs.filter(|dir| dir.is_dir()).collect()
}

impl From<OwnTree> for Tree {
    fn from(tree: OwnTree) -> Self {
        Self {
            kind: Kind::Own(tree),
            elsewhere: Arc::default(),
        }
    }
}

impl From<UnitTree> for Tree {
    fn from(tree: UnitTree) -> Self {
        Self {
            kind: Kind::Units(Box::new(tree)),
            elsewhere: Arc::default(),
        }
    }
}

impl ClaimTree for Tree {
    fn create(&self, place: ClaimPlace) -> Result<ClaimCgroup, CgroupError> {
        self.kind().create(place)
    }

    fn find(&self, place: ClaimPlace) -> Result<ClaimCgroup, CgroupError> {
        self.kind().find(place)
    }

    fn claims(&self) -> Result<Vec<ClaimCgroup>, CgroupError> {
        self.kind().claims()
    }

    fn claim_of_pid(&self, pid: i32) -> Option<ClaimPlace> {
        if let Some(place) = self.kind().claim_of_pid(pid) {
            return Some(place);
        }
        let elsewhere = self.elsewhere();
        if elsewhere.is_empty() {
            return None;
        }
        let path = path_of_pid(pid)?;
        let mut above = Path::new(&path).ancestors();
        above.find_map(|above| elsewhere.get(above)).copied()
    }

    fn bound(&self, pid: i32, uid: u32) -> Option<Bound> {
        self.kind().bound(pid, uid)
    }

    fn remove(&self, cgroup: &ClaimCgroup) -> Result<(), CgroupError> {
        self.kind().remove(cgroup)?;
        // A user's cgroup that was removed with its last claim has no weight.
        let _ = self.weigh_user(cgroup);
        self.leave(cgroup.place(), cgroup.kernel_path());
        Ok(())
    }
}
