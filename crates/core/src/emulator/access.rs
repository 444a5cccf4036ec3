//! Who may call: the bearer token that must be shown, the permissions that are denied, and TLS.

use std::collections::HashSet;
use std::convert::Infallible;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll};

use tonic::Status;
use tonic::body::Body;
use tonic::codegen::{BoxFuture, http};
use tonic::transport::{Identity, Server, ServerTlsConfig};
use tower_service::Service;

use super::clock::Clock;
use super::service::prost;
use crate::error::{Error, ErrorKind, Result, causes};
use crate::pubsub::wire::{TestIamPermissionsRequest, TestIamPermissionsResponse, path};

/// The certificate and its key, both as PEM.
pub type TlsIdentity = (String, String);

/// What callers may do; everything, until something is asked of them.
#[derive(Debug, Default)]
pub struct Access {
    rules: Mutex<Rules>,
}

#[derive(Debug, Default)]
struct Rules {
    token: Option<String>,
    denied: HashSet<String>,
}

impl Access {
    /// Serve only who shows this bearer token; with None, everybody.
    pub fn require_token(&self, token: Option<String>) {
        self.rules().token = token;
    }

    /// Deny these permissions from now on, and no others. One that no call needs is an error.
    pub fn deny(&self, permissions: impl IntoIterator<Item = String>) -> Result<()> {
        let denied: HashSet<String> = permissions.into_iter().collect();
        let is_needed = |name: &String| NEEDED.iter().any(|(_, needed)| needed.contains(&name.as_str()));
        if let Some(unknown) = denied.iter().find(|name| !is_needed(name)) {
            return Err(Error::new(ErrorKind::Config, format!("no call of the emulator needs {unknown:?}."))
                .with_remedy("Name a permission such as pubsub.topics.publish or pubsub.subscriptions.consume."));
        }
        self.rules().denied = denied;
        Ok(())
    }

    fn rules(&self) -> MutexGuard<'_, Rules> {
        self.rules.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn check<B>(&self, request: &http::Request<B>) -> std::result::Result<(), Status> {
        let rules = self.rules();
        if let Some(token) = &rules.token {
            let shown = request.headers().get(http::header::AUTHORIZATION).map(http::HeaderValue::as_bytes);
            if shown != Some(format!("Bearer {token}").as_bytes()) {
                return Err(Status::unauthenticated("Request had invalid authentication credentials."));
            }
        }
        if needed(request.uri().path()).iter().any(|permission| rules.denied.contains(*permission)) {
            return Err(Status::permission_denied("User not authorized to perform this action."));
        }
        Ok(())
    }

    fn granted(&self, request: TestIamPermissionsRequest) -> TestIamPermissionsResponse {
        let rules = self.rules();
        let granted = |permission: &String| !rules.denied.contains(permission);
        TestIamPermissionsResponse { permissions: request.permissions.into_iter().filter(granted).collect() }
    }
}

/// The calls that can be denied, and the permissions that each needs.
const NEEDED: [(&str, &[&str]); 22] = [
    ("Publisher/Publish", &["pubsub.topics.publish"]),
    ("Publisher/CreateTopic", &["pubsub.topics.create"]),
    ("Publisher/GetTopic", &["pubsub.topics.get"]),
    ("Publisher/UpdateTopic", &["pubsub.topics.update"]),
    ("Publisher/ListTopics", &["pubsub.topics.list"]),
    ("Publisher/DeleteTopic", &["pubsub.topics.delete"]),
    ("Publisher/DetachSubscription", &["pubsub.topics.detachSubscription"]),
    ("Subscriber/CreateSubscription", &["pubsub.subscriptions.create", "pubsub.topics.attachSubscription"]),
    ("Subscriber/GetSubscription", &["pubsub.subscriptions.get"]),
    ("Subscriber/UpdateSubscription", &["pubsub.subscriptions.update"]),
    ("Subscriber/ListSubscriptions", &["pubsub.subscriptions.list"]),
    ("Subscriber/DeleteSubscription", &["pubsub.subscriptions.delete"]),
    ("Subscriber/Pull", &["pubsub.subscriptions.consume"]),
    ("Subscriber/StreamingPull", &["pubsub.subscriptions.consume"]),
    ("Subscriber/Acknowledge", &["pubsub.subscriptions.consume"]),
    ("Subscriber/ModifyAckDeadline", &["pubsub.subscriptions.consume"]),
    ("Subscriber/Seek", &["pubsub.subscriptions.consume"]),
    ("Subscriber/CreateSnapshot", &["pubsub.snapshots.create", "pubsub.subscriptions.consume"]),
    ("Subscriber/GetSnapshot", &["pubsub.snapshots.get"]),
    ("Subscriber/UpdateSnapshot", &["pubsub.snapshots.update"]),
    ("Subscriber/ListSnapshots", &["pubsub.snapshots.list"]),
    ("Subscriber/DeleteSnapshot", &["pubsub.snapshots.delete"]),
];

/// What the call at a path needs.
fn needed(path: &str) -> &'static [&'static str] {
    let call = path.strip_prefix("/google.pubsub.v1.").unwrap_or_default();
    NEEDED.iter().find(|(known, _)| *known == call).map_or(&[], |(_, permissions)| permissions)
}

/// A service behind the rules. Which permissions somebody has, it answers itself.
#[derive(Clone, Debug)]
pub struct Guarded<S> {
    inner: S,
    access: Arc<Access>,
    clock: Arc<Clock>,
}

impl<S> Guarded<S> {
    /// Let in only what `access` allows; answers have the date of `clock`.
    pub fn new(inner: S, access: Arc<Access>, clock: Arc<Clock>) -> Self {
        Self { inner, access, clock }
    }
}

impl<S> Service<http::Request<Body>> for Guarded<S>
where
    S: Service<
            http::Request<Body>,
            Response = http::Response<Body>,
            Error = Infallible,
            Future = BoxFuture<http::Response<Body>, Infallible>,
        >,
{
    type Response = S::Response;
    type Error = Infallible;
    type Future = S::Future;

    fn poll_ready(&mut self, context: &mut Context<'_>) -> Poll<std::result::Result<(), Infallible>> {
        self.inner.poll_ready(context)
    }

    fn call(&mut self, request: http::Request<Body>) -> Self::Future {
        if let Err(status) = self.access.check(&request) {
            return Box::pin(async move { Ok(status.into_http()) });
        }
        let answered = if request.uri().path() == path::TEST_IAM_PERMISSIONS {
            let access = self.access.clone();
            prost(request, move |asked| Ok(access.granted(asked)))
        } else {
            self.inner.call(request)
        };
        let clock = self.clock.clone();
        Box::pin(async move {
            let now = clock.now();
            let mut answer = answered.await?;
            // Of the clock that tests turn; the server's own would tell another time than the messages.
            if let Ok(date) = httpdate::fmt_http_date(now.to_system_time()).parse() {
                answer.headers_mut().insert(http::header::DATE, date);
            }
            Ok(answer)
        })
    }
}

/// The server with this identity, or without TLS.
pub fn with_tls(server: Server, identity: Option<TlsIdentity>) -> Result<Server> {
    let Some((certificate, key)) = identity else { return Ok(server) };
    let tls = ServerTlsConfig::new().identity(Identity::from_pem(certificate, key));
    server.tls_config(tls).map_err(|e| {
        Error::new(ErrorKind::Config, format!("the emulator's certificate or key is wrong: {}.", causes(&e)))
            .with_remedy("Give both as PEM.")
    })
}
