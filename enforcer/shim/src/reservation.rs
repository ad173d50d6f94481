//! Memory that is charged before the driver is asked for it: kept once the driver has given it, else given back.

use crate::{
    blocks::shares,
    gpu::Gpu,
    ledger::{Charge, Ledger, Refusal},
};

/// Bytes charged on a GPU for what the driver has not made yet. Whatever is not kept goes back when it is dropped. It is
/// filled and read in place: copies of what was just written word by word make the processor wait.
#[derive(Debug, Default)]
pub(crate) struct Reservation {
    /// `None`: nothing is to be given back.
    gpu: Option<&'static Gpu>,
    charged: u64,
    /// It counts as an allocation of so many bytes, as the program asked for them.
    asked: Option<u64>,
    counts_on_room: bool,
}

impl Reservation {
    /// Charges bytes that are no allocation of the program's.
    pub(crate) fn charge(gpu: &'static Gpu, bytes: u64) -> Result<Self, Refusal> {
        gpu.ledger().grow(bytes)?;
        Ok(Self {
            gpu: Some(gpu),
            charged: bytes,
            ..Self::default()
        })
    }

    /// Charges an allocation and counts it. A small one for which there is no room below the cap may still go into a
    /// block of the same heap that is charged already.
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

    /// Bytes that are charged.
    pub(crate) fn charged(&self) -> u64 {
        self.charged
    }

    /// The driver gave memory at `pointer`: charges what it really takes. An error means that it
    /// takes more than the cap allows; then nothing is charged and the memory has to go back.
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
        // Nearly all large allocations: the reservation stands as it is.
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

    /// The driver gave memory that has no address of its own: charges what it takes, whatever the cap.
    pub(crate) fn commit_unaddressed(&mut self, bytes: u64) {
        if let Some(gpu) = self.gpu.take() {
            let whole = gpu.rounded(bytes);
            let mut ledger = gpu.ledger();
            ledger.force(whole.saturating_sub(self.charged));
            self.made(&mut ledger, whole, bytes);
        }
    }

    /// The charge stays as it is.
    pub(crate) fn keep(&mut self) -> u64 {
        self.gpu = None;
        self.charged
    }

    /// What a pool has grown by is charged in its place. An error means that it is more than the cap allows; then nothing
    /// is.
    pub(crate) fn commit_growth(&mut self, gpu: &Gpu, bytes: u64) -> Result<(), Refusal> {
        let charged = std::mem::take(&mut self.charged);
        self.gpu = None;
        let mut ledger = gpu.ledger();
        let more = ledger.grow(bytes.saturating_sub(charged));
        let left = if more.is_ok() { bytes } else { 0 };
        ledger.shrink(charged.saturating_sub(left));
        more
    }

    /// It has so many bytes in fact, for which `cost` is charged at least.
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
