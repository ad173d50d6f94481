//! Keeps programs outside claims from opening a GPU: a filter on the cgroups in which users' programs start.
//!
//! A parent's refusal overrides a child's permission, so the program itself admits processes below an exempt cgroup:
//! gshare's claims, the graphical session. It asks the kernel for the caller's ancestors
//! (`bpf_get_current_ancestor_cgroup_id`), which no process can choose. Attached to the cgroup itself, it outlives the
//! service. It acts at open, so open files stay open.

use std::collections::BTreeSet;
use std::fs::{self, File, OpenOptions};
use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

use super::insn::{Insn, Reg};
use super::program::{MAKE, MINOR_CONTROL};
use super::{DeviceError, sys};
use crate::cgroup::{Mount, trees};
use crate::nodes::Majors;

/// Name prefix of all such filters; the rest identifies the owner.
const PREFIX: &str = "gshdeny_";
/// Type of a character device in the kernel's context (`BPF_DEVCG_DEV_CHAR`).
const CHARACTER: u32 = 2;
/// `nvidia-modeset`, opened by desktops and not by CUDA programs.
const MINOR_MODESET: u32 = 254;
/// `bpf_get_current_ancestor_cgroup_id(level)`: 0 if the caller is not that deep.
const ANCESTOR_ID: i32 = 123;
/// `bpf_get_current_pid_tgid()`, available to filters since Linux 6.10.
const PID_TGID: i32 = 14;
/// `bpf_get_current_uid_gid()`.
const UID_GID: i32 = 15;
/// `bpf_get_current_comm(bytes, length)`.
const COMM: i32 = 16;
/// `bpf_ringbuf_output(map, bytes, length, flags)`, since Linux 5.8.
const RING_OUTPUT: i32 = 130;
/// Inode of the machine's first PID namespace (`PROC_PID_INIT_INO`).
const FIRST_PIDS: u64 = 0xEFFF_FFFC;
/// Maximum depth of exempt cgroups. A service in a cgroup namespace cannot tell their true depth, so all levels are
/// checked.
const LEVELS: i32 = 12;
/// Maximum number of exempt cgroups.
const EXEMPT: usize = 256;

/// Devices that the filter refuses, and exempt cgroups.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct GuardRules {
    /// The device numbers of this machine.
    pub majors: Majors,
    /// Minors N of the `/dev/nvidia<N>` that everybody may open.
    pub open: BTreeSet<u32>,
    /// The kernel's ids (inode numbers) of exempt cgroups; processes in or below them may open everything.
    pub exempt: BTreeSet<u64>,
}

/// A refused open of a GPU.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Refusal {
    /// The process, in the machine's pid namespace.
    pub pid: i32,
    pub uid: u32,
    /// Its name, at most 15 bytes.
    pub name: String,
    /// Minor N of `/dev/nvidia<N>`; `None` for a MIG capability.
    pub minor: Option<u32>,
}

/// The refusals of a [`Guard`], in order. Those that come faster than they are read are dropped.
#[derive(Debug)]
pub struct Refusals {
    ring: sys::Ring,
    nvidia: u32,
}

impl Refusals {
    /// Waits for refusals and returns them.
    pub fn wait(&mut self) -> io::Result<Vec<Refusal>> {
        let nvidia = self.nvidia;
        let refusal = |bytes: Vec<u8>| {
            let long = |at: usize| {
                let bytes = bytes.get(at..at + 8)?;
                Some(u64::from_ne_bytes(bytes.try_into().ok()?))
            };
            let word =
                |at: usize| Some(u32::from_ne_bytes(bytes.get(at..at + 4)?.try_into().ok()?));
            let name = bytes.get(16..32)?.split(|byte| *byte == 0).next()?;
            Some(Refusal {
                pid: i32::try_from(long(0)? >> 32).ok()?,
                uid: long(8)? as u32,
                name: String::from_utf8_lossy(name).into_owned(),
                minor: word(32).filter(|_| word(36) == Some(nvidia)),
            })
        };
        Ok(self.ring.wait()?.into_iter().filter_map(refusal).collect())
    }
}

/// The program. It refuses GPU nodes and MIG capabilities. It allows `nvidiactl`, `nvidia-modeset` and `nvidia-uvm`,
/// which give no access to a GPU, so that monitors can name the GPUs that they may not open. If some GPUs are open,
/// capabilities are allowed too: they open no instance without its GPU's node. Refusals are written into `ring`, the
/// descriptor of a map.
#[must_use]
pub fn guard_program(rules: &GuardRules, ring: Option<BorrowedFd<'_>>) -> Vec<Insn> {
    let exempt: Vec<u64> = rules.exempt.iter().copied().take(EXEMPT).collect();
    let mut check = Vec::new();
    if !exempt.is_empty() {
        for level in 1..=LEVELS {
            check.extend([Insn::set(Reg::R1, level), Insn::call(ANCESTOR_ID)]);
            for id in &exempt {
                check.extend(Insn::set_long(Reg::R1, *id));
                // The distance to the permission at the end is filled in below.
                check.push(Insn::skip_if_same(Reg::R0, Reg::R1, 0));
            }
        }
    }
    if let Some(ring) = ring {
        check.extend([Insn::call(PID_TGID), Insn::store_long(Reg::R0, -40)]);
        check.extend([Insn::call(UID_GID), Insn::store_long(Reg::R0, -32)]);
        check.extend(Insn::set_stack(Reg::R1, -24));
        check.extend([Insn::set(Reg::R2, 16), Insn::call(COMM)]);
        check.extend(Insn::set_map(Reg::R1, ring.as_raw_fd()));
        check.extend(Insn::set_stack(Reg::R2, -40));
        check.extend([Insn::set(Reg::R3, 40), Insn::set(Reg::R4, 0)]);
        check.push(Insn::call(RING_OUTPUT));
    }
    check.extend([Insn::set(Reg::R0, 0), Insn::exit()]);
    let length = distance(check.len());
    for (at, insn) in (1..).zip(&mut check) {
        if *insn == Insn::skip_if_same(Reg::R0, Reg::R1, 0) {
            *insn = Insn::skip_if_same(Reg::R0, Reg::R1, length - at);
        }
    }
    let minors = [MINOR_CONTROL, MINOR_MODESET].into_iter();
    let minors = minors.chain(rules.open.iter().copied()).collect();
    let mut table = vec![(rules.majors.nvidia, minors)];
    let caps = rules.majors.caps.filter(|_| rules.open.is_empty());
    table.extend(caps.map(|major| (major, Vec::new())));
    let mut head = vec![
        Insn::load_word(Reg::R2, Reg::R1, 0),
        Insn::load_word(Reg::R3, Reg::R1, 4),
        Insn::load_word(Reg::R4, Reg::R1, 8),
        Insn::store_word(Reg::R4, -8),
        Insn::store_word(Reg::R3, -4),
        // The context's first word is access << 16 | type. Making a node opens nothing, and a driver upgrade makes
        // nodes.
        Insn::skip_if_equal(Reg::R2, MAKE << 16 | CHARACTER, 1),
        Insn::and(Reg::R2, 0xffff),
    ];
    // Lengths of the blocks, from which each jump gets its distance.
    let blocks: usize = table.iter().map(|(_, minors)| minors.len() + 2).sum();
    let mut left = blocks + 1;
    head.push(Insn::skip_unless_equal(
        Reg::R2,
        CHARACTER,
        distance(left) + length,
    ));
    for (major, minors) in table {
        head.push(Insn::skip_unless_equal(
            Reg::R3,
            major,
            distance(minors.len()) + 1,
        ));
        left -= 1;
        for minor in minors {
            left -= 1;
            head.push(Insn::skip_if_equal(Reg::R4, minor, distance(left) + length));
        }
        left -= 1;
        head.push(Insn::skip(distance(left)));
    }
    head.push(Insn::skip(length));
    head.extend(check);
    head.extend([Insn::set(Reg::R0, 1), Insn::exit()]);
    head
}

/// Far below the maximum of a jump: see [`EXEMPT`] and [`LEVELS`].
fn distance(insns: usize) -> i16 {
    i16::try_from(insns).unwrap_or(i16::MAX)
}

const _: () = assert!((EXEMPT * 3 + 2) * (LEVELS as usize) < i16::MAX as usize);

/// The guard of one service.
#[derive(Debug)]
pub struct Guard {
    name: String,
    loaded: Option<(GuardRules, OwnedFd, u32)>,
    /// Receives refusals; `None` if the kernel cannot report them.
    ring: Option<OwnedFd>,
}

impl Guard {
    /// The guard of the service whose claims are in this cgroup; services have different guards.
    #[must_use]
    pub fn of(tree: &Path) -> Self {
        // FNV-1a: any number that is stable and differs between trees.
        let bytes = tree.as_os_str().as_encoded_bytes();
        let hash = bytes.iter().fold(0x811c_9dc5_u32, |hash, byte| {
            (hash ^ u32::from(*byte)).wrapping_mul(0x0100_0193)
        });
        Self {
            name: format!("{PREFIX}{:07x}", hash & 0xfff_ffff),
            loaded: None,
            ring: None,
        }
    }

    /// Receiver of this guard's refusals; its filters report them once they are set again. `None` if this kernel cannot
    /// report them, or if processes have other numbers here than on the machine.
    #[must_use]
    pub fn refusals(&mut self, majors: &Majors) -> Option<Refusals> {
        let own = fs::metadata("/proc/self/ns/pid").ok()?;
        if own.ino() != FIRST_PIDS {
            return None;
        }
        let ring = sys::Ring::make().ok()?;
        let fd = ring.fd().try_clone_to_owned().ok()?;
        let rules = GuardRules {
            majors: majors.clone(),
            open: BTreeSet::new(),
            exempt: BTreeSet::new(),
        };
        sys::load(&self.name, &guard_program(&rules, Some(fd.as_fd()))).ok()?;
        self.ring = Some(fd);
        self.loaded = None;
        Some(Refusals {
            ring,
            nvidia: majors.nvidia,
        })
    }

    /// Makes `rules` those of this service's filter on a cgroup: attaches it, or replaces the older one in a single
    /// step. Returns true if that changed anything.
    pub fn set(&mut self, dir: &Path, rules: &GuardRules) -> Result<bool, DeviceError> {
        let io = |verb, source| DeviceError::new(verb, dir, source);
        let cgroup = open(dir).map_err(|e| io("open the cgroup for", e))?;
        self.load(rules)?;
        let Some((_, program, id)) = &self.loaded else {
            return Ok(false);
        };
        let found = named(cgroup.as_fd(), |name| name == self.name).map_err(|e| io("query", e))?;
        if found.iter().any(|(_, seen)| seen == id) {
            return Ok(false);
        }
        let replace = found.first().map(|(fd, _)| fd.as_fd());
        sys::attach(cgroup.as_fd(), program.as_fd(), replace).map_err(|e| io("attach", e))?;
        Ok(true)
    }

    /// Removes this service's filter from every cgroup except those in `keep`. Returns their number.
    pub fn lift_except(&self, keep: &BTreeSet<PathBuf>) -> Result<usize, DeviceError> {
        lift(keep, |name| name == self.name)
    }

    /// Removes the filters of all gshare services from all cgroups of this machine. Returns their number.
    pub fn lift_all() -> Result<usize, DeviceError> {
        lift(&BTreeSet::new(), |name| name.starts_with(PREFIX))
    }

    fn load(&mut self, rules: &GuardRules) -> Result<(), DeviceError> {
        if self
            .loaded
            .as_ref()
            .is_some_and(|(known, ..)| known == rules)
        {
            return Ok(());
        }
        let fd = sys::load(
            &self.name,
            &guard_program(rules, self.ring.as_ref().map(AsFd::as_fd)),
        )
        .map_err(|(source, log)| {
            if log.is_empty() {
                DeviceError::new("load", Path::new(&self.name), source)
            } else {
                DeviceError::Refused { log, source }
            }
        })?;
        let info = sys::info(fd.as_fd());
        let id = info.map_err(|e| DeviceError::new("inspect", Path::new(&self.name), e))?;
        self.loaded = Some((rules.clone(), fd, id.id));
        Ok(())
    }
}

fn open(dir: &Path) -> io::Result<File> {
    OpenOptions::new()
        .read(true)
        .custom_flags(libc::O_DIRECTORY | libc::O_NOFOLLOW)
        .open(dir)
}

/// Filters of a cgroup with matching names, with their ids.
fn named(cgroup: BorrowedFd<'_>, fits: impl Fn(&str) -> bool) -> io::Result<Vec<(OwnedFd, u32)>> {
    let mut found = Vec::new();
    for id in sys::query(cgroup)? {
        let fd = match sys::by_id(id) {
            Ok(fd) => fd,
            // Detached and unloaded since the query.
            Err(e) if e.kind() == io::ErrorKind::NotFound => continue,
            Err(e) => return Err(e),
        };
        if fits(&sys::info(fd.as_fd())?.name()) {
            found.push((fd, id));
        }
    }
    Ok(found)
}

fn lift(keep: &BTreeSet<PathBuf>, fits: impl Fn(&str) -> bool) -> Result<usize, DeviceError> {
    // Without the hierarchy there are no filters.
    let Ok(mount) = Mount::find() else {
        return Ok(0);
    };
    let (mut lifted, mut dirs) = (0, vec![mount.point]);
    while let Some(dir) = dirs.pop() {
        let entries = fs::read_dir(&dir).into_iter().flatten().flatten();
        let below = entries.filter(|e| e.file_type().is_ok_and(|t| t.is_dir()));
        dirs.extend(below.map(|e| e.path()));
        // Cgroups come and go during the walk.
        let Ok(cgroup) = open(&dir) else { continue };
        if keep.contains(&dir) {
            continue;
        }
        let io = |verb, source| DeviceError::new(verb, &dir, source);
        for (fd, _) in named(cgroup.as_fd(), &fits).map_err(|e| io("query", e))? {
            sys::detach(cgroup.as_fd(), fd.as_fd()).map_err(|e| io("detach", e))?;
            lifted += 1;
        }
    }
    Ok(lifted)
}

/// Removes all filters of the service whose claims are in the tree `root`: those of its claims, including the cgroups
/// `elsewhere` (kernel names), and those against programs outside claims. For administrators whose service does not
/// answer. Returns their number.
pub fn open_tree(root: &str, elsewhere: &[PathBuf]) -> Result<usize, DeviceError> {
    let Ok(mount) = Mount::find() else {
        return Ok(0);
    };
    let mut dirs: Vec<PathBuf> = elsewhere
        .iter()
        .filter_map(|name| mount.dir_of(name.to_str()?))
        .collect();
    let mut lifted = 0;
    for tree in trees(&mount, root) {
        lifted += Guard::of(&tree).lift_except(&BTreeSet::new())?;
        dirs.push(tree);
    }
    while let Some(dir) = dirs.pop() {
        let entries = fs::read_dir(&dir).into_iter().flatten().flatten();
        let below = entries.filter(|e| e.file_type().is_ok_and(|t| t.is_dir()));
        dirs.extend(below.map(|e| e.path()));
        let Ok(cgroup) = open(&dir) else { continue };
        let io = |verb, source| DeviceError::new(verb, &dir, source);
        let of_claims = |name: &str| name == super::filter::NAME;
        for (fd, _) in named(cgroup.as_fd(), of_claims).map_err(|e| io("query", e))? {
            sys::detach(cgroup.as_fd(), fd.as_fd()).map_err(|e| io("detach", e))?;
            lifted += 1;
        }
    }
    Ok(lifted)
}

#[cfg(test)]
mod tests {
    use std::cell::RefCell;

    use super::*;

    thread_local! {
        /// The ids of the caller's cgroups from the top.
        static ANCESTORS: RefCell<Vec<u64>> = const { RefCell::new(Vec::new()) };
    }

    fn ancestor(level: u64, _: u64, _: u64, _: u64, _: u64) -> u64 {
        let level = usize::try_from(level).unwrap();
        ANCESTORS.with_borrow(|ids| ids.get(level).copied().unwrap_or(0))
    }

    /// Runs the program as the kernel would for one open.
    fn allowed(rules: &GuardRules, below: &[u64], kind: u32, major: u32, minor: u32) -> bool {
        let bytes: Vec<u8> = guard_program(rules, None)
            .into_iter()
            .flat_map(Insn::to_bytes)
            .collect();
        let mut vm = rbpf::EbpfVmRaw::new(Some(&bytes)).unwrap();
        vm.register_helper(u32::try_from(ANCESTOR_ID).unwrap(), ancestor)
            .unwrap();
        ANCESTORS.set(below.to_vec());
        let mut context = Vec::new();
        for word in [6 << 16 | kind, major, minor] {
            context.extend(word.to_ne_bytes());
        }
        let verdict = vm.execute_program(&mut context).unwrap();
        assert!(verdict <= 1, "the kernel expects 0 or 1, not {verdict}");
        verdict == 1
    }

    #[test]
    fn gpus_are_for_those_below_an_exempt_cgroup() {
        const CLAIMS: u64 = 0x7_0000_0021;
        const SESSION: u64 = 77;
        let callers: [(&[u64], bool); 7] = [
            (&[1, 5], false),
            (&[1, 5, 6, 7], false),
            (&[1, CLAIMS], true),
            (&[1, 5, CLAIMS, 9, 10], true),
            (&[1, 5, 6, SESSION], true),
            // Half of an id does not match.
            (&[1, 0x21, CLAIMS & 0xffff_ffff], false),
            (&[1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, SESSION], true),
        ];
        for caps in [None, Some(511)] {
            for exempt in [vec![], vec![CLAIMS], vec![CLAIMS, SESSION]] {
                let rules = GuardRules {
                    majors: Majors {
                        nvidia: 195,
                        uvm: Some(508),
                        caps,
                    },
                    open: BTreeSet::new(),
                    exempt: exempt.iter().copied().collect(),
                };
                // GPU 7 is open to everybody.
                let mixed = GuardRules {
                    open: [7].into(),
                    ..rules.clone()
                };
                for (below, free) in callers {
                    let free = free && below.iter().any(|id| exempt.contains(id));
                    for (kind, major, minor, gpu) in [
                        (2, 195, 0, true),
                        (2, 195, 7, true),
                        (2, 195, 254, false),
                        (2, 195, 255, false),
                        (2, 508, 0, false),
                        (2, 511, 3, caps.is_some()),
                        (2, 1, 3, false),
                        (2, 226, 0, false),
                        (1, 195, 0, false),
                    ] {
                        let case = format!("{rules:?} {below:?} {kind} {major}:{minor}");
                        let found = allowed(&rules, below, kind, major, minor);
                        assert_eq!(found, free || !gpu, "{case}");
                        let found = allowed(&mixed, below, kind, major, minor);
                        let refused = gpu && (major, minor) == (195, 0);
                        assert_eq!(found, free || !refused, "but for GPU 7: {case}");
                    }
                }
            }
        }
    }

    #[test]
    fn a_service_knows_its_own_filter() {
        let name = |tree: &str| Guard::of(Path::new(tree)).name;
        assert_eq!(name("/gshare"), name("/gshare"));
        assert_ne!(name("/gshare"), name("/gshare-2"));
        assert!(name("/gshare").starts_with(PREFIX) && name("/gshare").len() == 15);
    }
}
