//! GPUs that a member can open: a BPF device filter on the claim's cgroup.
//!
//! The rules of a claim ([`DeviceRules`]) become a small program ([`program`], pure), which the kernel runs whenever a
//! member or its children open a device node ([`Filters`]). Making a node is allowed, since that opens nothing. The
//! program is attached to the cgroup itself, so it stays when the service dies; open descriptors are not affected.
//! Parents' filters run too: one refusal is enough.
//!
//! [`Guard`] is the opposite: a filter on the cgroups in which users' programs start, which keeps programs outside
//! claims from the GPUs and admits claims below those cgroups.

mod filter;
mod guard;
mod insn;
mod program;
mod sys;

pub use filter::{Attached, DeviceError, Filters};
pub use guard::{Guard, GuardRules, Refusal, Refusals, guard_program, open_tree};
pub use insn::Insn;
pub use program::{DeviceRules, program};
