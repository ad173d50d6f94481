//! How many registers a kernel would need: the widest place of its values' live ranges.

use crate::ir::{Base, CONST_BIT, Function, NO_GUARD, Op, Place};

/// Estimated 32-bit registers per thread, as an assembler would round them.
pub(crate) fn estimate(function: &Function) -> u32 {
    let count = function.regs as usize;
    let mut first = vec![usize::MAX; count];
    let mut last = vec![0; count];
    let mut back_edges = Vec::new();
    for (pc, inst) in function.code.iter().enumerate() {
        let mut see = |reg: u32| {
            let reg = reg as usize;
            if reg < count {
                first[reg] = first[reg].min(pc);
                last[reg] = pc;
            }
        };
        visit(&inst.op, &mut see);
        if inst.guard != NO_GUARD {
            see(inst.guard & !CONST_BIT);
        }
        if let Op::Bra(target) = inst.op
            && (target as usize) <= pc
        {
            back_edges.push((target as usize, pc));
        }
    }
    // What lives into a loop lives through it.
    for (start, end) in back_edges {
        for reg in 0..count {
            if first[reg] < start && last[reg] >= start {
                last[reg] = last[reg].max(end);
            }
        }
    }
    let mut change = vec![0i64; function.code.len() + 1];
    for reg in 0..count {
        if first[reg] != usize::MAX {
            let size = i64::from(function.reg_words[reg]);
            change[first[reg]] += size;
            change[last[reg] + 1] -= size;
        }
    }
    let mut live = 0;
    let peak = change.iter().fold(0, |peak, step| {
        live += step;
        live.max(peak)
    });
    // Addresses, the stack pointer and the calling convention take some as well.
    ((peak as u32 + 6).next_multiple_of(8)).clamp(16, 255)
}

fn visit(op: &Op, see: &mut dyn FnMut(u32)) {
    match op {
        Op::Alu { d, a, b, c, .. } => [*d, *a, *b, *c].into_iter().for_each(see),
        Op::Ld(mem) | Op::St(mem) => {
            if let Base::Reg(reg) = mem.addr.base {
                see(reg);
            }
            mem.regs.iter().copied().for_each(see);
        }
        Op::Atom(atom) => {
            if let Base::Reg(reg) = atom.addr.base {
                see(reg);
            }
            [atom.b, atom.c].into_iter().chain(atom.dst).for_each(see);
        }
        Op::Special { d, .. } | Op::Address { d, .. } | Op::ActiveMask(d) => see(*d),
        Op::Brx { index, .. } | Op::Barrier { id: index } => see(*index),
        Op::Call(call) => call.args.iter().chain(&call.rets).for_each(|place| {
            if let Place::Reg(reg, _) = place {
                see(*reg);
            }
        }),
        Op::Shfl { d, p, args, .. } => [*d, *p].iter().chain(&**args).copied().for_each(see),
        Op::Vote { d, a, members, .. } => [*d, *a, *members].into_iter().for_each(see),
        Op::Bra(_) | Op::Nop | Op::Ret | Op::Exit | Op::Trap | Op::Unsupported(_) => {}
    }
}
