//! Who the caller is: Google's application default credentials, and the access tokens they give.
//!
//! - `grant`: what a file or the metadata server says, and how it is turned into a request for a token.
//! - `exchange`: that request over HTTP, tried again while that can help.
//! - this file: where credentials are looked for, and the token that everybody shares until it gets old.

mod exchange;
mod grant;

use std::ffi::OsString;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use tonic::metadata::{Ascii, MetadataMap, MetadataValue};

use crate::error::{Error, ErrorKind, Result};
use crate::runtime;
use exchange::Patience;
use grant::Grant;

/// A token is renewed this long before its end. The metadata server gives no new one earlier than 5 minutes before.
const RENEW_BEFORE: Duration = Duration::from_secs(225);
/// A renewal ahead of time that failed is tried again after this.
const RENEW_PAUSE: Duration = Duration::from_secs(10);
/// A refused token that was fetched because of a refusal, this short ago, is not worth another one.
const REFUSED_FOR_GOOD: Duration = Duration::from_secs(60);
const METADATA_HOST: &str = "metadata.google.internal";

/// Where a token comes from. The file is read for each token, so that a key can be changed under a running process.
#[derive(Clone, Debug, PartialEq, Eq)]
enum Source {
    /// A file, and what names it: an option, or its well-known place.
    File { path: PathBuf, named_by: &'static str },
    /// The metadata server of Google's machines.
    Metadata { host: String },
}

/// Access tokens of one identity, fetched when they are needed and shared by all who ask.
#[derive(Debug)]
pub struct Credentials {
    source: Source,
    patience: Patience,
    held: Mutex<Held>,
    /// Whoever holds it fetches; the others wait for what it brings.
    turn: Arc<tokio::sync::Mutex<()>>,
}

#[derive(Debug, Default)]
struct Held {
    token: Option<Token>,
    /// The server refused the token before the next one.
    refused: bool,
    /// There has been a token: who cannot be reached now was there once.
    found: bool,
    /// No renewal ahead of time before this.
    pause_until: Option<Instant>,
    /// Why the last fetch brought nothing, and when that was known.
    failed: Option<(Instant, Error)>,
}

/// An access token. Its `Debug` shows no secret: the value is marked as sensitive.
#[derive(Clone, Debug)]
pub struct Token {
    bearer: MetadataValue<Ascii>,
    quota_project: Option<MetadataValue<Ascii>>,
    who: Arc<str>,
    fetched: Instant,
    renew_at: Instant,
    expires_at: Instant,
    after_refusal: bool,
}

impl Token {
    /// Show it with a call.
    pub fn add_to(&self, metadata: &mut MetadataMap) {
        metadata.insert("authorization", self.bearer.clone());
        if let Some(project) = &self.quota_project {
            metadata.insert("x-goog-user-project", project.clone());
        }
    }

    /// Whose it is, for messages.
    pub fn who(&self) -> &str {
        &self.who
    }

    fn is_the_same_as(&self, other: &Self) -> bool {
        self.bearer == other.bearer && self.fetched == other.fetched
    }
}

impl Credentials {
    /// Those of the file, or else of gcloud's file, or else of the machine. Fetches nothing yet.
    pub fn find(file: Option<&Path>) -> Self {
        Self::new(locate(file, |name| std::env::var_os(name).filter(|value| !value.is_empty()), Path::exists))
    }

    fn new(source: Source) -> Self {
        let patience = match source {
            Source::File { .. } => Patience::FOR_A_TOKEN_SERVER,
            Source::Metadata { .. } => Patience::FOR_A_METADATA_SERVER,
        };
        Self { source, patience, held: Mutex::default(), turn: Arc::default() }
    }

    /// A token that is still good: the held one, else a new one. One that gets old is renewed beside it.
    pub async fn token(self: &Arc<Self>) -> Result<Token> {
        if let Some(token) = self.good() {
            let now = Instant::now();
            if now >= token.renew_at && self.held().pause_until.is_none_or(|until| now >= until) {
                self.renew_beside();
            }
            return Ok(token);
        }
        let asked = Instant::now();
        let _turn = self.turn.lock().await;
        if let Some(token) = self.good() {
            return Ok(token);
        }
        // Whoever waited for a fetch shares its failure: one after the other they would wait for ever.
        let failed = self.held().failed.clone().filter(|(at, _)| *at >= asked);
        match failed {
            Some((_, error)) => Err(error),
            None => self.fetch().await,
        }
    }

    fn good(&self) -> Option<Token> {
        self.held().token.clone().filter(|token| Instant::now() < token.expires_at)
    }

    /// The server refused this token. Whether another one is worth a try; the next `token` gives it.
    pub fn refused(&self, token: &Token) -> bool {
        let mut held = self.held();
        // Unless somebody else was refused as well, and has thrown it away or even replaced it.
        if held.token.as_ref().is_some_and(|current| current.is_the_same_as(token)) {
            held.token = None;
            held.refused = true;
        }
        !token.after_refusal || token.fetched.elapsed() >= REFUSED_FOR_GOOD
    }

    /// Fetch in a task of its own, unless one is fetching already.
    fn renew_beside(self: &Arc<Self>) {
        let (Ok(turn), Ok(runtime)) = (self.turn.clone().try_lock_owned(), runtime::handle()) else { return };
        let this = self.clone();
        runtime.spawn(async move {
            let _turn = turn;
            if let Err(error) = this.fetch().await {
                log::warn!("{error} The current token serves on until it expires.");
                this.held().pause_until = Some(Instant::now() + RENEW_PAUSE);
            }
        });
    }

    /// Only with the turn.
    async fn fetch(&self) -> Result<Token> {
        let fetched = self.fetch_anew().await;
        self.held().failed = fetched.as_ref().err().map(|error| (Instant::now(), error.clone()));
        fetched
    }

    async fn fetch_anew(&self) -> Result<Token> {
        let grant = Grant::of(&self.source)?;
        let found = self.held().found;
        let issued = exchange::exchange(&grant, self.patience, found).await?;
        let fetched = Instant::now();
        let lifetime = Duration::from_secs(issued.expires_in);
        let mut held = self.held();
        let token = Token {
            bearer: issued.bearer,
            quota_project: grant.quota_project,
            who: grant.who.into(),
            fetched,
            renew_at: fetched + lifetime.saturating_sub(RENEW_BEFORE.min(lifetime / 2)),
            expires_at: fetched + lifetime,
            after_refusal: std::mem::take(&mut held.refused),
        };
        held.token = Some(token.clone());
        held.pause_until = None;
        held.found = true;
        log::debug!("a new access token of {}, good for {} s", token.who, issued.expires_in);
        Ok(token)
    }

    fn held(&self) -> MutexGuard<'_, Held> {
        self.held.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

fn locate(file: Option<&Path>, env: impl Fn(&str) -> Option<OsString>, exists: impl Fn(&Path) -> bool) -> Source {
    if let Some(path) = file {
        return Source::File { path: path.to_owned(), named_by: "credentialsFile" };
    }
    let folder = env("CLOUDSDK_CONFIG").map(PathBuf::from);
    let folder = folder.or_else(|| env("HOME").map(|home| Path::new(&home).join(".config").join("gcloud")));
    match folder.map(|folder| folder.join("application_default_credentials.json")) {
        Some(path) if exists(&path) => Source::File { path, named_by: "gcloud's file of credentials" },
        _ => {
            let host = env("GCE_METADATA_HOST").and_then(|host| host.into_string().ok());
            Source::Metadata { host: host.unwrap_or_else(|| METADATA_HOST.to_owned()) }
        }
    }
}

fn unauthenticated(message: String) -> Error {
    Error::new(ErrorKind::Unauthenticated, message)
}

#[cfg(test)]
mod tests;
