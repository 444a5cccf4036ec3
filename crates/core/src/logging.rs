//! Log records of the core wait in a bounded channel until somebody drains them; they never block a data path.

use std::collections::VecDeque;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Condvar, Mutex, MutexGuard, Once};
use std::time::Duration;

use log::{LevelFilter, Log, Metadata};

use crate::per_process::PerProcess;

/// How many records may wait; further ones are counted and dropped.
pub const CAPACITY: usize = 10_000;

/// One record, rendered.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Record {
    /// How serious it is.
    pub level: log::Level,
    /// The module that wrote it.
    pub target: String,
    /// The text.
    pub message: String,
}

/// A bounded queue of records.
#[derive(Default)]
struct Channel {
    state: Mutex<State>,
    changed: Condvar,
    overflowed: AtomicU64,
}

#[derive(Default)]
struct State {
    records: VecDeque<Record>,
    closed: bool,
}

impl Channel {
    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(|poisoned| poisoned.into_inner())
    }

    fn push(&self, record: Record) {
        let mut state = self.state();
        if state.records.len() >= CAPACITY {
            self.overflowed.fetch_add(1, Ordering::Relaxed);
            return;
        }
        state.records.push_back(record);
        self.changed.notify_one();
    }

    fn drain(&self, wait: Duration) -> (Vec<Record>, u64) {
        let (mut state, _) = self
            .changed
            .wait_timeout_while(self.state(), wait, |state| state.records.is_empty() && !state.closed)
            .unwrap_or_else(|poisoned| poisoned.into_inner());
        (state.records.drain(..).collect(), self.overflowed.swap(0, Ordering::Relaxed))
    }

    fn close(&self) {
        self.state().closed = true;
        self.changed.notify_all();
    }
}

/// A child must neither report the records that its parent left waiting, nor meet a lock that a thread of the parent
/// held at the fork.
static CHANNELS: PerProcess<Channel> = PerProcess::new();

fn channel() -> &'static Channel {
    CHANNELS.get(Channel::default)
}

/// The sink of the `log` facade.
struct Facade;

impl Log for Facade {
    fn enabled(&self, metadata: &Metadata<'_>) -> bool {
        // The libraries below us (h2, hyper) are chatty and speak of themselves, not of the user's data.
        metadata.target().starts_with("solstice") || metadata.level() <= log::Level::Warn
    }

    fn log(&self, record: &log::Record<'_>) {
        if self.enabled(record.metadata()) {
            channel().push(Record {
                level: record.level(),
                target: record.target().to_owned(),
                message: record.args().to_string(),
            });
        }
    }

    fn flush(&self) {}
}

/// Route the `log` facade into the channel from `level` on; may be called again to change the level.
pub fn install(level: LevelFilter) {
    static INSTALLED: Once = Once::new();
    INSTALLED.call_once(|| {
        // Fails only when another logger is installed, and nothing but this crate could have done that.
        let _ = log::set_logger(&Facade);
        // A panic is caught where Python called, or ends one task; where it came from stands in the log.
        std::panic::set_hook(Box::new(|panic| log::error!("{panic}")));
    });
    log::set_max_level(level);
}

/// Take the waiting records, after `wait` at the latest, and the number that was dropped since the last call.
pub fn drain(wait: Duration) -> (Vec<Record>, u64) {
    channel().drain(wait)
}

/// Let every `drain` of this process return at once from now on: for the end of the process.
pub fn close() {
    channel().close();
}

#[cfg(test)]
mod tests {
    use super::*;

    fn record(message: &str) -> Record {
        Record { level: log::Level::Info, target: "solstice".to_owned(), message: message.to_owned() }
    }

    #[test]
    fn a_full_channel_counts_what_it_drops() {
        let channel = Channel::default();
        for _ in 0..CAPACITY + 7 {
            channel.push(record("x"));
        }
        let (records, overflowed) = channel.drain(Duration::ZERO);
        assert_eq!((records.len(), overflowed), (CAPACITY, 7));
        assert_eq!(channel.drain(Duration::ZERO), (vec![], 0));
    }

    #[test]
    fn draining_an_empty_channel_ends_after_its_wait() {
        let channel = Channel::default();
        assert_eq!(channel.drain(Duration::from_millis(1)), (vec![], 0));
    }

    #[test]
    fn a_closed_channel_ends_the_wait_and_still_gives_what_it_holds() {
        let channel = Channel::default();
        std::thread::scope(|scope| {
            let waiting = scope.spawn(|| channel.drain(Duration::from_secs(60)));
            channel.close();
            assert_eq!(waiting.join().unwrap(), (vec![], 0));
        });
        channel.push(record("late"));
        assert_eq!(channel.drain(Duration::from_secs(60)), (vec![record("late")], 0));
    }
}
