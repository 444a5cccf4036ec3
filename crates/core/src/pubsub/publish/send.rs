//! One request: sent, and sent again while that may help.

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use tokio::sync::watch;
use tokio::time::Instant;
use tonic::{Code, Status};

use super::encode::read_ids;
use super::outbox::Phase;
use super::request::Request;
use crate::error::{Error, ErrorKind};
use crate::pubsub::client::{CALL_DEADLINE, Client};
use crate::retry::{Backoff, is_transient};

/// Sends requests to one topic.
pub struct Sender {
    /// The connection.
    pub client: Client,
    /// `projects/P/topics/T`.
    pub topic: String,
    /// From the first try of a request to the end of its last one.
    pub timeout: Duration,
    /// Compress the requests.
    pub gzip: bool,
}

/// A request that has no ids.
pub struct Failed {
    /// For the rows.
    pub reason: Arc<str>,
    /// The same as an error.
    pub error: Error,
    /// Nothing else that is sent to this topic would fare better.
    pub fatal: bool,
}

impl Failed {
    fn new(error: Error, fatal: bool) -> Self {
        Self { reason: error.message.trim_end_matches('.').into(), error, fatal }
    }

    /// The sending itself died.
    pub fn died() -> Self {
        Self::new(Error::new(ErrorKind::Native, "the sending task died"), true)
    }
}

impl Sender {
    /// The response, with an id for each message.
    pub async fn send(&self, request: &Request, mut phase: watch::Receiver<Phase>) -> Result<Bytes, Failed> {
        let deadline = Instant::now() + self.timeout;
        let mut backoff = Backoff::default();
        loop {
            let left = deadline.saturating_duration_since(Instant::now());
            let call = self.client.publish(request.body.clone(), left.min(CALL_DEADLINE), self.gzip);
            let answer = tokio::select! {
                answer = call => answer,
                _ = phase.wait_for(|now| *now == Phase::Cancelled) => return Err(self.interrupted()),
            };
            let status = match answer {
                Ok(response) => return self.checked(response, request.messages),
                Err(status) if is_transient(status.code()) => status,
                Err(status) => return Err(self.refused(&status)),
            };
            let delay = backoff.next_delay();
            if Instant::now() + delay >= deadline {
                return Err(self.given_up(&status));
            }
            log::info!("publishing to {}: {status}; trying again in {} ms", self.topic, delay.as_millis());
            tokio::select! {
                () = tokio::time::sleep(delay) => {}
                _ = phase.wait_for(|now| *now != Phase::Running) => return Err(self.given_up(&status)),
            }
        }
    }

    fn checked(&self, response: Bytes, messages: usize) -> Result<Bytes, Failed> {
        match read_ids(&response, |_| ()) {
            Some(ids) if ids == messages => Ok(response),
            ids => {
                let found = ids.map_or("an answer that cannot be read".to_owned(), |ids| format!("{ids} ids"));
                let message = format!("publishing to {}: {found} for {messages} messages", self.topic);
                Err(Failed::new(Error::new(ErrorKind::PubSub, message), false))
            }
        }
    }

    fn refused(&self, status: &Status) -> Failed {
        let error = Error::from_status(&format!("publishing to {}", self.topic), status);
        // These speak of the messages; everything else would be the answer to any message.
        let of_messages = [Code::InvalidArgument, Code::FailedPrecondition, Code::OutOfRange];
        let fatal = error.code.is_none_or(|code| !of_messages.contains(&code));
        Failed::new(error, fatal)
    }

    fn given_up(&self, status: &Status) -> Failed {
        let doing = format!("publishing to {} did not succeed within {} s", self.topic, self.timeout.as_secs_f64());
        let mut error = Error::from_status(&doing, status);
        if status.code() == Code::Cancelled {
            // Some servers cancel a call at its deadline, and may be a moment before our own clock.
            error = Error::from_status(&doing, &Status::deadline_exceeded(status.message()));
        }
        Failed::new(error, true)
    }

    fn interrupted(&self) -> Failed {
        let message = format!("publishing to {} was interrupted", self.topic);
        Failed::new(Error::new(ErrorKind::PubSub, message), false)
    }
}
