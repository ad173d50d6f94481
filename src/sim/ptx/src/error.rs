//! What can go wrong: text that is no PTX, memory that is not there, a kernel that must stop.

use std::error::Error;
use std::fmt;

/// A PTX text that cannot be loaded, with the place where reading it failed.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PtxError {
    /// Line of the text, counted from 1.
    pub line: u32,
    /// What is wrong there.
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

/// An access to device memory that nothing is mapped at (or that may not be written).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct MemFault {
    /// First address of the access, in bytes.
    pub addr: u64,
}

/// Why a launch stopped before its last thread had ended.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub enum Trap {
    /// The module has no kernel of this name.
    UnknownKernel(String),
    /// The launch configuration cannot be run; the text says which part.
    InvalidLaunch(String),
    /// An instruction that this interpreter does not carry.
    Unsupported {
        /// Line of the instruction in the PTX text.
        line: u32,
        /// The instruction as written, or what about it is not carried.
        text: String,
    },
    /// A load, store or atomic at an address that is not mapped.
    IllegalAddress {
        /// The address in bytes.
        addr: u64,
        /// Bytes accessed there.
        size: u32,
        /// Line of the instruction in the PTX text.
        line: u32,
    },
    /// A load, store or atomic at an address that is no multiple of its size.
    MisalignedAddress {
        /// The address in bytes.
        addr: u64,
        /// Bytes accessed there.
        size: u32,
        /// Line of the instruction in the PTX text.
        line: u32,
    },
    /// A thread reached `trap` or `brkpt`.
    Instruction {
        /// Line of the instruction in the PTX text.
        line: u32,
    },
    /// A variable of the module was used before [`bind_global`](crate::Module::bind_global).
    UnboundGlobal(String),
    /// A thread's call stack outgrew the local memory a thread may have.
    StackOverflow {
        /// Line of the call in the PTX text.
        line: u32,
    },
    /// The launch used up its instruction budget.
    Budget,
}

impl fmt::Display for Trap {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::UnknownKernel(name) => write!(f, "kernel {name} is not in the module"),
            Self::InvalidLaunch(why) => write!(f, "launch cannot be run: {why}"),
            Self::Unsupported { line, text } => {
                write!(
                    f,
                    "ptx line {line}: the interpreter does not carry `{text}`"
                )
            }
            Self::IllegalAddress { addr, size, line } => {
                write!(
                    f,
                    "ptx line {line}: illegal access of {size} bytes at {addr:#x}"
                )
            }
            Self::MisalignedAddress { addr, size, line } => {
                write!(
                    f,
                    "ptx line {line}: misaligned access of {size} bytes at {addr:#x}"
                )
            }
            Self::Instruction { line } => write!(f, "ptx line {line}: trap instruction reached"),
            Self::UnboundGlobal(name) => write!(f, "variable {name} has no address"),
            Self::StackOverflow { line } => write!(f, "ptx line {line}: call stack overflow"),
            Self::Budget => f.write_str("launch ran longer than its instruction budget"),
        }
    }
}

impl Error for Trap {}
