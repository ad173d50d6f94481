//! The BPF instructions that a device filter needs.

/// One 8-byte BPF instruction.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(C)]
pub struct Insn {
    /// Operation.
    pub code: u8,
    /// Destination register in the low four bits, source in the high four.
    pub registers: u8,
    /// Jump distance in instructions, or offset in bytes of a memory access.
    pub offset: i16,
    /// Constant operand.
    pub immediate: i32,
}

#[derive(Debug, Clone, Copy)]
pub(super) enum Reg {
    /// The return value.
    R0 = 0,
    /// The context at entry.
    R1 = 1,
    R2 = 2,
    R3 = 3,
    R4 = 4,
    /// The end of the stack.
    R10 = 10,
}

impl Insn {
    fn new(code: u8, dst: Reg, src: Reg, offset: i16, immediate: i32) -> Self {
        Self {
            code,
            registers: dst as u8 | (src as u8) << 4,
            offset,
            immediate,
        }
    }

    /// `dst = *(u32 *)(src + offset)`
    pub(super) fn load_word(dst: Reg, src: Reg, offset: i16) -> Self {
        Self::new(0x61, dst, src, offset, 0)
    }

    /// `dst &= mask`
    pub(super) fn and(dst: Reg, mask: u16) -> Self {
        Self::new(0x57, dst, Reg::R0, 0, mask.into())
    }

    /// `dst = value`
    pub(super) fn set(dst: Reg, value: i32) -> Self {
        Self::new(0xb7, dst, Reg::R0, 0, value)
    }

    /// Skips `distance` instructions if the low word of `reg` equals `value`.
    pub(super) fn skip_if_equal(reg: Reg, value: u32, distance: i16) -> Self {
        Self::new(0x16, reg, Reg::R0, distance, value.cast_signed())
    }

    /// Skips `distance` instructions if the low word of `reg` differs from `value`.
    pub(super) fn skip_unless_equal(reg: Reg, value: u32, distance: i16) -> Self {
        Self::new(0x56, reg, Reg::R0, distance, value.cast_signed())
    }

    /// Skips `distance` instructions.
    pub(super) fn skip(distance: i16) -> Self {
        Self::new(0x05, Reg::R0, Reg::R0, distance, 0)
    }

    /// Skips `distance` instructions if `a` equals `b` in all 64 bits.
    pub(super) fn skip_if_same(a: Reg, b: Reg, distance: i16) -> Self {
        Self::new(0x1d, a, b, distance, 0)
    }

    /// `dst = value` in all 64 bits: two instructions.
    pub(super) fn set_long(dst: Reg, value: u64) -> [Self; 2] {
        let [low, high] = [value as u32, (value >> 32) as u32];
        [
            Self::new(0x18, dst, Reg::R0, 0, low.cast_signed()),
            Self::new(0, Reg::R0, Reg::R0, 0, high.cast_signed()),
        ]
    }

    /// `dst = address of a map`, by its descriptor: two instructions.
    pub(super) fn set_map(dst: Reg, map: i32) -> [Self; 2] {
        [
            Self::new(0x18, dst, Reg::R1, 0, map),
            Self::new(0, Reg::R0, Reg::R0, 0, 0),
        ]
    }

    /// `dst = the stack's end + offset`: two instructions.
    pub(super) fn set_stack(dst: Reg, offset: i32) -> [Self; 2] {
        [
            Self::new(0xbf, dst, Reg::R10, 0, 0),
            Self::new(0x07, dst, Reg::R0, 0, offset),
        ]
    }

    /// `*(u32 *)(the stack's end + offset) = src`
    pub(super) fn store_word(src: Reg, offset: i16) -> Self {
        Self::new(0x63, Reg::R10, src, offset, 0)
    }

    /// `*(u64 *)(the stack's end + offset) = src`
    pub(super) fn store_long(src: Reg, offset: i16) -> Self {
        Self::new(0x7b, Reg::R10, src, offset, 0)
    }

    /// Calls a function of the kernel: arguments from `r1` on, the result in `r0`.
    pub(super) fn call(function: i32) -> Self {
        Self::new(0x85, Reg::R0, Reg::R0, 0, function)
    }

    /// Returns `r0`.
    pub(super) fn exit() -> Self {
        Self::new(0x95, Reg::R0, Reg::R0, 0, 0)
    }

    /// The instruction in the kernel's encoding.
    #[must_use]
    pub fn to_bytes(self) -> [u8; 8] {
        let [o0, o1] = self.offset.to_ne_bytes();
        let [i0, i1, i2, i3] = self.immediate.to_ne_bytes();
        [self.code, self.registers, o0, o1, i0, i1, i2, i3]
    }
}

const _: () = assert!(size_of::<Insn>() == 8);
