//! Device memory: totals per process and GPU. Each process keeps its own list of allocations.

use super::{MARKS, MAX_USES, Mark, MemoryKind, State, Use};
use crate::error::BoardError;
use crate::limits::Held;
use crate::models::GRANULARITY;

impl State {
    /// Bytes of device memory that all processes have on a GPU.
    pub(crate) fn used(&self, gpu: usize) -> u64 {
        self.uses()
            .iter()
            .filter(|u| u.owner != 0 && u.gpu == gpu as u64)
            .fold(0, |sum, u| sum.saturating_add(u.device_bytes()))
    }

    /// Bytes that CUDA can still allocate on a GPU.
    pub(crate) fn free_bytes(&self, gpu: usize) -> u64 {
        let total = self.gpus().get(gpu).map_or(0, |g| g.model().cuda_total());
        total.saturating_sub(self.used(gpu))
    }

    /// Bytes that CUDA can still allocate for one process.
    pub(crate) fn free_for(&self, owner: u64, gpu: usize) -> u64 {
        let own = |u: &&Use| u.owner == owner && u.gpu == gpu as u64 && u.pinned != 0;
        let left = self.uses().iter().find(own);
        let left = left.map_or(u64::MAX, |u| u.pinned.saturating_sub(u.device_bytes()));
        self.free_bytes(gpu).min(left)
    }

    /// Refuses a process that has had a fault.
    pub(crate) fn check_fault(&self, owner: u64, gpu: usize) -> Result<(), BoardError> {
        match self.fault_of(owner, gpu) {
            Some(code) => Err(BoardError::Fault { code }),
            None => Ok(()),
        }
    }

    pub(crate) fn check_gpu(&self, gpu: usize) -> Result<(), BoardError> {
        match self.gpus().get(gpu) {
            None => Err(BoardError::NoSuchGpu { gpu }),
            Some(g) if g.lost != 0 => Err(BoardError::Lost { gpu }),
            Some(_) => Ok(()),
        }
    }

    /// The row of a process on a GPU; made if absent.
    pub(crate) fn use_row(&mut self, owner: u64, gpu: usize) -> Result<&mut Use, BoardError> {
        if !self.is_registered(owner) {
            return Err(BoardError::NotRegistered);
        }
        self.check_gpu(gpu)?;
        let found = self
            .uses()
            .iter()
            .position(|u| u.owner == owner && u.gpu == gpu as u64);
        if let Some(i) = found {
            return Ok(&mut self.uses[i]);
        }
        let free = self.uses().iter().position(|u| u.owner == 0);
        let i = free.unwrap_or(self.head.use_hwm());
        let Some(row) = self.uses.get_mut(i) else {
            return Err(BoardError::Full {
                what: "rows of processes on GPUs",
                rows: MAX_USES,
            });
        };
        *row = Use {
            owner,
            gpu: gpu as u64,
            bytes: [0; 5],
            contexts: 0,
            context_bytes: 0,
            launched: 0,
            mps: 0,
            sms: 0,
            pinned: 0,
            fault: 0,
            parked: 0,
            busy_ns: 0.0,
            sm_ns: 0.0,
            warp_ns: 0.0,
            work_ns: 0.0,
            copied: 0,
            marks: [Mark {
                at_ns: 0,
                busy_ns: 0.0,
                sm_ns: 0.0,
                warp_ns: 0.0,
            }; MARKS],
        };
        self.head.use_hwm = self.head.use_hwm.max(i as u64 + 1);
        Ok(&mut self.uses[i])
    }

    /// Takes device memory for a process; returns the bytes taken, rounded up to the granularity.
    pub(crate) fn reserve(
        &mut self,
        owner: u64,
        gpu: usize,
        kind: MemoryKind,
        bytes: u64,
    ) -> Result<u64, BoardError> {
        self.check_fault(owner, gpu)?;
        let free = self.free_for(owner, gpu);
        let row = self.use_row(owner, gpu)?;
        let wanted = bytes
            .checked_next_multiple_of(GRANULARITY)
            .filter(|w| *w <= free || kind == MemoryKind::Managed)
            .ok_or(BoardError::OutOfMemory {
                wanted: bytes,
                free,
            })?;
        let held = &mut row.bytes[kind as usize];
        *held = held.saturating_add(wanted);
        Ok(wanted)
    }

    /// Checks the bytes against the limit of a control group.
    pub(crate) fn within(
        &self,
        held: Option<&Held>,
        gpu: usize,
        bytes: u64,
    ) -> Result<(), BoardError> {
        let Some(held) = held else { return Ok(()) };
        let (free, _) = held.left(self, gpu);
        let wanted = bytes.checked_next_multiple_of(GRANULARITY);
        match wanted.filter(|w| *w <= free) {
            Some(_) => Ok(()),
            None => Err(BoardError::OutOfMemory {
                wanted: bytes,
                free,
            }),
        }
    }

    /// Frees what [`State::reserve`] took.
    pub(crate) fn release(
        &mut self,
        owner: u64,
        gpu: usize,
        kind: MemoryKind,
        bytes: u64,
    ) -> Result<(), BoardError> {
        let row = self.use_row(owner, gpu)?;
        let held = &mut row.bytes[kind as usize];
        *held = held.saturating_sub(bytes.next_multiple_of(GRANULARITY));
        Ok(())
    }

    /// Bytes of a context. A client of MPS pays half, as its server has a part; the half is an assumption.
    pub(crate) fn context_cost(&self, owner: u64, gpu: usize) -> u64 {
        let whole = self.gpus[gpu].model().context_overhead;
        let mut uses = self.uses.iter();
        let client = uses.any(|u| u.owner == owner && u.gpu == gpu as u64 && u.is_mps_client());
        let cost = if client { whole / 2 } else { whole };
        cost.next_multiple_of(GRANULARITY)
    }

    /// Makes a context; returns its id.
    pub(crate) fn add_context(&mut self, owner: u64, gpu: usize) -> Result<u64, BoardError> {
        self.check_gpu(gpu)?;
        self.check_fault(owner, gpu)?;
        let wanted = self.context_cost(owner, gpu);
        let free = self.free_for(owner, gpu);
        let row = self.use_row(owner, gpu)?;
        if wanted > free {
            return Err(BoardError::OutOfMemory { wanted, free });
        }
        row.contexts += 1;
        row.context_bytes += wanted;
        Ok(self.fresh_id())
    }

    /// Ends a context and removes its overhead and its kernels.
    pub(crate) fn remove_context(
        &mut self,
        owner: u64,
        gpu: usize,
        context: u64,
    ) -> Result<(), BoardError> {
        self.cancel(|k| k.owner == owner && k.context == context);
        let row = self.use_row(owner, gpu)?;
        // All contexts of a process on one GPU cost the same.
        let one = row.context_bytes.checked_div(row.contexts).unwrap_or(0);
        row.context_bytes -= one;
        row.contexts = row.contexts.saturating_sub(1);
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::super::tests::state;
    use super::*;
    use crate::models::{MIB, MODELS};

    #[test]
    fn memory_goes_in_steps_of_the_granularity_up_to_the_total() {
        let (mut s, a) = state(&["rtx4090"]);
        let m = &MODELS[0];
        s.add_context(a, 0).expect("context");
        assert_eq!(s.used(0), m.context_overhead);
        assert_eq!(s.reserve(a, 0, MemoryKind::Device, 1).ok(), Some(2 * MIB));
        let left = s.free_bytes(0);
        assert_eq!(left, m.cuda_total() - m.context_overhead - 2 * MIB);
        let err = s.reserve(a, 0, MemoryKind::Pool, left + 1);
        assert!(
            matches!(err, Err(BoardError::OutOfMemory { free, .. }) if free == left),
            "{err:?}"
        );
        let err = s.reserve(a, 0, MemoryKind::Pool, u64::MAX);
        assert!(
            matches!(err, Err(BoardError::OutOfMemory { .. })),
            "{err:?}"
        );
        s.reserve(a, 0, MemoryKind::Virtual, left).expect("rest");
        assert_eq!(s.free_bytes(0), 0);
        s.release(a, 0, MemoryKind::Virtual, left).expect("release");
        assert_eq!(s.free_bytes(0), left);
    }

    #[test]
    fn managed_memory_is_known_but_not_counted() {
        let (mut s, a) = state(&["rtx4090"]);
        s.reserve(a, 0, MemoryKind::Managed, 100 << 30).expect("ok");
        assert_eq!(s.used(0), 0);
        assert_eq!(s.uses()[0].bytes[MemoryKind::Managed as usize], 100 << 30);
    }

    #[test]
    fn a_lost_or_absent_gpu_refuses() {
        let (mut s, a) = state(&["rtx4090"]);
        let r = s.reserve(a, 1, MemoryKind::Device, 1);
        assert!(matches!(r, Err(BoardError::NoSuchGpu { gpu: 1 })), "{r:?}");
        s.gpus[0].lost = 1;
        let r = s.reserve(a, 0, MemoryKind::Device, 1);
        assert!(matches!(r, Err(BoardError::Lost { gpu: 0 })), "{r:?}");
        let r = s.reserve(a + 1, 0, MemoryKind::Device, 1);
        assert!(matches!(r, Err(BoardError::NotRegistered)), "{r:?}");
    }
}
