//! The outline of PTX texts: their variables, and the position of each function.

use std::collections::HashMap;

use crate::code::Ty;
use crate::error::PtxError;
use crate::lexer::{Tok, Token};
use crate::module::GlobalInfo;

/// Maximum bytes of a variable.
const LARGEST: u64 = 1 << 40;

/// Walks the tokens of a text.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Cursor<'t> {
    text: &'t str,
    tokens: &'t [Token<'t>],
    pub(crate) pos: usize,
}

impl<'t> Cursor<'t> {
    pub(crate) fn next(&mut self) -> Option<Tok<'t>> {
        let token = self.tokens.get(self.pos).map(|token| token.tok);
        self.pos += 1;
        token
    }

    pub(crate) fn peek(&self) -> Option<Tok<'t>> {
        self.tokens.get(self.pos).map(|token| token.tok)
    }

    /// Line of the next token, or of the last one.
    pub(crate) fn line(&self) -> u32 {
        let token = self.tokens.get(self.pos).or(self.tokens.last());
        token.map_or(1, |token| token.line)
    }

    /// An error at the token read last.
    pub(crate) fn error(&self, message: impl Into<String>) -> PtxError {
        let before = Cursor {
            pos: self.pos.saturating_sub(1),
            ..*self
        };
        PtxError::new(before.line(), message)
    }

    pub(crate) fn at(&self, punct: u8) -> bool {
        self.peek() == Some(Tok::Punct(punct))
    }

    pub(crate) fn eat(&mut self, punct: u8) -> bool {
        let found = self.at(punct);
        self.pos += usize::from(found);
        found
    }

    pub(crate) fn expect(&mut self, punct: u8) -> Result<(), PtxError> {
        if self.eat(punct) {
            return Ok(());
        }
        self.pos += 1;
        Err(self.error(format!("`{}` is expected here", char::from(punct))))
    }

    pub(crate) fn word(&mut self) -> Result<&'t str, PtxError> {
        match self.next() {
            Some(Tok::Word(word)) => Ok(word),
            _ => Err(self.error("a name is expected here")),
        }
    }

    pub(crate) fn int(&mut self) -> Result<u64, PtxError> {
        match self.next() {
            Some(Tok::Int(value)) => Ok(value),
            _ => Err(self.error("a number is expected here")),
        }
    }

    /// Moves past the next `;`.
    pub(crate) fn skip_statement(&mut self) {
        while self.next().is_some_and(|token| token != Tok::Punct(b';')) {}
    }

    /// Moves past the next block in braces.
    fn skip_braces(&mut self) -> Result<(), PtxError> {
        self.expect(b'{')?;
        let mut depth = 1;
        while depth > 0 {
            match self.next() {
                Some(Tok::Punct(b'{')) => depth += 1,
                Some(Tok::Punct(b'}')) => depth -= 1,
                Some(_) => {}
                None => return Err(self.error("`{` has no end")),
            }
        }
        Ok(())
    }

    /// The text of the statement that begins at the token, on one line.
    pub(crate) fn statement(&self, from: usize) -> String {
        let rest = &self.text[self.tokens[from].at..];
        let statement = rest.split(';').next().unwrap_or(rest);
        statement.split_whitespace().collect::<Vec<_>>().join(" ")
    }

    /// `.align 8 .b8 name[16] = {1, 2}, other;` and the like, after the state space; stops at the first token after a
    /// variable that is not a comma, such as `;`.
    pub(crate) fn variables(&mut self) -> Result<Vec<Variable<'t>>, PtxError> {
        let mut list = vec![self.variable()?];
        while self.eat(b',') {
            let of = &list[0];
            let (ty, align) = (of.ty, of.align);
            list.push(self.declarator(ty, align, 1)?);
        }
        Ok(list)
    }

    /// One variable. Alignment and attributes may precede its type, and a pointer's target may follow it.
    fn variable(&mut self) -> Result<Variable<'t>, PtxError> {
        let (mut align, mut managed, mut lanes, mut ty) = (None, false, 1, None);
        while let Some(Tok::Word(word)) = self.peek()
            && let Some(part) = word.strip_prefix('.')
        {
            self.pos += 1;
            match part {
                // The second alignment is the pointer target's.
                "align" if ty.is_some() => drop(self.int()?),
                "align" => align = Some(self.int()?),
                "v2" => lanes = 2,
                "v4" => lanes = 4,
                "attribute" => {
                    self.expect(b'(')?;
                    managed = self.word()? == ".managed";
                    self.expect(b')')?;
                }
                "ptr" | "global" | "const" | "shared" | "local" => {}
                _ => match Ty::parse(part) {
                    Some(found) => ty = Some(found),
                    // Half precision and the like: registers and parameters of such types may be declared.
                    None if part.ends_with("16x2") => ty = Some(Ty::U32),
                    None if part.ends_with("16") => ty = Some(Ty::U16),
                    None => return Err(self.error(format!("`{word}` is no type"))),
                },
            }
        }
        let ty = ty.ok_or_else(|| self.error("a type is expected here"))?;
        let natural = u64::from(ty.size()) * lanes;
        let found = self.declarator(ty, align.unwrap_or(natural), lanes)?;
        Ok(Variable { managed, ..found })
    }

    /// The part of a declaration after its type.
    fn declarator(&mut self, ty: Ty, align: u64, lanes: u64) -> Result<Variable<'t>, PtxError> {
        let name = self.word()?;
        let mut found = Variable {
            name,
            ty,
            size: u64::from(ty.size()) * lanes,
            align,
            open: false,
            managed: false,
            count: None,
            init: Vec::new(),
            addresses: Vec::new(),
        };
        if !align.is_power_of_two() {
            return Err(self.error(format!("alignment {align} is no power of two")));
        }
        if self.eat(b'<') {
            found.count = Some(self.int()?);
            self.expect(b'>')?;
        }
        while self.eat(b'[') {
            if self.eat(b']') {
                found.open = true;
                continue;
            }
            found.size = found.size.saturating_mul(self.int()?);
            self.expect(b']')?;
        }
        if self.eat(b'=') {
            self.initial(&mut found)?;
            if found.open {
                found.size = found.init.len() as u64;
                found.open = false;
            }
        }
        if found.size > LARGEST || found.init.len() as u64 > found.size {
            return Err(self.error(format!("variable {name} is too large")));
        }
        Ok(found)
    }

    fn initial(&mut self, of: &mut Variable<'t>) -> Result<(), PtxError> {
        if self.eat(b'{') {
            while !self.eat(b'}') {
                self.initial(of)?;
                self.eat(b',');
            }
            return Ok(());
        }
        let negative = self.eat(b'-');
        let value = match self.next() {
            Some(Tok::Int(value)) if negative => value.wrapping_neg(),
            Some(Tok::Int(value)) => value,
            Some(Tok::F32(bits)) => u64::from(bits ^ u32::from(negative) << 31),
            Some(Tok::F64(bits)) => {
                let bits = bits ^ u64::from(negative) << 63;
                match of.ty {
                    Ty::F32 => u64::from((f64::from_bits(bits) as f32).to_bits()),
                    _ => bits,
                }
            }
            // `generic(name)` or `name`, optionally with an offset.
            Some(Tok::Word(mut name)) if of.ty.size() == 8 => {
                if name == "generic" {
                    self.expect(b'(')?;
                    name = self.word()?;
                    self.expect(b')')?;
                }
                of.addresses.push((of.init.len(), name.to_owned()));
                if self.eat(b'+') { self.int()? } else { 0 }
            }
            _ => return Err(self.error("an initial value is expected here")),
        };
        let size = of.ty.size() as usize;
        of.init.extend_from_slice(&value.to_le_bytes()[..size]);
        Ok(())
    }

    /// A parenthesised list of formal parameters; `None` if there is none.
    fn formals(&mut self) -> Result<Vec<Formal<'t>>, PtxError> {
        let mut list: Vec<Formal<'t>> = Vec::new();
        if !self.eat(b'(') {
            return Ok(list);
        }
        while !self.eat(b')') {
            let register = self.word()? == ".reg";
            let var = self.variable()?;
            let offset = list.last().map_or(0, |before| before.offset + before.size);
            list.push(Formal {
                name: var.name,
                register,
                offset: offset.next_multiple_of(var.align as usize),
                size: var.size as usize,
            });
            self.eat(b',');
        }
        Ok(list)
    }
}

/// A variable as declared, before it has an address.
#[derive(Debug)]
pub(crate) struct Variable<'t> {
    pub(crate) name: &'t str,
    ty: Ty,
    pub(crate) size: u64,
    pub(crate) align: u64,
    /// `[]`: the size is defined elsewhere.
    open: bool,
    managed: bool,
    /// `name<100>` declares this many numbered names.
    pub(crate) count: Option<u64>,
    init: Vec<u8>,
    addresses: Vec<(usize, String)>,
}

/// A parameter or a result of a function.
#[derive(Debug)]
pub(crate) struct Formal<'t> {
    pub(crate) name: &'t str,
    /// It is a register, not memory.
    pub(crate) register: bool,
    pub(crate) offset: usize,
    pub(crate) size: usize,
}

#[derive(Debug)]
pub(crate) struct Function<'t> {
    pub(crate) name: &'t str,
    pub(crate) entry: bool,
    pub(crate) params: Vec<Formal<'t>>,
    pub(crate) rets: Vec<Formal<'t>>,
    pub(crate) max_threads: u32,
    /// After the opening brace; `None` if the function is only declared.
    pub(crate) body: Option<Cursor<'t>>,
}

#[derive(Debug, Clone, Copy)]
pub(crate) enum Symbol {
    /// Index of the variable.
    Global(u32),
    /// Size and alignment; each kernel that uses it assigns an offset.
    Shared(u64, u64),
    /// After all other shared memory.
    Dynamic,
}

/// The declarations in a module's texts.
#[derive(Debug, Default)]
pub(crate) struct Program<'t> {
    pub(crate) globals: Vec<GlobalInfo>,
    pub(crate) symbols: HashMap<&'t str, Symbol>,
    pub(crate) functions: Vec<Function<'t>>,
}

impl<'t> Program<'t> {
    pub(crate) fn read(&mut self, text: &'t str, tokens: &'t [Token<'t>]) -> Result<(), PtxError> {
        let mut cur = Cursor {
            text,
            tokens,
            pos: 0,
        };
        let (mut version, mut external) = (false, false);
        while let Some(token) = cur.next() {
            let Tok::Word(word) = token else {
                return Err(cur.error("a directive is expected here"));
            };
            match word {
                ".version" => {
                    version = true;
                    cur.next();
                }
                _ if !version => {
                    return Err(cur.error("the text does not begin with .version"));
                }
                ".target" => {
                    cur.word()?;
                    while cur.eat(b',') {
                        cur.word()?;
                    }
                }
                ".address_size" => drop(cur.int()?),
                ".visible" | ".weak" | ".common" => {}
                ".extern" => external = true,
                ".pragma" => cur.skip_statement(),
                ".section" => {
                    while !cur.at(b'{') && cur.next().is_some() {}
                    cur.skip_braces()?;
                }
                ".global" | ".const" | ".shared" => {
                    for var in cur.variables()? {
                        self.variable(word == ".shared", external, var);
                    }
                    cur.expect(b';')?;
                    external = false;
                }
                ".func" | ".entry" => {
                    self.function(&mut cur, word == ".entry")?;
                    external = false;
                }
                _ => return Err(cur.error(format!("`{word}` is not expected here"))),
            }
        }
        if version {
            Ok(())
        } else {
            Err(PtxError::new(1, "the text holds no .version"))
        }
    }

    /// The first definition of a name counts.
    fn variable(&mut self, shared: bool, external: bool, var: Variable<'t>) {
        let symbol = match shared {
            true if var.open => Symbol::Dynamic,
            true => Symbol::Shared(var.size, var.align),
            false if external => return,
            false => Symbol::Global(self.globals.len() as u32),
        };
        if self.symbols.contains_key(var.name) {
            return;
        }
        self.symbols.insert(var.name, symbol);
        if let Symbol::Global(_) = symbol {
            self.globals.push(GlobalInfo {
                name: var.name.to_owned(),
                size: var.size as usize,
                init: var.init,
                addresses: var.addresses,
                managed: var.managed,
            });
        }
    }

    fn function(&mut self, cur: &mut Cursor<'t>, entry: bool) -> Result<(), PtxError> {
        let rets = cur.formals()?;
        let mut found = Function {
            name: cur.word()?,
            entry,
            rets,
            params: cur.formals()?,
            max_threads: 1024,
            body: None,
        };
        while !cur.eat(b';') {
            if cur.at(b'{') {
                found.body = Some(Cursor {
                    pos: cur.pos + 1,
                    ..*cur
                });
                cur.skip_braces()?;
                break;
            }
            match cur.next() {
                Some(Tok::Word(".maxntid" | ".reqntid")) => {
                    let mut threads = cur.int()?;
                    while cur.eat(b',') {
                        threads = threads.saturating_mul(cur.int()?);
                    }
                    found.max_threads = threads.clamp(1, 1024) as u32;
                }
                Some(_) => {}
                None => return Err(cur.error(format!("function {} has no body", found.name))),
            }
        }
        self.functions.push(found);
        Ok(())
    }
}
