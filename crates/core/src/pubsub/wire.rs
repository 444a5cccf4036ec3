//! The messages of `google.pubsub.v1` that Solstice speaks, written by hand: field numbers are facts of the wire.
//!
//! Unknown fields are skipped on decoding, so what a newer server adds does no harm.

use std::collections::HashMap;

use bytes::Bytes;

mod admin;

pub use admin::*;

/// The longest a lease can be asked for, in seconds.
pub const MAX_ACK_DEADLINE_S: i32 = 600;
/// The shortest deadline a subscription or stream may have, in seconds.
pub const MIN_ACK_DEADLINE_S: i32 = 10;
/// The most messages one publish request may carry.
pub const MAX_PUBLISH_MESSAGES: usize = 1_000;
/// The most bytes one publish request, and so one message, may have.
pub const MAX_PUBLISH_BYTES: usize = 10_000_000;

/// The paths of the calls, as HTTP/2 sees them.
pub mod path {
    /// Create a topic.
    pub const CREATE_TOPIC: &str = "/google.pubsub.v1.Publisher/CreateTopic";
    /// Read a topic.
    pub const GET_TOPIC: &str = "/google.pubsub.v1.Publisher/GetTopic";
    /// Delete a topic.
    pub const DELETE_TOPIC: &str = "/google.pubsub.v1.Publisher/DeleteTopic";
    /// Read the topics of a project.
    pub const LIST_TOPICS: &str = "/google.pubsub.v1.Publisher/ListTopics";
    /// Publish messages.
    pub const PUBLISH: &str = "/google.pubsub.v1.Publisher/Publish";
    /// Create a subscription.
    pub const CREATE_SUBSCRIPTION: &str = "/google.pubsub.v1.Subscriber/CreateSubscription";
    /// Read a subscription.
    pub const GET_SUBSCRIPTION: &str = "/google.pubsub.v1.Subscriber/GetSubscription";
    /// Delete a subscription.
    pub const DELETE_SUBSCRIPTION: &str = "/google.pubsub.v1.Subscriber/DeleteSubscription";
    /// Read the subscriptions of a project.
    pub const LIST_SUBSCRIPTIONS: &str = "/google.pubsub.v1.Subscriber/ListSubscriptions";
    /// Acknowledge deliveries.
    pub const ACKNOWLEDGE: &str = "/google.pubsub.v1.Subscriber/Acknowledge";
    /// Extend or end leases.
    pub const MODIFY_ACK_DEADLINE: &str = "/google.pubsub.v1.Subscriber/ModifyAckDeadline";
    /// Receive messages as they come.
    pub const STREAMING_PULL: &str = "/google.pubsub.v1.Subscriber/StreamingPull";
    /// Ask which permissions the caller has.
    pub const TEST_IAM_PERMISSIONS: &str = "/google.iam.v1.IAMPolicy/TestIamPermissions";
}

/// `google.protobuf.Empty`.
#[derive(Clone, Copy, PartialEq, prost::Message)]
pub struct Empty {}

/// `google.protobuf.Timestamp`.
#[derive(Clone, Copy, PartialEq, Eq, prost::Message)]
pub struct Timestamp {
    /// Seconds since 1970 UTC.
    #[prost(int64, tag = "1")]
    pub seconds: i64,
    /// Nanoseconds within the second.
    #[prost(int32, tag = "2")]
    pub nanos: i32,
}

/// `google.protobuf.Duration`.
#[derive(Clone, Copy, PartialEq, Eq, prost::Message)]
pub struct Duration {
    /// Seconds.
    #[prost(int64, tag = "1")]
    pub seconds: i64,
    /// Nanoseconds within the second.
    #[prost(int32, tag = "2")]
    pub nanos: i32,
}

/// A topic.
#[derive(Clone, PartialEq, prost::Message)]
pub struct Topic {
    /// `projects/P/topics/T`.
    #[prost(string, tag = "1")]
    pub name: String,
    /// Labels, kept as given.
    #[prost(map = "string, string", tag = "2")]
    pub labels: HashMap<String, String>,
    /// Where messages may be stored.
    #[prost(message, optional, tag = "3")]
    pub message_storage_policy: Option<MessageStoragePolicy>,
    /// The key that messages are encrypted with; empty for none of the user's.
    #[prost(string, tag = "5")]
    pub kms_key_name: String,
    /// What messages are checked against.
    #[prost(message, optional, tag = "6")]
    pub schema_settings: Option<Opaque>,
    /// How long messages can be sought back to, whatever the subscriptions keep; absent for not at all.
    #[prost(message, optional, tag = "8")]
    pub message_retention_duration: Option<Duration>,
    /// Given by the server: 1 is active.
    #[prost(int32, tag = "9")]
    pub state: i32,
    /// Where else messages come from.
    #[prost(message, optional, tag = "10")]
    pub ingestion_data_source_settings: Option<Opaque>,
    /// What happens to messages before they are stored.
    #[prost(message, repeated, tag = "13")]
    pub message_transforms: Vec<Opaque>,
}

/// Ask for a topic.
#[derive(Clone, PartialEq, prost::Message)]
pub struct GetTopicRequest {
    /// `projects/P/topics/T`.
    #[prost(string, tag = "1")]
    pub topic: String,
}

/// Delete a topic.
#[derive(Clone, PartialEq, prost::Message)]
pub struct DeleteTopicRequest {
    /// `projects/P/topics/T`.
    #[prost(string, tag = "1")]
    pub topic: String,
}

/// A message.
#[derive(Clone, PartialEq, prost::Message)]
pub struct PubsubMessage {
    /// The payload.
    #[prost(bytes = "bytes", tag = "1")]
    pub data: Bytes,
    /// The attributes.
    #[prost(map = "string, string", tag = "2")]
    pub attributes: HashMap<String, String>,
    /// The server's id; empty when publishing.
    #[prost(string, tag = "3")]
    pub message_id: String,
    /// The server's time; absent when publishing.
    #[prost(message, optional, tag = "4")]
    pub publish_time: Option<Timestamp>,
    /// The ordering key, or empty.
    #[prost(string, tag = "5")]
    pub ordering_key: String,
}

/// Publish messages to a topic.
#[derive(Clone, PartialEq, prost::Message)]
pub struct PublishRequest {
    /// `projects/P/topics/T`.
    #[prost(string, tag = "1")]
    pub topic: String,
    /// At most 1,000.
    #[prost(message, repeated, tag = "2")]
    pub messages: Vec<PubsubMessage>,
}

/// The ids of what was published.
#[derive(Clone, PartialEq, prost::Message)]
pub struct PublishResponse {
    /// In the order of the request.
    #[prost(string, repeated, tag = "1")]
    pub message_ids: Vec<String>,
}

/// A subscription.
#[derive(Clone, PartialEq, prost::Message)]
pub struct Subscription {
    /// `projects/P/subscriptions/S`.
    #[prost(string, tag = "1")]
    pub name: String,
    /// `projects/P/topics/T`.
    #[prost(string, tag = "2")]
    pub topic: String,
    /// Where messages are pushed to; absent for pulling.
    #[prost(message, optional, tag = "4")]
    pub push_config: Option<PushConfig>,
    /// The lease of a delivery, 10 to 600; 0 means 10.
    #[prost(int32, tag = "5")]
    pub ack_deadline_seconds: i32,
    /// Acknowledged messages are kept, too, and can be sought back to.
    #[prost(bool, tag = "7")]
    pub retain_acked_messages: bool,
    /// How long messages are kept; absent means 7 days.
    #[prost(message, optional, tag = "8")]
    pub message_retention_duration: Option<Duration>,
    /// Labels, kept as given.
    #[prost(map = "string, string", tag = "9")]
    pub labels: HashMap<String, String>,
    /// Messages of one ordering key come in order.
    #[prost(bool, tag = "10")]
    pub enable_message_ordering: bool,
    /// When the unused subscription goes; absent means after 31 days.
    #[prost(message, optional, tag = "11")]
    pub expiration_policy: Option<ExpirationPolicy>,
    /// Only messages whose attributes match are delivered; empty for all.
    #[prost(string, tag = "12")]
    pub filter: String,
    /// Where messages go that were delivered too often.
    #[prost(message, optional, tag = "13")]
    pub dead_letter_policy: Option<DeadLetterPolicy>,
    /// How long a redelivery waits; absent for not at all.
    #[prost(message, optional, tag = "14")]
    pub retry_policy: Option<RetryPolicy>,
    /// Given by the server: it was cut off its topic and has nothing to deliver any more.
    #[prost(bool, tag = "15")]
    pub detached: bool,
    /// Acknowledgements are confirmed.
    #[prost(bool, tag = "16")]
    pub enable_exactly_once_delivery: bool,
    /// Given by the server: how long the topic keeps messages.
    #[prost(message, optional, tag = "17")]
    pub topic_message_retention_duration: Option<Duration>,
    /// Messages go to BigQuery.
    #[prost(message, optional, tag = "18")]
    pub bigquery_config: Option<Opaque>,
    /// Given by the server: 1 is active.
    #[prost(int32, tag = "19")]
    pub state: i32,
    /// Messages go to Cloud Storage.
    #[prost(message, optional, tag = "22")]
    pub cloud_storage_config: Option<Opaque>,
    /// What happens to messages before they are delivered.
    #[prost(message, repeated, tag = "25")]
    pub message_transforms: Vec<Opaque>,
    /// Messages go to Bigtable.
    #[prost(message, optional, tag = "27")]
    pub bigtable_config: Option<Opaque>,
}

/// Where a push subscription sends its messages.
#[derive(Clone, PartialEq, prost::Message)]
pub struct PushConfig {
    /// A URL; empty for pulling.
    #[prost(string, tag = "1")]
    pub push_endpoint: String,
}

/// Where messages go that were delivered too often.
#[derive(Clone, PartialEq, prost::Message)]
pub struct DeadLetterPolicy {
    /// `projects/P/topics/T`.
    #[prost(string, tag = "1")]
    pub dead_letter_topic: String,
    /// From 5 to 100.
    #[prost(int32, tag = "2")]
    pub max_delivery_attempts: i32,
}

/// How long a redelivery waits.
#[derive(Clone, PartialEq, prost::Message)]
pub struct RetryPolicy {
    /// At least.
    #[prost(message, optional, tag = "1")]
    pub minimum_backoff: Option<Duration>,
    /// At most.
    #[prost(message, optional, tag = "2")]
    pub maximum_backoff: Option<Duration>,
}

/// Ask for a subscription.
#[derive(Clone, PartialEq, prost::Message)]
pub struct GetSubscriptionRequest {
    /// `projects/P/subscriptions/S`.
    #[prost(string, tag = "1")]
    pub subscription: String,
}

/// Delete a subscription.
#[derive(Clone, PartialEq, prost::Message)]
pub struct DeleteSubscriptionRequest {
    /// `projects/P/subscriptions/S`.
    #[prost(string, tag = "1")]
    pub subscription: String,
}

/// Acknowledge deliveries.
#[derive(Clone, PartialEq, prost::Message)]
pub struct AcknowledgeRequest {
    /// `projects/P/subscriptions/S`.
    #[prost(string, tag = "1")]
    pub subscription: String,
    /// The deliveries.
    #[prost(string, repeated, tag = "2")]
    pub ack_ids: Vec<String>,
}

/// Extend leases, or end them with 0 seconds (a nack).
#[derive(Clone, PartialEq, prost::Message)]
pub struct ModifyAckDeadlineRequest {
    /// `projects/P/subscriptions/S`.
    #[prost(string, tag = "1")]
    pub subscription: String,
    /// From now; 0 gives the message back.
    #[prost(int32, tag = "3")]
    pub ack_deadline_seconds: i32,
    /// The deliveries.
    #[prost(string, repeated, tag = "4")]
    pub ack_ids: Vec<String>,
}

/// The first request opens a stream; later ones carry acks, lease changes, or nothing (a keepalive).
#[derive(Clone, PartialEq, prost::Message)]
pub struct StreamingPullRequest {
    /// `projects/P/subscriptions/S`; first request only.
    #[prost(string, tag = "1")]
    pub subscription: String,
    /// Deliveries to acknowledge.
    #[prost(string, repeated, tag = "2")]
    pub ack_ids: Vec<String>,
    /// New deadlines, one for each of `modify_deadline_ack_ids`.
    #[prost(int32, repeated, tag = "3")]
    pub modify_deadline_seconds: Vec<i32>,
    /// Deliveries whose deadline changes.
    #[prost(string, repeated, tag = "4")]
    pub modify_deadline_ack_ids: Vec<String>,
    /// The lease of this stream's deliveries; first request.
    #[prost(int32, tag = "5")]
    pub stream_ack_deadline_seconds: i32,
    /// Stable for the life of a puller's stream.
    #[prost(string, tag = "6")]
    pub client_id: String,
    /// Flow control; 0 or less is unlimited.
    #[prost(int64, tag = "7")]
    pub max_outstanding_messages: i64,
    /// Flow control; 0 or less is unlimited.
    #[prost(int64, tag = "8")]
    pub max_outstanding_bytes: i64,
}

/// A delivery.
#[derive(Clone, PartialEq, prost::Message)]
pub struct ReceivedMessage {
    /// Names this delivery, not the message.
    #[prost(string, tag = "1")]
    pub ack_id: String,
    /// The message.
    #[prost(message, optional, tag = "2")]
    pub message: Option<PubsubMessage>,
    /// Counted only under a dead-letter policy, else 0.
    #[prost(int32, tag = "3")]
    pub delivery_attempt: i32,
}

/// Deliveries of a stream.
#[derive(Clone, PartialEq, prost::Message)]
pub struct StreamingPullResponse {
    /// One or more.
    #[prost(message, repeated, tag = "1")]
    pub received_messages: Vec<ReceivedMessage>,
}

// Permissions (`google.iam.v1`)

/// Ask which of these permissions the caller has. Everybody may ask.
#[derive(Clone, PartialEq, prost::Message)]
pub struct TestIamPermissionsRequest {
    /// `projects/P/topics/T` or `projects/P/subscriptions/S`.
    #[prost(string, tag = "1")]
    pub resource: String,
    /// Such as `pubsub.subscriptions.consume`.
    #[prost(string, repeated, tag = "2")]
    pub permissions: Vec<String>,
}

/// The permissions that the caller has, out of those asked for.
#[derive(Clone, PartialEq, prost::Message)]
pub struct TestIamPermissionsResponse {
    /// None for a resource that is not there.
    #[prost(string, repeated, tag = "1")]
    pub permissions: Vec<String>,
}
