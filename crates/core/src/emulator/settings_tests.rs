//! The rules for settings, as the service has them.

use tonic::Code;

use super::*;

fn seconds(seconds: i64) -> Option<wire::Duration> {
    Some(wire::Duration { seconds, nanos: 0 })
}

fn base() -> wire::Subscription {
    wire::Subscription {
        name: "projects/p/subscriptions/events".to_owned(),
        topic: "projects/p/topics/events".to_owned(),
        ..Default::default()
    }
}

fn base_topic() -> wire::Topic {
    wire::Topic { name: "projects/p/topics/events".to_owned(), ..Default::default() }
}

fn code(change: impl FnOnce(&mut wire::Subscription)) -> Option<Code> {
    let mut config = base();
    change(&mut config);
    subscription(config).err().map(|status| status.code())
}

fn topic_code(change: impl FnOnce(&mut wire::Topic)) -> Option<Code> {
    let mut config = base_topic();
    change(&mut config);
    topic(config).err().map(|status| status.code())
}

#[test]
fn what_is_left_out_gets_the_defaults_of_the_service() {
    let mut config = base();
    config.retry_policy = Some(wire::RetryPolicy::default());
    config.dead_letter_policy = Some(wire::DeadLetterPolicy {
        dead_letter_topic: "projects/p/topics/dead".to_owned(),
        max_delivery_attempts: 0,
    });
    let (config, policy) = subscription(config).unwrap();
    assert_eq!(config.ack_deadline_seconds, 10);
    assert_eq!(config.message_retention_duration, seconds(7 * 24 * 3600));
    assert_eq!(config.expiration_policy.unwrap().ttl, seconds(31 * 24 * 3600));
    assert_eq!(config.retry_policy.unwrap().maximum_backoff, seconds(600));
    assert_eq!((config.state, policy.retention, policy.dead_letter_after), (1, DEFAULT_RETENTION, Some(5)));
    assert_eq!(policy.retry, Some(DEFAULT_BACKOFF));
}

#[test]
fn subscriptions_beyond_the_limits_are_invalid() {
    let invalid = Some(Code::InvalidArgument);
    let retry = |minimum, maximum| {
        Some(wire::RetryPolicy { minimum_backoff: seconds(minimum), maximum_backoff: seconds(maximum) })
    };
    let dead = |topic: &str, max_delivery_attempts| {
        Some(wire::DeadLetterPolicy { dead_letter_topic: topic.to_owned(), max_delivery_attempts })
    };
    let expiring = |ttl| Some(wire::ExpirationPolicy { ttl });
    assert_eq!(code(|c| c.ack_deadline_seconds = 601), invalid);
    assert_eq!(code(|c| c.message_retention_duration = seconds(599)), invalid);
    assert_eq!(code(|c| c.message_retention_duration = seconds(31 * 24 * 3600 + 1)), invalid);
    assert_eq!(code(|c| c.message_retention_duration = seconds(-1)), invalid);
    assert_eq!(code(|c| c.retry_policy = retry(20, 10)), invalid);
    assert_eq!(code(|c| c.retry_policy = retry(10, 601)), invalid);
    assert_eq!(code(|c| c.dead_letter_policy = dead("projects/p/topics/dead", 4)), invalid);
    assert_eq!(code(|c| c.dead_letter_policy = dead("projects/p/topics/dead", 101)), invalid);
    assert_eq!(code(|c| c.dead_letter_policy = dead("dead", 5)), invalid);
    assert_eq!(code(|c| c.expiration_policy = expiring(seconds(24 * 3600 - 1))), invalid);
    assert_eq!(code(|c| c.filter = "attributes.".to_owned()), invalid);
    assert_eq!(code(|c| c.filter = format!("attributes:{}", "k".repeat(250))), invalid);
    for valid in [
        code(|c| c.message_retention_duration = seconds(600)),
        code(|c| c.message_retention_duration = seconds(31 * 24 * 3600)),
        code(|c| c.retry_policy = retry(0, 600)),
        code(|c| c.dead_letter_policy = dead("projects/p/topics/dead", 100)),
        code(|c| c.expiration_policy = expiring(None)),
        code(|c| c.filter = "attributes:kind".to_owned()),
    ] {
        assert_eq!(valid, None);
    }
}

#[test]
fn what_the_emulator_cannot_do_is_unimplemented_and_not_ignored() {
    let unimplemented = Some(Code::Unimplemented);
    let push = wire::PushConfig { push_endpoint: "https://example.org".to_owned() };
    assert_eq!(code(|c| c.push_config = Some(push)), unimplemented);
    assert_eq!(code(|c| c.bigquery_config = Some(wire::Empty {})), unimplemented);
    assert_eq!(code(|c| c.cloud_storage_config = Some(wire::Empty {})), unimplemented);
    assert_eq!(code(|c| c.bigtable_config = Some(wire::Empty {})), unimplemented);
    assert_eq!(code(|c| c.message_transforms = vec![wire::Empty {}]), unimplemented);
    assert_eq!(topic_code(|t| t.kms_key_name = "k".to_owned()), unimplemented);
    assert_eq!(topic_code(|t| t.schema_settings = Some(wire::Empty {})), unimplemented);
    assert_eq!(topic_code(|t| t.ingestion_data_source_settings = Some(wire::Empty {})), unimplemented);
    assert_eq!(topic_code(|t| t.message_transforms = vec![wire::Empty {}]), unimplemented);
    assert_eq!(topic_code(|t| t.message_retention_duration = seconds(5)), Some(Code::InvalidArgument));
    assert_eq!(topic_code(|t| t.message_retention_duration = seconds(600)), None);
}

#[test]
fn labels_follow_the_rules() {
    let check = |key: &str, value: &str| check_labels(&HashMap::from([(key.to_owned(), value.to_owned())])).is_ok();
    assert!(check("team", "a-b_1") && check("größe", "") && check(&"k".repeat(63), &"v".repeat(63)));
    for (key, value) in [("", "v"), ("Team", "v"), ("1a", "v"), ("a b", "v"), ("a", "V"), (&"k".repeat(64), "v")] {
        assert!(!check(key, value), "{key}: {value}");
    }
    let many = (0..=MAX_LABELS).map(|n| (format!("k{n}"), String::new())).collect();
    assert!(check_labels(&many).is_err());
}

#[test]
fn an_update_changes_the_fields_of_its_mask_and_no_others() {
    let current = subscription(base()).unwrap().0;
    let given = wire::Subscription {
        ack_deadline_seconds: 60,
        retain_acked_messages: true,
        labels: HashMap::from([("a".to_owned(), "b".to_owned())]),
        ..base()
    };
    let mask = |paths: &[&str]| Some(FieldMask { paths: paths.iter().map(|path| (*path).to_owned()).collect() });
    let update = |paths: &[&str]| updated_subscription(&current, &given, mask(paths).as_ref());
    let (new, policy) = update(&["ack_deadline_seconds", "retain_acked_messages"]).unwrap();
    assert_eq!((new.ack_deadline_seconds, new.retain_acked_messages, policy.retain_acked), (60, true, true));
    assert!(new.labels.is_empty());
    for immutable in ["name", "topic", "filter", "enable_message_ordering"] {
        let status = update(&[immutable]).unwrap_err();
        assert_eq!(status.code(), Code::InvalidArgument);
        assert!(status.message().contains("is not mutable"), "{}", status.message());
    }
    assert!(update(&["ackDeadlineSeconds"]).unwrap_err().message().contains("not a known Subscription field"));
    assert!(update(&[]).unwrap_err().message().contains("non-empty paths list"));
    assert!(updated_subscription(&current, &given, None).is_err());
}

#[test]
fn parts_of_a_policy_can_be_updated() {
    let mut current = base();
    current.retry_policy = Some(wire::RetryPolicy { minimum_backoff: seconds(5), maximum_backoff: seconds(50) });
    let given = wire::Subscription {
        retry_policy: Some(wire::RetryPolicy { minimum_backoff: seconds(7), maximum_backoff: seconds(9) }),
        ..base()
    };
    let mask = FieldMask { paths: vec!["retry_policy.minimum_backoff".to_owned()] };
    let (new, _) = updated_subscription(&current, &given, Some(&mask)).unwrap();
    let retry = new.retry_policy.unwrap();
    assert_eq!((retry.minimum_backoff, retry.maximum_backoff), (seconds(7), seconds(50)));
}

#[test]
fn an_update_is_held_against_the_same_rules() {
    let given = wire::Topic { message_retention_duration: seconds(5), ..base_topic() };
    let mask = |path: &str| FieldMask { paths: vec![path.to_owned()] };
    let update = |path| updated_topic(&base_topic(), &given, Some(&mask(path))).map_err(|status| status.code());
    assert_eq!(update("message_retention_duration"), Err(Code::InvalidArgument));
    assert_eq!(update("name"), Err(Code::InvalidArgument));
    assert_eq!(update("labels").unwrap().state, ACTIVE);
}
