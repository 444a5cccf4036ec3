//! StreamingPull: leased messages out, acknowledgements and lease changes in.

use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};

use tokio::task::AbortHandle;
use tokio_stream::Stream;
use tonic::{Status, Streaming};

use super::delivery::Deliveries;
use super::names::Kind;
use super::registry::{Registry, Subscription, ack_deadline, stopped};
use super::state::{End, FlowControl, StreamId, Taken};
use crate::pubsub::wire::StreamingPullRequest;

/// The sending half of a StreamingPull. Dropping it closes the stream.
#[derive(Debug)]
pub struct DeliveryStream {
    name: String,
    subscription: Arc<Subscription>,
    id: StreamId,
    requests: AbortHandle,
    ended: bool,
}

impl DeliveryStream {
    /// Wait for the first request, check it and open the stream.
    pub async fn open(registry: &Registry, mut requests: Streaming<StreamingPullRequest>) -> Result<Self, Status> {
        let first = requests
            .message()
            .await?
            .ok_or_else(|| Status::invalid_argument("The stream ended before its first request."))?;
        let subscription = registry.subscription(&first.subscription)?;
        let ack_deadline = ack_deadline(first.stream_ack_deadline_seconds)?;
        let flow = FlowControl {
            max_messages: limit(first.max_outstanding_messages),
            max_bytes: limit(first.max_outstanding_bytes),
        };
        apply(&subscription, &first)?;
        let id = subscription.with(|state, _| state.open_stream(flow, ack_deadline));
        let requests = tokio::spawn(receive(subscription.clone(), id, requests)).abort_handle();
        Ok(Self { name: first.subscription, subscription, id, requests, ended: false })
    }

    fn status(&self, end: End) -> Option<Status> {
        match end {
            End::ClientDone => None,
            End::Invalid(message) => Some(Status::invalid_argument(message)),
            End::Deleted => Some(Kind::Subscription.not_found(&self.name)),
            End::Stopped => Some(stopped()),
        }
    }
}

impl Stream for DeliveryStream {
    type Item = Result<Deliveries, Status>;

    fn poll_next(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Option<Self::Item>> {
        if self.ended {
            return Poll::Ready(None);
        }
        let id = self.id;
        match self.subscription.with(|state, now| state.take(id, now, context.waker())) {
            Taken::Batch(deliveries) => {
                let Subscription { generation, ordered, .. } = *self.subscription;
                Poll::Ready(Some(Ok(Deliveries { generation, ordered, deliveries })))
            }
            Taken::Nothing => Poll::Pending,
            Taken::Ended(end) => {
                self.ended = true;
                Poll::Ready(self.status(end).map(Err))
            }
        }
    }
}

impl Drop for DeliveryStream {
    fn drop(&mut self) {
        self.requests.abort();
        self.subscription.with(|state, _| state.close_stream(self.id));
    }
}

/// Apply the requests as they come, also while the client reads no responses.
async fn receive(subscription: Arc<Subscription>, id: StreamId, mut requests: Streaming<StreamingPullRequest>) {
    let end = loop {
        match requests.message().await {
            Ok(Some(request)) => {
                if let Err(status) = apply_further(&subscription, id, &request) {
                    break End::Invalid(status.message().to_owned());
                }
            }
            Ok(None) => break End::ClientDone,
            Err(status) => break End::Invalid(status.message().to_owned()),
        }
    };
    subscription.with(|state, _| state.end_stream(id, end));
}

fn apply_further(subscription: &Subscription, id: StreamId, request: &StreamingPullRequest) -> Result<(), Status> {
    if !request.subscription.is_empty() {
        return Err(Status::invalid_argument("Only the first request of a stream may name the subscription."));
    }
    if request.stream_ack_deadline_seconds != 0 {
        let ack_deadline = ack_deadline(request.stream_ack_deadline_seconds)?;
        subscription.with(|state, _| state.set_ack_deadline(id, ack_deadline));
    }
    apply(subscription, request)
}

fn apply(subscription: &Subscription, request: &StreamingPullRequest) -> Result<(), Status> {
    let (ids, seconds) = (&request.modify_deadline_ack_ids, &request.modify_deadline_seconds);
    if ids.len() != seconds.len() {
        return Err(Status::invalid_argument(format!(
            "The request has {} deadlines for {} ack ids.",
            seconds.len(),
            ids.len()
        )));
    }
    if !request.ack_ids.is_empty() {
        subscription.acknowledge(&request.ack_ids)?;
    }
    if !ids.is_empty() {
        subscription.modify_deadlines(ids, seconds)?;
    }
    Ok(())
}

fn limit(value: i64) -> Option<usize> {
    usize::try_from(value).ok().filter(|value| *value > 0)
}
