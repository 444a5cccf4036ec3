//! Pullers against the emulator and its faults, and against a server that keeps to no rule.

use std::collections::HashSet;
use std::convert::Infallible;
use std::pin::Pin;
use std::task::{Context, Poll};

use arrow_array::cast::AsArray;
use prost::Message as _;
use tokio_stream::Stream;
use tonic::body::Body;
use tonic::codegen::{BoxFuture, http};
use tonic::server::{Grpc, StreamingService, UnaryService};
use tonic::{Code, Request, Response, Status, Streaming};
use tonic_prost::ProstCodec;
use tower_service::Service;

use super::*;
use crate::emulator::Emulator;
use crate::pubsub::connection::Connection;
use crate::pubsub::lease::LeaseTerms;
use crate::pubsub::wire::{self, AcknowledgeRequest, Empty, PublishRequest, PubsubMessage, ReceivedMessage, path};
use crate::runtime;

const TOPIC: &str = "projects/test/topics/events";
const SUBSCRIPTION: &str = "projects/test/subscriptions/events";
const PATIENCE: Duration = Duration::from_secs(20);

fn run<T>(test: impl Future<Output = T>) -> T {
    runtime::handle().unwrap().block_on(async { tokio::time::timeout(2 * PATIENCE, test).await.unwrap() })
}

fn emulator(exactly_once: bool) -> Emulator {
    let emulator = Emulator::start("127.0.0.1", 0, None, None).unwrap();
    emulator.create_topic(wire::Topic { name: TOPIC.into(), ..Default::default() }).unwrap();
    let subscription = wire::Subscription {
        name: SUBSCRIPTION.into(),
        topic: TOPIC.into(),
        enable_exactly_once_delivery: exactly_once,
        ..Default::default()
    };
    emulator.create_subscription(subscription).unwrap();
    emulator
}

async fn client(port: u16) -> Client {
    let endpoint = format!("127.0.0.1:{port}");
    Client::connect(&Connection { endpoint, plaintext: true, credentials_file: None }).await.unwrap()
}

async fn publish(port: u16, numbers: std::ops::Range<usize>) {
    let message = |number: usize| PubsubMessage { data: number.to_string().into_bytes().into(), ..Default::default() };
    let client = client(port).await;
    for first in numbers.clone().step_by(1_000) {
        let messages = (first..numbers.end.min(first + 1_000)).map(message).collect();
        let request = PublishRequest { topic: TOPIC.into(), messages };
        client.call(path::PUBLISH, request.encode_to_vec().into()).await.unwrap();
    }
}

fn options() -> PullerOptions {
    PullerOptions {
        subscription: SUBSCRIPTION.into(),
        client_id: "client".into(),
        streams: 1,
        max_outstanding_messages: 100_000,
        max_outstanding_bytes: 64 << 20,
        selection: Selection::new(Some(&["data".to_owned()]), &[]).unwrap(),
        batch_rows: 500,
        linger: Duration::from_millis(5),
        tell_early: false,
    }
}

async fn try_start(port: u16, options: PullerOptions) -> Result<Puller<Ledger>> {
    let terms = LeaseTerms { ack_deadline: Duration::from_secs(10), max_lease: Duration::from_secs(3_600) };
    Puller::start(client(port).await, options, Ledger::new(terms)).await
}

async fn start(port: u16, options: PullerOptions) -> Puller<Ledger> {
    try_start(port, options).await.unwrap()
}

async fn next(puller: &Puller<Ledger>) -> Taken {
    loop {
        if let Some(taken) = puller.take().unwrap() {
            return taken;
        }
        puller.ready(None).await;
    }
}

fn numbers(taken: &Taken) -> Vec<usize> {
    let values = |rows: &arrow_array::RecordBatch| {
        let data = rows.column(0).as_binary::<i32>().clone();
        (0..data.len()).map(move |row| String::from_utf8_lossy(data.value(row)).parse().unwrap()).collect::<Vec<_>>()
    };
    taken.batches.iter().flat_map(values).collect()
}

async fn ack(puller: &Puller<Ledger>, ticket: u64) -> Outcome {
    let ack_ids = puller.book().acknowledge(ticket, Instant::now()).unwrap();
    puller.acknowledge(ticket, ack_ids).await.unwrap()
}

/// Take and acknowledge until every number below `count` was there.
async fn drain(puller: &Puller<Ledger>, count: usize) -> usize {
    let (mut seen, mut received) = (HashSet::new(), 0);
    while seen.len() < count {
        let taken = next(puller).await;
        received += taken.batches[0].num_rows();
        seen.extend(numbers(&taken));
        assert!(ack(puller, taken.ticket).await.error.is_none());
    }
    assert!(seen.iter().all(|number| *number < count));
    received
}

async fn wait_until(what: &str, condition: impl Fn() -> bool) {
    let deadline = Instant::now() + PATIENCE;
    while !condition() {
        assert!(Instant::now() < deadline, "{what} did not come true in time");
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
}

#[test]
fn everything_arrives_once_and_is_acknowledged() {
    let emulator = emulator(false);
    run(async {
        publish(emulator.port(), 0..5_000).await;
        let puller = start(emulator.port(), PullerOptions { streams: 3, ..options() }).await;
        assert_eq!(drain(&puller, 5_000).await, 5_000);
        let stats = puller.stats();
        assert_eq!((stats.counters.received, stats.counters.acked, stats.counters.leased), (5_000, 5_000, 0));
        assert_eq!((stats.counters.held_bytes, stats.oldest_unacked_s), (0, 0.0));
        assert_eq!(emulator.counters(SUBSCRIPTION).unwrap().acked, 5_000);
        assert_eq!(puller.close(PATIENCE).await, 0);
    });
}

#[test]
fn streams_that_are_cut_every_few_messages_lose_none() {
    let emulator = emulator(false);
    emulator.cut_streams(300, None);
    run(async {
        publish(emulator.port(), 0..3_000).await;
        let puller = start(emulator.port(), PullerOptions { streams: 2, ..options() }).await;
        drain(&puller, 3_000).await;
        assert!(puller.stats().reconnects >= 8, "{:?}", puller.stats());
        wait_until("everything acked", || emulator.counters(SUBSCRIPTION).unwrap().acked == 3_000).await;
    });
}

#[test]
fn bursts_of_errors_that_pass_by_lose_nothing_and_stop_nothing() {
    let emulator = emulator(false);
    for method in ["StreamingPull", "Acknowledge", "ModifyAckDeadline"] {
        emulator.answer(method, "UNAVAILABLE", 3).unwrap();
        emulator.answer(method, "INTERNAL", 1).unwrap();
    }
    run(async {
        publish(emulator.port(), 0..1_000).await;
        let puller = start(emulator.port(), options()).await;
        let given_back = next(&puller).await;
        let ack_ids = puller.book().give_back(given_back.ticket).unwrap();
        assert!(puller.give_back(ack_ids).await.unwrap().error.is_none());
        drain(&puller, 1_000).await;
        assert!(puller.stats().reconnects >= 4);
        assert_eq!(emulator.counters(SUBSCRIPTION).unwrap().acked, 1_000);
    });
}

#[test]
fn acknowledgements_that_are_forgotten_and_doubled_deliveries_lose_nothing() {
    let emulator = emulator(false);
    emulator.drop_acks(1);
    emulator.duplicate(std::num::NonZeroU64::new(7).unwrap());
    run(async {
        publish(emulator.port(), 0..1_000).await;
        let puller = start(emulator.port(), options()).await;
        drain(&puller, 1_000).await;
        emulator.clear_faults();
        emulator.advance(Duration::from_secs(700));
        while emulator.counters(SUBSCRIPTION).unwrap().acked < 1_000 {
            let taken = next(&puller).await;
            ack(&puller, taken.ticket).await;
        }
    });
}

#[test]
fn a_subscription_that_is_not_there_or_may_not_be_read_fails_at_once() {
    let emulator = emulator(false);
    run(async {
        let nobody = PullerOptions { subscription: "projects/test/subscriptions/nobody".into(), ..options() };
        let error = try_start(emulator.port(), nobody).await.err().unwrap();
        assert_eq!(error.kind, ErrorKind::NotFound);
        assert!(error.message.contains("projects/test/subscriptions/nobody"), "{error}");
        emulator.access().deny(["pubsub.subscriptions.consume".to_owned()]).unwrap();
        let error = try_start(emulator.port(), options()).await.err().unwrap();
        assert_eq!(error.kind, ErrorKind::PermissionDenied);
        assert!(error.to_string().contains("roles/pubsub.subscriber"), "{error}");
        emulator.access().deny([]).unwrap();
        // Also later, when the stream is opened again.
        let puller = start(emulator.port(), options()).await;
        emulator.answer("StreamingPull", "PERMISSION_DENIED", 1).unwrap();
        emulator.cut_streams(0, Some(1));
        wait_until("the failure", || puller.failed().is_some()).await;
        assert_eq!(puller.take().unwrap_err().kind, ErrorKind::PermissionDenied);
    });
}

#[test]
fn closing_gives_back_what_was_taken_what_is_buffered_and_what_was_on_its_way() {
    let emulator = emulator(false);
    run(async {
        publish(emulator.port(), 0..20_001).await;
        // The server counts fewer bytes than we hold, so it sends more than we have room for.
        let limits = PullerOptions { max_outstanding_bytes: 500_000, ..options() };
        let linger = Duration::from_secs(5);
        let puller = start(emulator.port(), PullerOptions { streams: 2, batch_rows: 777, linger, ..limits }).await;
        let taken = next(&puller).await;
        let on_its_way = || {
            let sent = emulator.counters(SUBSCRIPTION).unwrap().outstanding;
            sent > puller.stats().counters.leased + 1_000
        };
        wait_until("more on its way", on_its_way).await;
        let done = ack(&puller, taken.ticket).await;
        next(&puller).await;
        puller.close(PATIENCE).await;
        let counters = emulator.counters(SUBSCRIPTION).unwrap();
        assert_eq!((counters.outstanding, counters.acked), (0, done.confirmed as u64), "{counters:?}");
        assert_eq!(puller.take().unwrap_err().kind, ErrorKind::Closed);
        assert!(puller.book().acknowledge(taken.ticket, Instant::now()).is_none());
        assert_eq!(puller.close(PATIENCE).await, 0);
    });
}

#[test]
fn a_slow_consumer_bounds_what_is_held() {
    let emulator = emulator(false);
    run(async {
        publish(emulator.port(), 0..20_000).await;
        let limits = PullerOptions { max_outstanding_messages: 1_000, streams: 2, ..options() };
        let puller = start(emulator.port(), limits).await;
        let mut seen = 0;
        while seen < 20_000 {
            let taken = next(&puller).await;
            assert!(puller.stats().counters.leased <= 1_000, "{:?}", puller.stats());
            seen += ack(&puller, taken.ticket).await.confirmed;
        }
    });
}

#[test]
fn exactly_once_acknowledgements_that_are_too_late_are_named_and_the_messages_come_again() {
    let emulator = emulator(true);
    run(async {
        publish(emulator.port(), 0..100).await;
        let puller = start(emulator.port(), options()).await;
        assert_eq!(puller.book().first_lease(), Duration::from_secs(60));
        let late = next(&puller).await;
        emulator.advance(Duration::from_secs(61));
        publish(emulator.port(), 100..110).await;
        let outcome = ack(&puller, late.ticket).await;
        assert!(outcome.error.is_none() && outcome.confirmed == 0, "{outcome:?}");
        assert_eq!(outcome.refused.len(), late.batches[0].num_rows());
        assert!(outcome.refused[0].reason.starts_with("PERMANENT_FAILURE_"));
        let mut again = HashSet::new();
        while again.len() < 110 {
            let taken = next(&puller).await;
            again.extend(numbers(&taken));
            ack(&puller, taken.ticket).await;
        }
        wait_until("all acked", || emulator.counters(SUBSCRIPTION).unwrap().acked == 110).await;
        let counters = puller.stats().counters;
        assert!(counters.refused >= 100 && counters.acked == 110, "{counters:?}");
    });
}

#[test]
fn acknowledgements_of_leases_that_have_ended_are_counted_as_late() {
    let emulator = emulator(false);
    run(async {
        publish(emulator.port(), 0..10).await;
        let puller = start(emulator.port(), options()).await;
        let (first, hour) = (next(&puller).await, Duration::from_secs(3_600));
        puller.book().expire(Instant::now() + hour);
        let outcome = ack(&puller, first.ticket).await;
        assert_eq!((outcome.confirmed, outcome.late), (10, 10));
        publish(emulator.port(), 10..20).await;
        let second = next(&puller).await;
        let outcome = ack(&puller, second.ticket).await;
        assert_eq!((outcome.confirmed, outcome.late), (10, 0));
        puller.close(Duration::from_secs(1)).await;
    });
}

#[test]
fn an_extension_that_comes_too_late_takes_rows_out_of_the_buffer_and_is_reported() {
    let emulator = emulator(true);
    run(async {
        publish(emulator.port(), 0..100).await;
        let puller = start(emulator.port(), PullerOptions { batch_rows: 40, ..options() }).await;
        let held = next(&puller).await;
        wait_until("all received", || puller.stats().counters.received == 100).await;
        puller.collect();
        emulator.answer("StreamingPull", "UNAVAILABLE", 1_000).unwrap();
        emulator.cut_streams(0, Some(1));
        emulator.advance(Duration::from_secs(61));
        let now = Instant::now() + Duration::from_secs(30);
        let due = puller.book().due(now, MAX_REQUEST_IDS);
        for extension in due {
            extend(puller.shared.clone(), extension, now).await;
        }
        let counters = puller.stats().counters;
        assert_eq!((counters.buffered, counters.expired), (0, 100), "{counters:?}");
        assert_eq!(puller.book().no_longer_ours(held.ticket), 40);
    });
}

/// A server that sends without end whatever the client asked for, and answers acknowledgements as it is told to.
#[derive(Clone, Default)]
struct Lawless {
    opened: Arc<Mutex<Vec<StreamingPullRequest>>>,
    /// How many responses a stream has before it breaks; endless without.
    responses: Option<usize>,
    answers: Arc<Mutex<Vec<Status>>>,
    acknowledged: Arc<Mutex<Vec<String>>>,
}

impl Lawless {
    async fn start(self) -> (u16, AbortOnDrop<()>) {
        let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
        let port = listener.local_addr().unwrap().port();
        let incoming = tonic::transport::server::TcpIncoming::from(listener);
        let server = tonic::transport::Server::builder().serve_with_incoming(self, incoming);
        (port, AbortOnDrop(tokio::spawn(async { server.await.unwrap() })))
    }
}

impl Service<http::Request<Body>> for Lawless {
    type Response = http::Response<Body>;
    type Error = Infallible;
    type Future = BoxFuture<Self::Response, Infallible>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<std::result::Result<(), Infallible>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, request: http::Request<Body>) -> Self::Future {
        let this = self.clone();
        Box::pin(async move {
            Ok(match request.uri().path() {
                path::STREAMING_PULL => Grpc::new(ProstCodec::default()).streaming(this, request).await,
                path::ACKNOWLEDGE => Grpc::new(ProstCodec::default()).unary(this, request).await,
                path::GET_SUBSCRIPTION => Grpc::new(ProstCodec::default()).unary(Found, request).await,
                _ => Status::unimplemented("not here").into_http(),
            })
        })
    }
}

impl UnaryService<AcknowledgeRequest> for Lawless {
    type Response = Empty;
    type Future = std::future::Ready<std::result::Result<Response<Empty>, Status>>;

    fn call(&mut self, request: Request<AcknowledgeRequest>) -> Self::Future {
        lock(&self.acknowledged).extend(request.into_inner().ack_ids);
        std::future::ready(lock(&self.answers).pop().map_or(Ok(Response::new(Empty {})), Err))
    }
}

struct Found;

impl UnaryService<wire::GetSubscriptionRequest> for Found {
    type Response = wire::Subscription;
    type Future = std::future::Ready<std::result::Result<Response<wire::Subscription>, Status>>;

    fn call(&mut self, _: Request<wire::GetSubscriptionRequest>) -> Self::Future {
        std::future::ready(Ok(Response::new(wire::Subscription::default())))
    }
}

impl StreamingService<StreamingPullRequest> for Lawless {
    type Response = wire::StreamingPullResponse;
    type ResponseStream = Pin<Box<dyn Stream<Item = std::result::Result<Self::Response, Status>> + Send>>;
    type Future = BoxFuture<Response<Self::ResponseStream>, Status>;

    fn call(&mut self, request: Request<Streaming<StreamingPullRequest>>) -> Self::Future {
        let this = self.clone();
        Box::pin(async move {
            let mut requests = request.into_inner();
            let first = requests.message().await?;
            lock(&this.opened).extend(first);
            let message = |number: usize| ReceivedMessage {
                ack_id: number.to_string(),
                message: Some(PubsubMessage { data: vec![0; 5_000].into(), ..Default::default() }),
                ..Default::default()
            };
            let response = wire::StreamingPullResponse { received_messages: (0..100).map(message).collect() };
            let responses = std::iter::repeat_n(Ok(response), this.responses.unwrap_or(usize::MAX));
            let end = std::iter::once(Err(Status::unavailable("cut")));
            tokio::spawn(async move { while let Ok(Some(_)) = requests.message().await {} });
            Ok(Response::new(Box::pin(tokio_stream::iter(responses.chain(end))) as Self::ResponseStream))
        })
    }
}

#[test]
fn a_server_that_sends_without_end_fills_neither_memory_nor_the_way_of_the_acknowledgements() {
    let limit = 2 << 20;
    run(async {
        let (port, _server) = Lawless::default().start().await;
        let limits = PullerOptions { max_outstanding_bytes: limit, streams: 3, ..options() };
        let puller = start(port, limits).await;
        let held = || puller.stats().counters.held_bytes as i64;
        wait_until("the limit", || held() > limit).await;
        let taken = next(&puller).await;
        // Time for the connection to fill up with what nobody reads.
        for _ in 0..50 {
            tokio::time::sleep(Duration::from_millis(10)).await;
            // Each stream may have had one response in its hands.
            assert!(held() < limit + 3 * 600_000, "{}", held());
        }
        let acknowledged = tokio::time::timeout(Duration::from_secs(5), ack(&puller, taken.ticket)).await;
        assert_eq!(acknowledged.unwrap().confirmed, taken.batches[0].num_rows());
    });
}

#[test]
fn a_stream_keeps_its_client_id_when_it_is_opened_again() {
    run(async {
        let server = Lawless { responses: Some(1), ..Lawless::default() };
        let opened = server.opened.clone();
        let (port, _server) = server.start().await;
        let _puller = start(port, PullerOptions { streams: 2, ..options() }).await;
        let client_ids = || lock(&opened).iter().map(|request| request.client_id.clone()).collect::<Vec<_>>();
        wait_until("streams opened again", || client_ids().len() >= 6).await;
        assert_eq!(client_ids().into_iter().collect::<HashSet<_>>(), ["client-0", "client-1"].map(String::from).into());
        let first = lock(&opened)[0].clone();
        assert_eq!((first.stream_ack_deadline_seconds, first.max_outstanding_messages), (10, 50_000));
    });
}

#[test]
fn ids_that_fail_for_a_while_are_sent_again_alone() {
    let failures = |what: &[(&str, &str)]| {
        let metadata = what.iter().map(|(id, what)| ((*id).to_owned(), (*what).to_owned())).collect();
        let info = wire::ErrorInfo { metadata, ..Default::default() };
        let type_url = "type.googleapis.com/google.rpc.ErrorInfo".to_owned();
        let details = vec![wire::Any { type_url, value: info.encode_to_vec() }];
        let details = wire::RpcStatus { details, ..Default::default() }.encode_to_vec();
        Status::with_details(Code::InvalidArgument, "some ids failed", details.into())
    };
    run(async {
        let server = Lawless { responses: Some(1), ..Lawless::default() };
        let transient = [("7", "TRANSIENT_FAILURE_SLOW"), ("8", "PERMANENT_FAILURE_INVALID_ACK_ID")];
        *lock(&server.answers) = vec![failures(&transient[..1]), Status::unavailable("later"), failures(&transient)];
        let acknowledged = server.acknowledged.clone();
        let (port, _server) = server.start().await;
        let puller = start(port, PullerOptions { batch_rows: 100, ..options() }).await;
        let taken = next(&puller).await;
        let outcome = ack(&puller, taken.ticket).await;
        assert_eq!((outcome.confirmed, outcome.refused.len()), (99, 1), "{outcome:?}");
        assert_eq!(outcome.refused[0].ack_id, "8");
        assert_eq!(lock(&acknowledged)[100..], ["7", "7", "7"]);
        assert_eq!((puller.stats().counters.acked, puller.stats().counters.refused), (99, 1));
    });
}
