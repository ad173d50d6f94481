//! Memory limits of control groups, as drivers of release 615 and later enforce them. They are in a file beside the
//! board, so boards without limits are unaffected. The soft limit (eviction of neighbours) is stored, not simulated.

use std::collections::BTreeSet;
use std::fs;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use crate::board::Board;
use crate::error::BoardError;
use crate::state::State;

/// A control group's limit on one GPU.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct MemoryLimit {
    pub gpu: usize,
    /// Guaranteed bytes.
    pub soft: u64,
    /// Maximum bytes; `u64::MAX` for none.
    pub hard: u64,
    /// Inode of the group: a later group of the same name has no limit.
    ino: u64,
    /// The group's path from the root of the hierarchy, as in `/proc/PID/cgroup`.
    path: PathBuf,
    dir: PathBuf,
}

impl MemoryLimit {
    fn line(&self) -> String {
        let (path, dir) = (self.path.display(), self.dir.display());
        format!(
            "{} {} {} {}\t{path}\t{dir}\n",
            self.gpu, self.soft, self.hard, self.ino
        )
    }

    fn parse(line: &str) -> Option<Self> {
        let mut parts = line.split('\t');
        let mut numbers = parts.next()?.split(' ').map(str::parse::<u64>);
        let mut number = || numbers.next()?.ok();
        Some(Self {
            gpu: usize::try_from(number()?).ok()?,
            soft: number()?,
            hard: number()?,
            ino: number()?,
            path: parts.next()?.into(),
            dir: parts.next()?.into(),
        })
    }

    fn lives(&self) -> bool {
        fs::metadata(&self.dir).is_ok_and(|m| m.ino() == self.ino)
    }

    fn holds(&self, pid: u32) -> bool {
        cgroup_of(&pid.to_string()).is_some_and(|path| path.starts_with(&self.path))
    }
}

/// The v2 control group of a process, from the root.
fn cgroup_of(pid: &str) -> Option<PathBuf> {
    let text = fs::read_to_string(format!("/proc/{pid}/cgroup")).ok()?;
    let path = text.lines().find_map(|line| line.strip_prefix("0::"))?;
    Some(path.into())
}

/// The path from the root of the hierarchy to a control group's directory.
fn path_of(dir: &Path) -> Option<PathBuf> {
    let mounts = fs::read_to_string("/proc/self/mountinfo").ok()?;
    mounts.lines().find_map(|line| {
        let (fields, rest) = line.split_once(" - ")?;
        if !rest.starts_with("cgroup2 ") {
            return None;
        }
        let mut fields = fields.split(' ').skip(3);
        let (root, point) = (fields.next()?, fields.next()?);
        Some(Path::new(root).join(dir.strip_prefix(point).ok()?))
    })
}

/// The limit of the caller's group on one GPU.
pub(crate) struct Held {
    hard: u64,
    /// Board ids of the processes in the group.
    members: BTreeSet<u64>,
}

impl Held {
    fn used(&self, state: &State, gpu: usize) -> u64 {
        let own = |u: &&crate::state::Use| u.gpu == gpu as u64 && self.members.contains(&u.owner);
        let uses = state.uses().iter().filter(own);
        uses.fold(0, |sum: u64, u| sum.saturating_add(u.device_bytes()))
    }

    /// Bytes left, and the limit.
    pub(crate) fn left(&self, state: &State, gpu: usize) -> (u64, u64) {
        (self.hard.saturating_sub(self.used(state, gpu)), self.hard)
    }
}

impl Board {
    fn limits_path(&self) -> PathBuf {
        let mut name = self.path().file_name().unwrap_or_default().to_owned();
        name.push(".limits");
        self.path().with_file_name(name)
    }

    #[must_use]
    pub fn memory_limits(&self) -> Vec<MemoryLimit> {
        let text = fs::read_to_string(self.limits_path()).unwrap_or_default();
        let all = text.lines().filter_map(MemoryLimit::parse);
        all.filter(MemoryLimit::lives).collect()
    }

    /// Limits a control group, given by its directory, on a GPU. `(0, u64::MAX)` removes the limit.
    ///
    /// # Errors
    /// If the directory is not a control group or the file beside the board cannot be written.
    pub fn set_memory_limit(
        &self,
        gpu: usize,
        dir: &Path,
        soft: u64,
        hard: u64,
    ) -> Result<(), BoardError> {
        let io = |doing, path: &Path| {
            let path = path.to_owned();
            move |source| BoardError::Io {
                doing,
                path,
                source,
            }
        };
        let meta = fs::metadata(dir).map_err(io("look at the control group", dir))?;
        let no_group = || std::io::Error::from(std::io::ErrorKind::NotFound);
        let path = path_of(dir).ok_or_else(|| io("find the control group", dir)(no_group()))?;
        let mut limits = self.memory_limits();
        limits.retain(|l| l.gpu != gpu || l.ino != meta.ino());
        if (soft, hard) != (0, u64::MAX) {
            limits.push(MemoryLimit {
                gpu,
                soft,
                hard,
                ino: meta.ino(),
                path,
                dir: dir.into(),
            });
        }
        let file = self.limits_path();
        let fresh = file.with_extension(format!("limits-{}", std::process::id()));
        let text: String = limits.iter().map(MemoryLimit::line).collect();
        fs::write(&fresh, text).map_err(io("write", &fresh))?;
        fs::rename(&fresh, &file).map_err(io("write", &file))
    }

    /// A group's limit on a GPU, and the bytes that its processes use there.
    #[must_use]
    pub fn memory_limit(&self, gpu: usize, dir: &Path) -> Option<(MemoryLimit, u64)> {
        let ino = fs::metadata(dir).ok()?.ino();
        let mut limits = self.memory_limits().into_iter();
        let limit = limits.find(|l| l.gpu == gpu && l.ino == ino)?;
        let snapshot = self.snapshot();
        let processes = snapshot.gpus.get(gpu)?.processes.iter();
        let own = processes.filter(|p| limit.holds(p.pid));
        let used = own.fold(0, |sum: u64, p| sum.saturating_add(p.bytes));
        Some((limit, used))
    }

    /// The limit of the calling process's group on a GPU: the lowest if several apply.
    pub(crate) fn held(&self, gpu: usize) -> Option<Held> {
        // Without limits this costs one check for an absent file.
        fs::metadata(self.limits_path()).ok()?;
        let own = cgroup_of("self")?;
        let mut limits = self.memory_limits();
        limits.retain(|l| l.gpu == gpu && l.hard != u64::MAX && own.starts_with(&l.path));
        let limit = limits.into_iter().min_by_key(|l| l.hard)?;
        let snapshot = self.snapshot();
        let processes = snapshot.gpus.into_iter().flat_map(|g| g.processes);
        let inside = processes.filter(|p| p.pid == std::process::id() || limit.holds(p.pid));
        Some(Held {
            hard: limit.hard,
            members: inside.map(|p| p.id).collect(),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_limit_reads_back() {
        let limit = MemoryLimit {
            gpu: 3,
            soft: 1,
            hard: u64::MAX,
            ino: 9,
            path: "/a b/c".into(),
            dir: "/sys/fs/cgroup/a b/c".into(),
        };
        assert_eq!(MemoryLimit::parse(limit.line().trim_end()), Some(limit));
        for broken in ["", "1 2 3", "1 2 3 4\tx", "x 2 3 4\ta\tb"] {
            assert_eq!(MemoryLimit::parse(broken), None, "{broken:?}");
        }
    }
}
