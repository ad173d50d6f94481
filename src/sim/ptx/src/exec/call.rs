//! Calls and returns: frames of registers and local memory, and what is passed between them.

use crate::error::Trap;
use crate::exec::Launch;
use crate::exec::warp::{Caller, Fragment, Warp, lanes};
use crate::ir::{CODE_BASE, CallOp, Function, Op, Place, Target};

/// Most bytes of local memory of a thread, and most nested calls.
const LOCAL_MAX: u32 = 512 << 10;
const DEPTH_MAX: usize = 4096;

impl Warp {
    pub(super) fn call(
        &mut self,
        launch: &Launch<'_>,
        function: &Function,
        at: &mut Fragment,
        call: &CallOp,
        line: u32,
    ) -> Result<(), Trap> {
        let target = match call.target {
            Target::Direct(target) => target,
            Target::Indirect(reg) => {
                let to = *self.source(function, at.regs, reg);
                let first = to[at.mask.trailing_zeros() as usize];
                let same = lanes(at.mask)
                    .filter(|l| to[*l] == first)
                    .fold(0, |m, l| m | 1 << l);
                if same != at.mask {
                    // The others come back to this call.
                    let mut other = at.clone();
                    other.mask = at.mask & !same;
                    self.fragments.push(other);
                    at.mask = same;
                }
                u32::try_from(first.wrapping_sub(CODE_BASE)).unwrap_or(u32::MAX)
            }
        };
        let callee = launch
            .functions
            .get(target as usize)
            .filter(|_| launch.defined[target as usize]);
        let Some(callee) = callee else {
            let name = launch
                .functions
                .get(target as usize)
                .map_or("?", |f| f.name.as_str());
            return Err(Trap::Unsupported {
                line,
                text: format!("call of {name}, which no text defines"),
            });
        };
        let regs = at.regs + function.regs;
        let local = (at.local + function.frame_bytes).next_multiple_of(16);
        let end = local.saturating_add(callee.frame_bytes);
        if end > LOCAL_MAX || at.stack.len() >= DEPTH_MAX {
            return Err(Trap::StackOverflow { line });
        }
        self.reserve(regs + callee.regs);
        for lane in lanes(at.mask) {
            if self.local[lane].len() < end as usize {
                self.local[lane].resize(end as usize, 0);
            }
        }
        for (from, to) in call.args.iter().zip(&callee.params) {
            self.pass(
                function,
                at.mask,
                (*from, at.regs, at.local),
                (*to, regs, local),
            );
        }
        at.stack.push(Caller {
            func: at.func,
            pc: at.pc,
            regs: at.regs,
            local: at.local,
        });
        at.func = target;
        at.pc = 0;
        at.regs = regs;
        at.local = local;
        Ok(())
    }

    pub(super) fn ret(&mut self, functions: &[Function], at: &mut Fragment) {
        let Some(caller) = at.stack.pop() else {
            at.mask = 0;
            return;
        };
        let callee = &functions[at.func as usize];
        let function = &functions[caller.func as usize];
        if let Op::Call(call) = &function.code[caller.pc as usize].op {
            for (from, to) in callee.rets.iter().zip(&call.rets) {
                self.pass(
                    callee,
                    at.mask,
                    (*from, at.regs, at.local),
                    (*to, caller.regs, caller.local),
                );
            }
        }
        at.func = caller.func;
        at.pc = caller.pc + 1;
        at.regs = caller.regs;
        at.local = caller.local;
    }

    /// Copies an argument or a result between two frames (place, registers, local memory).
    fn pass(
        &mut self,
        function: &Function,
        mask: u32,
        from: (Place, u32, u32),
        to: (Place, u32, u32),
    ) {
        for lane in lanes(mask) {
            let mut bytes = [0; 8];
            match (from.0, to.0) {
                (
                    Place::Frame { offset, size },
                    Place::Frame {
                        offset: at,
                        size: room,
                    },
                ) => {
                    let start = (from.2 + offset) as usize;
                    let size = size.min(room) as usize;
                    self.local[lane].copy_within(start..start + size, (to.2 + at) as usize);
                    continue;
                }
                (Place::Reg(reg, _), _) => {
                    bytes = self.source(function, from.1, reg)[lane].to_le_bytes();
                }
                (Place::Frame { offset, size }, Place::Reg(..)) => {
                    let start = (from.2 + offset) as usize;
                    let size = size.min(8) as usize;
                    bytes[..size].copy_from_slice(&self.local[lane][start..start + size]);
                }
            }
            match to.0 {
                Place::Reg(reg, _) => {
                    self.regs[(to.1 + reg) as usize][lane] = u64::from_le_bytes(bytes);
                }
                Place::Frame { offset, size } => {
                    let start = (to.2 + offset) as usize;
                    let size = size.min(8) as usize;
                    self.local[lane][start..start + size].copy_from_slice(&bytes[..size]);
                }
            }
        }
    }
}
