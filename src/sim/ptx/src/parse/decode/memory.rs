//! Decoding of moves, loads, stores, address conversions and atomics.

use crate::alu;
use crate::ir::{Addr, AtomOp, Base, LOCAL_BASE, MemOp, MemSpace, Op, SHARED_BASE, Src};
use crate::parse::Text;
use crate::parse::body::{Bad, Frame, Local};
use crate::parse::decode::{Decoded, Mods, fun, operands};
use crate::parse::operand::Operand;
use crate::types::{Ty, Val};

/// Hints and memory orders; all accesses of this interpreter are in order.
const ORDERING: &[&str] = &[
    "volatile", "weak", "relaxed", "acquire", "release", "acq_rel", "seq_cst", "mmio", "cta",
    "gpu", "sys", "cluster", "nc", "ca", "cg", "cs", "lu", "cv", "wb", "wt", "noftz", "unified",
];

fn space(mods: &mut Mods<'_>) -> MemSpace {
    let part = mods.take_if(|p| {
        matches!(
            p.split("::").next(),
            Some("global" | "const" | "shared" | "local" | "param")
        )
    });
    match part.and_then(|p| p.split("::").next()) {
        Some("global" | "const") => MemSpace::Global,
        Some("shared") => MemSpace::Shared,
        Some("local") => MemSpace::Local,
        Some("param") => MemSpace::Param,
        _ => MemSpace::Generic,
    }
}

fn drop_ordering(mods: &mut Mods<'_>) {
    while mods.take_any(ORDERING).is_some()
        || mods
            .take_if(|p| p.starts_with('L') && p.contains("::"))
            .is_some()
    {}
}

impl<'t> Text<'t, '_> {
    pub(crate) fn decode_memory(
        &mut self,
        frame: &mut Frame<'t>,
        root: &'t str,
        mut mods: Mods<'t>,
        ops: &[Operand<'t>],
    ) -> Decoded {
        match root {
            "mov" => self.decode_mov(frame, mods, ops),
            "cvta" => self.decode_cvta(frame, mods, ops),
            "ld" | "ldu" | "st" => {
                let space = space(&mut mods);
                drop_ordering(&mut mods);
                let ty = mods.ty()?;
                let count = mods
                    .take_any(&["v2", "v4", "v8"])
                    .map_or(1, |v| usize::from(v.as_bytes()[1] - b'0'));
                mods.done()?;
                let (("st", [address, value]) | (_, [value, address])) = (root, ops) else {
                    return Err(operands());
                };
                let (space, addr) = self.effective(frame, address, space)?;
                let values = match value {
                    Operand::Vector(values) => values.as_slice(),
                    one => std::slice::from_ref(one),
                };
                if values.len() != count {
                    return Err(operands());
                }
                let regs = values.iter().map(|value| match (root, value) {
                    ("st", value) => self.src(frame, value, ty),
                    (_, Operand::Name("_")) => Ok(u32::MAX),
                    (_, value) => self.dst(frame, value),
                });
                let mem = Box::new(MemOp {
                    space,
                    ty,
                    addr,
                    regs: regs.collect::<Result<_, _>>()?,
                });
                frame.emit(if root == "st" {
                    Op::St(mem)
                } else {
                    Op::Ld(mem)
                });
                Ok(())
            }
            "atom" | "red" => self.decode_atomic(frame, root, mods, ops),
            // Hints to caches.
            _ => {
                frame.emit(Op::Nop);
                Ok(())
            }
        }
    }

    /// The address in brackets, and the space it is in.
    fn effective(
        &self,
        frame: &mut Frame<'t>,
        operand: &Operand<'t>,
        space: MemSpace,
    ) -> Result<(MemSpace, Addr), Bad> {
        let Operand::Address { base, offset } = operand else {
            return Err(Bad::Unsupported);
        };
        let Some(name) = base else {
            return Ok((
                space,
                Addr {
                    base: Base::Zero,
                    offset: *offset,
                },
            ));
        };
        if let Some(Local::Reg { index, .. }) = frame.lookup(name) {
            return Ok((
                space,
                Addr {
                    base: Base::Reg(index),
                    offset: *offset,
                },
            ));
        }
        let Some(base) = self.address_of(frame, name) else {
            return Err(Bad::Syntax(format!("name {name} is not declared")));
        };
        let addr = base.plus(*offset);
        let space = match addr.base {
            Base::Frame => MemSpace::Local,
            Base::KernelParam => MemSpace::Param,
            Base::Shared | Base::DynamicShared => MemSpace::Shared,
            Base::Global(_) => MemSpace::Global,
            Base::Code(_) | Base::Reg(_) | Base::Zero => return Err(Bad::Unsupported),
        };
        Ok((space, addr))
    }

    fn decode_cvta(
        &mut self,
        frame: &mut Frame<'t>,
        mut mods: Mods<'t>,
        ops: &[Operand<'t>],
    ) -> Decoded {
        let to = mods.take("to");
        let space = space(&mut mods);
        let ty = mods.ty()?;
        mods.done()?;
        if ty.size() != 8 {
            return Err(Bad::Unsupported);
        }
        let [d, a] = ops else { return Err(operands()) };
        let a = self.src(frame, a, ty)?;
        let d = self.dst(frame, d)?;
        let base = match space {
            MemSpace::Shared => SHARED_BASE,
            MemSpace::Local => LOCAL_BASE,
            // Global addresses are generic ones, and parameters keep their window.
            MemSpace::Generic | MemSpace::Global | MemSpace::Param => 0,
        };
        let (op, operand): (_, Src) = match (to, base) {
            (_, 0) => ("or", frame.constant(0)),
            (true, _) => ("and", frame.constant(SHARED_BASE - 1)),
            (false, base) => ("or", frame.constant(base)),
        };
        frame.alu(fun(alu::integer(op, Ty::B64))?, d, &[a, operand]);
        Ok(())
    }

    fn decode_mov(
        &mut self,
        frame: &mut Frame<'t>,
        mut mods: Mods<'t>,
        ops: &[Operand<'t>],
    ) -> Decoded {
        let ty = mods.ty()?;
        mods.done()?;
        let [d, a] = ops else { return Err(operands()) };
        let mov = fun(alu::select("mov"))?;
        match (d, a) {
            (Operand::Vector(parts), a) => self.unpack(frame, ty, parts, a),
            (d, Operand::Vector(parts)) => {
                let value = self.pack(frame, ty, parts)?;
                let d = self.dst(frame, d)?;
                frame.alu(mov, d, &[value]);
                Ok(())
            }
            (d, Operand::Name(name)) => {
                let d = self.dst(frame, d)?;
                if let Some(base) = self.address_of(frame, name) {
                    frame.emit(Op::Address {
                        d,
                        addr: base.plus(0),
                    });
                    return Ok(());
                }
                let before = frame.code.len();
                let a = self.src(frame, a, ty)?;
                if frame.code.len() > before
                    && let Some(Op::Special { d: temp, .. }) =
                        frame.code.last_mut().map(|inst| &mut inst.op)
                    && *temp == a
                {
                    // This instruction reads a special register: straight into the destination.
                    *temp = d;
                    return Ok(());
                }
                frame.alu(mov, d, &[a]);
                Ok(())
            }
            (
                d,
                Operand::Address {
                    base: Some(name),
                    offset,
                },
            ) => {
                let base = self.address_of(frame, name).ok_or(Bad::Unsupported)?;
                let d = self.dst(frame, d)?;
                frame.emit(Op::Address {
                    d,
                    addr: base.plus(*offset),
                });
                Ok(())
            }
            (d, a) => {
                let a = self.src(frame, a, ty)?;
                let d = self.dst(frame, d)?;
                frame.alu(mov, d, &[a]);
                Ok(())
            }
        }
    }

    fn pack(&mut self, frame: &mut Frame<'t>, ty: Ty, parts: &[Operand<'t>]) -> Result<Src, Bad> {
        let bits = ty.size() * 8 / parts.len().max(1) as u32;
        let part_ty = part_type(bits)?;
        let mut values: Vec<Src> = parts
            .iter()
            .map(|part| self.src(frame, part, part_ty))
            .collect::<Result<_, _>>()?;
        let mut width = bits;
        while values.len() > 1 {
            let name = match width {
                8 => "pack8",
                16 => "pack16",
                _ => "pack32",
            };
            let f = if width == 32 {
                alu::bits("pack", Ty::B64)
            } else {
                alu::select(name)
            };
            let f = fun(f)?;
            values = values
                .chunks(2)
                .map(|pair| match pair {
                    [low, high] => Ok(frame.alu_temp(f, &[*low, *high])),
                    _ => Err(Bad::Unsupported),
                })
                .collect::<Result<_, _>>()?;
            width *= 2;
        }
        values.first().copied().ok_or_else(operands)
    }

    fn unpack(
        &mut self,
        frame: &mut Frame<'t>,
        ty: Ty,
        parts: &[Operand<'t>],
        a: &Operand<'t>,
    ) -> Decoded {
        let bits = ty.size() * 8 / parts.len().max(1) as u32;
        part_type(bits)?;
        let low = fun(alu::select(match bits {
            8 => "low8",
            16 => "low16",
            _ => "low32",
        }))?;
        let a = self.src(frame, a, ty)?;
        // One of the parts may be the source itself.
        let whole = frame.alu_temp(fun(alu::select("mov"))?, &[a]);
        for (i, part) in parts.iter().enumerate() {
            if *part == Operand::Name("_") {
                continue;
            }
            let d = self.dst(frame, part)?;
            let count = frame.constant(u64::from(bits) * i as u64);
            let shifted = frame.alu_temp(fun(alu::shift("shr", Ty::U64))?, &[whole, count]);
            frame.alu(low, d, &[shifted]);
        }
        Ok(())
    }

    fn decode_atomic(
        &mut self,
        frame: &mut Frame<'t>,
        root: &'t str,
        mut mods: Mods<'t>,
        ops: &[Operand<'t>],
    ) -> Decoded {
        let space = space(&mut mods);
        drop_ordering(&mut mods);
        let ty = mods.ty()?;
        let op = mods.take_if(|_| true).ok_or(Bad::Unsupported)?;
        mods.done()?;
        let apply = atomic(op, ty).ok_or(Bad::Unsupported)?;
        let (dst, rest) = match (root, ops) {
            ("atom", [Operand::Name("_"), rest @ ..]) => (None, rest),
            ("atom", [d, rest @ ..]) => (Some(self.dst(frame, d)?), rest),
            _ => (None, ops),
        };
        let [address, values @ ..] = rest else {
            return Err(operands());
        };
        if values.len() != if op == "cas" { 2 } else { 1 } {
            return Err(operands());
        }
        let (space, addr) = self.effective(frame, address, space)?;
        let b = self.src(frame, &values[0], ty)?;
        let c = values
            .get(1)
            .map_or(Ok(b), |value| self.src(frame, value, ty))?;
        frame.emit(Op::Atom(Box::new(AtomOp {
            space,
            ty,
            addr,
            dst,
            b,
            c,
            apply,
        })));
        Ok(())
    }
}

fn part_type(bits: u32) -> Result<Ty, Bad> {
    Ok(match bits {
        8 => Ty::B8,
        16 => Ty::B16,
        32 => Ty::B32,
        _ => return Err(Bad::Unsupported),
    })
}

/// What an atomic makes of (old, b, c).
fn atomic(op: &str, ty: Ty) -> Option<fn(u64, u64, u64) -> u64> {
    Some(match (op, ty) {
        ("exch", _) => |_, b, _| b,
        ("cas", Ty::B16) => |old, b, c| if old as u16 == b as u16 { c } else { old },
        ("cas", Ty::B32 | Ty::U32 | Ty::S32) => {
            |old, b, c| if old as u32 == b as u32 { c } else { old }
        }
        ("cas", Ty::B64 | Ty::U64 | Ty::S64) => |old, b, c| if old == b { c } else { old },
        ("and", _) => |old, b, _| old & b,
        ("or", _) => |old, b, _| old | b,
        ("xor", _) => |old, b, _| old ^ b,
        ("add", Ty::F32) => |old, b, _| (f32::get(old) + f32::get(b)).put(),
        ("add", Ty::F64) => |old, b, _| (f64::get(old) + f64::get(b)).put(),
        ("add", Ty::U32 | Ty::S32 | Ty::U64 | Ty::S64) => |old, b, _| old.wrapping_add(b),
        ("inc", Ty::U32) => |old, b, _| if old as u32 >= b as u32 { 0 } else { old + 1 },
        ("dec", Ty::U32) => |old, b, _| {
            if old as u32 == 0 || old as u32 > b as u32 {
                b
            } else {
                old - 1
            }
        },
        ("min", Ty::U32) => |old, b, _| u64::from((old as u32).min(b as u32)),
        ("max", Ty::U32) => |old, b, _| u64::from((old as u32).max(b as u32)),
        ("min", Ty::S32) => |old, b, _| (old as i32).min(b as i32).put(),
        ("max", Ty::S32) => |old, b, _| (old as i32).max(b as i32).put(),
        ("min", Ty::U64) => |old, b, _| old.min(b),
        ("max", Ty::U64) => |old, b, _| old.max(b),
        ("min", Ty::S64) => |old, b, _| (old as i64).min(b as i64) as u64,
        ("max", Ty::S64) => |old, b, _| (old as i64).max(b as i64) as u64,
        _ => return None,
    })
}
