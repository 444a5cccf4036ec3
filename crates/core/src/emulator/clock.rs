//! The emulator's time: one scale for publish times and lease deadlines, that tests can turn forward.

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use crate::calendar;
use crate::pubsub::wire::Timestamp;

const NANOS_PER_S: u64 = 1_000_000_000;

/// A moment, in nanoseconds since 1970 UTC.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub struct Time(u64);

impl Time {
    /// The moment this long after 1970.
    pub fn since_epoch(elapsed: Duration) -> Self {
        Self(nanos(elapsed))
    }

    /// The moment this much later.
    pub fn plus(self, duration: Duration) -> Self {
        Self(self.0.saturating_add(nanos(duration)))
    }

    /// The moment this much earlier.
    pub fn minus(self, duration: Duration) -> Self {
        Self(self.0.saturating_sub(nanos(duration)))
    }

    /// How long it is until `later`; nothing when that has passed.
    pub fn until(self, later: Self) -> Duration {
        Duration::from_nanos(later.0.saturating_sub(self.0))
    }

    /// Microseconds since 1970.
    pub fn as_micros(self) -> u64 {
        self.0 / 1_000
    }

    /// As the wire has it.
    pub fn to_timestamp(self) -> Timestamp {
        Timestamp { seconds: (self.0 / NANOS_PER_S) as i64, nanos: (self.0 % NANOS_PER_S) as i32 }
    }

    /// From the wire; what is before 1970 is 1970.
    pub fn from_timestamp(timestamp: Timestamp) -> Self {
        let seconds = u64::try_from(timestamp.seconds).unwrap_or(0);
        let nanos = u64::try_from(timestamp.nanos).unwrap_or(0);
        Self(seconds.saturating_mul(NANOS_PER_S).saturating_add(nanos))
    }

    /// As Rust has it.
    pub fn to_system_time(self) -> std::time::SystemTime {
        std::time::SystemTime::UNIX_EPOCH + Duration::from_nanos(self.0)
    }

    /// `2026-01-31T12:00:00.000+00:00`.
    pub fn to_rfc3339(self) -> String {
        let (seconds, millis) = (self.0 / NANOS_PER_S, self.0 / 1_000_000 % 1_000);
        let (year, month, day) = calendar::date((seconds / 86_400) as i64);
        let (hour, minute, second) = (seconds / 3_600 % 24, seconds / 60 % 60, seconds % 60);
        format!("{year:04}-{month:02}-{day:02}T{hour:02}:{minute:02}:{second:02}.{millis:03}+00:00")
    }
}

fn nanos(duration: Duration) -> u64 {
    u64::try_from(duration.as_nanos()).unwrap_or(u64::MAX)
}

/// Tells the time: the wall's when it was made, from there on monotonic, so that a set clock ends no lease.
#[derive(Debug)]
pub struct Clock {
    origin: Time,
    started: Instant,
    /// How far it was turned, in nanoseconds.
    turned: AtomicU64,
}

impl Clock {
    /// A clock that starts at the wall's time.
    pub fn new() -> Self {
        let wall = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        Self { origin: Time::since_epoch(wall), started: Instant::now(), turned: AtomicU64::new(0) }
    }

    /// The time.
    pub fn now(&self) -> Time {
        let turned = Duration::from_nanos(self.turned.load(Ordering::Acquire));
        self.origin.plus(self.started.elapsed()).plus(turned)
    }

    /// Turn it forward; it goes on from there.
    pub fn advance(&self, by: Duration) {
        // The closure never refuses.
        let _ = self
            .turned
            .fetch_update(Ordering::AcqRel, Ordering::Acquire, |turned| Some(turned.saturating_add(nanos(by))));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_are_written_as_dates() {
        for (seconds, text) in [
            (0, "1970-01-01T00:00:00.000+00:00"),
            (951_782_400, "2000-02-29T00:00:00.000+00:00"),
            (1_709_251_199, "2024-02-29T23:59:59.000+00:00"),
            (4_107_542_400, "2100-03-01T00:00:00.000+00:00"),
        ] {
            assert_eq!(Time::since_epoch(Duration::from_secs(seconds)).to_rfc3339(), text);
        }
    }

    #[test]
    fn an_advanced_clock_goes_on_from_there() {
        let clock = Clock::new();
        let before = clock.now();
        clock.advance(Duration::from_secs(100));
        clock.advance(Duration::from_secs(20));
        let passed = before.until(clock.now());
        assert!((Duration::from_secs(120)..Duration::from_secs(180)).contains(&passed), "{passed:?}");
    }

    #[test]
    fn timestamps_read_back_and_odd_ones_are_bounded() {
        let time = Time::since_epoch(Duration::new(7, 8));
        assert_eq!(Time::from_timestamp(time.to_timestamp()), time);
        assert_eq!(Time::from_timestamp(Timestamp { seconds: -5, nanos: -1 }), Time::default());
        assert_eq!(Time::from_timestamp(Timestamp { seconds: i64::MAX, nanos: 0 }), Time(u64::MAX));
    }
}
