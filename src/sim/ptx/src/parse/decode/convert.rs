//! Decoding of `cvt`: a chain of one to four steps.

use crate::alu::{self, Rounding};
use crate::ir::AluFn;
use crate::parse::Text;
use crate::parse::body::{Bad, Frame};
use crate::parse::decode::{Decoded, Mods, fun, operands};
use crate::parse::operand::Operand;
use crate::types::Ty;

fn is_half(ty: Ty) -> bool {
    matches!(ty, Ty::F16 | Ty::Bf16)
}

impl<'t> Text<'t, '_> {
    pub(crate) fn decode_cvt(
        &mut self,
        frame: &mut Frame<'t>,
        mut mods: Mods<'t>,
        ops: &[Operand<'t>],
    ) -> Decoded {
        let from = mods.ty()?;
        let to = mods.ty()?;
        let flush = mods.take("ftz");
        let saturate = mods.take("sat");
        let integral = mods
            .take_any(&["rni", "rzi", "rmi", "rpi"])
            .map(|mode| match mode {
                "rni" => Rounding::Nearest,
                "rzi" => Rounding::Zero,
                "rmi" => Rounding::Down,
                _ => Rounding::Up,
            });
        let rounding = mods.rounding().unwrap_or(Rounding::Nearest);
        mods.done()?;
        if matches!(to, Ty::F16x2 | Ty::Bf16x2) {
            return self.decode_cvt_pair(frame, from, to, rounding, ops);
        }
        let [d, a] = ops else { return Err(operands()) };
        let a = self.src(frame, a, from)?;
        let d = self.dst(frame, d)?;
        let steps = steps(from, to, rounding, integral, flush, saturate)?;
        let (last, first) = steps.split_last().ok_or(Bad::Unsupported)?;
        let mut value = a;
        for step in first {
            value = frame.alu_temp(*step, &[value]);
        }
        frame.alu(*last, d, &[value]);
        Ok(())
    }

    /// `cvt.rn.f16x2.f32 d, high, low`
    fn decode_cvt_pair(
        &mut self,
        frame: &mut Frame<'t>,
        from: Ty,
        to: Ty,
        rounding: Rounding,
        ops: &[Operand<'t>],
    ) -> Decoded {
        let [d, high, low] = ops else {
            return Err(operands());
        };
        let single = if to == Ty::F16x2 { Ty::F16 } else { Ty::Bf16 };
        let narrow = fun(alu::to_half(from, single, rounding))?;
        let high = self.src(frame, high, from)?;
        let low = self.src(frame, low, from)?;
        let d = self.dst(frame, d)?;
        let high = frame.alu_temp(narrow, &[high]);
        let low = frame.alu_temp(narrow, &[low]);
        frame.alu(fun(alu::select("pack16"))?, d, &[low, high]);
        Ok(())
    }
}

fn steps(
    from: Ty,
    to: Ty,
    rounding: Rounding,
    integral: Option<Rounding>,
    flush: bool,
    saturate: bool,
) -> Result<Vec<AluFn>, Bad> {
    let mut steps = Vec::new();
    if !from.is_float() && !to.is_float() {
        if saturate {
            steps.push(fun(alu::extend(from))?);
            steps.push(fun(alu::saturate_int(from.is_signed(), to))?);
        } else {
            // The narrower of the two decides which bits stay and how they are extended.
            steps.push(fun(alu::extend(if to.size() < from.size() {
                to
            } else {
                from
            }))?);
        }
        return Ok(steps);
    }
    // The value on its way: f16 and bf16 travel as f32, which holds them exactly.
    let mut at = from;
    if is_half(from) {
        steps.push(fun(alu::from_half(from))?);
        at = Ty::F32;
    }
    if flush && at == Ty::F32 {
        steps.push(alu::flush());
    }
    if let Some(mode) = integral {
        if !(to.is_float() || at.is_float()) {
            return Err(Bad::Unsupported);
        }
        if to.is_float() || mode != Rounding::Zero {
            steps.push(fun(alu::integral(at, mode))?);
        }
    }
    if !to.is_float() {
        if integral.is_none() {
            return Err(Bad::Syntax(
                "a conversion to an integer needs a rounding mode".to_owned(),
            ));
        }
        steps.push(fun(alu::float_to_int(at, to))?);
        return Ok(steps);
    }
    if !from.is_float() {
        steps.push(fun(match to {
            Ty::F32 => alu::int_to_float(from, rounding),
            Ty::F64 => alu::int_to_double(from, rounding),
            _ => alu::int_to_half(from, to, rounding),
        })?);
    } else {
        match (at, to) {
            (Ty::F32, Ty::F64) => steps.push(alu::widen_single()),
            (Ty::F64, Ty::F32) => {
                steps.push(alu::narrow_double(rounding));
                if flush {
                    steps.push(alu::flush());
                }
            }
            (Ty::F32 | Ty::F64, Ty::F16 | Ty::Bf16) => {
                if saturate {
                    steps.push(fun(alu::saturate_float(at))?);
                }
                steps.push(fun(alu::to_half(at, to, rounding))?);
                return Ok(steps);
            }
            _ if steps.is_empty() && !saturate => steps.push(fun(alu::select("mov"))?),
            _ => {}
        }
    }
    if saturate {
        steps.push(fun(alu::saturate_float(to))?);
    }
    Ok(steps)
}
