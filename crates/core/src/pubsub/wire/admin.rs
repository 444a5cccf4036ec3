//! The messages of the calls that administer topics, subscriptions and snapshots, of the unary pull, and the details of
//! a failed call.

use std::collections::HashMap;

use super::{Duration, Empty, Subscription, Timestamp, Topic};

/// `google.protobuf.FieldMask`.
#[derive(Clone, PartialEq, prost::Message)]
pub struct FieldMask {
    /// The fields that change.
    #[prost(string, repeated, tag = "1")]
    pub paths: Vec<String>,
}

/// `google.protobuf.Any`.
#[derive(Clone, PartialEq, prost::Message)]
pub struct Any {
    /// What `value` is.
    #[prost(string, tag = "1")]
    pub type_url: String,
    /// The encoded message.
    #[prost(bytes = "vec", tag = "2")]
    pub value: Vec<u8>,
}

/// `google.rpc.Status`, as `grpc-status-details-bin` carries it.
#[derive(Clone, PartialEq, prost::Message)]
pub struct RpcStatus {
    /// The gRPC code.
    #[prost(int32, tag = "1")]
    pub code: i32,
    /// The same text as the call's status.
    #[prost(string, tag = "2")]
    pub message: String,
    /// More about the failure.
    #[prost(message, repeated, tag = "3")]
    pub details: Vec<Any>,
}

/// `google.rpc.ErrorInfo`.
#[derive(Clone, PartialEq, prost::Message)]
pub struct ErrorInfo {
    /// Why, as a constant.
    #[prost(string, tag = "1")]
    pub reason: String,
    /// The service.
    #[prost(string, tag = "2")]
    pub domain: String,
    /// For exactly-once delivery: from the ack id to what is wrong with it.
    #[prost(map = "string, string", tag = "3")]
    pub metadata: HashMap<String, String>,
}

/// Where messages may be stored.
#[derive(Clone, PartialEq, prost::Message)]
pub struct MessageStoragePolicy {
    /// Regions.
    #[prost(string, repeated, tag = "1")]
    pub allowed_persistence_regions: Vec<String>,
    /// Whether the regions bind publishers and subscribers, too.
    #[prost(bool, tag = "2")]
    pub enforce_in_transit: bool,
}

/// When an unused subscription goes.
#[derive(Clone, Copy, PartialEq, prost::Message)]
pub struct ExpirationPolicy {
    /// After this time without a client; absent for never.
    #[prost(message, optional, tag = "1")]
    pub ttl: Option<Duration>,
}

/// Change a topic.
#[derive(Clone, PartialEq, prost::Message)]
pub struct UpdateTopicRequest {
    /// The topic with the new values.
    #[prost(message, optional, tag = "1")]
    pub topic: Option<Topic>,
    /// Which of them count.
    #[prost(message, optional, tag = "2")]
    pub update_mask: Option<FieldMask>,
}

/// Change a subscription.
#[derive(Clone, PartialEq, prost::Message)]
pub struct UpdateSubscriptionRequest {
    /// The subscription with the new values.
    #[prost(message, optional, tag = "1")]
    pub subscription: Option<Subscription>,
    /// Which of them count.
    #[prost(message, optional, tag = "2")]
    pub update_mask: Option<FieldMask>,
}

/// Change a snapshot.
#[derive(Clone, PartialEq, prost::Message)]
pub struct UpdateSnapshotRequest {
    /// The snapshot with the new values.
    #[prost(message, optional, tag = "1")]
    pub snapshot: Option<Snapshot>,
    /// Which of them count.
    #[prost(message, optional, tag = "2")]
    pub update_mask: Option<FieldMask>,
}

/// Cut a subscription off its topic.
#[derive(Clone, PartialEq, prost::Message)]
pub struct DetachSubscriptionRequest {
    /// `projects/P/subscriptions/S`.
    #[prost(string, tag = "1")]
    pub subscription: String,
}

/// Change where messages are pushed to.
#[derive(Clone, PartialEq, prost::Message)]
pub struct ModifyPushConfigRequest {
    /// `projects/P/subscriptions/S`.
    #[prost(string, tag = "1")]
    pub subscription: String,
    /// Empty for pulling.
    #[prost(message, optional, tag = "2")]
    pub push_config: Option<super::PushConfig>,
}

/// Receive messages once.
#[derive(Clone, PartialEq, prost::Message)]
pub struct PullRequest {
    /// `projects/P/subscriptions/S`.
    #[prost(string, tag = "1")]
    pub subscription: String,
    /// Do not wait for messages.
    #[prost(bool, tag = "2")]
    pub return_immediately: bool,
    /// At most so many.
    #[prost(int32, tag = "3")]
    pub max_messages: i32,
}

/// What a subscription had not acknowledged at a moment.
#[derive(Clone, PartialEq, prost::Message)]
pub struct Snapshot {
    /// `projects/P/snapshots/S`.
    #[prost(string, tag = "1")]
    pub name: String,
    /// `projects/P/topics/T`.
    #[prost(string, tag = "2")]
    pub topic: String,
    /// When it goes.
    #[prost(message, optional, tag = "3")]
    pub expire_time: Option<Timestamp>,
    /// Labels, kept as given.
    #[prost(map = "string, string", tag = "4")]
    pub labels: HashMap<String, String>,
}

/// Take a snapshot.
#[derive(Clone, PartialEq, prost::Message)]
pub struct CreateSnapshotRequest {
    /// `projects/P/snapshots/S`.
    #[prost(string, tag = "1")]
    pub name: String,
    /// `projects/P/subscriptions/S`.
    #[prost(string, tag = "2")]
    pub subscription: String,
    /// Labels, kept as given.
    #[prost(map = "string, string", tag = "3")]
    pub labels: HashMap<String, String>,
}

/// Ask for a snapshot.
#[derive(Clone, PartialEq, prost::Message)]
pub struct GetSnapshotRequest {
    /// `projects/P/snapshots/S`.
    #[prost(string, tag = "1")]
    pub snapshot: String,
}

/// Delete a snapshot.
#[derive(Clone, PartialEq, prost::Message)]
pub struct DeleteSnapshotRequest {
    /// `projects/P/snapshots/S`.
    #[prost(string, tag = "1")]
    pub snapshot: String,
}

/// Move a subscription to a moment or a snapshot.
#[derive(Clone, PartialEq, prost::Message)]
pub struct SeekRequest {
    /// `projects/P/subscriptions/S`.
    #[prost(string, tag = "1")]
    pub subscription: String,
    /// Exactly one of the two.
    #[prost(oneof = "SeekTarget", tags = "2, 3")]
    pub target: Option<SeekTarget>,
}

/// Where to seek to.
#[derive(Clone, PartialEq, prost::Oneof)]
pub enum SeekTarget {
    /// What was published before it counts as acknowledged, what came later as not.
    #[prost(message, tag = "2")]
    Time(Timestamp),
    /// `projects/P/snapshots/S`.
    #[prost(string, tag = "3")]
    Snapshot(String),
}

/// Ask for a page of anything: every List call has these three fields.
#[derive(Clone, PartialEq, prost::Message)]
pub struct ListRequest {
    /// What the things belong to: `projects/P` or `projects/P/topics/T`.
    #[prost(string, tag = "1")]
    pub parent: String,
    /// The most of one page; 0 leaves it to the server.
    #[prost(int32, tag = "2")]
    pub page_size: i32,
    /// From the page before; empty for the first one.
    #[prost(string, tag = "3")]
    pub page_token: String,
}

/// One page of names, of the subscriptions or the snapshots of a topic.
#[derive(Clone, PartialEq, prost::Message)]
pub struct ListNamesResponse {
    /// In their order.
    #[prost(string, repeated, tag = "1")]
    pub names: Vec<String>,
    /// Empty on the last page.
    #[prost(string, tag = "2")]
    pub next_page_token: String,
}

/// A page of topics.
#[derive(Clone, PartialEq, prost::Message)]
pub struct ListTopicsResponse {
    /// The topics.
    #[prost(message, repeated, tag = "1")]
    pub topics: Vec<Topic>,
    /// For the next page; empty when this is the last one.
    #[prost(string, tag = "2")]
    pub next_page_token: String,
}

/// A page of subscriptions.
#[derive(Clone, PartialEq, prost::Message)]
pub struct ListSubscriptionsResponse {
    /// The subscriptions.
    #[prost(message, repeated, tag = "1")]
    pub subscriptions: Vec<Subscription>,
    /// For the next page; empty when this is the last one.
    #[prost(string, tag = "2")]
    pub next_page_token: String,
}

/// One page of the snapshots of a project.
#[derive(Clone, PartialEq, prost::Message)]
pub struct ListSnapshotsResponse {
    /// In the order of their names.
    #[prost(message, repeated, tag = "1")]
    pub snapshots: Vec<Snapshot>,
    /// Empty on the last page.
    #[prost(string, tag = "2")]
    pub next_page_token: String,
}

/// Which acks of a stream were done; sent for exactly-once delivery.
#[derive(Clone, PartialEq, prost::Message)]
pub struct AcknowledgeConfirmation {
    /// Done.
    #[prost(string, repeated, tag = "1")]
    pub ack_ids: Vec<String>,
    /// Malformed, or expired.
    #[prost(string, repeated, tag = "2")]
    pub invalid_ack_ids: Vec<String>,
    /// Out of order.
    #[prost(string, repeated, tag = "3")]
    pub unordered_ack_ids: Vec<String>,
    /// To be tried again.
    #[prost(string, repeated, tag = "4")]
    pub temporary_failed_ack_ids: Vec<String>,
}

/// Which new deadlines of a stream were set; sent for exactly-once delivery.
#[derive(Clone, PartialEq, prost::Message)]
pub struct ModifyAckDeadlineConfirmation {
    /// Done.
    #[prost(string, repeated, tag = "1")]
    pub ack_ids: Vec<String>,
    /// Malformed, or expired.
    #[prost(string, repeated, tag = "2")]
    pub invalid_ack_ids: Vec<String>,
    /// To be tried again.
    #[prost(string, repeated, tag = "3")]
    pub temporary_failed_ack_ids: Vec<String>,
}

/// A setting that is only known to be there.
pub type Opaque = Empty;
