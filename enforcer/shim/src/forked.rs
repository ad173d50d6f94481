//! State that a forked child must not inherit: one page, which the kernel wipes there. The child begins as a stranger
//! without any handler of the proxy, however it was forked, and registers when it initialises the driver itself.

use std::{
    ffi::c_void,
    ptr,
    sync::atomic::{AtomicBool, AtomicPtr, AtomicU32, AtomicU64, Ordering},
};

/// First word of the page of a copy of the proxy that has asked the service.
pub(crate) const MARK: u64 = u64::from_le_bytes(*b"gshrcopy");

#[repr(C, align(4096))]
pub(crate) struct Wiped {
    /// [`MARK`] once this copy of the proxy has registered this process.
    pub(crate) mark: AtomicU64,
    /// Its [`Process`](crate::process::Process), leaked.
    pub(crate) process: AtomicPtr<c_void>,
    /// Stage of this process, and the futex on which others wait for it.
    pub(crate) stage: AtomicU32,
    /// The service's answer, until the driver is initialised; null outside claims.
    pub(crate) answer: AtomicPtr<c_void>,
    /// This process may not use the driver: it is in a claim that cannot count it.
    pub(crate) barred: AtomicBool,
    /// The [`Gpu`](crate::gpu::Gpu) of a claim that has one.
    pub(crate) only_gpu: AtomicPtr<c_void>,
}

/// Stages on the way to membership.
pub(crate) mod stage {
    /// The service has not been asked.
    pub(crate) const STRANGER: u32 = 0;
    /// A thread is asking it.
    pub(crate) const ASKING: u32 = 1;
    /// It has answered, or there is no service to ask.
    pub(crate) const ANSWERED: u32 = 2;
    /// A thread identifies the devices.
    pub(crate) const SETTLING: u32 = 3;
    /// The process is a member, or never will be one.
    pub(crate) const SETTLED: u32 = 4;
}

impl Wiped {
    /// Waits while another thread is at this stage.
    pub(crate) fn wait_through(&self, stage: u32) {
        while self.stage.load(Ordering::Acquire) == stage {
            // SAFETY: the word lives for the rest of the process; the kernel looks at it again
            // before it puts the thread to sleep.
            unsafe {
                libc::syscall(
                    libc::SYS_futex,
                    self.stage.as_ptr(),
                    libc::FUTEX_WAIT | libc::FUTEX_PRIVATE_FLAG,
                    stage,
                    ptr::null::<libc::timespec>(),
                );
            }
        }
    }

    pub(crate) fn reach(&self, stage: u32) {
        self.stage.store(stage, Ordering::Release);
        // SAFETY: as above.
        unsafe {
            libc::syscall(
                libc::SYS_futex,
                self.stage.as_ptr(),
                libc::FUTEX_WAKE | libc::FUTEX_PRIVATE_FLAG,
                i32::MAX,
            );
        }
    }

    pub(crate) fn begin(&self, from: u32, to: u32) -> Result<(), u32> {
        self.stage
            .compare_exchange(from, to, Ordering::AcqRel, Ordering::Acquire)
            .map(drop)
    }
}

#[inline]
pub(crate) fn known() -> Option<&'static Wiped> {
    // SAFETY: null, or a page that stays mapped for the rest of the process; zeroes are a valid `Wiped`.
    unsafe { WIPED.load(Ordering::Acquire).as_ref() }
}

static WIPED: AtomicPtr<Wiped> = AtomicPtr::new(ptr::null_mut());

static NO_GPU: AtomicPtr<c_void> = AtomicPtr::new(ptr::null_mut());

/// [`Wiped::only_gpu`], or a null pointer.
static ONLY_GPU: AtomicPtr<AtomicPtr<c_void>> = AtomicPtr::new((&raw const NO_GPU).cast_mut());

/// The GPU of a process whose claim has one; null for any other.
#[inline]
pub(crate) fn only_gpu() -> *mut c_void {
    // SAFETY: a static, or a part of the page.
    unsafe { &*ONLY_GPU.load(Ordering::Acquire) }.load(Ordering::Acquire)
}

/// The page, created by the first caller.
pub(crate) fn wiped() -> Option<&'static Wiped> {
    let present = WIPED.load(Ordering::Acquire);
    if let Some(page) = ptr::NonNull::new(present) {
        // SAFETY: stays mapped for the rest of the process.
        return Some(unsafe { page.as_ref() });
    }
    let bytes = size_of::<Wiped>();
    // SAFETY: a fresh anonymous mapping touches no existing memory.
    let page = unsafe {
        libc::mmap(
            ptr::null_mut(),
            bytes,
            libc::PROT_READ | libc::PROT_WRITE,
            libc::MAP_PRIVATE | libc::MAP_ANONYMOUS,
            -1,
            0,
        )
    };
    if page == libc::MAP_FAILED {
        return None;
    }
    // SAFETY: the range is the mapping just made.
    let marked = unsafe { libc::madvise(page, bytes, libc::MADV_WIPEONFORK) };
    let page = page.cast::<Wiped>();
    let won = marked == 0
        && WIPED
            .compare_exchange(ptr::null_mut(), page, Ordering::AcqRel, Ordering::Acquire)
            .is_ok();
    if !won {
        // SAFETY: nobody else has seen this mapping.
        unsafe { libc::munmap(page.cast(), bytes) };
    }
    // SAFETY: null, or the page that stays mapped.
    let page = unsafe { WIPED.load(Ordering::Acquire).as_ref() }?;
    ONLY_GPU.store((&raw const page.only_gpu).cast_mut(), Ordering::Release);
    Some(page)
}
