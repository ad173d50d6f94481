//! The decisions of gshare without side effects: units, claims, the ledger, placement and the queue.
//!
//! Invariants: no I/O, no clock, no randomness. All decisions go through [`machine::Machine::step`], which takes the
//! time and one event and returns actions. Only the service turns actions into system calls.
#![forbid(unsafe_code)]

pub mod attribution;
pub mod claim;
pub mod class;
pub mod ledger;
pub mod machine;
pub mod mig;
mod millis;
pub mod place;
pub mod play;
pub mod predict;
pub mod quota;
pub mod reason;
pub mod reconcile;
pub mod resize;
pub mod sched;
pub mod size;
pub mod units;

pub use claim::{ClaimId, Class, ModeWish, Request, RequestError};
pub use ledger::{Admission, GpuFacts, Held, Ledger, Sharing, Slice};
pub use machine::{Action, Event, Machine};
pub use quota::{Party, Quota};
pub use reason::Reason;
pub use resize::{Change, ResizeError};
pub use size::Size;
pub use units::{Bytes, Share};
