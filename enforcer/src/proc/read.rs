//! Readers of `/proc/<pid>/*`. Each returns `None` for a process that is gone or inaccessible.

use std::collections::BTreeSet;
use std::ffi::OsString;
use std::fs;
use std::io::Read;
use std::os::unix::ffi::OsStringExt;
use std::path::PathBuf;

use nix::unistd::{Gid, Group, Uid, User, getgrouplist};
use serde::{Deserialize, Serialize};

/// The fields of `/proc/<pid>/stat` that gshare uses.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Stat {
    pub pid: i32,
    /// Name of the executable, at most 15 bytes; may contain spaces and parentheses.
    pub comm: String,
    /// `R`, `S`, `D`, `Z` (zombie), `T` (stopped), ...
    pub state: char,
    pub ppid: i32,
    /// Start time, in clock ticks since boot.
    pub start_ticks: u64,
    /// Processor time of all its threads so far, in clock ticks.
    pub cpu_ticks: u64,
}

/// A permanent identity of a process: pids are reused, the pair with the start time is not.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct ProcessKey {
    pub pid: i32,
    /// Start time, in clock ticks since boot.
    pub start_ticks: u64,
}

/// Maximum bytes read of `/proc/PID/maps`, whose length the process controls: twice the default limit of Linux (65,530
/// mappings of 120 bytes).
const MAPS_AT_MOST: u64 = 16 << 20;

/// Whether the name of one of the first files that a process has mapped matches.
#[must_use]
pub fn has_mapped(pid: i32, fits: impl Fn(&str) -> bool) -> bool {
    let maps = bytes(pid, "maps", MAPS_AT_MOST);
    maps.is_some_and(|maps| names_mapped(&String::from_utf8_lossy(&maps)).any(fits))
}

/// The mount points that a process sees; of a list longer than [`MAPS_AT_MOST`], which users can make, the first ones.
#[must_use]
pub fn mount_points(pid: i32) -> Option<BTreeSet<String>> {
    let text = bytes(pid, "mountinfo", MAPS_AT_MOST)?;
    let text = String::from_utf8_lossy(&text);
    let points = text.lines().filter_map(|line| line.split(' ').nth(4));
    Some(points.map(crate::cgroup::unescape).collect())
}

/// Names of the files in `/proc/PID/maps`, without directories.
fn names_mapped(maps: &str) -> impl Iterator<Item = &str> {
    let files = maps.lines().filter_map(|line| line.rsplit_once('/'));
    files.map(|(_, file)| file)
}

/// The user ids of a process.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Uids {
    /// The user who started it.
    pub real: u32,
    /// The user whose rights it has.
    pub effective: u32,
}

/// User and group that started a process. Another process can read it (its environment, its descriptors) only with the
/// same user and group: the user alone is not enough (ptrace(2), "access mode checking").
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub struct Rights {
    /// The real user.
    pub uid: u32,
    /// The real group: not always the user's primary one (`newgrp`, `sg`, notebook spawners).
    pub gid: u32,
    /// The other groups.
    pub groups: Vec<u32>,
}

impl Stat {
    /// Parses the file.
    #[must_use]
    pub fn parse(text: &str) -> Option<Self> {
        // The name may contain anything, so it ends at the *last* parenthesis.
        let (head, tail) = text.rsplit_once(')')?;
        let (pid, comm) = head.split_once('(')?;
        let fields: Vec<&str> = tail.split_ascii_whitespace().collect();
        Some(Self {
            pid: pid.trim().parse().ok()?,
            comm: comm.to_owned(),
            state: fields.first()?.chars().next()?,
            ppid: fields.get(1)?.parse().ok()?,
            start_ticks: fields.get(19)?.parse().ok()?,
            cpu_ticks: fields.get(11)?.parse::<u64>().ok()?
                + fields.get(12)?.parse::<u64>().ok()?,
        })
    }

    /// The permanent identity.
    #[must_use]
    pub fn key(&self) -> ProcessKey {
        ProcessKey {
            pid: self.pid,
            start_ticks: self.start_ticks,
        }
    }
}

impl Uids {
    /// Parses `/proc/<pid>/status`.
    fn parse(text: &str) -> Option<Self> {
        let line = text.lines().find_map(|line| line.strip_prefix("Uid:"))?;
        let mut ids = line.split_ascii_whitespace().map(str::parse);
        Some(Self {
            real: ids.next()?.ok()?,
            effective: ids.next()?.ok()?,
        })
    }
}

impl Rights {
    /// Parses `/proc/<pid>/status`.
    fn parse(text: &str) -> Option<Self> {
        let numbers = |name: &str| -> Option<Vec<u32>> {
            let line = text.lines().find_map(|line| line.strip_prefix(name))?;
            let words = line.split_ascii_whitespace();
            words.map(|word| word.parse().ok()).collect()
        };
        Some(Self {
            uid: *numbers("Uid:")?.first()?,
            gid: *numbers("Gid:")?.first()?,
            groups: numbers("Groups:")?,
        })
    }
}

/// Maximum bytes read of the arguments. The process controls their length and that of the environment (prctl(2),
/// `PR_SET_MM_MAP`): as long as its mappings.
const ARGUMENTS_AT_MOST: u64 = 64 << 10;
/// The same for any other file; only the environment can be longer.
const FILE_AT_MOST: u64 = 1 << 20;

/// Reads a file of a process, up to a maximum size. Most are short: one read gets them, and the next one returns the
/// end.
fn bytes(pid: i32, file: &str, at_most: u64) -> Option<Vec<u8>> {
    let open = fs::File::open(format!("/proc/{pid}/{file}")).ok()?;
    let mut all = Vec::with_capacity(2048);
    open.take(at_most).read_to_end(&mut all).ok()?;
    Some(all)
}

/// `/proc/<pid>/stat`.
#[must_use]
pub fn stat(pid: i32) -> Option<Stat> {
    Stat::parse(&String::from_utf8_lossy(&bytes(pid, "stat", FILE_AT_MOST)?))
}

/// Wait status of a zombie (field 52 of `/proc/<pid>/stat`, proc(5)).
pub(super) fn status_of_zombie(process: ProcessKey) -> Option<i32> {
    let text = String::from_utf8_lossy(&bytes(process.pid, "stat", FILE_AT_MOST)?).into_owned();
    let stat = Stat::parse(&text)?;
    let (_, tail) = text.rsplit_once(')')?;
    let status = tail.split_ascii_whitespace().nth(49)?.parse().ok()?;
    // The kernel gives 0 for a live process, and for readers without permission.
    (stat.key() == process && stat.state == 'Z' && may_read(process.pid)).then_some(status)
}

fn may_read(pid: i32) -> bool {
    let me = Uid::effective();
    me.is_root() || uids(pid).is_some_and(|uids| uids.real == me.as_raw())
}

/// The permanent identity of the present process with this pid.
#[must_use]
pub fn key(pid: i32) -> Option<ProcessKey> {
    stat(pid).map(|stat| stat.key())
}

/// Real and effective user id.
#[must_use]
pub fn uids(pid: i32) -> Option<Uids> {
    Uids::parse(&String::from_utf8_lossy(&bytes(
        pid,
        "status",
        FILE_AT_MOST,
    )?))
}

/// User and group that started a process.
#[must_use]
pub fn rights(pid: i32) -> Option<Rights> {
    Rights::parse(&String::from_utf8_lossy(&bytes(
        pid,
        "status",
        FILE_AT_MOST,
    )?))
}

/// The arguments; empty for a zombie or a kernel thread.
#[must_use]
pub fn cmdline(pid: i32) -> Option<Vec<OsString>> {
    bytes(pid, "cmdline", ARGUMENTS_AT_MOST).map(|bytes| split_nul(&bytes))
}

/// The environment as it was at exec. Untrusted: fit for names on a screen, never for a decision.
#[must_use]
pub fn environ(pid: i32) -> Option<Vec<OsString>> {
    bytes(pid, "environ", FILE_AT_MOST).map(|bytes| split_nul(&bytes))
}

fn split_nul(bytes: &[u8]) -> Vec<OsString> {
    let bytes = bytes.strip_suffix(b"\0").unwrap_or(bytes);
    if bytes.is_empty() {
        return Vec::new();
    }
    bytes
        .split(|byte| *byte == 0)
        .map(|part| OsString::from_vec(part.to_vec()))
        .collect()
}

/// The path in the kernel's name of a file or cgroup, without the note that it was removed or replaced.
pub(crate) fn undeleted(path: &str) -> &str {
    path.strip_suffix(" (deleted)").unwrap_or(path)
}

/// The path from which the executable was started, even if another file has replaced it; `None` for kernel threads and,
/// without permission, for others' processes.
#[must_use]
pub fn exe(pid: i32) -> Option<PathBuf> {
    let path = fs::read_link(format!("/proc/{pid}/exe")).ok()?;
    Some(
        path.to_str()
            .map(undeleted)
            .map(PathBuf::from)
            .unwrap_or(path),
    )
}

/// The process and its visible ancestors, nearest first. A chain that changes during the reading is cut, never followed
/// in circles.
#[must_use]
pub fn ancestors(pid: i32) -> Vec<Stat> {
    let mut chain: Vec<Stat> = Vec::new();
    let mut next = pid;
    while next > 0 && !chain.iter().any(|seen| seen.pid == next) {
        let Some(found) = stat(next) else { break };
        // A parent cannot be younger than its child: the pid was reused.
        if chain
            .last()
            .is_some_and(|child| child.start_ticks < found.start_ticks)
        {
            break;
        }
        next = found.ppid;
        chain.push(found);
    }
    chain
}

/// The login name of a user.
#[must_use]
pub fn user_name(uid: u32) -> Option<String> {
    user(uid).map(|user| user.name)
}

/// The primary group of a user.
#[must_use]
pub fn primary_gid(uid: u32) -> Option<u32> {
    user(uid).map(|user| user.gid.as_raw())
}

#[must_use]
pub fn group_name(gid: u32) -> Option<String> {
    let group = Group::from_gid(Gid::from_raw(gid)).ok()??;
    Some(group.name)
}

/// The user with this login name.
#[must_use]
pub fn uid_of(name: &str) -> Option<u32> {
    let user = User::from_name(name).ok()??;
    Some(user.uid.as_raw())
}

/// Whether there is a user with this login name.
#[must_use]
pub fn user_exists(name: &str) -> bool {
    matches!(User::from_name(name), Ok(Some(_)))
}

/// Whether there is a group with this name.
#[must_use]
pub fn group_exists(name: &str) -> bool {
    matches!(Group::from_name(name), Ok(Some(_)))
}

/// All groups of a user according to the system's databases.
#[must_use]
pub fn groups_of(uid: u32) -> Option<Vec<u32>> {
    let user = user(uid)?;
    let name = std::ffi::CString::new(user.name).ok()?;
    let groups = getgrouplist(&name, user.gid).ok()?;
    Some(groups.into_iter().map(Gid::as_raw).collect())
}

fn user(uid: u32) -> Option<User> {
    User::from_uid(Uid::from_raw(uid)).ok()?
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parses_stat() {
        let tail = "1 7 7 0 -1 4194560 0 0 0 0 1 2 0 0 20 0 1 0 6201 1000 200";
        let text = format!("42 (a) (b c)) S {tail}");
        let stat = Stat::parse(&text).unwrap();
        assert_eq!(
            (stat.pid, stat.comm.as_str(), stat.state),
            (42, "a) (b c)", 'S')
        );
        assert_eq!((stat.ppid, stat.start_ticks, stat.cpu_ticks), (1, 6201, 3));
        for broken in [
            "",
            "42",
            "42 (a",
            "42 (a) S",
            "x (a) S 1 2",
            "42 (a) S 1 7 7",
        ] {
            assert_eq!(Stat::parse(broken), None, "{broken:?}");
        }
    }

    #[test]
    fn parses_uids() {
        let check = |text: &str, expect: Option<(u32, u32)>| {
            assert_eq!(Uids::parse(text).map(|u| (u.real, u.effective)), expect);
        };
        check("Name:\tx\nUid:\t1000\t0\t0\t0\nGid:\t5\n", Some((1000, 0)));
        check("Name:\tx\n", None);
        check("Uid:\t\n", None);
    }

    #[test]
    fn parses_rights() {
        let text = "Uid:\t1\t2\t3\t4\nGid:\t5\t6\t7\t8\nFDSize:\t64\nGroups:\t5 27 \n";
        let found = Rights::parse(text).map(|r| (r.uid, r.gid, r.groups));
        assert_eq!(found, Some((1, 5, vec![5, 27])));
        let none = text.replace("5 27 ", "");
        assert_eq!(Rights::parse(&none).map(|r| r.groups), Some(Vec::new()));
        for part in ["Uid:\t1", "Gid:\t5", "Groups:"] {
            assert_eq!(Rights::parse(&text.replace(part, "x")), None, "{part}");
        }
    }

    #[test]
    fn splits_arguments() {
        let check = |bytes: &[u8], expect: &[&str]| assert_eq!(split_nul(bytes), expect);
        check(b"", &[]);
        check(b"a\0", &["a"]);
        check(b"a\0\0b c\0", &["a", "", "b c"]);
        check(b"overwritten title", &["overwritten title"]);
    }

    #[test]
    fn looks_at_itself() {
        let own = std::process::id().cast_signed();
        let own_stat = stat(own).unwrap();
        assert_eq!(own_stat.ppid, nix::unistd::getppid().as_raw());
        assert_eq!(key(own), Some(own_stat.key()));
        assert_eq!(uids(own).unwrap().real, nix::unistd::getuid().as_raw());
        assert_eq!(rights(own).unwrap().gid, nix::unistd::getgid().as_raw());
        assert_eq!(exe(own), std::env::current_exe().ok());
        let args: Vec<OsString> = std::env::args_os().collect();
        assert_eq!(cmdline(own), Some(args));
        let chain: Vec<i32> = ancestors(own).iter().map(|stat| stat.pid).collect();
        assert_eq!(chain.first(), Some(&own));
        assert_eq!(chain.get(1), Some(&own_stat.ppid));
    }

    #[test]
    fn of_what_a_process_says_of_itself_only_so_much_is_read() {
        let long = "x".repeat(100 << 10);
        let piped = std::process::Stdio::piped;
        let mut child = std::process::Command::new("sh");
        child
            .args(["-c", "echo; read x", "sh", &long])
            .stdin(piped())
            .stdout(piped());
        child.envs((0..15).map(|i| (format!("LONG{i}"), &long)));
        let mut child = child.spawn().unwrap();
        child.stdout.take().unwrap().read_exact(&mut [0]).unwrap();
        let pid = child.id().cast_signed();
        let size = |parts: Option<Vec<OsString>>| {
            parts.map(|p| p.iter().map(|p| p.len() as u64 + 1).sum())
        };
        let sizes: [Option<u64>; 2] = [size(cmdline(pid)), size(environ(pid))];
        child.kill().unwrap();
        child.wait().unwrap();
        // The zero at the cut end is not part of the file.
        assert_eq!(sizes, [Some(ARGUMENTS_AT_MOST + 1), Some(FILE_AT_MOST + 1)]);
    }

    #[test]
    fn the_gone_are_none() {
        let mut child = std::process::Command::new("true").spawn().unwrap();
        let pid = child.id().cast_signed();
        child.wait().unwrap();
        assert_eq!(stat(pid), None);
        assert_eq!(uids(pid), None);
        assert_eq!(cmdline(pid), None);
        assert_eq!(exe(pid), None);
        assert!(ancestors(pid).is_empty());
        assert_eq!(user_name(u32::MAX - 7), None);
    }

    #[test]
    fn names_root() {
        assert_eq!(user_name(0).as_deref(), Some("root"));
        assert_eq!(primary_gid(0), Some(0));
        assert_eq!(group_name(0).as_deref(), Some("root"));
        assert!(groups_of(0).unwrap().contains(&0));
    }

    #[test]
    fn the_mount_points_of_a_process_are_read() {
        let own = mount_points(std::process::id().cast_signed()).unwrap();
        assert!(own.contains("/") && own.contains("/proc"), "{own:?}");
    }

    #[test]
    fn files_are_known_by_the_names_that_are_mapped() {
        let line = |path: &str| format!("7f00-7f10 r-xp 00000000 08:01 42    {path}\n");
        let has_nccl = |maps: &str| names_mapped(maps).any(|file| file.starts_with("libnccl.so"));
        let site = "/venv/lib/python3.12/site-packages/nvidia/nccl/lib/libnccl.so.2";
        assert!(has_nccl(&(line("/lib/libc.so.6") + &line(site))));
        assert!(has_nccl(&line("/usr/lib/libnccl.so.2.27.3 (deleted)")));
        let others = ["/opt/libnccl.so.d/libx.so", "/opt/libnccl-net.so", "[heap]"];
        assert!(!has_nccl(&others.map(line).concat()));
        let own = std::process::id().cast_signed();
        assert!(has_mapped(own, |file| file.starts_with("libc.so")));
    }
}
