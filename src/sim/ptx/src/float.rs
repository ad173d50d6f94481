//! Floating-point pieces that the CPU does not have: directed rounding, half precision, flushing.
//!
//! Narrow results are computed in f64 with *rounding to odd* and then rounded once more; for targets
//! of at most 51 significant bits that equals one correct rounding.

/// A rounding mode as a const parameter of the instructions that take one.
pub(crate) type Mode = u8;
pub(crate) const RN: Mode = 0;
pub(crate) const RZ: Mode = 1;
/// Towards minus infinity.
pub(crate) const RM: Mode = 2;
/// Towards plus infinity.
pub(crate) const RP: Mode = 3;

/// A binary format no wider than f32.
#[derive(Clone, Copy)]
pub(crate) struct Format {
    exp_bits: u32,
    man_bits: u32,
    nan: u32,
}

pub(crate) const HALF: Format = Format {
    exp_bits: 5,
    man_bits: 10,
    nan: 0x7fff,
};
pub(crate) const BRAIN: Format = Format {
    exp_bits: 8,
    man_bits: 7,
    nan: 0x7fff,
};
pub(crate) const SINGLE: Format = Format {
    exp_bits: 8,
    man_bits: 23,
    nan: 0x7fff_ffff,
};

/// Whether a magnitude is increased when the bits below it are `half` (the first) and `rest`.
fn rounds_up(mode: Mode, negative: bool, odd: bool, half: bool, rest: bool) -> bool {
    match mode {
        RN => half && (rest || odd),
        RZ => false,
        RM => negative && (half || rest),
        _ => !negative && (half || rest),
    }
}

/// Rounds an f64 to a narrower format and returns its bits.
pub(crate) fn narrow(x: f64, format: Format, mode: Mode) -> u32 {
    let Format {
        exp_bits,
        man_bits,
        nan,
    } = format;
    let bias = (1 << (exp_bits - 1)) - 1;
    let negative = x.is_sign_negative();
    let sign = u32::from(negative) << (exp_bits + man_bits);
    let infinity = ((1 << exp_bits) - 1) << man_bits;
    if x.is_nan() {
        return nan;
    }
    if x.is_infinite() {
        return sign | infinity;
    }
    let bits = x.to_bits() & !(1 << 63);
    if bits == 0 {
        return sign;
    }
    let exp = (bits >> 52) as i32 - 1023;
    let man = if exp == -1023 {
        bits
    } else {
        (bits & ((1 << 52) - 1)) | (1 << 52)
    };
    // Subnormal results lose more bits; everything below the smallest becomes sticky.
    let below = (1 - bias - exp).max(0);
    let drop = (52 - man_bits as i32 + below).min(63) as u32;
    let kept = man >> drop;
    let half = man >> (drop - 1) & 1 != 0;
    let rest = man & ((1 << (drop - 1)) - 1) != 0;
    let biased = if below > 0 {
        0
    } else {
        (exp + bias - 1) as u64
    };
    let mut out = (biased << man_bits) + kept;
    if rounds_up(mode, negative, kept & 1 != 0, half, rest) {
        out += 1;
    }
    if out >= u64::from(infinity) {
        let to_infinity = rounds_up(mode, negative, true, true, true);
        return sign | if to_infinity { infinity } else { infinity - 1 };
    }
    sign | out as u32
}

/// The value of a half-precision (or bfloat16) number; exact.
pub(crate) fn widen(bits: u16, format: Format) -> f64 {
    let Format {
        exp_bits, man_bits, ..
    } = format;
    let exp = u32::from(bits) >> man_bits & ((1 << exp_bits) - 1);
    let man = u32::from(bits) & ((1 << man_bits) - 1);
    let bias = (1 << (exp_bits - 1)) - 1;
    let magnitude = if exp == (1 << exp_bits) - 1 {
        if man == 0 { f64::INFINITY } else { f64::NAN }
    } else if exp == 0 {
        f64::from(man) * exp2i(1 - bias - man_bits as i32)
    } else {
        f64::from(man | 1 << man_bits) * exp2i(exp as i32 - bias - man_bits as i32)
    };
    if bits >> 15 != 0 {
        -magnitude
    } else {
        magnitude
    }
}

/// 2^e for normal results.
fn exp2i(e: i32) -> f64 {
    f64::from_bits(((e + 1023) as u64) << 52)
}

/// `x` where the exact value is `x + err`: the neighbour with an odd last bit.
fn to_odd(x: f64, err: f64) -> f64 {
    if err == 0.0 || err.is_nan() || !x.is_finite() || x.to_bits() & 1 != 0 {
        return x;
    }
    if err > 0.0 {
        x.next_up()
    } else {
        x.next_down()
    }
}

/// The error of `a + b = s`, exact.
fn sum_error(a: f64, b: f64, s: f64) -> f64 {
    let bb = s - a;
    (a - (s - bb)) + (b - bb)
}

/// a + b rounded to odd.
pub(crate) fn add_odd(a: f64, b: f64) -> f64 {
    let s = a + b;
    to_odd(s, sum_error(a, b, s))
}

fn single<const M: Mode>(x: f64) -> f32 {
    f32::from_bits(narrow(x, SINGLE, M))
}

/// An exact zero from operands that cancel is negative when rounding down.
fn cancelled<const M: Mode>(a: f64, b: f64, sum: f64) -> f64 {
    if M == RM && sum == 0.0 && (a.is_sign_negative() || b.is_sign_negative()) {
        -0.0
    } else {
        sum
    }
}

pub(crate) fn add32<const M: Mode>(a: f32, b: f32) -> f32 {
    let (a, b) = (f64::from(a), f64::from(b));
    single::<M>(cancelled::<M>(a, b, add_odd(a, b)))
}

pub(crate) fn mul32<const M: Mode>(a: f32, b: f32) -> f32 {
    single::<M>(f64::from(a) * f64::from(b))
}

pub(crate) fn fma32<const M: Mode>(a: f32, b: f32, c: f32) -> f32 {
    let (product, c) = (f64::from(a) * f64::from(b), f64::from(c));
    single::<M>(cancelled::<M>(product, c, add_odd(product, c)))
}

pub(crate) fn div32<const M: Mode>(a: f32, b: f32) -> f32 {
    let (a, b) = (f64::from(a), f64::from(b));
    let q = a / b;
    let r = (-q).mul_add(b, a);
    single::<M>(to_odd(q, if b.is_sign_negative() { -r } else { r }))
}

pub(crate) fn sqrt32<const M: Mode>(a: f32) -> f32 {
    let a = f64::from(a);
    let s = a.sqrt();
    single::<M>(to_odd(s, (-s).mul_add(s, a)))
}

/// Moves a result rounded to nearest to the directed one; `err` has the sign of exact minus `x`.
fn direct<const M: Mode>(x: f64, err: f64) -> f64 {
    match M {
        RZ if err < 0.0 && x > 0.0 => x.next_down(),
        RZ if err > 0.0 && x < 0.0 => x.next_up(),
        RM if err < 0.0 => x.next_down(),
        RP if err > 0.0 => x.next_up(),
        _ => x,
    }
}

/// An overflow of finite operands, in the directed modes.
fn overflow<const M: Mode>(x: f64, finite: bool) -> Option<f64> {
    if !x.is_infinite() || !finite {
        return None;
    }
    let stays = matches!((M, x > 0.0), (RZ, _) | (RM, true) | (RP, false));
    Some(if stays { f64::MAX.copysign(x) } else { x })
}

pub(crate) fn add64<const M: Mode>(a: f64, b: f64) -> f64 {
    let s = a + b;
    if let Some(x) = overflow::<M>(s, a.is_finite() && b.is_finite()) {
        return x;
    }
    direct::<M>(cancelled::<M>(a, b, s), sum_error(a, b, s))
}

pub(crate) fn mul64<const M: Mode>(a: f64, b: f64) -> f64 {
    let p = a * b;
    if let Some(x) = overflow::<M>(p, a.is_finite() && b.is_finite()) {
        return x;
    }
    direct::<M>(p, a.mul_add(b, -p))
}

pub(crate) fn div64<const M: Mode>(a: f64, b: f64) -> f64 {
    let q = a / b;
    if let Some(x) = overflow::<M>(q, a.is_finite() && b != 0.0) {
        return x;
    }
    let r = (-q).mul_add(b, a);
    direct::<M>(q, if b.is_sign_negative() { -r } else { r })
}

pub(crate) fn sqrt64<const M: Mode>(a: f64) -> f64 {
    let s = a.sqrt();
    direct::<M>(s, (-s).mul_add(s, a))
}

/// An integer as f64, rounded by the mode.
pub(crate) fn int_to_f64<const M: Mode>(value: i128) -> f64 {
    let x = value as f64;
    direct::<M>(x, (value - x as i128) as f64)
}

/// An integer as f64, rounded to odd.
pub(crate) fn int_to_odd(value: i128) -> f64 {
    let x = value as f64;
    to_odd(x, (value - x as i128) as f64)
}

/// Flushes a subnormal to the zero of its sign.
#[inline(always)]
pub(crate) fn ftz(x: f32) -> f32 {
    if x.is_subnormal() {
        0.0f32.copysign(x)
    } else {
        x
    }
}

#[inline(always)]
pub(crate) fn ftz64(x: f64) -> f64 {
    if x.is_subnormal() {
        0.0f64.copysign(x)
    } else {
        x
    }
}

macro_rules! min_max {
    ($min:ident, $max:ident, $t:ty) => {
        /// The smaller operand; a NaN loses against a number, -0 is smaller than +0.
        #[inline(always)]
        pub(crate) fn $min(a: $t, b: $t) -> $t {
            if a.is_nan() || b < a || (a == b && b.is_sign_negative()) {
                b
            } else {
                a
            }
        }
        /// The larger operand; a NaN loses against a number, +0 is larger than -0.
        #[inline(always)]
        pub(crate) fn $max(a: $t, b: $t) -> $t {
            if a.is_nan() || b > a || (a == b && b.is_sign_positive()) {
                b
            } else {
                a
            }
        }
    };
}
min_max!(min32, max32, f32);
min_max!(min64, max64, f64);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn narrowing_matches_the_cpu() {
        let mut seed = 0x9e37_79b9_7f4a_7c15u64;
        for _ in 0..200_000 {
            seed ^= seed << 13;
            seed ^= seed >> 7;
            seed ^= seed << 17;
            // Exponents around the f32 range, so that subnormals and overflow are met often.
            let exp = 1023 - 155 + (seed >> 40) % 290;
            let x = f64::from_bits((seed & !(0x7ff << 52)) | exp << 52);
            assert_eq!(narrow(x, SINGLE, RN), (x as f32).to_bits(), "{x:e}");
            let (lo, hi) = (
                f32::from_bits(narrow(x, SINGLE, RM)),
                f32::from_bits(narrow(x, SINGLE, RP)),
            );
            assert!(
                f64::from(lo) <= x && x <= f64::from(hi),
                "{x:e} {lo:e} {hi:e}"
            );
            assert!(lo == hi || lo.next_up() == hi, "{x:e} {lo:e} {hi:e}");
            let rz = f32::from_bits(narrow(x, SINGLE, RZ));
            assert_eq!(rz, if x < 0.0 { hi } else { lo });
        }
    }

    #[test]
    fn half_round_trip() {
        for bits in 0..=u16::MAX {
            for format in [HALF, BRAIN] {
                let x = widen(bits, format);
                let back = narrow(x, format, RN);
                if x.is_nan() {
                    assert_eq!(back, 0x7fff);
                } else {
                    assert_eq!(back, u32::from(bits));
                }
            }
        }
        assert_eq!(narrow(65519.0, HALF, RN), 0x7bff);
        assert_eq!(narrow(65520.0, HALF, RN), 0x7c00);
        assert_eq!(narrow(65520.0, HALF, RZ), 0x7bff);
        assert_eq!(narrow(1e-30, HALF, RP), 1);
        assert_eq!(narrow(1.0 + 1.0 / 2048.0, HALF, RN), 0x3c00);
    }

    #[test]
    fn directed_arithmetic() {
        let third = 1.0f32 / 3.0;
        assert_eq!(div32::<RN>(1.0, 3.0), third);
        assert_eq!(div32::<RZ>(1.0, 3.0), third.next_down());
        assert_eq!(div32::<RP>(1.0, 3.0), third);
        assert_eq!(add32::<RP>(1.0, 1e-30), 1.0f32.next_up());
        assert_eq!(add32::<RM>(1.0, -1e-30), 1.0f32.next_down());
        assert_eq!(add32::<RM>(1.0, -1.0).to_bits(), (-0.0f32).to_bits());
        assert_eq!(fma32::<RN>(1.5, 1.25, -1.875), 0.0);
        assert_eq!(sqrt32::<RN>(2.0), 2.0f32.sqrt());
        assert_eq!(sqrt32::<RP>(2.0), 2.0f32.sqrt().next_up());
        assert_eq!(sqrt32::<RM>(2.0), 2.0f32.sqrt());
        assert_eq!(add64::<RP>(1.0, 1e-300), 1.0f64.next_up());
        assert_eq!(mul64::<RZ>(f64::MAX, 2.0), f64::MAX);
        assert_eq!(div64::<RP>(1.0, 3.0), (1.0f64 / 3.0).next_up());
        assert_eq!(sqrt64::<RZ>(2.0), 2.0f64.sqrt().next_down());
        assert_eq!(int_to_f64::<RZ>((1 << 53) + 1), (1u64 << 53) as f64);
        assert_eq!(int_to_f64::<RP>((1 << 53) + 1), ((1u64 << 53) + 2) as f64);
    }

    #[test]
    fn fused_single_matches_the_cpu() {
        let mut seed = 88_172_645_463_325_252u64;
        let mut next = || {
            seed ^= seed << 13;
            seed ^= seed >> 7;
            seed ^= seed << 17;
            f32::from_bits((seed as u32 & 0x8fff_ffff) | 0x3800_0000)
        };
        for _ in 0..100_000 {
            let (a, b, c) = (next(), next(), next());
            assert_eq!(fma32::<RN>(a, b, c), a.mul_add(b, c), "{a:e} {b:e} {c:e}");
            assert_eq!(add32::<RN>(a, b), a + b);
            assert_eq!(div32::<RN>(a, b), a / b);
        }
    }
}
