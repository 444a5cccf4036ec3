//! Dates, times and intervals as Spark's `to_json` writes them, in UTC.

use std::io::Write;

use crate::calendar;

const NANOS_PER_SECOND: i64 = 1_000_000_000;
const MICROS_PER_SECOND: i64 = 1_000_000;
const SECONDS_PER_DAY: i64 = 86_400;

/// `2024-02-29`; a year of more than four digits has its sign.
pub(super) fn write_date(days: i64, into: &mut Vec<u8>) {
    let (year, month, day) = calendar::date(days);
    // Writing to a vector cannot fail, here and below.
    let _ = match year {
        0..=9_999 => {
            put(into, year, 4);
            Ok(())
        }
        10_000.. => write!(into, "+{year}"),
        _ => write!(into, "-{:04}", -year),
    };
    into.push(b'-');
    put(into, month, 2);
    into.push(b'-');
    put(into, day, 2);
}

/// `2024-02-29T12:34:56.789` and the zone. Spark writes milliseconds and drops what is finer; here it stays.
pub(super) fn write_timestamp(micros: i64, zone: &[u8], into: &mut Vec<u8>) {
    let (seconds, micros) = (micros.div_euclid(MICROS_PER_SECOND), micros.rem_euclid(MICROS_PER_SECOND));
    write_date(seconds.div_euclid(SECONDS_PER_DAY), into);
    into.push(b'T');
    write_clock(seconds.rem_euclid(SECONDS_PER_DAY), into);
    into.push(b'.');
    if micros % 1_000 == 0 {
        put(into, micros / 1_000, 3);
    } else {
        put(into, micros, 6);
    }
    into.extend_from_slice(zone);
}

/// `12:34:56.789`, with as many digits as it takes.
pub(super) fn write_time(nanos: i64, into: &mut Vec<u8>) {
    write_clock(nanos / NANOS_PER_SECOND, into);
    write_fraction(nanos % NANOS_PER_SECOND, 9, into);
}

/// `INTERVAL '-1 02:03:04.5' DAY TO SECOND`.
pub(super) fn write_interval(micros: i64, into: &mut Vec<u8>) {
    into.extend_from_slice(b"INTERVAL '");
    if micros < 0 {
        into.push(b'-');
    }
    let (seconds, fraction) =
        (micros.unsigned_abs() / MICROS_PER_SECOND as u64, micros.unsigned_abs() % MICROS_PER_SECOND as u64);
    let (days, seconds) = (seconds / SECONDS_PER_DAY as u64, seconds % SECONDS_PER_DAY as u64);
    let _ = write!(into, "{days} ");
    write_clock(seconds as i64, into);
    write_fraction(fraction as i64, 6, into);
    into.extend_from_slice(b"' DAY TO SECOND");
}

fn write_clock(seconds: i64, into: &mut Vec<u8>) {
    put(into, seconds / 3_600, 2);
    into.push(b':');
    put(into, seconds / 60 % 60, 2);
    into.push(b':');
    put(into, seconds % 60, 2);
}

/// The digits after the point, up to the last that is not 0.
fn write_fraction(value: i64, digits: usize, into: &mut Vec<u8>) {
    if value != 0 {
        into.push(b'.');
        put(into, value, digits);
        while into.pop_if(|digit| *digit == b'0').is_some() {}
    }
}

/// A number that has at most so many digits, with zeros in front.
fn put(into: &mut Vec<u8>, mut value: i64, digits: usize) {
    let start = into.len();
    into.resize(start + digits, b'0');
    for digit in into[start..].iter_mut().rev() {
        *digit += (value % 10) as u8;
        value /= 10;
    }
}
