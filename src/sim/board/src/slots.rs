//! Detection of dead processes: each process holds a kernel lock on one byte of `<board>.locks`.
//!
//! The locks are POSIX record locks. They belong to the process, a forked child does not inherit them, and the kernel
//! drops them whenever the process ends. Closing *any* descriptor of the file would drop them too, so each process
//! opens the file once and never closes it. Queries use `F_OFD_GETLK`, which also sees locks of the own process.
#![allow(unsafe_code, reason = "record locks go through fcntl")]

use std::fs::{File, OpenOptions};
use std::io;
use std::os::fd::{IntoRawFd, RawFd};
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::path::Path;
use std::sync::{Mutex, PoisonError};

/// First byte of the locks of opened GPUs, behind those of process rows.
const OPENED: usize = 4096;

/// A library of the driver that has a GPU open.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Opener {
    /// `libcuda.so.1`
    Cuda,
    /// `libnvidia-ml.so.1`
    Nvml,
}

impl Opener {
    fn byte(self, gpu: usize) -> usize {
        OPENED + gpu * 2 + usize::from(self == Self::Nvml)
    }
}

/// The lock file of one board, open for the rest of the process's life.
#[derive(Debug, Clone, Copy)]
pub(crate) struct SlotLocks {
    fd: RawFd,
}

/// Every lock file that this process has opened: device, inode, descriptor.
static OPEN: Mutex<Vec<(u64, u64, RawFd)>> = Mutex::new(Vec::new());

fn record(kind: i32, slot: usize) -> libc::flock {
    // SAFETY: flock is plain data, for which zero is a value.
    let mut l: libc::flock = unsafe { std::mem::zeroed() };
    l.l_type = kind as libc::c_short;
    l.l_whence = libc::SEEK_SET as libc::c_short;
    l.l_start = slot as libc::off_t;
    l.l_len = 1;
    l
}

impl SlotLocks {
    pub(crate) fn open(path: &Path) -> io::Result<SlotLocks> {
        let mut open = OPEN.lock().unwrap_or_else(PoisonError::into_inner);
        let meta = std::fs::metadata(path)?;
        let key = (meta.dev(), meta.ino());
        if let Some(known) = open.iter().find(|o| (o.0, o.1) == key) {
            return Ok(SlotLocks { fd: known.2 });
        }
        let file: File = OpenOptions::new()
            .read(true)
            .write(true)
            .custom_flags(libc::O_CLOEXEC)
            .open(path)?;
        let fd = file.into_raw_fd();
        open.push((key.0, key.1, fd));
        Ok(SlotLocks { fd })
    }

    /// Takes the lock of a slot for this process; false if another process holds it.
    pub(crate) fn take(self, slot: usize) -> bool {
        let l = record(libc::F_WRLCK, slot);
        // SAFETY: the descriptor stays open for the process's life; `l` is a valid flock.
        unsafe { libc::fcntl(self.fd, libc::F_SETLK, &raw const l) == 0 }
    }

    /// Releases the lock of a slot.
    pub(crate) fn give_back(self, slot: usize) {
        let l = record(libc::F_UNLCK, slot);
        // SAFETY: as in `take`.
        unsafe { libc::fcntl(self.fd, libc::F_SETLK, &raw const l) };
    }

    /// Records that this process has a GPU open; other processes may have it open, too.
    pub(crate) fn open_gpu(self, by: Opener, gpu: usize) {
        let l = record(libc::F_RDLCK, by.byte(gpu));
        // SAFETY: as in `take`.
        unsafe { libc::fcntl(self.fd, libc::F_SETLK, &raw const l) };
    }

    /// Undoes [`SlotLocks::open_gpu`].
    pub(crate) fn close_gpu(self, by: Opener, gpu: usize) {
        self.give_back(by.byte(gpu));
    }

    /// Pid of a process that has a GPU open, 0 if it is not visible from this pid namespace. `but_me` leaves out this
    /// process.
    pub(crate) fn opener(self, gpu: usize, but_me: bool) -> Option<i32> {
        let mut l = record(libc::F_WRLCK, Opener::Cuda.byte(gpu));
        l.l_len = 2;
        let query = if but_me {
            libc::F_GETLK
        } else {
            libc::F_OFD_GETLK
        };
        // SAFETY: as in `holder`.
        let rc = unsafe { libc::fcntl(self.fd, query, &raw mut l) };
        if rc != 0 {
            return Some(0);
        }
        (i32::from(l.l_type) != libc::F_UNLCK).then_some(l.l_pid.max(0))
    }

    /// Pid of the process that holds the lock of this slot, 0 if it is not visible from this pid namespace; `None` if
    /// the lock is free.
    pub(crate) fn holder(self, slot: usize) -> Option<i32> {
        let mut l = record(libc::F_WRLCK, slot);
        // SAFETY: as in `take`; F_OFD_GETLK wants l_pid to be 0, which `record` made it.
        let rc = unsafe { libc::fcntl(self.fd, libc::F_OFD_GETLK, &raw mut l) };
        if rc != 0 {
            // An error does not mean that the process is dead.
            return Some(0);
        }
        (i32::from(l.l_type) != libc::F_UNLCK).then_some(l.l_pid.max(0))
    }
}
