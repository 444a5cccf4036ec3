//! A topic: its settings, its subscriptions, and what it keeps of its messages.

use std::collections::BTreeSet;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, RwLock, RwLockWriteGuard};

use tonic::Status;

use super::clock::Time;
use super::durable::Durable;
use super::history::History;
use super::message::{Message, Publish};
use super::names::Kind;
use super::settings;
use super::state::{End, Entry};
use super::store::{Changed, Record};
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
    /// Held while something is published, so that it goes to the subscriptions that the journal has at that place.
    /// Locked after the registry's names, and before the state of a subscription.
    subscriptions: RwLock<Vec<Arc<Subscription>>>,
    /// What it keeps of its messages.
    pub history: Mutex<History>,
    durable: Durable,
}

impl Topic {
    /// A topic with settings that were checked, which numbers its messages from `first_id` on.
    pub fn new(config: wire::Topic, first_id: u64, durable: Durable) -> Result<Self, Status> {
        let mut history = History::default();
        history.set_retention(settings::topic_retention(&config)?);
        Ok(Self {
            name: config.name.clone(),
            config: Mutex::new(config),
            next_message_id: AtomicU64::new(first_id),
            published: AtomicU64::new(0),
            is_deleted: AtomicBool::new(false),
            subscriptions: RwLock::default(),
            history: Mutex::new(history),
            durable,
        })
    }

    /// The settings.
    pub fn config(&self) -> wire::Topic {
        lock(&self.config).clone()
    }

    /// Change the settings.
    pub fn update(&self, request: &wire::UpdateTopicRequest) -> Result<wire::Topic, Status> {
        let given = request.topic.clone().unwrap_or_default();
        let _still = self.hold()?;
        let mut config = lock(&self.config);
        let new = settings::updated_topic(&config, &given, request.update_mask.as_ref())?;
        let next_message_id = self.next_message_id.load(Ordering::Relaxed);
        self.durable.write(|| Record::of_topic(new.clone(), next_message_id))?;
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

    /// Let nothing be published and nothing change while the result is held.
    pub fn hold(&self) -> Result<RwLockWriteGuard<'_, Vec<Arc<Subscription>>>, Status> {
        let held = write(&self.subscriptions);
        if self.is_deleted() { Err(Kind::Topic.not_found(&self.name)) } else { Ok(held) }
    }

    /// Delete it; its subscriptions stay, with the messages they have.
    pub fn delete(&self) -> Result<(), Status> {
        let mut subscriptions = self.hold()?;
        self.durable.write(|| Record { deleted_topic: self.name.clone(), ..Record::default() })?;
        subscriptions.clear();
        self.set_deleted();
        Ok(())
    }

    /// It was deleted.
    pub fn set_deleted(&self) {
        self.is_deleted.store(true, Ordering::Release);
    }

    /// The emulator is gone.
    pub fn let_go(&self) {
        write(&self.subscriptions).clear();
    }

    /// Let a new subscription have what is published from now on.
    pub fn attach(&self, subscription: Arc<Subscription>) -> Result<(), Status> {
        let mut subscriptions = self.hold()?;
        self.durable.write(|| Record::of_subscription(subscription.kept_config()))?;
        subscriptions.push(subscription);
        Ok(())
    }

    /// Let a subscription of an earlier life have what is published from now on.
    pub fn attach_again(&self, subscription: Arc<Subscription>) {
        write(&self.subscriptions).push(subscription);
    }

    /// Let a subscription end, and have nothing of this topic any more.
    pub fn detach(&self, subscription: &Arc<Subscription>, end: &End) -> Result<(), Status> {
        let mut subscriptions = write(&self.subscriptions);
        subscription.end(end)?;
        subscriptions.retain(|other| !Arc::ptr_eq(other, subscription));
        Ok(())
    }

    /// Its subscriptions.
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
        self.add(&request.stamp(first_id, now)?, now, None)?;
        Ok((first_id..first_id + count).map(|id| id.to_string()).collect())
    }

    /// Publish the dead letters of a subscription anew, each with its own further attributes. They are its own no more.
    pub fn forward(
        &self,
        dead: &[Entry],
        subscription: &str,
        now: Time,
        attributes: impl Fn(&Entry) -> Vec<(&'static str, String)>,
    ) -> Result<(), Status> {
        let first_id = self.next_message_id.fetch_add(dead.len() as u64, Ordering::Relaxed);
        let forwarded = (first_id..).zip(dead);
        let messages: Vec<Message> =
            forwarded.map(|(id, entry)| entry.message.forwarded(id, now, &attributes(entry))).collect();
        let ids: BTreeSet<u64> = dead.iter().map(|entry| entry.message.id).collect();
        self.add(&messages, now, Some(Changed::acked(subscription, ids)))
    }

    fn add(&self, messages: &[Message], now: Time, changed: Option<Changed>) -> Result<(), Status> {
        let mut dead = Vec::new();
        {
            let subscriptions = read(&self.subscriptions);
            if self.is_deleted() {
                return Err(Kind::Topic.not_found(&self.name));
            }
            self.durable.write(|| Record { changed, ..Record::of_messages(&self.name, messages) })?;
            for subscription in subscriptions.iter() {
                let ((), letters) = subscription.work(|state, _| state.push(messages));
                dead.push((subscription.clone(), letters));
            }
            lock(&self.history).push(messages, now);
        }
        self.published.fetch_add(messages.len() as u64, Ordering::Relaxed);
        // Only now: it needs the locks of topics, maybe of this one.
        dead.into_iter().for_each(|(subscription, letters)| subscription.forward(letters));
        Ok(())
    }
}
