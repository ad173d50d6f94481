//! New cgroups and sessions between two looks at the driver, such as a restarted service of cron's or a login at the
//! screen. The filter of `deny` must be attached to the former, and admit the latter, before one of their programs
//! opens a GPU, so the directories where they appear are watched.

use std::collections::BTreeSet;
use std::os::fd::AsFd;
use std::path::PathBuf;

use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use nix::sys::inotify::{AddWatchFlags, InitFlags, Inotify};
use tokio::sync::mpsc;

use crate::daemon::msg::Msg;

/// Events within this time are handled together.
const TOGETHER_MS: u16 = 10;

/// Notifies the service of everything that appears in or vanishes from `dirs`: at once, and again after a burst.
/// Missing directories are left out.
pub(crate) fn watch(
    dirs: &BTreeSet<PathBuf>,
    events: mpsc::UnboundedSender<Msg>,
) -> std::io::Result<()> {
    let inotify = Inotify::init(InitFlags::IN_CLOEXEC)?;
    let changes = AddWatchFlags::IN_CREATE
        | AddWatchFlags::IN_MOVED_TO
        | AddWatchFlags::IN_DELETE
        | AddWatchFlags::IN_ONLYDIR;
    for dir in dirs.iter().filter(|dir| dir.is_dir()) {
        inotify.add_watch(dir, changes)?;
    }
    let follow = move || {
        while inotify.read_events().is_ok() {
            if events.send(Msg::Places).is_err() {
                return;
            }
            let mut fds = [PollFd::new(inotify.as_fd(), PollFlags::POLLIN)];
            let mut more = false;
            while poll(&mut fds, PollTimeout::from(TOGETHER_MS)).is_ok_and(|ready| ready > 0) {
                more = true;
                if inotify.read_events().is_err() {
                    return;
                }
            }
            if more && events.send(Msg::Places).is_err() {
                return;
            }
        }
    };
    std::thread::Builder::new()
        .name("places".to_owned())
        .spawn(follow)
        .map(drop)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_appears_is_told_at_once() {
        let dir = tempfile::tempdir().unwrap();
        let (tx, mut rx) = mpsc::unbounded_channel();
        let dirs = BTreeSet::from([dir.path().to_owned(), PathBuf::from("/nonexistent")]);
        watch(&dirs, tx).unwrap();
        std::fs::create_dir(dir.path().join("cron.service")).unwrap();
        assert!(matches!(rx.blocking_recv(), Some(Msg::Places)));
        // logind writes a temporary file and renames it.
        let beside = tempfile::tempdir_in("/dev/shm").unwrap();
        let (tx, mut rx) = mpsc::unbounded_channel();
        watch(&BTreeSet::from([beside.path().to_owned()]), tx).unwrap();
        let text = beside.path().join(".#c1");
        std::fs::write(&text, "TYPE=x11").unwrap();
        std::fs::rename(&text, beside.path().join("c1")).unwrap();
        assert!(matches!(rx.blocking_recv(), Some(Msg::Places)));
    }
}
