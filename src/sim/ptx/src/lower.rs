//! Decodes instructions. A called function is decoded in place of its call, so that the interpreter needs no calls.

use std::collections::HashMap;

use crate::alu;
use crate::code::{
    Addr, Alu, Base, Code, Inst, LOCAL_BASE, Meeting, Op, SHARED_BASE, Space, Special, Ty, WARP,
};
use crate::error::PtxError;
use crate::lexer::Tok;
use crate::module::KernelInfo;
use crate::text::{Cursor, Function, Program, Symbol};

/// Why an instruction cannot be decoded.
enum Bad {
    /// Valid PTX, but not supported.
    Unsupported,
    /// Not valid PTX.
    Wrong(String),
    /// The called function is not valid PTX.
    Inside(PtxError),
}

type Done<T = ()> = Result<T, Bad>;

fn wrong<T>(message: impl Into<String>) -> Done<T> {
    Err(Bad::Wrong(message.into()))
}

/// The meaning of a name inside a function.
#[derive(Clone, Copy)]
enum Name {
    Register(u32),
    /// This many numbered registers.
    Numbered(u64),
    Place(Addr),
}

/// An operand as written.
enum Operand<'t> {
    Name(&'t str),
    /// `!%p1`
    Not(&'t str),
    /// `%r1|%p1`
    Pair(&'t str, &'t str),
    Bits(u64),
    /// `[base+offset]`
    Address(Option<&'t str>, i64),
    /// `{a, b}`, and `(a, b)` of a call.
    List(Vec<Operand<'t>>),
    /// An operand of unsupported instructions only.
    Foreign,
}

/// Decodes all kernels.
pub(crate) fn kernels(program: &Program<'_>) -> Result<Vec<(KernelInfo, Code)>, PtxError> {
    let entries = program.functions.iter().filter(|f| f.entry);
    entries
        .filter_map(|f| Some((f, f.body?)))
        .map(|(f, body)| Lower::new(program, f, body).kernel(f))
        .collect()
}

struct Lower<'p, 't> {
    program: &'p Program<'t>,
    cur: Cursor<'t>,
    code: Code,
    /// Names, with the innermost block last.
    scopes: Vec<HashMap<&'t str, Name>>,
    labels: HashMap<&'t str, u32>,
    /// Jumps to labels that may come later: the instruction, the label, the line.
    jumps: Vec<(usize, &'t str, u32)>,
    /// Jumps to the end of a called function.
    returns: Vec<usize>,
    /// The functions being decoded, the kernel first.
    within: Vec<&'t str>,
    /// Offsets of shared variables by function (none for the module's) and name.
    shared: HashMap<(&'t str, &'t str), u32>,
    shared_bytes: u32,
    local_bytes: u32,
    /// Register with the start of dynamic shared memory.
    dynamic: Option<u32>,
    guard: Option<(u32, bool)>,
    line: u32,
}

impl<'p, 't> Lower<'p, 't> {
    fn new(program: &'p Program<'t>, of: &Function<'t>, body: Cursor<'t>) -> Self {
        let params = of.params.iter().map(|formal| {
            let addr = Addr {
                space: Space::Param,
                base: Base::Zero,
                offset: formal.offset as i64,
            };
            (formal.name, Name::Place(addr))
        });
        let mut lower = Self {
            program,
            cur: body,
            code: Code::default(),
            scopes: vec![params.collect()],
            labels: HashMap::new(),
            jumps: Vec::new(),
            returns: Vec::new(),
            within: vec![of.name],
            shared: HashMap::new(),
            shared_bytes: 0,
            local_bytes: 0,
            dynamic: None,
            guard: None,
            line: 0,
        };
        // Register 0 is always 0, for instructions with fewer than three sources.
        lower.constant(0);
        lower
    }

    fn kernel(mut self, of: &Function<'t>) -> Result<(KernelInfo, Code), PtxError> {
        self.function()?;
        self.guard = None;
        self.emit(Op::Exit);
        if let Some(register) = self.dynamic {
            let start = u64::from(self.shared_bytes.next_multiple_of(16));
            self.code.constants.push((register, start));
        }
        let params: Vec<_> = of.params.iter().map(|p| (p.offset, p.size)).collect();
        let info = KernelInfo {
            name: of.name.to_owned(),
            param_bytes: params.last().map_or(0, |p| p.0 + p.1),
            params,
            shared_bytes: self.shared_bytes,
            local_bytes: self.local_bytes,
            max_threads: of.max_threads,
        };
        Ok((info, self.code))
    }

    /// Decodes the body of a function and resolves its jumps.
    fn function(&mut self) -> Result<(), PtxError> {
        self.block()?;
        for (at, label, line) in std::mem::take(&mut self.jumps) {
            let Some(target) = self.labels.get(label) else {
                let message = format!("label {label} is not in the function");
                return Err(PtxError::new(line, message));
            };
            self.code.insts[at].op = Op::Jump(*target);
        }
        Ok(())
    }

    /// Decodes statements up to the closing brace.
    fn block(&mut self) -> Result<(), PtxError> {
        self.scopes.push(HashMap::new());
        while !self.cur.eat(b'}') {
            let from = self.cur.pos;
            match self.cur.peek() {
                Some(Tok::Punct(b'{')) => {
                    self.cur.pos += 1;
                    self.block()?;
                }
                Some(Tok::Word(word)) if word.starts_with('.') => {
                    self.cur.pos += 1;
                    self.declaration(word)?;
                }
                Some(Tok::Word(label)) => {
                    self.cur.pos += 1;
                    if self.cur.eat(b':') {
                        self.labels.insert(label, self.code.insts.len() as u32);
                    } else {
                        self.cur.pos = from;
                        self.instruction()?;
                    }
                }
                Some(_) => self.instruction()?,
                None => return Err(self.cur.error("the text ends inside a function")),
            }
        }
        self.scopes.pop();
        Ok(())
    }

    fn declaration(&mut self, space: &str) -> Result<(), PtxError> {
        if !matches!(space, ".reg" | ".local" | ".shared" | ".param") {
            // `.pragma`, lists of targets, prototypes.
            self.cur.skip_statement();
            return Ok(());
        }
        let function = self.within.last().copied().unwrap_or_default();
        for var in self.cur.variables()? {
            let name = match (space, var.count) {
                (".reg", Some(count)) => Name::Numbered(count),
                (".reg", None) => Name::Register(self.register()),
                (".shared", _) => {
                    let at = self.share(function, var.name, var.size, var.align);
                    Name::Place(place(Space::Shared, at))
                }
                _ => {
                    let at = u64::from(self.code.local).next_multiple_of(var.align);
                    self.code.local = u32::try_from(at + var.size)
                        .map_err(|_| self.cur.error("local memory is too large"))?;
                    if space == ".local" {
                        self.local_bytes += var.size as u32;
                    }
                    Name::Place(place(Space::Local, at as u32))
                }
            };
            self.declare(var.name, name);
        }
        self.cur.expect(b';')
    }

    fn declare(&mut self, name: &'t str, means: Name) {
        if let Some(scope) = self.scopes.last_mut() {
            scope.insert(name, means);
        }
    }

    /// The offset of a shared variable, the same at every use.
    fn share(&mut self, function: &'t str, name: &'t str, size: u64, align: u64) -> u32 {
        *self.shared.entry((function, name)).or_insert_with(|| {
            let at = u64::from(self.shared_bytes).next_multiple_of(align);
            self.shared_bytes = u32::try_from(at + size).unwrap_or(u32::MAX);
            at as u32
        })
    }

    fn register(&mut self) -> u32 {
        self.code.registers += 1;
        self.code.registers - 1
    }

    fn constant(&mut self, value: u64) -> u32 {
        let known = self.code.constants.iter().find(|known| known.1 == value);
        if let Some(known) = known {
            return known.0;
        }
        let register = self.register();
        self.code.constants.push((register, value));
        register
    }

    fn emit(&mut self, op: Op) {
        self.code.insts.push(Inst {
            op,
            guard: self.guard,
            line: self.line,
        });
    }

    fn alu(&mut self, f: Alu, d: u32, sources: &[u32]) {
        let mut args = [0; 3];
        args[..sources.len()].copy_from_slice(sources);
        self.emit(Op::Alu { f, d, args });
    }

    /// Puts the result of `f` into a new register.
    fn made(&mut self, f: Alu, sources: &[u32]) -> u32 {
        let d = self.register();
        self.alu(f, d, sources);
        d
    }

    fn find(&mut self, name: &'t str) -> Option<Name> {
        let found = self.scopes.iter().rev().find_map(|scope| scope.get(name));
        if let Some(Name::Register(_) | Name::Place(_)) = found {
            return found.copied();
        }
        let stem = name.trim_end_matches(|c: char| c.is_ascii_digit());
        if let Ok(number) = name[stem.len()..].parse::<u64>() {
            let scope = self.scopes.iter().rposition(
                |scope| matches!(scope.get(stem), Some(Name::Numbered(count)) if number < *count),
            );
            if let Some(scope) = scope {
                let register = Name::Register(self.register());
                self.scopes[scope].insert(name, register);
                return Some(register);
            }
        }
        Some(match *self.program.symbols.get(name)? {
            Symbol::Global(index) => Name::Place(Addr {
                space: Space::Global,
                base: Base::Global(index),
                offset: 0,
            }),
            Symbol::Shared(size, align) => {
                Name::Place(place(Space::Shared, self.share("", name, size, align)))
            }
            Symbol::Dynamic => {
                let register = match self.dynamic {
                    Some(register) => register,
                    None => self.register(),
                };
                self.dynamic = Some(register);
                Name::Place(Addr {
                    space: Space::Shared,
                    base: Base::Register(register),
                    offset: 0,
                })
            }
        })
    }

    fn instruction(&mut self) -> Result<(), PtxError> {
        self.line = self.cur.line();
        self.guard = None;
        if self.cur.eat(b'@') {
            let not = self.cur.eat(b'!');
            let name = self.cur.word()?;
            let Some(Name::Register(register)) = self.find(name) else {
                return Err(self.cur.error(format!("predicate {name} is not declared")));
            };
            self.guard = Some((register, not));
        }
        let from = self.cur.pos;
        let opcode = self.cur.word()?;
        let mut operands = Vec::new();
        while !self.cur.eat(b';') {
            operands.push(self.operand()?);
            if !self.cur.eat(b',') && !self.cur.at(b';') {
                self.cur.pos += 1;
                return Err(self.cur.error("`;` is expected here"));
            }
        }
        let after = self.cur;
        match self.decode(opcode, &operands) {
            Ok(()) => Ok(()),
            Err(Bad::Unsupported) => {
                self.emit(Op::Unsupported(after.statement(from)));
                Ok(())
            }
            Err(Bad::Wrong(message)) => Err(PtxError::new(self.line, message)),
            Err(Bad::Inside(error)) => Err(error),
        }
    }

    fn operand(&mut self) -> Result<Operand<'t>, PtxError> {
        let negative = self.cur.eat(b'-');
        Ok(match self.cur.next() {
            Some(Tok::Int(value)) if negative => Operand::Bits(value.wrapping_neg()),
            Some(Tok::Int(value)) => Operand::Bits(value),
            Some(Tok::F32(bits)) => Operand::Bits(u64::from(bits ^ u32::from(negative) << 31)),
            Some(Tok::F64(bits)) => Operand::Bits(bits ^ u64::from(negative) << 63),
            Some(Tok::Word(name)) if !negative => {
                if self.cur.eat(b'|') {
                    Operand::Pair(name, self.cur.word()?)
                } else {
                    Operand::Name(name)
                }
            }
            Some(Tok::Punct(b'!')) => Operand::Not(self.cur.word()?),
            Some(Tok::Punct(b'[')) => self.address()?,
            Some(Tok::Punct(open @ (b'{' | b'('))) => {
                let close = if open == b'{' { b'}' } else { b')' };
                let mut list = Vec::new();
                while !self.cur.eat(close) {
                    list.push(self.operand()?);
                    if !self.cur.eat(b',') && !self.cur.at(close) {
                        return self.cur.expect(close).map(|()| Operand::Foreign);
                    }
                }
                Operand::List(list)
            }
            _ => return Err(self.cur.error("an operand is expected here")),
        })
    }

    fn address(&mut self) -> Result<Operand<'t>, PtxError> {
        let mut offset = 0i64;
        let base = match self.cur.next() {
            Some(Tok::Word(base)) => Some(base),
            Some(Tok::Int(value)) => {
                offset = value.cast_signed();
                None
            }
            _ => return Err(self.cur.error("an address is expected here")),
        };
        let mut foreign = false;
        while !self.cur.eat(b']') {
            match self.cur.next() {
                Some(Tok::Int(value)) => offset = offset.wrapping_add(value.cast_signed()),
                Some(Tok::Punct(b'-')) => {
                    offset = offset.wrapping_sub(self.cur.int()?.cast_signed());
                }
                Some(Tok::Punct(b'+')) => {}
                Some(Tok::Punct(b';')) | None => {
                    return Err(self.cur.error("`]` is expected here"));
                }
                // Coordinates of textures and the like.
                Some(_) => foreign = true,
            }
        }
        Ok(match foreign {
            true => Operand::Foreign,
            false => Operand::Address(base, offset),
        })
    }

    /// The register of an operand.
    fn source(&mut self, operand: &Operand<'t>) -> Done<u32> {
        match operand {
            Operand::Bits(bits) => Ok(self.constant(*bits)),
            Operand::Not(name) => {
                let a = self.source(&Operand::Name(name))?;
                let not = alu::find("not", &[], Ty::Pred).ok_or(Bad::Unsupported)?;
                Ok(self.made(not, &[a]))
            }
            Operand::Name("WARP_SZ") => Ok(self.constant(WARP as u64)),
            Operand::Name(name) => match self.find(name) {
                Some(Name::Register(register)) => Ok(register),
                _ => {
                    let d = self.register();
                    self.read(d, name)?;
                    Ok(d)
                }
            },
            _ => Err(Bad::Unsupported),
        }
    }

    /// Puts the address of a variable, or a special register, into a register.
    fn read(&mut self, d: u32, name: &'t str) -> Done {
        if let Some(Name::Place(addr)) = self.find(name) {
            self.emit(Op::Address { d, addr });
            return Ok(());
        }
        let Some(special) = name.strip_prefix('%') else {
            return wrong(format!("name {name} is not declared"));
        };
        let (root, axis) = special.split_once('.').unwrap_or((special, ""));
        let axis = ["x", "y", "z"].iter().position(|a| *a == axis);
        let which = match (root, axis) {
            ("tid", Some(axis)) => Special::Tid(axis),
            ("ntid", Some(axis)) => Special::Ntid(axis),
            ("ctaid", Some(axis)) => Special::Ctaid(axis),
            ("nctaid", Some(axis)) => Special::Nctaid(axis),
            ("laneid", None) => Special::Lane,
            _ if ["clock", "pm", "envreg"]
                .iter()
                .any(|known| root.starts_with(known)) =>
            {
                return Err(Bad::Unsupported);
            }
            _ if root.ends_with(|c: char| c.is_ascii_digit()) => {
                return wrong(format!("register {name} is not declared"));
            }
            _ => return Err(Bad::Unsupported),
        };
        self.emit(Op::Special { d, which });
        Ok(())
    }

    /// The register of a destination; for `_`, a register that no instruction reads.
    fn target(&mut self, operand: &Operand<'t>) -> Done<u32> {
        match operand {
            Operand::Name("_") => Ok(self.register()),
            Operand::Name(name) => match self.find(name) {
                Some(Name::Register(register)) => Ok(register),
                _ => wrong(format!("register {name} is not declared")),
            },
            _ => Err(Bad::Unsupported),
        }
    }

    /// The two registers of `%r1|%p1`; the second is one that no instruction reads if there is none.
    fn targets(&mut self, operand: &Operand<'t>) -> Done<(u32, u32)> {
        match operand {
            Operand::Pair(first, second) => Ok((
                self.target(&Operand::Name(first))?,
                self.target(&Operand::Name(second))?,
            )),
            one => Ok((self.target(one)?, self.register())),
        }
    }

    fn sources(&mut self, operands: &[Operand<'t>]) -> Done<Vec<u32>> {
        operands
            .iter()
            .map(|operand| self.source(operand))
            .collect()
    }

    fn decode(&mut self, opcode: &'t str, operands: &[Operand<'t>]) -> Done {
        let mut parts = opcode.split('.');
        let root = parts.next().unwrap_or_default();
        let mut parts: Vec<&str> = parts.collect();
        match (root, operands) {
            ("bra", [Operand::Name(label)]) => {
                self.jumps.push((self.code.insts.len(), label, self.line));
                self.emit(Op::Jump(0));
            }
            ("call", _) => return self.call(operands),
            ("ret", []) if self.within.len() > 1 => {
                self.returns.push(self.code.insts.len());
                self.emit(Op::Jump(0));
            }
            ("ret" | "exit", []) => self.emit(Op::Exit),
            ("trap" | "brkpt", []) => self.emit(Op::Trap),
            ("bar" | "barrier", [_]) if parts.contains(&"sync") && !parts.contains(&"warp") => {
                self.code.barrier = true;
                self.emit(Op::Barrier);
            }
            ("bar" | "barrier", [members]) if parts.contains(&"warp") => {
                let members = self.source(members)?;
                let (d, found) = (self.register(), self.register());
                self.emit(Op::Meet {
                    how: Meeting::Any,
                    d,
                    found,
                    args: [0; 3],
                    members,
                });
            }
            ("membar" | "fence" | "nanosleep" | "prefetch" | "prefetchu", _) => {}
            ("mov", [d, a]) => return self.mov(parts.pop(), d, a),
            ("cvta", [d, a]) => return self.cvta(&parts, d, a),
            ("ld" | "ldu", [value, address]) => return self.access(false, &parts, address, value),
            ("st", [address, value]) => return self.access(true, &parts, address, value),
            ("atom", [d, rest @ ..]) => {
                let d = self.target(d)?;
                return self.atomic(&parts, d, rest);
            }
            ("red", _) => {
                let d = self.register();
                return self.atomic(&parts, d, operands);
            }
            ("shfl" | "vote", _) => return self.meet(&parts, operands),
            ("cvt", [d, a]) => {
                let (from, to) = (ty(&mut parts)?, ty(&mut parts)?);
                let steps = alu::convert(&parts, to, from).ok_or(Bad::Unsupported)?;
                let d = self.target(d)?;
                let mut a = self.source(a)?;
                // The last step writes the destination; without steps it is a copy.
                for f in steps {
                    a = self.made(f, &[a]);
                }
                self.alu(copy, d, &[a]);
            }
            ("setp", [d, a, b]) => {
                let ty = ty(&mut parts)?;
                parts.retain(|part| *part != "ftz");
                let [how] = parts[..] else {
                    return Err(Bad::Unsupported);
                };
                let f = alu::compare(how, ty).ok_or(Bad::Unsupported)?;
                let (d, other) = self.targets(d)?;
                let (a, b) = (self.source(a)?, self.source(b)?);
                let holds = self.made(f, &[a, b]);
                self.alu(|a, _, _| a ^ 1, other, &[holds]);
                self.alu(copy, d, &[holds]);
            }
            _ => return self.arithmetic(root, parts, operands),
        }
        Ok(())
    }

    fn arithmetic(&mut self, root: &str, mut parts: Vec<&str>, operands: &[Operand<'t>]) -> Done {
        let Some(count) = alu::sources(root) else {
            // All instructions without parts in their name are known.
            return match parts.is_empty() {
                true => wrong(format!("`{root}` is no instruction of PTX")),
                false => Err(Bad::Unsupported),
            };
        };
        let [d, sources @ ..] = operands else {
            return wrong("the instruction has no operands");
        };
        if sources.len() != count {
            return wrong("the instruction has a wrong number of operands");
        }
        let ty = ty(&mut parts)?;
        let f = alu::find(root, &parts, ty).ok_or(Bad::Unsupported)?;
        let d = self.target(d)?;
        let sources = self.sources(sources)?;
        self.alu(f, d, &sources);
        Ok(())
    }

    fn mov(&mut self, of: Option<&str>, d: &Operand<'t>, a: &Operand<'t>) -> Done {
        let size = of.and_then(Ty::parse).ok_or(Bad::Unsupported)?.size();
        match (d, a) {
            // Splits a register into its parts, the lowest first.
            (Operand::List(parts), a) => {
                let bits = u64::from(size) * 8 / parts.len() as u64;
                let mask = self.constant(u64::MAX >> (64 - bits));
                let whole = self.source(a)?;
                let whole = self.made(copy, &[whole]);
                for (part, at) in parts.iter().zip((0..).step_by(bits as usize)) {
                    let (d, count) = (self.target(part)?, self.constant(at));
                    let moved = self.made(|a, b, _| a >> b, &[whole, count]);
                    self.alu(|a, b, _| a & b, d, &[moved, mask]);
                }
            }
            (d, Operand::List(parts)) => {
                let bits = u64::from(size) * 8 / parts.len() as u64;
                let mask = self.constant(u64::MAX >> (64 - bits));
                let mut whole = 0;
                for (part, at) in parts.iter().zip((0..).step_by(bits as usize)) {
                    let (part, count) = (self.source(part)?, self.constant(at));
                    let part = self.made(|a, b, _| a & b, &[part, mask]);
                    let part = self.made(|a, b, _| a << b, &[part, count]);
                    whole = self.made(|a, b, _| a | b, &[whole, part]);
                }
                let d = self.target(d)?;
                self.alu(copy, d, &[whole]);
            }
            (d, Operand::Name(name)) if !matches!(self.find(name), Some(Name::Register(_))) => {
                let d = self.target(d)?;
                self.read(d, name)?;
            }
            (d, a) => {
                let (d, a) = (self.target(d)?, self.source(a)?);
                self.alu(copy, d, &[a]);
            }
        }
        Ok(())
    }

    /// Converts between addresses of a space and generic ones.
    fn cvta(&mut self, parts: &[&str], d: &Operand<'t>, a: &Operand<'t>) -> Done {
        let base = match space(parts) {
            Space::Shared => SHARED_BASE,
            Space::Local => LOCAL_BASE,
            Space::Generic | Space::Global => 0,
            Space::Param => return Err(Bad::Unsupported),
        };
        let (d, a) = (self.target(d)?, self.source(a)?);
        let base = self.constant(base);
        match parts.contains(&"to") {
            true => self.alu(|a, b, _| a & !b, d, &[a, base]),
            false => self.alu(|a, b, _| a | b, d, &[a, base]),
        }
        Ok(())
    }

    fn effective(&mut self, parts: &[&str], operand: &Operand<'t>) -> Done<Addr> {
        let Operand::Address(base, offset) = operand else {
            return Err(Bad::Unsupported);
        };
        let (space, offset) = (space(parts), *offset);
        let base = match base {
            None => Base::Zero,
            Some(name) => match self.find(name) {
                Some(Name::Register(register)) => Base::Register(register),
                Some(Name::Place(at)) => {
                    return Ok(Addr {
                        offset: at.offset + offset,
                        ..at
                    });
                }
                _ => return wrong(format!("name {name} is not declared")),
            },
        };
        Ok(Addr {
            space,
            base,
            offset,
        })
    }

    fn access(
        &mut self,
        store: bool,
        parts: &[&str],
        address: &Operand<'t>,
        value: &Operand<'t>,
    ) -> Done {
        let ty = ty(&mut parts.to_vec())?;
        let addr = self.effective(parts, address)?;
        let values = match value {
            Operand::List(values) => values.as_slice(),
            one => std::slice::from_ref(one),
        };
        let regs = values.iter().map(|value| match store {
            true => self.source(value),
            false => self.target(value),
        });
        let regs = regs.collect::<Done<Vec<u32>>>()?;
        self.emit(match store {
            true => Op::Store { ty, addr, regs },
            false => Op::Load { ty, addr, regs },
        });
        Ok(())
    }

    fn atomic(&mut self, parts: &[&str], d: u32, operands: &[Operand<'t>]) -> Done {
        let mut parts = parts.to_vec();
        let ty = ty(&mut parts)?;
        let f = parts.iter().find_map(|how| alu::atomic(how, ty));
        let f = f.ok_or(Bad::Unsupported)?;
        let [address, values @ ..] = operands else {
            return wrong("an atomic has no address");
        };
        let addr = self.effective(&parts, address)?;
        let mut args = [0; 2];
        let values = self.sources(values)?;
        if values.len() > 2 {
            return Err(Bad::Unsupported);
        }
        args[..values.len()].copy_from_slice(&values);
        self.emit(Op::Atomic {
            ty,
            addr,
            d,
            f,
            args,
        });
        Ok(())
    }

    fn meet(&mut self, parts: &[&str], operands: &[Operand<'t>]) -> Done {
        let how = parts.iter().find_map(|part| {
            Some(match *part {
                "up" => Meeting::Up,
                "down" => Meeting::Down,
                "bfly" => Meeting::Butterfly,
                "idx" => Meeting::Index,
                "any" => Meeting::Any,
                "all" => Meeting::All,
                "uni" => Meeting::Uniform,
                "ballot" => Meeting::Ballot,
                _ => return None,
            })
        });
        let (Some(how), [d, sources @ .., members]) = (how, operands) else {
            return Err(Bad::Unsupported);
        };
        let (d, found) = self.targets(d)?;
        let sources = self.sources(sources)?;
        let members = self.source(members)?;
        let mut args = [0; 3];
        match sources.len() {
            count @ (1 | 3) if parts.contains(&"sync") => args[..count].copy_from_slice(&sources),
            _ => return Err(Bad::Unsupported),
        }
        self.emit(Op::Meet {
            how,
            d,
            found,
            args,
            members,
        });
        Ok(())
    }

    /// `call (result), function, (arguments)`: decodes the function, with its parameters standing for the arguments.
    fn call(&mut self, operands: &[Operand<'t>]) -> Done {
        let none: &[Operand<'t>] = &[];
        let (results, name, arguments) = match operands {
            [Operand::Name(name)] => (none, name, none),
            [Operand::Name(name), Operand::List(arguments)] => (none, name, &arguments[..]),
            [Operand::List(results), Operand::Name(name)] => (&results[..], name, none),
            [
                Operand::List(results),
                Operand::Name(name),
                Operand::List(arguments),
            ] => (&results[..], name, &arguments[..]),
            _ => return Err(Bad::Unsupported),
        };
        let mut known = self.program.functions.iter().filter(|f| f.name == *name);
        if known.clone().next().is_none() && self.find(name).is_none() {
            return wrong(format!("function {name} is not declared"));
        }
        let called = known.find_map(|f| Some((f, f.body?)));
        let (called, body) = called.ok_or(Bad::Unsupported)?;
        let formals: Vec<_> = called.rets.iter().chain(&called.params).collect();
        if self.within.contains(name) || formals.len() != results.len() + arguments.len() {
            return Err(Bad::Unsupported);
        }
        let mut names = HashMap::new();
        for (i, (formal, given)) in formals
            .iter()
            .zip(results.iter().chain(arguments))
            .enumerate()
        {
            let Operand::Name(argument) = given else {
                return Err(Bad::Unsupported);
            };
            let means = match (self.find(argument), formal.register) {
                (Some(place @ Name::Place(_)), false) => place,
                (Some(result @ Name::Register(_)), true) if i < results.len() => result,
                // The caller does not see changes to a parameter.
                (Some(Name::Register(given)), true) => Name::Register(self.made(copy, &[given])),
                _ => return Err(Bad::Unsupported),
            };
            names.insert(formal.name, means);
        }
        let skip = self.guard.take().map(|(predicate, not)| {
            self.guard = Some((predicate, !not));
            self.emit(Op::Jump(0));
            self.guard = None;
            self.code.insts.len() - 1
        });
        let outer = (
            std::mem::replace(&mut self.cur, body),
            std::mem::replace(&mut self.scopes, vec![names]),
            std::mem::take(&mut self.labels),
            std::mem::take(&mut self.jumps),
            std::mem::take(&mut self.returns),
        );
        self.within.push(called.name);
        let done = self.function();
        let end = self.code.insts.len() as u32;
        for at in self.returns.drain(..).chain(skip) {
            self.code.insts[at].op = Op::Jump(end);
        }
        self.within.pop();
        (self.cur, self.scopes, self.labels, self.jumps, self.returns) = outer;
        done.map_err(Bad::Inside)
    }
}

fn copy(a: u64, _: u64, _: u64) -> u64 {
    a
}

fn place(space: Space, offset: u32) -> Addr {
    Addr {
        space,
        base: Base::Zero,
        offset: offset.into(),
    }
}

/// Takes the last part, which is a type.
fn ty(parts: &mut Vec<&str>) -> Done<Ty> {
    parts.pop().and_then(Ty::parse).ok_or(Bad::Unsupported)
}

/// The state space among the parts of an instruction; memory orders and cache hints are ignored.
fn space(parts: &[&str]) -> Space {
    let spaces = parts.iter().map(|part| part.split("::").next());
    spaces
        .filter_map(|part| {
            Some(match part? {
                "global" | "const" => Space::Global,
                "shared" => Space::Shared,
                "local" => Space::Local,
                "param" => Space::Param,
                _ => return None,
            })
        })
        .next()
        .unwrap_or(Space::Generic)
}
