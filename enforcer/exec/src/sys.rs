//! System calls that have no safe wrapper.
#![allow(
    unsafe_code,
    reason = "no safe wrapper exists for capabilities and raw descriptors"
)]

use std::io;
use std::os::fd::{FromRawFd, OwnedFd, RawFd};

/// CAP_SYS_ADMIN, the capability that mounts need.
pub(crate) const SYS_ADMIN: u32 = 21;

const VERSION_3: u32 = 0x2008_0522;

#[repr(C)]
struct Header {
    version: u32,
    pid: i32,
}

#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Half {
    effective: u32,
    permitted: u32,
    inheritable: u32,
}

/// The capability sets of this thread, the only one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Sets([Half; 2]);

impl Sets {
    /// The thread's present capabilities.
    pub(crate) fn now() -> io::Result<Self> {
        let mut header = Header {
            version: VERSION_3,
            pid: 0,
        };
        let mut sets = Self([Half::default(); 2]);
        // SAFETY: version 3 writes two halves; both pointers are to live locals of that layout.
        let result =
            unsafe { libc::syscall(libc::SYS_capget, &raw mut header, sets.0.as_mut_ptr()) };
        if result == 0 {
            Ok(sets)
        } else {
            Err(io::Error::last_os_error())
        }
    }

    pub(crate) fn set(&self) -> io::Result<()> {
        let mut header = Header {
            version: VERSION_3,
            pid: 0,
        };
        // SAFETY: as for `now`; the kernel only reads.
        let result = unsafe { libc::syscall(libc::SYS_capset, &raw mut header, self.0.as_ptr()) };
        if result == 0 {
            Ok(())
        } else {
            Err(io::Error::last_os_error())
        }
    }

    pub(crate) fn may(&self, capability: u32) -> bool {
        self.0[0].permitted & (1 << capability) != 0
    }

    /// The same with one of the first 32 capabilities effective.
    pub(crate) fn raised(mut self, capability: u32) -> Self {
        self.0[0].effective |= 1 << capability;
        self
    }

    /// Nothing permitted or effective. The inheritable set was the caller's own and grants nothing by itself: it stays.
    pub(crate) fn dropped(mut self) -> Self {
        for half in &mut self.0 {
            half.effective = 0;
            half.permitted = 0;
        }
        self
    }

    pub(crate) fn none(&self) -> bool {
        self.0
            .iter()
            .all(|half| half.effective == 0 && half.permitted == 0)
    }
}

/// Empties the ambient set, as the kernel did when it gave this program its capability.
pub(crate) fn clear_ambient() -> io::Result<()> {
    // SAFETY: takes integers.
    let result = unsafe {
        libc::prctl(
            libc::PR_CAP_AMBIENT,
            libc::PR_CAP_AMBIENT_CLEAR_ALL,
            0,
            0,
            0,
        )
    };
    if result == 0 {
        Ok(())
    } else {
        Err(io::Error::last_os_error())
    }
}

/// Takes over a descriptor that the caller left open for this program; `None` if the number is not open.
pub(crate) fn inherited(fd: RawFd) -> Option<OwnedFd> {
    // SAFETY: takes an integer.
    let open = fd > 2 && unsafe { libc::fcntl(fd, libc::F_GETFD) } != -1;
    // SAFETY: open, and nothing in this program has opened a descriptor that it still owns.
    open.then(|| unsafe { OwnedFd::from_raw_fd(fd) })
}

/// The seals of a memfd; an error for any other file.
pub(crate) fn seals(fd: RawFd) -> io::Result<i32> {
    // SAFETY: F_GET_SEALS takes no argument.
    match unsafe { libc::fcntl(fd, libc::F_GET_SEALS) } {
        -1 => Err(io::Error::last_os_error()),
        seals => Ok(seals),
    }
}

/// Major of the character device behind a descriptor.
pub(crate) fn character_major(fd: RawFd) -> Option<u64> {
    // SAFETY: stat is plain data for which zero is valid.
    let mut found: libc::stat = unsafe { std::mem::zeroed() };
    // SAFETY: `found` is valid for one stat.
    let result = unsafe { libc::fstat(fd, &raw mut found) };
    let device = result == 0 && found.st_mode & libc::S_IFMT == libc::S_IFCHR;
    device.then(|| libc::major(found.st_rdev).into())
}

/// Makes SIGPIPE end the command: this program's runtime ignores it, and a command would inherit that.
pub(crate) fn end_by_sigpipe() {
    // SAFETY: the default action needs no handler.
    unsafe { libc::signal(libc::SIGPIPE, libc::SIG_DFL) };
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sets_are_read_and_dropped_on_paper() {
        let mut sets = Sets([Half::default(); 2]);
        assert!(sets.none() && !sets.may(SYS_ADMIN));
        sets.0[0].permitted = 1 << SYS_ADMIN;
        sets.0[1].inheritable = 7;
        assert!(sets.may(SYS_ADMIN));
        let raised = sets.raised(SYS_ADMIN);
        assert_eq!(raised.0[0].effective, 1 << SYS_ADMIN);
        assert!(!raised.none());
        let dropped = raised.dropped();
        assert!(dropped.none());
        assert_eq!(dropped.0[1].inheritable, 7);
        assert!(Sets::now().is_ok());
    }

    #[test]
    fn only_open_descriptors_above_the_standard_ones_are_taken() {
        assert!(inherited(-1).is_none());
        assert!(inherited(2).is_none());
        assert!(inherited(1_000_000).is_none());
        let null = std::fs::File::open("/dev/null").unwrap();
        let number = std::os::fd::AsRawFd::as_raw_fd(&null);
        assert_eq!(character_major(number), Some(1));
        assert!(seals(number).is_err());
    }
}
