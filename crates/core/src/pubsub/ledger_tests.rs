use super::*;
use crate::pubsub::decode::{ChunkBuilder, decode_response};
use crate::pubsub::wire::{PubsubMessage, ReceivedMessage, StreamingPullResponse};
use arrow_array::Array;
use arrow_array::cast::AsArray;
use prost::Message;

const LEASE: Duration = Duration::from_secs(30);
const ONE: TakeLimits = TakeLimits { max_rows: usize::MAX, max_bytes: usize::MAX, max_batches: 1 };

fn chunk(ids: std::ops::Range<usize>) -> Decoded {
    let message = |id: usize| ReceivedMessage {
        ack_id: format!("ack-{id}"),
        message: Some(PubsubMessage { message_id: id.to_string(), ..Default::default() }),
        delivery_attempt: 0,
    };
    let response = StreamingPullResponse { received_messages: ids.map(message).collect() };
    let mut builder = ChunkBuilder::default();
    decode_response(&response.encode_to_vec(), &mut builder, |_| panic!("one chunk")).unwrap();
    builder.finish().unwrap().unwrap()
}

fn ledger() -> Ledger {
    Ledger::new(LeaseTerms { ack_deadline: LEASE, max_lease: Duration::from_secs(3_600) })
}

fn ids_of(taken: &Taken) -> Vec<usize> {
    let ids = |rows: &RecordBatch| {
        rows.column(0).as_string::<i32>().iter().flatten().map(|id| id.parse().unwrap()).collect::<Vec<usize>>()
    };
    taken.batches.iter().flat_map(ids).collect()
}

fn gone(ids: &[usize]) -> HashSet<String> {
    ids.iter().map(|id| format!("ack-{id}")).collect()
}

#[test]
fn what_is_taken_is_held_until_it_is_settled_and_settled_once() {
    let (mut ledger, now) = (ledger(), Instant::now());
    ledger.add(chunk(0..10), now);
    ledger.add(chunk(10..15), now);
    let bytes = ledger.held_bytes();
    let (first, second) = (ledger.take(ONE, now).unwrap(), ledger.take(ONE, now).unwrap());
    assert_eq!((ids_of(&first).len(), ids_of(&second).len(), ledger.held_rows()), (10, 5, 15));
    assert!(ledger.take(ONE, now).is_none());
    assert_eq!(ledger.held_bytes(), bytes);
    assert_eq!(ledger.acknowledge(first.ticket, now).unwrap().len(), 1);
    assert!(ledger.acknowledge(first.ticket, now).is_none());
    assert!(ledger.give_back(first.ticket).is_none());
    assert_eq!((ledger.counters().acking, ledger.held_rows()), (10, 5));
    ledger.acked(first.ticket, 9, 1);
    ledger.acked(first.ticket, 9, 1);
    assert!(ledger.give_back(second.ticket).is_some());
    assert!(ledger.acknowledge(second.ticket, now).is_none());
    let counters = ledger.counters();
    assert_eq!((counters.acked, counters.refused, counters.nacked, counters.leased), (9, 1, 5, 0));
    assert_eq!((ledger.held_bytes(), ledger.oldest()), (0, None));
}

#[test]
fn extensions_are_as_long_as_acknowledging_takes_and_longer_with_exactly_once_delivery() {
    let (mut ledger, now) = (ledger(), Instant::now());
    assert_eq!((ledger.first_lease(), ledger.lease_length()), (LEASE, LEASE));
    ledger.set_exactly_once(true);
    assert_eq!((ledger.first_lease(), ledger.lease_length()), (LEASE * 2, LEASE * 2));
    ledger.set_exactly_once(false);
    ledger.add(chunk(0..10), now);
    let taken = ledger.take(ONE, now).unwrap();
    ledger.acknowledge(taken.ticket, now + Duration::from_millis(99_500)).unwrap();
    assert_eq!(ledger.lease_length(), Duration::from_secs(100));
    // A longer lease is due later, and granted for as long as was asked.
    ledger.add(chunk(10..20), now);
    let due = ledger.due(now + LEASE / 2, 1_000);
    assert_eq!(due.last().unwrap().length, Duration::from_secs(100));
    due.iter().for_each(|extension| ledger.extended(extension.ticket, now + LEASE / 2, true));
    assert!(ledger.due(now + LEASE, 1_000).is_empty());
    ledger.expire(now + LEASE * 2);
    assert!(ledger.has_rows());
}

#[test]
fn deliveries_that_pub_sub_took_back_leave_the_buffer_and_are_counted_once_when_taken() {
    let (mut ledger, now) = (ledger(), Instant::now());
    ledger.add(chunk(0..10), now);
    let taken = ledger.take(ONE, now).unwrap();
    ledger.add(chunk(10..20), now);
    ledger.add(chunk(20..30), now);
    assert_eq!(ledger.lost(&gone(&[1, 2, 10, 14, 15, 19])), 6);
    assert_eq!(ledger.lost(&gone(&[1, 2])), 0);
    assert_eq!((ledger.no_longer_ours(taken.ticket), ledger.held_rows()), (2, 26));
    let all = TakeLimits { max_batches: usize::MAX, ..ONE };
    let rest = ledger.take(all, now).unwrap();
    assert_eq!(ids_of(&rest), [11, 12, 13, 16, 17, 18].into_iter().chain(20..30).collect::<Vec<_>>());
    assert_eq!(ledger.counters().expired, 6);
    // Those that were lost before do not expire once more.
    ledger.expire(now + LEASE);
    assert_eq!(ledger.counters().expired, 30);
    assert_eq!(ledger.no_longer_ours(taken.ticket), 10);
}

#[test]
fn a_lease_that_ends_with_its_consumer_is_reported_and_still_acknowledged() {
    let (mut ledger, now) = (ledger(), Instant::now());
    ledger.add(chunk(0..10), now);
    let taken = ledger.take(ONE, now).unwrap();
    assert_eq!((ledger.expire(now + LEASE), ledger.expire(now + LEASE)), (10, 0));
    assert_eq!(ledger.no_longer_ours(taken.ticket), 10);
    assert_eq!(ledger.acknowledge(taken.ticket, now + LEASE).unwrap()[0].len(), 10);
}

#[test]
fn a_ticket_that_is_split_is_settled_in_two_parts() {
    let (mut ledger, now) = (ledger(), Instant::now());
    ledger.add(chunk(0..10), now);
    ledger.add(chunk(10..20), now);
    let taken = ledger.take(TakeLimits { max_batches: 2, ..ONE }, now).unwrap();
    let bytes = ledger.held_bytes();
    let rest = ledger.split(taken.ticket, 13).unwrap();
    assert_eq!((ledger.held_rows(), ledger.held_bytes()), (20, bytes));
    let acks = ledger.acknowledge(taken.ticket, now).unwrap();
    assert_eq!(acks.iter().map(Array::len).collect::<Vec<_>>(), [10, 3]);
    assert!(ledger.split(taken.ticket, 1).is_none());
    let nacks = ledger.give_back(rest).unwrap();
    assert_eq!(nacks[0].value(0), "ack-13");
    assert_eq!((nacks[0].len(), ledger.held_rows(), ledger.held_bytes()), (7, 0, 0));
}

#[test]
fn what_pub_sub_took_back_of_a_ticket_stays_with_its_part_when_it_is_split() {
    let (mut ledger, now) = (ledger(), Instant::now());
    ledger.add(chunk(0..10), now);
    let taken = ledger.take(ONE, now).unwrap();
    ledger.lost(&gone(&[3, 4, 5]));
    let rest = ledger.split(taken.ticket, 2).unwrap();
    assert_eq!((ledger.no_longer_ours(taken.ticket), ledger.no_longer_ours(rest)), (0, 3));
    // Those that were lost before do not expire once more, and the others do.
    assert_eq!(ledger.expire(now + LEASE), 7);
    assert_eq!((ledger.no_longer_ours(taken.ticket), ledger.no_longer_ours(rest)), (2, 8));
    assert_eq!(ledger.counters().expired, 10);
}
