//! The wire between `gshared` and its clients: JSON lines over a Unix socket.
//!
//! Shape: the client's first line is [`Hello`]; each further line is a [`Call`]. The service answers
//! every line with one [`Reply`] line; `claim` and `watch` answer with several. A line is at most
//! [`MAX_LINE`] bytes. The client's user comes from the kernel (SO_PEERCRED), never from a field.
//!
//! Compatibility: fields may be added and unknown fields are ignored, so a newer service serves an
//! older client of the same [`PROTOCOL`]; a change of meaning raises the number, and the service
//! refuses other numbers with the code `protocol`.
#![forbid(unsafe_code)]

pub mod admin;
pub mod bounds;
pub mod call;
pub mod client;
pub mod counts;
pub mod figures;
pub mod gain;
pub mod health;
pub mod history;
pub mod messages;
mod place;
mod queue;
pub mod snapshot;
pub mod suggest;
pub mod totals;

pub use gshare_core::units;

pub use admin::{
    AdminCall, AdminDone, AuditEntry, ClaimFor, Conformance, DrainView, MOVED_BY_SLURM, QuotaView,
    SLURM_JOB,
};
pub use bounds::{CommandLine, Label, List, Text, printable};
pub use call::{
    Call, Check, ClaimSpec, ContainerPlace, ErrorCode, Granted, Hello, KernelSpec, LeaseView,
    LeverWish, Queued, Reply, ResizeSpec, Resized, ResizedGpu, SignalSpec, StoredPlace, StoredView,
    TakingView, Tried, TriedGpu, Wait, WireError,
};
pub use client::{Client, ClientError};
pub use health::{Grade, HealthView, RemappedView, XidView};
pub use history::{
    Fared, GpuReport, Heat, HistoryBy, HistoryPoint, HistorySeries, HistorySpec, HistoryView, Idle,
    IdleHolding, ProjectReport, ReportSpec, ReportView, SharingView, Usage, UserFared, UserReport,
};
pub use place::{IdleView, LeversView, ModelRoomView, PlaceView};
pub use queue::{ExpectedView, QueueView, starts_when};
pub use snapshot::{
    Advice, Caps, ClaimGpu, ClaimState, ClaimView, ClaimableView, Figure, GpuState, GpuView,
    Identity, InstanceView, LaterView, Named, Notice, OffView, ProcessView, ServiceView, Snapshot,
    Source, StageView, StuckView, TurnsView, UnclaimedView, UserView,
};
pub use suggest::{SuggestSpec, SuggestView, Suggestion};

/// Version of the protocol that this build speaks.
pub const PROTOCOL: u32 = 1;

/// Longest line either side accepts, in bytes.
pub const MAX_LINE: usize = 256 * 1024;
