//! Errors of a board.

use std::fmt;
use std::path::PathBuf;

/// An error of the simulated board.
#[derive(Debug)]
pub enum BoardError {
    /// A system call on a file of the board failed.
    Io {
        doing: &'static str,
        path: PathBuf,
        source: std::io::Error,
    },
    /// The file is not a board of this version.
    NotABoard { path: PathBuf, why: String },
    /// The specification names an unknown GPU model.
    UnknownModel { slug: String },
    /// A table of the board has no free row.
    Full {
        /// Which table: processes, kernels and so on.
        what: &'static str,
        /// How many rows it has.
        rows: usize,
    },
    /// The GPU index is out of range.
    NoSuchGpu { gpu: usize },
    /// The process is not, or no longer, on the board.
    NotRegistered,
    /// The GPU has less free memory than requested.
    OutOfMemory {
        /// Bytes requested, rounded up.
        wanted: u64,
        /// Bytes free on the GPU.
        free: u64,
    },
    /// The GPU has fallen off the bus.
    Lost {
        /// The GPU's index.
        gpu: usize,
    },
    /// The process or its MPS server had a fault; every call returns its code.
    Fault {
        /// The `CUresult`.
        code: u32,
    },
    /// A block of this shape does not fit on an SM of the GPU.
    TooLarge,
    /// A process has the GPU open, or uses the instance.
    InUse {
        /// The GPU's index.
        gpu: usize,
        /// One of those processes; 0 if it is not visible from this pid namespace.
        pid: i32,
    },
    /// Memory cannot move to a GPU of another model or to an instance.
    OtherModel { gpu: usize },
}

impl fmt::Display for BoardError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Io { doing, path, .. } => write!(f, "cannot {doing} {}", path.display()),
            Self::NotABoard { path, why } => {
                write!(
                    f,
                    "{} is not a board of this version: {why}",
                    path.display()
                )
            }
            Self::UnknownModel { slug } => {
                let known: Vec<_> = crate::models::MODELS.iter().map(|m| m.slug).collect();
                write!(f, "no GPU model {slug:?}; known: {}", known.join(", "))
            }
            Self::Full { what, rows } => write!(f, "the board's {rows} {what} are all taken"),
            Self::NoSuchGpu { gpu } => write!(f, "the board has no GPU {gpu}"),
            Self::NotRegistered => write!(f, "the process is not registered on the board"),
            Self::OutOfMemory { wanted, free } => {
                write!(f, "{wanted} bytes wanted, {free} bytes free on the GPU")
            }
            Self::InUse { gpu, pid } => {
                write!(f, "GPU {gpu} is in use by another client (pid {pid})")
            }
            Self::Lost { gpu } => write!(f, "GPU {gpu} is lost"),
            Self::Fault { code } => write!(f, "the process has had a fault (CUDA error {code})"),
            Self::OtherModel { gpu } => write!(f, "GPU {gpu} is of another model"),
            Self::TooLarge => write!(f, "a block of this shape fits on no SM"),
        }
    }
}

impl std::error::Error for BoardError {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        match self {
            Self::Io { source, .. } => Some(source),
            _ => None,
        }
    }
}
