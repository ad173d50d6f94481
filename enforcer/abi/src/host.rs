//! The service's side of the pages. Everything that a member can write is untrusted: numbers are clamped, identities
//! come from the service's own record, no lock is taken.

mod doorbell;
mod limits;
mod usage;

pub use doorbell::Doorbell;
pub use limits::{LimitsFile, LimitsInit};
pub use usage::{AssignError, Assigned, GateWatch, SlotView, UsageMemfd};

/// Scheduling priority of a service thread relative to users' programs. A service of an ordinary user cannot raise it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Priority {
    /// The arbiter: claims wait for their turns.
    Arbiter,
    /// Everything that programs wait for while they start: beside twenty kernels the service would otherwise get a
    /// twentieth of a processor.
    Service,
    /// Work that nobody waits for, and programs that the service starts.
    Background,
}

impl Priority {
    /// Sets the priority of the calling thread; threads and processes that it starts inherit it. False without
    /// permission.
    pub fn take(self) -> bool {
        crate::sys::set_nice(match self {
            Self::Arbiter => -15,
            Self::Service => -10,
            Self::Background => 0,
        })
    }
}
