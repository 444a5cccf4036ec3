//! StreamingPull and Pull: leased messages out, acknowledgements and lease changes in.

use std::future::poll_fn;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, Waker};
use std::time::Duration;

use tokio::task::AbortHandle;
use tokio_stream::Stream;
use tonic::{Code, Status, Streaming};

use super::delivery::{Confirmations, Deliveries, Properties};
use super::registry::Registry;
use super::settings::ack_deadline;
use super::state::{Batch, FlowControl, MAX_BATCH_MESSAGES, StreamId, Taken, Terms};
use super::streams::End;
use super::subscription::{Outcome, Subscription};
use crate::pubsub::wire::{AcknowledgeConfirmation, ModifyAckDeadlineConfirmation, PullRequest, StreamingPullRequest};

/// How long a unary pull waits for messages.
const PULL_WAIT: Duration = Duration::from_secs(5);

/// A stream of a subscription, open as long as this lives.
#[derive(Debug)]
struct Opened {
    subscription: Arc<Subscription>,
    id: StreamId,
}

impl Opened {
    fn new(subscription: Arc<Subscription>, flow: FlowControl, ack_deadline: Duration) -> Self {
        let id = subscription.with(|state, _| state.open_stream(flow, ack_deadline));
        Self { subscription, id }
    }

    fn take(&self, terms: Terms, waker: &Waker) -> Taken {
        self.subscription.with(|state, now| state.take(self.id, terms, now, waker))
    }
}

impl Drop for Opened {
    fn drop(&mut self) {
        self.subscription.with(|state, _| state.close_stream(self.id));
    }
}

/// Answer a unary pull: at once with what is there, or as soon as something comes.
pub async fn pull(registry: &Registry, request: &PullRequest) -> Result<Deliveries, Status> {
    let subscription = registry.subscription(&request.subscription)?;
    let Some(max_messages) = limit(request.max_messages.into()) else {
        let given = request.max_messages;
        return Err(Status::invalid_argument(format!("max_messages is {given}; it must be greater than 0.")));
    };
    let terms = Terms {
        max_messages: max_messages.min(MAX_BATCH_MESSAGES),
        duplicate_every: registry.faults.duplicate_every(),
    };
    let ack_deadline = subscription.ack_deadline()?;
    let stream = Opened::new(subscription, FlowControl::default(), ack_deadline);
    let taken = if request.return_immediately {
        stream.take(terms, Waker::noop())
    } else {
        let next = poll_fn(|context| match stream.take(terms, context.waker()) {
            Taken::Nothing => Poll::Pending,
            taken => Poll::Ready(taken),
        });
        tokio::time::timeout(PULL_WAIT, next).await.unwrap_or(Taken::Nothing)
    };
    let deliveries = match taken {
        Taken::Batch(batch) => batch.deliveries,
        Taken::Nothing => Vec::new(),
        Taken::Ended(end) => stream.subscription.end_status(end).map_or_else(|| Ok(Vec::new()), Err)?,
    };
    let generation = stream.subscription.generation;
    Ok(Deliveries { generation, properties: Properties::default(), deliveries, confirmations: None })
}

/// The sending half of a StreamingPull. Dropping it closes the stream.
#[derive(Debug)]
pub struct DeliveryStream {
    registry: Arc<Registry>,
    stream: Opened,
    requests: AbortHandle,
    sent: u64,
    ended: bool,
}

impl DeliveryStream {
    /// Wait for the first request, check it and open the stream.
    pub async fn open(registry: Arc<Registry>, mut requests: Streaming<StreamingPullRequest>) -> Result<Self, Status> {
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
        let stream = Opened::new(subscription.clone(), flow, ack_deadline);
        apply(&registry, &subscription, stream.id, &first)?;
        let receiving = receive(registry.clone(), subscription, stream.id, requests);
        let requests = tokio::spawn(receiving).abort_handle();
        Ok(Self { registry, stream, requests, sent: 0, ended: false })
    }

    fn end(&mut self, status: Option<Status>) -> Poll<Option<Result<Deliveries, Status>>> {
        self.ended = true;
        Poll::Ready(status.map(Err))
    }
}

impl Stream for DeliveryStream {
    type Item = Result<Deliveries, Status>;

    fn poll_next(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Option<Self::Item>> {
        if self.ended {
            return Poll::Ready(None);
        }
        let faults = &self.registry.faults;
        let mut terms = Terms { duplicate_every: faults.duplicate_every(), ..Terms::default() };
        if let Some(after) = faults.cut_after() {
            let left = after.saturating_sub(self.sent);
            if left == 0 {
                faults.count_cut();
                return self.end(Some(Status::unavailable("The stream was cut: a fault that the test asked for.")));
            }
            terms.max_messages = usize::try_from(left).unwrap_or(usize::MAX).min(MAX_BATCH_MESSAGES);
        }
        match self.stream.take(terms, context.waker()) {
            Taken::Batch(Batch { deliveries, confirmations, exactly_once }) => {
                self.sent += deliveries.len() as u64;
                let Subscription { generation, ordered, .. } = *self.stream.subscription;
                let properties = Properties { exactly_once, ordered };
                Poll::Ready(Some(Ok(Deliveries { generation, properties, deliveries, confirmations })))
            }
            Taken::Nothing => Poll::Pending,
            Taken::Ended(end) => {
                let status = self.stream.subscription.end_status(end);
                self.end(status)
            }
        }
    }
}

impl Drop for DeliveryStream {
    fn drop(&mut self) {
        self.requests.abort();
    }
}

/// Apply the requests as they come, also while the client reads no responses.
async fn receive(
    registry: Arc<Registry>,
    subscription: Arc<Subscription>,
    id: StreamId,
    mut requests: Streaming<StreamingPullRequest>,
) {
    let end = loop {
        match requests.message().await {
            Ok(Some(request)) => {
                if let Err(status) = apply_further(&registry, &subscription, id, &request) {
                    break End::Failed(status.code(), status.message().to_owned());
                }
            }
            Ok(None) => break End::ClientDone,
            Err(status) => break End::Failed(Code::InvalidArgument, status.message().to_owned()),
        }
    };
    subscription.with(|state, _| state.end_stream(id, end));
}

fn apply_further(
    registry: &Registry,
    subscription: &Subscription,
    id: StreamId,
    request: &StreamingPullRequest,
) -> Result<(), Status> {
    if !request.subscription.is_empty() {
        return Err(Status::invalid_argument("Only the first request of a stream may name the subscription."));
    }
    if request.stream_ack_deadline_seconds != 0 {
        let ack_deadline = ack_deadline(request.stream_ack_deadline_seconds)?;
        subscription.with(|state, _| state.set_ack_deadline(id, ack_deadline));
    }
    apply(registry, subscription, id, request)
}

fn apply(
    registry: &Registry,
    subscription: &Subscription,
    id: StreamId,
    request: &StreamingPullRequest,
) -> Result<(), Status> {
    let (ids, seconds) = (&request.modify_deadline_ack_ids, &request.modify_deadline_seconds);
    if ids.len() != seconds.len() {
        return Err(Status::invalid_argument(format!(
            "The request has {} deadlines for {} ack ids.",
            seconds.len(),
            ids.len()
        )));
    }
    let mut acks = Outcome::default();
    if !request.ack_ids.is_empty() {
        if registry.faults.drops_acks() {
            acks.done.clone_from(&request.ack_ids);
        } else {
            acks = subscription.acknowledge(&request.ack_ids)?;
        }
    }
    let mut deadlines = Outcome::default();
    if !ids.is_empty() {
        deadlines = subscription.modify_deadlines(ids, seconds)?;
    }
    confirm(subscription, id, acks, deadlines);
    Ok(())
}

/// With exactly-once delivery the client is told what became of each ack id.
fn confirm(subscription: &Subscription, id: StreamId, acks: Outcome, deadlines: Outcome) {
    let confirmations = Confirmations {
        acks: AcknowledgeConfirmation { ack_ids: acks.done, invalid_ack_ids: acks.invalid, ..Default::default() },
        deadlines: ModifyAckDeadlineConfirmation {
            ack_ids: deadlines.done,
            invalid_ack_ids: deadlines.invalid,
            ..Default::default()
        },
    };
    if confirmations != Confirmations::default() {
        subscription.with(|state, _| {
            if state.is_exactly_once() {
                state.confirm(id, confirmations);
            }
        });
    }
}

fn limit(value: i64) -> Option<usize> {
    usize::try_from(value).ok().filter(|value| *value > 0)
}
