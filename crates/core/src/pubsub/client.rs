//! The calls of Pub/Sub over one connection. Every call has a deadline. What manages topics and subscriptions is in
//! [`super::admin`].

use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant, SystemTime};

use bytes::{Buf, BufMut, Bytes};
use tonic::client::Grpc;
use tonic::codec::{Codec, CompressionEncoding, DecodeBuf, Decoder, EncodeBuf, Encoder};
use tonic::codegen::http::uri::PathAndQuery;
use tonic::transport::Channel;
use tonic::{Code, Request, Status, Streaming};
use tonic_prost::ProstCodec;

use crate::error::{Error, ErrorKind, Result};
use crate::pubsub::connection::{Connection, Opened};
use crate::pubsub::credentials::Token;
use crate::pubsub::framed::{FRAME_HEAD_BYTES, FramedChannel};
use crate::pubsub::wire::{Empty, StreamingPullRequest, path};

/// The longest a unary call may take.
pub const CALL_DEADLINE: Duration = Duration::from_secs(30);
/// A response may hold many messages of up to 10 MB; a larger one is refused instead of buffered.
const MAX_RESPONSE_BYTES: usize = 64 << 20;

/// A connection to Pub/Sub. Clones share it.
#[derive(Clone)]
pub struct Client {
    grpc: Grpc<Channel>,
    opened: Arc<Opened>,
    /// What the service last said the time is, and when it did.
    told_time: Arc<Mutex<Option<(SystemTime, Instant)>>>,
}

impl Client {
    /// A client of the server there; clients of one place share one connection and one set of credentials.
    pub async fn connect(connection: &Connection) -> Result<Self> {
        let opened = connection.open().await?;
        let grpc = Grpc::new(opened.channel.clone()).max_decoding_message_size(MAX_RESPONSE_BYTES);
        Ok(Self { grpc, opened, told_time: Arc::default() })
    }

    /// What time it is for the service, by the date of its last answer; by our own clock where it gives none. Dates are
    /// whole seconds, rounded down: this is up to a second late, never early.
    pub fn service_time(&self) -> SystemTime {
        match *self.told_time.lock().unwrap_or_else(PoisonError::into_inner) {
            Some((date, at)) => date + Duration::from_secs(1) + at.elapsed(),
            None => SystemTime::now(),
        }
    }

    /// Publish an encoded `PublishRequest` (`framed`: with the head that gRPC puts before it) within `deadline`; gives
    /// the encoded `PublishResponse`.
    pub async fn publish(&self, framed: Bytes, deadline: Duration, gzip: bool) -> std::result::Result<Bytes, Status> {
        let payload = if gzip { Payload::Gzip(framed.slice(FRAME_HEAD_BYTES..)) } else { Payload::Framed(framed) };
        self.send(path::PUBLISH, payload, deadline).await
    }

    /// Open a stream; its responses come as bytes, for [`super::decode`] to take apart.
    ///
    /// A token that the server refuses is thrown away, and the stream ends as a broken one does (UNAVAILABLE), so that
    /// it is opened again with another token; only a second refusal is UNAUTHENTICATED.
    pub async fn streaming_pull(
        &self,
        requests: tokio_stream::wrappers::ReceiverStream<StreamingPullRequest>,
    ) -> std::result::Result<Responses, Status> {
        let token = self.token().await?;
        let mut request = Request::new(requests);
        show(&mut request, token.as_ref());
        let opened = async {
            let mut grpc = self.ready().await?;
            grpc.streaming(request, PathAndQuery::from_static(path::STREAMING_PULL), StreamingPullCodec).await
        };
        match opened.await {
            Ok(response) => Ok(Responses { stream: response.into_inner(), client: self.clone(), token }),
            Err(status) => Err(self.broken_stream(status, token.as_ref()).await),
        }
    }

    async fn broken_stream(&self, status: Status, token: Option<&Token>) -> Status {
        match self.refused(&status, token) {
            Some(true) => Status::unavailable(format!("{}; trying another token", status.message())),
            Some(false) => for_good(&status, token),
            None => self.opened.explained(status).await,
        }
    }

    /// Whether this is the server's refusal of the token, and if so, whether another one is worth a try.
    fn refused(&self, status: &Status, token: Option<&Token>) -> Option<bool> {
        let (Some(credentials), Some(token)) = (&self.opened.credentials, token) else { return None };
        (status.code() == Code::Unauthenticated).then(|| credentials.refused(token))
    }

    async fn token(&self) -> std::result::Result<Option<Token>, Status> {
        match &self.opened.credentials {
            Some(credentials) => Ok(Some(credentials.token().await.map_err(Error::into_status)?)),
            None => Ok(None),
        }
    }

    async fn ready(&self) -> std::result::Result<Grpc<Channel>, Status> {
        let mut grpc = self.grpc.clone();
        grpc.ready().await.map_err(not_connected)?;
        Ok(grpc)
    }

    pub(super) async fn unary<Q, A>(&self, path: &'static str, message: &Q) -> std::result::Result<A, Status>
    where
        Q: prost::Message,
        A: prost::Message + Default,
    {
        let answer = self.call(path, message.encode_to_vec().into()).await?;
        A::decode(answer).map_err(|e| Status::internal(format!("the answer cannot be decoded: {e}")))
    }

    /// A unary call of an encoded message.
    pub(super) async fn call(&self, path: &'static str, message: Bytes) -> std::result::Result<Bytes, Status> {
        self.send(path, Payload::Message(message), CALL_DEADLINE).await
    }

    /// A unary call. A refused token is replaced once.
    async fn send(
        &self,
        path: &'static str,
        payload: Payload,
        deadline: Duration,
    ) -> std::result::Result<Bytes, Status> {
        let call = async {
            let mut replaced = false;
            loop {
                let token = self.token().await?;
                let status = match self.attempt(path, payload.clone(), deadline, token.as_ref()).await {
                    Ok(answer) => return Ok(answer),
                    Err(status) => status,
                };
                match self.refused(&status, token.as_ref()) {
                    Some(true) if !replaced => replaced = true,
                    Some(_) => return Err(for_good(&status, token.as_ref())),
                    None => return Err(self.opened.explained(status).await),
                }
            }
        };
        match tokio::time::timeout(deadline, call).await {
            Ok(outcome) => outcome,
            Err(_) => Err(Status::deadline_exceeded(format!("no answer within {deadline:?}"))),
        }
    }

    async fn attempt(
        &self,
        path: &'static str,
        payload: Payload,
        deadline: Duration,
        token: Option<&Token>,
    ) -> std::result::Result<Bytes, Status> {
        let request = |message| {
            let mut request = Request::new(message);
            request.set_timeout(deadline);
            show(&mut request, token);
            request
        };
        let path = PathAndQuery::from_static(path);
        let response = match payload {
            Payload::Message(message) => self.ready().await?.unary(request(message), path, BytesCodec).await,
            Payload::Gzip(message) => {
                let mut grpc = self.ready().await?.send_compressed(CompressionEncoding::Gzip);
                grpc.unary(request(message), path, BytesCodec).await
            }
            Payload::Framed(framed) => {
                let mut grpc = Grpc::new(FramedChannel::new(self.opened.channel.clone(), framed));
                grpc.ready().await.map_err(not_connected)?;
                grpc.unary(request(Bytes::new()), path, BytesCodec).await
            }
        };
        let response = response?;
        let date = response.metadata().get("date").and_then(|date| date.to_str().ok());
        if let Some(date) = date.and_then(|date| httpdate::parse_http_date(date).ok()) {
            *self.told_time.lock().unwrap_or_else(PoisonError::into_inner) = Some((date, Instant::now()));
        }
        Ok(response.into_inner())
    }

    /// Whose calls these are, for messages.
    pub(super) async fn caller(&self) -> String {
        match self.token().await {
            Ok(Some(token)) => token.who().to_owned(),
            _ => "the caller".to_owned(),
        }
    }
}

/// What a unary call sends.
#[derive(Clone)]
enum Payload {
    /// A message.
    Message(Bytes),
    /// A message to be compressed.
    Gzip(Bytes),
    /// A message behind its head.
    Framed(Bytes),
}

fn not_connected(error: tonic::transport::Error) -> Status {
    Status::unavailable(format!("not connected: {error}"))
}

fn show<T>(request: &mut Request<T>, token: Option<&Token>) {
    if let Some(token) = token {
        token.add_to(request.metadata_mut());
    }
}

fn for_good(status: &Status, token: Option<&Token>) -> Status {
    let who = token.map_or("the caller", Token::who);
    Error::new(
        ErrorKind::Unauthenticated,
        format!(
            "Pub/Sub refuses the access token of {who}, also a fresh one: {}.",
            status.message().trim_end_matches('.')
        ),
    )
    .with_remedy("Check that these are credentials for this endpoint and that the account is not disabled.")
    .into_status()
}

/// What comes over a stream.
pub struct Responses {
    stream: Streaming<Bytes>,
    client: Client,
    token: Option<Token>,
}

impl Responses {
    /// The next response; None at a proper end.
    pub async fn message(&mut self) -> std::result::Result<Option<Bytes>, Status> {
        match self.stream.message().await {
            Ok(response) => Ok(response),
            Err(status) => Err(self.client.broken_stream(status, self.token.as_ref()).await),
        }
    }
}

/// Messages that are encoded already, or not decoded yet.
struct BytesCodec;

impl Codec for BytesCodec {
    type Encode = Bytes;
    type Decode = Bytes;
    type Encoder = BytesEncoder;
    type Decoder = BytesDecoder;

    fn encoder(&mut self) -> Self::Encoder {
        BytesEncoder
    }

    fn decoder(&mut self) -> Self::Decoder {
        BytesDecoder
    }
}

struct BytesEncoder;

impl Encoder for BytesEncoder {
    type Item = Bytes;
    type Error = Status;

    fn encode(&mut self, message: Bytes, target: &mut EncodeBuf<'_>) -> std::result::Result<(), Status> {
        target.reserve(message.len());
        target.put(message);
        Ok(())
    }
}

struct BytesDecoder;

impl Decoder for BytesDecoder {
    type Item = Bytes;
    type Error = Status;

    fn decode(&mut self, source: &mut DecodeBuf<'_>) -> std::result::Result<Option<Bytes>, Status> {
        Ok(Some(source.copy_to_bytes(source.remaining())))
    }
}

/// Requests as messages, responses as bytes.
struct StreamingPullCodec;

impl Codec for StreamingPullCodec {
    type Encode = StreamingPullRequest;
    type Decode = Bytes;
    type Encoder = <ProstCodec<StreamingPullRequest, Empty> as Codec>::Encoder;
    type Decoder = BytesDecoder;

    fn encoder(&mut self) -> Self::Encoder {
        ProstCodec::<StreamingPullRequest, Empty>::default().encoder()
    }

    fn decoder(&mut self) -> Self::Decoder {
        BytesDecoder
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use tokio::net::TcpListener;

    #[tokio::test]
    async fn a_server_that_never_answers_is_an_error_at_the_deadline() {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let endpoint = listener.local_addr().unwrap().to_string();
        let accepting = tokio::spawn(async move {
            let mut kept = vec![];
            while let Ok((stream, _)) = listener.accept().await {
                kept.push(stream);
            }
        });
        let connection = Connection { endpoint, plaintext: true, credentials_file: None };
        let deadline = Duration::from_millis(300);
        let client = Client::connect(&connection).await.unwrap();
        let started = std::time::Instant::now();
        let status = client.publish(vec![0; FRAME_HEAD_BYTES].into(), deadline, false).await.unwrap_err();
        assert!(started.elapsed() < 10 * deadline);
        let error = Error::from_status("publishing to projects/p/topics/t", &status);
        assert_eq!((error.kind, error.code), (ErrorKind::Unavailable, Some(Code::DeadlineExceeded)));
        assert!(error.to_string().contains("projects/p/topics/t: no answer within 300ms"), "{error}");
        accepting.abort();
    }

    #[test]
    fn an_error_that_became_a_status_is_the_same_error_again() {
        let error = Error::new(ErrorKind::Config, "the key is bad.").with_remedy("Make another.");
        let status = error.into_status();
        assert!(!crate::retry::is_transient(status.code()));
        let again = Error::from_status("publishing", &status);
        assert_eq!(again.kind, ErrorKind::Config);
        assert_eq!(again.to_string(), "publishing: the key is bad. Make another.");
    }
}
