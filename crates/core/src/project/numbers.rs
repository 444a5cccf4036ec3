//! Numbers in text, by the rules of Java: exact decimals, and floating point numbers as `Double.toString` writes them.

use std::fmt::Arguments;
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

/// A double as Java writes it: `0.001`, `1234567.0`, `1.0E7`, `NaN`.
pub(crate) fn write_double(value: f64, into: &mut Vec<u8>) {
    if is_plain(value.abs()) {
        // Rust writes the shortest digits that read back as the same number, as Java does; {:?} keeps a ".0".
        let _ = write!(into, "{value:?}");
    } else {
        write_with_exponent(value.is_finite(), format_args!("{value:E}"), format_args!("{value:.1E}"), into);
    }
}

/// The same for a float, whose shortest digits are fewer.
pub(crate) fn write_float(value: f32, into: &mut Vec<u8>) {
    if is_plain(value.abs().into()) {
        let _ = write!(into, "{value:?}");
    } else {
        write_with_exponent(value.is_finite(), format_args!("{value:E}"), format_args!("{value:.1E}"), into);
    }
}

fn is_plain(magnitude: f64) -> bool {
    magnitude == 0.0 || (1e-3..1e7).contains(&magnitude)
}

/// Java writes two digits at least.
fn write_with_exponent(is_finite: bool, shortest: Arguments<'_>, two_digits: Arguments<'_>, into: &mut Vec<u8>) {
    let start = into.len();
    let _ = into.write_fmt(shortest);
    if !is_finite {
        let text: &[u8] = match into[start..] {
            [b'N', ..] => b"NaN",
            [b'-', ..] => b"-Infinity",
            _ => b"Infinity",
        };
        into.splice(start.., text.iter().copied());
    } else if !into[start..].contains(&b'.') {
        into.truncate(start);
        let _ = into.write_fmt(two_digits);
    }
}

/// A decimal as Java's `BigDecimal` writes it: `12.50`, `0.000001`, and `1E-7` for what is smaller.
pub(crate) fn write_decimal(value: i128, scale: i8, into: &mut Vec<u8>) {
    let digits = value.unsigned_abs().to_string();
    let scale = i64::from(scale);
    // Of the first digit.
    let exponent = digits.len() as i64 - 1 - scale;
    if value < 0 {
        into.push(b'-');
    }
    let _ = if scale == 0 {
        write!(into, "{digits}")
    } else if scale > 0 && exponent >= -6 {
        let padded = format!("{digits:0>width$}", width = scale as usize + 1);
        let (whole, fraction) = padded.split_at(padded.len() - scale as usize);
        write!(into, "{whole}.{fraction}")
    } else {
        let (first, rest) = digits.split_at(1);
        let point = if rest.is_empty() { "" } else { "." };
        write!(into, "{first}{point}{rest}E{exponent:+}")
    };
}
