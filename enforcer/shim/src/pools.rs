//! Stream-ordered memory: the charge is the memory that a pool holds of the device, not the program's allocations from
//! the pool. The driver is asked for it after every growth and whenever the pool may have released some.

use crate::{
    cuda::{Handle, POOL_RESERVED_NOW, SUCCESS},
    driver,
    reservation::Reservation,
};

#[derive(Debug)]
pub(crate) struct Pool {
    pub(crate) id: u64,
    pub(crate) handle: Handle,
    /// `None`: host memory, or a GPU outside the claim.
    pub(crate) gpu: Option<usize>,
    /// Bytes charged for the pool's device memory.
    pub(crate) charged: u64,
    /// Bytes charged for growth that the driver has not decided yet.
    pub(crate) pending: u64,
    /// Bytes that the program has allocated from the pool, rounded as in the driver.
    pub(crate) used: u64,
    pub(crate) live: u64,
    /// Bytes by which the pool grew for a smaller request; 0 if it never did.
    pub(crate) step: u64,
    /// Changes with every change of the figures, to detect outdated ones.
    pub(crate) changes: u64,
    /// The program is destroying it; the driver may still refuse.
    pub(crate) ending: bool,
    /// Destroyed by the program; its memory goes with its last allocation.
    pub(crate) destroyed: bool,
}

impl Pool {
    /// Whether the driver may be asked about it.
    pub(crate) fn is_askable(&self) -> bool {
        !self.ending && !self.destroyed
    }
}

#[derive(Debug, Default)]
pub(crate) struct Pools {
    pub(crate) pools: Vec<Pool>,
    /// Handles that the driver is being asked about now.
    pub(crate) asked: Vec<Handle>,
    next: u64,
}

impl Pools {
    pub(crate) fn by_handle(&mut self, handle: Handle) -> Option<&mut Pool> {
        self.pools
            .iter_mut()
            .find(|pool| pool.handle == handle && !pool.destroyed)
    }

    pub(crate) fn by_id(&mut self, id: u64) -> Option<&mut Pool> {
        self.pools.iter_mut().find(|pool| pool.id == id)
    }

    pub(crate) fn add(&mut self, handle: Handle, gpu: Option<usize>) -> &mut Pool {
        self.next += 1;
        let at = self.pools.len();
        self.pools.push(Pool {
            id: self.next,
            handle,
            gpu,
            charged: 0,
            pending: 0,
            used: 0,
            live: 0,
            step: 0,
            changes: 0,
            ending: false,
            destroyed: false,
        });
        &mut self.pools[at]
    }
}

/// Result of a request for memory of a pool.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Asked {
    /// Not the claim's to charge.
    Free,
    /// The claim does not have the GPU.
    NotGranted,
    Charged,
}

/// A charge for an allocation that the driver has not made yet; filled and read in place.
#[derive(Debug, Default)]
pub(crate) struct PoolTicket {
    pub(crate) pool: u64,
    pub(crate) handle: Handle,
    pub(crate) gpu: usize,
    /// The reserved growth of the pool.
    pub(crate) growth: Reservation,
}

/// Bytes to which pools round.
const UNIT_BYTES: u64 = 512;

pub(crate) fn units(bytes: u64) -> u64 {
    bytes
        .max(1)
        .checked_next_multiple_of(UNIT_BYTES)
        .unwrap_or(u64::MAX)
}

/// Bytes that a pool holds of its device, according to the driver.
pub(crate) fn reserved_now(handle: Handle) -> Option<u64> {
    let mut bytes: u64 = 0;
    // SAFETY: this attribute is a 64-bit number, and `bytes` is valid for it.
    let result = unsafe {
        driver::helpers().pool_attribute?(handle, POOL_RESERVED_NOW, (&raw mut bytes).cast())
    };
    (result == SUCCESS).then_some(bytes)
}
