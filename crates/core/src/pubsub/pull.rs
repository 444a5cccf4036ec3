//! StreamingPull: one stream that is opened again for as long as that can help.

use std::time::Duration;

use tokio::sync::mpsc;
use tokio_stream::wrappers::ReceiverStream;

use crate::error::{Error, Result};
use crate::pubsub::client::Client;
use crate::pubsub::wire::StreamingPullRequest;
use crate::retry::{Backoff, is_transient};

/// The server closes a stream that hears nothing from its client.
const KEEPALIVE: Duration = Duration::from_secs(30);

/// Where a stream's responses go.
pub trait Inbox: Send + Sync {
    /// Wait until there is room for more: the bound on memory, whatever the server sends.
    fn room(&self) -> impl Future<Output = ()> + Send;
    /// Take a response.
    fn receive(&self, stream: usize, response: &[u8]) -> Result<()>;
    /// The stream broke and will be opened again.
    fn reconnecting(&self);
}

/// What a stream asks for.
#[derive(Clone, Debug)]
pub struct PullOptions {
    /// `projects/P/subscriptions/S`.
    pub subscription: String,
    /// The lease of the stream's deliveries.
    pub ack_deadline_s: i32,
    /// Flow control per stream.
    pub max_outstanding_messages: i64,
    /// Flow control per stream.
    pub max_outstanding_bytes: i64,
    /// Stable for the life of the puller.
    pub client_id: String,
}

/// Receive until an error that trying again cannot mend; that error is the result.
pub async fn pull(client: Client, options: PullOptions, stream: usize, inbox: impl Inbox) -> Error {
    let mut backoff = Backoff::default();
    loop {
        match pull_once(&client, &options, stream, &inbox, &mut backoff).await {
            Ok(()) => log::debug!("stream {stream} of {} ended; opening it again", options.subscription),
            Err(error) if error.code.is_some_and(is_transient) => log::info!("{error} Opening the stream again."),
            Err(error) => return error,
        }
        inbox.reconnecting();
        tokio::time::sleep(backoff.next_delay()).await;
    }
}

async fn pull_once(
    client: &Client,
    options: &PullOptions,
    stream: usize,
    inbox: &impl Inbox,
    backoff: &mut Backoff,
) -> Result<()> {
    let failed = |status| Error::from_status(&format!("pulling from {}", options.subscription), &status);
    let (requests, receiver) = mpsc::channel(4);
    // Its own task, because the server may answer nothing at all before the first message.
    let keepalive = AbortOnDrop(tokio::spawn(keep_alive(requests, first_request(options, stream))));
    let mut responses = client.streaming_pull(ReceiverStream::new(receiver)).await.map_err(failed)?;
    loop {
        inbox.room().await;
        match responses.message().await.map_err(failed)? {
            Some(response) => {
                backoff.reset();
                inbox.receive(stream, &response)?;
            }
            None => {
                drop(keepalive);
                return Ok(());
            }
        }
    }
}

fn first_request(options: &PullOptions, stream: usize) -> StreamingPullRequest {
    StreamingPullRequest {
        subscription: options.subscription.clone(),
        stream_ack_deadline_seconds: options.ack_deadline_s,
        client_id: format!("{}-{stream}", options.client_id),
        max_outstanding_messages: options.max_outstanding_messages,
        max_outstanding_bytes: options.max_outstanding_bytes,
        ..StreamingPullRequest::default()
    }
}

async fn keep_alive(requests: mpsc::Sender<StreamingPullRequest>, first: StreamingPullRequest) {
    let mut request = first;
    while requests.send(request).await.is_ok() {
        tokio::time::sleep(KEEPALIVE).await;
        request = StreamingPullRequest::default();
    }
}

/// A task that ends with its owner.
pub struct AbortOnDrop<T>(pub tokio::task::JoinHandle<T>);

impl<T> Drop for AbortOnDrop<T> {
    fn drop(&mut self) {
        self.0.abort();
    }
}
