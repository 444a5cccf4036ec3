//! A parser for what Spark's JSON parser takes and simd-json refuses.
//!
//! Single quotes; `NaN` and infinities; numbers of any length; lone surrogates (they become `?`); bytes that are no
//! UTF-8 (they become U+FFFD); anything after the document. It fills the same kind of tape.

use simd_json::{Node, StaticNode};

/// Deeper documents are malformed, for Spark too.
pub(super) const MAX_DEPTH: usize = 1_000;
/// So are longer numbers.
const MAX_NUMBER_BYTES: usize = 1_000;

type Parsed<T> = Result<T, (usize, &'static str)>;

/// The parser and its tape.
#[derive(Default)]
pub(super) struct Lenient {
    source: Vec<u8>,
    at: usize,
    tokens: Vec<Token>,
    starts: Vec<u32>,
    /// The texts of all strings.
    texts: String,
    /// Objects and arrays that are open: where they start among the tokens, and how many values they have.
    open: Vec<(usize, usize)>,
}

enum Token {
    Text(usize, usize),
    Object { len: usize, count: usize },
    Array { len: usize, count: usize },
    Static(StaticNode),
}

pub(super) fn is_space(byte: u8) -> bool {
    matches!(byte, b' ' | b'\t' | b'\r' | b'\n')
}

impl Lenient {
    /// Parse a document; an error is a place and a reason.
    pub fn parse(&mut self, source: &[u8]) -> Parsed<()> {
        self.source.clear();
        append_as_utf8(source, &mut self.source);
        self.at = 0;
        self.tokens.clear();
        self.starts.clear();
        self.texts.clear();
        self.open.clear();
        self.skip_spaces();
        self.value()?;
        while let Some(&(container, len)) = self.open.last() {
            self.skip_spaces();
            let is_object = matches!(self.tokens[container], Token::Object { .. });
            if self.take(if is_object { b'}' } else { b']' }) {
                self.close(container, len, is_object);
                continue;
            }
            if len > 0 && !self.take(b',') {
                return Err((self.at, "no comma"));
            }
            self.skip_spaces();
            if is_object {
                let start = self.at;
                match self.peek() {
                    Some(quote @ (b'"' | b'\'')) => self.string(quote)?,
                    _ => return Err((start, "no name")),
                }
                self.skip_spaces();
                if !self.take(b':') {
                    return Err((self.at, "no colon"));
                }
                self.skip_spaces();
            }
            if let Some(open) = self.open.last_mut() {
                open.1 += 1;
            }
            self.value()?;
        }
        Ok(())
    }

    /// The document as it was parsed.
    pub fn source(&self) -> &[u8] {
        &self.source
    }

    /// Where in the source each node starts.
    pub fn starts(&self) -> &[u32] {
        &self.starts
    }

    /// The tape.
    pub fn nodes(&self) -> Vec<Node<'_>> {
        let node = |token: &Token| match token {
            Token::Text(start, end) => Node::String(&self.texts[*start..*end]),
            Token::Object { len, count } => Node::Object { len: *len, count: *count },
            Token::Array { len, count } => Node::Array { len: *len, count: *count },
            Token::Static(value) => Node::Static(*value),
        };
        self.tokens.iter().map(node).collect()
    }

    fn close(&mut self, container: usize, len: usize, is_object: bool) {
        let count = self.tokens.len() - container - 1;
        self.tokens[container] = if is_object { Token::Object { len, count } } else { Token::Array { len, count } };
        self.open.pop();
    }

    fn value(&mut self) -> Parsed<()> {
        match self.peek() {
            Some(b'{') => self.begin(Token::Object { len: 0, count: 0 }),
            Some(b'[') => self.begin(Token::Array { len: 0, count: 0 }),
            Some(quote @ (b'"' | b'\'')) => self.string(quote),
            Some(b'0'..=b'9') => self.number(),
            Some(b'-') if matches!(self.source.get(self.at + 1), Some(b'0'..=b'9')) => self.number(),
            Some(_) => self.word(),
            None => Err((self.at, "the end")),
        }
    }

    fn begin(&mut self, token: Token) -> Parsed<()> {
        if self.open.len() == MAX_DEPTH {
            return Err((self.at, "more than 1,000 levels"));
        }
        self.open.push((self.tokens.len(), 0));
        self.add(self.at, token);
        self.at += 1;
        Ok(())
    }

    fn string(&mut self, quote: u8) -> Parsed<()> {
        let (start, text) = (self.at, self.texts.len());
        self.at += 1;
        loop {
            let from = self.at;
            let plain = |byte: &u8| *byte >= b' ' && *byte != quote && *byte != b'\\';
            self.at += self.source[from..].iter().position(|byte| !plain(byte)).unwrap_or(self.source.len() - from);
            // The ends of a run are ASCII bytes, so that the run is UTF-8 as the whole is.
            self.texts.push_str(std::str::from_utf8(&self.source[from..self.at]).map_err(|_| (from, "no UTF-8"))?);
            match self.peek() {
                Some(b'\\') => self.escape()?,
                Some(byte) if byte == quote => break,
                Some(_) => return Err((self.at, "a control character in a string")),
                None => return Err((start, "a string without an end")),
            }
        }
        self.at += 1;
        self.add(start, Token::Text(text, self.texts.len()));
        Ok(())
    }

    fn escape(&mut self) -> Parsed<()> {
        let escaped = match self.source.get(self.at + 1) {
            Some(byte @ (b'"' | b'\\' | b'/' | b'\'')) => char::from(*byte),
            Some(b'b') => '\x08',
            Some(b'f') => '\x0c',
            Some(b'n') => '\n',
            Some(b'r') => '\r',
            Some(b't') => '\t',
            Some(b'u') => {
                let unit = self.code_unit(self.at).ok_or((self.at, "an unknown escape"))?;
                self.at += 6;
                let low = if matches!(unit, 0xd800..=0xdbff) { self.code_unit(self.at) } else { None };
                let escaped = match low {
                    Some(low @ 0xdc00..=0xdfff) => {
                        self.at += 6;
                        char::from_u32(0x1_0000 + ((unit - 0xd800) << 10) + (low - 0xdc00))
                    }
                    _ => char::from_u32(unit),
                };
                self.texts.push(escaped.unwrap_or('?')); // what Java writes for half a pair
                return Ok(());
            }
            _ => return Err((self.at, "an unknown escape")),
        };
        self.texts.push(escaped);
        self.at += 2;
        Ok(())
    }

    /// The number of a `\uXXXX` at a place.
    fn code_unit(&self, at: usize) -> Option<u32> {
        let digits = self.source.get(at..at + 6)?.strip_prefix(b"\\u")?;
        let digits = std::str::from_utf8(digits).ok().filter(|digits| digits.bytes().all(|b| b.is_ascii_hexdigit()))?;
        u32::from_str_radix(digits, 16).ok()
    }

    fn number(&mut self) -> Parsed<()> {
        let start = self.at;
        self.at += usize::from(self.source[start] == b'-');
        let whole = self.digits();
        if whole == 0 || (whole > 1 && self.source[self.at - whole] == b'0') {
            return Err((start, "a number with a leading zero"));
        }
        let mut is_float = false;
        if self.take(b'.') {
            is_float = true;
            if self.digits() == 0 {
                return Err((start, "a number without an end"));
            }
        }
        if self.take(b'e') || self.take(b'E') {
            is_float = true;
            let _ = self.take(b'+') || self.take(b'-');
            if self.digits() == 0 {
                return Err((start, "a number without an end"));
            }
        }
        if self.at - start > MAX_NUMBER_BYTES {
            return Err((start, "a number of more than 1,000 digits"));
        }
        let text = std::str::from_utf8(&self.source[start..self.at]).unwrap_or_default();
        let whole = if is_float { None } else { text.parse().ok().map(StaticNode::I64) };
        let number = whole.or_else(|| if is_float { None } else { text.parse().ok().map(StaticNode::U64) });
        let number = number.or_else(|| text.parse().ok().map(StaticNode::F64)).ok_or((start, "no number"))?;
        self.add(start, Token::Static(number));
        Ok(())
    }

    fn digits(&mut self) -> usize {
        let rest = &self.source[self.at..];
        let len = rest.iter().position(|byte| !byte.is_ascii_digit()).unwrap_or(rest.len());
        self.at += len;
        len
    }

    fn word(&mut self) -> Parsed<()> {
        let words = [
            ("true", StaticNode::Bool(true)),
            ("false", StaticNode::Bool(false)),
            ("null", StaticNode::Null),
            ("NaN", StaticNode::F64(f64::NAN)),
            ("Infinity", StaticNode::F64(f64::INFINITY)),
            ("+Infinity", StaticNode::F64(f64::INFINITY)),
            ("+INF", StaticNode::F64(f64::INFINITY)),
            ("-Infinity", StaticNode::F64(f64::NEG_INFINITY)),
            ("-INF", StaticNode::F64(f64::NEG_INFINITY)),
        ];
        let rest = &self.source[self.at..];
        let len = rest.iter().skip(1).position(|byte| !byte.is_ascii_alphanumeric() && *byte < 0x80);
        let word = &rest[..len.map_or(rest.len(), |len| len + 1)];
        let Some((_, value)) = words.iter().find(|(name, _)| name.as_bytes() == word) else {
            return Err((self.at, "an unknown word"));
        };
        let len = word.len();
        self.add(self.at, Token::Static(*value));
        self.at += len;
        Ok(())
    }

    fn add(&mut self, start: usize, token: Token) {
        self.starts.push(start as u32);
        self.tokens.push(token);
    }

    fn peek(&self) -> Option<u8> {
        self.source.get(self.at).copied()
    }

    fn take(&mut self, byte: u8) -> bool {
        let found = self.peek() == Some(byte);
        self.at += usize::from(found);
        found
    }

    fn skip_spaces(&mut self) {
        while self.peek().is_some_and(is_space) {
            self.at += 1;
        }
    }
}

/// Bytes that are no UTF-8 become U+FFFD, in the portions in which Java replaces them.
fn append_as_utf8(mut bytes: &[u8], into: &mut Vec<u8>) {
    while !bytes.is_empty() {
        let (valid, rest) = match std::str::from_utf8(bytes) {
            Ok(_) => (bytes.len(), bytes.len()),
            Err(error) => {
                let start = error.valid_up_to();
                let len = match &bytes[start..] {
                    // A surrogate that was encoded by itself: one for Java, three for Rust.
                    [0xed, 0xa0..=0xbf, 0x80..=0xbf, ..] => 3,
                    rest => error.error_len().unwrap_or(rest.len()),
                };
                (start, start + len)
            }
        };
        into.extend_from_slice(&bytes[..valid]);
        if valid < rest {
            into.extend_from_slice("\u{fffd}".as_bytes());
        }
        bytes = &bytes[rest..];
    }
}
