//! The tree that this machine has: gshare's own, or systemd's.

use std::path::Path;

use super::{Bound, CgroupError, ClaimCgroup, ClaimPlace, ClaimTree, OwnTree, UnitTree};

/// Where the claims of this machine live.
#[derive(Debug, Clone)]
pub enum Tree {
    /// Directories that gshare makes itself.
    Own(OwnTree),
    /// Units of systemd.
    Units(Box<UnitTree>),
}

impl Tree {
    /// The cgroup above all claims (but those that lodge in a service of their own).
    #[must_use]
    pub fn dir(&self) -> &Path {
        match self {
            Self::Own(tree) => tree.dir(),
            Self::Units(tree) => tree.dir(),
        }
    }

    /// Makes the moves of the next milliseconds cheap. The first move in a while waits for a grace
    /// period of the kernel (about 7 ms), those right after it do not. Call this in a thread of its
    /// own as soon as a claim is likely, such as when a client connects: the wait then passes while
    /// the request is read and journalled.
    ///
    /// # Errors
    /// [`CgroupError::Io`]; nothing depends on its success.
    pub fn warm_up(&self) -> Result<(), CgroupError> {
        match self {
            Self::Own(tree) => tree.warm_up(),
            Self::Units(tree) => tree.warm_up(),
        }
    }

    /// systemd's units, where they hold the claims.
    #[must_use]
    pub fn units(&self) -> Option<&UnitTree> {
        match self {
            Self::Own(_) => None,
            Self::Units(tree) => Some(tree),
        }
    }

    fn kind(&self) -> &dyn ClaimTree {
        match self {
            Self::Own(tree) => tree,
            Self::Units(tree) => tree.as_ref(),
        }
    }
}

impl From<OwnTree> for Tree {
    fn from(tree: OwnTree) -> Self {
        Self::Own(tree)
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
        self.kind().claim_of_pid(pid)
    }

    fn bound(&self, pid: i32, uid: u32) -> Option<Bound> {
        self.kind().bound(pid, uid)
    }

    fn remove(&self, cgroup: &ClaimCgroup) -> Result<(), CgroupError> {
        self.kind().remove(cgroup)
    }
}
