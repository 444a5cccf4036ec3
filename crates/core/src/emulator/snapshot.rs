//! Snapshots, and seeking to them or to a moment.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use tonic::Status;

use super::clock::Time;
use super::history::Mark;
use super::listing::{Page, page};
use super::message::Message;
use super::names::Kind;
use super::registry::{Registry, project_page};
use super::settings;
use super::state::State;
use super::store::{Ids, Record};
use super::sync::{lock, read, write};
use super::topic::Topic;
use crate::pubsub::wire::{self, SeekTarget};

/// A snapshot goes this long after the oldest message in it was published.
const LIFETIME: Duration = Duration::from_secs(7 * 24 * 3600);
/// One that would go sooner is not created.
const MIN_LIFETIME: Duration = Duration::from_secs(3600);

/// What a subscription had not acknowledged at a moment, and from where on the topic keeps what came later.
#[derive(Debug)]
pub struct Snapshot {
    config: Mutex<wire::Snapshot>,
    topic: Arc<Topic>,
    mark: Mark,
    created: Time,
    unacked: BTreeMap<u64, Message>,
}

impl Snapshot {
    fn config(&self) -> wire::Snapshot {
        wire::Snapshot { topic: self.topic.name().to_owned(), ..lock(&self.config).clone() }
    }

    fn expires(&self) -> Time {
        lock(&self.config).expire_time.map(Time::from_timestamp).unwrap_or_default()
    }
}

impl Drop for Snapshot {
    fn drop(&mut self) {
        lock(&self.topic.history).unmark(self.mark);
    }
}

impl Registry {
    /// Take a snapshot of a subscription.
    pub fn create_snapshot(&self, request: wire::CreateSnapshotRequest) -> Result<wire::Snapshot, Status> {
        let wire::CreateSnapshotRequest { name, subscription, labels } = request;
        Kind::Snapshot.check(&name)?;
        settings::check_labels(&labels)?;
        let subscription = self.subscription(&subscription)?;
        subscription.check_attached()?;
        self.drop_expired_snapshots();
        // What time has taken is not in the snapshot.
        subscription.on_new_time();
        let topic = subscription.topic.clone();
        let mut names = write(&self.names);
        self.check_running()?;
        if names.snapshots.contains_key(&name) {
            return Err(Kind::Snapshot.already_exists(&name));
        }
        let deleted = |_| Status::failed_precondition(format!("The topic of {} was deleted.", subscription.name));
        let _still = topic.hold().map_err(deleted)?;
        let mark = lock(&topic.history).mark();
        let (unacked, now) = (subscription.unacked(), self.clock.now());
        let oldest = unacked.values().map(|message| message.published).min().unwrap_or(now);
        let expires = oldest.plus(LIFETIME);
        let config = wire::Snapshot { name, topic: String::new(), expire_time: Some(expires.to_timestamp()), labels };
        let snapshot = Snapshot { config: Mutex::new(config), topic: topic.clone(), mark, created: now, unacked };
        if now.until(expires) < MIN_LIFETIME {
            return Err(Status::failed_precondition(
                "The snapshot would expire within an hour: the oldest unacknowledged message is too old.",
            ));
        }
        let shown = snapshot.config();
        let ids = || Ids::from_sorted(snapshot.unacked.keys().copied());
        self.durable.write(|| Record::of_snapshot(shown.clone(), Some(ids())))?;
        names.snapshots.insert(shown.name.clone(), Arc::new(snapshot));
        Ok(shown)
    }

    /// A snapshot of an earlier life, whose topic has kept nothing since.
    pub fn restore_snapshot(&self, config: wire::Snapshot, topic: Arc<Topic>, unacked: BTreeMap<u64, Message>) {
        let mark = lock(&topic.history).mark();
        let name = config.name.clone();
        let snapshot = Snapshot { config: Mutex::new(config), topic, mark, created: self.clock.now(), unacked };
        write(&self.names).snapshots.insert(name, Arc::new(snapshot));
    }

    /// Read a snapshot.
    pub fn get_snapshot(&self, name: &str) -> Result<wire::Snapshot, Status> {
        Ok(self.snapshot(name)?.config())
    }

    /// Change a snapshot.
    pub fn update_snapshot(&self, request: &wire::UpdateSnapshotRequest) -> Result<wire::Snapshot, Status> {
        let given = request.snapshot.clone().unwrap_or_default();
        let snapshot = self.snapshot(&given.name)?;
        // Held, so that it is not deleted meanwhile.
        let names = write(&self.names);
        if !names.snapshots.contains_key(&given.name) {
            return Err(Kind::Snapshot.not_found(&given.name));
        }
        let new = settings::updated_snapshot(&lock(&snapshot.config), &given, request.update_mask.as_ref())?;
        self.durable.write(|| Record::of_snapshot(new.clone(), None))?;
        *lock(&snapshot.config) = new;
        Ok(snapshot.config())
    }

    /// The snapshots of a project.
    pub fn list_snapshots(&self, request: &wire::ListRequest) -> Result<wire::ListSnapshotsResponse, Status> {
        self.drop_expired_snapshots();
        let names = read(&self.names);
        let Page { items, next_token } = project_page(Kind::Snapshot, &names.snapshots, request)?;
        let snapshots = items.iter().map(|snapshot| snapshot.config()).collect();
        Ok(wire::ListSnapshotsResponse { snapshots, next_page_token: next_token })
    }

    /// The names of a topic's snapshots.
    pub fn list_topic_snapshots(&self, request: &wire::ListRequest) -> Result<wire::ListNamesResponse, Status> {
        self.drop_expired_snapshots();
        let topic = self.topic(&request.parent)?;
        let names = read(&self.names);
        let of_topic = names.snapshots.iter().filter(|(_, snapshot)| Arc::ptr_eq(&snapshot.topic, &topic));
        let Page { items, next_token } = page(request, of_topic.map(|(name, _)| (name.as_str(), name.clone())))?;
        Ok(wire::ListNamesResponse { names: items, next_page_token: next_token })
    }

    /// Delete a snapshot.
    pub fn delete_snapshot(&self, name: &str) -> Result<(), Status> {
        self.snapshot(name)?;
        let mut names = write(&self.names);
        if !names.snapshots.contains_key(name) {
            return Err(Kind::Snapshot.not_found(name));
        }
        self.durable.write(|| Record { deleted_snapshot: name.to_owned(), ..Record::default() })?;
        names.snapshots.remove(name);
        Ok(())
    }

    /// Move a subscription to a moment or to a snapshot.
    pub fn seek(&self, request: &wire::SeekRequest) -> Result<(), Status> {
        let subscription = self.subscription(&request.subscription)?;
        subscription.check_attached()?;
        match &request.target {
            None => Err(Status::invalid_argument("The seek has neither a time nor a snapshot.")),
            Some(SeekTarget::Time(time)) => {
                let time = Time::from_timestamp(*time);
                let kept_by_topic = lock(&subscription.topic.history).since(time, self.clock.now());
                let restored = |state: &State| {
                    let retained = state.retained().filter(|message| message.published >= time);
                    let restored: BTreeMap<u64, Message> =
                        retained.cloned().chain(kept_by_topic).map(|message| (message.id, message)).collect();
                    restored.into_values().collect()
                };
                subscription.seek(|message| message.published >= time, restored)
            }
            Some(SeekTarget::Snapshot(name)) => {
                let snapshot = self.snapshot(name)?;
                if !Arc::ptr_eq(&snapshot.topic, &subscription.topic) {
                    return Err(Status::invalid_argument(format!(
                        "The snapshot {name} is of another topic than the subscription {}.",
                        subscription.name
                    )));
                }
                let mut unacked = snapshot.unacked.clone();
                let later = lock(&snapshot.topic.history).since_mark(snapshot.mark);
                unacked.extend(later.into_iter().map(|message| (message.id, message)));
                // By the time, too: a message may be on its way from the subscription to the topic's history.
                let is_unacked =
                    |message: &Message| message.published > snapshot.created || unacked.contains_key(&message.id);
                subscription.seek(is_unacked, |_| unacked.values().cloned().collect())
            }
        }
    }

    fn snapshot(&self, name: &str) -> Result<Arc<Snapshot>, Status> {
        self.check_running()?;
        Kind::Snapshot.check(name)?;
        self.drop_expired_snapshots();
        read(&self.names).snapshots.get(name).cloned().ok_or_else(|| Kind::Snapshot.not_found(name))
    }

    fn drop_expired_snapshots(&self) {
        let now = self.clock.now();
        if read(&self.names).snapshots.values().any(|snapshot| snapshot.expires() <= now) {
            write(&self.names).snapshots.retain(|_, snapshot| snapshot.expires() > now);
        }
    }
}
