//! The body of a function: declarations, labels, scopes and the order of instructions.

use std::collections::HashMap;

use crate::error::PtxError;
use crate::ir::{
    Addr, AluFn, Base, CONST_BIT, Function, Inst, Lanes, NO_GUARD, Op, Place, Src, WARP,
};
use crate::lexer::Tok;
use crate::parse::{Symbol, Text, Variable, align_up};
use crate::types::Ty;

/// Most bytes of local memory of one function, as on the GPU.
const FRAME_MAX: u64 = 512 << 10;

/// What a name inside a function stands for.
#[derive(Debug, Clone, Copy)]
pub(crate) enum Local {
    Reg {
        index: u32,
        ty: Ty,
    },
    /// Local memory or a parameter of a call, in the frame.
    Frame {
        offset: u32,
        size: u32,
    },
    KernelParam(u32),
    Shared(u32),
    DynamicShared,
}

#[derive(Debug, Default)]
struct Scope<'t> {
    parent: Option<usize>,
    names: HashMap<&'t str, Local>,
    /// `%r<100>`: first register, count, type by prefix.
    numbered: HashMap<&'t str, (u32, u32, Ty)>,
    labels: HashMap<&'t str, u32>,
    /// `name: .branchtargets a, b;`
    tables: HashMap<&'t str, Vec<&'t str>>,
}

/// The function under construction.
#[derive(Debug, Default)]
pub(crate) struct Frame<'t> {
    scopes: Vec<Scope<'t>>,
    scope: usize,
    reg_words: Vec<u8>,
    frame_bytes: u32,
    local_bytes: u32,
    consts: Vec<u64>,
    const_index: HashMap<u64, u32>,
    pub(crate) code: Vec<Inst>,
    /// Branches whose label is not known yet: instruction, label (or table), scope.
    fixups: Vec<(usize, &'t str, usize)>,
    carry: Option<u32>,
    unsupported: Vec<String>,
    pub(crate) has_barrier: bool,
    pub(crate) guard: u32,
    pub(crate) line: u32,
}

/// A finished body.
pub(crate) struct Body {
    pub(crate) function: Function,
    /// `.local` bytes, without the space for parameters of calls.
    pub(crate) local_bytes: u32,
}

impl<'t> Frame<'t> {
    fn scope_mut(&mut self) -> &mut Scope<'t> {
        if self.scopes.is_empty() {
            self.scopes.push(Scope::default());
        }
        &mut self.scopes[self.scope]
    }

    pub(crate) fn new_register(&mut self, ty: Ty) -> u32 {
        let index = self.reg_words.len() as u32;
        self.reg_words.push(match ty {
            Ty::Pred => 0,
            ty if ty.size() == 8 => 2,
            _ => 1,
        });
        index
    }

    /// A register of no name.
    pub(crate) fn temp(&mut self) -> u32 {
        self.new_register(Ty::Pred)
    }

    /// The carry flag.
    pub(crate) fn carry(&mut self) -> u32 {
        if let Some(reg) = self.carry {
            return reg;
        }
        let reg = self.temp();
        self.carry = Some(reg);
        reg
    }

    pub(crate) fn constant(&mut self, value: u64) -> Src {
        let next = self.consts.len() as u32;
        let index = *self.const_index.entry(value).or_insert(next);
        if index == next {
            self.consts.push(value);
        }
        index | CONST_BIT
    }

    pub(crate) fn emit(&mut self, op: Op) {
        self.code.push(Inst {
            op,
            guard: self.guard,
            line: self.line,
            weight: 0,
        });
    }

    /// Emits a pure instruction of up to three operands.
    pub(crate) fn alu(&mut self, f: AluFn, d: u32, srcs: &[Src]) {
        let zero = self.constant(0);
        let at = |i: usize| srcs.get(i).copied().unwrap_or(zero);
        self.emit(Op::Alu {
            f,
            d,
            a: at(0),
            b: at(1),
            c: at(2),
        });
    }

    /// The same into a new register.
    pub(crate) fn alu_temp(&mut self, f: AluFn, srcs: &[Src]) -> u32 {
        let d = self.temp();
        self.alu(f, d, srcs);
        d
    }

    pub(crate) fn branch(&mut self, label: &'t str, op: Op) {
        self.fixups.push((self.code.len(), label, self.scope));
        self.emit(op);
    }

    pub(crate) fn formal_register(&mut self, var: &Variable<'t>) -> Place {
        let index = self.new_register(var.ty);
        self.scope_mut()
            .names
            .insert(var.name, Local::Reg { index, ty: var.ty });
        Place::Reg(index, var.ty.size())
    }

    pub(crate) fn formal_param(&mut self, var: &Variable<'t>) -> Place {
        let (offset, size) = self.frame_variable(var);
        Place::Frame { offset, size }
    }

    pub(crate) fn kernel_param(&mut self, var: &Variable<'t>, offset: u32) -> Place {
        self.scope_mut()
            .names
            .insert(var.name, Local::KernelParam(offset));
        Place::Frame {
            offset,
            size: var.size as u32,
        }
    }

    /// Variables of more than [`FRAME_MAX`] bytes are refused when the body is finished.
    fn frame_variable(&mut self, var: &Variable<'t>) -> (u32, u32) {
        let offset = align_up(self.frame_bytes.into(), var.align.min(FRAME_MAX));
        let end = (offset + var.size).min(2 * FRAME_MAX);
        let (offset, size) = (offset as u32, (end - offset.min(end)) as u32);
        self.frame_bytes = end as u32;
        self.scope_mut()
            .names
            .insert(var.name, Local::Frame { offset, size });
        (offset, size)
    }

    fn declare_registers(&mut self, var: &Variable<'t>) {
        let Some(count) = var.count else {
            self.formal_register(var);
            return;
        };
        let first = self.reg_words.len() as u32;
        for _ in 0..count {
            self.new_register(var.ty);
        }
        self.scope_mut()
            .numbered
            .insert(var.name, (first, count, var.ty));
    }

    pub(crate) fn lookup(&self, name: &str) -> Option<Local> {
        let digits = name.bytes().rev().take_while(u8::is_ascii_digit).count();
        let (prefix, number) = name.split_at(name.len() - digits);
        let number: Option<u32> = number.parse().ok();
        let mut scope = self.scopes.get(self.scope);
        while let Some(at) = scope {
            if let Some(local) = at.names.get(name) {
                return Some(*local);
            }
            if let (Some(number), Some((first, count, ty))) = (number, at.numbered.get(prefix))
                && number < *count
            {
                return Some(Local::Reg {
                    index: first + number,
                    ty: *ty,
                });
            }
            scope = at.parent.map(|parent| &self.scopes[parent]);
        }
        None
    }

    fn find<T>(&self, scope: usize, get: impl Fn(&Scope<'t>) -> Option<T>) -> Option<T> {
        let mut at = Some(scope);
        while let Some(index) = at {
            if let Some(found) = get(&self.scopes[index]) {
                return Some(found);
            }
            at = self.scopes[index].parent;
        }
        None
    }

    fn resolve_labels(&mut self) -> Result<(), PtxError> {
        for (at, label, scope) in std::mem::take(&mut self.fixups) {
            let line = self.code[at].line;
            let target = |label: &str| {
                self.find(scope, |s| s.labels.get(label).copied())
                    .ok_or_else(|| {
                        PtxError::new(line, format!("label {label} is not in the function"))
                    })
            };
            let op = if let Op::Brx { index, .. } = self.code[at].op {
                let table = self.find(scope, |s| s.tables.get(label).cloned());
                let table = table
                    .ok_or_else(|| PtxError::new(line, format!("table {label} is not known")))?;
                let targets = table.into_iter().map(target).collect::<Result<_, _>>()?;
                Op::Brx { index, targets }
            } else {
                Op::Bra(target(label)?)
            };
            self.code[at].op = op;
        }
        Ok(())
    }

    fn finish(mut self) -> Result<Body, PtxError> {
        if u64::from(self.frame_bytes) > FRAME_MAX {
            let message = "the function has more local memory than a thread can have";
            return Err(PtxError::new(self.line, message));
        }
        self.resolve_labels()?;
        // Falling off the end is a return.
        self.guard = NO_GUARD;
        self.emit(Op::Ret);
        let function = Function {
            regs: self.reg_words.len() as u32,
            reg_words: self.reg_words,
            code: self.code,
            consts: self
                .consts
                .into_iter()
                .map(|value| -> Lanes { [value; WARP] })
                .collect(),
            frame_bytes: self.frame_bytes,
            unsupported: self.unsupported,
            has_barrier: self.has_barrier,
            ..Function::default()
        };
        Ok(Body {
            function,
            local_bytes: self.local_bytes,
        })
    }
}

/// Why an instruction was not decoded.
pub(crate) enum Bad {
    /// Valid PTX, perhaps, but not carried: traps when reached.
    Unsupported,
    Syntax(String),
}

/// Reads the body in braces that comes next.
pub(crate) fn parse<'t>(text: &mut Text<'t, '_>, mut frame: Frame<'t>) -> Result<Body, PtxError> {
    text.cur.expect(b'{')?;
    frame.scope_mut();
    loop {
        let at = text.cur.pos;
        frame.line = text.cur.line();
        let Some(token) = text.cur.next() else {
            return Err(text.cur.error("the body of the function has no end"));
        };
        match token.tok {
            Tok::Punct(b'{') => {
                let parent = Some(frame.scope);
                frame.scope = frame.scopes.len();
                frame.scopes.push(Scope {
                    parent,
                    ..Scope::default()
                });
            }
            Tok::Punct(b'}') => match frame.scopes[frame.scope].parent {
                Some(parent) => frame.scope = parent,
                None => return frame.finish(),
            },
            Tok::Punct(b';') => {}
            Tok::Punct(b'@') => {
                let negated = text.cur.eat(b'!');
                let name = text.cur.word()?;
                let Some(Local::Reg { index, .. }) = frame.lookup(name) else {
                    return Err(text.cur.error(format!("predicate {name} is not declared")));
                };
                frame.guard = index | if negated { CONST_BIT } else { 0 };
                let opcode = text.cur.word()?;
                instruction(text, &mut frame, at, opcode)?;
            }
            Tok::Word(word) if word.starts_with('.') => directive(text, &mut frame, word)?,
            Tok::Word(word) if text.cur.at(b':') => {
                text.cur.next();
                label(text, &mut frame, word)?;
            }
            Tok::Word(word) => {
                frame.guard = NO_GUARD;
                instruction(text, &mut frame, at, word)?;
            }
            _ => return Err(text.cur.error("an instruction is expected here")),
        }
    }
}

fn label<'t>(
    text: &mut Text<'t, '_>,
    frame: &mut Frame<'t>,
    name: &'t str,
) -> Result<(), PtxError> {
    match text.cur.peek_word() {
        Some(".branchtargets") => {
            text.cur.next();
            let mut targets = vec![text.cur.word()?];
            while text.cur.eat(b',') {
                targets.push(text.cur.word()?);
            }
            frame.scope_mut().tables.insert(name, targets);
            text.cur.expect(b';')
        }
        Some(".callprototype" | ".calltargets") => {
            text.cur.skip_statement();
            Ok(())
        }
        _ => {
            let here = frame.code.len() as u32;
            if frame.scope_mut().labels.insert(name, here).is_some() {
                return Err(text.cur.error(format!("label {name} is there twice")));
            }
            Ok(())
        }
    }
}

fn directive<'t>(
    text: &mut Text<'t, '_>,
    frame: &mut Frame<'t>,
    word: &str,
) -> Result<(), PtxError> {
    match word {
        ".reg" | ".param" | ".local" | ".shared" => {}
        ".pragma" => {
            text.cur.skip_statement();
            return Ok(());
        }
        _ => {
            return Err(text
                .cur
                .error(format!("directive `{word}` is not expected in a function")));
        }
    }
    let mut var = text.variable()?;
    loop {
        let (ty, align) = (var.ty, var.align);
        match word {
            ".reg" => frame.declare_registers(&var),
            ".shared" => {
                let local = if var.open {
                    Local::DynamicShared
                } else {
                    Local::Shared(text.shared(&var)?)
                };
                frame.scope_mut().names.insert(var.name, local);
            }
            _ => {
                frame.frame_variable(&var);
                if word == ".local" {
                    frame.local_bytes =
                        (align_up(frame.local_bytes.into(), var.align.min(FRAME_MAX)) + var.size)
                            .min(FRAME_MAX) as u32;
                }
            }
        }
        if !text.cur.eat(b',') {
            return text.cur.expect(b';');
        }
        var = text.declarator(ty, 1, Some(align))?;
    }
}

fn instruction<'t>(
    text: &mut Text<'t, '_>,
    frame: &mut Frame<'t>,
    at: usize,
    opcode: &'t str,
) -> Result<(), PtxError> {
    let line = frame.line;
    let start = frame.code.len();
    let operands = text.operands()?;
    match text.decode(frame, opcode, &operands) {
        Ok(()) => {}
        Err(Bad::Syntax(message)) => return Err(PtxError::new(line, message)),
        Err(Bad::Unsupported) => {
            frame.code.truncate(start);
            frame.fixups.retain(|(inst, ..)| *inst < start);
            let index = frame.unsupported.len() as u32;
            frame.unsupported.push(text.cur.statement_text(at));
            frame.emit(Op::Unsupported(index));
        }
    }
    if let Some(first) = frame.code.get_mut(start) {
        first.weight = 1;
    }
    Ok(())
}

impl<'t> Text<'t, '_> {
    /// The address that a name stands for, if it is a variable or a function.
    pub(crate) fn address_of(&self, frame: &Frame<'t>, name: &str) -> Option<Start> {
        if let Some(local) = frame.lookup(name) {
            return Some(match local {
                Local::Reg { .. } => return None,
                Local::Frame { offset, .. } => Start {
                    base: Base::Frame,
                    at: offset,
                },
                Local::KernelParam(offset) => Start {
                    base: Base::KernelParam,
                    at: offset,
                },
                Local::Shared(offset) => Start {
                    base: Base::Shared,
                    at: offset,
                },
                Local::DynamicShared => Start {
                    base: Base::DynamicShared,
                    at: 0,
                },
            });
        }
        Some(match *self.symbols.get(name)? {
            Symbol::Function(index) => Start {
                base: Base::Code(index),
                at: 0,
            },
            Symbol::Global(index) => Start {
                base: Base::Global(index),
                at: 0,
            },
            Symbol::Shared(offset) => Start {
                base: Base::Shared,
                at: offset,
            },
            Symbol::DynamicShared => Start {
                base: Base::DynamicShared,
                at: 0,
            },
        })
    }
}

/// A base with the variable's own offset.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Start {
    pub(crate) base: Base,
    at: u32,
}

impl Start {
    pub(crate) fn plus(self, offset: i64) -> Addr {
        Addr {
            base: self.base,
            offset: i64::from(self.at).wrapping_add(offset),
        }
    }
}
