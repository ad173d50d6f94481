//! This process's charge on one GPU, and its seat in the claim's pages. Each change rewrites the process's own figures
//! in the slot, which repairs what a neighbour may have overwritten.

use std::sync::atomic::Ordering;

use gshare_abi::{Bell, LimitsPage, Outcome, Slot, Stripes, UsagePage, monotonic_ns};

use crate::blocks::Blocks;

/// How a live allocation is charged.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Charge {
    /// Shares a block with others.
    Shared,
    /// An allocation of this many bytes.
    Own(u64),
}

/// The process's place in the pages of a GPU.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Seat {
    pub(crate) limits: &'static LimitsPage,
    pub(crate) usage: &'static UsagePage,
    pub(crate) slot: usize,
    pub(crate) generation: u64,
    /// Calls the GPU's arbiter, if the service gave a bell.
    pub(crate) bell: Option<&'static Bell>,
}

impl Seat {
    pub(crate) fn slot(&self) -> &'static Slot {
        &self.usage.slots[self.slot]
    }

    pub(crate) fn stripes(&self) -> &'static Stripes {
        &self.usage.stripes[self.slot]
    }

    /// Whether the process still owns its slot.
    pub(crate) fn holds(&self) -> bool {
        self.slot().generation.load(Ordering::Relaxed) == self.generation
    }
}

/// Why memory was not charged.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Refusal {
    /// The claim would exceed its cap; its present charge in bytes.
    AtCap { charged: u64 },
    /// The slot belongs to another process now.
    SeatLost,
}

/// The figures that every allocation changes come first, beside the lock.
#[repr(C)]
#[derive(Debug)]
pub(crate) struct Ledger {
    charge: u64,
    requested: u64,
    allocations: u64,
    pub(crate) seat: Seat,
    context_bytes: u64,
    pub(crate) blocks: Blocks,
    /// An allocation that counts on room in a block is in the driver; a second one must not count on the same room.
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
        // After an exec the slot is the same, and the previous program's memory is gone.
        ledger.publish();
        ledger.publish_counts();
        ledger
    }

    pub(crate) fn cap(&self) -> u64 {
        self.seat.limits.memory_cap_bytes.load(Ordering::SeqCst)
    }

    /// Charges bytes if the claim's cap allows it.
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

    /// Counts an allocation of the program; the charge is separate.
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

    /// Highest charge of the claim that this process has seen.
    pub(crate) fn peak(&self) -> u64 {
        match self.seat.holds() {
            true => self.seat.slot().charge_peak.load(Ordering::Relaxed),
            false => 0,
        }
    }

    /// Notes a refusal of this many bytes in the slot.
    pub(crate) fn refused(&self, bytes: u64) {
        if self.seat.holds() {
            let slot = self.seat.slot();
            slot.last_refused_bytes.store(bytes, Ordering::Relaxed);
            slot.last_refusal_ns
                .store(monotonic_ns(), Ordering::Relaxed);
            slot.refusals.fetch_add(1, Ordering::Relaxed);
        }
    }

    /// Moves all figures to a new seat.
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
