//! The calls of Pub/Sub over one connection. Every call has a deadline.

use std::time::Duration;

use bytes::{Buf, Bytes};
use tonic::client::Grpc;
use tonic::codec::{Codec, DecodeBuf, Decoder};
use tonic::codegen::http::uri::PathAndQuery;
use tonic::transport::Channel;
use tonic::{Request, Status, Streaming};
use tonic_prost::ProstCodec;

use crate::error::{Error, Result};
use crate::pubsub::connection::Connection;
use crate::pubsub::wire::{
    AcknowledgeRequest, Empty, GetSubscriptionRequest, ModifyAckDeadlineRequest, PublishRequest, PublishResponse,
    StreamingPullRequest, Subscription, path,
};

/// The longest a unary call may take.
pub const CALL_DEADLINE: Duration = Duration::from_secs(30);
/// A response may hold many messages of up to 10 MB; a larger one is refused instead of buffered.
const MAX_RESPONSE_BYTES: usize = 64 << 20;

/// A connection to Pub/Sub. Clones share it.
#[derive(Clone)]
pub struct Client {
    grpc: Grpc<Channel>,
}

impl Client {
    /// A client of the server there; clients of one place share one connection.
    pub async fn connect(connection: &Connection) -> Result<Self> {
        let channel = connection.channel().await?;
        Ok(Self { grpc: Grpc::new(channel).max_decoding_message_size(MAX_RESPONSE_BYTES) })
    }

    /// Read a subscription: shows that it exists and may be read.
    pub async fn get_subscription(&self, name: &str) -> Result<Subscription> {
        let request = GetSubscriptionRequest { subscription: name.to_owned() };
        self.unary(path::GET_SUBSCRIPTION, request)
            .await
            .map_err(|s| Error::from_status(&format!("reading {name}"), &s))
    }

    /// Acknowledge deliveries; the caller keeps to the limits of a request.
    pub async fn acknowledge(&self, subscription: &str, ack_ids: Vec<String>) -> std::result::Result<(), Status> {
        let request = AcknowledgeRequest { subscription: subscription.to_owned(), ack_ids };
        self.unary::<_, Empty>(path::ACKNOWLEDGE, request).await.map(|_| ())
    }

    /// Extend leases, or end them with 0; the caller keeps to the limits of a request.
    pub async fn modify_ack_deadline(
        &self,
        subscription: &str,
        ack_ids: Vec<String>,
        ack_deadline_seconds: i32,
    ) -> std::result::Result<(), Status> {
        let request = ModifyAckDeadlineRequest { subscription: subscription.to_owned(), ack_deadline_seconds, ack_ids };
        self.unary::<_, Empty>(path::MODIFY_ACK_DEADLINE, request).await.map(|_| ())
    }

    /// Publish one request's worth of messages.
    pub async fn publish(&self, request: PublishRequest) -> std::result::Result<PublishResponse, Status> {
        self.unary(path::PUBLISH, request).await
    }

    /// Open a stream; its responses come as bytes, for [`super::decode`] to take apart.
    pub async fn streaming_pull(
        &self,
        requests: tokio_stream::wrappers::ReceiverStream<StreamingPullRequest>,
    ) -> std::result::Result<Streaming<Bytes>, Status> {
        let mut grpc = self.ready().await?;
        let path = PathAndQuery::from_static(path::STREAMING_PULL);
        grpc.streaming(Request::new(requests), path, StreamingPullCodec).await.map(|response| response.into_inner())
    }

    async fn ready(&self) -> std::result::Result<Grpc<Channel>, Status> {
        let mut grpc = self.grpc.clone();
        grpc.ready().await.map_err(|e| Status::unavailable(format!("not connected: {e}")))?;
        Ok(grpc)
    }

    async fn unary<Q, A>(&self, path: &'static str, message: Q) -> std::result::Result<A, Status>
    where
        Q: prost::Message + Send + Sync + 'static,
        A: prost::Message + Default + Send + Sync + 'static,
    {
        let mut request = Request::new(message);
        request.set_timeout(CALL_DEADLINE);
        let call = async {
            let mut grpc = self.ready().await?;
            grpc.unary(request, PathAndQuery::from_static(path), ProstCodec::<Q, A>::default()).await
        };
        match tokio::time::timeout(CALL_DEADLINE, call).await {
            Ok(outcome) => outcome.map(|response| response.into_inner()),
            Err(_) => Err(Status::deadline_exceeded(format!("no answer within {} s", CALL_DEADLINE.as_secs()))),
        }
    }
}

/// Requests as messages, responses as bytes.
struct StreamingPullCodec;

impl Codec for StreamingPullCodec {
    type Encode = StreamingPullRequest;
    type Decode = Bytes;
    type Encoder = <ProstCodec<StreamingPullRequest, Empty> as Codec>::Encoder;
    type Decoder = RawDecoder;

    fn encoder(&mut self) -> Self::Encoder {
        ProstCodec::<StreamingPullRequest, Empty>::default().encoder()
    }

    fn decoder(&mut self) -> Self::Decoder {
        RawDecoder
    }
}

/// Takes a response as it is.
struct RawDecoder;

impl Decoder for RawDecoder {
    type Item = Bytes;
    type Error = Status;

    fn decode(&mut self, source: &mut DecodeBuf<'_>) -> std::result::Result<Option<Bytes>, Status> {
        Ok(Some(source.copy_to_bytes(source.remaining())))
    }
}
