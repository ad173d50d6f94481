//! Walking the tokens of a text.

use crate::error::PtxError;
use crate::lexer::{Tok, Token};

#[derive(Debug)]
pub(crate) struct Cursor<'t> {
    text: &'t str,
    tokens: Vec<Token<'t>>,
    pub(crate) pos: usize,
}

impl<'t> Cursor<'t> {
    pub(crate) fn new(text: &'t str, tokens: Vec<Token<'t>>) -> Self {
        Self {
            text,
            tokens,
            pos: 0,
        }
    }

    pub(crate) fn next(&mut self) -> Option<Token<'t>> {
        let token = self.tokens.get(self.pos).copied();
        self.pos += 1;
        token
    }

    pub(crate) fn peek(&self) -> Option<Tok<'t>> {
        self.tokens.get(self.pos).map(|t| t.tok)
    }

    pub(crate) fn peek_word(&self) -> Option<&'t str> {
        match self.peek() {
            Some(Tok::Word(word)) => Some(word),
            _ => None,
        }
    }

    /// Line of the token that comes next (or of the last one).
    pub(crate) fn line(&self) -> u32 {
        let at = self.pos.min(self.tokens.len().saturating_sub(1));
        self.tokens.get(at).map_or(1, |t| t.line)
    }

    /// An error at the token read last.
    pub(crate) fn error(&self, message: impl Into<String>) -> PtxError {
        let at = self
            .pos
            .saturating_sub(1)
            .min(self.tokens.len().saturating_sub(1));
        PtxError::new(self.tokens.get(at).map_or(1, |t| t.line), message)
    }

    pub(crate) fn at(&self, punct: u8) -> bool {
        self.peek() == Some(Tok::Punct(punct))
    }

    pub(crate) fn int_ahead(&self) -> bool {
        matches!(self.peek(), Some(Tok::Int(_)))
    }

    pub(crate) fn eat(&mut self, punct: u8) -> bool {
        let found = self.at(punct);
        if found {
            self.pos += 1;
        }
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
        match self.next().map(|t| t.tok) {
            Some(Tok::Word(word)) => Ok(word),
            _ => Err(self.error("a name is expected here")),
        }
    }

    pub(crate) fn int(&mut self) -> Result<u64, PtxError> {
        match self.next().map(|t| t.tok) {
            Some(Tok::Int(value)) => Ok(value),
            _ => Err(self.error("a number is expected here")),
        }
    }

    /// Moves behind the next `;`.
    pub(crate) fn skip_statement(&mut self) {
        while let Some(token) = self.next() {
            if token.tok == Tok::Punct(b';') {
                break;
            }
        }
    }

    /// Moves behind the block in braces that comes next.
    pub(crate) fn skip_braces(&mut self) -> Result<(), PtxError> {
        self.expect(b'{')?;
        let mut depth = 1;
        while depth > 0 {
            match self.next().map(|t| t.tok) {
                Some(Tok::Punct(b'{')) => depth += 1,
                Some(Tok::Punct(b'}')) => depth -= 1,
                Some(_) => {}
                None => return Err(self.error("`{` has no end")),
            }
        }
        Ok(())
    }

    /// The text from one token up to the end of the statement, on one line.
    pub(crate) fn statement_text(&self, from: usize) -> String {
        let start = self.tokens.get(from).map_or(self.text.len(), |t| t.at);
        let rest = &self.text[start..];
        let statement = rest.split(';').next().unwrap_or(rest);
        statement.split_whitespace().collect::<Vec<_>>().join(" ")
    }
}
