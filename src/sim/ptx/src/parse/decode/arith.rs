//! Decoding of arithmetic, logic and comparisons.

use crate::alu::{self, Rounding};
use crate::ir::Src;
use crate::parse::Text;
use crate::parse::body::{Bad, Frame};
use crate::parse::decode::{Decoded, Mods, fun, operands};
use crate::parse::operand::Operand;
use crate::types::Ty;

impl<'t> Text<'t, '_> {
    pub(crate) fn decode_arithmetic(
        &mut self,
        frame: &mut Frame<'t>,
        root: &'t str,
        mut mods: Mods<'t>,
        ops: &[Operand<'t>],
    ) -> Decoded {
        match root {
            "setp" | "set" => return self.decode_set(frame, root, mods, ops),
            "testp" => {
                let ty = mods.ty()?;
                let op = mods.take_if(|_| true).unwrap_or("");
                return self.same_type(frame, fun(alu::testp(op, ty))?, ty, ops);
            }
            _ => {}
        }
        let arity =
            arity(root).ok_or_else(|| Bad::Syntax(format!("`{root}` is no instruction of PTX")))?;
        if ops.len() != arity + 1 {
            return Err(operands());
        }
        let ty = if root == "prmt" {
            mods.take("b32")
                .then_some(Ty::B32)
                .ok_or(Bad::Unsupported)?
        } else {
            mods.ty()?
        };
        match root {
            "selp" => {
                mods.done()?;
                self.of_types(frame, fun(alu::select("selp"))?, &[ty, ty, Ty::Pred], ops)
            }
            "slct" => {
                // The type taken first is that of the third operand.
                let value = mods.ty()?;
                let flush = mods.take("ftz");
                mods.done()?;
                let name = match ty {
                    Ty::S32 => "slct.s32",
                    Ty::F32 => "slct.f32",
                    _ => return Err(Bad::Unsupported),
                };
                let [d, a, b, c] = ops else {
                    return Err(operands());
                };
                let mut c = self.src(frame, c, ty)?;
                if flush {
                    c = frame.alu_temp(alu::flush(), &[c]);
                }
                let ab = self.srcs(frame, &[a.clone(), b.clone()], &[value; 2])?;
                let d = self.dst(frame, d)?;
                frame.alu(fun(alu::select(name))?, d, &[ab[0], ab[1], c]);
                Ok(())
            }
            "and" | "or" | "xor" | "not" if ty == Ty::Pred => {
                self.same_type(frame, fun(alu::select(root))?, ty, ops)
            }
            "addc" | "subc" | "madc" => self.decode_carry(frame, root, mods, ty, ops),
            "add" | "sub" | "mad" if mods.parts.contains(&"cc") => {
                self.decode_carry(frame, root, mods, ty, ops)
            }
            _ if ty.is_float() => self.decode_float(frame, root, mods, ty, ops),
            _ => self.decode_integer(frame, root, mods, ty, ops),
        }
    }

    fn decode_integer(
        &mut self,
        frame: &mut Frame<'t>,
        root: &'t str,
        mut mods: Mods<'t>,
        ty: Ty,
        ops: &[Operand<'t>],
    ) -> Decoded {
        let wide = match ty {
            Ty::U16 => Ty::U32,
            Ty::S16 => Ty::S32,
            Ty::U32 => Ty::U64,
            Ty::S32 => Ty::S64,
            other => other,
        };
        match root {
            "mul" | "mad" => {
                let part = mods
                    .take_any(&["lo", "hi", "wide"])
                    .ok_or(Bad::Unsupported)?;
                mods.done()?;
                match (root, part) {
                    ("mul", "lo") => {
                        self.same_type(frame, fun(alu::integer("mul.lo", ty))?, ty, ops)
                    }
                    ("mad", "lo") => {
                        self.same_type(frame, fun(alu::integer("mad.lo", ty))?, ty, ops)
                    }
                    ("mul", "hi") => self.same_type(frame, fun(alu::mul_hi(ty))?, ty, ops),
                    ("mad", "hi") => {
                        let [d, a, b, c] = ops else {
                            return Err(operands());
                        };
                        let abc = self.srcs(frame, &[a.clone(), b.clone(), c.clone()], &[ty; 3])?;
                        let d = self.dst(frame, d)?;
                        let product = frame.alu_temp(fun(alu::mul_hi(ty))?, &abc[..2]);
                        frame.alu(fun(alu::integer("add", ty))?, d, &[product, abc[2]]);
                        Ok(())
                    }
                    ("mul", _) => self.same_type(frame, fun(alu::mul_wide(ty, false))?, ty, ops),
                    _ => self.of_types(frame, fun(alu::mul_wide(ty, true))?, &[ty, ty, wide], ops),
                }
            }
            "add" | "sub" if mods.take("sat") => {
                mods.done()?;
                let name = if root == "add" { "add.sat" } else { "sub.sat" };
                self.same_type(frame, fun(alu::integer(name, ty))?, ty, ops)
            }
            "shl" | "shr" => {
                mods.done()?;
                self.of_types(frame, fun(alu::shift(root, ty))?, &[ty, Ty::U32], ops)
            }
            "shf" => {
                let side = mods.take_any(&["l", "r"]).ok_or(Bad::Unsupported)?;
                let mode = mods.take_any(&["wrap", "clamp"]).ok_or(Bad::Unsupported)?;
                mods.done()?;
                let name = match (side, mode) {
                    ("l", "wrap") => "shf.l.wrap",
                    ("l", _) => "shf.l.clamp",
                    (_, "wrap") => "shf.r.wrap",
                    _ => "shf.r.clamp",
                };
                self.same_type(frame, fun(alu::shift(name, ty))?, ty, ops)
            }
            "popc" | "clz" | "brev" => {
                mods.done()?;
                self.same_type(frame, fun(alu::bits(root, ty))?, ty, ops)
            }
            "bfind" => {
                let name = if mods.take("shiftamt") {
                    "bfind.shiftamt"
                } else {
                    "bfind"
                };
                mods.done()?;
                self.same_type(frame, fun(alu::bits(name, ty))?, ty, ops)
            }
            "bfe" => {
                mods.done()?;
                self.of_types(
                    frame,
                    fun(alu::bits("bfe", ty))?,
                    &[ty, Ty::U32, Ty::U32],
                    ops,
                )
            }
            "bfi" => {
                mods.done()?;
                let [d, rest @ ..] = ops else {
                    return Err(operands());
                };
                let srcs = self.srcs(frame, rest, &[ty, ty, Ty::U32, Ty::U32])?;
                let d = self.dst(frame, d)?;
                let mask = frame.alu_temp(fun(alu::bits("bfi.mask", ty))?, &srcs[2..]);
                let shifted = frame.alu_temp(fun(alu::bits("bfi.shift", ty))?, &[srcs[0], srcs[2]]);
                frame.alu(
                    fun(alu::bits("bfi.merge", ty))?,
                    d,
                    &[shifted, srcs[1], mask],
                );
                Ok(())
            }
            "prmt" => {
                let mode = mods.take_if(|_| true);
                mods.done()?;
                self.same_type(frame, fun(alu::permute(mode))?, ty, ops)
            }
            "lop3" => {
                mods.done()?;
                let [d, rest @ ..] = ops else {
                    return Err(operands());
                };
                let srcs = self.srcs(frame, rest, &[ty; 4])?;
                let d = self.dst(frame, d)?;
                let bc = frame.alu_temp(fun(alu::bits("pack", ty))?, &srcs[1..3]);
                frame.alu(fun(alu::bits("lop3", ty))?, d, &[srcs[0], bc, srcs[3]]);
                Ok(())
            }
            "dp4a" => {
                let name = match (mods.ty()?, ty) {
                    (Ty::U32, Ty::U32) => "dp4a.u32.u32",
                    (Ty::S32, Ty::S32) => "dp4a.s32.s32",
                    _ => return Err(Bad::Unsupported),
                };
                self.same_type(frame, fun(alu::bits(name, ty))?, ty, ops)
            }
            _ => {
                mods.done()?;
                self.same_type(frame, fun(alu::integer(root, ty))?, ty, ops)
            }
        }
    }

    /// Additions that set or use the carry flag.
    fn decode_carry(
        &mut self,
        frame: &mut Frame<'t>,
        root: &'t str,
        mut mods: Mods<'t>,
        ty: Ty,
        ops: &[Operand<'t>],
    ) -> Decoded {
        let sets = mods.take("cc");
        let part = mods.take_any(&["lo", "hi"]);
        mods.done()?;
        let [d, rest @ ..] = ops else {
            return Err(operands());
        };
        let d = self.dst(frame, d)?;
        let (a, b) = if root.starts_with("mad") {
            let srcs = self.srcs(frame, rest, &[ty; 3])?;
            let f = if part == Some("hi") {
                alu::mul_hi(ty)
            } else {
                alu::integer("mul.lo", ty)
            };
            (frame.alu_temp(fun(f)?, &srcs[..2]), srcs[2])
        } else {
            let srcs = self.srcs(frame, rest, &[ty; 2])?;
            (srcs[0], srcs[1])
        };
        let flag = frame.carry();
        let uses = root.ends_with('c');
        let carry: Src = if uses { flag } else { frame.constant(0) };
        let (sum, over) = alu::carry(root.starts_with("sub"), ty).ok_or(Bad::Unsupported)?;
        let result = frame.alu_temp(sum, &[a, b, carry]);
        if sets {
            frame.alu(over, flag, &[a, b, carry]);
        }
        frame.alu(fun(alu::select("mov"))?, d, &[result]);
        Ok(())
    }

    fn decode_float(
        &mut self,
        frame: &mut Frame<'t>,
        root: &'t str,
        mut mods: Mods<'t>,
        ty: Ty,
        ops: &[Operand<'t>],
    ) -> Decoded {
        let rounding = mods.rounding().unwrap_or(Rounding::Nearest);
        let flush = mods.take("ftz");
        let saturate = mods.take("sat");
        let approx = mods.take_any(&["approx", "full"]).is_some();
        let half = matches!(ty, Ty::F16 | Ty::Bf16 | Ty::F16x2 | Ty::Bf16x2);
        let nan = mods.take("NaN");
        mods.done()?;
        let f = match root {
            "copysign" => alu::copysign(ty),
            "neg" | "abs" => {
                let f = fun(alu::sign_bit(root, ty))?;
                let [d, a] = ops else { return Err(operands()) };
                let mut a = self.src(frame, a, ty)?;
                if flush && ty == Ty::F32 {
                    a = frame.alu_temp(alu::flush(), &[a]);
                }
                let d = self.dst(frame, d)?;
                frame.alu(f, d, &[a]);
                return Ok(());
            }
            // Half precision does not flush on these GPUs unless asked to, which is not carried.
            _ if half && !flush && !saturate && !nan && rounding == Rounding::Nearest => {
                alu::half_arithmetic(root, ty)
            }
            _ if half => None,
            "min" | "max" if nan => {
                let name = if root == "min" { "min.NaN" } else { "max.NaN" };
                alu::arithmetic(name, ty, rounding, flush)
            }
            "sin" | "cos" | "ex2" | "lg2" | "tanh" | "rsqrt" => alu::approx(root, ty, flush),
            _ if approx => alu::approx(root, ty, flush),
            "mad" => alu::arithmetic("fma", ty, rounding, flush),
            _ => alu::arithmetic(root, ty, rounding, flush),
        };
        let f = fun(f)?;
        if !saturate {
            return self.same_type(frame, f, ty, ops);
        }
        let [d, rest @ ..] = ops else {
            return Err(operands());
        };
        let srcs = self.srcs(frame, rest, &[ty; 3][..rest.len().min(3)])?;
        let d = self.dst(frame, d)?;
        let result = frame.alu_temp(f, &srcs);
        frame.alu(fun(alu::saturate_float(ty))?, d, &[result]);
        Ok(())
    }

    /// `setp.cmp[.bool].type p[|q], a, b[, c]` and `set.cmp[.bool].dtype.stype d, a, b[, c]`.
    fn decode_set(
        &mut self,
        frame: &mut Frame<'t>,
        root: &'t str,
        mut mods: Mods<'t>,
        ops: &[Operand<'t>],
    ) -> Decoded {
        let mut ty = mods.ty()?;
        let flush = mods.take("ftz");
        let to = if root == "set" {
            Some(mods.ty()?)
        } else {
            None
        };
        let boolean = mods.take_any(&["and", "or", "xor"]);
        let cmp = mods.take_if(|_| true).ok_or(Bad::Unsupported)?;
        mods.done()?;
        let [d, a, b, rest @ ..] = ops else {
            return Err(operands());
        };
        let mut ab = self.srcs(frame, &[a.clone(), b.clone()], &[ty; 2])?;
        if matches!(ty, Ty::F16 | Ty::Bf16) {
            let widen = fun(alu::half_arithmetic("f64", ty))?;
            ab = ab
                .into_iter()
                .map(|src| frame.alu_temp(widen, &[src]))
                .collect();
            ty = Ty::F64;
        }
        let compare = fun(alu::compare(cmp, ty, flush))?;
        let combine = match (boolean, rest) {
            (None, []) => None,
            (Some(op), [c]) => Some((fun(alu::select(op))?, self.src(frame, c, Ty::Pred)?)),
            _ => return Err(operands()),
        };
        let mut truth = frame.alu_temp(compare, &ab);
        let not = fun(alu::select("not"))?;
        let mov = fun(alu::select("mov"))?;
        if let Operand::Pair(p, q) = d {
            let mut inverse = frame.alu_temp(not, &[truth]);
            if let Some((op, c)) = combine {
                truth = frame.alu_temp(op, &[truth, c]);
                inverse = frame.alu_temp(op, &[inverse, c]);
            }
            let (p, q) = (
                self.dst(frame, &Operand::Name(p))?,
                self.dst(frame, &Operand::Name(q))?,
            );
            frame.alu(mov, p, &[truth]);
            frame.alu(mov, q, &[inverse]);
            return Ok(());
        }
        let d = self.dst(frame, d)?;
        if combine.is_none() && to.is_none() {
            // The common case is one instruction.
            frame.code.pop();
            frame.alu(compare, d, &ab);
            return Ok(());
        }
        if let Some((op, c)) = combine {
            truth = frame.alu_temp(op, &[truth, c]);
        }
        let last = match to {
            None => mov,
            Some(Ty::U32 | Ty::S32) => fun(alu::select("set.u32"))?,
            Some(Ty::F32) => fun(alu::select("set.f32"))?,
            Some(Ty::F16) => fun(alu::select("set.f16"))?,
            Some(Ty::Bf16) => fun(alu::select("set.bf16"))?,
            Some(_) => return Err(Bad::Unsupported),
        };
        frame.alu(last, d, &[truth]);
        Ok(())
    }
}

/// Source operands of an arithmetic instruction.
fn arity(root: &str) -> Option<usize> {
    Some(match root {
        "abs" | "neg" | "popc" | "clz" | "brev" | "bfind" | "not" | "cnot" | "rcp" | "sqrt"
        | "rsqrt" | "sin" | "cos" | "ex2" | "lg2" | "tanh" => 1,
        "add" | "sub" | "mul" | "div" | "rem" | "min" | "max" | "addc" | "subc" | "and" | "or"
        | "xor" | "shl" | "shr" | "copysign" => 2,
        "mad" | "madc" | "fma" | "sad" | "bfe" | "prmt" | "shf" | "dp4a" | "selp" | "slct" => 3,
        "bfi" | "lop3" => 4,
        _ => return None,
    })
}
