//! The cgroup of one claim: move processes in, list, freeze, thaw, kill, remove.

use std::fs::{self, File};
use std::io::{self, Read, Write};
use std::os::fd::{AsFd, BorrowedFd};
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::time::Duration;

use nix::fcntl::{OFlag, openat};
use nix::sys::stat::Mode;

use super::bound::Ground;
use super::tree::{make_dir, number};
use super::{CgroupError, CgroupEvents, ClaimPlace, EventsWatch, path_of_pid, v2_path};
use crate::proc::PidFd;

/// An open cgroup of a claim. The open directory pins it: a later cgroup of the same name is never mistaken for it.
#[derive(Debug)]
pub struct ClaimCgroup {
    fd: File,
    dir: PathBuf,
    /// The kernel's name, as in `/proc/<pid>/cgroup`.
    kernel_path: PathBuf,
    place: ClaimPlace,
    ground: Ground,
    id: u64,
    keeper: Keeper,
    /// Another program sets its device filter, and could not beside one of gshare: it gets none.
    pub(crate) filtered: bool,
}

/// The cgroup of a slice's own processes: systemd enables controllers in slices, and then the kernel allows no
/// processes there.
const INSIDE: &str = "claim";

/// Cgroup of the process that holds a user's unit, once claims in the unit have weights.
const HOLDER: &str = "holder";

/// The owner of a claim's cgroup.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Keeper {
    /// gshare's own: made for the claim, removed with it.
    Own,
    /// A service's own: left to systemd when the claim ends.
    Unit,
    /// A systemd slice made for the claim: processes are in [`INSIDE`] and in units that others create in it.
    Slice,
    /// Another program's: nothing is moved, frozen, killed or removed.
    Other,
}

impl ClaimCgroup {
    pub(super) fn open(
        dir: PathBuf,
        kernel_path: PathBuf,
        place: ClaimPlace,
        ground: Ground,
    ) -> Result<Self, CgroupError> {
        let fd = fs::OpenOptions::new()
            .read(true)
            .custom_flags(libc::O_DIRECTORY | libc::O_NOFOLLOW)
            .open(&dir)
            .map_err(|e| CgroupError::io("open", &dir, e))?;
        let id = fd
            .metadata()
            .map_err(|e| CgroupError::io("stat", &dir, e))?
            .ino();
        Ok(Self {
            fd,
            dir,
            kernel_path,
            place,
            ground,
            id,
            keeper: Keeper::Own,
            filtered: false,
        })
    }

    /// The same in a cgroup that is not gshare's and is not removed with the claim.
    pub(super) fn lodged(self) -> Self {
        Self {
            keeper: Keeper::Unit,
            ..self
        }
    }

    /// The same in a slice that systemd made for the claim alone.
    pub(super) fn sliced(self) -> Result<Self, CgroupError> {
        make_dir(&self.dir.join(INSIDE))?;
        Ok(Self {
            keeper: Keeper::Slice,
            ..self
        })
    }

    /// The same for another program's cgroup: its members are the processes below it, and no call moves, freezes, kills
    /// or removes anything there. `filtered`: that program sets its device filter.
    pub(super) fn foreign(self, filtered: bool) -> Self {
        Self {
            keeper: Keeper::Other,
            filtered,
            ..self
        }
    }

    /// Sets the claim's weight for processor time, relative to other claims of its user; false if the kernel has no
    /// processor controller here. Enables controllers in gshare's own cgroups only.
    pub(super) fn weigh(&self, weight: u32) -> Result<bool, CgroupError> {
        let (Some(home), Keeper::Own) = (self.dir.parent(), self.keeper) else {
            return Ok(false);
        };
        let above = home.parent().filter(|_| !has_cpu(home));
        for dir in above.into_iter().chain([home]) {
            if !has_cpu(dir) {
                return Ok(false);
            }
            // The process that holds a systemd unit: the kernel enables no controllers beside processes.
            let holders = fs::read_to_string(dir.join("cgroup.procs")).unwrap_or_default();
            for pid in parse_pids(&holders) {
                make_dir(&dir.join(HOLDER))?;
                write_in(&dir.join(HOLDER), "cgroup.procs", &pid.to_string())?;
            }
            write_in(dir, "cgroup.subtree_control", "+cpu")?;
        }
        self.write("cpu.weight", &weight.clamp(1, 10_000).to_string())?;
        Ok(true)
    }

    /// Whether the directory still belongs to this cgroup: it may have been removed, or created again.
    #[must_use]
    pub fn is_there(&self) -> bool {
        fs::metadata(&self.dir).is_ok_and(|meta| meta.ino() == self.id)
    }

    /// Whether systemd made a slice for it.
    #[must_use]
    pub fn has_slice(&self) -> bool {
        self.keeper == Keeper::Slice
    }

    /// Whether the claim lives in a cgroup that is not gshare's.
    #[must_use]
    pub fn is_lodged(&self) -> bool {
        self.keeper != Keeper::Own
    }

    /// The directory of the cgroup.
    #[must_use]
    pub fn dir(&self) -> &Path {
        &self.dir
    }

    /// The kernel's name of the cgroup, as in `/proc/<pid>/cgroup`.
    #[must_use]
    pub fn kernel_path(&self) -> &Path {
        &self.kernel_path
    }

    /// The owner and the number of the claim.
    #[must_use]
    pub fn place(&self) -> ClaimPlace {
        self.place
    }

    /// The kernel's id of the cgroup (inode number), as returned by `bpf_get_current_cgroup_id`.
    #[must_use]
    pub fn id(&self) -> u64 {
        self.id
    }

    /// Moves a process (all its threads) into the cgroup and checks that it arrived.
    ///
    /// Pass the `pidfd` if there is one: the pid alone may mean another process by now.
    ///
    /// # Errors
    /// [`CgroupError::Bound`] if it must stay in its cgroup, [`CgroupError::Vanished`] if it ended,
    /// [`CgroupError::NotMoved`] if it is elsewhere after the move, [`CgroupError::Io`] otherwise.
    /// the move, [`CgroupError::Io`] otherwise.
    pub fn move_process(&self, pid: i32, pidfd: Option<&PidFd>) -> Result<(), CgroupError> {
        let vanished = || CgroupError::Vanished {
            pid,
            cgroup: self.dir.clone(),
        };
        if pidfd.is_some_and(PidFd::has_exited) {
            return Err(vanished());
        }
        let before = path_of_pid(pid);
        if self.keeper == Keeper::Other {
            let place = before.as_deref().unwrap_or_default();
            return match Path::new(place).starts_with(&self.kernel_path) {
                true => Ok(()),
                false => Err(self.not_ours()),
            };
        }
        let bound = before.as_deref().and_then(|from| {
            let from = Path::new(from);
            self.ground.bound(from, &self.kernel_path, self.place.uid)
        });
        if let Some(bound) = bound {
            return Err(CgroupError::Bound { pid, bound });
        }
        self.move_number(pid, pidfd, before.as_deref())
    }

    /// The move itself. If the pid means another process by now, that process is moved back.
    fn move_number(
        &self,
        pid: i32,
        pidfd: Option<&PidFd>,
        before: Option<&str>,
    ) -> Result<(), CgroupError> {
        let vanished = || CgroupError::Vanished {
            pid,
            cgroup: self.dir.clone(),
        };
        let procs = match self.keeper {
            Keeper::Slice => format!("{INSIDE}/cgroup.procs"),
            _ => "cgroup.procs".to_owned(),
        };
        match self.write(&procs, &pid.to_string()) {
            Err(CgroupError::Io { source, .. }) if source.raw_os_error() == Some(libc::ESRCH) => {
                return Err(vanished());
            }
            other => other?,
        }
        // If the pidfd is alive now, the number meant this process all along.
        if pidfd.is_some_and(PidFd::has_exited) {
            self.put_back(pid, before);
            return Err(vanished());
        }
        let Ok(text) = fs::read_to_string(format!("/proc/{pid}/cgroup")) else {
            return Err(vanished());
        };
        let found = v2_path(&text).unwrap_or_default();
        if Path::new(found).starts_with(&self.kernel_path) {
            Ok(())
        } else {
            Err(CgroupError::NotMoved {
                pid,
                wanted: self.kernel_path.clone(),
                found: found.to_owned(),
            })
        }
    }

    /// Moves a process that was moved by mistake back to its earlier cgroup; a process younger than the look-up goes to
    /// its parent's, where it was born.
    fn put_back(&self, pid: i32, before: Option<&str>) {
        let at_home = |place: &str| Path::new(place).starts_with(&self.kernel_path);
        if !path_of_pid(pid).is_some_and(|place| at_home(&place)) {
            return;
        }
        let parent = crate::proc::stat(pid).and_then(|stat| path_of_pid(stat.ppid));
        let Ok(mount) = super::Mount::find() else {
            return;
        };
        let places = parent.as_deref().into_iter().chain(before);
        for place in places.filter(|place| !at_home(place)) {
            let moved = mount
                .dir_of(place)
                .is_some_and(|dir| fs::write(dir.join("cgroup.procs"), pid.to_string()).is_ok());
            if moved {
                return;
            }
        }
    }

    /// Pids of all members, in this cgroup and below (members may create cgroups).
    ///
    /// # Errors
    /// [`CgroupError::Io`], with `is_gone()` if the cgroup was removed.
    pub fn procs(&self) -> Result<Vec<i32>, CgroupError> {
        let mut pids = parse_pids(&self.read("cgroup.procs")?);
        for child in descendants(&self.dir) {
            // A child may vanish, or be threaded: then an ancestor lists its processes.
            if let Ok(text) = fs::read_to_string(child.join("cgroup.procs")) {
                pids.extend(parse_pids(&text));
            }
        }
        pids.sort_unstable();
        pids.dedup();
        Ok(pids)
    }

    /// Whether it holds live processes and whether it is frozen.
    ///
    /// # Errors
    /// [`CgroupError::Io`], with `is_gone()` if the cgroup was removed.
    pub fn events(&self) -> Result<CgroupEvents, CgroupError> {
        self.watch()?.read()
    }

    /// A watch on this cgroup alone; for many claims use [`super::TreeWatch`].
    ///
    /// # Errors
    /// [`CgroupError::Io`], with `is_gone()` if the cgroup was removed.
    pub fn watch(&self) -> Result<EventsWatch, CgroupError> {
        let name = "cgroup.events";
        let file = self.open_file(name, OFlag::O_RDONLY, "open")?;
        Ok(EventsWatch::new(file, self.dir.join(name)))
    }

    /// Asks the kernel to freeze or thaw all members, without waiting: `frozen` of [`ClaimCgroup::events`] tells when
    /// it is done.
    ///
    /// # Errors
    /// [`CgroupError::Io`], with `is_gone()` if the cgroup was removed.
    pub fn ask_frozen(&self, frozen: bool) -> Result<(), CgroupError> {
        if self.keeper == Keeper::Other {
            return Err(self.not_ours());
        }
        self.write("cgroup.freeze", if frozen { "1" } else { "0" })
    }

    /// Kills all members with SIGKILL, including processes forked meanwhile. Does not wait.
    ///
    /// # Errors
    /// [`CgroupError::Io`]; before Linux 5.14 the file does not exist.
    pub fn kill(&self) -> Result<(), CgroupError> {
        if self.keeper == Keeper::Other {
            return Err(self.not_ours());
        }
        self.write("cgroup.kill", "1")
    }

    /// Waits until no live process is left.
    ///
    /// # Errors
    /// [`CgroupError::Timeout`].
    pub fn wait_empty(&self, timeout: Duration) -> Result<(), CgroupError> {
        self.watch()?.wait(timeout, "empty", |e| !e.populated)
    }

    /// Removes the cgroup and the empty ones that members made below it. Another owner's cgroup stays.
    ///
    /// # Errors
    /// [`CgroupError::Busy`] while processes are in it; a removed cgroup is not an error.
    pub fn remove(&self) -> Result<(), CgroupError> {
        if self.keeper == Keeper::Other {
            return Ok(());
        }
        let own = match self.keeper {
            Keeper::Slice => self.dir.join(INSIDE),
            _ => self.dir.clone(),
        };
        let busy = |members| CgroupError::Busy {
            cgroup: self.dir.clone(),
            members,
        };
        if matches!(self.keeper, Keeper::Unit | Keeper::Slice) {
            match self.procs().map_or(0, |pids| pids.len()) {
                0 if self.keeper == Keeper::Unit => return Ok(()),
                0 => {}
                members => return Err(busy(members)),
            }
        }
        // systemd tries only once, and a process that is not listed any more may still hold its cgroup.
        let mut dirs = descendants(&own);
        dirs.reverse();
        dirs.push(own);
        for dir in dirs {
            match fs::remove_dir(&dir) {
                Ok(()) => {}
                Err(e) if e.kind() == io::ErrorKind::NotFound => {}
                Err(e) if e.raw_os_error() == Some(libc::EBUSY) => {
                    return Err(busy(self.procs().map_or(0, |pids| pids.len())));
                }
                Err(e) => return Err(CgroupError::io("remove", dir, e)),
            }
        }
        Ok(())
    }

    fn not_ours(&self) -> CgroupError {
        CgroupError::Foreign {
            cgroup: self.kernel_path.clone(),
        }
    }

    fn open_file(&self, name: &str, flags: OFlag, verb: &'static str) -> Result<File, CgroupError> {
        openat(&self.fd, name, flags | OFlag::O_CLOEXEC, Mode::empty())
            .map(File::from)
            .map_err(|e| CgroupError::io(verb, self.dir.join(name), e.into()))
    }

    fn read(&self, name: &str) -> Result<String, CgroupError> {
        let mut text = String::new();
        self.open_file(name, OFlag::O_RDONLY, "open")?
            .read_to_string(&mut text)
            .map_err(|e| CgroupError::io("read", self.dir.join(name), e))?;
        Ok(text)
    }

    fn write(&self, name: &str, value: &str) -> Result<(), CgroupError> {
        self.open_file(name, OFlag::O_WRONLY, "open")?
            .write_all(value.as_bytes())
            .map_err(|e| CgroupError::io("write", self.dir.join(name), e))
    }
}

impl AsFd for ClaimCgroup {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }
}

/// Whether the processor controller can be enabled below a cgroup.
fn has_cpu(dir: &Path) -> bool {
    let controllers = fs::read_to_string(dir.join("cgroup.controllers")).unwrap_or_default();
    controllers.split_whitespace().any(|c| c == "cpu")
}

/// Sum of the weights of the claims in a user's cgroup; `None` without weights.
pub(super) fn weights_in(home: &Path) -> Option<u32> {
    let claims = fs::read_dir(home).into_iter().flatten().flatten();
    let weight = claims.filter_map(|claim| {
        number(claim.file_name().to_str()?, "claim-")?;
        let text = fs::read_to_string(claim.path().join("cpu.weight")).ok()?;
        text.trim().parse::<u32>().ok()
    });
    weight
        .reduce(u32::saturating_add)
        .map(|sum| sum.clamp(1, 10_000))
}

pub(super) fn write_in(dir: &Path, name: &str, value: &str) -> Result<(), CgroupError> {
    let path = dir.join(name);
    let file = fs::OpenOptions::new().write(true).open(&path);
    file.and_then(|mut file| file.write_all(value.as_bytes()))
        .map_err(|e| CgroupError::io("write", path, e))
}

fn parse_pids(text: &str) -> Vec<i32> {
    // 0 is a process outside this pid namespace, which cannot be named.
    text.lines()
        .filter_map(|line| line.trim().parse().ok())
        .filter(|pid| *pid > 0)
        .collect()
}

/// All cgroups below `dir`, parents before children, without those that vanish meanwhile.
fn descendants(dir: &Path) -> Vec<PathBuf> {
    let mut found = Vec::new();
    let mut open = vec![dir.to_owned()];
    while let Some(dir) = open.pop() {
        let Ok(entries) = fs::read_dir(&dir) else {
            continue;
        };
        for entry in entries.flatten() {
            if entry.file_type().is_ok_and(|t| t.is_dir()) {
                found.push(entry.path());
                open.push(entry.path());
            }
        }
    }
    found
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A directory in the form of a cgroup.
    fn fake(files: &[(&str, &str)]) -> (tempfile::TempDir, ClaimCgroup) {
        let dir = tempfile::tempdir().unwrap();
        for (name, text) in files {
            let path = dir.path().join(name);
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::write(path, text).unwrap();
        }
        let place = ClaimPlace {
            uid: 1000,
            claim: 7,
        };
        let cgroup = opened(dir.path().into(), "/gshare/user-1000/claim-7".into(), place);
        (dir, cgroup)
    }

    fn opened(dir: PathBuf, kernel_path: PathBuf, place: ClaimPlace) -> ClaimCgroup {
        let mount = super::super::Mount {
            point: "/nowhere".into(),
            root: "/".into(),
        };
        let ground = Ground {
            mount,
            tree: "/gshare".into(),
            has_slices_limits: false,
        };
        ClaimCgroup::open(dir, kernel_path, place, ground).unwrap()
    }

    /// The kernel's interface according to cgroup-v2.rst, on plain files: they contain the last write.
    #[test]
    fn a_claim_has_processors_by_its_size_where_there_is_a_controller() {
        let tree = "user-1000/claim-7";
        let (root, _) = fake(&[
            ("cgroup.controllers", "cpu memory\n"),
            ("cgroup.subtree_control", ""),
            ("cgroup.procs", ""),
            ("user-1000/cgroup.controllers", "\n"),
            ("user-1000/cgroup.subtree_control", ""),
            ("user-1000/cgroup.procs", "7\n"),
            ("user-1000/holder/cgroup.procs", ""),
            ("user-1000/claim-7/cpu.weight", "100\n"),
            ("user-1000/claim-8/cpu.weight", "250\n"),
        ]);
        let read = |name: &str| fs::read_to_string(root.path().join(name)).unwrap();
        let place = ClaimPlace {
            uid: 1000,
            claim: 7,
        };
        let cgroup = opened(root.path().join(tree), "/x".into(), place);
        assert!(!cgroup.weigh(500).unwrap(), "the kernel did not pass it on");
        assert_eq!(read("cgroup.subtree_control"), "+cpu");
        assert_eq!(read("user-1000/claim-7/cpu.weight"), "100\n");
        // Now it does, as the kernel would have at once.
        fs::write(root.path().join("user-1000/cgroup.controllers"), "cpu\n").unwrap();
        assert!(cgroup.weigh(500).unwrap());
        assert_eq!(read("user-1000/cgroup.subtree_control"), "+cpu");
        assert_eq!(read("user-1000/holder/cgroup.procs"), "7");
        assert_eq!(read("user-1000/claim-7/cpu.weight").trim_end(), "500");
        assert_eq!(weights_in(&root.path().join("user-1000")), Some(750));
        // The weight of a unit that is not gshare's is its administrator's.
        assert!(!cgroup.lodged().weigh(1000).unwrap());
    }

    #[test]
    fn lists_members_of_the_whole_subtree() {
        let (_dir, cgroup) = fake(&[
            ("cgroup.procs", "12\n3\n0\n"),
            ("a/cgroup.procs", "40\n12\n"),
            ("a/b/cgroup.procs", "5\n"),
        ]);
        assert_eq!(cgroup.procs().unwrap(), [3, 5, 12, 40]);
    }

    #[test]
    fn a_number_that_means_another_process_by_now_is_put_back() {
        let own = std::process::id().cast_signed();
        let (Ok(mount), Some(home)) = (super::super::Mount::find(), path_of_pid(own)) else {
            println!("skipped: no cgroup v2");
            return;
        };
        let name = format!("gshare-test-again-{own}");
        let Some(dir) = mount.dir_of(&home).map(|dir| dir.join(&name)) else {
            println!("skipped: the own cgroup lies outside the mount");
            return;
        };
        if let Err(error) = fs::create_dir(&dir) {
            println!("skipped: no cgroup can be made: {error}");
            return;
        }
        let place = ClaimPlace { uid: 1, claim: 1 };
        let kernel_path = Path::new(&home).join(&name);
        let claim = opened(dir.clone(), kernel_path, place);
        // The pidfd is of a process that has ended, the number of another: as if the number had been reused.
        let ended = |mut child: std::process::Child| {
            let pidfd = PidFd::open(child.id().cast_signed()).unwrap().unwrap();
            child.kill().unwrap();
            child.wait().unwrap();
            pidfd
        };
        let sleep = || {
            std::process::Command::new("sleep")
                .arg("1000")
                .spawn()
                .unwrap()
        };
        let old = ended(sleep());
        let mut stranger = sleep();
        let pid = stranger.id().cast_signed();
        let moved = claim.move_number(pid, Some(&old), None);
        assert!(
            matches!(moved, Err(CgroupError::Vanished { .. })),
            "{moved:?}"
        );
        assert_eq!(path_of_pid(pid), Some(home));
        assert!(claim.procs().unwrap().is_empty());
        stranger.kill().unwrap();
        stranger.wait().unwrap();
        fs::remove_dir(&dir).unwrap();
    }

    #[test]
    fn reads_events() {
        let (_dir, cgroup) = fake(&[("cgroup.events", "populated 1\nfrozen 0\n")]);
        let events = cgroup.events().unwrap();
        assert!(events.populated);
        assert_eq!(events.frozen, Some(false));
    }

    #[test]
    fn names_what_is_wrong() {
        let (_dir, cgroup) = fake(&[("cgroup.events", "nonsense")]);
        let error = cgroup.events().unwrap_err().to_string();
        assert!(
            error.contains("cgroup.events") && error.contains("nonsense"),
            "{error}"
        );
        let error = cgroup.procs().unwrap_err();
        assert!(error.is_gone(), "{error}");
        assert!(error.to_string().contains("cgroup.procs"), "{error}");
    }

    #[test]
    fn freezing_writes_and_gives_up_in_time() {
        let (dir, cgroup) = fake(&[
            ("cgroup.events", "populated 1\nfrozen 0\n"),
            ("cgroup.freeze", ""),
            ("cgroup.kill", ""),
        ]);
        cgroup.ask_frozen(true).unwrap();
        let error = cgroup.wait_empty(Duration::from_millis(5)).unwrap_err();
        assert!(
            matches!(
                error,
                CgroupError::Timeout {
                    wanted: "empty",
                    ..
                }
            ),
            "{error}"
        );
        let read = |name: &str| fs::read_to_string(dir.path().join(name)).unwrap();
        assert_eq!(read("cgroup.freeze"), "1");
        cgroup.ask_frozen(false).unwrap();
        assert_eq!(read("cgroup.freeze"), "0");
        cgroup.kill().unwrap();
        assert_eq!(read("cgroup.kill"), "1");
    }
}
