//! Operands of instructions, as written.

use crate::error::PtxError;
use crate::lexer::Tok;
use crate::parse::Text;

#[derive(Debug, Clone, PartialEq)]
pub(crate) enum Operand<'t> {
    /// A register, variable, label or function.
    Name(&'t str),
    Int(u64),
    /// `0f...`: the bits.
    F32(u32),
    /// `0d...` or a decimal: the bits.
    F64(u64),
    /// `!%p1`
    Not(&'t str),
    /// `[base+offset]`
    Address {
        base: Option<&'t str>,
        offset: i64,
    },
    /// `{a, b}`
    Vector(Vec<Operand<'t>>),
    /// `(a, b)` of a call
    List(Vec<Operand<'t>>),
    /// `%p1|%p2`
    Pair(&'t str, &'t str),
    /// Something that only instructions outside this interpreter have.
    Foreign,
}

impl<'t> Text<'t, '_> {
    /// All operands up to the `;`, which is read too.
    pub(crate) fn operands(&mut self) -> Result<Vec<Operand<'t>>, PtxError> {
        let mut out = Vec::new();
        while !self.cur.eat(b';') {
            out.push(self.operand()?);
            if !self.cur.eat(b',') && !self.cur.at(b';') {
                self.cur.next();
                return Err(self.cur.error("`;` is expected here"));
            }
        }
        Ok(out)
    }

    fn operand(&mut self) -> Result<Operand<'t>, PtxError> {
        let Some(token) = self.cur.next() else {
            return Err(self.cur.error("the text ends inside a statement"));
        };
        Ok(match token.tok {
            Tok::Word(first) => {
                if self.cur.eat(b'|') {
                    Operand::Pair(first, self.cur.word()?)
                } else {
                    Operand::Name(first)
                }
            }
            Tok::Int(value) => Operand::Int(value),
            Tok::F32(bits) => Operand::F32(bits),
            Tok::F64(bits) => Operand::F64(bits),
            Tok::Punct(b'!') => Operand::Not(self.cur.word()?),
            Tok::Punct(b'~') => match self.nested(Self::operand)? {
                Operand::Int(value) => Operand::Int(!value),
                _ => Operand::Foreign,
            },
            Tok::Punct(b'-') => match self.nested(Self::operand)? {
                Operand::Int(value) => Operand::Int(value.wrapping_neg()),
                Operand::F32(bits) => Operand::F32(bits ^ 1 << 31),
                Operand::F64(bits) => Operand::F64(bits ^ 1 << 63),
                _ => Operand::Foreign,
            },
            Tok::Punct(b'[') => self.address()?,
            Tok::Punct(b'{') => Operand::Vector(self.group(b'}')?),
            Tok::Punct(b'(') => Operand::List(self.group(b')')?),
            Tok::Str(_) | Tok::Punct(_) => {
                return Err(self.cur.error("an operand is expected here"));
            }
        })
    }

    fn group(&mut self, end: u8) -> Result<Vec<Operand<'t>>, PtxError> {
        let mut out = Vec::new();
        while !self.cur.eat(end) {
            out.push(self.nested(Self::operand)?);
            if !self.cur.eat(b',') && !self.cur.at(end) {
                self.cur.next();
                return Err(self
                    .cur
                    .error(format!("`{}` is expected here", char::from(end))));
            }
        }
        Ok(out)
    }

    fn address(&mut self) -> Result<Operand<'t>, PtxError> {
        let mut offset = 0i64;
        let base = match self.cur.next().map(|t| t.tok) {
            Some(Tok::Word(base)) => Some(base),
            Some(Tok::Int(value)) => {
                offset = value as i64;
                None
            }
            _ => return Err(self.cur.error("an address is expected here")),
        };
        let mut foreign = false;
        while !self.cur.eat(b']') {
            let negative = match self.cur.next().map(|t| t.tok) {
                Some(Tok::Punct(b'+')) => self.cur.eat(b'-'),
                Some(Tok::Punct(b'-')) => true,
                Some(Tok::Punct(b';')) | None => {
                    return Err(self.cur.error("`]` is expected here"));
                }
                Some(_) => {
                    // Coordinates of textures and the like.
                    foreign = true;
                    continue;
                }
            };
            if let Some(Tok::Int(value)) = self.cur.peek() {
                self.cur.next();
                let value = value as i64;
                offset = offset.wrapping_add(if negative {
                    value.wrapping_neg()
                } else {
                    value
                });
            } else {
                foreign = true;
            }
        }
        Ok(if foreign {
            Operand::Foreign
        } else {
            Operand::Address { base, offset }
        })
    }
}
