//! Numbers in text, by the rules of Java: exact decimals, and floating point numbers as `Double.toString` writes them.

use std::io::Write;

/// Java's JSON parser refuses decimals with exponents beyond this.
const MAX_DECIMAL_EXPONENT: i64 = 100_000;

/// A decimal of the given precision and scale, rounded half up; `None` for what is no number or too large.
pub(super) fn decimal(text: &[u8], precision: u8, scale: i8) -> Option<i128> {
    let (negative, text) = match text {
        [b'-', rest @ ..] => (true, rest),
        [b'+', rest @ ..] => (false, rest),
        _ => (false, text),
    };
    let (mantissa, exponent) = match text.iter().position(|byte| matches!(byte, b'e' | b'E')) {
        Some(at) => (&text[..at], exponent(&text[at + 1..])?),
        None => (text, 0),
    };
    let (whole, fraction) = match mantissa.iter().position(|byte| *byte == b'.') {
        Some(at) => (&mantissa[..at], &mantissa[at + 1..]),
        None => (mantissa, &[][..]),
    };
    let digits = || whole.iter().chain(fraction).map(|byte| i128::from(byte.wrapping_sub(b'0')));
    if whole.len() + fraction.len() == 0 || digits().any(|digit| digit > 9) {
        return None;
    }
    let exponent = exponent - fraction.len() as i64;
    if exponent.abs() > MAX_DECIMAL_EXPONENT {
        return None;
    }
    let zeros = digits().take_while(|digit| *digit == 0).count();
    let significant = whole.len() + fraction.len() - zeros;
    // How many of the significant digits stay; the next one decides the rounding.
    let kept = significant as i64 + exponent + i64::from(scale);
    if significant == 0 || kept < 0 {
        return Some(0);
    }
    if kept > i64::from(precision) {
        return None;
    }
    let kept = kept as usize;
    let mut digits = digits().skip(zeros);
    let mut value = 0;
    for _ in 0..kept {
        value = value * 10 + digits.next().unwrap_or(0);
    }
    value += i128::from(digits.next().is_some_and(|digit| digit >= 5));
    (value < 10_i128.pow(u32::from(precision))).then_some(if negative { -value } else { value })
}

/// A whole number as a decimal.
pub(super) fn whole_decimal(value: i128, precision: u8, scale: i8) -> Option<i128> {
    let value = value.checked_mul(10_i128.checked_pow(u32::from(scale.unsigned_abs()))?)?;
    (value.unsigned_abs() < 10_u128.pow(u32::from(precision))).then_some(value)
}

fn exponent(text: &[u8]) -> Option<i64> {
    std::str::from_utf8(text).ok()?.parse::<i32>().ok().map(i64::from)
}

/// A number as Java writes it: `0.001`, `1234567.0`, `1.0E7`.
pub(super) fn write_double(value: f64, into: &mut Vec<u8>) {
    if value.is_nan() {
        into.extend_from_slice(b"NaN");
    } else if value.is_infinite() {
        into.extend_from_slice(if value > 0.0 { b"Infinity" } else { b"-Infinity" });
    } else if value == 0.0 || (1e-3..1e7).contains(&value.abs()) {
        // Rust writes the shortest digits that read back as the same number, as Java does; {:?} keeps a ".0".
        let _ = write!(into, "{value:?}");
    } else {
        let start = into.len();
        let _ = write!(into, "{value:E}");
        if !into[start..].contains(&b'.')
            && let Some(exponent) = into[start..].iter().position(|byte| *byte == b'E')
        {
            into.splice(start + exponent..start + exponent, *b".0");
        }
    }
}
