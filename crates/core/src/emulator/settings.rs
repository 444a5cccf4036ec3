//! The settings of topics, subscriptions and snapshots: defaults, the service's rules, and updates by field mask.
//!
//! What the emulator cannot do is refused with UNIMPLEMENTED, so that nothing behaves otherwise than asked.

use std::collections::HashMap;
use std::time::Duration;

use tonic::Status;

use super::filter::Filter;
use super::names::Kind;
use super::policy::{Backoff, DEFAULT_RETENTION, Policy};
use crate::pubsub::wire::{self, FieldMask, MAX_ACK_DEADLINE_S, MIN_ACK_DEADLINE_S};

const ACTIVE: i32 = 1;
const DAY: Duration = Duration::from_secs(24 * 3600);
const MIN_RETENTION: Duration = Duration::from_secs(600);
const MAX_RETENTION: Duration = Duration::from_secs(31 * 24 * 3600);
const DEFAULT_EXPIRATION_S: i64 = 31 * 24 * 3600;
const DEFAULT_BACKOFF: Backoff = Backoff { minimum: Duration::from_secs(10), maximum: Duration::from_secs(600) };
const DEFAULT_DELIVERY_ATTEMPTS: i32 = 5;
const MAX_DELIVERY_ATTEMPTS: i32 = 100;
const MAX_LABELS: usize = 64;
const MAX_LABEL_CHARS: usize = 63;

/// Complete the settings of a topic, or refuse them.
pub fn topic(mut config: wire::Topic) -> Result<wire::Topic, Status> {
    Kind::Topic.check(&config.name)?;
    check_labels(&config.labels)?;
    refuse(&[
        (!config.kms_key_name.is_empty(), "kms_key_name"),
        (config.schema_settings.is_some(), "schema_settings"),
        (config.ingestion_data_source_settings.is_some(), "ingestion_data_source_settings"),
        (!config.message_transforms.is_empty(), "message_transforms"),
    ])?;
    topic_retention(&config)?;
    config.state = ACTIVE;
    Ok(config)
}

/// How long a topic keeps its messages.
pub fn topic_retention(config: &wire::Topic) -> Result<Option<Duration>, Status> {
    config.message_retention_duration.map(retention).transpose()
}

/// Complete the settings of a subscription, or refuse them; and what they ask of its state.
pub fn subscription(mut config: wire::Subscription) -> Result<(wire::Subscription, Policy), Status> {
    Kind::Subscription.check(&config.name)?;
    if config.ack_deadline_seconds == 0 {
        config.ack_deadline_seconds = MIN_ACK_DEADLINE_S;
    }
    ack_deadline(config.ack_deadline_seconds)?;
    check_labels(&config.labels)?;
    refuse(&[
        (config.push_config.as_ref().is_some_and(|push| !push.push_endpoint.is_empty()), "push_config.push_endpoint"),
        (config.bigquery_config.is_some(), "bigquery_config"),
        (config.cloud_storage_config.is_some(), "cloud_storage_config"),
        (config.bigtable_config.is_some(), "bigtable_config"),
        (!config.message_transforms.is_empty(), "message_transforms"),
    ])?;
    let default_retention = wire::Duration { seconds: DEFAULT_RETENTION.as_secs() as i64, nanos: 0 };
    let kept = *config.message_retention_duration.get_or_insert(default_retention);
    let default_ttl = wire::Duration { seconds: DEFAULT_EXPIRATION_S, nanos: 0 };
    let expiration = config.expiration_policy.get_or_insert(wire::ExpirationPolicy { ttl: Some(default_ttl) });
    if let Some(ttl) = expiration.ttl
        && duration(ttl, "expiration_policy.ttl")? < DAY
    {
        return Err(Status::invalid_argument("The expiration_policy.ttl is too short; the minimum is 1 day."));
    }
    let policy = Policy {
        exactly_once: config.enable_exactly_once_delivery,
        filter: filter(&config.filter)?,
        dead_letter_after: config.dead_letter_policy.as_mut().map(dead_letter_after).transpose()?,
        retry: config.retry_policy.as_mut().map(backoff).transpose()?,
        retention: retention(kept)?,
        retain_acked: config.retain_acked_messages,
    };
    config.push_config.get_or_insert_default();
    config.state = ACTIVE;
    Ok((config, policy))
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

/// The labels of anything.
pub fn check_labels(labels: &HashMap<String, String>) -> Result<(), Status> {
    if labels.len() > MAX_LABELS {
        return Err(Status::invalid_argument(format!(
            "{} labels are given; the maximum is {MAX_LABELS}.",
            labels.len()
        )));
    }
    let is_valid = |text: &str| {
        text.chars().count() <= MAX_LABEL_CHARS
            && text.chars().all(|c| c == '-' || c == '_' || c.is_alphanumeric() && !c.is_uppercase())
    };
    for (key, value) in labels {
        let begins_well = key.starts_with(|c: char| c.is_alphabetic() && !c.is_uppercase());
        if !begins_well || !is_valid(key) || !is_valid(value) {
            return Err(Status::invalid_argument(format!(
                "The label {key:?}: {value:?} is invalid: keys and values have at most {MAX_LABEL_CHARS} lowercase letters, \
                 digits, - or _, and keys begin with a letter."
            )));
        }
    }
    Ok(())
}

/// The topic after an update.
pub fn updated_topic(
    current: &wire::Topic,
    given: &wire::Topic,
    mask: Option<&FieldMask>,
) -> Result<wire::Topic, Status> {
    let update = Update { kind: "Topic", request: "UpdateTopicRequest" };
    let mut new = current.clone();
    for path in update.paths(mask)? {
        match path.as_str() {
            "labels" => new.labels.clone_from(&given.labels),
            "message_storage_policy" => new.message_storage_policy.clone_from(&given.message_storage_policy),
            "message_retention_duration" => new.message_retention_duration = given.message_retention_duration,
            "schema_settings" => new.schema_settings = given.schema_settings,
            "ingestion_data_source_settings" => {
                new.ingestion_data_source_settings = given.ingestion_data_source_settings;
            }
            "message_transforms" => new.message_transforms.clone_from(&given.message_transforms),
            "name" | "kms_key_name" | "state" | "satisfies_pzs" => return Err(update.immutable(path)),
            _ => return Err(update.unknown(path)),
        }
    }
    topic(new)
}

/// The subscription after an update, and what it then asks of its state.
pub fn updated_subscription(
    current: &wire::Subscription,
    given: &wire::Subscription,
    mask: Option<&FieldMask>,
) -> Result<(wire::Subscription, Policy), Status> {
    let update = Update { kind: "Subscription", request: "UpdateSubscriptionRequest" };
    let mut new = current.clone();
    for path in update.paths(mask)? {
        match path.as_str() {
            "ack_deadline_seconds" => new.ack_deadline_seconds = given.ack_deadline_seconds,
            "push_config" => new.push_config.clone_from(&given.push_config),
            "retain_acked_messages" => new.retain_acked_messages = given.retain_acked_messages,
            "message_retention_duration" => new.message_retention_duration = given.message_retention_duration,
            "labels" => new.labels.clone_from(&given.labels),
            "expiration_policy" | "expiration_policy.ttl" => new.expiration_policy = given.expiration_policy,
            "dead_letter_policy" => new.dead_letter_policy.clone_from(&given.dead_letter_policy),
            "dead_letter_policy.dead_letter_topic" => {
                let topic = given.dead_letter_policy.as_ref().map(|policy| policy.dead_letter_topic.clone());
                new.dead_letter_policy.get_or_insert_default().dead_letter_topic = topic.unwrap_or_default();
            }
            "dead_letter_policy.max_delivery_attempts" => {
                let attempts = given.dead_letter_policy.as_ref().map(|policy| policy.max_delivery_attempts);
                new.dead_letter_policy.get_or_insert_default().max_delivery_attempts = attempts.unwrap_or_default();
            }
            "retry_policy" => new.retry_policy.clone_from(&given.retry_policy),
            "retry_policy.minimum_backoff" => {
                let minimum = given.retry_policy.as_ref().and_then(|policy| policy.minimum_backoff);
                new.retry_policy.get_or_insert_default().minimum_backoff = minimum;
            }
            "retry_policy.maximum_backoff" => {
                let maximum = given.retry_policy.as_ref().and_then(|policy| policy.maximum_backoff);
                new.retry_policy.get_or_insert_default().maximum_backoff = maximum;
            }
            "enable_exactly_once_delivery" => new.enable_exactly_once_delivery = given.enable_exactly_once_delivery,
            "bigquery_config" => new.bigquery_config = given.bigquery_config,
            "cloud_storage_config" => new.cloud_storage_config = given.cloud_storage_config,
            "bigtable_config" => new.bigtable_config = given.bigtable_config,
            "message_transforms" => new.message_transforms.clone_from(&given.message_transforms),
            "name"
            | "topic"
            | "filter"
            | "enable_message_ordering"
            | "detached"
            | "state"
            | "topic_message_retention_duration" => return Err(update.immutable(path)),
            _ => return Err(update.unknown(path)),
        }
    }
    subscription(new)
}

/// The snapshot after an update.
pub fn updated_snapshot(
    current: &wire::Snapshot,
    given: &wire::Snapshot,
    mask: Option<&FieldMask>,
) -> Result<wire::Snapshot, Status> {
    let update = Update { kind: "Snapshot", request: "UpdateSnapshotRequest" };
    let mut new = current.clone();
    for path in update.paths(mask)? {
        match path.as_str() {
            "labels" => new.labels.clone_from(&given.labels),
            "expire_time" => new.expire_time = given.expire_time.or(current.expire_time),
            "name" | "topic" => return Err(update.immutable(path)),
            _ => return Err(update.unknown(path)),
        }
    }
    check_labels(&new.labels)?;
    Ok(new)
}

/// The answers to a field mask.
struct Update {
    kind: &'static str,
    request: &'static str,
}

impl Update {
    fn paths<'a>(&self, mask: Option<&'a FieldMask>) -> Result<&'a [String], Status> {
        let request = self.request;
        mask.map(|mask| &mask.paths[..]).filter(|paths| !paths.is_empty()).ok_or_else(|| {
            Status::invalid_argument(format!(
                "The update_mask in the {request} must be set, and must contain a non-empty paths list."
            ))
        })
    }

    fn immutable(&self, path: &str) -> Status {
        let Self { kind, request } = self;
        Status::invalid_argument(format!(
            "Invalid update_mask provided in the {request}: the '{path}' field in the {kind} is not mutable."
        ))
    }

    fn unknown(&self, path: &str) -> Status {
        let Self { kind, request } = self;
        Status::invalid_argument(format!(
            "Invalid update_mask provided in the {request}: '{path}' is not a known {kind} field. Note that field paths must \
             be of the form 'push_config' rather than 'pushConfig'."
        ))
    }
}

fn refuse(unsupported: &[(bool, &str)]) -> Result<(), Status> {
    match unsupported.iter().find(|(asked, _)| *asked) {
        Some((_, feature)) => Err(Status::unimplemented(format!("The emulator does not have {feature}."))),
        None => Ok(()),
    }
}

fn filter(text: &str) -> Result<Option<Filter>, Status> {
    if text.is_empty() {
        return Ok(None);
    }
    Filter::parse(text).map(Some).map_err(|reason| Status::invalid_argument(format!("Invalid filter: {reason}.")))
}

fn retention(given: wire::Duration) -> Result<Duration, Status> {
    let kept = duration(given, "message_retention_duration")?;
    if (MIN_RETENTION..=MAX_RETENTION).contains(&kept) {
        return Ok(kept);
    }
    let seconds = kept.as_secs();
    Err(Status::invalid_argument(format!(
        "The message_retention_duration of {seconds} s is invalid; it must lie between 10 minutes and 31 days."
    )))
}

fn dead_letter_after(policy: &mut wire::DeadLetterPolicy) -> Result<u32, Status> {
    Kind::Topic.check(&policy.dead_letter_topic)?;
    if policy.max_delivery_attempts == 0 {
        policy.max_delivery_attempts = DEFAULT_DELIVERY_ATTEMPTS;
    }
    let attempts = policy.max_delivery_attempts;
    if !(DEFAULT_DELIVERY_ATTEMPTS..=MAX_DELIVERY_ATTEMPTS).contains(&attempts) {
        return Err(Status::invalid_argument(format!(
            "The max_delivery_attempts of {attempts} is invalid; it must lie between 5 and 100."
        )));
    }
    Ok(attempts.unsigned_abs())
}

fn backoff(policy: &mut wire::RetryPolicy) -> Result<Backoff, Status> {
    let whole = |default: Duration| wire::Duration { seconds: default.as_secs() as i64, nanos: 0 };
    let minimum = *policy.minimum_backoff.get_or_insert(whole(DEFAULT_BACKOFF.minimum));
    let maximum = *policy.maximum_backoff.get_or_insert(whole(DEFAULT_BACKOFF.maximum));
    let minimum = duration(minimum, "retry_policy.minimum_backoff")?;
    let maximum = duration(maximum, "retry_policy.maximum_backoff")?;
    if minimum > maximum || maximum > DEFAULT_BACKOFF.maximum {
        return Err(Status::invalid_argument(
            "The retry_policy is invalid; it takes 0 <= minimum_backoff <= maximum_backoff <= 600 s.",
        ));
    }
    Ok(Backoff { minimum, maximum })
}

fn duration(given: wire::Duration, what: &str) -> Result<Duration, Status> {
    match (u64::try_from(given.seconds), u32::try_from(given.nanos)) {
        (Ok(seconds), Ok(nanos)) if nanos < 1_000_000_000 => Ok(Duration::new(seconds, nanos)),
        _ => Err(Status::invalid_argument(format!("The {what} is not a valid duration."))),
    }
}

#[cfg(test)]
#[path = "settings_tests.rs"]
mod tests;
