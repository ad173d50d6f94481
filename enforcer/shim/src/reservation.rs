//! Memory that is charged before the driver is asked for it: kept if the driver allocates it, else given back.

use crate::{
    blocks::shares,
    gpu::Gpu,
    ledger::{Charge, Ledger, Refusal},
};

/// Bytes charged on a GPU for memory that the driver has not allocated yet. The rest that is not kept is given back on
/// drop. It is filled and read in place: copying words just written stalls the processor.
#[derive(Debug, Default)]
pub(crate) struct Reservation {
    /// `None`: there is nothing to give back.
    gpu: Option<&'static Gpu>,
    charged: u64,
    /// Counts as an allocation of this many bytes, as requested by the program.
    asked: Option<u64>,
    counts_on_room: bool,
}

impl Reservation {
    /// Charges bytes that are not an allocation of the program.
    pub(crate) fn charge(gpu: &'static Gpu, bytes: u64) -> Result<Self, Refusal> {
        gpu.ledger().grow(bytes)?;
        Ok(Self {
            gpu: Some(gpu),
            charged: bytes,
            ..Self::default()
        })
    }

    /// Charges and counts an allocation. A small one that does not fit below the cap may still go into a charged block
    /// of the same heap.
    pub(crate) fn allocation(
        &mut self,
        gpu: &'static Gpu,
        heap: u64,
        bytes: u64,
    ) -> Result<(), Refusal> {
        let whole = gpu.rounded(bytes);
        let mut ledger = gpu.ledger();
        let counts_on_room = match ledger.grow(whole) {
            Ok(()) => false,
            Err(Refusal::AtCap { .. })
                if !ledger.room_spoken_for && ledger.blocks.has_room(heap, bytes) =>
            {
                ledger.room_spoken_for = true;
                true
            }
            Err(refusal) => return Err(refusal),
        };
        ledger.born(bytes);
        drop(ledger);
        self.gpu = Some(gpu);
        self.charged = if counts_on_room { 0 } else { whole };
        self.asked = Some(bytes);
        self.counts_on_room = counts_on_room;
        Ok(())
    }

    pub(crate) fn charged(&self) -> u64 {
        self.charged
    }

    /// The driver allocated memory at `pointer`: charges its actual size. An error means that the size exceeds the cap;
    /// then nothing is charged and the memory must be freed.
    #[inline]
    pub(crate) fn commit(
        &mut self,
        heap: u64,
        pointer: u64,
        bytes: u64,
    ) -> Result<Charge, Refusal> {
        let Some(gpu) = self.gpu.take() else {
            return Ok(Charge::Own(0));
        };
        let whole = gpu.rounded(bytes);
        let shared = shares(gpu.block_bytes, pointer, bytes);
        // Nearly all large allocations: the reservation is exact.
        if !shared && self.charged == whole && self.asked == Some(bytes) {
            return Ok(Charge::Own(whole));
        }
        let mut ledger = gpu.ledger();
        let (charge, cost) = match shared {
            true => (Charge::Shared, ledger.blocks.add(heap, pointer, bytes)),
            false => (Charge::Own(whole), whole),
        };
        if cost > self.charged
            && let Err(refusal) = ledger.grow(cost - self.charged)
        {
            if shared {
                ledger.blocks.remove(pointer, bytes);
            }
            self.undo(&mut ledger);
            return Err(refusal);
        }
        self.made(&mut ledger, cost, bytes);
        Ok(charge)
    }

    /// The driver allocated memory without an address of its own: charges it whatever the cap.
    pub(crate) fn commit_unaddressed(&mut self, bytes: u64) {
        if let Some(gpu) = self.gpu.take() {
            let whole = gpu.rounded(bytes);
            let mut ledger = gpu.ledger();
            ledger.force(whole.saturating_sub(self.charged));
            self.made(&mut ledger, whole, bytes);
        }
    }

    pub(crate) fn keep(&mut self) -> u64 {
        self.gpu = None;
        self.charged
    }

    /// Replaces the charge by the growth of a pool. An error means that the growth exceeds the cap; then nothing is
    /// charged.
    pub(crate) fn commit_growth(&mut self, gpu: &Gpu, bytes: u64) -> Result<(), Refusal> {
        let charged = std::mem::take(&mut self.charged);
        self.gpu = None;
        let mut ledger = gpu.ledger();
        let more = ledger.grow(bytes.saturating_sub(charged));
        let left = if more.is_ok() { bytes } else { 0 };
        ledger.shrink(charged.saturating_sub(left));
        more
    }

    /// It has this many bytes, charged with at least `cost`.
    fn made(&self, ledger: &mut Ledger, cost: u64, bytes: u64) {
        ledger.shrink(self.charged.saturating_sub(cost));
        ledger.room_spoken_for &= !self.counts_on_room;
        if let Some(asked) = self.asked.filter(|asked| *asked != bytes) {
            ledger.died(asked);
            ledger.born(bytes);
        }
    }

    fn undo(&self, ledger: &mut Ledger) {
        ledger.room_spoken_for &= !self.counts_on_room;
        if let Some(asked) = self.asked {
            ledger.died(asked);
        }
        ledger.shrink(self.charged);
    }
}

impl Drop for Reservation {
    #[inline]
    fn drop(&mut self) {
        if let Some(gpu) = self.gpu {
            self.undo(&mut gpu.ledger());
        }
    }
}
