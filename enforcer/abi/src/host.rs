//! The service's side of the pages. Everything that a member can write is read as a claim to be
//! checked: numbers are clamped, identities come from the service's own record, no lock is taken.

mod doorbell;
mod limits;
mod usage;

pub use doorbell::Doorbell;
pub use limits::{LimitsFile, LimitsInit};
pub use usage::{AssignError, Assigned, GateWatch, SlotView, UsageMemfd};

/// Has the calling thread, the arbiter's, run before ordinary ones where the service may ask for that;
/// whoever waits for a turn waits for it. Gives whether it does.
pub fn hurry() -> bool {
    crate::sys::hurry()
}
