//! Integers: arithmetic, carries, bits, shifts, comparisons and selection.

use super::each;
use crate::ir::{AluFn, Lanes};
use crate::types::{Ty, Val};

/// Operations whose result has the type of their operands.
pub(crate) fn integer(op: &str, ty: Ty) -> Option<AluFn> {
    match op {
        "add" => per_int!(ty, T => alu2!(T, T, |a, b| a.wrapping_add(b))),
        "sub" => per_int!(ty, T => alu2!(T, T, |a, b| a.wrapping_sub(b))),
        "mul.lo" => per_int!(ty, T => alu2!(T, T, |a, b| a.wrapping_mul(b))),
        "mad.lo" => per_int!(ty, T => alu3!(T, T, T, |a, b, c| a.wrapping_mul(b).wrapping_add(c))),
        // The GPU leaves a division by zero open; these are the values its own code sequences give.
        "div" => per_int!(ty, T => alu2!(T, T, |a, b| if b == 0 { !0 } else { a.wrapping_div(b) })),
        "rem" => per_int!(ty, T => alu2!(T, T, |a, b| if b == 0 { a } else { a.wrapping_rem(b) })),
        "min" => per_int!(ty, T => alu2!(T, T, |a, b| a.min(b))),
        "max" => per_int!(ty, T => alu2!(T, T, |a, b| a.max(b))),
        "sad" => per_int!(ty, T => alu3!(T, T, T, |a, b, c| c.wrapping_add(a.abs_diff(b) as T))),
        "not" => per_int!(ty, T => alu1!(T, |a| !a)),
        "cnot" => per_int!(ty, T => alu1!(T, |a| T::from(a == 0))),
        "and" => per_int!(ty, T => alu2!(T, T, |a, b| a & b)),
        "or" => per_int!(ty, T => alu2!(T, T, |a, b| a | b)),
        "xor" => per_int!(ty, T => alu2!(T, T, |a, b| a ^ b)),
        "neg" => per_int!(ty, T => alu1!(T, |a| a.wrapping_neg())),
        "abs" => match ty {
            Ty::S16 => Some(alu1!(i16, |a| a.wrapping_abs())),
            Ty::S32 => Some(alu1!(i32, |a| a.wrapping_abs())),
            Ty::S64 => Some(alu1!(i64, |a| a.wrapping_abs())),
            _ => None,
        },
        "add.sat" if ty == Ty::S32 => Some(alu2!(i32, i32, |a, b| a.saturating_add(b))),
        "sub.sat" if ty == Ty::S32 => Some(alu2!(i32, i32, |a, b| a.saturating_sub(b))),
        _ => None,
    }
}

/// The upper half of a product.
pub(crate) fn mul_hi(ty: Ty) -> Option<AluFn> {
    Some(match ty {
        Ty::U16 => alu2!(u16, u16, |a, b| ((u32::from(a) * u32::from(b)) >> 16)
            as u16),
        Ty::S16 => alu2!(i16, i16, |a, b| ((i32::from(a) * i32::from(b)) >> 16)
            as i16),
        Ty::U32 => alu2!(u32, u32, |a, b| ((u64::from(a) * u64::from(b)) >> 32)
            as u32),
        Ty::S32 => alu2!(i32, i32, |a, b| ((i64::from(a) * i64::from(b)) >> 32)
            as i32),
        Ty::U64 => alu2!(u64, u64, |a, b| ((u128::from(a) * u128::from(b)) >> 64)
            as u64),
        Ty::S64 => alu2!(i64, i64, |a, b| ((i128::from(a) * i128::from(b)) >> 64)
            as i64),
        _ => return None,
    })
}

/// A product of twice the width of its operands, which have type `ty`; with `add` plus a third operand.
pub(crate) fn mul_wide(ty: Ty, add: bool) -> Option<AluFn> {
    Some(match (ty, add) {
        (Ty::U16, false) => alu2!(u16, u16, |a, b| u32::from(a) * u32::from(b)),
        (Ty::S16, false) => alu2!(i16, i16, |a, b| i32::from(a) * i32::from(b)),
        (Ty::U32, false) => alu2!(u32, u32, |a, b| u64::from(a) * u64::from(b)),
        (Ty::S32, false) => alu2!(i32, i32, |a, b| i64::from(a) * i64::from(b)),
        (Ty::U16, true) => alu3!(u16, u16, u32, |a, b, c| (u32::from(a) * u32::from(b))
            .wrapping_add(c)),
        (Ty::S16, true) => alu3!(i16, i16, i32, |a, b, c| (i32::from(a) * i32::from(b))
            .wrapping_add(c)),
        (Ty::U32, true) => alu3!(u32, u32, u64, |a, b, c| (u64::from(a) * u64::from(b))
            .wrapping_add(c)),
        (Ty::S32, true) => alu3!(i32, i32, i64, |a, b, c| (i64::from(a) * i64::from(b))
            .wrapping_add(c)),
        _ => return None,
    })
}

/// Addition or subtraction with the carry flag as third operand: (result, new flag).
pub(crate) fn carry(subtract: bool, ty: Ty) -> Option<(AluFn, AluFn)> {
    Some(match (subtract, ty.size()) {
        (false, 4) => (
            alu3!(u32, u32, bool, |a, b, c| a
                .wrapping_add(b)
                .wrapping_add(u32::from(c))),
            alu3!(u32, u32, bool, |a, b, c| u64::from(a)
                + u64::from(b)
                + u64::from(c)
                > u64::from(u32::MAX)),
        ),
        (false, 8) => (
            alu3!(u64, u64, bool, |a, b, c| a
                .wrapping_add(b)
                .wrapping_add(u64::from(c))),
            alu3!(u64, u64, bool, |a, b, c| u128::from(a)
                + u128::from(b)
                + u128::from(c)
                > u128::from(u64::MAX)),
        ),
        // The flag of a subtraction is its borrow.
        (true, 4) => (
            alu3!(u32, u32, bool, |a, b, c| a
                .wrapping_sub(b)
                .wrapping_sub(u32::from(c))),
            alu3!(u32, u32, bool, |a, b, c| u64::from(a)
                < u64::from(b) + u64::from(c)),
        ),
        (true, 8) => (
            alu3!(u64, u64, bool, |a, b, c| a
                .wrapping_sub(b)
                .wrapping_sub(u64::from(c))),
            alu3!(u64, u64, bool, |a, b, c| u128::from(a)
                < u128::from(b) + u128::from(c)),
        ),
        _ => return None,
    })
}

/// Shifts, which clamp their count: `shl`, `shr`, and the funnel shifts `shf.{l,r}.{wrap,clamp}`.
pub(crate) fn shift(op: &str, ty: Ty) -> Option<AluFn> {
    match op {
        "shl" => per_int!(ty, T => alu2!(T, u32, |a, n| a.checked_shl(n).unwrap_or(0))),
        "shr" => {
            per_int!(ty, T => alu2!(T, u32, |a, n| a >> n.min(T::BITS - 1) >> u32::from(n >= T::BITS)))
        }
        "shf.l.wrap" => Some(alu3!(
            u32,
            u32,
            u32,
            |a, b, n| (join(a, b) << (n & 31) >> 32) as u32
        )),
        "shf.l.clamp" => Some(alu3!(
            u32,
            u32,
            u32,
            |a, b, n| (join(a, b) << n.min(32) >> 32) as u32
        )),
        "shf.r.wrap" => Some(alu3!(u32, u32, u32, |a, b, n| (join(a, b) >> (n & 31)) as u32)),
        "shf.r.clamp" => Some(alu3!(u32, u32, u32, |a, b, n| (join(a, b) >> n.min(32)) as u32)),
        _ => None,
    }
}

#[inline(always)]
fn join(low: u32, high: u32) -> u64 {
    u64::from(high) << 32 | u64::from(low)
}

/// Bit counting, searching and fields; also the parts that `bfi` and `lop3` are made of.
pub(crate) fn bits(op: &str, ty: Ty) -> Option<AluFn> {
    let wide = ty.size() == 8;
    Some(match (op, ty) {
        ("popc", _) if wide => alu1!(u64, |a| a.count_ones()),
        ("popc", _) => alu1!(u32, |a| a.count_ones()),
        ("clz", _) if wide => alu1!(u64, |a| a.leading_zeros()),
        ("clz", _) => alu1!(u32, |a| a.leading_zeros()),
        ("brev", _) if wide => alu1!(u64, |a| a.reverse_bits()),
        ("brev", _) => alu1!(u32, |a| a.reverse_bits()),
        ("bfind", Ty::U32) => alu1!(u32, |a| 31u32.wrapping_sub(a.leading_zeros())),
        ("bfind", Ty::U64) => alu1!(u64, |a| 63u32.wrapping_sub(a.leading_zeros())),
        ("bfind", Ty::S32) => alu1!(i32, |a| 31u32.wrapping_sub((a ^ (a >> 31)).leading_zeros())),
        ("bfind", Ty::S64) => alu1!(i64, |a| 63u32.wrapping_sub((a ^ (a >> 63)).leading_zeros())),
        ("bfind.shiftamt", Ty::U32) => {
            alu1!(u32, |a| if a == 0 { u32::MAX } else { a.leading_zeros() })
        }
        ("bfind.shiftamt", Ty::U64) => {
            alu1!(u64, |a| if a == 0 { u32::MAX } else { a.leading_zeros() })
        }
        ("bfe", Ty::U32) => alu3!(u32, u32, u32, |a, pos, len| field(
            u64::from(a),
            32,
            pos,
            len,
            false
        ) as u32),
        ("bfe", Ty::U64) => alu3!(u64, u32, u32, |a, pos, len| field(a, 64, pos, len, false)),
        ("bfe", Ty::S32) => alu3!(u32, u32, u32, |a, pos, len| field(
            u64::from(a),
            32,
            pos,
            len,
            true
        ) as u32),
        ("bfe", Ty::S64) => alu3!(u64, u32, u32, |a, pos, len| field(a, 64, pos, len, true)),
        ("bfi.mask", Ty::B32) => alu2!(u32, u32, |pos, len| field_mask(32, pos, len) as u32),
        ("bfi.mask", Ty::B64) => alu2!(u32, u32, |pos, len| field_mask(64, pos, len)),
        ("bfi.shift", Ty::B32) => alu2!(u32, u32, |a, pos| a.checked_shl(pos & 0xff).unwrap_or(0)),
        ("bfi.shift", Ty::B64) => alu2!(u64, u32, |a, pos| a.checked_shl(pos & 0xff).unwrap_or(0)),
        ("bfi.merge", _) => alu3!(u64, u64, u64, |a, b, mask| (a & mask) | (b & !mask)),
        ("pack", _) => alu2!(u32, u32, |low, high| join(low, high)),
        ("lop3", Ty::B32) => alu3!(u32, u64, u32, |a, bc, lut| lop3(
            a,
            bc as u32,
            (bc >> 32) as u32,
            lut
        )),
        ("dp4a.u32.u32", _) => alu3!(u32, u32, u32, |a, b, c| {
            let products = a.to_le_bytes().into_iter().zip(b.to_le_bytes());
            products.fold(c, |sum, (a, b)| {
                sum.wrapping_add(u32::from(a) * u32::from(b))
            })
        }),
        ("dp4a.s32.s32", _) => alu3!(u32, u32, i32, |a, b, c| {
            let products = a.to_le_bytes().into_iter().zip(b.to_le_bytes());
            products.fold(c, |sum, (a, b)| {
                sum.wrapping_add(i32::from(a as i8) * i32::from(b as i8))
            })
        }),
        _ => return None,
    })
}

/// `bfe`: position and length count modulo 256, bits beyond the top are copies of the sign (or 0).
fn field(a: u64, width: u32, pos: u32, len: u32, signed: bool) -> u64 {
    let (pos, len) = (pos & 0xff, len & 0xff);
    if len == 0 {
        return 0;
    }
    let sign = signed && a >> (pos + len - 1).min(width - 1) & 1 != 0;
    let fill = if sign { u64::MAX } else { 0 };
    let kept = len.min(width.saturating_sub(pos));
    if kept == 0 {
        return fill;
    }
    let mask = u64::MAX >> (64 - kept);
    (a >> pos & mask) | (fill & !mask)
}

fn field_mask(width: u32, pos: u32, len: u32) -> u64 {
    let (pos, len) = (pos & 0xff, len & 0xff);
    let ones = if len >= 64 { u64::MAX } else { (1 << len) - 1 };
    if pos >= width { 0 } else { ones << pos }
}

fn lop3(a: u32, b: u32, c: u32, lut: u32) -> u32 {
    let mut out = 0;
    for row in 0..8 {
        if lut >> row & 1 != 0 {
            let pick = |x: u32, on: u32| if on != 0 { x } else { !x };
            out |= pick(a, row & 4) & pick(b, row & 2) & pick(c, row & 1);
        }
    }
    out
}

/// `prmt` in its default mode and the named ones.
pub(crate) fn permute(mode: Option<&str>) -> Option<AluFn> {
    Some(match mode {
        None => alu3!(u32, u32, u32, |a, b, c| {
            (0..4).fold(0, |out, i| {
                let pick = c >> (4 * i);
                let byte = (join(a, b) >> (8 * (pick & 7)) & 0xff) as u32;
                let byte = if pick & 8 == 0 {
                    byte
                } else if byte & 0x80 != 0 {
                    0xff
                } else {
                    0
                };
                out | byte << (8 * i)
            })
        }),
        Some("f4e") => alu3!(u32, u32, u32, |a, b, c| (join(a, b) >> (8 * (c & 3)))
            as u32),
        Some("b4e") => alu3!(u32, u32, u32, |a, b, c| {
            (0..4).fold(0, |out, i| {
                out | byte_of(join(a, b), c.wrapping_sub(i) & 7) << (8 * i)
            })
        }),
        Some("rc8") => alu3!(u32, u32, u32, |a, _b, c| byte_of(u64::from(a), c & 3)
            * 0x0101_0101),
        Some("ecl") => alu3!(u32, u32, u32, |a, _b, c| {
            (0..4).fold(0, |out, i| {
                out | byte_of(u64::from(a), (c & 3).max(i)) << (8 * i)
            })
        }),
        Some("ecr") => alu3!(u32, u32, u32, |a, _b, c| {
            (0..4).fold(0, |out, i| {
                out | byte_of(u64::from(a), (c & 3).min(i)) << (8 * i)
            })
        }),
        Some("rc16") => alu3!(u32, u32, u32, |a, _b, c| (a >> (16 * (c & 1)) & 0xffff)
            * 0x0001_0001),
        _ => return None,
    })
}

fn byte_of(value: u64, index: u32) -> u32 {
    (value >> (8 * index) & 0xff) as u32
}

#[allow(
    clippy::neg_cmp_op_on_partial_ord,
    reason = "the unordered comparisons are the negations of the ordered ones"
)]
/// Comparison of integers, bits, floats or predicates: 1 where it holds.
pub(crate) fn compare(cmp: &str, ty: Ty, flush: bool) -> Option<AluFn> {
    use crate::float::ftz;
    macro_rules! ordered {
        ($t:ty) => {
            match cmp {
                "eq" => Some(alu2!($t, $t, |a, b| a == b)),
                "ne" => Some(alu2!($t, $t, |a, b| a != b)),
                "lt" | "lo" => Some(alu2!($t, $t, |a, b| a < b)),
                "le" | "ls" => Some(alu2!($t, $t, |a, b| a <= b)),
                "gt" | "hi" => Some(alu2!($t, $t, |a, b| a > b)),
                "ge" | "hs" => Some(alu2!($t, $t, |a, b| a >= b)),
                _ => None,
            }
        };
    }
    macro_rules! floating {
        ($t:ty, $f:expr) => {
            match cmp {
                "eq" => Some(alu2!($t, $t, |a, b| $f(a) == $f(b))),
                "ne" => Some(alu2!($t, $t, |a, b| $f(a) < $f(b) || $f(a) > $f(b))),
                "lt" => Some(alu2!($t, $t, |a, b| $f(a) < $f(b))),
                "le" => Some(alu2!($t, $t, |a, b| $f(a) <= $f(b))),
                "gt" => Some(alu2!($t, $t, |a, b| $f(a) > $f(b))),
                "ge" => Some(alu2!($t, $t, |a, b| $f(a) >= $f(b))),
                "equ" => Some(alu2!($t, $t, |a, b| !($f(a) < $f(b) || $f(a) > $f(b)))),
                "neu" => Some(alu2!($t, $t, |a, b| $f(a) != $f(b))),
                "ltu" => Some(alu2!($t, $t, |a, b| !($f(a) >= $f(b)))),
                "leu" => Some(alu2!($t, $t, |a, b| !($f(a) > $f(b)))),
                "gtu" => Some(alu2!($t, $t, |a, b| !($f(a) <= $f(b)))),
                "geu" => Some(alu2!($t, $t, |a, b| !($f(a) < $f(b)))),
                "num" => Some(alu2!($t, $t, |a, b| !a.is_nan() && !b.is_nan())),
                "nan" => Some(alu2!($t, $t, |a, b| a.is_nan() || b.is_nan())),
                _ => None,
            }
        };
    }
    match ty {
        Ty::U16 | Ty::B16 => ordered!(u16),
        Ty::U32 | Ty::B32 => ordered!(u32),
        Ty::U64 | Ty::B64 => ordered!(u64),
        Ty::S16 => ordered!(i16),
        Ty::S32 => ordered!(i32),
        Ty::S64 => ordered!(i64),
        Ty::F32 if flush => floating!(f32, ftz),
        Ty::F32 => floating!(f32, std::convert::identity),
        Ty::F64 => floating!(f64, std::convert::identity),
        _ => None,
    }
}

/// `selp` (third operand a predicate), moves, predicate logic and `slct`.
pub(crate) fn select(op: &str) -> Option<AluFn> {
    Some(match op {
        "mov" => alu1!(u64, |a| a),
        "selp" => alu3!(u64, u64, bool, |a, b, p| if p { a } else { b }),
        "slct.s32" => alu3!(u64, u64, i32, |a, b, c| if c >= 0 { a } else { b }),
        "slct.f32" => alu3!(u64, u64, f32, |a, b, c| if c >= 0.0 { a } else { b }),
        "and" => alu2!(bool, bool, |a, b| a & b),
        "or" => alu2!(bool, bool, |a, b| a | b),
        "xor" => alu2!(bool, bool, |a, b| a ^ b),
        "not" => alu1!(bool, |a| !a),
        "set.u32" => alu1!(bool, |a| if a { u32::MAX } else { 0 }),
        "set.f32" => alu1!(bool, |a| if a { 1.0f32 } else { 0.0 }),
        "set.f16" => alu1!(bool, |a| if a { 0x3c00u16 } else { 0 }),
        "set.bf16" => alu1!(bool, |a| if a { 0x3f80u16 } else { 0 }),
        "low16" => alu1!(u16, |a| a),
        "low32" => alu1!(u32, |a| a),
        "low8" => alu1!(u8, |a| a),
        "pack8" => alu2!(u8, u8, |a, b| u16::from(a) | u16::from(b) << 8),
        "pack16" => alu2!(u16, u16, |a, b| u32::from(a) | u32::from(b) << 16),
        "shr8" => alu1!(u64, |a| a >> 8),
        "shr16" => alu1!(u64, |a| a >> 16),
        "shr32" => alu1!(u64, |a| a >> 32),
        _ => return None,
    })
}
