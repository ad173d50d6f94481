//! Checkpoints of processes by the driver (`cuCheckpointProcess*`, CUDA 12.8 and later): a process is locked (its CUDA
//! calls wait), its device memory moves to its own host memory, and later back, to the same GPUs or, from CUDA 13.0 on,
//! to others of the same model.
//!
//! The driver requires `cuInit` in the caller, which takes seconds on a large machine. So one process does nothing else
//! ([`serve`]); the service talks to it through [`Engine`] and starts another when it dies or hangs. Nothing is lost
//! then: the target process finishes a step that has begun, and [`Engine::state`] tells its state.
//!
//! Permissions: the driver accesses `/proc/PID` of the target and needs the same rights as `ptrace`: the same user and
//! a dumpable process, or `CAP_SYS_PTRACE`.

mod client;
mod serve;
mod sys;

use std::time::Duration;

use serde::{Deserialize, Serialize};

pub use client::Engine;
pub use serve::serve;

/// `CUprocessState`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum ProcessState {
    /// Its calls go through.
    Running,
    /// Its calls wait; its memory is on the GPU.
    Locked,
    /// Its calls wait; its memory is on the host.
    Checkpointed,
    /// A step failed midway: the process is lost.
    Failed,
    /// A step is in progress (CUDA 13.4 and later).
    Busy,
}

/// An operation on a process.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Step {
    /// Read its state.
    State,
    /// Stop its calls; without success after this many milliseconds it runs on.
    Lock {
        /// Milliseconds; 0 for no limit.
        timeout_ms: u32,
    },
    /// Move its memory to the host.
    Checkpoint,
    /// Move it back: from the first GPU of each pair to the second, by UUID (`GPU-...`); without pairs to the same GPU.
    /// Pairs must name every GPU that the process sees.
    Restore {
        /// Source and target.
        pairs: Vec<(String, String)>,
    },
    /// Let its calls through.
    Unlock,
}

impl Step {
    /// The driver's function.
    #[must_use]
    pub fn call(&self) -> &'static str {
        match self {
            Self::State => "cuCheckpointProcessGetState",
            Self::Lock { .. } => "cuCheckpointProcessLock",
            Self::Checkpoint => "cuCheckpointProcessCheckpoint",
            Self::Restore { .. } => "cuCheckpointProcessRestore",
            Self::Unlock => "cuCheckpointProcessUnlock",
        }
    }
}

/// Why a step failed.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum CheckpointError {
    #[error("the checkpoint engine cannot start: {0}")]
    NoEngine(String),
    #[error("this driver cannot checkpoint processes (needs release 570 or later)")]
    NoSuchDriver,
    #[error("{call} on process {pid} failed: {name} ({code})")]
    Call {
        call: &'static str,
        pid: i32,
        code: i32,
        name: String,
    },
    /// The engine was ended; the target process may still finish the step.
    #[error("{call} on process {pid} did not end within {} s", patience.as_secs_f32())]
    TimedOut {
        call: &'static str,
        pid: i32,
        patience: Duration,
    },
    #[error("the checkpoint engine died during {call} on process {pid}")]
    Died { call: &'static str, pid: i32 },
}

/// `CUDA_ERROR_OUT_OF_MEMORY`.
const OUT_OF_MEMORY: i32 = 2;
/// `CUDA_ERROR_ILLEGAL_STATE`.
const ILLEGAL_STATE: i32 = 401;
/// `CUDA_ERROR_NOT_READY`.
const NOT_READY: i32 = 600;
/// `CUDA_ERROR_NOT_INITIALIZED`.
const NOT_INITIALIZED: i32 = 3;
/// `CUDA_ERROR_INVALID_VALUE`.
const INVALID_VALUE: i32 = 1;

impl CheckpointError {
    fn is_code(&self, wanted: i32) -> bool {
        matches!(self, Self::Call { code, .. } if *code == wanted)
    }

    /// A lock timed out: a call or work of the process did not end.
    #[must_use]
    pub fn is_not_ready(&self) -> bool {
        self.is_code(NOT_READY)
    }

    /// The target process.
    #[must_use]
    pub fn pid(&self) -> Option<i32> {
        match self {
            Self::Call { pid, .. } | Self::TimedOut { pid, .. } | Self::Died { pid, .. } => {
                Some(*pid)
            }
            Self::NoEngine(_) | Self::NoSuchDriver => None,
        }
    }

    /// The process is in another state than the step requires.
    #[must_use]
    pub fn is_illegal_state(&self) -> bool {
        self.is_code(ILLEGAL_STATE)
    }

    /// The GPU has no room for the restored memory.
    #[must_use]
    pub fn is_out_of_memory(&self) -> bool {
        self.is_code(OUT_OF_MEMORY)
    }

    /// A map of GPUs was refused.
    #[must_use]
    pub fn is_invalid(&self) -> bool {
        self.is_code(INVALID_VALUE)
    }

    /// After a query of the state: the process does not use CUDA.
    fn has_no_cuda(&self) -> bool {
        self.is_code(INVALID_VALUE) || self.is_code(NOT_INITIALIZED)
    }

    /// The engine gave no answer; the state of the process must be queried.
    #[must_use]
    pub fn is_unanswered(&self) -> bool {
        matches!(self, Self::TimedOut { .. } | Self::Died { .. })
    }
}

/// One line to the engine.
#[derive(Debug, Serialize, Deserialize)]
struct Request {
    seq: u64,
    pid: i32,
    step: Step,
}

/// One line from it. The first has no number: it tells whether the driver can be used.
#[derive(Debug, Serialize, Deserialize)]
struct Answer {
    seq: u64,
    #[serde(flatten)]
    outcome: Outcome,
}

#[derive(Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
enum Outcome {
    Done,
    State(ProcessState),
    Failed { code: i32, name: String },
    Unusable(String),
    NoSuchDriver,
}
