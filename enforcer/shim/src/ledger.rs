//! What this process is charged on one GPU, and its seat in the claim's pages. The slot always shows
//! the process's own figures, so a neighbour that scribbled over it is put right by the next change.

use std::sync::atomic::Ordering;

use gshare_abi::{Bell, LimitsPage, Outcome, Slot, Stripes, UsagePage, monotonic_ns};

use crate::blocks::Blocks;

/// How an allocation that lives is charged.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Charge {
    /// With others in a block.
    Shared,
    /// So many bytes of its own.
    Own(u64),
}

/// Where the process sits on a GPU.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Seat {
    pub(crate) limits: &'static LimitsPage,
    pub(crate) usage: &'static UsagePage,
    pub(crate) slot: usize,
    pub(crate) generation: u64,
    /// By which the GPU's arbiter is called, where the service gave one.
    pub(crate) bell: Option<&'static Bell>,
}

impl Seat {
    pub(crate) fn slot(&self) -> &'static Slot {
        &self.usage.slots[self.slot]
    }

    pub(crate) fn stripes(&self) -> &'static Stripes {
        &self.usage.stripes[self.slot]
    }

    /// Whether the slot is still this process's.
    pub(crate) fn holds(&self) -> bool {
        self.slot().generation.load(Ordering::Relaxed) == self.generation
    }
}

/// Why memory was not charged.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Refusal {
    /// The claim would pass its cap; it is charged so many bytes now.
    AtCap { charged: u64 },
    /// The slot belongs to another process by now.
    SeatLost,
}

/// The figures that every allocation changes come first, so that they lie beside the lock.
#[repr(C)]
#[derive(Debug)]
pub(crate) struct Ledger {
    charge: u64,
    requested: u64,
    allocations: u64,
    pub(crate) seat: Seat,
    context_bytes: u64,
    pub(crate) blocks: Blocks,
    /// An allocation that counts on room in a block is with the driver; a second one must not
    /// count on the same room.
    pub(crate) room_spoken_for: bool,
}

impl Ledger {
    pub(crate) fn new(seat: Seat) -> Self {
        let granularity = seat.limits.granularity_bytes.load(Ordering::Relaxed);
        let ledger = Self {
            charge: 0,
            requested: 0,
            allocations: 0,
            seat,
            context_bytes: 0,
            blocks: Blocks::new(granularity),
            room_spoken_for: false,
        };
        // After an exec the slot is the same, and what the program before held is gone.
        ledger.publish();
        ledger.publish_counts();
        ledger
    }

    pub(crate) fn cap(&self) -> u64 {
        self.seat.limits.memory_cap_bytes.load(Ordering::SeqCst)
    }

    /// Charges bytes if the claim's cap allows.
    pub(crate) fn grow(&mut self, bytes: u64) -> Result<(), Refusal> {
        if bytes == 0 {
            return Ok(());
        }
        if !self.seat.holds() {
            return Err(Refusal::SeatLost);
        }
        let seat = &self.seat;
        match seat
            .usage
            .reserve(seat.slot, self.charge, bytes, || self.cap())
        {
            Outcome::Granted { charged } => {
                self.charge += bytes;
                let peak = &seat.slot().charge_peak;
                if charged > peak.load(Ordering::Relaxed) {
                    peak.store(charged, Ordering::Relaxed);
                }
                Ok(())
            }
            Outcome::Refused { charged } => Err(Refusal::AtCap { charged }),
        }
    }

    /// Charges bytes that the driver has taken already, whatever the cap.
    pub(crate) fn force(&mut self, bytes: u64) {
        if bytes > 0 {
            self.charge = self.charge.saturating_add(bytes);
            self.publish();
        }
    }

    pub(crate) fn shrink(&mut self, bytes: u64) {
        if bytes > 0 {
            self.charge = self.charge.saturating_sub(bytes);
            self.publish();
        }
    }

    /// Notes an allocation of the program; its charge is accounted apart.
    pub(crate) fn born(&mut self, requested: u64) {
        self.requested = self.requested.saturating_add(requested);
        self.allocations += 1;
        self.publish_counts();
    }

    pub(crate) fn died(&mut self, requested: u64) {
        self.requested = self.requested.saturating_sub(requested);
        self.allocations = self.allocations.saturating_sub(1);
        self.publish_counts();
    }

    pub(crate) fn context_born(&mut self, bytes: u64) {
        self.context_bytes = self.context_bytes.saturating_add(bytes);
        self.publish_counts();
    }

    pub(crate) fn context_died(&mut self, bytes: u64) {
        self.context_bytes = self.context_bytes.saturating_sub(bytes);
        self.publish_counts();
        self.shrink(bytes);
    }

    /// The most that the claim was charged, as far as this process has seen.
    pub(crate) fn peak(&self) -> u64 {
        match self.seat.holds() {
            true => self.seat.slot().charge_peak.load(Ordering::Relaxed),
            false => 0,
        }
    }

    /// Notes in the slot that the program was refused so many bytes.
    pub(crate) fn refused(&self, bytes: u64) {
        if self.seat.holds() {
            let slot = self.seat.slot();
            slot.last_refused_bytes.store(bytes, Ordering::Relaxed);
            slot.last_refusal_ns
                .store(monotonic_ns(), Ordering::Relaxed);
            slot.refusals.fetch_add(1, Ordering::Relaxed);
        }
    }

    /// Takes a new seat and brings everything along.
    pub(crate) fn move_to(&mut self, seat: Seat) {
        self.seat = seat;
        self.publish();
        self.publish_counts();
    }

    fn publish(&self) {
        if self.seat.holds() {
            self.seat
                .slot()
                .charge
                .store(self.charge, Ordering::Release);
        }
    }

    fn publish_counts(&self) {
        if self.seat.holds() {
            let slot = self.seat.slot();
            slot.requested.store(self.requested, Ordering::Relaxed);
            slot.allocations.store(self.allocations, Ordering::Relaxed);
            slot.context_bytes
                .store(self.context_bytes, Ordering::Relaxed);
        }
    }
}
