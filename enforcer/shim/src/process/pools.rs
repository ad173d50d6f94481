//! The charge of a member's pools: the driver is asked after every growth and whenever a pool may have released memory.

use std::sync::{MutexGuard, PoisonError, atomic::Ordering};

use super::Process;
use crate::{
    capture::any_capture,
    cuda::{Handle, SUCCESS},
    driver,
    ledger::Refusal,
    live::Live,
    pools::{Asked, PoolTicket, Pools, reserved_now, units},
    reservation::Reservation,
};

impl Process {
    fn pools(&self) -> MutexGuard<'_, Pools> {
        self.pools.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(crate) fn pool_created(&self, handle: Handle, gpu: Option<usize>) {
        self.pools().add(handle, gpu);
    }

    /// Makes sure that a pool is known; `here` is the GPU of a pool whose creation the proxy has not seen.
    #[cold]
    fn meet_pool(&self, handle: Handle, here: usize) {
        // The program never makes a device's default pool.
        let gpu = self.default_pool_device(handle).unwrap_or(here);
        let mut pools = self.pools();
        // Another thread may have added it meanwhile.
        if pools.by_handle(handle).is_none() {
            pools.add(handle, Some(gpu));
        }
    }

    fn default_pool_device(&self, handle: Handle) -> Option<usize> {
        let default = driver::helpers().default_pool?;
        self.devices().find_map(|(device, gpu)| {
            let mut pool: Handle = 0;
            // SAFETY: `pool` is valid for the result.
            let result = unsafe { default(&raw mut pool, device) };
            (result == SUCCESS && pool == handle).then_some(gpu)
        })
    }

    /// Charges an allocation from a pool as if the pool had to grow for all of it. If the cap forbids that after the
    /// pool was squeezed, an allocation that fits into the rest of the pool's last block may still be tried: the pool
    /// need not grow for it. `here` is the GPU of a pool whose creation the proxy has not seen.
    pub(crate) fn reserve_in_pool(
        &'static self,
        handle: Handle,
        here: usize,
        bytes: u64,
        squeezed: bool,
        ticket: &mut PoolTicket,
    ) -> Result<Asked, Refusal> {
        let mut pools = self.pools();
        if pools.by_handle(handle).is_none() {
            drop(pools);
            self.meet_pool(handle, here);
            pools = self.pools();
        }
        let Some(pool) = pools.by_handle(handle) else {
            return Ok(Asked::Free);
        };
        let Some((index, gpu)) = pool
            .gpu
            .and_then(|index| Some((index, self.gpus.get(index)?)))
        else {
            return Ok(Asked::Free);
        };
        ticket.gpu = index;
        if !gpu.granted() {
            return Ok(Asked::NotGranted);
        }
        let whole = gpu.rounded(bytes).max(pool.step);
        let unused = pool.charged.saturating_sub(pool.used);
        let fits = unused >= units(bytes) && bytes < gpu.rounded(1).max(pool.step);
        ticket.growth = match Reservation::charge(gpu, whole) {
            // Another allocation in flight could use the same bytes.
            Err(_) if squeezed && pool.pending == 0 && fits => Reservation::default(),
            charged => charged?,
        };
        pool.pending += ticket.growth.charged();
        pool.used = pool.used.saturating_add(units(bytes));
        pool.live += 1;
        pool.changes += 1;
        ticket.pool = pool.id;
        ticket.handle = handle;
        Ok(Asked::Charged)
    }

    /// The driver has decided; with `made`, charges the pool's present memory. An error means that the pool grew beyond
    /// the cap and the allocation must be freed.
    pub(crate) fn settle_in_pool(
        &self,
        ticket: &mut PoolTicket,
        bytes: u64,
        made: bool,
    ) -> Result<u64, Refusal> {
        let now = reserved_now(ticket.handle);
        let mut pools = self.pools();
        let (Some(pool), Some(gpu)) = (pools.by_id(ticket.pool), self.gpus.get(ticket.gpu)) else {
            return Ok(ticket.pool);
        };
        let charged = ticket.growth.charged();
        pool.pending = pool.pending.saturating_sub(charged);
        pool.changes += 1;
        if !made {
            pool.used = pool.used.saturating_sub(units(bytes));
            pool.live = pool.live.saturating_sub(1);
            return Ok(ticket.pool);
        }
        // Without the driver's figure each growth counts, and nothing counts as released before the pool is empty.
        let holds = now.map_or(pool.charged + charged, |now| gpu.rounded(now));
        let mut growth = holds.saturating_sub(pool.charged);
        if pool.pending > 0 {
            // The figure may contain the growth of allocations in flight; the last one takes all.
            growth = growth.min(charged);
            self.pools_changed.store(true, Ordering::Relaxed);
        }
        if growth > gpu.rounded(bytes) && pool.pending == 0 {
            pool.step = pool.step.max(growth);
        }
        if let Err(refusal) = ticket.growth.commit_growth(gpu, growth) {
            pool.used = pool.used.saturating_sub(units(bytes));
            pool.live = pool.live.saturating_sub(1);
            return Err(refusal);
        }
        pool.charged += growth;
        gpu.ledger().born(bytes);
        Ok(ticket.pool)
    }

    /// An allocation has returned to its pool.
    pub(crate) fn left_pool(&self, id: u64, live: &Live) {
        let mut pools = self.pools();
        let Some(gpu) = self.gpus.get(live.gpu) else {
            return;
        };
        let mut empty = false;
        if let Some(pool) = pools.by_id(id) {
            pool.used = pool.used.saturating_sub(units(live.bytes));
            pool.live = pool.live.saturating_sub(1);
            pool.changes += 1;
            if pool.destroyed {
                let keeps = if pool.live == 0 { 0 } else { pool.charged };
                gpu.ledger().shrink(pool.charged - keeps);
                pool.charged = keeps;
                empty = pool.live == 0;
            }
        }
        if empty {
            pools.pools.retain(|pool| pool.id != id);
        }
        gpu.ledger().died(live.bytes);
        self.pools_changed.store(true, Ordering::Relaxed);
    }

    /// The driver is about to destroy a pool: waits for queries about it, and prevents new ones.
    pub(crate) fn pool_ends(&self, handle: Handle) -> Option<u64> {
        let mut pools = self.pools();
        let pool = pools.by_handle(handle)?;
        pool.ending = true;
        let id = pool.id;
        while pools.asked.contains(&handle) {
            drop(pools);
            std::thread::yield_now();
            pools = self.pools();
        }
        Some(id)
    }

    pub(crate) fn pool_ended(&self, id: u64, destroyed: bool) {
        let mut pools = self.pools();
        let mut gone = None;
        if let Some(pool) = pools.by_id(id) {
            (pool.ending, pool.destroyed) = (false, destroyed);
            if destroyed && pool.live == 0 {
                gone = Some((pool.id, pool.gpu, pool.charged));
            }
        }
        if let Some((id, gpu, charged)) = gone {
            pools.pools.retain(|pool| pool.id != id);
            if let Some(gpu) = gpu.and_then(|gpu| self.gpus.get(gpu)) {
                gpu.ledger().shrink(charged);
            }
        }
    }

    /// Asks the driver about a pool, unless the program has destroyed it.
    fn ask_of<R>(&self, id: u64, ask: impl FnOnce(Handle) -> R) -> Option<R> {
        let mut pools = self.pools();
        let pool = pools.by_id(id).filter(|pool| pool.is_askable())?;
        let handle = pool.handle;
        pools.asked.push(handle);
        drop(pools);
        let answer = ask(handle);
        let mut pools = self.pools();
        if let Some(at) = pools.asked.iter().position(|asked| *asked == handle) {
            pools.asked.swap_remove(at);
        }
        Some(answer)
    }

    /// Asks the driver for each pool's present memory and charges it.
    pub(crate) fn refresh_pools(&self) {
        self.pools_changed.store(false, Ordering::Relaxed);
        let known: Vec<(u64, u64)> = self
            .pools()
            .pools
            .iter()
            .filter(|pool| pool.gpu.is_some() && pool.is_askable())
            .map(|pool| (pool.id, pool.changes))
            .collect();
        for (id, changes) in known {
            let Some(now) = self.ask_of(id, reserved_now) else {
                continue;
            };
            let mut pools = self.pools();
            let Some(pool) = pools.by_id(id) else {
                continue;
            };
            let Some(gpu) = pool.gpu.and_then(|gpu| self.gpus.get(gpu)) else {
                continue;
            };
            if pool.pending > 0 || pool.changes != changes || !pool.is_askable() {
                self.pools_changed.store(true, Ordering::Relaxed);
                continue;
            }
            let holds = match now {
                Some(now) => gpu.rounded(now),
                None if pool.live == 0 => 0,
                None => continue,
            };
            let mut ledger = gpu.ledger();
            if holds < pool.charged {
                ledger.shrink(pool.charged - holds);
            } else if holds > pool.charged {
                ledger.force(holds - pool.charged);
            }
            pool.charged = holds;
            // Freed memory that is not released yet goes at a later synchronisation.
            if holds > gpu.rounded(pool.used) {
                self.pools_changed.store(true, Ordering::Relaxed);
            }
        }
    }

    /// Before a refusal: makes the GPU's pools release unused memory, as the driver does when it runs short itself.
    pub(crate) fn squeeze_pools(&self, gpu: usize) {
        // A capture must not see these calls.
        if any_capture() {
            return;
        }
        self.squeeze_graphs(gpu);
        let Some(trim) = driver::helpers().pool_trim else {
            return;
        };
        let unused: Vec<u64> = self
            .pools()
            .pools
            .iter()
            .filter(|pool| pool.gpu == Some(gpu) && pool.is_askable() && pool.charged > 0)
            .map(|pool| pool.id)
            .collect();
        if unused.is_empty() {
            return;
        }
        for id in unused {
            // SAFETY: a pool that the driver named and that the program has not destroyed.
            self.ask_of(id, |handle| unsafe { trim(handle, 0) });
        }
        self.refresh_pools();
    }
}
