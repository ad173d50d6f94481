//! Shares of GPU time, as state machines without IO, clock or threads.
//!
//! On a GPU that several claims use at once, one claim has the *turn*. Its processes launch as far as the turn allows,
//! by the learnt durations of their kernels, then wait; when their work on the GPU is over, the turn passes on. Only
//! one heavy claim's work is on the GPU at a time, so the length of a turn is its cost: no events of several processes have
//! to be reconciled, and a kernel that took longer than its turn is paid for afterwards.
//!
//! * [`Arbiter`] decides whose turn it is; the service runs one per GPU.
//! * [`Member`] is the gate of one process on one GPU.
//! * [`Tally`] is what a launch touches, without a lock: it adds up the loads of a process's launches, whether or not
//!   claims share the GPU, and holds the durations of kernels and what the gate has granted to streams.
//! * [`Word`] is the arbiter's message to the members.
//!
//! All times are nanoseconds of one clock (`CLOCK_MONOTONIC`) unless a name says otherwise.

#![forbid(unsafe_code)]

pub mod arbiter;
mod durations;
mod fill;
mod member;
mod rhythm;
mod tally;
mod timeline;
mod word;

pub use arbiter::{Arbiter, Claim, Order, Process};
pub use durations::{Expected, Key, LEAST_NS, Measure, Records};
pub use fill::{Fill, Kernels};
pub use member::{Learnt, MARKERS, Member, Rest, Signals, Verdict, View};
pub use tally::{Load, SAMPLE_NS, Step, Tally, place};
pub use timeline::{Current, Timeline};
pub use word::{Flags, Frame, Mode, Word};

/// Interval of the arbiter's heartbeat while claims take turns; up to three of it where nothing is to be decided.
pub const PERIOD_NS: u64 = 10_000_000;
/// An arbiter that was silent for this long is assumed gone, and each claim keeps to its own request.
pub const SILENCE_NS: u64 = 5 * PERIOD_NS;
/// Predicted GPU time that a stream may use between two checks at the gate.
pub const CHUNK_NS: u64 = 1_000_000;
/// How far the holder of a turn may run ahead of the GPU.
const QUEUED_NS: u64 = 2_000_000;
