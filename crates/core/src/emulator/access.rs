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

    /// Deny these permissions from now on, and no others.
    pub fn deny(&self, permissions: impl IntoIterator<Item = String>) {
        self.rules().denied = permissions.into_iter().collect();
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
        match permission(request.uri().path()) {
            Some(needed) if rules.denied.contains(needed) => {
                Err(Status::permission_denied("User not authorized to perform this action."))
            }
            _ => Ok(()),
        }
    }

    fn granted(&self, request: TestIamPermissionsRequest) -> TestIamPermissionsResponse {
        let rules = self.rules();
        let granted = |permission: &String| !rules.denied.contains(permission);
        TestIamPermissionsResponse { permissions: request.permissions.into_iter().filter(granted).collect() }
    }
}

/// What a call needs, as far as it can be denied.
fn permission(call: &str) -> Option<&'static str> {
    Some(match call {
        path::PUBLISH => "pubsub.topics.publish",
        path::CREATE_TOPIC => "pubsub.topics.create",
        path::GET_TOPIC => "pubsub.topics.get",
        path::LIST_TOPICS => "pubsub.topics.list",
        path::DELETE_TOPIC => "pubsub.topics.delete",
        path::CREATE_SUBSCRIPTION => "pubsub.subscriptions.create",
        path::GET_SUBSCRIPTION => "pubsub.subscriptions.get",
        path::LIST_SUBSCRIPTIONS => "pubsub.subscriptions.list",
        path::DELETE_SUBSCRIPTION => "pubsub.subscriptions.delete",
        "/google.pubsub.v1.Subscriber/Pull" | path::STREAMING_PULL | path::ACKNOWLEDGE | path::MODIFY_ACK_DEADLINE => {
            "pubsub.subscriptions.consume"
        }
        _ => return None,
    })
}

/// A service behind the rules. Which permissions somebody has, it answers itself.
#[derive(Clone, Debug)]
pub struct Guarded<S> {
    inner: S,
    access: Arc<Access>,
}

impl<S> Guarded<S> {
    /// Let in only what `access` allows.
    pub fn new(inner: S, access: Arc<Access>) -> Self {
        Self { inner, access }
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
        if request.uri().path() == path::TEST_IAM_PERMISSIONS {
            let access = self.access.clone();
            return prost(request, move |asked| Ok(access.granted(asked)));
        }
        self.inner.call(request)
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
