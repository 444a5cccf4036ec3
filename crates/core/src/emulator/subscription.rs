//! A subscription: its state behind a lock of its own, its settings, its timer, and the way to its dead-letter topic.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, Mutex, RwLock, Weak};
use std::task::Waker;
use std::time::Duration;

use prost::Message as _;
use tokio::sync::Notify;
use tonic::{Code, Status};

use super::clock::{Clock, Time};
use super::delivery::AckId;
use super::durable::Durable;
use super::message::Message;
use super::names::Kind;
use super::policy::Policy;
use super::registry::{Names, stopped};
use super::settings;
use super::state::{DeliveryId, End, Entry, Sought, State};
use super::store::{Changed, Ids, Record};
use super::sync::{lock, read};
use super::topic::Topic;
use crate::pubsub::wire::{self, MAX_ACK_DEADLINE_S};

/// A subscription. Subscriptions do not wait for each other.
#[derive(Debug)]
pub struct Subscription {
    /// `projects/P/subscriptions/S`.
    pub name: String,
    /// Tells its deliveries from those of a deleted subscription of the same name.
    pub generation: u64,
    /// Whether each ordering key keeps its order.
    pub ordered: bool,
    /// Where its messages come from.
    pub topic: Arc<Topic>,
    /// Locked after the state, where both are.
    config: Mutex<wire::Subscription>,
    state: Mutex<State>,
    timer: Notify,
    clock: Arc<Clock>,
    /// For the dead-letter topic.
    names: Weak<RwLock<Names>>,
    durable: Durable,
}

/// What became of a request with ack ids.
#[derive(Debug, Default)]
pub struct Outcome {
    /// Those that were done.
    pub done: Vec<String>,
    /// Those that are malformed or stale.
    pub invalid: Vec<String>,
}

impl Subscription {
    /// A subscription with settings that were checked.
    pub fn new(
        config: wire::Subscription,
        policy: Policy,
        generation: u64,
        topic: Arc<Topic>,
        clock: Arc<Clock>,
        names: Weak<RwLock<Names>>,
        durable: Durable,
    ) -> Self {
        let ordered = config.enable_message_ordering;
        Self {
            name: config.name.clone(),
            generation,
            ordered,
            topic,
            config: Mutex::new(config),
            state: Mutex::new(State::new(ordered, policy)),
            timer: Notify::new(),
            clock,
            names,
            durable,
        }
    }

    /// Work on the state; afterwards the streams that can go on are woken, the timer is moved where need be, and dead
    /// letters are forwarded. No lock of the registry or of a topic may be held.
    pub fn with<T>(&self, work: impl FnOnce(&mut State, Time) -> T) -> T {
        let (result, dead) = self.work(work);
        self.forward(dead);
        result
    }

    /// The same, where such locks are held: the dead letters are given out, to be forwarded when they are not.
    pub fn work<T>(&self, work: impl FnOnce(&mut State, Time) -> T) -> (T, Vec<Entry>) {
        let now = self.clock.now();
        let (result, wakers, timer_is_late, dead) = {
            let mut state = lock(&self.state);
            state.expire(now);
            let result = work(&mut state, now);
            self.write_failed(state.take_failed());
            (result, state.wakers(), state.timer_is_late(), state.take_dead())
        };
        if timer_is_late {
            self.timer.notify_one();
        }
        for waker in wakers {
            waker.wake();
        }
        (result, dead)
    }

    /// The settings, as the journal has them.
    pub fn kept_config(&self) -> wire::Subscription {
        lock(&self.config).clone()
    }

    /// The settings, as the service shows them.
    pub fn config(&self) -> wire::Subscription {
        let mut config = lock(&self.config).clone();
        self.topic.name().clone_into(&mut config.topic);
        config.topic_message_retention_duration = self.topic.config().message_retention_duration;
        config
    }

    /// Change the settings.
    pub fn update(&self, request: &wire::UpdateSubscriptionRequest) -> Result<wire::Subscription, Status> {
        let given = request.subscription.clone().unwrap_or_default();
        {
            let mut state = lock(&self.state);
            let mut config = lock(&self.config);
            let (new, policy) = settings::updated_subscription(&config, &given, request.update_mask.as_ref())?;
            self.check_exists(&state)?;
            self.durable.write(|| Record::of_subscription(new.clone()))?;
            state.set_policy(policy);
            *config = new;
        }
        Ok(self.config())
    }

    /// The lease of a unary pull.
    pub fn ack_deadline(&self) -> Result<Duration, Status> {
        settings::ack_deadline(lock(&self.config).ack_deadline_seconds)
    }

    /// Acknowledge deliveries. Malformed ack ids fail the request, unless the answer can tell each one's failure.
    pub fn acknowledge(&self, ack_ids: &[String]) -> Result<Outcome, Status> {
        let write = |state: &State, ack_ids: &[Option<AckId>]| {
            let own = ack_ids.iter().flatten().filter(|ack_id| ack_id.generation == self.generation);
            self.write_acked(own.filter_map(|ack_id| state.leased_id(ack_id.delivery)))
        };
        self.each(ack_ids, write, |_, state, delivery, _| state.acknowledge(delivery))
    }

    /// Give deliveries new deadlines; the slices have the same length.
    pub fn modify_deadlines(&self, ack_ids: &[String], seconds: &[i32]) -> Result<Outcome, Status> {
        let durations: Vec<Duration> = seconds.iter().map(|s| modified_deadline(*s)).collect::<Result<_, _>>()?;
        let work =
            |index: usize, state: &mut State, delivery, now| state.modify_deadline(delivery, durations[index], now);
        self.each(ack_ids, |_, _| Ok(()), work)
    }

    /// Move it: unacknowledged messages that do not pass become acknowledged; `restored` gives those that come back.
    pub fn seek(
        &self,
        is_unacked: impl Fn(&Message) -> bool,
        restored: impl FnOnce(&State) -> Vec<Message>,
    ) -> Result<(), Status> {
        self.with(|state, _| {
            self.check_exists(state)?;
            let restored = restored(state);
            let Sought { acked, unacked } = state.seek(is_unacked, restored);
            // Done before it is written: if that fails, the worst is that messages come again after a restart.
            let changed = || Changed { unacked: Some(Ids::from_sorted(unacked)), ..Changed::acked(&self.name, acked) };
            self.durable.write(|| Record::of_changed(changed()))
        })
    }

    /// The messages of an earlier life.
    pub fn restore(&self, unacked: Vec<Entry>, retained: Vec<Message>) {
        let mut state = lock(&self.state);
        state.restore(unacked, retained);
        if lock(&self.config).detached {
            state.end(&End::Detached);
        }
    }

    /// Let its streams end; when it is detached, its messages go.
    pub fn end(&self, end: &End) -> Result<(), Status> {
        let wakers = {
            let mut state = lock(&self.state);
            self.check_exists(&state)?;
            match end {
                End::Deleted => {
                    let record = || Record { deleted_subscription: self.name.clone(), ..Record::default() };
                    self.durable.write(record)?;
                }
                End::Detached => {
                    let mut config = lock(&self.config);
                    let detached = wire::Subscription { detached: true, ..config.clone() };
                    self.durable.write(|| Record::of_subscription(detached.clone()))?;
                    *config = detached;
                    state.clear();
                }
                End::ClientDone | End::Failed(..) | End::Stopped => {}
            }
            state.end(end);
            state.wakers()
        };
        self.timer.notify_one();
        wakers.into_iter().for_each(Waker::wake);
        Ok(())
    }

    /// The messages that are not acknowledged, by id.
    pub fn unacked(&self) -> BTreeMap<u64, Message> {
        lock(&self.state).unacked()
    }

    /// Refuse what a detached subscription cannot do.
    pub fn check_attached(&self) -> Result<(), Status> {
        if lock(&self.config).detached { Err(self.detached()) } else { Ok(()) }
    }

    /// How a stream or pull ends; with nothing when all is well.
    pub fn end_status(&self, end: End) -> Option<Status> {
        match end {
            End::ClientDone => None,
            End::Failed(code, message) => Some(Status::new(code, message)),
            End::Deleted => Some(Kind::Subscription.not_found(&self.name)),
            End::Detached => Some(self.detached()),
            End::Stopped => Some(stopped()),
        }
    }

    /// Time was turned: look at it.
    pub fn on_new_time(&self) {
        self.with(|_, _| ());
        self.timer.notify_one();
    }

    /// The one timer: sleeps until the next thing that time does.
    pub async fn keep_time(self: Arc<Self>) {
        loop {
            let (over, wait) =
                self.with(|state, now| (state.ended().is_some(), state.set_timer().map(|at| now.until(at))));
            match wait {
                _ if over => return,
                None => self.timer.notified().await,
                Some(wait) => {
                    // Ends early when something comes sooner; either way the loop looks again.
                    let _ = tokio::time::timeout(wait, self.timer.notified()).await;
                }
            }
        }
    }

    fn each(
        &self,
        ack_ids: &[String],
        write: impl FnOnce(&State, &[Option<AckId>]) -> Result<(), Status>,
        mut work: impl FnMut(usize, &mut State, DeliveryId, Time) -> bool,
    ) -> Result<Outcome, Status> {
        let parsed: Vec<Option<AckId>> = ack_ids.iter().map(|text| AckId::read(text)).collect();
        self.with(|state, now| {
            let tells = state.is_exactly_once();
            if !tells && let Some(malformed) = parsed.iter().position(Option::is_none) {
                return Err(AckId::invalid(&ack_ids[malformed]));
            }
            self.check_exists(state)?;
            write(state, &parsed)?;
            let mut outcome = Outcome::default();
            for (index, ack_id) in parsed.iter().enumerate() {
                let own = ack_id.filter(|ack_id| ack_id.generation == self.generation);
                let is_done = own.is_some_and(|ack_id| work(index, state, ack_id.delivery, now));
                if tells {
                    let list = if is_done { &mut outcome.done } else { &mut outcome.invalid };
                    list.push(ack_ids[index].clone());
                }
            }
            Ok(outcome)
        })
    }

    fn detached(&self) -> Status {
        Status::failed_precondition(format!("The subscription {} is detached from its topic.", self.name))
    }

    /// Nothing is written of a subscription that is deleted: another one may have its name.
    fn check_exists(&self, state: &State) -> Result<(), Status> {
        if state.ended() == Some(&End::Deleted) { Err(Kind::Subscription.not_found(&self.name)) } else { Ok(()) }
    }

    fn write_acked(&self, ids: impl Iterator<Item = u64>) -> Result<(), Status> {
        if !self.durable.is_on() {
            return Ok(());
        }
        let ids: BTreeSet<u64> = ids.collect();
        if ids.is_empty() { Ok(()) } else { self.durable.write(|| Record::of_changed(Changed::acked(&self.name, ids))) }
    }

    fn write_failed(&self, failures: Vec<(u64, u32)>) {
        if failures.is_empty() {
            return;
        }
        let (failed, failures) = failures.into_iter().unzip();
        let changed = || Changed { subscription: self.name.clone(), failed, failures, ..Changed::default() };
        // Only the count is lost then; the message is not.
        if let Err(status) = self.durable.write(|| Record::of_changed(changed())) {
            log::warn!(
                "failed deliveries of {} may be counted too low after a restart: {}",
                self.name,
                status.message()
            );
        }
    }

    /// Send dead letters to their topic. No lock of the registry or of a topic may be held.
    pub fn forward(&self, dead: Vec<Entry>) {
        if dead.is_empty() {
            return;
        }
        let policy = lock(&self.config).dead_letter_policy.clone().unwrap_or_default();
        let topic = self.names.upgrade().and_then(|names| read(&names).topics.get(&policy.dead_letter_topic).cloned());
        let Some(topic) = topic else {
            log::warn!("the dead-letter topic {:?} of {} is missing", policy.dead_letter_topic, self.name);
            return self.with(|state, _| state.keep_dead(dead));
        };
        let mut parts = self.name.split('/').skip(1).step_by(2);
        let (project, id) = (parts.next().unwrap_or_default(), parts.next().unwrap_or_default());
        let forwarded = topic.forward(&dead, &self.name, self.clock.now(), |entry| {
            vec![
                ("CloudPubSubDeadLetterSourceDeliveryCount", entry.failures.to_string()),
                ("CloudPubSubDeadLetterSourceSubscription", id.to_owned()),
                ("CloudPubSubDeadLetterSourceSubscriptionProject", project.to_owned()),
                ("CloudPubSubDeadLetterSourceTopicPublishTime", entry.message.published.to_rfc3339()),
            ]
        });
        match forwarded {
            Ok(()) => lock(&self.state).settle_dead(dead),
            Err(status) => {
                log::warn!("dead letters of {} stay there for now: {}", self.name, status.message());
                self.with(|state, _| state.keep_dead(dead));
            }
        }
    }
}

/// The answer to a unary call of which some ack ids failed; with exactly-once delivery the client reads which.
pub fn check_all_done(outcome: &Outcome) -> Result<(), Status> {
    if outcome.invalid.is_empty() {
        return Ok(());
    }
    let message = "Some acknowledgement ids in the request were invalid. This could be because the acknowledgement ids \
                   have expired or the acknowledgement ids were malformed.";
    let failures = outcome.invalid.iter().map(|id| (id.clone(), "PERMANENT_FAILURE_INVALID_ACK_ID".to_owned()));
    let info = wire::ErrorInfo {
        reason: "EXACTLY_ONCE_ACKID_FAILURE".to_owned(),
        domain: "pubsub.googleapis.com".to_owned(),
        metadata: failures.collect(),
    };
    let detail =
        wire::Any { type_url: "type.googleapis.com/google.rpc.ErrorInfo".to_owned(), value: info.encode_to_vec() };
    let code = Code::InvalidArgument;
    let status = wire::RpcStatus { code: code.into(), message: message.to_owned(), details: vec![detail] };
    Err(Status::with_details(code, message, status.encode_to_vec().into()))
}

fn modified_deadline(seconds: i32) -> Result<Duration, Status> {
    if !(0..=MAX_ACK_DEADLINE_S).contains(&seconds) {
        return Err(Status::invalid_argument(format!(
            "The ack deadline of {seconds} s is invalid; it must lie between 0 and {MAX_ACK_DEADLINE_S} s."
        )));
    }
    Ok(Duration::from_secs(seconds.unsigned_abs().into()))
}
