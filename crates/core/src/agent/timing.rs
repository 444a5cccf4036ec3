//! When to cut a batch, and when a run that drains its subscription is over. Pure state: the time comes in as an argument.

use std::time::{Duration, Instant};

use crate::agent::book::Offset;

/// How often a batch that is not full looks whether more keeps coming. It is all that a lone message waits.
const TICK: Duration = Duration::from_millis(25);
/// So many rows within a tick are a backlog on its way, worth waiting for; a steady stream of messages is not.
const BURST_ROWS: usize = 1_000;
/// The longest wait for a fuller batch.
const LONGEST: Duration = Duration::from_millis(200);

/// The wait for a fuller batch: the first rows of a backlog come alone, and the rest right behind them.
#[derive(Debug, Default)]
pub struct Linger {
    /// When the first rows were seen; when it last looked, and how many there were.
    state: Option<(Instant, Instant, usize)>,
}

impl Linger {
    /// There are `rows` rows: None to cut them now, or when to look again.
    pub fn until(&mut self, rows: usize, now: Instant) -> Option<Instant> {
        let (first, looked, before) = *self.state.get_or_insert((now, now, rows));
        if now < looked + TICK {
            return Some(looked + TICK);
        }
        if rows < before + BURST_ROWS || now >= first + LONGEST {
            return None;
        }
        self.state = Some((first, now, rows));
        Some(now + TICK)
    }
}

/// How long acknowledgements may go unanswered before the run ends without them.
const ACK_PATIENCE: Duration = Duration::from_secs(30);

/// A run that reads what was there at its start ("early" rows) and then ends. Later rows come along with early ones, but
/// do not keep it alive.
#[derive(Debug)]
pub struct Drain {
    idle: Duration,
    start: Option<Offset>,
    asked_at: Instant,
    quiet_since: Instant,
    breaks: u64,
    early_at: Instant,
    /// A batch without early rows was cut since.
    starved: bool,
}

impl Drain {
    /// It ends when nothing early has come for `idle`.
    pub fn new(idle: Duration, now: Instant) -> Self {
        Self { idle, start: None, asked_at: now, quiet_since: now, breaks: 0, early_at: now, starved: false }
    }

    /// Spark asks for what follows `start`. It may have to ask more than once.
    pub fn ask(&mut self, start: &Offset, now: Instant) {
        if self.start.as_ref() != Some(start) {
            self.start = Some(start.clone());
            (self.asked_at, self.quiet_since) = (now, now);
        }
    }

    /// Whether to cut what is in the buffer.
    pub fn may_cut(&mut self, has_early: bool, is_full: bool, now: Instant) -> bool {
        if has_early {
            (self.early_at, self.starved) = (now, false);
            return true;
        }
        if is_full && !self.is_flooded(is_full, now) {
            // Early rows cannot come before there is room for them.
            self.starved = true;
            return true;
        }
        false
    }

    /// Whether later rows fill the buffer again and again while no early one comes.
    fn is_flooded(&self, is_full: bool, now: Instant) -> bool {
        is_full && self.starved && now >= self.early_at + self.idle
    }

    /// Whether the run is over, given that there is nothing to cut. `breaks`: how often a stream broke, None while one is
    /// broken; `acking`: acknowledgements without an answer.
    pub fn is_over(&mut self, breaks: Option<u64>, acking: u64, is_full: bool, now: Instant) -> bool {
        let unanswered = acking > 0 && now < self.asked_at + ACK_PATIENCE;
        if unanswered || breaks != Some(self.breaks) {
            self.quiet_since = now;
            self.breaks = breaks.unwrap_or(self.breaks);
        }
        now >= self.quiet_since + self.idle || (self.is_flooded(is_full, now) && !unanswered)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const fn ms(millis: u64) -> Duration {
        Duration::from_millis(millis)
    }

    fn offset(seq: u64) -> Offset {
        Offset { epoch: "life".into(), seq }
    }

    #[test]
    fn a_lone_message_waits_for_one_tick() {
        let (mut linger, now) = (Linger::default(), Instant::now());
        assert_eq!(linger.until(1, now), Some(now + TICK));
        assert_eq!(linger.until(30, now + ms(10)), Some(now + TICK));
        assert_eq!(linger.until(900, now + TICK), None);
    }

    #[test]
    fn a_backlog_is_waited_for_while_it_comes_but_not_for_ever() {
        let (mut linger, mut now) = (Linger::default(), Instant::now());
        let first = now;
        let mut rows = 1;
        while let Some(then) = linger.until(rows, now) {
            (now, rows) = (then, rows + BURST_ROWS);
        }
        assert_eq!(now - first, LONGEST);
        let mut linger = Linger::default();
        assert_eq!(linger.until(1, now), Some(now + TICK));
        assert_eq!(linger.until(5_000, now + TICK), Some(now + 2 * TICK));
        assert_eq!(linger.until(5_100, now + 2 * TICK), None);
    }

    #[test]
    fn a_run_ends_when_nothing_early_came_for_a_while_after_the_last_batch() {
        let now = Instant::now();
        let mut drain = Drain::new(ms(500), now);
        drain.ask(&offset(0), now);
        assert!(!drain.is_over(Some(0), 0, false, now + ms(499)));
        assert!(drain.may_cut(true, false, now + ms(499)));
        drain.ask(&offset(1), now + ms(600));
        assert!(!drain.may_cut(false, false, now + ms(700)));
        assert!(!drain.is_over(Some(0), 0, false, now + ms(1_099)));
        drain.ask(&offset(1), now + ms(1_099));
        assert!(drain.is_over(Some(0), 0, false, now + ms(1_100)));
    }

    #[test]
    fn a_run_waits_for_streams_and_for_the_answers_to_its_acknowledgements_but_not_for_ever() {
        let now = Instant::now();
        let mut drain = Drain::new(ms(500), now);
        drain.ask(&offset(1), now);
        assert!(!drain.is_over(Some(0), 9, false, now + ms(400)));
        assert!(!drain.is_over(None, 0, false, now + ms(800)));
        assert!(!drain.is_over(Some(1), 0, false, now + ms(1_400)));
        assert!(!drain.is_over(Some(1), 0, false, now + ms(1_899)));
        assert!(drain.is_over(Some(1), 0, false, now + ms(1_900)));
        drain.ask(&offset(2), now);
        assert!(!drain.is_over(Some(1), 9, false, now + ACK_PATIENCE - ms(1)));
        assert!(drain.is_over(Some(1), 9, false, now + ACK_PATIENCE + ms(500)));
    }

    #[test]
    fn later_rows_are_cut_where_they_leave_no_room_but_a_flood_of_them_ends_the_run() {
        let now = Instant::now();
        let mut drain = Drain::new(ms(500), now);
        drain.ask(&offset(0), now);
        assert!(drain.may_cut(false, true, now + ms(700)));
        drain.ask(&offset(1), now + ms(800));
        assert!(!drain.may_cut(false, true, now + ms(900)));
        assert!(drain.is_over(Some(0), 0, true, now + ms(900)));
        assert!(drain.may_cut(true, true, now + ms(900)));
        drain.ask(&offset(2), now + ms(1_000));
        assert!(drain.may_cut(false, true, now + ms(1_100)));
    }
}
