//! Decoding of branches, calls, barriers and what the lanes of a warp say to each other.

use crate::ir::{CallOp, Op, Place, Shfl, Target, Vote};
use crate::parse::body::{Bad, Frame, Local};
use crate::parse::decode::{Decoded, Mods, operands};
use crate::parse::operand::Operand;
use crate::parse::{Symbol, Text};
use crate::types::Ty;

impl<'t> Text<'t, '_> {
    pub(crate) fn decode_control(
        &mut self,
        frame: &mut Frame<'t>,
        root: &'t str,
        mut mods: Mods<'t>,
        ops: &[Operand<'t>],
    ) -> Decoded {
        match root {
            "bra" => {
                let [Operand::Name(label)] = ops else {
                    return Err(operands());
                };
                frame.branch(label, Op::Bra(0));
            }
            "brx" => {
                let [index, Operand::Name(table)] = ops else {
                    return Err(operands());
                };
                let index = self.src(frame, index, Ty::U32)?;
                frame.branch(
                    table,
                    Op::Brx {
                        index,
                        targets: Box::new([]),
                    },
                );
            }
            "call" => return self.decode_call(frame, ops),
            "ret" => frame.emit(Op::Ret),
            "exit" => frame.emit(Op::Exit),
            "trap" | "brkpt" => frame.emit(Op::Trap),
            "activemask" => {
                let [d] = ops else { return Err(operands()) };
                let d = self.dst(frame, d)?;
                frame.emit(Op::ActiveMask(d));
            }
            "bar" | "barrier" => {
                mods.take_any(&["cta", "cta::sync"]);
                mods.take("aligned");
                if mods.take("warp") {
                    // The lanes must meet, as for a vote that nobody reads.
                    let [members] = ops else {
                        return Err(operands());
                    };
                    let members = self.src(frame, members, Ty::B32)?;
                    let (d, a) = (frame.temp(), frame.constant(0));
                    frame.emit(Op::Vote {
                        mode: Vote::Any,
                        d,
                        a,
                        members,
                    });
                    return Ok(());
                }
                let [id] = ops else {
                    return Err(Bad::Unsupported);
                };
                if !mods.take("sync") || mods.done().is_err() {
                    return Err(Bad::Unsupported);
                }
                let id = self.src(frame, id, Ty::U32)?;
                frame.has_barrier = true;
                frame.emit(Op::Barrier { id });
            }
            "shfl" => {
                let sync = mods.take("sync");
                let mode = match mods.take_any(&["up", "down", "bfly", "idx"]) {
                    Some("up") => Shfl::Up,
                    Some("down") => Shfl::Down,
                    Some("bfly") => Shfl::Bfly,
                    Some(_) => Shfl::Idx,
                    None => return Err(Bad::Unsupported),
                };
                let [d, a, b, c, members] = ops else {
                    return Err(Bad::Unsupported);
                };
                if !sync {
                    return Err(Bad::Unsupported);
                }
                let types = [Ty::B32; 4];
                let srcs = self.srcs(
                    frame,
                    &[a.clone(), b.clone(), c.clone(), members.clone()],
                    &types,
                )?;
                let (d, p) = match d {
                    Operand::Pair(d, p) => (
                        self.dst(frame, &Operand::Name(d))?,
                        self.dst(frame, &Operand::Name(p))?,
                    ),
                    d => (self.dst(frame, d)?, frame.temp()),
                };
                frame.emit(Op::Shfl {
                    mode,
                    d,
                    p,
                    args: Box::new([srcs[0], srcs[1], srcs[2], srcs[3]]),
                });
            }
            "vote" => {
                let sync = mods.take("sync");
                let mode = match mods.take_any(&["any", "all", "uni", "ballot"]) {
                    Some("any") => Vote::Any,
                    Some("all") => Vote::All,
                    Some("uni") => Vote::Uni,
                    Some(_) => Vote::Ballot,
                    None => return Err(Bad::Unsupported),
                };
                let [d, a, members] = ops else {
                    return Err(Bad::Unsupported);
                };
                if !sync {
                    return Err(Bad::Unsupported);
                }
                let a = self.src(frame, a, Ty::Pred)?;
                let members = self.src(frame, members, Ty::B32)?;
                let d = self.dst(frame, d)?;
                frame.emit(Op::Vote {
                    mode,
                    d,
                    a,
                    members,
                });
            }
            // Memory is in order and time passes by itself.
            _ => frame.emit(Op::Nop),
        }
        Ok(())
    }

    /// `call (rets), name, (args), prototype;` with all but the name optional.
    fn decode_call(&mut self, frame: &mut Frame<'t>, ops: &[Operand<'t>]) -> Decoded {
        let (rets, rest) = match ops {
            [Operand::List(rets), rest @ ..] => (rets.as_slice(), rest),
            rest => (&[][..], rest),
        };
        let (name, args) = match rest {
            [Operand::Name(name), Operand::List(args), ..] => (*name, args.as_slice()),
            [Operand::Name(name), ..] => (*name, &[][..]),
            _ => return Err(operands()),
        };
        let target = match (frame.lookup(name), self.symbols.get(name)) {
            (Some(Local::Reg { index, .. }), _) => Target::Indirect(index),
            (None, Some(Symbol::Function(index))) => Target::Direct(*index),
            _ => return Err(Bad::Syntax(format!("function {name} is not declared"))),
        };
        let mut place = |operand: &Operand<'t>| match operand {
            Operand::Name(name) => match frame.lookup(name) {
                Some(Local::Frame { offset, size }) => Ok(Place::Frame { offset, size }),
                Some(Local::Reg { index, ty }) => Ok(Place::Reg(index, ty.size())),
                _ => Err(Bad::Syntax(format!("parameter {name} is not declared"))),
            },
            literal => Ok(Place::Reg(self.src(frame, literal, Ty::B64)?, 8)),
        };
        let args = args.iter().map(&mut place).collect::<Result<_, _>>()?;
        let rets = rets.iter().map(&mut place).collect::<Result<_, _>>()?;
        frame.emit(Op::Call(Box::new(CallOp { target, args, rets })));
        Ok(())
    }
}
