//! The decoded form of a kernel, including the functions that it calls: output of the parser, input of the interpreter.

/// Threads per warp.
pub(crate) const WARP: usize = 32;
/// One register of a warp: a value per lane. Bits above the type of an instruction are undefined.
pub(crate) type Lanes = [u64; WARP];
/// Computes an instruction's result from its sources.
pub(crate) type Alu = fn(u64, u64, u64) -> u64;

/// Start of shared and local memory in the generic address space.
pub(crate) const SHARED_BASE: u64 = 1 << 56;
pub(crate) const LOCAL_BASE: u64 = 2 << 56;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Ty {
    U8,
    U16,
    U32,
    U64,
    S8,
    S16,
    S32,
    S64,
    F32,
    F64,
    Pred,
}

impl Ty {
    /// The type of that name; bit types are unsigned.
    pub(crate) fn parse(word: &str) -> Option<Self> {
        Some(match word {
            "u8" | "b8" => Self::U8,
            "u16" | "b16" => Self::U16,
            "u32" | "b32" => Self::U32,
            "u64" | "b64" => Self::U64,
            "s8" => Self::S8,
            "s16" => Self::S16,
            "s32" => Self::S32,
            "s64" => Self::S64,
            "f32" => Self::F32,
            "f64" => Self::F64,
            "pred" => Self::Pred,
            _ => return None,
        })
    }

    /// Bytes in memory.
    pub(crate) fn size(self) -> u32 {
        match self {
            Self::U8 | Self::S8 | Self::Pred => 1,
            Self::U16 | Self::S16 => 2,
            Self::U32 | Self::S32 | Self::F32 => 4,
            Self::U64 | Self::S64 | Self::F64 => 8,
        }
    }

    pub(crate) fn is_float(self) -> bool {
        matches!(self, Self::F32 | Self::F64)
    }

    pub(crate) fn is_signed(self) -> bool {
        matches!(self, Self::S8 | Self::S16 | Self::S32 | Self::S64)
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Space {
    Generic,
    Global,
    Shared,
    Local,
    /// The parameter buffer of the kernel.
    Param,
}

#[derive(Debug, Clone, Copy)]
pub(crate) enum Base {
    Zero,
    Register(u32),
    /// A variable of the module.
    Global(u32),
}

#[derive(Debug, Clone, Copy)]
pub(crate) struct Addr {
    pub(crate) space: Space,
    pub(crate) base: Base,
    pub(crate) offset: i64,
}

/// Registers that the GPU sets; the number is the axis.
#[derive(Debug, Clone, Copy)]
pub(crate) enum Special {
    Tid(usize),
    Ntid(usize),
    Ctaid(usize),
    Nctaid(usize),
    Lane,
}

/// Joint operations of a warp's lanes.
#[derive(Debug, Clone, Copy)]
pub(crate) enum Meeting {
    Up,
    Down,
    Butterfly,
    Index,
    Any,
    All,
    Uniform,
    Ballot,
}

/// Operands are registers of the frame.
#[derive(Debug, Clone)]
pub(crate) enum Op {
    Alu {
        f: Alu,
        d: u32,
        args: [u32; 3],
    },
    Special {
        d: u32,
        which: Special,
    },
    Address {
        d: u32,
        addr: Addr,
    },
    Load {
        ty: Ty,
        addr: Addr,
        /// One per element of the vector.
        regs: Vec<u32>,
    },
    Store {
        ty: Ty,
        addr: Addr,
        regs: Vec<u32>,
    },
    /// `f` takes the old value and two operands.
    Atomic {
        ty: Ty,
        addr: Addr,
        d: u32,
        f: Alu,
        args: [u32; 2],
    },
    Jump(u32),
    Barrier,
    Meet {
        how: Meeting,
        d: u32,
        /// Destination: whether a shuffle had another lane to read from.
        found: u32,
        /// Value, distance, clamp.
        args: [u32; 3],
        members: u32,
    },
    Exit,
    Trap,
    /// The text of an unsupported instruction.
    Unsupported(String),
}

#[derive(Debug, Clone)]
pub(crate) struct Inst {
    pub(crate) op: Op,
    /// The predicate, and whether it must be false.
    pub(crate) guard: Option<(u32, bool)>,
    pub(crate) line: u32,
}

#[derive(Debug, Clone, Default)]
pub(crate) struct Code {
    pub(crate) insts: Vec<Inst>,
    pub(crate) registers: u32,
    /// Registers that hold constants.
    pub(crate) constants: Vec<(u32, u64)>,
    /// Local memory per thread in bytes.
    pub(crate) local: u32,
    /// Whether warps may have to wait for each other.
    pub(crate) barrier: bool,
}
