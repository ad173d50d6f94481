//! The decoded form: what the parser makes and the interpreter runs.

use crate::types::Ty;

/// Threads of a warp.
pub(crate) const WARP: usize = 32;
/// One register of a warp: a value per lane.
pub(crate) type Lanes = [u64; WARP];
/// A pure instruction: reads three operands, writes the lanes in the mask.
pub(crate) type AluFn = fn(u32, &Lanes, &Lanes, &Lanes, &mut Lanes);

/// Generic addresses from here on are shared, local and parameter memory.
pub(crate) const SHARED_BASE: u64 = 1 << 56;
pub(crate) const LOCAL_BASE: u64 = 2 << 56;
pub(crate) const PARAM_BASE: u64 = 3 << 56;
/// Addresses of functions, for indirect calls.
pub(crate) const CODE_BASE: u64 = 4 << 56;

/// A register of the frame, or (top bit set) an entry of the function's constants.
pub(crate) type Src = u32;
pub(crate) const CONST_BIT: u32 = 1 << 31;
/// No guard; otherwise the predicate register, top bit set for `@!`.
pub(crate) const NO_GUARD: u32 = u32::MAX;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum MemSpace {
    Generic,
    Global,
    Shared,
    Local,
    Param,
}

/// What an address is counted from.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Base {
    Reg(Src),
    Zero,
    /// Offset in the frame's local memory.
    Frame,
    /// Offset in the kernel's parameter buffer.
    KernelParam,
    /// Offset in the module's layout of shared memory.
    Shared,
    /// After all static shared memory.
    DynamicShared,
    /// Index of a module variable.
    Global(u32),
    /// Index of a function.
    Code(u32),
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Addr {
    pub(crate) base: Base,
    pub(crate) offset: i64,
}

#[derive(Debug, Clone)]
pub(crate) struct MemOp {
    pub(crate) space: MemSpace,
    pub(crate) ty: Ty,
    pub(crate) addr: Addr,
    /// Registers of a load (`u32::MAX`: `_`), operands of a store; 1, 2, 4 or 8.
    pub(crate) regs: Vec<u32>,
}

#[derive(Debug, Clone)]
pub(crate) struct AtomOp {
    pub(crate) space: MemSpace,
    pub(crate) ty: Ty,
    pub(crate) addr: Addr,
    /// None for `red`.
    pub(crate) dst: Option<u32>,
    pub(crate) b: Src,
    pub(crate) c: Src,
    pub(crate) apply: fn(u64, u64, u64) -> u64,
}

/// Where an argument comes from, or where a formal parameter lives.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Place {
    /// A register (or, as an argument, a constant), with its size in bytes.
    Reg(Src, u32),
    /// Bytes of the frame's local memory.
    Frame { offset: u32, size: u32 },
}

#[derive(Debug, Clone)]
pub(crate) struct CallOp {
    pub(crate) target: Target,
    pub(crate) args: Vec<Place>,
    pub(crate) rets: Vec<Place>,
}

#[derive(Debug, Clone)]
pub(crate) enum Target {
    Direct(u32),
    /// The register holds the address of a function.
    Indirect(Src),
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Special {
    Tid(u8),
    Ntid(u8),
    Ctaid(u8),
    Nctaid(u8),
    LaneId,
    WarpId,
    NwarpId,
    SmId,
    NsmId,
    GridId,
    LaneMaskEq,
    LaneMaskLe,
    LaneMaskLt,
    LaneMaskGe,
    LaneMaskGt,
    Clock,
    ClockHi,
    GlobalTimer,
    GlobalTimerHi,
    DynamicSharedSize,
    TotalSharedSize,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Shfl {
    Up,
    Down,
    Bfly,
    Idx,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Vote {
    Any,
    All,
    Uni,
    Ballot,
}

#[derive(Debug, Clone)]
pub(crate) enum Op {
    Alu {
        f: AluFn,
        d: u32,
        a: Src,
        b: Src,
        c: Src,
    },
    Ld(Box<MemOp>),
    St(Box<MemOp>),
    Atom(Box<AtomOp>),
    Special {
        d: u32,
        which: Special,
    },
    Address {
        d: u32,
        addr: Addr,
    },
    Bra(u32),
    /// Branch to the entry of the list that the register names.
    Brx {
        index: Src,
        targets: Box<[u32]>,
    },
    Call(Box<CallOp>),
    ActiveMask(u32),
    Shfl {
        mode: Shfl,
        d: u32,
        p: u32,
        args: Box<[Src; 4]>,
    },
    Vote {
        mode: Vote,
        d: u32,
        a: Src,
        members: Src,
    },
    Barrier {
        id: Src,
    },
    Nop,
    Ret,
    Exit,
    Trap,
    /// Index of the text of an instruction that is not carried.
    Unsupported(u32),
}

#[derive(Debug, Clone)]
pub(crate) struct Inst {
    pub(crate) op: Op,
    pub(crate) guard: u32,
    pub(crate) line: u32,
    /// 1 for an instruction of the text, 0 for the helpers it was cut into.
    pub(crate) weight: u8,
}

#[derive(Debug, Clone, Default)]
pub(crate) struct Function {
    pub(crate) name: String,
    pub(crate) code: Vec<Inst>,
    pub(crate) consts: Vec<Lanes>,
    /// Registers of a frame.
    pub(crate) regs: u32,
    /// 32-bit words of each register (0: predicate).
    pub(crate) reg_words: Vec<u8>,
    /// Bytes of local memory of a frame.
    pub(crate) frame_bytes: u32,
    pub(crate) params: Vec<Place>,
    pub(crate) rets: Vec<Place>,
    /// Texts of the instructions that are not carried.
    pub(crate) unsupported: Vec<String>,
    /// Whether warps may have to wait for each other.
    pub(crate) has_barrier: bool,
}
