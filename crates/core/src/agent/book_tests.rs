use super::*;
use crate::pubsub::decode::{ChunkBuilder, Decoded, decode_response};
use crate::pubsub::wire::{PubsubMessage, ReceivedMessage, StreamingPullResponse};
use arrow_array::cast::AsArray;
use prost::Message;
use std::time::Duration;

const LEASE: Duration = Duration::from_secs(30);

fn start() -> Offset {
    Offset { epoch: String::new(), seq: 0 }
}

fn chunk(ids: std::ops::Range<usize>) -> Decoded {
    let message = |id: usize| ReceivedMessage {
        ack_id: format!("ack-{id}"),
        message: Some(PubsubMessage { message_id: id.to_string(), data: vec![0; 100].into(), ..Default::default() }),
        delivery_attempt: 0,
    };
    let response = StreamingPullResponse { received_messages: ids.map(message).collect() };
    let mut builder = ChunkBuilder::default();
    decode_response(&response.encode_to_vec(), &mut builder, |_| panic!("one chunk")).unwrap();
    builder.finish().unwrap().unwrap()
}

fn book() -> Book {
    book_with(Duration::from_secs(3_600))
}

fn book_with(max_lease: Duration) -> Book {
    Book::new("life-1".into(), LeaseTerms { ack_deadline: LEASE, max_lease })
}

fn limits(max_rows: usize, max_parts: usize) -> CutLimits {
    CutLimits { max_rows, max_bytes: usize::MAX, max_parts }
}

fn ids_of(parts: &[Arc<Part>]) -> Vec<usize> {
    parts
        .iter()
        .flat_map(|part| &part.batches)
        .flat_map(|batch| batch.column(0).as_string::<i32>().iter().flatten().map(|id| id.parse().unwrap()))
        .collect()
}

fn acks_of(acks: &[StringArray]) -> Vec<String> {
    acks.iter().flat_map(|ids| ids.iter().flatten().map(str::to_owned)).collect()
}

#[test]
fn a_batch_is_acked_only_when_spark_asks_for_what_follows_it() {
    let mut book = book();
    book.ledger.add(chunk(0..10), Instant::now());
    let end = book.cut(&start(), limits(100, 4), Instant::now()).unwrap().end.clone();
    let (ticket, settled) = book.settle(&start(), Instant::now());
    assert!(ticket.is_none() && settled.acks.is_empty() && settled.nacks.is_empty());
    let (ticket, settled) = book.settle(&end, Instant::now());
    assert_eq!(acks_of(&settled.acks), (0..10).map(|i| format!("ack-{i}")).collect::<Vec<_>>());
    assert!(settled.nacks.is_empty());
    assert_eq!((book.ledger.counters().acking, book.ledger.counters().acked), (10, 0));
    book.ledger.acked(ticket.unwrap(), 10, 0);
    assert_eq!((book.ledger.counters().acking, book.ledger.counters().acked), (0, 10));
}

#[test]
fn a_start_of_another_life_acks_nothing_and_gives_back_what_was_cut_for_another_start() {
    let mut book = book();
    book.ledger.add(chunk(0..10), Instant::now());
    book.cut(&start(), limits(100, 4), Instant::now()).unwrap();
    let foreign = Offset { epoch: "life-0".into(), seq: 1 };
    let (ticket, settled) = book.settle(&foreign, Instant::now());
    assert!(ticket.is_none() && settled.acks.is_empty());
    assert_eq!(acks_of(&settled.nacks).len(), 10);
    assert_eq!(book.ledger.counters().nacked, 10);
}

#[test]
fn a_later_start_does_not_ack_an_earlier_batch() {
    let mut book = book();
    book.ledger.add(chunk(0..10), Instant::now());
    book.cut(&start(), limits(100, 4), Instant::now()).unwrap();
    let later = Offset { epoch: "life-1".into(), seq: 7 };
    let (ticket, settled) = book.settle(&later, Instant::now());
    assert!(ticket.is_none() && settled.acks.is_empty());
    assert_eq!(acks_of(&settled.nacks).len(), 10);
}

#[test]
fn the_same_start_gives_the_same_batch_also_when_more_has_come() {
    let mut book = book();
    book.ledger.add(chunk(0..10), Instant::now());
    let first = ids_of(&book.cut(&start(), limits(100, 4), Instant::now()).unwrap().parts);
    book.ledger.add(chunk(10..20), Instant::now());
    book.settle(&start(), Instant::now());
    let again = book.cut(&start(), limits(100, 4), Instant::now()).unwrap();
    assert_eq!(ids_of(&again.parts), first);
    assert_eq!(again.end, Offset { epoch: "life-1".into(), seq: 1 });
}

#[test]
fn numbers_go_on_from_a_start_of_another_life() {
    let mut book = book();
    book.ledger.add(chunk(0..1), Instant::now());
    let foreign = Offset { epoch: "life-0".into(), seq: 41 };
    assert_eq!(
        book.cut(&foreign, limits(1, 1), Instant::now()).unwrap().end,
        Offset { epoch: "life-1".into(), seq: 42 }
    );
}

#[test]
fn nothing_received_is_no_batch() {
    assert!(book().cut(&start(), limits(1, 1), Instant::now()).is_none());
}

#[test]
fn a_part_that_is_not_in_the_book_is_an_error() {
    let mut book = book();
    book.ledger.add(chunk(0..10), Instant::now());
    let end = book.cut(&start(), limits(100, 4), Instant::now()).unwrap().end.clone();
    assert_eq!(book.part(&end, 0).unwrap().rows, 10);
    for (epoch, seq, index) in [("life-1", 1, 1), ("life-1", 2, 0), ("life-0", 1, 0)] {
        let error = book.part(&Offset { epoch: epoch.into(), seq }, index).unwrap_err();
        assert_eq!(error.kind, ErrorKind::PartUnavailable);
    }
}

#[test]
fn a_limit_in_the_middle_of_a_chunk_splits_rows_and_leases_alike() {
    let mut book = book();
    book.ledger.add(chunk(0..10), Instant::now());
    book.ledger.add(chunk(10..20), Instant::now());
    let cut = book.cut(&start(), limits(13, 1), Instant::now()).unwrap();
    assert_eq!(ids_of(&cut.parts), (0..13).collect::<Vec<_>>());
    let end = cut.end.clone();
    let (_, settled) = book.settle(&end, Instant::now());
    assert_eq!(acks_of(&settled.acks), (0..13).map(|i| format!("ack-{i}")).collect::<Vec<_>>());
    let next = book.cut(&end, limits(100, 1), Instant::now()).unwrap();
    assert_eq!(ids_of(&next.parts), (13..20).collect::<Vec<_>>());
}

#[test]
fn a_byte_limit_bounds_a_batch_but_one_row_always_passes() {
    let mut book = book();
    book.ledger.add(chunk(0..10), Instant::now());
    let bytes = book.ledger.held_bytes();
    let half = CutLimits { max_rows: 100, max_bytes: bytes / 2, max_parts: 1 };
    let end = book.cut(&start(), half, Instant::now()).unwrap().end.clone();
    assert_eq!(book.part(&end, 0).unwrap().rows, 5);
    book.settle(&end, Instant::now());
    let tiny = CutLimits { max_rows: 100, max_bytes: 1, max_parts: 1 };
    assert_eq!(book.cut(&end, tiny, Instant::now()).unwrap().parts[0].rows, 1);
}

#[test]
fn parts_are_equal_in_size_and_keep_the_order() {
    let mut book = book();
    for i in 0..3 {
        book.ledger.add(chunk(i * 8_000..(i + 1) * 8_000), Instant::now());
    }
    let cut = book.cut(&start(), limits(usize::MAX, 4), Instant::now()).unwrap();
    assert_eq!(cut.parts.iter().map(|part| part.rows).collect::<Vec<_>>(), [6_000; 4]);
    assert_eq!(ids_of(&cut.parts), (0..24_000).collect::<Vec<_>>());
}

#[test]
fn a_lease_that_ends_before_the_cut_takes_its_rows_along() {
    let mut book = book();
    let now = Instant::now();
    book.ledger.add(chunk(0..10), now);
    book.ledger.add(chunk(10..20), now + LEASE / 2);
    book.ledger.expire(now + LEASE);
    assert_eq!(
        ids_of(&book.cut(&start(), limits(100, 1), Instant::now()).unwrap().parts),
        (10..20).collect::<Vec<_>>()
    );
    assert_eq!(book.ledger.counters().expired, 10);
}

#[test]
fn a_lease_that_ends_after_the_cut_is_counted_and_still_acked() {
    let mut book = book();
    let now = Instant::now();
    book.ledger.add(chunk(0..10), now);
    let end = book.cut(&start(), limits(100, 1), Instant::now()).unwrap().end.clone();
    book.ledger.expire(now + LEASE);
    book.ledger.expire(now + LEASE);
    assert_eq!(book.ledger.counters().expired, 10);
    assert_eq!(book.part(&end, 0).unwrap().rows, 10);
    assert_eq!(acks_of(&book.settle(&end, Instant::now()).1.acks).len(), 10);
}

fn extend_all(book: &mut Book, now: Instant, granted: bool) -> usize {
    let due = book.ledger.due(now, 1_000);
    for extension in &due {
        book.ledger.extended(extension.ticket, now, granted);
    }
    due.iter().map(|extension| acks_of(&extension.ack_ids).len()).sum()
}

#[test]
fn leases_are_extended_in_time_until_their_longest_duration() {
    let mut book = book_with(LEASE * 2);
    let now = Instant::now();
    book.ledger.add(chunk(0..10), now);
    assert_eq!(extend_all(&mut book, now, true), 0);
    let later = now + LEASE / 2;
    assert_eq!(extend_all(&mut book, later, true), 10);
    assert_eq!(extend_all(&mut book, later, true), 0);
    book.ledger.expire(now + LEASE);
    assert!(book.ledger.has_rows());
    assert_eq!(extend_all(&mut book, now + LEASE * 2, true), 0);
    book.ledger.expire(later + LEASE);
    assert!(!book.ledger.has_rows());
}

#[test]
fn an_extension_that_is_refused_is_tried_again_and_extends_nothing() {
    let mut book = book();
    let now = Instant::now();
    book.ledger.add(chunk(0..10), now);
    let later = now + LEASE / 2;
    assert_eq!(extend_all(&mut book, later, false), 10);
    assert_eq!(extend_all(&mut book, later, false), 10);
    book.ledger.expire(now + LEASE);
    assert!(!book.ledger.has_rows());
}

#[test]
fn an_extension_under_way_is_not_asked_for_twice() {
    let mut book = book();
    let now = Instant::now();
    book.ledger.add(chunk(0..10), now);
    let [extension] = &book.ledger.due(now + LEASE / 2, 1_000)[..] else { panic!("one extension") };
    assert!(book.ledger.due(now + LEASE / 2, 1_000).is_empty());
    book.ledger.extended(extension.ticket, now + LEASE / 2, true);
    assert_eq!(extend_all(&mut book, now + LEASE, true), 10);
}

#[test]
fn small_leases_share_an_extension_and_a_failed_one_leaves_the_others_extended() {
    let mut book = book();
    let now = Instant::now();
    for i in 0..5 {
        book.ledger.add(chunk(i * 400..(i + 1) * 400), now);
    }
    let due = book.ledger.due(now + LEASE / 2, 1_000);
    assert_eq!(due.iter().map(|e| acks_of(&e.ack_ids).len()).collect::<Vec<_>>(), [800, 800, 400]);
    for (index, extension) in due.iter().enumerate() {
        book.ledger.extended(extension.ticket, now + LEASE / 2, index != 1);
    }
    book.ledger.expire(now + LEASE);
    assert_eq!(book.ledger.counters().expired, 800);
}

#[test]
fn a_lease_that_is_split_under_an_extension_is_extended_in_both_halves() {
    let mut book = book();
    let now = Instant::now();
    book.ledger.add(chunk(0..10), now);
    let due = book.ledger.due(now + LEASE / 2, 1_000);
    book.cut(&start(), limits(4, 1), now).unwrap();
    book.ledger.extended(due[0].ticket, now + LEASE / 2, true);
    book.ledger.expire(now + LEASE);
    assert_eq!((book.ledger.counters().expired, book.ledger.counters().buffered), (0, 6));
}

#[test]
fn no_row_whose_lease_has_ended_gets_into_a_batch_though_nobody_noticed_before() {
    let mut book = book();
    let now = Instant::now();
    book.ledger.add(chunk(0..10), now);
    assert!(book.cut(&start(), limits(100, 1), now + LEASE).is_none());
    assert_eq!(book.ledger.counters().expired, 10);
}

#[test]
fn closing_gives_back_all_but_what_is_being_acked() {
    let mut book = book();
    book.ledger.add(chunk(0..10), Instant::now());
    let end = book.cut(&start(), limits(5, 1), Instant::now()).unwrap().end.clone();
    book.settle(&end, Instant::now());
    book.cut(&end, limits(3, 1), Instant::now()).unwrap();
    assert_eq!(acks_of(&book.ledger.close()), ["ack-8", "ack-9", "ack-5", "ack-6", "ack-7"]);
    assert_eq!(book.ledger.counters().acking, 5);
}
