//! A subscription under a clock that the test turns.

use std::collections::HashSet;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::task::Wake;

use prost::Message as _;

use super::*;
use crate::emulator::message::Publish;
use crate::pubsub::wire::{PublishRequest, PubsubMessage};

pub(super) const UNLIMITED: FlowControl = FlowControl { max_messages: None, max_bytes: None };
pub(super) const LEASE: Duration = Duration::from_secs(10);

/// The moment this many seconds after the start.
pub fn time(seconds: u64) -> Time {
    Time::since_epoch(Duration::from_secs(seconds))
}

/// A message of this id and ordering key.
pub fn entry(id: u64, key: &str) -> Entry {
    Entry::new(message(id, key))
}

pub(super) fn message(id: u64, key: &str) -> Message {
    sized_message(id, key, 100)
}

fn sized_message(id: u64, key: &str, data_bytes: usize) -> Message {
    let data = vec![b'x'; data_bytes].into();
    let wire = PubsubMessage { data, ordering_key: key.to_owned(), ..Default::default() };
    let request = PublishRequest { topic: String::new(), messages: vec![wire] };
    let publish = Publish::decode(request.encode_to_vec().into()).unwrap();
    publish.stamp(id, time(1)).unwrap().remove(0)
}

/// A message published at this second.
pub fn message_at(id: u64, seconds: u64) -> Message {
    keyed_message_at(id, "", seconds)
}

pub(super) fn keyed_message_at(id: u64, key: &str, seconds: u64) -> Message {
    let mut message = message(id, key);
    message.published = time(seconds);
    message
}

pub(super) fn unordered() -> State {
    State::new(false, Policy::default())
}

pub(super) fn ordered() -> State {
    State::new(true, Policy::default())
}

fn with_messages(ids: std::ops::Range<u64>) -> State {
    let mut state = unordered();
    state.push(&ids.map(|id| message(id, "")).collect::<Vec<_>>());
    state
}

/// What a stream gets: deliveries with the id of their message. Nothing is an empty list.
pub(super) fn take(state: &mut State, stream: StreamId, seconds: u64) -> Vec<(DeliveryId, u64)> {
    match state.take(stream, Terms::default(), time(seconds), Waker::noop()) {
        Taken::Batch(batch) => batch
            .deliveries
            .into_iter()
            .map(|delivery| {
                let message = PubsubMessage::decode(delivery.message).unwrap();
                (delivery.id, message.message_id.parse().unwrap())
            })
            .collect(),
        Taken::Nothing => Vec::new(),
        Taken::Ended(end) => panic!("the stream ended: {end:?}"),
    }
}

pub(super) fn ids(taken: &[(DeliveryId, u64)]) -> Vec<u64> {
    taken.iter().map(|(_, id)| *id).collect()
}

#[derive(Default)]
pub(super) struct Count(AtomicUsize);

impl Wake for Count {
    fn wake(self: Arc<Self>) {
        self.0.fetch_add(1, Ordering::Relaxed);
    }
}

/// Let a stream find nothing, so that it waits; the count tells how often it was woken.
pub(super) fn wait_on(state: &mut State, stream: StreamId) -> Arc<Count> {
    let count = Arc::new(Count::default());
    assert!(matches!(state.take(stream, Terms::default(), time(0), &Waker::from(count.clone())), Taken::Nothing));
    count
}

pub(super) fn wake(state: &mut State) -> usize {
    let wakers = state.wakers();
    let count = wakers.len();
    wakers.into_iter().for_each(Waker::wake);
    count
}

#[test]
fn messages_go_out_in_the_order_of_publishing_and_an_ack_ends_them() {
    let mut state = with_messages(1..4);
    let stream = state.open_stream(UNLIMITED, LEASE);
    let taken = take(&mut state, stream, 0);
    assert_eq!(ids(&taken), [1, 2, 3]);
    assert!(state.acknowledge(taken[1].0));
    assert!(!state.acknowledge(taken[1].0), "a second ack does nothing");
    let expected = Counters { outstanding: 2, acked: 1, delivered: 3, ..Counters::default() };
    assert_eq!(state.counters(), expected);
    assert_eq!(state.acked_ids(), [2]);
}

#[test]
fn an_expired_lease_is_delivered_again_under_another_id_and_its_late_ack_does_nothing() {
    let mut state = with_messages(1..2);
    let stream = state.open_stream(UNLIMITED, LEASE);
    let first = take(&mut state, stream, 0);
    state.expire(time(9));
    assert!(take(&mut state, stream, 9).is_empty());
    state.expire(time(10));
    assert_eq!(state.counters().backlog, 1);
    assert!(!state.acknowledge(first[0].0));
    let second = take(&mut state, stream, 10);
    assert_eq!(ids(&second), [1]);
    assert_ne!(first[0].0, second[0].0);
    let expected = Counters { outstanding: 1, expired: 1, delivered: 2, redelivered: 1, ..Counters::default() };
    assert_eq!(state.counters(), expected);
}

#[test]
fn a_changed_deadline_counts_from_now_and_may_be_sooner() {
    let mut state = with_messages(1..3);
    let stream = state.open_stream(UNLIMITED, LEASE);
    let taken = take(&mut state, stream, 0);
    assert!(state.modify_deadline(taken[0].0, Duration::from_secs(60), time(5)));
    assert!(state.modify_deadline(taken[1].0, Duration::from_secs(1), time(5)));
    state.expire(time(6));
    assert_eq!(ids(&take(&mut state, stream, 6)), [2]);
    state.expire(time(64));
    assert_eq!(state.counters().expired, 2, "the second delivery of 2, but not 1");
    assert!(state.acknowledge(taken[0].0));
}

#[test]
fn a_nack_gives_the_message_back_at_once() {
    let mut state = with_messages(1..2);
    let stream = state.open_stream(UNLIMITED, LEASE);
    let taken = take(&mut state, stream, 0);
    assert!(state.modify_deadline(taken[0].0, Duration::ZERO, time(1)));
    assert!(!state.modify_deadline(taken[0].0, Duration::ZERO, time(1)));
    assert_eq!(ids(&take(&mut state, stream, 1)), [1]);
    assert_eq!((state.counters().nacked, state.counters().redelivered), (1, 1));
}

#[test]
fn a_message_that_always_comes_back_does_not_hold_up_the_others() {
    let mut state = with_messages(1..4);
    let one = FlowControl { max_messages: Some(1), max_bytes: None };
    let stream = state.open_stream(one, LEASE);
    let mut others = HashSet::new();
    for _ in 0..10 {
        let taken = take(&mut state, stream, 0);
        if taken[0].1 == 1 {
            state.modify_deadline(taken[0].0, Duration::ZERO, time(0));
        } else {
            others.insert(taken[0].1);
            state.acknowledge(taken[0].0);
        }
    }
    assert_eq!(others, HashSet::from([2, 3]));
}

#[test]
fn flow_control_by_messages_counts_what_is_outstanding() {
    let mut state = with_messages(1..11);
    let stream = state.open_stream(FlowControl { max_messages: Some(3), max_bytes: None }, LEASE);
    let taken = take(&mut state, stream, 0);
    assert_eq!(taken.len(), 3);
    assert!(take(&mut state, stream, 0).is_empty());
    state.acknowledge(taken[0].0);
    assert_eq!(take(&mut state, stream, 0).len(), 1);
    state.expire(time(10));
    assert_eq!(take(&mut state, stream, 10).len(), 3);
}

#[test]
fn flow_control_by_bytes_lets_a_larger_message_out_alone() {
    let size = message(1, "").size_bytes();
    let mut state = with_messages(1..6);
    let two = state.open_stream(FlowControl { max_messages: None, max_bytes: Some(2 * size) }, LEASE);
    assert_eq!(take(&mut state, two, 0).len(), 2);
    let tiny = state.open_stream(FlowControl { max_messages: None, max_bytes: Some(1) }, LEASE);
    assert_eq!(take(&mut state, tiny, 0).len(), 1);
    assert!(take(&mut state, tiny, 0).is_empty());
}

#[test]
fn a_response_of_several_messages_stays_below_its_bounds() {
    let mut state = with_messages(0..2_500);
    let stream = state.open_stream(UNLIMITED, LEASE);
    assert_eq!(take(&mut state, stream, 0).len(), MAX_BATCH_MESSAGES);
    let large = sized_message(1, "", 10_000);
    let mut state = unordered();
    state.push(&vec![large.clone(); 100]);
    let stream = state.open_stream(UNLIMITED, LEASE);
    assert_eq!(take(&mut state, stream, 0).len(), MAX_BATCH_BYTES / large.size_bytes());
}

#[test]
fn a_waiting_stream_is_woken_once_for_new_messages() {
    let mut state = unordered();
    let stream = state.open_stream(UNLIMITED, LEASE);
    let woken = wait_on(&mut state, stream);
    assert_eq!(wake(&mut state), 0);
    state.push(&[message(1, "")]);
    assert_eq!((wake(&mut state), wake(&mut state)), (1, 0));
    assert_eq!(woken.0.load(Ordering::Relaxed), 1);
}

#[test]
fn a_stream_at_its_limit_is_woken_by_an_ack_and_not_by_new_messages() {
    let mut state = with_messages(1..3);
    let stream = state.open_stream(FlowControl { max_messages: Some(1), max_bytes: None }, LEASE);
    let taken = take(&mut state, stream, 0);
    wait_on(&mut state, stream);
    state.push(&[message(3, "")]);
    assert_eq!(wake(&mut state), 0);
    state.acknowledge(taken[0].0);
    assert_eq!(wake(&mut state), 1);
}

#[test]
fn waiting_streams_share_what_comes() {
    let mut state = unordered();
    let streams: Vec<_> = (0..4).map(|_| state.open_stream(UNLIMITED, LEASE)).collect();
    streams.iter().for_each(|stream| drop(wait_on(&mut state, *stream)));
    state.push(&(0..100).map(|id| message(id, "")).collect::<Vec<_>>());
    assert_eq!(wake(&mut state), 4);
    let counts: Vec<usize> = streams.iter().map(|stream| take(&mut state, *stream, 0).len()).collect();
    assert_eq!(counts, [25, 25, 25, 25]);
}

#[test]
fn single_messages_go_to_the_waiting_streams_in_turn() {
    let mut state = unordered();
    let streams = [state.open_stream(UNLIMITED, LEASE), state.open_stream(UNLIMITED, LEASE)];
    let woken = streams.map(|stream| wait_on(&mut state, stream));
    for id in 0..6 {
        state.push(&[message(id, "")]);
        assert_eq!(wake(&mut state), 1);
        let index = woken.iter().position(|count| count.0.swap(0, Ordering::Relaxed) == 1).unwrap();
        assert_eq!(index as u64, id % 2);
        assert_eq!(take(&mut state, streams[index], 0).len(), 1);
        assert!(matches!(
            state.take(streams[index], Terms::default(), time(0), &Waker::from(woken[index].clone())),
            Taken::Nothing
        ));
    }
}

#[test]
fn a_woken_stream_that_closes_leaves_its_messages_to_the_others() {
    let mut state = unordered();
    let first = state.open_stream(UNLIMITED, LEASE);
    let second = state.open_stream(UNLIMITED, LEASE);
    wait_on(&mut state, first);
    let woken = wait_on(&mut state, second);
    state.push(&[message(1, "")]);
    assert_eq!(wake(&mut state), 1);
    assert_eq!(woken.0.load(Ordering::Relaxed), 0);
    state.close_stream(first);
    assert_eq!(wake(&mut state), 1);
    assert_eq!(woken.0.load(Ordering::Relaxed), 1);
    assert_eq!(ids(&take(&mut state, second, 0)), [1]);
}

#[test]
fn the_leases_of_a_closed_stream_go_on_until_they_expire() {
    let mut state = with_messages(1..3);
    let first = state.open_stream(UNLIMITED, LEASE);
    let taken = take(&mut state, first, 0);
    state.close_stream(first);
    let second = state.open_stream(UNLIMITED, LEASE);
    assert!(take(&mut state, second, 5).is_empty());
    assert!(state.acknowledge(taken[0].0));
    state.expire(time(10));
    assert_eq!(ids(&take(&mut state, second, 10)), [2]);
}

#[test]
fn an_ended_stream_is_woken_and_told_why_also_at_its_limit() {
    let mut state = with_messages(1..3);
    let waiting = state.open_stream(UNLIMITED, LEASE);
    let full = state.open_stream(FlowControl { max_messages: Some(1), max_bytes: None }, LEASE);
    assert_eq!(take(&mut state, full, 0).len(), 1);
    wait_on(&mut state, full);
    assert_eq!(take(&mut state, waiting, 0).len(), 1);
    wait_on(&mut state, waiting);
    state.end(&End::Deleted);
    state.end_stream(full, End::Stopped);
    assert_eq!(wake(&mut state), 2);
    let late = state.open_stream(UNLIMITED, LEASE);
    for stream in [waiting, full, late] {
        assert!(matches!(state.take(stream, Terms::default(), time(0), Waker::noop()), Taken::Ended(End::Deleted)));
    }
}

#[test]
fn the_timer_moves_only_for_a_sooner_deadline() {
    let mut state = with_messages(1..3);
    assert_eq!(state.set_timer(), None);
    let stream = state.open_stream(FlowControl { max_messages: Some(1), max_bytes: None }, LEASE);
    let first = take(&mut state, stream, 0);
    assert!(state.timer_is_late());
    assert_eq!(state.set_timer(), Some(time(10)));
    state.acknowledge(first[0].0);
    let second = take(&mut state, stream, 1);
    assert!(!state.timer_is_late(), "11 s is later than 10 s");
    state.modify_deadline(second[0].0, Duration::from_secs(2), time(1));
    assert!(state.timer_is_late());
}

#[test]
fn without_ordering_a_key_means_nothing() {
    let mut state = unordered();
    state.push(&[message(1, "k"), message(2, "k")]);
    let first = state.open_stream(FlowControl { max_messages: Some(1), max_bytes: None }, LEASE);
    let second = state.open_stream(UNLIMITED, LEASE);
    assert_eq!(ids(&take(&mut state, first, 0)), [1]);
    assert_eq!(ids(&take(&mut state, second, 0)), [2]);
}

#[test]
fn a_key_stays_with_one_stream_while_any_of_its_messages_is_leased() {
    let mut state = ordered();
    state.push(&[message(1, "k"), message(2, "k")]);
    let first = state.open_stream(FlowControl { max_messages: Some(1), max_bytes: None }, LEASE);
    let second = state.open_stream(UNLIMITED, LEASE);
    let taken = take(&mut state, first, 0);
    assert_eq!(ids(&taken), [1]);
    assert!(take(&mut state, second, 0).is_empty());
    state.acknowledge(taken[0].0);
    assert_eq!(wake(&mut state), 1, "the key is free again");
    assert_eq!(ids(&take(&mut state, second, 0)), [2]);
}

#[test]
fn what_comes_back_takes_the_later_messages_of_its_key_along() {
    let mut state = ordered();
    state.push(&[message(1, "k"), message(2, "k"), message(3, "k"), message(4, "other"), message(5, "")]);
    let stream = state.open_stream(UNLIMITED, LEASE);
    let taken = take(&mut state, stream, 0);
    let delivery = |id| taken.iter().find(|(_, other)| *other == id).unwrap().0;
    state.push(&[message(6, "k")]);
    assert!(state.modify_deadline(delivery(2), Duration::ZERO, time(0)));
    assert!(!state.acknowledge(delivery(3)), "its lease ended with that of 2");
    assert_eq!(state.counters().nacked, 2);
    let again = take(&mut state, stream, 0);
    assert_eq!(ids(&again), [2, 3, 6]);
    assert!(state.acknowledge(delivery(1)) && state.acknowledge(delivery(4)) && state.acknowledge(delivery(5)));
    again.iter().for_each(|(id, _)| assert!(state.acknowledge(*id)));
    assert_eq!(state.acked_ids(), [1, 2, 3, 4, 5, 6]);
    assert_eq!(state.counters().outstanding + state.counters().backlog, 0);
}

#[test]
fn a_key_on_a_closed_stream_waits_for_the_leases_to_end() {
    let mut state = ordered();
    state.push(&[message(1, "k")]);
    let first = state.open_stream(UNLIMITED, LEASE);
    take(&mut state, first, 0);
    state.close_stream(first);
    state.push(&[message(2, "k")]);
    let second = state.open_stream(UNLIMITED, LEASE);
    assert!(take(&mut state, second, 1).is_empty());
    state.expire(time(10));
    assert_eq!(ids(&take(&mut state, second, 10)), [1, 2]);
}

/// Random streams, acks, nacks and expiries: whatever happens, no message of a key is delivered before the earlier
/// ones were, and in the end all can be acked.
#[test]
fn keys_keep_their_order_under_random_histories() {
    for seed in 0..300 {
        let mut random = fastrand::Rng::with_seed(seed);
        let mut state = ordered();
        let mut now = 0;
        let mut published = 0;
        let mut held: Vec<DeliveryId> = Vec::new();
        let mut delivered: HashSet<u64> = HashSet::new();
        let key_of = |id: u64| ["", "a", "b", "c"][(id % 4) as usize];
        let mut receive = |state: &mut State, stream, now| {
            let taken = take(state, stream, now);
            for (_, id) in &taken {
                let earlier = (0..*id).filter(|other| !key_of(*id).is_empty() && other % 4 == id % 4);
                earlier.for_each(|other| assert!(delivered.contains(&other), "seed {seed}: {id} before {other}"));
                delivered.insert(*id);
            }
            taken.into_iter().map(|(delivery, _)| delivery).collect::<Vec<_>>()
        };
        let mut streams = vec![state.open_stream(UNLIMITED, LEASE)];
        for _ in 0..400 {
            match random.u8(0..8) {
                0 => {
                    let next = published + random.u64(1..6);
                    state.push(&(published..next).map(|id| message(id, key_of(id))).collect::<Vec<_>>());
                    published = next;
                }
                1 => {
                    let flow = FlowControl { max_messages: Some(random.usize(1..5)), max_bytes: None };
                    streams.push(state.open_stream(flow, LEASE));
                }
                2 if streams.len() > 1 => {
                    state.close_stream(streams.swap_remove(random.usize(..streams.len())));
                }
                3 => {
                    now += random.u64(0..8);
                    state.expire(time(now));
                }
                4 if !held.is_empty() => {
                    let delivery = held.swap_remove(random.usize(..held.len()));
                    state.modify_deadline(delivery, Duration::ZERO, time(now));
                }
                5 if !held.is_empty() => {
                    state.acknowledge(held.swap_remove(random.usize(..held.len())));
                }
                _ => held.extend(receive(&mut state, streams[random.usize(..streams.len())], now)),
            }
            drop(state.wakers());
        }
        now += 11;
        state.expire(time(now));
        while state.counters().backlog > 0 {
            let mut progress = false;
            for stream in &streams {
                for delivery in receive(&mut state, *stream, now) {
                    progress |= state.acknowledge(delivery);
                }
            }
            assert!(progress, "seed {seed}: nothing comes though {} wait", state.counters().backlog);
        }
        assert_eq!(state.acked_ids(), (0..published).collect::<Vec<_>>(), "seed {seed}");
        let counters = state.counters();
        assert_eq!(counters.delivered, counters.acked + counters.nacked + counters.expired, "seed {seed}");
    }
}
