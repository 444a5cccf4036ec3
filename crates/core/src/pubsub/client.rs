//! The calls of Pub/Sub over one connection. Every call has a deadline.

use std::time::Duration;

use bytes::{Buf, BufMut, Bytes};
use tonic::client::Grpc;
use tonic::codec::{Codec, CompressionEncoding, DecodeBuf, Decoder, EncodeBuf, Encoder};
use tonic::codegen::http::uri::PathAndQuery;
use tonic::transport::{Channel, Endpoint};
use tonic::{Request, Status, Streaming};
use tonic_prost::ProstCodec;

use crate::error::{Error, ErrorKind, Result};
use crate::pubsub::framed::{FRAME_HEAD_BYTES, FramedChannel};
use crate::pubsub::wire::{
    AcknowledgeRequest, Empty, GetSubscriptionRequest, ModifyAckDeadlineRequest, StreamingPullRequest, Subscription, path,
};

/// The longest a unary call may take.
pub const CALL_DEADLINE: Duration = Duration::from_secs(30);
const CONNECT_DEADLINE: Duration = Duration::from_secs(10);
/// A response may hold many messages of up to 10 MB; a larger one is refused instead of buffered.
const MAX_RESPONSE_BYTES: usize = 64 << 20;
const WINDOW_BYTES: u32 = 16 << 20;
/// A connection that died without a word is noticed by pings that nobody answers.
const PING_EVERY: Duration = Duration::from_secs(20);
const PING_DEADLINE: Duration = Duration::from_secs(10);

/// A connection to Pub/Sub. Clones share it.
#[derive(Clone)]
pub struct Client {
    grpc: Grpc<Channel>,
    channel: Channel,
}

impl Client {
    /// Connect to an emulator, or to a custom endpoint without TLS, at `host:port`.
    pub async fn connect_plaintext(address: &str) -> Result<Self> {
        let endpoint = Endpoint::from_shared(format!("http://{address}"))
            .map_err(|e| {
                Error::new(ErrorKind::Config, format!("'{address}' is no address: {e}.")).with_remedy("Give host:port.")
            })?
            .connect_timeout(CONNECT_DEADLINE)
            .initial_stream_window_size(WINDOW_BYTES)
            .initial_connection_window_size(WINDOW_BYTES)
            .http2_keep_alive_interval(PING_EVERY)
            .keep_alive_timeout(PING_DEADLINE)
            .keep_alive_while_idle(true)
            .tcp_nodelay(true);
        let channel = endpoint.connect().await.map_err(|e| {
            let cause = std::error::Error::source(&e).map_or_else(|| e.to_string(), ToString::to_string);
            Error::new(ErrorKind::Unavailable, format!("no Pub/Sub answers at {address}: {cause}.")).with_remedy(
                "Start it there (solstice pubsub emulator), or correct emulatorHost / PUBSUB_EMULATOR_HOST.",
            )
        })?;
        Ok(Self { channel: channel.clone(), grpc: Grpc::new(channel).max_decoding_message_size(MAX_RESPONSE_BYTES) })
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

    /// Publish an encoded `PublishRequest` (`framed`: with the head that gRPC puts before it); gives the encoded
    /// `PublishResponse`.
    pub async fn publish(&self, framed: Bytes, deadline: Duration, gzip: bool) -> std::result::Result<Bytes, Status> {
        let path = PathAndQuery::from_static(path::PUBLISH);
        let call = async {
            if gzip {
                let mut grpc = self.ready().await?.send_compressed(CompressionEncoding::Gzip);
                let request = with_deadline(framed.slice(FRAME_HEAD_BYTES..), deadline);
                grpc.unary(request, path, BytesCodec).await
            } else {
                let mut grpc = Grpc::new(FramedChannel::new(self.channel.clone(), framed));
                grpc.ready().await.map_err(|e| Status::unavailable(format!("not connected: {e}")))?;
                grpc.unary(with_deadline(Bytes::new(), deadline), path, BytesCodec).await
            }
        };
        match tokio::time::timeout(deadline, call).await {
            Ok(outcome) => outcome.map(|response| response.into_inner()),
            Err(_) => Err(Status::deadline_exceeded(format!("no answer within {} s", deadline.as_secs_f64()))),
        }
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

fn with_deadline<T>(message: T, deadline: Duration) -> Request<T> {
    let mut request = Request::new(message);
    request.set_timeout(deadline);
    request
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

/// Requests and responses as bytes.
struct BytesCodec;

impl Codec for BytesCodec {
    type Encode = Bytes;
    type Decode = Bytes;
    type Encoder = RawEncoder;
    type Decoder = RawDecoder;

    fn encoder(&mut self) -> Self::Encoder {
        RawEncoder
    }

    fn decoder(&mut self) -> Self::Decoder {
        RawDecoder
    }
}

/// Sends a request as it is.
struct RawEncoder;

impl Encoder for RawEncoder {
    type Item = Bytes;
    type Error = Status;

    fn encode(&mut self, item: Bytes, target: &mut EncodeBuf<'_>) -> std::result::Result<(), Status> {
        target.reserve(item.len());
        target.put_slice(&item);
        Ok(())
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
