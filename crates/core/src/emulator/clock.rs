//! The emulator's time: one scale for publish times and lease deadlines.

use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use crate::pubsub::wire::Timestamp;

const NANOS_PER_S: u64 = 1_000_000_000;

/// A moment, in nanoseconds since 1970 UTC.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Time(u64);

impl Time {
    /// The moment this long after 1970.
    pub fn since_epoch(elapsed: Duration) -> Self {
        Self(u64::try_from(elapsed.as_nanos()).unwrap_or(u64::MAX))
    }

    /// The moment this much later.
    pub fn plus(self, duration: Duration) -> Self {
        Self(self.0.saturating_add(u64::try_from(duration.as_nanos()).unwrap_or(u64::MAX)))
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
}

/// Tells the time: the wall's when it was made, from there on monotonic, so that a set clock ends no lease.
#[derive(Debug)]
pub struct Clock {
    origin: Time,
    started: Instant,
}

impl Clock {
    /// A clock that starts at the wall's time.
    pub fn new() -> Self {
        let wall = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        Self { origin: Time::since_epoch(wall), started: Instant::now() }
    }

    /// The time.
    pub fn now(&self) -> Time {
        self.origin.plus(self.started.elapsed())
    }
}
