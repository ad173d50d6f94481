//! The service's side of the pages. Everything that a member can write is read as a claim to be
//! checked: numbers are clamped, identities come from the service's own record, no lock is taken.

mod doorbell;
mod limits;
mod usage;

pub use doorbell::Doorbell;
pub use limits::{LimitsFile, LimitsInit};
pub use usage::{AssignError, Assigned, GateWatch, SlotView, UsageMemfd};

/// How a thread of the service stands to users' programs on the machine's processors. An ordinary user's service may
/// not ask for more than they have.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Priority {
    /// The arbiter: claims wait for their turns.
    Arbiter,
    /// Everything that programs wait for while they start: twenty kernels at once would leave the service a twentieth of
    /// a processor.
    Service,
    /// What nobody waits for, and programs that the service starts.
    Background,
}

impl Priority {
    /// Gives it to the calling thread, and to the threads and processes that this one starts. False where it may not.
    pub fn take(self) -> bool {
        crate::sys::set_nice(match self {
            Self::Arbiter => -15,
            Self::Service => -10,
            Self::Background => 0,
        })
    }
}
