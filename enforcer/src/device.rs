//! Which GPU a member can open: a BPF device filter on the claim's cgroup.
//!
//! The rules of a claim ([`DeviceRules`]) become a small program ([`program`], pure), which the
//! kernel runs at every open of a device node by a member or its children ([`Filters`]); a node can
//! be made, since that opens nothing. It is attached to the cgroup itself, so it stays when the
//! service dies; descriptors that are already open are not touched. A parent's filter is asked too:
//! one refusal is enough.
//!
//! [`Guard`] is the other way round: a filter on the cgroups where users' programs start, which keeps
//! what belongs to no claim from the GPUs and lets claims below those cgroups through.

mod filter;
mod guard;
mod insn;
mod program;
mod sys;

pub use filter::{Attached, DeviceError, Filters};
pub use guard::{Guard, GuardRules, Refusal, Refusals, guard_program, open_tree};
pub use insn::Insn;
pub use program::{DeviceRules, program};
