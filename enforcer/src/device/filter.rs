//! Loads filters (one per distinct set of rules) and attaches them to cgroups.

use std::collections::BTreeMap;
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::{Path, PathBuf};

use super::{DeviceRules, program, sys};
use crate::cgroup::ClaimCgroup;

/// Name of the filters in `bpftool cgroup show`, by which they are recognised.
pub(super) const NAME: &str = "gshare_dev";
/// Maximum number of loaded programs kept for reuse. All sets of four GPUs are 16.
const KEPT: usize = 64;

/// Errors of a device filter.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum DeviceError {
    #[error(
        "the device filter needs root (CAP_BPF and CAP_NET_ADMIN): {verb} was not permitted\n\
         hint: run gshared as root; without the device filter, programs in claims can open every GPU"
    )]
    NotPermitted {
        verb: &'static str,
        #[source]
        source: io::Error,
    },
    #[error("the kernel refused the device filter: {log}")]
    Refused {
        log: String,
        #[source]
        source: io::Error,
    },
    #[error("cannot {verb} the device filter of {cgroup}")]
    Io {
        verb: &'static str,
        cgroup: PathBuf,
        #[source]
        source: io::Error,
    },
}

impl DeviceError {
    pub(super) fn new(verb: &'static str, cgroup: &Path, source: io::Error) -> Self {
        match source.raw_os_error() {
            Some(libc::EPERM | libc::EACCES) => Self::NotPermitted { verb, source },
            _ => Self::Io {
                verb,
                cgroup: cgroup.into(),
                source,
            },
        }
    }
}

/// A filter found on a cgroup.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Attached {
    /// The kernel's id of the program.
    pub id: u32,
    pub name: String,
    /// Hash of its instructions: equal tags mean equal rules.
    pub tag: [u8; 8],
    /// Whether gshare made it.
    pub ours: bool,
}

#[derive(Debug)]
struct Loaded {
    fd: OwnedFd,
    id: u32,
    tag: [u8; 8],
}

/// The loaded filters. Claims with equal rules share a program. Dropping this value changes nothing: attached programs
/// stay attached, and [`Filters::set`] checks before it acts.
#[derive(Debug, Default)]
pub struct Filters {
    loaded: BTreeMap<DeviceRules, Loaded>,
}

impl Filters {
    /// Loads the program for `rules`, so that the first claim with them need not wait. Also tests whether filters work
    /// here at all.
    ///
    /// # Errors
    /// [`DeviceError::NotPermitted`] or [`DeviceError::Refused`].
    pub fn preload(&mut self, rules: &DeviceRules) -> Result<(), DeviceError> {
        self.loaded(rules).map(drop)
    }

    /// Makes `rules` the only filter of gshare on `cgroup`: attaches it, or replaces an older one in a single step
    /// without a gap. Others' filters are left alone.
    ///
    /// # Errors
    /// [`DeviceError`]; the old filter is then still in place.
    pub fn set(&mut self, cgroup: &ClaimCgroup, rules: &DeviceRules) -> Result<(), DeviceError> {
        if cgroup.filtered {
            return Ok(());
        }
        let dir = cgroup.dir();
        let io = |verb, source| DeviceError::new(verb, dir, source);
        let wanted = self.loaded(rules)?;
        let found = ours(cgroup.as_fd()).map_err(|e| io("query", e))?;
        let (mut placed, mut extra) = (false, Vec::new());
        for (fd, seen) in &found {
            // The kernel refuses the same program twice on a cgroup.
            if seen.id == wanted.id && !placed {
                placed = true;
            } else {
                extra.push((fd, seen));
            }
        }
        if !placed {
            let replace = extra.pop().map(|(fd, _)| fd.as_fd());
            sys::attach(cgroup.as_fd(), wanted.fd.as_fd(), replace).map_err(|e| io("attach", e))?;
        }
        for (fd, _) in extra {
            sys::detach(cgroup.as_fd(), fd.as_fd()).map_err(|e| io("detach", e))?;
        }
        Ok(())
    }

    /// Sets the filter on a new cgroup without filters: saves the query.
    pub fn set_on_new(
        &mut self,
        cgroup: &ClaimCgroup,
        rules: &DeviceRules,
    ) -> Result<(), DeviceError> {
        let wanted = self.loaded(rules)?;
        sys::attach(cgroup.as_fd(), wanted.fd.as_fd(), None)
            .map_err(|e| DeviceError::new("attach", cgroup.dir(), e))
    }

    /// Whether the filter of exactly these rules is attached to the cgroup, also after a restart.
    ///
    /// # Errors
    /// [`DeviceError`] if the kernel does not tell.
    pub fn is_set(
        &mut self,
        cgroup: &ClaimCgroup,
        rules: &DeviceRules,
    ) -> Result<bool, DeviceError> {
        let tag = self.loaded(rules)?.tag;
        let found = attached(cgroup)?;
        Ok(found.iter().any(|a| a.ours && a.tag == tag))
    }

    /// Removes gshare's filters from the cgroup; others' stay.
    pub fn clear(&self, cgroup: &ClaimCgroup) -> Result<(), DeviceError> {
        clear(cgroup.as_fd(), cgroup.dir())
    }

    /// The same for a cgroup by its directory; a removed cgroup has no filters.
    pub fn clear_dir(&self, dir: &Path) -> Result<(), DeviceError> {
        match std::fs::File::open(dir) {
            Ok(open) => clear(open.as_fd(), dir),
            Err(e) if e.kind() == io::ErrorKind::NotFound => Ok(()),
            Err(e) => Err(DeviceError::new("open", dir, e)),
        }
    }

    /// All device filters of a cgroup, gshare's and others'.
    ///
    /// # Errors
    /// [`DeviceError`] if the kernel does not tell.
    pub fn attached(&self, cgroup: &ClaimCgroup) -> Result<Vec<Attached>, DeviceError> {
        attached(cgroup)
    }

    fn loaded(&mut self, rules: &DeviceRules) -> Result<&Loaded, DeviceError> {
        if !self.loaded.contains_key(rules) {
            if self.loaded.len() >= KEPT {
                self.loaded.pop_first();
            }
            let program = load(rules)?;
            self.loaded.insert(rules.clone(), program);
        }
        Ok(&self.loaded[rules])
    }
}

fn load(rules: &DeviceRules) -> Result<Loaded, DeviceError> {
    let fd = sys::load(NAME, &program(rules)).map_err(|(source, log)| {
        if log.is_empty() && matches!(source.raw_os_error(), Some(libc::EPERM | libc::EACCES)) {
            DeviceError::NotPermitted {
                verb: "load",
                source,
            }
        } else {
            DeviceError::Refused { log, source }
        }
    })?;
    let info =
        sys::info(fd.as_fd()).map_err(|e| DeviceError::new("inspect", Path::new(NAME), e))?;
    Ok(Loaded {
        fd,
        id: info.id,
        tag: info.tag,
    })
}

fn clear(cgroup: BorrowedFd<'_>, dir: &Path) -> Result<(), DeviceError> {
    let io = |verb, source| DeviceError::new(verb, dir, source);
    for (fd, _) in ours(cgroup).map_err(|e| io("query", e))? {
        sys::detach(cgroup, fd.as_fd()).map_err(|e| io("detach", e))?;
    }
    Ok(())
}

fn attached(cgroup: &ClaimCgroup) -> Result<Vec<Attached>, DeviceError> {
    let found = all(cgroup.as_fd()).map_err(|e| DeviceError::new("query", cgroup.dir(), e))?;
    Ok(found.into_iter().map(|(_, attached)| attached).collect())
}

fn ours(cgroup: BorrowedFd<'_>) -> io::Result<Vec<(OwnedFd, Attached)>> {
    let mut found = all(cgroup)?;
    found.retain(|(_, attached)| attached.ours);
    Ok(found)
}

fn all(cgroup: BorrowedFd<'_>) -> io::Result<Vec<(OwnedFd, Attached)>> {
    let mut found = Vec::new();
    for id in sys::query(cgroup)? {
        let fd = match sys::by_id(id) {
            Ok(fd) => fd,
            // Detached and unloaded since the query.
            Err(e) if e.kind() == io::ErrorKind::NotFound => continue,
            Err(e) => return Err(e),
        };
        let info = sys::info(fd.as_fd())?;
        let name = info.name();
        let attached = Attached {
            id,
            ours: name == NAME,
            name,
            tag: info.tag,
        };
        found.push((fd, attached));
    }
    Ok(found)
}
