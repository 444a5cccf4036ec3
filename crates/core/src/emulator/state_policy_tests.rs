//! What a subscription's settings do to its messages: retries, dead letters, filters, retention, seeking, duplicates.

use super::tests::{
    LEASE, UNLIMITED, ids, keyed_message_at, message, message_at, ordered, take, time, unordered, wait_on, wake,
};
use super::*;
use crate::emulator::filter::Filter;
use crate::emulator::policy::Backoff;
use crate::pubsub::wire::AcknowledgeConfirmation;

const NACK: Duration = Duration::ZERO;

fn with_policy(ordered: bool, policy: Policy) -> (State, StreamId) {
    let mut state = State::new(ordered, policy);
    let stream = state.open_stream(UNLIMITED, LEASE);
    (state, stream)
}

fn retrying() -> Policy {
    let retry = Backoff { minimum: Duration::from_secs(10), maximum: Duration::from_secs(15) };
    Policy { retry: Some(retry), ..Policy::default() }
}

fn attempts(state: &mut State, stream: StreamId, seconds: u64) -> Vec<u32> {
    match state.take(stream, Terms::default(), time(seconds), Waker::noop()) {
        Taken::Batch(batch) => batch.deliveries.iter().map(|delivery| delivery.attempt).collect(),
        other => panic!("{other:?}"),
    }
}

#[test]
fn a_failed_message_waits_longer_each_time_up_to_the_maximum() {
    let (mut state, stream) = with_policy(false, retrying());
    state.push(&[message(1, ""), message(2, "")]);
    let taken = take(&mut state, stream, 0);
    state.acknowledge(taken[1].0);
    state.modify_deadline(taken[0].0, NACK, time(0));
    assert!(take(&mut state, stream, 0).is_empty());
    assert_eq!((state.set_timer(), state.counters().backlog), (Some(time(10)), 1));
    state.expire(time(9));
    assert!(take(&mut state, stream, 9).is_empty());
    state.expire(time(10));
    let again = take(&mut state, stream, 10);
    assert_eq!(ids(&again), [1]);
    state.modify_deadline(again[0].0, NACK, time(10));
    state.expire(time(24));
    assert!(take(&mut state, stream, 24).is_empty(), "20 s would be over the maximum of 15 s");
    state.expire(time(25));
    assert_eq!(ids(&take(&mut state, stream, 25)), [1]);
}

#[test]
fn an_expired_lease_counts_as_a_failure_from_its_deadline_on() {
    let (mut state, stream) = with_policy(false, retrying());
    state.push(&[message(1, "")]);
    take(&mut state, stream, 0);
    state.expire(time(19));
    assert!(take(&mut state, stream, 19).is_empty(), "the lease ended at 10 s");
    state.expire(time(20));
    assert_eq!(ids(&take(&mut state, stream, 20)), [1]);
}

#[test]
fn a_waiting_stream_is_woken_when_a_delayed_message_is_due() {
    let (mut state, stream) = with_policy(false, retrying());
    state.push(&[message(1, "")]);
    let taken = take(&mut state, stream, 0);
    state.modify_deadline(taken[0].0, NACK, time(0));
    wait_on(&mut state, stream);
    assert_eq!(wake(&mut state), 0);
    state.expire(time(10));
    assert_eq!(wake(&mut state), 1);
}

#[test]
fn a_key_that_failed_rests_whole_and_others_go_on() {
    let (mut state, stream) = with_policy(true, retrying());
    state.push(&[message(1, "k"), message(2, "k"), message(3, "other")]);
    let taken = take(&mut state, stream, 0);
    let delivery = |id| taken.iter().find(|(_, other)| *other == id).unwrap().0;
    state.modify_deadline(delivery(1), NACK, time(0));
    state.push(&[message(4, "k"), message(5, "other")]);
    assert_eq!(ids(&take(&mut state, stream, 1)), [5]);
    state.expire(time(10));
    assert_eq!(ids(&take(&mut state, stream, 10)), [1, 2, 4], "3 is leased anew: {:?}", state.counters());
}

#[test]
fn attempts_are_counted_only_under_a_dead_letter_policy() {
    let (mut state, stream) = with_policy(false, Policy::default());
    state.push(&[message(1, "")]);
    assert_eq!(attempts(&mut state, stream, 0), [0]);
    state.set_policy(Policy { dead_letter_after: Some(5), ..Policy::default() });
    state.expire(time(10));
    assert_eq!(attempts(&mut state, stream, 10), [2]);
}

#[test]
fn a_message_that_failed_too_often_leaves_for_the_dead_letters() {
    let (mut state, stream) = with_policy(false, Policy { dead_letter_after: Some(5), ..Policy::default() });
    state.push(&[message(1, "")]);
    for attempt in 1..=5 {
        assert!(state.take_dead().is_empty());
        assert_eq!(attempts(&mut state, stream, attempt * 10), [attempt as u32]);
        state.expire(time(attempt * 10 + 10));
    }
    let dead = state.take_dead();
    assert_eq!(dead.iter().map(|entry| (entry.message.id, entry.failures)).collect::<Vec<_>>(), [(1, 5)]);
    assert_eq!((state.counters().backlog, state.counters().outstanding, state.counters().expired), (0, 0, 5));
    state.keep_dead(dead);
    assert_eq!(attempts(&mut state, stream, 100), [6], "what cannot be forwarded is delivered again");
}

#[test]
fn those_that_come_back_with_a_failed_one_have_not_failed() {
    let (mut state, stream) = with_policy(true, Policy { dead_letter_after: Some(5), ..Policy::default() });
    state.push(&[message(1, "k"), message(2, "k")]);
    for _ in 1..=5 {
        let taken = take(&mut state, stream, 0);
        assert_eq!(ids(&taken), [1, 2]);
        state.modify_deadline(taken[0].0, NACK, time(0));
    }
    assert_eq!(state.take_dead().len(), 1);
    assert_eq!(attempts(&mut state, stream, 0), [1], "the key goes on without the dead letter");
}

#[test]
fn only_messages_that_match_the_filter_are_kept() {
    let filter = Filter::parse("attributes:kind").unwrap();
    let (mut state, _) = with_policy(false, Policy { filter: Some(filter), ..Policy::default() });
    let with_kind = message(2, "").forwarded(2, time(1), &[("kind", "a".to_owned())]);
    state.push(&[message(1, ""), with_kind]);
    assert_eq!(state.unacked().into_keys().collect::<Vec<_>>(), [2]);
    assert_eq!((state.counters().filtered, state.counters().backlog), (1, 1));
}

#[test]
fn messages_past_their_retention_are_gone_wherever_they_wait() {
    let policy = Policy { retention: Duration::from_secs(600), ..Policy::default() };
    for ordered in [false, true] {
        let (mut state, stream) = with_policy(ordered, policy.clone());
        state.push(&[keyed_message_at(1, "k", 100), keyed_message_at(2, "", 100)]);
        let taken = take(&mut state, stream, 100);
        taken.iter().for_each(|(id, _)| assert!(state.modify_deadline(*id, NACK, time(100))));
        state.push(&[keyed_message_at(3, "k", 200), keyed_message_at(4, "", 200)]);
        state.expire(time(699));
        assert_eq!(state.counters().backlog, 4, "ordered: {ordered}");
        state.expire(time(700));
        assert_eq!(state.counters().backlog, 2, "ordered: {ordered}");
        let mut left = ids(&take(&mut state, stream, 700));
        left.sort_unstable();
        assert_eq!(left, [3, 4]);
        state.expire(time(900));
        assert_eq!(state.counters().backlog, 0, "ordered: {ordered}");
        assert!(take(&mut state, stream, 900).is_empty());
    }
}

#[test]
fn a_delivery_meets_no_message_past_its_retention() {
    let policy = Policy { retention: Duration::from_secs(600), ..Policy::default() };
    for ordered in [false, true] {
        let (mut state, stream) = with_policy(ordered, policy.clone());
        state.push(&[keyed_message_at(1, "k", 100), keyed_message_at(2, "k", 650)]);
        let taken = take(&mut state, stream, 100);
        taken.iter().rev().for_each(|(id, _)| assert!(state.modify_deadline(*id, NACK, time(100))));
        state.expire(time(700));
        assert_eq!(ids(&take(&mut state, stream, 700)), [2], "ordered: {ordered}");
    }
}

#[test]
fn seeking_forward_acknowledges_what_was_published_before() {
    let (mut state, stream) = with_policy(false, Policy::default());
    state.push(&(1..=4).map(|n| message_at(n, n * 10)).collect::<Vec<_>>());
    let terms = Terms { max_messages: 2, ..Terms::default() };
    assert!(matches!(state.take(stream, terms, time(50), Waker::noop()), Taken::Batch(_)));
    state.seek(|message| message.published >= time(20), Vec::new());
    assert_eq!(state.unacked().into_keys().collect::<Vec<_>>(), [2, 3, 4]);
    assert_eq!((state.counters().outstanding, state.counters().backlog), (1, 2));
}

#[test]
fn seeking_back_restores_what_was_retained_in_order() {
    let (mut state, stream) = with_policy(false, Policy { retain_acked: true, ..Policy::default() });
    state.push(&(1..=3).map(|n| message_at(n, n * 10)).collect::<Vec<_>>());
    take(&mut state, stream, 50).iter().for_each(|(id, _)| assert!(state.acknowledge(*id)));
    state.push(&[message_at(4, 40)]);
    let restored: Vec<Message> = state.retained().filter(|message| message.published >= time(20)).cloned().collect();
    state.seek(|message| message.published >= time(20), restored);
    assert_eq!(ids(&take(&mut state, stream, 50)), [2, 3, 4]);
    assert_eq!(state.retained().map(|message| message.id).collect::<Vec<_>>(), [1]);
}

#[test]
fn what_is_retained_goes_with_the_retention_or_the_setting() {
    let policy = Policy { retain_acked: true, retention: Duration::from_secs(600), ..Policy::default() };
    let (mut state, stream) = with_policy(false, policy);
    state.push(&[message_at(1, 100), message_at(2, 200)]);
    take(&mut state, stream, 200).iter().for_each(|(id, _)| assert!(state.acknowledge(*id)));
    state.expire(time(700));
    assert_eq!(state.retained().map(|message| message.id).collect::<Vec<_>>(), [2]);
    state.set_policy(Policy::default());
    assert_eq!(state.retained().count(), 0);
}

#[test]
fn seeking_back_keeps_the_order_of_a_key_that_is_leased() {
    let mut state = ordered();
    state.set_policy(Policy { retain_acked: true, ..Policy::default() });
    let stream = state.open_stream(UNLIMITED, LEASE);
    state.push(&[message(1, "k"), message(2, "k")]);
    let taken = take(&mut state, stream, 0);
    state.acknowledge(taken[0].0);
    let restored = state.retained().cloned().collect();
    state.seek(|_| true, restored);
    assert_eq!(ids(&take(&mut state, stream, 0)), [1, 2]);
    assert!(!state.acknowledge(taken[1].0), "2 has to follow 1 once more");
}

#[test]
fn a_detached_subscription_has_nothing_left() {
    let mut state = unordered();
    let stream = state.open_stream(UNLIMITED, LEASE);
    state.push(&[message(1, "")]);
    take(&mut state, stream, 0);
    state.push(&[message(2, "")]);
    state.end(&End::Detached);
    state.clear();
    assert_eq!((state.counters().backlog, state.counters().outstanding), (0, 0));
    assert!(matches!(state.take(stream, Terms::default(), time(0), Waker::noop()), Taken::Ended(End::Detached)));
}

#[test]
fn a_duplicate_has_an_ack_id_of_its_own_and_either_ack_counts() {
    let mut state = unordered();
    let stream = state.open_stream(UNLIMITED, LEASE);
    state.push(&[message(1, ""), message(2, ""), message(3, ""), message(4, "")]);
    let terms = Terms { duplicate_every: NonZeroU64::new(2), ..Terms::default() };
    let mut deliveries: Vec<DeliveryId> = Vec::new();
    while let Taken::Batch(batch) = state.take(stream, terms, time(0), Waker::noop()) {
        deliveries.extend(batch.deliveries.iter().map(|delivery| delivery.id));
    }
    assert_eq!(deliveries.len(), 6, "2 and 4 come twice");
    assert!(state.acknowledge(deliveries[2]), "the second delivery of 2");
    assert_eq!(state.acked_ids(), [2]);
    assert!(!state.acknowledge(deliveries[1]), "the first one is done with it");
    assert!(state.acknowledge(deliveries[4]) && state.acknowledge(deliveries[5]));
    assert_eq!((state.acked_ids(), state.counters().acked), (vec![2, 4], 2));
    state.expire(time(10));
    let counters = state.counters();
    assert_eq!((counters.expired, counters.backlog, counters.outstanding, counters.redelivered), (2, 2, 0, 2));
}

#[test]
fn a_nacked_or_expired_duplicate_leaves_the_first_delivery_alone() {
    let mut state = unordered();
    let stream = state.open_stream(UNLIMITED, LEASE);
    state.push(&[message(1, "")]);
    let terms = Terms { duplicate_every: NonZeroU64::new(1), ..Terms::default() };
    let Taken::Batch(batch) = state.take(stream, terms, time(0), Waker::noop()) else { panic!() };
    assert!(state.modify_deadline(batch.deliveries[1].id, NACK, time(0)));
    assert_eq!((state.counters().outstanding, state.counters().backlog, state.counters().nacked), (1, 0, 0));
    assert!(state.acknowledge(batch.deliveries[0].id));
    assert_eq!(state.counters().outstanding, 0);
}

#[test]
fn confirmations_wake_a_waiting_stream_and_come_before_its_end() {
    let confirmation = |id: &str| Confirmations {
        acks: AcknowledgeConfirmation { ack_ids: vec![id.to_owned()], ..Default::default() },
        ..Default::default()
    };
    // With one message the stream waits for more, with two it stands at its limit.
    for count in [1, 2] {
        let mut state = unordered();
        state.set_policy(Policy { exactly_once: true, ..Policy::default() });
        let stream = state.open_stream(FlowControl { max_messages: Some(1), max_bytes: None }, LEASE);
        state.push(&(1..=count).map(|id| message(id, "")).collect::<Vec<_>>());
        assert_eq!(take(&mut state, stream, 0).len(), 1);
        wait_on(&mut state, stream);
        state.confirm(stream, confirmation("a"));
        assert_eq!(wake(&mut state), 1);
        state.confirm(stream, confirmation("b"));
        state.end_stream(stream, End::ClientDone);
        let Taken::Batch(batch) = state.take(stream, Terms::default(), time(0), Waker::noop()) else { panic!() };
        assert!(batch.deliveries.is_empty() && batch.exactly_once);
        assert_eq!(batch.confirmations.unwrap().acks.ack_ids, ["a", "b"]);
        assert!(matches!(state.take(stream, Terms::default(), time(0), Waker::noop()), Taken::Ended(End::ClientDone)));
    }
}

#[test]
fn a_poked_stream_is_woken_though_there_is_nothing() {
    let mut state = unordered();
    let stream = state.open_stream(UNLIMITED, LEASE);
    wait_on(&mut state, stream);
    state.poke_streams();
    assert_eq!(wake(&mut state), 1);
    wait_on(&mut state, stream);
    assert_eq!(wake(&mut state), 0);
}
