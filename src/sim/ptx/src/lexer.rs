//! Splits PTX text into tokens with their lines; drops comments and debug lines.

use crate::error::PtxError;

#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) enum Tok<'a> {
    /// Names, directives and opcodes with all their dotted parts: `%r1`, `.reg`, `ld.param.u64`.
    Word(&'a str),
    /// An integer, already two's complement.
    Int(u64),
    /// `0f...`: the bits of an f32.
    F32(u32),
    /// `0d...` or a decimal with a point: the bits of an f64.
    F64(u64),
    Str(&'a str),
    Punct(u8),
}

#[derive(Debug, Clone, Copy)]
pub(crate) struct Token<'a> {
    pub(crate) tok: Tok<'a>,
    pub(crate) line: u32,
    /// Byte offset of the token in the text.
    pub(crate) at: usize,
}

fn is_word(byte: u8) -> bool {
    byte.is_ascii_alphanumeric() || matches!(byte, b'_' | b'$' | b'%' | b'.')
}

pub(crate) fn lex(text: &str) -> Result<Vec<Token<'_>>, PtxError> {
    let bytes = text.as_bytes();
    let mut tokens = Vec::with_capacity(text.len() / 5);
    let mut line = 1;
    let mut at = 0;
    while at < bytes.len() {
        let start = at;
        let byte = bytes[at];
        match byte {
            b'\n' => {
                line += 1;
                at += 1;
            }
            b' ' | b'\t' | b'\r' | 0 => at += 1,
            b'/' if bytes.get(at + 1) == Some(&b'/') => at = end_of_line(bytes, at),
            b'/' if bytes.get(at + 1) == Some(&b'*') => {
                let Some(len) = text[at + 2..].find("*/") else {
                    return Err(PtxError::new(line, "comment `/*` has no end"));
                };
                line += lines_in(&text[at..at + 2 + len]);
                at += len + 4;
            }
            b'"' => {
                let Some(len) = text[at + 1..].find('"') else {
                    return Err(PtxError::new(line, "string has no end"));
                };
                tokens.push(Token {
                    tok: Tok::Str(&text[at + 1..at + 1 + len]),
                    line,
                    at: start,
                });
                line += lines_in(&text[at + 1..at + 1 + len]);
                at += len + 2;
            }
            b'0'..=b'9' => {
                at = end_of_number(bytes, at);
                let tok = number(&text[start..at], line)?;
                tokens.push(Token {
                    tok,
                    line,
                    at: start,
                });
            }
            _ if is_word(byte) => {
                at = end_of_word(bytes, at);
                let word = &text[start..at];
                if matches!(word, ".loc" | ".file") {
                    at = end_of_line(bytes, at);
                } else if byte == b'.' {
                    // Directives may follow each other without space: `.reg.b32`.
                    let mut from = start;
                    for part in word[1..].split('.') {
                        let tok = Tok::Word(&text[from..=from + part.len()]);
                        let token = Token {
                            tok,
                            line,
                            at: from,
                        };
                        tokens.push(token);
                        from += part.len() + 1;
                    }
                } else {
                    tokens.push(Token {
                        tok: Tok::Word(word),
                        line,
                        at: start,
                    });
                }
            }
            _ if byte.is_ascii_punctuation() => {
                tokens.push(Token {
                    tok: Tok::Punct(byte),
                    line,
                    at: start,
                });
                at += 1;
            }
            _ => return Err(PtxError::new(line, "character is not part of PTX")),
        }
    }
    Ok(tokens)
}

fn lines_in(text: &str) -> u32 {
    u32::try_from(text.bytes().filter(|b| *b == b'\n').count()).unwrap_or(u32::MAX)
}

fn end_of_line(bytes: &[u8], mut at: usize) -> usize {
    while at < bytes.len() && bytes[at] != b'\n' {
        at += 1;
    }
    at
}

/// End of a word, which may contain `::` (`.shared::cta`) but not the single colon of a label.
fn end_of_word(bytes: &[u8], mut at: usize) -> usize {
    while at < bytes.len() {
        if is_word(bytes[at]) {
            at += 1;
        } else if bytes[at..].starts_with(b"::") && bytes.get(at + 2).is_some_and(|b| is_word(*b)) {
            at += 2;
        } else {
            break;
        }
    }
    at
}

fn end_of_number(bytes: &[u8], mut at: usize) -> usize {
    let exact = bytes[at] == b'0' && bytes.get(at + 1).is_some_and(u8::is_ascii_alphabetic);
    while at < bytes.len() {
        let byte = bytes[at];
        let exponent_sign =
            !exact && matches!(byte, b'+' | b'-') && matches!(bytes[at - 1], b'e' | b'E');
        if byte.is_ascii_alphanumeric() || byte == b'.' || exponent_sign {
            at += 1;
        } else {
            break;
        }
    }
    at
}

fn number<'a>(text: &str, line: u32) -> Result<Tok<'a>, PtxError> {
    let bad = || PtxError::new(line, format!("`{text}` is no number"));
    let body = text.trim_end_matches('U');
    let prefix = body.get(..2).unwrap_or("");
    let radix = |digits: &str, radix| u64::from_str_radix(digits, radix).map_err(|_| bad());
    match prefix {
        "0f" | "0F" => Ok(Tok::F32(
            u32::from_str_radix(&body[2..], 16).map_err(|_| bad())?,
        )),
        "0d" | "0D" => Ok(Tok::F64(radix(&body[2..], 16)?)),
        "0x" | "0X" => Ok(Tok::Int(radix(&body[2..], 16)?)),
        "0b" | "0B" => Ok(Tok::Int(radix(&body[2..], 2)?)),
        _ if body.contains(['.', 'e', 'E']) => {
            Ok(Tok::F64(body.parse::<f64>().map_err(|_| bad())?.to_bits()))
        }
        _ if body.len() > 1 && body.starts_with('0') => Ok(Tok::Int(radix(&body[1..], 8)?)),
        _ => Ok(Tok::Int(radix(body, 10)?)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn check(text: &str, expect: &[Tok<'_>]) {
        let toks: Vec<_> = lex(text).unwrap().iter().map(|t| t.tok).collect();
        assert_eq!(toks, expect, "{text}");
    }

    #[test]
    fn tokens() {
        check(
            "0x1F 017 0b101 42U",
            &[Tok::Int(31), Tok::Int(15), Tok::Int(5), Tok::Int(42)],
        );
        check(
            "0f3F800000 1.5",
            &[Tok::F32(0x3f80_0000), Tok::F64(1.5f64.to_bits())],
        );
        check("0d3FF0000000000000", &[Tok::F64(0x3ff0_0000_0000_0000)]);
        check("1e-3", &[Tok::F64(1e-3f64.to_bits())]);
        check("$L1:", &[Tok::Word("$L1"), Tok::Punct(b':')]);
        check(
            "ld.shared::cta.u32 // c\n/* d */ %r1",
            &[Tok::Word("ld.shared::cta.u32"), Tok::Word("%r1")],
        );
        check(
            "[x+-4]",
            &[
                Tok::Punct(b'['),
                Tok::Word("x"),
                Tok::Punct(b'+'),
                Tok::Punct(b'-'),
                Tok::Int(4),
                Tok::Punct(b']'),
            ],
        );
        check(
            ".reg.b32 %r.x",
            &[Tok::Word(".reg"), Tok::Word(".b32"), Tok::Word("%r.x")],
        );
        check(".file 1 \"a b\"\nret", &[Tok::Word("ret")]);
    }

    #[test]
    fn lines_and_errors() {
        let tokens = lex("a /*\n\n*/ b\nc").unwrap();
        assert_eq!(tokens.iter().map(|t| t.line).collect::<Vec<_>>(), [1, 3, 4]);
        assert_eq!(lex("x\n 0q7").unwrap_err().line, 2);
        assert_eq!(lex("\n/* ").unwrap_err().line, 2);
        assert_eq!(lex("\n\n\u{e9}").unwrap_err().line, 3);
    }
}
