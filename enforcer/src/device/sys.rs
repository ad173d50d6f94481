//! The parts of the `bpf` system call that device filters need.
#![allow(unsafe_code, reason = "bpf(2) has no safe wrapper")]

use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd, OwnedFd};
use std::ptr::NonNull;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};

use nix::poll::{PollFd, PollFlags, PollTimeout, poll};

use super::insn::Insn;

const MAP_CREATE: libc::c_long = 0;
const PROG_LOAD: libc::c_long = 5;
const PROG_ATTACH: libc::c_long = 8;
const PROG_DETACH: libc::c_long = 9;
const PROG_GET_FD_BY_ID: libc::c_long = 13;
const OBJ_GET_INFO_BY_FD: libc::c_long = 15;
const PROG_QUERY: libc::c_long = 16;

const MAP_RINGBUF: u32 = 27;
const TYPE_CGROUP_DEVICE: u32 = 15;
const ATTACH_CGROUP_DEVICE: u32 = 6;
const ALLOW_MULTI: u32 = 1 << 1;
const REPLACE: u32 = 1 << 2;

/// Maximum number of programs on a cgroup of one kind (`BPF_CGROUP_MAX_PROGS`).
const MAX_PROGRAMS: usize = 64;
/// Maximum length of a program's name without the final NUL.
const NAME_BYTES: usize = 15;

/// `bpf_attr` as MAP_CREATE reads it.
#[repr(C)]
#[derive(Default)]
struct MapAttr {
    map_type: u32,
    key_size: u32,
    value_size: u32,
    max_entries: u32,
    map_flags: u32,
}

/// `bpf_attr` as PROG_LOAD reads it.
#[repr(C)]
#[derive(Default)]
struct LoadAttr {
    prog_type: u32,
    insn_cnt: u32,
    insns: u64,
    license: u64,
    log_level: u32,
    log_size: u32,
    log_buf: u64,
    kern_version: u32,
    prog_flags: u32,
    prog_name: [u8; NAME_BYTES + 1],
    prog_ifindex: u32,
    expected_attach_type: u32,
}

/// `bpf_attr` as PROG_ATTACH and PROG_DETACH read it.
#[repr(C)]
#[derive(Default)]
struct AttachAttr {
    target_fd: u32,
    attach_bpf_fd: u32,
    attach_type: u32,
    attach_flags: u32,
    replace_bpf_fd: u32,
}

/// `bpf_attr` as PROG_QUERY reads and writes it.
#[repr(C)]
#[derive(Default)]
struct QueryAttr {
    target_fd: u32,
    attach_type: u32,
    query_flags: u32,
    attach_flags: u32,
    prog_ids: u64,
    prog_cnt: u32,
    padding: u32,
    prog_attach_flags: u64,
    link_ids: u64,
    link_attach_flags: u64,
    revision: u64,
}

/// `bpf_attr` as PROG_GET_FD_BY_ID reads it.
#[repr(C)]
#[derive(Default)]
struct IdAttr {
    id: u32,
    next_id: u32,
    open_flags: u32,
}

/// `bpf_attr` as OBJ_GET_INFO_BY_FD reads it.
#[repr(C)]
#[derive(Default)]
struct InfoAttr {
    bpf_fd: u32,
    info_len: u32,
    info: u64,
}

/// The first fields of `bpf_prog_info`; the kernel fills only the bytes given.
#[repr(C)]
#[derive(Default)]
pub(super) struct ProgInfo {
    pub(super) kind: u32,
    pub(super) id: u32,
    /// Hash of the instructions.
    pub(super) tag: [u8; 8],
    jited_len: u32,
    xlated_len: u32,
    jited: u64,
    xlated: u64,
    load_time: u64,
    created_by_uid: u32,
    nr_map_ids: u32,
    map_ids: u64,
    name: [u8; NAME_BYTES + 1],
}

const _: () = assert!(size_of::<LoadAttr>() == 72);
const _: () = assert!(size_of::<AttachAttr>() == 20);
const _: () = assert!(size_of::<QueryAttr>() == 64);
const _: () = assert!(size_of::<ProgInfo>() == 80);

impl ProgInfo {
    pub(super) fn name(&self) -> String {
        let end = self.name.iter().position(|b| *b == 0);
        String::from_utf8_lossy(&self.name[..end.unwrap_or(self.name.len())]).into_owned()
    }
}

/// One call; returns the kernel's result (a descriptor or 0).
fn bpf<T>(command: libc::c_long, attr: &mut T) -> io::Result<i32> {
    loop {
        // SAFETY: `attr` is a live, exclusively borrowed, fully initialised repr(C) struct laid out
        // as the kernel's union for `command`, and its true size is passed, so the kernel reads
        // and writes only inside it. Addresses in it come from buffers that the callers below keep
        // alive over the call.
        let returned = unsafe {
            libc::syscall(
                libc::SYS_bpf,
                command,
                std::ptr::from_mut(attr),
                size_of::<T>(),
            )
        };
        if let Ok(value @ 0..) = i32::try_from(returned) {
            return Ok(value);
        }
        let error = io::Error::last_os_error();
        // Loading may fail with EAGAIN when a signal is pending.
        if !matches!(error.raw_os_error(), Some(libc::EAGAIN | libc::EINTR)) {
            return Err(error);
        }
    }
}

fn bpf_fd<T>(command: libc::c_long, attr: &mut T) -> io::Result<OwnedFd> {
    let fd = bpf(command, attr)?;
    // SAFETY: the commands that callers pass here return a new descriptor (close-on-exec by
    // default) which nothing else owns.
    Ok(unsafe { OwnedFd::from_raw_fd(fd) })
}

fn raw(fd: BorrowedFd<'_>) -> u32 {
    fd.as_raw_fd().cast_unsigned()
}

fn address<T: ?Sized>(buffer: &T) -> u64 {
    std::ptr::from_ref(buffer).cast::<u8>().addr() as u64
}

/// Loads a device filter. An error comes with the verifier's log.
pub(super) fn load(name: &str, insns: &[Insn]) -> Result<OwnedFd, (io::Error, String)> {
    let mut attr = LoadAttr {
        prog_type: TYPE_CGROUP_DEVICE,
        insn_cnt: u32::try_from(insns.len()).unwrap_or(u32::MAX),
        insns: address(insns),
        license: address(c"Dual MIT/GPL".to_bytes_with_nul()),
        ..LoadAttr::default()
    };
    for (to, from) in attr.prog_name[..NAME_BYTES].iter_mut().zip(name.bytes()) {
        *to = from;
    }
    let error = match bpf_fd(PROG_LOAD, &mut attr) {
        Ok(fd) => return Ok(fd),
        Err(error) => error,
    };
    // Again with a log: asking for it at once would slow every load.
    let mut log = vec![0_u8; 64 * 1024];
    attr.log_level = 1;
    attr.log_size = 64 * 1024;
    attr.log_buf = std::ptr::from_mut(log.as_mut_slice())
        .cast::<u8>()
        .expose_provenance() as u64;
    match bpf_fd(PROG_LOAD, &mut attr) {
        Ok(fd) => Ok(fd),
        Err(_) => {
            let end = log.iter().position(|b| *b == 0).unwrap_or(log.len());
            Err((error, String::from_utf8_lossy(&log[..end]).into_owned()))
        }
    }
}

/// Attaches `program` beside others, or in place of `replace` in a single step.
pub(super) fn attach(
    cgroup: BorrowedFd<'_>,
    program: BorrowedFd<'_>,
    replace: Option<BorrowedFd<'_>>,
) -> io::Result<()> {
    let mut attr = AttachAttr {
        target_fd: raw(cgroup),
        attach_bpf_fd: raw(program),
        attach_type: ATTACH_CGROUP_DEVICE,
        attach_flags: ALLOW_MULTI | replace.map_or(0, |_| REPLACE),
        replace_bpf_fd: replace.map_or(0, raw),
    };
    bpf(PROG_ATTACH, &mut attr).map(drop)
}

pub(super) fn detach(cgroup: BorrowedFd<'_>, program: BorrowedFd<'_>) -> io::Result<()> {
    let mut attr = AttachAttr {
        target_fd: raw(cgroup),
        attach_bpf_fd: raw(program),
        attach_type: ATTACH_CGROUP_DEVICE,
        ..AttachAttr::default()
    };
    bpf(PROG_DETACH, &mut attr).map(drop)
}

/// The ids of the device filters attached to this very cgroup.
pub(super) fn query(cgroup: BorrowedFd<'_>) -> io::Result<Vec<u32>> {
    let mut ids = vec![0_u32; MAX_PROGRAMS];
    let mut attr = QueryAttr {
        target_fd: raw(cgroup),
        attach_type: ATTACH_CGROUP_DEVICE,
        prog_ids: std::ptr::from_mut(ids.as_mut_slice())
            .cast::<u8>()
            .expose_provenance() as u64,
        prog_cnt: MAX_PROGRAMS as u32,
        ..QueryAttr::default()
    };
    bpf(PROG_QUERY, &mut attr)?;
    ids.truncate(attr.prog_cnt as usize);
    Ok(ids)
}

/// Opens a loaded program by its id.
pub(super) fn by_id(id: u32) -> io::Result<OwnedFd> {
    let mut attr = IdAttr {
        id,
        ..IdAttr::default()
    };
    bpf_fd(PROG_GET_FD_BY_ID, &mut attr)
}

/// The kernel's information about a program.
pub(super) fn info(program: BorrowedFd<'_>) -> io::Result<ProgInfo> {
    let mut info = ProgInfo::default();
    let mut attr = InfoAttr {
        bpf_fd: raw(program),
        info_len: size_of::<ProgInfo>() as u32,
        info: std::ptr::from_mut(&mut info).expose_provenance() as u64,
    };
    bpf(OBJ_GET_INFO_BY_FD, &mut attr)?;
    Ok(info)
}

/// A mapped ring buffer of the kernel (`BPF_MAP_TYPE_RINGBUF`): a page with the read position, a page with the write
/// position, and the data, mapped twice in a row so that no record is cut at the end.
#[derive(Debug)]
pub(super) struct Ring {
    fd: OwnedFd,
    page: usize,
    read: NonNull<libc::c_void>,
    written: NonNull<libc::c_void>,
}

// SAFETY: the mappings belong to the value, and only `wait`, which borrows it mutably, reads through them.
unsafe impl Send for Ring {}

/// Bit of a record's length: the kernel is still writing it.
const BUSY: u32 = 1 << 31;
/// Bit of a record's length: it was discarded.
const DISCARDED: u32 = 1 << 30;
/// Bytes before a record: its length, and a field of the kernel.
const HEAD: usize = 8;

impl Ring {
    /// A ring of one page.
    pub(super) fn make() -> io::Result<Self> {
        // SAFETY: takes and gives numbers only.
        let page = usize::try_from(unsafe { libc::sysconf(libc::_SC_PAGESIZE) }).unwrap_or(4096);
        let mut attr = MapAttr {
            map_type: MAP_RINGBUF,
            max_entries: page as u32,
            ..MapAttr::default()
        };
        let fd = bpf_fd(MAP_CREATE, &mut attr)?;
        let map = |length: usize, writes: i32, offset: usize| {
            // SAFETY: a new mapping, where the kernel likes, of as many bytes as such a map has.
            let at = unsafe {
                libc::mmap(
                    std::ptr::null_mut(),
                    length,
                    libc::PROT_READ | writes,
                    libc::MAP_SHARED,
                    fd.as_raw_fd(),
                    offset as libc::off_t,
                )
            };
            let there = NonNull::new(at).filter(|at| at.as_ptr() != libc::MAP_FAILED);
            there.ok_or_else(io::Error::last_os_error)
        };
        let read = map(page, libc::PROT_WRITE, 0)?;
        let written = map(3 * page, 0, page).inspect_err(|_| {
            // SAFETY: mapped above, and nothing points into it.
            unsafe { libc::munmap(read.as_ptr(), page) };
        })?;
        Ok(Self {
            fd,
            page,
            read,
            written,
        })
    }

    pub(super) fn fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }

    /// Waits for records and returns all available ones.
    pub(super) fn wait(&mut self) -> io::Result<Vec<Vec<u8>>> {
        let mut records = Vec::new();
        while records.is_empty() {
            let mut fds = [PollFd::new(self.fd.as_fd(), PollFlags::POLLIN)];
            match poll(&mut fds, PollTimeout::NONE) {
                Ok(_) | Err(nix::errno::Errno::EINTR) => self.take(&mut records),
                Err(error) => return Err(error.into()),
            }
        }
        Ok(records)
    }

    fn take(&mut self, records: &mut Vec<Vec<u8>>) {
        let (read, written) = (
            self.read.cast::<AtomicU64>(),
            self.written.cast::<AtomicU64>(),
        );
        // SAFETY: both pages begin with such a word and stay mapped as long as `self`.
        let (read, written) = unsafe { (read.as_ref(), written.as_ref()) };
        let mut at = read.load(Ordering::Relaxed);
        while at < written.load(Ordering::Acquire) {
            let place = self.page + at as usize % self.page;
            // SAFETY: within the mapping, which has the data twice behind its first page; records begin at multiples of
            // 8.
            let length = unsafe { self.written.byte_add(place).cast::<AtomicU32>().as_ref() };
            let length = length.load(Ordering::Acquire);
            if length & BUSY != 0 {
                return;
            }
            let bytes = (length & !DISCARDED) as usize;
            if length & DISCARDED == 0 && bytes <= self.page {
                // SAFETY: the kernel has finished the record, none is longer than the data, and it writes nothing there
                // before `read` has passed it.
                let record = unsafe {
                    std::slice::from_raw_parts(
                        self.written.byte_add(place + HEAD).cast().as_ptr(),
                        bytes,
                    )
                };
                records.push(record.to_vec());
            }
            at += (bytes + HEAD).next_multiple_of(8) as u64;
            read.store(at, Ordering::Release);
        }
    }
}

impl Drop for Ring {
    fn drop(&mut self) {
        // SAFETY: mapped in `make`, and nothing points into them.
        unsafe {
            libc::munmap(self.read.as_ptr(), self.page);
            libc::munmap(self.written.as_ptr(), 3 * self.page);
        }
    }
}
