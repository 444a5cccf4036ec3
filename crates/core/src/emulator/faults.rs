//! Faults that tests ask for, and how often each call came.

use std::collections::{BTreeMap, VecDeque};
use std::num::NonZeroU64;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, MutexGuard};
use std::time::Duration;

use tonic::{Code, Status};

use super::sync::lock;

/// What is to happen to a call.
#[derive(Debug, Default)]
pub struct Fault {
    /// It waits first.
    pub delay: Option<Duration>,
    /// It fails.
    pub answer: Option<Status>,
}

/// Cut every stream after so many messages.
#[derive(Clone, Copy, Debug)]
struct Cut {
    after: u64,
    /// How often; nothing means always.
    left: Option<u64>,
}

#[derive(Debug, Default)]
struct Asked {
    answers: BTreeMap<&'static str, VecDeque<(Code, u64)>>,
    delays: BTreeMap<&'static str, VecDeque<(Duration, u64)>>,
    cut: Option<Cut>,
    duplicate_every: Option<NonZeroU64>,
    dropped_acks: u64,
}

/// The faults asked for. Without any, a call costs one look at a flag.
#[derive(Debug, Default)]
pub struct Faults {
    any: AtomicBool,
    asked: Mutex<Asked>,
    calls: Mutex<BTreeMap<&'static str, u64>>,
}

impl Faults {
    /// Answer the next calls of a method with a code.
    pub fn answer(&self, method: &'static str, code: Code, times: u64) {
        self.ask(|asked| asked.answers.entry(method).or_default().push_back((code, times)));
    }

    /// Let the next calls of a method wait.
    pub fn delay(&self, method: &'static str, delay: Duration, times: u64) {
        self.ask(|asked| asked.delays.entry(method).or_default().push_back((delay, times)));
    }

    /// End streams with UNAVAILABLE after so many messages, so many times; without `times`, always.
    pub fn cut_streams(&self, after: u64, times: Option<u64>) {
        self.ask(|asked| asked.cut = Some(Cut { after, left: times }));
    }

    /// Deliver every n-th message twice.
    pub fn duplicate(&self, every: NonZeroU64) {
        self.ask(|asked| asked.duplicate_every = Some(every));
    }

    /// Answer the next acknowledge requests with OK and forget them.
    pub fn drop_acks(&self, times: u64) {
        self.ask(|asked| asked.dropped_acks += times);
    }

    /// No faults any more.
    pub fn clear(&self) {
        let mut asked = lock(&self.asked);
        *asked = Asked::default();
        self.any.store(false, Ordering::Release);
    }

    /// Count a call, and say what is to happen to it.
    pub fn on_call(&self, method: &'static str) -> Option<Fault> {
        *lock(&self.calls).entry(method).or_default() += 1;
        let mut asked = self.asked()?;
        let delay = asked.delays.get_mut(method).and_then(next);
        let code = asked.answers.get_mut(method).and_then(next);
        let answer = code.map(|code| Status::new(code, "A fault that the test asked for."));
        Some(Fault { delay, answer })
    }

    /// How often each method was called.
    pub fn calls(&self) -> BTreeMap<&'static str, u64> {
        lock(&self.calls).clone()
    }

    /// After how many messages a stream is cut now.
    pub fn cut_after(&self) -> Option<u64> {
        self.asked()?.cut.filter(|cut| cut.left != Some(0)).map(|cut| cut.after)
    }

    /// A stream is cut.
    pub fn count_cut(&self) {
        if let Some(mut asked) = self.asked()
            && let Some(Cut { left: Some(left), .. }) = &mut asked.cut
        {
            *left = left.saturating_sub(1);
        }
    }

    /// Every so many messages one is delivered twice.
    pub fn duplicate_every(&self) -> Option<NonZeroU64> {
        self.asked()?.duplicate_every
    }

    /// Whether to forget this acknowledge request.
    pub fn drops_acks(&self) -> bool {
        let Some(mut asked) = self.asked() else { return false };
        let drops = asked.dropped_acks > 0;
        asked.dropped_acks -= u64::from(drops);
        drops
    }

    fn ask(&self, change: impl FnOnce(&mut Asked)) {
        change(&mut lock(&self.asked));
        self.any.store(true, Ordering::Release);
    }

    fn asked(&self) -> Option<MutexGuard<'_, Asked>> {
        self.any.load(Ordering::Acquire).then(|| lock(&self.asked))
    }
}

/// The first that has times left, one of them used up.
fn next<T: Copy>(queue: &mut VecDeque<(T, u64)>) -> Option<T> {
    while let Some((value, left)) = queue.front_mut() {
        if *left > 0 {
            *left -= 1;
            return Some(*value);
        }
        queue.pop_front();
    }
    None
}

#[cfg(test)]
mod tests {
    use super::*;

    fn codes(faults: &Faults, method: &'static str, calls: usize) -> Vec<Option<Code>> {
        let answer = |_| faults.on_call(method).and_then(|fault| fault.answer).map(|status| status.code());
        (0..calls).map(answer).collect()
    }

    #[test]
    fn answers_come_in_turn_and_only_for_their_method() {
        let faults = Faults::default();
        assert_eq!(codes(&faults, "Publish", 1), [None]);
        faults.answer("Publish", Code::Unavailable, 2);
        faults.answer("Publish", Code::Internal, 1);
        assert_eq!(codes(&faults, "Pull", 1), [None]);
        let expected = [Some(Code::Unavailable), Some(Code::Unavailable), Some(Code::Internal), None];
        assert_eq!(codes(&faults, "Publish", 4), expected);
        assert_eq!(faults.calls(), BTreeMap::from([("Publish", 5), ("Pull", 1)]));
    }

    #[test]
    fn cuts_and_dropped_acks_are_used_up_and_clear_ends_all() {
        let faults = Faults::default();
        faults.cut_streams(3, Some(1));
        assert_eq!(faults.cut_after(), Some(3));
        faults.count_cut();
        assert_eq!(faults.cut_after(), None);
        faults.cut_streams(3, None);
        faults.count_cut();
        assert_eq!(faults.cut_after(), Some(3));
        faults.drop_acks(1);
        assert_eq!([faults.drops_acks(), faults.drops_acks()], [true, false]);
        faults.drop_acks(1);
        faults.clear();
        assert_eq!((faults.cut_after(), faults.drops_acks(), faults.duplicate_every()), (None, false, None));
    }
}
