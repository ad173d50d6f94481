//! `cgroup.events`: whether a cgroup holds live processes, whether it is frozen, and notification of changes.

use std::collections::HashMap;
use std::fs::File;
use std::io::{self, Read, Seek};
use std::os::fd::{AsFd, BorrowedFd};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use nix::sys::inotify::{AddWatchFlags, InitFlags, Inotify, WatchDescriptor};

use super::{CgroupError, ClaimCgroup, ClaimPlace};

/// The contents of `cgroup.events`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct CgroupEvents {
    /// Whether the cgroup or one below it holds a live process.
    pub populated: bool,
    /// Whether every process in it and below is frozen; `None` on kernels before 5.2.
    pub frozen: Option<bool>,
}

impl CgroupEvents {
    /// Parses the file; `None` without a `populated` line.
    #[must_use]
    pub fn parse(text: &str) -> Option<Self> {
        let flag = |name: &str| {
            text.lines()
                .filter_map(|line| line.split_once(' '))
                .find(|(key, _)| *key == name)
                .map(|(_, value)| value.trim() == "1")
        };
        Some(Self {
            populated: flag("populated")?,
            frozen: flag("frozen"),
        })
    }
}

/// Watches one cgroup. The descriptor turns *priority*-readable (`POLLPRI`) at each change after
/// the last [`EventsWatch::read`]; with tokio use `Interest::PRIORITY`.
#[derive(Debug)]
pub struct EventsWatch {
    file: File,
    path: PathBuf,
}

impl EventsWatch {
    pub(super) fn new(file: File, path: PathBuf) -> Self {
        Self { file, path }
    }

    /// The present state; arms the descriptor for the next change.
    ///
    /// # Errors
    /// [`CgroupError::Io`], with `is_gone()` if the cgroup was removed.
    pub fn read(&mut self) -> Result<CgroupEvents, CgroupError> {
        let mut text = String::new();
        self.file
            .rewind()
            .and_then(|()| self.file.read_to_string(&mut text))
            .map_err(|e| CgroupError::io("read", &self.path, e))?;
        CgroupEvents::parse(&text).ok_or_else(|| CgroupError::Garbled {
            path: self.path.clone(),
            contents: text,
        })
    }

    /// Waits until `wanted` holds; the error contains `name`.
    ///
    /// # Errors
    /// [`CgroupError::Timeout`], or [`CgroupError::Io`] with `is_gone()` if the cgroup was removed.
    pub fn wait(
        &mut self,
        timeout: Duration,
        name: &'static str,
        wanted: impl Fn(CgroupEvents) -> bool,
    ) -> Result<(), CgroupError> {
        let start = Instant::now();
        loop {
            if wanted(self.read()?) {
                return Ok(());
            }
            let left = timeout.saturating_sub(start.elapsed());
            if left.is_zero() {
                return Err(CgroupError::Timeout {
                    cgroup: self.path.parent().unwrap_or(&self.path).into(),
                    wanted: name,
                    waited: timeout,
                });
            }
            let millis = u16::try_from(left.as_millis()).unwrap_or(u16::MAX).max(1);
            let mut fds = [PollFd::new(self.file.as_fd(), PollFlags::POLLPRI)];
            match poll(&mut fds, PollTimeout::from(millis)) {
                Ok(_) | Err(nix::Error::EINTR) => {}
                Err(e) => return Err(CgroupError::io("poll", &self.path, e.into())),
            }
        }
    }
}

impl AsFd for EventsWatch {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.file.as_fd()
    }
}

/// Watches the cgroups of many claims with one inotify descriptor (a user may have few of them).
/// The descriptor is non-blocking and turns readable at a change, so it fits tokio's `AsyncFd`.
#[derive(Debug)]
pub struct TreeWatch {
    inotify: Inotify,
    places: HashMap<WatchDescriptor, ClaimPlace>,
}

impl TreeWatch {
    /// A watch without claims.
    ///
    /// # Errors
    /// [`CgroupError::Io`] without a free inotify instance.
    pub fn new() -> Result<Self, CgroupError> {
        let inotify = Inotify::init(InitFlags::IN_NONBLOCK | InitFlags::IN_CLOEXEC)
            .map_err(|e| CgroupError::io("create an inotify instance for", "cgroups", e.into()))?;
        Ok(Self {
            inotify,
            places: HashMap::new(),
        })
    }

    /// Adds a claim. Earlier changes are not reported: read `populated` afterwards.
    ///
    /// # Errors
    /// [`CgroupError::Io`], for instance when the cgroup is gone.
    pub fn add(&mut self, cgroup: &ClaimCgroup) -> Result<(), CgroupError> {
        let path = cgroup.dir().join("cgroup.events");
        let watch = self
            .inotify
            .add_watch(path.as_path(), AddWatchFlags::IN_MODIFY)
            .map_err(|e| CgroupError::io("watch", path, e.into()))?;
        self.places.insert(watch, cgroup.place());
        Ok(())
    }

    /// Ends the watch on a claim; call it when its cgroup is removed, because not every kernel drops watches on removed
    /// cgroups. Ignores claims that are not watched.
    pub fn remove(&mut self, place: ClaimPlace) {
        let inotify = &self.inotify;
        self.places.retain(|watch, watched| {
            if *watched == place {
                // Fails only if the kernel has dropped it already.
                let _ = inotify.rm_watch(*watch);
            }
            *watched != place
        });
    }

    /// Claims whose state changed since the last call, each once; empty if none.
    ///
    /// # Errors
    /// [`CgroupError::Io`] if the descriptor fails.
    pub fn read(&mut self) -> Result<Vec<ClaimPlace>, CgroupError> {
        let mut changed = Vec::new();
        loop {
            let events = match self.inotify.read_events() {
                Ok(events) => events,
                Err(nix::Error::EAGAIN) => return Ok(changed),
                Err(nix::Error::EINTR) => continue,
                Err(e) => {
                    let source = io::Error::from(e);
                    return Err(CgroupError::io("read", Path::new("inotify"), source));
                }
            };
            for event in events {
                let place = if event.mask.contains(AddWatchFlags::IN_IGNORED) {
                    self.places.remove(&event.wd)
                } else {
                    self.places.get(&event.wd).copied()
                };
                changed.extend(place.filter(|p| !changed.contains(p)));
                // After an overflow the changed ones are unknown: report all, the caller checks.
                if event.mask.contains(AddWatchFlags::IN_Q_OVERFLOW) {
                    changed = self.places.values().copied().collect();
                }
            }
        }
    }
}

impl AsFd for TreeWatch {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.inotify.as_fd()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parses_events() {
        let check = |text: &str, expect: Option<(bool, Option<bool>)>| {
            let found = CgroupEvents::parse(text).map(|e| (e.populated, e.frozen));
            assert_eq!(found, expect, "{text:?}");
        };
        check("populated 1\nfrozen 0\n", Some((true, Some(false))));
        check("frozen 1\npopulated 0\n", Some((false, Some(true))));
        check("populated 0\n", Some((false, None)));
        check("populated 1\nnew_key 7\n", Some((true, None)));
        check("frozen 1\n", None);
        check("", None);
    }
}
