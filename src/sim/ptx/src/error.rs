//! Errors: invalid PTX, unmapped memory, a kernel that must stop.

use std::error::Error;
use std::fmt;

/// A PTX text that cannot be loaded, and where reading failed.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PtxError {
    /// Line of the text, counted from 1.
    pub line: u32,
    pub message: String,
}

impl PtxError {
    pub(crate) fn new(line: u32, message: impl Into<String>) -> Self {
        Self {
            line,
            message: message.into(),
        }
    }
}

impl fmt::Display for PtxError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "ptx line {}: {}", self.line, self.message)
    }
}

impl Error for PtxError {}

/// An access to unmapped device memory.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct MemFault;

/// Why a launch stopped before its last thread had ended. Lines are those of the PTX text.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Trap {
    /// The interpreter does not support this instruction.
    Unsupported {
        /// Line of the instruction.
        line: u32,
        /// The instruction as written, or its unsupported part.
        text: String,
    },
    /// A load, store or atomic at an unmapped address.
    IllegalAddress {
        /// The address in bytes.
        addr: u64,
        /// Line of the instruction.
        line: u32,
    },
    /// A load, store or atomic at an address that is not a multiple of its size.
    MisalignedAddress {
        /// The address in bytes.
        addr: u64,
        /// Line of the instruction.
        line: u32,
    },
    /// A thread reached `trap` or `brkpt`.
    Instruction {
        /// Line of the instruction.
        line: u32,
    },
    /// A variable of the module was used before [`bind_global`](crate::Module::bind_global).
    UnboundGlobal(String),
    /// The launch used up its instruction budget.
    Budget,
}

impl fmt::Display for Trap {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Unsupported { line, text } => {
                write!(
                    f,
                    "ptx line {line}: the interpreter does not carry `{text}`"
                )
            }
            Self::IllegalAddress { addr, line } => {
                write!(f, "ptx line {line}: illegal access at {addr:#x}")
            }
            Self::MisalignedAddress { addr, line } => {
                write!(f, "ptx line {line}: misaligned access at {addr:#x}")
            }
            Self::Instruction { line } => write!(f, "ptx line {line}: trap instruction reached"),
            Self::UnboundGlobal(name) => write!(f, "variable {name} has no address"),
            Self::Budget => f.write_str("launch ran longer than its instruction budget"),
        }
    }
}

impl Error for Trap {}
