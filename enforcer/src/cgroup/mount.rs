//! The mount point of cgroup v2 (alone or beside v1), and the mapping between kernel paths and directories.

use std::fs;
use std::path::{Path, PathBuf};

use super::CgroupError;

/// A mount of the cgroup v2 hierarchy.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Mount {
    /// The directory it is mounted on.
    pub point: PathBuf,
    /// The cgroup at `point`; `/` unless only a part is mounted (containers).
    pub root: PathBuf,
}

impl Mount {
    /// Finds the hierarchy in `/proc/self/mountinfo`.
    ///
    /// # Errors
    /// [`CgroupError::NoMount`] if there is none, [`CgroupError::Io`] if the file is unreadable.
    pub fn find() -> Result<Self, CgroupError> {
        let path = Path::new("/proc/self/mountinfo");
        let text = fs::read_to_string(path).map_err(|e| CgroupError::io("read", path, e))?;
        Self::parse(&text).ok_or_else(|| CgroupError::NoMount {
            mountinfo: path.into(),
        })
    }

    /// Picks the mount that shows most of the tree from a mountinfo file. Among equals the first wins, which was made
    /// at boot.
    #[must_use]
    pub fn parse(mountinfo: &str) -> Option<Self> {
        mountinfo
            .lines()
            .filter_map(parse_line)
            .min_by_key(|m| m.root.components().count())
    }

    /// The directory of the cgroup with the kernel's name `cgroup` (as in `/proc/<pid>/cgroup`), if this mount shows
    /// it.
    #[must_use]
    pub fn dir_of(&self, cgroup: &str) -> Option<PathBuf> {
        let below = Path::new(cgroup).strip_prefix(&self.root).ok()?;
        let sane = below
            .components()
            .all(|c| matches!(c, std::path::Component::Normal(_)));
        sane.then(|| self.point.join(below))
    }

    /// The kernel's name of the cgroup whose directory is `dir`, if it lies in this mount.
    #[must_use]
    pub fn path_of(&self, dir: &Path) -> Option<PathBuf> {
        Some(self.root.join(dir.strip_prefix(&self.point).ok()?))
    }
}

fn parse_line(line: &str) -> Option<Mount> {
    let (fields, rest) = line.split_once(" - ")?;
    if rest.split(' ').next()? != "cgroup2" {
        return None;
    }
    let mut fields = fields.split(' ').skip(3);
    let root = unescape(fields.next()?);
    let point = unescape(fields.next()?);
    // A root outside this cgroup namespace appears as "/../..", and no name reaches into it.
    (!root.contains("/..")).then(|| Mount {
        point: point.into(),
        root: root.into(),
    })
}

/// Undoes the octal escapes of mountinfo (`\040` is a space).
pub(crate) fn unescape(field: &str) -> String {
    let mut out = Vec::with_capacity(field.len());
    let bytes = field.as_bytes();
    let mut at = 0;
    while at < bytes.len() {
        let code = (bytes[at] == b'\\')
            .then(|| field.get(at + 1..at + 4))
            .flatten()
            .and_then(|digits| u8::from_str_radix(digits, 8).ok());
        match code {
            Some(byte) => {
                out.push(byte);
                at += 4;
            }
            None => {
                out.push(bytes[at]);
                at += 1;
            }
        }
    }
    String::from_utf8_lossy(&out).into_owned()
}

/// The kernel's name of the v2 cgroup in a `/proc/<pid>/cgroup` file.
#[must_use]
pub fn v2_path(proc_cgroup: &str) -> Option<&str> {
    proc_cgroup
        .lines()
        .find_map(|line| line.strip_prefix("0::"))
        .map(crate::proc::undeleted)
}

/// The kernel's name of a process's cgroup; `None` if it has ended.
#[must_use]
pub fn path_of_pid(pid: i32) -> Option<String> {
    let text = fs::read_to_string(format!("/proc/{pid}/cgroup")).ok()?;
    v2_path(&text).map(str::to_owned)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn finds_the_mount() {
        let check = |text: &str, expect: Option<(&str, &str)>| {
            let found = Mount::parse(text);
            let found = found
                .as_ref()
                .map(|m| (m.point.to_str().unwrap(), m.root.to_str().unwrap()));
            assert_eq!(found, expect, "{text}");
        };
        check(
            "25 30 0:22 / /sys/fs/cgroup rw,nosuid shared:9 - cgroup2 cgroup2 rw,nsdelegate",
            Some(("/sys/fs/cgroup", "/")),
        );
        check(
            "31 23 0:28 / /sys/fs/cgroup rw - tmpfs tmpfs rw\n\
             32 31 0:29 / /sys/fs/cgroup/cpu rw - cgroup cgroup rw,cpu\n\
             41 31 0:38 / /sys/fs/cgroup/unified rw,relatime - cgroup2 cgroup2 rw",
            Some(("/sys/fs/cgroup/unified", "/")),
        );
        check(
            "50 1 0:38 /docker/ab /mnt/a\\040b rw - cgroup2 cgroup2 rw\n\
             51 1 0:38 /docker /sys/fs/cgroup rw - cgroup2 cgroup2 rw",
            Some(("/sys/fs/cgroup", "/docker")),
        );
        check(
            "50 1 0:38 /docker/ab /mnt/a\\040b rw - cgroup2 cgroup2 rw",
            Some(("/mnt/a b", "/docker/ab")),
        );
        check("50 1 0:38 /../.. /x rw - cgroup2 cgroup2 rw", None);
        check(
            "32 31 0:29 / /sys/fs/cgroup/cpu rw - cgroup cgroup rw",
            None,
        );
        check("garbage", None);
        check("", None);
    }

    #[test]
    fn maps_names_to_directories() {
        let whole = Mount {
            point: "/sys/fs/cgroup".into(),
            root: "/".into(),
        };
        let part = Mount {
            point: "/m".into(),
            root: "/docker/ab".into(),
        };
        assert_eq!(whole.dir_of("/"), Some("/sys/fs/cgroup/".into()));
        assert_eq!(whole.dir_of("/a/b"), Some("/sys/fs/cgroup/a/b".into()));
        assert_eq!(part.dir_of("/docker/ab/c"), Some("/m/c".into()));
        assert_eq!(part.dir_of("/docker/other"), None);
        assert_eq!(whole.dir_of("/../x"), None);
        assert_eq!(part.path_of(Path::new("/m/c")), Some("/docker/ab/c".into()));
        assert_eq!(part.path_of(Path::new("/elsewhere")), None);
    }

    #[test]
    fn reads_proc_cgroup() {
        assert_eq!(v2_path("9:name=systemd:/\n0::/a/b\n"), Some("/a/b"));
        assert_eq!(v2_path("0::/a (deleted)\n"), Some("/a"));
        assert_eq!(v2_path("4:memory:/x\n"), None);
    }
}
