//! One instruction as written becomes one or a few instructions of the decoded form.

mod arith;
mod control;
mod convert;
mod memory;

use crate::alu::{self, Rounding};
use crate::ir::{AluFn, Op, Special, Src};
use crate::parse::Text;
use crate::parse::body::{Bad, Frame, Local};
use crate::parse::operand::Operand;
use crate::types::Ty;

pub(crate) type Decoded = Result<(), Bad>;

/// The dotted parts behind the name of an instruction; what is not taken is not understood.
#[derive(Debug, Clone)]
pub(crate) struct Mods<'t> {
    parts: Vec<&'t str>,
}

impl<'t> Mods<'t> {
    /// Takes the part if it is there.
    pub(crate) fn take(&mut self, part: &str) -> bool {
        let found = self.parts.iter().position(|p| *p == part);
        found.map(|at| self.parts.remove(at)).is_some()
    }

    /// Takes the first part that is in the list.
    pub(crate) fn take_any(&mut self, list: &[&str]) -> Option<&'t str> {
        let found = self.parts.iter().position(|p| list.contains(p));
        found.map(|at| self.parts.remove(at))
    }

    pub(crate) fn take_if(&mut self, test: impl Fn(&str) -> bool) -> Option<&'t str> {
        let found = self.parts.iter().position(|p| test(p));
        found.map(|at| self.parts.remove(at))
    }

    /// Takes the last type.
    pub(crate) fn ty(&mut self) -> Result<Ty, Bad> {
        let found = self.parts.iter().rposition(|p| Ty::parse(p).is_some());
        found
            .and_then(|at| Ty::parse(self.parts.remove(at)))
            .ok_or(Bad::Unsupported)
    }

    pub(crate) fn rounding(&mut self) -> Option<Rounding> {
        Some(match self.take_any(&["rn", "rz", "rm", "rp"])? {
            "rn" => Rounding::Nearest,
            "rz" => Rounding::Zero,
            "rm" => Rounding::Down,
            _ => Rounding::Up,
        })
    }

    /// Fails if a part was not understood.
    pub(crate) fn done(&self) -> Decoded {
        if self.parts.is_empty() {
            Ok(())
        } else {
            Err(Bad::Unsupported)
        }
    }
}

/// Instructions of PTX that this interpreter does not carry.
const NOT_CARRIED: &[&str] = &[
    "mul24",
    "mad24",
    "dp2a",
    "fns",
    "szext",
    "bmsk",
    "tex",
    "tld4",
    "txq",
    "suld",
    "sust",
    "sured",
    "suq",
    "istypep",
    "stacksave",
    "stackrestore",
    "alloca",
    "match",
    "redux",
    "elect",
    "griddepcontrol",
    "setmaxnreg",
    "wmma",
    "mma",
    "wgmma",
    "ldmatrix",
    "stmatrix",
    "movmatrix",
    "cp",
    "mbarrier",
    "mapa",
    "getctarank",
    "multimem",
    "tensormap",
    "clusterlaunchcontrol",
    "tcgen05",
    "createpolicy",
    "vadd",
    "vsub",
    "vabsdiff",
    "vmin",
    "vmax",
    "vshl",
    "vshr",
    "vmad",
    "vset",
    "vadd2",
    "vsub2",
    "vavrg2",
    "vabsdiff2",
    "vmin2",
    "vmax2",
    "vset2",
    "vadd4",
    "vsub4",
    "vavrg4",
    "vabsdiff4",
    "vmin4",
    "vmax4",
    "vset4",
    "st_async",
    "red_async",
    "isspacep",
];

impl<'t> Text<'t, '_> {
    pub(crate) fn decode(
        &mut self,
        frame: &mut Frame<'t>,
        opcode: &'t str,
        ops: &[Operand<'t>],
    ) -> Decoded {
        let mut parts = opcode.split('.');
        let root = parts.next().unwrap_or("");
        let mods = Mods {
            parts: parts.collect(),
        };
        match root {
            "mov" | "ld" | "ldu" | "st" | "cvta" | "atom" | "red" | "prefetch" | "prefetchu"
            | "discard" | "applypriority" => self.decode_memory(frame, root, mods, ops),
            "cvt" => self.decode_cvt(frame, mods, ops),
            "bra" | "brx" | "call" | "ret" | "exit" | "trap" | "brkpt" | "membar" | "fence"
            | "nanosleep" | "pmevent" | "activemask" | "bar" | "barrier" | "shfl" | "vote" => {
                self.decode_control(frame, root, mods, ops)
            }
            _ if NOT_CARRIED.contains(&root) => Err(Bad::Unsupported),
            _ => self.decode_arithmetic(frame, root, mods, ops),
        }
    }

    /// The operand as a source of the type.
    pub(crate) fn src(
        &self,
        frame: &mut Frame<'t>,
        operand: &Operand<'t>,
        ty: Ty,
    ) -> Result<Src, Bad> {
        Ok(match operand {
            Operand::Name(name) => {
                if let Some(Local::Reg { index, .. }) = frame.lookup(name) {
                    return Ok(index);
                }
                if let Some(base) = self.address_of(frame, name) {
                    let d = frame.temp();
                    frame.emit(Op::Address {
                        d,
                        addr: base.plus(0),
                    });
                    return Ok(d);
                }
                if *name == "WARP_SZ" {
                    return Ok(frame.constant(32));
                }
                let which = special(name)?;
                let d = frame.temp();
                frame.emit(Op::Special { d, which });
                d
            }
            Operand::Not(name) => {
                let reg = self.src(frame, &Operand::Name(name), Ty::Pred)?;
                frame.alu_temp(fun(alu::select("not"))?, &[reg])
            }
            Operand::Int(value) => frame.constant(match ty {
                Ty::F32 => ((*value as i64) as f32).to_bits().into(),
                Ty::F64 => ((*value as i64) as f64).to_bits(),
                _ => *value,
            }),
            Operand::F32(bits) => frame.constant(match ty {
                Ty::F64 => f64::from(f32::from_bits(*bits)).to_bits(),
                _ => u64::from(*bits),
            }),
            Operand::F64(bits) => frame.constant(match ty {
                Ty::F32 => (f64::from_bits(*bits) as f32).to_bits().into(),
                _ => *bits,
            }),
            _ => return Err(Bad::Unsupported),
        })
    }

    /// The operand as a destination; `_` gives a register that nobody reads.
    pub(crate) fn dst(&self, frame: &mut Frame<'t>, operand: &Operand<'t>) -> Result<u32, Bad> {
        match operand {
            Operand::Name("_") => Ok(frame.temp()),
            Operand::Name(name) => match frame.lookup(name) {
                Some(Local::Reg { index, .. }) => Ok(index),
                Some(_) => Err(Bad::Syntax(format!("{name} is no register"))),
                None => Err(Bad::Syntax(format!("register {name} is not declared"))),
            },
            _ => Err(Bad::Unsupported),
        }
    }

    /// `d, a[, b[, c]]` of one type.
    pub(crate) fn same_type(
        &self,
        frame: &mut Frame<'t>,
        f: AluFn,
        ty: Ty,
        ops: &[Operand<'t>],
    ) -> Decoded {
        let types = [ty; 3];
        self.of_types(frame, f, &types[..ops.len().clamp(1, 4) - 1], ops)
    }

    /// `d` and one source for each type.
    pub(crate) fn of_types(
        &self,
        frame: &mut Frame<'t>,
        f: AluFn,
        types: &[Ty],
        ops: &[Operand<'t>],
    ) -> Decoded {
        let [d, srcs @ ..] = ops else {
            return Err(operands());
        };
        if srcs.len() != types.len() {
            return Err(operands());
        }
        let srcs = self.srcs(frame, srcs, types)?;
        let d = self.dst(frame, d)?;
        frame.alu(f, d, &srcs);
        Ok(())
    }

    pub(crate) fn srcs(
        &self,
        frame: &mut Frame<'t>,
        ops: &[Operand<'t>],
        types: &[Ty],
    ) -> Result<Vec<Src>, Bad> {
        if ops.len() != types.len() {
            return Err(operands());
        }
        ops.iter()
            .zip(types)
            .map(|(op, ty)| self.src(frame, op, *ty))
            .collect()
    }
}

/// The error for a wrong number of operands.
pub(crate) fn operands() -> Bad {
    Bad::Syntax("the instruction has a wrong number of operands".to_owned())
}

/// The function, or "not carried" where the table has none.
pub(crate) fn fun(f: Option<AluFn>) -> Result<AluFn, Bad> {
    f.ok_or(Bad::Unsupported)
}

fn special(name: &str) -> Result<Special, Bad> {
    let Some(name) = name.strip_prefix('%') else {
        return Err(Bad::Syntax(format!("name {name} is not declared")));
    };
    let (root, axis) = name.split_once('.').map_or((name, None), |(root, axis)| {
        (
            root,
            match axis {
                "x" => Some(0),
                "y" => Some(1),
                "z" => Some(2),
                _ => None,
            },
        )
    });
    Ok(match (root, axis) {
        ("tid", Some(axis)) => Special::Tid(axis),
        ("ntid", Some(axis)) => Special::Ntid(axis),
        ("ctaid", Some(axis)) => Special::Ctaid(axis),
        ("nctaid", Some(axis)) => Special::Nctaid(axis),
        ("laneid", _) => Special::LaneId,
        ("warpid", _) => Special::WarpId,
        ("nwarpid", _) => Special::NwarpId,
        ("smid", _) => Special::SmId,
        ("nsmid", _) => Special::NsmId,
        ("gridid", _) => Special::GridId,
        ("lanemask_eq", _) => Special::LaneMaskEq,
        ("lanemask_le", _) => Special::LaneMaskLe,
        ("lanemask_lt", _) => Special::LaneMaskLt,
        ("lanemask_ge", _) => Special::LaneMaskGe,
        ("lanemask_gt", _) => Special::LaneMaskGt,
        ("clock" | "clock64", _) => Special::Clock,
        ("clock_hi", _) => Special::ClockHi,
        ("globaltimer" | "globaltimer_lo", _) => Special::GlobalTimer,
        ("globaltimer_hi", _) => Special::GlobalTimerHi,
        ("dynamic_smem_size", _) => Special::DynamicSharedSize,
        ("total_smem_size", _) => Special::TotalSharedSize,
        _ => match root {
            // Registers of performance counters, clusters and environments exist but are not carried.
            "cluster_ctaid"
            | "cluster_nctaid"
            | "clusterid"
            | "nclusterid"
            | "cluster_ctarank"
            | "cluster_nctarank"
            | "is_explicit_cluster"
            | "reserved_smem_offset_begin" => {
                return Err(Bad::Unsupported);
            }
            _ if root.starts_with("pm") || root.starts_with("envreg") => {
                return Err(Bad::Unsupported);
            }
            _ => return Err(Bad::Syntax(format!("register %{name} is not declared"))),
        },
    })
}
