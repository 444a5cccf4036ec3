//! What a topic keeps of the messages published to it: for its own retention, and for the snapshots taken of its
//! subscriptions. A topic with neither keeps nothing.

use std::collections::{BTreeMap, VecDeque};
use std::time::Duration;

use super::clock::Time;
use super::message::Message;

/// Names the moment a snapshot was taken at.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Mark(u64);

/// The messages kept, in the order they came.
#[derive(Debug, Default)]
pub struct History {
    messages: VecDeque<Message>,
    /// The place of the first one among all that were ever kept.
    first: u64,
    retention: Option<Duration>,
    /// For each snapshot, the place of the first message after it.
    marks: BTreeMap<Mark, u64>,
    mark_serial: u64,
}

impl History {
    /// Keep messages so long, or only for snapshots.
    pub fn set_retention(&mut self, retention: Option<Duration>) {
        self.retention = retention;
    }

    /// What was kept before the emulator started, in the order it came.
    pub fn restore(&mut self, messages: impl IntoIterator<Item = Message>) {
        self.messages.extend(messages);
    }

    /// Messages were published. The subscriptions must have them already.
    pub fn push(&mut self, messages: &[Message], now: Time) {
        if self.retention.is_some() || !self.marks.is_empty() {
            self.messages.extend(messages.iter().cloned());
        }
        self.prune(now);
    }

    /// Keep everything from now on. Read the subscription's messages after this: then none is missed.
    pub fn mark(&mut self) -> Mark {
        self.mark_serial += 1;
        let mark = Mark(self.mark_serial);
        self.marks.insert(mark, self.first + self.messages.len() as u64);
        mark
    }

    /// A snapshot is gone.
    pub fn unmark(&mut self, mark: Mark) {
        self.marks.remove(&mark);
        if self.marks.is_empty() && self.retention.is_none() {
            self.first += self.messages.len() as u64;
            self.messages = VecDeque::new();
        }
    }

    /// What came after a mark.
    pub fn since_mark(&self, mark: Mark) -> Vec<Message> {
        let Some(place) = self.marks.get(&mark) else { return Vec::new() };
        self.messages.iter().skip((place - self.first) as usize).cloned().collect()
    }

    /// What was published since a moment, as far as the topic's retention goes back.
    pub fn since(&self, time: Time, now: Time) -> Vec<Message> {
        let Some(retention) = self.retention else { return Vec::new() };
        let horizon = now.minus(retention);
        let kept = self.messages.iter().filter(|message| message.published >= time && message.published > horizon);
        kept.cloned().collect()
    }

    fn prune(&mut self, now: Time) {
        let horizon = self.retention.map(|retention| now.minus(retention));
        let first_marked = self.marks.values().min().copied().unwrap_or(u64::MAX);
        while let Some(front) = self.messages.front()
            && self.first < first_marked
            && horizon.is_none_or(|horizon| front.published <= horizon)
        {
            self.messages.pop_front();
            self.first += 1;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::state::tests::{message_at, time};
    use super::*;

    fn ids(messages: Vec<Message>) -> Vec<u64> {
        messages.iter().map(|message| message.id).collect()
    }

    #[test]
    fn without_retention_and_snapshots_nothing_is_kept() {
        let mut history = History::default();
        history.push(&[message_at(1, 1)], time(1));
        assert!(history.messages.is_empty());
        assert!(history.since(time(0), time(1)).is_empty());
    }

    #[test]
    fn the_retention_bounds_how_far_back_one_can_go() {
        let mut history = History::default();
        history.set_retention(Some(Duration::from_secs(10)));
        (1..=4).for_each(|n| history.push(&[message_at(n, n * 5)], time(n * 5)));
        assert_eq!(ids(history.since(time(0), time(20))), [3, 4]);
        assert_eq!(ids(history.since(time(20), time(20))), [4]);
        assert_eq!(history.messages.len(), 2);
    }

    #[test]
    fn a_mark_keeps_what_comes_after_it_until_it_goes() {
        let mut history = History::default();
        let first = history.mark();
        history.push(&[message_at(1, 1)], time(1));
        let second = history.mark();
        history.push(&[message_at(2, 2), message_at(3, 2)], time(2));
        assert_eq!(ids(history.since_mark(first)), [1, 2, 3]);
        assert_eq!(ids(history.since_mark(second)), [2, 3]);
        assert!(history.since(time(0), time(2)).is_empty(), "kept for snapshots only");
        history.unmark(first);
        history.push(&[message_at(4, 3)], time(3));
        assert_eq!((ids(history.since_mark(second)), history.messages.len()), (vec![2, 3, 4], 3));
        history.unmark(second);
        assert!(history.messages.is_empty());
    }
}
