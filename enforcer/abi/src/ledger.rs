//! How members of a claim share one cap without a lock and without a total.
//!
//! A member announces bytes in its slot's `reserving` word, then adds up everybody's `reserving` and
//! `charge`. Of two members that do this at the same time at least one sees the other, so the
//! charges together never pass the cap. `reserving` is read before `charge` and cleared after
//! `charge` is written: a reservation that settles meanwhile is seen once or twice, never not at all.
//!
//! The cap is read after the announcement. Lowering it and then reading the announcements and
//! the charges ([`most_charged`]) so gives an upper bound: a member that still counts on the old cap is
//! seen.
//!
//! A refusal that only other announcements caused is tried again: the lowest slot keeps its
//! announcement and looks again, the others withdraw theirs and wait. The rounds are bounded, so a
//! member that is stopped in the middle costs its neighbours a moment and never a hang.

/// Rounds after which a reservation that only announcements of others prevent is refused.
pub const CONFLICT_ROUNDS: u32 = 512;

/// The words of all slots. Loads, and stores of announcements, are sequentially consistent; all other
/// stores are seen in their order.
pub trait Slots {
    /// Number of slots that count.
    fn count(&self) -> usize;
    /// Settled bytes of a slot.
    fn charge(&self, slot: usize) -> u64;
    /// Announced bytes of a slot.
    fn reserving(&self, slot: usize) -> u64;
    /// Writes the settled bytes of the caller's own slot.
    fn set_charge(&self, slot: usize, bytes: u64);
    /// Writes the announced bytes of the caller's own slot.
    fn set_reserving(&self, slot: usize, bytes: u64);
    /// Lets others run before the next look.
    fn pause(&self, round: u32);
}

/// What became of a reservation.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Outcome {
    /// The own slot's charge has grown by the bytes asked for.
    Granted {
        /// Bytes that all members together are charged then.
        charged: u64,
    },
    /// Nothing has changed; `charged` is what all members hold, in bytes.
    Refused {
        /// Bytes that all members together were charged at the decision.
        charged: u64,
    },
}

/// Grows the charge of slot `me` from `own` to `own + bytes` if all charges together then stay
/// within the cap (all in bytes), which is read each time it is needed, with sequential consistency.
/// Only one thread per slot may do so at a time.
pub fn reserve(
    slots: &impl Slots,
    me: usize,
    own: u64,
    bytes: u64,
    cap: impl Fn() -> u64,
) -> Outcome {
    reserve_within(slots, me, own, bytes, cap, CONFLICT_ROUNDS)
}

fn reserve_within(
    slots: &impl Slots,
    me: usize,
    own: u64,
    bytes: u64,
    cap: impl Fn() -> u64,
    rounds: u32,
) -> Outcome {
    let wanted = own.saturating_add(bytes);
    let mut round = 0;
    slots.set_reserving(me, bytes);
    loop {
        let mut others: u64 = 0;
        let mut announced: u64 = 0;
        let mut lower_announces = false;
        for slot in (0..slots.count()).filter(|&slot| slot != me) {
            let reserving = slots.reserving(slot);
            others = others.saturating_add(slots.charge(slot));
            announced = announced.saturating_add(reserving);
            lower_announces |= reserving > 0 && slot < me;
        }
        let cap = cap();
        let settled = wanted.saturating_add(others);
        if settled.saturating_add(announced) <= cap && wanted < u64::MAX {
            slots.set_charge(me, wanted);
            slots.set_reserving(me, 0);
            return Outcome::Granted { charged: settled };
        }
        if settled > cap || wanted == u64::MAX || round >= rounds {
            slots.set_reserving(me, 0);
            return Outcome::Refused {
                charged: own.saturating_add(others),
            };
        }
        if lower_announces {
            slots.set_reserving(me, 0);
            while round < rounds && (0..me).any(|slot| slots.reserving(slot) > 0) {
                slots.pause(round);
                round += 1;
            }
            slots.set_reserving(me, bytes);
        } else {
            slots.pause(round);
        }
        round += 1;
    }
}

/// The most bytes that a slot can be charged under caps that were lowered before this look: what it holds
/// and what it has announced.
pub fn most_charged(slots: &impl Slots, slot: usize) -> u64 {
    let reserving = slots.reserving(slot);
    slots.charge(slot).saturating_add(reserving)
}

#[cfg(test)]
mod tests;
