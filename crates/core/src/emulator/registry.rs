//! The topics and subscriptions by name: what the calls of the service do, without the transport.

use std::collections::HashMap;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, RwLock, RwLockReadGuard, RwLockWriteGuard};
use std::time::Duration;

use tokio::runtime::Handle;
use tokio::sync::Notify;
use tonic::Status;

use super::clock::{Clock, Time};
use super::delivery::AckId;
use super::message::{Message, Publish};
use super::names::Kind;
use super::state::{Counters, End, State};
use crate::pubsub::wire::{self, MAX_ACK_DEADLINE_S, MIN_ACK_DEADLINE_S};

/// What a subscription names as its topic when that was deleted.
const DELETED_TOPIC: &str = "_deleted-topic_";

/// A topic.
#[derive(Debug)]
struct Topic {
    config: wire::Topic,
    published: AtomicU64,
    subscriptions: RwLock<Vec<Arc<Subscription>>>,
}

/// A subscription: its state behind a lock of its own, so that subscriptions do not wait for each other.
#[derive(Debug)]
pub struct Subscription {
    /// Tells its deliveries from those of a deleted subscription of the same name.
    pub generation: u64,
    /// Whether each ordering key keeps its order.
    pub ordered: bool,
    config: Mutex<wire::Subscription>,
    state: Mutex<State>,
    timer: Notify,
    clock: Arc<Clock>,
}

impl Subscription {
    /// Work on the state; afterwards the streams that can go on are woken and the timer is moved where need be.
    pub fn with<T>(&self, work: impl FnOnce(&mut State, Time) -> T) -> T {
        let now = self.clock.now();
        let (result, wakers, timer_is_late) = {
            let mut state = lock(&self.state);
            state.expire(now);
            let result = work(&mut state, now);
            (result, state.wakers(), state.timer_is_late())
        };
        if timer_is_late {
            self.timer.notify_one();
        }
        for waker in wakers {
            waker.wake();
        }
        result
    }

    /// Acknowledge deliveries.
    pub fn acknowledge(&self, ack_ids: &[String]) -> Result<(), Status> {
        let ack_ids = parse(ack_ids)?;
        self.with(|state, _| {
            for id in self.own(&ack_ids) {
                state.acknowledge(id.delivery);
            }
        });
        Ok(())
    }

    /// Give deliveries new deadlines; the slices have the same length.
    pub fn modify_deadlines(&self, ack_ids: &[String], seconds: &[i32]) -> Result<(), Status> {
        let ack_ids = parse(ack_ids)?;
        let durations: Vec<Duration> = seconds.iter().map(|s| modified_deadline(*s)).collect::<Result<_, _>>()?;
        self.with(|state, now| {
            for (id, remaining) in ack_ids.iter().zip(durations) {
                if id.generation == self.generation {
                    state.modify_deadline(id.delivery, remaining, now);
                }
            }
        });
        Ok(())
    }

    fn own<'a>(&self, ack_ids: &'a [AckId]) -> impl Iterator<Item = &'a AckId> + use<'a> {
        let generation = self.generation;
        ack_ids.iter().filter(move |id| id.generation == generation)
    }

    fn end(&self, end: &End) {
        self.with(|state, _| state.end(end));
        self.timer.notify_one();
    }

    /// The one timer: sleeps until the earliest deadline.
    async fn expire_leases(self: Arc<Self>) {
        loop {
            let (over, wait) = self.with(|state, now| (state.has_ended(), state.set_timer().map(|at| now.until(at))));
            match wait {
                _ if over => return,
                None => self.timer.notified().await,
                Some(wait) => {
                    // Ends early when a lease comes that ends sooner; either way the loop looks again.
                    let _ = tokio::time::timeout(wait, self.timer.notified()).await;
                }
            }
        }
    }
}

#[derive(Debug, Default)]
struct Names {
    topics: HashMap<String, Arc<Topic>>,
    subscriptions: HashMap<String, Arc<Subscription>>,
}

/// Everything the emulator holds.
#[derive(Debug)]
pub struct Registry {
    names: RwLock<Names>,
    next_message_id: AtomicU64,
    next_generation: AtomicU64,
    stopped: AtomicBool,
    clock: Arc<Clock>,
    runtime: Handle,
}

impl Registry {
    /// An empty one, whose timers run on `runtime`.
    pub fn new(runtime: Handle) -> Self {
        let clock = Arc::new(Clock::new());
        Self {
            names: RwLock::default(),
            // Ids go on from the time, so that an emulator started anew does not give the same ones again.
            next_message_id: AtomicU64::new(clock.now().as_micros()),
            next_generation: AtomicU64::new(1),
            stopped: AtomicBool::new(false),
            clock,
            runtime,
        }
    }

    /// Create a topic.
    pub fn create_topic(&self, topic: wire::Topic) -> Result<wire::Topic, Status> {
        Kind::Topic.check(&topic.name)?;
        let mut names = write(&self.names);
        self.check_running()?;
        if names.topics.contains_key(&topic.name) {
            return Err(Kind::Topic.already_exists(&topic.name));
        }
        let created = Topic { config: topic.clone(), published: AtomicU64::new(0), subscriptions: RwLock::default() };
        names.topics.insert(topic.name.clone(), Arc::new(created));
        Ok(topic)
    }

    /// Read a topic.
    pub fn get_topic(&self, name: &str) -> Result<wire::Topic, Status> {
        Ok(self.topic(name)?.config.clone())
    }

    /// Delete a topic; its subscriptions stay, with the messages they have.
    pub fn delete_topic(&self, name: &str) -> Result<(), Status> {
        Kind::Topic.check(name)?;
        let topic = write(&self.names).topics.remove(name).ok_or_else(|| Kind::Topic.not_found(name))?;
        for subscription in write(&topic.subscriptions).drain(..) {
            DELETED_TOPIC.clone_into(&mut lock(&subscription.config).topic);
        }
        Ok(())
    }

    /// Create a subscription.
    pub fn create_subscription(&self, mut config: wire::Subscription) -> Result<wire::Subscription, Status> {
        Kind::Subscription.check(&config.name)?;
        Kind::Topic.check(&config.topic)?;
        if config.ack_deadline_seconds == 0 {
            config.ack_deadline_seconds = MIN_ACK_DEADLINE_S;
        }
        ack_deadline(config.ack_deadline_seconds)?;
        refuse_unsupported(&config)?;
        let mut names = write(&self.names);
        self.check_running()?;
        if names.subscriptions.contains_key(&config.name) {
            return Err(Kind::Subscription.already_exists(&config.name));
        }
        let topic = names.topics.get(&config.topic).ok_or_else(|| Kind::Topic.not_found(&config.topic))?;
        let subscription = Arc::new(Subscription {
            generation: self.next_generation.fetch_add(1, Ordering::Relaxed),
            ordered: config.enable_message_ordering,
            config: Mutex::new(config.clone()),
            state: Mutex::new(State::new(config.enable_message_ordering)),
            timer: Notify::new(),
            clock: self.clock.clone(),
        });
        self.runtime.spawn(subscription.clone().expire_leases());
        write(&topic.subscriptions).push(subscription.clone());
        names.subscriptions.insert(config.name.clone(), subscription);
        Ok(config)
    }

    /// Read a subscription.
    pub fn get_subscription(&self, name: &str) -> Result<wire::Subscription, Status> {
        Ok(lock(&self.subscription(name)?.config).clone())
    }

    /// Delete a subscription and its messages; its streams end.
    pub fn delete_subscription(&self, name: &str) -> Result<(), Status> {
        Kind::Subscription.check(name)?;
        let mut names = write(&self.names);
        let subscription = names.subscriptions.remove(name).ok_or_else(|| Kind::Subscription.not_found(name))?;
        if let Some(topic) = names.topics.get(&lock(&subscription.config).topic) {
            write(&topic.subscriptions).retain(|other| !Arc::ptr_eq(other, &subscription));
        }
        drop(names);
        subscription.end(&End::Deleted);
        Ok(())
    }

    /// Publish messages to every subscription of their topic, and give their ids.
    pub fn publish(&self, request: &Publish) -> Result<wire::PublishResponse, Status> {
        let topic = self.topic(&request.topic)?;
        let count = request.len() as u64;
        let first_id = self.next_message_id.fetch_add(count, Ordering::Relaxed);
        let messages: Vec<Message> = request.stamp(first_id, self.clock.now())?;
        for subscription in read(&topic.subscriptions).iter() {
            subscription.with(|state, _| state.push(&messages));
        }
        topic.published.fetch_add(count, Ordering::Relaxed);
        Ok(wire::PublishResponse { message_ids: messages.iter().map(|message| message.id.to_string()).collect() })
    }

    /// Acknowledge deliveries.
    pub fn acknowledge(&self, request: &wire::AcknowledgeRequest) -> Result<(), Status> {
        let subscription = self.subscription(&request.subscription)?;
        check_any(&request.ack_ids)?;
        subscription.acknowledge(&request.ack_ids)
    }

    /// Give deliveries a new deadline.
    pub fn modify_ack_deadline(&self, request: &wire::ModifyAckDeadlineRequest) -> Result<(), Status> {
        let subscription = self.subscription(&request.subscription)?;
        check_any(&request.ack_ids)?;
        let seconds = vec![request.ack_deadline_seconds; request.ack_ids.len()];
        subscription.modify_deadlines(&request.ack_ids, &seconds)
    }

    /// A subscription by name.
    pub fn subscription(&self, name: &str) -> Result<Arc<Subscription>, Status> {
        self.check_running()?;
        self.known_subscription(name)
    }

    /// How many messages were published to a topic. This, like the counters, can be read of a stopped emulator.
    pub fn published(&self, topic: &str) -> Result<u64, Status> {
        Ok(self.known_topic(topic)?.published.load(Ordering::Relaxed))
    }

    /// A subscription's counters.
    pub fn counters(&self, subscription: &str) -> Result<Counters, Status> {
        Ok(self.known_subscription(subscription)?.with(|state, _| state.counters()))
    }

    /// The ids of the messages a subscription has acknowledged.
    pub fn acked_ids(&self, subscription: &str) -> Result<Vec<u64>, Status> {
        Ok(self.known_subscription(subscription)?.with(|state, _| state.acked_ids()))
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
            subscription.end(&End::Stopped);
        }
    }

    fn topic(&self, name: &str) -> Result<Arc<Topic>, Status> {
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

    fn check_running(&self) -> Result<(), Status> {
        if self.stopped.load(Ordering::Acquire) { Err(stopped()) } else { Ok(()) }
    }
}

/// The answer of an emulator that stops.
pub fn stopped() -> Status {
    Status::unavailable("The emulator is stopping.")
}

/// The lease length of a subscription or stream.
pub fn ack_deadline(seconds: i32) -> Result<Duration, Status> {
    if !(MIN_ACK_DEADLINE_S..=MAX_ACK_DEADLINE_S).contains(&seconds) {
        return Err(Status::invalid_argument(format!(
            "The ack deadline of {seconds} s is invalid; it must lie between {MIN_ACK_DEADLINE_S} and {MAX_ACK_DEADLINE_S} s."
        )));
    }
    Ok(Duration::from_secs(seconds.unsigned_abs().into()))
}

fn modified_deadline(seconds: i32) -> Result<Duration, Status> {
    if !(0..=MAX_ACK_DEADLINE_S).contains(&seconds) {
        return Err(Status::invalid_argument(format!(
            "The ack deadline of {seconds} s is invalid; it must lie between 0 and {MAX_ACK_DEADLINE_S} s."
        )));
    }
    Ok(Duration::from_secs(seconds.unsigned_abs().into()))
}

/// A subscription that would behave otherwise than asked is refused, not created.
fn refuse_unsupported(config: &wire::Subscription) -> Result<(), Status> {
    let unsupported = [
        (config.enable_exactly_once_delivery, "enable_exactly_once_delivery"),
        (!config.filter.is_empty(), "filter"),
        (config.dead_letter_policy.is_some(), "dead_letter_policy"),
        (config.retry_policy.is_some(), "retry_policy"),
        (config.push_config.as_ref().is_some_and(|push| !push.push_endpoint.is_empty()), "push_config"),
    ];
    match unsupported.iter().find(|(asked, _)| *asked) {
        Some((_, feature)) => Err(Status::unimplemented(format!("The emulator does not have {feature}."))),
        None => Ok(()),
    }
}

fn check_any(ack_ids: &[String]) -> Result<(), Status> {
    if ack_ids.is_empty() { Err(Status::invalid_argument("The request has no ack ids.")) } else { Ok(()) }
}

fn parse(ack_ids: &[String]) -> Result<Vec<AckId>, Status> {
    ack_ids.iter().map(|text| AckId::parse(text)).collect()
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

fn read<T>(lock: &RwLock<T>) -> RwLockReadGuard<'_, T> {
    lock.read().unwrap_or_else(PoisonError::into_inner)
}

fn write<T>(lock: &RwLock<T>) -> RwLockWriteGuard<'_, T> {
    lock.write().unwrap_or_else(PoisonError::into_inner)
}
