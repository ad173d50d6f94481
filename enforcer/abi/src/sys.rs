//! System calls of both sides: mappings, memfds, descriptor passing, clocks.

use std::{
    ffi::CString,
    io,
    mem::MaybeUninit,
    os::{
        fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd, OwnedFd, RawFd},
        unix::net::UnixStream,
    },
    ptr::NonNull,
    sync::atomic::AtomicU32,
};

/// A shared mapping of one page structure. The structures consist of atomics only, so a shared
/// reference to memory that other processes write is sound.
#[derive(Debug)]
pub(crate) struct Mapping<T> {
    at: NonNull<T>,
}

// SAFETY: the mapped structures are made of atomics, and the mapping lives until drop.
unsafe impl<T: Sync> Send for Mapping<T> {}
// SAFETY: as above; `&Mapping` only hands out `&T`.
unsafe impl<T: Sync> Sync for Mapping<T> {}

impl<T> Mapping<T> {
    /// Maps the start of `fd`, which must be at least as long as `T`.
    pub(crate) fn new(fd: BorrowedFd<'_>, writable: bool) -> io::Result<Self> {
        let protection = if writable {
            libc::PROT_READ | libc::PROT_WRITE
        } else {
            libc::PROT_READ
        };
        // SAFETY: a fresh mapping at an address of the kernel's choice touches no existing memory.
        let at = unsafe {
            libc::mmap(
                std::ptr::null_mut(),
                size_of::<T>(),
                protection,
                libc::MAP_SHARED,
                fd.as_raw_fd(),
                0,
            )
        };
        if at == libc::MAP_FAILED {
            return Err(io::Error::last_os_error());
        }
        NonNull::new(at.cast())
            .map(|at| Self { at })
            .ok_or_else(|| io::Error::other("mmap gave address 0"))
    }

    pub(crate) fn get(&self) -> &T {
        // SAFETY: the mapping covers a whole `T`, is page-aligned, lives as long as `self`, and `T`
        // consists of atomics, for which any bytes are valid.
        unsafe { self.at.as_ref() }
    }

    /// Keeps the mapping for the rest of the process.
    pub(crate) fn leak(self) -> &'static T {
        let at = self.at;
        std::mem::forget(self);
        // SAFETY: as in `get`; nothing unmaps it any more.
        unsafe { at.as_ref() }
    }
}

impl<T> Drop for Mapping<T> {
    fn drop(&mut self) {
        // SAFETY: `at` came from mmap with this length, and no reference outlives `self`.
        unsafe { libc::munmap(self.at.as_ptr().cast(), size_of::<T>()) };
    }
}

/// Length of the file behind a descriptor, in bytes.
pub(crate) fn file_bytes(fd: BorrowedFd<'_>) -> io::Result<u64> {
    let mut stat = MaybeUninit::<libc::stat>::uninit();
    // SAFETY: `stat` is valid for one `struct stat`.
    if unsafe { libc::fstat(fd.as_raw_fd(), stat.as_mut_ptr()) } != 0 {
        return Err(io::Error::last_os_error());
    }
    // SAFETY: fstat succeeded and filled it.
    let stat = unsafe { stat.assume_init() };
    Ok(u64::try_from(stat.st_size).unwrap_or(0))
}

/// A memory file that can be sealed, closed at exec. Called by number: glibc 2.17 has no function for it.
pub fn memfd(name: &str) -> io::Result<OwnedFd> {
    let name = CString::new(name)?;
    let flags = libc::MFD_CLOEXEC | libc::MFD_ALLOW_SEALING;
    // Kernels before 6.3 do not know MFD_NOEXEC_SEAL.
    for flags in [flags | libc::MFD_NOEXEC_SEAL, flags] {
        // SAFETY: `name` is a NUL-terminated string.
        let fd = unsafe { libc::syscall(libc::SYS_memfd_create, name.as_ptr(), flags) };
        if let Ok(fd @ 0..) = i32::try_from(fd) {
            // SAFETY: the kernel just gave this descriptor to us alone.
            return Ok(unsafe { OwnedFd::from_raw_fd(fd) });
        }
    }
    Err(io::Error::last_os_error())
}

/// Seals that fix a usage page's length, and the seals themselves.
pub(crate) const SEALS: i32 = libc::F_SEAL_SHRINK | libc::F_SEAL_GROW | libc::F_SEAL_SEAL;

pub(crate) fn seal(fd: BorrowedFd<'_>) -> io::Result<()> {
    // SAFETY: F_ADD_SEALS takes an integer.
    match unsafe { libc::fcntl(fd.as_raw_fd(), libc::F_ADD_SEALS, SEALS) } {
        0 => Ok(()),
        _ => Err(io::Error::last_os_error()),
    }
}

pub(crate) fn seals(fd: BorrowedFd<'_>) -> io::Result<i32> {
    // SAFETY: F_GET_SEALS takes no argument.
    match unsafe { libc::fcntl(fd.as_raw_fd(), libc::F_GET_SEALS) } {
        -1 => Err(io::Error::last_os_error()),
        seals => Ok(seals),
    }
}

/// Moves a descriptor to a number of 100 or more, out of the way of programs that close or reuse low numbers.
/// Close-on-exec stays set.
pub fn move_fd_up(fd: OwnedFd) -> OwnedFd {
    // SAFETY: F_DUPFD_CLOEXEC takes an integer.
    let moved = unsafe { libc::fcntl(fd.as_raw_fd(), libc::F_DUPFD_CLOEXEC, 100) };
    if moved < 0 {
        return fd;
    }
    // SAFETY: the kernel just gave this descriptor to us alone.
    unsafe { OwnedFd::from_raw_fd(moved) }
}

/// Maximum number of descriptors in one message: three for each of 64 GPUs.
const MOST_FDS: usize = 192;
const CONTROL_BYTES: usize = 16 + MOST_FDS * 4;

#[repr(C, align(8))]
struct Control([u8; CONTROL_BYTES]);

/// Sends `bytes` with `fds` attached to the first byte; returns how many bytes went.
pub fn send_with_fds(
    socket: BorrowedFd<'_>,
    bytes: &[u8],
    fds: &[BorrowedFd<'_>],
) -> io::Result<usize> {
    if fds.len() > MOST_FDS {
        return Err(io::Error::other("too many descriptors for one message"));
    }
    let raw: Vec<RawFd> = fds.iter().map(AsRawFd::as_raw_fd).collect();
    let mut control = Control([0; CONTROL_BYTES]);
    let mut part = libc::iovec {
        iov_base: bytes.as_ptr().cast_mut().cast(),
        iov_len: bytes.len(),
    };
    // SAFETY: msghdr is plain data for which zero is valid.
    let mut message: libc::msghdr = unsafe { std::mem::zeroed() };
    message.msg_iov = &raw mut part;
    message.msg_iovlen = 1;
    if !raw.is_empty() {
        let payload = size_of_val(raw.as_slice());
        message.msg_control = (&raw mut control).cast();
        // SAFETY: CMSG_SPACE is arithmetic.
        message.msg_controllen = unsafe { libc::CMSG_SPACE(payload as u32) } as usize;
        // SAFETY: the control buffer is larger than one header.
        let header = unsafe { libc::CMSG_FIRSTHDR(&raw const message) };
        // SAFETY: `header` points into `control`, which is aligned and has room for header and
        // payload as CMSG_SPACE said.
        unsafe {
            (*header).cmsg_level = libc::SOL_SOCKET;
            (*header).cmsg_type = libc::SCM_RIGHTS;
            (*header).cmsg_len = libc::CMSG_LEN(payload as u32) as usize;
            std::ptr::copy_nonoverlapping(raw.as_ptr().cast(), libc::CMSG_DATA(header), payload);
        }
    }
    // SAFETY: `message` points at live buffers of the stated lengths.
    let sent = unsafe { libc::sendmsg(socket.as_raw_fd(), &raw const message, libc::MSG_NOSIGNAL) };
    usize::try_from(sent).map_err(|_| io::Error::last_os_error())
}

/// Receives into `buffer`; appends attached descriptors to `fds`, close-on-exec.
pub fn recv_with_fds(
    socket: BorrowedFd<'_>,
    buffer: &mut [u8],
    fds: &mut Vec<OwnedFd>,
) -> io::Result<usize> {
    let mut control = Control([0; CONTROL_BYTES]);
    let mut part = libc::iovec {
        iov_base: buffer.as_mut_ptr().cast(),
        iov_len: buffer.len(),
    };
    // SAFETY: msghdr is plain data for which zero is valid.
    let mut message: libc::msghdr = unsafe { std::mem::zeroed() };
    message.msg_iov = &raw mut part;
    message.msg_iovlen = 1;
    message.msg_control = (&raw mut control).cast();
    message.msg_controllen = CONTROL_BYTES;
    // SAFETY: `message` points at live buffers of the stated lengths.
    let received =
        unsafe { libc::recvmsg(socket.as_raw_fd(), &raw mut message, libc::MSG_CMSG_CLOEXEC) };
    let received = usize::try_from(received).map_err(|_| io::Error::last_os_error())?;
    // SAFETY: `message` was filled by recvmsg and its control buffer is alive.
    let mut header = unsafe { libc::CMSG_FIRSTHDR(&raw const message) };
    while !header.is_null() {
        // SAFETY: the kernel wrote this header inside `control`.
        let (level, kind, length) = unsafe {
            (
                (*header).cmsg_level,
                (*header).cmsg_type,
                (*header).cmsg_len,
            )
        };
        if level == libc::SOL_SOCKET && kind == libc::SCM_RIGHTS {
            // SAFETY: CMSG_LEN is arithmetic, and CMSG_DATA points behind the header.
            let (empty, data) = unsafe { (libc::CMSG_LEN(0) as usize, libc::CMSG_DATA(header)) };
            for index in 0..length.saturating_sub(empty) / size_of::<RawFd>() {
                // SAFETY: the kernel wrote that many descriptors, perhaps unaligned.
                let fd = unsafe { data.cast::<RawFd>().add(index).read_unaligned() };
                // SAFETY: SCM_RIGHTS made this descriptor ours alone.
                fds.push(unsafe { OwnedFd::from_raw_fd(fd) });
            }
        }
        // SAFETY: as for CMSG_FIRSTHDR.
        header = unsafe { libc::CMSG_NXTHDR(&raw const message, header) };
    }
    Ok(received)
}

/// Connects a Unix stream socket, giving up after `timeout`. The stream then has that timeout for
/// reads and writes.
pub(crate) fn connect(path: &str, timeout: std::time::Duration) -> io::Result<UnixStream> {
    let mut address = libc::sockaddr_un {
        sun_family: libc::AF_UNIX as libc::sa_family_t,
        sun_path: [0; 108],
    };
    if path.len() >= address.sun_path.len() || path.as_bytes().contains(&0) {
        return Err(io::Error::new(
            io::ErrorKind::InvalidInput,
            format!("socket path `{path}` is longer than 107 bytes"),
        ));
    }
    for (to, from) in address.sun_path.iter_mut().zip(path.bytes()) {
        *to = from.cast_signed();
    }
    // SAFETY: socket takes integers.
    let fd = unsafe { libc::socket(libc::AF_UNIX, libc::SOCK_STREAM | libc::SOCK_CLOEXEC, 0) };
    if fd < 0 {
        return Err(io::Error::last_os_error());
    }
    // SAFETY: the kernel just gave this descriptor to us alone.
    let stream = UnixStream::from(unsafe { OwnedFd::from_raw_fd(fd) });
    // On Unix sockets the send timeout also bounds connect, which blocks while the backlog is full.
    stream.set_write_timeout(Some(timeout))?;
    stream.set_read_timeout(Some(timeout))?;
    let until = std::time::Instant::now() + timeout;
    loop {
        // SAFETY: `address` is a whole sockaddr_un, NUL-terminated as checked above.
        let result = unsafe {
            libc::connect(
                stream.as_fd().as_raw_fd(),
                (&raw const address).cast(),
                size_of::<libc::sockaddr_un>() as libc::socklen_t,
            )
        };
        let error = io::Error::last_os_error();
        match result {
            0 => return Ok(stream),
            // A signal that the program handles is not a wish to stop.
            _ if error.kind() == io::ErrorKind::Interrupted
                && std::time::Instant::now() < until => {}
            _ => return Err(error),
        }
    }
}

/// Two connected non-blocking ends for small messages.
pub(crate) fn socket_pair() -> io::Result<(OwnedFd, OwnedFd)> {
    let mut ends = [-1; 2];
    let kind = libc::SOCK_STREAM | libc::SOCK_CLOEXEC | libc::SOCK_NONBLOCK;
    // SAFETY: `ends` is valid for two descriptors.
    if unsafe { libc::socketpair(libc::AF_UNIX, kind, 0, ends.as_mut_ptr()) } != 0 {
        return Err(io::Error::last_os_error());
    }
    // SAFETY: the kernel just gave these descriptors to us alone.
    Ok(unsafe { (OwnedFd::from_raw_fd(ends[0]), OwnedFd::from_raw_fd(ends[1])) })
}

/// Inode of a socket; `None` if the descriptor is not a socket.
pub(crate) fn socket_inode(fd: RawFd) -> Option<u64> {
    let mut stat = MaybeUninit::<libc::stat>::uninit();
    // SAFETY: `stat` is valid for one `struct stat`.
    if unsafe { libc::fstat(fd, stat.as_mut_ptr()) } != 0 {
        return None;
    }
    // SAFETY: fstat succeeded and filled it.
    let stat = unsafe { stat.assume_init() };
    (stat.st_mode & libc::S_IFMT == libc::S_IFSOCK).then_some(stat.st_ino)
}

/// Sends one byte if there is room for it.
pub(crate) fn send_byte(fd: RawFd) -> bool {
    let byte = 1_u8;
    let flags = libc::MSG_DONTWAIT | libc::MSG_NOSIGNAL;
    // SAFETY: one valid byte.
    unsafe { libc::send(fd, (&raw const byte).cast(), 1, flags) == 1 }
}

/// Reads the bytes that have arrived, and returns their number; at most 512, so that an endless stream of them ends.
pub(crate) fn receive_bytes(fd: RawFd) -> usize {
    let mut bytes = [0_u8; 512];
    // SAFETY: room for as many bytes.
    let read = unsafe { libc::recv(fd, bytes.as_mut_ptr().cast(), 512, libc::MSG_DONTWAIT) };
    usize::try_from(read).unwrap_or(0)
}

/// Whether the other end of a socket is closed everywhere.
pub(crate) fn has_hung_up(fd: RawFd) -> bool {
    let mut entry = libc::pollfd {
        fd,
        events: 0,
        revents: 0,
    };
    // SAFETY: one valid entry; does not wait.
    let ready = unsafe { libc::poll(&raw mut entry, 1, 0) };
    ready == 1 && entry.revents & (libc::POLLHUP | libc::POLLERR) != 0
}

/// The processes that share a futex.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Reach {
    /// The threads of this process.
    Process,
    /// All processes that have mapped the same file.
    Machine,
}

impl Reach {
    fn flag(self) -> i32 {
        match self {
            Self::Process => libc::FUTEX_PRIVATE_FLAG,
            Self::Machine => 0,
        }
    }
}

/// Sleeps while the word has this value: until a wake, a handled signal, or CLOCK_MONOTONIC `until_ns` (`None`: no
/// end). The mapping may be read-only.
pub fn futex_wait(word: &AtomicU32, value: u32, until_ns: Option<u64>, reach: Reach) {
    let until = until_ns.map(|ns| libc::timespec {
        tv_sec: (ns / 1_000_000_000).cast_signed(),
        tv_nsec: (ns % 1_000_000_000).cast_signed(),
    });
    let until = until.as_ref().map_or(std::ptr::null(), std::ptr::from_ref);
    // SAFETY: `word` lives through the call, which reads it; the time is null or valid.
    unsafe {
        libc::syscall(
            libc::SYS_futex,
            word.as_ptr(),
            libc::FUTEX_WAIT_BITSET | reach.flag(),
            value,
            until,
            std::ptr::null::<u32>(),
            libc::FUTEX_BITSET_MATCH_ANY,
        );
    }
}

/// Like [`futex_wait`] on two words at once: until either is woken or has another value. Kernels before 5.16 can only
/// sleep on the first; there the sleep is short.
pub fn futex_wait_either(
    first: (&AtomicU32, u32, Reach),
    second: (&AtomicU32, u32, Reach),
    until_ns: u64,
) {
    /// `struct futex_waitv`.
    #[repr(C)]
    struct Entry {
        value: u64,
        word: u64,
        flags: u32,
        reserved: u32,
    }
    const SIZE_U32: u32 = 2;
    const SHORT_NS: u64 = 1_000_000;
    let entry = |(word, value, reach): (&AtomicU32, u32, Reach)| Entry {
        value: u64::from(value),
        word: word.as_ptr() as u64,
        flags: SIZE_U32 | reach.flag().cast_unsigned(),
        reserved: 0,
    };
    let entries = [entry(first), entry(second)];
    let until = libc::timespec {
        tv_sec: (until_ns / 1_000_000_000).cast_signed(),
        tv_nsec: (until_ns % 1_000_000_000).cast_signed(),
    };
    // SAFETY: two valid entries for words that live through the call, and a valid time.
    let result = unsafe {
        libc::syscall(
            libc::SYS_futex_waitv,
            entries.as_ptr(),
            entries.len(),
            0,
            &raw const until,
            libc::CLOCK_MONOTONIC,
        )
    };
    if result < 0 && io::Error::last_os_error().raw_os_error() == Some(libc::ENOSYS) {
        let (word, value, reach) = first;
        let until = until_ns.min(monotonic_ns() + SHORT_NS);
        futex_wait(word, value, Some(until), reach);
    }
}

/// Sleeps so that its end comes when it should: Linux adds a slack to timers of a thread, 50 us by default.
pub fn on_time(sleep: impl FnOnce()) {
    let set = |ns: libc::c_ulong| {
        // SAFETY: sets a number of the calling thread.
        unsafe { libc::prctl(libc::PR_SET_TIMERSLACK, ns) }
    };
    // SAFETY: reads a number of the calling thread.
    let slack_ns = unsafe { libc::prctl(libc::PR_GET_TIMERSLACK) };
    set(1);
    sleep();
    // A thread with real-time priority has none, and needs none.
    set(libc::c_ulong::try_from(slack_ns).unwrap_or(0));
}

/// A memory barrier on all threads of the machine, so that they need no barriers of their own. Takes milliseconds.
pub fn barrier() -> io::Result<()> {
    /// `MEMBARRIER_CMD_GLOBAL`.
    const GLOBAL: libc::c_int = 1;
    // SAFETY: takes no pointers.
    match unsafe { libc::syscall(libc::SYS_membarrier, GLOBAL, 0, 0) } {
        0 => Ok(()),
        _ => Err(io::Error::last_os_error()),
    }
}

/// Wakes all sleepers on a word. The mapping may be read-only.
pub fn futex_wake(word: &AtomicU32, reach: Reach) {
    // SAFETY: the call only looks up who sleeps there.
    unsafe {
        libc::syscall(
            libc::SYS_futex,
            word.as_ptr(),
            libc::FUTEX_WAKE | reach.flag(),
            i32::MAX,
        );
    }
}

fn clock_ns(clock: libc::clockid_t) -> u64 {
    let mut time = libc::timespec {
        tv_sec: 0,
        tv_nsec: 0,
    };
    // SAFETY: `time` is valid for one timespec; both clocks exist on every Linux.
    unsafe { libc::clock_gettime(clock, &raw mut time) };
    time.tv_sec.cast_unsigned() * 1_000_000_000 + time.tv_nsec.cast_unsigned()
}

/// Sets the nice value of the calling thread (setpriority(2)); false without permission.
pub(crate) fn set_nice(nice: i32) -> bool {
    // SAFETY: setpriority takes integers; on Linux 0 is the calling thread.
    unsafe { libc::setpriority(libc::PRIO_PROCESS, 0, nice) == 0 }
}

/// CLOCK_MONOTONIC in nanoseconds.
pub fn monotonic_ns() -> u64 {
    clock_ns(libc::CLOCK_MONOTONIC)
}
