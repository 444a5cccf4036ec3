//! The requests that acknowledge deliveries, give them back or extend their leases: cut to the limits of the service,
//! encoded straight from the columns of ids, several in flight, tried again where that can help.

use std::collections::HashMap;
use std::sync::Arc;

use arrow_array::{Array, StringArray};
use bytes::{BufMut, Bytes, BytesMut};
use prost::Message;
use prost::encoding::{encode_varint, encoded_len_varint};
use tokio::sync::Semaphore;
use tokio::task::JoinSet;
use tonic::Status;

use crate::error::{Error, ErrorKind};
use crate::pubsub::client::Client;
use crate::pubsub::wire::{ErrorInfo, RpcStatus, path};
use crate::retry::{Backoff, is_transient};

/// The most ids one acknowledge or modifyAckDeadline request may name.
pub const MAX_REQUEST_IDS: usize = 1_000;
/// The most bytes one such request may have; leaves room for the subscription's name and framing.
const MAX_REQUEST_BYTES: usize = (512 << 10) - 4_096;
/// Requests of one kind that are under way at once; more would only queue in the connection.
const IN_FLIGHT: usize = 16;

/// What one of the requests asks for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Verb {
    Acknowledge,
    GiveBack,
    Extend(i32),
}

impl Verb {
    fn doing(self) -> &'static str {
        match self {
            Self::Acknowledge => "acknowledging",
            Self::GiveBack => "giving back",
            Self::Extend(_) => "extending the leases of",
        }
    }
}

/// A delivery that Pub/Sub refused for good, because its lease had ended (exactly-once delivery).
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Refusal {
    /// The delivery.
    pub ack_id: String,
    /// What Pub/Sub says.
    pub reason: String,
}

/// How a request, or several, ended.
#[derive(Debug, Default)]
pub struct Outcome {
    /// Pub/Sub took so many.
    pub confirmed: usize,
    /// It will never take these.
    pub refused: Vec<Refusal>,
    /// Why it has not taken the others.
    pub error: Option<Error>,
    /// So many had lost their lease by then: they may come again although Pub/Sub took their acknowledgement.
    pub late: usize,
}

impl Outcome {
    fn merge(&mut self, other: Self) {
        self.confirmed += other.confirmed;
        self.refused.extend(other.refused);
        self.error = self.error.take().or(other.error);
        self.late += other.late;
    }
}

/// Makes the requests for one subscription. Extensions never wait for acknowledgements, nor the other way round.
pub struct Settler {
    client: Client,
    subscription: String,
    settling: Semaphore,
    extending: Semaphore,
}

impl Settler {
    /// For one subscription.
    pub fn new(client: Client, subscription: String) -> Arc<Self> {
        let (settling, extending) = (Semaphore::new(IN_FLIGHT), Semaphore::new(IN_FLIGHT));
        Arc::new(Self { client, subscription, settling, extending })
    }

    /// Acknowledge, trying again for as long as that can help.
    pub async fn acknowledge(self: &Arc<Self>, ack_ids: &[StringArray]) -> Outcome {
        self.all(ack_ids, Verb::Acknowledge).await
    }

    /// Give back, trying again for as long as that can help.
    pub async fn give_back(self: &Arc<Self>, ack_ids: &[StringArray]) -> Outcome {
        self.all(ack_ids, Verb::GiveBack).await
    }

    /// Extend by `seconds` from now, once: whoever keeps the leases asks again before they end.
    pub async fn extend(self: &Arc<Self>, ack_ids: &[StringArray], seconds: i32) -> Outcome {
        self.all(ack_ids, Verb::Extend(seconds)).await
    }

    async fn all(self: &Arc<Self>, ack_ids: &[StringArray], verb: Verb) -> Outcome {
        let mut calls = JoinSet::new();
        for ids in requests(ack_ids) {
            let settler = self.clone();
            calls.spawn(async move { settler.one(ids, verb).await });
        }
        let mut outcome = Outcome::default();
        while let Some(call) = calls.join_next().await {
            outcome.merge(call.unwrap_or_else(|died| Outcome {
                error: Some(Error::new(ErrorKind::Native, format!("{} messages died: {died}.", verb.doing()))),
                ..Outcome::default()
            }));
        }
        outcome
    }

    /// One request, again and again for what is left of it.
    async fn one(&self, mut ids: Vec<StringArray>, verb: Verb) -> Outcome {
        let mut outcome = Outcome::default();
        let mut backoff = Backoff::default();
        loop {
            let count = count(&ids);
            let Err(status) = self.call(&ids, verb).await else {
                outcome.confirmed += count;
                return outcome;
            };
            let failures = failures(&status);
            if !failures.is_empty() {
                // Whatever the status: these ids failed, the others of the request did not.
                let (again, refused) = sort(&ids, &failures);
                outcome.confirmed += count - again.len() - refused.len();
                outcome.refused.extend(refused);
                if again.is_empty() {
                    return outcome;
                }
                ids = vec![again];
            } else if !is_transient(status.code()) {
                outcome.error = Some(self.failed(count, verb, &status));
                return outcome;
            }
            if let Verb::Extend(_) = verb {
                outcome.error = Some(self.failed(count, verb, &status));
                return outcome;
            }
            log::warn!("{} {count} messages of {}: {status}; trying again", verb.doing(), self.subscription);
            tokio::time::sleep(backoff.next_delay()).await;
        }
    }

    async fn call(&self, ids: &[StringArray], verb: Verb) -> std::result::Result<Bytes, Status> {
        let turns = if let Verb::Extend(_) = verb { &self.extending } else { &self.settling };
        // Kept for one try only: a request that waits for its next one is not in the way of others.
        let _turn = turns.acquire().await.map_err(|_| Status::cancelled("closed"))?;
        match verb {
            Verb::Acknowledge => self.client.call(path::ACKNOWLEDGE, encode(&self.subscription, ids, 2, 0)).await,
            Verb::GiveBack => self.client.call(path::MODIFY_ACK_DEADLINE, encode(&self.subscription, ids, 4, 0)).await,
            Verb::Extend(seconds) => {
                self.client.call(path::MODIFY_ACK_DEADLINE, encode(&self.subscription, ids, 4, seconds)).await
            }
        }
    }

    fn failed(&self, count: usize, verb: Verb, status: &Status) -> Error {
        Error::from_status(&format!("{} {count} messages of {}", verb.doing(), self.subscription), status)
    }
}

fn count(ids: &[StringArray]) -> usize {
    ids.iter().map(|ids| ids.len()).sum()
}

/// Cut ids into requests that keep to the limits of the service. Nothing is copied.
fn requests(ack_ids: &[StringArray]) -> Vec<Vec<StringArray>> {
    let mut requests = vec![];
    let (mut request, mut room, mut bytes) = (vec![], MAX_REQUEST_IDS, MAX_REQUEST_BYTES);
    for ids in ack_ids {
        let mut from = 0;
        for (index, length) in ids.offsets().windows(2).map(|ends| (ends[1] - ends[0]) as usize).enumerate() {
            let size = length + 4;
            if room == 0 || (size > bytes && room < MAX_REQUEST_IDS) {
                if index > from {
                    request.push(ids.slice(from, index - from));
                }
                requests.push(std::mem::take(&mut request));
                (room, bytes, from) = (MAX_REQUEST_IDS, MAX_REQUEST_BYTES, index);
            }
            room -= 1;
            bytes = bytes.saturating_sub(size);
        }
        if ids.len() > from {
            request.push(ids.slice(from, ids.len() - from));
        }
    }
    if !request.is_empty() {
        requests.push(request);
    }
    requests
}

/// `AcknowledgeRequest`, whose ids are field 2, or `ModifyAckDeadlineRequest`, whose ids are field 4.
fn encode(subscription: &str, ids: &[StringArray], ids_field: u8, deadline_s: i32) -> Bytes {
    let ids = || ids.iter().flat_map(|ids| ids.iter().flatten());
    let text_len = |text: &str| 1 + encoded_len_varint(text.len() as u64) + text.len();
    let mut body = BytesMut::with_capacity(text_len(subscription) + 11 + ids().map(text_len).sum::<usize>());
    let mut put = |field: u8, text: &str| {
        body.put_u8(field << 3 | 2);
        encode_varint(text.len() as u64, &mut body);
        body.put_slice(text.as_bytes());
    };
    put(1, subscription);
    ids().for_each(|id| put(ids_field, id));
    if deadline_s > 0 {
        body.put_u8(3 << 3);
        encode_varint(u64::from(deadline_s.unsigned_abs()), &mut body);
    }
    body.freeze()
}

/// What the service says about single ids of a request that failed (exactly-once delivery).
fn failures(status: &Status) -> HashMap<String, String> {
    let details = RpcStatus::decode(status.details()).unwrap_or_default().details;
    details
        .into_iter()
        .filter(|detail| detail.type_url.ends_with("/google.rpc.ErrorInfo"))
        .filter_map(|detail| ErrorInfo::decode(detail.value.as_slice()).ok())
        .flat_map(|info| info.metadata)
        .filter(|(_, what)| what.starts_with(TRANSIENT) || what.starts_with(PERMANENT))
        .collect()
}

const TRANSIENT: &str = "TRANSIENT_FAILURE_";
const PERMANENT: &str = "PERMANENT_FAILURE_";

/// The ids to try again, and those that are refused for good.
fn sort(ids: &[StringArray], failures: &HashMap<String, String>) -> (StringArray, Vec<Refusal>) {
    let failed = || {
        let all = ids.iter().flat_map(|ids| ids.iter().flatten());
        all.filter_map(|id| failures.get(id).map(|what| (id, what)))
    };
    let again = failed().filter(|(_, what)| what.starts_with(TRANSIENT)).map(|(id, _)| Some(id)).collect();
    let refused = failed()
        .filter(|(_, what)| what.starts_with(PERMANENT))
        .map(|(id, what)| Refusal { ack_id: id.to_owned(), reason: what.clone() })
        .collect();
    (again, refused)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::pubsub::wire::{AcknowledgeRequest, Any, ModifyAckDeadlineRequest};
    use tonic::Code;

    fn ids(count: usize, length: usize) -> StringArray {
        (0..count).map(|i| Some(format!("{i:04}{}", "-".repeat(length - 4)))).collect()
    }

    fn texts(ids: &[StringArray]) -> Vec<String> {
        ids.iter().flat_map(|ids| ids.iter().flatten().map(str::to_owned)).collect()
    }

    #[test]
    fn requests_keep_to_the_limit_of_ids_and_lose_none() {
        for sizes in [vec![2_500], vec![999, 1, 1, 1_499], vec![0, 700, 700, 0, 1_100], vec![]] {
            let all: Vec<StringArray> = sizes.iter().map(|size| ids(*size, 8)).collect();
            let cut = requests(&all);
            let counts: Vec<usize> = cut.iter().map(|request| count(request)).collect();
            assert_eq!(counts, if sizes.is_empty() { vec![] } else { vec![1_000, 1_000, 500] });
            assert_eq!(texts(&cut.concat()), texts(&all));
        }
    }

    #[test]
    fn requests_keep_to_the_limit_of_bytes_and_a_huge_id_goes_alone() {
        let cut = requests(&[ids(900, 1_024)]);
        assert_eq!(cut.len(), 2);
        for request in &cut {
            assert!(encode("projects/p/subscriptions/s", request, 4, 600).len() <= 512 << 10);
        }
        let cut = requests(&[ids(2, 600 << 10), ids(3, 4)]);
        assert_eq!(cut.iter().map(|request| count(request)).collect::<Vec<_>>(), [1, 1, 3]);
    }

    #[test]
    fn requests_are_encoded_as_prost_does() {
        let parts = [ids(3, 4), ids(2, 200)];
        let known = AcknowledgeRequest { subscription: "s".into(), ack_ids: texts(&parts) };
        assert_eq!(AcknowledgeRequest::decode(encode("s", &parts, 2, 0)).unwrap(), known);
        for ack_deadline_seconds in [0, 10, 600] {
            let known =
                ModifyAckDeadlineRequest { subscription: "s".into(), ack_deadline_seconds, ack_ids: texts(&parts) };
            let decoded = ModifyAckDeadlineRequest::decode(encode("s", &parts, 4, ack_deadline_seconds)).unwrap();
            assert_eq!(decoded, known);
        }
    }

    #[test]
    fn failures_of_single_ids_are_read_and_sorted() {
        let metadata = [("a", "TRANSIENT_FAILURE_X"), ("b", "PERMANENT_FAILURE_INVALID_ACK_ID"), ("c", "other")];
        let info = ErrorInfo {
            metadata: metadata.iter().map(|(id, what)| ((*id).into(), (*what).into())).collect(),
            ..Default::default()
        };
        let detail = Any { type_url: "type.googleapis.com/google.rpc.ErrorInfo".into(), value: info.encode_to_vec() };
        let other = Any { type_url: "type.googleapis.com/google.rpc.Help".into(), value: vec![1, 2, 3] };
        let details = RpcStatus { details: vec![other, detail], ..Default::default() }.encode_to_vec();
        let status = Status::with_details(Code::InvalidArgument, "some ids", details.into());
        let ids: StringArray = ["z", "a", "b", "c"].into_iter().map(Some).collect();
        let (again, refused) = sort(&[ids], &failures(&status));
        assert_eq!(texts(&[again]), ["a"]);
        assert_eq!(refused, [Refusal { ack_id: "b".into(), reason: "PERMANENT_FAILURE_INVALID_ACK_ID".into() }]);
        assert!(failures(&Status::unavailable("")).is_empty());
        let noise = Status::with_details(Code::InvalidArgument, "", vec![0xff; 9].into());
        assert!(failures(&noise).is_empty());
    }
}
