//! A topic: its settings, its subscriptions, and what it keeps of its messages.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, RwLock};

use tonic::Status;

use super::clock::Time;
use super::history::History;
use super::message::{Message, Publish};
use super::settings;
use super::state::Entry;
use super::subscription::Subscription;
use super::sync::{lock, read, write};
use crate::pubsub::wire;

/// What a subscription or snapshot names as its topic when that was deleted.
pub const DELETED_TOPIC: &str = "_deleted-topic_";

/// A topic.
#[derive(Debug)]
pub struct Topic {
    /// `projects/P/topics/T`.
    name: String,
    config: Mutex<wire::Topic>,
    /// Each topic numbers its own messages: what a subscription has acknowledged is then mostly one range.
    next_message_id: AtomicU64,
    published: AtomicU64,
    is_deleted: AtomicBool,
    subscriptions: RwLock<Vec<Arc<Subscription>>>,
    /// What it keeps of its messages.
    pub history: Mutex<History>,
}

impl Topic {
    /// A topic with settings that were checked.
    pub fn new(config: wire::Topic, now: Time) -> Result<Self, Status> {
        let mut history = History::default();
        history.set_retention(settings::topic_retention(&config)?);
        Ok(Self {
            name: config.name.clone(),
            config: Mutex::new(config),
            // Ids go on from the time, so that a topic created anew does not give the same ones again.
            next_message_id: AtomicU64::new(now.as_micros()),
            published: AtomicU64::new(0),
            is_deleted: AtomicBool::new(false),
            subscriptions: RwLock::default(),
            history: Mutex::new(history),
        })
    }

    /// The settings.
    pub fn config(&self) -> wire::Topic {
        lock(&self.config).clone()
    }

    /// Change the settings.
    pub fn update(&self, request: &wire::UpdateTopicRequest) -> Result<wire::Topic, Status> {
        let given = request.topic.clone().unwrap_or_default();
        let mut config = lock(&self.config);
        let new = settings::updated_topic(&config, &given, request.update_mask.as_ref())?;
        lock(&self.history).set_retention(settings::topic_retention(&new)?);
        *config = new.clone();
        Ok(new)
    }

    /// What names it: the name, until it is deleted.
    pub fn name(&self) -> &str {
        if self.is_deleted() { DELETED_TOPIC } else { &self.name }
    }

    /// Whether it was deleted.
    pub fn is_deleted(&self) -> bool {
        self.is_deleted.load(Ordering::Acquire)
    }

    /// It was deleted; its subscriptions stay, with the messages they have.
    pub fn delete(&self) {
        self.is_deleted.store(true, Ordering::Release);
        write(&self.subscriptions).clear();
    }

    /// Let a subscription have what is published from now on.
    pub fn attach(&self, subscription: Arc<Subscription>) {
        write(&self.subscriptions).push(subscription);
    }

    /// A subscription has nothing of it any more.
    pub fn detach(&self, subscription: &Arc<Subscription>) {
        write(&self.subscriptions).retain(|other| !Arc::ptr_eq(other, subscription));
    }

    /// Its subscriptions. A copy: a push to one may forward messages, which needs the locks of others.
    pub fn subscriptions(&self) -> Vec<Arc<Subscription>> {
        read(&self.subscriptions).clone()
    }

    /// How many messages were published.
    pub fn published(&self) -> u64 {
        self.published.load(Ordering::Relaxed)
    }

    /// Publish a request's messages and give their ids.
    pub fn publish(&self, request: &Publish, now: Time) -> Result<Vec<String>, Status> {
        let count = request.len() as u64;
        let first_id = self.next_message_id.fetch_add(count, Ordering::Relaxed);
        self.add(&request.stamp(first_id, now)?, now);
        Ok((first_id..first_id + count).map(|id| id.to_string()).collect())
    }

    /// Publish messages of another topic anew, each with its own further attributes.
    pub fn forward(&self, entries: &[Entry], now: Time, attributes: impl Fn(&Entry) -> Vec<(&'static str, String)>) {
        let first_id = self.next_message_id.fetch_add(entries.len() as u64, Ordering::Relaxed);
        let forwarded = (first_id..).zip(entries);
        let messages: Vec<Message> =
            forwarded.map(|(id, entry)| entry.message.forwarded(id, now, &attributes(entry))).collect();
        self.add(&messages, now);
    }

    fn add(&self, messages: &[Message], now: Time) {
        for subscription in self.subscriptions() {
            subscription.with(|state, _| state.push(messages));
        }
        lock(&self.history).push(messages, now);
        self.published.fetch_add(messages.len() as u64, Ordering::Relaxed);
    }
}
