//! How members of a claim share one cap without a lock and without a total.
//!
//! A member announces bytes in its slot's `reserving` word, then adds up everybody's `reserving` and `charge`. Of two
//! members that do this at the same time at least one sees the other, so the sum of the charges never exceeds the cap.
//! `reserving` is read before `charge` and cleared after `charge` is written: a reservation that settles meanwhile is
//! seen once or twice, never missed.
//!
//! The cap is read after the announcement. So lowering it and then reading the announcements and the charges
//! ([`most_charged`]) gives an upper bound: a member that still uses the old cap is seen.
//!
//! A refusal caused only by other announcements is retried: the lowest slot keeps its announcement and looks again, the
//! others withdraw theirs and wait. The rounds are bounded, so a member that is stopped midway costs its neighbours a
//! moment and never a hang.

/// Rounds after which a reservation is refused that only others' announcements prevent.
pub const CONFLICT_ROUNDS: u32 = 512;

/// The words of all slots. Loads, and stores of announcements, are sequentially consistent; all other stores become
/// visible in order.
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

/// Result of a reservation.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Outcome {
    /// The caller's charge has grown by the requested bytes.
    Granted {
        /// Sum of all members' charges afterwards, in bytes.
        charged: u64,
    },
    /// Nothing has changed.
    Refused {
        /// Sum of all members' charges at the decision, in bytes.
        charged: u64,
    },
}

/// Grows the charge of slot `me` from `own` to `own + bytes` if the sum of all charges stays within the cap, all in
/// bytes. The cap is read each time it is needed, with sequential consistency. One thread per slot at a time.
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

/// Upper bound of a slot's charge under caps lowered before this call: its charge and its announced reservation.
pub fn most_charged(slots: &impl Slots, slot: usize) -> u64 {
    let reserving = slots.reserving(slot);
    slots.charge(slot).saturating_add(reserving)
}

#[cfg(test)]
mod tests;
