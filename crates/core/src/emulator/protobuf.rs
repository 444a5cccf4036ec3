//! Protobuf by hand, where messages stay bytes: reading the fields in place, and writing some.

use bytes::BufMut;
use tonic::Status;

/// A field of an encoded protobuf message.
pub struct Field<'a> {
    /// Its number.
    pub number: u32,
    /// Where the field begins in the message, its key included.
    pub start: usize,
    /// Where it ends.
    pub end: usize,
    /// The bytes of a length-delimited field, else empty.
    pub value: &'a [u8],
    /// Whether it has a length.
    pub is_delimited: bool,
}

/// The fields of an encoded protobuf message, in their order on the wire.
pub struct Fields<'a> {
    bytes: &'a [u8],
    at: usize,
}

impl<'a> Fields<'a> {
    /// Those of this message.
    pub fn of(bytes: &'a [u8]) -> Self {
        Self { bytes, at: 0 }
    }

    fn varint(&mut self) -> Option<u64> {
        let mut value = 0_u64;
        for shift in (0..64).step_by(7) {
            let byte = *self.bytes.get(self.at)?;
            self.at += 1;
            value |= u64::from(byte & 0x7f) << shift;
            if byte & 0x80 == 0 {
                return Some(value);
            }
        }
        None
    }

    fn advance(&mut self, count: usize) -> Option<&'a [u8]> {
        let end = self.at.checked_add(count)?;
        let value = self.bytes.get(self.at..end)?;
        self.at = end;
        Some(value)
    }

    fn field(&mut self) -> Option<Field<'a>> {
        let start = self.at;
        let key = self.varint()?;
        let mut field = Field { number: u32::try_from(key >> 3).ok()?, start, end: 0, value: &[], is_delimited: false };
        match key & 7 {
            0 => drop(self.varint()?),
            1 => drop(self.advance(8)?),
            2 => {
                let length = usize::try_from(self.varint()?).ok()?;
                field.value = self.advance(length)?;
                field.is_delimited = true;
            }
            5 => drop(self.advance(4)?),
            _ => return None,
        }
        field.end = self.at;
        Some(field)
    }
}

impl<'a> Iterator for Fields<'a> {
    type Item = Result<Field<'a>, Status>;

    fn next(&mut self) -> Option<Self::Item> {
        if self.at == self.bytes.len() {
            return None;
        }
        let field = self.field();
        if field.is_none() {
            self.at = self.bytes.len();
        }
        Some(field.ok_or_else(|| Status::invalid_argument("The request is not a valid protobuf message.")))
    }
}

/// Append a length-delimited field.
pub fn put_delimited(out: &mut impl BufMut, number: u8, value: &[u8]) {
    out.put_u8(number << 3 | 2);
    put_varint(out, value.len() as u64);
    out.put_slice(value);
}

/// Append a varint.
pub fn put_varint(out: &mut impl BufMut, mut value: u64) {
    while value >= 0x80 {
        out.put_u8(value as u8 | 0x80);
        value >>= 7;
    }
    out.put_u8(value as u8);
}

/// How many bytes `put_delimited` writes for a value of this length.
pub fn delimited_len(length: usize) -> usize {
    1 + varint_len(length as u64) + length
}

/// How many bytes a varint has.
pub fn varint_len(value: u64) -> usize {
    let bits = u64::BITS - (value | 1).leading_zeros();
    (bits as usize).div_ceil(7)
}

/// A number as decimal text, without an allocation.
#[derive(Default)]
pub struct Digits([u8; 20]);

impl Digits {
    /// The text of `value`.
    pub fn write(&mut self, mut value: u64) -> &[u8] {
        let mut at = self.0.len();
        loop {
            at -= 1;
            self.0[at] = b'0' + (value % 10) as u8;
            value /= 10;
            if value == 0 {
                return &self.0[at..];
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lengths_and_digits_are_as_written() {
        for length in [0, 1, 127, 128, 16_383, 16_384, 70_000] {
            let mut out = Vec::new();
            put_delimited(&mut out, 2, &vec![0; length]);
            assert_eq!(out.len(), delimited_len(length));
        }
        for value in [0, 7, 10, 1_234, u64::MAX] {
            assert_eq!(Digits::default().write(value), value.to_string().as_bytes());
        }
    }
}
