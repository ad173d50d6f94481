//! As much JSON as the registration needs. The preloaded library runs inside other people's
//! programs and therefore has no dependency for this.

use super::Malformed;

/// A JSON value; numbers that are not whole and non-negative are kept as `Other`.
#[derive(Debug, Clone, PartialEq)]
pub(super) enum Value {
    Null,
    Bool(bool),
    Number(u64),
    Other,
    Text(String),
    Array(Vec<Value>),
    Object(Vec<(String, Value)>),
}

const DEEPEST: u32 = 16;

impl Value {
    pub(super) fn parse(text: &str) -> Result<Self, Malformed> {
        let mut reader = Reader { text, at: 0 };
        let value = reader.value(0)?;
        reader.space();
        if reader.at < text.len() {
            return Err(reader.error("expected the end of the line"));
        }
        Ok(value)
    }

    pub(super) fn get(&self, name: &str) -> Option<&Self> {
        match self {
            Self::Object(fields) => fields
                .iter()
                .find_map(|(field, value)| (field == name).then_some(value)),
            _ => None,
        }
    }

    pub(super) fn text(&self, name: &str) -> Option<&str> {
        match self.get(name) {
            Some(Self::Text(text)) => Some(text),
            _ => None,
        }
    }

    pub(super) fn number(&self, name: &str) -> Option<u64> {
        match self.get(name) {
            Some(Self::Number(number)) => Some(*number),
            _ => None,
        }
    }
}

/// The text as a JSON string, with its quotes.
pub(super) fn quote(text: &str) -> String {
    let mut quoted = String::with_capacity(text.len() + 2);
    quoted.push('"');
    for character in text.chars() {
        match character {
            '"' => quoted.push_str("\\\""),
            '\\' => quoted.push_str("\\\\"),
            character if character < ' ' => {
                quoted.push_str(&format!("\\u{:04x}", character as u32));
            }
            character => quoted.push(character),
        }
    }
    quoted.push('"');
    quoted
}

struct Reader<'a> {
    text: &'a str,
    at: usize,
}

impl Reader<'_> {
    fn error(&self, what: &str) -> Malformed {
        Malformed(format!("{what} at byte {}", self.at))
    }

    fn peek(&self) -> Option<u8> {
        self.text.as_bytes().get(self.at).copied()
    }

    fn space(&mut self) {
        while matches!(self.peek(), Some(b' ' | b'\t' | b'\n' | b'\r')) {
            self.at += 1;
        }
    }

    fn eat(&mut self, token: &str) -> bool {
        let found = self.text[self.at..].starts_with(token);
        if found {
            self.at += token.len();
        }
        found
    }

    fn value(&mut self, depth: u32) -> Result<Value, Malformed> {
        if depth > DEEPEST {
            return Err(self.error("nested too deeply"));
        }
        self.space();
        match self.peek() {
            None => Err(self.error("unexpected end")),
            Some(b'"') => Ok(Value::Text(self.string()?)),
            Some(b'{') => self.object(depth),
            Some(b'[') => self.array(depth),
            Some(b'-' | b'0'..=b'9') => Ok(self.number()),
            Some(_) if self.eat("null") => Ok(Value::Null),
            Some(_) if self.eat("true") => Ok(Value::Bool(true)),
            Some(_) if self.eat("false") => Ok(Value::Bool(false)),
            Some(_) => Err(self.error("unexpected character")),
        }
    }

    fn object(&mut self, depth: u32) -> Result<Value, Malformed> {
        self.at += 1;
        let mut fields = Vec::new();
        self.space();
        if self.eat("}") {
            return Ok(Value::Object(fields));
        }
        loop {
            self.space();
            if self.peek() != Some(b'"') {
                return Err(self.error("expected a field name"));
            }
            let name = self.string()?;
            self.space();
            if !self.eat(":") {
                return Err(self.error("expected `:`"));
            }
            fields.push((name, self.value(depth + 1)?));
            self.space();
            if self.eat("}") {
                return Ok(Value::Object(fields));
            }
            if !self.eat(",") {
                return Err(self.error("unexpected end of an object"));
            }
        }
    }

    fn array(&mut self, depth: u32) -> Result<Value, Malformed> {
        self.at += 1;
        let mut values = Vec::new();
        self.space();
        if self.eat("]") {
            return Ok(Value::Array(values));
        }
        loop {
            values.push(self.value(depth + 1)?);
            self.space();
            if self.eat("]") {
                return Ok(Value::Array(values));
            }
            if !self.eat(",") {
                return Err(self.error("unexpected end of an array"));
            }
        }
    }

    fn number(&mut self) -> Value {
        let start = self.at;
        while matches!(
            self.peek(),
            Some(b'-' | b'+' | b'.' | b'e' | b'E' | b'0'..=b'9')
        ) {
            self.at += 1;
        }
        self.text[start..self.at]
            .parse()
            .map_or(Value::Other, Value::Number)
    }

    fn string(&mut self) -> Result<String, Malformed> {
        self.at += 1;
        let mut text = String::new();
        loop {
            let Some(character) = self.text[self.at..].chars().next() else {
                return Err(self.error("unexpected end of a string"));
            };
            self.at += character.len_utf8();
            match character {
                '"' => return Ok(text),
                '\\' => text.push(self.escape()?),
                character => text.push(character),
            }
        }
    }

    fn escape(&mut self) -> Result<char, Malformed> {
        let Some(character) = self.text[self.at..].chars().next() else {
            return Err(self.error("unexpected end of a string"));
        };
        self.at += character.len_utf8();
        Ok(match character {
            'n' => '\n',
            't' => '\t',
            'r' => '\r',
            'b' => '\u{8}',
            'f' => '\u{c}',
            'u' => {
                let first = self.unit()?;
                let code = if (0xd800..0xdc00).contains(&first) && self.eat("\\u") {
                    let second = self.unit()?;
                    0x10000 + ((first - 0xd800) << 10) + second.wrapping_sub(0xdc00) % 0x400
                } else {
                    first
                };
                char::from_u32(code).unwrap_or(char::REPLACEMENT_CHARACTER)
            }
            other => other,
        })
    }

    fn unit(&mut self) -> Result<u32, Malformed> {
        let digits = self.text.get(self.at..self.at + 4);
        let code = digits
            .and_then(|digits| u32::from_str_radix(digits, 16).ok())
            .ok_or_else(|| self.error("expected four hexadecimal digits"))?;
        self.at += 4;
        Ok(code)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn escapes_are_read() {
        for (text, expected) in [
            (r#""a\u00e4\n""#, "aä\n"),
            (r#""\ud83d\ude00""#, "😀"),
            (r#""\ud83d x""#, "\u{fffd} x"),
            (r#""\ud83d\u0041""#, "\u{1f441}"),
        ] {
            let Ok(Value::Text(read)) = Value::parse(text) else {
                panic!("{text}");
            };
            if text.contains("0041") {
                continue; // any character will do, as long as nothing panics
            }
            assert_eq!(read, expected);
        }
    }

    #[test]
    fn garbage_is_an_error_and_never_a_panic() {
        let deep = "[".repeat(100_000);
        let valid = r#"{"a":[1,-2.5e3,"x\u00e4",null,true]}"#;
        assert!(Value::parse(valid).is_ok());
        assert!(Value::parse(&deep).is_err());
        for end in 0..valid.len() {
            assert!(Value::parse(&valid[..end]).is_err(), "{}", &valid[..end]);
        }
        for byte in 0..=255_u8 {
            let text = String::from_utf8_lossy(&[b'"', byte, b'\\', b'u', byte]).into_owned();
            assert!(Value::parse(&text).is_err());
        }
    }
}
