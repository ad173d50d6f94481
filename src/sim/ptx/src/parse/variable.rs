//! Declarations of variables: type, alignment, size and initial value.

use crate::error::PtxError;
use crate::lexer::Tok;
use crate::parse::Text;
use crate::types::Ty;

/// A variable declaration as written, before it is given a place.
#[derive(Debug)]
pub(crate) struct Variable<'t> {
    pub(crate) name: &'t str,
    pub(crate) ty: Ty,
    pub(crate) size: u64,
    pub(crate) align: u64,
    /// `[]`: the size is given elsewhere.
    pub(crate) open: bool,
    /// `.attribute(.managed)`.
    pub(crate) managed: bool,
    /// `name<100>` declares this many numbered names.
    pub(crate) count: Option<u32>,
    pub(crate) init: Vec<u8>,
    pub(crate) addresses: Vec<(usize, String)>,
}

impl<'t> Text<'t, '_> {
    /// `.align 8 .b8 name[16]` and the like, after the state space; initialisers included.
    pub(crate) fn variable(&mut self) -> Result<Variable<'t>, PtxError> {
        let mut align = None;
        let mut lanes = 1;
        let mut managed = false;
        let ty = loop {
            let word = self.cur.word()?;
            match word {
                ".align" => align = Some(self.cur.int()?),
                ".v2" => lanes = 2,
                ".v4" => lanes = 4,
                ".attribute" => {
                    self.cur.expect(b'(')?;
                    managed = self.cur.word()? == ".managed";
                    self.cur.expect(b')')?;
                }
                ".ptr" | ".global" | ".const" | ".shared" | ".local" => {}
                _ => match word.strip_prefix('.').map(|rest| (Ty::parse(rest), rest)) {
                    Some((Some(ty), _)) => break ty,
                    Some((None, "texref" | "samplerref" | "surfref")) => break Ty::U64,
                    _ => return Err(self.cur.error(format!("`{word}` is no type"))),
                },
            }
        };
        // A pointer parameter repeats what it points to: `.u64 .ptr .global .align 4 name`.
        while self.cur.peek_word().is_some_and(|w| w.starts_with('.')) {
            if self.cur.word()? == ".align" {
                self.cur.int()?;
            }
        }
        let var = self.declarator(ty, lanes, align)?;
        Ok(Variable { managed, ..var })
    }

    /// The part of a declaration after its type; a list repeats it.
    pub(crate) fn declarator(
        &mut self,
        ty: Ty,
        lanes: u64,
        align: Option<u64>,
    ) -> Result<Variable<'t>, PtxError> {
        let name = self.cur.word()?;
        let element = u64::from(ty.size());
        let mut var = Variable {
            name,
            ty,
            size: element * lanes,
            align: align.unwrap_or(element * lanes),
            open: false,
            managed: false,
            count: None,
            init: Vec::new(),
            addresses: Vec::new(),
        };
        if !var.align.is_power_of_two() {
            return Err(self
                .cur
                .error(format!("alignment {} is no power of two", var.align)));
        }
        if self.cur.eat(b'<') {
            let count = self.cur.int()?;
            var.count = Some(
                u32::try_from(count)
                    .ok()
                    .filter(|n| *n <= 1 << 20)
                    .ok_or_else(|| {
                        self.cur
                            .error(format!("{count} registers are more than are carried"))
                    })?,
            );
            self.cur.expect(b'>')?;
        }
        while self.cur.eat(b'[') {
            if self.cur.eat(b']') {
                var.open = true;
                continue;
            }
            let count = self.cur.int()?;
            var.size = var
                .size
                .checked_mul(count)
                .filter(|size| *size < 1 << 40)
                .ok_or_else(|| self.cur.error(format!("variable {name} is too large")))?;
            self.cur.expect(b']')?;
        }
        if self.cur.eat(b'=') {
            self.initializer(&mut var)?;
            if var.open {
                var.size = var.init.len() as u64;
                var.open = false;
            } else if var.init.len() as u64 > var.size {
                return Err(self.cur.error(format!(
                    "initial value of {name} is longer than the variable"
                )));
            }
        }
        Ok(var)
    }

    fn initializer(&mut self, var: &mut Variable<'t>) -> Result<(), PtxError> {
        if self.cur.eat(b'{') {
            while !self.cur.eat(b'}') {
                self.nested(|text| text.initializer(var))?;
                self.cur.eat(b',');
            }
            return Ok(());
        }
        let negative = self.cur.eat(b'-');
        let size = var.ty.size() as usize;
        let Some(token) = self.cur.next() else {
            return Err(self.cur.error("initial value is cut off"));
        };
        let value = match token.tok {
            Tok::Int(value) if negative => value.wrapping_neg(),
            Tok::Int(value) => value,
            Tok::F32(bits) if var.ty == Ty::F64 => f64::from(f32::from_bits(bits)).to_bits(),
            Tok::F32(bits) => u64::from(bits ^ u32::from(negative) << 31),
            Tok::F64(bits) => {
                let bits = bits ^ u64::from(negative) << 63;
                if var.ty == Ty::F32 {
                    u64::from((f64::from_bits(bits) as f32).to_bits())
                } else {
                    bits
                }
            }
            Tok::Word(name) => {
                // `generic(name)` or `name`, with an offset perhaps.
                let name = if name == "generic" && self.cur.eat(b'(') {
                    let name = self.cur.word()?;
                    self.cur.expect(b')')?;
                    name
                } else {
                    name
                };
                if size != 8 {
                    return Err(PtxError::new(token.line, "an address needs 8 bytes"));
                }
                var.addresses.push((var.init.len(), name.to_owned()));
                if self.cur.eat(b'+') {
                    self.cur.int()?
                } else {
                    0
                }
            }
            _ => {
                return Err(PtxError::new(
                    token.line,
                    "an initial value is expected here",
                ));
            }
        };
        var.init.extend_from_slice(&value.to_le_bytes()[..size]);
        Ok(())
    }
}
