//! A grant for an access token, over HTTP.

use std::time::{Duration, Instant};

use bytes::Bytes;
use http_body_util::{BodyExt, Full, Limited};
use hyper::header::{CONTENT_TYPE, HeaderValue};
use hyper::{Request, Response, StatusCode};
use hyper_rustls::HttpsConnectorBuilder;
use hyper_util::client::legacy::Client;
use hyper_util::client::legacy::connect::{Connect, HttpConnector};
use hyper_util::rt::TokioExecutor;
use serde::Deserialize;
use tonic::metadata::{Ascii, MetadataValue};

use super::grant::Grant;
use super::unauthenticated;
use crate::error::{Error, ErrorKind, Result, causes};
use crate::retry::Backoff;

const MAX_ANSWER_BYTES: usize = 64 << 10;
/// Whatever a server says, a token is asked for once a day.
const MAX_LIFETIME_S: u64 = 86_400;
const MAX_SHOWN_CHARS: usize = 300;
const METADATA_FLAVOR: (&str, &str) = ("metadata-flavor", "Google");

/// How long to try.
#[derive(Clone, Copy, Debug)]
pub struct Patience {
    /// One try may take this long.
    pub attempt: Duration,
    /// No further try after this.
    pub total: Duration,
    /// No more tries than this.
    pub tries: u32,
}

impl Patience {
    pub const FOR_A_TOKEN_SERVER: Self =
        Self { attempt: Duration::from_secs(5), total: Duration::from_secs(10), tries: u32::MAX };
    /// Most machines have none: find out soon.
    pub const FOR_A_METADATA_SERVER: Self =
        Self { attempt: Duration::from_secs(3), total: Duration::from_secs(10), tries: 5 };
}

/// What a token server gives. It is secret, hence no `Debug`.
pub struct Issued {
    /// `Bearer ...`, marked as sensitive.
    pub bearer: MetadataValue<Ascii>,
    /// In seconds.
    pub expires_in: u64,
}

#[derive(Deserialize)]
struct TokenAnswer {
    access_token: String,
    expires_in: u64,
}

#[derive(Default, Deserialize)]
#[serde(default)]
struct Refusal {
    error: String,
    error_description: String,
}

/// Why there is no token.
enum Failure {
    /// Trying again may help.
    Passing(String),
    /// It will not.
    Final(String),
}

/// Ask for a token. `found`: they have given one before, so that silence is no sign that there are none.
pub async fn exchange(grant: &Grant, patience: Patience, found: bool) -> Result<Issued> {
    let started = Instant::now();
    let mut backoff = Backoff::default();
    for attempt in 1.. {
        let tried = tokio::time::timeout(patience.attempt, ask(grant)).await;
        let cause = match tried {
            Ok(Ok(issued)) => return Ok(issued),
            Ok(Err(Failure::Final(cause))) => return Err(refused(grant, &cause)),
            Ok(Err(Failure::Passing(cause))) => cause,
            Err(_) => format!("no answer within {} ms", patience.attempt.as_millis()),
        };
        let delay = backoff.next_delay();
        if attempt >= patience.tries || started.elapsed() + delay > patience.total {
            return Err(unreachable(grant, &cause, found));
        }
        log::info!("no access token of {} yet: {cause}; trying again", grant.who);
        tokio::time::sleep(delay).await;
    }
    Err(unreachable(grant, "nobody was asked", found))
}

fn refused(grant: &Grant, cause: &str) -> Error {
    unauthenticated(format!("{} gives no access token to {}: {cause}.", grant.uri, grant.who)).with_remedy(
        "Check that the key or login is still valid and that this machine's clock is right, or create a new one.",
    )
}

fn unreachable(grant: &Grant, cause: &str, found: bool) -> Error {
    if grant.form.is_none() && !found {
        return unauthenticated(format!(
            "there are no credentials: no credentialsFile, no login of gcloud, and no metadata server ({}: {cause}).",
            grant.uri
        ))
        .with_remedy(
            "Set credentialsFile (or GOOGLE_APPLICATION_CREDENTIALS), run gcloud auth application-default login, or \
             set PUBSUB_EMULATOR_HOST for an emulator.",
        );
    }
    Error::new(ErrorKind::Unavailable, format!("no access token of {} from {}: {cause}.", grant.who, grant.uri))
        .with_remedy("Check the network of this machine, and token_uri in the file of credentials.")
}

async fn ask(grant: &Grant) -> std::result::Result<Issued, Failure> {
    if grant.uri.scheme_str() == Some("https") {
        let connector = HttpsConnectorBuilder::new()
            .with_native_roots()
            .map_err(|e| Failure::Final(format!("no CA certificates on this machine: {e}")))?
            .https_only()
            .enable_http1()
            .build();
        ask_over(connector, grant).await
    } else {
        ask_over(HttpConnector::new(), grant).await
    }
}

async fn ask_over<C>(connector: C, grant: &Grant) -> std::result::Result<Issued, Failure>
where
    C: Connect + Clone + Send + Sync + 'static,
{
    let (method, content) = match &grant.form {
        Some(form) => ("POST", form.clone()),
        None => ("GET", String::new()),
    };
    let request = Request::builder()
        .method(method)
        .uri(grant.uri.clone())
        .header(CONTENT_TYPE, "application/x-www-form-urlencoded")
        .header(METADATA_FLAVOR.0, METADATA_FLAVOR.1)
        .body(Full::<Bytes>::from(content))
        .map_err(|e| Failure::Final(e.to_string()))?;
    let client = Client::builder(TokioExecutor::new()).build(connector);
    let (head, body) = client.request(request).await.map_err(|e| Failure::Passing(causes(&e)))?.into_parts();
    let body = Limited::new(body, MAX_ANSWER_BYTES).collect().await.map_err(|e| Failure::Passing(e.to_string()))?;
    read(grant, &Response::from_parts(head, body.to_bytes()))
}

fn read(grant: &Grant, answer: &Response<Bytes>) -> std::result::Result<Issued, Failure> {
    let status = answer.status();
    if status == StatusCode::TOO_MANY_REQUESTS || status == StatusCode::REQUEST_TIMEOUT || status.is_server_error() {
        return Err(Failure::Passing(format!("it answered {status}")));
    }
    let google =
        answer.headers().get(METADATA_FLAVOR.0).map(HeaderValue::as_bytes) == Some(METADATA_FLAVOR.1.as_bytes());
    if grant.form.is_none() && !google {
        return Err(Failure::Final(format!("what answered ({status}) is no metadata server")));
    }
    if status != StatusCode::OK {
        let refusal: Refusal = serde_json::from_slice(answer.body()).unwrap_or_default();
        let words = [status.to_string(), refusal.error, refusal.error_description];
        let words: Vec<String> = words.into_iter().filter(|word| !word.is_empty()).collect();
        return Err(Failure::Final(words.join(", ").chars().take(MAX_SHOWN_CHARS).collect()));
    }
    let wrong = || Failure::Final("its answer holds no access token".to_owned());
    let token: TokenAnswer = serde_json::from_slice(answer.body()).map_err(|_| wrong())?;
    let mut bearer: MetadataValue<Ascii> = format!("Bearer {}", token.access_token).parse().map_err(|_| wrong())?;
    bearer.set_sensitive(true);
    Ok(Issued { bearer, expires_in: token.expires_in.min(MAX_LIFETIME_S) })
}
