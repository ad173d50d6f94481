//! The pure instructions: for each operation and type, a function over the lanes of a warp.

/// An instruction of one operand: `alu1!(u32, |a| !a)`.
macro_rules! alu1 {
    ($ta:ty, |$a:ident| $e:expr) => {{
        fn run(mask: u32, a: &Lanes, _: &Lanes, _: &Lanes, out: &mut Lanes) {
            each(mask, out, |lane| {
                let $a = <$ta as Val>::get(a[lane]);
                $e
            });
        }
        run as AluFn
    }};
}

/// An instruction of two operands: `alu2!(u32, u32, |a, b| a & b)`.
macro_rules! alu2 {
    ($ta:ty, $tb:ty, |$a:ident, $b:ident| $e:expr) => {{
        fn run(mask: u32, a: &Lanes, b: &Lanes, _: &Lanes, out: &mut Lanes) {
            each(mask, out, |lane| {
                let $a = <$ta as Val>::get(a[lane]);
                let $b = <$tb as Val>::get(b[lane]);
                $e
            });
        }
        run as AluFn
    }};
}

/// An instruction of three operands.
macro_rules! alu3 {
    ($ta:ty, $tb:ty, $tc:ty, |$a:ident, $b:ident, $c:ident| $e:expr) => {{
        fn run(mask: u32, a: &Lanes, b: &Lanes, c: &Lanes, out: &mut Lanes) {
            each(mask, out, |lane| {
                let $a = <$ta as Val>::get(a[lane]);
                let $b = <$tb as Val>::get(b[lane]);
                let $c = <$tc as Val>::get(c[lane]);
                $e
            });
        }
        run as AluFn
    }};
}

/// The body for the integer type behind a suffix of 16 bits or more; `.bN` counts as unsigned.
macro_rules! per_int {
    ($ty:expr, $t:ident => $e:expr) => {
        match $ty {
            Ty::U16 | Ty::B16 => {
                type $t = u16;
                Some($e)
            }
            Ty::S16 => {
                type $t = i16;
                Some($e)
            }
            Ty::U32 | Ty::B32 => {
                type $t = u32;
                Some($e)
            }
            Ty::S32 => {
                type $t = i32;
                Some($e)
            }
            Ty::U64 | Ty::B64 => {
                type $t = u64;
                Some($e)
            }
            Ty::S64 => {
                type $t = i64;
                Some($e)
            }
            _ => None,
        }
    };
}

/// The same for every integer suffix, 8 bits included.
macro_rules! per_any_int {
    ($ty:expr, $t:ident => $e:expr) => {
        match $ty {
            Ty::U8 | Ty::B8 => { type $t = u8; Some($e) }
            Ty::S8 => { type $t = i8; Some($e) }
            other => $crate::alu::per_int!(other, $t => $e),
        }
    };
}

pub(crate) use per_int;

mod convert;
mod float;
mod half;
mod int;

pub(crate) use convert::{
    extend, float_to_int, flush, from_half, int_to_double, int_to_float, int_to_half, integral,
    narrow_double, saturate_float, saturate_int, to_half, widen_single,
};
pub(crate) use float::{Rounding, approx, arithmetic, copysign, sign_bit, testp};
pub(crate) use half::half_arithmetic;
pub(crate) use int::{bits, carry, compare, integer, mul_hi, mul_wide, permute, select, shift};

use crate::ir::{Lanes, WARP};
use crate::types::Val;

/// Writes `f(lane)` for the lanes in the mask; full warps take the loop that vectorises.
#[inline(always)]
fn each<R: Val>(mask: u32, out: &mut Lanes, f: impl Fn(usize) -> R) {
    if mask == u32::MAX {
        for (lane, out) in out.iter_mut().enumerate() {
            *out = f(lane).put();
        }
    } else {
        let mut left = mask;
        while left != 0 {
            let lane = left.trailing_zeros() as usize % WARP;
            out[lane] = f(lane).put();
            left &= left - 1;
        }
    }
}
