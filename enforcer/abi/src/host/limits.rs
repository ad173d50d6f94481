//! The limits page as a file: it outlives the service, which finds it by its path.

use std::{
    fs::{File, OpenOptions},
    io,
    ops::Range,
    os::{
        fd::{AsFd, OwnedFd},
        unix::fs::{OpenOptionsExt, PermissionsExt},
    },
    path::{Path, PathBuf},
    sync::atomic::Ordering,
};

use crate::{
    ABI_VERSION, GRANULARITY_BYTES, GpuUuid, LIMITS_BYTES, LimitsPage, State,
    layout::LIMITS_MAGIC,
    member::{check_limits, wrong},
    sys::{Mapping, Reach, file_bytes, futex_wake, monotonic_ns},
};

/// Initial values of a limits page.
#[derive(Debug, Clone)]
pub struct LimitsInit {
    pub claim: u64,
    pub uuid: GpuUuid,
    /// Random; ties the usage page of the same grant to this page.
    pub token: u64,
    /// Number of the service's start.
    pub epoch: u64,
    /// Whether the claim holds the GPU.
    pub state: State,
    /// Maximum sum of the charges of all members, in bytes.
    pub memory_cap_bytes: u64,
    /// Guaranteed bytes.
    pub memory_request_bytes: u64,
    /// Bytes that a context takes.
    pub context_overhead_bytes: u64,
    /// Unit in which the driver allocates memory, in bytes.
    pub granularity_bytes: u64,
    /// Guaranteed share of the SMs in thousandths.
    pub sm_request_permille: u32,
    /// Largest share of the SMs in thousandths.
    pub sm_limit_permille: u32,
}

impl Default for LimitsInit {
    fn default() -> Self {
        Self {
            claim: 0,
            uuid: GpuUuid([0; 16]),
            token: 0,
            epoch: 0,
            state: State::Granted,
            memory_cap_bytes: 0,
            memory_request_bytes: 0,
            context_overhead_bytes: 0,
            granularity_bytes: GRANULARITY_BYTES,
            sm_request_permille: 0,
            sm_limit_permille: 1000,
        }
    }
}

/// A limits page with the file that holds it.
#[derive(Debug)]
pub struct LimitsFile {
    path: PathBuf,
    map: Mapping<LimitsPage>,
}

impl LimitsFile {
    /// Creates the file (mode 0644 whatever the umask; fails if it exists) and fills it.
    pub fn create(path: &Path, init: &LimitsInit) -> io::Result<Self> {
        let file = OpenOptions::new()
            .read(true)
            .write(true)
            .create_new(true)
            .mode(0o644)
            .custom_flags(libc::O_NOFOLLOW | libc::O_CLOEXEC)
            .open(path)?;
        file.set_permissions(std::fs::Permissions::from_mode(0o644))?;
        file.set_len(LIMITS_BYTES as u64)?;
        let map: Mapping<LimitsPage> = Mapping::new(file.as_fd(), true)?;
        let page = map.get();
        let store = Ordering::Relaxed;
        page.version.store(ABI_VERSION, store);
        page.bytes.store(LIMITS_BYTES as u32, store);
        page.claim.store(init.claim, store);
        let (low, high) = halves(init.uuid);
        page.uuid[0].store(low, store);
        page.uuid[1].store(high, store);
        page.token.store(init.token, store);
        page.epoch.store(init.epoch, store);
        page.state.store(init.state as u32, store);
        page.memory_cap_bytes.store(init.memory_cap_bytes, store);
        page.memory_request_bytes
            .store(init.memory_request_bytes, store);
        page.context_overhead_bytes
            .store(init.context_overhead_bytes, store);
        page.granularity_bytes.store(init.granularity_bytes, store);
        page.sm_request_permille
            .store(init.sm_request_permille, store);
        page.sm_limit_permille.store(init.sm_limit_permille, store);
        page.claimable_bytes.store(u64::MAX, store);
        page.heartbeat_ns.store(monotonic_ns(), store);
        // Last, so that a page left half filled by a crash is not accepted.
        page.magic.store(LIMITS_MAGIC, Ordering::Release);
        Ok(Self {
            path: path.to_owned(),
            map,
        })
    }

    /// Maps a page of an earlier run of the service.
    pub fn open(path: &Path) -> io::Result<Self> {
        let file = OpenOptions::new()
            .read(true)
            .write(true)
            .custom_flags(libc::O_NOFOLLOW | libc::O_CLOEXEC)
            .open(path)?;
        if file_bytes(file.as_fd())? < LIMITS_BYTES as u64 {
            return Err(wrong(format!(
                "limits page {} is too short",
                path.display()
            )));
        }
        let map: Mapping<LimitsPage> = Mapping::new(file.as_fd(), true)?;
        check_limits(map.get()).map_err(|error| wrong(format!("{error}: {}", path.display())))?;
        Ok(Self {
            path: path.to_owned(),
            map,
        })
    }

    pub fn path(&self) -> &Path {
        &self.path
    }

    /// The page; its public words may be stored to.
    pub fn page(&self) -> &LimitsPage {
        self.map.get()
    }

    /// A read-only descriptor for a member.
    pub fn member_fd(&self) -> io::Result<OwnedFd> {
        Ok(File::open(&self.path)?.into())
    }

    /// Sets whether the claim may use the GPU, and wakes the calls that wait for it.
    pub fn set_state(&self, state: State) {
        let word = &self.page().state;
        word.store(state as u32, Ordering::SeqCst);
        futex_wake(word, Reach::Machine);
        if state != State::Granted {
            // Also wakes threads that wait for their turn. The word must differ for a thread that is about to sleep;
            // the arbiter's next word replaces it.
            let word = &self.page().turn.word;
            word.fetch_xor(1 << 31, Ordering::SeqCst);
            futex_wake(word, Reach::Machine);
        }
    }

    /// Moves these pages to other GPUs and paths after the claim's memory has moved; members keep their mappings. Pages
    /// may swap places.
    pub fn relabel(pages: &mut [(&mut Self, GpuUuid, PathBuf)]) -> io::Result<()> {
        for (page, _, path) in pages.iter_mut() {
            if page.path != *path {
                page.set_aside()?;
            }
        }
        for (page, uuid, path) in pages {
            page.rename(path)?;
            let (low, high) = halves(*uuid);
            page.page().uuid[0].store(low, Ordering::Relaxed);
            page.page().uuid[1].store(high, Ordering::Relaxed);
        }
        Ok(())
    }

    /// Frees its path for another page.
    pub fn set_aside(&mut self) -> io::Result<()> {
        let aside = self.path.with_extension("aside.limits");
        self.rename(&aside)
    }

    fn rename(&mut self, path: &Path) -> io::Result<()> {
        std::fs::rename(&self.path, path)?;
        path.clone_into(&mut self.path);
        Ok(())
    }

    /// Sets the bytes that a context takes on the GPU.
    pub fn set_context_overhead(&self, bytes: u64) {
        let word = &self.page().context_overhead_bytes;
        word.store(bytes, Ordering::Relaxed);
    }

    /// Sets the maximum sum of the members' charges, in bytes.
    pub fn set_memory_cap(&self, bytes: u64) {
        self.page().memory_cap_bytes.store(bytes, Ordering::SeqCst);
    }

    /// Sets the guaranteed bytes.
    pub fn set_memory_request(&self, bytes: u64) {
        let word = &self.page().memory_request_bytes;
        word.store(bytes, Ordering::Relaxed);
    }

    /// Maximum sum of the members' charges, in bytes.
    pub fn memory_cap(&self) -> u64 {
        self.page().memory_cap_bytes.load(Ordering::SeqCst)
    }

    /// Sets the guaranteed and the largest share of the SMs, in thousandths.
    pub fn set_sm_permille(&self, request: u32, limit: u32) {
        let page = self.page();
        page.sm_request_permille.store(request, Ordering::Relaxed);
        page.sm_limit_permille.store(limit, Ordering::Relaxed);
    }

    /// Sets the device memory of one program through MPS in MiB, for programs that start now; 0 for none.
    pub fn set_mps_pinned(&self, mib: u32) {
        let word = &self.page().mps_pinned_mib;
        word.store(mib, Ordering::Relaxed);
    }

    /// Sets the part of the SMs through MPS, in thousandths of a percent, for programs that start now; 0 for none.
    pub fn set_mps_percentage(&self, thousandths: u32) {
        let word = &self.page().mps_percentage_milli;
        word.store(thousandths, Ordering::Relaxed);
    }

    /// Sets the GPU's number for messages (NVML's index).
    pub fn set_gpu_index(&self, index: Option<u32>) {
        let word = index.map_or(0, |index| index.saturating_add(1));
        self.page().gpu_index.store(word, Ordering::Relaxed);
    }

    /// Publishes whose turn it is on the GPU (see [`crate::Turn`]). Wakes waiting members if the decision is new and
    /// one of them `may_go`. `turn_ns` is CLOCK_MONOTONIC; a turn may begin later.
    pub fn set_turn(
        &self,
        word: u32,
        turn_ns: Range<u64>,
        ahead_ns: u64,
        flags: u32,
        may_go: bool,
    ) {
        let turn = &self.page().turn;
        turn.ahead_ns.store(ahead_ns, Ordering::Relaxed);
        turn.flags.store(flags, Ordering::Relaxed);
        turn.begins_ns.store(turn_ns.start, Ordering::Relaxed);
        turn.ends_ns.store(turn_ns.end, Ordering::Relaxed);
        let before = turn.word.swap(word, Ordering::SeqCst);
        if before != word && may_go {
            futex_wake(&turn.word, Reach::Machine);
        }
    }

    /// The last word that [`Self::set_turn`] wrote.
    pub fn turn_word(&self) -> u32 {
        self.page().turn.word.load(Ordering::Relaxed)
    }

    /// Notes that the arbiter lives while claims take turns.
    pub fn turn_beat(&self, now_ns: u64) {
        self.page().turn.beat_ns.store(now_ns, Ordering::Relaxed);
    }

    /// Sets the claim's fixed window of time, used when no arbiter decides; `window_ns` 0 for none.
    pub fn set_frame(&self, offset_ns: u64, window_ns: u64) {
        let turn = &self.page().turn;
        turn.frame_offset_ns.store(offset_ns, Ordering::Relaxed);
        turn.frame_window_ns.store(window_ns, Ordering::Relaxed);
    }

    /// Announces a restart of the service: each member registers again at its next allocation.
    pub fn set_epoch(&self, epoch: u64) {
        self.page().epoch.store(epoch, Ordering::SeqCst);
    }

    /// Notes that the service lives, and by how many bytes a guarantee could grow on the GPU, if known.
    pub fn beat(&self, claimable_bytes: Option<u64>) {
        let page = self.page();
        page.claimable_bytes
            .store(claimable_bytes.unwrap_or(u64::MAX), Ordering::Relaxed);
        page.heartbeat_ns.store(monotonic_ns(), Ordering::Relaxed);
    }
}

pub(super) fn whole(low: u64, high: u64) -> GpuUuid {
    let whole = u128::from(low) | u128::from(high) << 64;
    GpuUuid(whole.to_le_bytes())
}

pub(super) fn halves(uuid: GpuUuid) -> (u64, u64) {
    let whole = u128::from_le_bytes(uuid.0);
    (whole as u64, (whole >> 64) as u64)
}
