//! The service's filter language for subscriptions: which messages match, by their attributes.
//!
//! ```text
//! filter     = term { "AND" term } | term { "OR" term }      mixed only with parentheses
//! term       = [ "NOT" | "-" ] simple
//! simple     = "(" filter ")" | "attributes" ":" key | "attributes" "." key ( "=" | "!=" ) string
//!            | "hasPrefix" "(" "attributes" "." key "," string ")"
//! key        = letters, digits, "-" and "_", or a string
//! ```
//!
//! Names and values are case-sensitive. What compares the value of a missing attribute is false, hence `!=` is true.

use std::fmt;

/// The most bytes of a filter. It bounds how deep one nests, too.
pub const MAX_FILTER_BYTES: usize = 256;

/// A parsed filter.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Filter {
    root: Expression,
}

#[derive(Clone, Debug, PartialEq, Eq)]
enum Expression {
    Has(String),
    Equals { key: String, value: String },
    HasPrefix { key: String, prefix: String },
    Not(Box<Expression>),
    All(Vec<Expression>),
    Any(Vec<Expression>),
}

impl Filter {
    /// Parse a filter; the error says where and what.
    pub fn parse(text: &str) -> Result<Self, String> {
        if text.len() > MAX_FILTER_BYTES {
            return Err(format!("the filter has {} bytes; at most {MAX_FILTER_BYTES} are allowed", text.len()));
        }
        let mut parser = Parser { text, position: 0 };
        let root = parser.filter()?;
        match parser.next()? {
            (_, Token::End) => Ok(Self { root }),
            (at, token) => Err(unexpected(at, "AND, OR or the end of the filter", &token)),
        }
    }

    /// Whether a message matches; `attribute` looks its attributes up.
    pub fn matches<'a>(&self, attribute: impl Fn(&str) -> Option<&'a str>) -> bool {
        self.root.matches(&attribute)
    }
}

impl Expression {
    fn matches<'a>(&self, attribute: &impl Fn(&str) -> Option<&'a str>) -> bool {
        match self {
            Self::Has(key) => attribute(key).is_some(),
            Self::Equals { key, value } => attribute(key) == Some(value),
            Self::HasPrefix { key, prefix } => attribute(key).is_some_and(|value| value.starts_with(prefix)),
            Self::Not(inner) => !inner.matches(attribute),
            Self::All(inner) => inner.iter().all(|one| one.matches(attribute)),
            Self::Any(inner) => inner.iter().any(|one| one.matches(attribute)),
        }
    }
}

#[derive(Clone, Debug, PartialEq, Eq)]
enum Token {
    /// A name or a keyword.
    Word(String),
    /// A quoted string, unescaped.
    Text(String),
    /// Punctuation.
    Sign(&'static str),
    End,
}

impl fmt::Display for Token {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Word(word) => f.write_str(word),
            Self::Text(text) => write!(f, "the string {text:?}"),
            Self::Sign(sign) => write!(f, "{sign:?}"),
            Self::End => f.write_str("the end of the filter"),
        }
    }
}

fn unexpected(at: usize, wanted: &str, found: &Token) -> String {
    format!("at position {}: expected {wanted}, found {found}", at + 1)
}

struct Parser<'a> {
    text: &'a str,
    position: usize,
}

impl Parser<'_> {
    /// Terms that are joined by one operator. Recursion is bounded by the length of the text.
    fn filter(&mut self) -> Result<Expression, String> {
        let first = self.term()?;
        let Some(operator) = self.operator()? else { return Ok(first) };
        let mut terms = vec![first, self.term()?];
        loop {
            let before = self.position;
            match self.operator()? {
                Some(other) if other == operator => terms.push(self.term()?),
                Some(other) => {
                    let at = before + self.text[before..].len() - self.text[before..].trim_start().len();
                    return Err(format!(
                        "at position {}: {other} follows {operator}; put parentheses around one of them",
                        at + 1
                    ));
                }
                None => break,
            }
        }
        Ok(if operator == "AND" { Expression::All(terms) } else { Expression::Any(terms) })
    }

    /// The operator that comes next, if one does.
    fn operator(&mut self) -> Result<Option<&'static str>, String> {
        let before = self.position;
        match self.next()?.1 {
            Token::Word(word) if word == "AND" => Ok(Some("AND")),
            Token::Word(word) if word == "OR" => Ok(Some("OR")),
            _ => {
                self.position = before;
                Ok(None)
            }
        }
    }

    fn term(&mut self) -> Result<Expression, String> {
        let before = self.position;
        let negated = match self.next()?.1 {
            Token::Sign("-") => true,
            Token::Word(word) if word == "NOT" => true,
            _ => {
                self.position = before;
                false
            }
        };
        let simple = self.simple()?;
        Ok(if negated { Expression::Not(Box::new(simple)) } else { simple })
    }

    fn simple(&mut self) -> Result<Expression, String> {
        let (at, token) = self.next()?;
        match &token {
            Token::Sign("(") => {
                let inner = self.filter()?;
                self.sign(")")?;
                Ok(inner)
            }
            Token::Word(word) if word == "attributes" => self.comparison(),
            Token::Word(word) if word == "hasPrefix" => {
                self.sign("(")?;
                match self.next()? {
                    (_, Token::Word(word)) if word == "attributes" => {}
                    (at, token) => return Err(unexpected(at, "attributes", &token)),
                }
                self.sign(".")?;
                let key = self.key()?;
                self.sign(",")?;
                let prefix = self.string()?;
                self.sign(")")?;
                Ok(Expression::HasPrefix { key, prefix })
            }
            _ => Err(unexpected(at, "attributes, hasPrefix or (", &token)),
        }
    }

    /// What follows `attributes`.
    fn comparison(&mut self) -> Result<Expression, String> {
        match self.next()? {
            (_, Token::Sign(":")) => Ok(Expression::Has(self.key()?)),
            (_, Token::Sign(".")) => {
                let key = self.key()?;
                match self.next()? {
                    (_, Token::Sign("=")) => Ok(Expression::Equals { key, value: self.string()? }),
                    (_, Token::Sign("!=")) => {
                        let value = self.string()?;
                        Ok(Expression::Not(Box::new(Expression::Equals { key, value })))
                    }
                    (at, token) => Err(unexpected(at, "= or !=", &token)),
                }
            }
            (at, token) => Err(unexpected(at, "\":\" or \".\" after attributes", &token)),
        }
    }

    fn key(&mut self) -> Result<String, String> {
        self.skip_space();
        let rest = &self.text[self.position..];
        let length = rest.find(|c: char| !is_word(c) && c != '-').unwrap_or(rest.len());
        if length > 0 {
            self.position += length;
            return Ok(rest[..length].to_owned());
        }
        match self.next()? {
            (_, Token::Text(text)) => Ok(text),
            (at, token) => Err(unexpected(
                at,
                "the name of an attribute (letters, digits, - and _; any other within double quotes)",
                &token,
            )),
        }
    }

    fn string(&mut self) -> Result<String, String> {
        match self.next()? {
            (_, Token::Text(text)) => Ok(text),
            (at, token) => Err(unexpected(at, "a string within double quotes", &token)),
        }
    }

    fn sign(&mut self, wanted: &'static str) -> Result<(), String> {
        match self.next()? {
            (_, Token::Sign(sign)) if sign == wanted => Ok(()),
            (at, token) => Err(unexpected(at, &format!("{wanted:?}"), &token)),
        }
    }

    fn skip_space(&mut self) {
        let rest = &self.text[self.position..];
        self.position += rest.len() - rest.trim_ascii_start().len();
    }

    /// The next token, and where it begins.
    fn next(&mut self) -> Result<(usize, Token), String> {
        const SIGNS: [&str; 8] = ["!=", "=", ":", ".", ",", "(", ")", "-"];
        self.skip_space();
        let at = self.position;
        let rest = &self.text[at..];
        let Some(first) = rest.chars().next() else { return Ok((at, Token::End)) };
        if first == '"' {
            return Ok((at, Token::Text(self.quoted()?)));
        }
        if let Some(sign) = SIGNS.into_iter().find(|sign| rest.starts_with(sign)) {
            self.position += sign.len();
            return Ok((at, Token::Sign(sign)));
        }
        let length = rest.find(|c: char| !is_word(c)).unwrap_or(rest.len());
        if length == 0 {
            return Err(format!("at position {}: {first:?} is no part of a filter", at + 1));
        }
        self.position += length;
        Ok((at, Token::Word(rest[..length].to_owned())))
    }

    /// A string within double quotes, unescaped; the position is at the opening quote.
    fn quoted(&mut self) -> Result<String, String> {
        let start = self.position;
        let bytes = self.text.as_bytes();
        let unfinished = || format!("at position {}: the string has no closing quote", start + 1);
        let mut value = Vec::new();
        self.position += 1;
        loop {
            match bytes.get(self.position).ok_or_else(unfinished)? {
                b'"' => {
                    self.position += 1;
                    return String::from_utf8(value).map_err(|_| {
                        format!("at position {}: the escapes of the string make no valid UTF-8", start + 1)
                    });
                }
                b'\\' => self.escape(&mut value)?,
                byte => {
                    value.push(*byte);
                    self.position += 1;
                }
            }
        }
    }

    /// One escape sequence; the position is at the backslash.
    fn escape(&mut self, value: &mut Vec<u8>) -> Result<(), String> {
        let at = self.position;
        let digits = &self.text.as_bytes()[at + 1..];
        let unknown = || format!("at position {}: unknown or incomplete escape sequence in a string", at + 1);
        let (kind, rest) = digits.split_first().ok_or_else(unknown)?;
        let simple = match kind {
            b'\\' | b'"' | b'\'' | b'?' | b'`' => Some(*kind),
            b'a' => Some(0x07),
            b'b' => Some(0x08),
            b'f' => Some(0x0c),
            b'n' => Some(b'\n'),
            b'r' => Some(b'\r'),
            b't' => Some(b'\t'),
            b'v' => Some(0x0b),
            _ => None,
        };
        let (consumed, byte_or_character) = match kind {
            _ if simple.is_some() => (1, simple.map(u32::from)),
            b'0'..=b'7' => (3, number(digits, 3, 8).filter(|n| *n <= 0xff)),
            b'x' | b'X' => (3, number(rest, 2, 16)),
            b'u' => (5, number(rest, 4, 16)),
            b'U' => (9, number(rest, 8, 16)),
            _ => (0, None),
        };
        let number = byte_or_character.ok_or_else(unknown)?;
        if matches!(kind, b'u' | b'U') {
            let character = char::from_u32(number).ok_or_else(unknown)?;
            value.extend(character.encode_utf8(&mut [0; 4]).bytes());
        } else {
            value.push(u8::try_from(number).map_err(|_| unknown())?);
        }
        self.position += 1 + consumed;
        Ok(())
    }
}

fn is_word(c: char) -> bool {
    c.is_ascii_alphanumeric() || c == '_'
}

/// A number of exactly so many digits.
fn number(digits: &[u8], count: usize, radix: u32) -> Option<u32> {
    let mut value: u32 = 0;
    for digit in digits.get(..count)? {
        value = value.checked_mul(radix)?.checked_add(char::from(*digit).to_digit(radix)?)?;
    }
    Some(value)
}

#[cfg(test)]
#[path = "filter_tests.rs"]
mod tests;
