//! The gRPC service: one route per call, over HTTP/2.

use std::convert::Infallible;
use std::future::{Ready, ready};
use std::sync::Arc;
use std::task::{Context, Poll};

use bytes::{Buf, Bytes};
use tonic::body::Body;
use tonic::codec::{BufferSettings, Codec, CompressionEncoding, DecodeBuf, Decoder};
use tonic::codegen::{BoxFuture, http};
use tonic::server::{Grpc, StreamingService, UnaryService};
use tonic::{Request, Response, Status, Streaming};
use tonic_prost::{ProstCodec, ProstEncoder};
use tower_service::Service;

use super::delivery::{Deliveries, DeliveriesCodec};
use super::message::Publish;
use super::registry::Registry;
use super::stream::{DeliveryStream, pull};
use crate::pubsub::wire::{self, Empty};

/// Larger than the service's own limits, so that it is they that refuse.
const MAX_REQUEST_BYTES: usize = 64 * 1024 * 1024;

/// The methods of the two services; no name is in both.
const PUBLISHER: [&str; 9] = [
    "CreateTopic",
    "DeleteTopic",
    "DetachSubscription",
    "GetTopic",
    "ListTopicSnapshots",
    "ListTopicSubscriptions",
    "ListTopics",
    "Publish",
    "UpdateTopic",
];
const SUBSCRIBER: [&str; 16] = [
    "Acknowledge",
    "CreateSnapshot",
    "CreateSubscription",
    "DeleteSnapshot",
    "DeleteSubscription",
    "GetSnapshot",
    "GetSubscription",
    "ListSnapshots",
    "ListSubscriptions",
    "ModifyAckDeadline",
    "ModifyPushConfig",
    "Pull",
    "Seek",
    "StreamingPull",
    "UpdateSnapshot",
    "UpdateSubscription",
];

/// What every call gives.
pub type Answer = BoxFuture<http::Response<Body>, Infallible>;

/// The method of this name.
pub fn method(name: &str) -> Option<&'static str> {
    PUBLISHER.iter().chain(&SUBSCRIBER).find(|method| **method == name).copied()
}

/// The method at a path of HTTP/2.
fn method_at(path: &str) -> Option<&'static str> {
    let (service, name) = path.strip_prefix("/google.pubsub.v1.")?.split_once('/')?;
    let methods: &[&'static str] = match service {
        "Publisher" => &PUBLISHER,
        "Subscriber" => &SUBSCRIBER,
        _ => return None,
    };
    methods.iter().find(|method| **method == name).copied()
}

/// Publisher and Subscriber, as far as the emulator has them.
#[derive(Clone, Debug)]
pub struct PubSubService {
    registry: Arc<Registry>,
}

impl PubSubService {
    /// A service over this registry.
    pub fn new(registry: Arc<Registry>) -> Self {
        Self { registry }
    }
}

impl Service<http::Request<Body>> for PubSubService {
    type Response = http::Response<Body>;
    type Error = Infallible;
    type Future = Answer;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), Infallible>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, request: http::Request<Body>) -> Answer {
        let registry = self.registry.clone();
        let Some(method) = method_at(request.uri().path()) else {
            return refuse(Status::unimplemented(format!("The emulator does not have {}.", request.uri().path())));
        };
        let fault = registry.faults.on_call(method).unwrap_or_default();
        Box::pin(async move {
            if let Some(delay) = fault.delay {
                tokio::time::sleep(delay).await;
            }
            if let Some(status) = fault.answer {
                return Ok(status.into_http());
            }
            route(registry, method, request).await
        })
    }
}

fn route(registry: Arc<Registry>, method: &'static str, request: http::Request<Body>) -> Answer {
    match method {
        "Publish" => unary(PublishCodec, request, move |body| registry.publish(&Publish::decode(body)?)),
        "Acknowledge" => prost(request, move |r| registry.acknowledge(&r).map(empty)),
        "ModifyAckDeadline" => prost(request, move |r| registry.modify_ack_deadline(&r).map(empty)),
        "Pull" => unary_pull(registry, request),
        "StreamingPull" => streaming_pull(registry, request),
        "CreateTopic" => prost(request, move |r| registry.create_topic(r)),
        "GetTopic" => prost(request, move |r: wire::GetTopicRequest| registry.get_topic(&r.topic)),
        "UpdateTopic" => prost(request, move |r| registry.update_topic(&r)),
        "DeleteTopic" => prost(request, move |r: wire::DeleteTopicRequest| registry.delete_topic(&r.topic).map(empty)),
        "ListTopics" => prost(request, move |r| registry.list_topics(&r)),
        "ListTopicSubscriptions" => prost(request, move |r| registry.list_topic_subscriptions(&r)),
        "ListTopicSnapshots" => prost(request, move |r| registry.list_topic_snapshots(&r)),
        "CreateSubscription" => prost(request, move |r| registry.create_subscription(r)),
        "GetSubscription" => {
            prost(request, move |r: wire::GetSubscriptionRequest| registry.get_subscription(&r.subscription))
        }
        "UpdateSubscription" => prost(request, move |r| registry.update_subscription(&r)),
        "DeleteSubscription" => prost(request, move |r: wire::DeleteSubscriptionRequest| {
            registry.delete_subscription(&r.subscription).map(empty)
        }),
        "ListSubscriptions" => prost(request, move |r| registry.list_subscriptions(&r)),
        "DetachSubscription" => prost(request, move |r: wire::DetachSubscriptionRequest| {
            registry.detach_subscription(&r.subscription).map(empty)
        }),
        "ModifyPushConfig" => prost(request, move |r| registry.modify_push_config(r).map(empty)),
        "CreateSnapshot" => prost(request, move |r| registry.create_snapshot(r)),
        "GetSnapshot" => prost(request, move |r: wire::GetSnapshotRequest| registry.get_snapshot(&r.snapshot)),
        "UpdateSnapshot" => prost(request, move |r| registry.update_snapshot(&r)),
        "DeleteSnapshot" => {
            prost(request, move |r: wire::DeleteSnapshotRequest| registry.delete_snapshot(&r.snapshot).map(empty))
        }
        "ListSnapshots" => prost(request, move |r| registry.list_snapshots(&r)),
        "Seek" => prost(request, move |r| registry.seek(&r).map(empty)),
        _ => refuse(Status::unimplemented(format!("The emulator does not have {method}."))),
    }
}

fn refuse(status: Status) -> Answer {
    Box::pin(async move { Ok(status.into_http()) })
}

/// Every empty response is the same on the wire.
fn empty((): ()) -> Empty {
    Empty {}
}

/// Answer a unary call of prost messages.
pub fn prost<Q, A>(request: http::Request<Body>, handle: impl FnMut(Q) -> Result<A, Status> + Send + 'static) -> Answer
where
    Q: prost::Message + Default + 'static,
    A: prost::Message + 'static,
{
    unary(ProstCodec::default(), request, handle)
}

fn unary<C: Codec + Send + 'static>(
    codec: C,
    request: http::Request<Body>,
    handle: impl FnMut(C::Decode) -> Result<C::Encode, Status> + Send + 'static,
) -> Answer {
    Box::pin(async move { Ok(grpc(codec).unary(Unary(handle), request).await) })
}

fn grpc<C: Codec>(codec: C) -> Grpc<C> {
    Grpc::new(codec).max_decoding_message_size(MAX_REQUEST_BYTES).accept_compressed(CompressionEncoding::Gzip)
}

/// A function as a unary call.
struct Unary<F>(F);

impl<Q, A, F: FnMut(Q) -> Result<A, Status>> UnaryService<Q> for Unary<F> {
    type Response = A;
    type Future = Ready<Result<Response<A>, Status>>;

    fn call(&mut self, request: Request<Q>) -> Self::Future {
        ready((self.0)(request.into_inner()).map(Response::new))
    }
}

fn unary_pull(registry: Arc<Registry>, request: http::Request<Body>) -> Answer {
    Box::pin(async move { Ok(grpc(DeliveriesCodec::default()).unary(Pull(registry), request).await) })
}

struct Pull(Arc<Registry>);

impl UnaryService<wire::PullRequest> for Pull {
    type Response = Deliveries;
    type Future = BoxFuture<Response<Deliveries>, Status>;

    fn call(&mut self, request: Request<wire::PullRequest>) -> Self::Future {
        let registry = self.0.clone();
        Box::pin(async move { pull(&registry, request.get_ref()).await.map(Response::new) })
    }
}

fn streaming_pull(registry: Arc<Registry>, request: http::Request<Body>) -> Answer {
    Box::pin(async move { Ok(grpc(DeliveriesCodec::default()).streaming(StreamingPull(registry), request).await) })
}

struct StreamingPull(Arc<Registry>);

impl StreamingService<wire::StreamingPullRequest> for StreamingPull {
    type Response = Deliveries;
    type ResponseStream = DeliveryStream;
    type Future = BoxFuture<Response<DeliveryStream>, Status>;

    fn call(&mut self, request: Request<Streaming<wire::StreamingPullRequest>>) -> Self::Future {
        let registry = self.0.clone();
        Box::pin(async move { DeliveryStream::open(registry, request.into_inner()).await.map(Response::new) })
    }
}

/// The codec of Publish: the request stays as bytes.
struct PublishCodec;

impl Codec for PublishCodec {
    type Encode = wire::PublishResponse;
    type Decode = Bytes;
    type Encoder = ProstEncoder<wire::PublishResponse>;
    type Decoder = BytesDecoder;

    fn encoder(&mut self) -> Self::Encoder {
        ProstEncoder::new(BufferSettings::default())
    }

    fn decoder(&mut self) -> Self::Decoder {
        BytesDecoder
    }
}

struct BytesDecoder;

impl Decoder for BytesDecoder {
    type Item = Bytes;
    type Error = Status;

    fn decode(&mut self, source: &mut DecodeBuf<'_>) -> Result<Option<Bytes>, Status> {
        Ok(Some(source.copy_to_bytes(source.remaining())))
    }
}
