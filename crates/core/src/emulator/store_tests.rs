use std::time::Duration;

use super::super::message::Publish;
use super::*;

const TOPIC: &str = "projects/p/topics/events";
const SUBSCRIPTION: &str = "projects/p/subscriptions/events";
const SNAPSHOT: &str = "projects/p/snapshots/snap";

fn time(seconds: u64) -> Time {
    Time::since_epoch(Duration::from_secs(seconds))
}

fn seconds(seconds: i64) -> Option<wire::Duration> {
    Some(wire::Duration { seconds, nanos: 0 })
}

/// Encoded messages with these ids, published at that moment; those with even ids have the attribute `even`.
fn messages(ids: impl IntoIterator<Item = u64>, at: u64) -> Vec<Bytes> {
    let one = |id: u64| {
        let mut message = wire::PubsubMessage { data: format!("{id}").into(), ..Default::default() };
        if id.is_multiple_of(2) {
            message.attributes.insert("even".to_owned(), "yes".to_owned());
        }
        let request = wire::PublishRequest { topic: TOPIC.to_owned(), messages: vec![message] };
        let publish = Publish::decode(request.encode_to_vec().into()).unwrap();
        publish.stamp(id, time(at)).unwrap().remove(0).bytes
    };
    ids.into_iter().map(one).collect()
}

fn topic(change: impl FnOnce(&mut wire::Topic)) -> Record {
    let mut topic = wire::Topic { name: TOPIC.to_owned(), ..Default::default() };
    change(&mut topic);
    Record { topic: Some(TopicRecord { config: Some(topic), next_message_id: 0 }), ..Record::default() }
}

fn subscription(change: impl FnOnce(&mut wire::Subscription)) -> Record {
    let mut subscription =
        wire::Subscription { name: SUBSCRIPTION.to_owned(), topic: TOPIC.to_owned(), ..Default::default() };
    change(&mut subscription);
    Record { subscription: Some(subscription), ..Record::default() }
}

fn published(ids: impl IntoIterator<Item = u64>, at: u64) -> Record {
    let published = Published { topic: TOPIC.to_owned(), messages: messages(ids, at), ..Default::default() };
    Record { published: Some(published), ..Record::default() }
}

fn changed(change: impl FnOnce(&mut Changed)) -> Record {
    let mut changed = Changed { subscription: SUBSCRIPTION.to_owned(), ..Default::default() };
    change(&mut changed);
    Record { changed: Some(changed), ..Record::default() }
}

fn acked(ids: impl IntoIterator<Item = u64>) -> Record {
    changed(|changed| changed.acked = Some(Ids::from_sorted(ids)))
}

fn snapshot(ids: impl IntoIterator<Item = u64>, expires: i64) -> Record {
    let config = wire::Snapshot {
        name: SNAPSHOT.to_owned(),
        topic: TOPIC.to_owned(),
        expire_time: Some(wire::Timestamp { seconds: expires, nanos: 0 }),
        ..Default::default()
    };
    let record = SnapshotRecord { config: Some(config), unacked: Some(Ids::from_sorted(ids)) };
    Record { snapshot: Some(record), ..Record::default() }
}

fn store(records: impl IntoIterator<Item = Record>) -> Store {
    let mut store = Store::default();
    records.into_iter().for_each(|record| store.replay(&record.encode_to_vec()).unwrap());
    store
}

fn unacked(store: &Store) -> Vec<u64> {
    store.subscriptions[SUBSCRIPTION].unacked.keys().copied().collect()
}

#[test]
fn ids_are_kept_as_runs() {
    for ids in [vec![], vec![0], vec![0, 1, 2], vec![5, 6, 9], vec![u64::MAX - 1], (100..100_000).collect::<Vec<_>>()] {
        let kept = Ids::from_sorted(ids.iter().copied());
        assert_eq!(kept.iter().collect::<Vec<_>>(), ids);
        assert!(kept.runs.len() <= 4);
    }
}

#[test]
fn a_subscription_has_what_was_published_since_and_not_acknowledged() {
    let store = store([
        topic(|_| {}),
        published(0..5, 1),
        subscription(|_| {}),
        published(5..10, 1),
        acked([6, 7]),
        published([10], 1),
    ]);
    assert_eq!(unacked(&store), [5, 8, 9, 10]);
    assert_eq!(store.topics[0].next_message_id, 11);
    assert_eq!(store.topics[0].messages[&8].bytes, messages([8], 1)[0]);
}

#[test]
fn a_filter_counts_and_a_detached_subscription_has_nothing() {
    let filter = |one: &mut wire::Subscription| one.filter = "attributes:even".to_owned();
    let mut records = vec![topic(|_| {}), subscription(filter), published(0..6, 1)];
    assert_eq!(unacked(&store(records.clone())), [0, 2, 4]);
    records.extend([subscription(|one| one.detached = true), published(6..9, 1)]);
    assert!(unacked(&store(records)).is_empty());
}

#[test]
fn a_seek_moves_messages_both_ways() {
    let mut records = vec![
        topic(|_| {}),
        subscription(|one| one.retain_acked_messages = true),
        published(0..6, 1),
        acked([0, 1, 2]),
        changed(|changed| {
            changed.acked = Some(Ids::from_sorted([3, 4]));
            changed.unacked = Some(Ids::from_sorted([1]));
        }),
    ];
    let sought = store(records.clone());
    assert_eq!(unacked(&sought), [1, 5]);
    assert_eq!(sought.subscriptions[SUBSCRIPTION].retained, BTreeSet::from([0, 2, 3, 4]));
    records.push(subscription(|_| {}));
    assert!(store(records).subscriptions[SUBSCRIPTION].retained.is_empty(), "it keeps them no longer");
}

#[test]
fn failures_are_counted_until_the_message_goes() {
    let failed = |id, count| {
        changed(|changed| {
            changed.failed = vec![id];
            changed.failures = vec![count];
        })
    };
    let store =
        store([topic(|_| {}), subscription(|_| {}), published(0..2, 1), failed(0, 1), failed(0, 2), failed(9, 1)]);
    assert_eq!(store.subscriptions[SUBSCRIPTION].unacked, BTreeMap::from([(0, 2), (1, 0)]));
}

#[test]
fn a_deleted_topic_leaves_its_subscriptions_and_a_new_one_does_not_feed_them() {
    let deleted = Record { deleted_topic: TOPIC.to_owned(), ..Record::default() };
    let store =
        store([topic(|_| {}), subscription(|_| {}), published([1], 1), deleted, topic(|_| {}), published([2], 1)]);
    assert_eq!(unacked(&store), [1]);
    let is_deleted: Vec<bool> = store.topics.iter().map(|topic| topic.is_deleted).collect();
    assert_eq!((is_deleted, store.subscriptions[SUBSCRIPTION].topic), (vec![true, false], 0));
}

#[test]
fn deleted_things_are_gone() {
    let store = store([
        topic(|_| {}),
        subscription(|_| {}),
        snapshot([], 9),
        Record { deleted_subscription: SUBSCRIPTION.to_owned(), ..Record::default() },
        Record { deleted_snapshot: SNAPSHOT.to_owned(), ..Record::default() },
        Record { deleted_topic: TOPIC.to_owned(), ..Record::default() },
        acked([1]),
        published([1], 1),
    ]);
    assert!(store.subscriptions.is_empty() && store.snapshots.is_empty());
    assert_eq!(store.records().count(), 0);
}

#[test]
fn a_snapshot_made_again_under_the_name_of_an_expired_one_has_nothing_of_it() {
    let store = store([
        topic(|_| {}),
        subscription(|_| {}),
        published(1..4, 1),
        snapshot([1, 2, 3], 9),
        acked([1, 2]),
        snapshot([3], 90),
        published([4], 50),
        Record::of_snapshot(wire::Snapshot { name: SNAPSHOT.to_owned(), ..Default::default() }, None),
    ]);
    assert_eq!(store.snapshots[SNAPSHOT].unacked, BTreeSet::from([3, 4]));
}

#[test]
fn a_snapshot_has_what_was_unacknowledged_and_all_that_came_since() {
    let store = store([
        topic(|_| {}),
        subscription(|_| {}),
        published(0..3, 1),
        snapshot([1, 2], 9),
        acked(0..3),
        published([3], 1),
    ]);
    assert_eq!(store.snapshots[SNAPSHOT].unacked, BTreeSet::from([1, 2, 3]));
}

#[test]
fn what_is_past_its_retention_or_nobodys_is_pruned() {
    let records = [
        topic(|topic| topic.message_retention_duration = seconds(1_000)),
        subscription(|one| one.message_retention_duration = seconds(600)),
        published(0..4, 100),
        published(4..8, 500),
        snapshot([0], 1_200),
        acked([4]),
    ];
    let at = |now| {
        let mut store = store(records.clone());
        store.prune(time(now));
        let mut ids: Vec<u64> = store.topics[0].messages.keys().copied().collect();
        ids.sort_unstable();
        (unacked(&store), store.snapshots.len(), ids)
    };
    assert_eq!(at(600), (vec![0, 1, 2, 3, 5, 6, 7], 1, (0..8).collect()));
    assert_eq!(at(701), (vec![5, 6, 7], 1, (0..8).collect()), "the topic keeps them longer");
    assert_eq!(at(1_150), (vec![], 1, (0..8).filter(|id| *id == 0 || *id >= 4).collect()), "the snapshot has one");
    assert_eq!(at(1_600), (vec![], 0, vec![]));
}

#[test]
fn rewritten_records_add_up_to_the_same_and_are_no_more_than_needed() {
    let mut random = fastrand::Rng::with_seed(3);
    for _ in 0..100 {
        let mut next = 1;
        let records = (0..random.usize(1..40)).map(|_| {
            let mut some = || (0..next).filter(|_| random.bool()).collect::<Vec<u64>>();
            let (first, second) = (some(), some());
            match random.u32(..12) {
                0 => topic(|topic| topic.message_retention_duration = random.bool().then_some(seconds(900)).flatten()),
                1 => subscription(|one| {
                    one.retain_acked_messages = random.bool();
                    one.detached = random.u32(..10) == 0;
                }),
                2 => snapshot(first, 9_000),
                3 if random.u32(..4) == 0 => Record { deleted_topic: TOPIC.to_owned(), ..Record::default() },
                4 if random.u32(..4) == 0 => {
                    Record { deleted_subscription: SUBSCRIPTION.to_owned(), ..Record::default() }
                }
                5 if random.u32(..4) == 0 => Record { deleted_snapshot: SNAPSHOT.to_owned(), ..Record::default() },
                6 | 7 => acked(first),
                8 => changed(|changed| {
                    changed.unacked = Some(Ids::from_sorted(first));
                    changed.failures = vec![2; second.len()];
                    changed.failed = second;
                }),
                _ => {
                    let ids = next..next + random.u64(1..5);
                    next = ids.end;
                    published(ids, random.u64(1..2_000))
                }
            }
        });
        let records: Vec<Record> = [topic(|_| {}), subscription(|_| {})].into_iter().chain(records).collect();
        let mut before = store(records);
        before.prune(time(1_000));
        let rewritten: Vec<Record> = before.records().collect();
        let mut after = store(rewritten.clone());
        assert_eq!(after.records().collect::<Vec<_>>(), rewritten);
        after.prune(time(1_000));
        assert_eq!(after.records().collect::<Vec<_>>(), rewritten);
        let messages = |store: &Store| store.topics.iter().map(|topic| topic.messages.len()).sum::<usize>();
        assert_eq!(messages(&after), messages(&before));
    }
}

#[test]
fn bytes_that_are_no_record_are_an_error() {
    let error = Store::default().replay(b"\xff\xff").expect_err("no record");
    assert!(error.message.contains("cannot be read"), "{error}");
}
