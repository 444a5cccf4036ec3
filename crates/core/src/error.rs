//! The one error type of the core. Its kinds map one to one to classes of `solstice.errors`.

use std::error::Error as StdError;
use std::fmt;
use std::sync::Arc;

use serde::{Deserialize, Serialize};
use tonic::{Code, Status};

/// The result of everything in this crate that can fail.
pub type Result<T> = std::result::Result<T, Error>;

/// What went wrong, as far as a caller would act on it differently.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum ErrorKind {
    /// An argument or option is wrong.
    Config,
    /// A column of a schema has a type that cannot be had.
    UnsupportedType,
    /// No such topic or subscription.
    NotFound,
    /// A topic or subscription of that name is there already.
    AlreadyExists,
    /// The caller lacks a role.
    PermissionDenied,
    /// No credentials, or bad ones.
    Unauthenticated,
    /// The service refused the request as malformed.
    InvalidRequest,
    /// The service could not be reached within the deadline.
    Unavailable,
    /// The agent of a streaming query is gone.
    AgentLost,
    /// A part of a batch could not be read whole.
    PartUnavailable,
    /// A puller was closed, and what it held was given back.
    Closed,
    /// A payload does not fit its schema, and the caller wants to stop at that.
    CorruptRow,
    /// Pub/Sub failed in another way.
    PubSub,
    /// The core itself failed: a bug.
    Native,
}

/// An error with what to do about it.
/// It crosses the border between agent and planner or worker, hence the serialization.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Error {
    /// What went wrong.
    pub kind: ErrorKind,
    /// What happened, with the names of the things involved.
    pub message: String,
    /// What to do about it, in one sentence.
    pub remedy: Option<String>,
    /// The gRPC status, where there was one.
    #[serde(with = "code_as_number")]
    pub code: Option<Code>,
}

impl Error {
    /// An error without a remedy.
    pub fn new(kind: ErrorKind, message: impl Into<String>) -> Self {
        Self { kind, message: message.into(), remedy: None, code: None }
    }

    /// The same error with what to do about it.
    #[must_use]
    pub fn with_remedy(mut self, remedy: impl Into<String>) -> Self {
        self.remedy = Some(remedy.into());
        self
    }

    /// As the status of a call that failed before the server could; [`Error::from_status`] finds it there again.
    pub fn into_status(self) -> Status {
        let code = match self.kind {
            ErrorKind::Unauthenticated => Code::Unauthenticated,
            ErrorKind::Unavailable => Code::Unavailable,
            // Nobody's answer, but no reason to try again.
            _ => Code::FailedPrecondition,
        };
        let mut status = Status::new(code, self.to_string());
        status.set_source(Arc::new(self));
        status
    }

    /// The error of a gRPC call; `doing` says what was tried and on which resource.
    pub fn from_status(doing: &str, status: &Status) -> Self {
        if let Some(cause) = status.source().and_then(|source| source.downcast_ref::<Self>()) {
            let message = format!("{doing}: {}", cause.message);
            let code = Some(status.code()).filter(|code| *code != Code::FailedPrecondition);
            return Self { message, code, ..cause.clone() };
        }
        let (kind, remedy) = match status.code() {
            Code::NotFound => (ErrorKind::NotFound, Some("Check the name, or create it first.")),
            Code::AlreadyExists => (ErrorKind::AlreadyExists, None),
            Code::PermissionDenied => (
                ErrorKind::PermissionDenied,
                Some("Grant roles/pubsub.subscriber (to read) or roles/pubsub.publisher (to write) to the caller."),
            ),
            Code::Unauthenticated => (
                ErrorKind::Unauthenticated,
                Some("Set GOOGLE_APPLICATION_CREDENTIALS, or PUBSUB_EMULATOR_HOST for an emulator."),
            ),
            Code::InvalidArgument | Code::FailedPrecondition | Code::OutOfRange => (ErrorKind::InvalidRequest, None),
            Code::Unavailable | Code::DeadlineExceeded => {
                (ErrorKind::Unavailable, Some("Check the endpoint; for an emulator: is it running at that address?"))
            }
            _ => (ErrorKind::PubSub, None),
        };
        Self {
            kind,
            message: format!("{doing}: {} ({:?}).", said(status.message().to_owned(), status.source()), status.code()),
            remedy: remedy.map(str::to_owned),
            code: Some(status.code()),
        }
    }
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.message)?;
        match &self.remedy {
            Some(remedy) => write!(f, " {remedy}"),
            None => Ok(()),
        }
    }
}

impl std::error::Error for Error {}

/// An error with what caused it, each said once.
pub(crate) fn causes(error: &dyn StdError) -> String {
    said(error.to_string(), error.source())
}

fn said(mut text: String, mut cause: Option<&(dyn StdError + 'static)>) -> String {
    while let Some(error) = cause {
        let next = error.to_string();
        if !text.contains(&next) {
            text = format!("{text}: {next}");
        }
        cause = error.source();
    }
    text
}

/// `tonic::Code` is no serde type; its number is.
mod code_as_number {
    use serde::{Deserialize, Deserializer, Serialize, Serializer};
    use tonic::Code;

    pub fn serialize<S: Serializer>(code: &Option<Code>, serializer: S) -> Result<S::Ok, S::Error> {
        code.map(i32::from).serialize(serializer)
    }

    pub fn deserialize<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Option<Code>, D::Error> {
        Ok(Option::<i32>::deserialize(deserializer)?.map(Code::from))
    }
}
