//! Arithmetic: the function behind an instruction, by its name and type.

use std::cmp::Ordering::{Equal, Greater, Less};

use crate::code::{Alu, Ty};

/// A type of registers. Reading takes the low bits; writing extends the sign of signed values to all bits above.
trait Value: Copy {
    fn get(bits: u64) -> Self;
    fn put(self) -> u64;
}

trait Integer: Value {
    /// The upper half of the product.
    fn high(self, other: Self) -> Self;
    fn left(self, count: u64) -> Self;
    fn right(self, count: u64) -> Self;
}

macro_rules! integers {
    ($($t:ty: $wide:ty),*) => {$(
        impl Value for $t {
            fn get(bits: u64) -> Self {
                bits as $t
            }
            fn put(self) -> u64 {
                self as u64
            }
        }

        impl Integer for $t {
            fn high(self, other: Self) -> Self {
                ((<$wide>::from(self) * <$wide>::from(other)) >> <$t>::BITS) as $t
            }
            fn left(self, count: u64) -> Self {
                u32::try_from(count).ok().and_then(|n| self.checked_shl(n)).unwrap_or(0)
            }
            fn right(self, count: u64) -> Self {
                // In two steps: past the end all bits of a signed number are its sign.
                let most = <$t>::BITS - 1;
                let count = u32::try_from(count).unwrap_or(u32::MAX);
                (self >> count.min(most)) >> u32::from(count > most)
            }
        }
    )*};
}

integers!(u8: u16, u16: u32, u32: u64, u64: u128, i8: i16, i16: i32, i32: i64, i64: i128);

macro_rules! floats {
    ($($t:ty),*) => {$(
        impl Value for $t {
            fn get(bits: u64) -> Self {
                Self::from_bits(bits as _)
            }
            fn put(self) -> u64 {
                u64::from(self.to_bits())
            }
        }
    )*};
}

floats!(f32, f64);

/// Evaluates the closure with `$t` as the Rust type; returns `None` from the enclosing function for other types.
macro_rules! integer {
    ($ty:expr, $t:ident, $f:expr) => {
        integer!(@ $ty, $t, $f, U8 u8, U16 u16, U32 u32, U64 u64, S8 i8, S16 i16, S32 i32, S64 i64)
    };
    (@ $ty:expr, $t:ident, $f:expr, $($name:ident $rust:ty),*) => {
        match $ty {
            $(Ty::$name => {
                type $t = $rust;
                let f: Alu = $f;
                f
            })*
            _ => return None,
        }
    };
}

macro_rules! float {
    ($ty:expr, $t:ident, $f:expr) => {
        integer!(@ $ty, $t, $f, F32 f32, F64 f64)
    };
}

/// Compares two floating point numbers.
macro_rules! ordered {
    ($ty:expr, $is:pat) => {
        float!($ty, T, |a, b, _| u64::from(matches!(
            T::get(a).partial_cmp(&T::get(b)),
            $is
        )))
    };
}

/// Number of the instruction's sources; `None` for an unsupported instruction.
pub(crate) fn sources(root: &str) -> Option<usize> {
    Some(match root {
        "not" | "neg" | "abs" | "popc" | "clz" | "brev" | "sqrt" | "rsqrt" | "rcp" | "ex2"
        | "lg2" | "sin" | "cos" | "tanh" => 1,
        "add" | "sub" | "mul" | "div" | "rem" | "min" | "max" | "and" | "or" | "xor" | "shl"
        | "shr" | "copysign" => 2,
        "mad" | "fma" | "selp" => 3,
        _ => return None,
    })
}

/// The function of an instruction that computes a result. `mods` are the parts of its name between root and type.
pub(crate) fn find(root: &str, mods: &[&str], ty: Ty) -> Option<Alu> {
    let one = |list: &[&str]| mods.iter().all(|part| list.contains(part));
    match (root, ty) {
        ("selp", _) => Some(|a, b, c| if c & 1 == 1 { a } else { b }),
        ("not", Ty::Pred) => Some(|a, _, _| !a & 1),
        ("and", _) => Some(|a, b, _| a & b),
        ("or", _) => Some(|a, b, _| a | b),
        ("xor", _) => Some(|a, b, _| a ^ b),
        ("fma", Ty::F32) if one(&["rm", "ftz"]) && mods.contains(&"rm") => Some(|a, b, c| {
            // A product of two `f32` is exact in double precision.
            let exact = f64::from(f32::get(a)).mul_add(f32::get(b).into(), f32::get(c).into());
            let near = exact as f32;
            if f64::from(near) > exact {
                near.next_down()
            } else {
                near
            }
            .put()
        }),
        (_, Ty::F32 | Ty::F64) if one(&["rn", "ftz", "approx", "full"]) => float(root, ty),
        (_, Ty::F32 | Ty::F64) => None,
        ("mul" | "mad", _) => product(mods, ty),
        _ if mods.is_empty() => whole(root, ty),
        _ => None,
    }
}

fn whole(root: &str, ty: Ty) -> Option<Alu> {
    Some(match root {
        "add" => integer!(ty, T, |a, b, _| T::get(a).wrapping_add(T::get(b)).put()),
        "sub" => integer!(ty, T, |a, b, _| T::get(a).wrapping_sub(T::get(b)).put()),
        // PTX does not define division by zero.
        "div" => integer!(ty, T, |a, b, _| match T::get(b) {
            0 => !0,
            b => T::get(a).wrapping_div(b).put(),
        }),
        "rem" => integer!(ty, T, |a, b, _| match T::get(b) {
            0 => a,
            b => T::get(a).wrapping_rem(b).put(),
        }),
        "min" => integer!(ty, T, |a, b, _| T::get(a).min(T::get(b)).put()),
        "max" => integer!(ty, T, |a, b, _| T::get(a).max(T::get(b)).put()),
        "abs" => match ty {
            Ty::S16 => |a, _, _| i16::get(a).wrapping_abs().put(),
            Ty::S32 => |a, _, _| i32::get(a).wrapping_abs().put(),
            Ty::S64 => |a, _, _| i64::get(a).wrapping_abs().put(),
            _ => return None,
        },
        "neg" => integer!(ty, T, |a, _, _| T::get(a).wrapping_neg().put()),
        "not" => integer!(ty, T, |a, _, _| (!T::get(a)).put()),
        "shl" => integer!(ty, T, |a, b, _| T::get(a).left(b & 0xffff_ffff).put()),
        "shr" => integer!(ty, T, |a, b, _| T::get(a).right(b & 0xffff_ffff).put()),
        "popc" => integer!(ty, T, |a, _, _| T::get(a).count_ones().into()),
        "clz" => integer!(ty, T, |a, _, _| T::get(a).leading_zeros().into()),
        "brev" => integer!(ty, T, |a, _, _| T::get(a).reverse_bits().put()),
        _ => return None,
    })
}

/// `mul` and `mad`: the third source of `mul` is 0.
fn product(mods: &[&str], ty: Ty) -> Option<Alu> {
    Some(match (mods, ty) {
        (["lo"], _) => integer!(ty, T, |a, b, c| {
            T::get(a)
                .wrapping_mul(T::get(b))
                .wrapping_add(T::get(c))
                .put()
        }),
        (["hi"], _) => integer!(ty, T, |a, b, c| T::get(a)
            .high(T::get(b))
            .wrapping_add(T::get(c))
            .put()),
        (["wide"], Ty::U16 | Ty::S16 | Ty::U32 | Ty::S32) => integer!(ty, T, |a, b, c| {
            T::get(a)
                .put()
                .wrapping_mul(T::get(b).put())
                .wrapping_add(c)
        }),
        _ => return None,
    })
}

fn float(root: &str, ty: Ty) -> Option<Alu> {
    Some(match root {
        "add" => float!(ty, T, |a, b, _| (T::get(a) + T::get(b)).put()),
        "sub" => float!(ty, T, |a, b, _| (T::get(a) - T::get(b)).put()),
        "mul" => float!(ty, T, |a, b, _| (T::get(a) * T::get(b)).put()),
        "div" => float!(ty, T, |a, b, _| (T::get(a) / T::get(b)).put()),
        "fma" | "mad" => float!(ty, T, |a, b, c| T::get(a)
            .mul_add(T::get(b), T::get(c))
            .put()),
        "min" => float!(ty, T, |a, b, _| T::get(a).min(T::get(b)).put()),
        "max" => float!(ty, T, |a, b, _| T::get(a).max(T::get(b)).put()),
        "neg" => float!(ty, T, |a, _, _| (-T::get(a)).put()),
        "abs" => float!(ty, T, |a, _, _| T::get(a).abs().put()),
        "sqrt" => float!(ty, T, |a, _, _| T::get(a).sqrt().put()),
        "rsqrt" => float!(ty, T, |a, _, _| T::get(a).sqrt().recip().put()),
        "rcp" => float!(ty, T, |a, _, _| T::get(a).recip().put()),
        "ex2" => float!(ty, T, |a, _, _| T::get(a).exp2().put()),
        "lg2" => float!(ty, T, |a, _, _| T::get(a).log2().put()),
        "sin" => float!(ty, T, |a, _, _| T::get(a).sin().put()),
        "cos" => float!(ty, T, |a, _, _| T::get(a).cos().put()),
        "tanh" => float!(ty, T, |a, _, _| T::get(a).tanh().put()),
        "copysign" => float!(ty, T, |a, b, _| T::get(b).copysign(T::get(a)).put()),
        _ => return None,
    })
}

/// The comparison of `setp`.
pub(crate) fn compare(how: &str, ty: Ty) -> Option<Alu> {
    if ty.is_float() {
        return Some(match how {
            "eq" => ordered!(ty, Some(Equal)),
            "ne" => ordered!(ty, Some(Less | Greater)),
            "lt" => ordered!(ty, Some(Less)),
            "le" => ordered!(ty, Some(Less | Equal)),
            "gt" => ordered!(ty, Some(Greater)),
            "ge" => ordered!(ty, Some(Greater | Equal)),
            "num" => ordered!(ty, Some(Less | Equal | Greater)),
            // With a NaN these are true.
            "equ" => ordered!(ty, None | Some(Equal)),
            "neu" => ordered!(ty, None | Some(Less | Greater)),
            "ltu" => ordered!(ty, None | Some(Less)),
            "leu" => ordered!(ty, None | Some(Less | Equal)),
            "gtu" => ordered!(ty, None | Some(Greater)),
            "geu" => ordered!(ty, None | Some(Greater | Equal)),
            "nan" => float!(ty, T, |a, b, _| u64::from(
                T::get(a).partial_cmp(&T::get(b)).is_none()
            )),
            _ => return None,
        });
    }
    Some(match how {
        "eq" => integer!(ty, T, |a, b, _| u64::from(T::get(a) == T::get(b))),
        "ne" => integer!(ty, T, |a, b, _| u64::from(T::get(a) != T::get(b))),
        "lt" | "lo" => integer!(ty, T, |a, b, _| u64::from(T::get(a) < T::get(b))),
        "le" | "ls" => integer!(ty, T, |a, b, _| u64::from(T::get(a) <= T::get(b))),
        "gt" | "hi" => integer!(ty, T, |a, b, _| u64::from(T::get(a) > T::get(b))),
        "ge" | "hs" => integer!(ty, T, |a, b, _| u64::from(T::get(a) >= T::get(b))),
        _ => return None,
    })
}

/// The value as its type has it: clears or sign-extends the register's upper bits.
pub(crate) fn narrow(ty: Ty) -> Option<Alu> {
    Some(integer!(ty, T, |a, _, _| T::get(a).put()))
}

/// The steps of `cvt`.
pub(crate) fn convert(mods: &[&str], to: Ty, from: Ty) -> Option<Vec<Alu>> {
    let mut steps: Vec<Alu> = Vec::new();
    let mut saturate = false;
    for part in mods {
        match *part {
            "rn" | "ftz" => {}
            "sat" if to.is_float() => saturate = true,
            "rni" if from.is_float() => {
                steps.push(float!(from, T, |a, _, _| T::get(a).round_ties_even().put()));
            }
            "rzi" if from.is_float() => {
                steps.push(float!(from, T, |a, _, _| T::get(a).trunc().put()));
            }
            "rmi" if from.is_float() => {
                steps.push(float!(from, T, |a, _, _| T::get(a).floor().put()));
            }
            "rpi" if from.is_float() => {
                steps.push(float!(from, T, |a, _, _| T::get(a).ceil().put()));
            }
            _ => return None,
        }
    }
    match (from, to) {
        (Ty::F32, Ty::F64) => steps.push(|a, _, _| f64::from(f32::get(a)).put()),
        (Ty::F64, Ty::F32) => steps.push(|a, _, _| (f64::get(a) as f32).put()),
        (Ty::F32, Ty::F32) | (Ty::F64, Ty::F64) => {}
        // Like Rust, the GPU returns the nearest number.
        (Ty::F32, _) => steps.push(integer!(to, T, |a, _, _| (f32::get(a) as T).put())),
        (Ty::F64, _) => steps.push(integer!(to, T, |a, _, _| (f64::get(a) as T).put())),
        _ => {
            steps.push(narrow(from)?);
            steps.push(match (to, from.is_signed()) {
                (Ty::F32, true) => |a, _, _| (a.cast_signed() as f32).put(),
                (Ty::F32, false) => |a, _, _| (a as f32).put(),
                (Ty::F64, true) => |a, _, _| (a.cast_signed() as f64).put(),
                (Ty::F64, false) => |a, _, _| (a as f64).put(),
                _ => narrow(to)?,
            });
        }
    }
    if saturate {
        // A NaN becomes 0.
        steps.push(float!(to, T, |a, _, _| T::get(a).max(0.0).put()));
        steps.push(float!(to, T, |a, _, _| T::get(a).min(1.0).put()));
    }
    Some(steps)
}

/// The new value of an atomic, from the old value and the operands.
pub(crate) fn atomic(how: &str, ty: Ty) -> Option<Alu> {
    Some(match how {
        "exch" => |_, b, _| b,
        "cas" => integer!(ty, T, |old, b, c| if T::get(old) == T::get(b) {
            c
        } else {
            old
        }),
        "add" | "min" | "max" | "and" | "or" | "xor" => return find(how, &[], ty),
        _ => return None,
    })
}
