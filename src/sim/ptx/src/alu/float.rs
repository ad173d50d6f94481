//! f32 and f64 arithmetic, and the approximating instructions.

use super::each;
use crate::float::{
    Mode, RM, RN, RP, RZ, add32, add64, div32, div64, fma32, ftz, ftz64, max32, max64, min32,
    min64, mul32, mul64, sqrt32, sqrt64,
};
use crate::ir::{AluFn, Lanes};
use crate::types::{Ty, Val};

/// A rounding mode as written.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Rounding {
    Nearest,
    Zero,
    Down,
    Up,
}

/// The function for a rounding mode known only when the text is read.
macro_rules! per_mode {
    ($mode:expr, $m:ident => $e:expr) => {
        match $mode {
            Rounding::Nearest => {
                const $m: Mode = RN;
                $e
            }
            Rounding::Zero => {
                const $m: Mode = RZ;
                $e
            }
            Rounding::Down => {
                const $m: Mode = RM;
                $e
            }
            Rounding::Up => {
                const $m: Mode = RP;
                $e
            }
        }
    };
}
pub(super) use per_mode;

macro_rules! directed32 {
    ($op:expr, $m:ident, $z:path) => {
        Some(match $op {
            "add" => alu2!(f32, f32, |a, b| $z(add32::<$m>($z(a), $z(b)))),
            "sub" => alu2!(f32, f32, |a, b| $z(add32::<$m>($z(a), -$z(b)))),
            "mul" => alu2!(f32, f32, |a, b| $z(mul32::<$m>($z(a), $z(b)))),
            "fma" => alu3!(f32, f32, f32, |a, b, c| $z(fma32::<$m>(
                $z(a),
                $z(b),
                $z(c)
            ))),
            "div" => alu2!(f32, f32, |a, b| $z(div32::<$m>($z(a), $z(b)))),
            "rcp" => alu1!(f32, |a| $z(div32::<$m>(1.0, $z(a)))),
            "sqrt" => alu1!(f32, |a| $z(sqrt32::<$m>($z(a)))),
            _ => return None,
        })
    };
}

macro_rules! directed64 {
    ($op:expr, $m:ident) => {
        Some(match $op {
            "add" => alu2!(f64, f64, |a, b| add64::<$m>(a, b)),
            "sub" => alu2!(f64, f64, |a, b| add64::<$m>(a, -b)),
            "mul" => alu2!(f64, f64, |a, b| mul64::<$m>(a, b)),
            "div" => alu2!(f64, f64, |a, b| div64::<$m>(a, b)),
            "rcp" => alu1!(f64, |a| div64::<$m>(1.0, a)),
            "sqrt" => alu1!(f64, |a| sqrt64::<$m>(a)),
            _ => return None,
        })
    };
}

/// Exactly rounded arithmetic; `flush` is `.ftz`.
pub(crate) fn arithmetic(op: &str, ty: Ty, mode: Rounding, flush: bool) -> Option<AluFn> {
    match (ty, flush) {
        (Ty::F32, false) if mode == Rounding::Nearest => nearest32(op),
        (Ty::F32, false) => per_mode!(mode, M => directed32!(op, M, std::convert::identity)),
        (Ty::F32, true) => flushing32(op).or_else(|| per_mode!(mode, M => directed32!(op, M, ftz))),
        (Ty::F64, false) if mode == Rounding::Nearest => nearest64(op),
        (Ty::F64, false) => per_mode!(mode, M => directed64!(op, M)),
        _ => None,
    }
}

fn nearest32(op: &str) -> Option<AluFn> {
    Some(match op {
        "add" => alu2!(f32, f32, |a, b| a + b),
        "sub" => alu2!(f32, f32, |a, b| a - b),
        "mul" => alu2!(f32, f32, |a, b| a * b),
        "fma" => alu3!(f32, f32, f32, |a, b, c| a.mul_add(b, c)),
        "div" => alu2!(f32, f32, |a, b| a / b),
        "rcp" => alu1!(f32, |a| 1.0 / a),
        "sqrt" => alu1!(f32, |a| a.sqrt()),
        "min" => alu2!(f32, f32, |a, b| min32(a, b)),
        "max" => alu2!(f32, f32, |a, b| max32(a, b)),
        "min.NaN" => alu2!(f32, f32, |a, b| if a.is_nan() || b.is_nan() {
            f32::NAN
        } else {
            min32(a, b)
        }),
        "max.NaN" => alu2!(f32, f32, |a, b| if a.is_nan() || b.is_nan() {
            f32::NAN
        } else {
            max32(a, b)
        }),
        _ => return None,
    })
}

fn flushing32(op: &str) -> Option<AluFn> {
    Some(match op {
        "min" => alu2!(f32, f32, |a, b| min32(ftz(a), ftz(b))),
        "max" => alu2!(f32, f32, |a, b| max32(ftz(a), ftz(b))),
        _ => return None,
    })
}

fn nearest64(op: &str) -> Option<AluFn> {
    Some(match op {
        "add" => alu2!(f64, f64, |a, b| a + b),
        "sub" => alu2!(f64, f64, |a, b| a - b),
        "mul" => alu2!(f64, f64, |a, b| a * b),
        "fma" => alu3!(f64, f64, f64, |a, b, c| a.mul_add(b, c)),
        "div" => alu2!(f64, f64, |a, b| a / b),
        "rcp" => alu1!(f64, |a| 1.0 / a),
        "sqrt" => alu1!(f64, |a| a.sqrt()),
        "min" => alu2!(f64, f64, |a, b| min64(a, b)),
        "max" => alu2!(f64, f64, |a, b| max64(a, b)),
        _ => return None,
    })
}

/// `neg` and `abs`: bits only, so that NaNs pass through.
pub(crate) fn sign_bit(op: &str, ty: Ty) -> Option<AluFn> {
    Some(match (op, ty) {
        ("neg", Ty::F32) => alu1!(u32, |a| a ^ 1 << 31),
        ("neg", Ty::F64) => alu1!(u64, |a| a ^ 1 << 63),
        ("neg", Ty::F16 | Ty::Bf16) => alu1!(u16, |a| a ^ 1 << 15),
        ("neg", Ty::F16x2 | Ty::Bf16x2) => alu1!(u32, |a| a ^ 0x8000_8000),
        ("abs", Ty::F32) => alu1!(u32, |a| a & !(1 << 31)),
        ("abs", Ty::F64) => alu1!(u64, |a| a & !(1 << 63)),
        ("abs", Ty::F16 | Ty::Bf16) => alu1!(u16, |a| a & !(1 << 15)),
        ("abs", Ty::F16x2 | Ty::Bf16x2) => alu1!(u32, |a| a & !0x8000_8000),
        _ => return None,
    })
}

/// The sign of the first operand on the second.
pub(crate) fn copysign(ty: Ty) -> Option<AluFn> {
    Some(match ty {
        Ty::F32 => alu2!(u32, u32, |a, b| (a & 1 << 31) | (b & !(1 << 31))),
        Ty::F64 => alu2!(u64, u64, |a, b| (a & 1 << 63) | (b & !(1 << 63))),
        _ => return None,
    })
}

pub(crate) fn testp(op: &str, ty: Ty) -> Option<AluFn> {
    macro_rules! tests {
        ($t:ty) => {
            match op {
                "finite" => alu1!($t, |a| a.is_finite()),
                "infinite" => alu1!($t, |a| a.is_infinite()),
                "number" => alu1!($t, |a| !a.is_nan()),
                "notanumber" => alu1!($t, |a| a.is_nan()),
                "normal" => alu1!($t, |a| a.is_normal()),
                "subnormal" => alu1!($t, |a| a.is_subnormal()),
                _ => return None,
            }
        };
    }
    Some(match ty {
        Ty::F32 => tests!(f32),
        Ty::F64 => tests!(f64),
        _ => return None,
    })
}

/// The `approx` instructions: correctly rounded from an f64 result, flushing as `.ftz` asks.
pub(crate) fn approx(op: &str, ty: Ty, flush: bool) -> Option<AluFn> {
    macro_rules! via_double {
        ($e:expr) => {{
            fn exact(a: f32) -> f32 {
                let f: fn(f64) -> f64 = $e;
                f(f64::from(a)) as f32
            }
            if flush {
                alu1!(f32, |a| ftz(exact(ftz(a))))
            } else {
                alu1!(f32, |a| exact(a))
            }
        }};
    }
    Some(match (op, ty) {
        ("rcp", Ty::F32) => via_double!(|a| 1.0 / a),
        ("sqrt", Ty::F32) => via_double!(f64::sqrt),
        ("rsqrt", Ty::F32) => via_double!(|a| 1.0 / a.sqrt()),
        ("sin", Ty::F32) => via_double!(f64::sin),
        ("cos", Ty::F32) => via_double!(f64::cos),
        ("ex2", Ty::F32) => via_double!(f64::exp2),
        ("lg2", Ty::F32) => via_double!(f64::log2),
        ("tanh", Ty::F32) => via_double!(f64::tanh),
        ("div", Ty::F32) if flush => alu2!(f32, f32, |a, b| ftz(ftz(a) / ftz(b))),
        ("div", Ty::F32) => alu2!(f32, f32, |a, b| a / b),
        // The f64 forms give the upper word only.
        ("rcp", Ty::F64) => alu1!(f64, |a| upper(ftz64(1.0 / ftz64(a)))),
        ("rsqrt", Ty::F64) => alu1!(f64, |a| upper(1.0 / ftz64(a).sqrt())),
        _ => return None,
    })
}

fn upper(x: f64) -> f64 {
    f64::from_bits(x.to_bits() & 0xffff_ffff_0000_0000)
}
