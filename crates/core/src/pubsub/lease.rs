//! Leases: deliveries that came together, until when they are ours, and how long to ask for.

use std::collections::HashSet;
use std::time::{Duration, Instant};

use arrow_array::{Array, StringArray};

use crate::pubsub::wire::MAX_ACK_DEADLINE_S;

/// The least lease of a subscription that delivers exactly once: a late extension costs more there.
pub const EXACTLY_ONCE_LEASE: Duration = Duration::from_secs(60);
const LONGEST_LEASE: Duration = Duration::from_secs(MAX_ACK_DEADLINE_S as u64);

/// Deliveries that came together and whose deadline moves together.
#[derive(Clone, Debug)]
pub struct Lease {
    /// The deliveries.
    pub ack_ids: StringArray,
    /// When they came.
    pub received_at: Instant,
    /// Until when Pub/Sub waits for them.
    pub deadline: Instant,
    /// The deadline passed: Pub/Sub may have given copies to somebody else.
    pub expired: bool,
    /// The deliveries that Pub/Sub said it has taken back while the others are still ours.
    pub lost: HashSet<String>,
    /// How long the lease was when it was last granted.
    pub length: Duration,
    /// The extension that is under way, if there is one, and what it asks for.
    pub extension: Option<(u64, Duration)>,
}

impl Lease {
    /// A new lease of deliveries that came at `received_at`.
    pub fn new(ack_ids: StringArray, received_at: Instant, length: Duration) -> Self {
        let deadline = received_at + length;
        Self { ack_ids, received_at, deadline, expired: false, lost: HashSet::new(), length, extension: None }
    }

    /// How many deliveries it covers.
    pub fn len(&self) -> usize {
        self.ack_ids.len()
    }

    /// Whether it covers none.
    pub fn is_empty(&self) -> bool {
        self.ack_ids.is_empty()
    }

    /// The deliveries from `from` on, `count` of them, as a lease of their own.
    pub fn slice(&self, from: usize, count: usize) -> Self {
        let ack_ids = self.ack_ids.slice(from, count);
        let lost = among(&ack_ids, &self.lost).collect();
        Self { ack_ids, lost, ..*self }
    }

    /// Pub/Sub said that these deliveries are no longer ours. Returns how many of them were, until now.
    pub fn lose(&mut self, gone: &HashSet<String>) -> usize {
        let before = self.no_longer_ours();
        self.lost.extend(among(&self.ack_ids, gone));
        self.no_longer_ours() - before
    }

    /// How many of its deliveries Pub/Sub may give, or has given, to somebody else.
    pub fn no_longer_ours(&self) -> usize {
        if self.expired { self.len() } else { self.lost.len() }
    }
}

fn among(ack_ids: &StringArray, wanted: &HashSet<String>) -> impl Iterator<Item = String> {
    let ids = if wanted.is_empty() { None } else { Some(ack_ids.iter().flatten()) };
    ids.into_iter().flatten().filter(|id| wanted.contains(*id)).map(str::to_owned)
}

/// How long deliveries are held.
#[derive(Clone, Copy, Debug)]
pub struct LeaseTerms {
    /// The least that is asked for.
    pub ack_deadline: Duration,
    /// Extended no longer than this after receipt.
    pub max_lease: Duration,
}

impl LeaseTerms {
    /// Whether to extend now: a third of the lease has passed, so two more tries fit in.
    pub fn is_due(&self, lease: &Lease, now: Instant) -> bool {
        lease.extension.is_none()
            && !lease.expired
            && lease.deadline <= now + lease.length / 3 * 2
            && now < lease.received_at + self.max_lease
    }
}

/// How long deliveries took from receipt to acknowledgement: counts by second, where the past fades.
#[derive(Debug, Default)]
pub struct ProcessingTimes {
    seconds: Vec<u32>,
    total: u32,
}

impl ProcessingTimes {
    /// At so many observations all of them lose half of their weight.
    const FADE_AT: u32 = 10_000;

    /// Deliveries were acknowledged after so long.
    pub fn observe(&mut self, took: Duration) {
        let second =
            usize::try_from(took.as_secs()).map_or(usize::MAX, |s| s + 1).min(LONGEST_LEASE.as_secs() as usize);
        if self.seconds.len() <= second {
            self.seconds.resize(second + 1, 0);
        }
        self.seconds[second] += 1;
        self.total += 1;
        if self.total >= Self::FADE_AT {
            self.seconds.iter_mut().for_each(|count| *count /= 2);
            self.total = self.seconds.iter().sum();
        }
    }

    /// What 99 of 100 did not exceed, rounded up to seconds.
    pub fn percentile_99(&self) -> Duration {
        let above = self.total / 100;
        let mut seen = 0;
        let slow = self.seconds.iter().rposition(|count| {
            seen += count;
            seen > above
        });
        Duration::from_secs(slow.unwrap_or(0) as u64)
    }

    /// How long a lease to ask for: as long as almost all take, at least `least`.
    pub fn lease(&self, least: Duration) -> Duration {
        self.percentile_99().max(least).min(LONGEST_LEASE)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const fn s(seconds: u64) -> Duration {
        Duration::from_secs(seconds)
    }

    #[test]
    fn a_lease_is_as_long_as_almost_all_take_within_bounds() {
        let mut times = ProcessingTimes::default();
        assert_eq!(times.lease(s(10)), s(10));
        for _ in 0..99 {
            times.observe(Duration::from_millis(41_500));
        }
        assert_eq!((times.lease(s(10)), times.lease(s(60))), (s(42), s(60)));
        times.observe(s(5_000));
        assert_eq!(times.lease(s(10)), s(42));
        for _ in 0..5 {
            times.observe(s(5_000));
        }
        assert_eq!(times.lease(s(10)), s(600));
    }

    #[test]
    fn slow_times_of_the_past_fade() {
        let mut times = ProcessingTimes::default();
        for _ in 0..5_000 {
            times.observe(s(300));
        }
        for _ in 0..50_000 {
            times.observe(s(1));
        }
        assert_eq!(times.percentile_99(), s(2));
    }
}
