//! Memory of whole processes leaves the GPUs and comes back, on the same GPUs or on others.

use super::{MARKS, Mark, State, Use};
use crate::error::BoardError;

const NO_MARK: Mark = Mark {
    at_ns: 0,
    busy_ns: 0.0,
    sm_ns: 0.0,
    warp_ns: 0.0,
};

impl State {
    /// Bytes of a process, on GPUs or parked.
    pub(crate) fn bytes_of(&self, owner: u64) -> u64 {
        let own = self.uses().iter().filter(|u| u.owner == owner);
        own.fold(0, |sum: u64, u| sum.saturating_add(u.own_bytes()))
    }

    /// Takes the memory of a process off its GPUs; returns its bytes.
    pub(crate) fn park(&mut self, owner: u64) -> Result<u64, BoardError> {
        if !self.is_registered(owner) {
            return Err(BoardError::NotRegistered);
        }
        for u in self.uses_mut().iter_mut().filter(|u| u.owner == owner) {
            u.parked = 1;
        }
        Ok(self.bytes_of(owner))
    }

    /// Puts the memory back, all or nothing: from each GPU to the one that `to` returns for it.
    pub(crate) fn unpark(
        &mut self,
        owner: u64,
        to: impl Fn(usize) -> usize,
    ) -> Result<u64, BoardError> {
        if !self.is_registered(owner) {
            return Err(BoardError::NotRegistered);
        }
        let own = |u: &&Use| u.owner == owner;
        let moves: Vec<(usize, usize, u64)> = self
            .uses()
            .iter()
            .filter(own)
            .map(|u| (u.gpu as usize, to(u.gpu as usize), u.own_bytes()))
            .collect();
        for (from, gpu, _) in &moves {
            self.check_gpu(*gpu)?;
            let (old, new) = (&self.gpus()[*from], &self.gpus()[*gpu]);
            if old.model != new.model || old.parent != new.parent {
                return Err(BoardError::OtherModel { gpu: *gpu });
            }
            let wanted = moves.iter().filter(|m| m.1 == *gpu).map(|m| m.2).sum();
            let free = self.free_bytes(*gpu);
            if wanted > free {
                return Err(BoardError::OutOfMemory { wanted, free });
            }
        }
        for u in self.uses_mut().iter_mut().filter(|u| u.owner == owner) {
            let gpu = to(u.gpu as usize) as u64;
            if gpu != u.gpu {
                // Its totals on the previous GPU do not move with it.
                (u.busy_ns, u.sm_ns, u.warp_ns) = (0.0, 0.0, 0.0);
                u.marks = [NO_MARK; MARKS];
                u.gpu = gpu;
            }
            u.parked = 0;
        }
        Ok(self.bytes_of(owner))
    }
}

#[cfg(test)]
mod tests {
    use super::super::tests::state;
    use super::*;
    use crate::state::MemoryKind;

    const GIB: u64 = 1 << 30;

    #[test]
    fn parked_memory_is_on_no_gpu_and_comes_back_whole_or_not_at_all() {
        let (mut s, a) = state(&["rtx4090", "rtx4090", "h100"]);
        s.reserve(a, 0, MemoryKind::Device, 16 * GIB).expect("a");
        assert_eq!(s.park(a).ok(), Some(16 * GIB));
        assert_eq!((s.used(0), s.bytes_of(a)), (0, 16 * GIB));
        let b = s.add_process(3, 101, 1001, 2, "second");
        s.reserve(b, 0, MemoryKind::Device, 10 * GIB).expect("room");
        let back = s.unpark(a, |gpu| gpu);
        assert!(matches!(back, Err(BoardError::OutOfMemory { .. })));
        let other = s.unpark(a, |_| 2);
        assert!(matches!(other, Err(BoardError::OtherModel { gpu: 2 })));
        let absent = s.unpark(a, |_| 9);
        assert!(matches!(absent, Err(BoardError::NoSuchGpu { gpu: 9 })));
        assert_eq!((s.used(0), s.used(1)), (10 * GIB, 0), "nothing was changed");
        s.unpark(a, |_| 1).expect("fits there");
        assert_eq!((s.used(0), s.used(1)), (10 * GIB, 16 * GIB));
    }
}
