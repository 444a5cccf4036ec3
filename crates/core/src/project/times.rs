//! Dates, times and intervals in text, by the rules of Spark's own casts.

use crate::calendar::days;

const MICROS_PER_SECOND: i64 = 1_000_000;
const SECONDS_PER_DAY: i64 = 86_400;
/// 1582-10-15, the first day on which the old calendar of Spark 1 agrees with today's.
const FIRST_GREGORIAN_DAY: i32 = -141_427;

/// `[+-]yyyy[-[m]m[-[d]d[( |T)anything]]]`, or a number of days since 1970 as Spark 1 wrote them.
pub(super) fn date(text: &str) -> Option<i32> {
    date_of_fields(text).or_else(|| text.parse().ok().filter(|days| *days >= FIRST_GREGORIAN_DAY))
}

fn date_of_fields(text: &str) -> Option<i32> {
    let (negative, text) = sign(trim(text));
    let mut fields = [1, 1, 1];
    let (mut field, mut digits, mut value) = (0, 0, 0_i64);
    let mut rest = text.bytes();
    let mut rest_is_empty = true;
    for byte in rest.by_ref() {
        match byte {
            b' ' | b'T' => {
                rest_is_empty = false;
                break;
            }
            b'-' if field < 2 => {
                fields[field] = checked(value, digits, field, 7)?;
                (field, digits, value) = (field + 1, 0, 0);
            }
            b'0'..=b'9' => {
                digits += 1;
                value = value.checked_mul(10)? + i64::from(byte - b'0');
            }
            _ => return None,
        }
    }
    fields[field] = checked(value, digits, field, 7)?;
    if field < 2 && !rest_is_empty {
        return None;
    }
    let year = if negative { -fields[0] } else { fields[0] };
    i32::try_from(days(year, fields[1], fields[2])?).ok()
}

/// `[+-]yyyy[-[m]m[-[d]d[( |T)[h]h[:[m]m[:[s]s[.[fraction]][zone]]]]]]]` as microseconds since 1970.
///
/// A text without a zone is taken as UTC. `None` for names of regions (`Europe/Berlin`) and for a time without a date.
pub(super) fn timestamp(text: &str) -> Option<i64> {
    if let Some(micros) = common_timestamp(text.as_bytes()) {
        return Some(micros);
    }
    let (micros, zone) = parts(text)?;
    let offset_s = zone.map_or(Some(0), |zone| zone_offset_s(zone.trim()))?;
    i64::try_from(micros - i128::from(offset_s * MICROS_PER_SECOND)).ok()
}

/// The same without a zone.
pub(super) fn timestamp_ntz(text: &str) -> Option<i64> {
    match parts(text)? {
        (micros, None) => i64::try_from(micros).ok(),
        _ => None,
    }
}

/// `yyyy-mm-dd(T| )hh:mm:ss[.ffffff]Z` with up to six digits, as nearly every producer writes it; `None` for the rest.
fn common_timestamp(text: &[u8]) -> Option<i64> {
    let (
        &[y1, y2, y3, y4, b'-', m1, m2, b'-', d1, d2, b'T' | b' ', h1, h2, b':', n1, n2, b':', s1, s2],
        [fraction @ .., b'Z'],
    ) = text.split_first_chunk::<19>()?
    else {
        return None;
    };
    let mut strange = 0;
    let mut two = |tens: u8, ones: u8| {
        let (tens, ones) = (tens.wrapping_sub(b'0'), ones.wrapping_sub(b'0'));
        strange |= u8::from(tens > 9) | u8::from(ones > 9);
        i64::from(tens) * 10 + i64::from(ones)
    };
    let (year, month, day) = (two(y1, y2) * 100 + two(y3, y4), two(m1, m2), two(d1, d2));
    let (hour, minute, second) = (two(h1, h2), two(n1, n2), two(s1, s2));
    if strange != 0 {
        return None;
    }
    let micros = match fraction {
        [] => 0,
        [b'.', fraction @ ..] if fraction.len() <= 6 => {
            let value = fraction
                .iter()
                .try_fold(0, |value, byte| byte.is_ascii_digit().then(|| value * 10 + i64::from(byte - b'0')))?;
            value * 10_i64.pow(6 - fraction.len() as u32)
        }
        _ => return None,
    };
    let seconds = days(year, month, day)? * SECONDS_PER_DAY + time_of_day_s(hour, minute, second)?;
    Some(seconds * MICROS_PER_SECOND + micros)
}

/// Microseconds as if in UTC, and the zone's text.
fn parts(text: &str) -> Option<(i128, Option<&str>)> {
    let (negative, text) = sign(trim(text));
    let mut fields = [1, 1, 1, 0, 0, 0, 0];
    let (mut field, mut digits, mut value) = (0, 0, 0_i64);
    let mut zone = None;
    let mut fraction_digits = 0;
    for (at, byte) in text.bytes().enumerate() {
        if byte.is_ascii_digit() {
            // A fraction has any number of digits; those after the sixth do not count.
            if field < 6 || fraction_digits < 6 {
                value = value.checked_mul(10)? + i64::from(byte - b'0');
            }
            digits += 1;
            fraction_digits += usize::from(field == 6);
            continue;
        }
        let next = match (field, byte) {
            (0 | 1, b'-') | (2, b' ' | b'T') | (3 | 4, b':') | (5, b'.') => field + 1,
            (5 | 6, _) => {
                zone = Some(text.get(at..)?);
                break;
            }
            _ => return None,
        };
        fields[field] = checked(value, digits, field, 6)?;
        (field, digits, value) = (next, 0, 0);
    }
    fields[field] = if field == 6 { value } else { checked(value, digits, field, 6)? };
    for _ in fraction_digits.min(6)..6 {
        fields[6] *= 10;
    }
    let [year, month, day, hour, minute, second, micro] = fields;
    let seconds = time_of_day_s(hour, minute, second)?;
    let days = days(if negative { -year } else { year }, month, day)?;
    let seconds = days * SECONDS_PER_DAY + seconds;
    Some((i128::from(seconds) * i128::from(MICROS_PER_SECOND) + i128::from(micro), zone))
}

/// The value of a field that has the digits it should have.
fn checked(value: i64, digits: usize, field: usize, year_digits: usize) -> Option<i64> {
    let allowed = if field == 0 { 4..=year_digits } else { 1..=2 };
    allowed.contains(&digits).then_some(value)
}

fn time_of_day_s(hour: i64, minute: i64, second: i64) -> Option<i64> {
    (hour < 24 && minute < 60 && second < 60).then_some(hour * 3_600 + minute * 60 + second)
}

/// The offset of `Z`, `UTC`, `GMT`, `UT`, three American names that mean one, `+h`, `+hh[[:]mm[[:]ss]]`, or of a name
/// and an offset.
fn zone_offset_s(zone: &str) -> Option<i64> {
    let offset = match zone {
        "Z" | "UTC" | "GMT" | "UT" => return Some(0),
        "EST" => return Some(-5 * 3_600),
        "MST" => return Some(-7 * 3_600),
        "HST" => return Some(-10 * 3_600),
        _ => ["UTC", "GMT", "UT"].iter().find_map(|name| zone.strip_prefix(name)).unwrap_or(zone),
    };
    let negative = match offset.bytes().next()? {
        b'+' => false,
        b'-' => true,
        _ => return None,
    };
    let digits = &offset[1..];
    let (hours, minutes, seconds) = if digits.contains(':') {
        let mut fields = digits.split(':');
        let fields = (fields.next()?, fields.next()?, fields.next(), fields.next());
        match fields {
            (hours, minutes, None, None) => (short_number(hours)?, short_number(minutes)?, 0),
            (hours, minutes, Some(seconds), None) if minutes.len() == 2 && seconds.len() == 2 => {
                (short_number(hours)?, short_number(minutes)?, short_number(seconds)?)
            }
            _ => return None,
        }
    } else {
        match digits.len() {
            1 | 2 => (short_number(digits)?, 0, 0),
            4 => (short_number(digits.get(..2)?)?, short_number(digits.get(2..)?)?, 0),
            6 => (short_number(digits.get(..2)?)?, short_number(digits.get(2..4)?)?, short_number(digits.get(4..)?)?),
            _ => return None,
        }
    };
    let offset = hours * 3_600 + minutes * 60 + seconds;
    (minutes < 60 && seconds < 60 && offset <= 18 * 3_600).then_some(if negative { -offset } else { offset })
}

/// One or two digits.
fn short_number(digits: &str) -> Option<i64> {
    (matches!(digits.len(), 1 | 2) && digits.bytes().all(|byte| byte.is_ascii_digit())).then(|| digits.parse().ok())?
}

/// `[h]h:[m]m[:[s]s[.fraction]][ AM| PM]` as nanoseconds of the day.
pub(super) fn time(text: &str) -> Option<i64> {
    let text = trim(text);
    let upper = text.to_ascii_uppercase();
    let (clock, half) = match upper.as_bytes() {
        [.., half @ (b'A' | b'P'), b'M'] => (trim(&text[..text.len() - 2]), Some(*half)),
        _ => (text, None),
    };
    let mut fields = clock.split(':');
    let (hour, minute, second) = (fields.next()?, fields.next()?, fields.next().unwrap_or("0"));
    if fields.next().is_some() {
        return None;
    }
    let (second, nanos) = match second.split_once('.') {
        Some((second, fraction)) => (second, fraction_nanos(fraction)?),
        None => (second, 0),
    };
    let hour = match (short_number(hour)?, half) {
        (hour, None) => hour,
        (hour @ 1..=12, Some(half)) => hour % 12 + if half == b'P' { 12 } else { 0 },
        _ => return None,
    };
    Some(time_of_day_s(hour, short_number(minute)?, short_number(second)?)? * 1_000_000_000 + nanos)
}

/// Up to nine digits after the point.
fn fraction_nanos(digits: &str) -> Option<i64> {
    if digits.len() > 9 || !digits.bytes().all(|byte| byte.is_ascii_digit()) {
        return None;
    }
    let value: i64 = if digits.is_empty() { 0 } else { digits.parse().ok()? };
    Some(value * 10_i64.pow(9 - digits.len() as u32))
}

/// `[+-]d [h]h:[m]m:[s]s[.fraction]`, also as `INTERVAL [+-]'...' DAY TO SECOND`, as microseconds.
pub(super) fn day_time_interval(text: &str) -> Option<i64> {
    let text = trim(text);
    let (outer_negative, inner) = match text.get(..8) {
        Some(word) if word.eq_ignore_ascii_case("interval") => {
            let (negative, quoted) = sign(trim(&text[8..]));
            let (inner, unit) = quoted.strip_prefix('\'')?.split_once('\'')?;
            let unit: Vec<_> = unit.split_ascii_whitespace().map(str::to_ascii_uppercase).collect();
            (unit == ["DAY", "TO", "SECOND"]).then_some((negative, inner))?
        }
        _ => (false, text),
    };
    let (inner_negative, inner) = sign(inner);
    let (days, clock) = inner.split_once(' ')?;
    let mut fields = clock.split(':');
    let (hour, minute, second) = (fields.next()?, fields.next()?, fields.next()?);
    if fields.next().is_some() || days.is_empty() || !days.bytes().all(|byte| byte.is_ascii_digit()) {
        return None;
    }
    let (second, nanos) = match second.split_once('.') {
        Some((second, fraction)) if !fraction.is_empty() => (second, fraction_nanos(fraction)?),
        Some(_) => return None,
        None => (second, 0),
    };
    let seconds = time_of_day_s(short_number(hour)?, short_number(minute)?, short_number(second)?)?;
    let seconds = i128::from(days.parse::<i64>().ok()?) * i128::from(SECONDS_PER_DAY) + i128::from(seconds);
    let micros = seconds * i128::from(MICROS_PER_SECOND) + i128::from(nanos / 1_000);
    i64::try_from(if outer_negative != inner_negative { -micros } else { micros }).ok()
}

/// Spark trims spaces and control characters.
fn trim(text: &str) -> &str {
    text.trim_matches(|c: char| c <= ' ' || ('\x7f'..='\u{9f}').contains(&c))
}

fn sign(text: &str) -> (bool, &str) {
    match text.as_bytes().first() {
        Some(b'-') => (true, &text[1..]),
        Some(b'+') => (false, &text[1..]),
        _ => (false, text),
    }
}
