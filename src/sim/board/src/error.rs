//! What can go wrong with a board.

use std::fmt;
use std::path::PathBuf;

/// An error of the simulated board.
#[derive(Debug)]
pub enum BoardError {
    /// A system call on a file of the board failed.
    Io {
        /// What was being done.
        doing: &'static str,
        /// The file.
        path: PathBuf,
        /// Why it failed.
        source: std::io::Error,
    },
    /// The file is not a board of this version.
    NotABoard {
        /// The file.
        path: PathBuf,
        /// What is wrong with it.
        why: String,
    },
    /// The specification names a GPU model that the catalogue lacks.
    UnknownModel {
        /// The slug that was asked for.
        slug: String,
    },
    /// A table of the board has no free row.
    Full {
        /// Which table: processes, kernels and so on.
        what: &'static str,
        /// How many rows it has.
        rows: usize,
    },
    /// The GPU index is out of range.
    NoSuchGpu {
        /// The index that was asked for.
        gpu: usize,
    },
    /// The process is not on the board (any more).
    NotRegistered,
    /// The GPU has less free memory than was asked for.
    OutOfMemory {
        /// Bytes asked for, rounded up.
        wanted: u64,
        /// Bytes free on the GPU.
        free: u64,
    },
    /// The GPU has fallen off the bus.
    Lost {
        /// The GPU's index.
        gpu: usize,
    },
    /// The process has had a fault, its own or one of its MPS server, and ends every call with its code.
    Fault {
        /// The `CUresult`.
        code: u32,
    },
    /// A block of this shape fits on no SM of the GPU.
    TooLarge,
    /// A process has the GPU open, or uses the instance.
    InUse {
        /// The GPU's index.
        gpu: usize,
        /// One of those processes; 0 where it cannot be seen from here.
        pid: i32,
    },
    /// Memory cannot be moved to a GPU of another model, nor to an instance.
    OtherModel {
        /// The GPU that it was to go to.
        gpu: usize,
    },
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
