//! The topics and subscriptions by name: what the calls of the service do, without the transport.

use std::collections::BTreeMap;
use std::path::Path;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, RwLock};
use std::time::Duration;

use prost::Message as _;
use tokio::runtime::Handle;
use tonic::Status;

use super::clock::Clock;
use super::durable::Durable;
use super::faults::Faults;
use super::listing::{Page, page};
use super::message::Publish;
use super::names::Kind;
use super::policy::Policy;
use super::settings;
use super::snapshot::Snapshot;
use super::state::{Counters, End, Entry};
use super::store::{Record, Store};
use super::subscription::{Subscription, check_all_done};
use super::sync::{lock, read, write};
use super::topic::Topic;
use crate::error::Error;
use crate::pubsub::wire;

/// The most bytes of a request with ack ids.
const MAX_ACK_REQUEST_BYTES: usize = 512 * 1024;

/// Everything that has a name, in the order of names.
#[derive(Debug, Default)]
pub struct Names {
    /// The topics.
    pub topics: BTreeMap<String, Arc<Topic>>,
    /// The subscriptions, detached ones included.
    pub subscriptions: BTreeMap<String, Arc<Subscription>>,
    /// The snapshots.
    pub snapshots: BTreeMap<String, Arc<Snapshot>>,
}

/// Everything the emulator holds.
#[derive(Debug)]
pub struct Registry {
    /// The faults that tests ask for.
    pub faults: Faults,
    pub(super) names: Arc<RwLock<Names>>,
    pub(super) clock: Arc<Clock>,
    pub(super) durable: Durable,
    next_generation: AtomicU64,
    stopped: AtomicBool,
    runtime: Handle,
}

impl Registry {
    /// One whose timers run on `runtime`: empty, or with a folder what that holds. Everything done is kept there first.
    pub fn open(runtime: Handle, folder: Option<&Path>) -> crate::error::Result<Self> {
        let clock = Arc::new(Clock::new());
        let (durable, store) = match folder {
            None => (Durable::default(), Store::default()),
            Some(folder) => Durable::open(folder, clock.clone())?,
        };
        // Ack ids of an earlier life name nothing in this one.
        let first_generation = if durable.is_on() { clock.now().as_micros() } else { 1 };
        let registry = Self {
            faults: Faults::default(),
            names: Arc::default(),
            clock,
            durable,
            next_generation: AtomicU64::new(first_generation),
            stopped: AtomicBool::new(false),
            runtime,
        };
        let restored = registry.restore(store);
        restored.map_err(|status| Error::from_status("reading the journal", &status)).map(|()| registry)
    }

    /// Create a topic.
    pub fn create_topic(&self, topic: wire::Topic) -> Result<wire::Topic, Status> {
        let config = settings::topic(topic)?;
        let mut names = write(&self.names);
        self.check_running()?;
        if names.topics.contains_key(&config.name) {
            return Err(Kind::Topic.already_exists(&config.name));
        }
        // Ids go on from the time, so that a topic created anew does not give the same ones again.
        let first_id = self.clock.now().as_micros();
        let topic = Topic::new(config.clone(), first_id, self.durable.clone())?;
        self.durable.write(|| Record::of_topic(config.clone(), first_id))?;
        names.topics.insert(config.name.clone(), Arc::new(topic));
        Ok(config)
    }

    /// Read a topic.
    pub fn get_topic(&self, name: &str) -> Result<wire::Topic, Status> {
        Ok(self.topic(name)?.config())
    }

    /// Change a topic.
    pub fn update_topic(&self, request: &wire::UpdateTopicRequest) -> Result<wire::Topic, Status> {
        let name = request.topic.as_ref().map(|topic| topic.name.as_str()).unwrap_or_default();
        self.topic(name)?.update(request)
    }

    /// The topics of a project.
    pub fn list_topics(&self, request: &wire::ListRequest) -> Result<wire::ListTopicsResponse, Status> {
        let names = read(&self.names);
        let Page { items, next_token } = project_page(Kind::Topic, &names.topics, request)?;
        let topics = items.iter().map(|topic| topic.config()).collect();
        Ok(wire::ListTopicsResponse { topics, next_page_token: next_token })
    }

    /// The names of a topic's subscriptions, without detached ones.
    pub fn list_topic_subscriptions(&self, request: &wire::ListRequest) -> Result<wire::ListNamesResponse, Status> {
        let mut subscriptions = self.topic(&request.parent)?.subscriptions();
        subscriptions.sort_by(|one, other| one.name.cmp(&other.name));
        let named = subscriptions.iter().map(|subscription| (subscription.name.as_str(), subscription.name.clone()));
        let Page { items, next_token } = page(request, named)?;
        Ok(wire::ListNamesResponse { names: items, next_page_token: next_token })
    }

    /// Delete a topic; its subscriptions stay, with the messages they have.
    pub fn delete_topic(&self, name: &str) -> Result<(), Status> {
        Kind::Topic.check(name)?;
        let mut names = write(&self.names);
        names.topics.get(name).ok_or_else(|| Kind::Topic.not_found(name))?.delete()?;
        names.topics.remove(name);
        Ok(())
    }

    /// Create a subscription.
    pub fn create_subscription(&self, config: wire::Subscription) -> Result<wire::Subscription, Status> {
        Kind::Topic.check(&config.topic)?;
        let (mut config, policy) = settings::subscription(config)?;
        config.detached = false;
        let mut names = write(&self.names);
        self.check_running()?;
        if names.subscriptions.contains_key(&config.name) {
            return Err(Kind::Subscription.already_exists(&config.name));
        }
        let topic = names.topics.get(&config.topic).ok_or_else(|| Kind::Topic.not_found(&config.topic))?.clone();
        check_dead_letter_topic(&names, &config)?;
        let subscription = self.new_subscription(config, policy, topic);
        subscription.topic.attach(subscription.clone())?;
        self.runtime.spawn(subscription.clone().keep_time());
        names.subscriptions.insert(subscription.name.clone(), subscription.clone());
        Ok(subscription.config())
    }

    fn new_subscription(&self, config: wire::Subscription, policy: Policy, topic: Arc<Topic>) -> Arc<Subscription> {
        let generation = self.next_generation.fetch_add(1, Ordering::Relaxed);
        let (clock, names) = (self.clock.clone(), Arc::downgrade(&self.names));
        Arc::new(Subscription::new(config, policy, generation, topic, clock, names, self.durable.clone()))
    }

    /// Take up what an earlier life has left.
    fn restore(&self, store: Store) -> Result<(), Status> {
        let Store { topics: mut stored_topics, subscriptions, snapshots, .. } = store;
        let mut topics = Vec::with_capacity(stored_topics.len());
        for stored in &mut stored_topics {
            let first_id = stored.next_message_id.max(self.clock.now().as_micros());
            let topic = Arc::new(Topic::new(stored.config.clone(), first_id, self.durable.clone())?);
            lock(&topic.history).restore(stored.messages_of(&stored.kept));
            if stored.is_deleted {
                topic.set_deleted();
            } else {
                write(&self.names).topics.insert(stored.config.name.clone(), topic.clone());
            }
            topics.push(topic);
        }
        for (name, stored) in subscriptions {
            let (topic, messages) = (&topics[stored.topic], &stored_topics[stored.topic]);
            let unacked = stored.unacked.iter().filter_map(|(id, failures)| {
                messages.messages.get(id).map(|message| Entry {
                    message: message.clone(),
                    deliveries: 0,
                    failures: *failures,
                })
            });
            let subscription = self.new_subscription(stored.config, stored.policy, topic.clone());
            subscription.restore(unacked.collect(), messages.messages_of(&stored.retained).collect());
            if subscription.check_attached().is_ok() && !topic.is_deleted() {
                topic.attach_again(subscription.clone());
            }
            self.runtime.spawn(subscription.clone().keep_time());
            write(&self.names).subscriptions.insert(name, subscription);
        }
        for stored in snapshots.into_values() {
            let unacked = stored_topics[stored.topic].messages_of(&stored.unacked);
            let unacked = unacked.map(|message| (message.id, message)).collect();
            self.restore_snapshot(stored.config, topics[stored.topic].clone(), unacked);
        }
        Ok(())
    }

    /// Read a subscription.
    pub fn get_subscription(&self, name: &str) -> Result<wire::Subscription, Status> {
        Ok(self.subscription(name)?.config())
    }

    /// Change a subscription.
    pub fn update_subscription(&self, request: &wire::UpdateSubscriptionRequest) -> Result<wire::Subscription, Status> {
        let given = request.subscription.clone().unwrap_or_default();
        let subscription = self.subscription(&given.name)?;
        let paths = request.update_mask.iter().flat_map(|mask| &mask.paths);
        if paths.into_iter().any(|path| path.starts_with("dead_letter_policy")) {
            check_dead_letter_topic(&read(&self.names), &given)?;
        }
        subscription.update(request)
    }

    /// The subscriptions of a project.
    pub fn list_subscriptions(&self, request: &wire::ListRequest) -> Result<wire::ListSubscriptionsResponse, Status> {
        let names = read(&self.names);
        let Page { items, next_token } = project_page(Kind::Subscription, &names.subscriptions, request)?;
        let subscriptions = items.iter().map(|subscription| subscription.config()).collect();
        Ok(wire::ListSubscriptionsResponse { subscriptions, next_page_token: next_token })
    }

    /// Delete a subscription and its messages; its streams end.
    pub fn delete_subscription(&self, name: &str) -> Result<(), Status> {
        Kind::Subscription.check(name)?;
        let mut names = write(&self.names);
        let subscription = names.subscriptions.get(name).ok_or_else(|| Kind::Subscription.not_found(name))?;
        subscription.topic.detach(subscription, &End::Deleted)?;
        names.subscriptions.remove(name);
        Ok(())
    }

    /// Cut a subscription off its topic: its messages go and its streams end.
    pub fn detach_subscription(&self, name: &str) -> Result<(), Status> {
        let subscription = self.subscription(name)?;
        subscription.topic.detach(&subscription, &End::Detached)
    }

    /// Only pulling is there, and it can be asked for.
    pub fn modify_push_config(&self, request: wire::ModifyPushConfigRequest) -> Result<(), Status> {
        let update = wire::UpdateSubscriptionRequest {
            subscription: Some(wire::Subscription {
                name: request.subscription,
                push_config: request.push_config,
                ..Default::default()
            }),
            update_mask: Some(wire::FieldMask { paths: vec!["push_config".to_owned()] }),
        };
        self.update_subscription(&update).map(drop)
    }

    /// Publish messages to every subscription of their topic, and give their ids.
    pub fn publish(&self, request: &Publish) -> Result<wire::PublishResponse, Status> {
        let message_ids = self.topic(&request.topic)?.publish(request, self.clock.now())?;
        Ok(wire::PublishResponse { message_ids })
    }

    /// Acknowledge deliveries.
    pub fn acknowledge(&self, request: &wire::AcknowledgeRequest) -> Result<(), Status> {
        let subscription = self.subscription(&request.subscription)?;
        check_ack_ids(&request.ack_ids, request.encoded_len())?;
        subscription.check_attached()?;
        if self.faults.drops_acks() {
            return Ok(());
        }
        check_all_done(&subscription.acknowledge(&request.ack_ids)?)
    }

    /// Give deliveries a new deadline.
    pub fn modify_ack_deadline(&self, request: &wire::ModifyAckDeadlineRequest) -> Result<(), Status> {
        let subscription = self.subscription(&request.subscription)?;
        check_ack_ids(&request.ack_ids, request.encoded_len())?;
        subscription.check_attached()?;
        let seconds = vec![request.ack_deadline_seconds; request.ack_ids.len()];
        check_all_done(&subscription.modify_deadlines(&request.ack_ids, &seconds)?)
    }

    /// A subscription by name.
    pub fn subscription(&self, name: &str) -> Result<Arc<Subscription>, Status> {
        self.check_running()?;
        self.known_subscription(name)
    }

    /// How many messages were published to a topic. This, like the counters, can be read of a stopped emulator.
    pub fn published(&self, topic: &str) -> Result<u64, Status> {
        Ok(self.known_topic(topic)?.published())
    }

    /// A subscription's counters.
    pub fn counters(&self, subscription: &str) -> Result<Counters, Status> {
        Ok(self.known_subscription(subscription)?.with(|state, _| state.counters()))
    }

    /// The ids of the messages a subscription has acknowledged.
    pub fn acked_ids(&self, subscription: &str) -> Result<Vec<u64>, Status> {
        Ok(self.known_subscription(subscription)?.with(|state, _| state.acked_ids()))
    }

    /// Turn the clock forward. On return everything that time does is done.
    pub fn advance(&self, by: Duration) {
        self.clock.advance(by);
        let subscriptions: Vec<_> = read(&self.names).subscriptions.values().cloned().collect();
        for subscription in subscriptions {
            subscription.on_new_time();
        }
    }

    /// Let every stream look again: a fault was asked for.
    pub fn poke_streams(&self) {
        let subscriptions: Vec<_> = read(&self.names).subscriptions.values().cloned().collect();
        for subscription in subscriptions {
            subscription.with(|state, _| state.poke_streams());
        }
    }

    /// End every stream and answer every further call with UNAVAILABLE.
    pub fn stop(&self) {
        let subscriptions: Vec<_> = {
            // Under the lock: a subscription is either seen here or refused.
            let names = write(&self.names);
            self.stopped.store(true, Ordering::Release);
            names.subscriptions.values().cloned().collect()
        };
        for subscription in subscriptions {
            // Those that are deleted meanwhile have ended already.
            let _ = subscription.end(&End::Stopped);
        }
    }

    /// Let go of the folder, after the last answer.
    pub fn close(&self) {
        self.durable.close();
    }

    pub(super) fn topic(&self, name: &str) -> Result<Arc<Topic>, Status> {
        self.check_running()?;
        self.known_topic(name)
    }

    fn known_subscription(&self, name: &str) -> Result<Arc<Subscription>, Status> {
        Kind::Subscription.check(name)?;
        read(&self.names).subscriptions.get(name).cloned().ok_or_else(|| Kind::Subscription.not_found(name))
    }

    fn known_topic(&self, name: &str) -> Result<Arc<Topic>, Status> {
        Kind::Topic.check(name)?;
        read(&self.names).topics.get(name).cloned().ok_or_else(|| Kind::Topic.not_found(name))
    }

    pub(super) fn check_running(&self) -> Result<(), Status> {
        if self.stopped.load(Ordering::Acquire) { Err(stopped()) } else { Ok(()) }
    }
}

impl Drop for Registry {
    fn drop(&mut self) {
        // Topics and subscriptions hold each other.
        for topic in read(&self.names).topics.values() {
            topic.let_go();
        }
    }
}

/// The answer of an emulator that stops.
pub fn stopped() -> Status {
    Status::unavailable("The emulator is stopping.")
}

/// One page of a project's things.
pub fn project_page<'a, T>(
    kind: Kind,
    things: &'a BTreeMap<String, T>,
    request: &wire::ListRequest,
) -> Result<Page<&'a T>, Status> {
    let prefix = kind.prefix(&request.parent)?;
    let from_prefix = things.range(prefix.clone()..).take_while(|(name, _)| name.starts_with(&prefix));
    page(request, from_prefix.map(|(name, thing)| (name.as_str(), thing)))
}

fn check_dead_letter_topic(names: &Names, config: &wire::Subscription) -> Result<(), Status> {
    match &config.dead_letter_policy {
        Some(policy) if policy.dead_letter_topic.is_empty() => Ok(()),
        Some(policy) if !names.topics.contains_key(&policy.dead_letter_topic) => {
            Err(Kind::Topic.not_found(&policy.dead_letter_topic))
        }
        _ => Ok(()),
    }
}

fn check_ack_ids(ack_ids: &[String], request_bytes: usize) -> Result<(), Status> {
    if ack_ids.is_empty() {
        return Err(Status::invalid_argument("The request has no ack ids."));
    }
    if request_bytes > MAX_ACK_REQUEST_BYTES {
        return Err(Status::invalid_argument(format!(
            "Request payload size exceeds the limit: {MAX_ACK_REQUEST_BYTES} bytes."
        )));
    }
    Ok(())
}
