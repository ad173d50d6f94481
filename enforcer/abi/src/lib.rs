//! Shared by the service and a claim's processes: two mapped pages per claim and GPU, the protocol for reserving memory
//! in them, and the registration message.
//!
//! * [`LimitsPage`] goes one way: the service writes it, members map it read-only.
//! * [`UsagePage`] goes the other way: members write their own slot, the service reads it as
//!   untrusted input. There is no total anywhere; a total is the sum of the slots, so a process that
//!   dies between two stores loses nothing and the service gives its bytes back by zeroing one slot.
//!
//! Modules: `host` is the service's side, `member` the preloaded library's, [`wire`] the message that gets a member its
//! descriptors.

#![allow(
    unsafe_code,
    reason = "maps shared memory; every block states why it is sound"
)]

mod bell;
mod gate;
mod handover;
pub mod host;
mod layout;
mod ledger;
mod member;
mod places;
mod sizes;
mod staged;
mod sys;
mod trusted;
mod uuid;
pub mod wire;

pub use bell::Bell;
pub use gate::{Flight, GateSlot, GateView, WorkView};
pub use handover::{HANDOVER_LIMIT, Handover, NotHandover};
pub use layout::{
    ABI_VERSION, CHOSE_DEVICES, GRANULARITY_BYTES, HAS_CROWD, LIMITS_BYTES, LimitsPage, MARKS,
    Mark, Marks, NO_EVENT_TIMES, SHARES_MEMORY, SLOTS, STARTS_KERNELS, STRIPES, Slot, State,
    Stripe, Stripes, Turn, USAGE_BYTES, USES_FOREIGN, USES_MANAGED, USES_MULTICAST, UsagePage,
    WAITS_FROM,
};
pub use ledger::{CONFLICT_ROUNDS, Outcome, Slots, most_charged, reserve};
pub use member::{LimitsMap, UsageMap};
pub use places::{LATER, filled, place};
pub use sizes::{enough, size_between};
pub use staged::Staged;
pub use sys::{
    Reach, barrier, futex_wait, futex_wait_either, futex_wake, memfd, monotonic_ns, move_fd_up,
    on_time, recv_with_fds, send_with_fds,
};
pub use trusted::trusted;
pub use uuid::{GpuUuid, InvalidUuid};
