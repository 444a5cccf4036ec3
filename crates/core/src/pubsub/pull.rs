//! StreamingPull: one stream that is opened again for as long as that can help.

use std::time::Duration;

use tokio::sync::{mpsc, watch};
use tokio_stream::wrappers::ReceiverStream;

use crate::error::{Error, Result};
use crate::pubsub::client::Client;
use crate::pubsub::wire::StreamingPullRequest;
use crate::retry::{Backoff, is_transient};

/// The server closes a stream that hears nothing from its client.
const KEEPALIVE: Duration = Duration::from_secs(30);
/// How long, and how much, a stream that is closed may still bring of what was on its way.
const DRAIN: Duration = Duration::from_millis(150);
const DRAIN_BYTES: usize = 16 << 20;

/// Where a stream's responses go.
pub trait Inbox: Send + Sync {
    /// The request that opens the stream.
    fn first_request(&self) -> StreamingPullRequest;
    /// Wait until there is room for more: the bound on memory, whatever the server sends.
    fn room(&self) -> impl Future<Output = ()> + Send;
    /// Take a response.
    fn receive(&self, response: &[u8]) -> Result<()>;
    /// The service has taken the first request.
    fn opened(&self);
    /// The stream broke and will be opened again.
    fn reconnecting(&self);
}

/// Receive until `closing` becomes true, or until an error that trying again cannot mend: that is the result.
pub async fn pull(client: Client, inbox: impl Inbox, mut closing: watch::Receiver<bool>) -> Result<()> {
    let mut backoff = Backoff::default();
    loop {
        match pull_once(&client, &inbox, &mut backoff, &mut closing).await {
            Ok(()) if *closing.borrow() => return Ok(()),
            Ok(()) => log::debug!("a stream ended; opening it again"),
            Err(error) if error.code.is_some_and(is_transient) => log::info!("{error} Opening the stream again."),
            Err(error) => return Err(error),
        }
        inbox.reconnecting();
        tokio::select! {
            () = tokio::time::sleep(backoff.next_delay()) => {}
            () = closed(&mut closing) => return Ok(()),
        }
    }
}

async fn closed(closing: &mut watch::Receiver<bool>) {
    // An error: the sender is gone, and so is whoever wanted this.
    let _ = closing.wait_for(|closing| *closing).await;
}

async fn pull_once(
    client: &Client,
    inbox: &impl Inbox,
    backoff: &mut Backoff,
    closing: &mut watch::Receiver<bool>,
) -> Result<()> {
    let first = inbox.first_request();
    let doing = format!("pulling from {}", first.subscription);
    let failed = |status| Error::from_status(&doing, &status);
    let (requests, receiver) = mpsc::channel(4);
    // Its own task, because the server may answer nothing at all before the first message.
    let keepalive = AbortOnDrop(tokio::spawn(keep_alive(requests, first, KEEPALIVE)));
    let mut responses = tokio::select! {
        opened = client.streaming_pull(ReceiverStream::new(receiver)) => opened.map_err(failed)?,
        () = closed(closing) => return Ok(()),
    };
    inbox.opened();
    loop {
        let response = async {
            inbox.room().await;
            responses.message().await
        };
        tokio::select! {
            response = response => match response.map_err(failed)? {
                Some(response) => {
                    backoff.reset();
                    inbox.receive(&response)?;
                }
                None => return Ok(()),
            },
            () = closed(closing) => break,
        }
    }
    // With the requests at their end the server sends no more; what it has sent is taken, to be given back.
    drop(keepalive);
    let drain = async {
        let mut left = DRAIN_BYTES;
        while left > 0
            && let Ok(Some(response)) = responses.message().await
        {
            left = left.saturating_sub(response.len());
            inbox.receive(&response)?;
        }
        Ok(())
    };
    tokio::time::timeout(DRAIN, drain).await.unwrap_or(Ok(()))
}

async fn keep_alive(requests: mpsc::Sender<StreamingPullRequest>, first: StreamingPullRequest, every: Duration) {
    let mut request = first;
    while requests.send(request).await.is_ok() {
        tokio::time::sleep(every).await;
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

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn the_server_hears_from_us_before_it_has_answered_at_all() {
        let first = StreamingPullRequest { subscription: "s".into(), ..Default::default() };
        let (requests, mut sent) = mpsc::channel(1);
        let _keeping = AbortOnDrop(tokio::spawn(keep_alive(requests, first.clone(), Duration::from_millis(1))));
        assert_eq!(sent.recv().await.unwrap(), first);
        for _ in 0..3 {
            assert_eq!(sent.recv().await.unwrap(), StreamingPullRequest::default());
        }
    }
}
