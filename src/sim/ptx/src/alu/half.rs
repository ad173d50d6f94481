//! f16 and bf16 arithmetic, one number or two in a register.

use super::each;
use crate::float::{BRAIN, Format, HALF, RN, add_odd, max64, min64, narrow, widen};
use crate::ir::{AluFn, Lanes};
use crate::types::{Ty, Val};

fn lift(format: Format, a: u16, b: u16, c: u16, f: impl Fn(f64, f64, f64) -> f64) -> u16 {
    narrow(
        f(widen(a, format), widen(b, format), widen(c, format)),
        format,
        RN,
    ) as u16
}

fn lift2(format: Format, a: u32, b: u32, c: u32, f: impl Fn(f64, f64, f64) -> f64) -> u32 {
    let low = lift(format, a as u16, b as u16, c as u16, &f);
    let high = lift(
        format,
        (a >> 16) as u16,
        (b >> 16) as u16,
        (c >> 16) as u16,
        &f,
    );
    u32::from(high) << 16 | u32::from(low)
}

/// Round-to-nearest arithmetic, and comparisons as `set` would use them.
pub(crate) fn half_arithmetic(op: &str, ty: Ty) -> Option<AluFn> {
    macro_rules! forms {
        (|$a:ident, $b:ident, $c:ident| $e:expr) => {
            match ty {
                Ty::F16 => alu3!(u16, u16, u16, |a, b, c| lift(
                    HALF,
                    a,
                    b,
                    c,
                    |$a, $b, $c| $e
                )),
                Ty::Bf16 => alu3!(u16, u16, u16, |a, b, c| lift(
                    BRAIN,
                    a,
                    b,
                    c,
                    |$a, $b, $c| $e
                )),
                Ty::F16x2 => alu3!(u32, u32, u32, |a, b, c| lift2(
                    HALF,
                    a,
                    b,
                    c,
                    |$a, $b, $c| $e
                )),
                Ty::Bf16x2 => alu3!(u32, u32, u32, |a, b, c| lift2(
                    BRAIN,
                    a,
                    b,
                    c,
                    |$a, $b, $c| $e
                )),
                _ => return None,
            }
        };
    }
    Some(match op {
        "add" => forms!(|a, b, _c| add_odd(a, b)),
        "sub" => forms!(|a, b, _c| add_odd(a, -b)),
        "mul" => forms!(|a, b, _c| a * b),
        "fma" => forms!(|a, b, c| add_odd(a * b, c)),
        "min" => forms!(|a, b, _c| min64(a, b)),
        "max" => forms!(|a, b, _c| max64(a, b)),
        "tanh" => forms!(|a, _b, _c| a.tanh()),
        "ex2" => forms!(|a, _b, _c| a.exp2()),
        // For comparisons: both operands as f64 (exact).
        "f64" if ty == Ty::F16 => alu1!(u16, |a| widen(a, HALF)),
        "f64" if ty == Ty::Bf16 => alu1!(u16, |a| widen(a, BRAIN)),
        "pack" => alu2!(u16, u16, |low, high| u32::from(low) | u32::from(high) << 16),
        _ => return None,
    })
}
