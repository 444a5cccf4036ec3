//! What the journal's records add up to: the state that outlives the process.
//!
//! Records tell what became so, not what was asked: which messages a seek brought back, not where it went. What is
//! published goes to the subscriptions that the topic has at that place of the journal.

use std::collections::{BTreeMap, BTreeSet, HashMap, HashSet};

use bytes::Bytes;
use prost::Message as _;
use tonic::Status;

use super::clock::Time;
use super::message::Message;
use super::policy::Policy;
use super::settings;
use crate::error::{Error, ErrorKind, Result};
use crate::pubsub::wire;

/// Messages are rewritten in records of about this size.
const CHUNK_BYTES: usize = 1024 * 1024;

/// One record: what is set applies, in the order of the fields.
#[derive(Clone, PartialEq, prost::Message)]
pub struct Record {
    /// Made, or changed.
    #[prost(message, optional, tag = "1")]
    pub topic: Option<TopicRecord>,
    /// The name of one that is gone; its subscriptions stay.
    #[prost(string, tag = "2")]
    pub deleted_topic: String,
    /// Made, or changed.
    #[prost(message, optional, tag = "3")]
    pub subscription: Option<wire::Subscription>,
    /// The name of one that is gone.
    #[prost(string, tag = "4")]
    pub deleted_subscription: String,
    /// Messages that came.
    #[prost(message, optional, tag = "5")]
    pub published: Option<Published>,
    /// Made, or changed.
    #[prost(message, optional, tag = "6")]
    pub snapshot: Option<SnapshotRecord>,
    /// The name of one that is gone.
    #[prost(string, tag = "7")]
    pub deleted_snapshot: String,
    /// What became of a subscription's messages.
    #[prost(message, optional, tag = "8")]
    pub changed: Option<Changed>,
}

impl Record {
    /// A topic was made or changed.
    pub fn of_topic(config: wire::Topic, next_message_id: u64) -> Self {
        Self { topic: Some(TopicRecord { config: Some(config), next_message_id }), ..Self::default() }
    }

    /// A subscription was made or changed.
    pub fn of_subscription(config: wire::Subscription) -> Self {
        Self { subscription: Some(config), ..Self::default() }
    }

    /// A snapshot was made or changed.
    pub fn of_snapshot(config: wire::Snapshot, unacked: Option<Ids>) -> Self {
        Self { snapshot: Some(SnapshotRecord { config: Some(config), unacked }), ..Self::default() }
    }

    /// Messages came to a topic.
    pub fn of_messages(topic: &str, messages: &[Message]) -> Self {
        let messages = messages.iter().map(|message| message.bytes.clone()).collect();
        Self {
            published: Some(Published { topic: topic.to_owned(), messages, ..Published::default() }),
            ..Self::default()
        }
    }

    /// Something became of a subscription's messages.
    pub fn of_changed(changed: Changed) -> Self {
        Self { changed: Some(changed), ..Self::default() }
    }
}

/// A topic.
#[derive(Clone, PartialEq, prost::Message)]
pub struct TopicRecord {
    /// As clients see it.
    #[prost(message, optional, tag = "1")]
    pub config: Option<wire::Topic>,
    /// It gives no smaller id again.
    #[prost(uint64, tag = "2")]
    pub next_message_id: u64,
}

/// Messages that came.
#[derive(Clone, PartialEq, prost::Message)]
pub struct Published {
    /// The topic.
    #[prost(string, tag = "1")]
    pub topic: String,
    /// Encoded `PubsubMessage`s with id and publish time.
    #[prost(bytes = "bytes", repeated, tag = "2")]
    pub messages: Vec<Bytes>,
    /// They came before; other records say who has them.
    #[prost(bool, tag = "3")]
    pub is_old: bool,
    /// Which of the old ones the topic keeps for seeking.
    #[prost(message, optional, tag = "4")]
    pub kept: Option<Ids>,
}

/// A snapshot.
#[derive(Clone, PartialEq, prost::Message)]
pub struct SnapshotRecord {
    /// As clients see it.
    #[prost(message, optional, tag = "1")]
    pub config: Option<wire::Snapshot>,
    /// The messages it holds when it is made; a change has none.
    #[prost(message, optional, tag = "2")]
    pub unacked: Option<Ids>,
}

/// What became of a subscription's messages. Those not named are as they were.
#[derive(Clone, PartialEq, prost::Message)]
pub struct Changed {
    /// The subscription.
    #[prost(string, tag = "1")]
    pub subscription: String,
    /// Acknowledged, or as good as that.
    #[prost(message, optional, tag = "2")]
    pub acked: Option<Ids>,
    /// To be delivered, though they were acknowledged or never its own.
    #[prost(message, optional, tag = "3")]
    pub unacked: Option<Ids>,
    /// Acknowledged before, and kept.
    #[prost(message, optional, tag = "4")]
    pub retained: Option<Ids>,
    /// These ids...
    #[prost(uint64, repeated, tag = "5")]
    pub failed: Vec<u64>,
    /// ...have failed so often.
    #[prost(uint32, repeated, tag = "6")]
    pub failures: Vec<u32>,
}

impl Changed {
    /// Acknowledged.
    pub fn acked(subscription: &str, ids: BTreeSet<u64>) -> Self {
        Self { subscription: subscription.to_owned(), acked: Some(Ids::from_sorted(ids)), ..Self::default() }
    }
}

/// A set of message ids; mostly they are consecutive.
#[derive(Clone, PartialEq, prost::Message)]
pub struct Ids {
    /// In turn: how many ids are left out, and how many follow.
    #[prost(uint64, repeated, tag = "1")]
    runs: Vec<u64>,
}

impl Ids {
    /// From ids in rising order.
    pub fn from_sorted(ids: impl IntoIterator<Item = u64>) -> Self {
        let mut runs: Vec<u64> = Vec::new();
        let mut next = 0;
        for id in ids {
            match runs.last_mut() {
                Some(length) if id == next => *length += 1,
                _ => runs.extend([id.saturating_sub(next), 1]),
            }
            next = id + 1;
        }
        Self { runs }
    }

    /// The ids, in rising order.
    pub fn iter(&self) -> impl Iterator<Item = u64> + '_ {
        let mut next = 0_u64;
        self.runs.chunks_exact(2).flat_map(move |run| {
            let first = next.saturating_add(run[0]);
            next = first.saturating_add(run[1]);
            first..next
        })
    }
}

/// A topic, and the messages that came to it. A topic of the same name made later is another one.
#[derive(Debug, Default)]
pub struct StoredTopic {
    /// As clients see it.
    pub config: wire::Topic,
    /// Its subscriptions and snapshots stay.
    pub is_deleted: bool,
    /// It gives no smaller id again.
    pub next_message_id: u64,
    /// What it keeps for seeking.
    pub kept: BTreeSet<u64>,
    /// By id; until the next pruning, those that nobody has any more are among them.
    pub messages: HashMap<u64, Message>,
}

/// A subscription.
#[derive(Debug, Default)]
pub struct StoredSubscription {
    /// As clients see it.
    pub config: wire::Subscription,
    /// What the settings ask for.
    pub policy: Policy,
    /// The place of its topic.
    pub topic: usize,
    /// What is to be delivered, and how often that has failed.
    pub unacked: BTreeMap<u64, u32>,
    /// What is acknowledged and kept.
    pub retained: BTreeSet<u64>,
}

/// A snapshot.
#[derive(Debug, Default)]
pub struct StoredSnapshot {
    /// As clients see it.
    pub config: wire::Snapshot,
    /// The place of its topic.
    pub topic: usize,
    /// What a seek to it makes unacknowledged.
    pub unacked: BTreeSet<u64>,
}

/// The sum of the records.
#[derive(Debug, Default)]
pub struct Store {
    /// In the order they were made, deleted ones included.
    pub topics: Vec<StoredTopic>,
    /// By name.
    pub subscriptions: BTreeMap<String, StoredSubscription>,
    /// By name.
    pub snapshots: BTreeMap<String, StoredSnapshot>,
    /// The places of the topics that are not deleted.
    places: HashMap<String, usize>,
}

impl Store {
    /// Add an encoded record.
    pub fn replay(&mut self, record: &[u8]) -> Result<()> {
        let record = Record::decode(record).map_err(|e| {
            Error::new(ErrorKind::Config, format!("the journal has a record that cannot be read: {e}."))
        })?;
        self.apply(record).map_err(|status| {
            Error::new(ErrorKind::Config, format!("the journal has what this version refuses: {}", status.message()))
        })
    }

    fn apply(&mut self, record: Record) -> std::result::Result<(), Status> {
        if let Some(TopicRecord { config: Some(config), next_message_id }) = record.topic {
            self.set_topic(config, next_message_id);
        }
        if let Some(place) = self.places.remove(&record.deleted_topic) {
            self.topics[place].is_deleted = true;
        }
        if let Some(config) = record.subscription {
            self.set_subscription(config)?;
        }
        self.subscriptions.remove(&record.deleted_subscription);
        if let Some(published) = record.published {
            self.publish(published);
        }
        if let Some(SnapshotRecord { config: Some(config), unacked }) = record.snapshot {
            self.set_snapshot(config, unacked.as_ref());
        }
        self.snapshots.remove(&record.deleted_snapshot);
        if let Some(changed) = record.changed {
            self.change(&changed);
        }
        Ok(())
    }

    fn set_topic(&mut self, config: wire::Topic, next_message_id: u64) {
        let place = *self.places.entry(config.name.clone()).or_insert_with(|| {
            self.topics.push(StoredTopic::default());
            self.topics.len() - 1
        });
        let topic = &mut self.topics[place];
        topic.next_message_id = topic.next_message_id.max(next_message_id);
        if config.message_retention_duration.is_none() {
            topic.kept.clear();
        }
        topic.config = config;
    }

    fn set_subscription(&mut self, config: wire::Subscription) -> std::result::Result<(), Status> {
        let (config, policy) = settings::subscription(config)?;
        if !self.subscriptions.contains_key(&config.name) {
            let Some(topic) = self.places.get(&config.topic) else { return Ok(()) };
            let new = StoredSubscription { topic: *topic, ..Default::default() };
            self.subscriptions.insert(config.name.clone(), new);
        }
        if let Some(subscription) = self.subscriptions.get_mut(&config.name) {
            if !policy.retain_acked || config.detached {
                subscription.retained.clear();
            }
            if config.detached {
                subscription.unacked.clear();
            }
            subscription.policy = policy;
            subscription.config = config;
        }
        Ok(())
    }

    fn set_snapshot(&mut self, config: wire::Snapshot, unacked: Option<&Ids>) {
        if let Some(unacked) = unacked {
            // Made: one of that name may have expired, which no record tells.
            let Some(topic) = self.places.get(&config.topic) else { return };
            let (name, unacked) = (config.name.clone(), unacked.iter().collect());
            self.snapshots.insert(name, StoredSnapshot { config, topic: *topic, unacked });
        } else if let Some(snapshot) = self.snapshots.get_mut(&config.name) {
            snapshot.config = config;
        }
    }

    fn publish(&mut self, published: Published) {
        let Some(place) = self.places.get(&published.topic) else { return };
        let topic = &mut self.topics[*place];
        let messages: Vec<Message> = published.messages.into_iter().filter_map(Message::restored).collect();
        for message in &messages {
            topic.next_message_id = topic.next_message_id.max(message.id + 1);
            topic.messages.insert(message.id, message.clone());
        }
        if published.is_old {
            topic.kept.extend(published.kept.iter().flat_map(Ids::iter));
            return;
        }
        let ids = || messages.iter().map(|message| message.id);
        if topic.config.message_retention_duration.is_some() {
            topic.kept.extend(ids());
        }
        let subscriptions = self.subscriptions.values_mut();
        for one in subscriptions.filter(|one| one.topic == *place && !one.config.detached) {
            let filter = one.policy.filter.as_ref();
            let passes = |message: &&Message| filter.is_none_or(|filter| filter.matches(|key| message.attribute(key)));
            one.unacked.extend(messages.iter().filter(passes).map(|message| (message.id, 0)));
        }
        for snapshot in self.snapshots.values_mut().filter(|one| one.topic == *place) {
            snapshot.unacked.extend(ids());
        }
    }

    fn change(&mut self, changed: &Changed) {
        let Some(subscription) = self.subscriptions.get_mut(&changed.subscription) else { return };
        for id in changed.acked.iter().flat_map(Ids::iter) {
            if subscription.unacked.remove(&id).is_some() && subscription.policy.retain_acked {
                subscription.retained.insert(id);
            }
        }
        for id in changed.unacked.iter().flat_map(Ids::iter) {
            subscription.retained.remove(&id);
            subscription.unacked.entry(id).or_insert(0);
        }
        subscription.retained.extend(changed.retained.iter().flat_map(Ids::iter));
        for (id, failures) in changed.failed.iter().zip(&changed.failures) {
            if let Some(count) = subscription.unacked.get_mut(id) {
                *count = *failures;
            }
        }
    }

    /// Drop what is past its retention, and the messages that nobody has.
    pub fn prune(&mut self, now: Time) {
        self.snapshots.retain(|_, one| one.config.expire_time.is_none_or(|time| Time::from_timestamp(time) > now));
        let is_kept = |topic: &StoredTopic, id: &u64, horizon: Time| {
            topic.messages.get(id).is_some_and(|message| message.published > horizon)
        };
        let mut used = vec![HashSet::<u64>::new(); self.topics.len()];
        for one in self.subscriptions.values_mut() {
            let (topic, horizon) = (&self.topics[one.topic], now.minus(one.policy.retention));
            one.unacked.retain(|id, _| is_kept(topic, id, horizon));
            one.retained.retain(|id| is_kept(topic, id, horizon));
            used[one.topic].extend(one.unacked.keys().chain(&one.retained));
        }
        for one in self.snapshots.values_mut() {
            let topic = &self.topics[one.topic];
            one.unacked.retain(|id| topic.messages.contains_key(id));
            used[one.topic].extend(&one.unacked);
        }
        for (topic, mut used) in self.topics.iter_mut().zip(used) {
            let retention = settings::topic_retention(&topic.config).ok().flatten().unwrap_or_default();
            let mut kept = std::mem::take(&mut topic.kept);
            kept.retain(|id| !topic.is_deleted && is_kept(topic, id, now.minus(retention)));
            used.extend(&kept);
            topic.kept = kept;
            topic.messages.retain(|id, _| used.contains(id));
        }
    }

    /// Records that add up to this.
    pub fn records(&self) -> impl Iterator<Item = Record> + '_ {
        // Deleted topics first: another one may have the name of one of them now.
        let (deleted, alive): (Vec<_>, Vec<_>) =
            (0..self.topics.len()).partition(|place| self.topics[*place].is_deleted);
        deleted.into_iter().chain(alive).flat_map(|place| self.topic_records(place))
    }

    fn topic_records(&self, place: usize) -> impl Iterator<Item = Record> + '_ {
        let topic = &self.topics[place];
        let subscriptions = || self.subscriptions.values().filter(move |one| one.topic == place);
        let snapshots = || self.snapshots.values().filter(move |one| one.topic == place);
        let is_needed = !topic.is_deleted || subscriptions().next().is_some() || snapshots().next().is_some();
        let made = is_needed.then(|| Record::of_topic(topic.config.clone(), topic.next_message_id));
        let subscriptions = subscriptions().flat_map(|one| {
            let (failed, failures) = one.unacked.iter().filter(|(_, count)| **count > 0).unzip();
            let changed = Changed {
                subscription: one.config.name.clone(),
                acked: None,
                unacked: Some(Ids::from_sorted(one.unacked.keys().copied())),
                retained: Some(Ids::from_sorted(one.retained.iter().copied())),
                failed,
                failures,
            };
            // It may show another name of its topic by now.
            let config = wire::Subscription { topic: topic.config.name.clone(), ..one.config.clone() };
            [Record::of_subscription(config), Record::of_changed(changed)]
        });
        let snapshots = snapshots().map(|one| {
            let config = wire::Snapshot { topic: topic.config.name.clone(), ..one.config.clone() };
            let unacked = Some(Ids::from_sorted(one.unacked.iter().copied()));
            Record::of_snapshot(config, unacked)
        });
        let deleted = (is_needed && topic.is_deleted)
            .then(|| Record { deleted_topic: topic.config.name.clone(), ..Record::default() });
        made.into_iter().chain(topic.message_records()).chain(subscriptions).chain(snapshots).chain(deleted)
    }
}

impl StoredTopic {
    /// The messages with these ids, as far as they are there.
    pub fn messages_of<'a>(&'a self, ids: &'a BTreeSet<u64>) -> impl Iterator<Item = Message> + 'a {
        ids.iter().filter_map(|id| self.messages.get(id).cloned())
    }

    fn message_records(&self) -> impl Iterator<Item = Record> + '_ {
        let mut ids: Vec<u64> = self.messages.keys().copied().collect();
        ids.sort_unstable();
        let mut rest = ids.into_iter().peekable();
        std::iter::from_fn(move || {
            rest.peek()?;
            let mut chunk: Vec<&Message> = Vec::new();
            let mut size_bytes = 0;
            while size_bytes < CHUNK_BYTES
                && let Some(message) = rest.next().and_then(|id| self.messages.get(&id))
            {
                size_bytes += message.bytes.len();
                chunk.push(message);
            }
            let kept = chunk.iter().map(|message| message.id).filter(|id| self.kept.contains(id));
            let published = Published {
                topic: self.config.name.clone(),
                kept: Some(Ids::from_sorted(kept)),
                messages: chunk.iter().map(|message| message.bytes.clone()).collect(),
                is_old: true,
            };
            Some(Record { published: Some(published), ..Record::default() })
        })
    }
}

#[cfg(test)]
#[path = "store_tests.rs"]
mod tests;
