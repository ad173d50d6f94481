//! A handle on a process that never means another one.

use std::fs;
use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::os::unix::process::ExitStatusExt;
use std::process::ExitStatus;
use std::time::Instant;

use nix::poll::{PollFd, PollFlags, PollTimeout, poll};

use super::sys;

/// A pidfd. It turns readable when the process ends, so it fits tokio's `AsyncFd`.
#[derive(Debug)]
pub struct PidFd(OwnedFd);

impl PidFd {
    /// Opens the present process with this pid; `None` if there is none.
    ///
    /// # Errors
    /// The kernel's, for instance when no descriptor is left.
    pub fn open(pid: i32) -> io::Result<Option<Self>> {
        match sys::pidfd_open(pid) {
            Ok(fd) => Ok(Some(Self(fd))),
            // EINVAL: it is a thread, not a process (or not a valid pid at all).
            Err(e) if matches!(e.raw_os_error(), Some(libc::ESRCH | libc::EINVAL)) => Ok(None),
            Err(e) => Err(e),
        }
    }

    /// The process at the other end of a connected Unix socket, as it was at `connect`; `None` if
    /// it has ended and been reaped, or on kernels before 6.5 (then use [`PidFd::open`] with the
    /// pid of `SO_PEERCRED` at once after `accept`).
    ///
    /// # Errors
    /// The kernel's, for instance when no descriptor is left.
    pub fn of_peer(socket: impl AsFd) -> io::Result<Option<Self>> {
        match sys::peer_pidfd(socket.as_fd()) {
            Ok(fd) => Ok(Some(Self(fd))),
            Err(e)
                if matches!(
                    e.raw_os_error(),
                    Some(libc::ESRCH | libc::EINVAL | libc::ENODATA | libc::ENOPROTOOPT)
                ) =>
            {
                Ok(None)
            }
            Err(e) => Err(e),
        }
    }

    /// The pid in this process's pid namespace; `None` once it is reaped or if it lives in a namespace that is
    /// invisible here.
    #[must_use]
    pub fn pid(&self) -> Option<i32> {
        let path = format!("/proc/self/fdinfo/{}", self.0.as_raw_fd());
        let text = fs::read_to_string(path).ok()?;
        let field = text.lines().find_map(|line| line.strip_prefix("Pid:"))?;
        field.trim().parse().ok().filter(|pid| *pid > 0)
    }

    /// Whether the process has ended (also as a zombie).
    #[must_use]
    pub fn has_exited(&self) -> bool {
        let mut fds = [PollFd::new(self.0.as_fd(), PollFlags::POLLIN)];
        matches!(poll(&mut fds, PollTimeout::ZERO), Ok(1..))
    }

    /// Waits until the process has ended, or until this time; true if it has ended.
    #[must_use]
    pub fn ends(&self, until: Instant) -> bool {
        loop {
            let left = until.saturating_duration_since(Instant::now());
            let most = PollTimeout::try_from(left).unwrap_or(PollTimeout::MAX);
            let _ = poll(&mut [PollFd::new(self.0.as_fd(), PollFlags::POLLIN)], most);
            if self.has_exited() || left.is_zero() {
                return self.has_exited();
            }
        }
    }

    /// Exit code or signal of a process that [has exited](Self::has_exited). Read from `/proc/<pid>/stat` while it is a
    /// zombie, else from the handle (Linux 6.15). `None` if neither tells.
    #[must_use]
    pub fn exit_status(&self, process: super::ProcessKey) -> Option<ExitStatus> {
        let status = super::read::status_of_zombie(process)
            .or_else(|| sys::pidfd_exit(self.0.as_fd()).ok().flatten())?;
        Some(ExitStatus::from_raw(status))
    }

    /// Sends a signal; `false` if the process has ended.
    ///
    /// # Errors
    /// The kernel's, for instance without permission.
    pub fn signal(&self, signal: i32) -> io::Result<bool> {
        match sys::pidfd_send_signal(self.0.as_fd(), signal) {
            Ok(()) => Ok(true),
            Err(e) if e.raw_os_error() == Some(libc::ESRCH) => Ok(false),
            Err(e) => Err(e),
        }
    }
}

impl AsFd for PidFd {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
}

impl AsRawFd for PidFd {
    fn as_raw_fd(&self) -> std::os::fd::RawFd {
        self.0.as_raw_fd()
    }
}

/// The supplementary groups of the process at the other end of a connected Unix socket, as they were at
/// `connect`.
pub fn peer_groups(socket: impl AsFd) -> io::Result<Vec<u32>> {
    sys::peer_groups(socket.as_fd())
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::net::UnixStream;
    use std::process::{Command, Stdio};

    fn wait_exit(pidfd: &PidFd) -> bool {
        let mut fds = [PollFd::new(pidfd.as_fd(), PollFlags::POLLIN)];
        poll(&mut fds, PollTimeout::from(5000_u16)) == Ok(1)
    }

    #[test]
    fn says_how_a_process_ended() {
        let ended = |script: &str| {
            let child = Command::new("sh").args(["-c", script]).spawn().unwrap();
            let pid = child.id().cast_signed();
            let pidfd = PidFd::open(pid).unwrap().unwrap();
            let key = super::super::key(pid).unwrap();
            assert!(wait_exit(&pidfd));
            (child, pidfd, key)
        };
        let (mut child, pidfd, key) = ended("exit 3");
        // Once before the parent has waited for it, and once after.
        assert_eq!(pidfd.exit_status(key).unwrap().code(), Some(3));
        let known = child.wait().unwrap();
        let said = pidfd.exit_status(key);
        assert!(said.is_none_or(|status| status == known), "{said:?}");
        let (mut child, pidfd, key) = ended("kill -TERM $$");
        assert_eq!(pidfd.exit_status(key).unwrap().signal(), Some(15));
        child.wait().unwrap();
    }

    #[test]
    fn follows_a_process_to_its_end() {
        let mut child = Command::new("cat")
            .stdin(Stdio::piped())
            .stdout(Stdio::null())
            .spawn()
            .unwrap();
        let pid = child.id().cast_signed();
        let pidfd = PidFd::open(pid).unwrap().unwrap();
        assert_eq!(pidfd.pid(), Some(pid));
        assert!(!pidfd.has_exited());
        assert!(pidfd.signal(libc::SIGKILL).unwrap());
        assert!(wait_exit(&pidfd));
        assert!(pidfd.has_exited(), "a zombie has ended");
        child.wait().unwrap();
        assert_eq!(pidfd.pid(), None);
        assert!(!pidfd.signal(libc::SIGKILL).unwrap());
        assert!(PidFd::open(-1).unwrap().is_none());
    }

    #[test]
    fn knows_the_peer_of_a_socket() {
        let (a, _b) = UnixStream::pair().unwrap();
        match PidFd::of_peer(&a).unwrap() {
            Some(peer) => assert_eq!(peer.pid(), Some(std::process::id().cast_signed())),
            None => println!("skipped: this kernel has no SO_PEERPIDFD"),
        }
    }
}
