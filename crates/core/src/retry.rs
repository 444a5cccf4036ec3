//! How long to wait before trying again.

use std::time::Duration;

use tonic::Code;

const FIRST: Duration = Duration::from_millis(100);
const LONGEST: Duration = Duration::from_secs(10);

/// Whether a call that ended so may succeed when it is made again.
pub fn is_transient(code: Code) -> bool {
    matches!(
        code,
        Code::DeadlineExceeded
            | Code::ResourceExhausted
            | Code::Aborted
            | Code::Internal
            | Code::Unavailable
            | Code::Unknown
            // What tonic makes of a connection that is closed under a call.
            | Code::Cancelled
    )
}

/// Exponential, jittered, capped.
#[derive(Clone, Copy, Debug, Default)]
pub struct Backoff {
    failures: u32,
}

impl Backoff {
    /// The wait after one more failure: half of it fixed, half of it random.
    pub fn next_delay(&mut self) -> Duration {
        let ceiling = FIRST.saturating_mul(1 << self.failures.min(10)).min(LONGEST);
        self.failures += 1;
        ceiling.mul_f64(0.5 + fastrand::f64() / 2.0)
    }

    /// Something succeeded: start over.
    pub fn reset(&mut self) {
        self.failures = 0;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn delays_grow_to_the_cap_and_start_over() {
        let mut backoff = Backoff::default();
        let first = backoff.next_delay();
        assert!(first >= FIRST / 2 && first <= FIRST, "{first:?}");
        for _ in 0..50 {
            assert!(backoff.next_delay() <= LONGEST);
        }
        assert!(backoff.next_delay() >= LONGEST / 2);
        backoff.reset();
        assert!(backoff.next_delay() <= FIRST);
    }
}
