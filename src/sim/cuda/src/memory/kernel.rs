//! Device memory as a running kernel sees it.

use std::ptr;
use std::sync::Arc;

use gshare_sim_ptx::{DeviceMemory, MemFault};

/// The memory of a running kernel.
pub(crate) struct KernelMemory {
    pub ranges: Arc<Vec<(u64, u64)>>,
    /// The range of the last access: kernels mostly stay in one range.
    pub last: (u64, u64),
}

impl KernelMemory {
    #[inline]
    fn check(&mut self, addr: u64, len: u64) -> Result<(), MemFault> {
        let fits = |r: (u64, u64)| addr >= r.0 && addr < r.1 && len <= r.1 - addr;
        if fits(self.last) {
            return Ok(());
        }
        let after = self.ranges.partition_point(|r| r.0 <= addr);
        match after.checked_sub(1).map(|i| self.ranges[i]) {
            Some(r) if fits(r) => {
                self.last = r;
                Ok(())
            }
            _ => Err(MemFault),
        }
    }
}

impl DeviceMemory for KernelMemory {
    fn load(&mut self, addr: u64, buf: &mut [u8]) -> Result<(), MemFault> {
        self.check(addr, buf.len() as u64)?;
        // SAFETY: the range is mapped and stays so while the launch holds the memory gate.
        unsafe { ptr::copy_nonoverlapping(addr as *const u8, buf.as_mut_ptr(), buf.len()) };
        Ok(())
    }

    fn store(&mut self, addr: u64, data: &[u8]) -> Result<(), MemFault> {
        self.check(addr, data.len() as u64)?;
        // SAFETY: as in `load`.
        unsafe { ptr::copy_nonoverlapping(data.as_ptr(), addr as *mut u8, data.len()) };
        Ok(())
    }
}
