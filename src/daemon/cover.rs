//! Replacement of the driver's files under running claims. A file that is renamed over one with a mount on it undoes
//! the mount in every other mount namespace, so strict members would load the new driver directly. The files are
//! watched; claims whose members lack a mount cannot open GPUs until the mounts are restored.

use std::collections::BTreeSet;
use std::fs::{self, File};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::process::Stdio;

use anyhow::Context;
use gshare_abi::wire::Bind;
use gshare_config::Config;
use gshare_core::ClaimId;
use gshare_enforcer::proc;
use nix::errno::Errno;
use nix::mount::{MntFlags, MsFlags, mount, umount2};
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use nix::sched::{CloneFlags, setns};
use nix::sys::inotify::{AddWatchFlags, InitFlags, Inotify};
use tokio::sync::mpsc;

use super::command::{Command, LimitCommand};
use super::driver::Driver;
use super::effects::Effects;
use super::msg::Msg;
use super::strict::{LibDirs, VIEW};
use super::world::World;
use super::{gpus, tell};

/// Hidden first argument of the process that restores the mounts in a member's namespace.
pub const COVER_ARGUMENT: &str = "__cover";
/// The files count as settled once the directories have been quiet for this long.
const QUIET_MS: u16 = 300;
/// Beginnings of the relevant file names.
const NAMES: [&str; 2] = ["libcuda.so", "libnvidia-ml.so"];

/// Tells the service of every change of the driver's files in `dirs`: immediately, and once they have settled.
pub(super) fn watch(
    dirs: &BTreeSet<PathBuf>,
    events: mpsc::UnboundedSender<Msg>,
) -> std::io::Result<()> {
    let inotify = Inotify::init(InitFlags::IN_CLOEXEC)?;
    let changes = AddWatchFlags::IN_CREATE
        | AddWatchFlags::IN_MOVE
        | AddWatchFlags::IN_DELETE
        | AddWatchFlags::IN_CLOSE_WRITE
        | AddWatchFlags::IN_DELETE_SELF
        | AddWatchFlags::IN_MOVE_SELF;
    for dir in dirs {
        inotify.add_watch(dir, changes)?;
    }
    let follow = move || {
        while let Ok(seen) = inotify.read_events() {
            let ours = |name: &std::ffi::OsString| {
                let name = name.to_string_lossy();
                NAMES.iter().any(|stem| name.starts_with(stem))
            };
            // An event without a name is about the directory itself.
            if !seen.iter().any(|e| e.name.as_ref().is_none_or(ours)) {
                continue;
            }
            if events.send(Msg::DriverFiles).is_err() {
                return;
            }
            let mut fds = [PollFd::new(
                std::os::fd::AsFd::as_fd(&inotify),
                PollFlags::POLLIN,
            )];
            while poll(&mut fds, PollTimeout::from(QUIET_MS)).is_ok_and(|ready| ready > 0) {
                if inotify.read_events().is_err() {
                    return;
                }
            }
            let _ = events.send(Msg::DriverFiles);
        }
    };
    std::thread::Builder::new()
        .name("driver files".to_owned())
        .spawn(follow)
        .map(drop)
}

/// The directories of the driver's files, and of links to them.
fn dirs_of(binds: &[Bind], libcuda: &Path, nvml: &Path, own: &LibDirs) -> BTreeSet<PathBuf> {
    let places = binds
        .iter()
        .flat_map(|b| [PathBuf::from(&b.from), PathBuf::from(&b.on)]);
    let files = [libcuda, nvml].map(|file| (file.to_owned(), file.canonicalize().ok()));
    let files = files
        .into_iter()
        .flat_map(|(link, file)| [Some(link), file]);
    let places = places.chain(files.flatten());
    let dirs = places.filter_map(|place| Some(place.parent()?.to_owned()));
    dirs.filter(|dir| !dir.starts_with(&own.preload)).collect()
}

/// Commands for claims whose members must have these mounts: a claim with a member that lacks one cannot open GPUs
/// until it is restored.
pub(crate) fn look(world: &World<'_>, expected: &[Bind]) -> Vec<Command> {
    let mut out = Vec::new();
    for (&id, live) in world.claims.iter() {
        if !live.record.runs.strict && !live.record.origin.adopted {
            continue;
        }
        let bare = bare_members(world, id, expected);
        out.extend(match (bare.is_empty(), live.uncovered) {
            (true, true) => Some(Command::Limits(LimitCommand::Cover(id))),
            (false, false) => Some(Command::Limits(LimitCommand::Uncover(id))),
            _ => None,
        });
        // While the driver is replaced only in part there is no plan for mounts.
        if !bare.is_empty() && !world.host.driver.strict.binds().is_empty() {
            out.push(Command::Limits(LimitCommand::Remount {
                id,
                bare,
                expected: expected.to_vec(),
            }));
        }
    }
    out
}

/// Restores the mounts for these members of a claim. True if none lacks one afterwards.
pub(crate) fn remount(world: &World<'_>, id: ClaimId, bare: &[i32], expected: &[Bind]) -> bool {
    for &pid in bare {
        if let Err(error) = cover_again(world.host.driver.strict.binds(), pid) {
            tracing::warn!(%id, pid, "cannot mount gshare's libraries over the driver's again: {error:#}");
        }
    }
    bare_members(world, id, expected).is_empty()
}

/// Members of a claim lack a mount: its new programs cannot open a GPU.
pub(crate) fn uncover(with: &mut Effects, id: ClaimId) -> Vec<Command> {
    let rules = gpus::rules(&with.world(), None, []);
    let Some(live) = with.claims.get_mut(&id) else {
        return Vec::new();
    };
    live.uncovered = true;
    if let Err(error) = with.host.fences.set(live.cgroup.as_ref(), &rules) {
        tracing::error!(%id, %error, "cannot stop new programs of the claim from opening its GPUs");
    }
    let text = format!(
        "the NVIDIA driver was replaced while {id} runs: new programs in it get no GPU; those that have one \
         continue"
    );
    vec![Command::TellOwner { id, text }]
}

/// They have the mount again. The GPUs of a claim that is ending stay closed.
pub(crate) fn undo_uncover(with: &mut Effects, id: ClaimId) -> Vec<Command> {
    let Some(live) = with.claims.get_mut(&id) else {
        return Vec::new();
    };
    live.uncovered = false;
    let ended = live.ending.as_ref().is_some_and(|e| e.kill_at.is_some());
    if ended || !gpus::open_again(with, id) {
        return Vec::new();
    }
    let text = format!(
        "the limits of {id} now apply with the new driver: new programs in it get their GPU again"
    );
    vec![Command::TellOwner { id, text }]
}

impl Driver {
    /// The driver's files have changed: stages proxies for the new ones. Gives the mounts that members must have, if
    /// claims are strict.
    pub(crate) fn files_changed(&mut self, config: &Config, socket: &Path) -> Option<Vec<Bind>> {
        self.find_again(config, socket);
        if !self.strict.on {
            return None;
        }
        let before = self.strict.binds().to_vec();
        self.stage_strict(config, socket);
        Some(match self.strict.binds() {
            [] => before,
            binds => binds.to_vec(),
        })
    }
}

/// Members that lack a mount, one for each mount namespace of the launcher's. Containers' namespaces are left alone,
/// and so is a launcher that has been moved and has no namespace yet. The mark of a launcher's namespace is a mount
/// in gshare's directory, which no change of the driver's files undoes.
fn bare_members(world: &World<'_>, id: ClaimId, expected: &[Bind]) -> Vec<i32> {
    let members = tell::members_now(world, id);
    let sign = world
        .host
        .driver
        .dirs
        .driver
        .join(VIEW)
        .display()
        .to_string();
    let mut seen = BTreeSet::new();
    let mut bare = Vec::new();
    for process in members {
        let pid = process.pid;
        let space = fs::metadata(format!("/proc/{pid}/ns/mnt")).map(|m| (m.dev(), m.ino()));
        // A process that cannot be inspected has ended.
        let (Ok(space), Some(points)) = (space, proc::mount_points(pid)) else {
            continue;
        };
        let whole = expected.iter().all(|bind| points.contains(&bind.on));
        if seen.insert(space) && points.contains(&sign) && !whole {
            bare.push(pid);
        }
    }
    bare
}

/// Mounts in a member's namespace, by a separate process, and only in namespaces that the launcher made: those of
/// users are theirs.
fn cover_again(binds: &[Bind], pid: i32) -> anyhow::Result<()> {
    let space = |pid: &str| fs::metadata(format!("/proc/{pid}/ns/user")).map(|m| m.ino());
    anyhow::ensure!(
        space(&pid.to_string())? == space("self")?,
        "process {pid} is in a user namespace of its own"
    );
    let view = File::open(format!("/proc/{pid}/ns/mnt"))?;
    let bind = |b: &Bind| {
        [
            b.from.clone(),
            b.device.to_string(),
            b.inode.to_string(),
            b.on.clone(),
        ]
    };
    let output = std::process::Command::new(std::env::current_exe()?)
        .arg(COVER_ARGUMENT)
        .args(binds.iter().flat_map(bind))
        .stdin(Stdio::from(view))
        .stdout(Stdio::null())
        .output()?;
    let why = String::from_utf8_lossy(&output.stderr);
    anyhow::ensure!(output.status.success(), "{}", why.trim());
    Ok(())
}

impl Driver {
    /// Watches the driver's files: the proxies copy their names, and strict commands depend on mounts over them.
    pub(crate) fn watch_files(&self, events: mpsc::UnboundedSender<Msg>) {
        let Ok(libcuda) = &self.libcuda else {
            return;
        };
        let dirs = dirs_of(self.strict.binds(), libcuda, &self.nvml, &self.dirs);
        if let Err(error) = watch(&dirs, events) {
            tracing::error!(%error, "cannot watch the driver's files, so gshare notices a new driver only when the \
                service restarts");
        }
    }
}

/// Whether this is the mount that marks a namespace of the launcher; it is never undone.
fn is_sign(bind: &Bind) -> bool {
    Path::new(&bind.on).file_name() == Some(VIEW.as_ref())
}

/// The process that makes the mounts; its standard input is the mount namespace.
pub fn cover(arguments: &[String]) -> anyhow::Result<()> {
    let bind = |[from, device, inode, on]: &[String; 4]| -> anyhow::Result<Bind> {
        Ok(Bind {
            from: from.clone(),
            device: device.parse()?,
            inode: inode.parse()?,
            on: on.clone(),
        })
    };
    let (binds, rest) = arguments.as_chunks();
    anyhow::ensure!(rest.is_empty(), "wrong number of arguments");
    let binds: Vec<Bind> = binds.iter().map(bind).collect::<anyhow::Result<_>>()?;
    setns(std::io::stdin(), CloneFlags::CLONE_NEWNS).context("cannot enter the mount namespace")?;
    let is = |bind: &Bind, path: &str| -> bool {
        fs::symlink_metadata(path).is_ok_and(|m| (m.dev(), m.ino()) == (bind.device, bind.inode))
    };
    for bind in &binds {
        for path in [&bind.from, &bind.on] {
            gshare_abi::trusted(Path::new(path)).map_err(anyhow::Error::msg)?;
        }
    }
    // Mount everything again: the driver in gshare's directory may have no name any more, and nothing can be mounted
    // over it then; and a proxy mounted over the new driver hides it. The claim opens no GPU meanwhile.
    for bind in binds
        .iter()
        .filter(|bind| !is(bind, &bind.on) || !is_sign(bind))
    {
        loop {
            match umount2(
                bind.on.as_str(),
                MntFlags::MNT_DETACH | MntFlags::UMOUNT_NOFOLLOW,
            ) {
                Ok(()) => {}
                Err(Errno::EINVAL) => break,
                Err(error) => {
                    return Err(error).with_context(|| format!("cannot unmount {}", bind.on));
                }
            }
        }
    }
    for bind in &binds {
        if is(bind, &bind.on) {
            continue;
        }
        anyhow::ensure!(
            is(bind, &bind.from),
            "{} is a different file in that mount namespace",
            bind.from
        );
        let none: Option<&str> = None;
        mount(
            Some(bind.from.as_str()),
            bind.on.as_str(),
            none,
            MsFlags::MS_BIND,
            none,
        )
        .with_context(|| format!("cannot mount {} over {}", bind.from, bind.on))?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_changed_file_of_the_driver_is_told_twice_and_others_are_not() {
        let dir = tempfile::tempdir().expect("made");
        let (tx, mut rx) = mpsc::unbounded_channel();
        watch(&BTreeSet::from([dir.path().to_owned()]), tx).expect("watched");
        fs::write(dir.path().join("libother.so"), "").expect("written");
        fs::write(dir.path().join("libcuda.so.1"), "").expect("written");
        for _ in 0..2 {
            let msg = rx.blocking_recv();
            assert!(matches!(msg, Some(Msg::DriverFiles)));
        }
        fs::rename(
            dir.path().join("libother.so"),
            dir.path().join("libnvidia-ml.so.1"),
        )
        .expect("renamed");
        assert!(matches!(rx.blocking_recv(), Some(Msg::DriverFiles)));
    }
}
