//! The member's side of the pages. Descriptors from the service are checked before they are mapped, so a wrong one is
//! an error and not a crash inside a user's program.

use std::{
    io,
    os::fd::{AsFd, BorrowedFd, OwnedFd},
    sync::atomic::Ordering,
};

use crate::{
    ABI_VERSION, LIMITS_BYTES, LimitsPage, Outcome, Slot, Slots, USAGE_BYTES, UsagePage,
    layout::{LIMITS_MAGIC, USAGE_MAGIC},
    ledger::reserve,
    sys::{Mapping, SEALS, file_bytes, seals},
};

pub(crate) fn wrong(what: impl Into<String>) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, what.into())
}

/// A limits page, mapped read-only.
#[derive(Debug)]
pub struct LimitsMap(Mapping<LimitsPage>);

impl LimitsMap {
    /// Maps the page behind `fd`, which may be closed afterwards.
    pub fn new(fd: BorrowedFd<'_>) -> io::Result<Self> {
        if file_bytes(fd)? < LIMITS_BYTES as u64 {
            return Err(wrong("limits page is too short"));
        }
        let map: Mapping<LimitsPage> = Mapping::new(fd, false)?;
        check_limits(map.get())?;
        Ok(Self(map))
    }

    pub fn page(&self) -> &LimitsPage {
        self.0.get()
    }

    /// Keeps the page mapped for the rest of the process.
    pub fn leak(self) -> &'static LimitsPage {
        self.0.leak()
    }
}

pub(crate) fn check_limits(page: &LimitsPage) -> io::Result<()> {
    if page.magic.load(Ordering::Acquire) != LIMITS_MAGIC {
        return Err(wrong("not a limits page"));
    }
    let version = page.version.load(Ordering::Relaxed);
    if version != ABI_VERSION {
        return Err(wrong(format!(
            "limits page has version {version}, expected {ABI_VERSION}"
        )));
    }
    Ok(())
}

/// Maps a usage page after checking its length, seals, magic and version.
pub(crate) fn map_usage(fd: BorrowedFd<'_>) -> io::Result<Mapping<UsagePage>> {
    if seals(fd).map_err(|_| wrong("usage page is not a memfd"))? & SEALS != SEALS {
        return Err(wrong("usage page lacks its seals"));
    }
    if file_bytes(fd)? != USAGE_BYTES as u64 {
        return Err(wrong("usage page has the wrong length"));
    }
    let map: Mapping<UsagePage> = Mapping::new(fd, true)?;
    let header = &map.get().header;
    if header.magic.load(Ordering::Acquire) != USAGE_MAGIC {
        return Err(wrong("not a usage page"));
    }
    let version = header.version.load(Ordering::Relaxed);
    if version != ABI_VERSION {
        return Err(wrong(format!(
            "usage page has version {version}, expected {ABI_VERSION}"
        )));
    }
    Ok(map)
}

/// A usage page, mapped writable by a member.
#[derive(Debug)]
pub struct UsageMap {
    map: Mapping<UsagePage>,
    fd: OwnedFd,
}

impl UsageMap {
    /// Maps the page behind `fd` and keeps the descriptor, through which a restarted service can find the page.
    pub fn new(fd: OwnedFd) -> io::Result<Self> {
        Ok(Self {
            map: map_usage(fd.as_fd())?,
            fd,
        })
    }

    pub fn page(&self) -> &UsagePage {
        self.map.get()
    }

    /// Keeps the page mapped, and its descriptor open, for the rest of the process.
    pub fn leak(self) -> &'static UsagePage {
        std::mem::forget(self.fd);
        self.map.leak()
    }
}

impl UsagePage {
    pub fn slot(&self, index: usize) -> Option<&Slot> {
        self.slots.get(index)
    }

    /// Grows the charge of slot `me` from `own` to `own + bytes` if the whole claim stays within the cap, all in bytes.
    /// One thread per slot at a time.
    pub fn reserve(&self, me: usize, own: u64, bytes: u64, cap: impl Fn() -> u64) -> Outcome {
        reserve(self, me, own, bytes, cap)
    }
}

impl Slots for UsagePage {
    #[inline]
    fn count(&self) -> usize {
        self.high_water()
    }

    #[inline]
    fn charge(&self, slot: usize) -> u64 {
        self.slots[slot].charge.load(Ordering::SeqCst)
    }

    #[inline]
    fn reserving(&self, slot: usize) -> u64 {
        self.slots[slot].reserving.load(Ordering::SeqCst)
    }

    // Only an announcement must be visible before its author reads the others. Clearing it needs no fence: a reader of
    // the cleared announcement also reads the charge stored before.
    #[inline]
    fn set_charge(&self, slot: usize, bytes: u64) {
        self.slots[slot].charge.store(bytes, Ordering::Release);
    }

    #[inline]
    fn set_reserving(&self, slot: usize, bytes: u64) {
        let order = match bytes {
            0 => Ordering::Release,
            _ => Ordering::SeqCst,
        };
        self.slots[slot].reserving.store(bytes, order);
    }

    fn pause(&self, round: u32) {
        if round < 16 {
            std::hint::spin_loop();
        } else {
            std::thread::yield_now();
        }
    }
}
