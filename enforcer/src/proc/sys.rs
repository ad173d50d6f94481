//! Calls about processes that have no safe wrapper.
#![allow(unsafe_code, reason = "these system calls have no safe wrapper")]

use std::io;
use std::os::fd::{AsRawFd, BorrowedFd, FromRawFd, OwnedFd, RawFd};

/// Drops pages of a private file mapping from memory. The caller has checked that none of them was written to.
pub(super) fn drop_clean_pages(range: std::ops::Range<usize>) -> io::Result<()> {
    let address = std::ptr::with_exposed_provenance_mut::<libc::c_void>(range.start);
    // SAFETY: the pages are equal to the file's, whose inode the mapping keeps: the next access reads them again.
    let result = unsafe { libc::madvise(address, range.len(), libc::MADV_DONTNEED) };
    match result {
        0 => Ok(()),
        _ => Err(io::Error::last_os_error()),
    }
}

/// Makes all threads share one heap. Otherwise each has its own, mostly unused; the service's threads mostly wait.
pub fn share_one_heap() {
    // SAFETY: the call sets a number of the allocator and touches no memory of ours.
    #[cfg(target_env = "gnu")]
    unsafe {
        libc::mallopt(libc::M_ARENA_MAX, 1);
    }
}

/// Returns free heap memory to the kernel.
pub fn give_back_heap() {
    // SAFETY: the allocator takes its own lock and gives back pages that nobody has.
    #[cfg(target_env = "gnu")]
    unsafe {
        libc::malloc_trim(0);
    }
}

pub(super) fn pidfd_open(pid: i32) -> io::Result<OwnedFd> {
    // SAFETY: the call takes two integers and touches no memory of ours.
    let fd = unsafe { libc::syscall(libc::SYS_pidfd_open, pid, 0) };
    owned(fd)
}

/// The pidfd of the process that connected (or made the pair), `SO_PEERPIDFD`, Linux 6.5.
pub(super) fn peer_pidfd(socket: BorrowedFd<'_>) -> io::Result<OwnedFd> {
    let mut fd: RawFd = -1;
    let mut length = size_of::<RawFd>() as libc::socklen_t;
    // SAFETY: `fd` and `length` are live locals, and `length` holds the true size of `fd`.
    let result = unsafe {
        libc::getsockopt(
            socket.as_raw_fd(),
            libc::SOL_SOCKET,
            libc::SO_PEERPIDFD,
            std::ptr::from_mut(&mut fd).cast(),
            &raw mut length,
        )
    };
    owned(if result == 0 { fd.into() } else { -1 })
}

/// The supplementary groups of the process that connected, at that time (`SO_PEERGROUPS`, Linux 4.13).
pub(super) fn peer_groups(socket: BorrowedFd<'_>) -> io::Result<Vec<libc::gid_t>> {
    let mut gids: Vec<libc::gid_t> = vec![0; 64];
    loop {
        let mut length = size_of_val(gids.as_slice()) as libc::socklen_t;
        // SAFETY: `gids` holds `length` writable bytes, and both are live locals.
        let result = unsafe {
            libc::getsockopt(
                socket.as_raw_fd(),
                libc::SOL_SOCKET,
                libc::SO_PEERGROUPS,
                gids.as_mut_ptr().cast(),
                &raw mut length,
            )
        };
        let needed = length as usize / size_of::<libc::gid_t>();
        if result == 0 {
            gids.truncate(needed);
            return Ok(gids);
        }
        let error = io::Error::last_os_error();
        // The kernel has returned the number needed.
        if error.raw_os_error() != Some(libc::ERANGE) || needed <= gids.len() {
            return Err(error);
        }
        gids.resize(needed, 0);
    }
}

pub(super) fn pidfd_send_signal(pidfd: BorrowedFd<'_>, signal: i32) -> io::Result<()> {
    let no_info = std::ptr::null::<libc::siginfo_t>();
    // SAFETY: a null siginfo is allowed; the rest are integers.
    let result = unsafe {
        libc::syscall(
            libc::SYS_pidfd_send_signal,
            pidfd.as_raw_fd(),
            signal,
            no_info,
            0,
        )
    };
    if result == 0 {
        Ok(())
    } else {
        Err(io::Error::last_os_error())
    }
}

/// The wait status of a reaped process (`PIDFD_GET_INFO` with `PIDFD_INFO_EXIT`, Linux 6.15). `None` if it has not been
/// reaped yet.
pub(super) fn pidfd_exit(pidfd: BorrowedFd<'_>) -> io::Result<Option<i32>> {
    // SAFETY: the structure is integers alone, of which zeros are a value.
    let mut info: libc::pidfd_info = unsafe { std::mem::zeroed() };
    info.mask = u64::from(libc::PIDFD_INFO_EXIT);
    // SAFETY: the request carries the size of the structure, which lives through the call; the kernel writes no more.
    let result = unsafe { libc::ioctl(pidfd.as_raw_fd(), libc::PIDFD_GET_INFO, &raw mut info) };
    if result != 0 {
        return Err(io::Error::last_os_error());
    }
    let known = info.mask & u64::from(libc::PIDFD_INFO_EXIT) != 0;
    Ok(known.then_some(info.exit_code))
}

/// `NS_GET_PARENT` and `NS_GET_OWNER_UID` (ioctl_nsfs(2)).
const NS_GET_PARENT: libc::Ioctl = 0xb702;
const NS_GET_OWNER_UID: libc::Ioctl = 0xb704;

pub(super) fn parent_namespace(namespace: BorrowedFd<'_>) -> io::Result<OwnedFd> {
    // SAFETY: the request takes no argument and touches no memory of ours.
    let fd = unsafe { libc::ioctl(namespace.as_raw_fd(), NS_GET_PARENT) };
    owned(fd.into())
}

pub(super) fn namespace_owner(namespace: BorrowedFd<'_>) -> io::Result<libc::uid_t> {
    let mut uid: libc::uid_t = 0;
    // SAFETY: `uid` is a live local of the type that the request writes.
    let result = unsafe { libc::ioctl(namespace.as_raw_fd(), NS_GET_OWNER_UID, &raw mut uid) };
    match result {
        0 => Ok(uid),
        _ => Err(io::Error::last_os_error()),
    }
}

/// Makes SIGPIPE end this process, for the moment before exec: the runtime ignores it, and a program would inherit that.
pub fn end_by_sigpipe() {
    // SAFETY: the default action needs no handler.
    unsafe { libc::signal(libc::SIGPIPE, libc::SIG_DFL) };
}

fn owned(fd: libc::c_long) -> io::Result<OwnedFd> {
    match RawFd::try_from(fd) {
        // SAFETY: the kernel has just handed out this descriptor, and nothing else owns it.
        Ok(fd @ 0..) => Ok(unsafe { OwnedFd::from_raw_fd(fd) }),
        _ => Err(io::Error::last_os_error()),
    }
}
