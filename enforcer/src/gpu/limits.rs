//! Memory limits that the driver itself enforces on a control group: release 615 and later.

mod sys;

pub(super) use sys::obey;
pub use sys::{LimitError, LimitOrder};
