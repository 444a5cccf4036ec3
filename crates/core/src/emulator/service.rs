//! The gRPC service: one route per call, over HTTP/2.

use std::convert::Infallible;
use std::future::{Ready, ready};
use std::sync::Arc;
use std::task::{Context, Poll};

use bytes::{Buf, Bytes};
use tonic::body::Body;
use tonic::codec::{BufferSettings, Codec, DecodeBuf, Decoder};
use tonic::codegen::{BoxFuture, http};
use tonic::server::{Grpc, StreamingService, UnaryService};
use tonic::{Request, Response, Status, Streaming};
use tonic_prost::{ProstCodec, ProstEncoder};
use tower_service::Service;

use super::delivery::{Deliveries, StreamingPullCodec};
use super::message::Publish;
use super::registry::Registry;
use super::stream::DeliveryStream;
use crate::pubsub::wire::{self, Empty, path};

/// Larger than the service's own limits, so that it is they that refuse.
const MAX_REQUEST_BYTES: usize = 64 * 1024 * 1024;

/// What every call gives.
pub type Answer = BoxFuture<http::Response<Body>, Infallible>;

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
        match request.uri().path() {
            path::PUBLISH => unary(PublishCodec, request, move |body| registry.publish(&Publish::decode(body)?)),
            path::ACKNOWLEDGE => prost(request, move |r| registry.acknowledge(&r).map(empty)),
            path::MODIFY_ACK_DEADLINE => prost(request, move |r| registry.modify_ack_deadline(&r).map(empty)),
            path::STREAMING_PULL => streaming_pull(registry, request),
            path::CREATE_TOPIC => prost(request, move |r| registry.create_topic(r)),
            path::GET_TOPIC => prost(request, move |r: wire::GetTopicRequest| registry.get_topic(&r.topic)),
            path::DELETE_TOPIC => {
                prost(request, move |r: wire::DeleteTopicRequest| registry.delete_topic(&r.topic).map(empty))
            }
            path::CREATE_SUBSCRIPTION => prost(request, move |r| registry.create_subscription(r)),
            path::GET_SUBSCRIPTION => {
                prost(request, move |r: wire::GetSubscriptionRequest| registry.get_subscription(&r.subscription))
            }
            path::DELETE_SUBSCRIPTION => prost(request, move |r: wire::DeleteSubscriptionRequest| {
                registry.delete_subscription(&r.subscription).map(empty)
            }),
            other => {
                let status = Status::unimplemented(format!("The emulator does not have {other}."));
                Box::pin(async move { Ok(status.into_http()) })
            }
        }
    }
}

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
    Box::pin(async move {
        let mut grpc = Grpc::new(codec).max_decoding_message_size(MAX_REQUEST_BYTES);
        Ok(grpc.unary(Unary(handle), request).await)
    })
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

fn streaming_pull(registry: Arc<Registry>, request: http::Request<Body>) -> Answer {
    Box::pin(async move {
        let mut grpc = Grpc::new(StreamingPullCodec).max_decoding_message_size(MAX_REQUEST_BYTES);
        Ok(grpc.streaming(StreamingPull(registry), request).await)
    })
}

struct StreamingPull(Arc<Registry>);

impl StreamingService<wire::StreamingPullRequest> for StreamingPull {
    type Response = Deliveries;
    type ResponseStream = DeliveryStream;
    type Future = BoxFuture<Response<DeliveryStream>, Status>;

    fn call(&mut self, request: Request<Streaming<wire::StreamingPullRequest>>) -> Self::Future {
        let registry = self.0.clone();
        Box::pin(async move { DeliveryStream::open(&registry, request.into_inner()).await.map(Response::new) })
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
