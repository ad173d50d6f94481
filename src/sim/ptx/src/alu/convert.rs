//! The steps that `cvt` is made of; the decoder chains them.

use super::each;
use super::float::{Rounding, per_mode};
use crate::float::{
    BRAIN, HALF, Mode, RM, RN, RP, RZ, SINGLE, ftz, int_to_f64, int_to_odd, narrow, widen,
};
use crate::ir::{AluFn, Lanes};
use crate::types::{Ty, Val};

/// Reads the register as the type: truncates, then extends by its sign.
pub(crate) fn extend(ty: Ty) -> Option<AluFn> {
    per_any_int!(ty, T => alu1!(T, |a| a))
}

/// Clamps a 64-bit integer (of the signedness given) to the range of the type.
pub(crate) fn saturate_int(from_signed: bool, ty: Ty) -> Option<AluFn> {
    if from_signed {
        per_any_int!(ty, T => alu1!(i64, |a| i128::from(a).clamp(T::MIN.into(), T::MAX.into()) as T))
    } else {
        per_any_int!(ty, T => alu1!(u64, |a| i128::from(a).clamp(T::MIN.into(), T::MAX.into()) as T))
    }
}

/// Truncates and saturates to an integer. NaN gives 0, or the sign bit where 64 bits are involved.
pub(crate) fn float_to_int(from: Ty, ty: Ty) -> Option<AluFn> {
    match from {
        Ty::F32 if ty.size() < 8 => per_any_int!(ty, T => alu1!(f32, |a| a as T)),
        Ty::F32 => {
            per_any_int!(ty, T => alu1!(f32, |a| if a.is_nan() { (1u64 << 63) as T } else { a as T }))
        }
        Ty::F64 => {
            per_any_int!(ty, T => alu1!(f64, |a| if a.is_nan() { (1u64 << (T::BITS - 1)) as T } else { a as T }))
        }
        _ => None,
    }
}

/// Rounds to an integral value.
pub(crate) fn integral(ty: Ty, mode: Rounding) -> Option<AluFn> {
    Some(match (ty, mode) {
        (Ty::F32, Rounding::Nearest) => alu1!(f32, |a| a.round_ties_even()),
        (Ty::F32, Rounding::Zero) => alu1!(f32, |a| a.trunc()),
        (Ty::F32, Rounding::Down) => alu1!(f32, |a| a.floor()),
        (Ty::F32, Rounding::Up) => alu1!(f32, |a| a.ceil()),
        (Ty::F64, Rounding::Nearest) => alu1!(f64, |a| a.round_ties_even()),
        (Ty::F64, Rounding::Zero) => alu1!(f64, |a| a.trunc()),
        (Ty::F64, Rounding::Down) => alu1!(f64, |a| a.floor()),
        (Ty::F64, Rounding::Up) => alu1!(f64, |a| a.ceil()),
        _ => return None,
    })
}

/// An integer of type `from` as f32.
pub(crate) fn int_to_float(from: Ty, mode: Rounding) -> Option<AluFn> {
    if mode == Rounding::Nearest {
        return per_any_int!(from, T => alu1!(T, |a| a as f32));
    }
    per_mode!(mode, M => per_any_int!(from, T => {
        alu1!(T, |a| narrow(int_to_odd(a.into()), SINGLE, M))
    }))
}

/// An integer of type `from` as f64.
pub(crate) fn int_to_double(from: Ty, mode: Rounding) -> Option<AluFn> {
    if mode == Rounding::Nearest {
        return per_any_int!(from, T => alu1!(T, |a| a as f64));
    }
    per_mode!(mode, M => per_any_int!(from, T => alu1!(T, |a| int_to_f64::<M>(a.into()))))
}

/// An integer of type `from` as f16 or bf16.
pub(crate) fn int_to_half(from: Ty, ty: Ty, mode: Rounding) -> Option<AluFn> {
    match ty {
        Ty::F16 => per_mode!(mode, M => per_any_int!(from, T => {
            alu1!(T, |a| narrow(int_to_odd(a.into()), HALF, M))
        })),
        Ty::Bf16 => per_mode!(mode, M => per_any_int!(from, T => {
            alu1!(T, |a| narrow(int_to_odd(a.into()), BRAIN, M))
        })),
        _ => None,
    }
}

/// f64 to f32.
pub(crate) fn narrow_double(mode: Rounding) -> AluFn {
    match mode {
        Rounding::Nearest => alu1!(f64, |a| a as f32),
        _ => per_mode!(mode, M => alu1!(f64, |a| narrow(a, SINGLE, M))),
    }
}

/// f32 to f64.
pub(crate) fn widen_single() -> AluFn {
    alu1!(f32, |a| f64::from(a))
}

/// f32 or f64 to f16 or bf16.
pub(crate) fn to_half(from: Ty, ty: Ty, mode: Rounding) -> Option<AluFn> {
    Some(match (from, ty) {
        (Ty::F32, Ty::F16) => per_mode!(mode, M => alu1!(f32, |a| narrow(a.into(), HALF, M))),
        (Ty::F32, Ty::Bf16) => per_mode!(mode, M => alu1!(f32, |a| narrow(a.into(), BRAIN, M))),
        (Ty::F64, Ty::F16) => per_mode!(mode, M => alu1!(f64, |a| narrow(a, HALF, M))),
        (Ty::F64, Ty::Bf16) => per_mode!(mode, M => alu1!(f64, |a| narrow(a, BRAIN, M))),
        _ => return None,
    })
}

/// f16 or bf16 to f32 (exact).
pub(crate) fn from_half(ty: Ty) -> Option<AluFn> {
    Some(match ty {
        Ty::F16 => alu1!(u16, |a| widen(a, HALF) as f32),
        Ty::Bf16 => alu1!(u16, |a| f32::from_bits(u32::from(a) << 16)),
        _ => return None,
    })
}

/// Clamps to 0..1; NaN becomes 0.
pub(crate) fn saturate_float(ty: Ty) -> Option<AluFn> {
    Some(match ty {
        Ty::F32 => alu1!(f32, |a| if a > 0.0 { a.min(1.0) } else { 0.0 }),
        Ty::F64 => alu1!(f64, |a| if a > 0.0 { a.min(1.0) } else { 0.0 }),
        _ => return None,
    })
}

/// Flushes subnormal f32.
pub(crate) fn flush() -> AluFn {
    alu1!(f32, |a| ftz(a))
}
