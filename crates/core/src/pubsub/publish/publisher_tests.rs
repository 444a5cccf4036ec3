//! Publishers against a server that answers as each test says and remembers what it got.

use std::collections::{BTreeMap, HashMap, HashSet};
use std::convert::Infallible;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::task::{Context, Poll};
use std::time::{Duration, Instant};

use arrow_array::{ArrayRef, RecordBatch, StringArray};
use fastrand::Rng;
use tokio::net::TcpListener;
use tokio_stream::wrappers::TcpListenerStream;
use tonic::body::Body;
use tonic::codec::CompressionEncoding;
use tonic::codegen::{BoxFuture, Service, http};
use tonic::server::{Grpc, UnaryService};
use tonic::{Code, Request, Response, Status};
use tonic_prost::ProstCodec;

use super::*;
use crate::pubsub::connection::Connection;
use crate::pubsub::wire::{PublishRequest, PublishResponse, path};
use crate::runtime;

const TOPIC: &str = "projects/p/topics/ttt";
const PATIENCE: Duration = Duration::from_secs(30);

/// What the server does with a request: wait, then give so many ids (None: one each) or a status.
struct Reply {
    delay: Duration,
    outcome: std::result::Result<Option<usize>, Code>,
}

impl Reply {
    fn new(outcome: std::result::Result<Option<usize>, Code>) -> Self {
        Self { delay: Duration::ZERO, outcome }
    }

    fn after(delay_ms: u64) -> Self {
        Self { delay: Duration::from_millis(delay_ms), outcome: Ok(None) }
    }
}

type Script = Box<dyn Fn(&PublishRequest, usize) -> Reply + Send + Sync>;

struct Server {
    script: Script,
    calls: AtomicUsize,
    seen: Mutex<Seen>,
}

#[derive(Default)]
struct Seen {
    /// The data of the messages that got an id, by ordering key, in the order they got them.
    accepted: BTreeMap<String, Vec<usize>>,
    flying: HashMap<String, usize>,
    most_flying: HashMap<String, usize>,
    most_flying_in_all: usize,
    compressed: bool,
}

impl Server {
    fn accepted(&self) -> BTreeMap<String, Vec<usize>> {
        self.seen.lock().unwrap().accepted.clone()
    }

    async fn publish(
        self: Arc<Self>,
        request: PublishRequest,
    ) -> std::result::Result<Response<PublishResponse>, Status> {
        let reply = (self.script)(&request, self.calls.fetch_add(1, Ordering::SeqCst));
        let key = request.messages[0].ordering_key.clone();
        assert!(request.messages.iter().all(|message| message.ordering_key == key));
        {
            let mut seen = self.seen.lock().unwrap();
            *seen.flying.entry(key.clone()).or_default() += 1;
            let (now, in_all) = (seen.flying[&key], seen.flying.values().sum());
            let most = seen.most_flying.entry(key.clone()).or_default();
            *most = now.max(*most);
            seen.most_flying_in_all = seen.most_flying_in_all.max(in_all);
        }
        tokio::time::sleep(reply.delay).await;
        let mut seen = self.seen.lock().unwrap();
        *seen.flying.get_mut(&key).unwrap() -= 1;
        let ids = reply.outcome.map_err(|code| Status::new(code, "as the test wants"))?;
        let numbers: Vec<usize> =
            request.messages.iter().map(|m| String::from_utf8_lossy(&m.data).parse().unwrap()).collect();
        let count = ids.unwrap_or(numbers.len());
        if count == numbers.len() {
            seen.accepted.entry(key).or_default().extend(&numbers);
        }
        let message_ids = numbers.iter().take(count).map(|number| format!("id-{number}")).collect();
        Ok(Response::new(PublishResponse { message_ids }))
    }
}

#[derive(Clone)]
struct Served(Arc<Server>);

impl UnaryService<PublishRequest> for Served {
    type Response = PublishResponse;
    type Future = BoxFuture<Response<PublishResponse>, Status>;

    fn call(&mut self, request: Request<PublishRequest>) -> Self::Future {
        Box::pin(self.0.clone().publish(request.into_inner()))
    }
}

impl Service<http::Request<Body>> for Served {
    type Response = http::Response<Body>;
    type Error = Infallible;
    type Future = BoxFuture<http::Response<Body>, Infallible>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<std::result::Result<(), Infallible>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, request: http::Request<Body>) -> Self::Future {
        let served = self.clone();
        Box::pin(async move {
            if request.uri().path() != path::PUBLISH {
                return Ok(Status::unimplemented("only Publish").into_http());
            }
            served.0.seen.lock().unwrap().compressed |= request.headers().contains_key("grpc-encoding");
            let codec: ProstCodec<PublishResponse, PublishRequest> = ProstCodec::default();
            let grpc = Grpc::new(codec).max_decoding_message_size(64 << 20);
            Ok(grpc.accept_compressed(CompressionEncoding::Gzip).unary(served.clone(), request).await)
        })
    }
}

fn run<T>(test: impl Future<Output = T>) -> T {
    runtime::handle().unwrap().block_on(async { tokio::time::timeout(PATIENCE, test).await.unwrap() })
}

async fn start(script: impl Fn(&PublishRequest, usize) -> Reply + Send + Sync + 'static) -> (Arc<Server>, Client) {
    let server =
        Arc::new(Server { script: Box::new(script), calls: AtomicUsize::new(0), seen: Mutex::new(Seen::default()) });
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let endpoint = listener.local_addr().unwrap().to_string();
    let serving = tonic::transport::Server::builder()
        .serve_with_incoming(Served(server.clone()), TcpListenerStream::new(listener));
    tokio::spawn(serving);
    let client = Client::connect(&Connection { endpoint, plaintext: true, credentials_file: None }).await.unwrap();
    (server, client)
}

fn options() -> PublishOptions {
    PublishOptions {
        batch_size: 10,
        max_batch_bytes: 1_000_000,
        linger: Duration::from_secs(600),
        timeout: Duration::from_secs(10),
        gzip: false,
        keep_ids: false,
    }
}

fn publisher(client: Client, options: &PublishOptions) -> Publisher {
    Publisher::new(client, TOPIC, options, runtime::handle().unwrap())
}

/// Rows whose data are their numbers; `key` gives their ordering keys.
fn numbers(rows: std::ops::Range<usize>, key: impl Fn(usize) -> String) -> RecordBatch {
    let data: ArrayRef = Arc::new(StringArray::from_iter_values(rows.clone().map(|row| row.to_string())));
    let keys: ArrayRef = Arc::new(StringArray::from_iter_values(rows.map(key)));
    RecordBatch::try_from_iter([("data", data), ("ordering_key", keys)]).unwrap()
}

fn unordered(rows: std::ops::Range<usize>) -> RecordBatch {
    numbers(rows, |_| String::new())
}

fn rows_failed(failure: PublishFailure) -> Box<Unpublished> {
    match failure {
        PublishFailure::Rows(rows) => rows,
        PublishFailure::Topic(error) => panic!("not about rows: {error}"),
    }
}

fn failed_rows(rows: &Unpublished) -> Vec<usize> {
    let failed: Vec<_> =
        rows.failures.iter().flat_map(|failure| failure.rows.clone()).map(|row| row as usize).collect();
    assert!(failed.is_sorted_by(|a, b| a < b), "sorted, and each once");
    failed
}

#[test]
fn a_key_has_one_request_in_flight_while_other_keys_and_rows_without_one_go_on() {
    run(async {
        let (server, client) = start(|_, _| Reply::after(20)).await;
        let publisher = publisher(client, &options());
        let key = |row: usize| ["a", "b", "c", ""][row % 4].to_owned();
        assert!(publisher.feed(&numbers(0..400, key)).await.unwrap());
        assert_eq!(publisher.flush().await.unwrap().messages, 400);
        let seen = server.seen.lock().unwrap();
        assert_eq!((seen.most_flying["a"], seen.most_flying["b"], seen.most_flying["c"]), (1, 1, 1));
        assert!(seen.most_flying[""] > 1 && seen.most_flying_in_all > 4, "{:?}", seen.most_flying);
        for (key, numbers) in &seen.accepted {
            assert!(key.is_empty() || numbers.is_sorted(), "{key}: {numbers:?}");
            assert_eq!(numbers.len(), 100);
        }
    });
}

#[test]
fn a_burst_of_unavailable_costs_no_row_and_no_order() {
    run(async {
        let (server, client) =
            start(|_, call| Reply::new(if call < 5 { Err(Code::Unavailable) } else { Ok(None) })).await;
        let publisher = publisher(client, &PublishOptions { keep_ids: true, ..options() });
        publisher.feed(&numbers(0..200, |row| ["", "k"][row % 2].to_owned())).await.unwrap();
        let published = publisher.flush().await.unwrap();
        assert_eq!(published.messages, 200);
        let ids: Vec<_> = published.ids.unwrap().iter().map(|id| id.unwrap().to_owned()).collect();
        assert_eq!(ids, (0..200).map(|row| format!("id-{row}")).collect::<Vec<_>>());
        assert_eq!(server.accepted()["k"], (0..200).filter(|row| row % 2 == 1).collect::<Vec<_>>());
    });
}

#[test]
fn a_key_that_failed_is_paused_and_its_later_rows_are_reported_as_not_sent() {
    run(async {
        let bad = |request: &PublishRequest| request.messages.iter().any(|message| message.data == "42");
        let (server, client) =
            start(move |request, _| Reply::new(if bad(request) { Err(Code::InvalidArgument) } else { Ok(None) })).await;
        let publisher = publisher(client, &options());
        publisher.feed(&numbers(0..200, |row| ["a", "b"][row % 2].to_owned())).await.unwrap();
        let rows = rows_failed(publisher.flush().await.unwrap_err());
        // Key a has the even rows, ten a request: the third one holds row 42.
        assert_eq!(server.accepted()["a"], (0..40).step_by(2).collect::<Vec<_>>());
        assert_eq!(server.accepted()["b"], (1..200).step_by(2).collect::<Vec<_>>());
        assert_eq!(failed_rows(&rows), (40..200).step_by(2).collect::<Vec<_>>());
        assert_eq!((rows.published, rows.error.code), (120, Some(Code::InvalidArgument)));
        let (tried, not_sent): (Vec<_>, Vec<_>) = rows.failures.iter().partition(|failure| failure.code.is_some());
        assert_eq!((tried.len(), not_sent.len()), (10, 70));
        assert!(not_sent.iter().all(|failure| &*failure.reason == "not sent, because ordering key 'a' failed before"));
        // Rows that come later are not sent either, those of other keys are.
        publisher.feed(&numbers(200..202, |row| ["a", "b"][row % 2].to_owned())).await.unwrap();
        let rows = rows_failed(publisher.flush().await.unwrap_err());
        assert_eq!((rows.published, failed_rows(&rows).last()), (121, Some(&200)));
    });
}

#[test]
fn too_few_ids_confirm_nothing() {
    run(async {
        let (_server, client) = start(|_, call| Reply::new(Ok(if call == 0 { Some(3) } else { None }))).await;
        let publisher = publisher(client, &options());
        publisher.feed(&numbers(0..10, |_| "k".to_owned())).await.unwrap();
        publisher.feed(&numbers(10..20, |_| "k".to_owned())).await.unwrap();
        let rows = rows_failed(publisher.flush().await.unwrap_err());
        assert_eq!((rows.published, failed_rows(&rows).len()), (0, 20));
        assert!(rows.error.message.contains("3 ids for 10 messages"), "{}", rows.error);
    });
}

#[test]
fn a_topic_that_is_not_there_ends_it_at_once_as_an_error_of_the_topic() {
    run(async {
        let (server, client) = start(|_, _| Reply::new(Err(Code::NotFound))).await;
        let publisher = publisher(client, &options());
        let mut first = 0;
        while publisher.feed(&unordered(first..first + 1_000)).await.unwrap() {
            first += 1_000;
            assert!(first < 10_000_000, "it takes rows for ever");
        }
        let PublishFailure::Topic(error) = publisher.flush().await.unwrap_err() else { panic!("about rows") };
        assert_eq!(error.kind, ErrorKind::NotFound);
        assert!(server.calls.load(Ordering::SeqCst) < 5_000);
    });
}

#[test]
fn a_service_out_of_reach_ends_it_after_the_timeout_with_every_row_reported() {
    run(async {
        let (_server, client) = start(|_, call| Reply {
            delay: Duration::ZERO,
            outcome: if call < 3 { Ok(None) } else { Err(Code::Unavailable) },
        })
        .await;
        let publisher = publisher(client, &PublishOptions { timeout: Duration::from_millis(400), ..options() });
        let started = Instant::now();
        publisher.feed(&unordered(0..5_000)).await.unwrap();
        let rows = rows_failed(publisher.flush().await.unwrap_err());
        assert!(started.elapsed() < Duration::from_secs(5), "{:?}", started.elapsed());
        assert_eq!((rows.published, failed_rows(&rows).len()), (30, 4_970));
        assert_eq!(rows.error.kind, ErrorKind::Unavailable);
        assert!(rows.error.message.contains("did not succeed within 0.4 s"), "{}", rows.error);
        assert!(!publisher.feed(&unordered(5_000..5_001)).await.unwrap());
    });
}

#[test]
fn a_server_slower_than_the_timeout_is_a_deadline_exceeded() {
    run(async {
        let (_server, client) = start(|_, _| Reply::after(60_000)).await;
        let publisher = publisher(client, &PublishOptions { timeout: Duration::from_millis(300), ..options() });
        publisher.feed(&unordered(0..1)).await.unwrap();
        let PublishFailure::Topic(error) = publisher.flush().await.unwrap_err() else { panic!("about rows") };
        assert_eq!((error.kind, error.code), (ErrorKind::Unavailable, Some(Code::DeadlineExceeded)));
    });
}

#[test]
fn a_row_is_sent_after_the_linger_without_a_flush() {
    run(async {
        let (server, client) = start(|_, _| Reply::after(0)).await;
        let publisher = publisher(client, &PublishOptions { linger: Duration::from_millis(50), ..options() });
        for row in 0..2 {
            publisher.feed(&numbers(row..row + 1, |_| "k".to_owned())).await.unwrap();
            let deadline = Instant::now() + PATIENCE;
            while publisher.published() != row as u64 + 1 {
                assert!(Instant::now() < deadline);
                tokio::time::sleep(Duration::from_millis(5)).await;
            }
        }
        assert_eq!(server.accepted()["k"], [0, 1]);
    });
}

#[test]
fn cancelling_ends_the_waiting_and_accounts_for_every_row() {
    run(async {
        let (_server, client) = start(|_, call| Reply::after(if call < 2 { 0 } else { 600_000 })).await;
        let publisher = publisher(client, &options());
        publisher.feed(&unordered(0..1_000)).await.unwrap();
        let deadline = Instant::now() + PATIENCE;
        while publisher.published() < 20 {
            assert!(Instant::now() < deadline);
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
        assert!(tokio::time::timeout(Duration::from_millis(100), publisher.flush()).await.is_err());
        publisher.cancel();
        let rows = rows_failed(publisher.flush().await.unwrap_err());
        assert_eq!((rows.published, failed_rows(&rows).len()), (20, 980));
    });
}

#[test]
fn who_gives_rows_waits_when_64_mb_are_on_their_way_and_stopping_to_wait_stops_the_sending() {
    run(async {
        let (server, client) = start(|_, _| Reply::after(600_000)).await;
        let publisher = publisher(client, &PublishOptions { batch_size: 1, ..options() });
        let data: ArrayRef = Arc::new(StringArray::from_iter_values((0..30).map(|_| "7".repeat(3_000_000))));
        let batch = RecordBatch::try_from_iter([("data", data)]).unwrap();
        assert!(tokio::time::timeout(Duration::from_secs(2), publisher.feed(&batch)).await.is_err());
        // 22 requests of 3 MB fit; one more is in the making.
        assert!(server.calls.load(Ordering::SeqCst) <= 22);
        let rows = rows_failed(publisher.flush().await.unwrap_err());
        assert_eq!((rows.published, failed_rows(&rows).len()), (0, 30));
    });
}

#[test]
fn many_keys_are_sent_before_they_take_much_memory() {
    run(async {
        let (server, client) = start(|_, _| Reply::after(0)).await;
        let publisher = publisher(client, &options());
        let data: ArrayRef = Arc::new(StringArray::from_iter_values((0..1_000).map(|row| format!("{row:0>20000}"))));
        let keys: ArrayRef = Arc::new(StringArray::from_iter_values((0..1_000).map(|row| row.to_string())));
        let batch = RecordBatch::try_from_iter([("data", data), ("ordering_key", keys)]).unwrap();
        assert!(publisher.feed(&batch).await.unwrap());
        let deadline = Instant::now() + PATIENCE;
        while server.calls.load(Ordering::SeqCst) < 500 {
            assert!(Instant::now() < deadline, "20 MB, no flush, and nothing is sent");
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
        assert_eq!(publisher.flush().await.unwrap().messages, 1_000);
    });
}

#[test]
fn gzip_compresses_the_requests() {
    run(async {
        let (server, client) = start(|_, _| Reply::after(0)).await;
        let publisher = publisher(client, &PublishOptions { gzip: true, ..options() });
        publisher.feed(&unordered(0..100)).await.unwrap();
        assert_eq!(publisher.flush().await.unwrap().messages, 100);
        assert!(server.seen.lock().unwrap().compressed);
    });
}

#[test]
fn a_refused_row_stops_its_batch_and_what_follows_but_not_what_came_before() {
    run(async {
        let (server, client) = start(|_, _| Reply::after(0)).await;
        let publisher = publisher(client, &options());
        assert!(publisher.feed(&unordered(0..5)).await.unwrap());
        let nothing: ArrayRef = Arc::new(StringArray::from_iter_values(["5", "", "7"]));
        assert!(!publisher.feed(&RecordBatch::try_from_iter([("data", nothing)]).unwrap()).await.unwrap());
        assert!(!publisher.feed(&unordered(8..10)).await.unwrap());
        let rows = rows_failed(publisher.flush().await.unwrap_err());
        assert_eq!(server.accepted()[""], [0, 1, 2, 3, 4]);
        assert_eq!((rows.published, failed_rows(&rows)), (5, vec![5, 6, 7, 8, 9]));
        assert!(rows.error.message.contains("failed: row 6 of column 'data': neither"), "{}", rows.error);
    });
}

/// Whatever the server does, every row has an id or a reason, and no key has a hole before a row that arrived.
#[test]
fn under_any_faults_every_row_is_confirmed_or_reported_and_keys_have_no_holes() {
    for seed in 0..8 {
        let chaos = Mutex::new(Rng::with_seed(seed));
        let codes = [Code::Unavailable, Code::Aborted, Code::Internal, Code::InvalidArgument, Code::ResourceExhausted];
        run(async move {
            let (server, client) = start(move |_, _| {
                let mut random = chaos.lock().unwrap();
                let outcome = match random.u8(..20) {
                    0..5 => Err(codes[random.usize(..codes.len())]),
                    5 => Ok(Some(0)),
                    _ => Ok(None),
                };
                Reply { delay: Duration::from_millis(random.u64(..4)), outcome }
            })
            .await;
            let mut random = Rng::with_seed(seed);
            let keys: Vec<_> = (0..2_000).map(|_| ["", "a", "b", "c", "d"][random.usize(..5)].to_owned()).collect();
            let publisher = publisher(client, &PublishOptions { linger: Duration::from_millis(2), ..options() });
            let mut first = 0;
            while first < keys.len() {
                let next = keys.len().min(first + random.usize(1..300));
                assert!(publisher.feed(&numbers(first..next, |row| keys[row].clone())).await.unwrap());
                first = next;
            }
            let failed: HashSet<usize> = match publisher.flush().await {
                Ok(published) => {
                    assert_eq!(published.messages, 2_000);
                    HashSet::new()
                }
                Err(failure) => {
                    let rows = rows_failed(failure);
                    let failed = failed_rows(&rows);
                    assert_eq!(rows.published as usize + failed.len(), 2_000, "seed {seed}");
                    failed.into_iter().collect()
                }
            };
            let accepted = server.accepted();
            let arrived: HashSet<usize> = accepted.values().flatten().copied().collect();
            for row in 0..2_000 {
                assert_ne!(arrived.contains(&row), failed.contains(&row), "seed {seed}, row {row}");
            }
            for key in ["a", "b", "c", "d"] {
                let of_key: Vec<_> = (0..2_000).filter(|row| keys[*row] == key).collect();
                let arrived = accepted.get(key).cloned().unwrap_or_default();
                assert_eq!(arrived, of_key[..arrived.len()], "seed {seed}, key {key}");
            }
        });
    }
}
