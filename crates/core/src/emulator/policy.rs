//! What a subscription's settings ask of its state.

use std::time::Duration;

use super::filter::Filter;

/// How long messages are kept when nothing is said: 7 days.
pub const DEFAULT_RETENTION: Duration = Duration::from_secs(7 * 24 * 3600);

/// The settings that matter to the messages. All but the filter may change.
#[derive(Clone, Debug)]
pub struct Policy {
    /// A failed acknowledgement is told.
    pub exactly_once: bool,
    /// Only messages that match are kept.
    pub filter: Option<Filter>,
    /// Messages that failed so often leave for the dead-letter topic.
    pub dead_letter_after: Option<u32>,
    /// How long a failed message waits.
    pub retry: Option<Backoff>,
    /// How long messages are kept.
    pub retention: Duration,
    /// Whether acknowledged ones are kept as well.
    pub retain_acked: bool,
}

impl Default for Policy {
    fn default() -> Self {
        Self {
            exactly_once: false,
            filter: None,
            dead_letter_after: None,
            retry: None,
            retention: DEFAULT_RETENTION,
            retain_acked: false,
        }
    }
}

/// Exponential backoff.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Backoff {
    /// After the first failure.
    pub minimum: Duration,
    /// Never more.
    pub maximum: Duration,
}

impl Backoff {
    /// How long to wait after this many failures.
    pub fn after(self, failures: u32) -> Duration {
        let factor = 2_u32.saturating_pow(failures.saturating_sub(1));
        self.minimum.saturating_mul(factor).min(self.maximum)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_backoff_doubles_up_to_its_maximum() {
        let backoff = Backoff { minimum: Duration::from_secs(10), maximum: Duration::from_secs(60) };
        let waits: Vec<u64> = (1..=5).map(|failures| backoff.after(failures).as_secs()).collect();
        assert_eq!(waits, [10, 20, 40, 60, 60]);
        assert_eq!(backoff.after(u32::MAX).as_secs(), 60);
    }
}
